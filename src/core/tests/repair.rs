//! Repair symbols between two state machines: negotiation, recovery without a retransmission, an unchanged
//! stream, and losses that count.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;

use super::scripted_peer::{ScriptedPeer, config, header};
use super::sim_plan::{MILLIS, SECOND};
use super::two_endpoints::TwoEndpoints;
use crate::config::{CongestionControl, KcpConfig, Mode, Timing};
use crate::core::connection::{Kcp, Seed};
use crate::core::segment::{
    CONTROL_CAPABLE, Command, ControlType, HEADER_LEN, Header, REPAIRED, Segments,
};
use crate::core::seq::Sn;
use crate::stats::ConnectionStats;
use crate::testkit::rng::Rng;

const RATE: u32 = 500_000;

fn is_control(header: &Header, kind: ControlType) -> bool {
    header.command == Command::Control && header.frg == kind as u8
}

/// First headers of all datagrams of both sides.
type Log = Rc<RefCell<Vec<Header>>>;

/// Logs everything that both ends send from now on.
fn log(ends: &mut TwoEndpoints) -> Log {
    let log = Log::default();
    let entries = Rc::clone(&log);
    ends.filter = Box::new(move |header| {
        entries.borrow_mut().push(*header);
        true
    });
    log
}

/// Two ends, the first sending repair symbols, and a log of the traffic.
fn negotiated(seed: u64) -> (TwoEndpoints, Log) {
    let mut ends = TwoEndpoints::new(seed, 0);
    let log = log(&mut ends);
    ends.sides[0].set_repair_rate(RATE);
    ends.write(0, b"first");
    ends.run(100 * MILLIS);
    assert!(
        ends.sides[0].stats().redundancy.repair_per_mille > 0
            && ends.sides[1].stats().redundancy.repair_per_mille == 0
    );
    assert_eq!(ends.read(1), b"first");
    (ends, log)
}

fn repairs(log: &Log) -> usize {
    log.borrow().iter().filter(|header| header.command == Command::Repair).count()
}

/// Rules: W-15, W-56, W-99, W-102.
#[test]
fn hello_is_exchanged_once_after_the_capability() {
    let (_, log) = negotiated(1);
    let log = log.borrow();
    let at = |test: &dyn Fn(&Header) -> bool| log.iter().position(test).unwrap();
    let capability = at(&|header| header.command == Command::Ack && header.frg == CONTROL_CAPABLE);
    let hello = at(&|header| is_control(header, ControlType::Hello));
    let hello_ack = at(&|header| is_control(header, ControlType::HelloAck));
    assert!(capability < hello && hello < hello_ack);
    assert_eq!(log.iter().filter(|header| header.command == Command::Control).count(), 2);
    assert_eq!((log[hello].sn, log[hello_ack].sn), (Sn(3), Sn(3)));
    assert_eq!(log[hello].ts, log[hello_ack].ts);
}

/// Rule: W-120.
#[test]
fn peer_without_control_is_sent_neither_hello_nor_repair() {
    let mut ends = TwoEndpoints::new(1, 0);
    let off = KcpConfig { close_notify: false, ..config() };
    ends.sides[1] =
        Kcp::with_config(ends.sides[0].conv(), &off, ends.instant(), Seed::new(9, 9)).unwrap();
    ends.sides[0].set_repair_rate(RATE);
    ends.filter = Box::new(|header| {
        assert!(header.command != Command::Control && header.command != Command::Repair);
        true
    });
    for _ in 0..100 {
        ends.write(0, &[7; 1_000]);
        ends.run(10 * MILLIS);
    }
    assert_eq!(ends.read(1).len(), 100_000);
}

/// Rules: W-104, W-120, P-27.
#[test]
fn hello_without_an_answer_is_sent_eight_times_and_then_one_a_minute() {
    let mut ends = TwoEndpoints::new(1, 0);
    ends.sides[0].set_repair_rate(RATE);
    let count = Rc::new(RefCell::new(0));
    let counted = Rc::clone(&count);
    // An older version of this crate ignores HELLO.
    ends.filter = Box::new(move |header| {
        assert_ne!(header.command, Command::Repair);
        let is_hello = is_control(header, ControlType::Hello);
        *counted.borrow_mut() += usize::from(is_hello);
        !is_hello
    });
    for _ in 0..60 {
        ends.write(0, &[7; 100]);
        ends.run(SECOND);
    }
    assert_eq!((*count.borrow(), ends.read(1).len()), (8, 6_000));
    ends.run(300 * SECOND);
    assert_eq!(*count.borrow(), 8, "none while nothing is sent");
    for _ in 0..150 {
        ends.write(0, &[7; 100]);
        ends.run(SECOND);
    }
    assert_eq!(*count.borrow(), 11, "one a minute");
}

