//! A connection as one of the flows of a path, which share a BBR model (RFC 3124, the congestion manager).
//!
//! Flows with separate models would probe for bandwidth at the same time and take each other's queue for part
//! of the path. One model sees the whole path, and its limits are divided: a flow that always has data gets
//! an equal part of what the others leave, and a message flow takes what it needs.

use std::num::NonZeroU64;

use crate::core::clock::Micros;
use crate::core::congestion::bbr::filters::AckAggregation;
use crate::core::congestion::bbr::{Bbr, INITIAL_WINDOW, Share};
#[cfg(feature = "qlog")]
use crate::core::congestion::controller::ModelState;
use crate::core::congestion::controller::{Acked, Limit, Lost, Pacing, SentAs};
use crate::core::congestion::delivery_rate::{DeliveryRate, PathTotals};
use crate::core::seq::Sn;
use crate::util::sync::{Arc, Mutex, lock};

const SECOND: u64 = 1_000_000;
/// Shortest period for counting flows, microseconds. One of many flows on a short path sends less often
/// than once per round trip.
const LEAST_PERIOD: u64 = 100_000;
/// Longest period for counting flows, microseconds. It ends without a round trip if nothing is delivered.
const LONGEST_PERIOD: u64 = 1_000_000;

/// The model of a path, while a connection uses it. While this lock is held, no other lock is taken.
type Slot = Mutex<Option<Box<PathModel>>>;

/// A path that connections share.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathHandle {
    slot: Arc<Slot>,
    /// Path clock minus connection clock, microseconds.
    pub(crate) clock_offset: i64,
}

impl PathHandle {
    /// The same path for a connection with another clock.
    pub(crate) fn with_offset(&self, clock_offset: i64) -> Self {
        Self { slot: self.slot.clone(), clock_offset }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.slot, &other.slot)
    }

    /// Number of handles of this path.
    pub(super) fn handles(&self) -> usize {
        Arc::strong_count(&self.slot)
    }

    fn now(&self, now: Micros) -> Micros {
        Micros(now.0.saturating_add_signed(self.clock_offset))
    }
}

#[derive(Debug)]
struct PathModel {
    bbr: Bbr,
    totals: PathTotals,
    flows: u32,
    period: Period,
}

/// Period for counting busy flows: at least a round trip, as long as data is delivered.
#[derive(Clone, Copy, Debug, Default)]
struct Period {
    number: u64,
    began: Micros,
    /// Round of the model at the start.
    round: u64,
    /// Flows that always had data, in this period and in the previous one.
    busy: [u32; 2],
    /// Bytes that the other flows sent in this period.
    sent_by_others: u64,
    /// Bytes per second that the other flows sent, smoothed.
    rate_of_others: u64,
}

impl Period {
    fn advance(&mut self, now: Micros, round: u64) {
        let elapsed = now.since(self.began);
        if elapsed < LEAST_PERIOD || (round == self.round && elapsed < LONGEST_PERIOD) {
            return;
        }
        let rate = self.sent_by_others.saturating_mul(SECOND) / elapsed;
        *self = Self {
            number: self.number + 1,
            began: now,
            round,
            busy: [0, self.busy[0]],
            sent_by_others: 0,
            rate_of_others: u64::midpoint(self.rate_of_others, rate),
        };
    }
}

/// Whether a flow always has data.
#[derive(Clone, Copy, Debug)]
struct Demand {
    is_busy: bool,
    /// The period of its last transmission.
    period: u64,
    /// The application or a window limited it in that period.
    was_limited: bool,
    /// First and last of the consecutive periods that count it as busy.
    counted: Option<(u64, u64)>,
}

impl Demand {
    /// A flow that begins within a period does not count as busy in it.
    fn new(period: u64) -> Self {
        Self { is_busy: false, period, was_limited: true, counted: None }
    }

    fn on_sent(&mut self, period: &mut Period, bytes: u64, limited: bool) {
        if self.period != period.number {
            // Also after periods without sending: then data waited for the window or the pacer.
            self.is_busy = !self.was_limited;
            (self.period, self.was_limited) = (period.number, false);
        }
        self.was_limited |= limited;
        self.is_busy &= !limited;
        if !self.is_busy {
            period.sent_by_others += bytes;
        } else if self.counted.is_none_or(|(_, last)| last != period.number) {
            period.busy[0] += 1;
            let in_a_row = self.counted.filter(|(_, last)| last + 1 == period.number);
            let first = in_a_row.map_or(period.number, |(first, _)| first);
            self.counted = Some((first, period.number));
        }
    }

