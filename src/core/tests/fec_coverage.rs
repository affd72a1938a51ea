//! Loss detection of segments in FEC groups whose parity was sent.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::scripted_peer::{ScriptedPeer, config, datagram, header};
use super::sim_plan::MILLIS;
use crate::config::{KcpConfig, Mode};
use crate::core::connection::fec::ClosedGroup;
use crate::core::segment::{Command, Header};
use crate::core::seq::Sn;
use crate::testkit::rng::Rng;

const RTT: u64 = 40 * MILLIS;
/// First segment of the group; earlier ones gave RTT samples.
const FIRST: u32 = 20;

/// A connection with RTT samples and nothing in flight.
fn established() -> ScriptedPeer {
    established_with(&config())
}

fn established_with(config: &KcpConfig) -> ScriptedPeer {
    let mut script = ScriptedPeer::new(config);
    script.now = 1_000 * MILLIS;
    for sn in 0..FIRST {
        script.write(vec![1; 10]);
        script.out();
        let ts = script.now / MILLIS;
        script.now += RTT;
        script.una = Sn(sn + 1);
        script.ack(sn, ts as u32);
    }
    script
}

/// Writes a segment now and returns its timestamp.
fn send(script: &mut ScriptedPeer) -> u32 {
    script.write(vec![1; 10]);
    script.out();
    (script.now / MILLIS) as u32
}

/// Parity of all segments from transmission `first_xmit_seq` on leaves now.
fn close(script: &mut ScriptedPeer, opened: Instant, first_xmit_seq: u64, parities: usize) {
    let (conv, packets) = (script.kcp.conv(), 3 + parities);
    let group = ClosedGroup { conv, first_xmit_seq, opened, packets, parities };
    script.kcp.on_fec_group_closed(script.instant(), &group);
}

/// Sends three segments 5 ms apart; after `close_after` milliseconds, `parities` packets that cover them
/// leave. The first `lost` segments are not acknowledged. Returns when each of these is retransmitted, in
/// milliseconds after the first one left.
fn retransmitted_at(lost: usize, close_after: u64, parities: usize) -> Vec<u64> {
    let mut script = established();
    let (start, opened) = (script.now, script.instant());
    let first = script.kcp.flow_timing().next_xmit_seq;
    let mut stamps = Vec::new();
    for i in 0..3 {
        script.now = start + i * 5 * MILLIS;
        stamps.push(send(&mut script));
    }
    script.now = start + close_after * MILLIS;
    if parities > 0 {
        close(&mut script, opened, first, parities);
    }
    let mut all = script.run(start + RTT);
    for (i, stamp) in stamps.iter().enumerate().skip(lost) {
        all.extend(script.run(start + RTT + i as u64 * 5 * MILLIS));
        script.ack(FIRST + i as u32, *stamp);
    }
    all.extend(script.run(start + 4 * RTT));
    let at = |sn: u32| {
        let of = |(_, (header, _)): &&(u64, _)| {
            let header: &Header = header;
            header.command == Command::Push && header.sn == Sn(sn)
        };
        all.iter().find(of).map_or(u64::MAX, |(at, _)| (at - start) / MILLIS)
    };
    (0..lost as u32).map(|i| at(FIRST + i)).collect()
}

/// Rule: P-57.
#[test]
fn lost_segment_waits_until_its_parity_is_acknowledged() {
    let without = retransmitted_at(1, 10, 0);
    assert_eq!(without, [45], "early retransmit");
    // The RTT after the parity, plus the least reordering window.
    assert_eq!(retransmitted_at(1, 20, 1), [20 + 40 + 2]);
    assert_eq!(retransmitted_at(1, 35, 1), [35 + 40 + 2]);
    // Parity that left long before the ACKs changes nothing.
    assert_eq!(retransmitted_at(1, 10, 1), [52]);
}

#[test]
fn lost_segment_does_not_wait_for_parity_that_left_45_ms_later() {
    assert_eq!(retransmitted_at(1, 44, 1), [86]);
    assert_eq!(retransmitted_at(1, 46, 1), [45]);
}

#[test]
fn lost_segments_do_not_wait_for_parity_that_is_not_enough() {
    let without = retransmitted_at(2, 35, 0);
    let with = retransmitted_at(2, 35, 1);
    assert!(without.iter().zip(&with).all(|(a, b)| a <= b), "{without:?} {with:?}");
    // Once the second is overdue, neither the first nor the second waits any longer.
    assert_eq!(with, [without[1]; 2]);
    assert_eq!(retransmitted_at(2, 35, 2), [77, 77]);
}

/// When the lost segment of a group without parity is retransmitted, in milliseconds. A segment of the
/// previous group, which has `parities` parity packets, is lost too.
fn second_group_retransmitted_at(parities: usize) -> u64 {
    let mut script = established();
    let (start, opened) = (script.now, script.instant());
    let first = script.kcp.flow_timing().next_xmit_seq;
    let stamp = (start / MILLIS) as u32;
    (0..3).for_each(|_| assert_eq!(send(&mut script), stamp));
    if parities > 0 {
        close(&mut script, opened, first, parities);
    }
    (3..8).for_each(|_| assert_eq!(send(&mut script), stamp));
    let mut sent = script.run(start + RTT);
    [1, 2, 4, 5, 6, 7].iter().for_each(|i| script.ack(FIRST + i, stamp));
    sent.extend(script.run(start + 4 * RTT));
    let lost = sent.iter().find(|(_, (header, _))| header.sn == Sn(FIRST + 3));
    lost.map_or(u64::MAX, |(at, _)| (at - start) / MILLIS)
}

#[test]
fn group_that_waits_for_parity_holds_up_no_segment_of_the_next() {
    assert_eq!([0, 1].map(second_group_retransmitted_at), [40, 40]);
}

