//! The law: a sender uses a steady path fully, whatever happened before.
//!
//! Z draws a plan from each seed: ten seconds of disturbances, then a steady path. W draws steady paths from
//! a grid. V draws plans for two paths: one is steady at the end, and the other is dead, steady too, or changes
//! until the end. A flow that always has data must reach 0.85 of an ideal sender's rate (`ideal`), with few more
//! bytes and with short queues; on two paths the steady one alone gives the rate to reach.

use std::fmt;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use clap::value_parser;
use kcpx::testkit::link::{BurstDurations, CERTAIN, LinkConfig};
use kcpx::testkit::rng::Rng;
use kcpx::{AutoRedundancy, Config, Redundancy};

use crate::endpoint::Mode;
use crate::path::{IP_OVERHEAD, MILLIS, Path, SECOND};
use crate::simulation::{self, Change, Outcome, Second, Setup};
use crate::table;
use crate::workload::Workload;

/// Options of the cells Z, W and V.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LawOptions {
    /// Plans of Z, W and V
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = value_parser!(u64).range(1..))]
    plans: u64,
    /// Seed of the first plan of Z, W and V, decimal or 0x...; the others have the next ones
    #[arg(long, value_name = "SEED", default_value = "1", value_parser = seed)]
    first_plan: u64,
    /// CPU seconds after which Z, W and V start no further plans
    #[arg(long, value_name = "S")]
    cpu_seconds: Option<u64>,
    /// Percentage of the plans of Z, W and V that must keep the law; otherwise the bench fails
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = value_parser!(u8).range(0..=100))]
    floor: u8,
    /// Connections of Z, W and V, all on the same paths
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(1..=64))]
    connections: u16,
    /// Uses `Redundancy::Auto` in Z, W and V
    #[arg(long)]
    auto: bool,
    /// How the connections of V use their paths
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Mode::Standby)]
    mode: Mode,
    /// Prints each second of each plan of Z, W and V, and of each run of the other cells
    #[arg(long)]
    pub(crate) timeline: bool,
}

fn seed(text: &str) -> Result<u64, String> {
    let hex = text.strip_prefix("0x").map(|hex| u64::from_str_radix(hex, 16));
    let seed = hex.unwrap_or_else(|| text.parse());
    seed.map_err(|_| format!("{text} is no seed; use a number below 2^64, such as 7 or 0x2f"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Disturbed,
    Grid,
    TwoPaths,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Disturbed, Self::Grid, Self::TwoPaths];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Disturbed => "Z",
            Self::Grid => "W",
            Self::TwoPaths => "V",
        }
    }

    fn plan(self, seed: u64) -> Plan {
        match self {
            Self::Disturbed => Plan::disturbed(seed),
            Self::Grid => Plan::of_grid(seed),
            Self::TwoPaths => Plan::on_two_paths(seed),
        }
    }

    fn groups(self) -> impl Iterator<Item = &'static Group> {
        GROUPS.iter().chain((self == Self::TwoPaths).then_some(&OTHER_PATH))
    }

    /// Columns of the table, and the first words of their faults.
    fn faults(self) -> &'static [(&'static str, &'static str)] {
        if self == Self::TwoPaths { &FAULTS } else { &FAULTS[..3] }
    }
}

/// Payload of a full datagram, and length of its IP packet, bytes.
const PAYLOAD: f64 = 1_376.0;
const PACKET: f64 = 1_400.0 + IP_OVERHEAD as f64;
/// Wire bytes per delivered byte for full datagrams, and the tolerance.
const WIRE: (f64, f64) = (PACKET / PAYLOAD, 0.06);
/// Segments up to which automatic windows grow.
const LARGEST_WINDOW: u16 = 8_192;
/// Receive window of a stock receiver, segments.
const STOCK_WINDOW: u16 = 1_024;
/// Duration of the disturbances.
const DISTURBED: u64 = 10 * SECOND;
/// Time without losses before the disturbances of two paths, so that both are in use.
const CALM: u64 = 5 * SECOND;

const FAULTS: [(&str, &str); 4] = [
    ("too slow", "rate"),
    ("too many bytes", "wire"),
    ("queue too long", "wait"),
    ("stalls", "stall"),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    None,
    /// Percent.
    Independent(u32),
    /// Percent, and the mean length of a burst in packets.
    Bursts(u32, u32),
}

