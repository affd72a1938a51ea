//! Simulations of dead peers, restarts, suspended hosts, outages and replayed datagrams.

use std::time::Duration;

use super::report::{each_seed, explained};
use super::scripted_peer::{ScriptedPeer, config, datagram, header};
use super::sim::Sim;
use super::sim_plan::{DAY, HOUR, MILLIS, Plan, SECOND, Set};
use crate::config::{CongestionControl, KcpConfig};
use crate::core::segment::{CONTROL_CAPABLE, Command, ControlType, Header};
use crate::core::seq::{Sn, Ts};
use crate::error::{ConnectionError, TimeoutCause};
use crate::testkit::link::{CERTAIN, LinkConfig};
use crate::testkit::rng::Rng;

const MINUTE: u64 = 60 * SECOND;

/// Two sides with default timeouts that write occasionally, for `length` microseconds.
fn chatty(plan: &mut Plan, rng: &mut Rng, length: u64, (least, most): (u64, u64)) {
    let limits = KcpConfig::default();
    for side in &mut plan.sides {
        let config = &mut side.config;
        config.dead_peer_timeout = limits.dead_peer_timeout;
        config.keepalive = limits.keepalive;
        config.idle_timeout = limits.idle_timeout;
        config.max_retransmit_interval = limits.max_retransmit_interval;
        config.rate_limit = None;
        config.mtu = config.mtu.max(500);
        (side.tick, side.probe_every) = (0, 0);
        side.traffic.pause = rng.spread(least, most);
        side.traffic.largest_write = 400;
        side.traffic.bytes = 400 * length / side.traffic.pause;
        side.traffic.whole = false;
        side.link.delay = rng.spread(MILLIS, 200 * MILLIS);
    }
}

#[test]
fn dead_peer_timeout_fires_60_to_70_s_after_the_last_datagram() {
    let set = Set {
        name: "vanished",
        shape: |plan, rng| {
            chatty(plan, rng, 2 * MINUTE, (200 * MILLIS, SECOND));
            let idle = rng.chance(500_000);
            for side in &mut plan.sides {
                side.link.loss = rng.pick(&[0, 0, 10_000, 100_000, 300_000]);
                side.config.idle_timeout = side.config.idle_timeout.filter(|_| idle);
            }
        },
    };
    let mut range = (u64::MAX, 0);
    let name = "peer_restart::dead_peer_timeout_fires_60_to_70_s_after_the_last_datagram";
    each_seed(name, 0..200, |seed, verbose| {
        let plan = Plan::draw(&set, seed);
        let gone = Rng::keyed(seed, 9).spread(SECOND, MINUTE);
        let mut sim = Sim::new(&plan);
        sim.verbose = verbose;
        explained(&plan, || {
            sim.start();
            sim.run_until(gone);
            let cut = LinkConfig { loss: CERTAIN, ..LinkConfig::default() };
            sim.links.iter_mut().for_each(|link| link.set_config(cut.clone()));
            while sim.next_event().is_some() {
                sim.step();
            }
            for side in &sim.sides {
                let elapsed = side.ended_at.unwrap() - side.heard_at;
                // The time counts from the latest datagram with something new; a duplicate may
                // follow it.
                assert!((59 * SECOND..=70 * SECOND).contains(&elapsed), "{elapsed} us");
                range = (range.0.min(elapsed), range.1.max(elapsed));
                let idle = side.kcp.close_reason() == Some(ConnectionError::IdleTimeout);
                assert!(
                    idle || side.kcp.close_reason()
                        == Some(ConnectionError::DeadPeer(TimeoutCause::Nothing))
                );
                assert!(!idle || plan.sides[0].config.idle_timeout.is_some());
            }
        });
        plan.to_string()
    });
    let seconds = |us: u64| us as f64 / SECOND as f64;
    println!(
        "given up {:.3} to {:.3} s after the last datagram",
        seconds(range.0),
        seconds(range.1)
    );
}

