use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Stream;
use super::half::{ReadSide, WriteSide};

/// The reading half of a [`Stream`], see [`Stream::into_split`]. Dropping it discards received
/// bytes.
#[derive(Debug)]
pub struct OwnedReadHalf(pub(super) ReadSide);

/// The writing half of a [`Stream`], see [`Stream::into_split`]. Dropping it closes its direction.
#[derive(Debug)]
pub struct OwnedWriteHalf(pub(super) WriteSide);

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
    /// then fail with [`Error::Reset`](crate::Error::Reset): the peer may have discarded the rest
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
