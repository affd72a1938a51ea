//! End of a connection: the progress of its lifecycle, the error that it ends with, and its deadline.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Conn;
use super::lifecycle::Lifecycle;
use crate::core::segment::Header;
use crate::core::time_wait::TimeWait;
use crate::driver::memory::SHORT_QUOTA;
use crate::driver::scratch::Scratch;
use crate::error::{ConnectionError, TimeoutCause};
use crate::fec::{FecConfig, FecStats};
use crate::util::earliest;
use crate::util::sync::Ordering;

/// Time without data in either direction after which a connection releases the memory that only a busy one
/// needs (tests/memory.rs).
const MEMORY_RELEASE_DELAY: Duration = Duration::from_secs(1);

/// How long a connection without handles goes on without progress while memory is short, so that it ends
/// before connections in use. Long enough for three pings: one of them validates the peer on a lossy path,
/// and nothing is retransmitted to an unvalidated peer.
const SHORT_LINGER: Duration = Duration::from_secs(3);

/// RTOs that an endpoint that drains waits for the acknowledgement of a RST, or of a FIN whose peer has ended
/// its own stream and has every byte. Either leaves four times in that time. The peer may be gone.
const DRAIN_RTOS: u32 = 8;
/// Shortest wait of [`DRAIN_RTOS`].
const MIN_DRAIN_WAIT: Duration = Duration::from_millis(500);

/// A connection of an endpoint that drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum DrainState {
    /// It is in use, or bytes are unacknowledged.
    Waits,
    /// A FIN or RST is unacknowledged, and is given up then.
    WaitsUntil(Instant),
    /// Nothing is left that the peer has to learn.
    Done,
}

impl Conn {
    /// Reports progress to the handles and advances the lifecycle. `heard`: why a connection with an address
    /// may have timed out. Returns the TIME-WAIT state once the connection may be removed.
    pub(in super::super) fn advance_lifecycle(
        &mut self,
        now: Instant,
        heard: impl FnOnce(SocketAddr) -> TimeoutCause,
        scratch: &mut Scratch,
    ) -> Option<TimeWait> {
        if !self.lifecycle.is_ended() {
            self.report_progress(now, scratch);
            let error = self.end_error(now)?.with_cause(|| heard(self.peer()));
            self.deliver_rest(scratch);
            self.log_end(now, error);
            let is_delivered = self.is_drained() && self.kcp.was_reset_orderly();
            scratch.wakers.extend(self.shared.end(error, is_delivered));
            // Nothing waits for a RST-ACK after `linger`.
            let is_late = passed(self.linger_deadline(), now);
            let wait = if is_late { Duration::ZERO } else { self.shared.linger() };
            self.lifecycle.on_ended(now, wait);
            if self.kcp.must_send_reset(error) {
                self.kcp.abort(now);
            }
        }
        let is_quiet = self.quiet_until.is_some_and(|until| now < until);
        (!self.kcp.is_resetting(now) && !is_quiet).then(|| self.time_wait())
    }

    /// Logs the end, unless it is logged.
    pub(in super::super) fn log_end(&mut self, now: Instant, error: ConnectionError) {
        if self.lifecycle.is_ended() {
            return;
        }
        self.span.ended(error);
        self.kcp.log_end(now, error);
    }

    /// The TIME-WAIT state, which answers for the connection once it is removed.
    pub(in super::super) fn time_wait(&self) -> TimeWait {
        self.kcp.time_wait(self.opened_by, self.shared.recv.has_unread(), self.restarted_by)
    }

    /// Whether the application has the connection, or can get it while there is a listener.
    pub(in super::super) fn is_in_use(&self) -> bool {
        let is_deferred = self.validation.as_ref().is_some_and(|v| v.deferred.is_some());
        !(is_deferred || self.lifecycle.is_detached() || self.lifecycle.is_ended())
    }

    /// Whether a dropped connection waits only for the end of the peer's stream (RFC 9293 3.3.2).
    pub(in super::super) fn is_in_fin_wait_2(&self) -> bool {
        self.validation.is_none() && self.lifecycle.is_detached() && self.is_delivered()
    }

    /// Whether TIME-WAIT can answer for a connection that is not in use: at most the FIN-ACK of a FIN that is
    /// still to come, or a RST that was sent before, is left to send. An unvalidated peer is owed only data.
    pub(in super::super) fn has_delivered(&self, now: Instant) -> bool {
        let is_unvalidated = self.validation.is_some();
        match self.lifecycle {
            Lifecycle::Ended { .. } => {
                is_unvalidated || self.kcp.poll_work().is_none_or(|due| due > now)
            }
            _ if is_unvalidated => self.is_drained(),
            _ => self.is_delivered(),
        }
    }