impl Loss {
    const ALL: [Self; 10] = [
        Self::None,
        Self::Independent(1),
        Self::Independent(5),
        Self::Independent(10),
        Self::Bursts(1, 3),
        Self::Bursts(5, 3),
        Self::Bursts(10, 3),
        Self::Bursts(1, 20),
        Self::Bursts(5, 20),
        Self::Bursts(10, 20),
    ];

    fn share(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Independent(percent) | Self::Bursts(percent, _) => f64::from(percent) / 100.0,
        }
    }

    /// A burst lasts as long as its packets take at `rate`, bits per second. A chain per packet would stay in
    /// its bad state while the sender is silent, unlike any path.
    fn apply(self, link: &mut LinkConfig, rate: f64) {
        (link.loss, link.burst_by_time) = (0, None);
        match self {
            Self::None => {}
            Self::Independent(percent) => link.loss = percent * CERTAIN / 100,
            Self::Bursts(percent, packets) => {
                let bad = (f64::from(packets) * PACKET * 8e6 / rate).max(1.0) as u64;
                let good = bad * u64::from(100 - percent) / u64::from(percent);
                link.burst_by_time = Some(BurstDurations { good, bad });
            }
        }
    }
}

/// The receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Kcpx,
    /// Time between ACKs, ms; 0: at once.
    Stock(u64),
}

impl Peer {
    const ALL: [Self; 4] = [Self::Kcpx, Self::Stock(0), Self::Stock(10), Self::Stock(100)];

    fn tick(self) -> u64 {
        match self {
            Self::Kcpx => 0,
            Self::Stock(millis) => millis * MILLIS,
        }
    }
}

/// A steady path, times in us.
#[derive(Clone, Copy, Debug)]
struct Steady {
    /// Bits per second.
    rate: f64,
    rtt: u64,
    /// Bytes.
    queue: u64,
    loss: Loss,
    /// Jitter of a round trip, half of it each way.
    jitter: u64,
}

impl Steady {
    fn new(rate: f64, rtt: u64, queue_bdp: f64, loss: Loss, jitter: u64) -> Self {
        let bdp = rate / 8.0 * rtt as f64 / 1e6;
        let least = (5.0 * PACKET).max(rate / 8.0 / 1e3);
        let queue = (queue_bdp * bdp).max(least) as u64;
        Self { rate, rtt, queue, loss, jitter }
    }

    /// Mean RTT of a single small datagram without a queue.
    fn lone_rtt(&self, peer: Peer) -> u64 {
        self.rtt + self.jitter / 2 + peer.tick() / 2
    }

    /// Transmission time of a full packet.
    fn packet_time(&self) -> f64 {
        PACKET * 8e6 / self.rate
    }

    fn links(&self) -> [LinkConfig; 2] {
        let mut link = LinkConfig::delay(self.rtt / 2);
        (link.jitter, link.keep_order) = (self.jitter / 2, true);
        self.loss.apply(&mut link, self.rate);
        let mut data = link.clone();
        data.rate = Some((self.rate / 8.0) as u64);
        data.queue = self.queue;
        // Without jitter, arrivals are in step with the queue.
        link.jitter = link.jitter.max(200.min(self.rtt / 8));
        [data, link]
    }
}

impl fmt::Display for Steady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, rtt, queue, loss, jitter } = self;
        write!(
            f,
            "{:.2} Mbit/s, RTT {:.1} ms, queue {:.0} ms ({} packets)",
            rate / 1e6,
            *rtt as f64 / 1e3,
            *queue as f64 * 8e3 / rate,
            queue / PACKET as u64
        )?;
        match loss {
            Loss::None => {}
            Loss::Independent(percent) => write!(f, ", loss {percent} %")?,
            Loss::Bursts(percent, packets) => {
                write!(f, ", loss {percent} % in bursts of {packets}")?
            }
        }
        if *jitter > 0 {
            write!(f, ", jitter {:.1} ms", *jitter as f64 / 1e3)?
        }
        Ok(())
    }
}

/// The path beside the steady one, once the disturbances are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    /// There is none.
    None,
    Dead,
    Steady,
    Changing,
}

impl Other {
    const ALL: [Self; 3] = [Self::Dead, Self::Steady, Self::Changing];
}

