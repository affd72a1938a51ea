//! The memory that all connections share, `Limits::memory`.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{MINUTE, SECOND, SERVER, micros, pattern, push};
use super::sim_world::{World, addr};
use crate::config::{Config, Mode};
use crate::core::segment::{Command, Header, Segments};
use crate::core::seq::Sn;
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;
use crate::testkit::seeds::Seeds;

/// Bytes that all connections may hold.
const LIMIT: usize = 16 << 20;
/// Peers that fill all memory they get, hosts from [`FIRST`] on.
const PEERS: u8 = 200;
const FIRST: u8 = 10;

fn server(memory: usize) -> (World, KcpListener) {
    let mut config = Config::new();
    config.limits.memory = memory;
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &config);
    (world, listener)
}

/// Opens a connection with a simulated peer, and answers its ping with a window of `wnd`.
fn open(world: &mut World, listener: &KcpListener, host: u8, wnd: u16) -> KcpStream {
    world.port(host);
    world.inject(addr(host), SERVER, &push(7, 0, b"x"));
    let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    world.run_for(SECOND / 100);
    let arrived = world.arrived(host);
    let headers = arrived.iter().flat_map(|datagram| Segments::new(datagram)).map(|(h, _)| h);
    let ping = headers.into_iter().find(|h| h.command == Command::Push && h.len == 0).unwrap();
    let mut pong = Vec::new();
    Header { command: Command::Ack, frg: 0, wnd, una: Sn(0), ..ping }.emit(&mut pong);
    world.inject(addr(host), SERVER, &pong);
    world.run_for(SECOND / 100);
    stream
}

/// Memory of the data of all connections.
fn data(world: &mut World) -> usize {
    world.driver_of(SERVER).routing.conns.iter().map(|(_, conn)| conn.data_memory()).sum()
}

#[test]
fn validated_peers_that_fill_their_windows_share_one_memory_limit() {
    let (mut world, listener) = server(LIMIT);
    let mut streams: Vec<_> =
        (0..PEERS).map(|peer| open(&mut world, &listener, FIRST + peer, 128)).collect();
    let mut most = 0;
    for peer in 0..PEERS {
        // Half of them after a gap, so that nothing can be read, the others in order, where nothing is read.
        let first = if peer.is_multiple_of(2) { 1 } else { 2 };
        for sn in 0..300 {
            world.inject(addr(FIRST + peer), SERVER, &push(7, first + sn, &[1; 1_376]));
        }
        world.run_for(SECOND / 100);
        most = most.max(data(&mut world));
    }
    println!("{most} bytes of {LIMIT}");
    assert!(most <= LIMIT / 10 * 11, "{most} bytes");
    // A new client is served, and no acknowledged data is lost.
    let client = world.endpoint(2, &Config::new());
    let sent = pattern(200_000);
    world.finish(MINUTE, async {
        let mut client = client.connect(addr(SERVER)).await.unwrap();
        client.write_all(&sent).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let mut got = vec![0; sent.len()];
        server.read_exact(&mut got).await.unwrap();
        assert!(got == sent, "other bytes than were sent");
    });
    for (stream, received) in streams.iter_mut().zip((0..).map(|peer| peer % 2 == 0)) {
        let segments = stream.stats().received.segments as usize;
        let expected = if received { 1 + (segments - 1) * 1_376 } else { 1 };
        let mut got = vec![0; expected];
        world.finish(SECOND, stream.read_exact(&mut got)).unwrap();
    }
    drop(streams);
    world.run_for(2 * MINUTE);
    assert_eq!(world.driver_of(SERVER).memory.used(), 0);
}

#[test]
fn peers_with_a_closed_window_make_a_server_hold_no_more_than_the_limit() {
    let (mut world, listener) = server(LIMIT);
    let block = vec![1; 65_536];
    let mut streams = Vec::new();
    let mut most = 0;
    for peer in 0..PEERS {
        streams.push(open(&mut world, &listener, FIRST + peer, 0));
        for _ in 0..20 {
            // Like a writer that is woken again and again.
            streams.iter().for_each(|stream| while stream.try_write(&block).is_ok() {});
            if world.run_ready() == 0 {
                break;
            }
        }
        most = most.max(data(&mut world));
    }
    println!("{most} bytes of {LIMIT}");
    assert!(most <= LIMIT / 10 * 11, "{most} bytes");
    // Dropped, they end within seconds, long before `linger`.
    drop(streams);
    world.run_for(Duration::from_secs(7));
    assert!(data(&mut world) < LIMIT / 2, "{} bytes", data(&mut world));
}

#[test]
fn writes_to_all_connections_between_two_turns_keep_to_the_limit() {
    let (mut world, listener) = server(LIMIT);
    let block = vec![1; 65_536];
    let streams: Vec<_> =
        (0..PEERS).map(|peer| open(&mut world, &listener, FIRST + peer, 0)).collect();
    for _ in 0..20 {
        streams.iter().for_each(|stream| while stream.try_write(&block).is_ok() {});
        let held = data(&mut world);
        assert!(held <= LIMIT / 10 * 11, "{held} bytes");
        world.run_ready();
    }
    assert!(data(&mut world) > LIMIT / 4, "each may write something");
}

