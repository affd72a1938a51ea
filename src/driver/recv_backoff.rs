//! [`RecvBackoff`]: leaves a socket alone for a while when it only fails to receive.

use std::time::{Duration, Instant};

/// Receive errors in a row, without a datagram between them, before the socket is left alone.
const ERRORS_BEFORE_BACKOFF: u32 = 64;
/// Longest pause between two attempts. Pauses start at 2 ms and double.
const MAX_BACKOFF: Duration = Duration::from_millis(50);

/// Exponential back-off of the receive side of a socket.
///
/// A receive error concerns an earlier datagram (an ICMP message) and counts as loss. Many in a
/// row without a datagram between them do not: asking on would only keep a processor busy.
#[derive(Debug, Default)]
pub(super) struct RecvBackoff {
    /// Since the last datagram.
    errors: u32,
    /// Set from an error beyond `ERRORS_BEFORE_BACKOFF` until the first attempt after it.
    until: Option<Instant>,
}

impl RecvBackoff {
    /// The socket has delivered a datagram.
    pub(super) fn on_received(&mut self) {
        self.errors = 0;
    }

    /// The socket has failed. Returns whether it is to be left alone until the deadline.
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

    /// Whether the socket may be asked now. If so the pause is over.
    pub(super) fn may_receive(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return false;
        }
        self.until = None;
        true
    }

    /// Whether the socket is left alone.
    pub(super) fn is_active(&self) -> bool {
        self.until.is_some()
    }

    /// When the socket is asked again, while it is left alone.
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
