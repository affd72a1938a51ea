//! BBR model of a path, its bandwidth and shortest RTT, as in BBRv3 (draft-ietf-ccwg-bbr). It differs in what
//! counts as congestive loss: see [`LossBase`], which learns from a [`LossProbe`].
//!
//! Two limits apply: data leaves at the bandwidth times the gain of the [`Phase`], and at most two
//! bandwidth-delay products are in flight.
//!
//! The bandwidth is the rate at which segments are acknowledged. Segments lost at random are sent on top of
//! it, so the pacing rate is the bandwidth divided by the share that arrives.
//!
//! A path with a round trip below 2 ms has no model until it loses something: there the host is mostly the
//! bottleneck, and a model costs a tenth of the sending time (`congestion/mod.rs`).

pub(super) mod filters;
mod phases;
#[cfg(test)]
mod tests;

use std::num::NonZeroU64;

use self::filters::{
    AckAggregation, LossBase, LossProbe, MILLION, MinRtt, RateInterval, RoundStats, Rounds, SECOND,
    Tally, WindowedMax,
};
use crate::core::clock::Micros;
#[cfg(feature = "qlog")]
use crate::core::congestion::controller::ModelState;
use crate::core::congestion::controller::{Acked, Lost, Pacing};
use crate::core::congestion::pacer::MAX_BURST_SEGMENTS;

/// Window before the bandwidth is known, bytes: kcp-go's default, 32 segments of the default MTU.
pub(crate) const INITIAL_WINDOW: u64 = 32 * 1_400;
/// Least window, segments (draft `BBR.MinPipeCwnd`).
const MIN_WINDOW: u64 = 4;
/// Least window of one of several connections, segments: with fewer, no ACK of a later segment would show a
/// loss.
const LEAST_PART: u64 = 2;
/// Burst of a flow that its application does not limit, segments: a queue may hold as few as five.
const MAX_BURST: u64 = 2;
/// Time without an acknowledgement after which a loss by timeout restarts the model, microseconds (persistent
/// congestion, RFC 9002 7.6).
const PERSISTENT_CONGESTION: u64 = 1_000_000;
/// RTT assumed for the window of a configured initial rate before the first sample, microseconds.
const UNKNOWN_RTT: u64 = 250_000;
/// Least pacing rate before the first sample, bytes per second.
const LEAST_INITIAL_RATE: u64 = INITIAL_WINDOW;

/// State of the model (draft section 4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Doubles the rate each round. Entered at the start, and when the model restarts; left when the
    /// bandwidth stops growing, or much is lost.
    Startup,
    /// Drains the queue that Startup built. Also entered when the path has become slower; left when the queue
    /// is gone.
    Drain,
    /// Sends slightly less than is delivered, to drain the queue of Up and to measure random loss. Entered
    /// from Up; left after a round, once the queue is gone.
    Down,
    /// Sends what is delivered. Entered from Drain, Down and ProbeRtt; left after 4 to 8 rounds.
    Cruise,
    /// Fills the path without a queue for one round, before Up.
    Refill,
    /// Sends more than is delivered, to probe for bandwidth. Left when a queue or congestive loss shows, or
    /// the bandwidth stops growing.
    Up,
    /// Measures the shortest RTT with `window` bytes in flight: half of the bandwidth-delay product at the
    /// start of the phase. Entered when the RTT is outdated. Left 200 ms and a round after the path has
    /// drained to that, for Startup if the bandwidth is not found yet.
    ProbeRtt { window: u64, until: Option<Micros> },
}

impl Phase {
    /// The name in the draft.
    #[cfg(feature = "qlog")]
    fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Drain => "drain",
            Self::Down => "probe_bw_down",
            Self::Cruise => "probe_bw_cruise",
            Self::Refill => "probe_bw_refill",
            Self::Up => "probe_bw_up",
            Self::ProbeRtt { .. } => "probe_rtt",
        }
    }

    /// Pacing rate in percent of the bandwidth.
    fn pacing_gain(self) -> u64 {
        match self {
            Self::Startup => 277,
            Self::Drain => 35,
            Self::Down => 90,
            // Below 100, so that a queue of several flows that overestimate shrinks (draft
            // `BBR.PacingMarginPercent`).
            Self::Cruise => 98,
            // Applies to retransmissions too, which the window does not limit.
            Self::ProbeRtt { .. } => 50,
            Self::Refill => 100,
            Self::Up => 125,
        }
    }
}

