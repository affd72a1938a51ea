//! FEC towards a peer that decodes it and takes no repair symbols: which layout, how much of its
//! parity, and whether at all.
//!
//! kcp-go learns a layout from the datagrams and takes no larger one later. So the layout is chosen
//! once, by a sequential test (Wald) between the losses for which the two layouts are meant, and
//! without any loss the long one, since it may become the short one. Afterwards the number of parity
//! packets depends on the loss.

use crate::core::clock::Micros;
use crate::fec::FecConfig;

/// Weights of a lost segment and of one that arrived, for 10 % against 5 % loss, in thousandths:
/// the logarithms of 10/5 and of 95/90.
const LOST_WEIGHT: i64 = 693;
const ARRIVED_WEIGHT: i64 = 54;
/// Sum of the weights that decides: without a loss after 64 segments. One choice in thirty is wrong.
const DECISIVE: i64 = 64 * ARRIVED_WEIGHT;
/// Segments after which the sum decides by its sign.
const MAX_OBSERVED: u64 = 512;
/// Loss per million above which retransmission copies alone are worth more than parity: FEC begins
/// below the first and ends above the second. Some 14 % of the packets: without FEC lost ACKs count
/// too.
const BEGIN_BELOW: u32 = 140_000;
const END_ABOVE: u32 = 160_000;
/// Losses per million for which the short layout replaces the long one, as they are measured while
/// parity hides a part of them, and how long they have to last, microseconds. The long one cannot
/// come back.
const SHORT_LOSSES: std::ops::Range<u32> = 2_000..35_000;
const SHRINK_AFTER: u64 = 20_000_000;
const MILLION: u64 = 1_000_000;

/// Bytes of parity per million bytes of data packets, by step of the controller.
const SHORT_RATES: [u32; 5] = [0, 166_666, 333_333, 400_000, 400_000];
const LONG_RATES: [u32; 5] = [0, 200_000, 400_000, 420_000, 420_000];

/// FEC for the next groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FecPlan {
    /// The layout chosen; `None` before, and where one was configured.
    pub(crate) layout: Option<FecConfig>,
    /// Whether new data takes places in groups.
    pub(crate) is_on: bool,
    /// Bytes of parity per million bytes of data packets.
    pub(crate) rate: u32,
}

/// A flow as the plan depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FecFlow {
    pub(crate) peer_decodes: bool,
    /// The layout is configured.
    pub(crate) is_configured: bool,
    /// Step of the controller.
    pub(crate) step: usize,
    /// Loss of the last ten seconds, per million.
    pub(crate) mean_loss: u32,
    /// Data segments that were sent and are not in flight, and those of them that were lost.
    pub(crate) observed: u64,
    pub(crate) lost: u64,
    /// Data segments, or halves where they are to be halved, in a round trip.
    pub(crate) segments_per_rtt: u64,
}

/// Chooses the [`FecPlan`] of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct FecPlanner {
    plan: FecPlan,
    /// `observed` and `lost` when the choice of the layout began.
    began: (u64, u64),
    /// Since when the loss is that of the short layout, while the long one is in use.
    low_since: Option<Micros>,
}

impl FecPlanner {
    pub(crate) fn plan(&self) -> FecPlan {
        self.plan
    }

    /// Decides again. `within_limits`: the part of a rate that the limits admit.
    pub(crate) fn update(
        &mut self,
        now: Micros,
        flow: &FecFlow,
        within_limits: impl FnOnce(u32) -> u32,
    ) {
        let is_usable = self.is_usable(flow);
        if is_usable && self.plan.layout.is_none() && !flow.is_configured {
            self.plan.layout = self.choose_layout(flow);
        } else {
            self.began = (flow.observed, flow.lost);
        }
        self.plan.is_on = is_usable && (self.plan.layout.is_some() || flow.is_configured);
        self.shrink(now, flow.mean_loss);
        let rates =
            if self.plan.layout == Some(FecConfig::AUTO_SHORT) { SHORT_RATES } else { LONG_RATES };
        self.plan.rate = within_limits(rates.get(flow.step).copied().unwrap_or(0));
    }

    /// Whether groups fill within about a round trip, so that their parity comes before a
    /// retransmission, and the loss is one that parity recovers.
    fn is_usable(&self, flow: &FecFlow) -> bool {
        let most = if self.plan.is_on { END_ABOVE } else { BEGIN_BELOW };
        let layout = self.plan.layout.unwrap_or(FecConfig::AUTO_SHORT);
        // While it is on, segments of before are not halves yet.
        let share = if self.plan.is_on { 45 } else { 70 };
        let fills = flow.segments_per_rtt * 100 >= layout.data_shards() as u64 * share;
        flow.peer_decodes && flow.mean_loss <= most && fills
    }

    fn choose_layout(&mut self, flow: &FecFlow) -> Option<FecConfig> {
        let (observed, lost) = self.began;
        // An estimate that was dropped begins again with zero.
        let lost = flow.lost.saturating_sub(lost);
        let observed = flow.observed.saturating_sub(observed).max(lost);
        let (arrived, weighed) = (observed - lost, MAX_OBSERVED.max(lost));
        let score = lost.min(weighed).cast_signed() * LOST_WEIGHT
            - arrived.min(u64::from(u32::MAX)).cast_signed() * ARRIVED_WEIGHT;
        if score.abs() < DECISIVE && observed < MAX_OBSERVED {
            return None;
        }
        if lost * MILLION > observed * u64::from(END_ABOVE) {
            self.began = (flow.observed, flow.lost);
            return None;
        }
        let is_short = score <= 0 && lost > 0;
        Some(if is_short { FecConfig::AUTO_SHORT } else { FecConfig::AUTO_LONG })
    }

