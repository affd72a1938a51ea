//! [`KcpStream`]: one connection, in the shape of `tokio::net::TcpStream`.

pub(crate) mod datagram;
pub(crate) mod halves;
pub(crate) mod paths;
mod readiness;
pub(crate) mod rw;

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut, Result};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

use crate::config::{
    AckPolicy, CongestionControl, KeepaliveInterval, SEGMENT_HEADER, Setting, Timing, WritePolicy,
    check_duplicates, check_mtu, check_timeout, check_windows,
};
use crate::error::{ConfigError, ConnectionError};
use crate::shared::connection::{Handle, Shared};
use crate::shared::requests::RequestQueue;
use crate::shared::waiters::Wait;
use crate::stats::ConnectionStats;
use crate::stream::rw::{Reader, Writer};
use crate::sys::source_addr;
use crate::util::sync::{Arc, Ordering};

/// A KCP connection with one peer: an ordered, reliable byte stream, or messages in
/// [`Mode::Message`](crate::Mode::Message).
///
/// It reads and writes through [`AsyncRead`] and [`AsyncWrite`], with the methods of
/// `AsyncReadExt` and `AsyncWriteExt`; the halves are [`AsyncBufRead`] as well:
///
/// * `write` takes the bytes that fit into the send buffer, at least one, and waits while it is full.
///   Chunks below 64 bytes are charged 64. In message mode each write starts a new segment; only
///   [`send_message`](Self::send_message) keeps the boundaries of larger messages.
/// * `flush` hands written data to the protocol at once. It does not wait for the peer.
/// * `shutdown` closes the write side (FIN) and is `Ok` once the peer has acknowledged every byte. It
///   fails when nothing arrives from the peer for [`Config::linger`](crate::Config::linger), or when the
///   connection ends, unless the peer has acknowledged and read everything, ended its stream, and gone.
///   Reading goes on; later writes fail with [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).
/// * `shutdown` does not wait for a peer that waits for this side to read: when both windows are closed
///   and nothing was acknowledged for a second, it is `Ok`, and the rest is delivered once this side
///   reads. [`wait_idle`](crate::Endpoint::wait_idle) waits for that. Dropping such a stream unread
///   resets it, as with TCP.
/// * `read` returns buffered bytes first, then the error of an ended connection. In message mode one read
///   returns bytes of one message and leaves its rest for the next read.
///
/// The end of a connection is a [`ConnectionError`]. Pending and later calls report the same one.
///
/// Any number of tasks may wait in [`readable`](Self::readable), [`writable`](Self::writable),
/// [`ready`](Self::ready) and [`peek`](Self::peek): all are woken. `poll_*` methods, `read` and `write`
/// wake the last task per direction.
///
/// Dropping the stream, or both owned halves, still delivers written data, until nothing more is
/// acknowledged for [`Config::linger`](crate::Config::linger). [`abort`](Self::abort) (RST) discards it.
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
    /// Requests to the stream's endpoint, for `KcpStream::endpoint`.
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
    /// None; the signature matches `TcpStream`.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        Ok(self.handle().peer())
    }

    /// Returns the address that datagrams to the peer leave from. If the socket is bound to all
    /// addresses, this is the address the peer sent to (accepted streams), or the one the system's routes
    /// choose now.
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
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
    /// The future borrows nothing: it can wait in the same `select!` as a read, or in another task. It
    /// may outlive the stream, and then waits until written data is delivered or given up. The end of the
    /// peer's stream alone does not complete it.
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
    /// Streams from a waiting `connect` are established already. With
    /// [`Config::early_data`](crate::Config::early_data) the first answer establishes the stream; for
    /// accepted streams, the answer to a ping.
    ///
    /// # Errors
    ///
    /// The [`ConnectionError`] if the connection ends first.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. If several tasks wait, the last one is woken.
    pub async fn established(&self) -> Result<()> {
        poll_fn(|cx| self.handle().established.poll(cx.waker())).await
    }

    /// Ends the connection at once (RFC 9293 3.10.5). Unacknowledged data may be lost. A peer that
    /// supports CONTROL segments gets an RST; others are not notified.
    pub fn abort(self) {
        self.handle().send.abort();
    }
}

