//! Captures of kcpx and of kcp-go between real sockets: the program says what the counters of both say.
//!
//! `KCPX_KCP_GO_DIR` names the folder of the programs of kcp-go, which `scripts/build-kcp-go` builds; without it
//! their test says that it is skipped.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod c_library;
mod dissector;
mod kcptun;
mod record;

use std::time::Duration;

use kcpx::{Cipher, Config, ConnectionStats, FecConfig, KcpListener, KcpStream, Redundancy};
use kcpx_interop::kcp_go::versions;
use kcpx_interop::tshark::Tshark;
use kcpx_smux::{Session, Version};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::dissector::shows_all;
use crate::record::{Capture, DEADLINE, agree, number, path};

/// Bytes each way: all of them fit into the buffer of the relay's socket, which must lose nothing itself.
const TOTAL: usize = 120_000;
const KEY: [u8; 16] = *b"0123456789abcdef";
const KEY_HEX: &str = "30313233343536373839616263646566";

/// The options of a cipher with [`KEY`].
fn keys(cipher: &str) -> Vec<&str> {
    match cipher {
        "null" => vec!["--crypt", cipher],
        _ => vec!["--crypt", cipher, "--key-hex", KEY_HEX],
    }
}

fn config(cipher: &str, fec: Option<[u16; 2]>) -> Config {
    let fec = fec.map(|[data, parity]| FecConfig::new(data.into(), parity.into()).unwrap());
    let redundancy = fec.map_or(Redundancy::Off, Redundancy::Fec);
    let cipher = Cipher::new(cipher.parse().unwrap(), &KEY).unwrap();
    Config::new().cipher(cipher).redundancy(redundancy)
}

const CELLS: [(&str, Option<[u16; 2]>); 3] =
    [("null", None), ("aes-128", None), ("aes-128-gcm", Some([10, 3]))];

/// Waits until all data is acknowledged, and returns the counters.
async fn drained(stream: &KcpStream) -> ConnectionStats {
    let drained = async {
        while stream.stats().path.in_flight_segments > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, drained).await.is_ok(), "{:?}", stream.stats());
    stream.stats()
}

/// Returns all bytes of the first connection.
async fn echo(listener: &KcpListener) -> KcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut buffer = vec![0; TOTAL];
    stream.read_exact(&mut buffer).await.unwrap();
    stream.write_all(&buffer).await.unwrap();
    stream
}

/// First transmissions, their payload, later transmissions and parity of a side.
fn counted(sent: &Value) -> [u64; 4] {
    let again = number(sent, "retransmissions") + number(sent, "copies");
    [number(sent, "segments"), number(sent, "payload"), again, number(sent, "parity")]
}

/// The same, by the counters of kcpx.
fn counters(stats: &ConnectionStats) -> [u64; 4] {
    let sent = &stats.sent;
    let parity = stats.redundancy.parity_packets_sent;
    [sent.segments, sent.payload_bytes, stats.retransmits(), parity]
}

#[tokio::test]
async fn summary_of_kcpx_says_what_its_counters_say() {
    let tshark = Tshark::find().unwrap();
    for (cipher, fec) in CELLS {
        let config = config(cipher, fec);
        let listener = KcpListener::bind_with("127.0.0.1:0", config.clone()).await.unwrap();
        let (relay, recorded) = path(listener.local_addr().unwrap()).await;
        let client = async {
            let mut stream = KcpStream::connect_with(relay.addr(), config).await.unwrap();
            stream.write_all(&vec![7; TOTAL]).await.unwrap();
            stream.read_exact(&mut vec![0; TOTAL]).await.unwrap();
            stream
        };
        let (client, server) = tokio::join!(client, echo(&listener));
        let stats = [drained(&client).await, drained(&server).await];
        assert!(stats[0].retransmits() > 0 || fec.is_some(), "{:?}", stats[0]);
        let sides = |summary: &Value| [0, 1].map(|side| counted(&summary["sides"][side]));
        let expected = stats.each_ref().map(counters);
        let capture = agree(&recorded, &keys(cipher), sides, expected).await;
        if let Some(tshark) = &tshark {
            shows_all(tshark, &capture, &keys(cipher));
        }
    }
}

