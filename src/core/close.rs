//! The end of a conversation, told to a peer that understands it.
//!
//! KCP itself has no end of stream. Peers that advertise it ([`CONTROL_CAPABLE`]) tell each other, each
//! notice in a datagram of its own: `Close` says which number the stream ends before, is repeated
//! until `Closed` answers it, and counts once everything before that number has arrived. `Reset`
//! proves by the stamp of a recent segment that its sender takes part in the conversation; one
//! that does not prove it draws an echo probe, whose stamp the next one can carry. The bytes are in
//! docs/wire.md.

use super::clock::Micros;
use super::segment::{CONTROL_CAPABLE, Command, ControlType, Header};
use super::seq::{Sn, Ts};

/// Most time between two repetitions of a notice, microseconds.
pub(crate) const LONGEST_GAP: u64 = 1_000_000;
/// How long an abort is repeated, and how old the stamp that it carries may be, microseconds.
pub(crate) const RESET_LIFETIME: u64 = 10_000_000;

/// When a notice is sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeat {
    next: Micros,
    gap: u64,
}

/// Our `Close`, once it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalFin {
    pub(crate) sn: Sn,
    pub(crate) first: Ts,
    pub(crate) last: Ts,
}

#[derive(Debug)]
pub(crate) struct CloseState {
    /// This side advertises and understands notices.
    pub(crate) enabled: bool,
    /// The peer does; unknown before it has sent anything that would say so.
    pub(crate) peer: Option<bool>,
    /// Nothing more will be written.
    pub(crate) closing: bool,
    pub(crate) sent: Option<LocalFin>,
    /// The peer knows of our end.
    pub(crate) fin_acked: bool,
    /// Where the peer's stream ends, and the stamp of its notice.
    pub(crate) remote_fin: Option<(Sn, Ts)>,
    /// What the next datagram answers.
    pub(crate) answer: Option<(ControlType, Sn, Ts)>,
    /// Until when our abort is repeated.
    pub(crate) aborting: Option<Micros>,
    pub(crate) repeat: Option<Repeat>,
    /// The latest data segment or probe of the peer.
    pub(crate) heard: Option<(Sn, Ts)>,
    /// Nobody reads any more, and whether something came that nobody will read.
    pub(crate) discarding: bool,
    pub(crate) discarded_data: bool,
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
    pub(crate) fn needs_capability_ping(&self) -> bool {
        self.closing && self.enabled && self.peer.is_none()
    }

    /// Whether `Close` has to leave, now or later.
    pub(crate) fn owes_close(&self) -> bool {
        self.closing && !self.fin_acked && self.peer_understands()
    }

    /// Whether the peer knows of our end, or never will.
    pub(crate) fn is_settled(&self) -> bool {
        self.fin_acked || !self.enabled || self.peer == Some(false)
    }

    pub(crate) fn is_ours(&self, sn: Sn, ts: Ts) -> bool {
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

    pub(crate) fn schedule(&mut self, now: Micros, rto: u64) {
        let gap = self.repeat.map_or(rto, |repeat| 2 * repeat.gap).min(LONGEST_GAP);
        self.repeat = Some(Repeat { next: now.add_micros(gap), gap });
    }

    pub(crate) fn is_due(&self, now: Micros) -> bool {
        self.repeat.is_none_or(|repeat| now >= repeat.next)
    }
}
