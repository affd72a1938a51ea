//! A path that records what both sides send into it and what arrives, and the program on these captures.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kcpx_netem::{Link, Relay};
use kcpx_trace::pcap::{ip_packet, write_header, write_record};
use serde_json::Value;
use tempfile::TempDir;

/// Of both ends of a capture. Wireshark expects another protocol on port 4000.
const PORT: u16 = 40_000;
const DELAY: Duration = Duration::from_millis(10);
/// One in this number of the first datagrams is lost. ACKs at the end arrive.
const LOSES: u64 = 10;
const LOSSY: u64 = 90;
/// So that a stall ends; nothing is measured by it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A datagram with its time in nanoseconds and the side that sent it.
pub(crate) type Datagram = (u64, usize, Vec<u8>);

/// What both sides sent, and what came out of the path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) sent: Vec<Datagram>,
    pub(crate) arrived: Vec<Datagram>,
}

pub(crate) type Recording = Arc<Mutex<Recorded>>;

/// A direction that records what is sent into it, and loses some of it.
struct Recorder {
    side: usize,
    recording: Recording,
    sent: u64,
    under_way: VecDeque<(Duration, Vec<u8>)>,
}

impl Link for Recorder {
    type Counts = ();

    fn push(&mut self, now: Duration, packet: &[u8]) {
        let datagram = (now.as_nanos() as u64, self.side, packet.to_vec());
        self.recording.lock().unwrap().sent.push(datagram);
        self.sent += 1;
        if self.sent > LOSSY || !self.sent.is_multiple_of(LOSES) {
            self.under_way.push_back((now + DELAY, packet.to_vec()));
        }
    }

    fn next_due(&self) -> Option<Duration> {
        self.under_way.front().map(|(due, _)| *due)
    }

    fn pop_due_within(&mut self, now: Duration, grain: Duration) -> Option<Vec<u8>> {
        let is_due = self.next_due()? <= now + grain;
        let packet = is_due.then(|| self.under_way.pop_front()).flatten()?.1;
        let datagram = (now.as_nanos() as u64, self.side, packet.clone());
        self.recording.lock().unwrap().arrived.push(datagram);
        Some(packet)
    }

    fn refused(&mut self, _: usize) {}

    fn counts(&self) {}
}

/// A path to `server`, and what passes there.
pub(crate) async fn path(server: SocketAddr) -> (Relay, Recording) {
    let recording = Recording::default();
    let link =
        |side| Recorder { side, recording: recording.clone(), sent: 0, under_way: VecDeque::new() };
    (Relay::over(server, [link(0), link(1)]).await.unwrap(), recording)
}

/// A capture file.
#[derive(Debug)]
pub(crate) struct Capture {
    folder: TempDir,
}

impl Capture {
    /// Of datagrams between 192.0.2.1 and 192.0.2.2.
    pub(crate) fn of(datagrams: &[Datagram]) -> Self {
        let mut pcap = Vec::new();
        write_header(&mut pcap).unwrap();
        let ends = [1, 2].map(|last| SocketAddr::from(([192, 0, 2, last], PORT)));
        for (at, side, datagram) in datagrams {
            let packet = ip_packet(ends[*side], ends[1 - *side], datagram).unwrap();
            write_record(&mut pcap, *at, &packet).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let capture = Self { folder };
        std::fs::write(capture.file(), pcap).unwrap();
        capture
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("peers.pcap")
    }

    /// What a command of the program prints.
    pub(crate) fn run(&self, command: &str, options: &[&str]) -> Vec<u8> {
        let mut program = Command::new(env!("CARGO_BIN_EXE_kcpx-trace"));
        program.arg(command).arg(self.file());
        let output = program.args(options).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    pub(crate) fn summary(&self, keys: &[&str]) -> Value {
        let summary = self.run("summary", &[&["--json"], keys].concat());
        serde_json::from_slice(&summary).unwrap()
    }

    /// What `summary` says of the only connection.
    pub(crate) fn connection(&self, keys: &[&str]) -> Value {
        let summary = self.summary(keys);
        assert_eq!(summary["datagrams"]["undecoded"], 0, "{summary}");
        assert_eq!(summary["connections"].as_array().unwrap().len(), 1, "{summary}");
        summary["connections"][0].clone()
    }

    pub(crate) fn events(&self, keys: &[&str]) -> Vec<Value> {
        let events = self.run("json", keys);
        let lines = events.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    /// Segments of a side, of all types.
    pub(crate) fn segments(&self, side: usize, keys: &[&str]) -> u64 {
        let from = format!("192.0.2.{}:{PORT}", side + 1);
        let is_segment =
            |event: &&Value| event["event"] != "smux" && event["from"] == from.as_str();
        self.events(keys).iter().filter(is_segment).count() as u64
    }

    /// The capture without cipher.
    pub(crate) fn decrypted(&self, keys: &[&str]) -> PathBuf {
        let output = self.folder.path().join("plain.pcap");
        self.run("decrypt", &[&[output.to_str().unwrap()], keys].concat());
        output
    }
}

/// Waits until `counted` has the numbers that are `expected`: datagrams may still be in the relay's socket.
pub(crate) async fn agree<T: PartialEq + std::fmt::Debug>(
    recording: &Recording,
    keys: &[&str],
    counted: impl Fn(&Value) -> T,
    expected: T,
) -> Capture {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let sent = recording.lock().unwrap().sent.clone();
        let capture = Capture::of(&sent);
        let connection = capture.connection(keys);
        let found = counted(&connection);
        if found == expected {
            return capture;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{found:?}, not {expected:?}: {connection}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub(crate) fn number(sent: &Value, name: &str) -> u64 {
    sent[name].as_u64().unwrap_or_else(|| panic!("{name}: {sent}"))
}
