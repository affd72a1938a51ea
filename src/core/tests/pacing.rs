//! When segments leave: a window bit by bit, and a repetition that everything waits for twice.

use super::scripted_peer::{Lone, config};
use super::sim_plan::MILLIS;
use crate::config::{CongestionControl, Mode, Timing};
use crate::core::segment::Command;
use crate::core::seq::Sn;

const RTT: u64 = 50 * MILLIS;
const WINDOW: u32 = 128;
const MSS: usize = 1_376;

/// Number, stamp and time of each data segment.
type Pushes = Vec<(u32, u32, u64)>;

/// A conversation that knows its path, and a window that leaves over it.
fn window(preset: Timing, rtt: u64) -> (Lone, Pushes) {
    let mut config = config();
    config.timing = preset;
    config.send_window = u16::try_from(WINDOW).unwrap();
    let mut lone = Lone::new(&config);
    lone.write(vec![1; MSS]);
    lone.out();
    lone.now = rtt;
    lone.una = Sn(1);
    lone.ack(0, 0);
    lone.write(vec![1; MSS * 1_000]);
    let pushes = pushes(&mut lone, 2 * rtt);
    (lone, pushes)
}

fn pushes(lone: &mut Lone, until: u64) -> Pushes {
    let sent = lone.run(until).into_iter();
    let sent = sent.filter(|(_, (header, _))| header.command == Command::Push);
    sent.map(|(at, (header, _))| (header.sn.0, header.ts.0, at)).collect()
}

#[test]
fn a_window_leaves_over_a_round_trip() {
    let (_, sent) = window(Timing::TURBO, RTT);
    let numbers: Vec<u32> = sent.iter().map(|(sn, ..)| *sn).collect();
    assert_eq!(numbers, (1..=WINDOW).collect::<Vec<_>>());
    let by = |at: u64| sent.iter().filter(|(.., left)| *left <= RTT + at * MILLIS).count();
    // What may leave at once, and then 128 segments in 40 ms.
    assert_eq!(by(0), 33);
    assert!((40..=44).contains(&by(3)), "{} within 3 ms", by(3));
    assert!((80..=84).contains(&by(16)), "{} within 16 ms", by(16));
    assert_eq!(by(32), WINDOW as usize);
}

#[test]
fn on_a_short_path_it_leaves_at_once() {
    let (_, sent) = window(Timing::TURBO, MILLIS);
    assert_eq!(sent.len(), WINDOW as usize);
    assert!(sent.iter().all(|(.., at)| *at == MILLIS), "{sent:?}");
}

/// What is repeated when everything arrived but these.
fn repeated(preset: Timing, lost: &[u32], window_is_open: bool) -> Vec<u32> {
    let (mut lone, sent) = window(preset, RTT);
    if window_is_open {
        lone.kcp.set_windows(2 * u16::try_from(WINDOW).unwrap(), 128).unwrap();
        lone.wnd = 1_024;
    }
    for (sn, ts, at) in sent {
        if !lost.contains(&sn) {
            lone.now = lone.now.max(at + RTT);
            lone.ack(sn, ts);
        }
    }
    let last = lone.now;
    let again = pushes(&mut lone, last).into_iter().map(|(sn, ..)| sn);
    again.filter(|sn| *sn <= WINDOW).collect()
}

#[test]
fn a_repetition_that_the_window_waits_for_leaves_twice() {
    // 120 is in the last quarter: by then it has time to be repeated again.
    assert_eq!(repeated(Timing::TURBO, &[1, 60, 120], false), [1, 1, 60, 60, 120]);
    assert_eq!(repeated(Timing::TURBO, &[1, 60, 120], true), [1, 60, 120]);
}

#[test]
fn a_congestion_window_is_not_burdened_with_twins() {
    let preset = Timing { congestion: CongestionControl::Reno, ..Timing::TURBO };
    let (mut lone, mut sent) = window(preset, RTT);
    // Slow start, until enough is in flight to find a loss.
    while sent.len() < 8 {
        lone.now += RTT;
        lone.una = Sn(sent.last().unwrap().0 + 1);
        sent.into_iter().for_each(|(sn, ts, _)| lone.ack(sn, ts));
        let until = lone.now + RTT;
        sent = pushes(&mut lone, until);
    }
    lone.now += RTT;
    let (lost, ..) = sent[0];
    sent[1..].iter().for_each(|(sn, ts, _)| lone.ack(*sn, *ts));
    let now = lone.now;
    let again = pushes(&mut lone, now);
    assert_eq!(again.iter().filter(|(sn, ..)| *sn == lost).count(), 1, "{again:?}");
}

#[test]
fn a_twin_that_is_not_needed_any_more_keeps_nobody_waiting() {
    let mut config = config();
    (config.mode, config.timing, config.send_window) = (Mode::Message, Timing::TURBO, 4);
    let mut lone = Lone::new(&config);
    let say = |lone: &mut Lone, count: u8| {
        (0..count).for_each(|i| lone.kcp.send(lone.instant(), vec![i; 20].into()));
    };
    say(&mut lone, 1);
    let (first, _) = lone.out().remove(0);
    lone.now = RTT;
    lone.una = Sn(1);
    lone.ack(0, first.ts.0);
    say(&mut lone, 4);
    let sent = lone.out();
    lone.now += RTT;
    sent[1..].iter().for_each(|(header, _)| lone.ack(header.sn.0, header.ts.0));
    let (now, mut datagram) = (lone.instant(), Vec::new());
    let again = lone.kcp.poll_transmit(now, &mut datagram).unwrap();
    assert_eq!(again.segments, 1, "its twin would leave next");
    // The original was merely late.
    lone.una = Sn(5);
    lone.ack(1, sent[0].0.ts.0);
    say(&mut lone, 3);
    let together = lone.kcp.poll_transmit(now, &mut datagram).unwrap();
    assert_eq!(together.segments, 3);
}
