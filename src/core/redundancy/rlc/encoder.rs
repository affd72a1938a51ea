//! Encoding: one repair symbol of an encoding window.

use super::symbol::{add_bytes, header};
use super::{SYMBOL_HEADER, coefficient};
use crate::fec::gf256::{multiply, padded};

/// Appends the repair symbol with this key. `sources`: `frg` and payload of each segment, in order of number.
/// `longest`: length of the longest payload, bytes; longer ones are cut off.
pub(crate) fn write_repair<'a>(
    key: u32,
    sources: impl Iterator<Item = (u8, &'a [u8])>,
    longest: usize,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    out.resize(start + SYMBOL_HEADER + padded(longest), 0);
    let symbol = out.get_mut(start..).unwrap_or_default();
    let Some((sum, body)) = symbol.split_first_chunk_mut::<SYMBOL_HEADER>() else { return };
    for (position, (frg, payload)) in (0..u8::MAX).zip(sources) {
        let factor = coefficient(key, position);
        let payload = payload.get(..longest).unwrap_or(payload);
        let Some(header) = header(frg, payload.len()) else { continue };
        for (to, from) in sum.iter_mut().zip(header) {
            *to ^= multiply(factor, from);
        }
        add_bytes(body, factor, payload);
    }
    out.truncate(start + SYMBOL_HEADER + longest);
}
