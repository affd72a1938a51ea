//! `KeepaliveInterval` and `KeepaliveSide`: when an idle connection is pinged, and by which side.

use std::time::Duration;

use crate::error::ConfigError;

/// When an idle connection is pinged ([`Config::keepalive`](crate::Config::keepalive)).
///
/// ```
/// use std::time::Duration;
///
/// use kcpx::{Config, KeepaliveInterval};
///
/// let config = Config::new().idle_timeout(Some(Duration::from_secs(9))); // A ping after 3 s.
/// # assert!(config.validate().is_ok());
/// let config = config.keepalive(KeepaliveInterval::After(Duration::from_secs(10)));
/// assert!(config.validate().is_err()); // The connection would end before the first ping.
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepaliveInterval {
    /// After 15 s without a datagram from the peer, or after a third of a shorter
    /// [`idle_timeout`](crate::Config::idle_timeout), at most once a second. The default.
    #[default]
    Auto,
    /// After this time without a datagram from the peer: 1 s to 1 day, at least 1 s below the idle
    /// timeout.
    After(Duration),
    /// Never: an idle connection ends after the idle timeout.
    Never,
}

/// [`KeepaliveInterval::Auto`] with a long idle timeout.
const AUTO_INTERVAL: Duration = Duration::from_secs(15);
/// Divisor of the idle timeout for [`KeepaliveInterval::Auto`]: two pings may be lost.
const IDLE_DIVISOR: u32 = 3;
/// Least time between a ping and the idle timeout, for the answer.
const ANSWER_TIME: Duration = Duration::from_secs(1);

impl KeepaliveInterval {
    /// The idle time before a ping; `None`: never.
    pub(crate) fn period(self, idle_timeout: Option<Duration>) -> Option<Duration> {
        let third = idle_timeout.map_or(Duration::MAX, |idle| idle / IDLE_DIVISOR);
        match self {
            Self::Auto => Some(AUTO_INTERVAL.min(third)),
            Self::After(interval) => Some(interval),
            Self::Never => None,
        }
    }

    /// Checks the interval and the timeout, which limit each other.
    pub(crate) fn validate(self, idle_timeout: Option<Duration>) -> Result<(), ConfigError> {
        check_timeout("idle_timeout (ms)", idle_timeout)?;
        let Self::After(interval) = self else { return Ok(()) };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (field, value) = ("keepalive (ms)", millis(interval));
        ConfigError::check(field, value, 1_000, 24 * 60 * 60 * 1_000)?;
        let other_value = idle_timeout.map_or(u64::MAX, millis);
        let max = other_value.saturating_sub(millis(ANSWER_TIME));
        if value <= max {
            return Ok(());
        }
        Err(ConfigError::Contradicts { field, value, max, other: "idle_timeout (ms)", other_value })
    }
}

/// Checks a timeout: 1 s to 1 day, or none.
pub(crate) fn check_timeout(
    field: &'static str,
    limit: Option<Duration>,
) -> Result<(), ConfigError> {
    let day = 24 * 60 * 60 * 1_000;
    limit.map_or(Ok(()), |limit| ConfigError::check(field, limit.as_millis(), 1_000, day))
}

/// The side of an idle connection that sends keepalive pings
/// ([`Config::keepalive`](crate::Config::keepalive)). The other side answers them, and pings only
/// if none arrive. RFC 9000 10.1.2 leaves the choice to the application. Use the same on both sides.
///
/// With either, a side that received only pings for two thirds of the idle timeout sends one itself,
/// since those pings may be replayed.
///
/// ```
/// use kcpx::{Config, KeepaliveSide};
///
/// // For clients behind a NAT, and for their server.
/// let config = Config::new().keepalive_side(KeepaliveSide::Active);
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepaliveSide {
    /// The side that accepted the connection. The default: a listener pings together all connections that
    /// are due within a tenth of a second, which is cheapest for it.
    #[default]
    Passive,
    /// The side that opened the connection. For paths with a NAT or balancer that forgets connections,
    /// due to a short timeout or a restart: only a datagram from inside is sure to renew a mapping (RFC
    /// 4787 REQ-6). Without the mapping, a server's ping cannot reach the client, and may take the
    /// mapping that the client's next datagram needs. docs/lab.md has the cost.
    Active,
}
