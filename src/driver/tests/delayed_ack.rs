//! Delayed ACKs (RFC 9293 3.8.6.3): the ACK of data that wakes a reader waits one turn for an answer.

use std::cell::Cell;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, Pair, SECOND, SERVER, pattern};
use super::resource_limits::{streams, turn, wide};
use super::sim_network::{Fate, Sent};
use super::sim_world::{World, addr};
use crate::config::{AckPolicy, Config, Mode};
use crate::core::segment::{Command, Segments};
use crate::driver::Turn;
use crate::driver::output::SHORT_WAITS;
use crate::stream::KcpStream;

/// The reaction of a reader to data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Answers,
    OnlyReads,
}

/// Runs a reader on `stream`. Returns the segments that its connection shows as received after each read.
fn spawn_reader(world: &mut World, mut stream: KcpStream, reader: Reader) -> Rc<Cell<u64>> {
    let received = Rc::new(Cell::new(0));
    let shown = received.clone();
    world.spawn(async move {
        let mut buffer = [0; 64];
        while let Ok(len @ 1..) = stream.read(&mut buffer).await {
            shown.set(stream.stats().received.segments);
            if reader == Reader::Answers {
                stream.write_all(&buffer[..len]).await.unwrap();
            }
        }
    });
    world.run_ready();
    received
}

/// The commands of the segments that the server has sent, by datagram.
fn commands(sent: &[Sent]) -> Vec<Vec<Command>> {
    let from_server = sent.iter().filter(|sent| sent.from == addr(SERVER));
    let commands = |datagram| Segments::new(datagram).map(|(header, _)| header.command).collect();
    from_server.map(|sent| commands(&sent.datagram)).collect()
}

/// Readers have answered at once often enough for ACKs to wait for them.
fn accustom(world: &mut World, client: &KcpStream) {
    for _ in 0..SHORT_WAITS {
        assert_eq!(arrive(world, client, 1), (Turn::DelaysAcks, vec![vec![Command::Ack]]));
        world.run_ready();
        turn(world, SERVER);
        world.run_for(SECOND / 100);
        let _ = client.try_read(&mut [0; 64]);
    }
}

/// Each of `writes` arrives in a datagram of its own, all at once. Returns the first turn of the server.
fn arrive(world: &mut World, client: &KcpStream, writes: usize) -> (Turn, Vec<Vec<Command>>) {
    for _ in 0..writes {
        client.try_write(&[7; 64]).unwrap();
        turn(world, CLIENT);
    }
    assert_eq!(world.let_arrive(SECOND / 1_000, SERVER), writes);
    let (turn, sent) = turn(world, SERVER);
    (turn, commands(&sent))
}

#[test]
fn delayed_ack_leaves_with_the_answer_of_the_reader() {
    let Pair { mut world, client, server, .. } = Pair::near(&wide(), &wide());
    spawn_reader(&mut world, server, Reader::Answers);
    accustom(&mut world, &client);
    for _ in 0..3 {
        assert_eq!(arrive(&mut world, &client, 1), (Turn::DelaysAcks, vec![]));
        world.run_ready();
        assert_eq!(commands(&world.log()), [[Command::Ack, Command::Push]]);
        world.run_for(SECOND);
        let mut echo = [0; 64];
        assert_eq!(client.try_read(&mut echo).unwrap(), 64);
    }
    assert_eq!(client.stats().retransmits(), 0);
}

#[test]
fn delayed_ack_without_an_answer_leaves_one_turn_later() {
    let Pair { mut world, client, server, .. } = Pair::near(&wide(), &wide());
    spawn_reader(&mut world, server, Reader::OnlyReads);
    accustom(&mut world, &client);
    assert_eq!(arrive(&mut world, &client, 2), (Turn::DelaysAcks, vec![]));
    // It is not delayed a second time, even if more arrives.
    client.try_write(&[7; 64]).unwrap();
    turn(&mut world, CLIENT);
    world.let_arrive(SECOND / 1_000, SERVER);
    let (after, sent) = turn(&mut world, SERVER);
    assert_eq!((after, commands(&sent)), (Turn::Idle, vec![vec![Command::Ack]]));
}

#[test]
fn statistics_are_those_of_the_turn_that_wakes_the_reader() {
    let Pair { mut world, client, server, .. } = Pair::near(&wide(), &wide());
    let received = spawn_reader(&mut world, server, Reader::Answers);
    accustom(&mut world, &client);
    for _ in 0..3 {
        let before = received.get();
        arrive(&mut world, &client, 1);
        world.run_for(SECOND);
        assert_eq!(received.get(), before + 1);
    }
}

#[test]
fn ack_is_not_delayed_unless_a_reader_was_woken() {
    let Pair { mut world, client, server, .. } = Pair::near(&wide(), &wide());
    assert_eq!(arrive(&mut world, &client, 1), (Turn::Idle, vec![vec![Command::Ack]]));
    drop(server);
}

#[test]
fn ack_of_more_than_two_segments_is_not_delayed() {
    let Pair { mut world, client, server, .. } = Pair::near(&wide(), &wide());
    spawn_reader(&mut world, server, Reader::OnlyReads);
    accustom(&mut world, &client);
    assert_eq!(arrive(&mut world, &client, 3), (Turn::Idle, vec![vec![Command::Ack]]));
}

