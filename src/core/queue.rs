//! What the application wrote and no segment carries yet.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

#[derive(Debug)]
struct Piece {
    data: Bytes,
    frg: u8,
}

/// In a byte stream the pieces are one sequence, cut where segments happen to end; in message mode
/// each piece is one segment.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pieces: VecDeque<Piece>,
    bytes: usize,
    stream: bool,
}

impl SendQueue {
    pub(crate) fn new(stream: bool) -> Self {
        Self { pieces: VecDeque::new(), bytes: 0, stream }
    }

    pub(crate) fn push(&mut self, data: Bytes, frg: u8) {
        self.bytes += data.len();
        self.pieces.push_back(Piece { data, frg });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Segments that the queue will become.
    pub(crate) fn segments(&self, mss: usize) -> usize {
        if self.stream { self.bytes.div_ceil(mss) } else { self.pieces.len() }
    }

    /// Payload of the next segment in bytes.
    pub(crate) fn next_len(&self, mss: usize) -> Option<usize> {
        let front = self.pieces.front()?;
        Some(if self.stream { self.bytes.min(mss) } else { front.data.len() })
    }

    /// The payload and `frg` of the next segment.
    pub(crate) fn take(&mut self, mss: usize) -> Option<(Bytes, u8)> {
        let len = self.next_len(mss)?;
        let front = self.pieces.front_mut()?;
        let frg = front.frg;
        let payload = if front.data.len() > len {
            front.data.split_to(len)
        } else if front.data.len() == len {
            self.pieces.pop_front()?.data
        } else {
            self.gather(len)
        };
        self.bytes -= len;
        if self.pieces.is_empty() && self.pieces.capacity() > 64 {
            self.pieces = VecDeque::new();
        }
        Some((payload, frg))
    }

    /// One segment made of several writes: the only place where payload is copied on its way in.
    fn gather(&mut self, len: usize) -> Bytes {
        let mut payload = Vec::with_capacity(len);
        while payload.len() < len {
            let Some(front) = self.pieces.front_mut() else { break };
            let part = front.data.len().min(len - payload.len());
            payload.extend_from_slice(&front.data[..part]);
            front.data.advance(part);
            if front.data.is_empty() {
                self.pieces.pop_front();
            }
        }
        Bytes::from(payload)
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
        ) {
            let mut queue = SendQueue::new(true);
            let mut expected = Vec::new();
            for (i, len) in writes.iter().enumerate() {
                let data = vec![u8::try_from(i).unwrap(); *len];
                expected.extend_from_slice(&data);
                queue.push(Bytes::from(data), 0);
            }
            let count = queue.segments(mss);
            let mut segments = Vec::new();
            while let Some(len) = queue.next_len(mss) {
                let (payload, frg) = queue.take(mss).unwrap();
                prop_assert_eq!((payload.len(), frg), (len, 0));
                segments.push(payload);
            }
            prop_assert_eq!(segments.len(), count);
            prop_assert!(segments[..count - 1].iter().all(|s| s.len() == mss));
            prop_assert_eq!(segments.concat(), expected);
            prop_assert_eq!((queue.bytes(), queue.is_empty()), (0, true));
        }
    }

    #[test]
    fn messages_keep_their_cuts() {
        let mut queue = SendQueue::new(false);
        for (data, frg) in [("ab", 1), ("c", 0), ("", 0), ("def", 0)] {
            queue.push(Bytes::from_static(data.as_bytes()), frg);
        }
        assert_eq!(queue.segments(1_000), 4);
        let taken: Vec<_> = std::iter::from_fn(|| queue.take(1_000)).collect();
        assert_eq!(
            taken,
            [("ab", 1), ("c", 0), ("", 0), ("def", 0)]
                .map(|(data, frg)| (Bytes::from_static(data.as_bytes()), frg))
        );
    }
}
