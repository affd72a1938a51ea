//! What is sent beside retransmissions so that losses cost no round trip: [repair symbols](rlc) that
//! the [controller] asks for, [bundled copies](bundling), [further copies](copies) of retransmissions,
//! and the [wait](fec_wait) of lost segments for FEC parity.
//!
//! [`Redundancy`] is the part of the sender; `connection/repair.rs` negotiates with the peer
//! ([`hello`]) and runs the controller.

pub(crate) mod bundling;
pub(crate) mod controller;
pub(crate) mod copies;
pub(crate) mod credit;
pub(crate) mod fec_wait;
pub(crate) mod hello;
pub(crate) mod loss_rate;
pub(crate) mod loss_record;
pub(crate) mod repair;
pub(crate) mod rlc;

use crate::core::clock::Micros;
use crate::core::redundancy::bundling::RedundantBundling;
use crate::core::redundancy::copies::RedundantRetransmits;
use crate::core::redundancy::fec_wait::FecCoverage;
use crate::core::redundancy::loss_record::LossRecord;
use crate::core::redundancy::repair::RepairSchedule;
use crate::core::seq::Sn;
use crate::stats::RedundancyStats;

/// Redundancy of one sender; empty while nothing is lost and nothing is set.
#[derive(Debug, Default)]
pub(crate) struct Redundancy {
    /// Loss rate and further copies of retransmissions; `Some` from the first retransmission until
    /// the connection is idle.
    pub(crate) copies: Option<Box<RedundantRetransmits>>,
    /// `Some` once repair symbols were sent.
    pub(crate) repair: Option<Box<RepairSchedule>>,
    /// `Some` once segments were copied into datagrams with newer ones.
    pub(crate) bundling: Option<Box<RedundantBundling>>,
    /// FEC groups whose parity has left; `Some` from the first parity until the connection is idle.
    pub(crate) fec_wait: Option<Box<FecCoverage>>,
}

impl Redundancy {
    /// Whether first transmissions have no effect here.
    pub(crate) fn ignores_new_segments(&self) -> bool {
        self.copies.is_none() && !self.sends_repairs() && self.bundling.is_none()
    }

    /// Whether repair symbols or copies are sent, or were.
    pub(crate) fn is_in_use(&self) -> bool {
        self.repair.is_some() || self.bundling.is_some()
    }

    /// A segment with `len` payload bytes has left for the first time; `nxt` is SND.NXT.
    /// `latency_bound`: the flow is one of messages; others get no redundancy.
    #[inline]
    pub(crate) fn on_new_segment(&mut self, now: Micros, len: usize, nxt: Sn, latency_bound: bool) {
        if let Some(repair) = &mut self.repair {
            repair.on_new_segment(now, len, nxt, latency_bound);
        }
        match &mut self.bundling {
            Some(bundling) if latency_bound => bundling.on_new_segment(now, len),
            Some(bundling) => bundling.skip(nxt),
            None => {}
        }
    }

    /// Estimated loss rate, per million; zero before the first loss.
    pub(crate) fn loss_rate(&self) -> u32 {
        self.copies.as_ref().map_or(0, |copies| copies.loss_rate.per_million())
    }

    /// Estimated loss rate of the last ten seconds alone, per million.
    pub(crate) fn mean_loss_rate(&self) -> u32 {
        self.copies.as_ref().map_or(0, |copies| copies.loss_rate.mean_per_million())
    }

    /// What was lost lately, from the first call on; `nxt` is SND.NXT.
    pub(crate) fn loss_record(&mut self, nxt: Sn) -> Option<&LossRecord> {
        let record = &mut self.copies.as_mut()?.record;
        Some(record.get_or_insert_with(|| LossRecord::new(nxt)))
    }

    /// Copies in which a retransmission leaves.
    pub(crate) fn retransmission_copies(&self) -> u64 {
        1 + self.copies.as_ref().map_or(0, |copies| copies.further_copies().into())
    }

    /// Whether repair symbols are sent.
    pub(crate) fn sends_repairs(&self) -> bool {
        self.repair.as_ref().is_some_and(|repair| !repair.is_off())
    }

    /// Whether a repair symbol with this key has left lately.
    pub(crate) fn has_sent_repair(&self, key: u32) -> bool {
        self.repair.as_ref().is_some_and(|repair| repair.has_sent(key))
    }

    /// Whether [`Self::add_stats`] would add something.
    pub(crate) fn has_stats(&self) -> bool {
        self.copies.is_some() || self.repair.is_some() || self.bundling.is_some()
    }

    /// Adds the counters of repair symbols and copies, and the loss rate.
    pub(crate) fn add_stats(&self, stats: &mut RedundancyStats) {
        stats.loss_per_million = self.loss_rate();
        if let Some(repair) = &self.repair {
            let (sent, bytes) = repair.sent();
            stats.repair_per_mille = repair.rate() / 1_000;
            stats.repair_symbols_sent = sent;
            stats.redundant_bytes_sent += bytes;
            stats.recovered_by_peer_segments = repair.recovered_count;
        }
        if let Some(bundling) = &self.bundling {
            let (copies, bytes) = bundling.sent();
            stats.bundling_per_mille = bundling.rate() / 1_000;
            stats.bundled_copies = copies;
            stats.redundant_bytes_sent += bytes;
        }
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        (self.copies.is_some() && !self.is_in_use())
            || self.repair.as_ref().is_some_and(|repair| repair.has_reclaimable_memory())
            || self.bundling.as_ref().is_some_and(|bundling| bundling.has_reclaimable_memory())
            || self.fec_wait.is_some()
    }

    /// Frees what an idle connection does not need. The loss rate outlives an idle time where redundancy
    /// depends on it: the next burst meets the same path.
    pub(crate) fn release_memory(&mut self) {
        if let Some(repair) = &mut self.repair {
            repair.release_memory();
        }
        if !self.is_in_use() {
            self.copies = None;
        } else if let Some(copies) = &mut self.copies {
            copies.release_memory();
        }
        if let Some(bundling) = &mut self.bundling {
            bundling.release_memory();
        }
        self.fec_wait = None;
    }
}
