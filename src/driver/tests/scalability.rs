//! Cost of many idle connections, in turns and in connections served.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, greet, pattern};
use super::sim_world::World;
use crate::config::{Config, KeepaliveInterval};
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;

/// Opens `count` connections, `gap` apart.
fn open(
    world: &mut World,
    config: &Config,
    count: usize,
    gap: Duration,
) -> (KcpListener, Vec<(KcpStream, KcpStream)>) {
    let listener = world.listener(SERVER, config);
    let endpoint = world.endpoint(CLIENT, config);
    let mut ends = Vec::new();
    for _ in 0..count {
        ends.push(world.finish(SECOND, greet(&endpoint, &listener)));
        world.run_for(gap);
    }
    (listener, ends)
}

#[test]
fn keepalive_pings_of_many_connections_are_coalesced() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let (listener, ends) = open(&mut world, &Config::new(), 500, Duration::from_millis(10));
    world.run_for(MINUTE / 4);
    let before = pings(&ends);
    let turns = world.run_for(MINUTE);
    let pings = pings(&ends) - before;
    println!("{pings} pings in {turns} turns");
    // Four keepalive periods: one end of each connection pings, in at most ten turns a second. The other end
    // pings once or twice, for proof that the pings are not recorded ones.
    assert!((1_500..=3_000).contains(&pings), "{pings} pings");
    assert!(turns <= 900, "{pings} pings took {turns} turns");
    assert_eq!(listener.stats().connections.current, 500);
}

fn pings(ends: &[(KcpStream, KcpStream)]) -> u64 {
    ends.iter().map(|(a, b)| a.stats().probes.pings + b.stats().probes.pings).sum()
}

#[test]
fn idle_connections_are_not_served() {
    const ACTIVE: usize = 20;
    const MESSAGES: usize = 50;
    let quiet = Config::new().keepalive(KeepaliveInterval::Never).idle_timeout(None);
    let served =
        |world: &mut World| [SERVER, CLIENT].map(|host| world.driver_of(host).counts.served);
    let mut costs = Vec::new();
    for connections in [ACTIVE, 2_000] {
        let mut world = World::new(1, LinkConfig::delay(1_000));
        let (_listener, mut ends) = open(&mut world, &quiet, connections, Duration::ZERO);
        world.run_for(3 * SECOND);
        let before = served(&mut world);
        let active = ends.split_off(connections - ACTIVE);
        let idle = Rc::new(RefCell::new(ends));
        for (mut client, mut server) in active {
            let kept = idle.clone();
            world.spawn(async move {
                for _ in 0..MESSAGES {
                    client.write_all(b"requests").await.unwrap();
                    let mut message = [0; 8];
                    server.read_exact(&mut message).await.unwrap();
                    server.write_all(&message).await.unwrap();
                    client.read_exact(&mut message).await.unwrap();
                }
                // A drop would send a FIN and be served.
                kept.borrow_mut().push((client, server));
            });
        }
        world.run(MINUTE);
        let after = served(&mut world);
        costs.push([after[0] - before[0], after[1] - before[1]]);
    }
    println!("connections served by server and client: {costs:?}");
    assert_eq!(costs[0], costs[1], "idle connections are served");
    let most = ACTIVE * MESSAGES * 3;
    assert!(costs[1].iter().all(|served| (1..=most).contains(served)), "{costs:?}, {most}");
}

#[test]
fn endpoint_with_one_idle_connection_releases_its_buffers() {
    let mut pair = Pair::plain();
    for _ in 0..2 {
        assert_eq!(pair.client.try_write(&pattern(50_000)).unwrap(), 50_000);
        pair.world.run_for(SECOND / 2);
        assert!(pair.world.driver_of(CLIENT).output.tx.capacity() > 1_000);
        pair.world.run_for(SECOND * 5);
        assert_eq!(pair.world.driver_of(CLIENT).output.tx.capacity(), 0);
    }
    // The second counts from the last datagram that arrived.
    pair.client.try_write(&pattern(50_000)).unwrap();
    pair.world.run_for(SECOND / 10 * 9);
    pair.client.try_write(b"again").unwrap();
    for (wait, is_released) in [(SECOND, false), (SECOND / 20, true)] {
        pair.world.run_for(wait);
        assert_eq!(pair.world.driver_of(CLIENT).output.tx.capacity() == 0, is_released);
    }
}
