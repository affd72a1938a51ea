//! Drives each phase by hand: what ends it, and what it allows.

use super::*;
use crate::core::congestion::delivery_rate::RateSample;

const SEGMENT: u64 = 1_000;
const RTT: u64 = 50_000;
/// Bytes per second, and its bandwidth-delay product.
const RATE: u64 = 2_000_000;
const BDP: u64 = RATE * RTT / SECOND;

/// A model and a path that acknowledges what was sent.
struct Driver {
    bbr: Bbr,
    now: Micros,
    delivered: u64,
    in_flight: u64,
}

impl Driver {
    fn new() -> Self {
        Self { bbr: Bbr::new(SEGMENT), now: Micros(SECOND), delivered: 0, in_flight: BDP }
    }

    /// In Cruise, with [`RATE`] as the bandwidth.
    fn in_cruise() -> Self {
        let mut driver = Self::new();
        (0..5).for_each(|_| driver.round(RATE, RTT, 0));
        assert_eq!(driver.bbr.phase, Phase::Cruise);
        driver
    }

    fn ack(&mut self, rate: u64, rtt: u64, app_limited: bool) {
        self.ack_of(self.delivered, rate, rtt, app_limited);
    }

    /// As [`Self::ack`], of data that left when `prior_delivered` bytes were acknowledged.
    fn ack_of(&mut self, prior_delivered: u64, rate: u64, rtt: u64, app_limited: bool) {
        let segments = (rate * RTT / SECOND / SEGMENT / 10).max(1);
        self.delivered += segments * SEGMENT;
        self.bbr.on_acked(&Acked {
            now: self.now,
            segments: segments as u32,
            bytes: segments * SEGMENT,
            delivered: self.delivered,
            in_flight: self.in_flight,
            rtt: Some(rtt),
            longest_wait: 0,
            rate: Some(RateSample {
                rate,
                elapsed: RTT,
                sent_at: self.now,
                sent: self.delivered + self.in_flight,
                prior_delivered,
                app_limited,
            }),
        });
    }

    /// One round trip: `lost_percent` of the segments are lost, the rest arrives at `rate`.
    fn round(&mut self, rate: u64, rtt: u64, lost_percent: u64) {
        let segments = rate * RTT / SECOND / SEGMENT;
        let lost = segments * lost_percent / (100 - lost_percent);
        (0..segments + lost).for_each(|_| self.bbr.on_sent(self.now, self.in_flight));
        let sent_at = self.now;
        self.now = self.now.add_micros(RTT);
        let by_timeout = false;
        for _ in 0..lost {
            self.bbr.on_lost(&Lost { now: self.now, sent_at: Some(sent_at), by_timeout });
        }
        self.ack(rate, rtt, false);
    }

    fn rounds_until(&mut self, phase: Phase, lost_percent: u64) -> u64 {
        (0..20)
            .find(|_| {
                let reached = self.bbr.phase == phase;
                if !reached {
                    self.round(RATE, RTT, lost_percent);
                }
                reached
            })
            .expect("the phase is entered within 20 rounds")
    }

    /// Window towards a peer that acknowledges at once.
    fn window(&self) -> u64 {
        self.bbr.window(Share::Whole, &AckAggregation::default())
    }

    fn gain(&self) -> u64 {
        self.bbr.pacing(Share::Whole).unwrap().rate.get() * 100 / RATE
    }
}

/// Rule: P-20.
#[test]
fn startup_ends_after_three_rounds_without_growth() {
    let mut driver = Driver::new();
    driver.in_flight = 3 * BDP;
    for rate in [RATE / 8, RATE / 4, RATE / 2, RATE] {
        driver.round(rate, RTT, 0);
    }
    (0..2).for_each(|_| driver.round(RATE, RTT, 0));
    assert_eq!((driver.bbr.phase, driver.gain()), (Phase::Startup, 277));
    driver.round(RATE, RTT, 0);
    assert_eq!((driver.bbr.phase, driver.gain()), (Phase::Drain, 35));
    driver.in_flight = BDP;
    driver.round(RATE, RTT, 0);
    assert_eq!((driver.bbr.phase, driver.gain()), (Phase::Cruise, 98));
}

