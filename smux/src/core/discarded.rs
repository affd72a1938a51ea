//! Streams dropped before the peer's FIN (version 2). Payload that still arrives for them is
//! discarded and credited, up to one window: FIN does not wake a peer's writer that waits for
//! window.

use std::collections::{BTreeMap, HashMap};

use super::receive_window::ReceiveWindow;

/// Limit of streams; beyond it the oldest is forgotten.
const MAX_STREAMS: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct DiscardedStreams {
    streams: HashMap<u32, Discarded>,
    /// The ids of `streams`.
    by_age: BTreeMap<u64, u32>,
    /// Streams inserted so far.
    inserted: u64,
}

#[derive(Debug)]
struct Discarded {
    window: ReceiveWindow,
    /// Streams inserted before this one.
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

    /// Returns whether there was such a stream.
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.remove(&id) else { return false };
        self.by_age.remove(&stream.age);
        true
    }

    /// Counts `len` bytes for `id`. Returns the fields of the update if one is due.
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
        // Ended streams do not count, and an id used twice counts once.
        for i in 0..3 * MAX_STREAMS as u32 {
            discarded.insert(100 + i, ReceiveWindow::new());
            assert!(discarded.remove(100 + i));
            discarded.insert(3, ReceiveWindow::new());
        }
        assert_eq!(discarded.len(), 2);
        for i in 0..MAX_STREAMS as u32 - 1 {
            discarded.insert(100 + i, ReceiveWindow::new());
        }
        // Only the first one is gone.
        assert_eq!(discarded.len(), MAX_STREAMS);
        assert!(!discarded.remove(1));
        discarded.insert(1, ReceiveWindow::new());
        assert!(!discarded.remove(3));
        assert!(discarded.remove(1));
        assert!(discarded.remove(100));
    }
}
