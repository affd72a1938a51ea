//! Initial segments forged in the name of a host that answers: one that echoes UDP, this host itself,
//! and the listener of another implementation.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, SECOND, SERVER, answer, pattern, push};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::segment::{CONTROL_CAPABLE, Command, HEADER_LEN, Header, Segments};
use crate::core::seq::{Sn, Ts};
use crate::endpoint::Endpoint;
use crate::error::ConnectionError;
use crate::testkit::link::LinkConfig;

const PEER: u8 = 9;

/// An initial segment without data, with the CONTROL capability.
fn open_segment(conv: u32) -> Vec<u8> {
    let (command, frg, sn) = (Command::WindowProbe, CONTROL_CAPABLE, Sn(1 << 30));
    let mut datagram = Vec::new();
    Header { conv, command, frg, wnd: 128, ts: Ts(5), sn, una: Sn(0), len: 0 }.emit(&mut datagram);
    datagram
}

/// A listener whose application sends `greeting` bytes, and reads to the end.
fn server(world: &mut World, config: &Config, greeting: usize) -> Endpoint {
    let listener = world.listener(SERVER, config);
    let endpoint = listener.endpoint().clone();
    world.spawn(async move {
        let mut tasks = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            // Fits the send buffer.
            stream.write_all(&pattern(greeting)).await.unwrap();
            tasks.push(stream);
        }
    });
    endpoint
}

/// Whether any connection of the listener is with a validated peer.
fn is_validated(server: &Endpoint) -> bool {
    let stats = server.stats();
    stats.connections.current > stats.connections.unvalidated
}

fn bytes(datagrams: &[Vec<u8>]) -> usize {
    datagrams.iter().map(Vec::len).sum()
}

/// Further forged segments: data in order and after a gap, FIN, probes, `una`.
fn forged_later(step: u32) -> Vec<u8> {
    let header = Header::parse(&push(7, step, b"")).unwrap();
    let mut datagram = Vec::new();
    match step % 6 {
        0 => return push(7, 1 + step / 6, b"more"),
        1 => return push(7, 20 + step, b"behind a gap"),
        2 => Header { command: Command::WindowProbe, ..header }.emit(&mut datagram),
        3 => Header { command: Command::WindowUpdate, una: Sn(1 + step / 6), ..header }
            .emit(&mut datagram),
        4 => Header { command: Command::Control, frg: 1, sn: Sn(1 + step / 6), ..header }
            .emit(&mut datagram),
        _ => Header { command: Command::Push, sn: Sn(0xC000_0000), ..header }.emit(&mut datagram),
    }
    datagram
}

#[test]
fn echo_host_is_never_validated_and_sent_at_most_three_times_what_was_forged() {
    for initial in [push(7, 0, b"hello"), open_segment(7)] {
        for (require_validation, wnd, delay, forges) in [
            (false, 128, 0, false),
            (true, 128, 0, false),
            (false, 0, 0, false),
            (false, 128, 12_000, false),
            (false, 128, 0, true),
        ] {
            let mut config = Config::new();
            config.limits.require_validation = require_validation;
            let mut world = World::new(1, LinkConfig::delay(1_000));
            let server = server(&mut world, &config, 100_000);
            world.port(PEER);
            let mut initial = initial.clone();
            initial[6..8].copy_from_slice(&u16::to_le_bytes(wnd));
            world.inject(addr(PEER), SERVER, &initial);
            let (mut forged, mut drawn) = (initial.len(), 0);
            let mut echoes: Vec<(u64, Vec<u8>)> = Vec::new();
            let label = format!("{require_validation}, window {wnd}, {delay} ms, {forges}");
            for step in 0..3_500 {
                world.run_for(SECOND / 100);
                let now = world.elapsed() / 1_000;
                let arrived = world.arrived(PEER);
                drawn += bytes(&arrived);
                echoes.extend(arrived.into_iter().map(|datagram| (now + delay, datagram)));
                for (_, datagram) in echoes.extract_if(.., |(at, _)| *at <= now) {
                    world.inject(addr(PEER), SERVER, &datagram);
                }
                if forges && step % 20 == 1 && step < 2_000 {
                    let datagram = forged_later(step / 20);
                    forged += datagram.len();
                    world.inject(addr(PEER), SERVER, &datagram);
                }
                assert!(!is_validated(&server), "{label}: {:?}", server.stats());
                let most = (3 * forged).max(1_400);
                assert!(drawn <= most, "{label}: {drawn} bytes for {forged}");
            }
            println!("{label}: {drawn} bytes for {forged}");
            assert_eq!(server.stats().connections.current, 0, "{label}");
        }
    }
}

