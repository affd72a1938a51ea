//! Lists in order of transmission.
//!
//! Unacknowledged segments are linked in order of their last transmission, one list per back-off
//! level. Within a list RTOs expire, and later transmissions are acknowledged, from the front on.
//! So loss detection inspects the fronts of at most 16 lists, where kcp-go's `flush` scans the
//! window: bench `core`, `flush_with_nothing_due`.
//!
//! Invariant: a list holds exactly the unacknowledged segments of its level, in ascending
//! [`SentSegment::xmit_seq`] (asserted in `check_invariants`).

use std::iter;

use super::{SentSegment, SentSegments};
use crate::core::seq::Sn;

/// First and last segment of a list that is not empty.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListEnds {
    pub(super) front: Sn,
    pub(super) back: Sn,
}

impl SentSegments {
    /// First and last segment of the list of `level`, if any.
    #[inline]
    pub(super) fn list(&self, level: usize) -> Option<ListEnds> {
        (self.occupied & (1 << level) != 0).then(|| self.lists[level])
    }

    /// Sets [`Self::list`].
    #[inline]
    pub(super) fn set_list(&mut self, level: usize, ends: Option<ListEnds>) {
        self.occupied = (self.occupied & !(1 << level)) | (u16::from(ends.is_some()) << level);
        self.lists[level] = ends.unwrap_or_default();
    }

    /// Of each back-off level in use, the unacknowledged segment that was transmitted first.
    pub(crate) fn oldest_per_level(&self) -> impl Iterator<Item = (Sn, SentSegment)> {
        let mut levels = self.occupied | u16::from(!self.runs.all_acked());
        iter::from_fn(move || {
            let level = levels.trailing_zeros() as usize;
            levels &= levels.checked_sub(1)?;
            match self.list(level) {
                Some(ends) => Some((ends.front, self.get(ends.front)?)),
                None => self.runs.front(),
            }
        })
    }

    /// Unacknowledged segments of one back-off level in order of transmission, `sn` first.
    pub(crate) fn unacked_from(&self, sn: Sn) -> impl Iterator<Item = (Sn, SentSegment)> {
        let get = |sn| Some((sn, *self.ring.get(self.index(sn)?)?));
        let first = get(sn);
        let of_ring = iter::successors(first, move |(sn, segment)| {
            get(Some(segment.next).filter(|next| next != sn)?)
        });
        let of_runs = match first {
            None => Some(sn),
            Some((_, segment)) if segment.backoff_level == 0 => self.runs.front().map(|(sn, _)| sn),
            Some(_) => None,
        };
        of_ring.chain(of_runs.into_iter().flat_map(|sn| self.runs.iter_from(sn)))
    }

    /// Appends a segment to the list of `level`. Returns its `prev`; its `next` is itself.
    #[inline]
    pub(super) fn append_to_list(&mut self, level: u8, sn: Sn) -> Sn {
        let level = usize::from(level);
        let ends = self.list(level);
        if let Some(back) = ends.and_then(|ends| self.get_mut(ends.back)) {
            back.next = sn;
        }
        let front = ends.map_or(sn, |ends| ends.front);
        self.set_list(level, Some(ListEnds { front, back: sn }));
        ends.map_or(sn, |ends| ends.back)
    }

    /// Removes a segment from the list of its level, if it is in one.
    pub(super) fn unlink(&mut self, sn: Sn) {
        let in_ring = self.index(sn).and_then(|index| self.ring.get(index));
        let Some(segment) = in_ring.filter(|segment| !segment.acked) else { return };
        let (level, prev, next) = (usize::from(segment.backoff_level), segment.prev, segment.next);
        let Some(ends) = self.list(level) else { return };
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
        self.set_list(level, ends);
    }

    /// Checks the lists, in time proportional to the window. Returns the number of segments in them.
    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn check_lists(&self) -> usize {
        let mut linked = 0;
        for level in 0..self.lists.len() {
            let Some(ends) = self.list(level) else { continue };
            let (mut sn, mut prev, mut xmit_seq) = (ends.front, ends.front, 0);
            loop {
                let segment = self.get(sn).expect("linked segments are in the ring");
                assert!(!segment.acked && usize::from(segment.backoff_level) == level);
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