    fn report_progress(&mut self, now: Instant, scratch: &mut Scratch) {
        // The last HELLO may just have left.
        self.report_datagram_support();
        if !self.reported.established && (self.is_validated() || self.is_connected()) {
            self.reported.established = true;
            self.lifecycle.on_established();
            self.span.established();
            scratch.wakers.extend(self.shared.established.set());
        }
        let una = self.kcp.una();
        if una != self.last_una {
            self.last_una = una;
            self.lifecycle.on_progress(now);
        }
        let reports = self.kcp.take_window_report();
        if self.kcp.waits_for_window()
            || (reports && !self.is_drained() && !self.is_short_of_memory())
        {
            self.lifecycle.on_window_report(self.last_received);
        }
        if self.is_drained() && self.lifecycle.on_drained(now, self.shared.linger()) {
            scratch.wakers.extend(self.shared.send.set_drained());
        }
        let blocked = self.lifecycle.is_closing() && !self.is_drained();
        self.lifecycle.on_windows(now, blocked && self.kcp.windows_are_closed());
        if self.lifecycle.background_deadline().is_some_and(|at| now >= at) {
            self.lifecycle.on_background();
            scratch.wakers.extend(self.shared.send.deliver_in_background());
        }
        self.plan_memory_release(now);
    }

    /// Publishes the statistics and the largest message to the handles, until the connection ends. `fec`:
    /// statistics of the FEC decoder of the peer's address.
    pub(in super::super) fn publish_stats(&self, fec: Option<FecStats>) {
        if self.lifecycle.is_ended() {
            return;
        }
        self.shared.max_message.store(self.kcp.max_message_size(), Ordering::Relaxed);
        let (counters, estimates) = (self.kcp.counters(), self.kcp.estimates());
        let redundancy = self.kcp.redundancy_stats();
        self.shared.publish(|shown| {
            (shown.counters, shown.estimates) = (counters, estimates);
            shown.out_of_band = self.out_of_band;
            shown.set_redundancy(redundancy);
            shown.set_fec(fec);
        });
    }

    /// Whether the peer is kcpx: its decoder learns any layout.
    pub(in super::super) fn peer_decodes_any_fec(&self) -> bool {
        self.kcp.peer_supports_close()
    }

    /// Whether the peer has answered and is another implementation.
    pub(in super::super) fn is_with_other_implementation(&self) -> bool {
        self.reported.established && !self.kcp.peer_supports_close()
    }

    /// Publishes how many shards FEC groups may have: at most `max`, unless the peer learns any layout.
    pub(in super::super) fn publish_max_fec_shards(&self, max: Option<usize>) {
        let Some(max) = max else { return };
        let max = if self.peer_decodes_any_fec() { FecConfig::MAX_SHARDS } else { max };
        self.shared.max_fec_shards.store(max, Ordering::Relaxed);
    }

    /// Takes the last writes and closes of the handles before the endpoint ends. A peer whose data is unread
    /// gets no FIN (RFC 1122 4.2.2.13).
    pub(in super::super) fn exchange_last(&mut self, now: Instant, scratch: &mut Scratch) {
        if self.shared.recv.has_unread() || self.kcp.readable().is_some() {
            self.end_early(ConnectionError::RuntimeShutdown);
        }
        self.exchange_queues(now, scratch);
        self.kcp.flush_acks();
    }

    /// Whether anything may be sent while the endpoint ends: not after an abort, nor if nothing was answered
    /// and nothing written.
    pub(in super::super) fn has_last_words(&self) -> bool {
        let is_aborted =
            self.end_cause.is_some_and(|cause| cause != ConnectionError::RuntimeShutdown);
        !(is_aborted || self.is_unanswered() && self.is_drained())
    }

    /// Whether written bytes have not left yet or may be lost, and may leave later.
    pub(in super::super) fn is_undelivered(&self) -> bool {
        self.has_last_words() && self.kcp.close_reason().is_none() && !self.is_drained()
    }

