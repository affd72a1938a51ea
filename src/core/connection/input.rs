//! Input of datagrams (kcp-go `Input`; RFC 9293 3.10.7): ACKs, cumulative acknowledgements, data and
//! CONTROL segments.
//!
//! In a GRO batch (UDP_GRO) datagrams that continue the previous one are processed together by
//! [`Kcp::input_more`], the counterpart of [`Kcp::poll_transmit_more`].

use std::time::Instant;

use crate::config::Mode;
use crate::core::clock::Micros;
use crate::core::connection::{Kcp, PacketType};
use crate::core::keepalive::{PingId, Pong};
use crate::core::recv::RecvOutcome;
use crate::core::recv::acks::Ack;
use crate::core::segment::{self, Command, ControlType, HEADER_LEN, Header, InputError, Segments};
use crate::core::send::{AckOutcome, AckSample, UnaOutcome};
use crate::core::seq::Sn;
use crate::core::stateless_reset;
use crate::error::{ConnectionError, TimeoutCause};

/// Largest window, segments. A number further before RCV.NXT belongs to a ping or an MTU probe, not
/// to a retransmission.
const MAX_WINDOW: i32 = u16::MAX as i32;

/// Datagrams.
impl Kcp {
    /// Processes one datagram of the peer (kcp-go `Input`).
    ///
    /// The whole datagram is validated before anything is applied. ACKs are applied before the
    /// cumulative acknowledgements of the same datagram, and count only if their timestamp matches
    /// a transmission of the segment. Windows count only from segments with a current `una`.
    ///
    /// # Errors
    ///
    /// If a segment is malformed or has another conversation id: the datagram has no effect.
    pub fn input(
        &mut self,
        now: Instant,
        datagram: &[u8],
        origin: PacketType,
    ) -> Result<(), InputError> {
        segment::validate(datagram, self.conv)?;
        let now = self.clock.tick(now);
        self.send.on_arrival(now, self.arrival);
        self.stats.received.datagrams += 1;
        self.stats.received.datagram_bytes += datagram.len() as u64;
        if self.close_state.is_enabled()
            && let Some(reset) = stateless_reset::parse(datagram)
            // A peer in TIME-WAIT that received nothing sends the same, but in answer to data.
            && !self.is_recent_data(now, reset.sn, reset.ts)
        {
            self.on_stateless_reset(now, &reset);
        } else {
            self.input_segments(now, datagram, origin);
        }
        self.qlog.on_received(now, datagram, self.send.una(), origin == PacketType::Fec);
        Ok(())
    }

    /// Applies the segments of a valid datagram.
    fn input_segments(&mut self, now: Micros, datagram: &[u8], origin: PacketType) {
        self.peer.on_received();
        if self.send.send_buffer().is_empty() {
            // All written data was sent, and nothing was written since.
            self.send.set_writer_waits(false);
        }
        self.recv.start_datagram();
        // A passive peer sends its ping and ACKs in one datagram.
        let was_validated = self.keepalive.is_validated();
        let mut is_new = self.input_acks(now, datagram, origin);
        if self.keepalive.is_validated() && !was_validated {
            self.recv.lift_memory_limit();
        }
        let (mut is_current, mut counts) = (false, false);
        for (header, payload) in Segments::new(datagram) {
            let una = self.input_una(now, &header, origin);
            is_current |= matches!(una, UnaOutcome::Current { .. });
            is_new |= matches!(una, UnaOutcome::Current { newly_acked: 1.. });
            let is_empty_push = header.command == Command::Push && payload.is_empty();
            if origin == PacketType::Regular && una != UnaOutcome::Invalid && !is_empty_push {
                // A ping does not answer an initial segment: it may belong to an earlier connection
                // with this id.
                self.on_initial_answered(now);
            }
            let is_ping = is_empty_push && self.recv.nxt().since(header.sn) > MAX_WINDOW;
            counts |= self.address_proof.counts(&header, is_ping);
            if is_ping && !was_validated && origin == PacketType::Regular {
                self.on_unvalidated_ping(now, &header);
            }
            if is_ping && origin == PacketType::Regular {
                self.on_possible_challenge(now);
            }
            if !self.is_recovered_ack(&header) {
                self.close_state.on_capability(&header, is_ping);
            }
            match header.command {
                Command::Push => is_new |= self.input_push(now, &header, payload, origin),
                Command::WindowProbe => self.window_update_pending = true,
                Command::WindowUpdate => {
                    let is_current = matches!(una, UnaOutcome::Current { .. });
                    self.window_reported |= is_current && origin == PacketType::Regular;
                    if is_current && header.una.since(self.least_una()) < 0 {
                        self.keepalive.request_ping(now);
                    }
                }
                Command::Ack => {}
                Command::Repair => {
                    let is_alone = HEADER_LEN + payload.len() == datagram.len();
                    is_new |= self.input_repair(now, &header, payload, origin, is_alone);
                }
                Command::Control => self.input_control(now, &header, una != UnaOutcome::Invalid),
            }
        }
        let bytes = if counts { datagram.len() } else { 0 };
        self.on_segments_processed(now, bytes, origin, is_new, is_current);
    }

