//! FIN and RST between two cores, and with a scripted peer.

use std::time::Instant;

use super::scripted_peer::{ScriptedPeer, Sent, config, datagram, header};
use super::sim::CONV;
use super::sim_plan::{DAY, MILLIS, SECOND};
use super::two_endpoints::TwoEndpoints;
use crate::config::KcpConfig;
use crate::core::connection::{Kcp, PacketType};
use crate::core::open::OpenedBy;
use crate::core::segment::{CONTROL_CAPABLE, Command, ControlType, HEADER_LEN, Header, Segments};
use crate::core::seq::{Sn, Ts};
use crate::error::ConnectionError;
use crate::testkit::rng::Rng;

fn is_control(header: &Header, kind: ControlType) -> bool {
    header.command == Command::Control && header.frg == kind as u8
}

/// A core whose peer supports CONTROL and has acknowledged one segment, sent at timestamp 0.
fn with_capable_peer(config: &KcpConfig) -> ScriptedPeer {
    let mut lone = ScriptedPeer::new(config);
    lone.write("hello");
    lone.out();
    lone.now += 10 * MILLIS;
    lone.una = Sn(1);
    lone.give(Header { frg: CONTROL_CAPABLE, ..header(Command::Ack, 0, 0) }, b"");
    lone
}

#[test]
fn statistics_say_that_the_peer_supports_control_from_its_first_segment() {
    assert!(with_capable_peer(&config()).kcp.stats().peer_supports_control);
}

/// Rule: W-65.
#[test]
fn fin_ends_one_direction_after_its_last_byte() {
    let mut duo = TwoEndpoints::new(1, 0);
    duo.write(0, b"request");
    duo.close(0);
    duo.run(SECOND);
    assert_eq!(duo.read(1), b"request");
    assert!(duo.sides[1].peer_has_closed() && !duo.sides[0].peer_has_closed());
    assert!(duo.sides[0].is_closed() && !duo.sides[1].is_closed());
    for _ in 0..10 {
        duo.write(1, &[7; 10_000]);
        duo.run(SECOND);
        assert_eq!(duo.read(0).len(), 10_000);
    }
    assert!(!duo.sides[0].peer_has_closed());
    duo.close(1);
    duo.run(SECOND);
    assert!(duo.sides[0].peer_has_closed() && duo.sides[1].is_closed());
    assert_eq!(duo.ends(), [None, None]);
}

#[test]
fn fin_is_reported_after_unread_bytes() {
    let mut duo = TwoEndpoints::new(1, 0);
    duo.write(0, b"unread");
    duo.close(0);
    duo.run(SECOND);
    assert!(!duo.sides[1].peer_has_closed());
    assert_eq!(duo.read(1), b"unread");
    assert!(duo.sides[1].peer_has_closed());
}

/// Rule: P-49.
#[test]
fn fin_ends_a_stream_without_data() {
    let mut duo = TwoEndpoints::new(1, 0);
    duo.write(0, b"greet me");
    duo.run(SECOND);
    duo.close(1);
    duo.run(SECOND);
    assert!(duo.sides[0].peer_has_closed());
}

#[test]
fn fin_completes_though_fin_or_fin_ack_is_lost_100_times() {
    for lost in [ControlType::Fin, ControlType::FinAck] {
        let mut duo = TwoEndpoints::new(1, 0);
        let mut left = 100;
        duo.filter = Box::new(move |header| {
            let loses = is_control(header, lost) && left > 0;
            left -= i32::from(loses);
            !loses
        });
        duo.write(0, b"bye");
        duo.close(0);
        duo.run(110 * SECOND);
        assert_eq!(duo.read(1), b"bye");
        assert!(duo.sides[1].peer_has_closed() && duo.sides[0].is_closed(), "{lost:?}");
        assert_eq!(duo.ends(), [None, None]);
        let before = duo.sent;
        duo.run(10 * SECOND);
        assert_eq!(duo.sent, before, "no more retransmissions");
    }
}