    /// The CONTROL segment that tells the peer that this endpoint is gone, if the peer supports it.
    pub(in super::super) fn final_control(&mut self, now: Instant) -> Option<Header> {
        if self.lifecycle.is_ended() {
            return None;
        }
        let truncated = self.has_unsent_writes || self.end_cause.is_some();
        self.kcp.final_control(now, truncated, self.shared.recv.has_unread())
    }

    /// Whether the peer has acknowledged everything that was written.
    fn is_drained(&self) -> bool {
        self.kcp.is_drained() && !self.has_unsent_writes
    }

    /// Whether the peer has acknowledged everything, and the FIN too if it supports FIN.
    fn is_delivered(&self) -> bool {
        self.is_drained() && self.kcp.is_closed()
    }

    /// The error that the connection ends with at `now`; `None` while it goes on.
    fn end_error(&self, now: Instant) -> Option<ConnectionError> {
        if self.end_cause.is_some() {
            return self.end_cause;
        }
        let passed = |deadline| passed(deadline, now);
        let detached = self.lifecycle.is_detached();
        let read_ended = self.reported.eof || (detached && !self.kcp.awaits_peer_data());
        if self.lifecycle.is_closing() && self.is_delivered() && read_ended {
            return Some(ConnectionError::Closed);
        }
        if passed(self.lifecycle.connect_deadline()) {
            let timeout = ConnectionError::ConnectTimeout(TimeoutCause::Nothing);
            return Some(if self.kcp.is_refused() { ConnectionError::Refused } else { timeout });
        }
        if passed(self.discard_deadline()) || passed(self.abandoned_deadline()) {
            return Some(ConnectionError::Aborted);
        }
        if passed(self.linger_deadline()) {
            let undelivered = ConnectionError::LingerTimeout;
            return Some(if self.is_drained() { ConnectionError::Closed } else { undelivered });
        }
        if passed(self.validation_deadline()) {
            return Some(ConnectionError::DeadPeer(TimeoutCause::Unvalidated));
        }
        self.kcp.close_reason()
    }

    /// Whether and how long a drain of the endpoint waits for this connection.
    pub(in super::super) fn drain_state(&self, now: Instant) -> DrainState {
        if self.is_in_use() {
            return DrainState::Waits;
        }
        let is_ended = self.lifecycle.is_ended();
        let is_done = if is_ended { !self.kcp.is_resetting(now) } else { self.has_delivered(now) };
        if is_done || self.is_unvalidated() && self.is_drained() {
            return DrainState::Done;
        }
        let is_acknowledged = is_ended || self.is_drained() && self.kcp.peer_has_closed();
        let since = self.lifecycle.closing_since(self.shared.linger());
        let Some(since) = since.filter(|_| is_acknowledged) else { return DrainState::Waits };
        let until = since + self.shared.linger().min(MIN_DRAIN_WAIT.max(DRAIN_RTOS * self.rto()));
        if until > now { DrainState::WaitsUntil(until) } else { DrainState::Done }
    }

    pub(in super::super) fn rto(&self) -> Duration {
        Duration::from_micros(self.kcp.estimates().rto)
    }

    fn is_short_of_memory(&self) -> bool {
        self.quota <= SHORT_QUOTA
    }

    fn linger_deadline(&self) -> Option<Instant> {
        let mut linger = self.shared.linger();
        if self.lifecycle.is_detached() && self.is_short_of_memory() {
            linger = linger.min(SHORT_LINGER);
        }
        self.lifecycle.linger_deadline(self.last_received, linger)
    }

    fn discard_deadline(&self) -> Option<Instant> {
        let discards = || self.kcp.has_discarded_data() && !self.is_drained();
        self.lifecycle.discard_deadline().filter(|_| discards())
    }

    /// When an unanswered connection is given up after its `connect` was dropped.
    fn abandoned_deadline(&self) -> Option<Instant> {
        let abandoned = || self.is_unanswered() && self.is_drained();
        self.lifecycle.abandoned_deadline().filter(|_| abandoned())
    }

    fn validation_deadline(&self) -> Option<Instant> {
        self.validation.as_ref().map(|validation| validation.deadline)
    }

    /// Until when `wait_idle` waits for the peer to acknowledge the FIN or RST; `None` if neither is
    /// outstanding.
    fn close_deadline(&self) -> Option<Instant> {
        let fin_acked = !self.lifecycle.is_ended() && self.kcp.is_closed();
        self.lifecycle.close_deadline().filter(|_| !fin_acked)
    }

