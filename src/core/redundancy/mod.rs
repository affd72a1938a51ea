//! Redundancy, so that losses cost no round trip: [repair symbols](rlc) at the rate of the [controller],
//! [bundled copies](bundling), [copies] of retransmissions, and the wait of lost segments for
//! any of these and for FEC parity.
//!
//! [`Redundancy`] is one field of the sender. It sees the segments in flight ([`InFlight`]) and changes only
//! itself; the sender carries out its decisions (`send/retransmission.rs`). `connection/repair.rs`
//! negotiates with the peer ([`hello`]) and runs the controller.

pub(crate) mod bundling;
pub(crate) mod controller;
pub(crate) mod copies;
pub(crate) mod fec_wait;
pub(crate) mod hello;
pub(crate) mod loss;
pub(crate) mod repair;
pub(crate) mod rlc;

use crate::core::clock::Micros;
use crate::core::recovery::loss::{LossDetector, LossTrigger};
use crate::core::recovery::rtt::RttEstimator;
use crate::core::recovery::sent::{SentSegment, SentSegments};
use crate::core::redundancy::bundling::RedundantBundling;
use crate::core::redundancy::copies::RedundantRetransmits;
use crate::core::redundancy::fec_wait::FecCoverage;
use crate::core::redundancy::loss::LossRecord;
use crate::core::redundancy::repair::{RedundancyCredit, RepairSchedule};
use crate::core::seq::{Sn, Ts};
use crate::stats::RedundancyStats;

/// Most segments of a group that are inspected to count its losses.
const MAX_INSPECTED: usize = 64;
/// Most groups awaiting parity that are passed to find the next loss.
const MAX_GROUPS_PASSED: usize = 4;

/// When a segment counts as lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentLoss {
    pub(crate) sn: Sn,
    pub(crate) at: Micros,
    pub(crate) trigger: LossTrigger,
    /// If it waits for parity: transmission order of the last segment of its group.
    awaited: Option<u64>,
}

/// The segments in flight, and when they count as lost.
#[derive(Debug)]
pub(crate) struct InFlight<'a> {
    pub(crate) sent: &'a SentSegments,
    pub(crate) rtt: &'a RttEstimator,
    pub(crate) loss: &'a LossDetector,
}

impl InFlight<'_> {
    /// See [`LossDetector::lost_at`].
    fn lost_at(&self, segment: &SentSegment, no_new_data: bool) -> (Micros, LossTrigger) {
        self.loss.lost_at(segment, self.rtt, self.sent.len(), no_new_data)
    }

    /// See [`LossDetector::ack_wait`].
    fn ack_wait(&self) -> u64 {
        self.loss.ack_wait(self.rtt)
    }
}

/// Redundancy of one sender; empty while nothing is lost and no redundancy is configured.
#[derive(Debug, Default)]
pub(crate) struct Redundancy {
    /// Loss rate and copies of retransmissions; `Some` from the first retransmission until the connection is
    /// idle.
    pub(crate) copies: Option<Box<RedundantRetransmits>>,
    /// `Some` once a repair symbol rate was set.
    pub(crate) repair: Option<Box<RepairSchedule>>,
    /// `Some` once a bundling rate was set.
    pub(crate) bundling: Option<Box<RedundantBundling>>,
    /// FEC groups with sent parity; `Some` from the first parity until the connection is idle.
    pub(crate) fec_wait: Option<Box<FecCoverage>>,
}

impl Redundancy {
    /// Whether first transmissions have no effect here.
    pub(crate) fn ignores_new_segments(&self) -> bool {
        self.copies.is_none() && !self.sends_repairs() && self.bundling.is_none()
    }

    /// Whether repair symbols or bundled copies are sent, or were.
    pub(crate) fn is_in_use(&self) -> bool {
        self.repair.is_some() || self.bundling.is_some()
    }

    /// A segment with `len` payload bytes left for the first time; `nxt` is SND.NXT. `latency_bound`: this is
    /// a message flow; other flows get no redundancy.
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

    /// Sets the rate of repair symbols, bytes per million bytes of data; 0 sends none, but remembers those
    /// sent. `key` draws the first repair key; `nxt` is SND.NXT.
    pub(crate) fn set_repair_rate(&mut self, per_million: u32, nxt: Sn, key: impl FnOnce() -> u32) {
        let rate = per_million.min(RedundancyCredit::MAX_RATE);
        match &mut self.repair {
            Some(repair) => repair.set_rate(rate, nxt),
            None if rate == 0 => {}
            None => self.repair = Some(Box::new(RepairSchedule::new(rate, key(), nxt))),
        }
    }

