//! Why a configuration was refused, and why a conversation ended.

use std::io;

use thiserror::Error;

/// Why a configuration was refused.
///
/// Returned by `bind`, `connect` and the run-time setters before anything is created or changed.
/// The message names the field, the value that was given and the range that is allowed.
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

/// Why a conversation ended.
///
/// Stored once when the conversation ends and handed to every pending and later call. Inside an
/// [`io::Error`] it is reachable through [`io::Error::get_ref`] and a downcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// This side gave the conversation up.
    #[error("the conversation was aborted locally")]
    Aborted,
    /// Both sides have ended their streams, and everything arrived. Reads report the end of the
    /// stream instead, and writes that the write side is shut down.
    #[error("the conversation was closed by both sides")]
    Closed,
    /// Data or a probe was outstanding and nothing valid came back for the dead-peer time.
    #[error("the peer did not answer within the dead-peer timeout")]
    DeadPeer,
    /// The endpoint that drives this conversation has stopped.
    #[error("the endpoint is closed")]
    EndpointClosed,
    /// Nothing valid was received for the idle timeout.
    #[error("nothing was received within the idle timeout")]
    IdleTimeout,
    /// The conversation was closed and its last bytes were not acknowledged in time.
    #[error("the last bytes were not acknowledged within the linger time")]
    LingerTimeout,
    /// A newer conversation from the same address took its place, as
    /// [`SessionPolicy::Replace`](crate::SessionPolicy::Replace) asks for.
    #[error("the conversation was replaced by a newer one")]
    Replaced,
    /// The peer aborted the conversation, or had closed it when more data came.
    #[error("the peer reset the conversation")]
    Reset,
    /// Every datagram of the peer contradicts what it had acknowledged before: it lost its state.
    #[error("the peer lost the state of this conversation")]
    PeerStateLost,
    /// The peer opened the same conversation anew.
    #[error("the peer restarted the conversation")]
    PeerRestarted,
    /// A message could not be put together: its fragments are inconsistent.
    #[error("the peer sent inconsistent message fragments")]
    ProtocolViolation,
}

impl ConnectionError {
    /// The [`io::ErrorKind`] that reads and writes report for this end.
    #[must_use]
    pub fn kind(self) -> io::ErrorKind {
        match self {
            Self::DeadPeer | Self::IdleTimeout | Self::LingerTimeout => io::ErrorKind::TimedOut,
            Self::Replaced | Self::Reset | Self::PeerStateLost | Self::PeerRestarted => {
                io::ErrorKind::ConnectionReset
            }
            Self::Aborted => io::ErrorKind::ConnectionAborted,
            Self::EndpointClosed | Self::Closed => io::ErrorKind::NotConnected,
            Self::ProtocolViolation => io::ErrorKind::InvalidData,
        }
    }
}

impl From<ConnectionError> for io::Error {
    fn from(error: ConnectionError) -> Self {
        Self::new(error.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_field_value_and_range() {
        let error = ConfigError::check("mtu (bytes)", 24_u16, 49, 65_507).unwrap_err();
        assert_eq!(error.to_string(), "mtu (bytes) is 24, allowed is 49 to 65507");
    }

    #[test]
    fn cause_survives_the_trip_through_io_error() {
        let error = io::Error::from(ConnectionError::DeadPeer);
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let cause = error.get_ref().and_then(|e| e.downcast_ref::<ConnectionError>());
        assert_eq!(cause, Some(&ConnectionError::DeadPeer));
    }
}
