//! Test waker for loom models: a thread that parks until woken. A lost wake deadlocks, which loom
//! reports.

use std::task::{Poll, Wake, Waker};

use loom::sync::Notify;

/// Parks the thread of a model until its [`waker`](Self::waker) is called.
pub(crate) struct Sleeper(std::sync::Arc<Flag>);

struct Flag(Notify);

impl Wake for Flag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.notify();
    }
}

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self(std::sync::Arc::new(Flag(Notify::new())))
    }

    pub(crate) fn waker(&self) -> Waker {
        self.0.clone().into()
    }

    pub(crate) fn sleep(&self) {
        self.0.0.wait();
    }

    /// Polls until ready, and parks in between.
    pub(crate) fn block_on<T>(&self, mut poll: impl FnMut(&Waker) -> Poll<T>) -> T {
        let waker = self.waker();
        loop {
            match poll(&waker) {
                Poll::Ready(value) => return value,
                Poll::Pending => self.sleep(),
            }
        }
    }
}
