//! A congestion controller with a model of the path, its bandwidth and its shortest RTT, as BBRv3
//! (draft-ietf-ccwg-bbr). Deviates in what counts as congestive loss: see
//! [`LossBase`].
//!
//! Two limits: data leaves at the bandwidth, times the gain of the [phase], and at most two
//! bandwidth-delay products are in flight.
//!
//! The bandwidth is the rate at which segments are acknowledged. What is lost at random leaves on top
//! of it, so the pacing rate is the bandwidth divided by the share that arrives.
//!
//! Paths with a round trip below 2 ms are not limited, as they are neither paced nor autotuned: there
//! the host is the bottleneck, and timers of 1 ms are too coarse.

mod ack_aggregation;
mod min_rtt;
mod phase;
mod round;
mod transitions;

use std::num::NonZeroU64;

use self::ack_aggregation::AckAggregation;
use self::min_rtt::MinRtt;
use self::phase::Phase;
use self::round::{RoundStats, Rounds};
use crate::core::clock::Micros;
use crate::core::congestion::controller::{Acked, Controller, Lost};
use crate::core::congestion::loss_base::LossBase;
use crate::core::congestion::windowed_max::WindowedMax;

/// Window before the bandwidth is known, segments: kcp-go's default window.
const INITIAL_WINDOW: u64 = 32;
/// Least window, segments (draft `BBR.MinPipeCwnd`).
const MIN_WINDOW: u64 = 4;
/// Time without an acknowledgement after which the model begins again with a loss by timeout,
/// microseconds (persistent congestion, RFC 9002 7.6).
const PERSISTENT_CONGESTION: u64 = 1_000_000;
const SECOND: u64 = 1_000_000;
const MILLION: u64 = 1_000_000;

/// A limit that a loss event set, for when the losses prove spurious.
#[derive(Clone, Copy, Debug)]
struct LossEvent {
    /// Bytes in flight that were allowed before.
    in_flight_hi: u64,
    /// Losses of the event that have not proved spurious.
    lost: u64,
}

/// The model of one connection.
#[derive(Debug)]
pub(crate) struct Model {
    /// Bytes of a full segment.
    segment: u64,
    phase: Phase,
    /// Round in which `phase` began.
    phase_began: u64,
    phase_began_at: Micros,
    /// Since when nothing queues: the end of the first of the latest rounds without a queue.
    unqueued_since: Option<Micros>,
    /// When Cruise last began.
    steady_since: Micros,
    rounds: Rounds,
    /// Bytes per second acknowledged (draft `BBR.max_bw`).
    bandwidth: WindowedMax,
    min_rtt: MinRtt,
    aggregation: AckAggregation,
    loss: LossBase,
    /// Bandwidth of the last round in which it grew, and rounds since then (draft `BBR.full_bw`).
    full_bandwidth: u64,
    full_rounds: u32,
    /// Bytes in flight when Up began.
    up_from: u64,
    /// Rounds that Cruise lasts.
    cruise_rounds: u64,
    /// Bytes in flight above which congestive loss was seen (draft `BBR.inflight_longterm`).
    in_flight_hi: u64,
    event: Option<LossEvent>,
    /// The latest sample was limited by the application.
    app_limited: bool,
    delivered: u64,
    /// When something was last acknowledged.
    acked_at: Micros,
}

impl Model {
    /// `segment`: bytes of a full segment, header included.
    pub(crate) fn new(segment: u64) -> Self {
        Self {
            segment: segment.max(1),
            phase: Phase::Startup,
            phase_began: 0,
            phase_began_at: Micros(0),
            unqueued_since: None,
            steady_since: Micros(0),
            rounds: Rounds::default(),
            bandwidth: WindowedMax::default(),
            min_rtt: MinRtt::default(),
            aggregation: AckAggregation::default(),
            loss: LossBase::new(),
            full_bandwidth: 0,
            full_rounds: 0,
            up_from: 0,
            cruise_rounds: 0,
            in_flight_hi: u64::MAX / 200,
            event: None,
            app_limited: true,
            delivered: 0,
            acked_at: Micros(0),
        }
    }

    pub(crate) fn set_segment(&mut self, segment: u64) {
        self.segment = segment.max(1);
    }

    /// Bytes per second that the path delivers, as estimated; zero before the first sample.
    pub(crate) fn delivery_rate(&self) -> u64 {
        self.bandwidth.max()
    }

    /// Shortest RTT, microseconds.
    pub(crate) fn min_rtt(&self) -> Option<u64> {
        self.min_rtt.get()
    }

    /// Bytes per second that must leave so that the bandwidth arrives.
    fn sending_rate(&self) -> u64 {
        self.bandwidth.max().saturating_mul(MILLION) / (MILLION - self.loss.per_million())
    }

    /// Bandwidth-delay product, bytes.
    fn bdp(&self) -> u64 {
        let rtt = self.min_rtt.get().unwrap_or(0);
        (self.sending_rate().saturating_mul(rtt) / SECOND).max(self.segment * MIN_WINDOW)
    }

