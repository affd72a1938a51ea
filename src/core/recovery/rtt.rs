//! RTT estimation and RTO: RFC 6298 as Linux does it (`tcp_rtt_estimator`), with kcp-go's bounds.
//!
//! Unlike RFC 6298 2, because KCP samples many times per round trip:
//! * `rttvar` tracks the largest `mdev` of the last round trip, not of the last few samples, so a
//!   burst of equal samples does not shrink it (as in Linux).
//! * A sample far below `srtt` weighs 1/32 instead of 1/4 in `mdev` (Linux; kcp-go `update_ack`).
//! * The RTO is at least 1.25 times `srtt`. On a steady path `rttvar` shrinks to nothing, and the
//!   first jitter afterwards must not count as loss: test
//!   `rto_on_a_steady_path_keeps_a_quarter_of_srtt`.

use std::time::Duration;

use crate::core::clock::{Micros, micros, micros_u32};

/// RTO before the first sample, microseconds (IKCP_RTO_DEF; RFC 6298 2.1 has 1 s).
#[doc(alias = "IKCP_RTO_DEF")]
const INITIAL_RTO: u64 = 200_000;
/// Least RTO with `nodelay`, microseconds (IKCP_RTO_NDL; RFC 6298 2.4 has 1 s).
#[doc(alias = "IKCP_RTO_NDL")]
const MIN_RTO_NODELAY: u64 = 30_000;
/// Least RTO without `nodelay`, microseconds (IKCP_RTO_MIN; RFC 6298 2.4 has 1 s).
#[doc(alias = "IKCP_RTO_MIN")]
const MIN_RTO: u64 = 100_000;
/// Window of the minimum RTT filter, microseconds: the 10 s of BBR's min_rtt filter.
const MIN_RTT_WINDOW: u64 = 10_000_000;

/// Time without a sample after which delayed ones are taken, microseconds.
const SAMPLE_INTERVAL: u64 = 1_000_000;
/// Longest ACK delay beyond two round trips that counts, microseconds. kcp-go and C KCP acknowledge every 100
/// ms by default.
const MAX_ACK_DELAY: u64 = 150_000;
/// Least time for which the longest wait for a first ACK is remembered, microseconds.
const LONGEST_WAIT_WINDOW: u64 = 500_000;

/// Minimum RTT below which a path is short, microseconds. On such a path a receiver reads about as fast as
/// data arrives, and 1 ms timers are too coarse for pacing and autotuning.
pub(crate) const SHORT_RTT: u64 = 2_000;

/// RTT estimator of one connection. All times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttEstimator {
    /// Smoothed RTT; `None` before the first sample, since zero is a valid RTT (kcp-go uses 0 for both).
    srtt: Option<u64>,
    /// Smoothed mean deviation, updated with each sample.
    mdev: u64,
    /// Largest `mdev` of the current round trip.
    mdev_max: u64,
    /// Rises to `mdev_max` at once, and falls by a quarter of the difference per round trip.
    rttvar: u64,
    /// Longest wait for a first ACK, in the current time window and in the previous one.
    longest: [u32; 2],
    longest_since: Micros,
    /// Start of the current round trip.
    round_start: Micros,
    /// Minimum RTT of the last [`MIN_RTT_WINDOW`], `u64::MAX` before the first sample.
    min: u64,
    /// When `min` was sampled.
    min_at: Micros,
    /// `min` is of another path: the next sample replaces it. Set when the path changes.
    min_is_stale: bool,
    /// All samples are of earlier transmissions, so they may include a time in which the peer held its ACKs
    /// back. The first other sample replaces them.
    is_provisional: bool,
    /// KCP's flush interval: the least variance term of the RTO, as in kcp-go `update_ack`.
    interval: u32,
    min_rto: u32,
    max_rto: u32,
}

impl RttEstimator {
    pub(crate) fn new(max_rto: Duration) -> Self {
        Self {
            srtt: None,
            mdev: 0,
            mdev_max: 0,
            rttvar: 0,
            longest: [0; 2],
            longest_since: Micros(0),
            round_start: Micros(0),
            min: u64::MAX,
            min_at: Micros(0),
            min_is_stale: false,
            is_provisional: false,
            interval: 0,
            min_rto: saturated(MIN_RTO),
            max_rto: micros_u32(max_rto),
        }
    }

