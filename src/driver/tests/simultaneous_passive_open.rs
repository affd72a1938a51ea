//! Two listeners that accept each other's connection, after initial segments were forged in the name of both.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{HOUR, MINUTE, SECOND, answer, greet, push};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::core::seq::{Sn, Ts};
use crate::endpoint::Endpoint;
use crate::error::ConnectionError;
use crate::listener::KcpListener;
use crate::testkit::link::LinkConfig;

const ONE: u8 = 1;
const OTHER: u8 = 2;
const CLIENT: u8 = 3;

/// Accepts, greets and reads until the end. Counts the errors.
fn serve(world: &mut World, listener: KcpListener, greets: bool) -> Endpoint {
    let endpoint = listener.endpoint().clone();
    world.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            if greets {
                let _ = stream.write_all(b"220 ready").await;
            }
            let mut byte = [0; 100];
            while let Ok(1..) = stream.read(&mut byte).await {}
            // The other listener may not have accepted yet when it is pinged.
            let error = stream.error().unwrap();
            assert!(
                matches!(error, ConnectionError::DeadPeer(_) | ConnectionError::Reset),
                "{error:?}"
            );
        }
    });
    endpoint
}

fn initial(with_data: bool) -> Vec<u8> {
    if with_data {
        return push(7, 0, b"hello");
    }
    let (command, frg, sn, ts) = (Command::WindowProbe, CONTROL_CAPABLE, Sn(1 << 30), Ts(5));
    let mut datagram = Vec::new();
    Header { conv: 7, command, frg, wnd: 128, ts, sn, una: Sn(0), len: 0 }.emit(&mut datagram);
    datagram
}

/// Rule: W-35.
#[test]
fn connection_that_both_ends_accepted_ends_at_once() {
    // The greeting of one server is an initial segment to the other.
    for gap in [0, 5, 15, 25, 500, 2_500] {
        for (with_data, greets) in [(true, false), (true, true), (false, false), (false, true)] {
            let mut world = World::new(1, LinkConfig::delay(10_000));
            let listeners = [ONE, OTHER].map(|host| world.listener(host, &Config::new()));
            let ends = listeners.map(|listener| serve(&mut world, listener, greets));
            world.inject(addr(OTHER), ONE, &initial(with_data));
            world.run_for(Duration::from_millis(gap));
            world.inject(addr(ONE), OTHER, &initial(with_data));
            world.run_for(Duration::from_millis(2_200));
            let label = format!("gap {gap} ms, data {with_data}, greets {greets}");
            for end in &ends {
                let stats = end.stats();
                assert!((1..=2).contains(&stats.connections.passive_opens), "{label}: {stats:?}");
                assert_eq!(stats.connections.current, 0, "{label}");
            }
            assert!(!world.driver_of(ONE).routing.demux.contains(&(addr(OTHER), 7)), "{label}");
            world.log();
            world.run_for(MINUTE);
            assert_eq!(world.log().len(), 0, "{label}");
        }
    }
}

#[test]
fn ping_of_a_passive_peer_ends_no_connection_of_a_client() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(ONE, &Config::new());
    let endpoint = world.endpoint(CLIENT, &Config::new());
    let (mut client, mut server) = world.finish(SECOND, greet(&endpoint, &listener));
    let ping = |bit: u32| {
        let (command, frg, sn) = (Command::Push, CONTROL_CAPABLE, Sn(0xC000_0000 | bit));
        let mut datagram = Vec::new();
        let conv = client.conv();
        Header { conv, command, frg, wnd: 128, ts: Ts(5), sn, una: Sn(0), len: 0 }
            .emit(&mut datagram);
        datagram
    };
    world.run_for(SECOND);
    for bit in [0, 1] {
        world.inject(addr(ONE), CLIENT, &ping(bit));
        world.inject(addr(CLIENT), ONE, &ping(bit));
    }
    world.finish(SECOND, async {
        client.write_all(b"still here").await.unwrap();
        assert_eq!(server.read_chunk().await.unwrap(), "still here");
        server.write_all(b"so am I").await.unwrap();
        assert_eq!(client.read_chunk().await.unwrap(), "so am I");
    });
}

