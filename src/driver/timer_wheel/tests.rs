//! The timer wheel against an ordered map of deadlines.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::testkit::rng::Rng;
use crate::testkit::seeds::Seeds;

/// Nanoseconds of every order of magnitude up to `days`.
fn span(rng: &mut Rng, days: u64) -> Duration {
    let bound = 1 << rng.below(52);
    let nanos = rng.below(bound).min(days * 24 * 60 * 60 * SECOND);
    // Boundaries are the likely mistakes.
    Duration::from_nanos(match rng.below(6) {
        0 => nanos / TICK * TICK,
        1 => nanos / SECOND * SECOND,
        2 => (nanos / SECOND * SECOND).saturating_sub(1),
        _ => nanos,
    })
}

/// A timer wheel and its reference, an ordered map.
struct Pair {
    wheel: TimerWheel,
    origin: Instant,
    now: Instant,
    armed: BTreeMap<usize, Instant>,
    order: BTreeSet<(Instant, usize)>,
    expired: Vec<usize>,
}

impl Pair {
    /// With buckets from the start.
    fn new() -> Self {
        let mut pair = Self::few();
        pair.wheel.add_buckets();
        pair
    }

    fn few() -> Self {
        let origin = Instant::now();
        Self {
            wheel: TimerWheel::new(origin),
            origin,
            now: origin,
            armed: BTreeMap::new(),
            order: BTreeSet::new(),
            expired: Vec::new(),
        }
    }

    fn set(&mut self, slot: usize, deadline: Option<Instant>) {
        if let Some(old) = self.armed.remove(&slot) {
            self.order.remove(&(old, slot));
        }
        if let Some(deadline) = deadline {
            self.armed.insert(slot, deadline);
            self.order.insert((deadline, slot));
        }
        self.wheel.set(slot, deadline);
        self.check_next();
    }

    /// Moves the clock and compares the expired slots, exactly.
    fn expire(&mut self, now: Instant) -> usize {
        self.now = self.now.max(now);
        let later = self.order.split_off(&(now + Duration::from_nanos(1), 0));
        let mut due: Vec<_> =
            std::mem::replace(&mut self.order, later).into_iter().map(|(_, slot)| slot).collect();
        self.armed.retain(|_, deadline| *deadline > now);
        self.expired.clear();
        self.wheel.expire(now, &mut self.expired);
        due.sort_unstable();
        self.expired.sort_unstable();
        assert_eq!(self.expired, due);
        self.check_next();
        due.len()
    }

    fn check_next(&self) {
        let next = self.wheel.next();
        let earliest = self.order.first().map(|(deadline, _)| *deadline);
        assert_eq!(next.is_some(), earliest.is_some());
        if let (Some(next), Some(earliest)) = (next, earliest) {
            assert!(next <= earliest.max(self.now), "{next:?} {earliest:?} {:?}", self.now);
        }
    }

    /// Walks every list and compares the bitmaps with it.
    fn check_lists(&self) {
        if !self.wheel.has_buckets() {
            assert!(self.wheel.entries.len() <= FEW);
            assert!(
                self.wheel.entries.iter().all(|entry| [IDLE, NO_BUCKET].contains(&entry.bucket))
            );
            return;
        }
        let mut armed = 0;
        for (bucket, &head) in self.wheel.heads.iter().enumerate() {
            let (mut prev, mut index) = (NONE, head);
            while index != NONE {
                let entry = &self.wheel.entries[index as usize];
                assert_eq!((usize::from(entry.bucket), entry.prev), (bucket, prev));
                let deadline = self.origin + Duration::from_nanos(entry.deadline);
                assert_eq!(self.armed[&(index as usize)].max(self.origin), deadline);
                armed += 1;
                (prev, index) = (index, entry.next);
            }
            let bucket = u16::try_from(bucket).unwrap();
            let (word, bit) = split(bucket);
            let marked = match bucket {
                BEYOND => continue,
                FIRST_SECOND.. => self.wheel.seconds >> bit & 1 == 1,
                _ => self.wheel.ticks[word] >> bit & 1 == 1,
            };
            assert_eq!(marked, head != NONE, "bucket {bucket}");
        }
        assert_eq!(armed, self.armed.len());
    }
}

