//! Forged, corrupted, truncated and duplicated datagrams, and the state they must not change.

use std::collections::VecDeque;
use std::ops::Range;

use super::report::{each_seed, explained};
use super::scripted_peer::{ScriptedPeer, Sent, commands, config, datagram, header};
use super::sim::Sim;
use super::sim_plan::{DAY, MILLIS, Plan, SECOND, Set};
use crate::config::{KcpConfig, Mode, Timing};
use crate::core::connection::PacketType;
use crate::core::segment::{CONTROL_CAPABLE, Command, HEADER_LEN, Header};
use crate::core::seq::Sn;
use crate::testkit::link::CERTAIN;
use crate::testkit::rng::Rng;

const RTT: u64 = 40 * MILLIS;

/// `count` full segments in flight, all with timestamp 1,000.
fn in_flight(count: u32) -> ScriptedPeer {
    let mut config = config();
    config.timing = Timing::FAST3;
    let mut script = ScriptedPeer::new(&config);
    script.now = 1_000 * MILLIS;
    script.write(vec![7; 1_376 * count as usize]);
    assert_eq!(script.out().len(), count as usize);
    script
}

/// Sends one segment for each of `numbers` and acknowledges it after [`RTT`].
fn sample_rtt(script: &mut ScriptedPeer, numbers: Range<u32>) {
    for sn in numbers {
        script.write(vec![1; 10]);
        script.out();
        let ts = script.now / MILLIS;
        script.now += RTT;
        script.una = Sn(sn + 1);
        script.ack(sn, ts as u32);
    }
}

/// All state that ACKs may change.
fn state(script: &ScriptedPeer) -> String {
    format!("{:?}", script.kcp.send)
}

#[test]
fn ack_with_a_time_stamp_never_sent_is_invalid() {
    let mut script = in_flight(8);
    script.give(header(Command::WindowUpdate, 1 << 30, 0), b"");
    script.now += 20 * MILLIS;
    let (before, mut expected) = (state(&script), script.kcp.stats());
    let mut forged = 0;
    let stamps = [0, 999, 1_001, 1_019, 1_020, 1_021, 1_000 + (1 << 31), u32::MAX, 1 << 31];
    for sn in [0, 3, 7] {
        for ts in stamps {
            script.ack(sn, ts);
            forged += 1;
        }
    }
    for sn in [8, 9, 1_000, 1 << 31, u32::MAX] {
        script.ack(sn, 1_000);
        forged += 1;
    }
    assert_eq!(state(&script), before);
    let stats = script.kcp.stats();
    expected.anomalies.invalid_acks = forged;
    expected.received.datagrams = stats.received.datagrams;
    expected.received.datagram_bytes = stats.received.datagram_bytes;
    assert_eq!(stats, expected);
    assert!(!script.kcp.is_established());
    script.ack(3, 1_000);
    assert!(script.kcp.is_established());
    assert_ne!(state(&script), before);
}

/// Also when the first transmission is more than 2^31 ms ago.
#[test]
fn ack_of_the_last_transmission_after_26_days_is_valid() {
    let mut script = in_flight(1);
    script.now += 26 * DAY;
    let retransmitted = script.out();
    assert_eq!(retransmitted.len(), 1);
    script.now += RTT;
    script.ack(0, retransmitted[0].0.ts.0);
    assert!(script.kcp.is_established());
    assert_eq!(script.kcp.stats().anomalies.invalid_acks, 0);
}

#[test]
fn rto_with_forged_acks_stays_within_bounds() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut script = in_flight(30);
        for _ in 0..300 {
            script.now += rng.spread(1, SECOND);
            script.out();
            script.ack(rng.below(32) as u32, rng.next() as u32 >> rng.below(32));
            let rto = script.kcp.stats().path.rto.as_micros() as u64;
            assert!((30 * MILLIS..=10 * SECOND).contains(&rto));
        }
        // With valid ACKs from here on the estimate recovers.
        script.una = Sn(30);
        script.ack(29, 0);
        sample_rtt(&mut script, 30..158);
        let rto = script.kcp.stats().path.rto.as_micros() as u64;
        assert!(rto <= 2 * RTT + 10 * MILLIS, "seed {seed}: {rto}");
    }
}

/// One sample of an hour, as after a host was suspended.
#[test]
fn rto_after_one_sample_of_an_hour_recovers_within_70_samples() {
    let mut script = in_flight(1);
    script.now += 3_600 * SECOND;
    script.una = Sn(1);
    script.ack(0, 1_000);
    sample_rtt(&mut script, 1..70);
    let rto = script.kcp.stats().path.rto;
    assert!(rto.as_millis() < 250, "{rto:?}");
}

