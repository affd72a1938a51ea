//! When repair symbols leave, and which segments they cover (RFC 8681 3.5 encoding window).
//!
//! How many leave is limited by [`RedundancyCredit`]. One leaves right behind the segment that makes the credit suffice, and one
//! behind the last segment of a burst, when nothing has covered that for a while.

use std::collections::VecDeque;

use crate::core::clock::Micros;
use crate::core::recovery::sent_segments::SentSegments;
use crate::core::redundancy::credit::RedundancyCredit;
use crate::core::redundancy::rlc::{MAX_WINDOW, SYMBOL_HEADER};
use crate::core::segment::HEADER_LEN;
use crate::core::seq::Sn;
use crate::util::queue;

/// Longest time in microseconds from the last segment of a burst to the repair symbol that covers
/// it; half a round trip if that is shorter.
const MAX_TAIL_DELAY: u64 = 25_000;
/// Repair symbols that are remembered: at the largest rate one leaves behind each segment, up to
/// 256 of them in flight, and ACKs come a round trip later.
const MAX_REMEMBERED: usize = 320;
/// A lost segment waits for repair symbols that leave within this time of it, microseconds.
const MAX_COVERING_DELAY: u64 = 40_000;
/// Repair symbols that a lost segment waits for at most.
const MAX_COVERING: usize = 16;
/// Segments that repair symbols recovered, which are remembered: the original may still arrive.
const MAX_RECOVERED: usize = 64;

/// The encoding window of the next repair symbol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodingWindow {
    pub(crate) first: Sn,
    /// Segments, 1 to [`MAX_WINDOW`].
    pub(crate) count: u8,
    /// Payload of the longest segment, bytes.
    pub(crate) longest: usize,
}

impl EncodingWindow {
    /// Length of the repair symbol, bytes.
    pub(crate) fn symbol_len(&self) -> usize {
        SYMBOL_HEADER + self.longest
    }
}

/// A repair symbol that has left.
#[derive(Clone, Copy, Debug)]
struct SentRepair {
    at: Micros,
    first: Sn,
    /// The number after the last that it covers.
    end: Sn,
}

/// Repair symbols of one connection. Exists while they are on.
#[derive(Debug)]
pub(crate) struct RepairSchedule {
    credit: RedundancyCredit,
    /// Bytes of the latest first transmission, header included.
    last_len: usize,
    /// When that left.
    last_new: Micros,
    /// SND.NXT when the latest repair symbol left.
    covered: Sn,
    next_key: u32,
    /// The latest ones, oldest first; the key of the last is `next_key` - 1.
    sent: VecDeque<SentRepair>,
    recovered: VecDeque<Sn>,
    pub(crate) recovered_count: u64,
}

impl RepairSchedule {
    /// `key` is the first repair key, random. `nxt` is SND.NXT.
    pub(crate) fn new(rate: u32, key: u32, nxt: Sn) -> Self {
        Self {
            credit: RedundancyCredit::new(rate),
            last_len: 0,
            last_new: Micros(0),
            covered: nxt,
            next_key: key,
            sent: VecDeque::new(),
            recovered: VecDeque::new(),
            recovered_count: 0,
        }
    }

    /// Sets the rate; 0: no repair symbol leaves. `nxt` is SND.NXT.
    pub(crate) fn set_rate(&mut self, rate: u32, nxt: Sn) {
        if self.is_off() || rate == 0 {
            self.credit.clear();
            self.covered = nxt;
        }
        self.credit.set_rate(rate);
    }

    pub(crate) fn is_off(&self) -> bool {
        self.rate() == 0
    }

    /// Bytes of repair symbols per million bytes of data.
    pub(crate) fn rate(&self) -> u32 {
        self.credit.rate()
    }

    /// Repair symbols that have left, and their bytes.
    pub(crate) fn sent(&self) -> (u64, u64) {
        self.credit.sent()
    }

    /// A segment with `len` payload bytes leaves for the first time. `latency_bound`: the flow is
    /// one of messages; others get no repair symbols.
    pub(crate) fn on_new_segment(&mut self, now: Micros, len: usize, nxt: Sn, latency_bound: bool) {
        if !latency_bound || self.is_off() {
            self.credit.clear();
            self.covered = nxt;
            return;
        }
        (self.last_len, self.last_new) = (HEADER_LEN + len, now);
        // What a pacer or a rate limit holds back does not add up.
        self.credit.on_data(self.last_len, 2 * self.last_len);
    }

    /// Whether the credit suffices for a repair symbol behind the latest segment.
    fn has_credit(&self) -> bool {
        self.credit.has(self.last_len)
    }

    /// When the next repair symbol leaves; `Micros(0)`: now. `srtt` in microseconds.
    pub(crate) fn due_at(&self, nxt: Sn, srtt: u64) -> Option<Micros> {
        if self.covered == nxt {
            None
        } else if self.has_credit() {
            Some(Micros(0))
        } else {
            let tail = self.last_new.add_micros(MAX_TAIL_DELAY.min(srtt / 2));
            self.credit.is_balanced().then_some(tail)
        }
    }