/// Rule: W-127.
#[test]
fn mss_is_three_bytes_smaller_while_repair_symbols_are_sent() {
    let (mut ends, log) = negotiated(1);
    let mss = ends.sides[1].current_mtu();
    assert_eq!(ends.sides[0].current_mtu(), mss - 3);
    ends.write(0, &vec![7; 20_000]);
    ends.run(100 * MILLIS);
    let repair = |header: &&Header| header.command == Command::Repair;
    let longest = log.borrow().iter().filter(repair).map(|header| header.len).max();
    assert_eq!(longest, Some((mss - HEADER_LEN) as u32), "repair symbols are as long as the MTU");
    ends.sides[0].set_repair_rate(0);
    assert_eq!(ends.sides[0].current_mtu(), mss);
    let before = repairs(&log);
    ends.write(0, &vec![7; 20_000]);
    ends.run(100 * MILLIS);
    assert_eq!(repairs(&log), before);
}

/// Rules: W-119, W-137.
#[test]
fn lost_segment_is_recovered_without_a_retransmission() {
    for lost in 20..30 {
        let (mut ends, _) = negotiated(lost);
        let mut pushes = 0;
        ends.filter = Box::new(move |header| {
            pushes += u64::from(header.command == Command::Push);
            header.command != Command::Push || pushes != lost
        });
        let (mut rtts, mut sent, mut latest) = (Vec::new(), 0, 0);
        for i in 0..60_u64 {
            ends.write(0, &[i as u8; 1_000]);
            sent += 1_000;
            ends.run(10 * MILLIS);
            let read = ends.read(1);
            latest += read.len();
            // The path takes 10 ms, and the next repair symbol leaves with the next segment but one.
            assert!(latest + 3_000 >= sent, "segment {lost}: {latest} of {sent}");
            rtts.push(ends.sides[0].stats().path.srtt);
        }
        ends.run(SECOND);
        let (stats, repair) = (ends.sides[0].stats(), ends.sides[0].stats().redundancy);
        assert_eq!(stats.retransmits(), 0, "segment {lost}");
        assert_eq!(stats.anomalies.invalid_acks, 0);
        assert_eq!(
            (
                repair.recovered_by_peer_segments,
                ends.sides[1].stats().redundancy.recovered_segments
            ),
            (1, 1)
        );
        assert!(repair.loss_per_million > 0, "a hidden loss is a loss");
        assert!(rtts.iter().all(|rtt| rtt.as_millis() <= 22), "no sample of a recovered segment");
    }
}

/// Rule: W-131.
#[test]
fn repair_symbols_are_at_most_their_rate_of_the_data() {
    let mut rng = Rng::new(3);
    for rate in [50_000, 250_000, 1_000_000, u32::MAX] {
        let (mut ends, log) = negotiated(1);
        ends.sides[0].set_repair_rate(rate);
        for _ in 0..400 {
            let len = if rng.below(8) == 0 { rng.size(1, 2_000) } else { rng.size(1, 100) };
            ends.write(0, &vec![1; len]);
            ends.run(rng.range(1, 60) * MILLIS);
        }
        let bytes = |command: Command| -> u64 {
            let log = log.borrow();
            let of = log.iter().filter(|header| header.command == command);
            of.map(|header| HEADER_LEN as u64 + u64::from(header.len)).sum()
        };
        let (data, count) = (bytes(Command::Push), repairs(&log) as u64);
        let limit = data * u64::from(rate.min(1_000_000)) / 1_000_000 + 3 * count + 2_800;
        let sent = bytes(Command::Repair);
        assert!(sent <= limit && count > 5, "rate {rate}: {sent} of {limit}, {count} symbols");
    }
}

/// Rule: W-132.
#[test]
fn bulk_gets_no_repair_symbols() {
    let (mut ends, log) = negotiated(1);
    // More than the send window, so over 256 segments are outstanding almost until the end.
    ends.write(0, &vec![7; 4_000_000]);
    ends.run(60 * MILLIS);
    assert_eq!(repairs(&log), 0);
    let mut read = 0;
    while read < 4_000_000 {
        read += ends.read(1).len();
        ends.run(10 * MILLIS);
    }
    assert!(repairs(&log) < 300, "{} for the last 256 segments", repairs(&log));
}

