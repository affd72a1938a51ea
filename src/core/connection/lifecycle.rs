//! Opening and closing a connection: initial segments, detection of a restarted peer, FIN and RST,
//! read shutdown, abort, and CONTROL segments in and out.

use std::time::{Duration, Instant};

use crate::core::clock::{Micros, micros};
use crate::core::close::{ALL_READ, ControlSegment, RESET_LIFETIME};
use crate::core::connection::Kcp;
use crate::core::keepalive::{PingId, Role, dataless_sn};
use crate::core::open::{InitialHash, OpenedBy, Restart};
use crate::core::segment::{CONTROL_CAPABLE, Command, ControlType, HEADER_LEN, Header};
use crate::core::seq::{Sn, Ts};
use crate::core::time_wait::TimeWait;
use crate::error::ConnectionError;

/// Shortest time between window probes while the connection is closing, microseconds.
const MIN_PROBE_INTERVAL: u64 = 200_000;

/// Initial segments.
impl Kcp {
    /// Opens the connection at the peer before there is data, so that the peer may send first:
    /// sends a window probe, retransmitted until a segment of the peer other than a ping arrives,
    /// or data is sent. Works with other implementations if their listener accepts any first
    /// segment.
    pub fn open(&mut self, now: Instant) {
        self.open_after(now, Duration::ZERO);
    }

    /// As [`Kcp::open`] after `wait`, unless data is sent before.
    pub(crate) fn open_after(&mut self, now: Instant, wait: Duration) {
        let ts = Ts(self.keepalive.next_cookie().0 | 1);
        self.establishment.open(self.clock.at(now + wait), ts, self.send.path.rtt.rto());
    }

    /// Whether an initial segment without data is outstanding or queued.
    pub(crate) fn is_initial_outstanding(&self) -> bool {
        self.establishment.is_initial_outstanding()
    }

    /// Sends a queued initial segment without data now.
    pub(crate) fn expedite_open(&mut self, now: Instant) {
        self.establishment.expedite(self.clock.at(now));
    }

    /// Drops the initial segment if nothing was sent: nothing has to be closed then.
    pub(crate) fn abandon_open(&mut self) {
        if !self.has_started() {
            self.establishment.cancel_initial();
        }
    }

    /// Whether an initial segment without data is due.
    pub(super) fn has_initial_due(&self, now: Micros) -> bool {
        self.send.send_buffer().is_empty() && self.establishment.is_due(now)
    }

    /// When the initial segment without data is sent next.
    pub(super) fn initial_deadline(&self) -> Option<Micros> {
        self.establishment.deadline().filter(|_| self.send.send_buffer().is_empty())
    }

    /// Appends the initial segment without data that is due, if any.
    pub(super) fn emit_initial(&mut self, now: Micros, out: &mut Vec<u8>) -> bool {
        if !self.has_initial_due(now) {
            return false;
        }
        if !self.has_started() {
            self.keepalive.on_first_sent(now);
        }
        let Some(probe) = self.establishment.poll_initial(now) else { return false };
        let sn = if probe.replaces { Sn(0) } else { dataless_sn(self.send.una()) };
        let capability = self.close_state.capability();
        self.header(Command::WindowProbe, capability, sn, probe.ts, 0).emit(out);
        true
    }

    /// Sets whether the initial segment may replace a session of this address at other
    /// implementations: not while the socket has another connection to the peer's address.
    pub(crate) fn set_replaces(&mut self, replaces: bool) {
        self.establishment.set_replaces(replaces);
    }

    /// Whether `sn` and `ts` name our initial segment without data, and nothing but a ping has
    /// answered it. The ping may be a Retry, after which the listener began to drain.
    fn is_unanswered_initial(&self, sn: Sn, ts: Ts) -> bool {
        self.establishment.is_initial(ts) && [Sn(0), dataless_sn(self.send.una())].contains(&sn)
    }

