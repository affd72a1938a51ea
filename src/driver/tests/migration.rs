//! Connection migration (RFC 9000 9): datagrams of a connection from another address.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{MINUTE, SECOND, SERVER, answer, pattern, push};
use super::sim_world::{World, addr};
use crate::config::{Config, Migration};
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::driver::connection::ApparentMigration;
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;
use crate::util::path::{LocalIp, Path};

const HOME: u8 = 9;
const AWAY: u8 = 10;

/// A connection with a validated, simulated peer.
fn validated(migration: Migration) -> (World, KcpListener, KcpStream) {
    let mut config = Config::new();
    config.migration = migration;
    validated_with(&config)
}

fn validated_with(config: &Config) -> (World, KcpListener, KcpStream) {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, config);
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
    assert_eq!(listener.stats().connections.unvalidated, 0);
    (world, listener, stream)
}

#[test]
fn migration_follows_a_path_response_from_the_new_address() {
    let (mut world, listener, mut stream) = validated(Migration::Authenticated);
    for _ in 0..5 {
        // Many datagrams cause one PATH_CHALLENGE a second.
        world.inject(addr(AWAY), SERVER, &push(7, 1, b"moved"));
        world.run_for(SECOND / 50);
    }
    let challenges = world.arrived(AWAY);
    assert_eq!((challenges.len(), stream.peer_addr().unwrap()), (1, addr(HOME)));
    let challenge = Header::parse(&challenges[0]).unwrap();
    assert_eq!(
        (challenge.command, challenge.len, challenge.frg),
        (Command::Push, 0, CONTROL_CAPABLE)
    );
    // The right response from another address, and a wrong one from the new address, are ignored.
    let right = answer(&challenges[0], 0);
    let mut wrong = right.clone();
    wrong[8] ^= 1;
    world.inject(addr(HOME), SERVER, &right);
    world.inject(addr(AWAY), SERVER, &wrong);
    world.run_for(SECOND / 10);
    assert_eq!(
        (stream.peer_addr().unwrap(), listener.stats().connections.migrations),
        (addr(HOME), 0)
    );
    world.inject(addr(AWAY), SERVER, &right);
    world.run_for(SECOND / 10);
    assert_eq!(
        (stream.peer_addr().unwrap(), listener.stats().connections.migrations),
        (addr(AWAY), 1)
    );
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
    assert_eq!(listener.stats().connections.current, 1);
}

#[test]
fn migration_to_a_source_at_its_limit_is_refused() {
    let mut config = Config::new();
    config.migration = Migration::Authenticated;
    config.limits.max_per_source = Some(1);
    let (mut world, listener, mut stream) = validated_with(&config);
    // The source of the new address has its connection.
    world.inject(addr(AWAY), SERVER, &push(8, 0, b"there"));
    let (_there, _) = world.finish(SECOND, listener.accept()).unwrap();
    world.run_for(SECOND / 10);
    for datagram in world.arrived(AWAY) {
        world.inject(addr(AWAY), SERVER, &answer(&datagram, 0));
    }
    world.run_for(SECOND);
    world.arrived(AWAY);
    let refused = listener.stats().refused.max_per_source;
    world.inject(addr(AWAY), SERVER, &push(7, 1, b"moved"));
    world.run_for(SECOND / 10);
    let arrived = world.arrived(AWAY);
    let challenge = arrived.iter().find(|d| Header::parse(d).unwrap().conv == 7).unwrap();
    world.inject(addr(AWAY), SERVER, &answer(challenge, 0));
    world.run_for(SECOND / 10);
    let stats = listener.stats();
    assert_eq!((stream.peer_addr().unwrap(), stats.connections.migrations), (addr(HOME), 0));
    assert_eq!((stats.refused.max_per_source - refused, stats.connections.current), (1, 2));
    // It goes on at its old address.
    world.inject(addr(HOME), SERVER, &push(7, 1, b" again"));
    let mut data = [0; 11];
    world.finish(SECOND, stream.read_exact(&mut data)).unwrap();
    assert_eq!(&data, b"hello again");
    // It may move within its source, which is at the limit too.
    let [home, away] = [HOME, AWAY].map(|host| addr(host).ip());
    let driver = world.driver_of(SERVER);
    assert_eq!(
        [home, away].map(|to| driver.admission.may_move(home, to, &driver.config.limits)),
        [true, false]
    );
}

#[test]
fn local_ip_that_the_host_has_lost_is_left_to_the_system() {
    let (mut world, _listener, _client) = validated(Migration::Off);
    let local = LocalIp::of_destination([192, 0, 2, 1].into());
    let driver = world.driver_of(SERVER);
    let conn = driver.routing.conns.iter_mut().next().unwrap().1;
    conn.set_local_ip(local);
    let path = conn.path();
    let others = [Path { peer: addr(99), ..path }, Path::to(path.peer)];
    for (gone, expected) in [(others[0], path), (others[1], path), (path, Path::to(path.peer))] {
        driver.routing.on_source_gone(gone);
        let conn = driver.routing.conns.iter().next().unwrap().1;
        assert_eq!((conn.path(), conn.shared().path()), (expected, expected));
    }
    // Any datagram that is no replay sets it again.
    let conn = driver.routing.conns.iter_mut().next().unwrap().1;
    let judged =
        [push(7, 1, b"new"), push(7, 0, b"hello")].map(|d| conn.apparent_migration(local, &d));
    let replay = ApparentMigration::ValidatePath { is_new: false };
    assert_eq!(judged, [Some(ApparentMigration::Accept), Some(replay)]);
}

