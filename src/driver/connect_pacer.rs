//! Pacing of connects: how many initial datagrams leave per millisecond.
//!
//! The initial datagrams of ten thousand connections opened at once would overflow the receive
//! buffer of the peer's socket. A lost initial datagram is retransmitted only after the initial
//! RTO (RFC 6298 2.1; no round-trip time is measured yet), which takes longer than waiting in this
//! queue.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::shared::notifier::ConnId;

/// Initial datagrams per [`PERIOD`]: half of what the 208 KiB default of Linux
/// `net.core.rmem_default` holds.
const BURST: usize = 64;
/// Length of a period: the resolution of Tokio's timers.
const PERIOD: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct ConnectPacer {
    /// Initial datagrams that may still leave in this period.
    credit: usize,
    /// When the next period begins with a credit of [`BURST`].
    renewal: Instant,
    /// Connections whose initial datagram waits, in order.
    waiting: VecDeque<ConnId>,
}

impl ConnectPacer {
    pub(super) fn new(now: Instant) -> Self {
        Self { credit: BURST, renewal: now + PERIOD, waiting: VecDeque::new() }
    }

    /// Whether `id` may send its initial datagram now. Otherwise `id` waits for [`Self::release`].
    pub(super) fn admit(&mut self, id: ConnId) -> bool {
        let Some(credit) = self.credit.checked_sub(1) else {
            self.waiting.push_back(id);
            return false;
        };
        self.credit = credit;
        true
    }

    /// A peer has answered an initial datagram: one more may leave in this period.
    pub(super) fn on_answer(&mut self) {
        self.credit = (self.credit + 1).min(BURST);
    }

    /// Appends the connections that may send now to `ready`.
    pub(super) fn release(&mut self, now: Instant, ready: &mut VecDeque<ConnId>) {
        if now >= self.renewal {
            (self.credit, self.renewal) = (BURST, now + PERIOD);
        }
        let count = self.credit.min(self.waiting.len());
        ready.extend(self.waiting.drain(..count));
        if self.waiting.is_empty() && self.waiting.capacity() > BURST {
            // Many connects at once are rare: their memory is not kept.
            self.waiting = VecDeque::new();
        }
    }

    /// When the next initial datagrams may leave.
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
    fn connect_pacer_admits_64_per_millisecond_in_order() {
        let start = Instant::now();
        let mut pacer = ConnectPacer::new(start);
        let admitted = (0..1_000).filter(|slot| pacer.admit(id(*slot))).count();
        assert_eq!((admitted, pacer.deadline()), (BURST, Some(start + PERIOD)));
        let mut ready = VecDeque::new();
        pacer.release(start, &mut ready);
        assert!(ready.is_empty(), "no peer has answered");
        pacer.on_answer();
        pacer.release(start, &mut ready);
        assert_eq!(ready, [id(64)]);
        assert!(pacer.admit(ready[0]));
        let mut now = start;
        while let Some(at) = pacer.deadline() {
            now = at;
            let before = ready.len();
            pacer.release(now, &mut ready);
            assert!(ready.len() - before <= BURST);
            assert!(ready.iter().skip(before).all(|id| pacer.admit(*id)));
        }
        assert!(ready.iter().map(|id| id.slot).eq(64..1_000));
        assert_eq!(now - start, PERIOD * 15);
    }
}
