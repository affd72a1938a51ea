//! Statistics of a connection's redundancy.

/// Redundancy of a connection, see [`Redundancy`](crate::Redundancy): its current amount, and counters
/// since the start.
///
/// ```
/// let stats = kcpx::RedundancyStats::default();
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
    /// [`ConnectionStats::fec`](crate::ConnectionStats::fec) counts those recovered with parity.
    pub recovered_segments: u64,
    /// This side's data segments that the peer recovered with repair symbols.
    pub recovered_by_peer_segments: u64,
    /// Copies of segments sent in datagrams with newer ones, or 20 ms after them.
    pub bundled_copies: u64,
    /// FEC parity packets sent with the data of this connection.
    pub parity_packets_sent: u64,
    /// Bytes of repair symbols, copies and parity packets, including headers of segments and FEC,
    /// excluding IP, UDP and the cipher. Copies of retransmissions count as `redundant_retransmits`
    /// instead.
    pub redundant_bytes_sent: u64,
    /// Window updates that filled FEC groups, so that their parity left in time.
    pub fec_fillers_sent: u64,
}
