//! Acknowledged segments: the history that late ACKs need, and the proof that `una` needs.
//!
//! [`AckedHistory`]: send times of recently acknowledged segments, for RTT samples and detection of spurious
//! retransmissions (Eifel, RFC 3522).
//!
//! A cumulative `una` removes segments from [`SentSegments`](super::sent::SentSegments) before their
//! own ACKs arrive. Such an ACK still gives an RTT sample, and its echoed `ts` tells which transmission
//! arrived. kcp-go ignores it (`parse_ack` returns below `snd_una`).
//!
//! [`UnaProof`]: how much of the cumulative acknowledgement counts for the congestion control.
//!
//! `una` carries no proof: a peer could send it without receiving anything, to raise its own sending rate
//! (optimistic ACKs, RFC 9000 21.4). An ACK is proof, since it echoes number and timestamp of a transmission.
//! Every implementation acknowledges the latest of several segments in order, so an ACK proves all segments
//! before it. The first ACK of a segment also proves the `una` of its datagram: it may fill a gap behind
//! which ACKs were lost, and these are not sent again.
//!
//! Segments that `una` covers without proof leave the send buffer, but stay in flight for windows and
//! congestion control until an ACK proves them or a timeout writes some of them off. The timeout doubles up
//! to 250 ms. Each timeout also lets one segment leave regardless of the windows: its ACK proves all segments
//! before it if an outage swallowed the ACKs of a whole window.

use std::collections::VecDeque;

use crate::core::clock::{Clock, Micros};
use crate::core::recovery::sent::{SentSegment, XMIT_SEQS_PER_DATAGRAM};
use crate::core::seq::{Sn, Ts};
use crate::util::queue;

/// Segments kept: one for each bit of [`SentTimes::acked`].
const CAPACITY: u32 = u64::BITS;
/// Segments still kept after [`AckedHistory::release_memory`].
const CAPACITY_IDLE: u32 = 8;

/// Transmission times of one acknowledged segment or of a run.
#[derive(Clone, Copy, Debug)]
struct SentTimes {
    first_ts: Ts,
    last_ts: Ts,
    /// Time of the last transmission, microseconds modulo 2^32.
    last_sent: u32,
    /// [`SentSegment::xmit_seq`] of the first segment modulo 2^32.
    xmit_seq: u32,
    /// At least 1.
    count: u32,
    /// Bit `i` is set once an ACK of segment `i` arrived. In a run only ACKs after `una` passed it are
    /// recorded.
    acked: u64,
    /// Retransmitted, and removed by `una` without an ACK of its own: the next late ACK shows that the
    /// retransmission was spurious, and clears this.
    unjudged_retransmit: bool,
    /// The retransmission left in several copies: then only an ACK of the original shows that.
    copied: bool,
    /// `una` arrived too soon to be due to the retransmission.
    judged: bool,
}

/// Verdict on a late ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateAck {
    /// The history has dropped the segment.
    Stale,
    /// The segment was never sent, or never with this timestamp.
    Invalid,
    /// Acknowledges the last transmission. `rtt` in microseconds, `None` for a duplicate ACK; `xmit_seq`
    /// modulo 2^32. `spurious`: the segment was retransmitted, and `una` covered it before its own ACK
    /// arrived.
    LastTransmission { rtt: Option<u64>, xmit_seq: u32, spurious: bool },
    /// Acknowledges an earlier transmission, which left `apart` milliseconds before the last. `spurious`: the
    /// retransmission was not needed (RFC 3522 3.2). `judged`: that was already known when `una` covered the
    /// segment.
    EarlierTransmission { spurious: bool, apart: u64, judged: bool },
}

impl SentTimes {
    /// Forgets the first `count` segments of a longer run.
    fn advance(&mut self, count: u32) {
        self.xmit_seq = self.nth_xmit_seq(count);
        self.acked = self.acked.checked_shr(count).unwrap_or(0);
        self.count -= count;
    }

