//! Tokens: the unread bytes of all streams of a session (smux `bucket`).

use crate::sync::{AtomicUsize, Ordering};

#[derive(Debug)]
pub(crate) struct Tokens {
    unread: AtomicUsize,
    /// At this many unread bytes, the carrier is not read.
    max: usize,
}

impl Tokens {
    pub(crate) fn new(max: usize) -> Self {
        Self { unread: AtomicUsize::new(0), max }
    }

    pub(crate) fn unread(&self) -> usize {
        self.unread.load(Ordering::SeqCst)
    }

    pub(crate) fn are_used_up(&self) -> bool {
        self.unread() >= self.max
    }

    pub(crate) fn add(&self, len: usize) {
        self.unread.fetch_add(len, Ordering::SeqCst);
    }

    /// Notes that bytes were read or discarded. Returns whether the driver waits for this and must
    /// be woken.
    #[must_use]
    pub(crate) fn release(&self, len: usize) -> bool {
        let before = self.unread.fetch_sub(len, Ordering::SeqCst);
        before >= self.max && before.saturating_sub(len) < self.max
    }
}
