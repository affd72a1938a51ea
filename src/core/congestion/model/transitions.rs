//! What ends the phases of the model, and what a round teaches it (draft-ietf-ccwg-bbr 4.2, 4.3).

use super::Model;
use super::phase::Phase;
use super::round::RoundStats;
use crate::core::clock::Micros;
use crate::core::congestion::controller::Acked;

/// Growth of the bandwidth in a round, in percent, below which it counts as reached in Startup
/// (draft `BBR.FullBwThresh`).
const STARTUP_GROWTH: u64 = 125;
/// Rounds without such growth after which Startup ends (draft `BBR.FullBwCount`).
const FULL_ROUNDS: u32 = 3;
/// Loss that ends Startup, per million, if it exceeds the base as well.
const STARTUP_LOSS: u64 = 250_000;
/// Growth of the bandwidth in a round, in percent, with which Up goes on.
const UP_GROWTH: u64 = 110;
/// Rounds of Up without such growth, and rounds of Drain and Down: what is lost and cannot leave again
/// yet counts as in flight, and does not drain.
const MAX_PROBE_ROUNDS: u64 = 4;
/// Bytes in flight at which Up ends once the RTT shows a queue, and up to which it fills the path
/// before that, in percent of those when it began, or of the bandwidth-delay product.
const UP_IN_FLIGHT: (u64, u64) = (110, 116);
/// Least rounds of Cruise, and how many there may be more.
const CRUISE_ROUNDS: (u64, u64) = (4, 5);
/// Duration of a probe of the shortest RTT, microseconds (draft `BBR.ProbeRTTDuration`).
const PROBE_RTT_TIME: u64 = 200_000;

impl Model {
    pub(super) fn enter(&mut self, now: Micros, phase: Phase) {
        self.phase = phase;
        (self.phase_began, self.phase_began_at) = (self.rounds.count, now);
        (self.full_bandwidth, self.full_rounds) = (0, 0);
        if phase == Phase::Refill {
            // What proves spurious later does not undo a limit that Up is to find again.
            self.event = None;
        }
        if phase == Phase::Cruise {
            self.steady_since = now;
            // Not in step with other flows; no randomness in this layer.
            let mixed = (self.delivered ^ self.rounds.count).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            self.cruise_rounds = CRUISE_ROUNDS.0 + (mixed >> 32) % CRUISE_ROUNDS.1;
        }
    }

    fn rounds_in_phase(&self) -> u64 {
        self.rounds.count - self.phase_began
    }

    /// A round ended.
    pub(super) fn on_round(&mut self, acked: &Acked, round: &RoundStats) {
        let (segments, lost) = (round.acked + round.lost, round.lost);
        let congested = self.loss.is_exceeded(segments, lost);
        match self.phase {
            Phase::Startup => {
                if self.app_limited || !round.sampled {
                    // The application or the peer's window limited what left.
                } else if self.loss.is_exceeded_by(segments, lost, STARTUP_LOSS) {
                    self.limit_in_flight(acked.in_flight, lost);
                    self.enter(acked.now, Phase::Drain);
                } else if self.is_full(STARTUP_GROWTH) >= FULL_ROUNDS {
                    self.enter(acked.now, Phase::Drain);
                }
            }
            Phase::ProbeRtt { .. } => {}
            Phase::Drain | Phase::Down => {
                if self.rounds_in_phase() > MAX_PROBE_ROUNDS {
                    self.enter(acked.now, Phase::Cruise);
                }
            }
            Phase::Cruise => {
                if congested && round.sampled {
                    self.limit_in_flight(acked.in_flight, lost);
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
                    self.limit_in_flight(acked.in_flight, lost);
                    self.enter(acked.now, Phase::Down);
                } else if self.is_full(UP_GROWTH) > 0 && self.rounds_in_phase() > MAX_PROBE_ROUNDS {
                    self.enter(acked.now, Phase::Down);
                }
                if self.phase == Phase::Up && acked.in_flight * 100 >= self.in_flight_hi * 95 {
                    self.in_flight_hi += self.in_flight_hi / 4;
                }
            }
        }
        self.learn_loss(acked.now, round);
    }

