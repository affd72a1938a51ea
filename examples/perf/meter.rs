//! Measurements of a run so far: written by the workload, read by the display and the report,
//! which therefore work whenever the run ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use kcpx::{ConnectionStats, Endpoint, EndpointStats};
use tokio::time::{MissedTickBehavior, interval};

use super::args::Workload;
use super::system;

/// Most round trips of one run.
pub(crate) const MAX_ROUND_TRIPS: u64 = 4_000_000;
/// Time of a row, and rows that a line on the screen stands for.
const ROW: Duration = Duration::from_millis(200);
const ROWS_PER_LINE: usize = 5;

/// Resources of this process at the beginning or the end of the measurement.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot {
    pub(crate) at: Instant,
    pub(crate) cpu: Option<Duration>,
    pub(crate) rss_kib: Option<u64>,
    pub(crate) endpoint: EndpointStats,
    pub(crate) drops: Option<u64>,
}

impl Snapshot {
    fn now(endpoint: &Endpoint) -> Self {
        let (at, cpu, endpoint) = (Instant::now(), system::cpu(), endpoint.stats());
        Self { at, cpu, rss_kib: system::rss_kib(), endpoint, drops: system::drops() }
    }
}

/// A row of the time series.
#[derive(Clone, Copy, Default)]
pub(crate) struct Row {
    /// Since the beginning.
    pub(crate) seconds: f64,
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
    /// During the row.
    pub(crate) mb_per_s: f64,
    pub(crate) retransmit_pct: Option<f64>,
    pub(crate) cpu_pct: Option<f64>,
    /// At its end.
    pub(crate) srtt: Option<Duration>,
    segments: u64,
    retransmits: u64,
    cpu: Option<Duration>,
}

pub(crate) struct Meter {
    workload: Workload,
    endpoint: Endpoint,
    bytes: AtomicU64,
    operations: AtomicU64,
    /// True while the display waits for statistics of the stream.
    asked: AtomicBool,
    /// Nanoseconds, to three digits.
    latencies: Mutex<Histogram<u64>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    begin: Option<Snapshot>,
    end: Option<Snapshot>,
    /// Latest statistics of the one measured stream.
    link: ConnectionStats,
    /// Segments sent, and sent again, by streams beyond that one.
    others: (u64, u64),
    rows: Vec<Row>,
}

/// All of it, for the report.
pub(crate) struct Measured {
    pub(crate) begin: Snapshot,
    pub(crate) end: Snapshot,
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
    pub(crate) segments: u64,
    pub(crate) retransmits: u64,
    /// Nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    pub(crate) rows: Vec<Row>,
}

/// For the workload.
impl Meter {
    pub(crate) fn new(workload: Workload, endpoint: Endpoint) -> Self {
        Self {
            workload,
            endpoint,
            bytes: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            latencies: Mutex::new(histogram()),
            state: Mutex::default(),
        }
    }

    /// Starts the clock; what comes before is preparation.
    pub(crate) fn begin(&self) {
        let snapshot = Snapshot::now(&self.endpoint);
        self.state().begin = Some(snapshot);
    }

    /// Stops the clock, if it has not been.
    pub(crate) fn end(&self) {
        let snapshot = Snapshot::now(&self.endpoint);
        self.state().end.get_or_insert(snapshot);
    }

    /// Counts payload that made its way.
    pub(crate) fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a round trip.
    pub(crate) fn latency(&self, latency: Duration) {
        self.operations.fetch_add(1, Relaxed);
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latencies().saturating_record(nanos);
    }

    /// Takes the statistics of the stream if the display waits for them.
    pub(crate) fn sample(&self, stats: impl FnOnce() -> ConnectionStats) {
        if self.asked.swap(false, Relaxed) {
            self.state().link = stats();
        }
    }

    /// Takes the last statistics of the stream.
    pub(crate) fn set_final(&self, stats: ConnectionStats) {
        self.state().link = stats;
    }

    /// Adds the last statistics of one of many streams.
    pub(crate) fn add(&self, stats: &ConnectionStats) {
        let mut state = self.state();
        state.others.0 += stats.sent.segments;
        state.others.1 += stats.retransmits();
    }

