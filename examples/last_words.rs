//! Sends a megabyte to a listener, and ends: how a program must end so that nothing is lost. KCP lives in
//! the process; no kernel goes on sending when it is gone.

#[path = "common/log.rs"]
mod log;

use std::net::SocketAddr;

use anyhow::Result;
use clap::Parser;
use kcpx::KcpStream;
use tokio::io::AsyncWriteExt;

/// Sends a megabyte to a listener and ends, in order or in a hurry.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  cargo run --release --example echo_server
  cargo run --release -p kcpx-examples --example last_words -- 127.0.0.1:4000
  cargo run --release -p kcpx-examples --example last_words -- 127.0.0.1:4000 --in-a-hurry

RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    /// Address of a listener, such as echo_server's
    addr: SocketAddr,
    /// Drop the stream and end at once, as a program may that leaves the rest to TCP's kernel
    #[arg(long)]
    in_a_hurry: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    let Args { addr, in_a_hurry } = Args::parse();
    let data = (0..=250).cycle().take(1 << 20).collect::<Vec<u8>>();

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
