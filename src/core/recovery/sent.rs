//! Segments in flight (RFC 9002 A.1 `sent_packets`; kcp-go `snd_buf`): a ring indexed by sequence number,
//! with lists in order of transmission, followed by runs.
//!
//! A segment stays in the ring until `una` passes it, so a lookup by number is an index. An ACK touches one
//! entry of 32 bytes, half a cache line; payloads are in a second ring. In the bench `core`,
//! `ack_random_with_holes`, an ACK costs the same with 128 and with 16,384 segments.
//!
//! # Lists
//!
//! Unacknowledged segments are linked in order of their last transmission: one list per back-off level, and a
//! second list of level 0 for retransmissions of a bulk flow. Within a list, RTOs expire and later
//! transmissions are acknowledged from the front on. So loss detection inspects the fronts of at most 16
//! lists, where kcp-go's `flush` scans the window: bench `core`, `flush_with_nothing_due`. A connection whose
//! data leaves on several paths has these lists for each: only on its own path a later transmission arrives
//! later.
//!
//! Invariant: a list holds exactly the unacknowledged segments with that [`SentSegment::list`], in ascending
//! [`SentSegment::xmit_seq`] (asserted in `check_invariants`).
//!
//! # Runs
//!
//! A run is one record for the full segments of a GSO batch, which left back to back at one instant, each in
//! its own datagram. On a path without loss a cumulative acknowledgement removes a run or the front of it
//! without visiting single segments, except the latest one, which gets an ACK of its own. When a second
//! segment is acknowledged by number or one is retransmitted, all runs are broken up into the ring. A lookup
//! in the runs bisects them.

use std::collections::VecDeque;
use std::{iter, mem};

use crate::core::clock::Micros;
use crate::core::segment::HEADER_LEN;
use crate::core::send::buffer::BufferRange;
use crate::core::seq::{Sn, Ts};
use crate::util::queue;

/// Number of lists of a path: two for back-off level 0, and one for each higher level.
const LISTS: usize = 16;
/// Bits of [`SentSegment::list`] that name a list of a path; the next two name the slot of the path.
const LIST_BITS: u32 = 4;
/// Set in [`SentSegment::list`] once the segment has left on several paths.
const MOVED: u8 = 1 << 7;
/// Numbers of [`SentSegment::xmit_seq`] that a datagram with one segment takes.
pub(crate) const XMIT_SEQS_PER_DATAGRAM: u64 = 2;
/// Most segments that [`SentSegments::datagram_len`] counts on each side. A datagram of 1,500 bytes has no more.
const MAX_SHARING: u32 = 64;
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
    /// The list that holds it until it is acknowledged ([`list_of`]), the slot of its path, and [`MOVED`].
    list: u8,
    /// Sent more than once.
    pub(crate) retransmitted: bool,
    /// Acknowledged by number; `una` has not passed it yet.
    pub(crate) acked: bool,
}

impl SentSegment {
    /// RTO expiries so far, up to [`MAX_BACKOFF_LEVEL`] (kcp-go `xmit` counts transmissions).
    pub(crate) fn backoff_level(&self) -> u8 {
        (self.list & ((1 << LIST_BITS) - 1)).saturating_sub(1)
    }

    /// The slot of the path on which it left last.
    #[inline]
    pub(crate) fn slot(&self) -> Slot {
        Slot((self.list & !MOVED) >> LIST_BITS)
    }

    /// Whether it left on several paths, so that an earlier transmission says nothing about the last one's path.
    #[inline]
    pub(crate) fn has_moved(&self) -> bool {
        self.list & MOVED != 0
    }

