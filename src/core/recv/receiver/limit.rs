//! Limit below the budget while the endpoint is short of memory.

use super::{OutOfOrderSegment, Receiver};
use crate::config::SEGMENT_CHARGE;
use crate::util::buffer_pool;

/// Window that a peer assumes before one is advertised, segments: 32 in kcp-go and this crate
/// (IKCP_WND_RCV), 128 in the C library.
const INITIAL_WINDOW: u32 = 128;

impl Receiver {
    /// Limits received data to `more` bytes of memory beyond now, and repair symbols to none if
    /// that is less than the budget. `opens`: the window opens regardless of the limit.
    #[inline]
    pub(crate) fn limit_memory(&mut self, more: usize, opens: bool) {
        self.limits_window = !opens;
        if more > self.budget + buffer_pool::BUFFER_LEN {
            self.memory_limit = usize::MAX;
        } else {
            self.memory_limit = self.memory().saturating_add(more);
            self.shrink_repair_memory();
            if self.is_short() && self.delivery.is_empty() {
                // Other connections need the buffer of an earlier burst.
                self.delivery.release_memory();
            }
        }
    }

    /// Whether a limit below the budget is set.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.memory_limit != usize::MAX
    }

    /// Lifts the limit of [`Self::limit_memory`]: the peer is validated.
    #[inline]
    pub(crate) fn lift_memory_limit(&mut self) {
        self.memory_limit = usize::MAX;
    }

    /// Memory of received data, spare capacity included, bytes.
    pub(crate) fn memory(&self) -> usize {
        let slots = self.out_of_order.capacity() * size_of::<Option<OutOfOrderSegment>>();
        let repair = self.repair.as_ref().map_or(0, |repair| repair.memory());
        self.charged + slots + self.delivery.spare_capacity() + repair
    }

    /// Whether the limit admits a segment with `charge`, `offset` segments above RCV.NXT.
    ///
    /// While nothing is readable the next segment in order may exceed the limit if any of it is
    /// left, or if the segment is of usual size, so every connection makes progress.
    #[inline]
    pub(super) fn is_within_limit(&self, offset: u32, charge: usize) -> bool {
        if !self.is_limited() {
            return true;
        }
        if offset == 0 && self.delivery.is_empty() {
            let usual = SEGMENT_CHARGE.max(self.segment_charge);
            return charge <= usual || self.memory() < self.memory_limit;
        }
        let (len, capacity) = (offset as usize + 1, self.out_of_order.capacity());
        // A `VecDeque` at least doubles when it grows.
        let grows = if offset > 0 && len > capacity { len.max(2 * capacity) - capacity } else { 0 };
        let more = charge + grows * size_of::<Option<OutOfOrderSegment>>();
        self.memory() + more <= self.memory_limit
    }

    /// Whether the limit bounds the window.
    pub(super) fn is_window_limited(&self) -> bool {
        self.is_limited() && self.limits_window
    }

    /// Whether less memory is left than one buffer of the pool takes.
    pub(super) fn is_short(&self) -> bool {
        self.is_limited() && self.memory_limit < self.memory() + buffer_pool::BUFFER_LEN
    }

    /// The window to advertise: [`Self::advertisable_window`], within the memory limit.
    pub(super) fn open_window(&self) -> u16 {
        let window = self.advertisable_window();
        if !self.is_window_limited() {
            return window;
        }
        let memory = self.memory_limit.saturating_sub(self.memory()) / self.segment_charge;
        let memory = u32::try_from(memory).unwrap_or(u32::MAX);
        let memory = memory.saturating_add(self.out_of_order_count);
        let assumed = if self.has_advertised { u32::MAX } else { INITIAL_WINDOW };
        let advertised = self.advertised().min(assumed);
        let memory = memory.max(u32::from(self.delivery.is_empty())).max(advertised);
        window.min(u16::try_from(memory).unwrap_or(u16::MAX))
    }
}
