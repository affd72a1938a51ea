//! Errors of settings, the protocol, and sessions.

use std::io;
use std::sync::Arc;

/// A refused setting: its name, value, and range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {allowed}, got {value}")]
pub struct ConfigError {
    pub(crate) field: &'static str,
    pub(crate) value: String,
    pub(crate) allowed: String,
}

impl ConfigError {
    /// Returns the setting's name, which is its method of [`Config`](crate::Config).
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl From<ConfigError> for io::Error {
    fn from(error: ConfigError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// How a peer violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame of a version other than the session's, or of an unknown version. A first byte of
    /// 0xff is the beginning of a Snappy stream: the peer compresses, and this side does not.
    #[error("frame of version {found}, expected {}", Expected(*.expected))]
    Version {
        /// The version byte.
        found: u8,
        /// The session's version; `None` while a server with [`Version::Any`] has received no
        /// frame.
        ///
        /// [`Version::Any`]: crate::Version::Any
        expected: Option<u8>,
    },
    /// A command that the session's version does not have: versions 1 and 2 have 0 to 3, version 2
    /// also has 4.
    #[error("unknown command {0}: expected 0 to 3, or 4 in version 2")]
    Command(u8),
    /// An invalid length for the command: UPD has 8, SYN, FIN and NOP have 0.
    #[error("command {command} of {len} bytes: expected 0, or 8 for command 4")]
    Length {
        /// The command byte.
        command: u8,
        /// The length field.
        len: u16,
    },
    /// A window update acknowledges more than was sent. Ends the stream, not the session.
    #[error("window update of {consumed} bytes consumed, at most {sent} were sent (modulo 2^32)")]
    Consumed {
        /// The field of the frame.
        consumed: u32,
        /// All bytes sent on the stream, modulo 2^32.
        sent: u32,
    },
    /// The peer exceeded the window of a stream. Ends the stream, not the session.
    #[error("{unread} unread bytes on a stream, at most {allowed} are allowed")]
    Window {
        /// Unread bytes of the stream.
        unread: u64,
        /// The window, plus one frame.
        allowed: u64,
    },
}

struct Expected(Option<u8>);

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(version) => write!(f, "{version}"),
            None => f.write_str("1 or 2"),
        }
    }
}

/// Why a session or a stream has ended.
///
/// Streams return it inside an [`io::Error`]; get it back with `error.get_ref()` and
/// `downcast_ref`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This side closed the session, or the peer ended the carrier between two frames.
    /// [`io::ErrorKind::BrokenPipe`].
    #[error("the session is closed")]
    Closed,
    /// No frame arrived within [`Config::timeout`](crate::Config::timeout), or the queued bytes of
    /// a closed session could not be sent within it. [`io::ErrorKind::TimedOut`].
    #[error("the peer does not answer")]
    Timeout,
    /// The peer broke the protocol. [`io::ErrorKind::InvalidData`].
    #[error("protocol error: {0}")]
    Protocol(#[from] ProtocolError),
    /// For one stream: the peer, which runs this crate, has aborted the stream, or has dropped it
    /// and no longer reads. Or this side has aborted its write half, and the peer's FIN arrived
    /// afterwards. [`io::ErrorKind::ConnectionReset`].
    #[error("the peer has reset the stream")]
    Reset,
    /// All stream ids are used up: this session opens no more streams, existing ones continue.
    /// [`io::ErrorKind::QuotaExceeded`].
    #[error("all stream ids of the session are used up")]
    IdsExhausted,
    /// The carrier failed. [`io::ErrorKind::UnexpectedEof`] if it ended inside a frame.
    #[error("carrier: {1}")]
    Io(io::ErrorKind, #[source] Arc<io::Error>),
}

impl Error {
    /// Returns the kind of the [`io::Error`] made from this error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Closed => io::ErrorKind::BrokenPipe,
            Self::Timeout => io::ErrorKind::TimedOut,
            Self::Protocol(_) => io::ErrorKind::InvalidData,
            Self::Reset => io::ErrorKind::ConnectionReset,
            Self::IdsExhausted => io::ErrorKind::QuotaExceeded,
            Self::Io(kind, _) => *kind,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind(), Arc::new(error))
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}
