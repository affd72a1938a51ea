//! One-way link model: loss, delay, jitter, reordering, duplication, corruption, rate and MTU.
//!
//! Time is an argument. A datagram's fate depends only on the seed, its rank, its length and the time: no
//! I/O, no clock. So the model serves pairs of state machines, endpoints on simulated sockets, and the
//! cores of other implementations.
//!
//! Units: microseconds, bytes, bytes per second; probabilities in parts per million (ppm).
//!
//! Each datagram draws from its own generator, keyed by its rank, so that runs that differ in one setting
//! stay comparable datagram by datagram.

mod queue;

use std::fmt;

use super::rng::Rng;
use super::trace::{DelayTrace, OPPORTUNITY, Trace};
use queue::{Limit, TraceQueue, WaitRecord};

pub use queue::Waits;

/// Probability 1 in parts per million.
pub const CERTAIN: u32 = 1_000_000;

/// Burst loss, the two-state Markov model of Gilbert and Elliott: in the bad state every datagram
/// is lost, in the good state [`LinkConfig::loss`] applies. Mean burst: `CERTAIN / to_good`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GilbertElliott {
    /// Transition from good to bad, in ppm per datagram.
    pub to_bad: u32,
    /// Transition from bad to good, in ppm per datagram.
    pub to_good: u32,
}

impl GilbertElliott {
    /// Stationary share of the bad state, in ppm.
    fn bad_share(self) -> u32 {
        let (to_bad, to_good) = (u64::from(self.to_bad), u64::from(self.to_good));
        (to_bad * u64::from(CERTAIN) / (to_bad + to_good)) as u32
    }
}

/// Burst loss by time, the same model in continuous time: both states last an exponentially distributed
/// time, independent of traffic, and in the bad state every datagram is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstDurations {
    /// Mean duration of the good state, in µs, at least 1.
    pub good: u64,
    /// Mean duration of the bad state, in µs, at least 1.
    pub bad: u64,
}

impl BurstDurations {
    /// Stationary share of the bad state, in ppm.
    fn bad_share(self) -> u32 {
        (self.bad * u64::from(CERTAIN) / (self.good + self.bad)) as u32
    }
}

/// Link properties. The default is a perfect link: no delay, no loss, no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// One-way propagation delay, in µs.
    pub delay: u64,
    /// Uniform jitter in µs: up to this is added to each datagram's delay.
    pub jitter: u64,
    /// Jitter never reorders.
    pub keep_order: bool,
    /// Uniform (independent) loss, in ppm.
    pub loss: u32,
    /// Burst loss on top of the uniform loss.
    pub burst: Option<GilbertElliott>,
    /// Burst loss by time on top of both.
    pub burst_by_time: Option<BurstDurations>,
    /// Probability in ppm that a datagram is held back, and the longest hold in µs.
    pub reorder: u32,
    pub reorder_by: u64,
    /// Probability in ppm that a datagram is duplicated: one to `copies` duplicates, each up to
    /// `copy_delay` µs later.
    pub duplicate: u32,
    pub copies: u8,
    pub copy_delay: u64,
    /// Probability in ppm that a datagram arrives damaged.
    pub corrupt: u32,
    /// Bottleneck in bytes per second, with a drop-tail queue of `queue` bytes.
    pub rate: Option<u64>,
    pub queue: u64,
    /// The bottleneck is a policer: a token bucket of `queue` bytes that delays nothing.
    pub policer: bool,
    /// A recorded bottleneck instead of `rate`; never a policer.
    pub trace: Option<Trace>,
    /// With `trace`: queue length in datagrams instead of `queue` bytes; 0: `queue` applies.
    pub queue_packets: usize,
    /// A recorded propagation delay instead of `delay`. Datagrams do not overtake earlier ones when the
    /// delay falls.
    pub delay_trace: Option<DelayTrace>,
    /// Path MTU in bytes: larger datagrams disappear silently. 0: no limit.
    pub mtu: usize,
    /// Datagrams above the MTU arrive if their sender allows IP fragmentation.
    pub fragments: bool,
    /// Outages in µs, from and until: nothing passes.
    pub partitions: Vec<(u64, u64)>,
}

