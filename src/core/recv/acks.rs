//! ACKs that wait to be sent (RFC 9000 13.2; kcp-go `acklist`).
//!
//! Data in order needs no ACK of its own: `una` in every segment covers it (kcp-go `flush` filters
//! too). There remain one ACK per number above a gap, one for the latest arrival, with the
//! timestamp for the peer's RTT sample, one for the latest duplicate, and one for each of the
//! latest two pings or MTU probes, which `una` does not cover.
//!
//! The ACK of one or two segments in order may be delayed (RFC 9293 3.8.6.3, RFC 9000 13.2.1), so
//! that it shares a datagram with the answer of a woken reader. The driver decides for how long.
//!
//! ACKs of bulk are thinned (RFC 9000 13.2.2, draft-ietf-quic-ack-frequency), because one per
//! segment fills an uplink that is much slower than the downlink:
//! * Bulk is 16 full segments in order within a round trip, and lasts until a shorter one arrives, 16 take
//!   longer, or none arrives for a quarter of a round trip.
//! * An ACK of bulk is sent with the fourth segment, or a quarter of a round trip after the first.
//!   Other implementations get one for every second segment, because their window may grow once per
//!   ACK.
//! * Every other ACK is sent at once; in bulk also after a gap, a duplicate or a filled gap.
//!
//! ACKs of numbers above a gap are sent a second time in free space of later datagrams: if the
//! datagram with the first copies is lost, the peer retransmits all segments that they
//! acknowledged. In datagrams full of new ACKs half of the space is for second copies, which up to
//! doubles the number of datagrams. Limits:
//! * Only beside a new ACK: kcp-go counts one ACK per datagram towards fast retransmit
//!   (`parse_fastack`).
//! * No more bytes of second copies than payload arrived, so that a forged source address receives
//!   no more than was sent in its name (RFC 9000 8.1).

use std::collections::VecDeque;

use crate::core::clock::Micros;
use crate::core::segment::HEADER_LEN;
use crate::core::seq::{Sn, Ts};

/// Most ACKs kept for a second copy, the latest ones.
const MAX_RESENT_ACKS: usize = 64;
/// Most second copies sent at once: a burst of a large window, which arrives in one batch.
const MAX_RESEND_BURST: usize = 1_024;
/// Datagrams with space for at least this number of ACKs give second copies up to half of it: ACKs
/// fill them, not data.
const MIN_SHARED_ACKS: usize = 16;
/// Capacity of `out_of_order` that a connection keeps once all ACKs were sent.
const CAPACITY_KEPT: usize = 128;

/// Most segments in order whose ACK may be delayed (RFC 9293 3.8.6.3: at least every second full segment
/// is acknowledged without delay).
const MAX_DELAYED_SEGMENTS: u32 = 2;

/// Full segments in order within a round trip that make a flow bulk. The first segments are
/// acknowledged at once, since the sender's window grows with each ACK.
const BULK_SEGMENTS: u8 = 16;
/// Smallest payload of a full segment, bytes: the peer's MTU is unknown.
const MIN_FULL_SEGMENT: u16 = 512;
/// Segments of bulk per ACK to a kcpx peer: ACKs take a 110th of the acknowledged bytes. With 8,
/// messages beside bulk wait 2 to 7 ms longer at 20 Mbit/s, because the sender keeps a longer
/// queue.
const BULK_ACK_SEGMENTS: u32 = 4;
/// Segments of bulk per ACK to other peers (RFC 9000 13.2.2, RFC 5681 4.2).
const OTHER_BULK_ACK_SEGMENTS: u32 = 2;
/// Longest delay of an ACK of bulk to other peers, microseconds: with a steady RTT the RTO of
/// kcp-go is only one update interval, at least 10 ms, above the smoothed RTT.
const MAX_OTHER_BULK_DELAY: u32 = 5_000;
/// Divisor of the round trip: longest delay of an ACK of bulk, and longest pause in bulk.
const BULK_DELAY_DIVISOR: u32 = 4;
/// Round trip assumed before the first sample, microseconds.
const UNKNOWN_RTT: u32 = 20_000;
/// Upper bound of the round trip, microseconds: messages every 10 ms are never bulk, and no ACK
/// waits longer than with QUIC (RFC 9000 18.2, `max_ack_delay` of 25 ms).
const MAX_BULK_RTT: u32 = 100_000;
/// Shorter round trips have no bulk, microseconds: timers fire on whole milliseconds.
const MIN_BULK_RTT: u32 = 4_000;