    /// A segment of this connection arrived: the initial segment is no longer needed. The segment
    /// does not prove that the peer receives our datagrams, so address validation starts.
    pub(super) fn on_initial_answered(&mut self, now: Micros) {
        if self.establishment.cancel_initial() {
            self.keepalive.start_validation(now);
        }
    }

    /// A different initial segment arrived from the peer's address: the peer may have restarted.
    /// Sends a ping: if the pong shows that the state of this connection is lost, the connection
    /// ends with [`PeerRestarted`](crate::ConnectionError::PeerRestarted).
    ///
    /// If the peer never acknowledged our data, the pong cannot show a lost state. Then the
    /// connection ends on the next different initial segment after the pong, unless a valid ACK or
    /// new data in order arrives in between.
    pub(crate) fn suspect_restart(&mut self, now: Instant) {
        match self.peer.on_other_initial() {
            Restart::Confirmed => {
                self.close_reason.get_or_insert(ConnectionError::PeerRestarted);
            }
            Restart::Suspected => self.keepalive.request_ping(self.clock.at(now)),
        }
    }

    /// The least `una` of a peer that has the state of this connection. A peer with CONTROL passes a segment
    /// in order when it acknowledges it; others may wait for their application.
    pub(super) fn least_una(&self) -> Sn {
        if self.peer_supports_close() { self.send.oldest_unacked() } else { self.send.una() }
    }

    /// A pong arrived. `state_lost`: the peer acknowledges less than before the ping.
    pub(super) fn on_pong(&mut self, state_lost: bool, una: Sn) {
        if !state_lost && una != Sn(0) {
            self.peer.on_state_shown();
        }
        self.peer.on_pong();
        if state_lost {
            let restarted = self.peer.is_restart_suspected();
            let lost = ConnectionError::PeerStateLost;
            self.close_reason = Some(if restarted { ConnectionError::PeerRestarted } else { lost });
        }
    }

    /// Whether data, or a FIN, comes from another process than the data before: a late copy of our initial
    /// segment has opened a connection there, whose numbers fit by chance. A side that has accepted compares initial
    /// segments instead.
    pub(super) fn is_of_another_process(&self, now: Micros, header: &Header) -> bool {
        self.role == Role::Active
            && self.close_state.may_send_reset()
            && self.peer.is_another_process(now, header.ts, header.una)
    }

    /// A segment of another process was dropped. A RST ends the peer's new connection. Then the peer answers a ping
    /// with a RST, which ends this connection.
    pub(super) fn on_another_process(&mut self, now: Micros, header: &Header) {
        self.close_state.refuse(header);
        self.keepalive.request_ping(now);
    }

    /// Whether RCV.NXT is 0: no data in order has arrived.
    pub(crate) fn awaits_first_data(&self) -> bool {
        self.recv.nxt() == Sn(0)
    }
}

/// Close and abort.
impl Kcp {
    /// Ends our half of the stream (FIN, RFC 9293 3.6). Queue nothing afterwards.
    ///
    /// If the peer supports it, FIN is sent after the first transmission of all queued data, and
    /// retransmitted until the peer acknowledges that it has everything.
    #[doc(alias = "FIN")]
    pub fn close(&mut self, now: Instant) {
        self.close_state.close();
        self.update_timers(self.clock.at(now));
    }

