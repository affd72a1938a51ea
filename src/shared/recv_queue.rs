//! Receive queue: bytes and messages delivered by the driver and not yet read.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::task::{Poll, Waker};

use bytes::{Buf, Bytes};

use crate::error::ConnectionError;
use crate::shared::memory_use::charge;
use crate::shared::notifier::ConnNotifier;
use crate::shared::waiters::{Registration, Wait, WaitQueue, Waiter, Waiters, WakeList};
use crate::util::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, lock};
use crate::util::{buffer_pool, queue};

/// State of the read side of a connection (the receiving states of RFC 9000 3.2).
#[derive(Clone, Copy, Debug)]
enum RecvState {
    /// More may come. Left on the end of the peer's stream, or of the connection.
    Open,
    /// The peer has ended its stream and all data is queued: reads return the end of file after it.
    /// Final, even when the connection ends later.
    Eof,
    /// The connection has ended: reads return the error after the queued data. Left for `Eof` when the
    /// peer's end of stream is delivered later.
    Failed(ConnectionError),
}

/// The receive queue of one connection.
pub(crate) struct RecvQueue {
    notifier: Arc<ConnNotifier>,
    /// Charge limit in bytes, see `CHUNK_CHARGE`.
    capacity: usize,
    /// Copy of `Delivered::charged`, which the driver reads without the lock.
    charged_hint: AtomicUsize,
    delivered: Mutex<Delivered>,
    /// Whether the reader's own buffer has data, for [`Self::has_unread`].
    reader_has_data: AtomicBool,
}

struct Delivered {
    chunks: VecDeque<Bytes>,
    /// Charge of all delivered chunks that are not reported as read.
    charged: usize,
    /// True while the driver holds back data until the reader frees capacity.
    driver_blocked: bool,
    /// True once the last handle is gone: delivered data is discarded.
    detached: bool,
    /// True once data was discarded that way.
    discarded: bool,
    /// True once the driver has removed the connection: unread data counts in `MemoryUse`.
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

/// The reader's own buffer: chunks taken from the shared queue in one exchange, so that bytes are copied
/// outside the lock.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    chunks: VecDeque<Bytes>,
    /// Charge of the bytes read since the last report to the shared queue.
    read: usize,
}

impl ReadBuffer {
    /// The next chunk, never empty. In message mode it is a message or its unread rest.
    pub(crate) fn front(&self) -> Option<&Bytes> {
        self.chunks.front()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.chunks.capacity()
    }

    /// Takes the next chunk.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.pop_front()?;
        self.read += charge(chunk.len());
        Some(chunk)
    }

    /// Consumes `count` bytes of the next chunk.
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

    /// The first `limit` bytes, chunk by chunk; of one chunk only if `one_message`.
    pub(crate) fn peek(&self, mut limit: usize, one_message: bool) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().take(if one_message { 1 } else { usize::MAX }).map_while(move |chunk| {
            let part = &chunk[..chunk.len().min(limit)];
            limit -= part.len();
            (limit > 0 || !part.is_empty()).then_some(part)
        })
    }
}

impl RecvQueue {
    pub(super) fn new(capacity: usize, notifier: Arc<ConnNotifier>) -> Self {
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
        Self { notifier, capacity, charged_hint, delivered: Mutex::new(delivered), reader_has_data }
    }
}

/// Driver.
impl RecvQueue {
    /// Bytes that the queue takes now, within `quota`. The driver delivers while this is above zero: a
    /// chunk larger than that is still delivered, so that a message above the capacity arrives. At zero
    /// the reader notifies the driver once half of the queue is free.
    pub(crate) fn available(&self, quota: usize) -> usize {
        let mut delivered = lock(&self.delivered);
        if delivered.detached {
            return self.capacity;
        }
        let available = self.capacity.min(quota).saturating_sub(delivered.charged);
        // Set in the critical section that found the queue full, so that no read is missed.
        delivered.driver_blocked |= available == 0;
        available
    }

    /// Whether the application left delivered data unread, now or when it dropped its last handle.
    pub(crate) fn has_unread(&self) -> bool {
        let delivered = lock(&self.delivered);
        let in_queue = !delivered.chunks.is_empty() || delivered.discarded;
        in_queue || self.reader_has_data.load(Ordering::Relaxed)
    }

    /// Charge of the queue and of data taken by the reader but not reported as read: a hint.
    pub(crate) fn charged(&self) -> usize {
        self.charged_hint.load(Ordering::Relaxed)
    }

