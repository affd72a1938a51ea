//! Process-wide pool of 64 KiB buffers, last in, first out.
//!
//! A busy stream takes and returns thousands of such buffers per second. The allocator would return the
//! end of its heap to the system, and the next buffer would fault the same pages in again, zeroed. The
//! pool hands out the most recently returned buffer, which is still in the CPU cache.

use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};

/// Length of a pooled buffer in bytes.
pub(crate) const BUFFER_LEN: usize = 64 * 1024;
/// Bytes from which data gets its own pooled buffer.
pub(crate) const LARGE: usize = BUFFER_LEN / 4;
/// Buffers kept for the whole process, 4 MiB: enough for two busy streams with windows of 1,024 segments.
/// The allocator gets the others.
const MAX_POOLED: usize = 64;

static FREE: Mutex<Vec<BytesMut>> = Mutex::new(Vec::new());

/// An empty buffer with a capacity of [`BUFFER_LEN`] bytes.
pub(crate) fn take() -> BytesMut {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let pooled = free.pop();
    drop(free);
    pooled.unwrap_or_else(|| BytesMut::with_capacity(BUFFER_LEN))
}

/// Takes a buffer back. Returns whether its capacity fits the pool; a full pool still drops it.
pub(crate) fn give(mut buffer: BytesMut) -> bool {
    buffer.clear();
    // A message can be larger, and peers must not determine the pool's memory.
    if !buffer.try_reclaim(BUFFER_LEN) || buffer.try_reclaim(BUFFER_LEN + 1) {
        return false;
    }
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if free.len() < MAX_POOLED {
        free.push(buffer);
    }
    true
}

/// Returns the buffer of `data` to the pool if this is the last reference.
pub(crate) fn recycle(data: Bytes) {
    if let Ok(buffer) = data.try_into_mut() {
        give(buffer);
    }
}

/// Moves the sole reference to a large buffer into `Bytes` that return the buffer to the pool when the
/// last slice is dropped. Other data stays as it is.
pub(crate) fn into_recycled(data: Bytes) -> Bytes {
    match data.try_into_mut() {
        Ok(buffer) if buffer.capacity() >= LARGE => Bytes::from_owner(Returned(buffer)),
        Ok(buffer) => buffer.freeze(),
        Err(data) => data,
    }
}

/// Bytes that `fill` appends, about `count`. From [`LARGE`] bytes on, in a pooled buffer (of at most
/// [`BUFFER_LEN`] bytes) that returns to the pool when the last slice is dropped.
pub(crate) fn filled(count: usize, fill: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut buffer = if count >= LARGE { take() } else { BytesMut::with_capacity(count) };
    fill(&mut buffer);
    freeze_grown(buffer)
}

/// Freezes a buffer that has grown with its data: from [`LARGE`] bytes on it is one of [`take`].
pub(crate) fn freeze_grown(buffer: BytesMut) -> Bytes {
    if buffer.len() >= LARGE { Bytes::from_owner(Returned(buffer)) } else { buffer.freeze() }
}

/// Freezes a buffer of [`take`]. From [`LARGE`] bytes on, the buffer returns to the pool when the last
/// slice is dropped; less data is copied, so that a few bytes do not hold a whole buffer.
pub(crate) fn freeze(buffer: BytesMut) -> Bytes {
    if buffer.len() >= LARGE {
        return freeze_grown(buffer);
    }
    let data = Bytes::copy_from_slice(&buffer);
    give(buffer);
    data
}

struct Returned(BytesMut);

impl AsRef<[u8]> for Returned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Returned {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Other tests use the pool too, so these check only their own buffers.

    #[test]
    fn filled_buffer_can_be_split() {
        let mut data = filled(7, |buffer| buffer.extend_from_slice(b"abcdefg"));
        let front = data.split_to(2);
        assert_eq!((&front[..], &data[..]), (&b"ab"[..], &b"cdefg"[..]));
    }

    #[test]
    fn small_data_is_moved_out_of_its_buffer() {
        for (len, capacity) in [(1, 1), (LARGE - 1, LARGE - 1), (LARGE, LARGE)] {
            let mut buffer = take();
            buffer.resize(len, 7);
            let data = freeze(buffer);
            assert_eq!(data, vec![7; len]);
            let is_copy = data.try_into_mut().is_ok_and(|data| data.capacity() == capacity);
            assert_eq!(is_copy, len < LARGE, "{len}");
        }
    }

    #[test]
    fn buffers_of_another_capacity_are_not_pooled() {
        for (size, kept) in
            [(100, false), (BUFFER_LEN, true), (BUFFER_LEN + 1, false), (2 * BUFFER_LEN, false)]
        {
            for from in [0, 1, size / 2] {
                let rest = BytesMut::zeroed(size).split_off(from);
                assert_eq!(give(rest), kept, "{size} from {from}");
            }
        }
        let buffer = take();
        assert_eq!((buffer.len(), buffer.capacity()), (0, BUFFER_LEN));
    }

    #[test]
    fn shared_buffer_is_not_recycled() {
        let mut buffer = take();
        buffer.extend_from_slice(&b"held".repeat(LARGE));
        let data = buffer.freeze();
        recycle(data.clone());
        drop(into_recycled(data.clone()));
        take().extend_from_slice(b"other");
        assert!(data.starts_with(b"held"));
    }
}
