//! Retry (RFC 9000 8.1.2): initial segments that are answered without state, during floods of forged ones.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::AsyncWriteExt;

use super::fixtures::{CLIENT, MINUTE, SECOND, SERVER, answer, greet, pattern, push, read_pattern};
use super::sim_world::{World, addr};
use crate::config::{Config, Redundancy};
use crate::core::segment::{CONTROL_CAPABLE, Command, HEADER_LEN, Header, Segments};
use crate::core::seq::{Sn, Ts};
use crate::crypto::{Cipher, Key};
use crate::endpoint::Endpoint;
use crate::fec::FecConfig;
use crate::listener::KcpListener;
use crate::stats::EndpointStats;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;

const PEER: u8 = 9;
/// Forged initial segments each millisecond: 20,000 a second.
const FLOOD: u32 = 20;

/// Accepts, keeps and reads every connection.
fn accept_all(world: &mut World, listener: KcpListener) -> Endpoint {
    let endpoint = listener.endpoint().clone();
    world.spawn(async move {
        let mut streams = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            streams.push(stream);
        }
    });
    endpoint
}

/// The address of a forged initial segment, different each time.
fn forged(i: u32) -> SocketAddr {
    let [_, a, b, c] = i.to_be_bytes();
    SocketAddr::from(([172, 16 + a % 16, b, c], 1_024 + (i % 60_000) as u16))
}

/// A listener that answers without state, since a peer that does not exist has its only place.
fn crowded(config: &Config, initial: Option<&[u8]>) -> (World, KcpListener, KcpStream) {
    let mut config = config.clone();
    config.limits.max_unvalidated = 1;
    let mut world = World::new(1, LinkConfig::delay(25_000));
    let listener = world.listener(SERVER, &config);
    let default = push(1, 0, b"forged");
    world.inject(forged(1), SERVER, initial.unwrap_or(&default));
    let (stream, _) = world.finish(SECOND, listener.accept()).unwrap();
    assert_eq!(listener.stats().connections.unvalidated, 1);
    (world, listener, stream)
}

/// A client of another implementation: answers its datagrams every 10 ms, and retransmits its first data
/// every 200 ms until it is acknowledged.
struct StockClient {
    host: u8,
    sent: Option<u64>,
    connected: Option<u64>,
}

impl StockClient {
    fn update(&mut self, world: &World) {
        let now = world.elapsed();
        for datagram in world.arrived(self.host) {
            world.inject(addr(self.host), SERVER, &answer(&datagram, 0));
            let mut segments = Segments::new(&datagram);
            if segments.any(|(h, _)| h.command == Command::Ack && (h.sn, h.ts) == (Sn(0), Ts(77))) {
                self.connected.get_or_insert(now);
            }
        }
        if self.connected.is_none() && self.sent.is_none_or(|at| now >= at + 200_000) {
            world.inject(addr(self.host), SERVER, &push(5, 0, b"hello"));
            self.sent = Some(now);
        }
    }
}

