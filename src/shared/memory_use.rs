//! Memory accounting: the charge of queued chunks, and the memory of an endpoint, as its handles read
//! and update it between two turns of the driver. `driver/memory.rs` explains the quotas.

use crate::config::SEGMENT_CHARGE;
use crate::util::sync::{AtomicUsize, Ordering};

/// Minimum charge of a chunk in bytes, for its queue entry and allocation. Without it, single bytes and
/// empty messages would fill a queue with many times the configured memory.
pub(crate) const CHUNK_CHARGE: usize = 64;

/// Charge of a chunk of `len` bytes.
pub(super) fn charge(len: usize) -> usize {
    len.max(CHUNK_CHARGE)
}

/// Divisor: one direction of a connection may use a quarter of the free memory.
const THRESHOLD_DIVISOR: usize = 4;
/// Bytes per direction while memory is short: TCP's initial window (RFC 6928).
pub(crate) const SHORT_QUOTA: usize = 16 << 10;
/// Bytes per direction at the limit: two segments.
pub(crate) const LEAST_QUOTA: usize = 2 * SEGMENT_CHARGE;

/// Bytes that each direction of a connection may hold when an endpoint uses `used` of `limit` bytes.
#[inline]
pub(crate) fn quota(limit: usize, used: usize) -> usize {
    let threshold = (limit / 2).saturating_sub(used) / THRESHOLD_DIVISOR;
    threshold.max(if used >= limit { LEAST_QUOTA } else { SHORT_QUOTA })
}

/// Counters of one endpoint. They publish nothing else, so `Relaxed` is enough.
#[derive(Debug)]
pub(crate) struct MemoryUse {
    /// `Limits::memory`; unlimited until the driver starts.
    limit: AtomicUsize,
    /// Bytes counted by the driver at the end of its latest turn.
    held: AtomicUsize,
    /// Bytes in all send queues: applications may write many times between two turns.
    unsent: AtomicUsize,
    /// Unread bytes of ended connections.
    outlived: AtomicUsize,
}

impl MemoryUse {
    pub(super) fn new() -> Self {
        let zero = || AtomicUsize::new(0);
        Self { limit: AtomicUsize::new(usize::MAX), held: zero(), unsent: zero(), outlived: zero() }
    }

    /// Bytes that one send queue may hold now.
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

    /// A connection has ended with `bytes` unread.
    pub(super) fn on_outlived(&self, bytes: usize) {
        self.outlived.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The application has read or dropped `bytes` of an ended connection.
    pub(super) fn on_outlived_read(&self, bytes: usize) {
        self.outlived.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Unread bytes of ended connections.
    pub(crate) fn outlived(&self) -> usize {
        self.outlived.load(Ordering::Relaxed)
    }

    /// Sets the endpoint's limit in bytes.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Sets the bytes counted by the driver, at the end of its turn.
    pub(crate) fn set_held(&self, held: usize) {
        self.held.store(held, Ordering::Relaxed);
    }
}
