//! An echo server over KCP with metrics for Prometheus.
//!
//! Beside the KCP listener a small HTTP server on TCP answers `/metrics` with the counters of the endpoint
//! and its connections. Take `common/exporter.rs` into a program of your own.

#[path = "common/exporter.rs"]
mod exporter;
#[path = "common/hash.rs"]
mod hash;
#[path = "common/log.rs"]
mod log;
#[path = "common/signals.rs"]
mod signals;

use std::io::ErrorKind;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use clap::{Parser, Subcommand};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use kcpx::{Config, KcpListener, KcpStream, Timing};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use self::exporter::Exporter;
use self::hash::{pseudo_random, sha256};

/// Bytes read at once.
const BLOCK: usize = 64 * 1024;
/// Bytes that the demo and the client send to the echo.
const BYTES: usize = 4_000_000;

/// An echo server over KCP with metrics for Prometheus; without a command, a server and a client
/// in this process.
#[derive(Parser)]
#[command(after_help = "\
Both sides in one process:
  cargo run --release -p kcpx-examples --example metrics
In three terminals:
  cargo run --release -p kcpx-examples --example metrics -- server --listen 127.0.0.1:4011 --metrics 127.0.0.1:9464
  cargo run --release -p kcpx-examples --example metrics -- client 127.0.0.1:4011
  curl http://127.0.0.1:9464/metrics

RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Sends back what its clients send, until Ctrl-C
    Server {
        /// Address for KCP, as HOST:PORT; port 0 picks a free one
        #[arg(long, default_value = "127.0.0.1:4011")]
        listen: String,
        /// Address of /metrics over plain HTTP, as HOST:PORT; port 0 picks a free one
        #[arg(long, default_value = "127.0.0.1:9464")]
        metrics: String,
    },
    /// Sends data to the echo and checks what comes back
    Client {
        /// Address of the server, as HOST:PORT
        addr: String,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    log::to_stderr();
    match Args::parse().role {
        Some(Role::Server { listen, metrics }) => {
            let interrupted = signals::interrupted();
            let server = Server::bind(&listen, &metrics).await?;
            println!("listening on {}", server.kcp.local_addr()?);
            println!("metrics at http://{}/metrics", server.tcp.local_addr()?);
            let endpoint = server.kcp.endpoint().clone();
            tokio::select! {
                served = server.run() => served?,
                interrupted = interrupted => interrupted?,
            }
            endpoint.wait_idle().await;
        }
        Some(Role::Client { addr }) => close(exchange(&addr).await?).await?,
        None => demo().await?,
    }
    Ok(())
}

fn config() -> Config {
    Config::new().timing(Timing::FAST3)
}

async fn demo() -> Result<()> {
    let server = Server::bind("127.0.0.1:0", "127.0.0.1:0").await?;
    let (addr, http) = (server.kcp.local_addr()?, server.tcp.local_addr()?);
    println!("echo at {addr} over KCP, metrics at http://{http}/metrics");
    let client = async {
        let stream = exchange(&addr.to_string()).await?;
        let text = scrape(&http.to_string()).await?;
        let labels = format!("{{peer=\"{}\",conv=\"{}\"}}", peer(&stream)?, stream.conv());
        for (name, expected) in [
            ("kcpx_current_connections".to_owned(), 1),
            ("kcpx_passive_opens_total".to_owned(), 1),
            (format!("kcpx_connection_received_bytes_total{labels}"), BYTES as u64),
            (format!("kcpx_connection_sent_bytes_total{labels}"), BYTES as u64),
        ] {
            let value = text.lines().find_map(|line| line.strip_prefix(&name)).map(str::trim);
            let value: u64 = value.with_context(|| format!("no {name} in:\n{text}"))?.parse()?;
            ensure!(value == expected, "{name} is {value}, not {expected}");
        }
        print!("{text}");
        close(stream).await
    };
    tokio::select! {
        served = server.run() => served.context("the server"),
        done = client => done,
    }
}

struct Server {
    kcp: KcpListener,
    tcp: TcpListener,
}

impl Server {
    async fn bind(listen: &str, metrics: &str) -> Result<Self> {
        let hint = "expected a free HOST:PORT, as in 127.0.0.1:4011";
        let kcp = KcpListener::bind_with(listen, config()).await;
        let tcp = TcpListener::bind(metrics).await;
        Ok(Self {
            kcp: kcp.with_context(|| format!("cannot listen on {listen:?}: {hint}"))?,
            tcp: tcp.with_context(|| format!("cannot listen on {metrics:?}: {hint}"))?,
        })
    }

    async fn run(self) -> Result<()> {
        let exporter = Arc::new(Exporter::new(self.kcp.endpoint().clone()));
        let mut registry = Registry::with_prefix("kcpx");
        registry.register_collector(Box::new(exporter.clone()));
        let registry = Arc::new(registry);
        let app = Router::new().route("/metrics", get(async move || exporter::render(&registry)));
        tokio::select! {
            served = axum::serve(self.tcp, app) => Ok(served?),
            served = serve(&self.kcp, &exporter) => served,
        }
    }
}

async fn serve(listener: &KcpListener, exporter: &Exporter) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = listener.accept().await.context("the endpoint has ended")?;
        while connections.try_join_next().is_some() {}
        let stream = Arc::new(stream);
        exporter.add(&stream);
        connections.spawn(async move {
            if let Err(error) = echo(&stream).await {
                println!("{peer}: {error}");
            }
        });
    }
}

/// Through a shared reference, since the exporter reads the same stream.
async fn echo(stream: &KcpStream) -> std::io::Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        stream.readable().await?;
        let count = match stream.try_read(&mut block) {
            // Dropping the stream ends the other direction and delivers what is left.
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let mut rest = &block[..count];
        while !rest.is_empty() {
            stream.writable().await?;
            match stream.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sends data to the echo and compares what comes back.
async fn exchange(addr: &str) -> Result<KcpStream> {
    let mut stream = KcpStream::connect_with(addr, config()).await.with_context(|| {
        format!("cannot connect to {addr:?}: start the server there, or correct HOST:PORT")
    })?;
    let (data, mut back) = (pseudo_random(3, BYTES), vec![0; BYTES]);
    let (mut reader, mut writer) = stream.split();
    tokio::try_join!(writer.write_all(&data), reader.read_exact(&mut back))
        .with_context(|| format!("no echo from {addr}; is the server running there?"))?;
    let (sent, received) = (sha256(&data), sha256(&back));
    ensure!(sent == received, "sent sha256 {sent}, got back {received}");
    println!("echoed {BYTES} bytes, sha256 equal: {received}");
    Ok(stream)
}

/// The address that the server sees this stream at.
fn peer(stream: &KcpStream) -> Result<std::net::SocketAddr> {
    Ok((std::net::Ipv4Addr::LOCALHOST, stream.local_addr()?.port()).into())
}

async fn close(mut stream: KcpStream) -> Result<()> {
    let endpoint = stream.endpoint();
    stream.shutdown().await?;
    drop(stream);
    endpoint.wait_idle().await;
    Ok(())
}

/// The text for Prometheus.
async fn scrape(addr: &str) -> Result<String> {
    let tcp = TokioIo::new(TcpStream::connect(addr).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(tcp).await?;
    tokio::spawn(connection);
    let request = hyper::Request::get("/metrics").header("host", addr);
    let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    let status = response.status();
    ensure!(status.is_success(), "/metrics was answered {status}");
    let body = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(body.to_vec())?)
}
