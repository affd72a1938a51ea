//! The connection and the FEC groups of its datagrams: what parity covers, fillers and FEC probes.

use std::time::{Duration, Instant};

use super::Kcp;
use super::fec_counters::{FecCounters, ParitySent};
use crate::config::Mode;
use crate::core::connection::output::Transmitted;
use crate::core::fec_probe::FecProbe;
use crate::core::segment::Command;
use crate::core::send::fec_plan::FecPlan;
use crate::core::send::protection::FecState;
use crate::core::seq::{Sn, Ts};
use crate::fec::{FecConfig, HEADER_LEN as FEC_HEADER};

/// State of a connection by which FEC decides when parity is worth its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowTiming {
    pub(crate) conv: u32,
    /// Order of transmission that the next segment gets.
    pub(crate) next_xmit_seq: u64,
    /// Smoothed round-trip time; `None` before the first sample.
    pub(crate) srtt: Option<Duration>,
    /// Retransmission timeout.
    pub(crate) rto: Duration,
    /// Estimated loss rate, per million.
    pub(crate) loss_rate: u32,
    /// Bytes of parity per million bytes of data packets; `None`: all parity of the layout.
    pub(crate) parity_rate: Option<u32>,
    /// Data waits that has not left: more packets of a message come. While a packet is sealed, that one is
    /// among them.
    pub(crate) has_unsent: bool,
}

/// A FEC group whose parity leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClosedGroup {
    /// The connection that began it, and the order of transmission of its first segment: all
    /// segments that this connection sent for the first time since are in the group.
    pub(crate) conv: u32,
    pub(crate) first_xmit_seq: u64,
    pub(crate) opened: Instant,
    /// All packets, and those of parity.
    pub(crate) packets: usize,
    pub(crate) parities: usize,
}

/// FEC.
impl Kcp {
    /// The counters of FEC, which most connections do not need.
    fn fec_counters(&mut self) -> &mut FecCounters {
        self.fec_counters.get_or_insert_with(Box::default)
    }

    /// Parity has left with data of this connection.
    pub(crate) fn on_parity_sent(&mut self, sent: ParitySent) {
        if sent.packets > 0 {
            let total = &mut self.fec_counters().parity_sent;
            total.packets += sent.packets;
            total.bytes += sent.bytes;
        }
    }

    /// The current timing.
    #[inline]
    pub(crate) fn flow_timing(&self) -> FlowTiming {
        let rtt = &self.send.rtt;
        FlowTiming {
            conv: self.conv,
            next_xmit_seq: self.send.next_xmit_seq(),
            srtt: rtt.srtt().map(Duration::from_micros),
            rto: Duration::from_micros(rtt.rto()),
            loss_rate: self.send.loss_rate(),
            parity_rate: self.fec_plan().map(|plan| plan.rate),
            has_unsent: !self.send.send_buffer().is_empty(),
        }
    }

    /// The parity of a group leaves now: loss detection waits for what it recovers.
    pub(crate) fn on_fec_group_closed(&mut self, now: Instant, group: &ClosedGroup) {
        let times = (self.clock.at(group.opened), self.clock.tick(now));
        let counts = (group.packets, group.parities);
        self.send.on_fec_group_closed(&self.clock, times, group.first_xmit_seq, counts);
    }

    /// Appends a FEC probe: a ping with a cookie of its own.
    pub(crate) fn write_fec_probe(&mut self, out: &mut Vec<u8>) {
        let (sn, cookie) = (self.role.ping_sn(self.send.una()), self.keepalive.next_cookie());
        self.header(Command::Push, self.close_state.capability(), sn, cookie, 0).emit(out);
        self.fec_probe = FecProbe::Outstanding(sn, cookie);
        self.fec_counters().probes_sent += 1;
    }

    /// Takes an ACK that matches no segment in flight and no ping. Returns whether it is one of the
    /// FEC probe.
    pub(super) fn on_fec_probe_ack(&mut self, sn: Sn, ts: Ts) -> bool {
        let first = self.fec_probe.on_ack(sn, ts);
        if first == Some(true) {
            self.fec_counters().probes_answered += 1;
        }
        first.is_some()
    }

