//! Registration of wakers under a lock.

use std::task::Waker;

/// Stores `waker` unless the stored one wakes the same task. Returns the replaced one, to be dropped
/// after the lock is released: dropping a task's last waker drops its handles, which take the same lock.
#[must_use]
pub(super) fn register_waker(slot: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match slot {
        Some(stored) if stored.will_wake(waker) => None,
        _ => slot.replace(waker.clone()),
    }
}