    /// The segments of a datagram, or of several alike, were applied. `bytes`: their bytes that
    /// count for the anti-amplification limit. `is_new`: a segment was no replay. `is_current`: a
    /// segment had a current `una`.
    fn on_segments_processed(
        &mut self,
        now: Micros,
        bytes: usize,
        origin: PacketType,
        is_new: bool,
        is_current: bool,
    ) {
        if origin == PacketType::Regular {
            self.keepalive.on_received(now, is_new);
            self.pending_reset.on_received(is_new);
            if let Some(paths) = self.send.paths.as_mut().filter(|_| is_new) {
                paths.on_arrival(now, self.arrival);
            }
        }
        self.send.on_acks_processed(now);
        if origin == PacketType::Regular
            && self.peer.on_una(now, is_current, || self.send.path.rtt.rto())
        {
            self.keepalive.request_ping(now);
        }
        self.on_amplification_input(bytes, bytes > 0 && origin == PacketType::Regular);
        self.update_timers(now);
    }

    /// Applies the ACKs of a datagram: of data, of a ping (pong) or of an MTU probe. Returns
    /// whether one was new, so that the datagram is no replay.
    fn input_acks(&mut self, now: Micros, datagram: &[u8], origin: PacketType) -> bool {
        let mut is_new = false;
        let is_regular = origin == PacketType::Regular;
        let acks = Segments::new(datagram).map(|(header, _)| header);
        let mut acks = acks.filter(|header| header.command == Command::Ack).peekable();
        while let Some(header) = acks.next() {
            let (sn, ts) = (header.sn, header.ts);
            if !self.keepalive.is_validated() && !self.address_proof.admits(header.frg) {
                self.stats.anomalies.invalid_acks += 1;
                continue;
            }
            if self.is_recovered_ack(&header) {
                is_new |= is_regular && self.input_recovered_ack(now, &header);
                continue;
            }
            // Only the last ACK of a datagram is an RTT sample, as in kcp-go `Input`: it
            // acknowledges the latest arrival. The others may be delayed or second copies. If each
            // segment leaves twice, and the peer acknowledges both copies at once, there is no other
            // sample, and one a second comes from the first of them.
            let is_last = acks.peek().is_none_or(|next| {
                (next.sn, next.ts) == (sn, ts) && self.send.path.rtt.lacks_samples(now)
            });
            let sample = match (is_regular, is_last) {
                (false, _) => AckSample::None,
                (true, false) => AckSample::Wait,
                (true, true) => AckSample::Rtt,
            };
            match self.send.on_ack(now, &self.clock, sn, ts, sample, &mut self.stats) {
                outcome @ (AckOutcome::NewlyAcked | AckOutcome::AckedBefore) => {
                    is_new |= outcome == AckOutcome::NewlyAcked;
                    self.on_address_proof(header.frg);
                    self.keepalive.on_acked();
                    self.peer.on_state_shown();
                    self.send.on_peer_activity(now);
                    continue;
                }
                AckOutcome::Stale => continue,
                AckOutcome::Invalid => {}
            }
            // A peer that acknowledges segments never sent has another connection. Before it is
            // validated, our ping was relayed to it. Afterwards, another process had this address
            // before us, and has answered the peer first.
            let contradicts = header.una.since(self.send.nxt()) > 0;
            let pong = if is_regular && (!contradicts || self.keepalive.is_validated()) {
                self.keepalive.on_pong(now, PingId::named_by(&header), header.una)
            } else {
                None
            };
            match pong {
                Some(pong) => {
                    is_new = true;
                    self.on_address_proof(header.frg);
                    self.input_pong(now, &pong, sample != AckSample::None);
                    self.on_pong(pong.state_lost || contradicts, header.una);
                }
                None if is_regular && self.on_mtu_probe_ack(now, &header) => is_new = true,
                None if is_regular && self.on_path_pong(now, &header) => is_new = true,
                None => self.stats.anomalies.invalid_acks += 1,
            }
        }
        is_new
    }

