//! Chunks of written data that the driver has not taken, oldest first.

use std::collections::VecDeque;
use std::mem;

use bytes::{Bytes, BytesMut};

use crate::shared::memory_use::charge;
use crate::util::buffer_pool::{self, BUFFER_LEN, LARGE};
use crate::util::queue;

/// A chunk of written data on its way to the protocol.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) data: Bytes,
    /// True for a message, which keeps its boundaries; false for a piece of a byte stream.
    pub(crate) message: bool,
}

/// The chunks of one connection.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    queue: VecDeque<Outgoing>,
    /// The last chunk, to which small writes append until it is taken.
    tail: BytesMut,
    /// Payload bytes.
    bytes: usize,
    /// Sum of the charges, see `CHUNK_CHARGE`.
    charged: usize,
}

impl Chunks {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.tail.is_empty()
    }

    /// Payload bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sum of the charges.
    pub(super) fn charged(&self) -> usize {
        self.charged
    }

    pub(super) fn push(&mut self, data: Bytes, message: bool) {
        self.end_tail();
        self.bytes += data.len();
        self.charged += charge(data.len());
        queue::push(&mut self.queue, Outgoing { data, message });
    }

    /// Appends about `count` bytes of a byte stream, written by `copy`, to the chunk of small writes.
    /// Returns their exact number.
    pub(super) fn append(&mut self, count: usize, copy: impl FnOnce(&mut BytesMut)) -> usize {
        if self.tail.len() + count > BUFFER_LEN {
            self.end_tail();
        }
        let before = self.tail.len();
        // The memory grows with the data, so that a few bytes never hold much of it, and becomes a pooled
        // buffer once it is large enough.
        if before < LARGE && before + count >= LARGE {
            let mut pooled = buffer_pool::take();
            pooled.extend_from_slice(&self.tail);
            self.tail = pooled;
        }
        copy(&mut self.tail);
        let len = self.tail.len();
        self.bytes += len - before;
        self.charged += charge(len) - if before == 0 { 0 } else { charge(before) };
        len - before
    }

    /// Ends the chunk of small writes.
    fn end_tail(&mut self) {
        if !self.tail.is_empty() {
            let data = buffer_pool::freeze_grown(mem::take(&mut self.tail));
            queue::push(&mut self.queue, Outgoing { data, message: false });
        }
    }

    /// Moves chunks to `out`, see [`SendQueue::take_writes`](super::SendQueue::take_writes).
    pub(super) fn take(&mut self, mut limit: usize, unit: usize, out: &mut VecDeque<Outgoing>) {
        let before = self.charged;
        while limit > 0 {
            if self.queue.is_empty() {
                self.end_tail();
            }
            let Some(next) = self.queue.front_mut() else { break };
            let len = next.data.len();
            let cost = len.div_ceil(unit).max(1) * unit;
            if cost > limit && !next.message {
                self.bytes -= limit;
                self.charged = self.charged - charge(len) + charge(len - limit);
                let data = next.data.split_to(mem::take(&mut limit));
                out.push_back(Outgoing { data, message: false });
            } else if cost <= limit || self.charged == before {
                self.bytes -= len;
                self.charged -= charge(len);
                limit = limit.saturating_sub(cost);
                out.extend(self.queue.pop_front());
            } else {
                break;
            }
        }
    }

    /// Removes all chunks.
    pub(super) fn clear(&mut self) -> VecDeque<Outgoing> {
        self.end_tail();
        (self.bytes, self.charged) = (0, 0);
        mem::take(&mut self.queue)
    }

    /// Takes the memory that a burst has left, to be dropped.
    pub(super) fn release_burst(&mut self) -> Option<VecDeque<Outgoing>> {
        queue::release_burst(&mut self.queue)
    }

    /// Takes the memory of an empty queue, to be dropped.
    pub(super) fn release_memory(&mut self) -> Option<VecDeque<Outgoing>> {
        queue::release(&mut self.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn append(chunks: &mut Chunks, data: &[u8]) {
        let count = chunks.append(data.len(), |tail| tail.extend_from_slice(data));
        assert_eq!(count, data.len());
    }

    fn taken(chunks: &mut Chunks, limit: usize) -> Vec<Vec<u8>> {
        let mut out = VecDeque::new();
        chunks.take(limit, 1, &mut out);
        out.into_iter().map(|chunk| chunk.data.to_vec()).collect()
    }

    #[test]
    fn small_writes_are_one_chunk_until_it_is_taken() {
        let mut chunks = Chunks::default();
        append(&mut chunks, b"ab");
        append(&mut chunks, b"cd");
        assert_eq!((chunks.bytes(), chunks.charged()), (4, 64));
        assert_eq!(taken(&mut chunks, 0), Vec::<Vec<u8>>::new());
        append(&mut chunks, b"e");
        assert_eq!(taken(&mut chunks, 2), [b"ab"]);
        append(&mut chunks, b"f");
        chunks.push(Bytes::from_static(b"large"), false);
        append(&mut chunks, b"g");
        assert_eq!(taken(&mut chunks, 99), [&b"cde"[..], b"f", b"large", b"g"]);
        assert!(chunks.is_empty());
        assert_eq!((chunks.bytes(), chunks.charged()), (0, 0));
    }

    #[test]
    fn memory_of_small_writes_grows_with_them() {
        let mut chunks = Chunks::default();
        for written in 1..=LARGE {
            append(&mut chunks, &[7]);
            let capacity = chunks.tail.capacity();
            assert!(
                capacity <= (2 * written).max(64) || capacity == BUFFER_LEN && written == LARGE
            );
        }
        append(&mut chunks, &vec![7; BUFFER_LEN - LARGE]);
        assert_eq!((chunks.queue.len(), chunks.tail.len()), (0, BUFFER_LEN));
        append(&mut chunks, &[7]);
        assert_eq!((chunks.queue.len(), chunks.tail.len()), (1, 1));
    }

    proptest! {
        #[test]
        fn what_is_taken_is_what_was_written(
            steps in prop::collection::vec((0_u8..12, 1_usize..LARGE), 1..100),
        ) {
            let mut chunks = Chunks::default();
            let (mut written, mut read) = (0_usize..0, Vec::new());
            let numbered = |bytes: std::ops::Range<usize>| -> Vec<_> {
                bytes.map(|at| u8::try_from(at % 251).unwrap()).collect()
            };
            for (step, len) in steps {
                let data = numbered(written.end..written.end + len);
                match step {
                    0 => read.extend(taken(&mut chunks, len * 4).concat()),
                    1 => chunks.push(Bytes::from(data), false),
                    _ => append(&mut chunks, &data),
                }
                written.end += if step == 0 { 0 } else { len };
                let queued = chunks.queue.iter().map(|chunk| chunk.data.len());
                let tail = Some(chunks.tail.len()).filter(|len| *len > 0);
                let lens: Vec<_> = queued.chain(tail).collect();
                prop_assert_eq!(chunks.bytes(), lens.iter().sum::<usize>());
                prop_assert_eq!(chunks.charged(), lens.iter().map(|len| charge(*len)).sum::<usize>());
                prop_assert!(lens.iter().all(|len| *len <= BUFFER_LEN));
            }
            read.extend(taken(&mut chunks, usize::MAX).concat());
            prop_assert!(read == numbered(written));
            prop_assert!(chunks.is_empty() && chunks.bytes() == 0 && chunks.charged() == 0);
        }
    }
}