#[test]
fn startup_ends_by_loss_only_with_a_queue_or_without_growth() {
    for (next, rtt, ends) in [
        (RATE, RTT, false),
        (RATE, 2 * RTT, true),
        (RATE / 2, RTT, true),
        (RATE / 2, 2 * RTT, true),
    ] {
        let mut driver = Driver::new();
        driver.in_flight = 3 * BDP;
        driver.round(RATE / 2, RTT, 30);
        driver.round(next, rtt, 30);
        assert_eq!(driver.bbr.phase == Phase::Drain, ends, "{next} {rtt}");
    }
}

/// Rule: P-20.
#[test]
fn cruise_lasts_four_to_eight_rounds_and_refill_one() {
    let mut driver = Driver::in_cruise();
    let rounds = driver.rounds_until(Phase::Refill, 0);
    assert!((4..=8).contains(&rounds), "{rounds}");
    assert_eq!(driver.gain(), 100);
    driver.round(RATE, RTT, 0);
    assert_eq!((driver.bbr.phase, driver.gain()), (Phase::Up, 125));
}

#[test]
fn up_ends_with_a_queue_and_down_lasts_a_round() {
    let mut driver = Driver::in_cruise();
    driver.rounds_until(Phase::Up, 0);
    let window = 100 * driver.window();
    assert!((115 * BDP..135 * BDP).contains(&window), "{}", window / BDP);
    driver.in_flight = BDP * 12 / 10;
    driver.round(RATE, RTT, 0);
    assert_eq!(driver.bbr.phase, Phase::Up, "no queue shows");
    driver.round(RATE, RTT * 12 / 10, 0);
    assert_eq!((driver.bbr.phase, driver.gain()), (Phase::Down, 90));
    driver.in_flight = BDP / 2;
    driver.bbr.on_progress(&Acked {
        now: driver.now,
        segments: 1,
        bytes: SEGMENT,
        delivered: driver.delivered,
        in_flight: driver.in_flight,
        rtt: None,
        longest_wait: 0,
        rate: None,
    });
    assert_eq!(driver.bbr.phase, Phase::Down, "the queue is gone, but no round over");
    driver.round(RATE, RTT, 0);
    assert_eq!(driver.bbr.phase, Phase::Cruise);
}

/// Loss in Down, below the bandwidth, is random: it raises the sending rate and is no congestion.
#[test]
fn loss_below_the_bandwidth_is_learned() {
    let mut driver = Driver::in_cruise();
    for _ in 0..4 {
        driver.rounds_until(Phase::Up, 10);
        driver.round(RATE, RTT, 40);
        assert_eq!(driver.bbr.phase, Phase::Down, "far beyond what is random");
        driver.rounds_until(Phase::Cruise, 10);
    }
    driver.rounds_until(Phase::Refill, 10);
    let base = driver.bbr.loss.per_million();
    assert!((70_000..=105_000).contains(&base), "{base}");
    assert!((107..=111).contains(&driver.gain()), "{}", driver.gain());
    assert_eq!(driver.bbr.bandwidth_lo, u64::MAX);
}

/// A policer drops what exceeds its rate, and nothing below it.
#[test]
fn loss_above_the_bandwidth_is_congestion() {
    let mut driver = Driver::in_cruise();
    driver.rounds_until(Phase::Up, 0);
    driver.round(RATE, RTT, 20);
    assert_eq!(driver.bbr.phase, Phase::Down);
    driver.rounds_until(Phase::Cruise, 0);
    (0..2).for_each(|_| driver.round(RATE, RTT, 0));
    assert_eq!(driver.bbr.loss.per_million(), 0);
    // In Cruise no more is sent than arrives, until Refill.
    driver.round(RATE * 8 / 10, RTT, 20);
    assert_eq!(driver.bbr.bandwidth_lo, RATE * 85 / 100);
    assert_eq!(driver.gain(), 83);
    driver.rounds_until(Phase::Refill, 0);
    assert_eq!((driver.gain(), driver.bbr.bandwidth_lo), (100, u64::MAX));
}

