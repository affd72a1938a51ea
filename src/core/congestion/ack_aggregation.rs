//! Bursts of acknowledgements (draft-ietf-ccwg-bbr 5.5.9 `BBR.extra_acked`). A peer that collects ACKs for an
//! interval, as kcp-go does, needs more in flight than the bandwidth-delay product. This depends on the peer,
//! so each connection has its own state.

use crate::core::clock::Micros;
use crate::core::congestion::controller::Acked;
use crate::core::congestion::windowed_max::WindowedMax;

/// Longest time whose bytes count, microseconds.
const MAX_TIME: u64 = 100_000;
/// ACKs within `SAME_TICK` belong to one tick; a tick is at least `LEAST_TICK` long. Microseconds.
const SAME_TICK: u64 = 1_000;
const LEAST_TICK: u64 = 8_000;
/// Least duration of a filter round, microseconds.
const LEAST_ROUND: u64 = 50_000;
const SECOND: u64 = 1_000_000;

/// Bytes acknowledged in excess of the estimated rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckAggregation {
    /// Start of the time in which `acked` is counted.
    since: Micros,
    acked: u64,
    extra: WindowedMax,
    /// When ACKs last arrived, and when the current tick began.
    arrived_at: Micros,
    tick_began: Micros,
    /// Time from the previous ACKs to the start of this tick, microseconds, and the bytes it acknowledged.
    gap: u64,
    arrived: u64,
    /// Longest time between ACKs that together acknowledged all of it, microseconds.
    tick: WindowedMax,
    /// The second longest of all rounds, for the same reason as `delay_seen_twice`.
    tick_seen_twice: u64,
    /// Longest delay of an ACK, microseconds.
    delay: WindowedMax,
    /// The second longest of all rounds, so that a single outage does not count.
    delay_seen_twice: u64,
    rotated_at: Micros,
}

impl AckAggregation {
    /// The peer acknowledged bytes; `rate` is the estimated rate, bytes per second. `acked.in_flight` counts
    /// this connection alone.
    pub(super) fn on_acked(&mut self, acked: &Acked, rate: u64, min_rtt: Option<u64>) {
        let Acked { now, bytes, .. } = *acked;
        if let Some(min_rtt) = min_rtt
            && rate > 0
        {
            // The delay that neither the path nor a queue of these bytes explains.
            let queue = (acked.in_flight + bytes).saturating_mul(SECOND) / rate;
            let delay = acked.longest_wait.saturating_sub(min_rtt + queue);
            self.delay.update(delay.min(MAX_TIME));
        }
        self.find_tick(now, bytes, rate);
        let expected = |since| rate.saturating_mul(now.since(since)) / SECOND;
        if self.acked <= expected(self.since) {
            (self.since, self.acked) = (now, 0);
        }
        self.acked = self.acked.saturating_add(bytes);
        let extra = self.acked.saturating_sub(expected(self.since));
        self.extra.update(extra.min(rate.saturating_mul(MAX_TIME) / SECOND));
    }

    /// Looks for a tick. Half of the rate is enough, since the estimate may be too high.
    fn find_tick(&mut self, now: Micros, bytes: u64, rate: u64) {
        if now.since(self.tick_began) > SAME_TICK {
            (self.gap, self.arrived, self.tick_began) = (now.since(self.arrived_at), 0, now);
        }
        self.arrived_at = now;
        self.arrived = self.arrived.saturating_add(bytes);
        if (LEAST_TICK..=MAX_TIME + LEAST_TICK).contains(&self.gap)
            && rate > 0
            && self.arrived >= rate.saturating_mul(self.gap) / SECOND / 2
        {
            self.tick.update(self.gap.min(MAX_TIME));
        }
    }

    /// Bytes that wait for their ACK at a peer that acknowledges at a tick, as kcp-go does.
    pub(super) fn held_by_peer(&self, rate: u64) -> u64 {
        rate.saturating_mul(self.tick_seen_twice) / SECOND
    }

    /// A round ended. A round may be much shorter than the peer's tick.
    pub(super) fn next_round(&mut self, now: Micros) {
        if now.since(self.rotated_at) >= LEAST_ROUND {
            self.rotated_at = now;
            self.extra.next_round();
            self.tick_seen_twice = self.tick.second();
            self.tick.next_round();
            self.delay_seen_twice = self.delay.second();
            self.delay.next_round();
        }
    }

    /// Bytes in excess of the bandwidth-delay product that keep the path full.
    pub(super) fn extra(&self, rate: u64) -> u64 {
        // The rate may have fallen since they were measured.
        let extra = self.extra.max().min(rate.saturating_mul(MAX_TIME) / SECOND);
        extra.max(rate.saturating_mul(self.delay_seen_twice) / SECOND)
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
    fn tick_is_held_by_the_peer_and_what_comes_after_a_pause_is_not() {
        // Microseconds between two ticks, bytes of each, and bytes that the peer holds at 1 MB/s.
        for (gap, bytes, held) in [
            (1_000, 1_000, 0),
            (10_000, 10_000, 9_900),
            (100_000, 90_000, 99_900),
            (50_000, 1_000, 0),
        ] {
            let mut aggregation = AckAggregation::default();
            for i in 1..100_u64 {
                let now = Micros(i * gap);
                // One datagram holds the ACKs of only some segments.
                aggregation.on_acked(&acked(now, bytes / 2), 1_000_000, None);
                aggregation.on_acked(&acked(now.add_micros(100), bytes / 2), 1_000_000, None);
                aggregation.next_round(now);
            }
            assert_eq!(aggregation.held_by_peer(1_000_000), held, "{gap} us");
        }
    }

    #[test]
    fn pause_before_a_stream_of_acks_is_no_tick() {
        let mut aggregation = AckAggregation::default();
        let mut now = Micros(1_000_000);
        for _ in 0..20 {
            now = now.add_micros(60_000);
            for _ in 0..1_000 {
                now = now.add_micros(500);
                aggregation.on_acked(&acked(now, 500), 1_000_000, None);
                aggregation.next_round(now);
            }
        }
        assert_eq!(aggregation.held_by_peer(1_000_000), 0);
    }

    #[test]
    fn extra_is_at_most_a_tenth_of_a_second() {
        let mut aggregation = AckAggregation::default();
        (0..100).for_each(|_| aggregation.on_acked(&acked(Micros(1), u64::MAX), 1_000_000, None));
        assert_eq!(aggregation.extra(1_000_000), 100_000);
    }
}
