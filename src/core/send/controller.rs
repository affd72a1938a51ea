//! How many repair symbols leave: a rate chosen by the measured loss, within the limits of
//! [`AutoRedundancy`]. WebRTC's FEC controller chooses by loss and round trip in the same way.
//!
//! The rate rises once the loss has lasted for a round trip, and falls one step in [`LOWER_AFTER`].
//! The share of repair symbols and retransmissions together stays below the limit, or where the
//! retransmissions of a flow without repair symbols would exceed that, below what those would take:
//! what retransmissions take is [measured](Overhead), so the better the repair symbols do, the more of
//! them may leave. Where so many retransmissions leave that none of the repair symbols may that would
//! make them unnecessary, a trial shows whether these do. Where they would leave further apart than a
//! round trip, none does: a retransmission arrives as soon. Repair symbols fill queues as data does: while one shows, half as many leave, and where
//! loss and round trip rise after a step up, the loss is congestion, and for a while none but the
//! least leave.

use crate::config::AutoRedundancy;
use crate::core::clock::Micros;
use crate::core::send::overhead::{INTERVAL, Overhead, SentTotals, Share};
use crate::core::send::redundant::expected_retransmits;

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
/// How long the loss has to ask for a lower step, microseconds.
const LOWER_AFTER: u64 = 10_000_000;
/// A rise of the loss within this time of a step up may be due to it, microseconds.
const EFFECT_WITHIN: u64 = 2_000_000;
/// How long congestion keeps the rate at the lowest step, microseconds.
const CONGESTION_PAUSE: u64 = 30_000_000;
/// Reserve below the limit, per mille of it, for what is not known when a decision is made.
const RESERVE: u64 = 5;
/// Least part of the wanted repair symbols for a trial, percent.
const TRIAL_LEAST: u64 = 80;
/// Time between trials of repair symbols, microseconds: it doubles while they fail.
const REPAIR_TRIAL_PAUSE: std::ops::RangeInclusive<u64> = 60_000_000..=960_000_000;
const MILLION: u64 = 1_000_000;

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
pub(crate) struct RedundancyController {
    limits: AutoRedundancy,
    /// Index in [`STEPS`].
    step: usize,
    /// Since when the loss asks for a higher step, and for the least one in this time.
    higher_since: Option<(Micros, usize)>,
    /// Since when the loss asks for a lower step.
    lower_since: Option<Micros>,
    decided_at: Micros,
    overhead: Overhead,
    step_up: Option<StepUp>,
    congested_until: Micros,
    /// Bytes of repair symbols per million bytes of data.
    rate: u32,
    /// Bundled copies are sent.
    bundles: bool,
    /// When the latest trial of repair symbols began, and how long none does after that.
    repair_trial: Option<Micros>,
    repair_trial_pause: u64,
}

impl RedundancyController {
    /// Starts with the lowest step.
    pub(crate) fn new(limits: AutoRedundancy, now: Micros) -> Self {
        Self {
            limits,
            step: 0,
            higher_since: None,
            lower_since: None,
            decided_at: now,
            overhead: Overhead::default(),
            step_up: None,
            congested_until: Micros(0),
            rate: STEPS.first().map_or(0, |(_, rate)| *rate),
            bundles: false,
            repair_trial: None,
            repair_trial_pause: *REPAIR_TRIAL_PAUSE.start(),
        }
    }

    /// Decides about bundled copies to a peer that takes neither repair symbols nor FEC: bytes of
    /// them per million bytes of data. All segments are copied, or enough to make a difference,
    /// while there are losses.
    pub(crate) fn decide_bundling(&mut self, path: &PathEstimate) -> u32 {
        let share = Share::up_to(MILLION, RESERVE, self.overhead.retransmitted());
        let rate = to_rate(self.within_limits(path, share));
        self.bundles = self.step > 0 && rate >= BUNDLING_LEAST;
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

    /// Decides again. `takes_repair`: the peer accepts repair symbols. Returns their rate if it has
    /// changed.
    pub(crate) fn decide(
        &mut self,
        now: Micros,
        path: &PathEstimate,
        totals: SentTotals,
        takes_repair: bool,
    ) -> Option<u32> {
        self.overhead.update(now.since(self.decided_at) / INTERVAL, totals);
        self.decided_at = now;
        let before = self.step;
        self.choose_step(now, path);
        if self.step != before {
            self.repair_trial_pause = *REPAIR_TRIAL_PAUSE.start();
        }
        let rate = self.repair_rate(now, path, takes_repair);
        let has_changed = std::mem::replace(&mut self.rate, rate) != rate;
        has_changed.then_some(rate)
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

    /// The rate of repair symbols of the step, as far as the limits admit it.
    fn repair_rate(&mut self, now: Micros, path: &PathEstimate, takes_repair: bool) -> u32 {
        let wanted = STEPS.get(self.step).map_or(0, |(_, rate)| u64::from(*rate));
        if self.overhead.is_unknown() {
            return to_rate(wanted);
        }
        let measured = self.overhead.retransmitted();
        let rate = self.repair_rate_with(path, wanted, measured);
        if !takes_repair || self.step == 0 || rate >= wanted / 2 {
            return to_rate(rate);
        }
        let expected = measured.min(u64::from(path.loss) / 2);
        let tried = self.repair_rate_with(path, wanted, expected);
        if tried * 100 < wanted * TRIAL_LEAST || !self.begin_repair_trial(now) {
            return to_rate(rate);
        }
        // What leaves from now on shows whether that was right.
        self.overhead.set_retransmitted(expected);
        to_rate(tried)
    }

    /// Whether a trial of repair symbols begins now.
    fn begin_repair_trial(&mut self, now: Micros) -> bool {
        let pause = self.repair_trial_pause;
        if let Some(began) = self.repair_trial {
            if now.since(began) < pause {
                return false;
            }
            self.repair_trial_pause = (2 * pause).min(*REPAIR_TRIAL_PAUSE.end());
        }
        self.repair_trial = Some(now);
        true
    }

    /// The same if `retransmitted` per million segments are retransmitted.
    fn repair_rate_with(&self, path: &PathEstimate, wanted: u64, retransmitted: u64) -> u64 {
        // The retransmission budget admits no more.
        let instead = expected_retransmits(path.mean_loss).min(MILLION);
        let share =
            Share { most: MILLION, instead, ..Share::up_to(wanted, RESERVE, retransmitted) };
        let rate = self.within_limits(path, share);
        // A symbol behind each segment is worth its bytes at any distance.
        let symbols_per_second = self.overhead.segments_per_second() * rate / MILLION;
        let is_late = rate < MILLION && symbols_per_second * path.srtt < MILLION;
        if is_late { 0 } else { rate }
    }

    fn within_limits(&self, path: &PathEstimate, share: Share) -> u64 {
        let share = Share { is_halved: path.has_queue(), has_floor: self.step > 0, ..share };
        self.overhead.admitted(&self.limits, path.packet_overhead, &share)
    }
}

fn to_rate(rate: u64) -> u32 {
    u32::try_from(rate).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
