//! Tests against the programs of kcptun in `KCPX_KCPTUN_DIR`; skipped without it.
//!
//! `KCPX_KCPTUN_MATRIX=1` runs all ciphers with and without compression, both smux versions, both
//! roles, with and without loss, and prints a table; otherwise a few of these cases.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kcpx_tunnel::settings::SmuxVersion;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::common::kcptun::{Kcptun, folder, free_port};
use crate::common::paths::Bottleneck;
use crate::common::*;

/// Ciphers of kcptun 20210922.
const CIPHERS: [&str; 13] = [
    "aes", "aes-128", "aes-192", "salsa20", "blowfish", "twofish", "cast5", "3des", "tea", "xtea",
    "xor", "sm4", "none",
];
/// Bytes each way.
const BYTES: usize = 1 << 20;
/// Concurrent cases.
const PARALLEL: usize = 3;
const DRAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Case {
    cipher: &'static str,
    compression: bool,
    version: SmuxVersion,
    /// Whether the client is this crate's and the server kcptun's, or the reverse.
    is_client: bool,
    loss: f64,
}

impl Case {
    fn options(self) -> Vec<&'static str> {
        let mut options = vec!["--crypt", self.cipher, "--mode", "fast3"];
        if !self.compression {
            options.push("--nocomp");
        }
        options.extend(["--smuxver", if self.version == SmuxVersion::V1 { "1" } else { "2" }]);
        options
    }

    /// Carries [`BYTES`] both ways over an echo.
    async fn run(self, echo: SocketAddr, seed: u64) -> std::io::Result<Duration> {
        let mut common = common();
        common.algorithm = self.cipher.parse().unwrap();
        if self.is_client {
            let server = SocketAddr::from(([127, 0, 0, 1], free_port()));
            let _kcptun = Kcptun::server(server.port(), echo, &self.options());
            let path = LossyPath::new(server, self.loss, seed).await;
            let mut settings = client_settings(path.addr, common);
            (settings.compression, settings.smux_version) = (self.compression, self.version);
            let (_client, addr) = start_client(settings, DRAIN).await;
            let start = Instant::now();
            answers(addr.unwrap(), seed, BYTES).await.map(|()| start.elapsed())
        } else {
            let mut settings = server_settings(local(echo), common);
            if self.loss > 0.0 {
                // Detected in the other cases.
                settings.compression = Some(self.compression);
                settings.smux_version = Some(self.version);
            }
            let (_server, far) = start_server(settings, DRAIN).await;
            let path = LossyPath::new(far, self.loss, seed).await;
            let (_kcptun, addr) = Kcptun::client(path.addr, &self.options()).await;
            let start = Instant::now();
            answers(addr, seed, BYTES).await.map(|()| start.elapsed())
        }
    }
}

