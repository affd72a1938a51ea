//! The addresses of a connection, as its handles see them.

use std::net::SocketAddr;

use super::Shared;
use crate::util::path::Path;
use crate::util::sync::lock;

impl Shared {
    /// Address of the peer.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.path().peer
    }

    /// The path to the peer.
    pub(crate) fn path(&self) -> Path {
        *lock(&self.path)
    }

    /// Address the socket is bound to.
    pub(crate) fn local(&self) -> SocketAddr {
        self.notifier.endpoint().local()
    }

    /// The peer has migrated, or another address of this host is taken.
    pub(crate) fn set_path(&self, path: Path) {
        *lock(&self.path) = path;
    }
}
