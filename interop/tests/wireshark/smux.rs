//! smux frames inside the stream, of xtaci/smux and of kcptun.

use serde_json::Value;

use crate::bytes::{CONV, PUSH, segment, unhex};
use crate::capture::{Capture, From};
use crate::recorded::vector;
use crate::tshark::{Row, Tshark};

const FIELDS: [&str; 7] = [
    "kcp.smux.version",
    "kcp.smux.cmd",
    "kcp.smux.length",
    "kcp.smux.sid",
    "kcp.smux.consumed",
    "kcp.smux.window",
    "kcp.checksum",
];

/// The frames of a stream: version, command, length, stream id; and the numbers of updates.
#[derive(Debug, Default, PartialEq, Eq)]
struct Frames {
    frames: Vec<[u32; 4]>,
    updates: Vec<[u32; 2]>,
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().unwrap())
}

impl Frames {
    fn parse(mut stream: &[u8]) -> Self {
        let mut all = Self::default();
        while let Some((header, rest)) = stream.split_first_chunk::<8>() {
            let len = usize::from(u16::from_le_bytes([header[2], header[3]]));
            all.frames.push([
                header[0].into(),
                header[1].into(),
                u32::try_from(len).unwrap(),
                number(&header[4..]),
            ]);
            if header[1] == 4 {
                all.updates.push([number(&rest[..4]), number(&rest[4..8])]);
            }
            stream = rest.get(len..).unwrap_or_default();
        }
        all
    }

    fn shown<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        let mut all = Self::default();
        for row in rows {
            let columns = FIELDS.map(|field| row.numbers(field));
            let frame = |i: usize| [0, 1, 2, 3].map(|column: usize| columns[column][i]);
            all.frames.extend((0..columns[0].len()).map(frame));
            for (&consumed, &window) in columns[4].iter().zip(&columns[5]) {
                all.updates.push([consumed, window]);
            }
        }
        all
    }
}

/// Both directions of a stream in segments of at most `len` bytes, in the order of the writes.
fn capture(writes: &[(From, Vec<u8>)], len: usize) -> Capture {
    let mut capture = Capture::default();
    let mut next = [0; 2];
    let mut turns = writes.iter().peekable();
    while let Some((from, bytes)) = turns.next() {
        // Stream mode: neighbouring writes share segments.
        let mut bytes = bytes.clone();
        while let Some((_, more)) = turns.next_if(|(next, _)| next == from) {
            bytes.extend(more);
        }
        let side = usize::from(*from == From::Server);
        for part in bytes.chunks(len) {
            let numbers = [1, next[side], next[1 - side]];
            capture.push(*from, segment(CONV, [PUSH, 0], 128, numbers, part));
            next[side] += 1;
        }
    }
    capture
}

fn check(tshark: &Tshark, writes: &[(From, Vec<u8>)], len: usize) -> usize {
    let capture = capture(writes, len);
    let rows = tshark.rows(&capture, &FIELDS);
    let mut count = 0;
    for side in [From::Client, From::Server] {
        let of_side = |from: From| from == side;
        let written = writes.iter().filter(|(from, _)| of_side(*from));
        let expected =
            Frames::parse(&written.flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>());
        let rows =
            rows.iter().zip(&capture.datagrams).filter(|(_, datagram)| of_side(datagram.from));
        assert_eq!(Frames::shown(rows.map(|(row, _)| row)), expected, "segments of {len} bytes");
        count += expected.frames.len();
    }
    rows.iter().for_each(Row::assert_well_formed);
    count
}

fn writes(rows: &Value) -> Vec<(From, Vec<u8>)> {
    let write = |row: &Value| {
        (From::named(row["from"].as_str().unwrap()), unhex(row["bytes"].as_str().unwrap()))
    };
    rows.as_array().unwrap().iter().map(write).collect()
}

#[test]
fn every_smux_frame_is_shown_wherever_segments_cut_it() {
    let Some(tshark) = Tshark::find() else { return };
    for version in [1, 2] {
        let session = vector(&format!("smux/tests/vectors/smux-v{version}.json"));
        let writes = writes(&session["writes"]);
        // With the last two, headers are cut as well.
        for len in [1_376, 1_000, 133, 61] {
            let count = check(&tshark, &writes, len);
            println!("smux version {version}, segments of {len} bytes: {count} frames");
            assert!(count > 15);
        }
    }
}

