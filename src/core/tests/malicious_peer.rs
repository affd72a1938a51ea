//! Datagrams that no honest peer sends, and what must not come of them.

use super::link::{CERTAIN, Rng};
use super::report::{each_seed, explained};
use super::scripted_peer::{Lone, commands, config, datagram, header};
use super::sim::Sim;
use super::sim_plan::{DAY, MILLIS, Plan, SECOND, Set};
use crate::config::{Mode, Timing};
use crate::core::segment::{Command, HEADER_LEN};
use crate::core::seq::Sn;
use crate::stats::ConnectionStats;

const RTT: u64 = 40 * MILLIS;

/// `count` full segments in flight, sent at stamp 1,000 and some of them again later.
fn in_flight(count: u32) -> Lone {
    let mut config = config();
    config.timing = Timing::FAST3;
    let mut lone = Lone::new(&config);
    lone.now = 1_000 * MILLIS;
    lone.write(vec![7; 1_376 * count as usize]);
    assert_eq!(lone.out().len(), count as usize);
    lone
}

/// The whole of what acknowledgements may change.
fn state(lone: &Lone) -> String {
    format!("{:?}", lone.kcp.send)
}

#[test]
fn an_ack_counts_only_with_a_stamp_of_its_segment() {
    let mut lone = in_flight(8);
    lone.give(header(Command::WindowUpdate, 1 << 30, 0), b"");
    lone.now += 20 * MILLIS;
    let (before, stats) = (state(&lone), lone.kcp.stats());
    let mut forged = 0;
    let stamps = [0, 999, 1_001, 1_019, 1_020, 1_021, 1_000 + (1 << 31), u32::MAX, 1 << 31];
    for sn in [0, 3, 7] {
        for ts in stamps {
            lone.ack(sn, ts);
            forged += 1;
        }
    }
    for sn in [8, 9, 1_000, 1 << 31, u32::MAX] {
        lone.ack(sn, 1_000);
        forged += 1;
    }
    assert_eq!(state(&lone), before);
    let changed = lone.kcp.stats();
    let stats = ConnectionStats {
        invalid_acks: forged,
        received_datagrams: changed.received_datagrams,
        received_datagram_bytes: changed.received_datagram_bytes,
        ..stats
    };
    assert_eq!(changed, stats);
    assert!(!lone.kcp.is_established());
    lone.ack(3, 1_000);
    assert!(lone.kcp.is_established());
    assert_ne!(state(&lone), before);
}

/// Also when its first transmission lies more than half the circle of stamps back.
#[test]
fn an_ack_of_the_last_transmission_always_counts() {
    let mut lone = in_flight(1);
    lone.now += 26 * DAY;
    let again = lone.out();
    assert_eq!(again.len(), 1);
    lone.now += RTT;
    lone.ack(0, again[0].0.ts.0);
    assert!(lone.kcp.is_established());
    assert_eq!(lone.kcp.stats().invalid_acks, 0);
}

#[test]
fn no_stamp_talks_the_time_out_beyond_its_bounds() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut lone = in_flight(30);
        for _ in 0..300 {
            lone.now += rng.spread(1, SECOND);
            lone.out();
            lone.ack(rng.below(32) as u32, rng.next() as u32 >> rng.below(32));
            let rto = lone.kcp.stats().rto.as_micros() as u64;
            assert!((30 * MILLIS..=10 * SECOND).contains(&rto));
        }
        // Then the peer turns honest, and so does the estimate.
        lone.una = Sn(30);
        lone.ack(29, 0);
        for sn in 30..158 {
            lone.write(vec![1; 10]);
            lone.out();
            let ts = lone.now / MILLIS;
            lone.now += RTT;
            lone.una = Sn(sn + 1);
            lone.ack(sn, ts as u32);
        }
        let rto = lone.kcp.stats().rto.as_micros() as u64;
        assert!(rto <= 2 * RTT + 10 * MILLIS, "seed {seed}: {rto}");
    }
}

/// One sample of an hour, as after a host stood still for that long, is forgotten soon.
#[test]
fn one_very_late_ack_does_not_slow_down_what_follows() {
    let mut lone = in_flight(1);
    lone.now += 3_600 * SECOND;
    lone.una = Sn(1);
    lone.ack(0, 1_000);
    for sn in 1..70 {
        lone.write(vec![1; 10]);
        lone.out();
        let ts = lone.now / MILLIS;
        lone.now += RTT;
        lone.una = Sn(sn + 1);
        lone.ack(sn, ts as u32);
    }
    let rto = lone.kcp.stats().rto;
    assert!(rto.as_millis() < 250, "{rto:?}");
}

