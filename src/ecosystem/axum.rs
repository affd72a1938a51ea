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
/// `accept` panics when the endpoint has ended, since the trait has no error to return and `axum::serve`
/// would wait for ever: its socket cannot be used any more, or a cipher, filter or waker panicked. The cause
/// is logged. After [`drain`](KcpListener::drain), and while the runtime shuts down, `accept` stays pending.
impl Listener for KcpListener {
    type Io = KcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (KcpStream, SocketAddr) {
        match Self::accept(self).await {
            Ok(accepted) => accepted,
            Err(error) if has_ended(&error) => panic!("the listener accepts no more: {error}"),
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
