//! A picture of a connection from its log (`Config::qlog` of kcpx): segment numbers, rates, bytes in flight with the
//! limits of the congestion control, and round trips, over the phases of its model.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::plot::{Colour, Figure, Line, Mark, Panel, Points};

/// The first byte of a record (RFC 7464).
const RECORD_SEPARATOR: u8 = 0x1E;

/// Most segments of one event: the largest window.
const MAX_COUNT: u64 = 65_535;

/// Phases of the congestion control: name in the log, in the picture, and colour.
const PHASES: [(&str, &str, Colour); 10] = [
    ("off", "off", Colour(0x77_77_77)),
    ("reno", "reno", Colour(0x77_77_77)),
    ("unmodelled", "no model", Colour(0x77_77_77)),
    ("startup", "startup", Colour(0xd5_5e_00)),
    ("drain", "drain", Colour(0xe6_9f_00)),
    ("probe_bw_down", "down", Colour(0xcc_79_a7)),
    ("probe_bw_cruise", "cruise", Colour(0x00_72_b2)),
    ("probe_bw_refill", "refill", Colour(0x56_b4_e9)),
    ("probe_bw_up", "up", Colour(0x00_9e_73)),
    ("probe_rtt", "probe RTT", Colour(0x00_00_00)),
];

/// Lines from the fields of `recovery:metrics_updated`: name in the log, in the picture, colour, and how many of the
/// log's unit are one of the picture's.
type Metric = (&'static str, &'static str, Colour, f64);

const RATES: [Metric; 3] = [
    ("pacing_rate", "pacing rate", Colour(0xd5_5e_00), 1e6),
    ("delivery_rate", "bandwidth", Colour(0x00_72_b2), 1e6),
    ("bandwidth_lo", "bandwidth after a loss", Colour(0x00_9e_73), 1e6),
];
const FLIGHT: [Metric; 4] = [
    ("bytes_in_flight", "in flight", Colour(0x00_72_b2), 1e3),
    ("congestion_window", "window", Colour(0xd5_5e_00), 1e3),
    ("inflight_hi", "most without loss", Colour(0xcc_79_a7), 1e3),
    ("bdp", "bandwidth times delay", Colour(0x00_9e_73), 1e3),
];
const RTTS: [Metric; 2] = [
    ("smoothed_rtt", "smoothed", Colour(0x00_72_b2), 1.0),
    ("min_rtt", "minimum", Colour(0x00_9e_73), 1.0),
];

/// Whether the file is a log, and no capture.
pub(crate) fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sqlog")
}

/// Draws the log.
pub(crate) fn figure(path: &Path) -> Result<Figure> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    read(BufReader::new(file)).with_context(|| format!("cannot draw {}", path.display()))
}

fn read(log: impl BufRead) -> Result<Figure> {
    let mut records = log.split(RECORD_SEPARATOR);
    let before = records.next().transpose()?;
    ensure!(before.is_none_or(|text| text.is_empty()), "it is no JSON text sequence (RFC 7464)");
    let head: Value = serde_json::from_slice(&records.next().context("it is empty")??)?;
    ensure!(head["qlog_format"] == "JSON-SEQ", "it is no qlog of the format JSON-SEQ");
    let mut picture = Picture::new(&head["trace"]);
    for record in records {
        let record = record?;
        // A log ends within a record if its disk was full (RFC 7464 2.1).
        if !record.ends_with(b"\n") {
            picture.is_cut = true;
            break;
        }
        picture.add(&serde_json::from_slice(&record)?);
    }
    Ok(picture.figure())
}

/// An event.
#[derive(Debug, Deserialize)]
struct Record {
    /// Milliseconds since the start of the connection.
    time: f64,
    name: String,
    data: Value,
}

/// Data that one side sends.
struct Direction {
    segments: u64,
    bytes: u64,
    highest: u64,
    highest_acked: u64,
    pushes: Points,
    acknowledged: Points,
}

impl Direction {
    fn new() -> Self {
        Self {
            segments: 0,
            bytes: 0,
            highest: 0,
            highest_acked: 0,
            pushes: Points::new(),
            acknowledged: Points::new(),
        }
    }

    /// A packet of this direction.
    fn add(&mut self, at: f64, data: &Value) {
        let pushes = frames(data).filter(|frame| frame["frame_type"] == "push");
        let bytes: u64 = pushes.filter_map(|frame| frame["length"].as_u64()).sum();
        let Some(number) = number(data).filter(|_| bytes > 0) else { return };
        let count = data["count"].as_u64().unwrap_or(1).min(MAX_COUNT);
        self.segments += count;
        self.bytes += bytes;
        let end = number.saturating_add(count);
        self.highest = self.highest.max(end - 1);
        (number..end).for_each(|number| self.pushes.push(at, number as f64));
    }

