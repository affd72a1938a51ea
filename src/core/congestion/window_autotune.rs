//! Window autotuning, as Linux does for TCP buffers (dynamic right-sizing,
//! `tcp_rcv_space_adjust`): send and receive windows that the application has not set track the
//! bandwidth-delay product.
//!
//! Once per round trip a window doubles if three quarters of it were delivered, and:
//! * send window: it was full, `srtt` is near the minimum RTT, so that the window does not fill a
//!   queue, and few segments were retransmitted; below the default it grows by an eighth instead.
//!   It shrinks by a quarter, down to the default, when `srtt` exceeds twice the minimum; and to 1.25
//!   times the measured bandwidth-delay product, below the default too, when retransmissions and a
//!   queue together show congestion.
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
/// Round trips in a row with congestive loss after which the send window shrinks.
const CONGESTED_ROUNDS: u8 = 2;
/// Least send window after congestive loss, segments.
const MIN_AUTO_WINDOW: u64 = 32;

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
    /// Segments acknowledged and retransmissions in the current round trip (send window).
    acked: u32,
    retransmits: u32,
    /// Latest round trips in a row with congestive loss.
    congested_rounds: u8,
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
            acked: 0,
            retransmits: 0,
            congested_rounds: 0,
            base_rtt: u64::MAX,
        };
        (auto && window == DEFAULT_WINDOW).then_some(autotune)
    }

    /// The send window is full.
    pub(crate) fn on_window_limited(&mut self) {
        self.window_limited = true;
    }

    /// A segment was acknowledged for the first time.
    #[inline]
    pub(crate) fn on_acked(&mut self) {
        self.acked = self.acked.saturating_add(1);
    }

    /// A segment is retransmitted.
    pub(crate) fn on_retransmit(&mut self) {
        self.retransmits = self.retransmits.saturating_add(1);
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
        let queue = srtt > self.base_rtt / 4 * 5 + QUEUE_DELAY_TOLERANCE;
        let acked = std::mem::take(&mut self.acked);
        let retransmits = std::mem::take(&mut self.retransmits);
        let congested = queue && retransmits > acked / 4;
        self.congested_rounds = if congested { self.congested_rounds + 1 } else { 0 };
        if self.congested_rounds >= CONGESTED_ROUNDS {
            self.congested_rounds = 0;
            // What the path delivered in `srtt`, for the minimum RTT: without the queue.
            let bdp = u64::from(acked) * self.base_rtt / srtt.max(1);
            let target = (bdp + bdp / 4).max(MIN_AUTO_WINDOW);
            u16::try_from(target).map_or(window, |target| target.min(window))
        } else if srtt > 2 * self.base_rtt + QUEUE_DELAY_TOLERANCE {
            (window / 4 * 3).max(DEFAULT_WINDOW.min(window))
        } else if window_limited && !queue && retransmits <= acked / 8 {
            let growth = if window < DEFAULT_WINDOW { window / 8 } else { window };
            window.saturating_add(growth).min(MAX_AUTO_WINDOW)
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
