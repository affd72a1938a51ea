//! How many repair symbols leave: a rate chosen by the measured loss, within the limits of
//! [`AutoProtection`]. WebRTC's FEC controller chooses by loss and round trip in the same way.
//!
//! The rate rises once the loss has lasted for a round trip, and falls one step in [`LOWER_AFTER`].
//! The share of repair symbols and retransmissions together stays below the limit: what
//! retransmissions take is measured, so the better the repair symbols do, the more of them may
//! leave. Where they would leave further apart than a round trip, none does: a retransmission arrives
//! as soon. Repair symbols fill queues as data does: while one shows, half as many leave, and where
//! loss and round trip rise after a step up, the loss is congestion, and for a while none but the
//! least leave. The steps hold for FEC as well ([`FecPlanner`]).

use crate::config::AutoProtection;
use crate::core::clock::Micros;
use crate::core::send::fec_plan::{FecFlow, FecPlan, FecPlanner};

/// Bytes of repair symbols per million bytes of data, up to each loss per million.
const STEPS: [(u32, u32); 5] = [
    (3_000, 50_000),
    (20_000, 250_000),
    (70_000, 400_000),
    (140_000, 500_000),
    (1_000_000, 600_000),
];
/// Least rate of bundled copies, per million.
const BUNDLING_LEAST: u32 = 700_000;
/// How long bundling goes on without a loss that shows, microseconds: copies hide losses, so it has to
/// end for a moment to see whether there still are some.
const BUNDLING_TIME: u64 = 60_000_000;
/// Time between two decisions, microseconds.
const INTERVAL: u64 = 100_000;
/// How long the loss has to ask for a lower step, microseconds.
const LOWER_AFTER: u64 = 10_000_000;
/// A rise of the loss within this time of a step up may be due to it, microseconds.
const EFFECT_WITHIN: u64 = 2_000_000;
/// How long congestion keeps the rate at the lowest step, microseconds.
const CONGESTION_PAUSE: u64 = 30_000_000;
/// The sums forget `1 / MEMORY` in each interval: they cover about six seconds.
const MEMORY: u64 = 64;
/// Reserve below the limit, per mille of it, for what is not known when a decision is made.
const RESERVE: u64 = 5;
/// The same for parity, whose number changes little from one decision to the next.
const FEC_RESERVE: u64 = 1;
/// Time for which parity leaves as if it made most retransmissions unnecessary, when FEC begins or
/// losses do, and from its end to another one, microseconds. With little parity there are many
/// retransmissions, which leave no bytes for more.
const FEC_TRIAL: u64 = 10_000_000;
const FEC_TRIAL_PAUSE: u64 = 60_000_000;
/// Least part of the wanted parity for a trial, percent.
const FEC_TRIAL_LEAST: u64 = 80;
/// Mean bytes of a segment from which halves are counted on before they are cut: those of
/// [`SendBuffer::set_halves`](crate::core::send::send_buffer::SendBuffer::set_halves).
const HALVED_FROM: u64 = 600;
/// The sums are multiplied by this, so that small ones are forgotten too.
const SCALE: u64 = 1_024;
const MILLION: u64 = 1_000_000;

/// Counters of what has left, since the start of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentTotals {
    /// Payload bytes sent for the first time.
    pub(crate) data_bytes: u64,
    /// Data segments sent for the first time.
    pub(crate) segments: u64,
    /// Retransmissions of all kinds.
    pub(crate) retransmits: u64,
}

/// What decides about FEC towards peers that take no repair symbols.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FecState {
    /// The peer decodes FEC, and takes no repair symbols.
    pub(crate) peer_decodes: bool,
    /// The layout is configured.
    pub(crate) is_configured: bool,
    /// Writes may be cut into halves, and are.
    pub(crate) may_halve: bool,
    pub(crate) halves: bool,
    pub(crate) in_flight: u64,
    /// Lost segments since the loss estimate began.
    pub(crate) lost: u64,
}

