//! [`Reader`] and [`Writer`]: the two directions of a stream, for `KcpStream` and its halves.

use std::io::{self, IoSlice, IoSliceMut};
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::config::Mode;
use crate::shared::connection::{Handle, Shared};
use crate::shared::recv_queue::ReadBuffer;
use crate::shared::waiters::{Registration, Wait};
use crate::util::buffer_pool;
use crate::util::sync::{Mutex, MutexGuard, lock};
use crate::util::task::cooperate;

/// Most slices of a vectored write that are gathered under the send queue's lock.
const MAX_JOINED_SLICES: usize = 64;

/// The read side of a connection.
pub(crate) struct Reader {
    pub(crate) handle: Handle,
    /// Locked only by methods that take `&self`, for the time of a copy.
    buffer: Mutex<ReadBuffer>,
}

/// The write side of a connection. It borrows the connection, so that a stream holds one handle for both
/// directions: small streams keep idle connections cheap.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'a> {
    shared: &'a Shared,
}

impl Reader {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle, buffer: Mutex::new(ReadBuffer::default()) }
    }

    /// Whether a read returns bytes of one message only.
    fn one_message(&self) -> bool {
        self.handle.mode == Mode::Message
    }

    fn buffer_mut(&mut self) -> (&Handle, &mut ReadBuffer) {
        let buffer = self.buffer.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        (&self.handle, buffer)
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let one_message = self.one_message();
        let (handle, buffer) = self.buffer_mut();
        ready!(cooperate(cx, |cx| poll_chunks(handle, buffer, &mut Wait::Polled(cx.waker()))))?;
        read(handle, buffer, one_message, buf.remaining(), |part| buf.put_slice(part));
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let (handle, buffer) = self.buffer_mut();
        ready!(cooperate(cx, |cx| poll_chunks(handle, buffer, &mut Wait::Polled(cx.waker()))))?;
        Poll::Ready(Ok(buffer.front().map_or(&[], |chunk| chunk)))
    }

    pub(crate) fn consume(&mut self, count: usize) {
        if count > 0 {
            let (handle, buffer) = self.buffer_mut();
            buffer.consume(count);
            handle.recv.report_read(buffer);
        }
    }

    /// The next non-empty chunk.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let (handle, buffer) = self.buffer_mut();
        ready!(cooperate(cx, |cx| poll_chunks(handle, buffer, &mut Wait::Polled(cx.waker()))))?;
        Poll::Ready(Ok(pop(handle, buffer)))
    }

    /// The next message, or its rest after partial reads.
    pub(crate) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        check_message_mode(&self.handle)?;
        let (handle, buffer) = self.buffer_mut();
        ready!(cooperate(cx, |cx| poll_chunks(handle, buffer, &mut Wait::Polled(cx.waker()))))?;
        if buffer.front().is_none() {
            let text = "the peer has ended its stream: no more messages will come";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
        }
        Poll::Ready(Ok(pop(handle, buffer)))
    }

    pub(crate) fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        registration: Option<&mut Registration>,
    ) -> Poll<io::Result<usize>> {
        cooperate(cx, |cx| self.peek(cx, buf, registration))
    }

    fn peek(
        &self,
        cx: &Context<'_>,
        buf: &mut ReadBuf<'_>,
        registration: Option<&mut Registration>,
    ) -> Poll<io::Result<usize>> {
        let (mut buffer, one_message) = (self.lock_buffer(), self.one_message());
        let before = buf.remaining();
        // A task that waits for more bytes must see new ones although it read nothing.
        let known = buffer.peek(before, one_message).map(<[u8]>::len).sum::<usize>();
        if buffer.front().is_none() || (known < before && !one_message) {
            let mut wait = Wait::new(cx.waker(), registration);
            ready!(self.handle.recv.poll_refill(&mut buffer, &mut wait))?;
        }
        buffer.peek(before, one_message).for_each(|part| buf.put_slice(part));
        Poll::Ready(Ok(before - buf.remaining()))
    }

    pub(crate) fn poll_readable(
        &self,
        cx: &mut Context<'_>,
        registration: Option<&mut Registration>,
    ) -> Poll<io::Result<()>> {
        // A later read returns the error of an ended connection.
        self.poll_open(cx, registration).map(|_open| Ok(()))
    }

    /// Ready with true when there is something to read, with false when nothing more will come.
    pub(crate) fn poll_open(
        &self,
        cx: &mut Context<'_>,
        registration: Option<&mut Registration>,
    ) -> Poll<bool> {
        cooperate(cx, |cx| {
            let mut buffer = self.lock_buffer();
            let mut wait = Wait::new(cx.waker(), registration);
            let chunks = poll_chunks(&self.handle, &mut buffer, &mut wait);
            chunks.map(|_ended| buffer.front().is_some())
        })
    }

    pub(crate) fn try_read(&self, mut buf: &mut [u8]) -> io::Result<usize> {
        let limit = buf.len();
        self.try_read_with(limit, |part| buf.put_slice(part))
    }

    pub(crate) fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let limit = bufs.iter().map(|buf| buf.len()).sum();
        let mut bufs = bufs.iter_mut();
        let mut space: &mut [u8] = &mut [];
        self.try_read_with(limit, |mut part| {
            while !part.is_empty() {
                if space.is_empty() {
                    let Some(next) = bufs.next() else { return };
                    space = next;
                }
                let count = part.len().min(space.len());
                let (now, later) = part.split_at(count);
                space.put_slice(now);
                part = later;
            }
        })
    }

    pub(crate) fn try_read_with(&self, limit: usize, put: impl FnMut(&[u8])) -> io::Result<usize> {
        let mut buffer = self.lock_buffer();
        or_would_block(poll_chunks(&self.handle, &mut buffer, &mut Wait::No))?;
        Ok(read(&self.handle, &mut buffer, self.one_message(), limit, put))
    }

    fn lock_buffer(&self) -> MutexGuard<'_, ReadBuffer> {
        lock(&self.buffer)
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        Self { shared }
    }

    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    pub(crate) fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        cooperate(cx, |cx| write(self.shared, &mut Wait::Polled(cx.waker()), bufs))
    }

    pub(crate) fn poll_write_from(
        &self,
        cx: &mut Context<'_>,
        reader: &mut (impl AsyncRead + Unpin + ?Sized),
    ) -> Poll<io::Result<usize>> {
        cooperate(cx, |cx| write_from(self.shared, cx, reader))
    }

    pub(crate) fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(buf)])
    }

    pub(crate) fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        or_would_block(write(self.shared, &mut Wait::No, bufs))
    }

    pub(crate) fn poll_write_ready(
        &self,
        cx: &mut Context<'_>,
        registration: Option<&mut Registration>,
    ) -> Poll<io::Result<()>> {
        // A later write returns the error of an ended connection.
        cooperate(cx, |cx| {
            let mut wait = Wait::new(cx.waker(), registration);
            self.shared.send.poll_write_ready(&mut wait).map(Ok)
        })
    }

    pub(crate) fn poll_send_message(
        &self,
        cx: &mut Context<'_>,
        message: &[u8],
    ) -> Poll<io::Result<()>> {
        check_message_mode(self.shared)?;
        cooperate(cx, |cx| self.shared.poll_send_message(&mut Wait::Polled(cx.waker()), message))
    }
}

