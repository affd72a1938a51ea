//! When what is due may leave: [`Pacer`] is the rate limit that the application sets, a token
//! bucket; [`Spread`] has a window leave over a round trip instead of at one moment. Both apply
//! before a datagram is built, so that time stamps and retransmission timers start when it really
//! leaves.

use std::num::NonZeroU64;

use super::clock::Time;
use super::rtt::Rtt;

/// Time whose worth of bytes may leave at once.
const BURST: u64 = 10_000;
const SECOND: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    /// Bytes per second.
    rate: Option<NonZeroU64>,
    /// Nothing leaves before this time.
    next: Time,
}

impl Pacer {
    pub(crate) fn set_rate(&mut self, rate: Option<NonZeroU64>) {
        self.rate = rate;
        // What an old rate still owes is forgiven: a new one takes effect at once.
        self.next = Time(0);
    }

    /// When the next datagram may leave, if not now.
    pub(crate) fn wait(&self, now: Time) -> Option<Time> {
        (self.rate.is_some() && self.next.since(now) > 0).then_some(self.next)
    }

    /// With a limit: when the next datagram may leave.
    pub(crate) fn next(&self) -> Option<Time> {
        self.rate.map(|_| self.next)
    }

    #[inline]
    pub(crate) fn sent(&mut self, now: Time, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let cost = (bytes as u64).saturating_mul(SECOND) / rate;
        // Unused time is kept for one burst, no longer.
        self.next = self.next.max(Time(now.0.saturating_sub(BURST))).plus(cost);
    }
}

/// A window leaves in four fifths of a round trip: the acknowledgements set the pace, not this.
const SHARE: (u64, u64) = (4, 5);
/// Time whose worth of segments may leave at once, and after how much of it a train that was held
/// back goes on, nanoseconds. Timers come in milliseconds.
const ALLOWANCE: u64 = 2_000_000;
const QUANTUM: u64 = 1_000_000;
/// Segments that may leave at once on any path: a third of what a receive buffer of 208 KiB holds.
const TRAIN: u64 = 32;

/// Spreads a window over a round trip. The longer the path, the more of a window that left at one
/// moment would arrive at one moment, in a buffer that holds a hundred datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    /// Time that was used up, in nanoseconds.
    used: u64,
    /// Nothing leaves before this time.
    resume: Time,
}

impl Spread {
    pub(crate) fn resume(&self) -> Time {
        self.resume
    }

    #[inline]
    pub(crate) fn holds(&self, now: Time) -> bool {
        self.resume > now
    }

    /// A segment leaves, one of `window` within a round trip.
    pub(crate) fn sent(&mut self, now: Time, window: u32, rtt: &Rtt) {
        let Some(srtt) = rtt.srtt().filter(|_| !rtt.is_short()) else {
            self.resume = Time(0);
            return;
        };
        let interval = srtt * 1_000 * SHARE.0 / SHARE.1 / u64::from(window.max(1));
        let now = now.0.saturating_mul(1_000);
        let earliest = now.saturating_sub(ALLOWANCE.max(TRAIN * interval));
        self.used = self.used.max(earliest).saturating_add(interval);
        if self.used > now {
            self.resume = Time((self.used + QUANTUM).div_ceil(1_000));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_long_run_rate_is_exact() {
        let mut pacer = Pacer::default();
        pacer.set_rate(NonZeroU64::new(1_000_000));
        let (mut now, mut bytes) = (Time(0), 0);
        while now < Time(10 * SECOND) {
            match pacer.wait(now) {
                Some(next) => now = next,
                None => {
                    pacer.sent(now, 1_400);
                    bytes += 1_400;
                }
            }
        }
        assert!((10_000_000..=10_020_000).contains(&bytes), "{bytes}");
    }

    /// A path of which this many round trips of each length are known, in microseconds.
    fn path(samples: &[(u64, usize)]) -> Rtt {
        let mut rtt = Rtt::new(Duration::from_secs(10));
        for (sample, count) in samples {
            (0..*count).for_each(|_| rtt.sample(Time(0), *sample));
        }
        rtt
    }

    /// Sends whenever it may for a second: how many segments, and the longest run at one moment.
    fn spread(window: u32, rtt: &Rtt) -> (u64, u64) {
        let (mut spread, mut now) = (Spread::default(), Time(10 * SECOND));
        let (mut sent, mut run, mut longest) = (0, 0, 0);
        while now < Time(11 * SECOND) && sent < 1_000_000 {
            if spread.holds(now) {
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
        let (mut spread, now) = (Spread::default(), Time(SECOND));
        while !spread.holds(now) {
            spread.sent(now, 4, &path(&[(100_000, 1)]));
        }
        spread.sent(now, 4, &path(&[(100_000, 100), (500, 1)]));
        assert!(!spread.holds(now));
    }

    #[test]
    fn no_rate_means_no_wait() {
        let mut pacer = Pacer::default();
        pacer.sent(Time(0), 1 << 30);
        assert_eq!(pacer.wait(Time(0)), None);
    }
}
