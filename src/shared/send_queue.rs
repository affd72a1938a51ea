//! Send queue, from the application to the driver: bytes and messages written and not yet taken.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::task::{Poll, Waker, ready};

use bytes::Bytes;

use crate::error::ConnectionError;
use crate::shared::charge::charge;
use crate::shared::notifier::ConnNotifier;
use crate::shared::send_state::SendState;
use crate::shared::waiters::{Registration, Wait, WaitQueue, Waiters, WakeList};
use crate::shared::wakers::register_waker;
use crate::util::queue;
use crate::util::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, lock};

/// A chunk of what was written, on its way to the protocol.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) data: Bytes,
    /// True for a whole message, which keeps its boundaries; false for a piece of a byte stream.
    pub(crate) message: bool,
}

/// What the driver finds when it takes writes.
#[derive(Debug, Default)]
pub(crate) struct TakenWrites {
    /// A flush asks for what was taken to leave now.
    pub(crate) flush: bool,
    /// True from `shutdown` on. What is queued still has to be sent, see `more`.
    pub(crate) write_closed: bool,
    /// True once the last handle is gone.
    pub(crate) detached: bool,
    /// True from `abort` on: the connection is to end at once.
    pub(crate) reset: bool,
    /// Something is still queued.
    pub(crate) more: bool,
    /// The writers to wake, once a quarter of the queue is free.
    pub(crate) writers: WakeList,
}

/// The send queue of one connection.
pub(super) struct SendQueue {
    /// Bytes that the chunks may count for, see `CHUNK_CHARGE`.
    capacity: usize,
    /// Copy of `Writes::charged` for a writer without the lock: a hint, checked again under it.
    charged_hint: AtomicUsize,
    writes: Mutex<Writes>,
}

struct Writes {
    chunks: VecDeque<Outgoing>,
    /// Payload bytes queued.
    bytes: usize,
    /// Bytes that the chunks count for, see `CHUNK_CHARGE`.
    charged: usize,
    state: SendState,
    /// True from `abort` on.
    reset_requested: bool,
    /// True from a write that found the queue full until writers are woken.
    refused: bool,
    /// True from a write until the next flush.
    dirty: bool,
    /// True from a flush until everything written before it was taken.
    flush_requested: bool,
    writers: Waiters,
    /// The task in `shutdown`.
    shutdown: Option<Waker>,
}

impl Writes {
    /// Empties the queue. Drop the result outside the lock.
    fn clear(&mut self) -> VecDeque<Outgoing> {
        (self.bytes, self.charged) = (0, 0);
        mem::take(&mut self.chunks)
    }

    fn push(&mut self, data: Bytes, message: bool) {
        self.bytes += data.len();
        self.charged += charge(data.len());
        self.dirty = true;
        queue::push(&mut self.chunks, Outgoing { data, message });
    }

    /// Moves chunks to `out`, see [`SendQueue::take_writes`].
    fn take(&mut self, mut limit: usize, unit: usize, out: &mut VecDeque<Outgoing>) {
        let before = self.charged;
        while limit > 0
            && let Some(next) = self.chunks.front_mut()
        {
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
                out.extend(self.chunks.pop_front());
            } else {
                break;
            }
        }
    }
}

impl SendQueue {
    pub(super) fn new(capacity: usize) -> Self {
        let writes = Writes {
            chunks: VecDeque::new(),
            bytes: 0,
            charged: 0,
            state: SendState::Open,
            reset_requested: false,
            refused: false,
            dirty: false,
            flush_requested: false,
            writers: Waiters::default(),
            shutdown: None,
        };
        Self { capacity, charged_hint: AtomicUsize::new(0), writes: Mutex::new(writes) }
    }

    fn available(&self, charged: usize) -> usize {
        self.capacity.saturating_sub(charged)
    }

    /// Bytes in the queue, as charged: a hint.
    pub(super) fn charged(&self) -> usize {
        self.charged_hint.load(Ordering::Relaxed)
    }
}

