//! Address validation (RFC 9000 8.1): the amplification limit, the bounds on unvalidated peers, and
//! forged or restarted initial segments.

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{
    CLIENT, MINUTE, Pair, SECOND, SERVER, answer, greet, pattern, push, read_pattern,
};
use super::sim_network::Fate;
use super::sim_world::{World, addr};
use crate::config::{AckPolicy, AutoRedundancy, Config, CongestionControl, Limits, Redundancy};
use crate::core::segment::{CONTROL_CAPABLE, Command, HEADER_LEN, Header, Segments};
use crate::core::seq::{Sn, Ts};
use crate::error::{ConnectionError, TimeoutCause};
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;

const PEER: u8 = 9;

fn server(config: &Config) -> (World, KcpListener) {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, config);
    world.port(PEER);
    (world, listener)
}

/// The first ping among the received datagrams.
fn find_ping(arrived: &[Vec<u8>]) -> Option<Header> {
    let headers = arrived.iter().flat_map(|d| Segments::new(d)).map(|(header, _)| header);
    headers.into_iter().find(|h| h.command == Command::Push && h.len == 0)
}

/// The pong of a peer that has received only this ping.
fn pong(ping: &Header) -> Vec<u8> {
    let mut out = Vec::new();
    let (command, una) = (Command::Ack, Sn(0));
    Header { command, frg: 0, wnd: 128, una, ..*ping }.emit(&mut out);
    out
}

/// The ACKs of a peer whose stream has ended too are lost: it is in TIME-WAIT, and answers neither pings nor the first
/// data again.
///
/// Rule: P-60.
#[test]
fn fin_ack_that_names_our_fin_validates_its_sender() {
    for is_right in [true, false] {
        let (mut world, listener) = server(&Config::new());
        world.inject(addr(PEER), SERVER, &open_segment(7, 5));
        let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
        stream.try_write(b"bye").unwrap();
        let ended = Rc::new(Cell::new(None));
        let report = ended.clone();
        world.spawn(async move { report.set(Some(stream.shutdown().await.is_ok())) });
        world.run_for(SECOND / 10);
        let arrived = world.arrived(PEER);
        let headers = arrived.iter().flat_map(|datagram| Segments::new(datagram)).map(|(h, _)| h);
        let fin =
            headers.into_iter().find(|h| h.command == Command::Control && h.frg == 1).unwrap();
        let (ts, una) = (if is_right { fin.ts } else { Ts(fin.ts.0 ^ 1) }, Sn(1));
        let mut datagram = Vec::new();
        Header { frg: 2, ts, una, ..fin }.emit(&mut datagram);
        world.inject(addr(PEER), SERVER, &datagram);
        world.run_for(SECOND / 10);
        assert_eq!(listener.stats().connections.unvalidated, u64::from(!is_right));
        assert_eq!(ended.get(), is_right.then_some(true));
    }
}

/// Rules: W-26, P-29.
#[test]
fn amplification_limit_is_3x_received_or_one_datagram() {
    for (len, most) in [(1, 1_400), (400, 1_400), (1_300, 3 * 1_324)] {
        let unlimited = Config::new().congestion_control(CongestionControl::Off);
        let (mut world, listener) = server(&unlimited);
        world.inject(addr(PEER), SERVER, &push(7, 0, &vec![1; len]));
        let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
        world.finish(SECOND, stream.write_all(&pattern(100_000))).unwrap();
        world.run_for(29 * SECOND);
        let arrived = world.arrived(PEER);
        let bytes = arrived.iter().map(Vec::len).sum::<usize>();
        assert!(bytes <= most && bytes + 1_400 > most, "{bytes} bytes for {len}");
        // The ping is sent first, and retransmitted.
        assert!(find_ping(&arrived[..1]).is_some());
        let pings =
            arrived.iter().filter(|d| find_ping(std::slice::from_ref(*d)).is_some()).count();
        assert!(pings > 1, "{pings}");
        // The pong lifts the limit.
        let cookie = find_ping(&arrived[arrived.len() - 1..]).unwrap();
        world.inject(addr(PEER), SERVER, &pong(&cookie));
        world.run_for(SECOND / 10);
        let more = world.arrived(PEER).iter().map(Vec::len).sum::<usize>();
        assert!(more > 100_000, "{more}");
    }
}

/// Rule: P-30.
#[test]
fn amplification_limit_holds_across_connections_of_one_address() {
    let (mut world, listener) = server(&Config::new());
    let mut streams = Vec::new();
    let mut sent = 0;
    for conv in 1..=50 {
        let initial = push(conv, 0, b"x");
        sent += initial.len();
        world.inject(addr(PEER), SERVER, &initial);
        let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
        world.finish(SECOND, stream.write_all(&pattern(10_000))).unwrap();
        streams.push(stream);
    }
    world.run_for(29 * SECOND);
    let bytes = world.arrived(PEER).iter().map(Vec::len).sum::<usize>();
    assert!(bytes <= 3 * sent + 1_400, "{bytes} bytes for {sent}");
}

