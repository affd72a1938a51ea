//! How a conversation opens when no data does it, and what an opening of a live one is worth.

use std::time::Instant;

use super::Kcp;
use super::clock::Micros;
use super::segment::{CONTROL_CAPABLE, Command, HEADER_LEN, Header, Segments};
use super::seq::{Sn, Ts};
use crate::error::ConnectionError;

/// Most time between two repetitions of an opening, microseconds.
const LONGEST_GAP: u64 = 5_000_000;

/// An opening without data that nobody has answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenRequest {
    /// Names this opening: a later one under the same conversation id has another.
    ts: Ts,
    /// When it leaves next, and the gap after that in microseconds.
    next: Micros,
    gap: u64,
    sent: bool,
}

impl OpenRequest {
    pub(crate) fn deadline(&self) -> Option<Micros> {
        self.sent.then_some(self.next)
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.sent
    }
}

/// What is known of a peer that may have started anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartCheck {
    /// It was asked.
    Asked,
    /// It has answered like one that has received nothing.
    Answered,
}

/// What a datagram opens a conversation with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InitialSegment<'a> {
    /// The payload of the first data segment.
    Data(&'a [u8]),
    /// A question for the window, and the stamp that names it, which is not 0.
    Asks(Ts),
}

/// What `datagram` would open a conversation with: its first segment is a PUSH with number 0 and
/// nothing acknowledged, or a marked window question of someone who has received nothing.
pub(crate) fn first(datagram: &[u8]) -> Option<InitialSegment<'_>> {
    let header = Header::parse(datagram).ok().filter(|header| header.una == Sn(0))?;
    match header.command {
        Command::Push if header.sn == Sn(0) => {
            let len = usize::try_from(header.len).ok()?;
            datagram.get(HEADER_LEN..)?.get(..len).map(InitialSegment::Data)
        }
        Command::WindowProbe
            if header.sn != Sn(0) && header.frg == CONTROL_CAPABLE && header.len == 0 =>
        {
            // Within a conversation such a question has no stamp.
            Some(InitialSegment::Asks(header.ts)).filter(|_| header.ts != Ts(0))
        }
        _ => None,
    }
}

/// The first data of a conversation, wherever it is in `datagram`.
pub(crate) fn first_data(datagram: &[u8]) -> Option<InitialSegment<'_>> {
    let mut segments = Segments::new(datagram);
    let (_, payload) =
        segments.find(|(header, _)| header.command == Command::Push && header.sn == Sn(0))?;
    Some(InitialSegment::Data(payload))
}

/// Openings.
impl Kcp {
    /// Lets the peer know of the conversation before there is data for it, so that it may speak
    /// first: with a question for its window, repeated until something comes back or data leaves.
    /// Every KCP listener that opens a conversation for any segment takes it for an opening.
    pub fn open(&mut self, now: Instant) {
        if !self.has_started() {
            let (ts, next) = (Ts(self.keepalive.next_cookie().0 | 1), self.clock.at(now));
            let gap = self.send.rtt.rto();
            self.opening = Some(OpenRequest { ts, next, gap, sent: false });
        }
    }

    /// Whether an opening without data would leave now.
    pub(super) fn owes_opening(&self, now: Micros) -> bool {
        self.send.send_buffer().is_empty()
            && self.opening.is_some_and(|opening| now >= opening.next)
    }

    /// Appends the opening that is due, if any.
    pub(super) fn emit_opening(&mut self, now: Micros, out: &mut Vec<u8>) -> bool {
        let Some(opening) = self.opening.filter(|_| self.owes_opening(now)) else { return false };
        let gap = (2 * opening.gap).min(LONGEST_GAP);
        let next = now.add_micros(opening.gap);
        self.opening = Some(OpenRequest { next, gap, sent: true, ..opening });
        self.write_dataless(Command::WindowProbe, opening.ts, out);
        true
    }

    /// Something came that is of this conversation: the peer knows of it. Whether it hears us is
    /// another question.
    pub(super) fn on_opened(&mut self, now: Micros) {
        if self.opening.take().is_some() {
            self.keepalive.insist(now);
        }
    }

    /// Someone at the peer's address opens this conversation anew. The peer is asked: if it has
    /// forgotten everything, the conversation ends with
    /// [`PeerRestarted`](crate::ConnectionError::PeerRestarted).
    ///
    /// Where nothing of ours was ever acknowledged there is nothing to have forgotten. Then it ends
    /// when the opening comes again after the answer, and nothing that only the old peer could have
    /// sent came in between.
    pub(crate) fn suspect_restart(&mut self, now: Instant) {
        if self.restart_check == Some(RestartCheck::Answered) {
            self.close_reason.get_or_insert(ConnectionError::PeerRestarted);
            return;
        }
        self.restart_check = Some(RestartCheck::Asked);
        self.keepalive.request_ping(self.clock.at(now));
    }

    /// The peer has answered, and it had nothing of ours before or has forgotten it.
    pub(super) fn on_suspect_answer(&mut self, forgotten: bool) {
        if self.restart_check.is_some() {
            self.restart_check = Some(RestartCheck::Answered);
        }
        if forgotten {
            let anew = self.restart_check.is_some();
            let lost = ConnectionError::PeerStateLost;
            self.close_reason = Some(if anew { ConnectionError::PeerRestarted } else { lost });
        }
    }

    /// Whether the next number expected of the peer is the first one.
    pub(crate) fn awaits_first_data(&self) -> bool {
        self.recv.nxt() == Sn(0)
    }
}
