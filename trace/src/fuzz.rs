//! The body of the fuzz target `capture`.

#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a panic is how a target fails"
)]

use std::io::{Cursor, sink};
use std::net::SocketAddr;

use kcpx::Algorithm;

use crate::capture::read_from;
use crate::decrypt::write_opened;
use crate::flow::{Connections, Seen, Sent};
use crate::layers::{Keys, Kind, Layers, Opened};
use crate::pcap::{ip_packet, write_header, write_record};
use crate::{Read, graph, summary};

/// Bytes of a segment in an input that is no file.
const RECORD: usize = 16;
/// Commands of KCP and of kcpx, and one that is none.
const COMMANDS: [u8; 8] = [81, 81, 81, 82, 83, 84, 85, 86];
const NANOS: u64 = 1_000_000_000;

/// A capture file, or the segments of one: by the first byte.
pub fn capture(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let file = if first % 2 == 0 { rest.to_vec() } else { file_of(rest) };
    let keys = Keys { crypt: Algorithm::Null, key: None, key_hex: None, salt: None };
    let Some((read, first_connection)) = read(&file, &keys) else { return };
    check(&read);
    summary::print(&mut sink(), &read, 3).expect("a sink takes all");
    summary::json(&mut sink(), &read).expect("a sink takes all");
    if let Some(connection) = read.connections.all.first() {
        for side in 0..2 {
            let svg = graph::figure(connection, side, &first_connection).svg();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "places are numbers");
        }
    }
    check_decrypted(&file, &keys, &read.opened);
}

/// The capture, and the segments of its first connection.
fn read(file: &[u8], keys: &Keys) -> Option<(Read, Vec<Seen>)> {
    let mut layers = Layers::new(keys).expect("no key is needed");
    let (mut connections, mut seen) = (Connections::default(), Vec::new());
    let mut decoded = 0;
    let frames = read_from(Cursor::new(file.to_vec()), |packet| {
        layers.open(&packet, |datagram| {
            decoded += u64::from(datagram.kind != Kind::Recovered);
            connections.input(datagram, |index, segment| {
                serde_json::to_writer(sink(), segment).expect("a sink takes all");
                if index == 0 {
                    seen.push(*segment);
                }
            });
            Ok(())
        })
    });
    connections.finish();
    let opened = layers.counters;
    assert_eq!(decoded + opened.undecoded + opened.cut, opened.datagrams);
    Some((Read { frames: frames.ok()?, opened, connections }, seen))
}

fn check(read: &Read) {
    read.connections.check_invariants();
    for connection in &read.connections.all {
        assert!(connection.began_ns <= connection.last_ns);
        connection.sides.iter().for_each(check_side);
        if let Some(smux) = &connection.inside.smux {
            for side in 0..2 {
                let sum: u64 = smux.streams.iter().map(|stream| stream.bytes[side]).sum();
                assert!(sum <= smux.bytes[side]);
            }
            assert!(smux.streams.len() as u64 <= smux.opened);
        }
    }
}

fn check_side(sent: &Sent) {
    assert!(sent.spurious <= sent.retransmissions, "{sent:?}");
    assert!(sent.repaired_acks <= sent.acks, "{sent:?}");
    assert!(sent.recovered <= sent.segments, "{sent:?}");
    assert!(sent.recovered > 0 || sent.payload <= sent.bytes, "{sent:?}");
}

/// The capture without cipher has all datagrams that could be opened, and these can be opened again.
fn check_decrypted(file: &[u8], keys: &Keys, opened: &Opened) {
    let (mut layers, mut decrypted) = (Layers::new(keys).expect("no key is needed"), Vec::new());
    write_header(&mut decrypted).expect("a vector takes all");
    let written = read_from(Cursor::new(file.to_vec()), |packet| {
        write_opened(&mut layers, &packet, &mut decrypted)
    });
    written.expect("it was read before");
    let (again, _) = read(&decrypted, keys).expect("it was written here");
    let expected = opened.datagrams - opened.undecoded - opened.cut;
    assert_eq!((again.opened.datagrams, again.opened.undecoded), (expected, 0));
}

/// A file of datagrams, each of the segments up to the next record that ends one.
fn file_of(records: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    write_header(&mut file).expect("a vector takes all");
    let ends = [1, 2].map(|last| SocketAddr::from(([192, 0, 2, last], 4_000)));
    let (mut datagrams, mut next) = ([Vec::new(), Vec::new()], [0_u32; 2]);
    for (at, record) in (0_u64..).zip(records.chunks(RECORD)) {
        let mut whole = [0; RECORD];
        whole[..record.len()].copy_from_slice(record);
        let [flags, command, sn, una, wnd, ts, frg, len, payload @ ..] = whole;
        let side = usize::from(flags & 1);
        let command = COMMANDS[usize::from(command) % COMMANDS.len()];
        let payload = &payload[..usize::from(len) % (payload.len() + 1)];
        // Most segments are the next one.
        let sn = next[side].wrapping_add_signed(i32::from(sn.cast_signed()));
        let una = next[1 - side].wrapping_add_signed(i32::from(una.cast_signed()));
        if command == 81 {
            next[side] = sn.wrapping_add(1);
        }
        let datagram = &mut datagrams[side];
        datagram.extend_from_slice(&u32::from(flags >> 2 & 3).to_le_bytes());
        datagram.extend_from_slice(&[command, frg, wnd, 0]);
        for field in [u32::from(ts), sn, una, payload.len() as u32] {
            datagram.extend_from_slice(&field.to_le_bytes());
        }
        datagram.extend_from_slice(payload);
        if flags & 2 == 0 {
            let packet = ip_packet(ends[side], ends[1 - side], &std::mem::take(datagram));
            let packet = packet.expect("it is short");
            write_record(&mut file, NANOS + at * 1_000_000, &packet).expect("a vector takes all");
        }
    }
    file
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

    use super::*;

    /// Inputs kept beside the target; the published package has none.
    #[test]
    fn capture_holds_invariants_for_inputs_that_failed_or_reach_something() {
        for kind in ["seeds", "minimised"] {
            let folder = format!("{}/../fuzz/{kind}/capture", env!("CARGO_MANIFEST_DIR"));
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                println!("{}", path.display());
                capture(&std::fs::read(path).unwrap());
            }
        }
    }

    #[test]
    fn capture_holds_invariants_for_any_segments() {
        for seed in 0..100_u64 {
            println!("seed {seed}");
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                (state >> 40) as u8
            };
            let mut input = vec![1];
            for _ in 0..60 {
                let mut record: [u8; RECORD] = std::array::from_fn(|_| next());
                // Near the next number, one conversation, and smux.
                (record[0], record[2], record[3]) = (record[0] & 3, record[2] % 3, record[3] % 8);
                if !record[8].is_multiple_of(4) {
                    (record[7], record[8], record[9], record[12]) = (8, 1, record[9] % 5, 3);
                    record[10..12].fill(0);
                    record[13..].fill(0);
                }
                input.extend(record);
            }
            capture(&input);
        }
    }
}
