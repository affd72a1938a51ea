//! Window autotuning, as Linux does for TCP buffers (dynamic right-sizing,
//! `tcp_rcv_space_adjust`): send and receive windows that the application has not set track the
//! bandwidth-delay product.
//!
//! Once per round trip, a window of which three quarters were delivered doubles:
//! * the send window while the window was the limit and `srtt` is near its minimum, so that it
//!   does not fill a queue. It shrinks by a quarter, down to the default, when `srtt` doubles.
//! * the receive window while the application keeps up with reading.
//!
//! Paths with a short round trip keep the default. kcp-go has fixed windows. Tested in
//! `core/tests/window_autotune.rs`.

use crate::config::DEFAULT_WINDOW;
use crate::core::clock::Micros;
use crate::core::recovery::rtt::RttEstimator;
use crate::core::seq::Sn;

/// Largest window that autotuning reaches, segments.
pub(crate) const MAX_AUTO_WINDOW: u16 = 8_192;
/// Jitter by which `srtt` may exceed its minimum without counting as a queue, microseconds.
const QUEUE_DELAY_TOLERANCE: u64 = 2_000;

/// Autotuning of one window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowAutotune {
    /// When the current round trip began.
    round_start: Micros,
    /// The next number to be delivered at that time.
    round_start_sn: Sn,
    /// The send window was full in the current round trip: the opposite of app-limited (RFC 9002
    /// 7.8). Cleared at its end.
    window_limited: bool,
    /// Minimum RTT of the connection, microseconds. Without the 10 s window of
    /// [`RttEstimator::min`], because a queue that this window filled lasts longer.
    base_rtt: u64,
}

impl WindowAutotune {
    /// `Some` if `window`, segments, is the default and `auto` is on. `start` is the first number.
    pub(crate) fn for_window(window: u16, auto: bool, start: Sn) -> Option<Self> {
        let autotune = Self {
            round_start: Micros(0),
            round_start_sn: start,
            window_limited: false,
            base_rtt: u64::MAX,
        };
        (auto && window == DEFAULT_WINDOW).then_some(autotune)
    }

    /// The send window is full.
    pub(crate) fn on_window_limited(&mut self) {
        self.window_limited = true;
    }

    /// Segments delivered in the current round trip, up to `next`.
    pub(crate) fn delivered(&self, next: Sn) -> u32 {
        next.offset_from(self.round_start_sn).unwrap_or(0)
    }

    /// Ends the current round trip after `srtt`: the segments delivered in it, and whether the
    /// send window was full.
    fn end_round(&mut self, now: Micros, next: Sn, rtt: &RttEstimator) -> Option<(u32, bool)> {
        let srtt = rtt.srtt().filter(|_| !rtt.is_short())?;
        if now.since(self.round_start) < srtt {
            return None;
        }
        let (delivered, window_limited) = (self.delivered(next), self.window_limited);
        self.base_rtt = self.base_rtt.min(rtt.min());
        (self.round_start, self.round_start_sn, self.window_limited) = (now, next, false);
        Some((delivered, window_limited))
    }

    /// The new send window, segments.
    pub(crate) fn send_window(
        &mut self,
        now: Micros,
        una: Sn,
        rtt: &RttEstimator,
        window: u16,
    ) -> u16 {
        let Some((delivered, window_limited)) = self.end_round(now, una, rtt) else {
            return window;
        };
        // A window that was full because of a loss delivers less than three quarters.
        let window_limited = window_limited && delivered >= u32::from(window) / 4 * 3;
        let srtt = rtt.srtt().unwrap_or(0);
        if srtt > 2 * self.base_rtt + QUEUE_DELAY_TOLERANCE {
            (window / 4 * 3).max(DEFAULT_WINDOW)
        } else if window_limited && srtt <= self.base_rtt / 4 * 5 + QUEUE_DELAY_TOLERANCE {
            window.saturating_mul(2).min(MAX_AUTO_WINDOW)
        } else {
            window
        }
    }

    /// The new receive window, segments, while `unread` segments wait for the application.
    pub(crate) fn recv_window(
        &mut self,
        now: Micros,
        next: Sn,
        rtt: &RttEstimator,
        (window, unread): (u16, u32),
    ) -> u16 {
        let Some((delivered, _)) = self.end_round(now, next, rtt) else { return window };
        let is_used = delivered >= u32::from(window) / 4 * 3;
        if is_used && unread <= u32::from(window) / 4 {
            window.saturating_mul(2).min(MAX_AUTO_WINDOW)
        } else {
            window
        }
    }
}