    /// Sets the rate of copies in datagrams with newer segments, bytes per million bytes of data; 0: none.
    /// `nxt` is SND.NXT.
    pub(crate) fn set_bundling_rate(&mut self, per_million: u32, nxt: Sn) {
        let rate = per_million.min(RedundancyCredit::MAX_RATE);
        match &mut self.bundling {
            Some(bundling) => bundling.set_rate(rate, nxt),
            None if rate == 0 => {}
            None => self.bundling = Some(Box::new(RedundantBundling::new(rate, nxt))),
        }
    }

    /// The loss estimate and the copies; created by the first loss.
    pub(crate) fn copies_from(&mut self, now: Micros) -> &mut RedundantRetransmits {
        self.copies.get_or_insert_with(|| Box::new(RedundantRetransmits::new(now)))
    }

    /// Whether a bundled copy of `sn` left with this timestamp.
    #[inline]
    pub(crate) fn is_bundled_copy(&self, sn: Sn, ts: Ts) -> bool {
        self.bundling.as_ref().is_some_and(|bundling| bundling.is_copy(sn, ts))
    }

    /// Copies of a retransmission that repair symbols replace, since these cover it too. None if losses come
    /// in bursts, or if no repair symbol left within a round trip. `rtt` in microseconds.
    #[inline]
    pub(crate) fn copies_saved_by_repairs(&self, now: Micros, rtt: u64) -> u8 {
        let Some(repair) = &self.repair else { return 0 };
        let independent = self.copies.as_ref().is_some_and(|copies| !copies.loses_in_bursts());
        u8::from(independent && repair.has_sent_within(now, rtt))
    }

    /// An ACK of a transmission of `sn` arrived. If the peer had recovered the segment before, the
    /// transmission was late, not lost.
    #[inline]
    pub(crate) fn on_late_original(&mut self, now: Micros, sn: Sn) {
        if let Some(repair) = &mut self.repair
            && repair.on_late_arrival(sn)
            && let Some(copies) = &mut self.copies
        {
            copies.on_spurious(now, sn);
        }
    }

    /// Whether FEC may have recovered the first transmission, with timestamp `ts`, whose ACK arrives after a
    /// retransmission. If so it was lost, and the ACK says nothing about reordering.
    pub(crate) fn may_have_recovered(&self, now: Micros, ts: Ts, min_rtt: u64) -> bool {
        let recovered = |coverage: &FecCoverage| coverage.may_have_recovered(now, ts, min_rtt);
        self.fec_wait.as_deref().is_some_and(recovered)
    }

    /// Whether a segment may have arrived by a repair symbol or bundled copy of the last `span` microseconds,
    /// or by FEC that covers a first transmission with timestamp `ts`.
    pub(crate) fn may_have_brought(&self, now: Micros, ts: Ts, span: u64, min_rtt: u64) -> bool {
        self.sends_repairs()
            || self.repair.as_ref().is_some_and(|repair| repair.has_sent_within(now, span))
            || self.bundling.as_ref().is_some_and(|bundling| bundling.rate() > 0)
            || self.may_have_recovered(now, ts, min_rtt)
    }

    /// A segment is retransmitted for the first time: its parity did not recover it.
    pub(crate) fn on_recovery_failed(&mut self, xmit_seq: u64, sent: Micros) {
        if let Some(coverage) = &mut self.fec_wait {
            coverage.on_retransmit(xmit_seq, sent);
        }
    }

    /// A retransmitted segment was acknowledged. Returns whether it had copies.
    pub(crate) fn forget_copies(&mut self, sn: Sn) -> bool {
        self.copies.as_mut().is_some_and(|copies| copies.on_acked(sn))
    }

    /// Estimated loss rate, per million; 0 before the first loss.
    pub(crate) fn loss_rate(&self) -> u32 {
        self.copies.as_ref().map_or(0, |copies| copies.loss_rate.per_million())
    }

    /// Estimated loss rate of the last ten seconds alone, per million.
    pub(crate) fn mean_loss_rate(&self) -> u32 {
        self.copies.as_ref().map_or(0, |copies| copies.loss_rate.mean_per_million())
    }

    /// Record of recent losses, kept from the first call on; `nxt` is SND.NXT.
    pub(crate) fn loss_record(&mut self, nxt: Sn) -> Option<&LossRecord> {
        let record = &mut self.copies.as_mut()?.record;
        Some(record.get_or_insert_with(|| LossRecord::new(nxt)))
    }

    /// Datagrams per retransmission, copies included.
    pub(crate) fn retransmission_copies(&self) -> u64 {
        1 + self.copies.as_ref().map_or(0, |copies| copies.further_copies().into())
    }

    /// Whether repair symbols are sent.
    pub(crate) fn sends_repairs(&self) -> bool {
        self.repair.as_ref().is_some_and(|repair| !repair.is_off())
    }

    /// Whether a repair symbol with this key was sent recently.
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

