//! Several paths: data leaves on another one, when an answer on the present one is overdue, and transfers that use
//! all of them ([`PathMode::Aggregate`]).
//!
//! [`PathMode::Aggregate`]: crate::config::PathMode::Aggregate

use std::iter;
use std::mem;

use super::{SendCandidate, Sender, Transmission};
use crate::config::CongestionControl;
use crate::core::clock::Micros;
use crate::core::congestion::Congestion;
use crate::core::path::set::PathId;
use crate::core::recovery::loss::{LossTrigger, MAX_PATH_PROBES};
use crate::core::recovery::rtt::RttEstimator;
use crate::core::recovery::sent::{MAX_SLOTS, SentSegment, Slot};
use crate::core::redundancy::{InFlight, SegmentLoss};
use crate::core::segment::HEADER_LEN;
use crate::core::send::path::SendPath;
use crate::core::send::retransmission::LATENCY_BOUND_LIMIT;
use crate::core::seq::Sn;

/// Segments of a list that [`Sender::overdue_at`] looks at. More lost ones at its front hide the answer that is
/// overdue, and pings find out that the path is silent.
const MAX_INSPECTED: usize = 64;
/// Least wait for an overdue answer beyond the round trip, microseconds.
const MIN_OVERDUE: u64 = 10_000;
/// Microseconds.
const SECOND: u64 = 1_000_000;

impl Sender {
    /// Data leaves on another path from now on. `resend`: the last one is silent, so what is in flight leaves again.
    pub(crate) fn switch_path(&mut self, now: Micros, to: PathId, resend: bool) {
        let (mode, rto) = (self.path.congestion.mode(), self.path.rtt.rto());
        let fills_window = resend && self.path.congestion.is_bbr() && !self.is_latency_bound();
        if resend {
            // The path may be silent for large datagrams only.
            self.detect_black_hole(now, self.una());
        }
        let Some(from) = self.exchange_path(to) else { return };
        // The old path's model would be out of date when it is used again.
        self.path.congestion = Congestion::disabled();
        if let Some(paths) = &mut self.paths {
            paths.move_acks(from, to);
            paths.send_mut(from).into_iter().for_each(SendPath::forget_congestion);
        }
        self.begin_path(now, mode, rto, fills_window);
        self.on_peer_activity(now);
        if resend {
            // A peer that acknowledges nothing on any path is not sent a window on each.
            let acked = self.retransmit_budget.on_move();
            let all = acked > 0 || fills_window;
            let count = if all { self.in_flight() } else { MAX_PATH_PROBES };
            let next = self.next_xmit_seq();
            self.path.loss.begin_probes().on_path_silent(next, count, acked, fills_window);
        }
    }

    /// Puts the state of path `to` in the place of the active one. Returns the path that was active.
    fn exchange_path(&mut self, to: PathId) -> Option<PathId> {
        let Self { paths: Some(paths), path, .. } = self else { return None };
        let from = paths.active();
        paths.switch(to, |other| {
            other.take_settings(path);
            mem::swap(path, other);
        });
        (paths.active() != from).then_some(from)
    }

    /// Data begins to leave on the active path. `rto`: of the last one, microseconds. `is_lost`: what is in flight
    /// counts from its next transmission on.
    fn begin_path(&mut self, now: Micros, mode: CongestionControl, rto: u64, is_lost: bool) {
        let (una, next) = (self.una(), self.next_xmit_seq());
        self.with_flight(self.in_flight(), |congestion, segment, in_flight| {
            let in_flight = in_flight.map(|bytes| if is_lost { 0 } else { bytes });
            congestion.set_mode(mode, una, segment, in_flight);
        });
        self.path.pacer.reset();
        self.path.loss.begin_at(now, next, rto);
    }

    /// When an answer of a path is overdue: its first transmission after the latest acknowledged one has waited
    /// longer than a round trip and what it varies by. `None` if nothing is unanswered. `may_grow`: a transfer fills
    /// a queue for a moment when it probes for bandwidth.
    pub(crate) fn overdue_at(&self, may_grow: bool) -> Option<Micros> {
        let paths = self.paths_to_leave();
        paths.filter_map(|(slot, path)| self.overdue_on(slot, path, may_grow)).min()
    }