#[test]
fn honest_clients_connect_beside_20_000_forged_initial_segments_a_second() {
    const CLIENTS: u8 = 50;
    let mut world = World::new(1, LinkConfig::delay(25_000));
    let listener = world.listener(SERVER, &Config::new());
    let server = accept_all(&mut world, listener);
    let mut next = 0;
    let mut flood = |world: &mut World, millis: u32, update: &mut dyn FnMut(&mut World)| {
        for ms in 0..millis {
            for _ in 0..FLOOD {
                world.inject(forged(next), SERVER, &push(next, 0, &[1; 100]));
                next += 1;
            }
            world.run_for(SECOND / 1_000);
            if ms % 10 == 0 {
                update(world);
            }
        }
    };
    flood(&mut world, 500, &mut |_| {});
    assert!(server.stats().retry.sent > 0, "the table is half full");

    let connected = Rc::new(Cell::new(0));
    let ours = world.endpoint(CLIENT, &Config::new());
    for _ in 0..CLIENTS {
        let (endpoint, count) = (ours.clone(), connected.clone());
        world.spawn(async move {
            let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
            client.write_all(b"hi").await.unwrap();
            client.established().await.unwrap();
            count.set(count.get() + 1);
            // The stream stays open.
            std::future::pending::<()>().await;
        });
    }
    let mut stock: Vec<_> = (100..100 + CLIENTS)
        .map(|host| StockClient { host, sent: None, connected: None })
        .collect();
    stock.iter().for_each(|client| world.port(client.host));
    let start = world.elapsed();
    flood(&mut world, 3_000, &mut |world| {
        stock.iter_mut().for_each(|client| client.update(world));
        assert!(world.driver_of(SERVER).admission.unvalidated.len() <= 2_049);
    });
    let mut times: Vec<_> = stock.iter().filter_map(|client| client.connected).collect();
    times.sort_unstable();
    let stats = server.stats();
    println!(
        "{} of ours and {} others connected, the others after {:?} to {:?} ms; {stats:?}",
        connected.get(),
        times.len(),
        times.first().map(|at| (at - start) / 1_000),
        times.last().map(|at| (at - start) / 1_000),
    );
    assert!(connected.get() + times.len() >= 99, "{} and {}", connected.get(), times.len());
    assert!(stats.memory.unvalidated_bytes <= 64 << 20, "{stats:?}");
    assert!(stats.retry.answered >= 99, "{stats:?}");
}

/// Rule: W-41.
#[test]
fn retry_lets_every_kind_of_client_in() {
    let fec = FecConfig::new(10, 3).unwrap();
    let mut small = Config::new();
    small.kcp.close_notify = false;
    for (client, server) in [
        (Config::new(), Config::new()),
        (small.clone(), Config::new()),
        (Config::new(), small),
        (
            Config::new().redundancy(Redundancy::Fec(fec)),
            Config::new().redundancy(Redundancy::Fec(fec)),
        ),
    ] {
        for (loss, early) in [(0, true), (0, false), (200_000, true), (200_000, false)] {
            let (mut world, listener, _stuck) = crowded(&server, None);
            world.set_path(LinkConfig { loss, ..LinkConfig::delay(25_000) });
            let endpoint = if early {
                world.endpoint(CLIENT, &client)
            } else {
                world.waiting_endpoint(CLIENT, &client)
            };
            let limit = if loss == 0 { SECOND } else { MINUTE };
            world.finish(limit, async {
                let (mut client, mut server) = greet(&endpoint, &listener).await;
                let write = async { client.write_all(&pattern(100_000)).await.unwrap() };
                tokio::join!(write, read_pattern(&mut server, 100_000));
                client.flush().await.unwrap();
                assert!(client.stats().path.peer_window_segments > 32);
            });
            let EndpointStats { retry, connections, .. } = listener.stats();
            println!("{} us, {} sent, {} answered", world.elapsed(), retry.sent, retry.answered);
            assert!(retry.sent > 0 && retry.answered > 0);
            assert_eq!((connections.passive_opens, connections.unvalidated), (2, 1));
        }
    }
}

#[test]
fn retry_under_a_cipher_opens_once_and_replays_open_nothing() {
    let cipher = || Cipher::from_name("aes-128-gcm", &Key::derive("a passphrase", "salt")).unwrap();
    // An initial segment of a client that is gone.
    let gone = {
        let mut world = World::new(2, LinkConfig::delay(25_000));
        world.log();
        world.port(SERVER);
        let endpoint = world.endpoint(CLIENT, &Config::new().cipher(cipher()));
        let stream = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
        stream.try_write(b"gone").unwrap();
        world.run_for(SECOND / 100);
        world.log().remove(0).datagram
    };
    let (mut world, listener, _stuck) = crowded(&Config::new().cipher(cipher()), Some(&gone));
    world.log();
    let endpoint = world.endpoint(CLIENT, &Config::new().cipher(cipher()));
    let (client, server) = world.finish(SECOND / 2, greet(&endpoint, &listener));
    world.run_for(SECOND);
    let stats = listener.stats();
    assert_eq!((stats.connections.passive_opens, stats.retry.answered), (2, 1));
    assert!(stats.dropped.replayed <= 1, "{stats:?}");
    let recorded = world.log();
    for from in [addr(77), addr(CLIENT)] {
        for sent in recorded.iter().filter(|sent| sent.from == addr(CLIENT)) {
            world.inject(from, SERVER, &sent.datagram);
        }
        world.run_for(SECOND);
    }
    assert_eq!(listener.stats().connections.passive_opens, 2);
    assert_eq!((client.error(), server.error()), (None, None));
}

