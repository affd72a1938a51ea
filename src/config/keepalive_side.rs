//! `KeepaliveSide`: who pings an idle connection.

/// Which side of an idle connection sends the keepalive pings
/// ([`KcpConfig::keepalive`](crate::KcpConfig::keepalive)); the other one answers them, and pings only if
/// none come. RFC 9000 10.1.2 leaves it to the application. Both sides of a connection should have the same.
///
/// With either, a side that has heard nothing but pings for two thirds of the idle timeout sends one itself,
/// since these might be replayed ones.
///
/// ```
/// use kcpx::{Config, KeepaliveSide};
///
/// let mut config = Config::new(); // For clients behind a NAT, and for their server.
/// config.kcp.keepalive_side = KeepaliveSide::Active;
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepaliveSide {
    /// The side that accepted the connection. The default: a listener pings all connections that are due
    /// within a tenth of a second together, which costs it least.
    #[default]
    Passive,
    /// The side that opened the connection. For paths with a NAT or a balancer that may forget a
    /// connection, since its timeout is short or it restarts: only a datagram from inside has to renew a
    /// mapping (RFC 4787 REQ-6), and where it is gone a ping of the server cannot reach the client, and may
    /// take the place that the client's next datagram needs. What it costs is in docs/performance.md.
    Active,
}
