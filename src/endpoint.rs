//! [`Endpoint`]: the application's handle to a UDP socket and its driver.

mod bind;
mod connect;
mod port_reuse;
mod rebind;
mod shards;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Add;

use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::sync::oneshot;

use self::bind::SocketContext;
use self::connect::connect_first;
use crate::config::{Config, SEGMENT_HEADER};
use crate::error::{ConfigError, ConnectionError};
use crate::shared::connection::Handle;
use crate::shared::requests::{Drain, Opened, Request, RequestQueue};
use crate::stats::EndpointStats;
use crate::stream::KcpStream;
use crate::sys::TransportSocket;
use crate::sys::transport::Transport;
use crate::util::path::destination;
use crate::util::sync::Arc;

/// A UDP socket that carries any number of connections, driven by one task.
///
/// [`KcpListener`](crate::KcpListener) and [`KcpStream::connect`] create their own endpoint. One created
/// by hand connects and accepts on the same socket. Several connections with one peer are independent
/// streams, without head-of-line blocking between them.
///
/// The socket stays open until the last endpoint handle, listener and stream is gone and all written data
/// is delivered or given up.
///
/// ```
/// use kcpx::Endpoint;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let (alice, bob) = (Endpoint::bind("127.0.0.1:0").await?, Endpoint::bind("127.0.0.1:0").await?);
/// let listener = bob.listen().await?;
/// let mut control = alice.connect(bob.local_addr()?).await?;
/// let mut bulk = alice.connect(bob.local_addr()?).await?;
/// control.write_all(b"control").await?;
/// bulk.write_all(b"bulk").await?;
/// for _ in 0..2 {
///     let (mut stream, peer) = listener.accept().await?;
///     assert_eq!(peer, alice.local_addr()?);
///     let said = stream.read_chunk().await?;
///     assert!(said == "control" || said == "bulk");
/// }
/// # Ok(())
/// # }
/// ```
pub struct Endpoint {
    requests: Arc<RequestQueue>,
    /// The other shards of a listener.
    sibling_shards: Option<Arc<[Self]>>,
}

/// Constructors.
impl Endpoint {
    /// Binds a socket with the default configuration.
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
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_socket(addr, Box::default()).await
    }

    /// Binds a socket to the first resolved address that can be bound. Every connection has this
    /// configuration.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind); [`InvalidInput`](io::ErrorKind::InvalidInput) with a [`ConfigError`] when
    /// the configuration is invalid.
    ///
    /// # Panics
    ///
    /// As [`bind`](Self::bind).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn bind_with(addr: impl ToSocketAddrs, config: Config) -> io::Result<Self> {
        Self::bind_socket(addr, Box::new(config)).await
    }

    /// Takes over a bound UDP socket, blocking or not, with the default configuration.
    ///
    /// The socket becomes non-blocking, coalesces received datagrams (`UDP_GRO`), and reports their local
    /// address if it is bound to all (`IP_PKTINFO`). On Linux it ignores path MTU reports (ICMP) over
    /// IPv4, unless `IP_MTU_DISCOVER` differs from its default. Other options keep their values:
    /// [`Config::socket`] is not applied. The endpoint closes the socket when it ends; pass a
    /// [`try_clone`](std::net::UdpSocket::try_clone), which shares all options, to keep it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let addr = socket.local_addr()?;
    /// let endpoint = kcpx::Endpoint::from_std(socket)?;
    /// assert_eq!(endpoint.local_addr()?, addr);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the socket is not a usable UDP socket.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with I/O and time enabled.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        Self::from_std_with(socket, Config::default())
    }

    /// Takes over a bound UDP socket, as [`from_std`](Self::from_std).
    ///
    /// # Errors
    ///
    /// As [`from_std`](Self::from_std); [`InvalidInput`](io::ErrorKind::InvalidInput) with a
    /// [`ConfigError`] when the configuration is invalid, or when [`shards`](crate::SocketConfig::shards)
    /// is not 1: [`KcpListener::from_std_group`](crate::KcpListener::from_std_group) takes several
    /// sockets.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with I/O and time enabled.
    pub fn from_std_with(socket: std::net::UdpSocket, config: Config) -> io::Result<Self> {
        Self::adopt_socket(socket, config, None)
    }

    /// Runs connections over the application's own [`Transport`]. [`Config::socket`] is not applied.
    ///
    /// # Errors
    ///
    /// When the configuration is invalid, its MTU exceeds the transport's
    /// [`max_datagram_size`](Transport::max_datagram_size), or the transport has no address.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with time enabled.
    pub fn from_transport(transport: impl Transport, config: Config) -> io::Result<Self> {
        config.validate()?;
        let adapter = TransportSocket::new(transport)?;
        let least = (config.overhead() + SEGMENT_HEADER) as u64 + 1;
        let most = adapter.max_datagram() as u64;
        ConfigError::check("mtu (bytes)", config.kcp.mtu, least, most)?;
        Self::spawn(adapter, config, SocketContext::default())
    }

    /// Creates a handle to the endpoint of `requests`.
    pub(crate) fn attach(requests: Arc<RequestQueue>) -> Self {
        requests.add_handle();
        Self { requests, sibling_shards: None }
    }

    /// This endpoint and its sibling shards.
    fn shards(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.sibling_shards.iter().flat_map(|others| others.iter()))
    }

    /// Fails for shards: answers to one shard may arrive at any other.
    pub(crate) fn reject_sharded(&self, what: &str) -> io::Result<()> {
        if !self.requests.is_sharded() {
            return Ok(());
        }
        let text = format!("an endpoint whose address several sockets share cannot {what}");
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }
}

