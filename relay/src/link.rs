//! One direction of a path: which packets are lost, and when the others arrive.
//!
//! It owns the packets that are under way. Time is an argument, counted from any fixed moment, and
//! the random numbers come from a seed, so the same packets at the same times have the same fate
//! whatever carries them. It uses neither clocks nor devices.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use anyhow::ensure;
use chacha20::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};
use serde::Serialize;

/// Bytes under way that one direction holds at most. A relay that gets more than that loses
/// packets which the conditions did not ask to lose, and counts them as such.
const MEMORY: usize = 128 << 20;
/// Beyond this a packet would rather be lost, and times stay far from overflow.
const LONGEST: Duration = Duration::from_secs(10);
/// What comes out later than this after it was due counts as late.
const LATE: Duration = Duration::from_millis(1);

/// What happens to packets on their way in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Conditions {
    /// What each packet needs at least. At most 10 s together with the jitter. Default 25 ms.
    #[serde(rename = "delay_ms", serialize_with = "as_millis")]
    pub delay: Duration,
    /// What a packet needs more at most. Each draws its own, so packets overtake each other.
    /// Default 0.
    #[serde(rename = "jitter_ms", serialize_with = "as_millis")]
    pub jitter: Duration,
    /// Percent of the packets that never arrive. Default 0.
    #[serde(rename = "loss_percent")]
    pub loss: f64,
    /// Percent of the packets that are held back by a further quarter of the delay, and at least
    /// 1 ms, so that later ones overtake them. Default 0.
    #[serde(rename = "reorder_percent")]
    pub reorder: f64,
    /// Percent of the packets that arrive twice, unless lost. Default 0.
    #[serde(rename = "duplicate_percent")]
    pub duplicate: f64,
    /// A slow link at the beginning. Default `None`: packets take no time to send.
    pub bottleneck: Option<Bottleneck>,
}

/// A link of a fixed rate with a queue that drops at its tail.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bottleneck {
    /// 10^6 bits per second, above 0. Whole IP packets count.
    pub rate_mbit: f64,
    /// Packets that it holds at most, with the one being sent; at least 1.
    pub queue: usize,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(25),
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            duplicate: 0.0,
            bottleneck: None,
        }
    }
}

impl Conditions {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field that is outside its range.
    pub fn validate(&self) -> anyhow::Result<()> {
        ensure!(
            self.delay <= LONGEST && self.jitter <= LONGEST - self.delay,
            "delay and jitter are {:?} and {:?}, allowed are {LONGEST:?} together",
            self.delay,
            self.jitter
        );
        for (field, percent) in
            [("loss", self.loss), ("reorder", self.reorder), ("duplicate", self.duplicate)]
        {
            ensure!(
                (0.0..=100.0).contains(&percent),
                "{field} is {percent} %, allowed are 0 to 100"
            );
        }
        if let Some(Bottleneck { rate_mbit, queue }) = self.bottleneck {
            ensure!(
                (0.001..=1e6).contains(&rate_mbit),
                "rate is {rate_mbit} Mbit/s, allowed are 0.001 to 1000000"
            );
            ensure!(queue > 0, "a queue of no packet lets none pass");
        }
        Ok(())
    }
}

/// What one direction has done so far. A snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets sent into it.
    pub packets: u64,
    /// Their bytes, IP headers included.
    pub bytes: u64,
    /// Packets that the bottleneck's queue was full for.
    pub queue_dropped: u64,
    /// Packets lost on purpose.
    pub lost: u64,
    /// Packets held back so that later ones overtake them.
    pub reordered: u64,
    /// Packets that arrived once more.
    pub duplicated: u64,
    /// Packets that came out, second copies included.
    pub delivered: u64,
    /// Their bytes, IP headers included.
    pub delivered_bytes: u64,
    /// Packets that came out more than a millisecond after they were due, since the relay did not
    /// get the processor in time. Many of them come in bursts that the conditions did not ask for.
    pub late: u64,
    /// Packets lost since the relay was out of memory or could not send them. Not what was asked for:
    /// a measurement with any of these does not count.
    pub relay_drops: u64,
}

