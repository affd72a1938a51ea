//! Attacks on endpoints of kcpx over loopback sockets, and honest traffic under floods.
//!
//! `attacks` runs each attack for some seconds and prints its cost beside the bound. `soak` has connections
//! of every kind send for hours while one flood after the other arrives, and counts lost connections, wrong
//! bytes and memory. `flood` is one flood in depth. Everything stays on loopback, with a limited rate and
//! time. It needs Linux: there all of 127/8 is loopback.

mod attacks;
mod flood;
mod forge;
mod forwarder;
mod honest;
mod os;
mod rng;
mod running;
mod server;
mod soak;
mod sources;

use clap::{Parser, Subcommand};

/// Attacks on endpoints of kcpx over loopback, each with its law.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Each attack for some seconds. Prints a table of figures and bounds; status 1 if a bound was
    /// missed.
    Attacks(attacks::Options),
    /// Honest traffic under one flood after the other. Status 1 if a connection was lost or a byte
    /// was wrong.
    Soak(soak::Options),
    /// A flood of initial segments beside a busy connection and clients that connect.
    Flood(flood::Options),
    /// Started by `attacks`: a server that ends with its standard input.
    #[command(hide = true)]
    Serve(server::Profile),
    /// Started by `attacks` in a network namespace.
    #[command(hide = true)]
    PacketTooBig {
        #[arg(long)]
        seconds: f64,
    },
}

fn main() -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mode = Args::parse().mode;
    let held = match mode {
        Mode::Attacks(options) => runtime.block_on(attacks::run(&options))?,
        Mode::Soak(options) => runtime.block_on(soak::run(&options))?,
        Mode::Flood(options) => runtime.block_on(flood::run(&options)).map(|()| true)?,
        Mode::PacketTooBig { seconds } => {
            runtime.block_on(attacks::packet_too_big::measure(seconds)).map(|()| true)?
        }
        Mode::Serve(profile) => server::run(&profile).map(|()| true)?,
    };
    runtime.shutdown_background();
    std::process::exit(i32::from(!held));
}
