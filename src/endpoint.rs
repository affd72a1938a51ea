//! One UDP socket with its driver, as the application holds it.

mod connect;
mod shards;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Add;

use bytes::Bytes;
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use self::shards::Group;
use crate::config::{Config, SEGMENT_HEADER, check_conv};
use crate::driver::{Driver, DriverTask};
use crate::error::{ConfigError, ConnectionError};
use crate::listener::{AcceptQueue, KcpListener};
use crate::shared::notifier::{Mailbox, Rebind, Request};
use crate::stats::EndpointStats;
use crate::stream::KcpStream;
use crate::sys::transport::Transport;
use crate::sys::{MAX_DATAGRAM, Socket, TransportSocket, UdpSocket, canonical};
use crate::util::sync::Arc;

/// A UDP socket that carries any number of conversations, driven by one task.
///
/// [`KcpListener`] and [`KcpStream::connect`] make their own; an endpoint made by hand dials and
/// accepts on one socket, and several conversations with one peer are independent streams: none
/// waits for another one's lost data.
///
/// The socket lives until the last endpoint handle, listener and stream are gone and everything
/// that was written is delivered or given up.
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
    mailbox: Arc<Mailbox>,
    /// The other shards of a listener.
    sibling_shards: Option<Arc<[Self]>>,
}

/// Making one.
impl Endpoint {
    /// Binds a socket with the default configuration.
    ///
    /// # Errors
    ///
    /// When no resolved address can be bound, or outside a Tokio runtime with I/O and time
    /// enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(addr, Config::default()).await
    }

    /// Binds a socket; the first resolved address that can be bound is taken. Every conversation
    /// has this configuration.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind), or [`InvalidInput`](io::ErrorKind::InvalidInput) around a
    /// [`ConfigError`] when the configuration is refused.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn bind_with(addr: impl ToSocketAddrs, config: Config) -> io::Result<Self> {
        Self::bind_first(addr, config, |addr, config| Self::start(addr, config, None)).await
    }

    /// Takes over a bound UDP socket, blocking or not.
    ///
    /// Its options stay as they are: [`Config::socket`] is not applied. It becomes non-blocking. The
    /// endpoint owns it and drops it when it ends; whoever wants to keep the socket passes a
    /// [`try_clone`](std::net::UdpSocket::try_clone), which shares all of that.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let addr = socket.local_addr()?;
    /// let endpoint = kcpx::Endpoint::from_std(socket, kcpx::Config::new())?;
    /// assert_eq!(endpoint.local_addr()?, addr);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When it is no usable UDP socket, the configuration is refused, or outside a Tokio runtime.
    ///
    /// # Panics
    ///
    /// In a Tokio runtime without I/O or time.
    pub fn from_std(socket: std::net::UdpSocket, config: Config) -> io::Result<Self> {
        Self::adopt_socket(socket, config, None)
    }

    /// Runs conversations over a transport of the application's. [`Config::socket`] has no meaning
    /// for it.
    ///
    /// # Errors
    ///
    /// When the configuration is refused, which an MTU above
    /// [`max_datagram_size`](Transport::max_datagram_size) is as well, the transport has no
    /// address, or outside a Tokio runtime.
    ///
    /// # Panics
    ///
    /// In a Tokio runtime without time.
    pub fn from_transport(transport: impl Transport, config: Config) -> io::Result<Self> {
        config.validate()?;
        let adapter = TransportSocket::new(transport)?;
        let least = (config.overhead() + SEGMENT_HEADER) as u64 + 1;
        let most = adapter.max_datagram() as u64;
        ConfigError::check("mtu (bytes)", config.kcp.mtu, least, most)?;
        Self::spawn(adapter, config, None, None)
    }

    async fn bind_first(
        addr: impl ToSocketAddrs,
        config: Config,
        start: impl Fn(SocketAddr, Config) -> io::Result<Self>,
    ) -> io::Result<Self> {
        config.validate()?;
        let mut failure = None;
        for addr in lookup_host(addr).await? {
            match start(addr, config.clone()) {
                Ok(endpoint) => return Ok(endpoint),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(unresolved))
    }

    /// Binds a socket, for a configuration that was checked.
    fn start(
        addr: SocketAddr,
        config: Config,
        accept: Option<Arc<AcceptQueue>>,
    ) -> io::Result<Self> {
        Self::spawn(UdpSocket::bind(addr, &config.socket)?, config, accept, None)
    }

    pub(crate) fn adopt_socket(
        socket: std::net::UdpSocket,
        config: Config,
        accept: Option<Arc<AcceptQueue>>,
    ) -> io::Result<Self> {
        config.validate()?;
        Self::spawn(UdpSocket::from_std(socket)?, config, accept, None)
    }

    fn spawn<S: Socket + Unpin>(
        socket: S,
        config: Config,
        accept: Option<Arc<AcceptQueue>>,
        group: Option<&Group>,
    ) -> io::Result<Self> {
        Handle::try_current().map_err(io::Error::other)?;
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        let mailbox = Mailbox::of(group.is_some());
        let now = tokio::time::Instant::now().into_std();
        let mut driver = Driver::new(socket, config, mailbox.clone(), accept, seed, now)?;
        if let Some(group) = group {
            group.join(&mut driver);
        }
        let endpoint = Self::attach(mailbox);
        #[expect(clippy::disallowed_methods, reason = "the one task of a socket")]
        drop(tokio::spawn(DriverTask::new(driver)));
        Ok(endpoint)
    }

    /// Another handle to the endpoint behind `mailbox`.
    pub(crate) fn attach(mailbox: Arc<Mailbox>) -> Self {
        mailbox.add_handle();
        Self { mailbox, sibling_shards: None }
    }
}

