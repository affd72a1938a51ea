//! The receive window, the memory limit, what an idle receiver gives back, and recovered segments.

use std::time::Duration;

use super::*;
use crate::config::DEFAULT_WINDOW;
use crate::core::redundancy::rlc;
use crate::testkit::rng::Rng;

/// A byte stream with a fixed window of `segments`.
fn stream(segments: u16) -> Receiver {
    let config = KcpConfig { recv_window: segments, auto_windows: false, ..KcpConfig::default() };
    Receiver::new(&config, Sn(0))
}

/// Reads everything.
fn drain(receiver: &mut Receiver) {
    while receiver.recv().is_some() {}
}

/// The next segment in order arrives.
fn push_next(receiver: &mut Receiver, len: usize) {
    let nxt = receiver.nxt();
    assert_eq!(receiver.input(nxt, 0, &vec![7; len]), Ok(RecvOutcome::InOrder));
}

#[test]
fn window_set_in_use_opens_at_once_and_closes_as_the_peer_uses_it_up() {
    let mut receiver = stream(128);
    assert_eq!(receiver.advertise_window(), 128);
    receiver.set_window(300);
    assert_eq!(receiver.advertise_window(), 300);
    receiver.set_window(16);
    for arrived in 1..=400 {
        push_next(&mut receiver, 10);
        drain(&mut receiver);
        let left = 300_u16.saturating_sub(arrived);
        assert_eq!(receiver.advertise_window(), left.max(16), "after {arrived} segments");
        receiver.check_invariants();
    }
}

#[test]
fn window_set_by_the_application_is_not_autotuned() {
    for (is_set, expected) in [(false, 2 * DEFAULT_WINDOW), (true, DEFAULT_WINDOW)] {
        let mut receiver = Receiver::new(&KcpConfig::default(), Sn(0));
        if is_set {
            receiver.set_window(DEFAULT_WINDOW);
        }
        let mut rtt = RttEstimator::new(Duration::from_secs(10));
        rtt.on_sample(Micros(0), 50_000);
        for _ in 0..DEFAULT_WINDOW {
            push_next(&mut receiver, 10);
            drain(&mut receiver);
        }
        receiver.autotune_window(Micros(100_000), &rtt);
        assert_eq!(receiver.advertise_window(), expected);
    }
}

/// The slots of the reordering queue count, also the unused ones.
#[test]
fn segments_above_a_gap_stay_within_the_memory_limit() {
    let (mut stored, mut refused) = (0, 0);
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let mut receiver = stream(1_024);
        let limit = rng.spread(150, 100_000) as usize;
        receiver.limit_memory(limit, false);
        for _ in 0..100 {
            let (sn, len) = (rng.spread(1, 1_000) as u32, rng.size(1, 200));
            match receiver.input(Sn(sn), 0, &vec![0; len]).unwrap() {
                RecvOutcome::OutOfOrder => stored += 1,
                RecvOutcome::OutOfWindow => refused += 1,
                _ => {}
            }
            assert!(receiver.memory() <= limit, "seed {seed}: {} of {limit}", receiver.memory());
        }
    }
    assert!(stored > 5_000 && refused > 5_000, "{stored} stored, {refused} refused");
}

#[test]
fn memory_of_read_data_is_given_back_while_idle() {
    for (count, len) in [(100, 1_000), (1, 10)] {
        let mut receiver = stream(1_024);
        assert!(!receiver.has_reclaimable_memory());
        (0..count).for_each(|_| push_next(&mut receiver, len));
        drain(&mut receiver);
        assert!(receiver.has_reclaimable_memory(), "{count} segments");
        receiver.release_memory();
        assert!(!receiver.has_reclaimable_memory(), "{count} segments");
        assert_eq!(receiver.memory(), 0);
    }
}

/// It shares the last buffer of the burst, whose data was read.
#[test]
fn data_after_a_large_burst_needs_no_other_buffer() {
    let mut receiver = stream(1_024);
    // More than two buffers of 64 KiB.
    (0..132).for_each(|_| push_next(&mut receiver, 1_000));
    let read = std::iter::from_fn(|| receiver.recv().map(|data| (data.as_ptr(), data.len())));
    let (end, len) = read.last().unwrap();
    assert!(len < 16_000, "{len} bytes in the last buffer");
    push_next(&mut receiver, 1_000);
    assert_eq!(receiver.recv().unwrap().as_ptr(), end);
}

/// A REPAIR with this key over the segments from `first` on, which carry `payloads`.
fn symbol(key: u32, payloads: &[&[u8]]) -> Vec<u8> {
    let longest = payloads.iter().map(|payload| payload.len()).max().unwrap_or(0);
    let mut symbol = Vec::new();
    rlc::write_repair(key, payloads.iter().map(|payload| (0, *payload)), longest, &mut symbol);
    symbol
}

