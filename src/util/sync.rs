//! Synchronisation primitives; loom's in models.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// Locks a mutex and ignores poisoning: every critical section leaves its data valid at each step, and a
/// panicking task must not end the endpoint.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(all(test, loom))]
pub(crate) use self::model::Sleeper;

#[cfg(all(test, loom))]
mod model {
    use std::task::{Poll, Wake, Waker};

    use loom::sync::Notify;

    /// Test waker: parks the thread of a model until its [`waker`](Self::waker) is called.
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
}
