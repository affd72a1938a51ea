//! Recorded sessions of kcp-go, compared with what the crate parses.

use std::collections::HashMap;
use std::time::Duration;

use kcpx::proto::segment::{Command, Header, Segments};
use serde_json::Value;

use crate::bytes::unhex;
use crate::capture::{Capture, Datagram, From};
use crate::tshark::{Row, Tshark, repository};

const FIELDS: [&str; 16] = [
    "kcp.conv",
    "kcp.cmd",
    "kcp.frg",
    "kcp.wnd",
    "kcp.ts",
    "kcp.sn",
    "kcp.una",
    "kcp.len",
    "kcp.payload",
    "kcp.fec.seqid",
    "kcp.fec.type",
    "kcp.fec.size",
    "kcp.fec.parity",
    "kcp.retransmission_of",
    "kcp.ack_to",
    "kcp.ack_rtt",
];

pub(crate) fn vector(path: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(repository().join(path)).unwrap()).unwrap()
}

/// The capture of a recorded session.
pub(crate) fn session(name: &str) -> Capture {
    let session = vector(&format!("tests/vectors/session-{name}.json"));
    let datagram = |row: &Value| Datagram {
        at: Duration::from_millis(row["ms"].as_u64().unwrap()),
        from: From::named(row["from"].as_str().unwrap()),
        payload: unhex(row["wire"].as_str().unwrap()),
    };
    let datagrams = session["datagrams"].as_array().unwrap().iter().map(datagram).collect();
    Capture { datagrams, ..Capture::default() }
}

/// A transmission of a segment.
#[derive(Clone, Copy, Debug)]
struct Sent {
    frame: u32,
    at: Duration,
    acked: bool,
}

/// The expected marks of a capture.
#[derive(Debug, Default)]
struct Marks {
    first: HashMap<(From, u32), u32>,
    /// By direction, number and timestamp; the latest.
    sent: HashMap<(From, u32, u32), Sent>,
    retransmissions: usize,
    round_trips: usize,
}

impl Marks {
    /// Compares the marks of one datagram.
    fn check(&mut self, frame: u32, datagram: &Datagram, headers: &[Header], row: &Row) {
        let peer = if datagram.from == From::Client { From::Server } else { From::Client };
        let (mut again, mut acked, mut times) = (Vec::<u32>::new(), Vec::new(), Vec::new());
        for header in headers {
            if header.command == Command::Push {
                let key = (datagram.from, header.sn.0);
                again.extend(self.first.get(&key).copied());
                self.first.entry(key).or_insert(frame);
                let sent = Sent { frame, at: datagram.at, acked: false };
                self.sent.insert((datagram.from, header.sn.0, header.ts.0), sent);
            } else if header.command == Command::Ack
                && let Some(sent) = self.sent.get_mut(&(peer, header.sn.0, header.ts.0))
            {
                acked.push(sent.frame);
                if !std::mem::replace(&mut sent.acked, true) {
                    times.push((datagram.at - sent.at).as_secs_f64());
                }
            }
        }
        assert_eq!(row.numbers("kcp.retransmission_of"), again, "{row:?}");
        assert_eq!(row.numbers("kcp.ack_to"), acked, "{row:?}");
        let shown = row.seconds("kcp.ack_rtt");
        assert_eq!(shown.len(), times.len(), "{row:?}");
        assert!(shown.iter().zip(&times).all(|(a, b)| (a - b).abs() < 1e-6), "{times:?} {row:?}");
        self.retransmissions += again.len();
        self.round_trips += times.len();
    }
}

fn assert_headers(headers: &[Header], row: &Row) {
    let column = |value: fn(&Header) -> u32| headers.iter().map(value).collect::<Vec<_>>();
    assert_eq!(row.numbers("kcp.conv"), column(|header| header.conv));
    assert_eq!(row.numbers("kcp.cmd"), column(|header| header.command as u32));
    assert_eq!(row.numbers("kcp.frg"), column(|header| header.frg.into()));
    assert_eq!(row.numbers("kcp.wnd"), column(|header| header.wnd.into()));
    assert_eq!(row.numbers("kcp.ts"), column(|header| header.ts.0));
    assert_eq!(row.numbers("kcp.sn"), column(|header| header.sn.0));
    assert_eq!(row.numbers("kcp.una"), column(|header| header.una.0));
    assert_eq!(row.numbers("kcp.len"), column(|header| header.len));
}