#[test]
fn amplification_limit_holds_across_ports_of_one_ip_address() {
    let (mut world, listener) = server(&Config::new());
    world.log();
    let (mut streams, mut received) = (Vec::new(), 0);
    for port in 1..=500 {
        let initial = push(u32::from(port), 0, b"x");
        received += initial.len();
        world.inject(SocketAddr::from(([10, 0, 1, 1], port)), SERVER, &initial);
        let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
        world.finish(SECOND, stream.write_all(&pattern(10_000))).unwrap();
        streams.push(stream);
    }
    world.run_for(29 * SECOND);
    let sent = world.log().into_iter().filter(|sent| sent.from == addr(SERVER));
    let sent: usize = sent.map(|sent| sent.datagram.len()).sum();
    println!("{sent} bytes for {received}, factor {:.1}", sent as f64 / received as f64);
    assert!(sent <= 3 * received + 8 * 1_400, "{sent} bytes for {received}");
}

#[test]
fn amplification_limit_holds_across_connections_of_one_ip_address_that_end() {
    let (mut world, listener) = server(&Config::new());
    world.log();
    let mut received = 0;
    // Three times eight connections. The application aborts them, and they end within ten seconds.
    for round in 0..3 {
        let mut streams = Vec::new();
        for port in 1..=8 {
            let initial = push(u32::from(round * 8 + port), 0, b"x");
            received += initial.len();
            let from = SocketAddr::from(([10, 0, 1, 1], 100 * round + port));
            world.inject(from, SERVER, &initial);
            let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
            world.finish(SECOND, stream.write_all(&pattern(1_000))).unwrap();
            streams.push(stream);
        }
        world.run_for(SECOND / 2);
        streams.into_iter().for_each(KcpStream::abort);
        world.run_for(10 * SECOND + SECOND / 2);
        assert_eq!(listener.stats().connections.current, 0);
    }
    let sent = world.log().into_iter().filter(|sent| sent.from == addr(SERVER));
    let sent: usize = sent.map(|sent| sent.datagram.len()).sum();
    println!("{sent} bytes for {received}");
    assert!(sent <= 3 * received + 8 * 1_400, "{sent} bytes for {received}");
    assert!(sent > 8 * 1_000, "{sent} bytes");
    // Half a minute after the first allowance the address has all of them again.
    world.run_for(MINUTE);
    world.log();
    world.inject(SocketAddr::from(([10, 0, 1, 1], 900)), SERVER, &push(900, 0, b"x"));
    let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    world.finish(SECOND, stream.write_all(&pattern(1_000))).unwrap();
    world.run_for(SECOND);
    let again: usize = world.log().iter().map(|sent| sent.datagram.len()).sum();
    assert!(again > 1_000, "{again} bytes");
}

/// Rule: W-147.
#[test]
fn out_of_band_datagrams_of_unvalidated_peers_are_dropped() {
    let (mut world, listener) = server(&Config::new());
    world.inject(addr(PEER), SERVER, &push(7, 0, b"hello"));
    let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    let mut packet = Vec::new();
    crate::fec::oob::write(&mut packet, 7, b"anybody");
    for _ in 0..100 {
        world.inject(addr(PEER), SERVER, &packet);
    }
    world.run_for(SECOND / 10);
    let stats = listener.stats();
    assert_eq!((stats.out_of_band_received, stats.dropped.unvalidated), (0, 100));
    let cookie = find_ping(&world.arrived(PEER)).unwrap();
    world.inject(addr(PEER), SERVER, &pong(&cookie));
    world.inject(addr(PEER), SERVER, &packet);
    world.run_for(SECOND / 10);
    assert_eq!(listener.stats().out_of_band_received, 1);
    assert_eq!(stream.error(), None);
}

#[test]
fn validation_timeout_ends_an_unvalidated_connection() {
    let (mut world, listener) = server(&Config::new());
    world.inject(addr(PEER), SERVER, &push(7, 0, b"hello"));
    let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    assert_eq!(listener.stats().connections.unvalidated, 1);
    // The peer sends data and answers no ping.
    for sn in 1..30 {
        world.run_for(SECOND);
        world.inject(addr(PEER), SERVER, &push(7, sn, b"more"));
    }
    assert_eq!(stream.error(), None);
    world.run_for(SECOND);
    assert_eq!(stream.error(), Some(ConnectionError::DeadPeer(TimeoutCause::Unvalidated)));
    assert_eq!(
        (listener.stats().connections.unvalidated, listener.stats().connections.current),
        (0, 0)
    );
    world.finish(SECOND, async {
        assert_eq!(stream.read(&mut [0; 1_000]).await.unwrap(), 5 + 29 * 4);
        assert!(stream.read(&mut [0; 1]).await.is_err());
    });
}