/// Connections.
impl Endpoint {
    /// Opens a connection to `addr`; the unspecified address means this host. The conversation id is
    /// [`Config::conv`], or random. Datagrams leave from the endpoint's bound address:
    /// `Endpoint::bind("192.0.2.7:0")` chooses the source.
    ///
    /// If `addr` resolves to several addresses, they are tried as by [`KcpStream::connect`].
    ///
    /// Waits until the peer has answered: one round trip. [`Config::early_data`] skips the wait.
    ///
    /// A kcp-go listener has one session per address. While it has one, a second `connect` from this
    /// endpoint gets no answer; with [`Config::early_data`], the first data ends the existing session.
    /// Use another endpoint, or [`KcpStream::connect`], for each session.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](io::ErrorKind::TimedOut) when the peer has not answered within
    /// [`Config::connect_timeout`]; [`Unsupported`](io::ErrorKind::Unsupported) with
    /// [`shards`](crate::SocketConfig::shards); [`InvalidInput`](io::ErrorKind::InvalidInput) when the
    /// socket does not support the peer's IP version; [`AddrInUse`](io::ErrorKind::AddrInUse) when the
    /// configured conversation id is in use with this peer. Other errors when no address resolves, the
    /// endpoint has ended, or it has [`max_connections`](crate::Limits::max_connections) connections.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a connection whose stream is not returned is closed, and no data is sent.
    pub async fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<KcpStream> {
        // A hosts file may list an address twice, but a peer must not get two connections.
        let mut peers: Vec<_> = lookup_host(addr).await?.map(destination).collect();
        let mut known = HashSet::new();
        peers.retain(|peer| known.insert(*peer));
        if let [peer] = peers[..] {
            return self.open(peer, None).await;
        }
        // An address of an unsupported IP version fails at once.
        connect_first(peers.into_iter(), |peer| {
            let endpoint = self.clone();
            Box::pin(async move { endpoint.open(peer, None).await })
        })
        .await
    }

    /// Opens a connection with the conversation id `conv`, for peers that expect a certain one (see
    /// [`Config::conv`]).
    ///
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let config = kcpx::Config::new().early_data(true);
    /// let endpoint = kcpx::Endpoint::bind_with("127.0.0.1:0", config).await?;
    /// let peer = "127.0.0.1:4000".parse().unwrap();
    /// let stream = endpoint.connect_with_conv(peer, 7).await?;
    /// assert_eq!(stream.conv(), 7);
    /// let again = endpoint.connect_with_conv(peer, 7).await.unwrap_err();
    /// assert_eq!(again.kind(), ErrorKind::AddrInUse);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect); [`AddrInUse`](io::ErrorKind::AddrInUse) when the id is in use with
    /// this peer, or was less than a minute ago, even by an earlier endpoint on this port.
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_with_conv(&self, peer: SocketAddr, conv: u32) -> io::Result<KcpStream> {
        self.open(peer, Some(conv)).await
    }