/// Random writes in both directions over a path that loses, duplicates and reorders.
fn transfer_and_compare(seed: u64, writes: usize) -> u64 {
    let mut rng = Rng::new(seed);
    let mut ends = TwoEndpoints::new(seed, [10_000, 50_000, 200_000, 400_000][seed as usize % 4]);
    let mut sent = [Vec::new(), Vec::new()];
    let mut read = [Vec::new(), Vec::new()];
    for side in &mut ends.sides {
        side.set_repair_rate(rng.range(0, 1_000_000) as u32);
    }
    for _ in 0..writes {
        let side = usize::from(rng.below(4) == 0);
        let len = [1, 50, 1_000, 5_000][rng.below(4) as usize];
        let data: Vec<u8> = std::iter::repeat_with(|| rng.next() as u8).take(len).collect();
        ends.write(side, &data);
        sent[side].extend_from_slice(&data);
        ends.run(rng.range(0, 20) * MILLIS);
        if rng.below(50) == 0 {
            ends.sides[side].set_repair_rate(rng.range(0, 1_000_000) as u32);
        }
        for side in [0, 1] {
            read[side].extend_from_slice(&ends.read(side));
            assert!(sent[1 - side].starts_with(&read[side]), "seed {seed}: other bytes");
        }
    }
    for _ in 0..100 {
        ends.run(SECOND);
        for side in [0, 1] {
            read[side].extend_from_slice(&ends.read(side));
        }
        if ends.sides.iter().all(Kcp::is_drained) {
            break;
        }
    }
    assert_eq!(ends.ends(), [None, None], "seed {seed}");
    assert!(read[0] == sent[1] && read[1] == sent[0], "seed {seed}");
    ends.sides.iter().map(|kcp| kcp.stats().redundancy.recovered_segments).sum()
}

#[test]
fn stream_with_repair_symbols_arrives_unchanged() {
    let recovered: u64 = (0..200).map(|seed| transfer_and_compare(seed, 100)).sum();
    println!("seeds 0 to 199: {recovered} segments recovered");
    assert!(recovered > 1_000, "{recovered}");
}

/// `cargo test --lib tests::repair -- --ignored --nocapture`
#[test]
#[ignore = "the full number of seeds: minutes"]
fn stream_with_repair_symbols_arrives_unchanged_with_100_000_seeds() {
    let recovered: u64 = (0..100_000).map(|seed| transfer_and_compare(seed, 40)).sum();
    println!("seeds 0 to 99,999: {recovered} segments recovered");
    assert!(recovered > 300_000, "{recovered}");
}

#[test]
fn messages_with_repair_symbols_keep_their_boundaries() {
    for seed in 0..40 {
        let mut ends = TwoEndpoints::new(seed, 100_000);
        let config = KcpConfig { mode: Mode::Message, ..config() };
        let conv = ends.sides[0].conv();
        let kcp =
            |side| Kcp::with_config(conv, &config, ends.instant(), Seed::new(side, side.into()));
        ends.sides = [kcp(1).unwrap(), kcp(2).unwrap()];
        ends.sides[0].set_repair_rate(RATE);
        let mut rng = Rng::new(seed);
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for i in 0..100_u8 {
            let message = vec![i; rng.size(1, 3_000)];
            let now = ends.instant();
            ends.sides[0].send_message(now, message.clone().into()).unwrap();
            sent.push(message);
            ends.run(10 * MILLIS);
        }
        ends.run(5 * SECOND);
        while let Some(message) = ends.sides[1].recv() {
            received.push(message.to_vec());
        }
        assert!(sent == received, "seed {seed}");
    }
}

