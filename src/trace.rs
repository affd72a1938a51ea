//! Events in the life of conversations, for `tracing`. Nothing that a stranger can cause is above
//! `debug`. Nothing is logged per datagram.

#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "the feature is off"))]

use std::net::SocketAddr;

use crate::error::ConnectionError;

pub(crate) fn opened(peer: SocketAddr, conv: u32, by_peer: bool) {
    #[cfg(feature = "tracing")]
    tracing::debug!(%peer, conv, by_peer, "conversation opened");
}

pub(crate) fn moved(from: SocketAddr, to: SocketAddr, conv: u32) {
    #[cfg(feature = "tracing")]
    tracing::debug!(%from, %to, conv, "the peer has moved");
}

pub(crate) fn ended(peer: SocketAddr, conv: u32, cause: ConnectionError) {
    #[cfg(feature = "tracing")]
    tracing::debug!(%peer, conv, %cause, "conversation ended");
}

pub(crate) fn socket_failed(local: SocketAddr, error: &std::io::Error) {
    #[cfg(feature = "tracing")]
    tracing::debug!(%local, %error, "the socket cannot be used any more");
}

pub(crate) fn key_is_worn(local: SocketAddr, sealed: u64) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%local, sealed, "the key of this endpoint should be replaced");
}
