//! Limits of what forged and replayed HELLO, REPAIR and ACKs of recovered segments can cause.

use super::scripted_peer::{ScriptedPeer, config, datagram, header};
use super::sim_plan::MILLIS;
use crate::config::{CongestionControl, KcpConfig, Mode};
use crate::core::redundancy::rlc;
use crate::core::segment::{CONTROL_CAPABLE, Command, ControlType, Header, REPAIRED};
use crate::core::seq::Sn;
use crate::testkit::rng::Rng;

const RATE: u32 = 500_000;

fn is_control(header: &Header, kind: ControlType) -> bool {
    header.command == Command::Control && header.frg == kind as u8
}

fn hello(sn: u32, ts: u32) -> Header {
    Header { frg: ControlType::Hello as u8, ..header(Command::Control, sn, ts) }
}

/// A connection whose peer, the test, sent HELLO and got an answer.
fn asked(config: &KcpConfig) -> ScriptedPeer {
    let mut peer = ScriptedPeer::new(config);
    peer.give(header(Command::Push, 0, 5), &[1; 100]);
    peer.out();
    peer.una = Sn(0);
    peer.give(hello(1, 99), b"");
    let out = peer.out();
    assert!(is_control(&out[0].0, ControlType::HelloAck), "{out:?}");
    peer
}

/// Rule: W-121.
#[test]
fn repair_before_hello_is_ignored() {
    let mut peer = ScriptedPeer::new(&config());
    peer.give(header(Command::Push, 0, 5), &[1; 100]);
    peer.out();
    peer.give(Header { frg: 2, ..header(Command::Repair, 1, 7) }, &[3; 50]);
    assert!(peer.out().is_empty() && peer.kcp.stats().redundancy.repair_symbols_received == 0);
}

#[test]
fn hello_ack_is_no_reflection() {
    let mut peer = ScriptedPeer::new(&config());
    peer.kcp.set_repair_rate(RATE);
    peer.write(vec![1; 100]);
    let sent = peer.out();
    peer.una = Sn(1);
    peer.give(Header { frg: CONTROL_CAPABLE, ..header(Command::Ack, 0, sent[0].0.ts.0) }, b"");
    let out = peer.out();
    let hello = out.iter().find(|(header, _)| is_control(header, ControlType::Hello)).unwrap().0;
    let hello_ack = Header { frg: ControlType::HelloAck as u8, ..hello };
    let alone = |header| datagram(&[(header, b"")]);
    assert!(peer.kcp.is_reflection(&alone(hello)));
    assert!(!peer.kcp.is_reflection(&alone(hello_ack)));
    peer.give(hello_ack, b"");
    assert!(peer.kcp.stats().redundancy.repair_per_mille > 0);
}

/// Rule: W-102.
#[test]
fn hello_flood_is_answered_with_less_than_it_sends() {
    let mut peer = asked(&config());
    let mut answers = 0;
    for ts in 0..5_000 {
        peer.now += MILLIS;
        peer.give(
            Header { frg: ControlType::Hello as u8, ..header(Command::Control, !0, ts) },
            b"",
        );
        answers += peer.out().len();
    }
    assert!((4..=8).contains(&answers), "{answers} answers in five seconds");
    assert_eq!(peer.kcp.close_reason(), None);
}

#[test]
fn hostile_repair_is_counted_and_ends_nothing() {
    for seed in 0..80 {
        let mut rng = Rng::new(seed);
        let mode = if seed < 40 { Mode::Stream } else { Mode::Message };
        let mut peer = asked(&KcpConfig { mode, ..config() });
        for i in 0..400_u32 {
            peer.now += 3 * MILLIS;
            let sn = if rng.below(4) == 0 { rng.next() as u32 } else { rng.below(200) as u32 };
            let frg = if rng.below(4) == 0 { rng.next() as u8 } else { rng.range(0, 65) as u8 };
            let payload = vec![rng.next() as u8; rng.size(0, 1_500)];
            let command = if rng.below(3) == 0 { Command::Push } else { Command::Repair };
            let frg = if command == Command::Push { 0 } else { frg };
            peer.give(Header { frg, ..header(command, sn, i) }, &payload);
            let before = peer.sent.0;
            peer.out();
            assert!(peer.sent.0 <= before + 1, "packets out per packet in");
            while peer.kcp.recv().is_some() {}
        }
        assert_eq!(peer.kcp.close_reason(), None, "seed {seed}");
        let stats = peer.kcp.stats().redundancy;
        assert!(
            stats.repair_symbols_received > 100 && stats.invalid_repair_symbols > 10,
            "{stats:?}"
        );
        // Data still flows.
        let nxt = peer.kcp.rcv_nxt();
        peer.give(header(Command::Push, nxt.0, 1), b"x");
        assert!(peer.kcp.rcv_nxt().since(nxt) > 0);
    }
}