/// A connection's share of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// No other connection uses the path.
    Whole,
    /// The connection always has data: this part of [`Share::WHOLE`].
    Part(u64),
    /// The application limits the connection. The part it would otherwise have.
    Small(u64),
}

impl Share {
    pub(crate) const WHOLE: u64 = MILLION;

    /// The share of `bytes`.
    pub(crate) fn of(self, bytes: u64) -> u64 {
        match self {
            Self::Whole => bytes,
            Self::Part(part) | Self::Small(part) => {
                let share = u128::from(bytes) * u128::from(part) / u128::from(Self::WHOLE);
                u64::try_from(share).unwrap_or(u64::MAX)
            }
        }
    }
}

/// A limit set by a loss event, kept in case the losses prove spurious.
#[derive(Clone, Copy, Debug)]
struct LossEvent {
    /// Previous limit of the bytes in flight.
    in_flight_hi: u64,
    /// Losses of the event that have not proved spurious.
    lost: u64,
}

/// Values derived from bandwidth, loss and shortest RTT; recomputed when one of them changes.
#[derive(Clone, Copy, Debug, Default)]
struct Pipe {
    /// The inputs: bandwidth, loss per million and shortest RTT.
    of: (u64, u64, Option<u64>),
    /// Sending rate at which the bandwidth arrives, bytes per second.
    sending_rate: u64,
    /// Bandwidth-delay product, bytes; 0 before the first sample.
    bdp: u64,
    /// Rate at which the initial window leaves in a round trip, bytes per second.
    initial_rate: u64,
}

/// Limits of the bytes in flight; recomputed with each acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Bytes, without the extra that a peer's acknowledgement pattern needs.
    bytes: u64,
    /// Upper limit, unless the bandwidth-delay product is larger; `None`: no limit.
    most: Option<u64>,
    /// Least window of a connection that has the path alone.
    least: u64,
    /// Bandwidth-delay product.
    bdp: u64,
    /// No extra for the peers' acknowledgement patterns: the path is to drain.
    is_fixed: bool,
    /// See [`Bbr::update_window`].
    grows: bool,
}

/// BBR model of one path.
#[derive(Clone, Debug)]
pub(crate) struct Bbr {
    /// Length of a full segment, bytes.
    segment: u64,
    /// Connections that use the model.
    flows: u64,
    /// Configured starting rate of Startup, bytes per second; 0: none.
    initial_rate: u64,
    phase: Phase,
    /// Round at the start of `phase`.
    phase_began: u64,
    phase_began_at: Micros,
    rounds: Rounds,
    /// Rounds of Cruise.
    tally: Tally,
    interval: RateInterval,
    /// Rates taken since the bandwidth filter last forgot one.
    unaged: u64,
    /// Acknowledged bytes per second (draft `BBR.max_bw`).
    bandwidth: WindowedMax,
    /// Limit of the bandwidth until Refill: the delivery rate of a round with congestive loss (draft
    /// `BBR.bw_shortterm`); `u64::MAX`: none.
    bandwidth_lo: u64,
    min_rtt: MinRtt,
    loss: LossBase,
    loss_probe: LossProbe,
    pipe: Pipe,
    window: Window,
    /// Bandwidth at its last growth, and rounds since (draft `BBR.full_bw`).
    full_bandwidth: u64,
    full_rounds: u32,
    /// Startup has found the bandwidth (draft `BBR.full_bw_reached`).
    is_filled: bool,
    /// Bytes in flight when Up began.
    up_from: u64,
    /// Length of this Cruise, rounds.
    cruise_rounds: u64,
    /// Bytes in flight above which congestive loss was seen (draft `BBR.inflight_longterm`).
    in_flight_hi: u64,
    event: Option<LossEvent>,
    /// The application limited the latest sample.
    app_limited: bool,
    /// A window was full in the latest round trip.
    window_limited: bool,
    /// In the latest round segments queued and some were lost.
    overflows: bool,
    /// Consecutive rounds with an RTT that showed a queue.
    queued_rounds: u64,
    /// Consecutive rounds that carried less than half of the bandwidth.
    collapsed_rounds: u64,
    /// Whether any segment was lost.
    has_lost: bool,
    /// The path drained in the latest RTT probe.
    is_probe_drained: bool,
    /// When many segments in a row were last lost: the queue may be shorter than a burst of a thin flow.
    burst_lost_at: Option<Micros>,
    delivered: u64,
    /// When data was last acknowledged, or left later with nothing in flight; `None` before the first
    /// departure.
    acked_at: Option<Micros>,
    /// The model before a timeout restarted it, while that may prove spurious.
    before_timeout: Option<Box<Self>>,
}

