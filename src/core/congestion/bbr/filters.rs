//! Measurements of the BBR model: rounds, rates, the shortest RTT, random loss, and bursts of ACKs.

use crate::core::clock::Micros;
use crate::core::congestion::controller::Acked;
use crate::core::congestion::delivery_rate::RateSample;

pub(super) const SECOND: u64 = 1_000_000;
pub(super) const MILLION: u64 = 1_000_000;

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
    (bytes * SECOND).checked_div(time)
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
        let rate = bytes.saturating_mul(SECOND) / elapsed.max(1);
        let is_first = self.began == Micros(0);
        let (app_limited, least) = (self.app_limited, self.least);
        let (began, sent_at, sent) = (now, sample.sent_at, sample.sent);
        *self = Self { delivered, began, sent_at, sent, app_limited: false, least };
        (!is_first).then_some(RateSample { rate, elapsed, app_limited, ..*sample })
    }
}

/// Packet-timed round trips (draft-ietf-ccwg-bbr 4.5.1). A round ends with the acknowledgement of data that
/// left after its start.
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

/// Age after which the shortest RTT is measured again, microseconds (draft `BBR.MinRTTFilterLen`).
const MAX_RTT_AGE: u64 = 10_000_000;
/// Longest RTT that counts, microseconds. Above it the host was suspended, or the ACK is forged.
const MAX_RTT: u64 = 10_000_000;
/// A sample renews the shortest RTT if it exceeds it by at most 1 / `RENEWED_WITHIN`.
const RENEWED_WITHIN: u64 = 64;

/// Shortest round-trip time of the path, and when to measure it again (draft-ietf-ccwg-bbr 4.3.4, ProbeRTT).
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
        self.min.is_some() && (now.since(self.at) > MAX_RTT_AGE || self.is_suspect(now))
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

/// Rounds after the end of a probe until its losses are found.
const LOSS_ROUNDS: u64 = 2;

/// Measures random loss: the loss of segments sent below the path's bandwidth, in Drain and Down, while
/// nothing queues.
///
/// Overflowing queues and policers lose nothing then; a path with random loss loses the same as at any rate.
/// BBRv3 has no such measurement (draft-ietf-ccwg-bbr 5.5.10 takes 2 % for congestion at any time).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossProbe {
    /// Start; `None` before the first probe and after its result was taken.
    from: Option<Micros>,
    /// Time and round of its end.
    until: Option<(Micros, u64)>,
    sent: u64,
    lost: u64,
    /// Shortest RTT in it, microseconds.
    rtt: Option<u64>,
}

impl LossProbe {
    pub(super) fn begin(&mut self, now: Micros) {
        *self = Self { from: Some(now), ..Self::default() };
    }

    /// The phase ends in round `round`.
    pub(super) fn end(&mut self, now: Micros, round: u64) {
        if self.from.is_some() && self.until.is_none() {
            self.until = Some((now, round));
        }
    }

    fn is_active(&self) -> bool {
        self.from.is_some() && self.until.is_none()
    }

    #[inline]
    pub(super) fn on_sent(&mut self) {
        self.sent += u64::from(self.is_active());
    }

    pub(super) fn on_rtt(&mut self, rtt: u64) {
        if self.is_active() {
            self.rtt = Some(self.rtt.map_or(rtt, |least| least.min(rtt)));
        }
    }

    /// A transmission that left at `sent_at` was found lost.
    pub(super) fn on_lost(&mut self, sent_at: Micros) {
        let begun = self.from.is_some_and(|from| sent_at >= from);
        let ended = self.until.is_some_and(|(until, _)| sent_at >= until);
        self.lost += u64::from(begun && !ended);
    }

    /// A loss proved spurious; it may belong to this probe.
    pub(super) fn on_spurious_loss(&mut self) {
        self.lost = self.lost.saturating_sub(1);
    }

    /// The result, once, as soon as all losses are found: segments sent and lost, and the shortest RTT.
    pub(super) fn take(&mut self, round: u64) -> Option<(u64, u64, Option<u64>)> {
        let (_, ended) = self.until.filter(|(_, ended)| round >= ended + LOSS_ROUNDS)?;
        debug_assert!(round > ended);
        let result = (self.sent, self.lost, self.rtt);
        *self = Self::default();
        Some(result)
    }
}

/// Loss above the base that counts as congestion, per million (draft `BBR.LossThresh`).
const LOSS_THRESHOLD: u64 = 20_000;
/// Segments counted as sent and not lost at the start.
const LOSS_PRIOR: u64 = 64;
/// Segments remembered; beyond that the older ones lose weight.
const LOSS_MEMORY: u64 = 4_096;
/// Highest base, per million.
const MAX_LOSS_BASE: u64 = 350_000;
/// Base used for the standard deviation is at least this, per million.
const MIN_VARIANCE_BASE: u64 = 2_000;
/// Rounds with fewer segments are not judged.
const MIN_LOSS_SEGMENTS: u64 = 8;