/// Rules: W-36, P-31.
#[test]
fn unvalidated_connections_are_bounded_and_further_ones_answered_without_state() {
    let mut config = Config::new();
    (config.limits.max_unvalidated, config.limits.backlog) = (64, 65_536);
    let (mut world, listener) = server(&config);
    for conv in 1..=100 {
        world.inject(addr(PEER), SERVER, &push(conv, 0, b"x"));
    }
    world.run_for(SECOND / 10);
    let stats = listener.stats();
    assert_eq!((stats.connections.unvalidated, stats.refused.max_unvalidated), (33, 67));
    assert_eq!(stats.retry.sent, 67);
    for host in 10..60_u8 {
        let from = SocketAddr::from(([10, 0, 1, host], 5_000));
        world.inject(from, SERVER, &push(1, 0, b"x"));
    }
    world.run_for(SECOND / 10);
    let stats = listener.stats();
    assert_eq!((stats.connections.unvalidated, stats.refused.max_unvalidated), (33, 117));
    assert_eq!((stats.connections.current, stats.retry.sent), (33, 117));
    assert!(world.driver_of(SERVER).routing.conns.capacity() <= 64);
    // No peer answers within the validation timeout.
    world.run_for(31 * SECOND);
    assert_eq!(listener.stats().connections.unvalidated, 0);
    while let Some(stream) = now_or_never(&listener) {
        let error = stream.unwrap().0.error();
        assert_eq!(error, Some(ConnectionError::DeadPeer(TimeoutCause::Unvalidated)));
    }
    let endpoint = world.endpoint(CLIENT, &Config::new());
    world.finish(SECOND, async {
        for _ in 0..100 {
            let (client, server) = greet(&endpoint, &listener).await;
            drop((client, server));
        }
    });
}

#[test]
fn require_validation_defers_accept_until_a_ping_is_answered() {
    let mut config = Config::new();
    config.limits.require_validation = true;
    let (mut world, listener) = server(&config);
    world.inject(addr(PEER), SERVER, &push(7, 0, b"hello"));
    world.run_for(SECOND / 10);
    assert!(now_or_never(&listener).is_none());
    assert_eq!(listener.stats().connections.current, 1);
    let cookie = find_ping(&world.arrived(PEER)).unwrap();
    world.inject(addr(PEER), SERVER, &pong(&Header { ts: Ts(cookie.ts.0 ^ 1), ..cookie }));
    world.run_for(SECOND / 10);
    assert!(now_or_never(&listener).is_none(), "the timestamp of the pong is wrong");
    world.inject(addr(PEER), SERVER, &pong(&cookie));
    world.run_for(SECOND / 10);
    assert!(now_or_never(&listener).is_none(), "it may be a listener that answers any ping");
    world.inject(addr(PEER), SERVER, &push(7, 0, b"hello"));
    world.run_for(SECOND / 10);
    let (mut stream, peer) = world.finish(SECOND, listener.accept()).unwrap();
    assert_eq!(peer, addr(PEER));
    assert_eq!(world.finish(SECOND, stream.read_chunk()).unwrap(), "hello");
}

/// The segments under `conv` that acknowledge something.
fn acknowledgements(arrived: &[Vec<u8>], conv: u32) -> Vec<Header> {
    let headers = arrived.iter().flat_map(|datagram| Segments::new(datagram)).map(|(h, _)| h);
    let of_conv = headers.filter(|header| header.conv == conv);
    let is_ack = |h: &Header| {
        h.command == Command::Ack || h.una != Sn(0) || (h.command == Command::Control && h.frg == 2)
    };
    of_conv.filter(is_ack).collect()
}

