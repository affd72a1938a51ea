//! Captures that are written here, from state machines of kcpx on a path that loses, and what is read from them.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::io::{Cursor, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use etherparse::{IpFragOffset, IpNumber, Ipv4Header};
use kcpx::crypto::{Key, PacketCipher as _};
use kcpx::fec::{FecEncoder, HEADER_LEN};
use kcpx::proto::{self, Kcp, PacketType, Seed, Segments, Sn};
use kcpx::{Algorithm, Cipher, Config, ConnectionStats, FecConfig};

use crate::capture::{Frames, Packet, read_from};
use crate::flow::{Connection, Connections, Event, Push};
use crate::inside::Command;
use crate::layers::{Datagram, Keys, Kind, Layers, Opened};
use crate::pcap::{ip_packet, write_header, write_record};

const CONV: u32 = 0x1234_5678;
const NANOS: u64 = 1_000_000_000;

fn addresses() -> [SocketAddr; 2] {
    [SocketAddr::from(([192, 0, 2, 1], 4_001)), SocketAddr::from(([192, 0, 2, 2], 4_002))]
}

/// A pcap file of IP packets.
fn pcap(packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    write_header(&mut file).unwrap();
    for (at, packet) in packets {
        write_record(&mut file, *at, packet).unwrap();
    }
    file
}

/// The same as pcapng: one interface with microseconds, and each packet in an enhanced block.
fn pcapng(packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let block = |type_: u32, body: &[u8]| {
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&type_.to_le_bytes()[..], &len, body, &len].concat()
    };
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut file = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    file.extend(block(1, &words(&[101, 262_144])));
    for (at, packet) in packets {
        let (micros, len) = (at / 1_000, packet.len() as u32);
        let mut body = words(&[0, (micros >> 32) as u32, micros as u32, len, len]);
        body.extend_from_slice(packet);
        body.resize(body.len().next_multiple_of(4), 0);
        file.extend(block(6, &body));
    }
    file
}

/// No cipher unless one is named, whose passphrase is "secret".
fn keys(crypt: Algorithm) -> Keys {
    let has_key = ![Algorithm::Null, Algorithm::None].contains(&crypt);
    Keys { crypt, key: has_key.then(|| "secret".to_owned()), key_hex: None, salt: None }
}

struct Outcome {
    frames: Frames,
    opened: Opened,
    connections: Vec<Connection>,
    events: Vec<Event>,
}

fn read(file: Vec<u8>, keys: &Keys) -> Result<Outcome> {
    let (mut layers, mut connections, mut events) =
        (Layers::new(keys)?, Connections::default(), Vec::new());
    let frames = read_from(Cursor::new(file), |packet| {
        layers.open(&packet, |datagram| {
            connections.input(datagram, |_, seen| events.push(seen.event));
            Ok(())
        })
    })?;
    connections.finish();
    Ok(Outcome { frames, opened: layers.counters, connections: connections.all, events })
}

/// A transfer on a path of 40 ms that loses one datagram in `loses`, captured where it leaves the sender.
fn transfer(
    loses: u64,
    seal: &mut dyn FnMut(usize, Vec<u8>) -> Vec<Vec<u8>>,
) -> (Vec<(u64, Vec<u8>)>, [ConnectionStats; 2]) {
    transfer_of([Bytes::from(vec![7; 400_000]), Bytes::new()], loses, seal)
}

