//! Runtimes that end under their connections: the peers learn it at once.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, cause, greet, write_until_error};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::crypto::{Algorithm, Cipher};
use crate::error::ConnectionError;
use crate::testkit::link::LinkConfig;

#[test]
fn peers_of_a_runtime_that_ends_read_the_end_at_once() {
    let sealed = Config::new().cipher(Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap());
    for config in [Config::new(), sealed] {
        for gone in [SERVER, CLIENT] {
            let Pair { mut world, mut client, mut server, .. } = Pair::new(&config, &config);
            world.log();
            world.exit(gone);
            assert_eq!(world.log().len(), 1, "one datagram");
            let before = world.elapsed();
            let left = if gone == SERVER { &mut client } else { &mut server };
            assert_eq!(world.finish(SECOND, left.read(&mut [0; 1])).unwrap(), 0);
            assert!(world.elapsed() - before < 15_000, "one way");
            let end = if gone == SERVER { &server } else { &client };
            assert_eq!(end.error(), Some(ConnectionError::RuntimeShutdown));
        }
    }
}

#[test]
fn peer_of_a_runtime_that_ends_with_data_unsent_is_reset() {
    let Pair { mut world, mut client, server, .. } = Pair::plain();
    world.finish(SECOND, client.write_all(b"ask")).unwrap();
    world.run_for(SECOND / 10);
    // More than the window, and what the driver has not seen.
    assert_eq!(server.try_write(&vec![1; 60_000]).unwrap(), 60_000);
    world.exit(SERVER);
    let error = world.finish(SECOND, client.read_to_end(&mut Vec::new())).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::Reset));
}

#[test]
fn reset_that_names_a_segment_of_15_seconds_ago_ends_the_connection() {
    let Pair { mut world, mut client, server, .. } = Pair::plain();
    world.finish(SECOND, client.write_all(b"ask")).unwrap();
    world.run_for(15 * SECOND);
    assert_eq!(server.try_write(&vec![1; 60_000]).unwrap(), 60_000);
    world.exit(SERVER);
    let before = world.elapsed();
    let error = world.finish(2 * SECOND, client.read_to_end(&mut Vec::new())).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::Reset));
    assert!((800_000..1_000_000).contains(&(world.elapsed() - before)), "five pings");
}

#[test]
fn writer_is_reset_when_the_runtime_of_its_reader_ends() {
    for reads in [true, false] {
        let Pair { mut world, client, mut server, .. } = Pair::plain();
        let mut result = write_until_error(&mut world, client);
        world.finish(MINUTE, async {
            while reads && server.read(&mut [0; 10_000]).await.unwrap() > 0 {
                if server.stats().received_bytes > 1_000_000 {
                    break;
                }
            }
        });
        // What is not read from here on fills the windows.
        world.run_for(10 * SECOND);
        world.exit(SERVER);
        world.run_for(2 * SECOND);
        assert_eq!(cause(&result.try_recv().unwrap()), Some(ConnectionError::Reset));
    }
}

/// However soon after the data.
#[test]
fn runtime_that_ends_resets_the_peer_exactly_if_data_is_unread() {
    for (after, read, dropped) in [0, 1_000, 20_000, 300_000].into_iter().flat_map(|after| {
        let cases = [(0, false), (0, true), (3, false), (3, true), (6, false), (6, true)];
        cases.map(|(read, dropped)| (after, read, dropped))
    }) {
        let Pair { mut world, mut client, mut server, .. } = Pair::plain();
        world.finish(SECOND, server.write_all(b"answer")).unwrap();
        world.finish(SECOND, client.readable()).unwrap();
        if read > 0 {
            world.finish(SECOND, client.read_exact(&mut [0; 6][..read])).unwrap();
        }
        world.run_for(Duration::from_micros(after));
        if dropped {
            drop(client);
        }
        world.exit(CLIENT);
        let end = world.finish(SECOND, server.read(&mut [0; 1]));
        let end = end.map_err(|error| cause(&error));
        let expected = if read == 6 { Ok(0) } else { Err(Some(ConnectionError::Reset)) };
        assert_eq!(end, expected, "{read} of 6 read, {after} us, dropped: {dropped}");
    }
}

#[test]
fn client_that_exits_behind_its_answer_ends_the_stream() {
    let Pair { mut world, mut client, mut server, .. } = Pair::plain();
    world.finish(SECOND, server.write_all(b"answer")).unwrap();
    world.finish(SECOND, client.read_exact(&mut [0; 6])).unwrap();
    drop(client);
    world.exit(CLIENT);
    assert_eq!(world.finish(SECOND, server.read(&mut [0; 1])).unwrap(), 0);
}

#[test]
fn data_in_flight_when_a_runtime_ends_is_read_before_the_end() {
    let Pair { mut world, client, mut server, .. } = Pair::plain();
    client.try_write(b"last words").unwrap();
    world.run_ready();
    world.exit(CLIENT);
    let mut text = Vec::new();
    assert_eq!(world.finish(SECOND, server.read_to_end(&mut text)).unwrap(), 10);
}

#[test]
fn aborted_stream_of_a_runtime_that_ends_is_reset() {
    let Pair { mut world, client, mut server, .. } = Pair::plain();
    world.finish(SECOND, server.write_all(b"number and timestamp of the RST")).unwrap();
    world.run_for(SECOND / 10);
    client.abort();
    world.exit(CLIENT);
    let error = world.finish(SECOND, server.read_to_end(&mut Vec::new())).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::Reset));
}

#[test]
fn every_peer_is_notified_until_the_socket_blocks() {
    for blocked in [false, true] {
        let mut world = World::new(1, LinkConfig::delay(10_000));
        let listener = world.listener(SERVER, &Config::new());
        let endpoint = world.endpoint(CLIENT, &Config::new());
        let mut pairs = Vec::new();
        for _ in 0..600 {
            pairs.push(world.finish(SECOND, greet(&endpoint, &listener)));
        }
        world.run_for(SECOND);
        if blocked {
            world.block_sends(SERVER, SECOND);
        }
        let before = world.sent();
        world.exit(SERVER);
        assert_eq!(world.sent() - before, if blocked { 0 } else { 600 });
        world.run_for(SECOND / 10);
        for (client, _) in &pairs {
            assert_eq!(client.try_read(&mut [0; 1]).is_ok(), !blocked);
        }
    }
}

#[test]
fn attempt_that_nobody_has_answered_ends_silently() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.port(9);
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
    world.spawn(async move { drop(endpoint.connect(addr(9)).await) });
    world.run_for(SECOND);
    let before = world.sent();
    world.exit(CLIENT);
    assert_eq!(world.sent(), before);
}
