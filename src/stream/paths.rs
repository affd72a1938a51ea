//! Connections with several paths: a second one takes over when the first falls silent.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::core::connection::multipath::PathInfo;
use crate::core::path::set::{PathId, PathState};
use crate::error::ConnectionError;
use crate::shared::requests::{PathReport, PathTraffic, Request};
use crate::stats::UdpStats;
use crate::stream::{KcpStream, source};
use crate::util::path::LocalIp;

/// A path of a connection, see [`KcpStream::paths`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStatus {
    /// Its number, 0 for the path on which the connection opened.
    pub id: PathId,
    /// The address that datagrams leave from.
    pub local: SocketAddr,
    /// The address of the peer on this path.
    pub peer: SocketAddr,
    /// Whether the peer answers on it.
    pub state: PathState,
    /// Whether data of this side leaves on it.
    pub is_active: bool,
    /// Smoothed RTT; `None` before the first sample.
    pub srtt: Option<Duration>,
    /// Size of the largest KCP datagram that leaves on it now, in bytes, without the overhead of cipher and FEC,
    /// see [`PathStats::current_mtu`](crate::stats::PathStats::current_mtu).
    pub current_mtu: u32,
    /// How often it fell silent: five pings in a row were unanswered. Counted by this side, since the path was
    /// added.
    pub silences: u32,
    /// Datagrams of this connection that left on the path, and bytes of UDP payload: pings, parity and the copies
    /// of [`PathMode::Duplicate`](crate::PathMode::Duplicate) included. Counted when they are handed to the system,
    /// from the first call of [`KcpStream::add_path`] on (of a listener: from the first path that the peer adds),
    /// and since the path was added. Zero on a connection that never had a second path: its figures are in
    /// [`KcpStream::stats`].
    pub sent: UdpStats,
    /// Datagrams of this connection that arrived on the path, and bytes of UDP payload: copies and pings included,
    /// FEC parity not. Counted as [`Self::sent`], once cipher and segments are found valid.
    pub received: UdpStats,
}

/// Several paths (docs/mobility.md).
impl KcpStream {
    /// Adds a path from another address of this host, such as the one of a second network interface. Data leaves
    /// on the path with the shorter round trip; the other is kept warm by a ping each 5 s, and takes over when an
    /// answer is overdue by a quarter of the round trip and its variation. What is in flight then leaves again on
    /// it. Each side does this for its own data. With [`PathMode::Duplicate`](crate::PathMode::Duplicate) messages
    /// leave on all paths, and with [`PathMode::Aggregate`](crate::PathMode::Aggregate) transfers use all of them.
    ///
    /// Returns once the peer has accepted several paths. The path carries data once the peer has answered on it,
    /// see [`Self::paths`].
    ///
    /// The system routes the path by its source address, as MPTCP's: on Linux by a rule such as `ip rule add from
    /// 192.0.2.7 table 2`, if both interfaces have a default route.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](io::ErrorKind::Unsupported) when the peer is another implementation, when its
    /// [`migration`](crate::Config::migration) is not `Authenticated`, the default with an AEAD cipher and one
    /// shard, when the peer opened the connection, or when it has four paths.
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) when it has a path from `local`.
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) when the socket is bound to one address, or `local` is of
    /// another IP version than the peer. The connection's error when it has ended.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the path may or may not be added.
    ///
    /// ```no_run
    /// use kcpx::{Algorithm, Cipher, Config, KcpStream};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let key = [7; 16]; // 16 random bytes shared by both sides.
    /// let config = Config::new().cipher(Cipher::new(Algorithm::Aes128Gcm, &key)?);
    /// let stream = KcpStream::connect_with("server.example:4000", config).await?;
    /// // The address of the LTE interface.
    /// stream.add_path("192.0.2.7".parse()?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn add_path(&self, local: IpAddr) -> io::Result<PathId> {
        let (bound, first) = (self.handle().local(), source(self.handle()));
        let local = local.to_canonical();
        if !bound.ip().is_unspecified() {
            let text = format!("the socket must be bound to all addresses, not to {}", bound.ip());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if local.is_ipv4() != self.handle().peer().ip().to_canonical().is_ipv4()
            || local.is_unspecified()
        {
            let text = format!("the path needs an address of the peer's IP version, got {local}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if first.ip().to_canonical() == local {
            let text = format!("the connection has a path from {local} already");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        self.add_path_from(LocalIp::of_destination(local)).await
    }

    pub(crate) async fn add_path_from(&self, local: LocalIp) -> io::Result<PathId> {
        let id = self.handle().id();
        self.ask(|reply| Request::AddPath { id, local, reply }).await?
    }

    /// Removes a path. Data that left on it leaves again on another one. The first path can be removed too, and
    /// cannot be added again. The peer stops using a removed path once its pings stay unanswered.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) when the path is unknown or the last one on which the peer
    /// has answered, or when the peer opened the connection. The connection's error when it has ended.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the path may or may not be removed.
    pub async fn remove_path(&self, path: PathId) -> io::Result<()> {
        let id = self.handle().id();
        if self.ask(|reply| Request::RemovePath { id, path, reply }).await? {
            return Ok(());
        }
        let text = format!(
            "path {} is unknown, is the last one that answers, or was opened by the peer",
            path.number()
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }

    /// Returns the paths; one if none was ever added.
    ///
    /// # Errors
    ///
    /// The connection's error when it has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn paths(&self) -> io::Result<Vec<PathStatus>> {
        let id = self.handle().id();
        let paths = self.ask(|reply| Request::Paths { id, reply }).await?;
        let (local, port) = (source(self.handle()), self.handle().local().port());
        let status = |PathReport { path, info, traffic }: PathReport| {
            let local = path.local_addr(port).unwrap_or(local);
            let PathInfo { id, state, is_active, srtt, current_mtu, silences } = info;
            let (peer, PathTraffic { sent, received }) = (path.peer, traffic);
            PathStatus {
                id,
                local,
                peer,
                state,
                is_active,
                srtt,
                current_mtu,
                silences,
                sent,
                received,
            }
        };
        Ok(paths.into_iter().map(status).collect())
    }

    /// Sends the driver a request about this connection and waits for its reply.
    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> io::Result<T> {
        let (reply, answer) = oneshot::channel();
        self.requests.push(request(reply));
        answer.await.map_err(|_| self.error().unwrap_or(ConnectionError::EndpointClosed).into())
    }
}
