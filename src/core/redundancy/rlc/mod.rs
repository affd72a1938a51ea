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
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub(crate) use self::decoder::{Decoder, Inserted, RecoveredSegment, RepairSymbol, Source};
use crate::config::SEGMENT_COST;
use crate::fec::gf256::{Kernel, multiply, padded};

/// Most segments of an encoding window.
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

/// A symbol in memory. Header and payload are separate, so that a segment's payload can be added without a
/// copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Symbol {
    header: [u8; SYMBOL_HEADER],
    /// Payload, zero-padded to whole lanes of the kernels.
    body: Vec<u8>,
    /// Payload length without padding, bytes.
    len: usize,
}

/// Header of a source symbol: `frg` and the length, little-endian. `None` if the payload is longer than any
/// segment.
fn header(frg: u8, len: usize) -> Option<[u8; SYMBOL_HEADER]> {
    let [low, high] = u16::try_from(len).ok()?.to_le_bytes();
    Some([frg, low, high])
}

/// Adds `factor` times `from` to `to`, which consists of whole lanes and is not shorter.
fn add_bytes(to: &mut [u8], factor: u8, from: &[u8]) {
    let stride = to.len();
    if !from.is_empty() {
        Kernel::best().fold(to, stride, &[factor], from);
    }
}

impl Symbol {
    /// Parses a received symbol; `None` if shorter than a header.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, payload) = bytes.split_first_chunk::<SYMBOL_HEADER>()?;
        let mut body = Vec::with_capacity(padded(payload.len()));
        body.extend_from_slice(payload);
        body.resize(padded(payload.len()), 0);
        Some(Self { header: *header, body, len: payload.len() })
    }

    /// Payload length, bytes.
    fn len(&self) -> usize {
        self.len
    }

    /// Memory of the payload, bytes.
    #[cfg(any(test, feature = "_testkit"))]
    fn memory(&self) -> usize {
        self.body.capacity()
    }

    /// Adds `factor` times a source symbol. Returns `false` and adds nothing if the segment is longer than
    /// this symbol, which then cannot contain it.
    fn add_source(&mut self, factor: u8, frg: u8, payload: &[u8]) -> bool {
        let Some(header) = header(frg, payload.len()).filter(|_| payload.len() <= self.len) else {
            return false;
        };
        self.add_header(factor, header);
        add_bytes(&mut self.body, factor, payload);
        true
    }

    /// Adds `factor` times another symbol.
    fn add(&mut self, factor: u8, other: &Self) {
        self.add_header(factor, other.header);
        if self.body.len() < other.body.len() {
            self.body.reserve_exact(other.body.len() - self.body.len());
            self.body.resize(other.body.len(), 0);
        }
        self.len = self.len.max(other.len);
        add_bytes(&mut self.body, factor, &other.body);
    }

    fn add_header(&mut self, factor: u8, header: [u8; SYMBOL_HEADER]) {
        for (to, from) in self.header.iter_mut().zip(header) {
            *to ^= multiply(factor, from);
        }
    }

    /// Multiplies by `factor`.
    fn scale(&mut self, factor: u8) {
        for byte in self.header.iter_mut().chain(&mut self.body) {
            *byte = multiply(factor, *byte);
        }
    }

    fn is_zero(&self) -> bool {
        self.header.iter().chain(&self.body).all(|byte| *byte == 0)
    }

    /// The segment that this symbol represents, `frg` and payload; `None` if it is no source symbol.
    fn into_source(self) -> Option<(u8, Vec<u8>)> {
        let Self { header: [frg, low, high], mut body, len: longest } = self;
        let len = usize::from(u16::from_le_bytes([low, high]));
        let padding = body.get(len..).filter(|_| len <= longest)?;
        if padding.iter().any(|byte| *byte != 0) {
            return None;
        }
        body.truncate(len);
        Some((frg, body))
    }
}

/// A delivered segment.
#[derive(Debug)]
struct Delivered {
    frg: u8,
    payload: Vec<u8>,
}

impl Delivered {
    /// Bytes of the receive memory.
    fn cost(&self) -> usize {
        self.payload.capacity() + SEGMENT_COST
    }
}

/// Payloads of recently delivered segments: repair symbols still cover them after the application has read
/// them.
///
/// At most [`MAX_WINDOW`] segments, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    segments: VecDeque<Delivered>,
    /// Cost of all segments, bytes.
    memory: usize,
}

impl History {
    /// Memory of the segments, bytes.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// A segment is delivered. Forgets the oldest ones while all together need more than `limit` bytes.
    pub(crate) fn push(&mut self, frg: u8, payload: &[u8], limit: usize) {
        // The buffer of the evicted segment is reused.
        let mut buffer = Vec::new();
        while self.segments.len() >= MAX_WINDOW
            || self.memory + payload.len() + SEGMENT_COST > limit
        {
            let Some(oldest) = self.segments.pop_front() else { break };
            self.memory -= oldest.cost();
            buffer = oldest.payload;
        }
        buffer.clear();
        let too_large = self.memory + buffer.capacity() + SEGMENT_COST > limit;
        if buffer.capacity() < payload.len() || too_large {
            buffer = Vec::new();
            buffer.reserve_exact(payload.len());
        }
        if self.memory + buffer.capacity() + SEGMENT_COST > limit {
            // The segment does not fit even alone: a gap, before which nothing is known.
            self.segments.clear();
            self.memory = 0;
            return;
        }
        buffer.extend_from_slice(payload);
        let delivered = Delivered { frg, payload: buffer };
        self.memory += delivered.cost();
        self.segments.push_back(delivered);
    }

    /// Forgets the oldest segments until all need at most `limit` bytes.
    pub(crate) fn shrink(&mut self, limit: usize) {
        while self.memory > limit
            && let Some(oldest) = self.segments.pop_front()
        {
            self.memory -= oldest.cost();
        }
    }

    /// `frg` and payload of the segment `age` numbers before the next one.
    pub(crate) fn get(&self, age: u32) -> Option<(u8, &[u8])> {
        let index = self.segments.len().checked_sub(usize::try_from(age).ok()?)?;
        self.segments.get(index).map(|segment| (segment.frg, &*segment.payload))
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        let memory: usize = self.segments.iter().map(Delivered::cost).sum();
        assert_eq!(memory, self.memory);
        assert!(self.segments.len() <= MAX_WINDOW);
    }
}
