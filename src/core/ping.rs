//! Numbers of segments without data. The number of a ping also tells which side opened the
//! connection (RFC 9293 3.5, active and passive open).
//!
//! Initial segments forged to two servers, each in the name of the other, would open a connection
//! between them: both sides passive, each answering the other's pings. So the lowest bit of a
//! ping's number tells that its sender has accepted the connection.

use super::seq::Sn;

/// How far before SND.UNA the number of a segment without data lies, segments.
pub(crate) const PING_DISTANCE: u32 = 1 << 30;
/// Set in a ping's `sn` if its sender has accepted the connection.
const ACCEPTED: u32 = 1;

/// How the connection was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// This side opened the connection. Entered at construction; left on [`Self::accept`].
    #[default]
    Active,
    /// This side accepted an initial segment from the peer's address. Left on a ping of a passive
    /// peer.
    Passive,
    /// Simultaneous passive open: both sides have accepted and neither has opened. Never left.
    BothPassive,
}

impl Role {
    /// This side accepts the connection.
    pub(crate) fn accept(&mut self) {
        if *self == Self::Active {
            *self = Self::Passive;
        }
    }

    /// A ping with this number arrived from an unvalidated peer. Returns whether both sides are
    /// passive.
    pub(crate) fn on_ping(&mut self, sn: Sn) -> bool {
        if *self == Self::Passive && sn.0 & ACCEPTED != 0 {
            *self = Self::BothPassive;
        }
        *self == Self::BothPassive
    }

    /// The number of a ping; `una` is SND.UNA. Never 0, see [`dataless_sn`].
    pub(crate) fn ping_sn(self, una: Sn) -> Sn {
        let Sn(sn) = dataless_sn(una);
        match (self, sn & !ACCEPTED) {
            (Self::Active, 0) => Sn(!ACCEPTED),
            (Self::Active, even) => Sn(even),
            (Self::Passive | Self::BothPassive, even) => Sn(even | ACCEPTED),
        }
    }
}

/// The ACK of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pong {
    /// The pong's `una` is below SND.UNA at the first transmission of the ping: the peer has lost
    /// the state of the connection.
    pub(crate) state_lost: bool,
    /// RTT sample, microseconds; `None` if the ping was retransmitted (Karn's algorithm, RFC 6298
    /// 3).
    pub(crate) rtt: Option<u64>,
    /// The ping asked a silent peer for the state of the connection, earlier than the dead-peer
    /// timeout requires.
    pub(crate) is_early: bool,
}

/// Sequence number of a segment without data: 2^30 segments before `una`, outside every window.
/// Never 0: other implementations take number 0 for an initial segment and replace the session of
/// that address.
pub(crate) fn dataless_sn(una: Sn) -> Sn {
    match una.back(PING_DISTANCE) {
        Sn(0) => Sn(u32::MAX),
        sn => sn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_is_in_the_lowest_bit_of_a_ping_and_its_number_is_never_zero() {
        for una in [0, 1, 2, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, u32::MAX] {
            for (role, bit) in [(Role::Active, 0), (Role::Passive, 1), (Role::BothPassive, 1)] {
                let Sn(sn) = role.ping_sn(Sn(una));
                assert!(sn != 0 && sn & 1 == bit, "{una}: {sn}");
                let behind = una.wrapping_sub(sn);
                assert!((1 << 30..=(1 << 30) + 4).contains(&(behind + 1)), "{una}: {behind}");
            }
        }
    }

    #[test]
    fn role_is_both_passive_only_after_a_ping_of_a_passive_peer() {
        let (mut active, mut passive) = (Role::Active, Role::Passive);
        assert!(!active.on_ping(Sn(1)) && !passive.on_ping(Sn(2)) && passive.on_ping(Sn(3)));
        passive.accept();
        assert!(passive == Role::BothPassive && passive.on_ping(Sn(2)));
        active.accept();
        assert!(active.on_ping(Sn(5)));
    }
}
