//! Receiving: reordering, message reassembly, delivery to the application, and ACKs to send (kcp-go
//! `parse_data`, `wnd_unused`, `Recv`; RFC 9293 3.8.6).
//!
//! Each stored segment is charged with its payload and a fixed cost. The advertised window is the
//! smaller of the window in segments and the free memory, so everything advertised can be stored.
//! Segments beyond it are neither stored nor acknowledged. kcp-go bounds segments only.
//!
//! While the endpoint is short of memory, [`Receiver::limit_memory`] may set a limit below the
//! advertised window. The window then opens only as far as the limit permits, its advertised edge
//! stays, and segments beyond the limit are dropped like lost ones.
//!
//! While nothing is readable the next segment in order is always accepted: without it no memory
//! would become free. So memory is bounded by the budget and one segment, in message mode by twice
//! the budget (`check_invariants`).
//!
//! [`DeliveryBuffer`] has in-order data until the application reads it (kcp-go `rcv_queue`).
//! Payloads of a byte stream are appended to one buffer, the tail, which a read freezes into a
//! chunk: a read of small segments costs one [`Bytes`], not one per segment. Messages, and large
//! segments that were stored out of order, are chunks of their own and are not copied again. Tails
//! of 32 KiB and more come from `util::buffer_pool`, a process-wide pool behind a `Mutex`: the only
//! lock in `core`, taken at most once per tail and held for one pop.
//!
//! [`MessageReassembly`] joins fragments (quinn `Assembler`; kcp-go `PeekSize`). The wire field
//! `frg` counts the fragments still to come, so the first fragment announces their number. Deviates
//! from kcp-go, which delivers any sequence that ends in `frg` 0: fragments that do not count down
//! to 0, or that exceed the receive window or memory, end the connection.

pub(crate) mod acks;
mod repair;

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::config::{KcpConfig, Mode, SEGMENT_CHARGE, SEGMENT_COST};
use crate::core::clock::Micros;
use crate::core::congestion::autotune::WindowAutotune;
use crate::core::recovery::rtt::RttEstimator;
use crate::core::recv::acks::Ack;
use crate::core::recv::repair::RepairReceiver;
use crate::core::redundancy::rlc::{Inserted, RecoveredSegment, RepairSymbol, Source};
use crate::core::seq::Sn;
use crate::error::ConnectionError;
use crate::util::{buffer_pool, queue};

/// Capacity of the reordering queue, segments, that a connection without gaps keeps.
const REORDER_CAPACITY_KEPT: usize = 128;

/// Verdict on a PUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvOutcome {
    /// The number was RCV.NXT: delivered, with the stored segments that follow.
    InOrder,
    /// Stored above a gap.
    OutOfOrder,
    /// Stored before and its ACK was sent: the ACK may be lost.
    OutOfOrderDuplicate,
    /// Received before; its ACK waits, or `una` covers the number.
    Duplicate,
    /// Beyond the receive window or memory: discarded.
    OutOfWindow,
}

/// A segment above a gap.
#[derive(Debug)]
struct OutOfOrderSegment {
    payload: Bytes,
    frg: u8,
    /// Set on arrival and on a duplicate, cleared when the ACK is written.
    ack_pending: bool,
}

/// Receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// RCV.NXT.
    nxt: Sn,
    /// Receive window, segments (kcp-go `rcv_wnd`).
    window: u16,
    /// Autotuning of `window`; `None` once the application has set a window.
    autotune: Option<WindowAutotune>,
    /// Limit of the receive memory, bytes. Follows the window.
    budget: usize,
    /// Most memory that may be in use after a segment was stored, bytes, set by the endpoint.
    /// `usize::MAX`: no limit below the budget.
    memory_limit: usize,
    /// The limit bounds the window too.
    limits_window: bool,
    /// Receive memory in use, bytes.
    charged: usize,
    /// Entry `i` is segment `nxt + i` (kcp-go `rcv_buf`). Invariant: entry 0 is `None`.
    out_of_order: VecDeque<Option<OutOfOrderSegment>>,
    out_of_order_count: u32,
    delivery: DeliveryBuffer,
    reassembly: MessageReassembly,
    /// Segments in order that the application has not read.
    unread: u32,
    /// Message mode: fragments are reassembled.
    messages: bool,
    /// Receive memory counted per segment of the advertised window, bytes: the charge of the
    /// largest segment that kcp-go sends, or of the largest received segment if that is larger.
    segment_charge: usize,
    /// Right edge of the receive window as last advertised (RFC 9293 RCV.NXT + RCV.WND).
    advertised_edge: Sn,
    /// A window was advertised; before that the edge is an assumption.
    has_advertised: bool,
    /// Largest window advertised, segments.
    largest_advertised: u16,
    /// `Some` while repair symbols arrive. Uses the budget that data leaves free.
    repair: Option<Box<RepairReceiver>>,
}

