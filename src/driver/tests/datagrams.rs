//! Out-of-band datagrams without FEC: how support is negotiated, and the memory that a peer may fill.

use std::io::ErrorKind;

use serde::Deserialize;

use super::fixtures::{MINUTE, Pair, SECOND, SERVER, push};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::segment::{Command, ControlType, Header, Segments};
use crate::core::seq::Sn;
use crate::error::ConnectionError;
use crate::fec::{FecFlag, fec_flag};
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;

/// Host of the peer that the test simulates.
const PEER: u8 = 9;

#[derive(Deserialize)]
struct Vectors {
    conv: u32,
    hello: String,
    hello_ack: String,
    datagrams: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    payload: String,
    packet: String,
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// A server with a validated peer that supports CONTROL and is simulated by the test.
fn open(world: &mut World, conv: u32) -> (KcpListener, KcpStream) {
    let listener = world.listener(SERVER, &Config::new());
    world.port(PEER);
    world.inject(addr(PEER), SERVER, &push(conv, 0, b"x"));
    let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    world.run_for(SECOND / 100);
    let ping = segments(world).into_iter().find(|h| h.command == Command::Push).unwrap();
    let mut pong = Vec::new();
    let frg = crate::core::segment::CONTROL_CAPABLE;
    Header { command: Command::Ack, frg, wnd: 128, una: Sn(0), ..ping }.emit(&mut pong);
    world.inject(addr(PEER), SERVER, &pong);
    world.run_for(SECOND / 100);
    assert_eq!(world.arrived(PEER).len(), 0, "nothing is asked before there is a handle");
    (listener, stream)
}

/// First headers of the datagrams that arrived at the peer.
fn segments(world: &World) -> Vec<Header> {
    let arrived = world.arrived(PEER);
    arrived.iter().flat_map(|datagram| Segments::new(datagram)).map(|(header, _)| header).collect()
}

fn hellos(world: &World) -> Vec<Header> {
    let mut segments = segments(world);
    segments.retain(|header| {
        header.command == Command::Control && header.frg == ControlType::Hello as u8
    });
    segments
}

/// The peer answers `hello` with these capabilities.
fn answer(world: &World, hello: Header, capabilities: u32) {
    let mut out = Vec::new();
    let frg = ControlType::HelloAck as u8;
    Header { frg, sn: Sn(capabilities), una: Sn(0), wnd: 128, ..hello }.emit(&mut out);
    world.inject(addr(PEER), SERVER, &out);
}

/// Rules: W-140, W-141, W-142, W-143, W-144, W-151.
#[test]
fn datagram_vectors_match() {
    let text = include_str!("../../../tests/vectors/datagrams.json");
    let vectors: Vectors = serde_json::from_str(text).unwrap();
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let (_listener, server) = open(&mut world, vectors.conv);
    world.inject(addr(PEER), SERVER, &unhex(&vectors.hello));
    world.run_for(SECOND / 100);
    let mut answers = world.arrived(PEER);
    assert_eq!(answers.len(), 1);
    // The receiver alone chooses the window.
    answers[0][6..8].copy_from_slice(&128_u16.to_le_bytes());
    assert_eq!(answers[0], unhex(&vectors.hello_ack));

    let datagrams = server.datagrams();
    world.run_for(SECOND / 100);
    let hello = hellos(&world)[0];
    assert_eq!(hello.sn, Sn(3));
    answer(&world, hello, 3);
    world.run_for(SECOND / 100);
    for Vector { payload, packet } in &vectors.datagrams {
        let (payload, packet) = (unhex(payload), unhex(packet));
        world.inject(addr(PEER), SERVER, &packet);
        assert_eq!(world.finish(SECOND, datagrams.recv()).unwrap(), payload);
        datagrams.send(&payload).unwrap();
        world.run_for(SECOND / 100);
        let sent = world.arrived(PEER);
        let sent: Vec<_> =
            sent.iter().filter(|sent| fec_flag(sent) == FecFlag::OutOfBand).collect();
        assert_eq!(sent, [&packet]);
    }
}

/// Rule: W-146.
#[test]
fn datagrams_wait_for_the_answer_to_hello() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let (_listener, server) = open(&mut world, 7);
    let datagrams = server.datagrams();
    datagrams.send(b"waits").unwrap();
    // Further handles ask nothing.
    let _others = [server.datagrams(), datagrams.clone()];
    world.run_for(SECOND / 100);
    let arrived = world.arrived(PEER);
    assert_eq!(arrived.len(), 1, "a HELLO");
    let (hello, _) = Segments::new(&arrived[0]).next().unwrap();
    // The first answer is lost.
    world.run_for(SECOND);
    assert!(!hellos(&world).is_empty(), "it is retransmitted");
    answer(&world, hello, 2);
    world.run_for(SECOND / 100);
    let arrived = world.arrived(PEER);
    assert!(arrived.iter().any(|datagram| datagram.ends_with(b"waits")));
    assert_eq!(server.stats().out_of_band.sent, 1);
}

