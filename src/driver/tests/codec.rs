//! Ciphers, FEC and out-of-band datagrams in whole endpoints; reflected, replayed and forged
//! packets.

use tokio::io::AsyncWriteExt;

use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, greet, pattern, push, read_pattern};
use super::resource_limits::turn;
use super::sim_world::addr;
use crate::config::{Config, Redundancy};
use crate::crypto::{Algorithm, Cipher, Key};
use crate::fec::FecConfig;
use crate::testkit::link::LinkConfig;

fn cipher(algorithm: Algorithm) -> Cipher {
    Cipher::from_name(algorithm.name(), &Key::derive("a passphrase", "a salt")).unwrap()
}

fn with_cipher(algorithm: Algorithm) -> Config {
    Config::new().cipher(cipher(algorithm))
}

fn with_fec(data: usize, parity: usize) -> Config {
    Config::new().redundancy(Redundancy::Fec(FecConfig::new(data, parity).unwrap()))
}

/// A packet with a FEC header: shard number, flag, size.
fn shard(seqid: u32, kind: u16, inner: &[u8]) -> Vec<u8> {
    let mut packet = seqid.to_le_bytes().to_vec();
    packet.extend_from_slice(&kind.to_le_bytes());
    packet.extend_from_slice(&(inner.len() as u16 + 2).to_le_bytes());
    packet.extend_from_slice(inner);
    packet
}

/// A bulk transfer over a path that loses `loss` in a million. Returns the retransmissions of the sender in
/// percent, and the number of shards that the receiver reconstructed.
fn bulk(config: &Config, seed: u64, loss: u32) -> (f64, u64) {
    let pair = Pair::seeded(seed, config, config);
    pair.world.set_path(LinkConfig { loss, ..LinkConfig::delay(20_000) });
    let Pair { mut world, mut client, mut server, .. } = pair;
    let len = 4_000_000;
    world.finish(MINUTE, async {
        let data = pattern(len);
        let write = async {
            client.write_all(&data).await.unwrap();
            client.shutdown().await.unwrap();
        };
        tokio::join!(write, read_pattern(&mut server, len));
    });
    (client.stats().retransmit_percent(), server.stats().fec.recovered_shards)
}

#[test]
fn fec_reduces_retransmissions() {
    for seed in 1..=3 {
        let (without, none) = bulk(&Config::new(), seed, 50_000);
        let (with, recovered) = bulk(&with_fec(10, 3), seed, 50_000);
        println!("seed {seed}: {without:.1} % retransmitted without FEC, {with:.1} % with 10/3");
        assert!(with < without / 2.0, "seed {seed}: {with} of {without}");
        assert!(none == 0 && recovered > 50, "seed {seed}: {recovered}");
    }
}

/// Rule: P-59.
#[test]
fn reflected_packets_are_dropped_with_every_cipher() {
    for algorithm in Algorithm::ALL {
        let config = with_cipher(*algorithm);
        let Pair { mut world, mut client, mut server, endpoint, .. } = Pair::new(&config, &config);
        world.log();
        world.finish(SECOND, async {
            client.write_all(&pattern(20_000)).await.unwrap();
            // Everything is reflected before it is acknowledged, from the peer's address.
        });
        let sent = world.log();
        let ours: Vec<_> = sent.iter().filter(|sent| sent.from == addr(CLIENT)).collect();
        assert!(ours.len() >= 14);
        for sent in &ours {
            world.inject(addr(SERVER), CLIENT, &sent.datagram);
        }
        world.run_for(SECOND / 10);
        assert_eq!(endpoint.stats().dropped.reflected, ours.len() as u64, "{algorithm}");
        world.finish(SECOND, async {
            read_pattern(&mut server, 20_000).await;
            server.write_all(&pattern(20_000)).await.unwrap();
            read_pattern(&mut client, 20_000).await;
            client.shutdown().await.unwrap();
        });
    }
}

