//! The phases of the BBR model and their pacing gains (draft-ietf-ccwg-bbr 4.1.2).

use crate::core::clock::Micros;

/// State of the model (draft section 4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Doubles the rate each round. Entered at the start, and when the model restarts; left when the
    /// bandwidth stops growing, or much is lost.
    Startup,
    /// Drains the queue that Startup built. Also entered when the path has become slower; left when the queue
    /// is gone.
    Drain,
    /// Sends slightly less than is delivered, to drain the queue of Up and to measure random loss. Entered
    /// from Up; left after a round, once the queue is gone.
    Down,
    /// Sends what is delivered. Entered from Drain, Down and ProbeRtt; left after 4 to 8 rounds.
    Cruise,
    /// Fills the path without a queue for one round, before Up.
    Refill,
    /// Sends more than is delivered, to probe for bandwidth. Left when a queue or congestive loss shows, or
    /// the bandwidth stops growing.
    Up,
    /// Measures the shortest RTT with `window` bytes in flight: half of the bandwidth-delay product at the
    /// start of the phase. Entered when the RTT is outdated. Left 200 ms and a round after the path has
    /// drained to that, for Startup if the bandwidth is not found yet.
    ProbeRtt { window: u64, until: Option<Micros> },
}

impl Phase {
    /// Pacing rate in percent of the bandwidth.
    pub(super) fn pacing_gain(self) -> u64 {
        match self {
            Self::Startup => 277,
            Self::Drain => 35,
            Self::Down => 90,
            // Below 100, so that a queue of several flows that overestimate shrinks (draft
            // `BBR.PacingMarginPercent`).
            Self::Cruise => 98,
            // Applies to retransmissions too, which the window does not limit.
            Self::ProbeRtt { .. } => 50,
            Self::Refill => 100,
            Self::Up => 125,
        }
    }
}
