//! HTTP over KCP: an axum server and a hyper client.
//!
//! Neither depends on TCP: `axum::serve` takes a `KcpListener`, and hyper-util's
//! client a `KcpConnector`.

#[path = "common/bind.rs"]
mod bind;
#[path = "common/ending.rs"]
mod ending;
#[path = "common/hash.rs"]
mod hash;
#[path = "common/log.rs"]
mod log;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/usage.rs"]
mod usage;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::routing::{get, post};
use bytes::Bytes;
use clap::{Parser, Subcommand};
use http::Uri;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kcpx::{Config, KcpConnector, KcpListener, Timing};
use tokio::sync::oneshot;

use self::bind::bind_for_url;
use self::ending::closed;
use self::hash::{pseudo_random, sha256};
use self::usage::checked;

/// The answer at `/`.
const GREETING: &str = "hello over KCP\n";
/// Bytes of each upload to `/sha256`.
const UPLOAD: usize = 1_000_000;

/// HTTP over KCP; without a command, both sides in this process.
#[derive(Parser)]
#[command(after_help = "\
Both sides in one process:
  cargo run --release -p kcpx-examples --example http
In two terminals:
  cargo run --release -p kcpx-examples --example http -- server --listen 127.0.0.1:4001
  cargo run --release -p kcpx-examples --example http -- client http://127.0.0.1:4001

RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Serves until Ctrl-C: a greeting at /, and the SHA-256 of what is posted to /sha256
    Server {
        /// Address to listen on, as HOST:PORT; port 0 picks a free one
        #[arg(long, default_value = "127.0.0.1:4001")]
        listen: String,
    },
    /// Fetches the greeting, uploads data and checks the hashes
    Client {
        /// Address of the server, as http://HOST:PORT
        url: String,
        /// Uploads of 1 MB
        #[arg(long, default_value_t = 8)]
        uploads: u32,
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
        Some(Role::Client { url, uploads }) => fetch(&url, uploads).await,
        None => demo().await,
    }
}

async fn bind(addr: &str) -> Result<KcpListener> {
    KcpListener::bind_with(addr, config()).await.with_context(|| {
        format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:4001")
    })
}

async fn demo() -> Result<()> {
    let listener = bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("serving {url} over KCP");
    let endpoint = listener.endpoint().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(serve(listener, async { drop(stopped.await) }));

    fetch(&url, 8).await?;
    closed(&endpoint).await.context("the server")?;
    println!(
        "the server saw {} connection(s), all closed",
        endpoint.stats().connections.passive_opens
    );
    drop(stop);
    server.await?
}

/// An axum server as any other; only its listener is one of KCP.
async fn serve(
    listener: KcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let app = Router::new()
        .route("/", get(async || GREETING))
        .route("/sha256", post(async |body: Bytes| sha256(&body)));
    let endpoint = listener.endpoint().clone();
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    // The last bytes of the last responses have no kernel that delivers them.
    endpoint.wait_idle().await;
    Ok(())
}

async fn fetch(url: &str, uploads: u32) -> Result<()> {
    let root =
        url.parse().with_context(|| format!("the URL must be http://HOST:PORT, got {url:?}"));
    let root: Uri = checked(root);
    // With an endpoint of our own we can wait below until the connections are closed.
    let endpoint = bind_for_url(&root, config()).await?;
    let connector = KcpConnector::with_endpoint(endpoint.clone());
    let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);

    let response = client
        .get(root)
        .await
        .with_context(|| format!("no response from {url}; is the server running there?"))?;
    let version = response.version();
    ensure!(response.status().is_success(), "GET {url}/ was answered {}", response.status());
    let body = response.into_body().collect().await?.to_bytes();
    ensure!(body == GREETING, "another greeting than expected: {body:?}");
    println!("GET /          {version:?}, {:?}", GREETING.trim_end());

    for number in 0..uploads {
        let data = pseudo_random(number.into(), UPLOAD);
        let expected = sha256(&data);
        let request = hyper::Request::post(format!("{}/sha256", url.trim_end_matches('/')))
            .body(Full::from(data))?;
        let response = client.request(request).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "POST /sha256 was answered {status}");
        ensure!(answer == expected, "sent sha256 {expected}, the server got {answer:?}");
    }
    println!("POST /sha256   {uploads} uploads of {UPLOAD} bytes, every sha256 equal");

    // Dropping the client closes its connections, in tasks of its own.
    drop(client);
    closed(&endpoint).await.context("the client")
}
