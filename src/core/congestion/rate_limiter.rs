//! Rate limit set by the application: a token bucket (kcp-go `SetRateLimit`).
//!
//! It applies before a datagram is built, so that timestamp and RTO start when the datagram leaves; kcp-go
//! applies its bucket after `flush`, when both have started.

use std::num::NonZeroU64;

use crate::core::clock::Micros;

/// Depth of the bucket as time at the configured rate, microseconds.
const BURST: u64 = 10_000;
/// Microseconds.
const SECOND: u64 = 1_000_000;

/// Token bucket of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateLimiter {
    /// Bytes per second; `None`: unlimited.
    rate: Option<NonZeroU64>,
    /// No datagram leaves before this time.
    next: Micros,
}

impl RateLimiter {
    /// Sets the rate, bytes per second. The next datagram may leave at once: bytes sent at the old rate are
    /// no longer charged.
    pub(crate) fn set_rate(&mut self, rate: Option<NonZeroU64>) {
        self.rate = rate;
        self.next = Micros(0);
    }

    /// Bytes per second; `None`: unlimited.
    pub(crate) fn rate(&self) -> Option<NonZeroU64> {
        self.rate
    }

    /// When the next datagram may leave, if not now.
    pub(crate) fn blocked_until(&self, now: Micros) -> Option<Micros> {
        (self.rate.is_some() && self.next.since(now) > 0).then_some(self.next)
    }

    /// When the next datagram may leave, possibly in the past; `None`: unlimited.
    pub(crate) fn next(&self) -> Option<Micros> {
        self.rate.map(|_| self.next)
    }

    /// A datagram leaves.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Micros, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let cost = (bytes as u64).saturating_mul(SECOND) / rate;
        // Unused time accumulates up to `BURST`.
        self.next = self.next.max(Micros(now.0.saturating_sub(BURST))).add_micros(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_over_ten_seconds_is_exact() {
        let mut limiter = RateLimiter::default();
        limiter.set_rate(NonZeroU64::new(1_000_000));
        let (mut now, mut bytes) = (Micros(0), 0);
        while now < Micros(10 * SECOND) {
            match limiter.blocked_until(now) {
                Some(next) => now = next,
                None => {
                    limiter.on_sent(now, 1_400);
                    bytes += 1_400;
                }
            }
        }
        assert!((10_000_000..=10_020_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn rate_limit_none_never_blocks() {
        let mut limiter = RateLimiter::default();
        limiter.on_sent(Micros(0), 1 << 30);
        assert_eq!(limiter.blocked_until(Micros(0)), None);
    }
}
