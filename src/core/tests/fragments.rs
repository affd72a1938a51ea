//! Message mode: fragmentation by `frg`, reassembly, empty messages, and fragments that form no
//! message.

use bytes::Bytes;

use super::report::{each_seed, explained};
use super::scripted_peer::{ScriptedPeer, config, header};
use super::sim::Sim;
use super::sim_plan::{MILLIS, Plan, SECOND, Traffic};
use crate::config::{KcpConfig, Mode, SEGMENT_CHARGE};
use crate::core::connection::SendMessageError;
use crate::core::segment::{Command, Header};
use crate::core::seq::Sn;
use crate::error::ConnectionError;
use crate::testkit::rng::Rng;

fn messages(window: u16) -> KcpConfig {
    KcpConfig { mode: Mode::Message, recv_window: window, send_window: window, ..config() }
}

/// A PUSH of the peer with this `frg`.
fn fragment(script: &mut ScriptedPeer, sn: u32, frg: u8, payload: &[u8]) {
    script.give(Header { frg, ..header(Command::Push, sn, 0) }, payload);
}

/// Rule: W-6.
#[test]
fn message_of_255_fragments_is_reassembled() {
    for window in [255, 256, 300] {
        for start in [0, u32::MAX - 100, (1 << 31) - 100] {
            let mut plan = Plan::plain("fragments");
            plan.start = Sn(start);
            for side in &mut plan.sides {
                side.config = messages(window);
                side.link.loss = 50_000;
                side.traffic = Traffic {
                    bytes: 10 * 255 * 1_376,
                    largest_write: 300 * 1_376,
                    whole: true,
                    ..Traffic::default()
                };
            }
            explained(&plan, || Sim::new(&plan).run());
        }
    }
    let mut script = ScriptedPeer::new(&messages(255));
    let mut expected = Vec::new();
    for frg in (0..=254).rev() {
        assert_eq!(script.kcp.readable(), None);
        let payload = [frg; 3];
        fragment(&mut script, 254 - u32::from(frg), frg, &payload);
        expected.extend(payload);
    }
    assert_eq!(script.kcp.readable(), Some(765));
    assert_eq!(script.kcp.recv().unwrap(), expected);
}

#[test]
fn message_with_invalid_fragments_closes_with_protocol_violation() {
    // More fragments than the receive window holds.
    for (window, frg, payload) in [(32, 32, 1), (32, 255, 1), (255, 255, 1), (1, 1, 1)] {
        let mut script = ScriptedPeer::new(&messages(window));
        fragment(&mut script, 0, frg, &vec![0; payload]);
        assert_eq!(script.kcp.close_reason(), Some(ConnectionError::ProtocolViolation));
    }
    // The receive memory holds the first message, not the second.
    for (len, ended) in [(1_476, None), (1_477, Some(ConnectionError::ProtocolViolation))] {
        let mut script = ScriptedPeer::new(&messages(10));
        fragment(&mut script, 0, 9, &vec![0; len]);
        assert_eq!(script.kcp.close_reason(), ended);
    }
    // A fragment that does not continue the message.
    for (first, second) in [(3, 3), (3, 1), (3, 4), (3, 0), (1, 1), (200, 198)] {
        let mut script = ScriptedPeer::new(&messages(256));
        fragment(&mut script, 0, 0, b"whole");
        fragment(&mut script, 1, first, b"a");
        assert_eq!(script.kcp.close_reason(), None);
        fragment(&mut script, 2, second, b"b");
        assert_eq!(
            script.kcp.close_reason(),
            Some(ConnectionError::ProtocolViolation),
            "{first} then {second}"
        );
        assert_eq!(
            (script.timeout(), script.out().len()),
            (None, 0),
            "a closed connection sends nothing"
        );
        // Complete messages stay readable.
        assert_eq!(script.kcp.recv().as_deref(), Some(&b"whole"[..]));
        assert_eq!(script.kcp.recv(), None);
    }
}

