//! Decides which segments are lost and when, and retransmits them (RFC 9002 A.8 OnLossDetectionTimeout;
//! kcp-go `flush`).
//!
//! The sender's part of redundancy: sends copies, repair symbols and bundled copies, and processes their
//! ACKs. `core/redundancy` decides what leaves, when, and how long a lost segment waits for it.

use super::{AckOutcome, OutgoingSegment, SendCandidate, Sender, Transmission};
use crate::core::clock::{Clock, Micros};
use crate::core::recovery::loss::LossTrigger;
use crate::core::recovery::sent::SentSegment;
use crate::core::redundancy::copies::{BURST_COPIES, BURST_SPACING, CopyPlan};
use crate::core::redundancy::fec_wait::{CoveredGroup, is_reliable};
use crate::core::redundancy::repair::EncodingWindow;
use crate::core::redundancy::rlc;
use crate::core::redundancy::{InFlight, SegmentLoss};
use crate::core::segment::HEADER_LEN;
use crate::core::send::path::SendPath;
use crate::core::seq::{Sn, Ts};
use crate::stats::Counters;
use crate::util::earliest;

/// Segments in flight and buffered up to which a flow counts as a message flow, whose latency matters more
/// than the extra datagrams.
pub(super) const LATENCY_BOUND_LIMIT: usize = 256;

/// Segments among which a search finds those that were lost again.
const MAX_SEARCH: u32 = 64;

impl Sender {
    /// When the next segment in flight counts as lost and may be retransmitted.
    pub(crate) fn deadline(&self, may_send_new: bool) -> Option<Micros> {
        let no_new_data = !(may_send_new && self.window_is_open() && !self.send_buffer.is_empty());
        let lost_at = if self.sent_segments.uses_slots() {
            self.loss_deadline_on_paths(no_new_data)
        } else {
            self.loss_deadline(&self.path, self.sent_segments.oldest_per_list(), no_new_data)
        };
        let may_leave_at = |at: Micros| {
            at.max(self.path.pacer.resume_at()).max(self.retransmit_budget.available_at())
        };
        let copies = self.redundancy.copies.as_ref().and_then(|redundant| redundant.deadline());
        let deadline = earliest([lost_at.map(may_leave_at), copies]);
        if self.path.loss.is_probing() || self.sent_segments.uses_slots() {
            self.with_old_paths(deadline)
        } else {
            deadline
        }
    }

    /// When the next segment on `path` counts as lost; `oldest`: as for [`Redundancy::find_loss`].
    ///
    /// [`Redundancy::find_loss`]: crate::core::redundancy::Redundancy::find_loss
    #[inline]
    pub(super) fn loss_deadline(
        &self,
        path: &SendPath,
        oldest: impl Iterator<Item = (Sn, SentSegment)>,
        no_new_data: bool,
    ) -> Option<Micros> {
        let (in_flight, ack_wait) = (self.outstanding_on(path), path.newer_ack_wait());
        let mut lost_at = None;
        self.redundancy.find_loss(&in_flight, oldest, no_new_data, |loss| {
            let is_rto = loss.trigger == LossTrigger::Rto;
            let at = if is_rto { path.pto_backoff.probe_at(loss.at, ack_wait) } else { loss.at };
            lost_at = earliest([lost_at, Some(at)]);
            false
        });
        lost_at
    }

    /// A segment that counts as lost now, and the trigger. SND.UNA comes first, since the reader waits for
    /// it. In a bulk flow with a model the lowest number follows: behind a window of losses, a segment lost
    /// twice would otherwise wait until all others have left. In other flows the lowest back-off level
    /// follows, and within it the earliest transmission. For a connection with one path, which does not pay for
    /// several.
    #[inline]
    pub(super) fn next_lost_on_one_path(
        &self,
        now: Micros,
        no_new_data: bool,
    ) -> Option<(Sn, LossTrigger)> {
        let (sent, path) = (&self.sent_segments, &self.path);
        // Fast path: right after a transmission, and on a path without loss.
        if !path.may_have_lost(now, sent.oldest_per_list()) {
            return None;
        }
        let loss = match self.lost(self.una(), now, no_new_data, |_| path) {
            Some(loss) => loss,
            None => {
                let first = self.find_lost(now, path, sent.oldest_per_list(), no_new_data)?;
                self.lost_before(now, first.sn, no_new_data, |_| path).unwrap_or(first)
            }
        };
        Some(self.retransmission_of(&loss))
    }

