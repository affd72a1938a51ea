//! RSTs without state: a client learns that its server has restarted or refuses it. Copies of its datagrams
//! end no live connection.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{
    CLIENT, MINUTE, Pair, SECOND, SERVER, cause, greet, is_about, micros, pattern, push,
    read_pattern, write_until_error,
};
use super::sim_network::Fate;
use super::sim_world::{World, addr};
use crate::config::{Config, KeepaliveInterval};
use crate::core::segment::{CONTROL_CAPABLE, Command, ControlType, HEADER_LEN, Header};
use crate::core::seq::{Sn, Ts};
use crate::core::stateless_reset::stateless_reset;
use crate::crypto::{Algorithm, Cipher};
use crate::driver::ShardState;
use crate::error::{ConnectionError, TimeoutCause};
use crate::testkit::link::{CERTAIN, LinkConfig};

/// A server with the same key that has no connection, and accepts none.
const OTHER: u8 = 7;

fn sealed() -> Config {
    Config::new().cipher(Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap())
}

/// The time until a client is notified that its server is gone. The server restarts `away` after it was
/// killed. `writes`: data waits in that time.
fn noticed_after(config: &Config, writes: bool, away: Duration) -> Duration {
    let Pair { mut world, mut client, server, listener, .. } = Pair::new(config, config);
    world.crash(SERVER);
    drop((server, listener));
    if writes {
        client.try_write(b"are you there?").unwrap();
    }
    world.run_for(away);
    let again = world.listener(SERVER, config);
    let before = world.elapsed();
    let error = world.finish(2 * MINUTE, client.read(&mut [0; 1])).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::Reset));
    let took = Duration::from_micros(world.elapsed() - before);
    assert_eq!(world.finish(SECOND, client.write(b"x")).unwrap_err().kind(), error.kind());
    assert_eq!(again.stats().connections.passive_opens, 0, "no connection is accepted");
    took
}

/// Rule: W-77.
#[test]
fn restarted_server_is_noticed_within_two_seconds_of_an_answer_being_due() {
    for config in [Config::new(), sealed()] {
        for (away, least, most) in [(0, 1_000, 2_000), (1, 0, 2_000), (30, 0, 2_000)] {
            let took = noticed_after(&config, true, Duration::from_secs(away)).as_millis();
            assert!((least..most).contains(&took), "away for {away} s: after {took} ms");
        }
        // A keepalive of an active opener comes after 15.94 s.
        let took = noticed_after(&config, false, Duration::ZERO).as_millis();
        assert!((15_000..17_000).contains(&took), "idle: after {took} ms");
    }
}

#[test]
fn server_that_is_killed_behind_a_closed_window_is_noticed() {
    // Window probes are 5 s apart. One that is not answered within a second is followed by a ping each
    // second. After the first answer it takes five RTOs.
    for (away, most) in [(0, 8_000), (1, 7_000), (10, 3_000), (30, 3_000)] {
        let Pair { mut world, client, server, listener, .. } = Pair::plain();
        let mut result = write_until_error(&mut world, client);
        world.run_for(MINUTE);
        world.crash(SERVER);
        drop((server, listener));
        world.run_for(Duration::from_secs(away));
        let _again = world.listener(SERVER, &Config::new());
        let before = world.elapsed();
        let error = world.finish(MINUTE, &mut result).unwrap();
        assert_eq!(cause(&error), Some(ConnectionError::Reset), "away for {away} s");
        let took = (world.elapsed() - before) / 1_000;
        assert!(took < most, "away for {away} s: after {took} ms");
    }
}

