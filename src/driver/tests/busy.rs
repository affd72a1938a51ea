//! What a conversation that is always busy costs, and leaves to the others.

use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::limits::{streams, turn, wide};
use super::pair::{CLIENT, MINUTE, Pair, SECOND, SERVER, micros, pattern};
use crate::config::Config;
use crate::core::segment::Header;
use crate::driver::Turn;
use crate::driver::receive::RECV_CALLS;
use crate::stream::KcpStream;

const MIB: usize = 1 << 20;
/// Most datagrams that the system coalesces, and receive buffers that a call fills.
const COALESCED: usize = 64;
const BUFFERS: usize = 4;

/// Writes blocks of 64 KiB.
async fn pour(stream: &mut KcpStream, bytes: usize) {
    let block = vec![7; 64 * 1024];
    for _ in 0..bytes / block.len() {
        stream.write_all(&block).await.unwrap();
    }
}

/// Reads as much as there is at a time.
async fn drain(stream: &mut KcpStream, bytes: usize) {
    let mut buf = vec![0; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        let most = left.min(buf.len());
        left -= stream.read(&mut buf[..most]).await.unwrap();
    }
}

// ----- turns and wakes -----

#[test]
fn a_turn_receives_so_much_and_says_that_there_is_more() {
    let mut pair = Pair::near(&wide(), &wide());
    assert_eq!(pair.client.try_write(&pattern(3_000_000)).unwrap(), 3_000_000);
    while turn(&mut pair.world, CLIENT).0 == Turn::Again {}
    let mut waiting = pair.world.let_arrive(SECOND / 10, SERVER);
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

/// Turns of both drivers, and wakes of writer and reader, while so many bytes cross.
fn cost(pair: Pair, bytes: usize) -> (usize, usize) {
    const WARM_UP: usize = 4 * MIB;
    let Pair { mut world, mut client, mut server, .. } = pair;
    world.spawn(async move { pour(&mut client, WARM_UP + bytes + 8 * MIB).await });
    world.finish(MINUTE, drain(&mut server, WARM_UP));
    let before = (world.turns, world.wakes);
    world.finish(MINUTE, drain(&mut server, bytes));
    (world.turns - before.0, world.wakes - before.1)
}

#[test]
fn a_sink_takes_few_turns_and_few_wakes() {
    const MEBIBYTES: usize = 32;
    // On a long path a window leaves bit by bit, each millisecond.
    let paths = [(Pair::near(&Config::new(), &Config::new()), 12, 10), (Pair::plain(), 40, 28)];
    for (pair, most_turns, most_wakes) in paths {
        let (turns, wakes) = cost(pair, MEBIBYTES * MIB);
        println!("{turns} turns and {wakes} wakes for {MEBIBYTES} MiB");
        // Fewer than these would mean that they are not counted: a turn sends 276 datagrams.
        assert!((2 * MEBIBYTES..=most_turns * MEBIBYTES).contains(&turns), "{turns} turns");
        assert!((MEBIBYTES..=most_wakes * MEBIBYTES).contains(&wakes), "{wakes} wakes");
    }
}

// ----- beside others -----

#[test]
fn small_conversations_are_served_beside_a_greedy_one_on_a_long_path() {
    const ROUNDS: u8 = 40;
    // There and back it is 20 ms.
    const WAY: Duration = Duration::from_millis(10);
    const WINDOW: u16 = 1_024;
    let config = Config::new().windows(WINDOW, WINDOW);
    let mut pair = Pair::new(&config, &config);
    let mut streams = streams(&mut pair, 100);
    let Pair { mut world, mut client, mut server, .. } = pair;
    let window = usize::from(WINDOW) * 1_376;
    let greedy = client.conv();
    let received = Rc::new(Cell::new(0));
    let count = received.clone();
    world.spawn(async move { pour(&mut client, 1 << 30).await });
    world.spawn(async move {
        let mut buf = vec![0; 64 * 1024];
        loop {
            count.set(count.get() + server.read(&mut buf).await.unwrap());
        }
    });
    world.run_for(SECOND / 5);
    let mut beside = 0;
    let (begun, before) = (world.elapsed(), received.get());
    for round in 1..=ROUNDS {
        // When something else is due as well.
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
                beside += usize::from(conv == greedy);
            }
        }
        assert!(waiting.is_empty(), "round {round}: {} wait longer than 2 turns", waiting.len());
        world.run_for(WAY);
        for (_, server) in &mut streams {
            let mut got = [0; 65];
            assert_eq!(server.try_read(&mut got).unwrap(), 64);
            assert!(got.starts_with(&[round; 64]), "another round's");
        }
    }
    // Nor does it lose by it: a window for each time there and back.
    let windows = (world.elapsed() - begun) as usize / (2 * micros(WAY) as usize);
    let share = (received.get() - before) * 100 / (windows * window);
    println!("{share} % of {windows} windows, {beside} datagrams in turns with small ones");
    assert!(share >= 90, "{share} %");
    assert!(beside > 10 * usize::from(ROUNDS), "the greedy one was not there");
}
