//! Pacing (RFC 9002 7.7), and copies of retransmissions of segments that keep the window closed.

use std::time::Duration;

use super::scripted_peer::{ScriptedPeer, config};
use super::sim_plan::MILLIS;
use crate::config::{CongestionControl, Mode, Timing};
use crate::core::segment::Command;
use crate::core::seq::Sn;

const RTT: u64 = 50 * MILLIS;
const WINDOW: u32 = 128;
const MSS: usize = 1_376;

/// `sn`, `ts` and time of each PUSH, microseconds.
type Pushes = Vec<(u32, u32, u64)>;

/// A connection with one RTT sample and much to send.
fn sampled(congestion: CongestionControl, rtt: u64) -> ScriptedPeer {
    let mut config = config();
    (config.timing, config.congestion_control) = (Timing::FAST3, congestion);
    config.send_window = u16::try_from(WINDOW).unwrap();
    let mut script = ScriptedPeer::new(&config);
    script.write(vec![1; MSS]);
    script.out();
    script.now = rtt;
    script.una = Sn(1);
    script.ack(0, 0);
    script.write(vec![1; MSS * 1_000]);
    script
}

/// As [`sampled`], and the window that it sends within a round trip.
fn window(congestion: CongestionControl, rtt: u64) -> (ScriptedPeer, Pushes) {
    let mut script = sampled(congestion, rtt);
    let pushes = pushes(&mut script, 2 * rtt);
    (script, pushes)
}

fn pushes(script: &mut ScriptedPeer, until: u64) -> Pushes {
    let sent = script.run(until).into_iter();
    let sent = sent.filter(|(_, (header, _))| header.command == Command::Push);
    sent.map(|(at, (header, _))| (header.sn.0, header.ts.0, at)).collect()
}

#[test]
fn pacing_spreads_a_window_over_four_fifths_of_a_round_trip() {
    let (_, sent) = window(CongestionControl::Off, RTT);
    let numbers: Vec<u32> = sent.iter().map(|(sn, ..)| *sn).collect();
    assert_eq!(numbers, (1..=WINDOW).collect::<Vec<_>>());
    let by = |ms: u64| sent.iter().filter(|(.., at)| *at <= RTT + ms * MILLIS).count();
    // The burst limit, and then 128 segments in 40 ms.
    assert_eq!(by(0), 33);
    assert!((40..=44).contains(&by(3)), "{} within 3 ms", by(3));
    assert!((80..=84).contains(&by(16)), "{} within 16 ms", by(16));
    assert_eq!(by(32), WINDOW as usize);
}

#[test]
fn change_of_the_path_lets_a_burst_leave_at_once() {
    let mut script = sampled(CongestionControl::Off, RTT);
    let burst = |script: &mut ScriptedPeer| {
        let sent = script.out();
        sent.iter().filter(|(header, _)| header.command == Command::Push).count()
    };
    assert_eq!([burst(&mut script), burst(&mut script)], [33, 0]);
    script.kcp.on_path_changed(script.instant());
    assert_eq!([burst(&mut script), burst(&mut script)], [33, 0]);
}

/// The longest burst, without the first one of the window.
fn longest_burst(interval: u64) -> usize {
    let mut config = config();
    (config.timing, config.congestion_control) = (Timing::FAST3, CongestionControl::Off);
    config.send_window = u16::try_from(WINDOW).unwrap();
    config.pacing_interval = Duration::from_millis(interval);
    let mut script = ScriptedPeer::new(&config);
    script.write(vec![1; MSS]);
    script.out();
    script.now = RTT;
    script.una = Sn(1);
    script.ack(0, 0);
    script.write(vec![1; MSS * 1_000]);
    let mut bursts = std::collections::BTreeMap::new();
    for (_, _, at) in pushes(&mut script, 2 * RTT) {
        *bursts.entry(at).or_insert(0) += 1;
    }
    bursts.into_iter().skip(1).map(|(_, segments)| segments).max().unwrap()
}

