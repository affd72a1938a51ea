//! Unsent bytes written to a stream.

use std::collections::VecDeque;
use std::mem;

use bytes::{Buf, Bytes, BytesMut};

use super::batch::Batch;

/// Smallest buffer allocated for writes, in bytes.
const MIN_CAPACITY: usize = 64;

/// Limit of a growing buffer that small writes append to, in bytes.
const MAX_GROWTH: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    chunks: VecDeque<Bytes>,
    /// After the chunks; small writes append to it.
    tail: BytesMut,
    len: usize,
}

impl SendQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends a copy of `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.tail.capacity() - self.tail.len()));
        self.tail.extend_from_slice(head);
        if !rest.is_empty() {
            self.end_tail();
            let capacity = self.len.clamp(MIN_CAPACITY, MAX_GROWTH).max(rest.len());
            self.tail = BytesMut::with_capacity(capacity);
            self.tail.extend_from_slice(rest);
        }
        self.len += bytes.len();
    }

    /// Appends `chunk` itself.
    pub(crate) fn push_chunk(&mut self, chunk: Bytes) {
        self.end_tail();
        self.len += chunk.len();
        self.chunks.push_back(chunk);
    }

    /// Ends the tail: later writes go behind it.
    fn end_tail(&mut self) {
        if self.tail.is_empty() {
            return;
        }
        if self.tail.len() < self.tail.capacity() / 2 {
            // A queue of short tails would hold their capacity.
            self.chunks.push_back(Bytes::copy_from_slice(&self.tail));
            self.tail.clear();
        } else {
            self.chunks.push_back(mem::take(&mut self.tail).freeze());
        }
    }

    /// Moves the first `len` bytes into `batch`; at least `len` are queued.
    pub(crate) fn take_into(&mut self, mut len: usize, batch: &mut Batch) {
        self.len -= len;
        while len > 0 {
            let Some(front) = self.chunks.front_mut() else {
                take_tail(&mut self.tail, len, batch);
                break;
            };
            let taken = len.min(front.len());
            len -= taken;
            if batch.copies(taken) {
                batch.copy(&front[..taken]);
                front.advance(taken);
            } else {
                batch.share(front.split_to(taken));
            }
            if front.is_empty() {
                self.chunks.pop_front();
            }
        }
        if self.len == 0 {
            // An idle stream keeps no buffer.
            self.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn take_tail(tail: &mut BytesMut, len: usize, batch: &mut Batch) {
    if batch.copies(len) {
        batch.copy(&tail[..len]);
        tail.advance(len);
    } else {
        batch.share(tail.split_to(len).freeze());
    }
}