/// Two sides send the largest messages for 5 s. Returns the limit of the first side.
fn largest_messages(change: impl Fn(&mut Plan), lowered: Option<u16>) -> usize {
    let mut plan = Plan::plain("largest messages");
    for side in &mut plan.sides {
        side.config = messages(1_024);
        side.traffic =
            Traffic { bytes: 1 << 40, largest_write: 4 << 20, whole: true, ..Traffic::default() };
    }
    plan.sides[1].traffic.bytes = 1_000;
    change(&mut plan);
    let mut sim = Sim::new(&plan);
    sim.start();
    sim.run_until(SECOND);
    if let Some(window) = lowered {
        sim.sides[1].set_windows(1_024, window);
    }
    for second in 2..=5 {
        let before = sim.sides[1].read;
        sim.run_until(second * SECOND);
        assert_eq!(sim.sides.each_ref().map(|side| side.ended()), [None, None]);
        assert!(sim.sides[1].read > before, "nothing was read in second {second}");
    }
    sim.sides[0].kcp.max_message_size()
}

#[test]
fn message_that_the_sender_takes_fits_the_memory_of_the_peer() {
    for (mtu, window) in [(1_400, 1_024), (9_000, 1_024), (9_000, 64), (65_507, 256)] {
        for lossy in [false, true] {
            let most = largest_messages(
                |plan| {
                    plan.sides.iter_mut().for_each(|side| {
                        (side.config.mtu, side.config.recv_window) = (mtu, window);
                        side.link.loss = if lossy { 20_000 } else { 0 };
                    });
                },
                None,
            );
            println!("MTU {mtu}, window {window}: {most} bytes");
            let memory = usize::from(window) * SEGMENT_CHARGE;
            assert!(most <= memory && most > usize::from(mtu), "{most} bytes");
        }
    }
    let most = largest_messages(|plan| plan.sides[1].config.recv_window = 42, None);
    assert_eq!(most, 42 * 1_376);
}

#[test]
fn message_begun_before_the_window_was_lowered_is_reassembled() {
    for (mtu, window) in [(1_400, 16), (1_400, 1), (9_000, 16)] {
        let change = |plan: &mut Plan| {
            plan.sides.iter_mut().for_each(|side| {
                (side.config.mtu, side.link.loss) = (mtu, 10_000);
            });
        };
        assert!(largest_messages(change, Some(window)) > usize::from(mtu));
    }
}

/// A lowered window holds beside an incomplete message, once the peer has used up the advertised
/// one.
#[test]
fn incomplete_message_opens_a_lowered_window_for_its_rest_alone() {
    for (window, frg, advertised) in [(16, 3, 15), (4, 9, 9), (1, 1, 1)] {
        let mut script = ScriptedPeer::new(&messages(1_024));
        let mut sn = 0;
        for _ in 0..1_100 {
            fragment(&mut script, sn, 0, b"whole");
            script.kcp.recv().unwrap();
            script.out();
            sn += 1;
            script.kcp.set_windows(1_024, window).unwrap();
        }
        fragment(&mut script, sn, frg, b"first");
        let sent = script.out();
        assert_eq!(sent.last().map(|(header, _)| header.wnd), Some(advertised), "{window} {frg}");
    }
}

#[test]
fn stream_mode_ignores_frg() {
    let mut script = ScriptedPeer::new(&config());
    let mut rng = Rng::new(5);
    let mut expected = Vec::new();
    for sn in 0..500 {
        let frg = rng.next() as u8;
        fragment(&mut script, sn, frg, &[frg; 5]);
        expected.extend([frg; 5]);
    }
    assert_eq!(script.kcp.close_reason(), None);
    assert_eq!(script.read_all(), expected);
}

