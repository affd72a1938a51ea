//! The end of an endpoint whose runtime or process ends under its connections: what may leave at once leaves,
//! then one datagram to each peer, as a kernel closes the connections of a process that is gone.
//!
//! A kernel goes on sending, and nothing does here. So the thread is held for a moment until everything is
//! acknowledged: for what the windows do not take yet, and for what the path loses.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use super::Driver;
use crate::driver::exit_clock::ExitClock;
use crate::sys::Socket;
use crate::util::task::wake_all;

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