/// The ping of a peer that has accepted connection `conv` too.
fn passive_ping(conv: u32) -> Vec<u8> {
    let (command, frg, sn) = (Command::Push, CONTROL_CAPABLE, Sn(0xC000_0001));
    let mut datagram = Vec::new();
    Header { conv, command, frg, wnd: 128, ts: Ts(5), sn, una: Sn(0), len: 0 }.emit(&mut datagram);
    datagram
}

/// Rule: W-35.
#[test]
fn pong_and_ping_of_a_passive_peer_in_one_datagram_validate_nothing() {
    let mut config = Config::new();
    config.limits.require_validation = true;
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(ONE, &config);
    world.port(OTHER);
    for _ in 0..2 {
        world.inject(addr(OTHER), ONE, &push(6, 0, b"real"));
        world.run_for(SECOND / 10);
    }
    for datagram in world.arrived(OTHER) {
        world.inject(addr(OTHER), ONE, &answer(&datagram, 0));
    }
    let (real, _) = world.finish(SECOND, listener.accept()).unwrap();

    for _ in 0..2 {
        world.inject(addr(OTHER), ONE, &push(7, 0, b"forged"));
        world.run_for(SECOND / 20);
    }
    let arrived = world.arrived(OTHER);
    let pongs: Vec<u8> = arrived.iter().flat_map(|datagram| answer(datagram, 0)).collect();
    assert!(!pongs.is_empty());
    for both in [[pongs.clone(), passive_ping(7)], [passive_ping(7), pongs]] {
        world.inject(addr(OTHER), ONE, &both.concat());
    }
    world.run_for(SECOND / 10);
    // The other listener's last ping is under way, and data of its application.
    for _ in 0..8 {
        assert_eq!(listener.stats().connections.current, 2, "the connection is quiet");
        world.inject(addr(OTHER), ONE, &push(7, 0, b"220 ready"));
        world.run_for(SECOND / 10);
    }
    world.run_for(SECOND / 5);
    assert_eq!(
        (listener.stats().connections.current, listener.stats().connections.passive_opens),
        (1, 2)
    );
    assert_eq!((real.error(), listener.stats().connections.unvalidated), (None, 0));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::pin::pin!(listener.accept()).poll(&mut cx).is_pending());
    let pings = world.arrived(OTHER).len();
    assert_eq!(pings, 1, "one last ping");
}

#[test]
fn ping_of_a_passive_peer_after_the_end_keeps_the_connection_no_longer() {
    let mut config = Config::new();
    config.limits.validation_timeout = HOUR;
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(ONE, &config);
    world.port(OTHER);
    let mut initial = push(7, 0, b"hello");
    initial[5] = CONTROL_CAPABLE;
    world.inject(addr(OTHER), ONE, &initial);
    let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    stream.abort();
    world.inject(addr(OTHER), ONE, &passive_ping(7));
    world.run_for(MINUTE);
    assert_eq!(listener.stats().connections.current, 0);
}

#[test]
fn reflected_ping_ends_no_connection() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(ONE, &Config::new());
    world.port(OTHER);
    world.inject(addr(OTHER), ONE, &push(7, 0, b"hello"));
    let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    for _ in 0..5 {
        world.run_for(SECOND / 10);
        for datagram in world.arrived(OTHER) {
            world.inject(addr(OTHER), ONE, &datagram);
        }
    }
    assert_eq!((stream.error(), listener.stats().connections.current), (None, 1));
    world.run_for(2 * SECOND);
    for datagram in world.arrived(OTHER) {
        world.inject(addr(OTHER), ONE, &answer(&datagram, 0));
    }
    world.finish(SECOND, stream.established()).unwrap();
    assert_eq!(world.finish(SECOND, stream.read_chunk()).unwrap(), "hello");
}