#[test]
fn drain_and_down_end_after_five_rounds_though_the_queue_stays() {
    let mut driver = Driver::new();
    driver.in_flight = 3 * BDP;
    driver.rounds_until(Phase::Drain, 0);
    assert_eq!(driver.rounds_until(Phase::Cruise, 0), 5);
    driver.rounds_until(Phase::Up, 0);
    driver.round(RATE, RTT, 20);
    assert_eq!(driver.bbr.phase, Phase::Down);
    assert_eq!(driver.rounds_until(Phase::Cruise, 0), 5);
}

#[test]
fn limit_of_the_bytes_in_flight_grows_by_a_quarter_in_a_round_of_up_that_uses_it() {
    let mut driver = Driver::in_cruise();
    driver.rounds_until(Phase::Up, 0);
    driver.round(RATE, RTT, 20);
    driver.rounds_until(Phase::Up, 0);
    let limit = driver.bbr.in_flight_hi;
    assert!((BDP..3 * BDP).contains(&limit), "{limit}");
    driver.in_flight = limit / 2;
    driver.round(RATE, RTT, 0);
    assert_eq!((driver.bbr.phase, driver.bbr.in_flight_hi), (Phase::Up, limit));
    driver.in_flight = limit;
    driver.round(RATE, RTT, 0);
    assert_eq!((driver.bbr.phase, driver.bbr.in_flight_hi), (Phase::Up, limit + limit / 4));
}

#[test]
fn app_limited_flow_takes_its_present_rtt_instead_of_a_probe() {
    let mut driver = Driver::in_cruise();
    driver.now = driver.now.add_micros(11 * SECOND);
    driver.ack(20_000, 2 * RTT, true);
    assert_eq!((driver.bbr.phase, driver.bbr.min_rtt()), (Phase::Cruise, Some(2 * RTT)));
}

#[test]
fn window_is_frozen_while_the_shortest_rtt_is_probed() {
    let mut driver = Driver::in_cruise();
    let mut began = None;
    while driver.now < Micros(15 * SECOND) && began.is_none() {
        driver.round(RATE, RTT * 11 / 10, 0);
        let probes = matches!(driver.bbr.phase, Phase::ProbeRtt { .. });
        began = probes.then_some(driver.now);
    }
    let began = began.expect("a probe when the RTT is ten seconds old");
    assert!(began > Micros(10 * SECOND));
    let window = driver.window();
    assert!((BDP / 2..=BDP * 11 / 20).contains(&window), "{window}");
    driver.in_flight = window;
    while matches!(driver.bbr.phase, Phase::ProbeRtt { .. }) {
        assert_eq!(driver.window(), window);
        // Neither a faster path nor a shorter RTT changes it.
        driver.round(2 * RATE, RTT * 9 / 10, 0);
    }
    assert!(driver.now.since(began) >= 200_000, "{}", driver.now.since(began));
    assert_eq!(driver.bbr.phase, Phase::Cruise);
    assert_eq!(driver.bbr.min_rtt(), Some(RTT * 9 / 10));
}

#[test]
fn probe_of_the_shortest_rtt_does_not_end_startup() {
    let mut driver = Driver::new();
    driver.round(RATE, RTT, 0);
    driver.now = driver.now.add_micros(11 * SECOND);
    driver.ack(2 * RATE, 2 * RTT, false);
    assert!(matches!(driver.bbr.phase, Phase::ProbeRtt { .. }), "{:?}", driver.bbr.phase);
    driver.in_flight = 0;
    (0..8).for_each(|_| driver.round(RATE, RTT, 0));
    assert_eq!(driver.bbr.phase, Phase::Startup);
}