impl LinkConfig {
    /// A link with this propagation delay in µs.
    #[must_use]
    pub fn delay(delay: u64) -> Self {
        Self { delay, ..Self::default() }
    }

    /// Probability (0 to 1) that a datagram does not arrive intact, apart from full queues and outages.
    #[must_use]
    pub fn mean_loss(&self) -> f64 {
        let certain = f64::from(CERTAIN);
        let [bad, bad_by_time] = self.bad_shares();
        let kept = |ppm: u32| 1.0 - f64::from(ppm) / certain;
        1.0 - kept(bad) * kept(bad_by_time) * kept(self.loss) * kept(self.corrupt)
    }

    /// Stationary shares of the bad states in ppm: by datagram, by time.
    fn bad_shares(&self) -> [u32; 2] {
        [
            self.burst.map_or(0, GilbertElliott::bad_share),
            self.burst_by_time.map_or(0, BurstDurations::bad_share),
        ]
    }

    /// Longest one-way delay in µs, except for duplicates.
    #[must_use]
    pub fn longest_delay(&self) -> u64 {
        let queue = match (&self.trace, self.queue_packets) {
            (Some(_), packets) if packets > 0 => packets as u64 * OPPORTUNITY,
            _ => self.queue,
        };
        let bytes = queue + 65_535;
        let queueing = match (&self.trace, self.rate) {
            (Some(trace), _) => trace.longest(bytes),
            (None, Some(rate)) if !self.policer => bytes * 1_000_000 / rate,
            (None, _) => 0,
        };
        let held_back = if self.reorder > 0 { self.reorder_by } else { 0 };
        let delay = self.delay_trace.as_ref().map_or(self.delay, DelayTrace::longest);
        delay + self.jitter + held_back + queueing
    }

    /// The same link without outages, with independent loss of at most one half instead of bursts: a slow
    /// sender may not outlive a burst measured in datagrams.
    #[must_use]
    pub fn healed(&self) -> Self {
        let [bad, bad_by_time] = self.bad_shares();
        let loss = self.loss.max(bad).max(bad_by_time).min(CERTAIN / 2);
        let (burst, burst_by_time) = (None, None);
        Self { partitions: Vec::new(), burst, burst_by_time, loss, corrupt: 0, ..self.clone() }
    }
}

impl fmt::Display for LinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.delay_trace {
            Some(delays) => write!(f, "delay={delays:?}")?,
            None => write!(f, "delay={}", self.delay)?,
        }
        if self.jitter > 0 {
            write!(f, " jitter={} keep_order={}", self.jitter, self.keep_order)?;
        }
        if self.loss > 0 {
            write!(f, " loss={}", self.loss)?;
        }
        if let Some(GilbertElliott { to_bad, to_good }) = self.burst {
            write!(f, " burst={to_bad}/{to_good}")?;
        }
        if let Some(BurstDurations { good, bad }) = self.burst_by_time {
            write!(f, " burst_by_time={good}/{bad}")?;
        }
        if self.reorder > 0 {
            write!(f, " reorder={}/{}", self.reorder, self.reorder_by)?;
        }
        if self.duplicate > 0 {
            write!(f, " duplicate={}x{}/{}", self.duplicate, self.copies, self.copy_delay)?;
        }
        if self.corrupt > 0 {
            write!(f, " corrupt={}", self.corrupt)?;
        }
        if let Some(trace) = &self.trace {
            write!(f, " trace={trace:?} queue={}/{}", self.queue, self.queue_packets)?;
        } else if let Some(rate) = self.rate {
            write!(f, " rate={rate} queue={} policer={}", self.queue, self.policer)?;
        }
        if self.mtu > 0 {
            write!(f, " mtu={} fragments={}", self.mtu, self.fragments)?;
        }
        for (from, to) in &self.partitions {
            write!(f, " cut={from}..{to}")?;
        }
        Ok(())
    }
}

