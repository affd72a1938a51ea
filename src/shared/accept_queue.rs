//! [`AcceptQueue`]: connections that wait to be accepted (the backlog of `listen`).

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ops::Deref;
use std::task::{Poll, Waker};

use crate::error::ConnectionError;
use crate::shared::connection::Handle;
use crate::shared::waiters::{Registration, Wait, WaitQueue, Waiter, Waiters, WakeList};
use crate::util::sync::{Arc, Mutex, lock};

/// From the drivers of a listener (one per shard) to the listener. The lock is a leaf.
#[derive(Debug)]
pub(crate) struct AcceptQueue {
    backlog: Mutex<Backlog>,
}

#[derive(Debug)]
struct Backlog {
    connections: VecDeque<Handle>,
    accepting: Waiters,
    listening: Listening,
    /// Why the first driver ended, once one has.
    ended: Option<ConnectionError>,
}

impl Backlog {
    fn is_open(&self) -> bool {
        self.listening == Listening::Accepting && self.ended.is_none()
    }
}

/// How initial segments are handled. States are entered in this order and never left backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Listening {
    /// They open connections. Entered at construction, left by drain, drop or hand-over.
    Accepting,
    /// They are refused. Entered by drain or drop, left by hand-over.
    Draining,
    /// They get no answer: the next process reads the socket and sees a retransmission. Final.
    HandingOver,
}

impl AcceptQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            backlog: Mutex::new(Backlog {
                connections: VecDeque::new(),
                accepting: Waiters::default(),
                listening: Listening::Accepting,
                ended: None,
            }),
        })
    }

    /// Driver: whether there is a listener that can accept connections.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.backlog).is_open()
    }

    /// Driver: whether another process is about to read the socket.
    pub(crate) fn hands_over(&self) -> bool {
        lock(&self.backlog).listening == Listening::HandingOver
    }

    /// Driver: connections that wait to be accepted.
    pub(crate) fn len(&self) -> usize {
        lock(&self.backlog).connections.len()
    }

    /// Driver: queues a connection. Aborts it if the queue is not open. Returns the tasks to wake:
    /// several may accept.
    pub(crate) fn push(&self, connection: Handle) -> WakeList {
        let mut backlog = lock(&self.backlog);
        if !backlog.is_open() {
            drop(backlog);
            connection.send.abort();
            return WakeList::default();
        }
        backlog.connections.push_back(connection);
        backlog.accepting.take_all()
    }

    /// Driver: ended with `error`. The listener accepts what is queued, then gets the error for good.
    /// Returns the tasks to wake.
    pub(crate) fn close(&self, error: ConnectionError) -> WakeList {
        let mut backlog = lock(&self.backlog);
        backlog.ended.get_or_insert(error);
        backlog.accepting.take_all()
    }

    /// Listener: a future that waits for a connection.
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        Waiter::new(self)
    }

    /// Listener: the next connection.
    pub(crate) fn poll_accept(&self, wait: &mut Wait<'_>) -> Poll<io::Result<Handle>> {
        let mut backlog = lock(&self.backlog);
        if let Some(connection) = backlog.connections.pop_front() {
            return Poll::Ready(Ok(connection));
        }
        if let Some(error) = backlog.ended {
            return Poll::Ready(Err(error.into()));
        }
        if backlog.listening != Listening::Accepting {
            let text = "the listener is shut down: it drains or hands over its socket";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::NotConnected, text)));
        }
        let replaced = backlog.accepting.register(wait);
        drop(backlog);
        drop(replaced);
        Poll::Pending
    }

    /// Listener: accepts no more connections, aborts the queued ones and fails pending calls.
    pub(crate) fn stop(&self, listening: Listening) {
        let mut backlog = lock(&self.backlog);
        backlog.listening = backlog.listening.max(listening);
        let connections = mem::take(&mut backlog.connections);
        let accepting = backlog.accepting.take_all();
        drop(backlog);
        connections.into_iter().for_each(|connection| connection.send.abort());
        accepting.for_each(Waker::wake);
    }
}

impl WaitQueue for AcceptQueue {
    fn cancel(&self, registration: &Registration) -> Option<Waker> {
        lock(&self.backlog).accepting.cancel(registration)
    }
}

/// The listener's handle. Dropping it stops listening, even inside a reply that no task received.
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
        self.0.stop(Listening::Draining);
    }
}
