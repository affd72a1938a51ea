//! Transfers over several multiplexers, side by side: bytes one way, over TCP on loopback or an
//! in-memory carrier, on two threads. `cargo run --release -p kcpx-smux-compare -- [MIB] [ROUNDS]`.
//!
//! All of a round's peers run one after the other, so that a change of the machine's load meets each
//! of them; the table has medians. Reads and writes are 64 KiB, settings are those of `config`
//! functions below, and the rest is each library's default.

mod peers;

use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use self::peers::Peer;

/// A carrier's end.
pub(crate) trait Carrier: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static> Carrier for T {}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let total: usize = arguments.next().unwrap_or(256) << 20;
    let rounds: usize = arguments.next().unwrap_or(5);
    println!("| carrier, streams | peer | MB/s | CPU s/GB |\n|---|---|---|---|");
    for (carrier, streams) in [("tcp", 1), ("tcp", 100), ("duplex", 1), ("duplex", 100)] {
        let mut rows: Vec<_> =
            Peer::ALL.iter().map(|peer| (*peer, Vec::new(), Vec::new())).collect();
        for _ in 0..rounds {
            for (peer, rates, cpu) in &mut rows {
                if *peer == Peer::Raw && streams > 1 {
                    continue;
                }
                let (rate, seconds) = measure(carrier, *peer, streams, total);
                rates.push(rate);
                cpu.push(seconds);
            }
        }
        for (peer, rates, cpu) in rows {
            if !rates.is_empty() {
                let (rate, cpu) = (median(rates), median(cpu));
                println!("| {carrier}, {streams} | {} | {rate:.0} | {cpu:.2} |", peer.name());
            }
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Megabytes per second, and seconds of CPU time per gigabyte, both ends together.
fn measure(carrier: &str, peer: Peer, streams: usize, total: usize) -> (f64, f64) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().expect("threads can be started");
    let (started, cpu) = (Instant::now(), cpu_seconds());
    runtime.block_on(async {
        if carrier == "tcp" {
            let (client, server) = tcp().await;
            peer.run(client, server, streams, total / streams).await;
        } else {
            let (client, server) = tokio::io::duplex(256 << 10);
            peer.run(client, server, streams, total / streams).await;
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    let bytes = (total / streams * streams) as f64;
    (bytes / 1e6 / seconds, (cpu_seconds() - cpu) / (bytes / 1e9))
}

async fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("it is bound");
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (client, server) = (client.expect("it listens"), server.expect("it listens").0);
    client.set_nodelay(true).expect("TCP has the option");
    server.set_nodelay(true).expect("TCP has the option");
    (client, server)
}

/// User and system time of this process, in steps of 10 ms. 0 without `/proc`.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|field| field.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}
