//! Effects of forged and recorded datagrams. In any state of the two sides, a connection sends per
//! second at most ten more datagrams without data than it received.

use std::time::Duration;

use super::report::each_seed;
use super::scripted_peer::{ScriptedPeer, Sent, config, datagram, header};
use super::sim_plan::{MILLIS, SECOND};
use super::two_endpoints::TwoEndpoints;
use crate::config::KcpConfig;
use crate::core::redundancy::rlc;
use crate::core::segment::{CONTROL_CAPABLE, Command, ControlType, Header};
use crate::core::seq::Sn;
use crate::error::ConnectionError;
use crate::testkit::rng::Rng;

/// Datagrams without data per second beyond the number received.
const ALLOWANCE: u64 = 10;

/// Runs for a second and checks the limit of both sides. Returns the datagrams of both.
fn run_a_second(pair: &mut TwoEndpoints) -> u64 {
    let before = (pair.received, pair.sent_without_data, pair.sent);
    pair.run(SECOND);
    for side in [0, 1] {
        let received = pair.received[side] - before.0[side];
        let sent = pair.sent_without_data[side] - before.1[side];
        assert!(sent <= received + ALLOWANCE, "side {side}: {sent} for {received} received");
    }
    pair.sent - before.2
}

/// Two sides that have exchanged data.
fn connected(seed: u64) -> TwoEndpoints {
    let mut pair = TwoEndpoints::new(seed, 0);
    pair.write(0, &[1; 3_000]);
    pair.run(50 * MILLIS);
    pair.write(1, &[2; 3_000]);
    pair.run(200 * MILLIS);
    assert_eq!((pair.read(0).len(), pair.read(1).len()), (3_000, 3_000));
    pair
}

#[test]
fn forged_data_that_contradicts_both_sides_causes_no_storm() {
    let mut pair = connected(1);
    // The peer accepts it as data of side 0, so every later `una` of the peer is invalid for side
    // 0.
    let (una, nxt) = (pair.sides[1].send.nxt(), pair.sides[0].send.nxt());
    let forged = Header { una, ..header(Command::Push, nxt.0, 5) };
    pair.input(1, &datagram(&[(forged, &[3; 100])])).unwrap();
    for _ in 0..3 {
        run_a_second(&mut pair);
    }
    for _ in 0..20 {
        let sent = run_a_second(&mut pair);
        assert!(sent <= 4, "one ping each and its pong, not {sent} datagrams");
    }
}

/// A datagram that roughly fits the connection to `to`.
fn forge(pair: &TwoEndpoints, to: usize, rng: &mut Rng) -> Vec<u8> {
    let near = |rng: &mut Rng, sn: Sn| match rng.below(4) {
        0 => sn,
        1 => Sn(sn.0.wrapping_add(rng.below(2_000) as u32).wrapping_sub(1_000)),
        2 => Sn(sn.0.wrapping_add(rng.below(8) as u32).wrapping_sub(4)),
        _ => Sn(rng.next() as u32),
    };
    let (receiver, other) = (&pair.sides[to].send, &pair.sides[1 - to].send);
    let commands = [
        Command::Push,
        Command::Ack,
        Command::WindowProbe,
        Command::WindowUpdate,
        Command::Control,
    ];
    let payload = vec![9; rng.pick(&[0, 0, 1, 100, 1_000])];
    let forged = Header {
        frg: rng.pick(&[0, 1, 2, 3, 4, 5, CONTROL_CAPABLE]),
        wnd: rng.pick(&[0, 1, 128, u16::MAX]),
        una: near(rng, receiver.nxt()),
        ..header(rng.pick(&commands), near(rng, other.nxt()).0, rng.next() as u32)
    };
    datagram(&[(forged, &payload)])
}

#[test]
fn forged_datagrams_of_any_kind_cause_no_storm() {
    each_seed("response_limit::forged_datagrams_of_any_kind", 0..300, |seed, _| {
        let mut rng = Rng::new(seed);
        let mut pair = connected(seed);
        for second in 0..15 {
            if second < 3 {
                for _ in 0..1 + rng.below(5) {
                    let to = rng.below(2) as usize;
                    let forged = forge(&pair, to, &mut rng);
                    // Malformed ones are dropped.
                    let _ = pair.input(to, &forged);
                }
                pair.write(rng.below(2) as usize, &[4; 500]);
            }
            if second == 8 {
                pair.close(rng.below(2) as usize);
            }
            run_a_second(&mut pair);
        }
        format!("{} datagrams", pair.sent)
    });
}

