//! Seeded traces with the mean, spread and gaps of recorded ones, so that tests need no recordings.
//! Integers only: a seed gives the same trace on every machine.

use super::{DELAY_STEP_MS, DelayTrace, OPPORTUNITY, Trace};
use crate::testkit::rng::Rng;

/// Both traces of one satellite link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Satellite {
    pub rate: Trace,
    pub delay: DelayTrace,
}

/// A rate model: a walk over `levels` that is equally often at each.
struct Model {
    /// kbit/s, rising.
    levels: &'static [u64],
    /// How long a level lasts, in ms.
    hold: [u64; 2],
    /// Share of the milliseconds that the scheduler serves, in ppm.
    served: u32,
    /// Holes by the scheduler: their probability per ms in ppm, and their length in ms.
    hole: u32,
    hole_ms: [u64; 2],
    /// Outages: their probability per level in ppm.
    outage: u32,
}

/// Most levels that the rate moves in one change.
const STEP: u64 = 3;
/// Time between handovers of a satellite link, in ms.
const HANDOVER_MS: u64 = 15_000;

const LTE: Model = Model {
    levels: &[
        200, 5_000, 9_000, 11_500, 14_000, 16_000, 18_500, 21_500, 25_000, 30_000, 38_000, 60_000,
    ],
    hold: [20, 500],
    served: 320_000,
    hole: 5_000,
    hole_ms: [15, 45],
    outage: 8_000,
};

const DRIVE: Model = Model {
    levels: &[200, 1_300, 2_200, 3_000, 3_600, 4_200, 4_900, 5_600, 6_600, 8_000, 11_000, 20_000],
    hold: [20, 700],
    served: 350_000,
    hole: 3_000,
    hole_ms: [15, 60],
    outage: 90_000,
};

const SATELLITE: Model = Model {
    levels: &[
        33_000, 36_000, 39_000, 41_000, 43_500, 46_000, 48_500, 51_000, 54_000, 57_000, 61_000,
        67_000,
    ],
    hold: [20, 500],
    served: 330_000,
    hole: 0,
    hole_ms: [0, 0],
    outage: 0,
};

impl Trace {
    /// A phone at rest in an LTE cell: 16 Mbit/s on average, 0.2 to 60 Mbit/s, with holes of some 10 ms
    /// and few outages.
    #[must_use]
    pub fn lte(seed: u64, seconds: u32) -> Self {
        generate(&LTE, seed, seconds, |_| false)
    }

    /// A phone in a car: 5 Mbit/s on average, deep fades, and outages of 0.2 to 3 s.
    #[must_use]
    pub fn drive(seed: u64, seconds: u32) -> Self {
        generate(&DRIVE, seed, seconds, |_| false)
    }

    /// A satellite link that changes its satellite every 15 s: 50 Mbit/s on average; at each change
    /// nothing passes for 40 to 130 ms, and the delay rises by 10 to 25 ms for a moment.
    #[must_use]
    pub fn satellite(seed: u64, seconds: u32) -> Satellite {
        let mut rng = Rng::keyed(seed, 1);
        let length = u64::from(seconds) * 1_000;
        // Outages, from and until.
        let outages: Vec<_> = (1..=length.div_ceil(HANDOVER_MS))
            .map(|number| number * HANDOVER_MS - HANDOVER_MS / 2)
            .map(|from| from..from + rng.range(40, 130))
            .collect();
        let rate = generate(&SATELLITE, seed, seconds, |ms| {
            outages.get((ms / HANDOVER_MS) as usize).is_some_and(|outage| outage.contains(&ms))
        });
        let mut base = 9;
        let (mut extra, mut extra_ends) = (0, 0);
        let mut delays = Vec::new();
        for ms in (0..length.max(DELAY_STEP_MS)).step_by(DELAY_STEP_MS as usize) {
            if ms % HANDOVER_MS == HANDOVER_MS / 2 {
                // The next satellite is at another distance.
                base = rng.range(8, 11);
                (extra, extra_ends) = (rng.range(10, 25), ms + rng.range(60, 140));
            }
            let extra = if ms < extra_ends { extra } else { 0 };
            delays.push((base + extra + rng.below(3) + rng.below(2)) as u32);
        }
        Satellite { rate, delay: DelayTrace { delays: delays.into(), offset: 0 } }
    }
}

/// A trace of this model without opportunities in the milliseconds that `cut` selects.
fn generate(model: &Model, seed: u64, seconds: u32, cut: impl Fn(u64) -> bool) -> Trace {
    let mut rng = Rng::new(seed);
    let end = u64::from(seconds.clamp(1, 3_600)) * 1_000;
    let levels = model.levels.len() as u64;
    let mut level = rng.below(levels);
    let (mut hold_ends, mut blocked_until) = (0, 0);
    // Bits accumulated by the radio until the scheduler serves.
    let mut bits = 0;
    let mut times = Vec::new();
    for ms in 1..=end {
        if ms > hold_ends {
            hold_ends = ms + rng.range(model.hold[0], model.hold[1]);
            level = walk(level, rng.below(2 * STEP + 1), levels);
            if rng.chance(model.outage) {
                blocked_until = ms + (200 + rng.exponential(300)).min(3_000);
            }
        }
        let served = rng.chance(model.served);
        if rng.chance(model.hole) {
            blocked_until = blocked_until.max(ms + rng.range(model.hole_ms[0], model.hole_ms[1]));
        }
        if ms < blocked_until || cut(ms) {
            bits = 0;
            continue;
        }
        bits += model.levels[level as usize];
        if served {
            let count = bits / (OPPORTUNITY * 8);
            bits -= count * OPPORTUNITY * 8;
            times.extend((0..count).map(|_| ms as u32));
        }
    }
    // The last line is the length.
    times.push(end as u32);
    Trace { times: times.into(), offset: 0 }
}

/// Moves by `step - STEP` levels, reflected at both ends, so that all levels are equally frequent.
fn walk(level: u64, step: u64, levels: u64) -> u64 {
    let (to, below) = (level + step, STEP);
    match to.checked_sub(below) {
        None => below - 1 - to,
        Some(to) if to >= levels => 2 * levels - 1 - to,
        Some(to) => to,
    }
}
