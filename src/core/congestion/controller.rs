//! Input and output of congestion control, above all of the [BBR model](super::bbr) of a path (RFC 9002 7; BBRv3, draft-ietf-ccwg-bbr 4).
//!
//! The model works on bytes, times and counts, without segments or a clock, in O(1) per event.
//! [`Flow`](super::flow) feeds it and enforces its decisions.

use std::num::NonZeroU64;

use crate::core::clock::Micros;
use crate::core::congestion::delivery_rate::RateSample;

/// A datagram with acknowledgements was processed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acked {
    pub(crate) now: Micros,
    /// Segments acknowledged for the first time.
    pub(crate) segments: u32,
    /// Bytes of these segments, headers included.
    pub(crate) bytes: u64,
    /// Bytes acknowledged since the controller began, including these.
    pub(crate) delivered: u64,
    /// Bytes in flight afterwards.
    pub(crate) in_flight: u64,
    /// RTT sample, microseconds.
    pub(crate) rtt: Option<u64>,
    /// Longest time that one of these segments waited for its first ACK, microseconds; 0: unknown.
    pub(crate) longest_wait: u64,
    /// Delivery rate sample, if a meaningful one exists.
    pub(crate) rate: Option<RateSample>,
}

/// A transmission was found lost; the segment is retransmitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    pub(crate) now: Micros,
    /// When it left, if known.
    pub(crate) sent_at: Option<Micros>,
    /// Found by the RTO, not by acknowledgements of later transmissions.
    pub(crate) by_timeout: bool,
}

/// Spacing of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pacing {
    /// Bytes per second.
    pub(crate) rate: NonZeroU64,
    /// Segments that may leave at once.
    pub(crate) burst: u64,
}

/// The reason why the sender leaves capacity of the path unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// No data is written.
    Application,
    /// The send window or the peer's window is full.
    Window,
}

/// The transmission of a segment that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentAs {
    New,
    /// The previous transmission was found lost, by the RTO or by acknowledgements.
    Retransmission {
        by_timeout: bool,
    },
    /// It left on another path before.
    Moved,
    /// Another copy of a retransmission.
    RedundantCopy,
}

/// The state of a controller that its qlog shows. Bytes, and bytes per second; 0: unknown, or no limit.
#[cfg(feature = "qlog")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelState {
    pub(crate) phase: &'static str,
    /// Bytes of the connection; `None` if they are not counted.
    pub(crate) in_flight: Option<u64>,
    /// Most bytes in flight that the path carries without congestive loss.
    pub(crate) in_flight_hi: u64,
    /// Bandwidth since the last congestive loss.
    pub(crate) bandwidth_lo: u64,
    pub(crate) bdp: u64,
    /// Segments lost at random, per million.
    pub(crate) loss: u64,
}

#[cfg(feature = "qlog")]
impl ModelState {
    /// A controller without a model.
    pub(crate) fn of(phase: &'static str) -> Self {
        Self { phase, ..Self::default() }
    }
}