/// Holds even where others fill the queue: the flow sends little, and its latency counts.
#[test]
fn app_limited_flow_may_send_the_initial_window() {
    let mut driver = Driver::in_cruise();
    for i in 0..400 {
        driver.now = driver.now.add_micros(RTT);
        driver.ack(20_000, RTT * (1 + i % 5), true);
        let pacing = driver.bbr.pacing(Share::Whole).unwrap();
        assert!(driver.window() >= INITIAL_WINDOW, "{:?}", driver.bbr);
        assert_eq!(pacing.burst, MAX_BURST_SEGMENTS);
        assert!(pacing.rate.get() * RTT / SECOND * 100 >= INITIAL_WINDOW * 35);
    }
    // Once more is written than the path carries, the flow's share counts again.
    (0..12).for_each(|_| driver.round(20_000, RTT, 0));
    assert!(driver.window() <= 3 * SEGMENT * MIN_WINDOW, "{}", driver.window());
}

#[test]
fn segments_of_half_the_size_do_not_halve_the_initial_window() {
    assert_eq!(Bbr::new(544).window(Share::Whole, &AckAggregation::default()), INITIAL_WINDOW);
}

#[test]
fn timeout_after_a_second_without_acks_restarts_the_model() {
    let mut driver = Driver::in_cruise();
    let at = |wait| driver.now.add_micros(wait);
    let lost = |now| Lost { now, sent_at: Some(driver.now), by_timeout: true };
    let (early, late) = (lost(at(SECOND)), lost(at(SECOND + 1)));
    driver.bbr.on_lost(&early);
    assert_eq!(driver.bbr.phase, Phase::Cruise);
    driver.bbr.on_lost(&late);
    assert_eq!((driver.bbr.phase, driver.bbr.delivery_rate()), (Phase::Startup, 0));
    assert_eq!(driver.window(), INITIAL_WINDOW);
}

/// A spurious timeout restores the model, unless a loss was found or some rounds have ended since.
#[test]
fn spurious_timeout_undoes_the_restart() {
    for (is_confirmed, rounds, undoes) in [(false, 0, true), (true, 0, false), (false, 4, false)] {
        let mut driver = Driver::in_cruise();
        let window = driver.window();
        let sent_at = Some(driver.now);
        let lost = |wait, by_timeout| Lost { now: Micros(wait), sent_at, by_timeout };
        for wait in [2, 5] {
            driver.bbr.on_lost(&lost(driver.now.0 + wait * SECOND, true));
            assert_eq!(driver.bbr.phase, Phase::Startup);
        }
        if is_confirmed {
            driver.bbr.on_lost(&lost(driver.now.0 + 6 * SECOND, false));
        }
        // Each round is faster than the previous one, so Startup goes on.
        (0..rounds).for_each(|round| driver.round((RATE / 100) << round, RTT, 0));
        driver.bbr.on_spurious_loss();
        assert_eq!(driver.bbr.phase, if undoes { Phase::Cruise } else { Phase::Startup });
        assert_eq!(driver.window() == window, undoes);
    }
}

/// Twice in a row a tenth of the bandwidth arrives and a queue drops the rest: then the tenth is the
/// bandwidth.
#[test]
fn two_rounds_that_lose_most_with_a_queue_shrink_the_model() {
    for (rtt, lost, shrinks) in [(2 * RTT, 90, true), (RTT, 90, false), (2 * RTT, 20, false)] {
        let mut driver = Driver::in_cruise();
        driver.round(RATE / 10, rtt, lost);
        assert_eq!(driver.bbr.delivery_rate(), RATE);
        driver.round(RATE / 10, rtt, lost);
        let rate = driver.bbr.delivery_rate();
        assert_eq!(rate < RATE / 5, shrinks, "{rate} at an RTT of {rtt} with {lost} % lost");
        assert_eq!(driver.bbr.phase == Phase::Drain, shrinks);
    }
}