    /// Number of other flows that always have data.
    fn others(&self, period: &Period) -> u32 {
        let counted = |number: u64| {
            let is_counted = |(first, last)| (first..=last).contains(&number);
            u32::from(self.counted.is_some_and(is_counted))
        };
        let before = period.number.checked_sub(1).map_or(0, counted);
        let [now, last] = period.busy;
        now.saturating_sub(counted(period.number)).max(last.saturating_sub(before))
    }
}

impl PathModel {
    fn new(segment: u64) -> Self {
        let (totals, period) = (PathTotals::default(), Period::default());
        Self { bbr: Bbr::new(segment), totals, flows: 0, period }
    }

    fn share(&self, demand: &Demand) -> Share {
        if self.flows == 1 {
            return Share::Whole;
        }
        let busy = u64::from(demand.others(&self.period)) + 1;
        if !demand.is_busy {
            return Share::Small(Share::WHOLE / busy);
        }
        let rate = self.bbr.delivery_rate().max(1);
        // Many small flows may leave little, so a busy flow gets at least an equal part among all flows.
        let left = rate.saturating_sub(self.period.rate_of_others);
        let left = left.max(rate.saturating_mul(busy) / u64::from(self.flows).max(busy));
        Share::Part(left.saturating_mul(Share::WHOLE) / rate / busy)
    }
}

/// A connection that uses a model of its path.
#[derive(Debug)]
pub(super) struct Flow {
    path: PathHandle,
    member: Member,
}

/// The connection's own state.
#[derive(Debug)]
struct Member {
    rate: DeliveryRate,
    messages: MessageWindow,
    /// How the peer acknowledges, and the model's round when that was last updated.
    peer: AckAggregation,
    round: u64,
    demand: Demand,
    /// Acknowledged bytes of the path at which the latest transmission with a full window is acknowledged.
    window_limited_until: u64,
    /// RTT sample of the current datagram, microseconds.
    rtt: Option<u64>,
    /// When the peer last acknowledged data, or data left with nothing in flight.
    acked_at: Micros,
    /// Whether another segment may leave, as of the last [`Flow::change`].
    is_open: bool,
    /// The first segment of `rate` when data last began to leave on another path.
    paused_at: Sn,
}

impl Flow {
    /// Joins `path` with segments in flight that left earlier. `in_flight`: bytes of each, 0 for acknowledged
    /// ones. `segment`: length of a full segment with header, bytes.
    pub(super) fn join(
        path: PathHandle,
        segment: u64,
        in_flight: impl Iterator<Item = u32>,
    ) -> Self {
        let mut slot = lock(&path.slot);
        let shared = slot.get_or_insert_with(|| Box::new(PathModel::new(segment)));
        shared.flows += 1;
        shared.bbr.set_flows(shared.flows);
        let mut member = Member {
            rate: DeliveryRate::new(in_flight, &mut shared.totals),
            messages: MessageWindow::default(),
            peer: AckAggregation::default(),
            round: 0,
            demand: Demand::new(shared.period.number),
            window_limited_until: 0,
            rtt: None,
            acked_at: Micros(0),
            is_open: true,
            paused_at: Sn(0),
        };
        member.is_open = member.may_send(shared);
        drop(slot);
        Self { path, member }
    }

    pub(super) fn path(&self) -> &PathHandle {
        &self.path
    }

    pub(super) fn set_initial_rate(&mut self, rate: NonZeroU64) {
        self.change(|path, _| path.bbr.set_initial_rate(rate.get()));
    }

    /// Sets the length of a full segment, header included, bytes.
    pub(super) fn set_segment(&mut self, segment: u64) {
        self.change(|path, _| path.bbr.set_segment(segment));
    }

    /// Whether another segment may leave.
    pub(super) fn is_open(&self) -> bool {
        self.member.is_open
    }

    /// Bytes of this connection in flight.
    #[cfg(any(test, feature = "_testkit", feature = "qlog"))]
    pub(super) fn in_flight(&self) -> u64 {
        self.member.rate.in_flight()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.member.rate.is_empty()
    }