/// Conversations.
impl Endpoint {
    /// Opens a conversation with `peer`. Its id is [`Config::conv`], or else a random one.
    ///
    /// There is no handshake on this wire: the peer learns of the conversation with the first
    /// write. [`KcpStream::established`] tells when it has answered.
    ///
    /// # Errors
    ///
    /// When the endpoint has ended, or has
    /// [`max_connections`](crate::Limits::max_connections) conversations;
    /// [`Unsupported`](io::ErrorKind::Unsupported) with [`shards`](crate::SocketConfig::shards);
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) when the socket does not speak the peer's IP
    /// version; [`AddrInUse`](io::ErrorKind::AddrInUse) when the configured id is in use with this
    /// peer.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a conversation that nobody receives is let go before anything is sent.
    pub async fn connect(&self, peer: SocketAddr) -> io::Result<KcpStream> {
        self.open(peer, None).await
    }

    /// Opens the conversation with the id `conv`, for peers that expect a certain one.
    ///
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let endpoint = kcpx::Endpoint::bind("127.0.0.1:0").await?;
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
    /// As [`connect`](Self::connect); [`InvalidInput`](io::ErrorKind::InvalidInput) around a
    /// [`ConfigError`] for 0; [`AddrInUse`](io::ErrorKind::AddrInUse) when the id is in use with
    /// this peer, or was so less than a minute ago.
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_with_conv(&self, peer: SocketAddr, conv: u32) -> io::Result<KcpStream> {
        check_conv(conv)?;
        self.open(peer, Some(conv)).await
    }

    async fn open(&self, peer: SocketAddr, conv: Option<u32>) -> io::Result<KcpStream> {
        self.reject_sharded("dial")?;
        self.ask(|reply| Request::Connect { peer: canonical(peer), conv, reply }).await?
    }

    /// Begins to accept conversations that peers open, until the listener is dropped. What arrives
    /// while there is none is refused.
    ///
    /// # Errors
    ///
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) while the endpoint has a listener;
    /// [`Unsupported`](io::ErrorKind::Unsupported) with [`shards`](crate::SocketConfig::shards);
    /// [`NotConnected`](io::ErrorKind::NotConnected) when it has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a listener that nobody receives is dropped.
    pub async fn listen(&self) -> io::Result<KcpListener> {
        self.reject_sharded("listen")?;
        self.ask(Request::Listen).await?
    }

    /// Waits until everything that dropped or shut down streams left behind is acknowledged by
    /// its peer, or given up after [`Config::linger`].
    ///
    /// Streams that are still open do not count. A process that ends before this resolves loses
    /// what was not delivered yet; with TCP the kernel would have kept it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn wait_idle(&self) {
        for shard in self.shards() {
            // An endpoint that has ended has nothing left to deliver.
            drop(shard.ask(Request::WaitIdle).await);
        }
    }

    /// Hands the driver a command and waits for its reply.
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Request) -> io::Result<T> {
        let (reply, answer) = oneshot::channel();
        self.mailbox.command(command(reply));
        answer.await.map_err(|_| ConnectionError::EndpointClosed.into())
    }
}

