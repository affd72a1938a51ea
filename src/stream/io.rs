//! Tokio's I/O traits for the stream and its halves.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::KcpStream;
use crate::stream::halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};

macro_rules! impl_read {
    ($($reader:ty: $side:ident),*) => {$(
        impl AsyncRead for $reader {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.get_mut().$side.poll_read(cx, buf)
            }
        }
    )*};
}

macro_rules! impl_buf_read {
    ($($half:ty),*) => {$(
        impl AsyncBufRead for $half {
            fn poll_fill_buf(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<&[u8]>> {
                self.get_mut().side.poll_fill_buf(cx)
            }

            fn consume(self: Pin<&mut Self>, count: usize) {
                self.get_mut().side.consume(count);
            }
        }
    )*};
}

macro_rules! impl_write {
    ($($writer:ty),*) => {$(
        impl AsyncWrite for $writer {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.writer().poll_write(cx, buf)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.writer().poll_write_vectored(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            /// Hands written data to the protocol, without waiting for acknowledgements.
            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.handle().send.flush())
            }

            /// Closes the write side and waits until the peer has acknowledged every byte, or waits for
            /// this side to read.
            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.handle().send.poll_shutdown(cx.waker())
            }
        }
    )*};
}

impl_read!(KcpStream: read, ReadHalf<'_>: side, OwnedReadHalf: side);
// Not for the stream: `AsyncBufReadExt::split` would shadow its own `split`.
impl_buf_read!(ReadHalf<'_>, OwnedReadHalf);
impl_write!(KcpStream, WriteHalf<'_>, OwnedWriteHalf);
