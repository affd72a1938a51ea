//! How long a socket stays open for peers alone, once no handle needs it: in TIME-WAIT, or for the end of the
//! peer's stream (FIN-WAIT-2).
//!
//! Most sockets are of `KcpStream::connect`, a descriptor for each connection: a process that opens and
//! closes many would run out of them. So a socket waits no longer than it may have something to answer, and
//! a bounded number of a process waits at a time. One more closes at once, with a RST to a peer that may
//! still send.

mod waiting;

use std::time::{Duration, Instant};

pub(super) use self::waiting::SocketTimeWait;

use super::Driver;
use crate::core::time_wait::TimeWait;
use crate::sys::Socket;

/// The longest time; `Config::linger` if that is shorter. Deviates from RFC 9293 3.6.1, where TIME-WAIT
/// lasts two segment lifetimes: a peer retransmits an unanswered FIN or RST at least once a second, and a
/// driver in use keeps the state for `TIME_WAIT_DURATION`.
const MAX_TIME_WAIT: Duration = Duration::from_secs(2);
/// The same where the peer has ended its side too, in RTOs, and at least: only its last FIN or RST may come
/// again, when it has missed the answer (RFC 9000 10.2: three PTOs).
const ENDED_TIME_WAIT_RTOS: u32 = 3;
const MIN_ENDED_TIME_WAIT: Duration = Duration::from_millis(500);

impl<S: Socket> Driver<S> {
    pub(super) fn is_unused(&self) -> bool {
        (self.has_no_users() && self.time_wait_end().is_none())
            || self.releases_port()
            || self.socket_time_wait.is_refused()
    }

    /// Whether there is neither a connection nor a handle that could open one.
    pub(super) fn has_no_users(&self) -> bool {
        self.conns.is_empty() && self.requests.handles() == 0
    }

    /// Until when the socket stays open because peers may retransmit to connections in TIME-WAIT;
    /// `None` once that time has passed.
    pub(super) fn time_wait_end(&self) -> Option<Instant> {
        self.socket_time_wait.until.filter(|until| self.last_turn < *until)
    }

    /// A connection has ended. `rto`: its retransmission timeout.
    pub(super) fn extend_time_wait(&mut self, now: Instant, time_wait: &TimeWait, rto: Duration) {
        if !time_wait.supports_control {
            return;
        }
        let mut wait = self.max_time_wait();
        if !time_wait.reset_on_data {
            wait = wait.min(MIN_ENDED_TIME_WAIT.max(ENDED_TIME_WAIT_RTOS * rto));
        }
        let until = &mut self.socket_time_wait.until;
        *until = (*until).max(Some(now + wait));
    }

    /// Connections of the endpoints that had the port before ended then, the last one of them.
    pub(super) fn inherit_time_wait_of_socket(&mut self, ended: Option<Instant>) {
        self.socket_time_wait.until = ended.map(|ended| ended + self.max_time_wait());
    }

    fn max_time_wait(&self) -> Duration {
        MAX_TIME_WAIT.min(self.config.linger)
    }

    /// Counts the socket among those that wait for peers alone, if it does. One with several connections is
    /// a listener's, a descriptor for all of them.
    pub(super) fn count_waiting(&mut self) {
        let waits = match self.conns.len() {
            _ if self.requests.handles() > 0 => false,
            0 => self.time_wait_end().is_some(),
            1 => self.conns.iter().all(|(_, conn)| conn.is_in_fin_wait_2()),
            _ => false,
        };
        self.socket_time_wait.set_waiting(waits);
    }
}
