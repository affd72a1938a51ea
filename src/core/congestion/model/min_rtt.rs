//! Shortest round-trip time of the path, and when it must be measured again (draft-ietf-ccwg-bbr
//! 4.3.4, ProbeRTT).

use super::round::{RoundStats, RttSamples};
use crate::core::clock::Micros;

/// Age at which the shortest RTT must be measured again, microseconds (draft `BBR.MinRTTFilterLen`).
const MAX_AGE: u64 = 10_000_000;
/// Longest RTT that counts, microseconds: beyond it a host was suspended, or the ACK is forged.
const MAX_RTT: u64 = 10_000_000;
/// An RTT that exceeds the shortest one by at most this share, as divisor, renews it.
const RENEWED_WITHIN: u64 = 64;

/// Shortest RTT, microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MinRtt {
    /// `None` before the first sample.
    min: Option<u64>,
    /// When `min` was measured or renewed.
    at: Micros,
    /// Shortest RTT of the probe that runs.
    probed: Option<u64>,
    /// Least mean RTT of a round lately, and when: the RTT without a queue, jitter included.
    calm: Option<u64>,
    calm_at: Micros,
    /// What the RTT varied by then.
    jitter: u64,
    /// Samples that make the next mean.
    samples: RttSamples,
    /// Rounds in a row without an RTT that is close to `min`.
    far_rounds: u64,
    /// When the latest probe of a path that may have become longer began.
    suspected_at: Micros,
}

/// Rounds without an RTT close to the shortest one after which the path may have become longer.
const FAR_ROUNDS: u64 = 8;
/// Least time between probes of a path that may have become longer, microseconds.
const SUSPECT_INTERVAL: u64 = 3_000_000;
/// RTT samples that make a mean.
const MEAN_SAMPLES: u64 = 8;

impl MinRtt {
    /// Returns whether the shortest RTT before was that of a queue: this one is shorter by an eighth.
    pub(super) fn on_sample(&mut self, now: Micros, rtt: u64) -> bool {
        self.probed = self.probed.map(|probed| probed.min(rtt));
        let rtt = rtt.clamp(1, MAX_RTT);
        let was_queue = self.min.is_some_and(|min| rtt < min - min / 8);
        if self.min.is_none_or(|min| rtt <= min + min / RENEWED_WITHIN) {
            self.min = Some(self.min.map_or(rtt, |min| min.min(rtt)));
            self.at = now;
        }
        was_queue
    }

    /// The shortest RTT; `None` before the first sample.
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
            let spread = std::mem::take(&mut self.samples).spread();
            if self.calm.is_none_or(|calm| mean <= calm) || now.since(self.calm_at) > MAX_AGE {
                (self.calm, self.calm_at, self.jitter) = (Some(mean), now, spread);
            }
        }
        let is_far = |rtt| self.min.is_some_and(|min| rtt > min + min / 4 + 2_000);
        let far = round.rtt.min_rtt().is_some_and(is_far);
        self.far_rounds = if far { self.far_rounds + 1 } else { 0 };
    }

    /// The mean RTT without a queue.
    pub(super) fn calm(&self) -> Option<u64> {
        let min = self.min?;
        Some(self.calm.map_or(min, |calm| calm.clamp(min, 3 * min + 1_000)))
    }

    /// Whether `rtt` shows no more queue than a twentieth of the RTT and 1 ms, and what jitter explains.
    pub(super) fn is_near(&self, rtt: u64) -> bool {
        self.calm().is_some_and(|calm| rtt <= calm + calm / 20 + 1_000 + self.jitter.min(calm) / 2)
    }

    /// The same of a single sample.
    pub(super) fn is_sample_near(&self, rtt: u64) -> bool {
        self.is_near(rtt.saturating_sub(self.jitter / 2))
    }

    pub(super) fn is_outdated(&self, now: Micros) -> bool {
        self.min.is_some() && (now.since(self.at) > MAX_AGE || self.is_suspect(now))
    }

    /// Whether the path may have become longer: no RTT of several rounds was close to the shortest one.
    fn is_suspect(&self, now: Micros) -> bool {
        self.far_rounds >= FAR_ROUNDS && now.since(self.suspected_at) > SUSPECT_INTERVAL
    }

    /// Begins a probe: in-flight data is low from now on, so that queues drain.
    pub(super) fn begin_probe(&mut self, now: Micros) {
        (self.probed, self.suspected_at) = (Some(u64::MAX), now);
    }

    /// Ends a probe: its shortest RTT is the path's. Without a sample the old one stays. Returns whether the
    /// path has become longer by half.
    pub(super) fn end_probe(&mut self, now: Micros) -> bool {
        (self.at, self.far_rounds) = (now, 0);
        let Some(probed) = self.probed.take().filter(|probed| *probed < u64::MAX) else {
            return false;
        };
        let longer = self.min.is_some_and(|min| probed > min + min / 2 + 2_000);
        self.replace(now, probed);
        if longer {
            self.calm = None;
        }
        longer
    }

    /// The path was not filled lately, so `rtt` is its RTT.
    pub(super) fn replace(&mut self, now: Micros, rtt: u64) {
        (self.min, self.at) = (Some(rtt.clamp(1, MAX_RTT)), now);
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
        min.end_probe(Micros(11_000_000));
        assert_eq!(min.get(), Some(50_000), "nothing was measured");
        min.begin_probe(Micros(0));
        for rtt in [90_000, 80_000, 85_000] {
            min.on_sample(Micros(12_000_000), rtt);
        }
        min.end_probe(Micros(12_000_000));
        assert!(min.get() == Some(80_000) && !min.is_outdated(Micros(22_000_000)));
    }

    #[test]
    fn rtt_of_zero_is_no_division_by_zero() {
        let mut min = MinRtt::default();
        min.on_sample(Micros(0), 0);
        assert_eq!(min.get(), Some(1));
    }
}