#[test]
fn una_beyond_nxt_acknowledges_nothing() {
    for beyond in [1, 2, 32, 128, 65_535, (1 << 31) - 9, (1 << 31) - 8, 1 << 31] {
        let mut script = in_flight(8);
        let before = state(&script);
        script.una = Sn(8).advance(beyond);
        for command in [Command::WindowUpdate, Command::WindowProbe, Command::Ack, Command::Push] {
            script.give(header(command, 1 << 30, 5), b"");
        }
        assert_eq!(state(&script), before, "{beyond} beyond");
        let stats = script.kcp.stats();
        assert_eq!(stats.path.in_flight_segments, 8);
        assert_eq!(stats.anomalies.invalid_una + stats.anomalies.stale_una_datagrams, 4);
        // The payload is delivered nevertheless.
        script.push(0, b"hello");
        assert_eq!(script.read_all(), b"hello");
    }
}

#[test]
fn duplicate_acks_retransmit_each_segment_once() {
    let mut script = in_flight(32);
    script.now += RTT;
    let mut datagrams = 0;
    for _ in 0..1_000 {
        script.ack(31, 1_000);
        script.ack(30, 1_000);
        datagrams += script.out().len();
        script.now += 20;
    }
    let stats = script.kcp.stats();
    let once = stats.retransmits() - stats.retransmit.redundant;
    assert_eq!(once, 30, "30 segments, within half of a round trip");
    // The ACKs show a high loss rate, which draws copies, within the budget.
    assert!(datagrams <= 68, "{datagrams}");
}

/// A peer with a validated address that answers pings but acknowledges no data.
#[derive(Clone, Copy, Debug)]
struct Silent {
    /// It supports CONTROL, so it is pinged early.
    capable: bool,
    /// Delay of its answers, microseconds.
    rtt: u64,
}

/// Bytes that a connection sends to `peer` within 20 s.
fn sent_without_acks(config: &KcpConfig, peer: Silent, answers: impl Fn(&Header) -> bool) -> u64 {
    let mut script = ScriptedPeer::new(config);
    script.wnd = u16::MAX;
    script.push(0, b"hello");
    if peer.capable {
        script.give(Header { frg: CONTROL_CAPABLE, ..header(Command::WindowUpdate, 0, 0) }, b"");
    }
    script.write(vec![7; 100_000_000]);
    let mut pongs: VecDeque<(u64, Header)> = VecDeque::new();
    while script.now < 20 * SECOND {
        let pings = script.out().into_iter().map(|(header, _)| header).filter(&answers);
        let due = script.now + peer.rtt;
        pongs.extend(pings.map(|ping| (due, ping)));
        let next = script.timeout().unwrap_or(u64::MAX).min(script.now + 5 * MILLIS);
        let next = next.min(pongs.front().map_or(u64::MAX, |pong| pong.0));
        script.now = next.max(script.now + MILLIS);
        while pongs.front().is_some_and(|(due, _)| *due <= script.now) {
            let Some((_, ping)) = pongs.pop_front() else { break };
            script.ack(ping.sn.0, ping.ts.0);
        }
    }
    assert_eq!(script.kcp.close_reason(), None);
    let stats = script.kcp.stats();
    let (timeouts, copies) = (stats.retransmit.timeout, stats.retransmit.redundant);
    let (probes, pings) = (stats.probes.mtu, stats.probes.pings);
    println!("{timeouts} after a timeout, {copies} copies, {probes} MTU probes, {pings} pings");
    assert_eq!(peer.capable, pings > probes + 3, "only it is pinged early: {pings}");
    assert!(stats.retransmits() <= 128, "64 at the start, and 64 by time");
    script.sent.1
}

#[test]
fn peers_that_answer_pings_and_acknowledge_nothing_draw_their_windows() {
    const PEERS: u64 = 50;
    for (window, capable) in [(1_024_u16, false), (8_192, false), (1_024, true), (8_192, true)] {
        for rtt in [MILLIS, 5 * MILLIS] {
            let mut config = config();
            (config.send_window, config.auto_windows) = (window, window == 1_024);
            let ping = |header: &Header| header.command == Command::Push && header.len == 0;
            let bytes = PEERS * sent_without_acks(&config, Silent { capable, rtt }, ping);
            let windows = PEERS * u64::from(window) * u64::from(config.mtu);
            let beside = bytes.saturating_sub(windows);
            println!("windows of {window}: {bytes} bytes, {beside} beside the windows");
            // The budget of retransmissions at the start, 64 segments, and 64 by time.
            assert!(beside <= PEERS * 128 * u64::from(config.mtu), "{beside}");
        }
    }
}

