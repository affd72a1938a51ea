//! Sends back whatever its clients send, until Ctrl-C or SIGTERM.

#[path = "log.rs"]
mod log;
#[path = "options.rs"]
mod options;
#[path = "../common/signals.rs"]
mod signals;

use std::pin::pin;

use anyhow::{Context, Result};
use kcpx::{KcpListener, KcpStream};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use self::options::Options;

const HELP: &str = "\
Sends back whatever its clients send, until Ctrl-C or SIGTERM.

usage: echo_server [HOST:PORT]

  HOST:PORT  where to listen; port 0 picks a free one [default: 127.0.0.1:4000]

In two terminals:

  cargo run --release --example echo_server
  cargo run --release --example echo_client -- 127.0.0.1:4000 \"hello, world\"

RUST_LOG=kcpx=debug logs what the library does.
";

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    let mut options = Options::new(HELP);
    let addr = options.positional().unwrap_or_else(|| "127.0.0.1:4000".into());
    options.end();
    let listener = KcpListener::bind(&addr).await.with_context(|| {
        format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:4000")
    })?;
    println!("listening on {}", listener.local_addr()?);

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
            // A client of another implementation sends no FIN: its connection ends with an error
            // after the idle timeout.
            match echo(stream).await {
                Ok(()) => println!("{peer}: finished"),
                Err(error) => println!("{peer}: {error}"),
            }
        });
    }

    // Delivers what clients have not acknowledged yet.
    println!("ending; another signal ends at once");
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
