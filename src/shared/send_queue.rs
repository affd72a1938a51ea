//! Send queue: bytes and messages written and not yet taken by the driver.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::task::{Poll, Waker, ready};

use bytes::{Bytes, BytesMut};

use crate::error::ConnectionError;
use crate::shared::memory_use::{MemoryUse, charge};
use crate::shared::notifier::ConnNotifier;
use crate::shared::waiters::{
    Registration, Wait, WaitQueue, Waiter, Waiters, WakeList, register_waker,
};
use crate::util::buffer_pool::{self, BUFFER_LEN, LARGE};
use crate::util::queue;
use crate::util::sync::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering, lock};

/// The result of taking writes.
#[derive(Debug, Default)]
pub(crate) struct TakenWrites {
    /// A flush asks that the taken data leave now.
    pub(crate) flush: bool,
    /// True from `shutdown` on. Queued data is still to be sent, see `more`.
    pub(crate) write_closed: bool,
    /// True once the last handle is gone.
    pub(crate) detached: bool,
    /// True from `abort` on: the connection ends at once.
    pub(crate) reset: bool,
    /// Data is still queued.
    pub(crate) more: bool,
    /// A writer has more data.
    pub(crate) writer_waits: bool,
    /// The writers to wake, once a quarter of the queue is free.
    pub(crate) writers: WakeList,
}

/// Data that the driver has taken and not sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backlog {
    /// Bytes that a bulk writer may have waiting, in this queue and behind it.
    pub(crate) limit: usize,
    /// Bytes that wait behind this queue.
    pub(crate) unsent: usize,
}

impl Backlog {
    #[cfg(test)]
    pub(crate) const NONE: Self = Self { limit: usize::MAX, unsent: 0 };
}

/// State of the write side of a connection (the sending states of RFC 9000 3.1).
#[derive(Clone, Copy, Debug)]
enum SendState {
    /// Writes are taken. Left on `shutdown`, or the end of the connection.
    Open,
    /// `shutdown` was called: writes fail with `BrokenPipe`. Left when the peer has acknowledged every
    /// byte, or when the connection ends. `in_background`: the peer waits for this side to read, so
    /// `shutdown` does not wait for the peer.
    Closed { in_background: bool },
    /// The peer has acknowledged every byte: `shutdown` and `flush` are `Ok`, also after the connection
    /// has ended with `error`. Final. `closed`: `shutdown` was called; otherwise writes fail with the
    /// error.
    Drained { error: Option<ConnectionError>, closed: bool },
    /// The connection ended while open or with unacknowledged bytes. Final. `closed`: `shutdown` was
    /// called, so writes still fail with `BrokenPipe`.
    Failed { error: ConnectionError, closed: bool },
}

impl SendState {
    fn is_closed(self) -> bool {
        match self {
            Self::Open => false,
            Self::Closed { .. } => true,
            Self::Drained { closed, .. } | Self::Failed { closed, .. } => closed,
        }
    }

    /// Why the connection ended, once it has.
    fn error(self) -> Option<ConnectionError> {
        match self {
            Self::Open | Self::Closed { .. } => None,
            Self::Drained { error, .. } => error,
            Self::Failed { error, .. } => Some(error),
        }
    }

    /// Fails unless writes are taken.
    fn check_writable(self) -> io::Result<()> {
        if self.is_closed() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the write side was shut down"));
        }
        self.error().map_or(Ok(()), |error| Err(error.into()))
    }

    /// `shutdown`. Returns whether this is the first call.
    fn close(&mut self) -> bool {
        let first = !self.is_closed();
        match self {
            Self::Open => *self = Self::Closed { in_background: false },
            Self::Drained { closed, .. } | Self::Failed { closed, .. } => *closed = true,
            Self::Closed { .. } => {}
        }
        first
    }

    /// The peer has acknowledged every byte, and the write side is closed or about to fail.
    fn drain(&mut self) {
        if matches!(self, Self::Open | Self::Closed { .. }) {
            *self = Self::Drained { error: None, closed: self.is_closed() };
        }
    }

    /// The connection has ended. The first error stays.
    fn fail(&mut self, cause: ConnectionError) {
        match self {
            Self::Open => *self = Self::Failed { error: cause, closed: false },
            Self::Closed { .. } => *self = Self::Failed { error: cause, closed: true },
            Self::Drained { error, .. } => {
                error.get_or_insert(cause);
            }
            Self::Failed { .. } => {}
        }
    }
}