    /// Whether [`Kcp::close`] is complete: the peer has acknowledged every byte, and our FIN if it
    /// supports FIN.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_drained()
            && self.close_state.is_closing()
            && (self.close_state.is_fin_complete() || !self.has_started())
    }

    /// Whether the peer has ended its stream (FIN) and [`Kcp::recv`] has returned everything before
    /// it.
    #[must_use]
    pub fn peer_has_closed(&self) -> bool {
        self.close_state.is_recv_complete() && self.recv.readable().is_none()
    }

    /// Whether the peer is known to support FIN and RST. Other implementations support neither, and
    /// are sent neither.
    #[must_use]
    pub fn peer_supports_close(&self) -> bool {
        self.close_state.peer_supports_control()
    }

    /// Shuts the read side down: the application reads no more.
    ///
    /// New data of a peer that supports RST is dropped without an ACK: answer it with
    /// [`Kcp::abort`] once [`Kcp::has_discarded_data`]. New data of any other peer is acknowledged
    /// and returned by [`Kcp::recv`] as before: drop it.
    #[doc(alias = "SHUT_RD")]
    pub fn shutdown_read(&mut self) {
        self.close_state.shutdown_read();
    }

    /// Whether data was dropped without an ACK after [`Kcp::shutdown_read`].
    #[must_use]
    pub fn has_discarded_data(&self) -> bool {
        self.close_state.has_discarded_data()
    }

    /// From now on window probes and retransmissions back off to at most `interval`, an RTO or 200
    /// ms, whichever is longest.
    pub(crate) fn limit_probe_interval(&mut self, now: Instant, interval: Duration) {
        let interval = micros(interval).max(self.send.path.rtt.rto()).max(MIN_PROBE_INTERVAL);
        self.send.limit_probe_interval(self.clock.at(now), interval);
    }

    /// Whether data waits for the peer's window and no data was discarded here: window probes are
    /// the only sign of life.
    pub(crate) fn waits_for_window(&self) -> bool {
        self.send.is_window_blocked() && !self.has_discarded_data()
    }

    /// Whether the peer has reported its window since the last call, and no data was discarded
    /// here: the peer is alive, and may be short of memory.
    pub(crate) fn take_window_report(&mut self) -> bool {
        std::mem::take(&mut self.window_reported) && !self.has_discarded_data()
    }

    /// Whether both windows are closed: each side waits for the other's application to read (RFC
    /// 9293 3.8.6).
    pub(crate) fn windows_are_closed(&self) -> bool {
        self.send.is_window_blocked() && self.recv.advertisable_window() == 0
    }

    /// Resets the connection (RST, RFC 9293 3.10.5). The connection ends at once with
    /// [`ConnectionError::Aborted`], unless it has ended already; no more data is sent or accepted.
    ///
    /// Returns whether RST is to be sent: a datagram went in each direction, and the peer supports
    /// RST or its support is unknown. If so, keep driving the connection while
    /// [`Kcp::is_resetting`], for at most ten seconds.
    #[doc(alias = "RST")]
    pub fn abort(&mut self, now: Instant) -> bool {
        // Without a datagram in each direction the peer may not have the connection.
        let has_exchanged = self.has_started() && self.peer.has_received();
        let sends_reset = has_exchanged && self.close_state.may_send_reset();
        if sends_reset {
            self.close_state.reset_mut().start(self.clock.at(now));
        }
        self.close_reason.get_or_insert(ConnectionError::Aborted);
        sends_reset
    }

    /// The CONTROL segment that tells the peer that this side is gone, as a kernel does for a
    /// process that exits: RST if data is `unread`, unsent or `truncated`, otherwise FIN (RFC 1122
    /// 4.2.2.13). After an acknowledged FIN it is the RST that the peer's next data would draw,
    /// with [`ALL_READ`] if everything was read. `None` if the peer supports neither, both sides
    /// have ended, or the anti-amplification limit holds it back.
    pub(crate) fn final_control(
        &mut self,
        now: Instant,
        truncated: bool,
        unread: bool,
    ) -> Option<Header> {
        let has_exchanged = self.has_started() && self.peer.has_received();
        let may_send = self.peer_supports_close() && self.send_budget().admits(HEADER_LEN);
        if !has_exchanged || !may_send || self.close_reason.is_some() {
            return None;
        }
        let fin_acked = self.close_state.is_closing() && self.close_state.is_fin_complete();
        if fin_acked && self.peer_has_closed() {
            return None;
        }
        let discards = unread || self.recv.readable().is_some();
        let everything_left = !truncated && self.send.send_buffer().is_empty();
        let (kind, (sn, ts)) = if everything_left && !discards && !fin_acked {
            let ts = self.clock.timestamp(self.clock.at(now));
            (ControlType::Fin, (self.send.nxt(), ts))
        } else {
            (ControlType::Reset, self.close_state.last_push()?)
        };
        let header = self.control_header(ControlSegment { kind, sn, ts });
        let says_all_read = kind == ControlType::Reset && fin_acked && !discards;
        Some(if says_all_read { Header { wnd: ALL_READ, ..header } } else { header })
    }

    /// Sends queued data at once, within windows, rate limit and anti-amplification limit: neither
    /// write policy nor pacer delays it. For the next datagrams, see `Pacer::advance`.
    pub(crate) fn hurry(&mut self) {
        self.flush();
        self.send.unpace();
    }

    /// Whether RST is being sent: until RST-ACK, at most for ten seconds.
    #[must_use]
    pub fn is_resetting(&self, now: Instant) -> bool {
        self.close_state.reset().until().is_some_and(|until| self.clock.at(now) < until)
    }

    /// Stops sending RST.
    pub(crate) fn cancel_reset(&mut self) {
        self.close_state.reset_mut().cancel();
    }

    /// When the lifetime of our RST ends; `None` unless RST is being sent.
    pub(crate) fn reset_until(&self) -> Option<Instant> {
        self.close_state.reset().until().map(|until| self.clock.instant(until))
    }

    /// Whether the peer's RST follows an orderly exchange: the peer has read everything, and each
    /// side has every byte of the other.
    pub(crate) fn was_reset_orderly(&self) -> bool {
        self.close_reason == Some(ConnectionError::Reset)
            && self.close_state.was_reset_orderly()
            && self.is_drained()
    }

    /// Whether RST is required when the connection ends with `reason`.
    pub(crate) fn must_send_reset(&self, reason: ConnectionError) -> bool {
        self.close_state.must_send_reset(reason, self.peer_has_closed())
    }

    /// Whether the connection must stay to answer further data of the peer with RST.
    pub(crate) fn awaits_peer_data(&self) -> bool {
        self.close_state.awaits_peer_data(self.peer_has_closed())
    }

    /// The TIME-WAIT state (RFC 9293 3.3.2), which answers the peer after the end. `opened_by`: the
    /// initial segments of the connection. `unread`: the application has not read everything.
    /// `restarted_by`: the latest different initial segment from the peer's address.
    pub(crate) fn time_wait(
        &self,
        opened_by: OpenedBy,
        unread: bool,
        restarted_by: Option<InitialHash>,
    ) -> TimeWait {
        let restarted = matches!(
            self.close_reason,
            Some(ConnectionError::PeerRestarted | ConnectionError::PeerStateLost)
        );
        let successor = restarted_by.filter(|_| restarted);
        let both_ended = self.peer_has_closed() && self.close_state.is_fin_complete();
        // The peer has ended the connection too, or has restarted and a RST could end its new
        // connection.
        let peer_ended = restarted || self.close_reason == Some(ConnectionError::Reset);
        TimeWait {
            opened_by,
            rcv_nxt: self.rcv_nxt(),
            snd_una: self.una(),
            withheld: self.withholds_acks(),
            supports_control: self.close_state.peer_supports_control(),
            // A peer that has closed its half may still wait for our FIN.
            reset_on_data: !(peer_ended || both_ended),
            all_read: !unread
                && self.close_state.is_fin_complete()
                && !self.close_state.has_discarded_data(),
            successor,
        }
    }
}

