//! Received bytes of a stream that the application has not read.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use super::read_buffers::{MAX_OWNED, Piece, ReadBuffers};

/// Payload shorter than this is copied; longer payload is split off the read buffer.
const COPY_BELOW: usize = 4_096;

/// Capacity of the buffer that collects short payloads, in bytes: at first and at most.
const TAIL_CAPACITY: (usize, usize) = (256, MAX_OWNED);

#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    chunks: VecDeque<Piece>,
    /// Short payloads after `chunks`.
    tail: BytesMut,
    len: usize,
}

impl ReceiveQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes the first `len` bytes of `input`, the current buffer of `buffers`. Returns whether
    /// they stay in that buffer.
    pub(crate) fn push(&mut self, input: &mut BytesMut, len: usize, buffers: &ReadBuffers) -> bool {
        self.len += len;
        if len >= COPY_BELOW {
            self.freeze_tail();
            self.chunks.push_back(buffers.piece(input.split_to(len).freeze()));
            return true;
        }
        if self.tail.capacity() - self.tail.len() < len {
            self.freeze_tail();
            let (first, most) = TAIL_CAPACITY;
            // At most doubles the memory of the unread bytes.
            self.tail = BytesMut::with_capacity(self.len.clamp(first, most).max(len));
        }
        self.tail.extend_from_slice(&input[..len]);
        input.advance(len);
        false
    }

    /// Copies all pieces of read buffers.
    pub(crate) fn detach(&mut self) {
        let chunks = std::mem::take(&mut self.chunks);
        chunks.into_iter().for_each(|chunk| chunk.detach_into(&mut self.chunks));
    }

    /// Takes up to `max` bytes of the first piece. Empty if nothing is queued.
    pub(crate) fn take(&mut self, max: usize) -> Bytes {
        let bytes = match self.chunks.front_mut() {
            Some(chunk) => {
                let bytes = chunk.take(max);
                if chunk.is_empty() {
                    self.chunks.pop_front();
                }
                bytes
            }
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

    /// Discards everything; returns the number of bytes.
    pub(crate) fn clear(&mut self) -> usize {
        std::mem::take(self).len
    }

    /// Ends the collection of short payloads. If they use less than half of the buffer they are
    /// copied, so that they never hold more than twice their length.
    fn freeze_tail(&mut self) {
        if self.tail.is_empty() {
            return;
        }
        let tail = std::mem::take(&mut self.tail);
        let is_sparse = tail.len() * 2 < tail.capacity();
        let tail = if is_sparse { Bytes::copy_from_slice(&tail) } else { tail.freeze() };
        self.chunks.push_back(Piece::owned(tail));
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
            let (mut queue, buffers) = (ReceiveQueue::default(), ReadBuffers::new());
            let mut out = Vec::new();
            for (i, piece) in data.chunks(piece).enumerate() {
                let mut input = BytesMut::from(piece);
                queue.push(&mut input, piece.len(), &buffers);
                assert!(input.is_empty());
                if i % 7 == 0 {
                    queue.detach();
                }
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
        let (mut queue, buffers) = (ReceiveQueue::default(), ReadBuffers::new());
        for _ in 0..100_000 {
            queue.push(&mut BytesMut::from(&b"x"[..]), 1, &buffers);
        }
        assert!(queue.chunks.len() < 20, "{} pieces", queue.chunks.len());
        assert_eq!(queue.clear(), 100_000);
        assert_eq!(queue.len(), 0);
    }
}
