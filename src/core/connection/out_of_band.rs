//! What happens beside the state machine and concerns it: datagrams of another kind, and its own that
//! come back.

use std::time::Instant;

use crate::core::connection::Kcp;
use crate::core::keepalive::dataless_sn;
use crate::core::segment::{Command, Segments};
use crate::core::seq::{Sn, Ts};

impl Kcp {
    /// Whether the rate limit lets something else leave now, and from when it does if not.
    pub(crate) fn rate_limited_until(&self, now: Instant) -> Option<Instant> {
        self.pacer.blocked_until(self.clock.at(now)).map(|at| self.clock.instant(at))
    }

    /// Counts bytes that left beside the KCP datagrams against the rate limit.
    pub(crate) fn on_out_of_band_sent(&mut self, now: Instant, bytes: usize) {
        let now = self.clock.tick(now);
        self.pacer.sent(now, bytes);
    }

    /// Whether a datagram holds a segment that this side sent: number and stamp are those of one in
    /// flight, or of one of the last 64 that were. A peer's own would have to hit both, and its
    /// clock started elsewhere.
    pub(crate) fn is_reflection(&self, datagram: &[u8]) -> bool {
        self.has_started()
            && Segments::new(datagram).any(|(header, payload)| {
                self.is_own_fin(&header)
                    || (header.command == Command::Push
                        && !payload.is_empty()
                        && self.send.has_sent(&self.clock, header.sn, header.ts))
            })
    }

    /// A number for segments that carry no data of the stream.
    pub(crate) fn quiet_sn(&self) -> Sn {
        dataless_sn(self.send.una())
    }

    /// The peer can be reached again: what silence held back may leave.
    pub(crate) fn on_path_validated(&mut self, now: Instant) {
        self.send.on_peer_activity(self.clock.at(now));
    }

    /// Writes an echo probe, which may go to another address than the peer's.
    pub(crate) fn emit_probe(&mut self, sn: Sn, cookie: Ts, out: &mut Vec<u8>) {
        self.stats.pings_sent += 1;
        self.header(Command::Push, self.close_state.capability(), sn, cookie, 0).emit(out);
    }

    /// Counts a datagram that came back.
    pub(crate) fn count_reflected(&mut self) {
        self.stats.reflected_datagrams += 1;
    }

    /// The peer was heard, by something else than a KCP datagram.
    pub(crate) fn on_out_of_band_received(&mut self, now: Instant) {
        self.keepalive.on_received(self.clock.at(now));
    }
}