/// What is known of the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathEstimate {
    /// Loss of first transmissions, per million: the larger one of the last second and the last ten.
    pub(crate) loss: u32,
    /// That of the last ten seconds.
    pub(crate) mean_loss: u32,
    /// Microseconds.
    pub(crate) srtt: u64,
    /// Microseconds.
    pub(crate) min_rtt: u64,
    /// Variation of the round trip, microseconds (RFC 6298).
    pub(crate) rttvar: u64,
    /// Bytes of the headers of one data packet, from IP on.
    pub(crate) packet_overhead: u64,
}

impl PathEstimate {
    /// Whether the round trip is half as long again as it could be, and not by jitter.
    fn has_queue(&self) -> bool {
        self.srtt > self.min_rtt / 2 * 3 + 2 * self.rttvar
    }
}

/// A step up: its effect is watched.
#[derive(Clone, Copy, Debug)]
struct StepUp {
    at: Micros,
    loss: u32,
    srtt: u64,
}

/// Controller of one connection.
#[derive(Clone, Debug)]
pub(crate) struct ProtectionController {
    limits: AutoProtection,
    /// Index in [`STEPS`].
    step: usize,
    /// Since when the loss asks for a higher step, and for the least one in this time.
    higher_since: Option<(Micros, usize)>,
    /// Since when the loss asks for a lower step.
    lower_since: Option<Micros>,
    decided_at: Micros,
    /// At `decided_at`.
    totals: SentTotals,
    /// What left lately, see [`MEMORY`], and in how many intervals.
    recent: SentTotals,
    recent_intervals: u64,
    step_up: Option<StepUp>,
    congested_until: Micros,
    /// Bytes of repair symbols per million bytes of data.
    rate: u32,
    /// Bundled copies are sent.
    bundles: bool,
    fec: FecPlanner,
    /// End of the latest [`FEC_TRIAL`]; `None` before the first.
    fec_trial_until: Option<Micros>,
}

impl ProtectionController {
    /// Starts with the lowest step.
    pub(crate) fn new(limits: AutoProtection, now: Micros) -> Self {
        Self {
            limits,
            step: 0,
            higher_since: None,
            lower_since: None,
            decided_at: now,
            totals: SentTotals::default(),
            recent: SentTotals::default(),
            recent_intervals: 0,
            step_up: None,
            congested_until: Micros(0),
            rate: STEPS.first().map_or(0, |(_, rate)| *rate),
            bundles: false,
            fec: FecPlanner::default(),
            fec_trial_until: None,
        }
    }

    /// The limits.
    pub(crate) fn limits(&self) -> &AutoProtection {
        &self.limits
    }

    /// FEC towards a peer that takes no repair symbols.
    pub(crate) fn fec_plan(&self) -> FecPlan {
        self.fec.plan()
    }

    /// Decides about bundled copies to a peer that takes no repair symbols, after
    /// [`Self::decide_fec`]: bytes of them per million bytes of data. All segments are copied, or so
    /// many that it makes a difference, while there are losses and FEC is off.
    pub(crate) fn decide_bundling(&mut self, path: &PathEstimate) -> u32 {
        let limits = (RESERVE, self.retransmitted());
        let rate = to_rate(self.within_limits(path, limits, MILLION, MILLION));
        self.bundles = self.step > 0 && !self.fec.plan().is_on && rate >= BUNDLING_LEAST;
        if self.bundles { rate } else { 0 }
    }

    /// Bytes of repair symbols per million bytes of data.
    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    /// Whether [`Self::decide`] is due.
    pub(crate) fn is_due(&self, now: Micros) -> bool {
        now.since(self.decided_at) >= INTERVAL
    }

    /// Decides again. Returns the rate if it has changed.
    pub(crate) fn decide(
        &mut self,
        now: Micros,
        path: &PathEstimate,
        totals: SentTotals,
    ) -> Option<u32> {
        let passed = now.since(self.decided_at) / INTERVAL;
        self.forget(passed);
        self.recent.add(self.totals, totals);
        (self.decided_at, self.totals) = (now, totals);
        self.choose_step(now, path);
        let rate = self.repair_rate(path);
        let has_changed = std::mem::replace(&mut self.rate, rate) != rate;
        has_changed.then_some(rate)
    }

