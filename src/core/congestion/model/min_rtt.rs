//! Shortest round-trip time of the path, and when to measure it again (draft-ietf-ccwg-bbr 4.3.4, ProbeRTT).

use super::round::{RoundStats, RttSamples};
use crate::core::clock::Micros;

/// Age after which the shortest RTT is measured again, microseconds (draft `BBR.MinRTTFilterLen`).
const MAX_AGE: u64 = 10_000_000;
/// Longest RTT that counts, microseconds. Above it the host was suspended, or the ACK is forged.
const MAX_RTT: u64 = 10_000_000;
/// A sample renews the shortest RTT if it exceeds it by at most 1 / `RENEWED_WITHIN`.
const RENEWED_WITHIN: u64 = 64;

/// Shortest RTT, microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MinRtt {
    /// `None` before the first sample.
    min: Option<u64>,
    /// When `min` was measured or renewed.
    at: Micros,
    /// Shortest RTT of the running probe.
    probed: Option<u64>,
    /// Least mean RTT of the current window and of the previous one: the RTT without a queue, jitter
    /// included.
    calm: [Option<Calm>; 2],
    calm_since: Micros,
    /// Samples for the next mean.
    samples: RttSamples,
    /// Consecutive rounds without an RTT close to `min`.
    far_rounds: u64,
    /// Shortest RTT of these rounds.
    far_min: u64,
    /// Start of the latest probe for a longer path, and least time until the next, microseconds.
    suspected_at: Micros,
    suspect_interval: u64,
    /// `min` was last set by an application-limited flow: then a shorter RTT says nothing about a queue.
    is_renewed: bool,
}

/// A mean RTT, and the spread of the RTT at that time, microseconds.
#[derive(Clone, Copy, Debug)]
struct Calm {
    mean: u64,
    jitter: u64,
}

/// Duration of a window of [`Calm`], microseconds.
const CALM_WINDOW: u64 = 6_000_000;

/// Rounds without an RTT close to the shortest after which the path may have become longer.
const FAR_ROUNDS: u64 = 8;
/// Least and greatest time between probes for a longer path, microseconds. It doubles with each probe that
/// finds the path longer.
const SUSPECT_INTERVAL: (u64, u64) = (3_000_000, 12_000_000);
/// RTT samples of a mean.
const MEAN_SAMPLES: u64 = 8;

impl MinRtt {
    /// Returns whether the previous shortest RTT included a queue: this one is shorter by an eighth.
    pub(super) fn on_sample(&mut self, now: Micros, rtt: u64) -> bool {
        self.probed = self.probed.map(|probed| probed.min(rtt));
        let rtt = rtt.clamp(1, MAX_RTT);
        let was_queue = !self.is_renewed && self.min.is_some_and(|min| rtt < min - min / 8);
        if self.min.is_none_or(|min| rtt <= min + min / RENEWED_WITHIN) {
            self.min = Some(self.min.map_or(rtt, |min| min.min(rtt)));
            self.at = now;
        }
        was_queue
    }

    #[inline]
    pub(super) fn get(&self) -> Option<u64> {
        self.min
    }

    /// A round ended.
    pub(super) fn on_round(&mut self, now: Micros, round: &RoundStats) {
        self.samples.add(&round.rtt);
        if let Some(mean) = self.samples.mean_rtt()
            && self.samples.rtt_count() >= MEAN_SAMPLES
        {
            let jitter = std::mem::take(&mut self.samples).spread();
            if now.since(self.calm_since) > CALM_WINDOW {
                (self.calm, self.calm_since) = ([None, self.calm[0]], now);
            }
            if self.calm[0].is_none_or(|calm| mean <= calm.mean) {
                self.calm[0] = Some(Calm { mean, jitter });
            }
        }
        let is_far = |rtt| self.min.is_some_and(|min| rtt > min + min / 4 + 2_000);
        let far = round.rtt.min_rtt().is_some_and(is_far);
        if far {
            let least = round.rtt.min_rtt().unwrap_or(u64::MAX);
            self.far_min = if self.far_rounds == 0 { least } else { self.far_min.min(least) };
        }
        self.far_rounds = if far { self.far_rounds + 1 } else { 0 };
    }

    fn calmest(&self) -> Option<Calm> {
        self.calm.into_iter().flatten().min_by_key(|calm| calm.mean)
    }

    /// The mean RTT without a queue.
    pub(super) fn calm(&self) -> Option<u64> {
        let min = self.min?;
        Some(self.calmest().map_or(min, |calm| calm.mean.clamp(min, 3 * min + 1_000)))
    }