#[test]
fn ninth_connection_of_an_echo_host_is_sent_at_most_three_times_what_was_forged() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let server = server(&mut world, &Config::new(), 10_000);
    world.port(PEER);
    let (mut forged, mut drawn) = (0, 0);
    for step in 0..4_000_u32 {
        if step < 500 {
            let initial = if step % 2 == 0 { push(step, 0, b"x") } else { open_segment(step) };
            forged += initial.len();
            world.inject(addr(PEER), SERVER, &initial);
        }
        world.run_for(SECOND / 100);
        let arrived = world.arrived(PEER);
        drawn += bytes(&arrived);
        arrived.iter().for_each(|datagram| world.inject(addr(PEER), SERVER, datagram));
        assert!(!is_validated(&server));
    }
    println!("{drawn} bytes for {forged}");
    assert!(drawn <= 3 * forged + 1_400, "{drawn} bytes for {forged}");
    assert_eq!(server.stats().connections.current, 0);
}

#[test]
fn connection_with_the_own_address_ends_after_the_validation_timeout() {
    for initial in [push(7, 0, b"hello"), open_segment(7)] {
        let mut world = World::new(1, LinkConfig::delay(1_000));
        world.log();
        let server = server(&mut world, &Config::new(), 100_000);
        world.inject(addr(SERVER), SERVER, &initial);
        world.run_for(SECOND);
        assert!(!is_validated(&server), "{:?}", server.stats());
        world.run_for(30 * SECOND);
        assert_eq!(server.stats().connections.current, 0, "{:?}", server.stats());
        let sent: usize = world.log().iter().map(|sent| sent.datagram.len()).sum();
        assert!(sent <= 1_400 + initial.len(), "{sent} bytes");
        world.run_for(MINUTE);
        assert_eq!(world.log().len(), 0);
    }
}

#[test]
fn echo_of_a_stateless_ping_is_acknowledged_by_no_unvalidated_connection() {
    let mut config = Config::new();
    (config.limits.max_unvalidated, config.limits.validation_timeout) = (1, SECOND);
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let server = server(&mut world, &config, 0);
    world.port(PEER);
    // The only place is taken for a second.
    world.inject(addr(77), SERVER, &push(1, 0, b"forged"));
    world.run_for(SECOND / 10);
    world.inject(addr(PEER), SERVER, &push(7, 0, b"hello"));
    world.run_for(SECOND / 10);
    let retry = world.arrived(PEER);
    assert_eq!((retry.len(), server.stats().retry.sent), (1, 1));
    world.run_for(2 * SECOND);
    assert_eq!(server.stats().connections.current, 0);
    world.inject(addr(PEER), SERVER, &push(7, 0, b"again"));
    world.run_for(SECOND / 10);
    assert_eq!(server.stats().connections.current, 1);
    world.arrived(PEER);
    world.inject(addr(PEER), SERVER, &retry[0]);
    world.run_for(SECOND / 10);
    assert!(world.arrived(PEER).is_empty());
    assert_eq!(server.stats().dropped.reflected, 1);
}

