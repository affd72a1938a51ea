//! Memory accounting of queued chunks: small chunks are charged more than their bytes.

/// Minimum charge of a chunk in bytes, for its queue entry and allocation. Without it, single bytes and
/// empty messages would fill a queue with many times the configured memory.
pub(crate) const CHUNK_CHARGE: usize = 64;

/// Charge of a chunk of `len` bytes.
pub(super) fn charge(len: usize) -> usize {
    len.max(CHUNK_CHARGE)
}
