//! What a tunnel counts, and the counters of its KCP connections, living and ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kcpx::{ConnectionStats, Endpoint, EndpointStats};

use crate::carrier::Link;
use crate::process::snmp::Snapshot;
use crate::process::{Metric, Report};

/// Counters of one tunnel. Gauges are named `current_*`.
#[derive(Debug, Default)]
pub(crate) struct TunnelStats {
    /// Sessions that were opened or accepted.
    pub(crate) sessions: AtomicU64,
    /// Sessions now.
    pub(crate) current_sessions: AtomicU64,
    /// Sessions that ended with an error.
    pub(crate) failed_sessions: AtomicU64,
    /// Sessions that a server rejected for their version or compression.
    pub(crate) rejected_sessions: AtomicU64,
    /// Attempts of a client to open a session that failed.
    pub(crate) failed_dials: AtomicU64,
    /// Connections that were carried.
    pub(crate) connections: AtomicU64,
    /// Connections now.
    pub(crate) current_connections: AtomicU64,
    /// Connections that the target did not take, or that waited too long for a session.
    pub(crate) rejected_connections: AtomicU64,
    /// Connections that ended otherwise than by an end of both directions.
    pub(crate) reset_connections: AtomicU64,
    /// Bytes from local connections to the tunnel.
    pub(crate) bytes_sent: AtomicU64,
    /// Bytes from the tunnel to local connections.
    pub(crate) bytes_received: AtomicU64,
    transport: Mutex<Transport>,
}

/// KCP connections and sockets.
#[derive(Debug, Default)]
struct Transport {
    next: u64,
    links: HashMap<u64, Arc<Link>>,
    endpoints: HashMap<u64, Endpoint>,
    /// Sums of those that have ended.
    ended: Totals,
    max_connections: u64,
}

/// Sums over connections and sockets.
#[derive(Clone, Debug, Default)]
struct Totals {
    links: Snapshot,
    endpoints: EndpointStats,
}

/// Counts while it exists.
#[derive(Debug)]
pub(crate) struct Gauge<'a>(&'a AtomicU64);

