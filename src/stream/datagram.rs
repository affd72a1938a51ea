//! [`Datagrams`]: unreliable datagrams of a connection (kcp-go's out-of-band packets, QUIC DATAGRAM).
//! Also `set_fec`.

use std::fmt;
use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::KcpStream;
use crate::config::Setting;
use crate::fec::{self, FecConfig, oob};
use crate::shared::connection::Shared;
use crate::shared::datagrams::DatagramSupport;
use crate::shared::waiters::{Registration, Wait, WaitQueue};
use crate::util::sync::{Arc, Ordering};
use crate::util::task::cooperate;

/// Unreliable datagrams beside a stream, from [`KcpStream::datagrams`] or a half of it.
///
/// Handles are cheap to clone and borrow nothing: one can wait in `recv` in the same `select!` as a read,
/// or in another task. Each datagram goes to one waiting handle. A handle does not keep the connection
/// open: keep the stream, or one of its halves, while datagrams are in use.
///
/// Datagrams are neither retransmitted nor ordered. The cipher encrypts them like all data. Without a
/// cipher, a reflected datagram looks like one from the peer.
///
/// Peers of this crate take datagrams without any setting. The first handle asks the peer, so that
/// datagrams wait for its answer: one round trip after the connection opens, without loss. For other
/// peers, or without [`close_notify`](crate::Config::close_notify) on this side, the sender needs
/// [`Redundancy::Fec`](crate::Redundancy::Fec); otherwise `send` fails and says so. kcp-go supports
/// datagrams since 2026. Older versions treat them as malformed segments, and an old server may end the
/// connection when bytes 0 to 3 of the payload are zero.
///
/// With FEC, datagrams do not wait. They are lost if they arrive before the stream's first segment, or,
/// sent by the side that opened the connection, before the peer has validated its address: one round trip
/// later ([`established`](KcpStream::established)).
///
/// ```
/// use kcpx::{KcpListener, KcpStream};
/// use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = KcpListener::bind("127.0.0.1:0").await?;
/// let mut client = KcpStream::connect(listener.local_addr()?).await?;
/// let (server, _peer) = listener.accept().await?;
///
/// client.datagrams().send(b"position 1 2")?; // May be lost.
/// client.write_all(b"open the door\n").await?; // Arrives.
///
/// let datagrams = server.datagrams();
/// let mut lines = BufReader::new(server).lines();
/// for _ in 0..2 {
///     tokio::select! {
///         line = lines.next_line() => assert_eq!(line?.unwrap(), "open the door"),
///         datagram = datagrams.recv() => assert_eq!(datagram?, "position 1 2"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "DATAGRAM")]
#[doc(alias = "SendOOB")]
pub struct Datagrams {
    shared: Arc<Shared>,
    /// Registration of the task in `poll_recv`.
    registration: Registration,
}

impl Datagrams {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.datagrams.start();
        Self { shared, registration: Registration::default() }
    }

    /// Queues a datagram. It leaves in the driver's next turn, alternating with datagrams of the stream;
    /// without FEC, it first waits until the peer is known to take it.
    ///
    /// Never waits. At most 256 KiB are queued; beyond it the oldest datagram is dropped and counted in
    /// [`OutOfBandStats::dropped`](crate::stats::OutOfBandStats::dropped). Dropping the stream discards the
    /// queue. [`rate_limit`](crate::Config::rate_limit) applies to datagrams, congestion control does not.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) once the peer is known to take none;
    /// [`InvalidInput`](ErrorKind::InvalidInput) above [`max_size`](Self::max_size);
    /// [`NotConnected`](ErrorKind::NotConnected) once the stream is dropped; the
    /// [`ConnectionError`](crate::ConnectionError) once the connection has ended.
    pub fn send(&self, datagram: &[u8]) -> Result<()> {
        let (size, max) = (datagram.len(), largest(&self.shared));
        if size > max {
            let text = format!("the datagram has {size} bytes, at most {max} fit into the MTU");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        self.shared.datagrams.send(Bytes::copy_from_slice(datagram))
    }

    /// Waits for a datagram and returns it.
    ///
    /// At most 256 KiB of received datagrams are queued, 16 KiB before the first handle; beyond it the
    /// oldest is dropped. Any number of tasks may wait.
    ///
    /// # Errors
    ///
    /// The [`ConnectionError`](crate::ConnectionError) once the connection has ended and the queue is
    /// empty; [`NotConnected`](ErrorKind::NotConnected) once the stream is dropped. The end of the peer's
    /// stream does not end datagrams.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no datagram is lost.
    pub async fn recv(&self) -> Result<Bytes> {
        let mut waiter = self.shared.datagrams.waiter();
        poll_fn(|cx| poll(&self.shared, cx, &mut waiter)).await
    }

    /// Polls for a datagram, as [`recv`](Self::recv). If several tasks poll one handle,
    /// the last one is woken; clones wait independently.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes>> {
        poll(&self.shared, cx, &mut self.registration)
    }

    /// Returns a received datagram, without waiting.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](ErrorKind::WouldBlock) if there is none; otherwise as [`recv`](Self::recv).
    pub fn try_recv(&self) -> Result<Bytes> {
        match self.shared.datagrams.poll_recv(&mut Wait::No) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Returns the size in bytes of the largest datagram that can be sent now; `None` once the peer is
    /// known to take none. It falls with the path MTU.
    #[must_use]
    pub fn max_size(&self) -> Option<usize> {
        let is_supported = self.shared.datagrams.support() != DatagramSupport::Unsupported;
        is_supported.then(|| largest(&self.shared))
    }
}