/// A chunk of written data on its way to the protocol.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) data: Bytes,
    /// True for a message, which keeps its boundaries; false for a piece of a byte stream.
    pub(crate) message: bool,
}

/// The chunks of one connection.
#[derive(Debug, Default)]
struct Chunks {
    queue: VecDeque<Outgoing>,
    /// The last chunk, to which small writes append until it is taken.
    tail: BytesMut,
    /// Payload bytes.
    bytes: usize,
    /// Sum of the charges, see `CHUNK_CHARGE`.
    charged: usize,
}

impl Chunks {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.tail.is_empty()
    }

    /// Payload bytes.
    fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sum of the charges.
    fn charged(&self) -> usize {
        self.charged
    }

    fn push(&mut self, data: Bytes, message: bool) {
        self.end_tail();
        self.bytes += data.len();
        self.charged += charge(data.len());
        queue::push(&mut self.queue, Outgoing { data, message });
    }

    /// Appends about `count` bytes of a byte stream, written by `copy`, to the chunk of small writes.
    /// Returns their exact number.
    fn append(&mut self, count: usize, copy: impl FnOnce(&mut BytesMut)) -> usize {
        if self.tail.len() + count > BUFFER_LEN {
            self.end_tail();
        }
        let before = self.tail.len();
        // The memory grows with the data, so that a few bytes never hold much of it, and becomes a pooled
        // buffer once it is large enough.
        if before < LARGE && before + count >= LARGE {
            let mut pooled = buffer_pool::take();
            pooled.extend_from_slice(&self.tail);
            self.tail = pooled;
        }
        copy(&mut self.tail);
        let len = self.tail.len();
        self.bytes += len - before;
        self.charged += charge(len) - if before == 0 { 0 } else { charge(before) };
        len - before
    }

    /// Ends the chunk of small writes.
    fn end_tail(&mut self) {
        if !self.tail.is_empty() {
            let data = buffer_pool::freeze_grown(mem::take(&mut self.tail));
            queue::push(&mut self.queue, Outgoing { data, message: false });
        }
    }

    /// Moves chunks to `out`, see [`SendQueue::take_writes`].
    fn take(&mut self, mut limit: usize, unit: usize, out: &mut VecDeque<Outgoing>) {
        let before = self.charged;
        while limit > 0 {
            if self.queue.is_empty() {
                self.end_tail();
            }
            let Some(next) = self.queue.front_mut() else { break };
            let len = next.data.len();
            let cost = len.div_ceil(unit).max(1) * unit;
            if cost > limit && !next.message {
                self.bytes -= limit;
                self.charged = self.charged - charge(len) + charge(len - limit);
                let data = next.data.split_to(mem::take(&mut limit));
                out.push_back(Outgoing { data, message: false });
            } else if cost <= limit || self.charged == before {
                self.bytes -= len;
                self.charged -= charge(len);
                limit = limit.saturating_sub(cost);
                out.extend(self.queue.pop_front());
            } else {
                break;
            }
        }
    }

    /// Removes all chunks.
    fn clear(&mut self) -> VecDeque<Outgoing> {
        self.end_tail();
        (self.bytes, self.charged) = (0, 0);
        mem::take(&mut self.queue)
    }

    /// Takes the memory that a burst has left, to be dropped.
    fn release_burst(&mut self) -> Option<VecDeque<Outgoing>> {
        queue::release_burst(&mut self.queue)
    }

    /// Takes the memory of an empty queue, to be dropped.
    fn release_memory(&mut self) -> Option<VecDeque<Outgoing>> {
        queue::release(&mut self.queue)
    }
}

