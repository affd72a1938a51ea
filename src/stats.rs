//! Statistics of connections and endpoints: plain data, with the unit in each name.

mod redundancy;
mod snmp;
mod socket_errors;

use std::ops::Add;
use std::time::Duration;

pub use self::redundancy::RedundancyStats;
pub use self::socket_errors::SocketErrors;
use crate::fec::FecStats;

/// Statistics of one connection since its start. A snapshot.
///
/// ```
/// use kcpx::KcpStream;
///
/// fn report(stream: &KcpStream) {
///     let stats = stream.stats();
///     println!("{:?} round trip, {:?} at least", stats.srtt, stats.min_rtt);
///     println!("{} of {} segments sent again", stats.retransmits(), stats.sent_segments);
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
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
    /// Pacing rate in bytes per second, segment headers included, with
    /// [`CongestionControl::Bbr`](crate::CongestionControl::Bbr); zero while there is none.
    pub pacing_bytes_per_second: u64,
    /// Measured delivery rate of the path in bytes per second, segment headers included, with
    /// [`CongestionControl::Bbr`](crate::CongestionControl::Bbr); zero before the first sample.
    pub delivery_bytes_per_second: u64,
    /// Send window advertised by the peer in segments (RFC 9293 SND.WND).
    pub peer_window_segments: u32,
    /// Segments sent and not yet covered by a cumulative acknowledgement.
    pub in_flight_segments: u32,
    /// Bytes written and not yet sent for the first time.
    pub unsent_bytes: u64,
    /// Size of the largest KCP datagram sent now, in bytes, without the overhead of cipher and FEC: the
    /// configured size, or the smaller one found by path MTU discovery (RFC 8899).
    #[doc(alias = "PMTUD")]
    #[doc(alias = "DPLPMTUD")]
    pub current_mtu: u32,
    /// True once the peer has advertised CONTROL segments, which carry FIN and RST. Peers of this crate
    /// do, kcp-go does not.
    pub peer_supports_control: bool,
    /// Payload bytes sent for the first time.
    pub sent_bytes: u64,
    /// Payload bytes delivered in order.
    pub received_bytes: u64,
    /// Datagrams sent, without the copies of `duplicates`.
    pub sent_datagrams: u64,
    /// Datagrams accepted.
    pub received_datagrams: u64,
    /// Bytes of the datagrams sent, headers included.
    pub sent_datagram_bytes: u64,
    /// Bytes of the datagrams received, headers included.
    pub received_datagram_bytes: u64,
    /// Data segments sent for the first time.
    pub sent_segments: u64,
    /// Fast retransmits: data segments declared lost after later ones were acknowledged.
    pub fast_retransmits: u64,
    /// Early retransmits (RFC 5827): one later segment was acknowledged, and no new data was queued.
    pub early_retransmits: u64,
    /// Data segments retransmitted after their RTO.
    pub timeout_retransmits: u64,
    /// Additional copies of retransmissions, sent at frequent losses.
    pub redundant_retransmits: u64,
    /// Spurious retransmissions: the original arrived (RFC 3522).
    pub spurious_retransmits: u64,
    /// Data segments received for the first time.
    pub received_segments: u64,
    /// Duplicate data segments received.
    pub duplicate_segments: u64,
    /// Data segments discarded outside the receive window or above its memory.
    pub out_of_window_segments: u64,
    /// ACKs of a segment never sent, or with a wrong timestamp.
    pub invalid_acks: u64,
    /// Cumulative ACKs (`una`) of segments never sent.
    pub invalid_una: u64,
    /// Datagrams with a `una` older than the newest.
    pub stale_una_datagrams: u64,
    /// Zero-window probes sent (RFC 9293 3.8.6.1).
    pub window_probes: u64,
    /// Pings sent: for keepalive, address validation, and before an MTU probe.
    pub pings_sent: u64,
    /// MTU probes sent (RFC 8899); none while full segments are acknowledged.
    pub mtu_probes_sent: u64,
    /// Ignored CONTROL segments (FIN, RST) that contradicted the state or were not authentic.
    pub invalid_control_segments: u64,
    /// Reflected datagrams: sent by this side and received again.
    pub reflected_datagrams: u64,
    /// Out-of-band datagrams sent.
    pub out_of_band_sent: u64,
    /// Out-of-band datagrams received.
    pub out_of_band_received: u64,
    /// Out-of-band datagrams dropped from a full queue, the oldest first.
    pub out_of_band_dropped: u64,
    /// Redundancy against losses.
    pub redundancy: RedundancyStats,
    /// FEC decoding of the datagrams from the peer's address.
    pub fec: FecStats,
}

