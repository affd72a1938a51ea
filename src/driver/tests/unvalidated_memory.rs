//! The memory that all unvalidated peers share, a sixteenth of `Limits::memory`.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;

use super::fixtures::{CLIENT, MINUTE, SECOND, SERVER, greet, pattern, push, read_pattern};
use super::sim_network::Fate;
use super::sim_world::{World, addr};
use crate::config::{Config, Redundancy};
use crate::core::segment::{Command, Header, Segments};
use crate::core::seq::Sn;
use crate::crypto::{Cipher, Key};
use crate::driver::memory::LEAST_QUOTA;
use crate::fec::FecConfig;
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;

/// Bytes that all unvalidated peers may hold here, and the excess: one tail of delivered data, and the least
/// quota of each peer.
const BUDGET: usize = 4 << 20;
const SLACK: usize = (64 << 10) + PEERS as usize * LEAST_QUOTA;
const PEERS: u8 = 150;
/// Segments that each peer sends: 20 MB in total.
const SEGMENTS: u32 = 100;

fn config() -> Config {
    let mut config = Config::new();
    config.limits.memory = 16 * BUDGET;
    config
}

fn server(config: &Config) -> (World, KcpListener) {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, config);
    (world, listener)
}

fn peer(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, host], 5_000))
}

/// Memory of the connections of `SERVER`, counted and as its limit counts it.
fn held(world: &mut World) -> (usize, usize) {
    let driver = world.driver_of(SERVER);
    let data = driver.routing.conns.iter().map(|(_, conn)| conn.data_memory()).sum();
    (data, driver.memory.unvalidated())
}

/// Opens a connection from each of the peers.
fn open(world: &mut World, listener: &KcpListener) -> Vec<KcpStream> {
    let open = |host| {
        world.inject(peer(host), SERVER, &push(7, 0, &[1; 1_376]));
        world.finish(SECOND, listener.accept()).unwrap().0
    };
    (0..PEERS).map(open).collect()
}

/// Sends [`SEGMENTS`] of each peer; half of the peers begin with the last segment.
fn flood(world: &mut World, host: u8) {
    for sn in 1..SEGMENTS {
        let sn = if host.is_multiple_of(2) { sn } else { 1_000 - sn };
        world.inject(peer(host), SERVER, &push(7, sn, &[1; 1_376]));
    }
    world.run_for(SECOND / 100);
}

#[test]
fn unvalidated_peers_share_one_memory_budget() {
    let (mut world, listener) = server(&config());
    let streams = open(&mut world, &listener);
    for host in 0..PEERS {
        flood(&mut world, host);
        let (data, memory) = held(&mut world);
        assert!(memory <= BUDGET + SLACK, "{memory} bytes");
        assert!(data + streams.len() * 4_096 <= memory + SLACK, "{data} and {memory} bytes");
    }
    let (data, memory) = held(&mut world);
    println!("{data} bytes of data, {memory} bytes in all");
    assert!(memory > BUDGET / 3, "{memory} bytes");
    let stats = listener.stats();
    assert_eq!(stats.connections.unvalidated, u64::from(PEERS));
    assert_eq!(stats.memory.unvalidated_bytes, memory as u64);
    // Each has a share, which holds its first segments.
    let received: Vec<u64> = streams.iter().map(|s| s.stats().received.segments).collect();
    assert!(received.iter().step_by(2).all(|count| *count >= 2), "{received:?}");
    assert!(received.iter().all(|count| *count >= 1), "{received:?}");
    assert!(received[0] > 30 && received[149] < 10, "{received:?}");

    // A client is validated within a round trip, and then has its own memory.
    let endpoint = world.endpoint(CLIENT, &Config::new());
    world.finish(2 * SECOND, async {
        let (mut client, mut server) = greet(&endpoint, &listener).await;
        let write = async { client.write_all(&pattern(1_000_000)).await.unwrap() };
        tokio::join!(write, read_pattern(&mut server, 1_000_000));
    });
    // Nothing is held for peers that are gone.
    drop(streams);
    world.run_for(MINUTE);
    assert_eq!(held(&mut world).1, 0);
    assert_eq!(listener.stats().memory.unvalidated_bytes, 0);
}

