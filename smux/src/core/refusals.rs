//! Unsent answers to refused SYNs.

use std::collections::{HashSet, VecDeque};

/// Most answers that wait. Further SYNs are not answered, since the peer does not take the answers.
const MAX_REFUSALS: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    order: VecDeque<u32>,
    /// The ids in `order`.
    ids: HashSet<u32>,
}

impl Refusals {
    /// Queues the answer to the SYN of `id`. One answer covers all its earlier SYNs.
    pub(crate) fn push(&mut self, id: u32) {
        if self.order.len() < MAX_REFUSALS && self.ids.insert(id) {
            self.order.push_back(id);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<u32> {
        let id = self.order.pop_front()?;
        self.ids.remove(&id);
        Some(id)
    }

    /// Whether an answer for `id` waits: it would close a new stream of that id.
    pub(crate) fn contains(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
