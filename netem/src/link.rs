//! One direction of a path.

use std::fmt::Debug;
use std::time::Duration;

/// One direction of a path: it loses packets, and says when the others arrive.
///
/// It owns the packets under way. Time is an argument, counted from any fixed moment.
pub trait Link: Send + 'static {
    /// Counters of it.
    type Counts: Clone + Debug + Default + Send + 'static;

    /// The time of the first packet of either direction. Called once, before the first
    /// [`push`](Self::push).
    fn start(&mut self, _first_packet: Duration) {}

    /// Sends an IP packet into it at `now`, which never decreases.
    fn push(&mut self, now: Duration, packet: &[u8]);

    /// When the next packet arrives.
    fn next_due(&self) -> Option<Duration>;

    /// Takes out the next packet that arrives no later than `grain` after `now`.
    fn pop_due_within(&mut self, now: Duration, grain: Duration) -> Option<Vec<u8>>;

    /// A packet of `len` bytes that came out could not be handed on.
    fn refused(&mut self, len: usize);

    /// Called often, so it must be cheap.
    fn counts(&self) -> Self::Counts;
}