    /// Changes to the short layout where the long one is too slow for the loss.
    fn shrink(&mut self, now: Micros, mean_loss: u32) {
        let is_long = self.plan.layout == Some(FecConfig::AUTO_LONG);
        let is_low = is_long && SHORT_LOSSES.contains(&mean_loss);
        self.low_since = if is_low { self.low_since.or(Some(now)) } else { None };
        if self.low_since.is_some_and(|since| now.since(since) >= SHRINK_AFTER) {
            self.plan.layout = Some(FecConfig::AUTO_SHORT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::rng::Rng;

    const SECOND: u64 = 1_000_000;

    fn flow(step: usize, loss: u32) -> FecFlow {
        FecFlow {
            peer_decodes: true,
            is_configured: false,
            step,
            mean_loss: loss,
            observed: 0,
            lost: 0,
            segments_per_rtt: 10,
        }
    }

    /// The layout for this loss in percent, and after how many segments it was chosen.
    fn chosen(seed: u64, percent: u64) -> (Option<FecConfig>, u64) {
        let (mut planner, mut rng) = (FecPlanner::default(), Rng::new(seed));
        let mut flow = flow(0, 0);
        for i in 0..5_000 {
            flow.observed += 1;
            flow.lost += u64::from(rng.range(0, 99) < percent);
            planner.update(Micros(i), &flow, |rate| rate);
            if planner.plan().layout.is_some() {
                return (planner.plan().layout, flow.observed);
            }
        }
        (None, flow.observed)
    }

    #[test]
    fn layout_is_chosen_by_the_losses_of_the_first_segments() {
        let count = |percent, layout| {
            let chosen = |seed: &u64| chosen(*seed, percent).0 == layout;
            (1..=200).filter(chosen).count()
        };
        assert_eq!(chosen(1, 0), (Some(FecConfig::AUTO_LONG), 64));
        let counts = [2, 3, 5].map(|percent| count(percent, Some(FecConfig::AUTO_SHORT)));
        println!("short: {counts:?}");
        assert!(counts[0] > 130 && counts[1] > 160 && counts[2] > 180, "{counts:?}");
        let counts = [9, 10, 12].map(|percent| count(percent, Some(FecConfig::AUTO_LONG)));
        println!("long: {counts:?}");
        assert!(counts.iter().all(|count| *count > 180), "{counts:?}");
        assert!((1..=100).all(|seed| chosen(seed, 7).1 <= MAX_OBSERVED));
    }

    #[test]
    fn fec_is_off_where_parity_recovers_too_little_or_too_late() {
        let mut planner = FecPlanner::default();
        let mut state = flow(0, 0);
        (state.observed, state.lost) = (100, 1);
        planner.update(Micros(0), &state, |rate| rate);
        assert!(planner.plan().is_on);
        for (change, is_on) in [
            (flow(4, 161_000), false),
            (flow(4, 141_000), false),
            (flow(3, 139_000), true),
            (flow(4, 159_000), true),
            (FecFlow { segments_per_rtt: 3, ..flow(2, 50_000) }, true),
            (FecFlow { segments_per_rtt: 2, ..flow(2, 50_000) }, false),
            (FecFlow { segments_per_rtt: 4, ..flow(2, 50_000) }, false),
            (FecFlow { segments_per_rtt: 5, ..flow(2, 50_000) }, true),
            (FecFlow { peer_decodes: false, ..flow(2, 50_000) }, false),
        ] {
            planner.update(Micros(0), &change, |rate| rate);
            assert_eq!(planner.plan().is_on, is_on, "{change:?}");
        }
        assert_eq!(planner.plan().layout, Some(FecConfig::AUTO_SHORT));
    }

    #[test]
    fn configured_layout_is_used_at_once_and_kept() {
        let mut planner = FecPlanner::default();
        for (step, rate) in LONG_RATES.into_iter().enumerate() {
            let flow = FecFlow { is_configured: true, ..flow(step, 10_000) };
            planner.update(Micros(0), &flow, |rate| rate / 2);
            let expected = FecPlan { layout: None, is_on: true, rate: rate / 2 };
            assert_eq!(planner.plan(), expected);
        }
    }

    #[test]
    fn long_layout_becomes_the_short_one_after_20_s_of_little_loss_and_never_returns() {
        let mut planner = FecPlanner::default();
        let observed = FecFlow { observed: 100, lost: 12, ..flow(3, 100_000) };
        planner.update(Micros(0), &observed, |rate| rate);
        assert_eq!(planner.plan().layout, Some(FecConfig::AUTO_LONG));
        let mut layout_at = |second: u64, loss| {
            planner.update(Micros(second * SECOND), &flow(2, loss), |rate| rate);
            planner.plan().layout
        };
        // Without any loss the long one waits as well as the short one.
        assert_eq!(layout_at(1_000, 0), Some(FecConfig::AUTO_LONG));
        assert_eq!(layout_at(1_001, 30_000), Some(FecConfig::AUTO_LONG));
        assert_eq!(layout_at(1_010, 80_000), Some(FecConfig::AUTO_LONG));
        assert_eq!(layout_at(1_011, 30_000), Some(FecConfig::AUTO_LONG));
        assert_eq!(layout_at(1_031, 10_000), Some(FecConfig::AUTO_SHORT));
        assert_eq!(layout_at(2_000, 100_000), Some(FecConfig::AUTO_SHORT));
    }
}
