//! Synchronisation primitives, which loom replaces in models; a task's duties while polling.

use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop::poll_proceed;

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
};

/// Polls within the task's budget of Tokio's cooperative scheduling. A ready result costs one unit.
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

/// Stores `waker` unless the stored one wakes the same task. Returns the replaced one, to be
/// dropped after the lock is released: a task's last waker drops the task and its handles, which
/// take the same lock.
#[must_use]
pub(crate) fn register_waker(slot: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match slot {
        Some(stored) if stored.will_wake(waker) => None,
        _ => slot.replace(waker.clone()),
    }
}
