//! When pending ACKs are sent ([`AckPolicy`]), and which (kcp-go `flush`, `ackNoDelay`).

use std::time::Instant;

use super::Kcp;
use super::output::Transmitted;
use crate::config::AckPolicy;
use crate::core::clock::Micros;
use crate::core::segment::{Command, HEADER_LEN, Header};
use crate::core::seq::{Sn, Ts};

impl Kcp {
    /// Appends at most `max` of the pending ACKs.
    pub(super) fn write_acks(&mut self, max: usize, out: &mut Vec<u8>, sent: &mut Transmitted) {
        let max = self.write_recovered_acks(max, out, sent);
        if self.acks.is_empty() {
            return;
        }
        let template = self.header(Command::Ack, self.close_state.capability(), Sn(0), Ts(0), 0);
        let recv = &mut self.recv;
        self.acks.take(template.una, max, |ack| {
            recv.on_ack_sent(ack.sn);
            Header { sn: ack.sn, ts: ack.ts, ..template }.emit(out);
            sent.acks += 1;
        });
    }

    /// Whether each datagram is acknowledged before the next one is processed.
    pub(crate) fn acks_at_once(&self) -> bool {
        self.ack_policy == AckPolicy::Immediate
    }

    /// Whether pending ACKs are sent now even without another segment.
    pub(super) fn acks_due(&self, now: Micros) -> bool {
        if self.recv.has_recovered_acks() {
            return true;
        }
        match self.ack_policy {
            AckPolicy::PerBatch => {
                !self.acks.is_empty()
                    && !self.acks.are_delayed()
                    && self.ack_deadline().is_none_or(|at| now >= at)
            }
            AckPolicy::Immediate => !self.acks.is_empty(),
            AckPolicy::Interval => {
                self.acks.is_immediate()
                    || self.acks.arrivals() as usize >= self.current_mtu() / HEADER_LEN
                    || self.ack_deadline().is_some_and(|at| now >= at)
            }
        }
    }

    /// Delays the pending ACKs of one or two segments in order until [`Self::end_ack_delay`],
    /// unless another datagram is due (RFC 9293 3.8.6.3). Only under [`AckPolicy::PerBatch`], and
    /// neither ACKs of an unvalidated peer nor of bulk. Returns whether ACKs are delayed.
    pub(crate) fn delay_acks(&mut self, now: Instant) -> bool {
        if self.ack_policy != AckPolicy::PerBatch
            || !self.keepalive.is_validated()
            || self.ack_deadline().is_some()
        {
            return false;
        }
        self.acks.delay();
        if self.acks.are_delayed() && self.has_pending_transmit(now) {
            self.acks.end_delay();
        }
        self.acks.are_delayed()
    }

    /// Ends [`Self::delay_acks`]. Returns whether ACKs were delayed.
    pub(crate) fn end_ack_delay(&mut self) -> bool {
        self.acks.end_delay()
    }

    /// When pending ACKs are sent: all of them under [`AckPolicy::Interval`], ACKs of bulk under
    /// [`AckPolicy::PerBatch`]. `None`: at once, or with the next turn of the driver.
    pub(super) fn ack_deadline(&self) -> Option<Micros> {
        match self.ack_policy {
            AckPolicy::PerBatch if self.is_peer_unvalidated() => None,
            AckPolicy::PerBatch => {
                self.acks.bulk_deadline(self.close_state.peer_supports_control())
            }
            AckPolicy::Immediate => None,
            AckPolicy::Interval => {
                self.acks.since().map(|since| since.add_micros(self.interval.into()))
            }
        }
    }
}