/// The window of the segment that answers data of a peer. `ends`: a connection with unread bytes ends in the
/// same turn, before.
fn window_beside_an_unread_connection(ends: bool) -> u16 {
    const LAST: u32 = 1_200;
    let (mut world, listener) = server(1 << 20);
    let mut peer = open(&mut world, &listener, FIRST, 128);
    let endpoint = world.endpoint(2, &Config::new());
    let (client, _unread) = world.finish(SECOND, async {
        let client = endpoint.connect(addr(SERVER)).await.unwrap();
        client.try_write(&vec![1; 200_000]).unwrap();
        (client, listener.accept().await.unwrap().0)
    });
    world.run_for(2 * SECOND);
    world.finish(SECOND, peer.read_exact(&mut [0; 1])).unwrap();
    // Passes the window that was advertised before the peer was validated.
    for sn in 1..LAST {
        world.inject(addr(FIRST), SERVER, &push(7, sn, b"x"));
        world.finish(SECOND, peer.read_exact(&mut [0; 1])).unwrap();
    }
    world.arrived(FIRST);
    let ended = |world: &mut World| world.driver_of(SERVER).routing.conns.len() == 1;
    if ends {
        client.abort();
        world.run_ready();
    }
    assert!(!ended(&mut world));
    world.inject(addr(FIRST), SERVER, &push(7, LAST, b"x"));
    world.run_for(Duration::from_millis(1));
    assert_eq!(ended(&mut world), ends);
    world.run_for(SECOND / 20);
    let arrived = world.arrived(FIRST);
    let mut headers = arrived.iter().flat_map(|datagram| Segments::new(datagram)).map(|(h, _)| h);
    headers.find(|header| header.command == Command::Ack && header.sn == Sn(LAST)).unwrap().wnd
}

#[test]
fn unread_bytes_of_a_connection_that_ends_count_for_the_next_in_the_same_turn() {
    let [before, after] = [false, true].map(window_beside_an_unread_connection);
    assert!(before < 200 && after.abs_diff(before) <= 3, "{before}, then {after}");
}

/// A turn serves a few connections, and the others may be written to again before their turn.
#[test]
fn writes_to_all_connections_over_many_turns_keep_to_the_limit() {
    let (mut world, listener) = server(LIMIT);
    let block = vec![1; 65_536];
    let streams: Vec<_> =
        (0..PEERS).map(|peer| open(&mut world, &listener, FIRST + peer, 128)).collect();
    let mut written = 0;
    for _ in 0..100 {
        for stream in &streams {
            while let Ok(bytes) = stream.try_write(&block) {
                written += bytes;
            }
        }
        let held = data(&mut world);
        assert!(held <= LIMIT / 10 * 11, "{held} bytes");
        let now = world.now();
        world.driver_of(SERVER).turn(now);
    }
    assert!(written > LIMIT / 4, "{written} bytes");
}

/// Clients exchange data with a server. Either side's readers pause first.
fn run(seed: u64) {
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let limit = rng.pick(&[256 << 10, 1 << 20, 4 << 20]);
    let mut config = Config::new();
    config.limits.memory = limit;
    if rng.chance(300_000) {
        config.kcp.mode = Mode::Message;
    }
    let client = Config { limits: Config::new().limits, ..config.clone() };
    let mut path = LinkConfig::delay(rng.spread(100, 50_000));
    (path.loss, path.reorder, path.reorder_by) =
        (rng.pick(&[0, 10_000, 50_000]), rng.pick(&[0, 50_000]), 10_000);
    let mut world = World::new(seed, path);
    let listener = world.listener(SERVER, &config);
    let clients = 1 + rng.below(12) as u8;
    let pause = Duration::from_millis(rng.below(5_000));
    let done = Rc::new(Cell::new(0));
    let started = Rc::new(Cell::new(false));
    for host in 0..clients {
        let endpoint = world.endpoint(FIRST + host, &client);
        let len = rng.spread(1, 300_000) as usize;
        let (mut echo, mut sent) = (vec![0; len], pattern(len));
        sent[0] = host;
        let (done, started) = (done.clone(), started.clone());
        world.spawn(async move {
            let (mut reader, mut writer) =
                endpoint.connect(addr(SERVER)).await.unwrap().into_split();
            let write = async {
                writer.write_all(&(len as u32).to_le_bytes()).await.unwrap();
                for piece in sent.chunks(1_000) {
                    writer.write_all(piece).await.unwrap();
                }
                writer.flush().await.unwrap();
            };
            let read = async { reader.read_exact(&mut echo).await.unwrap() };
            tokio::join!(write, read);
            assert!(echo == sent, "client {host} got other bytes than it sent");
            assert!(started.get(), "nothing was read before");
            done.set(done.get() + 1);
        });
    }
    let end = Rc::new(started.clone());
    world.spawn(async move {
        let mut servers: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
        std::future::poll_fn(|cx| {
            while let std::task::Poll::Ready(accepted) = listener.poll_accept(cx) {
                let (mut stream, _) = accepted.unwrap();
                let started = end.clone();
                servers.push(Box::pin(async move {
                    std::future::poll_fn(|_| {
                        if started.get() {
                            std::task::Poll::Ready(())
                        } else {
                            std::task::Poll::Pending
                        }
                    })
                    .await;
                    let mut len = [0; 4];
                    stream.read_exact(&mut len).await.unwrap();
                    let mut left = u32::from_le_bytes(len) as usize;
                    while left > 0 {
                        let chunk = stream.read_chunk().await.unwrap();
                        left -= chunk.len();
                        for piece in chunk.chunks(1_000) {
                            stream.write_all(piece).await.unwrap();
                        }
                    }
                }));
            }
            servers.retain_mut(|server| server.as_mut().poll(cx).is_pending());
            std::task::Poll::<()>::Pending
        })
        .await;
    });
    let bound = limit + usize::from(clients) * (32 << 10) + (64 << 10);
    for step in 0.. {
        world.run_for(SECOND / 50);
        let driver = world.driver_of(SERVER);
        let used = driver.memory.used();
        assert!(used <= bound, "{used} bytes, the limit is {limit}");
        #[cfg(feature = "_testkit")]
        driver.check_invariants();
        if world.elapsed() >= micros(pause) && !started.replace(true) {
            world.wake_tasks();
        }
        if done.get() == clients {
            return;
        }
        assert!(step < 50 * 600, "{} of {clients} are done", done.get());
    }
}