    pub(super) fn pacing(&self) -> Option<Pacing> {
        self.inspect(|path, member| path.bbr.pacing(path.share(&member.demand)))
    }

    /// This connection's part: bytes that may be in flight, pacing rate and delivery rate in bytes per
    /// second; 0 while unknown.
    pub(super) fn estimates(&self) -> (u64, u64, u64) {
        self.inspect(|path, member| {
            let share = path.share(&member.demand);
            let rate = path.bbr.pacing(share).map_or(0, |pacing| pacing.rate.get());
            (path.bbr.window(share, &member.peer), rate, share.of(path.bbr.delivery_rate()))
        })
    }

    /// The model of the path, and the bytes of this connection in flight.
    #[cfg(feature = "qlog")]
    pub(super) fn model(&self) -> ModelState {
        let in_flight = Some(self.in_flight());
        self.inspect(|path, _| ModelState { in_flight, ..path.bbr.state() })
    }

    pub(super) fn has_lost(&self) -> bool {
        self.inspect(|path, _| path.bbr.has_lost())
    }

    pub(super) fn overflows(&self) -> bool {
        self.inspect(|path, _| path.bbr.overflows())
    }

    /// Many segments in a row were lost.
    pub(super) fn on_burst_lost(&mut self, now: Micros) {
        let now = self.path.now(now);
        self.change(|path, _| path.bbr.on_burst_lost(now));
    }

    /// Segment `index` leaves; `bytes` with its header.
    pub(super) fn on_sent(
        &mut self,
        now: Micros,
        index: usize,
        bytes: u32,
        sent_as: SentAs,
        limit: Option<Limit>,
    ) -> Option<Pacing> {
        let now = self.path.now(now);
        self.change(|path, member| {
            // Without data in flight nothing could be acknowledged.
            let is_first = member.rate.in_flight() == 0;
            let in_flight = if is_first { 0 } else { path.totals.in_flight() };
            if is_first {
                member.acked_at = now;
            }
            match sent_as {
                SentAs::New => member.rate.on_sent(&mut path.totals, now, bytes),
                SentAs::Retransmission { by_timeout } => {
                    let sent_at = member.rate.sent_at(index);
                    if !(by_timeout && member.is_gone(now, path)) {
                        path.bbr.on_lost(&Lost { now, sent_at, by_timeout });
                    }
                    member.rate.on_retransmitted(&mut path.totals, now, index, bytes);
                }
                SentAs::Moved => {
                    member.rate.on_retransmitted(&mut path.totals, now, index, bytes);
                }
                SentAs::RedundantCopy => {}
            }
            if sent_as != SentAs::RedundantCopy {
                path.bbr.on_sent(now, in_flight);
            }
            if sent_as == SentAs::New {
                let is_limited = limit == Some(Limit::Application);
                member.messages.on_sent(now, bytes, is_limited, path.bbr.overflows());
            }
            path.period.advance(now, path.bbr.rounds());
            member.demand.on_sent(&mut path.period, bytes.into(), limit.is_some());
            if member.may_send(path) && limit.is_some() {
                // Other busy flows fill the path.
                if member.demand.others(&path.period) == 0 {
                    path.totals.on_app_limited();
                }
                if limit == Some(Limit::Window) {
                    member.window_limited_until = path.totals.delivered_later();
                }
            }
            member.update_window_limited(path);
            path.bbr.pacing(path.share(&member.demand))
        })
    }

    /// Segment `index` leaves on another path: if it was lost on this one, `by_timeout` or not.
    pub(super) fn on_moved_away(&mut self, now: Micros, index: usize, by_timeout: Option<bool>) {
        let now = self.path.now(now);
        self.change(|path, member| {
            if let Some(by_timeout) = by_timeout
                && !(by_timeout && member.is_gone(now, path))
            {
                let sent_at = member.rate.sent_at(index);
                path.bbr.on_lost(&Lost { now, sent_at, by_timeout });
            }
            member.rate.on_moved_away(&mut path.totals, index);
        });
    }

    /// Data leaves on another path. `start`: the first segment that is not yet both acknowledged cumulatively and
    /// proved.
    pub(super) fn pause_at(&mut self, start: Sn) {
        self.member.paused_at = start;
    }

