//! [`RecvBackoff`]: pauses receiving on a socket that returns nothing but errors.

use std::time::{Duration, Instant};

/// Receive errors without a datagram between them before receiving pauses.
const ERRORS_BEFORE_BACKOFF: u32 = 64;
/// Longest pause between two receive calls. Pauses start at 2 ms and double.
const MAX_BACKOFF: Duration = Duration::from_millis(50);

/// Exponential back-off of the receive side of a socket.
///
/// A receive error usually reports an ICMP message about a datagram sent earlier, and counts as
/// loss. Many errors without a datagram between them have another cause, and a driver that went on
/// receiving would spin.
#[derive(Debug, Default)]
pub(super) struct RecvBackoff {
    /// Receive errors since the last datagram.
    errors: u32,
    /// End of the pause. `Some` from an error beyond `ERRORS_BEFORE_BACKOFF` until the first
    /// receive call after the pause.
    until: Option<Instant>,
}

impl RecvBackoff {
    /// The socket has delivered a datagram.
    pub(super) fn on_received(&mut self) {
        self.errors = 0;
    }

    /// The socket has returned an error. Returns whether receiving pauses until the deadline.
    pub(super) fn on_error(&mut self, now: Instant) -> bool {
        self.errors = self.errors.saturating_add(1);
        let Some(beyond) = self.errors.checked_sub(ERRORS_BEFORE_BACKOFF).filter(|more| *more > 0)
        else {
            return false;
        };
        let pause = Duration::from_millis(1 << beyond.min(6)).min(MAX_BACKOFF);
        self.until = Some(now + pause);
        true
    }

    /// Whether to receive now. Ends a pause whose deadline has passed.
    pub(super) fn may_receive(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return false;
        }
        self.until = None;
        true
    }

    /// Whether receiving pauses.
    pub(super) fn is_active(&self) -> bool {
        self.until.is_some()
    }

    /// When the pause ends; `None` without one.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_starts_after_64_errors_and_doubles_up_to_50_ms() {
        let (mut backoff, mut now) = (RecvBackoff::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..=ERRORS_BEFORE_BACKOFF + 6 {
            assert!(backoff.may_receive(now));
            assert_eq!(backoff.on_error(now), backoff.is_active());
            if let Some(until) = backoff.deadline() {
                assert!(!backoff.may_receive(now) && backoff.is_active());
                pauses.push((until - now).as_millis());
                now = until;
            }
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 50, 50]);
        backoff.on_received();
        assert!(backoff.may_receive(now) && !backoff.on_error(now) && !backoff.is_active());
    }
}
