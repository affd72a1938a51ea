//! State of the write side of a connection.

use std::io;

use crate::error::ConnectionError;

/// State of the write side of a connection (the sending states of RFC 9000 3.1).
#[derive(Clone, Copy, Debug)]
pub(super) enum SendState {
    /// Writes are taken. Left on `shutdown`, or the end of the connection.
    Open,
    /// `shutdown` was called: writes fail with `BrokenPipe`. Left when the peer has acknowledged every
    /// byte, or when the connection ends. `in_background`: the peer waits for this side to read, so
    /// `shutdown` does not wait for the peer.
    Closed { in_background: bool },
    /// The peer has acknowledged every byte: `shutdown` and `flush` are `Ok`, also after the connection
    /// has ended with `error`. Final. `closed`: `shutdown` was called; otherwise writes fail with the
    /// error.
    Drained { error: Option<ConnectionError>, closed: bool },
    /// The connection ended while open or with unacknowledged bytes. Final. `closed`: `shutdown` was
    /// called, so writes still fail with `BrokenPipe`.
    Failed { error: ConnectionError, closed: bool },
}

impl SendState {
    pub(super) fn is_closed(self) -> bool {
        match self {
            Self::Open => false,
            Self::Closed { .. } => true,
            Self::Drained { closed, .. } | Self::Failed { closed, .. } => closed,
        }
    }

    /// Why the connection ended, once it has.
    pub(super) fn error(self) -> Option<ConnectionError> {
        match self {
            Self::Open | Self::Closed { .. } => None,
            Self::Drained { error, .. } => error,
            Self::Failed { error, .. } => Some(error),
        }
    }

    /// Fails unless writes are taken.
    pub(super) fn check_writable(self) -> io::Result<()> {
        if self.is_closed() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the write side was shut down"));
        }
        self.error().map_or(Ok(()), |error| Err(error.into()))
    }

    /// `shutdown`. Returns whether this is the first call.
    pub(super) fn close(&mut self) -> bool {
        let first = !self.is_closed();
        match self {
            Self::Open => *self = Self::Closed { in_background: false },
            Self::Drained { closed, .. } | Self::Failed { closed, .. } => *closed = true,
            Self::Closed { .. } => {}
        }
        first
    }

    /// The peer has acknowledged every byte, and the write side is closed or about to fail.
    pub(super) fn drain(&mut self) {
        if matches!(self, Self::Open | Self::Closed { .. }) {
            *self = Self::Drained { error: None, closed: self.is_closed() };
        }
    }

    /// The connection has ended. The first error stays.
    pub(super) fn fail(&mut self, cause: ConnectionError) {
        match self {
            Self::Open => *self = Self::Failed { error: cause, closed: false },
            Self::Closed { .. } => *self = Self::Failed { error: cause, closed: true },
            Self::Drained { error, .. } => {
                error.get_or_insert(cause);
            }
            Self::Failed { .. } => {}
        }
    }
}
