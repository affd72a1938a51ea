//! [`KcpStream`]: one connection, in the shape of `tokio::net::TcpStream`.

pub(crate) mod datagram;
pub(crate) mod halves;
mod io;
mod options;
mod readiness;
pub(crate) mod split;

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut, Result};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

use crate::config::{
    AckPolicy, KeepaliveInterval, SEGMENT_HEADER, Setting, Timing, WritePolicy, check_duplicates,
    check_mtu, check_timeout, check_windows,
};
use crate::error::{ConfigError, ConnectionError};
use crate::shared::connection::{Handle, Shared};
use crate::shared::requests::RequestQueue;
use crate::shared::waiters::Wait;
use crate::stats::ConnectionStats;
use crate::stream::halves::{Reader, Writer};
use crate::sys::source_addr;
use crate::util::sync::{Arc, Ordering};

/// A KCP connection with one peer: an ordered, reliable byte stream, or messages in
/// [`Mode::Message`](crate::Mode::Message).
///
/// It reads and writes through [`AsyncRead`] and [`AsyncWrite`], with the methods of
/// `AsyncReadExt` and `AsyncWriteExt`; the halves are [`AsyncBufRead`] as well:
///
/// * `write` takes as many bytes as fit into the send buffer, at least one, and waits while it is
///   full. A chunk below 64 bytes counts as 64. In message mode each write starts a segment of
///   its own; only [`send_message`](Self::send_message) keeps the boundaries of larger ones.
/// * `flush` hands what was written to the protocol, at once. It does not wait for the peer.
/// * `shutdown` closes the write side (FIN) and is `Ok` when the peer has acknowledged every byte;
///   it fails when nothing was received from the peer for
///   [`Config::linger`](crate::Config::linger), or the connection ends. It is `Ok` too if the peer has
///   acknowledged and read everything, has ended its stream, and is gone. Reading goes on. Writing
///   then fails with [`BrokenPipe`](std::io::ErrorKind::BrokenPipe). One case does not wait for the
///   peer: if that takes no more because it waits for this side to read (both windows are closed,
///   and nothing was acknowledged for a second), `shutdown` is `Ok` and the rest is delivered once
///   this side reads; [`wait_idle`](crate::Endpoint::wait_idle) waits for it. A drop without reading
///   resets such a connection, as with TCP.
/// * `read` returns buffered bytes first and the error of an ended connection after them. In
///   message mode one read serves from one message and leaves the rest of it for the next one.
///
/// The end of a connection is an error, see [`ConnectionError`]. Pending and later calls report
/// the same one.
///
/// Any number of tasks may wait in [`readable`](Self::readable), [`writable`](Self::writable),
/// [`ready`](Self::ready) and [`peek`](Self::peek): all are woken. Of `poll_*` methods, and of what
/// builds on them (`read`, `write`), the last task that asked in a direction is woken.
///
/// Dropping the stream, or both of its owned halves, still delivers what was written, until
/// nothing more is acknowledged for [`Config::linger`](crate::Config::linger).
/// [`abort`](Self::abort) (RST) delivers nothing.
///
/// ```
/// use kcpx::{KcpListener, KcpStream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = KcpListener::bind("127.0.0.1:0").await?;
/// let mut client = KcpStream::connect(listener.local_addr()?).await?;
/// let (mut server, _peer) = listener.accept().await?;
///
/// client.write_all(b"hello").await?;
/// client.shutdown().await?; // Ok: the peer has every byte.
///
/// let mut text = String::new();
/// server.read_to_string(&mut text).await?;
/// assert_eq!(text, "hello");
/// # Ok(())
/// # }
/// ```
///
/// [`AsyncRead`]: tokio::io::AsyncRead
/// [`AsyncBufRead`]: tokio::io::AsyncBufRead
/// [`AsyncWrite`]: tokio::io::AsyncWrite
pub struct KcpStream {
    pub(crate) read: Reader,
    /// Requests to the endpoint that carries the stream, for `KcpStream::endpoint`.
    pub(crate) requests: Arc<RequestQueue>,
}

impl KcpStream {
    pub(crate) fn new(handle: Handle, requests: Arc<RequestQueue>) -> Self {
        Self { read: Reader::new(handle), requests }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.read.handle
    }