    /// Frees memory that an idle connection does not need. The loss rate is kept if redundancy depends on it:
    /// the next burst uses the same path.
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

/// Delays the retransmission of a lost segment while FEC parity, a repair symbol or a bundled copy may have
/// delivered it and its ACK is on the way.
impl Redundancy {
    /// Passes candidates for the next loss to `is_wanted` and returns the first that is wanted: `oldest`, the oldest
    /// segment of each list, and behind a segment that waits for parity one segment for each of a few groups.
    /// For `no_new_data` see [`LossDetector::lost_at`].
    #[inline]
    pub(crate) fn find_loss(
        &self,
        in_flight: &InFlight<'_>,
        oldest: impl Iterator<Item = (Sn, SentSegment)>,
        no_new_data: bool,
        mut is_wanted: impl FnMut(&SegmentLoss) -> bool,
    ) -> Option<SegmentLoss> {
        for oldest in oldest {
            let mut next = Some(oldest);
            for _ in 0..=MAX_GROUPS_PASSED {
                let Some((sn, segment)) = next else { break };
                let loss = self.loss_of(in_flight, sn, &segment, no_new_data);
                if is_wanted(&loss) {
                    return Some(loss);
                }
                let Some(last) = loss.awaited else { break };
                let mut others = in_flight.sent.unacked_from(loss.sn).take(MAX_INSPECTED);
                next = others.find(|(_, other)| other.xmit_seq > last || other.retransmitted);
            }
        }
        None
    }

    /// When a segment counts as lost, and the trigger ([`LossDetector::lost_at`]). Includes the wait for the
    /// ACK of redundancy that covers it.
    pub(crate) fn loss_of(
        &self,
        in_flight: &InFlight<'_>,
        sn: Sn,
        segment: &SentSegment,
        no_new_data: bool,
    ) -> SegmentLoss {
        let (at, trigger) = self.unrepaired_at(in_flight, sn, segment, no_new_data);
        let at = self.uncopied_at(in_flight, sn, segment, at);
        let coverage = self.fec_wait.as_ref().filter(|_| !segment.retransmitted);
        let group = coverage.and_then(|coverage| coverage.group_of(segment.xmit_seq));
        let Some(group) = group.filter(|group| group.is_awaited(segment.last_sent)) else {
            return SegmentLoss { sn, at, trigger, awaited: None };
        };
        // The ACK of the recovered segment may be lost. Until a newer ACK arrives, the next cumulative
        // acknowledgement may still cover the segment.
        let wait = match in_flight.loss.has_acked_since(group.last) {
            true => in_flight.ack_wait(),
            false => in_flight.rtt.rto(),
        };
        let recovered_at = group.closed.add_micros(wait);
        if at >= recovered_at {
            return SegmentLoss { sn, at, trigger, awaited: None };
        }
        // Does not wait if more datagrams of the group are lost than parity can recover.
        let mut before = None;
        let unacked = in_flight.sent.unacked_from(sn).map(|(_, segment)| segment);
        let mut unacked = unacked
            .take(MAX_INSPECTED)
            .take_while(|segment| segment.xmit_seq <= group.last)
            .filter(|segment| !segment.retransmitted)
            .filter(|segment| before.replace(segment.xmit_seq) != segment.xmit_seq.checked_sub(1));
        let unrecoverable = unacked.nth(group.parities);
        let unrecoverable_at = unrecoverable.map(|other| in_flight.lost_at(&other, no_new_data).0);
        let at = unrecoverable_at.map_or(recovered_at, |other| other.clamp(at, recovered_at));
        SegmentLoss { sn, at, trigger, awaited: Some(group.last) }
    }

    /// A segment that repair symbols may have recovered is not retransmitted yet.
    fn unrepaired_at(
        &self,
        in_flight: &InFlight<'_>,
        sn: Sn,
        segment: &SentSegment,
        no_new_data: bool,
    ) -> (Micros, LossTrigger) {
        let (at, trigger) = in_flight.lost_at(segment, no_new_data);
        let waits = trigger != LossTrigger::Rto && segment.backoff_level() == 0;
        let Some(repair) = self.repair.as_ref().filter(|_| waits) else {
            return (at, trigger);
        };
        let unacked = in_flight.sent.unacked_from(sn);
        let overdue = unacked.map(|(_, segment)| in_flight.lost_at(&segment, no_new_data).0);
        let held = repair.retransmit_at(sn, segment.last_sent, in_flight.ack_wait(), overdue);
        (held.map_or(at, |held| held.max(at)), trigger)
    }

