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

use super::packet::{HEADER_LEN, OUT_OF_BAND, UNCOVERED_LEN};

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
