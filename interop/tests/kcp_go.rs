//! `KcpStream` against a live kcp-go, in both roles, over loopback with and without loss.
//!
//! The peer is a program of its own, which is not part of this project: `KCPX_KCP_GO_PEER` names
//! it. Without it the tests say so and end. docs/interop.md has what the program must do, and the
//! table that the last full run printed.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kcpx::crypto::Key;
use kcpx::{Cipher, Config, Endpoint, FecConfig, KcpListener, KcpStream, Mode, Timing};
use kcpx_interop::relay::Relay;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

/// The environment variable that names the peer's executable.
const PEER: &str = "KCPX_KCP_GO_PEER";

/// Bytes each way.
const TOTAL: usize = 16 << 20;
/// For one cell, so that a stall ends; nothing is measured by it.
const DEADLINE: Duration = Duration::from_secs(300);

const CIPHERS: [&str; 7] = ["null", "none", "aes-128", "aes-256-gcm", "salsa20", "3des", "sm4"];
const LOSSES: [u8; 2] = [0, 10];
const MODES: [Mode; 2] = [Mode::Stream, Mode::Message];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fec {
    Off,
    Both(u16, u16),
    /// Ours changes in the middle.
    Changed,
}

const FECS: [Fec; 4] = [Fec::Off, Fec::Both(10, 3), Fec::Both(3, 1), Fec::Changed];

impl Fec {
    fn name(self) -> String {
        match self {
            Self::Off => "no FEC".into(),
            Self::Both(data, parity) => format!("{data}/{parity}"),
            Self::Changed => "10/3, ours then 5/2".into(),
        }
    }

    fn shards(self) -> (u16, u16) {
        match self {
            Self::Off => (0, 0),
            Self::Both(data, parity) => (data, parity),
            Self::Changed => (10, 3),
        }
    }

    fn config(self) -> Option<FecConfig> {
        let (data, parity) = self.shards();
        (data > 0).then(|| fec(data, parity))
    }
}

fn fec(data: u16, parity: u16) -> FecConfig {
    FecConfig::new(data.into(), parity.into()).unwrap()
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    cipher: &'static str,
    fec: Fec,
    mode: Mode,
    loss: u8,
}

impl Cell {
    fn all() -> impl Iterator<Item = Self> {
        CIPHERS.into_iter().flat_map(|cipher| {
            FECS.into_iter().flat_map(move |fec| {
                MODES.into_iter().flat_map(move |mode| {
                    LOSSES.into_iter().map(move |loss| Self { cipher, fec, mode, loss })
                })
            })
        })
    }

    /// A kcptun key: both sides take the leading bytes that the cipher needs.
    fn key() -> Key {
        Key::derive("it's a secrect", "kcp-go")
    }

    fn ours(self) -> Config {
        let mut config = Config::new().timing(Timing::FAST3).mode(self.mode);
        config.cipher = Cipher::from_name(self.cipher, &Self::key()).unwrap();
        config.fec = self.fec.config();
        config
    }

    fn peer(self, role: &str, addr: SocketAddr) -> Option<Command> {
        let mut peer = Command::new(std::env::var_os(PEER)?);
        let (data, parity) = self.fec.shards();
        let length = match self.cipher {
            "aes-128" | "sm4" => 16,
            "3des" => 24,
            _ => 32,
        };
        let key = "25d7d7bd51050742d8d791f2b653c6c8b2366b7e25a124cf7a2e12eaf4ffa444";
        peer.args([role, "--addr", &addr.to_string(), "--cipher", self.cipher])
            .args(["--key", &key[..2 * length], "--fec", &format!("{data}/{parity}")])
            .args(["--mode", if self.mode == Mode::Stream { "stream" } else { "message" }])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        Some(peer)
    }

    fn seed(self) -> u64 {
        let text = format!("{self:?}");
        text.bytes().fold(7, |hash, byte| hash * 31 % 1_000_003 + u64::from(byte))
    }
}

/// SplitMix64 as docs/interop.md asks of the peer, which generates the same bytes.
fn random_bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(TOTAL).collect()
}

/// Runs every cell of one role and prints a row for each.
async fn matrix(role: &str, run: impl AsyncFn(Cell) -> String) {
    if std::env::var_os(PEER).is_none() {
        println!("SKIPPED: {PEER} does not name an executable; see docs/interop.md");
        return;
    }
    let mut table = String::new();
    for cell in Cell::all() {
        let began = Instant::now();
        let seen = tokio::time::timeout(DEADLINE, run(cell)).await;
        let seen = seen.unwrap_or_else(|_| panic!("a stall: {role} {cell:?}"));
        let row = format!(
            "| {role} | {} | {} | {:?} | {} % | exact | {:.1} s | {seen} |",
            cell.cipher,
            cell.fec.name(),
            cell.mode,
            cell.loss,
            began.elapsed().as_secs_f64(),
        );
        println!("{row}");
        writeln!(table, "{row}").unwrap();
    }
    assert_eq!(table.lines().count(), CIPHERS.len() * FECS.len() * MODES.len() * LOSSES.len());
}

