//! FIN, RST and TIME-WAIT between two endpoints.

use std::future::Future;
use std::io::ErrorKind;
use std::task::{Context, Waker};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, answer, cause, pattern, read_pattern};
use super::sim_world::{World, addr};
use crate::config::{Config, KeepaliveInterval};
use crate::core::segment::{Command, Segments};
use crate::error::ConnectionError;
use crate::stream::KcpStream;
use crate::testkit::link::{CERTAIN, LinkConfig};

#[test]
fn half_close_delivers_request_and_response() {
    for seed in 0..20 {
        println!("seed {seed}");
        let Pair { mut world, listener, endpoint, mut client, mut server } =
            Pair::seeded(seed, &Config::new(), &Config::new());
        world.set_path(LinkConfig { loss: 200_000, jitter: 5_000, ..LinkConfig::delay(10_000) });
        world.finish(MINUTE, async {
            let ask = async {
                client.write_all(&pattern(50_000)).await.unwrap();
                client.shutdown().await.unwrap();
                let mut got = Vec::new();
                client.read_to_end(&mut got).await.unwrap();
                assert!(got == pattern(80_000));
                drop(client);
            };
            let serve = async {
                let mut got = Vec::new();
                server.read_to_end(&mut got).await.unwrap();
                assert!(got == pattern(50_000));
                server.write_all(&pattern(80_000)).await.unwrap();
                drop(server);
            };
            tokio::join!(ask, serve);
            endpoint.wait_idle().await;
            listener.wait_idle().await;
        });
        world.run_for(SECOND);
        assert_eq!(
            (endpoint.stats().connections.current, listener.stats().connections.current),
            (0, 0)
        );
    }
}

#[test]
fn eof_is_reported_by_every_later_read() {
    let Pair { mut world, mut client, server, .. } = Pair::plain();
    drop(server);
    world.finish(SECOND, async {
        assert_eq!(client.read(&mut [0; 10]).await.unwrap(), 0);
        assert_eq!(client.try_read(&mut [0; 10]).unwrap(), 0);
        assert_eq!(client.peek(&mut [0; 10]).await.unwrap(), 0);
        assert!(client.read_chunk().await.unwrap().is_empty());
        client.readable().await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0; 10]).await.unwrap(), 0);
    });
    world.run_for(SECOND);
    assert_eq!(client.error(), Some(ConnectionError::Closed));
    world.finish(SECOND, async {
        assert_eq!(client.read(&mut [0; 10]).await.unwrap(), 0);
        assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        client.shutdown().await.unwrap();
    });
}

/// Rule: W-68.
#[test]
fn rst_answers_data_after_the_reader_was_dropped() {
    // The peer was removed long ago, or still delivers its last bytes.
    for (long_ago, written) in [(true, 0), (true, 3), (false, 3)] {
        let Pair { mut world, listener, mut client, mut server, .. } = Pair::plain();
        world.finish(SECOND, async {
            server.write_all(&pattern(written)).await.unwrap();
            drop(server);
        });
        if long_ago {
            // A dropped connection waits for the peer's FIN, up to the linger timeout of 10 s.
            world.run_for(11 * SECOND);
            assert_eq!(listener.stats().connections.current, 0);
        }
        world.finish(MINUTE, async {
            client.write_all(&pattern(1_000)).await.unwrap();
            read_pattern(&mut client, written).await;
            let error = client.shutdown().await.unwrap_err();
            assert_eq!(cause(&error), Some(ConnectionError::Reset));
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        });
    }
}

