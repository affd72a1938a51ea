//! Packet scripts: one rule of the protocol per test, with the exact times of transmissions.

use std::num::NonZeroU8;
use std::time::Duration;

use crate::config::{AckPolicy, CongestionControl, KcpConfig, KeepaliveInterval, Timing};
use crate::core::keepalive::dataless_sn;
use crate::core::segment::CONTROL_CAPABLE;
use crate::core::seq::Sn;
use crate::error::{ConnectionError, TimeoutCause};
use crate::testkit::script::{
    Script, Segment, ack, fin, fin_ack, ms, mtu_probe, ping, push, quiet, rst, rst_ack, script,
    window_probe, window_update,
};

/// Payload of a full segment: 1,400 bytes without the header.
const MSS: usize = 1_376;
/// A number far behind the receive window, as in a ping of the peer.
const OLD: u32 = 0xC000_0000;

/// A connection over a path of 50 ms: `b"hello"` was sent and acknowledged, and the peer
/// advertised the CONTROL capability in the ACK.
fn established(config: &KcpConfig) -> Script {
    script(config)
        .write(b"hello")
        .expect(push(0, b"hello").ts(0))
        .at(ms(50))
        .recv(ack(0).una(1).frg(CONTROL_CAPABLE))
        .expect_none()
}

// ----- acknowledgements -----

/// Rule: W-7.
#[test]
fn ack_policy_immediate_acks_each_segment_at_once() {
    let config = KcpConfig { ack_policy: AckPolicy::Immediate, ..quiet() };
    let _ = script(&config)
        .recv(push(0, b"a").ts(7))
        .expect(ack(0).una(1).ts(7))
        .at(ms(1))
        .recv(push(1, b"b").ts(8))
        .expect(ack(1).una(2).ts(8))
        .at(ms(1_000))
        .read(b"ab")
        .expect_none();
}

/// ACKs leave at the end of each interval.
fn acks_at_20_ms() -> KcpConfig {
    let timing = Timing::new(true, ms(20), None).unwrap();
    let congestion_control = CongestionControl::Off;
    let ack_policy = AckPolicy::Interval;
    KcpConfig { ack_policy, timing, congestion_control, ..quiet() }
}

#[test]
fn ack_policy_interval_acks_after_one_interval() {
    let _ = script(&acks_at_20_ms())
        .at(ms(5))
        .recv(push(0, b"a").ts(7))
        .expect_none()
        .at(ms(25))
        .expect(ack(0).una(1).ts(7))
        .at(ms(1_000))
        .expect_none();
}

#[test]
fn ack_policy_set_in_use_applies_to_the_next_segment() {
    let _ = script(&acks_at_20_ms())
        .at(ms(5))
        .with(|kcp, _| kcp.set_ack_policy(AckPolicy::Immediate))
        .recv(push(0, b"a").ts(7))
        .expect(ack(0).una(1).ts(7))
        .with(|kcp, _| kcp.set_ack_policy(AckPolicy::Interval))
        .recv(push(1, b"b").ts(8))
        .expect_none()
        .at(ms(25))
        .expect(ack(1).una(2).ts(8))
        .at(ms(1_000))
        .read(b"ab")
        .expect_none();
}

#[test]
fn duplicate_is_acked_again_at_once_whatever_the_policy() {
    let config = KcpConfig { ack_policy: AckPolicy::Interval, ..quiet() };
    let _ = script(&config)
        .recv(push(0, b"a").ts(7))
        .at(ms(20))
        .expect(ack(0).una(1).ts(7))
        .at(ms(30))
        .recv(push(0, b"a").ts(27))
        .expect(ack(0).una(1).ts(27))
        .at(ms(1_000))
        .read(b"a")
        .expect_none();
}

// ----- windows -----

/// Rules: W-172, P-17.
#[test]
fn zero_window_is_probed_after_500_ms_and_then_up_to_every_5_s() {
    let mut script = script(&quiet())
        .write(b"a")
        .expect(push(0, b"a"))
        .at(ms(50))
        .recv(ack(0).una(1).wnd(0))
        .write(b"b")
        .expect_none();
    for at in [500, 1_500, 3_500, 7_500, 12_500, 17_500] {
        script = script.at(ms(50 + at)).expect(window_probe().una(0));
    }
    let _ = script
        .recv(window_update().una(1).wnd(1))
        .expect(push(1, b"b"))
        .at(ms(17_600))
        .recv(ack(1).una(2))
        .at(ms(60_000))
        .expect_none();
}

