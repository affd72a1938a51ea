//! What a connection sends per byte of data, and what part of it the limits of [`AutoRedundancy`]
//! leave to redundancy.

use crate::config::AutoRedundancy;

/// Time between two decisions, microseconds.
pub(super) const INTERVAL: u64 = 100_000;
/// The sums forget `1 / MEMORY` in each interval: they cover about six seconds.
const MEMORY: u64 = 64;
/// The sums are multiplied by this, so that small ones are forgotten too.
const SCALE: u64 = 1_024;
/// Bytes per second of redundancy that may leave whatever their share is: of slow flows and small
/// messages a share is too little to protect anything.
const FLOOR: u64 = 12_000;
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

impl SentTotals {
    fn add(&mut self, before: Self, now: Self) {
        self.data_bytes += now.data_bytes.saturating_sub(before.data_bytes) * SCALE;
        self.segments += now.segments.saturating_sub(before.segments) * SCALE;
        self.retransmits += now.retransmits.saturating_sub(before.retransmits) * SCALE;
    }
}

/// A kind of redundancy that asks for bytes. All shares are per million bytes of first transmissions,
/// headers included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// What the loss asks for.
    pub(super) wanted: u64,
    /// What the floor may give.
    pub(super) most: u64,
    /// Reserve below the limit, per mille of it.
    pub(super) reserve: u64,
    /// What retransmissions take.
    pub(super) retransmitted: u64,
    /// What retransmissions would take without this redundancy: both together may take as much,
    /// whatever the limit is.
    pub(super) instead: u64,
    /// Only half of it leaves.
    pub(super) is_halved: bool,
    /// The floor counts.
    pub(super) has_floor: bool,
}

impl Share {
    pub(super) fn up_to(wanted: u64, reserve: u64, retransmitted: u64) -> Self {
        let most = wanted;
        Self {
            wanted,
            most,
            reserve,
            retransmitted,
            instead: 0,
            is_halved: false,
            has_floor: false,
        }
    }
}

/// What has left lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Overhead {
    /// At the last decision.
    totals: SentTotals,
    /// What left lately, see [`MEMORY`], and in how many intervals.
    recent: SentTotals,
    recent_intervals: u64,
}

impl Overhead {
    /// `intervals` after the last decision so much has left.
    pub(super) fn update(&mut self, intervals: u64, totals: SentTotals) {
        let SentTotals { data_bytes, segments, retransmits } = &mut self.recent;
        for sum in [data_bytes, segments, retransmits, &mut self.recent_intervals] {
            // Of older sums nothing is left.
            for _ in 0..intervals.min(8 * MEMORY) {
                *sum -= *sum / MEMORY;
            }
        }
        self.recent_intervals += intervals.min(MEMORY) * SCALE;
        self.recent.add(self.totals, totals);
        self.totals = totals;
    }

    /// Whether nothing has left lately.
    pub(super) fn is_unknown(&self) -> bool {
        self.recent.data_bytes == 0 || self.recent.segments == 0
    }

    pub(super) fn segments_per_second(&self) -> u64 {
        self.per_second(self.recent.segments)
    }

    /// Retransmissions per million segments.
    pub(super) fn retransmitted(&self) -> u64 {
        self.recent.retransmits * MILLION / self.recent.segments.max(1)
    }

    /// Takes it that as many were retransmitted, for what left lately.
    pub(super) fn set_retransmitted(&mut self, per_million: u64) {
        self.recent.retransmits = self.recent.segments * per_million / MILLION;
    }

    /// The part of what is wanted that the limits admit, with so many bytes of headers in each packet.
    pub(super) fn admitted(
        &self,
        limits: &AutoRedundancy,
        packet_overhead: u64,
        share: &Share,
    ) -> u64 {
        if self.is_unknown() {
            return share.wanted;
        }
        let SentTotals { data_bytes, segments, .. } = self.recent;
        let first = data_bytes + segments * packet_overhead;
        let limit = u64::from(limits.max_overhead_per_mille) * (1_000 - share.reserve) / 1_000;
        let limit = data_bytes * limit / 1_000;
        let within = limit * 1_000 / (first / 1_000).max(1);
        let redundancy = within.saturating_sub(MILLION).max(share.instead);
        let mut rate = share.wanted.min(redundancy.saturating_sub(share.retransmitted));
        if share.is_halved {
            rate /= 2;
        }
        if share.has_floor {
            let floor = FLOOR * MILLION / self.per_second(first).max(1);
            rate = rate.max(floor.min(share.most));
        }
        rate
    }

    /// A sum of `recent` as a rate.
    fn per_second(&self, sum: u64) -> u64 {
        sum * (MILLION / INTERVAL) / self.recent_intervals.max(1)
    }
}