/// `sn` and `ts` of the acknowledged PUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) sn: Sn,
    pub(crate) ts: Ts,
}

/// Whether the latest segments are bulk.
#[derive(Clone, Copy, Debug, Default)]
struct Bulk {
    /// When the first of [`Self::segments`] arrived.
    since: Micros,
    /// When the latest segment arrived.
    latest: Micros,
    /// How long an ACK may wait, microseconds; zero: no bulk.
    delay: u32,
    /// Payload of the latest segment, bytes.
    len: u16,
    /// Full segments in order since [`Self::since`], fewer than [`BULK_SEGMENTS`].
    segments: u8,
}

impl Bulk {
    /// A segment with `len` payload bytes arrived in order. `rtt` in microseconds.
    fn on_segment(&mut self, now: Micros, len: usize, rtt: Option<u64>) {
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        let rtt = rtt.map_or(UNKNOWN_RTT, |rtt| u32::try_from(rtt).unwrap_or(u32::MAX));
        let rtt = rtt.min(MAX_BULK_RTT);
        let longest_pause = rtt / BULK_DELAY_DIVISOR;
        let is_full = len >= self.len.max(MIN_FULL_SEGMENT) && rtt >= MIN_BULK_RTT;
        let pauses = now.since(self.latest) > longest_pause.into();
        if !is_full || pauses {
            (self.segments, self.delay) = (0, 0);
        }
        (self.len, self.latest) = (len, now);
        if !is_full {
            return;
        }
        if self.segments == 0 {
            self.since = now;
        }
        self.segments += 1;
        if self.segments == BULK_SEGMENTS {
            let is_dense = now.since(self.since) <= rtt.into();
            (self.segments, self.delay) = (0, if is_dense { longest_pause } else { 0 });
        }
    }
}

/// The ACKs of one connection.
#[derive(Debug, Default)]
pub(crate) struct PendingAcks {
    /// ACKs of numbers above a gap, one each: the receiver stores a number only once.
    out_of_order: Vec<Ack>,
    /// ACKs of numbers above a gap that were sent once, oldest first.
    resend: VecDeque<Ack>,
    /// Bytes of ACKs that may be sent a second time.
    resend_budget: usize,
    /// The latest two pings or MTU probes, oldest first: a peer may have one of each outstanding.
    probes: [Option<Ack>; 2],
    /// The latest duplicate.
    duplicate: Option<Ack>,
    /// The latest new segment.
    latest: Option<Ack>,
    /// Segments since all ACKs were last sent, for the ACK policy.
    arrivals: u32,
    /// When the first of them arrived; `None` while no ACK waits.
    since: Option<Micros>,
    /// A segment arrived out of order or twice: the ACKs are sent at once under every ACK policy
    /// (RFC 9000 13.2.1). Cleared when all are sent.
    immediate: bool,
    /// A gap was filled, or FEC recovered a segment: the ACKs are not delayed (RFC 5681 4.2).
    /// Cleared when all are sent.
    forbids_delay: bool,
    /// The ACKs may wait. Set by [`Self::delay`], cleared by [`Self::end_delay`]; without effect
    /// once more segments arrive than may wait.
    delayed: bool,
    bulk: Bulk,
}

impl PendingAcks {
    /// The next number in order arrived, with `len` payload bytes. `rtt`: RTT in microseconds, if
    /// there is a sample.
    #[inline]
    pub(crate) fn on_in_order(&mut self, now: Micros, ack: Ack, len: usize, rtt: Option<u64>) {
        self.on_arrival(now);
        self.latest = Some(ack);
        self.bulk.on_segment(now, len, rtt);
    }

    /// A segment above a gap was stored, or arrived again after its ACK was sent. `una` is RCV.NXT;
    /// `payload` in bytes.
    pub(crate) fn on_out_of_order(&mut self, now: Micros, una: Sn, ack: Ack, payload: usize) {
        self.on_arrival(now);
        self.resend_budget = (self.resend_budget + payload).min(MAX_RESEND_BURST * HEADER_LEN);
        if self.out_of_order.len() == self.out_of_order.capacity() {
            // Bounds the queue by the window while nothing can be sent.
            self.out_of_order.retain(|ack| ack.sn.since(una) >= 0);
        }
        self.out_of_order.push(ack);
        self.latest = Some(ack);
        self.immediate = true;
    }

