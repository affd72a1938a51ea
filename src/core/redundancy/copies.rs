//! Copies of retransmissions, each in a datagram of its own.
//!
//! If a retransmission is lost too, a message flow waits for another round trip, with all later messages. So
//! where losses are frequent, two or three copies leave: with independent losses of 20 %, one retransmission
//! in 125 is lost instead of one in 5. The [loss rate](LossRate) decides the number. kcp-go sends one copy.
//!
//! If losses come in bursts, copies leave apart. If segments in a row are lost, an RTO may expire
//! during the burst; its copies then continue until an ACK shows that the path works again, so one of them
//! leaves right after the burst.
//!
//! The first copy is an ordinary retransmission (`send/retransmission.rs`); this module handles the others.

use std::collections::VecDeque;
use std::mem;

use crate::core::clock::Micros;
use crate::core::redundancy::loss::{LossRate, LossRecord};
use crate::core::seq::{Sn, Ts};
use crate::util::queue;

/// Loss rate from which a second copy leaves, per million.
const TWO_COPIES_FROM: u32 = 5_000;
/// Loss rate above which a third copy leaves, per million.
const THREE_COPIES_ABOVE: u32 = 120_000;
/// Time between copies if losses come in bursts, microseconds; at most a quarter of the RTT.
pub(crate) const BURST_SPACING: u64 = 20_000;
/// Copies of a segment during a burst: they cover a round trip, after which the ACK of the first would show
/// that the burst is over.
pub(crate) const BURST_COPIES: u8 = 4;
/// Segments counted as sent and not lost at the start, so that the first two losses alone stay below
/// [`TWO_COPIES_FROM`].
const PRIOR_SEGMENTS: u32 = 512;
/// Consecutive lost segments of one burst beyond which retransmissions get no copies: a queue was too short
/// for the burst, and copies would fill it again. Shorter runs are as likely random.
const MAX_COPIED_RUN: u8 = 8;
/// Segments that leave within this time form a burst, milliseconds.
const BURST_TIME: i32 = 2;
/// Most retransmissions with copies that are remembered.
const MAX_GROUPS: usize = 64;
const MILLION: u64 = 1_000_000;

/// Plan for the copies of a retransmission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyPlan {
    /// Copies still to leave.
    pub(crate) left: u8,
    /// How many of these, the last ones, leave only while the burst continues.
    pub(crate) probes: u8,
    /// Time between copies, microseconds.
    pub(crate) spacing: u64,
    /// Whether this is the first retransmission of the segment.
    pub(crate) is_first: bool,
    /// The burst continues until this transmission ([`SentSegment::xmit_seq`]) or a later one is
    /// acknowledged.
    ///
    /// [`SentSegment::xmit_seq`]: crate::core::recovery::sent::SentSegment::xmit_seq
    pub(crate) until_acked: Option<u64>,
}

/// A retransmission and its copies, until it is acknowledged or lost.
#[derive(Clone, Copy, Debug)]
struct Group {
    sn: Sn,
    /// Wire timestamp of the first copy.
    first_ts: Ts,
    /// When the next copy leaves.
    due: Micros,
    plan: CopyPlan,
}

/// Loss rate and copies of one connection, from the first retransmission on.
#[derive(Debug)]
pub(crate) struct RedundantRetransmits {
    pub(crate) loss_rate: LossRate,
    /// `Some` if a redundancy controller needs it.
    pub(crate) record: Option<LossRecord>,
    /// In order of the first copy, at most [`MAX_GROUPS`].
    groups: VecDeque<Group>,
    /// Fate of the latest 64 groups, the newest in the lowest bit: 1 if every copy was lost.
    all_lost: u64,
    /// The latest 64 lost datagrams, the newest in the lowest bit: 1 if the previous segment was lost too.
    adjacent: u64,
    /// The segment lost last, and its [`SentSegment::xmit_seq`], which is consecutive within a datagram.
    ///
    /// [`SentSegment::xmit_seq`]: crate::core::recovery::sent::SentSegment::xmit_seq
    last_lost: Option<(Sn, u64)>,
    /// The latest 64 cumulative acknowledgements, the newest in the lowest bit: 1 if the oldest segment that
    /// it covered had no ACK of its own.
    covered: u64,
    /// Credit for copies that open the window, in hundredths of a copy.
    window_credit: u32,
    /// Consecutive segments of one burst that were retransmitted for the first time: the next number, when
    /// the first one had left, and their count.
    run: Option<(Sn, Ts, u8)>,
}

