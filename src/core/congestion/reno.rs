//! KCP's own congestion window: slow start, avoidance, and a reaction to loss.
//!
//! Growth counts acknowledged segments, so it does not depend on how the peer bundles its
//! acknowledgements, and losses within one window of data count once.

use crate::config::CongestionControl;
use crate::core::seq::Sn;

/// Least slow-start threshold.
const MIN_SSTHRESH: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) struct CongestionWindow {
    mode: CongestionControl,
    /// Segments.
    cwnd: u32,
    ssthresh: u32,
    /// Segments acknowledged since the window last grew in avoidance.
    acked_since_growth: u32,
    /// Losses of segments before this number belong to an event already reacted to.
    recover: Sn,
}

impl CongestionWindow {
    pub(crate) fn new(mode: CongestionControl, start: Sn) -> Self {
        Self { mode, cwnd: 1, ssthresh: MIN_SSTHRESH, acked_since_growth: 0, recover: start }
    }

    pub(crate) fn set_mode(&mut self, mode: CongestionControl) {
        self.mode = mode;
    }

    pub(crate) fn is_active(&self) -> bool {
        self.mode != CongestionControl::Disabled
    }

    /// Segments that may be in flight; `u32::MAX` where the window is off.
    pub(crate) fn window(&self) -> u32 {
        match self.mode {
            CongestionControl::Reno => self.cwnd,
            CongestionControl::Disabled => u32::MAX,
        }
    }

    /// `count` segments were acknowledged; growth stops at what the peer can take.
    pub(crate) fn on_ack(&mut self, count: u32, remote_window: u32) {
        for _ in 0..count.min(self.cwnd) {
            if self.cwnd >= remote_window {
                return;
            }
            if self.cwnd < self.ssthresh {
                self.cwnd += 1;
            } else {
                self.acked_since_growth += 1;
                // One segment per window, and a sixteenth more, which is KCP's impatience.
                if self.acked_since_growth.saturating_mul(17) / 16 >= self.cwnd {
                    self.acked_since_growth = 0;
                    self.cwnd += 1;
                }
            }
        }
    }

    /// A segment was found lost by later acknowledgements.
    pub(crate) fn on_fast_retransmit(&mut self, lost: Sn, next: Sn, in_flight: u32, resend: u32) {
        if lost.since(self.recover) < 0 {
            return;
        }
        self.recover = next;
        self.ssthresh = (in_flight / 2).max(MIN_SSTHRESH);
        self.cwnd = self.ssthresh.saturating_add(resend);
        self.acked_since_growth = 0;
    }

    /// A segment timed out.
    pub(crate) fn on_timeout(&mut self, lost: Sn, next: Sn, window: u32) {
        if lost.since(self.recover) < 0 {
            return;
        }
        self.recover = next;
        self.ssthresh = (window / 2).max(MIN_SSTHRESH);
        self.cwnd = 1;
        self.acked_since_growth = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_means_no_limit() {
        assert_eq!(CongestionWindow::new(CongestionControl::Disabled, Sn(0)).window(), u32::MAX);
    }

    #[test]
    fn slow_start_then_about_one_segment_a_round() {
        let mut window = CongestionWindow::new(CongestionControl::Reno, Sn(0));
        window.ssthresh = 16;
        while window.window() < 16 {
            window.on_ack(window.window(), 1_000);
        }
        assert_eq!(window.window(), 16);
        window.on_ack(16, 1_000);
        assert_eq!(window.window(), 17);
        window.on_ack(500, 17);
        assert_eq!(window.window(), 17, "never beyond what the peer can take");
    }

    #[test]
    fn losses_of_one_window_count_once() {
        let mut window = CongestionWindow::new(CongestionControl::Reno, Sn(u32::MAX - 3));
        window.cwnd = 40;
        window.on_fast_retransmit(Sn(u32::MAX), Sn(30), 40, 2);
        assert_eq!(window.window(), 22);
        window.on_fast_retransmit(Sn(5), Sn(30), 40, 2);
        assert_eq!(window.window(), 22);
        window.on_timeout(Sn(31), Sn(50), 22);
        assert_eq!((window.window(), window.ssthresh), (1, 11));
    }
}
