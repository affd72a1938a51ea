//! The cells: a path, a redundancy plan, the workloads, and the goal.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use kcpx::{AutoRedundancy, Config, CongestionControl, FecConfig, Redundancy};
use serde::Serialize;

use crate::endpoint::Mode;
use crate::figures::{Figures, Goal, Measure};
use crate::path::{MILLIS, Path, SECOND, part_of_120};
use crate::simulation::{self, Setup};
use crate::table;
use crate::workload::Workload;

/// Protection against loss in addition to retransmission, the same at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Plan {
    None,
    #[serde(rename = "fec_10_3")]
    Fec10x3,
    #[serde(rename = "fec_5_2")]
    Fec5x2,
    #[serde(rename = "fec_64_10")]
    Fec64x10,
    #[serde(rename = "fec_3_2")]
    Fec3x2,
    #[serde(rename = "fec_2_1")]
    Fec2x1,
    /// Repair symbols of the sliding-window code, percent of the data.
    Repair(u32),
    /// Copies in datagrams with newer segments, percent of the data.
    Bundling(u32),
    /// Repair symbols, or copies to a stock receiver, as the losses require, with this limit of wire bytes
    /// per 1,000 bytes.
    Auto(u16),
    /// `Config::interactive`.
    Interactive,
    /// `Config::bulk`.
    Bulk,
    /// `Config::for_link` with 20 Mbit/s and 50 ms.
    Link,
    /// The same with ten times the rate.
    LinkTooLarge,
    /// A message of 1 KiB leaves in two segments.
    #[serde(rename = "fec_6_2_mtu_544")]
    Fec6x2Halves,
    #[serde(rename = "fec_10_4_mtu_544")]
    Fec10x4Halves,
}

impl Plan {
    /// Plans for messages of a low rate.
    const INTERACTIVE: [Self; 3] = [Self::None, Self::Fec10x3, Self::Fec5x2];
    const FEC_INTERACTIVE: [Self; 4] =
        [Self::Fec10x3, Self::Fec5x2, Self::Fec6x2Halves, Self::Fec10x4Halves];
    /// Layouts towards kcp-go.
    const FEC_STOCK: [Self; 6] = [
        Self::Fec10x3,
        Self::Fec5x2,
        Self::Fec3x2,
        Self::Fec2x1,
        Self::Fec6x2Halves,
        Self::Fec10x4Halves,
    ];
    /// Repair rates for losses of 1, 5, 10 and 20 %.
    const REPAIRS: [Self; 4] =
        [Self::Repair(25), Self::Repair(40), Self::Repair(50), Self::Repair(60)];

    /// The settings of the preset, or the defaults.
    fn preset(self) -> Config {
        let link = |mbit: u64| Config::for_link(mbit * 1_000_000, Duration::from_millis(50));
        match self {
            Self::Interactive => Config::interactive(),
            Self::Bulk => Config::bulk(),
            Self::Link => link(20),
            Self::LinkTooLarge => link(200),
            _ => Config::new(),
        }
    }

    /// The repair rate per million.
    fn repair_rate(self) -> u32 {
        match self {
            Self::Repair(percent) => percent * 10_000,
            _ => 0,
        }
    }

    /// The rate of bundled copies per million.
    fn bundling_rate(self) -> u32 {
        match self {
            Self::Bundling(percent) => percent * 10_000,
            _ => 0,
        }
    }

    /// The MTU, if not the default: FEC header, segment header and half a message.
    fn mtu(self) -> Option<u16> {
        matches!(self, Self::Fec6x2Halves | Self::Fec10x4Halves).then_some(8 + 24 + 512)
    }