fn cases() -> Vec<Case> {
    let all = std::env::var_os("KCPX_KCPTUN_MATRIX").is_some();
    let ciphers = if all { &CIPHERS[..] } else { &["aes", "none"][..] };
    let losses = if all { &[0.0, 0.1][..] } else { &[0.1][..] };
    let mut cases = Vec::new();
    for cipher in ciphers {
        for compression in [true, false] {
            for version in [SmuxVersion::V1, SmuxVersion::V2] {
                for is_client in [true, false] {
                    for &loss in losses {
                        cases.push(Case { cipher, compression, version, is_client, loss });
                    }
                }
            }
        }
    }
    cases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcptun_carries_every_byte_with_every_cipher_and_framing() {
    if folder().is_none() {
        return;
    }
    let (echo, seed) = (echo().await, seed());
    let (mut running, mut waiting) = (JoinSet::new(), cases().into_iter());
    println!("cipher   compression smux role of ours loss   seconds for {BYTES} bytes each way");
    let (mut passed, mut failed) = (0, Vec::new());
    loop {
        while running.len() < PARALLEL {
            let Some(case) = waiting.next() else { break };
            let addr = echo.addr;
            running.spawn(async move {
                (case, tokio::time::timeout(LIMIT, case.run(addr, seed)).await)
            });
        }
        let Some(ended) = running.join_next().await else { break };
        let (case, result) = ended.unwrap();
        let (compression, role) = (
            if case.compression { "snappy" } else { "none" },
            if case.is_client { "client" } else { "server" },
        );
        let result = match result {
            Ok(Ok(time)) => {
                passed += 1;
                format!("{:.2}", time.as_secs_f64())
            }
            Ok(Err(error)) => format!("FAILED: {error}"),
            Err(_) => "FAILED: timeout".to_owned(),
        };
        let line = format!(
            "{:<8} {compression:<11} {:<4} {role:<12} {:>3} %  {result}",
            case.cipher,
            case.version.number(),
            case.loss * 100.0
        );
        println!("{line}");
        if result.starts_with('F') {
            failed.push(line);
        }
    }
    println!("{passed} passed, {} failed", failed.len());
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Goal: 7 s; the limit leaves time for a loaded machine.
const RECOVERY_LIMIT: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_kcptun_server_is_used_again_within_ten_seconds() {
    if folder().is_none() {
        return;
    }
    let echo = echo().await;
    let server = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let options = ["--smuxver", "2"];
    for pause in [0, 2] {
        let mut kcptun = Kcptun::server(server.port(), echo.addr, &options);
        let (client, addr) = start_client(client_settings(server, common()), DRAIN).await;
        let addr = addr.unwrap();
        within("first answer", answers(addr, 1, 1_000)).await.unwrap();
        kcptun.0.kill().await.unwrap();
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let _kcptun = Kcptun::server(server.port(), echo.addr, &options);
        let time = time_until_answered(addr).await;
        println!("our client, kcptun's server restarted after {pause} s: {time:.2?}");
        assert!(time < RECOVERY_LIMIT, "{time:?}");
        drop(client);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute: only smux's timeout ends a session of kcptun's client"]
async fn kcptun_client_uses_our_restarted_server() {
    if folder().is_none() {
        return;
    }
    let echo = echo().await;
    let mut settings = server_settings(local(echo.addr), common());
    let (server, addr) = start_server(settings.clone(), DRAIN).await;
    settings.listen.ports = addr.port()..=addr.port();
    let options = ["--smuxver", "2", "--mode", "fast3"];
    let (_kcptun, user) = Kcptun::client(addr, &options).await;
    within("first answer", answers(user, 1, 1_000)).await.unwrap();
    server.shutdown().await;
    // The previous socket still acknowledges the client's data for some seconds.
    let _server = restart_server(settings, DRAIN).await;
    let time = time_until_answered(user).await;
    println!("kcptun's client, our server restarted: {time:.2?}");
}

/// A target that sends endless bytes.
async fn endless() -> (Target, mpsc::UnboundedReceiver<()>) {
    let (ended, ends) = mpsc::unbounded_channel();
    let target = target(move |mut stream| {
        let ended = ended.clone();
        async move {
            let mut block = vec![0; 65_536];
            fastrand::Rng::with_seed(1).fill(&mut block);
            while stream.write_all(&block).await.is_ok() {}
            let _ = ended.send(());
        }
    })
    .await;
    (target, ends)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_that_a_user_of_kcptuns_client_has_left_ends() {
    if folder().is_none() {
        return;
    }
    let (target, mut ends) = endless().await;
    for version in ["1", "2"] {
        let settings = server_settings(local(target.addr), common());
        let (_server, far) = start_server(settings, DRAIN).await;
        let path = Bottleneck::new(far).await;
        let options = ["--smuxver", version, "--mode", "fast3", "--nocomp"];
        let (_kcptun, addr) = Kcptun::client(path.addr, &options).await;
        let mut user = TcpStream::connect(addr).await.unwrap();
        let mut read = vec![0; 1_500_000];
        within("download", user.read_exact(&mut read)).await.unwrap();
        while ends.try_recv().is_ok() {}
        drop(user);
        let left = Instant::now();
        within("end", ends.recv()).await.unwrap();
        println!("smux {version}: the target's connection ended after {:.2?}", left.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_beside_stalled_ones_passes_a_smuxbuf_above_their_windows() {
    if folder().is_none() {
        return;
    }
    let (target, _ends) = endless().await;
    let settings = server_settings(local(target.addr), common());
    let (_server, far) = start_server(settings, DRAIN).await;
    // Four stalled ones fill four windows of 2 MiB, more than the default of 4 MiB.
    let options = ["--smuxver", "2", "--mode", "fast3", "--nocomp", "--smuxbuf", "33554432"];
    let (_kcptun, addr) = Kcptun::client(far, &options).await;
    let mut stalled = Vec::new();
    for _ in 0..4 {
        let mut user = TcpStream::connect(addr).await.unwrap();
        within("first byte", user.read_exact(&mut [0])).await.unwrap();
        stalled.push(user);
    }
    let mut user = TcpStream::connect(addr).await.unwrap();
    within("download", user.read_exact(&mut vec![0; 30_000_000])).await.unwrap();
}
