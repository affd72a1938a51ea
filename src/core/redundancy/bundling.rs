//! Bundling: segments leave a second time in a datagram with newer ones (redundant data bundling of thin TCP
//! streams; RFC 2198 for RTP).
//!
//! A small message leaves most of its datagram empty. A copy of the previous message costs a segment header
//! and its bytes there, and no packet. If the previous datagram was lost, the peer has its message when the
//! next one arrives, earlier than by a retransmission. To every KCP a copy is a retransmission.
//!
//! A message without a successor is copied in a datagram of its own. [`RedundancyCredit`] limits the number
//! of copies.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::core::clock::Micros;
use crate::core::recovery::sent::SentSegments;
use crate::core::redundancy::repair::RedundancyCredit;
use crate::core::segment::HEADER_LEN;
use crate::core::seq::{Sn, Ts};
use crate::util::queue;

/// Longest time that a segment waits for a datagram to join, microseconds; at most half a round trip, and at least
/// [`MIN_AGE`].
const MAX_TAIL_DELAY: u64 = 20_000;
/// Age up to which a segment is copied, microseconds; at most a round trip. After it, the ACK or the
/// retransmission is due.
const MAX_AGE: u64 = 50_000;
/// Largest credit, bytes.
const MAX_CREDIT: usize = 1_400;
/// Least age of a copied segment, microseconds. Copies differ from originals by their timestamp, in
/// milliseconds, and segments that leave together are lost together.
const MIN_AGE: u64 = 2_000;
/// Copies remembered: up to 256 segments are in flight, and their ACKs arrive a round trip later.
const MAX_REMEMBERED: usize = 256;
/// Copies of segments further before SND.UNA are forgotten.
const MAX_BEHIND: i32 = 64;
/// Copies that an idle connection remembers: a peer's RST names the latest segment that it received, which
/// may be a copy.
const IDLE_REMEMBERED: usize = 2;

#[derive(Clone, Copy, Debug)]
struct BundledCopy {
    at: Micros,
    sn: Sn,
    ts: Ts,
}

/// Redundant data bundling of one connection.
#[derive(Debug)]
pub(crate) struct RedundantBundling {
    credit: RedundancyCredit,
    /// When the latest new segment left.
    last_new: Micros,
    /// Segments before this are not copied again.
    covered: Sn,
    /// The latest copies, oldest first, at most [`MAX_REMEMBERED`].
    copies: VecDeque<BundledCopy>,
}

impl RedundantBundling {
    /// `nxt` is SND.NXT.
    pub(crate) fn new(rate: u32, nxt: Sn) -> Self {
        let (last_new, copies) = (Micros(0), VecDeque::new());
        Self { credit: RedundancyCredit::new(rate), last_new, covered: nxt, copies }
    }

    /// Sets the rate; 0: no copy leaves. `nxt` is SND.NXT.
    pub(crate) fn set_rate(&mut self, rate: u32, nxt: Sn) {
        if self.rate() == 0 || rate == 0 {
            self.skip(nxt);
        }
        self.credit.set_rate(rate);
    }

    /// Bytes of copies per million bytes of data.
    pub(crate) fn rate(&self) -> u32 {
        self.credit.rate()
    }

    /// Copies sent, and their bytes.
    pub(crate) fn sent(&self) -> (u64, u64) {
        self.credit.sent()
    }

    /// Skips all segments sent so far.
    pub(crate) fn skip(&mut self, nxt: Sn) {
        self.credit.clear();
        self.covered = nxt;
    }

    /// A segment with `len` payload bytes leaves for the first time.
    pub(crate) fn on_new_segment(&mut self, now: Micros, len: usize) {
        self.last_new = now;
        self.credit.on_data(HEADER_LEN + len, MAX_CREDIT);
    }

    /// Whether the credit suffices for a copy with `len` payload bytes.
    fn has_credit(&self, len: usize) -> bool {
        self.credit.has(HEADER_LEN + len)
    }

    /// Ages at which a segment is copied, microseconds.
    fn ages(srtt: u64) -> RangeInclusive<u64> {
        MIN_AGE..=MAX_AGE.min(srtt)
    }

    /// The newest segment before `end` to copy now, if it has at most `space` bytes with its header. `srtt`
    /// in microseconds.
    pub(crate) fn next_copy(
        &self,
        now: Micros,
        sent: &SentSegments,
        srtt: u64,
        end: Sn,
        space: usize,
    ) -> Option<Sn> {
        let una = sent.una();
        let covered = if una.since(self.covered) > 0 { una } else { self.covered };
        let ages = Self::ages(srtt);
        let mut sn = end;
        while sn.since(covered) > 0 {
            sn = sn.back(1);
            let segment = sent.get(sn)?;
            let age = now.since(segment.last_sent);
            if age > *ages.end() {
                return None;
            }
            if segment.acked || segment.retransmitted || age < *ages.start() {
                continue;
            }
            let len = sent.payload(sn)?.len();
            let fits = HEADER_LEN + len <= space && self.has_credit(len);
            return fits.then_some(sn);
        }
        None
    }

    /// Ends the copying of segments before `end`, except for those that are still too young. `srtt` in
    /// microseconds.
    pub(crate) fn end_bundle(&mut self, now: Micros, sent: &SentSegments, srtt: u64, end: Sn) {
        let ages = Self::ages(srtt);
        // One that was acknowledged or retransmitted is never copied, so it is not waited for.
        let is_young = |sn: &Sn| {
            let segment = sent.get(*sn).filter(|sent| !sent.acked && !sent.retransmitted);
            segment.is_some_and(|sent| now.since(sent.last_sent) < *ages.start())
        };
        let before = std::iter::successors(Some(end), |sn| Some(sn.back(1)));
        self.covered = before.skip(1).find(|sn| !is_young(sn)).map_or(end, |sn| sn.advance(1));
    }

