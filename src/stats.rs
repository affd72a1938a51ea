//! Statistics as plain data: snapshots, with the unit in each name.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use crate::fec::FecStats;

/// What one conversation has done so far. A snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Duration,
    /// Variation of the round-trip time.
    pub rttvar: Duration,
    /// Retransmission time-out for a segment sent now.
    pub rto: Duration,
    /// Smallest round-trip time seen; zero before the first sample.
    pub min_rtt: Duration,
    /// Congestion window in segments; equals the send window where it is off.
    pub cwnd_segments: u32,
    /// Segments the peer can take beyond what it acknowledged.
    pub peer_window_segments: u32,
    /// Segments sent and not yet covered by a cumulative acknowledgement.
    pub in_flight_segments: u32,
    /// Bytes accepted for sending and not yet sent once.
    pub unsent_bytes: u64,
    /// Largest KCP datagram in bytes that is sent now, without what cipher and FEC add: as
    /// configured, or what the path was found to carry.
    pub current_mtu: u32,
    /// Payload bytes sent for the first time.
    pub sent_bytes: u64,
    /// Payload bytes delivered in order.
    pub received_bytes: u64,
    /// Datagrams sent, before duplication.
    pub sent_datagrams: u64,
    /// Datagrams accepted.
    pub received_datagrams: u64,
    /// Bytes of those datagrams sent, headers included.
    pub sent_datagram_bytes: u64,
    /// Bytes of those datagrams received, headers included.
    pub received_datagram_bytes: u64,
    /// Data segments sent for the first time.
    pub sent_segments: u64,
    /// Data segments sent again since enough later ones were acknowledged.
    pub fast_retransmits: u64,
    /// Data segments sent again after one later one was acknowledged and nothing new was queued.
    pub early_retransmits: u64,
    /// Data segments sent again after their time-out.
    pub timeout_retransmits: u64,
    /// Retransmissions whose original turned out to have arrived.
    pub spurious_retransmits: u64,
    /// Data segments received for the first time.
    pub received_segments: u64,
    /// Data segments received again.
    pub duplicate_segments: u64,
    /// Data segments refused since they lie beyond the receive window or its memory.
    pub out_of_window_segments: u64,
    /// Acknowledgements that matched nothing we sent, or not at that time.
    pub invalid_acks: u64,
    /// Cumulative acknowledgements of something never sent.
    pub invalid_una: u64,
    /// Datagrams older than the newest cumulative acknowledgement.
    pub stale_una_datagrams: u64,
    /// Window probes sent.
    pub window_probes: u64,
    /// Echo probes sent (keepalive and liveness, and before a padded one).
    pub pings_sent: u64,
    /// Padded probes sent to find out which datagrams the path carries: none while full segments
    /// arrive.
    pub mtu_probes_sent: u64,
    /// Notices of an end that contradicted what is known, or proved nothing, and were ignored.
    pub invalid_control_segments: u64,
    /// Datagrams of this side's that somebody sent back to it.
    pub reflected_datagrams: u64,
    /// Out-of-band datagrams sent.
    pub out_of_band_sent: u64,
    /// Out-of-band datagrams received.
    pub out_of_band_received: u64,
    /// Out-of-band datagrams that made room for later ones before they were sent or read.
    pub out_of_band_dropped: u64,
    /// What FEC did with what came from this address.
    pub fec: FecStats,
}

impl ConnectionStats {
    /// Data segments sent again, for whichever reason.
    #[must_use]
    pub fn retransmits(&self) -> u64 {
        self.fast_retransmits + self.early_retransmits + self.timeout_retransmits
    }

    /// Retransmitted share of all data segments sent, in percent.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn retransmit_percent(&self) -> f64 {
        let sent = self.sent_segments + self.retransmits();
        if sent == 0 { 0.0 } else { self.retransmits() as f64 * 100.0 / sent as f64 }
    }
}

