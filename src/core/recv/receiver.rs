//! The receiver: what arrived ahead of a gap, and what the application can read.
//!
//! Everything that is stored is charged with its payload and a fixed cost, and the advertised
//! window is the smaller of the room in segments and in memory, so whatever was advertised can be
//! stored. What lies beyond is neither stored nor acknowledged.
//!
//! The next one in order is taken anyway while there is nothing to read, since no memory would
//! ever become free without it: so memory is bounded by the budget and one segment, or by twice
//! that where messages are put together.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::config::{KcpConfig, Mode, SEGMENT_CHARGE, SEGMENT_COST};
use crate::core::clock::Micros;
use crate::core::congestion::window_autotune::WindowAutotune;
use crate::core::recovery::rtt::RttEstimator;
use crate::core::recv::reassembly::MessageReassembly;
use crate::core::seq::Sn;
use crate::error::ConnectionError;
use crate::util::buffer_pool;
use crate::util::queue;

/// Bounds of the delivery buffer that in-order payloads of a byte stream are appended to.
const MIN_CHUNK: usize = 512;
const MAX_CHUNK: usize = buffer_pool::BUFFER_LEN;
/// Those of this size and above are wide ones that are used again.
const POOLED: usize = MAX_CHUNK / 2;

/// What became of a PUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvOutcome {
    /// It was the next one.
    InOrder,
    /// Stored behind a gap.
    OutOfOrder,
    /// Stored behind the gap before, and acknowledged.
    OutOfOrderDuplicate,
    /// Here already.
    Duplicate,
    /// Outside the window or the memory.
    OutOfWindow,
}

#[derive(Debug)]
pub(super) struct OutOfOrderSegment {
    payload: Bytes,
    frg: u8,
    /// Its acknowledgement waits to be sent.
    ack_pending: bool,
}

/// A payload in its datagram, or one that was held.
pub(super) enum Payload<'a> {
    Borrowed(&'a [u8]),
    Owned(Bytes),
}

impl Payload<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    pub(super) fn into_owned(self) -> Bytes {
        match self {
            Self::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Something readable.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) data: Bytes,
    pub(super) segments: u32,
    pub(super) charge: usize,
}

#[derive(Debug)]
pub(crate) struct Receiver {
    pub(super) nxt: Sn,
    pub(super) window: u16,
    pub(super) tuner: Option<WindowAutotune>,
    pub(super) budget: usize,
    /// The budget follows the window.
    pub(super) derived_budget: bool,
    pub(super) charged: usize,
    /// Slot `i` holds number `nxt + i`; slot 0 is always empty.
    pub(super) reorder: VecDeque<Option<OutOfOrderSegment>>,
    pub(super) held: u32,
    pub(super) ready: VecDeque<Chunk>,
    /// In-order bytes of a stream that are not a chunk yet.
    pub(super) tail: BytesMut,
    pub(super) tail_segments: u32,
    pub(super) tail_charge: usize,
    /// It is a wide buffer, or the rest of one.
    pub(super) tail_is_wide: bool,
    /// Size of the next delivery buffer; doubles while buffers fill up between two reads.
    pub(super) chunk_size: usize,
    /// Bytes that went through buffers between the last two reads, and since then, the tail's not
    /// included.
    pub(super) last_read: usize,
    pub(super) frozen_bytes: usize,
    pub(super) partial: Option<MessageReassembly>,
    /// In-order segments not read yet.
    pub(super) unread: u32,
    pub(super) messages: bool,
    pub(super) empty_messages: bool,
    /// What one segment of the window stands for: a stock peer's largest, or a larger one seen.
    pub(super) segment_charge: usize,
    /// Right edge of the window as the peer last saw it.
    pub(super) advertised_edge: Sn,
}

