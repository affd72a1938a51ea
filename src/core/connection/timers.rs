//! What happens by itself: when the next thing is due, and what a passed deadline does.

use std::time::Instant;

use crate::core::clock::Micros;
use crate::core::connection::Kcp;

impl Kcp {
    /// When [`Kcp::handle_timeout`] should be called next; `None` while there is nothing to wait
    /// for.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.poll_work(), self.poll_liveness()].into_iter().flatten().min()
    }

    /// The same for whatever has to be on time.
    pub(crate) fn poll_work(&self) -> Option<Instant> {
        if self.close_reason.is_some() {
            return self.close_state.abort_deadline().map(|at| self.clock.instant(at));
        }
        let work = [
            self.send.deadline(self.may_send_new()),
            self.ack_deadline(),
            self.cork_until.filter(|_| !self.send.send_buffer().is_empty()),
            self.send.remote.deadline(),
            self.close_state.close_deadline(),
            self.path_deadline(),
            self.stranded_until(),
            self.opening.filter(|_| self.send.send_buffer().is_empty()).and_then(|o| o.deadline()),
        ];
        // The rate limit holds back whatever is due.
        let work =
            work.into_iter().flatten().min().map(|at| self.pacer.blocked_until(at).unwrap_or(at));
        // What could leave and did not, at the last look, waits for something else.
        let ahead = |at: &Micros| *at > self.last_poll_transmit;
        let resume = Some(self.send.pacer_resume_at()).filter(ahead);
        let resume = resume.filter(|&at| self.next_segment(at).is_some());
        let resume = resume.map(|at| self.pacer.blocked_until(at).unwrap_or(at));
        let queued = self.pacer.next().filter(ahead).filter(|&at| self.has_work_at(at));
        [work, resume, queued].into_iter().flatten().min().map(|at| self.clock.instant(at))
    }

    /// When the peer is asked for a sign of life, or its silence ends the conversation.
    pub(crate) fn poll_liveness(&self) -> Option<Instant> {
        if self.close_reason.is_some() {
            return None;
        }
        self.keepalive.deadline(self.has_started()).map(|at| self.clock.instant(at))
    }

    /// Time has passed. Follow with [`Kcp::poll_transmit`].
    pub fn handle_timeout(&mut self, now: Instant) {
        let (now, started) = (self.clock.at(now), self.has_started());
        if self.close_reason.is_some() {
            return self.expire_abort(now);
        }
        if self.cork_until.is_some_and(|until| now >= until) {
            self.flush();
            self.cork_until = None;
        }
        if let Err(error) = self.keepalive.handle_timeout(now, started) {
            self.close_reason = Some(error);
        }
        self.check_oversized_timeout(now);
    }

    /// Whether the peer owes an answer to something.
    pub(super) fn owes_answer(&self) -> bool {
        let opening = self.opening.is_some_and(|opening| opening.is_sent());
        self.send.awaits_ack() || self.awaits_fin_ack() || opening
    }

    /// Whether anything of ours has ever left.
    pub(crate) fn has_started(&self) -> bool {
        self.stats.sent_datagrams > 0
    }

    /// Checks everything that must hold between calls.
    ///
    /// # Panics
    ///
    /// When something does not: for tests and fuzzing.
    #[cfg(any(test, feature = "_testkit"))]
    pub fn check_invariants(&self) {
        self.send.check_invariants();
        self.recv.check_invariants();
        assert!(self.send.in_flight() <= u32::from(u16::MAX));
        assert!(self.acks.len() <= usize::from(u16::MAX) + 2);
        if self.close_reason.is_none() && self.send.is_window_blocked() {
            assert!(self.send.remote.deadline().is_some(), "a closed window is probed");
        }
        if self.close_reason.is_none() && self.send.awaits_ack() {
            assert!(self.poll_timeout().is_some(), "unacknowledged data has a timer");
        }
    }
}
