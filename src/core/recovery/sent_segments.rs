//! Segments in flight (RFC 9002 A.1 `sent_packets`; kcp-go `snd_buf`): a ring indexed by sequence number,
//! with lists in order of transmission.
//!
//! A segment stays in the ring until `una` passes it, so a lookup by number is an index. An ACK touches one
//! entry of 32 bytes, half a cache line; payloads are in a second ring. In the bench `core`,
//! `ack_random_with_holes`, an ACK costs the same with 128 and with 16,384 segments.
//!
//! Unacknowledged segments are linked in order of their last transmission (`lists.rs`).
//!
//! [`SentRuns`] follow the ring: segments of a GSO batch share a record until two of them are acknowledged by
//! number or one is retransmitted. Then all move to the ring. A lookup in the runs bisects them.

mod lists;

use std::collections::VecDeque;
use std::mem;

use crate::core::clock::Micros;
use crate::core::recovery::sent_runs::SentRuns;
use crate::core::send::send_buffer::BufferRange;
use crate::core::seq::{Sn, Ts};
use crate::util::queue;
use lists::ListEnds;

/// Number of lists: two for back-off level 0, and one for each higher level.
const LISTS: usize = 16;
/// Numbers of [`SentSegment::xmit_seq`] that a datagram with one segment takes.
pub(crate) const XMIT_SEQS_PER_DATAGRAM: u64 = 2;
/// Highest back-off level; further RTO expiries leave a segment there.
pub(crate) const MAX_BACKOFF_LEVEL: u8 = 14;

/// A segment with a sequence number (quinn `SentPacket`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentSegment {
    /// Position of the last transmission in the order of all transmissions, from 1. One number is skipped
    /// before each datagram, so segments of one datagram have consecutive numbers and segments of different
    /// datagrams do not.
    pub(crate) xmit_seq: u64,
    /// Time of the last transmission.
    pub(crate) last_sent: Micros,
    /// Wire `ts` of the first transmission.
    pub(crate) first_ts: Ts,
    /// Neighbours in the segment's list; the segment's own number at an end of the list.
    prev: Sn,
    next: Sn,
    pub(crate) frg: u8,
    /// The list that holds it until it is acknowledged ([`list_of`]).
    list: u8,
    /// Sent more than once.
    pub(crate) retransmitted: bool,
    /// Acknowledged by number; `una` has not passed it yet.
    pub(crate) acked: bool,
}

impl SentSegment {
    /// RTO expiries so far, up to [`MAX_BACKOFF_LEVEL`] (kcp-go `xmit` counts transmissions).
    pub(crate) fn backoff_level(&self) -> u8 {
        self.list.saturating_sub(1)
    }

    /// [`Self::xmit_seq`] modulo 2^32.
    #[expect(clippy::cast_possible_truncation, reason = "the low half")]
    pub(crate) fn xmit_seq_low(&self) -> u32 {
        self.xmit_seq as u32
    }

    /// The segment that left `index` datagrams later in the same run.
    #[inline]
    pub(crate) fn nth_of_run(&self, index: u32) -> Self {
        Self { xmit_seq: self.xmit_seq + XMIT_SEQS_PER_DATAGRAM * u64::from(index), ..*self }
    }

    /// Whether both segments, transmitted once, left at the same time and position.
    #[inline]
    pub(crate) fn left_as(&self, other: &Self) -> bool {
        (self.xmit_seq, self.last_sent, self.first_ts, self.frg)
            == (other.xmit_seq, other.last_sent, other.first_ts, other.frg)
    }
}

const _: () = assert!(size_of::<SentSegment>() == 32, "half a cache line");
const _: () = assert!(list_of(u8::MAX, true) as usize + 1 == LISTS, "a list for each level");

/// The list of back-off `level`; `apart`: the second list of level 0.
const fn list_of(level: u8, apart: bool) -> u8 {
    match level {
        0 => apart as u8,
        1..=MAX_BACKOFF_LEVEL => level + 1,
        _ => MAX_BACKOFF_LEVEL + 1,
    }
}