#[test]
fn reflected_packets_after_a_delay_are_dropped() {
    for fec in [None, Some(FecConfig::new(10, 3).unwrap())] {
        let mut config = Config::new();
        config.kcp.redundancy = fec.map_or(Redundancy::Off, Redundancy::Fec);
        let Pair { mut world, mut client, mut server, endpoint, .. } = Pair::new(&config, &config);
        world.log();
        world.finish(SECOND, async {
            client.write_all(&pattern(40_000)).await.unwrap();
            read_pattern(&mut server, 40_000).await;
            client.shutdown().await.unwrap();
        });
        let sent = world.log();
        let ours = sent.iter().filter(|sent| sent.from == addr(CLIENT));
        let shards = client.stats().fec.data_shards;
        ours.for_each(|sent| world.inject(addr(SERVER), CLIENT, &sent.datagram));
        world.run_for(SECOND / 10);
        assert!(endpoint.stats().dropped.reflected >= 29);
        assert_eq!(client.stats().received.payload_bytes, 0);
        // The reflected shards do not reach the FEC decoder.
        assert!(client.stats().fec.data_shards <= shards + 2);
    }
}

#[test]
fn replayed_initial_datagram_opens_no_connection() {
    for algorithm in Algorithm::ALL.iter().filter(|one| **one != Algorithm::Null) {
        let config = with_cipher(*algorithm);
        let Pair { mut world, listener, endpoint, mut client, server: _server, .. } =
            Pair::new(&config, &config);
        let sent = world.log();
        let initial = sent.iter().find(|sent| sent.from == addr(CLIENT)).unwrap();
        // From addresses without a connection, and from the original one.
        for from in [addr(77), addr(78), addr(CLIENT)] {
            world.inject(from, SERVER, &initial.datagram);
        }
        world.run_for(SECOND / 10);
        let stats = listener.stats();
        // With a key the first two are refused, since their conversation id is in use. With an AEAD they may
        // come from the peer at a new address, and draw one short PATH_CHALLENGE each.
        let (in_use, challenged) = match *algorithm {
            Algorithm::None => (0, 0),
            algorithm if algorithm.is_aead() => (0, 2),
            _ => (2, 0),
        };
        let counts =
            (stats.connections.passive_opens, stats.refused.conv_in_use, stats.dropped.replayed);
        assert_eq!(counts, (1, in_use, 3 - in_use - challenged), "{algorithm}");
        let sent = world.log();
        let answers = sent.iter().filter(|sent| [addr(77), addr(78)].contains(&sent.to));
        assert!(answers.clone().all(|answer| answer.datagram.len() <= initial.datagram.len()));
        assert_eq!(answers.count() as u64, challenged, "{algorithm}");
        assert_eq!(stats.connections.migrations, 0);
        // Another connection with the same initial data opens.
        let (mut second, mut answer) = world.finish(SECOND, greet(&endpoint, &listener));
        world.finish(SECOND, async {
            second.write_all(&pattern(5_000)).await.unwrap();
            read_pattern(&mut answer, 5_000).await;
            client.write_all(&pattern(10)).await.unwrap();
        });
        assert_eq!(listener.stats().connections.passive_opens, 2);
    }
}

#[test]
fn replay_window_drops_replayed_datagrams() {
    let mut config = with_cipher(Algorithm::Aes128Gcm);
    config.replay_window = 1_000;
    let Pair { mut world, listener, mut client, mut server, .. } = Pair::new(&config, &config);
    world.finish(SECOND, async {
        client.write_all(&pattern(50_000)).await.unwrap();
        read_pattern(&mut server, 50_000).await;
    });
    let taken = server.stats().received.datagrams;
    let sent = world.log();
    let recorded: Vec<_> = sent.iter().filter(|sent| sent.from == addr(CLIENT)).collect();
    recorded.iter().for_each(|sent| world.inject(addr(CLIENT), SERVER, &sent.datagram));
    world.run_for(SECOND);
    assert_eq!(listener.stats().dropped.replayed, recorded.len() as u64);
    assert_eq!(server.stats().received.datagrams, taken);
}

#[test]
fn wrong_key_datagrams_are_dropped() {
    let server = with_cipher(Algorithm::Aes256Gcm);
    for algorithm in Algorithm::ALL {
        let mut client = with_cipher(*algorithm);
        if *algorithm == Algorithm::Aes256Gcm {
            client.cipher = Cipher::new(*algorithm, &[1; 32]).unwrap();
        }
        let mut world = super::sim_world::World::new(3, LinkConfig::delay(10_000));
        let listener = world.listener(SERVER, &server);
        let endpoint = world.endpoint(CLIENT, &client);
        let mut stream = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
        world.finish(SECOND, async { stream.write_all(b"let me in").await.unwrap() });
        world.run_for(SECOND / 2);
        let stats = listener.stats();
        assert_eq!((stats.connections.passive_opens, stats.sent.datagrams), (0, 0), "{algorithm}");
        assert!(stats.dropped.checksum > 0);
        assert_eq!(stats.dropped.checksum, stats.received.datagrams);
    }
}

