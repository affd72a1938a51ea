//! The rate limit that the application sets: a token bucket (kcp-go `SetRateLimit`).
//!
//! Applies before a datagram is built, so that time stamps and retransmission timers start when it
//! really leaves.

use std::num::NonZeroU64;

use crate::core::clock::Micros;

/// Time whose worth of bytes may leave at once.
const BURST: u64 = 10_000;
const SECOND: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateLimiter {
    /// Bytes per second.
    rate: Option<NonZeroU64>,
    /// Nothing leaves before this time.
    next: Micros,
}

impl RateLimiter {
    pub(crate) fn set_rate(&mut self, rate: Option<NonZeroU64>) {
        self.rate = rate;
        // What an old rate still owes is forgiven: a new one takes effect at once.
        self.next = Micros(0);
    }

    /// When the next datagram may leave, if not now.
    pub(crate) fn blocked_until(&self, now: Micros) -> Option<Micros> {
        (self.rate.is_some() && self.next.since(now) > 0).then_some(self.next)
    }

    /// With a limit: when the next datagram may leave.
    pub(crate) fn next(&self) -> Option<Micros> {
        self.rate.map(|_| self.next)
    }

    #[inline]
    pub(crate) fn sent(&mut self, now: Micros, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let cost = (bytes as u64).saturating_mul(SECOND) / rate;
        // Unused time is kept for one burst, no longer.
        self.next = self.next.max(Micros(now.0.saturating_sub(BURST))).add_micros(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_run_rate_is_exact() {
        let mut pacer = RateLimiter::default();
        pacer.set_rate(NonZeroU64::new(1_000_000));
        let (mut now, mut bytes) = (Micros(0), 0);
        while now < Micros(10 * SECOND) {
            match pacer.blocked_until(now) {
                Some(next) => now = next,
                None => {
                    pacer.sent(now, 1_400);
                    bytes += 1_400;
                }
            }
        }
        assert!((10_000_000..=10_020_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn no_rate_means_no_wait() {
        let mut pacer = RateLimiter::default();
        pacer.sent(Micros(0), 1 << 30);
        assert_eq!(pacer.blocked_until(Micros(0)), None);
    }
}
