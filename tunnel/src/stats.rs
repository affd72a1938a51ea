//! Counters of a tunnel: its sessions and connections, and its transport.

mod metrics;
mod transport;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kcpx::Endpoint;

pub(crate) use self::transport::Registration;
use self::transport::{Totals, Transport};
use crate::carrier::Link;
use crate::process::{Metric, Report};

/// Counters of one tunnel. Gauges are named `current_*`.
#[derive(Debug, Default)]
pub(crate) struct TunnelStats {
    /// Sessions opened or accepted.
    pub(crate) sessions: AtomicU64,
    /// Current sessions.
    pub(crate) current_sessions: AtomicU64,
    /// Sessions that ended with an error.
    pub(crate) failed_sessions: AtomicU64,
    /// Sessions that a server rejected for their version or compression.
    pub(crate) rejected_sessions: AtomicU64,
    /// Failed attempts of a client to open a session.
    pub(crate) failed_dials: AtomicU64,
    /// Connections carried.
    pub(crate) connections: AtomicU64,
    /// Current connections.
    pub(crate) current_connections: AtomicU64,
    /// Connections that the target did not accept, or that waited too long for a session.
    pub(crate) rejected_connections: AtomicU64,
    /// Connections that ended without an end of both directions.
    pub(crate) reset_connections: AtomicU64,
    /// Bytes from local connections to the tunnel.
    pub(crate) bytes_sent: AtomicU64,
    /// Bytes from the tunnel to local connections.
    pub(crate) bytes_received: AtomicU64,
    transport: Mutex<Transport>,
}

/// Counts while it exists.
#[derive(Debug)]
pub(crate) struct Gauge<'a>(&'a AtomicU64);

impl Drop for Gauge<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TunnelStats {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn gauge(gauge: &AtomicU64) -> Gauge<'_> {
        gauge.fetch_add(1, Ordering::Relaxed);
        Gauge(gauge)
    }

    /// Registers a connection and, if it has its own, its socket.
    pub(crate) fn register(
        self: &Arc<Self>,
        link: Option<&Arc<Link>>,
        endpoint: Option<Endpoint>,
    ) -> Registration {
        let number = self.transport().register(link.cloned(), endpoint);
        Registration::new(self.clone(), number)
    }

    /// Everything, for the log, the CSV file and Prometheus.
    pub(crate) fn report(&self, tunnel: &str) -> Report {
        let (totals, max_connections) = self.totals();
        let mut report = Report::new(tunnel);
        report.snmp = totals.snapshot();
        report.snmp.max_conn = max_connections;
        report.metrics = self.metrics(&totals);
        report
    }

    /// Sums over the transport, and the most concurrent connections.
    fn totals(&self) -> (Totals, u64) {
        let transport = self.transport();
        let (members, ended) = (transport.members(), transport.ended());
        let max_connections = transport.max_connections();
        // Statistics are read without the lock.
        drop(transport);
        let totals = members.iter().fold(ended, |sum, member| sum + member.totals());
        (totals, max_connections)
    }

    fn metrics(&self, totals: &Totals) -> Vec<Metric> {
        let mut list = metrics::of(metrics::TUNNEL, self);
        list.extend(metrics::of(metrics::KCP, totals));
        list.extend(metrics::of(metrics::SMUX, &totals.smux));
        list
    }

    fn transport(&self) -> MutexGuard<'_, Transport> {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