#[test]
fn mtu_bounds_datagrams_with_fec_and_cipher() {
    for algorithm in Algorithm::ALL {
        for fec in [None, Some(FecConfig::new(3, 1).unwrap())] {
            for mtu in [100, 576, 1_400, 1_500] {
                let mut config = with_cipher(*algorithm).mtu(mtu);
                config.kcp.redundancy = fec.map_or(Redundancy::Off, Redundancy::Fec);
                let Pair { mut world, mut client, mut server, .. } = Pair::new(&config, &config);
                world.finish(SECOND, async {
                    client.write_all(&pattern(20_000)).await.unwrap();
                    read_pattern(&mut server, 20_000).await;
                });
                let largest = world.log().iter().map(|sent| sent.datagram.len()).max();
                assert_eq!(largest, Some(usize::from(mtu)), "{algorithm} {fec:?}");
            }
        }
    }
}

#[test]
fn fec_parity_is_decoded_without_configuration() {
    // The receiver has no FEC configured: autotune learns the layout from the shards.
    let Pair { mut world, mut client, mut server, .. } = Pair::new(&with_fec(5, 2), &Config::new());
    world.set_path(LinkConfig { loss: 50_000, ..LinkConfig::delay(10_000) });
    world.finish(MINUTE, async {
        let (data, len) = (pattern(2_000_000), 2_000_000);
        tokio::join!(
            async { client.write_all(&data).await.unwrap() },
            read_pattern(&mut server, len)
        );
    });
    assert!(server.stats().fec.recovered_shards > 20, "{:?}", server.stats().fec);
}

#[test]
fn fec_ratio_change_in_flight_loses_nothing() {
    let config = with_fec(10, 3);
    let Pair { mut world, mut client, mut server, .. } = Pair::new(&config, &config);
    world.set_path(LinkConfig { loss: 50_000, ..LinkConfig::delay(10_000) });
    let mut before = 0;
    for (data, parity) in [(3, 1), (20, 5), (1, 1), (10, 3)] {
        client.set_fec(FecConfig::new(data, parity).unwrap()).unwrap();
        // The decoder adopts a new layout at most once a second.
        world.run_for(SECOND * 2);
        // The time to learn a layout depends on which shards are lost: 4 MB pass within 60 ms, and may be too
        // few.
        let recovered = (0..3).map(|_| {
            world.finish(MINUTE, async {
                let bytes = pattern(4_000_000);
                let write = async { client.write_all(&bytes).await.unwrap() };
                tokio::join!(write, read_pattern(&mut server, 4_000_000));
            });
            server.stats().fec.recovered_shards
        });
        let recovered = recovered.last().unwrap();
        assert!(recovered > before + 10, "{data}/{parity}: {recovered} after {before}");
        before = recovered;
    }
}

#[test]
fn fec_state_of_an_address_ends_with_its_last_connection() {
    let config = with_fec(2, 2);
    let Pair { mut world, listener, endpoint, client, mut server, .. } =
        Pair::new(&config, &config);
    let (second, other) = world.finish(SECOND, greet(&endpoint, &listener));
    drop((client, second));
    world.finish(SECOND, async { server.write_all(b"still here").await.unwrap() });
    drop((server, other));
    world.run_for(MINUTE * 3);
    assert!(world.driver_of(SERVER).routing.peers.is_empty());
    // A new client at the same address counts its shards from zero again.
    let (mut client, mut server) = world.finish(SECOND, greet(&endpoint, &listener));
    world.set_path(LinkConfig { loss: 100_000, ..LinkConfig::delay(10_000) });
    world.finish(MINUTE, async {
        let data = pattern(500_000);
        let write = async { client.write_all(&data).await.unwrap() };
        tokio::join!(write, read_pattern(&mut server, 500_000));
    });
    assert!(server.stats().fec.recovered_shards > 20);
}

