//! [`KcpListener`]: accepts connections, in the shape of `tokio::net::TcpListener`.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::ToSocketAddrs;

use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::shared::accept_queue::{AcceptHandle, AcceptQueue, Listening};
use crate::shared::requests::{Drain, Request};
use crate::shared::waiters::{Registration, Wait};
use crate::stats::EndpointStats;
use crate::stream::KcpStream;
use crate::util::task::cooperate;

/// How long `Shutdown::Close` waits for the peers of aborted connections.
const RESET_TIMEOUT: Duration = Duration::from_secs(2);

/// The same for `Shutdown::HandOver`: new clients are waiting for the next process.
const HAND_OVER_RESET_TIMEOUT: Duration = Duration::from_millis(100);

/// How [`KcpListener::shutdown`] ends the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shutdown {
    /// Graceful: streams continue until their owners are done with them, without a limit of time.
    ///
    /// A client of this crate that waits in `connect` fails with
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) a second later; other new clients get no
    /// answer.
    Drain,
    /// Shuts down the write side of every stream, and refuses new clients as [`Drain`](Self::Drain) does.
    ///
    /// Stream owners can continue to read; their writes fail with
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe).
    Close {
        /// How long the streams may take to end. Then the remaining connections are aborted, and their
        /// peers have up to two seconds to acknowledge that.
        timeout: Duration,
    },
    /// Leaves the socket to the next process that reads it, for a restart without downtime. This process
    /// inherited the socket or passed it on ([`KcpListener::from_std_group`]).
    ///
    /// Works as [`Close`](Self::Close), but does not refuse new clients: it answers neither them nor pings
    /// of unknown connections. A client of this crate sends its initial segment at 0, 0.2, 0.6 and 1.4 s.
    /// With a `timeout` of 400 ms, the next process mostly receives it 0.6 s after the connect, or after
    /// 1.4 s if this process takes more than 0.1 s longer to end. If the next process already reads, it
    /// receives datagrams from the socket's buffer.
    ///
    /// Connections end here in order: no state moves, and their owners reconnect. A peer that misses an
    /// abort learns of it from the next process, by the answer to its next ping. The backlog is aborted at
    /// once, and with [`require_validation`](crate::Limits::require_validation) also each peer that is
    /// validated later.
    ///
    /// End this process at once when `shutdown` returns, and do not let the next one read the socket
    /// earlier: two processes that read one socket take datagrams of each other's connections.
    ///
    /// ```no_run
    /// # async fn run(listener: kcpx::KcpListener) {
    /// use std::time::Duration;
    ///
    /// use kcpx::Shutdown;
    ///
    /// // On the shutdown signal. A service manager holds the socket and starts the next process.
    /// listener.shutdown(Shutdown::HandOver { timeout: Duration::from_millis(400) }).await;
    /// std::process::exit(0);
    /// # }
    /// ```
    HandOver {
        /// How long the streams may take to end. Then the remaining connections are aborted, and their
        /// peers have up to 0.1 s to acknowledge that.
        timeout: Duration,
    },
}

/// A listener for KCP connections on a UDP socket.
///
/// Dropping it stops accepting and aborts connections that were not accepted; accepted streams continue.
///
/// ```no_run
/// use kcpx::KcpListener;
///
/// # async fn run() -> std::io::Result<()> {
/// let listener = KcpListener::bind("127.0.0.1:4000").await?;
/// loop {
///     let (stream, peer) = listener.accept().await?;
///     println!("{peer} opened connection {}", stream.conv());
/// }
/// # }
/// ```
pub struct KcpListener {
    queue: AcceptHandle,
    endpoint: Endpoint,
}