    /// Whether the latest FEC probe was answered since this was last called.
    pub(crate) fn take_fec_probe_answer(&mut self) -> bool {
        self.fec_probe.take_answer()
    }

    /// FEC is applied to what is sent, unless it is `disabled` since the peer decodes none: then all
    /// datagrams leave without.
    pub(crate) fn set_fec_disabled(&mut self, disabled: bool) {
        if self.sent_overhead == self.received_overhead {
            // Chosen while the connection runs.
            let header = u16::try_from(FEC_HEADER).unwrap_or(0);
            self.sent_overhead += header;
            self.send.path.add_fec_header(header);
            self.update_mss();
        }
        if disabled || self.fec_counters.is_some() {
            self.fec_counters().is_disabled = disabled;
        }
        let is_used = !disabled && self.fec_plan().is_none_or(|plan| plan.is_on);
        let header = if is_used { self.sent_overhead - self.received_overhead } else { 0 };
        self.send.path.set_fec_header(header);
        let halves = is_used && self.fec_plan().is_some_and(|plan| plan.rate > 0);
        self.send.set_halves(halves && self.send.is_latency_bound());
    }

    /// Whether fillers and parity may leave now.
    pub(crate) fn may_fill_fec_group(&self, now: Instant) -> bool {
        self.close_reason.is_none()
            && self.send_budget().may_send_extras()
            && self.rate_limited_until(now).is_none()
    }

    /// The plan of automatic protection, if that is on.
    #[inline]
    pub(super) fn fec_plan(&self) -> Option<FecPlan> {
        Some(self.repair.as_ref()?.auto.as_ref()?.fec_plan())
    }

    /// Whether automatic protection decides for each datagram whether FEC covers it.
    #[inline]
    pub(crate) fn plans_fec(&self) -> bool {
        self.fec_plan().is_some()
    }

    /// The FEC layout that automatic protection has chosen, if it has.
    #[inline]
    pub(crate) fn chosen_fec_layout(&self) -> Option<FecConfig> {
        self.fec_plan()?.layout
    }

    /// Whether a datagram of `len` bytes with new data takes a place in a FEC group. One cut before
    /// FEC was chosen is too long for its header.
    #[inline]
    pub(crate) fn is_covered_by_fec(&self, len: usize) -> bool {
        let Some(plan) = self.fec_plan() else { return true };
        plan.is_on && self.send.is_latency_bound() && len <= self.send.path.current_mtu()
    }

    /// The peer has sent FEC, so that it decodes FEC too.
    pub(crate) fn on_peer_sends_fec(&mut self) {
        if let Some(state) = &mut self.repair {
            state.peer_sends_fec = true;
        }
    }

    /// What decides about FEC.
    pub(super) fn fec_state(&self) -> FecState {
        let state = self.repair.as_ref();
        let auto = state.and_then(|state| state.auto.as_ref());
        let layout = auto.and_then(|auto| auto.fec_plan().layout);
        let is_configured = layout.is_none() && self.sent_overhead > self.received_overhead;
        let is_known = is_configured
            || state.is_some_and(|state| state.peer_sends_fec)
            || auto.is_some_and(|auto| auto.limits().peers_decode_fec);
        let lacks_repair = state.is_some_and(|state| state.hello.peer_lacks_repair());
        let is_stock = self.close_state.peer_lacks_control();
        FecState {
            peer_decodes: lacks_repair || (is_stock && is_known),
            is_configured,
            may_halve: self.mode == Mode::Stream,
            halves: self.send.send_buffer().cuts_halves(),
            in_flight: self.send.in_flight().into(),
            lost: self.send.total_lost(),
        }
    }

    /// Appends a window update, which fills a place in a FEC group: `wnd` and `una` are the current
    /// ones, and nothing answers it. Returns its length.
    pub(crate) fn write_fec_filler(&mut self, now: Instant, out: &mut Vec<u8>) -> usize {
        let (now, start) = (self.clock.tick(now), out.len());
        self.window_update_pending = false;
        self.fec_counters().fillers_sent += 1;
        self.write_dataless(Command::WindowUpdate, Ts(0), out);
        self.on_datagram_sent(now, out.len() - start, Transmitted::default()).len
    }
}
