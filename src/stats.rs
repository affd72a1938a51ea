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
    /// Retransmission timeout of a segment sent now.
    pub rto: Duration,
    /// Minimum round-trip time; zero before the first sample.
    pub min_rtt: Duration,
    /// Congestion window in segments; the send window without congestion control.
    pub cwnd_segments: u32,
    /// Rate at which data may leave, segment headers included, in bytes per second, with
    /// [`CongestionControl::Model`](crate::CongestionControl::Model); zero while it sets none.
    pub pacing_bytes_per_second: u64,
    /// Rate at which the path delivers data, segment headers included, in bytes per second, as
    /// measured with [`CongestionControl::Model`](crate::CongestionControl::Model); zero before the
    /// first sample.
    pub delivery_bytes_per_second: u64,
    /// Send window advertised by the peer in segments (RFC 9293 SND.WND).
    pub peer_window_segments: u32,
    /// Segments sent and not yet covered by a cumulative acknowledgement.
    pub in_flight_segments: u32,
    /// Bytes written and not yet sent for the first time.
    pub unsent_bytes: u64,
    /// Largest KCP datagram in bytes that is sent now, without the overhead of cipher and FEC: the
    /// configured size, or the smaller one that path MTU discovery found (RFC 8899).
    #[doc(alias = "PMTUD")]
    #[doc(alias = "DPLPMTUD")]
    pub current_mtu: u32,
    /// True once the peer has advertised CONTROL segments, which carry FIN and RST: peers of this crate do,
    /// kcp-go does not.
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
    /// Fast retransmits: data segments lost since enough later ones were acknowledged.
    pub fast_retransmits: u64,
    /// Early retransmits (RFC 5827): one later segment was acknowledged and no new data queued.
    pub early_retransmits: u64,
    /// Data segments retransmitted after their RTO.
    pub timeout_retransmits: u64,
    /// Further copies of retransmissions, sent where losses are frequent.
    pub redundant_retransmits: u64,
    /// Spurious retransmissions: the original arrived (RFC 3522).
    pub spurious_retransmits: u64,
    /// Data segments received for the first time.
    pub received_segments: u64,
    /// Duplicate data segments received.
    pub duplicate_segments: u64,
    /// Data segments discarded outside the receive window or above its memory.
    pub out_of_window_segments: u64,
    /// ACKs of a segment never sent, or of a wrong timestamp.
    pub invalid_acks: u64,
    /// Cumulative ACKs (`una`) of segments never sent.
    pub invalid_una: u64,
    /// Datagrams with a `una` older than the newest.
    pub stale_una_datagrams: u64,
    /// Zero-window probes sent (RFC 9293 3.8.6.1).
    pub window_probes: u64,
    /// Pings sent: keepalive, address validation, and before an MTU probe.
    pub pings_sent: u64,
    /// MTU probes sent (RFC 8899): none while full segments are acknowledged.
    pub mtu_probes_sent: u64,
    /// CONTROL segments (FIN, RST) that contradicted the state or were not authentic, ignored.
    pub invalid_control_segments: u64,
    /// Reflected datagrams: sent by this side and received again.
    pub reflected_datagrams: u64,
    /// Out-of-band datagrams sent.
    pub out_of_band_sent: u64,
    /// Out-of-band datagrams received.
    pub out_of_band_received: u64,
    /// Out-of-band datagrams dropped from a full queue, the oldest first.
    pub out_of_band_dropped: u64,
    /// What protects the data against loss, beside retransmission.
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

/// Counters of a connection's state machine. Each connection has them twice, once in the snapshot
/// for its handles, so other fields do not belong here.
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
    /// Converts to the public statistics, which lack the estimates.
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
    /// Out-of-band datagrams sent and received.
    pub(crate) out_of_band: (u64, u64),
    /// `None` while all of it is zero.
    pub(crate) redundancy: Option<Box<RedundancyStats>>,
    /// `None` without FEC packets from the address.
    pub(crate) fec: Option<Box<FecStats>>,
}

