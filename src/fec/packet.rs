//! FEC header of kcp-go: seqid, flag, and size.

/// Bytes in front of the KCP datagram in a data packet: seqid (4), flag (2), size (2).
#[doc(alias = "fecHeaderSizePlus2")]
pub const HEADER_LEN: usize = 8;
/// Flag of a data packet (kcp-go `typeData`).
#[doc(alias = "typeData")]
pub const DATA: u16 = 0xF1;
/// Flag of a parity packet (kcp-go `typeParity`).
#[doc(alias = "typeParity")]
pub const PARITY: u16 = 0xF2;
/// Flag of an out-of-band packet, which no parity covers (kcp-go `typeOOB`).
#[doc(alias = "typeOOB")]
pub const OUT_OF_BAND: u16 = 0xF3;

/// Bytes that parity does not cover: seqid and flag (kcp-go `fecHeaderSize`). The covered part
/// begins with the size.
pub(super) const UNCOVERED_LEN: usize = 6;
/// Bytes of the size field, which counts itself.
pub(super) const SIZE_LEN: usize = 2;

/// Kind of a decrypted packet, by its FEC flag (kcp-go `fecPacket.flag`).
///
/// ```
/// use kcpx::fec::{FecFlag, fec_flag};
///
/// let data = [1, 0, 0, 0, 0xF1, 0, 6, 0, b'd', b'a', b't', b'a']; // Seqid, flag, size.
/// assert_eq!(fec_flag(&data), FecFlag::Data);
/// let push = [9, 0, 0, 0, 81, 0, 32, 0]; // A KCP segment begins with its conversation id.
/// assert_eq!(fec_flag(&push), FecFlag::Plain);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FecFlag {
    /// A KCP datagram behind [`HEADER_LEN`] bytes.
    Data,
    /// Parity of a group.
    Parity,
    /// An out-of-band packet: a datagram outside the stream.
    OutOfBand,
    /// No FEC flag: a KCP datagram without FEC, or malformed.
    Plain,
}

/// Returns the kind of a decrypted packet from its bytes 4 and 5. In a KCP segment these are
/// command and fragment count, which never equal a flag.
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

/// The KCP datagram in a packet other than parity.
pub(crate) fn datagram_of(packet: &[u8]) -> &[u8] {
    match fec_flag(packet) {
        FecFlag::Data => packet.get(HEADER_LEN..).unwrap_or_default(),
        _ => packet,
    }
}

/// Parses a packet into seqid, whether it is parity, and the bytes that parity covers.
pub(super) fn parse(packet: &[u8]) -> Option<(u32, bool, &[u8])> {
    let (&[a, b, c, d, low, high], content) = packet.split_first_chunk::<UNCOVERED_LEN>()?;
    let parity = match u16::from_le_bytes([low, high]) {
        DATA => false,
        PARITY => true,
        _ => return None,
    };
    (content.len() >= SIZE_LEN).then_some((u32::from_le_bytes([a, b, c, d]), parity, content))
}
