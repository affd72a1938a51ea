//! Statistics of connections and endpoints: plain data in groups.
//!
//! [`ConnectionStats`] and [`EndpointStats`] are snapshots. Groups of counters can be added, for example
//! over all connections:
//!
//! ```
//! use kcpx::KcpStream;
//! use kcpx::stats::TrafficStats;
//!
//! fn sent(streams: &[KcpStream]) -> TrafficStats {
//!     let mut sum = TrafficStats::default();
//!     for stream in streams {
//!         sum += stream.stats().sent;
//!     }
//!     sum
//! }
//! ```

mod snmp;

use std::ops::{Add, AddAssign};
use std::time::Duration;

use crate::fec::FecStats;

/// Defines a struct of counters and its sum.
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[$doc:meta])* pub $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, more: Self) {
                $(self.$field += more.$field;)*
            }
        }

        impl Add for $name {
            type Output = Self;

            fn add(mut self, more: Self) -> Self {
                self += more;
                self
            }
        }
    };
}

/// Statistics of one connection since its start. A snapshot.
///
/// ```
/// use kcpx::KcpStream;
///
/// fn report(stream: &KcpStream) {
///     let stats = stream.stats();
///     println!("{:?} round trip, {:?} at least", stats.path.srtt, stats.path.min_rtt);
///     println!("{} of {} segments sent again", stats.retransmits(), stats.sent.segments);
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Estimates of the path and state of the windows, now.
    pub path: PathStats,
    /// Sent: data for the first time, datagrams without the copies of `duplicates`.
    pub sent: TrafficStats,
    /// Received: data for the first time, and accepted datagrams.
    pub received: TrafficStats,
    /// Data segments sent again.
    pub retransmit: RetransmitStats,
    /// Sent probes of the path and the peer.
    pub probes: ProbeStats,
    /// Received and unexpected: duplicate, old or invalid.
    pub anomalies: AnomalyStats,
    /// Out-of-band datagrams.
    pub out_of_band: OutOfBandStats,
    /// Redundancy against losses.
    pub redundancy: RedundancyStats,
    /// FEC decoding of the datagrams from the peer's address.
    pub fec: FecStats,
    /// Bytes written and not yet sent for the first time.
    pub unsent_bytes: u64,
    /// True once the peer has advertised CONTROL segments, which carry FIN and RST. Peers of this crate
    /// do, kcp-go does not.
    pub peer_supports_control: bool,
}

impl ConnectionStats {
    /// Returns all retransmissions of data segments.
    #[must_use]
    pub fn retransmits(&self) -> u64 {
        let RetransmitStats { fast, early, timeout, redundant, .. } = self.retransmit;
        fast + early + timeout + redundant
    }

    /// Returns the share of retransmissions in all data segments sent, in percent.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn retransmit_percent(&self) -> f64 {
        let sent = self.sent.segments + self.retransmits();
        if sent == 0 { 0.0 } else { self.retransmits() as f64 * 100.0 / sent as f64 }
    }
}

/// Estimates of a path and the windows of its connection, now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStats {
    /// Smoothed round-trip time (RFC 6298); zero before the first sample.
    pub srtt: Duration,
    /// Round-trip time variation (RFC 6298).
    pub rttvar: Duration,
    /// Current retransmission timeout.
    pub rto: Duration,
    /// Minimum round-trip time; zero before the first sample.
    pub min_rtt: Duration,
    /// Congestion window in segments; the send window without congestion control.
    pub cwnd_segments: u32,
    /// Send window advertised by the peer in segments (RFC 9293 SND.WND).
    pub peer_window_segments: u32,
    /// Segments sent and not yet covered by a cumulative acknowledgement.
    pub in_flight_segments: u32,
    /// Pacing rate in bytes per second, segment headers included, with
    /// [`CongestionControl::Bbr`](crate::CongestionControl::Bbr); zero while there is none.
    pub pacing_bytes_per_second: u64,
    /// Measured delivery rate of the path in bytes per second, segment headers included, with
    /// [`CongestionControl::Bbr`](crate::CongestionControl::Bbr); zero before the first sample.
    pub delivery_bytes_per_second: u64,
    /// Size of the largest KCP datagram sent now, in bytes, without the overhead of cipher and FEC: the
    /// configured size, or the smaller one found by path MTU discovery (RFC 8899).
    #[doc(alias = "PMTUD")]
    #[doc(alias = "DPLPMTUD")]
    pub current_mtu: u32,
}