impl Snapshot {
    /// A snapshot of the state machine alone.
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

/// Keeps the allocation.
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
    /// Connections opened from here (RFC 4022 tcpActiveOpens).
    pub active_opens: u64,
    /// Datagrams received.
    pub received_datagrams: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Datagrams handed to the kernel.
    pub sent_datagrams: u64,
    /// Bytes handed to the kernel.
    pub sent_bytes: u64,
    /// Datagrams that this endpoint has sealed. One key serves all its peers and all endpoints that have it:
    /// replace it before 2^32 of all of them together, for which add up this number of both sides.
    pub sealed_datagrams: u64,
    /// Dropped: wrong checksum or tag (kcp-go InCsumErrors).
    pub dropped_checksum: u64,
    /// Dropped: reflected, this endpoint sent the datagram.
    pub dropped_reflected: u64,
    /// Dropped: replayed, by `replay_window`.
    pub dropped_replayed: u64,
    /// Dropped: shorter than a segment header.
    pub dropped_truncated: u64,
    /// Dropped: a segment is malformed (unknown command, length, several conversation ids).
    pub dropped_malformed: u64,
    /// Dropped: no such connection, and not an initial segment.
    pub dropped_no_connection: u64,
    /// Dropped: of a connection in TIME-WAIT.
    pub dropped_time_wait: u64,
    /// Dropped: out-of-band datagrams of peers whose address is not validated yet.
    pub dropped_unvalidated: u64,
    /// Refused initial segments: the endpoint does not listen, or drains. While it hands its socket over
    /// they are not answered.
    pub refused_no_listener: u64,
    /// Refused initial segments: `max_connections` reached.
    pub refused_max_connections: u64,
    /// Refused initial segments and migrations: their source, an IPv4 address or an IPv6 prefix of 64
    /// bits, has the connections that [`Limits::max_per_source`](crate::Limits::max_per_source) permits.
    pub refused_max_per_source: u64,
    /// Refused initial segments: `backlog` full.
    pub refused_backlog: u64,
    /// Initial segments that opened nothing, since more than half of `max_unvalidated` connections or
    /// of the memory of unvalidated peers were in use: what was answered is `retries_sent`.
    pub refused_max_unvalidated: u64,
    /// Answers to a Retry that were dropped in favour of others: the source, an IPv4 address or an IPv6
    /// prefix of 64 bits, had most of them.
    pub retry_answers_evicted: u64,
    /// Pings sent in answer to initial segments, without state (Retry, RFC 9000 8.1.2).
    pub retries_sent: u64,
    /// ACKs of such pings, after which the next copy of the initial segment opens the connection.
    pub retries_answered: u64,
    /// RSTs without state sent: to peers that ping a connection which this endpoint does not know, and
    /// in answer to initial segments that it does not take (Stateless Reset, RFC 9000 10.3).
    pub stateless_resets_sent: u64,
    /// Connections of unvalidated peers now.
    pub unvalidated_connections: u64,
    /// Bytes of memory that all connections hold now, see [`Limits::memory`](crate::Limits::memory).
    pub memory_bytes: u64,
    /// Bytes of these that unvalidated peers hold.
    pub unvalidated_bytes: u64,
    /// Migrations to another address of the peer.
    pub migrations: u64,
    /// Initial segments of existing connections; each was answered with a ping, to detect a restart.
    pub restart_probes: u64,
    /// Refused initial segments: by the accept filter.
    pub refused_accept_filter: u64,
    /// Refused initial segments: their conversation id is in use by another address under the same
    /// key, see [`Config::conv`](crate::Config::conv).
    pub refused_conv_in_use: u64,
    /// Datagrams of other protocols, taken by the packet filter.
    pub packet_filter_datagrams: u64,
    /// Datagrams from [`send_raw`](crate::Endpoint::send_raw) that were sent.
    pub raw_sent_datagrams: u64,
    /// Datagrams from [`send_raw`](crate::Endpoint::send_raw) dropped from a full queue.
    pub raw_dropped_datagrams: u64,
    /// Transient receive errors.
    pub recv_errors: u64,
    /// Receive errors by class.
    pub recv_errors_by_class: SocketErrors,
    /// Send errors, taken as loss.
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
