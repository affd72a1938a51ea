//! Repair symbols of the sender: what they cover, and the loss detection that waits for them.

use super::{AckOutcome, Sender};
use crate::core::clock::Micros;
use crate::core::recovery::loss::LossTrigger;
use crate::core::recovery::sent_segments::SentSegment;
use crate::core::redundancy::credit::RedundancyCredit;
use crate::core::redundancy::repair::RepairSchedule;
use crate::core::redundancy::rlc::{self, MAX_WINDOW, SYMBOL_HEADER};
use crate::core::segment::HEADER_LEN;
use crate::core::send::send_buffer::BufferRange;
use crate::core::seq::Sn;

/// The encoding window of the next repair symbol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodingWindow {
    pub(crate) first: Sn,
    /// Segments, 1 to [`MAX_WINDOW`].
    pub(crate) count: u8,
    /// Payload of the longest segment, bytes.
    longest: usize,
}

impl EncodingWindow {
    /// Length of the repair symbol, bytes.
    pub(crate) fn symbol_len(&self) -> usize {
        SYMBOL_HEADER + self.longest
    }
}

/// Settings.
impl Sender {
    /// Sends repair symbols, `per_million` bytes of them per million bytes of data; 0: none, but
    /// what was sent is remembered. `key` draws the first repair key.
    pub(crate) fn set_repair_rate(&mut self, per_million: u32, key: impl FnOnce() -> u32) {
        let (rate, nxt) = (per_million.min(RedundancyCredit::MAX_RATE), self.nxt());
        match &mut self.redundancy.repair {
            Some(repair) => repair.set_rate(rate, nxt),
            None if rate == 0 => {}
            None => self.redundancy.repair = Some(Box::new(RepairSchedule::new(rate, key(), nxt))),
        }
    }

    /// Whether repair symbols are sent, or were.
    pub(crate) fn has_repair_schedule(&self) -> bool {
        self.redundancy.repair.is_some()
    }
}

/// Repair symbols out.
impl Sender {
    /// When the next repair symbol leaves; may have passed.
    pub(crate) fn repair_deadline(&self) -> Option<Micros> {
        let repair = self.redundancy.repair.as_ref()?;
        let due = repair.due_at(self.nxt(), self.rtt.srtt_or_rto())?;
        (!self.sent_segments.all_acked()).then(|| due.max(self.pacer.resume_at()))
    }

    /// The encoding window of the repair symbol that leaves now: the latest segments that are not
    /// acknowledged cumulatively and whose repair symbol fits into the MTU.
    pub(crate) fn repair_window(&mut self) -> Option<EncodingWindow> {
        let nxt = self.nxt();
        // At an MTU of 25 or 26 bytes not even the symbol of an empty message fits.
        let mtu = self.path.current_mtu();
        let fits = |payload: &BufferRange| HEADER_LEN + SYMBOL_HEADER + payload.len() <= mtu;
        let (mut count, mut longest) = (0, 0);
        while usize::from(count) < MAX_WINDOW {
            let sn = nxt.back(u32::from(count) + 1);
            let payload = self.sent_segments.payload(sn).filter(fits);
            let Some(payload) = payload else { break };
            longest = longest.max(payload.len());
            count += 1;
        }
        if count == 0 {
            self.redundancy.repair.as_mut()?.skip(nxt);
            return None;
        }
        Some(EncodingWindow { first: nxt.back(count.into()), count, longest })
    }

    /// The key of the next repair symbol.
    pub(crate) fn repair_key(&self) -> u32 {
        self.redundancy.repair.as_ref().map_or(0, |repair| repair.next_key())
    }

    /// Appends the repair symbol of `window` and records that it leaves.
    pub(crate) fn write_repair(&mut self, now: Micros, window: EncodingWindow, out: &mut Vec<u8>) {
        let (key, nxt) = (self.repair_key(), self.nxt());
        let sources = (0..u32::from(window.count)).map(|offset| {
            let sn = window.first.advance(offset);
            let frg = self.sent_segments.get(sn).map_or(0, |segment| segment.frg);
            let range = self.sent_segments.payload(sn).unwrap_or_default();
            (frg, self.send_buffer.get(range).unwrap_or_default())
        });
        rlc::write_repair(key, sources, window.longest, out);
        if let Some(repair) = &mut self.redundancy.repair {
            repair.on_repair_sent(now, (window.first, nxt), HEADER_LEN + window.symbol_len());
        }
        let bytes = (HEADER_LEN + window.symbol_len()) as u64;
        if self.congestion.is_model() {
            self.pace_at_rate(now, bytes, self.congestion.pacing());
        } else {
            self.pacer.on_sent(now, self.effective_window(), &self.rtt);
        }
    }
}

