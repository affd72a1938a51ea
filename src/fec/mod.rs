//! Forward error correction: parity beside the data, so that what is lost need not be sent again.
//!
//! Packets form groups. [`FecEncoder`] numbers the data packets and folds each into the parity of
//! its group as it passes; [`FecDecoder`] keeps the last few groups and computes what is missing
//! as soon as as many packets of a group arrived as it has data packets, whichever they are. Both
//! belong to a peer's address: a parity packet names no conversation.
//!
//! This is kcp-go's format. Neither side does I/O, reads a clock or draws random numbers.

use std::ops::{AddAssign, Sub};

use crate::error::ConfigError;

mod autotune;
#[cfg(feature = "_testkit")]
#[doc(hidden)]
pub mod bench;
mod decoder;
mod encoder;
mod gf256;
pub(crate) mod oob;
mod reconstruct;
mod shard_buffers;
#[cfg(test)]
mod tests;

pub use decoder::FecDecoder;
pub use encoder::FecEncoder;

/// Bytes in front of the KCP datagram of a data packet: number, kind, size.
pub const HEADER_LEN: usize = 8;
/// The kind of a packet that carries data.
pub const DATA: u16 = 0xF1;
/// The kind of a packet that carries parity.
pub const PARITY: u16 = 0xF2;
/// The kind of a packet beside the stream, which no parity covers.
pub const OUT_OF_BAND: u16 = 0xF3;

/// Bytes in front of what parity covers, which begins with the size: number and kind.
const OUTER: usize = 6;
/// Bytes of the size field. It counts itself.
const SIZE: usize = 2;

/// Data and parity packets of a group.
///
/// A stock kcp-go receiver finds out the two numbers by itself only if their sum is below 256: for
/// 256 it has to be configured alike.
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
    data: u8,
    parity: u8,
}

impl FecConfig {
    /// 10 + 3, as in kcptun: a lost packet is back after ten more at the latest, for 30 % of the
    /// bandwidth. For streams of some packets a round trip, such as a game's.
    pub const SHORT: Self = Self { data: 10, parity: 3 };

    /// 64 + 10: nearly every group survives 5 % loss, for 16 % of the bandwidth. For bulk, where the
    /// 64 packets of a group follow each other within milliseconds; slow streams wait too long for
    /// its parity.
    pub const BULK: Self = Self { data: 64, parity: 10 };

    /// Groups of `data` data packets and `parity` parity packets, together at most 256.
    ///
    /// # Errors
    ///
    /// When one of them is zero, or the sum is above 256.
    pub fn new(data: usize, parity: usize) -> Result<Self, ConfigError> {
        ConfigError::check("fec data shards", data, 1, 255)?;
        ConfigError::check("fec parity shards", parity, 1, 255)?;
        ConfigError::check("fec data and parity shards", data + parity, 2, 256)?;
        Ok(Self { data: narrow(data), parity: narrow(parity) })
    }

    /// Data packets of a group.
    #[must_use]
    pub fn data_shards(self) -> usize {
        usize::from(self.data)
    }

    /// Parity packets of a group.
    #[must_use]
    pub fn parity_shards(self) -> usize {
        usize::from(self.parity)
    }

    /// Packets of a group.
    fn sum(self) -> u32 {
        u32::from(self.data) + u32::from(self.parity)
    }

    /// Groups before the numbers start again at zero. The last group is a complete one.
    fn groups(self) -> u32 {
        u32::MAX / self.sum()
    }

    /// The number that is zero again, as in kcp-go.
    fn paws(self) -> u32 {
        self.groups() * self.sum()
    }

    /// The first number of the next group that starts at `seqid` or later.
    fn group_start(self, seqid: u32) -> u32 {
        let group = seqid.div_ceil(self.sum());
        if group < self.groups() { group * self.sum() } else { 0 }
    }

    /// Place of a packet in its group: data first, then parity.
    fn position(self, seqid: u32) -> u8 {
        narrow(seqid % self.sum())
    }

    /// Whether the packet of this number is parity.
    fn is_parity(self, seqid: u32) -> bool {
        self.position(seqid) >= self.data
    }
}

/// What a decrypted packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FecFlag {
    /// A KCP datagram behind [`HEADER_LEN`] bytes.
    Data,
    /// Parity of a group.
    Parity,
    /// A packet beside the stream.
    OutOfBand,
    /// None of these: a KCP datagram without forward error correction, if anything.
    Plain,
}

/// What a decrypted packet is, by its bytes 4 and 5. No KCP command reads like one of the kinds.
#[must_use]
pub fn fec_flag(packet: &[u8]) -> FecFlag {
    let Some(&[_, _, _, _, low, high]) = packet.first_chunk() else { return FecFlag::Plain };
    match u16::from_le_bytes([low, high]) {
        DATA => FecFlag::Data,
        PARITY => FecFlag::Parity,
        OUT_OF_BAND => FecFlag::OutOfBand,
        _ => FecFlag::Plain,
    }
}

/// What a decoder has done so far. A snapshot; several can be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FecStats {
    /// Data packets received.
    pub data_shards: u64,
    /// Parity packets received.
    pub parity_shards: u64,
    /// Data packets computed from others and found plausible.
    pub recovered_shards: u64,
    /// Groups that were given up with losses although some of their parity arrived.
    pub unrecoverable_groups: u64,
    /// Data packets computed from others that cannot be what was sent.
    pub mismatched_shards: u64,
    /// Packets received again.
    pub duplicate_shards: u64,
    /// Packets of groups that are not kept any more.
    pub late_shards: u64,
    /// Packets whose kind contradicts their number in the groups assumed.
    pub misplaced_shards: u64,
    /// Packets whose number is too far from all others to be believed.
    pub refused_jumps: u64,
    /// How often the peer was found to use other groups than assumed.
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

/// What happened since an earlier snapshot of the same decoder.
impl Sub for FecStats {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.zip(earlier, u64::wrapping_sub)
    }
}

/// A place in a group, or a count that [`FecConfig`] allows: below 256, whatever its type.
fn narrow(number: impl TryInto<u8>) -> u8 {
    number.try_into().unwrap_or(u8::MAX)
}

/// A set of places in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Places([u64; 4]);

impl Places {
    /// Whether it was not there before.
    fn insert(&mut self, place: u8) -> bool {
        let (word, bit) = (&mut self.0[usize::from(place >> 6)], 1 << (place & 63));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    fn contains(&self, place: u8) -> bool {
        self.0[usize::from(place >> 6)] >> (place & 63) & 1 == 1
    }
}