impl Receiver {
    /// `start` is the peer's first sequence number.
    pub(crate) fn new(config: &KcpConfig, start: Sn) -> Self {
        Self {
            nxt: start,
            window: config.recv_window,
            autotune: WindowAutotune::for_window(config.recv_window, config.auto_windows, start),
            budget: config.recv_budget(),
            memory_limit: usize::MAX,
            limits_window: false,
            charged: 0,
            out_of_order: VecDeque::new(),
            out_of_order_count: 0,
            delivery: DeliveryBuffer::default(),
            reassembly: MessageReassembly::default(),
            unread: 0,
            messages: config.mode == Mode::Message,
            segment_charge: SEGMENT_CHARGE,
            advertised_edge: start.advance(u32::from(config.recv_window)),
            has_advertised: false,
            largest_advertised: 0,
            repair: None,
        }
    }

    /// Sets the receive window, segments, and ends autotuning.
    ///
    /// Never shrinks the advertised window (RFC 9293 3.8.6): a smaller window takes effect as the
    /// peer uses up the advertised one, or discarded segments would be retransmitted until they fit
    /// (test `receive_window_lowered_in_use_loses_no_data`).
    pub(crate) fn set_window(&mut self, segments: u16) {
        (self.window, self.autotune) = (segments, None);
        self.set_budget();
    }

    /// Autotunes the receive window after data arrived in order. Returns whether a ping should
    /// measure the RTT, which autotuning needs.
    pub(crate) fn autotune_window(&mut self, now: Micros, rtt: &RttEstimator) -> bool {
        let Some(autotune) = &mut self.autotune else { return false };
        let needs_rtt =
            rtt.srtt().is_none() && autotune.delivered(self.nxt) >= u32::from(self.window);
        let window = autotune.recv_window(now, self.nxt, rtt, self.window, self.unread);
        if window != self.window {
            self.window = window;
            self.set_budget();
        }
        needs_rtt
    }

    fn set_budget(&mut self) {
        let promised = self.charged + self.advertised() as usize * SEGMENT_CHARGE;
        self.budget = (usize::from(self.window) * SEGMENT_CHARGE).max(promised);
        self.shrink_repair_memory();
    }

    /// Segments from RCV.NXT to the advertised edge.
    fn advertised(&self) -> u32 {
        self.advertised_edge.offset_from(self.nxt).unwrap_or(0)
    }

    /// RCV.NXT: the next number in order (kcp-go `rcv_nxt`).
    pub(crate) fn nxt(&self) -> Sn {
        self.nxt
    }

    /// Window in segments and memory in bytes. If an incomplete message is all there is, both admit
    /// its rest: the peer may have begun it before the window was lowered.
    #[inline]
    fn limits(&self) -> (u16, usize) {
        if self.messages
            && self.delivery.is_empty()
            && let Some((segments, memory)) = self.reassembly.size(self.segment_charge)
        {
            (self.window.max(segments), self.budget.max(memory.min(self.message_limits().memory)))
        } else {
            (self.window, self.budget)
        }
    }

    /// The limits of a message. The largest advertised window sets both: the sender has no other
    /// limit.
    fn message_limits(&self) -> MessageLimits {
        let promised = usize::from(self.largest_advertised) * SEGMENT_CHARGE;
        MessageLimits {
            fragments: self.window.max(self.largest_advertised),
            memory: self.budget.max(promised),
        }
    }

    /// RCV.WND: segments from RCV.NXT on that can be stored (kcp-go `wnd_unused`).
    pub(crate) fn advertisable_window(&self) -> u16 {
        let (window, budget) = self.limits();
        let segments = u32::from(window).saturating_sub(self.unread).max(self.advertised());
        let memory = budget.saturating_sub(self.charged) / self.segment_charge;
        let memory = u32::try_from(memory).unwrap_or(u32::MAX);
        let memory = memory.saturating_add(self.out_of_order_count);
        let memory = memory.max(u32::from(self.delivery.is_empty()));
        u16::try_from(segments.min(memory)).unwrap_or(u16::MAX)
    }

