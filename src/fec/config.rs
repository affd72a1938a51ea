//! FEC layouts: group sizes, positions in a group, and the wrap of seqids.

use crate::error::ConfigError;

/// FEC layout: data and parity packets of a group (kcp-go `dataShards`, `parityShards`).
///
/// A kcp-go receiver detects both numbers (autoTune). Version 5.6.72 does so only if their sum is
/// below 256; for 256 it must be configured alike.
///
/// ```
/// use kcpx::FecConfig;
///
/// let config = FecConfig::new(10, 3)?; // Any 3 of 13 packets may be lost.
/// assert_eq!((config.data_shards(), config.parity_shards()), (10, 3));
/// assert!(FecConfig::new(200, 57).is_err());
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FecConfig {
    pub(super) data: u8,
    pub(super) parity: u8,
}

impl FecConfig {
    /// 10 + 3, as in kcptun: recovers a lost packet after at most ten more, at 30 % bandwidth. For
    /// streams of a few packets per round trip, such as games.
    pub const SHORT: Self = Self { data: 10, parity: 3 };

    /// 64 + 10: nearly every group survives 5 % loss, at 16 % bandwidth. For bulk transfer, where
    /// the 64 packets of a group leave within milliseconds; in slow streams the parity comes too
    /// late.
    pub const BULK: Self = Self { data: 64, parity: 10 };

    /// Most packets of a group, data and parity.
    pub(crate) const MAX_SHARDS: usize = 256;

    /// Groups of `data` data packets and `parity` parity packets, at most 256 together.
    ///
    /// # Errors
    ///
    /// If one of them is zero, or the sum is above 256.
    pub fn new(data: usize, parity: usize) -> Result<Self, ConfigError> {
        ConfigError::check("fec data shards", data, 1, 255)?;
        ConfigError::check("fec parity shards", parity, 1, 255)?;
        ConfigError::check(
            "fec data and parity shards",
            data + parity,
            2,
            Self::MAX_SHARDS as u64,
        )?;
        Ok(Self { data: to_u8(data), parity: to_u8(parity) })
    }

    /// Returns the data packets of a group.
    #[must_use]
    pub fn data_shards(self) -> usize {
        usize::from(self.data)
    }

    /// Returns the parity packets of a group.
    #[must_use]
    pub fn parity_shards(self) -> usize {
        usize::from(self.parity)
    }

    /// Packets of a group, data and parity.
    pub(crate) fn shards(self) -> usize {
        self.data_shards() + self.parity_shards()
    }

    /// [`Self::shards`] as `u32`.
    pub(super) fn sum(self) -> u32 {
        u32::from(self.data) + u32::from(self.parity)
    }

    /// Groups before the seqid wraps to zero. The last group is complete.
    pub(super) fn groups(self) -> u32 {
        u32::MAX / self.sum()
    }

    /// The seqid that wraps to zero (kcp-go `paws`).
    pub(super) fn paws(self) -> u32 {
        self.groups() * self.sum()
    }

    /// The first seqid of the next group that starts at `seqid` or later.
    pub(super) fn group_start(self, seqid: u32) -> u32 {
        let group = seqid.div_ceil(self.sum());
        if group < self.groups() { group * self.sum() } else { 0 }
    }

    /// Position of a packet in its group: data first, then parity.
    pub(super) fn position(self, seqid: u32) -> u8 {
        to_u8(seqid % self.sum())
    }

    /// Whether the packet of this seqid is parity.
    pub(super) fn is_parity(self, seqid: u32) -> bool {
        self.position(seqid) >= self.data
    }
}

/// Converts a position in a group, or a count that [`FecConfig`] permits: below 256 by
/// construction.
pub(super) fn to_u8(number: impl TryInto<u8>) -> u8 {
    number.try_into().unwrap_or(u8::MAX)
}

/// A set of positions in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Places(pub(super) [u64; 4]);

impl Places {
    /// Adds a position. Returns whether it is new.
    pub(super) fn insert(&mut self, place: u8) -> bool {
        let (word, bit) = (&mut self.0[usize::from(place >> 6)], 1 << (place & 63));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    pub(super) fn remove(&mut self, place: u8) {
        self.0[usize::from(place >> 6)] &= !(1 << (place & 63));
    }

    pub(super) fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(super) fn contains(&self, place: u8) -> bool {
        self.0[usize::from(place >> 6)] >> (place & 63) & 1 == 1
    }
}