/// Driver.
impl SendQueue {
    /// Moves at most `limit` bytes of what was written to the end of `out`. Each chunk counts for
    /// a multiple of `unit`: the size of a segment in message mode, where chunks do not share one.
    /// The last piece of a byte stream may be cut. A message is never cut: it moves if it fits, or
    /// if it is the first to move and `limit` is above zero.
    ///
    /// A flush is reported until everything written before it has moved. Called in each exchange,
    /// also with a limit of zero, for what else it returns.
    pub(super) fn take_writes(
        &self,
        limit: usize,
        unit: usize,
        out: &mut VecDeque<Outgoing>,
    ) -> TakenWrites {
        let mut guard = lock(&self.writes);
        let writes = &mut *guard;
        let before = writes.charged;
        writes.take(limit, unit, out);
        self.charged_hint.store(writes.charged, Ordering::Relaxed);
        let more = !writes.chunks.is_empty();
        // Not for every acknowledged segment: a writer that is woken should find a quarter free.
        let worthwhile =
            writes.charged < before && self.available(writes.charged) >= (self.capacity / 4).max(1);
        writes.refused &= !worthwhile;
        let taken = TakenWrites {
            flush: writes.flush_requested,
            write_closed: writes.state.is_closed(),
            detached: false,
            reset: writes.reset_requested,
            more,
            writers: if worthwhile { writes.writers.take_all() } else { WakeList::default() },
        };
        writes.flush_requested &= more;
        let memory = queue::release_burst(&mut writes.chunks);
        drop(guard);
        drop(memory);
        taken
    }

    /// The write side is closed and the peer has acknowledged every byte. Returns the task in
    /// `shutdown`.
    pub(super) fn set_drained(&self) -> Option<Waker> {
        let mut writes = lock(&self.writes);
        writes.state.drain();
        writes.shutdown.take()
    }

    /// `shutdown` returns before the peer has acknowledged every byte. Returns the task in it.
    pub(super) fn deliver_in_background(&self) -> Option<Waker> {
        let mut writes = lock(&self.writes);
        if let SendState::Closed { in_background } = &mut writes.state {
            *in_background = true;
        }
        writes.shutdown.take()
    }

    /// The connection has ended. Discards what was not taken. Returns the tasks to wake.
    pub(super) fn fail(&self, error: ConnectionError) -> (WakeList, Option<Waker>) {
        let mut writes = lock(&self.writes);
        writes.state.fail(error);
        let discarded = writes.clear();
        self.charged_hint.store(0, Ordering::Relaxed);
        let wakers = (writes.writers.take_all(), writes.shutdown.take());
        drop(writes);
        drop(discarded);
        wakers
    }

    /// The connection is idle: frees the memory of an empty queue.
    pub(super) fn release_memory(&self) {
        let memory = queue::release(&mut lock(&self.writes).chunks);
        drop(memory);
    }
}

/// Handles.
impl SendQueue {
    /// Payload bytes that the driver has not taken yet.
    pub(super) fn unsent_bytes(&self) -> usize {
        lock(&self.writes).bytes
    }

    /// Why the connection ended, once it has.
    pub(super) fn error(&self) -> Option<ConnectionError> {
        lock(&self.writes).state.error()
    }

    /// Readiness for writing, as that of Tokio's sockets: from the time when the queue has capacity, or the
    /// connection has ended, until a write finds it full.
    pub(super) fn poll_write_ready(&self, wait: &mut Wait<'_>) -> Poll<()> {
        if self.available(self.charged_hint.load(Ordering::Relaxed)) > 0 {
            return Poll::Ready(());
        }
        let mut writes = lock(&self.writes);
        let is_open = writes.state.check_writable().is_ok();
        if !(is_open && writes.refused && self.available(writes.charged) == 0) {
            return Poll::Ready(());
        }
        let replaced = writes.writers.register(wait);
        drop(writes);
        drop(replaced);
        Poll::Pending
    }

    /// Ready with the number of bytes a write may copy now, at least one, or with the error that
    /// every write returns. The end of the connection may only show when the bytes are pushed.
    fn poll_capacity(&self, wait: &mut Wait<'_>) -> Poll<io::Result<usize>> {
        let available = self.available(self.charged_hint.load(Ordering::Relaxed));
        if available > 0 {
            return Poll::Ready(Ok(available));
        }
        let mut writes = lock(&self.writes);
        writes.state.check_writable()?;
        let available = self.available(writes.charged);
        if available > 0 {
            return Poll::Ready(Ok(available));
        }
        writes.refused = true;
        let replaced = writes.writers.register(wait);
        drop(writes);
        drop(replaced);
        Poll::Pending
    }

    /// As [`Self::poll_capacity`], but with the error of every write also while there is capacity.
    pub(super) fn poll_reserve(&self, wait: &mut Wait<'_>) -> Poll<io::Result<usize>> {
        lock(&self.writes).state.check_writable()?;
        self.poll_capacity(wait)
    }

    /// Queues `data`, of at most as many bytes as [`Self::poll_reserve`] has returned to this writer.
    pub(super) fn write_reserved(&self, data: Bytes, notifier: &ConnNotifier) -> io::Result<()> {
        let writes = lock(&self.writes);
        writes.state.check_writable()?;
        self.queue(writes, data, false, notifier);
        Ok(())
    }

