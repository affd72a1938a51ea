//! One UDP socket with its driver, as the application holds it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::driver::{Driver, DriverTask};
use crate::error::ConnectionError;
use crate::listener::AcceptQueue;
use crate::mailbox::{Command, Mailbox};
use crate::stats::EndpointStats;
use crate::stream::KcpStream;
use crate::sync::Arc;
use crate::sys::{UdpSocket, canonical};

/// A UDP socket that carries any number of conversations, driven by one task.
///
/// [`KcpListener`](crate::KcpListener) and [`KcpStream::connect`] make their own; an endpoint made
/// by hand dials several conversations from one socket.
///
/// The socket lives until the last endpoint handle, listener and stream are gone and everything
/// that was written is delivered or given up.
pub struct Endpoint {
    mailbox: Arc<Mailbox>,
}

impl Endpoint {
    /// Binds a socket for outgoing conversations.
    ///
    /// # Errors
    ///
    /// When no resolved address can be bound, outside a Tokio runtime with I/O and time enabled,
    /// or [`InvalidInput`](io::ErrorKind::InvalidInput) around a
    /// [`ConfigError`](crate::ConfigError) when the configuration is refused.
    pub async fn bind_with(addr: impl ToSocketAddrs, config: Config) -> io::Result<Self> {
        Self::start(addr, config, None).await
    }

    /// Binds the first resolved address that can be bound, and starts the driver.
    pub(crate) async fn start(
        addr: impl ToSocketAddrs,
        config: Config,
        accept: Option<Arc<AcceptQueue>>,
    ) -> io::Result<Self> {
        config.validate()?;
        let mut failure = None;
        for addr in lookup_host(addr).await? {
            match UdpSocket::bind(addr, &config.socket) {
                Ok(socket) => return Self::spawn(socket, config, accept),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(unresolved))
    }

    fn spawn(
        socket: UdpSocket,
        config: Config,
        accept: Option<Arc<AcceptQueue>>,
    ) -> io::Result<Self> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        let mailbox = Mailbox::new();
        let now = tokio::time::Instant::now().into_std();
        let driver = Driver::new(socket, config, mailbox.clone(), accept, seed, now)?;
        let endpoint = Self::attach(mailbox);
        #[expect(clippy::disallowed_methods, reason = "the one task of a socket")]
        drop(tokio::spawn(DriverTask::new(driver)));
        Ok(endpoint)
    }

    /// Another handle to the endpoint behind `mailbox`.
    pub(crate) fn attach(mailbox: Arc<Mailbox>) -> Self {
        mailbox.add_handle();
        Self { mailbox }
    }

    /// Opens a conversation with `peer`.
    ///
    /// There is no handshake on this wire: the peer learns of the conversation with the first
    /// write. [`KcpStream::established`] tells when it has answered.
    ///
    /// # Errors
    ///
    /// When the endpoint has ended, or has
    /// [`max_connections`](crate::Limits::max_connections) conversations.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a conversation that nobody receives is let go before anything is sent.
    pub async fn connect(&self, peer: SocketAddr) -> io::Result<KcpStream> {
        let (reply, stream) = oneshot::channel();
        self.mailbox.command(Command::Connect { peer: canonical(peer), reply });
        stream.await.map_err(|_| io::Error::from(ConnectionError::EndpointClosed))?
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
        let (reply, idle) = oneshot::channel();
        self.mailbox.command(Command::WaitIdle(reply));
        // An endpoint that has ended has nothing left to deliver.
        drop(idle.await);
    }

    /// Returns the address the socket is bound to.
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

    /// A snapshot of the endpoint's counters.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.mailbox.stats()
    }
}

impl Clone for Endpoint {
    fn clone(&self) -> Self {
        Self::attach(self.mailbox.clone())
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

impl KcpStream {
    /// Returns the endpoint that carries this stream, for [`Endpoint::wait_idle`] and the
    /// counters.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::attach(self.handle().mailbox().clone())
    }

    /// Opens a conversation with the default configuration from a fresh socket.
    ///
    /// There is no handshake on this wire, so this neither waits for the peer nor fails because
    /// nobody listens: the peer learns of the conversation with the first write.
    /// [`established`](Self::established) tells when it has answered, and a peer that never does
    /// ends the conversation with [`DeadPeer`](ConnectionError::DeadPeer).
    ///
    /// # Errors
    ///
    /// When no address resolves, no socket can be made for one, or outside a Tokio runtime with
    /// I/O and time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(addr, Config::default()).await
    }

    /// Opens a conversation from a fresh socket.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect); [`InvalidInput`](io::ErrorKind::InvalidInput) around a
    /// [`ConfigError`](crate::ConfigError) when the configuration is refused.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect_with(addr: impl ToSocketAddrs, config: Config) -> io::Result<Self> {
        let mut failure = None;
        for peer in lookup_host(addr).await? {
            let local = SocketAddr::new(unspecified(peer), 0);
            match Endpoint::start(local, config.clone(), None).await {
                Ok(endpoint) => return endpoint.connect(peer).await,
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(unresolved))
    }
}

fn unspecified(peer: SocketAddr) -> IpAddr {
    match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn unresolved() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the name resolves to no address")
}
