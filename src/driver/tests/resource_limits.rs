//! Resource limits of turns, connections and peers; socket errors.

use std::cell::Cell;
use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{
    CLIENT, MINUTE, Pair, SECOND, SERVER, cause, greet, pattern, push, read_pattern,
};
use super::sim_network::{Sent, code};
use super::sim_world::{World, addr};
use crate::config::{AckPolicy, Config, CongestionControl, Mode};
use crate::core::segment::{HEADER_LEN, Header};
use crate::driver::Turn;
use crate::driver::output::TURN_PACKETS;
use crate::error::ConnectionError;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;

/// Windows and buffers that hold several turns of datagrams, and no limit on the datagrams of one turn.
pub(super) fn wide() -> Config {
    Config::new()
        .congestion_control(CongestionControl::Off)
        .windows(4_096, 4_096)
        .send_buffer(4_000_000)
        .recv_buffer(4_000_000)
}

/// Runs one turn of `host`. Returns its result and what was sent.
pub(super) fn turn(world: &mut World, host: u8) -> (Turn, Vec<Sent>) {
    world.log();
    let now = world.now();
    let turn = world.driver_of(host).turn(now);
    (turn, world.log())
}

/// Opens `count` more connections from the client to the server.
pub(super) fn streams(pair: &mut Pair, count: usize) -> Vec<(KcpStream, KcpStream)> {
    let (endpoint, listener) = (&pair.endpoint, &pair.listener);
    let streams = (0..count).map(|_| pair.world.finish(SECOND, greet(endpoint, listener)));
    let streams = streams.collect();
    pair.world.run_for(SECOND / 10);
    streams
}

// ----- turns -----

#[test]
fn send_budget_per_turn_leaves_the_rest_for_the_next_turn() {
    for copies in [0, 3] {
        let mut config = wide();
        config.duplicates = copies;
        let mut pair = Pair::near(&config, &wide());
        let streams = streams(&mut pair, 4);
        let data = pattern(1_000_000);
        for (client, _) in &streams {
            assert_eq!(client.try_write(&data).unwrap(), data.len());
        }
        let each = usize::from(copies) + 1;
        let mut left = 4 * data.len().div_ceil(1_376) * each;
        while left > 0 {
            let (turn, sent) = turn(&mut pair.world, CLIENT);
            let most = TURN_PACKETS + usize::from(copies);
            assert!((1..=most).contains(&sent.len()), "{} datagrams", sent.len());
            left -= sent.len();
            assert!(turn == Turn::Again || left == 0, "{turn:?} with {left} left");
        }
    }
}

#[test]
fn immediate_acks_stay_within_the_send_budget() {
    let client = wide().mode(Mode::Message).mtu(200);
    let mut pair = Pair::new(&client, &wide().ack_policy(AckPolicy::Immediate));
    for _ in 0..500 {
        pair.client.try_write(&[7; 150]).unwrap();
    }
    while turn(&mut pair.world, CLIENT).0.runs_again() {}
    assert_eq!(pair.world.let_arrive(SECOND / 10, SERVER), 500);
    let mut acks = 0;
    loop {
        let (turn, sent) = turn(&mut pair.world, SERVER);
        assert!(sent.len() <= TURN_PACKETS, "{} datagrams", sent.len());
        acks += sent.len();
        if turn != Turn::Again {
            break;
        }
    }
    assert!(acks >= TURN_PACKETS / 2, "{acks} answers to 500 datagrams");
    assert_eq!(pair.server.stats().received.segments, 501);
}

#[test]
fn fairness_serves_small_connections_beside_a_bulk_transfer() {
    let mut pair = Pair::near(&wide(), &wide());
    let streams = streams(&mut pair, 100);
    let data = pattern(4_000_000);
    pair.client.try_write(&data).unwrap();
    for round in 0..6 {
        for (client, _) in &streams {
            client.try_write(b"small").unwrap();
        }
        let mut waiting: HashSet<u32> = streams.iter().map(|(client, _)| client.conv()).collect();
        for _ in 0..2 {
            let (turn, sent) = turn(&mut pair.world, CLIENT);
            assert_eq!(turn, Turn::Again, "the bulk transfer has more");
            for sent in sent {
                waiting.remove(&Header::parse(&sent.datagram).unwrap().conv);
            }
        }
        assert!(waiting.is_empty(), "round {round}: {} wait longer than 2 turns", waiting.len());
    }
}

// ----- a blocked socket -----