    /// Learns the loss rate of rounds of a steady rate in which nothing queued: those whose shortest
    /// RTT was near that of the path, since jitter alone raises the mean. What left before, and was
    /// lost in a queue, is found lost later and does not count; nor does what faster phases lose in a
    /// queue too shallow to see.
    fn learn_loss(&mut self, now: Micros, round: &RoundStats) {
        let is_near = |rtt: Option<u64>| rtt.is_some_and(|rtt| self.min_rtt.is_near(rtt));
        let steady = matches!(self.phase, Phase::Cruise | Phase::Refill);
        let unqueued = is_near(round.mean_rtt()) || (steady && is_near(round.min_rtt()));
        if !unqueued {
            self.unqueued_since = None;
        } else if self.unqueued_since.is_none() {
            self.unqueued_since = Some(now);
        } else if steady {
            self.loss.on_round(round.acked + round.lost_unqueued, round.lost_unqueued);
        }
    }

    /// Bytes that may be in flight in Up: so few more that the RTT shows the queue before it is long.
    pub(super) fn up_window(&self) -> u64 {
        self.up_from.max(self.bdp()).saturating_mul(UP_IN_FLIGHT.1) / 100
    }

    /// Rounds in a row in which the bandwidth did not grow to `growth` percent.
    fn is_full(&mut self, growth: u64) -> u32 {
        let bandwidth = self.bandwidth.max();
        if bandwidth.saturating_mul(100) >= self.full_bandwidth.saturating_mul(growth) {
            (self.full_bandwidth, self.full_rounds) = (bandwidth, 0);
        } else {
            self.full_rounds += 1;
        }
        self.full_rounds
    }

    /// What ends a phase within a round: that the queue is gone, or that the time is over.
    pub(super) fn on_progress(&mut self, acked: &Acked) {
        let drained = acked.in_flight <= self.bdp();
        match self.phase {
            Phase::Drain | Phase::Down if drained => self.enter(acked.now, Phase::Cruise),
            Phase::Up => {
                let from = self.up_from.max(self.bdp());
                let filled = acked.in_flight.saturating_mul(100) >= from * UP_IN_FLIGHT.0;
                if filled && acked.rtt.is_some_and(|rtt| !self.min_rtt.is_near(rtt)) {
                    self.enter(acked.now, Phase::Down);
                }
            }
            Phase::ProbeRtt { until: None } if acked.in_flight <= self.probe_window() => {
                let until = acked.now.add_micros(PROBE_RTT_TIME);
                self.enter(acked.now, Phase::ProbeRtt { until: Some(until) });
            }
            Phase::ProbeRtt { until: Some(until) }
                if acked.now >= until && self.rounds_in_phase() >= 1 =>
            {
                self.min_rtt.end_probe(acked.now);
                self.enter(acked.now, Phase::Cruise);
            }
            _ => {}
        }
        self.check_min_rtt(acked);
    }

    /// Begins a probe if the shortest RTT is outdated. While the application limits what leaves,
    /// nothing queues, and the RTT of today is the shortest.
    fn check_min_rtt(&mut self, acked: &Acked) {
        let probing = matches!(self.phase, Phase::ProbeRtt { .. });
        if probing || !self.min_rtt.is_outdated(acked.now) {
            return;
        }
        // A short path is not limited, so a probe could not drain it.
        let unlimited = self.app_limited || self.min_rtt.is_short();
        match acked.rtt {
            Some(rtt) if unlimited => self.min_rtt.replace(acked.now, rtt),
            _ if unlimited => {}
            _ => {
                self.min_rtt.begin_probe();
                self.enter(acked.now, Phase::ProbeRtt { until: None });
            }
        }
    }
}