/// At 70 % loss each way one datagram in eleven is answered, so some are given up.
#[test]
fn dead_peer_timeout_spares_a_live_peer_at_50_percent_loss() {
    for (loss, seeds, most) in [(300_000, 60, 0), (500_000, 200, 0), (700_000, 40, 2)] {
        let set = Set {
            name: "alive",
            shape: |plan, rng| chatty(plan, rng, 30 * MINUTE, (SECOND, 30 * SECOND)),
        };
        let (mut deaths, mut time) = (0, 0);
        let name = "peer_restart::dead_peer_timeout_spares_a_live_peer_at_50_percent_loss";
        each_seed(name, 0..seeds, |seed, verbose| {
            let mut plan = Plan::draw(&set, seed);
            for side in &mut plan.sides {
                side.link.loss = loss;
            }
            let mut sim = Sim::new(&plan);
            sim.verbose = verbose;
            explained(&plan, || {
                sim.start();
                while sim.now < 30 * MINUTE && sim.sides.iter().all(|side| side.ended_at.is_none())
                {
                    sim.step();
                }
                time += sim.now;
                deaths += u64::from(sim.sides.iter().any(|side| side.ended_at.is_some()));
                assert!(deaths <= most, "given up at {} us", sim.now);
            });
            plan.to_string()
        });
        let hours = time as f64 / HOUR as f64;
        println!(
            "{} % loss: {deaths} given up in {hours:.1} hours, {:.3} per hour",
            loss / 10_000,
            deaths as f64 / hours
        );
    }
}

#[test]
fn restarted_peer_ends_the_connection_with_peer_state_lost() {
    let set = Set {
        name: "restarted",
        shape: |plan, rng| {
            plan.start.0 = 0;
            chatty(plan, rng, 4 * MINUTE, (500 * MILLIS, SECOND));
            for side in &mut plan.sides {
                side.link.delay = rng.spread(MILLIS, 2 * SECOND);
                side.link.loss = rng.pick(&[0, 0, 50_000, 200_000]);
            }
        },
    };
    let mut longest = 0;
    each_seed(
        "peer_restart::restarted_peer_ends_the_connection_with_peer_state_lost",
        0..100,
        |seed, verbose| {
            let plan = Plan::draw(&set, seed);
            let at = Rng::keyed(seed, 9).spread(10 * SECOND, 2 * MINUTE);
            let mut sim = Sim::new(&plan);
            sim.verbose = verbose;
            explained(&plan, || {
                sim.start();
                sim.run_until(at);
                let known = sim.sides[0].kcp.una().0;
                sim.restart(1);
                while sim.sides[0].ended_at.is_none() && sim.next_event().is_some() {
                    sim.step();
                }
                let ended = sim.sides[0].kcp.close_reason();
                assert!(known == 0 || ended == Some(ConnectionError::PeerStateLost), "{ended:?}");
                let round_trip = plan.sides.iter().map(|side| side.link.delay).sum::<u64>();
                let took = sim.sides[0].ended_at.unwrap() - at;
                longest = longest.max(took);
                // The restarted peer drops segments beyond its window without an ACK, so the first
                // ping may be sent only after a third of the dead-peer timeout; then one every
                // second.
                let lossless = sim.links.iter().all(|link| link.config().loss == 0);
                let limit = 21 * SECOND + 2 * round_trip;
                assert!(took <= limit || !lossless, "after {took} us");
            });
            plan.to_string()
        },
    );
    println!("found out after at most {:.1} s", longest as f64 / SECOND as f64);
}

