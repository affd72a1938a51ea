//! Probing a silent peer: one retransmission per probe timeout, which doubles after a while (RFC 9002 6.2.1,
//! 6.2.4).
//!
//! kcp-go retransmits every segment whose RTO expired, a whole window each time, as long as the peer is
//! silent. An RTO while no ACK arrives says nothing about a single segment: the path, or the return path, has
//! stopped for a moment, and packets on the way arrive later. One segment is enough to detect that the path
//! works again; its ACK and the ACKs of newer data show what was lost.
//!
//! Tests: `core::tests::path_changes::messages_leave_once_and_at_once_while_packets_are_held_up`,
//! `core::tests::sweeps::delivery_after_partitions_completes`.

use crate::core::clock::Micros;
use crate::core::recovery::sent::MAX_BACKOFF_LEVEL;

/// Time without a valid ACK, pong or new `una` after which probe timeouts double, microseconds; at least two
/// RTOs.
const DOUBLING_AFTER: u64 = 1_000_000;
/// Retransmissions per probe timeout before timeouts double (RFC 9002 6.2.4 has two), so that a short message
/// that was lost whole does not wait for another round trip.
const PROBES: u8 = 4;

/// Limits retransmissions by RTO while the peer is silent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PtoBackoff {
    /// When a valid ACK, pong or new `una` arrived, the path was validated, or a segment left with nothing in
    /// flight. The peer counts as silent an RTO later.
    last_peer_activity: Micros,
    /// When new data last left. Its ACK shows what was lost, so it acts as a probe (RFC 9002 6.2.1).
    last_new: Micros,
    /// Probes of the present silence; `None` before the first.
    probe: Option<ProbeTimer>,
}

/// Probes of a silent peer (RFC 9002 6.2.1).
#[derive(Clone, Copy, Debug)]
struct ProbeTimer {
    /// When the next probe may leave. While `left` is not zero this is the latest timeout.
    next: Micros,
    /// Probes that may still leave at this timeout.
    left: u8,
    /// Doublings of the PTO since the first probe.
    doublings: u8,
}

impl PtoBackoff {
    /// A segment leaves for the first time; `is_first`: nothing was in flight.
    #[inline]
    pub(super) fn on_new_segment(&mut self, now: Micros, is_first: bool) {
        self.last_new = now;
        if is_first && self.probe.is_none() {
            self.last_peer_activity = now;
        }
    }

    /// A valid ACK, the pong of a ping that was not early or a new `una` arrived, or a path was validated:
    /// ends the back-off.
    #[inline]
    pub(super) fn on_peer_activity(&mut self, now: Micros) {
        (self.last_peer_activity, self.probe) = (now, None);
    }

    /// A silent peer answered an early ping: either the path works again, or the peer acknowledges nothing.
    /// The next probe may leave as soon as its RTO has expired, and only its ACK ends the back-off (RFC 9002
    /// 6.2.1).
    pub(super) fn on_early_pong(&mut self, now: Micros) {
        if let Some(probe) = &mut self.probe {
            probe.next = now;
        }
    }

    /// Whether the back-off allows only one probe per PTO, which is then the oldest segment.
    pub(super) fn is_active(&self) -> bool {
        self.probe.is_some_and(|probe| probe.left == 0)
    }

    /// Whether a retransmission by RTO may leave now.
    pub(super) fn may_send_probe(&self, now: Micros, ack_wait: u64) -> bool {
        self.probe_at(now, ack_wait) <= now
    }

    /// When a retransmission whose RTO expires at `expiry` may leave. It waits while the ACK of newer data
    /// may still come, at most `ack_wait` microseconds, since that ACK shows what was lost (RFC 9002 6.2.1).
    /// While nothing arrives it waits at most a second: full segments may be lost where short ones are not.
    /// `ack_wait` is 0 if the RTO does not wait.
    pub(super) fn probe_at(&self, expiry: Micros, ack_wait: u64) -> Micros {
        match self.probe {
            Some(probe) => expiry.max(probe.next),
            None if ack_wait == 0 => expiry,
            None => {
                let silent_at =
                    self.last_peer_activity.add_micros(DOUBLING_AFTER.max(2 * ack_wait));
                expiry.max(self.last_new.add_micros(ack_wait).min(silent_at))
            }
        }
    }

