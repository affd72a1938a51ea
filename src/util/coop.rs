//! Tokio's cooperative scheduling.

use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

/// Polls within the task's budget, so that a task whose polls are always ready yields to other tasks and
/// its own timeouts. A ready result costs one unit.
pub(crate) fn cooperate<T>(
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    let coop = ready!(poll_proceed(cx));
    let result = poll(cx);
    if result.is_ready() {
        coop.made_progress();
    }
    result
}
