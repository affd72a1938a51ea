//! When a retransmission leaves in several copies, and their transmission.

use super::Sender;
use crate::core::clock::{Clock, Micros};
use crate::core::recovery::loss::LossTrigger;
use crate::core::redundancy::copies::{
    BURST_COPIES, BURST_SPACING, CopyPlan, RedundantRetransmits,
};
use crate::core::seq::{Sn, Ts};
use crate::stats::Counters;

/// Segments in flight and buffered up to which a flow counts as one of messages, whose latency
/// matters more than the datagrams it costs.
const LATENCY_BOUND_LIMIT: usize = 256;

impl Sender {
    /// The loss estimate, which begins with the first loss.
    pub(super) fn loss_estimate(&mut self, now: Micros) -> &mut RedundantRetransmits {
        self.redundancy.copies.get_or_insert_with(|| Box::new(RedundantRetransmits::new(now)))
    }

    /// The segment of which a further copy is to leave now.
    pub(crate) fn due_copy(&self, now: Micros) -> Option<Sn> {
        self.redundancy.copies.as_ref()?.due_copy(now)
    }

    /// A retransmission of `sn` leaves with timestamp `ts`: decides how many copies more leave, and
    /// charges the retransmission budget for them.
    pub(super) fn schedule_copies(
        &mut self,
        now: Micros,
        (sn, ts): (Sn, Ts),
        (lost, trigger): (Option<u64>, LossTrigger),
        is_first: bool,
    ) {
        let rtt = self.rtt.srtt_or_rto();
        let closes_window = self.closes_window(sn, trigger);
        let (allowed, latency_bound) = (!self.pto_backoff.is_active(), self.is_latency_bound());
        let saved = self.copies_saved_by_repairs(now, rtt);
        let left = self.sent_segments.get(sn).filter(|_| is_first).map(|segment| segment.first_ts);
        let Some(redundant) = &mut self.redundancy.copies else { return };
        let in_long_run = left.is_some_and(|left| redundant.is_in_long_run(sn, left));
        if in_long_run && latency_bound {
            self.congestion.on_burst_lost(now);
        }
        let wanted = if latency_bound && !in_long_run { redundant.further_copies() } else { 0 };
        let wanted = wanted.saturating_sub(saved);
        let in_bursts = redundant.loses_in_bursts();
        // No ACK has shown yet that the path carries again.
        let until_acked = lost.filter(|&lost| {
            let is_unknown = trigger == LossTrigger::Rto && !self.loss.has_acked_since(lost);
            wanted > 0 && in_bursts && is_unknown
        });
        let wanted = if until_acked.is_some() { BURST_COPIES } else { wanted };
        let opens = closes_window && wanted == 0 && redundant.has_window_credit();
        let wanted = if allowed { wanted.max(u8::from(opens)) } else { 0 };
        let copies = self.retransmit_budget.take_redundant(wanted);
        if opens && copies > 0 {
            redundant.take_window_credit();
        }
        let spacing = if in_bursts && !opens { BURST_SPACING.min(rtt / 4) } else { 0 };
        let plan = CopyPlan { left: copies, spacing, is_first, until_acked };
        redundant.on_first_copy(now, (sn, ts), plan);
    }

    /// `una` covers a segment that was retransmitted, and of which no ACK has come. Returns whether it
    /// cannot be by the retransmission, which is younger than the shortest round trip: the original
    /// arrived and its ACK was lost (F-RTO judges likewise, RFC 5682). Nothing was lost then for the
    /// loss rate. Peers that send an ACK once show that with each loss on the way back while a gap is
    /// open.
    pub(super) fn on_retransmission_covered(
        &mut self,
        now: Micros,
        clock: &Clock,
        (sn, original): (Sn, Ts),
    ) -> bool {
        // What repairs and copies recover was lost all the same.
        let span = 2 * self.rtt.srtt_or_rto();
        let repairs = self.redundancy.repair.as_ref();
        let may_be_recovered = self.redundancy.sends_repairs()
            || repairs.is_some_and(|repair| repair.has_sent_within(now, span))
            || self.redundancy.bundling.as_ref().is_some_and(|bundling| bundling.rate() > 0)
            || self.may_be_recovered(now, original);
        let (ts, min_rtt) = (clock.timestamp(now), self.rtt.min());
        let Some(redundant) = &mut self.redundancy.copies else { return false };
        let is_spurious = !may_be_recovered && redundant.is_younger(sn, ts, min_rtt);
        if is_spurious {
            redundant.on_ack_lost(now, sn);
        }
        is_spurious
    }

    /// Records the transmission of a further copy of `sn`, which was charged for when it was
    /// scheduled.
    pub(super) fn retransmit_copy(&mut self, now: Micros, sn: Sn, stats: &mut Counters) {
        stats.redundant_retransmits += 1;
        let level = self.sent_segments.get(sn).map_or(0, |segment| segment.backoff_level());
        let apart = self.retransmits_in_order();
        self.sent_segments.mark_retransmitted(now, sn, level, apart);
        if let Some(redundant) = &mut self.redundancy.copies {
            redundant.on_further_copy(now, sn);
        }
    }

    /// ACKs were processed: copies whose burst is over leave no more.
    pub(super) fn end_bursts(&mut self) {
        if let Some(redundant) = &mut self.redundancy.copies {
            let dropped = redundant.end_bursts(|lost| self.loss.has_acked_since(lost));
            self.retransmit_budget.put_back(dropped);
        }
    }

    /// A retransmitted segment was acknowledged. Returns whether it had further copies.
    pub(super) fn forget_copies(&mut self, sn: Sn) -> bool {
        self.redundancy.copies.as_mut().is_some_and(|redundant| redundant.on_acked(sn))
    }

    /// Whether everything that was written has left or may leave now, and it is not much: a flow
    /// of messages, limited by its application (RFC 9002 7.8) and by no window. A bulk flow on a slow
    /// path has as little outstanding, but its writer waits.
    pub(crate) fn is_latency_bound(&self) -> bool {
        let outstanding = self.sent_segments.len() as usize + self.send_buffer.segments(self.mss);
        !self.writer_waits
            && outstanding <= LATENCY_BOUND_LIMIT
            && outstanding < self.effective_window() as usize
    }

    /// Whether the window is closed and waits for `sn`.
    ///
    /// If such a retransmission is lost again, sending stops for another round trip. The second
    /// copy costs one datagram per loss. Not in the last quarter of the window, which other segments
    /// keep closed in any case, and not with a congestion window, be it KCP's or one of a model that
    /// is closed (the effective window is zero then). Test file `core/tests/pacing.rs`,
    /// `redundant_retransmit_*`.
    fn closes_window(&self, sn: Sn, trigger: LossTrigger) -> bool {
        let Some(offset) = sn.offset_from(self.una()) else { return false };
        let closes_window = !self.window_is_open() && offset < self.effective_window() / 4 * 3;
        closes_window && trigger != LossTrigger::Rto && !self.congestion.is_reno()
    }
}
