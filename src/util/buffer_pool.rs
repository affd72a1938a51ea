//! Wide buffers that are used again.
//!
//! A busy stream takes and returns buffers of 64 KiB many thousand times a second. Left to the
//! allocator, what is returned at the end of its heap goes back to the system, and the same memory
//! is faulted in again for the next buffer: page by page, zeroed each time. Here the buffer that
//! was returned last, which the cache still holds, is the next to be taken.

use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};

/// Bytes of a buffer.
pub(crate) const BUFFER_LEN: usize = 64 * 1024;
/// Bytes of what is worth a wide buffer of its own.
pub(crate) const LARGE: usize = BUFFER_LEN / 4;
/// Buffers kept for the whole process, 4 MiB: what two busy streams with windows of 1,024 segments have
/// on the way. All others go back to the allocator.
const KEPT: usize = 64;

static FREE: Mutex<Vec<BytesMut>> = Mutex::new(Vec::new());

/// An empty buffer with room for [`BUFFER_LEN`] bytes.
pub(crate) fn take() -> BytesMut {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = free.pop();
    drop(free);
    kept.unwrap_or_else(|| BytesMut::with_capacity(BUFFER_LEN))
}

/// Takes a buffer back, however much of it was used. Returns whether it is kept if there is room.
fn give(mut buffer: BytesMut) -> bool {
    buffer.clear();
    // A message can be wider: what is kept must not depend on what peers send.
    if !buffer.try_reclaim(BUFFER_LEN) || buffer.try_reclaim(BUFFER_LEN + 1) {
        return false;
    }
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if free.len() < KEPT {
        free.push(buffer);
    }
    true
}

/// Takes back what was read to its end, where it is the last reference to a wide buffer.
pub(crate) fn recycle(data: Bytes) {
    if let Ok(buffer) = data.try_into_mut() {
        give(buffer);
    }
}

/// The same bytes, whose buffer comes back by itself once no slice of it is left, where this is the
/// only reference to a large one.
pub(crate) fn into_recycled(data: Bytes) -> Bytes {
    match data.try_into_mut() {
        Ok(buffer) if buffer.capacity() >= LARGE => Bytes::from_owner(Returned(buffer)),
        Ok(buffer) => buffer.freeze(),
        Err(data) => data,
    }
}

/// A copy of `parts`, which are [`BUFFER_LEN`] bytes at most, in a buffer that comes back by itself once
/// no slice of it is left. Worth it for large copies only.
pub(crate) fn copy<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Bytes {
    let mut buffer = take();
    parts.into_iter().for_each(|part| buffer.extend_from_slice(part));
    Bytes::from_owner(Returned(buffer))
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

    // Other tests use the pool at the same time, so these look at their own buffers only.

    #[test]
    fn a_copy_is_what_was_copied_and_can_be_cut() {
        let mut data = copy([&b"abc"[..], b"", b"defg"]);
        let front = data.split_to(2);
        assert_eq!((&front[..], &data[..]), (&b"ab"[..], &b"cdefg"[..]));
    }

    #[test]
    fn no_other_buffers_are_kept_than_wide_ones() {
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
    fn what_somebody_still_holds_is_not_taken_back() {
        let mut buffer = take();
        buffer.extend_from_slice(&b"held".repeat(LARGE));
        let data = buffer.freeze();
        recycle(data.clone());
        drop(into_recycled(data.clone()));
        take().extend_from_slice(b"other");
        assert!(data.starts_with(b"held"));
    }
}
