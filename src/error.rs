//! [`ConfigError`]: why a configuration was refused. [`ConnectionError`]: why a connection ended.

use std::io;

use thiserror::Error;

/// Why a configuration was refused.
///
/// Returned by `bind`, `connect` and the run-time setters before anything is created or changed.
/// The message names the field, the value that was given and the range that is allowed.
///
/// ```
/// use kcpx::{Config, ConfigError};
///
/// let error = Config::new().mtu(10).validate().unwrap_err();
/// assert_eq!(error.to_string(), "mtu (bytes) is 10, allowed is 25 to 65507");
/// assert!(matches!(error, ConfigError::OutOfRange { value: 10, .. }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A numeric setting is outside its range.
    #[error("{field} is {value}, allowed is {min} to {max}")]
    OutOfRange {
        /// Name of the setting, with its unit where it has one.
        field: &'static str,
        /// The value that was given.
        value: u64,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
    },
    /// Two numeric settings contradict each other.
    #[error("{field} is {value}, allowed is at most {max} where {other} is {other_value}")]
    Contradicts {
        /// Name of the setting, with its unit.
        field: &'static str,
        /// The value that was given.
        value: u64,
        /// Largest value that the other setting allows.
        max: u64,
        /// Name of the other setting, with its unit.
        other: &'static str,
        /// The value of the other setting.
        other_value: u64,
    },
    /// A setting was turned on without another one that it depends on.
    #[error("{field} is on, which is allowed only with {needs}")]
    Requires {
        /// Name of the setting.
        field: &'static str,
        /// The setting it depends on.
        needs: &'static str,
    },
    /// A key has a length that its cipher does not take.
    #[error("key of {cipher} (bytes) is {len}, allowed is {allowed}")]
    KeyLength {
        /// Name of the cipher.
        cipher: &'static str,
        /// Length of the key that was given, in bytes.
        len: usize,
        /// The lengths that are allowed, in bytes.
        allowed: String,
    },
    /// No cipher has this name.
    #[error("cipher is {name:?}, allowed is {allowed}")]
    UnknownCipher {
        /// The name that was given.
        name: String,
        /// The names that are allowed.
        allowed: String,
    },
    /// No timing preset has this name.
    #[error("timing is {name:?}, allowed is normal, fast, fast2, fast3")]
    UnknownTiming {
        /// The name that was given.
        name: String,
    },
    /// The cipher of this name is not compiled in.
    #[error("cipher is {name:?}, which needs kcpx's feature `{feature}`")]
    CipherNotCompiled {
        /// Name of the cipher.
        name: &'static str,
        /// The Cargo feature that has it.
        feature: &'static str,
    },
}

impl ConfigError {
    /// `Ok` when `min <= value <= max`, otherwise the error that says so.
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

/// What came from a peer's address in the minute before its connection ended with a timeout, beside what
/// the connection took. `docs/troubleshooting.md` has the causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Heard {
    /// Nothing: nobody is there, something on the way drops the datagrams, or the peer drops them, since
    /// its key or cipher is another.
    #[error("nothing came from its address (nobody there, a firewall, or another key or cipher?)")]
    Nothing,
    /// Nothing, and the socket has another connection with that address. kcp-go serves one for each
    /// address and port, so a further one needs a socket of its own.
    #[error("nothing came for it; this socket has another connection with that address")]
    SharedAddress,
    /// Datagrams of the connection, and no answer to a datagram of ours within
    /// [`Limits::validation_timeout`](crate::Limits::validation_timeout) from when the peer opened it
    /// (RFC 9000 8.1). The peer is gone, ours do not arrive, or the source of the peer's datagrams is
    /// forged.
    #[error("its datagrams came, but none that answers ours (it is gone, or ours do not reach it)")]
    Unvalidated,
    /// Only small datagrams, while larger ones were lost: the path drops those (a black hole, RFC 8899
    /// 4.3).
    #[error("only small datagrams get through, the path drops larger ones")]
    SmallDatagrams,
    /// The system reported that the port is closed. Only where the socket has one peer,
    /// since the report names none.
    #[error("the system reported that the port is closed")]
    Refusal,
    /// So many datagrams, 255 or more for 255, that failed the cipher, or are no KCP.
    #[error(
        "what came from its address could not be read, datagrams: {0} (another key or cipher?)"
    )]
    Unreadable(u8),
    /// So many datagrams, 255 or more for 255, of connections that do not exist.
    #[error("what came from its address was of other connections, datagrams: {0}")]
    OtherConnections(u8),
}

