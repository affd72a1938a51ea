//! Simulation plans drawn from a seed: configurations, paths, applications and faults. A plan prints as one
//! line, and its seed reproduces it.

use std::fmt;
use std::num::{NonZeroU8, NonZeroU64};
use std::time::Duration;

use crate::config::{
    AckPolicy, CongestionControl, KcpConfig, KeepaliveInterval, Mode, SEGMENT_HEADER, Timing,
    WritePolicy,
};
use crate::core::seq::Sn;
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;

pub(crate) const MILLIS: u64 = 1_000;
pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const HOUR: u64 = 3_600 * SECOND;
pub(crate) const DAY: u64 = 24 * HOUR;

/// Writes of one side's application.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) bytes: u64,
    pub(crate) largest_write: u64,
    /// Longest pause between two writes, microseconds.
    pub(crate) pause: u64,
    /// If not zero, each write has `largest_write` bytes and is due this long after the previous one,
    /// microseconds, whatever `pause` says.
    pub(crate) every: u64,
    /// Message mode: `send_message` with fragments instead of one message per segment.
    pub(crate) whole: bool,
}

/// Reads of one side's application. Times in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// Chunks per read; zero reads everything as it arrives.
    pub(crate) chunks: u32,
    pub(crate) every: u64,
    /// Start and end of a pause of the reader.
    pub(crate) pause: (u64, u64),
}

/// Plan of one side. Times in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct SidePlan {
    pub(crate) config: KcpConfig,
    pub(crate) ts_epoch: u32,
    /// The path from this side to the other.
    pub(crate) link: LinkConfig,
    pub(crate) traffic: Traffic,
    pub(crate) reading: Reading,
    /// Limit of the receive memory, bytes, as an endpoint that is short of memory sets it.
    pub(crate) memory: Option<usize>,
    /// The host wakes only at multiples of this; datagrams in between form one batch.
    pub(crate) tick: u64,
    /// Start and end of a suspension of the host.
    pub(crate) freeze: (u64, u64),
    /// Interval of the application's pings; 0: none.
    pub(crate) probe_every: u64,
    /// Repair symbols and bundled copies, bytes per million bytes of data.
    pub(crate) repair: u32,
    pub(crate) bundling: u32,
    /// Interval of changes to the settings of an alternative; 0: none.
    pub(crate) change_every: u64,
    pub(crate) alternatives: Vec<KcpConfig>,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) set: &'static str,
    pub(crate) seed: u64,
    pub(crate) start: Sn,
    pub(crate) sides: [SidePlan; 2],
    /// When the network heals, microseconds.
    pub(crate) chaos: u64,
    /// Percent of the theoretical bound that the completion may take.
    pub(crate) within: u64,
}

/// A family of plans: how it changes a plain one. The name is part of the seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) shape: fn(&mut Plan, &mut Rng),
}

/// Most data segments of one direction, to bound the run time of a seed.
const MAX_SEGMENTS: u64 = 1_500;

impl Plan {
    /// A short transfer over a path without faults, the base of all plans.
    pub(crate) fn plain(set: &'static str) -> Self {
        let mut plan = Self {
            set,
            seed: 0,
            start: Sn(0),
            sides: [SidePlan::default(), SidePlan::default()],
            chaos: 0,
            within: 100,
        };
        for side in &mut plan.sides {
            let config = &mut side.config;
            config.keepalive = KeepaliveInterval::Never;
            (config.dead_peer_timeout, config.idle_timeout) = (None, None);
            side.traffic.largest_write = 16 * 1024;
            side.link = LinkConfig::delay(20 * MILLIS);
        }
        plan
    }

