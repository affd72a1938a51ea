//! Transports of the application: connections over something other than a UDP socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use super::recv_batch::{MAX_DATAGRAM, RxBatch};
use crate::util::path::{LocalIp, Path};

/// A datagram transport other than UDP, for [`Endpoint::from_transport`]: a tunnel, a relay, a
/// radio, a pair of queues in a test.
///
/// Like UDP a transport may lose, duplicate and reorder datagrams; it must neither split nor join
/// them. Addresses may mean anything, as long as each peer has its own; IPv4-mapped IPv6 addresses
/// count as IPv4.
///
/// Both polls work as polls of futures do: after `Pending` the transport must wake the waker of the
/// last call once another call may succeed. They are called by one task and must not block.
///
/// An error counts as loss and appears in [`EndpointStats`](crate::EndpointStats) and
/// [`Endpoint::take_error`]; receive errors in a row slow receiving down. Only the error code of a
/// descriptor that is not a socket any more, such as `EBADF`, ends the endpoint. A transport that
/// has ended otherwise stays `Pending`, and connections end by their timeouts. A transport that
/// panics ends the endpoint too. The transport is dropped with the endpoint and its streams.
///
/// ```
/// use std::io;
/// use std::net::SocketAddr;
/// use std::task::{Context, Poll, ready};
///
/// use kcpx::{Config, Endpoint, RecvBatch, Transmit, Transport};
/// use tokio::sync::mpsc;
///
/// /// One end of a link between two endpoints.
/// struct Pipe {
///     local: SocketAddr,
///     peer: SocketAddr,
///     outgoing: mpsc::UnboundedSender<Vec<u8>>,
///     incoming: mpsc::UnboundedReceiver<Vec<u8>>,
/// }
///
/// impl Transport for Pipe {
///     fn local_addr(&self) -> io::Result<SocketAddr> {
///         Ok(self.local)
///     }
///
///     fn poll_recv(
///         &mut self,
///         cx: &mut Context<'_>,
///         batch: &mut RecvBatch<'_>,
///     ) -> Poll<io::Result<()>> {
///         match ready!(self.incoming.poll_recv(cx)) {
///             Some(datagram) => {
///                 batch.push(self.peer, &datagram);
///                 Poll::Ready(Ok(()))
///             }
///             None => Poll::Pending,
///         }
///     }
///
///     fn poll_send(
///         &mut self,
///         _: &mut Context<'_>,
///         transmit: &Transmit<'_>,
///     ) -> Poll<io::Result<usize>> {
///         let mut taken = 0;
///         for datagram in transmit.datagrams() {
///             // With no receiver the datagram is lost, as on a network.
///             let _ = self.outgoing.send(datagram.to_vec());
///             taken += 1;
///         }
///         Poll::Ready(Ok(taken))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> io::Result<()> {
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let [here, there] = [1, 2].map(|host| SocketAddr::from(([10, 0, 0, host], 1)));
/// let ((a, b), (c, d)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
/// let client = Pipe { local: here, peer: there, outgoing: a, incoming: d };
/// let server = Pipe { local: there, peer: here, outgoing: c, incoming: b };
///
/// let listener = Endpoint::from_transport(server, Config::new())?.listen().await?;
/// let mut stream = Endpoint::from_transport(client, Config::new())?.connect(there).await?;
/// stream.write_all(b"hello").await?;
/// let (mut stream, peer) = listener.accept().await?;
/// assert_eq!(peer, here);
/// let mut hello = [0; 5];
/// stream.read_exact(&mut hello).await?;
/// # Ok(())
/// # }
/// ```
///
/// [`Endpoint::from_transport`]: crate::Endpoint::from_transport
/// [`Endpoint::take_error`]: crate::Endpoint::take_error
pub trait Transport: Send + 'static {
    /// Returns the local address. Called once, when the endpoint is created.
    ///
    /// # Errors
    ///
    /// An error fails [`Endpoint::from_transport`](crate::Endpoint::from_transport).
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Returns the largest datagram in bytes, at most 65,507, which is the default. Called once,
    /// when the endpoint is created; the configured MTU must not be larger.
    fn max_datagram_size(&self) -> usize {
        MAX_DATAGRAM
    }

    /// Polls for datagrams and pushes them into `batch`, which takes at least one. `Ready` means
    /// that some were pushed; the driver polls again until the batch is full or it is `Pending`.
    ///
    /// # Errors
    ///
    /// When receiving failed; then nothing was pushed.
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut RecvBatch<'_>,
    ) -> Poll<io::Result<()>>;

    /// Polls to send datagrams, all to one peer. Returns how many were taken, from the first on, at
    /// least one; the driver polls again for the others. `Pending` means that none was taken.
    ///
    /// # Errors
    ///
    /// When sending failed; then none was taken, and all of them count as lost.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        transmit: &Transmit<'_>,
    ) -> Poll<io::Result<usize>>;
}