    /// A packet of the other direction: the ACKs in it.
    fn acknowledge(&mut self, at: f64, data: &Value) {
        let ranges = frames(data).filter_map(|frame| frame["acked_ranges"].as_array()).flatten();
        // The numbers of pings lie far from the numbers of data.
        let known = |last: &u64| self.segments > 0 && *last <= self.highest;
        let Some(last) = ranges.filter_map(|range| range[1].as_u64()).filter(known).max() else {
            return;
        };
        self.highest_acked = self.highest_acked.max(last);
        self.acknowledged.push(at, self.highest_acked as f64);
    }
}

/// A metric, which keeps its value until the next.
struct Held {
    value: Option<f64>,
    points: Points,
}

impl Held {
    fn new() -> Self {
        Self { value: None, points: Points::new() }
    }
}

struct Picture {
    title: String,
    sent: Direction,
    received: Direction,
    lost: Points,
    /// Time of the last event, seconds.
    end: f64,
    phase: Option<usize>,
    phases: [Points; PHASES.len()],
    rates: [Held; RATES.len()],
    flight: [Held; FLIGHT.len()],
    rtts: [Held; RTTS.len()],
    losses: u64,
    /// How many events the log lacks.
    dropped: Option<String>,
    is_cut: bool,
    reason: Option<String>,
}

impl Picture {
    fn new(trace: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        Self {
            title: format!("{}, {}", text(&trace["title"]), text(&trace["vantage_point"]["type"])),
            sent: Direction::new(),
            received: Direction::new(),
            lost: Points::new(),
            end: 0.0,
            phase: None,
            phases: std::array::from_fn(|_| Points::new()),
            rates: std::array::from_fn(|_| Held::new()),
            flight: std::array::from_fn(|_| Held::new()),
            rtts: std::array::from_fn(|_| Held::new()),
            losses: 0,
            dropped: None,
            is_cut: false,
            reason: None,
        }
    }

    fn add(&mut self, record: &Record) {
        let (at, data) = (record.time / 1e3, &record.data);
        self.end = at;
        match record.name.as_str() {
            "transport:packet_sent" => {
                self.sent.add(at, data);
                self.received.acknowledge(at, data);
            }
            "transport:packet_received" => {
                self.received.add(at, data);
                self.sent.acknowledge(at, data);
            }
            "recovery:packet_lost" => {
                self.losses += 1;
                number(data).into_iter().for_each(|number| self.lost.push(at, number as f64));
            }
            "recovery:congestion_state_updated" => {
                self.add_phase(at);
                self.phase = PHASES.iter().position(|(phase, ..)| data["new"] == *phase);
                self.add_phase(at);
            }
            "recovery:metrics_updated" => {
                self.add_metrics(at, data);
                self.add_phase(at);
            }
            "connectivity:connection_closed" => {
                self.reason = data["reason"].as_str().map(str::to_owned);
            }
            "loglevel:warning" => self.dropped = data["message"].as_str().map(str::to_owned),
            _ => {}
        }
    }

    fn add_phase(&mut self, at: f64) {
        let Some(phase) = self.phase else { return };
        self.phases[phase].push(at, phase as f64);
    }

    /// Adds all metrics: those that an event leaves out keep their value.
    fn add_metrics(&mut self, at: f64, data: &Value) {
        for (metrics, held) in [
            (&RATES[..], &mut self.rates[..]),
            (&FLIGHT[..], &mut self.flight[..]),
            (&RTTS[..], &mut self.rtts[..]),
        ] {
            for ((name, _, _, unit), held) in metrics.iter().zip(held) {
                held.value = data[name].as_f64().map(|value| value / unit).or(held.value);
                held.value.into_iter().for_each(|value| held.points.push(at, value));
            }
        }
    }

    fn note(&self, data: &Direction) -> String {
        let what = if std::ptr::eq(data, &self.sent) { "sent" } else { "received" };
        let mut note = format!("{} segments {what}, {} bytes", data.segments, data.bytes);
        let more = [
            (self.losses > 0).then(|| format!("; {} lost", self.losses)),
            self.reason.as_ref().map(|reason| format!("; ended: {reason}")),
            self.dropped.as_ref().map(|dropped| format!("; {dropped}")),
            self.is_cut.then(|| "; the log is cut short".to_owned()),
        ];
        note.extend(more.into_iter().flatten());
        note
    }

    /// Draws the direction with more data.
    fn figure(mut self) -> Figure {
        self.add_metrics(self.end, &Value::Null);
        let sends = self.sent.bytes >= self.received.bytes;
        let note = self.note(if sends { &self.sent } else { &self.received });
        let (name, data) = if sends { ("sent", self.sent) } else { ("received", self.received) };
        let mut marks = vec![(name, Mark::Tick(Colour(0x00_72_b2)), data.pushes)];
        if sends {
            marks.push(("lost", Mark::Cross(Colour(0xd5_5e_00)), self.lost));
        }
        let line = |((_, name, colour, _), held): (&Metric, Held)| Line {
            name,
            colour: *colour,
            points: held.points,
        };
        let lines = |metrics: &[Metric], held: Vec<Held>| -> Vec<Line> {
            metrics.iter().zip(held).map(line).collect()
        };
        let panel = |label, height, lines| Panel { label, height, lines, marks: Vec::new() };
        let acknowledged =
            Line { name: "acknowledged", colour: Colour(0x00_00_00), points: data.acknowledged };
        let phases = PHASES.iter().zip(self.phases);
        let phases = phases.map(|((_, name, colour), points)| (*name, Mark::Dot(*colour), points));
        Figure {
            title: self.title,
            note,
            seconds: self.end,
            panels: vec![
                Panel { label: "segment number", height: 320.0, lines: vec![acknowledged], marks },
                panel("Mbit/s", 160.0, lines(&RATES, self.rates.into())),
                panel("kB in flight", 160.0, lines(&FLIGHT, self.flight.into())),
                panel("ms of a round trip", 120.0, lines(&RTTS, self.rtts.into())),
                Panel { label: "phase", height: 90.0, lines: Vec::new(), marks: phases.collect() },
            ],
        }
    }
}

