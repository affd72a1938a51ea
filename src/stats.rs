//! Statistics as plain data: snapshots, with the unit in each name.

use std::time::Duration;

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
    pub remote_window_segments: u32,
    /// Segments sent and not yet covered by a cumulative acknowledgement.
    pub in_flight_segments: u32,
    /// Bytes accepted for sending and not yet sent once.
    pub unsent_bytes: u64,
    /// Payload bytes sent for the first time.
    pub sent_bytes: u64,
    /// Payload bytes delivered in order.
    pub received_bytes: u64,
    /// Datagrams sent, before duplication.
    pub sent_datagrams: u64,
    /// Datagrams accepted.
    pub received_datagrams: u64,
    /// Bytes of those datagrams sent, headers included.
    pub wire_bytes_out: u64,
    /// Bytes of those datagrams received, headers included.
    pub wire_bytes_in: u64,
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
    pub beyond_window_segments: u64,
    /// Acknowledgements that matched nothing we sent, or not at that time.
    pub invalid_acks: u64,
    /// Cumulative acknowledgements of something never sent.
    pub invalid_una: u64,
    /// Datagrams older than the newest cumulative acknowledgement.
    pub late_datagrams: u64,
    /// Window probes sent.
    pub window_probes: u64,
    /// Echo probes sent (keepalive and liveness).
    pub echo_probes: u64,
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

/// What one endpoint has done so far. A snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// Conversations now known, lingering ones included.
    pub connections: u64,
    /// Conversations opened by peers.
    pub opened_by_peers: u64,
    /// Conversations opened from here.
    pub opened_locally: u64,
    /// Datagrams received.
    pub received_datagrams: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Datagrams handed to the kernel.
    pub sent_datagrams: u64,
    /// Bytes handed to the kernel.
    pub sent_bytes: u64,
    /// Dropped: too short to be a segment.
    pub dropped_short: u64,
    /// Dropped: a segment is malformed (unknown command, length, mixed conversations).
    pub dropped_malformed: u64,
    /// Dropped: no such conversation, and not an opening.
    pub dropped_unknown: u64,
    /// Dropped: belongs to a conversation that ended a short time ago.
    pub dropped_closed: u64,
    /// Dropped: would open a conversation on an endpoint that does not accept.
    pub dropped_not_accepting: u64,
    /// Dropped: would open a conversation beyond `max_connections`.
    pub refused_connections: u64,
    /// Dropped: would open a conversation beyond `backlog`.
    pub refused_backlog: u64,
    /// Receive errors that were ridden out.
    pub recv_errors: u64,
    /// Send errors that were taken as loss.
    pub send_errors: u64,
}
