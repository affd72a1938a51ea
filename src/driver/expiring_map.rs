//! A map that drops its entries at a given time: TIME-WAIT states, answers to a Retry, allowances,
//! addresses of unusable datagrams.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Instant;

use crate::util::shrink_sparse;

#[derive(Debug)]
pub(super) struct ExpiringMap<K, V> {
    entries: HashMap<K, (Instant, V)>,
    /// The keys by the time at which their entries expire. Invariant: the keys of `entries`.
    expiry: BTreeSet<(Instant, K)>,
}

impl<K, V> Default for ExpiringMap<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), expiry: BTreeSet::new() }
    }
}

impl<K: Copy + Ord + Hash, V> ExpiringMap<K, V> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    /// The entry under `key`, unless it has expired.
    pub(super) fn get_live(&self, now: Instant, key: &K) -> Option<&V> {
        let live = self.entries.get(key).filter(|(until, _)| now < *until);
        live.map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    /// Inserts an entry, in place of the entry under `key` if there is one.
    pub(super) fn insert(&mut self, until: Instant, key: K, value: V) {
        self.remove(&key);
        self.entries.insert(key, (until, value));
        self.expiry.insert((until, key));
    }

    /// Removes an entry, and returns it with the time until which it would have been kept.
    pub(super) fn remove(&mut self, key: &K) -> Option<(Instant, V)> {
        let (until, value) = self.entries.remove(key)?;
        shrink_sparse(&mut self.entries);
        self.expiry.remove(&(until, *key));
        Some((until, value))
    }

    /// Removes the entry that expires first.
    pub(super) fn pop_first(&mut self) -> Option<(K, Instant, V)> {
        let (until, key) = self.expiry.pop_first()?;
        let (_, value) = self.entries.remove(&key)?;
        shrink_sparse(&mut self.entries);
        Some((key, until, value))
    }

    /// Removes an entry that has expired.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<(K, Instant, V)> {
        if self.deadline().is_none_or(|until| now < until) {
            return None;
        }
        let popped = self.pop_first();
        if self.entries.is_empty() {
            self.entries = HashMap::new();
        }
        popped
    }

    /// When the next entry expires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.expiry.first().map(|(until, _)| *until)
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        assert_eq!(self.entries.len(), self.expiry.len());
        self.entries.values().map(|(_, value)| value)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn expiring_map_drops_entries_in_time_and_keeps_nothing_of_removed_ones() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut map = ExpiringMap::default();
        (0..10).for_each(|key| map.insert(at(10 - key), key, key));
        map.insert(at(20), 9, 90);
        assert_eq!((map.len(), map.values().count(), map.get_mut(&9)), (10, 10, Some(&mut 90)));
        assert_eq!((map.remove(&8), map.remove(&8)), (Some((at(2), 8)), None));
        assert_eq!((map.deadline(), map.pop_expired(start)), (Some(at(3)), None));
        assert_eq!(map.pop_expired(at(4)), Some((7, at(3), 7)));
        assert_eq!(map.pop_expired(at(4)), Some((6, at(4), 6)));
        assert_eq!((map.pop_expired(at(4)), map.pop_first()), (None, Some((5, at(5), 5))));
        while map.pop_expired(at(20)).is_some() {}
        assert_eq!((map.len(), map.deadline(), map.entries.capacity()), (0, None, 0));
    }
}
