//! KCP's congestion window: slow start, congestion avoidance and fast recovery (RFC 5681; kcp-go
//! `cwnd`, `incr`, `ssthresh`).
//!
//! Unlike kcp-go, which grows the window once per `Input` and reduces it once per `flush`:
//!   its ACKs.
//! * Losses within one window of data reduce it once (`recover`, RFC 6582 3.2).

use crate::core::seq::Sn;

/// Least slow-start threshold, segments (IKCP_THRESH_MIN; as in RFC 5681 3.1).
#[doc(alias = "IKCP_THRESH_MIN")]
const MIN_SSTHRESH: u32 = 2;

/// The congestion window of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CongestionWindow {
    /// Segments.
    cwnd: u32,
    /// Slow-start threshold, segments.
    ssthresh: u32,
    /// Segments acknowledged since the window last grew in congestion avoidance (RFC 3465 2.1).
    acked_since_growth: u32,
    /// SND.NXT at the last reduction: losses of earlier segments belong to the same loss event (RFC 6582
    /// 3.2).
    recover: Sn,
}

impl CongestionWindow {
    /// Starts with a window of one segment, as kcp-go `flush` does. `start`: first sequence number.
    pub(crate) fn new(start: Sn) -> Self {
        Self { cwnd: 1, ssthresh: MIN_SSTHRESH, acked_since_growth: 0, recover: start }
    }

    /// Starts with the segments in flight as window, so that their acknowledgements do not wait.
    pub(crate) fn with_in_flight(start: Sn, segments: usize) -> Self {
        let cwnd = u32::try_from(segments).unwrap_or(u32::MAX).max(1);
        Self { cwnd, ssthresh: cwnd.max(MIN_SSTHRESH), ..Self::new(start) }
    }

    /// Segments that may be in flight.
    pub(crate) fn window(&self) -> u32 {
        self.cwnd
    }

    /// `count` segments were acknowledged cumulatively. The window grows up to `remote_window` segments
    /// (kcp-go `Input`, `rmt_wnd`). At most `cwnd` segments count per call (RFC 3465 2.3 has the limit L).
    pub(crate) fn on_ack(&mut self, count: u32, remote_window: u32) {
        for _ in 0..count.min(self.cwnd) {
            if self.cwnd >= remote_window {
                return;
            }
            if self.cwnd < self.ssthresh {
                self.cwnd += 1;
            } else {
                self.acked_since_growth += 1;
                // One segment per window (RFC 5681 3.1), plus KCP's `mss / 16` per ACK.
                if self.acked_since_growth.saturating_mul(17) / 16 >= self.cwnd {
                    self.acked_since_growth = 0;
                    self.cwnd += 1;
                }
            }
        }
    }

    /// ACKs of later transmissions showed that segment `lost` is lost; `nxt` is SND.NXT (RFC 5681 3.2; kcp-go
    /// `flush`: `cwnd` becomes half of `in_flight`, plus `fastresend`).
    pub(crate) fn on_fast_retransmit(
        &mut self,
        lost: Sn,
        nxt: Sn,
        in_flight: u32,
        fast_resend: u32,
    ) {
        if lost.since(self.recover) < 0 {
            return;
        }
        self.recover = nxt;
        self.ssthresh = (in_flight / 2).max(MIN_SSTHRESH);
        self.cwnd = self.ssthresh.saturating_add(fast_resend);
        self.acked_since_growth = 0;
    }

    /// The RTO of segment `lost` expired; `nxt` is SND.NXT, `window` the effective window (RFC 5681 3.1;
    /// kcp-go `flush`: `cwnd` becomes one segment).
    pub(crate) fn on_timeout(&mut self, lost: Sn, nxt: Sn, window: u32) {
        if lost.since(self.recover) < 0 {
            return;
        }
        self.recover = nxt;
        self.ssthresh = (window / 2).max(MIN_SSTHRESH);
        self.cwnd = 1;
        self.acked_since_growth = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cwnd_grows_by_slow_start_then_one_segment_per_window() {
        let mut window = CongestionWindow::new(Sn(0));
        window.ssthresh = 16;
        while window.window() < 16 {
            window.on_ack(window.window(), 1_000);
        }
        assert_eq!(window.window(), 16);
        window.on_ack(16, 1_000);
        assert_eq!(window.window(), 17);
        window.on_ack(500, 17);
        assert_eq!(window.window(), 17, "never beyond the peer's window");
    }

    #[test]
    fn cwnd_losses_of_one_window_reduce_once() {
        let mut window = CongestionWindow::new(Sn(u32::MAX - 3));
        window.cwnd = 40;
        window.on_fast_retransmit(Sn(u32::MAX), Sn(30), 40, 2);
        assert_eq!(window.window(), 22);
        window.on_fast_retransmit(Sn(5), Sn(30), 40, 2);
        assert_eq!(window.window(), 22);
        window.on_timeout(Sn(31), Sn(50), 22);
        assert_eq!((window.window(), window.ssthresh), (1, 11));
    }

    #[test]
    fn cwnd_after_a_loss_counts_acks_for_its_growth_from_zero() {
        let reductions: [fn(&mut CongestionWindow); 2] = [
            |window| window.on_timeout(Sn(0), Sn(40), 16),
            |window| window.on_fast_retransmit(Sn(0), Sn(40), 16, 0),
        ];
        for reduce in reductions {
            let mut window = CongestionWindow::new(Sn(0));
            (window.cwnd, window.ssthresh) = (32, 32);
            window.on_ack(20, 1_000);
            reduce(&mut window);
            while window.window() < 8 {
                window.on_ack(1, 1_000);
            }
            window.on_ack(7, 1_000);
            assert_eq!(window.window(), 8);
            window.on_ack(1, 1_000);
            assert_eq!(window.window(), 9);
        }
    }
}
