//! Peers that turn up at another address.

use tokio::io::AsyncWriteExt;

use super::pair::{MINUTE, SECOND, SERVER, answer, pattern, push};
use super::world::{World, addr};
use crate::config::{Config, Migration};
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::core::tests::link::LinkConfig;
use crate::listener::KcpListener;
use crate::stream::KcpStream;

const HOME: u8 = 9;
const AWAY: u8 = 10;

/// A conversation with a hand-played peer that has proved to be there.
fn settled(migration: Migration) -> (World, KcpListener, KcpStream) {
    let mut config = Config::new();
    config.migration = migration;
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &config);
    world.port(HOME);
    world.port(AWAY);
    world.inject(addr(HOME), SERVER, &push(7, 0, b"hello"));
    let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    world.run_for(SECOND / 10);
    for datagram in world.arrived(HOME) {
        world.inject(addr(HOME), SERVER, &answer(&datagram, 0));
    }
    world.run_for(SECOND);
    world.arrived(HOME);
    assert_eq!(listener.stats().unvalidated_connections, 0);
    (world, listener, stream)
}

#[test]
fn a_peer_is_followed_once_it_answers_from_where_it_says_it_is() {
    let (mut world, listener, mut stream) = settled(Migration::Authenticated);
    for _ in 0..5 {
        // Many datagrams draw one question a second.
        world.inject(addr(AWAY), SERVER, &push(7, 1, b"moved"));
        world.run_for(SECOND / 50);
    }
    let asked = world.arrived(AWAY);
    assert_eq!((asked.len(), stream.peer_addr().unwrap()), (1, addr(HOME)));
    let probe = Header::parse(&asked[0]).unwrap();
    assert_eq!((probe.command, probe.len, probe.frg), (Command::Push, 0, CONTROL_CAPABLE));
    // The right answer from elsewhere, and a wrong one from there, count for nothing.
    let right = answer(&asked[0], 0);
    let mut wrong = right.clone();
    wrong[8] ^= 1;
    world.inject(addr(HOME), SERVER, &right);
    world.inject(addr(AWAY), SERVER, &wrong);
    world.run_for(SECOND / 10);
    assert_eq!((stream.peer_addr().unwrap(), listener.stats().migrations), (addr(HOME), 0));
    world.inject(addr(AWAY), SERVER, &right);
    world.run_for(SECOND / 10);
    assert_eq!((stream.peer_addr().unwrap(), listener.stats().migrations), (addr(AWAY), 1));
    world.arrived(HOME);
    world.inject(addr(AWAY), SERVER, &push(7, 1, b" again"));
    world.finish(SECOND, async {
        assert_eq!(stream.read_chunk().await.unwrap(), "hello");
        assert_eq!(stream.read_chunk().await.unwrap(), " again");
        stream.write_all(&pattern(100)).await.unwrap();
    });
    world.run_for(SECOND / 10);
    assert!(world.arrived(AWAY).iter().any(|d| d.len() > 100));
    assert!(world.arrived(HOME).is_empty());
    assert_eq!(listener.stats().current_connections, 1);
}

#[test]
fn a_peer_far_away_is_followed_too() {
    let (mut world, listener, stream) = settled(Migration::Authenticated);
    world.set_path(LinkConfig::delay(600_000));
    for _ in 0..50 {
        world.inject(addr(AWAY), SERVER, &push(7, 1, b"moved"));
        world.run_for(SECOND / 10);
        for datagram in world.arrived(AWAY) {
            world.inject(addr(AWAY), SERVER, &answer(&datagram, 0));
        }
    }
    assert_eq!((stream.peer_addr().unwrap(), listener.stats().migrations), (addr(AWAY), 1));
}

#[test]
fn nobody_is_followed_who_is_not_asked_to_be() {
    let (mut world, listener, stream) = settled(Migration::Off);
    world.inject(addr(AWAY), SERVER, &push(7, 1, b"moved"));
    world.run_for(SECOND / 10);
    assert!(world.arrived(AWAY).is_empty());
    assert_eq!(
        (stream.peer_addr().unwrap(), listener.stats().dropped_no_connection),
        (addr(HOME), 1)
    );
}

#[test]
fn who_moves_before_anything_was_acknowledged_opens_nothing_new() {
    let (mut world, listener, stream) = settled(Migration::Authenticated);
    world.inject(addr(AWAY), SERVER, &push(7, 0, b"hello"));
    world.run_for(SECOND / 10);
    let asked = world.arrived(AWAY);
    world.inject(addr(AWAY), SERVER, &answer(&asked[0], 0));
    world.run_for(SECOND / 10);
    assert_eq!(stream.peer_addr().unwrap(), addr(AWAY));
    assert_eq!(listener.stats().passive_opens, 1);
    // Another opening under that id is another conversation.
    world.inject(addr(HOME), SERVER, &push(7, 0, b"someone else"));
    world.run_for(MINUTE / 10);
    assert_eq!(listener.stats().passive_opens, 2);
}
