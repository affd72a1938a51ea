//! Decides which segments are lost and when, and retransmits them (RFC 9002 A.8 OnLossDetectionTimeout;
//! kcp-go `flush`).

use super::Sender;
use crate::core::clock::Micros;
use crate::core::recovery::loss::LossTrigger;
use crate::core::redundancy::SegmentLoss;
use crate::core::segment::HEADER_LEN;
use crate::core::seq::Sn;
use crate::stats::Counters;
use crate::util::deadline::earliest;

impl Sender {
    /// When the next segment in flight counts as lost and may be retransmitted.
    pub(crate) fn deadline(&self, may_send_new: bool) -> Option<Micros> {
        let no_new_data = !(may_send_new && self.window_is_open() && !self.send_buffer.is_empty());
        let (ack_wait, mut lost_at) = (self.newer_ack_wait(), None);
        self.find_loss(no_new_data, |loss| {
            let is_rto = loss.trigger == LossTrigger::Rto;
            let at = if is_rto { self.pto_backoff.probe_at(loss.at, ack_wait) } else { loss.at };
            lost_at = earliest([lost_at, Some(at)]);
            false
        });
        let may_leave_at =
            |at: Micros| at.max(self.pacer.resume_at()).max(self.retransmit_budget.available_at());
        let copies = self.redundancy.copies.as_ref().and_then(|redundant| redundant.deadline());
        earliest([lost_at.map(may_leave_at), copies])
    }

    /// Microseconds that an RTO waits for the ACK of newer data; 0 if it does not wait.
    fn newer_ack_wait(&self) -> u64 {
        if self.loss.postpones_rto() { self.rtt.rto() } else { 0 }
    }

    /// A segment that counts as lost now, and the trigger. SND.UNA comes first, since the reader waits for
    /// it. In a bulk flow the lowest number follows: behind a window of losses, a segment lost twice would
    /// otherwise wait until all others have left. In other flows the earliest transmission follows.
    pub(super) fn next_lost(&self, now: Micros, no_new_data: bool) -> Option<(Sn, LossTrigger)> {
        // Fast path: right after a transmission, and on a path without loss.
        let bound = self.loss.least_wait(&self.rtt);
        let mut sent_first = self.sent_segments.oldest_per_list();
        if !sent_first.any(|(_, segment)| segment.last_sent.add_micros(bound) <= now) {
            return None;
        }
        let oldest =
            if self.is_oldest_unacked() { self.sent_segments.get(self.una()) } else { None };
        let oldest = oldest.map(|segment| self.loss_of((self.una(), &segment), no_new_data));
        let ack_wait = self.newer_ack_wait();
        let may_leave = |loss: &SegmentLoss| {
            let is_rto = loss.trigger == LossTrigger::Rto;
            loss.at <= now && (!is_rto || self.pto_backoff.may_send_probe(now, ack_wait))
        };
        let loss = oldest.filter(may_leave).or_else(|| {
            if !self.retransmits_in_order() {
                return self.find_loss(no_new_data, may_leave);
            }
            let (mut next, mut position) = (None, u32::MAX);
            self.find_loss(no_new_data, |loss| {
                let behind = loss.sn.offset_from(self.una()).unwrap_or(u32::MAX);
                if behind < position && may_leave(loss) {
                    (next, position) = (Some(*loss), behind);
                }
                false
            });
            next
        })?;
        let is_rto = loss.trigger == LossTrigger::Rto;
        Some((if is_rto { self.select_probe(loss.sn) } else { loss.sn }, loss.trigger))
    }

    /// Whether retransmissions leave in order of number. Message flows have few losses and do not need it.
    /// Without a model a window that opens sooner would fill a full queue.
    pub(super) fn retransmits_in_order(&self) -> bool {
        self.congestion.is_bbr() && !self.is_latency_bound()
    }

    /// Asserts that no segment counts as lost before [`LossDetector::least_wait`].
    ///
    /// [`LossDetector::least_wait`]: crate::core::recovery::loss::LossDetector::least_wait
    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn check_losses(&self) {
        let bound = self.loss.least_wait(&self.rtt);
        for (sn, segment) in self.sent_segments.oldest_per_list() {
            let loss = self.loss_of((sn, &segment), true);
            assert!(loss.at >= segment.last_sent.add_micros(bound), "{loss:?} before {bound}");
        }
    }

    /// The segment to retransmit when the RTO of `expired` expires. During PTO back-off that is the oldest
    /// segment, which advances `una` and which the peer accepts with any window.
    fn select_probe(&self, expired: Sn) -> Sn {
        if self.pto_backoff.is_active() && self.is_oldest_unacked() { self.una() } else { expired }
    }

    /// Re-arms expired RTOs of segments beyond the peer's window without a retransmission, since the peer
    /// would discard it. The oldest segment is still retransmitted: its ACK carries `wnd`.
    pub(crate) fn defer_out_of_window_rto(&mut self, now: Micros) {
        let (una, window) = (self.una(), self.remote.available(self.una()));
        while self.sent_segments.len() > window {
            let is_beyond = |sn: Sn| sn != una && sn.offset_from(una).is_none_or(|i| i >= window);
            let expired = |loss: &SegmentLoss| {
                loss.at <= now && loss.trigger == LossTrigger::Rto && is_beyond(loss.sn)
            };
            let Some(SegmentLoss { sn, .. }) = self.find_loss(false, expired) else {
                return;
            };
            self.sent_segments.move_to_back(now, sn);
        }
    }

    /// Records the retransmission of `sn`. Returns whether it is the segment's first.
    pub(super) fn retransmit(
        &mut self,
        now: Micros,
        sn: Sn,
        trigger: LossTrigger,
        stats: &mut Counters,
    ) -> bool {
        let level = self.sent_segments.get(sn).map_or(0, |segment| segment.backoff_level());
        let nxt = self.sent_segments.nxt();
        let level = match trigger {
            LossTrigger::FastRetransmit => {
                stats.fast_retransmits += 1;
                self.reduce_cwnd(sn);
                level
            }
            LossTrigger::EarlyRetransmit => {
                stats.early_retransmits += 1;
                self.reduce_cwnd(sn);
                level
            }
            LossTrigger::Rto => {
                stats.timeout_retransmits += 1;
                let window = self.effective_window();
                self.congestion.change_reno(|reno| reno.on_timeout(sn, nxt, window));
                let (rto, max_rto) = (self.rtt.rto(), self.loss.max_rto());
                self.pto_backoff.on_rto(now, rto, max_rto, self.newer_ack_wait());
                level + 1
            }
        };
        let first = self.sent_segments.get(sn).filter(|segment| !segment.retransmitted);
        let first = first.map(|segment| (segment.xmit_seq, segment.last_sent));
        let estimate = self.redundancy.copies_from(now);
        if let Some((xmit_seq, sent)) = first {
            estimate.on_lost(now, sn, xmit_seq);
            self.redundancy.on_recovery_failed(xmit_seq, sent);
        }
        let apart = self.retransmits_in_order();
        self.sent_segments.mark_retransmitted(now, sn, level, apart);
        self.retransmit_budget.on_retransmit(now, self.rtt.srtt_or_rto());
        if let Some(autotune) = &mut self.autotune {
            autotune.on_retransmit();
        }
        if let Some(payload) = self.sent_segments.payload(sn) {
            let size = HEADER_LEN + payload.len();
            // A repeated retransmission was sent without FEC header when it was lost.
            let size = if first.is_some() { size } else { self.path.retransmission_size(size) };
            self.path.on_segment_lost(now, size, self.rtt.rto(), self.una());
        }
        first.is_some()
    }
}