    fn overdue_on(&self, slot: Slot, path: &SendPath, may_grow: bool) -> Option<Micros> {
        let srtt = path.rtt.srtt()?;
        let is_unanswered = |segment: &SentSegment| !path.loss.has_acked_since(segment.xmit_seq);
        let lists = self.sent_segments.oldest_in_slot(slot);
        let first = lists.filter_map(|(sn, _)| {
            let mut list = self.sent_segments.unacked_from(sn).take(MAX_INSPECTED);
            list.find(|(_, segment)| is_unanswered(segment)).map(|(_, segment)| segment.last_sent)
        });
        let growth = if may_grow { srtt } else { srtt / 4 };
        let margin = (growth + 4 * path.rtt.rttvar()).max(MIN_OVERDUE);
        Some(first.min()?.add_micros(srtt + margin + path.loss.copy_wait()))
    }
}

/// Segments in flight on several paths at the same time.
///
/// [`Sender::path`] is the path of the next datagram. Before anything that is measured on the path of a segment
/// changes, [`Sender::at_path`] puts that path there.
impl Sender {
    /// Whether transfers use all paths.
    #[inline]
    pub(crate) fn is_aggregating(&self) -> bool {
        self.aggregates && self.paths.is_some()
    }

    /// A datagram arrived on `path`: its answers tell about that path.
    #[inline]
    pub(crate) fn on_arrival(&mut self, now: Micros, path: PathId) {
        if self.is_aggregating()
            && let Some(paths) = &self.paths
            && paths.has(path)
        {
            self.at_path(now, paths.slot_of(path));
        }
    }

    /// Largest datagram of the paths that carry data, bytes: a segment may leave on any of them.
    pub(crate) fn current_mtu(&self) -> usize {
        let here = self.path.mtu.current_mtu();
        let paths = self.paths.as_ref().filter(|_| self.aggregates);
        let others = paths.into_iter().flat_map(|paths| paths.usable_others());
        others.map(|(_, _, path)| path.mtu.current_mtu()).fold(here, usize::min)
    }

    /// The slot of a further path.
    pub(crate) fn free_slot(&self) -> Option<Slot> {
        if !self.aggregates {
            // One path carries all data.
            return Some(Slot::FIRST);
        }
        let Some(paths) = &self.paths else { return Some(Slot(1)) };
        paths.free_slot(|slot| self.sent_segments.is_slot_empty(slot))
    }

    /// The paths that may have segments in flight, and answer, or are the active one.
    pub(super) fn carrying_paths(&self) -> impl Iterator<Item = (Slot, &SendPath)> {
        let here = (self.sent_segments.slot(), &self.path);
        iter::once(here).chain(self.other_carrying_paths())
    }

    /// As [`Self::carrying_paths`], without the active one.
    pub(super) fn other_carrying_paths(&self) -> impl Iterator<Item = (Slot, &SendPath)> {
        let paths = self.paths.iter().filter(|_| self.sent_segments.uses_slots());
        paths.flat_map(|paths| paths.usable_others()).map(|(_, slot, path)| (slot, path))
    }

    /// The path on which `segment` left.
    #[inline]
    pub(super) fn path_of(&self, segment: &SentSegment) -> &SendPath {
        let slot = segment.slot();
        if slot == self.sent_segments.slot() { &self.path } else { self.path_in(slot) }
    }

    #[cold]
    fn path_in(&self, slot: Slot) -> &SendPath {
        let path = self.other_carrying_paths().find(|(other, _)| *other == slot);
        path.map_or(&self.path, |(_, path)| path)
    }

    #[inline]
    pub(super) fn outstanding_on<'a>(&'a self, path: &'a SendPath) -> InFlight<'a> {
        InFlight { sent: &self.sent_segments, rtt: &path.rtt, loss: &path.loss }
    }

    /// As [`Self::find_loss`], on several paths.
    #[cold]
    pub(super) fn find_loss_on_paths(
        &self,
        no_new_data: bool,
        mut is_wanted: impl FnMut(&SendPath, &SegmentLoss) -> bool,
    ) -> Option<SegmentLoss> {
        self.carrying_paths().find_map(|(slot, path)| {
            let oldest = self.sent_segments.oldest_in_slot(slot);
            let is_wanted = |loss: &SegmentLoss| is_wanted(path, loss);
            self.redundancy.find_loss(&self.outstanding_on(path), oldest, no_new_data, is_wanted)
        })
    }

