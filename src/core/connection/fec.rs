//! Forward error correction of a connection, the part of `core/redundancy` and `crate::fec` that
//! needs its state: parity and fillers of FEC groups; repair symbols (RLC, RFC 8681), their
//! negotiation with HELLO, and recovered segments; redundant data bundling, which copies segments
//! into datagrams with newer ones, or into datagrams of their own if no newer one comes.

use std::time::{Duration, Instant};

use crate::config::{AutoRedundancy, IP_UDP_HEADERS};
use crate::core::clock::Micros;
use crate::core::close::ControlSegment;
use crate::core::connection::output::Transmitted;
use crate::core::connection::{Kcp, PacketType, RepairState};
use crate::core::path::amplification::SendBudget;
use crate::core::recv::RecvOutcome;
use crate::core::redundancy::controller::{PathEstimate, RedundancyController, SentTotals};
use crate::core::redundancy::rlc::{Inserted, RecoveredSegment, RepairSymbol, SYMBOL_HEADER};
use crate::core::segment::{Command, ControlType, HEADER_LEN, Header, REPAIRED};
use crate::core::send::AckOutcome;
use crate::core::seq::{Sn, Ts};
use crate::stats::RedundancyStats;

/// Timing of a connection, for the decision of FEC whether parity is worth its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowTiming {
    pub(crate) conv: u32,
    /// Transmission order of the next segment.
    pub(crate) next_xmit_seq: u64,
    /// Smoothed RTT; `None` before the first sample.
    pub(crate) srtt: Option<Duration>,
    /// Retransmission timeout.
    pub(crate) rto: Duration,
    /// Estimated loss rate, per million.
    pub(crate) loss_rate: u32,
}

/// A FEC group with its parity sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClosedGroup {
    /// The connection that began the group, and the transmission order of its first segment: the
    /// group has all segments that this connection sent for the first time since.
    pub(crate) conv: u32,
    pub(crate) first_xmit_seq: u64,
    pub(crate) opened: Instant,
    /// All packets, and the parity packets among them.
    pub(crate) packets: usize,
    pub(crate) parities: usize,
}

/// Parity and fillers.
impl Kcp {
    /// Parity was sent with data of this connection.
    pub(crate) fn on_parity_sent(&mut self, packets: usize, bytes: usize) {
        if packets > 0 {
            let total = self.parity_sent.get_or_insert_default();
            total.packets += packets as u64;
            total.bytes += bytes as u64;
        }
    }

    /// The current timing.
    #[inline]
    pub(crate) fn flow_timing(&self) -> FlowTiming {
        let rtt = &self.send.path.rtt;
        FlowTiming {
            conv: self.conv,
            next_xmit_seq: self.send.next_xmit_seq(),
            srtt: rtt.srtt().map(Duration::from_micros),
            rto: Duration::from_micros(rtt.rto()),
            loss_rate: self.send.redundancy.loss_rate(),
        }
    }

    /// The parity of a group is sent: loss detection waits for the recovered segments.
    pub(crate) fn on_fec_group_closed(&mut self, now: Instant, group: &ClosedGroup) {
        let (opened, closed) = (self.clock.at(group.opened), self.clock.tick(now));
        let (first, packets, parities) = (group.first_xmit_seq, group.packets, group.parities);
        self.send.on_fec_group_closed(&self.clock, opened, closed, first, packets, parities);
    }

    /// Whether parity covers new data. With automatic redundancy only once the peer has shown that
    /// it accepts no repair symbols.
    pub(crate) fn uses_fec(&self) -> bool {
        let is_auto = self.repair.as_ref().is_some_and(|state| state.auto.is_some());
        !is_auto || self.peer_takes_no_repair()
    }

    /// Sets whether first transmissions have a FEC header, for MTU discovery.
    pub(crate) fn set_fec_used(&mut self, used: bool) {
        let header = if used { self.sent_overhead - self.received_overhead } else { 0 };
        self.send.path.mtu.set_fec_header(header);
    }

    /// Whether fillers and parity may be sent now.
    pub(crate) fn may_fill_fec_group(&self, now: Instant) -> bool {
        self.close_reason.is_none()
            && self.send_budget().may_send_extras()
            && self.rate_limited_until(now).is_none()
    }