/// All segments from `una` to `nxt`.
#[derive(Debug)]
pub(crate) struct SentSegments {
    una: Sn,
    /// Entry `i` is segment `una + i`.
    ring: VecDeque<SentSegment>,
    /// Entry `i` is the payload of segment `una + i`.
    payloads: VecDeque<BufferRange>,
    /// Segments after the ring, each transmitted once and after all transmissions in the ring.
    runs: SentRuns,
    /// `None` until a list is needed, and for an idle connection. An entry is valid only while its bit in
    /// [`Self::occupied`] is set.
    lists: Option<Box<[ListEnds; LISTS]>>,
    /// Bit `i` is set while list `i` is not empty.
    occupied: u16,
    /// Transmissions and datagrams so far, the source of [`SentSegment::xmit_seq`].
    transmissions: u64,
}

impl SentSegments {
    pub(crate) fn new(start: Sn) -> Self {
        Self {
            una: start,
            ring: VecDeque::new(),
            payloads: VecDeque::new(),
            runs: SentRuns::default(),
            lists: None,
            occupied: 0,
            transmissions: 0,
        }
    }

    /// SND.UNA: the oldest number not acknowledged cumulatively (kcp-go `snd_una`).
    pub(crate) fn una(&self) -> Sn {
        self.una
    }

    /// SND.NXT: the number that the next new segment gets (kcp-go `snd_nxt`).
    #[inline]
    pub(crate) fn nxt(&self) -> Sn {
        self.una.advance(self.len())
    }

