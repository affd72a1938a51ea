//! Packet scripts of losses in a row: copies of an RTO during a burst, and the retransmission budget over
//! an outage.
//!
//! The round trip is 60 ms. The RTO is a quarter longer, 75 ms, and the second one half as long again,
//! 112.5 ms. Copies leave 15 ms apart.

use std::time::Duration;

use crate::config::{CongestionControl, KcpConfig, Timing};
use crate::testkit::script::{Script, ack, ms, push, quiet, script};

/// The first messages leave one per round trip, and arrive.
const FIRST: u32 = 100;
/// When the first messages are acknowledged, microseconds.
const STEADY_AT: u64 = 6_000_000;
/// Segments that [`after_losses_in_a_row`] sends, and its end in microseconds.
const SENT: u32 = 142;
const IN_A_ROW_AT: u64 = STEADY_AT + 243_000;
/// Segments that [`after_losses_apart`] sends, and its end in microseconds.
const SENT_APART: u32 = 108;
const APART_AT: u64 = STEADY_AT + 492_000;

/// `micros` after `start`, also microseconds.
fn after(start: u64, micros: u64) -> Duration {
    Duration::from_micros(start + micros)
}

fn write(script: Script, sn: u32) -> Script {
    script.write(b"a").expect(push(sn, b"a")).expect_none()
}

/// These segments, and no others, leave `micros` after `start`, and none before.
fn leave(
    script: Script,
    (start, micros): (u64, u64),
    sns: impl IntoIterator<Item = u32>,
) -> Script {
    let script = script.at(after(start, micros));
    sns.into_iter().fold(script, |script, sn| script.expect(push(sn, b"a"))).expect_none()
}

/// Without congestion control, so that nothing paces the retransmissions.
fn config() -> KcpConfig {
    let congestion_control = CongestionControl::Off;
    KcpConfig { timing: Timing::FAST3, congestion_control, ..quiet() }
}

/// A path without loss whose round trip is known.
fn steady(config: &KcpConfig) -> Script {
    (0..FIRST).fold(script(config), |script, sn| {
        let sent = u64::from(sn) * 60;
        write(script.at(ms(sent)), sn).at(ms(sent + 60)).recv(ack(sn).una(sn + 1))
    })
}

/// 20 messages are lost in a row, then retransmitted and acknowledged. 20 more fill the retransmission
/// budget.
fn after_losses_in_a_row(config: &KcpConfig) -> Script {
    let mut script = steady(config);
    for (sn, micros) in (100..=121).zip((0..).step_by(3_000)) {
        script = write(script.at(after(STEADY_AT, micros)), sn);
    }
    // The last two arrive. The third loss makes two copies, at once until losses in a row are more than
    // chance.
    let copied = [100, 101].into_iter().chain((102..=113).flat_map(|sn| [sn, sn])).chain(114..=119);
    script =
        script.at(after(STEADY_AT, 123_000)).recv_datagram(&[120, 121].map(|sn| ack(sn).una(100)));
    script = leave(script, (STEADY_AT, 123_000), copied);
    script = leave(script, (STEADY_AT, 138_000), 114..=119);
    let acks: Vec<_> = (100..=119).map(|sn| ack(sn).ts(6_123).una(122)).collect();
    script = script.at(after(STEADY_AT, 183_000)).recv_datagram(&acks);
    script = (122..SENT).fold(script, write);
    let acks: Vec<_> = (122..SENT).map(|sn| ack(sn).una(SENT)).collect();
    script.at(after(IN_A_ROW_AT, 0)).recv_datagram(&acks).expect_none()
}

/// Four of eight messages are lost, none of them next to another.
fn after_losses_apart() -> Script {
    let mut script = steady(&config());
    for round in 0..4 {
        let (lost, start) = (FIRST + 2 * round, STEADY_AT + 123_000 * u64::from(round));
        script = write(write(script, lost).at(after(start, 3_000)), lost + 1);
        script = script.at(after(start, 63_000)).recv(ack(lost + 1).una(lost));
        // The third loss makes two copies.
        let copies = if round < 2 { 1 } else { 2 };
        script = leave(script, (start, 63_000), vec![lost; copies]);
        script = script.at(after(start, 123_000)).recv(ack(lost).una(lost + 2)).expect_none();
    }
    script
}