    /// Appends a window update that fills a place in a FEC group; nothing answers it. Returns its
    /// length.
    pub(crate) fn write_fec_filler(&mut self, now: Instant, out: &mut Vec<u8>) -> usize {
        let (now, start) = (self.clock.tick(now), out.len());
        self.window_update_pending = false;
        self.parity_sent.get_or_insert_default().fillers += 1;
        self.write_dataless(Command::WindowUpdate, Ts(0), out);
        self.on_datagram_sent(now, out.len() - start, Transmitted::default()).len
    }
}

/// Smallest MSS, bytes, that repair symbols shorten; with a smaller one full segments are not
/// covered.
const MIN_MSS: usize = 64;
/// How far before RCV.NXT the encoding window of a repair symbol may begin, segments.
const MAX_BEHIND: i32 = 64;

/// Repair symbols: settings and statistics.
impl Kcp {
    /// Sends repair symbols to a peer that accepts them: `per_million` bytes per million bytes of
    /// data, at most 1,000,000. 0, the default: none. May be called at any time; drain
    /// [`Kcp::poll_transmit`] afterwards. Costs up to 192 KiB at the receiver and 3 bytes of the
    /// MSS. Flows with more than 256 segments in flight get none.
    #[doc(hidden)]
    pub fn set_repair_rate(&mut self, per_million: u32) {
        if per_million == 0 && self.repair.is_none() {
            return;
        }
        let state = self.repair_state();
        state.rate = per_million;
        if per_million > 0 {
            state.hello.start();
        }
        self.apply_repair_rate();
    }

    /// Statistics of all redundancy; `None` while all are zero.
    pub(crate) fn redundancy_stats(&self) -> Option<RedundancyStats> {
        let (repair, fec) = (self.repair.as_ref(), self.parity_sent.as_ref());
        if repair.is_none() && fec.is_none() && !self.send.redundancy.has_stats() {
            return None;
        }
        let mut stats = RedundancyStats::default();
        self.send.redundancy.add_stats(&mut stats);
        if let Some(fec) = fec {
            fec.add_to(&mut stats);
        }
        if let Some(state) = repair {
            stats.repair_symbols_received = state.received;
            stats.recovered_segments = state.recovered;
            stats.invalid_repair_symbols = state.invalid;
        }
        Some(stats)
    }

    /// Adapts the repair rate to the loss, within `limits`.
    pub(super) fn start_auto_redundancy(&mut self, limits: AutoRedundancy) {
        let controller = RedundancyController::new(limits, Micros(0));
        let state = self.repair_state();
        state.auto = Some(controller);
        // HELLO asks at once whether the peer accepts symbols.
        state.hello.start();
    }

    /// A datagram is sent: decides on the repair rate, at most ten times a second.
    #[inline]
    pub(super) fn update_auto_redundancy(&mut self, now: Micros) {
        let Some(auto) = self.repair.as_ref().and_then(|state| state.auto.as_ref()) else { return };
        if auto.is_due(now) {
            self.decide_redundancy(now);
        }
    }

    fn decide_redundancy(&mut self, now: Micros) {
        let (rtt, stats) = (&self.send.path.rtt, &self.stats);
        let path = PathEstimate {
            srtt: rtt.srtt().unwrap_or(0),
            min_rtt: rtt.min(),
            rttvar: rtt.rttvar(),
            packet_overhead: u64::from(self.sent_overhead) + (IP_UDP_HEADERS + HEADER_LEN) as u64,
            copies: self.send.redundancy.retransmission_copies(),
            in_flight: self.send.in_flight(),
        };
        let totals =
            SentTotals { data_bytes: stats.sent.payload_bytes, segments: stats.sent.segments };
        let has_layout = self.sent_overhead > self.received_overhead;
        let bundles = self.peer_takes_no_repair() && !has_layout;
        let Some(state) = &mut self.repair else { return };
        let Some(auto) = &mut state.auto else { return };
        let nxt = self.send.nxt();
        auto.decide(now, &path, totals, self.send.redundancy.loss_record(nxt));
        let rate = if bundles { auto.decide_bundling(now, &path) } else { 0 };
        self.send.redundancy.set_bundling_rate(rate, nxt);
        let rate = auto.rate();
        if rate != state.rate {
            state.rate = rate;
            self.apply_repair_rate();
        }
    }

