//! The memory of an endpoint: one limit for what all its connections hold, as `tcp_mem` of Linux.
//!
//! Each direction of a connection has a quota of data. While less than half of the limit is in use,
//! the quota is a quarter of what is free of that half, a dynamic threshold (Choudhury and Hahne,
//! "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998): the largest holders
//! stop growing first, small ones last. Beyond half memory is short, and the quota is
//! [`SHORT_QUOTA`]; at the limit it is [`LEAST_QUOTA`], so that every connection makes progress.
//!
//! A quota that shrinks takes nothing back: what is held stays, and no advertised edge of a window
//! moves back. Data beyond the quota is dropped and not acknowledged, like a lost datagram.
//!
//! The peers that are not validated have a sixteenth of the limit, since their source addresses can
//! be forged: a first flight each while half of that is free, and then [`SHORT_QUOTA`].

use crate::config::{Config, SEGMENT_CHARGE};

/// Bytes that the state of one connection takes, without any data (tests/memory.rs).
pub(crate) const CONNECTION_COST: usize = 4_096;
/// Divisor: a sixteenth of the limit is for unvalidated peers.
const UNVALIDATED_DIVISOR: usize = 16;
/// Divisor: one direction of a connection has at most a quarter of what is free.
const THRESHOLD_DIVISOR: usize = 4;
/// The most that a client sends before an answer: 128 segments in the C library, 32 in kcp-go and
/// this crate.
const FIRST_FLIGHT: usize = 128 * SEGMENT_CHARGE;
/// Bytes of one direction while memory is short: an initial window of TCP (RFC 6928).
pub(crate) const SHORT_QUOTA: usize = 16 << 10;
/// Bytes of one direction at the limit: two segments.
pub(crate) const LEAST_QUOTA: usize = 2 * SEGMENT_CHARGE;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Validated,
    Unvalidated,
}

#[derive(Debug)]
pub(crate) struct Memory {
    /// `Limits::memory`.
    limit: usize,
    /// Bytes in use.
    used: usize,
    /// Bytes of `used` that unvalidated peers hold.
    unvalidated: usize,
    /// Bytes that one connection holds without any data: its state, and the parity of its address.
    base: usize,
}

impl Memory {
    pub(crate) fn new(config: &Config) -> Self {
        let parity = config.fec.map_or(0, |fec| fec.parity_shards());
        let base = CONNECTION_COST + parity * usize::from(config.kcp.mtu);
        Self { limit: config.limits.memory, used: 0, unvalidated: 0, base }
    }

    /// Bytes that one connection holds without any data.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Bytes that unvalidated peers hold.
    pub(crate) fn unvalidated(&self) -> usize {
        self.unvalidated
    }

    /// Bytes of data that each direction of a connection, or anything else, may hold now.
    pub(crate) fn quota(&self, holder: Holder) -> usize {
        let free = (self.limit / 2).saturating_sub(self.used);
        let threshold = free / THRESHOLD_DIVISOR;
        let (quota, is_full) = match holder {
            Holder::Validated => (threshold, self.used >= self.limit),
            Holder::Unvalidated => {
                let first_flight = if self.is_crowded() { 0 } else { FIRST_FLIGHT };
                let is_full = self.unvalidated >= self.limit / UNVALIDATED_DIVISOR;
                (first_flight.min(threshold), is_full || self.used >= self.limit)
            }
        };
        quota.max(if is_full { LEAST_QUOTA } else { SHORT_QUOTA })
    }

    /// Bytes that the send queue of each of `connections` may hold now. All of them may be written
    /// before the next turn, so together they fit.
    pub(crate) fn write_quota(&self, connections: usize) -> usize {
        let each = |limit: usize| limit.saturating_sub(self.used) / connections.max(1);
        let quota = each(self.limit / 2).min(self.quota(Holder::Validated));
        quota.max(each(self.limit).min(SHORT_QUOTA)).max(LEAST_QUOTA)
    }

    /// Whether unvalidated peers hold more than half of what they may.
    pub(crate) fn is_crowded(&self) -> bool {
        self.unvalidated > self.limit / (2 * UNVALIDATED_DIVISOR)
    }

    /// A holder of `before` bytes has `after` bytes now.
    pub(crate) fn update(&mut self, holder: Holder, before: usize, after: usize) {
        let change = |sum: usize| (sum + after).saturating_sub(before);
        self.used = change(self.used);
        if holder == Holder::Unvalidated {
            self.unvalidated = change(self.unvalidated);
        }
    }

    /// An unvalidated holder of `held` bytes is validated.
    pub(crate) fn on_validated(&mut self, held: usize) {
        self.unvalidated = self.unvalidated.saturating_sub(held);
    }
}
