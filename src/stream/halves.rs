//! Split halves of a stream: borrowed by [`KcpStream::split`], owned by [`KcpStream::into_split`].
//! Also Tokio's I/O traits, for the stream and its halves.

use std::fmt;
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut, Result};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use thiserror::Error;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use crate::config::Setting;
use crate::error::ConnectionError;
use crate::fec::FecConfig;
use crate::shared::connection::{Handle, Shared};
use crate::shared::requests::RequestQueue;
use crate::stats::ConnectionStats;
use crate::stream::datagram::{Datagrams, set_fec};
use crate::stream::rw::{Reader, Writer};
use crate::stream::{KcpStream, closed, source};
use crate::util::sync::{Arc, Ordering};

impl KcpStream {
    /// Splits the stream into a read half and a write half that borrow it.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        let shared = self.handle().uncounted();
        (ReadHalf { side: &mut self.read }, WriteHalf { shared, stream: PhantomData })
    }

    /// Splits the stream into a read half and a write half for two tasks.
    ///
    /// Dropping the write half closes the write side.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let handle = self.handle().clone();
        (
            OwnedReadHalf { side: self.read, requests: self.requests },
            OwnedWriteHalf { handle, close_on_drop: true },
        )
    }
}

/// The read half of a [`KcpStream`], borrowed by [`KcpStream::split`].
///
/// ```
/// use kcpx::KcpStream;
/// use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
///
/// /// Answers each line.
/// async fn serve(mut stream: KcpStream) -> std::io::Result<()> {
///     let (read, mut write) = stream.split();
///     let mut lines = read.lines();
///     while let Some(line) = lines.next_line().await? {
///         write.write_all(format!("{} bytes\n", line.len()).as_bytes()).await?;
///     }
///     write.shutdown().await
/// }
/// ```
pub struct ReadHalf<'a> {
    pub(super) side: &'a mut Reader,
}

/// The write half of a [`KcpStream`], borrowed by [`KcpStream::split`].
///
/// `shutdown` closes the write side. Dropping the half does nothing.
///
/// ```
/// use kcpx::KcpStream;
/// use tokio::io::AsyncWriteExt;
///
/// async fn echo(mut stream: KcpStream) -> std::io::Result<()> {
///     let (mut read, mut write) = stream.split();
///     tokio::io::copy(&mut read, &mut write).await?;
///     write.shutdown().await
/// }
/// ```
pub struct WriteHalf<'a> {
    /// Not counted: a half that is in scope but no longer used must not keep a dropped stream attached.
    shared: Arc<Shared>,
    stream: PhantomData<&'a KcpStream>,
}

/// The owned read half of a [`KcpStream`], from [`KcpStream::into_split`].
///
/// Dropping it discards unread data; the connection goes on. The peer can then send at most one more
/// receive buffer and window.
///
/// ```
/// use kcpx::{KcpListener, KcpStream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = KcpListener::bind("127.0.0.1:0").await?;
/// let client = KcpStream::connect(listener.local_addr()?).await?;
/// let (server, _peer) = listener.accept().await?;
/// let (_, mut write) = server.into_split();
/// write.write_all(b"hello").await?;
/// write.shutdown().await?;
///
/// let (mut read, _write) = client.into_split();
/// let reader = tokio::spawn(async move {
///     let mut text = String::new();
///     read.read_to_string(&mut text).await.map(|_| text)
/// });
/// assert_eq!(reader.await??, "hello");
/// # Ok(())
/// # }
/// ```
pub struct OwnedReadHalf {
    pub(super) side: Reader,
    /// Requests to the stream's endpoint.
    requests: Arc<RequestQueue>,
}

/// The owned write half of a [`KcpStream`], from [`KcpStream::into_split`].
///
/// Dropping it closes the write side (FIN); written data is still delivered. See
/// [`forget`](Self::forget).
///
/// ```
/// use kcpx::{KcpStream, OwnedWriteHalf};
/// use tokio::io::AsyncWriteExt;
/// use tokio::sync::mpsc;
///
/// /// One task writes the data of several senders.
/// async fn write_all(mut write: OwnedWriteHalf, mut queue: mpsc::Receiver<Vec<u8>>) {
///     while let Some(bytes) = queue.recv().await {
///         if write.write_all(&bytes).await.is_err() {
///             return;
///         }
///     }
///     let _ = write.shutdown().await;
/// }
///
/// fn start(stream: KcpStream) -> mpsc::Sender<Vec<u8>> {
///     let (_read, write) = stream.into_split();
///     let (sender, queue) = mpsc::channel(16);
///     tokio::spawn(write_all(write, queue));
///     sender
/// }
/// ```
pub struct OwnedWriteHalf {
    handle: Handle,
    close_on_drop: bool,
}