impl Bbr {
    /// `segment`: length of a full segment with header, bytes.
    pub(crate) fn new(segment: u64) -> Self {
        let mut model = Self {
            segment: segment.max(1),
            flows: 1,
            initial_rate: 0,
            phase: Phase::Startup,
            phase_began: 0,
            phase_began_at: Micros(0),
            rounds: Rounds::default(),
            tally: Tally::default(),
            interval: RateInterval::default(),
            unaged: 0,
            bandwidth: WindowedMax::default(),
            bandwidth_lo: u64::MAX,
            min_rtt: MinRtt::default(),
            loss: LossBase::new(),
            loss_probe: LossProbe::default(),
            pipe: Pipe::default(),
            window: Window::default(),
            full_bandwidth: 0,
            full_rounds: 0,
            is_filled: false,
            up_from: 0,
            cruise_rounds: 0,
            in_flight_hi: u64::MAX / 200,
            event: None,
            app_limited: true,
            window_limited: false,
            overflows: false,
            queued_rounds: 0,
            collapsed_rounds: 0,
            has_lost: false,
            is_probe_drained: false,
            burst_lost_at: None,
            delivered: 0,
            acked_at: None,
            before_timeout: None,
        };
        model.update_window();
        model
    }

    /// Sets the configured rate of the path, bytes per second: Startup sends at least at this rate and keeps
    /// that much in flight. Losses and deliveries end Startup as usual.
    pub(crate) fn set_initial_rate(&mut self, rate: u64) {
        self.initial_rate = rate;
        self.update_window();
    }

    /// Rate at which data may leave unmeasured, bytes per second.
    fn configured_rate(&self) -> u64 {
        if self.phase == Phase::Startup { self.initial_rate } else { 0 }
    }

    pub(crate) fn set_segment(&mut self, segment: u64) {
        self.segment = segment.max(1);
        self.update_window();
    }

    pub(crate) fn set_flows(&mut self, flows: u32) {
        self.flows = u64::from(flows.max(1));
    }

    /// Estimated delivery rate of the path, bytes per second; 0 before the first sample.
    pub(crate) fn delivery_rate(&self) -> u64 {
        self.bandwidth.max()
    }

    /// Shortest RTT, microseconds.
    pub(crate) fn min_rtt(&self) -> Option<u64> {
        self.min_rtt.get()
    }

    /// Whether a queue overflows: more is in flight than the path holds.
    pub(crate) fn overflows(&self) -> bool {
        self.overflows
    }

    /// Many segments in a row were lost.
    pub(crate) fn on_burst_lost(&mut self, now: Micros) {
        self.burst_lost_at = Some(now);
    }

    pub(crate) fn set_window_limited(&mut self, limited: bool) {
        self.window_limited = limited;
    }

    /// When data was last acknowledged, or left with nothing in flight.
    pub(crate) fn acked_at(&self) -> Option<Micros> {
        self.acked_at
    }