    /// As [`Self::loss_deadline`], for several paths.
    #[cold]
    pub(super) fn loss_deadline_on_paths(&self, no_new_data: bool) -> Option<Micros> {
        let of_path = |(slot, path)| {
            self.loss_deadline(path, self.sent_segments.oldest_in_slot(slot), no_new_data)
        };
        self.carrying_paths().filter_map(of_path).min()
    }

    /// As [`Self::next_lost_on_one_path`], on any number of paths.
    #[cold]
    pub(super) fn next_lost(&self, now: Micros, no_new_data: bool) -> Option<(Sn, LossTrigger)> {
        let sent = &self.sent_segments;
        let may_have_lost =
            |(slot, path): (Slot, &SendPath)| path.may_have_lost(now, sent.oldest_in_slot(slot));
        if !self.carrying_paths().any(may_have_lost) {
            return None;
        }
        let oldest = self.lost(self.una(), now, no_new_data, |segment| self.path_of(segment));
        let loss = oldest.or_else(|| {
            let mut lost = self.carrying_paths().filter_map(|(slot, path)| {
                self.find_lost(now, path, sent.oldest_in_slot(slot), no_new_data)
            });
            let first = match self.retransmits_in_order() {
                true => lost.min_by_key(|loss| loss.sn.since(self.una())),
                false => lost.next(),
            }?;
            self.lost_before(now, first.sn, no_new_data, |segment| self.path_of(segment))
                .or(Some(first))
        })?;
        Some(self.retransmission_of(&loss))
    }

    /// Makes the path in `slot` the active one. Returns false if it does not answer: nothing is measured on it.
    #[inline]
    pub(super) fn at_path(&mut self, now: Micros, slot: Slot) -> bool {
        slot == self.sent_segments.slot() || self.bring_path(now, slot)
    }

    #[cold]
    fn bring_path(&mut self, now: Micros, slot: Slot) -> bool {
        let paths = self.paths.as_ref().filter(|paths| paths.is_usable(slot));
        let to = paths.and_then(|paths| paths.in_slot(slot));
        to.into_iter().for_each(|to| self.use_path(now, to));
        to.is_some()
    }

    /// Makes `to` the active path, for a sender that uses all of them.
    pub(crate) fn use_path(&mut self, now: Micros, to: PathId) {
        let mode = self.path.congestion.mode();
        let start = self.una().back(self.unproved());
        self.path.congestion.pause_at(start);
        if self.exchange_path(to).is_none() {
            return;
        }
        let slot = self.paths.as_ref().map_or(Slot::FIRST, |paths| paths.slot_of(to));
        self.sent_segments.set_slot(slot);
        if self.path.congestion.mode() != mode {
            let rto = self.path.rtt.rto();
            self.begin_path(now, mode, rto, false);
            return;
        }
        let len = self.unproved() + self.in_flight();
        self.path.congestion.catch_up(now, start, len as usize);
    }

    /// Makes the path of `sn` the active one.
    #[inline]
    pub(super) fn at_segment(&mut self, now: Micros, sn: Sn) {
        if self.sent_segments.uses_slots()
            && let Some(segment) = self.sent_segments.get(sn)
        {
            self.at_path(now, segment.slot());
        }
    }

    /// The peer is active: segments in flight on the other paths may be retransmitted too.
    #[cold]
    pub(super) fn on_peer_activity_elsewhere(&mut self, now: Micros) {
        let others = self.paths.iter_mut().flat_map(|paths| paths.others_mut());
        others.for_each(|(_, path)| path.pto_backoff.on_peer_activity(now));
    }

    /// All paths, the active one first.
    pub(crate) fn every_path(&self) -> impl Iterator<Item = &SendPath> {
        let others = self.paths.iter().flat_map(|paths| paths.others_send());
        iter::once(&self.path).chain(others)
    }

