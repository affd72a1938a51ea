//! The peer's receive window (RFC 9293 SND.WND, kept as a right edge) and zero-window probing (RFC
//! 9293 3.8.6.1; kcp-go `rmt_wnd`, `probe_wait`).
//!
//! kcp-go and C take `wnd` of every segment in order of arrival, so a reordered datagram shrinks or reopens
//! the window. Here the right edge `una + wnd` only grows, since a receiver should not shrink its window (RFC
//! 9293 3.8.6). If a peer does shrink it, the smaller edge is accepted once [`SHRINK_REPORTS`] segments have
//! advertised one over a round trip.

use crate::core::clock::Micros;
use crate::core::seq::Sn;

/// Window assumed before the peer advertised one, segments (IKCP_WND_RCV of kcp-go; C has 128).
#[doc(alias = "IKCP_WND_RCV")]
const INITIAL_REMOTE_WINDOW: u16 = 32;
/// Segments that must advertise a smaller right edge before that edge is accepted.
const SHRINK_REPORTS: u8 = 3;
/// Time from the window's closing to the first window probe, microseconds (RFC 9293 3.8.6.1;
/// IKCP_PROBE_INIT of kcp-go, C has 5 s).
#[doc(alias = "IKCP_PROBE_INIT")]
const PROBE_INIT: u64 = 500_000;
/// Longest interval between window probes, microseconds (IKCP_PROBE_LIMIT). It is 5 s instead of 120 s, so
/// that a lost window update costs seconds; and intervals double, while kcp-go adds half.
#[doc(alias = "IKCP_PROBE_LIMIT")]
const PROBE_LIMIT: u64 = 5_000_000;

/// A smaller right edge that the peer advertises (RFC 9293 3.8.6 "shrinking the window").
#[derive(Clone, Copy, Debug)]
struct ShrinkCandidate {
    /// The largest of the smaller edges.
    edge: Sn,
    since: Micros,
    /// Segments that advertised a smaller edge.
    reports: u8,
}

/// Persist timer (RFC 9293 3.8.6.1).
#[derive(Clone, Copy, Debug)]
struct PersistTimer {
    /// Microseconds.
    interval: u64,
    next: Micros,
    /// When the latest window probe left.
    sent: Option<Micros>,
}

/// The peer's receive window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteWindow {
    /// Right edge: the first number that the peer does not accept.
    edge: Sn,
    /// Largest window that the peer advertised; `None` before the first.
    largest: Option<u16>,
    shrink: Option<ShrinkCandidate>,
    /// Runs while the peer's window, or a `una` that the peer holds back, blocks sending.
    persist: Option<PersistTimer>,
    /// Longest interval between window probes, microseconds.
    probe_limit: u64,
}

impl RemoteWindow {
    pub(crate) fn new(start: Sn) -> Self {
        Self {
            edge: start.advance(u32::from(INITIAL_REMOTE_WINDOW)),
            largest: None,
            shrink: None,
            persist: None,
            probe_limit: PROBE_LIMIT,
        }
    }

    /// Segments from `una` to the right edge.
    pub(crate) fn available(&self, una: Sn) -> u32 {
        self.edge.offset_from(una).unwrap_or(0)
    }

    /// Largest window advertised so far, else the initial assumption.
    pub(crate) fn largest(&self) -> u16 {
        self.largest.unwrap_or(INITIAL_REMOTE_WINDOW)
    }

    /// A segment with a current `una` advertised `wnd` segments. `srtt` in microseconds.
    pub(crate) fn on_window(&mut self, now: Micros, una: Sn, wnd: u16, srtt: u64) {
        let edge = una.advance(u32::from(wnd));
        let first = self.largest.is_none();
        self.largest = Some(self.largest.map_or(wnd, |largest| largest.max(wnd)));
        if first || edge.since(self.edge) >= 0 {
            self.edge = edge;
            self.shrink = None;
            return;
        }
        let shrink = self.shrink.get_or_insert(ShrinkCandidate { edge, since: now, reports: 0 });
        if edge.since(shrink.edge) > 0 {
            shrink.edge = edge;
        }
        shrink.reports = shrink.reports.saturating_add(1);
        if shrink.reports >= SHRINK_REPORTS && now.since(shrink.since) >= srtt {
            self.edge = shrink.edge;
            self.shrink = None;
        }
    }

    /// Limits the time between window probes to `interval` microseconds, if that is less than the default.
    pub(crate) fn limit_probe_interval(&mut self, now: Micros, interval: u64) {
        self.probe_limit = interval.min(PROBE_LIMIT);
        if let Some(persist) = &mut self.persist {
            persist.interval = persist.interval.min(self.probe_limit);
            persist.next = persist.next.min(now.add_micros(self.probe_limit));
        }
    }