#[test]
fn capture_that_begins_within_a_stream_shows_frames_where_payloads_begin_with_one() {
    let Some(tshark) = Tshark::find() else { return };
    let session = vector("smux/tests/vectors/smux-v2.json");
    let mut capture = capture(&writes(&session["writes"]), 1_376);
    // Within the data of stream 7.
    capture.datagrams.drain(..20);
    let rows = tshark.rows(&capture, &FIELDS);
    rows.iter().for_each(Row::assert_well_formed);
    assert!(!rows[0].has("kcp.smux.cmd"), "{:?}", rows[0]);
    let shown = Frames::shown(rows.iter());
    assert!(shown.frames.contains(&[2, 1, 0, 7]) && shown.frames.contains(&[2, 3, 0, 0]));
    assert!(shown.updates.len() > 1);
    assert!(
        shown.frames.iter().all(|frame| frame[0] == 2 && matches!(frame[3], 0 | 5 | 7)),
        "{shown:?}"
    );
}

#[test]
fn capture_of_the_first_bytes_still_shows_where_frames_begin() {
    let Some(tshark) = Tshark::find() else { return };
    let session = vector("smux/tests/vectors/smux-v2.json");
    let mut capture = capture(&writes(&session["writes"]), 1_376);
    let whole = Frames::shown(tshark.rows(&capture, &FIELDS).iter());
    // IP, UDP, a header of KCP, and frames without data.
    capture.snap_len = 28 + 24 + 40;
    let cut = Frames::shown(tshark.rows(&capture, &FIELDS).iter());
    // The ends of stream 7, behind its data, and the keepalives.
    let last = &whole.frames[whole.frames.len() - 6..];
    assert!(last.contains(&[2, 1, 0, 7]) && cut.frames.ends_with(last), "{cut:?}");
    assert!(cut.frames.iter().all(|frame| whole.frames.contains(frame)), "{cut:?}");
}

/// The segments of a recorded session of kcptun, as its sender cut them.
fn segments(recording: &Value) -> Vec<(From, Vec<u8>)> {
    let mut streams = ["client", "server"].map(|side| {
        let connections = recording["streams"][side].as_array().unwrap();
        connections.iter().map(|stream| unhex(stream.as_str().unwrap())).collect::<Vec<_>>()
    });
    let mut all = Vec::new();
    for row in recording["segments"].as_array().unwrap() {
        let from = From::named(row[1].as_str().unwrap());
        let stream =
            &mut streams[usize::from(from == From::Server)][row[2].as_u64().unwrap() as usize];
        let len = row[4].as_u64().unwrap() as usize;
        all.push((from, stream.drain(..len).collect()));
    }
    all
}

#[test]
fn recorded_sessions_of_kcptun_show_their_frames() {
    let Some(tshark) = Tshark::find() else { return };
    for name in ["echo", "big", "two", "idle", "refused"] {
        for version in [1, 2] {
            let file =
                format!("tunnel/tests/vectors/kcptun-20210922-{name}-v{version}-nocomp.json");
            let recording = vector(&file);
            let count = check(&tshark, &segments(&recording), 1_376);
            println!("{name}, smux version {version}: {count} frames");
            assert!(count > 2);
        }
    }
}

/// The first datagrams as they were on the wire, under the cipher `none`.
#[test]
fn datagrams_of_kcptun_show_their_checksum() {
    let Some(tshark) = Tshark::find() else { return };
    for compression in ["comp", "nocomp"] {
        let file = format!("tunnel/tests/vectors/kcptun-20210922-echo-v1-{compression}.json");
        let mut capture = Capture::default();
        for (from, bytes) in writes(&vector(&file)["first_datagrams"]) {
            capture.push(from, bytes);
        }
        let rows = tshark.rows(&capture, &FIELDS);
        for row in &rows {
            row.assert_well_formed();
            assert_eq!(row.all("kcp.checksum").len(), 1, "{row:?}");
        }
        let is_compressed = rows[0].expert().contains("Compressed stream (snappy)");
        assert_eq!(is_compressed, compression == "comp");
        assert_eq!(rows[0].has("kcp.smux.cmd"), compression == "nocomp");
        // One bit of the payload, and the checksum is wrong.
        let last = capture.datagrams[0].payload.last_mut().unwrap();
        *last ^= 1;
        assert!(!tshark.rows(&capture, &[])[0].is_kcp());
    }
}
