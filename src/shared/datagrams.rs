//! Both ways: out-of-band datagrams, which wait in small queues and may be lost.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::task::{Poll, Waker};

use bytes::Bytes;

use super::connection::{Shared, charge};
use crate::error::ConnectionError;
use crate::shared::notifier::register_waker;
use crate::util::sync::{Ordering, lock};

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

/// Most conversations never have any: what only the others need is elsewhere.
#[derive(Default)]
pub(super) struct Datagrams {
    queues: Option<Box<Queues>>,
    pub(super) fault: Option<ConnectionError>,
    pub(super) reader: Option<Waker>,
}

#[derive(Default)]
struct Queues {
    outgoing: Queue,
    incoming: Queue,
}

impl Datagrams {
    fn queues(&mut self) -> &mut Queues {
        self.queues.get_or_insert_default()
    }

    /// Empties both queues. The content is for dropping outside the lock.
    pub(super) fn clear(&mut self) -> Option<[VecDeque<Bytes>; 2]> {
        let queues = self.queues.as_mut()?;
        Some([queues.outgoing.take(), queues.incoming.take()])
    }

    /// Nothing more is sent. What was received can still be read.
    pub(super) fn clear_unsent(&mut self) -> Option<VecDeque<Bytes>> {
        Some(self.queues.as_mut()?.outgoing.take())
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
        let outgoing = &mut datagrams.queues.as_mut()?.outgoing;
        let next = outgoing.pop();
        self.has_datagrams.store(!outgoing.datagrams.is_empty(), Ordering::Relaxed);
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
        datagrams.queues().incoming.push(datagram);
        datagrams.reader.take()
    }
}

/// Handles.
impl Shared {
    /// Datagrams that made room for later ones.
    pub(super) fn dropped_datagrams(&self) -> u64 {
        let datagrams = lock(&self.datagrams);
        let queues = datagrams.queues.as_ref();
        queues.map_or(0, |queues| queues.outgoing.dropped + queues.incoming.dropped)
    }

    /// Queues a datagram.
    pub(crate) fn send_datagram(&self, datagram: Bytes) -> io::Result<()> {
        let mut datagrams = lock(&self.datagrams);
        if let Some(fault) = datagrams.fault {
            return Err(fault.into());
        }
        datagrams.queues().outgoing.push(datagram);
        self.has_datagrams.store(true, Ordering::Relaxed);
        drop(datagrams);
        self.notify();
        Ok(())
    }

    /// The next datagram; without a waker whoever waits stays registered.
    pub(crate) fn poll_datagram(&self, waker: Option<&Waker>) -> Poll<io::Result<Bytes>> {
        let mut datagrams = lock(&self.datagrams);
        if let Some(datagram) = datagrams.queues.as_mut().and_then(|q| q.incoming.pop()) {
            return Poll::Ready(Ok(datagram));
        }
        if let Some(fault) = datagrams.fault {
            return Poll::Ready(Err(fault.into()));
        }
        let replaced = waker.and_then(|waker| register_waker(&mut datagrams.reader, waker));
        drop(datagrams);
        drop(replaced);
        Poll::Pending
    }
}
