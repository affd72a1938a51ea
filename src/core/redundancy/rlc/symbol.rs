//! A symbol: a vector over GF(2^8), with the sums that form other symbols.

use super::SYMBOL_HEADER;
use crate::fec::gf256::{Kernel, multiply, padded};

/// A symbol in memory. Header and payload are separate, so that a segment's payload can be added without a
/// copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Symbol {
    header: [u8; SYMBOL_HEADER],
    /// Payload, zero-padded to whole lanes of the kernels.
    body: Vec<u8>,
    /// Payload length without padding, bytes.
    len: usize,
}

/// Header of a source symbol: `frg` and the length, little-endian. `None` if the payload is longer than any
/// segment.
pub(super) fn header(frg: u8, len: usize) -> Option<[u8; SYMBOL_HEADER]> {
    let [low, high] = u16::try_from(len).ok()?.to_le_bytes();
    Some([frg, low, high])
}

/// Adds `factor` times `from` to `to`, which consists of whole lanes and is not shorter.
pub(super) fn add_bytes(to: &mut [u8], factor: u8, from: &[u8]) {
    let stride = to.len();
    if !from.is_empty() {
        Kernel::best().fold(to, stride, &[factor], from);
    }
}

impl Symbol {
    /// Parses a received symbol; `None` if shorter than a header.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, payload) = bytes.split_first_chunk::<SYMBOL_HEADER>()?;
        let mut body = Vec::with_capacity(padded(payload.len()));
        body.extend_from_slice(payload);
        body.resize(padded(payload.len()), 0);
        Some(Self { header: *header, body, len: payload.len() })
    }

    /// Payload length, bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Memory of the payload, bytes.
    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn memory(&self) -> usize {
        self.body.capacity()
    }

    /// Adds `factor` times a source symbol. Returns `false` and adds nothing if the segment is longer than
    /// this symbol, which then cannot contain it.
    pub(super) fn add_source(&mut self, factor: u8, frg: u8, payload: &[u8]) -> bool {
        let Some(header) = header(frg, payload.len()).filter(|_| payload.len() <= self.len) else {
            return false;
        };
        self.add_header(factor, header);
        add_bytes(&mut self.body, factor, payload);
        true
    }

    /// Adds `factor` times another symbol.
    pub(super) fn add(&mut self, factor: u8, other: &Self) {
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
    pub(super) fn scale(&mut self, factor: u8) {
        for byte in self.header.iter_mut().chain(&mut self.body) {
            *byte = multiply(factor, *byte);
        }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.header.iter().chain(&self.body).all(|byte| *byte == 0)
    }

    /// The segment that this symbol represents, `frg` and payload; `None` if it is no source symbol.
    pub(super) fn into_source(self) -> Option<(u8, Vec<u8>)> {
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