/// Credit that an arriving segment adds, and the largest credit, in hundredths of a copy.
const WINDOW_CREDIT: (u32, u32) = (3, 800);

impl RedundantRetransmits {
    pub(crate) fn new(now: Micros) -> Self {
        let loss_rate = LossRate::new(now, PRIOR_SEGMENTS);
        Self {
            loss_rate,
            record: None,
            groups: VecDeque::new(),
            all_lost: 0,
            adjacent: 0,
            last_lost: None,
            covered: 0,
            window_credit: WINDOW_CREDIT.1,
            run: None,
        }
    }

    /// `sn`, which had left at `ts`, is retransmitted for the first time. Returns whether it belongs to a
    /// long run of a burst.
    pub(crate) fn is_in_long_run(&mut self, sn: Sn, ts: Ts) -> bool {
        let goes_on = |(next, began, _): &(Sn, Ts, u8)| {
            *next == sn && (0..=BURST_TIME).contains(&ts.since(*began))
        };
        let before = self.run.filter(goes_on);
        let (began, count) =
            before.map_or((ts, 1), |(_, began, count)| (began, count.saturating_add(1)));
        self.run = Some((sn.advance(1), began, count));
        count > MAX_COPIED_RUN
    }

    /// `sn` leaves for the first time.
    pub(crate) fn on_sent(&mut self, now: Micros, sn: Sn) {
        self.loss_rate.on_sent(now);
        if let Some(record) = &mut self.record {
            record.on_sent(sn);
        }
    }

    /// The only transmission of `sn` was lost. For `xmit_seq` see [`SentSegment::xmit_seq`].
    ///
    /// [`SentSegment::xmit_seq`]: crate::core::recovery::sent::SentSegment::xmit_seq
    pub(crate) fn on_lost(&mut self, now: Micros, sn: Sn, xmit_seq: u64) {
        self.loss_rate.on_lost(now);
        let before = self.last_lost.replace((sn, xmit_seq));
        if before.is_none_or(|(_, before)| before + 1 != xmit_seq) {
            let is_adjacent = before.is_some_and(|(before, _)| before.advance(1) == sn);
            self.adjacent = self.adjacent << 1 | u64::from(is_adjacent);
        }
        if let Some(record) = &mut self.record {
            record.on_lost(sn);
        }
    }

    /// The loss of `sn` was spurious.
    pub(crate) fn on_spurious(&mut self, now: Micros, sn: Sn) {
        self.loss_rate.on_spurious(now);
        self.forget_adjacent();
        if let Some(record) = &mut self.record {
            record.take_back(sn);
        }
    }

    /// `sn` arrived, but its ACK was lost.
    pub(crate) fn on_ack_lost(&mut self, now: Micros, sn: Sn) {
        self.loss_rate.on_ack_lost(now);
        self.forget_adjacent();
        if let Some(record) = &mut self.record {
            record.take_back(sn);
        }
    }

    /// Takes back the latest loss in a row, since that segment arrived.
    fn forget_adjacent(&mut self) {
        self.adjacent &= self.adjacent.wrapping_sub(1);
    }

    /// A cumulative acknowledgement arrived; `acked`: the oldest segment that it covers has an ACK of its
    /// own.
    pub(crate) fn on_una(&mut self, acked: bool) {
        self.covered = self.covered << 1 | u64::from(!acked);
    }

    /// Whether the peer acknowledges each segment. If so, a missing ACK was lost.
    pub(crate) fn peer_acks_each(&self) -> bool {
        self.covered.count_ones() <= u64::BITS / 2
    }

    /// Copies after the first that the loss rate asks for.
    pub(crate) fn further_copies(&self) -> u8 {
        further_copies_at(self.loss_rate.per_million())
    }

    /// Drops the probes whose burst is over and returns how many. `is_over` takes [`CopyPlan::until_acked`].
    pub(crate) fn end_bursts(&mut self, is_over: impl Fn(u64) -> bool) -> u32 {
        let plans = self.groups.iter_mut().map(|group| &mut group.plan);
        let over = plans.filter(|plan| plan.probes > 0 && plan.until_acked.is_some_and(&is_over));
        over.map(|plan| {
            let dropped = mem::take(&mut plan.probes).min(plan.left);
            plan.left -= dropped;
            u32::from(dropped)
        })
        .sum()
    }

