//! Limits on connections, migration, several paths, and filters: application functions that the driver calls for datagrams
//! and new connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::crypto::Cipher;
use crate::error::ConfigError;

/// Limits of one endpoint on connections, mainly of unvalidated peers (RFC 9000 8.1). Each of a
/// listener's [`shards`](crate::Config::shards) has its own, except for the backlog.
///
/// ```
/// use kcpx::{Config, Limits};
///
/// // Forged source addresses are not accepted.
/// let limits = Limits::new().max_connections(1_000).require_validation(true);
/// let config = Config::new().limits(limits);
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub(crate) max_connections: usize,
    pub(crate) max_per_source: Option<usize>,
    pub(crate) backlog: usize,
    pub(crate) max_unvalidated: usize,
    pub(crate) memory: usize,
    pub(crate) validation_timeout: Duration,
    pub(crate) require_validation: bool,
}

impl Limits {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most connections at once, 1 to 16,777,216. Default 65,536. With less than 8 KiB of `memory`
    /// per connection, idle connections alone can exhaust it.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections;
        self
    }

    /// Sets the most connections opened from one source, 1 to 16,777,216. A source is an IPv4 address or an
    /// IPv6 /64 prefix. Default `None`: the number of free places within `max_connections`, so that one
    /// source has at most half of all. If all clients share an address, as behind a proxy, set it to
    /// `max_connections`. A connection that would migrate to a source at its limit keeps its path
    /// (`Config::migration`).
    #[must_use]
    pub fn max_per_source(mut self, connections: Option<usize>) -> Self {
        self.max_per_source = connections;
        self
    }

    /// Sets the most connections opened by peers that wait to be accepted, 1 to 65,536. Default 1,024.
    #[doc(alias = "listen backlog")]
    #[must_use]
    pub fn backlog(mut self, connections: usize) -> Self {
        self.backlog = connections;
        self
    }

    /// Sets the most connections of unvalidated peers, whose source address may be forged, 1 to 1,048,576.
    /// Default 4,096; never more than `max_connections`. While more than half of them exist, further
    /// initial segments get a stateless answer (Retry, RFC 9000 8.1.2): a peer that responds opens its
    /// connection validated, with the next copy of its initial segment.
    #[must_use]
    pub fn max_unvalidated(mut self, connections: usize) -> Self {
        self.max_unvalidated = connections;
        self
    }

    /// Sets the memory of all connections together in bytes, 16 MiB to 1 TiB. Default 1 GiB: four times the
    /// memory of 65,536 idle connections. Each connection counts with 4 KiB, its unread data (also after
    /// its end), and its unacknowledged data; each address with FEC counts with the parity of a group.
    ///
    /// Each direction of a connection may hold a quarter of the free part of the first half. Beyond half
    /// it may hold 16 KiB, at the limit two segments, so every connection makes progress: its window
    /// opens no further, writes wait, and received data that does not fit is dropped and retransmitted. A
    /// dropped stream then ends after 3 s without progress.
    ///
    /// Unvalidated peers have a sixteenth of the memory: a first flight each while half of that is free,
    /// then 16 KiB.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets the time for validating the address of a peer that opened a connection, 1 s to 1 hour. Default
    /// 30 s.
    #[must_use]
    pub fn validation_timeout(mut self, time: Duration) -> Self {
        self.validation_timeout = time;
        self
    }

    /// Sets whether to accept a connection only once its peer's address is validated. Default `false`: with
    /// its first datagram. Costs one round trip, after which data is acknowledged. Clients of other
    /// implementations, which open with data, need one retransmission, since their first data has to arrive
    /// twice. A connection that finds the [`backlog`](Self::backlog) full after validation is reset.
    #[doc(alias = "TCP_DEFER_ACCEPT")]
    #[must_use]
    pub fn require_validation(mut self, require: bool) -> Self {
        self.require_validation = require;
        self
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 65_536,
            max_per_source: None,
            backlog: 1_024,
            max_unvalidated: 4_096,
            memory: 1 << 30,
            validation_timeout: Duration::from_secs(30),
            require_validation: false,
        }
    }
}

