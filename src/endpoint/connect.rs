//! `KcpStream::connect`: streams with an endpoint and a socket of their own.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{ToSocketAddrs, lookup_host};

use super::Endpoint;
use crate::config::Config;
#[cfg(doc)]
use crate::error::ConnectionError;
use crate::error::unresolved;
use crate::stream::KcpStream;
use crate::sys::{canonical, check_route};

impl KcpStream {
    /// Returns the endpoint that carries this stream, for [`Endpoint::wait_idle`] and the
    /// counters.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::attach(self.requests.clone())
    }

    /// Opens a connection with the default configuration from a new socket.
    ///
    /// KCP has no handshake, so this neither waits for the peer nor fails without a listener: the
    /// peer learns of the connection with the first write. [`established`](Self::established)
    /// waits for the first answer; without an answer to a write the connection ends with
    /// [`DeadPeer`](ConnectionError::DeadPeer). Of several addresses the first with a route is
    /// taken.
    ///
    /// # Errors
    ///
    /// When no address resolves, the system has a route to none of them, no socket can be made, or
    /// outside a Tokio runtime with I/O and time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_boxed(addr, Box::default()).await
    }

    /// Opens a connection from a new socket.
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
        Self::connect_boxed(addr, Box::new(config)).await
    }

    /// The configuration in a box: futures that hold this one stay small.
    async fn connect_boxed(addr: impl ToSocketAddrs, config: Box<Config>) -> io::Result<Self> {
        config.validate()?;
        let mut failure = None;
        for peer in lookup_host(addr).await?.map(canonical) {
            let started = check_route(peer, &config.socket).and_then(|()| {
                let local = SocketAddr::new(unspecified(peer), 0);
                Endpoint::start(local, Config::clone(&config), None)
            });
            match started {
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