/// CONTROL segments out.
impl Kcp {
    /// Whether a CONTROL segment is due, while the connection is open.
    pub(super) fn has_control_due(&self, now: Micros) -> bool {
        self.close_state.has_reply(self.withholds_acks())
            || self.has_fin_due(now)
            || self.has_hello_due(now)
    }

    fn has_fin_due(&self, now: Micros) -> bool {
        self.close_reason.is_none()
            && self.close_state.fin_is_due(now)
            && self.send.send_buffer().is_empty()
            && self.has_started()
    }

    /// Appends the CONTROL segment that is due, if any. Replies and RST are sent after the end of
    /// the connection too.
    pub(super) fn emit_control(&mut self, now: Micros, out: &mut Vec<u8>) -> bool {
        let control = self.poll_control(now).or_else(|| self.poll_hello(now));
        let Some(control) = control else { return false };
        self.control_header(control).emit(out);
        true
    }

    fn control_header(&mut self, control: ControlSegment) -> Header {
        let ControlSegment { kind, sn, ts } = control;
        let header = self.header(Command::Control, kind as u8, sn, ts, 0);
        let wnd =
            if kind == ControlType::Reset { header.wnd.min(ALL_READ - 1) } else { header.wnd };
        Header { wnd, ..header }
    }

    fn poll_control(&mut self, now: Micros) -> Option<ControlSegment> {
        let reply = self.close_state.poll_reply(self.withholds_acks());
        if reply.is_some() {
            return reply;
        }
        if self.close_reason.is_some() {
            return self.close_state.poll_reset(now, self.send.path.rtt.rto());
        }
        if !self.has_fin_due(now) {
            return None;
        }
        let ts = self.clock.timestamp(now);
        self.close_state.poll_fin(now, self.send.nxt(), ts, self.send.path.rtt.rto())
    }
}

