//! [`ConfigError`]: why a configuration is invalid. [`ConnectionError`]: why a connection ended.

use std::io;

use thiserror::Error;

/// Why a configuration is invalid.
///
/// Returned by `bind`, `connect` and run-time setters before anything is created or changed. The message
/// names the setting, its range and the value.
///
/// ```
/// use kcpx::{Config, ConfigError};
///
/// let error = Config::new().mtu(10).validate().unwrap_err();
/// assert_eq!(error.to_string(), "mtu (bytes) must be between 25 and 65507, got 10");
/// assert!(matches!(error, ConfigError::OutOfRange { value: 10, .. }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A numeric setting is outside its range.
    #[error("{field} must be between {min} and {max}, got {value}")]
    OutOfRange {
        /// Name of the setting, with its unit if it has one.
        field: &'static str,
        /// The value.
        value: u64,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
    },
    /// Two numeric settings contradict each other.
    #[error("{field} must be at most {max} when {other} is {other_value}, got {value}")]
    Contradicts {
        /// Name of the setting, with its unit.
        field: &'static str,
        /// The value.
        value: u64,
        /// Largest value that the other setting allows.
        max: u64,
        /// Name of the other setting, with its unit.
        other: &'static str,
        /// The value of the other setting.
        other_value: u64,
    },
    /// A setting requires another one.
    #[error("{field} requires {needs}")]
    Requires {
        /// Name of the setting.
        field: &'static str,
        /// The required setting.
        needs: &'static str,
    },
    /// The cipher does not take keys of this length.
    #[error("the key of {cipher} must have {allowed} bytes, got {len}")]
    KeyLength {
        /// Name of the cipher.
        cipher: &'static str,
        /// Length of the key in bytes.
        len: usize,
        /// The allowed lengths in bytes.
        allowed: String,
    },
    /// No cipher has this name.
    #[error("unknown cipher {name:?}: use one of {allowed}")]
    UnknownCipher {
        /// The unknown name.
        name: String,
        /// The allowed names.
        allowed: String,
    },
    /// No value of this setting has this name.
    #[error("unknown {setting} {name:?}: use {allowed}")]
    UnknownName {
        /// Name of the setting.
        setting: &'static str,
        /// The unknown name.
        name: String,
        /// The allowed names.
        allowed: &'static str,
    },
    /// The cipher needs a Cargo feature that is off.
    #[error("cipher {name:?} requires the feature `{feature}` of kcpx")]
    CipherNotCompiled {
        /// Name of the cipher.
        name: &'static str,
        /// The Cargo feature that contains it.
        feature: &'static str,
    },
}

impl ConfigError {
    pub(crate) fn unknown(setting: &'static str, name: &str, allowed: &'static str) -> Self {
        Self::UnknownName { setting, name: name.to_owned(), allowed }
    }

    /// Fails unless `min <= value <= max`.
    pub(crate) fn check(
        field: &'static str,
        value: impl TryInto<u64>,
        min: u64,
        max: u64,
    ) -> Result<(), Self> {
        let value = value.try_into().unwrap_or(u64::MAX);
        if (min..=max).contains(&value) {
            Ok(())
        } else {
            Err(Self::OutOfRange { field, value, min, max })
        }
    }
}

