//! Opening a connection, and peers that start over.

use std::time::Instant;

use super::Kcp;
use crate::core::clock::Micros;
use crate::core::open::{LONGEST_GAP, OpenRequest, RestartCheck};
use crate::core::segment::Command;
use crate::core::seq::{Sn, Ts};
use crate::error::ConnectionError;

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