    /// What the windows are to cover: the estimate of the path with the longest round trip.
    #[inline]
    pub(crate) fn longest_rtt(&self) -> &RttEstimator {
        let paths = self.paths.as_ref().filter(|_| self.aggregates);
        let others = paths.into_iter().flat_map(|paths| paths.usable_others());
        let all = iter::once(&self.path.rtt).chain(others.map(|(.., path)| &path.rtt));
        all.max_by_key(|rtt| rtt.srtt()).unwrap_or(&self.path.rtt)
    }

    /// `count` segments are written off; the first of them was `start`.
    #[cold]
    pub(super) fn write_off_elsewhere(&mut self, now: Micros, start: Sn, count: u32) {
        let others = self.paths.iter_mut().flat_map(|paths| paths.others_mut());
        for (_, path) in others {
            path.congestion.catch_up(now, start, 0);
            path.congestion.write_off(count);
            path.congestion.pause_at(start.advance(count));
        }
    }

    /// Calls `act` with each path as the active one.
    pub(super) fn on_each_path(&mut self, now: Micros, mut act: impl FnMut(&mut Self)) {
        let here = self.sent_segments.slot();
        for slot in (0..MAX_SLOTS).map(Slot) {
            if slot != here && self.at_path(now, slot) {
                act(self);
            }
        }
        self.at_path(now, here);
        act(self);
    }

    /// `sn` leaves on the active path. Returns whether it left on another one before, which has `lost` it, or is
    /// silent.
    #[inline]
    pub(super) fn move_segment(&mut self, now: Micros, sn: Sn, lost: Option<LossTrigger>) -> bool {
        self.sent_segments.uses_slots() && self.move_from_path(now, sn, lost)
    }

    #[cold]
    fn move_from_path(&mut self, now: Micros, sn: Sn, lost: Option<LossTrigger>) -> bool {
        let here = self.sent_segments.slot();
        let last = self.sent_segments.get(sn).map_or(here, |segment| segment.slot());
        if last == here {
            return false;
        }
        if self.at_path(now, last) {
            let index =
                sn.offset_from(self.una()).map_or(0, |offset| self.congestion_index(offset));
            let by_timeout = lost.map(|trigger| trigger == LossTrigger::Rto);
            self.path.congestion.on_moved_away(now, index, by_timeout);
            if self.paths.as_ref().is_some_and(|paths| paths.is_slot_doubted(last)) {
                self.detect_black_hole(now, sn);
            }
            self.at_path(now, here);
        }
        true
    }

    /// A segment that leaves again on the active path, and from when on: the oldest one of a path that is silent or
    /// gone, or one that blocks the window.
    #[inline]
    pub(super) fn next_stranded(&self) -> Option<(Sn, Micros)> {
        if self.sent_segments.uses_slots() { self.oldest_stranded() } else { None }
    }

    #[cold]
    fn oldest_stranded(&self) -> Option<(Sn, Micros)> {
        let silent = self.oldest_of_silent_paths().map(|sn| {
            let counts = self.left_on_doubted_path(sn);
            (sn, if counts { self.retransmit_budget.available_at() } else { Micros(0) })
        });
        [silent, self.blocking_segment()].into_iter().flatten().min_by_key(|(_, at)| *at)
    }

    /// A segment of [`Self::next_stranded`] that leaves now: the reader waits for it more than for `lost`.
    #[cold]
    pub(super) fn stranded_before(
        &self,
        now: Micros,
        lost: Option<(Sn, LossTrigger)>,
    ) -> Option<SendCandidate> {
        let (sn, _) = self.next_stranded().filter(|(_, at)| *at <= now)?;
        if lost.is_some_and(|(lost, _)| lost.since(sn) < 0) {
            return None;
        }
        let len = self.sent_segments.payload(sn)?.len();
        Some(SendCandidate { len, transmission: Transmission::PathProbe(sn) })
    }