/// `shutdown` is successful once everything is acknowledged, so a connection that may never reach the application
/// acknowledges nothing. One that finds the backlog full after validation is reset.
///
/// Rules: W-27, W-174.
#[test]
fn deferred_connection_acknowledges_nothing_and_is_reset_when_the_backlog_is_full() {
    let config = Config::new().limits(Limits::new().require_validation(true).backlog(1));
    let (mut world, listener) = server(&config.ack_policy(AckPolicy::Immediate));
    let mut pings = Vec::new();
    for conv in [7, 8] {
        world.inject(addr(PEER), SERVER, &open_segment(conv, 5));
        world.inject(addr(PEER), SERVER, &push(conv, 0, b"hello"));
        let mut fin = Vec::new();
        let header = Header::parse(&push(conv, 1, b"")).unwrap();
        Header { command: Command::Control, frg: 1, ..header }.emit(&mut fin);
        world.inject(addr(PEER), SERVER, &fin);
        world.run_for(SECOND / 10);
        let arrived = world.arrived(PEER);
        assert_eq!(acknowledgements(&arrived, conv), []);
        pings.push(find_ping(&arrived).unwrap());
    }
    for ping in &pings {
        let mut pong = Vec::new();
        let (command, una) = (Command::Ack, Sn(0));
        Header { command, wnd: 128, una, ..*ping }.emit(&mut pong);
        world.inject(addr(PEER), SERVER, &pong);
    }
    world.run_for(SECOND / 10);
    let arrived = world.arrived(PEER);
    let [accepted, refused] = [7, 8].map(|conv| acknowledgements(&arrived, conv));
    assert!(accepted.iter().any(|header| header.command == Command::Ack));
    assert!(accepted.iter().any(|header| header.command == Command::Control && header.frg == 2));
    assert_eq!(refused, []);
    let mut headers = arrived.iter().map(|datagram| Header::parse(datagram).unwrap());
    assert!(headers.any(|h| h.conv == 8 && h.command == Command::Control && h.frg == 3));
    assert_eq!(listener.stats().refused.backlog, 1);
    let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    let mut read = Vec::new();
    world.finish(SECOND, stream.read_to_end(&mut read)).unwrap();
    assert_eq!((read, now_or_never(&listener).is_none()), (b"hello".to_vec(), true));
    // RST was lost for its lifetime: TIME-WAIT answers.
    world.run_for(11 * SECOND);
    world.arrived(PEER);
    world.inject(addr(PEER), SERVER, &push(8, 0, b"hello"));
    world.inject(addr(PEER), SERVER, &push(8, 1, b"more"));
    world.run_for(SECOND / 10);
    let arrived = world.arrived(PEER);
    assert_eq!(acknowledgements(&arrived, 8), []);
    let resets =
        arrived.iter().filter(|d| Header::parse(d).is_ok_and(|h| h.conv == 8 && h.frg == 3));
    assert_eq!(resets.count(), 2, "{arrived:?}");
}

// ----- sources with many connections -----

/// Takes the allowances of the source of `host`.
fn take_allowances(world: &mut World, host: u8) {
    for port in 1..=8 {
        let from = SocketAddr::from((addr(host).ip(), port));
        world.inject(from, SERVER, &push(u32::from(port), 0, b"x"));
    }
    world.run_for(SECOND / 100);
}

/// Echoes on each connection.
fn echo(world: &mut World, listener: KcpListener) {
    world.spawn(async move {
        let mut streams = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            if let Ok(chunk) = stream.read_chunk().await
                && chunk != "x"
            {
                stream.write_all(&chunk).await.unwrap();
            }
            streams.push(stream);
        }
    });
}

#[test]
fn ninth_connection_of_a_source_outlives_the_loss_of_its_first_pong_and_data() {
    let mut world = World::new(1, LinkConfig::delay(25_000));
    let listener = world.listener(SERVER, &Config::new());
    take_allowances(&mut world, PEER);
    for _ in 0..8 {
        drop(world.finish(SECOND, listener.accept()).unwrap());
    }
    echo(&mut world, listener);
    world.port(PEER);
    let request = push(77, 0, b"request");
    let (mut acked, mut answered, mut lost) = (false, None, (false, false));
    for step in 0..3_000 {
        // A client of another implementation retransmits only unacknowledged segments.
        if step % 20 == 0 && !acked {
            world.inject(addr(PEER), SERVER, &request);
        }
        world.run_for(SECOND / 100);
        for datagram in world.arrived(PEER) {
            let has = |command, len| {
                let mut headers = Segments::new(&datagram).map(|(header, _)| header);
                headers.any(|header| (header.command, header.len) == (command, len))
            };
            if has(Command::Push, 7) && !std::mem::replace(&mut lost.1, true) {
                continue;
            }
            answered = answered.or_else(|| has(Command::Push, 7).then_some(step));
            acked |= has(Command::Ack, 0);
            if !std::mem::replace(&mut lost.0, true) {
                continue;
            }
            world.inject(addr(PEER), SERVER, &answer(&datagram, 0));
        }
    }
    println!("answered after {answered:?} steps of 10 ms");
    assert!(answered.is_some_and(|step| step < 100), "{answered:?}");
}

#[test]
fn ninth_connection_of_a_source_with_early_data_outlives_the_same() {
    let mut world = World::new(1, LinkConfig::delay(25_000));
    let listener = world.listener(SERVER, &Config::new());
    take_allowances(&mut world, CLIENT);
    for _ in 0..8 {
        drop(world.finish(SECOND, listener.accept()).unwrap());
    }
    world.run_for(SECOND);
    echo(&mut world, listener);
    let endpoint = world.endpoint(CLIENT, &Config::new());
    // The request and the first answers to it arrive, the pong and the data do not.
    for host in [CLIENT, SERVER] {
        world.set_fates(host, [Fate::Late(0), Fate::Lost]);
    }
    let start = world.elapsed();
    world.finish(MINUTE, async {
        let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
        client.write_all(b"request").await.unwrap();
        assert_eq!(client.read_chunk().await.unwrap(), "request");
    });
    let millis = (world.elapsed() - start) / 1_000;
    println!("answered after {millis} ms");
    assert!(millis < 3_000, "{millis} ms");
}