    pub(crate) fn writer(&self) -> Writer<'_> {
        Writer::new(self.handle())
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    ///
    /// None; the signature is that of `TcpStream`.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        Ok(self.handle().peer())
    }

    /// Returns the address that datagrams to the peer leave from. Where the socket is bound to all
    /// addresses, that of an accepted stream is the one that the peer has sent to, and otherwise the
    /// one that the system's routes choose now.
    ///
    /// # Errors
    ///
    /// None; the signature is that of `TcpStream`.
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

    /// Waits until the connection has ended, and returns why.
    ///
    /// The future borrows nothing: it can wait in the same `select!` as a read, or in a task of its own.
    /// It also outlives the stream, and then waits until what was written is delivered or given up. It
    /// sees the end of both directions, not that of the peer's stream alone: that is the end of reading.
    ///
    /// ```
    /// use kcpx::KcpStream;
    /// use tokio::io::AsyncReadExt;
    ///
    /// async fn watch(mut stream: KcpStream) -> std::io::Result<()> {
    ///     let closed = stream.closed();
    ///     tokio::spawn(async move { println!("the connection has ended: {}", closed.await) });
    ///     let mut buffer = [0; 1_024];
    ///     while stream.read(&mut buffer).await? > 0 {}
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. Any number of tasks may wait.
    pub fn closed(&self) -> impl Future<Output = ConnectionError> + Send + Sync + use<> {
        closed(self.handle().uncounted())
    }

    /// Waits until the peer has answered.
    ///
    /// After a `connect` that waits it has; see [`Config::early_data`](crate::Config::early_data) for
    /// one that does not, and for accepted streams it is the pong of a ping.
    ///
    /// # Errors
    ///
    /// The [`ConnectionError`] if the connection ends first.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost. When several tasks wait, the last one that asked is woken.
    pub async fn established(&self) -> Result<()> {
        poll_fn(|cx| self.handle().poll_established(cx.waker())).await
    }

    /// Ends the connection at once (RFC 9293 3.10.5). What was written and not acknowledged may be
    /// lost. A peer that supports CONTROL segments gets an RST; others are not notified.
    pub fn abort(self) {
        self.handle().abort();
    }
}

/// Reading beyond `AsyncRead`.
impl KcpStream {
    /// Waits for bytes and copies them without taking them. Returns their number.
    ///
    /// In message mode it copies from one message, and returns 0 if that is empty.
    ///
    /// # Errors
    ///
    /// The [`ConnectionError`] after the bytes that arrived before it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        let mut buf = ReadBuf::new(buf);
        let mut waiter = self.handle().read_waiter();
        poll_fn(|cx| self.read.poll_peek(cx, &mut buf, Some(&mut waiter))).await
    }

    /// Polls for bytes and copies them without taking them, as [`peek`](Self::peek).
    ///
    /// # Errors
    ///
    /// As [`peek`](Self::peek).
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<usize>> {
        self.read.poll_peek(cx, buf, None)
    }

    /// Reads bytes that are there, without waiting. Returns their number.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if there are none; the [`ConnectionError`]
    /// after the bytes that arrived before it.
    pub fn try_read(&self, buf: &mut [u8]) -> Result<usize> {
        self.read.try_read(buf)
    }

    /// Reads bytes that are there into several buffers, in order, without waiting. Returns their
    /// number.
    ///
    /// # Errors
    ///
    /// As [`try_read`](Self::try_read).
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
        self.read.try_read_vectored(bufs)
    }

    /// Waits for bytes and returns them as they lie in the receive buffer, without a copy: at
    /// least one byte, at most one message in message mode. The buffer is reused once all parts of
    /// it are dropped, so a `BytesMut` of a stream's chunk can only be had by copying.
    ///
    /// # Errors
    ///
    /// The [`ConnectionError`] after the bytes that arrived before it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn read_chunk(&mut self) -> Result<Bytes> {
        poll_fn(|cx| self.read.poll_chunk(cx)).await
    }

    /// Waits for a message and returns it, without a copy. After reads that took a part of a
    /// message it returns the rest of that.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](std::io::ErrorKind::InvalidInput) outside
    /// [`Mode::Message`](crate::Mode::Message); the [`ConnectionError`] after the messages that
    /// arrived before it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn recv_message(&mut self) -> Result<Bytes> {
        poll_fn(|cx| self.read.poll_message(cx)).await
    }
}

