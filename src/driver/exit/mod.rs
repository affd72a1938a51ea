//! The end of an endpoint whose runtime or process ends under its connections: what may leave at once leaves,
//! then one datagram to each peer, as a kernel closes the connections of a process that is gone.
//!
//! A kernel goes on sending, and nothing does here. So the thread is held for a moment until everything is
//! acknowledged: for what the windows do not take yet, and for what the path loses.

pub(super) mod state;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::{Duration, Instant};
use std::{io, thread};

use tokio::sync::oneshot;

use crate::core::time_wait::{TIME_WAIT_DURATION, TimeWait};
use crate::driver::exit::state::ExitClock;
use crate::driver::output::send_batch::SendBatch;
use crate::driver::{Driver, TURN_PACKETS};
use crate::error::{ConnectionError, Heard};
use crate::shared::requests::TimeWaitEntry;
use crate::sys::Socket;
use crate::trace;
use crate::util::wake::wake_all;

/// Bytes that leave at the end at most, about.
const MAX_LAST_BYTES: usize = 16_000_000;
/// The time between two receives, while the thread is held.
const EXIT_WAIT: Duration = Duration::from_micros(500);

impl<S: Socket> Driver<S> {
    /// The driver is about to be dropped. `clock`: the time, where the thread may be held for a moment.
    pub(crate) fn on_exit(&mut self, now: Instant, clock: Option<fn() -> Instant>) {
        self.last_turn = self.last_turn.max(now);
        self.exit_clock = clock.map(ExitClock::new);
    }

    /// Sends the peers what is left for them, then each that takes it a FIN or a RST, see
    /// `Kcp::final_control`. No connection is used afterwards. The time is that of [`Self::on_exit`].
    fn notify_peers(&mut self) {
        // An error means that the socket has failed.
        if self.send_rest().is_ok() {
            drop(self.send_ends());
        }
    }

    fn exit_now(&self) -> Instant {
        self.last_turn + self.exit_clock.map_or(Duration::ZERO, |clock| clock.elapsed())
    }

    fn may_hold_thread(&mut self) -> bool {
        self.exit_clock.as_mut().is_some_and(ExitClock::may_hold)
    }

    /// Sends what windows and socket take, and what they take once ACKs have arrived in time.
    fn send_rest(&mut self) -> io::Result<()> {
        self.budget = MAX_LAST_BYTES / usize::from(self.config.kcp.mtu);
        self.flush()?;
        let mut slots: Vec<usize> = self.conns.iter().map(|(slot, _)| slot).collect();
        let mut may_wait = None;
        loop {
            self.send_rounds(&slots)?;
            self.flush()?;
            slots.retain(|slot| self.conns.get(*slot).is_some_and(|conn| conn.is_undelivered()));
            let is_done = (slots.is_empty() && !self.blocked) || self.budget == 0;
            if is_done || !self.may_hold_thread() {
                return Ok(());
            }
            // Only the first time: the runtime, which ends, does not report any more when the socket is ready.
            if !*may_wait.get_or_insert_with(|| self.socket.leave_runtime()) {
                return Ok(());
            }
            thread::sleep(EXIT_WAIT);
            self.flush()?;
            self.receive(self.exit_now())?;
        }
    }

    /// Sends what these connections may send now, each a share at a time.
    fn send_rounds(&mut self, slots: &[usize]) -> io::Result<()> {
        let (now, mut slots, mut next) = (self.exit_now(), slots.to_vec(), Vec::new());
        for slot in &slots {
            if let Some(conn) = self.conns.get_mut(*slot) {
                // What the handles did last is in the queues: an abort, for instance.
                conn.exchange_last(now, &mut self.scratch);
            }
        }
        while !slots.is_empty() {
            for slot in slots.drain(..) {
                if self.blocked || self.budget == 0 {
                    return Ok(());
                }
                let before = self.budget;
                match self.conns.get_mut(slot) {
                    Some(conn) if conn.has_last_words() => conn.hurry(),
                    _ => continue,
                }
                self.transmit_one(now, slot)?;
                if self.budget < before {
                    next.push(slot);
                }
            }
            std::mem::swap(&mut slots, &mut next);
        }
        Ok(())
    }

