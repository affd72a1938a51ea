//! Counters of a tunnel: its sessions and connections, its transport, and their metrics.
//!
//! `docs/metrics.md` has the rows of the metrics; a test compares them.

use std::collections::HashMap;
use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kcpx::{ConnectionStats, Endpoint, EndpointStats};
use kcpx_smux::{Frames, Session, Stats};

use crate::carrier::Link;
use crate::process::MetricKind::{self, Counter, Gauge};
use crate::process::{Metric, Report, Snapshot};

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
pub(crate) struct GaugeGuard<'a>(&'a AtomicU64);

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TunnelStats {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn gauge(gauge: &AtomicU64) -> GaugeGuard<'_> {
        gauge.fetch_add(1, Ordering::Relaxed);
        GaugeGuard(gauge)
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
        let mut list = values_of(TUNNEL, self);
        list.extend(values_of(KCP, totals));
        list.extend(values_of(SMUX, &totals.smux));
        list
    }

    fn transport(&self) -> MutexGuard<'_, Transport> {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The KCP connections, sockets and smux sessions of a tunnel: the live ones, and sums of ended ones.
#[derive(Debug, Default)]
struct Transport {
    next: u64,
    members: HashMap<u64, Member>,
    /// Members that have a link.
    links: u64,
    max_links: u64,
    /// Sums of ended members.
    ended: Totals,
}

/// A KCP connection with its socket and smux session, if present.
#[derive(Clone, Debug, Default)]
struct Member {
    link: Option<Arc<Link>>,
    endpoint: Option<Endpoint>,
    session: Option<Session>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    links: Snapshot,
    paths: Paths,
    endpoints: EndpointStats,
    smux: SmuxTotals,
}

/// State of the connections that kcp-go does not count.
#[derive(Clone, Copy, Debug, Default)]
struct Paths {
    /// Bytes of parity packets, repair symbols and copies sent.
    redundant_bytes: u64,
    /// Longest smoothed round-trip time now.
    longest_srtt: Duration,
    /// Bytes not sent yet.
    unsent_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct SmuxTotals {
    /// `last_header` is not summed.
    stats: Stats,
    /// Current streams.
    streams: u64,
}

/// A live member, until dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    stats: Arc<TunnelStats>,
    number: u64,
}

impl Registration {
    fn new(stats: Arc<TunnelStats>, number: u64) -> Self {
        Self { stats, number }
    }

    /// Also counts the smux session of the connection. Keeps a handle of it until `self` is
    /// dropped.
    pub(crate) fn add_session(&self, session: &Session) {
        if let Some(member) = self.stats.transport().members.get_mut(&self.number) {
            member.session = Some(session.clone());
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Statistics are read without the lock, and moved to the sums in one step.
        let member = self.stats.transport().members.get(&self.number).cloned();
        let Some(member) = member else { return };
        let totals = member.totals().ended();
        let removed = self.stats.transport().remove(self.number, totals);
        // The last handle of a socket or session is dropped without the lock.
        drop((member, removed));
    }
}

impl Transport {
    fn register(&mut self, link: Option<Arc<Link>>, endpoint: Option<Endpoint>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.links += u64::from(link.is_some());
        self.max_links = self.max_links.max(self.links);
        self.members.insert(number, Member { link, endpoint, session: None });
        number
    }

    fn remove(&mut self, number: u64, totals: Totals) -> Option<Member> {
        let removed = self.members.remove(&number)?;
        self.links -= u64::from(removed.link.is_some());
        self.ended = self.ended + totals;
        Some(removed)
    }

    fn members(&self) -> Vec<Member> {
        self.members.values().cloned().collect()
    }

    fn ended(&self) -> Totals {
        self.ended
    }

