//! Loopback sink: how much one connection moves, and what it costs, side by side.

mod peers;

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};

use peers::{Peer, Wire};

const SERVER_CPU: usize = 0;
const CLIENT_CPU: usize = 1;
/// Measures how fast one connection moves data over loopback, and what that costs.
///
/// Each run starts a server process (pinned to CPU 0) and a client process (pinned to CPU 1), both
/// this same program. The client writes 64 KiB at a time until the time or the bytes are used up;
/// the server reads everything, checks the order of the writes and answers the number of bytes,
/// and the clock stops when that answer is there. The peers take turns within each run, so a slow
/// moment of the machine meets all of them, and the table shows medians.
///
/// All peers: MTU 1400, windows 1024/1024, nodelay 1/10/2/1, stream mode, the system's socket
/// buffers. The others also flush after each write and each input, which is their fastest
/// setting. tokio_kcp has neither ciphers nor FEC.
///
/// The columns:
///
///   MB/s             10^6 payload bytes per second of wall time
///   CPU-s/GiB        user and system time of both processes per 2^30 payload bytes
///   retransmitted %  repeated share of all data segments; of tokio_kcp only those after a
///                    time-out are visible, so its figure is a lower bound; of rust_tokio_kcp none
///
/// Build with --release. Leave the machine alone meanwhile: two busy processes want two CPUs.
///
/// Examples:
///
///   cargo run --release -p kcpx-interop --bin sink
///   cargo run --release -p kcpx-interop --bin sink -- --seconds 10 --runs 3
///   cargo run --release -p kcpx-interop --bin sink -- --peers kcpx --json
///   cargo run --release -p kcpx-interop --bin sink -- --peers kcpx,rust_tokio_kcp \
///       --wires aes-128-gcm,aes-128,aes-128-fec-10-3
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
    /// Cipher and FEC, by kcptun's names
    #[arg(long, value_enum, value_delimiter = ',', default_value = "plain")]
    wires: Vec<Wire>,
    /// Print one JSON object per run instead of the table
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// The two processes of a run.
#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Server { peer: Peer, wire: Wire },
    #[command(hide = true)]
    Client { peer: Peer, wire: Wire, server: SocketAddr, seconds: u64, limit: u64 },
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
    wire: Wire,
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
        Some(Role::Server { peer, wire }) => {
            let pinned = os::pin(SERVER_CPU);
            runtime()?.block_on(peers::serve(peer, wire, pinned))
        }
        Some(Role::Client { peer, wire, server, seconds, limit }) => {
            let pinned = os::pin(CLIENT_CPU);
            let limits = (Duration::from_secs(seconds), limit << 20);
            let moved = runtime()?.block_on(peers::send(peer, wire, server, limits, pinned))?;
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
    let cases = args.cases();
    ensure!(!cases.is_empty(), "none of these peers has one of these wires");
    for run in 0..args.runs {
        // Whoever goes first changes from run to run.
        for turn in 0..cases.len() {
            let (peer, wire) = cases[(turn + run as usize) % cases.len()];
            let name = format!("{} {}", peer.name(), wire.name());
            let sample =
                one_run(args, peer, wire, run).with_context(|| format!("{name} run {run}"))?;
            if args.json {
                println!("{}", serde_json::to_string(&sample)?);
            } else {
                eprintln!("run {run}: {name:<34} {:8.1} MB/s", sample.mb_per_second);
            }
            samples.push(sample);
        }
    }
    if !args.json {
        print!("{}", table(args, &samples));
    }
    Ok(())
}

impl Args {
    /// What is measured: each wire with each peer that has it.
    fn cases(&self) -> Vec<(Peer, Wire)> {
        let peers = |wire| self.peers.iter().map(move |peer| (*peer, wire));
        let cases = self.wires.iter().flat_map(|wire| peers(*wire));
        cases.filter(|(peer, wire)| peer.has(*wire)).collect()
    }
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

fn one_run(args: &Args, peer: Peer, wire: Wire, run: u32) -> anyhow::Result<Sample> {
    let (name, over) = (peer.name().to_owned(), wire.name().to_owned());
    let mut server = Process::start(&["server".into(), name.clone(), over.clone()])?;
    let mut told = BufReader::new(server.0.stdout.take().context("the server's output")?);
    let mut line = String::new();
    told.read_line(&mut line)?;
    let Listening { addr } = serde_json::from_str(&line).context("the server did not start")?;

    let (seconds, limit) = (args.seconds.to_string(), args.limit.to_string());
    let arguments = ["client".into(), name, over, addr.to_string(), seconds, limit];
    let mut client = Process::start(&arguments)?;
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
        wire,
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
    let of = |case: (Peer, Wire), value: fn(&Sample) -> f64| {
        let samples = samples.iter().filter(|sample| (sample.peer, sample.wire) == case);
        median(samples.map(value).collect())
    };
    let speed = |case| of(case, |sample| sample.mb_per_second);
    let cost = |case| of(case, |sample| sample.cpu_seconds_per_gib);
    let pinned = if samples.iter().all(|sample| sample.pinned) { "" } else { ", not pinned" };
    let mut out = format!(
        "\nsink over loopback, medians of {} runs of {} s{pinned}\n\n\
         | wire | peer | MB/s | CPU-s/GiB | retransmitted % |\n|---|---|---:|---:|---:|\n",
        args.runs, args.seconds
    );
    let cases = args.cases();
    for &case @ (peer, wire) in &cases {
        let repeated = of(case, |sample| sample.retransmitted_percent);
        let repeated = match peer {
            Peer::Kcpx => format!("{repeated:.3}"),
            Peer::TokioKcp => format!(">= {repeated:.3}"),
            Peer::RustTokioKcp => String::new(),
        };
        let (name, over) = (peer.name(), wire.name());
        let (speed, cost) = (speed(case), cost(case));
        let _ = writeln!(out, "| {over} | {name} | {speed:.1} | {cost:.2} | {repeated} |");
    }
    for &other @ (peer, wire) in cases.iter().filter(|(peer, _)| *peer != Peer::Kcpx) {
        let ours = (Peer::Kcpx, wire);
        if cases.contains(&ours) {
            let (speed, cost) = (speed(ours) / speed(other), cost(ours) / cost(other));
            let (name, over) = (peer.name(), wire.name());
            let _ = writeln!(out, "| {over} | kcpx / {name} | {speed:.2} | {cost:.2} | |");
        }
    }
    out
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
