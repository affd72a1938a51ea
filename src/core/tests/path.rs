//! Paths that swallow what is too large for them, without a word.

use std::time::Duration;

use super::link::LinkConfig;
use super::report::{each_seed, explained};
use super::scripted_peer::{ScriptedPeer, commands, config, header};
use super::sim::Sim;
use super::sim_plan::{MILLIS, Plan, SECOND};
use crate::config::{KcpConfig, Mode, Timing};
use crate::core::segment::Command;
use crate::core::seq::Sn;
use crate::error::ConnectionError;

fn plan(name: &'static str, bytes: u64) -> Plan {
    let mut plan = Plan::plain(name);
    plan.sides[0].traffic.bytes = bytes;
    plan
}

fn swallows(mtu: usize) -> LinkConfig {
    LinkConfig { mtu, fragments: true, ..LinkConfig::delay(20 * MILLIS) }
}

/// Padded probes of the first side, and the datagram size it ended with.
fn found(sim: &Sim) -> (u64, u32) {
    let stats = sim.sides[0].kcp.stats();
    (stats.mtu_probes_sent, stats.current_mtu)
}

#[test]
fn a_path_that_carries_everything_is_asked_nothing() {
    for delay in [50, 5 * MILLIS, 300 * MILLIS] {
        let mut plan = plan("healthy path", 4_000_000);
        plan.sides[1].traffic.bytes = 500_000;
        for side in &mut plan.sides {
            side.link.delay = delay;
        }
        let mut sim = Sim::new(&plan);
        explained(&plan, || sim.run());
        assert_eq!(found(&sim), (0, 1_400));
    }
}

#[test]
fn a_path_that_never_carried_full_datagrams_is_found_out() {
    for (mtu, carried) in [(1_399, 1_160), (1_250, 1_160), (1_000, 960), (600, 468)] {
        let mut plan = plan("narrow path", 400_000);
        plan.sides[0].link = swallows(mtu);
        let mut sim = Sim::new(&plan);
        let outcome = explained(&plan, || sim.run());
        let (probes, size) = found(&sim);
        assert_eq!(size, carried, "{mtu}");
        // Three of each size that is not carried, one of the one that is.
        let steps = [1_400, 1_160, 960].into_iter().filter(|step| *step > mtu).count() as u64;
        assert_eq!(probes, 3 * steps + u64::from(mtu > 600), "{mtu}");
        assert!(outcome.finished < 20 * SECOND, "{mtu}: {outcome:?}");
    }
}

#[test]
fn a_path_that_gets_narrow_is_found_out_and_asked_again_later() {
    let mut plan = plan("path gets narrow", 40_000_000);
    plan.sides[0].traffic.pause = 200 * MILLIS;
    plan.chaos = 600 * SECOND;
    let mut sim = Sim::new(&plan);
    explained(&plan, || {
        sim.start();
        sim.run_until(5 * SECOND);
        assert_eq!(found(&sim), (0, 1_400));
        sim.links[0].set_config(swallows(1_250));
        sim.run_until(15 * SECOND);
        assert_eq!(found(&sim), (4, 1_160));
        let read = sim.sides[1].read;
        sim.run_until(70 * SECOND);
        assert!(sim.sides[1].read > read + 2_000_000, "data flows");
        assert!(!sim.sides[0].kcp.needs_ip_fragmentation(), "without fragments");
        assert_eq!(found(&sim).1, 1_160);
        // A question each minute from then on, and the answer when there is one.
        sim.run_until(140 * SECOND);
        assert_eq!(found(&sim), (6, 1_160));
        sim.links[0].set_config(LinkConfig::delay(20 * MILLIS));
        sim.run_until(210 * SECOND);
        assert_eq!(found(&sim), (7, 1_400));
    });
}

