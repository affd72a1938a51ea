//! Malformed, truncated and random datagrams, under "Decode As", which hands all of them to the dissector.

use crate::bytes::{
    ACK, CONTROL, CONV, PUSH, REPAIR, Random, Segment, fec_data, fec_parity, segment,
};
use crate::capture::{Capture, From};
use crate::tshark::Tshark;

fn push(sn: u32, payload: &'static [u8]) -> Vec<u8> {
    Segment { sn, payload, ..Segment::default() }.bytes()
}

#[test]
fn malformed_datagrams_say_where() {
    let Some(tshark) = Tshark::find() else { return };
    let tshark = tshark.decode_as();
    let good = push(0, b"hello");
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let of_len = |len: u32| {
        let mut bytes = good.clone();
        bytes[20..24].copy_from_slice(&len.to_le_bytes());
        bytes
    };
    let mut fec_size = fec_data(3, &good);
    fec_size[6] = 200;
    let cases = [
        ("Not plain KCP", b"hello".to_vec()),
        ("Not plain KCP", with(4, 80)),
        ("Not plain KCP", vec![0; 1_400]),
        ("A segment has at least 24 bytes, 23 are left", good[..23].to_vec()),
        ("Payload of 5 bytes, but 4 are left", good[..28].to_vec()),
        ("Payload of 6 bytes, but 5 are left", of_len(6)),
        ("Payload of 4294967295 bytes, but 5 are left", of_len(u32::MAX)),
        ("Payload of 2147483648 bytes, but 5 are left", of_len(0x8000_0000)),
        ("Unknown command 87", [good.clone(), with(4, 87)].concat()),
        ("Segments of several conversations", [good.clone(), with(0, 1)].concat()),
        ("Bytes behind the last segment", [good.clone(), vec![0; 23]].concat()),
        ("The size is 200, but 31 bytes follow", fec_size),
        ("A segment has at least 24 bytes, 4 are left", fec_data(3, b"abcd")),
        ("The conversation is missing", vec![255, 255, 255, 255, 0xF3, 0, 4, 0, 1, 2]),
    ];
    let capture = Capture::of(cases.iter().map(|(_, bytes)| bytes.clone()));
    for (row, (text, _)) in tshark.rows(&capture, &[]).iter().zip(&cases) {
        assert!(row.is_kcp() && row.expert().contains(text), "{text}: {row:?}");
    }
}

/// The segments before a bad one are shown.
#[test]
fn segments_before_a_malformed_one_are_shown() {
    let Some(tshark) = Tshark::find() else { return };
    let bytes = [push(0, b"hello"), push(1, b"world")].concat();
    let cut = bytes[..bytes.len() - 1].to_vec();
    let row = tshark.decode_as().rows(&Capture::of([cut]), &["kcp.sn", "kcp.malformed"]).remove(0);
    assert_eq!(row.numbers("kcp.sn"), [0]);
    assert_eq!(row.info(), "[PUSH] Sn=0 Len=5 [Malformed] Una=0 Wnd=128 Conv=0x11223344");
}

#[test]
fn capture_of_the_first_bytes_shows_them() {
    let Some(tshark) = Tshark::find() else { return };
    let frame = b"\x02\x02\x40\x00\x03\0\0\0................................................................";
    let datagrams = [
        push(0, b"\x02\0\0\0\x03\0\0\0"),
        [push(1, frame), push(2, b"\x02\x03\0\0\0\0\0\0")].concat(),
        fec_data(0, &push(3, b"\x02\x03\0\0\0\0\0\0")),
        fec_parity(1, 90),
    ];
    let mut capture = Capture::of(datagrams);
    for snap_len in (28..150).step_by(7) {
        capture.snap_len = snap_len;
        let rows = tshark.rows(&capture, &["kcp.sn", "kcp.truncated"]);
        for (row, datagram) in rows.iter().zip(&capture.datagrams) {
            let cut = snap_len < 28 + datagram.payload.len();
            assert!(
                !row.expert().contains("Malformed") && !row.expert().contains("left"),
                "{row:?}"
            );
            if row.is_kcp() && snap_len > 28 + 8 {
                assert_eq!(
                    row.expert().contains("a part of this datagram"),
                    cut,
                    "{snap_len}: {row:?}"
                );
            }
        }
        if snap_len >= 28 + 24 + 8 {
            assert!(rows.iter().all(|row| row.is_kcp()));
            assert_eq!(rows[1].numbers("kcp.sn")[0], 1);
        }
    }
}

