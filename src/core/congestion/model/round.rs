//! Packet-timed round trips (draft-ietf-ccwg-bbr 4.5.1) and their statistics. A round ends with the
//! acknowledgement of data that left after its start.

use crate::core::clock::Micros;
use crate::core::congestion::controller::Acked;
use crate::core::congestion::delivery_rate::RateSample;

/// Statistics of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundStats {
    /// Segments acknowledged.
    pub(super) acked: u64,
    /// Segments lost that left in the current phase.
    pub(super) lost: u64,
    /// Segments lost that left in an earlier phase.
    pub(super) lost_of_before: u64,
    /// Largest number of bytes in flight.
    pub(super) in_flight: u64,
    /// Largest delivery rate sample, bytes per second.
    pub(super) rate: u64,
    pub(super) rtt: RttSamples,
    /// A delivery rate sample was taken that the application did not limit.
    pub(super) sampled: bool,
    /// Rates taken.
    pub(super) intervals: u64,
    /// Bytes acknowledged.
    pub(super) bytes: u64,
    /// Duration, microseconds; 0 before the end.
    pub(super) duration: u64,
}

impl RoundStats {
    pub(super) fn on_acked(&mut self, acked: &Acked) {
        self.acked += u64::from(acked.segments);
        self.bytes += acked.bytes;
        // Before these ACKs, since the ACKs of a burst arrive at once.
        self.in_flight = self.in_flight.max(acked.in_flight + acked.bytes);
    }

    /// Acknowledged bytes per second; valid after the end.
    pub(super) fn delivery_rate(&self) -> u64 {
        per_second(self.bytes, self.duration).unwrap_or(u64::MAX)
    }
}

/// `time` in microseconds; `None` if it is zero.
fn per_second(bytes: u64, time: u64) -> Option<u64> {
    (bytes * 1_000_000).checked_div(time)
}

/// RTT samples, microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RttSamples {
    sum: u64,
    count: u64,
    min: u64,
    max: u64,
}

impl RttSamples {
    pub(super) fn on_rtt(&mut self, rtt: u64) {
        self.add(&Self { sum: rtt, count: 1, min: rtt, max: rtt });
    }

    pub(super) fn add(&mut self, other: &Self) {
        if other.count > 0 {
            self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
            self.max = self.max.max(other.max);
            self.sum = self.sum.saturating_add(other.sum);
            self.count += other.count;
        }
    }

    pub(super) fn mean_rtt(&self) -> Option<u64> {
        self.sum.checked_div(self.count)
    }

    pub(super) fn rtt_count(&self) -> u64 {
        self.count
    }

    /// Longest RTT minus the shortest.
    pub(super) fn spread(&self) -> u64 {
        self.max.saturating_sub(self.min)
    }

    pub(super) fn min_rtt(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }
}

/// Rate over a time that is long compared with timers and with the spread of the RTT. Over shorter times ACKs
/// that arrive close together give too high a rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateInterval {
    /// At the start: bytes acknowledged, the time, and the departure of the acknowledged data.
    delivered: u64,
    began: Micros,
    sent_at: Micros,
    /// Bytes sent at that departure.
    sent: u64,
    app_limited: bool,
    /// Least duration, microseconds.
    least: u64,
}

/// Least time of a rate, microseconds: ten times the granularity of timers.
const LEAST_INTERVAL: u64 = 10_000;

impl RateInterval {
    /// Whether a sample of this length can be used directly.
    pub(super) fn is_long(&self, elapsed: u64) -> bool {
        elapsed >= self.least.max(LEAST_INTERVAL)
    }

    /// A round ended; its RTT varied by `spread`.
    pub(super) fn on_round(&mut self, spread: u64, rtt: u64) {
        self.least = (8 * spread).min(16 * rtt);
    }

    /// Adds a sample. Returns the interval's rate if this sample ends it.
    pub(super) fn on_sample(
        &mut self,
        now: Micros,
        delivered: u64,
        sample: &RateSample,
    ) -> Option<RateSample> {
        self.app_limited |= sample.app_limited;
        let elapsed = now.since(self.began).max(sample.sent_at.since(self.sent_at));
        if self.began != Micros(0) && !self.is_long(elapsed) {
            return None;
        }
        // ACKs may have been withheld, so no more counts than what left in that time.
        let left = sample.sent.saturating_sub(self.sent);
        let bytes = delivered.saturating_sub(self.delivered).min(left);
        let rate = bytes.saturating_mul(1_000_000) / elapsed.max(1);
        let is_first = self.began == Micros(0);
        let (app_limited, least) = (self.app_limited, self.least);
        let (began, sent_at, sent) = (now, sample.sent_at, sample.sent);
        *self = Self { delivered, began, sent_at, sent, app_limited: false, least };
        (!is_first).then_some(RateSample { rate, elapsed, app_limited, ..*sample })
    }
}

/// Counts the rounds of a path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    pub(super) count: u64,
    /// Acknowledged bytes at the start: the round ends when data sent after that is acknowledged.
    ends_at: u64,
    began: Micros,
    pub(super) stats: RoundStats,
}

/// Losses over several rounds, since one round of a short path says little.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) acked: u64,
    pub(super) lost: u64,
    bytes: u64,
    time: u64,
}

impl Tally {
    /// Segments needed for a verdict.
    const SEGMENTS: u64 = 100;

    pub(super) fn add(&mut self, round: &RoundStats) {
        if self.acked + self.lost >= 2 * Self::SEGMENTS {
            (self.acked, self.lost) = (self.acked / 2, self.lost / 2);
            (self.bytes, self.time) = (self.bytes / 2, self.time / 2);
        }
        self.acked += round.acked;
        self.lost += round.lost;
        self.bytes += round.bytes;
        self.time += round.duration;
    }

    pub(super) fn is_enough(&self) -> bool {
        self.acked + self.lost >= Self::SEGMENTS
    }

    /// Bytes acknowledged per second.
    pub(super) fn rate(&self) -> u64 {
        per_second(self.bytes, self.time).unwrap_or(0)
    }
}

impl Rounds {
    /// Data was acknowledged that left when `prior_delivered` bytes were acknowledged; now `delivered` are.
    /// Returns the statistics of the round if this ends it.
    pub(super) fn on_acked(
        &mut self,
        now: Micros,
        prior_delivered: u64,
        delivered: u64,
    ) -> Option<RoundStats> {
        if prior_delivered < self.ends_at {
            return None;
        }
        self.count += 1;
        self.ends_at = delivered;
        self.stats.duration = now.since(self.began);
        self.began = now;
        Some(std::mem::take(&mut self.stats))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_ends_with_the_first_ack_of_what_left_in_it() {
        let mut rounds = Rounds::default();
        assert!(rounds.on_acked(Micros(0), 0, 1_000).is_some());
        rounds.stats.rtt.on_rtt(40);
        rounds.stats.rtt.on_rtt(20);
        assert!(rounds.on_acked(Micros(0), 0, 2_000).is_none());
        assert!(rounds.on_acked(Micros(0), 999, 3_000).is_none());
        let stats = rounds.on_acked(Micros(0), 1_000, 4_000).unwrap();
        assert_eq!((stats.rtt.mean_rtt(), stats.rtt.min_rtt()), (Some(30), Some(20)));
        assert_eq!((rounds.stats.rtt.mean_rtt(), rounds.count), (None, 2));
    }
}
