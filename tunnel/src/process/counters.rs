//! Counters of tunnels, read on demand: by the log on SIGUSR1, the CSV file, Prometheus.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::snmp::Snapshot;

/// The counters of all tunnels of the process. Clones share them.
///
/// ```
/// use kcpx_tunnel::process::{Counters, Metric, Report};
///
/// let counters = Counters::default();
/// counters.register(|| {
///     let mut report = Report::new("client :12948");
///     report.metrics.push(Metric::gauge("tunnel_connections", "TCP connections now.", 3));
///     report
/// });
/// assert_eq!(counters.read()[0].metrics[0].value, 3);
/// ```
#[derive(Clone, Default)]
pub struct Counters {
    sources: Arc<Mutex<Vec<Source>>>,
}

type Source = Arc<dyn Fn() -> Report + Send + Sync>;

/// Counters of one tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The tunnel: its role and listening address.
    pub tunnel: String,
    /// Counters of kcp-go, for the CSV file.
    pub snmp: Snapshot,
    /// Counters for Prometheus and the log.
    pub metrics: Vec<Metric>,
}

/// One counter or gauge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name in snake case, with its unit, without prefix and without `_total`.
    pub name: &'static str,
    /// A sentence for people.
    pub help: &'static str,
    /// Whether it can decrease.
    pub kind: MetricKind,
    /// The number.
    pub value: u64,
}

/// Whether a metric can decrease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// A state.
    Gauge,
}

impl Counters {
    /// Adds a tunnel. `source` is called each time the counters are read, from any task; it must
    /// not block.
    pub fn register(&self, source: impl Fn() -> Report + Send + Sync + 'static) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.push(Arc::new(source));
    }

    /// Reads the counters of all tunnels, in the order of their registration.
    #[must_use]
    pub fn read(&self) -> Vec<Report> {
        // Sources run without the lock, so that one may register another.
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sources.iter().map(|source| source()).collect()
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counters(..)")
    }
}

impl Report {
    /// An empty report of a tunnel.
    #[must_use]
    pub fn new(tunnel: impl Into<String>) -> Self {
        Self { tunnel: tunnel.into(), ..Self::default() }
    }
}

impl Metric {
    /// A number that only grows.
    #[must_use]
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Counter, value }
    }

    /// A number that can decrease.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Gauge, value }
    }
}
