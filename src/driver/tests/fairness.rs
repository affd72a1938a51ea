//! Fairness between connections, and the cost of bulk transfer in turns and wakes.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, micros, pattern, push};
use super::resource_limits::{streams, turn, wide};
use super::sim_network::Sent;
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::segment::Header;
use crate::driver::Turn;
use crate::driver::output::TURN_PACKETS;
use crate::driver::receive::RECV_CALLS;
use crate::fec::{FecFlag, fec_flag};
use crate::stream::KcpStream;
use crate::testkit::link::LinkConfig;

const MIB: usize = 1 << 20;
/// Most datagrams of one GRO batch, and most receive buffers that one call fills.
const COALESCED: usize = 64;
const BUFFERS: usize = 4;

/// Writes blocks of 64 KiB.
async fn write_bulk(stream: &mut KcpStream, bytes: usize) {
    let block = vec![7; 64 * 1024];
    for _ in 0..bytes / block.len() {
        stream.write_all(&block).await.unwrap();
    }
}

/// Reads what is available at a time.
async fn read_bulk(stream: &mut KcpStream, bytes: usize) {
    let mut buf = vec![0; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        let most = left.min(buf.len());
        left -= stream.read(&mut buf[..most]).await.unwrap();
    }
}

// ----- turns and wakes -----

#[test]
fn receive_budget_per_turn_leaves_the_rest_for_the_next_turn() {
    let mut pair = Pair::near(&wide(), &wide());
    assert_eq!(pair.client.try_write(&pattern(3_000_000)).unwrap(), 3_000_000);
    while turn(&mut pair.world, CLIENT).0.runs_again() {}
    // A turn catches up after a long pause, as after a stop of the process.
    turn(&mut pair.world, SERVER);
    let mut waiting = pair.world.let_arrive(SECOND / 20, SERVER);
    assert!(waiting > 2_000, "{waiting} datagrams wait");
    while waiting > 0 {
        let (turn, _) = turn(&mut pair.world, SERVER);
        let left = pair.world.let_arrive(Duration::ZERO, SERVER);
        let taken = waiting - left;
        assert!((1..=RECV_CALLS * BUFFERS * COALESCED).contains(&taken), "{taken} in one turn");
        assert!(turn == Turn::Again || left == 0, "{turn:?} with {left} left");
        waiting = left;
    }
}

/// Turns of both drivers, and wakes of writer and reader, for a transfer of `bytes`.
fn cost(pair: Pair, bytes: usize) -> (usize, usize) {
    const WARM_UP: usize = 4 * MIB;
    let Pair { mut world, mut client, mut server, .. } = pair;
    world.spawn(async move { write_bulk(&mut client, WARM_UP + bytes + 8 * MIB).await });
    world.finish(MINUTE, read_bulk(&mut server, WARM_UP));
    let before = (world.turns, world.wakes);
    world.finish(MINUTE, read_bulk(&mut server, bytes));
    (world.turns - before.0, world.wakes - before.1)
}

#[test]
fn bulk_transfer_takes_few_turns_and_wakes() {
    const MEBIBYTES: usize = 32;
    // On a long path the pacer releases a part of the window each millisecond.
    let paths = [(Pair::near(&Config::new(), &Config::new()), 12, 10), (Pair::plain(), 40, 28)];
    for (pair, most_turns, most_wakes) in paths {
        let (turns, wakes) = cost(pair, MEBIBYTES * MIB);
        println!("{turns} turns and {wakes} wakes for {MEBIBYTES} MiB");
        // The lower bounds show that the counters work: a turn sends 276 datagrams at most.
        assert!((2 * MEBIBYTES..=most_turns * MEBIBYTES).contains(&turns), "{turns} turns");
        assert!((MEBIBYTES..=most_wakes * MEBIBYTES).contains(&wakes), "{wakes} wakes");
    }
}

// ----- fairness -----

#[test]
fn fairness_on_a_long_path_serves_small_connections_within_two_turns() {
    const ROUNDS: u8 = 40;
    // One way; the round trip takes 20 ms.
    const ONE_WAY: Duration = Duration::from_millis(10);
    const WINDOW: u16 = 1_024;
    let config = Config::new().windows(WINDOW, WINDOW);
    let mut pair = Pair::new(&config, &config);
    let mut streams = streams(&mut pair, 100);
    let Pair { mut world, mut client, mut server, .. } = pair;
    let window = usize::from(WINDOW) * 1_376;
    let bulk = client.conv();
    let received = Rc::new(Cell::new(0));
    let count = received.clone();
    world.spawn(async move { write_bulk(&mut client, 1 << 30).await });
    world.spawn(async move {
        let mut buf = vec![0; 64 * 1024];
        loop {
            count.set(count.get() + server.read(&mut buf).await.unwrap());
        }
    });
    world.run_for(SECOND / 5);
    let mut bulk_datagrams = 0;
    let (begun, before) = (world.elapsed(), received.get());
    for round in 1..=ROUNDS {
        // The bulk transfer is due at the same moment.
        world.run_for(Duration::from_micros(3_000 + 170 * u64::from(round)));
        assert!(world.advance());
        for (small, _) in &streams {
            assert_eq!(small.try_write(&[round; 64]).unwrap(), 64);
        }
        let mut waiting: HashSet<u32> = streams.iter().map(|(small, _)| small.conv()).collect();
        for _ in 0..2 {
            for sent in turn(&mut world, CLIENT).1 {
                let conv = Header::parse(&sent.datagram).unwrap().conv;
                waiting.remove(&conv);
                bulk_datagrams += usize::from(conv == bulk);
            }
        }
        assert!(waiting.is_empty(), "round {round}: {} wait longer than 2 turns", waiting.len());
        world.run_for(ONE_WAY);
        for (_, server) in &mut streams {
            let mut got = [0; 65];
            assert_eq!(server.try_read(&mut got).unwrap(), 64);
            assert!(got.starts_with(&[round; 64]), "data of another round");
        }
    }
    // The bulk transfer keeps its rate: one window per round trip.
    let windows = (world.elapsed() - begun) as usize / (2 * micros(ONE_WAY) as usize);
    let share = (received.get() - before) * 100 / (windows * window);
    println!(
        "{share} % of {windows} windows, {bulk_datagrams} bulk datagrams in turns with small ones"
    );
    assert!(share >= 90, "{share} %");
    assert!(bulk_datagrams > 10 * usize::from(ROUNDS), "the bulk transfer did not send");
}