/// What the state machine of a conversation counts. Each conversation has this twice, once for the
/// handles: so there is nothing else in it.
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
    /// As a part of what users see.
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

/// What the state machine of a conversation estimates. Times in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimates {
    pub(crate) srtt: u64,
    pub(crate) rttvar: u64,
    pub(crate) rto: u64,
    pub(crate) min_rtt: u64,
    pub(crate) cwnd_segments: u32,
    pub(crate) peer_window_segments: u32,
    pub(crate) in_flight_segments: u32,
    pub(crate) unsent_bytes: u64,
    pub(crate) current_mtu: u32,
}

/// What handles are shown of a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) counters: Counters,
    pub(crate) estimates: Estimates,
    /// Out-of-band datagrams sent and received.
    pub(crate) out_of_band: (u64, u64),
    /// Of most addresses there is none.
    pub(crate) fec: Option<Box<FecStats>>,
}

impl Snapshot {
    /// Only what the state machine knows.
    pub(crate) fn of(counters: Counters, estimates: Estimates) -> Self {
        Self { counters, estimates, out_of_band: (0, 0), fec: None }
    }

    pub(crate) fn set_fec(&mut self, fec: Option<FecStats>) {
        match (&mut self.fec, fec) {
            (Some(known), Some(fec)) => **known = fec,
            (known, fec) => *known = fec.map(Box::new),
        }
    }

    /// As users see it.
    pub(crate) fn stats(&self) -> ConnectionStats {
        let estimates = &self.estimates;
        ConnectionStats {
            srtt: Duration::from_micros(estimates.srtt),
            rttvar: Duration::from_micros(estimates.rttvar),
            rto: Duration::from_micros(estimates.rto),
            min_rtt: Duration::from_micros(estimates.min_rtt),
            cwnd_segments: estimates.cwnd_segments,
            peer_window_segments: estimates.peer_window_segments,
            in_flight_segments: estimates.in_flight_segments,
            unsent_bytes: estimates.unsent_bytes,
            current_mtu: estimates.current_mtu,
            out_of_band_sent: self.out_of_band.0,
            out_of_band_received: self.out_of_band.1,
            fec: self.fec.as_deref().copied().unwrap_or_default(),
            ..self.counters.stats()
        }
    }
}

/// Errors that a socket reported, by what they say. None of them ended it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketErrors {
    /// A datagram larger than the path or the system takes (`EMSGSIZE`).
    pub too_large: u64,
    /// No memory for it just then (`ENOBUFS`, `ENOMEM`).
    pub no_buffers: u64,
    /// Forbidden, such as by a firewall (`EPERM`, `EACCES`).
    pub denied: u64,
    /// Nobody listens at the peer's port (`ECONNREFUSED`, `ECONNRESET`).
    pub refused: u64,
    /// No way to the peer, or none from this address any more (`ENETUNREACH`, `EHOSTUNREACH`,
    /// `ENETDOWN`, `EADDRNOTAVAIL`).
    pub unreachable: u64,
    /// Anything else.
    pub other: u64,
}