#[test]
fn retry_sends_an_address_no_more_than_came_from_it() {
    let (mut world, listener, _stuck) = crowded(&Config::new(), None);
    world.log();
    let mut received: HashMap<SocketAddr, usize> = HashMap::new();
    for i in 2..5_000_u32 {
        let from = forged(i % 500);
        let datagram = push(i, 0, &[1; 30][..(i % 30) as usize]);
        *received.entry(from).or_default() += datagram.len();
        world.inject(from, SERVER, &datagram);
        if i % 50 == 0 {
            world.run_for(SECOND / 100);
        }
    }
    world.run_for(SECOND);
    let mut sent: HashMap<SocketAddr, usize> = HashMap::new();
    for datagram in world.log().into_iter().filter(|sent| sent.from == addr(SERVER)) {
        *sent.entry(datagram.to).or_default() += datagram.datagram.len();
    }
    sent.remove(&forged(1));
    assert_eq!(sent.len(), 499);
    assert!(sent.iter().all(|(to, bytes)| *bytes <= received[to]));
    assert_eq!(listener.stats().connections.passive_opens, 1);
}

#[test]
fn retry_alone_connects_no_client_and_sets_no_window() {
    let mut world = World::new(1, LinkConfig::delay(25_000));
    world.port(PEER);
    for without_data in [false, true] {
        let host = CLIENT + u8::from(without_data);
        let endpoint = world.endpoint(host, &Config::new());
        let stream = world.finish(SECOND, endpoint.connect(addr(PEER))).unwrap();
        if !without_data {
            stream.try_write(b"hello").unwrap();
        }
        let mut copies = 0;
        for _ in 0..5 {
            world.run_for(SECOND);
            for datagram in world.arrived(PEER) {
                let header = Header::parse(&datagram).unwrap();
                if header.command == Command::Ack {
                    assert_eq!((header.sn, header.ts), (Sn(0xA000_0001), Ts(9)));
                    continue;
                }
                copies += 1;
                let (command, frg, una) = (Command::Push, CONTROL_CAPABLE, Sn(0));
                let (sn, ts, wnd, len) = (Sn(0xA000_0001), Ts(9), 1, 0);
                let mut ping = Vec::new();
                Header { command, frg, wnd, ts, sn, una, len, ..header }.emit(&mut ping);
                world.inject(addr(PEER), host, &ping);
            }
        }
        assert!(copies >= 3, "{copies} copies");
        assert_eq!(stream.stats().path.peer_window_segments, 32);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let established = std::pin::pin!(stream.established());
        assert!(established.poll(&mut cx).is_pending());
        assert_eq!(stream.error(), None);
    }
}