/// What our side saw.
fn seen(stream: &KcpStream) -> String {
    let stats = stream.stats();
    format!(
        "{:.1} % retransmitted, {} recovered",
        stats.retransmit_percent(),
        stats.fec.recovered_shards
    )
}

async fn their_server(cell: Cell) -> (Child, SocketAddr) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut child = cell.peer("server", any).unwrap().spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
    let addr = line.trim().strip_prefix("listening ").unwrap().parse().unwrap();
    (child, addr)
}

async fn our_client(cell: Cell) -> String {
    let (_child, server) = their_server(cell).await;
    let relay = Relay::start(server, cell.loss, cell.seed()).await.unwrap();
    let stream = KcpStream::connect_with(relay.addr, cell.ours()).await.unwrap();
    let bytes = random_bytes(cell.seed());
    let expected = bytes.clone();
    let (mut reader, mut writer) = stream.into_split();
    let write = tokio::spawn(async move {
        for (i, part) in bytes.chunks(TOTAL / 64).enumerate() {
            if i == 16 && cell.fec == Fec::Changed {
                writer.set_fec(fec(5, 2)).unwrap();
            }
            writer.write_all(part).await.unwrap();
        }
        writer
    });
    let mut echo = vec![0; TOTAL];
    reader.read_exact(&mut echo).await.unwrap();
    assert!(echo == expected, "the echo differs: {cell:?}");
    let stream = reader.reunite(write.await.unwrap()).unwrap();
    if cell.fec != Fec::Off {
        out_of_band_echo(&stream, cell).await;
    }
    seen(&stream)
}

/// Datagrams beside the stream come back too; under loss some of them.
async fn out_of_band_echo(stream: &KcpStream, cell: Cell) {
    let largest = stream.max_datagram_size().unwrap();
    for size in [0, 1, 100, largest] {
        let datagram = vec![size as u8; size];
        loop {
            stream.send_datagram(&datagram).unwrap();
            let echo = tokio::time::timeout(Duration::from_secs(1), stream.recv_datagram()).await;
            match echo {
                Ok(echo) if echo.as_ref().unwrap() == &datagram => break,
                // A late echo of an earlier try, or a lost one.
                Ok(_) | Err(_) => assert!(cell.loss > 0 || echo.is_ok(), "no echo: {cell:?}"),
            }
        }
    }
}

async fn our_server(cell: Cell) -> String {
    let listener = KcpListener::bind_with("127.0.0.1:0", cell.ours()).await.unwrap();
    let server = listener.local_addr().unwrap();
    let relay = Relay::start(server, cell.loss, cell.seed()).await.unwrap();
    let mut peer = cell.peer("client", relay.addr).unwrap();
    peer.args(["--bytes", &TOTAL.to_string(), "--seed", &cell.seed().to_string()]);
    let mut child = peer.spawn().unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut buffer = vec![0; 64 * 1024];
    let mut total = 0;
    while total < TOTAL {
        let len = stream.read(&mut buffer).await.unwrap();
        stream.write_all(&buffer[..len]).await.unwrap();
        if total < TOTAL / 4 && total + len >= TOTAL / 4 && cell.fec == Fec::Changed {
            stream.set_fec(fec(5, 2)).unwrap();
        }
        total += len;
    }
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).await.unwrap();
    let status = child.wait().await.unwrap();
    assert!(status.success() && said.starts_with("ok"), "{cell:?}: {said}");
    seen(&stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcpx_client_connects_to_kcp_go() {
    matrix("kcpx dials", our_client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcp_go_client_connects_to_kcpx() {
    matrix("kcp-go dials", our_server).await;
}

/// kcp-go has one session for each address and port, and keeps that of a connection that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoint_connects_again_to_a_kcp_go_that_keeps_the_session_before() {
    let cells = Cell::all().filter(|cell| cell.cipher == "aes-128" && cell.loss == 0);
    for cell in cells.filter(|cell| cell.mode == Mode::Stream && cell.fec != Fec::Changed) {
        if std::env::var_os(PEER).is_none() {
            println!("SKIPPED: {PEER} does not name an executable; see docs/interop.md");
            return;
        }
        let (_child, server) = their_server(cell).await;
        let endpoint = Endpoint::bind_with("127.0.0.1:0", cell.ours()).await.unwrap();
        for sent in [b"first", b"again", b"third"] {
            let began = Instant::now();
            let mut stream = endpoint.connect(server).await.unwrap();
            stream.write_all(sent).await.unwrap();
            let mut echo = [0; 5];
            stream.read_exact(&mut echo).await.unwrap();
            assert_eq!(&echo, sent, "{cell:?}");
            println!(
                "{}, {}: {:.2} s",
                cell.cipher,
                cell.fec.name(),
                began.elapsed().as_secs_f64()
            );
            drop(stream);
            // The next one may end the session of this one.
            endpoint.wait_idle().await;
        }
    }
}
