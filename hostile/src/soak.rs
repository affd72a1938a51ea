//! Honest traffic for hours, under one flood after the other.

mod floods;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use kcpx::crypto::{Algorithm, Cipher};
use kcpx::fec::FecConfig;
use kcpx::{Config, EndpointStats};

use self::floods::{Flood, Sender};
use crate::forwarder::{Conditions, Forwarder};
use crate::honest::{self, Tally};
use crate::os;
use crate::running::Running;
use crate::server::{Server, Service};

/// What the paced connection sends, bytes per second: 10 Mbit/s.
const PACED: u64 = 1_250_000;
/// What the connections with FEC and under the cipher send, bytes per second.
const PACED_BESIDE: u64 = 125_000;
#[derive(Args)]
pub(crate) struct Options {
    /// How long, in minutes.
    #[arg(long, default_value_t = 120.0)]
    minutes: f64,
    /// Datagrams of a flood per second, at most 50,000.
    #[arg(long, default_value_t = 5_000)]
    rate: u64,
    /// Seconds of each flood.
    #[arg(long, default_value_t = 60.0)]
    phase: f64,
}

/// The servers under attack and the paths to them that an attacker can inject into.
struct World {
    plain: Server,
    fec: Server,
    sealed: Server,
    greeting: Server,
    /// They serve nobody: an attacker makes them talk to each other.
    _pair: [Server; 2],
    between_servers: Forwarder,
    plain_path: Forwarder,
    fec_path: Forwarder,
    sealed_path: Forwarder,
    sealed_config: Config,
}

impl World {
    async fn start() -> anyhow::Result<Self> {
        let recording = 2_048;
        let cipher = Cipher::new(Algorithm::Aes128Gcm, &[7; 16])?;
        let sealed_config = Config::new().cipher(cipher);
        let plain = Server::start(Config::new(), Service::Echo)?;
        let fec = Server::start(fec_config()?, Service::Echo)?;
        let sealed = Server::start(sealed_config.clone(), Service::Echo)?;
        let greeting = Server::start(Config::new(), Service::Greeting)?;
        let pair = [
            Server::start(Config::new(), Service::Echo)?,
            Server::start(Config::new(), Service::Echo)?,
        ];
        let [one, other] = [pair[0].addr, pair[1].addr];
        let clean = Conditions { recording, ..Conditions::default() };
        let lossy = Conditions { loss_permille: 10, ..clean };
        Ok(Self {
            between_servers: Forwarder::between(one, other, Conditions::default()).await?,
            _pair: pair,
            plain_path: Forwarder::start(plain.addr, clean).await?,
            fec_path: Forwarder::start(fec.addr, lossy).await?,
            sealed_path: Forwarder::start(sealed.addr, clean).await?,
            plain,
            fec,
            sealed,
            greeting,
            sealed_config,
        })
    }

    /// Starts the honest clients.
    fn populate(&self, tally: &Arc<Tally>) -> anyhow::Result<()> {
        let (plain, sealed) = (Config::new, || self.sealed_config.clone());
        let (by_plain, by_fec) = (self.plain_path.addr()?, self.fec_path.addr()?);
        let by_sealed = self.sealed_path.addr()?;
        let paced = |name, addr, config, rate| {
            tokio::spawn(honest::paced(name, addr, config, rate, tally.clone()))
        };
        paced("paced", by_plain, plain(), PACED);
        paced("with FEC", by_fec, fec_config()?, PACED_BESIDE);
        paced("under a cipher", by_sealed, sealed(), PACED_BESIDE);
        tokio::spawn(honest::messages("messages", self.plain.addr, plain(), tally.clone()));
        for (addr, config) in [(self.plain.addr, plain()), (self.sealed.addr, sealed())] {
            tokio::spawn(honest::connects(addr, config, tally.clone()));
        }
        Ok(())
    }
}

fn fec_config() -> anyhow::Result<Config> {
    Ok(Config::new().fec(FecConfig::new(10, 3)?))
}

/// Returns whether no connection was lost and no byte was wrong.
pub(crate) async fn run(options: &Options) -> anyhow::Result<bool> {
    let world = World::start().await?;
    let tally = Tally::new();
    world.populate(&tally)?;
    let start = Instant::now();
    let end = Duration::from_secs_f64(options.minutes * 60.0);
    let phase = Duration::from_secs_f64(options.phase.max(0.1));
    print_row(&COLUMNS.map(|(title, _)| title.to_owned()));
    let mut memory = Memory::default();
    let mut turn = 0;
    while start.elapsed() < end {
        let flood = Flood::ALL[turn % Flood::ALL.len()];
        let left = end.saturating_sub(start.elapsed());
        let rate = options.rate.min(50_000);
        let counted = one_phase(&world, &tally, flood, rate, phase.min(left)).await?;
        let time = format!("{:.0}", start.elapsed().as_secs_f64());
        print_row(&[&[time], &counted[..]].concat());
        memory.add(turn / Flood::ALL.len(), start.elapsed(), os::resident_kib());
        turn += 1;
    }
    let (lost, wrong) = (tally.lost.load(Ordering::Relaxed), tally.wrong.load(Ordering::Relaxed));
    println!(
        "{:.2} h: {lost} connections lost, {wrong} reads wrong, {} MB echoed, {} connects served, {} failed",
        start.elapsed().as_secs_f64() / 3_600.0,
        tally.echoed.load(Ordering::Relaxed) / 1_000_000,
        tally.served.load(Ordering::Relaxed),
        tally.failed.load(Ordering::Relaxed),
    );
    memory.print();
    Ok(lost == 0 && wrong == 0)
}

