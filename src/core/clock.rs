//! The clock of one connection: [`Micros`] since its start inside, [`Ts`] milliseconds from a
//! random epoch on the wire (kcp-go `currentMs`, one clock per process there).

use std::time::{Duration, Instant};

use super::seq::Ts;

/// Monotonic microseconds since the start of the connection. 64 bits last 584,000 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Micros(pub(crate) u64);

impl Micros {
    /// This time plus `micros` microseconds, saturating.
    pub(crate) fn add_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// Microseconds from `earlier` to this time; zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A [`Duration`] in whole microseconds, saturating.
pub(crate) fn micros(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros()).unwrap_or(u64::MAX)
}

/// A [`Duration`] in whole microseconds, saturating at 71 minutes.
pub(crate) fn micros_u32(wait: Duration) -> u32 {
    u32::try_from(wait.as_micros()).unwrap_or(u32::MAX)
}

/// Converts between the caller's clock, [`Micros`] and `ts` on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The caller's instant of `Micros(0)`.
    start: Instant,
    /// `ts` of `start`, milliseconds. Random, so that timestamps reveal no uptime (RFC 7323 7.1)
    /// and wraps occur in young connections too.
    epoch: u32,
    /// The last instant passed to [`Self::tick`], and its [`Micros`].
    latest: (Instant, Micros),
}

impl Clock {
    pub(crate) fn new(start: Instant, epoch: u32) -> Self {
        Self { start, epoch, latest: (start, Micros(0)) }
    }

    /// Microseconds from the start to `now`; `Micros(0)` for an instant before the start.
    #[inline]
    pub(crate) fn at(&self, now: Instant) -> Micros {
        if self.latest.0 == now {
            return self.latest.1;
        }
        Micros(micros(now.saturating_duration_since(self.start)))
    }

    /// As [`Self::at`], and caches the result: all calls of one turn have the same `now`.
    #[inline]
    pub(crate) fn tick(&mut self, now: Instant) -> Micros {
        self.latest = (now, self.at(now));
        self.latest.1
    }

    /// The time of the last [`Self::tick`].
    pub(crate) fn latest(&self) -> Micros {
        self.latest.1
    }

    /// The [`Instant`] of a deadline.
    pub(crate) fn instant(&self, time: Micros) -> Instant {
        // If `Instant` overflows: one year after the start.
        let year = Duration::from_secs(365 * 24 * 60 * 60);
        self.start.checked_add(Duration::from_micros(time.0)).unwrap_or_else(|| self.start + year)
    }

    /// Microseconds from `instant` to the start, negative if the start is earlier.
    pub(crate) fn micros_after(&self, instant: Instant) -> i64 {
        let signed = |time| i64::try_from(micros(time)).unwrap_or(i64::MAX);
        let later = signed(self.start.saturating_duration_since(instant));
        later - signed(instant.saturating_duration_since(self.start))
    }

    /// The caller's instant of `Micros(0)`.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// The wire field `ts`: milliseconds from the epoch, modulo 2^32.
    #[expect(clippy::cast_possible_truncation, reason = "timestamps wrap by design")]
    pub(crate) fn timestamp(&self, time: Micros) -> Ts {
        Ts(self.epoch.wrapping_add((time.0 / 1_000) as u32))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use super::*;

    #[test]
    fn timestamp_counts_milliseconds_from_epoch_and_wraps() {
        let start = Instant::now();
        let clock = Clock::new(start, u32::MAX - 1);
        let ts = |ms| clock.timestamp(clock.at(start + Duration::from_millis(ms)));
        assert_eq!(ts(0), Ts(u32::MAX - 1));
        assert_eq!(ts(1), Ts(u32::MAX));
        assert_eq!(ts(2), Ts(0));
        assert_eq!(ts(5).since(ts(1)), 4);
        assert_eq!(ts(u64::from(u32::MAX) + 1), ts(0));
    }

    #[test]
    fn instant_to_micros_and_back_is_identity() {
        let start = Instant::now();
        let clock = Clock::new(start, 0);
        let later = start + Duration::from_micros(123_456_789);
        assert_eq!(clock.instant(clock.at(later)), later);
        assert_eq!(clock.at(start - Duration::from_secs(1)), Micros(0));
    }
}