/// Replayed datagrams, at any loss on the path to the peer.
#[test]
fn replayed_datagrams_do_not_end_a_connection() {
    let set = Set {
        name: "replayed",
        shape: |plan, rng| {
            for side in &mut plan.sides {
                side.traffic.bytes = rng.spread(1_000, 100_000);
                side.link.loss = rng.pick(&[0, 100_000, 500_000, CERTAIN / 10 * 9]);
                side.config.rate_limit = None;
                (side.tick, side.probe_every) = (0, 0);
            }
        },
    };
    let name = "peer_restart::replayed_datagrams_do_not_end_a_connection";
    each_seed(name, 0..100, |seed, verbose| {
        let mut plan = Plan::draw(&set, seed);
        let real = plan.sides.each_ref().map(|side| side.link.loss);
        for side in &mut plan.sides {
            side.link.loss = side.link.loss.min(CERTAIN / 2);
        }
        let mut rng = Rng::keyed(seed, 9);
        let mut sim = Sim::new(&plan);
        (sim.verbose, sim.record) = (verbose, true);
        explained(&plan, || {
            sim.run();
            let before = sim.sides.each_ref().map(|side| (side.kcp.una(), side.kcp.rcv_nxt()));
            for (i, loss) in real.into_iter().enumerate() {
                let config = LinkConfig { loss, ..sim.links[i].config().clone() };
                sim.links[i].set_config(config);
            }
            sim.record = false;
            let recorded = std::mem::take(&mut sim.recorded);
            let gap = rng.spread(10, 2 * SECOND);
            for _ in 0..2_000 {
                sim.run_until(sim.now + rng.below(gap));
                let (from, datagram) = &recorded[rng.below(recorded.len() as u64) as usize];
                sim.input(1 - from, datagram);
                sim.service(1 - from);
            }
            for (side, before) in sim.sides.iter().zip(before) {
                assert_eq!(side.kcp.close_reason(), None);
                assert_eq!((side.kcp.una(), side.kcp.rcv_nxt()), before);
                assert!(side.kcp.is_drained() && side.kcp.readable().is_none());
            }
        });
        plan.to_string()
    });
}

/// After an outage of any length the first byte arrives within the longest retransmission interval
/// and two round trips.
#[test]
fn retransmission_after_an_outage_resumes_within_the_longest_interval() {
    let mut latest = 0;
    for (seed, cut) in [SECOND, 5 * SECOND, 30 * SECOND, 5 * MINUTE, HOUR, 2 * HOUR]
        .into_iter()
        .cycle()
        .enumerate()
    {
        if seed >= 60 {
            break;
        }
        let mut rng = Rng::new(seed as u64);
        let mut plan = Plan::plain("healed");
        let from = rng.range(SECOND, 3 * SECOND);
        let direction = rng.below(3) as usize;
        for (i, side) in plan.sides.iter_mut().enumerate() {
            side.link.delay = rng.spread(MILLIS, 500 * MILLIS);
            side.traffic.bytes = 10_000_000;
            side.traffic.largest_write = 2_000;
            side.traffic.pause = 10 * MILLIS;
            if direction != 1 - i {
                side.link.partitions.push((from, from + cut));
            }
        }
        let round_trip = plan.sides[0].link.delay + plan.sides[1].link.delay;
        let mut sim = Sim::new(&plan);
        sim.start();
        sim.run_until(from + cut);
        let read = sim.sides.each_ref().map(|side| side.read);
        let mut first = [None; 2];
        while first.iter().any(Option::is_none) {
            sim.step();
            for i in 0..2 {
                if sim.sides[i].read > read[i] {
                    first[i].get_or_insert(sim.now - from - cut);
                }
            }
        }
        for after in first.into_iter().flatten() {
            latest = latest.max(after);
            assert!(after <= 10 * SECOND + 2 * round_trip, "{after} us after {cut} us");
        }
    }
    println!("the first byte came at most {:.1} s after the cut", latest as f64 / 1e6);
}

/// The same before the peer has advertised its window, smaller than the initial guess: the peer
/// accepts only the oldest segments.
#[test]
fn retransmission_after_an_outage_begins_with_the_oldest_segment() {
    for window in [1, 2, 16] {
        let mut plan = Plan::plain("healed late");
        let cut = (0, 10 * MINUTE);
        for side in &mut plan.sides {
            side.link.partitions.push(cut);
        }
        plan.sides[0].traffic.bytes = 100_000;
        plan.sides[1].config.recv_window = window;
        let mut sim = Sim::new(&plan);
        sim.start();
        while sim.sides[1].read == 0 {
            sim.step();
        }
        assert!(sim.now <= cut.1 + 10 * SECOND + 80 * MILLIS, "window {window}: {}", sim.now);
        // The later segments do not wait for an interval each.
        sim.run_until(cut.1 + 30 * SECOND);
        assert_eq!(sim.sides[1].read, 100_000, "window {window}");
    }
}

