//! The end of a conversation, told to a peer that understands it.
//!
//! KCP itself has no end of stream. Peers that advertise it ([`CONTROL_CAPABLE`]) tell each other, each
//! notice in a datagram of its own: `Close` says which number the stream ends before, is repeated
//! until `Closed` answers it, and counts once everything before that number has arrived. `Reset`
//! proves by the stamp of a recent segment that its sender takes part in the conversation; one
//! that does not prove it draws an echo probe, whose stamp the next one can carry. The bytes are in
//! docs/wire.md.

use std::time::Instant;

use super::Kcp;
use super::clock::Micros;
use super::segment::{CONTROL_CAPABLE, Command, ControlType, Header};
use super::send::UnaOutcome;
use super::seq::{Sn, Ts};
use crate::error::ConnectionError;

/// Most time between two repetitions of a notice, microseconds.
const LONGEST_GAP: u64 = 1_000_000;
/// How long an abort is repeated, and how old the stamp that it carries may be, microseconds.
const RESET_LIFETIME: u64 = 10_000_000;

/// When a notice is sent again.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    next: Micros,
    gap: u64,
}

/// Our `Close`, once it was sent.
#[derive(Clone, Copy, Debug)]
struct LocalFin {
    sn: Sn,
    first: Ts,
    last: Ts,
}

#[derive(Debug)]
pub(crate) struct CloseState {
    /// This side advertises and understands notices.
    enabled: bool,
    /// The peer does; unknown before it has sent anything that would say so.
    peer: Option<bool>,
    /// Nothing more will be written.
    closing: bool,
    sent: Option<LocalFin>,
    /// The peer knows of our end.
    fin_acked: bool,
    /// Where the peer's stream ends, and the stamp of its notice.
    remote_fin: Option<(Sn, Ts)>,
    /// What the next datagram answers.
    answer: Option<(ControlType, Sn, Ts)>,
    /// Until when our abort is repeated.
    aborting: Option<Micros>,
    repeat: Option<Repeat>,
    /// The latest data segment or probe of the peer.
    heard: Option<(Sn, Ts)>,
    /// Nobody reads any more, and whether something came that nobody will read.
    discarding: bool,
    discarded_data: bool,
}

impl CloseState {
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            peer: None,
            closing: false,
            sent: None,
            fin_acked: false,
            remote_fin: None,
            answer: None,
            aborting: None,
            repeat: None,
            heard: None,
            discarding: false,
            discarded_data: false,
        }
    }

    /// What `frg` is where it says nothing else.
    pub(crate) fn mark(&self) -> u8 {
        if self.enabled { CONTROL_CAPABLE } else { 0 }
    }

    /// Whether the peer is known to understand notices.
    pub(crate) fn peer_understands(&self) -> bool {
        self.enabled && self.peer == Some(true)
    }

    /// Learns from a segment of the peer what it understands. `probe`: it is a PUSH that lies far
    /// behind, which is the only kind whose `frg` is free.
    pub(crate) fn on_capability(&mut self, header: &Header, probe: bool) {
        let says = match header.command {
            Command::Push => probe && header.frg == CONTROL_CAPABLE,
            Command::Control => false,
            Command::Ack | Command::WindowProbe | Command::WindowUpdate => {
                self.peer.get_or_insert(false);
                header.frg == CONTROL_CAPABLE
            }
        };
        if says {
            self.peer = Some(true);
        }
        if self.peer == Some(false) {
            self.aborting = None;
        }
    }

    /// A data segment or a probe of the peer arrived.
    pub(crate) fn on_push(&mut self, sn: Sn, ts: Ts) {
        self.heard = Some((sn, ts));
        if self.aborting.is_some() {
            // The peer goes on: it has not heard, or asks for a fresh stamp.
            self.repeat = None;
        }
    }

    /// Whether `sn`, which is new, comes too late for anybody to read it.
    pub(crate) fn refuses(&mut self, sn: Sn, nxt: Sn) -> bool {
        let refuses = self.discarding && self.peer_understands() && sn.since(nxt) >= 0;
        self.discarded_data |= refuses;
        refuses
    }

    /// Whether the peer's stream ends before `sn`. A `Close` that did not count yet and that data
    /// contradicts is forgotten: the data is there.
    pub(crate) fn is_beyond_end(&mut self, sn: Sn, nxt: Sn) -> bool {
        let Some((end, _)) = self.remote_fin.filter(|(end, _)| sn.since(*end) >= 0) else {
            return false;
        };
        if end != nxt {
            self.remote_fin = None;
        }
        end == nxt
    }

    /// Whether everything that the peer will ever send has arrived.
    pub(crate) fn peer_has_closed(&self, nxt: Sn) -> bool {
        self.remote_fin.is_some_and(|(end, _)| end == nxt)
    }

    /// Everything before the end of the peer's stream has arrived: it is told.
    pub(crate) fn on_advance(&mut self, nxt: Sn) {
        if let Some((end, ts)) = self.remote_fin.filter(|(end, _)| *end == nxt) {
            self.answer = Some((ControlType::FinAck, end, ts));
        }
    }

    /// Whether there is something to tell, and nothing shows yet whether the peer understands.
    pub(super) fn needs_capability_ping(&self) -> bool {
        self.closing && self.enabled && self.peer.is_none()
    }

    /// Whether `Close` has to leave, now or later.
    fn owes_close(&self) -> bool {
        self.closing && !self.fin_acked && self.peer_understands()
    }

    /// Whether the peer knows of our end, or never will.
    fn is_settled(&self) -> bool {
        self.fin_acked || !self.enabled || self.peer == Some(false)
    }

    fn is_ours(&self, sn: Sn, ts: Ts) -> bool {
        self.sent.is_some_and(|sent| {
            sent.sn == sn && ts.since(sent.first) >= 0 && ts.since(sent.last) <= 0
        })
    }

    /// When our close is repeated.
    pub(crate) fn close_deadline(&self) -> Option<Micros> {
        self.repeat.map(|repeat| repeat.next).filter(|_| self.owes_close())
    }

    /// When our abort is repeated, or given up.
    pub(crate) fn abort_deadline(&self) -> Option<Micros> {
        let until = self.aborting?;
        let next = self.repeat.map_or(Micros(0), |repeat| repeat.next);
        Some(if self.peer_understands() { next.min(until) } else { until })
    }

    fn schedule(&mut self, now: Micros, rto: u64) {
        let gap = self.repeat.map_or(rto, |repeat| 2 * repeat.gap).min(LONGEST_GAP);
        self.repeat = Some(Repeat { next: now.add_micros(gap), gap });
    }

    fn is_due(&self, now: Micros) -> bool {
        self.repeat.is_none_or(|repeat| now >= repeat.next)
    }
}

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
