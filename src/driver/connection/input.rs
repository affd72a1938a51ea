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
        Ok(InputOutcome { immediate_ack: self.kcp.acks_at_once(), validated, opened_by_nobody })
    }

    /// Whether [`Self::input_more`] may take anything behind `previous`, the datagram fed last.
    pub(in super::super) fn may_input_more(&self, local: LocalIp, previous: &[u8]) -> bool {
        // `AckPolicy::Immediate` wants an ACK for each datagram.
        !self.kcp.acks_at_once()
            && !self.is_unvalidated()
            && self.judge_local_ip(local, previous).is_none()
            && self.kcp.may_input_more(previous)
    }

    /// Feeds the datagrams of a GRO batch that continue `previous`, the one fed last, to the state
    /// machine: see `Kcp::input_more`. Returns the number of these datagrams. To be called where
    /// [`Self::may_input_more`] holds.
    pub(in super::super) fn input_more<'a>(
        &mut self,
        now: Instant,
        previous: &[u8],
        rest: impl Iterator<Item = &'a [u8]>,
    ) -> usize {
        let taken = self.kcp.input_more(now, previous, rest);
        if taken > 0 {
            self.last_received = now;
        }
        taken
    }
}
