//! Polling and waking tasks.

use std::any::Any;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::{Context, Poll, Waker, ready};

use tokio::sync::oneshot;
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
    each(wakers, Waker::wake)
}

/// Calls that wait for the same answer. Their wakers may panic, several of them too: a second panic while the first
/// one unwinds would end the process.
#[derive(Debug)]
pub(crate) struct Replies<T>(Vec<oneshot::Sender<T>>);

impl<T> Default for Replies<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy> Replies<T> {
    pub(crate) fn push(&mut self, reply: oneshot::Sender<T>) {
        self.0.push(reply);
    }

    /// Whether no call waits. Forgets calls that were dropped.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.0.retain(|reply| !reply.is_closed());
        self.0.is_empty()
    }

    /// Answers all calls.
    ///
    /// # Panics
    ///
    /// With the panic of the first waker that panicked, after all others were woken.
    pub(crate) fn answer(&mut self, answer: T) {
        let answered = each(take(&mut self.0).into_iter(), |reply| {
            // A call that was dropped takes no answer.
            let _ = reply.send(answer);
        });
        answered.unwrap_or_else(|panic| resume_unwind(panic));
    }
}

impl<T> Drop for Replies<T> {
    fn drop(&mut self) {
        drop_each(take(&mut self.0));
    }
}

/// Drops senders, which wakes tasks. A panic of a waker has no caller left to report to.
pub(crate) fn drop_each<T>(senders: Vec<T>) {
    drop(each(senders.into_iter(), drop));
}

fn each<T>(items: impl Iterator<Item = T>, act: impl Fn(T)) -> Result<(), Box<dyn Any + Send>> {
    let mut result = Ok(());
    for item in items {
        result = result.and(catch_unwind(AssertUnwindSafe(|| act(item))));
    }
    result
}

#[cfg(test)]
pub(crate) mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::sync::oneshot::error::TryRecvError;

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

    /// The waker of a task whose executor fails.
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("the executor is gone");
        }
    }

    /// A call that waits for its reply, in such a task.
    pub(crate) fn waits<T>(mut reply: oneshot::Receiver<T>) -> oneshot::Receiver<T> {
        let waker = Waker::from(Arc::new(Panics));
        assert!(Pin::new(&mut reply).poll(&mut Context::from_waker(&waker)).is_pending());
        reply
    }

    fn waiting<T: Copy>(replies: &mut Replies<T>) -> [oneshot::Receiver<T>; 3] {
        [(); 3].map(|()| {
            let (reply, call) = oneshot::channel();
            replies.push(reply);
            waits(call)
        })
    }

    #[test]
    fn replies_reach_all_calls_although_several_wakers_panic() {
        let mut replies = Replies::default();
        let calls = waiting(&mut replies);
        let answered = catch_unwind(AssertUnwindSafe(|| replies.answer(7)));
        assert!(answered.is_err() && replies.is_empty());
        assert_eq!(calls.map(|mut call| call.try_recv()), [const { Ok(7) }; 3]);
        let calls = waiting(&mut replies);
        drop(replies);
        assert_eq!(calls.map(|mut call| call.try_recv()), [const { Err(TryRecvError::Closed) }; 3]);
    }

    #[test]
    fn replies_forget_calls_that_were_dropped() {
        let mut replies = Replies::<()>::default();
        let [one, other, last] = waiting(&mut replies);
        drop((one, other));
        assert!(!replies.is_empty());
        drop(last);
        assert!(replies.is_empty());
    }
}
