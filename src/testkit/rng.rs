//! Seeded pseudo-random numbers: the same seed draws the same plan on every machine and version.

/// SplitMix64, with the draws that plans and link models need.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent generator for each pair of numbers.
    #[must_use]
    pub fn keyed(seed: u64, key: u64) -> Self {
        let mut outer = Self(seed);
        Self(outer.next() ^ Self(key).next())
    }

    /// 64 uniformly distributed bits.
    #[expect(clippy::should_implement_trait, reason = "a generator is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..limit`; zero for an empty range.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A length in `low..=high`.
    pub fn size(&mut self, low: usize, high: usize) -> usize {
        self.range(low as u64, high as u64) as usize
    }

    /// A number in `low..=high` with a uniformly distributed order of magnitude.
    pub fn spread(&mut self, low: u64, high: u64) -> u64 {
        let bits = |n: u64| u64::from(u64::BITS - n.leading_zeros());
        let top = self.range(bits(low), bits(high));
        let cap = 1_u64.checked_shl(top as u32).map_or(u64::MAX, |n| n - 1);
        self.range(low.max(cap / 2).min(high), cap.clamp(low, high))
    }

    /// True with a probability of `ppm` parts per million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Overwrites `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]);
        }
    }
}
