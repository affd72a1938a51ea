//! Payloads of recently delivered segments: repair symbols still cover them after the application has read
//! them.

use std::collections::VecDeque;

use super::MAX_WINDOW;
use crate::config::SEGMENT_COST;

/// A delivered segment.
#[derive(Debug)]
struct Delivered {
    frg: u8,
    payload: Vec<u8>,
}

impl Delivered {
    /// Bytes of the receive memory.
    fn cost(&self) -> usize {
        self.payload.capacity() + SEGMENT_COST
    }
}

/// The latest delivered segments, oldest first, at most [`MAX_WINDOW`].
#[derive(Debug, Default)]
pub(crate) struct History {
    segments: VecDeque<Delivered>,
    /// Cost of all segments, bytes.
    memory: usize,
}

impl History {
    /// Memory of the segments, bytes.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// A segment is delivered. Forgets the oldest ones while all together need more than `limit` bytes.
    pub(crate) fn push(&mut self, frg: u8, payload: &[u8], limit: usize) {
        // The buffer of the evicted segment is reused.
        let mut buffer = Vec::new();
        while self.segments.len() >= MAX_WINDOW
            || self.memory + payload.len() + SEGMENT_COST > limit
        {
            let Some(oldest) = self.segments.pop_front() else { break };
            self.memory -= oldest.cost();
            buffer = oldest.payload;
        }
        buffer.clear();
        let too_large = self.memory + buffer.capacity() + SEGMENT_COST > limit;
        if buffer.capacity() < payload.len() || too_large {
            buffer = Vec::new();
            buffer.reserve_exact(payload.len());
        }
        if self.memory + buffer.capacity() + SEGMENT_COST > limit {
            // The segment does not fit even alone: a gap, before which nothing is known.
            self.segments.clear();
            self.memory = 0;
            return;
        }
        buffer.extend_from_slice(payload);
        let delivered = Delivered { frg, payload: buffer };
        self.memory += delivered.cost();
        self.segments.push_back(delivered);
    }

    /// Forgets the oldest segments until all need at most `limit` bytes.
    pub(crate) fn shrink(&mut self, limit: usize) {
        while self.memory > limit
            && let Some(oldest) = self.segments.pop_front()
        {
            self.memory -= oldest.cost();
        }
    }

    /// `frg` and payload of the segment `age` numbers before the next one.
    pub(crate) fn get(&self, age: u32) -> Option<(u8, &[u8])> {
        let index = self.segments.len().checked_sub(usize::try_from(age).ok()?)?;
        self.segments.get(index).map(|segment| (segment.frg, &*segment.payload))
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        let memory: usize = self.segments.iter().map(Delivered::cost).sum();
        assert_eq!(memory, self.memory);
        assert!(self.segments.len() <= MAX_WINDOW);
    }
}