/// Rule: W-12.
#[test]
fn window_probe_is_answered_with_the_receive_window() {
    let config = KcpConfig { recv_window: 8, auto_windows: false, ..quiet() };
    let _ = script(&config)
        .recv(push(0, b"a"))
        .expect(ack(0).una(1).wnd(7))
        .recv(window_probe())
        .expect(window_update().una(1).wnd(7))
        .at(ms(1_000))
        .expect_none();
}

/// Rules: W-12, W-170.
#[test]
fn reading_a_full_receive_window_sends_a_window_update() {
    let config = KcpConfig { recv_window: 2, auto_windows: false, ..quiet() };
    let _ = script(&config)
        .recv_datagram(&[push(0, b"a"), push(1, b"b")])
        .expect(ack(1).una(2).wnd(0))
        .at(ms(300))
        .read(b"ab")
        .expect(window_update().una(2).wnd(2))
        .at(ms(1_000))
        .expect_none();
}

/// Rules: W-8, W-9, W-13, W-159, P-1.
#[test]
fn window_probes_and_updates_lie_far_behind_and_have_no_timestamp() {
    let plain = |segment: Segment| segment.frg(0xA5).ts(0).sn(1_u32.wrapping_sub(1 << 30));
    let _ = established(&quiet())
        .recv(window_probe())
        .expect(plain(window_update()))
        .recv(window_update().una(1).wnd(0))
        .at(ms(200))
        .recv(window_update().una(1).wnd(0))
        .at(ms(400))
        .recv(window_update().una(1).wnd(0))
        .write(b"a")
        .expect_none()
        .at(ms(900))
        .expect(plain(window_probe()));
    // The number is never 0, which an initial segment has.
    assert_eq!(dataless_sn(Sn(1 << 30)), Sn(u32::MAX));
}

// ----- loss -----

/// A single unacknowledged segment is sent at these times.
fn unanswered(config: &KcpConfig, at: [u64; 8]) {
    let mut script = script(config).write(b"a");
    for at in at {
        script = script.at(ms(at)).expect(push(0, b"a").ts(at as u32)).expect_none();
    }
}

/// Rules: W-169, P-8.
#[test]
fn rto_is_200_ms_before_the_first_sample_and_grows_by_half_of_it() {
    // After 2 s without an answer the PTO back-off doubles the wait instead.
    unanswered(&quiet(), [0, 200, 500, 900, 1_400, 2_000, 2_700, 3_500]);
}

/// Rule: P-8.
#[test]
fn rto_without_nodelay_grows_by_the_whole() {
    let config = KcpConfig { timing: Timing::NORMAL, ..quiet() };
    unanswered(&config, [0, 200, 600, 1_200, 2_000, 3_000, 4_200, 5_800]);
}

#[test]
fn rto_grows_up_to_the_maximum() {
    let max_retransmit_interval = ms(1_000);
    let config = KcpConfig { timing: Timing::NORMAL, max_retransmit_interval, ..quiet() };
    unanswered(&config, [0, 200, 600, 1_200, 2_000, 3_000, 4_000, 5_000]);
}

/// Rule: W-6.
#[test]
fn rto_follows_the_first_rtt_sample() {
    // srtt 50 ms and rttvar 25 ms: 50 + 4 * 25.
    let _ = established(&quiet())
        .write(b"a")
        .expect(push(1, b"a").ts(50))
        .at(ms(200))
        .expect(push(1, b"a").ts(200))
        .at(ms(230))
        .recv(ack(1).una(2))
        .at(ms(60_000))
        .expect_none();
}

/// Three full segments in flight; the second was acknowledged after 50 ms.
fn one_sacked(config: &KcpConfig) -> Script {
    established(config)
        .write(&[1; 3 * MSS])
        .expect(push(1, &[1; MSS]))
        .expect(push(2, &[1; MSS]))
        .expect(push(3, &[1; MSS]))
        .at(ms(100))
        .recv(ack(2).una(1))
        .expect_none()
}