/// A symbol over the next segments in order arrives, in a datagram of its own.
fn repair(receiver: &mut Receiver, key: u32, payloads: &[&[u8]]) -> Vec<RecoveredSegment> {
    let (first, count, symbol) = (receiver.nxt(), payloads.len() as u8, symbol(key, payloads));
    receiver.start_datagram();
    let symbol = RepairSymbol { key, first, count, symbol: &symbol };
    let (verdict, recovered) = receiver.on_repair(Micros(0), symbol);
    assert_eq!(verdict, Inserted::Innovative, "key {key}");
    recovered
}

/// Two equations for two segments cost two additions of rows; a datagram may cost 64.
#[test]
fn decoding_work_is_limited_per_datagram_and_not_for_the_connection() {
    let mut receiver = stream(1_024);
    for round in 0..200 {
        let payloads: [&[u8]; 2] = [&[round; 20], &[!round; 20]];
        let key = 2 * u32::from(round);
        assert!(repair(&mut receiver, key, &payloads).is_empty());
        let mut recovered = repair(&mut receiver, key + 1, &payloads);
        recovered.sort_by_key(|segment| segment.sn.0);
        let found: Vec<_> = recovered.iter().map(|segment| &segment.payload[..]).collect();
        assert_eq!(found, payloads, "round {round}");
        for segment in recovered {
            receiver.input(segment.sn, segment.frg, &segment.payload).unwrap();
        }
        drain(&mut receiver);
    }
}

/// The payloads of two segments, and memory that they leave, bytes.
#[test]
fn repair_memory_is_freed_for_data_when_memory_is_limited() {
    for (more, is_limited) in [(1_000, true), (usize::MAX, false)] {
        let mut receiver = stream(1_024);
        assert!(repair(&mut receiver, 7, &[&[1; 500], &[2; 500]]).is_empty());
        let before = receiver.memory();
        assert!(before > 500, "an equation is kept");
        receiver.limit_memory(more, false);
        assert_eq!(receiver.memory(), if is_limited { 0 } else { before });
        receiver.check_invariants();
    }
}

#[test]
fn recovery_state_is_released_without_a_gap_and_without_waiting_acks() {
    let mut receiver = stream(1_024);
    let is_released = |receiver: &mut Receiver| {
        receiver.release_memory();
        !receiver.has_repair_state()
    };
    let recovered = repair(&mut receiver, 7, &[b"recovered"]);
    let [segment] = &recovered[..] else { panic!("{recovered:?}") };
    receiver.input(segment.sn, segment.frg, &segment.payload).unwrap();
    receiver.ack_recovered(segment.sn, segment.key);
    drain(&mut receiver);
    assert!(!is_released(&mut receiver), "its ACK waits");
    assert_eq!(receiver.take_recovered_acks(9).count(), 1);
    receiver.input(Sn(2), 0, b"behind a gap").unwrap();
    assert!(!is_released(&mut receiver), "an equation may fill the gap");
    receiver.input(Sn(1), 0, b"the gap").unwrap();
    drain(&mut receiver);
    assert!(receiver.has_reclaimable_memory());
    assert!(is_released(&mut receiver));
    assert!(!receiver.has_reclaimable_memory());
}

/// Number and `frg` of a segment.
type Numbered = (u32, u8);

/// A message of `n` fragments has `frg` from `n` - 1 down to 0.
#[test]
fn recovered_segment_fits_the_messages_before_and_after_it() {
    let config = KcpConfig {
        mode: Mode::Message,
        recv_window: 8,
        auto_windows: false,
        ..KcpConfig::default()
    };
    // Number and `frg` of stored segments and of the recovered one, and whether it fits.
    let cases: &[(&[Numbered], Numbered, bool)] = &[
        (&[], (0, 0), true),
        (&[], (0, 7), true),
        (&[], (0, 8), false),
        (&[(1, 3)], (0, 0), true),
        (&[(1, 3)], (0, 4), true),
        (&[(1, 3)], (0, 3), false),
        (&[], (2, 0), false),
        (&[(1, 2)], (2, 1), true),
        (&[(1, 2)], (2, 0), false),
        (&[(1, 2)], (2, 2), false),
        (&[(1, 0)], (2, 7), true),
        (&[(1, 0)], (2, 8), false),
        (&[(1, 9)], (2, 8), true),
        (&[(1, 0), (3, 5)], (2, 0), true),
        (&[(1, 0), (3, 5)], (2, 6), true),
        (&[(1, 0), (3, 5)], (2, 4), false),
        (&[(1, 3), (3, 5)], (2, 2), false),
    ];
    for &(stored, (sn, frg), fits) in cases {
        let mut receiver = Receiver::new(&config, Sn(0));
        for &(sn, frg) in stored {
            assert_eq!(receiver.input(Sn(sn), frg, b"x"), Ok(RecvOutcome::OutOfOrder));
        }
        let is_fitting = receiver.continues_message(Sn(sn), frg, 1);
        assert_eq!(is_fitting, fits, "{stored:?} and {sn} with frg {frg}");
    }
    assert!(stream(8).continues_message(Sn(2), 200, 1), "a byte stream has no messages");
}
