//! Controls the rate of repair symbols: the lowest at which few enough messages are late.
//!
//! A message is late if its loss, or the loss of an earlier one, delays it by more than a quarter of a round
//! trip. The [record](LossRecord) of recent losses is replayed with each rate, which accounts for loss rate,
//! bursts, round trip and message rate. The controller takes the cheapest rate that keeps the share of late
//! messages below [`TARGET`]; a path that loses little needs none. If no rate within the limits reaches the
//! target, symbols are sent only if they leave at most a third of the late messages late, at the rate that
//! [`LATE_PRICE`] selects.
//!
//! Symbols fill queues as data does, so none leaves while a queue shows.

use crate::config::AutoRedundancy;
use crate::core::clock::Micros;
use crate::core::redundancy::loss::{LossRecord, Outcome, Replay};

/// Share of messages that may be late, per million.
const TARGET: u64 = 10_000;
/// The same for a replay with symbols, since some leave later than in the replay.
const TARGET_WITH_SYMBOLS: u64 = 6_000;
/// Bytes of redundancy per byte of data that making every message timely is worth.
const LATE_PRICE: u64 = 12;
/// Rates to try are multiples of `RATE_STEP`, bytes of symbols per million bytes of data, up to one symbol
/// per segment.
const RATE_STEP: u64 = 50_000;
const STEPS: u64 = 20;
/// Redundancy allowed regardless of its share, bytes per second: for slow flows and small messages a share
/// would be too little to protect anything.
const FLOOR: u64 = 12_000;
/// Time between two updates, and between two replays, microseconds.
const INTERVAL: u64 = 100_000;
const LONG_INTERVAL: u64 = 1_000_000;
/// Number of losses after which the next update replays too.
const LOSSES: u32 = 4;
/// Least round trip assumed for lateness, microseconds.
const MIN_RTT: u64 = 40_000;
/// The replay covers the segments of this time, microseconds, and at least [`LEAST`] segments.
const RECORD_TIME: u64 = 10_000_000;
const LEAST: u64 = 256;
/// If this number of the latest segments has twice the loss rate, only these count.
const LATEST: u64 = 128;
/// Fewer losses are not judged; among the latest segments, fewer show no change.
const FEWEST_LOSSES: u64 = 4;
const FEWEST_LATEST_LOSSES: u64 = 8;
/// Least rate of bundled copies, per million.
const BUNDLING_LEAST: u64 = 700_000;
/// How long bundling continues without a visible loss, microseconds. Copies hide losses, so it must pause to
/// check whether there still are any.
const BUNDLING_TIME: u64 = 60_000_000;
/// In each interval the flow's means forget 1 / `MEMORY`: they cover about three seconds.
const MEMORY: u64 = 32;
const MILLION: u64 = 1_000_000;

/// Counters since the start of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentTotals {
    /// Payload bytes sent for the first time.
    pub(crate) data_bytes: u64,
    /// Data segments sent for the first time.
    pub(crate) segments: u64,
}

/// State of the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathEstimate {
    /// Smoothed round trip, microseconds.
    pub(crate) srtt: u64,
    /// Microseconds.
    pub(crate) min_rtt: u64,
    /// Variation of the round trip, microseconds (RFC 6298).
    pub(crate) rttvar: u64,
    /// Header bytes of one data packet, from IP on.
    pub(crate) packet_overhead: u64,
    /// Datagrams per retransmission, copies included.
    pub(crate) copies: u64,
    /// Segments neither acknowledged nor lost yet.
    pub(crate) in_flight: u32,
}

impl PathEstimate {
    /// Whether the round trip is more than a quarter above its minimum, and jitter does not explain it.
    fn has_queue(&self) -> bool {
        self.srtt > self.min_rtt / 4 * 5 + 2 * self.rttvar
    }
}

/// The flow over the last seconds: decaying sums, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    data_bytes: u64,
    segments: u64,
    intervals: u64,
}