/// Whoever stays below the floor has nothing to find out, and a path that carries full datagrams
/// may lose any number of them.
#[test]
fn loss_alone_is_not_taken_for_a_narrow_path() {
    let mut lowered = 0;
    each_seed("path::loss_alone_is_not_taken_for_a_narrow_path", 0..100, |seed, _| {
        let mut plan = plan("loss", 300_000);
        plan.seed = seed;
        // Every other one has hardly more than one segment in flight: nothing that would arrive
        // while another one is lost again and again.
        if seed % 2 == 1 {
            plan.sides[0].traffic.largest_write = 2 * 1_376;
            plan.sides[0].traffic.pause = 500 * MILLIS;
        }
        for side in &mut plan.sides {
            side.link.loss = 300_000;
            // With its congestion window there is never much in flight.
            if seed % 4 >= 2 {
                side.config.timing = Timing::KCP_DEFAULT;
            }
        }
        let mut sim = Sim::new(&plan);
        explained(&plan, || {
            sim.start();
            let mut least = 1_400;
            while !sim.is_done() {
                sim.step();
                least = least.min(sim.sides[0].kcp.stats().current_mtu);
            }
            assert!(seed % 4 != 0 || least == 1_400, "enough of them arrive");
            lowered += u32::from(least < 1_400);
        });
        println!("seed {seed}: {:?} at last", found(&sim));
        format!("{:?}", found(&sim))
    });
    println!("{lowered} of 100 lowered");
    assert!(lowered <= 2, "{lowered}");
}

#[test]
fn where_fragments_vanish_too_the_conversation_ends() {
    let mut plan = plan("no fragments", 400_000);
    plan.sides[0].config.dead_peer_timeout = Some(Duration::from_secs(60));
    plan.sides[0].link = LinkConfig { fragments: false, ..swallows(1_250) };
    let mut sim = Sim::new(&plan);
    explained(&plan, || {
        sim.start();
        while sim.sides[0].ended().is_none() && sim.now < 300 * SECOND {
            sim.step();
        }
        assert_eq!(sim.sides[0].ended(), Some(ConnectionError::DeadPeer));
        assert!((60..70).contains(&(sim.now / SECOND)), "{} us", sim.now);
        assert!(sim.now - sim.sides[0].heard_at < 30 * SECOND, "the peer answers");
    });
}

/// A message that was queued before is cut anew where it fits, and one that leaves later is cut
/// for the path.
#[test]
fn messages_cross_a_narrow_path() {
    let mut plan = plan("messages", 300_000);
    for side in &mut plan.sides {
        side.config.mode = Mode::Message;
        side.traffic.whole = true;
    }
    plan.sides[0].link = swallows(1_250);
    let mut sim = Sim::new(&plan);
    explained(&plan, || sim.run());
    assert_eq!(found(&sim).1, 1_160);
}

/// A peer that has never said anything may not have received the first segment, which opens the
/// conversation: nothing large is sent to it, and fragments are its only chance.
#[test]
fn a_peer_that_was_never_heard_is_sent_small_probes_alone() {
    let mut lone = ScriptedPeer::new(&config());
    lone.write(vec![1; 1_376]);
    let sent = lone.run(30 * SECOND);
    let (probes, data): (Vec<_>, Vec<_>) =
        sent.iter().partition(|(_, (header, _))| header.sn != Sn(0));
    assert!(probes.iter().all(|(_, (_, payload))| payload.is_empty()), "{probes:?}");
    assert!((4..=8).contains(&probes.len()), "{probes:?}");
    assert!(data.iter().all(|(_, (_, payload))| payload.len() == 1_376));
    assert!(lone.kcp.needs_ip_fragmentation());
    let (_, (first, _)) = data[0];
    lone.una = Sn(1);
    lone.ack(0, first.ts.0);
    assert!(!lone.kcp.needs_ip_fragmentation());
    assert_eq!(lone.timeout(), None);
}

/// What other implementations answer as well: padding counts for nothing.
#[test]
fn padded_questions_of_a_peer_are_answered() {
    let mut lone = ScriptedPeer::new(&KcpConfig { mtu: 1_500, ..config() });
    lone.push(0, b"one");
    lone.out();
    lone.give(header(Command::WindowProbe, 7, 0), &[0xAA; 1_476]);
    assert_eq!(commands(&lone.out()), [Command::WindowUpdate]);
    let old = Sn(0).back(1 << 30).0;
    lone.give(header(Command::Push, old, 99), &[0xAA; 1_476]);
    let sent = lone.out();
    assert_eq!(commands(&sent), [Command::Ack]);
    assert_eq!((sent[0].0.sn.0, sent[0].0.ts.0), (old, 99));
    lone.push(1, b"two");
    assert_eq!(lone.read_all(), b"onetwo");
}
