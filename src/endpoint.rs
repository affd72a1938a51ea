//! [`Endpoint`]: the application's handle to a UDP socket and its driver.

mod port_reuse;

use std::collections::HashSet;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::ops::Add;
use std::pin::{Pin, pin};
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::vec;

use bytes::Bytes;
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use self::port_reuse::Bound;
use crate::config::{Config, SEGMENT_HEADER, SocketConfig};
use crate::driver::Driver;
use crate::driver::ShardState;
use crate::driver::task::DriverTask;
use crate::error::{ConfigError, ConnectionError, unresolved};
use crate::shared::accept_queue::AcceptQueue;
use crate::shared::connection::Handle;
use crate::shared::requests::{Drain, Opened, Rebind, Request, RequestQueue, TimeWaitEntry};
use crate::stats::EndpointStats;
use crate::stream::KcpStream;
use crate::sys::transport::Transport;
use crate::sys::{MAX_DATAGRAM, RefusalWatch, Socket, TransportSocket, UdpSocket};
use crate::sys::{check_route, watch_network};
use crate::util::path::{canonical, destination, unspecified};
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
    /// the socket options of [`Config`] are not applied. The endpoint closes the socket when it ends; pass a
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
    /// [`ConfigError`] when the configuration is invalid, or when [`shards`](crate::Config::shards)
    /// is not 1: [`KcpListener::from_std_group`](crate::KcpListener::from_std_group) takes several
    /// sockets.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with I/O and time enabled.
    pub fn from_std_with(socket: std::net::UdpSocket, config: Config) -> io::Result<Self> {
        Self::adopt_socket(socket, config, None)
    }

    /// Runs connections over the application's own [`Transport`]. The socket
    /// options of [`Config`] are not applied.
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
    /// [`shards`](crate::Config::shards); [`InvalidInput`](io::ErrorKind::InvalidInput) when the
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
    /// validated, and still delivering data or their end. This is
    /// [`ConnectionCounts::current`](crate::stats::ConnectionCounts::current) without the other counters.
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

    /// Returns the endpoint's counters: with [`shards`](crate::Config::shards), the sums over all
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

/// Replacing the socket, and raw datagrams.
impl Endpoint {
    /// Binds another socket with the same options and continues on it, see
    /// [`rebind_std`](Self::rebind_std). Port 0 asks the system for a free port.
    ///
    /// # Errors
    ///
    /// As [`rebind_std`](Self::rebind_std), and when no resolved address can be bound.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the socket may or may not be replaced.
    pub async fn rebind(&self, addr: impl ToSocketAddrs) -> io::Result<()> {
        self.replace(Rebind::Bind(lookup_host(addr).await?.collect())).await
    }

    /// Continues the live connections on another socket, such as after a change of networks. Datagrams in
    /// flight to the old socket are lost and retransmitted.
    ///
    /// Peers then see another address: a server follows with an AEAD cipher, and otherwise drops the
    /// datagrams, see [`Config::migration`]. Connections begin anew as with
    /// [`network_changed`](Self::network_changed).
    ///
    /// # Errors
    ///
    /// When the socket is not a usable UDP socket; [`InvalidInput`](io::ErrorKind::InvalidInput) when it
    /// does not support a peer's IP version; [`Unsupported`](io::ErrorKind::Unsupported) for an endpoint
    /// on a [`Transport`] or with [`shards`](crate::Config::shards);
    /// [`NotConnected`](io::ErrorKind::NotConnected) when the endpoint has ended. The old socket then
    /// stays.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the socket may or may not be replaced.
    pub async fn rebind_std(&self, socket: std::net::UdpSocket) -> io::Result<()> {
        self.replace(Rebind::Socket(socket)).await
    }

    /// Tells all connections that the network of this host has changed, see
    /// [`KcpStream::network_changed`]. With the feature `netlink` an endpoint on Linux does this by itself
    /// for the connections that it opened. Does nothing when the endpoint has ended.
    pub fn network_changed(&self) {
        self.shards().for_each(|shard| shard.requests.push(Request::NetworkChanged));
    }

