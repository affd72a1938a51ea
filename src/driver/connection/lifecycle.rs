//! How a conversation ends, and until when it is kept.

use std::time::Instant;

use super::{Conn, DISCARD_TIMEOUT, REST};
use crate::driver::Scratch;
use crate::driver::demux::TimeWait;
use crate::error::ConnectionError;
use crate::fec::FecStats;
use crate::util::sync::Ordering;

impl Conn {
    /// Tells the handles what changed. Returns what to remember of the conversation if it is over.
    pub(in super::super) fn advance_lifecycle(
        &mut self,
        now: Instant,
        fec: Option<FecStats>,
        scratch: &mut Scratch,
    ) -> Option<TimeWait> {
        if self.ended.is_none() {
            self.publish_progress(now, fec, scratch);
            let end = self.end(now)?;
            self.deliver_rest(scratch);
            self.span.ended(end);
            scratch.wakers.extend(self.shared.end(end).into_iter().flatten());
            self.ended = Some(end);
            self.close_until = Some(now + self.linger);
            if self.must_send_reset(end) {
                self.kcp.abort(now);
            }
        }
        (!self.kcp.is_resetting(now)).then(|| self.tombstone())
    }

    fn publish_progress(&mut self, now: Instant, fec: Option<FecStats>, scratch: &mut Scratch) {
        if !self.told_established && self.kcp.is_established() {
            self.told_established = true;
            self.span.established();
            scratch.wakers.extend(self.shared.set_established());
        }
        let una = self.kcp.una();
        if una != self.progress.0 {
            self.progress = (una, now);
        }
        if self.write_closed && !self.told_drained && self.is_drained() {
            self.told_drained = true;
            self.close_until = Some(now + self.linger);
            scratch.wakers.extend(self.shared.set_drained());
        }
        self.shared.max_message.store(self.kcp.max_message_size(), Ordering::Relaxed);
        let (counters, estimates) = (self.kcp.counters(), self.kcp.estimates());
        self.shared.publish(|shown| {
            (shown.counters, shown.estimates) = (counters, estimates);
            shown.out_of_band = self.out_of_band;
            shown.set_fec(fec);
        });
        self.plan_rest(now);
    }

    /// Whether the peer has acknowledged everything that was written.
    fn is_drained(&self) -> bool {
        self.kcp.is_drained() && !self.more
    }

    /// Why the conversation is over, if it is.
    fn end(&self, now: Instant) -> Option<ConnectionError> {
        if let Some(cause) = self.cause {
            return Some(cause);
        }
        let drained = self.is_drained();
        let over = self.reported_eof || (self.detached && !self.may_be_written_to());
        if (self.detached || self.write_closed) && self.is_delivered() && over {
            return Some(ConnectionError::Closed);
        }
        if self.discard_deadline().is_some_and(|until| now >= until) {
            return Some(ConnectionError::Aborted);
        }
        if self.linger_until().is_some_and(|until| now >= until) {
            let end = ConnectionError::LingerTimeout;
            return Some(if drained { ConnectionError::Closed } else { end });
        }
        if self.doubt.as_ref().is_some_and(|doubt| now >= doubt.until) {
            return Some(ConnectionError::DeadPeer);
        }
        self.kcp.close_reason()
    }

    /// Whether everything is done that was left to do: the peer has every byte, and knows that no
    /// more come if it can.
    fn is_delivered(&self) -> bool {
        self.is_drained() && self.kcp.is_closed()
    }

    /// Whether the peer may still send, and would understand that nobody reads it: somebody should be
    /// there to say so.
    fn may_be_written_to(&self) -> bool {
        let open = !self.kcp.peer_has_closed() && !self.kcp.has_discarded_data();
        self.kcp.peer_supports_close() && open
    }

    /// Whether the peer has to hear that the conversation is over, since it may believe that
    /// everything is well.
    fn must_send_reset(&self, end: ConnectionError) -> bool {
        match end {
            ConnectionError::Aborted
            | ConnectionError::ProtocolViolation
            | ConnectionError::Replaced => true,
            ConnectionError::Closed => self.kcp.has_discarded_data() && !self.kcp.peer_has_closed(),
            _ => false,
        }
    }

