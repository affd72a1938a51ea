//! Transfers on all paths of a connection (`PathMode::Aggregate`), in virtual time.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, Pair, SECOND, SERVER, micros};
use super::migration::{aead, seeds};
use super::paths::{add_path, any_link, cut, disturbances, messages, second, two_paths};
use super::sim_world::{World, addr};
use crate::config::{Config, PathMode};
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;

fn config() -> Config {
    aead().path_mode(PathMode::Aggregate)
}

/// A link of `mbit` Mbit/s, with a queue of 100 ms.
fn link(mbit: u64, rtt: u64) -> LinkConfig {
    let rate = mbit * 125_000;
    LinkConfig { rate: Some(rate), queue: (rate / 10).max(30_000), ..LinkConfig::delay(rtt * 500) }
}

fn set_path(world: &World, end: SocketAddr, link: &LinkConfig) {
    world.set_link(end, addr(SERVER), link.clone());
    world.set_link(addr(SERVER), end, link.clone());
}

/// A pair on these paths, each `(Mbit/s, RTT in ms)`.
fn on(seed: u64, links: [(u64, u64); 2]) -> Pair {
    let [first, other] = links.map(|(mbit, rtt)| link(mbit, rtt));
    let mut pair = two_paths(seed, links.map(|(_, rtt)| rtt), &config());
    set_path(&pair.world, addr(CLIENT), &first);
    set_path(&pair.world, second(), &other);
    add_path(&mut pair, second()).unwrap();
    pair.world.run_for(2 * SECOND);
    pair
}

/// Byte `at` of a transfer.
fn byte(at: u64) -> u8 {
    (at ^ (at >> 8)) as u8
}

/// A transfer that never ends.
#[derive(Default)]
pub(super) struct Transfer {
    written: u64,
    read: u64,
}

impl Transfer {
    /// Writes for `time`. Returns the bytes that the server reads in that time.
    pub(super) fn run(&mut self, pair: &mut Pair, time: Duration) -> u64 {
        let (start, before) = (pair.world.elapsed(), self.read);
        while pair.world.elapsed() - start < micros(time) {
            let Pair { world, client, server, .. } = &mut *pair;
            let mut data = [0; 4_096];
            loop {
                data.iter_mut().zip(self.written..).for_each(|(place, at)| *place = byte(at));
                let Ok(bytes) = client.try_write(&data) else { break };
                self.written += bytes as u64;
            }
            world.run_for(Duration::from_millis(1));
            let mut buf = [0; 8_192];
            while let Ok(bytes) = server.try_read(&mut buf) {
                assert!(bytes > 0, "the stream ended");
                let is_right = |(got, at): (&u8, u64)| *got == byte(at);
                assert!(buf[..bytes].iter().zip(self.read..).all(is_right), "a wrong byte");
                self.read += bytes as u64;
            }
        }
        assert_eq!((pair.client.error(), pair.server.error()), (None, None));
        self.read - before
    }
}

/// Megabits per second of a transfer for 20 s, after 10 s.
fn rate(pair: &mut Pair) -> f64 {
    let mut transfer = Transfer::default();
    transfer.run(pair, 10 * SECOND);
    let bytes = transfer.run(pair, 20 * SECOND);
    bytes as f64 * 8.0 / 20e6
}

/// Rule: P-38.
#[test]
fn aggregate_carries_the_sum_of_both_paths() {
    for links in [[(10, 20), (40, 80)], [(40, 20), (10, 80)], [(20, 50), (20, 50)]] {
        let sum = links.iter().map(|(mbit, _)| *mbit).sum::<u64>() as f64;
        let got = rate(&mut on(1, links));
        println!("{links:?}: {got:.1} of {sum} Mbit/s");
        assert!(got >= 0.88 * sum);
    }
}

#[test]
fn aggregate_is_no_worse_than_the_better_path_alone() {
    for other in [(1, 300), (1, 100), (2, 200)] {
        let links = [(40, 20), other];
        let mut alone = two_paths(1, [20, 300], &config());
        set_path(&alone.world, addr(CLIENT), &link(40, 20));
        let alone = rate(&mut alone);
        let got = rate(&mut on(1, links));
        println!("{links:?}: {got:.1} Mbit/s, alone {alone:.1}");
        assert!(got >= 0.97 * alone);
    }
}

