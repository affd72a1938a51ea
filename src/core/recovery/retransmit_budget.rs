//! Limit on retransmissions: packet conservation (RFC 9937, Proportional Rate Reduction; Jacobson 1988) as a
//! token bucket that acknowledgements fill.
//!
//! If the queue of a bottleneck is full, retransmissions are lost too, are found lost a round trip later, and
//! leave again; without a limit they soon fill most of the path. Here a retransmission takes a token, and
//! each newly acknowledged segment adds one. In any time span, retransmissions are at most the segments
//! acknowledged in it, plus [`CAPACITY`], plus [`TRICKLE`] per smoothed RTT (per 30 ms if that is longer):
//! test file `core/tests/bottleneck.rs`. While less than half of all datagrams are lost, tokens suffice,
//! except for a burst of more than [`CAPACITY`] losses, which takes more round trips.
//!
//! With the BBR model ([`congestion::bbr`](crate::core::congestion)), which limits the rate itself, the ACK
//! of a retransmission adds a second token while much is in flight: a lost large window then returns at the
//! pace of slow start, not at [`CAPACITY`] per round trip (RFC 9937 `SafeACK`). Retransmissions are then at
//! most twice the segments acknowledged, plus the same constants.
//!
//! The limit applies with any congestion control, and with none. kcp-go has no such limit.

use crate::core::clock::Micros;

/// Capacity of the bucket, which starts full: twice the largest pacer burst.
const CAPACITY: u32 = 64;
/// Segments in flight above which an acknowledged retransmission adds a second token. Smaller windows return
/// within four round trips anyway.
const GROWS_ABOVE: u32 = 256;
/// Tokens granted to an empty bucket once per period, so that a tail whose ACKs are all lost is
/// retransmitted. RFC 9002 6.2.4 allows two; each may have a copy here.
const TRICKLE: u32 = 4;
/// Least period between two grants, microseconds.
const MIN_TRICKLE_PERIOD: u64 = 30_000;
/// Tokens that copies leave in the bucket: the first copy of another segment is worth more than a second copy
/// of one.
const REDUNDANT_ABOVE: u32 = 8;

/// Tokens for retransmissions of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetransmitBudget {
    tokens: u32,
    /// When an empty bucket gets its next [`TRICKLE`] tokens.
    grant_at: Micros,
}

impl RetransmitBudget {
    pub(crate) fn new() -> Self {
        Self { tokens: CAPACITY, grant_at: Micros(0) }
    }

    /// `count` segments were acknowledged for the first time, by number or by `una`.
    #[inline]
    pub(crate) fn on_acked(&mut self, count: u32) {
        self.tokens = self.tokens.saturating_add(count).min(CAPACITY);
    }

    /// A retransmission was acknowledged on a path whose rate a model limits. `in_flight`: segments from
    /// SND.UNA to SND.NXT.
    pub(crate) fn on_retransmission_acked(&mut self, in_flight: u32) {
        if in_flight > GROWS_ABOVE {
            self.on_acked(1);
        }
    }

    /// Whether a retransmission may leave.
    #[inline]
    pub(crate) fn may_retransmit(&self, now: Micros) -> bool {
        self.tokens > 0 || now >= self.grant_at
    }

    /// Takes up to `wanted` tokens for copies of a retransmission; returns how many.
    pub(crate) fn take_redundant(&mut self, wanted: u8) -> u8 {
        self.take_above(REDUNDANT_ABOVE, wanted)
    }

    /// As [`Self::take_redundant`], for copies that probe during a burst. Leaves half of the tokens for
    /// retransmissions after it.
    pub(crate) fn take_probes(&mut self, wanted: u8) -> u8 {
        self.take_above(CAPACITY / 2, wanted)
    }

    /// Takes up to `wanted` tokens but leaves `kept` in the bucket. Returns how many.
    fn take_above(&mut self, kept: u32, wanted: u8) -> u8 {
        let spare = self.tokens.saturating_sub(kept);
        let taken = u8::try_from(spare).map_or(wanted, |spare| spare.min(wanted));
        self.tokens -= u32::from(taken);
        taken
    }

    /// Returns the tokens of cancelled copies.
    pub(crate) fn put_back(&mut self, count: u32) {
        self.on_acked(count);
    }

    /// When a retransmission may leave; may be in the past.
    pub(crate) fn available_at(&self) -> Micros {
        if self.tokens > 0 { Micros(0) } else { self.grant_at }
    }

    /// A retransmission leaves. `rtt`: smoothed RTT, or the RTO before the first sample, microseconds.
    pub(crate) fn on_retransmit(&mut self, now: Micros, rtt: u64) {
        if self.tokens == 0 {
            self.tokens = TRICKLE;
            self.grant_at = now.add_micros(rtt.max(MIN_TRICKLE_PERIOD));
        }
        self.tokens -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Retransmits as often as the budget allows until `until`, and returns how often.
    fn spend(budget: &mut RetransmitBudget, from: u64, until: u64, rtt: u64) -> u32 {
        let (mut now, mut spent) = (from, 0);
        while now < until {
            if budget.may_retransmit(Micros(now)) {
                budget.on_retransmit(Micros(now), rtt);
                spent += 1;
            } else {
                now = budget.available_at().0;
            }
        }
        spent
    }

    #[test]
    fn retransmissions_without_acks_are_the_capacity_and_four_per_rtt() {
        for (rtt, periods) in [(100_000, 10), (1_000, 34)] {
            let mut budget = RetransmitBudget::new();
            assert_eq!(spend(&mut budget, 1, 1_000_000, rtt), CAPACITY + TRICKLE * periods);
        }
    }

    #[test]
    fn each_acked_segment_allows_one_retransmission_up_to_the_capacity() {
        let mut budget = RetransmitBudget::new();
        assert_eq!(spend(&mut budget, 0, 1, 100_000), CAPACITY + TRICKLE);
        for acked in [1, 7, CAPACITY, 1_000] {
            budget.on_acked(acked);
            assert_eq!(spend(&mut budget, 1, 2, 100_000), acked.min(CAPACITY));
        }
    }

    #[test]
    fn redundant_retransmissions_stop_before_others() {
        let mut budget = RetransmitBudget::new();
        let taken: u32 = (0..100).map(|_| u32::from(budget.take_redundant(2))).sum();
        assert_eq!(taken, CAPACITY - REDUNDANT_ABOVE);
        assert!(budget.may_retransmit(Micros(0)));
    }
}