/// Reading beyond `AsyncRead`.
impl KcpStream {
    /// Waits for bytes and copies them without consuming them. Returns their number.
    ///
    /// In message mode it copies from one message.
    ///
    /// # Errors
    ///
    /// The [`ConnectionError`] after the bytes that arrived before it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is consumed.
    pub async fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        let mut buf = ReadBuf::new(buf);
        let mut waiter = self.handle().recv.waiter();
        poll_fn(|cx| self.read.poll_peek(cx, &mut buf, Some(&mut waiter))).await
    }

    /// Polls for bytes and copies them without consuming them, as [`peek`](Self::peek).
    ///
    /// # Errors
    ///
    /// As [`peek`](Self::peek).
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<usize>> {
        self.read.poll_peek(cx, buf, None)
    }

    /// Reads available bytes, without waiting. Returns their number.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if there are none; the [`ConnectionError`] after
    /// the bytes that arrived before it.
    pub fn try_read(&self, buf: &mut [u8]) -> Result<usize> {
        self.read.try_read(buf)
    }

    /// Reads available bytes into several buffers, in order, without waiting. Returns their number.
    ///
    /// # Errors
    ///
    /// As [`try_read`](Self::try_read).
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
        self.read.try_read_vectored(bufs)
    }

    /// Waits for bytes and returns a chunk of the receive buffer without a copy: at least one byte, at
    /// most one message in message mode. The buffer is reused once all parts of it are dropped, so
    /// converting a stream's chunk into a `BytesMut` copies it.
    ///
    /// # Errors
    ///
    /// The [`ConnectionError`] after the bytes that arrived before it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is lost.
    pub async fn read_chunk(&mut self) -> Result<Bytes> {
        poll_fn(|cx| self.read.poll_chunk(cx)).await
    }

    /// Waits for a message and returns it without a copy. After partial reads it returns the rest of the
    /// message.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](std::io::ErrorKind::InvalidInput) outside
    /// [`Mode::Message`](crate::Mode::Message); the [`ConnectionError`] after the messages that
    /// arrived before it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is lost.
    pub async fn recv_message(&mut self) -> Result<Bytes> {
        poll_fn(|cx| self.read.poll_message(cx)).await
    }
}

/// Writing beyond `AsyncWrite`.
impl KcpStream {
    /// Writes the bytes that fit into the send buffer, without waiting. Returns their number.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if the send buffer is full,
    /// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) after a shutdown, the [`ConnectionError`] once the
    /// connection has ended. Nothing is written then.
    pub fn try_write(&self, buf: &[u8]) -> Result<usize> {
        self.writer().try_write(buf)
    }

    /// Writes the bytes of several buffers that fit into the send buffer, in order, without
    /// waiting. Returns their number.
    ///
    /// # Errors
    ///
    /// As [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> Result<usize> {
        self.writer().try_write_vectored(bufs)
    }

    /// Waits for capacity, reads once from `reader` and writes the bytes, at most 64 KiB. Returns their
    /// number; 0 when the reader has ended.
    ///
    /// From 16 KiB on the data leaves from the buffer it was read into, which saves a copy over a read
    /// and a write; less is copied once more. No buffer is held while `reader` has nothing. Does not
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
    /// Errors of `reader`; [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) after a shutdown; the
    /// [`ConnectionError`] once the connection has ended. Nothing is written then, and nothing is read
    /// unless the connection ended during the read. The end of the connection is not reported while
    /// `reader` has nothing.
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

    /// Waits for capacity and queues one message, which the peer receives whole.
    ///
    /// A message larger than the send buffer is taken when nothing else is queued and little data waits
    /// to be sent. Peers of this crate skip empty messages.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](std::io::ErrorKind::InvalidInput) outside
    /// [`Mode::Message`](crate::Mode::Message) or above
    /// [`max_message_size`](Self::max_message_size);
    /// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) after a shutdown; the [`ConnectionError`]
    /// once the connection has ended. Nothing is written then.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that does not complete queues nothing.
    pub async fn send_message(&mut self, message: &[u8]) -> Result<()> {
        poll_fn(|cx| self.writer().poll_send_message(cx, message)).await
    }

    /// Returns the size in bytes of the largest message that can be sent now: 255 segments, or the peer's
    /// window if it is smaller, as it is until the peer has validated our address after the first bytes.
    /// With an MTU above 1,500 it is also limited to 1,540 bytes per segment of that window, the memory
    /// of a peer of this crate. It falls with the path MTU, also between this call and the send, whose
    /// error then says so.
    #[must_use]
    pub fn max_message_size(&self) -> usize {
        self.handle().max_message.load(Ordering::Relaxed)
    }
}

