//! kcp-tokio: plain KCP.

use std::net::SocketAddr;

use kcp_tokio::config::NodeDelayConfig;
use kcp_tokio::{KcpConfig, KcpListener, KcpStream};

use super::{Accept, Connect, Duplex};
use crate::args::{BACKLOG, Case, MTU, WINDOW, Workload};

fn config(case: Case) -> KcpConfig {
    let (mtu, window) = (u32::from(MTU), u32::from(WINDOW));
    let nodelay =
        NodeDelayConfig { nodelay: true, interval: 10, resend: 2, no_congestion_control: true };
    let mut config = KcpConfig::new()
        .mtu(mtu)
        .window_size(window, window)
        .nodelay_config(nodelay)
        .stream_mode(true);
    config.max_pending_connections = usize::from(BACKLOG);
    if case.workload == Workload::Many {
        config = config.keep_alive(None);
    }
    config
}

impl Duplex for KcpStream {}

pub(crate) struct Server(KcpListener);

impl Accept for Server {
    type Stream = KcpStream;

    async fn bind(case: Case, addr: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self(KcpListener::bind(addr, config(case)).await?))
    }

    fn addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(*self.0.local_addr())
    }

    async fn accept(&mut self) -> anyhow::Result<KcpStream> {
        Ok(self.0.accept().await?.0)
    }
}

/// Each connection has a socket of its own.
pub(crate) struct Client {
    config: KcpConfig,
    server: SocketAddr,
}

impl Connect for Client {
    type Stream = KcpStream;

    async fn new(case: Case, server: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self { config: config(case), server })
    }

    async fn connect(&self) -> anyhow::Result<KcpStream> {
        Ok(KcpStream::connect(self.server, self.config.clone()).await?)
    }
}
