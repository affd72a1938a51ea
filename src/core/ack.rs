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

use super::clock::Time;
use super::segment::HEADER;
use super::seq::{Sn, Ts};

/// How many of the latest told ones are told again at most.
const AGAIN: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) sn: Sn,
    pub(crate) ts: Ts,
}

#[derive(Debug, Default)]
pub(crate) struct PendingAcks {
    /// Numbers received ahead of a gap, each once: the receiver stores a number only once.
    ahead: Vec<Ack>,
    /// Those of them that were told once.
    again: VecDeque<Ack>,
    /// Bytes that may be spent on that.
    spare: usize,
    /// The latest repetition of something already received.
    repeated: Option<Ack>,
    newest: Option<Ack>,
    /// Arrivals since the last flush, for the policy.
    arrivals: u32,
    since: Option<Time>,
    /// Something arrived out of order or twice: the sender should hear of it at once.
    urgent: bool,
}

impl PendingAcks {
    /// The next number in order arrived.
    pub(crate) fn in_order(&mut self, now: Time, ack: Ack) {
        self.arrived(now);
        self.newest = Some(ack);
    }

    /// A number beyond a gap arrived and was stored, or arrived again after it was acknowledged;
    /// `una` is the next in order, `payload` the bytes that came with it.
    pub(crate) fn ahead(&mut self, now: Time, una: Sn, ack: Ack, payload: usize) {
        self.arrived(now);
        self.spare = (self.spare + payload).min(AGAIN * HEADER);
        if self.ahead.len() == self.ahead.capacity() {
            // While nothing can be sent, gaps that have closed must not pile up.
            self.ahead.retain(|ack| ack.sn.since(una) >= 0);
        }
        self.ahead.push(ack);
        self.newest = Some(ack);
        self.urgent = true;
    }

    /// Something that was here already arrived again, or a probe that looks like it.
    pub(crate) fn repeated(&mut self, now: Time, ack: Ack) {
        self.arrived(now);
        self.repeated = Some(ack);
        self.urgent = true;
    }

    fn arrived(&mut self, now: Time) {
        self.arrivals = self.arrivals.saturating_add(1);
        self.since.get_or_insert(now);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.since.is_none()
    }

    /// What waits is to leave at once.
    pub(crate) fn hasten(&mut self) {
        self.urgent = !self.is_empty();
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent
    }

    pub(crate) fn arrivals(&self) -> u32 {
        self.arrivals
    }

    /// When the oldest of them arrived.
    pub(crate) fn since(&self) -> Option<Time> {
        self.since
    }

    /// Takes the next ones to send, at most `room`; those below `una` are covered already. The
    /// newest comes last of all.
    pub(crate) fn take(&mut self, una: Sn, room: usize, mut emit: impl FnMut(Ack)) {
        let newest = self.newest;
        self.ahead.retain(|ack| ack.sn.since(una) >= 0 && Some(*ack) != newest);
        let mut left = room - self.tell_again(una, room, &mut emit);
        let take = self.ahead.len().min(left);
        let told = newest.filter(|ack| take < left && ack.sn.since(una) >= 0);
        let told = self.ahead.drain(..take).inspect(|ack| emit(*ack)).chain(told);
        self.again.extend(told);
        let surplus = self.again.len().saturating_sub(AGAIN);
        self.again.drain(..surplus);
        left -= take;
        for slot in [&mut self.repeated, &mut self.newest] {
            if left > 0
                && self.ahead.is_empty()
                && let Some(ack) = slot.take()
            {
                emit(ack);
                left -= 1;
            }
        }
        if self.ahead.is_empty() && self.repeated.is_none() && self.newest.is_none() {
            // A burst behind one gap can be a window long; idle conversations keep nothing of it.
            if self.ahead.capacity() > 128 {
                self.ahead = Vec::new();
            }
            (self.arrivals, self.since, self.urgent) = (0, None, false);
        }
    }

    /// Tells once more what has not been covered since, as far as there is room beside the others.
    fn tell_again(&mut self, una: Sn, room: usize, emit: &mut impl FnMut(Ack)) -> usize {
        // Some senders count each acknowledgement as a sign of loss: only beside one that is news.
        let news = self.newest.is_some_and(|ack| ack.sn.since(una) >= 0);
        if self.again.is_empty() || (self.ahead.is_empty() && !news) {
            return 0;
        }
        self.again.retain(|ack| ack.sn.since(una) >= 0);
        let room = room.saturating_sub(self.len()).min(self.spare / HEADER);
        let count = self.again.len().min(room);
        self.spare -= count * HEADER;
        // The latest: they may not have arrived yet, while the peer has judged the oldest.
        let skipped = self.again.len() - count;
        self.again.drain(skipped..).for_each(emit);
        count
    }