    fn tombstone(&self) -> TimeWait {
        // These know of the end, or have begun anew and must not take it for theirs.
        let knows = matches!(
            self.kcp.close_reason(),
            Some(
                ConnectionError::PeerRestarted
                    | ConnectionError::PeerStateLost
                    | ConnectionError::Reset
            )
        );
        TimeWait {
            openings: self.openings,
            nxt: self.kcp.rcv_nxt(),
            una: self.kcp.una(),
            supports_control: self.kcp.peer_supports_close(),
            reset_on_data: !knows && !self.kcp.peer_has_closed(),
        }
    }

    /// When closing is given up: `linger` after the last acknowledgement of something new. While
    /// somebody waits for the shutdown, any sign of life counts, since a peer may be slow to read.
    fn linger_until(&self) -> Option<Instant> {
        if self.detached {
            Some(self.progress.1 + self.linger)
        } else if self.write_closed && !self.told_drained {
            Some(self.progress.1.max(self.heard) + self.linger)
        } else {
            None
        }
    }

    /// When a peer that sends what nobody reads, and acknowledges nothing new, is taken for one that
    /// does not read either.
    fn discard_deadline(&self) -> Option<Instant> {
        let deaf = self.detached && self.kcp.has_discarded_data() && !self.is_drained();
        deaf.then(|| self.progress.1 + DISCARD_TIMEOUT)
    }

    fn plan_rest(&mut self, now: Instant) {
        let resting = self.kcp.is_drained() && self.kcp.readable().is_none();
        self.rest_at = (resting && self.kcp.has_reclaimable_memory()).then(|| now + REST);
    }

    /// When the wait for the peer to know of our end is over, while there is one.
    fn closing_until(&self) -> Option<Instant> {
        self.close_until.filter(|_| self.ended.is_some() || !self.kcp.is_closed())
    }

    /// Counts whether it still delivers what a dropped handle, a shutdown or an abort left behind,
    /// unless it is `over`.
    pub(in super::super) fn count_lingering(
        &mut self,
        now: Instant,
        over: bool,
        count: &mut usize,
    ) {
        let closing = self.closing_until().is_some_and(|until| now < until);
        let shutting = self.write_closed && !self.told_drained;
        let open = self.ended.is_none() && (shutting || (self.detached && !self.is_delivered()));
        let lingers = !over && (open || closing);
        recount(&mut self.lingering, lingers, count);
    }

    /// Counts whether it has segments that arrive in fragments or not at all, unless it is `over`.
    pub(in super::super) fn count_fragmenting(&mut self, over: bool, count: &mut usize) {
        let fragmenting = !over && self.ended.is_none() && self.kcp.needs_ip_fragmentation();
        recount(&mut self.fragmenting, fragmenting, count);
    }

    /// When [`Self::on_timeout`] should be called next. `later` moves what need not be on time: the
    /// limits on silence, and the questions before them.
    pub(in super::super) fn deadline(
        &self,
        now: Instant,
        later: impl Fn(Instant) -> Instant,
    ) -> Option<Instant> {
        let silence = self.kcp.poll_liveness().map(later);
        let protocol = [self.kcp.poll_work(), silence].into_iter().flatten().min();
        let closing = self.closing_until().filter(|until| *until > now);
        // What a stranger has no credit for does not become due; only the question who it is.
        let may_wait = |at: &Instant| self.doubt.is_none() || *at > now;
        let protocol = protocol.filter(may_wait);
        if self.ended.is_some() {
            let over = self.kcp.leaves_until();
            return [protocol, over, closing].into_iter().flatten().min();
        }
        let asking = silence.filter(|_| self.doubt.is_some()).filter(may_wait);
        let proof = self.doubt.as_ref().map(|doubt| doubt.until);
        let life = [self.linger_until(), proof, self.discard_deadline()];
        let rest = [self.rest_at, self.held_until, protocol, asking, closing];
        life.into_iter().chain(rest).flatten().min()
    }
}

/// Keeps `count` in step with what one of those counted is now.
fn recount(was: &mut bool, is: bool, count: &mut usize) {
    match (std::mem::replace(was, is), is) {
        (false, true) => *count += 1,
        (true, false) => *count -= 1,
        _ => {}
    }
}
