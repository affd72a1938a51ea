//! Delivery buffer: in-order data until the application reads it (kcp-go `rcv_queue`).
//!
//! Payloads of a byte stream are appended to one buffer, the tail, which a read freezes into a
//! chunk: a read of small segments costs one [`Bytes`], not one per segment. Messages, and large
//! segments that were stored out of order, are chunks of their own and are not copied again.
//!
//! Tails of 32 KiB and more come from `util::buffer_pool`, a process-wide pool behind a `Mutex`:
//! the only lock in `core`, taken at most once per tail and held for one pop.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::util::buffer_pool;
use crate::util::queue;

/// Smallest tail, bytes, once a connection has filled one. Also the smallest payload that becomes a
/// chunk without a copy.
const MIN_CHUNK: usize = 512;
/// Largest size of a tail, bytes.
const MAX_CHUNK: usize = buffer_pool::BUFFER_LEN;
/// Tails of at least this size, bytes, come from the buffer pool.
const POOLED: usize = MAX_CHUNK / 2;

/// Payload of a segment to deliver.
pub(super) enum Payload<'a> {
    /// Still in its datagram.
    Borrowed(&'a [u8]),
    /// Was stored out of order.
    Owned(Bytes),
}

impl Payload<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    pub(super) fn into_owned(self) -> Bytes {
        match self {
            Self::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Result of one read: bytes of the stream, or a message.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) data: Bytes,
    /// Segments that carried the data.
    pub(super) segments: u32,
    /// Receive memory charged for these segments, bytes.
    pub(super) charge: usize,
}

/// Unread in-order data.
#[derive(Debug, Default)]
pub(super) struct DeliveryBuffer {
    ready: VecDeque<Chunk>,
    /// In-order bytes of a stream after `ready`, not frozen into a chunk yet.
    tail: BytesMut,
    tail_segments: u32,
    tail_charge: usize,
    /// The tail is a buffer of the pool, or the rest of one. True until the tail is replaced.
    tail_is_pooled: bool,
    /// Size of the next tail, bytes: doubles when a tail fills up between two reads, halves when a
    /// read finds it nearly empty. Zero before the first.
    chunk_size: usize,
    /// Bytes frozen between the last two reads that emptied the buffer.
    last_read: usize,
    /// Bytes frozen since the last read that emptied the buffer.
    frozen_bytes: usize,
}

impl DeliveryBuffer {
    /// Whether there is nothing to read.
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.tail_segments == 0
    }

    /// Appends a message.
    pub(super) fn push(&mut self, chunk: Chunk) {
        queue::push(&mut self.ready, chunk);
    }

    /// Appends one segment of a byte stream. `is_short`: allocate no memory beyond its bytes.
    pub(super) fn append(&mut self, charge: usize, payload: Payload<'_>, is_short: bool) {
        match payload {
            Payload::Owned(data) if data.len() >= MIN_CHUNK => {
                self.freeze_tail();
                self.push(Chunk { data, segments: 1, charge });
            }
            payload => {
                self.append_to_tail(payload.bytes(), is_short);
                self.tail_segments += 1;
                self.tail_charge += charge;
            }
        }
    }

    fn append_to_tail(&mut self, bytes: &[u8], is_short: bool) {
        // The first chunk after a read that emptied the buffer gets capacity for `last_read` bytes,
        // since memory before an unread chunk cannot be reclaimed. Later chunks get capacity for
        // their own bytes, or each could pin a large buffer for one byte (test
        // `delivery_small_chunks_after_a_burst_share_a_buffer`).
        let is_new = self.tail_segments == 0;
        let is_first = is_new && self.ready.is_empty();
        let expected = if is_first && !is_short { self.last_read.min(MAX_CHUNK) } else { 0 };
        let capacity = bytes.len().max(expected);
        if self.tail.capacity() - self.tail.len() < capacity {
            if !is_new {
                // More arrives between two reads than a chunk holds.
                self.chunk_size = (2 * self.chunk_size).min(MAX_CHUNK);
            }
            self.freeze_tail();
            // The first tail is exactly as large as its data: some connections receive no more.
            let least = if self.chunk_size == 0 { 0 } else { MIN_CHUNK };
            self.chunk_size = self.chunk_size.max(capacity).max(least);
            let size = if is_short { capacity } else { self.chunk_size };
            // Reclaims the tail's memory if all its chunks were read and dropped.
            if !self.tail.try_reclaim(size) {
                self.tail_is_pooled = size >= POOLED;
                self.tail = if self.tail_is_pooled {
                    buffer_pool::take()
                } else {
                    BytesMut::with_capacity(size)
                };
            }
        }
        self.tail.extend_from_slice(bytes);
    }

    /// Turns the bytes of the tail into a chunk.
    fn freeze_tail(&mut self) {
        if self.tail_segments == 0 {
            return;
        }
        // A tail with too little space for further chunks becomes the chunk whole, so that its
        // memory can be recycled once the chunk was read. Otherwise only the filled part is split
        // off.
        let rest = self.tail.capacity() - self.tail.len();
        let give_away = if self.tail_is_pooled {
            rest < buffer_pool::LARGE
        } else {
            self.chunk_size < MIN_CHUNK
        };
        let tail = if give_away { std::mem::take(&mut self.tail) } else { self.tail.split() };
        let data = tail.freeze();
        self.frozen_bytes += data.len();
        let segments = std::mem::take(&mut self.tail_segments);
        let charge = std::mem::take(&mut self.tail_charge);
        self.push(Chunk { data, segments, charge });
    }

    /// Takes the next chunk.
    pub(super) fn pop(&mut self) -> Option<Chunk> {
        if self.ready.is_empty() {
            let has_tail = self.tail_segments > 0;
            if has_tail && self.chunk_size > MIN_CHUNK && self.tail.len() < self.chunk_size / 8 {
                self.chunk_size = (self.chunk_size / 2).max(MIN_CHUNK);
            }
            self.freeze_tail();
            if self.frozen_bytes > 0 {
                self.last_read = std::mem::take(&mut self.frozen_bytes);
            }
        }
        self.ready.pop_front()
    }

    /// Bytes of the chunk that [`Self::pop`] would return.
    pub(super) fn readable(&self) -> Option<usize> {
        match self.ready.front() {
            Some(chunk) => Some(chunk.data.len()),
            None => (self.tail_segments > 0).then_some(self.tail.len()),
        }
    }

    pub(super) fn has_reclaimable_memory(&self) -> bool {
        self.chunk_size >= MIN_CHUNK || queue::is_reclaimable(&self.ready)
    }

    /// Bytes allocated for later segments.
    pub(super) fn spare_capacity(&self) -> usize {
        self.tail.capacity() - self.tail.len()
    }

    /// Frees an empty tail and the capacity of an empty queue, for an idle connection.
    pub(super) fn release_memory(&mut self) {
        if self.tail_segments == 0 {
            self.tail = BytesMut::new();
            (self.chunk_size, self.last_read, self.frozen_bytes) = (0, 0, 0);
        }
        queue::release(&mut self.ready);
    }

    /// Segments and charge of all unread data.
    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn totals(&self) -> (u32, usize) {
        let ready = (self.tail_segments, self.tail_charge);
        self.ready.iter().fold(ready, |(segments, charge), chunk| {
            (segments + chunk.segments, charge + chunk.charge)
        })
    }
}
