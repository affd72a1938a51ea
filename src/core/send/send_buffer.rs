//! What the application wrote, from when it is taken until it is acknowledged.
//!
//! Bytes stay where they are: a segment's payload is a [`BufferRange`] of a piece, and a piece is given
//! back when the last segment cut from it is released.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::util::queue;

/// Bytes of a piece of a stream at most, so that a [`BufferRange`] can name any part of it.
const MAX_CHUNK_LEN: usize = 1 << 30;

/// Where a segment's payload is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferRange {
    /// Counts the pieces that segments were cut from.
    piece: u32,
    start: u32,
    len: u32,
}

impl BufferRange {
    /// Bytes.
    pub(crate) fn len(self) -> usize {
        self.len as usize
    }
}

#[derive(Debug)]
struct Chunk {
    data: Bytes,
    frg: u8,
}

/// In a byte stream the pieces are one sequence, cut where segments happen to end; in message mode
/// each piece is one segment.
#[derive(Debug)]
pub(crate) struct SendBuffer {
    /// Pieces that segments were cut from, the first of which has this number.
    sent: VecDeque<Bytes>,
    first: u32,
    /// Pieces that are not cut to the end, and how many bytes of the front one are.
    waiting: VecDeque<Chunk>,
    offset: usize,
    /// The front one is the last of `sent` as well.
    front_is_shared: bool,
    /// Bytes that no segment carries yet.
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

    pub(crate) fn push(&mut self, mut data: Bytes, frg: u8) {
        while self.stream && data.len() > MAX_CHUNK_LEN {
            let piece = data.split_to(MAX_CHUNK_LEN);
            self.push(piece, frg);
        }
        self.bytes += data.len();
        queue::push(&mut self.waiting, Chunk { data, frg });
    }

    /// Whether segments carry everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes that no segment carries yet.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Segments that these will become.
    pub(crate) fn segments(&self, mss: usize) -> usize {
        if self.stream { self.bytes.div_ceil(mss) } else { self.waiting.len() }
    }

    /// Payload of the next segment in bytes.
    #[inline]
    pub(crate) fn next_len(&self, mss: usize) -> Option<usize> {
        let front = self.waiting.front()?;
        Some(if self.stream { self.bytes.min(mss) } else { front.data.len() })
    }

    /// The payload and `frg` of the next segment.
    #[inline]
    pub(crate) fn take(&mut self, mss: usize) -> Option<(BufferRange, u8)> {
        let len = self.next_len(mss)?;
        let front = self.waiting.front()?;
        let (frg, left) = (front.frg, front.data.len() - self.offset);
        let span = if left < len {
            self.coalesce(len);
            self.span(0, len)
        } else {
            if !self.front_is_shared {
                queue::push(&mut self.sent, front.data.clone());
            }
            let span = self.span(self.offset, len);
            (self.offset, self.front_is_shared) = (self.offset + len, true);
            if left == len {
                self.next_piece();
            }
            span
        };
        self.bytes -= len;
        Some((span, frg))
    }

    /// A part of the last piece that segments were cut from.
    #[expect(clippy::cast_possible_truncation, reason = "segments and pieces are far below 4 GiB")]
    #[inline]
    fn span(&self, start: usize, len: usize) -> BufferRange {
        let piece = self.first.wrapping_add(self.sent.len() as u32).wrapping_sub(1);
        BufferRange { piece, start: start as u32, len: len as u32 }
    }

    fn next_piece(&mut self) {
        self.waiting.pop_front();
        (self.offset, self.front_is_shared) = (0, false);
    }

    /// One segment made of several writes: the only place where payload is copied on its way in.
    fn coalesce(&mut self, len: usize) {
        let mut payload = Vec::with_capacity(len);
        while payload.len() < len {
            let Some(front) = self.waiting.front() else { break };
            let rest = front.data.get(self.offset..).unwrap_or_default();
            let part = &rest[..rest.len().min(len - payload.len())];
            payload.extend_from_slice(part);
            if part.len() == rest.len() {
                self.next_piece();
            } else {
                self.offset += part.len();
            }
        }
        queue::push(&mut self.sent, Bytes::from(payload));
    }

