//! The transports: how each is configured, accepts and connects.

#[cfg(feature = "together")]
pub(crate) mod kcp_rs;
#[cfg(feature = "together")]
pub(crate) mod kcp_tokio;
#[cfg(feature = "together")]
pub(crate) mod kcpx;
#[cfg(feature = "together")]
pub(crate) mod quinn;
#[cfg(feature = "apart")]
pub(crate) mod rust_tokio_kcp;
#[cfg(feature = "together")]
pub(crate) mod tcp;
#[cfg(feature = "together")]
pub(crate) mod tokio_kcp;

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::args::Case;

/// A connection.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Retransmitted share of what was sent in percent, where the transport reports it.
    fn retransmit_pct(&self) -> Option<f64> {
        None
    }
}

/// The accepting side of a transport.
pub(crate) trait Accept: Sized + Send + 'static {
    type Stream: Duplex;
    /// A note of the table beside the name.
    const NOTE: fn(Case) -> Option<String> = |_| None;

    fn bind(case: Case, addr: SocketAddr) -> impl Future<Output = anyhow::Result<Self>> + Send;

    fn addr(&self) -> anyhow::Result<SocketAddr>;

    fn accept(&mut self) -> impl Future<Output = anyhow::Result<Self::Stream>> + Send;
}

/// The connecting side of a transport, with as few sockets as it needs.
pub(crate) trait Connect: Sized + Send + Sync + 'static {
    type Stream: Duplex;

    fn new(case: Case, server: SocketAddr) -> impl Future<Output = anyhow::Result<Self>> + Send;

    fn connect(&self) -> impl Future<Output = anyhow::Result<Self::Stream>> + Send;
}

/// Any address from which `server` can be reached.
#[cfg(feature = "together")]
pub(crate) fn wildcard(server: SocketAddr) -> SocketAddr {
    use std::net::{Ipv4Addr, Ipv6Addr};

    match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}
