//! Both ways: out-of-band datagrams, which wait in small queues and may be lost.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::task::{Poll, Waker};

use bytes::Bytes;

use super::{Shared, charge};
use crate::error::ConnectionError;
use crate::mailbox::remember;
use crate::sync::{Ordering, lock};

/// What the datagrams of one queue may count for in bytes, see `CHUNK_CHARGE`. Beyond that the
/// oldest goes: of two datagrams the later one tells more.
const QUEUE: usize = 256 * 1024;

#[derive(Default)]
struct Queue {
    datagrams: VecDeque<Bytes>,
    len: usize,
    dropped: u64,
}

impl Queue {
    fn push(&mut self, datagram: Bytes) {
        self.len += charge(datagram.len());
        self.datagrams.push_back(datagram);
        while self.len > QUEUE && self.datagrams.len() > 1 {
            self.pop();
            self.dropped += 1;
        }
    }

    fn pop(&mut self) -> Option<Bytes> {
        let datagram = self.datagrams.pop_front()?;
        self.len -= charge(datagram.len());
        Some(datagram)
    }

    fn take(&mut self) -> VecDeque<Bytes> {
        self.len = 0;
        mem::take(&mut self.datagrams)
    }
}

#[derive(Default)]
pub(super) struct Datagrams {
    outgoing: Queue,
    incoming: Queue,
    pub(super) fault: Option<ConnectionError>,
    pub(super) reader: Option<Waker>,
}

impl Datagrams {
    /// Empties both queues. The content is for dropping outside the lock.
    pub(super) fn clear(&mut self) -> [VecDeque<Bytes>; 2] {
        [self.outgoing.take(), self.incoming.take()]
    }

    /// Nothing more is sent. What was received can still be read.
    pub(super) fn end(&mut self, error: ConnectionError) -> VecDeque<Bytes> {
        self.fault.get_or_insert(error);
        self.outgoing.take()
    }
}

/// Driver.
impl Shared {
    /// The next datagram to be sent. What waits stays here, where the oldest makes room.
    pub(crate) fn next_datagram(&self) -> Option<Bytes> {
        if !self.has_datagrams() {
            return None;
        }
        let mut datagrams = lock(&self.datagrams);
        let next = datagrams.outgoing.pop();
        self.has_datagrams.store(!datagrams.outgoing.datagrams.is_empty(), Ordering::Relaxed);
        next
    }

    /// Whether a datagram waits to be sent: a hint that takes no lock.
    pub(crate) fn has_datagrams(&self) -> bool {
        self.has_datagrams.load(Ordering::Relaxed)
    }

    /// Queues what arrived. Returns who waits for it.
    pub(crate) fn deliver_datagram(&self, datagram: Bytes) -> Option<Waker> {
        let mut datagrams = lock(&self.datagrams);
        if self.is_detached() {
            return None;
        }
        datagrams.incoming.push(datagram);
        datagrams.reader.take()
    }
}

/// Handles.
impl Shared {
    /// Datagrams that made room for later ones.
    pub(super) fn dropped_datagrams(&self) -> u64 {
        let datagrams = lock(&self.datagrams);
        datagrams.outgoing.dropped + datagrams.incoming.dropped
    }

    /// Queues a datagram.
    pub(crate) fn send_datagram(&self, datagram: Bytes) -> io::Result<()> {
        let mut datagrams = lock(&self.datagrams);
        if let Some(fault) = datagrams.fault {
            return Err(fault.into());
        }
        datagrams.outgoing.push(datagram);
        self.has_datagrams.store(true, Ordering::Relaxed);
        drop(datagrams);
        self.notify();
        Ok(())
    }

    /// The next datagram; without a waker whoever waits stays registered.
    pub(crate) fn poll_datagram(&self, waker: Option<&Waker>) -> Poll<io::Result<Bytes>> {
        let mut datagrams = lock(&self.datagrams);
        if let Some(datagram) = datagrams.incoming.pop() {
            return Poll::Ready(Ok(datagram));
        }
        if let Some(fault) = datagrams.fault {
            return Poll::Ready(Err(fault.into()));
        }
        let replaced = waker.and_then(|waker| remember(&mut datagrams.reader, waker));
        drop(datagrams);
        drop(replaced);
        Poll::Pending
    }
}
