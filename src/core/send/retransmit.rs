//! Which segment is repeated, and how often while the peer is silent.

use crate::core::clock::Micros;
use crate::core::recovery::loss::LossTrigger;
use crate::core::recovery::sent_segments::MAX_BACKOFF_LEVEL;
use crate::core::segment::HEADER_LEN;
use crate::core::send::sender::Sender;
use crate::core::seq::Sn;
use crate::stats::Counters;

/// Silence after which only one segment at a time is repeated, microseconds.
const PTO_BACKOFF_AFTER: u64 = 1_000_000;

/// While the peer is silent.
#[derive(Clone, Copy, Debug)]
pub(super) struct PtoBackoff {
    pub(super) next: Micros,
    repeats: u32,
}

impl Sender {
    pub(super) fn lost(&self, now: Micros, stuck: bool) -> Option<(Sn, LossTrigger)> {
        let in_flight = self.sent_segments.len();
        for (sn, segment) in self.sent_segments.oldest_per_level() {
            let (at, sign) = self.loss.lost_at(segment, &self.rtt, in_flight, stuck);
            if at <= now && (sign != LossTrigger::Rto || self.may_send_probe(now)) {
                return Some((
                    if sign == LossTrigger::Rto { self.select_probe(sn) } else { sn },
                    sign,
                ));
            }
        }
        None
    }

    /// While the peer is silent the oldest segment stands for all that are due: it is the one
    /// that the peer accepts whatever its window, and waits for.
    fn select_probe(&self, due: Sn) -> Sn {
        let una = self.una();
        let oldest = self
            .pto_backoff
            .and_then(|_| self.sent_segments.get(una))
            .filter(|segment| !segment.acked);
        oldest.map_or(due, |_| una)
    }

    /// A time-out of something that the peer has no room for starts again without a transmission,
    /// which would be refused. The oldest segment leaves all the same: its answer is the way back.
    pub(crate) fn defer_out_of_window_rto(&mut self, now: Micros) {
        let (una, room) = (self.una(), self.remote.available(self.una()));
        while self.sent_segments.len() > room {
            let Some((sn, _)) = self.lost(now, false) else { return };
            if sn == una || sn.offset_from(una).is_some_and(|place| place < room) {
                return;
            }
            let level = self.sent_segments.get(sn).map_or(0, |segment| segment.backoff_level);
            self.sent_segments.move_to_back(now, sn, level);
        }
    }

    /// While the peer is silent one segment at a time is enough to find out that it is back; a
    /// whole window each time-out would only feed the outage.
    fn may_send_probe(&self, now: Micros) -> bool {
        match self.pto_backoff {
            Some(hush) => now >= hush.next,
            None => true,
        }
    }

    pub(super) fn retransmit(
        &mut self,
        now: Micros,
        sn: Sn,
        sign: LossTrigger,
        stats: &mut Counters,
    ) {
        let level = self.sent_segments.get(sn).map_or(0, |segment| segment.backoff_level);
        let nxt = self.sent_segments.nxt();
        let level = match sign {
            LossTrigger::FastRetransmit => {
                stats.fast_retransmits += 1;
                self.cwnd.on_fast_retransmit(sn, nxt, self.sent_segments.len(), self.fast_resend);
                level
            }
            LossTrigger::EarlyRetransmit => {
                stats.early_retransmits += 1;
                self.cwnd.on_fast_retransmit(sn, nxt, self.sent_segments.len(), self.fast_resend);
                level
            }
            LossTrigger::Rto => {
                stats.timeout_retransmits += 1;
                self.cwnd.on_timeout(sn, nxt, self.effective_window());
                self.hush(now);
                level + 1
            }
        };
        self.sent_segments.mark_retransmitted(now, sn, level);
        if let Some(payload) = self.sent_segments.payload(sn) {
            let sizes = (HEADER_LEN + payload.len(), HEADER_LEN + self.mss);
            self.path.on_segment_lost(now, sizes, self.rtt.rto(), self.una());
        }
    }

    /// The repetition that leaves once more, in another datagram, unless it has arrived meanwhile.
    pub(crate) fn pending_redundant_retransmit(&self) -> Option<(Sn, LossTrigger)> {
        self.redundant_retransmit
            .filter(|(sn, _)| self.sent_segments.get(*sn).is_some_and(|segment| !segment.acked))
    }

    /// A repetition that everything waits for leaves twice: lost again it would cost another round
    /// trip in which the window stays closed. That takes loss on both; it pays where the window is
    /// closed by it and not by one before it, so not in the last quarter of the window.
    pub(super) fn redundant_retransmit_for(
        &self,
        sn: Sn,
        sign: LossTrigger,
    ) -> Option<(Sn, LossTrigger)> {
        let place = sn.offset_from(self.una())?;
        let awaited = !self.window_is_open() && place < self.effective_window() / 4 * 3;
        (awaited && sign != LossTrigger::Rto && !self.cwnd.is_active()).then_some((sn, sign))
    }

    /// A segment is repeated after its time-out: if the peer has been silent for long, the next
    /// one has to wait, longer each time.
    fn hush(&mut self, now: Micros) {
        let rto = self.rtt.rto();
        if now.since(self.last_peer_activity) < PTO_BACKOFF_AFTER.max(2 * rto) {
            return;
        }
        let repeats = self.pto_backoff.map_or(0, |hush| hush.repeats.saturating_add(1));
        let wait = (rto << repeats.min(u32::from(MAX_BACKOFF_LEVEL))).min(self.loss.max_rto());
        self.pto_backoff = Some(PtoBackoff { next: now.add_micros(wait), repeats });
    }
}
