//! This crate.

use std::net::SocketAddr;
use std::path::PathBuf;

use kcpx::{
    AutoRedundancy, Cipher, Config, Endpoint, FecConfig, KcpListener, KcpStream, KeepaliveInterval,
    Limits, Redundancy, Timing,
};

use super::{Accept, Connect, Duplex, wildcard};
use crate::args::{Algorithm, BACKLOG, Case, KEY, MTU, Peer, WINDOW, Workload};

/// A temporary folder for the logs of this process, removed with it.
struct Logs(PathBuf);

impl Logs {
    /// `config` with logs, if the peer has them.
    #[cfg(feature = "qlog")]
    fn start(case: Case, config: Config) -> anyhow::Result<(Config, Option<Self>)> {
        if case.peer != Peer::KcpxQlog {
            return Ok((config, None));
        }
        let folder = std::env::temp_dir().join(format!("kcpx-compare-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok((config.qlog(&folder), Some(Self(folder))))
    }

    #[cfg(not(feature = "qlog"))]
    fn start(case: Case, config: Config) -> anyhow::Result<(Config, Option<Self>)> {
        anyhow::ensure!(case.peer != Peer::KcpxQlog, "kcpx-qlog needs `--features qlog`");
        Ok((config, None))
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        // The system removes what is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config(case: Case) -> anyhow::Result<Config> {
    let mut config = Config::new()
        .timing(Timing::FAST3)
        .windows(WINDOW, WINDOW)
        .mtu(MTU)
        .limits(Limits::new().backlog(usize::from(BACKLOG)));
    if case.workload == Workload::Many {
        // Others do nothing on an idle connection. One probe in 15 s would fall into the rest of
        // some runs and not of others.
        config = config.keepalive(KeepaliveInterval::Never).idle_timeout(None);
    }
    let layout = |(data, parity)| FecConfig::new(data, parity);
    let fec = case.wire.fec().map(layout).transpose()?;
    if case.peer == Peer::KcpxAuto {
        let mut auto = AutoRedundancy::new();
        if let Some(per_mille) = case.max_overhead {
            auto = auto.max_overhead(f64::from(per_mille) / 1_000.0);
        }
        if let Some(fec) = fec {
            auto = auto.stock(fec);
        }
        config = config.redundancy(Redundancy::Auto(auto));
    } else if let Some(fec) = fec {
        config = config.redundancy(Redundancy::Fec(fec));
    }
    let algorithm = |algorithm| match algorithm {
        Algorithm::Aes128 => kcpx::Algorithm::Aes128,
        Algorithm::Aes128Gcm => kcpx::Algorithm::Aes128Gcm,
    };
    if let Some(chosen) = case.wire.algorithm() {
        config = config.cipher(Cipher::new(algorithm(chosen), KEY)?);
    }
    Ok(config)
}

impl Duplex for KcpStream {
    fn retransmit_pct(&self) -> Option<f64> {
        Some(self.stats().retransmit_percent())
    }
}

pub(crate) struct Server {
    listener: KcpListener,
    _logs: Option<Logs>,
}

impl Accept for Server {
    type Stream = KcpStream;
    const NOTE: fn(Case) -> Option<String> = |case| {
        let aead = case.wire.algorithm() == Some(Algorithm::Aes128Gcm);
        (aead && !cfg!(feature = "aws-lc-rs")).then(|| "pure Rust".to_owned())
    };

    async fn bind(case: Case, addr: SocketAddr) -> anyhow::Result<Self> {
        let (config, logs) = Logs::start(case, config(case)?)?;
        Ok(Self { listener: KcpListener::bind_with(addr, config).await?, _logs: logs })
    }

    fn addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    async fn accept(&mut self) -> anyhow::Result<KcpStream> {
        Ok(self.listener.accept().await?.0)
    }
}

/// All connections have one socket.
pub(crate) struct Client {
    endpoint: Endpoint,
    server: SocketAddr,
    _logs: Option<Logs>,
}

impl Connect for Client {
    type Stream = KcpStream;

    async fn new(case: Case, server: SocketAddr) -> anyhow::Result<Self> {
        let (config, logs) = Logs::start(case, config(case)?)?;
        let endpoint = Endpoint::bind_with(wildcard(server), config).await?;
        Ok(Self { endpoint, server, _logs: logs })
    }

    async fn connect(&self) -> anyhow::Result<KcpStream> {
        Ok(self.endpoint.connect(self.server).await?)
    }
}
