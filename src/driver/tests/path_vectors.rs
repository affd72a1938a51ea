//! Vectors of connections with several paths: `tests/vectors/paths.json`.

use std::collections::HashMap;
use std::ops::Range;

use serde::Deserialize;

use super::fixtures::{CLIENT, Pair, SECOND, SERVER};
use super::migration::aead;
use super::paths::{Event, add_path, cut, messages, paths, second, two_paths};
use super::sim_network::Sent;
use super::sim_world::{World, addr};
use crate::config::Config;
use crate::core::path::set::{PathId, PathState};
use crate::core::segment::{Command, ControlType, Header, Segments};
use crate::driver::output::send_batch::SendBatch;
use crate::driver::output::{PacketCodec, SendExtras, Written};
use crate::testkit::link::LinkConfig;
use crate::util::path::Path;

/// Length of a segment header, and the place of `ts` in it.
const HEADER_LEN: usize = 24;
const TS: Range<usize> = 8..12;
const SN: Range<usize> = 12..16;

#[derive(Clone, Deserialize)]
struct Vectors {
    conv: u32,
    hello: String,
    hello_ack: String,
    path_before_ping: String,
    challenge: String,
    path_before_answer: String,
    conversation: Vec<Row>,
}

/// A datagram below encryption, and its addresses by name.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Row {
    ms: u64,
    from: String,
    to: String,
    wire: String,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../../../tests/vectors/paths.json")).unwrap()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn config(conv: u32) -> Config {
    let mut config = aead();
    config.conv = Some(conv);
    config.kcp.recv_window = 128;
    config
}

/// The datagrams of a connection that adds a path, changes to it, and removes the first one.
fn converse(conv: u32) -> Vec<Row> {
    let config = config(conv);
    let world = World::new(1, LinkConfig::delay(10_000));
    world.add_address(CLIENT, second());
    for (from, to) in [(second(), addr(SERVER)), (addr(SERVER), second())] {
        world.set_link(from, to, LinkConfig::delay(20_000));
    }
    let mut pair = Pair::on(world, &config, &config);
    assert_eq!(add_path(&mut pair, second()).unwrap(), PathId(1));
    pair.world.run_for(SECOND);
    assert_eq!(paths(&mut pair, SERVER)[1].1, PathState::Usable);
    cut(&pair.world, [true, true], true);
    assert_eq!(pair.client.try_write(b"on the first").unwrap(), 12);
    pair.world.run_for(SECOND / 2);
    assert!(paths(&mut pair, CLIENT)[1].2);
    assert_eq!(pair.server.try_read(&mut [0; 100]).unwrap(), 12);
    let Pair { world, client, .. } = &mut pair;
    world.finish(SECOND, client.remove_path(PathId::FIRST)).unwrap();
    assert_eq!(client.try_write(b"on the second").unwrap(), 13);
    world.run_for(SECOND / 2);
    let codec = PacketCodec::new(&config, [9; 32]);
    pair.world.log().iter().map(|sent| row(&codec, sent)).collect()
}

fn row(codec: &PacketCodec, Sent { from, to, datagram, at, .. }: &Sent) -> Row {
    let name = |end| match end {
        end if end == addr(SERVER) => "server",
        end if end == second() => "client's second",
        _ => "client's first",
    };
    let (mut datagram, ms) = (datagram.clone(), at / 1_000);
    let wire = hex(codec.open(&mut datagram).unwrap().body);
    Row { ms, from: name(*from).into(), to: name(*to).into(), wire }
}

/// The timestamps and cookies of a recording, and those that stand for them in another run.
#[derive(Clone, Debug, Default)]
struct Times([HashMap<[u8; 4], [u8; 4]>; 2]);

impl Times {
    /// Whether two datagrams are equal but for `ts`, and whether one `ts` stands for the other throughout.
    fn is_same(&mut self, recorded: &[u8], sent: &[u8]) -> bool {
        if recorded.len() != sent.len() {
            return false;
        }
        let (mut recorded, mut sent) = (recorded.to_vec(), sent.to_vec());
        let mut at = 0;
        while at + HEADER_LEN <= recorded.len() {
            let ts = |bytes: &[u8]| -> [u8; 4] { bytes[at..][TS].try_into().unwrap() };
            let (a, b) = (ts(&recorded), ts(&sent));
            let Self([there, back]) = self;
            if *there.entry(a).or_insert(b) != b
                || *back.entry(b).or_insert(a) != a
                || (a == [0; 4]) != (b == [0; 4])
            {
                return false;
            }
            let len = u32::from_le_bytes(sent[at + 20..at + 24].try_into().unwrap());
            recorded[at..][TS].fill(0);
            sent[at..][TS].fill(0);
            at += HEADER_LEN + len as usize;
        }
        recorded == sent
    }
}