    /// Segments have left on another path since [`Self::pause_at`]. `start` as there, now; `len`: segments from it on.
    pub(super) fn catch_up(&mut self, now: Micros, start: Sn, len: usize) {
        let now = self.path.now(now);
        let covered = start.offset_from(self.member.paused_at).unwrap_or(0);
        self.change(|path, member| {
            let covered = member.rate.len().min(covered as usize);
            (0..covered).for_each(|_| member.rate.on_una(&mut path.totals, now));
            member.rate.skip_to(len);
        });
    }

    /// Segment `index` was acknowledged for the first time. `is_latest`: as far as known, its latest
    /// transmission arrived.
    #[inline]
    pub(super) fn on_acked(&mut self, now: Micros, index: usize, is_latest: bool) {
        let now = self.path.now(now);
        self.with(|path, member| member.rate.on_acked(&mut path.totals, now, index, is_latest));
    }

    /// The only transmission of segment `index` was lost, and repair symbols recovered the segment.
    pub(super) fn on_hidden_loss(&mut self, now: Micros, index: usize) {
        let now = self.path.now(now);
        self.change(|path, member| {
            let sent_at = member.rate.sent_at(index);
            path.bbr.on_lost(&Lost { now, sent_at, by_timeout: false });
        });
    }

    /// SND.UNA passes a segment that is proved to have arrived.
    #[inline]
    pub(super) fn on_una(&mut self, now: Micros) {
        let now = self.path.now(now);
        self.with(|path, member| member.rate.on_una(&mut path.totals, now));
    }

    /// The first `count` segments are no longer in flight, although nothing proves that they arrived.
    pub(super) fn write_off(&mut self, count: u32) {
        self.change(|path, member| member.rate.write_off(&mut path.totals, count));
    }

    /// An RTT sample, microseconds.
    #[inline]
    pub(super) fn on_rtt(&mut self, rtt: u64) {
        self.member.rtt = Some(rtt);
    }

    /// Called at the end of a datagram that carried acknowledgements.
    pub(super) fn on_acks_processed(&mut self, now: Micros, longest_wait: u64) {
        let now = self.path.now(now);
        self.change(|path, member| {
            let min_rtt = path.bbr.min_rtt();
            let (batch, rate) = member.rate.take_batch(&mut path.totals, now, min_rtt);
            // Peers acknowledge several bulk segments at once. A sample that begins or ends in between is off
            // by these.
            let is_whole = member.demand.is_busy || member.demand.others(&path.period) == 0;
            let is_first = path.bbr.delivery_rate() == 0;
            let rate = rate.filter(|_| is_whole || is_first);
            let rtt = member.rtt.take();
            if batch.segments == 0 && rtt.is_none() {
                return;
            }
            let mut acked = Acked {
                now,
                segments: batch.segments,
                bytes: batch.bytes,
                delivered: path.totals.delivered(),
                in_flight: path.totals.in_flight(),
                rtt,
                longest_wait,
                rate,
            };
            path.bbr.on_acked(&acked);
            member.acked_at = now;
            acked.in_flight = member.rate.in_flight();
            member.count_acked(path, &acked);
            member.update_window_limited(path);
        });
    }

    /// A retransmission was spurious.
    pub(super) fn on_spurious_loss(&mut self) {
        self.change(|path, _| path.bbr.on_spurious_loss());
    }

    /// Changes the model, which exists while a flow has joined its path.
    #[inline]
    fn with<T: Default>(&mut self, change: impl FnOnce(&mut PathModel, &mut Member) -> T) -> T {
        let Self { path, member } = self;
        let mut slot = lock(&path.slot);
        slot.as_deref_mut().map(|path| change(path, member)).unwrap_or_default()
    }

    /// As [`Self::with`], and updates whether another segment may leave.
    #[inline]
    fn change<T: Default>(&mut self, change: impl FnOnce(&mut PathModel, &mut Member) -> T) -> T {
        self.with(|path, member| {
            let result = change(path, member);
            member.is_open = member.may_send(path);
            result
        })
    }

