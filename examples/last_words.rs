//! Sends a megabyte to a listener, and ends: how a program must end so that nothing is lost. KCP lives in
//! the process; no kernel goes on sending when it is gone.

#[path = "common/log.rs"]
mod log;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use kcpx::{Config, KcpListener, KcpStream, KeepaliveInterval};
use kcpx_netem::{Conditions, Relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// Bytes to send.
const SIZE: usize = 1 << 20;
/// Of the link between the processes: what it loses is retransmitted after a round trip, which takes longer
/// than a process that ends goes on sending.
const DELAY: Duration = Duration::from_millis(100);
const LOSS_PERCENT: u64 = 5;

/// Sends a megabyte to a listener and ends, in order or in a hurry. Without an address it starts itself
/// once in each way, and prints how much arrives over a link of 100 ms each way that loses 5 %.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  cargo run --release -p kcpx-examples --example last_words
  cargo run --release -p kcpx-examples --example last_words -- HOST:PORT --in-a-hurry

The listener at HOST:PORT must read and send nothing: unread answers would reset the connection.

RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    /// Address of a listener that only reads
    addr: Option<SocketAddr>,
    /// Drop the stream and end at once, as a program may that leaves the rest to TCP's kernel
    #[arg(long, requires = "addr")]
    in_a_hurry: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    let Args { addr, in_a_hurry } = Args::parse();
    match addr {
        Some(addr) => send(addr, in_a_hurry).await,
        None => {
            receive_from_child("in order", &[]).await?;
            receive_from_child("in a hurry", &["--in-a-hurry"]).await
        }
    }
}

async fn send(addr: SocketAddr, in_a_hurry: bool) -> Result<()> {
    let data = (0..=250).cycle().take(SIZE).collect::<Vec<u8>>();

    let mut stream = KcpStream::connect(addr).await?;
    let endpoint = stream.endpoint();
    stream.write_all(&data).await?;

    if in_a_hurry {
        // Delivery goes on in the background, which ends with the process.
        drop(stream);
        println!("left at once");
    } else {
        // Ok: the peer has acknowledged every byte.
        stream.shutdown().await?;
        drop(stream);
        // Waits until everything is acknowledged, the FIN included. A program that drops its streams
        // without `shutdown` needs only this.
        endpoint.wait_idle().await;
        println!("delivered");
    }
    Ok(())
}

/// Starts this program as the sender, and prints what arrives from it.
async fn receive_from_child(name: &str, options: &[&str]) -> Result<()> {
    // Gives up on a sender that is silent for a second.
    let config = Config::new()
        .keepalive(KeepaliveInterval::Never)
        .idle_timeout(Some(Duration::from_secs(1)));
    let listener = KcpListener::bind_with("127.0.0.1:0", config).await?;
    let link = Conditions { delay: DELAY, loss: LOSS_PERCENT, ..Conditions::default() };
    let relay = Relay::start(listener.local_addr()?, link, 0).await?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg(relay.addr().to_string())
        .args(options)
        .stdout(Stdio::null())
        .spawn()?;

    let (mut stream, _) = listener.accept().await?;
    let mut got = Vec::new();
    let end = match stream.read_to_end(&mut got).await {
        Ok(_) => "the end".to_owned(),
        Err(error) => error.to_string(),
    };
    println!("{name:<10}  {} of {SIZE} bytes arrived, then: {end}", got.len());
    drop(stream);
    listener.wait_idle().await;
    ensure!(child.wait().await?.success(), "the sender failed");
    Ok(())
}
