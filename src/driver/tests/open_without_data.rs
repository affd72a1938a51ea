//! Connections opened without data, as `connect` does, and the first data after it.

use std::time::Duration;

use super::fixtures::{self, SECOND, SERVER, push};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::segment::{CONTROL_CAPABLE, Command, HEADER_LEN, Header, Segments};
use crate::core::seq::{Sn, Ts};
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;

const CONV: u32 = 7;
const PEER: u8 = 9;

/// A listener with a connection that a simulated peer has opened without data.
fn opened() -> (World, KcpListener, KcpStream) {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    world.port(PEER);
    let (command, frg, ts, sn, una) =
        (Command::WindowProbe, CONTROL_CAPABLE, Ts(5), Sn(1 << 30), Sn(0));
    let mut initial = Vec::new();
    Header { conv: CONV, command, frg, wnd: 128, ts, sn, una, len: 0 }.emit(&mut initial);
    world.inject(addr(PEER), SERVER, &initial);
    let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    (world, listener, stream)
}

/// The answers of a peer with the CONTROL capability, which its initial segment has.
fn answer(datagram: &[u8], una: u32) -> Vec<u8> {
    let mut answers = fixtures::answer(datagram, una);
    answers.chunks_mut(HEADER_LEN).for_each(|segment| segment[5] = CONTROL_CAPABLE);
    answers
}

/// Answers all datagrams as a peer that has received no data.
fn answer_all(world: &mut World) {
    for _ in 0..100 {
        world.run_for(Duration::from_millis(50));
        for datagram in world.arrived(PEER) {
            world.inject(addr(PEER), SERVER, &answer(&datagram, 0));
        }
    }
}

/// Rule: P-48.
#[test]
fn first_data_behind_an_ack_and_its_retransmission_are_no_restart() {
    let (mut world, listener, mut stream) = opened();
    world.run_for(Duration::from_millis(50));
    let pings = world.arrived(PEER);
    let mut datagram: Vec<u8> = pings.iter().flat_map(|pings| answer(pings, 0)).collect();
    assert!(!datagram.is_empty(), "an unvalidated peer is pinged");
    datagram.extend(push(CONV, 0, b"first"));
    world.inject(addr(PEER), SERVER, &datagram);
    assert_eq!(world.finish(SECOND, stream.read_chunk()).unwrap(), "first");

    // The ACK was lost, so the segment is retransmitted, now alone in a datagram.
    world.inject(addr(PEER), SERVER, &push(CONV, 0, b"first"));
    answer_all(&mut world);
    assert_eq!((stream.error(), listener.stats().connections.restart_probes), (None, 0));

    // A restarted peer sends other first data.
    world.inject(addr(PEER), SERVER, &push(CONV, 0, b"other"));
    answer_all(&mut world);
    assert_eq!((listener.stats().connections.restart_probes, stream.error()), (1, None));
    // The segment was not acknowledged, so the peer retransmits it.
    world.inject(addr(PEER), SERVER, &push(CONV, 0, b"other"));
    answer_all(&mut world);
    assert_eq!(stream.error(), Some(crate::ConnectionError::PeerRestarted));
}

/// Rule: W-158.
#[test]
fn initial_segment_without_data_is_answered_with_a_window_update_and_a_ping() {
    let (mut world, _listener, _stream) = opened();
    world.run_for(Duration::from_millis(50));
    let arrived = world.arrived(PEER);
    let commands: Vec<_> =
        Segments::new(&arrived[0]).map(|(header, _)| (header.command, header.len)).collect();
    assert_eq!(commands, [(Command::WindowUpdate, 0), (Command::Push, 0)]);
}