    #[inline]
    fn inspect<T: Default>(&self, inspect: impl FnOnce(&PathModel, &Member) -> T) -> T {
        let slot = lock(&self.path.slot);
        slot.as_deref().map(|path| inspect(path, &self.member)).unwrap_or_default()
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn check_invariants(&self, is_alone: bool, unacked: impl Iterator<Item = bool>) {
        self.member.rate.check_invariants(unacked);
        self.inspect(|path, member| {
            assert!(!is_alone || member.is_open == member.may_send(path), "it is known");
            assert!(self.in_flight() > 0 || member.may_send(path), "nothing would open it");
            assert!(member.rate.in_flight() <= path.totals.in_flight(), "bytes of the path");
            assert!(path.flows > 0, "the path counts its flows");
        });
    }
}

impl Member {
    /// Whether another segment may leave.
    #[inline]
    fn may_send(&self, path: &PathModel) -> bool {
        let (share, in_flight) = (path.share(&self.demand), self.rate.in_flight());
        let is_within = in_flight < path.bbr.window(share, &self.peer);
        // Connections that begin at the same time are all small.
        let overfills = matches!(share, Share::Small(_))
            && in_flight >= INITIAL_WINDOW
            && path.totals.in_flight() >= path.bbr.window(Share::Whole, &self.peer);
        (is_within && !overfills) || in_flight < self.messages.window
    }

    /// Whether this connection's peer acknowledges nothing while other peers of the path do. Its losses then
    /// say nothing about the path.
    fn is_gone(&self, now: Micros, path: &PathModel) -> bool {
        let is_silent = |at| now.since(at) > SECOND;
        is_silent(self.acked_at) && path.bbr.acked_at().is_some_and(|at| !is_silent(at))
    }

    /// Updates how the peer acknowledges.
    fn count_acked(&mut self, path: &PathModel, acked: &Acked) {
        if self.round != path.bbr.rounds() {
            self.round = path.bbr.rounds();
            self.peer.next_round(acked.now);
        }
        let rate = path.share(&self.demand).of(path.bbr.delivery_rate());
        self.peer.on_acked(acked, rate, path.bbr.min_rtt());
    }

    fn update_window_limited(&self, path: &mut PathModel) {
        path.bbr.set_window_limited(path.totals.delivered() < self.window_limited_until);
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let mut slot = lock(&self.path.slot);
        let Some(path) = slot.as_mut() else { return };
        self.member.rate.leave(&mut path.totals);
        path.flows = path.flows.saturating_sub(1);
        path.bbr.set_flows(path.flows);
        if path.flows == 0 {
            *slot = None;
        }
    }
}

/// Bytes in flight allowed to a flow whose application writes less than the path carries. A radio link, or
/// its return path, may stop for a moment and then deliver everything; a sender that waits for ACKs loses
/// that time. So the flow goes on, with at most what it writes in [`Self::WITHOUT_ACKS`].
#[derive(Clone, Copy, Debug, Default)]
struct MessageWindow {
    /// Bytes.
    window: u64,
    /// Bytes sent while no data waited, in this second and in the previous one.
    written: [u64; 2],
    /// When this second began.
    since: Micros,
    /// Bytes sent since data last stopped waiting, and when the first of them left.
    pending: u64,
    pending_since: Micros,
    /// When data last stopped waiting.
    limited_at: Option<Micros>,
}

impl MessageWindow {
    /// How long ACKs may be late before messages wait, seconds. A flow that has always had data for this long
    /// is no message flow.
    const WITHOUT_ACKS: u64 = 3;
    /// Upper limit of the window, bytes.
    const MAX: u64 = 512 * 1024;

