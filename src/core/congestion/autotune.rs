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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// An estimator with this minimum and smoothed RTT, microseconds.
    fn path(min: u64, srtt: u64) -> RttEstimator {
        let mut rtt = RttEstimator::new(Duration::from_secs(10));
        rtt.on_sample(Micros(0), min);
        (0..200).for_each(|_| rtt.on_sample(Micros(0), srtt));
        rtt
    }

    /// A window and its autotuning, on a path with a minimum RTT of 50 ms.
    struct Window {
        autotune: WindowAutotune,
        segments: u16,
        now: Micros,
        next: Sn,
    }

    impl Window {
        fn new(segments: u16) -> Self {
            let autotune = WindowAutotune::for_window(DEFAULT_WINDOW, true, Sn(0)).unwrap();
            let mut window = Self { autotune, segments, now: Micros(1), next: Sn(0) };
            window.idle_round();
            window
        }

        /// A round trip without data, which shows the minimum RTT.
        fn idle_round(&mut self) {
            assert_eq!(self.end_round(&path(50_000, 50_000), false), self.segments);
        }

        /// A round trip in which the send window was full.
        fn round(&mut self, rtt: &RttEstimator, delivered: u32, retransmits: u32) -> u16 {
            self.autotune.on_window_limited();
            self.autotune.on_acked(delivered);
            (0..retransmits).for_each(|_| self.autotune.on_retransmit());
            self.next = self.next.advance(delivered);
            self.end_round(rtt, false)
        }

        fn end_round(&mut self, rtt: &RttEstimator, rate_based: bool) -> u16 {
            self.now = self.now.add_micros(1_000_000);
            let (now, next) = (self.now, self.next);
            self.segments = self.autotune.send_window(now, next, rtt, self.segments, rate_based);
            self.segments
        }
    }

    #[test]
    fn full_send_window_doubles_if_most_of_it_arrived_and_little_was_lost() {
        let path = path(50_000, 50_000);
        for (delivered, retransmits, expected) in [
            (1_024, 0, 2_048),
            (768, 96, 2_048),
            (767, 0, 1_024),
            (768, 97, 1_024),
            (1_024, 128, 2_048),
            (1_024, 129, 1_024),
        ] {
            let window = Window::new(1_024).round(&path, delivered, retransmits);
            assert_eq!(window, expected, "{delivered} delivered, {retransmits} retransmitted");
        }
        let mut unused = Window::new(1_024);
        unused.next = Sn(1_024);
        unused.autotune.on_acked(1_024);
        assert_eq!(unused.end_round(&path, false), 1_024, "it was not full");
        assert_eq!(Window::new(MAX_AUTO_WINDOW).round(&path, 8_192, 0), MAX_AUTO_WINDOW);
    }

    #[test]
    fn full_send_window_of_a_model_doubles_if_a_quarter_of_it_arrived() {
        for (delivered, expected) in [(255, 1_024), (256, 2_048)] {
            let mut window = Window::new(1_024);
            window.autotune.on_window_limited();
            window.next = Sn(delivered);
            assert_eq!(window.end_round(&path(50_000, 300_000), true), expected, "{delivered}");
        }
    }

    #[test]
    fn send_window_with_a_long_queue_shrinks_by_a_quarter_down_to_the_default() {
        for (srtt, before, after) in [
            (110_000, 4_096, 3_072),
            (110_000, 1_100, 1_024),
            (110_000, 500, 500),
            (103_000, 4_096, 3_072),
            // A queue of up to the minimum RTT, and a tolerance of 2 ms, stop growth alone.
            (101_000, 4_096, 4_096),
        ] {
            let window = Window::new(before).round(&path(50_000, srtt), before.into(), 0);
            assert_eq!(window, after, "{before} at {srtt} us");
        }
    }

    /// A window after congestive loss: 400 segments per round trip of 100 ms were acknowledged, of which
    /// 50 ms are a queue.
    fn congested() -> Window {
        let (mut window, path) = (Window::new(1_024), path(50_000, 100_000));
        assert_eq!(window.round(&path, 400, 101), 1_024, "one round trip may be chance");
        assert_eq!(window.round(&path, 400, 101), 250, "five quarters of 200 segments");
        window
    }

    #[test]
    fn send_window_after_congestive_loss_grows_by_an_eighth() {
        assert_eq!(congested().round(&path(50_000, 50_000), 250, 0), 281);
        let mut window = Window::new(1_024);
        let path = path(50_000, 100_000);
        for retransmits in [101, 100, 101] {
            assert_eq!(window.round(&path, 400, retransmits), 1_024, "not in a row");
        }
    }

    #[test]
    fn send_window_on_a_path_that_has_become_longer_goes_on_growing() {
        assert_eq!(congested().round(&path(120_000, 120_000), 250, 0), 281);
        // Within the tolerance it may be a queue.
        assert_eq!(congested().round(&path(102_000, 102_000), 250, 0), 250);
        let mut never_congested = Window::new(4_096);
        assert_eq!(never_congested.round(&path(120_000, 120_000), 4_096, 0), 3_072);
    }

    #[test]
    fn receive_window_doubles_if_most_of_it_arrived_and_was_read() {
        for (delivered, unread, expected) in
            [(768, 256, 2_048), (767, 0, 1_024), (768, 257, 1_024), (1_024, 0, 2_048)]
        {
            let mut autotune = WindowAutotune::for_window(DEFAULT_WINDOW, true, Sn(0)).unwrap();
            let (now, next) = (Micros(100_000), Sn(delivered));
            let window = autotune.recv_window(now, next, &path(50_000, 50_000), 1_024, unread);
            assert_eq!(window, expected, "{delivered} delivered, {unread} unread");
        }
    }
}
