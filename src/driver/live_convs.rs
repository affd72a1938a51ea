//! The conversation ids (`conv`) of the open connections of a listener, at whichever address: no RST
//! without state reports one of them as unknown.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::util::shrink_sparse;

/// A multiset: two tables, since hardly any id is used twice and a count for each would take memory.
#[derive(Debug, Default)]
pub(crate) struct LiveConvs {
    ids: HashMap<u32, ()>,
    /// How many further connections have an id, at other addresses.
    further: HashMap<u32, u32>,
}

impl LiveConvs {
    pub(crate) fn insert(&mut self, conv: u32) {
        if self.ids.insert(conv, ()).is_some() {
            *self.further.entry(conv).or_default() += 1;
        }
    }

    pub(crate) fn remove(&mut self, conv: u32) {
        if let Entry::Occupied(mut further) = self.further.entry(conv) {
            *further.get_mut() -= 1;
            if *further.get() == 0 {
                further.remove();
                shrink_sparse(&mut self.further);
            }
        } else {
            self.ids.remove(&conv);
            shrink_sparse(&mut self.ids);
        }
    }

    pub(crate) fn contains(&self, conv: u32) -> bool {
        self.ids.contains_key(&conv)
    }

    /// Connections.
    #[cfg(feature = "_testkit")]
    pub(crate) fn len(&self) -> usize {
        let further: usize = self.further.values().map(|count| *count as usize).sum();
        self.ids.len() + further
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_lives_until_the_last_of_its_connections_is_gone() {
        let mut live = LiveConvs::default();
        [7, 7, 8, 7].into_iter().for_each(|conv| live.insert(conv));
        for (removed, seven, eight) in [(7, true, true), (8, true, false), (7, true, false)] {
            live.remove(removed);
            assert_eq!((live.contains(7), live.contains(8)), (seven, eight));
        }
        live.remove(7);
        assert!(!live.contains(7) && live.ids.is_empty() && live.further.is_empty());
    }
}