/// `n` later acknowledgements declare a loss, and there is no congestion control.
fn fast_resend(n: u8) -> KcpConfig {
    let timing = Timing::new(true, ms(10), NonZeroU8::new(n)).unwrap();
    let congestion_control = CongestionControl::Off;
    KcpConfig { timing, congestion_control, ..quiet() }
}

#[test]
fn fast_retransmit_needs_as_many_later_acks_as_fast_resend() {
    let _ = one_sacked(&fast_resend(2))
        .at(ms(101))
        .recv(ack(3).una(1))
        .expect(push(1, &[1; MSS]).ts(101))
        .expect_none();
    // `one_sacked` expects no transmission on the first ACK; with `fast_resend` 1 there is one.
    let _ = established(&fast_resend(1))
        .write(&[1; 2 * MSS])
        .expect(push(1, &[1; MSS]))
        .expect(push(2, &[1; MSS]))
        .at(ms(100))
        .recv(ack(2).una(1))
        .expect(push(1, &[1; MSS]).ts(100))
        .expect_none();
}

/// Rules: W-169, P-7.
#[test]
fn early_retransmit_follows_one_later_ack_and_two_milliseconds() {
    let _ = one_sacked(&quiet()).at(ms(102)).expect(push(1, &[1; MSS]));
}

/// Rule: P-12.
#[test]
fn ack_of_the_retransmission_and_of_the_original_end_the_same_loss() {
    let _ = one_sacked(&quiet())
        .at(ms(102))
        .expect(push(1, &[1; MSS]).ts(102))
        .at(ms(120))
        // The original arrived after all; the retransmission is acknowledged later.
        .recv(ack(1).ts(50).una(4))
        .at(ms(160))
        .recv(ack(1).ts(102).una(4))
        .at(ms(60_000))
        .expect_none();
}

#[test]
fn ack_of_the_original_behind_its_retransmission_is_a_sample_since_the_original() {
    let script = script(&quiet())
        .write(b"a")
        .expect(push(0, b"a").ts(0))
        .at(ms(200))
        .expect(push(0, b"a").ts(200))
        .at(ms(300))
        .recv(ack(0).ts(0).una(1))
        .at(ms(60_000))
        .expect_none();
    let stats = script.kcp().stats();
    assert_eq!((stats.path.srtt, stats.retransmit.spurious), (ms(300), 1));
}

/// By a quarter of the minimum RTT of 50 ms (RFC 8985 6.2 step 4).
#[test]
fn spurious_retransmission_widens_the_reordering_window() {
    let full = |sn: u32| push(sn, &[sn as u8; MSS]);
    let script = one_sacked(&quiet())
        .at(ms(102))
        .expect(push(1, &[1; MSS]).ts(102))
        .at(ms(110))
        .recv(ack(1).ts(50).una(4))
        .at(ms(200))
        .write(&[[4; MSS], [5; MSS]].concat())
        .expect(full(4))
        .expect(full(5))
        .at(ms(250))
        .recv(ack(5).una(4))
        .at(Duration::from_micros(262_500))
        .expect(full(4));
    assert_eq!(script.kcp().stats().retransmit.spurious, 1);
}

// ----- FIN and RST -----

/// Rules: W-15, W-51, W-60, P-49.
#[test]
fn fin_follows_the_last_segment_and_is_retransmitted_until_fin_ack() {
    let mut script = established(&quiet()).with(|kcp, now| kcp.close(now)).expect(fin(1).ts(50));
    // The RTO of 150 ms, doubled up to a second.
    for (at, asks) in [(200, false), (500, false), (1_100, true), (2_100, false), (3_100, true)] {
        if asks {
            // A ping for the peer's state, after one second without a sign of life, then two.
            script = script.at(ms(at - 50)).expect(ping()).recv_ack_of_last(1).expect_none();
        }
        script = script.at(ms(at)).expect(fin(1).ts(at as u32)).expect_none();
    }
    let script = script.recv(fin_ack(1).ts(3_100).una(1)).at(ms(60_000)).expect_none();
    assert!(script.kcp().is_closed());
}

/// Rule: W-16.
#[test]
fn fin_is_not_sent_to_a_peer_without_the_control_capability() {
    let script = script(&quiet())
        .write(b"a")
        .expect(push(0, b"a"))
        .at(ms(50))
        .recv(ack(0).una(1))
        .with(|kcp, now| kcp.close(now))
        .at(ms(60_000))
        .expect_none();
    assert!(script.kcp().is_closed());
}

