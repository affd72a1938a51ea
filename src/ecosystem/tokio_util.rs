//! `tokio_util::net::Listener` for [`KcpListener`].

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use tokio_util::net::Listener;

use crate::listener::KcpListener;
use crate::stream::KcpStream;

/// For code that is generic over listeners.
impl Listener for KcpListener {
    type Io = KcpStream;
    type Addr = SocketAddr;

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(KcpStream, SocketAddr)>> {
        Self::poll_accept(self, cx)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}
