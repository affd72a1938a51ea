//! `KcpStream::connect`: streams with an endpoint of their own.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::vec;

use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::time::{Sleep, sleep};

use super::Endpoint;
use super::bind::SocketContext;
use crate::config::Config;
use crate::error::{ConnectionError, unresolved};
use crate::stream::KcpStream;
use crate::sys::{RefusalWatch, UdpSocket, check_route};
use crate::util::path::{destination, unspecified};
use crate::util::sync::Arc;

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
    /// [`ConfigError`](crate::ConfigError) when the configuration is invalid.
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
pub(super) type Attempt = Pin<Box<dyn Future<Output = io::Result<KcpStream>> + Send + Sync>>;

/// Connects to the first of `peers` that answers. `start` begins an attempt.
///
/// # Errors
///
/// The error of the last attempt that failed.
pub(super) async fn connect_first(
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
