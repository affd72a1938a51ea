//! Sends a text to an echo server and prints what comes back.
//!
//! ```sh
//! cargo run --release --example echo_server
//! cargo run --release --example echo_client -- 127.0.0.1:4000 "hello, world"
//! ```

#[path = "common/log.rs"]
mod log;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use kcpx::{Config, KcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Sends a text to an echo server and prints what comes back.
#[derive(Parser)]
struct Args {
    /// Where echo_server listens, as HOST:PORT
    addr: String,
    /// What to send
    #[arg(default_value = "hello, world")]
    text: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    let Args { addr, text } = Args::parse();

    let config = Config::new().connect_timeout(Duration::from_secs(5));
    let mut stream = KcpStream::connect_with(&addr, config)
        .await
        .with_context(|| format!("cannot connect to {addr:?}: is echo_server running there?"))?;
    stream.write_all(text.as_bytes()).await?;

    // `shutdown` is Ok once the peer has acknowledged every byte, and sends it a FIN: there are no
    // more. It answers in kind, so the echo is complete at its end.
    let no_echo = || format!("no echo from {addr}; is echo_server running there?");
    stream.shutdown().await.with_context(no_echo)?;
    let mut echo = Vec::new();
    stream.read_to_end(&mut echo).await.with_context(no_echo)?;
    ensure!(echo == text.as_bytes(), "the echo differs from what was sent");
    println!("{}", String::from_utf8_lossy(&echo));

    // The endpoint is given the time to deliver the rest, here the last acknowledgement.
    let endpoint = stream.endpoint();
    drop(stream);
    endpoint.wait_idle().await;
    Ok(())
}
