//! Captures of kcptun, whose programs are in the folder `KCPX_KCPTUN_DIR`: the program says what their own
//! counters (`--snmplog`) say.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use kcpx_interop::tshark::Tshark;
use kcpx_skip::programs_in;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::dissector::shows_all;
use crate::record::{Capture, DEADLINE, Recorded, number, path};

const PASSPHRASE: &str = "a passphrase of the test";
/// Bytes of the client and of the server, on each stream.
const STREAMS: [[usize; 2]; 3] = [[1, 70_000], [60_000, 1], [20_000, 30_000]];

#[derive(Clone, Copy, Debug)]
struct Case {
    crypt: &'static str,
    /// Data and parity shards.
    fec: [&'static str; 2],
    compresses: bool,
    smux: &'static str,
}

const CASES: [Case; 6] = [
    Case { crypt: "aes", fec: ["10", "3"], compresses: true, smux: "1" },
    Case { crypt: "aes", fec: ["10", "3"], compresses: false, smux: "2" },
    Case { crypt: "salsa20", fec: ["0", "0"], compresses: true, smux: "2" },
    Case { crypt: "none", fec: ["10", "3"], compresses: false, smux: "1" },
    Case { crypt: "xor", fec: ["4", "3"], compresses: true, smux: "1" },
    Case { crypt: "3des", fec: ["0", "0"], compresses: false, smux: "2" },
];

impl Case {
    /// The options for the program under test.
    fn keys(self) -> Vec<&'static str> {
        match self.crypt {
            "none" => vec!["--crypt", "none"],
            crypt => vec!["--crypt", crypt, "--key", PASSPHRASE],
        }
    }

    fn start(self, program: &Path, addresses: [&str; 4], log: &Path) -> Child {
        let mut command = Command::new(program);
        command.args(addresses).args(["--crypt", self.crypt, "--key", PASSPHRASE]);
        command.args(["--datashard", self.fec[0], "--parityshard", self.fec[1]]);
        command.args(["--smuxver", self.smux, "--snmpperiod", "1", "--snmplog"]).arg(log);
        // All that is under way fits into the buffer of the relay's socket.
        command.args(["--sndwnd", "64"]);
        if !self.compresses {
            command.arg("--nocomp");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.env_remove("KCPTUN_KEY").kill_on_drop(true).spawn().unwrap()
    }
}

/// A recently free port.
fn free_port() -> u16 {
    loop {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        if std::net::UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The latest value of a counter, which a log has as CSV.
fn counter(log: &Path, name: &str) -> u64 {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let mut lines = text.lines();
    let names = lines.next().unwrap_or_default().split(',');
    let last = lines.next_back().unwrap_or_default().split(',');
    let found = names.zip(last).find(|(other, _)| *other == name);
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or_default()
}

/// Bytes that snappy makes hardly fewer, half of them.
fn text(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|at| if at % 1_000 < 500 { 7 } else { next() }).collect()
}

/// Waits until a port is open: the first datagrams would not arrive. One byte is no datagram of KCP.
async fn listens(server: SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server).await.unwrap();
    // The second one reports what became of the first one.
    while socket.send(&[0]).await.is_err() || socket.send(&[0]).await.is_err() {
        sleep(Duration::from_millis(20)).await;
    }
}

/// Carries the bytes of [`STREAMS`] through a stream each.
async fn carry(client: SocketAddr, target: TcpListener) {
    for [up, down] in STREAMS {
        let serve = async {
            let (mut stream, _) = target.accept().await.unwrap();
            let mut request = vec![0; up];
            stream.read_exact(&mut request).await.unwrap();
            assert!(request == text(up));
            stream.write_all(&text(down)).await.unwrap();
        };
        let ask = async {
            let mut stream = loop {
                match TcpStream::connect(client).await {
                    Ok(stream) => break stream,
                    Err(_) => sleep(Duration::from_millis(20)).await,
                }
            };
            stream.write_all(&text(up)).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert!(answer == text(down));
        };
        tokio::join!(serve, ask);
    }
}

/// Numbers of a side.
#[derive(Debug, Default, PartialEq, Eq)]
struct Side {
    datagrams_sent: u64,
    bytes_sent: u64,
    segments_sent: u64,
    data_sent: u64,
    sent_again: u64,
    datagrams_received: u64,
    segments_received: u64,
    parity_received: u64,
}

impl Side {
    fn of_kcptun(log: &Path) -> Self {
        let counter = |name| counter(log, name);
        Self {
            datagrams_sent: counter("OutPkts"),
            bytes_sent: counter("OutBytes"),
            segments_sent: counter("OutSegs"),
            data_sent: counter("BytesSent"),
            sent_again: counter("RetransSegs"),
            datagrams_received: counter("InPkts"),
            segments_received: counter("InSegs"),
            parity_received: counter("FECParityShards"),
        }
    }

