//! Whether ACKs may wait for the answers of readers (RFC 9293 3.8.6.3).
//!
//! The turn after one that has woken a reader comes when the tasks that were ready have run. If these
//! answer at once, one datagram carries answer and ACK. If they compute, the peer would measure their work
//! as round trip and send again what has arrived. A wait cannot be cut short, since on a runtime with one
//! thread nothing else runs meanwhile. So each is measured, and ACKs are delayed only after a number of
//! short ones in a row.

use std::time::{Duration, Instant};

/// The longest wait that counts as short.
const MAX_WAIT: Duration = Duration::from_micros(500);
/// Short waits in a row after which ACKs are delayed.
pub(super) const SHORT_WAITS: u8 = 16;

/// The waits for the readers of an endpoint.
#[derive(Debug, Default)]
pub(super) struct AckDelay {
    /// The turn that has woken a reader, until the next one.
    since: Option<Instant>,
    /// Short waits since the last long one, at most [`SHORT_WAITS`].
    short_waits: u8,
}

impl AckDelay {
    /// A turn begins, and ends the wait if there is one.
    pub(super) fn on_turn(&mut self, now: Instant) {
        let Some(since) = self.since.take() else { return };
        let is_short = now.saturating_duration_since(since) <= MAX_WAIT;
        self.short_waits = if is_short { (self.short_waits + 1).min(SHORT_WAITS) } else { 0 };
    }

    /// A reader was woken whose answer an ACK could wait for. Returns whether it may.
    pub(super) fn on_reader_woken(&mut self, now: Instant) -> bool {
        self.since = Some(now);
        self.short_waits == SHORT_WAITS
    }

    /// Whether a wait has begun.
    pub(super) fn awaits_readers(&self) -> bool {
        self.since.is_some()
    }
}