#[test]
fn rst_answers_first_data_after_drop_without_a_new_connection() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &Config::new());
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
    let mut client = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    let (server, _) = world.finish(SECOND, listener.accept()).unwrap();
    drop(server);
    world.finish(SECOND, async {
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        client.write_all(b"too late").await.unwrap();
        assert_eq!(client.shutdown().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
    assert_eq!(listener.stats().connections.passive_opens, 1);
}

#[test]
fn rst_reaches_an_idle_peer_of_a_dropped_connection() {
    let Pair { mut world, listener, client, server, .. } = Pair::plain();
    world.set_path(LinkConfig { loss: 500_000, ..LinkConfig::delay(10_000) });
    drop(server);
    world.run_for(MINUTE);
    assert_eq!(
        (client.error(), listener.stats().connections.current),
        (Some(ConnectionError::Reset), 0)
    );
}

#[test]
fn rst_reaches_a_peer_that_only_reads() {
    let Pair { mut world, mut client, server, .. } = Pair::plain();
    world.set_path(LinkConfig { loss: 300_000, ..LinkConfig::delay(10_000) });
    // After 14 s without data no timestamp is recent enough for an RST.
    world.run_for(14 * SECOND);
    world.finish(5 * SECOND, async {
        let abort = async { server.abort() };
        let wait = async { client.read(&mut [0; 1]).await.unwrap_err() };
        let (error, ()) = tokio::join!(wait, abort);
        assert_eq!(cause(&error), Some(ConnectionError::Reset));
    });
}

/// Rule: W-95.
#[test]
fn fin_retransmission_in_time_wait_is_answered_with_fin_ack() {
    let Pair { mut world, listener, endpoint, client, server } = Pair::plain();
    world.log();
    drop((client, server));
    world.run_for(SECOND);
    assert_eq!(
        (endpoint.stats().connections.current, listener.stats().connections.current),
        (0, 0)
    );
    let controls: Vec<_> = world.log().into_iter().filter(|s| s.datagram[4] == 85).collect();
    let close = controls.iter().find(|s| s.from == addr(CLIENT) && s.datagram[5] == 1).unwrap();
    world.inject(close.from, SERVER, &close.datagram);
    world.run_for(SECOND);
    let answers = world.log();
    let closed = answers.iter().filter(|s| s.from == addr(SERVER) && s.datagram[5] == 2);
    assert_eq!(closed.count(), 1);
}

#[test]
fn rst_ends_unaccepted_connections_when_the_listener_drops() {
    let Pair { mut world, listener, endpoint, .. } = Pair::plain();
    let mut late = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    late.try_write(b"this is never read...").unwrap();
    world.finish(SECOND, late.established()).unwrap();
    drop(listener);
    let error = world.finish(SECOND, late.read(&mut [0])).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::Reset));
}

/// A peer of another implementation: sends ACKs and does not advertise the CONTROL capability.
/// Rule: W-16.
#[test]
fn control_segments_are_not_sent_to_peers_without_the_capability() {
    let other_peer = 9;
    let mut world = World::new(1, LinkConfig::delay(10_000));
    world.port(other_peer);
    let endpoint =
        world.endpoint(CLIENT, &Config::new().keepalive(KeepaliveInterval::After(SECOND)));
    let mut seen = Vec::new();
    for abort in [false, true] {
        let stream = world.finish(SECOND, endpoint.connect(addr(other_peer))).unwrap();
        stream.try_write(&pattern(10_000)).unwrap();
        let mut una = 0;
        let mut stream = Some(stream);
        for second in 0..30 {
            if second == 10 {
                let stream = stream.take().unwrap();
                if abort { stream.abort() } else { drop(stream) }
            }
            world.run_for(SECOND);
            for datagram in world.arrived(other_peer) {
                for (header, _) in Segments::new(&datagram) {
                    let is_next = header.command == Command::Push && header.sn.0 == una;
                    una += u32::from(is_next);
                }
                world.inject(addr(other_peer), CLIENT, &answer(&datagram, una));
                seen.push(datagram);
            }
        }
        assert_eq!(una, 8);
        assert_eq!(endpoint.stats().connections.current, 0);
    }
    let segments: Vec<_> = seen.iter().flat_map(|d| Segments::new(d)).collect();
    assert!(segments.len() > 30, "pings among them");
    assert!(segments.iter().all(|(header, _)| header.command != Command::Control));
}

#[test]
fn fin_reaches_a_slow_reader_after_the_sender_is_gone() {
    let mut small = Config::new();
    small.recv_buffer = 64 * 1_024;
    let Pair { mut world, listener, mut client, mut server, .. } =
        Pair::new(&small, &Config::new());
    world.finish(5 * SECOND, async {
        server.write_all(&pattern(500_000)).await.unwrap();
        server.shutdown().await.unwrap();
        drop(server);
    });
    world.run_for(40 * SECOND);
    assert_eq!(listener.stats().connections.current, 0);
    world.finish(MINUTE, async {
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert!(got == pattern(500_000));
    });
}

#[test]
fn simultaneous_close_with_data_in_flight_completes() {
    let Pair { mut world, listener, endpoint, client, server } = Pair::plain();
    client.try_write(&pattern(1_000)).unwrap();
    server.try_write(&pattern(1_000)).unwrap();
    drop((client, server));
    world.finish(3 * SECOND, async {
        endpoint.wait_idle().await;
        listener.wait_idle().await;
    });
}

#[test]
fn time_wait_keeps_the_socket_until_the_last_fin_ack_arrives() {
    for begin in [14, 16, 18, 20, 22] {
        let Pair { mut world, listener, endpoint, mut client, mut server } = Pair::plain();
        drop(endpoint);
        world.run_for(SECOND);
        world.spawn(async move {
            client.shutdown().await.unwrap();
            let mut got = Vec::new();
            client.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"bye");
        });
        world.spawn(async move {
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            server.write_all(b"bye").await.unwrap();
            server.shutdown().await.unwrap();
        });
        world.run_for(SECOND / 1_000 * begin);
        world.set_path(LinkConfig { loss: CERTAIN, ..LinkConfig::delay(10_000) });
        world.run_for(SECOND / 1_000 * 12);
        world.set_path(LinkConfig::delay(10_000));
        world.run_for(5 * SECOND);
        assert_eq!(listener.stats().connections.current, 0, "lost from {begin} ms on");
        assert_eq!(world.drivers.iter().flatten().count(), 1, "the client's driver has finished");
    }
}

