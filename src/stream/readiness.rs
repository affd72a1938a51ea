//! Readiness (`ready`, `readable`, `writable`) and `try_read_buf`, for the stream and its halves.

use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::task::{Context, Poll};

use bytes::BufMut;
use tokio::io::{Interest, Ready};

use crate::stream::KcpStream;
use crate::stream::halves::{Reader, Writer};
use crate::stream::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};

impl KcpStream {
    /// Waits until the stream is ready for at least one operation of `interest`, and returns all
    /// that it is ready for. At the end of the peer's stream, and once the connection has ended,
    /// the stream is readable and [`READ_CLOSED`](Ready::READ_CLOSED).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if `interest` names neither reading nor writing.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn ready(&self, interest: Interest) -> Result<Ready> {
        let read = interest.is_readable().then_some(&self.read);
        let write = interest.is_writable().then(|| self.writer());
        poll_fn(|cx| poll_ready(cx, read, write)).await
    }
}

macro_rules! readable {
    ($($reader:ty: $side:ident),*) => {$(
        impl $reader {
            /// Waits until there is something to read, or nothing more will come.
            ///
            /// # Errors
            ///
            /// None; the next read returns the error of an ended connection.
            ///
            /// # Cancel safety
            ///
            /// Nothing is lost.
            pub async fn readable(&self) -> Result<()> {
                poll_fn(|cx| self.$side.poll_readable(cx)).await
            }

            /// Reads bytes that are there into the spare capacity of `buf`, without waiting, and
            /// returns their number. A buffer that grows gets at most its spare capacity, or 64
            /// bytes without any.
            ///
            /// # Errors
            ///
            /// As [`KcpStream::try_read`].
            pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> Result<usize> {
                let limit = buf.chunk_mut().len();
                self.$side.try_read_with(limit, |part| buf.put_slice(part))
            }
        }
    )*};
}

macro_rules! writable {
    ($($writer:ty),*) => {$(
        impl $writer {
            /// Waits until a write would take bytes, or fail.
            ///
            /// # Errors
            ///
            /// None; the next write returns the error.
            ///
            /// # Cancel safety
            ///
            /// Nothing is lost.
            pub async fn writable(&self) -> Result<()> {
                poll_fn(|cx| self.writer().poll_writable(cx)).await
            }
        }
    )*};
}

readable!(KcpStream: read, ReadHalf<'_>: side, OwnedReadHalf: side);
writable!(KcpStream, WriteHalf<'_>, OwnedWriteHalf);

impl KcpStream {
    /// Polls until there is something to read, as [`readable`](Self::readable).
    ///
    /// # Errors
    ///
    /// None, as [`readable`](Self::readable).
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.read.poll_readable(cx)
    }

    /// Polls until a write would take bytes, as [`writable`](Self::writable).
    ///
    /// # Errors
    ///
    /// None, as [`writable`](Self::writable).
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.writer().poll_writable(cx)
    }
}

macro_rules! ready_halves {
    ($($reader:ty, $writer:ty);*) => {$(
        impl $reader {
            /// Waits until the half is ready, as [`KcpStream::ready`].
            ///
            /// # Errors
            ///
            /// [`InvalidInput`](ErrorKind::InvalidInput) if `interest` does not name reading.
            ///
            /// # Cancel safety
            ///
            /// Nothing is lost.
            pub async fn ready(&self, interest: Interest) -> Result<Ready> {
                let side: &Reader = &self.side;
                let read = interest.is_readable().then_some(side);
                poll_fn(|cx| poll_ready(cx, read, None)).await
            }
        }

        impl $writer {
            /// Waits until the half is ready, as [`KcpStream::ready`].
            ///
            /// # Errors
            ///
            /// [`InvalidInput`](ErrorKind::InvalidInput) if `interest` does not name writing.
            ///
            /// # Cancel safety
            ///
            /// Nothing is lost.
            pub async fn ready(&self, interest: Interest) -> Result<Ready> {
                let write = interest.is_writable().then(|| self.writer());
                poll_fn(|cx| poll_ready(cx, None, write)).await
            }
        }
    )*};
}

ready_halves!(OwnedReadHalf, OwnedWriteHalf; ReadHalf<'_>, WriteHalf<'_>);

/// Ready with all sides that are ready, once at least one is.
fn poll_ready(
    cx: &mut Context<'_>,
    read: Option<&Reader>,
    write: Option<Writer<'_>>,
) -> Poll<Result<Ready>> {
    if read.is_none() && write.is_none() {
        let text = "nothing here becomes ready for this interest: readable or writable is allowed";
        return Poll::Ready(Err(Error::new(ErrorKind::InvalidInput, text)));
    }
    let mut ready = Ready::EMPTY;
    if let Some(side) = read
        && let Poll::Ready(open) = side.poll_open(cx)
    {
        ready |= Ready::READABLE;
        if !open {
            ready |= Ready::READ_CLOSED;
        }
    }
    if let Some(side) = write
        && side.poll_writable(cx).is_ready()
    {
        ready |= Ready::WRITABLE;
    }
    if ready.is_empty() { Poll::Pending } else { Poll::Ready(Ok(ready)) }
}