    fn fec(self) -> Option<FecConfig> {
        match self {
            Self::None | Self::Repair(_) | Self::Bundling(_) | Self::Auto(_) => None,
            Self::Interactive | Self::Bulk | Self::Link | Self::LinkTooLarge => None,
            Self::Fec10x3 => Some(FecConfig::SHORT),
            Self::Fec5x2 => Some(FecConfig::new(5, 2).expect("a valid layout")),
            Self::Fec64x10 => Some(FecConfig::BULK),
            Self::Fec3x2 => Some(FecConfig::new(3, 2).expect("a valid layout")),
            Self::Fec2x1 => Some(FecConfig::new(2, 1).expect("a valid layout")),
            Self::Fec6x2Halves => Some(FecConfig::new(6, 2).expect("a valid layout")),
            Self::Fec10x4Halves => Some(FecConfig::new(10, 4).expect("a valid layout")),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repair(percent) => return write!(f, "repair {percent} %"),
            Self::Bundling(percent) => return write!(f, "bundling {percent} %"),
            Self::Auto(limit) => return write!(f, "auto, {:.2}", f64::from(*limit) / 1e3),
            Self::Interactive => return f.write_str("interactive"),
            Self::Bulk => return f.write_str("bulk"),
            Self::Link => return f.write_str("for_link"),
            Self::LinkTooLarge => return f.write_str("for_link of 200 Mbit/s"),
            _ => {}
        }
        let Some(fec) = self.fec() else { return f.write_str("none") };
        write!(f, "FEC {}/{}", fec.data_shards(), fec.parity_shards())?;
        self.mtu().map_or(Ok(()), |mtu| write!(f, ", MTU {mtu}"))
    }
}

/// Send and receive windows of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Windows {
    /// The default: 1,024 segments that grow.
    Automatic,
    /// In segments.
    Fixed(u16),
}

impl Windows {
    const ALL: [Self; 2] = [Self::Automatic, Self::Fixed(1_024)];
}

impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Automatic => f.write_str("automatic windows"),
            Self::Fixed(segments) => write!(f, "windows of {segments}"),
        }
    }
}

/// Congestion control of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Congestion {
    /// The default configuration's.
    Default,
    Disabled,
    Model,
}

impl Congestion {
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Default => None,
            Self::Disabled => Some("disabled"),
            Self::Model => Some("model"),
        }
    }

    /// The configuration with this congestion control.
    fn apply(self, config: Config) -> Config {
        match self {
            Self::Default => config,
            Self::Disabled => config.congestion_control(CongestionControl::Off),
            Self::Model => config.congestion_control(CongestionControl::Bbr),
        }
    }
}

/// Duration of a cell, and its measured part.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Span {
    /// 600 s, or 12 s with bulk; measured from second 6 on.
    Messages,
    /// 12 s; measured from the start of the last connection on.
    Bulk,
    /// 40 s; the last connection begins halfway, and the last quarter is measured.
    Late,
    /// 40 s; the last three quarters are measured.
    Settled,
    /// 120 s; this part of the run, in ppm, is measured.
    Part(Range<u64>),
    /// This many seconds, all measured.
    Whole(u64),
}

/// One row of a table.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) name: &'static str,
    pub(crate) path: Path,
    /// The second path, and how both are used.
    beside: Option<Path>,
    pub(crate) mode: Mode,
    /// The workload, if it is not the usual one.
    note: String,
    pub(crate) plan: Plan,
    pub(crate) windows: Windows,
    pub(crate) congestion: Congestion,
    /// Whether the receiver is a stock receiver, such as kcp-go with ACKs without delay.
    stock_server: bool,
    flows: Vec<Workload>,
    /// Whether the connections belong to different hosts, and the additional one-way delay of the last one,
    /// us.
    separate: bool,
    farther: u64,
    span: Span,
    pub(crate) goal: Goal,
}

impl Cell {
    fn messages(name: &'static str, path: Path, plan: Plan) -> Self {
        Self {
            name,
            path,
            beside: None,
            mode: Mode::Standby,
            note: String::new(),
            plan,
            windows: Windows::Automatic,
            congestion: Congestion::Default,
            stock_server: false,
            flows: vec![Workload::MESSAGES],
            separate: false,
            farther: 0,
            span: Span::Messages,
            goal: Goal::default(),
        }
    }

