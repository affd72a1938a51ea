//! Bytes written to a stream that have not left.

use std::collections::VecDeque;

use bytes::{Buf, BytesMut};

use super::batch::Batch;

/// Smallest buffer that is allocated for what is written, bytes.
const MIN_CAPACITY: usize = 64;

/// A buffer for what small writes append to grows up to this many bytes.
const MAX_GROWTH: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    chunks: VecDeque<BytesMut>,
    len: usize,
}

impl SendQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends a copy of `bytes`.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        if let Some(tail) = self.chunks.back_mut() {
            let len = bytes.len().min(tail.capacity() - tail.len());
            tail.extend_from_slice(&bytes[..len]);
            self.len += len;
            bytes = &bytes[len..];
        }
        if !bytes.is_empty() {
            let capacity = self.len.clamp(MIN_CAPACITY, MAX_GROWTH).max(bytes.len());
            let mut chunk = BytesMut::with_capacity(capacity);
            chunk.extend_from_slice(bytes);
            self.push_chunk(chunk);
        }
    }

    /// Appends `chunk` itself.
    pub(crate) fn push_chunk(&mut self, chunk: BytesMut) {
        self.len += chunk.len();
        self.chunks.push_back(chunk);
    }

    /// Moves the first `len` bytes, of which there are that many, into `batch`.
    pub(crate) fn take_into(&mut self, mut len: usize, batch: &mut Batch) {
        self.len -= len;
        while len > 0 {
            let Some(front) = self.chunks.front_mut() else { return };
            let taken = len.min(front.len());
            len -= taken;
            if batch.copies(taken) {
                batch.copy(&front[..taken]);
                front.advance(taken);
                if front.is_empty() {
                    self.chunks.pop_front();
                }
            } else if taken < front.len() {
                batch.share(front.split_to(taken).freeze());
            } else if let Some(chunk) = self.chunks.pop_front() {
                batch.share(chunk.freeze());
            }
        }
        if self.len == 0 {
            // An idle stream keeps no buffer.
            self.chunks = VecDeque::new();
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
