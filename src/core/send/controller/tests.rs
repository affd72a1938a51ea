use super::*;

const SECOND: u64 = 1_000_000;
const RTT: u64 = 50_000;

/// A flow of a message per millisecond, and a controller.
struct Flow {
    controller: RedundancyController,
    now: u64,
    totals: SentTotals,
    message: u64,
    per_interval: u64,
    /// Segments that are lost, times a million.
    lost: u64,
    /// A quarter of what is lost is retransmitted.
    retransmits_by_loss: bool,
    /// The rate of bundled copies, if the peer takes no repair symbols.
    bundling: Option<u32>,
}

impl Flow {
    fn new(limits: AutoRedundancy) -> Self {
        let controller = RedundancyController::new(limits, Micros(0));
        let totals = SentTotals::default();
        let bundling = None;
        Self {
            controller,
            now: 0,
            totals,
            message: 1_024,
            per_interval: 100,
            lost: 0,
            retransmits_by_loss: true,
            bundling,
        }
    }

    /// Runs with this loss per million, a quarter of which is retransmitted, and RTT.
    fn run(&mut self, time: u64, loss: u32, srtt: u64) -> u32 {
        for _ in 0..time / INTERVAL {
            self.now += INTERVAL;
            self.totals.segments += self.per_interval;
            self.totals.data_bytes += self.per_interval * self.message;
            self.lost += self.per_interval * u64::from(loss);
            if self.retransmits_by_loss {
                self.totals.retransmits = self.lost / MILLION / 4;
            }
            let path = PathEstimate {
                loss,
                mean_loss: loss,
                srtt,
                min_rtt: RTT,
                rttvar: 1_000,
                packet_overhead: 52,
            };
            assert!(self.controller.is_due(Micros(self.now)));
            let takes_repair = self.bundling.is_none();
            self.controller.decide(Micros(self.now), &path, self.totals, takes_repair);
            if let Some(rate) = &mut self.bundling {
                *rate = self.controller.decide_bundling(&path);
            }
        }
        self.controller.rate()
    }
}

#[test]
fn bundled_copies_are_of_all_segments_or_none_and_end_for_a_moment_each_minute() {
    let mut flow = Flow::new(AutoRedundancy::new().max_overhead(3.0));
    (flow.message, flow.per_interval, flow.bundling) = (100, 6, Some(0));
    flow.run(10 * SECOND, 0, RTT);
    assert_eq!(flow.bundling, Some(0), "no loss");
    flow.run(SECOND, 50_000, RTT);
    assert!(flow.bundling.is_some_and(|rate| rate > BUNDLING_LEAST), "{:?}", flow.bundling);
    // Copies hide the losses.
    flow.run(59 * SECOND, 0, RTT);
    assert!(flow.bundling.is_some_and(|rate| rate > BUNDLING_LEAST), "{:?}", flow.bundling);
    flow.run(2 * SECOND, 0, RTT);
    assert_eq!(flow.bundling, Some(0));

    let limited = |per_interval| {
        let mut flow = Flow::new(AutoRedundancy::new());
        (flow.message, flow.per_interval, flow.bundling) = (100, per_interval, Some(0));
        flow.run(10 * SECOND, 50_000, RTT);
        flow.bundling
    };
    assert_eq!(limited(24), Some(0), "the limit and the floor admit too few");
    assert!(limited(6).is_some_and(|rate| rate > BUNDLING_LEAST), "the floor");
}

#[test]
fn redundancy_rises_after_a_round_trip_and_falls_a_step_in_ten_seconds() {
    let mut flow = Flow::new(AutoRedundancy::new());
    assert_eq!(flow.run(SECOND, 0, RTT), 50_000);
    assert_eq!(flow.run(INTERVAL, 100_000, RTT), 50_000, "reordering, perhaps");
    assert_eq!(flow.run(INTERVAL, 0, RTT), 50_000, "it was");
    let protected = flow.run(2 * INTERVAL, 100_000, RTT);
    assert!((350_000..=500_000).contains(&protected), "{protected}");
    // Rises that come one by one are all followed.
    let mut rising = Flow::new(AutoRedundancy::new());
    for loss in [4_000, 30_000, 100_000, 100_000] {
        rising.run(INTERVAL, loss, RTT);
    }
    assert_eq!(rising.controller.step, 3);
    flow.run(9 * SECOND, 0, RTT);
    assert_eq!(flow.controller.step, 3, "not yet");
    assert_eq!(flow.run(SECOND + INTERVAL, 0, RTT), 400_000);
    assert_eq!(flow.run(30 * SECOND, 0, RTT), 50_000);
}

