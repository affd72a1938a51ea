//! Carries TCP connections over KCP: a tunnel for any TCP service.
//!
//! One proxy stands beside the users of a service, the other beside the service. Each TCP
//! connection becomes a KCP connection of its own, so none of them waits for what another one
//! lost; all of them share one socket.
//!
//! ```sh
//! proxy server --listen 0.0.0.0:4006 --target 127.0.0.1:80 --key "a passphrase"
//! proxy client --listen 127.0.0.1:8388 --remote HOST:4006 --key "a passphrase"
//! ```
//!
//! `proxy` is `cargo run --release -p kcpx-examples --example proxy --`. Its options have kcptun's names and
//! most of its defaults. The other side must be this proxy too: it has neither kcptun's multiplexing nor its
//! compression. Ctrl-C or SIGTERM resets open connections, so that no user takes a part for the whole; a
//! second signal ends at once. Half of the CPUs have a worker thread; the variable `TOKIO_WORKER_THREADS`
//! changes that. Without a command it carries data between two proxies in this process.

#[path = "common/bind.rs"]
mod bind;
#[path = "common/hash.rs"]
mod hash;
#[path = "common/link.rs"]
mod link;
#[path = "common/log.rs"]
mod log;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/tunnel.rs"]
mod tunnel;
#[path = "common/usage.rs"]
mod usage;

use std::net::SocketAddr;
use std::{env, io, thread};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use kcpx::{Config, Endpoint, KcpListener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::runtime::{Builder, Runtime};

use self::bind::bind_for;
use self::hash::{pseudo_random, sha256};
use self::link::Link;
use self::usage::checked;

/// Carries TCP connections over KCP: one proxy beside the users of a TCP service, the other beside the
/// service. Without a command it carries data between two proxies in this process.
#[derive(Parser)]
#[command(after_help = "\
Example, with `proxy` for `cargo run --release -p kcpx-examples --example proxy --`:
  proxy server --listen 0.0.0.0:4006 --target 127.0.0.1:80 --key SECRET
  proxy client --listen 127.0.0.1:8388 --remote HOST:4006 --key SECRET

TOKIO_WORKER_THREADS sets the number of worker threads [default: half of the CPUs].
RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Takes TCP connections and carries them to a proxy server
    Client {
        /// Address for TCP connections, as HOST:PORT; port 0 picks a free one
        #[arg(long, short, default_value = "127.0.0.1:8388")]
        listen: String,
        /// Address of the proxy server, as HOST:PORT
        #[arg(long, short)]
        remote: String,
        #[command(flatten)]
        link: Link,
    },
    /// Takes KCP connections and carries each to the target
    Server {
        /// Address for KCP connections, as HOST:PORT; port 0 picks a free one
        #[arg(long, short, default_value = "0.0.0.0:4006")]
        listen: String,
        /// The TCP service behind the proxy, as HOST:PORT
        #[arg(long, short)]
        target: String,
        #[command(flatten)]
        link: Link,
    },
}

/// Has the number of worker threads, as for every program on Tokio.
const WORKER_THREADS: &str = "TOKIO_WORKER_THREADS";

fn main() -> Result<()> {
    log::to_stderr();
    let role = Args::parse().role;
    runtime()?.block_on(run(role))
}

/// With a worker thread for every second CPU, unless `TOKIO_WORKER_THREADS` has their number. The other CPUs
/// are for the kernel's side of both sockets and for the TCP users; and data that two workers exchange costs
/// more CPU time for each byte (docs/lab.md).
fn runtime() -> Result<Runtime> {
    let threads = match env::var_os(WORKER_THREADS) {
        None => thread::available_parallelism().map_or(1, |cpus| cpus.get().div_ceil(2)),
        Some(value) => value
            .to_str()
            .and_then(|text| text.parse().ok())
            .filter(|threads| *threads > 0)
            .with_context(|| {
                format!("{WORKER_THREADS} must be a number from 1 on, got {value:?}")
            })?,
    };
    Ok(Builder::new_multi_thread().worker_threads(threads).enable_all().build()?)
}