    /// Most concurrent connections.
    fn max_connections(&self) -> u64 {
        self.max_links
    }
}

impl Member {
    fn totals(&self) -> Totals {
        let link = self.link.as_ref().map(|link| link.stats()).unwrap_or_default();
        Totals {
            links: of_connection(&link),
            paths: Paths::new(&link),
            endpoints: self.endpoint.as_ref().map(Endpoint::stats).unwrap_or_default(),
            smux: self.session.as_ref().map(SmuxTotals::new).unwrap_or_default(),
        }
    }
}

impl Totals {
    /// Without gauges, which no longer apply once a member has ended.
    fn ended(mut self) -> Self {
        let endpoints = &mut self.endpoints;
        (endpoints.connections.current, endpoints.connections.unvalidated) = (0, 0);
        endpoints.memory.unvalidated_bytes = 0;
        (self.smux.streams, self.smux.stats.unread) = (0, 0);
        (self.paths.longest_srtt, self.paths.unsent_bytes) = (Duration::ZERO, 0);
        self
    }

    /// The counters by kcp-go's names.
    fn snapshot(&self) -> Snapshot {
        let (mut snapshot, endpoints) = (self.links, &self.endpoints);
        snapshot.active_opens = endpoints.connections.active_opens;
        snapshot.passive_opens = endpoints.connections.passive_opens;
        snapshot.curr_estab = endpoints.connections.current;
        snapshot.in_errs = endpoints.recv_errors.total() + endpoints.dropped.truncated;
        snapshot.in_csum_errors = endpoints.dropped.checksum;
        snapshot.kcp_in_errors = endpoints.dropped.malformed;
        snapshot.in_pkts = endpoints.received.datagrams;
        snapshot.out_pkts = endpoints.sent.datagrams;
        snapshot.in_bytes = endpoints.received.bytes;
        snapshot.out_bytes = endpoints.sent.bytes;
        snapshot.fec_parity_shards = endpoints.fec.parity_shards;
        snapshot.fec_errs = endpoints.fec.unrecoverable_groups;
        snapshot.fec_recovered = endpoints.fec.recovered_shards;
        snapshot.oob_packets = endpoints.out_of_band_received;
        snapshot
    }
}

impl Add for Totals {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            links: self.links + more.links,
            paths: self.paths + more.paths,
            endpoints: self.endpoints + more.endpoints,
            smux: self.smux + more.smux,
        }
    }
}

impl Paths {
    fn new(stats: &ConnectionStats) -> Self {
        Self {
            redundant_bytes: stats.redundancy.redundant_bytes_sent,
            longest_srtt: stats.path.srtt,
            unsent_bytes: stats.unsent_bytes,
        }
    }
}

impl Add for Paths {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            redundant_bytes: self.redundant_bytes + more.redundant_bytes,
            longest_srtt: self.longest_srtt.max(more.longest_srtt),
            unsent_bytes: self.unsent_bytes + more.unsent_bytes,
        }
    }
}

impl SmuxTotals {
    fn new(session: &Session) -> Self {
        Self { stats: session.stats(), streams: session.num_streams() as u64 }
    }
}

impl Add for SmuxTotals {
    type Output = Self;

    fn add(mut self, more: Self) -> Self {
        let (sum, stats) = (&mut self.stats, &more.stats);
        add_frames(&mut sum.frames_sent, &stats.frames_sent);
        add_frames(&mut sum.frames_received, &stats.frames_received);
        sum.payload_sent += stats.payload_sent;
        sum.payload_received += stats.payload_received;
        sum.bytes_sent += stats.bytes_sent;
        sum.bytes_received += stats.bytes_received;
        sum.streams_opened += stats.streams_opened;
        sum.streams_accepted += stats.streams_accepted;
        sum.streams_refused += stats.streams_refused;
        sum.streams_failed += stats.streams_failed;
        sum.streams_reset += stats.streams_reset;
        sum.frames_ignored += stats.frames_ignored;
        sum.payload_dropped += stats.payload_dropped;
        sum.stalls += stats.stalls;
        sum.unread += stats.unread;
        self.streams += more.streams;
        self
    }
}

fn add_frames(sum: &mut Frames, frames: &Frames) {
    sum.syn += frames.syn;
    sum.fin += frames.fin;
    sum.psh += frames.psh;
    sum.nop += frames.nop;
    sum.upd += frames.upd;
}