    fn bulk(name: &'static str, path: Path, windows: Windows, flows: usize) -> Self {
        let note = if flows > 1 { format!("{flows} connections") } else { String::new() };
        let flows = vec![Workload::Bulk; flows];
        let base = Self::messages(name, path, Plan::None);
        Self { note, windows, flows, span: Span::Bulk, ..base }
    }

    /// The same on two paths.
    fn beside(self, beside: Path, mode: Mode) -> Self {
        Self { beside: Some(beside), mode, ..self }
    }

    fn goal<const N: usize>(self, bounds: [(Measure, f64); N]) -> Self {
        Self { goal: Goal::new(bounds), ..self }
    }

    /// The same row with each congestion control.
    fn with_each_congestion(self) -> impl Iterator<Item = Self> {
        [Congestion::Disabled, Congestion::Model]
            .into_iter()
            .map(move |congestion| Self { congestion, ..self.clone() })
    }

    fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Path, workload, and measured part of a run of this many seconds, for display.
    pub(crate) fn description(&self, seconds: u64) -> String {
        let names = self.paths().map(|path| &path.name[..]).collect::<Vec<_>>();
        let mut parts = vec![names.join(" beside ")];
        if !self.note.is_empty() {
            parts.push(self.note.clone());
        }
        if let Span::Part(part) = &self.span {
            // To a tenth of a second.
            let second = |ppm: u64| ((seconds * ppm) as f64 / 1e5).round() / 10.0;
            parts.push(format!("seconds {} to {}", second(part.start), second(part.end)));
        }
        parts.join(", ")
    }

    /// Plan or use of the paths, windows if relevant, and congestion control.
    pub(crate) fn variant(&self) -> String {
        let plan = self.plan.to_string();
        let mut parts = vec![if self.has_two_paths() { self.mode.to_string() } else { plan }];
        if self.has_bulk() {
            parts.push(self.windows.to_string());
        }
        parts.extend(self.congestion.name().map(str::to_owned));
        parts.join(", ")
    }

    /// Whether it belongs in the table of bulk transfers.
    pub(crate) fn has_bulk(&self) -> bool {
        self.flows.contains(&Workload::Bulk)
    }

