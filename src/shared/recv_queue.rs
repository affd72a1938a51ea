//! Driver to application: bytes and messages received and not yet read.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::task::{Poll, Waker};

use bytes::{Buf, Bytes};

use super::connection::{Shared, charge, surplus};
use crate::error::ConnectionError;
use crate::shared::notifier::register_waker;
use crate::util::buffer_pool;
use crate::util::queue;
use crate::util::sync::lock;

#[derive(Default)]
pub(super) struct RecvQueue {
    pub(super) chunks: VecDeque<Bytes>,
    /// What everything delivered and not reported as read counts for, see `CHUNK_CHARGE`.
    len: usize,
    /// The driver holds more back and waits for the reader.
    driver_blocked: bool,
    established: bool,
    /// The peer has ended its stream, and all of it is here.
    ended: bool,
    pub(super) fault: Option<ConnectionError>,
    pub(super) reader: Option<Waker>,
    /// Waits for the conversation to be established.
    pub(super) established_waker: Option<Waker>,
}

impl RecvQueue {
    /// Empties the queue. The content is for dropping outside the lock.
    pub(super) fn clear(&mut self) -> VecDeque<Bytes> {
        self.len = 0;
        mem::take(&mut self.chunks)
    }

    /// Takes note of what was read. Returns whether the driver waits for that.
    #[must_use]
    fn report(&mut self, read: usize, recv_buffer: usize) -> bool {
        self.len = self.len.saturating_sub(read);
        self.len <= recv_buffer / 2 && mem::take(&mut self.driver_blocked)
    }
}

/// The reader's own end of the queue: chunks it took from the shared one in a single exchange, so
/// that bytes are copied outside the lock.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    chunks: VecDeque<Bytes>,
    /// What was read since the last report to the shared queue.
    read: usize,
}

impl ReadBuffer {
    /// The next chunk. In message mode it is a message, or what is left of one, and may be empty.
    pub(crate) fn front(&self) -> Option<&Bytes> {
        self.chunks.front()
    }

    #[cfg(test)]
    pub(super) fn storage(&self) -> usize {
        self.chunks.capacity()
    }

    /// Takes the next chunk whole.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.pop_front()?;
        self.read += charge(chunk.len());
        Some(chunk)
    }

    /// Takes `count` bytes off the next chunk.
    pub(crate) fn consume(&mut self, count: usize) {
        let Some(chunk) = self.chunks.front_mut() else { return };
        let len = chunk.len();
        if count >= len {
            if let Some(chunk) = self.pop() {
                buffer_pool::recycle(chunk);
            }
        } else {
            chunk.advance(count);
            self.read += charge(len) - charge(len - count);
        }
    }

    /// Takes chunks off that have no bytes: to a reader of bytes they would look like the end.
    pub(crate) fn skip_empty(&mut self) {
        while self.front().is_some_and(Bytes::is_empty) {
            self.pop();
        }
    }

    /// The chunks from the front that hold the next `limit` bytes, the last one cut to fit;
    /// at most one if `single`.
    pub(crate) fn peek(&self, mut limit: usize, single: bool) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().take(if single { 1 } else { usize::MAX }).map_while(move |chunk| {
            let part = &chunk[..chunk.len().min(limit)];
            limit -= part.len();
            (limit > 0 || !part.is_empty()).then_some(part)
        })
    }
}

/// Driver.
impl Shared {
    /// Bytes that the reader's queue takes now. The driver delivers while this is above zero: a
    /// chunk that does not fit is delivered all the same, otherwise a message above the limit would
    /// never be. At zero the reader notifies the driver once half of the queue is free.
    pub(crate) fn room(&self) -> usize {
        let mut rx = lock(&self.rx);
        if self.is_detached() {
            return self.recv_buffer;
        }
        let room = self.recv_buffer.saturating_sub(rx.len);
        // In the critical section that saw it full: the reader cannot slip in between.
        rx.driver_blocked |= room == 0;
        room
    }