    /// Appends data that arrived in order; in message mode each chunk is a message. `held_back`: more
    /// data did not fit, so the reader notifies the driver once half of the queue is free. Discards
    /// everything once detached. Returns the readers to wake.
    pub(crate) fn deliver(&self, chunks: &mut VecDeque<Bytes>, held_back: bool) -> WakeList {
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
        // With nothing left to read, no read will notify the driver.
        let again = held_back && delivered.charged == 0;
        delivered.driver_blocked = held_back && !again;
        drop(delivered);
        if again {
            self.notifier.notify();
        }
        readers
    }

    /// The peer has ended its stream, and all of it was delivered. Returns the readers to wake.
    pub(crate) fn set_eof(&self) -> WakeList {
        let mut delivered = lock(&self.delivered);
        delivered.state = RecvState::Eof;
        delivered.readers.take_all()
    }

    /// The connection has ended. Delivered data stays readable. Returns the readers to wake.
    pub(super) fn fail(&self, error: ConnectionError) -> WakeList {
        let mut delivered = lock(&self.delivered);
        if matches!(delivered.state, RecvState::Open) {
            delivered.state = RecvState::Failed(error);
        }
        delivered.readers.take_all()
    }

    /// The driver removes the connection: unread data counts in `MemoryUse` until it is read or dropped.
    pub(super) fn outlive(&self) {
        let mut delivered = lock(&self.delivered);
        delivered.outlived = true;
        self.notifier.endpoint().memory().on_outlived(delivered.charged);
    }

    /// Frees the memory of an empty queue of an idle connection.
    pub(super) fn release_memory(&self) {
        let memory = queue::release(&mut lock(&self.delivered).chunks);
        drop(memory);
    }
}

/// Handles.
impl RecvQueue {
    /// A future that waits to read.
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        Waiter::new(self)
    }

    /// Moves delivered data to the reader's buffer. Ready with a chunk in the buffer, with an empty
    /// buffer at the end of the stream, or with the error of an ended connection.
    pub(crate) fn poll_refill(
        &self,
        buffer: &mut ReadBuffer,
        wait: &mut Wait<'_>,
    ) -> Poll<io::Result<()>> {
        let mut delivered = lock(&self.delivered);
        let blocked = self.report(&mut delivered, mem::take(&mut buffer.read));
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
                    // The driver fills and frees the shared queue, so the memory belongs there.
                    mem::swap(shared, &mut buffer.chunks);
                }
                replaced = delivered.readers.register(wait);
                Poll::Pending
            }
        };
        // In the critical section, so that data is always in one of the two.
        self.update_reader_has_data(buffer);
        drop(delivered);
        drop((replaced, memory));
        if blocked {
            self.notifier.notify();
        }
        outcome
    }

    /// Whether nothing more will be delivered. Always registers the task, also for an end of the
    /// connection after the end of the stream.
    pub(crate) fn is_closed(&self, wait: &mut Wait<'_>) -> bool {
        let mut delivered = lock(&self.delivered);
        let closed = !matches!(delivered.state, RecvState::Open);
        let replaced = delivered.readers.register(wait);
        drop(delivered);
        drop(replaced);
        closed
    }

    /// Reports reads once they exceed an eighth of the capacity, early enough for a blocked driver. Until
    /// then [`available`](Self::available) is too low by that much.
    pub(crate) fn report_read(&self, buffer: &mut ReadBuffer) {
        self.update_reader_has_data(buffer);
        if buffer.read <= self.capacity / 8 {
            return;
        }
        let read = mem::take(&mut buffer.read);
        let blocked = self.report(&mut lock(&self.delivered), read);
        if blocked {
            self.notifier.notify();
        }
    }

    /// Frees the capacity of read data. Returns whether the driver waits for it.
    #[must_use]
    fn report(&self, delivered: &mut Delivered, read: usize) -> bool {
        let read = read.min(delivered.charged);
        delivered.charged -= read;
        if delivered.outlived {
            self.notifier.endpoint().memory().on_outlived_read(read);
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

    /// The last handle is gone: discards later data. Returns the values to drop outside the lock.
    pub(super) fn detach(&self) -> (WakeList, VecDeque<Bytes>) {
        let mut delivered = lock(&self.delivered);
        if delivered.outlived {
            self.notifier.endpoint().memory().on_outlived_read(delivered.charged);
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
