//! Messages of many fragments, of none, and of fragments that do not belong together.

use bytes::Bytes;

use super::link::Rng;
use super::report::{each_seed, explained};
use super::scripted_peer::{Lone, config, header};
use super::sim::Sim;
use super::sim_plan::{MILLIS, Plan, Traffic};
use crate::config::{KcpConfig, Mode};
use crate::core::connection::SendMessageError;
use crate::core::segment::{Command, Header};
use crate::core::seq::Sn;
use crate::error::ConnectionError;

fn messages(window: u16) -> KcpConfig {
    KcpConfig { mode: Mode::Message, recv_window: window, send_window: window, ..config() }
}

/// A fragment from the peer.
fn fragment(lone: &mut Lone, sn: u32, frg: u8, payload: &[u8]) {
    lone.give(Header { frg, ..header(Command::Push, sn, 0) }, payload);
}

#[test]
fn a_message_of_255_fragments_arrives_whole() {
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
    let mut lone = Lone::new(&messages(255));
    let mut expected = Vec::new();
    for frg in (0..=254).rev() {
        assert_eq!(lone.kcp.readable(), None);
        let payload = [frg; 3];
        fragment(&mut lone, 254 - u32::from(frg), frg, &payload);
        expected.extend(payload);
    }
    assert_eq!(lone.kcp.readable(), Some(765));
    assert_eq!(lone.kcp.recv().unwrap(), expected);
}

#[test]
fn a_message_that_cannot_be_put_together_ends_the_conversation() {
    // More fragments than the window holds, or more bytes than the memory.
    for (window, frg, payload) in [(32, 32, 1), (32, 255, 1), (255, 255, 1), (1, 1, 1)] {
        let mut lone = Lone::new(&messages(window));
        fragment(&mut lone, 0, frg, &vec![0; payload]);
        assert_eq!(lone.kcp.close_reason(), Some(ConnectionError::ProtocolViolation));
    }
    let mut small = messages(300);
    small.recv_memory = Some(10_000);
    let mut lone = Lone::new(&small);
    fragment(&mut lone, 0, 9, &[0; 1_376]);
    assert_eq!(lone.kcp.close_reason(), Some(ConnectionError::ProtocolViolation));
    // Every way in which the next fragment can fail to be the next.
    for (first, second) in [(3, 3), (3, 1), (3, 4), (3, 0), (1, 1), (200, 198)] {
        let mut lone = Lone::new(&messages(256));
        fragment(&mut lone, 0, 0, b"whole");
        fragment(&mut lone, 1, first, b"a");
        assert_eq!(lone.kcp.close_reason(), None);
        fragment(&mut lone, 2, second, b"b");
        assert_eq!(
            lone.kcp.close_reason(),
            Some(ConnectionError::ProtocolViolation),
            "{first} then {second}"
        );
        assert_eq!((lone.timeout(), lone.out().len()), (None, 0), "nothing more is sent");
        // What was complete before stays readable, and nothing else.
        assert_eq!(lone.kcp.recv().as_deref(), Some(&b"whole"[..]));
        assert_eq!(lone.kcp.recv(), None);
    }
}

#[test]
fn a_byte_stream_does_not_care_about_fragments() {
    let mut lone = Lone::new(&config());
    let mut rng = Rng::new(5);
    let mut expected = Vec::new();
    for sn in 0..500 {
        let frg = rng.next() as u8;
        fragment(&mut lone, sn, frg, &[frg; 5]);
        expected.extend([frg; 5]);
    }
    assert_eq!(lone.kcp.close_reason(), None);
    assert_eq!(lone.read_all(), expected);
}

#[test]
fn any_fragments_give_whole_messages_or_an_end() {
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let mut lone = Lone::new(&messages(rng.pick(&[1, 4, 64])));
        let (mut model, mut partial) = (Vec::new(), Vec::new());
        let mut expected: Option<u8> = None;
        let mut read = Vec::new();
        for sn in 0..200 {
            let frg = match expected {
                Some(next) if !rng.chance(10_000) => next,
                _ => rng.below(rng.clone().spread(1, 70)) as u8,
            };
            let payload = vec![sn as u8; rng.below(20) as usize];
            fragment(&mut lone, sn, frg, &payload);
            if lone.kcp.close_reason().is_some() {
                break;
            }
            partial.extend(payload);
            expected = frg.checked_sub(1);
            if frg == 0 {
                let message = std::mem::take(&mut partial);
                model.extend((!message.is_empty()).then_some(message));
            }
            if sn.is_multiple_of(3) {
                read.extend(lone.kcp.recv().map(|message| message.to_vec()));
            }
            while lone.kcp.readable().is_some() && rng.chance(900_000) {
                read.extend(lone.kcp.recv().map(|message| message.to_vec()));
            }
            if lone.kcp.stats().out_of_window_segments > 0 {
                break;
            }
        }
        read.extend(std::iter::from_fn(|| lone.kcp.recv()).map(|message| message.to_vec()));
        let count = read.len();
        assert_eq!(read[..], model[..count.min(model.len())], "seed {seed}");
        assert!(count + 1 >= model.len(), "seed {seed}: only the refused one may be missing");
    }
}

#[test]
fn empty_messages_are_delivered_only_if_asked_for() {
    for wanted in [false, true] {
        let mut config = messages(128);
        config.empty_messages = wanted;
        let (mut a, mut b) = (Lone::new(&config), Lone::new(&config));
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
        let all = ["", "one", "", "", "two", ""].map(str::as_bytes);
        let expected: Vec<_> = all.into_iter().filter(|m| wanted || !m.is_empty()).collect();
        assert_eq!(read, expected);
        // Either way they are acknowledged and keep no window.
        let acks = b.out();
        assert_eq!(acks.last().map(|(header, _)| (header.una, header.wnd)), Some((Sn(6), 128)));
    }
}

#[test]
fn a_message_is_refused_by_its_sender_rather_than_its_receiver() {
    let mut lone = Lone::new(&messages(300));
    let now = lone.instant();
    // Until the peer has told its window, 32 fragments are known to be safe.
    let send = |lone: &mut Lone, fragments: usize| {
        lone.kcp.send_message(now, Bytes::from(vec![0; fragments * 1_376]))
    };
    let too_large = |fragments: usize, max: usize| {
        Err(SendMessageError::TooLarge { size: fragments * 1_376, max: max * 1_376 })
    };
    assert_eq!(send(&mut lone, 33), too_large(33, 32));
    assert_eq!(send(&mut lone, 32), Ok(()));
    lone.out();
    lone.now += 40 * MILLIS;
    (lone.una, lone.wnd) = (Sn(32), 0);
    lone.ack(31, 0);
    // A window that is closed for the moment does not make every message too large.
    assert_eq!(lone.kcp.max_message_size(), 1_376);
    lone.wnd = 1_000;
    lone.give(header(Command::WindowUpdate, 1 << 30, 0), b"");
    assert_eq!(send(&mut lone, 256), too_large(256, 255));
    assert_eq!(send(&mut lone, 255), Ok(()));
    assert_eq!(send(&mut lone, 46), Err(SendMessageError::Full));
    assert_eq!(send(&mut lone, 45), Ok(()));
}

/// Message mode and byte stream on one path, each side its own way, under loss.
#[test]
fn random_messages_keep_their_boundaries() {
    each_seed("fragments::random_messages_keep_their_boundaries", 0..100, |seed, verbose| {
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
            side.traffic = Traffic { bytes, largest_write, pause: 0, whole: true };
        }
        let mut sim = Sim::new(&plan);
        sim.verbose = verbose;
        explained(&plan, || sim.run());
        plan.to_string()
    });
}
