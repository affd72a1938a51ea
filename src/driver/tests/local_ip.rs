//! The local IP of connections on a host with several addresses: path validation (RFC 9000 8.2) from another
//! local IP, in virtual time.

use std::net::{IpAddr, SocketAddr};

use super::fixtures::{SECOND, SERVER, answer, push};
use super::sim_world::{World, addr};
use crate::config::{Config, Migration};
use crate::core::segment::{Command, Segments};
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;
use crate::util::path::{LocalIp, Path};

const HOME: u8 = 9;
const AWAY: u8 = 10;

/// An address of the server.
fn at(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, last], addr(SERVER).port()))
}

fn local_ip(world: &mut World) -> Option<IpAddr> {
    let conn = world.driver_of(SERVER).routing.conns.iter().next().unwrap().1;
    conn.path().local.get()
}

/// The pings that the server has sent to `host` since the last call, with their source.
fn pings(world: &World, host: u8) -> Vec<(SocketAddr, Vec<u8>)> {
    let is_ping = |datagram: &[u8]| {
        let mut segments = Segments::new(datagram);
        segments.any(|(header, _)| (header.command, header.len) == (Command::Push, 0))
    };
    let sent = world.log().into_iter().filter(|sent| sent.to == addr(host));
    let sent = sent.filter(|sent| is_ping(&sent.datagram));
    sent.map(|sent| (sent.from, sent.datagram)).collect()
}

/// A server with the addresses 1 to 6, and a connection that was opened at 2 with a validated, simulated
/// peer.
fn validated() -> (World, KcpListener, KcpStream) {
    let mut config = Config::new();
    config.migration = Some(Migration::Authenticated);
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &config);
    (1..=6).for_each(|last| world.add_address(SERVER, at(last)));
    world.inject_to(addr(HOME), at(2), &push(7, 0, b"hello"));
    world.log();
    let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    world.run_for(SECOND / 10);
    for (from, ping) in pings(&world, HOME) {
        assert_eq!(from, at(2));
        world.inject_to(addr(HOME), from, &answer(&ping, 0));
    }
    world.run_for(SECOND);
    assert_eq!(listener.stats().connections.unvalidated, 0);
    world.log();
    (world, listener, stream)
}

/// Rule: W-32.
#[test]
fn path_challenge_leaves_from_another_local_ip_once_a_second_at_most() {
    let (mut world, _listener, _stream) = validated();
    for _ in 0..25 {
        world.inject_to(addr(HOME), at(5), &push(7, 0, b"hello"));
        world.inject_to(addr(HOME), at(6), &push(7, 0, b"hello"));
        world.run_for(SECOND / 10);
        assert_eq!(local_ip(&mut world), Some(at(2).ip()));
    }
    let challenges = pings(&world, HOME);
    let of = |last| challenges.iter().filter(|(from, _)| *from == at(last)).count();
    assert_eq!([1, 2, 3, 4, 5, 6].map(of), [0, 0, 0, 0, 3, 3]);
    let (from, challenge) = challenges.last().unwrap();
    world.inject_to(addr(HOME), *from, &answer(challenge, 0));
    world.run_for(SECOND / 10);
    assert_eq!(local_ip(&mut world), Some(from.ip()));
}

#[test]
fn migration_takes_the_local_ip_that_the_response_proves() {
    let (mut world, listener, stream) = validated();
    let moved = push(7, 1, b"moved");
    world.inject_to(addr(AWAY), at(3), &moved);
    world.inject_to(addr(AWAY), at(4), &moved);
    world.run_for(SECOND / 10);
    let challenges = pings(&world, AWAY);
    let from: Vec<_> = challenges.iter().map(|(from, _)| *from).collect();
    assert_eq!(from, [at(3), at(4)]);
    assert_ne!(challenges[0].1, challenges[1].1);
    // A copy of the response that arrives at another address first proves nothing about that address.
    let response = answer(&challenges[0].1, 0);
    for last in [4, 5] {
        world.inject_to(addr(AWAY), at(last), &response);
        world.run_for(SECOND / 10);
        assert_eq!(listener.stats().connections.migrations, 0);
    }
    world.inject_to(addr(AWAY), at(3), &response);
    world.run_for(SECOND / 10);
    assert_eq!(
        (listener.stats().connections.migrations, stream.peer_addr().unwrap()),
        (1, addr(AWAY))
    );
    assert_eq!(local_ip(&mut world), Some(at(3).ip()));
}

#[test]
fn local_ip_that_is_unknown_is_not_taken_from_a_replay() {
    let (mut world, _listener, _stream) = validated();
    let local = Path { peer: addr(HOME), local: LocalIp::of_destination(at(2).ip()) };
    let now = world.now();
    world.driver_of(SERVER).routing.on_source_gone(now, local);
    assert_eq!(local_ip(&mut world), None);
    world.inject_to(addr(HOME), at(4), &push(7, 0, b"hello"));
    world.run_for(SECOND / 10);
    let challenges = pings(&world, HOME);
    assert_eq!((challenges.len(), challenges[0].0), (1, at(4)));
    assert_eq!(local_ip(&mut world), None);
    world.inject_to(addr(HOME), at(3), &push(7, 1, b"new"));
    world.run_for(SECOND / 10);
    assert_eq!(local_ip(&mut world), Some(at(3).ip()));
    // An earlier copy may have arrived there: datagrams to another address are challenged.
    world.inject_to(addr(HOME), at(2), &push(7, 2, b"newer"));
    world.run_for(SECOND / 10);
    assert_eq!(local_ip(&mut world), Some(at(3).ip()));
    let challenges = pings(&world, HOME);
    assert_eq!((challenges.len(), challenges[0].0), (1, at(2)));
    world.inject_to(addr(HOME), at(2), &answer(&challenges[0].1, 0));
    world.run_for(SECOND / 10);
    assert_eq!(local_ip(&mut world), Some(at(2).ip()));
}