    fn oldest_of_silent_paths(&self) -> Option<Sn> {
        let (paths, here) = (self.paths.as_ref()?, self.sent_segments.slot());
        let (una, window) = (self.una(), self.remote.available(self.una()).max(1));
        let slots = (0..MAX_SLOTS).map(Slot);
        // Messages do not wait for the ping that tells whether the path is dead, unless this path is no better.
        let leaves_doubted = self.is_latency_bound() && !paths.is_slot_doubted(here);
        let is_left = |slot| leaves_doubted && paths.is_slot_doubted(slot);
        let is_silent = |slot: Slot| slot != here && (!paths.is_usable(slot) || is_left(slot));
        let oldest = self.sent_segments.get(una).filter(|oldest| !oldest.acked);
        if oldest.is_some_and(|oldest| is_silent(oldest.slot())) {
            return Some(una);
        }
        let silent = slots.filter(|slot| is_silent(*slot));
        let oldest = silent.flat_map(|slot| self.sent_segments.oldest_in_slot(slot));
        let sn = oldest.map(|(sn, _)| sn).min_by_key(|sn| sn.since(una))?;
        sn.offset_from(una).filter(|offset| *offset < window).map(|_| sn)
    }

    /// Whether `sn` left on another path that may still answer. Then it counts against the limit of retransmissions:
    /// two paths with short queues may be in doubt in turn, each for losses of the other one.
    pub(super) fn left_on_doubted_path(&self, sn: Sn) -> bool {
        let (Some(paths), Some(segment)) = (&self.paths, self.sent_segments.get(sn)) else {
            return false;
        };
        let slot = segment.slot();
        self.sent_segments.uses_slots()
            && slot != self.sent_segments.slot()
            && paths.is_usable(slot)
            && paths.is_slot_doubted(slot)
    }

    /// The oldest segment, if it left on another path and nothing new leaves until it is acknowledged (MPTCP's
    /// opportunistic retransmission, RFC 8684 3.3.6).
    fn blocking_segment(&self) -> Option<(Sn, Micros)> {
        let (sn, here) = (self.una(), self.sent_segments.slot());
        let oldest = self.sent_segments.get(sn).filter(|oldest| !oldest.acked)?;
        if oldest.slot() == here || !self.is_window_full() {
            return None;
        }
        Some((sn, oldest.last_sent.add_micros(2 * self.path.rtt.srtt_or_rto())))
    }

    /// Whether the segments in flight fill the send window or the peer's.
    fn is_window_full(&self) -> bool {
        self.in_flight() >= u32::from(self.window).min(self.remote.available(self.una()))
    }

    /// Puts paths whose answer is overdue in doubt, and leaves those that do not answer the ping either, while
    /// another one answers. `is_fin_overdue`: the active one owes the answer to FIN.
    pub(crate) fn leave_overdue_paths(&mut self, now: Micros, is_fin_overdue: bool) {
        let fin = is_fin_overdue.then_some(self.sent_segments.slot());
        let may_leave =
            |slot: &Slot| self.paths.as_ref().is_some_and(|paths| paths.may_leave_slot(*slot));
        let mut owes_fin = fin.filter(may_leave);
        while let Some(slot) = owes_fin.take().or_else(|| self.overdue_path(now)) {
            let Some(paths) = &mut self.paths else { return };
            paths.on_overdue(now, slot);
            self.settle_paths(now);
        }
    }

    fn overdue_path(&self, now: Micros) -> Option<Slot> {
        let may_grow = !self.is_latency_bound();
        let overdue_at = |slot, path| self.overdue_on(slot, path, may_grow);
        let is_overdue = |slot, path| overdue_at(slot, path).is_some_and(|at| at <= now);
        self.paths_to_leave().find(|(slot, path)| is_overdue(*slot, path)).map(|(slot, _)| slot)
    }

    /// The paths that carry data, if an overdue answer would change something.
    fn paths_to_leave(&self) -> impl Iterator<Item = (Slot, &SendPath)> {
        let may_leave =
            |slot: Slot| self.paths.as_ref().is_some_and(|paths| paths.may_leave_slot(slot));
        self.carrying_paths().filter(move |(slot, _)| !self.aggregates || may_leave(*slot))
    }

    /// A path has fallen silent, or answers again: what is measured on a silent one is out of date when it is used
    /// again.
    pub(crate) fn settle_paths(&mut self, now: Micros) {
        let silent = self.paths.as_ref().filter(|paths| paths.is_active_silent());
        let other = silent.and_then(|paths| paths.usable_others().next()).map(|(id, ..)| id);
        if let Some(to) = other {
            self.use_path(now, to);
        }
        let Some(paths) = &mut self.paths else { return };
        let others = paths.others_mut().filter(|(is_usable, _)| !is_usable);
        others.for_each(|(_, path)| path.forget_congestion());
    }
}

