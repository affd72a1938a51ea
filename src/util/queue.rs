//! How much room the queues of a conversation have.
//!
//! Of many conversations most rest. The standard library gives the first entry of a queue the
//! room of four, and each of a conversation's queues would keep that for ever.

use std::collections::VecDeque;

/// A queue with more room than this has seen more than a greeting.
const ALONE: usize = 1;

/// Makes room for `count` more entries: for just as many where there is no room yet, and from then
/// on as queues grow.
pub(crate) fn reserve<T>(queue: &mut VecDeque<T>, count: usize) {
    if queue.capacity() == 0 {
        queue.reserve_exact(count);
    } else {
        queue.reserve(count);
    }
}

/// Appends an entry, which is alone as a rule.
#[inline]
pub(crate) fn push<T>(queue: &mut VecDeque<T>, entry: T) {
    if queue.len() == queue.capacity() {
        reserve(queue, 1);
    }
    queue.push_back(entry);
}

/// Whether giving back the room of a queue is worth it: it is empty, and has room for several.
pub(crate) fn is_reclaimable<T>(queue: &VecDeque<T>) -> bool {
    queue.is_empty() && queue.capacity() > ALONE
}

/// Gives back the room of a queue where that is worth it. The room is for dropping outside locks.
pub(crate) fn release<T>(queue: &mut VecDeque<T>) -> Option<VecDeque<T>> {
    is_reclaimable(queue).then(|| std::mem::take(queue))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_gets_room_for_itself() {
        let mut queue = VecDeque::new();
        push(&mut queue, 1_u64);
        assert_eq!(queue.capacity(), 1);
        queue.pop_front();
        assert!(release(&mut queue).is_none(), "not worth an allocation the next time");
        (1..=3).for_each(|entry| push(&mut queue, entry));
        assert!(release(&mut queue).is_none(), "it is in use");
        queue.clear();
        assert!(release(&mut queue).is_some_and(|room| room.capacity() >= 3));
        assert_eq!(queue.capacity(), 0);
    }
}