/// ACKs that the path duplicates much later are no RTT samples (Karn's algorithm, RFC 6298 3).
#[test]
fn rtt_ignores_late_duplicates_of_acks() {
    for copy_delay in [SECOND, 30 * SECOND] {
        let mut plan = Plan::plain("copies");
        for side in &mut plan.sides {
            side.traffic.bytes = 400 * 600;
            side.traffic.largest_write = 1_200;
            side.traffic.pause = 200 * MILLIS;
            side.link.duplicate = CERTAIN / 2;
            (side.link.copies, side.link.copy_delay) = (3, copy_delay);
        }
        let mut sim = Sim::new(&plan);
        sim.start();
        while !sim.is_done() {
            sim.step();
            let stats = sim.sides[0].kcp.stats();
            assert!(stats.path.srtt.as_micros() as u64 <= 50 * MILLIS, "{:?}", stats.path.srtt);
        }
        assert_eq!(sim.sides[0].kcp.stats().retransmits(), 0);
    }
}

/// With default timeouts a host may be suspended for almost a minute. After a longer time the other
/// side has ended the connection, and so does the host once it runs again.
#[test]
fn suspended_host_is_given_up_after_the_dead_peer_timeout() {
    for (seconds, survives) in [(1, true), (30, true), (55, true), (65, false), (600, false)] {
        let length = seconds * SECOND;
        let mut plan = Plan::plain("standstill");
        let limits = KcpConfig::default();
        for side in &mut plan.sides {
            let config = &mut side.config;
            config.dead_peer_timeout = limits.dead_peer_timeout;
            config.keepalive = limits.keepalive;
            config.idle_timeout = limits.idle_timeout;
            side.traffic.bytes = 1_000_000;
            side.traffic.largest_write = 1_000;
            side.traffic.pause = 100 * MILLIS;
        }
        let awake = 10 * SECOND + length;
        plan.sides[0].freeze = (10 * SECOND, awake);
        let mut sim = Sim::new(&plan);
        sim.start();
        sim.run_until(awake + 80 * SECOND);
        let [stopped, other] = sim.sides.each_ref().map(|side| side.ended_at);
        if survives {
            assert_eq!((stopped, other), (None, None), "{length} us");
        } else {
            let missed = other.unwrap() - 10 * SECOND;
            // The timeout counts from the last datagram, sent up to a pause earlier.
            let earliest = 60 * SECOND - 100 * MILLIS;
            assert!((earliest..=61 * SECOND).contains(&missed), "{missed} us");
            assert!((awake..=awake + 70 * SECOND).contains(&stopped.unwrap()));
        }
    }
}

/// Up to 30 days, beyond the wrap of the 32-bit timestamps at 24.8 days.
#[test]
fn suspended_host_without_timeouts_resumes_after_any_time() {
    let times = [SECOND, MINUTE, HOUR, DAY, 24 * DAY, 25 * DAY, 30 * DAY];
    for (i, length) in times.into_iter().enumerate() {
        for which in [0b01, 0b10, 0b11_usize] {
            let mut plan = Plan::plain("stopped");
            plan.seed = i as u64;
            let freeze = (50 * MILLIS, 50 * MILLIS + length);
            for (i, side) in plan.sides.iter_mut().enumerate() {
                side.traffic.bytes = 200_000;
                // All data is in flight when the host stops.
                side.config.congestion_control = CongestionControl::Off;
                if which & (1 << i) != 0 {
                    side.freeze = freeze;
                }
            }
            plan.chaos = freeze.1;
            let mut sim = Sim::new(&plan);
            let outcome = explained(&plan, || sim.run());
            assert!(outcome.finished <= freeze.1 + 15 * SECOND, "{}", outcome.finished);
            for (side, stats) in sim.sides.iter().zip(outcome.stats) {
                assert_eq!(stats.anomalies.invalid_una, 0);
                assert!(side.kcp.is_established());
                assert_eq!(stats.anomalies.invalid_acks, 0, "{length} us, {which}: {stats:?}");
            }
        }
    }
}

