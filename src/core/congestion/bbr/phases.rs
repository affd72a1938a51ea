//! Phase transitions of the BBR model, and what it learns from a round (draft-ietf-ccwg-bbr 4.2, 4.3).

use super::filters::{RoundStats, Tally, WindowedMax};
use super::{Bbr, Phase};
use crate::core::clock::Micros;
use crate::core::congestion::controller::Acked;

/// Growth of the bandwidth per round, in percent, below which Startup counts it as reached (draft
/// `BBR.FullBwThresh`).
const STARTUP_GROWTH: u64 = 125;
/// Rounds without that growth after which Startup ends (draft `BBR.FullBwCount`).
const FULL_ROUNDS: u32 = 3;
/// Loss that ends Startup if it also exceeds the base, per million.
const STARTUP_LOSS: u64 = 250_000;
/// A queue overflows if it shows in the RTT and more than 1 / `LOSS_DIVISOR` of the segments are lost.
const LOSS_DIVISOR: u64 = 50;
/// Loss of a round with an overflowing queue that means the path has become slower, per million. Its rate is
/// then the delivery rate.
const COLLAPSE_LOSS: u64 = 330_000;
/// Consecutive rounds of that kind: longer than a burst of losses.
const COLLAPSED_ROUNDS: u64 = 2;
/// Rounds of a restarted model within which a spurious loss restores the previous one. Later losses say
/// nothing about the timeout.
const UNDO_ROUNDS: u64 = 2;
/// Consecutive rounds with a queue after which the queue is standing: longer than Up and Down take.
const STANDING_ROUNDS: u64 = 8;
/// Growth of the bandwidth per round with which Up continues, in percent.
const UP_GROWTH: u64 = 110;
/// Limit for rounds of Up without that growth, and for rounds of Drain and Down: lost segments that wait for
/// retransmission count as in flight and do not drain.
const MAX_PROBE_ROUNDS: u64 = 4;
/// Bytes in flight in percent of those at the start of Up, or of the bandwidth-delay product: at which Up
/// ends if the RTT shows a queue, and up to which it fills the path otherwise.
const UP_IN_FLIGHT: (u64, u64) = (110, 116);
/// Least number of rounds in Cruise, and the range of the random addition.
const CRUISE_ROUNDS: (u64, u64) = (4, 5);
/// How long a thin flow sends no large bursts after one was lost, microseconds.
const BURST_LOSS_TIME: u64 = 60_000_000;
/// Duration of an RTT probe, microseconds (draft `BBR.ProbeRTTDuration`).
const PROBE_RTT_TIME: u64 = 200_000;
/// How much later an RTT probe ends in which no round does, or two of the shortest RTTs if that is longer: the round
/// trips may be shorter than the shortest RTT of a slower path, and such acknowledgements count as no sample.
const PROBE_RTT_GRACE: u64 = 1_000_000;

impl Bbr {
    pub(super) fn enter(&mut self, now: Micros, phase: Phase) {
        self.phase = phase;
        self.before_timeout = None;
        (self.phase_began, self.phase_began_at) = (self.rounds.count, now);
        (self.full_bandwidth, self.full_rounds) = (0, 0);
        self.is_filled |= phase == Phase::Drain;
        if matches!(phase, Phase::Drain | Phase::Down) {
            self.loss_probe.begin(now);
        } else {
            self.loss_probe.end(now, self.rounds.count);
        }
        if phase == Phase::Refill {
            self.bandwidth_lo = u64::MAX;
            // A loss that proves spurious later must not undo a limit that Up will find again.
            self.event = None;
        }
        if phase == Phase::Cruise {
            // Mixed so that flows do not move in step; this layer has no randomness.
            let mixed = (self.delivered ^ self.rounds.count).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            self.cruise_rounds = CRUISE_ROUNDS.0 + (mixed >> 32) % CRUISE_ROUNDS.1;
        }
    }

    fn rounds_in_phase(&self) -> u64 {
        self.rounds.count - self.phase_began
    }

