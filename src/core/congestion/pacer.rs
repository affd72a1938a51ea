//! When the next segment may leave: [`Pacer`] for the congestion control, [`RateLimiter`] for the
//! application.
//!
//! Both apply before a datagram is built, so that timestamp and RTO start when the datagram leaves.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::core::clock::Micros;
use crate::core::congestion::controller::Pacing;
use crate::core::recovery::rtt::RttEstimator;

/// Time to send a window, as a fraction of a round trip: 1.25 windows per `srtt` (N = 1.25 in RFC 9002
/// 7.7). It is shorter than a round trip, so that ACKs limit the rate, not the pacer.
const WINDOW_SPREAD: (u64, u64) = (4, 5);
/// A blocked sender resumes an interval after its pacing deadline, so that each timer releases a batch. The
/// delay is at most this fraction of the minimum RTT, since the queue of a short path holds less.
const INTERVAL_DIVISOR: u64 = 20;
/// Delay of a paced sender's timer that it may catch up on, microseconds. Timers of a busy host are some
/// milliseconds late; without catching up, that would be measured as the path's limit.
const MAX_LATE_MICROS: u64 = 2_500;
/// Same limit as a fraction of the minimum RTT.
const LATE_DIVISOR: u64 = 4;
/// A sender that resumes later than this waited for something else than a timer, nanoseconds.
const MAX_TIMER_WAIT_NANOS: u64 = 10_000_000;
/// Largest burst on any path, segments (RFC 9002 7.7 suggests the initial window): a third of a receive
/// buffer of 208 KiB, the Linux default.
pub(crate) const MAX_BURST_SEGMENTS: u64 = 32;
const SECOND_NANOS: u64 = 1_000_000_000;
const SECOND_MICROS: u64 = 1_000_000;

/// Pacing (RFC 9002 7.7): a window of segments leaves over most of a round trip instead of in one burst.
///
/// kcp-go writes the whole window at once. The longer the path, the more of such a burst reaches a socket
/// buffer at the same time, which holds about a hundred datagrams: docs/lab.md, "Long paths".
///
/// The pacer is a virtual clock that each segment advances by its share of the round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    /// Data of this time at the paced rate leaves at once, nanoseconds; see `Config::pacing_interval`.
    interval: u64,
    /// Departure time of the last segment at exactly the paced rate, nanoseconds.
    departure: u64,
    /// No segment leaves before this time.
    resume_at: Micros,
    /// How late the current burst began, microseconds; see [`MAX_LATE_MICROS`].
    late: u32,
    /// When the last segment left, another one that the windows allow was waiting.
    holds: bool,
}

impl Pacer {
    pub(crate) fn new(interval: Duration) -> Self {
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        Self { interval, departure: 0, resume_at: Micros(0), late: 0, holds: false }
    }

    /// A pacer with the same interval.
    pub(crate) fn fresh(mut self) -> Self {
        self.reset();
        self
    }

    /// Forgets past departures, for a new pacing rule.
    pub(crate) fn reset(&mut self) {
        (self.departure, self.resume_at, self.late, self.holds) = (0, Micros(0), 0, false);
    }

    /// When the next segment may leave; may be in the past.
    pub(crate) fn resume_at(&self) -> Micros {
        self.resume_at
    }

    #[inline]
    pub(crate) fn is_blocked(&self, now: Micros) -> bool {
        self.resume_at > now
    }

    /// A segment leaves; `window` is the effective window, segments. Paths with a [short round
    /// trip](RttEstimator::is_short) are not paced.
    pub(crate) fn on_sent(&mut self, now: Micros, window: u32, rtt: &RttEstimator) {
        let Some(srtt) = rtt.srtt().filter(|_| !rtt.is_short()) else {
            self.resume_at = Micros(0);
            return;
        };
        let interval = window_interval(srtt, window);
        let most = (2 * self.interval).max(interval.saturating_mul(MAX_BURST_SEGMENTS));
        if let Some(resume_at) = self.advance(now, interval, most, self.interval) {
            self.resume_at = resume_at;
        }
    }

