//! Connection migration (RFC 9000 9): datagrams of a connection from another address.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{
    CLIENT, MINUTE, Pair, SECOND, SERVER, answer, micros, pattern, push, read_pattern,
};
use super::sim_world::{World, addr};
use crate::config::{Config, KeepaliveInterval, Migration};
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::crypto::{Algorithm, Cipher};
use crate::driver::connection::ApparentMigration;
use crate::error::{ConnectionError, TimeoutCause};
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;
use crate::testkit::seeds::Seeds;
use crate::util::path::{LocalIp, Path};

const HOME: u8 = 9;
const AWAY: u8 = 10;

/// A connection with a validated, simulated peer.
fn validated(migration: Migration) -> (World, KcpListener, KcpStream) {
    let mut config = Config::new();
    config.migration = Some(migration);
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

/// Rules: W-30, P-34.
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

/// The first data of a connection looks like the initial segment of another one.
#[test]
fn client_that_moves_before_its_first_data_goes_on_at_its_new_address() {
    // Unannounced, the client pings after a second without an answer.
    for (announces, limit) in [(true, SECOND / 10), (false, SECOND * 5 / 4)] {
        let mut world = World::new(1, LinkConfig::delay(10_000));
        let listener = world.listener(SERVER, &aead());
        let endpoint = world.endpoint(CLIENT, &aead());
        let (mut client, mut server) = world.finish(SECOND, async {
            let client = endpoint.connect(addr(SERVER)).await.unwrap();
            (client, listener.accept().await.unwrap().0)
        });
        world.run_for(SECOND);
        world.move_to(CLIENT, addr(AWAY));
        if announces {
            client.network_changed();
        }
        let began = world.elapsed();
        world.finish(MINUTE, async {
            client.write_all(&pattern(10_000)).await.unwrap();
            read_pattern(&mut server, 10_000).await;
        });
        let passed = Duration::from_micros(world.elapsed() - began);
        assert!(passed <= limit, "announced: {announces}, {passed:?}");
        assert_eq!(server.peer_addr().unwrap(), addr(AWAY));
        assert_eq!(listener.stats().connections.current, 1);
    }
}

#[test]
fn migration_to_a_source_at_its_limit_is_refused() {
    let mut config = Config::new();
    config.migration = Some(Migration::Authenticated);
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
    let now = world.now();
    let driver = world.driver_of(SERVER);
    let conn = driver.routing.conns.iter_mut().next().unwrap().1;
    conn.set_local_ip(local);
    let path = conn.path();
    let others = [Path { peer: addr(99), ..path }, Path::to(path.peer)];
    for (gone, expected) in [(others[0], path), (others[1], path), (path, Path::to(path.peer))] {
        driver.routing.on_source_gone(now, gone);
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
    config.migration = Some(Migration::Authenticated);
    config.limits.max_unvalidated = if crowded { 1 } else { 100 };
    let (mut world, listener, stream) = validated_with(&config);
    world.run_for(11 * SECOND);
    world.inject(addr(77), SERVER, &push(1, 0, b"nobody"));
    let (stuck, _) = world.finish(SECOND, listener.accept()).unwrap();
    (world, listener, [stream, stuck])
}

/// Rule: W-44.
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

pub(super) fn aead() -> Config {
    Config::new().cipher(Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap())
}

/// Messages of 100 bytes each 10 ms for `time`, from the client, the server or both (`flows`). Returns when
/// each arrived at the other end, in microseconds.
fn messages(
    pair: &mut Pair,
    flows: [bool; 2],
    time: Duration,
    mut moves: Vec<(u64, Move)>,
) -> [Vec<u64>; 2] {
    const LEN: usize = 100;
    let start = pair.world.elapsed();
    let (mut written, mut got, mut arrivals) = (0, [0; 2], [Vec::new(), Vec::new()]);
    moves.reverse();
    loop {
        let Pair { world, client, server, .. } = pair;
        let passed = world.elapsed() - start;
        let ends = [(&*client, &*server), (&*server, &*client)];
        if passed < micros(time) && passed / 10_000 >= written {
            written += 1;
            for ((from, _), flows) in ends.iter().zip(flows) {
                assert!(!flows || from.try_write(&[7; LEN]).unwrap() == LEN);
            }
        }
        if moves.last().is_some_and(|(at, _)| passed >= *at) {
            let (_, to) = moves.pop().unwrap();
            world.move_to(CLIENT, to.address);
            if to.is_announced {
                client.network_changed();
            }
        }
        world.run_for(Duration::from_millis(1));
        for (way, (_, to)) in ends.iter().enumerate() {
            let mut buf = [0; 8_192];
            while let Ok(bytes) = to.try_read(&mut buf) {
                got[way] += bytes;
                arrivals[way].push(world.elapsed());
            }
        }
        if passed > micros(time + SECOND) {
            break;
        }
    }
    let written = LEN * usize::try_from(written).unwrap();
    assert_eq!(got, flows.map(|flows| if flows { written } else { 0 }), "each byte exactly once");
    arrivals
}

/// The first `count` seeds; `KCP_TEST_SEED` selects one, `KCP_TEST_SEEDS` sets their number. Prints each.
pub(super) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let seeds = Seeds::or(0..count).iter();
    seeds.inspect(|seed| println!("KCP_TEST_SEED={seed} cargo test --lib driver::tests"))
}

/// A change of the client's address.
struct Move {
    address: SocketAddr,
    is_announced: bool,
}

fn longest_gap(arrivals: &[u64]) -> u64 {
    arrivals.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000).max().unwrap_or(0)
}

