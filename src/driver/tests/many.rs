//! What many conversations cost together, in turns and in conversations looked at.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::pair::{CLIENT, MINUTE, SECOND, SERVER, greet};
use super::world::World;
use crate::config::Config;
use crate::core::tests::link::LinkConfig;
use crate::listener::KcpListener;
use crate::stream::KcpStream;

/// Opens conversations, `gap` apart.
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
fn keepalives_of_many_conversations_leave_together() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let (listener, ends) = open(&mut world, &Config::new(), 500, Duration::from_millis(10));
    world.run_for(MINUTE / 4);
    let before = probes(&ends);
    let turns = world.run_for(MINUTE);
    let probes = probes(&ends) - before;
    println!("{probes} probes in {turns} turns");
    // Four periods, in each of which one end of each asks the other, ten times a second at most.
    assert!((1_500..=2_000).contains(&probes), "{probes} probes");
    assert!(turns <= 900, "{probes} probes took {turns} turns");
    assert_eq!(listener.stats().current_connections, 500);
}

fn probes(ends: &[(KcpStream, KcpStream)]) -> u64 {
    ends.iter().map(|(a, b)| a.stats().pings_sent + b.stats().pings_sent).sum()
}

#[test]
fn conversations_that_rest_cost_a_turn_nothing() {
    const ACTIVE: usize = 20;
    const MESSAGES: usize = 50;
    let quiet = Config::new().keepalive(None).idle_timeout(None);
    let served = |world: &mut World| [SERVER, CLIENT].map(|host| world.driver_of(host).served);
    let mut costs = Vec::new();
    for conversations in [ACTIVE, 2_000] {
        let mut world = World::new(1, LinkConfig::delay(1_000));
        let (_listener, mut ends) = open(&mut world, &quiet, conversations, Duration::ZERO);
        world.run_for(3 * SECOND);
        let before = served(&mut world);
        let active = ends.split_off(conversations - ACTIVE);
        let idle = Rc::new(RefCell::new(ends));
        for (mut client, mut server) in active {
            let kept = idle.clone();
            world.spawn(async move {
                for _ in 0..MESSAGES {
                    client.write_all(b"question").await.unwrap();
                    let mut message = [0; 8];
                    server.read_exact(&mut message).await.unwrap();
                    server.write_all(&message).await.unwrap();
                    client.read_exact(&mut message).await.unwrap();
                }
                // Not dropped yet: that would be an end to tell.
                kept.borrow_mut().push((client, server));
            });
        }
        world.run(MINUTE);
        let after = served(&mut world);
        costs.push([after[0] - before[0], after[1] - before[1]]);
    }
    println!("conversations looked at by server and client: {costs:?}");
    assert_eq!(costs[0], costs[1], "those that rest make a difference");
    let most = ACTIVE * MESSAGES * 3;
    assert!(costs[1].iter().all(|looked| (1..=most).contains(looked)), "{costs:?}, {most}");
}