#[test]
fn restart_with_the_same_conv_is_accepted_again() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    let mut kept = Vec::new();
    for _ in 0..3 {
        let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
        let mut client = world.finish(SECOND, endpoint.connect_with_conv(addr(SERVER), 7)).unwrap();
        let server = world.finish(20 * SECOND, async {
            let (mut server, _) = listener.accept().await.unwrap();
            server.write_all(b"220 ready").await.unwrap();
            let mut greeting = [0; 9];
            client.read_exact(&mut greeting).await.unwrap();
            server
        });
        world.run_for(SECOND);
        world.crash(CLIENT);
        kept.push((endpoint, client, server));
    }
}

// ----- peers that end without FIN or RST -----

#[test]
fn client_crash_times_out_within_idle_timeout() {
    let Pair { mut world, listener, mut server, endpoint, client, .. } = Pair::plain();
    world.crash(CLIENT);
    drop((endpoint, client));
    let before = world.elapsed();
    let error = world.finish(2 * MINUTE, server.read(&mut [0; 1])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(world.elapsed() - before <= 61_000_000);
    world.run_for(SECOND);
    assert_eq!(listener.stats().connections.current, 0);
}

#[test]
fn restart_on_the_same_port_is_accepted_at_once() {
    let Pair { mut world, listener, server: old, endpoint, client, .. } = Pair::plain();
    world.crash(CLIENT);
    drop((endpoint, client));
    let endpoint = world.endpoint(CLIENT, &Config::new());
    let (mut client, mut server) =
        world.finish(SECOND, super::fixtures::greet(&endpoint, &listener));
    world.finish(SECOND, async {
        client.write_all(&pattern(10_000)).await.unwrap();
        read_pattern(&mut server, 10_000).await;
    });
    assert_eq!((old.error(), listener.stats().connections.current), (None, 2));
}

/// An echo server that writes each read before the next one.
#[derive(Default)]
struct Echo {
    held: Vec<u8>,
    read: usize,
    at_end: bool,
}

impl Echo {
    fn step(&mut self, server: &KcpStream) {
        loop {
            if self.held.is_empty() && !self.at_end {
                self.held.resize(16_384, 0);
                let got = server.try_read(&mut self.held);
                self.at_end = matches!(got, Ok(0));
                self.held.truncate(got.unwrap_or(0));
                self.read += self.held.len();
            }
            if self.held.is_empty() {
                return;
            }
            let Ok(written) = server.try_write(&self.held) else { return };
            self.held.drain(..written);
        }
    }
}

#[test]
fn shutdown_returns_while_the_peer_waits_for_our_reader() {
    for drops in [false, true] {
        let mut config = Config::new();
        config.linger = 2 * SECOND;
        let Pair { mut world, endpoint, mut client, server, .. } = Pair::new(&config, &config);
        world.set_path(LinkConfig::delay(10_000));
        let data = pattern(16 << 20);
        let (mut echo, mut written, mut blocked) = (Echo::default(), 0, 0);
        while blocked < 200 {
            match client.try_write(&data[written..]) {
                Ok(bytes) => (written, blocked) = (written + bytes, 0),
                Err(_) => blocked += 1,
            }
            echo.step(&server);
            world.run_for(SECOND / 100);
        }
        assert!(written < data.len() && echo.read < written, "{written} {}", echo.read);
        world.finish(2 * SECOND, client.shutdown()).unwrap();
        world.finish(SECOND, client.shutdown()).unwrap();
        // Neither side reads for longer than the linger time.
        world.run_for(10 * SECOND);
        assert!(client.stats().unsent_bytes > 0);
        let mut wait_idle = Box::pin(endpoint.wait_idle());
        assert!(wait_idle.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let (mut client, mut got) = ((!drops).then_some(client), Vec::new());
        for _ in 0..2_000 {
            echo.step(&server);
            if let Some(client) = &mut client {
                let mut buffer = [0; 16_384];
                while let Ok(bytes @ 1..) = client.try_read(&mut buffer) {
                    got.extend_from_slice(&buffer[..bytes]);
                }
            }
            world.run_for(SECOND / 100);
        }
        if drops {
            // As with TCP, unread data is discarded.
            assert_eq!(server.error(), Some(ConnectionError::Reset));
        } else {
            assert!(echo.at_end && echo.read == written && got == data[..written]);
        }
        drop(server);
        world.finish(MINUTE, wait_idle);
    }
}