#[test]
fn queue_overflows_with_more_than_one_lost_segment_in_fifty() {
    // Acknowledged segments beside one that is lost.
    for (acked, rtt, overflows) in [(49, 2 * RTT, false), (48, 2 * RTT, true), (48, RTT, false)] {
        let mut driver = Driver::in_cruise();
        let (sent_at, by_timeout) = (Some(driver.now), false);
        driver.now = driver.now.add_micros(RTT);
        driver.bbr.on_lost(&Lost { now: driver.now, sent_at, by_timeout });
        // One acknowledgement stands for a tenth of the segments of a round trip.
        driver.ack(10 * acked * SEGMENT * SECOND / RTT, rtt, false);
        assert_eq!(driver.bbr.overflows(), overflows, "{acked} acknowledged, RTT {rtt} us");
    }
}

/// A model may begin after an idle time of any length.
#[test]
fn timeout_of_the_first_segment_keeps_the_configured_rate() {
    let mut driver = Driver::new();
    driver.bbr.set_initial_rate(RATE);
    let at = |wait| Micros(100 * SECOND).add_micros(wait);
    // It may begin with the loss of an earlier transmission.
    driver.bbr.on_lost(&Lost { now: at(0), sent_at: None, by_timeout: true });
    assert_eq!(driver.bbr.initial_rate, RATE);
    driver.bbr.on_sent(at(0), 0);
    for (wait, initial_rate) in [(300_000, RATE), (SECOND, RATE), (SECOND + 1, 0)] {
        driver.bbr.on_lost(&Lost { now: at(wait), sent_at: Some(at(0)), by_timeout: true });
        assert_eq!(driver.bbr.initial_rate, initial_rate, "{wait} us");
    }
}

/// A peer that had nothing to acknowledge for a minute is not gone.
#[test]
fn timeout_after_a_time_with_nothing_in_flight_restarts_nothing() {
    let mut driver = Driver::in_cruise();
    let sent_at = driver.now.add_micros(60 * SECOND);
    driver.bbr.on_sent(sent_at, 0);
    let lost =
        |wait| Lost { now: sent_at.add_micros(wait), sent_at: Some(sent_at), by_timeout: true };
    driver.bbr.on_lost(&lost(SECOND));
    assert_eq!(driver.bbr.phase, Phase::Cruise);
    driver.bbr.on_sent(sent_at.add_micros(SECOND), SEGMENT);
    driver.bbr.on_lost(&lost(SECOND + 1));
    assert_eq!(driver.bbr.phase, Phase::Startup);
}

#[test]
fn startup_begins_with_the_configured_rate() {
    let mut driver = Driver::new();
    driver.bbr.set_initial_rate(RATE);
    assert_eq!(driver.bbr.pacing(Share::Whole).map(|pacing| pacing.rate.get()), Some(RATE));
    driver.ack(RATE / 100, RTT, true);
    let rate = driver.bbr.pacing(Share::Whole).map_or(0, |pacing| pacing.rate.get());
    assert!(rate >= RATE && driver.window() >= BDP, "{rate} {}", driver.window());
}

#[test]
fn configured_rate_that_is_too_high_ends_with_startup() {
    let mut driver = Driver::new();
    driver.bbr.set_initial_rate(100 * RATE);
    // Three quarters of the sent data do not arrive.
    (0..8).for_each(|_| driver.round(RATE, RTT, 75));
    assert_ne!(driver.bbr.phase, Phase::Startup);
    let rate = driver.bbr.pacing(Share::Whole).map_or(0, |pacing| pacing.rate.get());
    assert!(rate < 5 * RATE, "{rate}");
    driver.bbr.restart(driver.now);
    assert!(driver.window() == INITIAL_WINDOW, "{}", driver.window());
}

