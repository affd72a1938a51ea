//! Memory of connection queues: exact first allocation, release when idle.
//!
//! Most connections of a busy server are idle. `VecDeque` allocates at least four entries, which each
//! idle queue would keep.

use std::collections::VecDeque;
use std::mem;

/// Entries. An empty queue with more capacity has seen a burst, see [`release_burst`].
pub(crate) const BURST_CAPACITY: usize = 8;

/// Reserves capacity for `count` more entries: exactly in a queue without any, otherwise as `VecDeque`
/// grows.
pub(crate) fn reserve<T>(queue: &mut VecDeque<T>, count: usize) {
    if queue.capacity() == 0 {
        queue.reserve_exact(count);
    } else {
        queue.reserve(count);
    }
}

/// Appends an entry. The first entry gets an exact allocation.
#[inline]
pub(crate) fn push<T>(queue: &mut VecDeque<T>, entry: T) {
    if queue.len() == queue.capacity() {
        reserve(queue, 1);
    }
    queue.push_back(entry);
}

/// Whether [`release`] frees memory: the queue is empty and has capacity.
pub(crate) fn is_reclaimable<T>(queue: &VecDeque<T>) -> bool {
    queue.is_empty() && queue.capacity() > 0
}

/// Takes the memory out of an idle queue. Drop the result outside locks.
pub(crate) fn release<T>(queue: &mut VecDeque<T>) -> Option<VecDeque<T>> {
    is_reclaimable(queue).then(|| mem::take(queue))
}

/// Takes the memory out of an empty queue that a burst has grown. Drop the result outside locks.
pub(crate) fn release_burst<T>(queue: &mut VecDeque<T>) -> Option<VecDeque<T>> {
    (queue.is_empty() && queue.capacity() > BURST_CAPACITY).then(|| mem::take(queue))
}

/// Moves all entries to the end of `to`. Swaps the vectors if `to` is empty, so that two vectors in turns
/// do not allocate.
pub(crate) fn move_all<T>(from: &mut Vec<T>, to: &mut Vec<T>) {
    if to.is_empty() {
        mem::swap(from, to);
    } else {
        to.append(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_into_an_empty_queue_allocates_one_entry() {
        let mut queue = VecDeque::new();
        push(&mut queue, 1_u64);
        assert_eq!(queue.capacity(), 1);
        assert!(release(&mut queue).is_none(), "it is in use");
        queue.pop_front();
        assert!(release(&mut queue).is_some_and(|memory| memory.capacity() == 1));
        assert!(release(&mut queue).is_none(), "it has no memory");
    }
}