counters! {
    /// Traffic of a connection in one direction.
    pub struct TrafficStats {
        /// Payload bytes: sent for the first time, or delivered in order.
        pub payload_bytes: u64,
        /// Data segments: sent or received for the first time.
        pub segments: u64,
        /// Datagrams.
        pub datagrams: u64,
        /// Bytes of the datagrams, headers included.
        pub datagram_bytes: u64,
    }
}

counters! {
    /// Retransmissions of data segments. [`ConnectionStats::retransmits`] is the sum of the first four.
    pub struct RetransmitStats {
        /// Fast retransmits: declared lost after later segments were acknowledged.
        pub fast: u64,
        /// Early retransmits (RFC 5827): one later segment was acknowledged, and no new data was queued.
        pub early: u64,
        /// Retransmitted after their RTO.
        pub timeout: u64,
        /// Additional copies of retransmissions, sent at frequent losses.
        pub redundant: u64,
        /// Spurious retransmissions, counted above as well: the original arrived (RFC 3522).
        pub spurious: u64,
    }
}

counters! {
    /// Probes of the path and the peer that were sent.
    pub struct ProbeStats {
        /// Zero-window probes (RFC 9293 3.8.6.1).
        pub zero_window: u64,
        /// Pings: for keepalive, address validation, and before an MTU probe.
        pub pings: u64,
        /// MTU probes (RFC 8899); none while full segments are acknowledged.
        pub mtu: u64,
    }
}

counters! {
    /// Segments and datagrams of a connection that were received and duplicate, old or invalid.
    pub struct AnomalyStats {
        /// Duplicate data segments.
        pub duplicate_segments: u64,
        /// Data segments discarded outside the receive window or above its memory.
        pub out_of_window_segments: u64,
        /// ACKs of a segment never sent, or with a wrong timestamp.
        pub invalid_acks: u64,
        /// Cumulative ACKs (`una`) of segments never sent.
        pub invalid_una: u64,
        /// Datagrams with a `una` older than the newest.
        pub stale_una_datagrams: u64,
        /// Ignored CONTROL segments (FIN, RST) that contradicted the state or were not authentic.
        pub invalid_control_segments: u64,
        /// Reflected datagrams: sent by this side and received again.
        pub reflected_datagrams: u64,
    }
}

counters! {
    /// Out-of-band datagrams of a connection.
    pub struct OutOfBandStats {
        /// Datagrams sent.
        pub sent: u64,
        /// Datagrams received.
        pub received: u64,
        /// Datagrams dropped from a full queue, the oldest first.
        pub dropped: u64,
    }
}

/// Redundancy of a connection, see [`Redundancy`](crate::Redundancy): its current amount, and counters
/// since the start.
///
/// ```
/// let stats = kcpx::stats::RedundancyStats::default();
/// assert_eq!((stats.repair_per_mille, stats.parity_packets_sent), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedundancyStats {
    /// Estimated loss of data segments sent for the first time, per million: over the last ten seconds,
    /// or the last second if that is more. Includes segments that the peer recovered. Zero before the
    /// first loss and, without automatic redundancy, after an idle time.
    pub loss_per_million: u32,
    /// Bytes of repair symbols sent now per 1,000 bytes of data; zero while the peer accepts none.
    pub repair_per_mille: u32,
    /// Bytes of copies in datagrams with newer segments sent now per 1,000 bytes of data.
    pub bundling_per_mille: u32,
    /// Repair symbols sent.
    pub repair_symbols_sent: u64,
    /// Repair symbols received, including ignored ones.
    pub repair_symbols_received: u64,
    /// Ignored repair symbols: malformed, outside the window or inconsistent.
    pub invalid_repair_symbols: u64,
    /// The peer's data segments recovered with repair symbols.
    /// [`ConnectionStats::fec`] counts those recovered with parity.
    pub recovered_segments: u64,
    /// This side's data segments that the peer recovered with repair symbols.
    pub recovered_by_peer_segments: u64,
    /// Copies of segments sent in datagrams with newer ones, or 20 ms after them.
    pub bundled_copies: u64,
    /// FEC parity packets sent with the data of this connection.
    pub parity_packets_sent: u64,
    /// Bytes of repair symbols, copies and parity packets, including headers of segments and FEC,
    /// excluding IP, UDP and the cipher. Copies of retransmissions count as
    /// [`RetransmitStats::redundant`] instead.
    pub redundant_bytes_sent: u64,
    /// Window updates that filled FEC groups, so that their parity left in time.
    pub fec_fillers_sent: u64,
}

