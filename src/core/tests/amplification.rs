//! Anti-amplification limit (RFC 9000 8.1) and path validation (RFC 9000 8.2) without the driver.

use std::net::SocketAddr;
use std::time::Duration;

use super::scripted_peer::{ScriptedPeer, Sent, commands, config, datagram, header};
use super::sim::CONV;
use super::sim_plan::{MILLIS, SECOND};
use crate::core::connection::{Kcp, PacketType, Seed};
use crate::core::path::amplification::SendBudget;
use crate::core::path::set::PathId;
use crate::core::path::validation::PathValidation;
use crate::core::segment::{CONTROL_CAPABLE, Command, ControlType, Header, Segments};
use crate::core::seq::{Sn, Ts};

/// The number of a ping of a side that has accepted the connection.
const ACCEPTED_PING: u32 = 3 << 30 | 1;

/// Rule: W-23.
#[test]
fn amplification_limit_without_the_driver_holds_until_a_ping_is_answered() {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.kcp.set_overhead(28, 8).unwrap();
    scripted.kcp.require_validation(scripted.instant(), 1_200);
    scripted.push(0, &[1; 400]);
    scripted.write(vec![1; 100_000]);
    // 3 x (24 + 400 + 28) received; each datagram sent counts 36 more.
    let sent = scripted.run(20 * SECOND);
    assert!(sent.iter().filter(|(_, (header, _))| header.command == Command::Push).count() > 2);
    let (datagrams, bytes) = scripted.sent;
    let limit = 3 * (24 + 400 + 28);
    assert!(bytes + 36 * datagrams <= limit, "{bytes} bytes in {datagrams}");
    let SendBudget::Bytes(left) = scripted.kcp.send_budget() else { panic!("it is limited") };
    assert_eq!(left as u64, (limit - bytes - 36 * datagrams).saturating_sub(36));
    // A datagram that the limit holds back sets no timer in the past.
    assert!(scripted.timeout().is_none_or(|at| at > scripted.now), "{:?}", scripted.timeout());

    let ping = sent.iter().rev().find(|(_, (header, payload))| {
        header.command == Command::Push && payload.is_empty() && header.len == 0
    });
    let (_, (ping, _)) = ping.unwrap();
    scripted.now += 10 * MILLIS;
    scripted.ack(ping.sn.0, ping.ts.0);
    assert!(scripted.kcp.is_established());
    assert_eq!(scripted.kcp.send_budget(), SendBudget::Unlimited);
    assert!(scripted.out().len() > 10);
}

/// After a burst that has lost all our pings, keepalive pings may be all that a peer with nothing to write sends.
///
/// Rule: P-29.
#[test]
fn ping_of_the_opener_lets_a_peer_be_pinged_whose_limit_is_used_up() {
    for (sn, is_pinged) in [(ACCEPTED_PING - 1, true), (ACCEPTED_PING - 2, false)] {
        let mut scripted = ScriptedPeer::new(&config());
        scripted.kcp.require_validation(scripted.instant(), 1_200);
        scripted.push(0, &[1; 30]);
        scripted.write(vec![1; 1_000]);
        scripted.run(300 * SECOND);
        let SendBudget::Bytes(left) = scripted.kcp.send_budget() else { panic!("it is limited") };
        assert!(left < 24, "{left} bytes are left");
        // The limit is the allowance until three times what has arrived is more.
        let ping = Header { frg: CONTROL_CAPABLE, ..header(Command::Push, sn, 9) };
        (0..20).for_each(|_| scripted.give(ping, b""));
        let sent = scripted.run(310 * SECOND);
        let is_ping = |(_, (header, _)): &(u64, Sent)| {
            header.command == Command::Push && header.sn == Sn(ACCEPTED_PING)
        };
        assert_eq!(sent.iter().any(is_ping), is_pinged, "{sent:?}");
    }
}

