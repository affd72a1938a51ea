//! Which ACK validates the address of a peer that opened a connection (RFC 9000 8.1).
//!
//! An ACK of a ping shows that its sender receives our datagrams, not that it opened the
//! connection: some listeners open a session for any PUSH, pings included, and acknowledge it. So
//! the ACK has to fit the initial segment.

use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::core::seq::Ts;

/// The ACK that the initial segment demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AddressProof {
    /// Any ACK of a segment of ours. Entered at construction.
    #[default]
    Ack,
    /// An ACK with the CONTROL capability, which the initial segment has. Entered when a connection
    /// is accepted without data.
    CapableAck,
    /// An ACK with the CONTROL capability, or any ACK and a second copy of the initial segment: a
    /// client retransmits it while nothing is acknowledged, a listener never sends one. Entered
    /// when a connection is accepted with data and acknowledgements are withheld until the peer is
    /// validated.
    AckAndDuplicate { acked: bool, duplicated: bool },
}

impl AddressProof {
    /// Whether an ACK of the peer can have this `frg`.
    pub(crate) fn admits(self, frg: u8) -> bool {
        self != Self::CapableAck || frg == CONTROL_CAPABLE
    }

    /// An ACK of a segment of ours arrived. Returns whether the address is validated.
    pub(crate) fn on_ack(&mut self, frg: u8) -> bool {
        match self {
            Self::AckAndDuplicate { acked, duplicated } if frg != CONTROL_CAPABLE => {
                *acked = true;
                *duplicated
            }
            _ => self.admits(frg),
        }
    }

    /// The first data segment arrived again. Returns whether the address is validated.
    pub(crate) fn on_duplicate_received(&mut self) -> bool {
        let Self::AckAndDuplicate { acked, duplicated } = self else { return false };
        *duplicated = true;
        *acked
    }

    /// Whether the datagram of this segment counts for the anti-amplification limit: neither echoes
    /// of our segments nor answers of a listener to our pings do.
    pub(crate) fn counts(self, header: &Header, is_ping: bool) -> bool {
        let is_capable = header.frg == CONTROL_CAPABLE;
        match header.command {
            // Window probes of this side have timestamp 0.
            Command::WindowProbe => is_capable && header.ts != Ts(0),
            Command::Push if self == Self::CapableAck => is_capable && is_ping,
            Command::Push => header.len > 0,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::seq::Sn;

    #[test]
    fn ack_validates_if_it_fits_the_initial_segment() {
        let held = AddressProof::AckAndDuplicate { acked: false, duplicated: false };
        assert!(AddressProof::Ack.on_ack(0) && AddressProof::Ack.on_ack(CONTROL_CAPABLE));
        let mut capable = AddressProof::CapableAck;
        assert!(!capable.on_ack(0) && !capable.admits(0) && !capable.on_duplicate_received());
        assert!(capable.on_ack(CONTROL_CAPABLE));
        let (mut once, mut ack_first, mut ack_last) = (held, held, held);
        assert!(once.on_ack(CONTROL_CAPABLE), "a listener of this crate rejects a ping");
        assert!(!ack_first.on_ack(0) && !ack_first.on_ack(0) && ack_first.on_duplicate_received());
        assert!(
            !ack_last.on_duplicate_received()
                && !ack_last.on_duplicate_received()
                && ack_last.on_ack(0)
        );
    }

    #[test]
    fn echoes_and_answers_of_a_listener_do_not_count() {
        let held = AddressProof::AckAndDuplicate { acked: false, duplicated: false };
        let header = |command, frg, ts, len| {
            let (sn, una) = (Sn(0xC000_0000), Sn(0));
            Header { conv: 7, command, frg, wnd: 128, ts: Ts(ts), sn, una, len }
        };
        for proof in [AddressProof::Ack, AddressProof::CapableAck, held] {
            let counts =
                |command, frg, ts, len| proof.counts(&header(command, frg, ts, len), len == 0);
            let is_capable = proof == AddressProof::CapableAck;
            assert!(counts(Command::WindowProbe, CONTROL_CAPABLE, 5, 0));
            assert!(!counts(Command::WindowProbe, CONTROL_CAPABLE, 0, 0), "one of this side");
            assert!(!counts(Command::Ack, CONTROL_CAPABLE, 5, 0));
            assert!(!counts(Command::WindowUpdate, CONTROL_CAPABLE, 5, 0));
            assert!(!counts(Command::Control, 1, 5, 0));
            assert_eq!(counts(Command::Push, 0, 5, 9), !is_capable, "an application may echo");
            assert_eq!(counts(Command::Push, CONTROL_CAPABLE, 5, 0), is_capable);
        }
    }
}
