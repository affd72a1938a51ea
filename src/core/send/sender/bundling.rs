//! Redundant data bundling at the sender: which segments ride along, and the ACKs of their copies.

use super::{AckOutcome, OutgoingSegment, Sender};
use crate::core::clock::Micros;
use crate::core::recovery::sent_segments::SentSegment;
use crate::core::redundancy::bundling::RedundantBundling;
use crate::core::redundancy::credit::RedundancyCredit;
use crate::core::segment::HEADER_LEN;
use crate::core::seq::{Sn, Ts};

/// Copies out.
impl Sender {
    /// Copies segments into datagrams with newer ones, `per_million` bytes of copies per million
    /// bytes of data; 0: none.
    pub(crate) fn set_bundling_rate(&mut self, per_million: u32) {
        let (rate, nxt) = (per_million.min(RedundancyCredit::MAX_RATE), self.nxt());
        match &mut self.redundancy.bundling {
            Some(bundling) => bundling.set_rate(rate, nxt),
            None if rate == 0 => {}
            None => self.redundancy.bundling = Some(Box::new(RedundantBundling::new(rate, nxt))),
        }
    }

    /// The next segment before `end` to copy now, the newest first, if it has at most `space` bytes
    /// with its header, or `None`.
    pub(crate) fn next_bundled(&self, now: Micros, end: Sn, space: usize) -> Option<Sn> {
        let bundling = self.redundancy.bundling.as_ref()?;
        let covered =
            if self.una().since(bundling.covered()) > 0 { self.una() } else { bundling.covered() };
        let ages = RedundantBundling::ages(self.rtt.srtt_or_rto());
        let mut sn = end;
        while sn.since(covered) > 0 {
            sn = sn.back(1);
            let segment = self.sent_segments.get(sn)?;
            let age = now.since(segment.last_sent);
            if age > *ages.end() {
                return None;
            }
            if segment.acked || segment.retransmitted || age < *ages.start() {
                continue;
            }
            let len = self.sent_segments.payload(sn)?.len();
            let fits = HEADER_LEN + len <= space && bundling.has_credit(len);
            return fits.then_some(sn);
        }
        None
    }

    /// Records that a copy of `sn` leaves with wire timestamp `ts`, and returns the PUSH to write.
    pub(crate) fn transmit_bundled(
        &mut self,
        now: Micros,
        sn: Sn,
        ts: Ts,
    ) -> Option<OutgoingSegment<'_>> {
        let (segment, range) = (self.sent_segments.get(sn)?, self.sent_segments.payload(sn)?);
        let (frg, len, una) = (segment.frg, range.len(), self.una());
        if let Some(bundling) = &mut self.redundancy.bundling {
            bundling.on_copy_sent(now, (sn, ts), len, una);
        }
        if self.congestion.is_model() {
            let bytes = (HEADER_LEN + len) as u64;
            self.pace_at_rate(now, bytes, self.congestion.pacing());
        }
        Some(OutgoingSegment { sn, frg, payload: self.send_buffer.get(range)? })
    }

    /// What was to be copied of the segments before `end` has left, but for those that are too young.
    pub(crate) fn end_bundle(&mut self, now: Micros, end: Sn) {
        let ages = RedundantBundling::ages(self.rtt.srtt_or_rto());
        let is_young = |sn: &Sn| {
            let segment = self.sent_segments.get(*sn);
            segment.is_some_and(|sent| now.since(sent.last_sent) < *ages.start())
        };
        let before = std::iter::successors(Some(end), |sn| Some(sn.back(1)));
        let covered = before.skip(1).find(|sn| !is_young(sn)).map_or(end, |sn| sn.advance(1));
        if let Some(bundling) = &mut self.redundancy.bundling {
            bundling.set_covered(covered);
        }
    }

    /// When copies of what no new segment has followed leave by themselves; may have passed.
    pub(crate) fn bundling_deadline(&self) -> Option<Micros> {
        let bundling = self.redundancy.bundling.as_ref()?;
        let at = bundling.tail_at(self.nxt(), self.rtt.srtt_or_rto())?;
        let may_send = !self.sent_segments.all_acked() && !self.pto_backoff.is_active();
        may_send.then(|| at.max(self.pacer.resume_at()))
    }
}

/// Acknowledgements.
impl Sender {
    /// Whether a copy of `sn` left with this timestamp.
    #[inline]
    pub(super) fn is_bundled_copy(&self, sn: Sn, ts: Ts) -> bool {
        self.redundancy.bundling.as_ref().is_some_and(|bundling| bundling.is_copy(sn, ts))
    }

    /// When a segment that counts as lost at `at` is retransmitted: not before the ACK of its copy can
    /// be there.
    pub(super) fn uncopied_at(&self, (sn, segment): (Sn, &SentSegment), at: Micros) -> Micros {
        let bundling = self.redundancy.bundling.as_ref().filter(|_| !segment.retransmitted);
        let copied_at = bundling.and_then(|bundling| bundling.copied_at(sn));
        let ack_at = copied_at.map(|copied| copied.add_micros(self.loss.ack_wait(&self.rtt)));
        ack_at.map_or(at, |ack_at| at.max(ack_at))
    }

    /// The ACK of a copy arrived: the peer has the segment. It says nothing about the original, since
    /// peers acknowledge data in order cumulatively, and is no RTT sample.
    pub(super) fn on_bundled_ack(&mut self, now: Micros, sn: Sn) -> AckOutcome {
        let Some(segment) = self.sent_segments.get(sn).filter(|segment| !segment.acked) else {
            return AckOutcome::AckedBefore;
        };
        if segment.retransmitted {
            self.forget_copies(sn);
        }
        let index = sn.offset_from(self.una()).map_or(0, |offset| self.congestion_index(offset));
        self.sent_segments.ack(sn);
        self.on_newly_acked(1);
        self.congestion.on_acked(now, index, false);
        AckOutcome::NewlyAcked
    }
}