/// Ready when the buffer has a chunk, or at the end of the stream.
fn poll_chunks(
    shared: &Shared,
    buffer: &mut ReadBuffer,
    wait: &mut Wait<'_>,
) -> Poll<io::Result<()>> {
    match buffer.front() {
        Some(_) => Poll::Ready(Ok(())),
        None => shared.recv.poll_refill(buffer, wait),
    }
}

/// Passes at most `limit` bytes to `put` and consumes them.
fn read(
    shared: &Shared,
    buffer: &mut ReadBuffer,
    one_message: bool,
    limit: usize,
    mut put: impl FnMut(&[u8]),
) -> usize {
    let mut left = limit;
    while left > 0
        && let Some(chunk) = buffer.front()
    {
        let part = &chunk[..chunk.len().min(left)];
        let count = part.len();
        put(part);
        buffer.consume(count);
        left -= count;
        if one_message {
            break;
        }
    }
    shared.recv.report_read(buffer);
    limit - left
}

fn pop(shared: &Shared, buffer: &mut ReadBuffer) -> Bytes {
    let chunk = buffer.pop().unwrap_or_default();
    shared.recv.report_read(buffer);
    // Only chunks of a byte stream share a buffer: each message has its own.
    if shared.mode == Mode::Stream { buffer_pool::into_recycled(chunk) } else { chunk }
}

