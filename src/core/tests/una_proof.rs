//! Limits of cumulative acknowledgements without an ACK.

use super::scripted_peer::{ScriptedPeer, config, header};
use super::sim_plan::{MILLIS, SECOND};
use crate::config::{CongestionControl, DEFAULT_WINDOW, KcpConfig, Timing};
use crate::core::segment::Command;
use crate::core::seq::Sn;

/// A connection with an RTT sample and much to send.
fn with_much_to_send(timing: Timing, congestion_control: CongestionControl) -> ScriptedPeer {
    let mut script = ScriptedPeer::new(&KcpConfig { timing, congestion_control, ..config() });
    script.wnd = u16::MAX;
    script.write(vec![1; 10]);
    script.out();
    script.now = 40 * MILLIS;
    script.una = Sn(1);
    script.ack(0, 0);
    script.write(vec![7; 100_000_000]);
    script
}

const CONTROLS: [CongestionControl; 3] =
    [CongestionControl::Off, CongestionControl::Reno, CongestionControl::Bbr];

/// A peer that receives nothing but acknowledges everything by `una`, every millisecond, draws a window and
/// then an initial window per timeout, which doubles up to 250 ms.
/// Rules: P-24, P-25.
#[test]
fn una_alone_draws_an_initial_window_per_timeout() {
    const INITIAL_WINDOW: u64 = 32 * 1_400;
    for (timing, congestion) in
        [Timing::FAST, Timing::FAST3].into_iter().flat_map(|t| CONTROLS.map(|c| (t, c)))
    {
        let mut script = with_much_to_send(timing, congestion);
        let (start, before) = (script.now, script.sent.1);
        let mut timeouts = 0;
        let mut next = start + script.kcp.stats().path.rto.as_micros() as u64;
        while script.now < start + 10 * SECOND {
            if script.now >= next {
                timeouts += 1;
                let rto = script.kcp.stats().path.rto.as_micros() as u64;
                next += rto.max((rto << timeouts.min(6)).min(250 * MILLIS));
            }
            script.out();
            script.una = script.kcp.send.nxt();
            script.give(header(Command::WindowUpdate, 0, 0), b"");
            script.now += MILLIS;
        }
        let drawn = script.sent.1 - before;
        let bound = u64::from(DEFAULT_WINDOW) * 1_400 + timeouts * INITIAL_WINDOW;
        println!("{congestion:?}: {drawn} bytes drawn, {timeouts} timeouts, at most {bound}");
        assert!(drawn <= bound, "{congestion:?}: {drawn} bytes drawn, at most {bound}");
    }
}

/// The ACK of the latest segment proves what `una` covered before, as with a peer whose ACK was lost.
/// Rule: P-24.
#[test]
fn una_opens_the_window_once_a_later_ack_proves_it() {
    for congestion in CONTROLS {
        let mut script = with_much_to_send(Timing::FAST3, congestion);
        let (mut sent, mut last) = (0, None);
        for _ in 0..100 {
            let out = script.out();
            sent += out.len();
            last = out.last().map(|(header, _)| *header).or(last);
            script.now += MILLIS;
        }
        let last = last.unwrap();
        script.una = last.sn;
        script.give(header(Command::WindowUpdate, 0, 0), b"");
        let waits = script.out();
        assert!(waits.len() <= 1 + usize::from(sent > 32), "{congestion:?}: {}", waits.len());
        script.una = last.sn.advance(1);
        script.ack(last.sn.0, last.ts.0);
        script.now += 10 * MILLIS;
        assert!(script.out().len() > 1, "{congestion:?}");
    }
}

/// All ACKs of a window were lost, as in an outage of the return path. The first segment after a timeout
/// shows that the window arrived.
/// Rule: P-25.
#[test]
fn window_whose_acks_were_lost_is_proved_a_round_trip_after_a_timeout() {
    for congestion in CONTROLS {
        let mut script = with_much_to_send(Timing::FAST3, congestion);
        let mut sent = 0;
        for _ in 0..100 {
            sent += script.out().len();
            script.now += MILLIS;
        }
        script.una = script.kcp.send.nxt();
        script.give(header(Command::WindowUpdate, 0, 0), b"");
        let before = script.now;
        let (probe, mut more) = loop {
            let out = script.out();
            let pushed = out.iter().find(|(header, _)| header.sn == script.una);
            if let Some((header, _)) = pushed {
                break (*header, out.len());
            }
            script.now += MILLIS;
            let rto = script.kcp.stats().path.rto.as_micros() as u64;
            assert!(script.now <= before + rto + 10 * MILLIS, "{congestion:?}, {sent} segments");
        };
        script.now += 40 * MILLIS;
        script.una = probe.sn.advance(1);
        script.ack(probe.sn.0, probe.ts.0);
        for _ in 0..60 {
            more += script.out().len();
            script.now += MILLIS;
        }
        assert!(more > (sent / 2).min(20), "{congestion:?}: {more} after {sent}");
    }
}

/// Once a gap is filled, `una` covers segments whose own ACKs were lost.
#[test]
fn una_counts_in_a_datagram_with_the_first_ack_of_a_segment() {
    let mut script = with_much_to_send(Timing::FAST3, CongestionControl::Off);
    let mut sent = 0;
    let mut first = None;
    for _ in 0..100 {
        let out = script.out();
        first = first.or_else(|| out.first().map(|(header, _)| *header));
        sent += out.len();
        script.now += MILLIS;
    }
    let first = first.unwrap();
    script.una = script.kcp.send.nxt();
    script.ack(first.sn.0, first.ts.0);
    script.now += 10 * MILLIS;
    let more = script.out().len();
    assert!(sent > 100 && more > 1, "{sent} segments before, {more} after");
}
