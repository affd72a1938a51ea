//! State of the write side of a connection, as its handles see it.

use std::io;

use crate::error::ConnectionError;

/// State of the write side of a connection (the sending states of RFC 9000 3.1).
#[derive(Clone, Copy, Debug)]
pub(super) enum SendState {
    /// Writes are taken. Left on `shutdown`, or the end of the connection.
    Open,
    /// `shutdown` was called: writes fail with `BrokenPipe`. Left when the peer has acknowledged
    /// every byte, or on the end of the connection. `in_background`: the peer waits for a reader of
    /// this side, so `shutdown` does not wait for the peer.
    Closed { in_background: bool },
    /// The peer has acknowledged every byte: `shutdown` and `flush` are `Ok` from here on, also
    /// after the connection has ended with `error`. Final. `closed`: `shutdown` was called; without that
    /// writes fail with the error.
    Drained { error: Option<ConnectionError>, closed: bool },
    /// The connection ended with bytes unacknowledged, or while open. Final. `closed`: `shutdown`
    /// was called, so writes still fail with `BrokenPipe`.
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

    /// Whether writes are taken.
    pub(super) fn check_writable(self) -> io::Result<()> {
        if self.is_closed() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the write side is shut down"));
        }
        self.error().map_or(Ok(()), |error| Err(error.into()))
    }

    /// `shutdown`. Returns whether it is the first one.
    pub(super) fn close(&mut self) -> bool {
        let first = !self.is_closed();
        match self {
            Self::Open => *self = Self::Closed { in_background: false },
            Self::Drained { closed, .. } | Self::Failed { closed, .. } => *closed = true,
            Self::Closed { .. } => {}
        }
        first
    }

    /// The peer has acknowledged every byte of a write side that is closed, or fails now.
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