/// The halves given to `reunite` belong to different streams. Returns them.
///
/// ```
/// use kcpx::{KcpStream, OwnedReadHalf, OwnedWriteHalf, ReuniteError};
///
/// fn join(read: OwnedReadHalf, write: OwnedWriteHalf) -> Option<KcpStream> {
///     match read.reunite(write) {
///         Ok(stream) => Some(stream),
///         Err(error) => {
///             eprintln!("{error}");
///             let ReuniteError(_read, _write) = error; // Both are still there.
///             None
///         }
///     }
/// }
/// ```
#[derive(Debug, Error)]
#[error(
    "the halves belong to different streams: read half of connection {} with {}, write half of \
     connection {} with {}",
    .0.conv(), .0.handle().peer(), .1.conv(), .1.handle().peer()
)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

/// Methods of all halves.
macro_rules! describe {
    ($($half:ty: $name:literal, $($handle:ident).+, $uncounted:ident;)*) => {$(
        impl $half {
            pub(super) fn handle(&self) -> &Shared {
                &self.$($handle).+
            }

            /// Returns the address of the peer.
            ///
            /// # Errors
            ///
            /// None, as [`KcpStream::peer_addr`].
            pub fn peer_addr(&self) -> Result<SocketAddr> {
                Ok(self.handle().peer())
            }

            /// Returns the address that datagrams to the peer leave from.
            ///
            /// # Errors
            ///
            /// None, as [`KcpStream::local_addr`].
            pub fn local_addr(&self) -> Result<SocketAddr> {
                Ok(source(self.handle()))
            }

            /// Returns the conversation id, which both ends share.
            #[must_use]
            pub fn conv(&self) -> u32 {
                self.handle().conv
            }

            /// Returns the statistics of the connection.
            #[must_use]
            pub fn stats(&self) -> ConnectionStats {
                self.handle().stats()
            }

            /// Returns why the connection ended, once it has.
            #[must_use]
            pub fn error(&self) -> Option<ConnectionError> {
                self.handle().error()
            }

            /// Waits until the connection has ended, and returns why, as [`KcpStream::closed`].
            ///
            /// # Cancel safety
            ///
            /// Cancel safe. Any number of tasks may wait.
            pub fn closed(&self) -> impl Future<Output = ConnectionError> + Send + Sync + use<> {
                closed(self.$($handle).+.$uncounted())
            }

            /// Returns a handle for unreliable datagrams.
            #[must_use]
            pub fn datagrams(&self) -> Datagrams {
                Datagrams::new(self.$($handle).+.$uncounted())
            }
        }

        impl fmt::Debug for $half {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.handle().describe($name, f)
            }
        }
    )*};
}

macro_rules! read_methods {
    ($($half:ty),*) => {$(
        impl $half {
            /// Waits for bytes and copies them without consuming them, as [`KcpStream::peek`].
            ///
            /// # Errors
            ///
            /// As [`KcpStream::peek`].
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: nothing is consumed.
            pub async fn peek(&mut self, buf: &mut [u8]) -> Result<usize> {
                let mut buf = ReadBuf::new(buf);
                let mut waiter = self.side.handle.recv.waiter();
                poll_fn(|cx| self.side.poll_peek(cx, &mut buf, Some(&mut waiter))).await
            }

            /// Polls for bytes and copies them without consuming them, as [`KcpStream::poll_peek`].
            ///
            /// # Errors
            ///
            /// As [`KcpStream::peek`].
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<Result<usize>> {
                self.side.poll_peek(cx, buf, None)
            }

            /// Reads available bytes, without waiting. Returns their number.
            ///
            /// # Errors
            ///
            /// As [`KcpStream::try_read`].
            pub fn try_read(&self, buf: &mut [u8]) -> Result<usize> {
                self.side.try_read(buf)
            }

            /// Reads available bytes into several buffers, in order, without waiting. Returns their
            /// number.
            ///
            /// # Errors
            ///
            /// As [`KcpStream::try_read`].
            pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
                self.side.try_read_vectored(bufs)
            }

            /// Waits for bytes and returns them without a copy, as [`KcpStream::read_chunk`].
            ///
            /// # Errors
            ///
            /// As [`KcpStream::read_chunk`].
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: nothing is lost.
            pub async fn read_chunk(&mut self) -> Result<Bytes> {
                poll_fn(|cx| self.side.poll_chunk(cx)).await
            }

            /// Waits for a message and returns it, as [`KcpStream::recv_message`].
            ///
            /// # Errors
            ///
            /// As [`KcpStream::recv_message`].
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: nothing is lost.
            pub async fn recv_message(&mut self) -> Result<Bytes> {
                poll_fn(|cx| self.side.poll_message(cx)).await
            }
        }
    )*};
}