#[test]
fn connection_to_an_echo_host_is_never_established() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    world.port(PEER);
    let echo = |world: &mut World, time: Duration| {
        for _ in 0..time.as_millis() / 10 {
            world.run_for(SECOND / 100);
            for datagram in world.arrived(PEER) {
                world.inject(addr(PEER), CLIENT, &datagram);
            }
        }
    };
    let waits = world.waiting_endpoint(CLIENT, &Config::new());
    let result = std::rc::Rc::new(std::cell::RefCell::new(None));
    let report = result.clone();
    world.spawn(async move {
        let error = waits.connect(addr(PEER)).await.err();
        *report.borrow_mut() = Some(error.map(|error| error.kind()));
    });
    echo(&mut world, 11 * SECOND);
    assert_eq!(*result.borrow(), Some(Some(std::io::ErrorKind::TimedOut)));
    world.exit(CLIENT);

    let early = world.endpoint(CLIENT, &Config::new());
    let mut stream = world.finish(SECOND, early.connect(addr(PEER))).unwrap();
    world.finish(SECOND, stream.write_all(&pattern(5_000))).unwrap();
    echo(&mut world, 30 * SECOND);
    assert_eq!(stream.stats().path.in_flight_segments, 4, "nothing is acknowledged");
    echo(&mut world, 35 * SECOND);
    assert!(matches!(stream.error(), Some(ConnectionError::DeadPeer(_))), "{:?}", stream.error());
    assert!(world.finish(SECOND, stream.read(&mut [0; 1])).is_err());
}

// ----- listeners of other implementations -----

/// The answer of a stock listener: it opens a session for any PUSH and acknowledges it. `echoes`: its
/// application sends the data back.
#[derive(Default)]
struct StockListener {
    rcv_nxt: u32,
    echoes: bool,
    next_sn: u32,
}

impl StockListener {
    fn answer(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut data = Vec::new();
        for (header, payload) in Segments::new(datagram) {
            if header.command == Command::Push && header.sn.0 == self.rcv_nxt && !payload.is_empty()
            {
                self.rcv_nxt += 1;
                data.push(payload.to_vec());
            }
        }
        let mut out = vec![answer(datagram, self.rcv_nxt)];
        for payload in data.into_iter().filter(|_| self.echoes) {
            let mut push = push(7, self.next_sn, &payload);
            push[16..20].copy_from_slice(&self.rcv_nxt.to_le_bytes());
            self.next_sn += 1;
            out.push(push);
        }
        out.retain(|datagram| datagram.len() >= HEADER_LEN);
        out
    }
}

/// Forges `copies` of `initial` in the name of a stock listener. Returns whether the peer was validated, and
/// the bytes that it drew.
fn name_a_stock_listener(
    initial: &[u8],
    require_validation: bool,
    echoes: bool,
    copies: usize,
) -> (bool, usize) {
    let mut config = Config::new();
    config.limits.require_validation = require_validation;
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let server = server(&mut world, &config, 100_000);
    world.port(PEER);
    let mut stock = StockListener { echoes, ..StockListener::default() };
    let (mut validated, mut drawn) = (false, 0);
    for step in 0..3_500 {
        if step < copies {
            world.inject(addr(PEER), SERVER, initial);
        }
        world.run_for(SECOND / 100);
        let arrived = world.arrived(PEER);
        drawn += bytes(&arrived);
        for datagram in arrived.iter().flat_map(|datagram| stock.answer(datagram)) {
            world.inject(addr(PEER), SERVER, &datagram);
        }
        validated |= is_validated(&server);
    }
    (validated, drawn)
}

/// Rule: W-34.
#[test]
fn initial_segment_with_the_control_capability_is_validated_by_no_stock_listener() {
    for require_validation in [false, true] {
        for echoes in [false, true] {
            let initial = open_segment(7);
            let (validated, drawn) = name_a_stock_listener(&initial, require_validation, echoes, 1);
            println!("{drawn} bytes for {}", initial.len());
            assert!(!validated && drawn <= 1_400, "{validated}, {drawn} bytes");
        }
    }
}

/// Rule: W-27.
#[test]
fn one_stock_initial_segment_under_require_validation_is_validated_by_no_stock_listener() {
    let initial = push(7, 0, b"x");
    for echoes in [false, true] {
        let (validated, drawn) = name_a_stock_listener(&initial, true, echoes, 1);
        println!("{drawn} bytes for {}", initial.len());
        assert!(!validated && drawn <= 3 * initial.len(), "{validated}, {drawn} bytes");
    }
    // Its answers do not differ from a client's (SECURITY.md).
    assert!(name_a_stock_listener(&initial, true, false, 2).0, "forged twice");
    assert!(name_a_stock_listener(&initial, false, false, 1).0, "without require_validation");
}
