//! The connection and the FEC groups of its datagrams: what parity covers, fillers and FEC probes.

use std::time::{Duration, Instant};

use super::Kcp;
use crate::core::connection::output::Transmitted;
use crate::core::fec_probe::FecProbe;
use crate::core::segment::Command;
use crate::core::seq::{Sn, Ts};

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
        self.stats.fec_probes_sent += 1;
    }

    /// Takes an ACK that matches no segment in flight and no ping. Returns whether it is one of the
    /// FEC probe.
    pub(super) fn on_fec_probe_ack(&mut self, sn: Sn, ts: Ts) -> bool {
        let first = self.fec_probe.on_ack(sn, ts);
        self.stats.fec_probes_answered += u64::from(first == Some(true));
        first.is_some()
    }

    /// Whether the latest FEC probe was answered since this was last called.
    pub(crate) fn take_fec_probe_answer(&mut self) -> bool {
        self.fec_probe.take_answer()
    }

    /// Whether all datagrams leave without FEC at present.
    pub(crate) fn set_fec_disabled(&mut self, disabled: bool) {
        self.stats.fec_disabled = u64::from(disabled);
        let header = if disabled { 0 } else { self.sent_overhead - self.received_overhead };
        self.send.path.set_fec_header(header);
    }

    /// Whether fillers and parity may leave now.
    pub(crate) fn may_fill_fec_group(&self, now: Instant) -> bool {
        self.close_reason.is_none()
            && self.send_budget().may_send_extras()
            && self.rate_limited_until(now).is_none()
    }

    /// Appends a window update, which fills a place in a FEC group: `wnd` and `una` are the current
    /// ones, and nothing answers it. Returns its length.
    pub(crate) fn write_fec_filler(&mut self, now: Instant, out: &mut Vec<u8>) -> usize {
        let (now, start) = (self.clock.tick(now), out.len());
        self.window_update_pending = false;
        self.stats.fec_fillers_sent += 1;
        self.write_dataless(Command::WindowUpdate, Ts(0), out);
        self.on_datagram_sent(now, out.len() - start, Transmitted::default()).len
    }
}