/// Messages each 10 ms at an RTT of 50 ms go on after a change of the client's address at any moment.
/// Rule: P-32.
#[test]
fn migration_with_the_defaults_of_an_aead_interrupts_messages_for_a_moment() {
    // The challenge takes a round trip; the first message of the server leaves after it, and takes as long
    // again. A client that only receives cannot know by itself.
    let cases = [
        (true, [true, false], [70, 0]),
        (true, [false, true], [0, 112]),
        (true, [true, true], [70, 112]),
        (false, [true, false], [150, 0]),
        (false, [true, true], [150, 150]),
    ];
    for (is_announced, flows, limits) in cases {
        let mut gaps = [Vec::new(), Vec::new()];
        for seed in seeds(20) {
            let mut rng = Rng::new(seed);
            let world = World::new(seed, LinkConfig::delay(25_000));
            let mut pair = Pair::on(world, &aead(), &aead());
            // Another port, or another host.
            let host = rng.pick(&[CLIENT, 77]);
            let address = SocketAddr::new(addr(host).ip(), 50_000);
            let moves = vec![(1_000_000 + rng.below(1_000_000), Move { address, is_announced })];
            let arrivals = messages(&mut pair, flows, 3 * SECOND, moves);
            assert_eq!(pair.listener.stats().connections.migrations, 1);
            assert_eq!(pair.server.peer_addr().unwrap(), address);
            for way in 0..2 {
                gaps[way].push(longest_gap(&arrivals[way]));
            }
        }
        println!("announced {is_announced}, flows {flows:?}: gaps in ms {gaps:?}");
        for way in 0..2 {
            assert!(gaps[way].iter().all(|gap| *gap <= limits[way]), "{gaps:?} above {limits:?}");
        }
    }
}

#[test]
fn migration_follows_a_client_that_moves_every_100_ms() {
    for seed in seeds(10) {
        let world = World::new(seed, LinkConfig::delay(10_000));
        let mut pair = Pair::on(world, &aead(), &aead());
        let address = |port: u64| SocketAddr::new(addr(CLIENT).ip(), 50_000 + port as u16);
        let moved = |port| Move { address: address(port), is_announced: port % 2 == 0 };
        let moves = (0..10).map(|i| (500_000 + i * 100_000, moved(i))).collect();
        messages(&mut pair, [true, true], 3 * SECOND, moves);
        assert_eq!(pair.server.peer_addr().unwrap(), address(9));
    }
}

/// Rule: P-32.
#[test]
fn migration_without_an_aead_is_off_and_the_error_says_why() {
    let keyed = Config::new().cipher(Cipher::new(Algorithm::Aes128, &[7; 16]).unwrap());
    for config in [Config::new(), keyed] {
        let mut pair = Pair::new(&config, &config);
        pair.world.move_to(CLIENT, SocketAddr::new(addr(CLIENT).ip(), 50_000));
        pair.client.network_changed();
        pair.client.try_write(b"lost").unwrap();
        pair.world.run_for(2 * MINUTE);
        let error = pair.client.error();
        assert_eq!(error, Some(ConnectionError::DeadPeer(TimeoutCause::NetworkChanged)));
        assert!(error.unwrap().to_string().contains("AEAD"), "{error:?}");
        assert_eq!(pair.listener.stats().connections.migrations, 0);
    }
}

