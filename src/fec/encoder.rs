//! FEC encoder (kcp-go `fecEncoder`): numbers data packets and computes their parity.
//!
//! Folds each packet into the parity when it is sent: this spreads the work over the group and
//! keeps no packet.

use std::time::{Duration, Instant};

use super::config::FecConfig;
use super::gf256::{Kernel, coefficients};
use super::packet::{DATA, HEADER_LEN, PARITY, UNCOVERED_LEN};
use super::shard_buffers::Rows;

/// A group whose last two data packets are this far apart gets no parity, as in kcp-go: a lost
/// packet has been retransmitted by then.
const PARITY_TIMEOUT: Duration = Duration::from_millis(500);

/// Data packets without parity between groups of two layouts: twice the samples of kcp-go's
/// autoTune (258), so half of them may be lost.
pub(super) const UNPROTECTED: u32 = 2 * 258;

/// Numbers the data packets for one peer and computes their parity.
///
/// Memory: the parity packets of one group, at the length of the longest packet so far.
///
/// ```
/// use std::time::Instant;
///
/// use kcpx::FecConfig;
/// use kcpx::fec::{FecEncoder, FecFlag, HEADER_LEN, fec_flag};
///
/// let now = Instant::now();
/// let mut encoder = FecEncoder::new(FecConfig::new(2, 1)?);
/// let mut sent = Vec::new();
/// for datagram in ["one", "two"] {
///     let mut packet = vec![0; HEADER_LEN];
///     packet.extend_from_slice(datagram.as_bytes());
///     let parities = encoder.seal(now, &mut packet);
///     sent.push(packet);
///     for index in 0..parities {
///         let mut parity = Vec::new();
///         encoder.emit_parity(index, &mut parity);
///         sent.push(parity);
///     }
/// }
/// let flags: Vec<_> = sent.iter().map(|packet| fec_flag(packet)).collect();
/// assert_eq!(flags, [FecFlag::Data, FecFlag::Data, FecFlag::Parity]);
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct FecEncoder {
    config: FecConfig,
    /// Coefficients of a group's data packets: for each packet, one per parity packet.
    matrix: Vec<u8>,
    parity: Rows,
    /// Seqid of the next packet.
    next: u32,
    /// Data packets still to be sent without parity after a layout change.
    unprotected: u32,
    /// Data packets in the current group so far.
    count: usize,
    /// Covered bytes of the group's longest packet.
    longest: usize,
    /// When the last data packet was sealed.
    last: Option<Instant>,
    /// Seqid of the first parity packet due.
    due: Option<u32>,
}

impl FecEncoder {
    /// An encoder that starts at seqid 0.
    #[must_use]
    pub fn new(config: FecConfig) -> Self {
        Self::starting_at(config, 0)
    }

    /// An encoder that starts at this seqid, or at the next seqid that begins a group.
    #[must_use]
    pub fn starting_at(config: FecConfig, seqid: u32) -> Self {
        Self::with_kernel(config, seqid, Kernel::best())
    }

    pub(super) fn with_kernel(config: FecConfig, seqid: u32, kernel: Kernel) -> Self {
        Self {
            config,
            matrix: matrix(config),
            parity: Rows::new(kernel),
            next: config.group_start(seqid),
            unprotected: 0,
            count: 0,
            longest: 0,
            last: None,
            due: None,
        }
    }

    /// Returns the layout.
    #[must_use]
    pub fn config(&self) -> FecConfig {
        self.config
    }