macro_rules! write_methods {
    ($($half:ty),*) => {$(
        impl $half {
            pub(super) fn writer(&self) -> Writer<'_> {
                Writer::new(self.handle())
            }

            /// Writes the bytes that fit into the send buffer, without waiting. Returns their
            /// number.
            ///
            /// # Errors
            ///
            /// As [`KcpStream::try_write`].
            pub fn try_write(&self, buf: &[u8]) -> Result<usize> {
                self.writer().try_write(buf)
            }

            /// Writes the bytes of several buffers that fit into the send buffer, in order,
            /// without waiting. Returns their number.
            ///
            /// # Errors
            ///
            /// As [`KcpStream::try_write`].
            pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> Result<usize> {
                self.writer().try_write_vectored(bufs)
            }

            /// Reads once from `reader` and writes the bytes, as [`KcpStream::write_from`].
            ///
            /// # Errors
            ///
            /// As [`KcpStream::write_from`].
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: everything read is written.
            pub async fn write_from<R>(&mut self, reader: &mut R) -> Result<usize>
            where
                R: AsyncRead + Unpin + ?Sized,
            {
                poll_fn(|cx| self.writer().poll_write_from(cx, reader)).await
            }

            /// Waits for capacity and queues one message, as [`KcpStream::send_message`].
            ///
            /// # Errors
            ///
            /// As [`KcpStream::send_message`].
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: a call that does not complete queues nothing.
            pub async fn send_message(&mut self, message: &[u8]) -> Result<()> {
                poll_fn(|cx| self.writer().poll_send_message(cx, message)).await
            }

            /// Changes the FEC layout of sent data, as [`KcpStream::set_fec`].
            ///
            /// # Errors
            ///
            /// As [`KcpStream::set_fec`].
            pub fn set_fec(&self, fec: FecConfig) -> Result<()> {
                set_fec(self.handle(), fec)
            }

            /// Tells the connection that the network of this host has changed, as
            /// [`KcpStream::network_changed`].
            pub fn network_changed(&self) {
                self.handle().notifier.set(Setting::NetworkChanged);
            }

            /// Returns the size in bytes of the largest message that can be sent now.
            #[must_use]
            pub fn max_message_size(&self) -> usize {
                self.handle().max_message.load(Ordering::Relaxed)
            }
        }
    )*};
}

describe!(
    ReadHalf<'_>: "ReadHalf", side.handle, uncounted;
    WriteHalf<'_>: "WriteHalf", shared, clone;
    OwnedReadHalf: "OwnedReadHalf", side.handle, uncounted;
    OwnedWriteHalf: "OwnedWriteHalf", handle, uncounted;
);
read_methods!(ReadHalf<'_>, OwnedReadHalf);
write_methods!(WriteHalf<'_>, OwnedWriteHalf);

impl OwnedReadHalf {
    /// Joins the two halves of a stream.
    ///
    /// # Errors
    ///
    /// Both halves, if they belong to different streams.
    pub fn reunite(self, write: OwnedWriteHalf) -> std::result::Result<KcpStream, ReuniteError> {
        if !self.side.handle.is_same(&write.handle) {
            return Err(ReuniteError(self, write));
        }
        write.forget();
        Ok(KcpStream { read: self.side, requests: self.requests })
    }
}

impl OwnedWriteHalf {
    /// Joins the two halves of a stream.
    ///
    /// # Errors
    ///
    /// Both halves, if they belong to different streams.
    pub fn reunite(self, read: OwnedReadHalf) -> std::result::Result<KcpStream, ReuniteError> {
        read.reunite(self)
    }

    /// Drops the half without closing the write side. If the other half is gone too, this drops the
    /// connection, see [`KcpStream`].
    pub fn forget(mut self) {
        self.close_on_drop = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.close_on_drop {
            self.handle.send.close();
        }
    }
}

macro_rules! impl_read {
    ($($reader:ty: $side:ident),*) => {$(
        impl AsyncRead for $reader {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<Result<()>> {
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
            ) -> Poll<Result<&[u8]>> {
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
            ) -> Poll<Result<usize>> {
                self.writer().poll_write(cx, buf)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<Result<usize>> {
                self.writer().poll_write_vectored(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            /// Hands written data to the protocol, without waiting for acknowledgements.
            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
                Poll::Ready(self.handle().send.flush())
            }

            /// Closes the write side and waits until the peer has acknowledged every byte, or waits for
            /// this side to read.
            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
                self.handle().send.poll_shutdown(cx.waker())
            }
        }
    )*};
}

impl_read!(KcpStream: read, ReadHalf<'_>: side, OwnedReadHalf: side);
// Not for the stream: `AsyncBufReadExt::split` would shadow its own `split`.
impl_buf_read!(ReadHalf<'_>, OwnedReadHalf);
impl_write!(KcpStream, WriteHalf<'_>, OwnedWriteHalf);