#[test]
fn ninth_connection_of_a_source_is_served_at_20_percent_loss() {
    let mut stock = Config::new();
    stock.kcp.close_notify = false;
    for (name, config, early) in [
        ("stock", &stock, true),
        ("early data", &Config::new(), true),
        ("waits", &Config::new(), false),
    ] {
        let mut slowest = 0;
        for seed in 0..60 {
            let mut world = World::new(seed, LinkConfig::delay(25_000));
            let listener = world.listener(SERVER, &Config::new());
            take_allowances(&mut world, CLIENT);
            for _ in 0..8 {
                drop(world.finish(SECOND, listener.accept()).unwrap());
            }
            world.set_path(LinkConfig { loss: 200_000, ..LinkConfig::delay(25_000) });
            echo(&mut world, listener);
            let endpoint = match early {
                true => world.endpoint(CLIENT, config),
                false => world.waiting_endpoint(CLIENT, config),
            };
            let start = world.elapsed();
            world.finish(20 * SECOND, async {
                let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
                client.write_all(b"request").await.unwrap();
                assert_eq!(client.read_chunk().await.unwrap(), "request", "{name}, seed {seed}");
            });
            slowest = slowest.max(world.elapsed() - start);
        }
        println!("{name}: {} ms at most", slowest / 1_000);
    }
}

/// Clients of another implementation at one address that open within a second. Each sends a request until it
/// is acknowledged, and answers every datagram. Returns the milliseconds until each had its answer.
fn share_an_address(clients: u16, loss_percent: u64) -> Vec<Option<u64>> {
    #[derive(Clone, Default)]
    struct Client {
        sent: Option<u64>,
        acked: bool,
        answered: Option<u64>,
    }
    let mut world = World::new(1, LinkConfig::delay(25_000));
    world.log();
    let listener = world.listener(SERVER, &Config::new());
    echo(&mut world, listener);
    let mut rng = Rng::new(u64::from(clients));
    let mut is_lost = || rng.below(100) < loss_percent;
    let mut all = vec![Client::default(); usize::from(clients)];
    let begins = |index: usize| index as u64 * 1_000 / u64::from(clients);
    let from = |index: usize| SocketAddr::from(([10, 0, 1, 1], 1 + index as u16));
    for step in 0..3_000_u64 {
        let now = step * 10;
        for (index, client) in all.iter_mut().enumerate() {
            let due = client.sent.map_or_else(|| begins(index), |sent| sent + 200);
            let is_due = now >= due;
            if is_due && !client.acked {
                client.sent = Some(now);
                if !is_lost() {
                    let request = push(1_000 + index as u32, 0, b"request");
                    world.inject(from(index), SERVER, &request);
                }
            }
        }
        world.run_for(SECOND / 100);
        for sent in world.log().into_iter().filter(|sent| sent.from == addr(SERVER)) {
            let index = usize::from(sent.to.port() - 1);
            let client = &mut all[index];
            if is_lost() {
                continue;
            }
            for (header, _) in Segments::new(&sent.datagram) {
                let is_ack = (header.command, header.sn) == (Command::Ack, Sn(0));
                client.acked |= is_ack || header.una == Sn(1);
                if (header.command, header.len) == (Command::Push, 7) {
                    client.answered.get_or_insert_with(|| now - begins(index));
                }
            }
            let answers = answer(&sent.datagram, u32::from(client.answered.is_some()));
            if !answers.is_empty() && !is_lost() {
                world.inject(from(index), SERVER, &answers);
            }
        }
        if all.iter().all(|client| client.answered.is_some()) {
            break;
        }
    }
    all.into_iter().map(|client| client.answered).collect()
}

#[test]
fn clients_that_share_an_address_are_all_answered_on_a_lossy_path() {
    for (clients, loss_percent) in [(300, 20), (3_000, 5)] {
        let times = share_an_address(clients, loss_percent);
        let none = times.iter().filter(|time| time.is_none()).count();
        let slowest = times.into_iter().flatten().max();
        println!("{none} of {clients} not answered, the slowest after {slowest:?} ms");
        assert_eq!(none, 0);
    }
}

// ----- initial segments -----