fn check_message_mode(shared: &Shared) -> io::Result<()> {
    match shared.mode {
        Mode::Message => Ok(()),
        mode @ Mode::Stream => {
            let text =
                format!("messages require Mode::Message, this connection is in {mode:?} mode");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

fn or_would_block<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Writes `bufs` in pieces of `BUFFER_LEN` bytes. The first piece may be pending or fail; a later one
/// then ends the write with the bytes written so far.
fn write(shared: &Shared, wait: &mut Wait<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
    let total = bufs.iter().map(|buf| buf.len()).sum::<usize>();
    // In message mode each write starts a segment of its own.
    let joins = shared.mode == Mode::Stream && bufs.len() <= MAX_JOINED_SLICES;
    let mut done = 0;
    loop {
        let wait = if done == 0 { &mut *wait } else { &mut Wait::No };
        let part = (total - done).min(buffer_pool::BUFFER_LEN);
        match shared
            .send
            .poll_write_with(wait, part, joins, |count, out| gather(bufs, done, count, out))
        {
            Poll::Ready(Ok(taken)) => done += taken,
            _ if done > 0 => return Poll::Ready(Ok(done)),
            other => return other,
        }
        if done == total || !done.is_multiple_of(buffer_pool::BUFFER_LEN) {
            return Poll::Ready(Ok(done));
        }
    }
}

/// Reads once from `reader` and writes the bytes. Waits for capacity first, so that everything read is
/// written and no buffer is held during the wait.
fn write_from(
    shared: &Shared,
    cx: &mut Context<'_>,
    reader: &mut (impl AsyncRead + Unpin + ?Sized),
) -> Poll<io::Result<usize>> {
    let capacity = ready!(shared.send.poll_reserve(&mut Wait::Polled(cx.waker())))?;
    let mut buffer = buffer_pool::take();
    let read = {
        let mut space = (&mut buffer).limit(capacity.min(buffer_pool::BUFFER_LEN));
        // `read_buf` keeps no state between polls, so each poll may be of a new future.
        pin!(reader.read_buf(&mut space)).poll(cx)
    };
    match read {
        Poll::Ready(Ok(count)) if count > 0 => {
            shared.send.write_reserved(buffer_pool::freeze(buffer))?;
            Poll::Ready(Ok(count))
        }
        nothing => {
            buffer_pool::give(buffer);
            nothing
        }
    }
}

/// Appends `count` bytes of `bufs`, after the first `skip`, to `out`: header and body become one chunk.
fn gather(bufs: &[IoSlice<'_>], mut skip: usize, count: usize, out: &mut BytesMut) {
    let mut left = count;
    for buf in bufs {
        let rest = &buf[skip.min(buf.len())..];
        skip -= buf.len() - rest.len();
        let part = &rest[..rest.len().min(left)];
        left -= part.len();
        out.extend_from_slice(part);
        if left == 0 {
            break;
        }
    }
}