#[test]
fn reset_completes_though_rst_or_rst_ack_is_lost_5_times() {
    for lost in [ControlType::Reset, ControlType::ResetAck] {
        let mut duo = TwoEndpoints::new(1, 0);
        duo.write(0, b"one");
        duo.write(1, b"two");
        duo.run(SECOND);
        let mut left = 5;
        duo.filter = Box::new(move |header| {
            let loses = is_control(header, lost) && left > 0;
            left -= i32::from(loses);
            !loses
        });
        assert!(duo.abort(0));
        duo.run(9 * SECOND);
        assert_eq!(duo.ends(), [Some(ConnectionError::Aborted), Some(ConnectionError::Reset)]);
    }
}

/// A datagram that FEC recovered is one of the peer's too.
#[test]
fn reset_is_sent_to_a_peer_of_which_fec_alone_recovered_a_datagram() {
    for recovers in [false, true] {
        let mut lone = ScriptedPeer::new(&config());
        lone.write("hello");
        lone.out();
        let now = lone.instant();
        if recovers {
            let datagram = datagram(&[(header(Command::Push, 0, 0), b"data")]);
            lone.kcp.input(now, &datagram, PacketType::Fec).unwrap();
        }
        assert_eq!(lone.kcp.abort(now), recovers);
    }
}

#[test]
fn fin_arrives_after_all_data_at_any_loss_duplication_and_reordering() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut duo = TwoEndpoints::new(seed, rng.pick(&[0, 50_000, 200_000, 400_000]));
        let lens = [rng.spread(0, 50_000) as usize, rng.spread(0, 50_000) as usize];
        duo.write(0, b"!");
        for side in [0, 1] {
            duo.write(side, &vec![side as u8; lens[side]]);
            // One stream may end long before the other.
            if rng.chance(500_000) {
                duo.run(rng.range(0, SECOND));
            }
            duo.close(side);
        }
        let mut got = [0, 0];
        for _ in 0..600 {
            duo.run(SECOND / 2);
            for side in [0, 1] {
                got[side] += duo.read(side).len();
            }
            if duo.sides.iter().all(|kcp| kcp.peer_has_closed() && kcp.is_closed()) {
                break;
            }
        }
        assert_eq!(got, [lens[1], lens[0] + 1]);
        let over = |kcp: &Kcp| kcp.peer_has_closed() && kcp.is_closed();
        assert!(duo.sides.iter().all(over), "{:?}", duo.sides);
        assert_eq!(duo.ends(), [None, None]);
    }
}

/// Rule: W-16.
#[test]
fn peer_without_control_capability_is_sent_no_control() {
    let mut lone = ScriptedPeer::new(&config());
    lone.write("hello");
    lone.out();
    lone.now += 10 * MILLIS;
    lone.una = Sn(1);
    lone.ack(0, 0);
    let now = lone.instant();
    lone.kcp.close(now);
    assert!(lone.kcp.is_closed(), "no FIN-ACK to wait for");
    let sent = lone.run(600 * SECOND);
    assert!(sent.iter().all(|(_, (header, _))| header.command != Command::Control));
    assert!(!lone.kcp.stats().peer_supports_control);
    let now = lone.instant();
    assert!(!lone.kcp.abort(now), "no RST is sent");
    assert_eq!(lone.out(), []);
}

/// Rule: W-14.
#[test]
fn close_notify_off_neither_sends_nor_takes_control() {
    let mut quiet = config();
    quiet.close_notify = false;
    let mut lone = with_capable_peer(&quiet);
    lone.push(0, b"data");
    let now = lone.instant();
    lone.kcp.close(now);
    lone.give(Header { frg: ControlType::Fin as u8, ..header(Command::Control, 1, 5) }, b"");
    let sent = lone.run(SECOND);
    assert!(!sent.is_empty());
    assert!(sent.iter().all(|(_, (header, _))| header.frg == 0), "{sent:?}");
    lone.read_all();
    assert!(!lone.kcp.peer_has_closed() && lone.kcp.is_closed());
}

