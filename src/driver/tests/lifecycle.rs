//! Shutdown, drop, abort and `wait_idle` of connections; the end of endpoints.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{
    CLIENT, HOUR, MINUTE, Pair, SECOND, SERVER, cause, greet, is_about, pattern, push, read_pattern,
};
use super::resource_limits::{streams, wide};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::segment::{Command, ControlType, Header};
use crate::error::{ConnectionError, TimeoutCause};
use crate::testkit::link::{CERTAIN, LinkConfig};

// ----- shutdown -----

#[test]
fn shutdown_returns_once_all_data_is_acked() {
    for seed in 0..20 {
        println!("seed {seed}");
        let Pair { mut world, mut client, server, .. } =
            Pair::seeded(seed, &Config::new(), &Config::new());
        world.set_path(LinkConfig { loss: 200_000, jitter: 5_000, ..LinkConfig::delay(10_000) });
        world.finish(MINUTE, async move {
            client.write_all(&pattern(100_000)).await.unwrap();
            client.shutdown().await.unwrap();
            assert_eq!(
                server.stats().received.payload_bytes,
                100_002,
                "Ok before all was received"
            );
            assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            client.shutdown().await.unwrap();
        });
    }
}

#[test]
fn shutdown_to_a_dead_peer_fails_after_linger() {
    let linger = Config::default().linger;
    for (linger, promised, end) in [
        (linger, linger, ConnectionError::LingerTimeout),
        (HOUR, MINUTE, ConnectionError::DeadPeer(TimeoutCause::Nothing)),
        (Duration::ZERO, Duration::ZERO, ConnectionError::LingerTimeout),
    ] {
        let Pair { mut world, mut client, .. } =
            Pair::new(&Config::new().linger(linger).idle_timeout(None), &Config::new());
        world.crash(SERVER);
        let before = world.elapsed();
        let error = world.finish(2 * MINUTE, async {
            client.write_all(b"lost").await.unwrap();
            client.shutdown().await.unwrap_err()
        });
        assert_eq!((error.kind(), cause(&error)), (ErrorKind::TimedOut, Some(end)));
        let took = world.elapsed() - before;
        assert!(is_about(took, promised), "{took} us with linger {linger:?}");
        assert_eq!(client.error(), Some(end));
    }
}

#[test]
fn shutdown_waits_for_a_slow_reader() {
    let mut small = Config::new().windows(1_024, 8);
    small.recv_buffer = 1_000;
    let Pair { mut world, mut client, mut server, .. } = Pair::new(&Config::new(), &small);
    let done = Rc::new(Cell::new(false));
    let notified = done.clone();
    world.spawn(async move {
        client.write_all(&pattern(100_000)).await.unwrap();
        client.shutdown().await.unwrap();
        notified.set(true);
    });
    world.run_for(10 * MINUTE);
    assert!(!done.get(), "the peer has not read yet");
    world.finish(MINUTE, read_pattern(&mut server, 100_000));
    world.run_for(SECOND);
    assert!(done.get());
}

// ----- drop and abort -----

#[test]
fn drop_with_unacked_data_delivers_it() {
    let Pair { mut world, listener: _listener, endpoint, mut client, mut server } = Pair::plain();
    world.set_path(LinkConfig { loss: 200_000, ..LinkConfig::delay(10_000) });
    world.finish(MINUTE, async move {
        client.write_all(&pattern(500_000)).await.unwrap();
        // A write is cancelled half way: the bytes that it took are sent, the rest is not.
        let more = vec![0; 10_000_000];
        let write = client.write_all(&more);
        let poll = std::future::poll_fn(|_| std::task::Poll::Ready(()));
        tokio::select! { biased; _ = write => unreachable!(), () = poll => {} }
        drop(client);
        read_pattern(&mut server, 500_000).await;
        endpoint.wait_idle().await;
        // The other direction is still open: data from the peer would be answered with RST.
        assert_eq!(endpoint.stats().connections.current, 1);
        drop(server);
    });
    world.run_for(3 * SECOND);
    assert_eq!(world.drivers.iter().flatten().count(), 1, "the client's endpoint is gone");
}

#[test]
fn linger_timeout_after_drop_counts_from_the_last_ack() {
    for linger in [Duration::ZERO, SECOND, 10 * SECOND] {
        let Pair { mut world, endpoint, client, .. } =
            Pair::new(&Config::new().linger(linger), &Config::new());
        world.crash(SERVER);
        let before = world.elapsed();
        client.try_write(b"lost").unwrap();
        drop(client);
        world.finish(MINUTE, endpoint.wait_idle());
        let took = world.elapsed() - before;
        assert!(is_about(took, linger), "{took} us with linger {linger:?}");
        // The RST is retransmitted for 10 s.
        world.run_for(11 * SECOND);
        assert_eq!(endpoint.stats().connections.current, 0);
    }
}

