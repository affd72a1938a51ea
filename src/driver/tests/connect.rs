//! `connect`: waiting for the peer, its timeout, and early data.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, SECOND, SERVER, answer, cause, is_about, micros};
use super::sim_network::Fate;
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::core::seq::{Sn, Ts};
use crate::error::{ConnectionError, TimeoutCause};
use crate::testkit::link::LinkConfig;

const PEER: u8 = 9;

#[test]
fn connect_returns_when_the_peer_has_answered() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
    let client = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    assert!((20_000..25_000).contains(&world.elapsed()), "{}", world.elapsed());
    world.finish(SECOND, client.established()).unwrap();
    // A client that says nothing is accepted.
    let (server, _) = world.finish(SECOND, listener.accept()).unwrap();
    assert_eq!(server.conv(), client.conv());
}

/// The log warns of a second connection to such a peer.
#[test]
fn peer_is_of_another_implementation_if_it_answers_and_supports_no_fin() {
    let mut stock = Config::new();
    stock.kcp.close_notify = false;
    for (server, is_other) in [(Some(&Config::new()), false), (Some(&stock), true), (None, false)] {
        let mut world = World::new(1, LinkConfig::delay(10_000));
        let _listener = server.map(|config| world.listener(SERVER, config));
        world.port(PEER);
        let endpoint = world.endpoint(CLIENT, &Config::new());
        let host = if server.is_some() { SERVER } else { PEER };
        let client = world.finish(SECOND, endpoint.connect(addr(host))).unwrap();
        client.try_write(b"hi").unwrap();
        world.run_for(SECOND);
        let conns = &world.driver_of(CLIENT).routing.conns;
        let others: Vec<_> =
            conns.iter().map(|(_, conn)| conn.is_with_other_implementation()).collect();
        assert_eq!(others, [is_other]);
    }
}

#[test]
fn connect_fails_after_the_connect_timeout() {
    let default = (Config::new(), SECOND * 10);
    let short = (Config::new().connect_timeout(SECOND * 3), SECOND * 3);
    for (config, timeout) in [default, short] {
        let mut world = World::new(1, LinkConfig::delay(10_000));
        world.port(PEER);
        let endpoint = world.waiting_endpoint(CLIENT, &config);
        let error = world.finish(MINUTE, endpoint.connect(addr(PEER))).unwrap_err();
        assert_eq!(cause(&error), Some(ConnectionError::ConnectTimeout(TimeoutCause::Nothing)));
        assert!(is_about(world.elapsed(), timeout), "{}", world.elapsed());
        world.run_for(SECOND);
        assert_eq!(endpoint.stats().connections.current, 0);
    }
}

#[test]
fn connect_succeeds_on_a_lossy_path() {
    for seed in 0..50 {
        let mut world = World::new(seed, LinkConfig { loss: 100_000, ..LinkConfig::delay(50_000) });
        let listener = world.listener(SERVER, &Config::new());
        let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
        let connected = world.finish(MINUTE, endpoint.connect(addr(SERVER)));
        assert!(connected.is_ok(), "seed {seed}: {connected:?}");
        assert_eq!(listener.stats().connections.passive_opens, 1, "seed {seed}");
    }
}

#[test]
fn shutdown_after_connect_reaches_the_server() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
    world.finish(SECOND, async {
        let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
        client.shutdown().await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
    });
}

/// Rule: W-152.
#[test]
fn early_data_leaves_in_the_initial_segment() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.log();
    let listener = world.listener(SERVER, &Config::new());
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new().early_data(true));
    world.finish(SECOND, async {
        let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        server.read_exact(&mut [0; 5]).await.unwrap();
    });
    assert!((10_000..12_000).contains(&world.elapsed()), "{}", world.elapsed());
    let sent = world.log();
    let first = sent.iter().find(|sent| sent.from == addr(CLIENT)).unwrap();
    assert_eq!(Header::parse(&first.datagram).unwrap().command, Command::Push);
}

#[test]
fn initial_segments_of_many_connections_leave_64_per_millisecond() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let endpoint = world.endpoint(CLIENT, &Config::new());
    let clients = world.finish(SECOND, async {
        let mut clients = Vec::new();
        for _ in 0..130 {
            clients.push(endpoint.connect(addr(SERVER)).await.unwrap());
        }
        clients
    });
    for client in &clients {
        client.try_write(b"hello").unwrap();
    }
    let sent = [0, 999, 1, 999, 1].map(|micros| {
        world.run_for(Duration::from_micros(micros));
        world.sent()
    });
    assert_eq!(sent, [64, 64, 128, 128, 130]);
}

/// Rule: W-152.
#[test]
fn connection_with_early_data_but_no_write_opens_all_the_same() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new().early_data(true));
    let client = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    assert_eq!(world.elapsed(), 0, "it returns at once");
    let (mut server, _) = world.finish(SECOND, listener.accept()).unwrap();
    assert_eq!((world.elapsed(), server.conv()), (30_000, client.conv()));
    world.finish(SECOND, server.write_all(b"220 ready")).unwrap();
}

