//! Pacing (RFC 9002 7.7): a window leaves over a round trip instead of at one moment.
//!
//! Applies before a datagram is built, so that time stamps and retransmission timers start when it
//! really leaves.

use crate::core::clock::Micros;
use crate::core::recovery::rtt::RttEstimator;

/// A window leaves in four fifths of a round trip: the acknowledgements set the pace, not this.
const WINDOW_SPREAD: (u64, u64) = (4, 5);
/// Time whose worth of segments may leave at once, and after how much of it a train that was held
/// back goes on, nanoseconds. Timers come in milliseconds.
const MAX_BURST_NANOS: u64 = 2_000_000;
const QUANTUM: u64 = 1_000_000;
/// Segments that may leave at once on any path: a third of what a receive buffer of 208 KiB holds.
const MAX_BURST_SEGMENTS: u64 = 32;

/// Spreads a window over a round trip. The longer the path, the more of a window that left at one
/// moment would arrive at one moment, in a buffer that holds a hundred datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    /// Time that was used up, in nanoseconds.
    used: u64,
    /// Nothing leaves before this time.
    resume: Micros,
}

impl Pacer {
    pub(crate) fn resume(&self) -> Micros {
        self.resume
    }

    #[inline]
    pub(crate) fn is_blocked(&self, now: Micros) -> bool {
        self.resume > now
    }

    /// A segment leaves, one of `window` within a round trip.
    pub(crate) fn sent(&mut self, now: Micros, window: u32, rtt: &RttEstimator) {
        let Some(srtt) = rtt.srtt().filter(|_| !rtt.is_short()) else {
            self.resume = Micros(0);
            return;
        };
        let interval = srtt * 1_000 * WINDOW_SPREAD.0 / WINDOW_SPREAD.1 / u64::from(window.max(1));
        let now = now.0.saturating_mul(1_000);
        let earliest = now.saturating_sub(MAX_BURST_NANOS.max(MAX_BURST_SEGMENTS * interval));
        self.used = self.used.max(earliest).saturating_add(interval);
        if self.used > now {
            self.resume = Micros((self.used + QUANTUM).div_ceil(1_000));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: u64 = 1_000_000;

    /// A path of which this many round trips of each length are known, in microseconds.
    fn path(samples: &[(u64, usize)]) -> RttEstimator {
        let mut rtt = RttEstimator::new(Duration::from_secs(10));
        for (sample, count) in samples {
            (0..*count).for_each(|_| rtt.on_sample(Micros(0), *sample));
        }
        rtt
    }

    /// Sends whenever it may for a second: how many segments, and the longest run at one moment.
    fn spread(window: u32, rtt: &RttEstimator) -> (u64, u64) {
        let (mut spread, mut now) = (Pacer::default(), Micros(10 * SECOND));
        let (mut sent, mut run, mut longest) = (0, 0, 0);
        while now < Micros(11 * SECOND) && sent < 1_000_000 {
            if spread.is_blocked(now) {
                (now, run) = (spread.resume(), 0);
                continue;
            }
            spread.sent(now, window, rtt);
            (sent, run) = (sent + 1, run + 1);
            longest = longest.max(run);
        }
        (sent, longest)
    }

    #[test]
    fn a_window_leaves_in_four_fifths_of_a_round_trip_and_in_short_trains() {
        for (window, srtt, most) in
            [(1_024, 50_000, 52), (128, 200_000, 33), (16_384, 100_000, 411)]
        {
            let (sent, longest) = spread(window, &path(&[(srtt, 1)]));
            let per_second = u64::from(window) * SECOND / srtt * 5 / 4;
            assert!(sent.abs_diff(per_second) <= per_second / 50 + most, "{window}: {sent}");
            assert!(longest <= most, "{window}: {longest}");
        }
    }

    #[test]
    fn short_paths_are_left_alone() {
        assert_eq!(spread(1_024, &path(&[(900, 1), (1_000, 100)])).0, 1_000_000);
        // A long queue on a short path is no long path.
        assert_eq!(spread(1_024, &path(&[(900, 1), (40_000, 100)])).0, 1_000_000);
    }

    #[test]
    fn a_path_that_turns_out_to_be_short_holds_nothing_back() {
        let (mut spread, now) = (Pacer::default(), Micros(SECOND));
        while !spread.is_blocked(now) {
            spread.sent(now, 4, &path(&[(100_000, 1)]));
        }
        spread.sent(now, 4, &path(&[(100_000, 100), (500, 1)]));
        assert!(!spread.is_blocked(now));
    }
}
