//! `axum::serve` on a [`KcpListener`].

use std::future::pending;
use std::io;
use std::net::SocketAddr;

use axum::serve::Listener;

use crate::listener::KcpListener;
use crate::stream::KcpStream;

/// `axum::serve(listener, app)` serves HTTP over KCP.
///
/// Accepting fails only when the endpoint has ended. The trait has no error to return, so `accept`
/// then stays pending until the server is shut down or dropped.
impl Listener for KcpListener {
    type Io = KcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (KcpStream, SocketAddr) {
        match Self::accept(self).await {
            Ok(accepted) => accepted,
            Err(_ended) => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}
