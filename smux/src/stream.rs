//! `Stream` and its owned halves.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::core::stream::{Fin, SharedStream, StreamState};
use crate::error::Error;
use crate::shared::Handle;
use crate::sync::{MutexGuard, Ordering, cooperate, register_waker};

/// A stream: ordered bytes in both directions. Each direction closes on its own.
///
/// * `shutdown` closes this side's direction: FIN follows all written bytes. It waits until FIN is
///   sent; reading continues.
/// * A read of 0 bytes is the peer's FIN. If the session ends before, reads return the received
///   bytes and then an error.
/// * Dropping a stream sends the written bytes and FIN, in the background, and discards received
///   bytes. A peer that runs this crate then fails to write ([`Error::Reset`]);
///   others continue, since the protocol has no reset. If the peer grants no window for
///   [`Config::timeout`](crate::Config::timeout), the written bytes are discarded.
/// * `flush` waits until all written bytes were written to the carrier and the carrier was flushed;
///   if the session ends before, it fails. Without a flush, bytes are sent as soon as carrier and
///   window allow.
///
/// Writes queue up to [`Config::send_buffer`](crate::Config::send_buffer) bytes.
#[derive(Debug)]
pub struct Stream {
    read: ReadSide,
    write: WriteSide,
}

impl Stream {
    pub(crate) fn new(stream: Arc<SharedStream>, handle: Handle) -> Self {
        let read = ReadSide::new(Arc::clone(&stream), handle.clone());
        Self { read, write: WriteSide::new(stream, handle) }
    }

    /// The id on the wire: odd for streams of the client, even for streams of the server.
    pub fn id(&self) -> u32 {
        self.read.stream.id
    }

    /// Bytes received and not read.
    #[cfg(feature = "_testkit")]
    pub(crate) fn unread(&self) -> usize {
        self.read.stream.lock().receive.queue.len()
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.read.handle
    }

    /// Splits the stream into halves for different tasks. Dropping the write half closes its
    /// direction like `shutdown`; dropping the read half discards received bytes.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (OwnedReadHalf(self.read), OwnedWriteHalf(self.write))
    }

    /// Drops the stream and its unsent bytes. A peer that runs this crate reads the received bytes,
    /// and then gets [`Error::Reset`]; others see FIN, as after an orderly
    /// end.
    pub fn abort(self) {
        self.write.abort();
    }

    /// Reads received bytes without a copy; returns an empty chunk at the end of the stream.
    ///
    /// The chunk may be a piece of a 64 KiB read buffer and keep all of it in memory: copy chunks
    /// that you keep for long.
    ///
    /// # Errors
    ///
    /// The reason for which the session has ended, once all received bytes were read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no byte is lost.
    pub async fn read_chunk(&mut self) -> io::Result<Bytes> {
        self.read.read_chunk().await
    }

    /// Writes a chunk without copying it, and leaves it empty; waits while it exceeds the rest of
    /// [`Config::send_buffer`](crate::Config::send_buffer). Pieces below 1 KiB are copied; longer
    /// pieces keep their whole buffer in memory until they are sent.
    ///
    /// # Errors
    ///
    /// The reason for which the session has ended; `BrokenPipe` after `shutdown`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: `chunk` holds the bytes that are not queued yet.
    pub async fn write_chunk(&mut self, chunk: &mut Bytes) -> io::Result<()> {
        self.write.write_chunk(chunk).await
    }

    /// Reads once from `reader` and writes the bytes, with one copy less than a read and a write.
    /// Returns the number of bytes, 0 at the end of `reader`.
    ///
    /// Waits for capacity first, without holding a buffer.
    ///
    /// # Errors
    ///
    /// Errors of `reader` and of `poll_write`. In that case nothing was written, and nothing was
    /// read unless the stream ended during the read, which loses the bytes of that read. The end of
    /// the stream is not reported while `reader` has no bytes.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future loses no bytes.
    pub async fn write_from<R>(&mut self, reader: &mut R) -> io::Result<usize>
    where
        R: AsyncRead + Unpin + ?Sized,
    {
        self.write.write_from(reader).await
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.read.poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write.poll_write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write.poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.poll_shutdown(cx)
    }
}

/// The reading half of a [`Stream`], see [`Stream::into_split`]. Dropping it discards received
/// bytes.
#[derive(Debug)]
pub struct OwnedReadHalf(ReadSide);

/// The writing half of a [`Stream`], see [`Stream::into_split`]. Dropping it closes its direction.
#[derive(Debug)]
pub struct OwnedWriteHalf(WriteSide);