/// A connection with a second path. A HELLO-ACK has allowed it, and the peer has acknowledged nothing.
fn with_a_path_added_before_the_first_acknowledgement() -> ScriptedPeer {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.kcp.ask_for_paths();
    scripted.kcp.open(scripted.instant());
    assert_eq!(commands(&scripted.out()), [Command::WindowProbe]);
    let capable = Header { frg: CONTROL_CAPABLE, ..header(Command::WindowUpdate, 0, 0) };
    scripted.give(capable, b"");
    let sent = scripted.run(SECOND);
    let is_hello = |header: &Header| {
        header.command == Command::Control && header.frg == ControlType::Hello as u8
    };
    let (_, (hello, _)) = sent.iter().find(|(_, (header, _))| is_hello(header)).unwrap();
    scripted.give(Header { frg: ControlType::HelloAck as u8, sn: Sn(7), ..*hello }, b"");
    scripted.kcp.add_path(scripted.instant()).unwrap();
    assert!(!scripted.kcp.is_established());
    scripted
}

/// A peer that sends pings alone until it is validated waits for their answer.
///
/// Rule: W-22.
#[test]
fn ping_of_a_peer_is_answered_though_a_path_was_added_before_its_first_acknowledgement() {
    let mut scripted = with_a_path_added_before_the_first_acknowledgement();
    scripted.push(ACCEPTED_PING, b"");
    let answer = scripted.out();
    let is_pong =
        |(h, _): &Sent| h.command == Command::Ack && h.sn == Sn(ACCEPTED_PING) && h.ts == Ts(1_000);
    assert!(answer.iter().any(is_pong), "{answer:?}");
}

#[test]
fn path_is_pinged_from_the_validation_of_the_peer_to_the_end_of_the_connection() {
    for aborts in [false, true] {
        let mut scripted = with_a_path_added_before_the_first_acknowledgement();
        assert_eq!(scripted.kcp.next_transmit_path(scripted.instant()), None);
        scripted.write(vec![1; 100]);
        let sent = scripted.out();
        let (push, _) = sent.iter().find(|(header, _)| header.command == Command::Push).unwrap();
        scripted.una = push.sn.advance(1);
        scripted.ack(push.sn.0, push.ts.0);
        assert!(scripted.kcp.is_established());
        let now = scripted.instant();
        let ping = Some(PathId(1));
        assert_eq!(scripted.kcp.next_transmit_path(now), ping);
        if aborts {
            assert!(scripted.kcp.abort(now));
        }
        assert_eq!(scripted.kcp.next_transmit_path(now), ping.filter(|_| !aborts));
        let mut bytes = Vec::new();
        let is_sent = scripted.kcp.poll_transmit_on_path(now, &mut bytes).is_some();
        assert_eq!((is_sent, bytes.is_empty()), (!aborts, aborts));
    }
}

#[test]
fn amplification_limit_of_zero_sends_nothing_and_sets_no_past_timer() {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.kcp.require_validation(scripted.instant(), 0);
    scripted.write(vec![1; 10_000]);
    assert!(scripted.run(10 * SECOND).is_empty());
}

#[test]
fn initial_segment_without_data_is_answered_beside_the_first_ping_alone() {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.kcp.require_validation(scripted.instant(), 0);
    let initial =
        Header { frg: CONTROL_CAPABLE, ts: Ts(9), ..header(Command::WindowProbe, u32::MAX, 0) };
    scripted.input(&datagram(&[(initial, b""), (initial, b"")])).unwrap();
    let sent = commands(&scripted.out());
    assert_eq!(sent, [Command::Push, Command::WindowUpdate], "the limit has space for more");
    for (_, (header, _)) in scripted.run(5 * SECOND) {
        assert_eq!((header.command, header.len), (Command::Push, 0));
    }
}

/// The seed of the sequence whose first cookie is 0.
const SEED_OF_COOKIE_0: u64 = 0_u64.wrapping_sub(0x9E37_79B9_7F4A_7C15);

