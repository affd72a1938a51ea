//! Receive queue, from the driver to the application: bytes and messages received and not yet
//! read.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::task::{Poll, Waker};

use bytes::{Buf, Bytes};

use crate::error::ConnectionError;
use crate::shared::charge::charge;
use crate::shared::notifier::ConnNotifier;
use crate::shared::waiters::{Registration, Wait, WaitQueue, Waiters, WakeList};
use crate::util::buffer_pool;
use crate::util::queue;
use crate::util::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// State of the read side of a connection (the receiving states of RFC 9000 3.2).
#[derive(Clone, Copy, Debug)]
enum RecvState {
    /// More may come. Left on the end of the peer's stream, or of the connection.
    Open,
    /// The peer has ended its stream, and all of it is in the queue: reads return the end of file
    /// after it. Final, also when the connection ends later.
    Eof,
    /// The connection has ended: reads return the error after what is in the queue. Left for `Eof`
    /// when the peer's end of stream is delivered after that.
    Failed(ConnectionError),
}

/// The receive queue of one connection.
pub(super) struct RecvQueue {
    /// Bytes that the chunks may count for, see `CHUNK_CHARGE`.
    capacity: usize,
    /// Copy of `Delivered::charged`, for the driver without the lock.
    charged_hint: AtomicUsize,
    delivered: Mutex<Delivered>,
    /// Whether the reader's own end has data, for [`Self::has_unread`].
    reader_has_data: AtomicBool,
}

struct Delivered {
    chunks: VecDeque<Bytes>,
    /// Bytes that all chunks delivered and not yet reported as read count for, see `CHUNK_CHARGE`.
    charged: usize,
    /// True while the driver holds more back and waits for the reader.
    driver_blocked: bool,
    /// True once the last handle is gone: what is delivered is discarded.
    detached: bool,
    /// True once data was discarded so.
    discarded: bool,
    /// True once the driver has removed the connection: what is not read is counted in `MemoryUse`.
    outlived: bool,
    state: RecvState,
    readers: Waiters,
}

impl Delivered {
    /// Empties the queue. Drop the result outside the lock.
    fn clear(&mut self) -> VecDeque<Bytes> {
        self.charged = 0;
        mem::take(&mut self.chunks)
    }
}

/// The reader's own end of the queue: chunks that it took from the shared one in a single
/// exchange, so that bytes are copied outside the lock.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    chunks: VecDeque<Bytes>,
    /// Bytes read since the last report to the shared queue, as charged.
    read: usize,
}

impl ReadBuffer {
    /// The next chunk. In message mode it is a message, or the rest of one, and may be empty.
    pub(crate) fn front(&self) -> Option<&Bytes> {
        self.chunks.front()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
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

    /// Takes empty chunks off the front: a read of 0 bytes would mean the end of the stream.
    pub(crate) fn skip_empty(&mut self) {
        while self.front().is_some_and(Bytes::is_empty) {
            self.pop();
        }
    }

    /// The chunks from the front that hold the next `limit` bytes, the last one cut to fit; at
    /// most one if `one_message`.
    pub(crate) fn peek(&self, mut limit: usize, one_message: bool) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().take(if one_message { 1 } else { usize::MAX }).map_while(move |chunk| {
            let part = &chunk[..chunk.len().min(limit)];
            limit -= part.len();
            (limit > 0 || !part.is_empty()).then_some(part)
        })
    }
}

impl RecvQueue {
    pub(super) fn new(capacity: usize) -> Self {
        let delivered = Delivered {
            chunks: VecDeque::new(),
            charged: 0,
            driver_blocked: false,
            detached: false,
            discarded: false,
            outlived: false,
            state: RecvState::Open,
            readers: Waiters::default(),
        };
        let reader_has_data = AtomicBool::new(false);
        let charged_hint = AtomicUsize::new(0);
        Self { capacity, charged_hint, delivered: Mutex::new(delivered), reader_has_data }
    }
}

