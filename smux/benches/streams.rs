//! Throughput, CPU time, fairness: `cargo bench -p kcpx-smux`, or with names of rows behind `--`.
//!
//! Each row is the median of several measurements, and `raw` is the carrier without a session.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kcpx_smux::{Config, Session, Version};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

const MIB: usize = 1 << 20;
const RUNS: usize = 5;

fn main() {
    // Cargo's tests run benches without `--bench`, to see that they work.
    let measures = std::env::args().any(|argument| argument == "--bench");
    let names: Vec<_> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let (runs, total) = if measures { (RUNS, 2_048 * MIB) } else { (1, MIB) };
    let wanted = |name: &str| names.is_empty() || names.iter().any(|part| name.contains(part));
    for carrier in ["tcp", "duplex"] {
        for (what, streams) in [("raw", 1), ("v1", 1), ("v2", 1), ("v1", 100), ("v2", 100)] {
            let name = format!("{carrier}-{what}-{streams}");
            if wanted(&name) {
                report(&name, runs, total, || transfer(carrier, what, streams, total));
            }
        }
    }
    for version in ["v1", "v2"] {
        let name = format!("duplex-{version}-10000x10kB");
        let streams = if measures { 10_000 } else { 10 };
        if wanted(&name) {
            report(&name, runs, streams * 10_000, || {
                short_streams(config(version).accept_backlog(10_000), streams)
            });
        }
        let name = format!("fairness-{version}");
        if wanted(&name) {
            let seconds = if measures { 2.0 } else { 0.05 };
            runtime().block_on(fairness(&name, config(version), Duration::from_secs_f64(seconds)));
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn config(version: &str) -> Config {
    // kcptun's window.
    let config = Config::new().max_stream_buffer(2 * MIB);
    config.version(if version == "v1" { Version::V1 } else { Version::V2 })
}

fn report(name: &str, runs: usize, bytes: usize, run: impl Fn()) {
    let mut rates = Vec::new();
    let mut seconds_per_gb = Vec::new();
    for _ in 0..runs {
        let (started, cpu) = (Instant::now(), cpu_seconds());
        run();
        rates.push(bytes as f64 / 1e6 / started.elapsed().as_secs_f64());
        seconds_per_gb.push((cpu_seconds() - cpu) / (bytes as f64 / 1e9));
    }
    rates.sort_by(f64::total_cmp);
    seconds_per_gb.sort_by(f64::total_cmp);
    let (rate, cpu) = (rates[runs / 2], seconds_per_gb[runs / 2]);
    println!("{name:24} {rate:8.0} MB/s  {cpu:6.3} CPU s/GB");
}

/// User and system time of this process, in steps of 10 ms. 0 without `/proc`.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|field| field.parse::<f64>().ok());
    ticks(11).unwrap_or(0.0) / 100.0 + ticks(12).unwrap_or(0.0) / 100.0
}

async fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connect = TcpStream::connect(listener.local_addr().unwrap());
    let (connected, accepted) = tokio::join!(connect, listener.accept());
    let (connected, accepted) = (connected.unwrap(), accepted.unwrap().0);
    connected.set_nodelay(true).unwrap();
    accepted.set_nodelay(true).unwrap();
    (connected, accepted)
}

fn transfer(carrier: &str, what: &str, streams: usize, total: usize) {
    runtime().block_on(async {
        if carrier == "tcp" {
            let (ours, theirs) = tcp().await;
            transfer_over(ours, theirs, what, streams, total).await;
        } else {
            let (ours, theirs) = tokio::io::duplex(256 << 10);
            transfer_over(ours, theirs, what, streams, total).await;
        }
    });
}

async fn transfer_over<T>(ours: T, theirs: T, what: &str, streams: usize, total: usize)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    if what == "raw" {
        let sender = tokio::spawn(send(ours, total));
        receive(theirs, total).await;
        sender.await.unwrap();
        return;
    }
    let client = Session::client(ours, config(what)).unwrap();
    let server = Session::server(theirs, config(what)).unwrap();
    let mut tasks = Vec::new();
    for _ in 0..streams {
        let stream = client.open_stream().await.unwrap();
        tasks.push(tokio::spawn(send(stream, total / streams)));
        let stream = server.accept_stream().await.unwrap();
        tasks.push(tokio::spawn(receive(stream, total / streams)));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn send(mut stream: impl AsyncWrite + Unpin, total: usize) {
    let data = vec![7; 64 << 10];
    let mut left = total;
    while left > 0 {
        let len = left.min(data.len());
        stream.write_all(&data[..len]).await.unwrap();
        left -= len;
    }
    stream.shutdown().await.unwrap();
}

async fn receive(mut stream: impl AsyncRead + Unpin, total: usize) {
    let mut buffer = vec![0; 64 << 10];
    let mut received = 0;
    loop {
        let len = stream.read(&mut buffer).await.unwrap();
        received += len;
        if len == 0 {
            break;
        }
    }
    assert_eq!(received, total);
}

/// Streams that are opened, sent 10,000 bytes, and closed, without waiting for the reader.
fn short_streams(config: Config, streams: usize) {
    runtime().block_on(async {
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        let client = Session::client(ours, config.clone()).unwrap();
        let server = Session::server(theirs, config).unwrap();
        let sender = tokio::spawn(async move {
            let data = [7; 10_000];
            for _ in 0..streams {
                let mut stream = client.open_stream().await.unwrap();
                stream.write_all(&data).await.unwrap();
            }
            client
        });
        let mut buffer = vec![0; 16 << 10];
        for _ in 0..streams {
            let mut stream = server.accept_stream().await.unwrap();
            let mut received = 0;
            loop {
                let len = stream.read(&mut buffer).await.unwrap();
                received += len;
                if len == 0 {
                    break;
                }
            }
            assert_eq!(received, 10_000);
        }
        drop(sender.await.unwrap());
    });
}

/// 99 streams send as much as they can and one sends single bytes; what each of the former has sent,
/// and how long the latter's bytes are under way.
async fn fairness(name: &str, config: Config, duration: Duration) {
    let (ours, theirs) = tcp().await;
    let client = Session::client(ours, config.clone()).unwrap();
    let server = Session::server(theirs, config).unwrap();
    let mut bulk = Vec::new();
    for _ in 0..99 {
        let mut stream = client.open_stream().await.unwrap();
        tokio::spawn(async move {
            let data = vec![7; 64 << 10];
            while stream.write_all(&data).await.is_ok() {}
        });
        let mut stream = server.accept_stream().await.unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        bulk.push(Arc::clone(&count));
        tokio::spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                count.fetch_add(len, Ordering::Relaxed);
            }
        });
    }
    let mut ping = client.open_stream().await.unwrap();
    let mut pong = server.accept_stream().await.unwrap();
    tokio::spawn(async move {
        let mut byte = [0];
        while pong.read_exact(&mut byte).await.is_ok() {
            pong.write_all(&byte).await.unwrap();
        }
    });
    let before: Vec<_> = bulk.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let started = Instant::now();
    let mut round_trips = Vec::new();
    while started.elapsed() < duration {
        let sent = Instant::now();
        ping.write_all(&[1]).await.unwrap();
        ping.read_exact(&mut [0]).await.unwrap();
        round_trips.push(sent.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    let mut received: Vec<_> = bulk
        .iter()
        .zip(before)
        .map(|(count, before)| (count.load(Ordering::Relaxed) - before) as f64)
        .collect();
    round_trips.sort();
    received.sort_by(f64::total_cmp);
    let mean = received.iter().sum::<f64>() / received.len() as f64;
    let rate = mean * 99.0 / 1e6 / seconds;
    println!(
        "{name:24} {rate:8.0} MB/s  99 bulk streams {:.2} to {:.2} of their mean; ping p50 {:?}, \
         p99 {:?}",
        received[0] / mean,
        received[received.len() - 1] / mean,
        round_trips[round_trips.len() / 2],
        round_trips[round_trips.len() * 99 / 100],
    );
}