    fn send_ends(&mut self) -> io::Result<()> {
        let now = self.exit_now();
        let slots: Vec<usize> = self.conns.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            if self.blocked {
                return Ok(());
            }
            let Some(conn) = self.conns.get_mut(slot) else { continue };
            let Some(header) = conn.final_control(now) else { continue };
            self.codec.encode_segment(now, &mut self.tx, conn.path(), &header);
            if self.tx.is_full() {
                self.flush()?;
            }
        }
        self.flush()
    }
}

impl<S: Socket> Drop for Driver<S> {
    /// Ends all connections, notifies their peers and wakes their tasks. Runs too when a turn panics or
    /// the runtime shuts down, so that no task waits for a driver that is gone.
    fn drop(&mut self) {
        // A cipher, or what else of the application sends, may panic.
        if !thread::panicking() {
            drop(catch_unwind(AssertUnwindSafe(|| self.notify_peers())));
        }
        self.demux.release_convs();
        self.notifier.close();
        let mut wakers: Vec<Waker> = Vec::new();
        for mut conn in self.conns.drain() {
            conn.deliver_rest(&mut self.scratch);
            wakers.extend(conn.shared().end(self.end_error, false));
        }
        self.publish();
        if let Some(accept) = &self.accept {
            wakers.extend(accept.close(self.end_error));
        }
        // Nobody is left to report a waker that panics to.
        drop(wake_all(wakers.drain(..).chain(self.scratch.wakers.drain(..))));
    }
}

// The end of an endpoint whose driver panicked: its connections are reset (RFC 9293 3.5.2), the
// handles get an error.

impl<S: Socket> Driver<S> {
    /// Resets all connections after a turn has panicked with `panic`. To be dropped afterwards.
    pub(super) fn end_after_panic(&mut self, now: Instant, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("without a message");
        let error = io::Error::other(format!("the endpoint has ended, its task panicked: {text}"));
        // What panicked, such as the cipher, may do so again. Then no RST leaves.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            trace::endpoint_failed(self.local(), &error);
            // Where the socket fails too, no RST leaves.
            drop(self.reset_all(now));
        }));
        self.fail(error);
    }

    /// Ends every connection and sends the RSTs that the socket takes now.
    fn reset_all(&mut self, now: Instant) -> io::Result<()> {
        // What was not sealed is lost, and must not leave.
        (self.tx, self.blocked) = (SendBatch::default(), false);
        self.ready.clear();
        for (_, conn) in &mut self.conns {
            conn.end_early(ConnectionError::EndpointClosed);
            conn.publish_stats(None);
            // From now on it sends its RST alone.
            let _time_wait = conn.advance_lifecycle(now, |_| Heard::Nothing, &mut self.scratch);
            self.ready.push_back(conn.id());
        }
        // A connection is served once or twice; each round serves some, or is the last.
        for _ in 0..=self.ready.len() {
            if self.ready.is_empty() || self.blocked {
                break;
            }
            self.budget = TURN_PACKETS;
            self.serve(now)?;
            self.flush()?;
        }
        Ok(())
    }
}

// A port that another endpoint of this process binds while only peers still need it, as TCP permits with
// SO_REUSEADDR for a port whose connections are in TIME-WAIT.
//
// A driver without handles keeps its socket for a while, to answer for connections in TIME-WAIT (RFC 9293
// 3.6.1) and those that wait for the peer's FIN. It releases the socket on request, and the endpoint that
// binds the port next takes over what it would have answered. A datagram that arrives in between is lost,
// and retransmitted by its sender.

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

// How long a socket stays open for peers alone, once no handle needs it: in TIME-WAIT, or for the end of the
// peer's stream (FIN-WAIT-2).
//
// Most sockets are of `KcpStream::connect`, a descriptor for each connection: a process that opens and
// closes many would run out of them. So a socket waits no longer than it may have something to answer, and
// a bounded number of a process waits at a time. One more closes at once, with a RST to a peer that may
// still send.

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