    /// An estimator with the same settings and no sample.
    pub(crate) fn with_settings(&self) -> Self {
        let max_rto = Duration::from_micros(self.max_rto.into());
        Self { interval: self.interval, min_rto: self.min_rto, ..Self::new(max_rto) }
    }

    pub(crate) fn take_settings(&mut self, other: &Self) {
        (self.interval, self.min_rto, self.max_rto) =
            (other.interval, other.min_rto, other.max_rto);
    }

    pub(crate) fn set_timing(&mut self, nodelay: bool, interval: Duration) {
        self.min_rto = saturated(if nodelay { MIN_RTO_NODELAY } else { MIN_RTO });
        self.interval = saturated(micros(interval));
    }

    /// One RTT sample, microseconds (RFC 6298 2.2, 2.3).
    pub(crate) fn on_sample(&mut self, now: Micros, rtt: u64) {
        if self.is_provisional {
            *self = self.with_settings();
        }
        let rtt = rtt.min(self.max_rto.into());
        if rtt <= self.min || self.replaces_min(now) {
            (self.min, self.min_at, self.min_is_stale) = (rtt, now, false);
        }
        self.smooth(now, rtt);
    }

    /// A sample of a path that has one in seconds. The path may be another one by now, so a sample far from the
    /// smoothed RTT replaces it.
    pub(crate) fn on_rare_sample(&mut self, now: Micros, rtt: u64) {
        if self.srtt.is_some_and(|srtt| rtt.abs_diff(srtt) > srtt / 2) {
            *self = self.with_settings();
        }
        self.on_sample(now, rtt);
    }

    /// A sample from an earlier transmission than the latest, by its echoed timestamp of 1 ms resolution. It
    /// does not lower the minimum. After an outage such an ACK may be as old as the outage, and is ignored.
    pub(crate) fn on_sample_of_earlier(&mut self, now: Micros, rtt: u64) {
        if rtt > self.max_rto.into() {
            return;
        }
        self.is_provisional |= self.srtt.is_none();
        if self.srtt.is_none() || self.replaces_min(now) {
            (self.min, self.min_at, self.min_is_stale) = (rtt, now, false);
        }
        self.smooth(now, rtt);
    }

    /// Whether the next sample replaces the minimum, whatever it is.
    fn replaces_min(&self, now: Micros) -> bool {
        self.min_is_stale || now.since(self.min_at) > MIN_RTT_WINDOW
    }

    /// The path has changed: forgets the waits and the minimum RTT of the old one. The smoothed RTT stays until
    /// the new path has samples.
    pub(crate) fn on_path_changed(&mut self) {
        (self.longest, self.min_is_stale) = ([0; 2], true);
    }

    /// Records the longest time that a segment of one datagram's acknowledgements waited for its first ACK. A
    /// peer that acknowledges at a tick answers the oldest of them late, and a path with jitter does so at
    /// times. The RTO covers recent waits.
    pub(crate) fn on_longest_wait(&mut self, now: Micros, wait: u64) {
        // A wait as long as an outage says little about the next ACK, so it is capped.
        let Some(srtt) = self.srtt else { return };
        let wait = saturated(wait.min(2 * srtt + MAX_ACK_DELAY)).min(self.max_rto);
        let window = (8 * srtt).max(LONGEST_WAIT_WINDOW);
        let [latest, before] = &mut self.longest;
        if now.since(self.longest_since) > 2 * window {
            (*latest, *before) = (0, 0);
        }
        if now.since(self.longest_since) > window {
            (*before, *latest, self.longest_since) = (*latest, wait, now);
        }
        *latest = (*latest).max(wait);
    }