/// Rule: W-138.
#[test]
fn ack_of_a_recovered_segment_needs_a_key_that_was_sent() {
    let (mut ends, log) = negotiated(1);
    let lost = Rc::new(RefCell::new(false));
    let drop_all = Rc::clone(&lost);
    let entries = Rc::clone(&log);
    ends.filter = Box::new(move |header| {
        entries.borrow_mut().push(*header);
        !*drop_all.borrow()
    });
    *lost.borrow_mut() = true;
    for _ in 0..4 {
        ends.write(0, &[7; 1_000]);
        ends.run(MILLIS);
    }
    let is_repair = |header: &&Header| header.command == Command::Repair;
    let early = log.borrow().iter().find(is_repair).copied().unwrap();
    let last = log.borrow().iter().rfind(is_repair).copied();
    let (key, in_flight) = (last.unwrap().ts.0, ends.sides[0].stats().path.in_flight_segments);
    assert!(in_flight >= 4);
    let mut ack = |sn: u32, key: u32| -> ConnectionStats {
        let ack = Header { frg: REPAIRED, ..header(Command::Ack, sn, key) };
        let datagram = super::scripted_peer::datagram(&[(ack, b"")]);
        let now = ends.instant();
        let origin = crate::core::connection::PacketType::Regular;
        ends.sides[0].input(now, &datagram, origin).unwrap();
        ends.sides[0].stats()
    };
    assert_eq!(ack(2, key.wrapping_add(1)).anomalies.invalid_acks, 1, "a key of the future");
    assert_eq!(
        ack(2, key.wrapping_sub(1_000)).anomalies.invalid_acks,
        2,
        "a key that was never sent"
    );
    assert_eq!(ack(1_000, key).anomalies.invalid_acks, 3, "a segment that was never sent");
    let end = early.sn.0 + u32::from(early.frg);
    assert!(end <= 4, "{early:?}");
    assert_eq!(ack(4, early.ts.0).anomalies.invalid_acks, 4, "a key from before the segment");
    assert_eq!(ack(2, key).anomalies.invalid_acks, 4);
    assert_eq!(ends.sides[0].stats().redundancy.recovered_by_peer_segments, 1);
}

#[test]
fn segments_recovered_among_many_in_flight_are_acknowledged() {
    for (in_flight, every) in [(100, 200), (200, 115)] {
        let (mut ends, _) = negotiated(in_flight);
        let windows = KcpConfig { send_window: 1_024, recv_window: 1_024, ..config() };
        let conv = ends.sides[0].conv();
        let kcp =
            |side| Kcp::with_config(conv, &windows, ends.instant(), Seed::new(side, side.into()));
        ends.sides = [kcp(1).unwrap(), kcp(2).unwrap()];
        ends.sides[0].set_repair_rate(RATE);
        let mut rng = Rng::new(in_flight);
        ends.filter =
            Box::new(move |header| header.command != Command::Push || !rng.chance(20_000));
        let (mut written, mut read, mut most) = (0, 0, 0);
        for _ in 0..1_000_000 / every {
            ends.write(0, &[7; 100]);
            written += 100;
            ends.run(every);
            read += ends.read(1).len();
            most = most.max(ends.sides[0].stats().path.in_flight_segments);
        }
        ends.run(SECOND);
        assert_eq!(read + ends.read(1).len(), written);
        let (stats, repair) = (ends.sides[0].stats(), ends.sides[0].stats().redundancy);
        println!("{most} in flight: {repair:?}, {} retransmissions", stats.retransmits());
        assert!(
            u64::from(most) >= in_flight && repair.recovered_by_peer_segments > 30,
            "{repair:?}"
        );
        assert_eq!(stats.anomalies.invalid_acks, 0, "{in_flight} in flight");
    }
}

/// Rules: W-137, P-15.
#[test]
fn hidden_loss_closes_the_congestion_window() {
    let (mut ends, _) = negotiated(1);
    ends.sides[0].set_timing(Timing::FAST3);
    ends.sides[0].set_congestion_control(CongestionControl::Reno);
    let mut lost = false;
    let mut windows = Vec::new();
    for i in 0..200 {
        if i == 150 {
            let mut pushes = 0;
            ends.filter = Box::new(move |header| {
                pushes += u64::from(header.command == Command::Push);
                header.command != Command::Push || pushes != 3
            });
            lost = true;
        }
        ends.write(0, &[7; 1_000]);
        ends.run(5 * MILLIS);
        windows.push(ends.sides[0].stats().path.cwnd_segments);
    }
    ends.run(SECOND);
    assert!(lost && ends.sides[0].stats().redundancy.recovered_by_peer_segments == 1);
    assert_eq!(ends.sides[0].stats().retransmits(), 0);
    let (before, after) = (windows[149], windows[150..].iter().min().copied());
    assert!(after < Some(before), "{before:?} before the loss, {after:?} after");
}