    /// A retransmission by RTO leaves now. It is a probe if the peer has been silent for an RTO, or for a
    /// second if `ack_wait` is 0. `rto` and `max_rto` in microseconds.
    pub(super) fn on_rto(&mut self, now: Micros, rto: u64, max_rto: u64, ack_wait: u64) {
        let unheard = now.since(self.last_peer_activity);
        let doubles = unheard >= DOUBLING_AFTER.max(2 * rto);
        if unheard < rto || (ack_wait == 0 && !doubles) {
            return;
        }
        let goes_on = |probe: &ProbeTimer| probe.left > 0 && now.since(probe.next) < rto / 2;
        let probe = self.probe.filter(|probe| goes_on(probe) && !doubles);
        let mut probe = probe.unwrap_or_else(|| ProbeTimer {
            next: now,
            left: if doubles { 1 } else { PROBES },
            doublings: self.probe.map_or(0, |probe| probe.doublings),
        });
        probe.left -= 1;
        if probe.left == 0 {
            let pto = (rto << probe.doublings.min(MAX_BACKOFF_LEVEL)).min(max_rto.max(rto));
            probe.next = now.add_micros(pto);
            probe.doublings = probe.doublings.saturating_add(u8::from(doubles));
        }
        self.probe = Some(probe);
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
        backoff.on_rto(Micros(1_999_999), RTO, MAX_RTO, 0);
        assert!(!backoff.is_active() && backoff.may_send_probe(Micros(1_999_999), 0));
        let mut now = Micros(2_000_000);
        let mut ptos = Vec::new();
        for _ in 0..8 {
            backoff.on_rto(now, RTO, MAX_RTO, 0);
            let next = backoff.probe_at(now, 0);
            assert!(backoff.is_active() && !backoff.may_send_probe(Micros(next.0 - 1), 0));
            assert!(backoff.may_send_probe(next, 0));
            ptos.push(next.since(now) / 1_000);
            now = next;
        }
        assert_eq!(ptos, [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        backoff.on_early_pong(now);
        assert!(backoff.is_active() && backoff.may_send_probe(now, 0));
        backoff.on_rto(now, RTO, MAX_RTO, 0);
        assert_eq!(backoff.probe_at(now, 0), now.add_micros(MAX_RTO), "a pong draws one probe");
        backoff.on_peer_activity(now);
        assert!(!backoff.is_active() && backoff.may_send_probe(now, 0));
        assert_eq!(backoff.probe_at(now, 0), now);
    }

    #[test]
    fn rto_waits_for_acks_of_newer_data() {
        let mut backoff = PtoBackoff::default();
        backoff.on_new_segment(Micros(0), true);
        backoff.on_peer_activity(Micros(50_000));
        assert_eq!(backoff.probe_at(Micros(RTO), RTO), Micros(RTO));
        backoff.on_new_segment(Micros(150_000), false);
        assert_eq!(backoff.probe_at(Micros(RTO), RTO), Micros(RTO + 150_000));
        let silent_at = Micros(50_000 + DOUBLING_AFTER);
        let mut newer = backoff;
        newer.on_new_segment(Micros(5_000_000), false);
        assert_eq!(newer.probe_at(Micros(RTO), RTO), silent_at, "nothing is heard for a second");
        assert_eq!(backoff.probe_at(Micros(RTO), 0), Micros(RTO));
    }

    /// After an idle time the peer had nothing to acknowledge, so the back-off counts from the new data.
    #[test]
    fn pto_backoff_begins_with_what_is_on_the_way() {
        let mut backoff = PtoBackoff::default();
        backoff.on_new_segment(Micros(60_000_000), true);
        backoff.on_rto(Micros(60_000_000 + RTO), RTO, MAX_RTO, RTO);
        assert!(!backoff.is_active(), "{PROBES} may leave at this timeout");
        (1..PROBES).for_each(|_| backoff.on_rto(Micros(60_000_000 + RTO), RTO, MAX_RTO, RTO));
        assert!(backoff.is_active());
        assert_eq!(backoff.probe_at(Micros(0), RTO), Micros(60_000_000 + 2 * RTO));
    }
}
