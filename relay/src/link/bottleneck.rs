//! The slow link at the beginning: when packets leave it, and how long they wait for that.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use kcpx::testkit::trace::Cursor;
use serde::Serialize;

use super::conditions::Bottleneck;
use super::replay::RateReplay;
use super::steps::Phases;
use super::{as_millis, micros_since};

/// An hour: in percentiles, longer waits count as this.
const LONGEST_NANOS: u64 = 3_600_000_000_000;

/// The queue of a bottleneck. Without one, packets leave when they come.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// When the packets in it will have left it.
    departures: VecDeque<Duration>,
    delays: QueueDelays,
    recorded: Option<Recorded>,
}

/// A recorded bottleneck at work.
#[derive(Debug)]
struct Recorded {
    cursor: Cursor,
    queue: usize,
}

impl Queue {
    pub(super) fn new(rate: Option<&RateReplay>) -> Self {
        let recorded = rate.map(|rate| Recorded { cursor: rate.cursor(), queue: rate.queue });
        Self { recorded, ..Self::default() }
    }

    /// When a packet sent at `now` has left the bottleneck; `None` when its queue is full. The rate
    /// of later steps is known, so this is final.
    pub(super) fn depart(
        &mut self,
        now: Duration,
        len: usize,
        phases: &Phases,
    ) -> Option<Duration> {
        while self.departures.front().is_some_and(|departure| *departure <= now) {
            self.departures.pop_front();
        }
        let bottleneck = phases.conditions().bottleneck;
        let recorded = self.recorded.as_ref().map(|recorded| recorded.queue);
        let most = recorded.or_else(|| Some(bottleneck?.queue));
        if most.is_some_and(|most| self.departures.len() >= most) {
            return None;
        }
        let (begin, departure) = if let Some(Recorded { cursor, .. }) = &mut self.recorded {
            let sent = cursor.send(micros_since(phases.start(), now), len);
            let at = |micros| phases.start() + Duration::from_micros(micros);
            (at(sent.begins), at(sent.ends))
        } else {
            let begin = self.departures.back().copied().unwrap_or(now);
            (begin, sent_by(begin, len, phases))
        };
        if most.is_some() {
            self.delays.record(begin - now);
        }
        if departure > now {
            self.departures.push_back(departure);
        }
        Some(departure)
    }

    pub(super) fn delays(&self) -> &QueueDelays {
        &self.delays
    }
}

/// When a packet is sent whose first bit is sent at `begin`.
fn sent_by(begin: Duration, len: usize, phases: &Phases) -> Duration {
    let mut begin = begin;
    let mut bits = len as f64 * 8.0;
    for (bottleneck, end) in phases.bottlenecks_from(begin) {
        let Some(Bottleneck { rate_mbit, .. }) = bottleneck else { return begin };
        let rate = rate_mbit * 1e6;
        let departure = begin + Duration::from_secs_f64(bits / rate);
        match end {
            Some(end) if end < departure => {
                // Departures are rounded to nanoseconds, so nothing may be left.
                bits = (bits - (end - begin).as_secs_f64() * rate).max(0.0);
                begin = end;
            }
            _ => return departure,
        }
    }
    begin
}

/// How long packets waited in the queue of the bottleneck until the first of their bits was sent.
/// Dropped packets do not count, nor do packets sent while there was no bottleneck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueDelay {
    /// The median, rounded up by less than 0.1 %.
    #[serde(rename = "p50_ms", serialize_with = "as_millis")]
    pub p50: Duration,
    /// The longest wait of 95 % of the packets, rounded up by less than 0.1 %.
    #[serde(rename = "p95_ms", serialize_with = "as_millis")]
    pub p95: Duration,
    /// The longest wait of 99 % of the packets, rounded up by less than 0.1 %.
    #[serde(rename = "p99_ms", serialize_with = "as_millis")]
    pub p99: Duration,
    /// The longest of all.
    #[serde(rename = "max_ms", serialize_with = "as_millis")]
    pub max: Duration,
}

/// The record behind a [`QueueDelay`]. Clones share it, for another thread to read.
#[derive(Clone, Debug)]
pub(crate) struct QueueDelays(Arc<Mutex<Record>>);

#[derive(Debug)]
struct Record {
    nanos: Histogram<u64>,
    max: Duration,
}

