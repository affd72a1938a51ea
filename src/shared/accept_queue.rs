//! [`AcceptQueue`]: connections opened by peers that wait to be accepted (the backlog of `listen`).

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ops::Deref;
use std::task::{Poll, Waker};

use crate::error::ConnectionError;
use crate::shared::connection::Handle;
use crate::util::sync::{Arc, Mutex, lock};

/// Most stored wakers. One more wakes all tasks, which drops the wakers of those that gave up.
const MAX_WAKERS: usize = 64;

/// Queue from the driver, or from all drivers with `SocketConfig::shards`, to the listener. The
/// lock is a leaf.
#[derive(Debug)]
pub(crate) struct AcceptQueue {
    backlog: Mutex<Backlog>,
}

#[derive(Debug)]
struct Backlog {
    connections: VecDeque<Handle>,
    wakers: Vec<Waker>,
    /// True until the listener is dropped.
    listening: bool,
    /// True until the first of the drivers is gone.
    driver_alive: bool,
}

impl AcceptQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            backlog: Mutex::new(Backlog {
                connections: VecDeque::new(),
                wakers: Vec::new(),
                listening: true,
                driver_alive: true,
            }),
        })
    }

    /// Driver: whether there is a listener.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.backlog).listening
    }

    /// Driver: connections that wait to be accepted.
    pub(crate) fn len(&self) -> usize {
        lock(&self.backlog).connections.len()
    }

    /// Driver: queues a connection; without a listener the connection is aborted. Returns all tasks
    /// to wake: several may accept.
    pub(crate) fn push(&self, connection: Handle) -> Vec<Waker> {
        let mut backlog = lock(&self.backlog);
        if !backlog.listening {
            drop(backlog);
            connection.abort();
            return Vec::new();
        }
        backlog.connections.push_back(connection);
        mem::take(&mut backlog.wakers)
    }

    /// Driver: called when a driver is dropped. Returns all tasks to wake.
    pub(crate) fn close(&self) -> Vec<Waker> {
        let mut backlog = lock(&self.backlog);
        backlog.driver_alive = false;
        mem::take(&mut backlog.wakers)
    }

    /// Listener: the next connection.
    pub(crate) fn poll_accept(&self, waker: &Waker) -> Poll<io::Result<Handle>> {
        let mut backlog = lock(&self.backlog);
        if let Some(connection) = backlog.connections.pop_front() {
            return Poll::Ready(Ok(connection));
        }
        if !backlog.driver_alive {
            return Poll::Ready(Err(ConnectionError::EndpointClosed.into()));
        }
        if backlog.wakers.len() >= MAX_WAKERS {
            // Tasks that gave up ignore the wake, the others poll again.
            let stale = mem::take(&mut backlog.wakers);
            drop(backlog);
            stale.into_iter().for_each(Waker::wake);
            waker.wake_by_ref();
            return Poll::Pending;
        }
        if !backlog.wakers.iter().any(|stored| stored.will_wake(waker)) {
            backlog.wakers.push(waker.clone());
        }
        Poll::Pending
    }

    /// Listener: called when the listener is dropped. Aborts connections that were not accepted.
    fn stop(&self) {
        let mut backlog = lock(&self.backlog);
        backlog.listening = false;
        let connections = mem::take(&mut backlog.connections);
        drop(backlog);
        connections.into_iter().for_each(|connection| connection.abort());
    }
}

/// The listener's side of an [`AcceptQueue`]. Dropping the handle stops listening, also if it is
/// dropped inside a reply that no task received.
#[derive(Debug)]
pub(crate) struct AcceptHandle(Arc<AcceptQueue>);

impl AcceptHandle {
    pub(crate) fn new(queue: Arc<AcceptQueue>) -> Self {
        Self(queue)
    }
}

impl Deref for AcceptHandle {
    type Target = AcceptQueue;

    fn deref(&self) -> &AcceptQueue {
        &self.0
    }
}

impl Drop for AcceptHandle {
    fn drop(&mut self) {
        self.0.stop();
    }
}
