//! Runtimes that end under their connections: the peers learn it at once.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{
    CLIENT, HOUR, MINUTE, Pair, SECOND, SERVER, cause, greet, pattern, write_until_error,
};
use super::sim_world::{World, addr};
use crate::config::{Config, Redundancy, WritePolicy};
use crate::crypto::{Algorithm, Cipher};
use crate::error::ConnectionError;
use crate::fec::FecConfig;
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
    // More than the window, and bytes that the driver has not seen.
    assert_eq!(server.try_write(&vec![1; 60_000]).unwrap(), 60_000);
    world.exit(SERVER);
    let error = world.finish(SECOND, client.read_to_end(&mut Vec::new())).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::Reset));
}

/// Rule: W-76.
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
                if server.stats().received.payload_bytes > 1_000_000 {
                    break;
                }
            }
        });
        // From here on unread data fills the windows.
        world.run_for(10 * SECOND);
        world.exit(SERVER);
        world.run_for(2 * SECOND);
        assert_eq!(cause(&result.try_recv().unwrap()), Some(ConnectionError::Reset));
    }
}

/// The end may come right after the data.
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
fn unanswered_attempt_ends_silently() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.port(9);
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
    world.spawn(async move { drop(endpoint.connect(addr(9)).await) });
    world.run_for(SECOND);
    let before = world.sent();
    world.exit(CLIENT);
    assert_eq!(world.sent(), before);
}

#[test]
fn bytes_written_right_before_a_runtime_ends_arrive_with_the_end() {
    let sealed = Config::new().cipher(Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap());
    let mut fec = Config::new().redundancy(Redundancy::Fec(FecConfig::new(4, 2).unwrap()));
    fec.duplicates = 1;
    let mut corked = Config::new();
    corked.kcp.write_policy = WritePolicy::Delayed;
    for (index, config) in [Config::new(), sealed, fec, corked].into_iter().enumerate() {
        for written in [5, 30_000] {
            let mut world = World::new(1, LinkConfig::delay(10_000));
            let listener = world.listener(SERVER, &config);
            let endpoint = world.waiting_endpoint(CLIENT, &config);
            let client = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
            assert_eq!(client.try_write(&pattern(written)).unwrap(), written);
            world.exit(CLIENT);
            let (mut server, _) = world.finish(SECOND, listener.accept()).unwrap();
            let mut got = Vec::new();
            let end = world.finish(SECOND, server.read_to_end(&mut got));
            assert!(end.is_ok() && got == pattern(written), "config {index}: {end:?}");
        }
    }
}

/// A clock that stands still an hour before any other test holds a thread. Threads that are held within a second share
/// their time.
#[expect(clippy::disallowed_methods, reason = "a clock is a function, which has no world")]
fn an_hour_ago() -> Instant {
    static TIME: LazyLock<Instant> = LazyLock::new(|| {
        let now = Instant::now();
        now.checked_sub(HOUR).unwrap_or(now)
    });
    *TIME
}

#[test]
fn thread_is_held_for_undelivered_data_alone_and_not_without_a_clock() {
    let clock: fn() -> Instant = an_hour_ago;
    for (clock, is_written, is_held) in
        [(None, true, false), (Some(clock), true, true), (Some(clock), false, false)]
    {
        let Pair { mut world, client, server: _server, .. } = Pair::plain();
        if is_written {
            client.try_write(b"lost").unwrap();
        }
        world.exit_with(CLIENT, clock);
        assert_eq!(world.was_held(CLIENT), is_held, "{clock:?}, written: {is_written}");
    }
}

