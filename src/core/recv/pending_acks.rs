//! Acknowledgements that wait to be sent.
//!
//! In-order data needs no entry of its own: `una`, which every segment carries, covers it. What
//! remains is one entry per number received ahead of a gap, one for the newest arrival, whose
//! time stamp gives the peer its RTT sample, and one for data that was here already.
//!
//! What is ahead of a gap is told once more, where there is room in a datagram that leaves anyway:
//! if the first one is lost, the peer would repeat all that it named. Never in a datagram of its
//! own, which some peers would count as a sign of loss, and no more bytes of it than the payloads
//! that arrived: whoever gives someone else's address gets no more sent there than they send.

use std::collections::VecDeque;

use crate::core::clock::Micros;
use crate::core::segment::HEADER_LEN;
use crate::core::seq::{Sn, Ts};

/// How many of the latest told ones are told again at most.
const MAX_RESENT_ACKS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) sn: Sn,
    pub(crate) ts: Ts,
}

#[derive(Debug, Default)]
pub(crate) struct PendingAcks {
    /// Numbers received ahead of a gap, each once: the receiver stores a number only once.
    out_of_order: Vec<Ack>,
    /// Those of them that were told once.
    resend: VecDeque<Ack>,
    /// Bytes that may be spent on that.
    resend_budget: usize,
    /// The latest repetition of something already received.
    repeated: Option<Ack>,
    latest: Option<Ack>,
    /// Arrivals since the last flush, for the policy.
    arrivals: u32,
    since: Option<Micros>,
    /// Something arrived out of order or twice: the sender should hear of it at once.
    immediate: bool,
}

impl PendingAcks {
    /// The next number in order arrived.
    pub(crate) fn on_in_order(&mut self, now: Micros, ack: Ack) {
        self.arrived(now);
        self.latest = Some(ack);
    }

    /// A number beyond a gap arrived and was stored, or arrived again after it was acknowledged;
    /// `una` is the next in order, `payload` the bytes that came with it.
    pub(crate) fn out_of_order(&mut self, now: Micros, una: Sn, ack: Ack, payload: usize) {
        self.arrived(now);
        self.resend_budget = (self.resend_budget + payload).min(MAX_RESENT_ACKS * HEADER_LEN);
        if self.out_of_order.len() == self.out_of_order.capacity() {
            // While nothing can be sent, gaps that have closed must not pile up.
            self.out_of_order.retain(|ack| ack.sn.since(una) >= 0);
        }
        self.out_of_order.push(ack);
        self.latest = Some(ack);
        self.immediate = true;
    }

    /// Something that was here already arrived again, or a probe that looks like it.
    pub(crate) fn repeated(&mut self, now: Micros, ack: Ack) {
        self.arrived(now);
        self.repeated = Some(ack);
        self.immediate = true;
    }

    fn arrived(&mut self, now: Micros) {
        self.arrivals = self.arrivals.saturating_add(1);
        self.since.get_or_insert(now);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.since.is_none()
    }

    /// What waits is to leave at once.
    pub(crate) fn flush(&mut self) {
        self.immediate = !self.is_empty();
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.immediate
    }

    pub(crate) fn arrivals(&self) -> u32 {
        self.arrivals
    }

    /// When the oldest of them arrived.
    pub(crate) fn since(&self) -> Option<Micros> {
        self.since
    }

    /// Takes the next ones to send, at most `room`; those below `una` are covered already. The
    /// newest comes last of all.
    pub(crate) fn take(&mut self, una: Sn, room: usize, mut emit: impl FnMut(Ack)) {
        let newest = self.latest;
        self.out_of_order.retain(|ack| ack.sn.since(una) >= 0 && Some(*ack) != newest);
        let mut left = room - self.resend_acks(una, room, &mut emit);
        let take = self.out_of_order.len().min(left);
        let told = newest.filter(|ack| take < left && ack.sn.since(una) >= 0);
        let told = self.out_of_order.drain(..take).inspect(|ack| emit(*ack)).chain(told);
        self.resend.extend(told);
        let surplus = self.resend.len().saturating_sub(MAX_RESENT_ACKS);
        self.resend.drain(..surplus);
        left -= take;
        for slot in [&mut self.repeated, &mut self.latest] {
            if left > 0
                && self.out_of_order.is_empty()
                && let Some(ack) = slot.take()
            {
                emit(ack);
                left -= 1;
            }
        }
        if self.out_of_order.is_empty() && self.repeated.is_none() && self.latest.is_none() {
            // A burst behind one gap can be a window long; idle conversations keep nothing of it.
            if self.out_of_order.capacity() > 128 {
                self.out_of_order = Vec::new();
            }
            (self.arrivals, self.since, self.immediate) = (0, None, false);
        }
    }

    /// Tells once more what has not been covered since, as far as there is room beside the others.
    fn resend_acks(&mut self, una: Sn, room: usize, emit: &mut impl FnMut(Ack)) -> usize {
        // Some senders count each acknowledgement as a sign of loss: only beside one that is news.
        let news = self.latest.is_some_and(|ack| ack.sn.since(una) >= 0);
        if self.resend.is_empty() || (self.out_of_order.is_empty() && !news) {
            return 0;
        }
        self.resend.retain(|ack| ack.sn.since(una) >= 0);
        let room = room.saturating_sub(self.len()).min(self.resend_budget / HEADER_LEN);
        let count = self.resend.len().min(room);
        self.resend_budget -= count * HEADER_LEN;
        // The latest: they may not have arrived yet, while the peer has judged the oldest.
        let skipped = self.resend.len() - count;
        self.resend.drain(skipped..).for_each(emit);
        count
    }

