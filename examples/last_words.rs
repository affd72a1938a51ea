//! Sends a megabyte to a listener, and ends: how a program must end so that
//! nothing is lost. KCP lives in the process; no kernel goes on sending when that is gone.
//!
//! ```sh
//! cargo run --release --example last_words -- 127.0.0.1:4000
//! cargo run --release --example last_words -- 127.0.0.1:4000 --in-a-hurry
//! ```

#[path = "common/log.rs"]
mod log;

use std::net::SocketAddr;

use anyhow::Result;
use clap::Parser;
use kcpx::KcpStream;
use tokio::io::AsyncWriteExt;

/// Sends a megabyte to a listener, and ends.
#[derive(Parser)]
struct Args {
    /// Where to send it
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
        // What was written is on its way in the background, and this ends the background.
        drop(stream);
        println!("left at once");
    } else {
        // Ok: the peer has acknowledged every byte.
        stream.shutdown().await?;
        drop(stream);
        // Until everything is acknowledged, the FIN included. It is all that a program
        // needs which dropped its streams, without `shutdown`, wherever that was convenient.
        endpoint.wait_idle().await;
        println!("delivered");
    }
    Ok(())
}