    /// Whether the peer has shown that it accepts no repair symbols.
    fn peer_takes_no_repair(&self) -> bool {
        self.close_state.peer_lacks_control()
            || self.repair.as_ref().is_some_and(|state| state.hello.peer_lacks_repair())
    }

    pub(super) fn repair_state(&mut self) -> &mut RepairState {
        let accepts_paths = self.accepts_paths;
        self.repair.get_or_insert_with(|| Box::new(RepairState::new(accepts_paths)))
    }

    fn apply_repair_rate(&mut self) {
        let Some(state) = self.repair.as_ref().filter(|state| state.hello.peer_accepts_repair())
        else {
            return;
        };
        let nxt = self.send.nxt();
        let key = || self.keepalive.next_cookie().0;
        self.send.redundancy.set_repair_rate(state.rate, nxt, key);
        self.update_mss();
    }

    /// Bytes by which new segments are shorter than `mss`, so that repair symbols fit into the MTU.
    pub(super) fn repair_overhead(&self, mss: usize) -> usize {
        if self.send.redundancy.sends_repairs() && mss >= MIN_MSS { SYMBOL_HEADER } else { 0 }
    }
}

/// HELLO.
impl Kcp {
    /// Whether a HELLO or HELLO-ACK is due.
    pub(super) fn has_hello_due(&self, now: Micros) -> bool {
        let Some(state) = &self.repair else { return false };
        let may_ask = self.close_state.peer_supports_control();
        self.close_reason.is_none()
            && !self.withholds_acks()
            && (state.hello.has_answer()
                || (may_ask && state.hello.is_due(now, !self.send.is_drained())))
    }

    /// When HELLO is retransmitted.
    pub(super) fn hello_deadline(&self) -> Option<Micros> {
        self.repair.as_ref().filter(|_| !self.withholds_acks())?.hello.deadline()
    }

    /// Gives up a HELLO without a timely answer.
    pub(super) fn expire_hello(&mut self, now: Micros) {
        if let Some(state) = &mut self.repair {
            state.hello.handle_timeout(now);
        }
    }

    pub(super) fn poll_hello(&mut self, now: Micros) -> Option<ControlSegment> {
        if !self.has_hello_due(now) {
            return None;
        }
        let (rto, keepalive) = (self.send.path.rtt.rto(), &mut self.keepalive);
        let hello = &mut self.repair.as_mut()?.hello;
        let (may_ask, sends_data) =
            (self.close_state.peer_supports_control(), !self.send.is_drained());
        let answer = hello.poll_answer();
        if answer.is_some() || !may_ask || !hello.is_due(now, sends_data) {
            return answer;
        }
        hello.poll(now, rto, || keepalive.next_cookie())
    }

    /// A HELLO arrived. Returns whether it is valid.
    pub(super) fn on_hello(&mut self, now: Micros, header: &Header) -> bool {
        // A peer without CONTROL sends no HELLO, and must not be sent the answer.
        self.close_reason.is_none()
            && !self.close_state.peer_lacks_control()
            && self.repair_state().hello.on_hello(now, header.ts)
    }

    /// A HELLO-ACK arrived. Returns whether it answers our HELLO.
    pub(super) fn on_hello_ack(&mut self, header: &Header) -> bool {
        let Some(state) = &mut self.repair else { return false };
        let valid = state.hello.on_hello_ack(header.sn.0, header.ts);
        if valid && !self.send.redundancy.sends_repairs() {
            self.apply_repair_rate();
        }
        valid
    }

    /// Whether `header` is our own HELLO or repair symbol, reflected.
    pub(super) fn is_own_repair(&self, header: &Header) -> bool {
        let Some(state) = &self.repair else { return false };
        match header.command {
            Command::Repair => self.send.redundancy.has_sent_repair(header.ts.0),
            Command::Control => {
                ControlType::from_frg(header.frg) == Some(ControlType::Hello)
                    && state.hello.is_own(header.ts)
            }
            _ => false,
        }
    }
}

/// ACKs of recovered segments, in.
impl Kcp {
    /// Whether `header` is the ACK of a segment that the peer recovered. Only after repair symbols
    /// were sent; otherwise `frg` has no meaning.
    #[inline]
    pub(super) fn is_recovered_ack(&self, header: &Header) -> bool {
        header.command == Command::Ack
            && header.frg == REPAIRED
            && self.send.redundancy.repair.is_some()
    }

