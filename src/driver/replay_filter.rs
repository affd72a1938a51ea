//! Nonces that were seen, so that a datagram that carries one of them again is known for a copy.

use std::collections::hash_map::RandomState;
use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// How long the nonce of an opening is remembered, and how many of them: 4 MiB with all that the
/// two collections need for an entry (at most 48 and 24 bytes).
const OPENING_LIFE: Duration = Duration::from_secs(600);
const OPENINGS: usize = 4 * 1024 * 1024 / 72;

/// The latest nonces, by a secret hash: whoever chooses nonces does not choose those.
#[derive(Debug)]
pub(crate) struct ReplayFilter {
    known: HashSet<u64>,
    order: VecDeque<(Instant, u64)>,
    capacity: usize,
    life: Option<Duration>,
    hasher: RandomState,
}

impl ReplayFilter {
    /// Of the datagrams that opened a conversation.
    pub(crate) fn of_initials() -> Self {
        Self::new(OPENINGS, Some(OPENING_LIFE))
    }

    /// Of the last `capacity` datagrams.
    pub(crate) fn of_latest(capacity: usize) -> Self {
        Self::new(capacity, None)
    }

    fn new(capacity: usize, life: Option<Duration>) -> Self {
        let (known, order) = (HashSet::new(), VecDeque::new());
        Self { known, order, capacity, life, hasher: RandomState::new() }
    }

    /// Remembers a nonce. Returns whether it was new; datagrams without one always are.
    pub(crate) fn insert(&mut self, now: Instant, nonce: &[u8]) -> bool {
        if nonce.is_empty() || self.capacity == 0 {
            return true;
        }
        self.expire(now);
        let hash = self.hasher.hash_one(nonce);
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
        let Some(life) = self.life else { return };
        while self.order.front().is_some_and(|(at, _)| now.duration_since(*at) >= life) {
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

    #[test]
    fn an_opening_is_remembered_for_ten_minutes() {
        let start = Instant::now();
        let mut nonces = ReplayFilter::of_initials();
        assert!(nonces.insert(start, b"0123456789ab"));
        assert!(!nonces.insert(start + OPENING_LIFE / 2, b"0123456789ab"));
        assert!(nonces.insert(start + OPENING_LIFE / 2, b"0123456789ac"));
        assert!(nonces.insert(start + OPENING_LIFE, b"0123456789ab"));
    }

    #[test]
    fn the_oldest_makes_room() {
        let now = Instant::now();
        let mut nonces = ReplayFilter::of_latest(1_000);
        for i in 0..5_000_u32 {
            assert!(nonces.insert(now, &i.to_le_bytes()));
            assert!(nonces.known.len() <= 1_000 && nonces.order.len() <= 1_000);
        }
        assert!(!nonces.insert(now, &4_000_u32.to_le_bytes()));
        assert!(nonces.insert(now, &3_999_u32.to_le_bytes()));
    }

    #[test]
    fn without_a_nonce_nothing_is_a_copy() {
        let now = Instant::now();
        let mut nonces = ReplayFilter::of_latest(10);
        assert!(nonces.insert(now, &[]) && nonces.insert(now, &[]));
    }
}