/// The send queue of one connection.
pub(crate) struct SendQueue {
    notifier: Arc<ConnNotifier>,
    /// Charge limit in bytes, see `CHUNK_CHARGE`.
    capacity: usize,
    memory: Arc<MemoryUse>,
    /// Charge limit that the [`Backlog`] leaves.
    bound: AtomicUsize,
    /// Copy of `Chunks::charged` for writers without the lock: a hint, checked again under it.
    charged_hint: AtomicUsize,
    writes: Mutex<Writes>,
}

struct Writes {
    chunks: Chunks,
    state: SendState,
    /// True from `abort` on.
    reset_requested: bool,
    /// As of the last exchange or transmission.
    backlog: Backlog,
    /// True from a write that found the queue full until the writers are woken.
    refused: bool,
    /// A writer waits, or was woken and has not written yet.
    waiting: bool,
    /// True from a write that found the queue full until no data waits to be sent: the backlog limit
    /// applies. A burst may fill the queue.
    bulk: bool,
    /// True from a write until the next flush.
    dirty: bool,
    /// True from a flush until everything written before it was taken.
    flush_requested: bool,
    writers: Waiters,
    /// The task in `shutdown`.
    shutdown: Option<Waker>,
}

impl SendQueue {
    pub(super) fn new(capacity: usize, notifier: Arc<ConnNotifier>) -> Self {
        let writes = Writes {
            chunks: Chunks::default(),
            state: SendState::Open,
            reset_requested: false,
            backlog: Backlog { limit: usize::MAX, unsent: 0 },
            refused: false,
            waiting: false,
            bulk: false,
            dirty: false,
            flush_requested: false,
            writers: Waiters::default(),
            shutdown: None,
        };
        let (bound, charged_hint) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
        let memory = notifier.endpoint().memory().clone();
        Self { notifier, capacity, memory, bound, charged_hint, writes: Mutex::new(writes) }
    }

    /// Charge limit now: less than configured while memory is short or taken data waits to be sent.
    fn capacity(&self) -> usize {
        self.bound.load(Ordering::Relaxed).min(self.full_capacity())
    }

    /// The capacity without a backlog.
    fn full_capacity(&self) -> usize {
        self.capacity.min(self.memory.write_quota())
    }

    /// Recomputes `bound` after the backlog or `bulk` changed.
    fn update_bound(&self, writes: &Writes) {
        let Backlog { limit, unsent } = writes.backlog;
        let limit = if writes.bulk { limit } else { limit.max(self.capacity) };
        self.bound.store(limit.saturating_sub(unsent), Ordering::Relaxed);
    }

    /// A write found the queue full.
    fn refuse(&self, writes: &mut Writes) {
        (writes.refused, writes.waiting, writes.bulk) = (true, true, true);
        self.update_bound(writes);
    }

    /// Whether a quarter is free.
    fn is_worthwhile(&self, writes: &Writes) -> bool {
        let most = self.full_capacity().min(writes.backlog.limit);
        self.available(writes.chunks.charged()) >= (most / 4).max(1)
    }

    fn available(&self, charged: usize) -> usize {
        self.capacity().saturating_sub(charged)
    }

    /// Updates the charge after the chunks changed.
    fn count(&self, writes: &Writes) {
        let charged = writes.chunks.charged();
        self.memory.on_send_queue(self.charged_hint.swap(charged, Ordering::Relaxed), charged);
    }
}

