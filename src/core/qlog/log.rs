//! The records of a log: JSON text sequences (RFC 7464) in version 0.3 of the schema, which qvis reads.
//!
//! A segment of KCP is a packet of QUIC: it has a header and a number, and several share a datagram. Events have the
//! names of `draft-ietf-quic-qlog-quic-events` if QUIC has the same thing. Frames and metrics of KCP alone have names
//! of their own, which a reader of the schema ignores.

use std::iter::Peekable;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use crate::core::clock::Micros;
use crate::core::path::set::PathId;
use crate::core::recovery::loss::LossTrigger;
use crate::core::segment::{Command, ControlType, HEADER_LEN, Header, Segments};
use crate::core::seq::Sn;
use crate::error::ConnectionError;

/// Segments from which a run of one instant is one event with a `count`. A local path has millions of segments a second
/// in runs of a hundred; on a paced path runs are short, and each segment has its event, which readers match with ACKs.
const LEAST_RUN: u32 = 32;
/// Shortest time between two records of metrics, microseconds.
const METRICS_INTERVAL: u64 = 1_000;

/// The first byte of a record.
pub(crate) const RECORD_SEPARATOR: u8 = 0x1E;

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// Microseconds here, milliseconds in the log.
    Time,
    /// Bytes per second here, bits per second in the log.
    Rate,
    /// Bytes, segments or a count.
    Number,
}

/// Names and units of [`Metrics`], of the schema up to `pacing_rate`.
const METRICS: [(&str, Unit); 16] = [
    ("min_rtt", Unit::Time),
    ("smoothed_rtt", Unit::Time),
    ("rtt_variance", Unit::Time),
    ("pto_count", Unit::Number),
    ("congestion_window", Unit::Number),
    ("bytes_in_flight", Unit::Number),
    ("packets_in_flight", Unit::Number),
    ("pacing_rate", Unit::Rate),
    ("delivery_rate", Unit::Rate),
    ("inflight_hi", Unit::Number),
    ("bandwidth_lo", Unit::Rate),
    ("bdp", Unit::Number),
    ("loss_per_million", Unit::Number),
    ("rto", Unit::Time),
    ("peer_window", Unit::Number),
    ("unsent_bytes", Unit::Number),
];

/// Values in the order of [`METRICS`]; 0: unknown.
pub(crate) type Metrics = [u64; METRICS.len()];

/// The state of a connection that a log compares with the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The peer is validated.
    pub(crate) is_established: bool,
    /// Phase of the congestion control.
    pub(crate) phase: &'static str,
    pub(crate) mtu: usize,
    /// Number of the path on which data leaves, the first one if it leaves on all.
    pub(crate) path: PathId,
    /// Address of the peer on that path.
    pub(crate) peer: SocketAddr,
    pub(crate) metrics: Metrics,
}

/// The connection that a log belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Title {
    pub(crate) conv: u32,
    /// This side has opened the connection.
    pub(crate) is_client: bool,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// Microseconds from the Unix epoch to the start of the connection.
    pub(crate) reference_time: u64,
}

/// A file before its first event.
#[derive(Debug)]
pub(crate) struct Head {
    /// Name of the file, without extension.
    pub(crate) name: String,
    /// The record before all events.
    pub(crate) record: Vec<u8>,
}

impl Title {
    fn head(&self) -> Head {
        let (role, millis) =
            (if self.is_client { "client" } else { "server" }, self.reference_time / 1_000);
        Head { name: format!("{}-{millis}-{role}", self.conv), record: self.record() }
    }

