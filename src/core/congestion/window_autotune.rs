//! Window autotuning, as Linux does for TCP buffers (dynamic right-sizing,
//! `tcp_rcv_space_adjust`): send and receive windows that the application has not set track the
//! bandwidth-delay product.
//!
//! Once per round trip a window doubles if three quarters of it were delivered, and:
//! * send window: it was full, and `srtt` is near the minimum RTT, so that the window does not fill
//!   a queue. It shrinks by a quarter, down to the default, when `srtt` exceeds twice the minimum.
//! * receive window: at most a quarter of it is unread.
//!
//! Paths with a round trip below 2 ms keep the default. kcp-go has fixed windows. Tested in
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
    /// SND.UNA (send window) or RCV.NXT (receive window) at that time.
    round_start_sn: Sn,
    /// The send window was full in the current round trip: the opposite of app-limited (RFC 9002
    /// 7.8). Cleared at its end.
    window_limited: bool,
    /// Minimum RTT of the connection, microseconds; not of the last 10 s as [`RttEstimator::min`],
    /// because a queue that this window keeps full lasts longer than that.
    base_rtt: u64,
}

impl WindowAutotune {
    /// `Some` if `window`, segments, is the default and `auto` is on. `start` is the first sequence
    /// number.
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

    /// Segments delivered in the current round trip. `next` is SND.UNA or RCV.NXT.
    pub(crate) fn delivered(&self, next: Sn) -> u32 {
        next.offset_from(self.round_start_sn).unwrap_or(0)
    }

    /// Ends the current round trip if it has lasted `srtt`. Returns the segments delivered in it,
    /// and whether the send window was full.
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

    /// The new send window, segments; `una` is SND.UNA.
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
        // A send window that is full because a lost segment holds SND.UNA back delivers less than
        // three quarters.
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

    /// The new receive window, segments; `next` is RCV.NXT, `unread` the segments that the
    /// application has not read.
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
