//! Received datagrams of a connection.

use std::time::Instant;

use super::Conn;
use crate::core::connection::PacketType;
use crate::core::segment::InputError;
use crate::util::path::LocalIp;

/// What the driver has to do after a received datagram.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct InputOutcome {
    /// `AckPolicy::Immediate`: an ACK leaves before the next datagram is handled.
    pub(in super::super) immediate_ack: bool,
    /// This datagram has validated the peer's address.
    pub(in super::super) validated: bool,
    /// This datagram shows that the peer has accepted the connection too: nobody has opened it.
    pub(in super::super) opened_by_nobody: bool,
}

impl Conn {
    /// Feeds a received datagram to the state machine.
    pub(in super::super) fn input(
        &mut self,
        now: Instant,
        datagram: &[u8],
        packet_type: PacketType,
    ) -> Result<InputOutcome, InputError> {
        let was_validated = self.is_validated();
        self.kcp.input(now, datagram, packet_type)?;
        if packet_type == PacketType::Regular {
            self.last_received = now;
        }
        let validated = !was_validated && self.is_validated();
        let opened_by_nobody =
            self.is_opened_by_nobody() && !self.lifecycle.is_ended() && self.quiet_until.is_none();
        Ok(InputOutcome { immediate_ack: self.immediate_acks, validated, opened_by_nobody })
    }

    /// Feeds the datagrams of a GRO batch that continue `previous`, the one fed last, to the state
    /// machine: see `Kcp::input_more`. Returns the bytes of these datagrams.
    pub(in super::super) fn input_more(
        &mut self,
        now: Instant,
        (local, previous): (LocalIp, &[u8]),
        rest: &[u8],
        size: usize,
    ) -> usize {
        // `AckPolicy::Immediate` wants an ACK for each datagram.
        if self.immediate_acks
            || self.is_unvalidated()
            || self.judge_local_ip(local, previous).is_some()
        {
            return 0;
        }
        let bytes = self.kcp.input_more(now, previous, rest, size);
        if bytes > 0 {
            self.last_received = now;
        }
        bytes
    }
}