#[test]
fn recorded_datagrams_are_no_sign_of_life() {
    let config = KcpConfig { idle_timeout: Some(Duration::from_secs(60)), ..config() };
    let mut script = ScriptedPeer::new(&config);
    script.write(vec![1; 100]);
    let sent = script.out();
    script.una = Sn(1);
    let data = datagram(&[(Header { una: Sn(1), ..header(Command::Push, 0, 5) }, &[7; 50])]);
    let acks = Header { frg: CONTROL_CAPABLE, ..header(Command::Ack, 0, sent[0].0.ts.0) };
    let acks = datagram(&[(Header { una: Sn(1), ..acks }, b"")]);
    let probe = datagram(&[(Header { una: Sn(1), ..header(Command::WindowProbe, 9, 0) }, b"")]);
    let hello = Header { frg: ControlType::Hello as u8, ..header(Command::Control, 1, 99) };
    let hello = datagram(&[(Header { una: Sn(1), ..hello }, b"")]);
    // A repair symbol over the next segment, which it recovers.
    let mut symbol = Vec::new();
    rlc::write_repair(7, [(0, &[8; 50][..])].into_iter(), 50, &mut symbol);
    let repair = Header { una: Sn(1), frg: 1, ..header(Command::Repair, 1, 7) };
    let repair = datagram(&[(repair, &symbol)]);
    for recorded in [&data, &acks, &probe, &hello, &repair] {
        script.input(recorded).unwrap();
    }
    assert_eq!(script.kcp.stats().redundancy.recovered_segments, 1);
    let mut pings = 0;
    while script.kcp.close_reason().is_none() {
        script.now += SECOND / 2;
        for recorded in [&data, &acks, &probe, &hello, &repair] {
            script.input(recorded).unwrap();
        }
        let is_ping = |(header, _): &Sent| header.command == Command::Push;
        pings += script.out().iter().filter(|sent| is_ping(sent)).count();
        assert!(script.now <= 61 * SECOND, "recorded datagrams keep the connection alive");
    }
    assert_eq!(script.kcp.close_reason(), Some(ConnectionError::IdleTimeout));
    assert!((19..=21).contains(&pings), "{pings} pings ask the peer, one a second from 40 s on");
}

#[test]
fn repair_symbol_that_recovers_a_segment_is_a_sign_of_life() {
    let config = KcpConfig { idle_timeout: Some(Duration::from_secs(60)), ..config() };
    let mut script = ScriptedPeer::new(&config);
    script.push(0, &[7; 50]);
    let hello = Header { frg: ControlType::Hello as u8, ..header(Command::Control, 1, 99) };
    script.give(hello, b"");
    script.run(50 * SECOND);
    let mut symbol = Vec::new();
    rlc::write_repair(7, [(0, &[8; 50][..])].into_iter(), 50, &mut symbol);
    script.give(Header { frg: 1, ..header(Command::Repair, 1, 7) }, &symbol);
    script.run(100 * SECOND);
    assert_eq!(script.kcp.close_reason(), None);
    script.run(111 * SECOND);
    assert_eq!(script.kcp.close_reason(), Some(ConnectionError::IdleTimeout));
}

/// Rule: P-28.
#[test]
fn pong_of_a_peer_in_another_connection_validates_nothing() {
    let mut script = ScriptedPeer::new(&config());
    script.kcp.require_validation(script.instant(), 1_200);
    script.push(0, &[1; 10]);
    let sent = script.out();
    let (ping, _) = sent.iter().find(|(header, _)| header.command == Command::Push).unwrap();
    let (sn, ts) = (ping.sn.0, ping.ts.0);
    // The ping was relayed to a client with a connection of its own.
    script.una = Sn(3);
    script.ack(sn, ts);
    assert!(!script.kcp.is_established());
    script.una = Sn(0);
    script.ack(sn, ts);
    assert!(script.kcp.is_established());
}

#[test]
fn reflected_segment_of_any_of_its_transmissions_is_recognised() {
    let mut script = ScriptedPeer::new(&config());
    script.write(vec![1; 100]);
    let sent = script.run(2 * SECOND);
    let own: Vec<_> = sent.iter().filter(|(_, (header, _))| header.sn == Sn(0)).collect();
    assert!(own.len() >= 3, "{} transmissions", own.len());
    for (_, (header, payload)) in own {
        assert!(script.kcp.is_reflection(&datagram(&[(*header, payload)])), "{header:?}");
    }
}
