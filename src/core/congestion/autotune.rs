//! Window autotuning, as Linux does for TCP buffers (dynamic right-sizing, `tcp_rcv_space_adjust`): send and
//! receive windows that the application has not set follow the bandwidth-delay product.
//!
//! Once per round trip a window doubles if three quarters of it were delivered and:
//! * send window: it was full, `srtt` is near the minimum RTT, so that the window fills no queue, and at most
//!   an eighth of the segments were retransmitted. It shrinks by a quarter, down to the default, when `srtt`
//!   exceeds twice the minimum.
//! * receive window: at most a quarter of it is unread.
//!
//! Congestive loss means a queue, and more than a quarter of the segments of a full window retransmitted, in
//! [`CONGESTED_ROUNDS`] consecutive round trips. The send window then becomes 1.25 times the measured
//! bandwidth-delay product, even below the default, and from then on grows by an eighth per round trip while
//! no queue shows. Loss without a queue may be random and does not count.
//!
//! With a BBR model, which limits rate and bytes in flight itself, a full send window simply doubles.
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
/// Consecutive round trips with congestive loss after which the send window shrinks.
const CONGESTED_ROUNDS: u8 = 2;
/// Least send window after congestive loss, segments: kcp-go's default. A round trip with fewer
/// acknowledged segments is not judged.
const MIN_AUTO_WINDOW: u32 = 32;

/// Autotuning of one window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowAutotune {
    /// When the current round trip began.
    round_start: Micros,
    /// SND.UNA (send window) or RCV.NXT (receive window) at its start.
    round_start_sn: Sn,
    /// The send window was full in the current round trip, so sending was not application-limited (RFC 9002
    /// 7.8).
    window_limited: bool,
    /// Segments acknowledged, and retransmissions, in the current round trip (send window).
    acked: u32,
    retransmits: u32,
    /// Consecutive round trips with congestive loss.
    congested_rounds: u8,
    /// The send window has shrunk because of congestive loss.
    was_congested: bool,
    /// Minimum RTT of the connection, microseconds. Unlike [`RttEstimator::min`] it covers more than 10 s,
    /// since a queue that this window keeps full lasts longer.
    base_rtt: u64,
}

impl WindowAutotune {
    /// `Some` if `window` (segments) is the default and `auto` is on. `start` is the first sequence number.
    pub(crate) fn for_window(window: u16, auto: bool, start: Sn) -> Option<Self> {
        let autotune = Self {
            round_start: Micros(0),
            round_start_sn: start,
            window_limited: false,
            acked: 0,
            retransmits: 0,
            congested_rounds: 0,
            was_congested: false,
            base_rtt: u64::MAX,
        };
        (auto && window == DEFAULT_WINDOW).then_some(autotune)
    }

    /// The send window is full.
    pub(crate) fn on_window_limited(&mut self) {
        self.window_limited = true;
    }

    /// `count` segments were acknowledged for the first time.
    #[inline]
    pub(crate) fn on_acked(&mut self, count: u32) {
        self.acked = self.acked.saturating_add(count);
    }

    /// A segment is retransmitted.
    pub(crate) fn on_retransmit(&mut self) {
        self.retransmits = self.retransmits.saturating_add(1);
    }

    /// Segments delivered in the current round trip. `next` is SND.UNA or RCV.NXT.
    pub(crate) fn delivered(&self, next: Sn) -> u32 {
        next.offset_from(self.round_start_sn).unwrap_or(0)
    }

    /// Ends the current round trip if it has lasted `srtt`. Returns the segments delivered in it, and whether
    /// the send window was full.
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

    /// The new send window, segments; `una` is SND.UNA. `rate_based`: a BBR model limits rate and bytes in
    /// flight. Then the window doubles if it was full and a quarter of it was delivered.
    pub(crate) fn send_window(
        &mut self,
        now: Micros,
        una: Sn,
        rtt: &RttEstimator,
        window: u16,
        rate_based: bool,
    ) -> u16 {
        let Some((delivered, window_limited)) = self.end_round(now, una, rtt) else {
            return window;
        };
        let acked = std::mem::take(&mut self.acked);
        let retransmits = std::mem::take(&mut self.retransmits);
        if rate_based {
            // Segments acknowledged above a gap do not limit the model, but a window full of them need not
            // grow.
            let is_used = window_limited && delivered >= u32::from(window) / 4;
            return if is_used { window.saturating_mul(2).min(MAX_AUTO_WINDOW) } else { window };
        }
        let srtt = rtt.srtt().unwrap_or(0);
        // The queue of a window that has shrunk drains within 10 s, so the path itself has become longer.
        if self.was_congested && rtt.min() > 2 * self.base_rtt + QUEUE_DELAY_TOLERANCE {
            self.base_rtt = rtt.min();
        }
        let queue = srtt > self.base_rtt / 4 * 5 + QUEUE_DELAY_TOLERANCE;
        let measured = window_limited && acked >= MIN_AUTO_WINDOW;
        if queue && measured && retransmits > acked / 4 {
            self.congested_rounds += 1;
        } else {
            self.congested_rounds = 0;
        }
        if self.congested_rounds >= CONGESTED_ROUNDS {
            (self.congested_rounds, self.was_congested) = (0, true);
            // Delivered in `srtt`, scaled to the minimum RTT: without the queue.
            let bdp = u64::from(acked) * self.base_rtt / srtt.max(1);
            let target = (bdp + bdp / 4).max(u64::from(MIN_AUTO_WINDOW));
            return u16::try_from(target).map_or(window, |target| target.min(window));
        }
        if srtt > 2 * self.base_rtt + QUEUE_DELAY_TOLERANCE {
            return (window / 4 * 3).max(DEFAULT_WINDOW.min(window));
        }
        if queue || !window_limited {
            return window;
        }
        if self.was_congested {
            // Congestion avoidance, faster than in RFC 5681: on a long fat path many round trips pass between
            // two losses.
            return window.saturating_add(window / 8).min(MAX_AUTO_WINDOW);
        }
        // A window that is full because a lost segment holds SND.UNA back delivers less.
        let used = delivered >= u32::from(window) / 4 * 3 && retransmits <= acked / 8;
        if used { window.saturating_mul(2).min(MAX_AUTO_WINDOW) } else { window }
    }

    /// The new receive window, segments; `next` is RCV.NXT, `unread` the segments that the application has
    /// not read.
    pub(crate) fn recv_window(
        &mut self,
        now: Micros,
        next: Sn,
        rtt: &RttEstimator,
        window: u16,
        unread: u32,
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
