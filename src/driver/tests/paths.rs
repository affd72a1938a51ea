//! Connections with several paths, in virtual time.

use std::net::SocketAddr;
use std::time::Duration;

use super::fixtures::{CLIENT, Pair, SECOND, SERVER, micros};
use super::migration::{aead, seeds};
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::path::set::{PathId, PathState};
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;
use crate::util::path::LocalIp;

/// Bytes of a message.
const LEN: usize = 100;

/// The client's second address.
fn second() -> SocketAddr {
    SocketAddr::from(([10, 0, 1, CLIENT], addr(CLIENT).port()))
}

/// A client with two addresses, and round trips of the paths from them in milliseconds.
fn two_paths(seed: u64, rtt: [u64; 2], config: &Config) -> Pair {
    on_two_paths(seed, rtt, [config, config])
}

fn on_two_paths(seed: u64, rtt: [u64; 2], [client, server]: [&Config; 2]) -> Pair {
    let world = World::new(seed, LinkConfig::delay(rtt[0] * 500));
    world.add_address(CLIENT, second());
    for (from, to) in [(second(), addr(SERVER)), (addr(SERVER), second())] {
        world.set_link(from, to, LinkConfig::delay(rtt[1] * 500));
    }
    Pair::on(world, client, server)
}

fn add_path(pair: &mut Pair, local: SocketAddr) -> std::io::Result<PathId> {
    let local = LocalIp::of_destination(local.ip());
    pair.world.finish(SECOND, pair.client.add_path_from(local))
}

/// State, and whether data leaves on it, of each path of a host.
fn paths(pair: &mut Pair, host: u8) -> Vec<(PathId, PathState, bool)> {
    let driver = pair.world.driver_of(host);
    let conn = driver.routing.conns.iter().next().unwrap().1;
    conn.kcp.paths().map(|path| (path.id, path.state, path.is_active)).collect()
}

/// A pair whose second path is validated on both sides.
fn ready(seed: u64, rtt: [u64; 2]) -> Pair {
    let mut pair = two_paths(seed, rtt, &aead());
    assert_eq!(add_path(&mut pair, second()).unwrap(), PathId(1));
    pair.world.run_for(2 * SECOND);
    let both = [(PathId(0), PathState::Usable, true), (PathId(1), PathState::Usable, false)];
    assert_eq!(paths(&mut pair, CLIENT), both);
    assert_eq!(paths(&mut pair, SERVER), both);
    pair
}

/// Messages each 10 ms both ways for `time`; `at` changes the world once its time has come. Returns the longest
/// gap between arrivals at the server and at the client, in milliseconds.
fn messages(
    pair: &mut Pair,
    time: Duration,
    mut events: Vec<(u64, Box<dyn FnMut(&mut World)>)>,
) -> [u64; 2] {
    let start = pair.world.elapsed();
    let (mut written, mut got, mut last, mut gaps) = (0, [0; 2], [None; 2], [0; 2]);
    loop {
        let Pair { world, client, server, .. } = pair;
        let passed = world.elapsed() - start;
        if passed < micros(time) && passed / 10_000 >= written {
            written += 1;
            for from in [&*client, &*server] {
                assert_eq!(from.try_write(&[7; LEN]).unwrap(), LEN);
            }
        }
        if events.first().is_some_and(|(at, _)| passed >= *at) {
            events.remove(0).1(world);
        }
        world.run_for(Duration::from_millis(1));
        for (way, to) in [&*server, &*client].into_iter().enumerate() {
            let mut buf = [0; 65_536];
            while let Ok(bytes) = to.try_read(&mut buf) {
                got[way] += bytes;
                if passed < micros(time) {
                    let now = world.elapsed();
                    gaps[way] = gaps[way].max(now - last[way].unwrap_or(now));
                }
                last[way] = Some(world.elapsed());
            }
        }
        if passed > micros(time + 2 * SECOND) {
            break;
        }
    }
    let written = LEN * usize::try_from(written).unwrap();
    assert_eq!(got, [written; 2], "each byte exactly once");
    gaps.map(|gap| gap / 1_000)
}

