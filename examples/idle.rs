//! The cost of idle connections: CPU time and memory of a server process.
//!
//! Starts a server process with one listener, opens many connections with it, sends 64 bytes over
//! each and reads the echo, and then lets them rest; once with keepalive and idle timeout off, once
//! with the defaults. The server serves each connection in a task of its own.
//!
//! Linux only: it reads `/proc`.

#[path = "common/greeting.rs"]
mod greeting;
#[path = "common/log.rs"]
mod log;
#[path = "common/process.rs"]
mod process;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand, value_parser};
use kcpx::{Config, Endpoint, KcpListener, KcpStream, KeepaliveInterval, KeepaliveSide, Limits};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use self::greeting::{echo, greet};

/// Connections that are being opened at the same time.
const AT_ONCE: usize = 256;
/// Sockets that the client's connections share.
const ENDPOINTS: usize = 4;
/// How long the last acknowledgements and timers after them may take.
const DRAIN: Duration = Duration::from_secs(3);
/// With fewer connections there are no limits to keep.
const LIMITS_FROM: u32 = 100_000;
/// With the defaults the rest lasts this long at least: two keepalive periods.
const TWO_KEEPALIVES: u64 = 30;

/// Measures what idle connections cost a server process.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  cargo run --release -p kcpx-examples --example idle
  cargo run --release -p kcpx-examples --example idle -- --connections 1000 --seconds 5 --sockets

RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    /// Connections with the one listener
    #[arg(
        long,
        global = true,
        default_value_t = 10_000,
        value_parser = value_parser!(u32).range(1..=200_000),
    )]
    connections: u32,
    /// How long they rest; with the defaults 30 s at least, since keepalive acts every 15 s
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Seconds over which connections open evenly, so that their keepalives do not coincide
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u64).range(0..=3_600))]
    over: u64,
    /// Give each connection a client socket of its own, instead of 4 for all
    #[arg(long)]
    sockets: bool,
    /// The clients send the keepalive pings and the server answers them (KeepaliveSide::Active)
    #[arg(long, global = true)]
    active_keepalive: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// The server process; started by the measurement
    #[command(hide = true)]
    Serve {
        #[arg(long)]
        defaults: bool,
    },
}

fn main() -> Result<()> {
    log::to_stderr();
    let args = Args::parse();
    let runtime = Runtime::new()?;
    if let Some(Role::Serve { defaults }) = args.role {
        return serve(&runtime, config(&args, defaults));
    }
    if args.sockets {
        let limit = process::raise_file_limit()?;
        ensure!(
            u64::from(args.connections) + 64 <= limit,
            "--sockets needs a file descriptor for each of {} connections, the limit is {limit}",
            args.connections,
        );
    }

    let off = runtime.block_on(measure(&args, false, args.seconds))?;
    let defaults = runtime.block_on(measure(&args, true, args.seconds.max(TWO_KEEPALIVES)))?;

    let cpu_off = off.cpu.as_secs_f64() * 1e3 * 10.0 / off.rest.as_secs_f64();
    let cpu_on = defaults.cpu.as_secs_f64() / defaults.rest.as_secs_f64() * 100.0;
    println!();
    println!("{} idle connections on one listener    measured", args.connections);
    let row = |what: &str, measured: f64, limit: f64, unit: &str| {
        // The fixed cost of a process is spread over its connections.
        let verdict = match (args.connections >= LIMITS_FROM, measured < limit) {
            (false, _) => String::new(),
            (true, true) => format!("  within {limit}"),
            (true, false) => format!("  above {limit}"),
        };
        println!("{what:42} {measured:8.2} {unit}{verdict}");
    };
    row("CPU, keepalive and idle timeout off", cpu_off, 10.0, "ms per 10 s");
    row("CPU, defaults", cpu_on, 5.0, "% of a core");
    row("memory, keepalive and idle timeout off", off.memory, 4.0, "KiB per connection");
    row("memory, defaults", defaults.memory, 4.0, "KiB per connection");
    Ok(())
}

fn config(args: &Args, defaults: bool) -> Config {
    let mut config = Config::new().socket_buffers(Some(4 << 20), Some(4 << 20));
    let connections = args.connections as usize;
    let most = connections.max(65_536);
    // All of them come from one address.
    config = config.limits(Limits::new().max_connections(most).max_per_source(Some(most)));
    if args.active_keepalive {
        config = config.keepalive_side(KeepaliveSide::Active);
    }
    if defaults { config } else { config.keepalive(KeepaliveInterval::Never).idle_timeout(None) }
}

// ----- client and measurement -----

