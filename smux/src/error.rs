//! Errors: of settings, of the protocol, of a session.

use std::io;
use std::sync::Arc;

/// A refused setting: which field, its value, and the values it may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}: allowed is {allowed}")]
pub struct ConfigError {
    pub(crate) field: &'static str,
    pub(crate) value: String,
    pub(crate) allowed: String,
}

impl ConfigError {
    /// The name of the setting, as its method of [`Config`](crate::Config) is called.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl From<ConfigError> for io::Error {
    fn from(error: ConfigError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// What a peer did against the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame of another version than that of the session, or of none that exists. A first byte
    /// of 0xff is the beginning of a Snappy stream: the peer compresses, and this side does not.
    #[error("frame of version {found}, expected {}", Expected(*.expected))]
    Version {
        /// The version byte.
        found: u8,
        /// The version of the session; `None` while a server with [`Version::Any`] has received no
        /// frame.
        ///
        /// [`Version::Any`]: crate::Version::Any
        expected: Option<u8>,
    },
    /// A command that the version of the session does not have: at most 3 in version 1, 4 in
    /// version 2.
    #[error("command {0}, allowed is 0 to 3, and 4 in version 2")]
    Command(u8),
    /// A length that the command may not have: 8 for UPD, 0 for SYN, FIN and NOP.
    #[error("command {command} of {len} bytes, allowed is 0, and 8 for command 4")]
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
    /// The peer sent beyond the window of a stream. Ends the stream, not the session.
    #[error("{unread} unread bytes on a stream, at most {allowed} are allowed")]
    Window {
        /// Bytes that the application had not read.
        unread: u64,
        /// The window, and one frame more.
        allowed: u64,
    },
}

/// Shows an expected version.
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
/// Streams return it inside an [`io::Error`], from which `error.get_ref()` and `downcast_ref` give it
/// back.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This side closed the session, or the peer ended the carrier between two frames.
    /// [`io::ErrorKind::BrokenPipe`].
    #[error("the session is closed")]
    Closed,
    /// No frame arrived within [`Config::timeout`](crate::Config::timeout), or what was queued when
    /// the session was closed could not be sent within it. [`io::ErrorKind::TimedOut`].
    #[error("the peer does not answer")]
    Timeout,
    /// The peer broke the protocol. [`io::ErrorKind::InvalidData`].
    #[error("protocol error: {0}")]
    Protocol(#[from] ProtocolError),
    /// The peer, which runs this crate, has aborted the stream, or has dropped it and reads no more. Or
    /// this side has aborted its write half, and the peer's FIN came after that. Of a stream alone.
    /// [`io::ErrorKind::ConnectionReset`].
    #[error("the peer has reset the stream")]
    Reset,
    /// All stream ids are used up: this session opens no more streams, those that exist go on.
    /// [`io::ErrorKind::QuotaExceeded`].
    #[error("all stream ids of the session are used up")]
    IdsExhausted,
    /// The carrier failed. [`io::ErrorKind::UnexpectedEof`] when it ended inside a frame.
    #[error("carrier: {1}")]
    Io(io::ErrorKind, #[source] Arc<io::Error>),
}

impl Error {
    /// The kind that an [`io::Error`] made of this has.
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
