//! Segments in flight: a ring indexed by number, and their order of transmission.
//!
//! A segment stays in the ring until the peer's cumulative acknowledgement passes it, so finding
//! one by number is an index. What an acknowledgement touches is kept apart from the payloads and
//! small, half a cache line, so that its cost does not grow with the window.
//!
//! Segments that are not acknowledged yet are also linked, in the order of their last
//! transmission, into one list per back-off level. Within a list everything that makes a segment
//! due (its time-out, later transmissions being acknowledged) comes true from the front, so
//! whoever looks for something to repeat looks at the fronts and nowhere else.

use std::collections::VecDeque;

use crate::core::clock::Micros;
use crate::core::send::send_buffer::BufferRange;
use crate::core::seq::{Sn, Ts};
use crate::util::queue;

/// Back-off levels told apart; a segment beyond the last stays there.
const BACKOFF_LEVELS: usize = 16;
pub(crate) const MAX_BACKOFF_LEVEL: u8 = 15;

/// One numbered segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentSegment {
    /// Rank of the last transmission among all transmissions, from 1.
    pub(crate) xmit_seq: u64,
    pub(crate) last_sent: Micros,
    /// Stamp of the first transmission.
    pub(crate) first_ts: Ts,
    /// Neighbours in the list of its level; a segment's own number marks an end.
    previous: Sn,
    next: Sn,
    pub(crate) frg: u8,
    pub(crate) backoff_level: u8,
    pub(crate) retransmitted: bool,
    pub(crate) acked: bool,
}

const _: () = assert!(size_of::<SentSegment>() == 32, "half a cache line");

#[derive(Clone, Copy, Debug)]
struct ListEnds {
    front: Sn,
    back: Sn,
}

#[derive(Debug)]
pub(crate) struct SentSegments {
    una: Sn,
    ring: VecDeque<SentSegment>,
    /// In step with the ring.
    payloads: VecDeque<BufferRange>,
    lists: [Option<ListEnds>; BACKOFF_LEVELS],
    /// One bit per level whose list is not empty.
    occupied: u16,
    transmissions: u64,
}

impl SentSegments {
    pub(crate) fn new(start: Sn) -> Self {
        Self {
            una: start,
            ring: VecDeque::new(),
            payloads: VecDeque::new(),
            lists: [None; BACKOFF_LEVELS],
            occupied: 0,
            transmissions: 0,
        }
    }

    /// Oldest number not covered by a cumulative acknowledgement.
    pub(crate) fn una(&self) -> Sn {
        self.una
    }

    /// The number that the next new segment gets.
    #[inline]
    pub(crate) fn nxt(&self) -> Sn {
        self.una.advance(self.len())
    }

    #[expect(clippy::cast_possible_truncation, reason = "the ring never exceeds the window")]
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.ring.len() as u32
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Whether nothing waits for an acknowledgement of its own.
    pub(crate) fn all_acked(&self) -> bool {
        self.occupied == 0
    }

    #[inline]
    fn index(&self, sn: Sn) -> Option<usize> {
        let index = usize::try_from(sn.offset_from(self.una)?).ok()?;
        (index < self.ring.len()).then_some(index)
    }

    #[inline]
    pub(crate) fn get(&self, sn: Sn) -> Option<&SentSegment> {
        self.ring.get(self.index(sn)?)
    }

    fn get_mut(&mut self, sn: Sn) -> Option<&mut SentSegment> {
        let index = self.index(sn)?;
        self.ring.get_mut(index)
    }

    #[inline]
    pub(crate) fn payload(&self, sn: Sn) -> Option<BufferRange> {
        self.payloads.get(self.index(sn)?).copied()
    }

    /// The payload of the oldest segment.
    pub(crate) fn oldest(&self) -> Option<BufferRange> {
        self.payloads.front().copied()
    }

    /// Numbers a new segment and counts its first transmission, which is stamped `first`.
    #[inline]
    pub(crate) fn push(&mut self, now: Micros, first: Ts, payload: BufferRange, frg: u8) -> Sn {
        let sn = self.nxt();
        self.transmissions += 1;
        queue::push(&mut self.payloads, payload);
        let flying = SentSegment {
            xmit_seq: self.transmissions,
            last_sent: now,
            first_ts: first,
            previous: sn,
            next: sn,
            frg,
            backoff_level: 0,
            retransmitted: false,
            acked: false,
        };
        queue::push(&mut self.ring, flying);
        self.link(sn);
        sn
    }

    /// Counts another transmission of an unacknowledged segment, which continues on `level`.
    pub(crate) fn mark_retransmitted(&mut self, now: Micros, sn: Sn, level: u8) {
        self.move_to_back(now, sn, level);
        if let Some(segment) = self.get_mut(sn) {
            segment.retransmitted = true;
        }
    }

    /// Puts an unacknowledged segment at the end of the order as if it had been sent now.
    pub(crate) fn move_to_back(&mut self, now: Micros, sn: Sn, level: u8) {
        self.unlink(sn);
        self.transmissions += 1;
        let order = self.transmissions;
        if let Some(segment) = self.get_mut(sn) {
            segment.backoff_level = level.min(MAX_BACKOFF_LEVEL);
            segment.last_sent = now;
            segment.xmit_seq = order;
        }
        self.link(sn);
    }

    /// Marks one segment acknowledged. It keeps its place until [`Self::pop_acked`] passes it.
    pub(crate) fn ack(&mut self, sn: Sn) {
        self.unlink(sn);
        if let Some(segment) = self.get_mut(sn) {
            segment.acked = true;
        }
    }