impl ConnectionStats {
    /// Returns all retransmissions of data segments.
    #[must_use]
    pub fn retransmits(&self) -> u64 {
        self.fast_retransmits
            + self.early_retransmits
            + self.timeout_retransmits
            + self.redundant_retransmits
    }

    /// Returns the share of retransmissions in all data segments sent, in percent.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn retransmit_percent(&self) -> f64 {
        let sent = self.sent_segments + self.retransmits();
        if sent == 0 { 0.0 } else { self.retransmits() as f64 * 100.0 / sent as f64 }
    }
}

/// Counters of a connection's state machine. Each connection has them twice, also in the snapshot for its
/// handles, so other fields do not belong here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_datagrams: u64,
    pub(crate) received_datagrams: u64,
    pub(crate) sent_datagram_bytes: u64,
    pub(crate) received_datagram_bytes: u64,
    pub(crate) sent_segments: u64,
    pub(crate) fast_retransmits: u64,
    pub(crate) early_retransmits: u64,
    pub(crate) redundant_retransmits: u64,
    pub(crate) timeout_retransmits: u64,
    pub(crate) spurious_retransmits: u64,
    pub(crate) received_segments: u64,
    pub(crate) duplicate_segments: u64,
    pub(crate) out_of_window_segments: u64,
    pub(crate) invalid_acks: u64,
    pub(crate) invalid_una: u64,
    pub(crate) stale_una_datagrams: u64,
    pub(crate) window_probes: u64,
    pub(crate) pings_sent: u64,
    pub(crate) mtu_probes_sent: u64,
    pub(crate) invalid_control_segments: u64,
    pub(crate) reflected_datagrams: u64,
}

