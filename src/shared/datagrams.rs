//! Out-of-band datagrams, both ways: small queues that drop the oldest when full.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::task::{Poll, Waker};

use bytes::Bytes;

use crate::error::ConnectionError;
use crate::shared::charge::charge;
use crate::shared::notifier::ConnNotifier;
use crate::shared::wakers::register_waker;
use crate::util::sync::{AtomicBool, Mutex, Ordering, lock};

/// Bytes that the datagrams of one queue may count for, see `CHUNK_CHARGE`. Beyond that the oldest
/// is dropped: of two datagrams the later one is worth more.
const QUEUE_CAPACITY: usize = 256 * 1024;

#[derive(Default)]
struct Queue {
    datagrams: VecDeque<Bytes>,
    /// Bytes that the datagrams count for.
    charged: usize,
    dropped: u64,
}

impl Queue {
    fn push(&mut self, datagram: Bytes) {
        self.charged += charge(datagram.len());
        self.datagrams.push_back(datagram);
        while self.charged > QUEUE_CAPACITY && self.datagrams.len() > 1 {
            self.pop();
            self.dropped += 1;
        }
    }

    fn pop(&mut self) -> Option<Bytes> {
        let datagram = self.datagrams.pop_front()?;
        self.charged -= charge(datagram.len());
        Some(datagram)
    }

    fn take(&mut self) -> VecDeque<Bytes> {
        self.charged = 0;
        mem::take(&mut self.datagrams)
    }
}

/// The out-of-band datagrams of one connection.
#[derive(Default)]
pub(super) struct Datagrams {
    /// True while a datagram waits to be sent: a hint that saves the driver a lock.
    has_outgoing: AtomicBool,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    /// `None` until the first datagram: most connections never have any.
    both: Option<Box<BothQueues>>,
    /// True once the last handle is gone: what arrives is discarded.
    detached: bool,
    error: Option<ConnectionError>,
    reader: Option<Waker>,
}

#[derive(Default)]
struct BothQueues {
    outgoing: Queue,
    incoming: Queue,
}

impl Queues {
    fn both(&mut self) -> &mut BothQueues {
        self.both.get_or_insert_default()
    }
}

/// What a detached connection leaves, to be dropped outside the lock.
pub(super) type Detached = (Option<Waker>, Option<[VecDeque<Bytes>; 2]>);

/// Driver.
impl Datagrams {
    /// The next datagram to be sent. Those behind it stay in the queue, where the oldest is
    /// dropped when it is full.
    pub(super) fn next_outgoing(&self) -> Option<Bytes> {
        if !self.has_outgoing() {
            return None;
        }
        let mut queues = lock(&self.queues);
        let outgoing = &mut queues.both.as_mut()?.outgoing;
        let next = outgoing.pop();
        self.has_outgoing.store(!outgoing.datagrams.is_empty(), Ordering::Relaxed);
        next
    }

    /// Whether a datagram waits to be sent: a hint that takes no lock.
    pub(super) fn has_outgoing(&self) -> bool {
        self.has_outgoing.load(Ordering::Relaxed)
    }

    /// Queues what arrived. Returns the reader to wake.
    pub(super) fn deliver(&self, datagram: Bytes) -> Option<Waker> {
        let mut queues = lock(&self.queues);
        if queues.detached {
            return None;
        }
        queues.both().incoming.push(datagram);
        queues.reader.take()
    }

    /// The connection has ended. Discards what was not sent; what was received can still be read.
    /// Returns the reader to wake.
    pub(super) fn fail(&self, error: ConnectionError) -> Option<Waker> {
        let mut queues = lock(&self.queues);
        queues.error.get_or_insert(error);
        let unsent = queues.both.as_mut().map(|both| both.outgoing.take());
        let reader = queues.reader.take();
        drop(queues);
        drop(unsent);
        reader
    }
}

/// Handles.
impl Datagrams {
    /// Datagrams that were dropped for later ones, of both queues.
    pub(super) fn dropped(&self) -> u64 {
        let queues = lock(&self.queues);
        queues.both.as_ref().map_or(0, |both| both.outgoing.dropped + both.incoming.dropped)
    }

    /// Queues a datagram to be sent.
    pub(super) fn send(&self, datagram: Bytes, notifier: &ConnNotifier) -> io::Result<()> {
        let mut queues = lock(&self.queues);
        if let Some(error) = queues.error {
            return Err(error.into());
        }
        queues.both().outgoing.push(datagram);
        self.has_outgoing.store(true, Ordering::Relaxed);
        drop(queues);
        notifier.notify();
        Ok(())
    }

    /// The next datagram received. Without a waker the task that is registered stays so.
    pub(super) fn poll_recv(&self, waker: Option<&Waker>) -> Poll<io::Result<Bytes>> {
        let mut queues = lock(&self.queues);
        if let Some(datagram) = queues.both.as_mut().and_then(|both| both.incoming.pop()) {
            return Poll::Ready(Ok(datagram));
        }
        if let Some(error) = queues.error {
            return Poll::Ready(Err(error.into()));
        }
        let replaced = waker.and_then(|waker| register_waker(&mut queues.reader, waker));
        drop(queues);
        drop(replaced);
        Poll::Pending
    }

    /// The last handle is gone: discards both queues, and what arrives from here on.
    pub(super) fn detach(&self) -> Detached {
        let mut queues = lock(&self.queues);
        queues.detached = true;
        let reader = queues.reader.take();
        let both = queues.both.as_mut();
        (reader, both.map(|both| [both.outgoing.take(), both.incoming.take()]))
    }
}
