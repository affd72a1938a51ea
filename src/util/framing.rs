//! Space for headers and trailers around datagrams that are written back to back.

/// Bytes that the stages after the state machine add to a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Framing {
    pub(crate) header_len: usize,
    pub(crate) trailer_len: usize,
}

impl Framing {
    /// Length of a datagram of `len` bytes with header and trailer.
    #[inline]
    pub(crate) fn around(self, len: usize) -> usize {
        self.header_len + len + self.trailer_len
    }

    /// Appends zeros for the header of the next datagram.
    #[inline]
    pub(crate) fn begin(self, out: &mut Vec<u8>) {
        out.resize(out.len() + self.header_len, 0);
    }

    /// Appends zeros for the trailer of the last datagram.
    #[inline]
    pub(crate) fn end(self, out: &mut Vec<u8>) {
        out.resize(out.len() + self.trailer_len, 0);
    }
}
