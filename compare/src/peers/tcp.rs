//! The kernel's TCP, without Nagle's algorithm.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{Accept, Connect, Duplex};
use crate::args::{BACKLOG, Case};

impl Duplex for TcpStream {}

pub(crate) struct Server(TcpListener);

impl Accept for Server {
    type Stream = TcpStream;

    async fn bind(_case: Case, addr: SocketAddr) -> anyhow::Result<Self> {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind(addr)?;
        Ok(Self(socket.listen(u32::from(BACKLOG))?))
    }

    fn addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.0.local_addr()?)
    }

    async fn accept(&mut self) -> anyhow::Result<TcpStream> {
        let (stream, _) = self.0.accept().await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

pub(crate) struct Client(SocketAddr);

impl Connect for Client {
    type Stream = TcpStream;

    async fn new(_case: Case, server: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self(server))
    }

    async fn connect(&self) -> anyhow::Result<TcpStream> {
        let stream = TcpStream::connect(self.0).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
