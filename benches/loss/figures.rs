//! The figures of a run, their medians over the seeds, and their goals.

use std::ops::Range;

use serde::Serialize;

use crate::path::{BOTTLENECK_MBIT, IP_OVERHEAD, SECOND};
use crate::replay;
use crate::simulation::{CLIENT, Counters, Outcome, SERVER, Setup};
use crate::traced::{self, HEADER_LEN};
use crate::workload::Workload;

/// Figures of one run. One-way latencies in order, ms; `None` without messages or without bulk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) p999_ms: Option<f64>,
    pub(crate) max_ms: Option<f64>,
    /// p99 of the messages written in the first 5 s.
    pub(crate) early_p99_ms: Option<f64>,
    /// All bulk connections together.
    pub(crate) bulk_mbit: Option<f64>,
    /// The slowest bulk connection, in percent of its fair share of the bottleneck.
    pub(crate) smallest_share_percent: Option<f64>,
    /// On traced paths and on several paths: latencies of the ideal sender in ms, its bulk rate, and the p95 of
    /// the time that packets waited in the queue from client to server.
    pub(crate) ideal_p50_ms: Option<f64>,
    pub(crate) ideal_p99_ms: Option<f64>,
    pub(crate) ideal_p999_ms: Option<f64>,
    pub(crate) ideal_mbit: Option<f64>,
    pub(crate) wait_p95_ms: Option<f64>,
    /// IP bytes from client to server per byte read at the server.
    pub(crate) wire: f64,
    /// For messages on several paths: the same, relative to a single copy of each message.
    pub(crate) copies: Option<f64>,
    /// For bulk on several paths: the rate of the better one alone.
    pub(crate) alone_mbit: Option<f64>,
    /// The same: largest memory of unacknowledged data at the client, and of received data at the server.
    pub(crate) sent_kib: Option<f64>,
    pub(crate) received_kib: Option<f64>,
    /// Retransmissions in percent of all data segments sent.
    pub(crate) retransmitted_percent: f64,
}

impl Figures {
    pub(crate) fn of(setup: &Setup<'_>, outcome: &Outcome) -> Self {
        let sorted = |written: Range<u64>| {
            let messages = outcome.messages.iter();
            let within = messages.filter(|message| written.contains(&message.at));
            let mut all: Vec<u64> = within.map(|message| message.latency).collect();
            all.sort_unstable();
            all
        };
        let (measured, early) = (sorted(setup.measured.clone()), sorted(0..setup.early_until));
        let Outcome { before, after, .. } = outcome;
        let seconds = (setup.measured.end - setup.measured.start) as f64 / SECOND as f64;
        let rates = bulk_rates(before, after, seconds);
        let fair_share = BOTTLENECK_MBIT as f64 / rates.len() as f64;
        let smallest = rates.iter().copied().reduce(f64::min);
        let sent = after.sent_segments - before.sent_segments;
        let retransmits = after.retransmits - before.retransmits;
        let received = |counters: &Counters| counters.received.iter().map(|(n, _)| n).sum::<u64>();
        let useful = received(after) - received(before);
        let ideal = match setup.paths {
            [_] => traced::ideal(setup),
            _ => replay::ideal(setup),
        };
        let shows_memory = setup.paths.len() > 1 && !rates.is_empty();
        let memory = |end: usize| shows_memory.then(|| outcome.memory[end] as f64 / 1_024.0);
        let wire = (after.ip_bytes - before.ip_bytes) as f64 / useful as f64;
        let waits = outcome.waits.iter().map(|waits| waits.p95).max();
        let ideal_quantile =
            |share| ideal.as_ref().and_then(|ideal| quantile(&ideal.latencies, share));
        Self {
            p50_ms: quantile(&measured, 0.5),
            p99_ms: quantile(&measured, 0.99),
            p999_ms: quantile(&measured, 0.999),
            max_ms: quantile(&measured, 1.0),
            early_p99_ms: quantile(&early, 0.99),
            bulk_mbit: (!rates.is_empty()).then(|| rates.iter().sum()),
            smallest_share_percent: smallest
                .filter(|_| rates.len() > 1)
                .map(|rate| rate * 100.0 / fair_share),
            ideal_p50_ms: ideal_quantile(0.5),
            ideal_p99_ms: ideal_quantile(0.99),
            ideal_p999_ms: ideal_quantile(0.999),
            ideal_mbit: ideal.as_ref().map(|ideal| ideal.bulk_mbit).filter(|_| !rates.is_empty()),
            wait_p95_ms: ideal.and(waits).map(|wait| wait as f64 / 1e3),
            wire,
            copies: one_copy(setup).map(|one| wire / one),
            alone_mbit: None,
            sent_kib: memory(CLIENT),
            received_kib: memory(SERVER),
            retransmitted_percent: retransmits as f64 * 100.0 / (sent + retransmits) as f64,
        }
    }

    /// The median of each figure separately; for an even number of runs the upper one.
    pub(crate) fn median(runs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> Option<f64>| {
            let mut all: Vec<f64> = runs.iter().filter_map(figure).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied()
        };
        Self {
            p50_ms: of(|run| run.p50_ms),
            p99_ms: of(|run| run.p99_ms),
            p999_ms: of(|run| run.p999_ms),
            max_ms: of(|run| run.max_ms),
            early_p99_ms: of(|run| run.early_p99_ms),
            bulk_mbit: of(|run| run.bulk_mbit),
            smallest_share_percent: of(|run| run.smallest_share_percent),
            ideal_p50_ms: of(|run| run.ideal_p50_ms),
            ideal_p99_ms: of(|run| run.ideal_p99_ms),
            ideal_p999_ms: of(|run| run.ideal_p999_ms),
            ideal_mbit: of(|run| run.ideal_mbit),
            wait_p95_ms: of(|run| run.wait_p95_ms),
            wire: of(|run| Some(run.wire)).unwrap_or(f64::NAN),
            copies: of(|run| run.copies),
            alone_mbit: of(|run| run.alone_mbit),
            sent_kib: of(|run| run.sent_kib),
            received_kib: of(|run| run.received_kib),
            retransmitted_percent: of(|run| Some(run.retransmitted_percent)).unwrap_or(f64::NAN),
        }
    }
}

