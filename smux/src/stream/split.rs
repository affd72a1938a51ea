//! Owned halves of a stream.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Stream;
use super::half::{ReadSide, WriteSide};

/// The reading half of a [`Stream`], see [`Stream::into_split`]. Dropping it discards what arrives.
#[derive(Debug)]
pub struct OwnedReadHalf(pub(super) ReadSide);

/// The writing half of a [`Stream`], see [`Stream::into_split`]. Dropping it closes its direction.
#[derive(Debug)]
pub struct OwnedWriteHalf(pub(super) WriteSide);

/// The two halves given to [`OwnedReadHalf::reunite`] are not of one stream. Returns them.
#[derive(Debug, thiserror::Error)]
#[error("the halves are not of the same stream")]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl OwnedReadHalf {
    /// The id of the stream, see [`Stream::id`].
    pub fn id(&self) -> u32 {
        self.0.stream.id
    }

    /// As [`Stream::read_chunk`].
    ///
    /// # Errors
    ///
    /// As those of [`Stream::read_chunk`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no byte is lost.
    pub async fn read_chunk(&mut self) -> io::Result<Bytes> {
        self.0.read_chunk().await
    }

    /// Puts the two halves together again.
    ///
    /// # Errors
    ///
    /// Both halves, if they are of two streams.
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

    /// As [`Stream::write_chunk`].
    ///
    /// # Errors
    ///
    /// As those of [`Stream::write_chunk`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: `chunk` is what has not been queued.
    pub async fn write_chunk(&mut self, chunk: &mut Bytes) -> io::Result<()> {
        self.0.write_chunk(chunk).await
    }

    /// As [`Stream::write_from`].
    ///
    /// # Errors
    ///
    /// As those of [`Stream::write_from`]: what was read is lost if the stream ended during the read, and
    /// while `reader` has nothing the end of the stream is not reported.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future loses nothing that was read.
    pub async fn write_from<R>(&mut self, reader: &mut R) -> io::Result<usize>
    where
        R: AsyncRead + Unpin + ?Sized,
    {
        self.0.write_from(reader).await
    }

    /// Discards what was written and has not left, and resets the stream, as [`Stream::abort`]. Without
    /// effect after FIN has left.
    ///
    /// The read half reads what has arrived. A FIN of the peer that comes after the reset fails it with
    /// [`Error::Reset`](crate::Error::Reset): the peer may have discarded the rest of its answer.
    pub fn abort(self) {
        self.0.abort();
    }

    /// Whether the peer reads on after its FIN: `Some(true)` once a window update has come behind it. `None`
    /// in version 1, which has no updates, and while the version is not decided.
    ///
    /// xtaci/smux has no reset: FIN is all that it sends for a stream that was closed both ways too.
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
        self.0.poll_write(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
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
