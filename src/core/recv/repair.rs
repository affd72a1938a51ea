//! Recovery at the receiver: history of delivered segments, equations, and ACKs of recovered
//! segments.
//!
//! Uses only the receive budget that data leaves free.

use crate::core::clock::Micros;
use crate::core::recv::acks::Ack;
use crate::core::redundancy::rlc::{
    Decoder, History, Inserted, RecoveredSegment, RepairSymbol, Source,
};
use crate::core::seq::{Sn, Ts};

/// Most bytes of delivered segments, and most bytes of equations.
const MAX_MEMORY: usize = 96 * 1024;
/// How long delivered segments are kept after the latest repair symbol, microseconds.
const LIFETIME: u64 = 10_000_000;
/// Most waiting ACKs of recovered segments.
const MAX_ACKS: usize = 64;

/// Recovery of one connection. Exists while repair symbols arrive.
#[derive(Debug, Default)]
pub(super) struct RepairReceiver {
    decoder: Decoder,
    history: History,
    /// When the latest repair symbol arrived.
    last_repair: Micros,
    /// ACKs of recovered segments, with the repair key as timestamp.
    acks: Vec<Ack>,
}

impl RepairReceiver {
    /// A repair symbol arrived.
    pub(super) fn on_repair(&mut self, now: Micros) {
        self.last_repair = now;
    }

    /// A datagram arrived.
    pub(super) fn start_datagram(&mut self) {
        self.decoder.start_datagram();
    }

    pub(super) fn has_expired(&self, now: Micros) -> bool {
        now.since(self.last_repair) > LIFETIME && self.acks.is_empty()
    }

    /// Adds a repair symbol. `nxt` is RCV.NXT; data leaves `free` bytes of the budget. `above`
    /// returns the received segment at an offset from `nxt`.
    pub(super) fn insert<'a>(
        &mut self,
        symbol: RepairSymbol<'_>,
        nxt: Sn,
        free: usize,
        above: impl Fn(usize) -> Source<'a>,
    ) -> (Inserted, Vec<RecoveredSegment>) {
        let limit = free.saturating_sub(self.history.memory()).min(MAX_MEMORY);
        let (history, mut recovered) = (&self.history, Vec::new());
        let delivered = |sn: Sn| {
            let known = nxt.offset_from(sn).and_then(|age| history.get(age));
            known.map_or(Source::Forgotten, |(frg, payload)| Source::Received { frg, payload })
        };
        let verdict = self.decoder.insert(
            symbol,
            limit,
            |sn| match sn.offset_from(nxt) {
                Some(offset) => above(offset as usize),
                None => delivered(sn),
            },
            &mut recovered,
        );
        (verdict, recovered)
    }

    /// A segment arrived. Returns the segments that equations recover with it.
    pub(super) fn on_source(
        &mut self,
        sn: Sn,
        frg: u8,
        payload: &[u8],
        free: usize,
    ) -> Vec<RecoveredSegment> {
        let mut recovered = Vec::new();
        if !self.decoder.is_empty() {
            self.decoder.on_source(sn, frg, payload, &mut recovered);
        }
        self.shrink(free);
        recovered
    }

    /// A segment is delivered. Data leaves `free` bytes of the budget.
    pub(super) fn on_delivered(&mut self, frg: u8, payload: &[u8], free: usize) {
        let limit = free.saturating_sub(self.decoder.memory()).min(MAX_MEMORY);
        self.history.push(frg, payload, limit);
    }

    /// Frees memory that data needs: `free` bytes are left.
    pub(super) fn shrink(&mut self, free: usize) {
        self.history.shrink(free.saturating_sub(self.decoder.memory()));
        self.decoder.enforce_limit(free.saturating_sub(self.history.memory()));
    }

    pub(super) fn memory(&self) -> usize {
        self.decoder.memory() + self.history.memory()
    }

    /// A recovered segment was stored: queues its ACK.
    pub(super) fn on_recovered(&mut self, sn: Sn, key: u32) {
        if self.acks.len() < MAX_ACKS {
            self.acks.push(Ack { sn, ts: Ts(key) });
        }
    }

    pub(super) fn has_acks(&self) -> bool {
        !self.acks.is_empty()
    }

    /// Takes the next ACKs to send, at most `max`.
    pub(super) fn take_acks(&mut self, max: usize) -> impl Iterator<Item = Ack> {
        self.acks.drain(..max.min(self.acks.len()))
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn check_invariants(&self) {
        self.decoder.check_invariants();
        self.history.check_invariants();
    }
}