/// Rule: W-59.
#[test]
fn fin_leaves_once_each_segment_has_left_and_waits_for_no_ack() {
    let _ = script(&quiet())
        .write(b"a")
        .expect(push(0, b"a"))
        .at(ms(50))
        .recv(ack(0).una(1).wnd(1).frg(CONTROL_CAPABLE))
        .write(b"b")
        .expect(push(1, b"b"))
        .write(b"c")
        .with(|kcp, now| kcp.close(now))
        .expect_none()
        .at(ms(100))
        .recv(ack(1).una(2).wnd(1))
        .expect(push(2, b"c"))
        .expect(fin(3))
        .expect_none();
}

/// Rule: W-17.
#[test]
fn end_of_a_stream_asks_a_peer_without_a_sign_of_the_capability() {
    for frg in [CONTROL_CAPABLE, 0] {
        let script = script(&quiet())
            .recv(push(0, b"a"))
            .expect(ack(0).una(1))
            .with(|kcp, now| kcp.close(now))
            .expect(ping())
            .expect_none();
        let asked = script.last();
        let script = script.at(ms(50)).recv(ack(asked.sn.0).ts(asked.ts.0).frg(frg));
        if frg == CONTROL_CAPABLE {
            let _ = script.expect(fin(0)).expect_none();
        } else {
            let script = script.at(ms(60_000)).expect_none();
            assert!(script.kcp().is_closed());
        }
    }
}

/// Rule: W-58.
#[test]
fn control_of_an_unknown_type_is_ignored() {
    for frg in [0, 8, 0x80, CONTROL_CAPABLE, 0xFF] {
        let script = established(&quiet())
            .recv(fin(0).frg(frg).una(1))
            .at(ms(60_000))
            .expect_none()
            .expect_close_reason(None);
        assert!(!script.kcp().peer_has_closed());
    }
}

/// Rules: W-52, W-62.
#[test]
fn fin_is_answered_with_fin_ack_once_everything_before_it_arrived() {
    let script = established(&quiet())
        .recv(fin(2).ts(500).una(1))
        .expect_none()
        .recv_datagram(&[push(0, b"a").una(1), push(1, b"b").una(1)])
        .expect(fin_ack(2).ts(500).una(2))
        .expect(ack(1).una(2))
        .read(b"ab");
    assert!(script.kcp().peer_has_closed());
}

/// Rules: W-54, W-74.
#[test]
fn rst_without_a_recent_timestamp_is_answered_with_a_ping() {
    let script = established(&quiet())
        .at(ms(20_000))
        .recv(rst(0).ts(0).una(1))
        .expect(ping())
        .expect_close_reason(None);
    let asked = script.last();
    let _ = script
        .recv(rst(asked.sn.0).ts(asked.ts.0).una(1))
        .expect(rst_ack(asked.sn.0).ts(asked.ts.0))
        .expect_close_reason(Some(ConnectionError::Reset));
}

/// A RST that names segment `sn` of 66, each acknowledged before the next one left, `wait` milliseconds after
/// that segment left. Returns whether it ends the connection.
fn reset_naming(sn: u32, wait: u64) -> bool {
    let at = |sn: u32| 100 + 10 * u64::from(sn);
    let mut script = established(&quiet());
    for sn in 1..=66 {
        script = script.at(ms(at(sn))).write(b"a").expect(push(sn, b"a").ts(at(sn) as u32));
        script = script.at(ms(at(sn) + 5)).recv(ack(sn).una(sn + 1)).expect_none();
    }
    let script = script.at(ms(at(sn) + wait)).recv(rst(sn).ts(at(sn) as u32).una(67));
    script.kcp().close_reason() == Some(ConnectionError::Reset)
}

/// Rule: W-73.
#[test]
fn rst_is_valid_for_the_last_64_acknowledged_segments_of_ten_seconds() {
    assert_eq!([66, 3, 2].map(|sn| reset_naming(sn, 1_000)), [true, true, false]);
    assert_eq!([9_990, 10_010].map(|wait| reset_naming(66, wait)), [true, false]);
}