    async fn replace(&self, rebind: Rebind) -> io::Result<()> {
        self.reject_sharded("be rebound")?;
        self.request(|reply| Request::Rebind(rebind, reply)).await?
    }

    /// Queues a raw datagram of another protocol, such as STUN. It leaves from this port unchanged:
    /// neither encrypted nor part of a connection. [`Config::packet_filter`] receives the answers.
    ///
    /// Up to 256 datagrams wait for the socket; the oldest is dropped beyond it and counted in
    /// [`RawStats::dropped`](crate::stats::RawStats::dropped).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) unless the datagram has 1 to 65,507 bytes;
    /// [`NotConnected`](io::ErrorKind::NotConnected) when the endpoint has ended.
    pub fn send_raw(&self, peer: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        let len = datagram.len();
        if !(1..=MAX_DATAGRAM).contains(&len) {
            let text = format!("the datagram must have 1 to {MAX_DATAGRAM} bytes, got {len}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if self.requests.send_raw(canonical(peer), Bytes::copy_from_slice(datagram)) {
            Ok(())
        } else {
            Err(ConnectionError::EndpointClosed.into())
        }
    }
}

/// Parts of a new driver that other drivers share or leave behind.
#[derive(Debug, Default)]
struct SocketContext {
    /// Queue of passively opened connections.
    accept: Option<Arc<AcceptQueue>>,
    /// State shared by the drivers of several shards.
    shard_state: Option<ShardState>,
    /// Connections in TIME-WAIT of the port's previous endpoints.
    time_wait: Vec<TimeWaitEntry>,
}

/// Binding sockets and starting their drivers.
impl Endpoint {
    /// Binds one socket to the first resolved address that can be bound.
    async fn bind_socket(addr: impl ToSocketAddrs, config: Box<Config>) -> io::Result<Self> {
        Self::bind_first(addr, config, |addr, config, time_wait| {
            Self::start(addr, config, SocketContext { time_wait, ..SocketContext::default() })
        })
        .await
    }

    /// Binds the sockets of a listener and starts a driver for each.
    pub(crate) async fn bind_listener(
        addr: impl ToSocketAddrs,
        config: Box<Config>,
        accept: &Arc<AcceptQueue>,
    ) -> io::Result<Self> {
        Self::bind_first(addr, config, |addr, config, time_wait| {
            Self::start_group(addr, &config, accept, &time_wait)
        })
        .await
    }

    /// The configuration is boxed to keep the callers' futures small.
    async fn bind_first(
        addr: impl ToSocketAddrs,
        config: Box<Config>,
        start: impl Fn(SocketAddr, Config, Vec<TimeWaitEntry>) -> io::Result<Self>,
    ) -> io::Result<Self> {
        config.validate()?;
        let mut failure = None;
        for addr in lookup_host(addr).await? {
            let mut bound = start(addr, Config::clone(&config), Vec::new());
            if bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
                let time_wait = Box::pin(port_reuse::release(addr, &config.socket)).await;
                bound = start(addr, Config::clone(&config), time_wait);
            }
            match bound {
                Ok(endpoint) => return Ok(endpoint),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(unresolved))
    }

    /// Binds a socket and starts its driver. The configuration is validated.
    fn start(addr: SocketAddr, config: Config, context: SocketContext) -> io::Result<Self> {
        Self::spawn_on(UdpSocket::bind(addr, &config.socket)?, config.into(), context)
    }

    /// Starts the driver of a UDP socket, whose port a later endpoint may take over.
    fn spawn_on(
        socket: UdpSocket,
        config: Arc<Config>,
        context: SocketContext,
    ) -> io::Result<Self> {
        let bound = Bound::new(&socket, &config.socket);
        let endpoint = Self::spawn(socket, config, context)?;
        port_reuse::register(&endpoint.requests, bound);
        let watcher = Arc::downgrade(&endpoint.requests);
        watch_network(watcher);
        Ok(endpoint)
    }