#[test]
fn redundancy_and_retransmissions_stay_within_the_overhead() {
    for (ratio, expected) in [(1.1, 88_000_u32), (1.2, 123_000), (1.3, 218_000), (3.0, 400_000)] {
        let mut flow = Flow::new(AutoRedundancy::new().max_overhead(ratio));
        let rate = flow.run(20 * SECOND, 50_000, RTT);
        assert!(rate.abs_diff(expected) <= 10_000, "{ratio}: {rate}");
        let wire = 1.051 * (1.0 + f64::from(rate) / 1e6 + 0.0125);
        // Two copies of each segment that is lost take as much without redundancy.
        let without = 1.051 * 1.101;
        assert!(wire <= ratio.max(without) + 0.01, "{ratio}: {wire}");
    }
}

/// Seconds of ten minutes in which repair symbols leave, and their rate in the end. `retransmitted`:
/// retransmissions per million segments for each repair rate.
fn run_with(limit: f64, loss: u32, retransmitted: impl Fn(u32) -> u64) -> (u32, u32) {
    let mut flow = Flow::new(AutoRedundancy::new().max_overhead(limit));
    flow.retransmits_by_loss = false;
    flow.run(SECOND, 0, RTT);
    let (mut active, mut sum) = (0, 0);
    for _ in 0..6_000 {
        sum += retransmitted(flow.controller.rate()) * flow.per_interval;
        flow.totals.retransmits = sum / MILLION;
        active += u32::from(flow.run(INTERVAL, loss, RTT) > 0);
    }
    (active / 10, flow.controller.rate())
}

#[test]
fn repair_symbols_replace_retransmissions_that_exceed_the_limit() {
    // Three copies of each segment that is lost, without repair symbols.
    let needed = |rate: u32| if rate < 300_000 { 660_000 } else { 170_000 };
    let (seconds, rate) = run_with(1.5, 200_000, needed);
    assert!(seconds > 590 && rate.abs_diff(435_000) < 5_000, "{seconds} s, {rate}");
}

#[test]
fn repair_symbols_that_replace_no_retransmissions_have_few_trials() {
    let (seconds, rate) = run_with(1.5, 200_000, |_| 660_000);
    assert!((10..60).contains(&seconds) && rate == 0, "{seconds} s, {rate}");
}

#[test]
fn redundancy_of_a_slow_flow_has_a_floor_and_only_with_loss() {
    let mut flow = Flow::new(AutoRedundancy::new().max_overhead(1.15));
    (flow.message, flow.per_interval) = (100, 1);
    assert_eq!(flow.run(10 * SECOND, 0, RTT), 0, "headers take more than the limit");
    // 1,520 bytes a second with their headers.
    assert_eq!(flow.run(SECOND, 50_000, RTT), 1_000_000);
}

#[test]
fn redundancy_that_comes_later_than_a_retransmission_is_none() {
    let mut flow = Flow::new(AutoRedundancy::new());
    flow.per_interval = 10;
    assert_eq!(flow.run(10 * SECOND, 0, RTT), 0, "a symbol in 200 ms");
    assert!(flow.run(SECOND, 50_000, RTT) > 300_000);
    flow.per_interval = 2;
    assert_eq!(flow.run(60 * SECOND, 50_000, RTT), 0, "a symbol in 125 ms");
}

#[test]
fn redundancy_halves_while_a_queue_shows() {
    let mut flow = Flow::new(AutoRedundancy::new());
    let rate = flow.run(SECOND, 50_000, RTT);
    assert_eq!(flow.run(SECOND, 50_000, 2 * RTT), rate / 2);
}

#[test]
fn loss_that_rises_with_redundancy_and_a_queue_is_congestion() {
    for losses in [[10_000, 30_000, 90_000], [250_000, 300_000, 400_000]] {
        let mut flow = Flow::new(AutoRedundancy::new());
        flow.run(SECOND, 0, RTT);
        assert!(flow.run(2 * INTERVAL, losses[0], RTT) > 50_000);
        flow.run(2 * INTERVAL, losses[1], RTT);
        assert!(flow.run(2 * INTERVAL, losses[2], 2 * RTT) <= 50_000);
        assert!(flow.run(29 * SECOND, losses[2], RTT) <= 50_000);
        assert!(flow.run(2 * SECOND, losses[2], RTT) > 50_000);
    }
    // Without a longer round trip it is that of the path, and so it is where the round trip was
    // longer before.
    for srtt in [RTT, RTT / 2 * 3] {
        let mut flow = Flow::new(AutoRedundancy::new());
        for loss in [10_000, 30_000, 90_000, 250_000] {
            flow.run(2 * INTERVAL, loss, srtt);
        }
        assert!(flow.run(SECOND, 250_000, RTT) > 50_000);
    }
}

#[test]
fn pauses_of_any_length_are_taken() {
    let mut flow = Flow::new(AutoRedundancy::new());
    flow.run(SECOND, 50_000, RTT);
    let before = flow.controller.rate();
    flow.now += 1_000_000 * SECOND;
    flow.run(2 * SECOND, 50_000, RTT);
    assert!(flow.controller.rate().abs_diff(before) < 20_000);
}