/// Rules: W-100, W-146.
#[test]
fn datagrams_to_a_peer_without_the_capability_are_refused() {
    for answers in [true, false] {
        let mut world = World::new(1, LinkConfig::delay(1_000));
        let (_listener, server) = open(&mut world, 7);
        let datagrams = server.datagrams();
        datagrams.send(b"waits").unwrap();
        world.run_for(SECOND / 20);
        let first = hellos(&world);
        let hello = first[0];
        if answers {
            // A version that has only repair symbols.
            answer(&world, hello, 1);
        }
        assert_eq!(datagrams.max_size(), Some(1_388));
        world.run_for(if answers { SECOND / 10 } else { SECOND * 10 });
        assert_eq!(datagrams.max_size(), None);
        assert_eq!(datagrams.send(b"x").unwrap_err().kind(), ErrorKind::Unsupported);
        let stats = server.stats();
        assert_eq!((stats.out_of_band.sent, stats.out_of_band.dropped), (0, 1));
        let asked = first.len() + hellos(&world).len();
        assert_eq!(asked, if answers { first.len() } else { 8 });
    }
}

#[test]
fn unread_datagrams_are_bounded_by_the_memory_of_the_endpoint() {
    let mut config = Config::new();
    config.limits.memory = 1 << 20;
    let Pair { mut world, client, server, .. } = Pair::new(&Config::new(), &config);
    let before = world.driver_of(SERVER).memory.used();
    let (to_server, datagrams) = (client.datagrams(), server.datagrams());
    world.run_for(SECOND);
    let mut most = 0;
    for _ in 0..100 {
        (0..20).for_each(|_| to_server.send(&[7; 1_388]).unwrap());
        world.run_for(SECOND / 100);
        most = most.max(world.driver_of(SERVER).memory.used() - before);
    }
    // A quarter of the free part of the half, as for any direction of a connection.
    assert!((32 << 10..=128 << 10).contains(&most), "{most} bytes");
    assert!(server.stats().out_of_band.dropped > 1_900);
    // The latest datagrams are left, and taking them frees the memory.
    while datagrams.try_recv().is_ok() {}
    world.run_for(MINUTE);
    assert!(world.driver_of(SERVER).memory.used() <= before + 2_000);
}

/// Rule: W-148.
#[test]
fn unrequested_datagrams_take_16_kib() {
    let Pair { mut world, client, server, .. } = Pair::plain();
    let before = world.driver_of(SERVER).memory.used();
    let to_server = client.datagrams();
    world.run_for(SECOND);
    (0..100).for_each(|_| to_server.send(&[7; 1_388]).unwrap());
    world.run_for(SECOND);
    let used = world.driver_of(SERVER).memory.used() - before;
    assert!((8 << 10..=20 << 10).contains(&used), "{used} bytes");
    assert_eq!(server.datagrams().try_recv().unwrap(), [7; 1_388][..]);
}

#[test]
fn unread_datagrams_count_after_the_connection_has_ended() {
    let Pair { mut world, client, server, listener: _listener, .. } = Pair::plain();
    let (to_server, datagrams) = (client.datagrams(), server.datagrams());
    world.run_for(SECOND);
    (0..100).for_each(|_| to_server.send(&[7; 1_388]).unwrap());
    world.run_for(SECOND);
    client.abort();
    world.run_for(MINUTE);
    assert!(server.error().is_some());
    let outlived = |world: &mut World| world.driver_of(SERVER).notifier.memory().outlived();
    assert!(outlived(&mut world) > 138_000);
    for _ in 0..50 {
        assert_eq!(datagrams.try_recv().unwrap().len(), 1_388);
    }
    assert!((69_000..100_000).contains(&outlived(&mut world)));
    drop(server);
    assert_eq!(outlived(&mut world), 0);
}

/// Rule: W-148.
#[test]
fn unread_datagrams_take_256_kib() {
    let Pair { mut world, client, server, .. } = Pair::plain();
    let (to_server, datagrams) = (client.datagrams(), server.datagrams());
    world.run_for(SECOND);
    for _ in 0..4 {
        (0..100).for_each(|_| to_server.send(&[7; 1_388]).unwrap());
        world.run_for(SECOND);
    }
    let bytes: usize = std::iter::from_fn(|| datagrams.try_recv().ok()).map(|one| one.len()).sum();
    assert!(((256 << 10) - 1_388..=256 << 10).contains(&bytes), "{bytes} bytes");
}

/// Rules: W-149, W-150.
#[test]
fn datagrams_are_no_sign_of_life_and_draw_a_ping_a_second() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let (listener, stream) = open(&mut world, 7);
    let mut packet = Vec::new();
    crate::fec::oob::write(&mut packet, 7, b"recorded");
    let mut sent = Vec::new();
    // The idle timeout is a minute.
    for _ in 0..650 {
        world.inject(addr(PEER), SERVER, &packet);
        world.run_for(SECOND / 10);
        sent.push(segments(&world));
    }
    assert_eq!(stream.error(), Some(ConnectionError::IdleTimeout));
    assert_eq!(listener.stats().connections.passive_opens, 1);
    for second in sent.chunks(10) {
        let all: Vec<_> = second.iter().flatten().collect();
        assert!(all.len() <= 1, "{all:?}");
        assert!(all.iter().all(|header| (header.command, header.len) == (Command::Push, 0)));
    }
    assert!(sent.iter().flatten().count() > 10, "the peer is asked");
}