impl Receiver {
    pub(crate) fn new(config: &KcpConfig, start: Sn) -> Self {
        Self {
            nxt: start,
            window: config.recv_window,
            tuner: WindowAutotune::of(config.recv_window, config.auto_windows, start),
            budget: config.recv_budget(),
            derived_budget: config.recv_memory.is_none(),
            charged: 0,
            reorder: VecDeque::new(),
            held: 0,
            ready: VecDeque::new(),
            tail: BytesMut::new(),
            tail_segments: 0,
            tail_charge: 0,
            tail_is_wide: false,
            chunk_size: 0,
            last_read: 0,
            frozen_bytes: 0,
            partial: None,
            unread: 0,
            messages: config.mode == Mode::Message,
            empty_messages: config.empty_messages,
            segment_charge: SEGMENT_CHARGE,
            advertised_edge: start.advance(u32::from(config.recv_window)),
        }
    }

    /// What is stored stays stored, and what the peer was told it may send is still taken: a
    /// smaller window shows as that is used up. Refused, it would come again and again, a
    /// time-out apart.
    pub(crate) fn set_window(&mut self, segments: u16) {
        (self.window, self.tuner) = (segments, None);
        self.set_budget();
    }

    /// Something arrived in order: a window that nobody has set may be too small for the path.
    /// Returns whether the round-trip time is wanted and not known.
    pub(crate) fn tune(&mut self, now: Micros, rtt: &RttEstimator) -> bool {
        let Some(tuner) = &mut self.tuner else { return false };
        let unknown = rtt.srtt().is_none() && tuner.delivered(self.nxt) >= u32::from(self.window);
        let window = tuner.recv_window(now, self.nxt, rtt, (self.window, self.unread));
        if window != self.window {
            self.window = window;
            self.set_budget();
        }
        unknown
    }

    fn set_budget(&mut self) {
        if self.derived_budget {
            let owed = self.charged + self.advertised() as usize * SEGMENT_CHARGE;
            self.budget = (usize::from(self.window) * SEGMENT_CHARGE).max(owed);
        }
    }

    /// Segments beyond `nxt` that the peer was told it may send.
    fn advertised(&self) -> u32 {
        self.advertised_edge.offset_from(self.nxt).unwrap_or(0)
    }

    /// The next number in order.
    pub(crate) fn nxt(&self) -> Sn {
        self.nxt
    }

    /// Segments that can be stored beyond `nxt`: the window to advertise.
    pub(crate) fn advertisable_window(&self) -> u16 {
        let segments = u32::from(self.window).saturating_sub(self.unread).max(self.advertised());
        let memory = self.budget.saturating_sub(self.charged) / self.segment_charge;
        let memory = u32::try_from(memory).unwrap_or(u32::MAX).saturating_add(self.held);
        let memory = memory.max(u32::from(self.has_nothing_readable()));
        u16::try_from(segments.min(memory)).unwrap_or(u16::MAX)
    }

    /// The window to write into a header; remembers what the peer was told.
    pub(crate) fn advertise_window(&mut self) -> u16 {
        let room = self.advertisable_window();
        self.advertised_edge = self.nxt.advance(u32::from(room));
        self.set_budget();
        room
    }

    /// Whether reading has opened the window so much that the peer should hear of it unasked.
    pub(crate) fn wants_window_update(&self) -> bool {
        let gain =
            self.nxt.advance(u32::from(self.advertisable_window())).since(self.advertised_edge);
        let share = if self.advertised_edge.since(self.nxt) <= 0 { 4 } else { 2 };
        gain > 0 && gain.unsigned_abs() >= (u32::from(self.window) / share).max(1)
    }

    /// One PUSH. An error ends the conversation (message mode only).
    pub(crate) fn input(
        &mut self,
        sn: Sn,
        frg: u8,
        payload: &[u8],
    ) -> Result<RecvOutcome, ConnectionError> {
        let Some(place) = sn.offset_from(self.nxt) else { return Ok(RecvOutcome::Duplicate) };
        let charge = payload.len() + SEGMENT_COST;
        let fits =
            self.charged + charge <= self.budget || (place == 0 && self.has_nothing_readable());
        if place >= u32::from(self.advertisable_window()) || !fits {
            return Ok(RecvOutcome::OutOfWindow);
        }
        self.segment_charge = self.segment_charge.max(charge);
        if place > 0 {
            return Ok(self.store_out_of_order(place as usize, frg, payload));
        }
        self.charged += charge;
        let mut delivered = self.deliver(frg, charge, Payload::Borrowed(payload));
        if self.held > 0 && delivered.is_ok() {
            delivered = self.deliver_contiguous();
        }
        if delivered.is_err() {
            self.discard_held();
        }
        delivered.map(|()| RecvOutcome::InOrder)
    }