    /// Spread of the RTT without a queue.
    fn jitter(&self) -> u64 {
        self.calmest().map_or(0, |calm| calm.jitter.min(calm.mean))
    }

    /// Whether `rtt` shows no queue: at most 1/20 of the RTT, 1 ms, and jitter above the calm RTT.
    pub(super) fn is_near(&self, rtt: u64) -> bool {
        self.calm().is_some_and(|calm| rtt <= calm + calm / 20 + 1_000 + self.jitter() / 2)
    }

    /// As [`Self::is_near`], for a single sample.
    pub(super) fn is_sample_near(&self, rtt: u64) -> bool {
        self.is_near(rtt.saturating_sub(self.jitter() / 2))
    }

    pub(super) fn is_outdated(&self, now: Micros) -> bool {
        self.min.is_some() && (now.since(self.at) > MAX_AGE || self.is_suspect(now))
    }

    /// Whether the path may have become longer: no RTT of several rounds was close to the shortest one.
    fn is_suspect(&self, now: Micros) -> bool {
        self.far_rounds >= FAR_ROUNDS
            && now.since(self.suspected_at) > self.suspect_interval.max(SUSPECT_INTERVAL.0)
    }

    /// Begins a probe. From now on little is in flight, so that queues drain.
    pub(super) fn begin_probe(&mut self, now: Micros) {
        (self.probed, self.suspected_at) = (Some(u64::MAX), now);
    }

    /// Ends a probe and takes over its shortest RTT; without a sample the old one stays. Returns whether the
    /// path has changed: it drained (`drained`), and its RTT has at least doubled.
    pub(super) fn end_probe(&mut self, now: Micros, drained: bool) -> bool {
        (self.at, self.far_rounds) = (now, 0);
        let Some(probed) = self.probed.take().filter(|probed| *probed < u64::MAX) else {
            return false;
        };
        let longer = self.min.is_some_and(|min| probed > min + min / 4 + 2_000);
        let (least, most) = SUSPECT_INTERVAL;
        self.suspect_interval =
            if longer { (2 * self.suspect_interval).clamp(least, most) } else { least };
        // Other flows may have filled the queue; then the mean was as long before.
        let calm = self.calm().unwrap_or(u64::MAX);
        let other = drained && probed / 2 > calm.saturating_add(self.jitter() / 2 + 5_000);
        self.replace(now, probed);
        if other {
            self.calm = [None; 2];
        }
        other
    }

    /// An application-limited flow renews an outdated RTT without a probe, since nothing queues.
    pub(super) fn renew(&mut self, now: Micros, rtt: u64) {
        let rtt = if self.is_suspect(now) { self.far_min } else { rtt };
        self.replace(now, rtt);
        (self.far_rounds, self.suspected_at, self.is_renewed) = (0, now, true);
    }

    /// Sets the RTT of the path, which was not filled lately.
    pub(super) fn replace(&mut self, now: Micros, rtt: u64) {
        (self.min, self.at, self.is_renewed) = (Some(rtt.clamp(1, MAX_RTT)), now, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rtt_within_a_sixty_fourth_renews_the_shortest() {
        let mut min = MinRtt::default();
        min.on_sample(Micros(0), 64_000);
        min.on_sample(Micros(9_000_000), 65_000);
        assert!(min.get() == Some(64_000) && !min.is_outdated(Micros(19_000_000)));
        min.on_sample(Micros(9_000_001), 65_001);
        assert!(min.is_outdated(Micros(19_000_001)));
    }

    #[test]
    fn probe_replaces_the_shortest_also_by_a_longer_one() {
        let mut min = MinRtt::default();
        min.on_sample(Micros(0), 50_000);
        min.begin_probe(Micros(0));
        min.end_probe(Micros(11_000_000), true);
        assert_eq!(min.get(), Some(50_000), "nothing was measured");
        min.begin_probe(Micros(0));
        for rtt in [90_000, 80_000, 85_000] {
            min.on_sample(Micros(12_000_000), rtt);
        }
        min.end_probe(Micros(12_000_000), true);
        assert!(min.get() == Some(80_000) && !min.is_outdated(Micros(22_000_000)));
    }

    #[test]
    fn rtt_of_zero_is_no_division_by_zero() {
        let mut min = MinRtt::default();
        min.on_sample(Micros(0), 0);
        assert_eq!(min.get(), Some(1));
    }
}
