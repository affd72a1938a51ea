//! Loopback sink: how much one connection moves, and what it costs, side by side.

use std::any::Any;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use kcpx::{Config, KcpListener, KcpStream, NoDelay};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Bytes of one write. The first eight carry its number, and in the last one [`LAST`].
const BLOCK: usize = 64 * 1024;
const LAST: u64 = 1 << 63;
const MTU: u16 = 1_400;
const WINDOW: u16 = 1_024;
const SERVER_CPU: usize = 0;
const CLIENT_CPU: usize = 1;
/// Beyond the time that the client writes, until the run counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures how fast one connection moves data over loopback, and what that costs.
///
/// Each run starts a server process (pinned to CPU 0) and a client process (pinned to CPU 1), both
/// this same program. The client writes 64 KiB at a time until the time or the bytes are used up;
/// the server reads everything, checks the order of the writes and answers the number of bytes,
/// and the clock stops when that answer is there. The peers take turns within each run, so a slow
/// moment of the machine meets all of them, and the table shows medians.
///
/// All peers: MTU 1400, windows 1024/1024, nodelay 1/10/2/1, stream mode, the system's socket
/// buffers. tokio_kcp also flushes after each write and each input, which is its fastest setting.
///
/// The columns:
///
///   MB/s             10^6 payload bytes per second of wall time
///   CPU-s/GiB        user and system time of both processes per 2^30 payload bytes
///   retransmitted %  repeated share of all data segments; of tokio_kcp only those after a
///                    time-out are visible, so its figure is a lower bound
///
/// Build with --release. Leave the machine alone meanwhile: two busy processes want two CPUs.
///
/// Examples:
///
///   cargo run --release -p kcpx-interop --bin sink
///   cargo run --release -p kcpx-interop --bin sink -- --seconds 10 --runs 3
///   cargo run --release -p kcpx-interop --bin sink -- --peers kcpx --json
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true)]
struct Args {
    /// Seconds that each client writes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Runs of each peer
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// MiB after which a client stops before its time is over
    #[arg(long, default_value_t = 2_048, value_parser = clap::value_parser!(u64).range(1..=2_048))]
    limit: u64,
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kcpx,tokio_kcp")]
    peers: Vec<Peer>,
    /// Print one JSON object per run instead of the table
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Peer {
    Kcpx,
    #[value(name = "tokio_kcp")]
    TokioKcp,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Kcpx => "kcpx",
            Self::TokioKcp => "tokio_kcp",
        }
    }
}

/// The two processes of a run.
#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Server { peer: Peer },
    #[command(hide = true)]
    Client { peer: Peer, server: SocketAddr, seconds: u64, limit: u64 },
}

/// What the server tells first.
#[derive(Debug, Serialize, Deserialize)]
struct Listening {
    addr: SocketAddr,
}

/// What the server tells at the end.
#[derive(Debug, Serialize, Deserialize)]
struct Served {
    pinned: bool,
    cpu_seconds: f64,
}

/// What the client tells.
#[derive(Debug, Serialize, Deserialize)]
struct Moved {
    pinned: bool,
    cpu_seconds: f64,
    bytes: u64,
    seconds: f64,
    segments: u64,
    retransmitted: u64,
}

/// One run of one peer.
#[derive(Debug, Serialize)]
struct Sample {
    peer: Peer,
    run: u32,
    bytes: u64,
    seconds: f64,
    mb_per_second: f64,
    client_cpu_seconds: f64,
    server_cpu_seconds: f64,
    cpu_seconds_per_gib: f64,
    retransmitted_percent: f64,
    pinned: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.role {
        None => measure(&args),
        Some(Role::Server { peer }) => {
            let pinned = os::pin(SERVER_CPU);
            runtime()?.block_on(serve(peer, pinned))
        }
        Some(Role::Client { peer, server, seconds, limit }) => {
            let pinned = os::pin(CLIENT_CPU);
            let limits = (Duration::from_secs(seconds), limit << 20);
            let moved = runtime()?.block_on(send(peer, server, limits, pinned))?;
            println!("{}", serde_json::to_string(&moved)?);
            Ok(())
        }
    }
}

/// One thread per process: each is pinned to one CPU.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

// ----- the measurement -----

fn measure(args: &Args) -> anyhow::Result<()> {
    let mut samples = Vec::new();
    for run in 0..args.runs {
        // Whoever goes first changes from run to run.
        for turn in 0..args.peers.len() {
            let peer = args.peers[(turn + run as usize) % args.peers.len()];
            let sample =
                one_run(args, peer, run).with_context(|| format!("{} run {run}", peer.name()))?;
            if args.json {
                println!("{}", serde_json::to_string(&sample)?);
            } else {
                eprintln!("run {run}: {:<10} {:8.1} MB/s", peer.name(), sample.mb_per_second);
            }
            samples.push(sample);
        }
    }
    if !args.json {
        print!("{}", table(args, &samples));
    }
    Ok(())
}

/// A child that ends with the measurement, however that ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Neither matters once the child has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(arguments: &[String]) -> anyhow::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Self(child))
    }
}