    /// Writes the header of a data packet: [`HEADER_LEN`] bytes, then a KCP datagram.
    ///
    /// Returns the number of parity packets due now: zero, or all parity of a group. Take them with
    /// [`Self::emit_parity`] before the next packet. A packet shorter than the header or longer
    /// than a UDP payload is left unchanged.
    pub fn seal(&mut self, now: Instant, packet: &mut [u8]) -> usize {
        self.due = None;
        let size =
            packet.len().checked_sub(UNCOVERED_LEN).and_then(|size| u16::try_from(size).ok());
        let (Some(size), Some(head)) = (size, packet.first_chunk_mut::<HEADER_LEN>()) else {
            debug_assert!(false, "a datagram behind its header");
            return 0;
        };
        let [a, b, c, d] = self.next.to_le_bytes();
        let ([e, f], [g, h]) = (DATA.to_le_bytes(), size.to_le_bytes());
        *head = [a, b, c, d, e, f, g, h];
        if self.unprotected > 0 {
            self.advance(1);
            // A group begins at a multiple of the sum.
            let aligned = self.next.is_multiple_of(self.config.sum());
            self.unprotected = (self.unprotected - 1).max(u32::from(!aligned));
            self.last = Some(now);
            return 0;
        }
        let parities = self.config.parity_shards();
        if self.count == 0 {
            self.parity.clear(parities);
            self.longest = 0;
        }
        let column = self.matrix.chunks_exact(parities).nth(self.count);
        let covered = packet.get(UNCOVERED_LEN..).unwrap_or_default();
        self.parity.fold(column.unwrap_or_default(), covered);
        self.longest = self.longest.max(covered.len());
        let last = self.last.replace(now);
        self.advance(1);
        self.count += 1;
        if self.count < self.config.data_shards() {
            return 0;
        }
        self.count = 0;
        let first = self.next;
        // Parity that is not sent still uses its seqids: the seqid determines the position.
        self.advance(u32::from(self.config.parity));
        // As in kcp-go, only the last gap counts; the first packet has none.
        if last.is_none_or(|last| now.saturating_duration_since(last) >= PARITY_TIMEOUT) {
            return 0;
        }
        self.due = Some(first);
        parities
    }

    /// Data packets in the incomplete group.
    pub(crate) fn packets_in_group(&self) -> usize {
        self.count
    }

    /// Whether packets are sent without parity, after a layout change.
    pub(crate) fn is_unprotected(&self) -> bool {
        self.unprotected > 0
    }

    /// Appends parity packet `index` of those due. Returns its length in bytes, or zero if there is
    /// none.
    pub fn emit_parity(&self, index: usize, out: &mut Vec<u8>) -> usize {
        let (Some(due), Some(row)) = (self.due, self.parity.row(index, self.longest)) else {
            return 0;
        };
        // Invariant: no group crosses the wrap. `index` is below 255 where a row exists.
        let seqid = due + u32::try_from(index).unwrap_or(0);
        out.extend_from_slice(&seqid.to_le_bytes());
        out.extend_from_slice(&PARITY.to_le_bytes());
        out.extend_from_slice(row);
        UNCOVERED_LEN + row.len()
    }

    /// Changes the layout. The current group ends without parity, and at least the next 516 packets
    /// have none, until a group begins.
    ///
    /// kcp-go's autoTune keeps the old layout while one of its last 258 samples fits it, and would
    /// decode parity of the new layout by the old one into data that was never sent. Data packets
    /// alone cannot be misinterpreted.
    pub fn set_config(&mut self, config: FecConfig) {
        if config == self.config {
            return;
        }
        self.config = config;
        self.matrix = matrix(config);
        (self.count, self.due, self.unprotected) = (0, None, UNPROTECTED);
        if self.next >= config.paws() {
            self.next = 0;
        }
    }

    fn advance(&mut self, packets: u32) {
        self.next += packets;
        if self.next >= self.config.paws() {
            self.next = 0;
        }
    }

    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.matrix.capacity() + self.parity.memory()
    }
}

fn matrix(config: FecConfig) -> Vec<u8> {
    let known: Vec<u8> = (0..config.data).collect();
    // The sum is at most 256, so the last position is at most 255.
    let wanted: Vec<u8> = (config.data..=u8::MAX).take(config.parity_shards()).collect();
    coefficients(&known, &wanted)
}