    async fn open(&self, peer: SocketAddr, conv: Option<u32>) -> io::Result<KcpStream> {
        self.reject_sharded("dial")?;
        let request = |reply| Request::Connect { peer: destination(peer), conv, reply };
        let Opened { handle, waits } = self.request(request).await??;
        let stream = self.stream(handle);
        if waits {
            stream.established().await?;
        }
        Ok(stream)
    }

    /// The stream of a connection of this endpoint or one of its shards.
    pub(crate) fn stream(&self, handle: Handle) -> KcpStream {
        let shard = self.shards().find(|shard| handle.is_of(shard.requests.notifier()));
        KcpStream::new(handle, shard.unwrap_or(self).requests.clone())
    }

    /// Waits until no connection lingers: the peers have acknowledged all data written to dropped or
    /// shut-down streams, or it was given up after [`Config::linger`].
    ///
    /// Open streams do not count. A stream that is shut down does, even if its `shutdown` returned
    /// because the peer waits for this side to read: read it to its end, or drop it, first. The wait
    /// includes peers that answer but do not read; limit it with `tokio::time::timeout`. A process that
    /// exits earlier sends what the congestion window takes within 50 ms and loses the rest; with TCP the
    /// kernel would deliver it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn wait_idle(&self) {
        for shard in self.shards() {
            // An error means that the endpoint has ended, with nothing left to deliver.
            drop(shard.request(Request::WaitIdle).await);
        }
    }

    /// Waits until no shard has a connection, as `drain` asks.
    pub(crate) async fn drain(&self, drain: Drain) {
        let mut answers = Vec::new();
        for shard in self.shards() {
            let (reply, answer) = oneshot::channel();
            shard.requests.push(Request::Drain(drain, reply));
            answers.push(answer);
        }
        for answer in answers {
            // An error means that the endpoint and its connections have ended.
            drop(answer.await);
        }
    }

    /// Returns the number of connections as of the driver's last turn: open, waiting to be accepted or
    /// validated, and still delivering data or their end. This is [`EndpointStats::current_connections`]
    /// without the other counters.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.shards().map(|shard| shard.requests.notifier().connections()).sum()
    }

    /// Sends the driver a request and waits for its reply.
    pub(crate) async fn request<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> io::Result<T> {
        let (reply, answer) = oneshot::channel();
        self.requests.push(request(reply));
        answer.await.map_err(|_| ConnectionError::EndpointClosed.into())
    }
}

/// The socket.
impl Endpoint {
    /// Returns the address that the socket is bound to. The IP is unspecified if it was bound so.
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpListener`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local())
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.requests.notifier().local()
    }

    /// Returns the last socket error, once (SO_ERROR). Most socket errors are transient: they count as
    /// loss, and [`stats`](Self::stats) counts them by class. If the socket became unusable or was shut
    /// down, or a cipher, filter, transport or waker of the application panicked, the endpoint has ended
    /// and this is the reason.
    ///
    /// # Errors
    ///
    /// None; the signature matches `TcpStream`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.shards().find_map(|shard| shard.requests.notifier().take_error()))
    }

    /// Returns the endpoint's counters: with [`shards`](crate::SocketConfig::shards), the sums over all
    /// sockets.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        let shards = self.shards().map(|shard| shard.requests.notifier().stats());
        shards.fold(EndpointStats::default(), Add::add)
    }
}

impl Clone for Endpoint {
    fn clone(&self) -> Self {
        let mut other = Self::attach(self.requests.clone());
        other.sibling_shards = self.sibling_shards.clone();
        other
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.requests.remove_handle();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("local", &self.local()).finish_non_exhaustive()
    }
}