#[test]
fn message_random_fragments_give_whole_messages_or_a_close() {
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let mut script = ScriptedPeer::new(&messages(rng.pick(&[1, 4, 64])));
        let (mut model, mut partial) = (Vec::new(), Vec::new());
        let mut expected: Option<u8> = None;
        let mut read = Vec::new();
        for sn in 0..200 {
            let frg = match expected {
                Some(next) if !rng.chance(10_000) => next,
                _ => rng.below(rng.clone().spread(1, 70)) as u8,
            };
            let payload = vec![sn as u8; rng.below(20) as usize];
            fragment(&mut script, sn, frg, &payload);
            if script.kcp.close_reason().is_some() {
                break;
            }
            partial.extend(payload);
            expected = frg.checked_sub(1);
            if frg == 0 {
                let message = std::mem::take(&mut partial);
                model.extend((!message.is_empty()).then_some(message));
            }
            if sn.is_multiple_of(3) {
                read.extend(script.kcp.recv().map(|message| message.to_vec()));
            }
            while script.kcp.readable().is_some() && rng.chance(900_000) {
                read.extend(script.kcp.recv().map(|message| message.to_vec()));
            }
            if script.kcp.stats().anomalies.out_of_window_segments > 0 {
                break;
            }
        }
        read.extend(std::iter::from_fn(|| script.kcp.recv()).map(|message| message.to_vec()));
        let count = read.len();
        assert_eq!(read[..], model[..count.min(model.len())], "seed {seed}");
        assert!(
            count + 1 >= model.len(),
            "seed {seed}: only the message that was refused may be missing"
        );
    }
}

#[test]
fn message_empty_is_acknowledged_and_skipped() {
    let config = messages(128);
    let (mut a, mut b) = (ScriptedPeer::new(&config), ScriptedPeer::new(&config));
    for text in ["", "one", "", "", "two", ""] {
        let now = a.instant();
        a.kcp.send_message(now, Bytes::from_static(text.as_bytes())).unwrap();
    }
    let segments = a.out();
    assert_eq!(segments.len(), 6);
    for (header, payload) in segments {
        b.give(header, &payload);
    }
    let read: Vec<_> = std::iter::from_fn(|| b.kcp.recv()).collect();
    assert_eq!(read, ["one", "two"].map(str::as_bytes));
    // They occupy no receive window.
    let acks = b.out();
    assert_eq!(acks.last().map(|(header, _)| (header.una, header.wnd)), Some((Sn(6), 128)));
}

#[test]
fn message_too_large_for_the_peer_is_refused_by_send_message() {
    let mut script = ScriptedPeer::new(&messages(300));
    let now = script.instant();
    // Before the peer advertised its window, 32 fragments are assumed to fit (IKCP_WND_RCV).
    let send = |script: &mut ScriptedPeer, fragments: usize| {
        script.kcp.send_message(now, Bytes::from(vec![0; fragments * 1_376]))
    };
    let too_large = |fragments: usize, max: usize| {
        Err(SendMessageError::TooLarge { size: fragments * 1_376, max: max * 1_376 })
    };
    assert_eq!(send(&mut script, 33), too_large(33, 32));
    assert_eq!(send(&mut script, 32), Ok(()));
    script.out();
    script.now += 40 * MILLIS;
    (script.una, script.wnd) = (Sn(32), 0);
    script.ack(31, 0);
    // A closed window does not make every message too large.
    assert_eq!(script.kcp.max_message_size(), 1_376);
    script.wnd = 1_000;
    script.give(header(Command::WindowUpdate, 1 << 30, 0), b"");
    assert_eq!(send(&mut script, 256), too_large(256, 255));
    assert_eq!(send(&mut script, 255), Ok(()));
    assert_eq!(send(&mut script, 46), Err(SendMessageError::Full));
    assert_eq!(send(&mut script, 45), Ok(()));
}

/// Both sides with their own window and MTU, under loss.
#[test]
fn message_boundaries_under_loss_are_kept() {
    each_seed("fragments::message_boundaries_under_loss_are_kept", 0..100, |seed, verbose| {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::plain("boundaries");
        plan.seed = seed;
        for side in &mut plan.sides {
            side.config = messages(rng.spread(32, 1_024) as u16);
            side.config.mtu = rng.spread(25, 1_500) as u16;
            side.link.loss = rng.pick(&[0, 10_000, 100_000]);
            let largest_write = rng.spread(1, 300_000);
            let mss = u64::from(side.config.mtu) - 24;
            let bytes = (300 * largest_write.min(mss)).min(300_000);
            side.traffic = Traffic { bytes, largest_write, whole: true, ..Traffic::default() };
        }
        let mut sim = Sim::new(&plan);
        sim.verbose = verbose;
        explained(&plan, || sim.run());
        plan.to_string()
    });
}
