//! The two commands that measure how much goes from a client to a server, over this crate or over
//! the kernel's TCP.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, ValueEnum};
use kcpx::{Config, FecConfig, KcpListener, KcpStream, Redundancy, Timing};
use serde_json::json;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::args::checked;

const WRITE: usize = 64 * 1024;
/// The client writes this much longer than the server counts, so that the server's time is full.
const MARGIN: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Over {
    Kcpx,
    Tcp,
}

#[derive(Debug, Args)]
struct Options {
    #[arg(long, value_enum, default_value = "kcpx")]
    over: Over,
    /// Seconds that the server counts, from the first byte
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Segments, both ways
    #[arg(long, default_value_t = 1_024)]
    window: u16,
    #[arg(long, default_value_t = 1_400)]
    mtu: u16,
    /// Data and parity shards, as in 10/3
    #[arg(long)]
    fec: Option<String>,
    /// Bytes of the kernel's buffers; without it kcpx asks for 4 MiB, and TCP has the system's default
    #[arg(long)]
    buffers: Option<usize>,
    /// TCP's congestion control; without it the system's default
    #[arg(long)]
    congestion: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    #[arg(long)]
    listen: SocketAddr,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    #[arg(long)]
    connect: SocketAddr,
    #[command(flatten)]
    options: Options,
}

impl Options {
    fn config(&self) -> anyhow::Result<Config> {
        let mut config =
            Config::new().timing(Timing::FAST3).windows(self.window, self.window).mtu(self.mtu);
        if self.buffers.is_some() {
            config = config.socket_buffers(self.buffers, self.buffers);
        }
        if let Some(ratio) = &self.fec {
            let shards = ratio.split_once('/').and_then(|(data, parity)| {
                Some(FecConfig::new(data.parse().ok()?, parity.parse().ok()?))
            });
            let shards = shards.with_context(|| {
                format!("--fec must be DATA/PARITY in shards, as in 10/3, got {ratio:?}")
            })?;
            config = config.redundancy(Redundancy::Fec(shards?));
        }
        Ok(config)
    }

    fn tune(&self, socket: SockRef<'_>) -> anyhow::Result<()> {
        if let Some(name) = &self.congestion {
            socket.set_tcp_congestion(name.as_bytes())?;
        }
        if let Some(bytes) = self.buffers {
            socket.set_send_buffer_size(bytes)?;
            socket.set_recv_buffer_size(bytes)?;
        }
        Ok(socket.set_tcp_nodelay(true)?)
    }

    fn time(&self) -> anyhow::Result<Duration> {
        Duration::try_from_secs_f64(self.seconds)
            .ok()
            .filter(|time| !time.is_zero())
            .with_context(|| format!("--seconds must be above 0, got {}", self.seconds))
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

pub(crate) fn serve(args: &ServerArgs) -> anyhow::Result<()> {
    // The parent closes the input to end it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let (time, config) = (checked(args.options.time()), checked(args.options.config()));
    runtime()?.block_on(async {
        // Until the input ends: a client may still want to hear that its end has arrived.
        match args.options.over {
            Over::Kcpx => {
                let listener = KcpListener::bind_with(args.listen, config).await?;
                ready(listener.local_addr()?)?;
                loop {
                    let (stream, peer) = listener.accept().await?;
                    tokio::spawn(count(stream, peer, time));
                }
            }
            Over::Tcp => {
                let listener = TcpListener::bind(args.listen).await?;
                args.options.tune(SockRef::from(&listener))?;
                ready(listener.local_addr()?)?;
                loop {
                    let (stream, peer) = listener.accept().await?;
                    tokio::spawn(count(stream, peer, time));
                }
            }
        }
    })
}

fn ready(addr: SocketAddr) -> std::io::Result<()> {
    println!("listening on {addr}");
    std::io::stdout().flush()
}

/// Prints what one client sent, or what went wrong with it.
async fn count(stream: impl AsyncRead + Unpin, peer: SocketAddr, time: Duration) {
    match drain(stream, time).await {
        Ok(Received { bytes, mb_per_second, time }) => {
            println!(
                "{}",
                json!({ "client": peer.to_string(), "bytes": bytes, "mb_per_s": mb_per_second })
            );
            eprintln!("{peer}: {mb_per_second:.1} MB/s in {:.1} s", time.as_secs_f64());
        }
        Err(error) => {
            println!("{}", json!({ "client": peer.to_string(), "error": error.to_string() }));
            eprintln!("{peer}: {error}");
        }
    }
}

/// What a client sent.
struct Received {
    bytes: u64,
    /// 10^6 bytes a second, within `time` of the first one.
    mb_per_second: f64,
    time: Duration,
}

/// Reads to the end, and measures for `time`.
async fn drain(mut stream: impl AsyncRead + Unpin, time: Duration) -> std::io::Result<Received> {
    let mut chunk = vec![0; WRITE];
    let mut bytes = stream.read(&mut chunk).await? as u64;
    let began = Instant::now();
    let mut within = None;
    loop {
        let read = stream.read(&mut chunk).await?;
        if within.is_none() && began.elapsed() >= time {
            within = Some((bytes, began.elapsed()));
        }
        if read == 0 {
            break;
        }
        bytes += read as u64;
    }
    let (counted, time) = within.unwrap_or_else(|| (bytes, began.elapsed()));
    let mb_per_second = counted as f64 / 1e6 / time.as_secs_f64();
    Ok(Received { bytes, mb_per_second, time })
}

pub(crate) fn send(args: &ClientArgs) -> anyhow::Result<()> {
    let time = checked(args.options.time()).saturating_add(MARGIN);
    let config = checked(args.options.config());
    if args.options.over == Over::Tcp && args.options.fec.is_some() {
        checked::<()>(Err(anyhow!("--fec requires --over kcpx: TCP has no FEC")));
    }
    runtime()?.block_on(async {
        match args.options.over {
            Over::Kcpx => {
                let mut stream = KcpStream::connect_with(args.connect, config).await?;
                fill(&mut stream, time).await?;
                let stats = stream.stats();
                println!(
                    "{}",
                    json!({
                        "segments": stats.sent.segments,
                        "fast_retransmits": stats.retransmit.fast,
                        "early_retransmits": stats.retransmit.early,
                        "timeout_retransmits": stats.retransmit.timeout,
                        "spurious_retransmits": stats.retransmit.spurious,
                        "datagrams": stats.sent.datagrams,
                        "wire_bytes": stats.sent.datagram_bytes,
                        "srtt_ms": stats.path.srtt.as_secs_f64() * 1e3,
                    })
                );
            }
            Over::Tcp => {
                let socket = if args.connect.is_ipv4() {
                    tokio::net::TcpSocket::new_v4()?
                } else {
                    tokio::net::TcpSocket::new_v6()?
                };
                args.options.tune(SockRef::from(&socket))?;
                let mut stream: TcpStream = socket.connect(args.connect).await?;
                fill(&mut stream, time).await?;
            }
        }
        Ok(())
    })
}

/// Writes for some time, and waits until the peer has it all.
async fn fill(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    time: Duration,
) -> anyhow::Result<()> {
    let chunk = vec![0x5a; WRITE];
    let began = Instant::now();
    while began.elapsed() < time {
        stream.write_all(&chunk).await?;
    }
    stream.shutdown().await?;
    // The other side ends its direction when it has read everything.
    let mut rest = [0; 1];
    if stream.read(&mut rest).await? != 0 {
        bail!("the server says something");
    }
    Ok(())
}