/// Corruption of one datagram.
///
/// UDP carries a checksum, so damaged datagrams normally never reach the application: a test of exact
/// delivery must drop everything but [`Damage::None`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    None,
    /// An odd number of bit flips drawn from this seed: at least one bit differs.
    Flip(u64),
    /// Truncated to this many bytes.
    Cut(usize),
    /// This number of bytes from the start is appended once more.
    Join(usize),
}

impl Damage {
    /// Applies the damage in place.
    pub fn apply(self, datagram: &mut Vec<u8>) {
        match self {
            Self::None => {}
            Self::Flip(seed) => {
                let mut rng = Rng::new(seed);
                for _ in 0..=2 * rng.below(4) {
                    let bit = rng.below(datagram.len() as u64 * 8);
                    if let Some(byte) = datagram.get_mut(bit as usize / 8) {
                        *byte ^= 1 << (bit % 8);
                    }
                }
            }
            Self::Cut(len) => datagram.truncate(len),
            Self::Join(len) => datagram.extend_from_within(..len.min(datagram.len())),
        }
    }
}

/// Counters of one link, in datagrams except for `accepted_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    pub offered: u64,
    pub lost: u64,
    pub cut_off: u64,
    pub too_large: u64,
    pub queue_full: u64,
    pub copies: u64,
    pub damaged: u64,
    /// Bytes that passed the bottleneck, including those lost behind it.
    pub accepted_bytes: u64,
}

/// One direction of a path: configuration, seed and state.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    seed: u64,
    /// State of the Gilbert-Elliott model.
    bad: bool,
    bursts: BurstSchedule,
    /// With a rate: when the bottleneck has sent its queue, in µs.
    free_at: u64,
    trace_queue: Option<TraceQueue>,
    waits: WaitRecord,
    /// Latest arrival so far in µs, for `keep_order`.
    latest: u64,
    /// The same without jitter, for `delay_trace`.
    latest_sent: u64,
    stats: LinkStats,
}

