//! Application to driver: bytes and messages written and not yet taken.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::task::{Poll, Waker, ready};

use bytes::Bytes;

use super::connection::{Shared, charge, surplus};
use crate::error::ConnectionError;
use crate::shared::notifier::register_waker;
use crate::util::queue;
use crate::util::sync::{Ordering, lock};

/// A piece of what was written, on its way to the protocol.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) data: Bytes,
    /// A whole message, which keeps its boundaries; otherwise a piece of a byte stream.
    pub(crate) message: bool,
}

/// What a look at the writing side found.
#[derive(Debug, Default)]
pub(crate) struct TakenWrites {
    /// A flush asks for what was taken to leave now.
    pub(crate) uncork: bool,
    /// Nothing more will be written. What is queued still has to go, see `more`.
    pub(crate) write_closed: bool,
    /// Nobody holds the conversation any more.
    pub(crate) detached: bool,
    /// The conversation is to end at once.
    pub(crate) abort: bool,
    /// Something is still queued.
    pub(crate) more: bool,
    /// A writer to wake, since enough room is free.
    pub(crate) waker: Option<Waker>,
}

#[derive(Default)]
pub(super) struct SendQueue {
    pub(super) chunks: VecDeque<Outgoing>,
    /// Payload bytes queued.
    pub(super) bytes: usize,
    /// What the chunks count for, see `CHUNK_CHARGE`.
    queued: usize,
    closed: bool,
    drained: bool,
    abort: bool,
    /// Something was written since the last flush.
    unflushed: bool,
    uncork: bool,
    pub(super) fault: Option<ConnectionError>,
    pub(super) writer: Option<Waker>,
    pub(super) shutdown: Option<Waker>,
}

impl SendQueue {
    /// Empties the queue. The content is for dropping outside the lock.
    pub(super) fn clear(&mut self) -> VecDeque<Outgoing> {
        (self.bytes, self.queued) = (0, 0);
        mem::take(&mut self.chunks)
    }

    /// Whether writing is still possible.
    fn check(&self) -> io::Result<()> {
        if self.closed {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the write side is shut down"));
        }
        self.fault.map_or(Ok(()), |fault| Err(fault.into()))
    }

    fn push(&mut self, data: Bytes, message: bool) {
        self.bytes += data.len();
        self.queued += charge(data.len());
        self.unflushed = true;
        queue::push(&mut self.chunks, Outgoing { data, message });
    }
}

/// Driver.
impl Shared {
    /// Moves at most `room` bytes of what was written to the end of `out`. Each chunk counts for a
    /// multiple of `unit`: the size of a segment in message mode, where chunks do not share one.
    /// The last piece of a byte stream may be cut. A message is never cut: it moves if it fits, or
    /// if it is the first to move while there is any room.
    ///
    /// A flush is reported until everything written before it has moved. Called at each look, with
    /// no room too, for what else it finds.
    pub(crate) fn take_writes(
        &self,
        mut room: usize,
        unit: usize,
        out: &mut VecDeque<Outgoing>,
    ) -> TakenWrites {
        let mut guard = lock(&self.tx);
        let tx = &mut *guard;
        let before = tx.queued;
        while room > 0
            && let Some(next) = tx.chunks.front_mut()
        {
            let len = next.data.len();
            let cost = len.div_ceil(unit).max(1) * unit;
            if cost > room && !next.message {
                tx.bytes -= room;
                tx.queued = tx.queued - charge(len) + charge(len - room);
                let data = next.data.split_to(mem::take(&mut room));
                out.push_back(Outgoing { data, message: false });
            } else if cost <= room || tx.queued == before {
                tx.bytes -= len;
                tx.queued -= charge(len);
                room = room.saturating_sub(cost);
                out.extend(tx.chunks.pop_front());
            } else {
                break;
            }
        }
        self.tx_queued.store(tx.queued, Ordering::Relaxed);
        let more = !tx.chunks.is_empty();
        let free = self.send_buffer.saturating_sub(tx.queued);
        // Not for every acknowledged segment: a writer that is woken should find room worth it.
        let roomy = tx.queued < before && free >= (self.send_buffer / 4).max(1);
        let intake = TakenWrites {
            uncork: tx.uncork,
            write_closed: tx.closed,
            detached: self.is_detached(),
            abort: tx.abort,
            more,
            waker: if roomy { tx.writer.take() } else { None },
        };
        tx.uncork &= more;
        let storage = surplus(&mut tx.chunks);
        drop(guard);
        drop(storage);
        intake
    }

    /// Everything written is acknowledged and the write side is closed.
    pub(crate) fn set_drained(&self) -> Option<Waker> {
        let mut tx = lock(&self.tx);
        tx.drained = true;
        tx.shutdown.take()
    }
}

