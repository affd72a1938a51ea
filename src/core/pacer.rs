//! A token bucket for the rate limit. Applied before a datagram is built, so that time stamps and
//! retransmission timers start when it really leaves.

use std::num::NonZeroU64;

use super::clock::Time;

/// Time whose worth of bytes may leave at once.
const BURST: u64 = 10_000;
const SECOND: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    /// Bytes per second.
    rate: Option<NonZeroU64>,
    /// Nothing leaves before this time.
    next: Time,
}

impl Pacer {
    pub(crate) fn set_rate(&mut self, rate: Option<NonZeroU64>) {
        self.rate = rate;
        // What an old rate still owes is forgiven: a new one takes effect at once.
        self.next = Time(0);
    }

    /// When the next datagram may leave, if not now.
    pub(crate) fn wait(&self, now: Time) -> Option<Time> {
        (self.rate.is_some() && self.next.since(now) > 0).then_some(self.next)
    }

    /// With a limit: when the next datagram may leave.
    pub(crate) fn next(&self) -> Option<Time> {
        self.rate.map(|_| self.next)
    }

    pub(crate) fn sent(&mut self, now: Time, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let cost = (bytes as u64).saturating_mul(SECOND) / rate;
        // Unused time is kept for one burst, no longer.
        self.next = self.next.max(Time(now.0.saturating_sub(BURST))).plus(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_run_rate_is_exact() {
        let mut pacer = Pacer::default();
        pacer.set_rate(NonZeroU64::new(1_000_000));
        let (mut now, mut bytes) = (Time(0), 0);
        while now < Time(10 * SECOND) {
            match pacer.wait(now) {
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
        let mut pacer = Pacer::default();
        pacer.sent(Time(0), 1 << 30);
        assert_eq!(pacer.wait(Time(0)), None);
    }
}
