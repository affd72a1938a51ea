//! What the dissector of `wireshark/` shows of a capture without cipher.

use std::collections::HashSet;
use std::path::Path;

use kcpx_interop::tshark::Tshark;
use serde_json::Value;

use crate::record::Capture;

const FIELDS: [&str; 8] = [
    "_ws.expert.message",
    "kcp.fec.type",
    "kcp.cmd",
    "kcp.sn",
    "kcp.ts",
    "kcp.len",
    "kcp.retransmission_of",
    "kcp.smux.cmd",
];
/// Notes that a capture of these peers may have.
const NOTES: [&str; 5] = [
    "Retransmission",
    "Duplicate of a transmission, with its timestamp",
    "The window is closed",
    "Compressed stream (snappy): its smux frames are not shown",
    "Connection reset",
];
const PARITY: u64 = 0xF2;
const PUSH: u64 = 81;
const ACK: u64 = 82;
const CONTROL: u64 = 85;
/// Numbers of pings are 2^30 behind.
const FAR_BEHIND: u64 = 1 << 31;

/// A segment: command, number, timestamp and length. The number of a ping, and both of other segments than PUSH and
/// ACK, are 0.
type Segment = [u64; 4];

/// What is shown of all datagrams.
#[derive(Debug, Default)]
struct Shown {
    segments: Vec<Segment>,
    parity: u64,
    again: u64,
    smux_frames: u64,
}

/// The dissector shows all that the program says of the only connection, and nothing malformed.
pub(crate) fn shows_all(tshark: &Tshark, capture: &Capture, keys: &[&str]) {
    let connection = capture.connection(keys);
    let shown = Shown::of_file(tshark, &capture.decrypted(keys));
    let is_compressed = connection["smux"]["is_compressed"] == true;
    let expected = Shown::of_events(&capture.events(keys), &connection);
    shown.assert_has_all_of(&expected, is_compressed);
}

impl Shown {
    /// By the dissector, which knows KCP by its look.
    fn of_file(tshark: &Tshark, capture: &Path) -> Self {
        let mut arguments = vec!["-T", "fields", "-E", "separator=/t", "-E", "aggregator=|"];
        arguments.extend(FIELDS.iter().flat_map(|field| ["-e", field]));
        let text = tshark.read(&std::fs::read(capture).unwrap(), &arguments).unwrap();
        let mut shown = Self::default();
        for line in text.lines() {
            let values: Vec<Vec<&str>> =
                line.split('\t').map(|value| value.split_terminator('|').collect()).collect();
            let [notes, fec, segments @ .., again, smux] = &values[..] else { panic!("{line}") };
            assert!(notes.iter().all(|note| NOTES.contains(note)), "{line}");
            let columns: Vec<Vec<u64>> = segments.iter().map(|values| numbers(values)).collect();
            let count = columns[0].len();
            assert!(columns.iter().all(|values| values.len() == count), "{line}");
            let is_parity = numbers(fec) == [PARITY];
            assert!(count > 0 || is_parity, "{line}");
            shown.parity += u64::from(is_parity);
            shown.again += again.len() as u64;
            shown.smux_frames += smux.len() as u64;
            shown.segments.extend((0..count).map(|at| {
                let [command, sn, ts, len] = std::array::from_fn(|field| columns[field][at]);
                match command {
                    PUSH if sn >= FAR_BEHIND => [command, 0, ts, len],
                    PUSH | ACK => [command, sn, ts, len],
                    _ => [command, 0, 0, len],
                }
            }));
        }
        shown
    }
}

impl Shown {
    /// The dissector shows the frames of a segment each time that it was sent, and none that are compressed.
    fn assert_has_all_of(&self, expected: &Self, is_compressed: bool) {
        assert_eq!(self.segments, expected.segments);
        assert_eq!((self.parity, self.again), (expected.parity, expected.again));
        match is_compressed {
            true => assert_eq!(self.smux_frames, 0),
            false => assert!(self.smux_frames >= expected.smux_frames, "{self:?} {expected:?}"),
        }
    }

    /// By `kcpx-trace json` and the summary of the only connection.
    fn of_events(events: &[Value], connection: &Value) -> Self {
        let both = |names: &[&str]| {
            let sides = connection["sides"].as_array().unwrap();
            let number = |side: &Value, name: &str| side[name].as_u64().unwrap();
            sides.iter().map(|side| names.iter().map(|name| number(side, name)).sum::<u64>()).sum()
        };
        let segment = |event: &Value| -> Option<Segment> {
            let field = |name: &str| event[name].as_u64().unwrap_or_default();
            let command = match event["event"].as_str().unwrap() {
                "push" => PUSH,
                "ping" => return Some([PUSH, 0, field("cookie"), field("len")]),
                "ack" => ACK,
                "window_probe" => return Some([83, 0, 0, 0]),
                "window_update" => return Some([84, 0, 0, 0]),
                "fin" | "fin_ack" | "reset" | "reset_ack" | "hello" | "hello_ack" => {
                    return Some([CONTROL, 0, 0, 0]);
                }
                "smux" => return None,
                other => panic!("{other}: these peers do not send it"),
            };
            Some([command, field("sn"), field("ts"), field("len")])
        };
        let segments: Vec<Segment> = events.iter().filter_map(segment).collect();
        let smux_frames = (events.len() - segments.len()) as u64;
        let mut pings = HashSet::new();
        let is_repeated_ping = |event: &&Value| {
            let ping = [&event["from"], &event["cookie"]].map(Value::to_string);
            event["event"] == "ping" && !pings.insert(ping)
        };
        let pings_again = events.iter().filter(is_repeated_ping).count() as u64;
        let again = both(&["retransmissions", "copies"]) + pings_again;
        Self { segments, parity: both(&["parity"]), again, smux_frames }
    }
}

fn numbers(values: &[&str]) -> Vec<u64> {
    let number = |text: &&str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    };
    values.iter().map(number).collect()
}
