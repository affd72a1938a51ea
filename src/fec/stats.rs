use std::ops::{AddAssign, Sub};

/// Counters of one FEC decoder, or the sum of several.
///
/// ```
/// use kcpx::KcpListener;
///
/// fn report(listener: &KcpListener) {
///     let fec = listener.stats().fec;
///     println!("{} data packets, {} recovered", fec.data_shards, fec.recovered_shards);
///     println!("{} groups lost more than their parity", fec.unrecoverable_groups);
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FecStats {
    /// Data packets received.
    pub data_shards: u64,
    /// Parity packets received.
    pub parity_shards: u64,
    /// Data packets recovered from parity.
    pub recovered_shards: u64,
    /// Groups with parity that lost more packets than parity can recover.
    pub unrecoverable_groups: u64,
    /// Malformed data packets computed from parity, and groups whose parity lengths differ.
    pub mismatched_shards: u64,
    /// Duplicate packets.
    pub duplicate_shards: u64,
    /// Packets of groups that have left the window.
    pub late_shards: u64,
    /// Packets whose flag contradicts their seqid in the current layout.
    pub misplaced_shards: u64,
    /// Packets refused because their seqid is far outside the window.
    pub refused_jumps: u64,
    /// Detected changes of the peer's layout.
    pub layout_changes: u64,
}

impl FecStats {
    fn zip(self, other: Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            data_shards: with(self.data_shards, other.data_shards),
            parity_shards: with(self.parity_shards, other.parity_shards),
            recovered_shards: with(self.recovered_shards, other.recovered_shards),
            unrecoverable_groups: with(self.unrecoverable_groups, other.unrecoverable_groups),
            mismatched_shards: with(self.mismatched_shards, other.mismatched_shards),
            duplicate_shards: with(self.duplicate_shards, other.duplicate_shards),
            late_shards: with(self.late_shards, other.late_shards),
            misplaced_shards: with(self.misplaced_shards, other.misplaced_shards),
            refused_jumps: with(self.refused_jumps, other.refused_jumps),
            layout_changes: with(self.layout_changes, other.layout_changes),
        }
    }
}

impl AddAssign for FecStats {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(other, u64::wrapping_add);
    }
}

/// The difference to an earlier snapshot of the same decoder.
impl Sub for FecStats {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.zip(earlier, u64::wrapping_sub)
    }
}