#[test]
fn connect_lets_the_server_send_first() {
    for loss in [0, 300_000] {
        let mut world = World::new(3, LinkConfig { loss, ..LinkConfig::delay(10_000) });
        let listener = world.listener(SERVER, &Config::new());
        let endpoint = world.waiting_endpoint(CLIENT, &Config::new());
        world.finish(MINUTE, async {
            let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            server.write_all(b"220 ready").await.unwrap();
            let mut greeting = [0; 9];
            client.read_exact(&mut greeting).await.unwrap();
            assert_eq!(&greeting, b"220 ready");
            client.established().await.unwrap();
            client.write_all(b"HELO").await.unwrap();
            let mut helo = [0; 4];
            server.read_exact(&mut helo).await.unwrap();
            client.shutdown().await.unwrap();
            assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
        });
        assert_eq!(listener.stats().connections.passive_opens, 1);
        assert_eq!(listener.stats().connections.restart_probes, 0);
    }
}

/// Rules: W-8, W-153, W-154.
#[test]
fn open_without_data_is_retransmitted_until_answered() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    world.port(PEER);
    let endpoint = world.endpoint(CLIENT, &Config::new());
    let stream = world.finish(SECOND, endpoint.connect(addr(PEER))).unwrap();
    world.run_for(10 * SECOND);
    let pings = world.arrived(PEER);
    assert!((10..15).contains(&pings.len()), "{}", pings.len());
    for (index, datagram) in pings.iter().enumerate() {
        let header = Header::parse(datagram).unwrap();
        assert_eq!(
            (header.command, header.frg, header.una),
            (Command::WindowProbe, CONTROL_CAPABLE, Sn(0))
        );
        assert!(header.ts != Ts(0) && datagram.len() == HEADER_LEN);
        assert_eq!(header.sn == Sn(0), index >= 3);
        let first = Header::parse(&pings[0]).unwrap();
        assert_eq!(Header { sn: first.sn, ..header }, first);
    }
    // A peer of another implementation answers with its window; then it is pinged.
    world.inject(addr(PEER), CLIENT, &answer(&pings[0], 0));
    world.run_for(20 * SECOND);
    let after = world.arrived(PEER);
    assert!(after.iter().all(|d| Header::parse(d).unwrap().command == Command::Push));
    let cookie = find_ping(&after[after.len() - 1..]).unwrap();
    world.inject(addr(PEER), CLIENT, &pong(&cookie));
    world.finish(SECOND, stream.established()).unwrap();
}

/// Rule: W-154.
#[test]
fn first_data_replaces_the_open_without_data() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    world.port(PEER);
    let endpoint = world.endpoint(CLIENT, &Config::new());
    let stream = world.finish(SECOND, endpoint.connect(addr(PEER))).unwrap();
    stream.try_write(b"hello").unwrap();
    world.run_for(2 * SECOND);
    let sent = world.arrived(PEER);
    let first = sent.iter().position(|d| Header::parse(d).unwrap().command == Command::Push);
    let later = &sent[first.unwrap()..];
    assert!(later.iter().all(|d| Header::parse(d).unwrap().command == Command::Push));
}

// ----- restarts, and reuse of a conversation id -----

/// Rules: W-98, P-48.
#[test]
fn restart_confirmed_by_a_ping_ends_the_old_connection() {
    for (acks_all, written) in [(true, 10), (false, 0)] {
        let (mut world, listener) = server(&Config::new());
        world.inject(addr(PEER), SERVER, &push(7, 0, b"first"));
        let (mut old, _) = world.finish(SECOND, listener.accept()).unwrap();
        world.finish(SECOND, old.write_all(&pattern(written))).unwrap();
        world.run_for(SECOND / 10);
        let arrived = world.arrived(PEER);
        world.inject(addr(PEER), SERVER, &answer(&arrived[0], u32::from(written > 0)));
        if acks_all {
            for datagram in &arrived {
                world.inject(addr(PEER), SERVER, &answer(datagram, 1));
            }
        }
        world.run_for(2 * SECOND);
        world.arrived(PEER);
        assert_eq!((old.error(), listener.stats().connections.unvalidated), (None, 0));

        let again = push(7, 0, b"second");
        world.inject(addr(PEER), SERVER, &again);
        world.run_for(SECOND / 10);
        assert_eq!((old.error(), listener.stats().connections.restart_probes), (None, 1));
        let cookie = find_ping(&world.arrived(PEER)).expect("the peer is pinged");
        world.inject(addr(PEER), SERVER, &pong(&cookie));
        world.run_for(SECOND / 10);
        if written == 0 {
            // The retransmission of the initial segment shows the lost state, the pong does not.
            assert_eq!(old.error(), None);
            world.inject(addr(PEER), SERVER, &again);
            world.run_for(SECOND / 10);
        }
        assert_eq!(old.error(), Some(ConnectionError::PeerRestarted));
        world.inject(addr(PEER), SERVER, &again);
        let (mut new, _) = world.finish(SECOND, listener.accept()).unwrap();
        assert_eq!(world.finish(SECOND, new.read_chunk()).unwrap(), "second");
    }
}