    /// When copies leave in a datagram of their own because no new segment followed. `srtt` in microseconds.
    pub(crate) fn tail_at(&self, nxt: Sn, srtt: u64) -> Option<Micros> {
        let waits = self.rate() > 0 && self.covered != nxt && self.credit.has(1);
        waits.then(|| self.last_new.add_micros(MAX_TAIL_DELAY.min(srtt / 2).max(MIN_AGE)))
    }

    /// A copy of `sn` with `len` payload bytes leaves with timestamp `ts`.
    pub(crate) fn on_copy_sent(&mut self, at: Micros, sn: Sn, ts: Ts, len: usize, una: Sn) {
        self.credit.on_sent(HEADER_LEN + len);
        let is_old = |copy: &BundledCopy| copy.sn.since(una) < -MAX_BEHIND;
        while self.copies.len() == MAX_REMEMBERED || self.copies.front().is_some_and(is_old) {
            self.copies.pop_front();
        }
        queue::push(&mut self.copies, BundledCopy { at, sn, ts });
    }

    /// Whether a recent copy was of `sn` with this timestamp.
    pub(crate) fn is_copy(&self, sn: Sn, ts: Ts) -> bool {
        self.copies.iter().any(|copy| copy.sn == sn && copy.ts == ts)
    }

    /// When a copy of `sn` left.
    pub(crate) fn copied_at(&self, sn: Sn) -> Option<Micros> {
        self.copies.iter().rev().find(|copy| copy.sn == sn).map(|copy| copy.at)
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.copies.len() > IDLE_REMEMBERED
    }

    /// Forgets all but the latest copies, for an idle connection.
    pub(crate) fn release_memory(&mut self) {
        let old = self.copies.len().saturating_sub(IDLE_REMEMBERED);
        self.copies.drain(..old);
        self.copies.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::send::buffer::BufferRange;

    const RTT: u64 = 50_000;

    #[test]
    fn copies_take_no_more_than_the_rate_of_the_data() {
        for (rate, most) in [(1_000_000, 1_000), (420_000, 420), (0, 0)] {
            let mut bundling = RedundantBundling::new(rate, Sn(0));
            let mut copies = 0;
            for sn in 0..1_000 {
                bundling.on_new_segment(Micros(u64::from(sn) * 16_000), 100);
                if bundling.has_credit(100) {
                    bundling.on_copy_sent(Micros(0), Sn(sn), Ts(0), 100, Sn(0));
                    copies += 1;
                }
            }
            assert_eq!(copies, most, "rate {rate}");
            assert!(bundling.copies.len() <= MAX_REMEMBERED);
        }
    }

    #[test]
    fn credit_of_a_pause_is_one_datagram() {
        let mut bundling = RedundantBundling::new(RedundancyCredit::MAX_RATE, Sn(0));
        (0..1_000).for_each(|_| bundling.on_new_segment(Micros(0), 100));
        let mut copies = 0;
        while bundling.has_credit(100) {
            bundling.on_copy_sent(Micros(0), Sn(copies), Ts(0), 100, Sn(0));
            copies += 1;
        }
        assert_eq!(copies, 11);
    }

    #[test]
    fn segment_that_no_other_follows_is_copied_by_itself() {
        let mut bundling = RedundantBundling::new(RedundancyCredit::MAX_RATE, Sn(0));
        assert_eq!(bundling.tail_at(Sn(0), RTT), None);
        bundling.on_new_segment(Micros(7), 100);
        assert_eq!(bundling.tail_at(Sn(1), RTT), Some(Micros(20_007)));
        assert_eq!(bundling.tail_at(Sn(1), 10_000), Some(Micros(5_007)));
        assert_eq!(
            bundling.tail_at(Sn(1), 50),
            Some(Micros(7 + MIN_AGE)),
            "younger ones are not copied"
        );
        bundling.skip(Sn(1));
        assert_eq!(bundling.tail_at(Sn(1), RTT), None);
    }

    /// It is not copied, so nothing would end a wait for it.
    #[test]
    fn retransmitted_segment_is_not_waited_for() {
        let mut bundling = RedundantBundling::new(RedundancyCredit::MAX_RATE, Sn(0));
        let mut sent = SentSegments::new(Sn(0));
        sent.push(Micros(0), Ts(0), BufferRange::default(), 0);
        bundling.on_new_segment(Micros(0), 100);
        bundling.end_bundle(Micros(MIN_AGE - 1), &sent, RTT, Sn(1));
        assert!(bundling.tail_at(Sn(1), RTT).is_some(), "it is too young");
        sent.mark_retransmitted(Micros(200_000), Sn(0), 1, false);
        bundling.end_bundle(Micros(200_001), &sent, RTT, Sn(1));
        assert_eq!(bundling.tail_at(Sn(1), RTT), None);
    }

    #[test]
    fn ack_of_a_copy_is_known_by_its_timestamp() {
        let mut bundling = RedundantBundling::new(RedundancyCredit::MAX_RATE, Sn(0));
        bundling.on_copy_sent(Micros(0), Sn(5), Ts(70), 100, Sn(0));
        assert!(bundling.is_copy(Sn(5), Ts(70)));
        assert!(!bundling.is_copy(Sn(5), Ts(71)) && !bundling.is_copy(Sn(6), Ts(70)));
        bundling.release_memory();
        assert!(bundling.is_copy(Sn(5), Ts(70)), "the latest are remembered");
    }
}