    pub(crate) fn draw(set: &Set, seed: u64) -> Self {
        let name = set.name.bytes().fold(0, |hash: u64, b| hash.wrapping_mul(31) + u64::from(b));
        let mut rng = Rng::keyed(seed, name);
        let mut plan = Self { seed, ..Self::plain(set.name) };
        plan.start = draw_start(&mut rng);
        plan.chaos = rng.spread(SECOND, 60 * SECOND);
        let mode = if rng.chance(250_000) { Mode::Message } else { Mode::Stream };
        for side in &mut plan.sides {
            side.config = draw_config(&mut rng, mode);
            side.memory = rng.chance(150_000).then(|| rng.spread(1_540, 1_000_000) as usize);
            side.ts_epoch = draw_start(&mut rng).0;
            side.link = LinkConfig::delay(rng.spread(0, 300 * MILLIS));
            side.traffic = Traffic {
                bytes: if rng.chance(100_000) { 0 } else { rng.spread(1, 256 * 1024) },
                largest_write: rng.spread(1, 256 * 1024),
                pause: if rng.chance(500_000) { 0 } else { rng.spread(1, 200 * MILLIS) },
                every: 0,
                whole: rng.chance(500_000),
            };
            side.tick = rng.pick(&[0, 0, 0, MILLIS, 10 * MILLIS, 50 * MILLIS]);
            side.probe_every = rng.pick(&[0, 0, 0, 1_500 * MILLIS]);
        }
        (set.shape)(&mut plan, &mut rng);
        plan.admit_messages();
        plan.limit_work();
        plan
    }

    /// Draws keepalive, a dead-peer timeout beyond the longest outage, repair symbols and bundled copies.
    pub(crate) fn with_extras(mut self) -> Self {
        let mut rng = Rng::keyed(self.seed, 300);
        for side in &mut self.sides {
            if rng.chance(300_000) {
                let interval = Duration::from_micros(rng.spread(SECOND, 60 * SECOND));
                side.config.keepalive = KeepaliveInterval::After(interval);
            }
            let timeout = self.chaos + rng.spread(HOUR, 4 * HOUR);
            if rng.chance(300_000) && timeout < DAY {
                side.config.dead_peer_timeout = Some(Duration::from_micros(timeout));
            }
            for rate in [&mut side.repair, &mut side.bundling] {
                if rng.chance(200_000) {
                    *rate = rng.spread(50_000, 1_000_000) as u32;
                }
            }
        }
        self
    }

    /// Messages of up to 32 fragments are sent before the peer has advertised its window (IKCP_WND_RCV).
    fn admit_messages(&mut self) {
        let whole = [0, 1].map(|i| self.sides[1 - i].traffic.whole);
        for (side, whole) in self.sides.iter_mut().zip(whole) {
            let config = &mut side.config;
            if whole && config.mode == Mode::Message {
                config.recv_window = config.recv_window.max(32);
                side.memory = side.memory.map(|bytes| bytes.max(32 * 1_540));
            }
        }
    }

    /// Bounds the number of segments: small segments, small writes and heavy loss need many for few bytes.
    fn limit_work(&mut self) {
        let q = self.delivery_probability();
        for side in &mut self.sides {
            let mss = u64::from(side.config.mtu) - SEGMENT_HEADER as u64;
            let mut segment = mss;
            let is_uncoalesced = side.config.mode == Mode::Message || side.config.send_window < 4;
            if is_uncoalesced || side.traffic.pause > 0 {
                segment = mss.min(side.traffic.largest_write.div_ceil(2));
            }
            let max = (MAX_SEGMENTS as f64 * q.max(0.1)) as u64;
            side.traffic.bytes = side.traffic.bytes.min(max * segment);
        }
    }

    /// Probability that a segment and its ACK arrive once the network has healed.
    fn delivery_probability(&self) -> f64 {
        self.sides.iter().map(|side| 1.0 - side.link.healed().mean_loss()).product()
    }

    /// Approximate number of segments of a direction.
    fn segments(&self, side: usize) -> u64 {
        let side = self.sides[side].at_worst();
        let mss = u64::from(side.config.mtu) - SEGMENT_HEADER as u64;
        let cuts = side.traffic.bytes / side.traffic.largest_write.div_ceil(2).max(1);
        side.traffic.bytes.div_ceil(mss) + cuts
    }

    /// Longest round trip of the healed network, microseconds, with ticks, intervals and rate limits.
    fn round_trip(&self) -> u64 {
        let once = |side: &SidePlan| {
            let config = &side.at_worst().config;
            let interval = config.timing.interval.as_micros() as u64;
            let limit = config.rate_limit.map_or(0, |rate| 65_536 * SECOND / rate.get());
            side.link.longest_delay() + side.tick + interval + limit
        };
        self.sides.iter().map(once).sum()
    }

