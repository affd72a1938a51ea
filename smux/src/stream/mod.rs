//! `Stream`: one stream of a session.

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

/// A stream: bytes in order, both ways, each way closed on its own.
///
/// * `shutdown` closes this side's direction: FIN after all that was written. It waits until FIN has
///   left; reading goes on.
/// * A read of 0 bytes is the peer's FIN. The end of the session before that is an error, after all
///   that has arrived was read.
/// * Dropping a stream sends what was written and FIN, in the background, and discards what arrives. A peer
///   that runs this crate then fails to write ([`Error::Reset`](crate::Error::Reset)); others go on, since
///   the protocol has no reset. If the peer grants no window for
///   [`Config::timeout`](crate::Config::timeout), what was written is discarded.
/// * `flush` waits until all that was written to the stream was written to the carrier, and the
///   carrier flushed; the end of the session before that is an error. Without it, what is written
///   leaves as soon as carrier and window allow.
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

    /// The id on the wire: odd for streams that the client opened, even for those of the server.
    pub fn id(&self) -> u32 {
        self.read.stream.id
    }

    /// Bytes that were received and not read.
    #[cfg(feature = "_testkit")]
    pub(crate) fn unread(&self) -> usize {
        self.read.stream.lock().receive.queue.len()
    }

    /// A handle of the session.
    pub fn session(&self) -> Session {
        Session { handle: self.read.handle.clone() }
    }

    /// Splits the stream into halves that can go to different tasks. Dropping the write half closes
    /// its direction as `shutdown` does; dropping the read half discards what arrives.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (OwnedReadHalf(self.read), OwnedWriteHalf(self.write))
    }

    /// Drops the stream together with what was written and has not left. A peer that runs this crate reads
    /// what has arrived, and then [`Error::Reset`](crate::Error::Reset); others see FIN, as after an orderly
    /// end.
    pub fn abort(self) {
        self.write.abort();
    }

    /// Reads the bytes that have arrived, without a copy; empty at the end of the stream.
    ///
    /// They may be a piece of a buffer of 64 KiB that the carrier was read into, which they keep in
    /// memory as a whole: copy what is to be kept for long.
    ///
    /// # Errors
    ///
    /// The reason for which the session has ended, once all that has arrived was read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no byte is lost.
    pub async fn read_chunk(&mut self) -> io::Result<Bytes> {
        self.read.read_chunk().await
    }

    /// Writes a chunk without copying it, and leaves it empty; waits while it exceeds what is left of
    /// [`Config::send_buffer`](crate::Config::send_buffer). Pieces below 1 KiB are copied; of others,
    /// what their buffer holds beside them stays in memory until they have left.
    ///
    /// # Errors
    ///
    /// As those of `poll_write`: the reason for which the session has ended; `BrokenPipe` after
    /// `shutdown`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: `chunk` is what has not been queued.
    pub async fn write_chunk(&mut self, chunk: &mut Bytes) -> io::Result<()> {
        self.write.write_chunk(chunk).await
    }

    /// Reads once from `reader` and writes that, with one copy less than a read and a write. Returns the
    /// number of bytes, 0 at the end of `reader`.
    ///
    /// Waits for capacity first, and holds no buffer while it waits.
    ///
    /// # Errors
    ///
    /// Those of `reader`, and those of `poll_write`. Nothing was written then, and nothing was read unless
    /// the stream ended during the read: what that read returned is lost. While `reader` has nothing the
    /// end of the stream is not reported.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future loses nothing that was read.
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