/// The counters of a connection by kcp-go's names.
fn of_connection(stats: &ConnectionStats) -> Snapshot {
    Snapshot {
        bytes_sent: stats.sent.payload_bytes,
        bytes_received: stats.received.payload_bytes,
        in_segs: stats.received.segments + stats.anomalies.duplicate_segments,
        out_segs: stats.sent.segments + stats.retransmits(),
        retrans_segs: stats.retransmits(),
        fast_retrans_segs: stats.retransmit.fast,
        early_retrans_segs: stats.retransmit.early,
        lost_segs: stats.retransmit.timeout,
        duplicate_segs: stats.anomalies.duplicate_segments,
        ..Snapshot::default()
    }
}

/// Name, help, kind, and the counter among the statistics.
type Row<S> = (&'static str, &'static str, MetricKind, fn(&S) -> u64);

/// Reads the rows.
fn values_of<S>(rows: &[Row<S>], stats: &S) -> Vec<Metric> {
    let read =
        |&(name, help, kind, value): &Row<S>| Metric { name, help, kind, value: value(stats) };
    rows.iter().map(read).collect()
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Metrics of the tunnel itself.
#[rustfmt::skip]
const TUNNEL: &[Row<TunnelStats>] = &[
    ("tunnel_sessions", "Sessions opened or accepted.", Counter, |s| read(&s.sessions)),
    ("tunnel_current_sessions", "Sessions now.", Gauge, |s| read(&s.current_sessions)),
    ("tunnel_failed_sessions", "Sessions that ended with an error.", Counter, |s| read(&s.failed_sessions)),
    ("tunnel_rejected_sessions", "Sessions rejected for their smux version, their compression or the limits of their client.", Counter, |s| read(&s.rejected_sessions)),
    ("tunnel_failed_dials", "Attempts to open a session that failed.", Counter, |s| read(&s.failed_dials)),
    ("tunnel_connections", "Connections carried.", Counter, |s| read(&s.connections)),
    ("tunnel_current_connections", "Connections now.", Gauge, |s| read(&s.current_connections)),
    ("tunnel_rejected_connections", "Connections without a target or a session, or above the limits of their client.", Counter, |s| read(&s.rejected_connections)),
    ("tunnel_reset_connections", "Connections that ended otherwise than by an end of both directions.", Counter, |s| read(&s.reset_connections)),
    ("tunnel_sent_bytes", "Bytes from local connections to the tunnel.", Counter, |s| read(&s.bytes_sent)),
    ("tunnel_received_bytes", "Bytes from the tunnel to local connections.", Counter, |s| read(&s.bytes_received)),
];

/// Metrics of its KCP connections and their sockets.
#[rustfmt::skip]
const KCP: &[Row<Totals>] = &[
    ("kcp_sent_datagrams", "UDP datagrams sent.", Counter, |s| s.endpoints.sent.datagrams),
    ("kcp_received_datagrams", "UDP datagrams received.", Counter, |s| s.endpoints.received.datagrams),
    ("kcp_sent_datagram_bytes", "Bytes of the UDP datagrams sent.", Counter, |s| s.endpoints.sent.bytes),
    ("kcp_received_datagram_bytes", "Bytes of the UDP datagrams received.", Counter, |s| s.endpoints.received.bytes),
    ("kcp_sent_segments", "Data segments sent, retransmissions included.", Counter, |s| s.links.out_segs),
    ("kcp_retransmits", "Retransmissions of data segments.", Counter, |s| s.links.retrans_segs),
    ("kcp_redundant_bytes", "Bytes of FEC parity, repair symbols and copies sent.", Counter, |s| s.paths.redundant_bytes),
    ("kcp_received_segments", "Data segments received.", Counter, |s| s.links.in_segs),
    ("kcp_duplicate_segments", "Duplicate data segments received.", Counter, |s| s.links.duplicate_segs),
    ("kcp_fec_recovered_packets", "Packets recovered by FEC.", Counter, |s| s.endpoints.fec.recovered_shards),
    ("kcp_dropped_checksum", "Datagrams with a wrong checksum or tag.", Counter, |s| s.endpoints.dropped.checksum),
    ("kcp_dropped_malformed", "Datagrams without a valid segment.", Counter, |s| s.endpoints.dropped.malformed + s.endpoints.dropped.truncated),
    ("kcp_dropped_no_connection", "Datagrams of no connection.", Counter, |s| s.endpoints.dropped.no_connection),
    ("kcp_retries_sent", "Initial segments answered without state, since many peers are not validated.", Counter, |s| s.endpoints.retry.sent),
    ("kcp_migrations", "Changes of address that connections of clients survived.", Counter, |s| s.endpoints.connections.migrations),
    ("kcp_receive_errors", "Transient errors of receiving.", Counter, |s| s.endpoints.recv_errors.total()),
    ("kcp_send_errors", "Errors of sending, taken as loss.", Counter, |s| s.endpoints.send_errors.total()),
    ("kcp_current_connections", "KCP connections now.", Gauge, |s| s.endpoints.connections.current),
    ("kcp_longest_srtt_microseconds", "Longest smoothed round-trip time of a connection, now.", Gauge, |s| s.paths.longest_srtt.as_micros() as u64),
    ("kcp_unsent_bytes", "Bytes written and not sent yet, now.", Gauge, |s| s.paths.unsent_bytes),
];

/// Metrics of its smux sessions; all 0 with `mux none`.
#[rustfmt::skip]
const SMUX: &[Row<SmuxTotals>] = &[
    ("smux_current_streams", "Streams now.", Gauge, |s| s.streams),
    ("smux_unread_bytes", "Bytes received that connections have not taken, now.", Gauge, |s| s.stats.unread as u64),
    ("smux_opened_streams", "Streams opened by this side.", Counter, |s| s.stats.streams_opened),
    ("smux_accepted_streams", "Streams opened by the peer.", Counter, |s| s.stats.streams_accepted),
    ("smux_refused_streams", "Streams of the peer that were refused.", Counter, |s| s.stats.streams_refused),
    ("smux_failed_streams", "Streams ended for a protocol error of their own.", Counter, |s| s.stats.streams_failed),
    ("smux_reset_streams", "Streams that the peer has reset.", Counter, |s| s.stats.streams_reset),
    ("smux_stalls", "Times that a session was not read, since smuxbuf was full.", Counter, |s| s.stats.stalls),
    ("smux_sent_bytes", "Bytes of frames sent, headers included, before compression.", Counter, |s| s.stats.bytes_sent),
    ("smux_received_bytes", "Bytes of frames received, headers included, without compression.", Counter, |s| s.stats.bytes_received),
    ("smux_sent_payload_bytes", "Bytes of data sent in frames.", Counter, |s| s.stats.payload_sent),
    ("smux_received_payload_bytes", "Bytes of data received in frames.", Counter, |s| s.stats.payload_received),
    ("smux_dropped_payload_bytes", "Bytes of data received for streams that are not read any more.", Counter, |s| s.stats.payload_dropped),
    ("smux_sent_syn_frames", "SYN frames sent: streams opened.", Counter, |s| s.stats.frames_sent.syn),
    ("smux_sent_fin_frames", "FIN frames sent: directions ended, and streams refused.", Counter, |s| s.stats.frames_sent.fin),
    ("smux_sent_psh_frames", "PSH frames sent: data.", Counter, |s| s.stats.frames_sent.psh),
    ("smux_sent_nop_frames", "NOP frames sent: keepalive, and resets of streams.", Counter, |s| s.stats.frames_sent.nop),
    ("smux_sent_upd_frames", "UPD frames sent: window updates of version 2.", Counter, |s| s.stats.frames_sent.upd),
    ("smux_received_syn_frames", "SYN frames received.", Counter, |s| s.stats.frames_received.syn),
    ("smux_received_fin_frames", "FIN frames received.", Counter, |s| s.stats.frames_received.fin),
    ("smux_received_psh_frames", "PSH frames received.", Counter, |s| s.stats.frames_received.psh),
    ("smux_received_nop_frames", "NOP frames received.", Counter, |s| s.stats.frames_received.nop),
    ("smux_received_upd_frames", "UPD frames received.", Counter, |s| s.stats.frames_received.upd),
    ("smux_ignored_frames", "Frames received without effect: SYN of a living stream, FIN, UPD and reset of an unknown one.", Counter, |s| s.stats.frames_ignored),
];

#[cfg(test)]
mod tests {
    use kcpx_smux::{Config, Session};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    fn metric(stats: &TunnelStats, name: &str) -> u64 {
        let report = stats.report("tunnel");
        report.metrics.iter().find(|metric| metric.name == name).unwrap().value
    }

    #[tokio::test]
    async fn counters_of_ended_sessions_stay_and_their_states_do_not() {
        let stats = Arc::new(TunnelStats::default());
        for round in 1..=2 {
            let (near, far) = duplex(65_536);
            let client = Session::client(near, Config::new()).unwrap();
            let server = Session::server(far, Config::new()).unwrap();
            let registration = stats.register(None, None);
            registration.add_session(&server);
            let mut stream = client.open_stream().await.unwrap();
            stream.write_all(b"0123456789").await.unwrap();
            let mut accepted = server.accept_stream().await.unwrap();
            let mut first = [0; 4];
            accepted.read_exact(&mut first).await.unwrap();
            assert_eq!(metric(&stats, "smux_current_streams"), 1);
            assert_eq!(metric(&stats, "smux_unread_bytes"), 6);
            drop(registration);
            assert_eq!(metric(&stats, "smux_current_streams"), 0);
            assert_eq!(metric(&stats, "smux_unread_bytes"), 0);
            assert_eq!(metric(&stats, "smux_accepted_streams"), round);
            assert_eq!(metric(&stats, "smux_received_syn_frames"), round);
            assert_eq!(metric(&stats, "smux_received_psh_frames"), round);
            assert_eq!(metric(&stats, "smux_received_payload_bytes"), 10 * round);
            // Two headers of 8 bytes.
            assert_eq!(metric(&stats, "smux_received_bytes"), 26 * round);
        }
    }

    #[test]
    fn connections_are_counted_at_most() {
        let stats = Arc::new(TunnelStats::default());
        let links: Vec<_> = (0..3).map(|_| Arc::new(Link::default())).collect();
        let registrations: Vec<_> =
            links.iter().map(|link| stats.register(Some(link), None)).collect();
        let without_link = stats.register(None, None);
        drop(registrations);
        drop(without_link);
        let _one = stats.register(Some(&links[0]), None);
        assert_eq!(stats.report("tunnel").snmp.max_conn, 3);
    }

    #[test]
    fn round_trip_is_the_longest_and_queues_are_summed_until_the_connections_end() {
        let stats = Arc::new(TunnelStats::default());
        let registrations: Vec<_> = [(30, 1), (50, 2), (40, 4)]
            .into_iter()
            .map(|(millis, bytes)| {
                let mut connection = ConnectionStats::default();
                connection.path.srtt = Duration::from_millis(millis);
                connection.unsent_bytes = bytes;
                connection.redundancy.redundant_bytes_sent = 10 * bytes;
                let link = Arc::new(Link::default());
                link.set_stats(connection);
                stats.register(Some(&link), None)
            })
            .collect();
        let names = ["kcp_longest_srtt_microseconds", "kcp_unsent_bytes", "kcp_redundant_bytes"];
        assert_eq!(names.map(|name| metric(&stats, name)), [50_000, 7, 70]);
        drop(registrations);
        assert_eq!(names.map(|name| metric(&stats, name)), [0, 0, 70]);
    }

    #[test]
    fn documented_metrics_equal_the_programs() {
        let path = format!("{}/docs/metrics.md", env!("CARGO_MANIFEST_DIR"));
        let document = std::fs::read_to_string(path).unwrap();
        let documented: Vec<_> = document.lines().filter(|line| line.starts_with("| `")).collect();
        let report = TunnelStats::default().report("tunnel");
        let expected: Vec<_> = report
            .metrics
            .iter()
            .map(|metric| {
                let (kind, suffix) = match metric.kind {
                    Counter => ("counter", "_total"),
                    Gauge => ("gauge", ""),
                };
                format!("| `kcpx_{}{suffix}` | {kind} | {} |", metric.name, metric.help)
            })
            .collect();
        assert_eq!(documented, expected);
    }
}
