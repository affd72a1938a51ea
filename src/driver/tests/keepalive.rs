//! Keepalive, idle and dead-peer timeouts; TIME-WAIT; restarted peers; replayed datagrams.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{
    CLIENT, HOUR, MINUTE, Pair, SECOND, SERVER, SLACK, answer, cause, greet, is_about, micros,
    pattern, push, read_pattern,
};
use super::sim_network::Fate;
use super::sim_world::{World, addr};
use crate::config::{Config, KeepaliveInterval, KeepaliveSide};
use crate::core::segment::{Command, Header, Segments};
use crate::error::{ConfigError, ConnectionError, TimeoutCause};
use crate::testkit::link::{CERTAIN, LinkConfig};

// ----- Early pings -----

/// Datagrams of both sides in five minutes while the server does not read.
fn datagrams_of_a_closed_window(server: &Config) -> u64 {
    let Pair { mut world, client, server, .. } = Pair::new(&Config::new(), server);
    while client.try_write(&[7; 10_000]).is_ok() {
        world.run_for(SECOND / 20);
    }
    world.run_for(20 * SECOND);
    let before = world.sent();
    world.run_for(5 * MINUTE);
    assert_eq!((client.error(), server.error()), (None, None));
    world.sent() - before
}

#[test]
fn closed_window_draws_no_early_pings() {
    // A peer without CONTROL is never pinged early.
    let mut config = Config::new();
    config.kcp.close_notify = false;
    let reference = datagrams_of_a_closed_window(&config);
    let sent = datagrams_of_a_closed_window(&Config::new());
    assert!(sent <= reference + 2 && sent < 180, "{sent} datagrams, or {reference}");
}

#[test]
fn peer_that_answers_pings_and_no_data_is_pinged_ever_less() {
    let Pair { mut world, client, server, .. } = Pair::plain();
    let path = LinkConfig { mtu: 400, fragments: false, ..LinkConfig::delay(10_000) };
    world.set_path(path);
    client.try_write(&[7; 1_000]).unwrap();
    world.log();
    world.run_for(50 * SECOND);
    let pongs = world.log().into_iter().filter(|sent| sent.from == addr(SERVER)).count();
    // After 1, 2, 4, 8 and 16 s without an ACK, then each 20 s; and the answers to MTU probes.
    assert!((4..=20).contains(&pongs), "{pongs} pongs in 50 s");
    assert_eq!((client.error(), server.error()), (None, None));
}

// ----- Timeouts of a living stream -----

#[test]
fn keepalive_and_idle_timeout_of_a_living_stream_change() {
    let Pair { mut world, client, server, .. } = Pair::plain();
    let idle = |seconds| Some(Duration::from_secs(seconds));
    server.set_keepalive(KeepaliveInterval::Never, None).unwrap();
    client.set_keepalive(KeepaliveInterval::After(SECOND * 2), idle(10)).unwrap();
    world.run_for(SECOND);
    world.log();
    world.run_for(MINUTE);
    // Every 2 s and a sixteenth since the client opened the connection, up to 0.1 s later.
    let pings = world.log().into_iter().filter(|sent| sent.from == addr(CLIENT)).count();
    assert!((26..=29).contains(&pings), "{pings} pings");
    client.set_keepalive(KeepaliveInterval::Never, idle(10)).unwrap();
    world.run_for(SECOND * 6);
    assert_eq!(client.error(), None);
    world.run_for(SECOND * 6);
    assert_eq!(client.error(), Some(ConnectionError::IdleTimeout));
    let error = client.set_keepalive(KeepaliveInterval::After(SECOND * 10), idle(10)).unwrap_err();
    assert!(matches!(error, ConfigError::Contradicts { .. }), "{error}");
    assert!(client.set_keepalive(KeepaliveInterval::Auto, Some(SECOND / 2)).is_err());
}

#[test]
fn dead_peer_timeout_of_a_living_stream_changes() {
    let Pair { mut world, client, server: _server, .. } = Pair::plain();
    client.set_dead_peer_timeout(Some(SECOND * 3)).unwrap();
    world.run_for(SECOND);
    world.set_path(LinkConfig { loss: CERTAIN, ..LinkConfig::delay(10_000) });
    client.try_write(b"lost").unwrap();
    world.run_for(SECOND * 5 / 2);
    assert_eq!(client.error(), None);
    world.run_for(SECOND);
    assert!(matches!(client.error(), Some(ConnectionError::DeadPeer(_))), "{:?}", client.error());
    assert!(client.set_dead_peer_timeout(Some(SECOND / 2)).is_err());
}

