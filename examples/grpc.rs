//! gRPC over KCP: tonic on both sides, with calls of three kinds.
//!
//! The server takes the incoming streams of a `KcpListener`, the client a `KcpConnector`. The
//! service and its client are in `common/sums.rs`, written by hand, so that no protocol compiler
//! is needed; generated ones are used in the same way.

#[path = "common/bind.rs"]
mod bind;
#[path = "common/ending.rs"]
mod ending;
#[path = "common/log.rs"]
mod log;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/sums.rs"]
mod sums;
#[path = "common/usage.rs"]
mod usage;

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use kcpx::{Config, KcpConnector, KcpListener, Timing};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

use self::bind::bind_for_url;
use self::ending::closed;
use self::sums::{Number, PEER, Sums, SumsClient};
use self::usage::checked;

/// How many numbers are streamed each way.
const NUMBERS: i64 = 10_000;
/// Numbers sent ahead of the answers in the bidirectional call.
const ROUNDS: i64 = 100;

/// gRPC over KCP; without a command, both sides in this process.
#[derive(Parser)]
#[command(after_help = "\
Both sides in one process:
  cargo run --release -p kcpx-examples --example grpc
In two terminals:
  cargo run --release -p kcpx-examples --example grpc -- server --listen 127.0.0.1:4002
  cargo run --release -p kcpx-examples --example grpc -- client http://127.0.0.1:4002

RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Serves kcpx.demo.Sums until Ctrl-C
    Server {
        /// Address to listen on, as HOST:PORT; port 0 picks a free one
        #[arg(long, default_value = "127.0.0.1:4002")]
        listen: String,
    },
    /// Calls each method and checks the answers
    Client {
        /// Address of the server, as http://HOST:PORT
        url: String,
    },
}

fn config() -> Config {
    Config::new().timing(Timing::FAST3)
}

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    match Args::parse().role {
        Some(Role::Server { listen }) => {
            let interrupted = signals::interrupted();
            let listener = bind(&listen).await?;
            println!("listening on http://{}", listener.local_addr()?);
            serve(listener, async { drop(interrupted.await) }).await
        }
        Some(Role::Client { url }) => call(url).await,
        None => demo().await,
    }
}

async fn bind(addr: &str) -> Result<KcpListener> {
    KcpListener::bind_with(addr, config()).await.with_context(|| {
        format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:4002")
    })
}

async fn demo() -> Result<()> {
    let listener = bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("serving {url} over KCP");
    let endpoint = listener.endpoint().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(serve(listener, async { drop(stopped.await) }));

    call(url).await?;
    closed(&endpoint).await.context("the server")?;
    println!(
        "all of it over {} connection(s), now closed",
        endpoint.stats().connections.passive_opens
    );
    drop(stop);
    server.await?
}

async fn serve(listener: KcpListener, stop: impl Future<Output = ()>) -> Result<()> {
    Server::builder().serve_with_incoming_shutdown(Sums, listener.incoming(), stop).await?;
    // The last bytes of the last responses have no kernel that delivers them.
    listener.wait_idle().await;
    Ok(())
}

async fn call(url: String) -> Result<()> {
    let server = tonic::transport::Endpoint::new(url.clone())
        .with_context(|| format!("the URL must be http://HOST:PORT, got {url:?}"));
    let server = checked(server);
    // With an endpoint of our own we can wait below until the connection is closed.
    let endpoint = bind_for_url(server.uri(), config()).await?;
    let channel = server
        .connect_with_connector(KcpConnector::with_endpoint(endpoint.clone()))
        .await
        .with_context(|| format!("cannot connect to {url}"))?;
    let mut client = SumsClient::new(channel);

    let response = client
        .square(12)
        .await
        .with_context(|| format!("no answer from {url}; is the server running there?"))?;
    ensure!(response.get_ref().value == 144, "12 * 12 = {}?", response.get_ref().value);
    let peer = response.metadata().get(PEER).context("the server does not say who we are")?;
    let peer: SocketAddr = peer.to_str()?.parse()?;
    ensure!(peer.port() == endpoint.local_addr()?.port(), "the server saw us at {peer}");
    println!("Square   12 * 12 = 144, the server saw us at {peer}");

    let mut counted = client.count(NUMBERS).await?;
    let mut last = 0;
    while let Some(number) = counted.message().await? {
        ensure!(number.value == last + 1, "{} came after {last}", number.value);
        last = number.value;
    }
    ensure!(last == NUMBERS, "the count ended at {last}");
    println!("Count    1 to {NUMBERS}, all in order");

    // Each answer is awaited before the next number is sent: both directions at once.
    let (numbers, queue) = mpsc::channel(1);
    let mut totals = client.total(ReceiverStream::new(queue)).await?;
    let mut expected = 0;
    for value in 1..=ROUNDS {
        numbers.send(Number { value }).await?;
        expected += value;
        let total = totals.message().await?.context("the totals ended early")?;
        ensure!(total.value == expected, "the total of 1 to {value} is {expected}, not {total:?}");
    }
    drop(numbers);
    ensure!(totals.message().await?.is_none(), "a total without a number");
    println!("Total    {ROUNDS} numbers there, their total back after each: {expected}");

    drop((client, totals, counted));
    closed(&endpoint).await.context("the client")
}