    /// Segments from `una` to `nxt`, acknowledged ones included.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.ring_len() + self.runs.len()
    }

    #[expect(clippy::cast_possible_truncation, reason = "the ring never exceeds the window")]
    #[inline]
    fn ring_len(&self) -> u32 {
        self.ring.len() as u32
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether every segment in flight has an ACK of its own.
    pub(crate) fn all_acked(&self) -> bool {
        self.occupied == 0 && self.runs.all_acked()
    }

    /// Index of a segment in the ring.
    #[inline]
    fn index(&self, sn: Sn) -> Option<usize> {
        let index = usize::try_from(sn.offset_from(self.una)?).ok()?;
        (index < self.ring.len()).then_some(index)
    }

    #[inline]
    pub(crate) fn get(&self, sn: Sn) -> Option<SentSegment> {
        match self.index(sn) {
            Some(index) => self.ring.get(index).copied(),
            None => self.runs.get(sn),
        }
    }

    fn get_mut(&mut self, sn: Sn) -> Option<&mut SentSegment> {
        let index = self.index(sn)?;
        self.ring.get_mut(index)
    }

    #[inline]
    pub(crate) fn payload(&self, sn: Sn) -> Option<BufferRange> {
        match self.index(sn) {
            Some(index) => self.payloads.get(index).copied(),
            None => self.runs.payload(sn),
        }
    }

    /// Payload of segment `una`.
    pub(crate) fn oldest_payload(&self) -> Option<BufferRange> {
        self.payloads.front().copied().or_else(|| self.runs.front_payload())
    }

    /// Later transmissions leave in another datagram than earlier ones.
    #[inline]
    pub(crate) fn begin_datagram(&mut self) {
        self.transmissions += 1;
    }

    /// Records the first transmission of a new segment, with wire timestamp `first_ts`.
    #[inline]
    pub(crate) fn push(&mut self, now: Micros, first_ts: Ts, payload: BufferRange, frg: u8) -> Sn {
        if !self.runs.is_empty() {
            return self.push_to_runs(now, first_ts, payload, frg);
        }
        let sn = self.nxt();
        let segment = self.transmit(now, first_ts, frg, sn);
        self.append(segment, payload);
        sn
    }

    /// As [`Self::push`], for a segment of a GSO batch. It shares the record of the previous segment if both
    /// left together.
    #[inline]
    pub(crate) fn push_to_runs(
        &mut self,
        now: Micros,
        first_ts: Ts,
        payload: BufferRange,
        frg: u8,
    ) -> Sn {
        let sn = self.nxt();
        let segment = self.transmit(now, first_ts, frg, sn);
        self.runs.push(sn, segment, payload);
        sn
    }

    /// The record of a new segment that is transmitted now.
    #[inline]
    fn transmit(&mut self, last_sent: Micros, first_ts: Ts, frg: u8, sn: Sn) -> SentSegment {
        self.transmissions += 1;
        SentSegment {
            xmit_seq: self.transmissions,
            last_sent,
            first_ts,
            prev: sn,
            next: sn,
            frg,
            list: 0,
            retransmitted: false,
            acked: false,
        }
    }

    /// Appends a segment that left once, after all others in the ring.
    #[inline]
    fn append(&mut self, segment: SentSegment, payload: BufferRange) {
        let sn = self.una.advance(self.ring_len());
        queue::push(&mut self.payloads, payload);
        let prev = if segment.acked { sn } else { self.append_to_list(0, sn) };
        queue::push(&mut self.ring, SentSegment { prev, next: sn, ..segment });
    }

    /// Moves the segments of all runs to the ring.
    #[cold]
    fn break_up_runs(&mut self) {
        let mut runs = mem::take(&mut self.runs);
        runs.break_up(|segment, payload| self.append(segment, payload));
        // It keeps its capacity.
        self.runs = runs;
    }

    /// Records a retransmission of an unacknowledged segment, which continues on back-off `level`. `apart`
    /// puts it into the second list of level 0, whose front may leave before segments that left once.
    pub(crate) fn mark_retransmitted(&mut self, now: Micros, sn: Sn, level: u8, apart: bool) {
        self.relink(now, sn, list_of(level, apart), true);
    }

    /// Moves an unacknowledged segment to the end of the transmission order, as if sent now, without marking
    /// it retransmitted.
    pub(crate) fn move_to_back(&mut self, now: Micros, sn: Sn) {
        let Some(segment) = self.get(sn) else { return };
        self.relink(now, sn, segment.list, segment.retransmitted);
    }

    fn relink(&mut self, now: Micros, sn: Sn, list: u8, retransmitted: bool) {
        if !self.runs.is_empty() {
            // Runs must be later in transmission order than the ring.
            self.break_up_runs();
        }
        self.unlink(sn);
        let xmit_seq = self.transmissions + 1;
        let Some(segment) = self.get_mut(sn) else { return };
        *segment = SentSegment { list, retransmitted, last_sent: now, xmit_seq, ..*segment };
        self.transmissions = xmit_seq;
        let prev = self.append_to_list(list, sn);
        if let Some(segment) = self.get_mut(sn) {
            (segment.prev, segment.next) = (prev, sn);
        }
    }

    /// Records the ACK of one segment. It stays in the ring until `una` passes it ([`Self::pop_acked`]), as
    /// in kcp-go `parse_ack`.
    pub(crate) fn ack(&mut self, sn: Sn) {
        if self.index(sn).is_none() {
            if self.runs.ack(sn) {
                return;
            }
            self.break_up_runs();
        }
        self.unlink(sn);
        if let Some(segment) = self.get_mut(sn) {
            segment.acked = true;
        }
    }

    /// Removes segment `una`, which the cumulative acknowledgement covers (kcp-go `parse_una`).
    pub(crate) fn pop_acked(&mut self) -> Option<SentSegment> {
        let sn = self.una;
        if self.ring.front().is_some_and(|segment| !segment.acked) {
            self.unlink(sn);
        }
        let segment = match self.ring.pop_front() {
            None => *self.runs.pop_front(1)?.segments().0,
            Some(segment) => segment,
        };
        self.payloads.pop_front();
        self.una = sn.advance(1);
        Some(segment)
    }

    /// Removes up to `max` of the oldest segments, stopping at one that was retransmitted. Passes each run to
    /// `each`: its first segment and its length. Returns the number of segments. Equivalent to repeated
    /// [`Self::pop_acked`], but writes to the list once.
    pub(crate) fn pop_acked_run(
        &mut self,
        max: u32,
        mut each: impl FnMut(&SentSegment, u32),
    ) -> u32 {
        let mut count = self.pop_acked_of_ring(max, |segment| each(segment, 1));
        while count < max
            && self.ring.is_empty()
            && let Some(run) = self.runs.pop_front(max - count)
        {
            let (first, len) = run.segments();
            each(first, len);
            (self.una, count) = (self.una.advance(len), count + len);
        }
        count
    }

    /// As [`Self::pop_acked_run`], for the segments in the ring.
    fn pop_acked_of_ring(&mut self, max: u32, mut each: impl FnMut(&SentSegment)) -> u32 {
        let list = self.list(0);
        let mut front = list.map(|ends| ends.front);
        let (mut sn, mut count) = (self.una, 0);
        for segment in self.ring.iter().take(max as usize) {
            if segment.retransmitted || (!segment.acked && front != Some(sn)) {
                break;
            }
            if !segment.acked {
                front = Some(segment.next).filter(|next| *next != sn);
            }
            each(segment);
            (sn, count) = (sn.advance(1), count + 1);
        }
        let ends = front.zip(list).map(|(front, ends)| ListEnds { front, ..ends });
        self.set_list(0, ends);
        if let Some(front) = front
            && let Some(segment) = self.get_mut(front)
        {
            segment.prev = front;
        }
        self.ring.drain(..count as usize);
        self.payloads.drain(..count as usize);
        self.una = sn;
        count
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        queue::is_reclaimable(&self.ring) || self.runs.has_reclaimable_memory()
    }

    /// Frees the capacity of empty queues, for an idle connection.
    pub(crate) fn release_memory(&mut self) {
        queue::release(&mut self.ring);
        queue::release(&mut self.payloads);
        if self.occupied == 0 {
            self.lists = None;
        }
        self.runs.release_memory();
    }

    /// [`SentSegment::xmit_seq`] of the next transmission.
    pub(crate) fn next_xmit_seq(&self) -> u64 {
        self.transmissions + 1
    }

    /// Checks the invariants of ring and lists; takes time proportional to the window.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        let linked = self.check_lists();
        let newest = self.ring.iter().map(|segment| segment.xmit_seq).max();
        let first_of_runs = self.runs.front().map(|(_, first)| first.xmit_seq);
        assert!(
            first_of_runs.is_none_or(|first| Some(first) > newest),
            "runs are later than the ring"
        );
        self.runs.check_invariants(self.una.advance(self.ring_len()));
        assert_eq!(self.ring.len(), self.payloads.len());
        assert_eq!(linked, self.ring.iter().filter(|segment| !segment.acked).count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn oldest_sns(sent: &SentSegments) -> Vec<u32> {
        sent.oldest_per_list().map(|(sn, _)| sn.0).collect()
    }

    #[test]
    fn oldest_per_list_after_retransmit_is_the_earliest_transmission() {
        let mut sent = SentSegments::new(Sn(u32::MAX));
        for _ in 0..4 {
            sent.push(Micros(0), Ts(0), BufferRange::default(), 0);
        }
        assert_eq!(oldest_sns(&sent), [u32::MAX]);
        sent.mark_retransmitted(Micros(1), Sn(u32::MAX), 0, true);
        assert_eq!(oldest_sns(&sent), [0, u32::MAX]);
        sent.mark_retransmitted(Micros(2), Sn(0), 1, true);
        assert_eq!(oldest_sns(&sent), [1, u32::MAX, 0]);
        sent.ack(Sn(1));
        sent.ack(Sn(0));
        sent.ack(Sn(u32::MAX));
        assert_eq!(oldest_sns(&sent), [2]);
        assert_eq!(sent.pop_acked().map(|s| s.retransmitted), Some(true));
        assert_eq!((sent.una(), sent.nxt()), (Sn(0), Sn(3)));
        sent.check_invariants();
    }

    #[test]
    fn pop_acked_run_ends_at_a_segment_that_left_again() {
        let mut sent = SentSegments::new(Sn(u32::MAX - 4));
        for _ in 0..12 {
            sent.push(Micros(0), Ts(0), BufferRange::default(), 0);
        }
        sent.ack(Sn(u32::MAX - 4));
        sent.ack(Sn(u32::MAX - 1));
        assert_eq!(sent.pop_acked_run(7, |_, _| ()), 7);
        sent.check_invariants();
        assert_eq!(oldest_sns(&sent), [2]);
        sent.mark_retransmitted(Micros(1), Sn(4), 0, true);
        assert_eq!(sent.pop_acked_run(5, |_, _| ()), 2);
        sent.check_invariants();
        assert_eq!((oldest_sns(&sent), sent.len()), (vec![5, 4], 3));
        sent.pop_acked();
        assert_eq!(sent.pop_acked_run(9, |_, _| ()), 2);
        assert!(sent.is_empty() && sent.all_acked());
    }

    proptest! {
        #[test]
        fn sent_segments_any_operations_keep_invariants(
            start: u32,
            steps in prop::collection::vec((0_u8..5, any::<u16>()), 1..300),
        ) {
            let mut sent = SentSegments::new(Sn(start));
            for (i, (step, pick)) in steps.into_iter().enumerate() {
                let now = Micros(i as u64);
                let sn = sent.una().advance(u32::from(pick) % sent.len().max(1));
                let unacked = sent.get(sn).is_some_and(|s| !s.acked);
                match step {
                    0 | 1 => { sent.push(now, Ts(0), BufferRange::default(), 0); }
                    2 if unacked => sent.mark_retransmitted(now, sn, u8::try_from(pick >> 8).unwrap(), pick & 1 == 0),
                    3 if unacked => sent.ack(sn),
                    4 => { sent.pop_acked(); }
                    _ => {}
                }
                sent.check_invariants();
            }
        }

        #[test]
        fn pop_acked_run_equals_repeated_pop_acked(
            start: u32,
            steps in prop::collection::vec((0_u8..7, any::<u16>()), 1..300),
        ) {
            let (mut runs, mut singles) = (SentSegments::new(Sn(start)), SentSegments::new(Sn(start)));
            for (i, (step, pick)) in steps.into_iter().enumerate() {
                let now = Micros(i as u64);
                let sn = runs.una().advance(u32::from(pick) % runs.len().max(1));
                let unacked = runs.get(sn).is_some_and(|s| !s.acked);
                let level = u8::try_from(pick >> 8).unwrap() % 4;
                for sent in [&mut runs, &mut singles] {
                    match step {
                        0..=2 => { sent.push(now, Ts(0), BufferRange::default(), 0); }
                        3 if unacked && pick & 1 == 0 => sent.mark_retransmitted(now, sn, level, pick & 2 == 0),
                        3 if unacked => sent.move_to_back(now, sn),
                        4 | 5 if unacked => sent.ack(sn),
                        _ => {}
                    }
                }
                if step == 6 {
                    let (mut popped, max) = (Vec::new(), u32::from(pick % 20));
                    let count = runs.pop_acked_run(max, |s, _| popped.push((s.xmit_seq, s.acked)));
                    prop_assert!(count <= max && popped.len() == count as usize);
                    for run in popped {
                        let single = singles.pop_acked().map(|s| (s.xmit_seq, s.acked));
                        prop_assert_eq!(single, Some(run));
                    }
                }
                runs.check_invariants();
                prop_assert_eq!(format!("{runs:?}"), format!("{singles:?}"));
            }
        }
    }
}