// ----- Which side pings -----

/// Pings of each host while a connection of this configuration is idle for 38 s. The first `lost` datagrams
/// of the client do not arrive. After 40 s without an answer the other side pings too.
fn idle_pings(client: KeepaliveSide, server: KeepaliveSide, lost: usize) -> [usize; 2] {
    let side = |keepalive_side| {
        let mut config = Config::new();
        config.kcp.keepalive_side = keepalive_side;
        config
    };
    let Pair { mut world, client, server, .. } = Pair::new(&side(client), &side(server));
    world.run_for(SECOND);
    world.log();
    world.set_fates(CLIENT, vec![Fate::Lost; lost]);
    world.run_for(38 * SECOND);
    assert_eq!((client.error(), server.error()), (None, None));
    let log = world.log();
    let is_ping = |(header, _): (Header, &[u8])| header.command == Command::Push && header.len == 0;
    [CLIENT, SERVER].map(|host| {
        let pings = |datagram: &[u8]| Segments::new(datagram).any(is_ping);
        log.iter().filter(|sent| sent.from == addr(host) && pings(&sent.datagram)).count()
    })
}

#[test]
fn keepalive_pings_come_from_the_configured_side() {
    let (passive, active) = (KeepaliveSide::Passive, KeepaliveSide::Active);
    assert_eq!(idle_pings(passive, passive, 0), [0, 2]);
    assert_eq!(idle_pings(active, active, 0), [2, 0]);
    // Different settings: both wait longer, or neither.
    assert_eq!(idle_pings(passive, active, 0), [2, 0]);
    let [client, server] = idle_pings(active, passive, 0);
    assert!((2..=4).contains(&(client + server)), "{client} and {server}");
}

/// Lost pings are sent again each second, so the server need not ping in between.
#[test]
fn passive_side_waits_for_lost_pings_of_the_active_one() {
    let [client, server] = idle_pings(KeepaliveSide::Active, KeepaliveSide::Active, 5);
    assert!(client >= 6 && server == 0, "{client} and {server} pings");
}

// ----- TIME-WAIT and restarts -----

/// Rule: W-94.
#[test]
fn time_wait_acks_retransmitted_data() {
    let Pair { mut world, listener, endpoint: _endpoint, mut client, mut server } =
        Pair::new(&Config::new(), &Config::new().linger(SECOND));
    client.try_write(b"bye").unwrap();
    world.run_ready();
    // The datagram is in flight; its ACK will be lost.
    let clean = LinkConfig::delay(10_000);
    world.set_path(LinkConfig { loss: CERTAIN, ..clean.clone() });
    world.finish(SECOND, async {
        let mut bye = [0; 3];
        server.read_exact(&mut bye).await.unwrap();
        // The dropped connection has sent nothing, and gives up its FIN after a second.
        drop(server);
    });
    world.finish(2 * SECOND, listener.wait_idle());
    // Its RST is retransmitted for 10 s.
    world.run_for(10 * SECOND);
    assert_eq!(listener.stats().connections.current, 0);
    world.set_path(clean);
    world.finish(5 * SECOND, client.shutdown()).unwrap();
    assert_eq!(listener.stats().dropped.time_wait, 1);
}

#[test]
fn time_wait_does_not_accept_old_and_does_not_block_new_connections() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    world.port(9);
    let first = push(7, 0, b"first");
    world.inject(addr(9), SERVER, &first);
    let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    stream.abort();
    // For 10 s the peer might still advertise CONTROL and be sent the RST.
    world.run_for(11 * SECOND);
    world.arrived(9);

    world.inject(addr(9), SERVER, &first);
    world.run_for(SECOND);
    let stats = listener.stats();
    assert_eq!(
        (stats.connections.passive_opens, stats.dropped.time_wait, stats.connections.current),
        (1, 1, 0)
    );
    let answers = world.arrived(9);
    let (ack, _) = Segments::new(&answers[0]).next().unwrap();
    assert_eq!((answers.len(), ack.command, ack.una.0), (1, Command::Ack, 1));

    world.inject(addr(9), SERVER, &push(7, 0, b"second"));
    let (mut stream, _) = world.finish(SECOND / 50, listener.accept()).unwrap();
    assert_eq!(world.finish(SECOND, stream.read_chunk()).unwrap(), "second");
    assert_eq!(listener.stats().connections.passive_opens, 2);
}