impl Limits {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::check("max_connections", self.max_connections, 1, 1 << 24)?;
        if let Some(max) = self.max_per_source {
            ConfigError::check("max_per_source", max, 1, 1 << 24)?;
        }
        ConfigError::check("backlog", self.backlog, 1, 1 << 16)?;
        ConfigError::check("max_unvalidated", self.max_unvalidated, 1, 1 << 20)?;
        ConfigError::check("memory (bytes)", self.memory as u64, 16 << 20, 1 << 40)?;
        let timeout = self.validation_timeout.as_millis();
        ConfigError::check("validation_timeout (ms)", timeout, 1_000, 60 * 60 * 1_000)?;
        Ok(())
    }
}

/// Connection migration (RFC 9000 section 9): whether a connection opened by a peer moves to the peer's
/// new address, after a change of networks or a NAT rebinding.
///
/// A connection migrates once the peer has answered a PATH_CHALLENGE at the new address (RFC 9000 8.2),
/// sent at most once a second and address. Two connections of different peers with the same conversation
/// id do not migrate. Other implementations answer the challenge too. The side whose address changes calls
/// [`KcpStream::network_changed`](crate::KcpStream::network_changed), or
/// [`Endpoint::rebind`](crate::Endpoint::rebind) with a socket that is bound to the old address.
///
/// ```
/// use kcpx::{Algorithm, Cipher, Config, Migration};
///
/// let key = [7; 16]; // 16 random bytes shared by both sides.
/// let cipher = Cipher::new(Algorithm::Aes128Gcm, &key)?;
/// let config = Config::new().cipher(cipher).migration(Migration::Authenticated);
/// assert!(config.validate().is_ok());
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Migration {
    /// Never: an address identifies a peer, as in kcp-go. The default without an AEAD cipher.
    Off,
    /// With an AEAD cipher, so that packets cannot be forged. The default with one.
    Authenticated,
    /// With any cipher that has a key. Without an AEAD, an attacker on the path can alter packets and
    /// redirect the connection.
    AnyCipher,
}

/// What a side sends on the paths of a connection with several. Each side chooses for its own data.
///
/// ```
/// use kcpx::{Config, PathMode};
///
/// let config = Config::new().path_mode(PathMode::Duplicate);
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathMode {
    /// Data on the path with the shortest round trip. Another one takes over when an answer is overdue. The
    /// default.
    Standby,
    /// Messages on all paths that answer: the first copy counts, and a message is lost only if each copy is. Costs
    /// the bytes once more for each further path. Transfers, which are not limited by their application, leave as
    /// with [`PathMode::Standby`].
    Duplicate,
    /// Transfers on all paths that answer, at the rate of each, in order at the other end. Needs
    /// [`CongestionControl::Bbr`](crate::CongestionControl::Bbr), the default. Messages leave on the path on which
    /// they arrive first. The receiver keeps what overtakes: up to its window. Without FEC while there are several
    /// paths.
    Aggregate,
}

impl Migration {
    pub(super) fn check(self, cipher: &Cipher) -> Result<(), ConfigError> {
        let needs = match self {
            Self::Authenticated if !cipher.is_aead() => "an AEAD cipher",
            Self::AnyCipher if !cipher.has_key() => "a cipher that has a key",
            _ => return Ok(()),
        };
        Err(ConfigError::Requires { field: "migration", needs })
    }
}

type TakesPacket = dyn Fn(SocketAddr, &[u8]) -> bool + Send + Sync;
type AdmitsPeer = dyn Fn(SocketAddr, u32) -> bool + Send + Sync;

/// Filter for datagrams of other protocols on the same port, such as STUN.
///
/// The function gets each received datagram before decryption, with its source. `true` means that the
/// datagram is not KCP and was handled: it is counted in
/// [`RawStats::filtered`](crate::stats::RawStats::filtered) and dropped. Answer from the same port with
/// [`Endpoint::send_raw`](crate::Endpoint::send_raw).
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
/// [`RefusedStats::accept_filter`](crate::stats::RefusedStats::accept_filter). A client of this crate that
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
