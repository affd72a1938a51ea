//! FEC groups with sent parity. A lost segment of such a group may be recovered without a retransmission
//! when the parity arrives.
//!
//! Kept for the latest [`MAX_GROUPS`] groups. In kcp-go ARQ and FEC are independent, so it retransmits
//! segments that FEC recovers.

use std::collections::VecDeque;

use crate::core::clock::Micros;
use crate::core::seq::Ts;
use crate::util::queue;

const MAX_GROUPS: usize = 64;
/// Longest time from a segment to the parity of its group for which the segment waits, microseconds: later
/// parity is no faster than a retransmission. A group of ten packets, with two per message every 10 ms, takes
/// 40 ms, and late timers some more.
const MAX_PARITY_DELAY: u64 = 45_000;
const MILLION: u64 = 1_000_000;

/// Segments of one connection in one FEC group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoveredGroup {
    /// Transmission order of the first and the last one
    /// ([`xmit_seq`](crate::core::recovery::sent::SentSegment::xmit_seq)).
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Their timestamps.
    pub(crate) first_ts: Ts,
    pub(crate) last_ts: Ts,
    /// When the last parity packet left.
    pub(crate) closed: Micros,
    /// Parity packets sent: the number of lost packets that the group survives.
    pub(crate) parities: usize,
    /// Nearly every group of this kind is recovered, so waiting for the parity costs no latency.
    pub(crate) is_reliable: bool,
    /// One of its segments was retransmitted although parity might have recovered it: too many were lost, or
    /// the parity was late.
    pub(crate) failed: bool,
}

impl CoveredGroup {
    /// Whether a segment that left at `sent` waits for the parity before it counts as lost.
    pub(crate) fn is_awaited(&self, sent: Micros) -> bool {
        self.is_reliable && !self.failed && self.closed.since(sent) <= MAX_PARITY_DELAY
    }
}

/// Whether `parities` recover nearly every group of `packets` packets, parity included, at this loss rate per
/// million: they are at least the expected losses plus two standard deviations (of a Poisson distribution). A
/// group that fails costs a useless wait, and delays later segments.
pub(crate) fn is_reliable(packets: usize, parities: usize, loss_rate: u32) -> bool {
    // Per million.
    let expected = packets as u64 * u64::from(loss_rate);
    let margin = (parities as u64 * MILLION).checked_sub(expected);
    margin.is_some_and(|margin| {
        let variance = u128::from(expected) * u128::from(MILLION);
        u128::from(margin) * u128::from(margin) >= 4 * variance
    })
}

/// The latest groups of one connection, from the first parity on.
#[derive(Debug, Default)]
pub(crate) struct FecCoverage {
    /// In order of transmission.
    groups: VecDeque<CoveredGroup>,
}

impl FecCoverage {
    /// The parity of a group has left.
    pub(crate) fn on_group_closed(&mut self, group: CoveredGroup) {
        if self.groups.len() == MAX_GROUPS {
            self.groups.pop_front();
        }
        queue::push(&mut self.groups, group);
    }

    fn index_of(&self, xmit_seq: u64) -> Option<usize> {
        let index = self.groups.partition_point(|group| group.last < xmit_seq);
        self.groups.get(index).filter(|group| group.first <= xmit_seq).map(|_| index)
    }

    /// The group of a segment's first transmission, if its parity was sent.
    pub(crate) fn group_of(&self, xmit_seq: u64) -> Option<&CoveredGroup> {
        self.groups.get(self.index_of(xmit_seq)?)
    }

    /// A segment that left at `sent` is retransmitted for the first time.
    pub(crate) fn on_retransmit(&mut self, xmit_seq: u64, sent: Micros) {
        if let Some(group) = self.index_of(xmit_seq).and_then(|index| self.groups.get_mut(index)) {
            group.failed |= group.is_awaited(sent);
        }
    }

    /// Whether FEC may have recovered a first transmission with timestamp `ts` whose ACK arrives at `now`.
    /// Such an ACK arrives at least `min_rtt` microseconds after the parity left.
    pub(crate) fn may_have_recovered(&self, now: Micros, ts: Ts, min_rtt: u64) -> bool {
        let index = self.groups.partition_point(|group| group.last_ts.since(ts) < 0);
        let group = self.groups.get(index).filter(|group| ts.since(group.first_ts) >= 0);
        group.is_some_and(|group| !group.failed && now.since(group.closed) >= min_rtt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(first: u64, last: u64, closed: u64) -> CoveredGroup {
        let ts = |xmit_seq: u64| Ts(u32::try_from(xmit_seq * 10).unwrap());
        CoveredGroup {
            first,
            last,
            first_ts: ts(first),
            last_ts: ts(last),
            closed: Micros(closed),
            parities: 1,
            is_reliable: true,
            failed: false,
        }
    }

    #[test]
    fn segment_belongs_to_the_group_of_its_first_transmission() {
        let mut coverage = FecCoverage::default();
        coverage.on_group_closed(group(1, 3, 30_000));
        coverage.on_group_closed(group(6, 8, 80_000));
        let first = |xmit_seq| coverage.group_of(xmit_seq).map(|group| group.first);
        assert_eq!([0, 1, 3, 4, 5, 6, 8, 9].map(first), {
            [None, Some(1), Some(1), None, None, Some(6), Some(6), None]
        });
        coverage.on_retransmit(7, Micros(70_000));
        assert!(!coverage.group_of(6).unwrap().is_awaited(Micros(60_000)));
        let other = coverage.group_of(2).unwrap();
        assert!(other.is_awaited(Micros(0)) && !group(1, 3, 45_001).is_awaited(Micros(0)));
    }

    #[test]
    fn segment_is_recovered_if_its_ack_is_as_late_as_one_of_the_parity() {
        let mut coverage = FecCoverage::default();
        coverage.on_group_closed(group(1, 3, 30_000));
        assert!(coverage.may_have_recovered(Micros(80_000), Ts(10), 50_000));
        assert!(!coverage.may_have_recovered(Micros(79_999), Ts(10), 50_000));
        assert!(!coverage.may_have_recovered(Micros(80_000), Ts(31), 50_000));
        assert!(coverage.may_have_recovered(Micros(80_000), Ts(30), 50_000), "the last segment");
    }

    #[test]
    fn group_is_reliable_if_it_has_two_deviations_more_parity_than_losses() {
        let reliable = |data: usize, parities: usize, percent: u32| {
            is_reliable(data + parities, parities, percent * 10_000)
        };
        assert!(
            reliable(5, 2, 5) && reliable(6, 2, 5) && reliable(10, 3, 5) && reliable(10, 4, 10)
        );
        assert!(!reliable(5, 2, 10) && !reliable(6, 2, 10) && !reliable(10, 3, 10));
        assert!(!reliable(10, 4, 20) && reliable(1, 1, 0) && !reliable(255, 1, 100));
    }

    #[test]
    fn remembered_groups_are_bounded() {
        let mut coverage = FecCoverage::default();
        (0..1_000).for_each(|i| coverage.on_group_closed(group(10 * i, 10 * i + 9, i)));
        assert_eq!(coverage.groups.len(), MAX_GROUPS);
        assert!(coverage.group_of(9_359).is_none() && coverage.group_of(9_360).is_some());
    }
}