/// Writing beyond `AsyncWrite`.
impl KcpStream {
    /// Writes as many bytes as fit into the send buffer, without waiting. Returns their number.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if the send buffer is full,
    /// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) after a shutdown, the [`ConnectionError`]
    /// once the connection has ended. Then nothing was written.
    pub fn try_write(&self, buf: &[u8]) -> Result<usize> {
        self.writer().try_write(buf)
    }

    /// Writes as many bytes of several buffers as fit into the send buffer, in order, without
    /// waiting. Returns their number.
    ///
    /// # Errors
    ///
    /// As [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> Result<usize> {
        self.writer().try_write_vectored(bufs)
    }

    /// Waits for capacity, reads once from `reader` and writes what that read returned, at most 64 KiB.
    /// Returns the number of bytes; 0 when the reader has ended.
    ///
    /// From 16 KiB on the bytes leave from the buffer that they were read into, which saves one copy over a
    /// read and a write; fewer are copied once more. No buffer is held while `reader` has nothing. Does not
    /// flush.
    ///
    /// ```
    /// use kcpx::KcpStream;
    /// use tokio::io::AsyncWriteExt;
    /// use tokio::net::TcpStream;
    ///
    /// /// Sends all that comes from a TCP connection.
    /// async fn upload(mut tcp: TcpStream, mut kcp: KcpStream) -> std::io::Result<()> {
    ///     while kcp.write_from(&mut tcp).await? > 0 {}
    ///     kcp.shutdown().await
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `reader`; [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) after a shutdown; the
    /// [`ConnectionError`] once the connection has ended. Nothing was written then, and nothing was read
    /// unless the connection ended during the read. While `reader` has nothing the end of the connection
    /// is not reported.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing that was read.
    pub async fn write_from<R>(&mut self, reader: &mut R) -> Result<usize>
    where
        R: AsyncRead + Unpin + ?Sized,
    {
        poll_fn(|cx| self.writer().poll_write_from(cx, reader)).await
    }

    /// Waits for capacity and writes one message, which the peer receives whole. Returns when it
    /// is queued.
    ///
    /// A message larger than the send buffer is taken when nothing else is queued and little waits to be
    /// sent.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](std::io::ErrorKind::InvalidInput) outside
    /// [`Mode::Message`](crate::Mode::Message) or above
    /// [`max_message_size`](Self::max_message_size);
    /// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) after a shutdown; the [`ConnectionError`]
    /// once the connection has ended. Then nothing was written.
    ///
    /// # Cancel safety
    ///
    /// The message is queued whole in the call that completes, or not at all.
    pub async fn send_message(&mut self, message: &[u8]) -> Result<()> {
        poll_fn(|cx| self.writer().poll_send_message(cx, message)).await
    }

    /// Returns the largest message in bytes that can be sent now: 255 segments, or the peer's window if
    /// that is smaller, as it is until the peer is sure of our address (after the first bytes); with an MTU
    /// above 1,500 no more than 1,540 bytes for each segment of that window, the memory that a peer of this
    /// crate has. It falls with the MTU of the path, also between this call and the send; the error of that
    /// says so.
    #[must_use]
    pub fn max_message_size(&self) -> usize {
        self.handle().max_message.load(Ordering::Relaxed)
    }
}

/// Settings that may change while the connection runs. They take effect in the next turn of the
/// driver, in the order of the calls.
impl KcpStream {
    /// Sets the send and the receive window, in segments. In message mode the largest receive window that was
    /// advertised stays the limit of a message: the peer may still send one of as many segments.
    ///
    /// # Errors
    ///
    /// When one is 0.
    #[doc(alias = "SetWindowSize")]
    pub fn set_windows(&self, send: u16, recv: u16) -> std::result::Result<(), ConfigError> {
        check_windows(send, recv)?;
        self.handle().set(Setting::Windows { send, recv });
        Ok(())
    }

    /// Sets the timing preset (kcp-go `SetNoDelay`).
    #[doc(alias = "SetNoDelay")]
    pub fn set_timing(&self, preset: Timing) {
        self.handle().set(Setting::Timing(preset));
    }