/// Driver.
impl SendQueue {
    /// Moves up to `limit` bytes of written data to the end of `out`. Each chunk counts as a multiple of
    /// `unit`, the segment size in message mode, where chunks share no segment. Cuts the last piece of a
    /// byte stream to fit, never a message: a message moves if it fits, or first if `limit` is above
    /// zero.
    ///
    /// Reports a flush until everything written before it has moved. Each exchange calls this, even with
    /// a limit of zero.
    pub(super) fn take_writes(
        &self,
        limit: usize,
        unit: usize,
        backlog: Backlog,
        out: &mut VecDeque<Outgoing>,
    ) -> TakenWrites {
        let mut guard = lock(&self.writes);
        let writes = &mut *guard;
        let (charged, bytes) = (writes.chunks.charged(), writes.chunks.bytes());
        // A writer that has just filled the queue most likely has more to write.
        let waits = writes.waiting || self.available(charged) == 0;
        writes.chunks.take(limit, unit, out);
        self.count(writes);
        let more = !writes.chunks.is_empty();
        let taken = bytes - writes.chunks.bytes();
        let moved = Self::update_backlog(writes, backlog) || writes.chunks.charged() < charged;
        writes.backlog.unsent = backlog.unsent.saturating_add(taken);
        writes.bulk &= writes.waiting || more || writes.backlog.unsent > 0;
        self.update_bound(writes);
        let writers = if moved { self.admit(writes) } else { WakeList::default() };
        let taken = TakenWrites {
            writer_waits: waits && !writes.state.is_closed(),
            flush: writes.flush_requested,
            write_closed: writes.state.is_closed(),
            detached: false,
            reset: writes.reset_requested,
            more,
            writers,
        };
        writes.flush_requested &= more;
        let memory = writes.chunks.release_burst();
        drop(guard);
        drop(memory);
        taken
    }

    /// Some taken data has left. Returns the writers to wake.
    pub(crate) fn set_backlog(&self, backlog: Backlog) -> WakeList {
        if backlog.unsent == 0 && self.bound.load(Ordering::Relaxed) >= self.full_capacity() {
            return WakeList::default();
        }
        let mut writes = lock(&self.writes);
        let moved = Self::update_backlog(&mut writes, backlog);
        self.update_bound(&writes);
        if moved { self.admit(&mut writes) } else { WakeList::default() }
    }

    /// Returns whether data has left or the limit has grown.
    fn update_backlog(writes: &mut Writes, backlog: Backlog) -> bool {
        let before = mem::replace(&mut writes.backlog, backlog);
        backlog.unsent < before.unsent || backlog.limit > before.limit
    }

    /// Returns the writers to wake, once a quarter is free instead of for every segment that leaves.
    fn admit(&self, writes: &mut Writes) -> WakeList {
        if !(writes.refused && self.is_worthwhile(writes)) {
            return WakeList::default();
        }
        writes.refused = false;
        writes.waiting &= !writes.writers.is_empty();
        writes.writers.take_all()
    }

    /// The write side is closed and the peer has acknowledged every byte. Returns the task in `shutdown`.
    pub(crate) fn set_drained(&self) -> Option<Waker> {
        let mut writes = lock(&self.writes);
        writes.state.drain();
        writes.shutdown.take()
    }

    /// Lets `shutdown` return before the peer has acknowledged every byte. Returns the task in
    /// `shutdown`.
    pub(crate) fn deliver_in_background(&self) -> Option<Waker> {
        let mut writes = lock(&self.writes);
        if let SendState::Closed { in_background } = &mut writes.state {
            *in_background = true;
        }
        writes.shutdown.take()
    }

    /// The connection has ended. Discards queued data. `is_delivered`: the peer has read all taken data,
    /// so `shutdown` is `Ok` if the queue is empty. Returns the tasks to wake.
    pub(super) fn fail(
        &self,
        error: ConnectionError,
        is_delivered: bool,
    ) -> (WakeList, Option<Waker>) {
        let mut writes = lock(&self.writes);
        if is_delivered && writes.chunks.is_empty() {
            writes.state.drain();
        }
        writes.state.fail(error);
        let discarded = writes.chunks.clear();
        self.count(&writes);
        let wakers = (writes.writers.take_all(), writes.shutdown.take());
        drop(writes);
        drop(discarded);
        wakers
    }

    /// Frees the memory of an empty queue of an idle connection.
    pub(super) fn release_memory(&self) {
        let memory = lock(&self.writes).chunks.release_memory();
        drop(memory);
    }
}