    /// A segment that counts as lost at `at` is not retransmitted before the ACK of its bundled copy can
    /// arrive.
    fn uncopied_at(
        &self,
        in_flight: &InFlight<'_>,
        sn: Sn,
        segment: &SentSegment,
        at: Micros,
    ) -> Micros {
        let bundling = self.bundling.as_ref().filter(|_| !segment.retransmitted);
        let copied_at = bundling.and_then(|bundling| bundling.copied_at(sn));
        let ack_at = copied_at.map(|copied| copied.add_micros(in_flight.ack_wait()));
        ack_at.map_or(at, |ack_at| at.max(ack_at))
    }

    /// Whether a segment that was sent once, and is now acknowledged, would have been retransmitted without
    /// the wait for its parity, and an ACK of the parity can have arrived. If so it was lost.
    #[inline]
    pub(crate) fn was_recovered(
        &self,
        now: Micros,
        in_flight: &InFlight<'_>,
        segment: &SentSegment,
    ) -> bool {
        let Some(coverage) = &self.fec_wait else { return false };
        let group = coverage.group_of(segment.xmit_seq);
        let group = group.filter(|group| group.is_awaited(segment.last_sent));
        let is_late = |closed: Micros| now.since(closed) >= in_flight.rtt.min();
        group.is_some_and(|group| is_late(group.closed))
            && in_flight.lost_at(segment, false).0 < now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_may_come_by_copies_or_symbols_while_these_are_sent() {
        let mut redundancy = Redundancy::default();
        let may_come = |redundancy: &Redundancy, now| {
            redundancy.may_have_brought(Micros(now), Ts(0), 100_000, 50_000)
        };
        assert!(!may_come(&redundancy, 0));
        redundancy.set_bundling_rate(1, Sn(0));
        assert!(may_come(&redundancy, 0));
        redundancy.set_bundling_rate(0, Sn(0));
        assert!(!may_come(&redundancy, 0));
        redundancy.set_repair_rate(1, Sn(0), || 7);
        assert!(may_come(&redundancy, 0));
        redundancy.set_repair_rate(0, Sn(0), || 7);
        assert!(!may_come(&redundancy, 0));
        redundancy.repair.as_mut().unwrap().on_repair_sent(Micros(10), Sn(0), Sn(1), 100);
        assert!(may_come(&redundancy, 100_010) && !may_come(&redundancy, 100_011));
    }

    /// They prove an ACK of a recovered segment, and tell a reflection.
    #[test]
    fn keys_of_the_latest_320_symbols_and_64_recovered_segments_are_remembered() {
        let mut redundancy = Redundancy::default();
        redundancy.set_repair_rate(1, Sn(0), || u32::MAX - 99);
        let repair = redundancy.repair.as_mut().unwrap();
        (0..500).for_each(|_| repair.on_repair_sent(Micros(0), Sn(0), Sn(1), 100));
        (0..70).for_each(|sn| repair.on_recovered(Sn(sn)));
        let late = (0..80).filter(|sn| repair.on_late_arrival(Sn(*sn)));
        assert!(late.eq(6..70));
        let key = |number: u32| number.wrapping_sub(100);
        let known = (0..600).filter(|number| redundancy.has_sent_repair(key(*number)));
        assert!(known.eq(180..500));
    }

    #[test]
    fn new_segments_count_for_each_redundancy_in_use() {
        let using = |change: fn(&mut Redundancy)| {
            let mut redundancy = Redundancy::default();
            change(&mut redundancy);
            redundancy
        };
        assert!(Redundancy::default().ignores_new_segments());
        assert!(!using(|all| all.set_bundling_rate(1, Sn(0))).ignores_new_segments());
        assert!(!using(|all| all.set_repair_rate(1, Sn(0), || 7)).ignores_new_segments());
        assert!(!using(|all| _ = all.copies_from(Micros(0))).ignores_new_segments());
    }

    #[test]
    fn redundant_bytes_are_the_sum_of_symbols_and_copies() {
        let mut redundancy = Redundancy::default();
        redundancy.set_repair_rate(250_000, Sn(0), || 7);
        redundancy.set_bundling_rate(500_000, Sn(0));
        let repair = redundancy.repair.as_mut().unwrap();
        (0..2).for_each(|_| repair.on_repair_sent(Micros(0), Sn(0), Sn(1), 100));
        repair.recovered_count = 1;
        redundancy.bundling.as_mut().unwrap().on_copy_sent(Micros(0), Sn(0), Ts(0), 26, Sn(0));
        // The caller has counted parity already.
        let mut stats = RedundancyStats { redundant_bytes_sent: 1_000, ..Default::default() };
        redundancy.add_stats(&mut stats);
        assert_eq!((stats.repair_per_mille, stats.bundling_per_mille), (250, 500));
        assert_eq!((stats.repair_symbols_sent, stats.bundled_copies), (2, 1));
        assert_eq!(stats.recovered_by_peer_segments, 1);
        assert_eq!(stats.redundant_bytes_sent, 1_000 + 200 + 50);
    }
}
