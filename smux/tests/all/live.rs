//! Live tests against xtaci/smux, run as a program: `KCPX_SMUX_PEER=/path/to/program`.
//! scripts/build-kcp-go builds it from interop/smux-go.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::common::{VERSIONS, number, within};
use kcpx_skip::programs_in;
use kcpx_smux::{Config, Session, Stream, Version};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// `None`, reported as skipped, without the program.
fn program() -> Option<PathBuf> {
    programs_in("KCPX_SMUX_PEER")
}

fn peer(program: &Path, role: &str, version: Version) -> Command {
    let mut command = Command::new(program);
    command.arg(role).args(["--version", &number(version).to_string()]);
    command.stdout(Stdio::piped()).kill_on_drop(true);
    command
}

/// SplitMix64, eight bytes a number, the lowest first.
struct Bytes {
    state: u64,
    left: Vec<u8>,
}

impl Bytes {
    fn new(seed: u64) -> Self {
        Self { state: seed, left: Vec::new() }
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        while self.left.len() < len {
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            self.left.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
        }
        let rest = self.left.split_off(len);
        std::mem::replace(&mut self.left, rest)
    }
}

/// Sends `total` bytes, half-closes, and expects them back, up to the end.
async fn check(stream: Stream, seed: u64, total: usize) {
    let (mut read, mut write) = stream.into_split();
    let writer = tokio::spawn(async move {
        let (mut bytes, mut left) = (Bytes::new(seed), total);
        while left > 0 {
            let len = left.min(50_000);
            write.write_all(&bytes.take(len)).await.unwrap();
            left -= len;
        }
        write.shutdown().await.unwrap();
    });
    let (mut bytes, mut received, mut buffer) = (Bytes::new(seed), 0, vec![0; 65_536]);
    loop {
        let len = read.read(&mut buffer).await.unwrap();
        if len == 0 {
            break;
        }
        assert!(buffer[..len] == bytes.take(len), "other bytes at {received}");
        received += len;
    }
    writer.await.unwrap();
    assert_eq!(received, total);
}

async fn check_client(
    program: &Path,
    version: Version,
    config: Config,
    (streams, total): (u64, usize),
) {
    let mut child = peer(program, "server", version).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
    let address = line.trim().strip_prefix("listening ").unwrap();
    let carrier = TcpStream::connect(address).await.unwrap();
    let session = Session::client(carrier, config.version(version)).unwrap();
    let mut tasks = Vec::new();
    for i in 0..streams {
        let stream = session.open_stream().await.unwrap();
        tasks.push(tokio::spawn(check(stream, i, total)));
    }
    for task in tasks {
        task.await.unwrap();
    }
    // The last FIN may be in flight.
    within(10, async {
        while session.num_streams() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    session.close().await.unwrap();
    println!("{version:?} client: {streams} streams of {total} bytes");
}

async fn check_server(
    program: &Path,
    version: Version,
    config: Config,
    (streams, total): (u64, usize),
) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut command = peer(program, "client", version);
    let (streams, total) = (streams.to_string(), total.to_string());
    command.args(["--addr", &address, "--streams", &streams, "--bytes", &total]);
    let mut child: Child = command.spawn().unwrap();
    let (carrier, _) = listener.accept().await.unwrap();
    // The server takes the version from the first byte.
    let session = Session::server(carrier, config.version(Version::Any)).unwrap();
    tokio::spawn(crate::common::echo(session.clone()));
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).await.unwrap();
    assert!(child.wait().await.unwrap().success(), "{output}");
    assert!(output.starts_with("ok "), "{output}");
    assert_eq!(session.version(), Some(number(version)));
    println!("{version:?} server: {streams} streams of {total} bytes");
}

/// Delays FIN: the peer discards unread bytes when both sides have sent FIN.
fn server_config() -> Config {
    Config::new().fin_delay(Duration::from_secs(1))
}

const SHAPES: [(u64, usize); 5] =
    [(1, 0), (1, 1 << 20), (10, 1 << 20), (100, 100_000), (1_000, 10_000)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_server_echoes_what_our_client_sends() {
    let Some(program) = program() else { return };
    for version in VERSIONS {
        for shape in SHAPES {
            for config in [Config::new(), Config::new().max_stream_buffer(2 << 20)] {
                within(120, check_client(&program, version, config, shape)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_client_receives_what_our_server_echoes() {
    let Some(program) = program() else { return };
    for version in VERSIONS {
        for shape in SHAPES {
            within(120, check_server(&program, version, server_config(), shape)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute, in a release build"]
async fn go_peer_and_we_echo_a_gibibyte() {
    let Some(program) = program() else { return };
    for version in VERSIONS {
        within(600, check_client(&program, version, Config::new(), (1, 1 << 30))).await;
        within(600, check_server(&program, version, server_config(), (1, 1 << 30))).await;
    }
}
