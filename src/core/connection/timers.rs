//! Deadlines of a connection, and actions when they have passed.

use std::time::Instant;

use super::Kcp;
use crate::core::clock::Micros;
use crate::util::deadline::earliest;

/// RTOs without a sign of life after which a ping asks the peer for the state of the connection.
const ASK_AFTER_TIMEOUTS: u64 = 3;
/// Longest such wait after a window probe, microseconds: shorter than the longest interval of
/// window probes, since each restarts it.
const MAX_ASK_WAIT_AFTER_PROBE: u64 = 4_000_000;

impl Kcp {
    /// When to call [`Kcp::handle_timeout`] next; `None` while no timer runs.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Under the anti-amplification limit passed deadlines do not count: only a datagram of the
        // peer releases what is held back.
        let limited = !self.send_budget().is_unlimited();
        let work = self.work_after(limited.then_some(self.last_poll_transmit));
        // The lifetime of a RST ends even if the limit holds it back.
        let reset_until = self.close_reason.and_then(|_| self.reset_until());
        earliest([work, self.poll_liveness(), reset_until])
    }

    /// The next deadline that must not be late: all except [`Self::poll_liveness`].
    pub(crate) fn poll_work(&self) -> Option<Instant> {
        self.work_after(None)
    }

    /// As [`Self::poll_work`], ignoring deadlines up to `after`, if given.
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
        // `poll_transmit`: a segment that was free then waits for another event.
        let ahead = |at: &Micros| *at > self.last_poll_transmit;
        let resume = Some(self.send.pacer_resume_at()).filter(ahead);
        let resume = resume.filter(|&at| self.next_segment(at).is_some());
        let resume = resume.map(|at| self.rate_limiter.blocked_until(at).unwrap_or(at));
        let rate_limited =
            self.rate_limiter.next().filter(ahead).filter(|&at| self.has_work_at(at));
        let next = earliest([counted(work), counted(resume), counted(rate_limited)]);
        next.map(|at| self.clock.instant(at))
    }

    /// The next deadline of keepalive, validation, idle timeout, dead-peer timeout and stateless
    /// RSTs. These may be late, so the driver coalesces them.
    pub(crate) fn poll_liveness(&self) -> Option<Instant> {
        if self.close_reason.is_some() {
            return None;
        }
        let keepalive = self.keepalive.deadline(self.has_started(), self.ask_at());
        // A ping that is due needs no timer.
        let reset = self.pending_reset.deadline().filter(|_| !self.keepalive.is_due());
        earliest([keepalive, reset]).map(|at| self.clock.instant(at))
    }

    /// When to ask the peer for the state of the connection. Only if it supports CONTROL: it then
    /// reports a lost state, where another peer would take the ping for an initial segment. Not
    /// while it answers window probes.
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

    /// Rearms the timers that depend on both directions: the dead-peer timeout while an answer of
    /// the peer is due, and the persist timer (RFC 9293 3.8.6.1).
    #[inline]
    pub(super) fn update_timers(&mut self, now: Micros) {
        if self.close_state.needs_capability_ping() && self.send.is_drained() && self.has_started()
        {
            // The pong shows whether the peer supports FIN.
            self.keepalive.start_validation(now);
        }
        // `ask_at` does not ask a peer without CONTROL: only retransmissions find out that it is
        // back.
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

    /// Whether this side has sent a datagram.
    #[inline]
    pub(crate) fn has_started(&self) -> bool {
        self.establishment.has_started()
    }

    /// Asserts every invariant that holds between calls.
    ///
    /// # Panics
    ///
    /// If one does not hold. For tests and fuzzing.
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
