//! A path in one direction: seeded loss, duplication and delay.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The next 32 bits.
    pub fn draw_u32(&mut self) -> u32 {
        (self.draw() >> 32) as u32
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high - low + 1)
    }

    /// A number in `low..=high`.
    ///
    /// # Panics
    ///
    /// Never on targets with addresses of at most 64 bits.
    pub fn size(&mut self, low: usize, high: usize) -> usize {
        usize::try_from(self.between(low as u64, high as u64)).expect("between two sizes")
    }

    /// True in `percent` of all draws.
    pub fn chance(&mut self, percent: u8) -> bool {
        self.between(1, 100) <= u64::from(percent)
    }

    /// One of `choices`.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.size(0, choices.len() - 1)]
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.draw().to_le_bytes()[..part.len()]);
        }
    }
}

/// What happens to a datagram on its way.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Share that is lost.
    pub loss: u8,
    /// Share that arrives twice.
    pub duplicates: u8,
    /// Least delay in milliseconds, at least 1.
    pub delay: u64,
    /// Most additional delay in milliseconds. Each datagram draws its own, so they overtake each
    /// other.
    pub jitter: u64,
}

impl Path {
    /// 10 ms and nothing else.
    pub const CLEAN: Self = Self { loss: 0, duplicates: 0, delay: 10, jitter: 0 };

    /// `loss` percent lost, 2 % twice, 10 ms to 25 ms in any order.
    #[must_use]
    pub const fn lossy(loss: u8) -> Self {
        Self { loss, duplicates: 2, delay: 10, jitter: 15 }
    }
}

/// One direction. Datagrams on their way, the next to arrive first.
#[derive(Debug)]
pub struct Link {
    path: Path,
    rng: Rng,
    sent: u64,
    flying: BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>,
}

impl Link {
    /// An empty link.
    #[must_use]
    pub fn new(path: Path, seed: u64) -> Self {
        Self { path, rng: Rng::new(seed), sent: 0, flying: BinaryHeap::new() }
    }

    /// Puts a datagram on its way.
    pub fn send(&mut self, now: u64, datagram: Vec<u8>) {
        if self.rng.chance(self.path.duplicates) {
            self.fly(now, datagram.clone());
        }
        if !self.rng.chance(self.path.loss) {
            self.fly(now, datagram);
        }
    }

    fn fly(&mut self, now: u64, datagram: Vec<u8>) {
        let at = now + self.path.delay.max(1) + self.rng.between(0, self.path.jitter);
        self.sent += 1;
        self.flying.push(Reverse((at, self.sent, datagram)));
    }

    /// The next datagram that has arrived by `now`.
    pub fn arrive(&mut self, now: u64) -> Option<Vec<u8>> {
        if self.next()? > now {
            return None;
        }
        self.flying.pop().map(|Reverse((_, _, datagram))| datagram)
    }

    /// When the next datagram arrives.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.flying.peek().map(|Reverse((at, _, _))| *at)
    }
}
