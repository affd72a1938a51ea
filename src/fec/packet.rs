//! FEC header of kcp-go: seqid, flag, and size; out-of-band packets.

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

pub(crate) mod oob {
    //! Out-of-band packets (kcp-go `typeOOB`, 0xF3): unreliable datagrams of a connection outside its
    //! stream, which no parity covers.
    //!
    //! | bytes | field | value |
    //! |---|---|---|
    //! | 0..4 | seqid | 0xFFFF_FFFF: not counted among the shards |
    //! | 4..6 | flag | [`OUT_OF_BAND`] |
    //! | 6..8 | size | bytes from this field on, itself included |
    //! | 8..12 | conv | the connection that the payload belongs to |
    //! | 12.. | payload | |

    use super::{HEADER_LEN, OUT_OF_BAND, UNCOVERED_LEN};

    /// Bytes of the conversation id in front of the payload.
    pub(crate) const CONV_LEN: usize = 4;

    /// The `seqid` of every out-of-band packet.
    const SEQID: u32 = u32::MAX;

    /// Appends an out-of-band packet to `out`.
    pub(crate) fn write(out: &mut Vec<u8>, conv: u32, payload: &[u8]) {
        let size = HEADER_LEN - UNCOVERED_LEN + CONV_LEN + payload.len();
        out.extend_from_slice(&SEQID.to_le_bytes());
        out.extend_from_slice(&OUT_OF_BAND.to_le_bytes());
        out.extend_from_slice(&u16::try_from(size).unwrap_or(u16::MAX).to_le_bytes());
        out.extend_from_slice(&conv.to_le_bytes());
        out.extend_from_slice(payload);
    }

    /// Parses an out-of-band packet into conversation id and payload; `None` if it is too short.
    ///
    /// Ignores the size field, as kcp-go does: the payload ends with the packet.
    pub(crate) fn parse(packet: &[u8]) -> Option<(u32, &[u8])> {
        let (conv, payload) = packet.get(HEADER_LEN..)?.split_first_chunk()?;
        Some((u32::from_le_bytes(*conv), payload))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn oob_packet_round_trips() {
            let mut packet = Vec::new();
            write(&mut packet, 0x1122_3344, b"oob");
            // tests/vectors/oob.rs compares whole sessions with kcp-go.
            assert_eq!(packet, *b"\xff\xff\xff\xff\xf3\x00\x09\x00\x44\x33\x22\x11oob");
            assert_eq!(parse(&packet), Some((0x1122_3344, &b"oob"[..])));
            assert_eq!(parse(&packet[..HEADER_LEN + CONV_LEN]), Some((0x1122_3344, &[][..])));
            assert_eq!(parse(&packet[..HEADER_LEN + CONV_LEN - 1]), None);
        }
    }
}