    /// Applies a pong to path and peer.
    fn input_pong(&mut self, now: Micros, pong: &Pong, sample: bool) {
        if pong.is_early && self.send.has_unacked() {
            self.send.on_early_pong(now);
            return;
        }
        self.send.on_peer_activity(now);
        // The only RTT samples of a side that sends no data.
        if let Some(rtt) = pong.rtt.filter(|_| sample) {
            self.send.path.rtt.on_sample(now, rtt);
        }
    }

    /// A ping of an unvalidated peer: it ends a simultaneous passive open, and as a possible Retry
    /// has the initial segment sent again. A reflection of our own ping is ignored.
    fn on_unvalidated_ping(&mut self, now: Micros, ping: &Header) {
        let is_own = self.keepalive.is_recent_ping(now, PingId::named_by(ping));
        if is_own {
            return;
        }
        self.establishment.on_ping(now);
        if self.role.on_ping(ping.sn) {
            self.close_reason.get_or_insert(ConnectionError::DeadPeer(TimeoutCause::Nothing));
        }
    }

    /// Autotunes the receive window, after data arrived in order.
    #[inline]
    fn autotune_recv_window(&mut self, now: Micros) {
        if self.recv.autotune_window(now, self.send.longest_rtt()) {
            // Pings are the only RTT samples of a side that sends no data.
            self.keepalive.request_ping(now);
        }
    }

    /// `una`, without effect before the peer is validated: it may be an echo of our own RCV.NXT. The `una` of
    /// a FIN-ACK counts, since the FIN-ACK validates the peer.
    fn proven_una(&self, header: &Header) -> Sn {
        let (oldest, nxt, una) = (self.send.una(), self.send.nxt(), header.una);
        let acks = una.since(oldest) > 0 && una.since(nxt) <= 0;
        if acks && self.is_peer_unvalidated() && !self.is_fin_ack(header) { oldest } else { una }
    }

    /// Applies the `una` of one segment, and its `wnd` if that `una` is current.
    fn input_una(&mut self, now: Micros, header: &Header, origin: PacketType) -> UnaOutcome {
        let una = self.send.on_una(now, &self.clock, self.proven_una(header));
        match una {
            UnaOutcome::Current { newly_acked } => {
                if newly_acked > 0 {
                    self.keepalive.on_acked();
                    self.send.on_peer_activity(now);
                }
                // A ping before the peer has the connection, for example a Retry, has no window.
                let is_ping = header.command == Command::Push && header.len == 0;
                let may_be_retry = is_ping && !self.keepalive.is_validated();
                // `wnd` of a RST is no window, see `ALL_READ`.
                let is_reset = header.command == Command::Control
                    && ControlType::from_frg(header.frg) == Some(ControlType::Reset);
                if origin == PacketType::Regular && !may_be_retry && !is_reset {
                    let srtt = self.send.path.rtt.srtt().unwrap_or(0);
                    self.send.remote.on_window(now, header.una, header.wnd, srtt);
                }
            }
            UnaOutcome::Stale => self.stats.anomalies.stale_una_datagrams += 1,
            UnaOutcome::Invalid => self.stats.anomalies.invalid_una += 1,
        }
        una
    }