impl KcpListener {
    /// Binds a UDP socket and listens with the default configuration. Port 0 asks the system for a free
    /// port.
    ///
    /// If another endpoint of this process has the port but neither a handle nor an open stream, this one
    /// takes the port over, as with SO_REUSEADDR: it waits up to a second for the rest of the delivery,
    /// then answers for the old connections in TIME-WAIT.
    ///
    /// # Errors
    ///
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) when the port is in use, or the old endpoint does not
    /// finish within that second. Other errors when no resolved address can be bound.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with I/O and time enabled, as `TcpListener`.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_boxed(addr, Box::default()).await
    }

    /// Binds a UDP socket and listens; every accepted stream has this configuration. With
    /// [`shards`](crate::Config::shards) it binds that number of sockets to the same address; the
    /// [`endpoint`](Self::endpoint) can then neither connect nor be rebound.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind); [`InvalidInput`](io::ErrorKind::InvalidInput) with a
    /// [`ConfigError`](crate::ConfigError) when the configuration is invalid.
    ///
    /// # Panics
    ///
    /// As [`bind`](Self::bind).
    pub async fn bind_with(addr: impl ToSocketAddrs, config: Config) -> io::Result<Self> {
        Self::bind_boxed(addr, Box::new(config)).await
    }

    async fn bind_boxed(addr: impl ToSocketAddrs, config: Box<Config>) -> io::Result<Self> {
        let queue = AcceptQueue::new();
        let endpoint = Endpoint::bind_listener(addr, config, &queue).await?;
        Ok(Self::new(AcceptHandle::new(queue), endpoint))
    }

    /// Adopts a bound UDP socket and listens with the default configuration, as [`Endpoint::from_std`].
    ///
    /// # Errors
    ///
    /// As [`Endpoint::from_std`].
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with I/O and time enabled.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        Self::from_std_with(socket, Config::default())
    }

    /// Adopts a bound UDP socket and listens, as [`Endpoint::from_std_with`].
    ///
    /// # Errors
    ///
    /// As [`Endpoint::from_std_with`].
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with I/O and time enabled.
    pub fn from_std_with(socket: std::net::UdpSocket, config: Config) -> io::Result<Self> {
        let queue = AcceptQueue::new();
        let endpoint = Endpoint::adopt_socket(socket, config, Some(queue.clone()))?;
        Ok(Self::new(AcceptHandle::new(queue), endpoint))
    }

    /// Adopts UDP sockets that are bound to one address with `SO_REUSEPORT` and listens on all of them,
    /// as [`bind_with`](Self::bind_with) does with [`shards`](crate::Config::shards). Linux and
    /// Android only.
    ///
    /// Use it for inherited sockets, such as systemd's `ReusePort=`, and for restarts that keep them
    /// open: the system distributes peers over the set of sockets, so a peer stays on its socket while
    /// the set does not change.
    ///
    /// ```
    /// # #[cfg(target_os = "linux")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// use socket2::{Domain, Socket, Type};
    ///
    /// let mut sockets: Vec<std::net::UdpSocket> = Vec::new();
    /// let mut addr: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    /// for _ in 0..4 {
    ///     let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    ///     socket.set_reuse_port(true)?;
    ///     socket.bind(&addr.into())?;
    ///     let socket = std::net::UdpSocket::from(socket);
    ///     addr = socket.local_addr()?;
    ///     sockets.push(socket);
    /// }
    /// let listener = kcpx::KcpListener::from_std_group(sockets, kcpx::Config::new())?;
    /// assert_eq!(listener.local_addr()?, addr);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(target_os = "linux"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) when there is no socket, when the addresses differ,
    /// when [`shards`](crate::Config::shards) is neither 1 nor their number, or with a
    /// [`ConfigError`](crate::ConfigError). Other errors when one is not a usable UDP socket.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with I/O and time enabled.
    pub fn from_std_group(sockets: Vec<std::net::UdpSocket>, config: Config) -> io::Result<Self> {
        let queue = AcceptQueue::new();
        let endpoint = Endpoint::adopt_group(sockets, &config, &queue)?;
        Ok(Self::new(AcceptHandle::new(queue), endpoint))
    }

    pub(crate) fn new(queue: AcceptHandle, endpoint: Endpoint) -> Self {
        Self { queue, endpoint }
    }

    /// Waits for the next connection. A connection exists from its first segment on (there is no
    /// handshake), so it may be readable at once.
    ///
    /// # Errors
    ///
    /// Only once the endpoint has ended, or after [`shutdown`](Self::shutdown), and then on every call.
    /// Errors of single connections do not appear here.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. Several tasks may accept at once: all are woken, and one gets the connection.
    pub async fn accept(&self) -> io::Result<(KcpStream, SocketAddr)> {
        let mut waiter = self.queue.waiter();
        poll_fn(|cx| self.poll_next(cx, Some(&mut waiter))).await
    }

    /// Polls for the next connection. The last of several polling tasks is woken, and every task in
    /// [`accept`](Self::accept).
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(KcpStream, SocketAddr)>> {
        self.poll_next(cx, None)
    }

    fn poll_next(
        &self,
        cx: &mut Context<'_>,
        registration: Option<&mut Registration>,
    ) -> Poll<io::Result<(KcpStream, SocketAddr)>> {
        cooperate(cx, |cx| self.queue.poll_accept(&mut Wait::new(cx.waker(), registration)))
            .map_ok(|handle| (handle.peer(), self.endpoint.stream(handle)))
            .map_ok(|(peer, stream)| (stream, peer))
    }

    /// Returns the accepted streams as a sequence.
    #[must_use]
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming {
            listener: self,
            #[cfg(feature = "stream")]
            ended: false,
        }
    }

    /// Returns the address that the socket is bound to.
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpListener`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Returns the listener's endpoint. It can connect from the same socket, except with several
    /// [`shards`](crate::Config::shards).
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Waits until no connection lingers; see [`Endpoint::wait_idle`].
    pub async fn wait_idle(&self) {
        self.endpoint.wait_idle().await;
    }

    /// Accepts no more connections and ends the open ones as `how` says. Returns whether all of them ended
    /// in time; always true with [`Shutdown::Drain`].
    ///
    /// From the first poll on, [`accept`](Self::accept) fails with
    /// [`NotConnected`](io::ErrorKind::NotConnected), and connections that were not accepted are aborted,
    /// as when the listener is dropped: their clients see
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset). kcp-go has no reset, so its clients see nothing.
    /// Connections opened by the [`endpoint`](Self::endpoint) end as accepted ones do.
    ///
    /// The wait for an ended stream lasts until its last bytes are acknowledged, at most
    /// [`Config::linger`]. If only the end of the stream or a reset is unacknowledged and the peer has
    /// ended its own stream, the wait is eight RTOs, at least half a second: the peer may be gone.
    ///
    /// ```
    /// use kcpx::{KcpListener, KcpStream, Shutdown};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let listener = KcpListener::bind("127.0.0.1:0").await?;
    /// let addr = listener.local_addr()?;
    /// let client = KcpStream::connect(addr).await?;
    /// let (server, _) = listener.accept().await?;
    /// let done = tokio::spawn(async move { listener.shutdown(Shutdown::Drain).await });
    /// drop((client, server));
    /// assert!(done.await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// A cancelled call leaves the listener closed for new connections and, except with
    /// [`Shutdown::Drain`], the write sides shut down; before the timeout it aborts no accepted stream.
    /// Call it again to continue waiting, also with another `how`. After [`Shutdown::HandOver`] the
    /// listener no longer answers new clients.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with time enabled, except with [`Shutdown::Drain`].
    pub async fn shutdown(&self, how: Shutdown) -> bool {
        let (listening, timeout, reset_timeout) = match how {
            Shutdown::Drain => {
                self.queue.stop(Listening::Draining);
                self.endpoint.drain(Drain::Wait).await;
                return true;
            }
            Shutdown::Close { timeout } => (Listening::Draining, timeout, RESET_TIMEOUT),
            Shutdown::HandOver { timeout } => {
                (Listening::HandingOver, timeout, HAND_OVER_RESET_TIMEOUT)
            }
        };
        self.queue.stop(listening);
        let closed = tokio::time::timeout(timeout, self.endpoint.drain(Drain::Close)).await;
        if closed.is_err() {
            // An error means that a peer is gone, or the socket takes nothing.
            drop(tokio::time::timeout(reset_timeout, self.endpoint.drain(Drain::Abort)).await);
        }
        closed.is_ok()
    }

    /// Returns the endpoint's counters.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.endpoint.stats()
    }
}