#[test]
fn blocked_socket_sends_the_rest_later() {
    let Pair { mut world, endpoint, mut client, mut server, listener } = Pair::plain();
    world.fail_sends(CLIENT, [ErrorKind::WouldBlock; 100]);
    world.fail_sends(SERVER, [ErrorKind::WouldBlock; 100]);
    world.finish(MINUTE, async {
        let write = async {
            client.write_all(&pattern(3_000_000)).await.unwrap();
            client.shutdown().await.unwrap();
        };
        tokio::join!(write, read_pattern(&mut server, 3_000_000));
    });
    assert_eq!((world.faults_left(CLIENT), world.faults_left(SERVER)), ((0, 0), (0, 0)));
    assert_eq!(
        (endpoint.stats().send_errors.total(), listener.stats().send_errors.total()),
        (0, 0)
    );
    assert_eq!(client.stats().retransmits(), 0, "nothing was lost");
}

#[test]
fn blocked_socket_takes_no_turns_and_holds_one_batch() {
    let mut pair = Pair::new(&wide(), &wide());
    let streams = streams(&mut pair, 20);
    let Pair { mut world, server, client, .. } = pair;
    let data = pattern(1_000_000);
    world.block_sends(CLIENT, 10 * SECOND);
    for (client, server) in &streams {
        client.try_write(&data).unwrap();
        server.try_write(&data).unwrap();
    }
    server.try_write(b"hello").unwrap();
    // Receiving goes on and timers expire while nothing can be sent.
    let turns = world.run_for(10 * SECOND - SECOND / 1_000);
    println!("{turns} turns");
    assert!(turns < 3_000, "{turns} turns");
    assert_eq!(client.stats().received.payload_bytes, 5);
    let held = world.driver_of(CLIENT).output.tx.len();
    assert!((1..=300).contains(&held), "{held} datagrams wait");
    world.finish(MINUTE, async {
        for (_, mut server) in streams {
            read_pattern(&mut server, 1_000_000).await;
        }
    });
}

// ----- errors -----

#[test]
fn transient_send_errors_count_as_loss() {
    let Pair { mut world, endpoint, mut client, mut server, listener } = Pair::plain();
    let kinds = [
        ErrorKind::HostUnreachable,
        ErrorKind::NetworkUnreachable,
        ErrorKind::PermissionDenied,
        ErrorKind::ConnectionRefused,
        ErrorKind::NetworkDown,
        ErrorKind::AddrNotAvailable,
    ];
    world.fail_sends(CLIENT, kinds);
    world.fail_sends(CLIENT, [io::Error::from_raw_os_error(code::NO_BUFFERS)]);
    world.finish(MINUTE, async {
        let write = async {
            client.write_all(&pattern(300_000)).await.unwrap();
            client.shutdown().await.unwrap();
        };
        tokio::join!(write, read_pattern(&mut server, 300_000));
    });
    assert_eq!(endpoint.stats().send_errors.total(), 7);
    assert!(client.stats().retransmits() > 0);
    drop(listener);
}

#[test]
fn transient_receive_errors_do_not_end_connections() {
    let Pair { mut world, endpoint, mut client, mut server, listener } = Pair::plain();
    let kinds = [ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset];
    for round in 1..=5 {
        world.fail_recvs(CLIENT, kinds.repeat(10));
        world.fail_recvs(SERVER, kinds.repeat(50));
        world.finish(10 * SECOND, async {
            client.write_all(&pattern(100_000)).await.unwrap();
            read_pattern(&mut server, 100_000).await;
            server.write_all(&pattern(10)).await.unwrap();
            read_pattern(&mut client, 10).await;
        });
        world.run_for(SECOND);
        let errors = (endpoint.stats().recv_errors.total(), listener.stats().recv_errors.total());
        assert_eq!(errors, (20 * round, 100 * round));
    }
}

#[test]
fn receive_backoff_grows_while_the_socket_only_fails() {
    let Pair { mut world, listener, client, server, .. } = Pair::plain();
    world.fail_recvs(SERVER, [ErrorKind::ConnectionReset; 1_000]);
    client.try_write(b"hello").unwrap();
    let turns = world.run_for(10 * SECOND);
    let errors = listener.stats().recv_errors.total();
    println!("{turns} turns, {errors} errors");
    assert!((200..400).contains(&errors) && turns < 600);
    world.run_for(40 * SECOND);
    assert_eq!(listener.stats().recv_errors.total(), 1_000);
    assert_eq!(server.stats().received.payload_bytes, 7);
    assert_eq!((client.error(), server.error()), (None, None));
}