/// Another process at this address has answered the peer before: neither could end the connection otherwise.
#[test]
fn pong_that_acknowledges_segments_never_sent_ends_the_connection() {
    for (una, ended) in [(1, None), (4, Some(ConnectionError::PeerStateLost))] {
        let mut script = ScriptedPeer::new(&config());
        script.write(&b"all"[..]);
        let (push, _) = script.out()[0];
        script.una = Sn(1);
        script.ack(push.sn.0, push.ts.0);
        script.kcp.ping(script.instant());
        let sent = script.out();
        let (ping, _) = sent.iter().find(|(header, _)| header.command == Command::Push).unwrap();
        script.una = Sn(una);
        script.ack(ping.sn.0, ping.ts.0);
        assert_eq!(script.kcp.close_reason(), ended, "una {una}");
    }
}

/// Two processes of a server may receive the segments of one connection: the second one lacks those that only
/// the first one has acknowledged, and they never leave again. Other implementations may hold `una` back.
/// Rule: W-173.
#[test]
fn pong_that_does_not_acknowledge_an_acknowledged_segment_ends_the_connection() {
    let cases = [
        (CONTROL_CAPABLE, 0, Some(ConnectionError::PeerStateLost)),
        (CONTROL_CAPABLE, 1, None),
        (0, 0, None),
    ];
    for (frg, una, ended) in cases {
        let mut script = ScriptedPeer::new(&config());
        script.write(&b"all"[..]);
        let (push, _) = script.out()[0];
        let answer = |command, to: Header| Header { frg, ..header(command, to.sn.0, to.ts.0) };
        script.give(answer(Command::Ack, push), b"");
        script.now += SECOND;
        script.una = Sn(una);
        script.give(answer(Command::WindowUpdate, push), b"");
        if una == 1 || frg == 0 {
            script.kcp.ping(script.instant());
        }
        let sent = script.out();
        let (ping, _) = sent.iter().find(|(header, _)| header.command == Command::Push).unwrap();
        script.give(answer(Command::Ack, *ping), b"");
        assert_eq!(script.kcp.close_reason(), ended, "frg {frg}, una {una}");
    }
}

/// A peer that gets each segment twice acknowledges both copies, in one datagram.
#[test]
fn rtt_is_sampled_by_the_last_ack_of_a_datagram_or_its_copies() {
    for (acks, sampled) in [(&[0, 1][..], 1), (&[0, 1, 1], 1), (&[0, 0, 0], 0)] {
        let mut script = ScriptedPeer::new(&config());
        let mut sent = Vec::new();
        for _ in 0..2 {
            script.now += 10 * MILLIS;
            script.write(&b"a"[..]);
            sent.extend(script.out());
        }
        let left = [10 * MILLIS, 20 * MILLIS];
        script.now = 100 * MILLIS;
        let ack = |sn: &usize| (header(Command::Ack, *sn as u32, sent[*sn].0.ts.0), &b""[..]);
        script.input(&datagram(&acks.iter().map(ack).collect::<Vec<_>>())).unwrap();
        let srtt = script.kcp.stats().path.srtt;
        assert_eq!(srtt, Duration::from_micros(100 * MILLIS - left[sampled]), "{acks:?}");
    }
}

/// A client that waits for data, to a peer that has received nothing of it. Returns the segments that the client
/// sends when it arrives, and the bytes that its application reads.
fn segment_after_the_first_data(wait: u64, epoch: u32, segment: Header) -> (Vec<Header>, Vec<u8>) {
    let mut client = ScriptedPeer::new(&config());
    let now = client.instant();
    client.kcp.open(now);
    client.out();
    client.give(Header { frg: CONTROL_CAPABLE, ..header(Command::WindowUpdate, 0, 0) }, b"");
    client.push(0, b"one");
    client.out();
    client.now = wait;
    let ts = Ts(epoch.wrapping_add((wait / MILLIS) as u32));
    let payload: &[u8] = if segment.command == Command::Push { b"two" } else { b"" };
    client.give(Header { ts, ..segment }, payload);
    let sent = client.run(wait + SECOND);
    let read = client.read_all();
    (sent.into_iter().map(|(_, (header, _))| header).collect(), read)
}