/// One run.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    steady: Steady,
    /// Index of its path.
    path: usize,
    other: Other,
    /// The other path, if it is [`Other::Steady`].
    second: Option<Steady>,
    peer: Peer,
    /// Segments; `None`: automatic.
    window: Option<u16>,
    /// Greatest lateness of the hosts' timers, us.
    late_timers: u64,
    /// The links of each path.
    initial: Vec<[LinkConfig; 2]>,
    changes: Vec<(u64, Change)>,
    /// When the path becomes steady.
    from: u64,
    end: u64,
    measured: u64,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?}, ", self.steady, self.peer)?;
        match self.window {
            Some(window) => write!(f, "window {window}")?,
            None => f.write_str("automatic windows")?,
        }
        if self.other != Other::None {
            write!(f, ", path {} beside a {:?} one", self.path, self.other)?;
        }
        if self.late_timers > 0 {
            write!(f, ", timers up to {:.1} ms late", self.late_timers as f64 / 1e3)?;
        }
        Ok(())
    }
}

fn log_uniform(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low * (high / low).powf(uniform(rng))
}

/// Uniform in [0, 1).
fn uniform(rng: &mut Rng) -> f64 {
    rng.below(1 << 20) as f64 / f64::from(1 << 20)
}

const WINDOWS: [Option<u16>; 3] = [None, Some(128), Some(1_024)];

impl Plan {
    fn disturbed(seed: u64) -> Self {
        let mut rng = Rng::keyed(seed, 37);
        let steady = Self::draw_path(&mut rng);
        let mut initial = Self::draw_path(&mut rng).links();
        let peer = rng.pick(&Peer::ALL);
        let window = rng.pick(&WINDOWS);
        let mut changes = Vec::new();
        for _ in 0..rng.range(1, 6) {
            Self::draw_change(&mut rng, window, 0, 0, &mut initial, &mut changes);
        }
        let plan = Self {
            seed,
            steady,
            path: 0,
            other: Other::None,
            second: None,
            peer,
            window,
            late_timers: Self::draw_late_timers(seed),
            initial: vec![initial],
            changes,
            from: DISTURBED,
            end: 0,
            measured: 0,
        };
        plan.ending()
    }

    fn on_two_paths(seed: u64) -> Self {
        let mut rng = Rng::keyed(seed, 40);
        let steady = Self::draw_path(&mut rng);
        let (path, other) = (rng.below(2) as usize, rng.pick(&Other::ALL));
        let window = rng.pick(&WINDOWS);
        let mut initial: Vec<_> = (0..2)
            .map(|_| Steady { loss: Loss::None, ..Self::draw_path(&mut rng) }.links())
            .collect();
        let mut changes = Vec::new();
        for _ in 0..rng.range(1, 10) {
            let path = rng.below(2) as usize;
            let links = &mut initial[path];
            Self::draw_change(&mut rng, window, path, CALM, links, &mut changes);
        }
        let second = (other == Other::Steady).then(|| Self::draw_path(&mut rng));
        let plan = Self {
            seed,
            steady,
            path,
            other,
            second,
            peer: Peer::Kcpx,
            window,
            late_timers: Self::draw_late_timers(seed),
            initial,
            changes,
            from: CALM + DISTURBED,
            end: 0,
            measured: 0,
        };
        let (mut plan, mut at) = (plan.ending(), CALM + DISTURBED);
        let mut links = |links| plan.changes.push((at, Change::Links(1 - path, Box::new(links))));
        match other {
            Other::None => {}
            Other::Dead => {
                links([(); 2].map(|()| LinkConfig { loss: CERTAIN, ..LinkConfig::default() }));
            }
            Other::Steady => links(second.unwrap_or(steady).links()),
            Other::Changing => {
                while at < plan.end {
                    let mut links = Self::draw_path(&mut rng).links();
                    // One in four passes nothing, in one direction or both.
                    for (i, link) in links.iter_mut().enumerate() {
                        let lost = rng.below(8);
                        link.loss = if lost == i as u64 || lost == 2 { CERTAIN } else { link.loss };
                    }
                    plan.changes.push((at, Change::Links(1 - path, Box::new(links))));
                    at += rng.range(100 * MILLIS, 3 * SECOND);
                }
            }
        }
        plan
    }