    #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
    fn nth_xmit_seq(&self, index: u32) -> u32 {
        self.xmit_seq.wrapping_add(index.wrapping_mul(XMIT_SEQS_PER_DATAGRAM as u32))
    }
}

/// The latest [`CAPACITY`] segments that cumulative acknowledgements removed, oldest first.
#[derive(Debug, Default)]
pub(crate) struct AckedHistory {
    times: VecDeque<SentTimes>,
    /// Segments of all `times`.
    len: u32,
    /// At least one segment was dropped from `times`, so an ACK of an unknown segment is stale, not invalid.
    evicted: bool,
}

impl AckedHistory {
    /// Adds the `count` segments, beginning with `first`, that `una` removes as one run. `copied`: the
    /// retransmission left in several copies, so an ACK of an earlier transmission may belong to a copy.
    /// `judged`: it is known to be spurious.
    pub(crate) fn remember(
        &mut self,
        clock: &Clock,
        first: &SentSegment,
        count: u32,
        copied: bool,
        judged: bool,
    ) {
        let times = SentTimes {
            first_ts: first.first_ts,
            last_ts: clock.timestamp(first.last_sent),
            last_sent: low_half(first.last_sent),
            xmit_seq: first.xmit_seq_low(),
            count,
            acked: first.acked.into(),
            unjudged_retransmit: first.retransmitted && !first.acked,
            copied,
            judged,
        };
        // Called before the push, so that the queue does not grow beyond its capacity, and after it to trim a
        // long run.
        self.keep(CAPACITY.saturating_sub(count));
        self.len += count;
        queue::push(&mut self.times, times);
        self.keep(CAPACITY);
    }

    /// Drops all but the latest `count` segments.
    fn keep(&mut self, count: u32) {
        let mut surplus = self.len.saturating_sub(count);
        self.evicted |= surplus > 0;
        self.len -= surplus;
        while surplus > 0
            && let Some(oldest) = self.times.front_mut()
        {
            if surplus < oldest.count {
                oldest.advance(surplus);
                return;
            }
            surplus -= oldest.count;
            self.times.pop_front();
        }
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.times.capacity() > CAPACITY_IDLE as usize
    }

    /// Forgets all but the latest [`CAPACITY_IDLE`] segments, for an idle connection. Their late ACKs are
    /// then stale, not invalid.
    pub(crate) fn release_memory(&mut self) {
        self.keep(CAPACITY_IDLE);
        self.times.shrink_to_fit();
    }

    /// Index of the entry that holds the segment `age` numbers before `una`, and of the segment in it. Most
    /// ACKs are of recent segments, so the search begins at the end.
    fn find(&self, age: u32) -> Option<(usize, u32)> {
        if age == 0 || age > self.len {
            return None;
        }
        let mut newer = 0;
        for (at, times) in self.times.iter().enumerate().rev() {
            newer += times.count;
            if age <= newer {
                return Some((at, newer - age));
            }
        }
        None
    }

    /// First and last `ts` of the segment `age` numbers before `una`.
    pub(crate) fn timestamps(&self, age: u32) -> Option<(Ts, Ts)> {
        self.times.get(self.find(age)?.0).map(|times| (times.first_ts, times.last_ts))
    }

    /// Processes an ACK with timestamp `ts` of the segment `age` numbers before `una`.
    pub(crate) fn on_ack(&mut self, now: Micros, age: u32, ts: Ts) -> LateAck {
        let unknown = if self.evicted { LateAck::Stale } else { LateAck::Invalid };
        let Some((at, index)) = self.find(age) else { return unknown };
        let Some(times) = self.times.get_mut(at) else { return unknown };
        if !ts.is_within(times.first_ts, times.last_ts) {
            return LateAck::Invalid;
        }
        let judges = !times.copied || (ts == times.first_ts && ts != times.last_ts);
        let spurious = judges && std::mem::take(&mut times.unjudged_retransmit);
        if ts != times.last_ts {
            let apart = u64::from(times.last_ts.since(ts).unsigned_abs());
            return LateAck::EarlierTransmission { spurious, apart, judged: times.judged };
        }
        // A path may duplicate an ACK much later, so only the first one is an RTT sample.
        let is_first = times.acked & (1 << index) == 0;
        times.acked |= 1 << index;
        let rtt = is_first.then(|| u64::from(low_half(now).wrapping_sub(times.last_sent)));
        LateAck::LastTransmission { rtt, xmit_seq: times.nth_xmit_seq(index), spurious }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "differences of up to an hour are exact")]
