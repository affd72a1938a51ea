//! ACK and `una` processing (RFC 9002 A.7 OnAckReceived; kcp-go `parse_ack`, `parse_una`).
//!
//! Unlike kcp-go, which accepts any number in flight, an ACK counts only with a timestamp of one of the
//! segment's transmissions, and `una` only up to SND.NXT. Test file `core/tests/malicious_peer.rs`.

use super::{AckOutcome, AckSample, Sender, UnaOutcome};
use crate::core::clock::{Clock, Micros};
use crate::core::recovery::acked::LateAck;
use crate::core::recovery::sent::SentSegment;
use crate::core::seq::{Sn, Ts};
use crate::stats::Counters;

impl Sender {
    /// Whether this would be the first ACK of a segment.
    pub(crate) fn is_unacked(&self, clock: &Clock, sn: Sn, ts: Ts) -> bool {
        let unacked = self.sent_segments.get(sn).is_some_and(|segment| !segment.acked);
        unacked && self.has_sent(clock, sn, ts)
    }

    /// Whether a PUSH with this number may have left with this timestamp: at its first transmission, its
    /// last, or in between. Covers the segments in flight and in the [acked
    /// history](crate::core::recovery::acked).
    pub(crate) fn has_sent(&self, clock: &Clock, sn: Sn, ts: Ts) -> bool {
        let in_flight =
            self.sent_segments.get(sn).map(|sent| (sent.first_ts, clock.timestamp(sent.last_sent)));
        let acked = || self.acked_history.timestamps(self.una().offset_from(sn)?);
        let is_within = |(first, last): (Ts, Ts)| ts.is_within(first, last);
        in_flight.or_else(acked).is_some_and(is_within) || self.redundancy.is_bundled_copy(sn, ts)
    }

    /// The peer is active: a valid ACK, the pong of a ping that was not early or a new `una` arrived, or a
    /// path was validated. Ends the PTO back-off, so deferred retransmissions may leave.
    pub(crate) fn on_peer_activity(&mut self, now: Micros) {
        self.path.pto_backoff.on_peer_activity(now);
        if self.is_aggregating() {
            self.on_peer_activity_elsewhere(now);
        }
    }

    /// A silent peer answered a ping. A pong acknowledges no data, so it allows one probe and no more:
    /// otherwise a peer that answers pings but acknowledges nothing would receive more than a silent one.
    pub(crate) fn on_early_pong(&mut self, now: Micros) {
        self.path.pto_backoff.on_early_pong(now);
    }

    /// Processes one ACK. [`AckOutcome::NewlyAcked`] and [`AckOutcome::AckedBefore`] prove that the peer
    /// received one of our transmissions.
    pub(crate) fn on_ack(
        &mut self,
        now: Micros,
        clock: &Clock,
        sn: Sn,
        ts: Ts,
        sample: AckSample,
        stats: &mut Counters,
    ) -> AckOutcome {
        self.at_segment(now, sn);
        let outcome = if self.redundancy.is_bundled_copy(sn, ts) {
            self.on_bundled_ack(now, sn)
        } else if let Some(segment) = self.sent_segments.get(sn) {
            self.on_ack_in_flight(now, clock, sn, ts, segment, sample, stats)
        } else {
            self.on_late_ack(now, clock, sn, ts, sample, stats)
        };
        if let AckOutcome::NewlyAcked | AckOutcome::AckedBefore = outcome {
            self.on_segment_proved(now, sn);
        }
        if outcome == AckOutcome::NewlyAcked {
            self.una_proof.on_first_ack();
        }
        outcome
    }