    pub(crate) fn has_two_paths(&self) -> bool {
        self.beside.is_some()
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.path].into_iter().chain(&self.beside)
    }

    /// Virtual seconds of a run if none were given.
    fn default_seconds(&self) -> u64 {
        match self.span {
            Span::Messages if self.has_bulk() => 12,
            Span::Messages => 600,
            Span::Bulk => 12,
            Span::Late | Span::Settled => 40,
            Span::Part(_) => 120,
            Span::Whole(seconds) => seconds,
        }
    }

    /// Virtual seconds of a run.
    pub(crate) fn seconds(&self, asked: Option<u64>) -> u64 {
        asked.unwrap_or_else(|| self.default_seconds())
    }

    /// Runs the cell with each of the seeds.
    ///
    /// # Errors
    ///
    /// When messages are not delivered.
    pub(crate) fn run(
        &self,
        seconds: u64,
        seeds: Range<u64>,
        timeline: bool,
    ) -> Result<Vec<Figures>, String> {
        seeds
            .map(|seed| {
                let paths: Vec<_> = self.paths().map(|path| path.at_seed(seed)).collect();
                let setup = self.setup(&paths, seconds * SECOND, seed);
                let outcome = simulation::run(&setup)?;
                if timeline {
                    println!("\n{}, seed {seed}", self.description(seconds));
                    table::print_timeline(&outcome.timeline);
                }
                let figures = Figures::of(&setup, &outcome);
                if !(self.has_two_paths() && self.has_bulk()) {
                    return Ok(figures);
                }
                let each = paths.iter().map(|path| {
                    let setup = self.setup(std::slice::from_ref(path), seconds * SECOND, seed);
                    simulation::run(&setup).map(|outcome| Figures::of(&setup, &outcome).bulk_mbit)
                });
                let each = each.collect::<Result<Vec<_>, _>>()?;
                let alone_mbit = each.into_iter().flatten().max_by(f64::total_cmp);
                Ok(Figures { alone_mbit, ..figures })
            })
            .collect()
    }

    fn setup<'a>(&self, paths: &'a [Path], end: u64, seed: u64) -> Setup<'a> {
        let mut config = self.congestion.apply(self.plan.preset());
        if let Plan::Auto(limit) = self.plan {
            let auto = AutoRedundancy::new().max_overhead(f64::from(limit) / 1e3);
            config = config.redundancy(Redundancy::Auto(auto));
        }
        if let Some(mtu) = self.plan.mtu() {
            config = config.mtu(mtu);
        }
        let window = match self.windows {
            Windows::Automatic => None,
            Windows::Fixed(segments) => Some(segments),
        };
        if let Some(segments) = window {
            config = config.windows(segments, segments);
        }
        // A connection begins when the previous one has filled the queue.
        let stagger = (500 * MILLIS).min(end / 16);
        let starts = (0..).map(|i| if self.span == Span::Bulk { i * stagger } else { 0 });
        let mut flows: Vec<_> = self.flows.iter().copied().zip(starts).collect();
        if self.span == Span::Late
            && let Some((_, start)) = flows.last_mut()
        {
            *start = end / 2;
        }
        let early_until = (5 * SECOND).min(end / 2);
        let measured = match &self.span {
            Span::Messages => early_until..end,
            Span::Bulk => flows.iter().map(|(_, start)| *start).max().unwrap_or(0)..end,
            Span::Late => end / 4 * 3..end,
            Span::Settled => end / 4..end,
            Span::Whole(_) => 0..end,
            Span::Part(part) => end * part.start / 1_000_000..end * part.end / 1_000_000,
        };
        let fec = self.plan.fec();
        let repair_rate = self.plan.repair_rate();
        let bundling_rate = self.plan.bundling_rate();
        let stock_server = self.stock_server;
        Setup {
            seed,
            paths,
            mode: self.mode,
            config,
            window,
            fec,
            repair_rate,
            bundling_rate,
            stock_server,
            ack_tick: None,
            late_timers: None,
            changes: Vec::new(),
            flows,
            separate: self.separate,
            farther: self.farther,
            end,
            measured,
            early_until,
        }
    }
}

/// Names and meanings of the cells, in the order of the tables.
pub(crate) const NAMES: [(&str, &str); 25] = [
    ("G1", "independent losses of 1 %, messages, FEC"),
    ("G2", "independent losses of 5 %, messages, FEC"),
    ("G3", "independent losses of 10 %, messages, FEC"),
    ("G4", "independent losses of 20 %, messages, FEC"),
    ("A", "automatic redundancy with other limits beside none, messages"),
    ("S1", "independent losses of 1 %, messages, to a stock receiver"),
    ("S2", "independent losses of 5 %, messages, to a stock receiver"),
    ("S3", "independent losses of 10 %, messages, to a stock receiver"),
    ("S4", "independent losses of 20 %, messages, to a stock receiver"),
    ("C", "independent losses, messages, without FEC"),
    ("B1", "bursts with a mean of 3 packets, messages"),
    ("B2", "bursts with a mean of 25 ms, messages"),
    ("J", "jitter and reordering without loss, messages"),
    ("T", "5 % loss, messages of other rates and sizes"),
    ("N", "messages of other rates and sizes at round trips of 20, 100 and 200 ms"),
    ("X", "losses of 0, then 10 %, then 0, messages"),
    ("Q", "a bottleneck with a drop-tail queue, bulk; messages beside it"),
    ("F", "several bulk connections over one bottleneck"),
    ("L", "5 % loss, bulk, no bottleneck"),
    ("R", "recorded and generated radio paths, messages and bulk"),
    ("D", "messages on both of two paths"),
    ("M", "bulk on two paths of different rates"),
    ("Z", "bulk on a steady path after random disturbances"),
    ("W", "bulk on steady paths: a grid"),
    ("V", "bulk on two paths after random disturbances, of which one is steady"),
];

