//! `KcpStream` against live versions of kcp-go, in both roles, over loopback with and without loss.
//!
//! `KCPX_KCP_GO_DIR` names the folder of their programs, which `scripts/build-kcp-go` builds; without it the
//! tests say that they are skipped. `KCPX_KCP_GO_MATRIX=1` runs every cell and prints the table of
//! docs/interop.md; otherwise fixed cells and some that a seed draws, with fewer bytes.

use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kcpx::crypto::Key;
use kcpx::{Cipher, Config, Endpoint, FecConfig, KcpListener, KcpStream, Mode, Redundancy, Timing};
use kcpx_interop::SEED_VARIABLE;
use kcpx_interop::kcp_go::{KcpGo, Program, runs_matrix, versions};
use kcpx_interop::link::Rng;
use kcpx_netem::{Conditions, Relay};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Cells of a version and a role that a seed draws where not all run.
const SAMPLE: usize = 8;

/// Bytes each way.
fn total() -> usize {
    if runs_matrix() { 16 << 20 } else { 4 << 20 }
}

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// All cells, or a sample: one of each kind of frame, in all kinds of FEC and both modes, and those that
    /// the seed draws.
    fn selected() -> Vec<Self> {
        let mut cells: Vec<_> = Self::all().collect();
        if runs_matrix() {
            return cells;
        }
        let fixed = [
            Self { cipher: "null", fec: Fec::Off, mode: Mode::Stream, loss: 10 },
            Self { cipher: "none", fec: Fec::Both(10, 3), mode: Mode::Message, loss: 10 },
            Self { cipher: "aes-128", fec: Fec::Changed, mode: Mode::Stream, loss: 10 },
            Self { cipher: "aes-256-gcm", fec: Fec::Both(3, 1), mode: Mode::Stream, loss: 0 },
        ];
        // 3DES as tests are compiled takes a minute for a cell.
        cells.retain(|cell| !fixed.contains(cell) && cell.cipher != "3des");
        let mut rng = Rng::new(seed());
        let drawn = (0..SAMPLE).map(|_| cells.swap_remove(rng.size(0, cells.len() - 1)));
        fixed.into_iter().chain(drawn).collect()
    }

    /// A kcptun key: both sides take the leading bytes that the cipher needs.
    fn key() -> Key {
        Key::derive("it's a secrect", "kcp-go")
    }

    fn ours(self) -> Config {
        Config::new()
            .timing(Timing::FAST3)
            .mode(self.mode)
            .cipher(Cipher::from_name(self.cipher, &Self::key()).unwrap())
            .redundancy(self.fec.config().map_or(Redundancy::Off, Redundancy::Fec))
    }

    /// The arguments of both programs.
    fn options(self) -> Vec<String> {
        let (data, parity) = self.fec.shards();
        let length = match self.cipher {
            "aes-128" | "sm4" => 16,
            "3des" => 24,
            _ => 32,
        };
        let key = "25d7d7bd51050742d8d791f2b653c6c8b2366b7e25a124cf7a2e12eaf4ffa444";
        let mode = if self.mode == Mode::Stream { "stream" } else { "message" };
        let fec = format!("{data}/{parity}");
        let options =
            ["--cipher", self.cipher, "--key", &key[..2 * length], "--fec", &fec, "--mode", mode];
        options.map(str::to_owned).to_vec()
    }

    async fn relay(self, server: SocketAddr) -> Relay {
        let lossy = Conditions { loss: self.loss.into(), ..Conditions::default() };
        Relay::start(server, lossy, self.seed()).await.unwrap()
    }

    fn seed(self) -> u64 {
        let text = format!("{self:?}");
        text.bytes().fold(7, |hash, byte| hash * 31 % 1_000_003 + u64::from(byte))
    }
}

/// SplitMix64, as the programs generate it.
fn random_bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(total()).collect()
}

/// The seed of this run, which is printed.
fn seed() -> u64 {
    let seed = std::env::var(SEED_VARIABLE).ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("seed {seed}: run again with {SEED_VARIABLE}={seed}");
    seed
}

/// Runs the cells of one role with each version, and prints a row for each.
async fn matrix(role: &str, run: impl AsyncFn(KcpGo, Cell) -> String) {
    for version in versions() {
        let cells = Cell::selected();
        for &cell in &cells {
            let began = Instant::now();
            let seen = tokio::time::timeout(DEADLINE, run(version, cell)).await;
            let seen = seen.unwrap_or_else(|_| panic!("a stall: {version}, {role}, {cell:?}"));
            println!(
                "| {version} | {role} | {} | {} | {:?} | {} % | exact | {:.1} s | {seen} |",
                cell.cipher,
                cell.fec.name(),
                cell.mode,
                cell.loss,
                began.elapsed().as_secs_f64(),
            );
        }
        println!("{version}, {role}: {} cells", cells.len());
    }
}