/// Floods of one kind of segment, with a turn per datagram or per 1,000.
#[test]
fn flood_is_answered_with_no_more_datagrams_or_bytes() {
    type Make = fn(u32) -> Vec<u8>;
    let floods: [(&str, Make); 6] = [
        ("window probes", |_| datagram(&[(header(Command::WindowProbe, 9, 0), b"")])),
        ("batched window probes", |_| {
            datagram(&[(header(Command::WindowProbe, 9, 0), &[][..]); 50])
        }),
        ("duplicates", |i| datagram(&[(header(Command::Push, (1 << 31) + 2 + i, i), b"")])),
        ("out of order", |i| datagram(&[(header(Command::Push, 2 + i % 100, i), b"x")])),
        ("out of window", |i| datagram(&[(header(Command::Push, 5_000 + i, i), b"x")])),
        ("acks", |i| datagram(&[(header(Command::Ack, i, i), b"")])),
    ];
    for (name, make) in floods {
        for turn in [1, 1_000] {
            let mut script = ScriptedPeer::new(&config());
            script.push(0, b"hello");
            script.read_all();
            script.out();
            (script.sent, script.received) = ((0, 0), (0, 0));
            for i in 0..100_000 {
                script.input(&make(i)).unwrap();
                if i % turn == turn - 1 {
                    script.now += 10;
                    script.out();
                }
            }
            assert!(script.kcp.acks.len() <= 1_024 + 2);
            let ((count, bytes), (count_in, bytes_in)) = (script.sent, script.received);
            // One ping per second is allowed on top.
            assert!(count <= count_in + 2 && bytes <= bytes_in + 48, "{name}: {count}, {bytes}");
        }
    }
}

#[test]
fn empty_push_in_stream_mode_delivers_nothing() {
    let mut script = ScriptedPeer::new(&config());
    let window = 1_024;
    // Four times: a receive window full of them behind a gap, then the gap is filled.
    for round in 0..4 {
        let start = round * window;
        for i in 1..window {
            script.push(start + i, b"");
        }
        assert_eq!(script.kcp.readable(), None);
        script.push(start, b"");
        assert_eq!((script.kcp.readable(), script.kcp.recv()), (None, None));
        let acks = script.out();
        assert_eq!(acks.last().map(|(h, _)| (h.una, h.wnd)), Some((Sn(start + window), 1_024)));
    }
    let next = 4 * window;
    for (i, payload) in ["", "he", "", "", "llo", ""].iter().enumerate() {
        script.push(next + i as u32, payload.as_bytes());
    }
    assert_eq!(script.read_all(), b"hello");
}

#[test]
fn duplicate_push_with_other_payload_is_discarded() {
    for mode in [Mode::Stream, Mode::Message] {
        let mut config = config();
        config.mode = mode;
        let mut script = ScriptedPeer::new(&config);
        for (sn, payload) in [(1, "bb"), (1, "xx"), (2, "cc"), (0, "aa"), (0, "yy"), (2, "zzz")] {
            script.push(sn, payload.as_bytes());
        }
        assert_eq!(script.read_all(), b"aabbcc");
        assert_eq!(script.kcp.stats().anomalies.duplicate_segments, 3);
    }
}

/// Two endpoints with a path that corrupts datagrams, delivered without a checksum: nothing may
/// panic or exceed its bounds, and until the first of them all bytes are right.
#[test]
fn corrupted_datagrams_do_not_panic() {
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
    let (mut ended, mut compared, mut accepted, mut rejected) = (0, 0, 0, 0);
    each_seed("malicious_peer::corrupted_datagrams_do_not_panic", 0..200, |seed, verbose| {
        let plan = Plan::draw(&set, seed);
        let mut sim = Sim::new(&plan);
        sim.verbose = verbose;
        sim.deliver_damaged();
        explained(&plan, || sim.start());
        explained(&plan, || sim.run_until(120 * SECOND));
        ended += u64::from(sim.sides.iter().any(|side| side.ended().is_some()));
        compared += sim.sides.iter().map(|side| side.compared).sum::<u64>();
        (accepted, rejected) = (accepted + sim.damaged.0, rejected + sim.damaged.1);
        format!("{plan}\n{:?}", sim.sides.each_ref().map(|side| side.kcp.stats()))
    });
    println!(
        "damaged: {accepted} accepted, {rejected} rejected, {compared} bytes compared, \
         {ended} of 200 pairs ended"
    );
    assert!(accepted > 1_000 && rejected > 1_000, "{accepted} accepted, {rejected} rejected");
    assert!(compared > 100_000, "{compared} bytes compared");
}