/// One direction.
#[derive(Debug)]
pub struct Link {
    conditions: Conditions,
    rng: ChaCha8Rng,
    /// When the packets in the bottleneck's queue will have left it.
    departures: VecDeque<Duration>,
    flying: BinaryHeap<Reverse<InFlight>>,
    free: usize,
    sequence: u64,
    counts: Counts,
}

/// A packet on its way: the first to arrive is the smallest, among equals the first sent.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InFlight {
    due: Duration,
    sequence: u64,
    packet: Vec<u8>,
}

impl Link {
    /// Nothing under way yet.
    #[must_use]
    pub fn new(conditions: Conditions, seed: u64) -> Self {
        Self {
            conditions,
            rng: ChaCha8Rng::seed_from_u64(seed),
            departures: VecDeque::new(),
            flying: BinaryHeap::new(),
            free: MEMORY,
            sequence: 0,
            counts: Counts::default(),
        }
    }

    /// Sends an IP packet into it at `now`, which never decreases.
    pub fn push(&mut self, now: Duration, packet: &[u8]) {
        self.counts.packets += 1;
        self.counts.bytes += packet.len() as u64;
        // Always the same draws, so that the fate of a packet depends on its number alone.
        let lost = self.chance(self.conditions.loss);
        let late = self.part(self.conditions.jitter);
        let reordered = self.chance(self.conditions.reorder);
        let twice = self.chance(self.conditions.duplicate);

        let Some(departure) = self.depart(now, packet.len()) else {
            self.counts.queue_dropped += 1;
            return;
        };
        if lost {
            self.counts.lost += 1;
            return;
        }
        let mut due = departure + self.conditions.delay + late;
        if reordered {
            self.counts.reordered += 1;
            due += (self.conditions.delay / 4).max(Duration::from_millis(1));
        }
        self.fly(due, packet);
        if twice {
            self.counts.duplicated += 1;
            self.fly(due, packet);
        }
    }

    /// Takes out the next packet that has arrived by `now`.
    pub fn pop_due(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.next_due()? > now {
            return None;
        }
        let Reverse(InFlight { due, packet, .. }) = self.flying.pop()?;
        self.counts.late += u64::from(now - due > LATE);
        self.free += packet.len();
        self.counts.delivered += 1;
        self.counts.delivered_bytes += packet.len() as u64;
        Some(packet)
    }

    /// When the next packet arrives.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.flying.peek().map(|Reverse(flight)| flight.due)
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Says that a packet of `len` bytes which came out could not be handed on.
    pub fn refused(&mut self, len: usize) {
        self.counts.delivered -= 1;
        self.counts.delivered_bytes -= len as u64;
        self.counts.relay_drops += 1;
    }

    /// When a packet sent at `now` has left the bottleneck; `None` when its queue is full.
    fn depart(&mut self, now: Duration, len: usize) -> Option<Duration> {
        let Some(Bottleneck { rate_mbit, queue }) = self.conditions.bottleneck else {
            return Some(now);
        };
        while self.departures.front().is_some_and(|departure| *departure <= now) {
            self.departures.pop_front();
        }
        if self.departures.len() >= queue {
            return None;
        }
        let begin = self.departures.back().copied().unwrap_or(now);
        let departure = begin + Duration::from_secs_f64(len as f64 * 8.0 / (rate_mbit * 1e6));
        self.departures.push_back(departure);
        Some(departure)
    }

    fn fly(&mut self, due: Duration, packet: &[u8]) {
        let Some(free) = self.free.checked_sub(packet.len()) else {
            self.counts.relay_drops += 1;
            return;
        };
        self.free = free;
        self.sequence += 1;
        let (sequence, packet) = (self.sequence, packet.to_vec());
        self.flying.push(Reverse(InFlight { due, sequence, packet }));
    }

    fn chance(&mut self, percent: f64) -> bool {
        // 53 bits: every one of these is exact, and all are below 1.
        let drawn = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < percent / 100.0
    }

    /// A random part of `whole`.
    fn part(&mut self, whole: Duration) -> Duration {
        whole.mul_f64((self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64)
    }
}

fn as_millis<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests;