    /// `rtt` is at most [`Self::max_rto`]: a sample of an hour, after the host was suspended, would raise
    /// `srtt` for hundreds of samples. Test `rto_after_one_sample_of_an_hour_recovers_within_70_samples`.
    fn smooth(&mut self, now: Micros, rtt: u64) {
        let Some(srtt) = self.srtt else {
            self.srtt = Some(rtt);
            self.mdev = rtt / 2;
            (self.mdev_max, self.rttvar) = (self.mdev, self.mdev);
            self.round_start = now;
            return;
        };
        let error = rtt.abs_diff(srtt);
        // A sample far below `srtt` means a shorter path, not more variance.
        let weight = if rtt < srtt.saturating_sub(self.mdev) { 32 } else { 4 };
        self.mdev = self.mdev - self.mdev / weight + error / weight;
        let srtt = srtt - srtt / 8 + rtt / 8;
        self.srtt = Some(srtt);
        self.mdev_max = self.mdev_max.max(self.mdev);
        self.rttvar = self.rttvar.max(self.mdev_max);
        if now.since(self.round_start) >= srtt {
            // At the end of a round trip `rttvar` falls a quarter of the way to `mdev_max`, as in Linux.
            self.rttvar -= (self.rttvar - self.mdev_max) / 4;
            self.mdev_max = self.mdev;
            self.round_start = now;
        }
    }

    /// Retransmission timeout before back-off, microseconds (RFC 6298 2.3; kcp-go `rx_rto`).
    pub(crate) fn rto(&self) -> u64 {
        let Some(srtt) = self.srtt else {
            return INITIAL_RTO.clamp(self.min_rto.into(), self.max_rto.into());
        };
        let margin = (4 * self.rttvar).max(self.interval.into()).max(srtt / 4);
        let longest = u64::from(self.longest[0].max(self.longest[1]));
        let longest = longest.min(2 * srtt + MAX_ACK_DELAY);
        (srtt + margin).max(longest + srtt / 8).clamp(self.min_rto.into(), self.max_rto.into())
    }

    /// Whether there was no sample for about a second.
    #[inline]
    pub(crate) fn lacks_samples(&self, now: Micros) -> bool {
        self.srtt.is_none_or(|srtt| now.since(self.round_start) > SAMPLE_INTERVAL.max(2 * srtt))
    }

    /// Smoothed RTT, microseconds; `None` before the first sample.
    pub(crate) fn srtt(&self) -> Option<u64> {
        self.srtt
    }

    /// Smoothed RTT, or the RTO before the first sample, microseconds.
    pub(crate) fn srtt_or_rto(&self) -> u64 {
        self.srtt.unwrap_or_else(|| self.rto())
    }

    /// RTT variation, microseconds.
    pub(crate) fn rttvar(&self) -> u64 {
        self.rttvar
    }

    /// Whether the minimum RTT is below [`SHORT_RTT`]. True before the first sample.
    pub(crate) fn is_short(&self) -> bool {
        self.min() < SHORT_RTT
    }

    /// Minimum RTT of the last 10 s, microseconds; zero before the first sample.
    pub(crate) fn min(&self) -> u64 {
        if self.srtt.is_some() { self.min } else { 0 }
    }
}

