//! TCP, plain KCP and kcpx over the same bad link: a picture of how late each delivers messages.
//!
//! Each of the three has a link of its own with the same conditions and the same seed. With root or user
//! namespaces on Linux, a link is a pair of network namespaces, which the kernel's TCP crosses as the
//! others do. Elsewhere TCP is left out, and the link is a relay in this process.

#[path = "../../common/chart.rs"]
mod chart;
mod contender;
#[path = "../log.rs"]
mod log;
mod network;
#[path = "../options.rs"]
mod options;
mod picture;
#[path = "../progress.rs"]
mod progress;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::{Result, anyhow};
use kcpx_netem::Conditions;

use self::contender::{Board, Contender, Outcome};
use self::network::Network;
use self::options::Options;
use self::progress::Progress;

const HELP: &str = "\
Sends small messages over TCP, plain KCP and kcpx at the same time, each over a simulated bad link, and shows
how long the replies take: on the terminal, and as an SVG file. It takes half a minute.

usage: demo [options]

  --loss PERCENT     packets that the link loses, each way, 0 to 20 [default: 5]
  --rtt MS           round-trip time of the link, 0 to 1000 [default: 40]
  --messages N       messages that are measured, 100 a second, 100 to 10000 [default: 2000]
  --seed N           which packets are lost [default: 1]

A message has 256 bytes, and so has its reply. The messages of the first seconds are not measured.

  TCP        the kernel's, with TCP_NODELAY and the system's congestion control; Linux as root, or with user
             namespaces, else it is left out
  plain KCP  Timing::KCP_DEFAULT, the defaults of the original KCP, without redundancy
  kcpx       Config::interactive()

Examples:

  cargo run --release --example demo
  cargo run --release --example demo -- --loss 15 --rtt 150

RUST_LOG=kcpx=debug logs what the library does.
";

/// Bytes of a message and of its reply, and the time between two messages.
const MESSAGE: usize = 256;
const GAP: Duration = Duration::from_millis(10);
/// Messages before the measured ones: four seconds for kcpx to learn the loss.
const WARM_UP: u32 = 400;
/// Above these, this machine is too slow for the figures: lateness of its own timers at the 99th
/// percentile, and the percentage of packets that left the link late.
const LATE_TIMER: Duration = Duration::from_millis(5);
const LATE_PACKETS: f64 = 1.0;

#[derive(Clone, Copy)]
struct Args {
    link: Conditions,
    messages: u32,
    seed: u64,
}

fn main() -> Result<()> {
    let args = parse();
    // Before other threads exist.
    let network = Network::new();
    log::to_stderr();
    let rtt = 2 * args.link.delay;
    println!(
        "link       {} ms round trip, {} % lost each way, {} % delayed by up to {} ms more",
        rtt.as_millis(),
        args.link.loss,
        args.link.detours,
        args.link.detour.as_millis(),
    );
    println!(
        "messages   {} of {MESSAGE} bytes and their replies, 100 a second, after {WARM_UP} to warm up",
        args.messages,
    );
    if let Err(reason) = &network.tcp {
        println!("TCP        is left out: {reason}");
    }

    let outcomes = run(&network, args)?;
    println!();
    picture::print(rtt, &outcomes);
    println!("{}", verdict(&outcomes));
    match picture::save(args, &outcomes) {
        Ok(path) => println!("picture    {}", path.display()),
        Err(error) => println!("picture    is left out: {error:#}"),
    }
    Ok(())
}

fn parse() -> Args {
    let mut options = Options::new(HELP);
    let loss = options.number("--loss", 5, 0..=20);
    let rtt: u32 = options.number("--rtt", 40, 0..=1_000);
    let messages = options.number("--messages", 2_000, 100..=10_000);
    let seed = options.number("--seed", 1, 0..=u64::MAX);
    options.end();
    let delay = Duration::from_millis(rtt.into()) / 2;
    let link = Conditions { loss, delay, detours: 3, detour: Duration::from_millis(5) };
    Args { link, messages, seed }
}

/// Runs all contenders at the same time, and shows how far they are.
fn run(network: &Network, args: Args) -> Result<Vec<Outcome>> {
    let contenders: Vec<_> = Contender::ALL
        .into_iter()
        .filter(|contender| *contender != Contender::Tcp || network.tcp.is_ok())
        .collect();
    let boards: Vec<_> = contenders.iter().map(|_| Arc::new(Board::default())).collect();
    let total = u64::from(WARM_UP + args.messages) * contenders.len() as u64;
    let mut progress = Progress::new("replies", total);
    let outcomes = thread::scope(|scope| {
        let running: Vec<_> = contenders
            .iter()
            .zip(&boards)
            .map(|(contender, board)| scope.spawn(move || network.run(*contender, args, board)))
            .collect();
        while running.iter().any(|thread| !thread.is_finished()) {
            let replies = boards.iter().map(|board| board.replies.load(Relaxed)).sum();
            progress.show(replies, || {
                let latest = contenders.iter().zip(&boards).map(|(contender, board)| {
                    let micros = board.latest_micros.load(Relaxed);
                    format!("{} {}", contender.short_name(), micros.div_ceil(1_000))
                });
                latest.collect::<Vec<_>>().join(", ") + " ms"
            });
            sleep(Duration::from_millis(20));
        }
        let ends = running.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a contender panicked, see above")))
        });
        ends.collect()
    });
    progress.finish();
    outcomes
}

/// Whether this machine was fast enough for the figures to mean anything.
fn verdict(outcomes: &[Outcome]) -> String {
    let timers = outcomes.iter().map(|outcome| percentile(&outcome.timer_lateness, 0.99)).max();
    let timers = timers.unwrap_or_default();
    let packets = outcomes.iter().map(Outcome::late_packets).fold(0.0, f64::max);
    let late = format!(
        "{:.1} ms late at the 99th percentile, {packets:.1} % of the packets late",
        timers.as_secs_f64() * 1e3,
    );
    if timers > LATE_TIMER || packets > LATE_PACKETS {
        format!(
            "timers     {late}: this machine was too slow to tell,\n           \
             so end other programs and run it again"
        )
    } else {
        format!("timers     {late}: this machine was fast enough")
    }
}

/// The duration that this part of the sorted ones does not exceed.
fn percentile(sorted: &[Duration], part: f64) -> Duration {
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// How long all messages take to be sent.
fn duration(args: Args) -> Duration {
    GAP * (WARM_UP + args.messages)
}
