//! The queue of a recorded bottleneck, and records of queueing delay.

use std::collections::VecDeque;

use crate::testkit::trace::{Cursor, Departure, Trace};

/// Capacity of a queue: datagrams, or bytes if that is 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) datagrams: usize,
    pub(super) bytes: u64,
}

/// A drop-tail queue in front of a recorded bottleneck.
#[derive(Clone, Debug)]
pub(super) struct TraceQueue {
    cursor: Cursor,
    /// Departure times in µs and lengths of queued datagrams, and the sum of the lengths.
    departures: VecDeque<(u64, usize)>,
    bytes: u64,
}

impl TraceQueue {
    pub(super) fn new(trace: Trace) -> Self {
        Self { cursor: Cursor::new(trace), departures: VecDeque::new(), bytes: 0 }
    }

    /// Queueing delay in µs left for the last datagram at `now`.
    pub(super) fn wait(&self, now: u64) -> u64 {
        self.departures.back().map_or(0, |(at, _)| at.saturating_sub(now))
    }

    /// When a datagram that arrives at `now` leaves (µs, never decreasing); `None` if the queue is full.
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

/// Queueing delays from arrival until the first bit leaves, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    pub count: usize,
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
    pub max: u64,
}

/// The delays behind [`Waits`].
#[derive(Clone, Debug, Default)]
pub(super) struct WaitRecord {
    waits: Vec<u32>,
    from: u64,
}

impl WaitRecord {
    /// Forgets all delays and records arrivals at `from` µs or later.
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
        // The percentile by the nearest-rank method.
        let part = |percent: usize| {
            let rank = (waits.len() * percent).div_ceil(100);
            waits.get(rank.saturating_sub(1)).copied().unwrap_or_default().into()
        };
        Waits { count: waits.len(), p50: part(50), p95: part(95), p99: part(99), max: part(100) }
    }
}