#[test]
fn restart_is_accepted_while_the_old_connection_times_out() {
    let Pair { mut world, listener, endpoint, client, mut server } = Pair::plain();
    world.crash(CLIENT);
    drop((endpoint, client));
    let back = world.endpoint(CLIENT, &Config::new());
    let before = world.elapsed();
    let (mut client2, mut server2) = world.finish(SECOND, greet(&back, &listener));
    assert!(server.error().is_none() && server.conv() != server2.conv());
    server.try_write(b"are you there").unwrap();
    let error = world.finish(2 * MINUTE, async move {
        let error = server.read(&mut [0; 10]).await.unwrap_err();
        client2.write_all(b"still here").await.unwrap();
        let mut text = [0; 10];
        server2.read_exact(&mut text).await.unwrap();
        error
    });
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(world.elapsed() - before < micros(MINUTE + SLACK));
    assert_eq!(listener.stats().connections.passive_opens, 2);
    // The restarted peer does not know the old connection and does not answer it.
    assert!(back.stats().dropped.no_connection > 0);
}

#[test]
fn stale_una_confirmed_by_a_ping_is_peer_state_lost() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let endpoint = world.endpoint(CLIENT, &Config::new());
    world.port(9);
    let stream = world.finish(SECOND, endpoint.connect(addr(9))).unwrap();
    let answer_all = |world: &mut World, una: u32| {
        world.run_for(SECOND / 50);
        for datagram in world.arrived(9) {
            world.inject(addr(9), CLIENT, &answer(&datagram, una));
        }
        world.run_for(SECOND / 50);
    };
    stream.try_write(b"one").unwrap();
    answer_all(&mut world, 1);
    assert_eq!((stream.stats().path.in_flight_segments, stream.error()), (0, None));

    // A restarted peer acknowledges less than before. Such a datagram may be old, so the peer is pinged if
    // nothing else comes for a second; the pong is not old.
    stream.try_write(b"two").unwrap();
    answer_all(&mut world, 0);
    assert_eq!((stream.error(), stream.stats().probes.pings), (None, 0));
    for _ in 0..100 {
        answer_all(&mut world, 0);
    }
    assert_eq!(stream.stats().probes.pings, 1);
    let error = stream.try_write(b"three").unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::PeerStateLost));
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn replayed_datagrams_do_not_end_a_connection() {
    let Pair { mut world, mut client, mut server, .. } = Pair::plain();
    world.finish(MINUTE, async {
        for _ in 0..50 {
            client.write_all(&pattern(5_000)).await.unwrap();
            read_pattern(&mut server, 5_000).await;
            server.write_all(&pattern(5_000)).await.unwrap();
            read_pattern(&mut client, 5_000).await;
        }
    });
    // Every datagram so far is replayed, also while pings are in flight.
    let old = world.log();
    for _ in 0..20 {
        for sent in &old {
            let host = if sent.to == addr(CLIENT) { CLIENT } else { SERVER };
            world.inject(sent.from, host, &sent.datagram);
        }
        world.run_for(20 * SECOND);
    }
    // The side that accepted the connection pings first.
    assert!(server.stats().probes.pings > 0 && client.stats().anomalies.stale_una_datagrams > 0);
    world.finish(SECOND, async move {
        client.write_all(&pattern(5_000)).await.unwrap();
        read_pattern(&mut server, 5_000).await;
        server.write_all(&pattern(5_000)).await.unwrap();
        read_pattern(&mut client, 5_000).await;
    });
}

// ----- timeouts -----