impl Endpoint {
    /// Starts to accept connections. Initial segments are refused without a listener.
    ///
    /// # Errors
    ///
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) while the endpoint has a listener;
    /// [`Unsupported`](io::ErrorKind::Unsupported) with [`shards`](crate::Config::shards);
    /// [`NotConnected`](io::ErrorKind::NotConnected) when the endpoint has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a listener that is not returned is dropped.
    pub async fn listen(&self) -> io::Result<KcpListener> {
        self.reject_sharded("listen")?;
        let queue = self.request(Request::Listen).await??;
        Ok(KcpListener::new(queue, self.clone()))
    }
}

/// Listens with the default configuration.
impl TryFrom<std::net::UdpSocket> for KcpListener {
    type Error = io::Error;

    fn try_from(socket: std::net::UdpSocket) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl fmt::Debug for KcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KcpListener").field("local", &self.endpoint.local()).finish_non_exhaustive()
    }
}

/// Accepted streams, one after another, from [`KcpListener::incoming`]. With the feature `stream` it
/// implements `futures_core::Stream`, which ends after the endpoint's error.
///
/// ```
/// use kcpx::{KcpListener, KcpStream};
///
/// async fn serve(listener: &KcpListener) -> std::io::Result<()> {
///     let mut incoming = listener.incoming();
///     loop {
///         let stream = incoming.next().await?;
///         tokio::spawn(handle(stream));
///     }
/// }
///
/// async fn handle(mut stream: KcpStream) {
///     let (mut read, mut write) = stream.split();
///     let _ = tokio::io::copy(&mut read, &mut write).await;
/// }
/// ```
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a KcpListener,
    /// True once the `Stream` has returned its error.
    #[cfg(feature = "stream")]
    ended: bool,
}

impl Incoming<'_> {
    /// Waits for the next stream.
    ///
    /// # Errors
    ///
    /// As [`KcpListener::accept`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> io::Result<KcpStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for Incoming<'_> {
    type Item = io::Result<KcpStream>;

    // Servers skip errors in their loop, which would never end if each poll returned the error.
    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let accepted = std::task::ready!(self.listener.poll_accept(cx));
        self.ended = accepted.is_err();
        Poll::Ready(Some(accepted.map(|(stream, _)| stream)))
    }
}
