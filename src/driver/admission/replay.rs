//! Anti-replay filter: hashes of received nonces. A datagram with a nonce in the filter is a replay.
//!
//! The nonces are random, so the sliding bitmap of RFC 4303 3.4.3 and RFC 6479, which needs sequence numbers,
//! does not fit.

use std::collections::hash_map::RandomState;
use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use crate::core::open::InitialSegment;
use crate::core::segment::Header;

/// How long an initial datagram is remembered.
const INITIAL_LIFETIME: Duration = Duration::from_secs(600);
/// Hashes of initial datagrams that are kept, of nonces and segments: 4 MiB. An entry takes at most 24 bytes
/// in the set (9 bytes a bucket, 7 of 16 buckets used) and 48 bytes in the queue (24 bytes, half used).
const MAX_INITIALS: usize = 4 * 1024 * 1024 / 72;

/// The timestamps of all transmissions of one initial segment differ by less than 2 to this power in
/// milliseconds: 65 s. A peer that opens another connection with the same conversation id and the same first
/// data does so later, or with a clock of another origin.
const TIMESTAMP_BITS: u32 = 16;

/// Which part of an initial datagram is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownInitial {
    Nothing,
    /// Its nonce: the datagram is a replay.
    Nonce,
    /// Its initial segment: the datagram retransmits one that has arrived.
    Segment,
}

/// The latest nonces, as keyed hashes: an attacker cannot choose nonces whose hashes collide.
#[derive(Debug)]
pub(crate) struct ReplayFilter {
    known: HashSet<u64>,
    /// The hashes by age. Invariant: the same hashes as in `known`.
    order: VecDeque<(Instant, u64)>,
    capacity: usize,
    /// `None`: a nonce is kept until `capacity` later ones have come.
    lifetime: Option<Duration>,
    hasher: RandomState,
}

impl ReplayFilter {
    /// The filter of initial datagrams.
    pub(crate) fn of_initials() -> Self {
        Self::new(MAX_INITIALS, Some(INITIAL_LIFETIME))
    }

    /// The filter of the last `capacity` datagrams; 0 turns it off.
    pub(crate) fn of_latest(capacity: usize) -> Self {
        Self::new(capacity, None)
    }

    fn new(capacity: usize, lifetime: Option<Duration>) -> Self {
        let (known, order) = (HashSet::new(), VecDeque::new());
        Self { known, order, capacity, lifetime, hasher: RandomState::new() }
    }

    /// Records a nonce. Returns false for a replay. Datagrams without a cipher have an empty nonce, which
    /// never counts as a replay.
    pub(crate) fn insert(&mut self, now: Instant, nonce: &[u8]) -> bool {
        if nonce.is_empty() || self.capacity == 0 {
            return true;
        }
        self.expire(now);
        self.insert_hash(now, self.hasher.hash_one(nonce))
    }

    /// Records an initial datagram by its nonce, and by its conversation id and first segment: a
    /// retransmission that has not arrived has a nonce of its own. Without a cipher nothing is known.
    pub(crate) fn insert_initial(
        &mut self,
        now: Instant,
        nonce: &[u8],
        datagram: &[u8],
    ) -> KnownInitial {
        if nonce.is_empty() {
            return KnownInitial::Nothing;
        }
        if !self.insert(now, nonce) {
            return KnownInitial::Nonce;
        }
        let (Ok(header), Some(segment)) =
            (Header::parse(datagram), InitialSegment::parse(datagram))
        else {
            return KnownInitial::Nothing;
        };
        let period = header.ts.0 >> TIMESTAMP_BITS;
        let hash = |period: u32| {
            let period = period & (u32::MAX >> TIMESTAMP_BITS);
            self.hasher.hash_one((header.conv, segment, period))
        };
        // Another transmission may be on the other side of a period's end.
        let around = [period.wrapping_sub(1), period, period.wrapping_add(1)].map(hash);
        // A known segment is not recorded again. A peer whose connection has ended would otherwise be shut
        // out while it retransmits.
        if around.iter().any(|hash| self.known.contains(hash)) {
            return KnownInitial::Segment;
        }
        self.insert_hash(now, hash(period));
        KnownInitial::Nothing
    }

