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
    // Whatever opens is accepted and read.
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
    let received = server.stats().received_bytes;
    replay(&mut world, "during the connection");
    assert_eq!(server.stats().received_bytes, received, "{label}");
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

/// Two clients with the same conversation id, of which the second comes after `pause`. Returns how
/// many of them the listener has accepted, and how often it refused the second.
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
    (stats.current_connections as usize, stats.refused_conv_in_use)
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
