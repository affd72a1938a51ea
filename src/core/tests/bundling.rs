//! Redundant data bundling between two state machines: a lost message arrives with the next datagram, copies
//! cost no datagrams, and the stream is what was written.

use std::cell::Cell;
use std::rc::Rc;

use super::scripted_peer::{ScriptedPeer, config};
use super::sim_plan::{MILLIS, SECOND};
use super::two_endpoints::TwoEndpoints;
use crate::config::AckPolicy;
use crate::core::segment::{Command, HEADER_LEN};
use crate::core::seq::Sn;
use crate::testkit::rng::Rng;

const MESSAGE: usize = 100;

/// Two ends that know the RTT of 20 ms; the first copies segments at `rate`.
fn started(seed: u64, loss: u64, rate: u32) -> TwoEndpoints {
    let mut ends = TwoEndpoints::new(seed, loss);
    ends.sides[0].set_bundling_rate(rate);
    ends.write(0, b"first");
    ends.run(SECOND);
    assert_eq!(ends.read(1), b"first");
    ends
}

/// Drops the datagram with the first transmission of `lost`, found by its first header.
fn lose(ends: &mut TwoEndpoints, lost: u32) {
    let mut done = false;
    ends.filter = Box::new(move |header| {
        let drops = !done && header.command == Command::Push && header.sn == Sn(lost);
        done |= drops;
        !drops
    });
}

#[test]
fn lost_message_arrives_with_the_next_datagram() {
    let mut ends = started(1, 0, 1_000_000);
    // 5 ms between messages, so the datagram with message 20 begins with a copy of message 19.
    let losses = Rc::new(Cell::new(0));
    let counted = Rc::clone(&losses);
    ends.filter = Box::new(move |header| {
        let drops = header.sn == Sn(19) && counted.get() == 0 && header.command == Command::Push;
        counted.set(counted.get() + u32::from(drops));
        !drops
    });
    let (mut sent, mut read) = (0, 0);
    for i in 0..60_u8 {
        ends.write(0, &[i; MESSAGE]);
        sent += MESSAGE;
        ends.run(5 * MILLIS);
        read += ends.read(1).len();
        // The path takes 10 ms, so two messages are on it; the lost ones arrive 5 ms later.
        assert!(read + 4 * MESSAGE >= sent, "{read} of {sent}");
    }
    ends.run(SECOND);
    let stats = ends.sides[0].stats();
    assert_eq!((losses.get(), stats.retransmits(), stats.anomalies.invalid_acks), (1, 0, 0));
    let rtt = stats.path.srtt.as_millis();
    assert!((20..=22).contains(&rtt), "RTT {rtt} ms: no sample of a copy");
}

/// Sends two messages 5 ms apart, and returns their transmissions: the first, and the copy of the first
/// followed by the second.
fn copied_once(scripted: &mut ScriptedPeer) -> [(u32, u32); 3] {
    scripted.kcp.set_bundling_rate(1_000_000);
    scripted.write(vec![1; MESSAGE]);
    let first = scripted.out();
    scripted.now += 5 * MILLIS;
    scripted.write(vec![2; MESSAGE]);
    let second = scripted.out();
    let transmissions = [&first[0], &second[0], &second[1]].map(|(h, _)| (h.sn.0, h.ts.0));
    let [original, copy, new] = transmissions;
    assert!(original.0 == copy.0 && original.1 != copy.1 && new.0 == copy.0 + 1);
    assert_eq!(first[0].1, second[0].1);
    transmissions
}

#[test]
fn ack_of_a_copy_acknowledges_and_is_no_loss() {
    let mut scripted = ScriptedPeer::new(&config());
    let [original, copy, new] = copied_once(&mut scripted);
    scripted.now += 20 * MILLIS;
    for (sn, ts) in [copy, new, original] {
        scripted.ack(sn, ts);
    }
    scripted.una = Sn(new.0 + 1);
    scripted.ack(new.0, new.1);
    scripted.ack(copy.0, copy.1);
    assert_eq!(scripted.kcp.stats().anomalies.invalid_acks, 0, "also behind una");
    scripted.ack(copy.0, copy.1 + 1);
    assert_eq!(scripted.kcp.stats().anomalies.invalid_acks, 1);
    assert_eq!(scripted.kcp.stats().retransmits(), 0);
    assert_eq!(scripted.kcp.stats().redundancy.loss_per_million, 0);
}