    /// By captures of what was sent, and of what arrived.
    fn of_captures(side: usize, keys: &[&str], sent: &Capture, arrived: &Capture) -> Self {
        let (connection, received) = (sent.connection(keys), arrived.connection(keys));
        let (ours, theirs) = (&connection["sides"][side], &received["sides"][1 - side]);
        Self {
            datagrams_sent: number(ours, "datagrams"),
            bytes_sent: number(ours, "bytes"),
            segments_sent: sent.segments(side, keys),
            data_sent: number(ours, "payload"),
            sent_again: number(ours, "retransmissions") + number(ours, "copies"),
            datagrams_received: number(theirs, "datagrams"),
            segments_received: arrived.segments(1 - side, keys),
            parity_received: number(theirs, "parity"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn summary_of_kcptun_says_what_its_counters_say() {
    let Some(folder) = programs_in("KCPX_KCPTUN_DIR") else { return };
    let tshark = Tshark::find().unwrap();
    for case in CASES {
        let logs = tempfile::tempdir().unwrap();
        let [client_log, server_log] =
            ["client.csv", "server.csv"].map(|name| logs.path().join(name));
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let [client, server] =
            [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let (relay, recording) = path(server).await;
        let addresses =
            [server, target.local_addr().unwrap(), client, relay.addr()].map(|a| a.to_string());
        let [listen, target_addr, local, remote] = addresses.each_ref().map(String::as_str);
        let server_program = folder.join("kcptun-server");
        let client_program = folder.join("kcptun-client");
        let _server = case.start(&server_program, ["-l", listen, "-t", target_addr], &server_log);
        timeout(DEADLINE, listens(server)).await.unwrap();
        let _client = case.start(&client_program, ["-l", local, "-r", remote], &client_log);
        timeout(DEADLINE, carry(client, target)).await.unwrap();

        let keys = case.keys();
        let deadline = Instant::now() + DEADLINE;
        let (capture, connection) = loop {
            let Recorded { sent, arrived } = recording.lock().unwrap().clone();
            let [sent, arrived] = [sent, arrived].map(|datagrams| Capture::of(&datagrams));
            let theirs = [&client_log, &server_log].map(|log| Side::of_kcptun(log));
            let recovered = [&client_log, &server_log].map(|log| counter(log, "FECRecovered"));
            let found = [0, 1].map(|side| Side::of_captures(side, &keys, &sent, &arrived));
            let recovers = arrived.summary(&keys)["datagrams"]["recovered"].as_u64().unwrap();
            println!("{case:?}: {theirs:?}, recovered {recovered:?}");
            if theirs == found && recovered[0] + recovered[1] == recovers {
                let connection = sent.connection(&keys);
                break (sent, connection);
            }
            assert!(
                Instant::now() < deadline,
                "{found:?} and {recovers}, not {theirs:?} and {recovered:?}"
            );
            sleep(Duration::from_millis(500)).await;
        };
        let smux = &connection["smux"];
        let streams = smux["streams"].as_array().unwrap();
        let bytes: Vec<&Value> = streams.iter().map(|stream| &stream["bytes"]).collect();
        assert_eq!(bytes, STREAMS.map(|sizes| json!(sizes)).iter().collect::<Vec<_>>(), "{smux}");
        assert_eq!(
            (&smux["version"], &smux["is_compressed"], &smux["is_incomplete"]),
            (&json!(case.smux.parse::<u8>().unwrap()), &json!(case.compresses), &json!(false))
        );
        if let Some(tshark) = &tshark {
            shows_all(tshark, &capture, &keys);
        }
    }
}