/// CONTROL segments in.
impl Kcp {
    /// Processes a CONTROL segment. `una_is_valid`: its `una` is not beyond SND.NXT.
    pub(super) fn input_control(&mut self, now: Micros, header: &Header, una_is_valid: bool) {
        if !self.close_state.is_enabled() {
            return;
        }
        let (sn, ts) = (header.sn, header.ts);
        let valid = match ControlType::from_frg(header.frg) {
            Some(ControlType::Fin) if self.is_of_another_process(now, header) => {
                self.on_another_process(now, header);
                false
            }
            Some(ControlType::Fin) => {
                let valid = una_is_valid && self.close_state.on_fin(sn, ts, self.recv.nxt());
                if valid {
                    self.peer.on_fin(now, ts, header.una);
                }
                valid
            }
            Some(ControlType::FinAck) => self.on_fin_ack(sn, ts),
            Some(ControlType::Reset) => self.on_reset(now, header),
            Some(ControlType::ResetAck) => self.close_state.on_reset_ack(sn, ts),
            Some(ControlType::Hello) => self.on_hello(now, header),
            Some(ControlType::HelloAck) => self.on_hello_ack(header),
            // Its effect comes with the validation of the path.
            Some(ControlType::Path) => true,
            None => false,
        };
        self.stats.anomalies.invalid_control_segments += u64::from(!valid);
    }

    /// A FIN-ACK names our FIN, and validates the address as an ACK does: a peer that has ended its side too is in
    /// TIME-WAIT and answers no ping, and its ACKs may be lost.
    fn on_fin_ack(&mut self, sn: Sn, ts: Ts) -> bool {
        let valid = self.close_state.on_fin_ack(sn, ts);
        if valid {
            self.on_address_proof(CONTROL_CAPABLE);
        }
        valid
    }

