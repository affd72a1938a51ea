//! Memory accounting of queued chunks: small chunks count for more than their bytes.

/// Bytes that a chunk counts for at least. A chunk costs more than its bytes (its queue entry, its
/// allocation); without a minimum, a peer that sends single bytes or empty messages, or an
/// application that writes them, would fill a queue with many times the configured memory.
pub(crate) const CHUNK_CHARGE: usize = 64;

/// Bytes that a chunk of `len` bytes counts for.
pub(super) fn charge(len: usize) -> usize {
    len.max(CHUNK_CHARGE)
}