/// Rules: W-61, W-63, W-64.
#[test]
fn fin_that_contradicts_data_or_another_fin_is_ignored() {
    let fin = |sn, ts| Header { frg: ControlType::Fin as u8, ..header(Command::Control, sn, ts) };
    let mut lone = with_capable_peer(&config());
    lone.push(0, b"a");
    lone.push(1, b"b");
    for sn in [0, 1, 2 + 65_536, u32::MAX, 1 << 31] {
        lone.give(fin(sn, 5), b"");
    }
    assert_eq!(lone.kcp.stats().anomalies.invalid_control_segments, 5);
    // Its `una` acknowledges segments never sent: the FIN is not from this peer.
    lone.una = Sn(9);
    lone.give(fin(2, 5), b"");
    lone.una = Sn(1);
    assert_eq!(lone.kcp.stats().anomalies.invalid_control_segments, 6);
    // Data beyond the FIN takes it back.
    lone.give(fin(4, 5), b"");
    lone.push(5, b"f");
    lone.push(5, b"f");
    lone.push(2, b"c");
    lone.push(3, b"d");
    lone.push(4, b"e");
    assert_eq!(lone.read_all(), b"abcdef");
    assert!(!lone.kcp.peer_has_closed());
    // A complete FIN stays.
    lone.give(fin(6, 7), b"");
    assert!(lone.kcp.peer_has_closed());
    lone.give(fin(7, 8), b"");
    lone.push(6, b"more");
    assert!(lone.kcp.peer_has_closed());
    assert_eq!(
        (lone.read_all().len(), lone.kcp.stats().anomalies.invalid_control_segments),
        (0, 7)
    );
    let answers: Vec<_> = lone.out().into_iter().map(|(header, _)| header).collect();
    let fin_acks = answers.iter().filter(|header| is_control(header, ControlType::FinAck));
    assert_eq!(fin_acks.map(|header| (header.sn, header.ts)).collect::<Vec<_>>(), [(Sn(6), Ts(7))]);
}

/// Rules: W-73, W-75, P-50.
#[test]
fn reset_is_valid_only_with_the_time_stamp_of_a_recent_segment() {
    let reset =
        |sn, ts| Header { frg: ControlType::Reset as u8, ..header(Command::Control, sn, ts) };
    let mut lone = with_capable_peer(&config());
    lone.now = 20 * SECOND;
    lone.write("again");
    lone.out();
    // The second segment was sent at 20 s; the first is too old.
    for (sn, ts) in [(1, 0), (1, 19_999), (1, 20_001), (2, 20_000), (0, 20_000), (0, 0)] {
        lone.give(reset(sn, ts), b"");
    }
    assert_eq!(
        (lone.kcp.close_reason(), lone.kcp.stats().anomalies.invalid_control_segments),
        (None, 6)
    );
    // The sender of a genuine RST receives the ping and names it in the next RST.
    let sent = lone.out();
    let (ping, _) = sent.iter().find(|(h, _)| h.command == Command::Push && h.len == 0).unwrap();
    assert_eq!(ping.frg, CONTROL_CAPABLE);
    lone.give(reset(ping.sn.0, ping.ts.0 ^ 1), b"");
    assert_eq!(lone.kcp.close_reason(), None);
    lone.give(reset(ping.sn.0, ping.ts.0), b"");
    assert_eq!(lone.kcp.close_reason(), Some(ConnectionError::Reset));
    let answer = lone.out();
    assert_eq!(answer.len(), 1);
    assert!(is_control(&answer[0].0, ControlType::ResetAck));
    assert_eq!((answer[0].0.sn, answer[0].0.ts), (ping.sn, ping.ts));
    assert_eq!(lone.timeout(), None);
}

/// A peer whose data came from the process before this one answers FIN with such a RST, and acknowledges the data.
///
/// Rule: W-73.
#[test]
fn reset_that_names_a_recent_fin_is_valid() {
    for (late, wrong, valid) in
        [(10 * SECOND, 0, true), (0, 1, false), (10 * SECOND + MILLIS, 0, false)]
    {
        let mut lone = with_capable_peer(&config());
        let now = lone.instant();
        lone.kcp.close(now);
        let sent = lone.out();
        let (fin, _) = sent.iter().find(|(h, _)| is_control(h, ControlType::Fin)).unwrap();
        lone.now += late;
        let reset = Header { frg: ControlType::Reset as u8, ..*fin };
        lone.give(Header { ts: Ts(reset.ts.0 + wrong), ..reset }, b"");
        assert_eq!(lone.kcp.close_reason().is_some(), valid, "{late} us later, {wrong} ms off");
    }
}

