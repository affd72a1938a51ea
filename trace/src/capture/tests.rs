//! Frames of each link layer.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::Cursor;

use super::*;
use crate::pcap::ip_packet;

const PAYLOAD: &[u8] = b"a datagram";
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
/// 802.1Q, and 802.1ad around it.
const VLAN: [u8; 2] = [0x81, 0];
const SERVICE_VLAN: [u8; 2] = [0x88, 0xa8];
const TAG: [u8; 2] = [0, 7];

fn ends(is_v6: bool) -> [SocketAddr; 2] {
    let ends = match is_v6 {
        false => ["192.0.2.1:4001", "192.0.2.2:4002"],
        true => ["[2001:db8::1]:4001", "[2001:db8::2]:4002"],
    };
    ends.map(|end| end.parse().unwrap())
}

/// A pcap file of one link type.
fn pcap(link: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut file = words(&[0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 262_144, link]);
    for frame in frames {
        let len = frame.len() as u32;
        file.extend(words(&[1, 2, len, len]));
        file.extend_from_slice(frame);
    }
    file
}

/// A pcapng file of raw IP, with another interface from a frame on.
fn pcapng(frames: &[Vec<u8>], second_from: usize) -> Vec<u8> {
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let block = |type_: u32, body: &[u8]| {
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&type_.to_le_bytes()[..], &len, body, &len].concat()
    };
    let mut file = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    file.extend([101, 101].map(|link| block(1, &words(&[link, 262_144]))).concat());
    for (at, frame) in frames.iter().enumerate() {
        let len = frame.len() as u32;
        let mut body = words(&[u32::from(at >= second_from), 0, 1_000, len, len]);
        body.extend_from_slice(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        file.extend(block(6, &body));
    }
    file
}

/// Counters, and address and payload of each datagram.
fn datagrams(file: Vec<u8>) -> (Frames, Vec<(SocketAddr, SocketAddr, Vec<u8>)>) {
    let mut all = Vec::new();
    let frames = read_from(Cursor::new(file), |packet| {
        assert!(!packet.is_cut);
        all.push((packet.from, packet.to, packet.payload.to_vec()));
        Ok(())
    });
    (frames.unwrap(), all)
}

#[test]
fn frames_of_each_link_layer_have_the_datagram() {
    for is_v6 in [false, true] {
        let [from, to] = ends(is_v6);
        let packet = ip_packet(from, to, PAYLOAD).unwrap();
        let type_ = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
        // AF_INET6 is 30 on macOS.
        let family = [if is_v6 { 30 } else { 2 }, 0, 0, 0];
        let reversed: Vec<u8> = family.iter().rev().copied().collect();
        let sll = [0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0];
        let sll2 = [0, 0, 0, 0, 0, 3, 0, 1, 4, 6, 2, 0, 0, 0, 0, 1, 0, 0];
        let links: [(&str, u32, Vec<&[u8]>); 12] = [
            ("Ethernet", 1, vec![&MACS, &type_]),
            ("Ethernet, VLAN", 1, vec![&MACS, &VLAN, &TAG, &type_]),
            ("Ethernet, two VLANs", 1, vec![&MACS, &SERVICE_VLAN, &TAG, &VLAN, &TAG, &type_]),
            ("Linux cooked", 113, vec![&sll, &type_]),
            ("Linux cooked, VLAN", 113, vec![&sll, &VLAN, &TAG, &type_]),
            ("Linux cooked 2", 276, vec![&type_, &sll2]),
            ("Linux cooked 2, VLAN", 276, vec![&VLAN, &sll2, &TAG, &type_]),
            ("BSD loopback", 0, vec![&family]),
            ("OpenBSD loopback", 108, vec![&reversed]),
            ("raw IP", 101, vec![]),
            ("raw IP of a system", 12, vec![]),
            ("raw IP of one version", if is_v6 { 229 } else { 228 }, vec![]),
        ];
        for (name, link, header) in links {
            let frame = [header.concat(), packet.clone()].concat();
            // Padding follows short packets.
            let padded = [frame.clone(), vec![0; 8]].concat();
            let (frames, all) = datagrams(pcap(link, &[frame, padded]));
            let expected = (from, to, PAYLOAD.to_vec());
            assert_eq!(all, [expected.clone(), expected], "{name}, IPv6 {is_v6}");
            assert_eq!((frames.frames, frames.others), (2, 0), "{name}");
        }
    }
}

/// A bridge and its ports, or the interfaces of a router. Linux "any" has all of them.
#[test]
fn datagrams_of_several_interfaces_are_read_once_and_copies_of_the_sender_each_time() {
    let [from, to] = ends(false);
    let sll = |direction: u8| vec![0, direction, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0];
    let sll2 = |index: u8| vec![8, 0, 0, 0, 0, 0, 0, index, 0, 1, 4, 6, 2, 0, 0, 0, 0, 1, 0, 0];
    let frames = |headers: [Vec<u8>; 2]| -> Vec<Vec<u8>> {
        // The sender sends the first datagram twice, and the second one once.
        let payloads = [&b"one"[..], b"one", b"two"];
        let frame = |header: &Vec<u8>, payload: &[u8]| {
            [header.clone(), ip_packet(from, to, payload).unwrap()].concat()
        };
        headers.iter().flat_map(|header| payloads.map(|payload| frame(header, payload))).collect()
    };
    for file in [
        pcap(113, &frames([sll(3), sll(4)])),
        pcap(276, &frames([sll2(1), sll2(2)])),
        pcapng(&frames([Vec::new(), Vec::new()]), 3),
    ] {
        let (frames, all) = datagrams(file);
        let payloads: Vec<&[u8]> = all.iter().map(|(.., payload)| &payload[..]).collect();
        assert_eq!(payloads, [&b"one"[..], b"one", b"two"]);
        assert_eq!((frames.frames, frames.repeated), (6, 3));
    }
    let (frames, all) = datagrams(pcap(276, &frames([sll2(1), sll2(1)])));
    assert_eq!((all.len(), frames.repeated), (6, 0));
}
