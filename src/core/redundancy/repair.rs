//! When repair symbols leave, and which segments they cover (RFC 8681 3.5 encoding window).
//!
//! [`RedundancyCredit`] limits their number. A symbol leaves right after the segment that makes the credit
//! suffice. Another one follows the last segment of a burst if nothing has covered it for a while.

use std::collections::VecDeque;

use crate::core::clock::Micros;
use crate::core::recovery::sent::SentSegments;
use crate::core::redundancy::rlc::{MAX_WINDOW, SYMBOL_HEADER};
use crate::core::segment::HEADER_LEN;
use crate::core::seq::Sn;
use crate::util::queue;

/// Longest time from the last segment of a burst to the repair symbol that covers it, microseconds; at most
/// half a round trip.
const MAX_TAIL_DELAY: u64 = 25_000;
/// Repair symbols remembered: at the highest rate one follows each of up to 256 segments in flight, and ACKs
/// arrive a round trip later.
const MAX_REMEMBERED: usize = 320;
/// A lost segment waits for repair symbols that leave within this time of it, microseconds.
const MAX_COVERING_DELAY: u64 = 40_000;
/// Most repair symbols that a lost segment waits for.
const MAX_COVERING: usize = 16;
/// Recovered segments remembered, since the original may still arrive.
const MAX_RECOVERED: usize = 64;

/// Encoding window of the next repair symbol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodingWindow {
    pub(crate) first: Sn,
    /// Segments, 1 to [`MAX_WINDOW`].
    pub(crate) count: u8,
    /// Longest payload, bytes.
    pub(crate) longest: usize,
}

impl EncodingWindow {
    /// Length of the repair symbol, bytes.
    pub(crate) fn symbol_len(&self) -> usize {
        SYMBOL_HEADER + self.longest
    }
}

#[derive(Clone, Copy, Debug)]
struct SentRepair {
    at: Micros,
    first: Sn,
    /// The number after the last one it covers.
    end: Sn,
}

/// Repair symbols of one connection.
#[derive(Debug)]
pub(crate) struct RepairSchedule {
    credit: RedundancyCredit,
    /// Bytes of the latest first transmission, header included.
    last_len: usize,
    /// Time of the latest first transmission.
    last_new: Micros,
    /// SND.NXT when the latest repair symbol left.
    covered: Sn,
    next_key: u32,
    /// The latest ones, oldest first; the newest has the key `next_key` - 1.
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

    /// Repair symbols sent, and their bytes.
    pub(crate) fn sent(&self) -> (u64, u64) {
        self.credit.sent()
    }

    /// A segment with `len` payload bytes leaves for the first time. `latency_bound`: this is a message flow;
    /// other flows get no repair symbols.
    pub(crate) fn on_new_segment(&mut self, now: Micros, len: usize, nxt: Sn, latency_bound: bool) {
        if !latency_bound || self.is_off() {
            self.credit.clear();
            self.covered = nxt;
            return;
        }
        (self.last_len, self.last_new) = (HEADER_LEN + len, now);
        // Limited, so that credit does not pile up while a pacer or rate limit holds symbols back.
        self.credit.on_data(self.last_len, 2 * self.last_len);
    }

    /// Whether the credit suffices for a repair symbol after the latest segment.
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