impl From<ConfigError> for io::Error {
    fn from(error: ConfigError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Kind of datagrams from a peer's address in the minute before its connection timed out. See
/// [the guide](crate::guide::troubleshooting) for the causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum TimeoutCause {
    /// Nothing: the address is wrong, a firewall drops the datagrams, or the peer drops them since its
    /// key or cipher differs.
    #[error("nothing came from its address (wrong address, firewall, or another key or cipher?)")]
    Nothing,
    /// Nothing, and the socket has another connection with that address. kcp-go serves one connection per
    /// address and port, so each needs its own socket.
    #[error("nothing came for it; this socket has another connection with that address")]
    SharedAddress,
    /// Nothing since the network of this host has changed, within the dead-peer timeout or the idle timeout.
    /// Without an AEAD cipher the peer does not follow to another address, see
    /// [`Config::migration`](crate::Config::migration).
    #[error(
        "nothing came since the local network changed (the peer follows to a new address only with \
         an AEAD cipher or Config::migration)"
    )]
    NetworkChanged,
    /// Datagrams of the connection, but no answer to ours within
    /// [`Limits::validation_timeout`](crate::Limits::validation_timeout) after the peer opened it (RFC
    /// 9000 8.1). The peer is gone, our datagrams do not arrive, or the peer's source address is forged.
    #[error("its datagrams arrive but do not answer ours (it is gone, or ours do not reach it)")]
    Unvalidated,
    /// Only small datagrams; larger ones were lost. The path drops them (a black hole, RFC 8899 4.3).
    #[error("only small datagrams get through, the path drops larger ones")]
    SmallDatagrams,
    /// The system reported that the port is closed. Only for sockets with one peer, since the report
    /// names none.
    #[error("the system reported that the port is closed")]
    Refusal,
    /// This number of datagrams (255 or more as 255) that failed the cipher or are not KCP.
    #[error("unreadable datagrams from its address: {0} (another key or cipher?)")]
    Unreadable(u8),
    /// This number of datagrams (255 or more as 255) of unknown connections.
    #[error("datagrams of other connections from its address: {0}")]
    OtherConnections(u8),
}

/// Why a connection ended.
///
/// Stored when the connection ends and returned by every pending and later call. An [`io::Error`]
/// contains it: use [`io::Error::get_ref`] and a downcast.
///
/// ```
/// use kcpx::{ConnectionError, TimeoutCause, KcpStream};
///
/// fn advice(stream: &KcpStream) -> &'static str {
///     match stream.error() {
///         None => "it goes on",
///         Some(ConnectionError::Reset | ConnectionError::PeerRestarted) => "connect again",
///         Some(ConnectionError::IdleTimeout) => "is the network down?",
///         Some(ConnectionError::DeadPeer(cause)) if cause == TimeoutCause::Nothing => "the same",
///         Some(error) if error.kind() == std::io::ErrorKind::TimedOut => "try later",
///         Some(_) => "it is over",
///     }
/// }
///
/// // From an error of `read` or `write`:
/// let error = std::io::Error::from(ConnectionError::Reset);
/// let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
/// assert_eq!(cause, Some(&ConnectionError::Reset));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// This side aborted the connection: by `abort`, by a drop with a linger time of zero, or by a drop
    /// while the peer kept sending and acknowledged nothing.
    #[error("the connection was aborted locally")]
    Aborted,
    /// The peer did not answer within [`Config::connect_timeout`](crate::Config::connect_timeout).
    #[error("the peer did not answer within the connect timeout: {0}")]
    ConnectTimeout(TimeoutCause),
    /// Both sides closed their streams (FIN) and everything arrived. Reads return the end of the stream
    /// instead; writes fail with `BrokenPipe`.
    #[error("the connection was closed by both sides")]
    Closed,
    /// Data or a ping was outstanding, and nothing valid arrived for the dead-peer timeout.
    #[error("the peer did not answer within the dead-peer timeout: {0}")]
    DeadPeer(TimeoutCause),
    /// The endpoint of this connection has ended.
    #[error("the endpoint is closed")]
    EndpointClosed,
    /// The runtime of the connection's endpoint was dropped together with its driver.
    /// `tokio::runtime::is_rt_shutdown_err` returns true for this error.
    #[error("A Tokio 1.x context was found, but it is being shutdown.")]
    RuntimeShutdown,
    /// Nothing valid arrived for the idle timeout.
    #[error("nothing was received within the idle timeout")]
    IdleTimeout,
    /// The stream was shut down or dropped, and its last bytes were not acknowledged within the linger
    /// time. An RST reports this to the peer for ten seconds.
    #[error("the last bytes were not acknowledged within the linger time")]
    LingerTimeout,
    /// The peer refuses the connection: it no longer listens, or its
    /// [`accept_filter`](crate::Config::accept_filter) rejects it.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer's host reported a closed port (ICMP port unreachable, RFC 792 and RFC 4443 3.1) while
    /// [`KcpStream::connect`](crate::KcpStream::connect) waited for an answer.
    #[error(
        "nothing listens on the peer's port, as its host reports: start the peer, or correct the port"
    )]
    PortUnreachable,
    /// The peer aborted the connection (RST), had closed it when more data arrived, or has restarted and
    /// does not know it.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer lost its state: it acknowledges less than before, and its answer to a ping confirmed
    /// that.
    #[error("the peer lost the state of this connection")]
    PeerStateLost,
    /// The peer restarted: it opened a connection with the same conversation id again.
    #[error("the peer restarted the connection")]
    PeerRestarted,
    /// The peer violated the protocol: the fragments of a message are inconsistent.
    #[error("the peer sent inconsistent message fragments")]
    ProtocolViolation,
}

