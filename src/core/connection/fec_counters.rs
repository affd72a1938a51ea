//! Counters of the FEC that a connection sends.

use crate::stats::ProtectionStats;

/// Counters of the FEC that is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FecCounters {
    pub(super) fillers_sent: u64,
    pub(super) probes_sent: u64,
    pub(super) probes_answered: u64,
    pub(super) parity_sent: ParitySent,
    pub(super) is_disabled: bool,
}

/// Parity packets, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParitySent {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl FecCounters {
    pub(super) fn add_to(&self, stats: &mut ProtectionStats) {
        stats.parity_packets_sent = self.parity_sent.packets;
        stats.redundant_bytes_sent += self.parity_sent.bytes;
        stats.fec_fillers_sent = self.fillers_sent;
        stats.fec_probes_sent = self.probes_sent;
        stats.fec_probes_answered = self.probes_answered;
        stats.fec_disabled = u64::from(self.is_disabled);
    }
}