/// Losses of the cells G, C, B1 and B2 in percent.
const LOSSES: [u32; 4] = [1, 5, 10, 20];
/// Wire limits of G and B at these losses.
const WIRE_LIMITS: [f64; 4] = [1.5, 1.5, 1.6, 1.9];
/// Automatic redundancy with these limits.
const AUTO: [Plan; 4] =
    [Plan::Auto(1_600), Plan::Auto(1_600), Plan::Auto(1_600), Plan::Auto(1_900)];

/// All cells but those on recorded paths, in the order of the tables.
pub(crate) fn all() -> Vec<Cell> {
    let mut cells = independent_losses();
    cells.extend(automatic());
    cells.extend(stock_receivers());
    cells.extend(bursts());
    cells.extend(reordering());
    cells.extend(rates());
    cells.extend(round_trips());
    cells.extend(loss_steps());
    cells.extend(bottleneck());
    cells.extend(sharing());
    cells.extend(lossy_bulk());
    cells.extend(messages_on_both());
    cells.extend(bulk_on_two());
    cells
}

fn limits(p99: f64, wire: f64) -> [(Measure, f64); 2] {
    [(Measure::P99Ms, p99), (Measure::Wire, wire)]
}

fn independent_losses() -> Vec<Cell> {
    let mut cells = Vec::new();
    let p99 = [45.0, 50.0, 70.0, 110.0];
    for (i, name) in ["G1", "G2", "G3", "G4"].into_iter().enumerate() {
        let plans = [&Plan::FEC_INTERACTIVE[..], &Plan::REPAIRS, &[AUTO[i]]].concat();
        for plan in plans {
            let cell = Cell::messages(name, Path::loss(LOSSES[i]), plan);
            cells.push(cell.goal(limits(p99[i], WIRE_LIMITS[i])));
        }
    }
    let goals = [(90.0, 1.1), (90.0, 1.2), (100.0, 1.4), (110.0, 1.85)];
    for (loss, (p99, wire)) in LOSSES.into_iter().zip(goals) {
        let cell = Cell::messages("C", Path::loss(loss), Plan::None);
        cells.extend(cell.goal(limits(p99, wire)).with_each_congestion());
    }
    cells
}

/// Automatic redundancy must never be worse than none, whatever its limit.
fn automatic() -> Vec<Cell> {
    let mut cells = Vec::new();
    let paths = [Path::rare_loss()].into_iter().chain([1, 5, 10, 20, 30].map(Path::loss));
    for path in paths {
        let limits = [Plan::Auto(1_600), Plan::Auto(1_900), Plan::Interactive];
        for plan in [Plan::None].into_iter().chain(limits) {
            cells.push(Cell::messages("A", path.clone(), plan));
        }
    }
    cells
}

/// Messages to a stock receiver.
fn stock_receivers() -> Vec<Cell> {
    let mut cells = Vec::new();
    let p99 = [45.0, 55.0, 75.0, 110.0];
    for (i, name) in ["S1", "S2", "S3", "S4"].into_iter().enumerate() {
        for plan in [&[Plan::None, AUTO[i]], &Plan::FEC_STOCK[..]].concat() {
            let cell = Cell::messages(name, Path::loss(LOSSES[i]), plan);
            let cell = cell.goal(limits(p99[i], WIRE_LIMITS[i]));
            cells.push(Cell { stock_server: true, ..cell });
        }
    }
    cells
}

fn bursts() -> Vec<Cell> {
    let by_packets = bursts_of("B1", Path::bursts_of_packets, [70.0, 100.0, 120.0, 165.0]);
    let by_time = bursts_of("B2", Path::bursts_by_time, [75.0, 100.0, 155.0, 210.0]);
    [by_packets, by_time].concat()
}