    /// A segment leaves that takes `interval` at the paced rate; `most`, plus one segment, may leave at once.
    /// Returns when the next one may leave, `quantum` after the exact time, unless that is now. All in
    /// nanoseconds.
    fn advance(&mut self, now: Micros, interval: u64, most: u64, quantum: u64) -> Option<Micros> {
        let now = now.0.saturating_mul(1_000);
        let earliest = now.saturating_sub(most);
        self.departure = self.departure.max(earliest).saturating_add(interval);
        let resume_at = self.departure.saturating_add(quantum).div_ceil(1_000);
        (self.departure > now).then_some(Micros(resume_at))
    }

    /// Limits the wait of the next segment to `most` microseconds: the rate may have risen since the last one
    /// left.
    #[inline]
    pub(crate) fn limit_wait(&mut self, now: Micros, most: u64) {
        let latest = now.add_micros(most);
        if self.resume_at > latest {
            self.resume_at = latest;
            self.departure = latest.0.saturating_mul(1_000);
        }
    }

    /// Lets segments leave unpaced.
    #[inline]
    pub(crate) fn unblock(&mut self) {
        (self.resume_at, self.late, self.holds) = (Micros(0), 0, false);
    }

    /// `bytes` leave at the pacing of a congestion controller; `more`: another segment that the windows allow
    /// is waiting. The rate never exceeds the pace of `window`, the smaller of send window and peer's window
    /// in segments: a higher rate would only produce bursts.
    pub(crate) fn on_sent_at_rate(
        &mut self,
        now: Micros,
        bytes: u64,
        more: bool,
        Pacing { rate, burst }: Pacing,
        window: u32,
        rtt: &RttEstimator,
    ) {
        let interval = bytes.saturating_mul(SECOND_NANOS) / rate;
        let interval = interval.max(rtt.srtt().map_or(0, |srtt| window_interval(srtt, window)));
        let quantum = (rtt.min().saturating_mul(1_000) / INTERVAL_DIVISOR).min(self.interval);
        if self.resume_at > Micros(0) {
            let late = if self.holds { now.since(self.resume_at) } else { 0 };
            let most = MAX_LATE_MICROS.min(rtt.min() / LATE_DIVISOR);
            self.late = u32::try_from(late.min(most)).unwrap_or(u32::MAX);
        }
        if now.0.saturating_mul(1_000) > self.departure.saturating_add(MAX_TIMER_WAIT_NANOS) {
            self.late = 0;
        }
        let late = u64::from(self.late) * 1_000;
        let most = self.interval.max(late) + quantum;
        let most = most.max(interval.saturating_mul(burst));
        (self.holds, self.late) = (more, if more { self.late } else { 0 });
        let resume_at = self.advance(now, interval, most, quantum);
        self.resume_at = resume_at.unwrap_or(Micros(0));
    }
}

/// Nanoseconds between segments of a window; `srtt` in microseconds.
fn window_interval(srtt: u64, window: u32) -> u64 {
    srtt.saturating_mul(1_000 * WINDOW_SPREAD.0) / (WINDOW_SPREAD.1 * u64::from(window.max(1)))
}

/// Depth of the bucket as time at the configured rate, microseconds.
const LIMITER_BURST: u64 = 10_000;

/// Rate limit set by the application: a token bucket (kcp-go `SetRateLimit`).
///
/// It applies before a datagram is built, so that timestamp and RTO start when the datagram leaves; kcp-go
/// applies its bucket after `flush`, when both have started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateLimiter {
    /// Bytes per second; `None`: unlimited.
    rate: Option<NonZeroU64>,
    /// No datagram leaves before this time.
    next: Micros,
}

impl RateLimiter {
    /// Sets the rate, bytes per second. The next datagram may leave at once: bytes sent at the old rate are
    /// no longer charged.
    pub(crate) fn set_rate(&mut self, rate: Option<NonZeroU64>) {
        self.rate = rate;
        self.next = Micros(0);
    }

    /// Bytes per second; `None`: unlimited.
    pub(crate) fn rate(&self) -> Option<NonZeroU64> {
        self.rate
    }

