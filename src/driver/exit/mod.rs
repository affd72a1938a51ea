//! The end of a driver: when it ends, and what it still sends then.
//!
//! Without handles a driver keeps its socket for a while for its peers alone: in TIME-WAIT, or for the end of
//! the peer's stream (FIN-WAIT-2). Most such sockets belong to `KcpStream::connect`, one descriptor for each
//! connection, and a process that opens and closes many would run out of descriptors. So a socket waits no
//! longer than it may have something to answer, and a process has a bounded number of waiting sockets. One
//! more closes at once, with a RST to a peer that may still send.
//!
//! Another endpoint of this process may bind the port in that time, as TCP permits with SO_REUSEADDR for a
//! port whose connections are in TIME-WAIT. The driver releases the socket on request, and the next endpoint
//! takes over its TIME-WAIT states. A datagram that arrives in between is lost, and retransmitted by its
//! sender.
//!
//! If the runtime or process ends under a driver with connections, a thread is held for a moment: the driver
//! sends the remaining data and retransmits lost data until everything is acknowledged, then sends one last
//! datagram to each peer. A kernel would go on sending for a process that is gone.

pub(super) mod state;

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::core::time_wait::{TIME_WAIT_DURATION, TimeWait};
use crate::driver::Driver;
use crate::driver::exit::state::ExitClock;
use crate::error::{ConnectionError, TimeoutCause};
use crate::shared::requests::TimeWaitEntry;
use crate::sys::Socket;
use crate::trace;
use crate::util::task::wake_all;

/// Most bytes that leave at the end, about.
const MAX_LAST_BYTES: usize = 16_000_000;
/// Time between two receives while the thread is held.
const EXIT_WAIT: Duration = Duration::from_micros(500);

/// Longest time that a socket waits for peers alone; `Config::linger` if that is shorter. Deviates from RFC
/// 9293 3.6.1, where TIME-WAIT lasts two segment lifetimes: a peer retransmits an unanswered FIN or RST at
/// least once a second, and a driver in use keeps the state for `TIME_WAIT_DURATION`.
const MAX_TIME_WAIT: Duration = Duration::from_secs(2);
/// The same in RTOs if the peer has ended its side too: only its last FIN or RST may come again, if it missed
/// the answer (RFC 9000 10.2: three PTOs).
const ENDED_TIME_WAIT_RTOS: u32 = 3;
/// Shortest wait of [`ENDED_TIME_WAIT_RTOS`].
const MIN_ENDED_TIME_WAIT: Duration = Duration::from_millis(500);

/// TIME-WAIT of the socket.
impl<S: Socket> Driver<S> {
    /// Whether the driver ends.
    pub(super) fn is_unused(&self) -> bool {
        (self.has_no_users() && self.time_wait_end().is_none())
            || self.releases_port()
            || self.socket_time_wait.is_refused()
    }

    /// Whether there is neither a connection nor a handle that could open one.
    pub(super) fn has_no_users(&self) -> bool {
        self.routing.conns.is_empty() && self.requests.handles() == 0
    }

    /// Until when the socket stays open because peers may retransmit to connections in TIME-WAIT; `None` once
    /// that time has passed.
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

    fn max_time_wait(&self) -> Duration {
        MAX_TIME_WAIT.min(self.config.linger)
    }

    /// Counts the socket among the sockets that wait for peers alone, if it does. A socket with several
    /// connections belongs to a listener: one descriptor for all of them.
    pub(super) fn count_waiting(&mut self) {
        let waits = match self.routing.conns.len() {
            _ if self.requests.handles() > 0 => false,
            0 => self.time_wait_end().is_some(),
            1 => self.routing.conns.iter().all(|(_, conn)| conn.is_in_fin_wait_2()),
            _ => false,
        };
        self.socket_time_wait.set_waiting(waits);
    }
}

/// Release of the port.
impl<S: Socket> Driver<S> {
    /// Whether this process no longer needs the socket: no handle is left, and TIME-WAIT can answer for every
    /// connection. `None` while something is left to deliver.
    fn can_release_port(&self) -> Option<bool> {
        let conns = || self.routing.conns.iter().map(|(_, conn)| conn);
        if self.requests.handles() > 0 || conns().any(|conn| conn.is_in_use()) {
            return Some(false);
        }
        conns().all(|conn| conn.has_delivered(self.last_turn)).then_some(true)
    }