fn low_half(time: Micros) -> u32 {
    time.0 as u32
}

/// Maximum number of doublings of the timeout.
const MAX_BACKOFF: u8 = 6;
/// Limit up to which the timeout doubles, microseconds: an honest peer's ACKs may be lost too.
const MAX_DOUBLED: u64 = 250_000;

/// Tracks which segments are proved to have arrived.
#[derive(Debug)]
pub(crate) struct UnaProof {
    /// The number after the last segment that is proved or written off.
    proved: Sn,
    /// Start of the timeout.
    since: Micros,
    /// Timeouts since the latest proof.
    backoff: u8,
    /// Whether the current datagram carries the first ACK of a segment.
    has_first_ack: bool,
    /// SND.NXT at the latest timeout: this segment may leave.
    probe: Option<Sn>,
}

impl UnaProof {
    /// `start` is the first sequence number.
    pub(crate) fn new(start: Sn) -> Self {
        Self { proved: start, since: Micros(0), backoff: 0, has_first_ack: false, probe: None }
    }

    /// Segments before `una` that are not proved.
    #[inline]
    pub(crate) fn unproved(&self, una: Sn) -> u32 {
        una.offset_from(self.proved).unwrap_or(0)
    }

    /// How many of the `count` segments from `una` on are proved.
    #[inline]
    pub(crate) fn proved(&self, una: Sn, count: u32) -> u32 {
        self.proved.offset_from(una).unwrap_or(0).min(count)
    }

    /// A valid ACK of `sn` arrived. Returns how many segments before `una` it proves.
    #[inline]
    pub(crate) fn on_ack(&mut self, sn: Sn, una: Sn) -> u32 {
        let after = sn.advance(1);
        if after.since(self.proved) <= 0 {
            return 0;
        }
        let before = self.unproved(una);
        (self.proved, self.backoff) = (after, 0);
        before - self.unproved(una)
    }

    /// The first ACK of a segment arrived: it proves the `una` of its datagram.
    pub(crate) fn on_first_ack(&mut self) {
        self.has_first_ack = true;
    }

    /// Whether an ACK of the current datagram proves `una`.
    #[inline]
    pub(crate) fn has_first_ack(&self) -> bool {
        self.has_first_ack
    }

    /// Called at the end of a datagram that carried acknowledgements.
    #[inline]
    pub(crate) fn end_datagram(&mut self) {
        self.has_first_ack = false;
    }

    /// `una` has advanced; `unproved` segments were unproved before.
    #[inline]
    pub(crate) fn on_una(&mut self, now: Micros, una: Sn, unproved: u32) {
        if unproved == 0 && self.unproved(una) > 0 {
            self.since = now;
        }
    }

    /// When some of the unproved segments are written off. `rto` in microseconds.
    pub(crate) fn deadline(&self, una: Sn, rto: u64) -> Option<Micros> {
        let timeout = rto.max((rto << self.backoff).min(MAX_DOUBLED));
        (self.unproved(una) > 0).then(|| self.since.add_micros(timeout))
    }

    /// Whether `nxt`, the next segment, may leave to ask for proof.
    #[inline]
    pub(crate) fn may_probe(&self, nxt: Sn) -> bool {
        self.probe == Some(nxt)
    }