    /// Applies the ACK of a segment that the peer recovered. Returns whether it is the first for
    /// the segment.
    pub(super) fn input_recovered_ack(&mut self, now: Micros, header: &Header) -> bool {
        match self.send.on_recovered_ack(now, header.sn, header.ts.0) {
            AckOutcome::NewlyAcked => {
                // The random key proves that the peer received a repair symbol of ours.
                self.keepalive.on_validated();
                self.keepalive.on_acked();
                self.peer.on_state_shown();
                self.send.on_peer_activity(now);
                true
            }
            AckOutcome::AckedBefore | AckOutcome::Stale => false,
            AckOutcome::Invalid => {
                self.stats.anomalies.invalid_acks += 1;
                false
            }
        }
    }
}

/// Repair symbols out.
impl Kcp {
    /// Whether a repair symbol is due.
    #[inline]
    pub(super) fn has_repair_due(&self, now: Micros) -> bool {
        self.send.repair_deadline().is_some_and(|at| now >= at)
    }

    /// Appends the datagram of the repair symbol that is due, if any.
    pub(super) fn write_repair(
        &mut self,
        now: Micros,
        budget: SendBudget,
        out: &mut Vec<u8>,
    ) -> bool {
        if !self.has_repair_due(now) || !budget.may_retransmit() {
            return false;
        }
        let Some((window, key)) = self.send.next_repair() else { return false };
        let len = window.symbol_len();
        if !budget.admits(HEADER_LEN + len) {
            return false;
        }
        let len = u32::try_from(len).unwrap_or(0);
        self.header(Command::Repair, window.count, window.first, Ts(key), len).emit(out);
        self.send.write_repair(now, window, out);
        true
    }
}

/// Repair symbols in.
impl Kcp {
    /// Processes a repair symbol. `is_alone`: its datagram has no other segment. Returns whether it
    /// recovered anything.
    pub(super) fn input_repair(
        &mut self,
        now: Micros,
        header: &Header,
        payload: &[u8],
        origin: PacketType,
        is_alone: bool,
    ) -> bool {
        let negotiated = self.repair.as_ref().is_some_and(|state| state.hello.peer_asked());
        // A symbol reconstructed by FEC is late, and may have arrived before.
        if !negotiated || self.close_reason.is_some() || origin != PacketType::Regular {
            return false;
        }
        let ahead = header.sn.since(self.recv.nxt());
        let end = ahead.saturating_add(header.frg.into());
        let in_window = ahead >= -MAX_BEHIND && end <= i32::from(self.recv.advertisable_window());
        let is_valid = is_alone && in_window && !self.send.redundancy.has_sent_repair(header.ts.0);
        let symbol =
            RepairSymbol { key: header.ts.0, first: header.sn, count: header.frg, symbol: payload };
        let (verdict, recovered) = if is_valid {
            self.recv.on_repair(now, symbol)
        } else {
            (Inserted::Invalid, Vec::new())
        };
        if let Some(state) = &mut self.repair {
            state.received += 1;
            state.invalid += u64::from(verdict == Inserted::Invalid);
        }
        self.input_recovered(now, recovered)
    }

    /// A segment arrived: equations with it as unknown may recover others.
    #[inline]
    pub(super) fn recover_with(&mut self, now: Micros, header: &Header, payload: &[u8]) {
        if self.recv.has_repair_state() {
            let recovered = self.recv.on_source(now, header.sn, header.frg, payload);
            self.input_recovered(now, recovered);
        }
    }