#[test]
fn pacing_interval_sets_the_burst_length() {
    // 128 segments in 40 ms are 3.2 per millisecond.
    assert_eq!([0, 1, 5].map(longest_burst), [1, 4, 17]);
}

#[test]
fn pacing_on_a_short_path_sends_the_window_at_once() {
    let (_, sent) = window(CongestionControl::Bbr, MILLIS);
    assert_eq!(sent.len(), WINDOW as usize);
    assert!(sent.iter().all(|(.., at)| *at == MILLIS), "{sent:?}");
}

/// The retransmitted numbers when all segments but `lost` were acknowledged.
fn retransmitted(lost: &[u32], window_is_open: bool) -> Vec<u32> {
    let (mut script, sent) = window(CongestionControl::Off, RTT);
    if window_is_open {
        script.kcp.set_windows(2 * u16::try_from(WINDOW).unwrap(), 128).unwrap();
        script.wnd = 1_024;
    }
    for (sn, ts, at) in sent {
        if !lost.contains(&sn) {
            script.now = script.now.max(at + RTT);
            script.ack(sn, ts);
        }
    }
    let last = script.now;
    let sent = pushes(&mut script, last).into_iter().map(|(sn, ..)| sn);
    sent.filter(|sn| *sn <= WINDOW).collect()
}

#[test]
fn redundant_retransmit_of_a_segment_that_closes_the_window_is_sent() {
    // Segment 120 is in the last quarter of the window, so there is time for another retransmission.
    assert_eq!(retransmitted(&[1, 60, 120], false), [1, 1, 60, 60, 120]);
    assert_eq!(retransmitted(&[1, 60, 120], true), [1, 60, 120]);
}

#[test]
fn redundant_retransmit_with_a_congestion_window_is_not_sent() {
    let (mut script, mut sent) = window(CongestionControl::Reno, RTT);
    // Slow start until there are enough later ACKs to detect a loss.
    while sent.len() < 8 {
        script.now += RTT;
        script.una = Sn(sent.last().unwrap().0 + 1);
        sent.into_iter().for_each(|(sn, ts, _)| script.ack(sn, ts));
        let until = script.now + RTT;
        sent = pushes(&mut script, until);
    }
    script.now += RTT;
    let (lost, ..) = sent[0];
    sent[1..].iter().for_each(|(sn, ts, _)| script.ack(*sn, *ts));
    let now = script.now;
    let sent = pushes(&mut script, now);
    assert_eq!(sent.iter().filter(|(sn, ..)| *sn == lost).count(), 1, "{sent:?}");
}

#[test]
fn redundant_retransmit_of_an_acked_segment_is_dropped() {
    let mut config = config();
    (config.mode, config.timing, config.send_window) = (Mode::Message, Timing::FAST3, 4);
    let mut script = ScriptedPeer::new(&config);
    let write = |script: &mut ScriptedPeer, count: u8| {
        (0..count).for_each(|i| script.kcp.send(script.instant(), vec![i; 20].into()));
    };
    write(&mut script, 1);
    let (first, _) = script.out().remove(0);
    script.now = RTT;
    script.una = Sn(1);
    script.ack(0, first.ts.0);
    write(&mut script, 4);
    let sent = script.out();
    script.now += RTT;
    sent[1..].iter().for_each(|(header, _)| script.ack(header.sn.0, header.ts.0));
    let (now, mut datagram) = (script.instant(), Vec::new());
    let retransmit = script.kcp.poll_transmit(now, &mut datagram).unwrap();
    assert_eq!(retransmit.segments, 1, "the redundant one would leave next");
    // The original's ACK arrives late.
    script.una = Sn(5);
    script.ack(1, sent[0].0.ts.0);
    write(&mut script, 3);
    let together = script.kcp.poll_transmit(now, &mut datagram).unwrap();
    assert_eq!(together.segments, 3);
}
