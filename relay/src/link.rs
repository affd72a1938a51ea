//! One direction of a path: which packets are lost, and when the others arrive.
//!
//! It owns the packets that are under way. Time is an argument, counted from any fixed moment, and
//! the random numbers come from a seed, so the same packets at the same times have the same fate
//! whatever carries them. It uses neither clocks nor devices.

mod bottleneck;
mod conditions;
mod loss;
mod replay;
mod steps;

use std::time::Duration;

use kcpx::testkit::rng::Rng;
use kcpx::testkit::trace::DelayTrace;
use kcpx_netem::InFlight;
use serde::{Serialize, Serializer};

use bottleneck::Queue;
use loss::Loss;
use steps::Phases;

pub use bottleneck::QueueDelay;
pub(crate) use bottleneck::QueueDelays;
pub use conditions::{Bottleneck, Burst, Conditions};
pub use replay::{DelayReplay, RateReplay, Replay};
pub use steps::{Directions, Schedule, Step};

/// Bytes under way that one direction holds at most. A relay that gets more than that loses
/// packets which the conditions did not ask to lose, and counts them as such.
const MEMORY: usize = 128 << 20;
/// A packet that comes out this much after it was due is late.
const LATE: Duration = Duration::from_millis(1);

/// Counters of one direction so far. A snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets sent into it.
    pub packets: u64,
    /// Their bytes, IP headers included.
    pub bytes: u64,
    /// Packets that the bottleneck's queue was full for.
    pub queue_dropped: u64,
    /// How long the others waited in that queue; `None` without any.
    pub queue_delay: Option<QueueDelay>,
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
    /// Packets lost because the relay was out of memory or could not send them. The conditions did not ask
    /// for it: a measurement with any of these does not count.
    pub relay_drops: u64,
}

/// One direction.
#[derive(Debug)]
pub struct Link {
    phases: Phases,
    rng: Rng,
    loss: Loss,
    queue: Queue,
    recorded_delay: Option<DelayTrace>,
    /// The latest arrival by the recorded delay, jitter aside.
    last_recorded: Duration,
    /// The latest time a packet was due, lost or not, without what `reorder` adds.
    last_due: Duration,
    in_flight: InFlight,
    free: usize,
    counts: Counts,
}

impl Link {
    /// Makes an empty one with the conditions of a [`Schedule`], or with [`Conditions`] that never change.
    #[must_use]
    pub fn new(schedule: impl Into<Schedule>, seed: u64) -> Self {
        let schedule = schedule.into();
        let Replay { rate, delay } = &schedule.replay;
        Self {
            queue: Queue::new(rate.as_ref()),
            recorded_delay: delay.as_ref().map(DelayReplay::delays),
            last_recorded: Duration::ZERO,
            phases: Phases::new(schedule),
            rng: Rng::new(seed),
            loss: Loss::new(seed),
            last_due: Duration::ZERO,
            in_flight: InFlight::default(),
            free: MEMORY,
            counts: Counts::default(),
        }
    }

    /// Has the steps of its schedule, and periods of loss, count from `start` rather than from 0.
    /// To be called before the first packet.
    pub fn set_start(&mut self, start: Duration) {
        self.phases.set_start(start);
    }