    fn latencies(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For display and report.
impl Meter {
    /// Records rows, and shows a line per second on standard error, from the beginning of the
    /// measurement to its end.
    pub(crate) async fn watch(&self) -> std::convert::Infallible {
        let mut ticks = interval(ROW);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut row, mut line, mut rows) = (None, None, 0);
        loop {
            self.asked.store(true, Relaxed);
            ticks.tick().await;
            let (Some(begin), None) = ({ self.state().begin }, { self.state().end.map(|_| ()) })
            else {
                continue;
            };
            let first = Row { cpu: begin.cpu, ..Row::default() };
            let Some(before) = row else {
                // It has just begun: rows are counted from there.
                ticks.reset_at((begin.at + ROW).into());
                row = Some(first);
                continue;
            };
            let next = self.row(&begin, &before);
            self.state().rows.push(next);
            row = Some(next);
            rows += 1;
            if rows % ROWS_PER_LINE == 0 {
                let whole = self.row(&begin, line.get_or_insert(first));
                let before = line.replace(whole).map_or(0, |row| row.operations);
                self.show(&whole, whole.operations - before);
            }
        }
    }

    /// The changes since the previous row.
    fn row(&self, begin: &Snapshot, before: &Row) -> Row {
        let seconds = begin.at.elapsed().as_secs_f64();
        let (bytes, operations) = (self.bytes.load(Relaxed), self.operations.load(Relaxed));
        let (link, cpu) = (self.state().link, system::cpu());
        let time = (seconds - before.seconds).max(1e-9);
        let (segments, retransmits) = (link.sent.segments, link.retransmits());
        let sent_again = retransmits.saturating_sub(before.retransmits) as f64;
        let sent = segments.saturating_sub(before.segments) as f64 + sent_again;
        Row {
            seconds,
            bytes,
            operations,
            mb_per_s: bytes.saturating_sub(before.bytes) as f64 / time / 1e6,
            retransmit_pct: (sent > 0.0).then(|| sent_again * 100.0 / sent),
            cpu_pct: cpu
                .zip(before.cpu)
                .map(|(now, before)| now.saturating_sub(before).as_secs_f64() * 100.0 / time),
            srtt: Some(link.path.srtt).filter(|srtt| !srtt.is_zero()),
            segments,
            retransmits,
            cpu,
        }
    }

    fn show(&self, row: &Row, operations: u64) {
        let speed = match self.workload {
            Workload::Sink | Workload::Source | Workload::Echo => {
                format!("{:9.1} MB/s", row.mb_per_s)
            }
            Workload::Pingpong | Workload::Messages => format!("{operations:9} round trips"),
            Workload::Many => format!("{operations:9} connections done"),
            Workload::Idle => String::new(),
        };
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let srtt = row.srtt.map(|srtt| srtt.as_secs_f64() * 1e3);
        eprintln!(
            "{:6.1} s {speed}   RTT {:>7} ms   resent {:>6} %   CPU {:>5} %",
            row.seconds,
            number(srtt, 3),
            number(row.retransmit_pct, 2),
            number(row.cpu_pct, 0),
        );
    }

    /// Everything so far; `None` if the measurement has not begun.
    pub(crate) fn measured(&self) -> Option<Measured> {
        let begin = { self.state().begin }?;
        self.end();
        let mut state = self.state();
        let end = state.end?;
        let mut rows = std::mem::take(&mut state.rows);
        if rows.is_empty() {
            // It was over before there was a row: it is one row as a whole.
            drop(state);
            let first = Row { cpu: begin.cpu, ..Row::default() };
            rows.push(self.row(&begin, &first));
            state = self.state();
        }
        Some(Measured {
            begin,
            end,
            bytes: self.bytes.load(Relaxed),
            operations: self.operations.load(Relaxed),
            segments: state.link.sent.segments + state.others.0,
            retransmits: state.link.retransmits() + state.others.1,
            latencies: self.latencies().clone(),
            rows,
        })
    }
}

/// For latencies from 1 ns to 10 minutes, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("bounds in order")
}