/// What one endpoint has done so far. A snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// Conversations now known, lingering ones included.
    pub current_connections: u64,
    /// Conversations opened by peers.
    pub passive_opens: u64,
    /// Conversations opened from here.
    pub active_opens: u64,
    /// Datagrams received.
    pub received_datagrams: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Datagrams handed to the kernel.
    pub sent_datagrams: u64,
    /// Bytes handed to the kernel.
    pub sent_bytes: u64,
    /// Datagrams sealed by the cipher; a key should not seal more than 2^32 of them.
    pub sealed_datagrams: u64,
    /// Dropped: the checksum or the tag is wrong.
    pub dropped_checksum: u64,
    /// Dropped: this endpoint sent it.
    pub dropped_reflected: u64,
    /// Dropped: a copy of a datagram that was taken before.
    pub dropped_replayed: u64,
    /// Dropped: too short to be a segment.
    pub dropped_truncated: u64,
    /// Dropped: a segment is malformed (unknown command, length, mixed conversations).
    pub dropped_malformed: u64,
    /// Dropped: no such conversation, and not an opening.
    pub dropped_no_connection: u64,
    /// Dropped: belongs to a conversation that ended a short time ago.
    pub dropped_time_wait: u64,
    /// Dropped: would open a conversation on an endpoint that does not accept.
    pub refused_no_listener: u64,
    /// Dropped: would open a conversation beyond `max_connections`.
    pub refused_max_connections: u64,
    /// Dropped: would open a conversation beyond `backlog`.
    pub refused_backlog: u64,
    /// Dropped: would open a conversation while `max_unvalidated` others have proved nothing.
    pub refused_max_unvalidated: u64,
    /// Dropped: would open a conversation while many have proved nothing, too many of them from
    /// the same IP address.
    pub refused_per_ip: u64,
    /// Conversations opened by peers that now have proved nothing.
    pub unvalidated_connections: u64,
    /// Conversations that followed their peer to another address.
    pub migrations: u64,
    /// Openings of conversations that were open already; the peer was asked about each.
    pub restart_probes: u64,
    /// Dropped: would open a conversation that the accept filter does not want.
    pub refused_accept_filter: u64,
    /// Datagrams of other protocols, which the packet filter took.
    pub packet_filter_datagrams: u64,
    /// Datagrams from [`send_raw`](crate::Endpoint::send_raw) that were put on their way.
    pub raw_sent_datagrams: u64,
    /// Datagrams from [`send_raw`](crate::Endpoint::send_raw) that made room for later ones.
    pub raw_dropped_datagrams: u64,
    /// Receive errors that were ridden out.
    pub recv_errors: u64,
    /// The same by what the system said.
    pub recv_errors_by_class: SocketErrors,
    /// Send errors that were taken as loss.
    pub send_errors: u64,
    /// The same by what the system said.
    pub send_errors_by_class: SocketErrors,
    /// Out-of-band datagrams received for a conversation that exists.
    pub out_of_band_received: u64,
    /// What FEC did with what came from all addresses.
    pub fec: FecStats,
}

/// Of several sockets together.
impl Add for SocketErrors {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            too_large: self.too_large + more.too_large,
            no_buffers: self.no_buffers + more.no_buffers,
            denied: self.denied + more.denied,
            refused: self.refused + more.refused,
            unreachable: self.unreachable + more.unreachable,
            other: self.other + more.other,
        }
    }
}

/// Of several sockets together.
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
            dropped_time_wait: self.dropped_time_wait + more.dropped_time_wait,
            refused_no_listener: self.refused_no_listener + more.refused_no_listener,
            refused_max_connections: self.refused_max_connections + more.refused_max_connections,
            refused_backlog: self.refused_backlog + more.refused_backlog,
            refused_max_unvalidated: self.refused_max_unvalidated + more.refused_max_unvalidated,
            refused_per_ip: self.refused_per_ip + more.refused_per_ip,
            unvalidated_connections: self.unvalidated_connections + more.unvalidated_connections,
            migrations: self.migrations + more.migrations,
            restart_probes: self.restart_probes + more.restart_probes,
            refused_accept_filter: self.refused_accept_filter + more.refused_accept_filter,
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

/// One line each, with the names of kcp-go's `Snmp` where it counts the same.
fn write_lines(f: &mut fmt::Formatter<'_>, lines: &[(&str, u64)]) -> fmt::Result {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines.iter().try_for_each(|(name, value)| writeln!(f, "{name:<width$} {value}"))
}

