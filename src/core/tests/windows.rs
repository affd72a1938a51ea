//! Receive windows that close, shrink, are smaller than the first guess or go unheard, and
//! acknowledgements that wait.

use std::num::NonZeroU64;
use std::time::Duration;

use super::link::{LinkConfig, Rng};
use super::report::explained;
use super::scripted_peer::{Lone, commands, config, header};
use super::sim::Sim;
use super::sim_plan::{MILLIS, Plan, Reading, SECOND};
use crate::config::{AckPolicy, Timing};
use crate::core::segment::Command;
use crate::core::seq::Sn;

/// A reader that stops, and a path that loses every datagram which would tell of its return: once
/// it loses no more, data flows within the longest wait between two questions and a round trip.
#[test]
fn a_closed_window_reopens_though_every_word_of_it_was_lost() {
    for lost_for in [0, SECOND, 7 * SECOND, 60 * SECOND, 600 * SECOND] {
        let mut plan = Plan::plain("closed window");
        let pause = (100 * MILLIS, 20 * SECOND);
        plan.sides[0].traffic.bytes = 400_000;
        plan.sides[1].config.recv_window = 32;
        plan.sides[1].reading = Reading { chunks: 1_000, every: 1, pause };
        plan.chaos = pause.1 + lost_for;
        let mut sim = Sim::new(&plan);
        let until = plan.chaos;
        sim.filter = Some(Box::new(move |now, from, _| {
            from == 0 || !(pause.0 + SECOND..until).contains(&now)
        }));
        explained(&plan, || {
            sim.start();
            sim.run_until(until);
            let (read, mut flowed) = (sim.sides[1].read, None);
            assert!(sim.sides[0].kcp.stats().window_probes >= 3, "it asks all the time");
            while flowed.is_none() {
                sim.step();
                flowed = (sim.sides[1].read > read).then_some(sim.now - until);
            }
            // Half a round trip for the question, one for the answer and the data.
            assert!(flowed.unwrap() <= 5 * SECOND + 60 * MILLIS, "{flowed:?}");
            sim.run();
        });
    }
}

/// The same where the window was closed before there was anything to send.
#[test]
fn a_window_that_closed_on_the_last_byte_is_asked_about_too() {
    let mut lone = Lone::new(&config());
    lone.write(vec![1; 100]);
    lone.out();
    lone.now = 40 * MILLIS;
    (lone.una, lone.wnd) = (Sn(1), 0);
    lone.ack(0, 0);
    assert_eq!(lone.timeout(), None);
    lone.now = 10 * SECOND;
    lone.write(vec![2; 100]);
    let asked: Vec<_> = lone.run(40 * SECOND).into_iter().map(|(at, _)| at / MILLIS).collect();
    assert_eq!(asked, [10_500, 11_500, 13_500, 17_500, 22_500, 27_500, 32_500, 37_500]);
}

/// A peer whose reader is slow acknowledges segments one by one and holds the cumulative
/// acknowledgement back. If its word that it goes on is lost, it must be asked.
#[test]
fn acknowledged_but_not_released_data_is_asked_about() {
    for more in [false, true] {
        let mut lone = Lone::new(&config());
        lone.write(vec![1; 1_376 * 4]);
        lone.out();
        lone.now = 40 * MILLIS;
        lone.wnd = 0;
        for sn in 0..4 {
            lone.ack(sn, 0);
        }
        if more {
            lone.write(vec![2; 5_000]);
        }
        assert!(!lone.kcp.is_drained());
        let sent = lone.run(10 * SECOND);
        assert!(sent.iter().all(|(_, (header, _))| header.command == Command::WindowProbe));
        assert!(sent.len() >= 3, "{sent:?}");
        (lone.una, lone.wnd) = (Sn(4), 128);
        lone.give(header(Command::WindowUpdate, 1 << 30, 0), b"");
        assert_eq!(lone.kcp.is_drained(), !more);
        assert_eq!(lone.out().len(), if more { 4 } else { 0 });
    }
}