impl Flow {
    fn update(&mut self, intervals: u64, before: SentTotals, now: SentTotals) {
        let Self { data_bytes, segments, intervals: sum } = self;
        for sum in [data_bytes, segments, sum] {
            // After this many intervals nothing is left of a sum.
            (0..intervals.min(16 * MEMORY)).for_each(|_| *sum -= *sum / MEMORY);
        }
        self.data_bytes += now.data_bytes.saturating_sub(before.data_bytes) * 1_000;
        self.segments += now.segments.saturating_sub(before.segments) * 1_000;
        self.intervals += intervals.min(MEMORY) * 1_000;
    }

    fn is_unknown(&self) -> bool {
        self.data_bytes == 0 || self.segments == 0
    }

    /// Mean time between segments, microseconds, at least 1.
    fn spacing(&self) -> u64 {
        (self.intervals * INTERVAL / self.segments.max(1)).max(1)
    }
}

/// Redundancy controller of one connection.
#[derive(Clone, Debug)]
pub(crate) struct RedundancyController {
    limits: AutoRedundancy,
    flow: Flow,
    totals: SentTotals,
    updated: Micros,
    /// When the record was last replayed, and the record's losses at that time.
    replayed: (Micros, u32),
    /// Bytes of symbols per million bytes of data.
    rate: u32,
    /// Since when the losses have asked for a higher rate, and the lowest of these rates.
    higher_since: Option<(Micros, u32)>,
    /// When the losses last asked for redundancy.
    needed: Option<Micros>,
    /// Whether bundled copies are sent.
    bundles: bool,
}

impl RedundancyController {
    /// Starts without redundancy.
    pub(crate) fn new(limits: AutoRedundancy, now: Micros) -> Self {
        Self {
            limits,
            flow: Flow::default(),
            totals: SentTotals::default(),
            updated: now,
            replayed: (now, 0),
            rate: 0,
            higher_since: None,
            needed: None,
            bundles: false,
        }
    }

    /// Bytes of repair symbols per million bytes of data.
    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    /// Whether [`Self::decide`] is due.
    pub(crate) fn is_due(&self, now: Micros) -> bool {
        now.since(self.updated) >= INTERVAL
    }

    /// Updates the rate. `record`: recent losses; `None` before the first loss.
    pub(crate) fn decide(
        &mut self,
        now: Micros,
        path: &PathEstimate,
        totals: SentTotals,
        record: Option<&LossRecord>,
    ) {
        self.flow.update(now.since(self.updated) / INTERVAL, self.totals, totals);
        (self.updated, self.totals) = (now, totals);
        let losses = record.map_or(0, LossRecord::losses);
        let is_new = losses.wrapping_sub(self.replayed.1) >= LOSSES || self.higher_since.is_some();
        let due = is_new || now.since(self.replayed.0) >= LONG_INTERVAL;
        if path.has_queue() {
            (self.rate, self.higher_since) = (0, None);
        } else if due && !self.flow.is_unknown() {
            self.replayed = (now, losses);
            let wanted = record.map_or(0, |record| self.wanted_rate(path, record));
            if wanted > 0 {
                self.needed = Some(now);
            }
            self.rate = self.lasting(now, path, wanted);
        }
    }

    /// Accepts a lower rate at once, and a higher one after it has been wanted for a round trip: within that
    /// time the ACKs of reordered segments show that they were not lost.
    fn lasting(&mut self, now: Micros, path: &PathEstimate, wanted: u32) -> u32 {
        if wanted <= self.rate {
            self.higher_since = None;
            return wanted;
        }
        let (since, least) = self.higher_since.unwrap_or((now, wanted));
        let least = least.min(wanted);
        self.higher_since = Some((since, least));
        if now.since(since) < path.srtt.max(1) {
            return self.rate;
        }
        self.higher_since = None;
        least
    }

