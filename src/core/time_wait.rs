//! TIME-WAIT: what a connection that has ended still answers (RFC 9293 3.3.2, 3.6.1).
//!
//! The peer may have missed the last acknowledgement, FIN-ACK or RST-ACK, and a late duplicate of
//! its initial segment must not open a connection that nobody wants. Deviation: the state lasts
//! [`TIME_WAIT_DURATION`], not twice the MSL of two minutes, and both sides enter it.

use std::time::Duration;

use super::open::{InitialHash, OpenedBy};
use super::segment::{CONTROL_CAPABLE, Command, ControlType, Header, Segments};
use super::seq::Sn;

/// How long an ended connection still answers.
pub(crate) const TIME_WAIT_DURATION: Duration = Duration::from_secs(60);

/// Segments before RCV.NXT that are still acknowledged: no window is larger.
const MAX_WINDOW: u32 = u16::MAX as u32;

/// What is remembered of a connection that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    /// Initial segments that belong to the ended connection.
    pub(crate) opened_by: OpenedBy,
    /// RCV.NXT: the next number that the connection would have received.
    pub(crate) rcv_nxt: Sn,
    /// SND.UNA: the oldest number that the peer had not acknowledged.
    pub(crate) snd_una: Sn,
    /// The peer supports CONTROL segments.
    pub(crate) supports_control: bool,
    /// The peer may take the connection for open: new data and pings are answered with RST.
    pub(crate) reset_on_data: bool,
}

/// What becomes of a datagram for a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeWaitOutcome {
    /// The datagram opens another connection under the same conversation id.
    Open(InitialHash),
    /// The peer is sent this segment.
    Reply(Header),
    /// No reply.
    Drop,
}

impl TimeWait {
    /// Takes a valid datagram. `initial`: the hash of its initial segment, if it begins with one.
    pub(crate) fn on_datagram(
        &mut self,
        initial: Option<InitialHash>,
        datagram: &[u8],
    ) -> TimeWaitOutcome {
        if let Some(initial) = initial {
            if self.opened_by.was_overtaken(initial) {
                self.opened_by.add(initial);
                return TimeWaitOutcome::Drop;
            }
            // The first data of a connection that ended before any arrived opens no other one.
            let is_first_data =
                matches!(initial, InitialHash::Data(_)) && self.opened_by.awaits_data();
            if !is_first_data && !self.opened_by.contains(initial) {
                // A peer that did not open the connection may only retransmit acknowledged data.
                let is_by_peer = self.opened_by.is_by_peer();
                return if is_by_peer {
                    TimeWaitOutcome::Open(initial)
                } else {
                    TimeWaitOutcome::Drop
                };
            }
            // The initial segment again, though data after it was acknowledged: a peer that has
            // restarted with the same first data. It may open once TIME-WAIT is over.
            if !is_first_data && self.rcv_nxt != Sn(1) {
                return TimeWaitOutcome::Drop;
            }
        }
        self.reply(datagram).map_or(TimeWaitOutcome::Drop, TimeWaitOutcome::Reply)
    }

    /// An ACK of the last received data segment in `datagram`, with a closed window since nothing
    /// more is read; or before that a CONTROL segment.
    fn reply(&self, datagram: &[u8]) -> Option<Header> {
        let (mut duplicate, mut control) = (None, None);
        for (header, _) in Segments::new(datagram) {
            match header.command {
                Command::Push if self.has_received(header.sn) => duplicate = Some(header),
                Command::Push => control = control.or_else(|| self.reset(&header)),
                Command::Control => control = control.or_else(|| self.acknowledge_control(&header)),
                Command::Ack | Command::WindowProbe | Command::WindowUpdate => {}
            }
        }
        let reply =
            |to, command, frg| Header { command, frg, wnd: 0, una: self.rcv_nxt, len: 0, ..to };
        match control {
            Some((to, kind)) => Some(reply(to, Command::Control, kind as u8)),
            None => duplicate.map(|to| reply(to, Command::Ack, 0)),
        }
    }

    fn has_received(&self, sn: Sn) -> bool {
        self.rcv_nxt.offset_from(sn).is_some_and(|age| (1..=MAX_WINDOW).contains(&age))
    }

    /// RST for new data or a ping, whose `una` shows that the peer has received our segments.
    fn reset(&self, push: &Header) -> Option<(Header, ControlType)> {
        let una_is_valid =
            push.una.offset_from(self.snd_una).is_some_and(|ahead| ahead <= MAX_WINDOW);
        let is_capable_ping = push.len == 0 && push.frg == CONTROL_CAPABLE;
        let supported = self.supports_control || is_capable_ping;
        (supported && self.reset_on_data && una_is_valid).then_some((*push, ControlType::Reset))
    }

    /// FIN-ACK or RST-ACK for a retransmitted FIN or RST of the peer.
    fn acknowledge_control(&self, header: &Header) -> Option<(Header, ControlType)> {
        let acknowledges = match ControlType::from_frg(header.frg)? {
            ControlType::Fin if header.sn == self.rcv_nxt => ControlType::FinAck,
            ControlType::Reset => ControlType::ResetAck,
            _ => return None,
        };
        self.supports_control.then_some((*header, acknowledges))
    }
}
