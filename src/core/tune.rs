//! Windows that follow the path, where nobody has set them.
//!
//! The default holds what is on the way in some round trips and not in others. A window that was
//! used up within a round trip doubles, as long as that did not come from a queue: the sender's
//! while round trips are about as short as they can be, the receiver's while the application keeps
//! up. The sender's shrinks again when queues grow. Short paths need no more than the default.

use super::clock::Time;
use super::rtt::Rtt;
use super::seq::Sn;
use crate::config::DEFAULT_WINDOW;

/// Segments of the largest window that comes by itself.
pub(crate) const MOST: u16 = 8_192;
/// What a round trip may take longer than the shortest without a queue, microseconds.
const SLACK: u64 = 2_000;

/// What a direction has moved since its round trip began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuner {
    began: Time,
    from: Sn,
    /// The window was what kept more from leaving.
    limited: bool,
    /// The shortest round trip ever, microseconds: a queue of its own making lasts longer than
    /// anybody else remembers the path without it.
    shortest: u64,
}

impl Tuner {
    /// One for a window that nobody has set.
    pub(crate) fn of(window: u16, auto: bool, start: Sn) -> Option<Self> {
        let tuner = Self { began: Time(0), from: start, limited: false, shortest: u64::MAX };
        (auto && window == DEFAULT_WINDOW).then_some(tuner)
    }

    pub(crate) fn on_limited(&mut self) {
        self.limited = true;
    }

    /// Segments since the round trip began.
    pub(crate) fn moved(&self, next: Sn) -> u32 {
        next.offset_from(self.from).unwrap_or(0)
    }

    /// Once a round trip: the segments moved since the last time, up to `next`, and whether the
    /// window kept more from leaving.
    fn round(&mut self, now: Time, next: Sn, rtt: &Rtt) -> Option<(u32, bool)> {
        let srtt = rtt.srtt().filter(|_| !rtt.is_short())?;
        if now.since(self.began) < srtt {
            return None;
        }
        let (moved, limited) = (self.moved(next), self.limited);
        self.shortest = self.shortest.min(rtt.min());
        (self.began, self.from, self.limited) = (now, next, false);
        Some((moved, limited))
    }

    /// The sender's next window.
    pub(crate) fn send_window(&mut self, now: Time, una: Sn, rtt: &Rtt, window: u16) -> u16 {
        let Some((moved, limited)) = self.round(now, una, rtt) else { return window };
        // On a path that loses, a full window says nothing about room.
        let limited = limited && moved >= u32::from(window) / 4 * 3;
        let srtt = rtt.srtt().unwrap_or(0);
        if srtt > 2 * self.shortest + SLACK {
            (window / 4 * 3).max(DEFAULT_WINDOW)
        } else if limited && srtt <= self.shortest / 4 * 5 + SLACK {
            window.saturating_mul(2).min(MOST)
        } else {
            window
        }
    }

    /// The receiver's, where `unread` segments wait for the application.
    pub(crate) fn recv_window(
        &mut self,
        now: Time,
        next: Sn,
        rtt: &Rtt,
        (window, unread): (u16, u32),
    ) -> u16 {
        let Some((moved, _)) = self.round(now, next, rtt) else { return window };
        let window_is_used = moved >= u32::from(window) / 4 * 3;
        if window_is_used && unread <= u32::from(window) / 4 {
            window.saturating_mul(2).min(MOST)
        } else {
            window
        }
    }
}
