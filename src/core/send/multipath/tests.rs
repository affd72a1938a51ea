//! Two paths of a sender, without the connection around it.

#![expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::*;
use crate::config::KcpConfig;
use crate::core::clock::Clock;
use crate::core::path::set::PathSet;
use crate::core::send::AckSample;
use crate::core::send::buffer::SendBuffer;
use crate::stats::Counters;

const RTT: u64 = 50_000;
const OTHER: PathId = PathId(1);

/// A sender with two usable paths; the first one carries the data.
struct Flow {
    sender: Sender,
    clock: Clock,
    stats: Counters,
    now: Micros,
}

impl Flow {
    fn new(congestion_control: CongestionControl, aggregates: bool) -> Self {
        let mut now = Micros(1_000_000);
        let config = KcpConfig { congestion_control, ..KcpConfig::default() };
        let mut sender = Sender::new(&config, Sn(0));
        sender.aggregates = aggregates;
        sender.remote.on_window(now, Sn(0), 1_000, RTT);
        let (mut paths, slot) = (PathSet::new(now, false), sender.free_slot().unwrap());
        assert!(paths.add_validated(now, OTHER, slot, sender.path.another()).is_some());
        let other = paths.send_mut(OTHER).unwrap();
        for _ in 0..100 {
            now = now.add_micros(RTT);
            [&mut sender.path.rtt, &mut other.rtt].into_iter().for_each(|rtt| {
                rtt.on_sample(now, RTT);
            });
        }
        sender.paths = Some(Box::new(paths));
        Self { sender, clock: Clock::new(Instant::now(), 0), stats: Counters::default(), now }
    }

    fn wait(&mut self, micros: u64) {
        self.now = self.now.add_micros(micros);
    }

    fn write(&mut self, segments: usize) {
        self.sender.push(Bytes::from(vec![7; segments * self.sender.mss()]), 0);
    }

    /// Sends all that may leave on the active path. Returns the numbers.
    fn send(&mut self) -> Vec<u32> {
        let (mut sent, ts) = (Vec::new(), self.clock.timestamp(self.now));
        while let Some(next) = self.sender.next(self.now, true) {
            self.sender.begin_datagram();
            let segment = self.sender.transmit(self.now, ts, next, &mut self.stats).unwrap();
            sent.push(segment.sn.0);
        }
        sent
    }

    /// One datagram acknowledges these segments, which left at `sent`.
    fn ack(&mut self, numbers: &[u32], sent: Micros) {
        let ts = self.clock.timestamp(sent);
        for sn in numbers {
            let Self { sender, clock, stats, now } = self;
            sender.on_ack(*now, clock, Sn(*sn), ts, AckSample::Rtt, stats);
        }
        self.sender.on_acks_processed(self.now);
    }

    fn active(&self) -> PathId {
        self.sender.paths.as_ref().unwrap().active()
    }

    /// State of a path that is not the active one.
    fn other(&mut self, id: PathId) -> &mut SendPath {
        self.sender.paths.as_mut().unwrap().send_mut(id).unwrap()
    }
}

#[test]
fn path_that_is_used_again_at_once_may_send_a_burst() {
    let mut flow = Flow::new(CongestionControl::Off, false);
    flow.write(200);
    let burst = flow.send().len();
    assert!(burst > 10 && flow.send().is_empty(), "the pacer blocks");
    for to in [OTHER, PathId::FIRST] {
        flow.sender.switch_path(flow.now, to, false);
        assert_eq!(flow.send().len(), burst, "{to:?}");
    }
}

/// Two paths that answer late would otherwise be sent a window every few milliseconds. Rule: P-13.
#[test]
fn paths_that_fall_silent_in_turn_are_sent_again_as_much_as_was_acknowledged() {
    for acked in [0, 20] {
        let mut flow = Flow::new(CongestionControl::Off, false);
        flow.write(120);
        let (sent, mut in_flight) = (flow.now, Vec::new());
        while in_flight.len() < 120 {
            in_flight.append(&mut flow.send());
            flow.wait(1_000);
        }
        flow.ack(&in_flight[..acked], sent);
        let count_after = |flow: &mut Flow, times: usize, wait: u64| -> usize {
            let paths = [OTHER, PathId::FIRST].into_iter().cycle().take(times);
            paths
                .map(|to| {
                    flow.wait(wait);
                    flow.sender.switch_path(flow.now, to, true);
                    flow.send().len()
                })
                .sum()
        };
        let tokens = 64;
        assert_eq!(count_after(&mut flow, 100, 10), acked + tokens + 4, "{acked} acked");
        assert_eq!(count_after(&mut flow, 100, RTT), 4 * 100, "four a round trip");
    }
}