    /// Starts or stops the persist timer. `blocked`: see `Sender::is_window_blocked`.
    pub(crate) fn update_persist_timer(&mut self, now: Micros, blocked: bool) {
        match (blocked, self.persist) {
            (true, None) => {
                let interval = PROBE_INIT.min(self.probe_limit);
                let next = now.add_micros(interval);
                self.persist = Some(PersistTimer { interval, next, sent: None });
            }
            (false, Some(_)) => self.persist = None,
            _ => {}
        }
    }

    /// Whether a window probe is due now; schedules the next one if so.
    pub(crate) fn poll_window_probe(&mut self, now: Micros) -> bool {
        let Some(persist) = &mut self.persist else { return false };
        if now < persist.next {
            return false;
        }
        persist.interval = (persist.interval * 2).min(self.probe_limit);
        (persist.next, persist.sent) = (now.add_micros(persist.interval), Some(now));
        true
    }

    /// When the latest window probe left since the window closed.
    pub(crate) fn probe_sent(&self) -> Option<Micros> {
        self.persist?.sent
    }

    /// When the next window probe is due.
    pub(crate) fn deadline(&self) -> Option<Micros> {
        self.persist.map(|persist| persist.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: u64 = 50_000;

    #[test]
    fn window_first_advertisement_replaces_the_initial_window() {
        let mut window = RemoteWindow::new(Sn(0));
        assert_eq!(window.available(Sn(0)), 32);
        window.on_window(Micros(0), Sn(0), 4, RTT);
        assert_eq!(window.available(Sn(0)), 4);
    }

    #[test]
    fn window_of_a_reordered_datagram_is_ignored() {
        let mut window = RemoteWindow::new(Sn(u32::MAX - 5));
        window.on_window(Micros(0), Sn(u32::MAX), 100, RTT);
        window.on_window(Micros(1), Sn(20), 100, RTT);
        for edge in [0, 40] {
            window.on_window(Micros(2), Sn(20), edge, RTT);
        }
        assert_eq!(window.available(Sn(20)), 100);
    }

    /// Rule: P-16.
    #[test]
    fn window_shrinks_after_three_reports_over_a_round_trip() {
        let mut window = RemoteWindow::new(Sn(0));
        window.on_window(Micros(0), Sn(0), 100, RTT);
        window.on_window(Micros(10), Sn(0), 8, RTT);
        window.on_window(Micros(20), Sn(0), 10, RTT);
        window.on_window(Micros(30), Sn(0), 9, RTT);
        assert_eq!(window.available(Sn(0)), 100, "all within one round trip");
        window.on_window(Micros(10 + RTT), Sn(0), 9, RTT);
        assert_eq!(window.available(Sn(0)), 10, "the largest of the smaller edges");
        for (at, available) in [(0, 10), (RTT, 10), (RTT + 10, 4)] {
            window.on_window(Micros(3 * RTT + at), Sn(0), 4, RTT);
            assert_eq!(window.available(Sn(0)), available, "three reports");
        }
    }

    #[test]
    fn window_probe_interval_doubles_to_five_seconds_without_end() {
        let mut window = RemoteWindow::new(Sn(0));
        window.update_persist_timer(Micros(0), true);
        let mut at = Vec::new();
        for _ in 0..8 {
            let next = window.deadline().unwrap();
            assert!(!window.poll_window_probe(Micros(next.0 - 1)));
            assert!(window.poll_window_probe(next));
            assert_eq!(window.probe_sent(), Some(next));
            at.push(next.0 / 1_000);
        }
        assert_eq!(at, [500, 1_500, 3_500, 7_500, 12_500, 17_500, 22_500, 27_500]);
        window.update_persist_timer(Micros(0), false);
        assert_eq!(window.deadline(), None);
    }

    #[test]
    fn limit_of_the_probe_interval_holds_at_once() {
        let mut window = RemoteWindow::new(Sn(0));
        window.update_persist_timer(Micros(0), true);
        for _ in 0..4 {
            window.poll_window_probe(window.deadline().unwrap());
        }
        assert_eq!(window.deadline(), Some(Micros(12_500_000)));
        for now in [8_000_000, 8_500_000] {
            window.limit_probe_interval(Micros(now), 1_000_000);
            assert_eq!(window.deadline(), Some(Micros(9_000_000)));
        }
        assert_eq!(window.probe_sent(), Some(Micros(7_500_000)));
        assert!(window.poll_window_probe(Micros(9_000_000)));
        assert_eq!(window.deadline(), Some(Micros(10_000_000)));
        window.limit_probe_interval(Micros(9_000_000), 60_000_000);
        assert!(window.poll_window_probe(Micros(10_000_000)));
        assert_eq!(window.deadline(), Some(Micros(12_000_000)), "it grows again");
    }
}
