//! Repair symbols at the receiver: recovered segments and their ACKs.

use super::Receiver;
use crate::config::SEGMENT_COST;
use crate::core::clock::Micros;
use crate::core::recv::pending_acks::Ack;
use crate::core::redundancy::rlc::{Inserted, RecoveredSegment, RepairSymbol, Source};
use crate::core::seq::Sn;

impl Receiver {
    /// Bytes of the budget that data leaves free; none while memory is limited.
    pub(super) fn free(&self) -> usize {
        if self.is_limited() { 0 } else { self.budget.saturating_sub(self.charged) }
    }

    /// Frees repair memory beyond the free budget.
    #[inline]
    pub(super) fn shrink_repair_memory(&mut self) {
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
    pub(super) fn may_release_repair(&self) -> bool {
        let repair = self.repair.as_ref();
        repair.is_some_and(|repair| !repair.has_acks()) && self.out_of_order_count == 0
    }

    /// Number of segments from RCV.NXT on that a repair symbol may cover.
    pub(crate) fn acceptable_window(&self) -> i32 {
        i32::from(self.advertisable_window())
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
        source: (Sn, u8, &[u8]),
    ) -> Vec<RecoveredSegment> {
        let free = self.free();
        let Some(repair) = &mut self.repair else { return Vec::new() };
        if repair.has_expired(now) {
            self.repair = None;
            return Vec::new();
        }
        repair.on_source(source, free)
    }

    /// Whether a recovered segment of `len` bytes fits the messages before and after it, as far as
    /// they are known. Without a cipher repair symbols can be forged, and a segment that fits no
    /// message would end the connection. In message mode a segment behind a gap is left to
    /// retransmission: nothing known precedes it.
    pub(crate) fn continues_message(&self, (sn, frg, len): (Sn, u8, usize)) -> bool {
        let Some(offset) = sn.offset_from(self.nxt).filter(|_| self.messages) else { return true };
        let stored = |offset: usize| self.out_of_order.get(offset).and_then(Option::as_ref);
        let continues = |before: u8, frg: u8| before == 0 || before - 1 == frg;
        let offset = offset as usize;
        let after_previous = match offset.checked_sub(1) {
            None => {
                let limits = self.message_limits();
                self.reassembly.admits((frg, len + SEGMENT_COST), limits)
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
