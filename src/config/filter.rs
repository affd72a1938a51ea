//! Filters: application functions that the driver calls for datagrams and new connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

type TakesPacket = dyn Fn(SocketAddr, &[u8]) -> bool + Send + Sync;
type AdmitsPeer = dyn Fn(SocketAddr, u32) -> bool + Send + Sync;

/// Filter for datagrams of other protocols on the same port, such as STUN.
///
/// The function gets each received datagram before decryption, with its source. `true` means that the
/// datagram is not KCP and was handled: it is counted in
/// [`packet_filter_datagrams`](crate::EndpointStats::packet_filter_datagrams) and dropped. Answer from
/// the same port with [`Endpoint::send_raw`](crate::Endpoint::send_raw).
///
/// The function runs in the task of all connections of the socket. It must be quick and must not block; a
/// panic ends the endpoint. Pass datagrams to a channel with `try_send`.
///
/// Two filters are equal if one is a clone of the other.
///
/// ```
/// use kcpx::Config;
/// use tokio::sync::mpsc;
///
/// let (stun, _received) = mpsc::channel(16);
/// let config = Config::new().packet_filter(move |from, datagram| {
///     // The magic cookie of RFC 8489.
///     let is_stun = datagram.get(4..8) == Some(&[0x21, 0x12, 0xA4, 0x42]);
///     if is_stun {
///         // If the channel is full the datagram is lost, as on a network.
///         let _ = stun.try_send((from, datagram.to_vec()));
///     }
///     is_stun
/// });
/// # drop(config);
/// ```
#[derive(Clone)]
pub struct PacketFilter(Arc<TakesPacket>);

impl PacketFilter {
    /// Creates a filter that calls `takes`.
    pub fn new(takes: impl Fn(SocketAddr, &[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(takes))
    }

    /// Whether the datagram belongs to another protocol.
    pub(crate) fn takes(&self, from: SocketAddr, datagram: &[u8]) -> bool {
        (self.0)(from, datagram)
    }
}

/// Filter for connections opened by peers.
///
/// The function gets the address and conversation id of an initial segment, before any state exists. The
/// address may be forged. `false` drops the datagram and counts it in
/// [`refused_accept_filter`](crate::EndpointStats::refused_accept_filter). A client of this crate that
/// waits in `connect` is sent an RST and fails with
/// [`ConnectionError::Refused`](crate::ConnectionError::Refused) a second later; other clients get no
/// answer. Clients retransmit, and the function is called again.
///
/// The function runs in the task of all connections of the socket. It must be quick and must not block; a
/// panic ends the endpoint.
///
/// Two filters are equal if one is a clone of the other.
///
/// ```
/// use kcpx::Config;
///
/// let config = Config::new().accept_filter(|from, _conv| from.ip().is_loopback());
/// # drop(config);
/// ```
#[derive(Clone)]
pub struct AcceptFilter(Arc<AdmitsPeer>);

impl AcceptFilter {
    /// Creates a filter that calls `admits`.
    pub fn new(admits: impl Fn(SocketAddr, u32) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(admits))
    }

    /// Whether `from` may open `conv`.
    pub(crate) fn admits(&self, from: SocketAddr, conv: u32) -> bool {
        (self.0)(from, conv)
    }
}

/// Equality by identity, and `Debug` without the function.
macro_rules! by_identity {
    ($($filter:ident),*) => {$(
        impl PartialEq for $filter {
            fn eq(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.0, &other.0)
            }
        }

        impl Eq for $filter {}

        impl fmt::Debug for $filter {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($filter)).finish_non_exhaustive()
            }
        }
    )*};
}

by_identity!(PacketFilter, AcceptFilter);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_equals_its_clones_only() {
        let filter = |limit: u32| AcceptFilter::new(move |_, conv| conv < limit);
        let (one, other) = (filter(5), filter(5));
        assert_eq!(one, one.clone());
        assert_ne!(one, other);
        assert_eq!(format!("{one:?}"), "AcceptFilter { .. }");
        let from = SocketAddr::from(([127, 0, 0, 1], 1));
        assert!(one.admits(from, 4) && !one.admits(from, 5));
    }
}