/// IP bytes per byte if each message leaves once; `None` on one path or with other flows.
fn one_copy(setup: &Setup<'_>) -> Option<f64> {
    match (setup.paths, &setup.flows[..]) {
        ([_, _, ..], &[(Workload::Messages { size, .. }, _)]) => {
            Some((size + HEADER_LEN + IP_OVERHEAD) as f64 / size as f64)
        }
        _ => None,
    }
}

/// The element at `share` of sorted latencies in us, as ms.
fn quantile(sorted: &[u64], share: f64) -> Option<f64> {
    let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().checked_sub(1)?);
    sorted.get(index).map(|&us| us as f64 / 1e3)
}

pub(crate) fn ratio(value: Option<f64>, ideal: Option<f64>) -> Option<f64> {
    value.zip(ideal).map(|(value, ideal)| value / ideal)
}

/// Mbit/s of each bulk connection.
fn bulk_rates(before: &Counters, after: &Counters, seconds: f64) -> Vec<f64> {
    let pairs = before.received.iter().zip(&after.received);
    let bulk = pairs.filter(|(_, (_, is_bulk))| *is_bulk);
    bulk.map(|((from, _), (to, _))| (to - from) as f64 * 8.0 / 1e6 / seconds).collect()
}

/// A figure that a goal limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measure {
    P99Ms,
    /// Relative to the ideal sender on the traced path.
    P99OfIdeal,
    P999OfIdeal,
    /// Beyond the replay on several paths.
    P99BeyondReplayMs,
    BulkOfIdeal,
    /// Relative to the better path alone.
    BulkOfAlone,
    Wire,
    Copies,
    RetransmittedPercent,
    BulkMbit,
    SmallestSharePercent,
}

impl Measure {
    fn of(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::P99Ms => figures.p99_ms,
            Self::P99OfIdeal => ratio(figures.p99_ms, figures.ideal_p99_ms),
            Self::P999OfIdeal => ratio(figures.p999_ms, figures.ideal_p999_ms),
            Self::P99BeyondReplayMs => Some(figures.p99_ms? - figures.ideal_p99_ms?),
            Self::BulkOfIdeal => ratio(figures.bulk_mbit, figures.ideal_mbit),
            Self::BulkOfAlone => ratio(figures.bulk_mbit, figures.alone_mbit),
            Self::Wire => Some(figures.wire),
            Self::Copies => figures.copies,
            Self::RetransmittedPercent => Some(figures.retransmitted_percent),
            Self::BulkMbit => figures.bulk_mbit,
            Self::SmallestSharePercent => figures.smallest_share_percent,
        }
    }

    fn is_at_most(self) -> bool {
        !matches!(
            self,
            Self::BulkMbit | Self::BulkOfIdeal | Self::BulkOfAlone | Self::SmallestSharePercent
        )
    }

    /// Name and unit.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::P99Ms => ("p99", " ms"),
            Self::P99OfIdeal => ("p99 / ideal", ""),
            Self::P999OfIdeal => ("p99.9 / ideal", ""),
            Self::P99BeyondReplayMs => ("p99 - replay", " ms"),
            Self::BulkOfIdeal => ("bulk / ideal", ""),
            Self::BulkOfAlone => ("bulk / better path", ""),
            Self::Wire => ("wire", ""),
            Self::Copies => ("copies", ""),
            Self::RetransmittedPercent => ("retransmitted", " %"),
            Self::BulkMbit => ("bulk", " Mbit/s"),
            Self::SmallestSharePercent => ("smallest share", " %"),
        }
    }
}

/// One limit of a goal: at most or at least `limit`, depending on which side is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Bound {
    pub(crate) measure: Measure,
    pub(crate) limit: f64,
}

/// Goal of a cell; empty if its figures are only shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Goal(pub(crate) Vec<Bound>);

impl Goal {
    pub(crate) fn new<const N: usize>(bounds: [(Measure, f64); N]) -> Self {
        Self(bounds.map(|(measure, limit)| Bound { measure, limit }).to_vec())
    }

    /// "p99 <= 45 ms, wire <= 1.5".
    pub(crate) fn text(&self) -> String {
        let text = |bound: &Bound| {
            let (name, unit) = bound.measure.words();
            let sign = if bound.measure.is_at_most() { "<=" } else { ">=" };
            format!("{name} {sign} {}{unit}", bound.limit)
        };
        self.0.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    /// "met", or by how much each limit is missed; empty without a goal.
    pub(crate) fn verdict(&self, figures: &Figures) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let miss = |bound: &Bound| {
            let (name, unit) = bound.measure.words();
            let Some(value) = bound.measure.of(figures) else {
                return Some(format!("{name} is missing"));
            };
            let at_most = bound.measure.is_at_most();
            let excess = if at_most { value - bound.limit } else { bound.limit - value };
            (excess > 0.0 || excess.is_nan()).then(|| {
                let digits = if bound.measure == Measure::Wire { 3 } else { 2 };
                format!("{name} by {excess:.digits$}{unit}")
            })
        };
        let misses: Vec<String> = self.0.iter().filter_map(miss).collect();
        if misses.is_empty() { "met".to_owned() } else { format!("missed: {}", misses.join(", ")) }
    }
}
