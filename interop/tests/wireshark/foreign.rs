//! Other protocols on ports that nothing is registered for, which the heuristic sees.

use crate::bytes::{CONV, PUSH, Random, Segment, segment, unhex};
use crate::capture::Capture;
use crate::tshark::Tshark;

fn of_foreign_ports(payloads: impl IntoIterator<Item = Vec<u8>>) -> Capture {
    Capture { ports: [50_001, 50_002], ..Capture::of(payloads) }
}

fn padded(text: &str, len: usize) -> Vec<u8> {
    let mut bytes = unhex(text);
    bytes.resize(len, 0);
    bytes
}

#[test]
fn other_protocols_are_left_alone() {
    let Some(tshark) = Tshark::find() else { return };
    let mut random = Random(1);
    let mut payloads = vec![
        // DNS: a query and an answer for example.com.
        unhex("1a2b01000001000000000000076578616d706c6503636f6d0000010001"),
        unhex(
            "1a2b81800001000100000000076578616d706c6503636f6d0000010001\
             c00c000100010000012c00045db8d822",
        ),
        // QUIC: an initial packet with padding, and a short header.
        padded("c0000000010851515151515151510000449e00000001", 1_200),
        padded("4051515151515151515151515151515151515151", 40),
        // STUN: a binding request.
        unhex("000100002112a442515151515151515151515151"),
        // NTP: a client's request.
        padded("e30003fa000100000001000000000000", 48),
        // DHCP: a discover, its transaction id like a command.
        padded("0101060051008000000000000000000000000000000000000000000051515151", 300),
        // RTCP: a receiver report.
        unhex("81c9000751525354555657585100000051000000510000005100000000000000"),
        // DTLS: a handshake record. SIP and SSDP: text.
        padded("16feff000000000000000000360100002a", 60),
        b"REGIQTER sip:example.com SIP/2.0\r\n\r\n".to_vec(),
        b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\n\r\n".to_vec(),
        // WireGuard: a handshake initiation and transport data, with an index like a command.
        padded("01000000510000001122334455667788", 148),
        padded("04000000510000000000000000000000", 48),
    ];
    // RTP: timestamps and payloads of each kind, one as short as a header of KCP.
    for command in 81..=86 {
        let mut rtp = vec![0x80, 0x60, 1, 2, command, 0, 3, 0, 9, 9, 9, 9];
        rtp.extend(random.bytes(160));
        payloads.push(rtp.clone());
        rtp[12..].fill(0xD5);
        payloads.push(rtp);
    }
    for byte in [0, 1, 0x51, 0x55, 0xFF] {
        payloads.extend([1, 12, 24, 48, 1_400].map(|len| vec![byte; len]));
    }
    let rows = tshark.rows(&of_foreign_ports(payloads.clone()), &[]);
    for (row, payload) in rows.iter().zip(&payloads) {
        assert!(!row.is_kcp(), "{row:?} {payload:02x?}");
    }
}

#[test]
fn random_datagrams_are_left_alone() {
    let Some(tshark) = Tshark::find() else { return };
    let mut random = Random(2);
    let payload = |random: &mut Random, i: usize| {
        let len = random.below(1_401);
        let mut bytes = random.bytes(len);
        // Half of them have a command or a FEC type where KCP does.
        if i.is_multiple_of(2) && bytes.len() > 6 {
            bytes[4] = [81, 82, 83, 84, 85, 86, 0xF1, 0xF2, 0xF3][i / 2 % 9];
            bytes[5] = 0;
        }
        bytes
    };
    let payloads = (0..5_000).map(|i| payload(&mut random, i)).collect::<Vec<_>>();
    let rows = tshark.rows(&of_foreign_ports(payloads), &[]);
    assert!(rows.iter().all(|row| !row.is_kcp()));
}

/// One byte more or less, and the lengths do not add up.
#[test]
fn datagrams_that_are_nearly_kcp_are_left_alone() {
    let Some(tshark) = Tshark::find() else { return };
    let good = Segment { payload: b"hello", ..Segment::default() }.bytes();
    let frg = |cmd, frg| segment(CONV, [cmd, frg], 128, [1, 2, 3], b"");
    let payloads = [
        good[..good.len() - 1].to_vec(),
        [&good[..], b"!"].concat(),
        [&good[..], &good[..23]].concat(),
        // Values that no sender writes.
        frg(82, 1),
        frg(83, 0x41),
        frg(84, 0xA6),
        frg(85, 0),
        frg(85, 8),
        frg(86, 65),
        frg(PUSH, 9),
    ];
    let rows = tshark.rows(&of_foreign_ports(payloads.clone()), &[]);
    for (row, payload) in rows.iter().zip(&payloads) {
        assert!(!row.is_kcp(), "{row:?} {payload:02x?}");
    }
    assert!(tshark.rows(&of_foreign_ports([good]), &[])[0].is_kcp());
}

#[test]
fn preference_names_ports() {
    let Some(tshark) = Tshark::find() else { return };
    let capture = of_foreign_ports([b"what is this?".to_vec()]);
    assert!(!tshark.rows(&capture, &[])[0].is_kcp());
    let row = &tshark.rows_with(&capture, &["-o", "kcp.udp_ports:50002,6000-6010"], &[])[0];
    assert!(row.is_kcp() && row.expert().contains("Not plain KCP"));
}

#[test]
fn preference_hides_smux() {
    let Some(tshark) = Tshark::find() else { return };
    let syn = Segment { payload: b"\x01\0\0\0\x03\0\0\0", ..Segment::default() }.bytes();
    let capture = Capture::of([syn]);
    assert!(tshark.rows(&capture, &["kcp.smux.sid"])[0].has("kcp.smux.sid"));
    let off = ["-o", "kcp.smux:FALSE"];
    assert!(!tshark.rows_with(&capture, &off, &["kcp.smux.sid"])[0].has("kcp.smux.sid"));
}
