//! A connection with two paths while one of them is cut, beside connections with one path.
//!
//! A client sends numbers to a server, one each 10 ms, over three connections at once: kcpx with two paths,
//! kcpx with one, TCP with one. The first cable between them then loses everything, which neither side is
//! told, and heals after a while. The table has the longest gap between two arrivals, the picture all gaps.
//!
//! Linux as root or with user namespaces has two network namespaces with two cables between them. Without
//! permission the cables are simulated on loopback, without TCP.

#[cfg(target_os = "linux")]
#[path = "../common/chart.rs"]
mod chart;
#[cfg(target_os = "linux")]
mod counter;
#[path = "../common/log.rs"]
mod log;
#[cfg(target_os = "linux")]
mod loopback;
#[cfg(target_os = "linux")]
mod network;
#[cfg(target_os = "linux")]
mod report;
#[path = "../common/usage.rs"]
mod usage;

use std::fs::File;
use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, value_parser};

/// Time between two numbers.
#[cfg(target_os = "linux")]
const INTERVAL: Duration = Duration::from_millis(10);

/// Cuts one of two paths, and shows how long each connection is silent: kcpx with two paths, with one, and TCP.
///
/// "Longest gap" is the longest time without a number at the server, which the client sends each 10 ms. "Sent
/// and arrived during the cut" counts the numbers that a connection delivered while the first path carried
/// nothing.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  cargo run --release -p kcpx-examples --example two_paths
  cargo run --release -p kcpx-examples --example two_paths -- --first 50 --second 150 --svg gaps.svg

On two real interfaces the system routes each path by its source address, here the one of LTE:
  ip route add default via 192.0.2.1 dev wwan0 table 2
  ip rule add from 192.0.2.7 table 2
The client then calls add_path with 192.0.2.7. RUST_LOG=kcpx=debug logs what the library does.")]
struct Args {
    /// Seconds for which numbers are sent
    #[arg(long, default_value_t = 12, value_parser = value_parser!(u64).range(2..=600))]
    seconds: u64,
    /// Second at which the first path is cut
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u64).range(1..))]
    cut_at: u64,
    /// Seconds until it carries packets again
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u64).range(1..=50))]
    cut_for: u64,
    /// Round-trip time of the first path in milliseconds
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u64).range(..=1_000))]
    first: u64,
    /// Round-trip time of the second path in milliseconds
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u64).range(..=1_000))]
    second: u64,
    /// File for the picture of all gaps
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Args {
    fn check(self) -> Result<Self> {
        let Self { seconds, cut_at, cut_for, first, second, .. } = self;
        ensure!(
            cut_at + cut_for < seconds,
            "--cut-at plus --cut-for must be below --seconds, which is {seconds}, got {}",
            cut_at + cut_for
        );
        // The connection with two paths is to use the one that is cut: the faster one.
        let least = (first + 10).max(first.div_ceil(3) * 4);
        ensure!(
            second >= least,
            "--second must be at least {least} ms, since data leaves on the faster path, got {second}"
        );
        if let Some(file) = &self.svg {
            File::create(file).with_context(|| {
                format!("--svg must be a file in a writable folder, got {}", file.display())
            })?;
        }
        Ok(self)
    }
}

#[cfg(target_os = "linux")]
fn main() -> Result<()> {
    use self::network::Network;

    log::to_stderr();
    let args = usage::checked(Args::parse().check());
    // Before other threads exist.
    let network = Network::new(&args);
    report::print_task(&args);
    if let Some(reason) = network.without_tcp() {
        println!(
            "no namespaces, so the cables are simulated on loopback and TCP is SKIPPED: {reason}"
        );
    }
    let outcome = network.run(&args)?;
    report::print(&args, &outcome)
}

#[cfg(not(target_os = "linux"))]
fn main() -> Result<()> {
    log::to_stderr();
    usage::checked(Args::parse().check());
    println!("SKIPPED: it needs Linux, for a second address and for network namespaces");
    Ok(())
}
