//! Redundant retransmissions: further copies of a retransmission, each in a datagram of its own.
//!
//! A retransmission that is lost as well costs a flow of messages another round trip, and holds up
//! all messages after it. So where losses are frequent, two or three copies leave: with independent
//! losses of 20 %, one retransmission in 125 is lost instead of one in 5. How many, the
//! [loss rate](LossRate) decides; how far apart, whether copies die together. kcp-go sends one copy.
//!
//! The first copy is an ordinary retransmission (`sender.rs`); this module owns those after it.

use std::collections::VecDeque;

use crate::core::clock::Micros;
use crate::core::redundancy::loss_rate::LossRate;
use crate::core::redundancy::loss_record::LossRecord;
use crate::core::seq::{Sn, Ts};
use crate::util::queue;

/// Loss rate from which a second copy leaves, per million.
const TWO_COPIES_FROM: u32 = 5_000;
/// Loss rate above which a third copy leaves, per million.
const THREE_COPIES_ABOVE: u32 = 120_000;
/// Time between copies where losses come in bursts, microseconds; at most a quarter of the RTT.
const BURST_SPACING: u64 = 20_000;
/// Segments that count as sent and not lost when the estimate begins: the first two losses alone
/// are below [`TWO_COPIES_FROM`].
const PRIOR_SEGMENTS: u32 = 512;
/// Consecutive segments of one burst beyond which their retransmissions leave once: a queue was too short for
/// the burst, and copies would fill it again. Fewer are as likely lost at random.
const MAX_COPIED_RUN: u8 = 8;
/// A burst: segments that leave within this time, milliseconds.
const BURST_TIME: i32 = 2;
/// Retransmissions with copies that are remembered at most.
const MAX_GROUPS: usize = 64;
const MILLION: u64 = 1_000_000;

/// A retransmission and its further copies, until it is acknowledged or lost.
#[derive(Clone, Copy, Debug)]
struct Group {
    sn: Sn,
    /// Wire timestamp of the first copy.
    first_ts: Ts,
    /// It is the first retransmission of the segment.
    is_first: bool,
    /// Copies that have not left.
    left: u8,
    /// When the next copy leaves.
    due: Micros,
}

/// Loss rate and copies of one connection. Exists from the first retransmission on.
#[derive(Debug)]
pub(crate) struct RedundantRetransmits {
    pub(crate) loss_rate: LossRate,
    /// `Some` where redundancy depends on the losses.
    pub(crate) record: Option<LossRecord>,
    /// In order of the first copy, at most [`MAX_GROUPS`].
    groups: VecDeque<Group>,
    /// What became of the latest 64 groups, the newest in the lowest bit: 1 where every copy was
    /// lost.
    all_lost: u64,
    /// Hundredths of a copy that may open a window: three for each segment that arrives.
    window_credit: u32,
    /// Consecutive segments of one burst that were retransmitted for the first time: the number behind the
    /// last, when the first had left, and how many.
    run: (Sn, Ts, u8),
}

/// Hundredths of a copy that a segment brings, and that may be saved.
const WINDOW_CREDIT: (u32, u32) = (3, 800);

impl RedundantRetransmits {
    pub(crate) fn new(now: Micros) -> Self {
        let loss_rate = LossRate::new(now, PRIOR_SEGMENTS);
        Self {
            loss_rate,
            record: None,
            groups: VecDeque::new(),
            all_lost: 0,
            window_credit: WINDOW_CREDIT.1,
            run: (Sn(0), Ts(0), 0),
        }
    }

    /// `sn`, which had left at `ts`, is retransmitted for the first time. Returns whether it is one of many of a
    /// burst.
    pub(crate) fn is_in_long_run(&mut self, sn: Sn, ts: Ts) -> bool {
        let (next, began, count) = self.run;
        let goes_on = count > 0 && next == sn && (0..=BURST_TIME).contains(&ts.since(began));
        let (began, count) = if goes_on { (began, count.saturating_add(1)) } else { (ts, 1) };
        self.run = (sn.advance(1), began, count);
        count > MAX_COPIED_RUN
    }

    /// `sn` leaves for the first time.
    pub(crate) fn on_sent(&mut self, now: Micros, sn: Sn) {
        self.loss_rate.on_sent(now);
        if let Some(record) = &mut self.record {
            record.on_sent(sn);
        }
    }