    /// Least window, bytes, and bytes that may leave in a round trip: the initial window also while
    /// the application limits what leaves and nothing queues, so that a flow of messages waits for
    /// nothing when it must retransmit.
    fn least_window(&self) -> u64 {
        let is_thin = self.app_limited && self.unqueued_since.is_some();
        let initial = self.phase == Phase::Startup || is_thin;
        self.segment * if initial { INITIAL_WINDOW } else { MIN_WINDOW }
    }

    /// Bytes in flight during a probe of the shortest RTT.
    fn probe_window(&self) -> u64 {
        (self.bdp() / 2).max(self.segment * MIN_WINDOW)
    }

    /// Congestive loss of `lost` segments with `in_flight` bytes in flight: no more than that from
    /// now on, until Up finds that more is possible. Never below what is delivered in a round trip.
    fn limit_in_flight(&mut self, in_flight: u64, lost: u64) {
        let before = self.in_flight_hi;
        let event = self.event.get_or_insert(LossEvent { in_flight_hi: before, lost: 0 });
        event.lost += lost;
        self.in_flight_hi = before.min(in_flight / 100 * 85).max(self.bdp());
    }

    /// Nothing was acknowledged for long: what the model has measured may be of another path.
    fn restart(&mut self, now: Micros) {
        let (delivered, mut rounds) = (self.delivered, self.rounds);
        rounds.stats = RoundStats::default();
        *self = Self { delivered, rounds, ..Self::new(self.segment) };
        (self.phase_began, self.phase_began_at) = (rounds.count, now);
    }
}

impl Controller for Model {
    fn on_acked(&mut self, acked: &Acked) {
        (self.acked_at, self.delivered) = (acked.now, acked.delivered);
        self.rounds.stats.acked += u64::from(acked.segments);
        if let Some(rtt) = acked.rtt {
            self.rounds.stats.on_rtt(rtt);
            self.min_rtt.on_sample(acked.now, rtt);
        }
        if let Some(sample) = acked.rate {
            self.app_limited = sample.app_limited;
            if !sample.app_limited || sample.rate >= self.bandwidth.max() {
                self.bandwidth.update(sample.rate);
                self.rounds.stats.sampled |= !sample.app_limited;
            }
            if let Some(round) = self.rounds.on_acked(sample.prior_delivered, acked.delivered) {
                self.on_round(acked, &round);
                // Little is sent in these phases, which on a path of 10 ms last longer than the filter.
                let low = matches!(self.phase, Phase::Drain | Phase::ProbeRtt { .. });
                if round.sampled && !low {
                    self.bandwidth.next_round();
                    self.bandwidth.update(sample.rate);
                }
                self.aggregation.next_round();
            }
        }
        self.aggregation.on_acked(acked.now, acked.bytes, self.bandwidth.max());
        self.on_progress(acked);
    }

    fn on_lost(&mut self, lost: &Lost) {
        let (stats, sent_at) = (&mut self.rounds.stats, lost.sent_at);
        stats.lost += u64::from(sent_at.is_some_and(|at| at >= self.phase_began_at));
        let unqueued = sent_at
            .zip(self.unqueued_since)
            .is_some_and(|(at, since)| at >= since.max(self.steady_since));
        stats.lost_unqueued += u64::from(unqueued);
        if lost.by_timeout && lost.now.since(self.acked_at) > PERSISTENT_CONGESTION {
            self.restart(lost.now);
        }
    }

    fn on_spurious_loss(&mut self) {
        let stats = &mut self.rounds.stats;
        stats.lost = stats.lost.saturating_sub(1);
        stats.lost_unqueued = stats.lost_unqueued.saturating_sub(1);
        let Some(event) = &mut self.event else { return };
        event.lost = event.lost.saturating_sub(1);
        if event.lost == 0 {
            self.in_flight_hi = self.in_flight_hi.max(event.in_flight_hi);
            self.event = None;
        }
    }

    fn window(&self) -> u64 {
        if self.min_rtt.is_short() {
            return u64::MAX;
        }
        let bdp = self.bdp();
        match self.phase {
            Phase::Startup => {
                let window = bdp.saturating_mul(277) / 100;
                window.saturating_add(self.aggregation.extra()).max(self.least_window())
            }
            Phase::ProbeRtt { .. } => self.probe_window(),
            _ => {
                let twice = bdp.saturating_mul(2);
                let window =
                    if self.phase == Phase::Up { self.up_window().min(twice) } else { twice };
                let window = window.saturating_add(self.aggregation.extra());
                window.min(self.in_flight_hi.max(bdp)).max(self.least_window())
            }
        }
    }

    fn pacing_rate(&self) -> Option<NonZeroU64> {
        let rtt = self.min_rtt.get().filter(|_| !self.min_rtt.is_short())?;
        let least = self.least_window() * SECOND / rtt.clamp(1, SECOND);
        let rate = self.sending_rate().max(least);
        NonZeroU64::new(rate.saturating_mul(self.phase.pacing_gain()) / 100)
    }
}
