//! Aligned buffers for the GF(256) kernels: whole lanes of 64 bytes, padded with zeros.

use super::gf256::{Kernel, LANE, padded};

/// Memory of whole lanes.
#[derive(Debug, Default)]
struct Space {
    bytes: Vec<u8>,
    /// Offset of the first lane.
    start: usize,
}

impl Space {
    /// Allocates zeros. Alignment only affects speed: kernels load from any address.
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + LANE - 1];
        let start = bytes.as_ptr().align_offset(LANE).min(LANE - 1);
        Self { bytes, start }
    }

    /// Usable bytes.
    fn len(&self) -> usize {
        self.bytes.len().saturating_sub(LANE - 1)
    }

    fn lanes(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    fn lanes_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }
}

/// One shard, kept until its group is complete.
#[derive(Debug, Default)]
pub(super) struct Shard {
    space: Space,
    len: usize,
}

impl Shard {
    /// Copies the content. Allocates if the buffer is too short. Returns its growth in bytes.
    pub(super) fn set(&mut self, content: &[u8]) -> usize {
        let (lanes, before) = (padded(content.len()), self.memory());
        if self.space.len() < lanes {
            self.space = Space::new(lanes);
        }
        self.len = content.len();
        let (head, tail) = self.space.lanes_mut().split_at_mut(content.len());
        head.copy_from_slice(content);
        tail.iter_mut().take(lanes - content.len()).for_each(|byte| *byte = 0);
        self.memory() - before
    }

    pub(super) fn content(&self) -> &[u8] {
        self.space.lanes().get(..self.len).unwrap_or_default()
    }

    /// The content and its padding.
    pub(super) fn lanes(&self) -> &[u8] {
        self.space.lanes().get(..padded(self.len)).unwrap_or_default()
    }

    #[inline]
    pub(super) fn memory(&self) -> usize {
        self.space.bytes.capacity()
    }
}

/// Rows of equal length. Each accumulates the shards folded into it, times coefficients.
#[derive(Debug)]
pub(super) struct Rows {
    space: Space,
    kernel: Kernel,
    count: usize,
    /// Bytes from one row to the next, whole lanes.
    stride: usize,
    /// Bytes of each row in use, whole lanes. The bytes after are zero.
    used: usize,
}

impl Rows {
    pub(super) fn new(kernel: Kernel) -> Self {
        Self { space: Space::default(), kernel, count: 0, stride: 0, used: 0 }
    }

    /// Resets to `count` rows of zeros. Keeps the memory.
    pub(super) fn clear(&mut self, count: usize) {
        let used = self.used;
        if used > 0 {
            let rows = self.space.lanes_mut().chunks_exact_mut(self.stride).take(self.count);
            rows.filter_map(|row| row.get_mut(..used)).for_each(|row| row.fill(0));
        }
        self.used = 0;
        if self.count != count {
            // All memory is zero now, whatever the stride.
            self.count = count;
            self.stride = (self.space.len() / count.max(1)) / LANE * LANE;
        }
    }

    /// Adds `content` to each row, times the row's coefficient.
    pub(super) fn fold(&mut self, coefficients: &[u8], content: &[u8]) {
        debug_assert_eq!(coefficients.len(), self.count, "one coefficient for each row");
        if self.stride < content.len() {
            self.widen(padded(content.len()));
        }
        self.used = self.used.max(padded(content.len()));
        self.kernel.fold(self.space.lanes_mut(), self.stride, coefficients, content);
    }

    fn widen(&mut self, stride: usize) {
        let mut space = Space::new(self.count * stride);
        if self.used > 0 {
            let old = self.space.lanes().chunks_exact(self.stride);
            for (new, old) in space.lanes_mut().chunks_exact_mut(stride).zip(old).take(self.count) {
                new.iter_mut().zip(old).for_each(|(new, old)| *new = *old);
            }
        }
        (self.space, self.stride) = (space, stride);
    }

    /// Returns the first `len` bytes of a row, or the whole row if it is shorter.
    pub(super) fn row(&self, index: usize, len: usize) -> Option<&[u8]> {
        if index >= self.count {
            return None;
        }
        let start = index * self.stride;
        self.space.lanes().get(start..start + len.min(self.stride))
    }

    pub(super) fn memory(&self) -> usize {
        self.space.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_another_count_use_the_memory_of_the_former_ones() {
        let address = |rows: &Rows| rows.row(0, 0).map(<[u8]>::as_ptr);
        let mut rows = Rows::new(Kernel::best());
        // 154 lanes.
        rows.clear(7);
        rows.fold(&[1; 7], &[1; 22 * LANE]);
        let (first, memory) = (address(&rows), rows.memory());
        assert!((154 * LANE..155 * LANE).contains(&memory), "{memory}");
        for (count, lanes) in [(2, 77), (3, 51), (154, 1), (1, 154), (7, 22)] {
            let content = vec![count as u8; lanes * LANE];
            rows.clear(count);
            rows.fold(&vec![1; count], &content);
            assert_eq!(address(&rows), first, "{count} rows of {lanes} lanes");
            let all = (0..count).all(|index| {
                rows.row(index, usize::MAX).is_some_and(|row| row.starts_with(&content))
            });
            assert!(all, "{count} rows of {lanes} lanes");
            assert_eq!(rows.row(count, 1), None);
        }
        // One byte more does not fit.
        rows.clear(2);
        rows.fold(&[1; 2], &[1; 77 * LANE + 1]);
        assert!((156 * LANE..157 * LANE).contains(&rows.memory()));
    }
}