/// The server restarts before it has received data, and a late copy of the initial segment opens a connection at its
/// new process. Each `una` is valid: the new process sends as many segments as the client has received.
///
/// Rules: W-176.
#[test]
fn data_of_another_process_is_dropped_and_draws_a_reset_and_a_ping() {
    let hours = (HOUR / MILLIS) as u32;
    for epoch in [hours, 0_u32.wrapping_sub(hours), 1 << 31] {
        for segment in [header(Command::Push, 1, 0), fin(1)] {
            let (sent, read) = segment_after_the_first_data(SECOND, epoch, segment);
            assert_eq!(read, b"one", "{segment:?}");
            let resets = sent.iter().filter(|sent| {
                let is_reset = sent.frg == ControlType::Reset as u8;
                sent.command == Command::Control && is_reset && sent.sn == segment.sn
            });
            assert_eq!(resets.count(), 1, "{sent:?}");
            assert!(sent.iter().any(|sent| sent.command == Command::Push), "a ping: {sent:?}");
        }
    }
}

/// A server exits before its only segment has arrived. Its FIN waits, and does not end the stream of the next process.
///
/// Rules: W-176.
#[test]
fn fin_of_another_process_than_the_data_is_forgotten() {
    let mut client = ScriptedPeer::new(&config());
    let now = client.instant();
    client.kcp.open(now);
    client.give(Header { frg: CONTROL_CAPABLE, ..header(Command::WindowUpdate, 0, 0) }, b"");
    client.give(fin(1), b"");
    client.give(header(Command::Push, 0, (HOUR / MILLIS) as u32), b"next");
    assert!(client.read_all() == b"next" && !client.kcp.peer_has_closed());
}

/// The peer's data counts, not a FIN before it.
///
/// Rules: W-176.
#[test]
fn forged_fin_before_the_first_data_loses_no_data() {
    let mut client = ScriptedPeer::new(&config());
    let now = client.instant();
    client.kcp.open(now);
    client.out();
    client.give(Header { frg: CONTROL_CAPABLE, ..header(Command::WindowUpdate, 0, 0) }, b"");
    client.out();
    client.give(Header { ts: Ts(5 * (HOUR / MILLIS) as u32), ..fin(60) }, b"");
    client.push(0, b"one");
    let is_reset = |sent: &Header| sent.frg == ControlType::Reset as u8;
    assert!(
        !client.out().iter().any(|(sent, _)| is_reset(sent) && sent.command == Command::Control)
    );
    client.give(fin(1), b"");
    assert!(client.read_all() == b"one" && client.kcp.peer_has_closed());
}

/// CLOCK_MONOTONIC stops while a host is suspended. The side that has accepted compares initial segments.
#[test]
fn accepting_side_takes_data_after_a_suspend_of_hours() {
    let mut server = ScriptedPeer::new(&config());
    let now = server.instant();
    server.kcp.require_validation(now, 1_400);
    server.push(0, b"one");
    server.now += SECOND;
    let ts = (server.now + 2 * HOUR) / MILLIS;
    server.give(header(Command::Push, 1, ts as u32), b"two");
    assert_eq!(server.read_all(), b"onetwo");
}

fn fin(sn: u32) -> Header {
    Header { frg: ControlType::Fin as u8, ..header(Command::Control, sn, 0) }
}

/// Rules: W-176.
#[test]
fn data_of_the_same_process_is_taken_after_any_time() {
    let nearly = (HOUR / MILLIS) as u32 - 1;
    for epoch in [0, nearly, 0_u32.wrapping_sub(nearly)] {
        for wait in [SECOND, DAY, 60 * DAY] {
            let (_, read) = segment_after_the_first_data(wait, epoch, header(Command::Push, 1, 0));
            assert_eq!(read, b"onetwo", "{epoch} {wait}");
        }
    }
}
