//! PTO back-off: one retransmission per probe timeout, doubling, while the peer is silent (RFC
//! 9002 6.2.1, 6.2.4).
//!
//! kcp-go retransmits every segment whose RTO expired, a whole window each time, for as long as
//! the peer is silent. Here, once the peer has been silent for a second, one segment per PTO is
//! enough to find out that it is back: test
//! `core::tests::sweeps::delivery_after_partitions_completes`.

use crate::core::clock::Micros;
use crate::core::recovery::sent_segments::MAX_BACKOFF_LEVEL;

/// Time without a valid ACK, pong or new `una` after which the back-off begins, microseconds; two
/// RTOs if that is longer.
const PTO_BACKOFF_AFTER: u64 = 1_000_000;

/// Limits retransmissions by RTO while the peer is silent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PtoBackoff {
    /// When a valid ACK, a pong or a new `una` was last received, or the path was validated.
    last_peer_activity: Micros,
    /// `None` while no back-off applies: entered by [`Self::on_rto`], left on peer activity.
    probe: Option<ProbeTimer>,
}

/// The timer of an active back-off (RFC 9002 6.2.1).
#[derive(Clone, Copy, Debug)]
struct ProbeTimer {
    /// When the next probe may leave.
    next: Micros,
    /// Doublings of the PTO since the back-off began.
    doublings: u32,
}

impl PtoBackoff {
    /// A valid ACK, the pong of a ping that was not early or a new `una` arrived, or a path was validated:
    /// ends the back-off.
    pub(super) fn on_peer_activity(&mut self, now: Micros) {
        *self = Self { last_peer_activity: now, probe: None };
    }

    /// A silent peer has answered an early ping: the path works again, or the peer acknowledges nothing.
    /// The next probe may leave as soon as its RTO has expired, and finds out: only its ACK ends the back-off
    /// (RFC 9002 6.2.1).
    pub(super) fn on_early_pong(&mut self, now: Micros) {
        if let Some(probe) = &mut self.probe {
            probe.next = now;
        }
    }

    /// Whether only one probe per PTO may leave.
    pub(super) fn is_active(&self) -> bool {
        self.probe.is_some()
    }

    /// Whether a retransmission by RTO may leave now.
    pub(super) fn may_send_probe(&self, now: Micros) -> bool {
        self.probe.is_none_or(|probe| now >= probe.next)
    }

    /// When a retransmission may leave whose RTO expires at `expiry`.
    pub(super) fn probe_at(&self, expiry: Micros) -> Micros {
        self.probe.map_or(expiry, |probe| expiry.max(probe.next))
    }

    /// A retransmission by RTO leaves now. Begins or doubles the back-off if the peer has been
    /// silent for [`PTO_BACKOFF_AFTER`]. `rto` and `max_rto` in microseconds.
    pub(super) fn on_rto(&mut self, now: Micros, rto: u64, max_rto: u64) {
        if now.since(self.last_peer_activity) < PTO_BACKOFF_AFTER.max(2 * rto) {
            return;
        }
        let doublings = self.probe.map_or(0, |probe| probe.doublings.saturating_add(1));
        let pto = (rto << doublings.min(u32::from(MAX_BACKOFF_LEVEL))).min(max_rto);
        self.probe = Some(ProbeTimer { next: now.add_micros(pto), doublings });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTO: u64 = 200_000;
    const MAX_RTO: u64 = 10_000_000;

    #[test]
    fn pto_backoff_after_a_second_without_activity_doubles_up_to_max_rto() {
        let mut backoff = PtoBackoff::default();
        backoff.on_peer_activity(Micros(1_000_000));
        backoff.on_rto(Micros(1_999_999), RTO, MAX_RTO);
        assert!(!backoff.is_active() && backoff.may_send_probe(Micros(1_999_999)));
        let mut now = Micros(2_000_000);
        let mut ptos = Vec::new();
        for _ in 0..8 {
            backoff.on_rto(now, RTO, MAX_RTO);
            let next = backoff.probe_at(now);
            assert!(!backoff.may_send_probe(Micros(next.0 - 1)) && backoff.may_send_probe(next));
            ptos.push(next.since(now) / 1_000);
            now = next;
        }
        assert_eq!(ptos, [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        backoff.on_early_pong(now);
        assert!(backoff.is_active() && backoff.may_send_probe(now));
        backoff.on_rto(now, RTO, MAX_RTO);
        assert_eq!(backoff.probe_at(now), now.add_micros(MAX_RTO), "a pong draws one probe");
        backoff.on_peer_activity(now);
        assert!(!backoff.is_active() && backoff.may_send_probe(now));
        assert_eq!(backoff.probe_at(now), now);
    }
}
