//! Which segment is repeated, and how often while the peer is silent.

use super::Sender;
use crate::core::clock::Time;
use crate::core::flight::LAST_LEVEL;
use crate::core::loss::Sign;
use crate::core::segment::HEADER;
use crate::core::seq::Sn;
use crate::stats::Counters;

/// Silence after which only one segment at a time is repeated, microseconds.
const SILENCE: u64 = 1_000_000;

/// While the peer is silent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hush {
    pub(super) next: Time,
    repeats: u32,
}

impl Sender {
    pub(super) fn lost(&self, now: Time, stuck: bool) -> Option<(Sn, Sign)> {
        let in_flight = self.flight.len();
        for (sn, segment) in self.flight.fronts() {
            let (at, sign) = self.loss.lost_at(segment, &self.rtt, in_flight, stuck);
            if at <= now && (sign != Sign::Timeout || self.may_repeat(now)) {
                return Some((if sign == Sign::Timeout { self.choice(sn) } else { sn }, sign));
            }
        }
        None
    }

    /// While the peer is silent the oldest segment stands for all that are due: it is the one
    /// that the peer accepts whatever its window, and waits for.
    fn choice(&self, due: Sn) -> Sn {
        let una = self.una();
        let oldest = self.hush.and_then(|_| self.flight.get(una)).filter(|segment| !segment.acked);
        oldest.map_or(due, |_| una)
    }

    /// A time-out of something that the peer has no room for starts again without a transmission,
    /// which would be refused. The oldest segment leaves all the same: its answer is the way back.
    pub(crate) fn postpone(&mut self, now: Time) {
        let (una, room) = (self.una(), self.remote.room(self.una()));
        while self.flight.len() > room {
            let Some((sn, _)) = self.lost(now, false) else { return };
            if sn == una || sn.offset_from(una).is_some_and(|place| place < room) {
                return;
            }
            let level = self.flight.get(sn).map_or(0, |segment| segment.level);
            self.flight.defer(now, sn, level);
        }
    }

    /// While the peer is silent one segment at a time is enough to find out that it is back; a
    /// whole window each time-out would only feed the outage.
    fn may_repeat(&self, now: Time) -> bool {
        match self.hush {
            Some(hush) => now >= hush.next,
            None => true,
        }
    }

    pub(super) fn repeat(&mut self, now: Time, sn: Sn, sign: Sign, stats: &mut Counters) {
        let level = self.flight.get(sn).map_or(0, |segment| segment.level);
        let nxt = self.flight.nxt();
        let level = match sign {
            Sign::Fast => {
                stats.fast_retransmits += 1;
                self.cwnd.on_fast_retransmit(sn, nxt, self.flight.len(), self.resend);
                level
            }
            Sign::Early => {
                stats.early_retransmits += 1;
                self.cwnd.on_fast_retransmit(sn, nxt, self.flight.len(), self.resend);
                level
            }
            Sign::Timeout => {
                stats.timeout_retransmits += 1;
                self.cwnd.on_timeout(sn, nxt, self.effective_window());
                self.hush(now);
                level + 1
            }
        };
        self.flight.again(now, sn, level);
        if let Some(payload) = self.flight.payload(sn) {
            let sizes = (HEADER + payload.len(), HEADER + self.mss);
            self.path.on_repeat(now, sizes, self.rtt.rto(), self.una());
        }
    }

    /// The repetition that leaves once more, in another datagram, unless it has arrived meanwhile.
    pub(crate) fn owed_twin(&self) -> Option<(Sn, Sign)> {
        self.twin.filter(|(sn, _)| self.flight.get(*sn).is_some_and(|segment| !segment.acked))
    }

    /// A repetition that everything waits for leaves twice: lost again it would cost another round
    /// trip in which the window stays closed. That takes loss on both; it pays where the window is
    /// closed by it and not by one before it, so not in the last quarter of the window.
    pub(super) fn twin_of(&self, sn: Sn, sign: Sign) -> Option<(Sn, Sign)> {
        let place = sn.offset_from(self.una())?;
        let awaited = !self.window_is_open() && place < self.effective_window() / 4 * 3;
        (awaited && sign != Sign::Timeout && !self.cwnd.is_active()).then_some((sn, sign))
    }

    /// A segment is repeated after its time-out: if the peer has been silent for long, the next
    /// one has to wait, longer each time.
    fn hush(&mut self, now: Time) {
        let rto = self.rtt.rto();
        if now.since(self.heard) < SILENCE.max(2 * rto) {
            return;
        }
        let repeats = self.hush.map_or(0, |hush| hush.repeats.saturating_add(1));
        let wait = (rto << repeats.min(u32::from(LAST_LEVEL))).min(self.loss.longest());
        self.hush = Some(Hush { next: now.plus(wait), repeats });
    }
}