fn bursts_of(name: &'static str, path: fn(u32) -> Path, p99: [f64; 4]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (i, loss) in LOSSES.into_iter().enumerate() {
        let repairs = [Plan::REPAIRS[i], AUTO[i]];
        for plan in Plan::INTERACTIVE.into_iter().chain(repairs) {
            let cell = Cell::messages(name, path(loss), plan);
            cells.push(cell.goal(limits(p99[i], WIRE_LIMITS[i])));
        }
    }
    cells
}

fn reordering() -> Vec<Cell> {
    let mut cells = Vec::new();
    let paths = [
        Path::jitter(5, false),
        Path::jitter(20, false),
        Path::jitter(20, true),
        Path::held_back(),
    ];
    for path in paths {
        for plan in [Plan::None, Plan::Fec10x3, AUTO[0]] {
            let p99 = path.longest_delay_ms() + 1.0;
            let goal = [(Measure::P99Ms, p99), (Measure::RetransmittedPercent, 0.2)];
            let cell = Cell::messages("J", path.clone(), plan).goal(goal);
            cells.extend(cell.with_each_congestion());
        }
    }
    cells
}

fn rates() -> Vec<Cell> {
    let mut cells = Vec::new();
    let kib = |millis: u64| Workload::Messages { size: 1_024, every: millis * MILLIS };
    let small = Workload::Messages { size: 100, every: 16 * MILLIS };
    let medium = Workload::Messages { size: 256, every: 10 * MILLIS };
    for workload in [kib(2), kib(33), kib(50), kib(600), small, medium] {
        let auto = [AUTO[1], Plan::Interactive];
        let others = [Plan::REPAIRS[1], Plan::Bundling(100)].into_iter().chain(auto);
        for plan in Plan::INTERACTIVE.into_iter().chain(others) {
            let cell = Cell::messages("T", Path::loss(5), plan).note(workload.to_string());
            cells.push(Cell { flows: vec![workload], ..cell });
        }
        // Small messages, half of whose bytes are headers, and a limit that allows a copy of each.
        let limits =
            if workload == small { vec![AUTO[1], Plan::Auto(3_000)] } else { vec![AUTO[1]] };
        for plan in limits {
            let note = format!("{workload}, stock receiver");
            let cell = Cell::messages("T", Path::loss(5), plan).note(note);
            cells.push(Cell { flows: vec![workload], stock_server: true, ..cell });
        }
    }
    cells
}

/// Automatic redundancy and none, for messages that its constants were not tuned with.
fn round_trips() -> Vec<Cell> {
    let workloads = [(100, 16), (300, 33), (1_200, 5)]
        .map(|(size, millis)| Workload::Messages { size, every: millis * MILLIS });
    let mut cells = Vec::new();
    for (workload, rtt) in workloads.into_iter().flat_map(|w| [20, 100, 200].map(|rtt| (w, rtt))) {
        let lossy = [1, 5, 10].map(Path::loss);
        for path in lossy.into_iter().chain([Path::bursts_of_packets(5), Path::bursts_by_time(5)]) {
            for plan in [Plan::None, AUTO[1]] {
                let path = path.clone().with_round_trip(rtt);
                let cell = Cell::messages("N", path, plan).note(workload.to_string());
                cells.push(Cell { flows: vec![workload], ..cell });
            }
        }
    }
    cells
}

/// While 10 % are lost, the goal of G3 applies from 2 s after the change on. From 30 s after the losses on,
/// the goal is the latency of the path, and the wire bytes of 5 % redundancy plus a reserve.
fn loss_steps() -> Vec<Cell> {
    let parts = [
        (part_of_120(22)..part_of_120(60), limits(70.0, 1.6)),
        (part_of_120(90)..part_of_120(120), limits(26.0, 1.15)),
    ];
    let mut cells = Vec::new();
    for (part, goal) in parts {
        for plan in Plan::INTERACTIVE.into_iter().chain([AUTO[2]]) {
            let cell = Cell::messages("X", Path::loss_steps(), plan).goal(goal);
            cells.push(Cell { span: Span::Part(part.clone()), ..cell });
        }
    }
    cells
}

