//! What the memory of the endpoint permits: a limit below the budget while memory is short.

use super::{OutOfOrderSegment, Receiver};
use crate::config::SEGMENT_CHARGE;
use crate::util::buffer_pool;

/// Window that a peer assumes before one was advertised, segments: 32 in kcp-go and this crate
/// (IKCP_WND_RCV), 128 in the C library.
const INITIAL_WINDOW: u32 = 128;

impl Receiver {
    /// Lets received data take `more` bytes of memory than it takes now, and repair symbols none if
    /// that is less than the budget. `opens`: the window opens further nevertheless.
    #[inline]
    pub(crate) fn limit_memory(&mut self, more: usize, opens: bool) {
        self.limits_window = !opens;
        if more > self.budget + buffer_pool::BUFFER_LEN {
            self.memory_limit = usize::MAX;
        } else {
            self.memory_limit = self.memory().saturating_add(more);
            self.shrink_repair_memory();
            if self.is_short() && self.delivery.is_empty() {
                // Others need the buffer of a burst before.
                self.delivery.release_memory();
            }
        }
    }

    /// Whether the endpoint has less for this connection than its budget.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.memory_limit != usize::MAX
    }

    /// The peer is validated: ends the limit of [`Self::limit_memory`].
    #[inline]
    pub(crate) fn lift_memory_limit(&mut self) {
        self.memory_limit = usize::MAX;
    }

    /// Bytes of memory of received data, spare capacity included.
    pub(crate) fn memory(&self) -> usize {
        let slots = self.out_of_order.capacity() * size_of::<Option<OutOfOrderSegment>>();
        let repair = self.repair.as_ref().map_or(0, |repair| repair.memory());
        self.charged + slots + self.delivery.spare_capacity() + repair
    }

    /// Whether the limit admits a segment with this charge, `offset` segments above RCV.NXT.
    ///
    /// The next one in order exceeds it while there is nothing to read, if any of it is left or with
    /// the size of a usual segment, so every connection makes progress. A message that has begun goes on.
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
        // A `VecDeque` that is too short doubles at least.
        let grows = if offset > 0 && len > capacity { len.max(2 * capacity) - capacity } else { 0 };
        let more = charge + grows * size_of::<Option<OutOfOrderSegment>>();
        self.memory() + more <= self.memory_limit
    }

    /// Whether the window opens no further than the limit permits.
    pub(super) fn is_window_limited(&self) -> bool {
        self.is_limited() && self.limits_window
    }

    /// Whether less memory is left than a buffer of the pool takes.
    pub(super) fn is_short(&self) -> bool {
        self.is_limited() && self.memory_limit < self.memory() + buffer_pool::BUFFER_LEN
    }

    /// The window to advertise: [`Self::advertisable_window`], opened no further than the memory limit
    /// permits.
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
