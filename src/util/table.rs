//! Releases the memory of hash tables that peers can fill.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// Entries. Smaller tables are not worth a rehash.
const MIN_CAPACITY: usize = 256;

/// Shrinks a table that is less than an eighth full to twice its entries. The next shrink or growth is
/// proportional to the size, so removals are O(1) amortised.
#[inline]
pub(crate) fn shrink_sparse<K: Eq + Hash, V, S: BuildHasher>(table: &mut HashMap<K, V, S>) {
    let capacity = table.capacity();
    if capacity > MIN_CAPACITY && table.len() < capacity / 8 {
        table.shrink_to(2 * table.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_a_flood_shrinks_with_few_rehashes() {
        let mut table: HashMap<u32, u64> = (0..100_000).map(|key| (key, 0)).collect();
        let (full, mut rehashes) = (table.capacity(), 0);
        for key in 0..100_000 {
            table.remove(&key);
            let before = table.capacity();
            shrink_sparse(&mut table);
            rehashes += usize::from(table.capacity() != before);
        }
        assert!(full >= 100_000 && table.capacity() <= MIN_CAPACITY, "{}", table.capacity());
        assert!(rehashes < 10, "{rehashes}");
    }
}