/// A thread is held for undelivered bytes.
#[test]
fn bytes_are_undelivered_until_the_peer_has_them_or_the_connection_is_aborted() {
    fn undelivered(world: &mut World) -> Vec<bool> {
        let conns = &world.driver_of(CLIENT).routing.conns;
        conns.iter().map(|(_, conn)| conn.is_undelivered()).collect()
    }
    for (written, in_flight) in [(0, false), (5, true), (200_000, true)] {
        let Pair { mut world, client, server: _server, listener, .. } = Pair::plain();
        client.try_write(&pattern(written)).unwrap();
        world.run_ready();
        assert_eq!(undelivered(&mut world), [in_flight], "{written}");
        if written == 200_000 {
            client.abort();
            world.run_ready();
            assert_eq!(undelivered(&mut world), [false]);
        } else {
            world.run_for(SECOND);
            assert_eq!(undelivered(&mut world), [false]);
        }
        drop(listener);
    }
    // A peer that nothing was written to.
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.port(9);
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
    world.spawn(async move { drop(endpoint.connect(addr(9)).await) });
    world.run_for(SECOND / 10);
    assert_eq!(undelivered(&mut world), [false]);
    // One that early data was written to.
    let endpoint = world.endpoint(3, &Config::new());
    let client = world.finish(SECOND, endpoint.connect(addr(9))).unwrap();
    client.try_write(b"hello").unwrap();
    world.run_ready();
    let conns = &world.driver_of(3).routing.conns;
    assert!(conns.iter().all(|(_, conn)| conn.is_undelivered()));
}

/// At most the congestion window leaves, at once, and the peer learns that there was more.
#[test]
fn what_the_congestion_window_takes_leaves_before_the_reset() {
    let Pair { mut world, client, mut server, .. } = Pair::plain();
    let data = pattern(1 << 20);
    let written = client.try_write(&data).unwrap();
    assert!(written > 200_000, "{written}");
    let before = world.elapsed();
    world.exit(CLIENT);
    let mut got = Vec::new();
    let error = world.finish(SECOND, server.read_to_end(&mut got)).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::Reset));
    assert!((40_000..200_000).contains(&got.len()) && got == data[..got.len()], "{}", got.len());
    assert!(world.elapsed() - before < 15_000, "one way, not paced");
}

#[test]
fn every_connection_of_a_runtime_that_ends_sends_its_last_bytes() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    let endpoint = world.endpoint(CLIENT, &Config::new());
    let mut pairs = Vec::new();
    for _ in 0..200 {
        pairs.push(world.finish(SECOND, greet(&endpoint, &listener)));
    }
    world.run_for(SECOND);
    for (_, server) in &pairs {
        assert_eq!(server.try_write(&pattern(10_000)).unwrap(), 10_000);
    }
    world.exit(SERVER);
    for (client, _) in &mut pairs {
        let mut got = Vec::new();
        world.finish(SECOND, client.read_to_end(&mut got)).unwrap();
        assert!(got == pattern(10_000));
    }
}

/// The bytes open the connection. It is not known yet whether the peer understands a FIN.
#[test]
fn early_data_of_a_runtime_that_ends_opens_the_connection() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    let endpoint = world.endpoint(CLIENT, &Config::new());
    let client = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    client.try_write(b"hello").unwrap();
    world.exit(CLIENT);
    let (mut server, _) = world.finish(SECOND, listener.accept()).unwrap();
    let mut text = [0; 5];
    world.finish(SECOND, server.read_exact(&mut text)).unwrap();
    assert_eq!(&text, b"hello");
}

/// An unvalidated peer is sent three times what came from it, or one datagram.
#[test]
fn server_that_ends_behind_its_answer_keeps_to_the_amplification_limit() {
    for written in [6, 100_000] {
        let mut world = World::new(1, LinkConfig::delay(10_000));
        world.log();
        let listener = world.listener(SERVER, &Config::new());
        let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
        let (client, ()) = world.finish(SECOND, async {
            let serve = async {
                let (server, _) = listener.accept().await.unwrap();
                assert_eq!(server.try_write(&pattern(written)).unwrap(), written);
            };
            tokio::join!(endpoint.connect(addr(SERVER)), serve)
        });
        world.exit(SERVER);
        let sent = world.log();
        let bytes = |host| {
            let of = sent.iter().filter(|sent| sent.from == addr(host));
            of.map(|sent| sent.datagram.len()).sum::<usize>()
        };
        assert!(bytes(SERVER) <= (3 * bytes(CLIENT)).max(1_400), "{}", bytes(SERVER));
        let mut got = Vec::new();
        let end = world.finish(MINUTE, client.unwrap().read_to_end(&mut got));
        assert!(pattern(written).starts_with(&got), "{}", got.len());
        assert_eq!((end.is_ok(), got.len() == written), (written == 6, written == 6), "{end:?}");
    }
}