    /// The conversation ends before what is behind the gap.
    fn discard_held(&mut self) {
        let held = self.reorder.drain(..).flatten();
        self.charged -= held.map(|held| held.payload.len() + SEGMENT_COST).sum::<usize>();
        self.held = 0;
    }

    /// Whether nothing that is stored can be read, so that only the next segment in order helps.
    fn has_nothing_readable(&self) -> bool {
        self.ready.is_empty() && self.tail_segments == 0
    }

    fn store_out_of_order(&mut self, place: usize, frg: u8, payload: &[u8]) -> RecvOutcome {
        if self.reorder.len() <= place {
            self.reorder.resize_with(place + 1, || None);
        }
        match self.reorder.get_mut(place) {
            Some(slot @ None) => {
                *slot = Some(OutOfOrderSegment {
                    payload: Bytes::copy_from_slice(payload),
                    frg,
                    ack_pending: true,
                });
                self.held += 1;
                self.charged += payload.len() + SEGMENT_COST;
                RecvOutcome::OutOfOrder
            }
            Some(Some(held)) if !held.ack_pending => {
                held.ack_pending = true;
                RecvOutcome::OutOfOrderDuplicate
            }
            _ => RecvOutcome::Duplicate,
        }
    }

    /// The acknowledgement of `sn` leaves.
    pub(crate) fn on_acknowledged(&mut self, sn: Sn) {
        let place = sn.offset_from(self.nxt).and_then(|place| usize::try_from(place).ok());
        if let Some(Some(held)) = place.and_then(|place| self.reorder.get_mut(place)) {
            held.ack_pending = false;
        }
    }

    /// Delivers what a filled gap released.
    fn deliver_contiguous(&mut self) -> Result<(), ConnectionError> {
        while let Some(Some(held)) = self.reorder.front_mut().map(Option::take) {
            self.held -= 1;
            let charge = held.payload.len() + SEGMENT_COST;
            self.deliver(held.frg, charge, Payload::Owned(held.payload))?;
        }
        if self.held == 0 && self.reorder.capacity() > 128 {
            self.reorder = VecDeque::new();
        }
        Ok(())
    }

    /// The next segment in order.
    pub(super) fn deliver(
        &mut self,
        frg: u8,
        charge: usize,
        payload: Payload<'_>,
    ) -> Result<(), ConnectionError> {
        self.nxt = self.nxt.advance(1);
        self.reorder.pop_front();
        self.unread += 1;
        if self.messages {
            return self.deliver_fragment(frg, charge, payload);
        }
        if payload.bytes().is_empty() {
            // Nothing to read, nothing to keep.
            (self.unread, self.charged) = (self.unread - 1, self.charged - charge);
            return Ok(());
        }
        match payload {
            // Worth handing over as it is.
            Payload::Owned(data) if data.len() >= MIN_CHUNK => {
                self.freeze_tail();
                queue::push(&mut self.ready, Chunk { data, segments: 1, charge });
                return Ok(());
            }
            payload => self.append(payload.bytes()),
        }
        self.tail_segments += 1;
        self.tail_charge += charge;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) {
        // As much is expected as came before the last read: once a chunk has begun, the memory in
        // front of it is not free before it is read. Only the first chunk after a read is worth a
        // buffer with that much room, or each could hold one for a byte.
        let begins = self.tail_segments == 0;
        let is_first = begins && self.ready.is_empty();
        let expected = if is_first { self.last_read.min(MAX_CHUNK) } else { 0 };
        let room = bytes.len().max(expected);
        if self.tail.capacity() - self.tail.len() < room {
            if !begins {
                // More arrives between two reads than a chunk holds.
                self.chunk_size = (2 * self.chunk_size).min(MAX_CHUNK);
            }
            self.freeze_tail();
            // The first one is as large as what there is: many conversations say no more.
            let least = if self.chunk_size == 0 { 0 } else { MIN_CHUNK };
            self.chunk_size = self.chunk_size.max(room).max(least);
            // Its memory is free again if everything in it was read.
            if !self.tail.try_reclaim(self.chunk_size) {
                self.tail_is_wide = self.chunk_size >= POOLED;
                self.tail = if self.tail_is_wide {
                    buffer_pool::take()
                } else {
                    BytesMut::with_capacity(self.chunk_size)
                };
            }
        }
        self.tail.extend_from_slice(bytes);
    }