/// Datagrams to one peer, all of one size except that the last may be shorter (a GSO batch).
///
/// ```
/// use std::io;
/// use std::net::UdpSocket;
///
/// use kcpx::Transmit;
///
/// /// Sends as many of the datagrams as the socket takes.
/// fn send(socket: &UdpSocket, transmit: &Transmit<'_>) -> io::Result<usize> {
///     let mut taken = 0;
///     for datagram in transmit.datagrams() {
///         match socket.send_to(datagram, transmit.dst) {
///             Ok(_) => taken += 1,
///             Err(error) if taken == 0 => return Err(error),
///             Err(_) => break,
///         }
///     }
///     Ok(taken)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Transmit<'a> {
    /// Destination; IPv4 peers as IPv4 addresses, also on a socket that serves both versions.
    pub dst: SocketAddr,
    /// Bytes of each datagram; the last has the remaining bytes.
    pub segment_size: usize,
    /// The datagrams, back to back.
    pub contents: &'a [u8],
    /// Where they leave from.
    pub(crate) local: LocalIp,
}

impl<'a> Transmit<'a> {
    /// Iterates over the datagrams.
    pub fn datagrams(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.contents.chunks(self.segment_size.max(1))
    }
}

/// Receive buffer for [`Transport::poll_recv`].
///
/// ```
/// use std::collections::VecDeque;
/// use std::net::SocketAddr;
///
/// use kcpx::RecvBatch;
///
/// fn deliver(queue: &mut VecDeque<(SocketAddr, Vec<u8>)>, batch: &mut RecvBatch<'_>) {
///     while let Some((from, datagram)) = queue.front() {
///         if !batch.push(*from, datagram) {
///             break; // Full: the rest in the next poll.
///         }
///         queue.pop_front();
///     }
/// }
/// ```
pub struct RecvBatch<'a> {
    batch: &'a mut RxBatch,
    pushed: usize,
}

impl<'a> RecvBatch<'a> {
    pub(crate) fn new(batch: &'a mut RxBatch) -> Self {
        Self { batch, pushed: 0 }
    }

    /// Returns the datagrams pushed so far, those that were too large included.
    pub(crate) fn pushed(&self) -> usize {
        self.pushed
    }

    /// Returns whether the batch is full: the next [`push`](Self::push) may be refused.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.batch.is_full()
    }

    /// Adds a datagram received from `from`.
    ///
    /// Returns whether it was taken. A full batch takes no more: return from the poll, and push the
    /// datagram in the next one. One of more than 65,507 bytes is dropped, which counts as taken.
    pub fn push(&mut self, from: SocketAddr, datagram: &[u8]) -> bool {
        let taken = datagram.len() > MAX_DATAGRAM || self.batch.push(Path::to(from), datagram);
        self.pushed += usize::from(taken);
        taken
    }
}

impl fmt::Debug for RecvBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch")
            .field("pushed", &self.pushed)
            .field("is_full", &self.is_full())
            .finish_non_exhaustive()
    }
}