    /// A ping or an MTU probe arrived.
    pub(crate) fn on_probe(&mut self, now: Micros, ack: Ack) {
        self.on_arrival(now);
        if !self.probes.contains(&Some(ack)) {
            let [_, earlier] = self.probes;
            self.probes = [earlier, Some(ack)];
        }
        self.immediate = true;
    }

    /// A duplicate arrived.
    pub(crate) fn on_duplicate(&mut self, now: Micros, ack: Ack) {
        self.on_arrival(now);
        self.duplicate = Some(ack);
        self.immediate = true;
    }

    fn on_arrival(&mut self, now: Micros) {
        self.arrivals = self.arrivals.saturating_add(1);
        self.since.get_or_insert(now);
    }

    /// When the waiting ACKs of bulk are sent, if no further segment arrives; `None`: at once.
    /// `is_kcpx`: the peer runs this crate.
    pub(crate) fn bulk_deadline(&self, is_kcpx: bool) -> Option<Micros> {
        let (most, delay) = if is_kcpx {
            (BULK_ACK_SEGMENTS, self.bulk.delay)
        } else {
            (OTHER_BULK_ACK_SEGMENTS, self.bulk.delay.min(MAX_OTHER_BULK_DELAY))
        };
        let waits = delay > 0 && !self.immediate && !self.forbids_delay && self.arrivals < most;
        self.since.filter(|_| waits).map(|since| since.add_micros(delay.into()))
    }

