//! The end of a listener that is to leave no connection behind: `KcpListener::drain`,
//! `close_all` and `hand_over`.

mod waiters;

use std::time::Instant;

use tokio::sync::oneshot;

pub(super) use self::waiters::DrainWaiters;

use super::Driver;
use crate::driver::connection::DrainState;
use crate::shared::requests::Drain;
use crate::sys::Socket;

impl<S: Socket> Driver<S> {
    /// Ends connections as `drain` says, and replies once none is left.
    pub(super) fn on_drain(&mut self, now: Instant, drain: Drain, reply: oneshot::Sender<()>) {
        self.exchange_ready(now);
        for (_, conn) in &self.conns {
            match drain {
                Drain::Wait => {}
                // It has no stream yet that could end.
                Drain::Close if conn.is_connecting() => conn.shared().send.abort(),
                Drain::Close => conn.shared().send.close(),
                Drain::Abort => conn.shared().send.abort(),
            }
        }
        self.drain_waiters.replies.push(reply);
    }

    /// Replies once no connection is in use and everything is delivered, or given up.
    pub(super) fn answer_drain_waiters(&mut self) {
        self.drain_waiters.deadline = None;
        // One that was cancelled is not answered.
        self.drain_waiters.replies.retain(|reply| !reply.is_closed());
        if self.drain_waiters.replies.is_empty() || !self.tx.is_empty() || self.is_drain_blocked() {
            return;
        }
        let mut last: Option<Instant> = None;
        for (_, conn) in &self.conns {
            match conn.drain_state(self.last_turn) {
                DrainState::Waits => {
                    self.drain_waiters.blocker = Some(conn.id());
                    return;
                }
                DrainState::WaitsUntil(until) => last = last.max(Some(until)),
                DrainState::Done => {}
            }
        }
        self.drain_waiters.deadline = last;
        if last.is_none() {
            for reply in self.drain_waiters.replies.drain(..) {
                // The caller may be gone.
                let _ = reply.send(());
            }
        }
    }

    fn is_drain_blocked(&mut self) -> bool {
        let now = self.last_turn;
        let blocker = self.drain_waiters.blocker.and_then(|id| self.get_mut(id));
        blocker.is_some_and(|conn| conn.drain_state(now) == DrainState::Waits)
    }
}
