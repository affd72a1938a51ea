//! The memory of an endpoint: one limit for what all its connections hold, as `tcp_mem` of Linux.
//!
//! Each direction of a connection has a quota of data. While less than half of the limit is in use, the quota
//! is a quarter of the free part of that half, a dynamic threshold (Choudhury and Hahne, "Dynamic Queue
//! Length Thresholds for Shared-Memory Packet Switches", 1998): the largest holders stop growing first, small
//! ones last. Above half, memory is short and the quota is [`SHORT_QUOTA`]; at the limit it is
//! [`LEAST_QUOTA`], so that every connection makes progress.
//!
//! A shrinking quota takes nothing back: held data stays, and no advertised edge of a window moves back. Data
//! beyond the quota is dropped and not acknowledged, like a lost datagram.
//!
//! All unvalidated peers share a sixteenth of the limit, since their source addresses can be forged: a first
//! flight each while half of it is free, then [`SHORT_QUOTA`].

use crate::config::{Config, SEGMENT_CHARGE};
pub(super) use crate::shared::memory_use::{LEAST_QUOTA, SHORT_QUOTA};
use crate::shared::memory_use::{MemoryUse, quota};
use crate::util::sync::Arc;

/// Divisor: a sixteenth of the limit is for unvalidated peers.
const UNVALIDATED_DIVISOR: usize = 16;
/// Most bytes that a client sends before an answer: 128 segments in the C library, 32 in kcp-go and this
/// crate.
const FIRST_FLIGHT: usize = 128 * SEGMENT_CHARGE;

/// The peer that memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Validated,
    Unvalidated,
}

#[derive(Debug)]
pub(super) struct Memory {
    /// `Limits::memory`.
    limit: usize,
    /// Bytes that connections and the FEC of their addresses hold; send queues are counted by the handles.
    held: usize,
    /// Bytes of `held` that unvalidated peers hold.
    unvalidated: usize,
    /// Unread bytes of connections that have ended, as of the latest removal or turn.
    outlived: usize,
    shared: Arc<MemoryUse>,
}

impl Memory {
    pub(super) fn new(config: &Config, shared: Arc<MemoryUse>) -> Self {
        let limit = config.limits.memory;
        shared.set_limit(limit);
        Self { limit, held: 0, unvalidated: 0, outlived: 0, shared }
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> usize {
        (self.held + self.outlived).saturating_add(self.shared.unsent())
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn unvalidated(&self) -> usize {
        self.unvalidated
    }

    /// Bytes of data that each direction of a connection, or a FEC decoder, may hold now.
    pub(super) fn quota(&self, holder: Holder) -> usize {
        let quota = quota(self.limit, self.used());
        match holder {
            Holder::Validated => quota,
            Holder::Unvalidated if self.unvalidated >= self.limit / UNVALIDATED_DIVISOR => {
                LEAST_QUOTA
            }
            Holder::Unvalidated if self.is_crowded() => quota.min(SHORT_QUOTA),
            Holder::Unvalidated => quota.min(FIRST_FLIGHT),
        }
    }

    /// Whether unvalidated peers hold more than half of their share.
    pub(super) fn is_crowded(&self) -> bool {
        self.unvalidated > self.limit / (2 * UNVALIDATED_DIVISOR)
    }

    /// A holder of `before` bytes has `after` bytes now.
    pub(super) fn update(&mut self, holder: Holder, before: usize, after: usize) {
        let change = |sum: usize| (sum + after).saturating_sub(before);
        self.held = change(self.held);
        if holder == Holder::Unvalidated {
            self.unvalidated = change(self.unvalidated);
        }
    }

    /// An unvalidated holder of `held` bytes is validated.
    pub(super) fn on_validated(&mut self, held: usize) {
        self.unvalidated = self.unvalidated.saturating_sub(held);
    }

    /// Counts the unread bytes of connections that have ended.
    pub(super) fn count_outlived(&mut self) {
        self.outlived = self.shared.outlived();
    }

    /// Publishes the use of memory at the end of a turn.
    pub(super) fn publish(&mut self) {
        self.count_outlived();
        self.shared.set_held(self.held + self.outlived);
    }
}