/// Rule: W-152.
#[test]
fn connect_without_close_notify_does_not_wait() {
    let mut config = Config::new();
    config.kcp.close_notify = false;
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.port(PEER);
    let endpoint = world.waiting_endpoint(CLIENT, &config);
    let _client = world.finish(SECOND, endpoint.connect(addr(PEER))).unwrap();
    world.run_for(SECOND);
    assert_eq!((world.arrived(PEER).len(), micros(SECOND)), (0, world.elapsed()));
}

/// `connect` to a peer that gives this answer to each datagram except pongs. Returns the error.
fn connect_to(answer: impl Fn(&[u8]) -> Vec<u8>) -> std::io::Error {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.port(PEER);
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new().connect_timeout(SECOND * 3));
    let (done, mut result) = tokio::sync::oneshot::channel();
    world.spawn(async move { drop(done.send(endpoint.connect(addr(PEER)).await)) });
    let mut answered = 0;
    for _ in 0..35 {
        world.run_for(SECOND / 10);
        for datagram in world.arrived(PEER) {
            if Header::parse(&datagram).unwrap().command != Command::Ack {
                answered += 1;
                world.inject(addr(PEER), CLIENT, &answer(&datagram));
            }
        }
    }
    assert!(answered >= 3, "{answered}");
    result.try_recv().expect("the timeout has passed").unwrap_err()
}

#[test]
fn connect_takes_no_ping_for_an_answer() {
    let error = connect_to(|initial| {
        let initial = Header::parse(initial).unwrap();
        let (sn, frg) = (Sn(0xA000_0001), CONTROL_CAPABLE);
        let mut ping = Vec::new();
        Header { command: Command::Push, frg, ts: Ts(9), sn, ..initial }.emit(&mut ping);
        ping
    });
    assert_eq!(cause(&error), Some(ConnectionError::ConnectTimeout(TimeoutCause::Nothing)));
}

#[test]
fn connect_takes_no_reflection_for_an_answer() {
    let error = connect_to(<[u8]>::to_vec);
    assert_eq!(cause(&error), Some(ConnectionError::ConnectTimeout(TimeoutCause::Nothing)));
}

#[test]
fn id_of_a_connect_without_an_answer_is_free_again() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.port(PEER);
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new().connect_timeout(SECOND));
    for _ in 0..3 {
        let error = world.finish(MINUTE, endpoint.connect_with_conv(addr(PEER), 7)).unwrap_err();
        assert_eq!(cause(&error), Some(ConnectionError::ConnectTimeout(TimeoutCause::Nothing)));
    }
}

#[test]
fn dropped_connect_is_closed_within_two_seconds() {
    for (answers, turns) in
        [(true, 0), (true, 5_000), (true, 15_000), (true, 19_000), (false, 0), (false, 500_000)]
    {
        println!("the peer answers: {answers}, dropped after {turns} us");
        let mut world = World::new(1, LinkConfig::delay(10_000));
        let listener = answers.then(|| world.listener(SERVER, &Config::new()));
        let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
        let connecting = endpoint.clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        world.spawn(async move {
            tokio::select! {
                biased;
                _ = stopped => {}
                _ = connecting.connect(addr(SERVER)) => panic!("too early"),
            }
        });
        world.run_for(Duration::from_micros(turns));
        drop(stop);
        world.finish(SECOND * 2, endpoint.wait_idle());
        // A peer that has received the opening is told of the end.
        for _ in
            0..listener.as_ref().map_or(0, |listener| listener.stats().connections.passive_opens)
        {
            world.finish(SECOND, async {
                let (mut server, _) = listener.as_ref().unwrap().accept().await.unwrap();
                assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
            });
        }
        world.run_for(SECOND / 10);
        assert_eq!(endpoint.stats().connections.current, 0);
    }
}

/// The numbers of the initial segments that arrive at `PEER`, and when, in milliseconds.
fn initial_segments(world: &mut World) -> Vec<(u32, u64)> {
    let mut numbers = Vec::new();
    for _ in 0..90 {
        world.run_for(SECOND / 10);
        for datagram in world.arrived(PEER) {
            let header = Header::parse(&datagram).unwrap();
            if header.command == Command::WindowProbe {
                numbers.push((header.sn.0, world.elapsed() / 1_000));
            }
        }
    }
    numbers
}