/// Settings that may change during a connection. They take effect in the driver's next turn, in call
/// order.
impl KcpStream {
    /// Sets the send and the receive window, in segments. In message mode the largest window advertised
    /// so far stays the limit of received messages, since the peer may still send one of that size.
    ///
    /// # Errors
    ///
    /// When either is 0.
    #[doc(alias = "SetWindowSize")]
    pub fn set_windows(&self, send: u16, recv: u16) -> std::result::Result<(), ConfigError> {
        check_windows(send, recv)?;
        self.handle().notifier.set(Setting::Windows { send, recv });
        Ok(())
    }

    /// Sets the timing of retransmissions (kcp-go `SetNoDelay`).
    #[doc(alias = "SetNoDelay")]
    pub fn set_timing(&self, preset: Timing) {
        self.handle().notifier.set(Setting::Timing(preset));
    }

    /// Sets the congestion control, which starts afresh.
    #[doc(alias = "nc")]
    pub fn set_congestion_control(&self, control: CongestionControl) {
        self.handle().notifier.set(Setting::CongestionControl(control));
    }

    /// Sets when received data is acknowledged.
    #[doc(alias = "SetACKNoDelay")]
    pub fn set_ack_policy(&self, policy: AckPolicy) {
        self.handle().notifier.set(Setting::AckPolicy(policy));
    }

    /// Sets when written data leaves.
    #[doc(alias = "SetWriteDelay")]
    pub fn set_write_policy(&self, policy: WritePolicy) {
        self.handle().set_write_policy(policy);
    }

    /// Lowers the datagram size limit to `mtu` bytes of UDP payload, headers included. Segments in flight
    /// keep their size.
    ///
    /// # Errors
    ///
    /// When `mtu` is below 25 plus the overhead of FEC and cipher, or above the current MTU.
    #[doc(alias = "SetMtu")]
    pub fn set_mtu(&self, mtu: u16) -> std::result::Result<(), ConfigError> {
        let overhead = self.handle().overhead;
        check_mtu(mtu, overhead)?;
        // Lowered here already, so that a second call is checked against it.
        let present = self.handle().mtu.fetch_min(usize::from(mtu), Ordering::Relaxed);
        let smallest = (overhead + SEGMENT_HEADER) as u64 + 1;
        ConfigError::check("mtu (bytes)", mtu, smallest, present as u64)?;
        self.handle().notifier.set(Setting::Mtu(mtu));
        Ok(())
    }

    /// Limits the bytes sent per second, headers included; `None` for no limit.
    #[doc(alias = "SetRateLimit")]
    pub fn set_rate_limit(&self, bytes_per_second: Option<NonZeroU64>) {
        self.handle().notifier.set(Setting::RateLimit(bytes_per_second));
    }

    /// Sets the keepalive interval and idle timeout, as
    /// [`Config::keepalive`](crate::Config::keepalive) and
    /// [`Config::idle_timeout`](crate::Config::idle_timeout): 1 s to 1 day each, the interval at
    /// least 1 s shorter than the timeout. Both count from the peer's latest datagram, also from one
    /// before the call.
    ///
    /// # Errors
    ///
    /// When either is out of range, or the interval is too long for the timeout.
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn set_keepalive(
        &self,
        interval: KeepaliveInterval,
        idle_timeout: Option<Duration>,
    ) -> std::result::Result<(), ConfigError> {
        interval.validate(idle_timeout)?;
        self.handle().notifier.set(Setting::Keepalive(interval, idle_timeout));
        Ok(())
    }

