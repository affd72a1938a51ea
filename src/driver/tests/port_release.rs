//! A port that its driver releases to the next endpoint.

use tokio::io::AsyncWriteExt;
use tokio::sync::oneshot;

use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, pattern, push};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::segment::{Command, ControlType, Segments};
use crate::driver::output::TURN_PACKETS;
use crate::error::ConnectionError;
use crate::listener::KcpListener;
use crate::shared::requests::{Request, TimeWaitEntry};
use crate::testkit::link::LinkConfig;

/// Asks the driver at `SERVER` for its port, as a new endpoint does; `None` if the driver keeps it.
fn release(world: &mut World) -> Option<Vec<TimeWaitEntry>> {
    let requests = world.driver_of(SERVER).requests.clone();
    let (reply, can_release) = oneshot::channel();
    requests.push(Request::CanReleasePort(reply));
    let can_release = world.finish(SECOND, can_release).unwrap();
    let (reply, released) = oneshot::channel();
    requests.push(Request::ReleasePort(reply));
    let released = world.finish(SECOND, released).ok();
    assert_eq!(can_release, released.is_some());
    released
}

/// The next listener at `SERVER`, with the TIME-WAIT states of the last one.
fn listen_again(world: &mut World, entries: Vec<TimeWaitEntry>) -> KcpListener {
    let listener = world.listener(SERVER, &Config::new());
    world.driver_of(SERVER).inherit_time_wait(entries);
    listener
}

/// The datagrams of the client with such a segment, since the log was last read.
fn of_client(world: &World, is: impl Fn(Command, u8) -> bool) -> Vec<Vec<u8>> {
    let has = |datagram: &[u8]| Segments::new(datagram).any(|(h, _)| is(h.command, h.frg));
    let sent = world.log().into_iter().filter(|sent| sent.from == addr(CLIENT));
    sent.map(|sent| sent.datagram).filter(|datagram| has(datagram)).collect()
}

/// Sends a datagram of the client once more. Returns the CONTROL segments that answer it.
fn controls(world: &mut World, datagram: &[u8]) -> Vec<Option<ControlType>> {
    world.log();
    world.inject(addr(CLIENT), SERVER, datagram);
    world.run_for(SECOND / 10);
    let answers = world.log().into_iter().filter(|sent| sent.from == addr(SERVER));
    let datagrams: Vec<_> = answers.map(|sent| sent.datagram).collect();
    let headers = datagrams.iter().flat_map(|datagram| Segments::new(datagram)).map(|(h, _)| h);
    let controls = headers.filter(|header| header.command == Command::Control);
    controls.map(|header| ControlType::from_frg(header.frg)).collect()
}

/// Rule: P-54.
#[test]
fn next_endpoint_on_the_port_answers_for_connections_in_time_wait() {
    let Pair { mut world, listener, client, server, .. } = Pair::plain();
    let pushes = of_client(&world, |command, _| command == Command::Push);
    drop((client, server));
    world.finish(SECOND, listener.wait_idle());
    let fins = of_client(&world, |command, frg| {
        command == Command::Control && frg == ControlType::Fin as u8
    });
    let mut listener = listener;
    // Inherited states are handed on.
    for _ in 0..2 {
        assert!(release(&mut world).is_none(), "it has a handle");
        drop(listener);
        let entries = release(&mut world).expect("a port without users");
        assert_eq!(entries.len(), 1);
        listener = listen_again(&mut world, entries);
        assert_eq!(controls(&mut world, &fins[0]), [Some(ControlType::FinAck)]);
        assert_eq!(controls(&mut world, &pushes[0]), [], "a late duplicate");
        assert_eq!(listener.stats().connections.passive_opens, 0);
    }
}

#[test]
fn port_is_released_once_everything_is_delivered() {
    let Pair { mut world, listener, client, server, .. } = Pair::plain();
    drop(listener);
    assert!(release(&mut world).is_none(), "a stream is open");
    server.try_write(&pattern(1_000)).unwrap();
    let closed = server.closed();
    drop(server);
    let requests = world.driver_of(SERVER).requests.clone();
    let (reply, released) = oneshot::channel();
    requests.push(Request::ReleasePort(reply));
    assert!(world.finish(SECOND, released).is_err(), "data is under way");
    let before = world.elapsed();
    let entries = release(&mut world).expect("everything is acknowledged");
    assert!(world.elapsed() >= before + 20_000, "a round trip for the data and the FIN");
    assert_eq!(entries.len(), 1, "the connection that waits for the FIN of the client");
    assert_eq!(world.finish(SECOND, closed), ConnectionError::Closed);
    drop(client);
}

