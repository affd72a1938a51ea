//! The cost of connections with a socket each for a client, beside connections of the kernel's TCP.
//!
//! Starts a server process, opens all connections at once, each with `KcpStream::connect` and so a
//! socket of its own, or with `TcpStream::connect`, sends 1 KiB over each and reads the echo. Prints the
//! time until the last echo, and the client's memory for each connection once it is idle.
//!
//! Linux only: it reads `/proc`.

#[path = "common/log.rs"]
mod log;
#[path = "common/process.rs"]
mod process;

use std::alloc::System;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cap::Cap;
use clap::{Parser, Subcommand, ValueEnum, value_parser};
use kcpx::{Config, KcpListener, KcpStream, Limits};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::sleep;

const MESSAGE: usize = 1_024;
/// New connections that a listener queues.
const BACKLOG: u16 = 16_384;
/// Descriptors of the client beside its sockets.
const OTHER_FILES: u64 = 64;
/// Until idle connections have released what only busy ones need.
const REST: Duration = Duration::from_secs(3);

/// Measures connections that have a socket each, beside kernel TCP.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  cargo run --release -p kcpx-examples --example own_sockets
  cargo run --release -p kcpx-examples --example own_sockets -- --connections 1000 --rounds 3

RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    /// Connections that are opened at once
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=50_000))]
    connections: u32,
    /// How often, each transport in its turn
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    rounds: u32,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Subcommand)]
enum Role {
    /// A server process, for as long as its standard input; started by the measurement
    #[command(hide = true)]
    Serve { transport: Transport },
    /// A client process, which prints its figures; started by the measurement
    #[command(hide = true)]
    Dial {
        transport: Transport,
        server: SocketAddr,
        #[arg(long)]
        connections: u32,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Kcpx,
    Tcp,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::Kcpx => "kcpx",
            Self::Tcp => "tcp",
        }
    }
}

/// Counts the bytes in use.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

fn main() -> Result<()> {
    log::to_stderr();
    let args = Args::parse();
    // One thread on each side, as one CPU each has.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    match args.role {
        None => measure(&args),
        Some(Role::Serve { transport }) => serve(&runtime, transport),
        Some(Role::Dial { transport, server, connections }) => {
            let figures = runtime.block_on(dial(transport, server, connections))?;
            println!("{} {} {}", figures.micros, figures.resident, figures.heap);
            // Their end is not measured.
            std::process::exit(0);
        }
    }
}

// ----- the measurement -----

/// One round: microseconds until the last echo, and bytes of memory for each connection.
#[derive(Clone, Copy)]
struct Figures {
    micros: u64,
    resident: u64,
    heap: u64,
}

fn measure(args: &Args) -> Result<()> {
    let limit = process::raise_file_limit()?;
    let needed = u64::from(args.connections) + OTHER_FILES;
    ensure!(needed <= limit, "{needed} file descriptors are needed, the limit is {limit}");
    if let Some(queued) = max_backlog().filter(|queued| *queued < args.connections) {
        eprintln!(
            "TCP is held up: its listener queues {queued} connections, and those above that try again \
             a second later; `sysctl net.core.somaxconn={BACKLOG} net.ipv4.tcp_max_syn_backlog={BACKLOG}` \
             admits more"
        );
    }
    let transports = [Transport::Kcpx, Transport::Tcp];
    let mut rounds: [Vec<Figures>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..args.rounds {
        for (transport, figures) in transports.into_iter().zip(&mut rounds) {
            figures.push(round(transport, args.connections)?);
        }
    }
    println!("{} connections with a socket each, medians of {}", args.connections, args.rounds);
    println!("          s   least to most    resident KiB each   heap KiB each");
    for (transport, rounds) in transports.into_iter().zip(&mut rounds) {
        let times = |figures: &Figures| figures.micros;
        rounds.sort_by_key(times);
        let seconds = |figures: Option<&Figures>| figures.map_or(0.0, |f| f.micros as f64 / 1e6);
        println!(
            "{:5} {:5.2}    {:4.2} to {:4.2}   {:18.2}  {:14.2}",
            transport.name(),
            median(rounds, times) / 1e6,
            seconds(rounds.first()),
            seconds(rounds.last()),
            median(rounds, |figures| figures.resident) / 1024.0,
            median(rounds, |figures| figures.heap) / 1024.0,
        );
    }
    Ok(())
}

/// Connections that the system lets a TCP listener queue.
fn max_backlog() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok()?.trim().parse().ok()
}