    /// Whether `wait_idle` waits for this connection: its data, FIN or RST is not acknowledged yet after a
    /// shutdown, drop or abort.
    fn is_lingering(&self, now: Instant) -> bool {
        match self.lifecycle {
            Lifecycle::Connecting { .. } | Lifecycle::Open => false,
            Lifecycle::ShutDown { .. } => true,
            Lifecycle::Detached { .. } => !self.is_delivered(),
            Lifecycle::Drained { .. } | Lifecycle::Ended { .. } => {
                self.close_deadline().is_some_and(|deadline| now < deadline)
            }
        }
    }

    /// Updates the `count` of lingering connections. `removed`: the connection is removed.
    pub(in super::super) fn count_lingering(
        &mut self,
        now: Instant,
        removed: bool,
        count: &mut usize,
    ) {
        let lingers = !removed && self.is_lingering(now);
        update_count(&mut self.counted_lingering, lingers, count);
    }

    /// Updates the `count` of connections with oversized segments in flight, which reach the peer in IP
    /// fragments or not at all. `removed`: the connection is removed.
    pub(in super::super) fn count_oversized(&mut self, removed: bool, count: &mut usize) {
        let ended = removed || self.lifecycle.is_ended();
        let oversized = !ended && self.kcp.needs_ip_fragmentation();
        update_count(&mut self.counted_oversized, oversized, count);
    }

    /// Plans [`Self::release_memory`], which checks later whether the connection is idle. A deadline that
    /// moved with each packet would move the timer of a busy connection each time.
    fn plan_memory_release(&mut self, now: Instant) {
        let waits = self.memory_release_at.is_some();
        if !waits && self.has_no_data() && self.kcp.has_reclaimable_memory() {
            self.memory_release_at = Some(now + MEMORY_RELEASE_DELAY);
        }
    }

    /// Frees the memory that an idle connection does not need, once nothing has arrived for
    /// [`MEMORY_RELEASE_DELAY`]. Returns whether it has.
    pub(super) fn release_memory(&mut self, now: Instant) -> bool {
        self.memory_release_at = None;
        if !self.has_no_data() {
            return false;
        }
        let idle_at = self.last_received + MEMORY_RELEASE_DELAY;
        if now < idle_at {
            self.memory_release_at = Some(idle_at);
            return false;
        }
        self.kcp.release_memory();
        self.shared.release_memory();
        true
    }

    /// Whether no data of either side is under way in the state machine.
    fn has_no_data(&self) -> bool {
        self.kcp.is_drained() && self.kcp.readable().is_none()
    }

    /// When [`Self::on_timeout`] is due. `coalesce` moves deadlines that need not be exact to later common
    /// instants: the idle and dead-peer timeouts, and the pings before them.
    pub(in super::super) fn deadline(
        &self,
        now: Instant,
        coalesce: impl Fn(Instant) -> Instant,
    ) -> Option<Instant> {
        let unvalidated = self.validation.is_some();
        // The anti-amplification limit may hold back due segments of an unvalidated connection. A deadline
        // that has passed would make the driver spin.
        let may_wait = |at: &Instant| !unvalidated || *at > now;
        let liveness = self.kcp.poll_liveness().map(coalesce);
        let protocol = earliest([self.kcp.poll_work(), liveness]);
        let protocol = protocol.filter(may_wait);
        let closing = self.close_deadline().filter(|at| *at > now);
        if self.lifecycle.is_ended() {
            let reset = self.kcp.reset_until();
            // RST may leave for longer.
            let quiet = self.quiet_until.filter(|at| *at > now);
            return earliest([protocol, reset, closing, quiet]);
        }
        let validation_ping = liveness.filter(|_| unvalidated).filter(may_wait);
        let timeouts = earliest([
            self.linger_deadline(),
            self.validation_deadline(),
            self.discard_deadline(),
            self.abandoned_deadline(),
            self.lifecycle.background_deadline(),
            self.lifecycle.connect_deadline(),
            self.memory_release_at,
            self.rate_limited_until,
        ]);
        earliest([timeouts, protocol, validation_ping, closing])
    }
}

fn passed(deadline: Option<Instant>, now: Instant) -> bool {
    deadline.is_some_and(|at| now >= at)
}

/// Sets whether one connection is counted, and adjusts the count when that changes.
fn update_count(counted: &mut bool, counts: bool, count: &mut usize) {
    match (std::mem::replace(counted, counts), counts) {
        (false, true) => *count += 1,
        (true, false) => *count -= 1,
        _ => {}
    }
}