/// Valid datagrams with up to three bytes changed, into a connection in use.
#[test]
fn mutated_datagrams_do_not_panic() {
    let mut rejected = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut config = config();
        config.mode = rng.pick(&[Mode::Stream, Mode::Message]);
        config.recv_window = rng.pick(&[1, 16, 256]);
        let mut script = ScriptedPeer::new(&config);
        for step in 0..200 {
            script.now += rng.below(50 * MILLIS);
            if rng.chance(300_000) && script.kcp.send_capacity() > 3_000 {
                script.write(vec![1; rng.range(1, 3_000) as usize]);
            }
            let command = rng.pick(&[
                Command::Push,
                Command::Ack,
                Command::WindowProbe,
                Command::WindowUpdate,
            ]);
            let one = (header(command, step / 2, (script.now / MILLIS) as u32), &[5; 40][..]);
            let mut bytes = datagram(&vec![one; rng.range(1, 4) as usize]);
            for _ in 0..rng.below(4) {
                let at = 4 + rng.below(bytes.len() as u64 - 4) as usize;
                bytes[at] = rng.next() as u8;
            }
            rejected += u64::from(script.input(&bytes).is_err());
            script.out();
            script.kcp.recv();
            assert!(script.kcp.acks.len() <= 258);
        }
    }
    assert!(rejected > 1_000, "{rejected}");
}

#[test]
fn duplicate_datagram_changes_only_counters_and_one_ack() {
    let mut once = in_flight(4);
    let mut twice = in_flight(4);
    let mixed = datagram(&[
        (header(Command::Ack, 1, 1_000), b""),
        (header(Command::Push, 0, 5), b"data"),
        (header(Command::Push, 2, 5), b"later"),
        (header(Command::WindowProbe, 9, 0), b""),
    ]);
    for (script, times) in [(&mut once, 1), (&mut twice, 2)] {
        script.now += RTT;
        for _ in 0..times {
            script.input(&mixed).unwrap();
        }
    }
    assert_eq!(once.read_all(), twice.read_all());
    assert_eq!(twice.kcp.stats().anomalies.duplicate_segments, 2);
    let (once, twice) = (commands(&once.out()), commands(&twice.out()));
    let acks = |all: &[Command]| all.iter().filter(|&&c| c == Command::Ack).count();
    assert_eq!((acks(&once), acks(&twice)), (1, 2));
    assert_eq!(once.len() + 1, twice.len());
}

#[test]
fn truncated_datagram_is_rejected_or_processed_whole() {
    let mut script = ScriptedPeer::new(&config());
    let good =
        datagram(&[(header(Command::Push, 0, 5), b"one"), (header(Command::Push, 1, 5), b"two")]);
    for len in 0..good.len() {
        let whole = (HEADER_LEN + 3..2 * HEADER_LEN + 3).contains(&len);
        let mut fresh = ScriptedPeer::new(&config());
        assert_eq!(fresh.input(&good[..len]).is_ok(), whole, "length {len}");
        assert_eq!(fresh.read_all(), if whole { &b"one"[..] } else { b"" });
    }
    script.input(&good).unwrap();
    assert_eq!(script.read_all(), b"onetwo");
}

/// A datagram that FEC recovered, one with an `una` that was never sent, and a ping may be of an earlier connection.
#[test]
fn initial_segment_is_sent_until_a_datagram_of_this_connection_arrives() {
    let update = header(Command::WindowUpdate, 0, 0);
    let beyond = Header { una: Sn(5), ..update };
    let (regular, fec) = (PacketType::Regular, PacketType::Fec);
    for (origin, header, is_answer) in [
        (fec, update, false),
        (regular, beyond, false),
        (fec, beyond, false),
        (regular, header(Command::Push, 3 << 30, 0), false),
        (regular, update, true),
    ] {
        let mut script = ScriptedPeer::new(&config());
        script.kcp.open(script.instant());
        assert_eq!(commands(&script.out()), [Command::WindowProbe]);
        script.kcp.input(script.instant(), &datagram(&[(header, b"")]), origin).unwrap();
        let sent = script.run(SECOND);
        let is_initial = |(_, (header, _)): &(u64, Sent)| header.command == Command::WindowProbe;
        assert_eq!(!sent.iter().any(is_initial), is_answer, "{origin:?} {header:?}");
    }
}