    /// Processes recovered segments as if they had arrived. Their ACKs are sent at once, with the
    /// repair key instead of a timestamp. Returns whether one was new.
    fn input_recovered(&mut self, now: Micros, mut recovered: Vec<RecoveredSegment>) -> bool {
        let mut is_new = false;
        // In order, so that each one can continue the one before it.
        let nxt = self.recv.nxt();
        recovered.sort_unstable_by_key(|segment| segment.sn.since(nxt));
        for RecoveredSegment { sn, key, frg, payload } in recovered {
            if self.close_reason.is_some()
                || self.close_state.is_beyond_fin(sn)
                || (!payload.is_empty() && self.close_state.discards(sn, self.recv.nxt()))
            {
                continue;
            }
            if !self.recv.continues_message(sn, frg, payload.len()) {
                if let Some(state) = &mut self.repair {
                    state.invalid += 1;
                }
                continue;
            }
            match self.recv.input(sn, frg, &payload) {
                Ok(RecvOutcome::InOrder) => {
                    self.peer.on_state_shown();
                    // No ping even if autotuning lacks an RTT: the segments around ask for it.
                    self.recv.autotune_window(now, &self.send.path.rtt);
                    self.close_state.on_in_order(self.recv.nxt());
                }
                Ok(RecvOutcome::OutOfOrder) => self.recv.on_ack_sent(sn),
                Ok(_) => continue,
                Err(error) => {
                    self.close_reason = Some(error);
                    continue;
                }
            }
            self.recv.ack_recovered(sn, key);
            self.stats.received.segments += 1;
            self.stats.received.payload_bytes += payload.len() as u64;
            if let Some(state) = &mut self.repair {
                state.recovered += 1;
            }
            is_new = true;
        }
        is_new
    }

    /// Appends ACKs of recovered segments, at most `max`. Returns how many more fit.
    pub(super) fn write_recovered_acks(
        &mut self,
        max: usize,
        out: &mut Vec<u8>,
        sent: &mut Transmitted,
    ) -> usize {
        if !self.recv.has_recovered_acks() {
            return max;
        }
        let template = self.header(Command::Ack, REPAIRED, Default::default(), Ts(0), 0);
        let mut left = max;
        for ack in self.recv.take_recovered_acks(max) {
            Header { sn: ack.sn, ts: ack.ts, ..template }.emit(out);
            sent.acks += 1;
            left -= 1;
        }
        left
    }
}

/// Redundant data bundling.
impl Kcp {
    /// Copies segments into datagrams with newer ones: `per_million` bytes of copies per million
    /// bytes of data, each segment at most once. 0, the default: none. Works with any peer, at any
    /// time; drain [`Kcp::poll_transmit`] afterwards. Flows with more than 256 segments in flight,
    /// and datagrams more than half full, get none.
    #[doc(hidden)]
    pub fn set_bundling_rate(&mut self, per_million: u32) {
        let nxt = self.send.nxt();
        self.send.redundancy.set_bundling_rate(per_million, nxt);
    }

    /// Whether copies are due in a datagram of their own.
    #[inline]
    pub(super) fn has_bundle_due(&self, now: Micros) -> bool {
        self.send.bundling_deadline().is_some_and(|at| now >= at)
    }

    /// Appends the datagram of copies that is due, if any.
    pub(super) fn write_bundle(
        &mut self,
        now: Micros,
        budget: SendBudget,
        out: &mut Vec<u8>,
    ) -> bool {
        if !self.has_bundle_due(now) || !budget.may_retransmit() {
            return false;
        }
        let (start, nxt) = (out.len(), self.send.nxt());
        let space = budget.cap(self.current_mtu());
        self.write_copies(now, nxt, space, out);
        self.send.end_bundle(now, nxt);
        out.len() > start
    }

    /// Inserts copies of segments before `nxt` at `start`, at most `space` bytes.
    ///
    /// In front of the new segments, since the peer acknowledges in this order and only the last
    /// ACK of a datagram is an RTT sample.
    pub(super) fn bundle_copies(
        &mut self,
        now: Micros,
        nxt: Sn,
        start: usize,
        space: usize,
        out: &mut Vec<u8>,
    ) {
        let end = out.len();
        if self.write_copies(now, nxt, space, out) {
            out[start..].rotate_left(end - start);
            self.send.end_bundle(now, nxt);
        }
    }

    /// Appends copies of segments before `nxt`, the newest first, at most `space` bytes. Returns
    /// whether there was one.
    fn write_copies(&mut self, now: Micros, nxt: Sn, space: usize, out: &mut Vec<u8>) -> bool {
        let (start, mut end) = (out.len(), nxt);
        let ts = self.clock.timestamp(now);
        let template = self.header(Command::Push, 0, Sn(0), ts, 0);
        while let Some(sn) = self.send.next_bundled(now, end, space - (out.len() - start)) {
            let Some(segment) = self.send.transmit_bundled(now, sn, ts) else { break };
            segment.emit(template, out);
            end = sn;
        }
        end != nxt
    }
}
