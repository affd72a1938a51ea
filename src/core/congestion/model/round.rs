//! Packet-timed round trips (draft-ietf-ccwg-bbr 4.5.1): a round ends when something is acknowledged
//! that left after its start; and what happened in it.

use crate::core::congestion::controller::Acked;

/// What happened in a round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundStats {
    /// Segments acknowledged.
    pub(super) acked: u64,
    /// Segments found lost that left in the current phase.
    pub(super) lost: u64,
    /// Most bytes in flight.
    pub(super) in_flight: u64,
    /// Largest delivery rate sample, bytes per second.
    pub(super) rate: u64,
    /// RTT samples: their sum, number, and the shortest, microseconds.
    rtt_sum: u64,
    rtt_count: u64,
    rtt_min: u64,
    /// A delivery rate sample was taken that the application did not limit.
    pub(super) sampled: bool,
}

impl RoundStats {
    pub(super) fn on_acked(&mut self, acked: &Acked) {
        self.acked += u64::from(acked.segments);
        // Not what the ACKs have left of it: those of a burst of segments arrive at once.
        self.in_flight = self.in_flight.max(acked.in_flight + acked.bytes);
    }

    pub(super) fn on_rtt(&mut self, rtt: u64) {
        self.rtt_min = if self.rtt_count == 0 { rtt } else { self.rtt_min.min(rtt) };
        self.rtt_sum = self.rtt_sum.saturating_add(rtt);
        self.rtt_count += 1;
    }

    /// Mean RTT; `None` without a sample.
    pub(super) fn mean_rtt(&self) -> Option<u64> {
        self.rtt_sum.checked_div(self.rtt_count)
    }

    /// Shortest RTT; `None` without a sample.
    pub(super) fn min_rtt(&self) -> Option<u64> {
        (self.rtt_count > 0).then_some(self.rtt_min)
    }
}

/// Rounds of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    pub(super) count: u64,
    /// The round ends when bytes are acknowledged that left after so many were.
    ends_at: u64,
    pub(super) stats: RoundStats,
}

impl Rounds {
    /// Something was acknowledged that left when `prior_delivered` bytes were acknowledged; now
    /// `delivered` are. Returns what happened in the round if that ends it.
    pub(super) fn on_acked(&mut self, prior_delivered: u64, delivered: u64) -> Option<RoundStats> {
        if prior_delivered < self.ends_at {
            return None;
        }
        self.count += 1;
        self.ends_at = delivered;
        Some(std::mem::take(&mut self.stats))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_ends_with_the_first_ack_of_what_left_in_it() {
        let mut rounds = Rounds::default();
        assert!(rounds.on_acked(0, 1_000).is_some());
        rounds.stats.on_rtt(40);
        rounds.stats.on_rtt(20);
        assert!(rounds.on_acked(0, 2_000).is_none());
        assert!(rounds.on_acked(999, 3_000).is_none());
        let stats = rounds.on_acked(1_000, 4_000).unwrap();
        assert_eq!((stats.mean_rtt(), stats.min_rtt()), (Some(30), Some(20)));
        assert_eq!((rounds.stats.mean_rtt(), rounds.count), (None, 2));
    }
}