#[test]
fn probe_of_the_shortest_rtt_ends_after_200_ms_and_one_round() {
    // Time of each acknowledgement, whether it ends a round, and whether the probe goes on.
    for (steps, name) in [
        (&[(200_000, true, false)][..], "at once"),
        (&[(199_999, true, true), (1, true, false)], "too early"),
        (&[(200_000, false, true), (1, true, false)], "within a round"),
    ] {
        let mut driver = Driver::in_cruise();
        driver.now = driver.now.add_micros(11 * SECOND);
        driver.in_flight = 0;
        (0..2).for_each(|_| driver.ack(RATE, RTT * 3 / 2, false));
        for &(wait, ends_round, goes_on) in steps {
            assert!(matches!(driver.bbr.phase, Phase::ProbeRtt { until: Some(_), .. }), "{name}");
            driver.now = driver.now.add_micros(wait);
            let prior_delivered = if ends_round { driver.delivered } else { 0 };
            driver.ack_of(prior_delivered, RATE, RTT * 3 / 2, false);
            let probes = matches!(driver.bbr.phase, Phase::ProbeRtt { .. });
            assert_eq!(probes, goes_on, "{name}");
        }
    }
}

#[test]
fn probe_of_the_shortest_rtt_ends_a_second_late_without_a_round() {
    let mut driver = Driver::in_cruise();
    driver.now = driver.now.add_micros(11 * SECOND);
    driver.in_flight = 0;
    (0..2).for_each(|_| driver.ack(RATE, RTT * 3 / 2, false));
    for (wait, goes_on) in [(200_000 + SECOND - 1, true), (1, false)] {
        driver.now = driver.now.add_micros(wait);
        driver.bbr.on_acked(&Acked {
            now: driver.now,
            segments: 1,
            bytes: SEGMENT,
            delivered: driver.delivered,
            in_flight: 0,
            rtt: None,
            longest_wait: 0,
            rate: None,
        });
        let probes = matches!(driver.bbr.phase, Phase::ProbeRtt { .. });
        assert_eq!(probes, goes_on, "{wait}");
    }
}

/// Samples come all the time, of segments that left before.
#[test]
fn probe_of_the_shortest_rtt_lasts_a_round_on_a_path_of_three_seconds() {
    let mut driver = Driver::in_cruise();
    driver.now = driver.now.add_micros(11 * SECOND);
    driver.in_flight = 0;
    (0..2).for_each(|_| driver.ack(RATE, 3 * SECOND, false));
    for _ in 0..20 {
        assert!(matches!(driver.bbr.phase, Phase::ProbeRtt { until: Some(_), .. }));
        driver.now = driver.now.add_micros(100_000);
        driver.ack_of(0, RATE, 3 * SECOND, false);
    }
}

#[test]
fn configured_rate_paces_at_least_the_initial_window_per_second() {
    for (configured, rate) in
        [(0, None), (1, Some(44_800)), (44_800, Some(44_800)), (44_801, Some(44_801))]
    {
        let mut bbr = Bbr::new(SEGMENT);
        bbr.set_initial_rate(configured);
        let pacing = bbr.pacing(Share::Whole).map(|pacing| (pacing.rate.get(), pacing.burst));
        assert_eq!(pacing, rate.map(|rate| (rate, 2)), "{configured} configured");
    }
}

/// With fewer, no ACK of a later segment shows a loss.
#[test]
fn smallest_part_of_a_path_is_two_segments_and_one_while_it_drains() {
    let least = |bbr: &Bbr, share| bbr.window(share, &AckAggregation::default());
    let mut driver = Driver::in_cruise();
    assert_eq!(least(&driver.bbr, Share::Part(1)), 2 * SEGMENT);
    assert_eq!(least(&driver.bbr, Share::Small(1)), 44_800);
    driver.now = driver.now.add_micros(11 * SECOND);
    driver.ack(RATE, RTT * 3 / 2, false);
    assert!(matches!(driver.bbr.phase, Phase::ProbeRtt { .. }));
    assert_eq!(least(&driver.bbr, Share::Part(1)), SEGMENT);
    let startup = Bbr::new(SEGMENT);
    assert_eq!(least(&startup, Share::Part(1)), 2 * SEGMENT);
    assert_eq!(least(&startup, Share::Part(Share::WHOLE / 2)), 22_400);
}
