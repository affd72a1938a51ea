//! Connections with several paths, in virtual time.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::aggregate::Transfer;
use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, micros, pattern};
use super::migration::{aead, seeds};
use super::sim_network::Sent;
use super::sim_world::{World, addr};
use crate::config::{AutoRedundancy, Config, PathMode, Redundancy};
use crate::core::path::set::{PathId, PathState};
use crate::error::ConnectionError;
use crate::fec::FecConfig;
use crate::stats::UdpStats;
use crate::stream::paths::PathStatus;
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;
use crate::util::path::{LocalIp, Path};

/// A change of the world.
pub(super) type Event = Box<dyn FnMut(&mut World)>;

/// Bytes of a message.
const LEN: usize = 100;

/// The client's second address.
pub(super) fn second() -> SocketAddr {
    SocketAddr::from(([10, 0, 1, CLIENT], addr(CLIENT).port()))
}

/// A client with two addresses, and round trips of the paths from them in milliseconds.
pub(super) fn two_paths(seed: u64, rtt: [u64; 2], config: &Config) -> Pair {
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

pub(super) fn add_path(pair: &mut Pair, local: SocketAddr) -> std::io::Result<PathId> {
    let local = LocalIp::of_destination(local.ip());
    pair.world.finish(SECOND, pair.client.add_path_from(local))
}

/// State, and whether data leaves on it, of each path of a host.
pub(super) fn paths(pair: &mut Pair, host: u8) -> Vec<(PathId, PathState, bool)> {
    let driver = pair.world.driver_of(host);
    let conn = driver.routing.conns.iter().next().unwrap().1;
    conn.kcp.paths().map(|path| (path.id, path.state, path.is_active)).collect()
}

/// A pair whose second path is validated on both sides.
fn ready(seed: u64, rtt: [u64; 2]) -> Pair {
    let mut pair = two_paths(seed, rtt, &aead());
    assert_eq!(add_path(&mut pair, second()).unwrap(), PathId(1));
    pair.world.run_for(2 * SECOND);
    for host in [CLIENT, SERVER] {
        let usable = paths(&mut pair, host).into_iter().map(|(id, state, _)| (id, state));
        let both = [(PathId(0), PathState::Usable), (PathId(1), PathState::Usable)];
        assert_eq!(usable.collect::<Vec<_>>(), both);
    }
    pair
}

/// Messages each 10 ms both ways for `time`; `at` changes the world once its time has come. Returns the longest
/// gap between arrivals at the server and at the client, in milliseconds.
pub(super) fn messages(pair: &mut Pair, time: Duration, mut events: Vec<(u64, Event)>) -> [u64; 2] {
    let start = pair.world.elapsed();
    let (mut written, mut sent, mut got) = (0, [0; 2], [0; 2]);
    let (mut last, mut gaps) = ([None; 2], [0; 2]);
    loop {
        let Pair { world, client, server, .. } = pair;
        let passed = world.elapsed() - start;
        if passed < micros(time) && passed / 10_000 >= written {
            written += 1;
            for (way, from) in [&*client, &*server].into_iter().enumerate() {
                // A full buffer refuses the message.
                sent[way] += from.try_write(&[7; LEN]).unwrap_or(0);
            }
        }
        if events.first().is_some_and(|(at, _)| passed >= *at) {
            events.remove(0).1(world);
        }
        world.run_for(Duration::from_millis(1));
        for (way, to) in [&*server, &*client].into_iter().enumerate() {
            let mut buf = [0; 8_192];
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
    let errors = (pair.client.error(), pair.server.error());
    assert_eq!((got, errors), (sent, (None, None)), "each byte exactly once");
    gaps.map(|gap| gap / 1_000)
}

/// Cuts the first path, from the client, to the client, or both ways.
pub(super) fn cut(world: &World, ways: [bool; 2], is_cut: bool) {
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
/// Rule: P-40.
#[test]
fn standby_takes_over_within_one_and_a_half_round_trips() {
    for rtt in [[50, 50], [50, 80], [200, 250], [50, 200]] {
        for ways in [[true, true], [true, false], [false, true]] {
            let mut all = [Vec::new(), Vec::new()];
            for seed in seeds(20) {
                let mut pair = ready(seed, rtt);
                let at = 2_000_000 + Rng::new(seed).below(1_000_000);
                let event: Event = Box::new(move |world| cut(world, ways, true));
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

/// Rule: W-115.
#[test]
fn standby_returns_to_the_better_path_without_a_gap() {
    for seed in seeds(5) {
        let mut pair = ready(seed, [50, 120]);
        let event = |is_cut| -> Event { Box::new(move |world| cut(world, [true, true], is_cut)) };
        let gaps = messages(&mut pair, 3 * SECOND, vec![(1_000_000, event(true))]);
        println!("away: {gaps:?} ms");
        assert!(paths(&mut pair, CLIENT)[1].2 && paths(&mut pair, SERVER)[1].2);
        let gaps = messages(&mut pair, 6 * SECOND, vec![(1_000_000, event(false))]);
        println!("back: {gaps:?} ms");
        assert!(gaps.iter().all(|gap| *gap <= 20), "{gaps:?}");
        assert!(paths(&mut pair, CLIENT)[0].2 && paths(&mut pair, SERVER)[0].2);
    }
}

/// Rule: P-37.
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

/// Both paths lose `loss` of a million datagrams in each direction.
fn set_loss(pair: &Pair, rtt: [u64; 2], loss: u32) {
    for (end, rtt) in [(addr(CLIENT), rtt[0]), (second(), rtt[1])] {
        let link = LinkConfig { loss, ..LinkConfig::delay(rtt * 500) };
        pair.world.set_link(end, addr(SERVER), link.clone());
        pair.world.set_link(addr(SERVER), end, link);
    }
}

/// How often any path fell silent, at either end.
fn silences(pair: &mut Pair) -> u32 {
    figures(pair).iter().flatten().map(|path| path.silences).sum()
}

/// Rule: W-116.
#[test]
fn paths_that_lose_are_not_silent() {
    for (mode, loss) in
        [(PathMode::Standby, 50_000), (PathMode::Standby, 100_000), (PathMode::Duplicate, 100_000)]
    {
        for seed in seeds(5) {
            let mut pair = two_paths(seed, [50, 60], &aead().path_mode(mode));
            add_path(&mut pair, second()).unwrap();
            pair.world.run_for(2 * SECOND);
            set_loss(&pair, [50, 60], loss);
            pair.world.log();
            messages(&mut pair, 60 * SECOND, Vec::new());
            let log = pair.world.log();
            let data = |end| {
                let is_data = |sent: &&Sent| sent.from == end && sent.datagram.len() > LEN;
                log.iter().filter(is_data).count()
            };
            let (silences, sent) = (silences(&mut pair), [data(addr(CLIENT)), data(second())]);
            println!("{mode:?}, loss {loss}, seed {seed}: {silences} silences, sent {sent:?}");
            assert!(silences <= 1, "{silences} silences");
            let is_copied = sent.iter().all(|count| *count >= 6_000);
            assert!(is_copied || mode == PathMode::Standby, "{sent:?} datagrams of 6,000");
        }
    }
}

#[test]
fn only_path_is_not_silent_while_another_is_not_validated() {
    for seed in seeds(5) {
        let mut pair = two_paths(seed, [50, 60], &aead());
        for (from, to) in [(second(), addr(SERVER)), (addr(SERVER), second())] {
            pair.world.cut(from, to, true);
        }
        add_path(&mut pair, second()).unwrap();
        set_loss(&pair, [50, 60], 50_000);
        messages(&mut pair, 30 * SECOND, Vec::new());
        assert_eq!(silences(&mut pair), 0);
    }
}

#[test]
fn dead_path_without_data_is_known_a_second_after_its_ping() {
    let mut pair = ready(1, [50, 400]);
    for (from, to) in [(second(), addr(SERVER)), (addr(SERVER), second())] {
        pair.world.cut(from, to, true);
    }
    // A ping each 5 s, an RTO of 1.2 s, and a second.
    messages(&mut pair, 6 * SECOND, Vec::new());
    assert_eq!(paths(&mut pair, CLIENT)[1].1, PathState::Silent);
    assert_eq!(paths(&mut pair, SERVER)[1].1, PathState::Silent);
}

/// Segments in flight on a dead path leave on the next one as its window admits them.
#[test]
fn flight_of_a_transfer_fills_the_window_of_the_next_path() {
    for seed in seeds(5) {
        let mut pair = ready(seed, [40, 80]);
        let mut transfer = Transfer::default();
        transfer.run(&mut pair, 3 * SECOND);
        assert!(paths(&mut pair, CLIENT)[0].2);
        cut(&pair.world, [true, true], true);
        pair.world.log();
        transfer.run(&mut pair, 2 * SECOND);
        let log = pair.world.log();
        let is_data = |sent: &&Sent| sent.from == second() && sent.datagram.len() > 500;
        let times: Vec<u64> = log.iter().filter(is_data).map(|sent| sent.at).collect();
        let before_ack = times.iter().filter(|at| **at < times[0] + 70_000).count();
        println!("seed {seed}: {before_ack} of {} before the first ACK", times.len());
        // The initial window, and the segment that passes its end.
        assert!(times.len() > 100 && before_ack <= 33, "{before_ack} datagrams");
    }
}

/// The challenge of the second path is lost, so its answer does not tell the round trip.
#[test]
fn round_trip_of_a_path_is_not_that_of_a_lost_challenge() {
    let mut pair = two_paths(1, [50, 60], &aead());
    pair.world.cut(addr(SERVER), second(), true);
    add_path(&mut pair, second()).unwrap();
    pair.world.run_for(SECOND / 2);
    pair.world.cut(addr(SERVER), second(), false);
    let mut known = None;
    for _ in 0..3_000 {
        pair.world.run_for(Duration::from_millis(1));
        let driver = pair.world.driver_of(SERVER);
        let conn = driver.routing.conns.iter().next().unwrap().1;
        let srtt = conn.kcp.paths().nth(1).and_then(|path| path.srtt);
        known = known.max(srtt);
    }
    assert_eq!(known.map(|srtt| srtt.as_millis()), Some(60));
}

/// What the ends count on each path, by number: the client's figures, then the server's.
fn figures(pair: &mut Pair) -> [Vec<PathStatus>; 2] {
    let Pair { world, client, server, .. } = pair;
    let client = world.finish(SECOND, client.paths()).unwrap();
    [client, world.finish(SECOND, server.paths()).unwrap()]
}

/// Counts what the log sends from one address to another, then what arrives.
fn logged(log: &[Sent], from: SocketAddr, to: SocketAddr) -> [UdpStats; 2] {
    let (mut sent, mut arrived) = (UdpStats::default(), UdpStats::default());
    for datagram in log.iter().filter(|sent| (sent.from, sent.to) == (from, to)) {
        let mut one = UdpStats::default();
        (one.datagrams, one.bytes) = (1, datagram.datagram.len() as u64);
        sent += one;
        if datagram.arrival.is_some() {
            arrived += one;
        }
    }
    [sent, arrived]
}

#[test]
fn figures_of_a_path_are_those_of_the_network_at_both_ends() {
    for mode in [PathMode::Standby, PathMode::Duplicate] {
        for seed in seeds(5) {
            let config = aead().path_mode(mode);
            let mut pair = two_paths(seed, [50, 60], &config);
            let none = figures(&mut pair);
            assert!(none.iter().all(|paths| paths[0].sent == UdpStats::default()));
            add_path(&mut pair, second()).unwrap();
            pair.world.run_for(2 * SECOND);
            for end in [addr(CLIENT), second()] {
                let lossy = LinkConfig { loss: 50_000, ..LinkConfig::delay(25_000) };
                pair.world.set_link(end, addr(SERVER), lossy.clone());
                pair.world.set_link(addr(SERVER), end, lossy);
            }
            let before = figures(&mut pair);
            pair.world.log();
            messages(&mut pair, 3 * SECOND, Vec::new());
            bulk(&mut pair, SECOND, Vec::new());
            pair.world.run_for(SECOND);
            for (from, to) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
                let dead = LinkConfig { loss: 1_000_000, ..LinkConfig::delay(25_000) };
                pair.world.set_link(addr(from), addr(to), dead);
            }
            // Five pings are unanswered, whatever path carries data.
            messages(&mut pair, 6 * SECOND, Vec::new());
            pair.world.run_for(Duration::from_millis(70));
            let (after, log) = (figures(&mut pair), pair.world.log());
            for (id, end) in [addr(CLIENT), second()].into_iter().enumerate() {
                let up = logged(&log, end, addr(SERVER));
                let down = logged(&log, addr(SERVER), end);
                println!("{mode:?}, seed {seed}, path {id}: up {up:?}, down {down:?}");
                for (side, [sent, received]) in
                    [[up[0], down[1]], [down[0], up[1]]].iter().enumerate()
                {
                    let (was, is) = (&before[side][id], &after[side][id]);
                    assert_eq!(was.sent + *sent, is.sent, "sent, side {side}");
                    assert_eq!(was.received + *received, is.received, "received, side {side}");
                    assert!(sent.datagrams > 0 && is.current_mtu > 1_000);
                    assert_eq!(is.silences > 0, id == 0, "side {side} {is:?}");
                }
            }
        }
    }
}

#[test]
fn figures_begin_with_the_path() {
    let mut pair = ready(1, [50, 60]);
    messages(&mut pair, SECOND, Vec::new());
    let Pair { world, client, .. } = &mut pair;
    world.finish(SECOND, client.remove_path(PathId(1))).unwrap();
    add_path(&mut pair, second()).unwrap();
    let [client, _] = figures(&mut pair);
    assert!(client[1].sent.datagrams <= 2 && client[1].received.datagrams == 0);
    assert!(client[0].sent.datagrams > 50);
}

/// Rules: W-101, W-106.
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

/// Transfers `len` bytes to the server, changes the world at `at` microseconds, and returns the milliseconds until
/// the end of the stream.
pub(super) fn transfer(
    pair: &mut Pair,
    len: usize,
    at: u64,
    mut event: impl FnMut(&mut World),
) -> u64 {
    let start = pair.world.elapsed();
    let Pair { world, client, server, .. } = pair;
    let (data, mut written, mut got, mut is_done) = (pattern(len), 0, Vec::new(), false);
    let mut event = Some(&mut event);
    while !is_done {
        let passed = world.elapsed() - start;
        assert!(passed < micros(MINUTE), "{} of {len} bytes arrived", got.len());
        if let Ok(bytes) = client.try_write(&data[written..]) {
            written += bytes;
        }
        if written == len && !is_done {
            client.handle().send.close();
        }
        if passed >= at
            && let Some(event) = event.take()
        {
            event(world);
        }
        world.run_for(Duration::from_millis(1));
        let mut buf = [0; 8_192];
        while let Ok(bytes) = server.try_read(&mut buf) {
            got.extend_from_slice(&buf[..bytes]);
            is_done = bytes == 0;
            if is_done {
                break;
            }
        }
    }
    assert!(got == data, "other bytes than were sent");
    (pair.world.elapsed() - start) / 1_000
}

#[test]
fn standby_saves_a_transfer_and_its_end_when_the_first_path_dies() {
    for seed in seeds(10) {
        let mut rng = Rng::new(seed);
        for rtt in [[50, 50], [20, 200]] {
            let mut pair = ready(seed, rtt);
            let (len, at) = (rng.size(1, 2_000_000), rng.below(1_000_000));
            let ways = rng.pick(&[[true, true], [true, false], [false, true]]);
            let time = transfer(&mut pair, len, at, |world| cut(world, ways, true));
            println!("{len} bytes, cut {ways:?} after {} ms: {time} ms", at / 1_000);
        }
    }
}

#[test]
fn standby_passes_a_path_with_a_smaller_mtu_again_and_again() {
    let mut pair = ready(1, [50, 50]);
    for (from, to) in [(second(), addr(SERVER)), (addr(SERVER), second())] {
        pair.world.set_link(
            from,
            to,
            LinkConfig { mtu: 700, fragments: true, ..LinkConfig::delay(25_000) },
        );
    }
    let event = |at, is_cut| -> (u64, Event) {
        (at, Box::new(move |world| cut(world, [true, true], is_cut)))
    };
    // Full segments are in flight each time.
    let events = vec![event(500_000, true), event(30_000_000, false), event(120_000_000, true)];
    bulk(&mut pair, 160 * SECOND, events);
    assert!(paths(&mut pair, CLIENT)[1].2);
}

/// A pair whose data leaves on the second path at both ends, since the first one is dead.
fn on_second(seed: u64) -> Pair {
    let mut pair = ready(seed, [50, 50]);
    cut(&pair.world, [true, true], true);
    messages(&mut pair, SECOND, Vec::new());
    assert!([CLIENT, SERVER].iter().all(|host| paths(&mut pair, *host)[1].2));
    pair
}

#[test]
fn size_that_the_system_refuses_on_a_further_path_is_lowered_there() {
    for host in [CLIENT, SERVER] {
        let mut pair = on_second(1);
        pair.world.limit_sends(host, Some(900));
        let Pair { world, client, server, .. } = &mut pair;
        let (from, to) = if host == CLIENT { (client, server) } else { (server, client) };
        // Black-hole detection alone takes longer.
        world.finish(SECOND, async {
            let data = vec![7; 100_000];
            let mut got = vec![0; data.len()];
            let (written, read) = tokio::join!(from.write_all(&data), to.read_exact(&mut got));
            written.unwrap();
            assert!(read.is_ok() && got == data);
        });
        let mtus: Vec<_> = {
            let conn = pair.world.driver_of(host).routing.conns.iter().next().unwrap().1;
            conn.kcp.paths().map(|path| path.current_mtu).collect()
        };
        // Fragments let the segments in flight pass.
        assert!(mtus[1] < mtus[0], "{mtus:?}");
    }
}

#[test]
fn runtime_that_ends_says_so_on_the_path_that_works() {
    for gone in [CLIENT, SERVER] {
        let Pair { mut world, client, server, .. } = on_second(1);
        world.exit(gone);
        let mut left = if gone == SERVER { client } else { server };
        // The answers to the last messages.
        world.finish(SECOND, left.read_to_end(&mut Vec::new())).unwrap();
    }
}

/// Messages leave the faster path each time one of full size is lost there, until its MTU is known.
#[test]
fn black_hole_for_messages_on_the_faster_path_is_detected() {
    for rtt in [[40, 80], [50, 50]] {
        let mut pair = ready(1, rtt);
        let link = LinkConfig { mtu: 700, fragments: true, ..LinkConfig::delay(rtt[0] * 500) };
        pair.world.set_link(addr(CLIENT), addr(SERVER), link.clone());
        pair.world.set_link(addr(SERVER), addr(CLIENT), link);
        let (mut gap, mut last) = (0, 0);
        for ms in 0..40_000 {
            let Pair { world, client, server, .. } = &mut pair;
            if ms % 10 == 0 {
                client.try_write(&[7; 1_300]).unwrap();
            }
            world.run_for(Duration::from_millis(1));
            while server.try_read(&mut [0; 8_192]).is_ok() {
                gap = if ms < 20_000 { 0 } else { gap.max(ms - last) };
                last = ms;
            }
        }
        println!("RTT {rtt:?}: {gap} ms");
        assert!(gap < 40, "{gap} ms between messages after 20 s");
    }
}

/// Writes as much as the stream takes for `time`, and checks that all of it arrives.
fn bulk(pair: &mut Pair, time: Duration, mut events: Vec<(u64, Event)>) {
    let (start, mut written, mut got, mut stalled) = (pair.world.elapsed(), 0, 0, 0);
    while written > got || pair.world.elapsed() - start < micros(time) {
        let Pair { world, client, server, .. } = pair;
        let passed = world.elapsed() - start;
        if events.first().is_some_and(|(at, _)| passed >= *at) {
            events.remove(0).1(world);
        }
        // Some 1 Mbit/s, in full segments.
        if passed < micros(time) && passed / 20 > written as u64 {
            written += client.try_write(&[7; 2_800]).unwrap_or(0);
        }
        world.run_for(Duration::from_millis(10));
        let (mut buf, before) = ([0; 8_192], got);
        while let Ok(bytes) = server.try_read(&mut buf) {
            got += bytes;
        }
        stalled = if got > before { 0 } else { stalled + 10 };
        assert!(stalled < 30_000, "{got} of {written} bytes after {} ms", passed / 1_000);
    }
    assert_eq!((pair.client.error(), pair.server.error()), (None, None));
}

#[test]
fn paths_that_flap_stall_messages_for_a_moment_only() {
    for (period, limit) in [(100_000, 400), (1_000_000, 150)] {
        for seed in seeds(5) {
            let mut pair = ready(seed, [50, 60]);
            let flap = |i: u64| -> (u64, Event) {
                (i * period, Box::new(move |world| cut(world, [true, true], i.is_multiple_of(2))))
            };
            let gaps =
                messages(&mut pair, 10 * SECOND, (1..10_000_000 / period).map(flap).collect());
            println!("flaps each {} ms: {gaps:?} ms", period / 1_000);
            assert!(gaps.iter().all(|gap| *gap <= limit), "{gaps:?}");
        }
    }
}

/// Rule: W-109.
#[test]
fn path_behind_a_nat_that_forgets_is_found_again() {
    for which in [addr(CLIENT), second()] {
        let mut pair = ready(1, [50, 80]);
        let forget: Event = Box::new(move |world| {
            world.set_outside(which, SocketAddr::from(([192, 0, 2, 1], 999)));
        });
        let gaps = messages(&mut pair, 15 * SECOND, vec![(1_000_000, forget)]);
        println!("{which} is forgotten: {gaps:?} ms");
        assert!(gaps.iter().all(|gap| *gap <= 150), "{gaps:?}");
        for host in [CLIENT, SERVER] {
            let usable = paths(&mut pair, host);
            assert!(usable.iter().all(|path| path.1 == PathState::Usable), "{usable:?}");
        }
        assert_eq!(pair.listener.stats().connections.current, 1);
    }
}

#[test]
fn path_that_is_idle_when_it_dies_delays_the_next_message_for_a_moment() {
    let mut pair = ready(1, [50, 60]);
    pair.world.run_for(MINUTE);
    cut(&pair.world, [true, true], true);
    let gaps = messages(&mut pair, SECOND, Vec::new());
    assert!(gaps.iter().all(|gap| *gap <= 120), "{gaps:?}");
    pair.world.run_for(3 * MINUTE);
    assert_eq!((pair.client.error(), pair.server.error()), (None, None));
}

#[test]
fn last_path_is_not_removed_and_the_active_one_hands_over() {
    let mut pair = ready(1, [50, 60]);
    let remove = |pair: &mut Pair, id| {
        pair.world.finish(SECOND, pair.client.remove_path(PathId(id))).map_err(|error| error.kind())
    };
    assert_eq!(remove(&mut pair, 3), Err(std::io::ErrorKind::InvalidInput), "unknown");
    assert_eq!(remove(&mut pair, 0), Ok(()));
    assert_eq!(paths(&mut pair, CLIENT), [(PathId(1), PathState::Usable, true)]);
    assert_eq!(remove(&mut pair, 1), Err(std::io::ErrorKind::InvalidInput), "the last one");
    let gaps = messages(&mut pair, 3 * SECOND, Vec::new());
    assert!(gaps.iter().all(|gap| *gap <= 120), "{gaps:?}");
}

#[test]
fn ends_leave_no_key_of_a_further_path() {
    for aborts in [false, true] {
        let mut pair = ready(1, [50, 60]);
        assert_eq!(pair.world.driver_of(SERVER).routing.demux.further(), 1);
        let Pair { mut world, client, server, .. } = pair;
        if aborts {
            client.abort();
        } else {
            drop(client);
        }
        drop(server);
        world.run_for(MINUTE);
        assert_eq!(world.driver_of(SERVER).routing.demux.further(), 0);
        #[cfg(feature = "_testkit")]
        world.driver_of(SERVER).check_invariants();
    }
}

#[test]
fn peer_that_announces_a_hundred_paths_has_three_more() {
    let mut pair = ready(1, [50, 60]);
    for i in 0..100 {
        // The NAT gives the path another address before each announcement.
        pair.world.set_outside(second(), SocketAddr::from(([192, 0, 2, i], 999)));
        pair.client.network_changed();
        pair.world.run_for(SECOND / 2);
        #[cfg(feature = "_testkit")]
        pair.world.driver_of(SERVER).check_invariants();
    }
    assert_eq!(pair.world.driver_of(SERVER).routing.demux.further(), 1);
    assert_eq!(paths(&mut pair, SERVER).len(), 2);
}

#[test]
fn path_from_a_source_at_its_limit_is_not_taken() {
    let mut server = aead();
    server.limits.max_per_source = Some(1);
    let mut pair = on_two_paths(1, [50, 60], [&aead(), &server]);
    // Another client behind the second address.
    let Pair { world, listener, .. } = &mut pair;
    world.set_outside(addr(77), SocketAddr::new(second().ip(), 50_000));
    let endpoint = world.endpoint(77, &aead());
    let (client, far) = world.finish(SECOND, async {
        let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
        client.write_all(b"hi").await.unwrap();
        (client, listener.accept().await.unwrap().0)
    });
    world.run_for(SECOND);
    let before = pair.listener.stats().refused.max_per_source;
    add_path(&mut pair, second()).unwrap();
    pair.world.run_for(3 * SECOND);
    assert_eq!(paths(&mut pair, SERVER).len(), 1);
    assert!(pair.listener.stats().refused.max_per_source > before);
    drop((client, far));
    pair.world.run_for(20 * SECOND);
    assert_eq!(paths(&mut pair, SERVER).len(), 2);
    let gaps = messages(&mut pair, SECOND, Vec::new());
    assert!(gaps.iter().all(|gap| *gap <= 20), "{gaps:?}");
}

#[test]
fn announcement_that_is_replayed_from_elsewhere_gains_no_path() {
    let mut pair = two_paths(1, [50, 60], &aead());
    pair.world.log();
    add_path(&mut pair, second()).unwrap();
    pair.world.run_for(3 * SECOND);
    let announced = pair.world.log().into_iter().filter(|sent| sent.from == second());
    let announced: Vec<_> = announced.collect();
    let thief = addr(99);
    pair.world.port(99);
    for sent in &announced {
        pair.world.inject(thief, SERVER, &sent.datagram);
        pair.world.run_for(SECOND / 10);
    }
    let answers = pair.world.log().into_iter().filter(|sent| sent.to == thief);
    let bytes: usize = answers.map(|sent| sent.datagram.len()).sum();
    let sent: usize = announced.iter().map(|sent| sent.datagram.len()).sum();
    assert!(!announced.is_empty() && bytes <= sent, "{bytes} bytes for {sent}");
    assert_eq!(pair.world.driver_of(SERVER).routing.demux.further(), 1);
    assert_eq!(paths(&mut pair, SERVER).len(), 2);
    let gaps = messages(&mut pair, 2 * SECOND, Vec::new());
    assert!(gaps.iter().all(|gap| *gap <= 20), "{gaps:?}");
}

/// A link drawn at random: what a disturbance may make of a path.
pub(super) fn any_link(rng: &mut Rng) -> LinkConfig {
    LinkConfig {
        delay: rng.spread(200, 300_000),
        jitter: rng.below(30_000),
        keep_order: rng.chance(500_000),
        loss: rng.pick(&[0, 0, 10_000, 100_000, 500_000]),
        duplicate: rng.pick(&[0, 0, 20_000]),
        // A transfer fills any path, and the simulation keeps each datagram.
        rate: Some(rng.pick(&[12_500_000, 12_500_000, 1_000_000, 10_000_000])),
        queue: 50_000,
        ..LinkConfig::delay(0)
    }
}

/// Changes of the paths from `ends` within ten seconds, in order.
pub(super) fn disturbances(rng: &mut Rng, ends: &[SocketAddr]) -> Vec<(u64, Event)> {
    let (server, mut events) = (addr(SERVER), Vec::<(u64, Event)>::new());
    for _ in 0..rng.range(1, 12) {
        let (mut draw, end) = (Rng::new(rng.next()), rng.pick(ends));
        let event = move |world: &mut World| match draw.below(4) {
            0 => world.cut(end, server, draw.chance(500_000)),
            1 => world.cut(server, end, draw.chance(500_000)),
            2 => world.set_link(end, server, any_link(&mut draw)),
            _ => world.set_link(server, end, any_link(&mut draw)),
        };
        events.push((rng.below(10_000_000), Box::new(event)));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

/// The law: whatever happened to both paths before, messages flow within 15 s once one of them is steady, and each
/// byte arrives exactly once.
#[test]
fn steady_path_carries_the_messages_whatever_happened_before() {
    let server = addr(SERVER);
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let mut pair = ready(seed, [rng.range(10, 200), rng.range(10, 200)]);
        let ends = [addr(CLIENT), second()];
        let mut events = disturbances(&mut rng, &ends);
        let (steady, delay) = (rng.pick(&ends), rng.range(1_000, 100_000));
        let is_other_dead = rng.chance(500_000);
        events.push((
            10_000_000,
            Box::new(move |world| {
                for end in ends {
                    world.cut(end, server, is_other_dead && end != steady);
                    world.cut(server, end, is_other_dead && end != steady);
                }
                world.set_link(steady, server, LinkConfig::delay(delay));
                world.set_link(server, steady, LinkConfig::delay(delay));
            }),
        ));
        messages(&mut pair, 25 * SECOND, events);
        let gaps = messages(&mut pair, 5 * SECOND, Vec::new());
        println!("seed {seed}: steady {steady} of {} ms, gaps {gaps:?} ms", delay / 500);
        // A retransmission on the steady path, beside another one that loses.
        let limit = 3 * (2 * delay / 1_000) + 150;
        assert!(gaps.iter().all(|gap| *gap <= limit), "{gaps:?} above {limit} ms");
        #[cfg(feature = "_testkit")]
        pair.world.driver_of(SERVER).check_invariants();
    }
}

#[test]
fn path_is_added_beside_automatic_redundancy() {
    let config = aead().redundancy(Redundancy::Auto(AutoRedundancy::default()));
    let mut pair = two_paths(1, [50, 50], &config);
    assert_eq!(add_path(&mut pair, second()).unwrap(), PathId(1));
}

#[test]
fn parity_leaves_on_the_first_path_alone() {
    let config = aead().redundancy(Redundancy::Fec(FecConfig::new(4, 2).unwrap()));
    let mut pair = two_paths(1, [50, 60], &config);
    add_path(&mut pair, second()).unwrap();
    pair.world.run_for(2 * SECOND);
    let shards = |pair: &mut Pair| {
        let before = pair.listener.stats().fec;
        for _ in 0..40 {
            pair.client.try_write(b"message").unwrap();
            pair.world.run_for(SECOND / 100);
        }
        let fec = pair.listener.stats().fec - before;
        (fec.data_shards, fec.parity_shards)
    };
    let (data, parity) = shards(&mut pair);
    assert!(data >= 30 && parity >= 14, "{data} and {parity}");
    cut(&pair.world, [true, true], true);
    pair.world.run_for(2 * SECOND);
    assert!(paths(&mut pair, CLIENT)[1].2, "the second path has the data");
    assert_eq!(shards(&mut pair), (0, 0));
}

#[test]
fn datagrams_arrive_on_a_further_path() {
    let mut pair = ready(1, [50, 60]);
    let (out, back) = (pair.client.datagrams(), pair.server.datagrams());
    out.send(b"one").unwrap();
    pair.world.run_for(SECOND / 5);
    cut(&pair.world, [true, true], true);
    messages(&mut pair, SECOND, Vec::new());
    out.send(b"two").unwrap();
    pair.world.run_for(SECOND / 5);
    let Pair { world, .. } = &mut pair;
    world.finish(SECOND, async {
        assert_eq!(back.recv().await.unwrap(), "one");
        assert_eq!(back.recv().await.unwrap(), "two");
    });
}

#[test]
fn listener_neither_adds_nor_removes_paths_and_migration_goes_on() {
    let mut pair = ready(1, [50, 60]);
    let Pair { world, server, .. } = &mut pair;
    let removed = world.finish(SECOND, server.remove_path(PathId(1)));
    assert_eq!(removed.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    let mut pair = two_paths(1, [50, 60], &aead());
    let Pair { world, server, .. } = &mut pair;
    let local = LocalIp::of_destination([10, 0, 0, 99].into());
    let added = world.finish(SECOND, server.add_path_from(local));
    assert_eq!(added.unwrap_err().kind(), std::io::ErrorKind::Unsupported);
    world.set_outside(addr(CLIENT), SocketAddr::from(([192, 0, 2, 1], 999)));
    let gaps = messages(&mut pair, 3 * SECOND, Vec::new());
    assert!(gaps.iter().all(|gap| *gap <= 150), "{gaps:?}");
    assert_eq!(pair.listener.stats().connections.migrations, 1);
}

/// The system sends nothing from an address that is gone.
#[test]
fn address_that_is_gone_costs_a_ping_now_and_then() {
    let mut pair = ready(1, [50, 60]);
    cut(&pair.world, [true, true], true);
    messages(&mut pair, SECOND, Vec::new());
    pair.world.log();
    let gone = Path { peer: addr(SERVER), local: LocalIp::of_destination(second().ip()) };
    for _ in 0..1_000 {
        let now = pair.world.now();
        pair.world.driver_of(CLIENT).routing.on_source_gone(now, gone);
        pair.world.run_for(Duration::from_millis(1));
    }
    let pings = pair.world.log().iter().filter(|sent| sent.from == second()).count();
    assert!(pings <= 20, "{pings} datagrams");
}

#[test]
fn last_acknowledgement_of_a_close_on_a_further_path_may_be_lost() {
    for seed in seeds(20) {
        let mut pair = ready(seed, [50, 60]);
        cut(&pair.world, [true, true], true);
        messages(&mut pair, SECOND, Vec::new());
        let Pair { mut world, mut client, mut server, endpoint: _endpoint, listener: _listener } =
            pair;
        let lossy = LinkConfig { loss: 300_000, ..LinkConfig::delay(30_000) };
        world.set_link(addr(SERVER), second(), lossy.clone());
        world.set_link(second(), addr(SERVER), lossy);
        world.spawn(async move {
            server.shutdown().await.unwrap();
            assert_eq!(server.read(&mut [0; 10]).await.unwrap(), 0);
        });
        world.finish(MINUTE, async {
            client.shutdown().await.unwrap();
            assert_eq!(client.read(&mut [0; 10]).await.unwrap(), 0);
        });
    }
}

#[test]
fn abort_reaches_a_peer_whose_latest_segment_is_a_ping_of_a_path() {
    for on_first in [true, false] {
        let mut pair = ready(1, [50, 60]);
        pair.world.run_for(MINUTE / 2);
        if on_first {
            cut(&pair.world, [true, true], true);
        }
        let Pair { mut world, client, server, .. } = pair;
        server.abort();
        let error = world.finish(10 * SECOND, client.closed());
        assert_eq!(error, ConnectionError::Reset);
    }
}

#[test]
fn removed_path_is_pinged_for_a_minute_only() {
    let mut pair = ready(1, [50, 60]);
    let Pair { world, client, .. } = &mut pair;
    world.finish(SECOND, client.remove_path(PathId(1))).unwrap();
    world.run_for(2 * MINUTE);
    world.log();
    world.run_for(10 * MINUTE);
    let log = world.log();
    assert_eq!(log.iter().filter(|sent| sent.to == second()).count(), 0);
    // The other one is kept alive.
    assert!(log.iter().any(|sent| sent.to == addr(CLIENT)));
    assert_eq!(client.error(), None);
}

/// Keeps what is logged.
#[cfg(feature = "tracing")]
#[derive(Clone, Default)]
struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

#[cfg(feature = "tracing")]
impl std::io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(feature = "tracing")]
#[test]
fn events_tell_the_life_of_a_path() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // With one dispatcher alone, the first thread that meets an event decides whether anybody wants it, and other
    // tests do not.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    tracing::subscriber::with_default(subscriber, || {
        let mut pair = ready(1, [50, 60]);
        cut(&pair.world, [true, true], true);
        messages(&mut pair, SECOND, Vec::new());
        cut(&pair.world, [true, true], false);
        messages(&mut pair, 4 * SECOND, Vec::new());
        let Pair { world, client, .. } = &mut pair;
        world.finish(SECOND, client.remove_path(PathId::FIRST)).unwrap();
        world.run_for(SECOND);
    });
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    println!("{text}");
    let events = text.lines().filter_map(|line| Some(line.split_once("kcpx::trace: ")?.1));
    let events: Vec<_> = events.filter(|event| event.contains("path")).collect();
    let client = "path added path=1 local=Some(10.0.1.2) peer=10.0.0.1:4001";
    let server = "path added path=1 local=None peer=10.0.1.2:4002";
    // The server learns of the addition and not of the removal.
    let both = [
        "path validated path=1",
        "active path changed from=0 to=1 reason=\"overdue\"",
        "path silent path=0",
        "path answers again path=0",
    ];
    let both = both.into_iter().flat_map(|event| [event; 2]);
    let expected = [client, server].into_iter().chain(both).chain(["path removed path=0"]);
    assert_eq!(events, expected.collect::<Vec<_>>());
    // Nothing is logged per datagram.
    assert!(text.lines().count() <= 40, "{} lines", text.lines().count());
}

/// Messages each 10 ms to the server for `count` times. Returns how long each took, in microseconds.
fn latencies(pair: &mut Pair, count: usize) -> Vec<u64> {
    let start = pair.world.elapsed();
    let (mut written, mut got, mut took) = (0, 0, Vec::new());
    while took.len() < count {
        let Pair { world, client, server, .. } = pair;
        let passed = world.elapsed() - start;
        if written < count && passed >= written as u64 * 10_000 {
            assert_eq!(client.try_write(&[7; LEN]).unwrap(), LEN);
            written += 1;
        }
        world.run_for(Duration::from_micros(500));
        let mut buf = [0; 8_192];
        while let Ok(bytes) = server.try_read(&mut buf) {
            got += bytes;
        }
        while took.len() < got / LEN {
            took.push(world.elapsed() - start - took.len() as u64 * 10_000);
        }
    }
    took
}

/// The latencies of messages of which the earlier copy counts, and a retransmission a round trip later where both
/// are lost, in order.
fn replay(log: &[Sent], start: u64, count: usize, rtt: [u64; 2]) -> Vec<u64> {
    let (mut took, mut last) = (Vec::new(), 0);
    for i in 0..count as u64 {
        let at = start + i * 10_000;
        let leaves_now = |sent: &&Sent| {
            sent.at >= at
                && sent.at < at + 10_000
                && sent.to == addr(SERVER)
                && sent.datagram.len() > LEN
        };
        let first = log.iter().filter(leaves_now).take(2).filter_map(|sent| sent.arrival).min();
        let again = at + rtt[0].max(rtt[1]) * 1_000 + rtt[0].min(rtt[1]) * 500;
        last = first.unwrap_or(again).max(last);
        took.push(last - at);
    }
    took
}

fn percentile(latencies: &[u64], per_mille: usize) -> u64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() * per_mille / 1_000]
}

/// Rules: W-116, P-38.
#[test]
fn duplicate_delivers_messages_as_the_earlier_copy_would() {
    for (loss, jitter) in [(50_000, 0), (100_000, 0), (50_000, 5_000)] {
        for rtt in [[50, 60], [40, 120]] {
            let config = aead().path_mode(PathMode::Duplicate);
            let mut pair = two_paths(1, rtt, &config);
            add_path(&mut pair, second()).unwrap();
            pair.world.run_for(2 * SECOND);
            for (end, rtt) in [(addr(CLIENT), rtt[0]), (second(), rtt[1])] {
                let link = LinkConfig { loss, jitter, ..LinkConfig::delay(rtt * 500) };
                pair.world.set_link(end, addr(SERVER), link.clone());
                pair.world.set_link(addr(SERVER), end, link);
            }
            latencies(&mut pair, 1_000);
            pair.world.log();
            let (start, count) = (pair.world.elapsed(), 6_000);
            let took = latencies(&mut pair, count);
            let log = pair.world.log();
            let ideal = replay(&log, start, count, rtt);
            let data =
                log.iter().filter(|sent| sent.to == addr(SERVER) && sent.datagram.len() > LEN);
            let wire = data.map(|sent| sent.datagram.len()).sum::<usize>() / count;
            let of = |took: &[u64]| [500, 990, 999].map(|share| percentile(took, share) / 100);
            println!(
                "loss {loss}, jitter {jitter}, round trips {rtt:?}: took {:?}, replay {:?} (0.1 ms), {wire} bytes a message",
                of(&took),
                of(&ideal)
            );
            assert!(of(&took)[0] <= of(&ideal)[0] + 20 && wire <= 2 * 152 * 105 / 100);
            // Two later acknowledgements show that both copies are lost; jitter delays them, and the replay's
            // retransmissions have none.
            let late = if jitter == 0 { 110 } else { 400 };
            assert!(of(&took)[1] <= of(&ideal)[1] + late);
        }
    }
}
