//! The data of the applications.

use crate::link::Rng;

/// Writes of a byte stream: `total` random bytes in pieces of all sizes.
#[must_use]
pub fn stream(rng: &mut Rng, total: usize) -> Vec<Vec<u8>> {
    let mut left = total;
    let mut writes = Vec::new();
    while left > 0 {
        let most = rng.pick(&[3, 200, 1_500, 30_000]);
        let mut write = vec![0; rng.size(1, most).min(left)];
        rng.fill(&mut write);
        left -= write.len();
        writes.push(write);
    }
    writes
}

/// Sizes and number of messages.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    /// Bytes in all, at least.
    pub total: usize,
    /// Payload of one segment.
    pub mss: usize,
    /// Most fragments of one message.
    pub fragments: usize,
    /// Whether there are messages without a byte.
    pub empty: bool,
}

impl Messages {
    /// Random messages: a small one first (before its answer the peer's window is not known), sizes around
    /// whole fragments, and at least one of the largest size.
    #[must_use]
    pub fn draw(self, rng: &mut Rng) -> Vec<Vec<u8>> {
        let mut left = self.total;
        let mut sizes = vec![1, self.mss * self.fragments];
        while left > 0 {
            let whole = rng.size(1, self.fragments.min(6)) * self.mss;
            let size = match rng.range(0, 9) {
                0 if self.empty => 0,
                0..=3 => rng.size(1, self.mss),
                4 => whole - 1,
                5 => whole,
                6 => (whole + 1).min(self.mss * self.fragments),
                _ => rng.size(1, whole),
            };
            left -= size.min(left);
            sizes.push(size);
        }
        let message = |size| {
            let mut message = vec![0; size];
            rng.fill(&mut message);
            message
        };
        sizes.into_iter().map(message).collect()
    }
}