    pub(crate) fn adopt_socket(
        socket: std::net::UdpSocket,
        config: Config,
        accept: Option<Arc<AcceptQueue>>,
    ) -> io::Result<Self> {
        config.validate()?;
        check_shards(config.socket.shards, 1)?;
        let context = SocketContext { accept, ..SocketContext::default() };
        Self::spawn_on(UdpSocket::from_std(socket)?, config.into(), context)
    }

    /// Adopts the sockets of a listener and starts a driver for each.
    pub(crate) fn adopt_group(
        sockets: Vec<std::net::UdpSocket>,
        config: &Config,
        accept: &Arc<AcceptQueue>,
    ) -> io::Result<Self> {
        config.validate()?;
        let group = ShardGroup::adopt(sockets, config.socket.shards)?;
        let config = config.clone().shards(group.sockets.len());
        config.validate()?;
        Self::spawn_group(group, &config, accept, &[])
    }

    fn start_group(
        addr: SocketAddr,
        config: &Config,
        accept: &Arc<AcceptQueue>,
        time_wait: &[TimeWaitEntry],
    ) -> io::Result<Self> {
        let group = ShardGroup::bind(addr, &config.socket)?;
        Self::spawn_group(group, config, accept, time_wait)
    }

    fn spawn_group(
        ShardGroup { sockets, state }: ShardGroup,
        config: &Config,
        accept: &Arc<AcceptQueue>,
        time_wait: &[TimeWaitEntry],
    ) -> io::Result<Self> {
        let (mut shards, config) = (Vec::new(), Arc::new(config.clone()));
        for socket in sockets {
            // After a restart the system may deliver a peer's datagrams to another shard.
            let (accept, time_wait) = (Some(accept.clone()), time_wait.to_vec());
            let context = SocketContext { accept, shard_state: state.clone(), time_wait };
            shards.push(Self::spawn_on(socket, config.clone(), context)?);
        }
        Ok(Self::join(shards))
    }

    /// The endpoint of all these shards.
    pub(crate) fn join(mut shards: Vec<Self>) -> Self {
        let mut first = shards.swap_remove(0);
        first.sibling_shards = (!shards.is_empty()).then(|| shards.into());
        first
    }

    fn spawn<S: Socket + Unpin>(
        socket: S,
        config: impl Into<Arc<Config>>,
        context: SocketContext,
    ) -> io::Result<Self> {
        let SocketContext { accept, shard_state, time_wait } = context;
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        let requests = RequestQueue::with_sharded(shard_state.is_some());
        let now = tokio::time::Instant::now().into_std();
        let mut driver = Driver::new(socket, config, requests.clone(), accept, seed, now)?;
        if let Some(state) = shard_state {
            driver.join_shards(state);
        }
        driver.inherit_time_wait(time_wait);
        let endpoint = Self::attach(requests);
        #[expect(clippy::disallowed_methods, reason = "the one task of a socket")]
        drop(tokio::spawn(DriverTask::new(driver)));
        Ok(endpoint)
    }
}

/// Shards: the sockets of a listener, bound to one address (SO_REUSEPORT), each with its own driver.
///
/// The system delivers all datagrams from one address to the same socket while the set of sockets does
/// not change. So all sockets are bound before the first driver starts, and none is closed before the
/// last driver has ended. The drivers share only the accept queue and a [`ShardState`].
struct ShardGroup {
    sockets: Vec<UdpSocket>,
    /// `None` for a single socket.
    state: Option<ShardState>,
}

impl ShardGroup {
    /// Binds [`Config::shards`] sockets.
    fn bind(addr: SocketAddr, config: &SocketConfig) -> io::Result<Self> {
        Ok(Self::of(UdpSocket::bind_group(addr, config)?))
    }

    /// Adopts sockets that are bound to one address. `wanted` is [`Config::shards`].
    fn adopt(sockets: Vec<std::net::UdpSocket>, wanted: usize) -> io::Result<Self> {
        let mut addrs = Vec::new();
        for socket in &sockets {
            addrs.push(socket.local_addr()?);
        }
        let Some(addr) = addrs.first() else {
            return Err(invalid("the list of sockets is empty: pass at least one"));
        };
        if let Some(other) = addrs.iter().find(|other| *other != addr) {
            return Err(invalid(&format!(
                "the sockets must be bound to one address, got {addr} and {other}"
            )));
        }
        if addr.port() == 0 {
            return Err(invalid("a socket is not bound: bind it first"));
        }
        check_shards(wanted, sockets.len())?;
        Ok(Self::of(UdpSocket::adopt_group(sockets)?))
    }

