//! The sender's half: numbers data packets and makes parity out of them.
//!
//! Each packet is folded into the parity when it passes, so the work is spread over the group and
//! no packet is kept.

use std::time::{Duration, Instant};

use super::gf256::{Kernel, coefficients};
use super::{DATA, FecConfig, HEADER_LEN, OUTER, PARITY};
use crate::fec::shard_buffers::Rows;

/// A group whose last two data packets are this far apart gets no parity, as in kcp-go: the lost
/// packet was sent again long before.
const STALE: Duration = Duration::from_millis(500);

/// Data packets without parity between groups of two kinds: twice what a kcp-go receiver remembers,
/// so that half of them may be lost.
pub(super) const PLAIN: u32 = 2 * 258;

/// Numbers the data packets for one peer and makes their parity.
///
/// Memory: parity packets of the longest packet so far.
#[derive(Debug)]
pub struct FecEncoder {
    config: FecConfig,
    /// For each data packet of a group, its coefficient in each parity packet.
    matrix: Vec<u8>,
    parity: Rows,
    /// Number of the next packet.
    next: u32,
    /// Packets that still pass without being part of a group.
    plain: u32,
    /// Data packets of the running group so far.
    count: usize,
    /// Bytes that parity covers of the longest packet of the group.
    longest: usize,
    /// When the last data packet passed.
    last: Option<Instant>,
    /// Number of the first parity packet that waits to be taken.
    due: Option<u32>,
}

impl FecEncoder {
    /// An encoder whose first packet has number 0.
    #[must_use]
    pub fn new(config: FecConfig) -> Self {
        Self::starting_at(config, 0)
    }

    /// An encoder whose first packet has the number `seqid`, or the next that starts a group.
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
            plain: 0,
            count: 0,
            longest: 0,
            last: None,
            due: None,
        }
    }

    /// The groups it makes.
    #[must_use]
    pub fn config(&self) -> FecConfig {
        self.config
    }

    /// Makes `packet` a data packet: [`HEADER_LEN`] bytes of room, then a KCP datagram.
    ///
    /// Returns how many parity packets are due now: none, or those of a whole group. Take them
    /// with [`Self::emit_parity`] before the next packet. A packet that is shorter than its head,
    /// or longer than UDP can carry, is left as it is.
    pub fn seal(&mut self, now: Instant, packet: &mut [u8]) -> usize {
        self.due = None;
        let size = packet.len().checked_sub(OUTER).and_then(|size| u16::try_from(size).ok());
        let (Some(size), Some(head)) = (size, packet.first_chunk_mut::<HEADER_LEN>()) else {
            debug_assert!(false, "a datagram behind room for its head");
            return 0;
        };
        let [a, b, c, d] = self.next.to_le_bytes();
        let ([e, f], [g, h]) = (DATA.to_le_bytes(), size.to_le_bytes());
        *head = [a, b, c, d, e, f, g, h];
        if self.plain > 0 {
            self.advance(1);
            // The first group begins where a number allows it.
            let aligned = self.next.is_multiple_of(self.config.sum());
            self.plain = (self.plain - 1).max(u32::from(!aligned));
            self.last = Some(now);
            return 0;
        }
        let parities = self.config.parity_shards();
        if self.count == 0 {
            self.parity.clear(parities);
            self.longest = 0;
        }
        let column = self.matrix.chunks_exact(parities).nth(self.count);
        let covered = packet.get(OUTER..).unwrap_or_default();
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
        // Without parity its numbers are left out: the place in the group follows from the number.
        self.advance(u32::from(self.config.parity));
        // As in kcp-go only the last gap counts, and the first packet of all has none before it.
        if last.is_none_or(|last| now.saturating_duration_since(last) >= STALE) {
            return 0;
        }
        self.due = Some(first);
        parities
    }

    /// Appends parity packet `index` of those that are due, and returns its length; zero if there
    /// is none such.
    pub fn emit_parity(&self, index: usize, out: &mut Vec<u8>) -> usize {
        let (Some(due), Some(row)) = (self.due, self.parity.row(index, self.longest)) else {
            return 0;
        };
        // Parity never lies across the wrap, and `index` is below 255 where there is a row.
        let seqid = due + u32::try_from(index).unwrap_or(0);
        out.extend_from_slice(&seqid.to_le_bytes());
        out.extend_from_slice(&PARITY.to_le_bytes());
        out.extend_from_slice(row);
        OUTER + row.len()
    }

    /// Makes other groups from now on. The running one ends without parity, and so do the next
    /// some 500 packets.
    ///
    /// A kcp-go receiver counts by the old groups until none of its last 258 packets belongs to
    /// one, and takes parity of new ones for parity of those: it would compute data that was never
    /// sent. Data alone it cannot misunderstand.
    pub fn set_config(&mut self, config: FecConfig) {
        if config == self.config {
            return;
        }
        self.config = config;
        self.matrix = matrix(config);
        (self.count, self.due, self.plain) = (0, None, PLAIN);
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
    // The sum is at most 256, so the last place is at most 255.
    let wanted: Vec<u8> = (config.data..=u8::MAX).take(config.parity_shards()).collect();
    coefficients(&known, &wanted)
}
