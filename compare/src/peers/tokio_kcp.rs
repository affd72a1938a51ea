//! tokio_kcp: plain KCP. Flushing after each write and each input is its fastest setting.

use std::net::SocketAddr;

use tokio_kcp::{KcpConfig, KcpListener, KcpNoDelayConfig, KcpStream};

use super::{Accept, Connect, Duplex};
use crate::args::{Case, MTU, WINDOW};

fn config() -> KcpConfig {
    KcpConfig {
        mtu: usize::from(MTU),
        nodelay: KcpNoDelayConfig::fastest(),
        wnd_size: (WINDOW, WINDOW),
        flush_write: true,
        flush_acks_input: true,
        stream: true,
        ..KcpConfig::default()
    }
}

impl Duplex for KcpStream {}

pub(crate) struct Server(KcpListener);

impl Accept for Server {
    type Stream = KcpStream;

    async fn bind(_case: Case, addr: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self(KcpListener::bind(config(), addr).await?))
    }

    fn addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.0.local_addr()?)
    }

    async fn accept(&mut self) -> anyhow::Result<KcpStream> {
        Ok(self.0.accept().await?.0)
    }
}

/// Each connection has a socket of its own.
pub(crate) struct Client(SocketAddr);

impl Connect for Client {
    type Stream = KcpStream;

    async fn new(_case: Case, server: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self(server))
    }

    async fn connect(&self) -> anyhow::Result<KcpStream> {
        Ok(KcpStream::connect(&config(), self.0).await?)
    }
}