fn number(data: &Value) -> Option<u64> {
    data["header"]["packet_number"].as_u64()
}

fn frames(data: &Value) -> impl Iterator<Item = &Value> {
    data["frames"].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "\x1E{\"qlog_version\":\"0.3\",\"qlog_format\":\"JSON-SEQ\",\"trace\":\
        {\"title\":\"conv 7\",\"vantage_point\":{\"type\":\"client\"}}}\n";

    /// A log of events with these names and data, one each 10 ms.
    fn log(events: &[(&str, &str)]) -> String {
        let mut log = HEAD.to_owned();
        for (index, (name, data)) in events.iter().enumerate() {
            let time = index * 10;
            log += &format!("\x1E{{\"time\":{time},\"name\":\"{name}\",\"data\":{data}}}\n");
        }
        log
    }

    const SENT: (&str, &str) = (
        "transport:packet_sent",
        r#"{"header":{"packet_number":3},"count":9,"frames":[{"frame_type":"push","length":900}]}"#,
    );

    #[test]
    fn log_becomes_a_picture_with_losses_rates_and_phases() {
        let acks = r#"{"frames":[{"frame_type":"ack","acked_ranges":[[3,5],[9,9],[99,99]]}]}"#;
        let metrics = r#"{"pacing_rate":8000000,"bytes_in_flight":2000,"smoothed_rtt":20.5}"#;
        let text = log(&[
            ("recovery:congestion_state_updated", r#"{"new":"startup"}"#),
            SENT,
            ("transport:packet_received", acks),
            ("recovery:metrics_updated", metrics),
            ("recovery:packet_lost", r#"{"header":{"packet_number":4}}"#),
            ("recovery:congestion_state_updated", r#"{"old":"startup","new":"drain"}"#),
            ("connectivity:connection_closed", r#"{"reason":"done"}"#),
            ("of:another_kind", "{}"),
        ]);
        let figure = read(text.as_bytes()).unwrap();
        assert_eq!(figure.title, "conv 7, client");
        assert_eq!(figure.note, "9 segments sent, 900 bytes; 1 lost; ended: done");
        let values = |points: &Points| points.values().to_vec();
        let [numbers, rates, flight, rtts, phases] = figure.panels.try_into().unwrap();
        assert_eq!(values(&numbers.lines[0].points), [(0.02, 9.0)]);
        let sent: Vec<_> = (3..12).map(|number| (0.01, f64::from(number))).collect();
        assert_eq!(values(&numbers.marks[0].2), sent);
        assert_eq!(values(&numbers.marks[1].2), [(0.04, 4.0)]);
        assert_eq!(values(&rates.lines[0].points), [(0.03, 8.0), (0.07, 8.0)]);
        assert_eq!(values(&flight.lines[0].points), [(0.03, 2.0), (0.07, 2.0)]);
        assert_eq!(values(&rtts.lines[0].points), [(0.03, 20.5), (0.07, 20.5)]);
        let of = |name: &str| {
            let mark = phases.marks.iter().find(|(mark, ..)| *mark == name).unwrap();
            values(&mark.2).iter().map(|(at, _)| *at).collect::<Vec<_>>()
        };
        assert_eq!((of("startup"), of("drain")), (vec![0.0, 0.03, 0.05], vec![0.05]));
    }

    #[test]
    fn log_of_the_receiver_shows_received_segments() {
        let (_, data) = SENT;
        let figure = read(log(&[("transport:packet_received", data)]).as_bytes()).unwrap();
        assert_eq!(figure.note, "9 segments received, 900 bytes");
        assert_eq!(figure.panels[0].marks[0].2.values().len(), 9);
    }

    #[test]
    fn log_that_ends_within_a_record_is_drawn_up_to_it() {
        let text = log(&[SENT, SENT]);
        let figure = read(&text.as_bytes()[..text.len() - 10]).unwrap();
        assert_eq!(figure.note, "9 segments sent, 900 bytes; the log is cut short");
    }

    #[test]
    fn other_files_are_errors() {
        let error = |text: &str| read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(error(""), "it is empty");
        assert_eq!(error("{}"), "it is no JSON text sequence (RFC 7464)");
        assert_eq!(error("\x1E{}\n"), "it is no qlog of the format JSON-SEQ");
    }
}
