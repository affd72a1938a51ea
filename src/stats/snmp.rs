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
                ("RedundantRetransSegs", self.redundant_retransmits),
                ("LostSegs", self.timeout_retransmits),
                ("RepeatSegs", self.duplicate_segments),
                ("SpuriousRetransSegs", self.spurious_retransmits),
                ("InvalidAcks", self.invalid_acks),
                ("Reflected", self.reflected_datagrams),
                ("RepairSent", self.redundancy.repair_symbols_sent),
                ("RepairReceived", self.redundancy.repair_symbols_received),
                ("RepairErrs", self.redundancy.invalid_repair_symbols),
                ("RepairRecovered", self.redundancy.recovered_segments),
                ("RepairRecoveredByPeer", self.redundancy.recovered_by_peer_segments),
                ("BundledCopies", self.redundancy.bundled_copies),
                ("FECParitySent", self.redundancy.parity_packets_sent),
                ("RedundantBytes", self.redundancy.redundant_bytes_sent),
                ("LossPerMillion", self.redundancy.loss_per_million.into()),
                ("OOBPackets", self.out_of_band_received),
                ("OOBDropped", self.out_of_band_dropped),
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
                ("RefusedConvInUse", self.refused_conv_in_use),
                ("Filtered", self.packet_filter_datagrams),
                ("RawPkts", self.raw_sent_datagrams),
                ("RawDropped", self.raw_dropped_datagrams),
                ("RefusedConns", self.refused_max_connections + self.refused_backlog),
                ("RefusedUnvalidated", self.refused_max_unvalidated),
                ("StatelessResets", self.stateless_resets_sent),
                ("Reflected", self.dropped_reflected),
                ("Replayed", self.dropped_replayed),
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
