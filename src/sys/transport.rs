//! Transports of the application: connections over carriers other than a UDP socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use super::recv_batch::{MAX_DATAGRAM, RxBatch};
use crate::util::path::{LocalIp, Path};

/// A datagram transport other than UDP, for [`Endpoint::from_transport`]: a tunnel, a relay, a radio, a
/// pair of queues in a test.
///
/// Like UDP, a transport may lose, duplicate and reorder datagrams; it must not split or join them.
/// Addresses may have any meaning, as long as each peer has its own; IPv4-mapped IPv6 addresses count as
/// IPv4.
///
/// Both polls work like polls of futures: after `Pending`, the transport must wake the waker of the last
/// call once another call may succeed. One task calls them; they must not block.
///
/// Errors count as loss and appear in [`EndpointStats`](crate::EndpointStats) and
/// [`Endpoint::take_error`]; consecutive receive errors slow down receiving. Two things end the endpoint:
/// the error code of a descriptor that is not a socket, such as `EBADF`, and a panic. A transport that
/// has ended otherwise stays `Pending`, and connections time out. The transport is dropped with the
/// endpoint and its streams.
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
    /// An error makes [`Endpoint::from_transport`](crate::Endpoint::from_transport) fail.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Returns the size of the largest datagram in bytes. Default and maximum 65,507. Called once, when
    /// the endpoint is created; the configured MTU must not be larger.
    fn max_datagram_size(&self) -> usize {
        MAX_DATAGRAM
    }

    /// Polls for datagrams and pushes them into `batch`, which takes at least one. `Ready` means that
    /// some were pushed; the driver polls again until the batch is full or the result is `Pending`.
    ///
    /// # Errors
    ///
    /// When receiving failed; nothing was pushed then.
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut RecvBatch<'_>,
    ) -> Poll<io::Result<()>>;

    /// Polls to send datagrams to one peer. Returns how many were taken, from the first on, at least one;
    /// the driver polls again for the others. `Pending` means that none was taken.
    ///
    /// # Errors
    ///
    /// When sending failed; none was taken then, and all count as lost.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        transmit: &Transmit<'_>,
    ) -> Poll<io::Result<usize>>;
}

/// Datagrams to one peer, of one size; the last may be shorter (a GSO batch).
///
/// ```
/// use std::io;
/// use std::net::UdpSocket;
///
/// use kcpx::Transmit;
///
/// /// Sends the datagrams that the socket takes.
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
    /// Destination. IPv4 peers have IPv4 addresses, also on a dual-stack socket.
    pub dst: SocketAddr,
    /// Bytes of each datagram but the last.
    pub segment_size: usize,
    /// The datagrams, back to back.
    pub contents: &'a [u8],
    /// The source.
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

    /// Returns the number of datagrams pushed so far, including oversized ones.
    pub(crate) fn pushed(&self) -> usize {
        self.pushed
    }

    /// Returns whether the batch is full: the next [`push`](Self::push) may fail.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.batch.is_full()
    }

    /// Adds a datagram received from `from`.
    ///
    /// Returns whether it was taken. If not, the batch is full: return from the poll and push the
    /// datagram in the next one. Datagrams above 65,507 bytes are dropped and count as taken.
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