    /// Whether no ACK waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.since.is_none()
    }

    /// Sends the waiting ACKs with the next transmission under every ACK policy.
    pub(crate) fn flush(&mut self) {
        self.immediate = !self.is_empty();
    }

    /// The waiting ACKs, if any, must not be delayed.
    pub(crate) fn forbid_delay(&mut self) {
        self.forbids_delay = !self.is_empty();
    }

    /// Delays the waiting ACKs, if they are for at most two segments, in order.
    pub(crate) fn delay(&mut self) {
        self.delayed = self.may_delay();
    }

    fn may_delay(&self) -> bool {
        !self.immediate
            && !self.forbids_delay
            && (1..=MAX_DELAYED_SEGMENTS).contains(&self.arrivals)
    }

    /// Ends the delay. Returns whether one was set.
    pub(crate) fn end_delay(&mut self) -> bool {
        std::mem::take(&mut self.delayed)
    }

    /// Whether the waiting ACKs are delayed.
    pub(crate) fn are_delayed(&self) -> bool {
        self.delayed && self.may_delay()
    }

    /// Whether the waiting ACKs are sent at once under every ACK policy.
    pub(crate) fn is_immediate(&self) -> bool {
        self.immediate
    }

    /// Segments that arrived since all ACKs were last sent.
    pub(crate) fn arrivals(&self) -> u32 {
        self.arrivals
    }

    /// When the first segment with a waiting ACK arrived.
    pub(crate) fn since(&self) -> Option<Micros> {
        self.since
    }

    /// Takes the next ACKs to send, at most `max`. Drops ACKs below `una` (RCV.NXT), except probes,
    /// the latest duplicate and the latest arrival. The latest arrival comes last, because a peer
    /// takes its RTT sample from the last ACK of a datagram (kcp-go `Input`).
    pub(crate) fn take(&mut self, una: Sn, max: usize, mut emit: impl FnMut(Ack)) {
        let latest = self.latest;
        self.out_of_order.retain(|ack| ack.sn.since(una) >= 0 && Some(*ack) != latest);
        let mut available = max - self.resend_acks(una, max, &mut emit);
        let count = self.out_of_order.len().min(available);
        let sent = latest.filter(|ack| count < available && ack.sn.since(una) >= 0);
        let sent = self.out_of_order.drain(..count).inspect(|ack| emit(*ack)).chain(sent);
        self.resend.extend(sent);
        let surplus = self.resend.len().saturating_sub(MAX_RESENT_ACKS);
        self.resend.drain(..surplus);
        available -= count;
        let [earlier, probe] = &mut self.probes;
        for slot in [earlier, probe, &mut self.duplicate, &mut self.latest] {
            if available > 0
                && self.out_of_order.is_empty()
                && let Some(ack) = slot.take()
            {
                emit(ack);
                available -= 1;
            }
        }
        let has_sent_others = self.probes == [None; 2] && self.duplicate.is_none();
        if self.out_of_order.is_empty() && has_sent_others && self.latest.is_none() {
            // A burst above one gap can fill the window.
            if self.out_of_order.capacity() > CAPACITY_KEPT {
                self.out_of_order = Vec::new();
            }
            (self.arrivals, self.since) = (0, None);
            (self.immediate, self.forbids_delay) = (false, false);
        }
    }

    /// Emits second copies of ACKs that `una` does not cover, beside new ACKs and within `max`.
    /// Returns how many.
    fn resend_acks(&mut self, una: Sn, max: usize, emit: &mut impl FnMut(Ack)) -> usize {
        let has_new =
            !self.out_of_order.is_empty() || self.latest.is_some_and(|ack| ack.sn.since(una) >= 0);
        if self.resend.is_empty() || !has_new {
            return 0;
        }
        self.resend.retain(|ack| ack.sn.since(una) >= 0);
        let half = if max < MIN_SHARED_ACKS { 0 } else { max / 2 };
        let available = max.saturating_sub(self.len()).max(half);
        let available = available.min(self.resend_budget / HEADER_LEN);
        let count = self.resend.len().min(available);
        self.resend_budget -= count * HEADER_LEN;
        // The latest ACKs: the peer has already decided whether to retransmit for the oldest.
        let skipped = self.resend.len() - count;
        self.resend.drain(skipped..).for_each(emit);
        count
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.is_empty() && self.out_of_order.capacity() + self.resend.capacity() > 0
    }

    /// Frees all queues unless ACKs wait, for an idle connection.
    pub(crate) fn release_memory(&mut self) {
        if self.is_empty() {
            (self.out_of_order, self.resend) = (Vec::new(), VecDeque::new());
        }
    }

    /// ACKs that wait to be sent for the first time.
    pub(crate) fn len(&self) -> usize {
        self.out_of_order.len()
            + self.probes.iter().flatten().count()
            + usize::from(self.duplicate.is_some())
            + usize::from(self.latest.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(sn: u32) -> Ack {
        Ack { sn: Sn(sn), ts: Ts(sn + 1_000) }
    }

    /// Rule: P-23.
    #[test]
    fn ack_behind_a_gap_is_sent_twice_until_una_covers_it() {
        let mut acks = PendingAcks::default();
        for sn in [5, 6, 7] {
            acks.on_out_of_order(Micros(0), Sn(0), ack(sn), 1_376);
        }
        assert_eq!(taken(&mut acks, 3, 58), [5, 6, 7]);
        assert!(acks.is_empty(), "a second ACK never leaves alone");
        acks.on_out_of_order(Micros(0), Sn(3), ack(9), 1_376);
        assert_eq!(taken(&mut acks, 3, 58), [5, 6, 7, 9]);
        acks.on_out_of_order(Micros(0), Sn(3), ack(10), 1_376);
        assert_eq!(taken(&mut acks, 3, 58), [9, 10], "never a third time");
        acks.on_in_order(Micros(0), ack(3), 1_376, None);
        assert_eq!(taken(&mut acks, 11, 58), [3], "una covers the others");
    }

    #[test]
    fn ack_resend_yields_to_new_acks() {
        let mut acks = PendingAcks::default();
        (10..16).for_each(|sn| acks.on_out_of_order(Micros(0), Sn(0), ack(sn), 1_376));
        assert_eq!(taken(&mut acks, 0, 6), [10, 11, 12, 13, 14, 15]);
        (20..24).for_each(|sn| acks.on_out_of_order(Micros(0), Sn(0), ack(sn), 1_376));
        assert_eq!(taken(&mut acks, 0, 6), [14, 15, 20, 21, 22, 23]);
        (30..300).for_each(|sn| acks.on_out_of_order(Micros(0), Sn(0), ack(sn), 1_376));
        assert_eq!(taken(&mut acks, 0, 300).len(), 270 + 8);
        acks.on_duplicate(Micros(0), ack(1));
        assert_eq!(taken(&mut acks, 0, 300), [1], "a duplicate is not new");
        acks.on_out_of_order(Micros(0), Sn(0), ack(400), 0);
        assert_eq!(taken(&mut acks, 0, 300).len(), MAX_RESENT_ACKS + 1);
    }

    #[test]
    fn ack_resend_bytes_are_limited_by_received_payload() {
        let mut acks = PendingAcks::default();
        let mut sent = 0;
        for sn in 1..=100 {
            acks.on_out_of_order(Micros(0), Sn(0), ack(sn), 10);
            sent += taken(&mut acks, 0, 58).len();
        }
        assert_eq!(sent, 100 + 100 * 10 / HEADER_LEN);
    }

    /// Old payload permits no more second copies than one burst.
    #[test]
    fn ack_resend_budget_is_limited_to_a_burst() {
        let mut acks = PendingAcks::default();
        (1..=100_000).for_each(|sn| acks.on_out_of_order(Micros(0), Sn(0), ack(sn), 1_376));
        assert_eq!(taken(&mut acks, 0, 200_000).len(), 100_000, "nothing was sent before");
        // Segments without payload permit none.
        let sent = (0..3_000).map(|sn| {
            acks.on_out_of_order(Micros(0), Sn(0), ack(200_000 + sn), 0);
            taken(&mut acks, 0, 58).len()
        });
        assert_eq!(sent.sum::<usize>(), 3_000 + MAX_RESEND_BURST);
    }

    /// In a flow with each datagram full of new ACKs, a lost datagram costs no ACK.
    #[test]
    fn ack_resend_shares_datagrams_that_are_full_of_acks() {
        let (mut acks, mut copies, mut datagrams) = (PendingAcks::default(), [0; 500], 0);
        for first in [1, 58, 115, 400] {
            let burst = if first == 115 { 285 } else { 57 };
            (first..first + burst).for_each(|sn| {
                acks.on_out_of_order(Micros(0), Sn(0), ack(sn), 1_376);
            });
            while !acks.is_empty() {
                let sent = taken(&mut acks, 0, 58);
                assert!(sent.len() <= 58, "{sent:?}");
                sent.into_iter().for_each(|sn| copies[sn as usize] += 1);
                datagrams += 1;
            }
        }
        // Some ACKs of the first burst yield to the next burst.
        assert!(copies[58..428].iter().all(|copies| *copies == 2), "{copies:?}");
        assert_eq!(datagrams, 15);
    }

    const STEP: u64 = 1_000;
    const RTT: u64 = 40_000;

    /// Segments in order, one every [`STEP`], acknowledged as they arrive. Returns the time of the
    /// last.
    fn bulk(acks: &mut PendingAcks) -> u32 {
        for sn in 1..=u32::from(BULK_SEGMENTS) {
            assert_eq!(acks.bulk_deadline(true), None);
            arrive(acks, sn, 1_376);
            taken(acks, sn + 1, 58);
        }
        BULK_SEGMENTS.into()
    }

    fn arrive(acks: &mut PendingAcks, sn: u32, len: usize) {
        acks.on_in_order(Micros(u64::from(sn) * STEP), ack(sn), len, Some(RTT));
    }

    #[test]
    fn ack_of_bulk_waits_for_the_fourth_segment_or_a_quarter_of_the_rtt() {
        let mut acks = PendingAcks::default();
        let last = bulk(&mut acks);
        assert_eq!(acks.bulk_deadline(true), None, "nothing waits");
        let deadline = Micros(u64::from(last + 1) * STEP + RTT / 4);
        for count in 1..4 {
            arrive(&mut acks, last + count, 1_376);
            assert_eq!(acks.bulk_deadline(true), Some(deadline));
            let of_others = Micros(u64::from(last + 1) * STEP + 5_000);
            assert_eq!(acks.bulk_deadline(false), (count < 2).then_some(of_others));
        }
        arrive(&mut acks, last + 4, 1_376);
        assert_eq!(acks.bulk_deadline(true), None);
    }

    #[test]
    fn ack_of_bulk_leaves_at_once_after_a_short_segment_a_pause_a_gap_or_a_duplicate() {
        let leaves = |next: fn(&mut PendingAcks, u32)| {
            let mut acks = PendingAcks::default();
            let last = bulk(&mut acks);
            arrive(&mut acks, last + 1, 1_376);
            assert!(acks.bulk_deadline(true).is_some());
            next(&mut acks, last);
            assert_eq!(acks.bulk_deadline(true), None);
        };
        leaves(|acks, last| arrive(acks, last + 2, 1_000));
        leaves(|acks, last| arrive(acks, last + 12, 1_376));
        leaves(|acks, last| acks.on_out_of_order(Micros(0), Sn(last), ack(last + 3), 1_376));
        leaves(|acks, last| acks.on_duplicate(Micros(0), ack(last)));
        leaves(|acks, last| acks.on_probe(Micros(0), ack(last + (1 << 30))));
        leaves(|acks, _| acks.forbid_delay());
        leaves(|acks, _| acks.flush());
    }

    /// Too small, too far apart, or on a path shorter than timers can measure.
    #[test]
    fn ack_of_messages_and_of_short_paths_never_waits() {
        for (len, step, rtt) in [
            (100, 1_000, Some(50_000)),
            (1_024, 10_000, Some(600_000)),
            (1_376, 2_000, None),
            (1_376, 100, Some(3_999)),
        ] {
            let mut acks = PendingAcks::default();
            for sn in 0..100 {
                acks.on_in_order(Micros(u64::from(sn) * step), ack(sn), len, rtt);
                assert_eq!(acks.bulk_deadline(true), None, "{len} bytes each {step} us");
                taken(&mut acks, sn + 1, 58);
            }
        }
    }

    #[test]
    fn ack_of_a_ping_is_kept_beside_duplicates_and_probes() {
        let mut acks = PendingAcks::default();
        acks.on_probe(Micros(0), ack(1 << 30));
        acks.on_probe(Micros(0), ack(1 << 30));
        acks.on_duplicate(Micros(0), ack(1));
        acks.on_duplicate(Micros(0), ack(2));
        acks.on_probe(Micros(0), ack(1 << 31));
        assert_eq!(taken(&mut acks, 3, 58), [1 << 30, 1 << 31, 2]);
        assert!(acks.is_empty());
    }

    fn taken(acks: &mut PendingAcks, una: u32, max: usize) -> Vec<u32> {
        let mut out = Vec::new();
        acks.take(Sn(una), max, |ack| out.push(ack.sn.0));
        out
    }

    /// Rules: W-170, P-22.
    #[test]
    fn ack_in_order_data_needs_one_for_the_latest() {
        let mut acks = PendingAcks::default();
        for sn in 0..100 {
            acks.on_in_order(Micros(5), ack(sn), 1_376, None);
        }
        assert_eq!(
            (acks.arrivals(), acks.since(), acks.is_immediate()),
            (100, Some(Micros(5)), false)
        );
        assert_eq!(taken(&mut acks, 100, 58), [99]);
        assert!(acks.is_empty());
    }

    #[test]
    fn ack_each_number_behind_a_gap_with_the_latest_last() {
        let mut acks = PendingAcks::default();
        for sn in [5, 7, 6] {
            acks.on_out_of_order(Micros(0), Sn(0), ack(sn), 1_376);
        }
        acks.on_duplicate(Micros(0), ack(1));
        assert!(acks.is_immediate());
        assert_eq!(taken(&mut acks, 3, 58), [5, 7, 1, 6]);
    }

    /// Rule: P-22.
    #[test]
    fn ack_covered_by_una_is_not_sent() {
        let mut acks = PendingAcks::default();
        for sn in [5, 6, 9] {
            acks.on_out_of_order(Micros(0), Sn(0), ack(sn), 1_376);
        }
        acks.on_in_order(Micros(1), ack(4), 1_376, None);
        assert_eq!(taken(&mut acks, 7, 58), [9, 4]);
    }

    #[test]
    fn ack_beyond_the_datagram_is_left_for_the_next() {
        let mut acks = PendingAcks::default();
        for sn in 10..15 {
            acks.on_out_of_order(Micros(0), Sn(0), ack(sn), 1_376);
        }
        assert_eq!(taken(&mut acks, 0, 2), [10, 11]);
        assert_eq!(taken(&mut acks, 0, 2), [12, 13]);
        assert!(!acks.is_empty());
        assert_eq!(taken(&mut acks, 0, 2), [13, 14], "one of them is sent again");
        assert!(acks.is_empty());
    }
}
