//! Initial segments without data, and detection of a peer that has restarted.

use std::time::{Duration, Instant};

use super::Kcp;
use crate::core::clock::Micros;
use crate::core::open::Restart;
use crate::core::ping::dataless_sn;
use crate::core::segment::Command;
use crate::core::seq::{Sn, Ts};
use crate::error::ConnectionError;

/// Initial segments.
impl Kcp {
    /// Opens the connection at the peer before there is data, so that the peer may send first:
    /// sends a window probe, retransmitted until a segment of the peer other than a ping arrives,
    /// or data is sent. Works with other implementations if their listener accepts any first
    /// segment.
    pub fn open(&mut self, now: Instant) {
        self.open_after(now, Duration::ZERO);
    }

    /// As [`Kcp::open`] after `wait`, unless data is sent before.
    pub(crate) fn open_after(&mut self, now: Instant, wait: Duration) {
        if !self.has_started() {
            let ts = Ts(self.keepalive.next_cookie().0 | 1);
            self.establishment.open(self.clock.at(now + wait), ts, self.send.rtt.rto());
        }
    }

    /// Whether an initial segment without data is outstanding or queued.
    pub(crate) fn is_initial_outstanding(&self) -> bool {
        self.establishment.is_initial_outstanding()
    }

    /// Sends a queued initial segment without data now.
    pub(crate) fn expedite_open(&mut self, now: Instant) {
        self.establishment.expedite(self.clock.at(now));
    }

    /// Drops the initial segment if nothing was sent: nothing has to be closed then.
    pub(crate) fn abandon_open(&mut self) {
        if !self.has_started() {
            self.establishment.cancel_initial();
        }
    }

    /// Whether an initial segment without data is due.
    pub(super) fn has_initial_due(&self, now: Micros) -> bool {
        self.send.send_buffer().is_empty() && self.establishment.is_due(now)
    }

    /// When the initial segment without data is sent next.
    pub(super) fn initial_deadline(&self) -> Option<Micros> {
        self.establishment.deadline().filter(|_| self.send.send_buffer().is_empty())
    }

    /// Appends the initial segment without data that is due, if any.
    pub(super) fn emit_initial(&mut self, now: Micros, out: &mut Vec<u8>) -> bool {
        if !self.has_initial_due(now) {
            return false;
        }
        if !self.has_started() {
            self.keepalive.on_first_sent(now);
        }
        let Some(probe) = self.establishment.poll_initial(now) else { return false };
        let sn = if probe.replaces { Sn(0) } else { dataless_sn(self.send.una()) };
        let capability = self.close_state.capability();
        self.header(Command::WindowProbe, capability, sn, probe.ts, 0).emit(out);
        true
    }

    /// Sets whether the initial segment may replace a session of this address at other
    /// implementations: not while the socket has another connection to the peer's address.
    pub(crate) fn set_replaces(&mut self, replaces: bool) {
        self.establishment.set_replaces(replaces);
    }

    /// Whether `sn` and `ts` name our initial segment without data, and nothing but a ping has
    /// answered it. The ping may be a Retry, after which the listener began to drain.
    pub(super) fn is_unanswered_initial(&self, sn: Sn, ts: Ts) -> bool {
        self.establishment.is_initial(ts) && [Sn(0), dataless_sn(self.send.una())].contains(&sn)
    }

    /// A segment of this connection arrived: the initial segment is no longer needed. The segment
    /// does not prove that the peer receives our datagrams, so address validation starts.
    pub(super) fn on_initial_answered(&mut self, now: Micros) {
        if self.establishment.cancel_initial() {
            self.keepalive.start_validation(now);
        }
    }

    /// A different initial segment arrived from the peer's address: the peer may have restarted.
    /// Sends a ping: if the pong shows that the state of this connection is lost, the connection
    /// ends with [`PeerRestarted`](crate::ConnectionError::PeerRestarted).
    ///
    /// If the peer never acknowledged our data, the pong cannot show a lost state. Then the
    /// connection ends on the next different initial segment after the pong, unless a valid ACK or
    /// new data in order arrives in between.
    pub(crate) fn suspect_restart(&mut self, now: Instant) {
        match self.peer.on_other_initial() {
            Restart::Confirmed => {
                self.close_reason.get_or_insert(ConnectionError::PeerRestarted);
            }
            Restart::Suspected => self.keepalive.request_ping(self.clock.at(now)),
        }
    }

    /// A pong arrived. `state_lost`: the peer acknowledges less than before the ping.
    pub(super) fn on_pong(&mut self, state_lost: bool, una: Sn) {
        if !state_lost && una != Sn(0) {
            self.peer.on_state_shown();
        }
        self.peer.on_pong();
        if state_lost {
            let restarted = self.peer.is_restart_suspected();
            let lost = ConnectionError::PeerStateLost;
            self.close_reason = Some(if restarted { ConnectionError::PeerRestarted } else { lost });
        }
    }

    /// Whether RCV.NXT is 0: no data in order has arrived.
    pub(crate) fn awaits_first_data(&self) -> bool {
        self.recv.nxt() == Sn(0)
    }
}
