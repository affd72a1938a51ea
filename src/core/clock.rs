//! The clock of one conversation: microseconds since its start inside, milliseconds of a random
//! epoch on the wire.

use std::time::{Duration, Instant};

use super::seq::Ts;

/// Microseconds since the start of the conversation. Never wraps in practice (584,000 years).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Micros(pub(crate) u64);

impl Micros {
    pub(crate) fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(micros(wait)))
    }

    pub(crate) fn add_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// Microseconds since `earlier`, zero if that lies ahead.
    pub(crate) fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A duration in whole microseconds.
pub(crate) fn micros(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros()).unwrap_or(u64::MAX)
}

/// Translates between the caller's clock, [`Micros`] and the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// Random, so that stamps tell nothing about the host and wrap at an everyday moment.
    epoch: u32,
    /// The last instant that was translated in passing.
    latest: (Instant, Micros),
}

impl Clock {
    pub(crate) fn new(start: Instant, epoch: u32) -> Self {
        Self { start, epoch, latest: (start, Micros(0)) }
    }

    /// An instant before the start counts as the start.
    pub(crate) fn at(&self, now: Instant) -> Micros {
        Micros(micros(now.saturating_duration_since(self.start)))
    }

    /// The same, remembered: the datagrams of a turn share their instant.
    pub(crate) fn tick(&mut self, now: Instant) -> Micros {
        if self.latest.0 != now {
            self.latest = (now, self.at(now));
        }
        self.latest.1
    }

    pub(crate) fn instant(&self, time: Micros) -> Instant {
        // A deadline beyond what the system clock can express is as good as a year away.
        let year = Duration::from_secs(365 * 24 * 60 * 60);
        self.start.checked_add(Duration::from_micros(time.0)).unwrap_or_else(|| self.start + year)
    }

    #[expect(clippy::cast_possible_truncation, reason = "stamps wrap by design")]
    pub(crate) fn timestamp(&self, time: Micros) -> Ts {
        Ts(self.epoch.wrapping_add((time.0 / 1_000) as u32))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use super::*;

    #[test]
    fn stamps_count_milliseconds_from_the_epoch_and_wrap() {
        let start = Instant::now();
        let clock = Clock::new(start, u32::MAX - 1);
        let stamp = |ms| clock.timestamp(clock.at(start + Duration::from_millis(ms)));
        assert_eq!(stamp(0), Ts(u32::MAX - 1));
        assert_eq!(stamp(1), Ts(u32::MAX));
        assert_eq!(stamp(2), Ts(0));
        assert_eq!(stamp(5).since(stamp(1)), 4);
        assert_eq!(stamp(u64::from(u32::MAX) + 1), stamp(0));
    }

    #[test]
    fn instants_survive_the_round_trip() {
        let start = Instant::now();
        let clock = Clock::new(start, 0);
        let later = start + Duration::from_micros(123_456_789);
        assert_eq!(clock.instant(clock.at(later)), later);
        assert_eq!(clock.at(start - Duration::from_secs(1)), Micros(0));
    }
}
