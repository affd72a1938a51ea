//! Replacing the socket of an endpoint, and sending raw datagrams.

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
    /// Peers then see another address: a server drops the datagrams unless it allows connection
    /// migration, see [`Config::migration`].
    ///
    /// # Errors
    ///
    /// When the socket is not a usable UDP socket; [`InvalidInput`](io::ErrorKind::InvalidInput) when it
    /// does not support a peer's IP version; [`Unsupported`](io::ErrorKind::Unsupported) for an endpoint
    /// on a [`Transport`] or with [`shards`](crate::SocketConfig::shards);
    /// [`NotConnected`](io::ErrorKind::NotConnected) when the endpoint has ended. The old socket then
    /// stays.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the socket may or may not be replaced.
    pub async fn rebind_std(&self, socket: std::net::UdpSocket) -> io::Result<()> {
        self.replace(Rebind::Socket(socket)).await
    }

    async fn replace(&self, rebind: Rebind) -> io::Result<()> {
        self.reject_sharded("be rebound")?;
        self.request(|reply| Request::Rebind(rebind, reply)).await?
    }

    /// Queues a raw datagram of another protocol, such as STUN. It leaves from this port unchanged:
    /// neither encrypted nor part of a connection. [`Config::packet_filter`] receives the answers.
    ///
    /// Up to 256 datagrams wait for the socket; the oldest is dropped beyond it and counted in
    /// [`raw_dropped_datagrams`](EndpointStats::raw_dropped_datagrams).
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
