//! Random linear code over a sliding encoding window (RLC, RFC 8681; terms of RFC 8406): repair symbols
//! between peers of this crate, on top of retransmission.
//!
//! A source symbol is one data segment: `frg`, the length and the payload. A repair symbol is a linear
//! combination over GF(2^8) of the source symbols in its encoding window, which are consecutive segments up
//! to the latest. A repair key and the position in the window determine the coefficients ([`coefficient`]),
//! so only the window, the key and the sum are transmitted. The receiver subtracts the segments it has and
//! solves for the rest by elimination ([`Decoder`]): `n` independent repair symbols recover any `n` missing
//! segments.
//!
//! Unlike in RFC 8681, the field and the coefficients are this crate's own, SND.UNA bounds the encoding
//! window, and there is no FEC framework around it. docs/wire.md describes the bytes.
//!
//! All functions here depend on their arguments only: no connection, no clock.

mod decoder;
mod encoder;
mod history;
mod symbol;
#[cfg(test)]
mod tests;

pub(crate) use decoder::{Decoder, Inserted, RecoveredSegment, RepairSymbol, Source};
pub(crate) use encoder::write_repair;
pub(crate) use history::History;

pub(crate) const MAX_WINDOW: usize = 64;

/// Bytes of a source symbol before the payload: `frg` and the length.
pub(crate) const SYMBOL_HEADER: usize = 3;

/// The coefficient of the source symbol at this position in the encoding window, never zero.
///
/// The finalizer of MurmurHash3 mixes the key and the position; the upper bits choose one of the 255
/// elements. Vectors: `tests/vectors/rlc.json`.
#[expect(clippy::cast_possible_truncation, reason = "at most 1 + 254")]
pub(crate) const fn coefficient(key: u32, position: u8) -> u8 {
    let mut x = key.wrapping_add(0x9E37_79B9_u32.wrapping_mul(position as u32 + 1));
    x ^= x >> 16;
    x = x.wrapping_mul(0x85EB_CA6B);
    x ^= x >> 13;
    x = x.wrapping_mul(0xC2B2_AE35);
    x ^= x >> 16;
    1 + ((x as u64 * 255) >> 32) as u8
}