    /// Encoding window of the repair symbol that leaves now: the latest segments without cumulative
    /// acknowledgement whose repair symbol fits into `mtu` bytes.
    pub(crate) fn encoding_window(
        &mut self,
        sent: &SentSegments,
        mtu: usize,
    ) -> Option<EncodingWindow> {
        let nxt = sent.nxt();
        let (mut count, mut longest) = (0, 0);
        while usize::from(count) < MAX_WINDOW {
            let payload = sent.payload(nxt.back(u32::from(count) + 1));
            // With an MTU of 25 or 26 bytes not even the symbol of an empty message fits.
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

    /// Gives up covering the segments in flight.
    pub(crate) fn skip(&mut self, nxt: Sn) {
        self.covered = nxt;
    }

    /// The key of the repair symbol that leaves next.
    pub(crate) fn next_key(&self) -> u32 {
        self.next_key
    }

    /// A repair symbol of `len` bytes, header included, leaves; it covers `first` to `nxt`.
    pub(crate) fn on_repair_sent(&mut self, now: Micros, first: Sn, nxt: Sn, len: usize) {
        self.credit.on_sent(len);
        self.covered = nxt;
        self.next_key = self.next_key.wrapping_add(1);
        if self.sent.len() == MAX_REMEMBERED {
            self.sent.pop_front();
        }
        queue::push(&mut self.sent, SentRepair { at: now, first, end: nxt });
    }

    /// Whether a repair symbol left in the last `micros` microseconds.
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

    /// Whether the repair symbol with this key is remembered and left after `sn`. Its own window may begin
    /// later: together with equations of earlier symbols it can still solve `sn`.
    pub(crate) fn may_have_recovered(&self, key: u32, sn: Sn) -> bool {
        self.get(key).is_some_and(|repair| sn.since(repair.end) < 0)
    }

    /// The peer recovered `sn`, which was sent once. If the original arrives later, it was late, not lost.
    pub(crate) fn on_recovered(&mut self, sn: Sn) {
        if self.recovered.len() == MAX_RECOVERED {
            self.recovered.pop_front();
        }
        queue::push(&mut self.recovered, sn);
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.sent.capacity() > 0
    }

    /// Forgets sent symbols, for an idle connection.
    pub(crate) fn release_memory(&mut self) {
        (self.sent, self.recovered) = (VecDeque::new(), VecDeque::new());
    }

    /// A transmission of `sn` arrived. Returns whether the peer had recovered it before.
    pub(crate) fn on_late_arrival(&mut self, sn: Sn) -> bool {
        let before = self.recovered.len();
        self.recovered.retain(|recovered| *recovered != sn);
        self.recovered.len() < before
    }

    /// When a segment that counts as lost at `overdue[0]` is retransmitted: as soon as more segments are
    /// overdue than the repair symbols sent after it can still turn out to have recovered. `overdue`: when it
    /// and the segments transmitted after it count as lost, in order. `effect`: time until the ACK of a
    /// segment that a symbol recovered arrives, microseconds.
    pub(crate) fn retransmit_at(
        &self,
        sn: Sn,
        sent: Micros,
        effect: u64,
        mut overdue: impl Iterator<Item = Micros>,
    ) -> Option<Micros> {
        let until = sent.add_micros(MAX_COVERING_DELAY);
        let behind = |repair: &&SentRepair| repair.at >= sent;
        let covers = |repair: &&SentRepair| repair.has(sn) && repair.at <= until;
        let newest_first = self.sent.iter().rev().take_while(behind);
        let skipped = newest_first.clone().filter(covers).count().saturating_sub(MAX_COVERING);
        let pending = newest_first.filter(covers).skip(skipped);
        // Each symbol whose effect would have shown lowers the number of overdue segments needed by one.
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

const MILLION: i64 = 1_000_000;

/// Byte budget of redundancy. Each first transmission adds its bytes times a rate, and each symbol or copy
/// takes its bytes. So in any time redundancy exceeds that share of the data by at most one datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RedundancyCredit {
    /// Bytes per million bytes of data.
    rate: u32,
    /// Bytes that may leave, times a million. Negative after an overdraft.
    credit: i64,
    sent_count: u64,
    sent_bytes: u64,
}

impl RedundancyCredit {
    /// Largest rate, per million: the same number of bytes as the data.
    pub(crate) const MAX_RATE: u32 = 1_000_000;

    pub(crate) fn new(rate: u32) -> Self {
        Self { rate, credit: 0, sent_count: 0, sent_bytes: 0 }
    }

    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    pub(crate) fn set_rate(&mut self, rate: u32) {
        self.rate = rate;
    }

    /// `bytes` of data leave for the first time. At most `limit` bytes are saved.
    pub(crate) fn on_data(&mut self, bytes: usize, limit: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(0);
        let limit = i64::try_from(limit).unwrap_or(0);
        self.credit = (self.credit + bytes * i64::from(self.rate)).min(limit * MILLION);
    }

    /// Drops the saved credit.
    pub(crate) fn clear(&mut self) {
        self.credit = self.credit.min(0);
    }

    /// Whether `bytes` may leave.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        self.credit >= i64::try_from(bytes).unwrap_or(i64::MAX / MILLION) * MILLION
    }

    /// Whether the credit is not overdrawn.
    pub(crate) fn is_balanced(&self) -> bool {
        self.credit >= 0
    }

    /// One symbol or copy of `bytes` leaves.
    pub(crate) fn on_sent(&mut self, bytes: usize) {
        self.credit -= i64::try_from(bytes).unwrap_or(0) * MILLION;
        self.sent_count += 1;
        self.sent_bytes += bytes as u64;
    }

    /// Symbols or copies sent, and their bytes.
    pub(crate) fn sent(&self) -> (u64, u64) {
        (self.sent_count, self.sent_bytes)
    }
}