    /// The only transmission of `sn` was lost.
    pub(crate) fn on_lost(&mut self, now: Micros, sn: Sn) {
        self.loss_rate.on_lost(now);
        if let Some(record) = &mut self.record {
            record.on_lost(sn);
        }
    }

    /// It was not.
    pub(crate) fn on_spurious(&mut self, now: Micros, sn: Sn) {
        self.loss_rate.on_spurious(now);
        if let Some(record) = &mut self.record {
            record.take_back(sn);
        }
    }

    /// It arrived, and its ACK was lost.
    pub(crate) fn on_ack_lost(&mut self, now: Micros, sn: Sn) {
        self.loss_rate.on_ack_lost(now);
        if let Some(record) = &mut self.record {
            record.take_back(sn);
        }
    }

    /// Copies besides the first that the loss rate asks for.
    pub(crate) fn further_copies(&self) -> u8 {
        further_copies_at(self.loss_rate.per_million())
    }

    /// So many segments arrived.
    pub(crate) fn on_newly_acked(&mut self, count: u32) {
        let credit = self.window_credit.saturating_add(count.saturating_mul(WINDOW_CREDIT.0));
        self.window_credit = credit.min(WINDOW_CREDIT.1);
    }

    /// Whether a copy may leave that opens the window.
    pub(crate) fn has_window_credit(&self) -> bool {
        self.window_credit >= 100
    }

    /// A copy that opens the window leaves.
    pub(crate) fn take_window_credit(&mut self) {
        self.window_credit = self.window_credit.saturating_sub(100);
    }

    /// The first copy of `sn` leaves now, with timestamp `ts`, and `copies` more are to leave.
    /// `is_first`: it was not retransmitted before. `rtt` in microseconds.
    pub(crate) fn on_first_copy(
        &mut self,
        now: Micros,
        (sn, ts): (Sn, Ts),
        (copies, is_first): (u8, bool),
        rtt: u64,
    ) {
        if self.remove(sn) {
            self.all_lost = self.all_lost << 1 | 1;
        }
        if copies == 0 {
            return;
        }
        if self.groups.len() == MAX_GROUPS {
            self.groups.pop_front();
        }
        let due = now.add_micros(self.spacing(copies, rtt));
        queue::push(&mut self.groups, Group { sn, first_ts: ts, is_first, left: copies, due });
    }

    /// Frees what is not the loss rate, while nothing is in flight.
    pub(crate) fn release_memory(&mut self) {
        self.groups = VecDeque::new();
    }

    /// The segment of which a further copy is to leave now.
    pub(crate) fn due_copy(&self, now: Micros) -> Option<Sn> {
        let due = |group: &&Group| group.left > 0 && group.due <= now;
        self.groups.iter().find(due).map(|group| group.sn)
    }

    /// A further copy of `sn` leaves. `rtt` in microseconds.
    pub(crate) fn on_further_copy(&mut self, now: Micros, sn: Sn, rtt: u64) {
        let Some(index) = self.groups.iter().position(|group| group.sn == sn) else { return };
        let copies = self.groups[index].left;
        let due = now.add_micros(self.spacing(copies, rtt));
        let group = &mut self.groups[index];
        (group.left, group.due) = (copies.saturating_sub(1), due);
    }

    /// When the next copy leaves.
    pub(crate) fn deadline(&self) -> Option<Micros> {
        self.groups.iter().filter(|group| group.left > 0).map(|group| group.due).min()
    }

    /// Whether a transmission of `sn` with this timestamp is one of its copies: it arrived, and the
    /// retransmission was not spurious.
    pub(crate) fn is_copy(&self, sn: Sn, ts: Ts) -> bool {
        self.groups.iter().any(|group| group.sn == sn && ts.since(group.first_ts) >= 0)
    }

    /// Whether `sn` was retransmitted once, less than `min_rtt` microseconds before `ts`.
    pub(crate) fn is_younger(&self, sn: Sn, ts: Ts, min_rtt: u64) -> bool {
        let group = self.groups.iter().find(|group| group.sn == sn && group.is_first);
        let age = group.and_then(|group| u64::try_from(ts.since(group.first_ts)).ok());
        // Timestamps are whole milliseconds.
        age.is_some_and(|age| (age + 1) * 1_000 < min_rtt)
    }