/// Handles.
impl SendQueue {
    /// A future that waits to write.
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        Waiter::new(self)
    }

    /// Payload bytes that the driver has not taken yet.
    pub(crate) fn unsent_bytes(&self) -> usize {
        lock(&self.writes).chunks.bytes()
    }

    /// Why the connection ended, once it has.
    pub(super) fn error(&self) -> Option<ConnectionError> {
        lock(&self.writes).state.error()
    }

    /// Write readiness as of Tokio's sockets: starts when the queue has capacity or the connection has
    /// ended, and ends with a write that finds the queue full.
    pub(crate) fn poll_write_ready(&self, wait: &mut Wait<'_>) -> Poll<()> {
        if self.available(self.charged_hint.load(Ordering::Relaxed)) > 0 {
            return Poll::Ready(());
        }
        let mut writes = lock(&self.writes);
        let is_open = writes.state.check_writable().is_ok();
        if !(is_open && writes.refused && self.available(writes.chunks.charged()) == 0) {
            return Poll::Ready(());
        }
        let replaced = writes.writers.register(wait);
        drop(writes);
        drop(replaced);
        Poll::Pending
    }

    /// Ready with the bytes a write may copy now, at least one, or with the error of every write. An
    /// ended connection may only show when the bytes are pushed.
    fn poll_capacity(&self, wait: &mut Wait<'_>) -> Poll<io::Result<usize>> {
        let available = self.available(self.charged_hint.load(Ordering::Relaxed));
        if available > 0 {
            return Poll::Ready(Ok(available));
        }
        let mut writes = lock(&self.writes);
        writes.state.check_writable()?;
        let available = self.available(writes.chunks.charged());
        if available > 0 {
            return Poll::Ready(Ok(available));
        }
        self.refuse(&mut writes);
        let replaced = writes.writers.register(wait);
        drop(writes);
        drop(replaced);
        Poll::Pending
    }

    /// As [`Self::poll_capacity`], but also fails while there is capacity.
    pub(crate) fn poll_reserve(&self, wait: &mut Wait<'_>) -> Poll<io::Result<usize>> {
        lock(&self.writes).state.check_writable()?;
        self.poll_capacity(wait)
    }

    /// Queues `data`, at most as long as [`Self::poll_reserve`] returned to this writer.
    pub(crate) fn write_reserved(&self, data: Bytes) -> io::Result<()> {
        let writes = lock(&self.writes);
        writes.state.check_writable()?;
        self.queue(writes, data, false);
        Ok(())
    }

    /// Queues a chunk and notifies the driver outside the lock.
    fn queue(&self, mut writes: MutexGuard<'_, Writes>, data: Bytes, message: bool) {
        writes.chunks.push(data, message);
        self.end_write(writes);
    }

    /// Notifies the driver of queued data, outside the lock.
    fn end_write(&self, mut writes: MutexGuard<'_, Writes>) {
        (writes.dirty, writes.waiting) = (true, !writes.writers.is_empty());
        self.count(&writes);
        drop(writes);
        self.notifier.notify();
    }

    /// Writes up to `len` bytes; `copy(n, out)` appends the first `n` to `out`. Queues exactly the bytes
    /// it returns when ready, none otherwise. `joins`: fewer than [`LARGE`] bytes may share a chunk with
    /// their neighbours; `copy` then runs under the lock.
    pub(crate) fn poll_write_with(
        &self,
        wait: &mut Wait<'_>,
        len: usize,
        joins: bool,
        copy: impl Fn(usize, &mut BytesMut),
    ) -> Poll<io::Result<usize>> {
        if len == 0 {
            // As with TCP, an empty write fails where a byte would.
            return Poll::Ready(lock(&self.writes).state.check_writable().map(|()| 0));
        }
        loop {
            let count = len.min(ready!(self.poll_capacity(wait))?);
            // Small writes join the previous chunk, which the driver then handles as one. The lock is
            // held for a copy of up to 16 KiB.
            let joins = joins && count < LARGE;
            let data = (!joins).then(|| buffer_pool::filled(count, |out| copy(count, out)));
            let mut writes = lock(&self.writes);
            writes.state.check_writable()?;
            // Another writer may have taken the capacity since the copy was made.
            let count = count.min(self.available(writes.chunks.charged()));
            if count == 0 {
                continue;
            }
            let Some(mut data) = data else {
                let written = writes.chunks.append(count, |tail| copy(count, tail));
                self.end_write(writes);
                return Poll::Ready(Ok(written));
            };
            data.truncate(count);
            self.queue(writes, data, false);
            return Poll::Ready(Ok(count));
        }
    }

    /// Writes a message of up to `max` bytes, if it fits, or if it is alone and little waits to be sent.
    pub(super) fn poll_send_message(
        &self,
        wait: &mut Wait<'_>,
        message: &[u8],
        max: usize,
    ) -> Poll<io::Result<()>> {
        if message.len() > max {
            let len = message.len();
            let text = format!(
                "the message has {len} bytes, at most {max} fit the peer's window and the path MTU"
            );
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        let mut copy = None;
        loop {
            let mut writes = lock(&self.writes);
            writes.state.check_writable()?;
            let available = self.available(writes.chunks.charged());
            let is_alone = writes.chunks.is_empty()
                && self.bound.load(Ordering::Relaxed) >= writes.backlog.limit / 4;
            if charge(message.len()) > available && !is_alone {
                self.refuse(&mut writes);
                let replaced = writes.writers.register(wait);
                drop(writes);
                drop(replaced);
                return Poll::Pending;
            }
            if let Some(copy) = copy.take() {
                self.queue(writes, copy, true);
                return Poll::Ready(Ok(()));
            }
            drop(writes);
            copy = Some(Bytes::copy_from_slice(message));
        }
    }

    /// Sends written data without further delay.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let mut writes = lock(&self.writes);
        if let SendState::Failed { error, .. } = writes.state {
            return Err(error.into());
        }
        // Copy loops flush whenever their reader is slow: a flush without new data must not cost a turn
        // of the driver.
        let dirty = mem::take(&mut writes.dirty);
        writes.flush_requested |= dirty;
        drop(writes);
        if dirty {
            self.notifier.notify();
        }
        Ok(())
    }

    /// Closes the write side. Written data is still delivered.
    pub(crate) fn close(&self) {
        let mut writes = lock(&self.writes);
        let first = writes.state.close();
        let writers = writes.writers.take_all();
        drop(writes);
        writers.for_each(Waker::wake);
        if first {
            self.notifier.notify();
        }
    }

    /// Closes the write side. Ready once the peer has acknowledged every byte, or waits for this side to
    /// read.
    pub(crate) fn poll_shutdown(&self, waker: &Waker) -> Poll<io::Result<()>> {
        self.close();
        let mut writes = lock(&self.writes);
        match writes.state {
            SendState::Drained { .. } | SendState::Closed { in_background: true } => {
                return Poll::Ready(Ok(()));
            }
            SendState::Failed { error, .. } => return Poll::Ready(Err(error.into())),
            SendState::Open | SendState::Closed { in_background: false } => {}
        }
        let replaced = register_waker(&mut writes.shutdown, waker);
        drop(writes);
        drop(replaced);
        Poll::Pending
    }

    /// Asks the driver to end the connection and discards queued data.
    pub(crate) fn abort(&self) {
        let mut writes = lock(&self.writes);
        writes.reset_requested = true;
        let discarded = writes.chunks.clear();
        self.count(&writes);
        drop(writes);
        drop(discarded);
        self.notifier.notify();
    }

    /// The last handle is gone. Returns the wakers of cancelled calls, to be dropped.
    pub(super) fn detach(&self) -> (WakeList, Option<Waker>) {
        let mut writes = lock(&self.writes);
        (writes.writers.take_all(), writes.shutdown.take())
    }

    #[cfg(test)]
    pub(super) fn clear(&self) -> VecDeque<Outgoing> {
        lock(&self.writes).chunks.clear()
    }
}

