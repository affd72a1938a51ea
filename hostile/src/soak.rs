//! Honest traffic for hours, under one flood after the other.

mod floods;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use kcpx::crypto::{Algorithm, Cipher};
use kcpx::fec::FecConfig;
use kcpx::{Config, EndpointStats, Redundancy};

use self::floods::{Flood, Sender};
use crate::forwarder::{Conditions, Forwarder};
use crate::honest::{self, Tally};
use crate::os;
use crate::running::Running;
use crate::server::{Server, Service};

/// Bytes per second of the paced connection: 10 Mbit/s.
const PACED: u64 = 1_250_000;
/// Bytes per second of the connections with FEC and under the cipher.
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
    /// They have no clients: an attacker makes them talk to each other.
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
    Ok(Config::new().redundancy(Redundancy::Fec(FecConfig::new(10, 3)?)))
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
        memory.add(Sample {
            round: turn / Flood::ALL.len(),
            time: start.elapsed(),
            resident_kib: os::resident_kib(),
            heap_kib: os::heap_kib(),
        });
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
const COLUMNS: [(&str, usize); 14] = [
    ("time/s", 6),
    ("flood", 22),
    ("sent/s", 7),
    ("RSS/KiB", 8),
    ("heap/KiB", 8),
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

/// The counters over one flood, except its time.
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
        os::heap_kib().to_string(),
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
    let received = after.received.bytes - before.received.bytes;
    if received == 0 {
        return "-".to_owned();
    }
    format!("{:.2}", (after.sent.bytes - before.sent.bytes) as f64 / received as f64)
}

/// Memory at the end of a flood.
struct Sample {
    /// How often all floods had their turn before.
    round: usize,
    time: Duration,
    resident_kib: u64,
    heap_kib: u64,
}

#[derive(Default)]
struct Memory(Vec<Sample>);

impl Memory {
    fn add(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    fn print(&self) {
        self.print_one("resident memory", |sample| sample.resident_kib);
        self.print_one("heap in use", |sample| sample.heap_kib);
    }

    /// The highest of each round, and the growth per hour from the second round on: until then,
    /// tables grow to their bounds.
    fn print_one(&self, name: &str, kib: impl Fn(&Sample) -> u64) {
        let rounds = self.0.chunk_by(|sample, next| sample.round == next.round);
        let highest: Vec<_> =
            rounds.clone().map(|round| round.iter().map(&kib).max().unwrap_or(0)).collect();
        println!("{name}, highest of each round, KiB: {highest:?}");
        // All samples would be wrong: within a round each flood has a level of its own.
        let ends = rounds.filter_map(|round| Some(round.last()?.time.as_secs_f64() / 3_600.0));
        let highest = highest.iter().map(|kib| *kib as f64);
        let later: Vec<_> = ends.zip(highest).skip(1).collect();
        match slope(&later) {
            Some(growth) => println!("{name} from the second round on: {growth:+.0} KiB per hour"),
            None => println!("{name}: too short for a growth per hour"),
        }
    }
}

/// Least squares: how much the second of each pair grows with the first.
fn slope(samples: &[(f64, f64)]) -> Option<f64> {
    let count = samples.len() as f64;
    let mean_x = samples.iter().map(|sample| sample.0).sum::<f64>() / count;
    let mean_y = samples.iter().map(|sample| sample.1).sum::<f64>() / count;
    let mut covariance = 0.0;
    let mut variance = 0.0;
    for (x, y) in samples {
        covariance += (x - mean_x) * (y - mean_y);
        variance += (x - mean_x) * (x - mean_x);
    }
    (samples.len() > 2 && variance > 0.0).then(|| covariance / variance)
}