    /// Forgets a part of the sums for each interval that has passed.
    fn forget(&mut self, intervals: u64) {
        let SentTotals { data_bytes, segments, retransmits } = &mut self.recent;
        for sum in [data_bytes, segments, retransmits, &mut self.recent_intervals] {
            // Of older sums nothing is left.
            for _ in 0..intervals.min(8 * MEMORY) {
                *sum -= *sum / MEMORY;
            }
        }
        self.recent_intervals += intervals.min(MEMORY) * SCALE;
    }

    fn choose_step(&mut self, now: Micros, path: &PathEstimate) {
        let wanted = STEPS.iter().position(|(most, _)| path.loss <= *most).unwrap_or(0);
        self.watch_step_up(now, path);
        let higher = self.lasting_higher(now, path, wanted);
        if now < self.congested_until {
            (self.step, self.lower_since) = (0, None);
        } else if let Some(higher) = higher {
            // Of a step before the effect of the last one was seen the round trip does not count.
            let srtt = self.step_up.map_or(path.srtt, |last| last.srtt);
            self.step_up = Some(StepUp { at: now, loss: path.loss, srtt });
            (self.step, self.lower_since) = (higher, None);
        } else if wanted >= self.step {
            self.lower_since = None;
        } else {
            let since = *self.lower_since.get_or_insert(now);
            if self.bundles && now.since(since) >= BUNDLING_TIME {
                (self.step, self.lower_since) = (0, None);
            } else if !self.bundles && now.since(since) >= LOWER_AFTER {
                self.step -= 1;
                self.lower_since = Some(now);
            }
        }
    }

    /// The higher step that the loss has asked for during a round trip: within that time the ACKs of
    /// segments that were only reordered show that they were not lost.
    fn lasting_higher(&mut self, now: Micros, path: &PathEstimate, wanted: usize) -> Option<usize> {
        if wanted <= self.step {
            self.higher_since = None;
            return None;
        }
        let (since, least) = self.higher_since.unwrap_or((now, wanted));
        let least = least.min(wanted);
        self.higher_since = Some((since, least));
        if now.since(since) < path.srtt.max(1) {
            return None;
        }
        self.higher_since = (wanted > least).then_some((now, wanted));
        Some(least)
    }

    /// Whether the latest step up made things worse: loss a third higher, and a round trip a quarter
    /// longer.
    fn watch_step_up(&mut self, now: Micros, path: &PathEstimate) {
        let Some(step_up) = self.step_up else { return };
        let more_loss = u64::from(path.loss) * 3 > u64::from(step_up.loss) * 4;
        if more_loss && path.srtt > step_up.srtt / 4 * 5 {
            self.step_up = None;
            self.congested_until = now.add_micros(CONGESTION_PAUSE);
        } else if now.since(step_up.at) >= EFFECT_WITHIN {
            self.step_up = None;
        }
    }

    /// Decides about FEC, after [`Self::decide`].
    pub(crate) fn decide_fec(&mut self, now: Micros, path: &PathEstimate, state: &FecState) {
        let SentTotals { data_bytes, segments, .. } = self.recent;
        let is_whole = !state.halves && data_bytes >= segments.saturating_mul(HALVED_FROM);
        let factor = if state.may_halve && is_whole { 2 } else { 1 };
        let flow = FecFlow {
            peer_decodes: state.peer_decodes,
            is_configured: state.is_configured,
            step: self.step,
            mean_loss: path.mean_loss,
            observed: self.totals.segments.saturating_sub(state.in_flight),
            lost: state.lost,
            segments_per_rtt: factor * self.per_second(segments) * path.srtt / MILLION,
        };
        self.update_fec_trial(now);
        let measured = self.retransmitted();
        let expected = measured.min(u64::from(path.loss) / 2);
        let is_trial = self.fec_trial_until.is_some_and(|until| now < until);
        let mut fec = std::mem::take(&mut self.fec);
        fec.update(now, &flow, |wanted| {
            let within = |retransmitted| {
                let limits = (FEC_RESERVE, retransmitted);
                to_rate(self.within_limits(path, limits, wanted.into(), wanted.into()))
            };
            // Much less parity than is wanted would not do.
            let tried = within(expected);
            let suffices = u64::from(tried) * 100 >= u64::from(wanted) * FEC_TRIAL_LEAST;
            if is_trial && suffices { tried } else { within(measured) }
        });
        self.fec = fec;
    }

