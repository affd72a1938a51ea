//! Sends a text to an echo server and prints what comes back.

#[path = "log.rs"]
mod log;
#[path = "options.rs"]
mod options;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kcpx::{Config, KcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use self::options::Options;

const HELP: &str = "\
Sends a text to an echo server and prints what comes back.

usage: echo_client HOST:PORT [TEXT]

  HOST:PORT  where echo_server listens, which prints it
  TEXT       what to send [default: hello, world]

In two terminals:

  cargo run --release --example echo_server
  cargo run --release --example echo_client -- 127.0.0.1:4000 \"hello, world\"

RUST_LOG=kcpx=debug logs what the library does.
";

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    let mut options = Options::new(HELP);
    let addr = options.required("HOST:PORT of the server");
    let text = options.positional().unwrap_or_else(|| "hello, world".into());
    options.end();

    let config = Config::new().connect_timeout(Duration::from_secs(5));
    let mut stream = KcpStream::connect_with(&addr, config)
        .await
        .with_context(|| format!("cannot connect to {addr:?}: is echo_server running there?"))?;
    stream.write_all(text.as_bytes()).await?;

    // `shutdown` sends a FIN and returns once the peer has acknowledged every byte. The server ends its
    // side in turn, so the echo is complete at the end of the stream.
    let no_echo = || format!("no echo from {addr}; is echo_server running there?");
    stream.shutdown().await.with_context(no_echo)?;
    let mut echo = Vec::new();
    stream.read_to_end(&mut echo).await.with_context(no_echo)?;
    ensure!(echo == text.as_bytes(), "the echo differs from what was sent");
    println!("{}", String::from_utf8_lossy(&echo));

    // Delivers the rest, here the last acknowledgement.
    let endpoint = stream.endpoint();
    drop(stream);
    endpoint.wait_idle().await;
    Ok(())
}
