//! Windows that follow the path, where nobody has set them.
//!
//! The default holds what is on the way in some round trips and not in others. A window that was
//! used up within a round trip doubles, as long as that did not come from a queue: the sender's
//! while round trips are about as short as they can be, the receiver's while the application keeps
//! up. The sender's shrinks again when queues grow. Short paths need no more than the default.

use crate::config::DEFAULT_WINDOW;
use crate::core::clock::Micros;
use crate::core::recovery::rtt::RttEstimator;
use crate::core::seq::Sn;

/// Segments of the largest window that comes by itself.
pub(crate) const MAX_AUTO_WINDOW: u16 = 8_192;
/// What a round trip may take longer than the shortest without a queue, microseconds.
const QUEUE_DELAY_TOLERANCE: u64 = 2_000;

/// What a direction has moved since its round trip began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowAutotune {
    began: Micros,
    from: Sn,
    /// The window was what kept more from leaving.
    window_limited: bool,
    /// The shortest round trip ever, microseconds: a queue of its own making lasts longer than
    /// anybody else remembers the path without it.
    base_rtt: u64,
}

impl WindowAutotune {
    /// One for a window that nobody has set.
    pub(crate) fn of(window: u16, auto: bool, start: Sn) -> Option<Self> {
        let tuner =
            Self { began: Micros(0), from: start, window_limited: false, base_rtt: u64::MAX };
        (auto && window == DEFAULT_WINDOW).then_some(tuner)
    }

    pub(crate) fn on_limited(&mut self) {
        self.window_limited = true;
    }

    /// Segments since the round trip began.
    pub(crate) fn delivered(&self, next: Sn) -> u32 {
        next.offset_from(self.from).unwrap_or(0)
    }

    /// Once a round trip: the segments moved since the last time, up to `next`, and whether the
    /// window kept more from leaving.
    fn round(&mut self, now: Micros, next: Sn, rtt: &RttEstimator) -> Option<(u32, bool)> {
        let srtt = rtt.srtt().filter(|_| !rtt.is_short())?;
        if now.since(self.began) < srtt {
            return None;
        }
        let (moved, limited) = (self.delivered(next), self.window_limited);
        self.base_rtt = self.base_rtt.min(rtt.min());
        (self.began, self.from, self.window_limited) = (now, next, false);
        Some((moved, limited))
    }

    /// The sender's next window.
    pub(crate) fn send_window(
        &mut self,
        now: Micros,
        una: Sn,
        rtt: &RttEstimator,
        window: u16,
    ) -> u16 {
        let Some((moved, limited)) = self.round(now, una, rtt) else { return window };
        // On a path that loses, a full window says nothing about room.
        let limited = limited && moved >= u32::from(window) / 4 * 3;
        let srtt = rtt.srtt().unwrap_or(0);
        if srtt > 2 * self.base_rtt + QUEUE_DELAY_TOLERANCE {
            (window / 4 * 3).max(DEFAULT_WINDOW)
        } else if limited && srtt <= self.base_rtt / 4 * 5 + QUEUE_DELAY_TOLERANCE {
            window.saturating_mul(2).min(MAX_AUTO_WINDOW)
        } else {
            window
        }
    }

    /// The receiver's, where `unread` segments wait for the application.
    pub(crate) fn recv_window(
        &mut self,
        now: Micros,
        next: Sn,
        rtt: &RttEstimator,
        (window, unread): (u16, u32),
    ) -> u16 {
        let Some((moved, _)) = self.round(now, next, rtt) else { return window };
        let window_is_used = moved >= u32::from(window) / 4 * 3;
        if window_is_used && unread <= u32::from(window) / 4 {
            window.saturating_mul(2).min(MAX_AUTO_WINDOW)
        } else {
            window
        }
    }
}