// ----- copies of an RTO in a burst -----

#[test]
fn rto_in_a_burst_leaves_in_four_copies_a_quarter_of_a_round_trip_apart() {
    let mut script = write(after_losses_in_a_row(&config()), SENT);
    for micros in [75_000, 90_000, 105_000, 120_000, 135_000] {
        script = leave(script, (IN_A_ROW_AT, micros), [SENT]);
    }
    // The second RTO counts from the last copy.
    for micros in [247_500, 262_500, 277_500, 292_500, 307_500] {
        script = leave(script, (IN_A_ROW_AT, micros), [SENT]);
    }
    let script = script.at(after(IN_A_ROW_AT, 360_000)).recv(ack(SENT).una(SENT + 1));
    let _ = script.at(ms(60_000)).expect_none();
}

#[test]
fn rto_without_losses_leaves_once() {
    let script = write(steady(&config()), FIRST);
    let script = leave(script, (STEADY_AT, 75_000), [FIRST]);
    let script = leave(script, (STEADY_AT, 187_500), [FIRST]);
    let script = script.at(after(STEADY_AT, 247_500)).recv(ack(FIRST).una(FIRST + 1));
    let _ = script.at(ms(60_000)).expect_none();
}

#[test]
fn rto_after_losses_apart_leaves_in_two_copies_at_once() {
    let script = write(after_losses_apart(), SENT_APART);
    let script = leave(script, (APART_AT, 75_000), [SENT_APART; 2]);
    let script = leave(script, (APART_AT, 187_500), [SENT_APART; 2]);
    let script = script.at(after(APART_AT, 247_500)).recv(ack(SENT_APART).una(SENT_APART + 1));
    let _ = script.at(ms(60_000)).expect_none();
}

#[test]
fn ack_of_any_transmission_stops_the_copies_of_its_segment() {
    let start = IN_A_ROW_AT / 1_000;
    for sent in [0, 75, 90] {
        let mut script = write(after_losses_in_a_row(&config()), SENT);
        for micros in [75_000, 90_000] {
            script = leave(script, (IN_A_ROW_AT, micros), [SENT]);
        }
        let ts = u32::try_from(start + sent).unwrap();
        script = script.at(ms(start + 104)).recv(ack(SENT).ts(ts).una(SENT + 1));
        let _ = script.at(ms(60_000)).expect_none();
    }
}

#[test]
fn ack_of_a_newer_segment_stops_all_copies_but_the_one_for_the_loss_rate() {
    for (newer_at, copied) in [(20_000, false), (40_000, true)] {
        let mut script = write(after_losses_in_a_row(&config()), SENT);
        script = write(script.at(after(IN_A_ROW_AT, newer_at)), SENT + 1);
        script = leave(script, (IN_A_ROW_AT, 75_000), [SENT]);
        if copied {
            script = leave(script, (IN_A_ROW_AT, 90_000), [SENT]);
        }
        let acked_at = newer_at + 60_000;
        script = script.at(after(IN_A_ROW_AT, acked_at)).recv(ack(SENT + 1).una(SENT));
        if !copied {
            script = leave(script, (IN_A_ROW_AT, 90_000), [SENT]);
        }
        // The second RTO: the last copy left after what was acknowledged.
        script = leave(script, (IN_A_ROW_AT, 202_500), [SENT]);
        let script = script.at(after(IN_A_ROW_AT, 203_000)).recv(ack(SENT).una(SENT + 2));
        let _ = script.at(ms(60_000)).expect_none();
    }
}