/// Microseconds in a `u32`, up to 71 minutes, to keep an idle connection small.
pub(crate) fn saturated(micros: u64) -> u32 {
    u32::try_from(micros).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rtt(nodelay: bool, interval: u64) -> RttEstimator {
        let mut rtt = RttEstimator::new(Duration::from_secs(10));
        rtt.set_timing(nodelay, Duration::from_millis(interval));
        rtt
    }

    #[test]
    fn rtt_first_sample_sets_srtt_rttvar_and_min() {
        let mut rtt = rtt(true, 10);
        assert_eq!(rtt.rto(), 200_000);
        rtt.on_sample(Micros(0), 100_000);
        assert_eq!((rtt.srtt(), rtt.rttvar(), rtt.min()), (Some(100_000), 50_000, 100_000));
        assert_eq!(rtt.rto(), 300_000);
    }

    /// Rule: P-3.
    #[test]
    fn rto_on_a_steady_path_keeps_a_quarter_of_srtt() {
        let mut rtt = rtt(true, 10);
        for i in 0..10_000 {
            rtt.on_sample(Micros(i * 10_000), 100_000);
        }
        assert!((125_000..130_000).contains(&rtt.rto()), "{}", rtt.rto());
    }

    /// Rule: P-2.
    #[test]
    fn rttvar_within_one_round_trip_does_not_shrink() {
        let mut rtt = rtt(true, 10);
        rtt.on_sample(Micros(0), 100_000);
        for i in 0..1_000 {
            rtt.on_sample(Micros(i), 100_000);
        }
        assert_eq!(rtt.rttvar(), 50_000);
    }

    /// Rule: P-4.
    #[test]
    fn rtt_sample_of_zero_is_valid() {
        let mut rtt = rtt(true, 10);
        rtt.on_sample(Micros(0), 0);
        rtt.on_sample(Micros(10), 80);
        assert_eq!(rtt.srtt(), Some(10));
        assert_eq!(rtt.rto(), 30_000);
    }

    /// Rule: P-4.
    #[test]
    fn rto_for_any_samples_stays_within_bounds() {
        let mut rtt = rtt(false, 40);
        for (i, sample) in [0, u64::from(u32::MAX), 1, 90_000_000, 3].into_iter().enumerate() {
            rtt.on_sample(Micros(i as u64 * 1_000_000), sample);
            assert!((100_000..=10_000_000).contains(&rtt.rto()));
        }
    }

    /// Rule: P-5.
    #[test]
    fn rto_covers_the_longest_recent_wait_for_a_first_ack() {
        let mut rtt = rtt(true, 10);
        (0..1_000).for_each(|i| rtt.on_sample(Micros(i * 10_000), 100_000));
        let (now, steady, srtt) = (Micros(10_000_000), rtt.rto(), rtt.srtt().unwrap());
        rtt.on_longest_wait(now, 250_000);
        assert_eq!(rtt.rto(), 250_000 + srtt / 8);
        rtt.on_longest_wait(now, 60_000_000);
        assert_eq!(rtt.rto(), 2 * srtt + 150_000 + srtt / 8);
        // Two windows of eight round trips later it is forgotten.
        rtt.on_longest_wait(now.add_micros(2_000_000), 0);
        assert_eq!(rtt.rto(), steady);
    }

    #[test]
    fn min_rtt_is_the_least_of_ten_seconds() {
        let mut rtt = rtt(true, 10);
        let mut min_after = |second: u64, sample: u64| {
            rtt.on_sample(Micros(second * 1_000_000), sample);
            rtt.min()
        };
        assert_eq!((min_after(1, 50_000), min_after(6, 80_000)), (50_000, 50_000));
        // An equal sample renews it.
        assert_eq!((min_after(9, 50_000), min_after(19, 80_000)), (50_000, 50_000));
        assert_eq!((min_after(20, 80_000), min_after(21, 60_000)), (80_000, 60_000));
    }

    /// A peer holds its ACKs back until it is validated.
    #[test]
    fn first_sample_of_a_latest_transmission_replaces_all_of_earlier_ones() {
        let mut rtt = rtt(true, 10);
        rtt.on_sample_of_earlier(Micros(0), 7_000_000);
        rtt.on_sample_of_earlier(Micros(1), 6_000_000);
        assert!(rtt.rto() > 6_000_000);
        rtt.on_sample(Micros(2), 100_000);
        assert_eq!((rtt.srtt(), rtt.min(), rtt.rto()), (Some(100_000), 100_000, 300_000));
        rtt.on_sample_of_earlier(Micros(3), 200_000);
        rtt.on_sample(Micros(4), 100_000);
        assert!(rtt.srtt() > Some(100_000), "later ones count as the others");
    }

    /// Its timestamp has a resolution of 1 ms.
    #[test]
    fn min_rtt_is_lowered_by_no_sample_of_an_earlier_transmission() {
        let mut rtt = rtt(true, 10);
        rtt.on_sample_of_earlier(Micros(0), 50_000);
        rtt.on_sample_of_earlier(Micros(1), 40_000);
        assert_eq!(rtt.min(), 50_000);
        rtt.on_sample_of_earlier(Micros(10_000_001), 70_000);
        assert_eq!(rtt.min(), 70_000, "the old one is outdated");
    }
}