/// Rules: W-8, W-156.
#[test]
fn initial_segment_has_number_zero_from_the_fourth_transmission_on() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.port(PEER);
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
    world.spawn(async move { drop(endpoint.connect(addr(PEER)).await) });
    let numbers = initial_segments(&mut world);
    let zeros: Vec<_> = numbers.iter().map(|(sn, _)| *sn == 0).collect();
    assert_eq!(zeros[..6], [false, false, false, true, true, true], "{numbers:?}");
    assert!(zeros[6..].iter().all(|zero| *zero), "{numbers:?}");
    assert!((1_400..1_700).contains(&numbers[3].1), "{numbers:?}");
}

/// Rule: W-157.
#[test]
fn initial_segment_replaces_no_other_connection_of_the_socket() {
    // The other connection is open, or opening.
    for answers in [true, false] {
        let mut world = World::new(1, LinkConfig::delay(10_000));
        world.port(PEER);
        let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
        let (first, second) = (endpoint.clone(), endpoint);
        let (sender, mut result) = tokio::sync::oneshot::channel();
        world.spawn(async move {
            let _first = first.connect(addr(PEER)).await;
            std::future::pending::<()>().await;
        });
        world.run_for(SECOND / 50);
        for datagram in world.arrived(PEER) {
            if answers {
                world.inject(addr(PEER), CLIENT, &answer(&datagram, 0));
            }
        }
        world.run_for(SECOND / 50);
        world.spawn(async move { drop(sender.send(second.connect(addr(PEER)).await)) });
        let numbers = initial_segments(&mut world);
        assert!(numbers.len() >= 6 && numbers.iter().all(|(sn, _)| *sn != 0), "{numbers:?}");
        world.run_for(2 * SECOND);
        let error = result.try_recv().unwrap().unwrap_err();
        let shared = ConnectionError::ConnectTimeout(TimeoutCause::SharedAddress);
        // The other connection has just given up too.
        let alone = ConnectionError::ConnectTimeout(TimeoutCause::Nothing);
        assert_eq!(cause(&error), Some(if answers { shared } else { alone }));
        assert!(!answers || error.to_string().contains("another connection with that address"));
    }
}

#[test]
fn initial_segment_gets_number_zero_once_the_other_connection_is_gone() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.port(PEER);
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
    let (first, second) = (endpoint.clone(), endpoint);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    world.spawn(async move {
        tokio::select! {
            biased;
            _ = stopped => {}
            _ = first.connect(addr(PEER)) => panic!("too early"),
        }
    });
    world.run_for(SECOND / 50);
    world.spawn(async move { drop(second.connect(addr(PEER)).await) });
    world.run_for(4 * SECOND);
    let sn = |datagram: &Vec<u8>| Header::parse(datagram).unwrap().sn;
    assert!(world.arrived(PEER).iter().all(|datagram| sn(datagram) != Sn(0)));
    drop(stop);
    world.run_for(4 * SECOND);
    assert!(world.arrived(PEER).iter().any(|datagram| sn(datagram) == Sn(0)));
}

/// Rule: W-156.
#[test]
fn listener_takes_an_initial_segment_with_number_zero_for_the_same() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
    // Segments with another number arrive later.
    let late = |ms: u64| Fate::Late(ms * 1_000);
    world.set_fates(CLIENT, [late(3_000), late(2_500), late(1_500)]);
    let client = world.finish(3 * SECOND, endpoint.connect(addr(SERVER))).unwrap();
    assert!((1_400_000..1_500_000).contains(&world.elapsed()), "{}", world.elapsed());
    world.run_for(3 * SECOND);
    let stats = listener.stats();
    assert_eq!(
        (stats.connections.passive_opens, stats.connections.restart_probes, client.error()),
        (1, 0, None)
    );
}

/// Rule: W-153.
#[test]
fn initial_segments_of_attempts_have_different_names() {
    let name = |seed| {
        let mut world = World::new(seed, LinkConfig::delay(10_000));
        world.port(PEER);
        let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
        world.spawn(async move { drop(endpoint.connect(addr(PEER)).await) });
        world.run_for(SECOND / 10);
        Header::parse(&world.arrived(PEER)[0]).unwrap().ts.0
    };
    let mut names: Vec<u32> = (0..50).map(name).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() == 50 && names[0] != 0, "{names:?}");
}

/// Rule: W-171.
#[test]
fn timestamps_of_two_connections_begin_apart() {
    let first = |seed| {
        let mut world = World::new(seed, LinkConfig::delay(10_000));
        world.port(PEER);
        let endpoint = world.endpoint(CLIENT, &Config::new());
        let stream = world.finish(SECOND, endpoint.connect(addr(PEER))).unwrap();
        stream.try_write(b"hello").unwrap();
        world.run_for(SECOND / 10);
        Header::parse(&world.arrived(PEER)[0]).unwrap().ts.0
    };
    let mut times: Vec<u32> = (0..50).map(first).collect();
    times.sort_unstable();
    let near = times.windows(2).filter(|pair| pair[1] - pair[0] < 1_000).count();
    assert!(near < 3, "{times:?}");
}
