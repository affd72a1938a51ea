//! Deadlines of a connection, and what happens when one has passed.

use std::time::Instant;

use super::Kcp;
use crate::core::clock::Micros;
use crate::util::deadline::earliest;

/// Retransmission timeouts without a sign of life of the peer after which it is asked whether it still
/// has the state of the connection.
const ASK_AFTER_TIMEOUTS: u64 = 3;
/// Longest such time after a window probe, microseconds: shorter than the longest interval between window
/// probes, since the next one starts it again.
const MAX_ASK_WAIT_AFTER_PROBE: u64 = 4_000_000;

impl Kcp {
    /// When [`Kcp::handle_timeout`] should be called next; `None` while no timer runs.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        // A datagram that the anti-amplification limit holds back waits for a datagram of the peer,
        // not for a time: deadlines that have passed do not count then.
        let limited = !self.send_budget().is_unlimited();
        let work = self.work_after(limited.then_some(self.last_poll_transmit));
        // A RST that the limit holds back ends all the same.
        let reset_until = self.close_reason.and_then(|_| self.reset_until());
        earliest([work, self.poll_liveness(), reset_until])
    }

    /// The next deadline that must not be late: all but those of [`Self::poll_liveness`].
    pub(crate) fn poll_work(&self) -> Option<Instant> {
        self.work_after(None)
    }

    /// The next deadline of [`Self::poll_work`] that is later than `after`, if given.
    fn work_after(&self, after: Option<Micros>) -> Option<Instant> {
        let counted = |at: Option<Micros>| at.filter(|at| after.is_none_or(|after| *at > after));
        if self.close_reason.is_some() {
            let reset = counted(self.close_state.reset_deadline());
            return reset.map(|at| self.clock.instant(at));
        }
        let work = earliest([
            counted(self.send.deadline(self.may_send_new())),
            counted(self.send.unproved_deadline(self.may_send_new())),
            counted(self.ack_deadline()),
            counted(self.cork_until.filter(|_| !self.send.send_buffer().is_empty())),
            counted(self.send.remote.deadline()),
            counted(self.close_state.fin_deadline()),
            counted(self.mtu_probe_deadline()),
            counted(self.oversized_deadline()),
            counted(self.initial_deadline()),
            counted(self.hello_deadline()),
            counted(self.repair_deadline()),
            counted(self.send.bundling_deadline()),
        ]);
        // The rate limit delays every datagram.
        let work = work.map(|at| self.rate_limiter.blocked_until(at).unwrap_or(at));
        // Pacer and rate limit need a timer only if they release segments after the latest
        // `poll_transmit`; a segment that was free to leave then waits for another event.
        let ahead = |at: &Micros| *at > self.last_poll_transmit;
        let resume = Some(self.send.pacer_resume_at()).filter(ahead);
        let resume = resume.filter(|&at| self.next_segment(at).is_some());
        let resume = resume.map(|at| self.rate_limiter.blocked_until(at).unwrap_or(at));
        let rate_limited =
            self.rate_limiter.next().filter(ahead).filter(|&at| self.has_work_at(at));
        let next = earliest([counted(work), counted(resume), counted(rate_limited)]);
        next.map(|at| self.clock.instant(at))
    }

    /// The next deadline of keepalive, validation, idle timeout, dead-peer timeout and RSTs without
    /// state, which may be late, so that the driver can coalesce these timers.
    pub(crate) fn poll_liveness(&self) -> Option<Instant> {
        if self.close_reason.is_some() {
            return None;
        }
        let keepalive = self.keepalive.deadline(self.has_started(), self.ask_at());
        // A ping that is due leaves with the next transmission.
        let reset = self.pending_reset.deadline().filter(|_| !self.keepalive.is_due());
        earliest([keepalive, reset]).map(|at| self.clock.instant(at))
    }

    /// When the peer is asked whether it still has the state of the connection: one that supports CONTROL
    /// answers if it does not. Another peer would take the ping for an initial segment then. One whose
    /// window is closed, and which answers window probes, is not asked.
    fn ask_at(&self) -> Option<Micros> {
        if !self.close_state.peer_supports_control() {
            return None;
        }
        let time = ASK_AFTER_TIMEOUTS * self.send.rtt.rto();
        let probe = self.send.remote.probe_sent();
        let wait = time.min(MAX_ASK_WAIT_AFTER_PROBE);
        let after_probe = probe.and_then(|sent| self.keepalive.ask_after_probe(sent, wait));
        earliest([self.keepalive.ask_at(time), after_probe])
    }

    /// Acts on the deadlines that have passed. Call [`Kcp::poll_transmit`] afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        let (now, started) = (self.clock.at(now), self.has_started());
        if self.close_reason.is_some() {
            self.close_state.reset_mut().expire(now);
            return;
        }
        if self.cork_until.is_some_and(|until| now >= until) {
            self.flush();
            self.cork_until = None;
        }
        if let Err(error) = self.keepalive.handle_timeout(now, started, self.ask_at()) {
            self.close_reason = Some(error);
        }
        self.close_reason = self.close_reason.or_else(|| self.pending_reset.end(now));
        self.send.expire_unproved(now);
        self.expire_hello(now);
        self.retransmit_ping(now);
        self.check_oversized_timeout(now);
    }

    /// Re-arms the timers that depend on both directions: the dead-peer timeout while an answer of
    /// the peer is due, and the persist timer (RFC 9293 3.8.6.1).
    #[inline]
    pub(super) fn update_timers(&mut self, now: Micros) {
        if self.close_state.needs_capability_ping() && self.send.is_drained() && self.has_started()
        {
            // The pong shows whether the peer can be sent our FIN.
            self.keepalive.start_validation(now);
        }
        // A peer without CONTROL is not asked (`ask_at`): only a retransmission finds out that it is back.
        let is_asked = self.close_state.peer_supports_control() || !self.keepalive.is_validated();
        self.send.limit_pto(!is_asked);
        let in_flight = self.send.has_unacked() || self.close_state.awaits_fin_ack();
        self.keepalive.update_outstanding(now, self.owes_answer(), in_flight);
        self.send.remote.update_persist_timer(now, self.send.is_window_blocked());
    }

    /// Whether an answer of the peer is due: to data, FIN or an initial segment.
    fn owes_answer(&self) -> bool {
        self.send.awaits_ack()
            || self.close_state.awaits_fin_ack()
            || self.establishment.awaits_answer()
    }

    /// Whether any datagram of ours has left.
    #[inline]
    pub(crate) fn has_started(&self) -> bool {
        self.establishment.has_started()
    }

    /// Asserts every invariant that holds between calls.
    ///
    /// # Panics
    ///
    /// When one does not hold: for tests and fuzzing.
    #[cfg(any(test, feature = "_testkit"))]
    pub fn check_invariants(&self) {
        self.send.check_invariants();
        self.recv.check_invariants();
        assert!(!self.send.redundancy.sends_repairs() || self.repair.is_some());
        self.close_state.check_invariants(self.recv.nxt());
        assert!(self.send.in_flight() <= u32::from(u16::MAX));
        assert!(self.acks.len() <= usize::from(u16::MAX) + 4);
        if self.close_reason.is_none() && self.send.is_window_blocked() {
            assert!(self.send.remote.deadline().is_some(), "a closed window is probed");
        }
        let limited = !self.send_budget().is_unlimited();
        if self.close_reason.is_none() && self.send.awaits_ack() && !limited {
            assert!(self.poll_timeout().is_some(), "unacknowledged data has a timer");
        }
    }
}
