//! kcp-rs: the C core with a handshake in front.

use std::net::SocketAddr;
use std::sync::Arc;

use kcp_rs::{KcpConfig, KcpNoDelayConfig, KcpStream, KcpUdpStream};
use tokio::net::UdpSocket;

use super::{Accept, Connect, Duplex};
use crate::args::{BACKLOG, Case, MTU, WINDOW};

fn config() -> Arc<KcpConfig> {
    Arc::new(KcpConfig {
        mtu: u32::from(MTU),
        nodelay: KcpNoDelayConfig::fastest(),
        snd_wnd: u32::from(WINDOW),
        rcv_wnd: u32::from(WINDOW),
        stream: true,
        ..KcpConfig::default()
    })
}

impl Duplex for KcpStream {}

pub(crate) struct Server {
    listener: KcpUdpStream,
    addr: SocketAddr,
}

impl Accept for Server {
    type Stream = KcpStream;

    async fn bind(_case: Case, addr: SocketAddr) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind(addr).await?;
        let addr = socket.local_addr()?;
        let listener = KcpUdpStream::socket_listen(config(), socket, usize::from(BACKLOG), None)?;
        Ok(Self { listener, addr })
    }

    fn addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.addr)
    }

    async fn accept(&mut self) -> anyhow::Result<KcpStream> {
        Ok(self.listener.accept().await?.0)
    }
}

/// Each connection has a socket of its own.
pub(crate) struct Client {
    config: Arc<KcpConfig>,
    server: SocketAddr,
}

impl Connect for Client {
    type Stream = KcpStream;

    async fn new(_case: Case, server: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self { config: config(), server })
    }

    async fn connect(&self) -> anyhow::Result<KcpStream> {
        Ok(KcpUdpStream::connect(self.config.clone(), self.server).await?.0)
    }
}