#[test]
fn forged_initial_segments_do_not_end_a_live_connection() {
    let Pair { mut world, listener, mut client, mut server, .. } = Pair::plain();
    world.finish(SECOND, server.write_all(&pattern(10))).unwrap();
    world.run_for(2 * SECOND);
    for _ in 0..5 {
        world.inject(addr(CLIENT), SERVER, &push(client.conv(), 0, b"forged"));
        world.run_for(2 * SECOND);
    }
    assert_eq!(listener.stats().connections.restart_probes, 5);
    world.finish(SECOND, async move {
        read_pattern(&mut client, 10).await;
        client.write_all(&pattern(10_000)).await.unwrap();
        read_pattern(&mut server, 10_000).await;
    });
}

#[test]
fn forged_initial_segments_to_a_silent_server_do_not_end_a_live_connection() {
    let Pair { mut world, listener, mut client, mut server, .. } = Pair::plain();
    world.run_for(2 * SECOND);
    for _ in 0..5 {
        world.inject(addr(CLIENT), SERVER, &push(client.conv(), 0, b"forged"));
        world.run_for(2 * SECOND);
        // The client has nothing to acknowledge, but sends data.
        world.finish(SECOND, async {
            client.write_all(&pattern(10)).await.unwrap();
            read_pattern(&mut server, 10).await;
        });
    }
    assert_eq!((listener.stats().connections.restart_probes, server.error()), (5, None));
}

/// An initial segment without data.
fn open_segment(conv: u32, ts: u32) -> Vec<u8> {
    let (command, frg, sn, una) = (Command::WindowProbe, CONTROL_CAPABLE, Sn(1 << 30), Sn(0));
    let mut datagram = Vec::new();
    Header { conv, command, frg, wnd: 128, ts: Ts(ts), sn, una, len: 0 }.emit(&mut datagram);
    datagram
}

#[test]
fn reordered_open_behind_its_first_data_is_no_restart() {
    for ended in [false, true] {
        let (mut world, listener) = server(&Config::new());
        world.inject(addr(PEER), SERVER, &push(7, 0, b"first"));
        let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
        let mut stream = Some(stream).filter(|_| !ended);
        let answer_all = |world: &mut World| {
            for _ in 0..40 {
                world.run_for(SECOND / 20);
                for datagram in world.arrived(PEER) {
                    world.inject(addr(PEER), SERVER, &answer(&datagram, 0));
                }
            }
        };
        if ended {
            answer_all(&mut world);
        }
        world.inject(addr(PEER), SERVER, &open_segment(7, 5));
        answer_all(&mut world);
        assert!(stream.take().is_none_or(|stream| stream.error().is_none()));
        let stats = listener.stats();
        assert_eq!((stats.connections.passive_opens, stats.connections.restart_probes), (1, 0));
    }
    // The same with two endpoints, on a path that reorders.
    for seed in 0..50 {
        let path = LinkConfig { jitter: 10_000, ..LinkConfig::delay(10_000) };
        let mut world = World::new(seed, path);
        let listener = world.listener(SERVER, &Config::new());
        let endpoint = world.endpoint(CLIENT, &Config::new());
        let mut client = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
        world.run_for(SECOND / 500);
        world.finish(SECOND, client.write_all(b"request")).unwrap();
        let (server, _) = world.finish(SECOND, listener.accept()).unwrap();
        world.run_for(SECOND);
        assert_eq!((client.error(), server.error()), (None, None), "seed {seed}");
    }
}