#[test]
fn a_cumulative_ack_of_what_was_never_sent_releases_nothing() {
    for beyond in [1, 2, 32, 128, 65_535, (1 << 31) - 9, (1 << 31) - 8, 1 << 31] {
        let mut lone = in_flight(8);
        let before = state(&lone);
        lone.una = Sn(8).advance(beyond);
        for command in [Command::WindowUpdate, Command::WindowProbe, Command::Ack, Command::Push] {
            lone.give(header(command, 1 << 30, 5), b"");
        }
        assert_eq!(state(&lone), before, "{beyond} beyond");
        let stats = lone.kcp.stats();
        assert_eq!(stats.in_flight_segments, 8);
        assert_eq!(stats.invalid_una + stats.stale_una_datagrams, 4);
        // Its data is used all the same.
        lone.push(0, b"hello");
        assert_eq!(lone.read_all(), b"hello");
    }
}

#[test]
fn repeated_acks_cause_no_storm() {
    let mut lone = in_flight(32);
    lone.now += RTT;
    let mut sent = 0;
    for _ in 0..1_000 {
        lone.ack(31, 1_000);
        lone.ack(30, 1_000);
        sent += lone.out().len();
        lone.now += 10;
    }
    assert!(sent <= 30, "{sent} repetitions of 30 segments within a quarter of a round trip");
}

/// Floods of one kind, one turn for each datagram or one for all.
#[test]
fn a_flood_is_answered_with_no_more_than_came() {
    type Make = fn(u32) -> Vec<u8>;
    let floods: [(&str, Make); 6] = [
        ("questions", |_| datagram(&[(header(Command::WindowProbe, 9, 0), b"")])),
        ("many questions", |_| datagram(&[(header(Command::WindowProbe, 9, 0), &[][..]); 50])),
        ("old data", |i| datagram(&[(header(Command::Push, (1 << 31) + 2 + i, i), b"")])),
        ("ahead", |i| datagram(&[(header(Command::Push, 2 + i % 100, i), b"x")])),
        ("beyond", |i| datagram(&[(header(Command::Push, 5_000 + i, i), b"x")])),
        ("answers", |i| datagram(&[(header(Command::Ack, i, i), b"")])),
    ];
    for (name, make) in floods {
        for turn in [1, 1_000] {
            let mut lone = Lone::new(&config());
            lone.push(0, b"hello");
            lone.read_all();
            lone.out();
            (lone.sent, lone.received) = ((0, 0), (0, 0));
            for i in 0..100_000 {
                lone.input(&make(i)).unwrap();
                if i % turn == turn - 1 {
                    lone.now += 10;
                    lone.out();
                }
            }
            assert!(lone.kcp.acks.len() <= 1_024 + 2);
            let ((count, bytes), (count_in, bytes_in)) = (lone.sent, lone.received);
            // An echo probe a second is allowed on top.
            assert!(count <= count_in + 2 && bytes <= bytes_in + 48, "{name}: {count}, {bytes}");
        }
    }
}

#[test]
fn empty_segments_change_nothing_for_a_byte_stream() {
    let mut lone = Lone::new(&config());
    let window = 1_024;
    // A window full of them behind a gap, then in order, again and again.
    for round in 0..4 {
        let start = round * window;
        for i in 1..window {
            lone.push(start + i, b"");
        }
        assert_eq!(lone.kcp.readable(), None);
        lone.push(start, b"");
        assert_eq!((lone.kcp.readable(), lone.kcp.recv()), (None, None));
        let acks = lone.out();
        assert_eq!(acks.last().map(|(h, _)| (h.una, h.wnd)), Some((Sn(start + window), 1_024)));
    }
    let next = 4 * window;
    for (i, payload) in ["", "he", "", "", "llo", ""].iter().enumerate() {
        lone.push(next + i as u32, payload.as_bytes());
    }
    assert_eq!(lone.read_all(), b"hello");
}

#[test]
fn of_two_that_contradict_each_other_the_first_stays() {
    for mode in [Mode::Stream, Mode::Message] {
        let mut config = config();
        config.mode = mode;
        let mut lone = Lone::new(&config);
        for (sn, payload) in [(1, "bb"), (1, "xx"), (2, "cc"), (0, "aa"), (0, "yy"), (2, "zzz")] {
            lone.push(sn, payload.as_bytes());
        }
        assert_eq!(lone.read_all(), b"aabbcc");
        assert_eq!(lone.kcp.stats().duplicate_segments, 3);
    }
}

