//! The share of one source in the places of an endpoint, `Limits::max_per_source`.

use tokio::io::AsyncWriteExt;

use super::fixtures::{CLIENT, MINUTE, SECOND, SERVER, greet};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;

/// Places of the endpoint.
const PLACES: usize = 64;

fn server(max_per_source: Option<usize>) -> (World, KcpListener) {
    let mut config = Config::new();
    (config.limits.max_connections, config.limits.max_per_source) = (PLACES, max_per_source);
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &config);
    (world, listener)
}

/// Opens `count` connections. The listener may refuse some. Returns both ends.
fn open(
    world: &mut World,
    endpoint: &Endpoint,
    listener: &KcpListener,
    count: usize,
) -> (Vec<KcpStream>, Vec<KcpStream>) {
    let before = listener.stats().connections.passive_opens;
    let clients: Vec<_> = (0..count)
        .map(|_| {
            world.finish(SECOND, async {
                let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
                client.write_all(b"hi").await.unwrap();
                client
            })
        })
        .collect();
    world.run_for(SECOND);
    let opened = listener.stats().connections.passive_opens - before;
    let servers = (0..opened).map(|_| world.finish(SECOND, listener.accept()).unwrap().0);
    (clients, servers.collect())
}

#[test]
fn source_that_takes_all_it_can_leaves_places_for_others() {
    let (mut world, listener) = server(None);
    let greedy = world.endpoint(CLIENT, &Config::new());
    let (clients, servers) = open(&mut world, &greedy, &listener, 2 * PLACES);
    assert_eq!(servers.len(), PLACES / 2, "half of all places");
    assert!(listener.stats().refused.max_per_source > 0);
    // Each further source has at most half of the free places.
    let second = world.endpoint(3, &Config::new());
    let further = open(&mut world, &second, &listener, PLACES);
    assert_eq!(further.1.len(), PLACES / 4);
    let mut newcomers = Vec::new();
    for host in 10..20 {
        let endpoint = world.endpoint(host, &Config::new());
        newcomers.push(world.finish(SECOND, greet(&endpoint, &listener)));
    }
    assert_eq!(listener.stats().refused.max_connections, 0);
    // A place is free again once its connection has ended.
    drop((clients, servers, further, newcomers, greedy, second));
    world.run_for(2 * MINUTE);
    assert_eq!(listener.stats().connections.current, 0);
    let later = world.endpoint(4, &Config::new());
    assert_eq!(open(&mut world, &later, &listener, PLACES).1.len(), PLACES / 2);
}

#[test]
fn limit_of_one_source_holds_whatever_is_free_and_can_be_all() {
    for (limit, expected) in [(3, 3), (PLACES, PLACES)] {
        let (mut world, listener) = server(Some(limit));
        let endpoint = world.endpoint(CLIENT, &Config::new());
        let (_clients, servers) = open(&mut world, &endpoint, &listener, 2 * PLACES);
        assert_eq!(servers.len(), expected);
        let stats = listener.stats();
        let refused = (stats.refused.max_per_source > 0, stats.refused.max_connections > 0);
        assert_eq!(refused, (limit < PLACES, limit == PLACES));
    }
}
