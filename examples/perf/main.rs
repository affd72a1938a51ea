//! Measures KCP between two processes, or two machines, as iperf measures TCP.
//!
//! One server serves any number of clients. Each client announces its run on a stream of its own and asks
//! there for the server's counters (`wire.rs`), so that its report has both sides. The options of the link
//! have kcptun's names and are the proxy's, but for their defaults: nothing encrypted, no redundancy.
//! `client --help` has examples and explains workloads and figures.

mod args;
mod bulk;
mod client;
mod crowd;
mod latency;
#[path = "../common/log.rs"]
mod log;
mod meter;
mod plot;
mod report;
mod runs;
mod server;
mod system;
mod wire;

#[path = "../common/bind.rs"]
mod bind;
#[path = "../common/chart.rs"]
mod chart;
#[path = "../common/hash.rs"]
mod hash;
#[path = "../common/link.rs"]
mod link;
#[cfg(unix)]
#[path = "../common/process.rs"]
mod process;
#[path = "../common/signals.rs"]
mod signals;
#[path = "../common/usage.rs"]
mod usage;

use anyhow::Result;
use tokio::runtime::{Builder, Runtime};

use self::args::{Process, Role};

fn main() -> Result<()> {
    log::to_stderr();
    match args::parse() {
        Role::Server(args) => run(&start(&args.process)?, server::run(args)),
        Role::Client(args) => run(&start(&args.process)?, client::run(args)),
    }
}

/// A runtime with the CPU and the number of threads that the options set.
fn start(process: &Process) -> Result<Runtime> {
    // Before there are further threads: they inherit it.
    if let Some(cpu) = process.pin {
        system::pin(cpu)?;
    }
    let mut builder = match process.threads {
        Some(1) => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if let Some(threads) = process.threads {
        builder.worker_threads(threads.into());
    }
    Ok(builder.enable_all().build()?)
}

/// Runs a role on a thread of the runtime, which need not wake the main thread then.
fn run(runtime: &Runtime, role: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
    runtime.block_on(runtime.spawn(role))?
}