/// Rules: W-41, W-44.
#[test]
fn retry_lets_in_a_peer_whose_earlier_connection_is_in_time_wait() {
    let mut config = Config::new();
    config.limits.max_unvalidated = 1;
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &config);
    world.port(PEER);
    for sn in 0..3 {
        world.inject(addr(PEER), SERVER, &push(7, sn, b"first"));
    }
    let (first, _) = world.finish(SECOND, listener.accept()).unwrap();
    world.run_for(SECOND / 10);
    assert_eq!(first.stats().received.segments, 3);
    for datagram in world.arrived(PEER) {
        world.inject(addr(PEER), SERVER, &answer(&datagram, 0));
    }
    world.run_for(SECOND / 10);
    assert_eq!(listener.stats().connections.unvalidated, 0);
    drop(first);
    world.run_for(SECOND);
    assert_eq!(listener.stats().connections.current, 0);
    world.inject(forged(1), SERVER, &push(1, 0, b"forged"));
    let (_stuck, _) = world.finish(SECOND, listener.accept()).unwrap();

    world.arrived(PEER);
    world.inject(addr(PEER), SERVER, &push(7, 0, b"second"));
    world.run_for(SECOND / 10);
    let retry = world.arrived(PEER);
    assert_eq!((retry.len(), listener.stats().retry.sent), (1, 1));
    // The ACK of the token and the retransmission leave in one datagram.
    let mut datagram = answer(&retry[0], 0);
    datagram.extend(push(7, 0, b"second"));
    world.inject(addr(PEER), SERVER, &datagram);
    let (mut second, _) = world.finish(SECOND, listener.accept()).unwrap();
    assert_eq!(world.finish(SECOND, second.read_chunk()).unwrap(), "second");
    world.run_for(SECOND / 10);
    let arrived = world.arrived(PEER);
    let una = arrived.iter().flat_map(|d| Segments::new(d)).map(|(h, _)| h.una.0).max();
    assert_eq!((una, listener.stats().retry.answered), (Some(1), 1));
}

#[test]
fn retry_advertises_the_capability_that_the_listener_has() {
    let mut small = Config::new();
    small.kcp.close_notify = false;
    let (mut world, listener, _stuck) = crowded(&small, None);
    world.log();
    let endpoint = world.endpoint(CLIENT, &Config::new());
    let (mut client, _server) = world.finish(SECOND, greet(&endpoint, &listener));
    world.finish(SECOND, client.shutdown()).unwrap();
    world.run_for(SECOND);
    let log = world.log();
    let headers = log.iter().flat_map(|sent| Segments::new(&sent.datagram)).map(|(h, _)| h);
    assert!(log.len() > 5 && headers.into_iter().all(|h| h.command != Command::Control));
}

/// Rules: W-36, W-37, W-38.
#[test]
fn retry_is_a_ping_alone_in_its_datagram() {
    for capability in [CONTROL_CAPABLE, 0] {
        let config = Config::new().close_notify(capability != 0);
        let (mut world, _listener, _stuck) = crowded(&config, None);
        world.port(PEER);
        world.inject(addr(PEER), SERVER, &push(7, 0, b"hello"));
        world.run_for(SECOND / 10);
        let arrived = world.arrived(PEER);
        assert_eq!(arrived.iter().map(Vec::len).collect::<Vec<_>>(), [HEADER_LEN]);
        let ping = Header::parse(&arrived[0]).unwrap();
        let Header { conv, command, frg, wnd, una, len, sn, .. } = ping;
        assert_eq!((conv, command, frg, len), (7, Command::Push, capability, 0));
        assert_eq!((una, wnd), (Sn(0), 1));
        let number = sn.0.wrapping_sub(0xA000_0001);
        assert!(number % 2 == 0 && number / 2 < 1 << 28, "{sn:?}");
    }
}

/// Rule: W-42.
#[test]
fn retry_answer_without_the_capability_admits_no_initial_segment_with_it() {
    let (mut world, listener, _stuck) = crowded(&Config::new(), None);
    world.port(PEER);
    let (command, frg, sn) = (Command::WindowProbe, CONTROL_CAPABLE, Sn(1 << 30));
    let mut initial = Vec::new();
    Header { conv: 7, command, frg, wnd: 128, ts: Ts(5), sn, una: Sn(0), len: 0 }
        .emit(&mut initial);
    for (frg, opens) in [(0, 1), (CONTROL_CAPABLE, 2)] {
        world.arrived(PEER);
        world.inject(addr(PEER), SERVER, &initial);
        world.run_for(SECOND / 10);
        let mut ack = answer(&world.arrived(PEER)[0], 0);
        ack[5] = frg;
        world.inject(addr(PEER), SERVER, &ack);
        world.inject(addr(PEER), SERVER, &initial);
        world.run_for(SECOND / 10);
        assert_eq!(listener.stats().connections.passive_opens, opens);
    }
}