    fn record(&self) -> Vec<u8> {
        let Self { conv, is_client, reference_time, .. } = *self;
        let mut out = vec![RECORD_SEPARATOR];
        out.extend_from_slice(
            br#"{"qlog_version":"0.3","qlog_format":"JSON-SEQ","title":"kcpx","trace":{"title":"conv "#,
        );
        number(&mut out, conv.into());
        out.extend_from_slice(br#"","vantage_point":{"type":""#);
        out.extend_from_slice(if is_client { b"client" } else { b"server" });
        out.extend_from_slice(br#""},"common_fields":{"time_format":"relative","#);
        out.extend_from_slice(br#""protocol_type":["KCP"],"reference_time":"#);
        millis(&mut out, reference_time);
        out.extend_from_slice(b"}}}\n");
        out
    }
}

/// Segments with consecutive numbers and one length, which left or came in one batch.
#[derive(Clone, Copy, Debug)]
struct Run {
    event: &'static str,
    time: Micros,
    first: Sn,
    count: u32,
    /// Payload of each, bytes.
    len: usize,
}

/// The events of one connection that the driver has not taken.
#[derive(Debug)]
pub(crate) struct Log {
    /// The file, among the files of the endpoint.
    pub(crate) id: u64,
    /// `None` once it is written.
    pub(crate) head: Option<Head>,
    records: Vec<u8>,
    /// Behind `records`, until another event ends it.
    run: Option<Run>,
    /// The latest `una` sent, and SND.UNA.
    una: [Sn; 2],
    /// As of the last record.
    state: State,
    metrics_at: Option<Micros>,
    has_ended: bool,
    /// Time of the last [`Self::on_state`].
    now: Micros,
    /// Records that were dropped so far, and whether `records` begins with a warning that says so.
    dropped: u64,
    has_warning: bool,
}

const SENT: &str = "transport:packet_sent";
const RECEIVED: &str = "transport:packet_received";

impl Log {
    pub(crate) fn new(id: u64, title: &Title) -> Self {
        let Title { conv, local, peer, .. } = *title;
        let metrics = Metrics::default();
        let (path, phase) = (PathId::FIRST, "");
        let state = State { is_established: false, phase, mtu: 0, path, peer, metrics };
        let mut log = Self {
            id,
            head: Some(title.head()),
            records: Vec::new(),
            run: None,
            una: [Sn(0); 2],
            state,
            metrics_at: None,
            has_ended: false,
            now: Micros(0),
            dropped: 0,
            has_warning: false,
        };
        let (src, dst) = (local.ip().to_canonical(), peer.ip().to_canonical());
        log.record(Micros(0), "connectivity:connection_started", |fields| {
            fields.text("ip_version", if dst.is_ipv4() { "v4" } else { "v6" });
            fields.text("src_ip", &src.to_string());
            fields.text("dst_ip", &dst.to_string());
            fields.text("protocol", "KCP");
            fields.number("src_port", local.port().into());
            fields.number("dst_port", peer.port().into());
            fields.number("conv", conv.into());
        });
        log
    }

    /// Writes a record.
    fn record(&mut self, now: Micros, name: &str, data: impl FnOnce(&mut Fields<'_>)) {
        self.end_run();
        let out = &mut self.records;
        begin(out, now, name);
        data(&mut Fields { out, is_first: true });
        out.extend_from_slice(b"}}\n");
    }

    /// A datagram was written.
    pub(crate) fn on_sent(&mut self, now: Micros, datagram: &[u8]) {
        let una = Header::parse(datagram).map_or(self.una[0], |header| header.una);
        let acked = advance(&mut self.una[0], una);
        self.on_datagram(now, SENT, datagram, acked, false);
    }

    /// A datagram was processed. `una`: SND.UNA afterwards.
    pub(crate) fn on_received(&mut self, now: Micros, datagram: &[u8], una: Sn, recovered: bool) {
        let acked = advance(&mut self.una[1], una);
        self.on_datagram(now, RECEIVED, datagram, acked, recovered);
    }

    /// Writes an event for each segment, and one for consecutive ACKs. `acked`: the numbers that `una` acknowledges
    /// for the first time.
    fn on_datagram(
        &mut self,
        now: Micros,
        event: &'static str,
        datagram: &[u8],
        acked: Range<u32>,
        recovered: bool,
    ) {
        let mut acked = Some(acked).filter(|acked| acked.start != acked.end);
        let mut segments = Segments::new(datagram).peekable();
        while let Some((header, payload)) = segments.next() {
            let is_data = header.command == Command::Push && !payload.is_empty();
            if is_data && acked.is_none() && !recovered {
                self.on_data(now, event, header.sn, payload.len());
                continue;
            }
            self.end_run();
            let out = &mut self.records;
            begin(out, now, event);
            let number = (header.command == Command::Push).then_some(header.sn);
            begin_frames(out, number);
            let mut length = HEADER_LEN + payload.len();
            if header.command == Command::Ack || acked.is_some() {
                let mut ranges = Ranges::begin(out);
                ranges.add(acked.take().unwrap_or_default());
                if header.command == Command::Ack {
                    ranges.add(one(header.sn));
                    length += HEADER_LEN * ranges.add_acks(&mut segments);
                }
                ranges.end();
            }
            if header.command != Command::Ack {
                if out.last() == Some(&b'}') {
                    out.push(b',');
                }
                frame(out, &header, payload.len());
            }
            end_frames(out, length, recovered, 1);
        }
    }

    /// Data was sent or received in a segment of its own, with nothing to note but number and length.
    fn on_data(&mut self, time: Micros, event: &'static str, sn: Sn, len: usize) {
        if let Some(run) = &mut self.run
            && (run.event, run.time, run.len) == (event, time, len)
            && run.first.advance(run.count) == sn
        {
            run.count += 1;
            return;
        }
        self.end_run();
        self.run = Some(Run { event, time, first: sn, count: 1, len });
    }

    /// Writes the run, if there is one.
    fn end_run(&mut self) {
        let Some(Run { event, time, first, count, len }) = self.run.take() else { return };
        let (events, segments) = if count < LEAST_RUN { (count, 1) } else { (1, count) };
        let out = &mut self.records;
        for index in 0..events {
            begin(out, time, event);
            begin_frames(out, Some(first.advance(index)));
            push_frame(out, len * segments as usize);
            end_frames(out, (HEADER_LEN + len) * segments as usize, false, segments);
        }
    }

    /// The last transmission of `sn` is lost.
    pub(crate) fn on_lost(&mut self, now: Micros, sn: Sn, trigger: LossTrigger) {
        self.end_run();
        let trigger = match trigger {
            // Early retransmit is the same with one acknowledged transmission.
            LossTrigger::FastRetransmit | LossTrigger::EarlyRetransmit => "reordering_threshold",
            LossTrigger::Rto => "pto_expired",
        };
        self.record(now, "recovery:packet_lost", |fields| {
            fields.object("header", |header| {
                header.text("packet_type", "1RTT");
                header.number("packet_number", sn.0.into());
            });
            fields.text("trigger", trigger);
        });
    }

    /// Writes an event for each part of the state that has changed, until the connection has ended.
    pub(crate) fn on_state(&mut self, now: Micros, state: State) {
        self.now = now;
        if self.has_ended {
            return;
        }
        if state.is_established != self.state.is_established {
            self.record(now, "connectivity:connection_state_updated", |fields| {
                fields.text("old", "attempted");
                fields.text("new", "peer_validated");
            });
        }
        if state.phase != self.state.phase {
            let old = self.state.phase;
            self.record(now, "recovery:congestion_state_updated", |fields| {
                if !old.is_empty() {
                    fields.text("old", old);
                }
                fields.text("new", state.phase);
            });
        }
        if state.mtu != self.state.mtu {
            let old = self.state.mtu;
            self.record(now, "connectivity:mtu_updated", |fields| {
                if old > 0 {
                    fields.number("old", old as u64);
                }
                fields.number("new", state.mtu as u64);
            });
        }
        if (state.path, state.peer) != (self.state.path, self.state.peer) {
            self.record(now, "connectivity:path_assigned", |fields| {
                fields.text("path_id", &state.path.0.to_string());
                fields.object("path_remote", |path| {
                    let (ip, port) = match state.peer.ip().to_canonical() {
                        IpAddr::V4(_) => ("ip_v4", "port_v4"),
                        IpAddr::V6(_) => ("ip_v6", "port_v6"),
                    };
                    path.text(ip, &state.peer.ip().to_canonical().to_string());
                    path.number(port, state.peer.port().into());
                });
            });
        }
        let is_due = self.metrics_at.is_none_or(|at| now.since(at) >= METRICS_INTERVAL);
        let before = self.state.metrics;
        self.state = state;
        if !is_due || self.state.metrics == before {
            self.state.metrics = before;
            return;
        }
        self.metrics_at = Some(now);
        let metrics = self.state.metrics;
        self.record(now, "recovery:metrics_updated", |fields| {
            for (((name, unit), value), before) in METRICS.iter().zip(metrics).zip(before) {
                if value == before {
                    continue;
                }
                match unit {
                    Unit::Time => fields.millis(name, value),
                    Unit::Rate => fields.number(name, value.saturating_mul(8)),
                    Unit::Number => fields.number(name, value),
                }
            }
        });
    }

    /// The connection has ended.
    pub(crate) fn on_ended(&mut self, now: Micros, reason: ConnectionError) {
        self.has_ended = true;
        self.record(now, "connectivity:connection_closed", |fields| {
            fields.text("reason", &reason.to_string());
        });
    }

    /// The records since the last [`Self::clear`].
    pub(crate) fn records(&mut self) -> &[u8] {
        self.end_run();
        &self.records
    }

    /// The records are written.
    pub(crate) fn clear(&mut self) {
        self.records.clear();
        self.has_warning = false;
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        self.records.capacity()
    }

    /// Frees what an idle connection does not need.
    pub(crate) fn release_memory(&mut self) {
        self.records.shrink_to_fit();
    }

    /// The records cannot be written: a warning takes their place.
    pub(crate) fn drop_records(&mut self) {
        let count = self.records().iter().filter(|byte| **byte == RECORD_SEPARATOR).count() as u64;
        self.dropped += count - u64::from(self.has_warning);
        self.records = Vec::new();
        let message = format!("{} events were dropped: they came too fast", self.dropped);
        self.record(self.now, "loglevel:warning", |fields| fields.text("message", &message));
        self.has_warning = true;
    }
}

/// Sets `una` to a later number. Returns the numbers in between.
fn advance(una: &mut Sn, to: Sn) -> Range<u32> {
    if to.since(*una) <= 0 {
        return 0..0;
    }
    let from = mem::replace(una, to);
    from.0..to.0
}

/// The range of one number.
fn one(sn: Sn) -> Range<u32> {
    sn.0..sn.advance(1).0
}

/// An ACK frame: ranges of numbers, consecutive ones joined.
struct Ranges<'a> {
    out: &'a mut Vec<u8>,
    range: Range<u32>,
}

impl<'a> Ranges<'a> {
    fn begin(out: &'a mut Vec<u8>) -> Self {
        out.extend_from_slice(br#"{"frame_type":"ack","acked_ranges":["#);
        Self { out, range: 0..0 }
    }

    /// Adds the numbers of the ACKs that come next. Returns how many.
    fn add_acks<'b>(
        &mut self,
        segments: &mut Peekable<impl Iterator<Item = (Header, &'b [u8])>>,
    ) -> usize {
        let mut count = 0;
        while let Some((header, _)) = segments.next_if(|(next, _)| next.command == Command::Ack) {
            self.add(one(header.sn));
            count += 1;
        }
        count
    }

    fn add(&mut self, range: Range<u32>) {
        if range.start == range.end {
            return;
        }
        if self.range.start != self.range.end && self.range.end == range.start {
            self.range.end = range.end;
            return;
        }
        self.write();
        self.range = range;
    }

    fn write(&mut self) {
        if self.range.start == self.range.end {
            return;
        }
        if self.out.last() == Some(&b']') {
            self.out.push(b',');
        }
        self.out.push(b'[');
        number(self.out, self.range.start.into());
        self.out.push(b',');
        number(self.out, self.range.end.wrapping_sub(1).into());
        self.out.push(b']');
    }

    fn end(mut self) {
        self.write();
        self.out.extend_from_slice(b"]}");
    }
}

/// Fields of an object.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    is_first: bool,
}

impl Fields<'_> {
    fn name(&mut self, name: &str) {
        if !mem::take(&mut self.is_first) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        number(self.out, value);
    }

    /// A time in microseconds.
    fn millis(&mut self, name: &str, micros: u64) {
        self.name(name);
        millis(self.out, micros);
    }

    /// Texts of this crate alone: they hold no control character.
    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        self.out.push(b'"');
        for byte in text.bytes() {
            if matches!(byte, b'"' | b'\\') {
                self.out.push(b'\\');
            }
            self.out.push(byte);
        }
        self.out.push(b'"');
    }

    fn object(&mut self, name: &str, fields: impl FnOnce(&mut Fields<'_>)) {
        self.name(name);
        self.out.push(b'{');
        fields(&mut Fields { out: self.out, is_first: true });
        self.out.push(b'}');
    }
}

/// Begins a record; the fields of `data` follow.
fn begin(out: &mut Vec<u8>, time: Micros, name: &str) {
    out.push(RECORD_SEPARATOR);
    out.extend_from_slice(br#"{"time":"#);
    millis(out, time.0);
    out.extend_from_slice(br#","name":""#);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(br#"","data":{"#);
}

/// Begins the data of a packet; its frames follow.
fn begin_frames(out: &mut Vec<u8>, packet_number: Option<Sn>) {
    out.extend_from_slice(br#""header":{"packet_type":"1RTT""#);
    if let Some(sn) = packet_number {
        out.extend_from_slice(br#","packet_number":"#);
        number(out, sn.0.into());
    }
    out.extend_from_slice(br#"},"frames":["#);
}

/// Ends the record of a packet of `length` bytes, or of `count` packets with consecutive numbers.
fn end_frames(out: &mut Vec<u8>, length: usize, recovered: bool, count: u32) {
    out.extend_from_slice(br#"],"raw":{"length":"#);
    number(out, length as u64);
    out.push(b'}');
    if recovered {
        out.extend_from_slice(br#","trigger":"fec""#);
    }
    if count > 1 {
        out.extend_from_slice(br#","count":"#);
        number(out, count.into());
    }
    out.extend_from_slice(b"}}\n");
}

/// A segment other than an ACK.
fn frame(out: &mut Vec<u8>, header: &Header, len: usize) {
    let name = match header.command {
        Command::Push if len > 0 => return push_frame(out, len),
        Command::Push => "ping",
        Command::Ack => "ack",
        Command::WindowProbe => "window_probe",
        Command::WindowUpdate => "window_update",
        Command::Repair => "repair",
        Command::Control => match ControlType::from_frg(header.frg) {
            Some(ControlType::Fin) => "fin",
            Some(ControlType::FinAck) => "fin_ack",
            Some(ControlType::Reset) => "rst",
            Some(ControlType::ResetAck) => "rst_ack",
            Some(ControlType::Hello) => "hello",
            Some(ControlType::HelloAck) => "hello_ack",
            Some(ControlType::Path) => "path",
            None => "control",
        },
    };
    out.extend_from_slice(br#"{"frame_type":""#);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\"}");
}

fn push_frame(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(br#"{"frame_type":"push","length":"#);
    number(out, len as u64);
    out.push(b'}');
}

/// Appends `value` in decimal.
fn number(out: &mut Vec<u8>, mut value: u64) {
    let (mut digits, mut start) = ([0; 20], 20);
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
        start -= 1;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(start..).unwrap_or_default());
}

/// Appends a time in microseconds as milliseconds with three decimals.
fn millis(out: &mut Vec<u8>, micros: u64) {
    number(out, micros / 1_000);
    let rest = micros % 1_000;
    out.push(b'.');
    out.extend([100, 10, 1].map(|unit| b'0' + (rest / unit % 10) as u8));
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::core::seq::Ts;

    /// The log of conversation 7, with one event.
    pub(crate) fn log(id: u64, is_client: bool) -> Log {
        let (local, peer) = ("10.0.0.1:1".parse().unwrap(), "[2001:db8::2]:2".parse().unwrap());
        Log::new(id, &Title { conv: 7, is_client, local, peer, reference_time: 1_234_567 })
    }

    /// Adds an event.
    pub(crate) fn add_event(log: &mut Log) {
        log.on_ended(Micros(1), ConnectionError::Closed);
    }

    fn new() -> Log {
        let mut log = log(1, true);
        assert_eq!(taken(&mut log).len(), 1);
        log
    }

    /// The events since the last call.
    fn taken(log: &mut Log) -> Vec<Value> {
        let text = String::from_utf8(log.records().to_vec()).unwrap();
        log.clear();
        text.split('\x1E').skip(1).map(|record| serde_json::from_str(record).unwrap()).collect()
    }

    fn segment(command: Command, sn: u32, una: u32, len: u32) -> Vec<u8> {
        let mut datagram = Vec::new();
        let (sn, una) = (Sn(sn), Sn(una));
        Header { conv: 7, command, frg: 0, wnd: 9, ts: Ts(0), sn, una, len }.emit(&mut datagram);
        datagram.resize(HEADER_LEN + len as usize, 0);
        datagram
    }

    #[test]
    fn head_has_version_role_and_reference_time() {
        let mut log = log(1, false);
        let head = log.head.take().unwrap();
        assert_eq!(head.name, "7-1234-server");
        let record: Value = serde_json::from_slice(&head.record[1..]).unwrap();
        let common = json!({
            "time_format": "relative", "protocol_type": ["KCP"], "reference_time": 1_234.567
        });
        let trace = json!({
            "title": "conv 7", "vantage_point": {"type": "server"}, "common_fields": common
        });
        let expected = json!({
            "qlog_version": "0.3", "qlog_format": "JSON-SEQ", "title": "kcpx", "trace": trace
        });
        assert_eq!(record, expected);
        let started = json!({
            "ip_version": "v6", "src_ip": "10.0.0.1", "dst_ip": "2001:db8::2", "protocol": "KCP",
            "src_port": 1, "dst_port": 2, "conv": 7
        });
        let name = "connectivity:connection_started";
        assert_eq!(taken(&mut log), [json!({"time": 0.0, "name": name, "data": started})]);
    }

    #[test]
    fn state_after_the_end_is_not_logged() {
        let mut log = new();
        let state = State { mtu: 1_200, metrics: [1; METRICS.len()], ..log.state.clone() };
        log.on_ended(Micros(5_000), ConnectionError::Closed);
        log.on_state(Micros(9_000), state);
        let events = taken(&mut log);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["name"], "connectivity:connection_closed");
    }

    #[test]
    fn data_segment_has_number_and_length() {
        let mut log = new();
        log.on_sent(Micros(1_002_003), &segment(Command::Push, 5, 0, 100));
        let header = json!({"packet_type": "1RTT", "packet_number": 5});
        let frames = json!([{"frame_type": "push", "length": 100}]);
        let data = json!({"header": header, "frames": frames, "raw": {"length": 124}});
        let expected = json!({"time": 1_002.003, "name": SENT, "data": data});
        assert_eq!(taken(&mut log), [expected]);
    }

    #[test]
    fn acks_of_a_datagram_are_one_event_with_una_and_joined_ranges() {
        let mut log = new();
        let acks = [5, 6, 9].map(|sn| segment(Command::Ack, sn, 3, 0)).concat();
        let datagram = [acks, segment(Command::WindowUpdate, 0, 3, 0)].concat();
        log.on_received(Micros(0), &datagram, Sn(3), false);
        let events = taken(&mut log);
        assert_eq!(events.len(), 2);
        let frames = json!([{"frame_type": "ack", "acked_ranges": [[0, 2], [5, 6], [9, 9]]}]);
        assert_eq!(events[0]["data"]["frames"], frames);
        assert_eq!(events[0]["data"]["raw"]["length"], 3 * HEADER_LEN);
        assert_eq!(events[0]["data"]["header"], json!({"packet_type": "1RTT"}), "no number");
        assert_eq!(events[1]["data"]["frames"], json!([{"frame_type": "window_update"}]));
    }

    #[test]
    fn una_is_an_ack_frame_once() {
        let mut log = new();
        for sn in 0..2 {
            log.on_sent(Micros(0), &segment(Command::Push, sn, 4, 10));
        }
        // Across the end of the numbers.
        log.una[0] = Sn(u32::MAX - 1);
        log.on_sent(Micros(0), &segment(Command::Push, 2, 1, 10));
        // One number more, and one that is older.
        for (sn, una) in [(3, 2), (4, 1)] {
            log.on_sent(Micros(0), &segment(Command::Push, sn, una, 10));
        }
        let events = taken(&mut log);
        let push = json!({"frame_type": "push", "length": 10});
        let ack =
            |first: u32, last: u32| json!({"frame_type": "ack", "acked_ranges": [[first, last]]});
        let frames: Vec<_> = events.iter().map(|event| event["data"]["frames"].clone()).collect();
        let wrapped = json!([ack(u32::MAX - 1, 0), push]);
        let alone = json!([push]);
        let expected =
            [json!([ack(0, 3), push]), alone.clone(), wrapped, json!([ack(1, 1), push]), alone];
        assert_eq!(frames, expected);
        let numbers = events.iter().map(|event| &event["data"]["header"]["packet_number"]);
        assert!(numbers.eq(0..5), "of the data, also in an event with an ACK");
    }

    #[test]
    fn run_of_equal_segments_at_one_time_is_one_event_from_32_on() {
        for (count, events) in [(31, 31), (32, 1)] {
            let mut log = new();
            for sn in 0..count {
                log.on_sent(Micros(0), &segment(Command::Push, sn, 0, 100));
            }
            assert_eq!(taken(&mut log).len(), events);
        }
        let mut log = new();
        let segments = [(0, 0, 100), (0, 1, 100), (1, 2, 100), (1, 3, 99), (1, 5, 99)];
        for (time, sn, len) in segments {
            log.on_received(Micros(time), &segment(Command::Push, sn, 0, len), Sn(0), false);
        }
        assert_eq!(log.run.map(|run| run.count), Some(1), "time, length and number begin a run");
        assert_eq!(taken(&mut log).len(), 5);
    }

    #[test]
    fn only_changed_metrics_are_logged_and_once_a_millisecond() {
        let mut log = new();
        let mut state = log.state.clone();
        state.metrics[0] = 1_500;
        log.on_state(Micros(0), state.clone());
        (state.metrics[0], state.metrics[7]) = (1_500, 1_000);
        log.on_state(Micros(999), state.clone());
        let events = taken(&mut log);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["data"], json!({"min_rtt": 1.5}));
        log.on_state(Micros(1_000), state.clone());
        log.on_state(Micros(9_000), state);
        let events = taken(&mut log);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["data"], json!({"pacing_rate": 8_000}));
    }

    #[test]
    fn numbers_are_written_whole() {
        for value in [0, 9, 10, 1_234_567_890, u64::MAX] {
            let mut out = Vec::new();
            number(&mut out, value);
            assert_eq!(out, value.to_string().into_bytes());
        }
        let mut out = Vec::new();
        millis(&mut out, 12_005);
        assert_eq!(out, b"12.005");
    }

    #[test]
    fn dropped_events_are_counted_without_the_warnings() {
        let mut log = new();
        for expected in ["2 events", "3 events"] {
            log.on_lost(Micros(0), Sn(1), LossTrigger::Rto);
            if expected == "2 events" {
                log.on_lost(Micros(0), Sn(2), LossTrigger::FastRetransmit);
            }
            log.drop_records();
            assert!(String::from_utf8_lossy(log.records()).contains(expected));
        }
        assert_eq!(taken(&mut log).len(), 1);
    }
}
