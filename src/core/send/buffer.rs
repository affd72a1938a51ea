//! Send buffer: application data from `send` until its cumulative acknowledgement (quinn
//! `SendBuffer`; kcp-go `snd_queue` and the payloads of `snd_buf`).
//!
//! Payload is not copied: a segment's payload is a [`BufferRange`] of a chunk, and a chunk is freed when the
//! last segment cut from it is acknowledged. The exception is `coalesce`, for a segment that spans several
//! writes.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::util::queue;

/// Largest chunk in stream mode, bytes, so that the `u32` fields of [`BufferRange`] can address it.
const MAX_CHUNK_LEN: usize = 1 << 30;

/// Position of a segment's payload in the [`SendBuffer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferRange {
    /// Number of the chunk, counted from the start of the connection modulo 2^32.
    chunk: u32,
    /// Bytes.
    start: u32,
    /// Bytes.
    len: u32,
}

impl BufferRange {
    #[cfg(test)]
    pub(crate) fn new(chunk: u32, start: u32, len: u32) -> Self {
        Self { chunk, start, len }
    }

    /// Payload length, bytes.
    pub(crate) fn len(self) -> usize {
        self.len as usize
    }

    /// The range of equal length that begins `count` lengths after this one.
    #[inline]
    pub(crate) fn nth_after(self, count: u32) -> Self {
        Self { start: self.start.wrapping_add(self.len.wrapping_mul(count)), ..self }
    }
}

/// Data of one `push`.
#[derive(Debug)]
struct Chunk {
    data: Bytes,
    frg: u8,
}

/// Application data in chunks. In stream mode the chunks form one byte sequence, cut at the MSS; in message
/// mode each chunk is one segment.
#[derive(Debug)]
pub(crate) struct SendBuffer {
    /// Chunks that segments in flight were cut from.
    sent: VecDeque<Bytes>,
    /// Number of the first chunk of `sent`.
    first: u32,
    /// Chunks that are not fully cut yet.
    waiting: VecDeque<Chunk>,
    /// Bytes of the first waiting chunk that are already in segments.
    offset: usize,
    /// The first waiting chunk is also the last of `sent`: some of it, but not all, is cut.
    front_is_shared: bool,
    /// Bytes that are in no segment yet.
    bytes: usize,
    stream: bool,
}

impl SendBuffer {
    pub(crate) fn new(stream: bool) -> Self {
        Self {
            sent: VecDeque::new(),
            first: 0,
            waiting: VecDeque::new(),
            offset: 0,
            front_is_shared: false,
            bytes: 0,
            stream,
        }
    }

    /// Appends a chunk. In stream mode `frg` is zero.
    pub(crate) fn push(&mut self, mut data: Bytes, frg: u8) {
        while self.stream && data.len() > MAX_CHUNK_LEN {
            let chunk = data.split_to(MAX_CHUNK_LEN);
            self.push(chunk, frg);
        }
        self.bytes += data.len();
        queue::push(&mut self.waiting, Chunk { data, frg });
    }

    /// Whether all data was cut into segments.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes that are in no segment yet.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Segments of at most `mss` payload bytes that the remaining data will become.
    pub(crate) fn segments(&self, mss: usize) -> usize {
        if self.stream { self.bytes.div_ceil(mss) } else { self.waiting.len() }
    }

    /// Waiting segments up to the last one of more than `len` bytes. Messages are cut when they are written, a stream
    /// when a segment leaves.
    pub(crate) fn cut_longer_than(&self, len: usize) -> usize {
        let is_longer = |chunk: &Chunk| !self.stream && chunk.data.len() > len;
        self.waiting.iter().rposition(is_longer).map_or(0, |last| last + 1)
    }

    /// Full segments of `mss` payload bytes that come next; 0 in message mode, where messages may be shorter.
    pub(crate) fn full_segments(&self, mss: usize) -> usize {
        if self.stream { self.bytes / mss } else { 0 }
    }

    /// Payload length of the next segment, bytes.
    #[inline]
    pub(crate) fn next_len(&self, mss: usize) -> Option<usize> {
        let front = self.waiting.front()?;
        Some(if self.stream { self.bytes.min(mss) } else { front.data.len() })
    }

    /// Cuts the next segment and returns its payload and `frg`.
    #[inline]
    pub(crate) fn take(&mut self, mss: usize) -> Option<(BufferRange, u8)> {
        let len = self.next_len(mss)?;
        let front = self.waiting.front()?;
        let (frg, left) = (front.frg, front.data.len() - self.offset);
        let range = if left < len {
            self.coalesce(len);
            self.range(0, len)
        } else {
            if !self.front_is_shared {
                queue::push(&mut self.sent, front.data.clone());
            }
            let range = self.range(self.offset, len);
            (self.offset, self.front_is_shared) = (self.offset + len, true);
            if left == len {
                self.next_chunk();
            }
            range
        };
        self.bytes -= len;
        Some((range, frg))
    }

