//! The queue of a recorded bottleneck, and how long datagrams wait in a queue.

use std::collections::VecDeque;

use crate::testkit::trace::{Cursor, Departure, Trace};

/// What a queue holds at most: datagrams, or bytes where that is 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) datagrams: usize,
    pub(super) bytes: u64,
}

/// A queue that drops at its tail, in front of a recorded bottleneck.
#[derive(Clone, Debug)]
pub(super) struct TraceQueue {
    cursor: Cursor,
    /// When the datagrams in it will have left, in µs, with their lengths, and the sum of these.
    departures: VecDeque<(u64, usize)>,
    bytes: u64,
}

impl TraceQueue {
    pub(super) fn new(trace: Trace) -> Self {
        Self { cursor: Cursor::new(trace), departures: VecDeque::new(), bytes: 0 }
    }

    /// How long the last datagram in it still waits at `now`, in µs.
    pub(super) fn wait(&self, now: u64) -> u64 {
        self.departures.back().map_or(0, |(at, _)| at.saturating_sub(now))
    }

    /// When a datagram leaves that comes at `now` (µs, never decreasing); `None` for a full queue.
    pub(super) fn send(&mut self, now: u64, len: usize, limit: Limit) -> Option<Departure> {
        while let Some((_, len)) = self.departures.front().filter(|(at, _)| *at <= now) {
            self.bytes -= *len as u64;
            self.departures.pop_front();
        }
        let full = match limit.datagrams {
            0 => self.bytes > limit.bytes,
            most => self.departures.len() >= most,
        };
        if full {
            return None;
        }
        let departure = self.cursor.send(now, len);
        self.departures.push_back((departure.ends, len));
        self.bytes += len as u64;
        Some(departure)
    }
}

/// How long datagrams waited in the queue, from arrival until their first bit left, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    pub count: usize,
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
    pub max: u64,
}

/// What [`Waits`] is a summary of.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitRecord {
    waits: Vec<u32>,
    from: u64,
}

impl WaitRecord {
    /// Forgets all, and records what arrives from `from` on, in µs.
    pub(super) fn restart(&mut self, from: u64) {
        self.waits.clear();
        self.from = from;
    }

    pub(super) fn record(&mut self, now: u64, wait: u64) {
        if now >= self.from {
            self.waits.push(u32::try_from(wait).unwrap_or(u32::MAX));
        }
    }

    pub(super) fn summary(&self) -> Waits {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        // The least wait that so many percent of all do not exceed.
        let part = |percent: usize| {
            let rank = (waits.len() * percent).div_ceil(100);
            waits.get(rank.saturating_sub(1)).copied().unwrap_or_default().into()
        };
        Waits { count: waits.len(), p50: part(50), p95: part(95), p99: part(99), max: part(100) }
    }
}