    /// Whether [`Self::advertisable_window`] exceeds `offset`, without its division.
    #[inline]
    fn is_in_window(&self, offset: u32) -> bool {
        let (window, budget) = self.limits();
        let segments = u32::from(window).saturating_sub(self.unread).max(self.advertised());
        let beyond_stored =
            u64::from(offset.saturating_add(1).saturating_sub(self.out_of_order_count));
        let free = budget.saturating_sub(self.charged) as u64;
        let memory = beyond_stored.saturating_mul(self.segment_charge as u64) <= free;
        offset < segments.min(u32::from(u16::MAX))
            && (memory || (offset == 0 && self.delivery.is_empty()))
    }

    /// The window to write into a header, recorded as advertised.
    pub(crate) fn advertise_window(&mut self) -> u16 {
        let window = self.open_window();
        (self.advertised_edge, self.has_advertised) = (self.nxt.advance(u32::from(window)), true);
        self.largest_advertised = self.largest_advertised.max(window);
        self.set_budget();
        window
    }

    /// Whether reading has opened the window enough for a window update (RFC 9293 3.8.6.2.2, silly
    /// window avoidance): by half of it, or a quarter if it was closed. kcp-go sends one only when
    /// its queue was full.
    pub(crate) fn wants_window_update(&self) -> bool {
        let open = self.open_window();
        let gain = self.nxt.advance(u32::from(open)).since(self.advertised_edge);
        let divisor = if self.advertised_edge.since(self.nxt) <= 0 { 4 } else { 2 };
        let whole = if self.is_window_limited() {
            open.into()
        } else {
            // Memory may hold less than the window: only that part can open.
            let memory = u32::try_from(self.budget / self.segment_charge).unwrap_or(u32::MAX);
            u32::from(self.window).min(memory)
        };
        gain > 0 && gain.unsigned_abs() >= (whole / divisor).max(1)
    }

    /// Processes one PUSH.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::ProtocolViolation`] in message mode if fragments form no message.
    pub(crate) fn input(
        &mut self,
        sn: Sn,
        frg: u8,
        payload: &[u8],
    ) -> Result<RecvOutcome, ConnectionError> {
        let Some(offset) = sn.offset_from(self.nxt) else { return Ok(RecvOutcome::Duplicate) };
        let charge = payload.len() + SEGMENT_COST;
        let fits =
            self.charged + charge <= self.limits().1 || (offset == 0 && self.delivery.is_empty());
        let fits = fits && self.is_within_limit(offset, charge);
        if !fits || !self.is_in_window(offset) {
            return Ok(RecvOutcome::OutOfWindow);
        }
        self.segment_charge = self.segment_charge.max(charge);
        if offset > 0 {
            return Ok(self.store_out_of_order(offset as usize, frg, payload));
        }
        self.charged += charge;
        let mut delivered = self.deliver(frg, charge, Payload::Borrowed(payload));
        if self.out_of_order_count > 0 && delivered.is_ok() {
            delivered = self.deliver_contiguous();
        }
        if delivered.is_err() {
            self.discard_out_of_order();
        }
        delivered.map(|()| RecvOutcome::InOrder)
    }

    /// Whether segments above a gap are stored.
    pub(crate) fn has_gap(&self) -> bool {
        self.out_of_order_count > 0
    }

    /// Discards the segments above a gap, after an error.
    fn discard_out_of_order(&mut self) {
        let segments = self.out_of_order.drain(..).flatten();
        self.charged -= segments.map(|segment| segment.payload.len() + SEGMENT_COST).sum::<usize>();
        self.out_of_order_count = 0;
    }

    fn store_out_of_order(&mut self, offset: usize, frg: u8, payload: &[u8]) -> RecvOutcome {
        if self.out_of_order.len() <= offset {
            // Exactly at first, as `is_within_limit` counts on.
            let more = offset + 1 - self.out_of_order.len();
            queue::reserve(&mut self.out_of_order, more);
            self.out_of_order.resize_with(offset + 1, || None);
        }
        match self.out_of_order.get_mut(offset) {
            Some(slot @ None) => {
                *slot = Some(OutOfOrderSegment {
                    payload: Bytes::copy_from_slice(payload),
                    frg,
                    ack_pending: true,
                });
                self.out_of_order_count += 1;
                self.charged += payload.len() + SEGMENT_COST;
                RecvOutcome::OutOfOrder
            }
            Some(Some(segment)) if !segment.ack_pending => {
                segment.ack_pending = true;
                RecvOutcome::OutOfOrderDuplicate
            }
            _ => RecvOutcome::Duplicate,
        }
    }