    fn update_fec_trial(&mut self, now: Micros) {
        if !self.fec.plan().is_on || self.step == 0 {
            self.fec_trial_until = None;
        } else if self.fec_trial_until.is_none_or(|until| now.since(until) >= FEC_TRIAL_PAUSE) {
            self.fec_trial_until = Some(now.add_micros(FEC_TRIAL));
        }
    }

    /// The rate of repair symbols of the step, as far as the limits admit it.
    fn repair_rate(&self, path: &PathEstimate) -> u32 {
        let wanted = STEPS.get(self.step).map_or(0, |(_, rate)| u64::from(*rate));
        if self.recent.data_bytes == 0 || self.recent.segments == 0 {
            return to_rate(wanted);
        }
        let limits = (RESERVE, self.retransmitted());
        let rate = self.within_limits(path, limits, wanted, MILLION);
        // A symbol behind each segment is worth its bytes at any distance.
        let symbols_per_second = self.per_second(self.recent.segments) * rate / MILLION;
        if rate < MILLION && symbols_per_second * path.srtt < MILLION {
            return 0;
        }
        to_rate(rate)
    }

    /// The part of `wanted` bytes per million bytes of first transmissions that the limits admit;
    /// within the floor up to `most`. `reserve` in per mille of the overhead, `retransmitted` per
    /// million.
    fn within_limits(
        &self,
        path: &PathEstimate,
        (reserve, retransmitted): (u64, u64),
        wanted: u64,
        most: u64,
    ) -> u64 {
        let SentTotals { data_bytes, segments, .. } = self.recent;
        if data_bytes == 0 || segments == 0 {
            return wanted;
        }
        // All shares are of the bytes of first transmissions, headers included.
        let first = data_bytes + segments * path.packet_overhead;
        let limit = u64::from(self.limits.max_overhead_per_mille) * (1_000 - reserve) / 1_000;
        let limit = data_bytes * limit / 1_000;
        let within = limit * 1_000 / (first / 1_000).max(1);
        let mut rate = wanted.min(within.saturating_sub(MILLION + retransmitted));
        if path.has_queue() {
            rate /= 2;
        }
        if self.step > 0 {
            let floor = u64::from(self.limits.floor) * MILLION / self.per_second(first).max(1);
            rate = rate.max(floor.min(most));
        }
        rate
    }

    /// Retransmissions per million segments.
    fn retransmitted(&self) -> u64 {
        self.recent.retransmits * MILLION / self.recent.segments.max(1)
    }

    /// A sum of `recent` as a rate.
    fn per_second(&self, sum: u64) -> u64 {
        sum * (MILLION / INTERVAL) / self.recent_intervals.max(1)
    }
}

fn to_rate(rate: u64) -> u32 {
    u32::try_from(rate).unwrap_or(u32::MAX)
}