/// Rules: W-123, W-134.
#[test]
fn repair_is_rejected_outside_the_window_and_beside_other_segments() {
    let mut peer = asked(&config());
    let nxt = peer.kcp.rcv_nxt();
    let window = u32::from(config().recv_window);
    let farthest = nxt.advance(i32::MAX as u32);
    let invalid = [
        (nxt.back(65), 1),
        (nxt.advance(window), 1),
        (nxt.advance(window - 10), 11),
        (farthest, 1),
        (farthest, 64),
    ];
    for (sn, frg) in invalid.into_iter().chain([(nxt, 0), (nxt, 65)]) {
        let before = peer.kcp.stats().redundancy.invalid_repair_symbols;
        peer.give(Header { frg, ..header(Command::Repair, sn.0, 7) }, &[3; 50]);
        assert_eq!(peer.kcp.stats().redundancy.invalid_repair_symbols, before + 1, "{sn:?} {frg}");
    }
    let before = peer.kcp.stats().redundancy.invalid_repair_symbols;
    let repair = Header { frg: 1, ..header(Command::Repair, nxt.0, 7) };
    let both = datagram(&[(repair, &[3; 50]), (repair, &[3; 50])]);
    peer.input(&both).unwrap();
    assert_eq!(peer.kcp.stats().redundancy.invalid_repair_symbols, before + 2);
}

/// A REPAIR for the single segment `sn` that recovers it with this content.
fn forged(sn: Sn, key: u32, frg: u8, payload: &[u8]) -> (Header, Vec<u8>) {
    let mut symbol = Vec::new();
    rlc::write_repair(key, [(frg, payload)].into_iter(), payload.len(), &mut symbol);
    (Header { frg: 1, ..header(Command::Repair, sn.0, key) }, symbol)
}

/// Rule: W-139.
#[test]
fn recovered_segment_that_continues_no_message_is_dropped() {
    let (recv_window, auto_windows) = (128, false);
    let message = KcpConfig { mode: Mode::Message, recv_window, auto_windows, ..config() };
    let mut peer = asked(&message);
    assert!(peer.kcp.recv().is_some());
    let nxt = peer.kcp.rcv_nxt();
    // In order, and behind a gap.
    for (i, sn) in [nxt, nxt.advance(1)].into_iter().enumerate() {
        let (header, symbol) = forged(sn, 7 + i as u32, 200, &[1; 50]);
        peer.give(header, &symbol);
        let stats = peer.kcp.stats().redundancy;
        assert_eq!((stats.invalid_repair_symbols, stats.recovered_segments), (i as u64 + 1, 0));
    }
    peer.push(nxt.0, &[2; 50]);
    peer.push(nxt.0 + 1, &[3; 50]);
    assert_eq!((peer.kcp.close_reason(), peer.kcp.rcv_nxt()), (None, nxt.advance(2)));
    let (header, symbol) = forged(nxt.advance(2), 9, 0, &[4; 50]);
    peer.give(header, &symbol);
    assert_eq!(peer.kcp.stats().redundancy.recovered_segments, 1);
    let read: Vec<_> = std::iter::from_fn(|| peer.kcp.recv()).collect();
    assert_eq!(read, [vec![2; 50], vec![3; 50], vec![4; 50]]);
}

/// Most connections are idle, and the buffers of recovery are the largest that they have.
#[test]
fn idle_connection_releases_recovery_after_the_ack_of_a_recovered_segment() {
    let mut peer = asked(&config());
    let nxt = peer.kcp.rcv_nxt();
    let (header, symbol) = forged(nxt, 7, 0, &[4; 50]);
    peer.give(header, &symbol);
    peer.read_all();
    peer.kcp.release_memory();
    let acks = peer.out();
    let is_ack = |header: &Header| header.frg == REPAIRED && header.sn == nxt;
    assert!(acks.iter().any(|(header, _)| is_ack(header)), "{acks:?}");
    assert!(peer.kcp.has_reclaimable_memory());
    peer.kcp.release_memory();
    assert!(!peer.kcp.has_reclaimable_memory());
    assert_eq!(peer.kcp.recv_memory(), 0);
}

