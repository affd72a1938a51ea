//! Events in the life of conversations, for `tracing`. Nothing that a stranger can cause is above
//! `debug`. Nothing is logged per datagram.

#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "the feature is off"))]

use std::net::SocketAddr;

use crate::error::ConnectionError;
use crate::sys::Grant;

/// What all events of one conversation are a part of: a span `connection` with the address of its
/// peer at the beginning and its conversation id.
#[derive(Debug)]
pub(crate) struct Span {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl Span {
    /// A conversation opens.
    pub(crate) fn open(peer: SocketAddr, conv: u32, by_peer: bool) -> Self {
        let opened = Self {
            #[cfg(feature = "tracing")]
            span: tracing::debug_span!(parent: None, "connection", %peer, conv),
        };
        opened.enter(|| {
            #[cfg(feature = "tracing")]
            tracing::debug!(by_peer, "opened");
        });
        opened
    }

    pub(crate) fn established(&self) {
        self.enter(|| {
            #[cfg(feature = "tracing")]
            tracing::debug!("the peer has answered");
        });
    }

    pub(crate) fn moved(&self, to: SocketAddr) {
        self.enter(|| {
            #[cfg(feature = "tracing")]
            tracing::debug!(%to, "the peer has moved");
        });
    }

    pub(crate) fn ended(&self, cause: ConnectionError) {
        self.enter(|| {
            #[cfg(feature = "tracing")]
            tracing::debug!(%cause, "ended");
        });
    }

    fn enter(&self, event: impl FnOnce()) {
        #[cfg(feature = "tracing")]
        self.span.in_scope(event);
    }
}

pub(crate) fn socket_failed(local: SocketAddr, error: &std::io::Error) {
    #[cfg(feature = "tracing")]
    tracing::debug!(%local, %error, "the socket cannot be used any more");
}

pub(crate) fn key_is_worn(local: SocketAddr, sealed: u64) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%local, sealed, "the key of this endpoint should be replaced");
}

/// The system granted smaller buffers than it was asked for.
pub(crate) fn buffers_are_small(send: Option<Grant>, recv: Option<Grant>) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        recv_asked = recv.map(|recv| recv.asked),
        recv_granted = recv.map(|recv| recv.granted),
        send_asked = send.map(|send| send.asked),
        send_granted = send.map(|send| send.granted),
        "socket buffers are smaller than asked for, in bytes; on Linux the limits are \
         net.core.rmem_max and net.core.wmem_max"
    );
}
