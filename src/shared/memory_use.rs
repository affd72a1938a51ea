//! The memory of an endpoint, as its handles see and change it between two turns of the driver. What the
//! quotas are for: `driver/memory.rs`.

use crate::config::SEGMENT_CHARGE;
use crate::util::sync::{AtomicUsize, Ordering};

/// Divisor: one direction of a connection has at most a quarter of what is free.
const THRESHOLD_DIVISOR: usize = 4;
/// Bytes of one direction while memory is short: an initial window of TCP (RFC 6928).
pub(crate) const SHORT_QUOTA: usize = 16 << 10;
/// Bytes of one direction at the limit: two segments.
pub(crate) const LEAST_QUOTA: usize = 2 * SEGMENT_CHARGE;

/// Bytes that each direction of a connection may hold, of an endpoint with `used` bytes in use of at most
/// `limit`.
#[inline]
pub(crate) fn quota(limit: usize, used: usize) -> usize {
    let threshold = (limit / 2).saturating_sub(used) / THRESHOLD_DIVISOR;
    threshold.max(if used >= limit { LEAST_QUOTA } else { SHORT_QUOTA })
}

/// Counts of one endpoint. They are statistics: nothing else is published through them.
#[derive(Debug)]
pub(crate) struct MemoryUse {
    /// `Limits::memory`; no limit before there is a driver.
    limit: AtomicUsize,
    /// Bytes that the driver counts, as of the end of its latest turn.
    held: AtomicUsize,
    /// Bytes in all send queues: connections may be written to again and again before a turn serves them.
    unsent: AtomicUsize,
    /// Bytes that were not read of connections that have ended.
    outlived: AtomicUsize,
}

impl MemoryUse {
    pub(super) fn new() -> Self {
        let zero = || AtomicUsize::new(0);
        Self { limit: AtomicUsize::new(usize::MAX), held: zero(), unsent: zero(), outlived: zero() }
    }

    /// Bytes that a send queue may hold now.
    #[inline]
    pub(super) fn write_quota(&self) -> usize {
        let used = self.held.load(Ordering::Relaxed).saturating_add(self.unsent());
        quota(self.limit.load(Ordering::Relaxed), used)
    }

    /// A send queue had `before` bytes and has `after` now.
    #[inline]
    pub(super) fn on_send_queue(&self, before: usize, after: usize) {
        if before != after {
            self.unsent.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Bytes in all send queues.
    #[inline]
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// A connection has ended, and `bytes` of it are unread.
    pub(super) fn on_outlived(&self, bytes: usize) {
        self.outlived.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The application has read or dropped `bytes` of those.
    pub(super) fn on_outlived_read(&self, bytes: usize) {
        self.outlived.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that were not read of connections that have ended.
    pub(crate) fn outlived(&self) -> usize {
        self.outlived.load(Ordering::Relaxed)
    }

    /// The limit of the endpoint, bytes.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Sets what the driver counts, at the end of its turn.
    pub(crate) fn set_held(&self, held: usize) {
        self.held.store(held, Ordering::Relaxed);
    }
}