#[test]
fn forged_hello_draws_no_answer_to_a_peer_without_control() {
    let mut peer = ScriptedPeer::new(&config());
    peer.write(vec![1; 100]);
    let sent = peer.out();
    peer.una = Sn(1);
    peer.ack(0, sent[0].0.ts.0);
    peer.give(hello(1, 99), b"");
    assert!(peer.out().iter().all(|(header, _)| header.command != Command::Control));
}

#[test]
fn ack_with_any_frg_is_an_ack_without_repair_symbols() {
    let mut peer = ScriptedPeer::new(&config());
    peer.write(vec![1; 100]);
    let sent = peer.out();
    peer.give(Header { frg: REPAIRED, ..header(Command::Ack, 0, sent[0].0.ts.0) }, b"");
    assert!(peer.kcp.is_established() && peer.kcp.stats().anomalies.invalid_acks == 0);
}

/// Rule: W-136.
#[test]
fn ack_of_a_recovered_segment_leaves_between_full_datagrams() {
    let mut config = config();
    config.congestion_control = CongestionControl::Off;
    let mut peer = asked(&config);
    peer.write(vec![1; 140_000]);
    let (header, symbol) = forged(peer.kcp.rcv_nxt(), 7, 0, &[4; 50]);
    peer.give(header, &symbol);
    let sent = peer.out();
    let is_ack = |header: &Header| header.command == Command::Ack && header.frg == REPAIRED;
    let at = sent.iter().position(|(header, _)| is_ack(header)).unwrap();
    assert!(at <= 44 && sent.len() > 90, "{at} of {}", sent.len());
}

/// A REPAIR for these segments, from `sn` on.
fn symbol_of(sn: Sn, key: u32, segments: &[&[u8]]) -> (Header, Vec<u8>) {
    let (mut symbol, count) = (Vec::new(), segments.len() as u8);
    let longest = segments.iter().map(|payload| payload.len()).max().unwrap();
    rlc::write_repair(key, segments.iter().map(|payload| (0, *payload)), longest, &mut symbol);
    (Header { frg: count, ..header(Command::Repair, sn.0, key) }, symbol)
}

/// Rule: W-136.
#[test]
fn ack_of_a_recovered_segment_has_the_key_that_reaches_furthest() {
    let (a, b, c) = (&[1; 50][..], &[2; 50][..], &[3; 50][..]);
    for far_first in [true, false] {
        let mut peer = asked(&config());
        let nxt = peer.kcp.rcv_nxt();
        peer.push(nxt.0 + 2, c);
        peer.out();
        let near = symbol_of(nxt, 7, &[a, b]);
        let far = symbol_of(nxt, 9, &[a, b, c]);
        let order = if far_first { [&far, &near] } else { [&near, &far] };
        for (header, symbol) in order {
            peer.give(*header, symbol);
        }
        let sent: Vec<_> = peer.out().into_iter().map(|(header, _)| header).collect();
        let acks = sent.iter().filter(|header| header.frg == REPAIRED);
        let acks: Vec<_> = acks.map(|ack| (ack.command, ack.sn.0, ack.ts.0, ack.una)).collect();
        let ack = |sn| (Command::Ack, sn, 9, nxt.advance(3));
        assert_eq!(acks, [ack(nxt.0), ack(nxt.0 + 1)], "{sent:?}");
    }
}

/// Whether a segment is recovered from one that arrived before a pause without REPAIR.
fn is_kept_for(pause: u64) -> bool {
    let mut peer = asked(&config());
    let nxt = peer.kcp.rcv_nxt();
    let (header, symbol) = forged(nxt, 7, 0, &[1; 50]);
    peer.give(header, &symbol);
    peer.push(nxt.0 + 1, &[2; 50]);
    peer.run(pause);
    peer.push(nxt.0 + 2, &[3; 50]);
    let (header, symbol) = symbol_of(nxt.advance(1), 8, &[&[2; 50], &[3; 50], &[4; 50]]);
    peer.give(header, &symbol);
    peer.kcp.stats().redundancy.recovered_segments == 2
}

/// Rule: W-133.
#[test]
fn history_of_repairs_ends_ten_seconds_after_the_last() {
    assert_eq!([9_900, 10_100].map(|pause| is_kept_for(pause * MILLIS)), [true, false]);
}