    /// A round ended.
    pub(super) fn on_round(&mut self, acked: &Acked, round: &RoundStats) {
        if self.rounds_in_phase() > UNDO_ROUNDS {
            self.before_timeout = None;
        }
        let (segments, lost) = (round.acked + round.lost, round.lost);
        self.min_rtt.on_round(acked.now, round);
        let queues = round.rtt.mean_rtt().is_some_and(|rtt| !self.min_rtt.is_near(rtt));
        self.overflows = queues && lost * LOSS_DIVISOR > segments;
        self.queued_rounds = if queues { self.queued_rounds + 1 } else { 0 };
        if self.queued_rounds > STANDING_ROUNDS {
            self.loss.on_queue();
        }
        self.collapsed_rounds = if self.collapses(round) { self.collapsed_rounds + 1 } else { 0 };
        if self.collapsed_rounds == COLLAPSED_ROUNDS {
            self.shrink(acked, round);
            return;
        }
        let is_over = |at| acked.now.since(at) > BURST_LOSS_TIME;
        self.burst_lost_at = self.burst_lost_at.filter(|at| !is_over(*at));
        let congested = self.loss.is_exceeded(segments, lost);
        match self.phase {
            // Otherwise the application or the peer's window limited sending.
            Phase::Startup if !self.app_limited && round.sampled && round.intervals > 0 => {
                self.on_startup_round(acked, round);
            }
            Phase::Startup | Phase::ProbeRtt { .. } => {}
            Phase::Drain | Phase::Down => {
                if self.rounds_in_phase() > MAX_PROBE_ROUNDS {
                    self.enter(acked.now, Phase::Cruise);
                }
            }
            Phase::Cruise => {
                // Without a queue, and before the random loss is known, the loss may be random.
                let is_known = self.loss.is_measured() || !self.is_near(round.rtt.mean_rtt());
                self.tally.add(round);
                let Tally { acked: arrived, lost, .. } = self.tally;
                let congested = congested
                    || (self.tally.is_enough()
                        && self.loss.is_surely_exceeded(arrived + lost, lost));
                if congested && is_known && round.sampled {
                    self.limit_in_flight(acked.in_flight, round);
                    let before = self.bandwidth.max().min(self.bandwidth_lo);
                    self.bandwidth_lo = self.tally.rate().max(before * 85 / 100).min(before);
                    self.tally = Tally::default();
                }
                if self.rounds_in_phase() >= self.cruise_rounds {
                    self.enter(acked.now, Phase::Refill);
                }
            }
            Phase::Refill => {
                self.up_from = acked.in_flight;
                self.enter(acked.now, Phase::Up);
            }
            Phase::Up => {
                if congested {
                    self.limit_in_flight(acked.in_flight, round);
                    self.enter(acked.now, Phase::Down);
                } else if self.is_full(UP_GROWTH) > 0 && self.rounds_in_phase() > MAX_PROBE_ROUNDS {
                    self.enter(acked.now, Phase::Down);
                }
                if self.phase == Phase::Up && round.in_flight * 100 >= self.in_flight_hi * 95 {
                    self.in_flight_hi += self.in_flight_hi / 4;
                }
            }
        }
        self.learn_loss();
    }

    /// Whether the path carries less than half of the bandwidth (or of what the phase sends) and its queue
    /// overflows. Under heavy loss a segment is retransmitted many rounds after it left, so losses of earlier
    /// phases count too.
    fn collapses(&self, round: &RoundStats) -> bool {
        let probes = matches!(self.phase, Phase::Startup | Phase::ProbeRtt { .. });
        let lost = round.lost + round.lost_of_before;
        self.queued_rounds > 0
            && !probes
            && round.sampled
            && self.loss.is_exceeded_by(round.acked + lost, lost, COLLAPSE_LOSS)
            && round.delivery_rate()
                < self.bandwidth.max() / 200 * self.phase.pacing_gain().min(100)
    }

    /// Resets the filters, whose values belong to a faster path.
    fn shrink(&mut self, acked: &Acked, round: &RoundStats) {
        self.bandwidth = WindowedMax::default();
        self.bandwidth.update(round.delivery_rate());
        self.bandwidth_lo = u64::MAX;
        self.update_pipe();
        self.enter(acked.now, Phase::Drain);
    }

    /// Startup ends when the bandwidth stops growing, at once if much is lost too. Loss while it grows and
    /// nothing queues is random.
    fn on_startup_round(&mut self, acked: &Acked, round: &RoundStats) {
        let full_rounds = self.is_full(STARTUP_GROWTH);
        let may_be_congested = full_rounds > 0 || !self.is_near(round.rtt.min_rtt());
        let segments = round.acked + round.lost;
        if may_be_congested && self.loss.is_exceeded_by(segments, round.lost, STARTUP_LOSS) {
            self.limit_in_flight(acked.in_flight, round);
            self.enter(acked.now, Phase::Drain);
        } else if full_rounds >= FULL_ROUNDS {
            self.enter(acked.now, Phase::Drain);
        }
    }