/// Counters of a connection's state machine. Each connection has them twice, also in the snapshot for its
/// handles, so other fields do not belong here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sent: TrafficStats,
    pub(crate) received: TrafficStats,
    pub(crate) retransmit: RetransmitStats,
    pub(crate) probes: ProbeStats,
    pub(crate) anomalies: AnomalyStats,
}

/// Estimates of a connection's state machine. Times in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimates {
    pub(crate) srtt: u64,
    pub(crate) rttvar: u64,
    pub(crate) rto: u64,
    pub(crate) min_rtt: u64,
    pub(crate) cwnd_segments: u32,
    /// Bytes per second.
    pub(crate) pacing_rate: u64,
    pub(crate) delivery_rate: u64,
    pub(crate) peer_window_segments: u32,
    pub(crate) in_flight_segments: u32,
    pub(crate) unsent_bytes: u64,
    /// At most 65,507 bytes.
    pub(crate) current_mtu: u16,
    pub(crate) peer_supports_control: bool,
}

impl Estimates {
    fn path(&self) -> PathStats {
        PathStats {
            srtt: Duration::from_micros(self.srtt),
            rttvar: Duration::from_micros(self.rttvar),
            rto: Duration::from_micros(self.rto),
            min_rtt: Duration::from_micros(self.min_rtt),
            cwnd_segments: self.cwnd_segments,
            peer_window_segments: self.peer_window_segments,
            in_flight_segments: self.in_flight_segments,
            pacing_bytes_per_second: self.pacing_rate,
            delivery_bytes_per_second: self.delivery_rate,
            current_mtu: self.current_mtu.into(),
        }
    }
}

/// Snapshot of a connection for its handles.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) counters: Counters,
    pub(crate) estimates: Estimates,
    /// Sent and received out-of-band datagrams.
    pub(crate) out_of_band: (u64, u64),
    /// `None` while all counters are zero.
    pub(crate) redundancy: Option<Box<RedundancyStats>>,
    /// `None` without FEC packets from the address.
    pub(crate) fec: Option<Box<FecStats>>,
}

impl Snapshot {
    /// A snapshot of the state machine.
    pub(crate) fn of(
        counters: Counters,
        estimates: Estimates,
        redundancy: Option<RedundancyStats>,
    ) -> Self {
        let redundancy = redundancy.map(Box::new);
        Self { counters, estimates, out_of_band: (0, 0), redundancy, fec: None }
    }

    pub(crate) fn set_redundancy(&mut self, redundancy: Option<RedundancyStats>) {
        set_boxed(&mut self.redundancy, redundancy);
    }

    pub(crate) fn set_fec(&mut self, fec: Option<FecStats>) {
        set_boxed(&mut self.fec, fec);
    }