/// Rules: W-69, W-72.
#[test]
fn reset_names_the_latest_segment_and_expires_after_10_s() {
    let mut lone = with_capable_peer(&config());
    lone.push(0, b"data");
    lone.now += 5 * MILLIS;
    let now = lone.instant();
    assert!(lone.kcp.abort(now));
    assert_eq!(lone.kcp.close_reason(), Some(ConnectionError::Aborted));
    let start = lone.now;
    let first = lone.out();
    assert_eq!((first.len(), first[0].0.sn, first[0].0.ts), (1, Sn(0), Ts(10)));
    // The peer goes on, so the RST was lost. The next RST has the timestamp of this segment.
    lone.now += 5 * MILLIS;
    lone.push(1, b"more");
    let second = lone.out();
    assert_eq!((second.len(), second[0].0.sn, second[0].0.ts), (1, Sn(1), Ts(20)));
    let more = lone.run(60 * SECOND);
    assert!((10..20).contains(&more.len()), "{more:?}");
    assert!(more.iter().all(
        |(at, (header, _))| *at < start + 10 * SECOND && is_control(header, ControlType::Reset)
    ));
    assert_eq!(lone.timeout(), None);
    let now = lone.instant();
    assert!(!lone.kcp.is_resetting(now));
}

/// A listener that answers initial segments without state accepts validated peers, some of which have not shown
/// whether they support FIN.
#[test]
fn ping_for_the_capability_is_retransmitted_though_the_peer_is_validated() {
    let mut lone = ScriptedPeer::new(&config());
    lone.kcp.on_address_validated();
    lone.push(0, b"request");
    lone.read_all();
    lone.out();
    let now = lone.instant();
    lone.kcp.close(now);
    let is_ping = |(header, _): &&Sent| header.command == Command::Push;
    for _ in 0..3 {
        assert_eq!(lone.out().iter().filter(is_ping).count(), 1);
        lone.now = lone.timeout().expect("the ping is retransmitted");
    }
    let ping = lone.out().iter().find(is_ping).unwrap().0;
    lone.now += MILLIS;
    lone.give(Header { frg: CONTROL_CAPABLE, ..header(Command::Ack, ping.sn.0, ping.ts.0) }, b"");
    let sent = lone.out();
    let fin = sent.iter().find(|(header, _)| is_control(header, ControlType::Fin)).unwrap().0;
    lone.give(Header { frg: ControlType::FinAck as u8, ..fin }, b"");
    assert!(lone.kcp.is_closed());
    assert!(lone.run(10 * SECOND).is_empty(), "no further ping");
}

/// The network comes back after weeks.
#[test]
fn fin_ack_of_a_recent_fin_after_26_days_is_valid() {
    for transmissions in [1, 4] {
        let mut lone = with_capable_peer(&config());
        let now = lone.instant();
        lone.kcp.close(now);
        assert!(lone.out().iter().any(|(header, _)| is_control(header, ControlType::Fin)));
        lone.now += 26 * DAY;
        let again = lone.out();
        let fin = again.iter().find(|(header, _)| is_control(header, ControlType::Fin)).unwrap().0;
        // A round trip longer than the interval of FINs: its answer never names the last one.
        for _ in 1..transmissions {
            lone.now += SECOND;
            assert_eq!(lone.out().len(), 1);
        }
        lone.now += MILLIS;
        let frg = ControlType::FinAck as u8;
        lone.give(Header { frg, sn: fin.sn, ..header(Command::Control, 0, fin.ts.0) }, b"");
        assert!(lone.kcp.is_closed(), "after {transmissions} transmissions");
        assert_eq!(lone.kcp.stats().anomalies.invalid_control_segments, 0);
    }
}