impl Link {
    #[must_use]
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        Self {
            trace_queue: config.trace.clone().map(TraceQueue::new),
            config,
            seed,
            bad: false,
            bursts: BurstSchedule::new(seed),
            free_at: 0,
            waits: WaitRecord::default(),
            latest: 0,
            latest_sent: 0,
            stats: LinkStats::default(),
        }
    }

    #[must_use]
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    pub fn set_config(&mut self, config: LinkConfig) {
        if config.trace != self.config.trace {
            self.trace_queue = config.trace.clone().map(TraceQueue::new);
        }
        self.config = config;
    }

    #[must_use]
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Queueing delay in µs of a datagram offered at `now`.
    #[must_use]
    pub fn wait(&self, now: u64) -> u64 {
        if let Some(queue) = &self.trace_queue {
            return queue.wait(now);
        }
        if self.config.policer { 0 } else { self.free_at.saturating_sub(now) }
    }

    /// Queueing delays so far, except of dropped datagrams.
    #[must_use]
    pub fn waits(&self) -> Waits {
        self.waits.summary()
    }

    /// Restarts the record of queueing delays with datagrams offered at `from` µs or later.
    pub fn count_waits_from(&mut self, from: u64) {
        self.waits.restart(from);
    }

    /// Offers a datagram of `len` bytes at `now` (µs, never decreasing). Calls `arrive` with the arrival
    /// time in µs of each copy that passes.
    pub fn send(&mut self, now: u64, len: usize, mut arrive: impl FnMut(u64, Damage)) {
        // Always the same draws in the same order, so that settings do not change later draws.
        let mut rng = Rng::keyed(self.seed, self.stats.offered);
        self.stats.offered += 1;
        let config = &self.config;
        if let Some(GilbertElliott { to_bad, to_good }) = config.burst {
            self.bad = if self.bad { !rng.chance(to_good) } else { rng.chance(to_bad) };
        }
        let bad = config.burst_by_time.is_some_and(|mean| self.bursts.is_bad(mean, now));
        let lost = rng.chance(config.loss) || bad || (self.bad && config.burst.is_some());
        let jitter = rng.below(config.jitter + 1);
        let held_back = rng.chance(config.reorder);
        let extra = rng.below(config.reorder_by + 1);
        let copied = rng.chance(config.duplicate);
        let damage = Self::damage(&mut rng, config.corrupt, len);
        if config.partitions.iter().any(|&(from, to)| (from..to).contains(&now)) {
            self.stats.cut_off += 1;
            return;
        }
        if config.mtu > 0 && len > config.mtu {
            self.stats.too_large += 1;
            return;
        }
        let Some(sent) = self.transmit(now, len) else {
            self.stats.queue_full += 1;
            return;
        };
        self.stats.accepted_bytes += len as u64;
        let config = &self.config;
        let mut at = sent + config.delay;
        if let Some(delays) = &config.delay_trace {
            at = self.latest_sent.max(sent + delays.at(sent));
            self.latest_sent = at;
        }
        at += jitter;
        if lost {
            self.stats.lost += 1;
            return;
        }
        if config.keep_order {
            at = at.max(self.latest);
            self.latest = at;
        }
        // After `latest`, since a datagram held back does not hold back others.
        at += if held_back { extra } else { 0 };
        self.stats.damaged += u64::from(damage != Damage::None);
        arrive(at, damage);
        if copied {
            for _ in 0..rng.range(1, u64::from(config.copies.max(1))) {
                self.stats.copies += 1;
                arrive(at + rng.below(config.copy_delay + 1), Damage::None);
            }
        }
    }

    /// When the last bit leaves the bottleneck, in µs; `None` if the queue is full.
    fn transmit(&mut self, now: u64, len: usize) -> Option<u64> {
        let config = &self.config;
        if let Some(queue) = &mut self.trace_queue {
            let limit = Limit { datagrams: config.queue_packets, bytes: config.queue };
            let departure = queue.send(now, len, limit)?;
            self.waits.record(now, departure.begins - now);
            return Some(departure.ends);
        }
        let Some(rate) = config.rate else { return Some(now) };
        let wait = self.free_at.saturating_sub(now);
        if wait * rate / 1_000_000 > config.queue {
            return None;
        }
        self.free_at = now + wait + (len as u64 * 1_000_000).div_ceil(rate);
        if config.policer {
            return Some(now);
        }
        self.waits.record(now, wait);
        Some(self.free_at)
    }

    fn damage(rng: &mut Rng, corrupt: u32, len: usize) -> Damage {
        let (hit, kind, detail) = (rng.chance(corrupt), rng.below(3), rng.next());
        match (hit, kind) {
            (false, _) => Damage::None,
            (true, 0) => Damage::Flip(detail),
            (true, 1) => Damage::Cut(detail as usize % len.max(1)),
            (true, _) => Damage::Join(1 + detail as usize % len.max(1)),
        }
    }
}

/// States of [`BurstDurations`] over time, from their own generator: a seed's bursts do not depend on
/// traffic. Begins at time 0.
#[derive(Clone, Debug)]
pub struct BurstSchedule {
    rng: Rng,
    bad: bool,
    /// When the state ends, in µs; `None` before the first datagram.
    ends_at: Option<u64>,
}

impl BurstSchedule {
    /// Begins in the good state.
    fn new(seed: u64) -> Self {
        Self { rng: Rng::keyed(seed, u64::MAX), bad: false, ends_at: None }
    }

    /// Begins in the bad state with its stationary share.
    #[must_use]
    pub fn stationary(mut rng: Rng, mean: BurstDurations) -> Self {
        let bad = rng.chance(mean.bad_share());
        // The rest of an exponentially distributed time is distributed like the whole.
        let ends_at = rng.exponential(if bad { mean.bad } else { mean.good });
        Self { rng, bad, ends_at: Some(ends_at) }
    }

    /// Whether the state at `now` is bad (µs, never decreasing).
    pub fn is_bad(&mut self, mean: BurstDurations, now: u64) -> bool {
        let mut ends_at = self.ends_at.unwrap_or_else(|| self.rng.exponential(mean.good));
        while ends_at <= now {
            self.bad = !self.bad;
            let mean = if self.bad { mean.bad } else { mean.good };
            ends_at += self.rng.exponential(mean).max(1);
        }
        self.ends_at = Some(ends_at);
        self.bad
    }
}

#[cfg(test)]
mod tests;
