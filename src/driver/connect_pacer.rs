//! How many conversations begin at once.
//!
//! Ten thousand that are opened at one moment would knock at one moment, and most of their first
//! datagrams would be lost at a peer's socket. Those lost are repeated only after the first
//! time-out, which knows no round-trip time yet, so all would be later than if they had queued
//! here.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::shared::notifier::ConnId;

/// First datagrams that may leave within a period: half of what a receive buffer of 208 KiB holds.
const BURST: usize = 64;
/// Timers are no finer.
const PERIOD: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct ConnectPacer {
    left: usize,
    /// When there are [`BURST`] left again.
    renewal: Instant,
    waiting: VecDeque<ConnId>,
}

impl ConnectPacer {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: BURST, renewal: now + PERIOD, waiting: VecDeque::new() }
    }

    /// Whether `id` may send its first datagram. If not, it waits here.
    pub(super) fn admit(&mut self, id: ConnId) -> bool {
        let Some(left) = self.left.checked_sub(1) else {
            self.waiting.push_back(id);
            return false;
        };
        self.left = left;
        true
    }

    /// Someone has answered, and is ready for another.
    pub(super) fn on_answer(&mut self) {
        self.left = (self.left + 1).min(BURST);
    }

    /// Moves those whose turn has come to the end of `ready`.
    pub(super) fn release(&mut self, now: Instant, ready: &mut VecDeque<ConnId>) {
        if now >= self.renewal {
            (self.left, self.renewal) = (BURST, now + PERIOD);
        }
        let count = self.left.min(self.waiting.len());
        ready.extend(self.waiting.drain(..count));
        if self.waiting.is_empty() && self.waiting.capacity() > BURST {
            // A crowd is an event; its room is not kept.
            self.waiting = VecDeque::new();
        }
    }

    /// When the next ones may begin.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.renewal)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use super::*;

    fn id(slot: u32) -> ConnId {
        ConnId { slot, generation: 1 }
    }

    #[test]
    fn a_crowd_begins_bit_by_bit_and_in_order() {
        let start = Instant::now();
        let mut knocks = ConnectPacer::new(start);
        let admitted = (0..1_000).filter(|slot| knocks.admit(id(*slot))).count();
        assert_eq!((admitted, knocks.deadline()), (BURST, Some(start + PERIOD)));
        let mut ready = VecDeque::new();
        knocks.release(start, &mut ready);
        assert!(ready.is_empty(), "nobody has answered");
        knocks.on_answer();
        knocks.release(start, &mut ready);
        assert_eq!(ready, [id(64)]);
        assert!(knocks.admit(ready[0]));
        let mut now = start;
        while let Some(at) = knocks.deadline() {
            now = at;
            let before = ready.len();
            knocks.release(now, &mut ready);
            assert!(ready.len() - before <= BURST);
            assert!(ready.iter().skip(before).all(|id| knocks.admit(*id)));
        }
        assert!(ready.iter().map(|id| id.slot).eq(64..1_000));
        assert_eq!(now - start, PERIOD * 15);
    }
}