/// Datagrams of both kinds take turns. Other connections come after half of what a turn may send.
#[test]
fn datagrams_out_of_band_and_of_the_stream_share_the_quota_of_their_connection() {
    const OUT_OF_BAND: usize = 30;
    let config = wide().mtu(400);
    let mut pair = Pair::near(&config, &config);
    let (other, _other_server) = streams(&mut pair, 1).remove(0);
    let datagrams = pair.client.datagrams();
    pair.world.run_for(SECOND);
    (0..OUT_OF_BAND).for_each(|_| datagrams.send(&[7; 376]).unwrap());
    pair.client.try_write(&pattern(100_000)).unwrap();
    other.try_write(b"small").unwrap();
    let (_, sent) = turn(&mut pair.world, CLIENT);
    let is_out_of_band = |sent: &Sent| fec_flag(&sent.datagram) == FecFlag::OutOfBand;
    let both = sent.chunks(2).take(OUT_OF_BAND);
    assert!(both.into_iter().all(|both| is_out_of_band(&both[0]) != is_out_of_band(&both[1])));
    let before = sent.iter().position(|sent| sent.datagram.ends_with(b"small"));
    assert_eq!(before, Some(TURN_PACKETS / 2), "of {} datagrams", sent.len());
}

/// 16 connections of one client fill 20 Mbit/s. The queue holds less than each alone would probe for.
/// Rule: P-21.
#[test]
fn connections_of_a_path_share_its_rate() {
    const STREAMS: usize = 16;
    const RATE: u64 = 20_000_000;
    let (rate, queue) = (Some(RATE / 8), 88 * 1_400);
    let path = LinkConfig { rate, queue, ..LinkConfig::delay(25_000) };
    let mut pair = Pair::on(World::new(1, path), &Config::new(), &Config::new());
    let mut streams = streams(&mut pair, STREAMS - 1);
    let Pair { mut world, client, server, .. } = pair;
    streams.push((client, server));
    let received = Rc::new(RefCell::new([0; STREAMS]));
    for (i, (mut client, mut server)) in streams.into_iter().enumerate() {
        let (count, mut buf) = (received.clone(), vec![0; 64 * 1024]);
        world.spawn(async move { write_bulk(&mut client, 1 << 30).await });
        // Each begins once the one before has filled the queue.
        world.run_for(SECOND / 2);
        world.spawn(async move {
            loop {
                let len = server.read(&mut buf).await.unwrap();
                count.borrow_mut()[i] += len;
            }
        });
    }
    world.run_for(10 * SECOND);
    let before = *received.borrow();
    world.log();
    world.run_for(20 * SECOND);
    let after = *received.borrow();
    let log = world.log().into_iter().filter(|sent| sent.from == addr(CLIENT));
    let sent: usize = log.map(|sent| sent.datagram.len()).sum();
    let each = before.iter().zip(after).map(|(before, after)| after - before);
    let (least, all) = (each.clone().min().unwrap(), each.sum::<usize>());
    let (share, wire) = (least * STREAMS * 100 / all, sent * 100 / all);
    let used = all as u64 * 8 / 20 * 100 / RATE;
    println!(
        "{used} % of the rate, {wire} % sent, the slowest connection has {share} % of its share"
    );
    assert!(used >= 90, "{used} %");
    assert!(wire <= 110, "{wire} %");
    assert!(share >= 50, "{share} %");
}

/// A forged datagram from the address of a peer opens a second connection.
/// Rule: P-21.
#[test]
fn unvalidated_connection_shares_no_path() {
    let mut pair = Pair::plain();
    pair.world.inject(addr(CLIENT), SERVER, &push(pair.client.conv() ^ 1, 0, b"forged"));
    pair.world.run_for(SECOND / 100);
    let driver = pair.world.driver_of(SERVER);
    let (forged, others): (Vec<_>, Vec<_>) =
        driver.routing.conns.iter().map(|(_, conn)| conn).partition(|conn| conn.is_unvalidated());
    assert_eq!((forged.len(), others.len()), (1, 1));
    let (forged, own) = (forged[0].id(), others[0].id());
    driver.routing.share_path(forged);
    let sharer = driver.routing.peers.sharer(addr(CLIENT), forged.slot);
    assert_eq!(
        sharer,
        Some(own.slot as usize),
        "the next connection shares the path of the peer's"
    );
}