    /// Round trips so far.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.count
    }

    /// Whether any segment was lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// The state for the qlog.
    #[cfg(feature = "qlog")]
    pub(crate) fn state(&self) -> ModelState {
        // Without a limit both are `u64::MAX`, or a part of it.
        let known = |limit: u64| if limit < u64::MAX / 200 { limit } else { 0 };
        ModelState {
            phase: self.phase.name(),
            in_flight: None,
            in_flight_hi: known(self.in_flight_hi),
            bandwidth_lo: known(self.bandwidth_lo),
            bdp: self.pipe.bdp,
            loss: self.loss.per_million(),
        }
    }

    /// Bandwidth-delay product, bytes.
    fn bdp(&self) -> u64 {
        self.pipe.bdp
    }

    fn update_pipe(&mut self) {
        let bandwidth = self.bandwidth.max().min(self.bandwidth_lo);
        let of = (bandwidth, self.loss.per_million(), self.min_rtt.calm());
        if of == self.pipe.of {
            return;
        }
        let rtt = self.min_rtt.calm().unwrap_or(0);
        let sending_rate = bandwidth.saturating_mul(MILLION) / (MILLION - self.loss.per_million());
        let bdp = sending_rate.saturating_mul(rtt) / SECOND;
        let initial_rate = INITIAL_WINDOW * SECOND / rtt.clamp(1, SECOND);
        self.pipe = Pipe { of, sending_rate, bdp, initial_rate };
    }

    /// Whether the initial window is the minimum: in Startup, and while the application limits sending. Such
    /// a flow does not wait to retransmit, even where other flows queue.
    fn is_thin(&self) -> bool {
        self.phase == Phase::Startup || (self.app_limited && !self.window_limited)
    }

    /// Least window, bytes.
    fn least_window(&self) -> u64 {
        let least = self.segment * MIN_WINDOW;
        let rtt = self.min_rtt.get().unwrap_or(UNKNOWN_RTT);
        let configured = self.configured_rate().saturating_mul(rtt) / SECOND;
        match self.phase {
            Phase::ProbeRtt { .. } => self.segment,
            _ if self.is_thin() => INITIAL_WINDOW.max(least).max(configured),
            _ => least,
        }
    }

    fn update_window(&mut self) {
        let bdp = self.bdp();
        let (bytes, most) = match self.phase {
            Phase::ProbeRtt { window, .. } => (window, None),
            Phase::Startup => (bdp.saturating_mul(277) / 100, None),
            Phase::Up => (self.up_window().min(bdp.saturating_mul(2)), Some(self.in_flight_hi)),
            _ => (bdp.saturating_mul(2), Some(self.in_flight_hi)),
        };
        let is_fixed = matches!(self.phase, Phase::ProbeRtt { .. });
        // A window that is acknowledged at once, or that holds few segments, must grow to show that the path
        // carries more.
        let grows = self.phase == Phase::Up;
        let least = self.least_window();
        self.window = Window { bytes, most, least, bdp, is_fixed, grows };
    }

    /// Congestive loss in `round`, with `in_flight` bytes in flight: limits the bytes in flight to a part of
    /// that until Up finds room. The limit stays above what delivers the same rate if the losses go on, since
    /// a lost segment counts as in flight for a round trip.
    fn limit_in_flight(&mut self, in_flight: u64, round: &RoundStats) {
        let before = self.in_flight_hi;
        let event = self.event.get_or_insert(LossEvent { in_flight_hi: before, lost: 0 });
        event.lost += round.lost;
        let sent = (round.acked + round.lost).max(1);
        let delivering = self.bdp().saturating_mul(sent) / round.acked.max(sent / 2).max(1);
        self.in_flight_hi = before.min(in_flight / 100 * 85).max(delivering);
    }

    /// No acknowledgement for long: the measurements may belong to another path.
    fn restart_by_timeout(&mut self, now: Micros) {
        let before = self.before_timeout.take().unwrap_or_else(|| Box::new(self.clone()));
        self.restart(now);
        self.before_timeout = Some(before);
    }

    /// The retransmitted segments had arrived: the path, or the return path, only delayed packets and is the
    /// same (RFC 4015, response to a spurious timeout).
    fn undo_restart(&mut self, before: Self) {
        let Self { segment, flows, delivered, acked_at, .. } = *self;
        *self = Self { segment, flows, delivered, acked_at, has_lost: true, ..before };
        self.rounds.stats = RoundStats::default();
        self.update_window();
    }

    /// Discards all measurements, since the path is another one.
    fn restart(&mut self, now: Micros) {
        let Self { flows, delivered, mut rounds, has_lost, .. } = *self;
        rounds.stats = RoundStats::default();
        *self = Self { flows, delivered, rounds, has_lost, ..Self::new(self.segment) };
        (self.phase_began, self.phase_began_at) = (rounds.count, now);
        self.update_window();
    }
}

