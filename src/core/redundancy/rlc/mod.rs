//! Random linear code over a sliding encoding window (RLC, RFC 8681; words of RFC 8406): repair
//! symbols between peers of this crate, beside retransmission.
//!
//! A source symbol is one data segment: `frg`, the length and the payload. A repair symbol is a
//! linear combination over GF(2^8) of the source symbols of its encoding window, consecutive
//! segments that end with the latest. Its coefficients are a function of a repair key and of the position in
//! the window ([`coefficient`]), so the window, the key and the sum are all that travels. The
//! receiver subtracts what it has, and solves for the rest by elimination ([`Decoder`]): as many
//! independent repair symbols as segments are missing recover all of them, whichever they are.
//!
//! Deviates from RFC 8681: the field and the coefficients are this crate's own, the encoding window
//! is bounded by SND.UNA, and there is no FEC framework around it. The bytes are in docs/wire.md.
//!
//! Everything here is a function of its arguments: no connection, no clock.

mod decoder;
mod encoder;
mod history;
mod symbol;
#[cfg(test)]
mod tests;

pub(crate) use decoder::{Decoder, Inserted, RecoveredSegment, RepairSymbol, Source};
pub(crate) use encoder::write_repair;
pub(crate) use history::History;

/// Most source symbols of an encoding window, segments.
pub(crate) const MAX_WINDOW: usize = 64;

/// Bytes of a source symbol before the payload: `frg` and the length.
pub(crate) const SYMBOL_HEADER: usize = 3;

/// The coefficient of the source symbol with this position in the encoding window, never zero.
///
/// The finalizer of MurmurHash3 spreads the key and the position; the upper bits choose one of the
/// 255 elements. Vectors: `tests/vectors/rlc.json`.
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