/// The state that decides between paths.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: PathId,
    srtt: u64,
    min_rtt: u64,
    /// When the pacer lets the next segment leave, at least now.
    resume_at: Micros,
    /// Whether the congestion control admits new data.
    is_open: bool,
    /// Bytes per second; 0 while unknown.
    rate: u64,
    /// An answer is overdue.
    is_doubted: bool,
}

impl Candidate {
    fn arrival(&self) -> Micros {
        self.resume_at.add_micros(self.srtt / 2)
    }
}

/// The choice of a path (draft-bonaventure-iccrg-schedulers).
impl Sender {
    /// Chooses the path of the next datagram: of those that admit it now, the one on which it arrives first.
    pub(crate) fn choose_path(&mut self, now: Micros) {
        let Some(paths) = self.paths.as_ref().filter(|_| self.aggregates) else { return };
        if paths.usable_others().next().is_none() {
            return;
        }
        let candidate = |id, path: &SendPath| Candidate {
            id,
            srtt: path.rtt.srtt_or_rto(),
            min_rtt: path.rtt.min().min(path.rtt.srtt_or_rto()),
            resume_at: path.pacer.resume_at().max(now),
            is_open: path.congestion.is_bbr_suspended()
                || path.congestion.window() > self.in_flight(),
            rate: path.congestion.estimates(1).2,
            is_doubted: paths.is_doubted(id),
        };
        let active = (!paths.is_active_silent()).then(|| candidate(paths.active(), &self.path));
        let others = paths.usable_others().map(|(id, _, path)| candidate(id, path));
        let mut candidates = [None; MAX_SLOTS as usize];
        candidates.iter_mut().zip(active.into_iter().chain(others)).for_each(|(place, path)| {
            *place = Some(path);
        });
        let candidates = candidates.iter().flatten();
        let is_certain = candidates.clone().any(|path| !path.is_doubted);
        let candidates = candidates.filter(|path| !(is_certain && path.is_doubted));
        let Some(fastest) = candidates.clone().min_by_key(|path| path.srtt) else { return };
        let no_new_data =
            self.send_buffer.is_empty() || !candidates.clone().any(|path| path.is_open);
        let loses = || {
            self.retransmit_budget.may_retransmit(now) && self.next_lost(now, no_new_data).is_some()
        };
        let best = if self.is_window_full() || self.next_stranded().is_some() || loses() {
            candidates.min_by_key(|path| (path.arrival(), path.srtt))
        } else {
            let fits = |path: &&Candidate| path.is_open && self.is_worth_it(path, fastest);
            candidates.filter(fits).min_by_key(|path| (path.resume_at, path.srtt))
        };
        let best = best.unwrap_or(fastest).id;
        if best != paths.active() {
            self.use_path(now, best);
        }
    }

    /// Whether the next new segment is better sent on a path than kept for the fastest one.
    fn is_worth_it(&self, path: &Candidate, fastest: &Candidate) -> bool {
        if path.srtt <= fastest.srtt {
            return true;
        }
        let segment = (HEADER_LEN + self.mss()) as u64;
        if fastest.rate == 0 {
            return !fastest.is_open || self.writer_waits;
        }
        // Until its acknowledgement the fastest path has to find space in the window for what it carries (BLEST).
        let window = u32::from(self.window).min(self.remote.available(self.una()));
        // If it is lost, its retransmission takes another round trip. The path's own queue is not counted: it would
        // never be seen to drain.
        let time = 2 * path.min_rtt + fastest.min_rtt;
        let meanwhile = fastest.rate.saturating_mul(time) / SECOND / segment;
        if meanwhile >= u64::from(window) {
            return false;
        }
        // Without more to come, the fastest path may deliver all of it earlier (ECF).
        let backlog = self.send_buffer.bytes() as u64;
        let time = backlog.saturating_mul(SECOND) / fastest.rate;
        let is_bulk = self.writer_waits || self.in_flight() as usize > LATENCY_BOUND_LIMIT;
        is_bulk || fastest.arrival().add_micros(time) > path.arrival()
    }
}

#[cfg(test)]
mod tests;