    /// A retransmitted segment was acknowledged. Returns whether it had further copies.
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

    /// Whether copies that leave at once are lost one by one, not together.
    pub(crate) fn losses_are_independent(&self, rtt: u64) -> bool {
        self.spacing(self.further_copies(), rtt) == 0
    }

    /// Time between copies, microseconds: zero while they die independently, which is the case if
    /// no more groups die than twice what the loss rate predicts, and half a percent.
    fn spacing(&self, copies: u8, rtt: u64) -> u64 {
        // A group whose ACK was lost counts as dead as well.
        let rate = u64::from(self.loss_rate.per_million_with_acks());
        let predicted = (0..copies).fold(rate, |product, _| product * rate / MILLION);
        let seen = u64::from(self.all_lost.count_ones()) * MILLION / u64::from(u64::BITS);
        if seen > 2 * predicted + 5_000 { BURST_SPACING.min(rtt / 4) } else { 0 }
    }
}

/// Copies besides the first for this loss rate, per million.
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

    /// After a second in which `lost` of 1,000 segments were lost.
    fn at_loss(lost: u32) -> RedundantRetransmits {
        let mut redundant = RedundantRetransmits::new(Micros(0));
        (PRIOR_SEGMENTS..1_000).for_each(|_| redundant.loss_rate.on_sent(Micros(0)));
        (0..lost).for_each(|_| redundant.loss_rate.on_lost(Micros(0)));
        redundant
    }

    /// Times at which further copies of a group leave.
    fn copies(redundant: &mut RedundantRetransmits, sn: u32) -> Vec<u64> {
        let further = redundant.further_copies();
        redundant.on_first_copy(Micros(0), (Sn(sn), Ts(0)), (further, true), RTT);
        let mut times = Vec::new();
        while let Some(at) = redundant.deadline() {
            assert_eq!(redundant.due_copy(at), Some(Sn(sn)));
            redundant.on_further_copy(at, Sn(sn), RTT);
            times.push(at.0);
        }
        times
    }

    #[test]
    fn una_that_comes_before_a_round_trip_shows_that_the_ack_was_lost() {
        let mut redundant = at_loss(200);
        let retransmit = |redundant: &mut RedundantRetransmits, sn, is_first| {
            redundant.on_first_copy(Micros(0), (Sn(sn), Ts(100)), (1, is_first), RTT);
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
    fn copies_leave_at_once_while_losses_are_independent() {
        let mut redundant = at_loss(200);
        for sn in 0..100 {
            assert_eq!(copies(&mut redundant, sn), [0, 0]);
            redundant.on_acked(Sn(sn));
        }
    }

    #[test]
    fn copies_are_spaced_where_they_die_together() {
        let mut redundant = at_loss(200);
        for _ in 0..3 {
            copies(&mut redundant, 7);
        }
        // Every copy of two groups was lost, of 64: three percent, where 0.8 % are expected.
        assert_eq!(copies(&mut redundant, 7), [12_500, 25_000]);
        for sn in 100..164 {
            copies(&mut redundant, sn);
            redundant.on_acked(Sn(sn));
        }
        assert_eq!(copies(&mut redundant, 200), [0, 0]);
    }

    #[test]
    fn acked_segment_has_no_further_copies() {
        let mut redundant = at_loss(50);
        redundant.on_first_copy(Micros(0), (Sn(1), Ts(9)), (1, true), RTT);
        assert!(redundant.is_copy(Sn(1), Ts(9)) && !redundant.is_copy(Sn(1), Ts(8)));
        redundant.on_acked(Sn(1));
        assert_eq!((redundant.deadline(), redundant.due_copy(Micros(1))), (None, None));
        assert!(!redundant.is_copy(Sn(1), Ts(9)));
    }

    #[test]
    fn remembered_groups_are_bounded() {
        let mut redundant = at_loss(50);
        for sn in 0..1_000 {
            redundant.on_first_copy(Micros(0), (Sn(sn), Ts(0)), (1, true), RTT);
        }
        assert_eq!(redundant.groups.len(), MAX_GROUPS);
    }
}
