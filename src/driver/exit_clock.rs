//! How long the thread of an endpoint that ends is held.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread is held at most.
const MAX_EXIT_TIME: Duration = Duration::from_millis(50);

/// Endpoints that hold a thread within this time after the first one share its [`MAX_EXIT_TIME`]: a process may
/// have thousands, each with one connection.
const EXIT_PERIOD: Duration = Duration::from_secs(1);

/// When the first one began to hold its thread.
static FIRST_HELD: Mutex<Option<Instant>> = Mutex::new(None);

/// A clock that goes on while the thread is held, and its time when the end began.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExitClock {
    clock: fn() -> Instant,
    start: Instant,
    /// Until when the thread may be held; `None` until it has to be.
    until: Option<Instant>,
}

impl ExitClock {
    pub(super) fn new(clock: fn() -> Instant) -> Self {
        Self { clock, start: clock(), until: None }
    }

    /// The time since the end began.
    pub(super) fn elapsed(&self) -> Duration {
        (self.clock)().saturating_duration_since(self.start)
    }

    /// Whether the thread may be held, or held on.
    pub(super) fn may_hold(&mut self) -> bool {
        let now = (self.clock)();
        now < *self.until.get_or_insert_with(|| hold(now))
    }
}

/// Until when a thread may be held that has to be from `now` on.
fn hold(now: Instant) -> Instant {
    let mut first = FIRST_HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let is_shared = |first: &Instant| now.saturating_duration_since(*first) < EXIT_PERIOD;
    let begin = first.filter(is_shared).unwrap_or(now);
    *first = Some(begin);
    begin + MAX_EXIT_TIME
}
