//! What many conversations cost together, in turns and in conversations looked at.

use std::time::Duration;

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
    assert_eq!(listener.stats().connections, 500);
}

fn probes(ends: &[(KcpStream, KcpStream)]) -> u64 {
    ends.iter().map(|(a, b)| a.stats().echo_probes + b.stats().echo_probes).sum()
}