    /// When the next datagram may leave, if not now.
    pub(crate) fn blocked_until(&self, now: Micros) -> Option<Micros> {
        (self.rate.is_some() && self.next.since(now) > 0).then_some(self.next)
    }

    /// When the next datagram may leave, possibly in the past; `None`: unlimited.
    pub(crate) fn next(&self) -> Option<Micros> {
        self.rate.map(|_| self.next)
    }

    /// A datagram leaves.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Micros, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let cost = (bytes as u64).saturating_mul(SECOND_MICROS) / rate;
        // Unused time accumulates up to `LIMITER_BURST`.
        self.next = self.next.max(Micros(now.0.saturating_sub(LIMITER_BURST))).add_micros(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const INTERVAL: Duration = Duration::from_millis(1);

    /// An estimator after `count` samples of each RTT, microseconds.
    fn path(samples: &[(u64, usize)]) -> RttEstimator {
        let mut rtt = RttEstimator::new(Duration::from_secs(10));
        for (sample, count) in samples {
            (0..*count).for_each(|_| rtt.on_sample(Micros(0), *sample));
        }
        rtt
    }

    /// Sends whenever the pacer allows for a second. Returns segments sent and the longest burst.
    fn send_for_a_second(window: u32, rtt: &RttEstimator) -> (u64, u64) {
        let (mut pacer, mut now) = (Pacer::new(INTERVAL), Micros(10 * SECOND));
        let (mut sent, mut burst, mut longest) = (0, 0, 0);
        while now < Micros(11 * SECOND) && sent < 1_000_000 {
            if pacer.is_blocked(now) {
                (now, burst) = (pacer.resume_at(), 0);
                continue;
            }
            pacer.on_sent(now, window, rtt);
            (sent, burst) = (sent + 1, burst + 1);
            longest = longest.max(burst);
        }
        (sent, longest)
    }

    #[test]
    fn pacer_window_leaves_in_four_fifths_of_a_round_trip_in_short_bursts() {
        for (window, srtt, max_burst) in
            [(1_024, 50_000, 52), (128, 200_000, 33), (16_384, 100_000, 411)]
        {
            let (sent, longest) = send_for_a_second(window, &path(&[(srtt, 1)]));
            let per_second = u64::from(window) * SECOND / srtt * 5 / 4;
            assert!(sent.abs_diff(per_second) <= per_second / 50 + max_burst, "{window}: {sent}");
            assert!(longest <= max_burst, "{window}: {longest}");
        }
    }

    /// Sends segments of 1,400 bytes at a rate for ten seconds; each wait ends `late` microseconds late.
    /// Returns the pacer, the time, the bytes sent and the longest burst.
    fn send_at_rate(
        rate_burst_more: (u64, u64, bool),
        rtt: &RttEstimator,
        late: impl FnMut() -> u64,
    ) -> (Pacer, Micros, u64, u64) {
        send_with(Pacer::new(INTERVAL), rate_burst_more, rtt, late)
    }

    fn send_with(
        mut pacer: Pacer,
        (rate, burst, more): (u64, u64, bool),
        rtt: &RttEstimator,
        mut late: impl FnMut() -> u64,
    ) -> (Pacer, Micros, u64, u64) {
        let pacing = Pacing { rate: NonZeroU64::new(rate).unwrap(), burst };
        let mut now = Micros(10 * SECOND);
        let (mut sent, mut burst, mut longest) = (0, 0, 0);
        while now < Micros(20 * SECOND) {
            if pacer.is_blocked(now) {
                (now, burst) = (pacer.resume_at().add_micros(late()), 0);
                continue;
            }
            pacer.on_sent_at_rate(now, 1_400, more, pacing, u32::MAX, rtt);
            (sent, burst) = (sent + 1_400, burst + 1);
            longest = longest.max(burst);
        }
        (pacer, now, sent, longest)
    }

    #[test]
    fn pacer_at_a_rate_sends_that_many_bytes_in_short_bursts() {
        let rtt = path(&[(50_000, 1)]);
        for (rate, max_burst) in [(2_500_000, 12), (100_000_000, 220), (10_000, 11)] {
            let (mut pacer, now, sent, longest) = send_at_rate((rate, 10, true), &rtt, || 0);
            let slack = rate / 10 + max_burst * 1_400;
            assert!((10 * rate..=10 * rate + slack).contains(&sent), "{rate}: {sent}");
            assert!(longest <= max_burst, "{rate}: {longest}");
            pacer.unblock();
            assert!(!pacer.is_blocked(now), "no rate is no pacing");
        }
    }

    #[test]
    fn pacer_interval_sets_the_length_of_a_burst_and_not_the_rate() {
        const RATE: u64 = 2_500_000;
        let rtt = path(&[(200_000, 1)]);
        for (millis, bursts) in [(0, 2..=3), (1, 4..=5), (4, 15..=16), (10, 36..=37)] {
            let pacer = Pacer::new(Duration::from_millis(millis));
            let (_, _, sent, longest) = send_with(pacer, (RATE, 2, true), &rtt, || 0);
            assert!((10 * RATE..=10 * RATE + 100_000).contains(&sent), "{millis} ms: {sent}");
            assert!(bursts.contains(&longest), "{millis} ms: {longest} at once");
        }
    }

    /// With late timers a sender keeps its rate if it always has data. Otherwise, or if it waited for
    /// something else than a timer, its bursts stay short.
    #[test]
    fn pacer_late_timers_lower_no_rate() {
        const RATE: u64 = 6_000_000;
        for (rtt, most_late, more, max_burst) in [
            (20_000, 2_500, true, 17),
            (8_000, 2_000, true, 13),
            (20_000, 2_500, false, 9),
            (20_000, 100_000, true, 17),
        ] {
            let mut wakes = 0_u64;
            let late = || {
                wakes += 1;
                // Every lateness up to the maximum, in mixed order.
                wakes * 997 % (most_late + 1)
            };
            let (_, _, sent, longest) = send_at_rate((RATE, 2, more), &path(&[(rtt, 1)]), late);
            let keeps_up = more && most_late <= 2_500;
            assert!(sent >= RATE * 10 / 100 * 99 || !keeps_up, "RTT {rtt} us: {sent} bytes");
            assert!(sent <= RATE * 10 + max_burst * 1_400, "RTT {rtt} us: {sent} bytes");
            assert!(longest <= max_burst, "RTT {rtt} us: {longest} segments at once");
        }
    }

    #[test]
    fn pacer_short_path_is_not_paced() {
        assert_eq!(send_for_a_second(1_024, &path(&[(900, 1), (1_000, 100)])).0, 1_000_000);
        // The minimum RTT decides, so a queue does not make a short path long.
        assert_eq!(send_for_a_second(1_024, &path(&[(900, 1), (40_000, 100)])).0, 1_000_000);
    }

    #[test]
    fn pacer_path_found_to_be_short_unblocks_at_once() {
        let (mut pacer, now) = (Pacer::new(INTERVAL), Micros(SECOND));
        while !pacer.is_blocked(now) {
            pacer.on_sent(now, 4, &path(&[(100_000, 1)]));
        }
        pacer.on_sent(now, 4, &path(&[(100_000, 100), (500, 1)]));
        assert!(!pacer.is_blocked(now));
    }

    /// Rule: P-19.
    #[test]
    fn rate_limit_over_ten_seconds_is_exact() {
        let mut limiter = RateLimiter::default();
        limiter.set_rate(NonZeroU64::new(1_000_000));
        let (mut now, mut bytes) = (Micros(0), 0);
        while now < Micros(10 * SECOND) {
            match limiter.blocked_until(now) {
                Some(next) => now = next,
                None => {
                    limiter.on_sent(now, 1_400);
                    bytes += 1_400;
                }
            }
        }
        assert!((10_000_000..=10_020_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn rate_limit_none_never_blocks() {
        let mut limiter = RateLimiter::default();
        limiter.on_sent(Micros(0), 1 << 30);
        assert_eq!(limiter.blocked_until(Micros(0)), None);
    }
}