/// The first row that differs from what was sent; `None` if there is none.
fn difference(recorded: &[Row], sent: &[Row]) -> Option<usize> {
    let mut times = Times::default();
    let is_same = |(recorded, sent): (&Row, &Row)| {
        let same_wire = times.is_same(&unhex(&recorded.wire), &unhex(&sent.wire));
        same_wire && *recorded == Row { wire: recorded.wire.clone(), ..sent.clone() }
    };
    let at = recorded.iter().zip(sent).map(is_same).position(|is_same| !is_same);
    let shorter = recorded.len().min(sent.len());
    at.or_else(|| (recorded.len() != sent.len()).then_some(shorter))
}

/// Rules: W-107, W-113, W-114, W-115, P-37.
#[test]
fn recorded_conversation_over_two_paths_is_sent_again() {
    let Vectors { conv, conversation, .. } = vectors();
    let sent = converse(conv);
    if let Some(at) = difference(&conversation, &sent) {
        for Row { ms, from, to, wire } in &sent {
            println!(
                "  {{\"ms\": {ms}, \"from\": \"{from}\", \"to\": \"{to}\", \"wire\": \"{wire}\"}},"
            );
        }
        panic!("row {at}: {:?} is recorded, {:?} is sent", conversation.get(at), sent.get(at));
    }
    println!("paths.json: {} datagrams ok", sent.len());
}

/// No byte of the recording is without meaning.
#[test]
fn conversation_with_another_byte_differs() {
    let Vectors { conv, conversation, .. } = vectors();
    let sent = converse(conv);
    let mut missed = 0;
    for at in 0..conversation.len() {
        for byte in 0..conversation[at].wire.len() / 2 {
            let mut changed = conversation.clone();
            let mut wire = unhex(&changed[at].wire);
            wire[byte] ^= 1;
            changed[at].wire = hex(&wire);
            // A `ts` that nothing echoes, such as the send time of a lost segment, may have any value.
            let is_ts = TS.contains(&(byte % HEADER_LEN));
            if difference(&changed, &sent).is_none() {
                assert!(is_ts, "byte {byte} of row {at}");
                missed += 1;
            }
        }
    }
    assert!(missed <= 40, "{missed} bytes have any value");
}

/// The segments of the vectors, as the ends of a connection send and accept them.
/// Rules: W-57, W-101, W-107, W-118.
#[test]
fn path_vectors_match() {
    let vectors = vectors();
    let mut times = Times::default();
    let sent = converse(vectors.conv);
    let rows = [
        &vectors.hello,
        &vectors.hello_ack,
        &vectors.path_before_ping,
        &vectors.challenge,
        &vectors.path_before_answer,
    ];
    let mut found = sent.iter();
    for recorded in rows.map(|row| unhex(row)) {
        let mut is_it = |row: &Row| {
            let mut with_it = times.clone();
            let is_it = with_it.is_same(&recorded, &unhex(&row.wire));
            if is_it {
                times = with_it;
            }
            is_it
        };
        assert!(found.any(&mut is_it), "{} is not sent", hex(&recorded));
    }
}

/// Rules: W-31, W-108, W-109, W-118.
#[test]
fn path_of_the_vectors_is_taken() {
    let vectors = vectors();
    let config = config(vectors.conv);
    let mut pair = Pair::seeded(1, &config, &config);
    let mut codec = PacketCodec::new(&config, [9; 32]);
    pair.world.log();
    let mut inject = |pair: &mut Pair, datagram: &[u8]| {
        let (mut tx, now) = (SendBatch::default(), pair.world.now());
        codec.encode(now, &mut tx, Path::to(addr(SERVER)), SendExtras::default(), |tail| {
            tail.extend_from_slice(datagram);
            Written::Other
        });
        codec.seal(&mut tx);
        tx.drain(|_, datagram| pair.world.inject(second(), SERVER, datagram));
        pair.world.run_for(SECOND / 10);
    };
    inject(&mut pair, &unhex(&vectors.path_before_ping));
    let opener = PacketCodec::new(&config, [9; 32]);
    let log = pair.world.log();
    let mut challenge = log.into_iter().find(|sent| sent.to == second()).unwrap().datagram;
    let challenge = opener.open(&mut challenge).unwrap().body.to_vec();
    assert!(
        Times::default().is_same(&unhex(&vectors.challenge), &challenge),
        "{}",
        hex(&challenge)
    );
    // The answer echoes the cookie.
    let mut answer = unhex(&vectors.path_before_answer);
    answer[HEADER_LEN..][TS].copy_from_slice(&challenge[TS]);
    assert_eq!(answer[HEADER_LEN..][SN], challenge[SN]);
    inject(&mut pair, &answer);
    let both = [(PathId(0), PathState::Usable, true), (PathId(1), PathState::Usable, false)];
    assert_eq!(paths(&mut pair, SERVER), both);
}

/// The segments that leave from `end`, with their times in milliseconds.
fn segments_from(codec: &PacketCodec, log: Vec<Sent>, end: &str) -> Vec<(u64, Header)> {
    let rows = log.iter().map(|sent| row(codec, sent)).filter(|row| row.from == end);
    let segments = rows.flat_map(|row| {
        let datagram = unhex(&row.wire);
        Segments::new(&datagram).map(|(header, _)| (row.ms, header)).collect::<Vec<_>>()
    });
    segments.collect()
}