#[test]
fn transfers_under_memory_pressure_complete_once_it_ends() {
    Seeds::or(0..60).iter().for_each(run);
}

#[test]
fn unread_data_counts_after_the_connection_was_reset() {
    let (mut world, listener) = server(LIMIT);
    let (mut streams, block) = (Vec::new(), vec![1; 65_536]);
    for round in 0..60 {
        let client = world.endpoint(FIRST + round, &Config::new());
        let stream = world.finish(MINUTE, async {
            let mut client = client.connect(addr(SERVER)).await.unwrap();
            client.write_all(b"x").await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            while client.try_write(&block).is_ok() {}
            (client, stream)
        });
        world.run_for(5 * SECOND);
        stream.0.abort();
        world.run_for(SECOND);
        assert!(stream.1.error().is_some());
        streams.push(stream.1);
    }
    assert_eq!(listener.stats().connections.current, 0);
    let used = world.driver_of(SERVER).memory.used();
    assert!((LIMIT / 3..LIMIT).contains(&used), "{used} bytes");
    // The driver has had a turn.
    let used_later = |world: &mut World| {
        let late = world.endpoint(2, &Config::new());
        world.finish(SECOND, async {
            late.connect(addr(SERVER)).await.unwrap().write_all(b"x").await.unwrap();
            drop(listener.accept().await.unwrap());
        });
        world.run_for(MINUTE);
        world.driver_of(SERVER).memory.used()
    };
    assert_eq!(used_later(&mut world), used);
    let mut read = Vec::new();
    for stream in &mut streams[..30] {
        assert!(world.finish(SECOND, stream.read_to_end(&mut read)).is_err());
    }
    let left = used_later(&mut world);
    assert!(
        read.len() > LIMIT / 8 && used - left >= read.len(),
        "{} read, {left} left",
        read.len()
    );
    drop(streams);
    assert_eq!(used_later(&mut world), 0);
}

#[test]
fn one_writer_among_idle_connections_may_write_as_much_as_one_alone() {
    let (mut world, listener) = server(LIMIT);
    let streams: Vec<_> =
        (0..PEERS).map(|peer| open(&mut world, &listener, FIRST + peer, 0)).collect();
    let written = streams[0].try_write(&vec![1; 1 << 20]).unwrap();
    assert_eq!(written, Config::new().send_buffer);
    assert_eq!(streams[1].try_write(&vec![1; 1 << 20]).unwrap(), written);
}

/// Dropped data is answered, so the sender waits for the reader as with a closed window.
#[test]
fn dropped_stream_reaches_a_reader_whose_endpoint_is_short_of_memory() {
    let (mut world, listener) = server(256 << 10);
    let client = world.endpoint(2, &Config::new().linger(3 * SECOND));
    let fillers: Vec<_> = (0..10)
        .map(|peer| {
            let stream = open(&mut world, &listener, FIRST + peer, 128);
            (0..100).for_each(|sn| {
                world.inject(addr(FIRST + peer), SERVER, &push(7, 1 + sn, &[1; 1_376]));
            });
            world.run_for(SECOND / 100);
            stream
        })
        .collect();
    let sent = pattern(100_000);
    let mut server = world.finish(SECOND, async {
        let mut client = client.connect(addr(SERVER)).await.unwrap();
        client.write_all(&sent).await.unwrap();
        listener.accept().await.unwrap().0
    });
    world.run_for(20 * SECOND);
    assert!(world.driver_of(SERVER).memory.used() > 128 << 10, "memory is short");
    let mut got = Vec::new();
    world.finish(MINUTE, server.read_to_end(&mut got)).unwrap();
    assert!(got == sent, "{} bytes", got.len());
    drop(fillers);
}
