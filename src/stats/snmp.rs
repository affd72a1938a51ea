//! Statistics as text, with kcp-go's `Snmp` names where they exist.

use std::fmt;

use super::{ConnectionStats, EndpointStats};
use crate::fec::FecStats;

/// Writes one counter per line, with names padded to one width.
fn write_lines(f: &mut fmt::Formatter<'_>, lines: &[(&str, u64)]) -> fmt::Result {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines.iter().try_for_each(|(name, value)| writeln!(f, "{name:<width$} {value}"))
}

/// One counter per line, with the name in kcp-go's `Snmp` if it exists.
impl fmt::Display for ConnectionStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_lines(
            f,
            &[
                ("BytesSent", self.sent.payload_bytes),
                ("BytesReceived", self.received.payload_bytes),
                ("InPkts", self.received.datagrams),
                ("OutPkts", self.sent.datagrams),
                ("InSegs", self.received.segments + self.anomalies.duplicate_segments),
                ("OutSegs", self.sent.segments + self.retransmits()),
                ("InBytes", self.received.datagram_bytes),
                ("OutBytes", self.sent.datagram_bytes),
                ("RetransSegs", self.retransmits()),
                ("FastRetransSegs", self.retransmit.fast),
                ("EarlyRetransSegs", self.retransmit.early),
                ("RedundantRetransSegs", self.retransmit.redundant),
                ("LostSegs", self.retransmit.timeout),
                ("RepeatSegs", self.anomalies.duplicate_segments),
                ("SpuriousRetransSegs", self.retransmit.spurious),
                ("InvalidAcks", self.anomalies.invalid_acks),
                ("Reflected", self.anomalies.reflected_datagrams),
                ("RepairSent", self.redundancy.repair_symbols_sent),
                ("RepairReceived", self.redundancy.repair_symbols_received),
                ("RepairErrs", self.redundancy.invalid_repair_symbols),
                ("RepairRecovered", self.redundancy.recovered_segments),
                ("RepairRecoveredByPeer", self.redundancy.recovered_by_peer_segments),
                ("BundledCopies", self.redundancy.bundled_copies),
                ("FECParitySent", self.redundancy.parity_packets_sent),
                ("RedundantBytes", self.redundancy.redundant_bytes_sent),
                ("LossPerMillion", self.redundancy.loss_per_million.into()),
                ("OOBPackets", self.out_of_band.received),
                ("OOBDropped", self.out_of_band.dropped),
            ],
        )?;
        write!(f, "{}", self.fec)
    }
}

/// One counter per line, with the name in kcp-go's `Snmp` if it exists.
impl fmt::Display for EndpointStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_lines(
            f,
            &[
                ("ActiveOpens", self.connections.active_opens),
                ("PassiveOpens", self.connections.passive_opens),
                ("CurrEstab", self.connections.current),
                ("InErrs", self.recv_errors.total() + self.dropped.truncated),
                ("InCsumErrors", self.dropped.checksum),
                ("KCPInErrors", self.dropped.malformed),
                ("InPkts", self.received.datagrams),
                ("OutPkts", self.sent.datagrams),
                ("InBytes", self.received.bytes),
                ("OutBytes", self.sent.bytes),
                ("OutErrs", self.send_errors.total()),
                ("Unknown", self.dropped.no_connection),
                ("Closed", self.dropped.time_wait),
                ("NotAccepting", self.refused.no_listener),
                ("RefusedByFilter", self.refused.accept_filter),
                ("RefusedConvInUse", self.refused.conv_in_use),
                ("Filtered", self.raw.filtered),
                ("RawPkts", self.raw.sent),
                ("RawDropped", self.raw.dropped),
                ("RefusedConns", self.refused.max_connections + self.refused.backlog),
                ("RefusedUnvalidated", self.refused.max_unvalidated),
                ("StatelessResets", self.stateless_resets_sent),
                ("Reflected", self.dropped.reflected),
                ("Replayed", self.dropped.replayed),
                ("Sealed", self.sealed_datagrams),
                ("OOBPackets", self.out_of_band_received),
            ],
        )?;
        write!(f, "{}", self.fec)
    }
}

/// One counter per line, with the name in kcp-go's `Snmp` if it exists.
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
    fn display_uses_the_counter_names_of_kcp_go() {
        let mut stats = ConnectionStats::default();
        (stats.sent.segments, stats.fec.recovered_shards) = (90, 5);
        (stats.retransmit.fast, stats.retransmit.timeout) = (7, 3);
        let text = stats.to_string();
        for (name, value) in
            [("OutSegs", "100"), ("RetransSegs", "10"), ("LostSegs", "3"), ("FECRecovered", "5")]
        {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            assert_eq!(line.split_whitespace().collect::<Vec<_>>(), [name, value]);
        }
        let mut endpoint = EndpointStats::default();
        endpoint.dropped.checksum = 4;
        let endpoint = endpoint.to_string();
        assert!(
            endpoint.lines().any(|line| line.starts_with("InCsumErrors ") && line.ends_with(" 4"))
        );
    }
}
