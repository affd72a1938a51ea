//! The two directions of a stream, as its handles use them.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::core::stream::{Fin, SharedStream, StreamState};
use crate::error::Error;
use crate::shared::Handle;
use crate::sync::{MutexGuard, Ordering};
use crate::task::{cooperate, register_waker};

/// Writes of at least this many bytes are copied outside the stream's lock.
const COPY_UNLOCKED: usize = 4_096;

/// Shorter chunks are copied: uncopied they would cost more memory.
const COPY_BELOW: usize = 1_024;

/// Smallest and largest buffer that `write_from` reads into, in bytes. It grows while reads fill
/// it.
const MIN_BUFFER: usize = 4 * 1024;
const MAX_BUFFER: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct ReadSide {
    pub(super) stream: Arc<SharedStream>,
    pub(super) handle: Handle,
}

impl ReadSide {
    pub(super) fn new(stream: Arc<SharedStream>, handle: Handle) -> Self {
        Self { stream, handle }
    }

    pub(super) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        cooperate(cx, |cx| self.poll_fill(cx, buf))
    }

    fn poll_fill(&self, cx: &Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        while buf.remaining() > 0 {
            match self.poll_take(cx, buf.remaining()) {
                Poll::Ready(Ok(bytes)) if bytes.is_empty() => break,
                Poll::Ready(Ok(bytes)) => buf.put_slice(&bytes),
                // Return the bytes already read first.
                _ if buf.filled().len() > before => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    pub(super) async fn read_chunk(&self) -> io::Result<Bytes> {
        poll_fn(|cx| cooperate(cx, |cx| self.poll_take(cx, usize::MAX))).await
    }

    /// Takes up to `max` bytes; none at the end of the stream.
    fn poll_take(&self, cx: &Context<'_>, max: usize) -> Poll<io::Result<Bytes>> {
        let mut state = self.stream.lock();
        let bytes = state.receive.queue.take(max);
        if bytes.is_empty() {
            if state.receive.fin {
                return Poll::Ready(Ok(bytes));
            }
            if let Some(error) = &state.error {
                return Poll::Ready(Err(error.clone().into()));
            }
            let replaced = register_waker(&mut state.receive.waker, cx.waker());
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        state.receive.window.on_read(bytes.len());
        let inspect = state.receive.window.update_owed
            && !state.update_queued
            && self.handle.mailbox.version() != Some(1)
            && state.enter_inbox();
        drop(state);
        if inspect {
            self.handle.mailbox.push_changed(&self.stream);
        }
        self.handle.release_tokens(bytes.len());
        Poll::Ready(Ok(bytes))
    }
}

impl Drop for ReadSide {
    fn drop(&mut self) {
        self.handle.discard(&self.stream);
    }
}

#[derive(Debug)]
pub(super) struct WriteSide {
    pub(super) stream: Arc<SharedStream>,
    handle: Handle,
    /// Length of the next buffer of `write_from`, in bytes.
    buffer_len: usize,
}

impl WriteSide {
    pub(super) fn new(stream: Arc<SharedStream>, handle: Handle) -> Self {
        Self { stream, handle, buffer_len: MIN_BUFFER }
    }

    pub(super) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        cooperate(cx, |cx| self.poll_queue(cx, bufs))
    }

    /// Queues the part of `bufs` that fits the capacity.
    fn poll_queue(&self, cx: &Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let wanted = bufs.iter().map(|buf| buf.len()).sum();
        if wanted == 0 {
            check_writable(&self.stream.lock())?;
            return Poll::Ready(Ok(0));
        }
        let (mut state, capacity) = ready!(self.poll_capacity(cx))?;
        let len = capacity.min(wanted);
        if len < COPY_UNLOCKED {
            copy(bufs, len, |piece| state.send.queue.push(piece));
        } else {
            // The only writer is this one, so the capacity cannot shrink.
            drop(state);
            let mut chunk = BytesMut::with_capacity(len);
            copy(bufs, len, |piece| chunk.extend_from_slice(piece));
            state = self.stream.lock();
            check_writable(&state)?;
            state.send.queue.push_chunk(chunk.freeze());
        }
        self.queued(state, len);
        Poll::Ready(Ok(len))
    }

    pub(super) async fn write_chunk(&self, chunk: &mut Bytes) -> io::Result<()> {
        check_writable(&self.stream.lock())?;
        while !chunk.is_empty() {
            poll_fn(|cx| cooperate(cx, |cx| self.poll_write_chunk(cx, chunk))).await?;
        }
        Ok(())
    }

    /// Queues the part of `chunk` that fits the capacity.
    fn poll_write_chunk(&self, cx: &Context<'_>, chunk: &mut Bytes) -> Poll<io::Result<()>> {
        let (mut state, capacity) = ready!(self.poll_capacity(cx))?;
        let len = capacity.min(chunk.len());
        let piece = chunk.split_to(len);
        if len < COPY_BELOW {
            state.send.queue.push(&piece);
        } else {
            state.send.queue.push_chunk(piece);
        }
        self.queued(state, len);
        Poll::Ready(Ok(()))
    }

    pub(super) async fn write_from(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin + ?Sized),
    ) -> io::Result<usize> {
        poll_fn(|cx| cooperate(cx, |cx| self.poll_write_from(cx, reader))).await
    }

    fn poll_write_from(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut (impl AsyncRead + Unpin + ?Sized),
    ) -> Poll<io::Result<usize>> {
        let (state, capacity) = ready!(self.poll_capacity(cx))?;
        // The only writer is this one, so the capacity cannot shrink.
        drop(state);
        let space = self.buffer_len.min(capacity);
        let mut buffer = BytesMut::with_capacity(space);
        let len = {
            let mut buffer = (&mut buffer).limit(space);
            // The future has no state of its own, so each poll may use a new one.
            ready!(pin!(reader.read_buf(&mut buffer)).poll(cx))?
        };
        if len == self.buffer_len {
            self.buffer_len = (2 * len).min(MAX_BUFFER);
        } else if len < space / 4 {
            self.buffer_len = (self.buffer_len / 2).max(MIN_BUFFER);
        }
        if len > 0 {
            self.queue_buffer(buffer)?;
        }
        Poll::Ready(Ok(len))
    }

    /// Queues the bytes read; the capacity suffices.
    fn queue_buffer(&self, mut buffer: BytesMut) -> io::Result<()> {
        let len = buffer.len();
        let chunk = (len >= COPY_BELOW).then(|| {
            // Copied if the queue would hold more than twice the bytes.
            if len < buffer.capacity() / 2 {
                Bytes::copy_from_slice(&buffer)
            } else {
                mem::take(&mut buffer).freeze()
            }
        });
        let mut state = self.stream.lock();
        check_writable(&state)?;
        match chunk {
            Some(chunk) => state.send.queue.push_chunk(chunk),
            None => state.send.queue.push(&buffer),
        }
        self.queued(state, len);
        Ok(())
    }

    /// Waits until at least one byte may be queued. Returns the capacity.
    fn poll_capacity(
        &self,
        cx: &Context<'_>,
    ) -> Poll<io::Result<(MutexGuard<'_, StreamState>, usize)>> {
        let mut state = self.stream.lock();
        check_writable(&state)?;
        let capacity = self.handle.config.send_buffer.saturating_sub(state.send.queue.len());
        if capacity == 0 {
            let replaced = register_waker(&mut state.send.waker, cx.waker());
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        if self.handle.mailbox.is_closing() {
            return Poll::Ready(Err(Error::Closed.into()));
        }
        Poll::Ready(Ok((state, capacity)))
    }

    /// Wakes the driver if it does not know yet of the `len` bytes just queued.
    fn queued(&self, mut state: MutexGuard<'_, StreamState>, len: usize) {
        let was_empty = state.send.queue.len() == len;
        let inspect = was_empty && state.turn.is_none() && state.enter_inbox();
        drop(state);
        if inspect {
            self.handle.mailbox.push_changed(&self.stream);
        }
    }

    pub(super) fn poll_flush(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.stream.lock();
        if state.send.is_flushed(self.handle.mailbox.flushed.load(Ordering::Acquire)) {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = &state.send.error {
            return Poll::Ready(Err(error.clone().into()));
        }
        let replaced = register_waker(&mut state.send.waker, cx.waker());
        // While bytes are queued, each sent frame wakes.
        let asks = state.send.queue.len() == 0 && !state.send.in_flushing;
        state.send.flush_wanted |= asks;
        let inspect = asks && state.enter_inbox();
        drop(state);
        drop(replaced);
        if inspect {
            self.handle.mailbox.push_changed(&self.stream);
        }
        // A session that has ended fails the stream at once.
        match &self.stream.lock().send.error {
            Some(error) => Poll::Ready(Err(error.clone().into())),
            None => Poll::Pending,
        }
    }

    pub(super) fn poll_shutdown(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.handle.finish(&self.stream, false);
        let mut state = self.stream.lock();
        if state.send.fin == Fin::Sent && state.send.batch != u64::MAX {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = &state.send.error {
            return Poll::Ready(Err(error.clone().into()));
        }
        let replaced = register_waker(&mut state.send.waker, cx.waker());
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    pub(super) fn abort(&self) {
        self.handle.finish(&self.stream, true);
    }

    pub(super) fn peer_reads_on(&self) -> Option<bool> {
        let has_updates = self.handle.mailbox.version() == Some(2);
        has_updates.then(|| self.stream.lock().updated_after_fin)
    }
}

impl Drop for WriteSide {
    fn drop(&mut self) {
        self.handle.finish(&self.stream, false);
    }
}

fn check_writable(state: &StreamState) -> io::Result<()> {
    if let Some(error) = &state.send.error {
        return Err(error.clone().into());
    }
    if state.send.fin != Fin::None {
        return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the stream was shut down"));
    }
    Ok(())
}

/// Passes the first `len` bytes of `bufs` to `push`.
fn copy(bufs: &[IoSlice<'_>], mut len: usize, mut push: impl FnMut(&[u8])) {
    for buf in bufs {
        let piece = &buf[..len.min(buf.len())];
        push(piece);
        len -= piece.len();
        if len == 0 {
            break;
        }
    }
}