    /// Processes one PUSH: data, a ping or an MTU probe. Returns whether it was new data.
    fn input_push(
        &mut self,
        now: Micros,
        header: &Header,
        payload: &[u8],
        origin: PacketType,
    ) -> bool {
        // Our RST names the latest PUSH. The peer does not accept a RST that names an MTU probe.
        let is_mtu_probe = !payload.is_empty() && self.recv.nxt().since(header.sn) > MAX_WINDOW;
        let is_data = !payload.is_empty() && !is_mtu_probe;
        let is_ahead = header.sn.since(self.recv.nxt()) >= 0;
        if is_data && is_ahead && self.is_of_another_process(now, header) {
            self.on_another_process(now, header);
            self.stats.anomalies.out_of_window_segments += 1;
            return false;
        }
        if origin == PacketType::Regular && !is_mtu_probe {
            self.close_state.on_push(header.sn, header.ts);
        }
        if self.close_reason.is_some() {
            return false;
        }
        if is_data && self.peer.contradicts_fin(now, header.ts, header.una) {
            self.close_state.forget_fin();
        }
        if let Some(paths) = self.send.paths.as_mut().filter(|_| is_data) {
            if is_ahead && self.recv.is_missing(header.sn) {
                paths.on_data(now, self.arrival, &mut self.acks);
            } else {
                paths.on_duplicate(now, self.arrival);
            }
        }
        if self.close_state.is_beyond_fin(header.sn)
            || (!payload.is_empty() && self.close_state.discards(header.sn, self.recv.nxt()))
        {
            self.stats.anomalies.out_of_window_segments += 1;
            return false;
        }
        let ack = Ack { sn: header.sn, ts: header.ts };
        let had_gap = self.recv.has_gap();
        let outcome = self.recv.input(header.sn, header.frg, payload);
        match outcome {
            Ok(RecvOutcome::InOrder) => {
                self.peer.on_state_shown();
                self.autotune_recv_window(now);
                self.close_state.on_in_order(self.recv.nxt());
                self.acks.on_in_order(now, ack, payload.len(), self.send.path.rtt.srtt());
                if had_gap || origin == PacketType::Fec {
                    self.acks.forbid_delay();
                }
                self.stats.received.segments += 1;
                self.stats.received.payload_bytes += payload.len() as u64;
                self.recover_with(now, header, payload);
            }
            Ok(RecvOutcome::OutOfOrder) => {
                self.acks.on_out_of_order(now, self.recv.nxt(), ack, payload.len());
                self.stats.received.segments += 1;
                self.stats.received.payload_bytes += payload.len() as u64;
                self.recover_with(now, header, payload);
            }
            Ok(RecvOutcome::OutOfOrderDuplicate) => {
                // The ACK may be lost: every such number is acknowledged again, not only the
                // latest.
                self.acks.on_out_of_order(now, self.recv.nxt(), ack, payload.len());
                self.stats.anomalies.duplicate_segments += 1;
            }
            Ok(RecvOutcome::Duplicate) => {
                self.on_duplicate_received(now, ack, origin);
                self.stats.anomalies.duplicate_segments += 1;
            }
            Ok(RecvOutcome::OutOfWindow) => {
                // The peer learns the window, and that this side is alive (RFC 9293 3.10.7.4).
                self.window_update_pending = true;
                self.stats.anomalies.out_of_window_segments += 1;
            }
            Err(error) => self.close_reason = Some(error),
        }
        let is_new = matches!(outcome, Ok(RecvOutcome::InOrder | RecvOutcome::OutOfOrder));
        if is_new {
            self.peer.on_data(now, header.ts, header.una);
        }
        is_new
    }

    /// A ping, an MTU probe or a segment that was received before arrived.
    fn on_duplicate_received(&mut self, now: Micros, ack: Ack, origin: PacketType) {
        let is_first = ack.sn == Sn(0) && origin == PacketType::Regular;
        if is_first && self.address_proof.on_duplicate_received() {
            self.keepalive.on_validated();
        }
        self.keepalive.on_duplicate_received(now);
        if self.recv.nxt().since(ack.sn) > MAX_WINDOW {
            // Before the peer is validated nothing leaves for the paths, and the peer may wait for this pong.
            let validated = self.keepalive.is_validated();
            if let Some(paths) = self.send.paths.as_mut().filter(|_| validated) {
                paths.on_ping(now, self.arrival, PingId { sn: ack.sn, cookie: ack.ts });
                return;
            }
            self.acks.on_probe(now, ack);
        } else {
            self.acks.on_duplicate(now, ack);
        }
    }
}

/// GRO batches.
impl Kcp {
    /// Whether [`Self::input_more`] may take datagrams after `previous`.
    pub(crate) fn may_input_more(&self, previous: &[u8]) -> bool {
        lone_push(previous).is_some_and(|(header, _)| self.may_continue(&header))
    }