impl Counters {
    /// Converts to the public statistics, without the estimates.
    pub(crate) fn stats(&self) -> ConnectionStats {
        ConnectionStats {
            sent_bytes: self.sent_bytes,
            received_bytes: self.received_bytes,
            sent_datagrams: self.sent_datagrams,
            received_datagrams: self.received_datagrams,
            sent_datagram_bytes: self.sent_datagram_bytes,
            received_datagram_bytes: self.received_datagram_bytes,
            sent_segments: self.sent_segments,
            fast_retransmits: self.fast_retransmits,
            early_retransmits: self.early_retransmits,
            redundant_retransmits: self.redundant_retransmits,
            timeout_retransmits: self.timeout_retransmits,
            spurious_retransmits: self.spurious_retransmits,
            received_segments: self.received_segments,
            duplicate_segments: self.duplicate_segments,
            out_of_window_segments: self.out_of_window_segments,
            invalid_acks: self.invalid_acks,
            invalid_una: self.invalid_una,
            stale_una_datagrams: self.stale_una_datagrams,
            window_probes: self.window_probes,
            pings_sent: self.pings_sent,
            mtu_probes_sent: self.mtu_probes_sent,
            invalid_control_segments: self.invalid_control_segments,
            reflected_datagrams: self.reflected_datagrams,
            ..ConnectionStats::default()
        }
    }
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
        let estimates = &self.estimates;
        ConnectionStats {
            srtt: Duration::from_micros(estimates.srtt),
            rttvar: Duration::from_micros(estimates.rttvar),
            rto: Duration::from_micros(estimates.rto),
            min_rtt: Duration::from_micros(estimates.min_rtt),
            cwnd_segments: estimates.cwnd_segments,
            pacing_bytes_per_second: estimates.pacing_rate,
            delivery_bytes_per_second: estimates.delivery_rate,
            peer_window_segments: estimates.peer_window_segments,
            in_flight_segments: estimates.in_flight_segments,
            unsent_bytes: estimates.unsent_bytes,
            current_mtu: estimates.current_mtu.into(),
            peer_supports_control: estimates.peer_supports_control,
            out_of_band_sent: self.out_of_band.0,
            out_of_band_received: self.out_of_band.1,
            redundancy: self.redundancy.as_deref().copied().unwrap_or_default(),
            fec: self.fec.as_deref().copied().unwrap_or_default(),
            ..self.counters.stats()
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

/// Statistics of one endpoint since its start. A snapshot.
///
/// ```
/// use kcpx::KcpListener;
///
/// fn report(listener: &KcpListener) {
///     let stats = listener.stats();
///     println!("{} connections, {} accepted", stats.current_connections, stats.passive_opens);
///     if stats.dropped_checksum > 0 {
///         println!("{} datagrams do not open: another key or cipher?", stats.dropped_checksum);
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// Connections now, lingering ones included (kcp-go CurrEstab).
    pub current_connections: u64,
    /// Connections opened by peers (RFC 4022 tcpPassiveOpens).
    pub passive_opens: u64,
    /// Connections opened by this side (RFC 4022 tcpActiveOpens).
    pub active_opens: u64,
    /// Datagrams received.
    pub received_datagrams: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Datagrams handed to the kernel.
    pub sent_datagrams: u64,
    /// Bytes handed to the kernel.
    pub sent_bytes: u64,
    /// Datagrams sealed by this endpoint. A key serves all peers and endpoints that share it: replace it
    /// before their sum over both sides reaches 2^32.
    pub sealed_datagrams: u64,
    /// Dropped: wrong checksum or tag (kcp-go InCsumErrors).
    pub dropped_checksum: u64,
    /// Dropped: reflected, sent by this endpoint itself.
    pub dropped_reflected: u64,
    /// Dropped: replayed, found by `replay_window`.
    pub dropped_replayed: u64,
    /// Dropped: shorter than a segment header.
    pub dropped_truncated: u64,
    /// Dropped: malformed segment (unknown command, wrong length, several conversation ids).
    pub dropped_malformed: u64,
    /// Dropped: unknown connection, and not an initial segment.
    pub dropped_no_connection: u64,
    /// Dropped: connection in TIME-WAIT.
    pub dropped_time_wait: u64,
    /// Dropped: out-of-band datagrams of unvalidated peers.
    pub dropped_unvalidated: u64,
    /// Refused initial segments: the endpoint does not listen, or drains. They get no answer during a
    /// hand-over.
    pub refused_no_listener: u64,
    /// Refused initial segments: `max_connections` reached.
    pub refused_max_connections: u64,
    /// Refused initial segments and migrations: their source (an IPv4 address or IPv6 /64 prefix) is at
    /// [`Limits::max_per_source`](crate::Limits::max_per_source).
    pub refused_max_per_source: u64,
    /// Refused initial segments: `backlog` full.
    pub refused_backlog: u64,
    /// Initial segments that opened nothing, since more than half of `max_unvalidated` or of the memory
    /// of unvalidated peers was in use. `retries_sent` counts the answered ones.
    pub refused_max_unvalidated: u64,
    /// Answers to a Retry that were dropped for others, since their source (an IPv4 address or IPv6 /64
    /// prefix) had most of them.
    pub retry_answers_evicted: u64,
    /// Pings sent in stateless answers to initial segments (Retry, RFC 9000 8.1.2).
    pub retries_sent: u64,
    /// ACKs of these pings; the next copy of the initial segment then opens the connection.
    pub retries_answered: u64,
    /// Stateless RSTs sent (Stateless Reset, RFC 9000 10.3): to peers that ping an unknown connection,
    /// and to refused initial segments.
    pub stateless_resets_sent: u64,
    /// Connections of unvalidated peers now.
    pub unvalidated_connections: u64,
    /// Memory of all connections in bytes, see [`Limits::memory`](crate::Limits::memory).
    pub memory_bytes: u64,
    /// Part of it held by unvalidated peers.
    pub unvalidated_bytes: u64,
    /// Migrations to another address of the peer.
    pub migrations: u64,
    /// Initial segments of existing connections, each answered with a ping that detects a restart.
    pub restart_probes: u64,
    /// Refused initial segments: by the accept filter.
    pub refused_accept_filter: u64,
    /// Refused initial segments: another address uses their conversation id under the same key, see
    /// [`Config::conv`](crate::Config::conv).
    pub refused_conv_in_use: u64,
    /// Datagrams of other protocols, taken by the packet filter.
    pub packet_filter_datagrams: u64,
    /// Datagrams sent by [`send_raw`](crate::Endpoint::send_raw).
    pub raw_sent_datagrams: u64,
    /// Datagrams of [`send_raw`](crate::Endpoint::send_raw) dropped from a full queue.
    pub raw_dropped_datagrams: u64,
    /// Transient receive errors.
    pub recv_errors: u64,
    /// Receive errors by class.
    pub recv_errors_by_class: SocketErrors,
    /// Send errors, counted as loss.
    pub send_errors: u64,
    /// Send errors by class.
    pub send_errors_by_class: SocketErrors,
    /// Out-of-band datagrams received for an existing connection.
    pub out_of_band_received: u64,
    /// FEC decoding of the datagrams from all addresses.
    pub fec: FecStats,
}

/// Sum over several sockets.
impl Add for EndpointStats {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        let mut fec = self.fec;
        fec += more.fec;
        Self {
            current_connections: self.current_connections + more.current_connections,
            passive_opens: self.passive_opens + more.passive_opens,
            active_opens: self.active_opens + more.active_opens,
            received_datagrams: self.received_datagrams + more.received_datagrams,
            received_bytes: self.received_bytes + more.received_bytes,
            sent_datagrams: self.sent_datagrams + more.sent_datagrams,
            sent_bytes: self.sent_bytes + more.sent_bytes,
            sealed_datagrams: self.sealed_datagrams + more.sealed_datagrams,
            dropped_checksum: self.dropped_checksum + more.dropped_checksum,
            dropped_reflected: self.dropped_reflected + more.dropped_reflected,
            dropped_replayed: self.dropped_replayed + more.dropped_replayed,
            dropped_truncated: self.dropped_truncated + more.dropped_truncated,
            dropped_malformed: self.dropped_malformed + more.dropped_malformed,
            dropped_no_connection: self.dropped_no_connection + more.dropped_no_connection,
            dropped_unvalidated: self.dropped_unvalidated + more.dropped_unvalidated,
            dropped_time_wait: self.dropped_time_wait + more.dropped_time_wait,
            refused_no_listener: self.refused_no_listener + more.refused_no_listener,
            refused_max_connections: self.refused_max_connections + more.refused_max_connections,
            refused_max_per_source: self.refused_max_per_source + more.refused_max_per_source,
            refused_backlog: self.refused_backlog + more.refused_backlog,
            refused_max_unvalidated: self.refused_max_unvalidated + more.refused_max_unvalidated,
            retry_answers_evicted: self.retry_answers_evicted + more.retry_answers_evicted,
            unvalidated_connections: self.unvalidated_connections + more.unvalidated_connections,
            retries_sent: self.retries_sent + more.retries_sent,
            retries_answered: self.retries_answered + more.retries_answered,
            stateless_resets_sent: self.stateless_resets_sent + more.stateless_resets_sent,
            memory_bytes: self.memory_bytes + more.memory_bytes,
            unvalidated_bytes: self.unvalidated_bytes + more.unvalidated_bytes,
            migrations: self.migrations + more.migrations,
            restart_probes: self.restart_probes + more.restart_probes,
            refused_accept_filter: self.refused_accept_filter + more.refused_accept_filter,
            refused_conv_in_use: self.refused_conv_in_use + more.refused_conv_in_use,
            packet_filter_datagrams: self.packet_filter_datagrams + more.packet_filter_datagrams,
            raw_sent_datagrams: self.raw_sent_datagrams + more.raw_sent_datagrams,
            raw_dropped_datagrams: self.raw_dropped_datagrams + more.raw_dropped_datagrams,
            recv_errors: self.recv_errors + more.recv_errors,
            recv_errors_by_class: self.recv_errors_by_class + more.recv_errors_by_class,
            send_errors: self.send_errors + more.send_errors,
            send_errors_by_class: self.send_errors_by_class + more.send_errors_by_class,
            out_of_band_received: self.out_of_band_received + more.out_of_band_received,
            fec,
        }
    }
}
