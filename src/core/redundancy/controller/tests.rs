use super::*;
use crate::core::seq::Sn;
use crate::testkit::rng::Rng;

const SECOND: u64 = 1_000_000;
const RTT: u64 = 50_000;

/// A flow of messages and its controller.
struct TestFlow {
    controller: RedundancyController,
    record: LossRecord,
    rng: Rng,
    now: u64,
    next: u32,
    totals: SentTotals,
    message: u64,
    spacing: u64,
    srtt: u64,
}

impl TestFlow {
    /// Messages of 1 KiB every 10 ms.
    fn new(max_overhead: f64) -> Self {
        let limits = AutoRedundancy::new().max_overhead(max_overhead);
        Self {
            controller: RedundancyController::new(limits, Micros(0)),
            record: LossRecord::new(Sn(0)),
            rng: Rng::new(1),
            now: 0,
            next: 0,
            totals: SentTotals::default(),
            message: 1_024,
            spacing: 10_000,
            srtt: RTT,
        }
    }

    fn path(&self) -> PathEstimate {
        PathEstimate {
            srtt: self.srtt,
            min_rtt: RTT,
            rttvar: 1_000,
            packet_overhead: 52,
            copies: 2,
            in_flight: 5,
        }
    }

    /// Runs with bursts of mean length `burst`. Returns the mean rate per mille.
    fn run(&mut self, time: u64, loss_per_mille: u64, burst: u64) -> u64 {
        let (end, mut sum, mut count, mut left) = (self.now + time, 0, 0, 0);
        while self.now < end {
            self.now += self.spacing;
            self.record.on_sent(Sn(self.next));
            if left == 0 && self.rng.range(1, 1_000 * burst) <= loss_per_mille {
                left = burst;
            }
            if left > 0 {
                left -= 1;
                self.record.on_lost(Sn(self.next));
            }
            self.next += 1;
            self.totals.segments += 1;
            self.totals.data_bytes += self.message;
            let (now, path) = (Micros(self.now), self.path());
            if self.controller.is_due(now) {
                self.controller.decide(now, &path, self.totals, Some(&self.record));
            }
            sum += u64::from(self.controller.rate()) / 1_000;
            count += 1;
        }
        sum / count
    }

    fn bundling(&mut self) -> u32 {
        self.controller.decide_bundling(Micros(self.now), &self.path())
    }
}

#[test]
fn rate_follows_the_loss_within_the_limit() {
    for (limit, loss, expected) in [
        (1.6, 1, 0..=20),
        (1.6, 10, 220..=340),
        (1.6, 50, 380..=500),
        (1.6, 100, 380..=500),
        (1.9, 200, 450..=800),
        // The limit admits too little to save two of three late messages.
        (1.2, 50, 0..=20),
        (1.1, 50, 0..=50),
    ] {
        let mut flow = TestFlow::new(limit);
        flow.run(10 * SECOND, loss, 1);
        let rate = flow.run(60 * SECOND, loss, 1);
        assert!(expected.contains(&rate), "limit {limit}, loss {loss}: {rate}");
    }
}

#[test]
fn bursts_that_symbols_do_not_recover_are_left_to_retransmissions() {
    let mut flow = TestFlow::new(1.6);
    flow.run(10 * SECOND, 50, 4);
    let rate = flow.run(60 * SECOND, 50, 4);
    assert!(rate < 100, "{rate}");
}

#[test]
fn rate_rises_within_two_seconds_and_ends_ten_seconds_after_the_losses() {
    let mut flow = TestFlow::new(1.6);
    assert_eq!(flow.run(10 * SECOND, 0, 1), 0);
    flow.run(2 * SECOND, 100, 1);
    assert!(flow.controller.rate() >= 250_000, "{}", flow.controller.rate());
    flow.run(10 * SECOND, 100, 1);
    flow.run(5 * SECOND, 0, 1);
    assert!(flow.controller.rate() > 0);
    flow.run(6 * SECOND, 0, 1);
    assert_eq!(flow.controller.rate(), 0);
}

#[test]
fn losses_that_were_reordering_draw_nothing() {
    let mut flow = TestFlow::new(1.6);
    flow.run(10 * SECOND, 0, 1);
    for sn in flow.next - 100..flow.next - 50 {
        flow.record.on_lost(Sn(sn));
    }
    flow.run(INTERVAL, 0, 1);
    assert_eq!(flow.controller.rate(), 0, "not for a round trip yet");
    for sn in 0..flow.next {
        flow.record.take_back(Sn(sn));
    }
    assert_eq!(flow.run(5 * SECOND, 0, 1), 0);
}

#[test]
fn nothing_leaves_while_a_queue_shows() {
    let mut flow = TestFlow::new(1.6);
    flow.run(20 * SECOND, 50, 1);
    assert!(flow.controller.rate() > 0);
    flow.srtt = RTT * 3 / 2;
    flow.run(SECOND, 50, 1);
    assert_eq!((flow.controller.rate(), flow.bundling()), (0, 0));
}

#[test]
fn symbols_that_come_later_than_a_retransmission_do_not_leave() {
    let mut flow = TestFlow::new(1.6);
    flow.spacing = 50_000;
    flow.run(60 * SECOND, 50, 1);
    assert_eq!(flow.run(60 * SECOND, 50, 1), 0);
    // One symbol per segment is not too late; 2,000 bytes per second are below the floor.
    flow.spacing = 600_000;
    flow.run(300 * SECOND, 50, 1);
    assert_eq!(flow.controller.rate(), 1_000_000);
}

#[test]
fn bundled_copies_are_of_all_segments_or_none_and_end_for_a_moment_each_minute() {
    let mut flow = TestFlow::new(3.0);
    (flow.message, flow.spacing) = (100, 16_000);
    flow.run(10 * SECOND, 0, 1);
    assert_eq!(flow.bundling(), 0, "no loss");
    flow.run(20 * SECOND, 50, 1);
    assert!(u64::from(flow.bundling()) >= BUNDLING_LEAST);
    // Copies hide the losses: ten seconds of the record, and a minute.
    flow.run(50 * SECOND, 0, 1);
    assert!(u64::from(flow.bundling()) >= BUNDLING_LEAST);
    flow.run(30 * SECOND, 0, 1);
    assert_eq!(flow.bundling(), 0);
    // 1 KiB every 10 ms leaves too few bytes.
    let mut limited = TestFlow::new(1.6);
    limited.run(20 * SECOND, 50, 1);
    assert_eq!(limited.bundling(), 0);
}

#[test]
fn pauses_of_any_length_are_taken() {
    let mut flow = TestFlow::new(1.6);
    flow.run(20 * SECOND, 50, 1);
    flow.now += 1_000_000 * SECOND;
    let rate = flow.run(20 * SECOND, 50, 1);
    assert!((300..=500).contains(&rate), "{rate}");
}

#[test]
fn mean_time_between_segments_is_at_least_a_microsecond() {
    for (segments, spacing) in [(0, 100_000_000), (1, 100_000), (10, 10_000), (200_000, 1)] {
        let mut flow = Flow::default();
        flow.update(1, SentTotals::default(), SentTotals { segments, ..SentTotals::default() });
        assert_eq!(flow.spacing(), spacing, "{segments} segments in 100 ms");
        assert!(flow.is_unknown(), "no data");
    }
}
