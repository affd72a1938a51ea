//! The peers: how each is configured, serves and sends.

use std::any::Any;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use kcpx::{Algorithm, Cipher, Config, FecConfig, KcpListener, KcpStream, NoDelay};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{Listening, Moved, Served, os};

/// Bytes of one write. The first eight carry its number, and in the last one [`LAST`].
const BLOCK: usize = 64 * 1024;
const LAST: u64 = 1 << 63;
const MTU: u16 = 1_400;
const WINDOW: u16 = 1_024;
const KEY: &[u8; 16] = b"sixteen key byte";
/// Beyond the time that the client writes, until the run counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Peer {
    Kcpx,
    #[value(name = "tokio_kcp")]
    TokioKcp,
    #[value(name = "rust_tokio_kcp")]
    RustTokioKcp,
}

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kcpx => "kcpx",
            Self::TokioKcp => "tokio_kcp",
            Self::RustTokioKcp => "rust_tokio_kcp",
        }
    }

    pub(crate) fn has(self, wire: Wire) -> bool {
        self != Self::TokioKcp || wire == Wire::Plain
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wire {
    Plain,
    #[value(name = "aes-128-gcm")]
    Aes128Gcm,
    #[value(name = "aes-128")]
    Aes128,
    #[value(name = "aes-128-fec-10-3")]
    Aes128Fec,
}

impl Wire {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes128 => "aes-128",
            Self::Aes128Fec => "aes-128-fec-10-3",
        }
    }

    fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::Plain => None,
            Self::Aes128Gcm => Some(Algorithm::Aes128Gcm),
            Self::Aes128 | Self::Aes128Fec => Some(Algorithm::Aes128),
        }
    }

    fn fec(self) -> Option<(usize, usize)> {
        (self == Self::Aes128Fec).then_some((10, 3))
    }
}

fn kcpx_config(wire: Wire) -> anyhow::Result<Config> {
    let mut config = Config::new().no_delay(NoDelay::TURBO).windows(WINDOW, WINDOW).mtu(MTU);
    if let Some(algorithm) = wire.algorithm() {
        config.cipher = Cipher::new(algorithm, KEY)?;
    }
    if let Some((data, parity)) = wire.fec() {
        config.fec = Some(FecConfig::new(data, parity)?);
    }
    Ok(config)
}

fn tokio_kcp_config() -> tokio_kcp::KcpConfig {
    tokio_kcp::KcpConfig {
        mtu: usize::from(MTU),
        nodelay: tokio_kcp::KcpNoDelayConfig::fastest(),
        wnd_size: (WINDOW, WINDOW),
        flush_write: true,
        flush_acks_input: true,
        stream: true,
        ..tokio_kcp::KcpConfig::default()
    }
}

fn rust_tokio_kcp_config(wire: Wire) -> anyhow::Result<rust_tokio_kcp::KcpConfig> {
    let refused = |reason: String| anyhow::anyhow!(reason);
    let crypt: Option<Arc<dyn rust_tokio_kcp::BlockCrypt>> = match wire.algorithm() {
        Some(Algorithm::Aes128Gcm) => {
            Some(Arc::new(rust_tokio_kcp::AesGcmBlockCrypt::new(KEY).map_err(refused)?))
        }
        Some(_) => Some(Arc::new(rust_tokio_kcp::Aes128BlockCrypt::new(KEY).map_err(refused)?)),
        None => None,
    };
    let (data, parity) = wire.fec().unwrap_or((0, 0));
    Ok(rust_tokio_kcp::KcpConfig {
        mtu: usize::from(MTU),
        nodelay: rust_tokio_kcp::KcpNoDelayConfig::fastest(),
        wnd_size: (WINDOW, WINDOW),
        flush_write: true,
        flush_acks_input: true,
        stream: true,
        fec_data_shards: data,
        fec_parity_shards: parity,
        crypt,
        ..rust_tokio_kcp::KcpConfig::default()
    })
}

fn tell(what: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(what)?);
    Ok(std::io::stdout().flush()?)
}