    /// `bytes` leave for the first time.
    fn on_sent(&mut self, now: Micros, bytes: u32, is_limited: bool, overflows: bool) {
        if overflows {
            *self = Self::default();
            return;
        }
        if self.pending == 0 {
            self.pending_since = now;
        }
        self.pending += u64::from(bytes);
        if is_limited {
            // Data that takes longer to leave is bulk.
            if now.since(self.pending_since) > SECOND {
                self.pending = 0;
            }
            if now.since(self.since) > SECOND {
                let recent = now.since(self.since) <= 2 * SECOND;
                self.written = [0, if recent { self.written[0] } else { 0 }];
                self.since = now;
            }
            self.written[0] += std::mem::take(&mut self.pending);
            self.limited_at = Some(now);
        }
        let is_recent = |at| now.since(at) <= Self::WITHOUT_ACKS * SECOND;
        self.window = if self.limited_at.is_some_and(is_recent) {
            let written = self.written[0].max(self.written[1]);
            (written * Self::WITHOUT_ACKS).min(Self::MAX)
        } else {
            0
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLIS: u64 = 1_000;

    #[test]
    fn message_window_is_the_data_of_three_seconds() {
        let mut messages = MessageWindow::default();
        // 1,000 bytes every 10 ms.
        (0..300).for_each(|i| messages.on_sent(Micros(i * 10 * MILLIS), 1_000, true, false));
        assert!((300_000..=306_000).contains(&messages.window), "{}", messages.window);
        messages.on_sent(Micros(5_900 * MILLIS), 1_000, false, false);
        assert!(messages.window > 0);
        messages.on_sent(Micros(6_000 * MILLIS), 1_000, false, false);
        assert_eq!(messages.window, 0, "data has always waited for 3 s");
    }

    #[test]
    fn message_window_ends_when_a_queue_overflows() {
        let mut messages = MessageWindow::default();
        (0..100).for_each(|i| messages.on_sent(Micros(i * 10 * MILLIS), 1_000, true, false));
        messages.on_sent(Micros(1_000 * MILLIS), 1_000, true, true);
        assert_eq!(messages.window, 0);
        messages.on_sent(Micros(1_010 * MILLIS), 1_000, true, false);
        assert_eq!(messages.window, 3_000, "what left before counts no longer");
    }

    #[test]
    fn bulk_that_takes_longer_than_a_second_is_no_message() {
        let mut messages = MessageWindow::default();
        (0..4_000).for_each(|ms| messages.on_sent(Micros(ms * MILLIS), 1_250, false, false));
        messages.on_sent(Micros(4_000 * MILLIS), 1_250, true, false);
        assert_eq!(messages.window, 0);
    }

    /// A flow with ten segments in flight that left at 1 ms.
    fn in_flight() -> Flow {
        let mut flow = Flow::join(PathHandle::default(), 1_000, std::iter::empty());
        (0..10).for_each(|i| {
            flow.on_sent(Micros(MILLIS), i, 1_000, SentAs::New, None);
        });
        flow
    }

    #[test]
    fn retransmission_is_a_loss_and_replaces_the_lost_transmission() {
        let mut flow = in_flight();
        flow.on_sent(Micros(50 * MILLIS), 0, 1_000, SentAs::RedundantCopy, None);
        assert!(!flow.has_lost());
        assert_eq!(flow.member.rate.sent_at(0), Some(Micros(MILLIS)));
        let sent_as = SentAs::Retransmission { by_timeout: false };
        flow.on_sent(Micros(60 * MILLIS), 0, 1_000, sent_as, None);
        assert!(flow.has_lost());
        assert_eq!(flow.member.rate.sent_at(0), Some(Micros(60 * MILLIS)));
        assert_eq!(flow.in_flight(), 10_000);
    }

    #[test]
    fn hidden_loss_is_a_loss_of_a_segment_that_stays_in_flight() {
        let mut flow = in_flight();
        assert!(!flow.has_lost());
        flow.on_hidden_loss(Micros(60 * MILLIS), 3);
        assert!(flow.has_lost());
        assert_eq!((flow.in_flight(), flow.member.rate.sent_at(3)), (10_000, Some(Micros(MILLIS))));
    }

    #[test]
    fn segments_that_the_peer_acknowledges_while_data_leaves_elsewhere_arrived_here() {
        // Segments of this path that `una` passes, and segments from it on.
        for (covered, left) in [(0, 10), (4, 6), (10, 0), (10, 3), (25, 3)] {
            let mut flow = in_flight();
            flow.pause_at(Sn(u32::MAX));
            flow.catch_up(Micros(60 * MILLIS), Sn(u32::MAX).advance(covered), left);
            let in_flight = 10_u32.saturating_sub(covered);
            assert_eq!(flow.in_flight(), 1_000 * u64::from(in_flight), "{covered} covered");
            let delivered = flow.inspect(|path, _| path.totals.delivered());
            assert_eq!(delivered, 1_000 * u64::from(10 - in_flight), "{covered} covered");
            let segments = u32::try_from(left).unwrap();
            flow.check_invariants(true, (0..segments).map(|index| index < in_flight));
        }
    }
}