impl Clone for Datagrams {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), registration: Registration::default() }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        drop(self.shared.datagrams.cancel(&self.registration));
    }
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.describe("Datagrams", f)
    }
}

fn poll(
    shared: &Shared,
    cx: &mut Context<'_>,
    registration: &mut Registration,
) -> Poll<Result<Bytes>> {
    cooperate(cx, |cx| shared.datagrams.poll_recv(&mut Wait::Future(registration, cx.waker())))
}

/// Size of the largest datagram that fits into the MTU.
fn largest(shared: &Shared) -> usize {
    let fec_header = if shared.framed { 0 } else { fec::HEADER_LEN };
    let overhead = shared.overhead + fec_header + oob::CONV_LEN;
    shared.mtu.load(Ordering::Relaxed).saturating_sub(overhead)
}

impl KcpStream {
    /// Returns a handle to the unreliable datagrams beside the stream.
    #[must_use]
    pub fn datagrams(&self) -> Datagrams {
        Datagrams::new(self.handle().uncounted())
    }

    /// Changes the FEC layout of all data sent to the peer's address, on all connections with it.
    ///
    /// At least the next 516 packets carry no parity, since a kcp-go receiver would decode groups of
    /// mixed layouts to wrong data. kcp-go forgets the old layout after some 258 packets and recovers
    /// nothing until it has learned the new one (`autoTune`). Version 5.7.5, without loss, learns it
    /// within two groups after the 516 packets; version 5.6.72, at 10 % loss, needs some 250 packets
    /// more. This crate learns it within two groups. Change the layout rarely.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) without [`Redundancy::Fec`](crate::Redundancy::Fec), since
    /// segments leave no space for the FEC header. [`InvalidInput`](ErrorKind::InvalidInput) for groups
    /// with more shards (data and parity together) than the address was sent before, unless the peer is
    /// known to be kcpx: kcp-go 5.6.72 compares group numbers, and the smaller numbers of larger groups
    /// look late (5.7.5 takes them). If two connections to the address change the layout at once, the
    /// later change is ignored.
    pub fn set_fec(&self, fec: FecConfig) -> Result<()> {
        set_fec(self.handle(), fec)
    }
}

/// Backs `set_fec` of streams and halves.
pub(super) fn set_fec(shared: &Shared, fec: FecConfig) -> Result<()> {
    if !shared.framed {
        let text = "set_fec requires Redundancy::Fec on this connection";
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let (shards, max) = (fec.shards(), shared.max_fec_shards.load(Ordering::Relaxed));
    if shards > max {
        let text = format!(
            "FEC groups of {shards} shards: a peer that is not known to be kcpx cannot change to \
             more than {max}"
        );
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    if max < FecConfig::MAX_SHARDS {
        shared.max_fec_shards.store(shards, Ordering::Relaxed);
    }
    shared.notifier.set(Setting::Fec(fec));
    Ok(())
}
