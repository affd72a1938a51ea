//! How much of the cumulative acknowledgement counts for the congestion control.
//!
//! `una` carries no proof: a peer could send it without receiving anything, to raise its own sending rate
//! (optimistic ACKs, RFC 9000 21.4). An ACK is proof, since it echoes number and timestamp of a transmission.
//! Every implementation acknowledges the latest of several segments in order, so an ACK proves all segments
//! before it. The first ACK of a segment also proves the `una` of its datagram: it may fill a gap behind
//! which ACKs were lost, and these are not sent again.
//!
//! Segments that `una` covers without proof leave the send buffer, but stay in flight for windows and
//! congestion control until an ACK proves them or a timeout writes some of them off. The timeout doubles up
//! to 250 ms. Each timeout also lets one segment leave regardless of the windows: its ACK proves all segments
//! before it if an outage swallowed the ACKs of a whole window.

use crate::core::clock::Micros;
use crate::core::seq::Sn;

/// Maximum number of doublings of the timeout.
const MAX_BACKOFF: u8 = 6;
/// Limit up to which the timeout doubles, microseconds: an honest peer's ACKs may be lost too.
const MAX_DOUBLED: u64 = 250_000;

/// Tracks which segments are proved to have arrived.
#[derive(Debug)]
pub(crate) struct UnaProof {
    /// The number after the last segment that is proved or written off.
    proved: Sn,
    /// Start of the timeout.
    since: Micros,
    /// Timeouts since the latest proof.
    backoff: u8,
    /// Whether the current datagram carries the first ACK of a segment.
    has_first_ack: bool,
    /// SND.NXT at the latest timeout: this segment may leave.
    probe: Option<Sn>,
}

impl UnaProof {
    /// `start` is the first sequence number.
    pub(crate) fn new(start: Sn) -> Self {
        Self { proved: start, since: Micros(0), backoff: 0, has_first_ack: false, probe: None }
    }

    /// Segments before `una` that are not proved.
    #[inline]
    pub(crate) fn unproved(&self, una: Sn) -> u32 {
        una.offset_from(self.proved).unwrap_or(0)
    }

    /// How many of the `count` segments from `una` on are proved.
    #[inline]
    pub(crate) fn proved(&self, una: Sn, count: u32) -> u32 {
        self.proved.offset_from(una).unwrap_or(0).min(count)
    }

    /// A valid ACK of `sn` arrived. Returns how many segments before `una` it proves.
    #[inline]
    pub(crate) fn on_ack(&mut self, sn: Sn, una: Sn) -> u32 {
        let after = sn.advance(1);
        if after.since(self.proved) <= 0 {
            return 0;
        }
        let before = self.unproved(una);
        (self.proved, self.backoff) = (after, 0);
        before - self.unproved(una)
    }

    /// The first ACK of a segment arrived: it proves the `una` of its datagram.
    pub(crate) fn on_first_ack(&mut self) {
        self.has_first_ack = true;
    }

    /// Whether an ACK of the current datagram proves `una`.
    #[inline]
    pub(crate) fn has_first_ack(&self) -> bool {
        self.has_first_ack
    }

    /// Called at the end of a datagram that carried acknowledgements.
    #[inline]
    pub(crate) fn end_datagram(&mut self) {
        self.has_first_ack = false;
    }

    /// `una` has advanced; `unproved` segments were unproved before.
    #[inline]
    pub(crate) fn on_una(&mut self, now: Micros, una: Sn, unproved: u32) {
        if unproved == 0 && self.unproved(una) > 0 {
            self.since = now;
        }
    }

    /// When some of the unproved segments are written off. `rto` in microseconds.
    pub(crate) fn deadline(&self, una: Sn, rto: u64) -> Option<Micros> {
        let timeout = rto.max((rto << self.backoff).min(MAX_DOUBLED));
        (self.unproved(una) > 0).then(|| self.since.add_micros(timeout))
    }

    /// Whether `nxt`, the next segment, may leave to ask for proof.
    #[inline]
    pub(crate) fn may_probe(&self, nxt: Sn) -> bool {
        self.probe == Some(nxt)
    }

    /// If the timeout has expired, writes off segments and lets `nxt` leave; both together at most `max`.
    /// Returns how many were written off.
    #[inline]
    pub(crate) fn expire(&mut self, now: Micros, (una, nxt): (Sn, Sn), rto: u64, max: u32) -> u32 {
        if self.deadline(una, rto).is_none_or(|at| now < at) {
            return 0;
        }
        let count = self.unproved(una).min(max.saturating_sub(1).max(1));
        (self.proved, self.since) = (self.proved.advance(count), now);
        self.probe = Some(nxt);
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        count
    }
}