/// Why a connection ended.
///
/// Stored once when the connection ends and returned by every pending and later call. Inside an
/// [`io::Error`] it is reachable through [`io::Error::get_ref`] and a downcast.
///
/// ```
/// use kcpx::{ConnectionError, Heard, KcpStream};
///
/// fn advice(stream: &KcpStream) -> &'static str {
///     match stream.error() {
///         None => "it goes on",
///         Some(ConnectionError::Reset | ConnectionError::PeerRestarted) => "connect again",
///         Some(ConnectionError::IdleTimeout) => "is the network down?",
///         Some(ConnectionError::DeadPeer(heard)) if heard == Heard::Nothing => "the same",
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
    /// This side aborted the connection: `abort`, or a drop with a linger time of zero, or a drop
    /// whose peer sent on without acknowledging anything.
    #[error("the connection was aborted locally")]
    Aborted,
    /// The peer did not answer within [`Config::connect_timeout`](crate::Config::connect_timeout).
    #[error("the peer did not answer within the connect timeout: {0}")]
    ConnectTimeout(Heard),
    /// Both sides have closed their streams (FIN) and everything arrived. Reads return the end of
    /// the stream instead, and writes that the write side is shut down.
    #[error("the connection was closed by both sides")]
    Closed,
    /// Data or a ping was outstanding and nothing valid came back for the dead-peer timeout.
    #[error("the peer did not answer within the dead-peer timeout: {0}")]
    DeadPeer(Heard),
    /// The endpoint of this connection has ended.
    #[error("the endpoint is closed")]
    EndpointClosed,
    /// The runtime of this connection's endpoint was dropped, and its driver with it:
    /// `tokio::runtime::is_rt_shutdown_err` returns true for it.
    #[error("A Tokio 1.x context was found, but it is being shutdown.")]
    RuntimeShutdown,
    /// Nothing valid was received for the idle timeout.
    #[error("nothing was received within the idle timeout")]
    IdleTimeout,
    /// The connection was shut down or dropped, and its last bytes were not acknowledged within
    /// the linger time. A RST reports it to the peer, for ten seconds.
    #[error("the last bytes were not acknowledged within the linger time")]
    LingerTimeout,
    /// The peer does not take the connection: it does not listen any more, or its
    /// [`accept_filter`](crate::Config::accept_filter) is against it.
    #[error("the peer refused the connection")]
    Refused,
    /// The host of the peer reported that no socket has the port (ICMP port unreachable, RFC 792 and
    /// RFC 4443 3.1), while [`KcpStream::connect`](crate::KcpStream::connect) waited for an answer.
    #[error(
        "nothing listens on the peer's port, as its host reports: start the peer, or correct the port"
    )]
    PortUnreachable,
    /// A newer connection from the same address replaced it, as
    /// [`SessionPolicy::Replace`](crate::SessionPolicy::Replace) asks for.
    #[error("the connection was replaced by a newer one")]
    Replaced,
    /// The peer aborted the connection (RST), had closed it when more data came, or has restarted and
    /// does not know it.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer lost its state: it acknowledges less than before, and an answered ping confirmed
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
    /// The same timeout, with what came from the peer's address.
    pub(crate) fn with_heard(self, heard: impl FnOnce() -> Heard) -> Self {
        match self {
            Self::ConnectTimeout(_) => Self::ConnectTimeout(heard()),
            Self::DeadPeer(Heard::Nothing) => Self::DeadPeer(heard()),
            Self::DeadPeer(Heard::Unvalidated) => Self::DeadPeer(match heard() {
                heard @ (Heard::Unreadable(_) | Heard::Refusal) => heard,
                _ => Heard::Unvalidated,
            }),
            other => other,
        }
    }

    /// The [`io::ErrorKind`] that reads and writes report for this end.
    #[must_use]
    pub fn kind(self) -> io::ErrorKind {
        match self {
            Self::ConnectTimeout(_)
            | Self::DeadPeer(_)
            | Self::IdleTimeout
            | Self::LingerTimeout => io::ErrorKind::TimedOut,
            Self::Replaced | Self::Reset | Self::PeerStateLost | Self::PeerRestarted => {
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
        assert_eq!(error.to_string(), "mtu (bytes) is 24, allowed is 49 to 65507");
    }

    #[test]
    fn cause_of_a_timeout_is_filled_in_unless_it_has_one() {
        let heard = |error: ConnectionError| error.with_heard(|| Heard::Unreadable(3));
        let dead = ConnectionError::DeadPeer;
        assert_eq!(heard(dead(Heard::Nothing)), dead(Heard::Unreadable(3)));
        assert_eq!(heard(dead(Heard::SmallDatagrams)), dead(Heard::SmallDatagrams));
        assert_eq!(heard(ConnectionError::Reset), ConnectionError::Reset);
    }

    #[test]
    fn connection_error_survives_the_conversion_to_io_error() {
        let error = io::Error::from(ConnectionError::DeadPeer(Heard::Nothing));
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let cause = error.get_ref().and_then(|e| e.downcast_ref::<ConnectionError>());
        assert_eq!(cause, Some(&ConnectionError::DeadPeer(Heard::Nothing)));
    }
}
