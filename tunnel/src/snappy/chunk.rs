//! Chunks of the Snappy framing format: encoding and decoding of one chunk, without I/O.

use snap::raw::{Decoder, Encoder, decompress_len, max_compress_len};
use thiserror::Error;

/// Bytes of a chunk's header: type (1), length (3, little-endian).
pub(super) const HEADER_LEN: usize = 4;
/// Bytes of the masked CRC-32C in front of a chunk's data.
const CRC_LEN: usize = 4;
/// Most uncompressed bytes of a chunk.
pub(super) const MAX_DATA: usize = 65_536;
/// Most bytes of a data chunk after its header: CRC, and the longest compressed form of `MAX_DATA`
/// bytes (golang/snappy `maxEncodedLenOfMaxBlockSize`).
pub(super) const MAX_BODY: usize = CRC_LEN + 76_490;
/// The stream identifier, once per direction before the first chunk.
pub(super) const STREAM_IDENTIFIER: &[u8; 10] = b"\xff\x06\0\0sNaPpY";

const COMPRESSED: u8 = 0x00;
const UNCOMPRESSED: u8 = 0x01;
const SKIPPABLE: std::ops::RangeInclusive<u8> = 0x80..=0xfe;
const IDENTIFIER: u8 = 0xff;

/// Why a byte stream is not Snappy framing. Get it by a downcast from an
/// [`io::Error`](std::io::Error) of kind [`InvalidData`](std::io::ErrorKind::InvalidData).
///
/// ```
/// use kcpx_tunnel::snappy::SnappyError;
///
/// let error = std::io::Error::from(SnappyError::NoStreamIdentifier { chunk_type: 1 });
/// assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SnappyError {
    /// The first chunk is not the stream identifier: the peer does not compress.
    #[error(
        "snappy: the stream begins with chunk type {chunk_type:#04x} instead of the stream \
         identifier (is --nocomp the same on both sides?)"
    )]
    NoStreamIdentifier {
        /// Type of the first chunk.
        chunk_type: u8,
    },
    /// A stream identifier of another length or text.
    #[error("snappy: a stream identifier is not `sNaPpY`")]
    InvalidStreamIdentifier,
    /// A reserved type that may not be skipped, 0x02 to 0x7f.
    #[error(
        "snappy: chunk type {chunk_type:#04x} is reserved: expected 0x00, 0x01, or 0x80 to 0xff"
    )]
    ReservedChunkType {
        /// Type of the chunk.
        chunk_type: u8,
    },
    /// A data chunk longer than 65,536 bytes of data need.
    #[error("snappy: a chunk has {len} bytes: expected {CRC_LEN} to {MAX_BODY}")]
    ChunkLength {
        /// Bytes after the chunk's header.
        len: usize,
    },
    /// A chunk with more data than the format permits.
    #[error("snappy: a chunk has {len} bytes of data: expected 0 to {MAX_DATA}")]
    DataLength {
        /// Uncompressed bytes of the chunk.
        len: usize,
    },
    /// The compressed data of a chunk is malformed.
    #[error("snappy: compressed data is malformed: {0}")]
    Compression(#[from] snap::Error),
    /// The checksum of a chunk does not match its data.
    #[error("snappy: a chunk has checksum {expected:#010x}, but its data has {actual:#010x}")]
    Checksum {
        /// The masked CRC-32C of the chunk.
        expected: u32,
        /// The masked CRC-32C of its data.
        actual: u32,
    },
}

impl From<SnappyError> for std::io::Error {
    fn from(error: SnappyError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// A chunk's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// The stream identifier, of this length.
    Identifier(usize),
    /// Data of this length, including the CRC.
    Data { compressed: bool, len: usize },
    /// Bytes to skip.
    Skip(usize),
}

impl Header {
    /// Parses a header. `started`: a stream identifier came before.
    pub(super) fn parse(bytes: [u8; HEADER_LEN], started: bool) -> Result<Self, SnappyError> {
        let [chunk_type, low, middle, high] = bytes;
        let len = usize::from(low) | usize::from(middle) << 8 | usize::from(high) << 16;
        match chunk_type {
            IDENTIFIER if len == STREAM_IDENTIFIER.len() - HEADER_LEN => Ok(Self::Identifier(len)),
            IDENTIFIER => Err(SnappyError::InvalidStreamIdentifier),
            _ if !started => Err(SnappyError::NoStreamIdentifier { chunk_type }),
            COMPRESSED | UNCOMPRESSED if !(CRC_LEN..=MAX_BODY).contains(&len) => {
                Err(SnappyError::ChunkLength { len })
            }
            COMPRESSED | UNCOMPRESSED => {
                Ok(Self::Data { compressed: chunk_type == COMPRESSED, len })
            }
            _ if SKIPPABLE.contains(&chunk_type) => Ok(Self::Skip(len)),
            _ => Err(SnappyError::ReservedChunkType { chunk_type }),
        }
    }
}

pub(super) fn check_identifier(body: &[u8]) -> Result<(), SnappyError> {
    let expected = STREAM_IDENTIFIER.split_at(HEADER_LEN).1;
    if body == expected { Ok(()) } else { Err(SnappyError::InvalidStreamIdentifier) }
}

/// Appends `data`, at most `MAX_DATA` bytes, as one chunk. Like golang/snappy, compresses it if
/// that saves an eighth.
pub(super) fn encode(encoder: &mut Encoder, data: &[u8], out: &mut Vec<u8>) {
    debug_assert!(data.len() <= MAX_DATA);
    let (start, body) = (out.len(), out.len() + HEADER_LEN + CRC_LEN);
    out.resize(body + max_compress_len(data.len()), 0);
    // An error would be a short buffer or too much data, which the lines above exclude; the data is
    // then sent uncompressed.
    let compressed = encoder.compress(data, &mut out[body..]).unwrap_or(usize::MAX);
    let chunk_type = if compressed < data.len() - data.len() / 8 {
        out.truncate(body + compressed);
        COMPRESSED
    } else {
        out.truncate(body);
        out.extend_from_slice(data);
        UNCOMPRESSED
    };
    let len = out.len() - start - HEADER_LEN;
    let [low, middle, high, ..] = len.to_le_bytes();
    out[start..start + HEADER_LEN].copy_from_slice(&[chunk_type, low, middle, high]);
    out[body - CRC_LEN..body].copy_from_slice(&masked_crc(data).to_le_bytes());
}

/// Replaces `out` by the data of a chunk with the body `body`, at most `MAX_BODY` bytes. `out` is
/// empty after an error.
pub(super) fn decode(
    decoder: &mut Decoder,
    compressed: bool,
    body: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), SnappyError> {
    out.clear();
    let Some((crc, data)) = body.split_first_chunk::<CRC_LEN>() else {
        return Err(SnappyError::ChunkLength { len: body.len() });
    };
    let len = if compressed { decompress_len(data)? } else { data.len() };
    if len > MAX_DATA {
        return Err(SnappyError::DataLength { len });
    }
    if compressed {
        out.resize(len, 0);
        let written = decoder.decompress(data, out).inspect_err(|_| out.clear())?;
        out.truncate(written);
    } else {
        out.extend_from_slice(data);
    }
    let (expected, actual) = (u32::from_le_bytes(*crc), masked_crc(out));
    if expected == actual {
        return Ok(());
    }
    out.clear();
    Err(SnappyError::Checksum { expected, actual })
}

/// CRC-32C as the framing format masks it.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}