impl Default for QueueDelays {
    fn default() -> Self {
        // It rejects more than 5 digits, and bounds of which the higher is not twice the lower.
        let nanos = Histogram::new_with_bounds(1, LONGEST_NANOS, 3).expect("3 digits, and bounds");
        Self(Arc::new(Mutex::new(Record { nanos, max: Duration::ZERO })))
    }
}

impl QueueDelays {
    fn record(&self, delay: Duration) {
        let mut record = self.lock();
        record.nanos.saturating_record(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX));
        record.max = record.max.max(delay);
    }

    /// `None` when no packet came to a bottleneck.
    pub(crate) fn summary(&self) -> Option<QueueDelay> {
        let record = self.lock();
        let max = record.max;
        let quantile = |part| Duration::from_nanos(record.nanos.value_at_quantile(part)).min(max);
        (!record.nanos.is_empty()).then(|| QueueDelay {
            p50: quantile(0.5),
            p95: quantile(0.95),
            p99: quantile(0.99),
            max,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use crate::link::tests::{MS, numbered, pass};
    use crate::link::{Conditions, Link};

    use super::*;

    /// 100 bytes at 0.8 Mbit/s take 1 ms.
    fn slow(queue: usize) -> Link {
        let bottleneck = Some(Bottleneck { rate_mbit: 0.8, queue });
        Link::new(Conditions { bottleneck, ..Conditions::default() }, 5)
    }

    #[test]
    fn bottleneck_spaces_packets_and_drops_the_tail() {
        let mut link = slow(10);
        let burst = pass(&mut link, 30, Duration::ZERO);
        let expected: Vec<_> = (0..10).map(|number| (MS * (26 + number), number)).collect();
        assert_eq!(burst, expected);
        assert_eq!(link.counts().queue_dropped, 20);

        // At its own rate nothing waits; at twice the rate every second packet finds a full queue.
        assert_eq!(pass(&mut slow(10), 100, MS).len(), 100);
        assert_eq!(pass(&mut slow(10), 1_000, MS / 2).len(), 509);
    }

    /// One packet waits 0 ms, the next 1 ms, and so on.
    #[test]
    fn queue_delay_has_the_percentiles_of_those_that_were_not_dropped() {
        // Three digits are kept.
        let is_close = |measured: Duration, expected: Duration| {
            measured >= expected && measured <= expected + expected / 1_000
        };
        // The 50th of 0, 1, ... 99 ms is 49 ms and the 99th is 98 ms; the 5th of 10 is 4 ms.
        for (queue, p50, p95, p99, max) in
            [(100, 49, 94, 98, 99), (10, 4, 9, 9, 9), (1, 0, 0, 0, 0)]
        {
            let mut link = slow(queue);
            pass(&mut link, 100, Duration::ZERO);
            let counts = link.counts();
            assert_eq!(counts.queue_dropped, 100 - queue as u64);
            let delay = counts.queue_delay.expect("packets that came to the bottleneck");
            assert!(is_close(delay.p50, MS * p50), "{delay:?}");
            assert!(is_close(delay.p95, MS * p95), "{delay:?}");
            assert!(is_close(delay.p99, MS * p99), "{delay:?}");
            assert_eq!(delay.max, MS * max);
        }
    }

    #[test]
    fn queue_delay_counts_lost_packets_but_none_without_a_bottleneck() {
        let mut link = Link::new(Conditions::default(), 1);
        link.push(Duration::ZERO, &numbered(0));
        assert_eq!(link.counts().queue_delay, None);
        assert_eq!(slow(10).counts().queue_delay, None, "no packet yet");

        // A packet lost behind the bottleneck has waited like the others.
        let bottleneck = Some(Bottleneck { rate_mbit: 0.8, queue: 10 });
        let conditions = Conditions { bottleneck, loss: 100.0, ..Conditions::default() };
        let mut link = Link::new(conditions, 1);
        pass(&mut link, 10, Duration::ZERO);
        assert_eq!(link.counts().lost, 10);
        assert_eq!(link.counts().queue_delay.map(|delay| delay.max), Some(MS * 9));
    }

    #[test]
    fn queue_delay_is_in_milliseconds_in_a_report() {
        let mut link = slow(3);
        pass(&mut link, 3, Duration::ZERO);
        let report = serde_json::to_value(link.counts()).expect("JSON");
        assert_eq!(report["queue_delay"]["max_ms"], 2.0);
        let p50 = report["queue_delay"]["p50_ms"].as_f64().expect("a number");
        assert!((1.0..=1.001).contains(&p50), "{p50}");
    }
}