/// The same, of what each side has to say. The second one waits for the first byte.
fn transfer_of(
    mut unsent: [Bytes; 2],
    loses: u64,
    seal: &mut dyn FnMut(usize, Vec<u8>) -> Vec<Vec<u8>>,
) -> (Vec<(u64, Vec<u8>)>, [ConnectionStats; 2]) {
    let missing = |unsent: &[Bytes; 2]| unsent[0].len() + unsent[1].len();
    let (whole, mut received) = (missing(&unsent), [0, 0]);
    let start = Instant::now();
    let config = Config::new();
    let new = || Kcp::new(CONV, &config, start, Seed::default()).unwrap();
    let (mut ends, mut now) = ([new(), new()], start);
    let (mut under_way, mut sent) = (BTreeMap::new(), 0_u64);
    let mut packets = Vec::new();
    while received[0] + received[1] < whole || !ends.iter().all(Kcp::is_drained) {
        for from in 0..2 {
            let capacity = ends[from].send_capacity().min(unsent[from].len());
            if from == 0 || received[1] > 0 {
                ends[from].send(now, unsent[from].split_to(capacity));
            }
            while let Some(chunk) = ends[from].recv() {
                received[from] += chunk.len();
            }
        }
        for from in 0..2 {
            let mut datagram = Vec::new();
            while ends[from].poll_transmit(now, &mut datagram).is_some() {
                sent += 1;
                let datagram = std::mem::take(&mut datagram);
                for packet in seal(from, datagram.clone()) {
                    let path = addresses();
                    let packet = ip_packet(path[from], path[1 - from], &packet).unwrap();
                    packets.push((NANOS + (now - start).as_nanos() as u64, packet));
                }
                if !sent.is_multiple_of(loses) {
                    under_way.insert((now + Duration::from_millis(20), sent), (1 - from, datagram));
                }
            }
        }
        let arrival = under_way.first_key_value().map(|((at, _), _): (&(Instant, u64), _)| *at);
        let next = arrival.into_iter().chain(ends.iter().filter_map(Kcp::poll_timeout)).min();
        now = next.unwrap().max(now);
        while let Some(entry) = under_way.first_entry()
            && entry.key().0 <= now
        {
            let (to, datagram): (usize, Vec<u8>) = entry.remove();
            ends[to].input(now, &datagram, PacketType::Regular).unwrap();
        }
        ends.iter_mut().for_each(|end| end.handle_timeout(now));
    }
    (packets, ends.each_ref().map(Kcp::stats))
}

fn plain(_: usize, datagram: Vec<u8>) -> Vec<Vec<u8>> {
    vec![datagram]
}

/// In the notation of [`transfer`].
fn sealing(algorithm: Algorithm) -> impl FnMut(usize, Vec<u8>) -> Vec<Vec<u8>> {
    let cipher =
        Cipher::from_name(algorithm.name(), &Key::derive("secret", Key::KCPTUN_SALT)).unwrap();
    let mut nonce = 0_u64;
    move |_, datagram| {
        nonce += 1;
        let overhead = cipher.overhead();
        let mut packet = vec![0; overhead.header_len];
        let len = overhead.nonce.min(8);
        packet[..len].copy_from_slice(&nonce.to_le_bytes()[..len]);
        packet.extend_from_slice(&datagram);
        packet.resize(packet.len() + overhead.trailer_len, 0);
        cipher.seal(&mut [&mut packet]);
        vec![packet]
    }
}

#[test]
fn summary_agrees_with_the_counters_of_the_connection() {
    let (packets, [sender, receiver]) = transfer(13, &mut plain);
    for file in [pcap(&packets), pcapng(&packets)] {
        let outcome = read(file, &keys(Algorithm::Null)).unwrap();
        assert_eq!(outcome.frames.frames, packets.len() as u64);
        assert_eq!((outcome.opened.undecoded, outcome.connections.len()), (0, 1));
        let Connection { id, sides: [a, b], .. } = &outcome.connections[0];
        assert_eq!((id.conv, [id.a, id.b]), (CONV, addresses()));
        assert_eq!((a.segments, a.payload), (sender.sent.segments, 400_000));
        assert!(sender.retransmits() > 10, "{sender:?}");
        // Several copies of a retransmission leave in one millisecond.
        assert_eq!(a.retransmissions + a.copies, sender.retransmits());
        assert_eq!(a.not_captured, 0);
        assert_eq!((b.segments, b.retransmissions), (0, receiver.retransmits()));
        assert!(b.acks > 0 && a.rtt.samples > 0, "{a:?} {b:?}");
        // The capture has each datagram where it leaves: half of the round trip.
        assert!((20_000..25_000).contains(&a.rtt.min_us), "{:?}", a.rtt);
    }
}