#[test]
fn aggregate_goes_on_when_a_path_dies_and_comes_back() {
    for seed in seeds(3) {
        for ways in [[true, true], [true, false], [false, true]] {
            let mut pair = on(seed, [(20, 30), (20, 60)]);
            let mut transfer = Transfer::default();
            transfer.run(&mut pair, 5 * SECOND);
            cut(&pair.world, ways, true);
            let without = [transfer.run(&mut pair, SECOND), transfer.run(&mut pair, 4 * SECOND)];
            cut(&pair.world, ways, false);
            transfer.run(&mut pair, 5 * SECOND);
            let with = transfer.run(&mut pair, 5 * SECOND) * 8 / 5_000_000;
            let [first, later] = [without[0] * 8 / 1_000_000, without[1] * 8 / 4_000_000];
            println!("cut {ways:?}: {first} Mbit/s in the first second, then {later}, back {with}");
            assert!(first >= 12 && later >= 16 && with >= 34);
        }
    }
}

#[test]
fn aggregate_delivers_messages_on_the_faster_path() {
    for seed in seeds(3) {
        let mut pair = on(seed, [(10, 100), (10, 40)]);
        pair.world.log();
        messages(&mut pair, 5 * SECOND, Vec::new());
        let log = pair.world.log();
        let slow = log.iter().filter(|sent| sent.from == addr(CLIENT)).count();
        assert!(slow < 20, "{slow} datagrams on the slower path");
    }
}

/// The law: whatever happened to both paths before, a transfer goes on within 15 s once one of them is steady, and
/// each byte arrives exactly once.
#[test]
fn aggregate_goes_on_whatever_happened_before() {
    let server = addr(SERVER);
    for seed in seeds(12) {
        let mut rng = Rng::new(seed);
        let mut pair = two_paths(seed, [rng.range(10, 200), rng.range(10, 200)], &config());
        add_path(&mut pair, second()).unwrap();
        pair.world.run_for(2 * SECOND);
        let ends = [addr(CLIENT), second()];
        for end in ends {
            let rate = Some(rng.spread(20_000, 5_000_000));
            let link = LinkConfig { rate, queue: 60_000, ..any_link(&mut rng) };
            pair.world.set_link(end, server, link);
        }
        let mut events = disturbances(&mut rng, &ends);
        let (steady, delay) = (rng.pick(&ends), rng.range(1_000, 100_000));
        let is_other_dead = rng.chance(500_000);
        events.push((
            10_000_000,
            Box::new(move |world: &mut World| {
                for end in ends {
                    world.cut(end, server, is_other_dead && end != steady);
                    world.cut(server, end, is_other_dead && end != steady);
                }
                let link = LinkConfig {
                    rate: Some(1_250_000),
                    queue: 100_000,
                    ..LinkConfig::delay(delay)
                };
                set_path(world, steady, &link);
            }),
        ));
        let (mut last, mut transfer) = (0, Transfer::default());
        for (at, mut event) in events {
            transfer.run(&mut pair, Duration::from_micros(at - last));
            event(&mut pair.world);
            last = at;
        }
        transfer.run(&mut pair, 15 * SECOND);
        let bytes = transfer.run(&mut pair, 10 * SECOND);
        println!(
            "seed {seed}: steady {steady} of {} ms, {} kbit/s",
            delay / 500,
            bytes * 8 / 10_000
        );
        // A tenth of the steady path's rate; the bench `loss`, row V, measures how much it is.
        assert!(bytes * 8 / 10_000_000 >= 1, "{bytes} bytes in 10 s");
        #[cfg(feature = "_testkit")]
        for host in [CLIENT, SERVER] {
            pair.world.driver_of(host).check_invariants();
        }
    }
}

#[test]
fn end_that_is_lost_on_one_path_and_leaves_on_a_dead_one_arrives() {
    for rtt in [[40, 80], [40, 45]] {
        let mut pair = two_paths(1, rtt, &config());
        add_path(&mut pair, second()).unwrap();
        messages(&mut pair, 3 * SECOND, Vec::new());
        let Pair { mut world, mut client, mut server, endpoint: _endpoint, listener: _listener } =
            pair;
        world.cut(second(), addr(SERVER), true);
        world.cut(addr(CLIENT), addr(SERVER), true);
        let start = world.elapsed();
        world.spawn(async move { client.shutdown().await.unwrap() });
        world.run_for(Duration::from_millis(20));
        world.cut(addr(CLIENT), addr(SERVER), false);
        let read = world.finish(SECOND, server.read(&mut [0; 1])).unwrap();
        println!("RTT {rtt:?}: {} ms", (world.elapsed() - start) / 1_000);
        assert_eq!(read, 0);
    }
}