#[test]
fn fatal_socket_error_ends_the_driver() {
    for send in [true, false] {
        let Pair { mut world, endpoint, mut client, server, .. } = Pair::plain();
        let gone = [io::Error::from_raw_os_error(code::UNUSABLE)];
        if send {
            world.fail_sends(CLIENT, gone);
        } else {
            world.fail_recvs(CLIENT, gone);
        }
        client.try_write(b"hello").unwrap();
        server.try_write(b"hello").unwrap();
        let error = world.finish(SECOND, client.read(&mut [0; 10])).unwrap_err();
        assert_eq!(cause(&error), Some(ConnectionError::EndpointClosed));
        assert_eq!(client.try_write(b"x").unwrap_err().kind(), ErrorKind::NotConnected);
        let error = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap_err();
        assert_eq!(cause(&error), Some(ConnectionError::EndpointClosed));
    }
}

#[test]
fn message_too_big_lowers_the_mtu_once() {
    let Pair { mut world, endpoint, client, mut server, .. } = Pair::new(&wide(), &Config::new());
    // For two seconds the route to the peer has an MTU of 1,200 bytes (EMSGSIZE).
    world.limit_sends(CLIENT, Some(1_200));
    client.try_write(&pattern(300_000)).unwrap();
    world.run_for(SECOND);
    assert!(endpoint.stats().send_errors.total() > 1, "every GSO batch of the burst was refused");
    world.log();
    client.try_write(&pattern(300_000)).unwrap();
    world.run_for(SECOND);
    let ours = world.log().into_iter().filter(|sent| sent.from == addr(CLIENT));
    assert_eq!(ours.map(|sent| sent.datagram.len()).max(), Some(1_200));
    assert!(client.set_mtu(1_201).is_err());
    world.limit_sends(CLIENT, None);
    world.finish(MINUTE, async {
        read_pattern(&mut server, 300_000).await;
        read_pattern(&mut server, 300_000).await;
    });
}

// ----- unvalidated peers -----

/// Whether `datagram` could be an initial segment, going by its first header.
fn is_initial_segment(datagram: &[u8]) -> bool {
    let word = |at: usize| u32::from_le_bytes(datagram[at..at + 4].try_into().unwrap());
    datagram.len() >= HEADER_LEN && datagram[4] == 81 && word(12) == 0 && word(16) == 0
}

/// A datagram that is no valid initial segment.
fn garbage(rng: &mut Rng, valid: &[Vec<u8>]) -> Vec<u8> {
    let mut datagram = if rng.chance(300_000) {
        let len = rng.spread(1, 1_500) as usize;
        std::iter::repeat_with(|| rng.next() as u8).take(len).collect()
    } else {
        valid[rng.below(valid.len() as u64) as usize].clone()
    };
    if rng.chance(500_000) {
        datagram.truncate(1 + rng.below(datagram.len() as u64) as usize);
    }
    for _ in 0..rng.below(4) {
        let at = rng.below(datagram.len().min(2 * HEADER_LEN) as u64) as usize;
        datagram[at] = rng.next() as u8;
    }
    if is_initial_segment(&datagram) {
        datagram[12] = 1;
    }
    datagram
}

#[test]
fn malformed_datagrams_are_only_counted() {
    let Pair { mut world, listener, mut client, mut server, .. } = Pair::plain();
    world.finish(SECOND, async {
        client.write_all(&pattern(20_000)).await.unwrap();
        read_pattern(&mut server, 20_000).await;
        server.write_all(&pattern(20_000)).await.unwrap();
        read_pattern(&mut client, 20_000).await;
    });
    let valid: Vec<Vec<u8>> = world.log().into_iter().map(|sent| sent.datagram).collect();
    let before = listener.stats();
    let mut rng = Rng::new(5);
    for i in 0..10_000_u32 {
        let from = ([10, 1, (i >> 8) as u8 % 16, i as u8], 1_000 + (i % 7) as u16).into();
        world.inject(from, SERVER, &garbage(&mut rng, &valid));
        if i % 100 == 0 {
            world.run_for(SECOND / 1_000);
        }
    }
    world.run_for(SECOND / 10);
    let stats = listener.stats();
    let counted = [
        stats.dropped.truncated - before.dropped.truncated,
        stats.dropped.malformed - before.dropped.malformed,
        stats.dropped.no_connection - before.dropped.no_connection,
    ];
    println!("{counted:?}");
    assert_eq!(counted.iter().sum::<u64>(), 10_000);
    assert!(counted.iter().all(|count| *count > 100));
    assert_eq!((stats.connections.passive_opens, stats.connections.current), (1, 1));
    assert!(world.driver_of(SERVER).routing.conns.capacity() <= 4);
    assert_eq!(stats.sent.datagrams, before.sent.datagrams, "unvalidated peers get no answer");
    world.finish(SECOND, async {
        client.write_all(&pattern(10)).await.unwrap();
        read_pattern(&mut server, 10).await;
    });
}

