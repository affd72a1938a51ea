//! Statistics of what protects a connection against loss, beside retransmission.

/// What protects the data of a connection against loss beside retransmission, see
/// [`Redundancy`](crate::Redundancy): what is in use now, and what it did since the start.
///
/// ```
/// let stats = kcpx::RedundancyStats::default();
/// assert_eq!((stats.repair_per_mille, stats.parity_packets_sent), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedundancyStats {
    /// Estimated loss of data segments sent for the first time, per million: of the last ten seconds, or
    /// of the last one if that is more. Segments that the peer recovered were lost. Zero before the
    /// first loss, and, without automatic redundancy, after an idle time.
    pub loss_per_million: u32,
    /// Bytes of repair symbols that leave now, per 1,000 bytes of data; zero while the peer accepts
    /// none.
    pub repair_per_mille: u32,
    /// Bytes of copies that leave now in datagrams with newer segments, per 1,000 bytes of data.
    pub bundling_per_mille: u32,
    /// Repair symbols sent.
    pub repair_symbols_sent: u64,
    /// Repair symbols received, those that were ignored included.
    pub repair_symbols_received: u64,
    /// Repair symbols received that were malformed, outside the window or inconsistent, ignored.
    pub invalid_repair_symbols: u64,
    /// Data segments of the peer recovered with repair symbols; `fec` in
    /// [`ConnectionStats`](crate::ConnectionStats) has what parity recovered.
    pub recovered_segments: u64,
    /// Data segments that the peer recovered with our repair symbols.
    pub recovered_by_peer_segments: u64,
    /// Copies of segments sent in datagrams with newer ones, or 20 ms after them.
    pub bundled_copies: u64,
    /// FEC parity packets sent with the data of this connection.
    pub parity_packets_sent: u64,
    /// Bytes of these repair symbols, copies and parity packets, headers of segments and of FEC
    /// included, those of IP, UDP and the cipher not. Copies of retransmissions count as
    /// `redundant_retransmits` instead.
    pub redundant_bytes_sent: u64,
    /// Window updates that filled places in FEC groups, so that their parity left in time.
    pub fec_fillers_sent: u64,
}
