//! Recorded datagrams, replayed to a listener under every cipher: none delivers anything again.

use std::cell::Cell;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, SECOND, SERVER, greet, pattern, read_pattern};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::crypto::{Algorithm, Cipher, Key};
use crate::testkit::link::LinkConfig;

/// Transfers in both directions over a path that loses a tenth, so that initial segments and first
/// data are retransmitted, then replays all datagrams of the client: during the connection, at its
/// end and after TIME-WAIT; in order and each alone; from the client's address and from others.
fn replay_everything(algorithm: Algorithm, early: bool, seed: u64) {
    let cipher =
        Cipher::from_name(algorithm.name(), &Key::derive("a passphrase", "a salt")).unwrap();
    // Several attempts are lost one after the other.
    let config = Config::new().cipher(cipher).connect_timeout(MINUTE);
    let mut world = World::new(seed, LinkConfig { loss: 300_000, ..LinkConfig::delay(10_000) });
    world.log();
    let listener = world.listener(SERVER, &config);
    let endpoint = if early {
        world.endpoint(CLIENT, &config)
    } else {
        world.waiting_endpoint(CLIENT, &config)
    };
    let (mut client, mut server) = world.finish(MINUTE, greet(&endpoint, &listener));
    world.finish(MINUTE, async {
        client.write_all(&pattern(20_000)).await.unwrap();
        read_pattern(&mut server, 20_000).await;
        server.write_all(&pattern(20_000)).await.unwrap();
        read_pattern(&mut client, 20_000).await;
    });
    world.set_path(LinkConfig::delay(10_000));
    world.run_for(SECOND);
    let mut recorded = world.log();
    recorded.retain(|sent| sent.from == addr(CLIENT));
    // Every connection is accepted and read.
    let again = Rc::new(Cell::new(0));
    let count = again.clone();
    world.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buf = [0; 1_000];
            while let Ok(len @ 1..) = stream.read(&mut buf).await {
                count.set(count.get() + len);
            }
        }
    });
    let label = format!("{algorithm}, early data {early}, seed {seed}");
    let replay = |world: &mut World, when: &str| {
        for (host, gap) in [(77, false), (78, true), (CLIENT, false)] {
            for sent in &recorded {
                world.inject(addr(host), SERVER, &sent.datagram);
                if gap {
                    world.run_for(SECOND / 100);
                }
            }
            world.run_for(SECOND);
        }
        assert_eq!(again.get(), 0, "{label}, {when}: bytes delivered again");
    };
    let received = server.stats().received.payload_bytes;
    replay(&mut world, "during the connection");
    assert_eq!(server.stats().received.payload_bytes, received, "{label}");
    world.finish(MINUTE, async {
        client.write_all(&pattern(5_000)).await.unwrap();
        read_pattern(&mut server, 5_000).await;
        client.shutdown().await.unwrap();
        server.shutdown().await.unwrap();
    });
    drop((client, server));
    replay(&mut world, "after the end");
    world.run_for(2 * MINUTE);
    replay(&mut world, "after TIME-WAIT");
}

#[test]
fn replayed_datagrams_deliver_nothing_again_under_any_cipher() {
    for algorithm in Algorithm::ALL.iter().filter(|one| **one != Algorithm::Null) {
        for early in [false, true] {
            for seed in 1..=4 {
                replay_everything(*algorithm, early, seed);
            }
        }
    }
}

/// Two clients with the same conversation id; the second comes after `pause`. Returns how many of them the
/// listener has accepted, and how often it refused the second.
fn same_conv(cipher: Cipher, pause: std::time::Duration) -> (usize, u64) {
    const OTHER: u8 = 77;
    let config = Config::new().cipher(cipher).conv(Some(5));
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &config);
    let first = world.endpoint(CLIENT, &config);
    let _streams = world.finish(MINUTE, greet(&first, &listener));
    world.run_for(SECOND);
    world.crash(CLIENT);
    world.run_for(pause);
    let second = world.endpoint(OTHER, &config);
    let other = world.finish(SECOND, second.connect(addr(SERVER))).unwrap();
    other.try_write(b"hello").unwrap();
    world.run_for(SECOND);
    let stats = listener.stats();
    (stats.connections.current as usize, stats.refused.conv_in_use)
}

#[test]
fn conv_of_another_address_under_the_same_key_is_refused() {
    let aes = Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
    let (accepted, refused) = same_conv(aes.clone(), SECOND);
    assert!(accepted == 1 && refused > 1, "{accepted}, refused {refused} times");
    // A client that has restarted at another address, and one without a key.
    assert_eq!(same_conv(aes, 10 * SECOND), (2, 0));
    assert_eq!(same_conv(Cipher::null(), SECOND), (2, 0));
}