    /// Whether the segment is in the receive window and has not arrived.
    pub(crate) fn is_missing(&self, sn: Sn) -> bool {
        let Some(offset) = sn.offset_from(self.nxt) else { return false };
        self.is_in_window(offset)
            && !matches!(self.out_of_order.get(offset as usize), Some(Some(_)))
    }

    /// The ACK of `sn` was written.
    pub(crate) fn on_ack_sent(&mut self, sn: Sn) {
        let offset = sn.offset_from(self.nxt).and_then(|offset| usize::try_from(offset).ok());
        if let Some(Some(segment)) = offset.and_then(|offset| self.out_of_order.get_mut(offset)) {
            segment.ack_pending = false;
        }
    }

    /// Delivers the stored segments that follow a filled gap.
    fn deliver_contiguous(&mut self) -> Result<(), ConnectionError> {
        while let Some(Some(segment)) = self.out_of_order.front_mut().map(Option::take) {
            self.out_of_order_count -= 1;
            let charge = segment.payload.len() + SEGMENT_COST;
            self.deliver(segment.frg, charge, Payload::Owned(segment.payload))?;
        }
        if self.out_of_order_count == 0 && self.out_of_order.capacity() > REORDER_CAPACITY_KEPT {
            self.out_of_order = VecDeque::new();
        }
        Ok(())
    }

    /// Delivers segment RCV.NXT, already charged.
    fn deliver(
        &mut self,
        frg: u8,
        charge: usize,
        payload: Payload<'_>,
    ) -> Result<(), ConnectionError> {
        let free = self.free();
        if let Some(repair) = &mut self.repair {
            repair.on_delivered(frg, payload.bytes(), free);
        }
        self.nxt = self.nxt.advance(1);
        self.out_of_order.pop_front();
        self.unread += 1;
        if self.messages {
            return self.deliver_fragment(frg, charge, payload);
        }
        if payload.bytes().is_empty() {
            self.release_charge(1, charge);
        } else {
            let is_short = self.is_short();
            self.delivery.append(charge, payload, is_short);
        }
        Ok(())
    }

    fn deliver_fragment(
        &mut self,
        frg: u8,
        charge: usize,
        payload: Payload<'_>,
    ) -> Result<(), ConnectionError> {
        let limits = self.message_limits();
        let message = self
            .reassembly
            .push(frg, charge, payload, limits)
            .inspect_err(|_| self.release_charge(1, charge))?;
        let Some(message) = message else { return Ok(()) };
        if message.data.is_empty() {
            self.release_charge(message.segments, message.charge);
        } else {
            self.delivery.push(message);
        }
        Ok(())
    }

    /// Frees window and memory of in-order segments that were read or dropped.
    fn release_charge(&mut self, segments: u32, charge: usize) {
        (self.unread, self.charged) = (self.unread - segments, self.charged - charge);
    }

    /// The next bytes of the stream, or the next message.
    pub(crate) fn recv(&mut self) -> Option<Bytes> {
        let chunk = self.delivery.pop()?;
        self.release_charge(chunk.segments, chunk.charge);
        Some(chunk.data)
    }

    /// Bytes that [`Self::recv`] would return.
    pub(crate) fn readable(&self) -> Option<usize> {
        self.delivery.readable()
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.delivery.has_reclaimable_memory()
            || (self.out_of_order_count == 0 && self.out_of_order.capacity() > 0)
            || self.may_release_repair()
    }