/// Whatever order the words of an honest peer arrive in, and some of them twice, the right edge is
/// the furthest that it told.
#[test]
fn late_words_about_the_window_change_nothing() {
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let mut lone = Lone::new(&config());
        lone.write(vec![1; 1_376 * 32]);
        lone.out();
        lone.now = 40 * MILLIS;
        // Cumulative acknowledgements that grow, and right edges that never move back.
        let mut edge = 40;
        let mut words = Vec::new();
        let last = rng.range(2, 20) as u32;
        for una in 1..=last {
            for _ in 0..2 {
                edge += rng.below(20) as u32;
                words.push((Sn(una), (edge - una) as u16));
            }
        }
        // Three words that agree on less would be believed.
        words.push(rng.pick(&words));
        for i in (1..words.len()).rev() {
            words.swap(i, rng.below(i as u64 + 1) as usize);
        }
        for (una, wnd) in words {
            lone.now += rng.below(20 * MILLIS);
            (lone.una, lone.wnd) = (una, wnd);
            lone.give(header(Command::WindowUpdate, 1 << 30, 0), b"");
        }
        assert_eq!(lone.kcp.send.remote.available(Sn(last)), edge - last, "seed {seed}");
    }
}

/// Before it has told its window, a peer gets 32 segments; what it refused comes again.
#[test]
fn a_window_smaller_than_the_first_guess_costs_seconds_at_most() {
    for window in [1, 2, 5, 31, 32, 33] {
        let mut plan = Plan::plain("small window");
        plan.sides[1].config.recv_window = window;
        plan.sides[0].traffic.bytes = 100 * 1_376;
        let outcome = Sim::new(&plan).run();
        let [sender, receiver] = outcome.stats;
        println!(
            "window {window}: {} ms, {} repeated, {} refused",
            outcome.finished / MILLIS,
            sender.retransmits(),
            receiver.out_of_window_segments
        );
        assert!(outcome.finished < 10 * SECOND);
        // The first flight, and nothing that the peer has no room for after that.
        let refused = u64::from(32_u16.saturating_sub(window));
        assert!(receiver.out_of_window_segments <= refused);
        assert!(window < 32 || sender.retransmits() == 0);
    }
}

#[test]
fn a_receive_window_lowered_in_use_loses_nothing() {
    let mut plan = Plan::plain("shrinking");
    plan.sides[0].traffic.bytes = 3_000_000;
    plan.sides[1].reading = Reading { chunks: 4, every: 30 * MILLIS, pause: (0, 0) };
    let mut sim = Sim::new(&plan);
    sim.start();
    for (i, window) in [512, 100, 7, 1, 64, 2, 900].into_iter().enumerate() {
        sim.run_until(200 * MILLIS * (i as u64 + 1));
        sim.sides[1].set_windows(1_024, window);
        sim.service(1);
    }
    sim.run();
}

#[test]
fn a_lower_datagram_size_holds_for_new_segments_and_spares_the_old() {
    for sizes in [[1_400, 1_200, 576, 100], [500, 1_500, 25, 1_400]] {
        let mut plan = Plan::plain("mtu");
        plan.sides[0].traffic.bytes = 200_000;
        plan.sides[0].traffic.pause = 5 * MILLIS;
        plan.sides[0].config.mtu = sizes[0];
        for side in &mut plan.sides {
            side.link.loss = 100_000;
        }
        let mut sim = Sim::new(&plan);
        sim.start();
        for (i, mtu) in sizes.into_iter().enumerate() {
            sim.run_until(20 * MILLIS * (i as u64 + 1));
            sim.sides[0].set_mtu(mtu);
        }
        sim.run();
    }
}