/// Random loss rate of a path: loss while nothing queues, which slower sending does not reduce. Only loss
/// above it is congestion.
///
/// BBRv3 treats 2 % as congestion (draft-ietf-ccwg-bbr `BBR.LossThresh`), so random loss of 5 % leaves a
/// sixteenth of the rate. Here the threshold is 2 % and two standard deviations above the loss measured while
/// less is sent than the path carries ([`LossProbe`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct LossBase {
    /// Segments of the measurements without a queue, and the lost ones among them, in thousandths.
    sent: u64,
    lost: u64,
    /// True after the first measurement.
    is_measured: bool,
    /// Invariant: `lost` per million of `sent`, at most [`MAX_LOSS_BASE`].
    per_million: u64,
}

impl LossBase {
    pub(super) fn new() -> Self {
        Self { sent: LOSS_PRIOR * 1_000, lost: 0, is_measured: false, per_million: 0 }
    }

    /// A measurement without a queue: `lost` of `sent` segments were lost.
    pub(super) fn on_round(&mut self, sent: u64, lost: u64) {
        self.is_measured = true;
        self.sent += sent.min(LOSS_MEMORY) * 1_000;
        self.lost += lost.min(sent).min(LOSS_MEMORY) * 1_000;
        if self.sent > LOSS_MEMORY * 1_000 {
            self.lost = self.lost * (LOSS_MEMORY * 1_000) / self.sent;
            self.sent = LOSS_MEMORY * 1_000;
        }
        self.update();
    }

    /// Another round with a standing queue. The base may come from an earlier one, so it fades until it is
    /// measured again.
    pub(super) fn on_queue(&mut self) {
        self.lost -= self.lost / 16;
        self.update();
    }

    /// Keeps the invariant of `per_million`.
    fn update(&mut self) {
        self.per_million = (self.lost * MILLION / self.sent).min(MAX_LOSS_BASE);
    }

    /// Loss rate without a queue, per million.
    pub(super) fn per_million(&self) -> u64 {
        self.per_million
    }

    /// Whether the loss rate was ever measured.
    pub(super) fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// Whether `lost` of `sent` segments exceed random loss.
    pub(super) fn is_exceeded(&self, sent: u64, lost: u64) -> bool {
        sent >= MIN_LOSS_SEGMENTS && per_million(sent, lost) > self.threshold(sent)
    }

    /// As [`Self::is_exceeded`], stricter, for large counts that are judged often.
    pub(super) fn is_surely_exceeded(&self, sent: u64, lost: u64) -> bool {
        let threshold = self.threshold(sent);
        per_million(sent, lost) > threshold + (threshold - self.per_million - LOSS_THRESHOLD) / 2
    }

    /// As [`Self::is_exceeded`], and above `least` per million.
    pub(super) fn is_exceeded_by(&self, sent: u64, lost: u64, least: u64) -> bool {
        self.is_exceeded(sent, lost) && per_million(sent, lost) > least
    }

    /// Loss of `sent` segments above which it is congestion, per million.
    fn threshold(&self, sent: u64) -> u64 {
        let base = self.per_million();
        let p = base.max(MIN_VARIANCE_BASE);
        // Standard deviation of the share: sqrt(p (1 - p) / n).
        let sigma = (p * (MILLION - p) / sent.max(1)).isqrt();
        base + LOSS_THRESHOLD + 2 * sigma
    }
}

fn per_million(sent: u64, lost: u64) -> u64 {
    lost.min(sent).saturating_mul(MILLION) / sent.max(1)
}

/// Longest time whose bytes count, microseconds.
const MAX_ACK_TIME: u64 = 100_000;
/// ACKs within `SAME_TICK` belong to one tick; a tick is at least `LEAST_TICK` long. Microseconds.
const SAME_TICK: u64 = 1_000;
const LEAST_TICK: u64 = 8_000;
/// Least duration of a filter round, microseconds.
const LEAST_ROUND: u64 = 50_000;

/// Bursts of acknowledgements (draft-ietf-ccwg-bbr 5.5.9 `BBR.extra_acked`). A peer that collects ACKs for an
/// interval, as kcp-go does, needs more in flight than the bandwidth-delay product. This depends on the peer,
/// so each connection has its own state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckAggregation {
    /// Start of the interval of `acked`.
    since: Micros,
    acked: u64,
    extra: WindowedMax,
    /// When ACKs last arrived, and when the current tick began.
    arrived_at: Micros,
    tick_began: Micros,
    /// Time from the previous ACKs to the start of this tick, microseconds, and the bytes it acknowledged.
    gap: u64,
    arrived: u64,
    /// Longest time between ACKs that together acknowledged all of it, microseconds.
    tick: WindowedMax,
    /// The second longest of all rounds, for the same reason as `delay_seen_twice`.
    tick_seen_twice: u64,
    /// Longest delay of an ACK, microseconds.
    delay: WindowedMax,
    /// The second longest of all rounds, so that a single outage does not count.
    delay_seen_twice: u64,
    rotated_at: Micros,
}