    /// Sends an IP packet into it at `now`, which never decreases.
    pub fn push(&mut self, now: Duration, packet: &[u8]) {
        self.counts.packets += 1;
        self.counts.bytes += packet.len() as u64;
        self.phases.advance(now);
        let conditions = self.phases.conditions();
        // Always the same draws, so that the fate of a packet depends on its number alone.
        let [loss, jitter, reorder, duplicate] = std::array::from_fn(|_| uniform(&mut self.rng));
        let lost = self.loss.next_packet(loss, conditions);

        let Some(departure) = self.queue.depart(now, packet.len(), &self.phases) else {
            self.counts.queue_dropped += 1;
            return;
        };
        let arrival = match &self.recorded_delay {
            Some(delays) => {
                let delay = delays.at(micros_since(self.phases.start(), departure));
                let arrival = departure + Duration::from_micros(delay);
                // When the delay falls, packets do not overtake those before them.
                self.last_recorded = self.last_recorded.max(arrival);
                self.last_recorded
            }
            None => departure + conditions.delay,
        };
        let mut due = arrival + conditions.jitter.mul_f64(jitter);
        if conditions.ordered {
            due = due.max(self.last_due);
        }
        self.last_due = due.max(self.last_due);
        if lost || self.loss.at(departure, conditions, self.phases.losses()) {
            self.counts.lost += 1;
            return;
        }
        let twice = duplicate < conditions.duplicate / 100.0;
        if reorder < conditions.reorder / 100.0 {
            self.counts.reordered += 1;
            due += ((arrival - departure) / 4).max(Duration::from_millis(1));
        }
        self.deliver_at(due, packet);
        if twice {
            self.counts.duplicated += 1;
            self.deliver_at(due, packet);
        }
    }

    /// Takes out the next packet that has arrived by `now`.
    pub fn pop_due(&mut self, now: Duration) -> Option<Vec<u8>> {
        self.pop_due_within(now, Duration::ZERO)
    }

    /// As [`pop_due`](Self::pop_due), of the packets that arrive within `grain` after `now` as well.
    pub(crate) fn pop_due_within(&mut self, now: Duration, grain: Duration) -> Option<Vec<u8>> {
        let (due, packet) = self.in_flight.pop_due(now + grain)?;
        self.counts.late += u64::from(now.saturating_sub(due) > LATE);
        self.free += packet.len();
        self.counts.delivered += 1;
        self.counts.delivered_bytes += packet.len() as u64;
        Some(packet)
    }

    /// When the next packet arrives.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.in_flight.next_due()
    }

    /// Counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { queue_delay: self.queue.delays().summary(), ..self.counts }
    }

    /// The delays of the queue, for another thread to read.
    pub(crate) fn queue_delays(&self) -> QueueDelays {
        self.queue.delays().clone()
    }

    /// Says that a packet of `len` bytes which came out could not be handed on.
    pub fn refused(&mut self, len: usize) {
        self.counts.delivered -= 1;
        self.counts.delivered_bytes -= len as u64;
        self.counts.relay_drops += 1;
    }

    fn deliver_at(&mut self, due: Duration, packet: &[u8]) {
        let Some(free) = self.free.checked_sub(packet.len()) else {
            self.counts.relay_drops += 1;
            return;
        };
        self.free = free;
        self.in_flight.push(due, packet);
    }
}

impl kcpx_netem::Link for Link {
    type Counts = Counts;

    fn start(&mut self, first_packet: Duration) {
        self.set_start(first_packet);
    }

    fn push(&mut self, now: Duration, packet: &[u8]) {
        Self::push(self, now, packet);
    }

    fn next_due(&self) -> Option<Duration> {
        Self::next_due(self)
    }

    fn pop_due_within(&mut self, now: Duration, grain: Duration) -> Option<Vec<u8>> {
        Self::pop_due_within(self, now, grain)
    }

    fn refused(&mut self, len: usize) {
        Self::refused(self, len);
    }

    /// Without the delays of the queue: their summary costs more.
    fn counts(&self) -> Counts {
        self.counts
    }
}

/// A random number from 0 to below 1. 53 bits: every one of these is exact.
fn uniform(rng: &mut Rng) -> f64 {
    (rng.next() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Whole microseconds from `start` to `time`, the unit of recordings.
fn micros_since(start: Duration, time: Duration) -> u64 {
    u64::try_from(time.saturating_sub(start).as_micros()).unwrap_or(u64::MAX)
}

fn as_millis<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64() * 1e3)
}

fn as_seconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

#[cfg(test)]
mod tests;
