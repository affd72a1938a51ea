//! The kernel's TCP, without Nagle's algorithm.

use std::net::SocketAddr;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{Accept, Connect, Duplex};
use crate::args::{BACKLOG, Case, name};

impl Duplex for TcpStream {}

/// The system's default.
const SYSTEM_CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

fn set_congestion(socket: SockRef<'_>, case: Case) -> std::io::Result<()> {
    case.tcp_congestion
        .map_or(Ok(()), |congestion| socket.set_tcp_congestion(name(congestion).as_bytes()))
}

fn congestion(case: Case) -> Option<String> {
    let system = || Some(std::fs::read_to_string(SYSTEM_CONGESTION).ok()?.trim().to_owned());
    case.tcp_congestion.map(name).or_else(system)
}

pub(crate) struct Server(TcpListener);

impl Accept for Server {
    type Stream = TcpStream;
    const NOTE: fn(Case) -> Option<String> = congestion;

    async fn bind(case: Case, addr: SocketAddr) -> anyhow::Result<Self> {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        set_congestion(SockRef::from(&socket), case)?;
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

pub(crate) struct Client(Case, SocketAddr);

impl Connect for Client {
    type Stream = TcpStream;

    async fn new(case: Case, server: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self(case, server))
    }

    async fn connect(&self) -> anyhow::Result<TcpStream> {
        let Self(case, server) = *self;
        let stream = TcpStream::connect(server).await?;
        set_congestion(SockRef::from(&stream), case)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
