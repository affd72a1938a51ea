//! The end of a listener that is to leave no connection behind: `KcpListener::drain` and `close_all`.

use std::time::Instant;

use tokio::sync::oneshot;

use super::Driver;
use crate::shared::requests::Drain;
use crate::sys::Socket;

/// Calls that wait until no connection is left.
#[derive(Debug, Default)]
pub(super) struct DrainWaiters {
    replies: Vec<oneshot::Sender<()>>,
    /// When the last FIN is given up, while nothing else is waited for.
    deadline: Option<Instant>,
}

impl DrainWaiters {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

impl<S: Socket> Driver<S> {
    /// Ends connections as `drain` says, and replies once none is left.
    pub(super) fn on_drain(&mut self, now: Instant, drain: Drain, reply: oneshot::Sender<()>) {
        self.exchange_ready(now);
        for (_, conn) in &self.conns {
            match drain {
                Drain::Wait => {}
                Drain::Close => conn.shared().close_write(),
                Drain::Abort => conn.shared().abort(),
            }
        }
        self.drain_waiters.replies.push(reply);
    }

    /// Replies once no connection is in use and everything is delivered, or given up.
    pub(super) fn answer_drain_waiters(&mut self) {
        self.drain_waiters.deadline = None;
        // One that was cancelled is not answered.
        self.drain_waiters.replies.retain(|reply| !reply.is_closed());
        if self.drain_waiters.replies.is_empty() || !self.tx.is_empty() {
            return;
        }
        let mut last: Option<Instant> = None;
        for (_, conn) in &self.conns {
            if conn.is_in_use() {
                return;
            }
            if !conn.has_delivered(self.last_turn) {
                let Some(deadline) = conn.drain_deadline() else { return };
                last = last.max(Some(deadline));
            }
        }
        self.drain_waiters.deadline = last.filter(|last| *last > self.last_turn);
        if self.drain_waiters.deadline.is_none() {
            for reply in self.drain_waiters.replies.drain(..) {
                // The caller may be gone.
                let _ = reply.send(());
            }
        }
    }
}