#[test]
fn linger_after_drop_continues_while_acks_arrive() {
    // 200 kB at 10 kB/s take twice the linger timeout.
    let Pair { mut world, endpoint, client, mut server, .. } = Pair::plain();
    let slow = LinkConfig { rate: Some(10_000), queue: 20_000, ..LinkConfig::delay(10_000) };
    world.set_path(slow);
    let data = pattern(200_000);
    assert_eq!(client.try_write(&data).unwrap(), data.len());
    drop(client);
    world.finish(2 * MINUTE, read_pattern(&mut server, 200_000));
    drop(endpoint);
}

#[test]
fn abort_sends_rst_and_nothing_else() {
    let Pair { mut world, endpoint, client, mut server, .. } = Pair::plain();
    world.set_path(LinkConfig::delay(10_000));
    client.try_write(&pattern(200_000)).unwrap();
    world.run_for(SECOND / 1_000);
    world.log();
    client.abort();
    world.finish(SECOND, async {
        let mut buf = vec![0; 200_001];
        let error = server.read_exact(&mut buf).await.unwrap_err();
        assert_eq!(cause(&error), Some(ConnectionError::Reset));
        let error = server.write(b"anyone?").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
    world.run_for(MINUTE);
    assert_eq!(endpoint.stats().connections.current, 0);
    let log = world.log();
    let ours: Vec<_> = log.iter().filter(|sent| sent.from == addr(CLIENT)).collect();
    assert!(!ours.is_empty() && ours.len() < 5, "{ours:?}");
    for sent in ours {
        let header = Header::parse(&sent.datagram).unwrap();
        assert_eq!((header.command, header.frg), (Command::Control, ControlType::Reset as u8));
    }
}

// ----- wait_idle -----

#[test]
fn wait_idle_without_lingering_connections_returns_at_once() {
    let Pair { mut world, endpoint, client, .. } = Pair::plain();
    client.try_write(b"on its way, and the stream is open").unwrap();
    let before = world.elapsed();
    world.finish(SECOND, endpoint.wait_idle());
    assert_eq!(world.elapsed(), before);
    drop(client);
}

#[test]
fn wait_idle_with_unacked_data_waits_for_delivery() {
    let Pair { mut world, endpoint, client, server, .. } = Pair::plain();
    client.try_write(&pattern(50_000)).unwrap();
    drop(client);
    world.finish(SECOND, endpoint.wait_idle());
    assert_eq!(server.stats().received.payload_bytes, 50_002);
}

/// Two other connections send all that a turn may send.
#[test]
fn wait_idle_waits_for_a_connection_that_the_turn_has_not_served() {
    let mut pair = Pair::near(&wide(), &wide());
    let others = streams(&mut pair, 2);
    let Pair { mut world, endpoint, client, server, .. } = pair;
    for (other, _) in &others {
        assert_eq!(other.try_write(&pattern(1_000_000)).unwrap(), 1_000_000);
    }
    client.try_write(b"bye").unwrap();
    drop(client);
    world.finish(SECOND, endpoint.wait_idle());
    assert_eq!(server.stats().received.payload_bytes, 5, "the greeting, and this");
}

#[test]
fn wait_idle_ignores_connections_that_are_open() {
    let mut world = World::new(1, LinkConfig::default());
    let config = Config::new();
    let (listener, endpoint) = (world.listener(SERVER, &config), world.endpoint(CLIENT, &config));
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(world.finish(SECOND, greet(&endpoint, &listener)));
    }
    let (last, mut last_server) = streams.pop().unwrap();
    let left = Rc::new(Cell::new(streams.len()));
    for (mut client, mut server) in streams {
        let left = left.clone();
        world.spawn(async move { client.write_all(&pattern(4_000_000)).await.unwrap() });
        world.spawn(async move {
            read_pattern(&mut server, 4_000_000).await;
            left.set(left.get() - 1);
        });
    }
    last.try_write(b"bye").unwrap();
    drop(last);
    let busy = left.clone();
    world.spawn(async move {
        endpoint.wait_idle().await;
        assert_eq!(busy.get(), 4, "wait_idle waited for open connections");
    });
    world.spawn(async move {
        let mut bye = [0; 3];
        last_server.read_exact(&mut bye).await.unwrap();
    });
    world.run(MINUTE);
}

// ----- endpoints -----

#[test]
fn listener_drop_keeps_accepted_connections() {
    let Pair { mut world, listener, endpoint, mut client, mut server } = Pair::plain();
    let mut late = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    late.try_write(b"this is never accepted..").unwrap();
    world.finish(SECOND, late.established()).unwrap();
    assert_eq!(listener.stats().connections.current, 2);
    let endpoint = listener.endpoint().clone();
    drop(listener);
    world.run_for(SECOND);
    assert_eq!(endpoint.stats().connections.current, 1, "the one that was accepted");
    world.finish(2 * MINUTE, async move {
        client.write_all(&pattern(10)).await.unwrap();
        read_pattern(&mut server, 10).await;
        let error = late.read(&mut [0; 10]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
    world.inject(addr(9), SERVER, &push(7, 0, b"hello?"));
    world.run_for(SECOND);
    assert_eq!(endpoint.stats().refused.no_listener, 1);
}

#[test]
fn driver_drop_wakes_every_task() {
    let mut tiny = Config::new();
    (tiny.send_buffer, tiny.kcp.send_window) = (1_000, 4);
    let Pair { mut world, listener, endpoint, client, server: _server } = Pair::new(&tiny, &tiny);
    let (mut closing, _peer) = world.finish(SECOND, greet(&endpoint, &listener));
    let unanswered = world.finish(SECOND, endpoint.connect(addr(9))).unwrap();
    let notified = Rc::new(Cell::new(0));
    let mut expect = |task: std::pin::Pin<Box<dyn Future<Output = io::Error>>>| {
        let notified = notified.clone();
        world.spawn(async move {
            let error = task.await;
            assert_eq!(cause(&error), Some(ConnectionError::RuntimeShutdown));
            assert!(tokio::runtime::is_rt_shutdown_err(&error));
            notified.set(notified.get() + 1);
        });
    };
    let (mut reader, mut writer) = client.into_split();
    expect(Box::pin(async move { reader.read(&mut [0; 10]).await.unwrap_err() }));
    expect(Box::pin(async move { writer.write_all(&pattern(1_000_000)).await.unwrap_err() }));
    expect(Box::pin(async move {
        closing.write_all(b"bye").await.unwrap();
        closing.shutdown().await.unwrap_err()
    }));
    expect(Box::pin(async move { unanswered.established().await.unwrap_err() }));
    expect(Box::pin(async move { listener.accept().await.unwrap_err() }));
    world.set_path(LinkConfig { loss: CERTAIN, ..LinkConfig::default() });
    world.run_for(SECOND);
    assert_eq!(notified.get(), 0);
    // A runtime that shuts down drops its tasks too.
    world.crash(SERVER);
    world.crash(CLIENT);
    world.run_ready();
    assert_eq!(notified.get(), 5);
    let error = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::EndpointClosed));
    world.finish(SECOND, endpoint.wait_idle());
}

#[test]
fn endpoint_drop_closes_the_socket_after_the_last_ack() {
    // The socket is blocked when the last acknowledgement is due.
    let Pair { mut world, listener, endpoint, client, mut server } = Pair::plain();
    drop(endpoint);
    world.spawn(async move {
        let mut client = client;
        read_pattern(&mut client, 3).await;
    });
    let before = world.elapsed();
    world.block_sends(CLIENT, SECOND);
    world.finish(30 * SECOND, async move {
        server.write_all(&pattern(3)).await.unwrap();
        server.shutdown().await.unwrap();
    });
    assert!(is_about(world.elapsed() - before, SECOND));
    drop(listener);
}

#[test]
fn endpoint_stats_match_what_was_sent_and_received() {
    let Pair { mut world, listener, endpoint, mut client, mut server } = Pair::plain();
    world.finish(SECOND, async {
        client.write_all(&pattern(100_000)).await.unwrap();
        read_pattern(&mut server, 100_000).await;
    });
    world.run_for(SECOND);
    let (ours, theirs) = (endpoint.stats(), listener.stats());
    assert_eq!(
        (ours.connections.active_opens, ours.connections.passive_opens, ours.connections.current),
        (1, 0, 1)
    );
    assert_eq!(
        (
            theirs.connections.active_opens,
            theirs.connections.passive_opens,
            theirs.connections.current
        ),
        (0, 1, 1)
    );
    assert_eq!(ours.sent.datagrams, theirs.received.datagrams);
    assert_eq!(ours.sent.bytes, theirs.received.bytes);
    assert_eq!(theirs.sent.datagrams, ours.received.datagrams);
    assert_eq!(theirs.sent.bytes, ours.received.bytes);
    assert!(ours.sent.bytes > 100_000);
    drop((client, server));
    world.run_for(SECOND);
    assert_eq!(
        (endpoint.stats().connections.current, listener.stats().connections.current),
        (0, 0)
    );
}

/// A peer whose end was acknowledged may only have missed that answer.
/// Rule: P-53.
#[test]
fn socket_without_handles_stays_for_half_a_second_to_two() {
    for (peer_ends, stays) in [(true, SECOND / 2), (false, 2 * SECOND)] {
        let Pair { mut world, listener: _listener, endpoint, client, server } = Pair::plain();
        drop(endpoint);
        if peer_ends {
            drop((client, server));
        } else {
            client.abort();
        }
        let began = world.elapsed();
        while world.drivers.iter().flatten().count() == 2 {
            assert!(world.elapsed() - began < 5_000_000, "the socket stays");
            world.run_for(SECOND / 100);
        }
        let took = world.elapsed() - began;
        println!("peer ends: {peer_ends}, {took} us");
        assert!(is_about(took, stays), "{took} us");
    }
}