/// A pair whose path damages datagrams without anybody noticing: nothing may panic or leave its
/// bounds, whatever arrives, and wherever it ends.
#[test]
fn damaged_datagrams_do_no_harm() {
    let set = Set {
        name: "damaged",
        shape: |plan, rng| {
            for side in &mut plan.sides {
                side.link.corrupt = rng.pick(&[1_000, 30_000, 300_000, CERTAIN]);
                side.link.loss = rng.pick(&[0, 100_000]);
                side.traffic.whole = false;
            }
        },
    };
    let (mut ended, mut dropped) = (0, 0);
    each_seed("malicious_peer::damaged_datagrams_do_no_harm", 0..200, |seed, verbose| {
        let plan = Plan::draw(&set, seed);
        let mut sim = Sim::new(&plan);
        sim.verbose = verbose;
        sim.deliver_damaged();
        explained(&plan, || sim.start());
        explained(&plan, || sim.run_until(120 * SECOND));
        let stats = sim.sides.each_ref().map(|side| side.kcp.stats());
        ended += u64::from(sim.sides.iter().any(|side| side.ended().is_some()));
        dropped += stats.iter().map(|s| s.invalid_acks + s.invalid_una).sum::<u64>();
        format!("{plan}\n{stats:?}")
    });
    println!("damaged: {ended} of 200 pairs ended, {dropped} contradictions");
}

/// Valid datagrams with a few bytes changed, straight into a busy core.
#[test]
fn mutated_datagrams_do_no_harm() {
    let mut refused = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut config = config();
        config.mode = rng.pick(&[Mode::Stream, Mode::Message]);
        config.recv_window = rng.pick(&[1, 16, 256]);
        let mut lone = Lone::new(&config);
        for step in 0..200 {
            lone.now += rng.below(50 * MILLIS);
            if rng.chance(300_000) && lone.kcp.send_capacity() > 3_000 {
                lone.write(vec![1; rng.range(1, 3_000) as usize]);
            }
            let command = rng.pick(&[
                Command::Push,
                Command::Ack,
                Command::WindowProbe,
                Command::WindowUpdate,
            ]);
            let one = (header(command, step / 2, (lone.now / MILLIS) as u32), &[5; 40][..]);
            let mut bytes = datagram(&vec![one; rng.range(1, 4) as usize]);
            for _ in 0..rng.below(4) {
                let at = 4 + rng.below(bytes.len() as u64 - 4) as usize;
                bytes[at] = rng.next() as u8;
            }
            refused += u64::from(lone.input(&bytes).is_err());
            lone.out();
            lone.kcp.recv();
            assert!(lone.kcp.acks.len() <= 258);
        }
    }
    assert!(refused > 1_000, "{refused}");
}

#[test]
fn a_datagram_twice_is_a_datagram_once() {
    // Only the counters of repetitions and the acknowledgement of one may differ.
    let mut once = in_flight(4);
    let mut twice = in_flight(4);
    let mixed = datagram(&[
        (header(Command::Ack, 1, 1_000), b""),
        (header(Command::Push, 0, 5), b"data"),
        (header(Command::Push, 2, 5), b"ahead"),
        (header(Command::WindowProbe, 9, 0), b""),
    ]);
    for (lone, times) in [(&mut once, 1), (&mut twice, 2)] {
        lone.now += RTT;
        for _ in 0..times {
            lone.input(&mixed).unwrap();
        }
    }
    assert_eq!(once.read_all(), twice.read_all());
    assert_eq!(twice.kcp.stats().duplicate_segments, 2);
    let (once, twice) = (commands(&once.out()), commands(&twice.out()));
    let acks = |all: &[Command]| all.iter().filter(|&&c| c == Command::Ack).count();
    assert_eq!((acks(&once), acks(&twice)), (1, 2));
    assert_eq!(once.len() + 1, twice.len());
}

#[test]
fn a_datagram_is_refused_whole_or_taken_whole() {
    let mut lone = Lone::new(&config());
    let good =
        datagram(&[(header(Command::Push, 0, 5), b"one"), (header(Command::Push, 1, 5), b"two")]);
    for len in 0..good.len() {
        let whole = (HEADER_LEN + 3..2 * HEADER_LEN + 3).contains(&len);
        let mut fresh = Lone::new(&config());
        assert_eq!(fresh.input(&good[..len]).is_ok(), whole, "length {len}");
        assert_eq!(fresh.read_all(), if whole { &b"one"[..] } else { b"" });
    }
    lone.input(&good).unwrap();
    assert_eq!(lone.read_all(), b"onetwo");
}
