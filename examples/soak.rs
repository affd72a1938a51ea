//! Memory of a server under connections that come and go, and under floods of initial segments.
//!
//! `cycles` opens, echoes and closes one connection after the other on one listener and prints
//! the memory in use. `flood` has thousands of addresses send initial segments without a peer
//! behind them, beside clients that connect and a connection that sends 100 Mbit/s.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use kcpx::proto::segment::{Command as Segment, Header, Segments};
use kcpx::proto::seq::{Sn, Ts};
use kcpx::{Config, Endpoint, KcpListener, KcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Measures what one listener keeps of ended connections and of unvalidated peers.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Open, echo and close connections on one listener.
    Cycles {
        /// How many.
        #[arg(long, default_value_t = 100_000)]
        count: u64,
        /// How many at a time.
        #[arg(long, default_value_t = 32)]
        parallel: u64,
    },
    /// Send first packets from many addresses beside a connection. Linux, whose whole 127/8 is
    /// loopback.
    Flood {
        /// Packets a second.
        #[arg(long, default_value_t = 20_000)]
        rate: u64,
        /// How long, in seconds.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Args::parse().mode {
        Mode::Cycles { count, parallel } => cycles(count, parallel.max(1)).await,
        Mode::Flood { rate, seconds } => flood(rate.max(100), seconds.max(1)).await,
    }
}

/// Resident memory of this process in KiB, where the system reports it.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A server that sends back what it gets, as long as the endpoint that it returns is held.
async fn echo_server() -> anyhow::Result<(Endpoint, SocketAddr)> {
    let listener = KcpListener::bind("127.0.0.1:0").await?;
    let (server, addr) = (listener.endpoint().clone(), listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo(stream));
        }
    });
    Ok((server, addr))
}

/// Without a buffer of its own: what is measured is what the library keeps.
async fn echo(mut stream: KcpStream) {
    while let Ok(chunk) = stream.read_chunk().await {
        if chunk.is_empty() || stream.write_all(&chunk).await.is_err() {
            break;
        }
    }
}

// ----- cycles -----