/// The halves passed to [`OwnedReadHalf::reunite`] belong to different streams; contains both.
#[derive(Debug, thiserror::Error)]
#[error("the halves are not of the same stream")]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl OwnedReadHalf {
    /// The id of the stream, see [`Stream::id`].
    pub fn id(&self) -> u32 {
        self.0.stream.id
    }

    /// See [`Stream::read_chunk`].
    ///
    /// # Errors
    ///
    /// Same as [`Stream::read_chunk`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no byte is lost.
    pub async fn read_chunk(&mut self) -> io::Result<Bytes> {
        self.0.read_chunk().await
    }

    /// Joins the two halves.
    ///
    /// # Errors
    ///
    /// Returns both halves if they belong to different streams.
    pub fn reunite(self, write: OwnedWriteHalf) -> Result<Stream, ReuniteError> {
        if Arc::ptr_eq(&self.0.stream, &write.0.stream) {
            Ok(Stream { read: self.0, write: write.0 })
        } else {
            Err(ReuniteError(self, write))
        }
    }
}

impl OwnedWriteHalf {
    /// The id of the stream, see [`Stream::id`].
    pub fn id(&self) -> u32 {
        self.0.stream.id
    }

    /// See [`Stream::write_chunk`].
    ///
    /// # Errors
    ///
    /// Same as [`Stream::write_chunk`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: `chunk` holds the bytes that are not queued yet.
    pub async fn write_chunk(&mut self, chunk: &mut Bytes) -> io::Result<()> {
        self.0.write_chunk(chunk).await
    }

    /// See [`Stream::write_from`].
    ///
    /// # Errors
    ///
    /// Same as [`Stream::write_from`]: the bytes read are lost if the stream ended during the read,
    /// and the end of the stream is not reported while `reader` has no bytes.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future loses no bytes.
    pub async fn write_from<R>(&mut self, reader: &mut R) -> io::Result<usize>
    where
        R: AsyncRead + Unpin + ?Sized,
    {
        self.0.write_from(reader).await
    }

    /// Discards the unsent bytes and resets the stream, like [`Stream::abort`]. No effect after FIN
    /// was sent.
    ///
    /// The read half still returns received bytes. If the peer's FIN arrives after the reset, reads
    /// then fail with [`Error::Reset`]: the peer may have discarded the rest
    /// of its answer.
    pub fn abort(self) {
        self.0.abort();
    }

    /// Whether the peer reads on after its FIN: `Some(true)` once a window update has arrived after
    /// the FIN. `None` in version 1, which has no updates, and while the version is undecided.
    ///
    /// xtaci/smux has no reset: it sends only FIN, even for a stream closed in both directions.
    pub fn peer_reads_on(&self) -> Option<bool> {
        self.0.peer_reads_on()
    }
}

impl AsyncRead for OwnedReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.poll_read(cx, buf)
    }
}

impl AsyncWrite for OwnedWriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_shutdown(cx)
    }
}

/// Writes of at least this many bytes are copied outside the stream's lock.
const COPY_UNLOCKED: usize = 4_096;

/// Shorter chunks are copied: uncopied they would cost more memory.
const COPY_BELOW: usize = 1_024;

/// Smallest and largest buffer that `write_from` reads into, in bytes. It grows while reads fill
/// it.
const MIN_BUFFER: usize = 4 * 1024;
const MAX_BUFFER: usize = 64 * 1024;

#[derive(Debug)]
struct ReadSide {
    stream: Arc<SharedStream>,
    handle: Handle,
}

impl ReadSide {
    fn new(stream: Arc<SharedStream>, handle: Handle) -> Self {
        Self { stream, handle }
    }

    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
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

    async fn read_chunk(&self) -> io::Result<Bytes> {
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
struct WriteSide {
    stream: Arc<SharedStream>,
    handle: Handle,
    /// Length of the next buffer of `write_from`, in bytes.
    buffer_len: usize,
}

impl WriteSide {
    fn new(stream: Arc<SharedStream>, handle: Handle) -> Self {
        Self { stream, handle, buffer_len: MIN_BUFFER }
    }

    fn poll_write(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
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
            self.queued(state, len);
        } else {
            // The only writer is this one, so the capacity cannot shrink.
            drop(state);
            let mut buffer = BytesMut::with_capacity(len);
            copy(bufs, len, |piece| buffer.extend_from_slice(piece));
            self.queue_buffer(buffer)?;
        }
        Poll::Ready(Ok(len))
    }

    async fn write_chunk(&self, chunk: &mut Bytes) -> io::Result<()> {
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

    async fn write_from(
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

    /// Queues bytes that were copied or read without the stream's lock; the capacity suffices.
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

    fn poll_flush(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
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

    fn poll_shutdown(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
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

    fn abort(&self) {
        self.handle.finish(&self.stream, true);
    }

    fn peer_reads_on(&self) -> Option<bool> {
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