/// Queues of the bottleneck in packets; 89 are about the bandwidth-delay product.
const QUEUES: [u64; 3] = [50, 89, 300];

fn rate_limits(mbit: f64, wire: f64) -> [(Measure, f64); 2] {
    [(Measure::BulkMbit, mbit), (Measure::Wire, wire)]
}

fn bottleneck() -> Vec<Cell> {
    let mut cells = Vec::new();
    for windows in Windows::ALL {
        for queue in QUEUES {
            for cell in Cell::bulk("Q", Path::bottleneck(queue), windows, 1).with_each_congestion()
            {
                let goal = match cell.congestion {
                    Congestion::Model => rate_limits(18.0, 1.1),
                    _ => rate_limits(17.0, 2.1),
                };
                cells.push(cell.goal(goal));
            }
        }
    }
    let presets = [Plan::Bulk, Plan::Link, Plan::LinkTooLarge];
    for (queue, plan) in QUEUES.into_iter().flat_map(|queue| presets.map(|p| (queue, p))) {
        let cell = Cell::bulk("Q", Path::bottleneck(queue), Windows::Automatic, 1);
        cells.push(Cell { plan, ..cell }.goal(rate_limits(18.0, 1.1)));
    }
    for path in [Path::bottleneck(10), Path::policer(10), Path::policer(50)] {
        cells.extend(Cell::bulk("Q", path, Windows::Automatic, 1).with_each_congestion());
    }
    for queue in QUEUES {
        let cell = Cell::messages("Q", Path::bottleneck(queue), Plan::None);
        let cell = cell.note("messages beside bulk");
        let flows = vec![Workload::Bulk, Workload::MESSAGES];
        let plan = Plan::Interactive;
        cells.push(Cell { flows, plan, ..cell.clone() });
        let cell = Cell { flows: vec![Workload::Bulk, Workload::MESSAGES], ..cell };
        for cell in cell.with_each_congestion() {
            // Half a round trip and 15 ms.
            let judged = queue == 300 && cell.congestion == Congestion::Model;
            cells.push(if judged { cell.goal([(Measure::P99Ms, 40.0)]) } else { cell });
        }
    }
    for loss in [5, 20, 30] {
        let path = Path::lossy_bottleneck(89, loss);
        cells.extend(Cell::bulk("Q", path, Windows::Automatic, 1).with_each_congestion());
    }
    cells
}

fn sharing() -> Vec<Cell> {
    let share = (Measure::SmallestSharePercent, 25.0);
    let two = Cell::bulk("F", Path::bottleneck(89), Windows::Automatic, 2).goal([share]);
    let four = Cell::bulk("F", Path::bottleneck(89), Windows::Automatic, 4);
    let four = four.goal(rate_limits(18.0, 1.1));
    let sixteen =
        Cell { flows: vec![Workload::Bulk; 16], note: "16 connections".to_owned(), ..four.clone() };
    let one_by_one = [two.clone(), four, sixteen];
    let mut cells: Vec<_> = one_by_one.into_iter().flat_map(Cell::with_each_congestion).collect();
    let least = |percent| [(Measure::SmallestSharePercent, percent)];
    let (congestion, span) = (Congestion::Model, Span::Late);
    let late = Cell { congestion, span, ..two }.note("2 connections, one 20 s later");
    cells.push(late.clone().goal(least(70.0)));
    let hosts = Cell { separate: true, ..late };
    cells.push(hosts.clone().note("2 hosts, one 20 s later").goal(least(70.0)));
    for queue in QUEUES {
        let (path, span) = (Path::bottleneck(queue), Span::Whole(60));
        let hosts = Cell { path, span, ..hosts.clone() };
        cells.push(hosts.clone().note("2 hosts").goal(least(50.0)));
        let mut path = Path::bottleneck(queue);
        path.links.iter_mut().for_each(|link| link.delay = 5 * MILLIS);
        let farther = 45 * MILLIS;
        let note = "2 hosts, RTT 10 and 100 ms";
        cells.push(Cell { path, farther, ..hosts }.note(note).goal(least(30.0)));
    }
    cells
}

