//! The attacks, each against servers in processes of their own, with its law.

mod acks;
mod conv;
mod fec;
mod forged;
mod migration;
mod named_hosts;
mod observer;
pub(crate) mod packet_too_big;
mod replay;
mod report;
mod servers;
mod unvalidated;
mod validated;

use std::pin::Pin;
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
    for (name, attack) in attacks(setup) {
        if name.contains(&options.only) {
            let row = attack.await.unwrap_or_else(|error| Row::failed(name, &error));
            report::print(&row);
            held &= row.held();
        }
    }
    Ok(held)
}

type Attack = Pin<Box<dyn Future<Output = anyhow::Result<Row>>>>;

fn attacks(setup: Setup) -> Vec<(&'static str, Attack)> {
    vec![
        ("storm", Box::pin(forged::storm(setup))),
        ("replay aes-128-gcm", Box::pin(replay::everything("aes-128-gcm"))),
        ("replay chacha20-poly1305", Box::pin(replay::everything("chacha20-poly1305"))),
        ("replay aes-256", Box::pin(replay::everything("aes-256"))),
        ("replay xor", Box::pin(replay::everything("xor"))),
        ("memory", Box::pin(unvalidated::memory(setup))),
        ("initial", Box::pin(unvalidated::initial_segments(setup))),
        ("garbage", Box::pin(unvalidated::garbage(setup))),
        ("out-of-band", Box::pin(unvalidated::out_of_band(setup))),
        ("servers", Box::pin(servers::talk(setup))),
        ("echo host", Box::pin(named_hosts::echo(setup))),
        ("own address", Box::pin(named_hosts::own_address(setup))),
        ("stock capable", Box::pin(named_hosts::stock(setup, true, false))),
        ("stock validated", Box::pin(named_hosts::stock(setup, false, true))),
        ("stock plain", Box::pin(named_hosts::stock(setup, false, false))),
        ("shared source", Box::pin(named_hosts::shared_source())),
        ("fec", Box::pin(fec::forged_shards(setup))),
        ("migration", Box::pin(migration::candidates(setup))),
        ("fin", Box::pin(forged::far_fin())),
        ("rst", Box::pin(forged::resets(setup, "null"))),
        ("unsealed", Box::pin(forged::resets(setup, "aes-128-gcm"))),
        ("reflection null", Box::pin(forged::reflection(setup, "null"))),
        ("reflection aes-128-gcm", Box::pin(forged::reflection(setup, "aes-128-gcm"))),
        ("acks", Box::pin(acks::none(setup))),
        ("una", Box::pin(acks::una_alone(setup))),
        ("conv", Box::pin(conv::shared(setup))),
        ("packet-too-big", Box::pin(packet_too_big::forged(setup))),
        ("places", Box::pin(validated::places(setup))),
        ("windows", Box::pin(validated::windows(setup))),
        ("closed", Box::pin(validated::closed_windows(setup))),
        ("amplification", Box::pin(unvalidated::amplification(setup))),
    ]
}