    fn of(sockets: Vec<UdpSocket>) -> Self {
        let state = (sockets.len() > 1).then(ShardState::new);
        Self { sockets, state }
    }
}

/// Checks that a configuration for adopted sockets does not ask for another number of them.
fn check_shards(wanted: usize, sockets: usize) -> io::Result<()> {
    if wanted == 1 || wanted == sockets {
        return Ok(());
    }
    Err(invalid(&format!(
        "shards (sockets) must be 1 or the number of sockets passed, {sockets}, got {wanted}; \
         `KcpListener::from_std_group` takes several"
    )))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Delay between the starts of two attempts (RFC 8305 5, Connection Attempt Delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Shared by all streams of [`KcpStream::connect`].
static DEFAULT: LazyLock<Arc<Config>> = LazyLock::new(Arc::default);

impl KcpStream {
    /// Returns the stream's endpoint, for [`Endpoint::wait_idle`] and its counters.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::attach(self.requests.clone())
    }

    /// Opens a connection with the default configuration from a new socket, and waits until the peer has
    /// answered. The unspecified address means this host, as for `TcpStream` on Linux.
    ///
    /// If `addr` resolves to several addresses, the next one is tried after 250 ms or when the previous
    /// one fails. The first that answers wins (RFC 8305).
    ///
    /// # Errors
    ///
    /// [`TimedOut`](io::ErrorKind::TimedOut) when no peer has answered within
    /// [`Config::connect_timeout`]; [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) when the peer
    /// no longer listens, or, on Linux and Android, when its host reports that the port is closed. Other
    /// errors when no address resolves, none has a route, or no socket can be created.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with I/O and time enabled, as `TcpStream`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_shared(addr, DEFAULT.clone()).await
    }

    /// Opens a connection from a new socket. With [`Config::early_data`] it does not wait for the peer,
    /// and takes the first address that has a route.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect); [`InvalidInput`](io::ErrorKind::InvalidInput) with a
    /// [`ConfigError`] when the configuration is invalid.
    ///
    /// # Panics
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect_with(addr: impl ToSocketAddrs, config: Config) -> io::Result<Self> {
        Self::connect_shared(addr, Arc::new(config)).await
    }

    /// The configuration is shared to keep the callers' futures small.
    async fn connect_shared(addr: impl ToSocketAddrs, config: Arc<Config>) -> io::Result<Self> {
        config.validate()?;
        let peers = lookup_host(addr).await?.map(destination);
        connect_first(peers, |peer| Box::pin(attempt(peer, config.clone()))).await
    }
}

/// A connection attempt to one address.
type Attempt = Pin<Box<dyn Future<Output = io::Result<KcpStream>> + Send + Sync>>;

/// Connects to the first of `peers` that answers. `start` begins an attempt.
///
/// # Errors
///
/// The error of the last attempt that failed.
async fn connect_first(
    peers: impl Iterator<Item = SocketAddr>,
    start: impl Fn(SocketAddr) -> Attempt,
) -> io::Result<KcpStream> {
    let mut attempts = Attempts::new(interleave(peers));
    poll_fn(|cx| attempts.poll(cx, &start)).await
}

/// Attempts to connect to several addresses of one peer, with overlap (RFC 8305 5).
struct Attempts {
    peers: vec::IntoIter<SocketAddr>,
    running: Vec<Attempt>,
    /// When the next attempt starts; `None`: now.
    next: Option<Pin<Box<Sleep>>>,
    failure: Option<io::Error>,
}

impl Attempts {
    fn new(peers: Vec<SocketAddr>) -> Self {
        Self { peers: peers.into_iter(), running: Vec::new(), next: None, failure: None }
    }