/// Parity recovers datagrams, and each may hold several segments.
#[test]
fn segments_of_one_lost_datagram_wait_for_one_parity_packet() {
    let mut script = established_with(&KcpConfig { mode: Mode::Message, ..config() });
    let (start, opened) = (script.now, script.instant());
    let first = script.kcp.flow_timing().next_xmit_seq;
    (0..3).for_each(|_| script.write(vec![1; 100]));
    let datagrams = script.sent.0;
    assert_eq!((script.out().len(), script.sent.0 - datagrams), (3, 1));
    script.now += 20 * MILLIS;
    let stamp = send(&mut script);
    close(&mut script, opened, first, 1);
    let mut sent = script.run(start + 20 * MILLIS + RTT);
    script.ack(FIRST + 3, stamp);
    // The ACKs of the recovered segments arrive a millisecond after the ACKs of the others.
    sent.extend(script.run(script.now + MILLIS));
    (0..3).for_each(|i| script.ack(FIRST + i, (start / MILLIS) as u32));
    script.una = Sn(FIRST + 4);
    script.ack(FIRST + 3, stamp);
    sent.extend(script.run(start + 10 * RTT));
    assert!(sent.is_empty(), "{sent:?}");
}

#[test]
fn recovered_segment_is_not_retransmitted() {
    let mut script = established();
    let (start, opened) = (script.now, script.instant());
    let first = script.kcp.flow_timing().next_xmit_seq;
    let stamp = send(&mut script);
    script.now += 30 * MILLIS;
    let last = send(&mut script);
    close(&mut script, opened, first, 1);
    let before = script.kcp.stats();
    let mut sent = script.run(start + 30 * MILLIS + RTT);
    script.una = Sn(FIRST + 2);
    script.ack(FIRST, stamp);
    script.ack(FIRST + 1, last);
    sent.extend(script.run(start + 10 * RTT));
    assert!(sent.is_empty(), "{sent:?}");
    assert_eq!(script.kcp.stats().retransmits(), before.retransmits());
    // This first loss of the connection counts.
    assert!(script.kcp.flow_timing().loss_rate > 0);
}

/// With `AckPolicy::Interval` on a path without loss, late ACKs are not mistaken for losses that FEC
/// recovered.
#[test]
fn acks_that_a_peer_holds_back_are_no_losses() {
    for interval in [10, 20] {
        let mut script = established();
        let (mut first, mut opened) = (0, script.instant());
        // Numbers and timestamps, and when they arrive.
        let mut flying: VecDeque<(u64, (u32, u32))> = VecDeque::new();
        let mut held: Vec<(u32, u32)> = Vec::new();
        for millis in 0..3_000 {
            script.now = (2_000 + millis) * MILLIS;
            while flying.front().is_some_and(|(at, _)| *at <= millis) {
                let (_, ack) = flying.pop_front().unwrap();
                held.push(ack);
                script.una = Sn(script.una.0.max(ack.0 + 1));
            }
            if millis % interval == 0 && !held.is_empty() {
                let una = script.una;
                let acks = held.drain(..).map(|(sn, ts)| header(Command::Ack, sn, ts));
                let acks: Vec<_> = acks.map(|ack| (Header { una, ..ack }, &b""[..])).collect();
                script.input(&datagram(&acks)).unwrap();
            }
            if millis % 3 == 0 {
                if first == 0 {
                    (first, opened) = (script.kcp.flow_timing().next_xmit_seq, script.instant());
                }
                script.write(vec![1; 10]);
            }
            for (sent, _) in script.out() {
                flying.push_back((millis + RTT / MILLIS, (sent.sn.0, sent.ts.0)));
            }
            if millis % 15 == 14 {
                close(&mut script, opened, first, 2);
                first = 0;
            }
        }
        assert_eq!(script.kcp.flow_timing().loss_rate, 0, "{interval} ms");
    }
}

/// Whatever a peer acknowledges, and when, a segment is retransmitted at most an RTO after its parity, and so
/// at most 40 ms later than without parity.
/// Rule: P-57.
#[test]
fn no_acks_of_a_peer_defer_a_retransmission_beyond_an_rto_after_the_parity() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut script = established();
        let first = script.kcp.flow_timing().next_xmit_seq;
        let (start, opened) = (script.now, script.instant());
        send(&mut script);
        let mut closed = start + rng.below(60) * MILLIS;
        let (mut stamps, mut rto, mut at) = (Vec::new(), Duration::ZERO, None);
        while script.now < start + 2_000 * MILLIS && at.is_none() {
            if script.now >= closed {
                let parities = 1 + rng.below(3) as usize;
                close(&mut script, opened, first, parities);
                closed = u64::MAX;
            }
            if stamps.len() < 100 && rng.chance(300_000) {
                stamps.push(send(&mut script));
            }
            if !stamps.is_empty() && rng.chance(300_000) {
                let i = rng.below(stamps.len() as u64) as usize;
                script.ack(FIRST + 1 + i as u32, stamps[i]);
            }
            rto = rto.max(script.kcp.stats().path.rto);
            let sent = script.run(script.now + rng.below(5_000));
            let push = |(_, (header, _)): &(u64, (Header, Vec<u8>))| {
                header.command == Command::Push && header.sn == Sn(FIRST)
            };
            at = sent.into_iter().find(push).map(|(at, _)| at - start);
        }
        let at = at.unwrap_or_else(|| panic!("seed {seed}: never retransmitted"));
        // The first RTO of a thick flow is half longer.
        let bound = rto.as_micros() as u64 * 3 / 2 + 40 * MILLIS;
        assert!(at <= bound, "seed {seed}: {at} us, the bound is {bound}");
    }
}