    /// Processes an ACK of a segment that `una` has not passed.
    fn on_ack_in_flight(
        &mut self,
        now: Micros,
        clock: &Clock,
        sn: Sn,
        ts: Ts,
        segment: SentSegment,
        sample: AckSample,
        stats: &mut Counters,
    ) -> AckOutcome {
        let (first, last) = (segment.first_ts, clock.timestamp(segment.last_sent));
        let echoes_last = ts == last;
        if !ts.is_within(first, last) {
            return AckOutcome::Invalid;
        }
        let rtt = if echoes_last { now.since(segment.last_sent) } else { since(clock, now, ts) };
        // A path that is silent, or gone, is not measured.
        let is_here = segment.slot() == self.sent_segments.slot();
        let is_of_this_path =
            is_here && self.left_on_this_path(now, rtt) && (echoes_last || !segment.has_moved());
        let sample = if is_of_this_path { sample } else { AckSample::None };
        let (xmit_seq, xmit_seq_low) = (segment.xmit_seq, segment.xmit_seq_low());
        let retransmitted = segment.retransmitted;
        let acked_before = segment.acked;
        if acked_before {
            self.redundancy.on_late_original(now, sn);
        } else {
            if !retransmitted {
                self.on_first_acked(now, &segment);
                self.note_wait(sample, rtt);
            }
            if !is_here {
                // The active path says nothing about it.
            } else if echoes_last {
                self.sample_newest(
                    now,
                    xmit_seq_low,
                    Some(rtt).filter(|_| sample == AckSample::Rtt),
                );
                self.path.loss.on_ack(xmit_seq, rtt);
            } else {
                self.sample_earlier(now, ts, rtt, sample);
            }
            if retransmitted {
                let copies = self.redundancy.copies.as_ref();
                let is_copy = copies.is_some_and(|copies| copies.is_copy(sn, ts));
                if is_copy || (echoes_last && first != last) {
                    self.path.loss.on_confirmed_loss();
                    if self.path.congestion.is_bbr() {
                        let in_flight = self.sent_segments.len();
                        self.retransmit_budget.on_retransmission_acked(in_flight);
                    }
                } else if !echoes_last {
                    let apart = u64::from(last.since(ts).unsigned_abs());
                    self.on_spurious_retransmit(now, sn, ts, apart, segment.has_moved(), stats);
                }
                self.redundancy.forget_copies(sn);
            }
            self.on_segment_acked(now, sn, echoes_last);
            if self.path.mtu.is_watching() {
                self.on_size_acked(now, sn);
            }
        }
        if acked_before { AckOutcome::AckedBefore } else { AckOutcome::NewlyAcked }
    }

    /// `sn`, which is in flight, is acknowledged for the first time. For `echoes_last` see
    /// [`Congestion::on_acked`].
    ///
    /// [`Congestion::on_acked`]: crate::core::congestion::Congestion::on_acked
    pub(super) fn on_segment_acked(&mut self, now: Micros, sn: Sn, echoes_last: bool) {
        let came_elsewhere = !echoes_last
            && self.sent_segments.uses_slots()
            && self.sent_segments.get(sn).is_some_and(|segment| segment.has_moved());
        self.sent_segments.ack(sn);
        self.on_newly_acked(1);
        let Some(offset) = sn.offset_from(self.una()) else { return };
        let index = self.congestion_index(offset);
        if came_elsewhere {
            self.path.congestion.on_moved_away(now, index, None);
        } else {
            self.path.congestion.on_acked(now, index, echoes_last);
        }
    }

    /// `sn` was acknowledged: the active path carries its size, if it left there.
    fn on_size_acked(&mut self, now: Micros, sn: Sn) {
        let here = self.sent_segments.slot();
        if let Some(segment) = self.sent_segments.get(sn)
            && segment.slot() == here
            && self.left_on_this_path(now, now.since(segment.last_sent))
            && let Some(size) = self.datagram_size(sn)
        {
            self.path.mtu.on_segment_acked(size);
        }
    }

    /// `count` segments are proved to have arrived, each for the first time.
    #[inline]
    pub(super) fn on_newly_acked(&mut self, count: u32) {
        self.retransmit_budget.on_acked(count);
        self.path.congestion.on_newly_acked(count);
        if let Some(redundant) = &mut self.redundancy.copies {
            redundant.on_newly_acked(count);
        }
        if let Some(autotune) = &mut self.autotune {
            autotune.on_acked(count);
        }
    }

    /// Processes an ACK of a segment that `una` has passed.
    fn on_late_ack(
        &mut self,
        now: Micros,
        clock: &Clock,
        sn: Sn,
        ts: Ts,
        sample: AckSample,
        stats: &mut Counters,
    ) -> AckOutcome {
        let max_age = u32::from(u16::MAX);
        let age = self.una().offset_from(sn).filter(|age| (1..=max_age).contains(age));
        let Some(age) = age else { return AckOutcome::Invalid };
        let late = self.acked_history.on_ack(now, age, ts);
        if !matches!(late, LateAck::Stale | LateAck::Invalid) {
            self.redundancy.on_late_original(now, sn);
        }
        match late {
            LateAck::Stale => return AckOutcome::Stale,
            LateAck::Invalid => return AckOutcome::Invalid,
            // `spurious` does not widen the reordering window here: only the ACK of the retransmission
            // arrived, so most likely the ACK of the original was lost, and a longer wait would not have
            // helped.
            LateAck::LastTransmission { rtt, xmit_seq, spurious } => {
                stats.retransmit.spurious += u64::from(spurious);
                // With several paths `una` was the sample already.
                if !self.sent_segments.uses_slots() {
                    let rtt = rtt.filter(|rtt| self.left_on_this_path(now, *rtt));
                    if let Some(rtt) = rtt {
                        self.note_wait(sample, rtt);
                    }
                    self.sample_newest(now, xmit_seq, rtt.filter(|_| sample == AckSample::Rtt));
                }
            }
            // The ACK of the original arrives after the retransmission, so the original was delayed, not
            // lost.
            LateAck::EarlierTransmission { spurious: true, apart, judged } => {
                let (rtt, has_moved) = (since(clock, now, ts), self.sent_segments.uses_slots());
                if self.left_on_this_path(now, rtt) && !has_moved {
                    self.sample_earlier(now, ts, rtt, sample);
                }
                if judged && let Some(redundant) = &mut self.redundancy.copies {
                    // The loss was already taken back once, when `una` covered the segment.
                    redundant.loss_rate.on_ack_arrived(now);
                }
                self.on_spurious_retransmit(now, sn, ts, apart, has_moved, stats);
            }
            LateAck::EarlierTransmission { spurious: false, .. } => {}
        }
        AckOutcome::AckedBefore
    }

