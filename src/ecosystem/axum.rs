//! `axum::serve` on a [`KcpListener`].

use std::future::pending;
use std::io;
use std::net::SocketAddr;

use axum::serve::Listener;

use crate::error::ConnectionError;
use crate::listener::KcpListener;
use crate::stream::KcpStream;

/// `axum::serve(listener, app)` serves HTTP over KCP.
///
/// # Panics
///
/// `accept` panics once the endpoint has ended (its socket is unusable, or a cipher, filter or waker
/// panicked), since the trait returns no error and `axum::serve` would wait forever. The cause is logged.
/// After [`drain`](KcpListener::drain) and during runtime shutdown, `accept` stays pending.
impl Listener for KcpListener {
    type Io = KcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (KcpStream, SocketAddr) {
        match Self::accept(self).await {
            Ok(accepted) => accepted,
            Err(error) if has_ended(&error) => panic!("the listener has ended: {error}"),
            Err(_drains) => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

fn has_ended(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    cause == Some(&ConnectionError::EndpointClosed)
}