/// Driver.
impl RecvQueue {
    /// Bytes that the queue takes now, of at most `quota`. The driver delivers while this is above
    /// zero: a chunk that does not fit is delivered all the same, otherwise a message above the
    /// capacity would never be. At zero the reader notifies the driver once half of the queue is free.
    pub(super) fn available(&self, quota: usize) -> usize {
        let mut delivered = lock(&self.delivered);
        if delivered.detached {
            return self.capacity;
        }
        let available = self.capacity.min(quota).saturating_sub(delivered.charged);
        // Set in the critical section that found the queue full: no read in between is missed.
        delivered.driver_blocked |= available == 0;
        available
    }

    /// Whether data was delivered that the application has not read, or had not when it dropped its last
    /// handle.
    pub(super) fn has_unread(&self) -> bool {
        let delivered = lock(&self.delivered);
        let in_queue = !delivered.chunks.is_empty() || delivered.discarded;
        in_queue || self.reader_has_data.load(Ordering::Relaxed)
    }

    /// Bytes in the queue, those included that the reader has taken and not reported, as charged: a
    /// hint.
    pub(super) fn charged(&self) -> usize {
        self.charged_hint.load(Ordering::Relaxed)
    }

    /// Appends what arrived in order; in message mode each chunk is one message. `held_back`:
    /// there is more, which did not fit, so the reader notifies the driver once half of the queue
    /// is free. Without handles everything is discarded.
    ///
    /// Returns the readers to wake.
    pub(super) fn deliver(
        &self,
        chunks: &mut VecDeque<Bytes>,
        held_back: bool,
        notifier: &ConnNotifier,
    ) -> WakeList {
        let charged = chunks.iter().map(|chunk| charge(chunk.len())).sum::<usize>();
        let mut delivered = lock(&self.delivered);
        if delivered.detached {
            delivered.discarded |= !chunks.is_empty();
            drop(delivered);
            chunks.drain(..).for_each(buffer_pool::recycle);
            return WakeList::default();
        }
        let readers =
            if chunks.is_empty() { WakeList::default() } else { delivered.readers.take_all() };
        queue::reserve(&mut delivered.chunks, chunks.len());
        delivered.chunks.append(chunks);
        delivered.charged += charged;
        self.charged_hint.store(delivered.charged, Ordering::Relaxed);
        // With nothing left to read, no read will come to notify the driver.
        let again = held_back && delivered.charged == 0;
        delivered.driver_blocked = held_back && !again;
        drop(delivered);
        if again {
            notifier.notify();
        }
        readers
    }

    /// The peer has ended its stream, and all of it was delivered. Returns the readers to wake.
    pub(super) fn set_eof(&self) -> WakeList {
        let mut delivered = lock(&self.delivered);
        delivered.state = RecvState::Eof;
        delivered.readers.take_all()
    }

    /// The connection has ended. What was delivered can still be read. Returns the readers to wake.
    pub(super) fn fail(&self, error: ConnectionError) -> WakeList {
        let mut delivered = lock(&self.delivered);
        if matches!(delivered.state, RecvState::Open) {
            delivered.state = RecvState::Failed(error);
        }
        delivered.readers.take_all()
    }

    /// The driver removes the connection: what is not read is counted until it is read or dropped.
    pub(super) fn outlive(&self, notifier: &ConnNotifier) {
        let mut delivered = lock(&self.delivered);
        delivered.outlived = true;
        notifier.endpoint().memory().on_outlived(delivered.charged);
    }

    /// The connection is idle: frees the memory of an empty queue.
    pub(super) fn release_memory(&self) {
        let memory = queue::release(&mut lock(&self.delivered).chunks);
        drop(memory);
    }
}