/// Acknowledgements wait for the end of a train of data, not for a rate limit that takes a second
/// over it.
#[test]
fn a_rate_limit_does_not_hold_acknowledgements_back() {
    let acked_at = |rate: Option<u64>| {
        let mut config = config();
        config.rate_limit = rate.and_then(NonZeroU64::new);
        let mut lone = Lone::new(&config);
        lone.write(vec![1; 1_376 * 30]);
        // Behind a gap, so the peer waits for just this word.
        lone.push(1, b"ahead");
        let early = lone.out();
        lone.push(3, b"further ahead");
        let sent = lone.run(5 * SECOND);
        let acks = sent.iter().filter(|(_, (header, _))| header.command == Command::Ack);
        (early.len(), acks.map(|(at, _)| at / MILLIS).collect::<Vec<_>>())
    };
    // A datagram takes 28 ms at this rate.
    assert_eq!(acked_at(Some(50_000)), (1, vec![28, 28]));
    // Without a limit the train takes no time, and the first one is at its end.
    assert_eq!(acked_at(None), (31, vec![0]));
}

/// What is due while the rate limit holds everything back leaves as soon as it may.
#[test]
fn a_rate_limit_does_not_swallow_a_probe() {
    let mut config = config();
    config.rate_limit = NonZeroU64::new(1_000);
    config.keepalive = Some(Duration::from_secs(1));
    let mut lone = Lone::new(&config);
    lone.write(vec![1; 1_376]);
    assert_eq!(lone.out().len(), 1);
    lone.now = 40 * MILLIS;
    lone.una = Sn(1);
    lone.ack(0, 0);
    // Keepalive becomes due at 1.04 s, the rate limit lets go at 1.4 s.
    let sent: Vec<_> = lone.run(2 * SECOND).into_iter().map(|(at, _)| at / MILLIS).collect();
    assert_eq!(sent, [1_400]);
}

#[test]
fn every_ack_policy_and_preset_finishes_in_time_on_a_clean_path() {
    for preset in [Timing::KCP_DEFAULT, Timing::NORMAL, Timing::FAST, Timing::FAST3] {
        for policy in [AckPolicy::PerBatch, AckPolicy::Interval, AckPolicy::Immediate] {
            let mut plan = Plan::plain("policies");
            for side in &mut plan.sides {
                (side.config.timing, side.config.ack_policy) = (preset, policy);
                side.traffic.bytes = 300_000;
                side.link = LinkConfig::delay(15 * MILLIS);
            }
            let outcome = Sim::new(&plan).run();
            for stats in outcome.stats {
                assert_eq!(stats.retransmits(), 0, "{preset:?} {policy:?}");
            }
        }
    }
}

#[test]
fn a_word_about_the_window_rides_on_whatever_leaves() {
    let mut lone = Lone::new(&config());
    lone.push(0, b"data");
    lone.give(header(Command::WindowProbe, 1 << 30, 0), b"");
    assert_eq!(commands(&lone.out()), [Command::Ack]);
    lone.give(header(Command::WindowProbe, 1 << 30, 0), b"");
    assert_eq!(commands(&lone.out()), [Command::WindowUpdate]);
    lone.give(header(Command::WindowProbe, 1 << 30, 0), b"");
    lone.write(b"more".to_vec());
    assert_eq!(commands(&lone.out()), [Command::Push]);
    assert!(lone.out().is_empty());
}

/// Behind a gap every other chunk is handed over as it came; what lies between them may not take a
/// large buffer each.
#[test]
fn small_chunks_after_a_burst_share_a_buffer() {
    let mut lone = Lone::new(&config());
    (0..100).for_each(|sn| lone.push(sn, &[1; 1_300]));
    assert_eq!(lone.read_all().len(), 130_000);
    for pair in 0..40 {
        lone.push(101 + 2 * pair, &[2]);
        lone.push(102 + 2 * pair, &[3; 512]);
    }
    lone.push(100, &[4]);
    let chunks: Vec<_> = std::iter::from_fn(|| lone.kcp.recv()).collect();
    let small: Vec<_> = chunks.iter().filter(|chunk| chunk.len() <= 2).collect();
    assert!(small.len() >= 39, "{}", small.len());
    for two in small.windows(2) {
        assert_eq!(two[0].as_ptr().wrapping_add(two[0].len()), two[1].as_ptr());
    }
}
