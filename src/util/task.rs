//! Polling and waking tasks.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker, ready};

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

/// Wakes all tasks.
///
/// # Errors
///
/// The panic of the first waker that panicked. All others are still woken.
pub(crate) fn wake_all(wakers: impl Iterator<Item = Waker>) -> Result<(), Box<dyn Any + Send>> {
    let mut result = Ok(());
    for waker in wakers {
        let woken = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        result = result.and(woken);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            let before = self.0.fetch_add(1, Ordering::Relaxed);
            assert_ne!(before, 1, "the second one panics");
        }
    }

    #[test]
    fn all_are_woken_although_one_panics() {
        let counting = Arc::new(Counting(AtomicUsize::new(0)));
        let wakers = (0..5).map(|_| Waker::from(Arc::clone(&counting)));
        assert!(wake_all(wakers).is_err());
        assert_eq!(counting.0.load(Ordering::Relaxed), 5);
        assert!(wake_all(std::iter::empty()).is_ok());
    }
}
