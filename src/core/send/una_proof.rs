//! How much of the cumulative acknowledgement counts for the congestion control.
//!
//! `una` carries no proof: a peer that receives nothing can send it, and would raise the rate at which it
//! is sent data (optimistic ACKs, RFC 9000 21.4). An ACK has number and timestamp of a transmission. Every
//! implementation sends one for the latest of several segments in order, so an ACK proves all segments
//! before it. So does the first ACK of a segment, for the `una` of its datagram: where it fills a gap, ACKs of
//! later segments may have been lost, and are not sent again. What `una` covers beyond is released from the send buffer, and stays in flight for windows
//! and congestion control until an ACK proves it or a timeout, which doubles up to 250 ms, writes off a part. A
//! timeout lets one segment leave as well, whatever the windows say: its ACK proves all before it, where a peer
//! has received a window whose ACKs an outage has swallowed.

use crate::core::clock::Micros;
use crate::core::seq::Sn;

/// Times that the timeout doubles, at most.
const MAX_BACKOFF: u8 = 6;
/// The timeout doubles up to this, microseconds: the ACKs of an honest peer may be lost too.
const MAX_DOUBLED: u64 = 250_000;

/// Which segments are proved to have arrived.
#[derive(Debug)]
pub(crate) struct UnaProof {
    /// The number after the last segment that is proved or written off.
    proved: Sn,
    /// When the timeout was last started.
    since: Micros,
    /// Timeouts since the latest proof.
    backoff: u8,
    /// The datagram that is processed has the first ACK of a segment.
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

    /// Of the next `count` segments from `una` on, those that are proved.
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

    /// Whether an ACK of the same datagram proves `una`.
    #[inline]
    pub(crate) fn has_first_ack(&self) -> bool {
        self.has_first_ack
    }

    /// The acknowledgements of a datagram were processed.
    #[inline]
    pub(crate) fn end_datagram(&mut self) {
        self.has_first_ack = false;
    }

    /// `una` has advanced; `unproved` segments were not proved before.
    #[inline]
    pub(crate) fn on_una(&mut self, now: Micros, una: Sn, unproved: u32) {
        if unproved == 0 && self.unproved(una) > 0 {
            self.since = now;
        }
    }

    /// When a part of what is not proved is written off. `rto` in microseconds.
    pub(crate) fn deadline(&self, una: Sn, rto: u64) -> Option<Micros> {
        let timeout = rto.max((rto << self.backoff).min(MAX_DOUBLED));
        (self.unproved(una) > 0).then(|| self.since.add_micros(timeout))
    }

    /// Whether segment `nxt`, the next one, may leave to ask for a proof.
    #[inline]
    pub(crate) fn may_probe(&self, nxt: Sn) -> bool {
        self.probe == Some(nxt)
    }

    /// Writes off segments if the timeout has expired, and lets `nxt` leave: with it at most `max`. Returns how
    /// many.
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