/// Acknowledgements and loss detection.
impl Sender {
    /// The peer recovered `sn` with the repair symbol of this key: acknowledges the segment. No RTT
    /// sample; the segment counts as lost, for the congestion control too (RFC 9265 4.2).
    pub(crate) fn on_recovered_ack(&mut self, now: Micros, sn: Sn, key: u32) -> AckOutcome {
        if !self.is_covered_by(sn, key) {
            return AckOutcome::Invalid;
        }
        let outcome = self.on_recovered(now, sn);
        self.on_segment_proved(now, sn);
        if outcome == AckOutcome::NewlyAcked {
            self.una_proof.on_first_ack();
        }
        outcome
    }

    fn on_recovered(&mut self, now: Micros, sn: Sn) -> AckOutcome {
        let Some(segment) = self.sent_segments.get(sn).filter(|segment| !segment.acked) else {
            return AckOutcome::AckedBefore;
        };
        let retransmitted = segment.retransmitted;
        let index = sn.offset_from(self.una()).map_or(0, |offset| self.congestion_index(offset));
        if let Some(repair) = &mut self.redundancy.repair {
            repair.recovered_count += 1;
            if !retransmitted {
                repair.on_recovered(sn);
            }
        }
        if retransmitted {
            self.forget_copies(sn);
        } else {
            self.on_hidden_loss(now, sn, index);
        }
        self.sent_segments.ack(sn);
        self.on_newly_acked(1);
        self.congestion.on_acked(now, index, false);
        AckOutcome::NewlyAcked
    }

    /// Whether a repair symbol with this key may have recovered `sn`, which was sent.
    fn is_covered_by(&self, sn: Sn, key: u32) -> bool {
        let max_age = u32::from(u16::MAX);
        let is_old = || self.una().offset_from(sn).is_some_and(|age| age <= max_age);
        let repair = self.redundancy.repair.as_ref();
        repair.is_some_and(|repair| repair.may_have_recovered(key, sn))
            && (self.sent_segments.get(sn).is_some() || is_old())
    }

    /// Whether an ACK of a recovered segment with this key would be the first of the segment.
    pub(crate) fn is_unacked_recovered(&self, sn: Sn, key: u32) -> bool {
        let unacked = self.sent_segments.get(sn).is_some_and(|segment| !segment.acked);
        unacked && self.is_covered_by(sn, key)
    }

    /// The only transmission of `sn`, at `index` of the congestion control, was lost, which no retransmission shows.
    fn on_hidden_loss(&mut self, now: Micros, sn: Sn, index: usize) {
        self.loss_estimate(now).on_lost(now, sn);
        self.reduce_cwnd(sn);
        self.congestion.on_hidden_loss(now, index);
        if let Some(autotune) = &mut self.autotune {
            autotune.on_retransmit();
        }
    }

    /// Copies of a retransmission that repair symbols make unnecessary: they cover it as well. Not
    /// where losses come in bursts, nor where no repair symbol leaves within a round trip. `rtt` in
    /// microseconds.
    #[inline]
    pub(super) fn copies_saved_by_repairs(&self, now: Micros, rtt: u64) -> u8 {
        let Some(repair) = &self.redundancy.repair else { return 0 };
        let copies = self.redundancy.copies.as_ref();
        let independent = copies.is_some_and(|redundant| !redundant.loses_in_bursts());
        u8::from(independent && repair.has_sent_within(now, rtt))
    }

    /// An ACK of a transmission of `sn` arrived. If the peer had recovered the segment before, that
    /// was late, not lost.
    #[inline]
    pub(super) fn on_late_original(&mut self, now: Micros, sn: Sn) {
        if let Some(repair) = &mut self.redundancy.repair
            && repair.on_late_arrival(sn)
            && let Some(redundant) = &mut self.redundancy.copies
        {
            redundant.on_spurious(now, sn);
        }
    }

    /// When the segment counts as lost and by which rule. While repair symbols that cover it may
    /// have recovered it, it is not retransmitted.
    pub(super) fn unrepaired_at(
        &self,
        (sn, segment): (Sn, &SentSegment),
        no_new_data: bool,
    ) -> (Micros, LossTrigger) {
        let in_flight = self.sent_segments.len();
        let lost_at =
            |segment: &SentSegment| self.loss.lost_at(segment, &self.rtt, in_flight, no_new_data);
        let (at, trigger) = lost_at(segment);
        let waits = trigger != LossTrigger::Rto && segment.backoff_level() == 0;
        let Some(repair) = self.redundancy.repair.as_ref().filter(|_| waits) else {
            return (at, trigger);
        };
        let overdue = self.sent_segments.unacked_from(sn).map(|(_, segment)| lost_at(&segment).0);
        let effect = self.loss.ack_wait(&self.rtt);
        let held = repair.retransmit_at((sn, segment.last_sent), effect, overdue);
        (held.map_or(at, |held| held.max(at)), trigger)
    }
}