#[test]
fn clean_path_shows_no_loss_with_copies_whatever_the_ack_policy() {
    for policy in [AckPolicy::PerBatch, AckPolicy::Immediate, AckPolicy::Interval] {
        let mut ends = started(1, 0, 1_000_000);
        ends.sides[1].set_ack_policy(policy);
        for _ in 0..400 {
            ends.write(0, &[7; MESSAGE]);
            ends.run(5 * MILLIS);
        }
        let (stats, repair) = (ends.sides[0].stats(), ends.sides[0].stats().redundancy);
        assert_eq!((stats.retransmits(), stats.anomalies.invalid_acks), (0, 0), "{policy:?}");
        assert_eq!(repair.loss_per_million, 0, "{policy:?}");
    }
}

#[test]
fn segments_of_the_same_millisecond_ride_later() {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.kcp.set_bundling_rate(1_000_000);
    for _ in 0..3 {
        scripted.write(vec![1; MESSAGE]);
        assert_eq!(scripted.out().len(), 1, "no copy of what left just now");
        scripted.now += 500;
    }
    scripted.now += 5 * MILLIS;
    scripted.write(vec![1; MESSAGE]);
    assert_eq!(scripted.out().len(), 4);
}

/// The credit suffices for two copies, the space for one.
#[test]
fn datagram_with_copies_is_no_longer_than_the_mtu() {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.kcp.set_bundling_rate(1_000_000);
    for _ in 0..3 {
        scripted.write(vec![1; 600]);
        scripted.out();
    }
    scripted.now += 5 * MILLIS;
    let (datagrams, bytes) = scripted.sent;
    scripted.write(vec![2; 600]);
    scripted.out();
    let sent = (scripted.sent.0 - datagrams, scripted.sent.1 - bytes);
    assert_eq!(sent, (1, 2 * (HEADER_LEN as u64 + 600)));
}

#[test]
fn segments_that_leave_while_copying_is_off_are_not_copied_later() {
    let mut scripted = ScriptedPeer::new(&config());
    let mut send = |rate: u32| {
        scripted.now += 5 * MILLIS;
        scripted.write(vec![1; MESSAGE]);
        let sent = scripted.out().len();
        scripted.kcp.set_bundling_rate(rate);
        sent
    };
    assert_eq!(send(1_000_000), 1);
    assert_eq!(send(1_000_000), 1, "the first one left before");
    assert_eq!(send(900_000), 2);
    assert_eq!(send(0), 2, "another rate skips nothing");
    assert_eq!((send(1_000_000), send(1_000_000), send(0)), (1, 1, 2));
}

/// [`ScriptedPeer::run`] fails on a timer that expires without effect.
#[test]
fn copies_on_a_path_of_50_us_keep_no_timer_spinning() {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.kcp.set_bundling_rate(500_000);
    for sn in 0..20 {
        scripted.write(vec![1; MESSAGE]);
        let (known, _) = scripted.out()[0];
        scripted.now += 50;
        scripted.una = Sn(sn + 1);
        scripted.ack(known.sn.0, known.ts.0);
    }
    scripted.write(vec![1; MESSAGE]);
    let sent = scripted.run(scripted.now + SECOND);
    assert!(sent.len() > 3, "retransmissions go on");
}

#[test]
fn segment_with_a_copy_is_retransmitted_when_the_ack_of_the_copy_is_overdue() {
    let first_retransmission = |rate| {
        let mut scripted = ScriptedPeer::new(&config());
        for sn in 0..40 {
            scripted.write(vec![1; MESSAGE]);
            let (known, _) = scripted.out()[0];
            scripted.now += 50 * MILLIS;
            scripted.una = Sn(sn + 1);
            scripted.ack(known.sn.0, known.ts.0);
        }
        scripted.kcp.set_bundling_rate(rate);
        scripted.write(vec![2; MESSAGE]);
        let start = scripted.now;
        let sent = scripted.run(start + SECOND);
        assert_eq!(scripted.kcp.stats().redundancy.bundled_copies, u64::from(rate > 0));
        let retransmission = sent.get(1 + usize::from(rate > 0)).expect("it is lost");
        (retransmission.0 - start) / MILLIS
    };
    let without = first_retransmission(0);
    let with = first_retransmission(1_000_000);
    // The copy leaves after 20 ms; its ACK is due 50 ms later, plus some time for reordering.
    assert!((72..90).contains(&with) && without < with, "{with} ms, without a copy {without} ms");
}