    /// Makes the bytes appended so far a chunk of their own.
    pub(super) fn freeze_tail(&mut self) {
        if self.tail_segments == 0 {
            return;
        }
        // Only buffers that others follow are shared, so that they can be used again. The last part
        // of a wide one still has room: whoever reads it can tell.
        let left = self.tail.capacity() - self.tail.len();
        let lone =
            if self.tail_is_wide { left < buffer_pool::LARGE } else { self.chunk_size < MIN_CHUNK };
        let tail = if lone { std::mem::take(&mut self.tail) } else { self.tail.split() };
        let data = tail.freeze();
        self.frozen_bytes += data.len();
        let segments = std::mem::take(&mut self.tail_segments);
        let charge = std::mem::take(&mut self.tail_charge);
        queue::push(&mut self.ready, Chunk { data, segments, charge });
    }

    /// The next bytes in order, or the next message.
    pub(crate) fn recv(&mut self) -> Option<Bytes> {
        if self.ready.is_empty() {
            let some = self.tail_segments > 0;
            if some && self.chunk_size > MIN_CHUNK && self.tail.len() < self.chunk_size / 8 {
                self.chunk_size = (self.chunk_size / 2).max(MIN_CHUNK);
            }
            self.freeze_tail();
            if self.frozen_bytes > 0 {
                self.last_read = std::mem::take(&mut self.frozen_bytes);
            }
        }
        let chunk = self.ready.pop_front()?;
        self.unread -= chunk.segments;
        self.charged -= chunk.charge;
        Some(chunk.data)
    }

    /// Bytes of the next chunk that [`Self::recv`] would give.
    pub(crate) fn readable(&self) -> Option<usize> {
        match self.ready.front() {
            Some(chunk) => Some(chunk.data.len()),
            None => (self.tail_segments > 0).then_some(self.tail.len()),
        }
    }

    pub(crate) fn holds_memory(&self) -> bool {
        self.chunk_size >= MIN_CHUNK
            || queue::is_reclaimable(&self.ready)
            || (self.held == 0 && self.reorder.capacity() > 0)
    }

    /// Gives back the delivery buffer and the room of the queues; a conversation that rests keeps
    /// none.
    pub(crate) fn release_memory(&mut self) {
        if self.tail_segments == 0 {
            self.tail = BytesMut::new();
            (self.chunk_size, self.last_read, self.frozen_bytes) = (0, 0, 0);
        }
        queue::release(&mut self.ready);
        if self.held == 0 {
            self.reorder = VecDeque::new();
        }
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        let held = self.reorder.iter().flatten();
        assert_eq!(held.clone().count(), self.held as usize);
        assert!(self.reorder.front().is_none_or(Option::is_none), "slot 0 is the gap");
        let stored: usize = held.map(|h| h.payload.len() + SEGMENT_COST).sum();
        let ready: usize = self.ready.iter().map(|chunk| chunk.charge).sum();
        let partial_charge = self.partial.as_ref().map_or(0, |partial| partial.charge);
        assert_eq!(stored + ready + partial_charge + self.tail_charge, self.charged);
        let segments: u32 = self.ready.iter().map(|chunk| chunk.segments).sum();
        let partial = self.partial.as_ref().map_or(0, |partial| partial.segments);
        assert_eq!(segments + partial + self.tail_segments, self.unread);
        assert!(stored.max(partial_charge) <= self.budget);
        // One segment beyond the budget where there is nothing to read, and a message being put
        // together beside what is held behind a gap.
        let assembly = if self.messages { self.budget } else { 0 };
        assert!(self.charged <= self.budget + assembly + self.segment_charge);
    }
}
