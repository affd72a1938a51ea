//! Tasks that wait for the end of a connection.

use std::task::Waker;

use crate::shared::waiters::{Registration, Wait, WaitQueue, Waiters, WakeList};
use crate::util::sync::{Mutex, lock};

/// Backs `KcpStream::closed`. Allocated for the first task that waits: most connections have none.
pub(super) struct EndWaiters(Mutex<Option<Box<Waiters>>>);

impl EndWaiters {
    pub(super) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Registers a task. The caller checks for the end afterwards and drops the result.
    pub(super) fn register(&self, wait: &mut Wait<'_>) -> Option<Waker> {
        lock(&self.0).get_or_insert_default().register(wait)
    }

    /// Driver: the connection has ended. Returns the tasks to wake.
    pub(super) fn take_all(&self) -> WakeList {
        lock(&self.0).as_mut().map(|waiters| waiters.take_all()).unwrap_or_default()
    }
}

impl WaitQueue for EndWaiters {
    fn cancel(&self, registration: &Registration) -> Option<Waker> {
        lock(&self.0).as_mut()?.cancel(registration)
    }
}