/// A window probe with timestamp 0 would be none that opens a connection, and draw no answer.
#[test]
fn initial_segment_without_data_is_answered_whatever_its_cookie() {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.kcp.require_validation(scripted.instant(), 0);
    let (now, seed) = (scripted.instant(), Seed::new(0, SEED_OF_COOKIE_0));
    let mut client = Kcp::with_config(CONV, &config(), now, seed).unwrap();
    client.open(now);
    let mut initial = Vec::new();
    assert!(client.poll_transmit(now, &mut initial).is_some());
    let (sent, _) = Segments::new(&initial).next().unwrap();
    assert_eq!(sent.ts, Ts(1), "the next cookie, 0, with its lowest bit set");
    scripted.input(&initial).unwrap();
    assert_eq!(commands(&scripted.out()), [Command::Push, Command::WindowUpdate]);
}

/// A listener that opened a session for the ping could acknowledge it, and what follows.
#[test]
fn ack_without_the_capability_answers_neither_ping_nor_data_of_an_accepted_connection() {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.kcp.require_validation(scripted.instant(), 1_200);
    scripted.kcp.expect_capable_acks();
    let initial =
        Header { frg: CONTROL_CAPABLE, ts: Ts(9), ..header(Command::WindowProbe, u32::MAX, 0) };
    scripted.input(&datagram(&[(initial, b"")])).unwrap();
    scripted.write(vec![1; 100]);
    let sent = scripted.out();
    let pushes = sent.into_iter().map(|(header, _)| header);
    let pushes: Vec<_> = pushes.filter(|header| header.command == Command::Push).collect();
    assert_eq!(pushes.iter().map(|header| header.len).collect::<Vec<_>>(), [0, 100]);
    scripted.now += 10 * MILLIS;
    for header in &pushes {
        scripted.ack(header.sn.0, header.ts.0);
    }
    let stats = scripted.kcp.stats();
    assert_eq!((stats.anomalies.invalid_acks, stats.path.in_flight_segments), (2, 1));
    assert_eq!(stats.path.srtt, Duration::ZERO, "no sample");
    assert!(!scripted.kcp.is_established());
    let pong = header(Command::Ack, pushes[0].sn.0, pushes[0].ts.0);
    scripted.give(Header { frg: CONTROL_CAPABLE, ..pong }, b"");
    assert!(scripted.kcp.is_established(), "the ping still waits for its answer");
    assert_eq!(scripted.kcp.stats().anomalies.invalid_acks, 2);
}

/// The lifetime of a RST is a deadline even if the limit holds the RST back.
#[test]
fn amplification_limit_during_a_reset_keeps_its_deadline() {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.kcp.require_validation(scripted.instant(), 0);
    let probe =
        Header { frg: CONTROL_CAPABLE, ts: Ts(9), ..header(Command::WindowProbe, u32::MAX, 0) };
    scripted.input(&datagram(&[(probe, b"")])).unwrap();
    while !scripted.out().is_empty() {}
    assert!(scripted.kcp.abort(scripted.instant()), "the peer is reset");
    while !scripted.out().is_empty() {}
    let due = scripted.timeout().expect("the reset has a deadline");
    assert!(due > scripted.now && due <= scripted.now + 10 * SECOND, "{due}");
    scripted.run(11 * SECOND);
    assert!(!scripted.kcp.is_resetting(scripted.instant()));
    assert_eq!(scripted.timeout(), None);
}