    /// A lost segment with a lower number than `first`. A list has segments in order of transmission, so
    /// behind a window of losses those that were lost again would wait until all others have left, and SND.UNA
    /// would advance by one segment a round trip.
    pub(super) fn lost_before<'a>(
        &self,
        now: Micros,
        first: Sn,
        no_new_data: bool,
        path_of: impl Fn(&SentSegment) -> &'a SendPath,
    ) -> Option<SegmentLoss> {
        let from = self.search_from();
        let between = first.offset_from(from).filter(|_| self.retransmits_in_order())?;
        (0..between.min(MAX_SEARCH))
            .find_map(|offset| self.lost(from.advance(offset), now, no_new_data, &path_of))
    }

    /// Where [`Self::lost_before`] begins: behind the latest retransmission in order of number.
    fn search_from(&self) -> Sn {
        let behind_una = self.una().advance(1);
        if self.searched.since(behind_una) > 0 { self.searched } else { behind_una }
    }

    /// The segment `sn`, if it may be retransmitted now.
    #[inline]
    pub(super) fn lost<'a>(
        &self,
        sn: Sn,
        now: Micros,
        no_new_data: bool,
        path_of: impl FnOnce(&SentSegment) -> &'a SendPath,
    ) -> Option<SegmentLoss> {
        let segment = self.sent_segments.get(sn).filter(|segment| !segment.acked)?;
        let path = path_of(&segment);
        let loss = self.redundancy.loss_of(&self.outstanding_on(path), sn, &segment, no_new_data);
        path.may_retransmit(now, &loss).then_some(loss)
    }

    #[inline]
    pub(super) fn retransmission_of(&self, loss: &SegmentLoss) -> (Sn, LossTrigger) {
        let is_rto = loss.trigger == LossTrigger::Rto;
        (if is_rto { self.select_probe(loss.sn) } else { loss.sn }, loss.trigger)
    }

    /// A segment on `path` that may be retransmitted now; `oldest`: as for [`Redundancy::find_loss`].
    ///
    /// [`Redundancy::find_loss`]: crate::core::redundancy::Redundancy::find_loss
    #[inline]
    pub(super) fn find_lost(
        &self,
        now: Micros,
        path: &SendPath,
        oldest: impl Iterator<Item = (Sn, SentSegment)>,
        no_new_data: bool,
    ) -> Option<SegmentLoss> {
        let (in_flight, in_order) = (self.outstanding_on(path), self.retransmits_in_order());
        let (mut next, mut position) = (None, u32::MAX);
        let first = self.redundancy.find_loss(&in_flight, oldest, no_new_data, |loss| {
            if !in_order {
                return path.may_retransmit(now, loss);
            }
            let behind = loss.sn.offset_from(self.una()).unwrap_or(u32::MAX);
            if behind < position && path.may_retransmit(now, loss) {
                (next, position) = (Some(*loss), behind);
            }
            false
        });
        first.or(next)
    }

    /// Whether retransmissions leave in order of number. Message flows have few losses and do not need it.
    /// Without a model a window that opens sooner would fill a full queue.
    pub(super) fn retransmits_in_order(&self) -> bool {
        self.path.congestion.is_bbr() && !self.is_latency_bound()
    }

    /// Asserts that no segment counts as lost before [`LossDetector::least_wait`].
    ///
    /// [`LossDetector::least_wait`]: crate::core::recovery::loss::LossDetector::least_wait
    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn check_losses(&self) {
        for (slot, path) in self.carrying_paths() {
            let bound = path.loss.least_wait(&path.rtt);
            for (sn, segment) in self.sent_segments.oldest_in_slot(slot) {
                let in_flight = self.outstanding_on(path);
                let loss = self.redundancy.loss_of(&in_flight, sn, &segment, true);
                assert!(loss.at >= segment.last_sent.add_micros(bound), "{loss:?} before {bound}");
            }
        }
    }

    /// The segment to retransmit when the RTO of `expired` expires. During PTO back-off that is the oldest
    /// segment, which advances `una` and which the peer accepts with any window.
    fn select_probe(&self, expired: Sn) -> Sn {
        let slot_of = |sn| self.sent_segments.get(sn).map(|segment| segment.slot());
        if self.path.pto_backoff.is_active()
            && self.is_oldest_unacked()
            && slot_of(self.una()) == slot_of(expired)
        {
            self.una()
        } else {
            expired
        }
    }

    /// Re-arms expired RTOs of segments beyond the peer's window without a retransmission, since the peer
    /// would discard it. The oldest segment is still retransmitted: its ACK carries `wnd`.
    pub(crate) fn defer_out_of_window_rto(&mut self, now: Micros) {
        let (una, window) = (self.una(), self.remote.available(self.una()));
        while self.sent_segments.len() > window {
            let is_beyond = |sn: Sn| sn != una && sn.offset_from(una).is_none_or(|i| i >= window);
            let expired = |_: &SendPath, loss: &SegmentLoss| {
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
        let (nxt, here) = (self.sent_segments.nxt(), self.sent_segments.slot());
        self.at_segment(now, sn);
        let level = match trigger {
            LossTrigger::FastRetransmit => {
                stats.retransmit.fast += 1;
                self.reduce_cwnd(sn);
                level
            }
            LossTrigger::EarlyRetransmit => {
                stats.retransmit.early += 1;
                self.reduce_cwnd(sn);
                level
            }
            LossTrigger::Rto => {
                stats.retransmit.timeout += 1;
                let window = self.effective_window();
                self.path.congestion.change_reno(|reno| reno.on_timeout(sn, nxt, window));
                let (rto, max_rto) = (self.path.rtt.rto(), self.path.loss.max_rto());
                let ack_wait = self.path.newer_ack_wait();
                self.path.pto_backoff.on_rto(now, rto, max_rto, ack_wait);
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
        self.detect_black_hole(now, sn);
        self.at_path(now, here);
        let apart = self.retransmits_in_order();
        self.sent_segments.mark_retransmitted(now, sn, level, apart);
        let is_next = sn.offset_from(self.search_from()).is_some_and(|gap| gap < MAX_SEARCH);
        if sn == self.una() || is_next {
            self.searched = sn.advance(1);
        }
        self.retransmit_budget.on_retransmit(now, self.path.rtt.srtt_or_rto());
        if let Some(autotune) = &mut self.autotune {
            autotune.on_retransmit();
        }
        first.is_some()
    }

    /// `sn` is lost on the active path, maybe for its size.
    pub(super) fn detect_black_hole(&mut self, now: Micros, sn: Sn) {
        if let Some(size) = self.datagram_size(sn) {
            self.path.mtu.on_segment_lost(now, size, self.path.rtt.rto(), self.una());
        }
    }

    /// The size of the datagram in which `sn` left last. ACKs and bundled copies in it do not count.
    pub(super) fn datagram_size(&self, sn: Sn) -> Option<usize> {
        let alone = HEADER_LEN + self.sent_segments.payload(sn)?.len();
        let together = self.sent_segments.datagram_len(sn);
        // Segments that were deferred together have numbers in a row, and left in no datagram.
        let size = together.filter(|size| *size <= self.mtu).unwrap_or(alone);
        // A retransmission leaves without FEC header.
        Some(match self.sent_segments.get(sn)?.retransmitted {
            true => self.path.mtu.retransmission_size(size),
            false => size,
        })
    }
}

/// Retransmissions after a path has changed.
impl Sender {
    /// The network has changed: the oldest segment leaves at once.
    pub(crate) fn on_network_changed(&mut self, now: Micros) {
        if self.is_aggregating() {
            self.on_each_path(now, |sender| sender.on_path_changed(now));
        } else {
            self.on_path_changed(now);
        }
        let next = self.next_xmit_seq();
        self.path.loss.begin_probes().on_network_changed(now, next);
    }

    /// A ping of the peer arrived. Returns whether it may be a PATH_CHALLENGE: the oldest segments follow the
    /// answer.
    #[inline]
    pub(crate) fn on_ping(&mut self, now: Micros) -> bool {
        let next = self.next_xmit_seq();
        self.path.loss.probes_mut().is_some_and(|probes| probes.on_ping(now, next))
    }

    /// The peer's new path is validated: the oldest segments leave again.
    pub(crate) fn on_path_validated(&mut self, now: Micros) {
        self.on_peer_activity(now);
        let next = self.next_xmit_seq();
        self.path.loss.begin_probes().on_path_validated(next);
    }

    /// The oldest segment that left on the old path; before it the oldest of all, if it was lost on the new one:
    /// a window of probes takes long on a slow path, and the peer reads nothing until that gap is filled.
    #[cold]
    pub(super) fn next_on_new_path(&self, now: Micros) -> Option<SendCandidate> {
        let (sn, _) = self.next_of_old_path().filter(|(_, at)| *at <= now)?;
        let oldest = if self.sent_segments.uses_slots() || sn == self.una() {
            None
        } else {
            self.lost(self.una(), now, false, |_| &self.path)
        };
        let oldest = oldest.filter(|_| self.retransmit_budget.may_retransmit(now));
        let (sn, transmission) = match oldest {
            Some(loss) => (loss.sn, Transmission::Retransmit(loss.sn, loss.trigger)),
            None => (sn, Transmission::PathProbe(sn)),
        };
        Some(SendCandidate { len: self.sent_segments.payload(sn)?.len(), transmission })
    }

    /// The earlier of `deadline` and the time of [`Self::next_on_new_path`] and [`Self::next_stranded`].
    #[cold]
    fn with_old_paths(&self, deadline: Option<Micros>) -> Option<Micros> {
        let at = |next: Option<(Sn, Micros)>| next.map(|(_, at)| at);
        let next = earliest([at(self.next_of_old_path()), at(self.next_stranded())]);
        earliest([deadline, next.map(|at| at.max(self.path.pacer.resume_at()))])
    }

    /// The segment of the old path that the congestion control admits, and from when on it may leave.
    fn next_of_old_path(&self) -> Option<(Sn, Micros)> {
        let probes = self.path.loss.probes()?;
        if probes.fills_window() && self.path.congestion.window() == 0 {
            return None;
        }
        let waits = probes.takes_token();
        let at = if waits { self.retransmit_budget.available_at() } else { Micros(0) };
        self.oldest_of_old_path().map(|sn| (sn, at))
    }

    /// The lowest number among the segments that left on the old path and that the peer's window admits.
    fn oldest_of_old_path(&self) -> Option<Sn> {
        let probes = self.path.loss.probes()?;
        let (una, window) = (self.una(), self.remote.available(self.una()).max(1));
        let old = self.sent_segments.oldest_in_slot(self.sent_segments.slot());
        let old = old.filter(|(_, segment)| probes.wants(segment));
        let sn = old.map(|(sn, _)| sn).min_by_key(|sn| sn.since(una))?;
        sn.offset_from(una).filter(|offset| *offset < window).map(|_| sn)
    }

    /// Records that `sn`, which left on the old path, leaves again. Neither loss rate nor congestion control
    /// count it.
    #[cold]
    pub(super) fn retransmit_on_new_path(&mut self, now: Micros, sn: Sn, stats: &mut Counters) {
        stats.retransmit.timeout += 1;
        let level = self.sent_segments.get(sn).map_or(0, |segment| segment.backoff_level());
        self.sent_segments.mark_retransmitted(now, sn, level, self.retransmits_in_order());
        if let Some(probes) = self.path.loss.probes_mut() {
            probes.on_sent();
        }
        if self.oldest_of_old_path().is_none()
            && let Some(probes) = self.path.loss.probes_mut()
        {
            probes.stop();
        }
    }
}

/// Segments that redundancy covers.
impl Sender {
    fn outstanding(&self) -> InFlight<'_> {
        self.outstanding_on(&self.path)
    }

    /// See [`Redundancy::find_loss`](crate::core::redundancy::Redundancy::find_loss); on every path that carries
    /// data.
    #[inline]
    pub(super) fn find_loss(
        &self,
        no_new_data: bool,
        mut is_wanted: impl FnMut(&SendPath, &SegmentLoss) -> bool,
    ) -> Option<SegmentLoss> {
        if self.sent_segments.uses_slots() {
            return self.find_loss_on_paths(no_new_data, is_wanted);
        }
        let oldest = self.sent_segments.oldest_per_list();
        let is_wanted = |loss: &SegmentLoss| is_wanted(&self.path, loss);
        self.redundancy.find_loss(&self.outstanding(), oldest, no_new_data, is_wanted)
    }

    /// Whether this is a message flow, limited by its application (RFC 9002 7.8): little is outstanding, and
    /// no window holds data back. A bulk flow on a slow path has as little outstanding, but its writer waits.
    pub(crate) fn is_latency_bound(&self) -> bool {
        let outstanding = self.sent_segments.len() as usize + self.send_buffer.segments(self.mss);
        !self.writer_waits
            && outstanding <= LATENCY_BOUND_LIMIT
            && outstanding < self.effective_window() as usize
    }

    /// Transmission order of the next segment.
    pub(crate) fn next_xmit_seq(&self) -> u64 {
        self.sent_segments.next_xmit_seq()
    }

    /// A FEC group closed. `parities` parity packets cover all segments first sent from `first` on, the
    /// earliest at `opened`; the group has `packets` packets, parity included.
    pub(crate) fn on_fec_group_closed(
        &mut self,
        clock: &Clock,
        opened: Micros,
        closed: Micros,
        first: u64,
        packets: usize,
        parities: usize,
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

    /// A segment that was sent once is acknowledged.
    #[inline]
    pub(super) fn on_first_acked(&mut self, now: Micros, segment: &SentSegment) {
        if self.redundancy.was_recovered(now, &self.outstanding(), segment) {
            self.redundancy.copies_from(now).loss_rate.on_lost(now);
        }
    }

    /// Whether FEC may have recovered the first transmission, with timestamp `ts`, whose ACK arrives after a
    /// retransmission.
    pub(super) fn may_be_recovered(&self, now: Micros, ts: Ts) -> bool {
        self.redundancy.may_have_recovered(now, ts, self.path.rtt.min())
    }
}

/// Further copies of retransmissions.
impl Sender {
    /// The segment whose next copy is due.
    pub(crate) fn due_copy(&self, now: Micros) -> Option<Sn> {
        self.redundancy.copies.as_ref()?.due_copy(now)
    }

    /// A retransmission of `sn` leaves with timestamp `ts`: decides how many copies follow and charges the
    /// retransmission budget for them. `lost` is the lost transmission ([`SentSegment::xmit_seq`]).
    pub(super) fn schedule_copies(
        &mut self,
        now: Micros,
        sn: Sn,
        ts: Ts,
        lost: Option<u64>,
        trigger: LossTrigger,
        is_first: bool,
    ) {
        let rtt = self.path.rtt.srtt_or_rto();
        let closes_window = self.closes_window(sn, trigger);
        let (allowed, latency_bound) =
            (!self.path.pto_backoff.is_active(), self.is_latency_bound());
        let saved = self.redundancy.copies_saved_by_repairs(now, rtt);
        let left = self.sent_segments.get(sn).filter(|_| is_first).map(|segment| segment.first_ts);
        let Some(redundant) = &mut self.redundancy.copies else { return };
        let in_long_run = left.is_some_and(|left| redundant.is_in_long_run(sn, left));
        if in_long_run && latency_bound {
            self.path.congestion.on_burst_lost(now);
        }
        let wanted = if latency_bound && !in_long_run { redundant.further_copies() } else { 0 };
        let wanted = wanted.saturating_sub(saved);
        // No ACK has shown yet that the path works again.
        let is_unknown = |lost: &u64| !self.path.loss.has_acked_since(*lost);
        let may_probe = wanted > 0 && trigger == LossTrigger::Rto && redundant.loses_in_a_row();
        let until_acked = lost.filter(|lost| may_probe && is_unknown(lost));
        let opens = closes_window && wanted == 0 && redundant.has_window_credit();
        let wanted = if allowed { wanted.max(u8::from(opens)) } else { 0 };
        let copies = self.retransmit_budget.take_redundant(wanted);
        if opens && copies > 0 {
            redundant.take_window_credit();
        }
        let probes = until_acked.map_or(0, |_| BURST_COPIES.saturating_sub(copies));
        let probes = if allowed { self.retransmit_budget.take_probes(probes) } else { 0 };
        let apart = !opens && redundant.loses_in_bursts();
        let spacing = if apart { BURST_SPACING.min(rtt / 4) } else { 0 };
        let plan = CopyPlan { left: copies + probes, probes, spacing, is_first, until_acked };
        redundant.on_first_copy(now, sn, ts, plan);
    }

    /// `una` covers a retransmitted segment without an ACK of its own. Returns whether the retransmission
    /// cannot be the reason, since it is younger than the shortest round trip: the original arrived and its
    /// ACK was lost (as in F-RTO, RFC 5682). The loss rate does not count it. A peer that sends each ACK once
    /// shows this whenever an ACK is lost while a gap is open.
    pub(super) fn on_retransmission_covered(
        &mut self,
        now: Micros,
        clock: &Clock,
        sn: Sn,
        original: Ts,
    ) -> bool {
        // A segment that a repair symbol or a copy recovered was lost all the same.
        let (ts, min_rtt) = (clock.timestamp(now), self.path.rtt.min());
        let span = 2 * self.path.rtt.srtt_or_rto();
        let may_be_recovered = self.redundancy.may_have_brought(now, original, span, min_rtt);
        let Some(redundant) = &mut self.redundancy.copies else { return false };
        let is_spurious = !may_be_recovered && redundant.is_younger(sn, ts, min_rtt);
        if is_spurious {
            redundant.on_ack_lost(now, sn);
        }
        is_spurious
    }

    /// Records the transmission of another copy of `sn`. The budget was charged when the copy was scheduled.
    pub(super) fn retransmit_copy(&mut self, now: Micros, sn: Sn, stats: &mut Counters) {
        stats.retransmit.redundant += 1;
        let level = self.sent_segments.get(sn).map_or(0, |segment| segment.backoff_level());
        let apart = self.retransmits_in_order();
        self.sent_segments.mark_retransmitted(now, sn, level, apart);
        if let Some(redundant) = &mut self.redundancy.copies {
            redundant.on_further_copy(now, sn);
        }
    }

    /// After ACKs were processed: cancels copies whose burst is over.
    pub(super) fn end_bursts(&mut self) {
        if let Some(redundant) = &mut self.redundancy.copies {
            let dropped = redundant.end_bursts(|lost| self.path.loss.has_acked_since(lost));
            self.retransmit_budget.put_back(dropped);
        }
    }

    /// Whether the window is closed and waits for `sn`.
    ///
    /// If such a retransmission is lost again, sending stops for another round trip; the second copy costs
    /// one datagram per loss. Excluded are the last quarter of the window, which other segments keep closed
    /// anyway, Reno, and a model whose window is closed (the effective window is then zero). Tests
    /// `redundant_retransmit_*` in `core/tests/pacing.rs`.
    fn closes_window(&self, sn: Sn, trigger: LossTrigger) -> bool {
        let Some(offset) = sn.offset_from(self.una()) else { return false };
        let closes_window = !self.window_is_open() && offset < self.effective_window() / 4 * 3;
        closes_window && trigger != LossTrigger::Rto && !self.path.congestion.is_reno()
    }
}

/// Repair symbols.
impl Sender {
    /// When the next repair symbol leaves; may be in the past.
    pub(crate) fn repair_deadline(&self) -> Option<Micros> {
        let repair = self.redundancy.repair.as_ref()?;
        let due = repair.due_at(self.nxt(), self.path.rtt.srtt_or_rto())?;
        (!self.sent_segments.all_acked()).then(|| due.max(self.path.pacer.resume_at()))
    }

    /// Encoding window and key of the repair symbol that leaves now.
    pub(crate) fn next_repair(&mut self) -> Option<(EncodingWindow, u32)> {
        let repair = self.redundancy.repair.as_mut()?;
        let window = repair.encoding_window(&self.sent_segments, self.path.mtu.current_mtu())?;
        Some((window, repair.next_key()))
    }

    /// Appends the repair symbol of `window` and records its transmission.
    pub(crate) fn write_repair(&mut self, now: Micros, window: EncodingWindow, out: &mut Vec<u8>) {
        let Some(repair) = &mut self.redundancy.repair else { return };
        let sources = (0..u32::from(window.count)).map(|offset| {
            let sn = window.first.advance(offset);
            let frg = self.sent_segments.get(sn).map_or(0, |segment| segment.frg);
            let range = self.sent_segments.payload(sn).unwrap_or_default();
            (frg, self.send_buffer.get(range).unwrap_or_default())
        });
        rlc::write_repair(repair.next_key(), sources, window.longest, out);
        let bytes = HEADER_LEN + window.symbol_len();
        repair.on_repair_sent(now, window.first, self.sent_segments.nxt(), bytes);
        if self.path.congestion.is_bbr() {
            self.pace_at_rate(now, bytes as u64, self.path.congestion.pacing());
        } else {
            self.path.pacer.on_sent(now, self.effective_window(), &self.path.rtt);
        }
    }

    /// The peer recovered `sn` with the repair symbol of this key: acknowledges the segment. It is no RTT
    /// sample, and the segment counts as lost for the congestion control too (RFC 9265 4.2).
    pub(crate) fn on_recovered_ack(&mut self, now: Micros, sn: Sn, key: u32) -> AckOutcome {
        if !self.is_covered_by(sn, key) {
            return AckOutcome::Invalid;
        }
        self.at_segment(now, sn);
        let outcome = self.on_recovered(now, sn);
        self.on_segment_proved(now, sn);
        if outcome == AckOutcome::NewlyAcked {
            self.una_proof.on_first_ack();
        }
        outcome
    }

    fn on_recovered(&mut self, now: Micros, sn: Sn) -> AckOutcome {
        let Some(segment) = self.sent_segments.get(sn).filter(|segment| !segment.acked) else {
            return AckOutcome::AckedBefore;
        };
        if let Some(repair) = &mut self.redundancy.repair {
            repair.recovered_count += 1;
            if !segment.retransmitted {
                repair.on_recovered(sn);
            }
        }
        if !segment.retransmitted {
            self.on_hidden_loss(now, sn, segment.xmit_seq);
        }
        self.on_brought(now, sn, segment.retransmitted)
    }

    /// Redundancy brought `sn` to the peer, which acknowledges it.
    fn on_brought(&mut self, now: Micros, sn: Sn, retransmitted: bool) -> AckOutcome {
        if retransmitted {
            self.redundancy.forget_copies(sn);
        }
        self.on_segment_acked(now, sn, false);
        AckOutcome::NewlyAcked
    }

    /// Whether a repair symbol with this key may have recovered `sn`, a number that was sent.
    fn is_covered_by(&self, sn: Sn, key: u32) -> bool {
        let max_age = u32::from(u16::MAX);
        let is_old = || self.una().offset_from(sn).is_some_and(|age| age <= max_age);
        let repair = self.redundancy.repair.as_ref();
        repair.is_some_and(|repair| repair.may_have_recovered(key, sn))
            && (self.sent_segments.get(sn).is_some() || is_old())
    }

    /// Whether an ACK of a recovered segment with this key would be the segment's first.
    pub(crate) fn is_unacked_recovered(&self, sn: Sn, key: u32) -> bool {
        let unacked = self.sent_segments.get(sn).is_some_and(|segment| !segment.acked);
        unacked && self.is_covered_by(sn, key)
    }

    /// The only transmission of `sn` was lost, and no retransmission shows it. For `xmit_seq` see
    /// [`SentSegment::xmit_seq`].
    fn on_hidden_loss(&mut self, now: Micros, sn: Sn, xmit_seq: u64) {
        let index = sn.offset_from(self.una()).map_or(0, |offset| self.congestion_index(offset));
        self.redundancy.copies_from(now).on_lost(now, sn, xmit_seq);
        self.reduce_cwnd(sn);
        self.path.congestion.on_hidden_loss(now, index);
        if let Some(autotune) = &mut self.autotune {
            autotune.on_retransmit();
        }
    }
}

/// Bundled copies.
impl Sender {
    /// The next segment before `end` to copy now; at most `space` bytes with its header.
    pub(crate) fn next_bundled(&self, now: Micros, end: Sn, space: usize) -> Option<Sn> {
        let bundling = self.redundancy.bundling.as_ref()?;
        bundling.next_copy(now, &self.sent_segments, self.path.rtt.srtt_or_rto(), end, space)
    }

    /// Records that a copy of `sn` leaves with wire timestamp `ts`, and returns the PUSH to write.
    pub(crate) fn transmit_bundled(
        &mut self,
        now: Micros,
        sn: Sn,
        ts: Ts,
    ) -> Option<OutgoingSegment<'_>> {
        let (segment, range) = (self.sent_segments.get(sn)?, self.sent_segments.payload(sn)?);
        let (frg, len, una) = (segment.frg, range.len(), self.una());
        if let Some(bundling) = &mut self.redundancy.bundling {
            bundling.on_copy_sent(now, sn, ts, len, una);
        }
        if self.path.congestion.is_bbr() {
            let bytes = (HEADER_LEN + len) as u64;
            self.pace_at_rate(now, bytes, self.path.congestion.pacing());
        }
        Some(OutgoingSegment { sn, frg, payload: self.send_buffer.get(range)? })
    }

    /// Ends the copying of segments before `end`, except for those that are still too young.
    pub(crate) fn end_bundle(&mut self, now: Micros, end: Sn) {
        if let Some(bundling) = &mut self.redundancy.bundling {
            bundling.end_bundle(now, &self.sent_segments, self.path.rtt.srtt_or_rto(), end);
        }
    }

    /// When copies leave in a datagram of their own because no new segment followed; may be in the past.
    pub(crate) fn bundling_deadline(&self) -> Option<Micros> {
        let bundling = self.redundancy.bundling.as_ref()?;
        let at = bundling.tail_at(self.nxt(), self.path.rtt.srtt_or_rto())?;
        let may_send = !self.sent_segments.all_acked() && !self.path.pto_backoff.is_active();
        may_send.then(|| at.max(self.path.pacer.resume_at()))
    }

    /// The ACK of a copy arrived: the peer has the segment. It says nothing about the original, since peers
    /// acknowledge data in order cumulatively, and is no RTT sample.
    pub(super) fn on_bundled_ack(&mut self, now: Micros, sn: Sn) -> AckOutcome {
        let segment = self.sent_segments.get(sn).filter(|segment| !segment.acked);
        segment.map_or(AckOutcome::AckedBefore, |segment| {
            self.on_brought(now, sn, segment.retransmitted)
        })
    }
}