    /// Sets the time without an answer after which the connection ends, as
    /// [`Config::dead_peer_timeout`](crate::Config::dead_peer_timeout): 1 s to 1 day; `None` for
    /// never.
    ///
    /// # Errors
    ///
    /// When it is out of range.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub fn set_dead_peer_timeout(
        &self,
        timeout: Option<Duration>,
    ) -> std::result::Result<(), ConfigError> {
        check_timeout("dead_peer_timeout (ms)", timeout)?;
        self.handle().notifier.set(Setting::DeadPeerTimeout(timeout));
        Ok(())
    }

    /// Sets the number of extra copies of each datagram, 0 to 8. Each copy costs the whole bandwidth once
    /// more.
    ///
    /// # Errors
    ///
    /// When it is above 8.
    #[doc(alias = "SetDUP")]
    pub fn set_duplicates(&self, duplicates: u8) -> std::result::Result<(), ConfigError> {
        check_duplicates(duplicates)?;
        self.handle().notifier.set(Setting::Duplicates(duplicates));
        Ok(())
    }

    /// Tells the connection that the network of this host has changed, such as from Wi-Fi to LTE. What was
    /// measured on the old path is forgotten: retransmission back-off, minimum RTT, congestion control. The
    /// oldest unacknowledged bytes and a ping leave at once, so that the peer learns the new address and
    /// follows, see [`Config::migration`](crate::Config::migration). Costs one or two datagrams a call.
    ///
    /// A socket that is bound to all addresses needs nothing else; one that is bound to an address that is
    /// gone needs [`Endpoint::rebind`](crate::Endpoint::rebind).
    #[doc(alias = "ResetRTO")]
    pub fn network_changed(&self) {
        self.handle().notifier.set(Setting::NetworkChanged);
    }
}

/// `TcpStream` options of a connection. `ttl` belongs to the socket, which connections share.
impl KcpStream {
    /// Returns whether written data leaves as soon as the windows allow. Default `true`, unlike TCP.
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
    pub fn nodelay(&self) -> Result<bool> {
        Ok(self.handle().options.nodelay())
    }

    /// Sets whether written data leaves as soon as the windows allow:
    /// [`WritePolicy::Immediate`], or [`WritePolicy::Delayed`] for `false`.
    ///
    /// KCP's own `nodelay` is a timing preset, see [`set_timing`](Self::set_timing).
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, nodelay: bool) -> Result<()> {
        let policy = if nodelay { WritePolicy::Immediate } else { WritePolicy::Delayed };
        self.handle().set_write_policy(policy);
        Ok(())
    }

    /// Returns the time set by [`set_linger`](Self::set_linger); `None`, the default, while
    /// [`Config::linger`](crate::Config::linger) applies.
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
    pub fn linger(&self) -> Result<Option<Duration>> {
        Ok(self.handle().options.own_linger())
    }

    /// Sets how long closing continues without progress, 0 s to 1 day in whole milliseconds; `None` for
    /// [`Config::linger`](crate::Config::linger). With zero, dropping the stream aborts it.
    ///
    /// Unlike SO_LINGER it never blocks a thread.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](std::io::ErrorKind::InvalidInput) around a
    /// [`ConfigError`] above a day.
    #[doc(alias = "SO_LINGER")]
    pub fn set_linger(&self, time: Option<Duration>) -> Result<()> {
        Ok(self.handle().set_linger(time)?)
    }

    /// Makes dropping the stream abort it: unacknowledged data may be lost, and the peer's reads and
    /// writes fail with [`ConnectionReset`](std::io::ErrorKind::ConnectionReset).
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
    pub fn set_zero_linger(&self) -> Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// Returns why the connection failed, once (SO_ERROR). Reads, writes and [`error`](Self::error) keep
    /// returning the error.
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
    pub fn take_error(&self) -> Result<Option<io::Error>> {
        Ok(self.handle().take_error().map(io::Error::from))
    }
}

impl AsRef<Self> for KcpStream {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// Waits for the end of a connection.
pub(crate) async fn closed(shared: Arc<Shared>) -> ConnectionError {
    let mut waiter = shared.end_waiter();
    poll_fn(|cx| shared.poll_ended(&mut Wait::Future(&mut waiter, cx.waker()))).await
}

/// Address that a connection's datagrams leave from.
pub(crate) fn source(shared: &Shared) -> SocketAddr {
    let (local, path) = (shared.local(), shared.path());
    path.local_addr(local.port()).unwrap_or_else(|| source_addr(local, path.peer))
}

impl fmt::Debug for KcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle().describe("KcpStream", f)
    }
}
