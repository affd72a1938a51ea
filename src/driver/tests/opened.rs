//! Conversations that were opened without data, and the first data that follows.

use std::time::Duration;

use super::pair::{SECOND, SERVER, answer, push};
use super::world::{World, addr};
use crate::config::Config;
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::core::seq::{Sn, Ts};
use crate::core::tests::link::LinkConfig;
use crate::listener::KcpListener;
use crate::stream::KcpStream;

const CONV: u32 = 7;
const PEER: u8 = 9;

/// A listener with a conversation that a peer, which the test plays, opened without data.
fn opened() -> (World, KcpListener, KcpStream) {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    world.port(PEER);
    let (command, frg, ts, sn, una) =
        (Command::WindowProbe, CONTROL_CAPABLE, Ts(5), Sn(1 << 30), Sn(0));
    let mut opening = Vec::new();
    Header { conv: CONV, command, frg, wnd: 128, ts, sn, una, len: 0 }.emit(&mut opening);
    world.inject(addr(PEER), SERVER, &opening);
    let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    (world, listener, stream)
}

/// Answers whatever comes, as a peer that has received nothing but questions.
fn answer_all(world: &mut World) {
    for _ in 0..100 {
        world.run_for(Duration::from_millis(50));
        for datagram in world.arrived(PEER) {
            world.inject(addr(PEER), SERVER, &answer(&datagram, 0));
        }
    }
}

#[test]
fn first_data_behind_an_acknowledgement_and_again_is_no_restart() {
    let (mut world, listener, mut stream) = opened();
    world.run_for(Duration::from_millis(50));
    let asked = world.arrived(PEER);
    let mut datagram: Vec<u8> = asked.iter().flat_map(|asked| answer(asked, 0)).collect();
    assert!(!datagram.is_empty(), "whoever opens is asked for a proof");
    datagram.extend(push(CONV, 0, b"first"));
    world.inject(addr(PEER), SERVER, &datagram);
    assert_eq!(world.finish(SECOND, stream.read_chunk()).unwrap(), "first");

    // Its acknowledgement was lost, so it comes again, now by itself.
    world.inject(addr(PEER), SERVER, &push(CONV, 0, b"first"));
    answer_all(&mut world);
    assert_eq!((stream.error(), listener.stats().restart_probes), (None, 0));

    // Other first data is what somebody sends who begins anew.
    world.inject(addr(PEER), SERVER, &push(CONV, 0, b"other"));
    answer_all(&mut world);
    assert_eq!((listener.stats().restart_probes, stream.error()), (1, None));
    // It repeats it, as nothing acknowledged it.
    world.inject(addr(PEER), SERVER, &push(CONV, 0, b"other"));
    answer_all(&mut world);
    assert_eq!(stream.error(), Some(crate::ConnectionError::PeerRestarted));
}