/// Relays the datagrams of a client, and the answers, between `SERVER` and `OTHER` for `time`. Each copy
/// comes from the client's address, and from another address. Returns the bytes sent to `OTHER` and from
/// there.
fn relay(world: &mut World, time: Duration) -> (usize, usize) {
    let (mut asked, mut answered) = (0, 0);
    let end = world.elapsed() + micros(time);
    // Otherwise they come to the client first, and the copies count as replays.
    world.set_fates(OTHER, [Fate::Lost; 1_000]);
    while world.elapsed() < end {
        world.run_for(SECOND / 500);
        for sent in world.log() {
            if (sent.from, sent.to) == (addr(CLIENT), addr(SERVER)) {
                asked += sent.datagram.len();
                world.inject(addr(CLIENT), OTHER, &sent.datagram);
                world.inject(addr(77), SERVER, &sent.datagram);
            } else if sent.from == addr(OTHER) {
                answered += sent.datagram.len();
                world.inject(addr(SERVER), CLIENT, &sent.datagram);
            }
        }
    }
    (asked, answered)
}

#[test]
fn replayed_pings_and_relayed_resets_end_no_live_connection() {
    for seed in 1..=10 {
        // A tenth of the datagrams is lost, also datagrams that would contradict the relayed RSTs.
        let path = LinkConfig { loss: 100_000, ..LinkConfig::delay(30_000) };
        let config = sealed().keepalive(KeepaliveInterval::After(2 * SECOND));
        let mut world = World::new(seed, path);
        world.log();
        // A server that does not ping first.
        let listener = world.listener(SERVER, &sealed());
        let other = world.listener(OTHER, &sealed().accept_filter(|_, _| false));
        let endpoint = world.endpoint(CLIENT, &config);
        let (mut client, mut server) = world.finish(MINUTE, greet(&endpoint, &listener));
        let (asked, answered) = relay(&mut world, 2 * MINUTE);
        let resets = other.stats().stateless_resets_sent;
        assert!(resets > 20, "seed {seed}: the relay had {resets} to pass on");
        assert!(answered <= asked, "seed {seed}: {answered} bytes for {asked}");
        // The connection lives at another address than 77.
        assert_eq!(listener.stats().stateless_resets_sent, 0, "seed {seed}");
        assert_eq!((client.error(), server.error()), (None, None), "seed {seed}");
        world.finish(MINUTE, async {
            client.write_all(&pattern(20_000)).await.unwrap();
            read_pattern(&mut server, 20_000).await;
        });
    }
}

#[test]
fn relayed_reset_is_believed_without_contradiction() {
    let config = sealed().keepalive(KeepaliveInterval::After(2 * SECOND));
    let Pair { mut world, client, listener, .. } = Pair::new(&config, &config);
    let _other = world.listener(OTHER, &config.accept_filter(|_, _| false));
    world.crash(SERVER);
    drop(listener);
    relay(&mut world, 5 * SECOND);
    assert_eq!(client.error(), Some(ConnectionError::Reset));
}

/// Rules: W-78, W-91.
#[test]
fn initial_segment_that_a_listener_does_not_take_is_refused_after_a_second() {
    let filtering = Config::new().accept_filter(|_, _| false);
    for (filtered, config) in [(true, filtering), (false, Config::new())] {
        for initial in [Config::new(), sealed()] {
            let config = config.clone().cipher(initial.cipher.clone());
            let mut world = World::new(1, LinkConfig::delay(10_000));
            let listener = world.listener(SERVER, &config);
            let endpoint = world.waiting_endpoint(CLIENT, &initial);
            // A server that is about to end: its listener is gone, its endpoint is not.
            let server = listener.endpoint().clone();
            let mut listener = Some(listener);
            if !filtered {
                listener = None;
            }
            let error = world.finish(MINUTE, endpoint.connect(addr(SERVER))).unwrap_err();
            assert_eq!(cause(&error), Some(ConnectionError::Refused));
            assert!(is_about(world.elapsed(), SECOND), "{}", world.elapsed());
            assert!(server.stats().stateless_resets_sent <= 4 && listener.is_some() == filtered);
        }
    }
}

#[test]
fn refusal_is_reported_when_the_connect_timeout_is_shorter_than_a_second() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let _listener = world.listener(SERVER, &Config::new().accept_filter(|_, _| false));
    let config = Config::new().connect_timeout(SECOND / 2);
    let endpoint = world.waiting_endpoint(CLIENT, &config);
    let error = world.finish(MINUTE, endpoint.connect(addr(SERVER))).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::Refused));
    assert!(is_about(world.elapsed(), SECOND / 2), "{}", world.elapsed());
}