    /// A range of the last chunk of `sent`.
    #[expect(clippy::cast_possible_truncation, reason = "segments and chunks are far below 4 GiB")]
    #[inline]
    fn range(&self, start: usize, len: usize) -> BufferRange {
        let chunk = self.first.wrapping_add(self.sent.len() as u32).wrapping_sub(1);
        BufferRange { chunk, start: start as u32, len: len as u32 }
    }

    fn next_chunk(&mut self) {
        self.waiting.pop_front();
        (self.offset, self.front_is_shared) = (0, false);
    }

    /// Copies `len` bytes of several chunks into one new chunk of `sent`.
    fn coalesce(&mut self, len: usize) {
        let mut payload = Vec::with_capacity(len);
        while payload.len() < len {
            let Some(front) = self.waiting.front() else { break };
            let rest = front.data.get(self.offset..).unwrap_or_default();
            let part = &rest[..rest.len().min(len - payload.len())];
            payload.extend_from_slice(part);
            if part.len() == rest.len() {
                self.next_chunk();
            } else {
                self.offset += part.len();
            }
        }
        queue::push(&mut self.sent, Bytes::from(payload));
    }

    /// The payload at `range`.
    #[inline]
    pub(crate) fn get(&self, range: BufferRange) -> Option<&[u8]> {
        let chunk = self.sent.get(range.chunk.wrapping_sub(self.first) as usize)?;
        chunk.get(range.start as usize..)?.get(..range.len())
    }

    /// Frees the chunks before `oldest`, the payload of the oldest segment in flight. `None` means that
    /// nothing is in flight; then all fully cut chunks are freed.
    pub(crate) fn release(&mut self, oldest: Option<BufferRange>) {
        let acked = match oldest {
            Some(range) => range.chunk.wrapping_sub(self.first) as usize,
            None => self.sent.len() - usize::from(self.front_is_shared),
        };
        for _ in 0..acked {
            self.sent.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        queue::is_reclaimable(&self.waiting) || queue::is_reclaimable(&self.sent)
    }

    /// Frees the capacity of empty queues, for an idle connection.
    pub(crate) fn release_memory(&mut self) {
        queue::release(&mut self.waiting);
        queue::release(&mut self.sent);
    }

    /// Invariant: `bytes` is the data of `waiting` without the first `offset` bytes.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        assert!(self.sent.len() >= usize::from(self.front_is_shared));
        assert!(self.waiting.front().is_none_or(|front| self.offset <= front.data.len()));
        let waiting: usize = self.waiting.iter().map(|chunk| chunk.data.len()).sum();
        assert_eq!(waiting - self.offset, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn send_buffer_stream_is_cut_at_the_mss(
            writes in prop::collection::vec(1_usize..5_000, 1..40),
            mss in 1_usize..1_500,
            in_flight in 0_usize..20,
        ) {
            let mut buffer = SendBuffer::new(true);
            buffer.first = u32::MAX - 3;
            let mut expected = Vec::new();
            for (i, len) in writes.iter().enumerate() {
                let data = vec![u8::try_from(i).unwrap(); *len];
                expected.extend_from_slice(&data);
                buffer.push(Bytes::from(data), 0);
            }
            let count = buffer.segments(mss);
            let mut ranges = VecDeque::new();
            let (mut lens, mut acked) = (Vec::new(), Vec::new());
            while let Some(len) = buffer.next_len(mss) {
                let (range, frg) = buffer.take(mss).unwrap();
                prop_assert_eq!((range.len(), frg), (len, 0));
                lens.push(len);
                ranges.push_back(range);
                while ranges.len() > in_flight {
                    acked.extend_from_slice(buffer.get(ranges.pop_front().unwrap()).unwrap());
                    buffer.release(ranges.front().copied());
                }
                // Only chunks with a segment in flight remain, and the chunk being cut.
                prop_assert!(buffer.sent.len() <= ranges.len() + usize::from(buffer.front_is_shared));
                buffer.check_invariants();
            }
            while let Some(range) = ranges.pop_front() {
                acked.extend_from_slice(buffer.get(range).unwrap());
                buffer.release(ranges.front().copied());
            }
            prop_assert_eq!(lens.len(), count);
            prop_assert!(lens[..count - 1].iter().all(|len| *len == mss));
            prop_assert_eq!(acked, expected);
            prop_assert_eq!((buffer.bytes(), buffer.is_empty(), buffer.sent.len()), (0, true, 0));
        }
    }

    /// Rule: W-6.
    #[test]
    fn send_buffer_messages_keep_their_boundaries() {
        let mut buffer = SendBuffer::new(false);
        for (data, frg) in [("ab", 1), ("c", 0), ("", 0), ("def", 0)] {
            buffer.push(Bytes::from_static(data.as_bytes()), frg);
        }
        assert_eq!(buffer.segments(1_000), 4);
        let taken: Vec<_> = std::iter::from_fn(|| buffer.take(1_000)).collect();
        let taken = taken.iter().map(|(range, frg)| (buffer.get(*range).unwrap(), *frg));
        assert!(taken.eq(
            [("ab", 1), ("c", 0), ("", 0), ("def", 0)].map(|(data, frg)| (data.as_bytes(), frg))
        ));
    }
}