/// Handles. Without a waker these do not register and `Pending` means "would block".
impl Shared {
    /// Ready with the number of bytes a write may copy now, at least one, or with the reason why
    /// none ever will be. That a conversation has ended may only show when the bytes are pushed.
    pub(crate) fn poll_writable(&self, waker: Option<&Waker>) -> Poll<io::Result<usize>> {
        let free = self.send_buffer.saturating_sub(self.tx_queued.load(Ordering::Relaxed));
        if free > 0 {
            return Poll::Ready(Ok(free));
        }
        let mut tx = lock(&self.tx);
        tx.check()?;
        let free = self.send_buffer.saturating_sub(tx.queued);
        if free > 0 {
            return Poll::Ready(Ok(free));
        }
        let replaced = waker.and_then(|waker| register_waker(&mut tx.writer, waker));
        drop(tx);
        drop(replaced);
        Poll::Pending
    }

    /// Writes a part of `len` bytes, of which `copy` copies the first so many. Nothing is taken
    /// unless this is ready, and then as many bytes as it says.
    pub(crate) fn poll_write_with(
        &self,
        waker: Option<&Waker>,
        len: usize,
        copy: impl Fn(usize) -> Bytes,
    ) -> Poll<io::Result<usize>> {
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        loop {
            let room = ready!(self.poll_writable(waker))?;
            let mut data = copy(len.min(room));
            let mut tx = lock(&self.tx);
            tx.check()?;
            // Another writer may have been faster since the copy was made.
            data.truncate(self.send_buffer.saturating_sub(tx.queued));
            let taken = data.len();
            if taken == 0 {
                continue;
            }
            tx.push(data, false);
            self.tx_queued.store(tx.queued, Ordering::Relaxed);
            drop(tx);
            self.notify();
            return Poll::Ready(Ok(taken));
        }
    }

    /// Writes a whole message: when it fits, or when nothing else is queued.
    pub(crate) fn poll_send_message(
        &self,
        waker: Option<&Waker>,
        message: &[u8],
    ) -> Poll<io::Result<()>> {
        let max = self.max_message.load(Ordering::Relaxed);
        if message.len() > max {
            let text = format!("a message of {} bytes, allowed is at most {max}", message.len());
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        let mut copy = None;
        loop {
            let mut tx = lock(&self.tx);
            tx.check()?;
            let free = self.send_buffer.saturating_sub(tx.queued);
            if tx.queued > 0 && charge(message.len()) > free {
                let replaced = waker.and_then(|waker| register_waker(&mut tx.writer, waker));
                drop(tx);
                drop(replaced);
                return Poll::Pending;
            }
            if let Some(copy) = copy.take() {
                tx.push(copy, true);
                self.tx_queued.store(tx.queued, Ordering::Relaxed);
                drop(tx);
                self.notify();
                return Poll::Ready(Ok(()));
            }
            drop(tx);
            copy = Some(Bytes::copy_from_slice(message));
        }
    }

    /// Lets what was written leave without further delay.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let mut tx = lock(&self.tx);
        if let Some(fault) = tx.fault
            && !tx.drained
        {
            return Err(fault.into());
        }
        // Nothing new to push out: copy loops flush whenever their reader is slow, which should
        // not cost a turn of the driver each time.
        let asks = mem::take(&mut tx.unflushed);
        tx.uncork |= asks;
        drop(tx);
        if asks {
            self.notify();
        }
        Ok(())
    }

    /// Closes the write side. What was written is still delivered.
    pub(crate) fn close_write(&self) {
        let mut tx = lock(&self.tx);
        let closes = !mem::replace(&mut tx.closed, true);
        let writer = tx.writer.take();
        drop(tx);
        if let Some(writer) = writer {
            writer.wake();
        }
        if closes {
            self.notify();
        }
    }

    /// Closes the write side; ready when everything written is acknowledged.
    pub(crate) fn poll_shutdown(&self, waker: &Waker) -> Poll<io::Result<()>> {
        self.close_write();
        let mut tx = lock(&self.tx);
        if tx.drained {
            return Poll::Ready(Ok(()));
        }
        if let Some(fault) = tx.fault {
            return Poll::Ready(Err(fault.into()));
        }
        let replaced = register_waker(&mut tx.shutdown, waker);
        drop(tx);
        drop(replaced);
        Poll::Pending
    }

    /// Asks the driver to give the conversation up and discards what was written.
    pub(crate) fn abort(&self) {
        let mut tx = lock(&self.tx);
        tx.abort = true;
        let discarded = tx.clear();
        self.tx_queued.store(0, Ordering::Relaxed);
        drop(tx);
        drop(discarded);
        self.notify();
    }
}
