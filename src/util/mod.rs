//! Helpers without protocol and I/O.

pub(crate) mod buffer_pool;
pub(crate) mod path;
pub(crate) mod queue;
pub(crate) mod sync;
pub(crate) mod task;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// Bytes that the stages after the state machine add to a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Framing {
    pub(crate) header_len: usize,
    pub(crate) trailer_len: usize,
}

impl Framing {
    /// Length of a datagram of `len` bytes with header and trailer.
    #[inline]
    pub(crate) fn around(self, len: usize) -> usize {
        self.header_len + len + self.trailer_len
    }

    /// Appends zeros for the header of the next datagram.
    #[inline]
    pub(crate) fn begin(self, out: &mut Vec<u8>) {
        out.resize(out.len() + self.header_len, 0);
    }

    /// Appends zeros for the trailer of the last datagram.
    #[inline]
    pub(crate) fn end(self, out: &mut Vec<u8>) {
        out.resize(out.len() + self.trailer_len, 0);
    }
}

/// The earliest deadline that is set. A loop instead of an iterator over the array: it compiles to one
/// comparison each, and every turn asks for a dozen deadlines.
#[inline]
pub(crate) fn earliest<T: Copy + Ord, const N: usize>(deadlines: [Option<T>; N]) -> Option<T> {
    let mut earliest: Option<T> = None;
    for deadline in &deadlines {
        if let Some(at) = *deadline
            && earliest.is_none_or(|other| at < other)
        {
            earliest = Some(at);
        }
    }
    earliest
}

/// Entries. [`shrink_sparse`] leaves smaller tables alone: they are not worth a rehash.
const MIN_SHRINK_CAPACITY: usize = 256;

/// Shrinks a table that is less than an eighth full to twice its entries. The next shrink or growth is
/// proportional to the size, so removals are O(1) amortised.
#[inline]
pub(crate) fn shrink_sparse<K: Eq + Hash, V, S: BuildHasher>(table: &mut HashMap<K, V, S>) {
    let capacity = table.capacity();
    if capacity > MIN_SHRINK_CAPACITY && table.len() < capacity / 8 {
        table.shrink_to(2 * table.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_is_the_least_of_those_that_are_set() {
        assert_eq!(earliest([Some(3), None, Some(1), Some(2)]), Some(1));
        assert_eq!(earliest([None, Some(2)]), Some(2));
        assert_eq!(earliest::<u32, 3>([None; 3]), None);
        assert_eq!(earliest::<u32, 0>([]), None);
    }

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
        assert!(full >= 100_000 && table.capacity() <= MIN_SHRINK_CAPACITY, "{}", table.capacity());
        assert!(rehashes < 10, "{rehashes}");
    }
}
