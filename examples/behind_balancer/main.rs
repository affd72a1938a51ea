//! A service behind a balancer: several servers that drain and restart, clients that reconnect.
//!
//! In four terminals: two servers, and the same client with each of them.
//!
//! ```sh
//! cargo build --release -p kcpx-examples --example behind_balancer
//! cd target/release/examples
//! ./behind_balancer server --id one --listen 127.0.0.1:4008 --health 127.0.0.1:9470
//! ./behind_balancer server --id two --listen 127.0.0.1:4009 --health 127.0.0.1:9471
//! ./behind_balancer client 127.0.0.1:4008 --connections 100 --for 60
//! ```
//!
//! **Drain.** Takes a server out of service for good; a balancer sees `/healthz` change first.
//!
//! ```sh
//! curl -i http://127.0.0.1:9470/healthz                      # 200, serving
//! kill -TERM PID                                             # no newcomers, the others finish
//! curl -i http://127.0.0.1:9470/healthz                      # 503, draining
//! curl http://127.0.0.1:9470/metrics | grep -e refused -e no_connection
//! ```
//!
//! **Restart without downtime.** Something that stays has the sockets: systemd (`ListenDatagram=` in a
//! `.socket` unit, `KillSignal=SIGHUP` in the `.service`), or here `supervise`. No client is refused: one
//! that connects during the restart waits in the socket's buffer, or sends its first datagram again.
//!
//! ```sh
//! ./behind_balancer supervise --listen 127.0.0.1:4008 -- --id one --health 127.0.0.1:9470
//! ./behind_balancer client 127.0.0.1:4008 --connections 200 --newcomers 20 --for 30
//! kill -HUP PID                                              # of supervise
//! ```
//!
//! A client prints each second:
//!
//! ```text
//! t=3 connected=200 reconnects=0 longest_gap_ms=4 servers=one bad_checksums=0
//! ```

mod client;
mod http;
#[path = "../common/log.rs"]
mod log;
mod server;
#[cfg(target_os = "linux")]
mod supervise;

#[path = "../common/exporter.rs"]
mod exporter;
#[path = "../common/signals.rs"]
mod signals;
#[path = "../common/usage.rs"]
mod usage;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

/// Bytes that a client sends, and gets back behind the id of the server.
const BLOCK: usize = 64;

/// A service behind a balancer: servers that drain and restart, clients that reconnect.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    Server(server::Args),
    Client(client::Args),
    #[cfg(target_os = "linux")]
    Supervise(supervise::Args),
}

fn main() -> Result<()> {
    log::to_stderr();
    let role = Args::parse().role;
    // It changes the environment, so before there are further threads.
    let inherited = server::inherited()?;
    let runtime = Runtime::new()?;
    // On a thread of the runtime: the main thread is none.
    runtime.block_on(async {
        match role {
            Role::Server(args) => tokio::spawn(server::run(args, inherited)).await?,
            Role::Client(args) => tokio::spawn(client::run(args)).await?,
            #[cfg(target_os = "linux")]
            Role::Supervise(args) => tokio::spawn(supervise::run(args)).await?,
        }
    })
}