    pub(crate) fn holds_memory(&self) -> bool {
        self.is_empty() && self.out_of_order.capacity() + self.resend.capacity() > 0
    }

    pub(crate) fn release_memory(&mut self) {
        if self.is_empty() {
            (self.out_of_order, self.resend) = (Vec::new(), VecDeque::new());
        }
    }

    /// Those that wait.
    pub(crate) fn len(&self) -> usize {
        self.out_of_order.len()
            + usize::from(self.repeated.is_some())
            + usize::from(self.latest.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(sn: u32) -> Ack {
        Ack { sn: Sn(sn), ts: Ts(sn + 1_000) }
    }

    #[test]
    fn what_is_ahead_is_told_twice_while_it_is() {
        let mut acks = PendingAcks::default();
        for sn in [5, 6, 7] {
            acks.out_of_order(Micros(0), Sn(0), ack(sn), 1_376);
        }
        assert_eq!(taken(&mut acks, 3, 58), [5, 6, 7]);
        assert!(acks.is_empty(), "nothing leaves for their sake");
        acks.out_of_order(Micros(0), Sn(3), ack(9), 1_376);
        assert_eq!(taken(&mut acks, 3, 58), [5, 6, 7, 9]);
        acks.out_of_order(Micros(0), Sn(3), ack(10), 1_376);
        assert_eq!(taken(&mut acks, 3, 58), [9, 10], "twice is enough");
        acks.on_in_order(Micros(0), ack(3));
        assert_eq!(taken(&mut acks, 11, 58), [3], "una says it all");
    }

    #[test]
    fn what_was_told_before_leaves_room_for_what_was_not() {
        let mut acks = PendingAcks::default();
        (10..16).for_each(|sn| acks.out_of_order(Micros(0), Sn(0), ack(sn), 1_376));
        assert_eq!(taken(&mut acks, 0, 6), [10, 11, 12, 13, 14, 15]);
        (20..24).for_each(|sn| acks.out_of_order(Micros(0), Sn(0), ack(sn), 1_376));
        assert_eq!(taken(&mut acks, 0, 6), [14, 15, 20, 21, 22, 23]);
        (30..300).for_each(|sn| acks.out_of_order(Micros(0), Sn(0), ack(sn), 1_376));
        assert_eq!(taken(&mut acks, 0, 300).len(), 270 + 8);
        acks.repeated(Micros(0), ack(1));
        assert_eq!(taken(&mut acks, 0, 300), [1], "that is no news");
        acks.out_of_order(Micros(0), Sn(0), ack(400), 0);
        assert_eq!(taken(&mut acks, 0, 300).len(), MAX_RESENT_ACKS - 8 + 1);
    }

    #[test]
    fn no_more_is_told_again_than_came() {
        let mut acks = PendingAcks::default();
        let mut told = 0;
        for sn in 1..=100 {
            acks.out_of_order(Micros(0), Sn(0), ack(sn), 10);
            told += taken(&mut acks, 0, 58).len();
        }
        assert_eq!(told, 100 + 100 * 10 / HEADER_LEN);
    }

    fn taken(acks: &mut PendingAcks, una: u32, room: usize) -> Vec<u32> {
        let mut out = Vec::new();
        acks.take(Sn(una), room, |ack| out.push(ack.sn.0));
        out
    }

    #[test]
    fn in_order_data_costs_one_ack() {
        let mut acks = PendingAcks::default();
        for sn in 0..100 {
            acks.on_in_order(Micros(5), ack(sn));
        }
        assert_eq!(
            (acks.arrivals(), acks.since(), acks.is_urgent()),
            (100, Some(Micros(5)), false)
        );
        assert_eq!(taken(&mut acks, 100, 58), [99]);
        assert!(acks.is_empty());
    }

    #[test]
    fn each_number_beyond_a_gap_is_told_and_the_newest_is_last() {
        let mut acks = PendingAcks::default();
        for sn in [5, 7, 6] {
            acks.out_of_order(Micros(0), Sn(0), ack(sn), 1_376);
        }
        acks.repeated(Micros(0), ack(1));
        assert!(acks.is_urgent());
        assert_eq!(taken(&mut acks, 3, 58), [5, 7, 1, 6]);
    }

    #[test]
    fn what_una_covers_is_not_told_again() {
        let mut acks = PendingAcks::default();
        for sn in [5, 6, 9] {
            acks.out_of_order(Micros(0), Sn(0), ack(sn), 1_376);
        }
        acks.on_in_order(Micros(1), ack(4));
        assert_eq!(taken(&mut acks, 7, 58), [9, 4]);
    }

    #[test]
    fn a_small_datagram_leaves_the_rest_for_the_next() {
        let mut acks = PendingAcks::default();
        for sn in 10..15 {
            acks.out_of_order(Micros(0), Sn(0), ack(sn), 1_376);
        }
        assert_eq!(taken(&mut acks, 0, 2), [10, 11]);
        assert_eq!(taken(&mut acks, 0, 2), [12, 13]);
        assert!(!acks.is_empty());
        assert_eq!(taken(&mut acks, 0, 2), [13, 14], "one of them for the second time");
        assert!(acks.is_empty());
    }
}