#[test]
fn copies_cost_no_datagrams_and_at_most_their_rate() {
    let run = |rate| {
        let mut ends = started(1, 0, rate);
        let before = ends.sides[0].stats();
        for _ in 0..400 {
            ends.write(0, &[7; MESSAGE]);
            ends.run(8 * MILLIS);
        }
        ends.run(SECOND);
        let (stats, copies) =
            (ends.sides[0].stats(), ends.sides[0].stats().redundancy.bundled_copies);
        let datagrams = stats.sent.datagrams - before.sent.datagrams;
        (datagrams, stats.sent.datagram_bytes - before.sent.datagram_bytes, copies)
    };
    let (datagrams, bytes, none) = run(0);
    assert_eq!(none, 0);
    for (rate, most) in [(1_000_000, 400), (500_000, 200), (u32::MAX, 400)] {
        let (with, with_bytes, copies) = run(rate);
        // The last message has no successor.
        assert!(with <= datagrams + 1, "{with} datagrams instead of {datagrams}");
        assert!((most - 2..=most).contains(&copies), "{copies} copies at {rate}");
        assert_eq!(with_bytes - bytes, copies * (HEADER_LEN + MESSAGE) as u64);
    }
}

#[test]
fn message_that_no_other_follows_is_copied_by_itself() {
    let mut ends = started(1, 0, 1_000_000);
    lose(&mut ends, 1);
    ends.write(0, &[7; MESSAGE]);
    ends.run(9 * MILLIS);
    assert_eq!(ends.sides[0].stats().redundancy.bundled_copies, 0);
    // Half a round trip later.
    ends.run(12 * MILLIS);
    assert_eq!(ends.read(1).len(), MESSAGE);
    ends.run(SECOND);
    let stats = ends.sides[0].stats();
    assert_eq!((ends.sides[0].stats().redundancy.bundled_copies, stats.retransmits()), (1, 0));
}

#[test]
fn bulk_and_full_datagrams_get_no_copies() {
    let mut ends = started(1, 0, 1_000_000);
    let before = ends.sides[0].stats().redundancy.bundled_copies;
    ends.write(0, &vec![7; 2_000_000]);
    let mut read = 0;
    while read < 2_000_000 {
        read += ends.read(1).len();
        ends.run(10 * MILLIS);
    }
    // At most one datagram of copies, after the last segment.
    assert!(ends.sides[0].stats().redundancy.bundled_copies - before <= 1);
}

#[test]
fn peer_that_is_not_validated_is_sent_no_copy() {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.kcp.set_bundling_rate(1_000_000);
    scripted.kcp.require_validation(scripted.instant(), 2_000);
    for _ in 0..4 {
        scripted.write(vec![7; MESSAGE]);
        scripted.run(5 * MILLIS);
    }
    scripted.run(SECOND);
    assert_eq!(scripted.kcp.stats().redundancy.bundled_copies, 0);
    assert!(scripted.kcp.stats().sent.segments >= 2, "data may leave");
}

/// Random writes in both directions over a path that loses, duplicates and reorders.
#[test]
fn stream_with_copies_arrives_unchanged() {
    let mut copies = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut ends = TwoEndpoints::new(seed, [0, 10_000, 100_000, 300_000][seed as usize % 4]);
        let (mut sent, mut read) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for _ in 0..150 {
            for side in [0, 1] {
                if rng.below(40) == 0 {
                    ends.sides[side].set_bundling_rate(rng.range(0, 1_000_000) as u32);
                }
                let longest = if rng.below(8) == 0 { 3_000 } else { 200 };
                let len = rng.size(1, longest);
                let bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
                ends.write(side, &bytes);
                sent[side].extend(bytes);
            }
            ends.run(rng.range(0, 40) * MILLIS);
            for side in [0, 1] {
                read[1 - side].extend(ends.read(side));
            }
        }
        ends.run(60 * SECOND);
        for side in [0, 1] {
            read[1 - side].extend(ends.read(side));
        }
        assert!(sent == read, "seed {seed}");
        for side in &ends.sides {
            assert_eq!(side.stats().anomalies.invalid_acks, 0, "seed {seed}");
            copies += side.stats().redundancy.bundled_copies;
        }
    }
    assert!(copies > 500, "{copies} copies");
}