#[test]
fn abort_frees_the_conv_for_a_new_connection() {
    let (mut world, listener) = server(&Config::new());
    world.inject(addr(PEER), SERVER, &push(7, 0, b"first"));
    let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    stream.abort();
    for _ in 0..3 {
        world.run_for(SECOND / 2);
        world.inject(addr(PEER), SERVER, &push(7, 0, b"second"));
    }
    let (mut stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    assert_eq!(world.finish(SECOND, stream.read_chunk()).unwrap(), "second");
}

#[test]
fn retransmitted_initial_segment_is_no_restart() {
    let Pair { mut world, listener, client, server, .. } = Pair::plain();
    world.inject(addr(CLIENT), SERVER, &push(client.conv(), 0, b"hi"));
    world.run_for(SECOND);
    assert_eq!(listener.stats().connections.restart_probes, 0);
    assert_eq!(server.stats().anomalies.duplicate_segments, 1);
}

#[test]
fn connections_of_one_address_exist_side_by_side() {
    let Pair { mut world, listener, mut client, mut server, .. } = Pair::plain();
    // A forged initial segment from the client's address.
    world.inject(addr(CLIENT), SERVER, &push(client.conv() ^ 1, 0, b"forged"));
    world.run_for(SECOND);
    assert_eq!((server.error(), listener.stats().connections.current), (None, 2));
    drop(world.finish(SECOND, listener.accept()).unwrap());

    let (mut second, mut other) = {
        let endpoint = client.endpoint();
        world.finish(SECOND, greet(&endpoint, &listener))
    };
    world.run_for(SECOND);
    assert_eq!(server.error(), None);
    world.finish(SECOND, async {
        second.write_all(b"on").await.unwrap();
        assert_eq!(other.read_chunk().await.unwrap(), "on");
        client.write_all(b"too").await.unwrap();
        assert_eq!(server.read_chunk().await.unwrap(), "too");
    });
}

#[test]
fn flood_of_unvalidated_peers_keeps_to_the_limits() {
    let (mut world, listener) = server(&Config::new());
    world.set_path(LinkConfig::delay(0));
    let pair = world.endpoint(CLIENT, &Config::new());
    let (mut client, mut server) = world.finish(SECOND, greet(&pair, &listener));
    world.run_for(SECOND);
    let initial = push(1, 0, b"let me in");
    let mut accepted = Vec::new();
    for round in 0..1_000_u32 {
        for i in 0..1_000_u32 {
            // 65,000 addresses and ports.
            let source = (round * 1_000 + i) % 65_000;
            let [_, _, high, low] = source.to_be_bytes();
            let from = SocketAddr::from(([127, 7, high, low], 1_024 + (source % 60_000) as u16));
            world.inject(from, SERVER, &initial);
        }
        world.run_for(Duration::from_micros(50));
        while let Some(Ok((stream, _))) = now_or_never(&listener) {
            accepted.push(stream);
        }
    }
    let stats = listener.stats();
    assert_eq!(stats.connections.unvalidated, 2_049);
    let refused = stats.refused.max_unvalidated + stats.refused.backlog;
    assert!(refused > 900_000, "{stats:?}");
    assert!(world.driver_of(SERVER).routing.conns.capacity() <= 8_192);
    world.finish(SECOND, async {
        client.write_all(&pattern(100_000)).await.unwrap();
        read_pattern(&mut server, 100_000).await;
    });
    drop(accepted);
    world.run_for(45 * SECOND);
    assert_eq!(
        (listener.stats().connections.unvalidated, listener.stats().connections.current),
        (0, 1)
    );
}

fn now_or_never(listener: &KcpListener) -> Option<std::io::Result<(KcpStream, SocketAddr)>> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match listener.poll_accept(&mut cx) {
        std::task::Poll::Ready(stream) => Some(stream),
        std::task::Poll::Pending => None,
    }
}

/// The first pings and their answers are lost, while data arrives that wants an ACK.
#[test]
fn connections_that_begin_on_a_lossy_path_live_longer_than_validation_takes() {
    let auto = Config::new().redundancy(Redundancy::Auto(AutoRedundancy::new()));
    for (seed, config) in (1..=80).zip([Config::new(), auto].iter().cycle()) {
        let loss = 100_000;
        let path = LinkConfig { loss, ..LinkConfig::delay(25_000) };
        let mut world = World::new(seed, path);
        let listener = world.listener(SERVER, config);
        let endpoint = world.waiting_endpoint(CLIENT, config);
        let client = world.finish(MINUTE, endpoint.connect(addr(SERVER))).unwrap();
        let server = world.finish(MINUTE, listener.accept()).unwrap().0;
        // Validation has 30 s.
        for _ in 0..3_500 {
            let written = client.try_write(&[7; 1_024]);
            let has_ended = written.is_err_and(|error| error.kind() != ErrorKind::WouldBlock);
            assert!(!has_ended, "seed {seed}");
            world.run_for(Duration::from_millis(10));
            let mut got = [0; 4_096];
            while server.try_read(&mut got).is_ok_and(|len| len > 0) {}
        }
    }
}

/// A peer that may be forged draws one ping, which acknowledges nothing.
/// Rule: W-27.
#[test]
fn peer_beyond_the_allowances_is_pinged_without_any_acknowledgement() {
    for require_validation in [false, true] {
        let mut config = Config::new();
        config.limits.require_validation = require_validation;
        let (mut world, _listener) = server(&config);
        if !require_validation {
            take_allowances(&mut world, PEER);
            world.arrived(PEER);
        }
        world.inject(addr(PEER), SERVER, &push(77, 0, b"request"));
        world.run_for(SECOND / 2);
        let arrived = world.arrived(PEER);
        let headers: Vec<_> =
            arrived.iter().flat_map(|d| Segments::new(d)).map(|(h, _)| h).collect();
        assert!(find_ping(&arrived).is_some(), "{headers:?}");
        let is_plain = |header: &Header| header.command == Command::Push && header.una == Sn(0);
        assert!(headers.iter().all(|header| is_plain(header) && header.len == 0), "{headers:?}");
    }
}
