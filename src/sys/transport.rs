//! What the application implements to run conversations over something other than a UDP socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use crate::sys::{MAX_DATAGRAM, RxBatch};

/// Something that moves datagrams, for [`Endpoint::from_transport`]: a tunnel, a relay, a radio, a
/// pair of queues in a test.
///
/// Like UDP it may lose, repeat and reorder them; it must neither split nor join them. Addresses
/// are whatever it takes them for, as long as each peer has its own; IPv4 addresses mapped into
/// IPv6 count as IPv4.
///
/// Both polls work as polls of futures do: `Pending` promises that the waker of the last call is
/// woken once another call may find something. They are called by one task and must not block.
///
/// An error counts as loss and is found in [`EndpointStats`](crate::EndpointStats) and
/// [`Endpoint::take_error`]; errors in a row without a datagram between them slow receiving down.
/// Only a system's code for a descriptor that is no socket any more, such as `EBADF`, ends the
/// endpoint. A transport that has ended otherwise stays `Pending`, and conversations end by their
/// timeouts. Dropping the endpoint and its streams drops the transport.
///
/// ```
/// use std::io;
/// use std::net::SocketAddr;
/// use std::task::{Context, Poll, ready};
///
/// use kcpx::{Config, Endpoint, RecvBatch, Transmit, Transport};
/// use tokio::sync::mpsc;
///
/// /// One end of a path with two ends.
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
///             // Nobody at the other end: lost, as on a network.
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
    /// Returns the address of this end. Asked once, when the endpoint is made.
    ///
    /// # Errors
    ///
    /// Refuses the endpoint.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Bytes of the largest datagram it carries, at most 65,507, which is the default. Asked once,
    /// when the endpoint is made; the configured MTU must not be larger.
    fn max_datagram_size(&self) -> usize {
        MAX_DATAGRAM
    }

    /// Polls for datagrams and pushes them into `batch`, which has room for one at least. `Ready`
    /// means that it pushed some; it is called again until the batch is full or it is `Pending`.
    ///
    /// # Errors
    ///
    /// When receiving failed; nothing was pushed.
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut RecvBatch<'_>,
    ) -> Poll<io::Result<()>>;

    /// Polls to send datagrams, all for one peer. Returns how many were taken, in their order, at
    /// least one; it is called again for the others. `Pending` means that none was.
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

/// Datagrams for one peer, all of one size except that the last may be shorter.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Transmit<'a> {
    /// Where they go; IPv4 peers as such, also on a socket that serves both versions.
    pub dst: SocketAddr,
    /// Bytes of each datagram; the last has what is left over.
    pub segment_size: usize,
    /// The datagrams, back to back.
    pub contents: &'a [u8],
}

impl<'a> Transmit<'a> {
    /// The datagrams, one by one.
    pub fn datagrams(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.contents.chunks(self.segment_size.max(1))
    }
}

/// Room for received datagrams, handed to [`Transport::poll_recv`].
pub struct RecvBatch<'a> {
    batch: &'a mut RxBatch,
    pushed: usize,
}

impl<'a> RecvBatch<'a> {
    pub(crate) fn new(batch: &'a mut RxBatch) -> Self {
        Self { batch, pushed: 0 }
    }

    /// Datagrams pushed so far, those that were too large included.
    pub(crate) fn pushed(&self) -> usize {
        self.pushed
    }

    /// Whether there may be no room for another datagram: what is pushed now may be lost.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.batch.is_full()
    }

    /// Adds a datagram that came from `from`.
    ///
    /// Returns whether it was taken. Without room it is not: return from the poll, and push it in
    /// the next one. One of more than 65,507 bytes is dropped, which counts as taken.
    pub fn push(&mut self, from: SocketAddr, datagram: &[u8]) -> bool {
        let taken = datagram.len() > MAX_DATAGRAM || self.batch.push(from, datagram);
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
