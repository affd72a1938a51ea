//! Acknowledgements that come in bursts (draft-ietf-ccwg-bbr 5.5.9 `BBR.extra_acked`): a peer that
//! collects them for its interval, as kcp-go does, needs more in flight than the bandwidth-delay
//! product.

use crate::core::clock::Micros;
use crate::core::congestion::windowed_max::WindowedMax;

/// Longest time of which the bytes count, microseconds.
const MAX_TIME: u64 = 100_000;
const SECOND: u64 = 1_000_000;

/// Bytes acknowledged beyond what the rate explains.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckAggregation {
    /// Since when `acked` counts.
    since: Micros,
    acked: u64,
    extra: WindowedMax,
}

impl AckAggregation {
    /// `bytes` were acknowledged, at an estimated `rate` of bytes per second.
    pub(super) fn on_acked(&mut self, now: Micros, bytes: u64, rate: u64) {
        let expected = |since| rate.saturating_mul(now.since(since)) / SECOND;
        if self.acked <= expected(self.since) {
            (self.since, self.acked) = (now, 0);
        }
        self.acked = self.acked.saturating_add(bytes);
        let extra = self.acked.saturating_sub(expected(self.since));
        self.extra.update(extra.min(rate.saturating_mul(MAX_TIME) / SECOND));
    }

    pub(super) fn next_round(&mut self) {
        self.extra.next_round();
    }

    /// Bytes beyond the bandwidth-delay product that keep the path full.
    pub(super) fn extra(&self) -> u64 {
        self.extra.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_of_acks_add_to_the_window_and_single_acks_do_not() {
        for (gap, bytes, expected) in [(1_000, 1_000, 1_000), (40_000, 40_000, 40_000)] {
            let mut aggregation = AckAggregation::default();
            for i in 1..100_u64 {
                aggregation.on_acked(Micros(i * gap), bytes, 1_000_000);
            }
            assert_eq!(aggregation.extra(), expected);
        }
    }

    #[test]
    fn extra_is_at_most_a_tenth_of_a_second() {
        let mut aggregation = AckAggregation::default();
        (0..100).for_each(|_| aggregation.on_acked(Micros(1), u64::MAX, 1_000_000));
        assert_eq!(aggregation.extra(), 100_000);
    }
}
