//! The window that this side grants on one stream (version 2).

use std::collections::{BTreeMap, HashMap};

use super::frame::{INITIAL_WINDOW, MAX_PAYLOAD};

/// `consumed` values count all bytes of the stream modulo 2^32, as on the wire.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    consumed: u32,
    /// `consumed` of the last update.
    advertised: u32,
    /// The window of the last update, bytes; 0 before the first.
    window: u32,
    max_window: u32,
    /// Bytes that may be credited without being read, see [`ReceiveWindow::discard_from`].
    credit: u32,
    /// An update is due.
    pub(crate) update_owed: bool,
}

impl ReceiveWindow {
    pub(crate) fn new() -> Self {
        Self {
            consumed: 0,
            advertised: 0,
            window: 0,
            max_window: INITIAL_WINDOW,
            credit: 0,
            update_owed: false,
        }
    }

    /// Notes that the application read `len` bytes: an update is due after the first read, and
    /// whenever half of the window has been read since the last update.
    pub(crate) fn on_read(&mut self, len: usize) {
        let is_first = self.consumed == 0;
        self.consume(len);
        if is_first || self.is_half_consumed() {
            self.update_owed = true;
        }
    }

    /// From now on the stream is not read, and `unread` bytes were discarded. The peer is granted
    /// one more window: only a window update tells a waiting writer of a FIN.
    pub(crate) fn discard_from(&mut self, unread: usize, window: u32) {
        self.consume(unread);
        self.credit = window;
        self.update_owed = true;
    }

    /// `len` bytes arrived that will not be read.
    pub(crate) fn on_discarded(&mut self, len: usize) {
        let credited = self.credit.min(truncate(len));
        self.credit -= credited;
        self.consumed = self.consumed.wrapping_add(credited);
        if credited > 0 && self.is_half_consumed() {
            self.update_owed = true;
        }
    }

    /// Returns the fields of an update that is written now, `consumed` and `window`.
    pub(crate) fn update(&mut self, window: u32) -> (u32, u32) {
        self.update_owed = false;
        self.advertised = self.consumed;
        self.window = window;
        self.max_window = self.max_window.max(window);
        (self.consumed, window)
    }

    /// Most unread bytes of a peer that respects the window: xtaci/smux with two writers on a
    /// stream exceeds it by a frame.
    pub(crate) fn max_unread(&self) -> u64 {
        u64::from(self.max_window) + u64::from(MAX_PAYLOAD)
    }

    fn consume(&mut self, len: usize) {
        self.consumed = self.consumed.wrapping_add(truncate(len));
    }

    fn is_half_consumed(&self) -> bool {
        self.consumed.wrapping_sub(self.advertised) >= (self.window / 2).max(1)
    }
}

/// Lengths are at most 2^31 - 1, see `Config::max_receive_buffer`.
#[expect(clippy::cast_possible_truncation, reason = "counters are modulo 2^32")]
fn truncate(len: usize) -> u32 {
    len as u32
}

/// Limit of streams; beyond it the oldest is forgotten.
const MAX_STREAMS: usize = 4_096;

/// Streams dropped before the peer's FIN (version 2). Payload that still arrives for them is
/// discarded and credited, up to one window: FIN does not wake a peer's writer that waits for
/// window.
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