/// A capture that begins late has no acknowledgement of what was sent before.
#[test]
fn capture_that_begins_late_has_no_more_in_flight_and_needless_than_the_whole_one() {
    let said = [Bytes::from(vec![7; 400_000]), Bytes::from(vec![7; 100_000])];
    let (packets, _) = transfer_of(said, 13, &mut plain);
    let read = |packets: &[_]| read(pcap(packets), &keys(Algorithm::Null)).unwrap();
    let whole = read(&packets);
    let sides = &whole.connections[0].sides;
    assert!(sides[0].retransmissions > 10, "{sides:?}");
    let [a, b] = addresses();
    for skipped in (0..packets.len()).step_by(23) {
        // PUSH, 2^30 behind, of 8 bytes, with the `una` of the datagram before.
        let is_a = |(_, packet): &&(u64, Vec<u8>)| packet[12..16] == [192, 0, 2, 1];
        let before = packets[..skipped].iter().rfind(is_a).unwrap_or(&packets[0]);
        let mut probe = CONV.to_le_bytes().to_vec();
        probe.extend([81, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0xc0]);
        probe.extend_from_slice(&before.1[28 + 16..28 + 20]);
        probe.extend([8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let probe = ip_packet(a, b, &probe).unwrap();
        let outcome = read(&[&[(NANOS, probe)], &packets[skipped..]].concat());
        let Connection { id, sides: [a, b], .. } = &outcome.connections[0];
        for (from, side) in [(id.a, a), (id.b, b)] {
            let same = &sides[usize::from(from != whole.connections[0].id.a)];
            assert!(side.max_in_flight <= same.max_in_flight, "{skipped}: {side:?}");
            assert!(side.spurious <= same.spurious, "{skipped}: {side:?}");
        }
        assert_eq!(a.mtu_probes, 1, "{skipped}");
    }
}

#[test]
fn every_cipher_is_opened_and_a_wrong_key_opens_nothing() {
    for algorithm in Algorithm::ALL {
        let (packets, _) = transfer(1_000_000, &mut sealing(*algorithm));
        let outcome = read(pcap(&packets), &keys(*algorithm)).unwrap();
        assert_eq!(outcome.opened.undecoded, 0, "{algorithm}");
        assert_eq!(outcome.connections[0].sides[0].payload, 400_000, "{algorithm}");
        if let Some(passphrase) = keys(*algorithm).key {
            let wrong = Keys { key: Some(passphrase + "?"), ..keys(*algorithm) };
            let outcome = read(pcap(&packets), &wrong).unwrap();
            let opened = outcome.opened;
            assert_eq!(
                (opened.undecoded, opened.datagrams),
                (packets.len() as u64, packets.len() as u64),
                "{algorithm}"
            );
            assert!(outcome.connections.is_empty(), "{algorithm}");
        }
    }
}

#[test]
fn batches_that_the_system_sends_in_one_piece_are_taken_apart() {
    let mut seal = sealing(Algorithm::Aes128Gcm);
    let (packets, _) = transfer(1_000_000, &mut |from, datagram| seal(from, datagram));
    // The payloads of one direction that have one size and follow each other become one packet.
    let mut merged: Vec<(u64, Vec<u8>)> = Vec::new();
    let [a, b] = addresses();
    let mut batch: Vec<u8> = Vec::new();
    let mut size = 0;
    for (at, packet) in &packets {
        let (is_a, payload) = (packet[12..16] == [192, 0, 2, 1], &packet[28..]);
        let fits = is_a && payload.len() == size && batch.len() + size < 60_000;
        if !fits && !batch.is_empty() {
            merged.push((*at, ip_packet(a, b, &std::mem::take(&mut batch)).unwrap()));
        }
        if is_a {
            size = payload.len();
            batch.extend_from_slice(payload);
        } else {
            merged.push((*at, packet.clone()));
        }
    }
    if !batch.is_empty() {
        merged.push((2 * NANOS, ip_packet(a, b, &batch).unwrap()));
    }
    assert!(merged.len() < packets.len());
    let outcome = read(pcap(&merged), &keys(Algorithm::Aes128Gcm)).unwrap();
    assert_eq!((outcome.opened.undecoded, outcome.opened.datagrams), (0, packets.len() as u64));
    assert!(outcome.opened.batched > 0);
    assert_eq!(outcome.connections[0].sides[0].payload, 400_000);
}

/// The datagram with its FEC header, if its seqid is kept, and the parity that is due.
fn protected(
    encoder: &mut FecEncoder,
    now: Instant,
    datagram: &[u8],
    is_kept: impl FnOnce(u32) -> bool,
) -> Vec<Vec<u8>> {
    let mut packet = [&[0; HEADER_LEN][..], datagram].concat();
    let parity = encoder.seal(now, &mut packet);
    let seqid = u32::from_le_bytes(*packet.first_chunk().unwrap());
    let mut sent = if is_kept(seqid) { vec![packet] } else { Vec::new() };
    for index in 0..parity {
        let mut packet = Vec::new();
        encoder.emit_parity(index, &mut packet);
        sent.push(packet);
    }
    sent
}

#[test]
fn segments_that_the_capture_lacks_are_recovered_by_fec() {
    let layout = FecConfig::new(4, 2).unwrap();
    let mut encoders = [FecEncoder::new(layout), FecEncoder::new(layout)];
    let start = Instant::now();
    let mut count = 0_u64;
    let (packets, _) = transfer(1_000_000, &mut |from, datagram| {
        count += 1;
        // The capture begins after the layout can be learned, and misses one packet in ten.
        let is_kept = count < 40 || !count.is_multiple_of(10);
        protected(&mut encoders[from], start, &datagram, |_| is_kept)
    });
    let outcome = read(pcap(&packets), &keys(Algorithm::Null)).unwrap();
    let sent = &outcome.connections[0].sides[0];
    assert_eq!(outcome.opened.undecoded, 0);
    assert!(outcome.opened.recovered > 0 && sent.recovered > 0 && sent.parity > 0, "{sent:?}");
    assert!(
        outcome
            .events
            .iter()
            .any(|event| matches!(event, Event::Push { why: Push::Recovered, .. }))
    );
}

#[test]
fn segments_are_recovered_from_the_first_group_on() {
    let layout = FecConfig::new(4, 2).unwrap();
    let mut encoders = [FecEncoder::new(layout), FecEncoder::new(layout)];
    let start = Instant::now();
    let (packets, _) = transfer(1_000_000, &mut |from, datagram| {
        // The third data packet of the first group is lost, and of every fifth one.
        protected(&mut encoders[from], start, &datagram, |seqid| seqid % 30 != 2)
    });
    let outcome = read(pcap(&packets), &keys(Algorithm::Null)).unwrap();
    let sent = &outcome.connections[0].sides[0];
    assert_eq!((sent.payload, sent.not_captured), (400_000, 0), "{sent:?}");
    assert!(sent.recovered * 30 > sent.segments, "{sent:?}");
}

#[test]
fn damaged_files_end_in_an_error_or_in_what_was_read_before() {
    assert!(read(Vec::new(), &keys(Algorithm::Null)).is_err());
    assert!(
        read(
            b"no capture at all, though long enough for a header".to_vec(),
            &keys(Algorithm::Null)
        )
        .is_err()
    );
    let (packets, _) = transfer(1_000_000, &mut plain);
    for whole in [pcap(&packets), pcapng(&packets)] {
        for len in [whole.len() - 1, whole.len() / 2 + 3, whole.len() / 3] {
            let outcome = read(whole[..len].to_vec(), &keys(Algorithm::Null)).unwrap();
            assert!(outcome.frames.is_truncated, "{len} bytes");
            assert!(
                outcome.frames.frames > 0 && outcome.frames.frames < packets.len() as u64,
                "{len} bytes"
            );
        }
        for at in (0..whole.len()).step_by(1_009) {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            let _ = read(changed, &keys(Algorithm::Null));
        }
    }
}

#[test]
fn datagrams_in_ip_fragments_are_put_together() {
    let (packets, _) = transfer(1_000_000, &mut plain);
    let fragments = |(at, packet): &(u64, Vec<u8>)| {
        let payload = &packet[20..];
        let middle = (payload.len() / 2).next_multiple_of(8).min(payload.len());
        let (one, other) = payload.split_at(middle);
        let part = |offset: usize, more: bool, bytes: &[u8]| {
            let mut header = Ipv4Header::new(
                bytes.len() as u16,
                64,
                IpNumber::UDP,
                [192, 0, 2, 1],
                [192, 0, 2, 2],
            )
            .unwrap();
            header.source.copy_from_slice(&packet[12..16]);
            header.destination.copy_from_slice(&packet[16..20]);
            header.identification = (*at % 65_536) as u16;
            (header.dont_fragment, header.more_fragments) = (false, more);
            header.fragment_offset = IpFragOffset::try_new((offset / 8) as u16).unwrap();
            (*at, [&header.to_bytes()[..], bytes].concat())
        };
        [part(0, true, one), part(middle, false, other)]
    };
    let large = |packet: &&(u64, Vec<u8>)| packet.1.len() > 1_000;
    // One at a time has a number of its own.
    let mut seen = std::collections::HashSet::new();
    let split: Vec<_> = packets
        .iter()
        .filter(large)
        .filter(|(at, _)| seen.insert(at % 65_536))
        .flat_map(fragments)
        .collect();
    let outcome = read(pcap(&split), &keys(Algorithm::Null)).unwrap();
    assert_eq!(outcome.frames.fragments, split.len() as u64);
    assert_eq!(outcome.opened.datagrams, split.len() as u64 / 2);
    assert_eq!(outcome.opened.undecoded, 0);
    // Fragments that nothing follows are forgotten.
    let lost: Vec<_> = (0..20_000)
        .map(|count| {
            let mut first = split[0].1.clone();
            first[4..6].copy_from_slice(&(count as u16).to_be_bytes());
            (NANOS, first)
        })
        .collect();
    let outcome = read(pcap(&lost), &keys(Algorithm::Null)).unwrap();
    assert_eq!((outcome.frames.fragments, outcome.opened.datagrams), (20_000, 0));
}

/// A capture of one direction alone has no ACKs.
#[test]
fn segments_without_acks_have_a_limit_over_all_connections() {
    const SEGMENTS: u32 = 2_000;
    let (mut connections, [a, b]) = (Connections::default(), addresses());
    let segment = |conv: u32, sn: u32| {
        let mut bytes = conv.to_le_bytes().to_vec();
        // PUSH, a window of 256; no time, una and length.
        bytes.extend([81, 0, 0, 1, 0, 0, 0, 0]);
        bytes.extend(sn.to_le_bytes());
        bytes.extend([0; 8]);
        bytes
    };
    for conv in 1..=20 {
        for first in (0..60_000).step_by(SEGMENTS as usize) {
            let numbers = first..first + SEGMENTS;
            let bytes: Vec<u8> = numbers.flat_map(|sn| segment(conv, sn)).collect();
            let kind = Kind::Kcp(None);
            let (opened, wire_len) = (bytes.as_slice(), bytes.len());
            let whole = Datagram { at: 0, from: a, to: b, kind, bytes: &bytes, opened, wire_len };
            connections.input(&whole, |_, _| {});
        }
        connections.check_invariants();
    }
    assert_eq!(connections.forgotten, 20 * 60_000 - (1 << 20));
    assert!(connections.all.iter().all(|connection| connection.sides[0].segments == 60_000));
}

/// With a wrong key no batch is found, and a search costs over a thousand attempts.
#[test]
fn number_of_searches_for_a_batch_is_limited() {
    let (packets, _) = transfer(200_000, &mut sealing(Algorithm::Aes128Gcm));
    // IP and UDP have 28 bytes.
    let full = packets.iter().map(|(_, packet)| &packet[28..]).filter(|kcp| kcp.len() > 1_000);
    let batch: Vec<u8> = full.take(2).flatten().copied().collect();
    let mut layers = Layers::new(&keys(Algorithm::Aes128Gcm)).unwrap();
    let mut open = |port: u16, payload: &[u8]| {
        let [from, to] = addresses();
        let from = SocketAddr::new(from.ip(), port);
        let packet = Packet { at: 0, from, to, payload, is_cut: false };
        layers.open(&packet, |_| Ok(())).unwrap();
        (layers.counters.batched, layers.counters.undecoded)
    };
    assert_eq!(open(1, &batch), (2, 0));
    for port in 2..=1_024 {
        open(port, &[0; 64]);
    }
    assert_eq!(open(1_025, &batch), (4, 1_023), "one search is left");
    for port in 2_000..2_000 + 1_024 {
        open(port, &[0; 64]);
    }
    assert_eq!(open(4_000, &batch), (4, 1_023 + 1_024 + 1));
    assert_eq!(open(1, &batch).0, 6, "the size on this path is known");
}

/// The sender's side has the ACK before the parity of the group.
#[test]
fn segment_that_fec_recovers_behind_its_ack_is_no_missing_one() {
    let (mut connections, [a, b]) = (Connections::default(), addresses());
    let mut input = |from_a: bool, kind: Kind, command: u8, sn: u32, una: u32, payload: &[u8]| {
        let mut bytes = CONV.to_le_bytes().to_vec();
        bytes.extend([command, 0, 0, 1, 0, 0, 0, 0]);
        let len = payload.len() as u32;
        bytes.extend([sn, una, len].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend_from_slice(payload);
        let (from, to) = if from_a { (a, b) } else { (b, a) };
        let (opened, wire_len) = (bytes.as_slice(), bytes.len());
        let datagram = Datagram { at: 0, from, to, kind, bytes: &bytes, opened, wire_len };
        connections.input(&datagram, |_, _| {});
    };
    for sn in [0, 1, 3, 5] {
        input(true, Kind::Kcp(None), 81, sn, 0, b"data");
    }
    input(false, Kind::Kcp(None), 82, 5, 6, b"");
    input(true, Kind::Recovered, 81, 2, 0, b"recovered");
    // Twice, and one that the capture has.
    input(true, Kind::Recovered, 81, 2, 0, b"recovered");
    input(true, Kind::Recovered, 81, 3, 0, b"data");
    let sent = &connections.all[0].sides[0];
    assert_eq!((sent.segments, sent.payload, sent.recovered), (5, 25, 1), "{sent:?}");
    assert_eq!((sent.not_captured, sent.copies), (1, 2), "{sent:?}");
}

#[test]
fn numbers_before_the_capture_and_numbers_of_a_rst_are_not_missed() {
    let (mut connections, [a, b]) = (Connections::default(), addresses());
    let mut input = |from_a: bool, [command, frg]: [u8; 2], sn: u32, una: u32| {
        let mut bytes = CONV.to_le_bytes().to_vec();
        bytes.extend([command, frg, 0, 1, 0, 0, 0, 0]);
        bytes.extend([sn, una, 0].iter().flat_map(|word| word.to_le_bytes()));
        let (from, to) = if from_a { (a, b) } else { (b, a) };
        let (kind, opened, wire_len) = (Kind::Kcp(None), bytes.as_slice(), bytes.len());
        let datagram = Datagram { at: 0, from, to, kind, bytes: &bytes, opened, wire_len };
        connections.input(&datagram, |_, _| {});
    };
    // B has 100 segments, and 50 are under way when the capture begins.
    input(false, [82, 0], 99, 100);
    input(true, [81, 0], 150, 0);
    input(false, [82, 0], 150, 151);
    // CONTROL, RST.
    input(false, [85, 3], 0, 500);
    // B's datagram was the first one.
    let sent = &connections.all[0].sides[1];
    assert_eq!((sent.segments, sent.not_captured, sent.max_in_flight), (1, 0, 51), "{sent:?}");
}

#[test]
fn keys_that_make_no_sense_are_errors_that_say_so() {
    let error = |keys: Keys| Layers::new(&keys).err().unwrap().to_string();
    let none = Keys { crypt: Algorithm::Aes128, key: None, key_hex: None, salt: None };
    assert_eq!(error(none.clone()), "cipher aes-128 needs --key or --key-hex");
    let unused = Keys { crypt: Algorithm::Null, key: Some("x".into()), ..none.clone() };
    assert!(error(unused).contains("--crypt aes"));
    let odd = Keys { key_hex: Some("0f0".into()), ..none.clone() };
    assert!(error(odd).contains("pairs of hexadecimal digits"));
    let short = Keys { key_hex: Some("0f".into()), ..none };
    assert!(error(short).contains("16"));
}

/// A frame of smux.
fn frame(version: u8, command: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16).to_le_bytes();
    [&[version, command, len[0], len[1], stream, 0, 0, 0][..], payload].concat()
}

/// Bytes that no compression makes fewer.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// What two sides say: three streams, of which the server closes the second one and no side the third one.
fn sessions(version: u8) -> [Vec<u8>; 2] {
    let update = [&9_000_u32.to_le_bytes()[..], &65_536_u32.to_le_bytes()].concat();
    let mut client = frame(version, 3, 0, &[]);
    let mut server = Vec::new();
    for stream in [3, 5, 7] {
        client.extend(frame(version, 0, stream, &[]));
        for size in [1, 1_000, 60_000] {
            client.extend(frame(version, 2, stream, &noise(size)));
        }
        server.extend(frame(version, 2, stream, &noise(50_000)));
        if version == 2 {
            server.extend(frame(version, 4, stream, &update));
        }
    }
    client.extend(frame(version, 1, 3, &[]));
    server.extend([frame(version, 1, 3, &[]), frame(version, 1, 5, &[])].concat());
    [client, server]
}

/// As kcptun does: each write is flushed.
fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = snap::write::FrameEncoder::new(Vec::new());
    for written in bytes.chunks(10_000) {
        encoder.write_all(written).unwrap();
        encoder.flush().unwrap();
    }
    encoder.into_inner().unwrap()
}

#[test]
fn streams_of_smux_are_told_apart_in_both_versions_and_through_compression() {
    for (version, is_compressed) in [(1, false), (2, false), (1, true), (2, true)] {
        let said = sessions(version);
        let said = if is_compressed { said.map(|bytes| compressed(&bytes)) } else { said };
        let (packets, stats) = transfer_of(said.map(Bytes::from), 13, &mut plain);
        assert!(stats[0].retransmits() > 0, "segments arrive in another order");
        let outcome = read(pcap(&packets), &keys(Algorithm::Null)).unwrap();
        let smux = outcome.connections[0].inside.smux.as_ref().unwrap();
        assert_eq!(
            (smux.version, smux.is_compressed, smux.is_incomplete),
            (version, is_compressed, false)
        );
        assert_eq!((smux.opened, smux.bytes, smux.keepalives), (3, [183_003, 150_000], [1, 0]));
        let streams: Vec<_> = smux
            .streams
            .iter()
            .map(|stream| {
                (stream.id, stream.opened_by, stream.bytes, stream.closed_by.is_some(), stream.fins)
            })
            .collect();
        let bytes = [61_001, 50_000];
        assert_eq!(
            streams,
            [
                (3, 0, bytes, true, [true, true]),
                (5, 0, bytes, true, [false, true]),
                (7, 0, bytes, false, [false, false])
            ]
        );
        assert_eq!(smux.streams[1].closed_by, Some(1));
        let count = |wanted: Command| {
            let frames = outcome.events.iter();
            frames
                .filter(|event| matches!(event, Event::Smux(frame) if frame.command == wanted))
                .count()
        };
        let wanted = [Command::Nop, Command::Syn, Command::Psh, Command::Fin, Command::Upd];
        assert_eq!(wanted.map(count), [1, 3, 12, 3, if version == 2 { 3 } else { 0 }]);
        let update = outcome.events.iter().find_map(|event| match event {
            Event::Smux(frame) => frame.consumed.zip(frame.window),
            _ => None,
        });
        assert_eq!(update, (version == 2).then_some((9_000, 65_536)));
    }
}

#[test]
fn smux_with_a_gap_or_damage_is_shown_up_to_there() {
    // A segment is in no packet of the capture.
    let said = sessions(1).map(Bytes::from);
    let (packets, _) = transfer_of(said, 1_000_000, &mut plain);
    let has_60 = |packet: &[u8]| {
        let mut segments = Segments::new(&packet[28..]);
        segments.any(|(header, _)| header.command == proto::Command::Push && header.sn == Sn(60))
    };
    let kept: Vec<_> = packets.into_iter().filter(|(_, packet)| !has_60(packet)).collect();
    let outcome = read(pcap(&kept), &keys(Algorithm::Null)).unwrap();
    let smux = outcome.connections[0].inside.smux.as_ref().unwrap();
    assert!(smux.is_incomplete && (1..3).contains(&smux.opened), "{smux:?}");
    // A chunk's checksum is wrong, and a frame has another version.
    let mut chunk = compressed(&sessions(1)[0]);
    let last = chunk.len() - 1;
    chunk[last] ^= 1;
    let mut version = sessions(1)[0].clone();
    version.extend(frame(2, 0, 9, &[]));
    for damaged in [chunk, version] {
        let said = [Bytes::from(damaged), Bytes::new()];
        let (packets, _) = transfer_of(said, 1_000_000, &mut plain);
        let outcome = read(pcap(&packets), &keys(Algorithm::Null)).unwrap();
        let smux = outcome.connections[0].inside.smux.as_ref().unwrap();
        assert!(smux.is_incomplete && smux.opened == 3, "{smux:?}");
    }
}

#[test]
fn other_bytes_are_no_smux() {
    let (packets, _) = transfer(1_000_000, &mut plain);
    let outcome = read(pcap(&packets), &keys(Algorithm::Null)).unwrap();
    assert!(outcome.connections[0].inside.smux.is_none());
}