/// Rule: W-90.
#[test]
fn refusal_of_another_listener_does_not_end_an_attempt() {
    for delay in [50_000, 150_000, 400_000] {
        let config = sealed();
        let mut world = World::new(1, LinkConfig::delay(delay));
        world.log();
        let listener = world.listener(SERVER, &config);
        let other = world.listener(OTHER, &config);
        let refusing = other.endpoint().clone();
        drop(other);
        let endpoint = world.waiting_endpoint(CLIENT, &config);
        let (sender, result) = tokio::sync::oneshot::channel();
        world.spawn(async move { drop(sender.send(endpoint.connect(addr(SERVER)).await)) });
        relay(&mut world, 3 * SECOND);
        let client = world.finish(SECOND, result).unwrap().unwrap();
        relay(&mut world, 2 * SECOND);
        assert!(refusing.stats().stateless_resets_sent > 0);
        assert_eq!(client.error(), None);
        assert_eq!(listener.stats().connections.passive_opens, 1);
    }
}

/// Rule: W-87.
#[test]
fn server_that_starts_late_takes_early_data() {
    for config in [Config::new(), sealed()] {
        let mut world = World::new(1, LinkConfig::delay(10_000));
        let mut client = config.clone().early_data(true);
        client.kcp.dead_peer_timeout = Some(2 * MINUTE);
        let endpoint = world.endpoint(CLIENT, &client);
        let client = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
        client.try_write(b"hello").unwrap();
        // Pings leave from 40 s on, each second; data less often.
        world.run_for(45 * SECOND);
        let listener = world.listener(SERVER, &config);
        world.finish(15 * SECOND, async {
            let (mut server, _) = listener.accept().await.unwrap();
            server.read_exact(&mut [0; 5]).await.unwrap();
        });
        world.run_for(5 * SECOND);
        assert!(listener.stats().stateless_resets_sent > 0);
        assert_eq!(client.error(), None);
    }
}

#[test]
fn outage_of_less_than_0_8_seconds_behind_a_relayed_reset_ends_nothing() {
    for (outage, ends) in [(790, false), (2_000, true)] {
        let Pair { mut world, client, server, .. } = Pair::plain();
        let ping = loop {
            world.run_for(SECOND / 100);
            let sent = world.log().into_iter().find(|sent| sent.from == addr(SERVER));
            let header = sent.and_then(|sent| Header::parse(&sent.datagram).ok());
            if let Some(header) = header.filter(|header| header.command == Command::Push) {
                break header;
            }
        };
        let mut reset = Vec::new();
        stateless_reset(&ping).emit(&mut reset);
        world.inject(addr(CLIENT), SERVER, &reset);
        // The pong is lost, and every datagram after it.
        let clean = LinkConfig::delay(10_000);
        world.set_path(LinkConfig { loss: CERTAIN, ..clean.clone() });
        world.run_for(Duration::from_millis(outage));
        world.set_path(clean);
        world.run_for(5 * SECOND);
        assert_eq!(server.error(), ends.then_some(ConnectionError::Reset), "{outage} ms");
        assert!(ends || client.error().is_none(), "{outage} ms");
    }
}

fn ping(conv: u32, frg: u8) -> Vec<u8> {
    let mut datagram = Vec::new();
    let (sn, ts, una) = (Sn(0xC000_0004), Ts(77), Sn(3));
    Header { conv, command: Command::Push, frg, wnd: 128, ts, sn, una, len: 0 }.emit(&mut datagram);
    datagram
}

