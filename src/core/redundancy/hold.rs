//! Delays the retransmission of a lost segment while FEC parity, a repair symbol or a bundled copy may have
//! delivered it and its ACK is on the way.

use super::{InFlight, Redundancy};
use crate::core::clock::Micros;
use crate::core::recovery::loss::LossTrigger;
use crate::core::recovery::sent::SentSegment;
use crate::core::seq::Sn;

/// Most segments of a group that are inspected to count its losses.
const MAX_INSPECTED: usize = 64;
/// Most groups awaiting parity that are passed to find the next loss.
const MAX_GROUPS_PASSED: usize = 4;

/// When a segment counts as lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentLoss {
    pub(crate) sn: Sn,
    pub(crate) at: Micros,
    pub(crate) trigger: LossTrigger,
    /// If it waits for parity: transmission order of the last segment of its group.
    awaited: Option<u64>,
}

impl Redundancy {
    /// Passes candidates for the next loss to `is_wanted` and returns the first that is wanted: the oldest
    /// segment of each list, and behind a segment that waits for parity one segment for each of a few groups.
    /// For `no_new_data` see [`LossDetector::lost_at`].
    ///
    /// [`LossDetector::lost_at`]: crate::core::recovery::loss::LossDetector::lost_at
    pub(crate) fn find_loss(
        &self,
        in_flight: &InFlight<'_>,
        no_new_data: bool,
        mut is_wanted: impl FnMut(&SegmentLoss) -> bool,
    ) -> Option<SegmentLoss> {
        for oldest in in_flight.sent.oldest_per_list() {
            let mut next = Some(oldest);
            for _ in 0..=MAX_GROUPS_PASSED {
                let Some((sn, segment)) = next else { break };
                let loss = self.loss_of(in_flight, (sn, &segment), no_new_data);
                if is_wanted(&loss) {
                    return Some(loss);
                }
                let Some(last) = loss.awaited else { break };
                let mut others = in_flight.sent.unacked_from(loss.sn).take(MAX_INSPECTED);
                next = others.find(|(_, other)| other.xmit_seq > last || other.retransmitted);
            }
        }
        None
    }

    /// When a segment counts as lost, and the trigger ([`LossDetector::lost_at`]). Includes the wait for the
    /// ACK of redundancy that covers it.
    ///
    /// [`LossDetector::lost_at`]: crate::core::recovery::loss::LossDetector::lost_at
    pub(crate) fn loss_of(
        &self,
        in_flight: &InFlight<'_>,
        (sn, segment): (Sn, &SentSegment),
        no_new_data: bool,
    ) -> SegmentLoss {
        let (at, trigger) = self.unrepaired_at(in_flight, (sn, segment), no_new_data);
        let at = self.uncopied_at(in_flight, (sn, segment), at);
        let coverage = self.fec_wait.as_ref().filter(|_| !segment.retransmitted);
        let group = coverage.and_then(|coverage| coverage.group_of(segment.xmit_seq));
        let Some(group) = group.filter(|group| group.is_awaited(segment.last_sent)) else {
            return SegmentLoss { sn, at, trigger, awaited: None };
        };
        // The ACK of the recovered segment may be lost. Until a newer ACK arrives, the next cumulative
        // acknowledgement may still cover the segment.
        let wait = match in_flight.loss.has_acked_since(group.last) {
            true => in_flight.ack_wait(),
            false => in_flight.rtt.rto(),
        };
        let recovered_at = group.closed.add_micros(wait);
        if at >= recovered_at {
            return SegmentLoss { sn, at, trigger, awaited: None };
        }
        // Does not wait if more datagrams of the group are lost than parity can recover.
        let mut before = None;
        let unacked = in_flight.sent.unacked_from(sn).map(|(_, segment)| segment);
        let mut unacked = unacked
            .take(MAX_INSPECTED)
            .take_while(|segment| segment.xmit_seq <= group.last)
            .filter(|segment| !segment.retransmitted)
            .filter(|segment| before.replace(segment.xmit_seq) != segment.xmit_seq.checked_sub(1));
        let unrecoverable = unacked.nth(group.parities);
        let unrecoverable_at = unrecoverable.map(|other| in_flight.lost_at(&other, no_new_data).0);
        let at = unrecoverable_at.map_or(recovered_at, |other| other.clamp(at, recovered_at));
        SegmentLoss { sn, at, trigger, awaited: Some(group.last) }
    }

    /// A segment that repair symbols may have recovered is not retransmitted yet.
    fn unrepaired_at(
        &self,
        in_flight: &InFlight<'_>,
        (sn, segment): (Sn, &SentSegment),
        no_new_data: bool,
    ) -> (Micros, LossTrigger) {
        let (at, trigger) = in_flight.lost_at(segment, no_new_data);
        let waits = trigger != LossTrigger::Rto && segment.backoff_level() == 0;
        let Some(repair) = self.repair.as_ref().filter(|_| waits) else {
            return (at, trigger);
        };
        let unacked = in_flight.sent.unacked_from(sn);
        let overdue = unacked.map(|(_, segment)| in_flight.lost_at(&segment, no_new_data).0);
        let held = repair.retransmit_at((sn, segment.last_sent), in_flight.ack_wait(), overdue);
        (held.map_or(at, |held| held.max(at)), trigger)
    }

    /// A segment that counts as lost at `at` is not retransmitted before the ACK of its bundled copy can
    /// arrive.
    fn uncopied_at(
        &self,
        in_flight: &InFlight<'_>,
        (sn, segment): (Sn, &SentSegment),
        at: Micros,
    ) -> Micros {
        let bundling = self.bundling.as_ref().filter(|_| !segment.retransmitted);
        let copied_at = bundling.and_then(|bundling| bundling.copied_at(sn));
        let ack_at = copied_at.map(|copied| copied.add_micros(in_flight.ack_wait()));
        ack_at.map_or(at, |ack_at| at.max(ack_at))
    }

    /// Whether a segment that was sent once, and is now acknowledged, would have been retransmitted without
    /// the wait for its parity, and an ACK of the parity can have arrived. If so it was lost.
    #[inline]
    pub(crate) fn was_recovered(
        &self,
        now: Micros,
        in_flight: &InFlight<'_>,
        segment: &SentSegment,
    ) -> bool {
        let Some(coverage) = &self.fec_wait else { return false };
        let group = coverage.group_of(segment.xmit_seq);
        let group = group.filter(|group| group.is_awaited(segment.last_sent));
        let is_late = |closed: Micros| now.since(closed) >= in_flight.rtt.min();
        group.is_some_and(|group| is_late(group.closed))
            && in_flight.lost_at(segment, false).0 < now
    }
}