pub(crate) async fn serve(peer: Peer, wire: Wire, pinned: bool) -> anyhow::Result<()> {
    let mut end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let serving = async {
        match peer {
            Peer::Kcpx => {
                let listener = KcpListener::bind_with(local, kcpx_config(wire)?).await?;
                tell(&Listening { addr: listener.local_addr()? })?;
                let (mut stream, _) = listener.accept().await?;
                let cpu = drain(&mut stream).await?;
                Ok((cpu, Box::new((stream, listener)) as Box<dyn Any>))
            }
            Peer::TokioKcp => {
                let config = tokio_kcp_config();
                let mut listener = tokio_kcp::KcpListener::bind(config, local).await?;
                tell(&Listening { addr: listener.local_addr()? })?;
                let (mut stream, _) = listener.accept().await?;
                let cpu = drain(&mut stream).await?;
                Ok((cpu, Box::new((stream, listener)) as Box<dyn Any>))
            }
            Peer::RustTokioKcp => {
                let config = rust_tokio_kcp_config(wire)?;
                let mut listener = rust_tokio_kcp::KcpListener::bind(config, local).await?;
                tell(&Listening { addr: listener.local_addr()? })?;
                let (mut stream, _) = listener.accept().await?;
                let cpu = drain(&mut stream).await?;
                Ok::<_, anyhow::Error>((cpu, Box::new((stream, listener)) as Box<dyn Any>))
            }
        }
    };
    // The connection stays until the client has its answer and the measurement says so.
    let (cpu_seconds, _connection) = tokio::select! {
        biased;
        served = serving => served?,
        _ = &mut end => bail!("the measurement is gone"),
    };
    end.await??;
    tell(&Served { pinned, cpu_seconds })?;
    // Neither side says goodbye: that is not what is measured.
    std::process::exit(0)
}

/// Reads everything, checks it, answers, and gives the CPU time that this took.
async fn drain(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> anyhow::Result<f64> {
    let before = os::cpu_seconds()?;
    let mut block = vec![0; BLOCK];
    for number in 0_u64.. {
        stream.read_exact(&mut block).await?;
        let mark = u64::from_le_bytes(block[..8].try_into()?);
        ensure!(mark & !LAST == number, "write {number} is marked {mark:#x}");
        if mark & LAST != 0 {
            stream.write_all(&((number + 1) * BLOCK as u64).to_le_bytes()).await?;
            stream.flush().await?;
            break;
        }
    }
    Ok(os::cpu_seconds()? - before)
}

pub(crate) async fn send(
    peer: Peer,
    wire: Wire,
    server: SocketAddr,
    limits: (Duration, u64),
    pinned: bool,
) -> anyhow::Result<Moved> {
    let work = async {
        match peer {
            Peer::Kcpx => {
                let mut stream = KcpStream::connect_with(server, kcpx_config(wire)?).await?;
                let mut moved = fill(&mut stream, limits).await?;
                let stats = stream.stats();
                (moved.segments, moved.retransmitted) = (stats.sent_segments, stats.retransmits());
                Ok(moved)
            }
            Peer::TokioKcp => {
                let mut stream = tokio_kcp::KcpStream::connect(&tokio_kcp_config(), server).await?;
                let mut moved = fill(&mut stream, limits).await?;
                // Its counters are visible in its debug output alone.
                let state = format!("{stream:?}");
                moved.segments = field(&state, "snd_nxt")?;
                moved.retransmitted = field(&state, "xmit")?;
                Ok(moved)
            }
            Peer::RustTokioKcp => {
                let config = rust_tokio_kcp_config(wire)?;
                let mut stream = rust_tokio_kcp::KcpStream::connect(&config, server).await?;
                fill(&mut stream, limits).await
            }
        }
    };
    let moved: anyhow::Result<Moved> =
        tokio::time::timeout(limits.0 + PATIENCE, work).await.context("a stall")?;
    Ok(Moved { pinned, ..moved? })
}

fn field(state: &str, name: &str) -> anyhow::Result<u64> {
    let start = format!(" {name}: ");
    let (_, rest) = state.split_once(&start).with_context(|| format!("no {name} in {state}"))?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Ok(digits.parse()?)
}

/// Writes until the time or the bytes are used up, and waits for the answer.
async fn fill(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    (time, limit): (Duration, u64),
) -> anyhow::Result<Moved> {
    let mut block = vec![0x5a; BLOCK];
    let (start, before) = (Instant::now(), os::cpu_seconds()?);
    let mut bytes = 0;
    for number in 0_u64.. {
        bytes += BLOCK as u64;
        let last = start.elapsed() >= time || bytes >= limit;
        let mark = if last { number | LAST } else { number };
        block[..8].copy_from_slice(&mark.to_le_bytes());
        stream.write_all(&block).await?;
        if last {
            break;
        }
    }
    stream.flush().await?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).await?;
    let seconds = start.elapsed().as_secs_f64();
    let arrived = u64::from_le_bytes(answer);
    ensure!(arrived == bytes, "{arrived} bytes arrived of {bytes}");
    let cpu_seconds = os::cpu_seconds()? - before;
    Ok(Moved { pinned: false, cpu_seconds, bytes, seconds, segments: 0, retransmitted: 0 })
}