async fn cycles(count: u64, parallel: u64) -> anyhow::Result<()> {
    let (server, addr) = echo_server().await?;
    let client = Endpoint::bind_with("127.0.0.1:0", Config::new()).await?;
    let bar = ProgressBar::new(count)
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} {per_sec} {msg}")?);
    let started = Instant::now();
    let step = (count / 10).max(1);
    let mut memory = Vec::new();
    let mut done = 0;
    while done < count {
        let until = (done + step).min(count);
        let tasks: Vec<_> = (0..parallel)
            .map(|task| {
                let (client, bar) = (client.clone(), bar.clone());
                let mine = (until - done + parallel - 1 - task) / parallel;
                tokio::spawn(async move {
                    for _ in 0..mine {
                        cycle(&client, addr).await?;
                        bar.inc(1);
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        done = until;
        memory.push((done, resident()));
        bar.set_message(format!("{} KiB", resident()));
    }
    bar.finish_and_clear();
    client.wait_idle().await;
    let took = started.elapsed().as_secs_f64();
    println!("{:>10} {:>12}", "cycles", "memory KiB");
    for (done, kib) in &memory {
        println!("{done:>10} {kib:>12}");
    }
    let (ours, theirs) = (client.stats(), server.stats());
    println!(
        "{count} connections in {took:.1} s, {:.0} a second; now {} and {} of them live",
        count as f64 / took,
        ours.current_connections,
        theirs.current_connections
    );
    ensure!(theirs.passive_opens == count, "{} were opened", theirs.passive_opens);
    // From a tenth on: before that, tables grow to their bounds.
    let (first, last) = (memory[0].1, memory[memory.len() - 1].1);
    ensure!(last <= first + first / 4 + 4_096, "memory grew from {first} to {last} KiB");
    Ok(())
}

async fn cycle(client: &Endpoint, addr: SocketAddr) -> anyhow::Result<()> {
    let mut stream = client.connect(addr).await?;
    stream.write_all(b"a request of some length, as they are").await?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    ensure!(answer == b"a request of some length, as they are", "another answer: {answer:?}");
    Ok(())
}

// ----- flood -----

/// Sockets that first packets come from.
const SOURCES: u32 = 512;

/// Clients that connect during the flood, half of them without this crate.
const CLIENTS: u64 = 100;
/// What the established connection sends, bytes per second: 100 Mbit/s.
const PACED: u64 = 12_500_000;

async fn flood(rate: u64, seconds: u64) -> anyhow::Result<()> {
    let (server, addr) = echo_server().await?;
    let (_other, other_addr) = echo_server().await?;
    let bytes = Arc::new(AtomicU64::new(0));
    let goodput = tokio::spawn(transfer(addr, bytes.clone()));
    measure("before", &bytes, 3).await;
    let memory = resident();

    // The same flood at another port costs the machine as much.
    let beside = start_flood(other_addr, rate);
    let undisturbed = measure("flood at another port", &bytes, seconds).await;
    beside.stop()?;
    let flood = start_flood(addr, rate);
    let clients = tokio::spawn(connect_all(addr, seconds));
    let highest = tokio::spawn(highest_memory(server.clone(), seconds));
    let during = measure("flood at this port", &bytes, seconds).await;
    let (mut times, held) = (clients.await?, highest.await?);
    let sent = flood.stop()?;
    let (peak, stats) = (resident(), server.stats());
    goodput.abort();

    times.sort_unstable();
    let in_time = times.iter().filter(|time| **time <= Duration::from_secs(3)).count();
    println!("sent {sent} first packets from {SOURCES} addresses");
    println!(
        "{in_time} of {CLIENTS} clients connected within 3 s, the last after {:?}",
        times.last()
    );
    println!("memory: {memory} KiB before, {peak} KiB at the end, {held} bytes of it unvalidated");
    println!(
        "opened {}, now unvalidated {}, answered without state {}, {} answers back, backlog full {}",
        stats.passive_opens,
        stats.unvalidated_connections,
        stats.retries_sent,
        stats.retries_answered,
        stats.refused_backlog
    );
    ensure!(in_time as u64 * 100 >= CLIENTS * 99, "{in_time} clients connected");
    ensure!(during >= undisturbed * 0.95, "{during} instead of {undisturbed} MB/s");
    ensure!(held <= 64 << 20, "{held} bytes for unvalidated peers");
    ensure!(peak < memory + 72 * 1024, "{} KiB more", peak - memory);
    Ok(())
}

/// A flood that runs until it is stopped.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<anyhow::Result<u64>>,
}

fn start_flood(addr: SocketAddr, rate: u64) -> Flood {
    let stop = Arc::new(AtomicBool::new(false));
    let halt = stop.clone();
    Flood { stop, thread: std::thread::spawn(move || send_initials(addr, rate, &halt)) }
}

impl Flood {
    /// Returns how many packets were sent.
    fn stop(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the flood failed")?
    }
}

/// The most bytes that unvalidated peers held in so many seconds.
async fn highest_memory(server: Endpoint, seconds: u64) -> u64 {
    let mut highest = 0;
    for _ in 0..seconds * 20 {
        highest = server.stats().unvalidated_bytes.max(highest);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    highest
}

/// Connects [`CLIENTS`] over so many seconds. Returns how long those took that connected.
async fn connect_all(addr: SocketAddr, seconds: u64) -> Vec<Duration> {
    let step = Duration::from_secs(seconds) / (CLIENTS as u32 + 25);
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        clients.push(tokio::spawn(async move {
            let start = Instant::now();
            let connect = async {
                if client % 2 == 0 { connect(addr).await } else { connect_stock(addr).await }
            };
            let connected = tokio::time::timeout(Duration::from_secs(10), connect).await;
            connected.ok()?.ok().map(|()| start.elapsed())
        }));
        tokio::time::sleep(step).await;
    }
    let mut times = Vec::new();
    for client in clients {
        times.extend(client.await.ok().flatten());
    }
    times
}

async fn connect(addr: SocketAddr) -> anyhow::Result<()> {
    let mut stream = KcpStream::connect(addr).await?;
    stream.write_all(b"hello").await?;
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).await?;
    ensure!(&echo == b"hello", "another echo");
    Ok(())
}

/// What a client of another implementation does: sends its first segment every 200 ms, and
/// acknowledges whatever comes, until its data comes back.
async fn connect_stock(addr: SocketAddr) -> anyhow::Result<()> {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await?;
    let (conv, wnd, una) = (7, 32, Sn(0));
    let mut first = Vec::new();
    let (command, sn, ts) = (Segment::Push, Sn(0), Ts(1));
    Header { conv, command, frg: 0, wnd, ts, sn, una, len: 5 }.emit(&mut first);
    first.extend_from_slice(b"hello");
    let mut retransmit = tokio::time::interval(Duration::from_millis(200));
    let mut buffer = [0; 2_000];
    loop {
        let len = tokio::select! {
            _ = retransmit.tick() => {
                socket.send_to(&first, addr).await?;
                continue;
            }
            received = socket.recv_from(&mut buffer) => received?.0,
        };
        for (header, payload) in Segments::new(&buffer[..len]) {
            if header.command == Segment::Push {
                let mut ack = Vec::new();
                let command = Segment::Ack;
                Header { command, frg: 0, wnd, una, len: 0, ..header }.emit(&mut ack);
                socket.send_to(&ack, addr).await?;
                if payload == b"hello" {
                    return Ok(());
                }
            }
        }
    }
}

/// An established connection that sends at a steady rate and reads the echo.
async fn transfer(addr: SocketAddr, bytes: Arc<AtomicU64>) -> std::io::Result<()> {
    let stream = KcpStream::connect(addr).await?;
    let (mut reader, mut writer) = stream.into_split();
    tokio::spawn(async move {
        let data = vec![7; 64 * 1024];
        let (start, mut sent) = (Instant::now(), 0);
        loop {
            let due = PACED * start.elapsed().as_micros() as u64 / 1_000_000;
            while sent < due {
                let len = (due - sent).min(data.len() as u64);
                if writer.write_all(&data[..len as usize]).await.is_err() {
                    return;
                }
                sent += len;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let len = reader.read(&mut buffer).await?;
        bytes.fetch_add(len as u64, Ordering::Relaxed);
    }
}

/// Megabytes per second over so many seconds.
async fn measure(name: &str, bytes: &AtomicU64, seconds: u64) -> f64 {
    let (start, from) = (Instant::now(), bytes.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let moved = bytes.load(Ordering::Relaxed) - from;
    let rate = moved as f64 / 1e6 / start.elapsed().as_secs_f64();
    println!("{name}: {rate:.2} MB/s");
    rate
}

/// Sends first packets at a steady rate. Returns how many.
fn send_initials(addr: SocketAddr, rate: u64, stop: &AtomicBool) -> anyhow::Result<u64> {
    let sockets = (0..SOURCES)
        .map(|source| {
            let [_, _, high, low] = (source + 1).to_be_bytes();
            UdpSocket::bind((Ipv4Addr::new(127, 9, high, low), 0))
        })
        .collect::<Result<Vec<_>, _>>()
        .context("binding loopback addresses")?;
    let (start, mut sent) = (Instant::now(), 0_u64);
    while !stop.load(Ordering::Relaxed) {
        let due = (start.elapsed().as_micros() as u64) * rate / 1_000_000;
        while sent < due {
            let mut datagram = Vec::new();
            Header {
                conv: (sent as u32).wrapping_mul(0x9E37_79B9) | 1,
                command: Segment::Push,
                frg: 0,
                wnd: 128,
                ts: Ts(0),
                sn: Sn(0),
                una: Sn(0),
                len: 5,
            }
            .emit(&mut datagram);
            datagram.extend_from_slice(b"hello");
            // The send buffer may be full: then so many fewer arrive.
            let _ = sockets[(sent % u64::from(SOURCES)) as usize].send_to(&datagram, addr);
            sent += 1;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(sent)
}