/// Cuts the first path, from the client, to the client, or both ways.
fn cut(world: &World, ways: [bool; 2], is_cut: bool) {
    let [up, down] = ways;
    if up {
        world.cut(addr(CLIENT), addr(SERVER), is_cut);
    }
    if down {
        world.cut(addr(SERVER), addr(CLIENT), is_cut);
    }
}

/// The law of `Standby`: whatever dies at any moment, messages stop for at most 1.5 round trips of the dead path,
/// the way of the other, and 20 ms.
#[test]
fn standby_takes_over_within_one_and_a_half_round_trips() {
    for rtt in [[50, 50], [50, 80], [200, 250], [50, 200]] {
        for ways in [[true, true], [true, false], [false, true]] {
            let mut all = [Vec::new(), Vec::new()];
            for seed in seeds(20) {
                let mut pair = ready(seed, rtt);
                let at = 2_000_000 + Rng::new(seed).below(1_000_000);
                let event: Box<dyn FnMut(&mut World)> =
                    Box::new(move |world| cut(world, ways, true));
                let gaps = messages(&mut pair, 4 * SECOND, vec![(at, event)]);
                for (all, gap) in all.iter_mut().zip(gaps) {
                    all.push(gap);
                }
            }
            let limit = rtt[0] * 3 / 2 + rtt[1] / 2 + 20;
            println!("round trips {rtt:?}, cut {ways:?}: gaps {all:?}, at most {limit} ms");
            assert!(all.iter().flatten().all(|gap| *gap <= limit));
        }
    }
}

#[test]
fn standby_returns_to_the_better_path_without_a_gap() {
    for seed in seeds(5) {
        let mut pair = ready(seed, [50, 120]);
        let event = |is_cut| -> Box<dyn FnMut(&mut World)> {
            Box::new(move |world| cut(world, [true, true], is_cut))
        };
        let gaps = messages(&mut pair, 3 * SECOND, vec![(1_000_000, event(true))]);
        println!("away: {gaps:?} ms");
        assert!(paths(&mut pair, CLIENT)[1].2 && paths(&mut pair, SERVER)[1].2);
        let gaps = messages(&mut pair, 6 * SECOND, vec![(1_000_000, event(false))]);
        println!("back: {gaps:?} ms");
        assert!(gaps.iter().all(|gap| *gap <= 20), "{gaps:?}");
        assert!(paths(&mut pair, CLIENT)[0].2 && paths(&mut pair, SERVER)[0].2);
    }
}

#[test]
fn standby_costs_at_most_one_percent_of_the_bytes_while_both_paths_are_good() {
    let bytes = |pair: &mut Pair| {
        pair.world.log();
        messages(pair, 20 * SECOND, Vec::new());
        let log = pair.world.log();
        // With IP and UDP headers.
        log.iter().map(|sent| sent.datagram.len() + 28).sum::<usize>()
    };
    let one = bytes(&mut two_paths(1, [50, 80], &aead()));
    let two = bytes(&mut ready(1, [50, 80]));
    println!("one path: {one} bytes, two: {two}");
    assert!(two <= one + one / 100);
}

#[test]
fn path_is_not_added_without_an_aead_or_to_another_implementation() {
    let plain = Config::new();
    let mut pair = two_paths(1, [50, 50], &plain);
    let error = add_path(&mut pair, second()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    assert!(error.to_string().contains("does not support"), "{error}");
    let mut stock = aead();
    stock.kcp.close_notify = false;
    for configs in [[&aead(), &stock], [&stock, &aead()], [&stock, &stock]] {
        let mut pair = on_two_paths(1, [50, 50], configs);
        let error = add_path(&mut pair, second()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
        assert_eq!(paths(&mut pair, CLIENT).len(), 1);
    }
}

#[test]
fn path_from_an_address_that_has_one_is_refused() {
    let mut pair = ready(1, [50, 50]);
    let error = add_path(&mut pair, second()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}
