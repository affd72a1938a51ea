//! Round-trip time and the retransmission time-out.
//!
//! RFC 6298 with two changes for a protocol that samples many times per round trip. The variation
//! is the largest smoothed deviation of the last round trip, not of the last few samples, so a
//! burst of equal samples cannot talk it down. And the time-out keeps a quarter of the smoothed
//! RTT as its least margin: on a steady path the deviation shrinks to nothing, and the first
//! jitter afterwards must not look like loss.

use std::time::Duration;

use crate::core::clock::{Micros, micros};

/// Time-out before the first sample, as in kcp-go.
const INITIAL_RTO: u64 = 200_000;
/// Least time-out with and without `nodelay`, as in kcp-go.
const MIN_RTO_NODELAY: u64 = 30_000;
const MIN_RTO: u64 = 100_000;
/// How long the smallest sample is believed.
const MIN_RTT_WINDOW: u64 = 10_000_000;

/// Paths with a round trip below this, in microseconds, are so short that a window is read about as
/// fast as it arrives. Timers are too coarse to help there.
const SHORT_RTT: u64 = 2_000;

/// All times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttEstimator {
    /// `None` before the first sample: zero is a legitimate round-trip time.
    srtt: Option<u64>,
    mdev: u64,
    /// Largest deviation in the current round trip, and in the one before.
    mdev_max: u64,
    rttvar: u64,
    round_start: Micros,
    min: u64,
    min_at: Micros,
    interval: u64,
    min_rto: u64,
    max_rto: u64,
}

impl RttEstimator {
    pub(crate) fn new(max_rto: Duration) -> Self {
        Self {
            srtt: None,
            mdev: 0,
            mdev_max: 0,
            rttvar: 0,
            round_start: Micros(0),
            min: u64::MAX,
            min_at: Micros(0),
            interval: 0,
            min_rto: MIN_RTO,
            max_rto: micros(max_rto),
        }
    }

    pub(crate) fn set_timing(&mut self, nodelay: bool, interval: Duration) {
        self.min_rto = if nodelay { MIN_RTO_NODELAY } else { MIN_RTO };
        self.interval = micros(interval);
    }

    pub(crate) fn on_sample(&mut self, now: Micros, rtt: u64) {
        // A host that stood still for an hour must not need an hour to forget it.
        let rtt = rtt.min(self.max_rto);
        if rtt <= self.min || now.since(self.min_at) > MIN_RTT_WINDOW {
            (self.min, self.min_at) = (rtt, now);
        }
        let Some(srtt) = self.srtt else {
            self.srtt = Some(rtt);
            self.mdev = rtt / 2;
            (self.mdev_max, self.rttvar) = (self.mdev, self.mdev);
            self.round_start = now;
            return;
        };
        let error = rtt.abs_diff(srtt);
        // A sample far below the average says that the path got better, not that it varies more.
        let weight = if rtt < srtt.saturating_sub(self.mdev) { 32 } else { 4 };
        self.mdev = self.mdev - self.mdev / weight + error / weight;
        let srtt = srtt - srtt / 8 + rtt / 8;
        self.srtt = Some(srtt);
        self.mdev_max = self.mdev_max.max(self.mdev);
        self.rttvar = self.rttvar.max(self.mdev_max);
        if now.since(self.round_start) >= srtt {
            // Down slowly: a quarter of the way to the peak of the round that just ended.
            self.rttvar -= (self.rttvar - self.mdev_max) / 4;
            self.mdev_max = self.mdev;
            self.round_start = now;
        }
    }

    /// Retransmission time-out, microseconds.
    pub(crate) fn rto(&self) -> u64 {
        let Some(srtt) = self.srtt else {
            return INITIAL_RTO.clamp(self.min_rto, self.max_rto);
        };
        let margin = (4 * self.rttvar).max(self.interval).max(srtt / 4);
        (srtt + margin).clamp(self.min_rto, self.max_rto)
    }

    pub(crate) fn srtt(&self) -> Option<u64> {
        self.srtt
    }

    pub(crate) fn rttvar(&self) -> u64 {
        self.rttvar
    }

    /// Whether the path is short. So it is before the first sample.
    pub(crate) fn is_short(&self) -> bool {
        self.min() < SHORT_RTT
    }

    /// Smallest recent sample; zero before the first.
    pub(crate) fn min(&self) -> u64 {
        if self.srtt.is_some() { self.min } else { 0 }
    }
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
    fn first_sample_sets_everything() {
        let mut rtt = rtt(true, 10);
        assert_eq!(rtt.rto(), 200_000);
        rtt.on_sample(Micros(0), 100_000);
        assert_eq!((rtt.srtt(), rtt.rttvar(), rtt.min()), (Some(100_000), 50_000, 100_000));
        assert_eq!(rtt.rto(), 300_000);
    }

    #[test]
    fn a_steady_path_keeps_a_quarter_as_margin() {
        let mut rtt = rtt(true, 10);
        for i in 0..10_000 {
            rtt.on_sample(Micros(i * 10_000), 100_000);
        }
        assert!((125_000..130_000).contains(&rtt.rto()), "{}", rtt.rto());
    }

    #[test]
    fn equal_samples_within_one_round_do_not_shrink_the_variation() {
        let mut rtt = rtt(true, 10);
        rtt.on_sample(Micros(0), 100_000);
        for i in 0..1_000 {
            rtt.on_sample(Micros(i), 100_000);
        }
        assert_eq!(rtt.rttvar(), 50_000);
    }

    #[test]
    fn a_zero_sample_is_a_sample() {
        let mut rtt = rtt(true, 10);
        rtt.on_sample(Micros(0), 0);
        rtt.on_sample(Micros(10), 80);
        assert_eq!(rtt.srtt(), Some(10));
        assert_eq!(rtt.rto(), 30_000);
    }

    #[test]
    fn any_samples_stay_within_the_bounds() {
        let mut rtt = rtt(false, 40);
        for (i, sample) in [0, u64::from(u32::MAX), 1, 90_000_000, 3].into_iter().enumerate() {
            rtt.on_sample(Micros(i as u64 * 1_000_000), sample);
            assert!((100_000..=10_000_000).contains(&rtt.rto()));
        }
    }
}
