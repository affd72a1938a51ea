//! Frames on their way to the carrier: at most one batch, the only queue between streams and
//! carrier.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem;

use bytes::{Buf, Bytes};

/// Limit of a batch, in bytes, before a frame that exceeds it: 64 KiB of payload, and headers.
pub(crate) const MAX_BATCH: usize = (64 << 10) + 1_024;

/// The same while the carrier is slower than the streams: a frame waits for the previous batch.
pub(crate) const WAITING_BATCH: usize = 16 << 10;

/// Pieces of one vectored write.
pub(crate) const MAX_SLICES: usize = 64;

/// Payloads below this length are copied between the headers in vectored writes: a separate piece
/// costs more than the copy.
const COPY_BELOW: usize = 1_024;

#[derive(Debug)]
enum Part {
    /// The next bytes of `copied`.
    Copied(usize),
    Shared(Bytes),
}

#[derive(Debug)]
pub(crate) struct Batch {
    /// Headers and short payloads.
    copied: Vec<u8>,
    /// Written bytes of `copied`.
    copied_written: usize,
    parts: VecDeque<Part>,
    /// Unwritten bytes.
    len: usize,
    /// The carrier blocked on a recent batch and has not taken one at once since.
    is_slow: bool,
    /// The carrier blocked on this batch.
    has_waited: bool,
    /// The carrier takes several pieces in one write. Otherwise everything is copied.
    vectored: bool,
    /// SYN frames in the batch.
    pub(crate) syns: usize,
    /// Data of a stream is in the batch.
    pub(crate) has_data: bool,
}

impl Batch {
    pub(crate) fn new(vectored: bool) -> Self {
        Self {
            copied: Vec::new(),
            copied_written: 0,
            parts: VecDeque::new(),
            len: 0,
            is_slow: false,
            has_waited: false,
            vectored,
            syns: 0,
            has_data: false,
        }
    }

    /// Discards the unwritten bytes.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.vectored);
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes at which no further frame is added.
    pub(crate) fn limit(&self) -> usize {
        if self.is_slow { WAITING_BATCH } else { MAX_BATCH }
    }

    /// Notes that the carrier is blocked.
    pub(crate) fn on_blocked(&mut self) {
        (self.is_slow, self.has_waited) = (true, true);
    }

    /// Whether payload of `len` bytes is copied.
    pub(crate) fn copies(&self, len: usize) -> bool {
        !self.vectored || len < COPY_BELOW
    }

    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.copied.extend_from_slice(bytes);
        self.len += bytes.len();
        match self.parts.back_mut() {
            Some(Part::Copied(len)) => *len += bytes.len(),
            _ => self.parts.push_back(Part::Copied(bytes.len())),
        }
    }

    pub(crate) fn share(&mut self, bytes: Bytes) {
        self.len += bytes.len();
        self.parts.push_back(Part::Shared(bytes));
    }

    /// Sets the first pieces; returns the number of `slices` set.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut copied = &self.copied[self.copied_written..];
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = match part {
                Part::Copied(len) => {
                    let (piece, rest) = copied.split_at(*len);
                    copied = rest;
                    IoSlice::new(piece)
                }
                Part::Shared(bytes) => IoSlice::new(bytes),
            };
        }
        self.parts.len().min(MAX_SLICES)
    }

    /// Removes the first `written` bytes.
    pub(crate) fn advance(&mut self, mut written: usize) {
        self.len = self.len.saturating_sub(written);
        while written > 0 {
            let Some(part) = self.parts.front_mut() else { break };
            let len = match part {
                Part::Copied(len) => *len,
                Part::Shared(bytes) => bytes.len(),
            };
            let taken = len.min(written);
            written -= taken;
            match part {
                Part::Copied(left) => {
                    *left -= taken;
                    self.copied_written += taken;
                }
                Part::Shared(bytes) => bytes.advance(taken),
            }
            if taken == len {
                self.parts.pop_front();
            }
        }
        if self.len == 0 {
            self.is_slow = mem::take(&mut self.has_waited);
            self.copied.clear();
            self.copied_written = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(vectored: bool) -> (Batch, Vec<u8>) {
        let mut batch = Batch::new(vectored);
        let mut expected = Vec::new();
        for i in 0..50_u8 {
            let payload = vec![i; if i % 3 == 0 { 2_000 } else { 100 }];
            batch.copy(&[i; 8]);
            if batch.copies(payload.len()) {
                batch.copy(&payload);
            } else {
                batch.share(Bytes::from(payload.clone()));
            }
            expected.extend_from_slice(&[i; 8]);
            expected.extend_from_slice(&payload);
        }
        (batch, expected)
    }

    #[test]
    fn batch_written_in_pieces_of_any_size_is_the_same() {
        for vectored in [false, true] {
            for written in [1, 7, 8, 108, 5_000, 1 << 20] {
                let (mut batch, expected) = batch(vectored);
                assert_eq!(batch.len(), expected.len());
                let mut out: Vec<u8> = Vec::new();
                while !batch.is_empty() {
                    let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                    let set = batch.slices(&mut slices);
                    assert!(vectored || set == 1);
                    let before = out.len();
                    out.extend(slices[..set].iter().flat_map(|s| s.iter()).take(written));
                    batch.advance(out.len() - before);
                }
                assert!(out == expected);
            }
        }
    }

    #[test]
    fn batches_are_short_from_a_blocked_one_to_one_that_is_taken_at_once() {
        let mut batch = Batch::new(true);
        assert_eq!(batch.limit(), MAX_BATCH);
        batch.copy(b"blocked");
        batch.on_blocked();
        assert_eq!(batch.limit(), WAITING_BATCH);
        batch.advance(7);
        assert_eq!(batch.limit(), WAITING_BATCH);
        batch.copy(b"taken at once");
        batch.advance(13);
        assert_eq!(batch.limit(), MAX_BATCH);
    }
}