#[test]
fn loss_that_a_newer_ack_shows_leaves_in_two_copies() {
    let mut script = write(after_losses_in_a_row(&config()), SENT);
    script = write(script.at(after(IN_A_ROW_AT, 10_000)), SENT + 1);
    script = script.at(after(IN_A_ROW_AT, 70_000)).recv(ack(SENT + 1).una(SENT));
    for micros in [70_000, 85_000] {
        script = leave(script, (IN_A_ROW_AT, micros), [SENT]);
    }
    script = script.at(after(IN_A_ROW_AT, 130_000)).recv(ack(SENT).ts(6_313).una(SENT + 2));
    let _ = script.at(ms(60_000)).expect_none();
}

/// The reordering window ends 15 ms after the RTO, so the newer ACK does not replace the RTO.
#[test]
fn rto_after_a_newer_ack_leaves_in_two_copies() {
    let script = after_losses_in_a_row(&config());
    let mut script = write(script.with(|kcp, _| kcp.send.path.loss.set_reo_wnd(30_000)), SENT);
    script = write(script.at(after(IN_A_ROW_AT, 10_000)), SENT + 1);
    script = script.at(after(IN_A_ROW_AT, 70_000)).recv(ack(SENT + 1).una(SENT));
    for micros in [75_000, 90_000, 202_500] {
        script = leave(script, (IN_A_ROW_AT, micros), [SENT]);
    }
    let script = script.at(after(IN_A_ROW_AT, 203_000)).recv(ack(SENT).una(SENT + 2));
    let _ = script.at(ms(60_000)).expect_none();
}

// ----- retransmissions after an outage -----

/// The path carries nothing for 300 ms. The budget has 64 tokens at first. Retransmissions and copies take
/// one each.
#[test]
fn copies_in_an_outage_leave_half_of_the_budget_for_what_was_lost() {
    let start = IN_A_ROW_AT;
    let (end, batch) = (SENT + 7, 13);
    let mut script = (SENT..end).fold(after_losses_in_a_row(&config()), write);
    script = leave(script, (start, 75_000), SENT..end);
    script = leave(script, (start, 90_000), SENT..end);
    // Six have three probes each. 32 tokens are left, so the last one has none.
    for micros in [105_000, 120_000, 135_000] {
        script = leave(script, (start, micros), SENT..end - 1);
    }
    // The second RTOs have the copy for the loss rate alone: 18 tokens are left.
    for micros in [202_500, 217_500] {
        script = leave(script, (start, micros), [end - 1]);
    }
    for micros in [247_500, 262_500] {
        script = leave(script, (start, micros), SENT..end - 1);
    }
    script = script.at(after(start, 290_000));
    script = (end..end + batch).fold(script, write);
    // The path carries again. The ACK of what leaves now shows all 20 losses.
    let newer = end + batch;
    script = write(script.at(after(start, 300_000)), newer);
    script = write(script.at(after(start, 310_000)), newer + 1);
    script = script.at(after(start, 360_000)).recv(ack(newer).una(SENT));
    // The ACK brings the 19th token. Copies leave eight tokens, so five may leave. At zero four tokens are
    // granted.
    let order = [SENT].into_iter().chain(end..newer).chain([end - 1]).chain(SENT + 1..SENT + 4);
    script = leave(script, (start, 360_000), order);
    // Each ACK brings a token.
    script = script.at(after(start, 370_000)).recv(ack(newer + 1).una(SENT));
    script = leave(script, (start, 370_000), [SENT + 4]);
    script = leave(script, (start, 375_000), [SENT].into_iter().chain(end..end + 4));
    // Four tokens are granted once per round trip.
    script = leave(script, (start, 420_000), [SENT + 5]);
    let at_once = (SENT..SENT + 4).chain(end - 1..newer);
    let acks: Vec<_> = at_once.map(|sn| ack(sn).ts(6_603).una(SENT + 4)).collect();
    script =
        script.recv_datagram(&acks).at(after(start, 430_000)).recv(ack(SENT + 4).una(SENT + 5));
    script = script.at(after(start, 480_000)).recv(ack(SENT + 5).una(newer + 2));
    let _ = script.at(ms(60_000)).expect_none();
}