#[test]
fn random_operations_match_an_ordered_map() {
    for seed in Seeds::or(1..25).iter() {
        println!("KCP_TEST_SEED={seed}");
        let mut rng = Rng::new(seed);
        let mut pair = if seed % 2 == 0 { Pair::new() } else { Pair::few() };
        // From many operations on three slots to 10,000 entries.
        let slots = [3, 100, 10_000][usize::try_from(seed % 3).unwrap()];
        for step in 0..20_000 {
            let slot = usize::try_from(rng.below(slots)).unwrap();
            match rng.below(16) {
                0..=8 => {
                    let after = span(&mut rng, 60);
                    pair.set(slot, Some(pair.now + after));
                }
                9 => {
                    let before = span(&mut rng, 1);
                    let deadline = pair.now.checked_sub(before).unwrap_or(pair.now);
                    pair.set(slot, Some(deadline));
                }
                10 | 11 => pair.set(slot, None),
                12 => {
                    let days = span(&mut rng, 30);
                    pair.expire(pair.now + days);
                }
                13 => {
                    // A clock reading of another thread may be a little older.
                    let before = span(&mut rng, 1).min(Duration::from_secs(2));
                    let now = pair.now.checked_sub(before).unwrap_or(pair.now);
                    pair.expire(now.max(pair.origin));
                }
                _ => {
                    if let Some(next) = pair.wheel.next() {
                        pair.expire(next);
                    }
                }
            }
            if step % 1_000 == 0 {
                pair.check_lists();
            }
        }
        pair.check_lists();
        pair.expire(pair.now + Duration::from_secs(365 * 24 * 60 * 60));
        assert!(pair.armed.is_empty());
        assert_eq!(pair.wheel.next(), None);
        pair.check_lists();
    }
}

#[test]
fn ten_thousand_deadlines_expire_exactly() {
    let mut rng = Rng::new(7);
    let mut pair = Pair::new();
    for slot in 0..10_000 {
        let after = Duration::from_nanos(rng.below(200 * SECOND));
        pair.set(slot, Some(pair.now + after));
    }
    // Nothing was disarmed, so every wake finds its entry, and there are no more wakes than that.
    let mut wakes = 0;
    while let Some(next) = pair.wheel.next() {
        let before = next - Duration::from_nanos(1);
        let due = pair.order.first().is_some_and(|(deadline, _)| *deadline <= before);
        assert!(!due);
        pair.expire(before);
        assert!(pair.expire(next) > 0 || pair.armed.is_empty());
        wakes += 1;
    }
    assert!(wakes <= 10_000);
    assert!(pair.armed.is_empty());
}

#[test]
fn deadlines_are_exact_within_a_millisecond() {
    let mut pair = Pair::new();
    let origin = pair.origin;
    let at = |micros| origin + Duration::from_micros(micros);
    let (early, late) = (at(5_300), at(5_300) + Duration::from_nanos(1));
    pair.set(0, Some(early));
    pair.set(1, Some(late));
    assert_eq!(pair.wheel.next(), Some(early));
    assert_eq!(pair.expire(early - Duration::from_nanos(1)), 0);
    assert_eq!(pair.wheel.next(), Some(early));
    assert_eq!(pair.expire(early), 1);
    assert_eq!(pair.wheel.next(), Some(late));
    assert_eq!(pair.expire(late), 1);
    assert_eq!(pair.wheel.next(), None);
}

#[test]
fn single_far_deadline_costs_one_wake() {
    for millis in [0, 1, 999, 1_023, 1_024, 1_999, 63_999, 64_000, 65_000, 128_000, 2_592_000_000] {
        let mut pair = Pair::new();
        let deadline = pair.origin + Duration::from_millis(millis);
        pair.set(5, Some(deadline));
        assert_eq!(pair.wheel.next(), Some(deadline), "{millis}");
        assert_eq!(pair.expire(deadline), 1);
        assert_eq!(pair.wheel.next(), None);
    }
}