#[test]
fn network_changed_without_a_change_costs_two_datagrams_and_no_byte() {
    let mut pair = Pair::new(&aead(), &aead());
    pair.client.try_write(b"in flight").unwrap();
    pair.world.run_for(Duration::from_millis(1));
    pair.world.log();
    for _ in 0..10 {
        pair.client.network_changed();
    }
    pair.endpoint.network_changed();
    pair.world.run_for(Duration::from_millis(1));
    let sent = pair.world.log().iter().filter(|sent| sent.from == addr(CLIENT)).count();
    assert!((1..=2).contains(&sent), "{sent} datagrams");
    pair.world.run_for(SECOND);
    let mut buf = [0; 100];
    assert_eq!(pair.server.try_read(&mut buf).unwrap(), 9);
    assert_eq!(pair.listener.stats().connections.migrations, 0);
}

#[test]
fn path_response_of_another_connection_with_this_id_validates_nothing() {
    let (mut world, listener, stream) = validated(Migration::Authenticated);
    world.inject(addr(AWAY), SERVER, &push(7, 1, b"moved"));
    world.run_for(SECOND / 10);
    let challenge = world.arrived(AWAY).remove(0);
    // It acknowledges data that this side has not sent, or less than was acknowledged.
    for una in [5, u32::MAX] {
        world.inject(addr(AWAY), SERVER, &answer(&challenge, una));
        world.run_for(SECOND / 100);
        assert_eq!(listener.stats().connections.migrations, 0);
    }
    world.inject(addr(AWAY), SERVER, &answer(&challenge, 0));
    world.run_for(SECOND / 100);
    assert_eq!(listener.stats().connections.migrations, 1);
    assert_eq!(stream.peer_addr().unwrap(), addr(AWAY));
}

#[test]
fn migration_does_not_challenge_an_address_that_opens_with_an_id_in_use() {
    let (mut world, listener, stream) = validated(Migration::Authenticated);
    world.inject(addr(AWAY), SERVER, &push(7, 0, b"mine"));
    world.run_for(SECOND / 100);
    assert_eq!(listener.stats().refused.conv_in_use, 1);
    for _ in 0..20 {
        world.inject(addr(AWAY), SERVER, &push(7, 1, b" data"));
        world.run_for(SECOND / 10);
    }
    assert!(world.arrived(AWAY).is_empty());
    assert_eq!(stream.peer_addr().unwrap(), addr(HOME));
}

/// Two clients with one conversation id and key, of which the second one pings although nothing has come.
#[test]
fn client_with_the_id_of_another_gets_nothing_of_its_connection_however_it_pings() {
    let slow = aead().keepalive(KeepaliveInterval::After(3 * SECOND));
    for (config, writes) in [(aead(), true), (aead(), false), (slow.clone(), true), (slow, false)] {
        let mut world = World::new(1, LinkConfig::delay(10_000));
        let listener = world.listener(SERVER, &aead());
        let [first, second] = [HOME, AWAY].map(|host| world.endpoint(host, &config));
        let (mut client, mut server) = world.finish(SECOND, async {
            let client = first.connect_with_conv(addr(SERVER), 7).await.unwrap();
            (client, listener.accept().await.unwrap().0)
        });
        let other = Rc::new(RefCell::new(Vec::new()));
        let read = other.clone();
        world.spawn(async move {
            if let Ok(mut stream) = second.connect_with_conv(addr(SERVER), 7).await {
                let _ = stream.write_all(b"second").await;
                while let Ok(chunk) = stream.read_chunk().await
                    && !chunk.is_empty()
                {
                    read.borrow_mut().extend_from_slice(&chunk);
                }
            }
        });
        for tenth in 0..300 {
            world.run_for(SECOND / 10);
            if writes {
                client.try_write(&[tenth as u8]).unwrap();
                let mut buf = [0; 64];
                drop(server.try_read(&mut buf));
            }
        }
        assert_eq!(listener.stats().connections.migrations, 0);
        assert_eq!(server.peer_addr().unwrap(), addr(HOME));
        world.finish(SECOND, async {
            server.write_all(b"for the first").await.unwrap();
            assert_eq!(client.read_chunk().await.unwrap(), "for the first");
        });
        assert!(other.borrow().is_empty());
    }
}