    /// The plan with the end of its disturbances at `from`, and the times that follow.
    fn ending(mut self) -> Self {
        let Self { from, steady, .. } = self;
        self.changes.retain(|(at, _)| *at < from);
        let calm = [Change::Runs(0, true), Change::Runs(1, true), Change::Reads(true)];
        self.changes.push((from, Change::Links(self.path, Box::new(steady.links()))));
        self.changes.extend(self.window.map(|window| (from, Change::Windows(window))));
        self.changes.extend(calm.map(|change| (from, change)));
        let steady = [Some(steady), self.second].into_iter().flatten();
        let longest = |time: fn(&Steady, Peer) -> u64| {
            steady.clone().map(|path| time(&path, self.peer)).max().unwrap_or_default()
        };
        let t = longest(|path, peer| path.lone_rtt(peer));
        let segment = longest(|path, _| path.packet_time() as u64);
        self.end = from + (15 * SECOND).max(60 * t);
        let span = (5 * SECOND).max(20 * t).max(200 * segment).min(self.end - from);
        self.measured = self.end - span;
        self
    }

    /// The same plan with the steady path alone.
    fn alone(&self) -> Self {
        let changes = self.changes.iter().cloned().filter_map(|(at, change)| match change {
            Change::Links(path, links) => {
                (path == self.path).then_some((at, Change::Links(0, links)))
            }
            change => Some((at, change)),
        });
        let (changes, initial) = (changes.collect(), vec![self.initial[self.path].clone()]);
        Self { path: 0, other: Other::None, second: None, initial, changes, ..self.clone() }
    }

    /// The plan by which a run is judged. Of two steady paths it is the one with data, unless its round trip is
    /// longer by more than the sender leaves a path for: Standby chooses by round trip, not by rate.
    fn judged(&self, timeline: &[Second]) -> Self {
        let near = |path: &Steady, other: &Steady| path.rtt <= other.rtt * 4 / 3 + 5 * MILLIS;
        match &self.second {
            Some(second) if near(second, &self.steady) && self.share_of_path(timeline) < 0.5 => {
                let (steady, second) = (*second, Some(self.steady));
                Self { path: 1 - self.path, steady, second, ..self.clone() }
            }
            _ => self.clone(),
        }
    }

    /// Share of the measured seconds that began with data on the steady path.
    fn share_of_path(&self, timeline: &[Second]) -> f64 {
        let seconds = timeline.iter().filter(|second| second.at >= self.measured);
        let on_path = seconds.clone().filter(|second| usize::from(second.path) == self.path);
        on_path.count() as f64 / seconds.count().max(1) as f64
    }

    fn draw_path(rng: &mut Rng) -> Steady {
        let rate = log_uniform(rng, 0.5e6, 200e6);
        let rtt = log_uniform(rng, 400.0, 600_000.0) as u64;
        let queue = log_uniform(rng, 0.1, 4.0);
        let (loss, jitter) = (rng.pick(&Loss::ALL), rng.pick(&[0, rtt / 4, rtt]));
        Steady::new(rate, rtt, queue, loss, jitter)
    }

    fn draw_change(
        rng: &mut Rng,
        window: Option<u16>,
        path: usize,
        from: u64,
        initial: &mut [LinkConfig; 2],
        changes: &mut Vec<(u64, Change)>,
    ) {
        let at = from + rng.below(DISTURBED);
        let until = at + rng.range(10 * MILLIS, 3 * SECOND);
        let mut links = Self::draw_path(rng).links();
        match rng.below(8) {
            0 | 1 => {}
            2 => links.iter_mut().for_each(|link| {
                (link.reorder, link.reorder_by) = (CERTAIN / 20, 20 * MILLIS);
            }),
            3 => links.iter_mut().for_each(|link| {
                (link.duplicate, link.copies, link.copy_delay) = (CERTAIN / 10, 1, 10 * MILLIS);
            }),
            4 => links[1].loss = 60 * CERTAIN / 100,
            5 => {
                let side = rng.below(3);
                for (i, link) in initial.iter_mut().chain(&mut links).enumerate() {
                    if side == 2 || side == (i % 2) as u64 {
                        link.partitions.push((at, until));
                    }
                }
            }
            6 => {
                let end = rng.below(2) as usize;
                changes.push((at, Change::Runs(end, false)));
                changes.push((until, Change::Runs(end, true)));
                return;
            }
            _ => {
                changes.push((at, Change::Reads(false)));
                changes.push((until, Change::Reads(true)));
                changes.extend(window.map(|_| (at, Change::Windows(rng.range(32, 512) as u16))));
                return;
            }
        }
        changes.push((at, Change::Links(path, Box::new(links))));
    }

