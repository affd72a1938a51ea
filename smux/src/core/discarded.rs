//! Streams that were dropped before the peer's FIN (version 2). What still arrives for them is
//! discarded and credited, up to one window: a peer's writer that waits for window is not woken by
//! FIN.

use std::collections::{HashMap, VecDeque};

use super::receive_window::ReceiveWindow;

/// The oldest one is forgotten for a further one.
const MAX_STREAMS: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct DiscardedStreams {
    streams: HashMap<u32, ReceiveWindow>,
    /// By age. Some are forgotten already.
    order: VecDeque<u32>,
}

impl DiscardedStreams {
    pub(crate) fn insert(&mut self, id: u32, window: ReceiveWindow) {
        self.streams.insert(id, window);
        self.order.push_back(id);
        if self.order.len() > MAX_STREAMS
            && let Some(oldest) = self.order.pop_front()
        {
            self.streams.remove(&oldest);
        }
    }

    /// True if there was such a stream.
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        self.streams.remove(&id).is_some()
    }

    /// Counts `len` bytes for `id`. `Some` with the fields of the update that is due.
    pub(crate) fn on_payload(&mut self, id: u32, len: usize, window: u32) -> Option<(u32, u32)> {
        let stream = self.streams.get_mut(&id)?;
        stream.on_discarded(len);
        stream.update_owed.then(|| stream.update(window))
    }

    #[cfg(feature = "_testkit")]
    pub(crate) fn len(&self) -> usize {
        self.streams.len().max(self.order.len())
    }
}
