//! Seeded pseudo-random numbers: a seed gives the same plan on every machine and version.

use chacha20::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};

/// ChaCha8 with draws for plans and link models. Its output is specified; `rand::SmallRng` may change.
#[derive(Debug)]
pub struct Rng(ChaCha8Rng);

impl Clone for Rng {
    fn clone(&self) -> Self {
        let mut rng = ChaCha8Rng::from_seed(self.0.get_seed());
        rng.set_word_pos(self.0.get_word_pos());
        Self(rng)
    }
}

impl Rng {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// An independent generator for each pair of numbers.
    #[must_use]
    pub fn keyed(seed: u64, key: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&key.to_le_bytes());
        Self(ChaCha8Rng::from_seed(bytes))
    }

    /// 64 uniformly distributed bits.
    #[expect(clippy::should_implement_trait, reason = "a generator is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
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

    /// An exponentially distributed number with this mean, by von Neumann's comparisons of uniform
    /// numbers: the last bits of a logarithm differ between machines.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        let mut whole = 0;
        loop {
            let first = self.next();
            let (mut last, mut decreasing) = (first, 1_u32);
            loop {
                let next = self.next();
                if next >= last {
                    break;
                }
                (last, decreasing) = (next, decreasing + 1);
            }
            if decreasing % 2 == 1 {
                return whole * mean + ((u128::from(first) * u128::from(mean)) >> 64) as u64;
            }
            whole += 1;
        }
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Overwrites `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clone_continues_the_same_stream() {
        let mut rng = Rng::new(3);
        for skipped in 0..200 {
            let mut copy = rng.clone();
            assert_eq!(copy.next(), rng.next(), "after {skipped}");
        }
    }

    #[test]
    fn keyed_generators_differ_in_seed_and_key() {
        let first = |seed, key| Rng::keyed(seed, key).next();
        assert_ne!(first(1, 2), first(2, 1));
        assert_eq!(first(1, 2), first(1, 2));
    }

    #[test]
    fn exponential_has_its_mean_and_its_tail() {
        let mut rng = Rng::new(5);
        let all: Vec<u64> = (0..100_000).map(|_| rng.exponential(1_000)).collect();
        let mean = all.iter().sum::<u64>() / 100_000;
        assert!((985..1_015).contains(&mean), "mean {mean}");
        // Share beyond t: exp(-t / mean).
        for (beyond, share) in [(100, 90_484), (1_000, 36_788), (3_000, 4_979)] {
            let count = all.iter().filter(|&&n| n > beyond).count();
            assert!(count.abs_diff(share) < 600, "{count} beyond {beyond}");
        }
    }
}