/// The socket.
impl Endpoint {
    /// Returns the address the socket is bound to. Its IP is unspecified if it was bound so.
    ///
    /// # Errors
    ///
    /// None; the signature is that of `TcpListener`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local())
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.mailbox.local()
    }

    /// Binds another socket as this one was, and goes on with it, see
    /// [`rebind_std`](Self::rebind_std). Port 0 asks the system for a free one.
    ///
    /// # Errors
    ///
    /// As [`rebind_std`](Self::rebind_std), and when no resolved address can be bound.
    ///
    /// # Cancel safety
    ///
    /// The socket may or may not have been replaced.
    pub async fn rebind(&self, addr: impl ToSocketAddrs) -> io::Result<()> {
        self.replace(Rebind::Bind(lookup_host(addr).await?.collect())).await
    }

    /// Goes on with another socket under the live conversations, such as after the machine came
    /// into another network. What is under way to the old one is lost and sent again.
    ///
    /// To the peers the conversations now come from another address: a server drops what they send
    /// as a stranger's unless it follows them, see [`Config::migration`].
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) when the new socket does not speak the IP
    /// version of a peer; [`Unsupported`](io::ErrorKind::Unsupported) for an endpoint on a
    /// [`Transport`], or with [`shards`](crate::SocketConfig::shards); [`NotConnected`](io::ErrorKind::NotConnected) when it has ended. The old
    /// socket then stays.
    ///
    /// # Cancel safety
    ///
    /// The socket may or may not have been replaced.
    pub async fn rebind_std(&self, socket: std::net::UdpSocket) -> io::Result<()> {
        self.replace(Rebind::Socket(Box::new(UdpSocket::from_std(socket)?))).await
    }

    async fn replace(&self, rebind: Rebind) -> io::Result<()> {
        self.reject_sharded("be rebound")?;
        self.ask(|reply| Request::Rebind(rebind, reply)).await?
    }

    /// Queues a datagram of another protocol, which leaves from this port as it is: neither
    /// encrypted nor in any conversation. [`Config::packet_filter`] receives what comes back.
    ///
    /// Up to 256 wait for the socket; beyond that the oldest is dropped and counted in
    /// [`raw_dropped_datagrams`](EndpointStats::raw_dropped_datagrams).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for an empty datagram and above 65,507 bytes;
    /// [`NotConnected`](io::ErrorKind::NotConnected) when the endpoint has ended.
    pub fn send_raw(&self, peer: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        let len = datagram.len();
        if !(1..=MAX_DATAGRAM).contains(&len) {
            let text = format!("the datagram has {len} bytes, allowed are 1 to {MAX_DATAGRAM}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if self.mailbox.send_raw(canonical(peer), Bytes::copy_from_slice(datagram)) {
            Ok(())
        } else {
            Err(ConnectionError::EndpointClosed.into())
        }
    }

    /// Returns the last error that the socket reported, once. Hardly any of them ends a
    /// conversation: they count as loss, and [`stats`](Self::stats) says how many of which kind
    /// there were. When the socket became unusable, which ends the endpoint, this says why.
    ///
    /// # Errors
    ///
    /// None; the signature is that of `TcpStream`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.shards().find_map(|shard| shard.mailbox.take_fault()))
    }

    /// A snapshot of the endpoint's counters: of a listener with
    /// [`shards`](crate::SocketConfig::shards) those of all sockets together.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        let shards = self.shards().map(|shard| shard.mailbox.stats());
        shards.fold(EndpointStats::default(), Add::add)
    }
}

impl Clone for Endpoint {
    fn clone(&self) -> Self {
        let mut other = Self::attach(self.mailbox.clone());
        other.sibling_shards = self.sibling_shards.clone();
        other
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.mailbox.remove_handle();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("local", &self.local()).finish_non_exhaustive()
    }
}

pub(crate) fn unresolved() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the name resolves to no address")
}
