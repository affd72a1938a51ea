//! The ping of a connection: whether one is due, and the latest one.

use super::COOKIE_LIFE;
use crate::core::clock::Micros;
use crate::core::seq::{Sn, Ts};

/// A ping that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ping {
    pub(super) sn: Sn,
    pub(super) cookie: Ts,
    /// SND.UNA at the first transmission.
    pub(super) una: Sn,
    pub(super) first_sent: Micros,
    pub(super) sent: Micros,
    pub(super) is_early: bool,
}

impl Ping {
    pub(super) fn is_fresh(&self, now: Micros) -> bool {
        now.since(self.first_sent) <= COOKIE_LIFE
    }
}

/// Whether a ping is outstanding, and whether one is due.
#[derive(Clone, Copy, Debug)]
pub(super) enum PingState {
    /// Entered at construction and on a pong; left when a ping is requested.
    Idle,
    /// A ping is due. Entered from `Idle` when a ping is requested, and from `OutstandingDue` on a
    /// pong; left when the ping is sent.
    Due,
    /// A ping is unanswered. Entered when a ping is sent; left on a pong, or when a ping is
    /// requested. A ping older than [`COOKIE_LIFE`] stays until the next one replaces it.
    Outstanding(Ping),
    /// A ping is unanswered and a ping is due: the same, or a new one if the first is older than
    /// [`COOKIE_LIFE`]. Entered from `Outstanding` when a ping is requested; left on a pong, or
    /// when the ping is sent.
    OutstandingDue(Ping),
}

impl PingState {
    pub(super) fn outstanding(&self) -> Option<&Ping> {
        match self {
            Self::Idle | Self::Due => None,
            Self::Outstanding(ping) | Self::OutstandingDue(ping) => Some(ping),
        }
    }

    pub(super) fn is_due(&self) -> bool {
        matches!(self, Self::Due | Self::OutstandingDue(_))
    }

    pub(super) fn request(&mut self) {
        *self = match *self {
            Self::Idle | Self::Due => Self::Due,
            Self::Outstanding(ping) | Self::OutstandingDue(ping) => Self::OutstandingDue(ping),
        };
    }

    pub(super) fn on_pong(&mut self) {
        *self = if self.is_due() { Self::Due } else { Self::Idle };
    }
}