    /// Converts to the public statistics.
    pub(crate) fn stats(&self) -> ConnectionStats {
        let Self { counters, estimates, .. } = self;
        let (sent, received) = self.out_of_band;
        ConnectionStats {
            path: estimates.path(),
            sent: counters.sent,
            received: counters.received,
            retransmit: counters.retransmit,
            probes: counters.probes,
            anomalies: counters.anomalies,
            out_of_band: OutOfBandStats { sent, received, dropped: 0 },
            redundancy: self.redundancy.as_deref().copied().unwrap_or_default(),
            fec: self.fec.as_deref().copied().unwrap_or_default(),
            unsent_bytes: estimates.unsent_bytes,
            peer_supports_control: estimates.peer_supports_control,
        }
    }
}

/// Sets the value in the existing allocation.
fn set_boxed<T>(known: &mut Option<Box<T>>, value: Option<T>) {
    match (known, value) {
        (Some(known), Some(value)) => **known = value,
        (known, value) => *known = value.map(Box::new),
    }
}

counters! {
    /// Statistics of one endpoint since its start, over all its sockets. A snapshot.
    ///
    /// ```
    /// use kcpx::KcpListener;
    ///
    /// fn report(listener: &KcpListener) {
    ///     let stats = listener.stats();
    ///     let connections = stats.connections;
    ///     println!("{} connections, {} accepted", connections.current, connections.passive_opens);
    ///     if stats.dropped.checksum > 0 {
    ///         println!("{} datagrams do not open: another key or cipher?", stats.dropped.checksum);
    ///     }
    /// }
    /// ```
    pub struct EndpointStats {
        /// Connections.
        pub connections: ConnectionCounts,
        /// Memory of the connections.
        pub memory: MemoryStats,
        /// Handed to the kernel.
        pub sent: UdpStats,
        /// Received from the kernel.
        pub received: UdpStats,
        /// Datagrams sealed by this endpoint. A key serves all peers and endpoints that share it: replace
        /// it before their sum over both sides reaches 2^32.
        pub sealed_datagrams: u64,
        /// Dropped datagrams by reason.
        pub dropped: DroppedStats,
        /// Refused initial segments by reason.
        pub refused: RefusedStats,
        /// Stateless answers to initial segments (Retry, RFC 9000 8.1.2).
        pub retry: RetryStats,
        /// Stateless RSTs sent (Stateless Reset, RFC 9000 10.3): to peers that ping an unknown connection,
        /// and to refused initial segments.
        pub stateless_resets_sent: u64,
        /// Out-of-band datagrams received for an existing connection.
        pub out_of_band_received: u64,
        /// Datagrams of other protocols on the same port.
        pub raw: RawStats,
        /// Transient receive errors by class.
        pub recv_errors: SocketErrors,
        /// Send errors by class, counted as loss.
        pub send_errors: SocketErrors,
        /// FEC decoding of the datagrams from all addresses.
        pub fec: FecStats,
    }
}

counters! {
    /// Connections of an endpoint.
    pub struct ConnectionCounts {
        /// Connections now, lingering ones included (kcp-go CurrEstab).
        pub current: u64,
        /// Connections of unvalidated peers now.
        pub unvalidated: u64,
        /// Connections opened by peers (RFC 4022 tcpPassiveOpens).
        pub passive_opens: u64,
        /// Connections opened by this side (RFC 4022 tcpActiveOpens).
        pub active_opens: u64,
        /// Migrations to another address of the peer.
        pub migrations: u64,
        /// Initial segments of existing connections, each answered with a ping that detects a restart.
        pub restart_probes: u64,
    }
}

counters! {
    /// Memory of the connections of an endpoint, now.
    pub struct MemoryStats {
        /// Memory of all connections in bytes, see [`Limits::memory`](crate::Limits::memory).
        pub total_bytes: u64,
        /// Part of it held by unvalidated peers.
        pub unvalidated_bytes: u64,
    }
}

counters! {
    /// UDP traffic of an endpoint in one direction.
    pub struct UdpStats {
        /// Datagrams.
        pub datagrams: u64,
        /// Bytes of their payload.
        pub bytes: u64,
    }
}

