//! Answers to refused SYNs, FIN, that have not left.

use std::collections::{HashSet, VecDeque};

/// Answers that wait at most. Further SYNs are not answered: the peer does not take what there is.
const MAX_REFUSALS: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    order: VecDeque<u32>,
    /// Those of `order`.
    ids: HashSet<u32>,
}

impl Refusals {
    /// Has the SYN of `id` answered. One answer is for all SYNs before it.
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

    /// True while an answer for `id` waits: a new stream of that id would be closed by it.
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