/// The active path gets no sample from a segment that left on the path before.
#[test]
fn ack_of_a_segment_from_the_path_before_leaves_the_rto_alone() {
    for resend in [false, true] {
        let mut flow = Flow::new(CongestionControl::Off, false);
        flow.write(1);
        let (sent, rto) = (flow.now, flow.sender.path.rtt.rto());
        assert_eq!(flow.send(), [0]);
        flow.wait(150_000);
        flow.sender.switch_path(flow.now, OTHER, resend);
        if resend {
            assert_eq!(flow.send(), [0], "it leaves on the new path");
        }
        flow.wait(20_000);
        flow.ack(&[0], sent);
        let rtt = &flow.sender.path.rtt;
        assert_eq!((flow.active(), rtt.srtt(), rtt.rto()), (OTHER, Some(RTT), rto));
    }
}

/// The segments leave at the initial window of each path.
fn with_full_paths() -> (Flow, [Vec<u32>; 2]) {
    let mut flow = Flow::new(CongestionControl::Bbr, true);
    flow.sender.set_writer_waits(true);
    flow.write(64);
    let first = flow.send();
    flow.sender.use_path(flow.now, OTHER);
    let second = flow.send();
    assert_eq!((first.len(), second.len()), (32, 32));
    assert!(flow.sender.every_path().all(|path| path.congestion.window() == 0));
    (flow, [first, second])
}

#[test]
fn acks_of_one_datagram_open_both_paths_on_which_the_segments_left() {
    let (mut flow, numbers) = with_full_paths();
    let sent = flow.now;
    flow.wait(RTT);
    flow.ack(&numbers.concat(), sent);
    assert_eq!(flow.active(), OTHER);
    for path in flow.sender.every_path() {
        let (_, rate, _) = path.congestion.estimates(1);
        assert!(path.congestion.window() == u32::MAX && rate > 0, "{rate} bytes per second");
    }
}

/// The other path has a quarter of the round trip.
#[test]
fn next_datagram_leaves_on_the_path_on_which_it_arrives_first() {
    for aggregates in [false, true] {
        let mut flow = Flow::new(CongestionControl::Bbr, aggregates);
        let now = flow.now;
        flow.other(OTHER).rtt = RttEstimator::new(Duration::from_secs(10));
        flow.other(OTHER).rtt.on_sample(now, RTT / 4);
        flow.sender.set_writer_waits(true);
        flow.write(200);
        flow.sender.choose_path(now);
        if !aggregates {
            assert_eq!(flow.active(), PathId::FIRST, "one path carries all data");
            continue;
        }
        assert_eq!(flow.active(), OTHER);
        assert!(!flow.send().is_empty());
        flow.sender.choose_path(now);
        assert_eq!(flow.active(), PathId::FIRST, "the shorter one admits nothing now");
        flow.sender.paths.as_mut().unwrap().on_overdue(now, Slot::FIRST);
        flow.sender.choose_path(now);
        assert_eq!(flow.active(), OTHER, "the first one is in doubt");
    }
}

/// The loss is no reason for the path to send nothing more.
#[test]
fn segment_that_leaves_again_elsewhere_is_not_in_flight_on_its_first_path() {
    let (mut flow, [first, second]) = with_full_paths();
    let sent = flow.now;
    flow.wait(RTT);
    flow.ack(&second, sent);
    flow.wait(250_000);
    let moved = flow.send();
    assert!(!moved.is_empty() && moved.iter().all(|sn| first.contains(sn)), "{moved:?}");
    assert_eq!(flow.active(), OTHER);
    assert_eq!(flow.other(PathId::FIRST).congestion.window(), u32::MAX);
}

#[test]
fn silent_path_is_left_and_its_model_is_forgotten() {
    let (mut flow, _) = with_full_paths();
    flow.sender.settle_paths(flow.now);
    assert_eq!(flow.active(), OTHER);
    assert_eq!(flow.other(PathId::FIRST).congestion.mode(), CongestionControl::Bbr);
    flow.sender.paths.as_mut().unwrap().leave_active(flow.now);
    flow.sender.settle_paths(flow.now);
    assert_eq!(flow.active(), PathId::FIRST);
    assert_eq!(flow.other(OTHER).congestion.mode(), CongestionControl::Off);
    assert_eq!(flow.sender.path.congestion.mode(), CongestionControl::Bbr);
}

/// A path with an RTT of 10 ms and 1 MB/s, and one with an RTT of 20 ms.
fn candidates() -> [Candidate; 2] {
    [10_000, 20_000].map(|srtt| Candidate {
        id: PathId::FIRST,
        srtt,
        min_rtt: srtt,
        resume_at: Micros(0),
        is_open: true,
        rate: 1_000_000,
        is_doubted: false,
    })
}