/// A model that knows no loss is given up on a short path.
#[test]
fn hidden_loss_reaches_the_congestion_model() {
    for lost in [0, 20] {
        let (mut ends, _) = negotiated(1);
        let mut pushes = 0;
        ends.filter = Box::new(move |header| {
            pushes += u64::from(header.command == Command::Push);
            header.command != Command::Push || pushes != lost
        });
        for _ in 0..60 {
            ends.write(0, &[7; 1_000]);
            ends.run(10 * MILLIS);
        }
        let stats = ends.sides[0].stats();
        let recovered = stats.redundancy.recovered_by_peer_segments;
        assert_eq!((stats.retransmits(), recovered), (0, u64::from(lost > 0)));
        let congestion = &mut ends.sides[0].send.path.congestion;
        assert!(congestion.samples_rate(), "the model is in use");
        assert_eq!(congestion.suspend_on_short_path(1), lost == 0);
    }
}

#[test]
fn redundant_bytes_in_the_statistics_are_the_repair_symbols_on_the_wire() {
    let (mut ends, log) = negotiated(1);
    for len in [100, 1_000, 3_000, 10].into_iter().cycle().take(100) {
        ends.write(0, &vec![7; len]);
        ends.run(10 * MILLIS);
    }
    let log = log.borrow();
    let sent = log.iter().filter(|header| header.command == Command::Repair);
    let bytes: u64 = sent.clone().map(|header| HEADER_LEN as u64 + u64::from(header.len)).sum();
    let stats = ends.sides[0].stats().redundancy;
    assert!(bytes > 10_000, "{bytes}");
    assert_eq!(
        (stats.redundant_bytes_sent, stats.repair_symbols_sent),
        (bytes, sent.count() as u64)
    );
}

#[test]
fn ack_of_a_retransmission_takes_back_no_loss() {
    let (mut ends, log) = negotiated(1);
    let cut = Rc::clone(&log);
    ends.filter = Box::new(move |header| {
        cut.borrow_mut().push(*header);
        false
    });
    for _ in 0..4 {
        ends.write(0, &[7; 1_000]);
        ends.run(MILLIS);
    }
    ends.run(SECOND);
    let last = |test: &dyn Fn(&&Header) -> bool| log.borrow().iter().rfind(|h| test(h)).copied();
    let repair = last(&|header| header.command == Command::Repair).unwrap();
    let push = last(&|header| header.command == Command::Push && header.len > 0).unwrap();
    let first = log.borrow().iter().find(|h| h.sn == push.sn).copied().unwrap();
    assert!(push.ts != first.ts, "retransmitted");
    let acks = [(REPAIRED, repair.ts), (CONTROL_CAPABLE, push.ts)];
    let loss = ends.sides[0].stats().redundancy.loss_per_million;
    for (frg, ts) in acks {
        let ack = Header { frg, ..header(Command::Ack, push.sn.0, ts.0) };
        ends.input(0, &super::scripted_peer::datagram(&[(ack, b"")])).unwrap();
        assert_eq!(ends.sides[0].stats().redundancy.loss_per_million, loss);
    }
    assert_eq!(ends.sides[0].stats().anomalies.invalid_acks, 0);
    assert_eq!(ends.sides[0].stats().redundancy.recovered_by_peer_segments, 1);
}

#[test]
fn idle_connection_keeps_the_loss_estimate_and_waiting_equations() {
    let (mut ends, _) = negotiated(1);
    for round in 0..2 {
        let mut pushes = 0;
        ends.filter = Box::new(move |header| {
            pushes += u64::from(header.command == Command::Push);
            header.command != Command::Push || pushes != 10
        });
        for _ in 0..20 {
            ends.write(0, &[7; 1_000]);
            ends.run(10 * MILLIS);
            // While a segment is missing, nothing that may recover it is released.
            ends.read(1);
            ends.sides[1].release_memory();
        }
        ends.run(SECOND);
        ends.read(1);
        assert_eq!(ends.sides[0].stats().retransmits(), 0);
        assert_eq!(ends.sides[0].stats().redundancy.recovered_by_peer_segments, round + 1);
        let loss = ends.sides[0].stats().redundancy.loss_per_million;
        ends.sides.iter_mut().for_each(Kcp::release_memory);
        assert!(ends.sides.iter().all(|kcp| !kcp.has_reclaimable_memory()));
        assert!(loss > 0 && ends.sides[0].stats().redundancy.loss_per_million == loss);
    }
}

