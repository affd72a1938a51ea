//! Soundings: pings that a FEC group holds and that do not leave by themselves. The ACK of one
//! shows that the peer reconstructed it, so that it decodes our FEC.

use super::seq::{Sn, Ts};

/// The latest sounding of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sounding {
    /// Entered at construction, and when an answer is taken; left when a sounding is written.
    #[default]
    None,
    /// Not answered. Entered when a sounding is written; left on its ACK.
    Outstanding(Sn, Ts),
    /// Entered on the ACK; left when the answer is taken.
    Answered,
}

impl Sounding {
    /// Takes an ACK that matches no segment in flight and no ping. Returns whether it answers the
    /// sounding.
    pub(crate) fn on_ack(&mut self, sn: Sn, ts: Ts) -> bool {
        let answered = *self == Self::Outstanding(sn, ts);
        if answered {
            *self = Self::Answered;
        }
        answered
    }

    /// Whether the sounding was answered since this was last called.
    pub(crate) fn take_answer(&mut self) -> bool {
        let answered = *self == Self::Answered;
        if answered {
            *self = Self::None;
        }
        answered
    }
}