    /// A RST ends the connection if it names a segment that this side sent within
    /// [`RESET_LIFETIME`]: only a peer that receives our segments can name one. Any other RST draws
    /// a ping (RFC 5961 3.2, challenge ACK), or the pings of a stateless RST if it names an older
    /// segment, since its sender may be gone. Returns whether the RST is valid.
    fn on_reset(&mut self, now: Micros, reset: &Header) -> bool {
        let (sn, ts, ping) = (reset.sn, reset.ts, PingId::named_by(reset));
        let names_fin = self.is_recent(now, ts) && self.close_state.is_own_fin(sn, ts);
        let valid = self.is_recent_data(now, sn, ts)
            || names_fin
            || self.keepalive.is_recent_ping(now, ping)
            || self.send.every_path().any(|path| path.mtu.is_recent_ping(now, ping))
            || self.send.paths.as_ref().is_some_and(|paths| paths.has_sent_lately(now, ping));
        if valid {
            self.close_reason.get_or_insert(ConnectionError::Reset);
            self.close_state.on_reset(reset);
        } else if self.has_started() && self.close_reason.is_none() {
            self.keepalive.request_ping(now);
            let names_old = self.send.has_sent(&self.clock, sn, ts) || self.keepalive.is_ping(ping);
            if names_old {
                // Not before the next ping may be sent, or each copy of the RST would draw one.
                let next = self.keepalive.next_ping_at().filter(|_| !self.keepalive.is_due());
                self.pending_reset.on_ping_reset(next.map_or(now, |at| at.max(now)));
            }
        }
        valid
    }

    /// Whether a data segment with `sn` and `ts` was sent within [`RESET_LIFETIME`].
    pub(super) fn is_recent_data(&self, now: Micros, sn: Sn, ts: Ts) -> bool {
        self.is_recent(now, ts) && self.send.has_sent(&self.clock, sn, ts)
    }

    /// Whether a segment with `ts` would have been sent within [`RESET_LIFETIME`].
    fn is_recent(&self, now: Micros, ts: Ts) -> bool {
        let age = i64::from(self.clock.timestamp(now).since(ts)) * 1_000;
        (0..=RESET_LIFETIME.cast_signed()).contains(&age)
    }

    /// A stateless RST: the endpoint does not know this connection, or refuses it. It counts if it
    /// copies our initial segment and nothing else answers, or a ping and the peer shows no sign of
    /// life, neither since the ping nor in answer to further pings.
    pub(super) fn on_stateless_reset(&mut self, now: Micros, reset: &Header) {
        let (sn, ts) = (reset.sn, reset.ts);
        if self.close_reason.is_some() {
            return;
        }
        if self.is_unanswered_initial(sn, ts) {
            self.pending_reset.on_initial_reset(now);
        } else if !self.peer.has_received() {
            // The initial segment is still on its way, perhaps to a listener that has just started.
            self.stats.anomalies.invalid_control_segments += 1;
        } else if self.keepalive.is_unanswered_ping(now, PingId::named_by(reset)) {
            self.pending_reset.on_ping_reset(now);
            self.retransmit_ping(now);
        } else {
            self.stats.anomalies.invalid_control_segments += 1;
            if self.has_started() {
                self.keepalive.request_ping(now);
            }
        }
        self.update_timers(now);
    }

    /// Requests the next ping after a stateless RST, if due.
    pub(super) fn retransmit_ping(&mut self, now: Micros) {
        if self.pending_reset.is_ping_due(now) {
            self.keepalive.ask_again();
        }
    }

    /// Whether the peer's endpoint refused the connection, uncontradicted so far.
    pub(crate) fn is_refused(&self) -> bool {
        self.pending_reset.is_refusal()
    }

    /// Whether the connection ended because the peer does not know it.
    pub(crate) fn is_unknown_to_peer(&self) -> bool {
        self.close_reason == Some(ConnectionError::Reset) && self.pending_reset.deadline().is_some()
    }

    /// Whether `header` is our own FIN, reflected; a FIN-ACK copies its number and timestamp.
    pub(super) fn is_own_fin(&self, header: &Header) -> bool {
        self.names_own_fin(header, ControlType::Fin)
    }

    /// Whether `header` is the FIN-ACK of our FIN.
    pub(super) fn is_fin_ack(&self, header: &Header) -> bool {
        self.names_own_fin(header, ControlType::FinAck)
    }

    fn names_own_fin(&self, header: &Header, kind: ControlType) -> bool {
        header.command == Command::Control
            && ControlType::from_frg(header.frg) == Some(kind)
            && self.close_state.is_own_fin(header.sn, header.ts)
    }
}
