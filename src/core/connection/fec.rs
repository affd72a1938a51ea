//! Forward error correction of a connection: parity and fillers.

use std::time::{Duration, Instant};

use super::Kcp;
use crate::core::connection::output::Transmitted;
use crate::core::segment::Command;
use crate::core::seq::Ts;
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

/// FEC packets sent with the data of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParitySent {
    /// Parity packets, and their bytes.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Window updates that filled a group.
    pub(crate) fillers: u64,
}

impl ParitySent {
    pub(super) fn add_to(&self, stats: &mut RedundancyStats) {
        stats.parity_packets_sent = self.packets;
        stats.redundant_bytes_sent += self.bytes;
        stats.fec_fillers_sent = self.fillers;
    }
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

/// FEC.
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
        let rtt = &self.send.rtt;
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
        self.send.path.set_fec_header(header);
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
