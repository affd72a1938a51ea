//! The receiver: out-of-order segments, the receive window, and readable data (kcp-go `parse_data`,
//! `wnd_unused`, `Recv`; RFC 9293 3.8.6).
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

mod limit;
mod repair;

use std::collections::VecDeque;

use bytes::Bytes;

use crate::config::{KcpConfig, Mode, SEGMENT_CHARGE, SEGMENT_COST};
use crate::core::clock::Micros;
use crate::core::congestion::autotune::WindowAutotune;
use crate::core::recovery::rtt::RttEstimator;
use crate::core::recv::delivery_buffer::{DeliveryBuffer, Payload};
use crate::core::recv::reassembly::MessageReassembly;
use crate::core::recv::repair::RepairReceiver;
use crate::core::seq::Sn;
use crate::error::ConnectionError;

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
    /// Limit of the receive memory, bytes.
    budget: usize,
    /// Most memory that may be in use after a segment was stored, bytes, set by the endpoint.
    /// `usize::MAX`: no limit below the budget.
    memory_limit: usize,
    /// The limit bounds the window too.
    limits_window: bool,
    /// The budget follows the window: the configuration sets none.
    derived_budget: bool,
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
    /// Message mode: messages without bytes are delivered, not dropped.
    empty_messages: bool,
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
            derived_budget: config.recv_memory.is_none(),
            charged: 0,
            out_of_order: VecDeque::new(),
            out_of_order_count: 0,
            delivery: DeliveryBuffer::default(),
            reassembly: MessageReassembly::default(),
            unread: 0,
            messages: config.mode == Mode::Message,
            empty_messages: config.empty_messages,
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
        if self.derived_budget {
            let promised = self.charged + self.advertised() as usize * SEGMENT_CHARGE;
            self.budget = (usize::from(self.window) * SEGMENT_CHARGE).max(promised);
            self.shrink_repair_memory();
        }
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
            (self.window.max(segments), self.budget.max(memory.min(self.message_limits().1)))
        } else {
            (self.window, self.budget)
        }
    }

    /// Most fragments of a message, and most memory of one, bytes. The largest advertised window
    /// sets both: the sender has no other limit.
    fn message_limits(&self) -> (u16, usize) {
        let promised = usize::from(self.largest_advertised) * SEGMENT_CHARGE;
        let promised = if self.derived_budget { promised } else { 0 };
        (self.window.max(self.largest_advertised), self.budget.max(promised))
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
            .push((frg, charge), payload, limits)
            .inspect_err(|_| self.release_charge(1, charge))?;
        let Some(message) = message else { return Ok(()) };
        if message.data.is_empty() && !self.empty_messages {
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
        let of_message = self.message_limits().1;
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
