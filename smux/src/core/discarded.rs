//! Streams that were dropped before the peer's FIN (version 2). What still arrives for them is
//! discarded and credited, up to one window: a peer's writer that waits for window is not woken by
//! FIN.

use std::collections::{BTreeMap, HashMap};

use super::receive_window::ReceiveWindow;

/// The oldest one is forgotten for a further one.
const MAX_STREAMS: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct DiscardedStreams {
    streams: HashMap<u32, Discarded>,
    /// The ids of `streams`.
    by_age: BTreeMap<u64, u32>,
    /// Streams so far.
    inserted: u64,
}

#[derive(Debug)]
struct Discarded {
    window: ReceiveWindow,
    /// Streams that were inserted before it.
    age: u64,
}

impl DiscardedStreams {
    pub(crate) fn insert(&mut self, id: u32, window: ReceiveWindow) {
        self.remove(id);
        let age = self.inserted;
        self.inserted += 1;
        self.streams.insert(id, Discarded { window, age });
        self.by_age.insert(age, id);
        if self.streams.len() > MAX_STREAMS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.streams.remove(&oldest);
        }
    }

    /// True if there was such a stream.
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.remove(&id) else { return false };
        self.by_age.remove(&stream.age);
        true
    }

    /// Counts `len` bytes for `id`. `Some` with the fields of the update that is due.
    pub(crate) fn on_payload(&mut self, id: u32, len: usize, window: u32) -> Option<(u32, u32)> {
        let stream = &mut self.streams.get_mut(&id)?.window;
        stream.on_discarded(len);
        stream.update_owed.then(|| stream.update(window))
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn len(&self) -> usize {
        assert_eq!(self.streams.len(), self.by_age.len());
        self.streams.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_streams_beyond_the_limit_are_forgotten_by_age() {
        let mut discarded = DiscardedStreams::default();
        discarded.insert(1, ReceiveWindow::new());
        discarded.insert(3, ReceiveWindow::new());
        // Those that have ended do not count: neither they nor an id used twice.
        for i in 0..3 * MAX_STREAMS as u32 {
            discarded.insert(100 + i, ReceiveWindow::new());
            assert!(discarded.remove(100 + i));
            discarded.insert(3, ReceiveWindow::new());
        }
        assert_eq!(discarded.len(), 2);
        for i in 0..MAX_STREAMS as u32 - 1 {
            discarded.insert(100 + i, ReceiveWindow::new());
        }
        // The first one is gone, and only that one.
        assert_eq!(discarded.len(), MAX_STREAMS);
        assert!(!discarded.remove(1));
        discarded.insert(1, ReceiveWindow::new());
        assert!(!discarded.remove(3));
        assert!(discarded.remove(1));
        assert!(discarded.remove(100));
    }
}