/// The client opens streams and sends on them, the server answers and closes first.
async fn streams(version: Version) -> Value {
    let config = config("aes-128", None);
    let listener = KcpListener::bind_with("127.0.0.1:0", config.clone()).await.unwrap();
    let (relay, recorded) = path(listener.local_addr().unwrap()).await;
    let smux = || kcpx_smux::Config::new().version(version);
    let client = async {
        let carrier = KcpStream::connect_with(relay.addr(), config).await.unwrap();
        let session = Session::client(carrier, smux()).unwrap();
        for sizes in STREAMS {
            let mut stream = session.open_stream().await.unwrap();
            stream.write_all(&vec![1; sizes[0]]).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer.len(), sizes[1]);
            stream.shutdown().await.unwrap();
        }
        session
    };
    let server = async {
        let (carrier, _) = listener.accept().await.unwrap();
        let session = Session::server(carrier, smux()).unwrap();
        for sizes in STREAMS {
            let mut stream = session.accept_stream().await.unwrap();
            stream.read_exact(&mut vec![0; sizes[0]]).await.unwrap();
            stream.write_all(&vec![2; sizes[1]]).await.unwrap();
            stream.shutdown().await.unwrap();
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        }
        session
    };
    let sessions = tokio::join!(client, server);
    let sent = recorded.lock().unwrap().sent.clone();
    drop(sessions);
    Capture::of(&sent).connection(&keys("aes-128"))
}

/// Bytes of the client and of the server, on each stream.
const STREAMS: [[usize; 2]; 3] = [[1, 70_000], [40_000, 1], [1_000, 2_000]];

#[tokio::test]
async fn summary_of_smux_has_the_streams_their_bytes_and_who_closed_first() {
    for (version, number) in [(Version::V1, 1), (Version::V2, 2)] {
        let smux = &streams(version).await["smux"];
        assert_eq!(
            (&smux["version"], &smux["is_compressed"], &smux["is_incomplete"]),
            (&json!(number), &json!(false), &json!(false))
        );
        let streams = smux["streams"].as_array().unwrap();
        assert_eq!(streams.len(), STREAMS.len(), "{smux}");
        for (stream, sizes) in streams.iter().zip(STREAMS) {
            assert_eq!(
                (&stream["opened_by"], &stream["bytes"], &stream["closed_by"], &stream["fins"]),
                (&json!(0), &json!(sizes), &json!(1), &json!([true, true])),
                "{smux}"
            );
        }
    }
}

#[tokio::test]
async fn summary_of_kcp_go_says_what_its_counters_say() {
    let tshark = Tshark::find().unwrap();
    for (version, (cipher, fec)) in
        versions().into_iter().flat_map(|version| CELLS.map(|cell| (version, cell)))
    {
        let listener = KcpListener::bind_with("127.0.0.1:0", config(cipher, fec)).await.unwrap();
        let (relay, recorded) = path(listener.local_addr().unwrap()).await;
        let [data, parity] = fec.unwrap_or_default();
        let (fec, total) = (format!("{data}/{parity}"), TOTAL.to_string());
        let mut options =
            vec!["--cipher", cipher, "--fec", &fec, "--bytes", &total, "--seconds", "100"];
        if cipher != "null" {
            options.extend(["--key", KEY_HEX]);
        }
        let program = version.start("client", relay.addr(), options).unwrap();
        let server = echo(&listener).await;
        let report = program.finish().await.unwrap();
        let stats = drained(&server).await;
        let snmp = |name: &str| report["snmp"][name].as_u64().unwrap_or_else(|| panic!("{report}"));
        let theirs = ["OutPkts", "OutBytes", "BytesSent", "RetransSegs"].map(snmp);
        let sides = |summary: &Value| {
            let sent = &summary["sides"][0];
            let again = number(sent, "retransmissions") + number(sent, "copies");
            let sent = ["datagrams", "bytes", "payload"].map(|name| number(sent, name));
            ([sent[0], sent[1], sent[2], again], counted(&summary["sides"][1]))
        };
        println!("{version}, {cipher}, FEC {fec}: {theirs:?} and {:?}", counters(&stats));
        let capture = agree(&recorded, &keys(cipher), sides, (theirs, counters(&stats))).await;
        assert_eq!(capture.segments(0, &keys(cipher)), snmp("OutSegs"), "{report}");
        if let Some(tshark) = &tshark {
            shows_all(tshark, &capture, &keys(cipher));
        }
    }
}