#[test]
fn slower_path_is_used_if_data_arrives_there_earlier_than_behind_the_backlog() {
    let mut flow = Flow::new(CongestionControl::Bbr, true);
    let [fastest, slower] = candidates();
    let mut is_worth_it = |bytes: usize| {
        flow.sender.send_buffer = SendBuffer::new(true);
        flow.sender.push(Bytes::from(vec![7; bytes]), 0);
        flow.sender.is_worth_it(&slower, &fastest)
    };
    // Half of the difference of the round trips.
    assert!(!is_worth_it(5_000) && is_worth_it(5_001));
    assert!(flow.sender.is_worth_it(&fastest, &slower));
    assert!(flow.sender.is_worth_it(&fastest, &Candidate { resume_at: Micros(9_000), ..fastest }));
}

/// In 50 ms, until a loss on the slower path is repaired, the fastest path carries 35 segments.
#[test]
fn slower_path_is_not_used_if_the_window_would_hold_up_the_fastest() {
    let mut flow = Flow::new(CongestionControl::Bbr, true);
    let [fastest, slower] = candidates();
    flow.sender.set_writer_waits(true);
    for (window, is_worth_it) in [(35, false), (36, true)] {
        flow.sender.set_window(window);
        assert_eq!(flow.sender.is_worth_it(&slower, &fastest), is_worth_it, "{window}");
    }
}

#[test]
fn slower_path_is_used_beside_a_path_of_unknown_rate_if_that_is_full_or_data_waits() {
    let mut flow = Flow::new(CongestionControl::Bbr, true);
    let [fastest, slower] = candidates();
    for (is_open, waits, is_worth_it) in
        [(true, false, false), (false, false, true), (true, true, true)]
    {
        flow.sender.set_writer_waits(waits);
        let fastest = Candidate { rate: 0, is_open, ..fastest };
        assert_eq!(flow.sender.is_worth_it(&slower, &fastest), is_worth_it);
    }
}

/// A transfer may fill a queue of one round trip; the answer to messages is late after a quarter of one.
#[test]
fn answer_is_overdue_a_quarter_or_one_round_trip_late_and_at_least_10_ms() {
    for rtt in [20_000, 80_000] {
        let mut flow = Flow::new(CongestionControl::Off, true);
        for path in [PathId::FIRST, OTHER] {
            flow.sender.use_path(flow.now, path);
            flow.sender.path.rtt = RttEstimator::new(Duration::from_secs(10));
            for _ in 0..100 {
                flow.wait(rtt);
                flow.sender.path.rtt.on_sample(flow.now, rtt);
            }
        }
        let variation = 4 * flow.sender.path.rtt.rttvar();
        assert!(variation < 1_000, "{variation}");
        assert_eq!(flow.sender.overdue_at(true), None);
        flow.write(1);
        flow.send();
        let after = |may_grow| flow.sender.overdue_at(may_grow).unwrap().since(flow.now);
        assert_eq!(after(false), rtt + (rtt / 4 + variation).max(10_000));
        assert_eq!(after(true), 2 * rtt + variation);
    }
}

/// With short queues, each of two paths may be in doubt in turn for losses of the other one. A path that is silent
/// is left at once.
#[test]
fn segments_of_a_path_in_doubt_leave_within_the_limit_of_retransmissions() {
    for (is_silent, at_once) in [(false, 64 + 4), (true, 90)] {
        let mut flow = Flow::new(CongestionControl::Off, true);
        flow.sender.use_path(flow.now, OTHER);
        let mut sent = Vec::new();
        for _ in 0..90 {
            flow.write(1);
            flow.wait(1_000);
            sent.extend(flow.send());
        }
        let slot = flow.sender.sent_segments.slot();
        let paths = flow.sender.paths.as_mut().unwrap();
        if is_silent {
            paths.leave_active(flow.now);
        } else {
            paths.on_overdue(flow.now, slot);
        }
        flow.sender.use_path(flow.now, PathId::FIRST);
        // For less than the time after which a few more may leave.
        let again = (0..25).map(|_| {
            flow.wait(1_000);
            flow.send().len()
        });
        assert_eq!((sent.len(), again.sum::<usize>()), (90, at_once));
    }
}

/// A segment that blocks the window leaves again without a limit. It does not refill the limit of the others.
#[test]
fn blocking_segment_grants_no_other_retransmission() {
    let mut flow = Flow::new(CongestionControl::Off, true);
    flow.sender.window = 8;
    flow.sender.use_path(flow.now, OTHER);
    flow.write(8);
    assert_eq!(flow.send().len(), 8);
    flow.wait(2 * RTT);
    flow.sender.use_path(flow.now, PathId::FIRST);
    for _ in 0..64 + 4 {
        flow.sender.retransmit_budget.on_retransmit(flow.now, RTT);
    }
    flow.wait(1);
    assert!(!flow.sender.retransmit_budget.may_retransmit(flow.now), "empty for 50 ms");
    let stranded = flow.sender.next_stranded();
    assert_eq!(stranded.map(|(sn, at)| (sn, at <= flow.now)), Some((Sn(0), true)));
    assert!(flow.send().len() <= 1);
    assert!(!flow.sender.retransmit_budget.may_retransmit(flow.now), "still empty");
}
