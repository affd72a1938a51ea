//! Bytes received on a stream that the application has not read.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// Payload shorter than this is copied, so that few bytes do not keep a whole read buffer alive;
/// longer payload is split off the read buffer.
const COPY_BELOW: usize = 4_096;

/// Capacity of the buffer that short payloads are collected in, bytes: at first and at most.
const TAIL_CAPACITY: (usize, usize) = (256, 8_192);

#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    chunks: VecDeque<Bytes>,
    /// Short payloads behind `chunks`.
    tail: BytesMut,
    len: usize,
}

impl ReceiveQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes the first `len` bytes of `input`.
    pub(crate) fn push(&mut self, input: &mut BytesMut, len: usize) {
        self.len += len;
        if len >= COPY_BELOW {
            self.freeze_tail();
            self.chunks.push_back(input.split_to(len).freeze());
            return;
        }
        if self.tail.capacity() - self.tail.len() < len {
            let capacity = self.tail.len().saturating_mul(2);
            self.freeze_tail();
            let (first, most) = TAIL_CAPACITY;
            self.tail = BytesMut::with_capacity(capacity.clamp(first, most).max(len));
        }
        self.tail.extend_from_slice(&input[..len]);
        input.advance(len);
    }

    /// Takes up to `max` bytes of the first piece. Empty if nothing is queued.
    pub(crate) fn take(&mut self, max: usize) -> Bytes {
        let bytes = match self.chunks.front_mut() {
            Some(chunk) if chunk.len() > max => chunk.split_to(max),
            Some(_) => self.chunks.pop_front().unwrap_or_default(),
            None if self.tail.len() > max => self.tail.split_to(max).freeze(),
            None => std::mem::take(&mut self.tail).freeze(),
        };
        self.len -= bytes.len();
        if self.len == 0 {
            // An idle stream keeps no buffer.
            self.chunks = VecDeque::new();
        }
        bytes
    }

    /// Discards everything; returns how many bytes that were.
    pub(crate) fn clear(&mut self) -> usize {
        std::mem::take(self).len
    }

    fn freeze_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(std::mem::take(&mut self.tail).freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receive_queue_returns_bytes_in_order_whatever_the_sizes() {
        for (piece, read) in [(1, 1), (1, 7), (100, 4_096), (4_095, 3), (5_000, 999), (70, 100_000)]
        {
            let data: Vec<u8> = (0..60_000_u32).map(|i| (i % 251) as u8).collect();
            let mut queue = ReceiveQueue::default();
            let mut out = Vec::new();
            for (i, piece) in data.chunks(piece).enumerate() {
                let mut input = BytesMut::from(piece);
                queue.push(&mut input, piece.len());
                assert!(input.is_empty());
                if i % 3 == 0 {
                    out.extend_from_slice(&queue.take(read));
                }
            }
            while queue.len() > 0 {
                let bytes = queue.take(read);
                assert!((1..=read).contains(&bytes.len()));
                out.extend_from_slice(&bytes);
            }
            assert_eq!(out, data);
            assert!(queue.take(1).is_empty());
        }
    }

    #[test]
    fn receive_queue_of_single_bytes_shares_buffers() {
        let mut queue = ReceiveQueue::default();
        for _ in 0..100_000 {
            queue.push(&mut BytesMut::from(&b"x"[..]), 1);
        }
        assert!(queue.chunks.len() < 20, "{} pieces", queue.chunks.len());
        assert_eq!(queue.clear(), 100_000);
        assert_eq!(queue.len(), 0);
    }
}