impl SentTotals {
    fn add(&mut self, before: Self, now: Self) {
        self.data_bytes += now.data_bytes.saturating_sub(before.data_bytes) * SCALE;
        self.segments += now.segments.saturating_sub(before.segments) * SCALE;
        self.retransmits += now.retransmits.saturating_sub(before.retransmits) * SCALE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const RTT: u64 = 50_000;

    /// A flow of a message per millisecond, and a controller.
    struct Flow {
        controller: ProtectionController,
        now: u64,
        totals: SentTotals,
        message: u64,
        per_interval: u64,
        /// Segments that are lost, times a million.
        lost: u64,
        /// The rate of bundled copies, if the peer takes no repair symbols.
        bundling: Option<u32>,
    }

    impl Flow {
        fn new(limits: AutoProtection) -> Self {
            let controller = ProtectionController::new(limits, Micros(0));
            let totals = SentTotals::default();
            let bundling = None;
            Self {
                controller,
                now: 0,
                totals,
                message: 1_024,
                per_interval: 100,
                lost: 0,
                bundling,
            }
        }

        /// Runs with this loss per million, a quarter of which is retransmitted, and RTT.
        fn run(&mut self, time: u64, loss: u32, srtt: u64) -> u32 {
            for _ in 0..time / INTERVAL {
                self.now += INTERVAL;
                self.totals.segments += self.per_interval;
                self.totals.data_bytes += self.per_interval * self.message;
                self.lost += self.per_interval * u64::from(loss);
                self.totals.retransmits = self.lost / MILLION / 4;
                let path = PathEstimate {
                    loss,
                    mean_loss: loss,
                    srtt,
                    min_rtt: RTT,
                    rttvar: 1_000,
                    packet_overhead: 52,
                };
                assert!(self.controller.is_due(Micros(self.now)));
                self.controller.decide(Micros(self.now), &path, self.totals);
                if let Some(rate) = &mut self.bundling {
                    *rate = self.controller.decide_bundling(&path);
                }
            }
            self.controller.rate()
        }
    }

    #[test]
    fn bundled_copies_are_of_all_segments_or_none_and_end_for_a_moment_each_minute() {
        let mut flow = Flow::new(AutoProtection::new().max_overhead(3.0));
        (flow.message, flow.per_interval, flow.bundling) = (100, 6, Some(0));
        flow.run(10 * SECOND, 0, RTT);
        assert_eq!(flow.bundling, Some(0), "no loss");
        flow.run(SECOND, 50_000, RTT);
        assert!(flow.bundling.is_some_and(|rate| rate > BUNDLING_LEAST), "{:?}", flow.bundling);
        // Copies hide the losses.
        flow.run(59 * SECOND, 0, RTT);
        assert!(flow.bundling.is_some_and(|rate| rate > BUNDLING_LEAST), "{:?}", flow.bundling);
        flow.run(2 * SECOND, 0, RTT);
        assert_eq!(flow.bundling, Some(0));

        let mut flow = Flow::new(AutoProtection::new());
        (flow.message, flow.per_interval, flow.bundling) = (100, 6, Some(0));
        flow.run(10 * SECOND, 50_000, RTT);
        assert_eq!(flow.bundling, Some(0), "the limit admits too few");
    }

    #[test]
    fn protection_rises_after_a_round_trip_and_falls_a_step_in_ten_seconds() {
        let mut flow = Flow::new(AutoProtection::new());
        assert_eq!(flow.run(SECOND, 0, RTT), 50_000);
        assert_eq!(flow.run(INTERVAL, 100_000, RTT), 50_000, "reordering, perhaps");
        assert_eq!(flow.run(INTERVAL, 0, RTT), 50_000, "it was");
        let protected = flow.run(2 * INTERVAL, 100_000, RTT);
        assert!((350_000..=500_000).contains(&protected), "{protected}");
        // Rises that come one by one are all followed.
        let mut rising = Flow::new(AutoProtection::new());
        for loss in [4_000, 30_000, 100_000, 100_000] {
            rising.run(INTERVAL, loss, RTT);
        }
        assert_eq!(rising.controller.step, 3);
        flow.run(9 * SECOND, 0, RTT);
        assert_eq!(flow.controller.step, 3, "not yet");
        assert_eq!(flow.run(SECOND + INTERVAL, 0, RTT), 400_000);
        assert_eq!(flow.run(30 * SECOND, 0, RTT), 50_000);
    }

    #[test]
    fn protection_and_retransmissions_stay_within_the_overhead() {
        for (ratio, expected) in [(1.1, 0_u32), (1.3, 181_000), (1.5, 370_000), (3.0, 600_000)] {
            let mut flow = Flow::new(AutoProtection::new().max_overhead(ratio).floor(0));
            let rate = flow.run(20 * SECOND, 200_000, RTT);
            assert!(rate.abs_diff(expected) <= 10_000, "{ratio}: {rate}");
            let wire = 1.051 * (1.0 + f64::from(rate) / 1e6 + 0.05);
            assert!(wire <= ratio + 0.01, "{ratio}: {wire}");
        }
    }

    #[test]
    fn protection_of_a_slow_flow_has_a_floor_and_only_with_loss() {
        let mut flow = Flow::new(AutoProtection::new().max_overhead(1.15));
        (flow.message, flow.per_interval) = (100, 1);
        assert_eq!(flow.run(10 * SECOND, 0, RTT), 0, "headers take more than the limit");
        // 1,520 bytes a second with their headers.
        assert_eq!(flow.run(SECOND, 50_000, RTT), 1_000_000);
    }

    #[test]
    fn protection_that_comes_later_than_a_retransmission_is_none() {
        let mut flow = Flow::new(AutoProtection::new());
        flow.per_interval = 10;
        assert_eq!(flow.run(10 * SECOND, 0, RTT), 0, "a symbol in 200 ms");
        assert!(flow.run(SECOND, 50_000, RTT) > 300_000);
        flow.per_interval = 2;
        assert_eq!(flow.run(60 * SECOND, 50_000, RTT), 0, "a symbol in 125 ms");
    }

    #[test]
    fn protection_halves_while_a_queue_shows() {
        let mut flow = Flow::new(AutoProtection::new());
        let rate = flow.run(SECOND, 50_000, RTT);
        assert_eq!(flow.run(SECOND, 50_000, 2 * RTT), rate / 2);
    }

    #[test]
    fn loss_that_rises_with_protection_and_a_queue_is_congestion() {
        for losses in [[10_000, 30_000, 90_000], [250_000, 300_000, 400_000]] {
            let mut flow = Flow::new(AutoProtection::new());
            flow.run(SECOND, 0, RTT);
            assert!(flow.run(2 * INTERVAL, losses[0], RTT) > 50_000);
            flow.run(2 * INTERVAL, losses[1], RTT);
            assert!(flow.run(2 * INTERVAL, losses[2], 2 * RTT) <= 50_000);
            assert!(flow.run(29 * SECOND, losses[2], RTT) <= 50_000);
            assert!(flow.run(2 * SECOND, losses[2], RTT) > 50_000);
        }
        // Without a longer round trip it is that of the path, and so it is where the round trip was
        // longer before.
        for srtt in [RTT, RTT / 2 * 3] {
            let mut flow = Flow::new(AutoProtection::new());
            for loss in [10_000, 30_000, 90_000, 250_000] {
                flow.run(2 * INTERVAL, loss, srtt);
            }
            assert!(flow.run(SECOND, 250_000, RTT) > 50_000);
        }
    }

    #[test]
    fn parity_has_a_trial_although_retransmissions_leave_no_bytes_for_it() {
        let mut flow = Flow::new(AutoProtection::new().max_overhead(1.6));
        let state = FecState {
            peer_decodes: true,
            is_configured: true,
            may_halve: false,
            halves: false,
            in_flight: 0,
            lost: 0,
        };
        let mut trials = 0;
        for _ in 0..90 {
            // Four copies of each segment that is lost.
            flow.totals.retransmits += 400;
            flow.totals.segments += 1_000;
            flow.totals.data_bytes += 1_000 * flow.message;
            flow.now += SECOND;
            let path = PathEstimate {
                loss: 100_000,
                mean_loss: 100_000,
                srtt: RTT,
                min_rtt: RTT,
                rttvar: 1_000,
                packet_overhead: 52,
            };
            flow.controller.decide(Micros(flow.now), &path, flow.totals);
            flow.controller.decide_fec(Micros(flow.now), &path, &state);
            trials += u32::from(flow.controller.fec_plan().rate > 300_000);
        }
        assert!((18..=24).contains(&trials), "two trials of 10 s in 90 s: {trials}");
    }

    #[test]
    fn pauses_of_any_length_are_taken() {
        let mut flow = Flow::new(AutoProtection::new());
        flow.run(SECOND, 50_000, RTT);
        let before = flow.controller.rate();
        flow.now += 1_000_000 * SECOND;
        flow.run(2 * SECOND, 50_000, RTT);
        assert!(flow.controller.rate().abs_diff(before) < 20_000);
    }
}