/// The peer does not accept a RST that names an MTU probe, whose number is further back than any window.
#[test]
fn reset_names_a_retransmission_and_no_mtu_probe() {
    for (behind, is_named) in [(65_535, true), (65_536, false), (131_071, false)] {
        let mut lone = with_capable_peer(&config());
        lone.push(0, b"data");
        lone.now += 5 * MILLIS;
        let sn = Sn(1).back(behind);
        lone.push(sn.0, b"again");
        let now = lone.instant();
        assert!(lone.kcp.abort(now));
        let named = if is_named { (sn, Ts(15)) } else { (Sn(0), Ts(10)) };
        let out = lone.out();
        let reset =
            out.iter().find(|(header, _)| is_control(header, ControlType::Reset)).unwrap().0;
        assert_eq!((reset.sn, reset.ts), named, "{behind} behind");
    }
}

/// Datagrams that leave now.
fn datagrams(lone: &mut ScriptedPeer) -> Vec<Vec<u8>> {
    let (now, mut all) = (lone.instant(), Vec::new());
    loop {
        let mut datagram = Vec::new();
        if lone.kcp.poll_transmit(now, &mut datagram).is_none() {
            return all;
        }
        all.push(datagram);
    }
}

/// Rules: W-49, W-50.
#[test]
fn control_segment_is_alone_in_its_datagram() {
    type Act = fn(&mut Kcp, Instant);
    let acts: [(ControlType, Act); 3] = [
        (ControlType::Fin, |kcp, now| kcp.close(now)),
        (ControlType::Reset, |kcp, now| assert!(kcp.abort(now))),
        (ControlType::Hello, |kcp, _| kcp.set_repair_rate(500_000)),
    ];
    for (kind, act) in acts {
        let mut lone = with_capable_peer(&config());
        // An ACK and data leave beside it.
        lone.push(0, b"data");
        lone.write("last");
        let now = lone.instant();
        act(&mut lone.kcp, now);
        let sent = datagrams(&mut lone);
        let has = |datagram: &&Vec<u8>| {
            Segments::new(datagram).any(|(header, _)| is_control(&header, kind))
        };
        let control = sent.iter().find(has).unwrap();
        assert_eq!(control.len(), HEADER_LEN, "{kind:?}");
        let header = Header::parse(control).unwrap();
        assert_eq!((header.conv, header.una, header.len), (CONV, Sn(1), 0), "{kind:?}");
        if kind != ControlType::Reset {
            let other = sent.iter().find(|datagram| !has(datagram)).unwrap();
            assert_eq!(header.wnd, Header::parse(other).unwrap().wnd, "{kind:?}");
        }
    }
}

/// Rule: W-97.
#[test]
fn ended_connection_resets_its_peer_unless_that_has_closed_too_or_restarted() {
    let resets = |kcp: &Kcp| kcp.time_wait(OpenedBy::default(), false, None).reset_on_data;
    let mut duo = TwoEndpoints::new(1, 0);
    duo.write(0, b"request");
    duo.close(0);
    duo.run(SECOND);
    duo.read(1);
    assert!(resets(&duo.sides[0]), "the peer may still send");
    duo.close(1);
    duo.run(SECOND);
    assert!(!resets(&duo.sides[0]) && !resets(&duo.sides[1]));

    let mut lone = with_capable_peer(&config());
    let now = lone.instant();
    lone.kcp.ping(now);
    let (ping, _) = lone.out().remove(0);
    lone.una = Sn(0);
    lone.ack(ping.sn.0, ping.ts.0);
    assert_eq!(lone.kcp.close_reason(), Some(ConnectionError::PeerStateLost));
    assert!(!resets(&lone.kcp));
}

/// Rule: P-29.
#[test]
fn last_fin_stays_within_the_amplification_limit() {
    for (allowance, expected) in [(HEADER_LEN - 1, None), (HEADER_LEN, Some(ControlType::Fin))] {
        let mut lone = ScriptedPeer::new(&config());
        let probe = Header { frg: CONTROL_CAPABLE, ..header(Command::WindowProbe, 0, 0) };
        lone.give(probe, b"");
        assert_eq!(lone.out().len(), 1);
        let now = lone.instant();
        lone.kcp.require_validation(now, allowance);
        let last = lone.kcp.final_control(now, false, false);
        assert_eq!(last.is_some(), expected.is_some(), "{allowance} bytes");
        assert!(last.zip(expected).is_none_or(|(header, kind)| is_control(&header, kind)));
    }
}