    /// The last transmission of a segment was acknowledged. `rtt` in microseconds is a sample unless a later
    /// transmission was acknowledged before; `xmit_seq` modulo 2^32.
    fn sample_newest(&mut self, now: Micros, xmit_seq: u32, rtt: Option<u64>) {
        if self.path.loss.is_newest_ack(xmit_seq)
            && let Some(rtt) = rtt
        {
            self.path.rtt.on_sample(now, rtt);
            self.path.congestion.on_rtt(rtt);
        }
    }

    /// Records how long a segment waited for its first ACK.
    #[inline]
    fn note_wait(&mut self, sample: AckSample, wait: u64) {
        if sample != AckSample::None {
            self.path.longest_wait = self.path.longest_wait.max(wait);
        }
    }

    /// A cumulative acknowledgement covers the oldest segment. Its wait counts, since one ACK may stand for
    /// several segments in order. It does not count in a message flow with confirmed losses whose peer
    /// acknowledges each segment: there the ACK was lost and a later one came instead.
    fn note_wait_of_oldest(&mut self, now: Micros) {
        let Some(oldest) = self.sent_segments.get(self.una()) else { return };
        let may_lose_acks = self.path.loss.has_confirmed_losses() && self.is_latency_bound();
        let copies = &mut self.redundancy.copies;
        let ack_was_lost = copies.as_mut().is_some_and(|copies| {
            copies.on_una(oldest.acked);
            may_lose_acks && copies.peer_acks_each()
        });
        let wait = now.since(oldest.last_sent);
        let is_wait = !(oldest.acked || oldest.retransmitted || ack_was_lost);
        if is_wait && self.left_on_this_path(now, wait) {
            self.path.longest_wait = self.path.longest_wait.max(wait);
        }
    }

    /// Whether a transmission `age` microseconds ago left on the path that carries data now.
    #[inline]
    fn left_on_this_path(&self, now: Micros, age: u64) -> bool {
        self.path.loss.left_on_this_path(now, age)
    }

    /// First ACK of a transmission that was not the segment's latest. With an RTO below the RTT there is no
    /// other sample.
    fn sample_earlier(&mut self, now: Micros, ts: Ts, rtt: u64, sample: AckSample) {
        if self.may_be_recovered(now, ts) {
            return;
        }
        self.note_wait(sample, rtt);
        if sample == AckSample::Rtt {
            self.path.rtt.on_sample_of_earlier(now, rtt);
        }
    }

    /// A retransmission was not needed: the transmission with timestamp `ts`, which left `apart` milliseconds
    /// earlier, arrived, or FEC recovered it. `has_moved`: it may have left on another path.
    fn on_spurious_retransmit(
        &mut self,
        now: Micros,
        sn: Sn,
        ts: Ts,
        apart: u64,
        has_moved: bool,
        stats: &mut Counters,
    ) {
        stats.retransmit.spurious += 1;
        if !has_moved {
            self.path.congestion.on_spurious_retransmit();
        }
        if self.may_be_recovered(now, ts) {
            return;
        }
        if !has_moved {
            self.path.loss.on_spurious_retransmit(&self.path.rtt, apart * 1_000);
        }
        if let Some(redundant) = &mut self.redundancy.copies {
            redundant.on_spurious(now, sn);
        }
    }