    /// Processes the first datagrams of `rest`, while they continue `previous`: each is one PUSH
    /// with the next number in order, and differs from `previous` in number, timestamp and payload
    /// only. `previous` itself is not processed. Returns how many were; 0 while anything but data
    /// in order may be going on. `rest` is advanced at most one datagram further.
    ///
    /// The state afterwards is the same as with [`Kcp::input`] for each
    /// (`core/tests/gro_batches.rs`). Work that depends only on the equal fields is done once:
    /// `una`, the peer's window, timers. Reflected segments of our own are not processed.
    pub(crate) fn input_more<'a>(
        &mut self,
        now: Instant,
        previous: &[u8],
        rest: impl Iterator<Item = &'a [u8]>,
    ) -> usize {
        let Some((first, _)) = lone_push(previous).filter(|(header, _)| self.may_continue(header))
        else {
            return 0;
        };
        let now = self.clock.tick(now);
        let (mut header, has_started) = (first, self.has_started());
        let (had_gap, rtt) = (self.recv.has_gap(), self.send.path.rtt.srtt());
        let (mut bytes, mut payload_bytes, mut segments) = (0, 0, 0_usize);
        for datagram in rest {
            let Some((next, payload)) = lone_push(datagram) else { break };
            let (ts, sn, len) = (next.ts, header.sn.advance(1), next.len);
            // Number 0 may be an initial segment, after the sequence has wrapped.
            if next != (Header { ts, sn, len, ..header })
                || sn == Sn(0)
                || (has_started && self.send.has_sent(&self.clock, sn, ts))
                || self.is_of_another_process(now, &next)
                || !matches!(self.recv.input(sn, next.frg, payload), Ok(RecvOutcome::InOrder))
            {
                break;
            }
            if segments == 0 {
                // A round trip ends at most once per instant, with the first segment.
                self.autotune_recv_window(now);
            }
            header = next;
            segments += 1;
            let ack = Ack { sn, ts };
            self.acks.on_in_order(now, ack, payload.len(), rtt);
            bytes += datagram.len();
            payload_bytes += payload.len();
            self.qlog.on_received(now, datagram, first.una, false);
        }
        if segments == 0 {
            return 0;
        }
        self.autotune_recv_window(now);
        self.stats.received.datagrams += segments as u64;
        self.stats.received.datagram_bytes += bytes as u64;
        self.stats.received.segments += segments as u64;
        self.stats.received.payload_bytes += payload_bytes as u64;
        self.close_state.on_push(header.sn, header.ts);
        self.peer.on_data(now, header.ts, header.una);
        self.peer.on_state_shown();
        if had_gap {
            self.acks.forbid_delay();
        }
        let una = self.input_una(now, &header, PacketType::Regular);
        let is_current = matches!(una, UnaOutcome::Current { .. });
        self.on_segments_processed(now, bytes, PacketType::Regular, true, is_current);
        segments
    }

    /// Whether segments that continue this header are plain data in order: every step of
    /// [`Kcp::input`] that [`Self::input_more`] skips, or does once, would have no further effect.
    fn may_continue(&self, header: &Header) -> bool {
        self.mode == Mode::Stream
            && self.close_reason.is_none()
            && self.keepalive.is_validated()
            && self.close_state.is_receiving()
            && !self.recv.has_repair_state()
            && header.sn.advance(1) == self.recv.nxt()
            && header.una == self.send.una()
            // The window does not shrink.
            && self.send.remote.available(header.una) <= u32::from(header.wnd)
    }
}

/// The PUSH, if `datagram` is one with payload and nothing else.
#[inline]
fn lone_push(datagram: &[u8]) -> Option<(Header, &[u8])> {
    let header = Header::parse(datagram).ok()?;
    let payload = datagram.get(HEADER_LEN..)?;
    let is_alone = header.command == Command::Push
        && !payload.is_empty()
        && u64::from(header.len) == payload.len() as u64;
    is_alone.then_some((header, payload))
}

/// Reflections.
impl Kcp {
    /// Whether a datagram has a segment that this side sent unasked: number and timestamp match
    /// data in flight or one of the last 64 acknowledged segments, a recent ping or probe, the
    /// initial segment without data, FIN, HELLO or a repair symbol. A segment of the peer matches
    /// by chance once in 2^32 times, since timestamps count from a random epoch and cookies are
    /// random.
    ///
    /// Answers of this side copy number and timestamp of the peer's segment, so their echo proves
    /// nothing and needs no check (`core/tests/echo.rs`).
    pub(crate) fn is_reflection(&self, datagram: &[u8]) -> bool {
        self.has_started()
            && Segments::new(datagram).any(|(header, payload)| match header.command {
                Command::Push if payload.is_empty() => self.is_own_ping(PingId::named_by(&header)),
                Command::Push => {
                    self.send.has_sent(&self.clock, header.sn, header.ts)
                        || self.is_mtu_probe(PingId::named_by(&header))
                }
                Command::WindowProbe => self.establishment.is_initial(header.ts),
                Command::Repair => self.is_own_repair(&header),
                Command::Control => self.is_own_fin(&header) || self.is_own_repair(&header),
                Command::Ack | Command::WindowUpdate => false,
            })
    }

    /// Whether this side sent the ping, of any kind.
    fn is_own_ping(&self, ping: PingId) -> bool {
        self.keepalive.is_ping(ping)
            || self.is_mtu_probe(ping)
            || self.path_validator.as_ref().is_some_and(|validator| validator.has_sent(ping))
            || self.send.paths.as_ref().is_some_and(|paths| paths.has_sent(ping))
    }

    /// Counts a reflected datagram.
    pub(crate) fn count_reflected(&mut self) {
        self.stats.anomalies.reflected_datagrams += 1;
    }
}