/// R: messages and bulk on traced paths.
pub(crate) fn traced(paths: Vec<Path>) -> Vec<Cell> {
    let mut cells = Vec::new();
    for path in paths {
        for plan in [Plan::None, AUTO[0]] {
            let message = Cell::messages("R", path.clone(), plan);
            let goal =
                [(Measure::P99OfIdeal, 1.05), (Measure::P999OfIdeal, 1.05), (Measure::Wire, 1.1)];
            cells.push(Cell { span: Span::Whole(25), ..message }.goal(goal));
        }
        let bulk = Cell::bulk("R", path, Windows::Automatic, 1);
        let goal = [(Measure::BulkOfIdeal, 0.95), (Measure::Wire, 1.1)];
        cells.push(Cell { span: Span::Whole(15), ..bulk }.goal(goal));
    }
    cells
}

/// D: messages on two paths with independent losses.
fn messages_on_both() -> Vec<Cell> {
    let mut cells = Vec::new();
    for loss in [5, 10] {
        for (first, second) in [(50, 60), (40, 120)] {
            let path = |rtt| Path::loss(loss).with_round_trip(rtt);
            cells.push(on_both(path(first), path(second)));
        }
    }
    cells
}

/// D: messages on a recorded or generated path with a recorded or generated satellite link beside it.
pub(crate) fn traced_on_both(pairs: Vec<[Path; 2]>) -> impl Iterator<Item = Cell> {
    pairs.into_iter().map(|[path, satellite]| on_both(path, satellite))
}

fn on_both(path: Path, beside: Path) -> Cell {
    let cell = Cell::messages("D", path, Plan::None).beside(beside, Mode::Duplicate);
    // Two copies, and the few retransmissions of messages that lost both.
    cell.goal([(Measure::P99BeyondReplayMs, 2.0), (Measure::Copies, 2.05)])
}

/// M: bulk on two paths. Standby has no goal: it chooses a path by its round trip.
fn bulk_on_two() -> Vec<Cell> {
    let (slow, far) = (Path::rate(10, 20), Path::rate(40, 80));
    let (fast, poor) = (Path::rate(40, 20), Path::rate(1, 300));
    let rows = [
        (slow, far, (Measure::BulkOfIdeal, 0.9)),
        (fast.clone(), Path::rate(10, 80), (Measure::BulkOfIdeal, 0.9)),
        (fast.clone(), poor.clone(), (Measure::BulkOfAlone, 0.97)),
        (poor, fast, (Measure::BulkOfAlone, 0.97)),
    ];
    let mut cells = Vec::new();
    for (path, beside, goal) in rows {
        for mode in Mode::FOR_BULK {
            let cell = Cell::bulk("M", path.clone(), Windows::Automatic, 1);
            let cell = cell.beside(beside.clone(), mode);
            let cell = Cell { span: Span::Settled, ..cell };
            cells.push(if mode == Mode::Standby { cell } else { cell.goal([goal]) });
        }
    }
    cells
}

fn lossy_bulk() -> Vec<Cell> {
    let mut cells = Vec::new();
    // 11.3 and 22.5 MB/s.
    for (plan, mbit, wire) in [(Plan::None, 90.4, 1.15), (Plan::Fec64x10, 180.0, 1.25)] {
        for windows in Windows::ALL {
            let cell = Cell::bulk("L", Path::loss(5), windows, 1);
            let cell = Cell { plan, ..cell }.goal(rate_limits(mbit, wire));
            cells.extend(cell.with_each_congestion());
        }
    }
    let cell = Cell::bulk("L", Path::loss(5), Windows::Automatic, 1);
    cells.push(Cell { plan: Plan::Bulk, ..cell }.goal(rate_limits(180.0, 1.25)));
    cells
}
