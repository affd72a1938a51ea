//! A port that another endpoint of this process binds while only peers still need it, as TCP permits with
//! SO_REUSEADDR for a port whose connections are in TIME-WAIT.
//!
//! A driver without handles keeps its socket for a while, to answer for connections in TIME-WAIT (RFC 9293
//! 3.6.1) and those that wait for the peer's FIN. It releases the socket on request, and the endpoint that
//! binds the port next takes over what it would have answered. A datagram that arrives in between is lost,
//! and retransmitted by its sender.

mod pending;

use std::time::Instant;

use tokio::sync::oneshot;

pub(super) use self::pending::PortRelease;

use super::Driver;
use crate::core::time_wait::TIME_WAIT_DURATION;
use crate::error::ConnectionError;
use crate::shared::requests::TimeWaitEntry;
use crate::sys::Socket;

impl<S: Socket> Driver<S> {
    /// Whether nobody of this process needs the socket: no handle is left, and no connection but those that
    /// TIME-WAIT can stand for. `None` while something is left to deliver.
    fn can_release_port(&self) -> Option<bool> {
        let conns = || self.conns.iter().map(|(_, conn)| conn);
        if self.requests.handles() > 0 || conns().any(|conn| conn.is_in_use()) {
            return Some(false);
        }
        conns().all(|conn| conn.has_delivered(self.last_turn)).then_some(true)
    }

    /// Whether the driver ends for another endpoint on its port.
    pub(super) fn releases_port(&self) -> bool {
        self.release.is_requested() && self.can_release_port() == Some(true)
    }

    /// Replies whether the port may be released, as soon as that is decided.
    pub(super) fn on_can_release_port(&mut self, now: Instant, reply: oneshot::Sender<bool>) {
        self.exchange_ready(now);
        self.release.undecided.push(reply);
    }

    /// Replies to the endpoints that wait for a decision.
    pub(super) fn answer_can_release_port(&mut self) {
        // One that has given up is not answered.
        self.release.undecided.retain(|reply| !reply.is_closed());
        if self.release.undecided.is_empty() {
            return;
        }
        if let Some(can_release) = self.can_release_port() {
            for reply in self.release.undecided.drain(..) {
                let _ = reply.send(can_release);
            }
        }
    }

    /// Ends the driver for another endpoint on the same port, once the last datagrams have left. Of two that
    /// ask, the second one is rejected.
    pub(super) fn release_port(&mut self, now: Instant, to: oneshot::Sender<Vec<TimeWaitEntry>>) {
        self.exchange_ready(now);
        if !self.release.is_requested() && self.can_release_port() == Some(true) {
            self.release.to = Some(to);
        }
    }

    /// Leaves to the next endpoint on the port what this one would answer: for as many connections as an
    /// endpoint keeps in TIME-WAIT.
    pub(super) fn leave_time_wait(&mut self, now: Instant) {
        if !self.releases_port() {
            return;
        }
        let left: Vec<_> = self.conns.iter().map(|(_, c)| (c.id(), c.time_wait())).collect();
        for (id, time_wait) in left {
            // A task may wait for the end of a stream that was dropped.
            if let Some(conn) = self.get_mut(id)
                && conn.shared().error().is_none()
            {
                let waiters = conn.shared().end(ConnectionError::Closed, true);
                self.scratch.wakers.extend(waiters);
            }
            self.remove(now, id, time_wait);
        }
        self.release.time_wait = self.demux.take_time_wait();
    }

    /// Takes over what the endpoints that had the port before would have answered.
    pub(crate) fn inherit_time_wait(&mut self, entries: Vec<TimeWaitEntry>) {
        let ended = entries.iter().filter(|(.., time_wait)| time_wait.supports_control);
        let ended = ended.map(|(_, until, _)| *until - TIME_WAIT_DURATION).max();
        self.inherit_time_wait_of_socket(ended);
        self.demux.inherit_time_wait(entries);
    }
}