impl AckAggregation {
    /// The peer acknowledged bytes; `rate` is the estimated rate, bytes per second. `acked.in_flight` counts
    /// this connection alone.
    pub(crate) fn on_acked(&mut self, acked: &Acked, rate: u64, min_rtt: Option<u64>) {
        let Acked { now, bytes, .. } = *acked;
        if let Some(min_rtt) = min_rtt
            && rate > 0
        {
            // The delay that neither the path nor a queue of these bytes explains.
            let queue = (acked.in_flight + bytes).saturating_mul(SECOND) / rate;
            let delay = acked.longest_wait.saturating_sub(min_rtt + queue);
            self.delay.update(delay.min(MAX_ACK_TIME));
        }
        self.find_tick(now, bytes, rate);
        let expected = |since| rate.saturating_mul(now.since(since)) / SECOND;
        if self.acked <= expected(self.since) {
            (self.since, self.acked) = (now, 0);
        }
        self.acked = self.acked.saturating_add(bytes);
        let extra = self.acked.saturating_sub(expected(self.since));
        self.extra.update(extra.min(rate.saturating_mul(MAX_ACK_TIME) / SECOND));
    }

    /// Looks for a tick. Half of the rate is enough, since the estimate may be too high.
    fn find_tick(&mut self, now: Micros, bytes: u64, rate: u64) {
        if now.since(self.tick_began) > SAME_TICK {
            (self.gap, self.arrived, self.tick_began) = (now.since(self.arrived_at), 0, now);
        }
        self.arrived_at = now;
        self.arrived = self.arrived.saturating_add(bytes);
        if (LEAST_TICK..=MAX_ACK_TIME + LEAST_TICK).contains(&self.gap)
            && rate > 0
            && self.arrived >= rate.saturating_mul(self.gap) / SECOND / 2
        {
            self.tick.update(self.gap.min(MAX_ACK_TIME));
        }
    }

    /// Bytes that wait for their ACK at a peer that acknowledges at a tick, as kcp-go does.
    pub(crate) fn held_by_peer(&self, rate: u64) -> u64 {
        rate.saturating_mul(self.tick_seen_twice) / SECOND
    }

    /// A round ended. A round may be much shorter than the peer's tick.
    pub(crate) fn next_round(&mut self, now: Micros) {
        if now.since(self.rotated_at) >= LEAST_ROUND {
            self.rotated_at = now;
            self.extra.next_round();
            self.tick_seen_twice = self.tick.second();
            self.tick.next_round();
            self.delay_seen_twice = self.delay.second();
            self.delay.next_round();
        }
    }

    /// Bytes in excess of the bandwidth-delay product that keep the path full.
    pub(crate) fn extra(&self, rate: u64) -> u64 {
        // The rate may have fallen since they were measured.
        let extra = self.extra.max().min(rate.saturating_mul(MAX_ACK_TIME) / SECOND);
        extra.max(rate.saturating_mul(self.delay_seen_twice) / SECOND)
    }
}

/// Number of rounds, including the current one.
const FILTER_ROUNDS: usize = 10;

/// Maximum over the last rounds: BBR's max_bw filter (draft-ietf-ccwg-bbr 2.9 `BBR.MaxBwFilterLen`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WindowedMax {
    /// Largest value of each round, as a ring; `current` is the latest.
    rounds: [u64; FILTER_ROUNDS],
    current: usize,
    max: u64,
}

impl WindowedMax {
    /// Adds a value to the current round.
    #[inline]
    pub(super) fn update(&mut self, value: u64) {
        self.max = self.max.max(value);
        let round = &mut self.rounds[self.current];
        *round = (*round).max(value);
    }

    /// Begins the next round and forgets the oldest one.
    pub(super) fn next_round(&mut self) {
        self.current = (self.current + 1) % FILTER_ROUNDS;
        self.rounds[self.current] = 0;
        self.max = self.rounds.iter().copied().max().unwrap_or(0);
    }

    /// The largest value outside the round of [`Self::max`].
    pub(super) fn second(&self) -> u64 {
        let mut sorted = self.rounds;
        sorted.sort_unstable();
        sorted[FILTER_ROUNDS - 2]
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }
}

#[cfg(test)]
mod tests;