/// The datagrams of a client that hears nothing for five minutes, with their times in seconds.
fn unanswered_initial_segments(config: &Config) -> Vec<(u64, Vec<u8>)> {
    let mut config = config.clone();
    (config.kcp.dead_peer_timeout, config.kcp.idle_timeout) = (None, None);
    let mut world = World::new(7, LinkConfig::delay(10_000));
    world.log();
    let endpoint = world.endpoint(CLIENT, &config);
    let stream = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    stream.try_write(b"hello").unwrap();
    let sent = (0..300).flat_map(|second| {
        world.run_for(SECOND);
        world.log().into_iter().map(move |sent| (second, sent.datagram))
    });
    sent.collect()
}

#[test]
fn initial_segment_is_retransmitted_in_vain_for_a_minute_and_opens_later() {
    let cipher = Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
    let config = Config::new().cipher(cipher);
    let sent = unanswered_initial_segments(&config);
    println!("copies after {:?} s", sent.iter().map(|(at, _)| at).collect::<Vec<_>>());
    assert!(sent.iter().any(|(at, _)| (131..200).contains(at)));
    // A server that starts late takes the first datagram that comes.
    for late in [0, 70, 200] {
        let mut world = World::new(1, LinkConfig::delay(10_000));
        let listener = world.listener(SERVER, &config);
        let (_, first) = sent.iter().find(|(at, _)| *at >= late).unwrap();
        world.inject(addr(CLIENT), SERVER, first);
        world.run_for(SECOND);
        assert_eq!(listener.stats().connections.passive_opens, 1, "started after {late} s");
    }
    // A server whose answers do not arrive gives its connection up after 30 s, and TIME-WAIT ends a minute
    // later. Copies within 65 s are replays, and copies after 131 s open again.
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &config);
    let mut opened = Vec::new();
    for (at, datagram) in &sent {
        let elapsed = std::time::Duration::from_micros(world.elapsed());
        world.run_for((SECOND * (*at as u32)).saturating_sub(elapsed));
        let before = listener.stats().connections.passive_opens;
        world.inject(addr(CLIENT), SERVER, datagram);
        world.run_for(SECOND / 10);
        if listener.stats().connections.passive_opens > before {
            opened.push(*at);
        }
    }
    let stats = listener.stats();
    println!("opened after {opened:?} s, {} replays", stats.dropped.replayed);
    assert!(opened.len() >= 2 && (90..200).contains(&opened[1]), "{opened:?}");
    // Copies that were held back, all within a minute of the first.
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &config);
    world.inject(addr(CLIENT), SERVER, &sent[0].1);
    world.run_for(3 * MINUTE);
    for (_, kept) in sent.iter().filter(|(at, _)| *at <= 60) {
        world.run_for(SECOND);
        world.inject(addr(CLIENT), SERVER, kept);
        world.inject(addr(77), SERVER, kept);
    }
    world.run_for(SECOND);
    assert_eq!(listener.stats().connections.passive_opens, 1);
}

/// A client with a fixed port and conversation id that is killed and started again. `write`: each of its
/// connections carries data.
fn restart_with_fixed_conv(cipher: Cipher, write: bool) {
    let has_key = cipher.has_key();
    let config = Config::new().cipher(cipher).conv(Some(5));
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &config);
    let mut streams = Vec::new();
    for restart in 0..6 {
        world.log();
        let endpoint = world.waiting_endpoint(CLIENT, &config);
        let before = world.elapsed();
        let mut client = world.finish(MINUTE, endpoint.connect(addr(SERVER))).unwrap();
        let took = world.elapsed() - before;
        assert!(took < 3_000_000, "restart {restart} took {took} us");
        let (mut server, _) = world.finish(SECOND, listener.accept()).unwrap();
        if write {
            world.finish(SECOND, async {
                client.write_all(&pattern(3_000)).await.unwrap();
                read_pattern(&mut server, 3_000).await;
                server.write_all(&pattern(3_000)).await.unwrap();
                read_pattern(&mut client, 3_000).await;
            });
        }
        world.run_for(SECOND);
        world.crash(CLIENT);
        // Datagrams that the client has sent so far open nothing again, from any address.
        let opened = listener.stats().connections.passive_opens;
        let recorded = if has_key { world.log() } else { Vec::new() };
        for sent in recorded.iter().filter(|sent| sent.from == addr(CLIENT)) {
            for host in [CLIENT, 77] {
                world.inject(addr(host), SERVER, &sent.datagram);
            }
        }
        world.run_for(SECOND / 10);
        assert_eq!(listener.stats().connections.passive_opens, opened, "restart {restart}");
        streams.push((client, server));
    }
}

/// Rule: W-98.
#[test]
fn client_with_a_fixed_port_and_conv_connects_after_every_restart() {
    let aes = || Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
    for cipher in [aes(), Cipher::null()] {
        let has_key = cipher.has_key();
        for write in [true, false] {
            println!("key: {has_key}, data: {write}");
            restart_with_fixed_conv(cipher.clone(), write);
        }
    }
}