/// Rule: W-75.
#[test]
fn copies_of_an_old_rst_draw_a_ping_each_second() {
    let mut script = established(&quiet());
    for second in 20..25 {
        script = script.at(ms(second * 1_000)).recv(rst(0).ts(0).una(1)).expect(ping());
        script = script.recv_ack_of_last(1);
        for _ in 0..10 {
            script = script.recv(rst(0).ts(0).una(1)).expect_none();
        }
    }
    // The last copies are remembered until the next ping may be sent.
    script = script.at(ms(25_000)).expect(ping()).recv_ack_of_last(1);
    let _ = script.at(ms(60_000)).expect_none().expect_close_reason(None);
}

/// Rule: W-76.
#[test]
fn old_rst_behind_a_ping_is_remembered_until_the_next_ping_may_leave() {
    let mut script =
        established(&quiet()).at(ms(20_000)).with(|kcp, now| kcp.ping(now)).expect(ping());
    script = script.at(ms(20_100)).recv(rst(0).ts(0).una(1)).expect_none();
    for at in [21_000, 21_200, 21_400, 21_600, 21_800] {
        script = script.at(ms(at)).expect(ping()).expect_none();
    }
    script = script.at(ms(21_949)).expect_none().expect_close_reason(None);
    let _ = script.at(ms(21_950)).expect_none().expect_close_reason(Some(ConnectionError::Reset));
}

/// Rules: W-87, W-88, W-89, P-51.
#[test]
fn rst_without_state_ends_the_connection_after_five_more_unanswered_pings() {
    for answers in [false, true] {
        let mut script =
            established(&quiet()).at(ms(2_000)).with(|kcp, now| kcp.ping(now)).expect(ping());
        let asked = script.last();
        let reset = || rst(asked.sn.0).ts(asked.ts.0).una(0).wnd(0);
        script = script.at(ms(2_050)).recv(reset());
        for at in [2_050, 2_250, 2_450, 2_650, 2_850] {
            script = script.at(ms(at)).expect(ping().ts(asked.ts.0)).recv(reset()).expect_none();
        }
        script = script.at(ms(2_999)).expect_none().expect_close_reason(None);
        if answers {
            script = script.recv(ack(asked.sn.0).ts(asked.ts.0).una(1)).recv(reset());
        }
        let end = (!answers).then_some(ConnectionError::Reset);
        let _ = script.at(ms(3_000)).expect_none().expect_close_reason(end);
    }
}

/// Rule: W-74.
#[test]
fn rst_for_data_of_a_peer_that_has_received_nothing_ends_the_connection_at_once() {
    let _ = script(&quiet())
        .write(b"hello")
        .expect(push(0, b"hello").ts(0))
        .at(ms(50))
        .recv(rst(0).ts(0).una(0).wnd(0))
        .expect(rst_ack(0).ts(0))
        .expect_close_reason(Some(ConnectionError::Reset));
}

/// Rules: W-53, W-66, W-71.
#[test]
fn rst_names_the_last_segment_of_the_peer_and_is_retransmitted_for_10_s() {
    let mut script = established(&quiet())
        .recv(push(0, b"a").una(1))
        .expect(ack(0).una(1))
        .with(|kcp, now| assert!(kcp.abort(now)))
        .expect(rst(0).ts(50))
        .expect_close_reason(Some(ConnectionError::Aborted));
    for at in [200, 500, 1_100, 2_100, 3_100, 4_100, 5_100, 6_100, 7_100, 8_100, 9_100] {
        script = script.at(ms(at)).expect(rst(0).ts(50)).expect_none();
    }
    let _ = script.at(ms(60_000)).expect_none();
}

#[test]
fn rst_ack_stops_the_rst() {
    let _ = established(&quiet())
        .recv(push(0, b"a").una(1))
        .expect(ack(0).una(1))
        .with(|kcp, now| assert!(kcp.abort(now)))
        .expect(rst(0).ts(50))
        .at(ms(100))
        .recv(rst_ack(0).ts(50).una(1))
        .at(ms(60_000))
        .expect_none();
}

// ----- pings and MTU probes -----

/// Rules: W-22, P-47.
#[test]
fn ping_is_acked_with_its_number_and_timestamp() {
    let _ = script(&quiet())
        .recv(push(OLD, b"").ts(0xDEAD))
        .expect(ack(OLD).ts(0xDEAD).una(0))
        .at(ms(1_000))
        .read(b"")
        .expect_none();
}