/// Rules: W-18, W-77, W-79.
#[test]
fn only_a_listener_answers_and_only_marked_pings() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    let _endpoint = world.endpoint(CLIENT, &Config::new());
    world.port(9);
    let answers = |world: &mut World, host: u8, datagram: &[u8]| {
        world.inject(addr(9), host, datagram);
        world.run_for(SECOND / 10);
        world.arrived(9)
    };
    let reset = answers(&mut world, SERVER, &ping(5, CONTROL_CAPABLE));
    let [datagram] = reset.as_slice() else { panic!("one answer: {reset:?}") };
    let header = Header::parse(datagram).unwrap();
    assert_eq!((header.command, header.frg), (Command::Control, ControlType::Reset as u8));
    assert_eq!((header.conv, header.sn, header.ts), (5, Sn(0xC000_0004), Ts(77)));
    assert_eq!((header.una, header.wnd, datagram.len()), (Sn(0), 0, HEADER_LEN));
    // Data and a ping of other implementations, the RST itself, a client, `close_notify` off.
    assert!(answers(&mut world, SERVER, &push(5, 200, b"data")).is_empty());
    assert!(answers(&mut world, SERVER, &ping(5, 0)).is_empty());
    assert!(answers(&mut world, SERVER, datagram).is_empty());
    assert!(answers(&mut world, CLIENT, &ping(5, CONTROL_CAPABLE)).is_empty());
    assert_eq!(listener.stats().stateless_resets_sent, 1);
    let mut silent = Config::new();
    silent.kcp.close_notify = false;
    let _silent = world.listener(3, &silent);
    assert!(answers(&mut world, 3, &ping(5, CONTROL_CAPABLE)).is_empty());
}

/// Rule: W-86.
#[test]
fn shard_sends_no_reset_for_a_connection_of_another_shard() {
    for shares in [true, false] {
        let mut world = World::new(1, LinkConfig::delay(10_000));
        let listener = world.listener(SERVER, &Config::new());
        let other = world.listener(OTHER, &Config::new());
        if shares {
            let state = ShardState::new();
            world.driver_of(SERVER).join_shards(state.clone());
            world.driver_of(OTHER).join_shards(state);
        }
        let endpoint = world.endpoint(CLIENT, &Config::new());
        let (client, server) = world.finish(SECOND, greet(&endpoint, &listener));
        world.inject(addr(9), OTHER, &ping(client.conv(), CONTROL_CAPABLE));
        world.inject(addr(9), OTHER, &ping(client.conv() ^ 1, CONTROL_CAPABLE));
        world.run_for(SECOND);
        assert_eq!(other.stats().stateless_resets_sent, if shares { 1 } else { 2 });
        // The connection ends, and its id with it.
        let conv = client.conv();
        server.abort();
        drop(client);
        world.run_for(MINUTE);
        let before = other.stats().stateless_resets_sent;
        world.inject(addr(9), OTHER, &ping(conv, CONTROL_CAPABLE));
        world.run_for(SECOND);
        assert_eq!(other.stats().stateless_resets_sent, before + 1);
        // Or its shard ends.
        let (client, server) = world.finish(SECOND, greet(&endpoint, &listener));
        world.crash(SERVER);
        world.inject(addr(9), OTHER, &ping(client.conv(), CONTROL_CAPABLE));
        world.run_for(SECOND / 100);
        assert_eq!(other.stats().stateless_resets_sent, before + 2);
        drop((client, server));
    }
}

/// Rule: W-80.
#[test]
fn datagram_draws_at_most_one_reset_and_no_longer_one() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &Config::new());
    world.port(9);
    let one = ping(5, CONTROL_CAPABLE);
    for datagram in [one.clone(), one.repeat(2), one.repeat(40), [&one, &one[..20]].concat()] {
        world.inject(addr(9), SERVER, &datagram);
        world.run_for(SECOND);
        let answers = world.arrived(9);
        assert_eq!(answers.len(), 1, "{} bytes", datagram.len());
        assert!(answers[0].len() <= datagram.len());
    }
    assert_eq!(listener.stats().stateless_resets_sent, 4);
}

#[test]
fn connect_to_an_endpoint_that_never_listened_times_out() {
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let _silent = world.endpoint(SERVER, &Config::new());
    let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
    let error = world.finish(MINUTE, endpoint.connect(addr(SERVER))).unwrap_err();
    assert_eq!(cause(&error), Some(ConnectionError::ConnectTimeout(TimeoutCause::Nothing)));
    assert!(is_about(world.elapsed(), 10 * SECOND));
}