/// Events and decisions.
impl Bbr {
    pub(crate) fn on_acked(&mut self, acked: &Acked) {
        (self.acked_at, self.delivered) = (Some(acked.now), acked.delivered);
        self.rounds.stats.on_acked(acked);
        if let Some(rtt) = acked.rtt {
            self.rounds.stats.rtt.on_rtt(rtt);
            self.loss_probe.on_rtt(rtt);
            if self.min_rtt.on_sample(acked.now, rtt) {
                // The loss measured so far came from a queue, not from random loss.
                (self.loss, self.loss_probe) = (LossBase::new(), LossProbe::default());
            }
        }
        if let Some(sample) = acked.rate {
            self.app_limited = sample.app_limited;
            self.rounds.stats.sampled |= !sample.app_limited;
            let interval = self.interval.on_sample(acked.now, acked.delivered, &sample);
            let is_long = self.interval.is_long(sample.elapsed) || self.bandwidth.max() == 0;
            let taken = if is_long { Some(sample) } else { interval };
            if let Some(taken) = taken
                && (!taken.app_limited || taken.rate >= self.bandwidth.max())
            {
                self.bandwidth.update(taken.rate);
                self.rounds.stats.intervals += 1;
                self.rounds.stats.rate = self.rounds.stats.rate.max(taken.rate);
            }
            self.update_pipe();
            if let Some(round) =
                self.rounds.on_acked(acked.now, sample.prior_delivered, acked.delivered)
            {
                self.on_round(acked, &round);
                // Little is sent in these phases, which on a path of 10 ms last longer than the filter.
                let low = matches!(self.phase, Phase::Drain | Phase::ProbeRtt { .. });
                // In Startup the model's own queue makes the RTT vary.
                let starts = self.phase == Phase::Startup;
                let spread = if starts { 0 } else { round.rtt.spread() };
                self.interval.on_round(spread, round.rtt.min_rtt().unwrap_or(0));
                self.unaged += round.intervals;
                if round.sampled && !low && self.unaged > 0 {
                    self.unaged = 0;
                    self.bandwidth.next_round();
                    self.bandwidth.update(round.rate.min(sample.rate));
                }
            }
        }
        self.update_pipe();
        self.on_progress(acked);
        self.update_pipe();
        self.update_window();
    }