    /// The payload that a segment carries.
    #[inline]
    pub(crate) fn get(&self, span: BufferRange) -> Option<&[u8]> {
        let piece = self.sent.get(span.piece.wrapping_sub(self.first) as usize)?;
        piece.get(span.start as usize..)?.get(..span.len())
    }

    /// The oldest segment in flight is `oldest` now: what comes before it is given back.
    pub(crate) fn release(&mut self, oldest: Option<BufferRange>) {
        let held = match oldest {
            Some(span) => span.piece.wrapping_sub(self.first) as usize,
            None => self.sent.len() - usize::from(self.front_is_shared),
        };
        for _ in 0..held {
            self.sent.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    pub(crate) fn holds_memory(&self) -> bool {
        queue::is_reclaimable(&self.waiting) || queue::is_reclaimable(&self.sent)
    }

    pub(crate) fn release_memory(&mut self) {
        queue::release(&mut self.waiting);
        queue::release(&mut self.sent);
    }

    /// Compares what is counted with what is there.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        assert!(self.sent.len() >= usize::from(self.front_is_shared));
        assert!(self.waiting.front().is_none_or(|front| self.offset <= front.data.len()));
        let waiting: usize = self.waiting.iter().map(|piece| piece.data.len()).sum();
        assert_eq!(waiting - self.offset, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_stream_is_cut_into_full_segments(
            writes in prop::collection::vec(1_usize..5_000, 1..40),
            mss in 1_usize..1_500,
            in_flight in 0_usize..20,
        ) {
            let mut outbox = SendBuffer::new(true);
            outbox.first = u32::MAX - 3;
            let mut expected = Vec::new();
            for (i, len) in writes.iter().enumerate() {
                let data = vec![u8::try_from(i).unwrap(); *len];
                expected.extend_from_slice(&data);
                outbox.push(Bytes::from(data), 0);
            }
            let count = outbox.segments(mss);
            let mut flight = VecDeque::new();
            let (mut lens, mut released) = (Vec::new(), Vec::new());
            while let Some(len) = outbox.next_len(mss) {
                let (span, frg) = outbox.take(mss).unwrap();
                prop_assert_eq!((span.len(), frg), (len, 0));
                lens.push(len);
                flight.push_back(span);
                while flight.len() > in_flight {
                    released.extend_from_slice(outbox.get(flight.pop_front().unwrap()).unwrap());
                    outbox.release(flight.front().copied());
                }
                // Each piece in flight is needed, but for the one that is being cut.
                prop_assert!(outbox.sent.len() <= flight.len() + usize::from(outbox.front_is_shared));
                outbox.check_invariants();
            }
            while let Some(span) = flight.pop_front() {
                released.extend_from_slice(outbox.get(span).unwrap());
                outbox.release(flight.front().copied());
            }
            prop_assert_eq!(lens.len(), count);
            prop_assert!(lens[..count - 1].iter().all(|len| *len == mss));
            prop_assert_eq!(released, expected);
            prop_assert_eq!((outbox.bytes(), outbox.is_empty(), outbox.sent.len()), (0, true, 0));
        }
    }

    #[test]
    fn messages_keep_their_cuts() {
        let mut outbox = SendBuffer::new(false);
        for (data, frg) in [("ab", 1), ("c", 0), ("", 0), ("def", 0)] {
            outbox.push(Bytes::from_static(data.as_bytes()), frg);
        }
        assert_eq!(outbox.segments(1_000), 4);
        let taken: Vec<_> = std::iter::from_fn(|| outbox.take(1_000)).collect();
        let taken = taken.iter().map(|(span, frg)| (outbox.get(*span).unwrap(), *frg));
        assert!(taken.eq(
            [("ab", 1), ("c", 0), ("", 0), ("def", 0)].map(|(data, frg)| (data.as_bytes(), frg))
        ));
    }
}
