//! Roaming: a change of the host's network is told to connections whose source address has changed.

use std::net::IpAddr;

use super::fixtures::{CLIENT, SECOND, SERVER, greet};
use super::sim_world::{World, addr};
use crate::config::{Config, KeepaliveInterval};
use crate::core::segment::{Command, Segments};
use crate::driver::roaming::MAX_SOURCES;
use crate::endpoint::Endpoint;
use crate::listener::KcpListener;
use crate::shared::requests::Request;
use crate::stream::KcpStream;
use crate::sys::NetworkWatcher;
use crate::testkit::link::LinkConfig;
use crate::util::sync::lock;

const OTHER: u8 = 3;
const NO_PEER: [u8; 0] = [];

fn config() -> Config {
    Config::new().keepalive(KeepaliveInterval::Never)
}

/// A client that has connected to two servers. The first server has connected to the second.
struct Hosts {
    world: World,
    _listeners: [KcpListener; 2],
    client: Endpoint,
    _streams: Vec<KcpStream>,
}

impl Hosts {
    fn new() -> Self {
        let mut world = World::new(1, LinkConfig::delay(1_000));
        let listeners = [SERVER, OTHER].map(|host| world.listener(host, &config()));
        let client = world.endpoint(CLIENT, &config());
        let mut streams = Vec::new();
        let (stream, accepted) = world.finish(SECOND, greet(&client, &listeners[0]));
        streams.extend([stream, accepted]);
        for endpoint in [&client, listeners[0].endpoint()] {
            let opened = world.finish(SECOND, async {
                let stream = endpoint.connect(addr(OTHER)).await.unwrap();
                stream.try_write(b"hi").unwrap();
                (stream, listeners[1].accept().await.unwrap().0)
            });
            streams.extend([opened.0, opened.1]);
        }
        world.run_for(SECOND);
        Self { world, _listeners: listeners, client, _streams: streams }
    }

    /// Datagrams from `host` to `to` leave from another address from now on, or cannot leave.
    fn set_source(&mut self, host: u8, to: u8, source: Option<[u8; 4]>) {
        let socket = &self.world.driver_of(host).socket;
        let source = source.map(IpAddr::from);
        lock(&socket.net).sources.insert((addr(host), addr(to)), source);
    }

    /// Tells `host` of a change. Returns the peers that it pings.
    fn pinged_after_change(&mut self, host: u8) -> Vec<u8> {
        self.world.log();
        self.world.driver_of(host).requests.on_network_changed();
        self.world.run_for(SECOND / 10);
        let is_ping = |datagram: &[u8]| {
            let mut segments = Segments::new(datagram);
            segments.any(|(header, _)| (header.command, header.len) == (Command::Push, 0))
        };
        let sent = self.world.log().into_iter().filter(|sent| sent.from == addr(host));
        let pings = sent.filter(|sent| is_ping(&sent.datagram));
        pings.map(|ping| u8::try_from(ping.to.port() - 4_000).unwrap()).collect()
    }
}

#[test]
fn roaming_pings_the_peer_to_which_the_source_has_changed() {
    let mut hosts = Hosts::new();
    assert_eq!(hosts.pinged_after_change(CLIENT), NO_PEER);
    hosts.set_source(CLIENT, SERVER, Some([192, 0, 2, 1]));
    assert_eq!(hosts.pinged_after_change(CLIENT), [SERVER]);
    assert_eq!(hosts.pinged_after_change(CLIENT), NO_PEER);
    hosts.set_source(CLIENT, OTHER, Some([192, 0, 2, 1]));
    assert_eq!(hosts.pinged_after_change(CLIENT), [OTHER]);
}

#[test]
fn roaming_pings_the_peer_to_which_a_route_is_back() {
    let mut hosts = Hosts::new();
    let home = Some([10, 0, 0, CLIENT]);
    hosts.set_source(CLIENT, SERVER, home);
    assert_eq!(hosts.pinged_after_change(CLIENT), NO_PEER);
    hosts.set_source(CLIENT, SERVER, None);
    assert_eq!(hosts.pinged_after_change(CLIENT), NO_PEER);
    assert_eq!(hosts.pinged_after_change(CLIENT), NO_PEER);
    hosts.set_source(CLIENT, SERVER, home);
    assert_eq!(hosts.pinged_after_change(CLIENT), [SERVER]);
}

#[test]
fn roaming_pings_no_peer_that_opened_the_connection() {
    let mut hosts = Hosts::new();
    hosts.set_source(SERVER, CLIENT, Some([192, 0, 2, 1]));
    assert_eq!(hosts.pinged_after_change(SERVER), NO_PEER);
    hosts.set_source(SERVER, OTHER, Some([192, 0, 2, 1]));
    assert_eq!(hosts.pinged_after_change(SERVER), [OTHER]);
    hosts.set_source(OTHER, SERVER, Some([192, 0, 2, 1]));
    assert_eq!(hosts.pinged_after_change(OTHER), NO_PEER);
}

#[test]
fn changes_before_a_turn_are_one_request() {
    let mut hosts = Hosts::new();
    let queue = &hosts.world.driver_of(CLIENT).requests;
    (0..3).for_each(|_| queue.on_network_changed());
    let mut requests = Vec::new();
    queue.drain(&mut requests);
    assert!(matches!(requests[..], [Request::RoutesChanged]));
    queue.on_network_changed();
    assert!(queue.has_pending());
}

#[test]
fn roaming_pings_peers_beyond_the_limit_after_each_change() {
    let mut hosts = Hosts::new();
    let further: Vec<_> = (100..).take(MAX_SOURCES).collect();
    let (mut listeners, mut streams) = (Vec::new(), Vec::new());
    for host in &further {
        listeners.push(hosts.world.listener(*host, &config()));
        let connect = hosts.client.connect(addr(*host));
        let stream = hosts.world.finish(SECOND, connect).unwrap();
        stream.try_write(b"hi").unwrap();
        streams.push(stream);
    }
    hosts.world.run_for(SECOND);
    assert_eq!(hosts.world.driver_of(CLIENT).sources.len(), MAX_SOURCES);
    assert_eq!(hosts.pinged_after_change(CLIENT), further[MAX_SOURCES - 2..]);
    // Peers without a connection make room.
    streams.into_iter().for_each(KcpStream::abort);
    hosts.world.run_for(SECOND);
    let stream = hosts.world.finish(SECOND, hosts.client.connect(addr(99))).unwrap();
    let sources = &hosts.world.driver_of(CLIENT).sources;
    assert!(sources.contains_key(&addr(99)) && sources.len() == 3, "{sources:?}");
    drop(stream);
}