    /// Sets when received data is acknowledged.
    #[doc(alias = "SetACKNoDelay")]
    pub fn set_ack_policy(&self, policy: AckPolicy) {
        self.handle().set(Setting::AckPolicy(policy));
    }

    /// Sets when written data leaves.
    #[doc(alias = "SetWriteDelay")]
    pub fn set_write_policy(&self, policy: WritePolicy) {
        self.handle().set_write_policy(policy);
    }

    /// Lowers the largest datagram to `mtu` bytes of UDP payload, all headers included. Segments
    /// in flight keep their size.
    ///
    /// # Errors
    ///
    /// When `mtu` is below 25 plus the overhead of FEC and the cipher, or above the current MTU.
    #[doc(alias = "SetMtu")]
    pub fn set_mtu(&self, mtu: u16) -> std::result::Result<(), ConfigError> {
        let overhead = self.handle().overhead;
        check_mtu(mtu, overhead)?;
        // Lowered here already: a second call before the driver's next turn is checked against it.
        let present = self.handle().mtu.fetch_min(usize::from(mtu), Ordering::Relaxed);
        let smallest = (overhead + SEGMENT_HEADER) as u64 + 1;
        ConfigError::check("mtu (bytes)", mtu, smallest, present as u64)?;
        self.handle().set(Setting::Mtu(mtu));
        Ok(())
    }

    /// Sets how many bytes per second may leave, headers included; `None` for no limit.
    #[doc(alias = "SetRateLimit")]
    pub fn set_rate_limit(&self, bytes_per_second: Option<NonZeroU64>) {
        self.handle().set(Setting::RateLimit(bytes_per_second));
    }

    /// Sets when an idle connection is pinged and when it ends, as
    /// [`KcpConfig::keepalive`](crate::KcpConfig::keepalive) and
    /// [`KcpConfig::idle_timeout`](crate::KcpConfig::idle_timeout): 1 s to 1 day each, with the interval at
    /// least 1 s shorter than the timeout. Both count from the latest datagram of the peer, also from one
    /// before the call.
    ///
    /// # Errors
    ///
    /// When one is outside its range, or the interval leaves too little time.
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn set_keepalive(
        &self,
        interval: KeepaliveInterval,
        idle_timeout: Option<Duration>,
    ) -> std::result::Result<(), ConfigError> {
        interval.validate(idle_timeout)?;
        self.handle().set(Setting::Keepalive(interval, idle_timeout));
        Ok(())
    }

    /// Sets after which time without an answer the connection ends, as
    /// [`KcpConfig::dead_peer_timeout`](crate::KcpConfig::dead_peer_timeout): 1 s to 1 day; `None` for
    /// never.
    ///
    /// # Errors
    ///
    /// When it is outside that.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub fn set_dead_peer_timeout(
        &self,
        timeout: Option<Duration>,
    ) -> std::result::Result<(), ConfigError> {
        check_timeout("dead_peer_timeout (ms)", timeout)?;
        self.handle().set(Setting::DeadPeerTimeout(timeout));
        Ok(())
    }

    /// Sets how many extra copies of each datagram leave, 0 to 8. Each costs the whole bandwidth
    /// once more.
    ///
    /// # Errors
    ///
    /// When it is above 8.
    #[doc(alias = "SetDUP")]
    pub fn set_duplicates(&self, duplicates: u8) -> std::result::Result<(), ConfigError> {
        check_duplicates(duplicates)?;
        self.handle().set(Setting::Duplicates(duplicates));
        Ok(())
    }
}

/// Waits for the end of a connection.
pub(crate) async fn closed(shared: Arc<Shared>) -> ConnectionError {
    let mut waiter = shared.end_waiter();
    poll_fn(|cx| shared.poll_ended(&mut Wait::Future(&mut waiter, cx.waker()))).await
}

/// Address that datagrams of a connection leave from.
pub(crate) fn source(shared: &Shared) -> SocketAddr {
    let (local, path) = (shared.local(), shared.path());
    path.local_addr(local.port()).unwrap_or_else(|| source_addr(local, path.peer))
}

impl fmt::Debug for KcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle().describe("KcpStream", f)
    }
}