    /// A segment leaves, for the first time or again, with `in_flight` bytes in flight before it.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Micros, in_flight: u64) {
        if in_flight == 0 || self.acked_at.is_none() {
            // Without data in flight nothing could be acknowledged.
            self.acked_at = Some(now);
        }
        self.loss_probe.on_sent();
    }

    pub(crate) fn on_lost(&mut self, lost: &Lost) {
        self.has_lost = true;
        if let Some(sent_at) = lost.sent_at {
            let stats = &mut self.rounds.stats;
            let of_phase = sent_at >= self.phase_began_at;
            *(if of_phase { &mut stats.lost } else { &mut stats.lost_of_before }) += 1;
            self.loss_probe.on_lost(sent_at);
        }
        if !lost.by_timeout {
            self.before_timeout = None;
        }
        let is_persistent = |at| lost.now.since(at) > PERSISTENT_CONGESTION;
        if lost.by_timeout && self.acked_at.is_some_and(is_persistent) {
            self.restart_by_timeout(lost.now);
        }
    }

    /// A transmission that was found lost has arrived (RFC 3522): undoes the loss.
    pub(crate) fn on_spurious_loss(&mut self) {
        if let Some(before) = self.before_timeout.take() {
            self.undo_restart(*before);
            return;
        }
        let stats = &mut self.rounds.stats;
        let lost = if stats.lost > 0 { &mut stats.lost } else { &mut stats.lost_of_before };
        *lost = lost.saturating_sub(1);
        self.loss_probe.on_spurious_loss();
        let Some(event) = &mut self.event else { return };
        event.lost = event.lost.saturating_sub(1);
        if event.lost == 0 {
            self.in_flight_hi = self.in_flight_hi.max(event.in_flight_hi);
            self.event = None;
            self.update_window();
        }
    }

    /// Bytes that a connection with this share and this peer may have in flight.
    #[inline]
    pub(crate) fn window(&self, share: Share, peer: &AckAggregation) -> u64 {
        let Window { bytes, most, least, bdp, is_fixed, grows } = self.window;
        let rate = share.of(self.delivery_rate());
        let extra = if is_fixed { 0 } else { peer.extra(rate) };
        let mut window = share.of(bytes).saturating_add(extra);
        if let Some(most) = most {
            // Data that waits for its ACK at the peer does not queue.
            let held = peer.held_by_peer(rate);
            window = window.min(share.of(most).max(share.of(bdp).saturating_add(held)));
        }
        let least_part = self.segment * LEAST_PART;
        let least = match share {
            Share::Whole => least,
            // The path is to drain.
            _ if is_fixed => self.segment,
            Share::Part(_) if self.phase == Phase::Startup => share.of(least).max(least_part),
            Share::Part(_) => least_part,
            Share::Small(_) => INITIAL_WINDOW,
        };
        let more = if grows { extra / 4 + share.of(2 * self.segment) } else { 0 };
        window.max(least).saturating_add(more)
    }

    /// Pacing of a connection with this share; `None`: no pacing.
    pub(crate) fn pacing(&self, share: Share) -> Option<Pacing> {
        let configured = share.of(self.configured_rate());
        if self.min_rtt.get().is_none() {
            // At least the initial window per second, since retransmissions wait for the pacer too.
            let rate = if configured > 0 { configured.max(LEAST_INITIAL_RATE) } else { 0 };
            return NonZeroU64::new(rate).map(|rate| Pacing { rate, burst: MAX_BURST });
        }
        let is_thin = match share {
            Share::Whole => self.is_thin(),
            Share::Part(_) => false,
            Share::Small(_) => true,
        };
        let (least, burst) = if is_thin {
            let burst = if self.burst_lost_at.is_some() { MAX_BURST } else { MAX_BURST_SEGMENTS };
            (self.pipe.initial_rate, burst)
        } else {
            // Independent of measurements, since retransmissions wait for the pacer too.
            let rtt = self.min_rtt.get().unwrap_or(UNKNOWN_RTT).clamp(UNKNOWN_RTT, SECOND);
            (self.segment * SECOND / rtt, MAX_BURST)
        };
        let starts = self.phase == Phase::Startup;
        let least = if starts { least.max(share.of(self.pipe.initial_rate)) } else { least };
        // Below the bandwidth, so that all loss is random.
        let below = matches!(self.phase, Phase::Drain | Phase::Down);
        let rate = if below { self.pipe.of.0 } else { self.pipe.sending_rate };
        // An application's burst spreads over a round trip once a burst was too large for the queue.
        let is_limited = self.app_limited || matches!(share, Share::Small(_));
        let spreads = is_limited && self.burst_lost_at.is_some();
        let gain = self.phase.pacing_gain();
        let gain = if spreads { gain.min(100) } else { gain };
        // A small flow's traffic is measured, and the other flows leave room for it.
        let rate = if let Share::Part(_) = share { share.of(rate) } else { rate };
        let rate = rate.max(least).saturating_mul(gain) / 100;
        NonZeroU64::new(rate.max(configured)).map(|rate| Pacing { rate, burst })
    }
}