    /// Appends what arrived in order; in message mode each chunk is one message. `held_back` says
    /// that there is more, which did not fit: then the reader notifies the driver once half of the
    /// queue is free. Without handles everything is discarded.
    ///
    /// Returns the reader to wake.
    pub(crate) fn deliver(&self, chunks: &mut VecDeque<Bytes>, held_back: bool) -> Option<Waker> {
        let charged = chunks.iter().map(|chunk| charge(chunk.len())).sum::<usize>();
        let mut rx = lock(&self.rx);
        if self.is_detached() {
            drop(rx);
            chunks.drain(..).for_each(buffer_pool::recycle);
            return None;
        }
        let reader = if chunks.is_empty() { None } else { rx.reader.take() };
        queue::reserve(&mut rx.chunks, chunks.len());
        rx.chunks.append(chunks);
        rx.len += charged;
        // With nothing left to read, no read will come to call the driver.
        let again = held_back && rx.len == 0;
        rx.driver_blocked = held_back && !again;
        drop(rx);
        if again {
            self.notify();
        }
        reader
    }

    /// The peer has ended its stream, and all of it was delivered. Returns the reader to wake.
    pub(crate) fn set_ended(&self) -> Option<Waker> {
        let mut rx = lock(&self.rx);
        rx.ended = true;
        rx.reader.take()
    }

    /// The peer has answered: there is someone at that address who speaks KCP.
    pub(crate) fn set_established(&self) -> Option<Waker> {
        let mut rx = lock(&self.rx);
        rx.established = true;
        rx.established_waker.take()
    }
}

/// Handles. Without a waker these do not register and `Pending` means "would block".
impl Shared {
    /// Adds what was delivered to the reader's queue. Ready when that has a chunk then, without one
    /// at the end of the peer's stream, or with the reason why none will ever come.
    pub(crate) fn poll_refill(
        &self,
        queue: &mut ReadBuffer,
        waker: Option<&Waker>,
    ) -> Poll<io::Result<()>> {
        let mut rx = lock(&self.rx);
        let wanted = rx.report(mem::take(&mut queue.read), self.recv_buffer);
        let (mut replaced, mut storage) = (None, [None, None]);
        if queue.chunks.is_empty() {
            mem::swap(&mut rx.chunks, &mut queue.chunks);
        } else {
            queue.chunks.append(&mut rx.chunks);
        }
        let outcome = if !queue.chunks.is_empty() || rx.ended {
            Poll::Ready(Ok(()))
        } else if let Some(fault) = rx.fault {
            Poll::Ready(Err(fault.into()))
        } else {
            storage = [surplus(&mut rx.chunks), surplus(&mut queue.chunks)];
            if rx.chunks.capacity() == 0 {
                // Where the driver fills it, and can give it back.
                mem::swap(&mut rx.chunks, &mut queue.chunks);
            }
            replaced = waker.and_then(|waker| register_waker(&mut rx.reader, waker));
            Poll::Pending
        };
        drop(rx);
        drop((replaced, storage));
        if wanted {
            self.notify();
        }
        outcome
    }

    /// Reports what was read once it matters, so that the driver learns in time that there is
    /// room. In between, `room` is short by at most an eighth of the buffer.
    pub(crate) fn report_read(&self, queue: &mut ReadBuffer) {
        if queue.read <= self.recv_buffer / 8 {
            return;
        }
        let wanted = lock(&self.rx).report(mem::take(&mut queue.read), self.recv_buffer);
        if wanted {
            self.notify();
        }
    }

    /// Ready once the peer has answered, or with the reason why it never will.
    pub(crate) fn poll_established(&self, waker: &Waker) -> Poll<io::Result<()>> {
        let mut rx = lock(&self.rx);
        if rx.established {
            return Poll::Ready(Ok(()));
        }
        if let Some(fault) = rx.fault {
            return Poll::Ready(Err(fault.into()));
        }
        let replaced = register_waker(&mut rx.established_waker, waker);
        drop(rx);
        drop(replaced);
        Poll::Pending
    }
}