#[test]
fn dead_peer_timeout_ends_an_unanswered_connect() {
    let mut world = World::new(1, LinkConfig::default());
    // Otherwise a segment without data is sent.
    let mut config = Config::new();
    config.kcp.close_notify = false;
    let endpoint = world.endpoint(CLIENT, &config);
    let mut stream = world.finish(SECOND, endpoint.connect(addr(9))).unwrap();
    // Without data there is no timeout.
    world.run_for(10 * MINUTE);
    assert_eq!(stream.error(), None, "nothing was sent yet");
    let before = world.elapsed();
    stream.try_write(b"anyone?").unwrap();
    let error = world.finish(2 * MINUTE, stream.read(&mut [0; 10])).unwrap_err();
    assert_eq!(stream.error(), Some(ConnectionError::DeadPeer(TimeoutCause::Nothing)));
    assert_eq!(cause(&error), Some(ConnectionError::DeadPeer(TimeoutCause::Nothing)));
    assert!(is_about(world.elapsed() - before, MINUTE));
    assert_eq!(endpoint.stats().connections.current, 0);
}

#[test]
fn idle_timeout_without_keepalive_ends_the_connection() {
    let config = Config::new().keepalive(KeepaliveInterval::Never);
    let Pair { mut world, mut client, mut server, .. } = Pair::new(&config, &config);
    let before = world.elapsed();
    let errors = world.finish(2 * MINUTE, async move {
        let (client_buf, server_buf) = (&mut [0; 1], &mut [0; 1]);
        let (a, b) = tokio::join!(client.read(client_buf), server.read(server_buf));
        [a.unwrap_err(), b.unwrap_err()]
    });
    for error in errors {
        assert_eq!(cause(&error), Some(ConnectionError::IdleTimeout));
    }
    assert!(world.elapsed() - before <= micros(MINUTE));
}

#[test]
fn keepalive_follows_a_short_idle_timeout() {
    for (idle, side) in [
        (2 * SECOND, KeepaliveSide::Passive),
        (3 * SECOND, KeepaliveSide::Active),
        (10 * SECOND, KeepaliveSide::Passive),
        (44 * SECOND, KeepaliveSide::Active),
    ] {
        let mut config = Config::new().idle_timeout(Some(idle));
        config.kcp.keepalive_side = side;
        let Pair { mut world, client, server, .. } = Pair::new(&config, &config);
        world.set_path(LinkConfig::delay(150_000));
        world.log();
        world.run_for(5 * MINUTE);
        assert_eq!((client.error(), server.error()), (None, None), "{idle:?}");
        let count = world.log().len();
        // A ping and its pong each third of the idle timeout, from both sides at most.
        let most = 4 * 3 * 5 * 60 / usize::try_from(idle.as_secs()).unwrap();
        assert!(count <= most, "{idle:?}: {count} datagrams, at most {most}");
    }
}

/// Rule: W-23.
#[test]
fn keepalive_holds_an_idle_connection_with_few_datagrams() {
    let Pair { mut world, listener: _listener, mut client, mut server, .. } = Pair::plain();
    world.log();
    world.run_for(HOUR);
    let count = world.log().len();
    println!("{count} datagrams in an hour");
    // A keepalive ping and its pong each 15 s. To the other side a ping may be a recorded one, so it sends a
    // ping each 45 s, in the datagram of a pong.
    assert!((240..=560).contains(&count), "{count} datagrams");
    world.finish(SECOND, async move {
        client.write_all(&pattern(10)).await.unwrap();
        read_pattern(&mut server, 10).await;
    });
}

#[test]
fn idle_connection_without_timeouts_has_no_timer() {
    let quiet = Config::new().keepalive(KeepaliveInterval::Never).idle_timeout(None);
    let Pair { mut world, listener, mut client, mut server, .. } = Pair::new(&quiet, &quiet);
    world.finish(SECOND, async {
        client.write_all(&pattern(100_000)).await.unwrap();
        read_pattern(&mut server, 100_000).await;
    });
    world.run_for(3 * SECOND);
    assert_eq!(
        (world.driver_of(SERVER).deadline(), world.driver_of(CLIENT).deadline()),
        (None, None)
    );
    let sent = world.sent();
    assert_eq!(world.run_for(HOUR), 0, "turns");
    assert_eq!(world.sent(), sent);
    world.finish(SECOND, async move {
        client.write_all(&pattern(10)).await.unwrap();
        read_pattern(&mut server, 10).await;
    });
    drop(listener);
}