/// The peer's process ends once it has written everything and seen the end.
/// Rule: W-70.
#[test]
fn shutdown_is_ok_behind_an_exchange_whose_peer_has_ended() {
    // Before the server ends, the client reads the answer, all of it but a byte, or nothing.
    for read in [6, 5, 0] {
        let Pair { mut world, mut client, mut server, .. } = Pair::plain();
        world.finish(SECOND, async {
            client.write_all(b"request").await.unwrap();
            server.read_exact(&mut [0; 7]).await.unwrap();
            server.write_all(b"answer").await.unwrap();
            server.shutdown().await.unwrap();
            client.read_exact(&mut [0; 6][..read]).await.unwrap();
        });
        world.run_for(SECOND);
        drop(server);
        world.exit(SERVER);
        world.run_for(SECOND);
        assert_eq!(client.error(), Some(ConnectionError::Reset));
        world.finish(SECOND, async {
            client.flush().await.unwrap();
            client.shutdown().await.unwrap();
            let mut rest = Vec::new();
            assert_eq!(client.read_to_end(&mut rest).await.unwrap(), 6 - read);
        });
    }
}

#[test]
fn write_behind_an_exchange_whose_peer_has_ended_fails() {
    let Pair { mut world, mut client, mut server, .. } = Pair::plain();
    world.finish(SECOND, server.shutdown()).unwrap();
    world.run_for(SECOND);
    world.exit(SERVER);
    world.run_for(SECOND);
    world.finish(SECOND, async {
        let error = client.write_all(b"more").await.unwrap_err();
        assert_eq!(cause(&error), Some(ConnectionError::Reset));
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
    });
}

/// Data that the peer has not read or this side has not sent is lost, and `shutdown` reports it.
/// Rule: W-70.
#[test]
fn shutdown_fails_if_the_peer_that_ended_has_left_bytes_unread() {
    for on_its_way in [false, true] {
        let Pair { mut world, mut client, mut server, .. } = Pair::plain();
        world.finish(SECOND, server.shutdown()).unwrap();
        world.run_for(SECOND);
        client.try_write(b"unread").unwrap();
        world.run_for(if on_its_way { SECOND / 1_000 } else { SECOND });
        world.exit(SERVER);
        world.run_for(2 * SECOND);
        let error = world.finish(MINUTE, client.shutdown()).unwrap_err();
        assert!(error.kind() == std::io::ErrorKind::ConnectionReset || on_its_way, "{error}");
    }
}

/// The keepalive of a side that has not closed draws the RST of TIME-WAIT.
#[test]
fn shutdown_is_ok_behind_an_exchange_whose_peer_was_removed() {
    for unread in [false, true] {
        let Pair { mut world, mut client, mut server, listener, .. } = Pair::plain();
        world.finish(SECOND, async {
            client.write_all(b"request").await.unwrap();
            server.readable().await.unwrap();
            if !unread {
                server.read_exact(&mut [0; 7]).await.unwrap();
            }
            server.write_all(b"answer").await.unwrap();
            drop(server);
            let mut got = Vec::new();
            client.read_to_end(&mut got).await.unwrap();
        });
        world.run_for(40 * SECOND);
        assert_eq!(listener.stats().connections.current, 0);
        assert_eq!(client.error(), Some(ConnectionError::Reset));
        assert_eq!(world.finish(SECOND, client.shutdown()).is_ok(), !unread);
    }
}