/// For reading beside kcp-go's `Snmp`: a counter a line, under its names where it has the same.
impl fmt::Display for ConnectionStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_lines(
            f,
            &[
                ("BytesSent", self.sent_bytes),
                ("BytesReceived", self.received_bytes),
                ("InPkts", self.received_datagrams),
                ("OutPkts", self.sent_datagrams),
                ("InSegs", self.received_segments + self.duplicate_segments),
                ("OutSegs", self.sent_segments + self.retransmits()),
                ("InBytes", self.received_datagram_bytes),
                ("OutBytes", self.sent_datagram_bytes),
                ("RetransSegs", self.retransmits()),
                ("FastRetransSegs", self.fast_retransmits),
                ("EarlyRetransSegs", self.early_retransmits),
                ("LostSegs", self.timeout_retransmits),
                ("RepeatSegs", self.duplicate_segments),
                ("SpuriousRetransSegs", self.spurious_retransmits),
                ("InvalidAcks", self.invalid_acks),
                ("Reflected", self.reflected_datagrams),
                ("OOBPackets", self.out_of_band_received),
                ("OOBDropped", self.out_of_band_dropped),
            ],
        )?;
        write!(f, "{}", self.fec)
    }
}

/// For reading beside kcp-go's `Snmp`: a counter a line, under its names where it has the same.
impl fmt::Display for EndpointStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_lines(
            f,
            &[
                ("ActiveOpens", self.active_opens),
                ("PassiveOpens", self.passive_opens),
                ("CurrEstab", self.current_connections),
                ("InErrs", self.recv_errors + self.dropped_truncated),
                ("InCsumErrors", self.dropped_checksum),
                ("KCPInErrors", self.dropped_malformed),
                ("InPkts", self.received_datagrams),
                ("OutPkts", self.sent_datagrams),
                ("InBytes", self.received_bytes),
                ("OutBytes", self.sent_bytes),
                ("OutErrs", self.send_errors),
                ("Unknown", self.dropped_no_connection),
                ("Closed", self.dropped_time_wait),
                ("NotAccepting", self.refused_no_listener),
                ("RefusedByFilter", self.refused_accept_filter),
                ("Filtered", self.packet_filter_datagrams),
                ("RawPkts", self.raw_sent_datagrams),
                ("RawDropped", self.raw_dropped_datagrams),
                ("RefusedConns", self.refused_max_connections + self.refused_backlog),
                ("RefusedUnvalidated", self.refused_max_unvalidated + self.refused_per_ip),
                ("Reflected", self.dropped_reflected),
                ("Replayed", self.dropped_replayed),
                ("Sealed", self.sealed_datagrams),
                ("OOBPackets", self.out_of_band_received),
            ],
        )?;
        write!(f, "{}", self.fec)
    }
}

/// For reading beside kcp-go's `Snmp`: a counter a line, under its names where it has the same.
impl fmt::Display for FecStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_lines(
            f,
            &[
                ("FECDataShards", self.data_shards),
                ("FECParityShards", self.parity_shards),
                ("FECRecovered", self.recovered_shards),
                ("FECErrs", self.mismatched_shards),
                ("FECUnrecoverable", self.unrecoverable_groups),
                ("FECMisplaced", self.misplaced_shards),
                ("FECLayoutChanges", self.layout_changes),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_carry_the_names_of_kcp_go() {
        let mut stats =
            ConnectionStats { sent_segments: 90, fast_retransmits: 7, ..Default::default() };
        (stats.timeout_retransmits, stats.fec.recovered_shards) = (3, 5);
        let text = stats.to_string();
        for (name, value) in
            [("OutSegs", "100"), ("RetransSegs", "10"), ("LostSegs", "3"), ("FECRecovered", "5")]
        {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            assert_eq!(line.split_whitespace().collect::<Vec<_>>(), [name, value]);
        }
        let endpoint =
            EndpointStats { dropped_checksum: 4, ..EndpointStats::default() }.to_string();
        assert!(
            endpoint.lines().any(|line| line.starts_with("InCsumErrors ") && line.ends_with(" 4"))
        );
    }
}