    fn of_grid(seed: u64) -> Self {
        let mut rng = Rng::keyed(seed, 38);
        let rate = rng.pick(&[1e6, 5e6, 20e6, 100e6, 1_000e6]);
        let rtt = rng.pick(&[400, 2_000, 10_000, 50_000, 200_000, 600_000]);
        let queue = rng.pick(&[0.1, 0.25, 1.0, 4.0]);
        let (loss, jitter) = (rng.pick(&Loss::ALL), rng.pick(&[0, rtt / 4, rtt]));
        let steady = Steady::new(rate, rtt, queue, loss, jitter);
        let (peer, window) = (rng.pick(&Peer::ALL), rng.pick(&WINDOWS));
        let (initial, end) = (vec![steady.links()], 30 * SECOND);
        let measured = if rate > 500e6 { 25 * SECOND } else { 10 * SECOND };
        let (late_timers, changes) = (Self::draw_late_timers(seed), Vec::new());
        let (path, other, second, from) = (0, Other::None, None, 0);
        Self {
            seed,
            steady,
            path,
            other,
            second,
            peer,
            window,
            late_timers,
            initial,
            changes,
            from,
            end,
            measured,
        }
    }

    fn draw_late_timers(seed: u64) -> u64 {
        Rng::keyed(seed, 39).pick(&[0, 0, MILLIS, 5 * MILLIS / 2])
    }

    /// Returns the plan by which it is judged, too.
    fn run(&self, options: &LawOptions) -> Result<(Self, Figures), String> {
        let &LawOptions { connections, auto, mode, .. } = options;
        let mut config = Config::new();
        if auto {
            config = config.redundancy(Redundancy::Auto(AutoRedundancy::new()));
        }
        if let Some(window) = self.window {
            config = config.windows(window, window);
        }
        let path = |links| Path { name: String::new(), links, loss_steps: Vec::new() };
        let paths: Vec<_> = self.initial.iter().cloned().map(path).collect();
        let outcome = simulation::run(&Setup {
            seed: self.seed,
            paths: &paths,
            mode,
            config,
            window: self.window,
            fec: None,
            repair_rate: 0,
            bundling_rate: 0,
            stock_server: self.peer != Peer::Kcpx,
            ack_tick: Some(self.peer.tick()).filter(|tick| *tick > 0),
            late_timers: Some(self.late_timers),
            changes: self.changes.clone(),
            flows: vec![(Workload::Bulk, 0); connections.into()],
            separate: false,
            farther: 0,
            end: self.end,
            measured: self.measured..self.end,
            early_until: 0,
        })?;
        let plan = self.judged(&outcome.timeline);
        let mut figures = Figures::of(&plan, connections, outcome);
        if plan.other != Other::None && !figures.faults.is_empty() {
            figures.alone = Some(Box::new(plan.alone().run(options)?.1));
        }
        Ok((plan, figures))
    }

    /// Bytes per second that ideal senders deliver.
    fn ideal(&self, loss: f64, connections: u16) -> f64 {
        let Steady { rate, rtt, jitter, .. } = self.steady;
        let capacity = rate / 8.0 * PAYLOAD / PACKET * (1.0 - loss);
        // A stock receiver's window does not grow.
        let largest = if self.peer == Peer::Kcpx { LARGEST_WINDOW } else { STOCK_WINDOW };
        let window = self.window.unwrap_or(largest);
        let least = rtt as f64 + self.peer.tick() as f64 / 2.0;
        let spacing = self.steady.packet_time().max(least / f64::from(window));
        let t = (least + 2.0 * mean_ordered_jitter(jitter as f64 / 2.0, spacing)) / 1e6;
        let window_rate = window_share(window, loss) * f64::from(window) * PAYLOAD / t;
        capacity.min(window_rate * f64::from(connections))
    }
}

/// Mean delay from jitter of up to `most` that keeps the order, for packets at this spacing.
fn mean_ordered_jitter(most: f64, spacing: f64) -> f64 {
    let mut rng = Rng::new(1);
    let (mut latest, mut sum) = (0.0_f64, 0.0);
    for i in 0..2_000 {
        let at = f64::from(i) * spacing;
        latest = latest.max(at + most * uniform(&mut rng));
        sum += latest - at;
    }
    sum / 2_000.0
}