    /// `count` segments arrived.
    pub(crate) fn on_newly_acked(&mut self, count: u32) {
        let credit = self.window_credit.saturating_add(count.saturating_mul(WINDOW_CREDIT.0));
        self.window_credit = credit.min(WINDOW_CREDIT.1);
    }

    /// Whether the credit allows a copy that opens the window.
    pub(crate) fn has_window_credit(&self) -> bool {
        self.window_credit >= 100
    }

    /// A copy that opens the window leaves.
    pub(crate) fn take_window_credit(&mut self) {
        self.window_credit = self.window_credit.saturating_sub(100);
    }

    /// The first copy of `sn` leaves with timestamp `ts`; `plan` describes the others.
    pub(crate) fn on_first_copy(&mut self, now: Micros, sn: Sn, ts: Ts, plan: CopyPlan) {
        if self.remove(sn) {
            self.all_lost = self.all_lost << 1 | 1;
        }
        if plan.left == 0 {
            return;
        }
        if self.groups.len() == MAX_GROUPS {
            self.groups.pop_front();
        }
        let due = now.add_micros(plan.spacing);
        queue::push(&mut self.groups, Group { sn, first_ts: ts, due, plan });
    }

    /// Frees all but the loss rate, while nothing is in flight.
    pub(crate) fn release_memory(&mut self) {
        self.groups = VecDeque::new();
    }

    /// The segment with a copy due.
    pub(crate) fn due_copy(&self, now: Micros) -> Option<Sn> {
        let due = |group: &&Group| group.plan.left > 0 && group.due <= now;
        self.groups.iter().find(due).map(|group| group.sn)
    }

    /// Another copy of `sn` leaves.
    pub(crate) fn on_further_copy(&mut self, now: Micros, sn: Sn) {
        let Some(group) = self.groups.iter_mut().find(|group| group.sn == sn) else { return };
        group.due = now.add_micros(group.plan.spacing);
        group.plan.left = group.plan.left.saturating_sub(1);
    }

    /// When the next copy leaves.
    pub(crate) fn deadline(&self) -> Option<Micros> {
        self.groups.iter().filter(|group| group.plan.left > 0).map(|group| group.due).min()
    }

    /// Whether a transmission of `sn` with this timestamp is one of its copies. If so it arrived, and the
    /// retransmission was not spurious.
    pub(crate) fn is_copy(&self, sn: Sn, ts: Ts) -> bool {
        self.groups.iter().any(|group| group.sn == sn && ts.since(group.first_ts) >= 0)
    }

    /// Whether `sn` was retransmitted once, less than `min_rtt` microseconds before `ts`.
    pub(crate) fn is_younger(&self, sn: Sn, ts: Ts, min_rtt: u64) -> bool {
        let group = self.groups.iter().find(|group| group.sn == sn && group.plan.is_first);
        let age = group.and_then(|group| u64::try_from(ts.since(group.first_ts)).ok());
        // Timestamps are whole milliseconds.
        age.is_some_and(|age| (age + 1) * 1_000 < min_rtt)
    }

    /// A retransmitted segment was acknowledged. Returns whether it had copies.
    pub(crate) fn on_acked(&mut self, sn: Sn) -> bool {
        let had_copies = self.remove(sn);
        if had_copies {
            self.all_lost <<= 1;
        }
        had_copies
    }

    fn remove(&mut self, sn: Sn) -> bool {
        let before = self.groups.len();
        self.groups.retain(|group| group.sn != sn);
        self.groups.len() < before
    }

    /// Whether losses come in bursts: segments in a row are lost, or all copies of a retransmission are lost
    /// at more than twice the rate that the loss rate predicts, plus half a percent.
    pub(crate) fn loses_in_bursts(&self) -> bool {
        // A lost ACK counts as a lost group too.
        let rate = u64::from(self.loss_rate.per_million_with_acks());
        let predicted =
            (0..self.further_copies()).fold(rate, |product, _| product * rate / MILLION);
        share(self.all_lost) > 2 * predicted + 5_000 || self.loses_in_a_row()
    }

    /// Whether segments in a row are lost more often than by chance, so that bursts last longer than the time
    /// between messages.
    pub(crate) fn loses_in_a_row(&self) -> bool {
        let rate = u64::from(self.loss_rate.per_million_with_acks());
        share(self.adjacent) > 2 * rate + 150_000
    }
}

/// Set bits per million.
fn share(bits: u64) -> u64 {
    u64::from(bits.count_ones()) * MILLION / u64::from(u64::BITS)
}