    /// Ready with the first stream, or with the last error once all attempts have failed.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        start: impl Fn(SocketAddr) -> Attempt,
    ) -> Poll<io::Result<KcpStream>> {
        loop {
            let mut index = 0;
            while let Some(attempt) = self.running.get_mut(index) {
                match attempt.as_mut().poll(cx) {
                    Poll::Ready(Ok(stream)) => return Poll::Ready(Ok(stream)),
                    Poll::Ready(Err(error)) => {
                        // An unsupported address does not explain the failure of others.
                        if self.failure.is_none() || error.kind() != io::ErrorKind::InvalidInput {
                            self.failure = Some(error);
                        }
                        drop(self.running.remove(index));
                        self.next = None;
                    }
                    Poll::Pending => index += 1,
                }
            }
            let left = !self.peers.as_slice().is_empty();
            if !left && self.running.is_empty() {
                return Poll::Ready(Err(self.failure.take().unwrap_or_else(unresolved)));
            }
            if !left || self.next.as_mut().is_some_and(|next| next.as_mut().poll(cx).is_pending()) {
                return Poll::Pending;
            }
            let attempt = self.peers.next().map(&start);
            let is_last = self.peers.as_slice().is_empty();
            self.next = (!is_last).then(|| Box::pin(sleep(ATTEMPT_DELAY)));
            self.running.extend(attempt);
        }
    }
}

/// Alternates address families, beginning with the family of the first address (RFC 8305 4).
fn interleave(peers: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let peers: Vec<_> = peers.collect();
    let first_is_v4 = peers.first().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) =
        peers.into_iter().partition(|peer| peer.is_ipv4() == first_is_v4);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut turns = Vec::new();
    while first.len() + second.len() > 0 {
        turns.extend(first.next());
        turns.extend(second.next());
    }
    turns
}

/// Connects to one address from a new socket.
async fn attempt(peer: SocketAddr, config: Arc<Config>) -> io::Result<KcpStream> {
    check_route(peer, &config.socket)?;
    let local = unspecified(peer);
    let socket = UdpSocket::bind(local, &config.socket)?;
    // Only while connecting: later, an attacker who guesses the port could end the connection with a
    // forged report. Systems without such reports rely on the connect timeout.
    let watch = if config.early_data { None } else { RefusalWatch::new(&socket, peer).ok() };
    let endpoint = Endpoint::spawn_on(socket, config, SocketContext::default())?;
    let mut connected = pin!(endpoint.connect(peer));
    let Some(watch) = watch else { return connected.await };
    let mut refused = pin!(watch.refused());
    poll_fn(|cx| {
        if let Poll::Ready(result) = connected.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        ready!(refused.as_mut().poll(cx));
        match connected.as_mut().poll(cx) {
            // An answer that the driver took first wins.
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => Poll::Ready(Err(ConnectionError::PortUnreachable.into())),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let [a, b, c]: [SocketAddr; 3] =
            ["[::1]:1", "[::2]:1", "127.0.0.1:1"].map(|addr| addr.parse().unwrap());
        assert_eq!(interleave([a, b, c].into_iter()), [a, c, b]);
        assert_eq!(interleave([c, a, b].into_iter()), [c, a, b]);
        assert_eq!(interleave([a, b].into_iter()), [a, b]);
        assert_eq!(interleave([].into_iter()), []);
    }

    /// Attempts from a single endpoint, as a connector makes them.
    #[tokio::test]
    async fn every_address_is_tried_until_one_answers() {
        let endpoint = Endpoint::bind("127.0.0.1:0").await.unwrap();
        let listener = crate::KcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let start = |peer| -> Attempt {
            let endpoint = endpoint.clone();
            Box::pin(async move { endpoint.connect(peer).await })
        };
        let of_the_other_version = "[::1]:9".parse().unwrap();
        let peers =
            [of_the_other_version, silent.local_addr().unwrap(), listener.local_addr().unwrap()];
        let stream = connect_first(peers.into_iter(), start).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), peers[2]);
        let error = connect_first([].into_iter(), start).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