impl WaitQueue for SendQueue {
    fn cancel(&self, registration: &Registration) -> Option<Waker> {
        let mut writes = lock(&self.writes);
        let waker = writes.writers.cancel(registration);
        writes.waiting &= !writes.writers.is_empty();
        waker
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn append(chunks: &mut Chunks, data: &[u8]) {
        let count = chunks.append(data.len(), |tail| tail.extend_from_slice(data));
        assert_eq!(count, data.len());
    }

    fn taken(chunks: &mut Chunks, limit: usize) -> Vec<Vec<u8>> {
        let mut out = VecDeque::new();
        chunks.take(limit, 1, &mut out);
        out.into_iter().map(|chunk| chunk.data.to_vec()).collect()
    }

    #[test]
    fn small_writes_are_one_chunk_until_it_is_taken() {
        let mut chunks = Chunks::default();
        append(&mut chunks, b"ab");
        append(&mut chunks, b"cd");
        assert_eq!((chunks.bytes(), chunks.charged()), (4, 64));
        assert_eq!(taken(&mut chunks, 0), Vec::<Vec<u8>>::new());
        append(&mut chunks, b"e");
        assert_eq!(taken(&mut chunks, 2), [b"ab"]);
        append(&mut chunks, b"f");
        chunks.push(Bytes::from_static(b"large"), false);
        append(&mut chunks, b"g");
        assert_eq!(taken(&mut chunks, 99), [&b"cde"[..], b"f", b"large", b"g"]);
        assert!(chunks.is_empty());
        assert_eq!((chunks.bytes(), chunks.charged()), (0, 0));
    }

    #[test]
    fn memory_of_small_writes_grows_with_them() {
        let mut chunks = Chunks::default();
        for written in 1..=LARGE {
            append(&mut chunks, &[7]);
            let capacity = chunks.tail.capacity();
            assert!(
                capacity <= (2 * written).max(64) || capacity == BUFFER_LEN && written == LARGE
            );
        }
        append(&mut chunks, &vec![7; BUFFER_LEN - LARGE]);
        assert_eq!((chunks.queue.len(), chunks.tail.len()), (0, BUFFER_LEN));
        append(&mut chunks, &[7]);
        assert_eq!((chunks.queue.len(), chunks.tail.len()), (1, 1));
    }

    proptest! {
        #[test]
        fn what_is_taken_is_what_was_written(
            steps in prop::collection::vec((0_u8..12, 1_usize..LARGE), 1..100),
        ) {
            let mut chunks = Chunks::default();
            let (mut written, mut read) = (0_usize..0, Vec::new());
            let numbered = |bytes: std::ops::Range<usize>| -> Vec<_> {
                bytes.map(|at| u8::try_from(at % 251).unwrap()).collect()
            };
            for (step, len) in steps {
                let data = numbered(written.end..written.end + len);
                match step {
                    0 => read.extend(taken(&mut chunks, len * 4).concat()),
                    1 => chunks.push(Bytes::from(data), false),
                    _ => append(&mut chunks, &data),
                }
                written.end += if step == 0 { 0 } else { len };
                let queued = chunks.queue.iter().map(|chunk| chunk.data.len());
                let tail = Some(chunks.tail.len()).filter(|len| *len > 0);
                let lens: Vec<_> = queued.chain(tail).collect();
                prop_assert_eq!(chunks.bytes(), lens.iter().sum::<usize>());
                prop_assert_eq!(chunks.charged(), lens.iter().map(|len| charge(*len)).sum::<usize>());
                prop_assert!(lens.iter().all(|len| *len <= BUFFER_LEN));
            }
            read.extend(taken(&mut chunks, usize::MAX).concat());
            prop_assert!(read == numbered(written));
            prop_assert!(chunks.is_empty() && chunks.bytes() == 0 && chunks.charged() == 0);
        }
    }
}
