//! Calls that wait for the connections of an endpoint: `wait_idle`, and the shutdown of a listener.

use std::time::Instant;

use tokio::sync::oneshot;

use crate::driver::connection::DrainState;
use crate::driver::routing::Routing;
use crate::shared::notifier::ConnId;
use crate::util::task::Replies;

#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Connections for which `Conn::is_lingering` holds; `wait_idle` waits until this is 0.
    pub(super) lingering: usize,
    idle: Replies<()>,
    drained: Replies<()>,
    /// A connection that the drain waited for in the last turn. Most turns inspect it alone.
    blocker: Option<ConnId>,
    /// When the last FIN or RST is given up, while the drain waits for nothing else.
    deadline: Option<Instant>,
}

impl Waiters {
    /// Replies once no connection lingers.
    pub(super) fn wait_idle(&mut self, reply: oneshot::Sender<()>) {
        self.idle.push(reply);
    }

    /// Replies once no connection is in use and everything is delivered.
    pub(super) fn wait_drained(&mut self, reply: oneshot::Sender<()>) {
        self.drained.push(reply);
    }

    /// Replies to `wait_idle` once no connection lingers and the last datagrams have left.
    pub(super) fn answer_idle(&mut self, is_flushed: bool) {
        if is_flushed && self.lingering == 0 && !self.idle.is_empty() {
            self.idle.answer(());
        }
    }

    /// Replies to a drain once no connection is in use and everything is delivered, or given up.
    pub(super) fn answer_drained(&mut self, now: Instant, is_flushed: bool, routing: &Routing) {
        self.deadline = None;
        if self.drained.is_empty() || !is_flushed || self.is_blocked(now, routing) {
            return;
        }
        for (_, conn) in &routing.conns {
            match conn.drain_state(now) {
                DrainState::Waits => {
                    (self.blocker, self.deadline) = (Some(conn.id()), None);
                    return;
                }
                DrainState::WaitsUntil(until) => self.deadline = self.deadline.max(Some(until)),
                DrainState::Done => {}
            }
        }
        if self.deadline.is_none() {
            self.drained.answer(());
        }
    }

    fn is_blocked(&self, now: Instant, routing: &Routing) -> bool {
        let blocker = self.blocker.and_then(|id| routing.get(id));
        blocker.is_some_and(|conn| conn.drain_state(now) == DrainState::Waits)
    }

    /// When [`Self::answer_drained`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}