struct Measured {
    /// CPU time that the server used during the rest.
    cpu: Duration,
    rest: Duration,
    /// Resident memory per connection in KiB.
    memory: f64,
}

async fn measure(args: &Args, defaults: bool, seconds: u64) -> Result<Measured> {
    let rest = Duration::from_secs(seconds);
    let mut server = Server::start(args, defaults)?;
    let before = server.sample()?;

    println!("{}: connecting {} connections", name(defaults), args.connections);
    let mut streams = open(args, server.addr, config(args, defaults)).await?;
    sleep(DRAIN).await;

    println!("{}: resting for {seconds} s", name(defaults));
    let start = server.sample()?;
    sleep(rest).await;
    let end = server.sample()?;

    // They are all still there.
    for stream in &mut streams {
        greet(stream).await.context("a connection did not survive the rest")?;
    }
    ensure!(end.connections == u64::from(args.connections), "{} are left", end.connections);
    Ok(Measured {
        cpu: end.cpu - start.cpu,
        rest,
        memory: end.resident.saturating_sub(before.resident) as f64
            / 1024.0
            / f64::from(args.connections),
    })
}

fn name(defaults: bool) -> &'static str {
    if defaults { "defaults" } else { "keepalive and idle timeout off" }
}

async fn open(args: &Args, server: SocketAddr, config: Config) -> Result<Vec<KcpStream>> {
    let mut endpoints = Vec::new();
    for _ in 0..ENDPOINTS {
        endpoints.push(Endpoint::bind_with("127.0.0.1:0", config.clone()).await?);
    }
    let (mut connecting, mut streams) = (JoinSet::new(), Vec::new());
    let (start, over) = (Instant::now(), Duration::from_secs(args.over));
    for number in 0..args.connections as usize {
        sleep_until(start + over.mul_f64(number as f64 / f64::from(args.connections))).await;
        let own = args.sockets.then(|| config.clone());
        let endpoint = endpoints[number % ENDPOINTS].clone();
        connecting.spawn(async move {
            let mut stream = match own {
                Some(config) => KcpStream::connect_with(server, config).await?,
                None => endpoint.connect(server).await?,
            };
            greet(&mut stream).await?;
            std::io::Result::Ok(stream)
        });
        if connecting.len() >= AT_ONCE
            && let Some(opened) = connecting.join_next().await
        {
            streams.push(opened??);
        }
    }
    while let Some(opened) = connecting.join_next().await {
        streams.push(opened??);
    }
    Ok(streams)
}

// ----- the server process -----

/// The server process, seen from outside. It ends when its standard input does.
struct Server {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    addr: SocketAddr,
}

struct Sample {
    cpu: Duration,
    resident: u64,
    connections: u64,
}

impl Server {
    fn start(args: &Args, defaults: bool) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").args(defaults.then_some("--defaults"));
        command.args(["--connections", &args.connections.to_string()]);
        command.args(args.active_keepalive.then_some("--active-keepalive"));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = process.stdin.take().context("no pipe to the server")?;
        let output = process.stdout.take().context("no pipe from the server")?;
        let addr = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut server = Self { process, input, output: BufReader::new(output), addr };
        server.addr = server.line()?.trim().parse()?;
        Ok(server)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let count = self.output.read_line(&mut line)?;
        ensure!(count > 0, "the server process has ended");
        Ok(line)
    }

    fn sample(&mut self) -> Result<Sample> {
        self.input.write_all(b"\n")?;
        let line = self.line()?;
        let mut numbers = line.split_whitespace().map(str::parse);
        let mut next = || anyhow::Ok(numbers.next().context("a number is missing")??);
        Ok(Sample { cpu: Duration::from_micros(next()?), resident: next()?, connections: next()? })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to lose; an error means that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Prints the address, then answers each line of standard input with a sample.
fn serve(runtime: &Runtime, config: Config) -> Result<()> {
    let listener = Arc::new(runtime.block_on(KcpListener::bind_with("127.0.0.1:0", config))?);
    let accepting = listener.clone();
    runtime.spawn(async move {
        while let Ok((mut stream, _)) = accepting.accept().await {
            tokio::spawn(async move { while echo(&mut stream).await.is_ok() {} });
        }
    });
    println!("{}", listener.local_addr()?);
    for line in std::io::stdin().lines() {
        line?;
        let (cpu, resident) = (process::cpu_time()?, process::resident()?);
        println!("{} {resident} {}", cpu.as_micros(), listener.stats().connections.current);
    }
    runtime.block_on(listener.wait_idle());
    Ok(())
}