    /// Whether the driver ends for another endpoint on its port.
    fn releases_port(&self) -> bool {
        self.release.is_requested() && self.can_release_port() == Some(true)
    }

    /// Replies to the endpoints that ask whether the port may be released, as soon as that is decided.
    pub(super) fn answer_can_release_port(&mut self) {
        if self.release.undecided.is_empty() {
            return;
        }
        if let Some(can_release) = self.can_release_port() {
            self.release.undecided.answer(can_release);
        }
    }

    /// Ends the driver for another endpoint on the same port, once the last datagrams have left. A second
    /// endpoint that asks is rejected.
    pub(super) fn release_port(&mut self, now: Instant, to: oneshot::Sender<Vec<TimeWaitEntry>>) {
        self.exchange_ready(now);
        if !self.release.is_requested() && self.can_release_port() == Some(true) {
            self.release.to = Some(to);
        }
    }

    /// Leaves the TIME-WAIT states to the next endpoint on the port, at most the number that an endpoint
    /// keeps.
    pub(super) fn leave_time_wait(&mut self, now: Instant) {
        if !self.releases_port() {
            return;
        }
        let left: Vec<_> =
            self.routing.conns.iter().map(|(_, conn)| (conn.id(), conn.time_wait())).collect();
        for (id, time_wait) in left {
            // A task may wait for the end of a stream that was dropped.
            if let Some(conn) = self.routing.get_mut(id)
                && conn.shared().error().is_none()
            {
                conn.log_end(now, ConnectionError::Closed);
                let waiters = conn.shared().end(ConnectionError::Closed, true);
                self.scratch.wakers.extend(waiters);
            }
            self.remove(now, id, time_wait);
        }
        self.release.time_wait = self.routing.demux.take_time_wait();
    }

    /// Takes over the TIME-WAIT states of the endpoints that had the port before.
    pub(crate) fn inherit_time_wait(&mut self, entries: Vec<TimeWaitEntry>) {
        let ended = entries.iter().filter(|(.., time_wait)| time_wait.supports_control);
        let last = ended.map(|(_, until, _)| *until - TIME_WAIT_DURATION).max();
        self.socket_time_wait.until = last.map(|ended| ended + self.max_time_wait());
        self.routing.demux.inherit_time_wait(entries);
    }
}