fn one_run(args: &Args, peer: Peer, run: u32) -> anyhow::Result<Sample> {
    let name = peer.name().to_owned();
    let mut server = Process::start(&["server".into(), name.clone()])?;
    let mut told = BufReader::new(server.0.stdout.take().context("the server's output")?);
    let mut line = String::new();
    told.read_line(&mut line)?;
    let Listening { addr } = serde_json::from_str(&line).context("the server did not start")?;

    let (seconds, limit) = (args.seconds.to_string(), args.limit.to_string());
    let mut client = Process::start(&["client".into(), name, addr.to_string(), seconds, limit])?;
    let mut moved = String::new();
    client.0.stdout.take().context("the client's output")?.read_to_string(&mut moved)?;
    ensure!(client.0.wait()?.success(), "the client failed");
    let moved: Moved = serde_json::from_str(&moved).context("what the client told")?;

    // The end of its input is the server's sign to report and end.
    drop(server.0.stdin.take());
    line.clear();
    told.read_line(&mut line)?;
    let served: Served = serde_json::from_str(&line).context("what the server told")?;

    let (bytes, cpu) = (moved.bytes as f64, moved.cpu_seconds + served.cpu_seconds);
    let transmissions = (moved.segments + moved.retransmitted).max(1) as f64;
    Ok(Sample {
        peer,
        run,
        bytes: moved.bytes,
        seconds: moved.seconds,
        mb_per_second: bytes / 1e6 / moved.seconds,
        client_cpu_seconds: moved.cpu_seconds,
        server_cpu_seconds: served.cpu_seconds,
        cpu_seconds_per_gib: cpu / (bytes / f64::from(1 << 30)),
        retransmitted_percent: moved.retransmitted as f64 * 100.0 / transmissions,
        pinned: moved.pinned && served.pinned,
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { values[middle - 1].midpoint(values[middle]) }
}

fn table(args: &Args, samples: &[Sample]) -> String {
    let of = |peer: Peer, value: fn(&Sample) -> f64| {
        median(samples.iter().filter(|sample| sample.peer == peer).map(value).collect())
    };
    let speed = |peer| of(peer, |sample| sample.mb_per_second);
    let cost = |peer| of(peer, |sample| sample.cpu_seconds_per_gib);
    let pinned = if samples.iter().all(|sample| sample.pinned) { "" } else { ", not pinned" };
    let mut out = format!(
        "\nsink over loopback, medians of {} runs of {} s{pinned}\n\n\
         | peer | MB/s | CPU-s/GiB | retransmitted % |\n|---|---:|---:|---:|\n",
        args.runs, args.seconds
    );
    for &peer in &args.peers {
        let repeated = of(peer, |sample| sample.retransmitted_percent);
        let bound = if peer == Peer::TokioKcp { ">= " } else { "" };
        let (speed, cost) = (speed(peer), cost(peer));
        let _ =
            writeln!(out, "| {} | {speed:.1} | {cost:.2} | {bound}{repeated:.3} |", peer.name());
    }
    if args.peers.contains(&Peer::Kcpx) && args.peers.contains(&Peer::TokioKcp) {
        let speed = speed(Peer::Kcpx) / speed(Peer::TokioKcp);
        let cost = cost(Peer::Kcpx) / cost(Peer::TokioKcp);
        let _ = writeln!(out, "| kcpx / tokio_kcp | {speed:.2} | {cost:.2} | |");
    }
    out
}

// ----- the peers -----

fn kcpx_config() -> Config {
    Config::new().no_delay(NoDelay::TURBO).windows(WINDOW, WINDOW).mtu(MTU)
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

fn tell(what: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(what)?);
    Ok(std::io::stdout().flush()?)
}

async fn serve(peer: Peer, pinned: bool) -> anyhow::Result<()> {
    let mut end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let serving = async {
        match peer {
            Peer::Kcpx => {
                let listener = KcpListener::bind_with(local, kcpx_config()).await?;
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

async fn send(
    peer: Peer,
    server: SocketAddr,
    limits: (Duration, u64),
    pinned: bool,
) -> anyhow::Result<Moved> {
    let work = async {
        match peer {
            Peer::Kcpx => {
                let mut stream = KcpStream::connect_with(server, kcpx_config()).await?;
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

#[cfg(target_os = "linux")]
mod os {
    //! What only the system knows.

    use nix::sched::{CpuSet, sched_setaffinity};
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::{TimeVal, TimeValLike as _};
    use nix::unistd::Pid;

    /// Binds this process, which has one thread so far, to a CPU. Whether that worked.
    pub(super) fn pin(cpu: usize) -> bool {
        let mut set = CpuSet::new();
        set.set(cpu).is_ok() && sched_setaffinity(Pid::from_raw(0), &set).is_ok()
    }

    /// User and system time of this process.
    pub(super) fn cpu_seconds() -> anyhow::Result<f64> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
        Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
    }
}

#[cfg(not(target_os = "linux"))]
mod os {
    //! Other systems: not pinned, no CPU time.

    pub(super) fn pin(_cpu: usize) -> bool {
        false
    }

    pub(super) fn cpu_seconds() -> anyhow::Result<f64> {
        Ok(f64::NAN)
    }
}
