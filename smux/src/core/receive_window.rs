//! The window that this side grants on one stream (version 2).

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
