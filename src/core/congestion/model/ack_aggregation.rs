//! Acknowledgements that come in bursts (draft-ietf-ccwg-bbr 5.5.9 `BBR.extra_acked`): a peer that
//! collects them for its interval, as kcp-go does, needs more in flight than the bandwidth-delay
//! product.

use crate::core::clock::Micros;
use crate::core::congestion::controller::Acked;
use crate::core::congestion::windowed_max::WindowedMax;

/// Longest time of which the bytes count, microseconds.
const MAX_TIME: u64 = 100_000;
/// Least duration of a round of the filter, microseconds.
const LEAST_ROUND: u64 = 50_000;
const SECOND: u64 = 1_000_000;

/// Bytes acknowledged beyond what the rate explains.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckAggregation {
    /// Since when `acked` counts.
    since: Micros,
    acked: u64,
    extra: WindowedMax,
    /// Longest delay of an ACK, microseconds.
    delay: WindowedMax,
    /// The second longest of all rounds: one outage does not count.
    delay_seen_twice: u64,
    rotated_at: Micros,
}

impl AckAggregation {
    /// Bytes were acknowledged, at an estimated `rate` of bytes per second.
    pub(super) fn on_acked(&mut self, acked: &Acked, rate: u64, min_rtt: Option<u64>) {
        let Acked { now, bytes, .. } = *acked;
        if let Some(min_rtt) = min_rtt
            && rate > 0
        {
            // What the path and a queue of these bytes do not explain.
            let queue = (acked.in_flight + bytes).saturating_mul(SECOND) / rate;
            let delay = acked.longest_wait.saturating_sub(min_rtt + queue);
            self.delay.update(delay.min(MAX_TIME));
        }
        let expected = |since| rate.saturating_mul(now.since(since)) / SECOND;
        if self.acked <= expected(self.since) {
            (self.since, self.acked) = (now, 0);
        }
        self.acked = self.acked.saturating_add(bytes);
        let extra = self.acked.saturating_sub(expected(self.since));
        self.extra.update(extra.min(rate.saturating_mul(MAX_TIME) / SECOND));
    }

    /// A round ended. Rounds may be much shorter than the tick at which a peer acknowledges.
    pub(super) fn next_round(&mut self, now: Micros) {
        if now.since(self.rotated_at) >= LEAST_ROUND {
            self.rotated_at = now;
            self.extra.next_round();
            self.delay_seen_twice = self.delay.second();
            self.delay.next_round();
        }
    }

    /// Bytes beyond the bandwidth-delay product that keep the path full.
    pub(super) fn extra(&self, rate: u64) -> u64 {
        self.extra.max().max(rate.saturating_mul(self.delay_seen_twice) / SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(now: Micros, bytes: u64) -> Acked {
        Acked {
            now,
            segments: 1,
            bytes,
            delivered: 0,
            in_flight: 0,
            rtt: None,
            longest_wait: 0,
            rate: None,
        }
    }

    #[test]
    fn bursts_of_acks_add_to_the_window_and_single_acks_do_not() {
        for (gap, bytes, expected) in [(1_000, 1_000, 1_000), (40_000, 40_000, 40_000)] {
            let mut aggregation = AckAggregation::default();
            for i in 1..100_u64 {
                aggregation.on_acked(&acked(Micros(i * gap), bytes), 1_000_000, None);
            }
            assert_eq!(aggregation.extra(1_000_000), expected);
        }
    }

    #[test]
    fn extra_is_at_most_a_tenth_of_a_second() {
        let mut aggregation = AckAggregation::default();
        (0..100).for_each(|_| aggregation.on_acked(&acked(Micros(1), u64::MAX), 1_000_000, None));
        assert_eq!(aggregation.extra(1_000_000), 100_000);
    }
}
