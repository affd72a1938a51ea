//! Sends back whatever its clients send, until Ctrl-C or SIGTERM.
//!
//! ```sh
//! cargo run --release --example echo_server
//! cargo run --release --example echo_client -- 127.0.0.1:4000 "hello, world"
//! ```

#[path = "common/log.rs"]
mod log;
#[path = "common/signals.rs"]
mod signals;

use std::pin::pin;

use anyhow::{Context, Result};
use clap::Parser;
use kcpx::{KcpListener, KcpStream};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

/// Sends back whatever its clients send, until Ctrl-C or SIGTERM.
#[derive(Parser)]
struct Args {
    /// Address to listen on, as HOST:PORT; port 0 picks a free one
    #[arg(default_value = "127.0.0.1:4000")]
    addr: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    let Args { addr } = Args::parse();
    let listener = KcpListener::bind(&addr).await.with_context(|| {
        format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:4000")
    })?;
    println!("listening on {}, Ctrl-C ends", listener.local_addr()?);

    let mut connections = JoinSet::new();
    let mut interrupted = pin!(signals::interrupted());
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => accepted.context("the endpoint has ended")?,
            interrupted = &mut interrupted => {
                interrupted.context("cannot wait for signals")?;
                break;
            }
        };
        println!("{peer}: opened conversation id {}", stream.conv());
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            // A client of another implementation sends no FIN: its connection ends with
            // an error after the idle timeout.
            let reason =
                echo(stream).await.err().map_or_else(|| "finished".into(), |e| e.to_string());
            println!("{peer}: {reason}");
        });
    }

    // Delivers what was echoed and is not acknowledged yet.
    println!("ending; once more ends at once");
    connections.shutdown().await;
    listener.wait_idle().await;
    Ok(())
}

async fn echo(mut stream: KcpStream) -> std::io::Result<()> {
    loop {
        let chunk = stream.read_chunk().await?;
        if chunk.is_empty() {
            return stream.shutdown().await;
        }
        stream.write_all(&chunk).await?;
    }
}