#[test]
fn pong_beside_data_that_does_not_fit_lifts_the_limit() {
    let (mut world, listener) = server(&config());
    let mut streams = open(&mut world, &listener);
    world.port(9);
    world.inject(addr(9), SERVER, &push(7, 0, b"x"));
    streams.push(world.finish(SECOND, listener.accept()).unwrap().0);
    (0..PEERS).for_each(|host| flood(&mut world, host));
    let arrived = world.arrived(9);
    let headers = arrived.iter().flat_map(|d| Segments::new(d)).map(|(header, _)| header);
    let ping = headers.into_iter().find(|h| h.command == Command::Push && h.len == 0).unwrap();
    let before = held(&mut world).1;
    // 30 segments in a datagram whose first segment is the pong: all are stored.
    let mut datagram = Vec::new();
    Header { command: Command::Ack, frg: 0, wnd: 128, una: Sn(0), ..ping }.emit(&mut datagram);
    (1..=30).for_each(|sn| datagram.extend(push(7, sn, &[1; 1_376])));
    world.inject(addr(9), SERVER, &datagram);
    world.run_for(SECOND / 100);
    assert_eq!(streams.last().unwrap().stats().received.segments, 31);
    assert!(held(&mut world).1 < before);
}

#[test]
fn fec_decoders_of_unvalidated_peers_share_the_budget() {
    let mut config = config().redundancy(Redundancy::Fec(FecConfig::new(60, 20).unwrap()));
    config.limits.memory = 16 << 20;
    let (mut world, listener) = server(&config);
    let mut streams = Vec::new();
    for host in 0..8 {
        world.inject(peer(host), SERVER, &push(7, 0, b"x"));
        streams.push(world.finish(SECOND, listener.accept()).unwrap().0);
    }
    for host in 0..8 {
        // Half of each of four groups, never enough to recover anything.
        for seqid in (0..320_u32).filter(|seqid| seqid % 80 < 30) {
            let mut shard = seqid.to_le_bytes().to_vec();
            shard.extend(0xF1_u16.to_le_bytes());
            shard.extend(1_402_u16.to_le_bytes());
            shard.extend(push(7, 2_000, &[1; 1_376]));
            world.inject(peer(host), SERVER, &shard);
        }
        world.run_for(SECOND / 100);
        let memory = held(&mut world).1;
        assert!(memory <= (1 << 20) + SLACK, "{memory} bytes");
    }
    assert_eq!(listener.stats().connections.unvalidated, 8);
    let connections = 8 * (4_096 + 20 * 1_400);
    assert!(held(&mut world).1 > connections + 16_000, "the decoders hold something");
    drop(streams);
    world.run_for(MINUTE);
    assert_eq!(held(&mut world).1, 0);
}

#[test]
fn first_segment_is_taken_where_the_memory_is_too_small_for_the_parity_of_one_connection() {
    // Under a cipher too.
    let cipher = || Cipher::from_name("aes-128-gcm", &Key::derive("a passphrase", "salt")).unwrap();
    for early in [false, true] {
        let mut config = Config::new()
            .cipher(cipher())
            .redundancy(Redundancy::Fec(FecConfig::new(10, 100).unwrap()));
        (config.kcp.mtu, config.limits.memory) = (9_000, 16 << 20);
        let (mut world, listener) = server(&config);
        let client = Config::new().cipher(cipher());
        let endpoint = if early {
            world.endpoint(CLIENT, &client)
        } else {
            world.waiting_endpoint(CLIENT, &client)
        };
        world.finish(SECOND, greet(&endpoint, &listener));
        assert_eq!(listener.stats().dropped.replayed, 0);
    }
}

#[test]
fn first_data_under_a_cipher_that_is_overtaken_is_taken() {
    let cipher = || Cipher::from_name("aes-128-gcm", &Key::derive("a passphrase", "salt")).unwrap();
    // Data that overtakes the first data takes the quota of the peer, 16 KiB.
    for mtu in [1_400, 3_000] {
        let mut config = Config::new()
            .cipher(cipher())
            .redundancy(Redundancy::Fec(FecConfig::new(10, 100).unwrap()));
        (config.kcp.mtu, config.limits.memory) = (9_000, 16 << 20);
        let mut world = World::new(1, LinkConfig::delay(25_000));
        let listener = world.listener(SERVER, &config);
        let mut client = Config::new().cipher(cipher());
        client.kcp.mtu = mtu;
        let endpoint = world.waiting_endpoint(CLIENT, &client);
        // The initial segment, the pong that validates the peer, the first data.
        let fates = [0, 60_000, 20_000].map(Fate::Late);
        world.set_fates(CLIENT, fates);
        let (client, mut server) = world.finish(SECOND, async {
            let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
            client.write_all(&pattern(40_000)).await.unwrap();
            (client, listener.accept().await.unwrap().0)
        });
        world.finish(10 * SECOND, read_pattern(&mut server, 40_000));
        assert_eq!(listener.stats().dropped.replayed, 0, "{mtu}");
        drop(client);
    }
}
