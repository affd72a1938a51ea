//! Conversations opened by peers, and the queue they wait in.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};

use tokio::net::ToSocketAddrs;

use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::error::ConnectionError;
use crate::stats::EndpointStats;
use crate::stream::KcpStream;
use crate::util::sync::{Arc, Mutex, lock};

/// Tasks that may wait to accept at once before those that gave up are sorted out.
const WAITERS: usize = 64;

/// Between the driver and whoever accepts. Its lock is a leaf.
#[derive(Debug)]
pub(crate) struct AcceptQueue {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    streams: VecDeque<KcpStream>,
    wakers: Vec<Waker>,
    /// The listener is there.
    listening: bool,
    /// The driver is there.
    driver_alive: bool,
}

impl AcceptQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                streams: VecDeque::new(),
                wakers: Vec::new(),
                listening: true,
                driver_alive: true,
            }),
        })
    }

    /// Driver: whether anybody will accept.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.inner).listening
    }

    /// Driver: conversations that wait.
    pub(crate) fn len(&self) -> usize {
        lock(&self.inner).streams.len()
    }

    /// Driver: one more. Returns everyone to wake: several tasks may accept.
    pub(crate) fn push(&self, stream: KcpStream) -> Vec<Waker> {
        let mut inner = lock(&self.inner);
        if !inner.listening {
            drop(inner);
            stream.abort();
            return Vec::new();
        }
        inner.streams.push_back(stream);
        std::mem::take(&mut inner.wakers)
    }

    /// Driver: no more will come. Returns everyone to wake.
    pub(crate) fn close(&self) -> Vec<Waker> {
        let mut inner = lock(&self.inner);
        inner.driver_alive = false;
        std::mem::take(&mut inner.wakers)
    }

    fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<KcpStream>> {
        let mut inner = lock(&self.inner);
        if let Some(stream) = inner.streams.pop_front() {
            return Poll::Ready(Ok(stream));
        }
        if !inner.driver_alive {
            return Poll::Ready(Err(ConnectionError::EndpointClosed.into()));
        }
        if inner.wakers.len() >= WAITERS {
            // Most of them have given up: whoever has not asks again.
            let stale = std::mem::take(&mut inner.wakers);
            drop(inner);
            stale.into_iter().for_each(Waker::wake);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !inner.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            inner.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Listener: stop. What was not accepted is aborted: nobody has read it.
    fn stop(&self) {
        let mut inner = lock(&self.inner);
        inner.listening = false;
        let streams = std::mem::take(&mut inner.streams);
        drop(inner);
        streams.into_iter().for_each(KcpStream::abort);
    }
}

/// A KCP socket server, listening for conversations that peers open.
///
/// Dropping it stops accepting and leaves accepted streams alone.
///
/// ```no_run
/// use kcpx::KcpListener;
///
/// # async fn run() -> std::io::Result<()> {
/// let listener = KcpListener::bind("127.0.0.1:4000").await?;
/// loop {
///     let (stream, peer) = listener.accept().await?;
///     println!("{peer} opened conversation {}", stream.conv());
/// }
/// # }
/// ```
pub struct KcpListener {
    queue: Arc<AcceptQueue>,
    endpoint: Endpoint,
}

impl KcpListener {
    /// Binds a UDP socket and listens with the default configuration. Port 0 asks the system for
    /// a free one.
    ///
    /// # Errors
    ///
    /// When no resolved address can be bound, or outside a Tokio runtime with I/O and time
    /// enabled.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(addr, Config::default()).await
    }

    /// Binds a UDP socket and listens; every accepted stream has this configuration. With
    /// [`shards`](crate::SocketConfig::shards) it binds so many to the same address. Such a listener
    /// accepts as any other; its [`endpoint`](Self::endpoint) cannot dial or be rebound.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind); [`InvalidInput`](io::ErrorKind::InvalidInput) around a
    /// [`ConfigError`](crate::ConfigError) when the configuration is refused.
    pub async fn bind_with(addr: impl ToSocketAddrs, config: Config) -> io::Result<Self> {
        let queue = AcceptQueue::new();
        let endpoint = Endpoint::bind_listener(addr, config, &queue).await?;
        Ok(Self::new(queue, endpoint))
    }

    /// Takes over a bound UDP socket and listens, as [`Endpoint::from_std`].
    ///
    /// # Errors
    ///
    /// As [`Endpoint::from_std`].
    ///
    /// # Panics
    ///
    /// In a Tokio runtime without I/O or time.
    pub fn from_std(socket: std::net::UdpSocket, config: Config) -> io::Result<Self> {
        let queue = AcceptQueue::new();
        let endpoint = Endpoint::adopt_socket(socket, config, Some(queue.clone()))?;
        Ok(Self::new(queue, endpoint))
    }

    pub(crate) fn new(queue: Arc<AcceptQueue>, endpoint: Endpoint) -> Self {
        Self { queue, endpoint }
    }

    /// Waits for the next conversation. It exists from its first data segment on, so bytes may be
    /// readable at once.
    ///
    /// # Errors
    ///
    /// Only when the endpoint has ended; an error of one peer never ends the loop.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. Several tasks may accept at once.
    pub async fn accept(&self) -> io::Result<(KcpStream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Polls for the next conversation. Every task that polled is woken when one arrives.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(KcpStream, SocketAddr)>> {
        self.queue.poll_accept(cx).map_ok(|stream| {
            let peer = stream.handle().peer();
            (stream, peer)
        })
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

    /// The endpoint behind this listener: it can dial from the same socket, if there is just one.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Waits until everything lingering is delivered; see [`Endpoint::wait_idle`].
    pub async fn wait_idle(&self) {
        self.endpoint.wait_idle().await;
    }

    /// A snapshot of the endpoint's counters.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.endpoint.stats()
    }
}

/// Listens with the default configuration.
impl TryFrom<std::net::UdpSocket> for KcpListener {
    type Error = io::Error;

    fn try_from(socket: std::net::UdpSocket) -> io::Result<Self> {
        Self::from_std(socket, Config::default())
    }
}

impl Drop for KcpListener {
    fn drop(&mut self) {
        self.queue.stop();
    }
}

impl fmt::Debug for KcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KcpListener").field("local", &self.endpoint.local()).finish_non_exhaustive()
    }
}

/// The streams of a listener, one after the other. With the feature `stream` it is a
/// `futures_core::Stream`, which ends after the error of an ended endpoint.
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a KcpListener,
    /// The stream has returned its error.
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

    // Whoever skips errors, as servers do, would never leave its loop if there were one each time.
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