    fn is_near(&self, rtt: Option<u64>) -> bool {
        rtt.is_some_and(|rtt| self.min_rtt.is_near(rtt))
    }

    /// Learns the random loss of the path, if nothing queued during the measurement.
    fn learn_loss(&mut self) {
        if let Some((sent, lost, rtt)) = self.loss_probe.take(self.rounds.count)
            && self.is_near(rtt)
        {
            self.loss.on_round(sent, lost);
        }
    }

    /// Bytes that may be in flight in Up: enough that the RTT shows a queue before it is long.
    pub(super) fn up_window(&self) -> u64 {
        self.up_from.max(self.bdp()).saturating_mul(UP_IN_FLIGHT.1) / 100
    }

    /// Consecutive rounds without growth of the bandwidth to `growth` percent.
    fn is_full(&mut self, growth: u64) -> u32 {
        let bandwidth = self.bandwidth.max();
        if bandwidth.saturating_mul(100) >= self.full_bandwidth.saturating_mul(growth) {
            (self.full_bandwidth, self.full_rounds) = (bandwidth, 0);
        } else {
            self.full_rounds += 1;
        }
        self.full_rounds
    }

    /// Ends a phase within a round, when the queue is gone or its time is over.
    pub(super) fn on_progress(&mut self, acked: &Acked) {
        let drained = acked.in_flight <= self.bdp();
        match self.phase {
            Phase::Drain if drained => self.enter(acked.now, Phase::Cruise),
            // At least a round, to measure the loss.
            Phase::Down if drained && self.rounds_in_phase() >= 1 => {
                self.enter(acked.now, Phase::Cruise);
            }
            Phase::Up => {
                let from = self.up_from.max(self.bdp());
                let filled = acked.in_flight.saturating_mul(100) >= from * UP_IN_FLIGHT.0;
                if filled && acked.rtt.is_some_and(|rtt| !self.min_rtt.is_sample_near(rtt)) {
                    self.enter(acked.now, Phase::Down);
                }
            }
            // Lost segments that wait for retransmission count as in flight.
            Phase::ProbeRtt { window, until: None }
                if acked.in_flight <= window || self.rounds_in_phase() > MAX_PROBE_ROUNDS =>
            {
                self.is_probe_drained = acked.in_flight <= window;
                let until = Some(acked.now.add_micros(PROBE_RTT_TIME));
                self.enter(acked.now, Phase::ProbeRtt { window, until });
            }
            Phase::ProbeRtt { until: Some(until), .. }
                if acked.now >= until
                    && (self.rounds_in_phase() >= 1
                        || (acked.rate.is_none()
                            && acked.now.since(until) >= self.probe_grace())) =>
            {
                if self.min_rtt.end_probe(acked.now, self.is_probe_drained) {
                    // The path has changed.
                    let min_rtt = self.min_rtt;
                    self.restart(acked.now);
                    self.min_rtt = min_rtt;
                    return;
                }
                let next = if self.is_filled { Phase::Cruise } else { Phase::Startup };
                self.enter(acked.now, next);
            }
            _ => {}
        }
        self.check_min_rtt(acked);
    }

    fn probe_grace(&self) -> u64 {
        PROBE_RTT_GRACE.max(2 * self.min_rtt.get().unwrap_or(0))
    }

    /// Begins a probe if the shortest RTT is outdated. An application-limited flow queues nothing, so its
    /// present RTT is taken without a probe.
    fn check_min_rtt(&mut self, acked: &Acked) {
        let probing = matches!(self.phase, Phase::ProbeRtt { .. });
        if probing || !self.min_rtt.is_outdated(acked.now) {
            return;
        }
        match acked.rtt {
            Some(rtt) if self.app_limited => self.min_rtt.renew(acked.now, rtt),
            _ if self.app_limited => {}
            _ => {
                self.min_rtt.begin_probe(acked.now);
                let window = (self.bdp() / 2).max(self.segment * self.flows);
                self.enter(acked.now, Phase::ProbeRtt { window, until: None });
            }
        }
    }
}