/// Compares all that is shown; returns the numbers of segments, retransmissions, and ACKs with a time.
fn check(capture: &Capture, rows: &[Row]) -> [usize; 3] {
    let mut marks = Marks::default();
    let mut segments = 0;
    for ((frame, datagram), row) in (1..).zip(&capture.datagrams).zip(rows) {
        row.assert_well_formed();
        let bytes = &datagram.payload;
        let kind = u16::from_le_bytes([bytes[4], bytes[5]]);
        let has_fec = kind == 0xF1 || kind == 0xF2;
        if has_fec {
            let seqid = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert_eq!(row.numbers("kcp.fec.seqid"), [seqid]);
            assert_eq!(row.numbers("kcp.fec.type"), [u32::from(kind)]);
        }
        if kind == 0xF2 {
            assert_eq!(unhex(row.all("kcp.fec.parity")[0]), bytes[6..]);
            assert!(!row.has("kcp.cmd") && !row.has("kcp.fec.size"), "{row:?}");
            continue;
        }
        if has_fec {
            assert_eq!(row.numbers("kcp.fec.size"), [u32::try_from(bytes.len() - 6).unwrap()]);
        }
        let (headers, payloads): (Vec<_>, Vec<_>) =
            Segments::new(if has_fec { &bytes[8..] } else { bytes }).unzip();
        assert_headers(&headers, row);
        let shown = row.all("kcp.payload").into_iter().flat_map(unhex).collect::<Vec<_>>();
        assert_eq!(shown, payloads.concat());
        marks.check(frame, datagram, &headers, row);
        segments += headers.len();
    }
    [segments, marks.retransmissions, marks.round_trips]
}

#[test]
fn recorded_sessions_of_kcp_go_are_shown_whole() {
    let Some(tshark) = Tshark::find() else { return };
    for name in ["plain-stream", "plain-message", "plain-fec-10-3", "plain-fec-10-3-loss-8"] {
        let capture = session(name);
        let [segments, again, timed] = check(&capture, &tshark.rows(&capture, &FIELDS));
        println!("{name}: {segments} segments, {again} sent again, {timed} ACKs with a time");
        assert!(segments > 50 && timed > 20);
        assert_eq!(again > 0, name.ends_with("loss-8"));
    }
}

#[test]
fn second_pass_over_a_capture_shows_the_same() {
    let Some(tshark) = Tshark::find() else { return };
    let capture = session("plain-fec-10-3-loss-8");
    let mut fields = FIELDS.to_vec();
    fields.push("kcp.acked_in");
    let rows = tshark.rows_with(&capture, &["-2"], &fields);
    let [_, again, timed] = check(&capture, &rows);
    // The first pass cannot know it.
    let acked = rows.iter().filter(|row| row.has("kcp.acked_in")).count();
    assert!(again > 0 && timed > 20 && acked > 20);
}

#[test]
fn reader_of_the_info_column_sees_number_and_length() {
    let Some(tshark) = Tshark::find() else { return };
    let rows = tshark.rows(&session("plain-fec-10-3-loss-8"), &[]);
    assert_eq!(rows[0].info(), "FEC=0 [PUSH] Sn=0 Len=998 Una=0 Wnd=128 Conv=0x11223344");
    assert_eq!(rows[10].info(), "[FEC parity] Seqid=10 Len=1394");
    assert!(rows.iter().any(|row| row.info().contains("[PUSH Retransmission] Sn=73 Len=1242")));
}

/// The sessions under a cipher look like noise, and stay UDP.
#[test]
fn encrypted_sessions_are_left_alone() {
    let Some(tshark) = Tshark::find() else { return };
    for name in ["aes-128-fec-10-3", "chacha20-poly1305-fec-3-1", "salsa20-fec-10-3", "xor-fec-2-1"]
    {
        let rows = tshark.rows(&session(name), &[]);
        assert!(rows.iter().all(|row| !row.is_kcp()), "{name}");
    }
    let rows = tshark.decode_as().rows(&session("aes-128"), &[]);
    // Six bytes in 256 are a command where KCP has one.
    let said = rows.iter().filter(|row| row.expert().contains("Not plain KCP: encrypted")).count();
    assert!(said * 10 > rows.len() * 9, "{said} of {}", rows.len());
}