    pub(crate) fn holds_memory(&self) -> bool {
        self.is_empty() && self.ahead.capacity() + self.again.capacity() > 0
    }

    pub(crate) fn release_memory(&mut self) {
        if self.is_empty() {
            (self.ahead, self.again) = (Vec::new(), VecDeque::new());
        }
    }

    /// Those that wait.
    pub(crate) fn len(&self) -> usize {
        self.ahead.len() + usize::from(self.repeated.is_some()) + usize::from(self.newest.is_some())
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
            acks.ahead(Time(0), Sn(0), ack(sn), 1_376);
        }
        assert_eq!(taken(&mut acks, 3, 58), [5, 6, 7]);
        assert!(acks.is_empty(), "nothing leaves for their sake");
        acks.ahead(Time(0), Sn(3), ack(9), 1_376);
        assert_eq!(taken(&mut acks, 3, 58), [5, 6, 7, 9]);
        acks.ahead(Time(0), Sn(3), ack(10), 1_376);
        assert_eq!(taken(&mut acks, 3, 58), [9, 10], "twice is enough");
        acks.in_order(Time(0), ack(3));
        assert_eq!(taken(&mut acks, 11, 58), [3], "una says it all");
    }

    #[test]
    fn what_was_told_before_leaves_room_for_what_was_not() {
        let mut acks = PendingAcks::default();
        (10..16).for_each(|sn| acks.ahead(Time(0), Sn(0), ack(sn), 1_376));
        assert_eq!(taken(&mut acks, 0, 6), [10, 11, 12, 13, 14, 15]);
        (20..24).for_each(|sn| acks.ahead(Time(0), Sn(0), ack(sn), 1_376));
        assert_eq!(taken(&mut acks, 0, 6), [14, 15, 20, 21, 22, 23]);
        (30..300).for_each(|sn| acks.ahead(Time(0), Sn(0), ack(sn), 1_376));
        assert_eq!(taken(&mut acks, 0, 300).len(), 270 + 8);
        acks.repeated(Time(0), ack(1));
        assert_eq!(taken(&mut acks, 0, 300), [1], "that is no news");
        acks.ahead(Time(0), Sn(0), ack(400), 0);
        assert_eq!(taken(&mut acks, 0, 300).len(), AGAIN - 8 + 1);
    }

    #[test]
    fn no_more_is_told_again_than_came() {
        let mut acks = PendingAcks::default();
        let mut told = 0;
        for sn in 1..=100 {
            acks.ahead(Time(0), Sn(0), ack(sn), 10);
            told += taken(&mut acks, 0, 58).len();
        }
        assert_eq!(told, 100 + 100 * 10 / HEADER);
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
            acks.in_order(Time(5), ack(sn));
        }
        assert_eq!((acks.arrivals(), acks.since(), acks.is_urgent()), (100, Some(Time(5)), false));
        assert_eq!(taken(&mut acks, 100, 58), [99]);
        assert!(acks.is_empty());
    }

    #[test]
    fn each_number_beyond_a_gap_is_told_and_the_newest_is_last() {
        let mut acks = PendingAcks::default();
        for sn in [5, 7, 6] {
            acks.ahead(Time(0), Sn(0), ack(sn), 1_376);
        }
        acks.repeated(Time(0), ack(1));
        assert!(acks.is_urgent());
        assert_eq!(taken(&mut acks, 3, 58), [5, 7, 1, 6]);
    }

    #[test]
    fn what_una_covers_is_not_told_again() {
        let mut acks = PendingAcks::default();
        for sn in [5, 6, 9] {
            acks.ahead(Time(0), Sn(0), ack(sn), 1_376);
        }
        acks.in_order(Time(1), ack(4));
        assert_eq!(taken(&mut acks, 7, 58), [9, 4]);
    }

    #[test]
    fn a_small_datagram_leaves_the_rest_for_the_next() {
        let mut acks = PendingAcks::default();
        for sn in 10..15 {
            acks.ahead(Time(0), Sn(0), ack(sn), 1_376);
        }
        assert_eq!(taken(&mut acks, 0, 2), [10, 11]);
        assert_eq!(taken(&mut acks, 0, 2), [12, 13]);
        assert!(!acks.is_empty());
        assert_eq!(taken(&mut acks, 0, 2), [13, 14], "one of them for the second time");
        assert!(acks.is_empty());
    }
}
