//! Counters of tunnels, read on demand: by the log on SIGUSR1, the CSV file, Prometheus.

use std::fmt;
use std::ops::Add;
use std::sync::{Arc, Mutex, PoisonError};

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

macro_rules! snapshot {
    ($($(#[$doc:meta])* $field:ident: $column:literal),* $(,)?) => {
        /// Counters by the names of kcp-go's `Snmp` (March 2026). A column without a counter in this
        /// crate stays 0.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Snapshot {
            /// Column names in kcp-go's order (`Snmp.Header`).
            pub const COLUMNS: [&str; 30] = [$($column),*];

            /// Returns the values in the order of the columns.
            #[must_use]
            pub fn values(&self) -> [u64; 30] {
                [$(self.$field),*]
            }
        }

        /// Sum over several tunnels.
        impl Add for Snapshot {
            type Output = Self;

            fn add(self, more: Self) -> Self {
                Self { $($field: self.$field.saturating_add(more.$field)),* }
            }
        }
    };
}

snapshot! {
    /// Bytes that streams accepted from this side.
    bytes_sent: "BytesSent",
    /// Bytes that streams delivered to this side.
    bytes_received: "BytesReceived",
    /// Most concurrent KCP connections.
    max_conn: "MaxConn",
    /// Connections opened by this side.
    active_opens: "ActiveOpens",
    /// Connections opened by peers.
    passive_opens: "PassiveOpens",
    /// Current connections.
    curr_estab: "CurrEstab",
    /// Receive errors, and truncated datagrams.
    in_errs: "InErrs",
    /// Datagrams with a wrong checksum or tag.
    in_csum_errors: "InCsumErrors",
    /// Malformed datagrams.
    kcp_in_errors: "KCPInErrors",
    /// Datagrams received.
    in_pkts: "InPkts",
    /// Datagrams sent.
    out_pkts: "OutPkts",
    /// Data segments received.
    in_segs: "InSegs",
    /// Data segments sent, including retransmissions.
    out_segs: "OutSegs",
    /// Bytes of the datagrams received.
    in_bytes: "InBytes",
    /// Bytes of the datagrams sent.
    out_bytes: "OutBytes",
    /// Retransmissions.
    retrans_segs: "RetransSegs",
    /// Fast retransmits.
    fast_retrans_segs: "FastRetransSegs",
    /// Early retransmits.
    early_retrans_segs: "EarlyRetransSegs",
    /// Retransmissions after an RTO.
    lost_segs: "LostSegs",
    /// Duplicate data segments received.
    duplicate_segs: "RepeatSegs",
    /// FEC groups with all data packets received.
    fec_full_shards: "FECFullShards",
    /// FEC parity packets received.
    fec_parity_shards: "FECParityShards",
    /// FEC groups that did not decode.
    fec_errs: "FECErrs",
    /// Packets recovered by FEC.
    fec_recovered: "FECRecovered",
    /// FEC groups held by the decoder.
    fec_shard_set: "FECShardSet",
    /// Number of the newest FEC group.
    fec_shard_min: "FECShardMin",
    /// Capacity of the send queue in segments.
    ring_buffer_snd_queue: "RingBufferSndQueue",
    /// Capacity of the receive queue in segments.
    ring_buffer_rcv_queue: "RingBufferRcvQueue",
    /// Capacity of the buffer of segments in flight.
    ring_buffer_snd_buffer: "RingBufferSndBuffer",
    /// Out-of-band datagrams received.
    oob_packets: "OOBPackets",
}
