//! Shortest round-trip time of the path, and when it must be measured again (draft-ietf-ccwg-bbr
//! 4.3.4, ProbeRTT).

use crate::core::clock::Micros;
use crate::core::recovery::rtt::SHORT_RTT;

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
}

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

    /// Whether the RTT is so short that timers of 1 ms are too coarse for a rate.
    pub(super) fn is_short(&self) -> bool {
        self.min.is_some_and(|min| min < SHORT_RTT)
    }

    /// Whether `rtt` shows no more queue than a twentieth of the shortest RTT and 1 ms.
    pub(super) fn is_near(&self, rtt: u64) -> bool {
        self.min.is_some_and(|min| rtt <= min + min / 20 + 1_000)
    }

    pub(super) fn is_outdated(&self, now: Micros) -> bool {
        self.min.is_some() && now.since(self.at) > MAX_AGE
    }

    /// Begins a probe: in-flight data is low from now on, so that queues drain.
    pub(super) fn begin_probe(&mut self) {
        self.probed = Some(u64::MAX);
    }

    /// Ends a probe: its shortest RTT is that of the path. Without a sample the old one stays.
    pub(super) fn end_probe(&mut self, now: Micros) {
        self.at = now;
        if let Some(probed) = self.probed.take().filter(|probed| *probed < u64::MAX) {
            self.replace(now, probed);
        }
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
        min.begin_probe();
        min.end_probe(Micros(11_000_000));
        assert_eq!(min.get(), Some(50_000), "nothing was measured");
        min.begin_probe();
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
        assert!(min.get() == Some(1) && min.is_short());
    }
}