    /// If the timeout has expired, writes off segments and lets `nxt` leave; both together at most `max`, but at
    /// least one each. Returns how many were written off.
    #[inline]
    pub(crate) fn expire(&mut self, now: Micros, una: Sn, nxt: Sn, rto: u64, max: u32) -> u32 {
        if self.deadline(una, rto).is_none_or(|at| now < at) {
            return 0;
        }
        let count = self.unproved(una).min(max.saturating_sub(1).max(1));
        (self.proved, self.since) = (self.proved.advance(count), now);
        self.probe = Some(nxt);
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        count
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a clock needs an instant to start from")]
mod tests {
    use super::*;
    use crate::core::recovery::sent::SentSegments;
    use crate::core::send::buffer::BufferRange;
    use proptest::prelude::*;

    /// Rule: P-25.
    #[test]
    fn timeout_of_unproved_segments_lets_the_next_segment_ask_for_proof() {
        const RTO: u64 = 1_000;
        let mut proof = UnaProof::new(Sn(0));
        let (una, nxt) = (Sn(40), Sn(50));
        proof.on_una(Micros(7), una, 0);
        assert_eq!(proof.expire(Micros(6 + RTO), una, nxt, RTO, 32), 0);
        assert!(!proof.may_probe(nxt));
        assert_eq!(proof.expire(Micros(7 + RTO), una, nxt, RTO, 32), 31);
        assert_eq!((proof.unproved(una), proof.may_probe(nxt)), (9, true));
        assert!(!proof.may_probe(Sn(51)), "one segment");
        // The timeout doubles without proof.
        assert_eq!(proof.deadline(una, RTO), Some(Micros(7 + 3 * RTO)));
    }

    /// Segments may be longer than the initial window.
    #[test]
    fn timeout_writes_off_one_segment_if_the_limit_has_no_place_for_more() {
        for (max, written_off) in [(0, 1), (1, 1), (2, 1), (3, 2)] {
            let mut proof = UnaProof::new(Sn(0));
            let (una, nxt) = (Sn(40), Sn(50));
            proof.on_una(Micros(0), una, 0);
            assert_eq!(proof.expire(Micros(1_000), una, nxt, 1_000, max), written_off, "{max}");
            assert_eq!((proof.unproved(una), proof.may_probe(nxt)), (40 - written_off, true));
        }
    }

    proptest! {
        #[test]
        fn runs_and_single_segments_have_the_same_late_acks(
            steps in prop::collection::vec((0_u8..6, 0_u32..90), 1..80),
        ) {
            let clock = Clock::new(std::time::Instant::now(), 0);
            let (mut runs, mut singles) = (AckedHistory::default(), AckedHistory::default());
            let mut sent = SentSegments::new(Sn(0));
            for (i, (step, pick)) in steps.into_iter().enumerate() {
                let now = Micros(i as u64 * 700);
                let (copied, judged) = (pick % 5 == 0, pick % 7 == 0);
                match step {
                    0 | 1 => {
                        for _ in 0..=pick * 3 {
                            sent.begin_datagram();
                            sent.push_to_runs(now, clock.timestamp(now), BufferRange::default(), 0);
                        }
                        let sn = sent.una().advance(pick / 2);
                        match pick % 3 {
                            0 => sent.ack(sn),
                            1 if step == 1 => sent.mark_retransmitted(now.add_micros(90), sn, 0, false),
                            _ => {}
                        }
                        while !sent.is_empty() {
                            let single = |first: &SentSegment, index| first.nth_of_run(index);
                            let count = sent.pop_acked_run(pick * 2 + 1, |first, count| {
                                runs.remember(&clock, first, count, copied, judged);
                                for index in 0..count {
                                    singles.remember(&clock, &single(first, index), 1, copied, judged);
                                }
                            });
                            if count == 0 {
                                let segment = sent.pop_acked().unwrap();
                                runs.remember(&clock, &segment, 1, copied, judged);
                                singles.remember(&clock, &segment, 1, copied, judged);
                            }
                        }
                    }
                    2 if pick % 16 == 0 => {
                        runs.release_memory();
                        singles.release_memory();
                    }
                    _ => {
                        let ts = runs.timestamps(pick);
                        prop_assert_eq!(ts, singles.timestamps(pick));
                        let ts = ts.map_or(Ts(0), |(first, last)| if step > 4 { first } else { last });
                        prop_assert_eq!(runs.on_ack(now, pick, ts), singles.on_ack(now, pick, ts));
                    }
                }
            }
        }
    }

    #[test]
    fn late_ack_after_release_memory_is_stale_not_invalid() {
        let clock = Clock::new(std::time::Instant::now(), 0);
        let (mut sent, mut history) = (SentSegments::new(Sn(0)), AckedHistory::default());
        for ms in 0..20 {
            let now = Micros(ms * 1_000);
            sent.push(now, clock.timestamp(now), BufferRange::default(), 0);
            history.remember(&clock, &sent.pop_acked().unwrap(), 1, false, false);
        }
        assert!(history.has_reclaimable_memory());
        let now = Micros(50_000);
        assert_eq!(
            history.on_ack(now, 21, Ts(0)),
            LateAck::Invalid,
            "no such segment was ever sent"
        );
        history.release_memory();
        assert!(!history.has_reclaimable_memory());
        assert_eq!(history.on_ack(now, 9, Ts(11)), LateAck::Stale);
        let rtt = Some(38_000);
        assert_eq!(
            history.on_ack(now, 8, Ts(12)),
            LateAck::LastTransmission { rtt, xmit_seq: 13, spurious: false }
        );
        assert_eq!(
            history.on_ack(now, 1, Ts(18)),
            LateAck::Invalid,
            "not a timestamp of its transmissions"
        );
    }

    /// Rule: P-12.
    #[test]
    fn late_ack_counts_for_the_last_64_segments() {
        let clock = Clock::new(std::time::Instant::now(), 0);
        let (mut sent, mut history) = (SentSegments::new(Sn(0)), AckedHistory::default());
        for ms in 0..70 {
            let now = Micros(ms * 1_000);
            sent.push(now, clock.timestamp(now), BufferRange::default(), 0);
            history.remember(&clock, &sent.pop_acked().unwrap(), 1, false, false);
        }
        let now = Micros(100_000);
        assert!(matches!(history.on_ack(now, 64, Ts(6)), LateAck::LastTransmission { .. }));
        assert_eq!(history.on_ack(now, 65, Ts(5)), LateAck::Stale);
    }

    /// An ACK of the last timestamp may be of any copy, so only one of the original shows that the
    /// retransmission was spurious.
    #[test]
    fn late_ack_shows_a_spurious_retransmission_unless_it_may_be_of_a_copy() {
        let clock = Clock::new(std::time::Instant::now(), 0);
        for (copied, again, ts, expected) in [
            (false, 10, 10, true),
            (false, 10, 5, true),
            (false, 10, 0, true),
            (true, 10, 10, false),
            (true, 10, 5, false),
            (true, 10, 0, true),
            (true, 0, 0, false),
        ] {
            let (mut sent, mut history) = (SentSegments::new(Sn(0)), AckedHistory::default());
            sent.push(Micros(0), Ts(0), BufferRange::default(), 0);
            sent.mark_retransmitted(Micros(again * 1_000), Sn(0), 0, false);
            history.remember(&clock, &sent.pop_acked().unwrap(), 1, copied, false);
            let spurious = match history.on_ack(Micros(50_000), 1, Ts(ts)) {
                LateAck::LastTransmission { spurious, .. }
                | LateAck::EarlierTransmission { spurious, .. } => spurious,
                late => panic!("{late:?}"),
            };
            assert_eq!(spurious, expected, "copied {copied}, {again} ms, ACK of {ts}");
        }
    }
}