    /// Returns false if the hash is known.
    fn insert_hash(&mut self, now: Instant, hash: u64) -> bool {
        if !self.known.insert(hash) {
            return false;
        }
        if self.order.len() >= self.capacity {
            self.drop_oldest();
        }
        self.order.push_back((now, hash));
        true
    }

    fn expire(&mut self, now: Instant) {
        let Some(lifetime) = self.lifetime else { return };
        while self.order.front().is_some_and(|(at, _)| now.duration_since(*at) >= lifetime) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, hash)) = self.order.pop_front() {
            self.known.remove(&hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::segment::Command;
    use crate::core::seq::{Sn, Ts};

    #[test]
    fn replay_filter_of_initials_expires_after_ten_minutes() {
        let start = Instant::now();
        let mut filter = ReplayFilter::of_initials();
        assert!(filter.insert(start, b"0123456789ab"));
        assert!(!filter.insert(start + INITIAL_LIFETIME / 2, b"0123456789ab"));
        assert!(filter.insert(start + INITIAL_LIFETIME / 2, b"0123456789ac"));
        assert!(filter.insert(start + INITIAL_LIFETIME, b"0123456789ab"));
    }

    #[test]
    fn replay_filter_evicts_the_oldest_nonce() {
        let now = Instant::now();
        let mut filter = ReplayFilter::of_latest(1_000);
        for i in 0..5_000_u32 {
            assert!(filter.insert(now, &i.to_le_bytes()));
            assert!(filter.known.len() <= 1_000 && filter.order.len() <= 1_000);
        }
        assert!(!filter.insert(now, &4_000_u32.to_le_bytes()));
        assert!(filter.insert(now, &3_999_u32.to_le_bytes()));
    }

    /// An initial datagram.
    fn initial(conv: u32, ts: u32, payload: &[u8]) -> Vec<u8> {
        let (sn, una, len) = (Sn(0), Sn(0), payload.len() as u32);
        let mut datagram = Vec::new();
        Header { conv, command: Command::Push, frg: 0, wnd: 32, ts: Ts(ts), sn, una, len }
            .emit(&mut datagram);
        datagram.extend_from_slice(payload);
        datagram
    }

    #[test]
    fn retransmission_of_an_initial_segment_is_known_across_the_end_of_a_period_and_the_wrap() {
        const PERIOD: u32 = 1 << TIMESTAMP_BITS;
        let now = Instant::now();
        let ends = [5 * PERIOD, 0, PERIOD];
        let around = ends.map(|end| (end.wrapping_sub(10), end.wrapping_add(PERIOD - 11)));
        for (first, second) in around.into_iter().flat_map(|(a, b)| [(a, b), (b, a), (a, a)]) {
            let mut filter = ReplayFilter::of_initials();
            let mut insert = |nonce: u8, conv, ts, payload: &[u8]| {
                filter.insert_initial(now, &[nonce], &initial(conv, ts, payload))
            };
            assert_eq!(insert(1, 7, first, b"hi"), KnownInitial::Nothing);
            assert_eq!(insert(2, 7, second, b"hi"), KnownInitial::Segment, "{first}, {second}");
            assert_eq!(insert(2, 7, second, b"hi"), KnownInitial::Nonce);
            // Other connections, and a later one of this peer.
            assert_eq!(insert(3, 8, second, b"hi"), KnownInitial::Nothing);
            assert_eq!(insert(4, 7, second, b"ho"), KnownInitial::Nothing);
            let later = first.wrapping_add(2 * PERIOD);
            let earlier = first.wrapping_sub(2 * PERIOD);
            assert_eq!(insert(5, 7, later, b"hi"), KnownInitial::Nothing, "{first}");
            assert_eq!(insert(6, 7, earlier, b"hi"), KnownInitial::Nothing, "{first}");
        }
    }

    #[test]
    fn replay_filter_accepts_datagrams_without_nonce() {
        let now = Instant::now();
        let mut filter = ReplayFilter::of_latest(10);
        assert!(filter.insert(now, &[]) && filter.insert(now, &[]));
        for _ in 0..2 {
            let known = filter.insert_initial(now, &[], &initial(7, 5, b"hi"));
            assert_eq!(known, KnownInitial::Nothing);
        }
    }
}