/// The observations of our side.
fn seen(stream: &KcpStream) -> String {
    let stats = stream.stats();
    format!(
        "{:.1} % retransmitted, {} recovered",
        stats.retransmit_percent(),
        stats.fec.recovered_shards
    )
}

async fn their_server(version: KcpGo, cell: Cell) -> (Program, SocketAddr) {
    version.serve(cell.options().iter().map(String::as_str)).await.unwrap()
}

async fn our_client(version: KcpGo, cell: Cell) -> String {
    let (_program, server) = their_server(version, cell).await;
    let relay = cell.relay(server).await;
    let stream = KcpStream::connect_with(relay.addr(), cell.ours()).await.unwrap();
    let bytes = random_bytes(cell.seed());
    let expected = bytes.clone();
    let (mut reader, mut writer) = stream.into_split();
    let write = tokio::spawn(async move {
        for (i, part) in bytes.chunks(total() / 64).enumerate() {
            if i == 16 && cell.fec == Fec::Changed {
                writer.set_fec(fec(5, 2)).unwrap();
            }
            writer.write_all(part).await.unwrap();
        }
        writer
    });
    let mut echo = vec![0; total()];
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
    let largest = stream.datagrams().max_size().unwrap();
    // Without loss the first one comes back, however busy the machine is.
    let retry = if cell.loss == 0 { DEADLINE } else { Duration::from_secs(1) };
    for size in [0, 1, 100, largest] {
        let datagram = vec![size as u8; size];
        loop {
            stream.datagrams().send(&datagram).unwrap();
            let echo = tokio::time::timeout(retry, stream.datagrams().recv()).await;
            match echo {
                Ok(echo) if echo.as_ref().unwrap() == &datagram => break,
                // A late echo of an earlier try, or a lost one.
                Ok(_) | Err(_) => assert!(cell.loss > 0 || echo.is_ok(), "no echo: {cell:?}"),
            }
        }
    }
}

async fn our_server(version: KcpGo, cell: Cell) -> String {
    let listener = KcpListener::bind_with("127.0.0.1:0", cell.ours()).await.unwrap();
    let server = listener.local_addr().unwrap();
    let relay = cell.relay(server).await;
    let mut options = cell.options();
    options.extend(["--bytes".into(), total().to_string()]);
    options.extend(["--seed".into(), cell.seed().to_string()]);
    // Before the deadline of a cell, so that a stall is reported with the statistics of our side.
    options.extend(["--seconds".into(), "240".into()]);
    let client = version.start("client", relay.addr(), options.iter().map(String::as_str)).unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut buffer = vec![0; 64 * 1024];
    let (mut returned, quarter) = (0, total() / 4);
    while returned < total() {
        let len = stream.read(&mut buffer).await.unwrap();
        stream.write_all(&buffer[..len]).await.unwrap();
        if returned < quarter && returned + len >= quarter && cell.fec == Fec::Changed {
            stream.set_fec(fec(5, 2)).unwrap();
        }
        returned += len;
    }
    if let Err(error) = client.finish().await {
        panic!("{version}, {cell:?}: {error:#}\n{:#?}", stream.stats());
    }
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

/// kcp-go has one session for each address and port, and keeps it after its connection is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoint_connects_again_to_a_kcp_go_that_keeps_the_session_before() {
    let cells = Cell::all().filter(|cell| cell.cipher == "aes-128" && cell.loss == 0);
    let cells = cells.filter(|cell| cell.mode == Mode::Stream && cell.fec != Fec::Changed);
    let versions = versions();
    for (version, cell) in
        cells.flat_map(|cell| versions.iter().map(move |&version| (version, cell)))
    {
        let (_program, server) = their_server(version, cell).await;
        let endpoint = Endpoint::bind_with("127.0.0.1:0", cell.ours()).await.unwrap();
        for sent in [b"first", b"again", b"third"] {
            let began = Instant::now();
            let mut stream = endpoint.connect(server).await.unwrap();
            stream.write_all(sent).await.unwrap();
            let mut echo = [0; 5];
            stream.read_exact(&mut echo).await.unwrap();
            assert_eq!(&echo, sent, "{version}, {cell:?}");
            let (fec, took) = (cell.fec.name(), began.elapsed().as_secs_f64());
            println!("{version}, {}, {fec}: {took:.2} s", cell.cipher);
            drop(stream);
            // The next one may end the session of this one.
            endpoint.wait_idle().await;
        }
    }
}
