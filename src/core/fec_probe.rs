//! FEC probes: pings that a FEC group holds and that do not leave by themselves. The ACK of one
//! shows that the peer reconstructed it, so that it decodes our FEC.

use super::seq::{Sn, Ts};

/// The latest FEC probe of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FecProbe {
    /// Entered at construction; left when a FEC probe is written.
    #[default]
    None,
    /// Not answered. Entered when a FEC probe is written; left on its ACK.
    Outstanding(Sn, Ts),
    /// Entered on the ACK; left when the answer is taken.
    Answered(Sn, Ts),
    /// Entered when the answer is taken; left when the next FEC probe is written.
    Taken(Sn, Ts),
}

impl FecProbe {
    /// Takes an ACK that matches no segment in flight and no ping. Returns whether it is one of the
    /// FEC probe, and the first.
    pub(crate) fn on_ack(&mut self, sn: Sn, ts: Ts) -> Option<bool> {
        match *self {
            Self::Outstanding(..) if *self == Self::Outstanding(sn, ts) => {
                *self = Self::Answered(sn, ts);
                Some(true)
            }
            // A peer may reconstruct a group twice.
            Self::Answered(..) | Self::Taken(..)
                if [Self::Answered(sn, ts), Self::Taken(sn, ts)].contains(self) =>
            {
                Some(false)
            }
            _ => None,
        }
    }

    /// Whether the latest FEC probe has this number and cookie.
    pub(crate) fn is(self, (sn, ts): (Sn, Ts)) -> bool {
        [Self::Outstanding(sn, ts), Self::Answered(sn, ts), Self::Taken(sn, ts)].contains(&self)
    }

    /// Whether the FEC probe was answered since this was last called.
    pub(crate) fn take_answer(&mut self) -> bool {
        let Self::Answered(sn, ts) = *self else { return false };
        *self = Self::Taken(sn, ts);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fec_probe_is_answered_once_and_by_its_own_ack() {
        let mut probe = FecProbe::default();
        assert_eq!(probe.on_ack(Sn(7), Ts(8)), None);
        probe = FecProbe::Outstanding(Sn(7), Ts(8));
        assert_eq!((probe.on_ack(Sn(7), Ts(9)), probe.take_answer()), (None, false));
        assert_eq!(probe.on_ack(Sn(7), Ts(8)), Some(true));
        assert!(probe.take_answer() && !probe.take_answer());
        assert_eq!((probe.on_ack(Sn(7), Ts(8)), probe.take_answer()), (Some(false), false));
        assert_eq!(probe.on_ack(Sn(8), Ts(8)), None);
    }
}