/// Share of a window per round trip that an ideal sender delivers: it finds each loss at once, and waits for
/// the oldest segment.
fn window_share(window: u16, loss: f64) -> f64 {
    if loss == 0.0 {
        return 1.0;
    }
    let mut rng = Rng::new(2);
    let ppm = (loss * f64::from(CERTAIN)) as u32;
    let window = u64::from(window);
    let rounds = (400_000 / window).max(60);
    // Arrival slot of each segment from the oldest on. A round trip has `window` slots.
    let mut arrives = std::collections::VecDeque::<u64>::new();
    let (mut una, mut nxt) = (0_u64, 0_u64);
    for slot in 0..rounds * window {
        while arrives.front().is_some_and(|at| *at <= slot) {
            arrives.pop_front();
            una += 1;
        }
        // One segment leaves per slot, plus those that the window held back.
        while nxt < una + window {
            let mut at = slot + window;
            while rng.chance(ppm) {
                at += window;
            }
            arrives.push_back(at);
            nxt += 1;
        }
    }
    una as f64 / ((rounds - 1) * window) as f64
}

/// Figures of one plan.
#[derive(Debug)]
struct Figures {
    /// Relative to the ideal.
    goodput: f64,
    wire: f64,
    /// us, p95.
    wait: u64,
    /// From the end of the disturbances until the rate was reached, us.
    returned: Option<u64>,
    /// Violations of the law.
    faults: Vec<String>,
    /// Share of the measured seconds that began with data on the steady path.
    on_path: f64,
    /// With violations on two paths: the figures of the steady path alone.
    alone: Option<Box<Self>>,
    timeline: Vec<Second>,
}

/// Least number of packets on a path whose losses are counted.
const LEAST_OFFERED: f64 = 100.0;
/// Least goodput relative to the ideal.
const LEAST: f64 = 0.85;

impl Figures {
    /// Whether goodput and liveness keep the law.
    fn is_live(&self) -> bool {
        let is_live = |fault: &String| !fault.starts_with("rate") && !fault.starts_with("stall");
        self.faults.iter().all(is_live)
    }

    /// The figures of the steady path alone, for display.
    fn alone_text(&self) -> String {
        let Some(alone) = &self.alone else { return String::new() };
        let on_path = self.on_path * 100.0;
        let Self { goodput, wire, .. } = **alone;
        format!("; {on_path:.0} % of the time on it; alone: rate {goodput:.2}, wire {wire:.2}")
    }

    fn of(plan: &Plan, connections: u16, outcome: Outcome) -> Self {
        let Outcome { before, after, waits, progress, timeline, .. } = outcome;
        let read =
            |counters: &simulation::Counters| counters.received.iter().map(|(n, _)| n).sum::<u64>();
        let useful = (read(&after) - read(&before)) as f64;
        // Bursts are uneven, so the losses of the measured time count, unless hardly a packet took the path.
        let [lost, offered] =
            [0, 1].map(|i| (after.lost[plan.path][i] - before.lost[plan.path][i]) as f64);
        let lost = if offered < LEAST_OFFERED { 0.0 } else { lost / offered };
        let share = lost.max(plan.steady.loss.share());
        let ideal = plan.ideal(share, connections);
        let seconds = (plan.end - plan.measured) as f64 / 1e6;
        let goodput = useful / seconds / ideal;
        let wire = (after.ip_bytes - before.ip_bytes) as f64 / useful.max(1.0);
        let wait = waits[plan.path].p95;
        let Steady { loss, rate, queue, .. } = plan.steady;
        let t = plan.steady.lone_rtt(plan.peer);
        // A few packets always queue, since ACKs and timers work in whole milliseconds.
        let longest = t.max(10 * MILLIS).max((5.0 * PACKET * 8e6 / rate) as u64);
        let buffer = queue as f64 * 8e6 / rate;
        let mut faults = Vec::new();
        let least = if plan.from == 0 && loss.share() > 0.0 { 0.8 } else { LEAST };
        if goodput < least {
            faults.push(format!("rate {goodput:.2} of {:.2} Mbit/s", ideal * 8e-6));
        }
        let limit = WIRE.0 / (1.0 - share) + WIRE.1;
        if wire > limit {
            faults.push(format!("wire {wire:.2}, {limit:.2} allowed"));
        }
        if wait > longest && buffer > longest as f64 && plan.from > 0 {
            faults.push(format!("wait {} ms, {} allowed", wait / MILLIS, longest / MILLIS));
        }
        // Within a second, or the time of five round trips or 50 segments.
        let span = SECOND.max(5 * t).max((PACKET * 400e6 / rate) as u64);
        if plan.other != Other::None {
            let stall = longest_stall(&progress, plan.measured, plan.end);
            if stall > span {
                faults.push(format!("stall {} ms, {} allowed", stall / MILLIS, span / MILLIS));
            }
        }
        let after = progress.iter().filter(|(at, _)| *at >= plan.from);
        let returned = after.clone().find_map(|&(at, read)| {
            let (_, before) = *progress.iter().rev().find(|(then, _)| then + span <= at)?;
            let reached = (read - before) as f64 / (span as f64 / 1e6) >= LEAST * ideal;
            (reached && at >= plan.from + span).then(|| at - plan.from)
        });
        let on_path = plan.share_of_path(&timeline);
        Self { goodput, wire, wait, returned, faults, on_path, alone: None, timeline }
    }
}