/// Copies after the first for this loss rate, per million.
fn further_copies_at(loss_rate: u32) -> u8 {
    match loss_rate {
        rate if rate < TWO_COPIES_FROM => 0,
        rate if rate <= THREE_COPIES_ABOVE => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: u64 = 50_000;

    /// State after a second with `lost` of 1,000 segments lost.
    fn at_loss(lost: u32) -> RedundantRetransmits {
        let mut redundant = RedundantRetransmits::new(Micros(0));
        (PRIOR_SEGMENTS..1_000).for_each(|_| redundant.loss_rate.on_sent(Micros(0)));
        (0..lost).for_each(|_| redundant.loss_rate.on_lost(Micros(0)));
        redundant
    }

    fn plan(left: u8) -> CopyPlan {
        CopyPlan { left, probes: 0, spacing: 0, is_first: true, until_acked: None }
    }

    /// All transmissions of a segment are lost.
    fn lose_group(redundant: &mut RedundantRetransmits, sn: u32) {
        (0..2).for_each(|_| redundant.on_first_copy(Micros(0), Sn(sn), Ts(0), plan(1)));
        redundant.on_acked(Sn(sn));
    }

    #[test]
    fn una_that_comes_before_a_round_trip_shows_that_the_ack_was_lost() {
        let mut redundant = at_loss(200);
        let retransmit = |redundant: &mut RedundantRetransmits, sn, is_first| {
            let plan = CopyPlan { is_first, ..plan(1) };
            redundant.on_first_copy(Micros(0), Sn(sn), Ts(100), plan);
        };
        for (is_first, millis, spurious) in
            [(true, 48, true), (true, 49, false), (true, 80, false), (false, 10, false)]
        {
            retransmit(&mut redundant, 7, is_first);
            assert_eq!(redundant.is_younger(Sn(7), Ts(100 + millis), RTT), spurious, "{millis}");
            redundant.on_acked(Sn(7));
            assert!(!redundant.is_younger(Sn(7), Ts(101), RTT), "it is no longer in flight");
        }
    }

    #[test]
    fn number_of_copies_follows_the_loss_rate() {
        for (lost, further) in [(0, 0), (4, 0), (5, 1), (50, 1), (120, 1), (121, 2), (300, 2)] {
            assert_eq!(at_loss(lost).further_copies(), further, "{lost} of 1,000");
        }
    }

    #[test]
    fn copies_that_die_more_often_than_the_loss_rate_predicts_die_together() {
        let mut redundant = at_loss(200);
        let save_group = |redundant: &mut RedundantRetransmits, sn| {
            redundant.on_first_copy(Micros(0), Sn(sn), Ts(0), plan(2));
            redundant.on_acked(Sn(sn));
        };
        (0..100).for_each(|sn| save_group(&mut redundant, sn));
        assert!(!redundant.loses_in_bursts());
        // Every copy of two in 64 groups was lost: three percent, where 0.8 % are expected.
        (0..2).for_each(|sn| lose_group(&mut redundant, sn));
        assert!(redundant.loses_in_bursts());
        (0..64).for_each(|sn| save_group(&mut redundant, sn));
        assert!(!redundant.loses_in_bursts());
    }

    /// Also a run that begins with the first number and at the first timestamp.
    #[test]
    fn long_run_begins_with_the_ninth_segment_in_a_row_that_left_within_2_ms() {
        for (step, ms, is_long) in [(1, 0, true), (1, 2, true), (1, 3, false), (2, 0, false)] {
            let mut redundant = at_loss(50);
            for i in 0..8 {
                assert!(!redundant.is_in_long_run(Sn(step * i), Ts(0)), "segment {i}");
            }
            let ninth = redundant.is_in_long_run(Sn(step * 8), Ts(ms));
            assert_eq!(ninth, is_long, "steps of {step}, {ms} ms after the first");
        }
    }

    #[test]
    fn record_holds_no_segment_that_arrived() {
        let spurious = RedundantRetransmits::on_spurious;
        for arrived in [spurious, RedundantRetransmits::on_ack_lost] {
            let mut redundant = at_loss(50);
            redundant.record = Some(LossRecord::new(Sn(0)));
            (0..9).for_each(|sn| redundant.on_sent(Micros(0), Sn(sn)));
            [3, 7].iter().for_each(|&sn| redundant.on_lost(Micros(0), Sn(sn), u64::from(2 * sn)));
            let lost =
                |redundant: &RedundantRetransmits| redundant.record.as_ref().unwrap().lost(0, 9);
            assert_eq!(lost(&redundant), (2, 9));
            arrived(&mut redundant, Micros(0), Sn(3));
            assert_eq!(lost(&redundant), (1, 9));
        }
    }

    #[test]
    fn segments_lost_in_a_row_are_a_burst() {
        let mut redundant = at_loss(50);
        let lose_pair = |redundant: &mut RedundantRetransmits, sn| {
            (sn..sn + 2).for_each(|sn| redundant.on_lost(Micros(0), Sn(sn), u64::from(2 * sn)));
        };
        // At 5 % one loss in 20 follows another: by chance fewer than 16 of 64.
        (1..10).for_each(|i| lose_pair(&mut redundant, 4 * i));
        assert!(!redundant.loses_in_a_row());
        (10..40).for_each(|i| lose_pair(&mut redundant, 4 * i));
        assert!(redundant.loses_in_a_row() && redundant.loses_in_bursts());
    }

    #[test]
    fn segments_of_one_lost_datagram_are_no_burst() {
        let mut redundant = at_loss(50);
        for sn in 0..192 {
            // Three segments per datagram; every other datagram arrives.
            let datagram = u64::from(sn / 3) * 10;
            redundant.on_lost(Micros(0), Sn(sn + sn / 3 * 3), datagram + u64::from(sn % 3));
        }
        assert!(!redundant.loses_in_a_row());
    }

    #[test]
    fn losses_that_were_none_are_no_burst() {
        let mut redundant = at_loss(50);
        (1..41).for_each(|sn| redundant.on_lost(Micros(0), Sn(sn), u64::from(2 * sn)));
        assert!(redundant.loses_in_a_row());
        (1..41).for_each(|sn| redundant.on_spurious(Micros(0), Sn(sn)));
        assert!(!redundant.loses_in_a_row());
    }

    #[test]
    fn peer_whose_acks_are_cumulative_loses_none() {
        let mut redundant = at_loss(50);
        (0..640).for_each(|i| redundant.on_una(i % 10 != 0));
        assert!(redundant.peer_acks_each());
        (0..640).for_each(|i| redundant.on_una(i % 10 == 0));
        assert!(!redundant.peer_acks_each());
    }

    #[test]
    fn copies_probe_until_the_burst_ends() {
        let mut redundant = at_loss(50);
        for (sn, until_acked) in [(1, Some(7)), (2, Some(8)), (3, None)] {
            let probes = if until_acked.is_some() { 3 } else { 0 };
            let plan = CopyPlan { probes, spacing: 10_000, until_acked, ..plan(BURST_COPIES) };
            redundant.on_first_copy(Micros(0), Sn(sn), Ts(0), plan);
        }
        assert_eq!(redundant.deadline(), Some(Micros(10_000)));
        assert_eq!(redundant.end_bursts(|lost| lost < 7), 0);
        assert_eq!(redundant.end_bursts(|lost| lost < 8), 3, "the one for the loss rate stays");
        (1..=3).for_each(|sn| redundant.on_further_copy(Micros(10_000), Sn(sn)));
        assert_eq!(redundant.deadline(), Some(Micros(20_000)));
        redundant.on_acked(Sn(3));
        assert_eq!(redundant.due_copy(Micros(20_000)), Some(Sn(2)));
        redundant.on_further_copy(Micros(20_000), Sn(2));
        assert_eq!(redundant.end_bursts(|_| true), 2);
        assert_eq!((redundant.deadline(), redundant.end_bursts(|_| true)), (None, 0));
    }

    #[test]
    fn acked_segment_has_no_further_copies() {
        let mut redundant = at_loss(50);
        redundant.on_first_copy(Micros(0), Sn(1), Ts(9), plan(1));
        assert!(redundant.is_copy(Sn(1), Ts(9)) && !redundant.is_copy(Sn(1), Ts(8)));
        redundant.on_acked(Sn(1));
        assert_eq!((redundant.deadline(), redundant.due_copy(Micros(1))), (None, None));
        assert!(!redundant.is_copy(Sn(1), Ts(9)));
    }

    #[test]
    fn remembered_groups_are_bounded() {
        let mut redundant = at_loss(50);
        for sn in 0..1_000 {
            redundant.on_first_copy(Micros(0), Sn(sn), Ts(0), plan(1));
        }
        assert_eq!(redundant.groups.len(), MAX_GROUPS);
    }
}