#[test]
fn disarmed_entries_cause_one_wake_at_most() {
    let mut pair = Pair::new();
    let origin = pair.origin;
    let at = |millis| origin + Duration::from_millis(millis);
    for base in [0, 5_000, 500_000] {
        let (gone, stays) = (at(base + 2), at(base + 2) + Duration::from_micros(900));
        pair.set(0, Some(gone));
        pair.set(1, Some(stays));
        pair.set(0, None);
        let mut wakes = 0;
        while !pair.armed.is_empty() {
            let next = pair.wheel.next().unwrap();
            pair.expire(next);
            wakes += 1;
        }
        assert!(wakes <= 2, "{wakes}");
    }
}

#[test]
fn set_moves_a_deadline_in_both_directions() {
    let mut pair = Pair::new();
    let origin = pair.origin;
    let at = |millis| origin + Duration::from_millis(millis);
    for deadline in [at(10), at(90_000), at(20), at(2_000), at(2_000), at(5)] {
        pair.set(0, Some(deadline));
        assert_eq!(pair.wheel.next(), Some(deadline));
        pair.check_lists();
    }
    assert_eq!(pair.expire(at(4)), 0);
    assert_eq!(pair.expire(at(5)), 1);
    assert_eq!(pair.expire(at(100_000)), 0);
}

#[test]
fn past_deadline_expires_at_once() {
    let mut pair = Pair::new();
    let now = pair.origin + Duration::from_millis(12_345);
    pair.expire(now);
    pair.set(0, Some(pair.origin));
    pair.set(1, Some(now));
    pair.set(2, pair.origin.checked_sub(Duration::from_secs(1)));
    assert!(pair.wheel.next().is_some_and(|next| next <= now));
    assert_eq!(pair.wheel.entries.iter().filter(|entry| entry.bucket != IDLE).count(), 3);
    assert_eq!(pair.expire(now), 3);
}

#[test]
fn deadline_at_the_end_of_time_does_not_expire() {
    let mut wheel = TimerWheel::new(Instant::now());
    let far = Duration::from_secs(u64::MAX / 4);
    if let Some(deadline) = wheel.origin.checked_add(far) {
        wheel.set(0, Some(deadline));
        assert!(wheel.next().is_none_or(|next| next <= deadline));
        let mut expired = Vec::new();
        wheel.expire(wheel.origin + Duration::from_secs(1 << 32), &mut expired);
        assert!(expired.is_empty());
    }
}

#[test]
fn memory_is_bounded_by_the_largest_slot() {
    assert!(size_of::<Entry>() <= 32);
    let mut wheel = TimerWheel::new(Instant::now());
    wheel.set(1_000_000, None);
    assert_eq!(wheel.entries.capacity(), 0);
    let mut expired = Vec::with_capacity(1_000);
    for slot in 0..1_000 {
        wheel.set(slot, Some(wheel.origin));
    }
    let (entries, mut now) = (wheel.entries.capacity(), wheel.origin);
    for round in 0..1_000 {
        wheel.expire(now, &mut expired);
        for slot in expired.drain(..) {
            wheel.set(slot, Some(now + Duration::from_micros(round * slot as u64)));
        }
        now += Duration::from_millis(7);
    }
    assert_eq!((wheel.entries.capacity(), expired.capacity()), (entries, 1_000));
}

#[test]
fn coalesced_deadline_moves_far_deadlines_only() {
    let wheel = TimerWheel::new(Instant::now());
    let at = |micros| wheel.origin + Duration::from_micros(micros);
    for (now, deadline, coalesced) in [
        (0, 15_000_000, 15_000_000),
        (0, 15_000_001, 15_100_000),
        (0, 15_099_999, 15_100_000),
        (14_000_000, 15_000_001, 15_000_001),
        (0, 1_999_999, 1_999_999),
        (20_000_000, 15_000_001, 15_000_001),
    ] {
        assert_eq!(wheel.coalesced_deadline(at(now), at(deadline)), at(coalesced));
    }
    if let Some(far) = wheel.origin.checked_add(Duration::from_secs(u64::MAX / 4)) {
        assert_eq!(wheel.coalesced_deadline(at(0), far), far);
    }
}
