//! `tracing` events of connections and endpoints. Unvalidated peers cause at most `debug` events, except
//! for the end of an endpoint, which is logged once. Nothing is logged per datagram.

#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "the feature is off"))]

use std::net::SocketAddr;

#[cfg(feature = "tracing")]
use crate::core::path::set::{PathId, PathState};
use crate::error::ConnectionError;
#[cfg(feature = "tracing")]
use crate::util::path::Path;

/// The span `connection`, parent of the connection's events, with the conversation id and the peer's
/// initial address.
#[derive(Debug)]
pub(crate) struct Span {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl Span {
    /// A connection was opened; `passive`: by the peer.
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

/// Paths of a connection with several.
#[cfg(feature = "tracing")]
impl Span {
    /// A path was added: by this side, or by the peer.
    pub(crate) fn path_added(&self, id: PathId, path: Path) {
        self.enter(|| {
            tracing::debug!(path = id.number(), local = ?path.local.get(), peer = %path.peer, "path added");
        });
    }

    /// The state of a path changed: it is validated, silent, or answers again.
    pub(crate) fn path_state(&self, id: PathId, before: Option<PathState>, state: PathState) {
        self.enter(|| match (before, state) {
            (_, PathState::Silent) => tracing::debug!(path = id.number(), "path silent"),
            (Some(PathState::Silent), PathState::Usable) => {
                tracing::debug!(path = id.number(), "path answers again");
            }
            (_, PathState::Usable) => tracing::debug!(path = id.number(), "path validated"),
            (_, PathState::Validating) => {}
        });
    }

    /// Data leaves on another path.
    pub(crate) fn active_path_changed(&self, from: PathId, to: PathId, reason: &'static str) {
        self.enter(|| {
            tracing::debug!(from = from.number(), to = to.number(), reason, "active path changed");
        });
    }

    /// A path was removed.
    pub(crate) fn path_removed(&self, id: PathId) {
        self.enter(|| {
            tracing::debug!(path = id.number(), "path removed");
        });
    }
}

/// An endpoint and its connections have ended: the socket is unusable, or a part of the application
/// panicked.
pub(crate) fn endpoint_failed(local: SocketAddr, error: &std::io::Error) {
    #[cfg(feature = "tracing")]
    tracing::error!(%local, %error, "the endpoint has ended: its socket is unusable, or application code panicked");
}

/// A datagram failed the cipher or is not KCP. At most once a minute and address.
pub(crate) fn unreadable(local: SocketAddr, from: SocketAddr) {
    #[cfg(feature = "tracing")]
    tracing::debug!(%local, %from, "unreadable datagram: check that key and cipher are the same on both sides");
}

/// The endpoint has sealed 2^32 packets: its key should be replaced.
pub(crate) fn key_limit_reached(local: SocketAddr, sealed: u64) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%local, sealed, "replace the key on all sides: this endpoint has sealed 2^32 packets");
}

/// Another connection was opened to an address whose peer is not kcpx.
pub(crate) fn further_connection(peer: SocketAddr, conv: u32) {
    #[cfg(feature = "tracing")]
    tracing::debug!(
        %peer,
        conv,
        "a kcp-go listener has one session per address: use a socket for each connection"
    );
}

/// Changes of addresses and routes are not reported. At most once a process.
#[cfg(all(feature = "netlink", target_os = "linux"))]
pub(crate) fn network_not_watched(error: &std::io::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%error, "changes of addresses and routes go unnoticed: permit netlink sockets (NETLINK_ROUTE)");
}

/// A log of a connection cannot be written, and the endpoint logs no more. At most once an endpoint.
#[cfg(feature = "qlog")]
pub(crate) fn qlog_failed(folder: &std::path::Path, error: &std::io::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        folder = %folder.display(),
        %error,
        "no more qlog of this endpoint: check that its folder is writable and has space"
    );
}

/// A connection gets no log, since `limit` others have one. At most once an endpoint.
#[cfg(feature = "qlog")]
pub(crate) fn qlog_limit(limit: usize) {
    #[cfg(feature = "tracing")]
    tracing::warn!(limit, "new connections get no qlog while this number of others has one");
}

/// Size of a kernel socket buffer in bytes.
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
        "socket buffers are smaller than requested (bytes): on Linux raise net.core.rmem_max and \
         net.core.wmem_max"
    );
}