    /// Queues a chunk and notifies the driver, without the lock.
    fn queue(
        &self,
        mut writes: MutexGuard<'_, Writes>,
        data: Bytes,
        message: bool,
        notifier: &ConnNotifier,
    ) {
        writes.push(data, message);
        self.charged_hint.store(writes.charged, Ordering::Relaxed);
        drop(writes);
        notifier.notify();
    }

    /// Writes at most `len` bytes; `copy(n)` returns a copy of the first `n`. Queues exactly as
    /// many bytes as it returns when ready, and none otherwise.
    pub(super) fn poll_write_with(
        &self,
        wait: &mut Wait<'_>,
        len: usize,
        copy: impl Fn(usize) -> Bytes,
        notifier: &ConnNotifier,
    ) -> Poll<io::Result<usize>> {
        if len == 0 {
            // As TCP: nothing to write still fails where a byte would.
            return Poll::Ready(lock(&self.writes).state.check_writable().map(|()| 0));
        }
        loop {
            let available = ready!(self.poll_capacity(wait))?;
            let mut data = copy(len.min(available));
            let writes = lock(&self.writes);
            writes.state.check_writable()?;
            // Another writer may have been faster since the copy was made.
            data.truncate(self.available(writes.charged));
            let taken = data.len();
            if taken == 0 {
                continue;
            }
            self.queue(writes, data, false, notifier);
            return Poll::Ready(Ok(taken));
        }
    }

    /// Writes a whole message of at most `max` bytes: when it fits, or when nothing else is
    /// queued.
    pub(super) fn poll_send_message(
        &self,
        wait: &mut Wait<'_>,
        message: &[u8],
        max: usize,
        notifier: &ConnNotifier,
    ) -> Poll<io::Result<()>> {
        if message.len() > max {
            let len = message.len();
            let text = format!(
                "a message of {len} bytes, at most {max} with the peer's window and the path MTU as \
                 they are"
            );
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        let mut copy = None;
        loop {
            let mut writes = lock(&self.writes);
            writes.state.check_writable()?;
            let available = self.available(writes.charged);
            if writes.charged > 0 && charge(message.len()) > available {
                writes.refused = true;
                let replaced = writes.writers.register(wait);
                drop(writes);
                drop(replaced);
                return Poll::Pending;
            }
            if let Some(copy) = copy.take() {
                self.queue(writes, copy, true, notifier);
                return Poll::Ready(Ok(()));
            }
            drop(writes);
            copy = Some(Bytes::copy_from_slice(message));
        }
    }

    /// Lets what was written leave without further delay.
    pub(super) fn flush(&self, notifier: &ConnNotifier) -> io::Result<()> {
        let mut writes = lock(&self.writes);
        if let SendState::Failed { error, .. } = writes.state {
            return Err(error.into());
        }
        // Copy loops flush whenever their reader is slow. A flush without a write since the last
        // flush must not cost a turn of the driver.
        let dirty = mem::take(&mut writes.dirty);
        writes.flush_requested |= dirty;
        drop(writes);
        if dirty {
            notifier.notify();
        }
        Ok(())
    }

    /// Closes the write side. What was written is still delivered.
    pub(super) fn close(&self, notifier: &ConnNotifier) {
        let mut writes = lock(&self.writes);
        let first = writes.state.close();
        let writers = writes.writers.take_all();
        drop(writes);
        writers.for_each(Waker::wake);
        if first {
            notifier.notify();
        }
    }

    /// Closes the write side; ready when the peer has acknowledged every byte, or waits for a reader
    /// of this side to do so.
    pub(super) fn poll_shutdown(
        &self,
        waker: &Waker,
        notifier: &ConnNotifier,
    ) -> Poll<io::Result<()>> {
        self.close(notifier);
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

    /// Asks the driver to end the connection, and discards what was written.
    pub(super) fn abort(&self, notifier: &ConnNotifier) {
        let mut writes = lock(&self.writes);
        writes.reset_requested = true;
        let discarded = writes.clear();
        self.charged_hint.store(0, Ordering::Relaxed);
        drop(writes);
        drop(discarded);
        notifier.notify();
    }

    /// The last handle is gone. Returns the wakers of cancelled calls, to be dropped.
    pub(super) fn detach(&self) -> (WakeList, Option<Waker>) {
        let mut writes = lock(&self.writes);
        (writes.writers.take_all(), writes.shutdown.take())
    }

    #[cfg(test)]
    pub(super) fn clear(&self) -> VecDeque<Outgoing> {
        lock(&self.writes).clear()
    }
}

impl WaitQueue for SendQueue {
    fn cancel(&self, registration: &Registration) -> Option<Waker> {
        lock(&self.writes).writers.cancel(registration)
    }
}
