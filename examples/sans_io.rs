//! Two KCP state machines in one thread: no socket, no runtime, no real clock.
//!
//! The state machine takes datagrams and the time as arguments and hands out datagrams and the next
//! deadline; everything else is up to the caller. Here the caller is a link that loses packets and
//! a clock that jumps from one event to the next, so seconds of virtual time take an instant, and
//! the same seed gives the same run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Parser;
use kcpx::proto::{Kcp, PacketType, Seed};
use kcpx::{Config, Timing};

/// Moves bytes between two KCP state machines over a simulated link.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  cargo run --release -p kcpx-examples --example sans_io
  cargo run --release -p kcpx-examples --example sans_io -- --loss 30 --rtt 200 --seed 7")]
struct Args {
    /// Bytes to move
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    bytes: u32,
    /// Datagrams that the link loses, in percent
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=90))]
    loss: u64,
    /// Round-trip time in milliseconds
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u64).range(..=10_000))]
    rtt: u64,
    /// Seed of the losses: the same seed gives the same run
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Datagrams under way: when each arrives (and a number, to keep equal times apart), at which of
/// the two ends, and its bytes.
#[derive(Default)]
struct Link {
    under_way: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sent: u64,
    lost: u64,
    random: u64,
}

impl Link {
    fn send(&mut self, args: &Args, now: Instant, to: usize, datagram: Vec<u8>) {
        self.sent += 1;
        if self.draw(100) < args.loss {
            self.lost += 1;
            return;
        }
        // Up to 2 ms of jitter, so datagrams overtake each other.
        let delay = Duration::from_micros(args.rtt * 500 + self.draw(2_000));
        self.under_way.insert((now + delay, self.sent), (to, datagram));
    }

    /// A number below `bound` (xorshift).
    fn draw(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) % bound
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut link = Link { random: args.seed.wrapping_mul(2).wrapping_add(1), ..Link::default() };
    let start = Instant::now();
    let mut now = start; // read once: from here on it only jumps

    let config = Config::new().timing(Timing::FAST3).windows(128, 1_024);
    let conv = 1; // both ends know it
    let mut ends = [
        Kcp::new(conv, &config, now, Seed::default())?,
        Kcp::new(conv, &config, now, Seed::default())?,
    ];

    let original: Bytes = (0..args.bytes).map(|i| (i % 251) as u8).collect();
    let mut unsent = original.clone();
    let mut received = Vec::new();

    loop {
        // The application: one end writes what the window admits, the other reads what is there.
        let capacity = ends[0].send_capacity().min(unsent.len());
        ends[0].send(now, unsent.split_to(capacity));
        while let Some(chunk) = ends[1].recv() {
            received.extend_from_slice(&chunk);
        }
        if received.len() == original.len() && ends[0].is_drained() {
            break;
        }

        for (from, end) in ends.iter_mut().enumerate() {
            let mut datagram = Vec::new();
            while end.poll_transmit(now, &mut datagram).is_some() {
                link.send(&args, now, 1 - from, std::mem::take(&mut datagram));
            }
            if let Some(error) = end.close_reason() {
                return Err(error).context("the connection ended early");
            }
        }
        if !unsent.is_empty() && ends[0].send_capacity() > 0 {
            continue; // what has left lets more be written
        }

        // The clock jumps to what happens next: a datagram arrives, or a timer is due.
        let arrival = link.under_way.first_key_value().map(|((at, _), _)| *at);
        let timers = ends.iter().filter_map(Kcp::poll_timeout);
        let next = arrival.into_iter().chain(timers).min();
        now = next.context("nothing left to wait for")?.max(now);
        while let Some(entry) = link.under_way.first_entry()
            && entry.key().0 <= now
        {
            let (to, datagram) = entry.remove();
            ends[to].input(now, &datagram, PacketType::Regular)?;
        }
        ends.iter_mut().for_each(|end| end.handle_timeout(now));
    }

    ensure!(received == original, "the bytes that arrived are not those that were sent");
    report(&ends[0], &link, received.len(), now - start);
    Ok(())
}

fn report(sender: &Kcp, link: &Link, bytes: usize, time: Duration) {
    let (stats, seconds) = (sender.stats(), time.as_secs_f64());
    println!("delivered    {bytes} bytes, all equal");
    println!("virtual time {seconds:.3} s, {:.2} MB/s", bytes as f64 / seconds / 1e6);
    println!("link         {} datagrams, {} lost, both directions", link.sent, link.lost);
    println!(
        "segments     {} sent, {} retransmitted ({:.1} %): {} fast, {} early, {} timed out",
        stats.sent.segments,
        stats.retransmits(),
        stats.retransmit_percent(),
        stats.retransmit.fast,
        stats.retransmit.early,
        stats.retransmit.timeout,
    );
    println!("             (a segment is retransmitted, too, if its acknowledgement was lost)");
    println!("round trip   {:.1} ms smoothed", stats.path.srtt.as_secs_f64() * 1e3);
}