fn is_path(header: &Header) -> bool {
    header.command == Command::Control && header.frg == ControlType::Path as u8
}

fn is_ping(header: &Header) -> bool {
    header.command == Command::Push && header.len == 0
}

/// Rules: W-106, W-117.
#[test]
fn connection_with_one_path_names_none() {
    let config = config(7);
    let codec = PacketCodec::new(&config, [9; 32]);
    let mut pair = two_paths(1, [20, 40], &config);
    messages(&mut pair, 3 * SECOND, Vec::new());
    pair.world.run_for(60 * SECOND);
    let log = pair.world.log();
    assert!(log.iter().all(|sent| sent.from != second() && sent.to != second()));
    let ends = ["client's first", "server"].map(|end| segments_from(&codec, log.clone(), end));
    for segments in ends {
        assert!(segments.len() > 100 && !segments.iter().any(|(_, header)| is_path(header)));
    }
}

/// Rules: W-33, W-111.
#[test]
fn paths_are_pinged_each_5_s_in_use_and_each_15_s_otherwise() {
    let config = config(7);
    let codec = PacketCodec::new(&config, [9; 32]);
    let mut pair = two_paths(1, [20, 40], &config);
    add_path(&mut pair, second()).unwrap();
    messages(&mut pair, 10 * SECOND, Vec::new());
    // Gaps between pings on the second path, in tenths of a second.
    let gaps = |log: Vec<Sent>| {
        let segments = segments_from(&codec, log, "client's second");
        let pings: Vec<_> = segments.iter().filter(|(_, header)| is_ping(header)).collect();
        pings.windows(2).map(|pair| (pair[1].0 - pair[0].0 + 50) / 100).collect::<Vec<_>>()
    };
    pair.world.log();
    messages(&mut pair, 28 * SECOND, Vec::new());
    let busy = gaps(pair.world.log());
    pair.world.run_for(20 * SECOND);
    pair.world.log();
    pair.world.run_for(80 * SECOND);
    let idle = gaps(pair.world.log());
    println!("busy {busy:?}, idle {idle:?}");
    assert!(busy.len() >= 4 && busy.iter().all(|gap| (50..=52).contains(gap)), "{busy:?}");
    assert!(idle.len() >= 4 && idle.iter().all(|gap| (150..=152).contains(gap)), "{idle:?}");
}

/// Rule: W-110.
#[test]
fn data_from_an_unknown_address_moves_no_path_of_several() {
    let mut pair = two_paths(1, [20, 40], &aead());
    add_path(&mut pair, second()).unwrap();
    pair.world.run_for(SECOND);
    let before = paths(&mut pair, SERVER);
    // Data that has not arrived comes from elsewhere.
    cut(&pair.world, [true, false], true);
    pair.world.log();
    pair.client.try_write(b"data").unwrap();
    pair.world.run_for(SECOND / 1_000);
    let sent = pair.world.log().remove(0);
    assert_eq!((sent.from, sent.arrival), (addr(CLIENT), None));
    let elsewhere = addr(99);
    pair.world.port(99);
    pair.world.inject(elsewhere, SERVER, &sent.datagram);
    pair.world.run_for(SECOND / 100);
    assert!(pair.world.arrived(99).is_empty(), "no PATH_CHALLENGE");
    assert_eq!(paths(&mut pair, SERVER), before);
    assert_eq!(pair.server.peer_addr().unwrap(), addr(CLIENT));
}

/// Rule: P-39.
#[test]
fn each_side_chooses_the_path_of_its_own_data() {
    let mut pair = two_paths(1, [50, 60], &aead());
    add_path(&mut pair, second()).unwrap();
    pair.world.run_for(2 * SECOND);
    cut(&pair.world, [true, true], true);
    for _ in 0..50 {
        pair.server.try_write(b"one way").unwrap();
        pair.world.run_for(SECOND / 100);
    }
    let active = |pair: &mut Pair, host| {
        paths(pair, host).into_iter().find(|(.., is_active)| *is_active).unwrap().0
    };
    assert_eq!((active(&mut pair, CLIENT), active(&mut pair, SERVER)), (PathId(0), PathId(1)));
    pair.world.run_for(SECOND / 10);
    assert_eq!(pair.client.try_read(&mut [0; 1_000]).unwrap(), 350);
}

/// Rule: P-40.
#[test]
fn answer_on_a_short_path_is_overdue_after_ten_milliseconds() {
    for seed in 0..5 {
        let mut pair = two_paths(seed, [4, 6], &aead());
        add_path(&mut pair, second()).unwrap();
        pair.world.run_for(2 * SECOND);
        let dies: Event = Box::new(|world| cut(world, [true, true], true));
        let gaps = messages(&mut pair, 2 * SECOND, vec![(1_000_000 + seed * 3_000, dies)]);
        println!("seed {seed}: {gaps:?} ms");
        // A message each 10 ms, the round trip of 4 ms, 10 ms, the way of the other path, and a tick.
        assert!(gaps.iter().all(|gap| *gap <= 32), "{gaps:?}");
    }
}
