//! Memory of a server under connections that come and go.
//!
//! `cycles` opens, echoes and closes one connection after the other on one listener and prints
//! the memory in use.

#[path = "common/log.rs"]
mod log;

use std::fs;
use std::net::SocketAddr;
use std::time::Instant;

use anyhow::ensure;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use kcpx::{Config, Endpoint, KcpListener, KcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Measures what one listener keeps of ended connections.
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
        #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
        /// How many at a time.
        #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
        parallel: u64,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    log::to_stderr();
    match Args::parse().mode {
        Mode::Cycles { count, parallel } => cycles(count, parallel).await,
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
        ours.connections.current,
        theirs.connections.current
    );
    ensure!(
        theirs.connections.passive_opens == count,
        "{} were opened",
        theirs.connections.passive_opens
    );
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
