//! What happens beside the state machine and concerns it: datagrams of another kind, and its own that
//! come back.

use std::time::Instant;

use super::Kcp;
use super::segment::{Command, Segments};

impl Kcp {
    /// Whether the rate limit lets something else leave now, and from when it does if not.
    pub(crate) fn held_until(&self, now: Instant) -> Option<Instant> {
        self.pacer.wait(self.clock.at(now)).map(|at| self.clock.instant(at))
    }

    /// Counts bytes that left beside the KCP datagrams against the rate limit.
    pub(crate) fn on_sent_beside(&mut self, now: Instant, bytes: usize) {
        self.pacer.sent(self.clock.at(now), bytes);
    }

    /// Whether a datagram holds a segment that this side sent: number and stamp are those of one in
    /// flight, or of one of the last 64 that were. A peer's own would have to hit both, and its
    /// clock started elsewhere.
    pub(crate) fn is_reflection(&self, datagram: &[u8]) -> bool {
        self.has_started()
            && Segments::new(datagram).any(|(header, payload)| {
                self.is_own_close(&header)
                    || (header.command == Command::Push
                        && !payload.is_empty()
                        && self.send.has_sent(&self.clock, header.sn, header.ts))
            })
    }

    /// Counts a datagram that came back.
    pub(crate) fn on_reflected(&mut self) {
        self.stats.reflected_datagrams += 1;
    }

    /// The peer was heard, by something else than a KCP datagram.
    pub(crate) fn on_heard_beside(&mut self, now: Instant) {
        self.live.on_heard(self.clock.at(now));
    }
}
