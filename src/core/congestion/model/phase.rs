//! The phases of the model, and how fast it sends in each (draft-ietf-ccwg-bbr 4.1.2).

use crate::core::clock::Micros;

/// What the model does (draft section 4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Doubles the rate each round. Entered at the start and after a PTO back-off; left when the
    /// bandwidth grows no more, or much is lost.
    Startup,
    /// Drains the queue that Startup built; left when it is gone.
    Drain,
    /// Sends slightly less than is delivered, to drain what Up queued, and to measure random loss.
    /// Entered from Up; left when the queue is gone, and a round over.
    Down,
    /// Sends what is delivered. Entered from Drain, Down and the RTT probe; left after 4 to 8 rounds.
    Cruise,
    /// Fills the path without a queue for one round, before Up.
    Refill,
    /// Sends more than is delivered, to find out whether the path carries it. Left when it does not.
    Up,
    /// Measures the shortest RTT with `window` bytes in flight, half a bandwidth-delay product as it
    /// was when the phase began. Entered when the RTT is outdated; left 200 ms and a round
    /// after so little is in flight, for Startup if that has not found the bandwidth.
    ProbeRtt { window: u64, until: Option<Micros> },
}

impl Phase {
    /// Pacing rate in percent of the bandwidth.
    pub(super) fn pacing_gain(self) -> u64 {
        match self {
            Self::Startup => 277,
            Self::Drain => 35,
            Self::Down => 90,
            // Below one, so that a queue of several flows that overestimate shrinks (draft
            // `BBR.PacingMarginPercent`).
            Self::Cruise => 98,
            // Retransmissions too: the window does not limit them.
            Self::ProbeRtt { .. } => 50,
            Self::Refill => 100,
            Self::Up => 125,
        }
    }
}
