mod half;
mod split;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub use self::split::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};

use self::half::{ReadSide, WriteSide};
use crate::core::stream::SharedStream;
use crate::session::Session;
use crate::shared::Handle;

/// A stream: ordered bytes in both directions, each of which closes on its own.
///
/// * `shutdown` closes this side's direction: FIN follows all written bytes. It waits until FIN is
///   sent; reading continues.
/// * A read of 0 bytes is the peer's FIN. If the session ends before, reads return the received
///   bytes and then an error.
/// * Dropping a stream sends the written bytes and FIN, in the background, and discards received
///   bytes. A peer that runs this crate then fails to write ([`Error::Reset`](crate::Error::Reset));
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

    /// Returns a handle of the session.
    pub fn session(&self) -> Session {
        Session { handle: self.read.handle.clone() }
    }

    /// Splits the stream into halves for different tasks. Dropping the write half closes its
    /// direction like `shutdown`; dropping the read half discards received bytes.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (OwnedReadHalf(self.read), OwnedWriteHalf(self.write))
    }

    /// Drops the stream and its unsent bytes. A peer that runs this crate reads the received bytes,
    /// and then gets [`Error::Reset`](crate::Error::Reset); others see FIN, as after an orderly
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
        self.write.poll_write(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
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
