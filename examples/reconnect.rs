//! How soon a crowd of clients is served again after their server was killed and restarted.
//!
//! Starts a server process, opens many connections with it, and kills it, so that they get no end. At
//! once another one starts at the same address. Each client has data waiting, learns by a reset from
//! the new server that its connection is gone, waits its share of the jitter, and connects again. The
//! server serves each connection in a task of its own.
//!
//! Linux only: it reads `/proc`, and the loopback interface has all of 127.0.0.0/8.

#[path = "common/greeting.rs"]
mod greeting;
#[path = "common/log.rs"]
mod log;
#[path = "common/process.rs"]
mod process;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand, value_parser};
use hdrhistogram::Histogram;
use kcpx::{Config, Endpoint, KcpListener, KcpStream, Limits};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use self::greeting::{echo, greet};

/// Connections that are being opened at the same time before the restart.
const AT_ONCE: usize = 256;
/// Sockets that the clients share, each with an address of its own: a server limits its answers to one
/// address, and a crowd has many.
const ENDPOINTS: u8 = 200;
/// The longest time until the last client is served again.
const LIMIT: Duration = Duration::from_secs(120);
/// Pause after a failed attempt, doubled by each further one up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Measures how soon clients are served again after a restart of their server.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  cargo run --release -p kcpx-examples --example reconnect
  cargo run --release -p kcpx-examples --example reconnect -- --connections 50000 --jitter 2000

RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    /// Connections with the one listener
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=200_000))]
    connections: u32,
    /// Milliseconds over which the clients spread their new connections
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u64).range(0..=60_000))]
    jitter: u64,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// The server process; started by the measurement
    #[command(hide = true)]
    Serve { listen: SocketAddr },
}

fn main() -> Result<()> {
    log::to_stderr();
    let args = Args::parse();
    let runtime = Runtime::new()?;
    match args.role {
        Some(Role::Serve { listen }) => runtime.block_on(serve(listen, config(args.connections))),
        None => runtime.block_on(measure(&args)),
    }
}

/// The configuration of both sides. All clients come back at once, so the backlog holds them all; the
/// other limits are the defaults.
fn config(connections: u32) -> Config {
    let connections = connections as usize;
    let limits = Limits::new()
        .max_connections((2 * connections).max(65_536))
        .backlog(connections.clamp(1_024, 65_536));
    Config::new().limits(limits)
}

// ----- the clients -----

/// When a client learned that its connection was gone, and when another one served it.
struct Outcome {
    notified: Instant,
    served: Instant,
    attempts: u64,
    /// Kept open until all are served, so that the server's memory includes them all.
    stream: KcpStream,
}

async fn measure(args: &Args) -> Result<()> {
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(anywhere, args.connections)?;
    let addr = server.addr;
    let config = config(args.connections);
    let mut endpoints = Vec::new();
    for number in 0..ENDPOINTS {
        let own = SocketAddr::from(([127, 1, number, 1], 0));
        endpoints.push(Endpoint::bind_with(own, config.clone()).await?);
    }

    println!("connecting {} connections", args.connections);
    let (restart, restarted) = watch::channel(());
    let at_once = Arc::new(Semaphore::new(AT_ONCE));
    let mut clients = JoinSet::new();
    for number in 0..args.connections {
        let permit = at_once.clone().acquire_owned().await?;
        let endpoint = endpoints[number as usize % endpoints.len()].clone();
        let share = f64::from(number) / f64::from(args.connections);
        let pause = Duration::from_millis(args.jitter).mul_f64(share);
        let mut restarted = restarted.clone();
        let mut stream = endpoint.connect(addr).await?;
        clients.spawn(async move {
            greet(&mut stream).await?;
            drop(permit);
            restarted.changed().await?;
            let end = Instant::now() + LIMIT;
            let client = reconnect(&endpoint, addr, stream, pause);
            timeout_at(end, client).await.context("a client was not served within two minutes")?
        });
    }
    // Each permit belongs to a client without an echo.
    drop(at_once.acquire_many(AT_ONCE as u32).await?);

    server.kill()?;
    let server = Server::start(addr, args.connections)?;
    let start = Instant::now();
    println!("restarted; {} clients have data waiting", args.connections);
    restart.send_replace(());
    let (mut notified, mut served, mut attempts) = (histogram()?, histogram()?, 0);
    let mut streams = Vec::with_capacity(clients.len());
    while let Some(client) = clients.join_next().await {
        let outcome = client??;
        notified.record((outcome.notified - start).as_millis().try_into()?)?;
        served.record((outcome.served - start).as_millis().try_into()?)?;
        attempts += outcome.attempts;
        streams.push(outcome.stream);
    }
    println!("seconds after the restart     median       99 %       last");
    for (what, times) in [("notified by a reset", &notified), ("served again", &served)] {
        let [median, most, last] =
            [times.value_at_quantile(0.5), times.value_at_quantile(0.99), times.max()]
                .map(|millis| Duration::from_millis(millis).as_secs_f64());
        println!("{what:24} {median:11.2} {most:10.2} {last:10.2}");
    }
    println!(
        "{attempts} attempts to connect; the new server holds {} MiB",
        server.resident()? >> 20
    );
    Ok(())
}

/// Sends a greeting on a connection that the server has forgotten, and then on a new one.
async fn reconnect(
    endpoint: &Endpoint,
    server: SocketAddr,
    mut stream: KcpStream,
    jitter: Duration,
) -> Result<Outcome> {
    ensure!(
        greet(&mut stream).await.is_err(),
        "the server has answered on a connection of another"
    );
    let notified = Instant::now();
    sleep(jitter).await;
    let (mut pause, mut attempts) = (FIRST_PAUSE, 0);
    loop {
        attempts += 1;
        if let Ok(mut stream) = endpoint.connect(server).await
            && greet(&mut stream).await.is_ok()
        {
            return Ok(Outcome { notified, served: Instant::now(), attempts, stream });
        }
        sleep(pause).await;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new(3)?)
}

// ----- the server process -----

struct Server {
    process: Child,
    addr: SocketAddr,
}

impl Server {
    fn start(listen: SocketAddr, connections: u32) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--connections", &connections.to_string(), "serve", &listen.to_string()]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().context("no pipe from the server")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let addr = line.trim().parse().context("the server has no address")?;
        Ok(Self { process, addr })
    }

    /// Resident memory in bytes.
    fn resident(&self) -> Result<u64> {
        Ok(process::resident_of(self.process.id())?)
    }

    fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn serve(listen: SocketAddr, config: Config) -> Result<()> {
    let listener = KcpListener::bind_with(listen, config).await?;
    println!("{}", listener.local_addr()?);
    // It ends with the process that has started it.
    thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move { while echo(&mut stream).await.is_ok() {} });
    }
}