/// The end after a panic, and with the runtime or process.
impl<S: Socket> Driver<S> {
    /// Resets all connections after a turn has panicked with `panic` (RFC 9293 3.5.2). To be dropped
    /// afterwards.
    pub(super) fn end_after_panic(&mut self, now: Instant, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("without a message");
        let error = format!("the endpoint has ended because its task panicked: {text}");
        let error = io::Error::other(error);
        // The cipher, for example, may panic again. Then no RST leaves.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            trace::endpoint_failed(self.local(), &error);
            // If the socket fails too, no RST leaves.
            drop(self.reset_all(now));
        }));
        self.fail(error);
    }

    /// Ends every connection and sends the RSTs that the socket takes now.
    fn reset_all(&mut self, now: Instant) -> io::Result<()> {
        // Datagrams that were not sealed must not leave.
        self.output.discard();
        self.routing.ready.clear();
        for (_, conn) in &mut self.routing.conns {
            conn.end_early(ConnectionError::EndpointClosed);
            conn.publish_stats(None);
            // From now on it sends only its RST.
            let _time_wait =
                conn.advance_lifecycle(now, |_| TimeoutCause::Nothing, &mut self.scratch);
            self.routing.ready.push_back(conn.id());
        }
        // A connection is served once or twice; each round serves some, or is the last.
        for _ in 0..=self.routing.ready.len() {
            if self.routing.ready.is_empty() || self.output.blocked {
                break;
            }
            self.output.refill();
            self.serve(now)?;
            self.flush()?;
        }
        Ok(())
    }

    /// The driver is about to be dropped. `clock`: the time, if the thread may be held for a moment.
    pub(crate) fn on_exit(&mut self, now: Instant, clock: Option<fn() -> Instant>) {
        self.last_turn = self.last_turn.max(now);
        self.exit_clock = clock.map(ExitClock::new);
    }

    /// The time since [`Self::on_exit`] is added to its `now`.
    fn exit_now(&self) -> Instant {
        self.last_turn + self.exit_clock.map_or(Duration::ZERO, |clock| clock.elapsed())
    }

    fn may_hold_thread(&mut self) -> bool {
        self.exit_clock.as_mut().is_some_and(ExitClock::may_hold)
    }

    /// Sends the peers their remaining data, then a FIN or RST to each peer that takes it, see
    /// `Kcp::final_control`. No connection is used afterwards.
    fn notify_peers(&mut self) {
        // An error means that the socket has failed.
        if self.send_rest().is_ok() {
            drop(self.send_ends());
        }
    }

    /// Sends the data that windows and socket take, also after the ACKs that arrive in time.
    fn send_rest(&mut self) -> io::Result<()> {
        self.output.budget = MAX_LAST_BYTES / usize::from(self.config.kcp.mtu);
        self.flush()?;
        let mut slots: Vec<usize> = self.routing.conns.iter().map(|(slot, _)| slot).collect();
        let mut may_wait = None;
        loop {
            self.send_rounds(&slots)?;
            self.flush()?;
            let conns = &self.routing.conns;
            slots.retain(|slot| conns.get(*slot).is_some_and(|conn| conn.is_undelivered()));
            let is_done = (slots.is_empty() && !self.output.blocked) || self.output.budget == 0;
            if is_done || !self.may_hold_thread() {
                return Ok(());
            }
            // Only the first time: the ending runtime no longer reports when the socket is ready.
            if !*may_wait.get_or_insert_with(|| self.socket.leave_runtime()) {
                return Ok(());
            }
            thread::sleep(EXIT_WAIT);
            self.flush()?;
            self.receive(self.exit_now())?;
        }
    }

    /// Sends the data that these connections may send now, each a share at a time.
    fn send_rounds(&mut self, slots: &[usize]) -> io::Result<()> {
        let (now, mut slots, mut next) = (self.exit_now(), slots.to_vec(), Vec::new());
        for slot in &slots {
            if let Some(conn) = self.routing.conns.get_mut(*slot) {
                // The last calls of the handles are in the queues, for instance an abort.
                conn.exchange_last(now, &mut self.scratch);
            }
        }
        while !slots.is_empty() {
            for slot in slots.drain(..) {
                if self.output.blocked || self.output.budget == 0 {
                    return Ok(());
                }
                let before = self.output.budget;
                match self.routing.conns.get_mut(slot) {
                    Some(conn) if conn.has_last_words() => conn.kcp.hurry(),
                    _ => continue,
                }
                self.transmit_one(now, slot)?;
                if self.output.budget < before {
                    next.push(slot);
                }
            }
            std::mem::swap(&mut slots, &mut next);
        }
        Ok(())
    }

    fn send_ends(&mut self) -> io::Result<()> {
        let now = self.exit_now();
        let slots: Vec<usize> = self.routing.conns.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            if self.output.blocked {
                return Ok(());
            }
            let Some(conn) = self.routing.conns.get_mut(slot) else { continue };
            let Some(header) = conn.final_control(now) else { continue };
            self.output.codec.encode_segment(now, &mut self.output.tx, conn.active_path(), &header);
            if self.output.tx.is_full() {
                self.flush()?;
            }
        }
        self.flush()
    }
}

impl<S: Socket> Drop for Driver<S> {
    /// Ends all connections, notifies their peers and wakes their tasks. Runs too when a turn panics or the
    /// runtime shuts down, so that no task waits for a driver that is gone.
    fn drop(&mut self) {
        // The cipher or other code of the application may panic.
        if !thread::panicking() {
            drop(catch_unwind(AssertUnwindSafe(|| self.notify_peers())));
        }
        self.routing.demux.release_convs();
        self.notifier.close();
        let mut wakers: Vec<Waker> = Vec::new();
        for mut conn in self.routing.conns.drain() {
            conn.deliver_rest(&mut self.scratch);
            conn.log_end(self.last_turn, self.end_error);
            self.qlogs.close(self.last_turn, &mut conn);
            wakers.extend(conn.shared().end(self.end_error, false));
        }
        self.publish();
        if let Some(accept) = self.admission.accept() {
            wakers.extend(accept.close(self.end_error));
        }
        // A panic of a waker has no caller left to report to.
        drop(wake_all(wakers.drain(..).chain(self.scratch.wakers.drain(..))));
    }
}