    /// Upper bound of the time to completion after the network has healed, microseconds.
    ///
    /// A segment and its ACK arrive with probability `q`. The slowest of `n` segments needs `ln(n * 10^9) /
    /// -ln(1 - q)` transmissions except once in 10^9 runs, each at most `max_retransmit_interval` after the
    /// previous one. In addition `n / window` windows are sent, each waiting for its slowest segment on
    /// average. Bandwidth, rate limits, slow readers and writers' pauses come on top.
    pub(crate) fn bound(&self) -> u64 {
        let q = self.delivery_probability();
        let attempts = |n: f64| if q < 1.0 { n.ln() / -(1.0 - q).ln() } else { 1.0 };
        let mut bound = 0.0;
        let sides = self.sides.each_ref().map(SidePlan::at_worst);
        for (i, side) in sides.iter().enumerate() {
            let (n, peer) = (self.segments(i).max(1), &sides[1 - i]);
            let longest = side.config.max_retransmit_interval.as_micros() as f64;
            let window = u64::from(side.config.send_window.min(peer.config.recv_window));
            let memory = peer.config.recv_budget().min(peer.memory.unwrap_or(usize::MAX)) as u64;
            let window = window.min(memory / 1_540).clamp(1, n);
            // The congestion window stays small under loss.
            let window = match side.config.congestion_control {
                CongestionControl::Reno => window.min(2),
                CongestionControl::Bbr => window.min(4),
                CongestionControl::Off => window,
            };
            let once = (3 * self.round_trip() + 200 * MILLIS) as f64;
            let any_lost = |tries: i32| 1.0 - (1.0 - (1.0 - q).powi(tries)).powi(window as i32);
            let wait = |tries: i32| once * f64::from(1 + tries);
            let per_window: f64 =
                (0..200).map(|k| any_lost(k) * wait(k).min(longest.max(once))).sum();
            let wire = (side.traffic.bytes + n * SEGMENT_HEADER as u64) as f64;
            let rate = side.link.rate.unwrap_or(u64::MAX);
            let rate = rate.min(side.config.rate_limit.map_or(u64::MAX, NonZeroU64::get));
            let reads = u64::from(peer.reading.chunks > 0) * n * peer.reading.every;
            // Before the peer advertised its window 32 segments are sent; those beyond the window need an
            // RTO.
            let out_of_window = n.min(32).saturating_sub(window);
            bound += (attempts(n as f64 * 1e9) + out_of_window as f64) * longest
                + n.div_ceil(window) as f64 * per_window;
            bound += 4.0 * wire / (rate as f64) * SECOND as f64;
            bound += (reads + peer.reading.pause.1 + n * side.traffic.pause) as f64;
            bound += (n * side.traffic.every) as f64;
        }
        (bound as u64 + 60 * SECOND) / 100 * self.within
    }
}

impl SidePlan {
    /// The slowest combination of its configurations.
    fn at_worst(&self) -> Self {
        let mut worst = self.clone();
        let config = &mut worst.config;
        for other in &self.alternatives {
            config.send_window = config.send_window.min(other.send_window);
            config.recv_window = config.recv_window.min(other.recv_window);
            config.mtu = config.mtu.min(other.mtu);
            config.rate_limit = config.rate_limit.into_iter().chain(other.rate_limit).min();
            let either = [config.congestion_control, other.congestion_control];
            for slowest in [CongestionControl::Bbr, CongestionControl::Reno] {
                if either.contains(&slowest) {
                    config.congestion_control = slowest;
                }
            }
            config.timing.interval = config.timing.interval.max(other.timing.interval);
        }
        worst
    }
}

/// A number near 0, 2^31 or 2^32, where 32-bit arithmetic wraps.
fn draw_start(rng: &mut Rng) -> Sn {
    let base: u32 = rng.pick(&[0, 0, 1 << 31, 1 << 31, u32::MAX, u32::MAX]);
    Sn(base.wrapping_sub(rng.spread(0, 1_000) as u32))
}

