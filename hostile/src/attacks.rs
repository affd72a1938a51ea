//! The attacks, each against servers in processes of their own, with its law.

mod acks;
mod conv;
mod fec;
mod forged;
mod migration;
mod observer;
mod replay;
mod report;
mod servers;
mod unvalidated;

use std::time::Duration;

use clap::Args;

use self::report::Row;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Seconds of each attack.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Datagrams per second of a flood, at most 50,000.
    #[arg(long, default_value_t = 20_000)]
    rate: u64,
    /// Only attacks with this in their names.
    #[arg(long, default_value = "")]
    only: String,
}

/// How long and how much.
#[derive(Clone, Copy, Debug)]
struct Setup {
    time: Duration,
    rate: u64,
}

/// Prints a row for each attack. Returns whether all laws were held.
pub(crate) async fn run(options: &Options) -> anyhow::Result<bool> {
    let time = Duration::from_secs_f64(options.seconds.clamp(0.1, 600.0));
    let setup = Setup { time, rate: options.rate.min(50_000) };
    report::print_head();
    let mut held = true;
    macro_rules! attacks {
        ($($name:literal => $attack:expr),+ $(,)?) => {
            $(if $name.contains(&options.only) {
                let row: Row = $attack.await?;
                report::print(&row);
                held &= row.held();
            })+
        };
    }
    attacks! {
        "storm" => forged::storm(setup),
        "replay aes-128-gcm" => replay::everything(setup, "aes-128-gcm"),
        "replay chacha20-poly1305" => replay::everything(setup, "chacha20-poly1305"),
        "replay aes-256" => replay::everything(setup, "aes-256"),
        "replay xor" => replay::everything(setup, "xor"),
        "memory" => unvalidated::memory(setup),
        "initial" => unvalidated::initial_segments(setup),
        "garbage" => unvalidated::garbage(setup),
        "out-of-band" => unvalidated::out_of_band(setup),
        "servers" => servers::talk(setup),
        "fec" => fec::forged_shards(setup),
        "migration" => migration::candidates(setup),
        "fin" => forged::far_fin(setup),
        "reflection null" => forged::reflection(setup, "null"),
        "reflection aes-128-gcm" => forged::reflection(setup, "aes-128-gcm"),
        "acks" => acks::none(setup),
        "conv" => conv::shared(setup),
        "amplification" => unvalidated::amplification(setup),
    }
    Ok(held)
}
