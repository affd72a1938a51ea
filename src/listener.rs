//! [`KcpListener`]: accepts connections opened by peers, in the shape of `tokio::net::TcpListener`.

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
use crate::util::coop::cooperate;

/// How long `close_all` waits for the peers of aborted connections.
const RESET_TIMEOUT: Duration = Duration::from_secs(2);

/// The same for `hand_over`: newcomers wait meanwhile.
const HAND_OVER_RESET_TIMEOUT: Duration = Duration::from_millis(100);

/// A KCP socket server, listening for connections that peers open.
///
/// Dropping it stops accepting and aborts connections that were not accepted; accepted streams go
/// on.
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
    /// Binds a UDP socket and listens with the default configuration. Port 0 asks the system for
    /// a free one.
    ///
    /// The port of an endpoint of this process that has no handle and no open stream any more is taken
    /// over, as with SO_REUSEADDR: what it has still to deliver is waited for, at most a second, and the
    /// new endpoint answers for its connections in TIME-WAIT.
    ///
    /// # Errors
    ///
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) when the port is in use, or an endpoint that had it has not
    /// delivered everything within that second. When no resolved address can be bound.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with I/O and time enabled, as `TcpListener`.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_boxed(addr, Box::default()).await
    }

    /// Binds a UDP socket and listens; every accepted stream has this configuration. With
    /// [`shards`](crate::SocketConfig::shards) it binds as many sockets to the same address. Such
    /// a listener accepts as any other; its [`endpoint`](Self::endpoint) can neither connect nor
    /// be rebound.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind); [`InvalidInput`](io::ErrorKind::InvalidInput) around a
    /// [`ConfigError`](crate::ConfigError) when the configuration is refused.
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

    /// Takes over a bound UDP socket and listens with the default configuration, as
    /// [`Endpoint::from_std`].
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

    /// Takes over a bound UDP socket and listens, as [`Endpoint::from_std_with`].
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

    /// Takes over several UDP sockets that are bound to one address with `SO_REUSEPORT`, and listens on
    /// all of them, as [`bind_with`](Self::bind_with) does with [`shards`](crate::SocketConfig::shards).
    /// Linux and Android.
    ///
    /// For sockets that a process inherits, such as those of systemd's `ReusePort=`, and for a restart
    /// that keeps them open: the system distributes peers by the set of sockets, so as long as that stays the
    /// same, the datagrams of a peer come to the same one.
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
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) when there is no socket, when they have different
    /// addresses, when [`shards`](crate::SocketConfig::shards) is neither 1 nor their number, or around a
    /// [`ConfigError`](crate::ConfigError). When one is no usable UDP socket.
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
    /// handshake), so bytes may be readable at once.
    ///
    /// # Errors
    ///
    /// Only when the endpoint has ended, or after [`drain`](Self::drain), [`close_all`](Self::close_all) or
    /// [`hand_over`](Self::hand_over), and then for good; an error of one connection never ends the loop.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. Several tasks may accept at once: all are woken, and one of them gets the
    /// connection.
    pub async fn accept(&self) -> io::Result<(KcpStream, SocketAddr)> {
        let mut waiter = self.queue.waiter();
        poll_fn(|cx| self.poll_next(cx, Some(&mut waiter))).await
    }

    /// Polls for the next connection. Of several tasks that poll the last one is woken, and every
    /// task in [`accept`](Self::accept).
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

    /// Borrows the listener as a sequence of streams.
    #[must_use]
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming {
            listener: self,
            #[cfg(feature = "stream")]
            ended: false,
        }
    }

    /// Returns the address the socket is bound to.
    ///
    /// # Errors
    ///
    /// None; the signature is that of `TcpListener`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// The endpoint behind this listener: it can connect from the same socket, unless there are
    /// several, see [`shards`](crate::SocketConfig::shards).
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Waits until all lingering connections have delivered; see [`Endpoint::wait_idle`].
    pub async fn wait_idle(&self) {
        self.endpoint.wait_idle().await;
    }

    /// Accepts no more connections, and waits until those that are open have ended and everything is
    /// delivered: graceful shutdown.
    ///
    /// From the first poll on, a client that connects fails with `ConnectionRefused` a second later, if it
    /// is of this crate and waits for the peer; others see nobody.
    /// [`accept`](Self::accept) fails with [`NotConnected`](io::ErrorKind::NotConnected), and connections
    /// that were not accepted are aborted, as when the listener is dropped. Streams go on until their
    /// owners are done with them; those that the [`endpoint`](Self::endpoint) has opened count too.
    ///
    /// A stream that has ended is waited for until its last bytes are acknowledged, at most
    /// [`Config::linger`]. When only the end of the stream or a reset is unacknowledged, by a peer that has
    /// ended its own stream, eight RTOs are enough, and half a second at least: that peer may be gone.
    ///
    /// ```
    /// use kcpx::{KcpListener, KcpStream};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let listener = KcpListener::bind("127.0.0.1:0").await?;
    /// let addr = listener.local_addr()?;
    /// let client = KcpStream::connect(addr).await?;
    /// let (server, _) = listener.accept().await?;
    /// let done = tokio::spawn(async move { listener.drain().await });
    /// drop((client, server));
    /// done.await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// The listener accepts no more connections after a call that was cancelled. Call it again to wait on.
    pub async fn drain(&self) {
        self.queue.stop(Listening::Draining);
        self.endpoint.drain(Drain::Wait).await;
    }

    /// Accepts no more connections, shuts down the write side of every stream, and waits as
    /// [`drain`](Self::drain) does, but at most `timeout`: then what is still open is aborted, and for at
    /// most two seconds more it waits until the peers have acknowledged that.
    ///
    /// The owners of the streams can go on reading; their writes fail with
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe). Returns whether all of them had ended in time.
    ///
    /// # Cancel safety
    ///
    /// After a call that was cancelled the write sides are shut down, and nothing is aborted.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with time enabled.
    pub async fn close_all(&self, timeout: Duration) -> bool {
        self.queue.stop(Listening::Draining);
        self.close_streams(timeout, RESET_TIMEOUT).await
    }

    /// Leaves the socket to the next process that reads it: restart without downtime, by a socket that
    /// this process has inherited, or has passed on ([`from_std_group`](Self::from_std_group)).
    ///
    /// As [`close_all`](Self::close_all), except that clients that connect are not refused: they are not
    /// answered, and neither is a ping of a connection that this process does not have. A client of this
    /// crate sends its initial segment at 0, 0.2, 0.6 and 1.4 s, so with a `timeout` of 400 ms the next process
    /// has it 0.6 s after it connected in most cases, and after 1.4 s if this process takes longer to end than
    /// 0.1 s; or as soon as that process reads: in the meantime the socket's buffer has what arrives.
    ///
    /// Connections end here, in order: their state moves nowhere, and their owners reconnect. What is still
    /// open at `timeout` is aborted, and for at most 0.1 s more it waits until the peers have acknowledged that;
    /// a peer that does not hear of it learns it from the next process, by the answer to its next ping.
    ///
    /// What has been answered but not accepted is aborted at once, and its client sees
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset): the backlog, and with
    /// [`require_validation`](crate::Limits::require_validation) who is validated from then on.
    ///
    /// End this process at once when this returns, and let the next one read the socket no earlier: of two
    /// that read one socket each gets datagrams of the other's connections.
    ///
    /// Returns whether all connections had ended in time.
    ///
    /// ```no_run
    /// # async fn run(listener: kcpx::KcpListener) {
    /// # use std::time::Duration;
    /// // On the signal that asks for it. A service manager has the socket, and starts the next process.
    /// listener.hand_over(Duration::from_millis(400)).await;
    /// std::process::exit(0);
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// As [`close_all`](Self::close_all). A listener that has begun to hand over answers no newcomer any more.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with time enabled.
    pub async fn hand_over(&self, timeout: Duration) -> bool {
        self.queue.stop(Listening::HandingOver);
        self.close_streams(timeout, HAND_OVER_RESET_TIMEOUT).await
    }

    /// Shuts down the streams; after `timeout` aborts them, and waits up to `reset_timeout` for the peers.
    async fn close_streams(&self, timeout: Duration, reset_timeout: Duration) -> bool {
        let closed = tokio::time::timeout(timeout, self.endpoint.drain(Drain::Close)).await;
        if closed.is_err() {
            // An error: a peer is gone, or the socket takes nothing.
            drop(tokio::time::timeout(reset_timeout, self.endpoint.drain(Drain::Abort)).await);
        }
        closed.is_ok()
    }

    /// A snapshot of the endpoint's counters.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.endpoint.stats()
    }
}

impl Endpoint {
    /// Begins to accept connections that peers open, until the listener is dropped. Initial
    /// segments that arrive without a listener are refused.
    ///
    /// # Errors
    ///
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) while the endpoint has a listener;
    /// [`Unsupported`](io::ErrorKind::Unsupported) with [`shards`](crate::SocketConfig::shards);
    /// [`NotConnected`](io::ErrorKind::NotConnected) when it has ended.
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

/// The streams of a listener, one after the other. With the feature `stream` it is a
/// `futures_core::Stream`, which ends after the error of an ended endpoint.
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

    // A loop that skips errors, as servers do, would never end if each poll returned the error.
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