    /// Frees buffers and the capacity of empty queues, for an idle connection.
    pub(crate) fn release_memory(&mut self) {
        self.delivery.release_memory();
        if self.out_of_order_count == 0 {
            self.out_of_order = VecDeque::new();
        }
        if self.may_release_repair() {
            self.repair = None;
        }
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        let behind_gap = self.out_of_order.iter().flatten();
        assert_eq!(behind_gap.clone().count(), self.out_of_order_count as usize);
        assert!(self.out_of_order.front().is_none_or(Option::is_none), "entry 0 is the gap");
        let stored: usize = behind_gap.map(|h| h.payload.len() + SEGMENT_COST).sum();
        let (ready_segments, ready_charge) = self.delivery.totals();
        let (partial_segments, partial_charge) = self.reassembly.totals();
        assert_eq!(stored + ready_charge + partial_charge, self.charged);
        assert_eq!(ready_segments + partial_segments, self.unread);
        let of_message = self.message_limits().memory;
        assert!(stored.max(partial_charge) <= of_message);
        if let Some(repair) = &self.repair {
            repair.check_invariants();
            let memory = repair.memory();
            assert!(memory == 0 || memory + self.charged <= self.budget, "data comes first");
        }
        // One segment may exceed the budget while nothing is readable, and an incomplete message
        // counts beside the segments above a gap.
        let assembly = if self.messages { of_message } else { 0 };
        assert!(self.charged <= self.budget + assembly + self.segment_charge);
        let window = u32::from(self.advertisable_window());
        assert!(window == 0 || self.is_in_window(window - 1));
        assert!(!self.is_in_window(window));
    }
}

/// Window that a peer assumes before one is advertised, segments: 32 in kcp-go and this crate
/// (IKCP_WND_RCV), 128 in the C library.
const INITIAL_WINDOW: u32 = 128;