pub(super) fn draw_config(rng: &mut Rng, mode: Mode) -> KcpConfig {
    let windows = [1, 2, 4, 7, 16, 32, 33, 64, 128, 128, 256, 256, 512, 1_024];
    let presets = [
        (Timing::KCP_DEFAULT, CongestionControl::Reno),
        (Timing::NORMAL, CongestionControl::Bbr),
        (Timing::FAST, CongestionControl::Bbr),
        (Timing::FAST2, CongestionControl::Bbr),
        (Timing::FAST3, CongestionControl::Bbr),
        (Timing::NORMAL, CongestionControl::Off),
        (Timing::FAST2, CongestionControl::Off),
        (Timing::FAST3, CongestionControl::Off),
    ];
    let mut config = Plan::plain("").sides[0].config.clone();
    config.mode = mode;
    config.send_window = rng.pick(&windows);
    config.recv_window = rng.pick(&windows);
    config.mtu = if rng.chance(600_000) { 1_400 } else { rng.spread(25, 1_500) as u16 };
    (config.timing, config.congestion_control) = if rng.chance(700_000) {
        rng.pick(&presets)
    } else {
        let interval = Duration::from_millis(rng.spread(10, 1_000));
        let congestion =
            rng.pick(&[CongestionControl::Reno, CongestionControl::Off, CongestionControl::Bbr]);
        let resend = NonZeroU8::new(rng.below(6) as u8);
        (Timing::new(rng.chance(500_000), interval, resend).unwrap(), congestion)
    };
    config.ack_policy = rng.pick(&[AckPolicy::PerBatch, AckPolicy::Interval, AckPolicy::Immediate]);
    config.write_policy =
        rng.pick(&[WritePolicy::Immediate, WritePolicy::Immediate, WritePolicy::Delayed]);
    if rng.chance(150_000) {
        config.rate_limit = NonZeroU64::new(rng.spread(5_000, 10_000_000));
    }
    if rng.chance(150_000) {
        config.max_retransmit_interval = Duration::from_millis(rng.spread(1_000, 60_000));
    }
    config
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { set, seed, start, chaos, .. } = self;
        write!(f, "set={set} seed={seed} start={} chaos={chaos}", start.0)?;
        for (name, side) in ["a", "b"].into_iter().zip(&self.sides) {
            let (c, t, r) = (&side.config, &side.traffic, &side.reading);
            let preset = &c.timing;
            write!(f, " | {name}: epoch={} mode={:?}", side.ts_epoch, c.mode)?;
            write!(f, " windows={}/{} mtu={}", c.send_window, c.recv_window, c.mtu)?;
            write!(
                f,
                " nodelay={}/{}/{}/{:?} ack={:?} write={:?}",
                u8::from(preset.nodelay),
                preset.interval.as_millis(),
                preset.fast_resend.map_or(0, NonZeroU8::get),
                c.congestion_control,
                c.ack_policy,
                c.write_policy
            )?;
            write!(f, " longest={}", c.max_retransmit_interval.as_millis())?;
            if let KeepaliveInterval::After(interval) = c.keepalive {
                write!(f, " keepalive={}", interval.as_millis())?;
            }
            if let Some(timeout) = c.dead_peer_timeout {
                write!(f, " dead={}", timeout.as_millis())?;
            }
            if side.repair > 0 || side.bundling > 0 {
                write!(f, " repair={} bundling={}", side.repair, side.bundling)?;
            }
            if let Some(rate) = c.rate_limit {
                write!(f, " limit={rate}")?;
            }
            if let Some(memory) = side.memory {
                write!(f, " memory={memory}")?;
            }
            write!(f, " bytes={} write<={} pause<={}", t.bytes, t.largest_write, t.pause)?;
            if t.every > 0 {
                write!(f, " every={}", t.every)?;
            }
            write!(f, " whole={} tick={} probe={}", t.whole, side.tick, side.probe_every)?;
            if r.chunks > 0 {
                write!(f, " read={}/{} not={:?}", r.chunks, r.every, r.pause)?;
            }
            for other in &side.alternatives {
                let (send, recv) = (other.send_window, other.recv_window);
                write!(f, " or windows={send}/{recv} mtu={} {:?}", other.mtu, other.timing)?;
            }
            if side.freeze.1 > 0 {
                write!(f, " freeze={:?}", side.freeze)?;
            }
            write!(f, " {}", side.link)?;
        }
        Ok(())
    }
}