#[test]
fn migration_with_a_long_round_trip_succeeds() {
    let (mut world, listener, stream) = validated(Migration::Authenticated);
    world.set_path(LinkConfig::delay(600_000));
    for _ in 0..50 {
        world.inject(addr(AWAY), SERVER, &push(7, 1, b"moved"));
        world.run_for(SECOND / 10);
        for datagram in world.arrived(AWAY) {
            world.inject(addr(AWAY), SERVER, &answer(&datagram, 0));
        }
    }
    assert_eq!(
        (stream.peer_addr().unwrap(), listener.stats().connections.migrations),
        (addr(AWAY), 1)
    );
}

#[test]
fn migration_off_drops_datagrams_of_other_addresses() {
    let (mut world, listener, stream) = validated(Migration::Off);
    world.inject(addr(AWAY), SERVER, &push(7, 1, b"moved"));
    world.run_for(SECOND / 10);
    assert!(world.arrived(AWAY).is_empty());
    assert_eq!(
        (stream.peer_addr().unwrap(), listener.stats().dropped.no_connection),
        (addr(HOME), 1)
    );
}

#[test]
fn migration_before_first_ack_does_not_accept_a_new_connection() {
    let (mut world, listener, stream) = validated(Migration::Authenticated);
    world.inject(addr(AWAY), SERVER, &push(7, 0, b"hello"));
    world.run_for(SECOND / 10);
    let challenges = world.arrived(AWAY);
    world.inject(addr(AWAY), SERVER, &answer(&challenges[0], 0));
    world.run_for(SECOND / 10);
    assert_eq!(stream.peer_addr().unwrap(), addr(AWAY));
    assert_eq!(listener.stats().connections.passive_opens, 1);
    // Another initial segment under that conversation id opens another connection once the migrated peer has
    // been silent for ten seconds.
    world.inject(addr(HOME), SERVER, &push(7, 0, b"another peer"));
    world.run_for(MINUTE / 4);
    assert_eq!(
        (listener.stats().connections.passive_opens, listener.stats().refused.conv_in_use),
        (1, 1)
    );
    world.inject(addr(HOME), SERVER, &push(7, 0, b"another peer"));
    world.run_for(MINUTE / 10);
    assert_eq!(listener.stats().connections.passive_opens, 2);
}

/// A connection whose peer has been silent long enough for another address to use its `conv`. `crowded`:
/// further peers are answered without state.
fn silent(crowded: bool) -> (World, KcpListener, [KcpStream; 2]) {
    let mut config = Config::new();
    config.migration = Migration::Authenticated;
    config.limits.max_unvalidated = if crowded { 1 } else { 100 };
    let (mut world, listener, stream) = validated_with(&config);
    world.run_for(11 * SECOND);
    world.inject(addr(77), SERVER, &push(1, 0, b"nobody"));
    let (stuck, _) = world.finish(SECOND, listener.accept()).unwrap();
    (world, listener, [stream, stuck])
}

#[test]
fn migration_leaves_the_answer_of_a_retry_to_the_new_connection() {
    for in_one_datagram in [false, true] {
        let (mut world, listener, _streams) = silent(true);
        world.inject(addr(AWAY), SERVER, &push(7, 0, b"another"));
        world.run_for(SECOND / 10);
        let retry = world.arrived(AWAY);
        assert_eq!((retry.len(), listener.stats().retry.sent), (1, 1));
        let mut datagram = answer(&retry[0], 0);
        if in_one_datagram {
            datagram.extend(push(7, 0, b"another"));
        }
        world.inject(addr(AWAY), SERVER, &datagram);
        world.run_for(SECOND / 10);
        world.inject(addr(AWAY), SERVER, &push(7, 0, b"another"));
        let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
        assert_eq!(world.finish(SECOND, stream.read_chunk()).unwrap(), "another");
        assert_eq!(
            (listener.stats().retry.answered, listener.stats().connections.migrations),
            (1, 0)
        );
    }
}

#[test]
fn migration_leaves_data_before_its_initial_segment_to_the_new_connection() {
    let (mut world, listener, _streams) = silent(false);
    world.inject(addr(AWAY), SERVER, &push(7, 1, b"second"));
    world.run_for(SECOND / 10);
    world.inject(addr(AWAY), SERVER, &push(7, 0, b"first"));
    let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    world.inject(addr(AWAY), SERVER, &push(7, 1, b"second"));
    let mut data = [0; 11];
    world.finish(SECOND / 10, stream.read_exact(&mut data)).unwrap();
    assert_eq!(&data, b"firstsecond");
    assert_eq!(listener.stats().connections.migrations, 0);
}