#[test]
fn unknown_conv_from_a_known_address_changes_no_connection() {
    let Pair { mut world, listener, mut client, mut server, .. } = Pair::plain();
    let conv = client.conv();
    for i in 1..100 {
        world.inject(addr(CLIENT), SERVER, &push(conv ^ i, i, b"not initial data"));
        let mut mixed = push(conv, 5, b"mine");
        mixed.extend(push(conv ^ i, 6, b"not mine"));
        world.inject(addr(CLIENT), SERVER, &mixed);
    }
    world.inject(addr(CLIENT), SERVER, &push(conv ^ 1, 0, b"initial data"));
    world.run_for(SECOND);
    let stats = listener.stats();
    assert_eq!((stats.dropped.no_connection, stats.dropped.malformed), (99, 99));
    assert_eq!((stats.connections.passive_opens, stats.connections.current), (2, 2));
    assert_eq!(server.stats().received.segments, 1);
    world.finish(SECOND, async {
        client.write_all(&pattern(10_000)).await.unwrap();
        read_pattern(&mut server, 10_000).await;
        let (mut second, peer) = listener.accept().await.unwrap();
        assert_eq!((second.conv(), peer), (conv ^ 1, addr(CLIENT)));
        assert_eq!(second.read_chunk().await.unwrap(), "initial data");
    });
}

#[test]
fn full_backlog_drops_initial_datagrams() {
    let mut config = Config::new();
    (config.limits.backlog, config.limits.max_connections) = (8, 20);
    // All peers of the test have one address.
    config.limits.max_per_source = Some(20);
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &config);
    let send_initials = |world: &mut World| {
        for conv in 1..=20 {
            world.inject(addr(9), SERVER, &push(conv, 0, b"hello"));
        }
        world.run_for(SECOND / 100);
    };
    world.port(9);
    send_initials(&mut world);
    let stats = listener.stats();
    assert_eq!(
        (stats.connections.current, stats.refused.backlog, stats.refused.max_connections),
        (8, 12, 0)
    );
    assert!(world.driver_of(SERVER).routing.conns.capacity() <= 8);
    let answered = |world: &mut World| {
        let convs = world.arrived(9).into_iter();
        convs.map(|d| Header::parse(&d).unwrap().conv).collect::<HashSet<u32>>().len()
    };
    assert_eq!(answered(&mut world), 8, "only accepted initial segments are acknowledged");

    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(world.finish(SECOND, listener.accept()).unwrap().0);
    }
    send_initials(&mut world);
    let stats = listener.stats();
    // Unvalidated peers get one more than half of all places.
    assert_eq!(
        (stats.connections.current, stats.refused.backlog, stats.refused.max_unvalidated),
        (11, 12, 9)
    );

    // An ended connection frees its place for another connection, not for itself.
    streams.clear();
    // The RST is retransmitted for 10 s, since it is unknown whether the peer supports CONTROL.
    world.run_for(11 * SECOND);
    send_initials(&mut world);
    let stats = listener.stats();
    assert_eq!((stats.connections.current, stats.connections.passive_opens), (8, 16));
    assert_eq!(stats.refused.backlog, 16);
}

#[test]
fn connect_beyond_max_connections_fails() {
    let mut config = Config::new();
    config.limits.max_connections = 3;
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let endpoint = world.endpoint(CLIENT, &config);
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap());
    }
    let error = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap_err();
    let text = "the endpoint has 3 connections: close some or raise Limits::max_connections";
    assert_eq!(error.to_string(), text);
    streams.pop();
    world.run_ready();
    world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
}

// ----- readers -----

#[test]
fn slow_reader_does_not_block_other_connections() {
    let mut bounded = Config::new().windows(1_024, 64);
    bounded.recv_buffer = 20_000;
    let mut pair = Pair::new(&wide(), &bounded);
    let streams = streams(&mut pair, 10);
    let Pair { mut world, mut client, mut server, .. } = pair;
    let done = Rc::new(Cell::new(0));
    for (mut client, mut server) in streams {
        let done = done.clone();
        world.spawn(async move { client.write_all(&pattern(2_000_000)).await.unwrap() });
        world.spawn(async move {
            read_pattern(&mut server, 2_000_000).await;
            done.set(done.get() + 1);
        });
    }
    // The slow reader reads 1,000 bytes and stops.
    world.spawn(async move { client.write_all(&pattern(2_000_000)).await.unwrap() });
    world.finish(SECOND, read_pattern(&mut server, 1_000));
    let mut most = 0;
    while done.get() < 10 {
        assert!(world.advance() && world.elapsed() < 60_000_000);
        world.run_ready();
        most = most.max(server.stats().received.payload_bytes);
    }
    // Its receive queue, exceeded by at most one chunk, and a receive window.
    let bound = 1_000 + 20_000 + 65_536 + 64 * 1_376;
    assert!((20_000..bound).contains(&most), "{most} bytes held");
}
