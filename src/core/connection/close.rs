//! The end of the stream and of the connection: FIN and RST.

use std::time::Instant;

use super::Kcp;
use crate::core::clock::Micros;
use crate::core::close::{LocalFin, RESET_LIFETIME};
use crate::core::segment::{Command, ControlType, Header};
use crate::core::send::sender::UnaOutcome;
use crate::core::seq::{Sn, Ts};
use crate::error::ConnectionError;

/// The end of the stream, in both directions.
impl Kcp {
    /// Nothing more will be sent. Once everything queued has left for the first time the peer is
    /// told, if it is one that understands, and told again until it says that it has everything.
    pub fn close(&mut self, now: Instant) {
        self.close_state.closing = true;
        self.update_timers(self.clock.at(now));
    }

    /// Whether the peer has everything, knows of the end that [`Kcp::close`] told it, or cannot be
    /// told.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_drained()
            && self.close_state.closing
            && (self.close_state.is_settled() || !self.has_started())
    }

    /// Whether the peer has ended its stream and everything before that has been read through
    /// [`Kcp::recv`].
    #[must_use]
    pub fn peer_has_closed(&self) -> bool {
        self.close_state.peer_has_closed(self.recv.nxt()) && self.recv.readable().is_none()
    }

    /// Whether the peer is known to understand how a conversation ends: it is told of a close and
    /// of an abort, and tells of its own.
    #[must_use]
    pub fn peer_supports_close(&self) -> bool {
        self.close_state.peer_understands()
    }

    /// Nobody will read what is still to come. A peer that understands why is not told that it
    /// arrived, and should be told with [`Kcp::abort`] that it did not, see
    /// [`Kcp::has_discarded_data`]; from any other it is taken and thrown away.
    pub fn shutdown_read(&mut self) {
        self.close_state.discarding = true;
    }

    /// Whether something came after [`Kcp::shutdown_read`] that was not taken.
    #[must_use]
    pub fn has_discarded_data(&self) -> bool {
        self.close_state.discarded_data
    }

    /// Gives the conversation up: it ends at once with [`ConnectionError::Aborted`], unless it has
    /// ended already, and nothing more is sent or taken.
    ///
    /// Returns whether the peer is told, as far as it understands. If so keep driving the
    /// conversation, for ten seconds at most: [`Kcp::is_resetting`] says for how long.
    pub fn abort(&mut self, now: Instant) -> bool {
        // Who was never heard may not be there at all.
        let met = self.has_started() && self.stats.received_datagrams > 0;
        let tell = self.close_state.enabled && self.close_state.peer != Some(false) && met;
        if tell && self.close_state.aborting.is_none() {
            let until = self.clock.at(now).add_micros(RESET_LIFETIME);
            (self.close_state.aborting, self.close_state.repeat) = (Some(until), None);
        }
        self.close_reason.get_or_insert(ConnectionError::Aborted);
        tell
    }

    /// Whether the peer still has to be told of an abort.
    #[must_use]
    pub fn is_resetting(&self, now: Instant) -> bool {
        self.close_state.aborting.is_some_and(|until| self.clock.at(now) < until)
    }

    /// The peer need not hear of an abort any more.
    pub(crate) fn forget_abort(&mut self) {
        self.close_state.aborting = None;
    }

    /// When the peer is no more told of an abort.
    pub(crate) fn leaves_until(&self) -> Option<Instant> {
        self.close_state.aborting.map(|until| self.clock.instant(until))
    }

    /// Whether our end is told and the peer has not answered.
    pub(super) fn awaits_fin_ack(&self) -> bool {
        self.close_state.owes_close() && self.close_state.sent.is_some()
    }

    /// An abort is not repeated for ever.
    pub(super) fn expire_abort(&mut self, now: Micros) {
        self.close_state.aborting = self.close_state.aborting.filter(|until| now < *until);
    }

    /// Whether a notice would leave now.
    pub(super) fn owes_notice(&self, now: Micros) -> bool {
        let close = self.close_state.owes_close()
            && self.send.send_buffer().is_empty()
            && self.has_started();
        self.close_state.answer.is_some() || (close && self.close_state.is_due(now))
    }

    /// Appends the notice that is due, if any. The rest of the conversation may have ended.
    pub(super) fn emit_notice(&mut self, now: Micros, out: &mut Vec<u8>) -> bool {
        let stamp = self.clock.timestamp(now);
        if let Some((notice, sn, ts)) = self.close_state.answer.take() {
            self.notice(notice, sn, ts, out);
            return true;
        }
        let aborts = self.close_state.aborting.is_some_and(|until| now < until);
        if aborts && self.close_state.peer_understands() && self.close_state.is_due(now) {
            // Without a segment to name the peer asks, and the next one can name that probe.
            let (sn, ts) = self.close_state.heard.unwrap_or_default();
            self.close_state.schedule(now, self.send.rtt.rto());
            self.notice(ControlType::Reset, sn, ts, out);
            return true;
        }
        if self.close_reason.is_none() && self.owes_notice(now) {
            let sn = self.send.nxt();
            let first = self.close_state.sent.map_or(stamp, |sent| sent.first);
            self.close_state.sent = Some(LocalFin { sn, first, last: stamp });
            self.close_state.schedule(now, self.send.rtt.rto());
            self.notice(ControlType::Fin, sn, stamp, out);
            return true;
        }
        false
    }

    fn notice(&mut self, notice: ControlType, sn: Sn, ts: Ts, out: &mut Vec<u8>) {
        self.header(Command::Control, notice as u8, sn, ts, 0).emit(out);
    }

    /// A notice of the peer.
    pub(super) fn input_notice(&mut self, now: Micros, header: &Header, una: UnaOutcome) {
        if !self.close_state.enabled {
            return;
        }
        let (sn, ts) = (header.sn, header.ts);
        let taken = match ControlType::from_frg(header.frg) {
            Some(ControlType::Fin) => una != UnaOutcome::Invalid && self.on_close(sn, ts),
            Some(ControlType::FinAck) if self.close_state.is_ours(sn, ts) => {
                (self.close_state.fin_acked, self.close_state.repeat) = (true, None);
                true
            }
            Some(ControlType::Reset) => self.on_abort(now, sn, ts),
            Some(ControlType::ResetAck) if self.close_state.heard == Some((sn, ts)) => {
                self.close_state.aborting = None;
                true
            }
            _ => false,
        };
        self.stats.invalid_control_segments += u64::from(!taken);
    }

    fn on_close(&mut self, sn: Sn, ts: Ts) -> bool {
        let nxt = self.recv.nxt();
        let plausible = sn.offset_from(nxt).is_some_and(|ahead| ahead <= u32::from(u16::MAX));
        let agrees = self.close_state.remote_fin.is_none_or(|(end, _)| end == sn);
        // Our own, sent back, looks like the peer's where both streams have the same length.
        if !plausible || !agrees || self.close_state.is_ours(sn, ts) {
            return false;
        }
        self.close_state.remote_fin = Some((sn, ts));
        self.close_state.on_advance(nxt);
        true
    }

    /// The conversation ends if the stamp is one that this side sent within the last ten seconds:
    /// whoever knows it takes part. Otherwise the peer is asked.
    fn on_abort(&mut self, now: Micros, sn: Sn, ts: Ts) -> bool {
        let age = i64::from(self.clock.timestamp(now).since(ts)) * 1_000;
        let recent = (0..=RESET_LIFETIME.cast_signed()).contains(&age);
        let known = (recent && self.send.has_sent(&self.clock, sn, ts))
            || self.keepalive.is_recent_ping(now, (sn, ts))
            || self.send.path.has_asked(now, (sn, ts));
        if known {
            self.close_reason.get_or_insert(ConnectionError::Reset);
            self.close_state.aborting = None;
            self.close_state.answer = Some((ControlType::ResetAck, sn, ts));
        } else if self.has_started() && self.close_reason.is_none() {
            self.keepalive.request_ping(now);
        }
        known
    }

    /// Whether `header` is our own `Close`, sent back. Its answer has the same number and stamp.
    pub(super) fn is_own_close(&self, header: &Header) -> bool {
        header.command == Command::Control
            && ControlType::from_frg(header.frg) == Some(ControlType::Fin)
            && self.close_state.is_ours(header.sn, header.ts)
    }
}