/// Datagrams with something of the protocol in them, and with faults.
fn mutated(random: &mut Random) -> Vec<u8> {
    let frames = b"\x02\0\0\0\x03\0\0\0\x02\x02\x05\0\x03\0\0\0hello\x02\x04\x08\0\x03\0\0\0";
    let bases = [
        push(0, b"hello"),
        [
            Segment { cmd: ACK, frg: 0xA5, sn: 4, una: 5, ..Segment::default() }.bytes(),
            push(3, b"x"),
        ]
        .concat(),
        push(random.next() as u32, frames),
        fec_data(7, &push(1, b"hello")),
        fec_parity(8, 40),
        vec![255, 255, 255, 255, 0xF3, 0, 10, 0, 0x44, 0x33, 0x22, 0x11, 1, 2, 3, 4],
        Segment { cmd: REPAIR, frg: 4, payload: b"repair", ..Segment::default() }.bytes(),
        segment(CONV, [CONTROL, (random.next() % 9) as u8], 1, [random.next() as u32, 3, 4], b""),
        [vec![0; 20], push(0, b"hello")].concat(),
    ];
    let mut bytes = bases[random.below(bases.len())].clone();
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len() + 1);
        match random.below(5) {
            0 if at < bytes.len() => {
                let values = [0, 1, 2, 255, 0xF1, 0xF2, 0xF3, PUSH, REPAIR, random.next() as u8];
                bytes[at] = values[random.below(values.len())];
            }
            1 => bytes.truncate(at),
            2 => bytes.extend(&bases[random.below(bases.len())]),
            3 => {
                let len = random.below(30);
                bytes.extend(random.bytes(len));
            }
            4 if at + 4 <= bytes.len() => {
                let values = [0, 1, 24, 48, 0x7FFF_FFFF, 0x8000_0000, u32::MAX];
                bytes[at..at + 4]
                    .copy_from_slice(&values[random.below(values.len())].to_le_bytes());
            }
            _ => {}
        }
    }
    bytes
}

/// An error of the script would be in the output; `details` looks for it.
#[test]
fn mutated_datagrams_cause_no_error() {
    let Some(tshark) = Tshark::find() else { return };
    let tshark = tshark.decode_as();
    let mut random = Random(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos().into());
    println!("{random:?}");
    for snap_len in [65_535, 28 + 40] {
        let mut capture = Capture { snap_len, ..Capture::default() };
        for _ in 0..5_000 {
            let from = if random.below(2) == 0 { From::Client } else { From::Server };
            capture.push(from, mutated(&mut random));
        }
        let text = tshark.details(&capture);
        assert!(text.matches("Segment number:").count() > 1_000);
    }
}

/// The largest datagram, full of empty segments.
#[test]
fn datagram_full_of_segments_ends() {
    let Some(tshark) = Tshark::find() else { return };
    let ack = Segment { cmd: ACK, sn: 1, una: 2, ..Segment::default() }.bytes();
    let count = 65_507 / ack.len();
    let row = tshark.rows(&Capture::of([ack.repeat(count)]), &["kcp.sn"]).remove(0);
    row.assert_well_formed();
    assert!(row.info().len() < 400, "{}", row.info());
    // A field of the output has at most some of them, by its own limit.
    assert!(row.numbers("kcp.sn").len() > 1_000);
}
