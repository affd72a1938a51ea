//! Replacing the socket of an endpoint, and raw datagrams beside its connections.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use tokio::net::{ToSocketAddrs, lookup_host};

use super::Endpoint;
#[cfg(doc)]
use crate::config::Config;
use crate::error::ConnectionError;
use crate::shared::requests::{Rebind, Request};
#[cfg(doc)]
use crate::stats::EndpointStats;
use crate::sys::MAX_DATAGRAM;
#[cfg(doc)]
use crate::sys::transport::Transport;
use crate::util::path::canonical;

/// The socket.
impl Endpoint {
    /// Binds another socket with the same options and goes on with it, see
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

    /// Goes on with another socket under the live connections, such as after the machine moved to
    /// another network. Datagrams in flight to the old socket are lost and retransmitted.
    ///
    /// To the peers the connections now come from another address: a server drops their datagrams
    /// unless connection migration is on, see [`Config::migration`].
    ///
    /// # Errors
    ///
    /// When it is no usable UDP socket; [`InvalidInput`](io::ErrorKind::InvalidInput) when it does not
    /// support the IP version of a peer; [`Unsupported`](io::ErrorKind::Unsupported) for an endpoint on a
    /// [`Transport`], or with [`shards`](crate::SocketConfig::shards);
    /// [`NotConnected`](io::ErrorKind::NotConnected) when it has ended. The old socket then stays.
    ///
    /// # Cancel safety
    ///
    /// The socket may or may not have been replaced.
    pub async fn rebind_std(&self, socket: std::net::UdpSocket) -> io::Result<()> {
        self.replace(Rebind::Socket(socket)).await
    }

    async fn replace(&self, rebind: Rebind) -> io::Result<()> {
        self.reject_sharded("be rebound")?;
        self.request(|reply| Request::Rebind(rebind, reply)).await?
    }

    /// Queues a raw datagram, of another protocol (such as STUN), which leaves from this port as
    /// it is: neither encrypted nor part of a connection. [`Config::packet_filter`] receives the
    /// answers.
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
        if self.requests.send_raw(canonical(peer), Bytes::copy_from_slice(datagram)) {
            Ok(())
        } else {
            Err(ConnectionError::EndpointClosed.into())
        }
    }
}
