//! Lists in order of transmission.
//!
//! Unacknowledged segments are linked in order of their last transmission: one list per back-off level, and a
//! second list of level 0 for retransmissions of a bulk flow. Within a list, RTOs expire and later
//! transmissions are acknowledged from the front on. So loss detection inspects the fronts of at most 16
//! lists, where kcp-go's `flush` scans the window: bench `core`, `flush_with_nothing_due`.
//!
//! Invariant: a list holds exactly the unacknowledged segments with that [`SentSegment::list`], in ascending
//! [`SentSegment::xmit_seq`] (asserted in `check_invariants`).

use std::iter;

#[cfg(any(test, feature = "_testkit"))]
use super::LISTS;
use super::{SentSegment, SentSegments};
use crate::core::seq::Sn;

/// First and last segment of a non-empty list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListEnds {
    pub(super) front: Sn,
    pub(super) back: Sn,
}

impl SentSegments {
    #[inline]
    pub(super) fn list(&self, list: usize) -> Option<ListEnds> {
        let lists = self.lists.as_ref().filter(|_| self.occupied & (1 << list) != 0)?;
        lists.get(list).copied()
    }

    #[inline]
    pub(super) fn set_list(&mut self, list: usize, ends: Option<ListEnds>) {
        self.occupied = (self.occupied & !(1 << list)) | (u16::from(ends.is_some()) << list);
        if let Some(lists) = &mut self.lists {
            lists[list] = ends.unwrap_or_default();
        } else if let Some(ends) = ends {
            self.lists.insert(Box::default())[list] = ends;
        }
    }

    /// The earliest transmission in each list that is in use.
    pub(crate) fn oldest_per_list(&self) -> impl Iterator<Item = (Sn, SentSegment)> {
        let mut lists = self.occupied | u16::from(!self.runs.all_acked());
        iter::from_fn(move || {
            let list = lists.trailing_zeros() as usize;
            lists &= lists.checked_sub(1)?;
            match self.list(list) {
                Some(ends) => Some((ends.front, self.get(ends.front)?)),
                None => self.runs.front(),
            }
        })
    }

    /// Unacknowledged segments of the list of `sn` in order of transmission, from `sn` on.
    pub(crate) fn unacked_from(&self, sn: Sn) -> impl Iterator<Item = (Sn, SentSegment)> {
        let get = |sn| Some((sn, *self.ring.get(self.index(sn)?)?));
        let first = get(sn);
        let of_ring = iter::successors(first, move |(sn, segment)| {
            get(Some(segment.next).filter(|next| next != sn)?)
        });
        let of_runs = match first {
            None => Some(sn),
            Some((_, segment)) if segment.list == 0 => self.runs.front().map(|(sn, _)| sn),
            Some(_) => None,
        };
        of_ring.chain(of_runs.into_iter().flat_map(|sn| self.runs.iter_from(sn)))
    }

    /// Appends a segment to a list and returns its `prev`; its `next` is itself.
    #[inline]
    pub(super) fn append_to_list(&mut self, list: u8, sn: Sn) -> Sn {
        let list = usize::from(list);
        let ends = self.list(list);
        if let Some(back) = ends.and_then(|ends| self.get_mut(ends.back)) {
            back.next = sn;
        }
        let front = ends.map_or(sn, |ends| ends.front);
        self.set_list(list, Some(ListEnds { front, back: sn }));
        ends.map_or(sn, |ends| ends.back)
    }

    /// Removes a segment from its list, if it is in one.
    pub(super) fn unlink(&mut self, sn: Sn) {
        let in_ring = self.index(sn).and_then(|index| self.ring.get(index));
        let Some(segment) = in_ring.filter(|segment| !segment.acked) else { return };
        let (list, prev, next) = (usize::from(segment.list), segment.prev, segment.next);
        let Some(ends) = self.list(list) else { return };
        let (first, last) = (prev == sn, next == sn);
        if !first && let Some(neighbour) = self.get_mut(prev) {
            neighbour.next = if last { prev } else { next };
        }
        if !last && let Some(neighbour) = self.get_mut(next) {
            neighbour.prev = if first { next } else { prev };
        }
        let ends = match (first, last) {
            (true, true) => None,
            (true, false) => Some(ListEnds { front: next, ..ends }),
            (false, true) => Some(ListEnds { back: prev, ..ends }),
            (false, false) => return,
        };
        self.set_list(list, ends);
    }

    /// Checks the lists, in time proportional to the window. Returns the number of linked segments.
    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn check_lists(&self) -> usize {
        let mut linked = 0;
        for list in 0..LISTS {
            let Some(ends) = self.list(list) else { continue };
            let (mut sn, mut prev, mut xmit_seq) = (ends.front, ends.front, 0);
            loop {
                let segment = self.get(sn).expect("linked segments are in the ring");
                assert!(!segment.acked && usize::from(segment.list) == list);
                assert_eq!(segment.prev, prev);
                assert!(segment.xmit_seq > xmit_seq, "a list is in order of transmission");
                xmit_seq = segment.xmit_seq;
                linked += 1;
                if segment.next == sn {
                    break;
                }
                (prev, sn) = (sn, segment.next);
            }
            assert_eq!(ends.back, sn);
        }
        linked
    }
}