/// Title and width of each column.
const COLUMNS: [(&str, usize); 13] = [
    ("time/s", 6),
    ("flood", 22),
    ("sent/s", 7),
    ("RSS/KiB", 8),
    ("lost", 5),
    ("wrong", 5),
    ("connects", 8),
    ("failed", 6),
    ("longest/ms", 10),
    ("echo/ms", 8),
    ("MB back", 8),
    ("out/in", 6),
    ("cores", 6),
];

fn print_row(cells: &[String]) {
    let cells = cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}"));
    println!("{}", cells.collect::<Vec<_>>().join(" "));
}

/// What is counted over one flood, except its time.
async fn one_phase(
    world: &World,
    tally: &Tally,
    flood: Flood,
    rate: u64,
    time: Duration,
) -> anyhow::Result<Vec<String>> {
    let counters = || {
        [&tally.lost, &tally.wrong, &tally.served, &tally.failed, &tally.echoed]
            .map(|counter: &AtomicU64| counter.load(Ordering::Relaxed))
    };
    let before = counters();
    let (greeting, cpu) = (world.greeting.stats(), os::process_cpu_time());
    tally.take_longest();
    let mut sender = Sender::new(world)?;
    let rate = if flood == Flood::None { 0 } else { rate };
    let (start, running) = (Instant::now(), Running::start(rate, move || sender.send(flood)));
    tokio::time::sleep(time).await;
    let sent = running.stop()?;
    let seconds = start.elapsed().as_secs_f64();
    let (connect, echo) = tally.take_longest();
    let after = counters();
    let [lost, wrong, served, failed, echoed] =
        std::array::from_fn(|index| after[index] - before[index]);
    Ok(vec![
        flood.name().to_owned(),
        format!("{:.0}", sent as f64 / seconds),
        os::resident_kib().to_string(),
        lost.to_string(),
        wrong.to_string(),
        served.to_string(),
        failed.to_string(),
        format!("{:.1}", connect.as_secs_f64() * 1e3),
        format!("{:.1}", echo.as_secs_f64() * 1e3),
        format!("{:.1}", echoed as f64 / 1e6),
        if matches!(flood, Flood::Amplification | Flood::All) {
            amplification(&greeting, &world.greeting.stats())
        } else {
            "-".to_owned()
        },
        format!("{:.2}", (os::process_cpu_time() - cpu).as_secs_f64() / seconds),
    ])
}

/// Bytes out per byte in of a server that only the attacker sends to.
fn amplification(before: &EndpointStats, after: &EndpointStats) -> String {
    let received = after.received_bytes - before.received_bytes;
    if received == 0 {
        return "-".to_owned();
    }
    format!("{:.2}", (after.sent_bytes - before.sent_bytes) as f64 / received as f64)
}

/// Resident memory at the end of each flood.
#[derive(Default)]
struct Memory(Vec<(usize, Duration, u64)>);

impl Memory {
    fn add(&mut self, round: usize, time: Duration, kib: u64) {
        self.0.push((round, time, kib));
    }

    /// The highest of each round, and the growth per hour from the second round on: until then,
    /// tables grow to their bounds.
    fn print(&self) {
        let rounds = self.0.last().map_or(0, |last| last.0 + 1);
        let highest: Vec<_> = (0..rounds)
            .map(|round| {
                let of_round = self.0.iter().filter(|sample| sample.0 == round);
                of_round.map(|sample| sample.2).max().unwrap_or(0)
            })
            .collect();
        println!("memory, highest of each round, KiB: {highest:?}");
        let later: Vec<_> = self.0.iter().filter(|sample| sample.0 > 0).collect();
        match slope_per_hour(&later) {
            Some(growth) => println!("memory from the second round on: {growth:+.0} KiB per hour"),
            None => println!("memory: too short for a growth per hour"),
        }
    }
}

/// Least squares.
fn slope_per_hour(samples: &[&(usize, Duration, u64)]) -> Option<f64> {
    let count = samples.len() as f64;
    let hours = |sample: &(usize, Duration, u64)| sample.1.as_secs_f64() / 3_600.0;
    let mean_time = samples.iter().map(|sample| hours(sample)).sum::<f64>() / count;
    let mean_kib = samples.iter().map(|sample| sample.2 as f64).sum::<f64>() / count;
    let mut covariance = 0.0;
    let mut variance = 0.0;
    for sample in samples {
        let time = hours(sample) - mean_time;
        covariance += time * (sample.2 as f64 - mean_kib);
        variance += time * time;
    }
    (samples.len() > 2 && variance > 0.0).then(|| covariance / variance)
}