    /// The encoding window of the repair symbol that leaves now: the latest segments that are not
    /// acknowledged cumulatively and whose repair symbol fits into `mtu` bytes.
    pub(crate) fn encoding_window(
        &mut self,
        sent: &SentSegments,
        mtu: usize,
    ) -> Option<EncodingWindow> {
        let nxt = sent.nxt();
        let (mut count, mut longest) = (0, 0);
        while usize::from(count) < MAX_WINDOW {
            let payload = sent.payload(nxt.back(u32::from(count) + 1));
            // At an MTU of 25 or 26 bytes not even the symbol of an empty message fits.
            let payload = payload.filter(|range| HEADER_LEN + SYMBOL_HEADER + range.len() <= mtu);
            let Some(payload) = payload else { break };
            longest = longest.max(payload.len());
            count += 1;
        }
        if count == 0 {
            self.skip(nxt);
            return None;
        }
        Some(EncodingWindow { first: nxt.back(count.into()), count, longest })
    }

    /// Nothing that is in flight can be covered.
    pub(crate) fn skip(&mut self, nxt: Sn) {
        self.covered = nxt;
    }

    /// The key of the repair symbol that leaves next.
    pub(crate) fn next_key(&self) -> u32 {
        self.next_key
    }

    /// A repair symbol of `len` bytes, header included, leaves that covers `first` to `nxt`.
    pub(crate) fn on_repair_sent(&mut self, now: Micros, (first, nxt): (Sn, Sn), len: usize) {
        self.credit.on_sent(len);
        self.covered = nxt;
        self.next_key = self.next_key.wrapping_add(1);
        if self.sent.len() == MAX_REMEMBERED {
            self.sent.pop_front();
        }
        queue::push(&mut self.sent, SentRepair { at: now, first, end: nxt });
    }

    /// Whether a repair symbol has left in the last `micros`.
    pub(crate) fn has_sent_within(&self, now: Micros, micros: u64) -> bool {
        self.sent.back().is_some_and(|latest| now.since(latest.at) <= micros)
    }

    /// Whether one of the latest repair symbols had this key.
    pub(crate) fn has_sent(&self, key: u32) -> bool {
        self.get(key).is_some()
    }

    fn get(&self, key: u32) -> Option<&SentRepair> {
        let age = usize::try_from(self.next_key.wrapping_sub(key)).ok()?;
        self.sent.get(self.sent.len().checked_sub(age)?)
    }

    /// Whether the repair symbol with this key is remembered and left behind `sn`. Its encoding
    /// window may begin later: equations of earlier symbols have `sn`, which it solved.
    pub(crate) fn may_have_recovered(&self, key: u32, sn: Sn) -> bool {
        self.get(key).is_some_and(|repair| sn.since(repair.end) < 0)
    }

    /// The peer recovered `sn`, which has left once: if it arrives, it was late.
    pub(crate) fn on_recovered(&mut self, sn: Sn) {
        if self.recovered.len() == MAX_RECOVERED {
            self.recovered.pop_front();
        }
        queue::push(&mut self.recovered, sn);
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.sent.capacity() > 0
    }

    /// Forgets what has left, for an idle connection.
    pub(crate) fn release_memory(&mut self) {
        (self.sent, self.recovered) = (VecDeque::new(), VecDeque::new());
    }

    /// A transmission of `sn` arrived. Returns whether the peer had recovered it before.
    pub(crate) fn on_late_arrival(&mut self, sn: Sn) -> bool {
        let before = self.recovered.len();
        self.recovered.retain(|recovered| *recovered != sn);
        self.recovered.len() < before
    }

    /// When a segment that counts as lost at `overdue[0]` is retransmitted: as soon as more segments
    /// are overdue than repair symbols that left behind it can still turn out to have recovered
    /// some. `overdue`: when it and those transmitted after it count as lost, in that order;
    /// `effect`: time in microseconds after which the ACK of what a symbol recovered is there.
    pub(crate) fn retransmit_at(
        &self,
        (sn, sent): (Sn, Micros),
        effect: u64,
        mut overdue: impl Iterator<Item = Micros>,
    ) -> Option<Micros> {
        let until = sent.add_micros(MAX_COVERING_DELAY);
        let behind = |repair: &&SentRepair| repair.at >= sent;
        let covers = |repair: &&SentRepair| repair.has(sn) && repair.at <= until;
        let newest_first = self.sent.iter().rev().take_while(behind);
        let skipped = newest_first.clone().filter(covers).count().saturating_sub(MAX_COVERING);
        let pending = newest_first.filter(covers).skip(skipped);
        // With each symbol whose effect would have been seen, one overdue segment more suffices.
        let mut earliest = Micros(u64::MAX);
        for repair in pending {
            let Some(lost) = overdue.next() else { return Some(earliest) };
            earliest = earliest.min(lost.max(repair.at.add_micros(effect)));
        }
        Some(overdue.next().map_or(earliest, |lost| earliest.min(lost)))
            .filter(|at| at.0 < u64::MAX)
    }
}

impl SentRepair {
    fn has(&self, sn: Sn) -> bool {
        sn.since(self.first) >= 0 && sn.since(self.end) < 0
    }
}
