//! Events of connections and endpoints for `tracing`. Events that an unvalidated peer can cause are
//! at most `debug`, but for the end of an endpoint, once. Nothing is logged per datagram.

#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "the feature is off"))]

use std::net::SocketAddr;

use crate::error::ConnectionError;

/// The span of one connection, parent of its events: `connection`, with the peer's address at the
/// start and the conversation id.
#[derive(Debug)]
pub(crate) struct Span {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl Span {
    /// A connection was opened, by the peer (passive open) or from here.
    pub(crate) fn open(peer: SocketAddr, conv: u32, passive: bool) -> Self {
        let opened = Self {
            #[cfg(feature = "tracing")]
            span: tracing::debug_span!(parent: None, "connection", %peer, conv),
        };
        opened.enter(|| {
            #[cfg(feature = "tracing")]
            tracing::debug!(passive, "opened");
        });
        opened
    }

    /// The peer answered for the first time.
    pub(crate) fn established(&self) {
        self.enter(|| {
            #[cfg(feature = "tracing")]
            tracing::debug!("established");
        });
    }

    /// The connection migrated to another address of the peer.
    pub(crate) fn migrated(&self, to: SocketAddr) {
        self.enter(|| {
            #[cfg(feature = "tracing")]
            tracing::debug!(%to, "migrated");
        });
    }

    /// The connection ended.
    pub(crate) fn ended(&self, reason: ConnectionError) {
        self.enter(|| {
            #[cfg(feature = "tracing")]
            tracing::debug!(%reason, "ended");
        });
    }

    fn enter(&self, event: impl FnOnce()) {
        #[cfg(feature = "tracing")]
        self.span.in_scope(event);
    }
}

/// An endpoint has ended, and its connections with it: the socket cannot be used any more, or a part of the
/// application panicked.
pub(crate) fn endpoint_failed(local: SocketAddr, error: &std::io::Error) {
    #[cfg(feature = "tracing")]
    tracing::error!(%local, %error, "the endpoint has ended");
}

/// A datagram failed the cipher or is no KCP, the first one of its address for a minute.
pub(crate) fn unreadable(local: SocketAddr, from: SocketAddr) {
    #[cfg(feature = "tracing")]
    tracing::debug!(%local, %from, "a datagram could not be read: another key or cipher?");
}

/// The endpoint sealed so many packets that its key should be replaced.
pub(crate) fn key_limit_reached(local: SocketAddr, sealed: u64) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%local, sealed, "the key should be replaced on all sides: this endpoint alone has sealed 2^32 packets");
}

/// A further connection with the address of another implementation was opened.
pub(crate) fn further_connection(peer: SocketAddr, conv: u32) {
    #[cfg(feature = "tracing")]
    tracing::debug!(
        %peer,
        conv,
        "a listener of kcp-go has one session per address: a further one is ignored, or ends it"
    );
}

/// Bytes of a kernel socket buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) requested: usize,
    pub(crate) granted: usize,
}

impl Grant {
    /// Whether the system granted less than was requested.
    pub(crate) fn is_short(self) -> bool {
        self.granted < self.requested
    }
}

/// The system granted smaller socket buffers than were requested.
pub(crate) fn socket_buffers_limited(send: Option<Grant>, recv: Option<Grant>) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        recv_requested = recv.map(|recv| recv.requested),
        recv_granted = recv.map(|recv| recv.granted),
        send_requested = send.map(|send| send.requested),
        send_granted = send.map(|send| send.granted),
        "socket buffers are smaller than requested, in bytes; on Linux the limits are \
         net.core.rmem_max and net.core.wmem_max"
    );
}
