//! Loss detection of segments whose FEC group has parity: they are not lost before the parity could
//! have recovered them.

use super::Sender;
use crate::core::clock::{Clock, Micros};
use crate::core::recovery::loss::LossTrigger;
use crate::core::recovery::sent_segments::SentSegment;
use crate::core::redundancy::fec_wait::{CoveredGroup, FecCoverage, is_reliable};
use crate::core::seq::{Sn, Ts};

/// Segments of a group that are inspected at most to find out how many of them are lost.
const MAX_INSPECTED: usize = 64;
/// Groups whose parity is waited for that are passed at most to find the next loss.
const MAX_GROUPS_PASSED: usize = 4;

/// When a segment counts as lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentLoss {
    pub(super) sn: Sn,
    pub(super) at: Micros,
    pub(super) trigger: LossTrigger,
    /// Order of transmission of the last segment of the group whose parity it waits for.
    awaited: Option<u64>,
}

impl Sender {
    /// Order of transmission that the next segment gets.
    pub(crate) fn next_xmit_seq(&self) -> u64 {
        self.sent_segments.next_xmit_seq()
    }

    /// `parities` packets left that cover all segments sent for the first time from `first` on, the
    /// first of them at `opened`; the group has `packets` packets, parity included.
    pub(crate) fn on_fec_group_closed(
        &mut self,
        clock: &Clock,
        (opened, closed): (Micros, Micros),
        first: u64,
        (packets, parities): (usize, usize),
    ) {
        let group = CoveredGroup {
            first,
            last: self.next_xmit_seq().saturating_sub(1),
            first_ts: clock.timestamp(opened),
            last_ts: clock.timestamp(closed),
            closed,
            parities,
            is_reliable: is_reliable(packets, parities, self.redundancy.mean_loss_rate()),
            failed: false,
        };
        self.redundancy.fec_wait.get_or_insert_default().on_group_closed(group);
    }

    /// Passes to `is_wanted` when segments count as lost, one of which is the next: of each list
    /// the oldest, and those behind one that waits for the parity of its group, one for each of a few
    /// groups. Returns the first that is wanted.
    pub(super) fn find_loss(
        &self,
        in_flight: u32,
        no_new_data: bool,
        mut is_wanted: impl FnMut(&SegmentLoss) -> bool,
    ) -> Option<SegmentLoss> {
        for oldest in self.sent_segments.oldest_per_list() {
            let mut next = Some(oldest);
            for _ in 0..=MAX_GROUPS_PASSED {
                let Some((sn, segment)) = next else { break };
                let loss = self.loss_of((sn, &segment), in_flight, no_new_data);
                if is_wanted(&loss) {
                    return Some(loss);
                }
                let Some(last) = loss.awaited else { break };
                let mut others = self.sent_segments.unacked_from(loss.sn).take(MAX_INSPECTED);
                next = others.find(|(_, other)| other.xmit_seq > last || other.retransmitted);
            }
        }
        None
    }

    /// When a segment counts as lost, and why ([`LossDetector::lost_at`], and the parity that
    /// covers it).
    ///
    /// [`LossDetector::lost_at`]: crate::core::recovery::loss::LossDetector::lost_at
    pub(super) fn loss_of(
        &self,
        (sn, segment): (Sn, &SentSegment),
        in_flight: u32,
        no_new_data: bool,
    ) -> SegmentLoss {
        let lost_at =
            |segment: &SentSegment| self.loss.lost_at(segment, &self.rtt, in_flight, no_new_data);
        let (at, trigger) = self.unrepaired_at((sn, segment), no_new_data);
        let at = self.uncopied_at((sn, segment), at);
        let coverage = self.redundancy.fec_wait.as_ref().filter(|_| !segment.retransmitted);
        let group = coverage.and_then(|coverage| coverage.group_of(segment.xmit_seq));
        let Some(group) = group.filter(|group| group.is_awaited(segment.last_sent)) else {
            return SegmentLoss { sn, at, trigger, awaited: None };
        };
        // As long as no ACK shows that what left with the parity or later has arrived, that of the
        // recovered segment may have been lost, and the next one makes up for it.
        let wait = match self.loss.has_acked_since(group.last) {
            true => self.loss.ack_wait(&self.rtt),
            false => self.rtt.rto(),
        };
        let recovered_at = group.closed.add_micros(wait);
        if at >= recovered_at {
            return SegmentLoss { sn, at, trigger, awaited: None };
        }
        // Not if more datagrams of the group are lost than parity can recover.
        let mut before = None;
        let mut unacked = self
            .sent_segments
            .unacked_from(sn)
            .map(|(_, segment)| segment)
            .take(MAX_INSPECTED)
            .take_while(|segment| segment.xmit_seq <= group.last)
            .filter(|segment| !segment.retransmitted)
            .filter(|segment| before.replace(segment.xmit_seq) != segment.xmit_seq.checked_sub(1));
        let unrecoverable_at = unacked.nth(group.parities).map(|segment| lost_at(&segment).0);
        let at = unrecoverable_at.map_or(recovered_at, |other| other.clamp(at, recovered_at));
        SegmentLoss { sn, at, trigger, awaited: Some(group.last) }
    }

    /// A segment is retransmitted for the first time: its parity has not recovered it.
    pub(super) fn on_recovery_failed(&mut self, xmit_seq: u64, sent: Micros) {
        if let Some(coverage) = &mut self.redundancy.fec_wait {
            coverage.on_retransmit(xmit_seq, sent);
        }
    }

    /// Whether FEC may have recovered the first transmission with timestamp `ts`, of which an ACK
    /// arrives after a retransmission. Then it was lost, and the ACK says nothing about reordering.
    pub(super) fn may_be_recovered(&self, now: Micros, ts: Ts) -> bool {
        let min_rtt = self.rtt.min();
        let recovered = |coverage: &FecCoverage| coverage.may_have_recovered(now, ts, min_rtt);
        self.redundancy.fec_wait.as_deref().is_some_and(recovered)
    }

    /// A segment that was sent once is acknowledged. It counts as lost for the loss rate if it
    /// would have been retransmitted but for the parity that it waited for, of which an ACK can have
    /// arrived.
    #[inline]
    pub(super) fn on_first_acked(&mut self, now: Micros, segment: &SentSegment) {
        let Some(coverage) = &self.redundancy.fec_wait else { return };
        let group = coverage.group_of(segment.xmit_seq);
        let group = group.filter(|group| group.is_awaited(segment.last_sent));
        if group.is_none_or(|group| now.since(group.closed) < self.rtt.min()) {
            return;
        }
        let (at, _) = self.loss.lost_at(segment, &self.rtt, self.sent_segments.len(), false);
        if at < now {
            self.loss_estimate(now).loss_rate.on_lost(now);
        }
    }
}