/// Rules: W-147, W-149.
#[test]
fn fec_from_unvalidated_addresses_is_not_decoded() {
    let config = with_fec(2, 2);
    let Pair { mut world, listener, client, server: _server, .. } = Pair::new(&config, &config);
    let before = listener.stats();
    // Parity of an unknown peer, and out-of-band packets without a connection.
    world.inject(addr(50), SERVER, &shard(2, 0xf2, &[7; 100]));
    world.inject(addr(50), SERVER, &shard(u32::MAX, 0xf3, &client.conv().to_le_bytes()));
    world.inject(addr(CLIENT), SERVER, &shard(u32::MAX, 0xf3, &[1, 2, 3, 4]));
    // A data shard of an unknown peer without an initial segment in it.
    world.inject(addr(50), SERVER, &shard(0, 0xf1, &push(9, 3, b"late")));
    world.run_for(SECOND);
    let stats = listener.stats();
    assert_eq!((stats.connections.passive_opens, stats.connections.current), (1, 1));
    assert_eq!(stats.dropped.no_connection - before.dropped.no_connection, 4);
    // A data shard with an initial segment opens a connection.
    world.inject(addr(50), SERVER, &shard(0, 0xf1, &push(9, 0, b"hello")));
    world.run_for(SECOND);
    assert_eq!(listener.stats().connections.passive_opens, 2);
}

#[test]
fn out_of_band_datagrams_alternate_with_a_full_window() {
    let config = with_fec(10, 3);
    let Pair { mut world, client, server: _server, .. } = Pair::near(&config, &config);
    // Enough data to learn that the remote window is wide.
    client.try_write(&pattern(10_000)).unwrap();
    world.run_for(SECOND);
    client.try_write(&pattern(100_000)).unwrap();
    (0..10).for_each(|_| client.datagrams().send(b"oob-dg").unwrap());
    let (_, sent) = turn(&mut world, CLIENT);
    let kinds: Vec<_> = sent.iter().map(|sent| sent.datagram[4]).filter(|k| *k != 0xf2).collect();
    assert_eq!(kinds[..20], [0xf3, 0xf1].repeat(10), "{kinds:x?}");
    assert!(kinds.len() > 70 && kinds[20..].iter().all(|kind| *kind == 0xf1));
}

#[test]
fn out_of_band_queue_is_bounded_and_rate_limited() {
    let config = with_fec(10, 3);
    let Pair { mut world, client, server, .. } = Pair::new(&config, &config);
    // Until then the queue of the server takes 16 KiB.
    let at_server = server.datagrams();
    let largest = client.datagrams().max_size().unwrap();
    assert_eq!(largest, 1_388);
    for i in 0..1_000_u32 {
        let mut datagram = vec![0; largest];
        datagram[..4].copy_from_slice(&i.to_le_bytes());
        client.datagrams().send(&datagram).unwrap();
    }
    world.run_for(SECOND);
    let kept = 256 * 1024 / largest as u64;
    assert_eq!(client.stats().out_of_band.dropped, 1_000 - kept);
    assert_eq!(
        (client.stats().out_of_band.sent, server.stats().out_of_band.received),
        (kept, kept)
    );
    // The queue drops the oldest datagrams.
    let first = at_server.try_recv().unwrap();
    assert_eq!(first[..4], (1_000 - kept as u32).to_le_bytes());

    // Datagrams that the rate limit holds back are bounded by the same queue.
    client.set_rate_limit(std::num::NonZeroU64::new(1_000));
    let before = client.stats();
    for _ in 0..50 {
        (0..20).for_each(|_| client.datagrams().send(&vec![0; largest]).unwrap());
        world.run_for(SECOND / 1_000);
    }
    let stats = client.stats();
    let gone = stats.out_of_band.dropped + stats.out_of_band.sent;
    assert!(gone - before.out_of_band.dropped - before.out_of_band.sent >= 1_000 - kept);
    world.run_for(MINUTE * 10);

    client.set_rate_limit(std::num::NonZeroU64::new(10_000));
    (0..50).for_each(|_| client.datagrams().send(&vec![0; largest]).unwrap());
    let before = server.stats().out_of_band.received;
    world.run_for(SECOND);
    let more = server.stats().out_of_band.received - before;
    assert!((6..=8).contains(&more), "{more} of 1,400 bytes in a second of 10,000");
    // Out-of-band datagrams do not block the stream.
    (0..150).for_each(|_| client.datagrams().send(&vec![0; largest]).unwrap());
    let (mut client, mut server) = (client, server);
    world.finish(SECOND * 3, async {
        client.write_all(&pattern(5_000)).await.unwrap();
        read_pattern(&mut server, 5_000).await;
    });
}