/// Handles.
impl RecvQueue {
    /// Moves what was delivered to the reader's own end. Ready when that has a chunk then, without
    /// one at the end of the peer's stream, or with the error of an ended connection.
    pub(super) fn poll_refill(
        &self,
        buffer: &mut ReadBuffer,
        wait: &mut Wait<'_>,
        notifier: &ConnNotifier,
    ) -> Poll<io::Result<()>> {
        let mut delivered = lock(&self.delivered);
        let blocked = self.report(&mut delivered, mem::take(&mut buffer.read), notifier);
        let (mut replaced, mut memory) = (None, [None, None]);
        if buffer.chunks.is_empty() {
            mem::swap(&mut delivered.chunks, &mut buffer.chunks);
        } else {
            buffer.chunks.append(&mut delivered.chunks);
        }
        let outcome = match delivered.state {
            _ if !buffer.chunks.is_empty() => Poll::Ready(Ok(())),
            RecvState::Eof => Poll::Ready(Ok(())),
            RecvState::Failed(error) => Poll::Ready(Err(error.into())),
            RecvState::Open => {
                let shared = &mut delivered.chunks;
                memory = [queue::release_burst(shared), queue::release_burst(&mut buffer.chunks)];
                if shared.capacity() == 0 {
                    // The memory goes back to the shared queue, where the driver fills and frees
                    // it.
                    mem::swap(shared, &mut buffer.chunks);
                }
                replaced = delivered.readers.register(wait);
                Poll::Pending
            }
        };
        // In the critical section: data is in one end or the other.
        self.update_reader_has_data(buffer);
        drop(delivered);
        drop((replaced, memory));
        if blocked {
            notifier.notify();
        }
        outcome
    }

    /// Whether nothing more will be delivered. Registers the task in any case: for the end of the
    /// connection after that of the peer's stream.
    pub(super) fn is_closed(&self, wait: &mut Wait<'_>) -> bool {
        let mut delivered = lock(&self.delivered);
        let closed = !matches!(delivered.state, RecvState::Open);
        let replaced = delivered.readers.register(wait);
        drop(delivered);
        drop(replaced);
        closed
    }

    /// Reports what was read once it is more than an eighth of the capacity, so that a blocked
    /// driver is notified in time. Until then [`available`](Self::available) is short by as much.
    pub(super) fn report_read(&self, buffer: &mut ReadBuffer, notifier: &ConnNotifier) {
        self.update_reader_has_data(buffer);
        if buffer.read <= self.capacity / 8 {
            return;
        }
        let read = mem::take(&mut buffer.read);
        let blocked = self.report(&mut lock(&self.delivered), read, notifier);
        if blocked {
            notifier.notify();
        }
    }

    /// Frees capacity for what was read. Returns whether the driver waits for that.
    #[must_use]
    fn report(&self, delivered: &mut Delivered, read: usize, notifier: &ConnNotifier) -> bool {
        let read = read.min(delivered.charged);
        delivered.charged -= read;
        if delivered.outlived {
            notifier.endpoint().memory().on_outlived_read(read);
        }
        self.charged_hint.store(delivered.charged, Ordering::Relaxed);
        delivered.charged <= self.capacity / 2 && mem::take(&mut delivered.driver_blocked)
    }

    #[inline]
    fn update_reader_has_data(&self, buffer: &ReadBuffer) {
        let has_data = buffer.front().is_some();
        if self.reader_has_data.load(Ordering::Relaxed) != has_data {
            self.reader_has_data.store(has_data, Ordering::Relaxed);
        }
    }

    /// The last handle is gone: discards what is delivered from here on. Returns what is to be
    /// dropped.
    pub(super) fn detach(&self, notifier: &ConnNotifier) -> (WakeList, VecDeque<Bytes>) {
        let mut delivered = lock(&self.delivered);
        if delivered.outlived {
            notifier.endpoint().memory().on_outlived_read(delivered.charged);
        }
        delivered.detached = true;
        delivered.discarded = !delivered.chunks.is_empty();
        self.charged_hint.store(0, Ordering::Relaxed);
        (delivered.readers.take_all(), delivered.clear())
    }

    #[cfg(test)]
    pub(super) fn clear(&self) -> VecDeque<Bytes> {
        lock(&self.delivered).clear()
    }
}

impl WaitQueue for RecvQueue {
    fn cancel(&self, registration: &Registration) -> Option<Waker> {
        lock(&self.delivered).readers.cancel(registration)
    }
}