#[test]
fn path_challenge_without_the_driver_validates_only_the_path_it_was_sent_to() {
    let mut scripted = ScriptedPeer::new(&config());
    scripted.push(0, b"hello");
    scripted.out();
    let addr = |port| SocketAddr::from(([10, 0, 0, 1], port));
    let moved = datagram(&[(header(Command::Push, 1, 0), b"moved")]);
    let PathValidation::Challenge(challenge) =
        scripted.kcp.validate_path(scripted.instant(), addr(1), &moved, 77)
    else {
        panic!("the first datagram draws a challenge")
    };
    let mut bytes = Vec::new();
    scripted.kcp.write_path_challenge(challenge, &mut bytes);
    let ping = Header::parse(&bytes).unwrap();
    assert_eq!((ping.command, ping.len, ping.ts.0), (Command::Push, 0, 77));
    let response = datagram(&[(header(Command::Ack, ping.sn.0, ping.ts.0), b"")]);
    let now = scripted.instant();
    // From another address the response is only a datagram on a further candidate path.
    let other = scripted.kcp.validate_path(now, addr(2), &response, 78);
    assert!(matches!(other, PathValidation::Challenge(_)));
    // At most one challenge a second to each address.
    assert_eq!(scripted.kcp.validate_path(now, addr(1), &moved, 79), PathValidation::Unvalidated);
    for port in 3..5 {
        scripted.kcp.validate_path(now, addr(port), &moved, 80);
    }
    // Four candidate paths at a time; a possible replay replaces none.
    let old = datagram(&[(header(Command::Push, 0, 0), b"hello")]);
    assert_eq!(scripted.kcp.validate_path(now, addr(5), &old, 81), PathValidation::Unvalidated);
    assert_eq!(scripted.kcp.validate_path(now, addr(1), &response, 82), PathValidation::Validated);
    scripted.kcp.on_path_validated(now);
    scripted.kcp.input(now, &moved, PacketType::Regular).unwrap();
    assert_eq!(scripted.read_all(), b"hellomoved");

    // A challenge expires after ten seconds.
    let again = scripted.kcp.validate_path(now, addr(1), &moved, 83);
    assert!(matches!(again, PathValidation::Challenge(_)));
    scripted.now += 10 * SECOND;
    let late = scripted.kcp.validate_path(scripted.instant(), addr(1), &response, 84);
    assert!(matches!(late, PathValidation::Challenge(fresh) if fresh != challenge));
}

#[test]
fn memory_limit_of_an_unvalidated_peer_admits_its_first_segment() {
    for (limit, len, expected) in
        [(0, 1_400, 1), (0, 9_000, 0), (1, 9_000, 1), (100, 1_400, 1), (10_000, 1_400, 3)]
    {
        let mut scripted = ScriptedPeer::new(&config());
        scripted.kcp.require_validation(scripted.instant(), 1_200);
        scripted.kcp.limit_recv_memory(limit, true);
        (0..3).for_each(|sn| scripted.push(sn, &vec![1; len]));
        let received = scripted.kcp.counters().received.segments;
        assert_eq!(received, expected, "{len} bytes, limit {limit}");
    }
}

/// A path with an RTT of 100 ms, and `count` segments in flight.
fn in_flight(count: u32) -> ScriptedPeer {
    let scripted = with_data(count);
    assert_eq!(scripted.kcp.stats().path.in_flight_segments, count);
    scripted
}

/// A sender of `count` segments, of which a window is in flight.
fn with_data(count: u32) -> ScriptedPeer {
    let mut scripted = ScriptedPeer::new(&config());
    for sn in 0..20 {
        scripted.write(vec![1; 100]);
        let (sent, _) = scripted.out().remove(0);
        scripted.now += 100 * MILLIS;
        scripted.una = Sn(sn + 1);
        scripted.ack(sn, sent.ts.0);
    }
    scripted.write(vec![1; 1_376 * count as usize]);
    scripted.run(scripted.now + 40 * MILLIS);
    scripted
}

/// Rule: P-35.
#[test]
fn change_of_path_keeps_the_smoothed_rtt_and_forgets_the_minimum_and_the_model() {
    let mut scripted = in_flight(1);
    let (before, now) = (scripted.kcp.stats().path, scripted.instant());
    scripted.kcp.on_path_validated(now);
    scripted.kcp.on_path_changed(now);
    let after = scripted.kcp.stats().path;
    assert_eq!((after.srtt, after.rto), (before.srtt, before.rto));
    assert!(before.delivery_bytes_per_second > 0 && after.delivery_bytes_per_second == 0);
    // The first sample of the new path is the minimum, though it is longer.
    let (sent, _) = scripted.out().remove(0);
    scripted.now += 300 * MILLIS;
    scripted.ack(sent.sn.0, sent.ts.0);
    let path = scripted.kcp.stats().path;
    assert_eq!([before, path].map(|path| path.min_rtt.as_millis()), [100, 300]);
}