fn median(rounds: &[Figures], value: impl Fn(&Figures) -> u64) -> f64 {
    let mut values: Vec<u64> = rounds.iter().map(value).collect();
    values.sort_unstable();
    values.get(values.len() / 2).map_or(0.0, |value| *value as f64)
}

/// One server process and one client process.
fn round(transport: Transport, connections: u32) -> Result<Figures> {
    let mut server = Server::start(transport)?;
    let addr = server.line()?;
    let mut client = Command::new(std::env::current_exe()?);
    client.args(["dial", transport.name(), addr.trim(), "--connections"]);
    let client = client.arg(connections.to_string()).stderr(Stdio::inherit()).output()?;
    ensure!(client.status.success(), "the client process has failed");
    let line = String::from_utf8(client.stdout)?;
    let mut numbers = line.split_whitespace().map(str::parse);
    let mut next = || anyhow::Ok(numbers.next().context("a number is missing")??);
    Ok(Figures { micros: next()?, resident: next()?, heap: next()? })
}

/// A server process, which ends when this does.
struct Server(Child);

impl Server {
    fn start(transport: Transport) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", transport.name()]);
        Ok(Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?))
    }

    fn line(&mut self) -> Result<String> {
        let output = self.0.stdout.take().context("no pipe from the server")?;
        let mut line = String::new();
        let count = BufReader::new(output).read_line(&mut line)?;
        ensure!(count > 0, "the server process has ended");
        Ok(line)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to lose; an error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// ----- the two processes -----

/// Everything else is the default.
fn config() -> Config {
    let limits = Limits::new().backlog(usize::from(BACKLOG)).max_unvalidated(65_536);
    Config::new().socket_buffers(Some(4 << 20), Some(4 << 20)).limits(limits)
}

fn serve(runtime: &Runtime, transport: Transport) -> Result<()> {
    process::raise_file_limit()?;
    // Ends with the process that started it.
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    });
    runtime.block_on(async {
        match transport {
            Transport::Kcpx => {
                let listener = KcpListener::bind_with("127.0.0.1:0", config()).await?;
                println!("{}", listener.local_addr()?);
                loop {
                    tokio::spawn(echo(listener.accept().await?.0));
                }
            }
            Transport::Tcp => {
                let socket = TcpSocket::new_v4()?;
                socket.bind(([127, 0, 0, 1], 0).into())?;
                let listener = socket.listen(u32::from(BACKLOG))?;
                println!("{}", listener.local_addr()?);
                loop {
                    let stream = listener.accept().await?.0;
                    stream.set_nodelay(true)?;
                    tokio::spawn(echo(stream));
                }
            }
        }
    })
}

/// Echoes one message, and keeps the connection.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut message = vec![0; MESSAGE];
    stream.read_exact(&mut message).await?;
    stream.write_all(&message).await?;
    drop(message);
    stream.read_u8().await?;
    Ok(())
}

async fn dial(transport: Transport, server: SocketAddr, connections: u32) -> Result<Figures> {
    process::raise_file_limit()?;
    match transport {
        Transport::Kcpx => open(connections, move || KcpStream::connect(server)).await,
        Transport::Tcp => open(connections, move || connect_tcp(server)).await,
    }
}

async fn connect_tcp(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn open<S, F>(connections: u32, connect: impl Fn() -> F) -> Result<Figures>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<S>> + Send + 'static,
{
    let mut streams = Vec::with_capacity(connections as usize);
    // The first one takes what the process needs once.
    streams.push(one(connect()).await?);
    let (resident, heap) = (process::resident()?, ALLOCATOR.allocated());
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        tasks.spawn(one(connect()));
    }
    while let Some(stream) = tasks.join_next().await {
        streams.push(stream??);
    }
    let micros = u64::try_from(start.elapsed().as_micros())?;
    drop(tasks);
    sleep(REST).await;
    let each = |bytes: u64| bytes / u64::from(connections);
    Ok(Figures {
        micros,
        resident: each(process::resident()?.saturating_sub(resident)),
        heap: each(ALLOCATOR.allocated().saturating_sub(heap) as u64),
    })
}

/// Connects, and reads the echo of one message.
async fn one<S: AsyncRead + AsyncWrite + Unpin>(
    connecting: impl Future<Output = io::Result<S>>,
) -> Result<S> {
    let mut stream = connecting.await.context("connecting")?;
    let message = vec![0x5a; MESSAGE];
    stream.write_all(&message).await?;
    let mut answer = vec![0; MESSAGE];
    stream.read_exact(&mut answer).await.context("the echo")?;
    ensure!(answer == message, "another echo");
    Ok(stream)
}
