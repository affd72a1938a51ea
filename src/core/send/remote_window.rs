//! The peer's receive window as a right edge, and probing while it is closed.
//!
//! `una + wnd` of an honest receiver never moves back, so the largest one seen is the truth and a
//! late or repeated datagram cannot shrink or reopen anything. A receiver that really lowered its
//! window says so again and again: only agreement over a round trip is believed.

use crate::core::clock::Micros;
use crate::core::seq::Sn;

/// What a peer is assumed to take before it has said anything: kcp-go's default window.
const INITIAL_REMOTE_WINDOW: u16 = 32;
/// Datagrams that must agree before a smaller edge is taken.
const SHRINK_VOTES: u8 = 3;
/// First probe after the window closed, and the longest wait between probes.
const PROBE_INIT: u64 = 500_000;
const PROBE_LIMIT: u64 = 5_000_000;

#[derive(Clone, Copy, Debug)]
struct ShrinkCandidate {
    edge: Sn,
    since: Micros,
    votes: u8,
}

#[derive(Clone, Copy, Debug)]
struct PersistTimer {
    wait: u64,
    next: Micros,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteWindow {
    /// First number the peer has no room for.
    limit: Sn,
    /// Largest window the peer has told; `None` while we guess.
    largest: Option<u16>,
    shrink: Option<ShrinkCandidate>,
    probing: Option<PersistTimer>,
}

impl RemoteWindow {
    pub(crate) fn new(start: Sn) -> Self {
        Self {
            limit: start.advance(u32::from(INITIAL_REMOTE_WINDOW)),
            largest: None,
            shrink: None,
            probing: None,
        }
    }

    /// Segments the peer can take beyond `una`.
    pub(crate) fn available(&self, una: Sn) -> u32 {
        self.limit.offset_from(una).unwrap_or(0)
    }

    /// The largest window told so far, or the initial guess.
    pub(crate) fn largest(&self) -> u16 {
        self.largest.unwrap_or(INITIAL_REMOTE_WINDOW)
    }

    /// A datagram with the newest cumulative acknowledgement told `wnd`.
    pub(crate) fn on_window(&mut self, now: Micros, una: Sn, wnd: u16, srtt: u64) {
        let edge = una.advance(u32::from(wnd));
        let first = self.largest.is_none();
        self.largest = Some(self.largest.map_or(wnd, |largest| largest.max(wnd)));
        if first || edge.since(self.limit) >= 0 {
            self.limit = edge;
            self.shrink = None;
            return;
        }
        let shrink = self.shrink.get_or_insert(ShrinkCandidate { edge, since: now, votes: 0 });
        if edge.since(shrink.edge) > 0 {
            shrink.edge = edge;
        }
        shrink.votes = shrink.votes.saturating_add(1);
        if shrink.votes >= SHRINK_VOTES && now.since(shrink.since) >= srtt {
            self.limit = shrink.edge;
            self.shrink = None;
        }
    }

    /// Starts or stops probing; `stalled` means that data waits and only the peer's window holds
    /// it back.
    pub(crate) fn watch(&mut self, now: Micros, stalled: bool) {
        match (stalled, self.probing) {
            (true, None) => {
                self.probing =
                    Some(PersistTimer { wait: PROBE_INIT, next: now.add_micros(PROBE_INIT) });
            }
            (false, Some(_)) => self.probing = None,
            _ => {}
        }
    }

    /// Whether a WASK is due; if so the next one is scheduled.
    pub(crate) fn poll_window_probe(&mut self, now: Micros) -> bool {
        let Some(probing) = &mut self.probing else { return false };
        if now < probing.next {
            return false;
        }
        probing.wait = (probing.wait * 2).min(PROBE_LIMIT);
        probing.next = now.add_micros(probing.wait);
        true
    }

    pub(crate) fn deadline(&self) -> Option<Micros> {
        self.probing.map(|probing| probing.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: u64 = 50_000;

    #[test]
    fn the_first_window_replaces_the_guess_outright() {
        let mut window = RemoteWindow::new(Sn(0));
        assert_eq!(window.available(Sn(0)), 32);
        window.on_window(Micros(0), Sn(0), 4, RTT);
        assert_eq!(window.available(Sn(0)), 4);
    }

    #[test]
    fn a_late_datagram_moves_nothing() {
        let mut window = RemoteWindow::new(Sn(u32::MAX - 5));
        window.on_window(Micros(0), Sn(u32::MAX), 100, RTT);
        window.on_window(Micros(1), Sn(20), 100, RTT);
        for edge in [0, 40] {
            window.on_window(Micros(2), Sn(20), edge, RTT);
        }
        assert_eq!(window.available(Sn(20)), 100);
    }

    #[test]
    fn a_smaller_window_is_believed_after_three_over_a_round_trip() {
        let mut window = RemoteWindow::new(Sn(0));
        window.on_window(Micros(0), Sn(0), 100, RTT);
        window.on_window(Micros(10), Sn(0), 8, RTT);
        window.on_window(Micros(20), Sn(0), 10, RTT);
        window.on_window(Micros(30), Sn(0), 9, RTT);
        assert_eq!(window.available(Sn(0)), 100, "all within one round trip");
        window.on_window(Micros(10 + RTT), Sn(0), 9, RTT);
        assert_eq!(window.available(Sn(0)), 10, "the largest of those that agreed");
    }

    #[test]
    fn probes_back_off_to_five_seconds_and_go_on_for_ever() {
        let mut window = RemoteWindow::new(Sn(0));
        window.watch(Micros(0), true);
        let mut at = Vec::new();
        for _ in 0..8 {
            let next = window.deadline().unwrap();
            assert!(!window.poll_window_probe(Micros(next.0 - 1)));
            assert!(window.poll_window_probe(next));
            at.push(next.0 / 1_000);
        }
        assert_eq!(at, [500, 1_500, 3_500, 7_500, 12_500, 17_500, 22_500, 27_500]);
        window.watch(Micros(0), false);
        assert_eq!(window.deadline(), None);
    }
}