#[test]
fn peer_that_goes_on_sending_is_reset_by_the_next_endpoint() {
    let Pair { mut world, listener, mut client, server, .. } = Pair::plain();
    drop((listener, server));
    world.run_for(SECOND / 2);
    let entries = release(&mut world).expect("everything is acknowledged");
    let _listener = listen_again(&mut world, entries);
    let error = world.finish(MINUTE, async {
        client.write_all(b"more").await.unwrap();
        client.shutdown().await.unwrap_err()
    });
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn port_can_be_released_at_once_after_wait_idle() {
    let Pair { mut world, listener, client, server, .. } = Pair::plain();
    server.try_write(&pattern(100_000)).unwrap();
    drop(server);
    let listener = world.finish(MINUTE, async {
        listener.wait_idle().await;
        listener
    });
    drop(listener);
    let before = world.elapsed();
    assert!(release(&mut world).is_some());
    assert_eq!(world.elapsed(), before);
    drop(client);
}

#[test]
fn every_peer_is_sent_its_rst_before_the_port_is_released() {
    const STREAMS: usize = 1_000;
    let Pair { mut world, listener, endpoint, client, server } = Pair::plain();
    let (clients, servers) = world.finish(MINUTE, async {
        let (mut clients, mut servers) = (vec![client], vec![server]);
        while clients.len() < STREAMS {
            let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
            client.write_all(b"!").await.unwrap();
            clients.push(client);
        }
        while servers.len() < STREAMS {
            servers.push(listener.accept().await.unwrap().0);
        }
        for server in &servers {
            server.established().await.unwrap();
        }
        (clients, servers)
    });
    servers.into_iter().for_each(|server| server.abort());
    drop(listener);
    let now = world.now();
    let driver = world.driver_of(SERVER);
    let (reply, mut can_release) = oneshot::channel();
    driver.requests.push(Request::CanReleasePort(reply));
    // Each turn sends a part of the due datagrams.
    for _ in 0..STREAMS / TURN_PACKETS {
        driver.turn(now);
        assert_eq!(can_release.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    }
    assert!(release(&mut world).is_some());
    world.run_for(SECOND / 10);
    let ended = clients.iter().filter(|client| client.error().is_some()).count();
    assert_eq!(ended, STREAMS);
}

#[test]
fn unvalidated_peer_does_not_hold_a_port() {
    let mut config = Config::new();
    config.limits.require_validation = true;
    let mut world = World::new(1, LinkConfig::delay(10_000));
    let listener = world.listener(SERVER, &config);
    // An initial segment from a silent address.
    world.inject(addr(9), SERVER, &push(7, 0, b"hi"));
    world.run_for(SECOND / 10);
    assert_eq!(listener.stats().connections.passive_opens, 1);
    drop(listener);
    assert!(release(&mut world).is_some());
}

/// Such sockets are limited in number.
#[test]
fn socket_waits_for_its_peers_alone_from_the_last_delivery_until_the_end_of_time_wait() {
    let Pair { mut world, endpoint, client, server, .. } = Pair::plain();
    let waits = |world: &mut World| world.driver_of(CLIENT).socket_time_wait.is_waiting();
    assert!(!waits(&mut world), "the endpoint may connect");
    drop(endpoint);
    world.run_for(SECOND);
    assert!(!waits(&mut world), "the stream is open");
    client.try_write(&pattern(1_000)).unwrap();
    drop(client);
    world.run_ready();
    assert!(!waits(&mut world), "data is in flight");
    world.run_for(SECOND / 10);
    assert!(waits(&mut world), "for the end of the peer's stream");
    drop(server);
    world.run_for(SECOND / 10);
    assert!(world.driver_of(CLIENT).routing.conns.is_empty());
    assert!(waits(&mut world), "in TIME-WAIT");
    world.run_for(SECOND);
    assert!(!world.drivers.iter().flatten().any(|driver| driver.local() == addr(CLIENT)));
}

#[test]
fn driver_stays_whose_port_is_waited_for_no_more() {
    let Pair { mut world, listener, client, server, .. } = Pair::plain();
    drop((client, server));
    world.finish(SECOND, listener.wait_idle());
    let fins = of_client(&world, |command, frg| {
        command == Command::Control && frg == ControlType::Fin as u8
    });
    drop(listener);
    let requests = world.driver_of(SERVER).requests.clone();
    let (reply, released) = oneshot::channel();
    requests.push(Request::ReleasePort(reply));
    drop(released);
    assert_eq!(controls(&mut world, &fins[0]), [Some(ControlType::FinAck)]);
    // Two ask, and one gets the port.
    let [(first, one), (second, two)] = [oneshot::channel(), oneshot::channel()];
    requests.push(Request::ReleasePort(first));
    requests.push(Request::ReleasePort(second));
    assert_eq!(world.finish(SECOND, one).unwrap().len(), 1);
    assert!(world.finish(SECOND, two).is_err());
}