    /// Removes the oldest segment.
    pub(crate) fn pop_acked(&mut self) -> Option<SentSegment> {
        let sn = self.una;
        if self.ring.front().is_some_and(|segment| !segment.acked) {
            self.unlink(sn);
        }
        let segment = self.ring.pop_front()?;
        self.payloads.pop_front();
        self.una = sn.advance(1);
        Some(segment)
    }

    pub(crate) fn holds_memory(&self) -> bool {
        queue::is_reclaimable(&self.ring)
    }

    /// A conversation that rests keeps nothing of its last burst. One that bursts again and again
    /// does: its queues would have to grow anew each time.
    pub(crate) fn release_memory(&mut self) {
        queue::release(&mut self.ring);
        queue::release(&mut self.payloads);
    }

    /// The earliest transmitted unacknowledged segment of each level in use.
    pub(crate) fn oldest_per_level(&self) -> impl Iterator<Item = (Sn, &SentSegment)> {
        let mut left = self.occupied;
        std::iter::from_fn(move || {
            let level = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            let front = self.lists.get(level)?.as_ref()?.front;
            Some((front, self.get(front)?))
        })
    }

    #[inline]
    fn link(&mut self, sn: Sn) {
        let Some(level) = self.get(sn).map(|segment| usize::from(segment.backoff_level)) else {
            return;
        };
        let back = self.lists[level].map(|ends| ends.back);
        if let Some(segment) = self.get_mut(sn) {
            segment.previous = back.unwrap_or(sn);
            segment.next = sn;
        }
        if let Some(back) = back.and_then(|back| self.get_mut(back)) {
            back.next = sn;
        }
        let front = self.lists[level].map_or(sn, |ends| ends.front);
        self.lists[level] = Some(ListEnds { front, back: sn });
        self.occupied |= 1 << level;
    }

    fn unlink(&mut self, sn: Sn) {
        let Some(segment) = self.get(sn).filter(|segment| !segment.acked) else { return };
        let (level, previous, next) =
            (usize::from(segment.backoff_level), segment.previous, segment.next);
        let Some(ends) = self.lists[level] else { return };
        let (first, last) = (previous == sn, next == sn);
        if let Some(neighbour) = self.get_mut(previous).filter(|_| !first) {
            neighbour.next = if last { previous } else { next };
        }
        if let Some(neighbour) = self.get_mut(next).filter(|_| !last) {
            neighbour.previous = if first { next } else { previous };
        }
        self.lists[level] = match (first, last) {
            (true, true) => None,
            (true, false) => Some(ListEnds { front: next, ..ends }),
            (false, true) => Some(ListEnds { back: previous, ..ends }),
            (false, false) => Some(ends),
        };
        if first && last {
            self.occupied &= !(1 << level);
        }
    }

    /// Walks everything and compares it with what the lists claim.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        let mut linked = 0;
        for (level, ends) in self.lists.iter().enumerate() {
            assert_eq!(ends.is_some(), self.occupied & (1 << level) != 0);
            let Some(ends) = ends else { continue };
            let (mut sn, mut previous, mut xmit_seq) = (ends.front, ends.front, 0);
            loop {
                let segment = self.get(sn).expect("linked segments are in the ring");
                assert!(!segment.acked && usize::from(segment.backoff_level) == level);
                assert_eq!(segment.previous, previous);
                assert!(segment.xmit_seq > xmit_seq, "a list is in order of transmission");
                xmit_seq = segment.xmit_seq;
                linked += 1;
                if segment.next == sn {
                    break;
                }
                (previous, sn) = (sn, segment.next);
            }
            assert_eq!(ends.back, sn);
        }
        assert_eq!(self.ring.len(), self.payloads.len());
        assert_eq!(linked, self.ring.iter().filter(|segment| !segment.acked).count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fronts(flight: &SentSegments) -> Vec<u32> {
        flight.oldest_per_level().map(|(sn, _)| sn.0).collect()
    }

    #[test]
    fn the_front_is_the_earliest_transmission() {
        let mut flight = SentSegments::new(Sn(u32::MAX));
        for _ in 0..4 {
            flight.push(Micros(0), Ts(0), BufferRange::default(), 0);
        }
        assert_eq!(fronts(&flight), [u32::MAX]);
        flight.mark_retransmitted(Micros(1), Sn(u32::MAX), 0);
        assert_eq!(fronts(&flight), [0]);
        flight.mark_retransmitted(Micros(2), Sn(0), 1);
        assert_eq!(fronts(&flight), [1, 0]);
        flight.ack(Sn(1));
        flight.ack(Sn(0));
        assert_eq!(fronts(&flight), [2]);
        assert_eq!(flight.pop_acked().map(|s| s.retransmitted), Some(true));
        assert_eq!((flight.una(), flight.nxt()), (Sn(0), Sn(3)));
        flight.check_invariants();
    }

    proptest! {
        #[test]
        fn lists_hold_under_any_operations(
            start: u32,
            steps in prop::collection::vec((0_u8..5, any::<u16>()), 1..300),
        ) {
            let mut flight = SentSegments::new(Sn(start));
            for (i, (step, pick)) in steps.into_iter().enumerate() {
                let now = Micros(i as u64);
                let sn = flight.una().advance(u32::from(pick) % flight.len().max(1));
                let open = flight.get(sn).is_some_and(|s| !s.acked);
                match step {
                    0 | 1 => { flight.push(now, Ts(0), BufferRange::default(), 0); }
                    2 if open => flight.mark_retransmitted(now, sn, u8::try_from(pick >> 8).unwrap()),
                    3 if open => flight.ack(sn),
                    4 => { flight.pop_acked(); }
                    _ => {}
                }
                flight.check_invariants();
            }
        }
    }
}