    /// The cheapest rate that meets the target within the limits, else the one worth its bytes.
    fn wanted_rate(&self, path: &PathEstimate, record: &LossRecord) -> u32 {
        let spacing = self.flow.spacing();
        let Some(count) = counted(record, path.in_flight, (RECORD_TIME / spacing).max(LEAST))
        else {
            return 0;
        };
        let replay = |rate: u64| {
            let late = path.srtt.max(MIN_RTT) / 4 / spacing;
            // Retransmissions wait for symbols.
            let held = if rate > 0 { path.srtt / 2 } else { 0 };
            let retransmitted = (path.srtt + held) / spacing + 1;
            record.replay(path.in_flight, count, &Replay { rate, late, retransmitted })
        };
        let none = replay(0);
        let share = |count: u64| count * MILLION / none.segments.max(1);
        if share(none.late) <= TARGET {
            return 0;
        }
        let cost = |rate: u64, outcome: &Outcome| {
            // Symbols replace one copy.
            let copies = if rate > 0 { path.copies.saturating_sub(1).max(1) } else { path.copies };
            MILLION + rate + copies * share(outcome.retransmitted)
        };
        let price =
            |rate: u64, outcome: &Outcome| cost(rate, outcome) + LATE_PRICE * share(outcome.late);
        // Symbols further apart than a round trip arrive later than retransmissions.
        let is_late = |rate: u64| rate < MILLION && rate * path.srtt / spacing < MILLION;
        let (limit, floor) = (self.limit(path).max(cost(0, &none)), self.floor(path));
        let (mut best, mut least) = (0, price(0, &none));
        let (mut before, mut spent) = (0, cost(0, &none));
        for step in 1..=STEPS {
            let mut rate = step * RATE_STEP;
            if is_late(rate) {
                continue;
            }
            let mut outcome = replay(rate);
            let is_last = cost(rate, &outcome) > limit && rate > floor;
            if is_last {
                // Use the rest of the limit.
                rate = (before + limit.saturating_sub(spent)).max(floor).min(rate);
                if is_late(rate) {
                    break;
                }
                outcome = replay(rate);
            }
            if share(outcome.late) <= TARGET_WITH_SYMBOLS {
                return to_rate(rate);
            }
            let price = price(rate, &outcome);
            if price < least && outcome.late * 3 <= none.late {
                (best, least) = (rate, price);
            }
            if is_last {
                break;
            }
            (before, spent) = (rate, cost(rate, &outcome));
        }
        to_rate(best)
    }

    /// Limit in bytes per million bytes of first transmissions, headers included.
    fn limit(&self, path: &PathEstimate) -> u64 {
        let first = self.flow.data_bytes + self.flow.segments * path.packet_overhead;
        let limit = u64::from(self.limits.max_overhead_per_mille) * self.flow.data_bytes;
        limit * 1_000 / first.max(1)
    }

    /// [`FLOOR`] in bytes per million bytes of data.
    fn floor(&self, path: &PathEstimate) -> u64 {
        let first = self.flow.data_bytes + self.flow.segments * path.packet_overhead;
        let per_second = first * (MILLION / INTERVAL) / self.flow.intervals.max(1);
        FLOOR * MILLION / per_second.max(1)
    }

    /// Decides about bundled copies to a peer that accepts neither repair symbols nor FEC, after
    /// [`Self::decide`]: bytes of copies per million bytes of data. While losses ask for it, all segments are
    /// copied, or at least enough to make a difference.
    pub(crate) fn decide_bundling(&mut self, now: Micros, path: &PathEstimate) -> u32 {
        let within = self.limit(path).saturating_sub(MILLION).max(self.floor(path)).min(MILLION);
        let time = if self.bundles { BUNDLING_TIME } else { LONG_INTERVAL };
        let is_needed = self.needed.is_some_and(|needed| now.since(needed) <= time);
        self.bundles = is_needed && within >= BUNDLING_LEAST && !path.has_queue();
        if self.bundles { to_rate(within) } else { 0 }
    }
}

/// How many of the latest segments to replay, at most `most`; `None` while too few were lost.
fn counted(record: &LossRecord, in_flight: u32, most: u64) -> Option<u64> {
    let (lost, segments) = record.lost(in_flight, most);
    let (latest_lost, latest) = record.lost(in_flight, LATEST);
    let is_rising =
        latest_lost >= FEWEST_LATEST_LOSSES && latest_lost * segments > 2 * lost * latest;
    let count = if is_rising { LATEST } else { most };
    (lost >= FEWEST_LOSSES || is_rising).then_some(count)
}

fn to_rate(rate: u64) -> u32 {
    u32::try_from(rate).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