#[test]
fn ack_is_delayed_by_no_other_policy() {
    for policy in [AckPolicy::Immediate, AckPolicy::Interval] {
        let server = wide().ack_policy(policy);
        let Pair { mut world, client, server, .. } = Pair::near(&wide(), &server);
        spawn_reader(&mut world, server, Reader::OnlyReads);
        assert_eq!(arrive(&mut world, &client, 1).0, Turn::Idle, "{policy:?}");
    }
}

/// In message mode a message above a gap wakes no reader, and the peer learns of the gap at once.
#[test]
fn ack_of_segments_above_a_gap_is_not_delayed() {
    let config: Config = wide().mode(Mode::Message);
    let Pair { mut world, client, server, .. } = Pair::near(&config, &config);
    spawn_reader(&mut world, server, Reader::OnlyReads);
    accustom(&mut world, &client);
    world.set_fates(CLIENT, [Fate::Lost]);
    client.try_write(&[7; 64]).unwrap();
    turn(&mut world, CLIENT);
    assert_eq!(arrive(&mut world, &client, 1), (Turn::Idle, vec![vec![Command::Ack]]));
}

/// RFC 5681 4.2: the peer is about to retransmit a segment that it believes lost.
#[test]
fn ack_of_a_segment_that_fills_a_gap_is_not_delayed() {
    let Pair { mut world, client, server, .. } = Pair::near(&wide(), &wide());
    spawn_reader(&mut world, server, Reader::OnlyReads);
    accustom(&mut world, &client);
    world.set_fates(CLIENT, [Fate::Lost]);
    client.try_write(&[7; 64]).unwrap();
    turn(&mut world, CLIENT);
    assert_eq!(arrive(&mut world, &client, 1), (Turn::Idle, vec![vec![Command::Ack]]));
    let mut tries = 0;
    while world.let_arrive(SECOND / 200, SERVER) == 0 {
        assert!(tries < 200, "no retransmission");
        tries += 1;
        turn(&mut world, CLIENT);
    }
    let (after, sent) = turn(&mut world, SERVER);
    assert_eq!((after, commands(&sent)), (Turn::Idle, vec![vec![Command::Ack]]));
}

#[test]
fn delayed_ack_leaves_first_in_the_next_turn_of_a_busy_endpoint() {
    let mut pair = Pair::near(&wide(), &wide());
    let busy = streams(&mut pair, 1).pop().unwrap();
    let Pair { mut world, client, server, .. } = pair;
    let conv = client.conv();
    spawn_reader(&mut world, server, Reader::OnlyReads);
    accustom(&mut world, &client);
    busy.1.try_write(&pattern(4_000_000)).unwrap();
    let (first, _) = arrive(&mut world, &client, 1);
    assert_eq!(first, Turn::Again, "the other connection has more");
    let (_, sent) = turn(&mut world, SERVER);
    let (header, _) = Segments::new(&sent[0].datagram).next().unwrap();
    assert_eq!((header.conv, header.command), (conv, Command::Ack));
}

#[test]
fn delayed_ack_leaves_before_the_endpoint_ends() {
    let Pair { mut world, client, server, .. } = Pair::near(&wide(), &wide());
    spawn_reader(&mut world, server, Reader::OnlyReads);
    accustom(&mut world, &client);
    assert_eq!(arrive(&mut world, &client, 1), (Turn::DelaysAcks, vec![]));
    world.exit(SERVER);
    assert_eq!(commands(&world.log())[0], [Command::Ack]);
}

/// If tasks compute between two turns, a delayed ACK would add that time to the round trip.
#[test]
fn ack_leaves_at_once_while_readers_compute() {
    for work in [5, 20, 60].map(|millis| SECOND / 1_000 * millis) {
        let Pair { mut world, client, server, .. } = Pair::near(&wide(), &wide());
        spawn_reader(&mut world, server, Reader::OnlyReads);
        for _ in 0..25 {
            assert_eq!(arrive(&mut world, &client, 1).1, [[Command::Ack]], "{work:?}");
            world.let_arrive(SECOND / 2_000, CLIENT);
            turn(&mut world, CLIENT);
            world.let_arrive(work, SERVER);
            turn(&mut world, SERVER);
        }
        let stats = client.stats();
        assert!(stats.path.srtt < SECOND / 500, "{work:?}: {:?}", stats.path.srtt);
        assert_eq!(stats.retransmits(), 0, "{work:?}");
    }
}

/// One reader computes once: one ACK is late, and none is delayed until the waits have been short again.
#[test]
fn ack_is_not_delayed_for_a_while_after_a_long_wait() {
    let Pair { mut world, client, server, .. } = Pair::near(&wide(), &wide());
    spawn_reader(&mut world, server, Reader::OnlyReads);
    accustom(&mut world, &client);
    assert_eq!(arrive(&mut world, &client, 1), (Turn::DelaysAcks, vec![]));
    world.let_arrive(SECOND / 1_000, SERVER);
    assert_eq!(commands(&turn(&mut world, SERVER).1), [[Command::Ack]]);
    world.run_for(SECOND);
    accustom(&mut world, &client);
    assert_eq!(arrive(&mut world, &client, 1), (Turn::DelaysAcks, vec![]));
}