async fn run(role: Option<Role>) -> Result<()> {
    let interrupted = signals::interrupted();
    match role {
        Some(Role::Client { listen, remote, link }) => {
            let config = checked(link.config());
            let (endpoint, peer) = dialer(&remote, config).await?;
            let listener = TcpListener::bind(&listen).await.with_context(|| refused(&listen))?;
            println!("listening on {}", listener.local_addr()?);
            until(interrupted, tunnel::client(&listener, &endpoint, peer)).await?;
            endpoint.wait_idle().await;
        }
        Some(Role::Server { listen, target, link }) => {
            let config = checked(link.config());
            // Looked up again for each connection: its address may change.
            checked(find(&target).await);
            let listener =
                KcpListener::bind_with(&listen, config).await.with_context(|| refused(&listen))?;
            println!("listening on {}", listener.local_addr()?);
            until(interrupted, tunnel::server(&listener, &target)).await?;
            listener.wait_idle().await;
        }
        None => demo().await?,
    }
    Ok(())
}

fn refused(addr: &str) -> String {
    format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:8388")
}

/// An endpoint for connections with the proxy server, and its address.
async fn dialer(remote: &str, config: Config) -> Result<(Endpoint, SocketAddr)> {
    let peer = checked(find(remote).await);
    Ok((bind_for(peer, config).await?, peer))
}

/// The first address of a HOST:PORT.
async fn find(host: &str) -> Result<SocketAddr> {
    let mut found = lookup_host(host).await.with_context(|| {
        format!("cannot find {host:?}: write HOST:PORT with a known host, as in example.org:4006")
    })?;
    found.next().with_context(|| format!("{host:?} has no address"))
}

async fn until(
    interrupted: impl Future<Output = io::Result<()>>,
    proxy: impl Future<Output = Result<()>>,
) -> Result<()> {
    tokio::select! {
        ended = proxy => ended,
        interrupted = interrupted => Ok(interrupted?),
    }
}

/// The demonstration: TCP connections at once, and bytes on each of them.
const CONNECTIONS: u64 = 4;
const BYTES: usize = 16_000_000;

/// A TCP service, both proxies, and a client of the service: what it uploads comes back, over
/// several connections at once.
async fn demo() -> Result<()> {
    let link = Args::try_parse_from(["proxy", "server", "--target", "-", "--key", "a passphrase"])?;
    let Some(Role::Server { link, .. }) = link.role else { unreachable!("it was parsed as such") };
    let service = TcpListener::bind("127.0.0.1:0").await?;
    let target = service.local_addr()?.to_string();
    let far = KcpListener::bind_with("127.0.0.1:0", link.config()?).await?;
    let remote = far.local_addr()?;
    let (endpoint, peer) = dialer(&remote.to_string(), link.config()?).await?;
    let near = TcpListener::bind("127.0.0.1:0").await?;
    let addr = near.local_addr()?;
    println!("client -> TCP {addr} -> KCP {remote}, {} with FEC -> TCP {target}", link.crypt);

    let echo = async {
        loop {
            let (mut tcp, _) = service.accept().await?;
            tokio::spawn(async move {
                let (mut reader, mut writer) = tcp.split();
                tokio::io::copy(&mut reader, &mut writer).await?;
                writer.shutdown().await
            });
        }
    };
    let clients = async {
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..CONNECTIONS {
            clients.spawn(async move {
                let data = pseudo_random(number, BYTES);
                let (mut reader, mut writer) = TcpStream::connect(addr).await?.into_split();
                let mut back = Vec::new();
                let upload = async {
                    writer.write_all(&data).await?;
                    writer.shutdown().await
                };
                tokio::try_join!(upload, reader.read_to_end(&mut back))?;
                let (sent, received) = (sha256(&data), sha256(&back));
                ensure!(sent == received, "sent sha256 {sent}, got back {received}");
                anyhow::Ok(())
            });
        }
        while let Some(client) = clients.join_next().await {
            client??;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        ended = echo => ended,
        ended = tunnel::server(&far, &target) => ended.context("the server's side"),
        ended = tunnel::client(&near, &endpoint, peer) => ended.context("the client's side"),
        done = clients => done,
    }?;
    println!("{CONNECTIONS} connections, {BYTES} bytes each way on each, every sha256 equal");
    let stats = far.stats();
    println!(
        "{} connections from one socket, {} datagrams received, {} recovered by FEC",
        stats.connections.passive_opens, stats.received.datagrams, stats.fec.recovered_shards,
    );
    Ok(())
}