    /// Index of its list; lists of the first slot come first.
    #[inline]
    fn list_index(&self) -> usize {
        usize::from(self.list & !MOVED)
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

/// A slot holds the segments in flight of one path. A connection with one path uses the first slot only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u8);

impl Slot {
    pub(crate) const FIRST: Self = Self(0);

    #[inline]
    fn list(self, list: u8) -> u8 {
        self.0 << LIST_BITS | list
    }
}

/// Lists of the paths in further slots.
#[derive(Debug)]
struct FurtherLists {
    /// As [`SentSegments::occupied`], for each slot from the second one on.
    occupied: [u16; FURTHER],
    ends: [[ListEnds; LISTS]; FURTHER],
}

impl FurtherLists {
    const EMPTY: Self = Self {
        occupied: [0; FURTHER],
        ends: [[ListEnds { front: Sn(0), back: Sn(0) }; LISTS]; FURTHER],
    };
}

/// Slots beside the first.
const FURTHER: usize = MAX_SLOTS as usize - 1;
/// Slots of a connection.
pub(crate) const MAX_SLOTS: u8 = 4;

/// First and last segment of a non-empty list.
#[derive(Clone, Copy, Debug, Default)]
struct ListEnds {
    front: Sn,
    back: Sn,
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
    /// Bit `i` is set while list `i` of the first slot is not empty.
    occupied: u16,
    /// The slot of the path on which segments leave now.
    slot: Slot,
    /// See [`Self::uses_slots`].
    uses_slots: bool,
    /// `None` until a segment leaves in another slot than the first.
    further: Option<Box<FurtherLists>>,
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
            slot: Slot::FIRST,
            uses_slots: false,
            further: None,
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
        self.occupied == 0
            && self.runs.all_acked()
            && self.further.as_ref().is_none_or(|further| further.occupied == [0; FURTHER])
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

    /// Bytes of the segments in the datagram in which `sn` left last, each with its header. They have numbers and
    /// transmissions in a row. One that was acknowledged cumulatively or left again since, and those beyond it, do not
    /// count.
    pub(crate) fn datagram_len(&self, sn: Sn) -> Option<usize> {
        let len = |sn| Some(HEADER_LEN + self.payload(sn)?.len());
        let xmit_seq = self.get(sn)?.xmit_seq;
        let is_beside = |sn: Sn, seq: Option<u64>| self.get(sn).map(|next| next.xmit_seq) == seq;
        let after = (1..=MAX_SHARING).map(|k| (sn.advance(k), xmit_seq.checked_add(k.into())));
        let before = (1..=MAX_SHARING).map(|k| (sn.back(k), xmit_seq.checked_sub(k.into())));
        let after = after.take_while(|(sn, seq)| is_beside(*sn, *seq));
        let before = before.take_while(|(sn, seq)| is_beside(*sn, *seq));
        let others = after.chain(before).filter_map(|(sn, _)| len(sn)).sum::<usize>();
        Some(len(sn)? + others)
    }

    /// The last segment of more than `len` payload bytes.
    pub(crate) fn last_longer_than(&self, len: usize) -> Option<Sn> {
        let sns = (1..=self.len()).map(|back| self.nxt().back(back));
        { sns }.find(|sn| self.payload(*sn).is_some_and(|payload| payload.len() > len))
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
            if self.slot == Slot::FIRST {
                return self.push_to_runs(now, first_ts, payload, frg);
            }
            self.break_up_runs();
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
            list: self.slot.list(0),
            retransmitted: false,
            acked: false,
        }
    }

    /// Appends a segment that left once, after all others in the ring.
    #[inline]
    fn append(&mut self, segment: SentSegment, payload: BufferRange) {
        let sn = self.una.advance(self.ring_len());
        queue::push(&mut self.payloads, payload);
        let prev = if segment.acked { sn } else { self.append_to_list(segment.list_index(), sn) };
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
        self.relink(now, sn, self.slot.list(list_of(level, apart)), true);
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
        let list = if (segment.list ^ list) >> LIST_BITS == 0 { list } else { list | MOVED };
        *segment = SentSegment { list, retransmitted, last_sent: now, xmit_seq, ..*segment };
        self.transmissions = xmit_seq;
        let prev = self.append_to_list((list & !MOVED).into(), sn);
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
            None => self.runs.pop_front(1)?.first,
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
            each(&run.first, run.count);
            (self.una, count) = (self.una.advance(run.count), count + run.count);
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
        if self.all_acked() {
            self.further = None;
            self.set_slot(self.slot);
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
        assert_eq!(self.uses_slots, self.further.is_some() || self.slot != Slot::FIRST);
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

/// Lists in order of transmission.
impl SentSegments {
    #[inline]
    fn list(&self, list: usize) -> Option<ListEnds> {
        if list < LISTS { self.first_list(list) } else { self.further_list(list) }
    }

    /// As [`Self::list`], for the first slot.
    #[inline]
    fn first_list(&self, list: usize) -> Option<ListEnds> {
        let lists = self.lists.as_ref().filter(|_| self.occupied & (1 << list) != 0)?;
        lists.get(list).copied()
    }

    #[cold]
    fn further_list(&self, list: usize) -> Option<ListEnds> {
        let (slot, list) = (list / LISTS - 1, list % LISTS);
        let further = self.further.as_ref()?;
        let is_occupied = further.occupied.get(slot)? & (1 << list) != 0;
        further.ends.get(slot)?.get(list).copied().filter(|_| is_occupied)
    }

    #[cold]
    fn set_further_list(&mut self, list: usize, ends: Option<ListEnds>) {
        let (slot, list) = (list / LISTS - 1, list % LISTS);
        self.uses_slots = true;
        let further = self.further.get_or_insert_with(|| Box::new(FurtherLists::EMPTY));
        let known = further.occupied.get_mut(slot).zip(further.ends.get_mut(slot));
        let Some((occupied, lists)) = known else { return };
        *occupied = (*occupied & !(1 << list)) | (u16::from(ends.is_some()) << list);
        if let Some(known) = lists.get_mut(list) {
            *known = ends.unwrap_or_default();
        }
    }

    #[inline]
    fn set_list(&mut self, list: usize, ends: Option<ListEnds>) {
        if list >= LISTS {
            return self.set_further_list(list, ends);
        }
        self.occupied = (self.occupied & !(1 << list)) | (u16::from(ends.is_some()) << list);
        if let Some(lists) = &mut self.lists {
            lists[list] = ends.unwrap_or_default();
        } else if let Some(ends) = ends {
            self.lists.insert(Box::default())[list] = ends;
        }
    }

    /// The earliest transmission in each list that is in use, while segments leave in the first slot only.
    #[inline]
    pub(crate) fn oldest_per_list(&self) -> impl Iterator<Item = (Sn, SentSegment)> {
        let mut lists = self.occupied_lists(Slot::FIRST);
        iter::from_fn(move || {
            let list = lists.trailing_zeros() as usize;
            lists &= lists.checked_sub(1)?;
            match self.first_list(list) {
                Some(ends) => Some((ends.front, self.get(ends.front)?)),
                None => self.runs.front(),
            }
        })
    }

    /// As [`Self::oldest_per_list`], for the path in `slot`.
    pub(crate) fn oldest_in_slot(&self, slot: Slot) -> impl Iterator<Item = (Sn, SentSegment)> {
        let mut lists = self.occupied_lists(slot);
        let first = usize::from(slot.list(0));
        iter::from_fn(move || {
            let list = first + lists.trailing_zeros() as usize;
            lists &= lists.checked_sub(1)?;
            match self.list(list) {
                Some(ends) => Some((ends.front, self.get(ends.front)?)),
                None => self.runs.front(),
            }
        })
    }

    /// Bit `i` is set if list `i` of the path is not empty, or, for the first one, if runs continue it.
    #[inline]
    fn occupied_lists(&self, slot: Slot) -> u16 {
        if slot == Slot::FIRST {
            return self.occupied | u16::from(!self.runs.all_acked());
        }
        let further = self.further.as_ref();
        let occupied = further.and_then(|further| further.occupied.get(usize::from(slot.0) - 1));
        occupied.copied().unwrap_or(0)
    }

    /// Whether the path has no unacknowledged segment.
    pub(crate) fn is_slot_empty(&self, slot: Slot) -> bool {
        self.occupied_lists(slot) == 0
    }

    /// The slot of the path on which segments leave now.
    #[inline]
    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    /// Segments leave on another path from now on.
    pub(crate) fn set_slot(&mut self, slot: Slot) {
        self.slot = slot;
        self.uses_slots = self.further.is_some() || slot != Slot::FIRST;
    }

    /// Whether segments have left on another path than the first.
    #[inline]
    pub(crate) fn uses_slots(&self) -> bool {
        self.uses_slots
    }

    /// Unacknowledged segments of the list of `sn` in order of transmission, from `sn` on.
    pub(crate) fn unacked_from(&self, sn: Sn) -> impl Iterator<Item = (Sn, SentSegment)> {
        let get = |sn| Some((sn, *self.ring.get(self.index(sn)?)?));
        let first = get(sn);
        let of_ring = iter::successors(first, move |(sn, segment)| {
            get(Some(segment.next).filter(|next| next != sn)?)
        });
        let of_runs = match first {
            None => Some(sn),
            Some((_, segment)) if segment.list_index() == 0 => self.runs.front().map(|(sn, _)| sn),
            Some(_) => None,
        };
        of_ring.chain(of_runs.into_iter().flat_map(|sn| self.runs.iter_from(sn)))
    }

    /// Appends a segment to a list and returns its `prev`; its `next` is itself.
    #[inline]
    fn append_to_list(&mut self, list: usize, sn: Sn) -> Sn {
        let ends = self.list(list);
        if let Some(back) = ends.and_then(|ends| self.get_mut(ends.back)) {
            back.next = sn;
        }
        let front = ends.map_or(sn, |ends| ends.front);
        self.set_list(list, Some(ListEnds { front, back: sn }));
        ends.map_or(sn, |ends| ends.back)
    }

    /// Removes a segment from its list, if it is in one.
    fn unlink(&mut self, sn: Sn) {
        let in_ring = self.index(sn).and_then(|index| self.ring.get(index));
        let Some(segment) = in_ring.filter(|segment| !segment.acked) else { return };
        let (list, prev, next) = (segment.list_index(), segment.prev, segment.next);
        let Some(ends) = self.list(list) else { return };
        let (first, last) = (prev == sn, next == sn);
        if !first && let Some(neighbour) = self.get_mut(prev) {
            neighbour.next = if last { prev } else { next };
        }
        if !last && let Some(neighbour) = self.get_mut(next) {
            neighbour.prev = if first { next } else { prev };
        }
        let ends = match (first, last) {
            (true, true) => None,
            (true, false) => Some(ListEnds { front: next, ..ends }),
            (false, true) => Some(ListEnds { back: prev, ..ends }),
            (false, false) => return,
        };
        self.set_list(list, ends);
    }

    /// Checks the lists, in time proportional to the window. Returns the number of linked segments.
    #[cfg(any(test, feature = "_testkit"))]
    fn check_lists(&self) -> usize {
        let mut linked = 0;
        for list in 0..LISTS * usize::from(MAX_SLOTS) {
            let Some(ends) = self.list(list) else { continue };
            let (mut sn, mut prev, mut xmit_seq) = (ends.front, ends.front, 0);
            loop {
                let segment = self.get(sn).expect("linked segments are in the ring");
                assert!(!segment.acked && segment.list_index() == list);
                assert_eq!(segment.prev, prev);
                assert!(segment.xmit_seq > xmit_seq, "a list is in order of transmission");
                xmit_seq = segment.xmit_seq;
                linked += 1;
                if segment.next == sn {
                    break;
                }
                (prev, sn) = (sn, segment.next);
            }
            assert_eq!(ends.back, sn);
        }
        linked
    }
}

/// Consecutive segments that left once, back to back in a GSO batch.
#[derive(Clone, Copy, Debug)]
struct SentRun {
    /// Number of the first segment.
    sn: Sn,
    /// At least 1.
    count: u32,
    /// The first segment; the others differ from it only in [`SentSegment::xmit_seq`].
    first: SentSegment,
    /// Payload of the first segment; the payloads of the others follow it and have the same length.
    payload: BufferRange,
}

impl SentRun {
    fn get(&self, index: u32) -> (Sn, SentSegment) {
        (self.sn.advance(index), self.first.nth_of_run(index))
    }

    /// The segments from `index` on.
    fn iter(&self, index: u32) -> impl Iterator<Item = (Sn, SentSegment)> {
        let run = *self;
        (index..self.count).map(move |index| run.get(index))
    }

    /// Splits off the first `count` segments; some must remain.
    fn split_to(&mut self, count: u32) -> Self {
        let front = Self { count, ..*self };
        let (sn, first) = self.get(count);
        *self =
            Self { sn, count: self.count - count, first, payload: self.payload.nth_after(count) };
        front
    }
}

const _: () = assert!(size_of::<SentRun>() == 56, "less than a cache line");

/// The runs in flight, in order of number, without gaps.
#[derive(Debug, Default)]
struct SentRuns {
    runs: VecDeque<SentRun>,
    /// Segments of all runs.
    len: u32,
    /// The one segment with an ACK of its own.
    acked: Option<Sn>,
}

impl SentRuns {
    /// Segments of all runs.
    #[inline]
    fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether every segment has an ACK of its own.
    #[inline]
    fn all_acked(&self) -> bool {
        self.len == u32::from(self.acked.is_some())
    }

    /// Records the ACK of a segment. Returns false if another one is already recorded.
    fn ack(&mut self, sn: Sn) -> bool {
        let is_first = self.acked.is_none() && self.find(sn).is_some();
        if is_first {
            self.acked = Some(sn);
        }
        is_first || self.acked == Some(sn)
    }

    /// Appends segment `sn`, the next number, to the last run if it continues that run.
    #[inline]
    fn push(&mut self, sn: Sn, segment: SentSegment, payload: BufferRange) {
        self.len += 1;
        if let Some(last) = self.runs.back_mut()
            && last.payload.nth_after(last.count) == payload
            && last.first.nth_of_run(last.count).left_as(&segment)
        {
            last.count += 1;
            return;
        }
        queue::push(&mut self.runs, SentRun { sn, count: 1, first: segment, payload });
    }

    /// Removes the first run, or up to `max` segments of it. A segment with an ACK of its own is removed
    /// alone.
    fn pop_front(&mut self, max: u32) -> Option<SentRun> {
        let first = self.runs.front_mut()?;
        let before_acked = self.acked.and_then(|acked| acked.offset_from(first.sn));
        let is_acked = before_acked == Some(0);
        let max = if is_acked { 1 } else { max.min(before_acked.unwrap_or(max)) };
        let mut run =
            if first.count > max { first.split_to(max) } else { self.runs.pop_front()? };
        self.len -= run.count;
        if is_acked {
            (run.first.acked, self.acked) = (true, None);
        }
        Some(run)
    }

    /// The segment with the lowest number that has no ACK of its own.
    #[inline]
    fn front(&self) -> Option<(Sn, SentSegment)> {
        let first = self.runs.front().map(|run| (run.sn, run.first))?;
        if self.acked != Some(first.0) {
            return Some(first);
        }
        let next = first.0.advance(1);
        self.get(next).map(|segment| (next, segment))
    }

    /// Payload of the segment with the lowest number.
    fn front_payload(&self) -> Option<BufferRange> {
        self.runs.front().map(|run| run.payload)
    }

    /// Index of the run that contains `sn`, and index of `sn` in it, by bisection.
    fn find(&self, sn: Sn) -> Option<(usize, u32)> {
        let after = self.runs.partition_point(|run| sn.since(run.sn) >= 0);
        let at = after.checked_sub(1)?;
        let run = self.runs.get(at)?;
        let index = sn.offset_from(run.sn)?;
        (index < run.count).then_some((at, index))
    }

    fn get(&self, sn: Sn) -> Option<SentSegment> {
        let (at, index) = self.find(sn)?;
        let mut segment = self.runs.get(at)?.get(index).1;
        segment.acked = self.acked == Some(sn);
        Some(segment)
    }

    fn payload(&self, sn: Sn) -> Option<BufferRange> {
        let (at, index) = self.find(sn)?;
        self.runs.get(at).map(|run| run.payload.nth_after(index))
    }

    /// Segments without an ACK of their own from `sn` on, in order of number, which is also the order of
    /// transmission.
    fn iter_from(&self, sn: Sn) -> impl Iterator<Item = (Sn, SentSegment)> {
        let (at, index) = self.find(sn).unwrap_or((self.runs.len(), 0));
        let mut rest = self.runs.range(at..);
        let first = rest.next().into_iter().flat_map(move |run| run.iter(index));
        let acked = self.acked;
        first.chain(rest.flat_map(|run| run.iter(0))).filter(move |(sn, _)| acked != Some(*sn))
    }

    /// Removes all runs and passes each segment with its payload to `each`.
    fn break_up(&mut self, mut each: impl FnMut(SentSegment, BufferRange)) {
        self.len = 0;
        let acked = self.acked.take();
        for run in self.runs.drain(..) {
            for index in 0..run.count {
                let (sn, mut segment) = run.get(index);
                segment.acked = acked == Some(sn);
                each(segment, run.payload.nth_after(index));
            }
        }
    }

    fn has_reclaimable_memory(&self) -> bool {
        queue::is_reclaimable(&self.runs)
    }

    /// Frees the capacity of an empty queue, for an idle connection.
    fn release_memory(&mut self) {
        queue::release(&mut self.runs);
    }

    /// Asserts that the runs follow each other without gaps from `start` on.
    #[cfg(any(test, feature = "_testkit"))]
    fn check_invariants(&self, start: Sn) {
        let (mut sn, mut xmit_seq) = (start, 0);
        for run in &self.runs {
            assert!(run.sn == sn && run.count > 0 && run.first.xmit_seq > xmit_seq, "{run:?}");
            let (last_sn, last) = run.get(run.count - 1);
            assert!(!last.acked && !last.retransmitted && last.backoff_level() == 0, "{run:?}");
            (sn, xmit_seq) = (last_sn.advance(1), last.xmit_seq);
        }
        assert_eq!(sn, start.advance(self.len));
        assert!(self.acked.is_none_or(|acked| self.find(acked).is_some()));
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

    /// Payloads of `len` bytes, back to back in chunks of 20 segments.
    fn payload(index: u32, len: u32) -> BufferRange {
        BufferRange::new(index / 20, index % 20 * len, len)
    }

    /// All that [`SentSegments`] reports about one segment.
    fn seen((sn, segment): (Sn, SentSegment)) -> (u32, u64, u64, u32, u8, bool, bool) {
        let SentSegment { xmit_seq, last_sent, first_ts, .. } = segment;
        let backoff_level = segment.backoff_level();
        let flags = (segment.retransmitted, segment.acked);
        (sn.0, xmit_seq, last_sent.0, first_ts.0, backoff_level, flags.0, flags.1)
    }

    /// All that can be asked about the segments in flight.
    fn contents(sent: &SentSegments) -> impl PartialEq + std::fmt::Debug {
        let sns = (0..sent.len() + 1).map(|offset| sent.una().advance(offset));
        let segments: Vec<_> =
            sns.map(|sn| (sent.get(sn).map(|s| seen((sn, s))), sent.payload(sn))).collect();
        let oldest: Vec<_> = sent.oldest_per_list().collect();
        let order =
            oldest.iter().map(|(sn, _)| sent.unacked_from(*sn).map(seen).collect::<Vec<_>>());
        let order: Vec<_> = order.collect();
        let middle = sent.una().advance(sent.len() / 2);
        let from_middle = sent.get(middle).is_some_and(|segment| !segment.acked);
        let from_middle =
            from_middle.then(|| sent.unacked_from(middle).map(seen).collect::<Vec<_>>());
        let state = (sent.una(), sent.nxt(), sent.all_acked(), sent.oldest_payload());
        (segments, oldest.into_iter().map(seen).collect::<Vec<_>>(), order, from_middle, state)
    }

    proptest! {
        #[test]
        fn runs_and_single_segments_say_the_same(
            start: u32,
            steps in prop::collection::vec((0_u8..9, any::<u16>()), 1..120),
        ) {
            let (mut runs, mut singles) = (SentSegments::new(Sn(start)), SentSegments::new(Sn(start)));
            let mut pushed = 0;
            for (i, (step, pick)) in steps.into_iter().enumerate() {
                let (now, ts) = (Micros(i as u64), Ts(u32::try_from(i).unwrap() / 3));
                let sn = runs.una().advance(u32::from(pick) % runs.len().max(1));
                let unacked = runs.get(sn).is_some_and(|segment| !segment.acked);
                let level = u8::try_from(pick >> 8).unwrap() % 3;
                match step {
                    0..=3 => for _ in 0..=pick % 30 {
                        // Some share a datagram, and some have another length.
                        let payload = payload(pushed, 9 + u32::from(step == 0));
                        if step != 1 {
                            runs.begin_datagram();
                            singles.begin_datagram();
                        }
                        if step == 3 { runs.push(now, ts, payload, 0) } else { runs.push_to_runs(now, ts, payload, 0) };
                        singles.push(now, ts, payload, 0);
                        pushed += 1;
                    },
                    4 if unacked => [&mut runs, &mut singles].map(|sent| sent.mark_retransmitted(now, sn, level, pick & 1 == 0)).into_iter().collect(),
                    5 if unacked => [&mut runs, &mut singles].map(|sent| sent.move_to_back(now, sn)).into_iter().collect(),
                    6 if unacked => [&mut runs, &mut singles].map(|sent| sent.ack(sn)).into_iter().collect(),
                    7 => {
                        let popped = [&mut runs, &mut singles].map(|sent| sent.pop_acked().map(|s| s.xmit_seq));
                        prop_assert_eq!(popped[0], popped[1]);
                    }
                    _ => {
                        let popped = [&mut runs, &mut singles].map(|sent| {
                            let mut popped = Vec::new();
                            let count = sent.pop_acked_run(u32::from(pick % 50), |first, count| {
                                let all = (0..count).map(|index| first.nth_of_run(index));
                                popped.extend(all.map(|segment| (segment.xmit_seq, segment.acked)));
                            });
                            (count, popped)
                        });
                        prop_assert_eq!(&popped[0], &popped[1]);
                    }
                }
                runs.check_invariants();
                prop_assert_eq!(contents(&runs), contents(&singles));
            }
        }
    }

    #[test]
    fn datagram_has_the_segments_that_left_together_alone() {
        let mut sent = SentSegments::new(Sn(u32::MAX - 1));
        for sn in 0..6 {
            if sn % 3 == 0 {
                sent.begin_datagram();
            }
            sent.push(Micros(0), Ts(0), payload(sn, 10 + sn), 0);
        }
        let lens = |sent: &SentSegments| {
            [u32::MAX - 1, u32::MAX, 0, 1, 2, 3].map(|sn| sent.datagram_len(Sn(sn)).unwrap())
        };
        assert_eq!(lens(&sent), [105, 105, 105, 114, 114, 114]);
        // The last of the first datagram leaves again by itself, and the middle of the second, too.
        for sn in [0, 2] {
            sent.begin_datagram();
            sent.mark_retransmitted(Micros(1), Sn(sn), 1, true);
        }
        assert_eq!(lens(&sent), [69, 69, 36, 37, 38, 39]);
        assert_eq!(sent.datagram_len(Sn(4)), None);
        assert_eq!(
            [12, 14, 15].map(|len| sent.last_longer_than(len)),
            [Some(Sn(3)), Some(Sn(3)), None]
        );
    }

    #[test]
    fn full_segments_of_a_batch_are_one_record_until_one_is_acknowledged() {
        let mut sent = SentSegments::new(Sn(7));
        for batch in 0..3 {
            for index in batch * 20..(batch + 1) * 20 {
                sent.begin_datagram();
                sent.push_to_runs(Micros(batch.into()), Ts(batch), payload(index, 9), 0);
            }
        }
        let mut popped = Vec::new();
        assert_eq!(sent.pop_acked_run(30, |first, count| popped.push((first.xmit_seq, count))), 30);
        assert_eq!(popped, [(2, 20), (42, 10)]);
        sent.ack(Sn(7 + 50));
        assert!(sent.get(Sn(57)).unwrap().acked && !sent.get(Sn(56)).unwrap().acked);
        sent.ack(Sn(7 + 51));
        popped.clear();
        assert_eq!(sent.pop_acked_run(30, |first, count| popped.push((first.xmit_seq, count))), 30);
        assert_eq!(popped, Vec::from_iter((0..30).map(|index| (62 + 2 * index, 1))));
        assert!(sent.is_empty());
    }
}