impl ConnectionError {
    /// The same timeout with its cause.
    pub(crate) fn with_cause(self, cause: impl FnOnce() -> TimeoutCause) -> Self {
        match self {
            Self::ConnectTimeout(_) => Self::ConnectTimeout(cause()),
            Self::DeadPeer(TimeoutCause::Nothing) => Self::DeadPeer(cause()),
            Self::DeadPeer(TimeoutCause::Unvalidated) => Self::DeadPeer(match cause() {
                cause @ (TimeoutCause::Unreadable(_) | TimeoutCause::Refusal) => cause,
                _ => TimeoutCause::Unvalidated,
            }),
            other => other,
        }
    }

    /// The [`io::ErrorKind`] of reads and writes that fail with this error.
    #[must_use]
    pub fn kind(self) -> io::ErrorKind {
        match self {
            Self::ConnectTimeout(_)
            | Self::DeadPeer(_)
            | Self::IdleTimeout
            | Self::LingerTimeout => io::ErrorKind::TimedOut,
            Self::Reset | Self::PeerStateLost | Self::PeerRestarted => {
                io::ErrorKind::ConnectionReset
            }
            Self::Refused | Self::PortUnreachable => io::ErrorKind::ConnectionRefused,
            Self::Aborted => io::ErrorKind::ConnectionAborted,
            Self::EndpointClosed | Self::Closed => io::ErrorKind::NotConnected,
            Self::ProtocolViolation => io::ErrorKind::InvalidData,
            Self::RuntimeShutdown => io::ErrorKind::Other,
        }
    }
}

impl From<ConnectionError> for io::Error {
    fn from(error: ConnectionError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// A name that resolves to no address.
pub(crate) fn unresolved() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the name resolves to no address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_error_names_field_value_and_range() {
        let error = ConfigError::check("mtu (bytes)", 24_u16, 49, 65_507).unwrap_err();
        assert_eq!(error.to_string(), "mtu (bytes) must be between 49 and 65507, got 24");
    }

    #[test]
    fn cause_of_a_timeout_is_filled_in_unless_it_has_one() {
        let after = |error: ConnectionError| error.with_cause(|| TimeoutCause::Unreadable(3));
        let dead = ConnectionError::DeadPeer;
        assert_eq!(after(dead(TimeoutCause::Nothing)), dead(TimeoutCause::Unreadable(3)));
        assert_eq!(after(dead(TimeoutCause::SmallDatagrams)), dead(TimeoutCause::SmallDatagrams));
        assert_eq!(after(ConnectionError::Reset), ConnectionError::Reset);
    }

    #[test]
    fn connection_error_survives_the_conversion_to_io_error() {
        let error = io::Error::from(ConnectionError::DeadPeer(TimeoutCause::Nothing));
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let cause = error.get_ref().and_then(|e| e.downcast_ref::<ConnectionError>());
        assert_eq!(cause, Some(&ConnectionError::DeadPeer(TimeoutCause::Nothing)));
    }
}