    /// Processes a cumulative acknowledgement: removes the segments before `una`, grows the congestion window
    /// and, at the end of a round trip, the send window.
    pub(crate) fn on_una(&mut self, now: Micros, clock: &Clock, una: Sn) -> UnaOutcome {
        let advance = una.since(self.una());
        if advance < 0 {
            // No window exceeds 65,535 segments, so an older `una` was never valid.
            let stale = advance.unsigned_abs() <= u32::from(u16::MAX);
            return if stale { UnaOutcome::Stale } else { UnaOutcome::Invalid };
        }
        let newly_acked = advance.unsigned_abs();
        if newly_acked > self.sent_segments.len() {
            return UnaOutcome::Invalid;
        }
        if self.una_proof.has_first_ack() {
            self.on_segment_proved(now, una.back(1));
        }
        if newly_acked > 0 && self.redundancy.fec_wait.is_none() {
            self.at_segment(now, self.una());
            self.note_wait_of_oldest(now);
        }
        let unproved = self.unproved();
        let window_limited = self.sent_segments.len() + unproved >= u32::from(self.window);
        let proved = self.una_proof.proved(self.una(), newly_acked);
        self.release(now, clock, proved, true);
        self.release(now, clock, newly_acked - proved, false);
        self.una_proof.on_una(now, una, unproved);
        if newly_acked > 0 {
            self.oversized = self.oversized.and_then(|oversized| oversized.on_una(now, una));
        }
        self.send_buffer.release(self.sent_segments.oldest_payload());
        let (is_bbr, rtt) = (self.path.congestion.is_bbr(), *self.longest_rtt());
        if let Some(autotune) = &mut self.autotune {
            if window_limited {
                autotune.on_window_limited();
            }
            let proved = una.back(self.una_proof.unproved(una));
            self.window = autotune.send_window(now, proved, &rtt, self.window, is_bbr);
        }
        self.on_cumulative_ack(proved);
        UnaOutcome::Current { newly_acked }
    }

    /// Removes the oldest `count` segments; `proved` ones count as delivered (see [`UnaProof`]).
    ///
    /// [`UnaProof`]: crate::core::recovery::acked::UnaProof
    #[inline]
    fn release(&mut self, now: Micros, clock: &Clock, count: u32, proved: bool) {
        let mut left = count;
        while left > 0 {
            left -= self.release_run(clock, left, proved);
            if left > 0 {
                self.release_oldest(now, clock, proved);
                left -= 1;
            }
        }
    }

    /// Removes up to `max` of the oldest segments, stopping at a retransmitted one, if only counters depend
    /// on each segment. Returns how many.
    fn release_run(&mut self, clock: &Clock, max: u32, proved: bool) -> u32 {
        let counts_each = self.path.mtu.is_watching()
            || self.redundancy.fec_wait.is_some()
            || self.path.congestion.samples_rate();
        if counts_each {
            return 0;
        }
        let (history, mut newly_acked) = (&mut self.acked_history, 0);
        let count = self.sent_segments.pop_acked_run(max, |first, count| {
            newly_acked += if first.acked || !proved { 0 } else { count };
            history.remember(clock, first, count, false, false);
        });
        self.on_newly_acked(newly_acked);
        count
    }

    /// Removes segment `una` and records its acknowledgement.
    fn release_oldest(&mut self, now: Micros, clock: &Clock, proved: bool) {
        let sn = self.una();
        self.at_segment(now, sn);
        if self.path.mtu.is_watching() {
            self.on_size_acked(now, sn);
        }
        if proved && self.sent_segments.uses_slots() {
            self.on_covered(now, sn);
        }
        let Some(segment) = self.sent_segments.pop_acked() else { return };
        if !segment.acked && !segment.retransmitted {
            self.on_first_acked(now, &segment);
        }
        if proved {
            self.on_newly_acked(u32::from(!segment.acked));
            self.path.congestion.on_una(now);
        }
        let unjudged = segment.retransmitted && !segment.acked;
        let judged = unjudged && self.on_retransmission_covered(now, clock, sn, segment.first_ts);
        let copied = segment.retransmitted && self.redundancy.forget_copies(sn);
        self.acked_history.remember(clock, &segment, 1, copied, judged);
    }
}

impl Sender {
    /// `una` covers `sn`, and other segments are in flight on another path. An ACK on that path may have been faster
    /// than its own, so it counts as the ACK of a segment that left once.
    #[cold]
    fn on_covered(&mut self, now: Micros, sn: Sn) {
        let segment = self.sent_segments.get(sn);
        let Some(segment) = segment.filter(|segment| !segment.acked && !segment.retransmitted)
        else {
            return;
        };
        let rtt = now.since(segment.last_sent);
        if segment.slot() == self.sent_segments.slot() && self.left_on_this_path(now, rtt) {
            // A longer one waited for a segment of another path, and its own ACK was lost.
            let longest = self.path.rtt.srtt().map_or(u64::MAX, |srtt| 2 * srtt);
            let sample = Some(rtt).filter(|rtt| *rtt <= longest);
            self.sample_newest(now, segment.xmit_seq_low(), sample);
            self.path.loss.on_ack(segment.xmit_seq, rtt.min(longest));
            self.path.longest_wait = self.path.longest_wait.max(sample.unwrap_or(0));
        }
        self.path.congestion.on_acked(now, self.congestion_index(0), true);
    }
}

/// Microseconds since a transmission with timestamp `ts`; the resolution is a millisecond.
fn since(clock: &Clock, now: Micros, ts: Ts) -> u64 {
    u64::from(clock.timestamp(now).since(ts).max(0).cast_unsigned()) * 1_000
}