/// The longest time from `from` to `end` during which nothing was read.
fn longest_stall(progress: &[(u64, u64)], from: u64, end: u64) -> u64 {
    let (mut longest, mut since, mut latest) = (0, from, None);
    for &(at, read) in progress.iter().filter(|(at, _)| (from..end).contains(at)) {
        if latest != Some(read) {
            (latest, since) = (Some(read), at);
        }
        longest = longest.max(at - since);
    }
    longest.max(end - since)
}

/// Runs the plans, and prints those that break the law. Returns whether enough keep it.
pub(crate) fn judge(kind: Kind, options: &LawOptions) -> Result<bool> {
    let (next, began) = (AtomicU64::new(0), Instant::now());
    let done: Mutex<Vec<(Plan, Figures)>> = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || -> Result<(), String> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let spent = began.elapsed().as_secs() * threads as u64;
            if index >= options.plans || options.cpu_seconds.is_some_and(|most| spent >= most) {
                return Ok(());
            }
            let seed = options.first_plan.wrapping_add(index);
            let plan = kind.plan(seed);
            let (plan, figures) = catch_unwind(|| plan.run(options)).map_err(|_| {
                format!("a plan panicked: `{} --first-plan {seed} --plans 1`", kind.name())
            })??;
            let mut done = done.lock().map_err(|_| "another plan panicked".to_owned())?;
            if stderr().is_terminal() {
                eprint!("\r\x1b[K[{}/{}]", done.len() + 1, options.plans);
                let _ = stderr().flush();
            }
            if !figures.faults.is_empty() {
                let start = if stderr().is_terminal() { "\r\x1b[K" } else { "" };
                eprintln!(
                    "{start}{} seed {}: {plan}: {}{}",
                    kind.name(),
                    plan.seed,
                    figures.faults.join("; "),
                    figures.alone_text()
                );
            }
            if options.timeline {
                print_timeline(&plan, &figures);
            }
            done.push((plan, figures));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow!("a plan panicked"))?.map_err(|error| anyhow!(error))
        })
    })?;
    let done = done.into_inner().map_err(|_| anyhow!("a plan panicked"))?;
    print(kind, options, &done);
    let kept = done.iter().filter(|(_, figures)| figures.faults.is_empty()).count();
    Ok(!done.is_empty() && kept * 100 >= done.len() * usize::from(options.floor))
}

fn print_timeline(plan: &Plan, figures: &Figures) {
    println!("\nSeed {}: {plan}", plan.seed);
    for (at, change) in &plan.changes {
        println!("{:>6.2} s  {change:?}", *at as f64 / 1e6);
    }
    table::print_timeline(&figures.timeline);
}

/// Checks that the same plan gives the same figures.
pub(crate) fn test(options: &LawOptions) -> Result<()> {
    for plan in [Plan::disturbed(1), Plan::of_grid(2), Plan::on_two_paths(3)] {
        let once = || {
            plan.run(options)
                .map(|(_, figures)| format!("{figures:?}"))
                .map_err(|error| anyhow!(error))
        };
        let (first, second) = (once()?, once()?);
        ensure!(first == second, "seed {}: {first}\nand then\n{second}", plan.seed);
    }
    Ok(())
}