counters! {
    /// Datagrams that an endpoint dropped.
    pub struct DroppedStats {
        /// Wrong checksum or tag (kcp-go InCsumErrors).
        pub checksum: u64,
        /// Reflected: sent by this endpoint itself.
        pub reflected: u64,
        /// Replayed, found by `replay_window`.
        pub replayed: u64,
        /// Shorter than a segment header.
        pub truncated: u64,
        /// Malformed segment: unknown command, wrong length, several conversation ids.
        pub malformed: u64,
        /// Unknown connection, and not an initial segment.
        pub no_connection: u64,
        /// Connection in TIME-WAIT.
        pub time_wait: u64,
        /// Out-of-band datagrams of unvalidated peers.
        pub unvalidated: u64,
    }
}

counters! {
    /// Initial segments that opened no connection.
    pub struct RefusedStats {
        /// The endpoint does not listen, or drains. They get no answer during a hand-over.
        pub no_listener: u64,
        /// [`Limits::max_connections`](crate::Limits::max_connections) reached.
        pub max_connections: u64,
        /// Their source (an IPv4 address or IPv6 /64 prefix) is at
        /// [`Limits::max_per_source`](crate::Limits::max_per_source). Counts migrations as well.
        pub max_per_source: u64,
        /// [`Limits::backlog`](crate::Limits::backlog) full.
        pub backlog: u64,
        /// More than half of [`Limits::max_unvalidated`](crate::Limits::max_unvalidated) or of the memory
        /// of unvalidated peers was in use. [`RetryStats::sent`] counts the answered ones.
        pub max_unvalidated: u64,
        /// Refused by the [accept filter](crate::Config::accept_filter).
        pub accept_filter: u64,
        /// Another address uses their conversation id under the same key, see
        /// [`Config::conv`](crate::Config::conv).
        pub conv_in_use: u64,
    }
}

counters! {
    /// Stateless answers of an endpoint to initial segments (Retry, RFC 9000 8.1.2).
    pub struct RetryStats {
        /// Pings sent.
        pub sent: u64,
        /// ACKs of these pings; the next copy of the initial segment then opens the connection.
        pub answered: u64,
        /// ACKs that were dropped for others, since their source (an IPv4 address or IPv6 /64 prefix) had
        /// most of them.
        pub answers_evicted: u64,
    }
}

counters! {
    /// Datagrams of other protocols on the port of an endpoint.
    pub struct RawStats {
        /// Taken by the [packet filter](crate::Config::packet_filter).
        pub filtered: u64,
        /// Sent by [`send_raw`](crate::Endpoint::send_raw).
        pub sent: u64,
        /// Dropped from the full queue of [`send_raw`](crate::Endpoint::send_raw).
        pub dropped: u64,
    }
}

counters! {
    /// Transient socket errors by class. They do not end the endpoint.
    ///
    /// ```
    /// use kcpx::Endpoint;
    ///
    /// fn report(endpoint: &Endpoint) {
    ///     let stats = endpoint.stats();
    ///     let (out, back) = (stats.send_errors, stats.recv_errors);
    ///     println!("{} refused, {} without a route", back.refused, out.unreachable);
    ///     println!("{} without a buffer of the system", out.no_buffers);
    /// }
    /// ```
    pub struct SocketErrors {
        /// The datagram exceeds the MTU of the path or system (`EMSGSIZE`).
        pub too_large: u64,
        /// The system was out of buffers (`ENOBUFS`, `ENOMEM`).
        pub no_buffers: u64,
        /// Denied, for example by a firewall (`EPERM`, `EACCES`).
        pub denied: u64,
        /// The peer's port is closed (`ECONNREFUSED`, `ECONNRESET`).
        pub refused: u64,
        /// No route to the peer, or the local address is gone (`ENETUNREACH`, `EHOSTUNREACH`, `ENETDOWN`,
        /// `EADDRNOTAVAIL`).
        pub unreachable: u64,
        /// All other errors.
        pub other: u64,
    }
}

impl SocketErrors {
    /// Returns the errors of all classes.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self { too_large, no_buffers, denied, refused, unreachable, other } = self;
        too_large + no_buffers + denied + refused + unreachable + other
    }
}
