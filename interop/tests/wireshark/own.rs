//! The segments that only kcpx sends, as docs/wire.md has them.

use serde_json::Value;

use crate::bytes::{
    ACK, CAPABLE, CONTROL, CONV, PUSH, REPAIR, Segment, WASK, WINS, fec_data, fec_parity, unhex,
};
use crate::capture::{Capture, From};
use crate::recorded::vector;
use crate::tshark::{Row, Tshark};

/// 2^30 behind 0, of a side that has accepted the connection.
const PING: u32 = 0xC000_0001;

/// One datagram of these segments, of the client.
fn shown(tshark: &Tshark, segments: &[Segment], fields: &[&'static str]) -> Row {
    let bytes = segments.iter().flat_map(|segment| segment.bytes()).collect();
    let row = tshark.rows(&Capture::of([bytes]), fields).remove(0);
    row.assert_well_formed();
    row
}

#[test]
fn each_kind_of_segment_has_its_name() {
    let Some(tshark) = Tshark::find() else { return };
    let base = Segment::default();
    let control = |frg, sn| Segment { cmd: CONTROL, frg, sn, ..base };
    let kinds = [
        ("[PUSH] Sn=3 Len=2", Segment { sn: 3, payload: b"hi", ..base }),
        ("[ACK] Sn=4", Segment { cmd: ACK, sn: 4, una: 5, ..base }),
        ("[ACK Repaired] Sn=4", Segment { cmd: ACK, frg: 0xA6, sn: 4, una: 5, ..base }),
        ("[PONG] Sn=3221225473", Segment { cmd: ACK, frg: CAPABLE, sn: PING, una: 5, ..base }),
        ("[WASK]", Segment { cmd: WASK, ts: 0, ..base }),
        ("[OPEN]", Segment { cmd: WASK, frg: CAPABLE, ts: 77, ..base }),
        ("[WINS]", Segment { cmd: WINS, frg: CAPABLE, ..base }),
        ("[PING] Sn=3221225473 Len=0", Segment { frg: CAPABLE, sn: PING, ..base }),
        ("[RETRY] Sn=2684354563 Len=0", Segment { frg: CAPABLE, sn: 0xA000_0003, wnd: 1, ..base }),
        ("[MTU PROBE] Sn=3221225473 Len=8", Segment { sn: PING, payload: &[0; 8], ..base }),
        ("[FIN] Sn=9", control(1, 9)),
        ("[FIN-ACK] Sn=9", control(2, 9)),
        ("[RST] Sn=9", control(3, 9)),
        ("[RST-ACK] Sn=9", control(4, 9)),
        ("[HELLO] repair+datagrams", control(5, 3)),
        ("[HELLO-ACK] repair+datagrams+paths", control(6, 7)),
        ("[HELLO-ACK] nothing", control(6, 0)),
        ("[PATH] 2", control(7, 2)),
        (
            "[REPAIR] Sn=10..13 Len=6",
            Segment { cmd: REPAIR, frg: 4, sn: 10, payload: &[9; 6], ..base },
        ),
    ];
    // Each in a conversation of its own.
    let segments = (CONV..).zip(kinds).map(|(conv, (_, segment))| Segment { conv, ..segment });
    let segments = segments.collect::<Vec<_>>();
    let capture = Capture::of(segments.iter().map(|segment| segment.bytes()));
    let rows = tshark.rows(&capture, &["kcp.cmd", "kcp.sn", "kcp.ts"]);
    for ((segment, (title, _)), row) in segments.iter().zip(kinds).zip(rows) {
        row.assert_well_formed();
        let Segment { conv, wnd, una, .. } = segment;
        assert_eq!(row.info(), format!("{title} Una={una} Wnd={wnd} Conv={conv:#010x}"));
        assert_eq!(row.numbers("kcp.cmd"), [u32::from(segment.cmd)]);
        assert_eq!([row.numbers("kcp.sn")[0], row.numbers("kcp.ts")[0]], [segment.sn, segment.ts]);
    }
}

#[test]
fn own_meanings_of_fields_are_fields_too() {
    let Some(tshark) = Tshark::find() else { return };
    let base = Segment::default();
    let path = Segment { cmd: CONTROL, frg: 7, sn: 2, ts: 0, ..base };
    let ping = Segment { frg: CAPABLE, sn: PING, ts: 5, ..base };
    let row = shown(
        &tshark,
        &[path, ping],
        &["kcp.control.type", "kcp.path", "kcp.ping", "kcp.control_capable"],
    );
    assert_eq!((row.numbers("kcp.control.type"), row.numbers("kcp.path")), (vec![7], vec![2]));
    assert!(row.has("kcp.ping") && row.has("kcp.control_capable"));
    assert!(row.info().starts_with("[PATH] 2 [PING] Sn=3221225473"));

    let repair = Segment { cmd: REPAIR, frg: 4, sn: 10, ts: 0xDEAD_BEEF, payload: &[9; 6], ..base };
    let row =
        shown(&tshark, &[repair], &["kcp.repair.first", "kcp.repair.count", "kcp.repair.key"]);
    assert_eq!(row.numbers("kcp.repair.first"), [10]);
    assert_eq!(row.numbers("kcp.repair.count"), [4]);
    assert_eq!(row.numbers("kcp.repair.key"), [0xDEAD_BEEF]);

    let repaired = Segment { cmd: ACK, frg: 0xA6, sn: 4, una: 5, ts: 0xDEAD_BEEF, ..base };
    let row = shown(&tshark, &[repaired], &["kcp.repaired", "kcp.repair.key", "kcp.ack_rtt"]);
    assert!(row.has("kcp.repaired") && !row.has("kcp.ack_rtt"));
    assert_eq!(row.numbers("kcp.repair.key"), [0xDEAD_BEEF]);

    let reset = Segment { cmd: CONTROL, frg: 3, wnd: 65_535, ..base };
    let row = shown(&tshark, &[reset], &["kcp.reset.all_read"]);
    assert!(matches!(row.all("kcp.reset.all_read")[..], ["1" | "True"]), "{row:?}");
    assert!(row.expert().contains("Connection reset"));

    let open = Segment { cmd: WASK, frg: CAPABLE, ts: 77, ..base };
    assert_eq!(shown(&tshark, &[open], &["kcp.attempt"]).numbers("kcp.attempt"), [77]);
    let closed = Segment { cmd: WINS, wnd: 0, ..base };
    assert_eq!(shown(&tshark, &[closed], &[]).expert(), "The window is closed");
}

/// The vectors of HELLO and of datagrams, and kcp-go's out-of-band packets.
#[test]
fn vectors_of_datagrams_are_shown() {
    let Some(tshark) = Tshark::find() else { return };
    let bits = ["kcp.capabilities.repair", "kcp.capabilities.datagrams", "kcp.capabilities.paths"];
    let own = vector("tests/vectors/datagrams.json");
    for (name, kind) in [("hello", 5), ("hello_ack", 6)] {
        let bytes = unhex(own[name].as_str().unwrap());
        let mut fields = vec!["kcp.control.type", "kcp.capabilities", "kcp.ts"];
        fields.extend(bits);
        let row = tshark.rows(&Capture::of([bytes]), &fields).remove(0);
        row.assert_well_formed();
        assert_eq!(row.numbers("kcp.control.type"), [kind]);
        assert_eq!(row.numbers("kcp.capabilities"), [3]);
        assert_eq!(row.numbers("kcp.ts"), [0x0BAD_CAFE]);
        let set = bits.map(|bit| matches!(row.all(bit)[..], ["1" | "True"]));
        assert_eq!(set, [true, true, false]);
    }
    let stock = vector("tests/vectors/oob.json");
    let packets =
        own["datagrams"].as_array().unwrap().iter().chain(stock["vectors"].as_array().unwrap());
    let packets = packets.collect::<Vec<&Value>>();
    let capture = Capture::of(packets.iter().map(|row| unhex(row["packet"].as_str().unwrap())));
    let fields = ["kcp.datagram", "kcp.conv", "kcp.fec.seqid", "kcp.fec.size"];
    for (packet, row) in packets.iter().zip(tshark.rows(&capture, &fields)) {
        row.assert_well_formed();
        let payload = packet["payload"].as_str().unwrap();
        assert_eq!(row.all("kcp.datagram").concat(), payload);
        assert_eq!(row.numbers("kcp.conv"), [CONV]);
        assert_eq!(row.numbers("kcp.fec.seqid"), [u32::MAX]);
        let len = payload.len() / 2;
        assert_eq!(row.info(), format!("[DATAGRAM] Len={len} Conv=0x11223344"));
    }
}

#[test]
fn retransmissions_duplicates_and_pings_are_told_apart() {
    let Some(tshark) = Tshark::find() else { return };
    let push = |sn, ts| Segment { sn, ts, payload: b"data", ..Segment::default() }.bytes();
    let ping = |ts| Segment { frg: CAPABLE, sn: PING, ts, ..Segment::default() }.bytes();
    let ack =
        |sn, ts, una| Segment { cmd: ACK, frg: CAPABLE, sn, ts, una, ..Segment::default() }.bytes();
    let mut capture = Capture::default();
    capture.push(From::Client, push(0, 10));
    capture.push(From::Client, push(0, 10));
    capture.push(From::Client, push(0, 30));
    // The same number in the other direction, and of another conversation, is another segment.
    capture.push(From::Server, push(0, 30));
    let mut other = push(0, 40);
    other[0] ^= 1;
    capture.push(From::Client, other);
    capture.push(From::Server, ack(0, 30, 1));
    capture.push(From::Server, ack(0, 10, 1));
    capture.push(From::Client, ping(50));
    capture.push(From::Client, ping(51));
    capture.push(From::Client, ping(50));
    capture.push(From::Server, ack(PING, 51, 1));
    capture.push(From::Server, ack(PING, 51, 1));
    // Of a transmission that the capture has not.
    capture.push(From::Server, ack(0, 99, 1));
    let fields = ["kcp.retransmission_of", "kcp.ack_to", "kcp.ack_rtt", "kcp.ping", "kcp.pong"];
    let rows = tshark.rows(&capture, &fields);
    rows.iter().for_each(Row::assert_well_formed);
    let first = |row: &Row| row.numbers("kcp.retransmission_of").first().copied();
    let firsts = rows.iter().map(first).collect::<Vec<_>>();
    let again = [(1, 1), (2, 1), (9, 8)];
    for (row, first) in firsts.into_iter().enumerate() {
        assert_eq!(
            first,
            again.iter().find(|(of, _)| *of == row).map(|(_, first)| *first),
            "{row}"
        );
    }
    assert!(!rows[12].has("kcp.ack_to"));
    assert!(rows[1].info().contains("[PUSH Duplicate]"));
    assert!(rows[2].info().contains("[PUSH Retransmission]"));
    assert!(rows[9].info().contains("[PING Retransmission]"));
    let acked = |row: usize| (rows[row].numbers("kcp.ack_to"), rows[row].seconds("kcp.ack_rtt"));
    let near = |seconds: Vec<f64>, expected: f64| (seconds[0] - expected).abs() < 1e-6;
    assert!(acked(5).0 == [3] && near(acked(5).1, 0.003), "{:?}", acked(5));
    assert!(acked(6).0 == [2] && near(acked(6).1, 0.005), "{:?}", acked(6));
    assert!(acked(10).0 == [9] && near(acked(10).1, 0.002), "{:?}", acked(10));
    // The second pong is no time.
    assert!(acked(11).0 == [9] && acked(11).1.is_empty(), "{:?}", acked(11));
    assert!(rows[10].has("kcp.pong") && rows[7].has("kcp.ping"));
}

#[test]
fn consecutive_segments_are_one_range() {
    let Some(tshark) = Tshark::find() else { return };
    let ack = |sn| Segment { cmd: ACK, sn, una: 7, ..Segment::default() };
    let push = Segment { sn: 2, una: 7, payload: b"x", ..Segment::default() };
    let row = shown(&tshark, &[ack(3), ack(4), ack(5), ack(9), push], &["kcp.sn"]);
    let title = "[ACK] Sn=3..5 [ACK] Sn=9 [PUSH] Sn=2 Len=1 Una=7 Wnd=128 Conv=0x11223344";
    assert_eq!(row.info(), title);
    assert_eq!(row.numbers("kcp.sn"), [3, 4, 5, 9, 2]);
}

/// With segmentation offload a capture has several datagrams as one.
#[test]
fn batches_of_datagrams_are_taken_apart() {
    let Some(tshark) = Tshark::find() else { return };
    let push = |sn| Segment { sn, payload: b"0123456789", ..Segment::default() }.bytes();
    let of_other =
        Segment { conv: 99, sn: 4, payload: b"0123456789", ..Segment::default() }.bytes();
    let data = |sn| fec_data(100 + sn, &push(sn));
    let len = data(0).len();
    let parity = |seqid| fec_parity(seqid, len - 6);
    let mut last = parity(104);
    last.truncate(30);
    let batches = [
        [push(0), push(1)].concat(),
        [push(0), of_other].concat(),
        [data(0), data(1), data(2)].concat(),
        [data(2), parity(103), last.clone()].concat(),
        // Its first packet is no FEC packet.
        [push(5), data(6)].concat(),
        // Parity first: where it ends only the number of the next one says.
        [parity(102), parity(103), last].concat(),
        // The next group follows.
        [data(2), parity(103), data(4)].concat(),
    ];
    let fields = ["kcp.sn", "kcp.fec.seqid", "kcp.fec.parity"];
    let rows = tshark.rows(&Capture::of(batches), &fields);
    let of = |row: usize| (rows[row].numbers("kcp.sn"), rows[row].numbers("kcp.fec.seqid"));
    assert_eq!(of(0), (vec![0, 1], vec![]));
    assert_eq!(rows[0].info(), "[PUSH] Sn=0..1 Len=20 Una=0 Wnd=128 Conv=0x11223344");
    assert_eq!(of(1), (vec![0, 4], vec![]));
    assert!(rows[1].expert().contains("several datagrams"));
    assert_eq!(of(2), (vec![0, 1, 2], vec![100, 101, 102]));
    assert_eq!(of(3), (vec![2], vec![102, 103, 104]));
    assert_eq!(of(4), (vec![5, 6], vec![106]));
    assert_eq!(of(5), (vec![], vec![102, 103, 104]));
    assert_eq!(of(6), (vec![2, 4], vec![102, 103, 104]));
    for row in [0, 2, 3, 4, 5, 6] {
        rows[row].assert_well_formed();
    }
    let lengths = rows[3].all("kcp.fec.parity").iter().map(|hex| hex.len() / 2).collect::<Vec<_>>();
    assert_eq!(lengths, [len - 6, 24]);
    // WINS, as in a place that a group has free.
    let filler = fec_data(7, &Segment { cmd: WINS, frg: CAPABLE, ..Segment::default() }.bytes());
    let row = tshark.rows(&Capture::of([filler]), &["kcp.cmd"]).remove(0);
    assert_eq!(row.info(), "FEC=7 [WINS] Una=0 Wnd=128 Conv=0x11223344");
    assert_ne!(PUSH, WINS);
}