#[test]
fn symbol_of_an_empty_message_leaves_where_it_fits_the_mtu() {
    for mtu in [25, 26, 27, 28] {
        let mut ends = TwoEndpoints::new(1, 0);
        let least = KcpConfig { mode: Mode::Message, mtu, ..config() };
        let (conv, now) = (ends.sides[0].conv(), ends.instant());
        ends.sides =
            [1, 2].map(|seed| Kcp::with_config(conv, &least, now, Seed::new(7, seed)).unwrap());
        ends.sides[0].set_repair_rate(1_000_000);
        let log = log(&mut ends);
        // The first messages negotiate.
        for _ in 0..20 {
            let now = ends.instant();
            ends.sides[0].send_message(now, Bytes::new()).unwrap();
            ends.run(50 * MILLIS);
        }
        assert!(ends.sides[0].stats().redundancy.repair_per_mille > 0, "{mtu}");
        let log = log.take();
        let repairs = log.iter().filter(|header| header.command == Command::Repair);
        let lens: Vec<_> = repairs.map(|header| HEADER_LEN + header.len as usize).collect();
        assert!(lens.iter().all(|len| *len == 27), "{mtu}: {lens:?}");
        assert_eq!(lens.is_empty(), mtu < 27, "{mtu}: {lens:?}");
    }
}

/// The REPAIR segments that a side with this seed sends while it writes `count` short segments that nothing
/// acknowledges, each behind the number of segments sent before it.
fn repairs_over(count: u32, seed: u64) -> Vec<(u32, Header)> {
    let congestion_control = CongestionControl::Off;
    let config = KcpConfig { send_window: 1_024, congestion_control, ..config() };
    let mut peer = ScriptedPeer::new(&config);
    peer.wnd = 1_024;
    let seed = Seed::new(0, seed);
    peer.kcp = Kcp::with_config(peer.kcp.conv(), &config, peer.instant(), seed).unwrap();
    peer.kcp.set_repair_rate(1_000_000);
    peer.write("first");
    peer.out();
    peer.now += 20 * MILLIS;
    peer.una = Sn(1);
    peer.give(Header { frg: CONTROL_CAPABLE, ..header(Command::Ack, 0, 0) }, b"");
    let hello = peer.out().into_iter().find(|(header, _)| is_control(header, ControlType::Hello));
    let hello = hello.unwrap().0;
    peer.give(Header { frg: ControlType::HelloAck as u8, ..hello }, b"");
    let (mut repairs, mut sent) = (Vec::new(), 1);
    for _ in 0..count {
        peer.write(vec![7; 100]);
        let now = peer.instant();
        loop {
            let mut datagram = Vec::new();
            if peer.kcp.poll_transmit(now, &mut datagram).is_none() {
                break;
            }
            let headers: Vec<_> = Segments::new(&datagram).map(|(header, _)| header).collect();
            if headers.iter().any(|header| header.command == Command::Repair) {
                assert_eq!(headers.len(), 1, "beside other segments");
                repairs.push((sent, headers[0]));
            }
            let pushes = headers.iter().filter(|header| header.command == Command::Push);
            sent += pushes.count() as u32;
        }
        peer.now += MILLIS / 20;
    }
    repairs
}

/// Rules: W-11, W-122, W-124, W-130.
#[test]
fn repair_symbols_cover_the_latest_64_segments_under_a_new_key_each() {
    let [one, other] = [3, 4].map(|seed| repairs_over(90, seed));
    assert!(one.len() > 20, "{} symbols", one.len());
    for (sent, header) in &one {
        // Segment 0 is acknowledged.
        let covered = (sent - 1).min(64);
        assert_eq!((header.sn.0, u32::from(header.frg)), (sent - covered, covered));
    }
    assert!(one.iter().any(|(_, header)| header.frg == 64));
    let mut keys: Vec<_> = one.iter().chain(&other).map(|(_, header)| header.ts.0).collect();
    keys.sort_unstable();
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "{keys:?}");
}

/// Rule: W-132.
#[test]
fn flow_with_more_than_256_segments_outstanding_gets_no_repair_symbols() {
    let repairs = repairs_over(300, 3);
    let last = repairs.last().unwrap().0;
    assert!((200..=257).contains(&last), "the last one behind {last} segments");
}
