//! rust_tokio_kcp: tokio_kcp with kcp-go's ciphers and FEC. Flushing as there.

use std::net::SocketAddr;
use std::sync::Arc;

use rust_tokio_kcp::{
    Aes128BlockCrypt, AesGcmBlockCrypt, BlockCrypt, KcpConfig, KcpListener, KcpNoDelayConfig,
    KcpStream,
};

use super::{Accept, Connect, Duplex};
use crate::args::{Algorithm, Case, KEY, MTU, WINDOW};

fn config(case: Case) -> anyhow::Result<KcpConfig> {
    let refused = |reason: String| anyhow::anyhow!(reason);
    let crypt: Option<Arc<dyn BlockCrypt>> = match case.wire.algorithm() {
        Some(Algorithm::Aes128) => Some(Arc::new(Aes128BlockCrypt::new(KEY).map_err(refused)?)),
        Some(Algorithm::Aes128Gcm) => Some(Arc::new(AesGcmBlockCrypt::new(KEY).map_err(refused)?)),
        None => None,
    };
    let (data, parity) = case.wire.fec().unwrap_or((0, 0));
    Ok(KcpConfig {
        mtu: usize::from(MTU),
        nodelay: KcpNoDelayConfig::fastest(),
        wnd_size: (WINDOW, WINDOW),
        flush_write: true,
        flush_acks_input: true,
        stream: true,
        fec_data_shards: data,
        fec_parity_shards: parity,
        crypt,
        ..KcpConfig::default()
    })
}

impl Duplex for KcpStream {}

pub(crate) struct Server(KcpListener);

impl Accept for Server {
    type Stream = KcpStream;

    async fn bind(case: Case, addr: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self(KcpListener::bind(config(case)?, addr).await?))
    }

    fn addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.0.local_addr()?)
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
        Ok(Self { config: config(case)?, server })
    }

    async fn connect(&self) -> anyhow::Result<KcpStream> {
        Ok(KcpStream::connect(&self.config, self.server).await?)
    }
}