/// Rule: P-36.
#[test]
fn ten_segments_in_flight_leave_again_once_a_path_is_validated() {
    let again = |act: &dyn Fn(&mut ScriptedPeer)| -> Vec<u32> {
        let mut scripted = in_flight(30);
        act(&mut scripted);
        // An RTO takes longer.
        let sent = scripted.run(scripted.now + 20 * MILLIS).into_iter();
        let data = sent.filter(|(_, (header, payload))| {
            header.command == Command::Push && !payload.is_empty()
        });
        data.map(|(_, (header, _))| header.sn.0).collect()
    };
    let oldest: Vec<_> = (20..30).collect();
    assert_eq!(again(&|scripted| scripted.kcp.on_path_validated(scripted.instant())), oldest);
    // This side has moved: one segment at once, ten behind the answer to the PATH_CHALLENGE.
    assert_eq!(again(&|scripted| scripted.kcp.network_changed(scripted.instant())), oldest[..1]);
    let challenged = |scripted: &mut ScriptedPeer| {
        scripted.kcp.network_changed(scripted.instant());
        scripted.out();
        scripted.give(header(Command::Push, 0xC000_0000, 5), b"");
    };
    assert_eq!(again(&challenged), (21..31).collect::<Vec<_>>());
}

/// The next datagram, whenever it leaves.
fn next(scripted: &mut ScriptedPeer) -> Header {
    loop {
        let mut bytes = Vec::new();
        if scripted.kcp.poll_transmit(scripted.instant(), &mut bytes).is_some() {
            return Header::parse(&bytes).unwrap();
        }
        scripted.now = scripted.timeout().unwrap();
        scripted.expire();
    }
}

/// The peer reads nothing until the oldest segment arrives.
#[test]
fn oldest_segment_that_is_lost_on_the_new_path_leaves_before_the_others_of_the_old_one() {
    let mut scripted = in_flight(30);
    scripted.kcp.on_path_validated(scripted.instant());
    let sent: Vec<Header> = (0..5).map(|_| next(&mut scripted)).collect();
    assert!(sent.iter().map(|header| header.sn.0).eq(20..25));
    scripted.now += 100 * MILLIS;
    for header in &sent[1..] {
        scripted.ack(header.sn.0, header.ts.0);
    }
    assert_eq!([next(&mut scripted).sn, next(&mut scripted).sn], [Sn(20), Sn(25)]);
}

/// Otherwise the oldest segment alone would leave in time, and the peer could read one segment a round trip.
#[test]
fn segments_that_are_lost_again_leave_in_order_before_those_that_have_waited_longer() {
    let mut scripted = with_data(300);
    scripted.kcp.on_path_validated(scripted.instant());
    // Ten leave again, and then the first four of seven that are lost.
    let mut count = 10;
    let mut sent = Vec::new();
    for acked in [7..10, 3..4] {
        sent = (0..count).map(|_| next(&mut scripted)).collect::<Vec<Header>>();
        assert!(sent.iter().map(|header| header.sn.0).eq(20..20 + count));
        scripted.now += 100 * MILLIS;
        for header in &sent[acked] {
            scripted.ack(header.sn.0, header.ts.0);
        }
        scripted.now += 50 * MILLIS;
        count = 4;
    }
    assert_eq!(sent.len(), 4);
    let again: Vec<_> = (0..6).map(|_| next(&mut scripted).sn.0).collect();
    assert_eq!(again, [20, 21, 22, 24, 25, 26]);
}
