//! A flood of initial segments from many addresses, beside clients that connect and a connection
//! that sends 100 Mbit/s. First the same flood goes to another port, which costs the machine as
//! much.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use kcpx::proto::segment::{Command, Header, Segments};
use kcpx::proto::seq::{Sn, Ts};
use kcpx::{Config, KcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::forge;
use crate::os;
use crate::running::Running;
use crate::server::{Server, Service};
use crate::sources::Sources;

/// Addresses that initial segments come from.
const ADDRESSES: u32 = 512;
/// Clients that connect during the flood, half of them without this crate.
const CLIENTS: u64 = 100;
/// Bytes per second of the established connection: 100 Mbit/s.
const PACED: u64 = 12_500_000;
/// The limit of bytes for unvalidated peers: a sixteenth of the default of `Limits::memory`.
const UNVALIDATED_MEMORY: u64 = 64 << 20;

#[derive(Args)]
pub(crate) struct Options {
    /// Datagrams a second, at most 50,000.
    #[arg(long, default_value_t = 20_000)]
    rate: u64,
    /// How long, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

/// Fails if a bound is missed.
pub(crate) async fn run(options: &Options) -> anyhow::Result<()> {
    let (rate, seconds) = (options.rate.clamp(100, 50_000), options.seconds.max(1));
    let server = Server::start(Config::new(), Service::Echo)?;
    let other = Server::start(Config::new(), Service::Echo)?;
    let bytes = Arc::new(AtomicU64::new(0));
    let goodput = tokio::spawn(transfer(server.addr, bytes.clone()));
    measure("before", &bytes, 3).await;
    let memory = os::resident_kib();

    let beside = start(other.addr, rate)?;
    let undisturbed = measure("flood at another port", &bytes, seconds).await;
    beside.stop()?;
    let flood = start(server.addr, rate)?;
    let clients = tokio::spawn(connect_all(server.addr, seconds));
    let during = tokio::join!(
        measure("flood at this port", &bytes, seconds),
        highest_memory(&server, seconds)
    );
    let (during, held) = during;
    let mut times = clients.await?;
    let sent = flood.stop()?;
    let (peak, stats) = (os::resident_kib(), server.stats());
    goodput.abort();

    times.sort_unstable();
    let in_time = times.iter().filter(|time| **time <= Duration::from_secs(3)).count();
    println!("sent {sent} initial segments from {ADDRESSES} addresses");
    println!(
        "{in_time} of {CLIENTS} clients connected within 3 s, the last after {:?}",
        times.last()
    );
    println!("memory: {memory} KiB before, {peak} KiB at the end, {held} bytes of it unvalidated");
    println!(
        "opened {}, now unvalidated {}, answered without state {}, {} answers back, backlog full {}",
        stats.connections.passive_opens,
        stats.connections.unvalidated,
        stats.retry.sent,
        stats.retry.answered,
        stats.refused.backlog
    );
    ensure!(in_time as u64 * 100 >= CLIENTS * 99, "{in_time} clients connected");
    ensure!(during >= undisturbed * 0.95, "{during} instead of {undisturbed} MB/s");
    ensure!(held <= UNVALIDATED_MEMORY, "{held} bytes for unvalidated peers");
    ensure!(peak < memory + 72 * 1024, "{} KiB more", peak - memory);
    Ok(())
}

fn start(addr: SocketAddr, rate: u64) -> anyhow::Result<Running> {
    let mut sources = Sources::at_addresses(9, ADDRESSES)?;
    let mut conv = 0_u32;
    Ok(Running::start(rate, move || {
        conv = conv.wrapping_add(0x9E37_79B9);
        sources.send(&forge::initial(conv | 1, b"hello"), addr);
    }))
}

/// The most bytes that unvalidated peers held within these seconds.
async fn highest_memory(server: &Server, seconds: u64) -> u64 {
    let mut highest = 0;
    for _ in 0..seconds * 20 {
        highest = server.stats().memory.unvalidated_bytes.max(highest);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    highest
}

/// Connects [`CLIENTS`] over these seconds. Returns how long each took that connected.
async fn connect_all(addr: SocketAddr, seconds: u64) -> Vec<Duration> {
    let step = Duration::from_secs(seconds) / (CLIENTS as u32 + 25);
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        clients.push(tokio::spawn(async move {
            let start = Instant::now();
            let connect = async {
                if client % 2 == 0 { connect(addr).await } else { connect_minimal(addr).await }
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

/// Acts as a client of another implementation: sends its first segment every 200 ms, and acknowledges all
/// segments, until its data comes back.
async fn connect_minimal(addr: SocketAddr) -> anyhow::Result<()> {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await?;
    let (conv, wnd, una) = (7, 32, Sn(0));
    let mut first = Vec::new();
    let (command, sn, ts) = (Command::Push, Sn(0), Ts(1));
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
            if header.command == Command::Push {
                let mut ack = Vec::new();
                let command = Command::Ack;
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

/// Megabytes per second over these seconds.
async fn measure(name: &str, bytes: &AtomicU64, seconds: u64) -> f64 {
    let (start, from) = (Instant::now(), bytes.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let moved = bytes.load(Ordering::Relaxed) - from;
    let rate = moved as f64 / 1e6 / start.elapsed().as_secs_f64();
    println!("{name}: {rate:.2} MB/s");
    rate
}