/// A name, and whether a plan with these figures is in the list.
type List = (&'static str, fn(&Figures) -> bool);

/// Prints the seeds of the plans on two paths that break the law.
fn print_broken(done: &[(Plan, Figures)]) {
    let lists: [List; 3] = [
        ("Too slow or stalling, but live on the steady path alone", |figures| {
            !figures.is_live() && figures.alone.as_ref().is_some_and(|alone| alone.is_live())
        }),
        ("Too slow or stalling in both cases", |figures| {
            !figures.is_live() && figures.alone.as_ref().is_some_and(|alone| !alone.is_live())
        }),
        ("Other faults only", |figures| figures.is_live() && !figures.faults.is_empty()),
    ];
    println!();
    for (name, is_in) in lists {
        let listed = done.iter().filter(|(_, figures)| is_in(figures));
        let mut seeds: Vec<_> = listed.map(|(plan, _)| plan.seed).collect();
        seeds.sort_unstable();
        let list = seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        println!("{name}: {} plans; seeds {list}.", seeds.len());
    }
}

type Group = (&'static str, fn(&Plan) -> String);

const GROUPS: [Group; 6] = [
    ("rate, Mbit/s", |plan| decade(plan.steady.rate / 1e6)),
    ("RTT, ms", |plan| decade(plan.steady.rtt as f64 / 1e3)),
    ("loss", |plan| format!("{:?}", plan.steady.loss)),
    ("jitter / RTT", |plan| format!("{:.2}", plan.steady.jitter as f64 / plan.steady.rtt as f64)),
    ("peer", |plan| format!("{:?}", plan.peer)),
    ("window", |plan| format!("{:?}", plan.window)),
];

const OTHER_PATH: Group = ("other path", |plan| format!("{:?}", plan.other));

fn decade(value: f64) -> String {
    let low = 10_f64.powf((value.log10() * 2.0).floor() / 2.0);
    format!("{low:.1} to {:.1}", low * 10_f64.sqrt())
}

fn print(kind: Kind, options: &LawOptions, done: &[(Plan, Figures)]) {
    let broken = |figures: &Figures| !figures.faults.is_empty();
    println!(
        "{}: {} plans from seed {:#x} on: {} keep the law.\n",
        kind.name(),
        done.len(),
        options.first_plan,
        done.iter().filter(|(_, figures)| !broken(figures)).count()
    );
    let columns = kind.faults().iter().map(|(name, _)| *name);
    let columns: Vec<_> = ["draws", "plans"].into_iter().chain(columns).collect();
    println!("| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
    for (name, group) in kind.groups() {
        let mut groups = std::collections::BTreeMap::<String, Vec<usize>>::new();
        for (plan, figures) in done {
            let counts = groups.entry(group(plan)).or_insert_with(|| vec![0; columns.len() - 1]);
            counts[0] += 1;
            for (count, (_, word)) in counts[1..].iter_mut().zip(kind.faults()) {
                *count += usize::from(figures.faults.iter().any(|fault| fault.starts_with(word)));
            }
        }
        for (value, counts) in groups {
            let counts = counts.iter().map(usize::to_string).collect::<Vec<_>>();
            println!("| {name} {value} | {} |", counts.join(" | "));
        }
    }
    if kind == Kind::TwoPaths {
        print_broken(done);
    }
    let slowest =
        done.iter().filter_map(|(plan, figures)| Some((figures.returned?, plan.seed))).max();
    if let Some((time, seed)) = slowest {
        println!("\nSlowest return: {:.1} s, seed {seed}.", time as f64 / 1e6);
    }
    let by_wire = |a: &&(Plan, Figures), b: &&(Plan, Figures)| a.1.wire.total_cmp(&b.1.wire);
    if let Some((plan, figures)) = done.iter().max_by(by_wire) {
        println!("Most bytes: {:.2} on the wire per byte, seed {}.", figures.wire, plan.seed);
    }
    let by_rate = |a: &&(Plan, Figures), b: &&(Plan, Figures)| a.1.goodput.total_cmp(&b.1.goodput);
    if let Some((plan, figures)) = done.iter().min_by(by_rate) {
        println!(
            "Least rate: {:.2} of the ideal, wait {} us, seed {}.",
            figures.goodput, figures.wait, plan.seed
        );
    }
}