impl Drop for Gauge<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection or a socket among the living ones, until it is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    stats: Arc<TunnelStats>,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Statistics are read without the lock, and moved to the sums in one step.
        let transport = self.stats.transport();
        let link = transport.links.get(&self.number).cloned();
        let endpoint = transport.endpoints.get(&self.number).cloned();
        drop(transport);
        let links = link.map(|link| of_connection(&link.stats())).unwrap_or_default();
        let endpoints = endpoint.as_ref().map(|endpoint| ended(endpoint.stats()));
        let mut transport = self.stats.transport();
        transport.links.remove(&self.number);
        let removed = transport.endpoints.remove(&self.number);
        let before = transport.ended.clone();
        transport.ended.links = before.links + links;
        transport.ended.endpoints = before.endpoints + endpoints.unwrap_or_default();
        // What the socket's last handle does is done without the lock.
        drop(transport);
        drop((removed, endpoint));
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

    /// Registers a connection and, if it has one of its own, its socket.
    pub(crate) fn register(
        self: &Arc<Self>,
        link: Option<&Arc<Link>>,
        endpoint: Option<Endpoint>,
    ) -> Registration {
        let mut transport = self.transport();
        let number = transport.next;
        transport.next += 1;
        transport.links.extend(link.map(|link| (number, link.clone())));
        transport.endpoints.extend(endpoint.map(|endpoint| (number, endpoint)));
        transport.max_connections = transport.max_connections.max(transport.links.len() as u64);
        Registration { stats: self.clone(), number }
    }

    /// Everything, for the log, the CSV file and Prometheus.
    pub(crate) fn report(&self, tunnel: &str) -> Report {
        let mut report = Report::new(tunnel);
        report.snmp = self.snapshot();
        report.metrics = self.metrics(&report.snmp);
        report
    }

    fn snapshot(&self) -> Snapshot {
        let transport = self.transport();
        let ended = transport.ended.clone();
        let links: Vec<_> = transport.links.values().cloned().collect();
        let endpoints: Vec<_> = transport.endpoints.values().cloned().collect();
        let max_connections = transport.max_connections;
        drop(transport);
        let links = links.iter().map(|link| of_connection(&link.stats()));
        let mut snapshot = links.fold(ended.links, |sum, link| sum + link);
        let endpoints = endpoints.iter().map(Endpoint::stats);
        let endpoints = endpoints.fold(ended.endpoints, |sum, endpoint| sum + endpoint);
        snapshot.max_conn = max_connections;
        snapshot.active_opens = endpoints.active_opens;
        snapshot.passive_opens = endpoints.passive_opens;
        snapshot.curr_estab = endpoints.current_connections;
        snapshot.in_errs = endpoints.recv_errors + endpoints.dropped_truncated;
        snapshot.in_csum_errors = endpoints.dropped_checksum;
        snapshot.kcp_in_errors = endpoints.dropped_malformed;
        snapshot.in_pkts = endpoints.received_datagrams;
        snapshot.out_pkts = endpoints.sent_datagrams;
        snapshot.in_bytes = endpoints.received_bytes;
        snapshot.out_bytes = endpoints.sent_bytes;
        snapshot.fec_parity_shards = endpoints.fec.parity_shards;
        snapshot.fec_errs = endpoints.fec.unrecoverable_groups;
        snapshot.fec_recovered = endpoints.fec.recovered_shards;
        snapshot.oob_packets = endpoints.out_of_band_received;
        snapshot
    }

    #[rustfmt::skip]
    fn metrics(&self, snmp: &Snapshot) -> Vec<Metric> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            Metric::counter("tunnel_sessions", "Sessions opened or accepted.", read(&self.sessions)),
            Metric::gauge("tunnel_current_sessions", "Sessions now.", read(&self.current_sessions)),
            Metric::counter("tunnel_failed_sessions", "Sessions that ended with an error.", read(&self.failed_sessions)),
            Metric::counter("tunnel_rejected_sessions", "Sessions rejected for their smux version or compression.", read(&self.rejected_sessions)),
            Metric::counter("tunnel_failed_dials", "Attempts to open a session that failed.", read(&self.failed_dials)),
            Metric::counter("tunnel_connections", "Connections carried.", read(&self.connections)),
            Metric::gauge("tunnel_current_connections", "Connections now.", read(&self.current_connections)),
            Metric::counter("tunnel_rejected_connections", "Connections without a target, or without a session.", read(&self.rejected_connections)),
            Metric::counter("tunnel_reset_connections", "Connections that ended otherwise than by an end of both directions.", read(&self.reset_connections)),
            Metric::counter("tunnel_sent_bytes", "Bytes from local connections to the tunnel.", read(&self.bytes_sent)),
            Metric::counter("tunnel_received_bytes", "Bytes from the tunnel to local connections.", read(&self.bytes_received)),
            Metric::counter("kcp_sent_datagrams", "UDP datagrams sent.", snmp.out_pkts),
            Metric::counter("kcp_received_datagrams", "UDP datagrams received.", snmp.in_pkts),
            Metric::counter("kcp_sent_datagram_bytes", "Bytes of the UDP datagrams sent.", snmp.out_bytes),
            Metric::counter("kcp_received_datagram_bytes", "Bytes of the UDP datagrams received.", snmp.in_bytes),
            Metric::counter("kcp_sent_segments", "Data segments sent, retransmissions included.", snmp.out_segs),
            Metric::counter("kcp_retransmits", "Retransmissions of data segments.", snmp.retrans_segs),
            Metric::counter("kcp_received_segments", "Data segments received.", snmp.in_segs),
            Metric::counter("kcp_duplicate_segments", "Duplicate data segments received.", snmp.duplicate_segs),
            Metric::counter("kcp_fec_recovered_packets", "Packets recovered by FEC.", snmp.fec_recovered),
            Metric::counter("kcp_dropped_checksum", "Datagrams with a wrong checksum or tag.", snmp.in_csum_errors),
            Metric::gauge("kcp_current_connections", "KCP connections now.", snmp.curr_estab),
        ]
    }

    fn transport(&self) -> MutexGuard<'_, Transport> {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of a connection by kcp-go's names.
fn of_connection(stats: &ConnectionStats) -> Snapshot {
    Snapshot {
        bytes_sent: stats.sent_bytes,
        bytes_received: stats.received_bytes,
        in_segs: stats.received_segments + stats.duplicate_segments,
        out_segs: stats.sent_segments + stats.retransmits(),
        retrans_segs: stats.retransmits(),
        fast_retrans_segs: stats.fast_retransmits,
        early_retrans_segs: stats.early_retransmits,
        lost_segs: stats.timeout_retransmits,
        duplicate_segs: stats.duplicate_segments,
        ..Snapshot::default()
    }
}

/// The counters of a socket that ends: it has no connections any more.
fn ended(mut stats: EndpointStats) -> EndpointStats {
    (stats.current_connections, stats.unvalidated_connections, stats.unvalidated_bytes) = (0, 0, 0);
    stats
}