/// It may be a Retry, which the listener answers the initial segment with.
#[test]
fn ping_before_any_answer_has_the_initial_segment_sent_again_once() {
    let _ = script(&quiet())
        .with(|kcp, now| kcp.open(now))
        .expect(window_probe())
        .at(ms(30))
        .recv(push(OLD, b"").ts(7))
        .expect(ack(OLD).ts(7))
        .expect(window_probe())
        .at(ms(40))
        .recv(push(OLD, b"").ts(8))
        .expect(ack(OLD).ts(8))
        .expect_none();
}

/// Rule: W-46.
#[test]
fn mtu_probe_is_acked_and_its_padding_is_discarded() {
    let _ = script(&quiet())
        .recv(mtu_probe(1_400).sn(OLD).ts(0xBEEF))
        .expect(ack(OLD).ts(0xBEEF).una(0))
        .at(ms(1_000))
        .read(b"")
        .expect_none();
}

/// Rules: W-13, W-21, W-28, P-47.
#[test]
fn idle_connection_pings_every_keepalive_period() {
    let config = KcpConfig { keepalive: KeepaliveInterval::After(ms(15_000)), ..quiet() };
    let script = established(&config).at(ms(15_050)).expect(ping().frg(CONTROL_CAPABLE));
    let first = script.last();
    let script = script.at(ms(15_100)).recv_ack_of_last(1).at(ms(30_100)).expect(ping());
    assert_ne!(script.last().ts, first.ts, "a new cookie per ping");
    let _ = script.expect_close_reason(None);
}

/// Rules: W-25, W-29.
#[test]
fn unanswered_pings_end_with_the_dead_peer_timeout() {
    let config = KcpConfig { dead_peer_timeout: Some(ms(6_000)), ..quiet() };
    let mut script = established(&config)
        .recv(window_update().una(1).wnd(0))
        .at(ms(1_000))
        .with(|kcp, now| kcp.ping(now))
        .expect(ping());
    let cookie = script.last().ts.0;
    // After a second without a sign of life, one ping per second with the same cookie.
    for at in [2_000, 3_000, 4_000, 5_000, 6_000] {
        script = script.at(ms(at)).expect(ping().ts(cookie)).expect_none();
    }
    let _ = script
        .at(ms(7_000))
        .expect_close_reason(Some(ConnectionError::DeadPeer(TimeoutCause::Nothing)));
}

/// Rule: W-24.
#[test]
fn ack_of_a_ping_below_our_una_means_peer_state_lost() {
    let _ = established(&quiet())
        .at(ms(1_000))
        .with(|kcp, now| kcp.ping(now))
        .expect(ping())
        .recv_ack_of_last(0)
        .expect_close_reason(Some(ConnectionError::PeerStateLost));
}

/// Rules: W-45, W-47.
#[test]
fn suspected_black_hole_is_pinged_and_then_probed_with_a_full_datagram() {
    let full = |sn| push(sn, &[1; MSS]);
    let mut script = established(&quiet()).write(&[1; 2 * MSS]).expect(full(1)).expect(full(2));
    for at in [200, 425] {
        script = script.at(ms(at)).expect(full(1)).expect(full(2));
    }
    // The third loss of full segments, an RTO apart, without an ACK of a full segment.
    let script = script.at(ms(725)).expect(full(1)).expect(ping());
    let asked = script.last();
    let script = script.expect(full(2));
    let _ = script
        .at(ms(775))
        .recv(ack(asked.sn.0).ts(asked.ts.0).una(1))
        .expect(mtu_probe(1_400).frg(0))
        .at(ms(825))
        .recv_ack_of_last(1)
        .expect_none();
}

// ----- initial segments -----

/// Rule: W-155.
#[test]
fn initial_segment_leaves_once_more_behind_the_first_pong() {
    let _ = script(&quiet())
        .with(|kcp, now| kcp.open(now))
        .expect(window_probe().una(0))
        .at(ms(20))
        .recv(push(OLD, b"").ts(9))
        .expect(ack(OLD).ts(9))
        .expect(window_probe().una(0))
        .expect_none()
        .at(ms(40))
        .recv(push(OLD + 2, b"").ts(10))
        .expect(ack(OLD + 2).ts(10))
        .expect_none();
}
