//! Sends back whatever its clients send, until Ctrl-C or SIGTERM.

#[path = "log.rs"]
mod log;
#[path = "options.rs"]
mod options;
#[path = "../common/signals.rs"]
mod signals;

use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result};
use kcpx::{KcpListener, KcpStream, Shutdown};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::options::Options;

/// How long clients may take to finish after Ctrl-C.
const TIME_TO_FINISH: Duration = Duration::from_secs(10);

const HELP: &str = "\
Sends back whatever its clients send, until Ctrl-C or SIGTERM. Then open connections have 10 s to finish,
and new ones are refused; a second signal ends the server at once.

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
    // Caught before a reader of the first line can send one.
    let mut interrupted = pin!(signals::interrupted());
    let listener = KcpListener::bind(&addr).await.with_context(|| {
        format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:4000")
    })?;
    println!("listening on {}", listener.local_addr()?);

    let mut connections = JoinSet::new();
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

    // Refuses new clients, and waits until each connection has ended and everything is delivered.
    println!(
        "ending when all clients have finished, after 10 s at most; another signal ends at once"
    );
    if timeout(TIME_TO_FINISH, listener.shutdown(Shutdown::Drain)).await.is_err() {
        // Drops the remaining streams, which resets them, and delivers the resets.
        connections.shutdown().await;
        listener.wait_idle().await;
    }
    Ok(())
}

async fn echo(mut stream: KcpStream) -> std::io::Result<()> {
    // A stream that is dropped before its end is reset: the client must not take a part for the whole.
    stream.set_zero_linger()?;
    loop {
        let chunk = stream.read_chunk().await?;
        if chunk.is_empty() {
            stream.set_linger(None)?;
            return stream.shutdown().await;
        }
        stream.write_all(&chunk).await?;
    }
}