/// Memory limit.
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
    fn is_limited(&self) -> bool {
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
    fn is_within_limit(&self, offset: u32, charge: usize) -> bool {
        if !self.is_limited() {
            return true;
        }
        if offset == 0 && self.delivery.is_empty() {
            let usual = SEGMENT_CHARGE.max(self.segment_charge);
            return charge <= usual || self.memory() < self.memory_limit;
        }
        let (len, capacity) = (offset as usize + 1, self.out_of_order.capacity());
        // A queue with capacity at least doubles when it grows.
        let grows = if offset > 0 && len > capacity { len.max(2 * capacity) - capacity } else { 0 };
        let more = charge + grows * size_of::<Option<OutOfOrderSegment>>();
        self.memory() + more <= self.memory_limit
    }

    /// Whether the limit bounds the window.
    fn is_window_limited(&self) -> bool {
        self.is_limited() && self.limits_window
    }

    /// Whether less memory is left than one buffer of the pool takes.
    fn is_short(&self) -> bool {
        self.is_limited() && self.memory_limit < self.memory() + buffer_pool::BUFFER_LEN
    }

    /// The window to advertise: [`Self::advertisable_window`], within the memory limit.
    fn open_window(&self) -> u16 {
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

/// Repair symbols.
impl Receiver {
    /// Bytes of the budget that data leaves free; none while memory is limited.
    fn free(&self) -> usize {
        if self.is_limited() { 0 } else { self.budget.saturating_sub(self.charged) }
    }

    /// Frees repair memory beyond the free budget.
    #[inline]
    fn shrink_repair_memory(&mut self) {
        let free = self.free();
        if let Some(repair) = &mut self.repair {
            repair.shrink(free);
        }
    }

    /// A datagram arrived: restarts the limit of decoding work per datagram.
    #[inline]
    pub(crate) fn start_datagram(&mut self) {
        if let Some(repair) = &mut self.repair {
            repair.start_datagram();
        }
    }

    /// Whether repair symbols have arrived lately.
    #[inline]
    pub(crate) fn has_repair_state(&self) -> bool {
        self.repair.is_some()
    }

    /// Whether repair state is unneeded: no gap, and no waiting ACK.
    fn may_release_repair(&self) -> bool {
        let repair = self.repair.as_ref();
        repair.is_some_and(|repair| !repair.has_acks()) && self.out_of_order_count == 0
    }

    /// Adds a repair symbol with its encoding window inside the receive window. Returns the
    /// recovered segments, which are not stored yet.
    pub(crate) fn on_repair(
        &mut self,
        now: Micros,
        symbol: RepairSymbol<'_>,
    ) -> (Inserted, Vec<RecoveredSegment>) {
        let (nxt, free) = (self.nxt, self.free());
        if self.is_limited() {
            return (Inserted::Redundant, Vec::new());
        }
        let repair = self.repair.get_or_insert_default();
        repair.on_repair(now);
        let end = symbol.first.advance(symbol.count.into());
        if symbol.count > 0 && end.since(nxt) <= 0 {
            return (Inserted::Redundant, Vec::new());
        }
        repair.insert(symbol, nxt, free, |offset| {
            let Some(Some(segment)) = self.out_of_order.get(offset) else { return Source::Missing };
            Source::Received { frg: segment.frg, payload: &segment.payload }
        })
    }

    /// A new segment arrived and is stored or delivered. Returns the segments that equations
    /// recover with it.
    pub(crate) fn on_source(
        &mut self,
        now: Micros,
        sn: Sn,
        frg: u8,
        payload: &[u8],
    ) -> Vec<RecoveredSegment> {
        let free = self.free();
        let Some(repair) = &mut self.repair else { return Vec::new() };
        if repair.has_expired(now) {
            self.repair = None;
            return Vec::new();
        }
        repair.on_source(sn, frg, payload, free)
    }

    /// Whether a recovered segment of `len` bytes fits the messages before and after it, as far as
    /// they are known. Without a cipher repair symbols can be forged, and a segment that fits no
    /// message would end the connection. In message mode a segment behind a gap is left to
    /// retransmission: nothing known precedes it.
    pub(crate) fn continues_message(&self, sn: Sn, frg: u8, len: usize) -> bool {
        let Some(offset) = sn.offset_from(self.nxt).filter(|_| self.messages) else { return true };
        let stored = |offset: usize| self.out_of_order.get(offset).and_then(Option::as_ref);
        let continues = |before: u8, frg: u8| before == 0 || before - 1 == frg;
        let offset = offset as usize;
        let after_previous = match offset.checked_sub(1) {
            None => {
                let limits = self.message_limits();
                self.reassembly.admits(frg, len + SEGMENT_COST, limits)
            }
            Some(previous) => stored(previous).is_some_and(|previous| {
                continues(previous.frg, frg) && (previous.frg > 0 || u16::from(frg) < self.window)
            }),
        };
        after_previous && stored(offset + 1).is_none_or(|next| continues(frg, next.frg))
    }

    /// A recovered segment was stored: queues its ACK, with the repair key.
    pub(crate) fn ack_recovered(&mut self, sn: Sn, key: u32) {
        let free = self.free();
        if let Some(repair) = &mut self.repair {
            repair.on_recovered(sn, key);
            repair.shrink(free);
        }
    }

    /// Whether ACKs of recovered segments wait.
    #[inline]
    pub(crate) fn has_recovered_acks(&self) -> bool {
        self.repair.as_ref().is_some_and(|repair| repair.has_acks())
    }

    /// Takes the next ACKs of recovered segments, at most `max`.
    pub(crate) fn take_recovered_acks(&mut self, max: usize) -> impl Iterator<Item = Ack> {
        self.repair.iter_mut().flat_map(move |repair| repair.take_acks(max))
    }
}

/// Smallest tail, bytes, once a connection has filled one. Also the smallest payload that becomes a
/// chunk without a copy.
const MIN_CHUNK: usize = 512;
/// Largest size of a tail, bytes.
const MAX_CHUNK: usize = buffer_pool::BUFFER_LEN;
/// Tails of at least this size, bytes, come from the buffer pool.
const POOLED: usize = MAX_CHUNK / 2;

/// Payload of a segment to deliver.
enum Payload<'a> {
    /// Still in its datagram.
    Borrowed(&'a [u8]),
    /// Was stored out of order.
    Owned(Bytes),
}

impl Payload<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    fn into_owned(self) -> Bytes {
        match self {
            Self::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Result of one read: bytes of the stream, or a message.
#[derive(Debug)]
struct Chunk {
    data: Bytes,
    /// Segments that carried the data.
    segments: u32,
    /// Receive memory charged for these segments, bytes.
    charge: usize,
}

/// Unread in-order data.
#[derive(Debug, Default)]
struct DeliveryBuffer {
    ready: VecDeque<Chunk>,
    /// In-order bytes of a stream after `ready`, not frozen into a chunk yet.
    tail: BytesMut,
    tail_segments: u32,
    tail_charge: usize,
    /// The tail is a buffer of the pool, or the rest of one. True until the tail is replaced.
    tail_is_pooled: bool,
    /// Size of the next tail, bytes: doubles when a tail fills up between two reads, halves when a
    /// read finds it nearly empty. Zero before the first.
    chunk_size: usize,
    /// Bytes frozen between the last two reads that emptied the buffer.
    last_read: usize,
    /// Bytes frozen since the last read that emptied the buffer.
    frozen_bytes: usize,
}

impl DeliveryBuffer {
    /// Whether there is nothing to read.
    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.tail_segments == 0
    }

    /// Appends a message. A chunk is never empty: a read of 0 bytes would mean the end of the stream.
    fn push(&mut self, chunk: Chunk) {
        queue::push(&mut self.ready, chunk);
    }

    /// Appends one segment of a byte stream. `is_short`: allocate no memory beyond its bytes.
    fn append(&mut self, charge: usize, payload: Payload<'_>, is_short: bool) {
        match payload {
            Payload::Owned(data) if data.len() >= MIN_CHUNK => {
                self.freeze_tail();
                self.push(Chunk { data, segments: 1, charge });
            }
            payload => {
                self.append_to_tail(payload.bytes(), is_short);
                self.tail_segments += 1;
                self.tail_charge += charge;
            }
        }
    }

    fn append_to_tail(&mut self, bytes: &[u8], is_short: bool) {
        // The first chunk after a read that emptied the buffer gets capacity for `last_read` bytes,
        // since memory before an unread chunk cannot be reclaimed. Later chunks get capacity for
        // their own bytes, or each could pin a large buffer for one byte (test
        // `delivery_small_chunks_after_a_burst_share_a_buffer`).
        let is_new = self.tail_segments == 0;
        let is_first = is_new && self.ready.is_empty();
        let expected = if is_first && !is_short { self.last_read.min(MAX_CHUNK) } else { 0 };
        let capacity = bytes.len().max(expected);
        if self.tail.capacity() - self.tail.len() < capacity {
            if !is_new {
                // More arrives between two reads than a chunk holds.
                self.chunk_size = (2 * self.chunk_size).min(MAX_CHUNK);
            }
            self.freeze_tail();
            // The first tail is exactly as large as its data: some connections receive no more.
            let least = if self.chunk_size == 0 { 0 } else { MIN_CHUNK };
            self.chunk_size = self.chunk_size.max(capacity).max(least);
            let size = if is_short { capacity } else { self.chunk_size };
            // Reclaims the tail's memory if all its chunks were read and dropped.
            if !self.tail.try_reclaim(size) {
                self.tail_is_pooled = size >= POOLED;
                self.tail = if self.tail_is_pooled {
                    buffer_pool::take()
                } else {
                    BytesMut::with_capacity(size)
                };
            }
        }
        self.tail.extend_from_slice(bytes);
    }

    /// Turns the bytes of the tail into a chunk.
    fn freeze_tail(&mut self) {
        if self.tail_segments == 0 {
            return;
        }
        // A tail with too little space for further chunks becomes the chunk whole, so that its
        // memory can be recycled once the chunk was read. Otherwise only the filled part is split
        // off.
        let rest = self.tail.capacity() - self.tail.len();
        let give_away = if self.tail_is_pooled {
            rest < buffer_pool::LARGE
        } else {
            self.chunk_size < MIN_CHUNK
        };
        let tail = if give_away { std::mem::take(&mut self.tail) } else { self.tail.split() };
        let data = tail.freeze();
        self.frozen_bytes += data.len();
        let segments = std::mem::take(&mut self.tail_segments);
        let charge = std::mem::take(&mut self.tail_charge);
        self.push(Chunk { data, segments, charge });
    }

    /// Takes the next chunk.
    fn pop(&mut self) -> Option<Chunk> {
        if self.ready.is_empty() {
            let has_tail = self.tail_segments > 0;
            if has_tail && self.chunk_size > MIN_CHUNK && self.tail.len() < self.chunk_size / 8 {
                self.chunk_size = (self.chunk_size / 2).max(MIN_CHUNK);
            }
            self.freeze_tail();
            if self.frozen_bytes > 0 {
                self.last_read = std::mem::take(&mut self.frozen_bytes);
            }
        }
        self.ready.pop_front()
    }

    /// Bytes of the chunk that [`Self::pop`] would return.
    fn readable(&self) -> Option<usize> {
        match self.ready.front() {
            Some(chunk) => Some(chunk.data.len()),
            None => (self.tail_segments > 0).then_some(self.tail.len()),
        }
    }

    fn has_reclaimable_memory(&self) -> bool {
        self.chunk_size >= MIN_CHUNK || queue::is_reclaimable(&self.ready)
    }

    /// Bytes allocated for later segments.
    fn spare_capacity(&self) -> usize {
        self.tail.capacity() - self.tail.len()
    }

    /// Frees an empty tail and the capacity of an empty queue, for an idle connection.
    fn release_memory(&mut self) {
        if self.tail_segments == 0 {
            self.tail = BytesMut::new();
            (self.chunk_size, self.last_read, self.frozen_bytes) = (0, 0, 0);
        }
        queue::release(&mut self.ready);
    }

    /// Segments and charge of all unread data.
    #[cfg(any(test, feature = "_testkit"))]
    fn totals(&self) -> (u32, usize) {
        let ready = (self.tail_segments, self.tail_charge);
        self.ready.iter().fold(ready, |(segments, charge), chunk| {
            (segments + chunk.segments, charge + chunk.charge)
        })
    }
}

/// Limits of one message.
#[derive(Clone, Copy, Debug)]
struct MessageLimits {
    /// Fragments.
    fragments: u16,
    /// Bytes of receive memory.
    memory: usize,
}

/// A message whose last fragment has not arrived.
#[derive(Debug)]
struct IncompleteMessage {
    data: BytesMut,
    segments: u32,
    /// Receive memory charged for the fragments, bytes.
    charge: usize,
    /// `frg` of the next fragment.
    next_frg: u8,
}

/// Reassembles the messages of one connection, one at a time, from segments in order.
#[derive(Debug, Default)]
struct MessageReassembly {
    partial: Option<IncompleteMessage>,
}

impl MessageReassembly {
    /// Whether the next segment in order may have this `frg` and charge.
    fn admits(&self, frg: u8, charge: usize, limits: MessageLimits) -> bool {
        match &self.partial {
            Some(partial) => partial.next_frg == frg && partial.charge + charge <= limits.memory,
            // All fragments but the last are of equal size.
            None => {
                let fragments = usize::from(frg) + 1;
                frg == 0
                    || (u16::from(frg) < limits.fragments && fragments * charge <= limits.memory)
            }
        }
    }

    /// Adds the next segment in order, with `charge` bytes of receive memory. Returns the message
    /// that it completes.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::ProtocolViolation`] if the segment does not continue the message, or the
    /// message exceeds `limits`. The segment is not stored then.
    fn push(
        &mut self,
        frg: u8,
        charge: usize,
        payload: Payload<'_>,
        limits: MessageLimits,
    ) -> Result<Option<Chunk>, ConnectionError> {
        if !self.admits(frg, charge, limits) {
            return Err(ConnectionError::ProtocolViolation);
        }
        let (partial, remaining) = (self.partial.take(), frg.checked_sub(1));
        if partial.is_none() && remaining.is_none() {
            return Ok(Some(Chunk { data: payload.into_owned(), segments: 1, charge }));
        }
        let mut partial = partial.unwrap_or_else(|| IncompleteMessage {
            data: BytesMut::new(),
            segments: 0,
            charge: 0,
            next_frg: frg,
        });
        partial.data.extend_from_slice(payload.bytes());
        partial.segments += 1;
        partial.charge += charge;
        if let Some(next_frg) = remaining {
            self.partial = Some(IncompleteMessage { next_frg, ..partial });
            return Ok(None);
        }
        let IncompleteMessage { data, segments, charge, .. } = partial;
        Ok(Some(Chunk { data: data.freeze(), segments, charge }))
    }

    /// Segments of the whole incomplete message, and their memory in bytes with `segment_charge`
    /// for each missing one.
    #[inline]
    fn size(&self, segment_charge: usize) -> Option<(u16, usize)> {
        let partial = self.partial.as_ref()?;
        let rest = u16::from(partial.next_frg) + 1;
        let arrived = u16::try_from(partial.segments).unwrap_or(u16::MAX);
        let memory =
            partial.charge.saturating_add(usize::from(rest).saturating_mul(segment_charge));
        Some((arrived.saturating_add(rest), memory))
    }

    /// Segments and charge of the incomplete message.
    #[cfg(any(test, feature = "_testkit"))]
    fn totals(&self) -> (u32, usize) {
        self.partial.as_ref().map_or((0, 0), |partial| (partial.segments, partial.charge))
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests;
