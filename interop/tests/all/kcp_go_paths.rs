//! kcp-go and kcpx over paths that are not plain: many clients behind one address with loss, all sizes of
//! datagrams, a round trip of 50 ms.
//!
//! Only with `--ignored`, as `just interop-matrix` runs them.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use kcpx::{Config, KcpListener, KcpStream, Timing};
use kcpx_interop::kcp_go::{KcpGo, versions};
use kcpx_netem::{Conditions, Relay};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

/// UDP payloads in bytes: the default, the most of Ethernet over IPv4 and one more, the buffers of kcp-go
/// up to 5.6.72, and of Ethernet with large frames.
const MTUS: [u16; 5] = [1_400, 1_472, 1_473, 1_500, 9_000];
/// In which data has to flow.
const FLOWS_WITHIN: Duration = Duration::from_secs(5);
/// Clients at once, and how many of a hundred datagrams are lost each way.
const CROWDS: [(u32, u32); 2] = [(300, 20), (3_000, 5)];
/// Seconds in which each client of a crowd has to be answered.
const ANSWERED_WITHIN: &str = "75";
const RUNS: u64 = 5;
const UPLOAD: usize = 1_000_000;
/// One way.
const DELAY: Duration = Duration::from_millis(25);

/// A server of kcpx that returns every byte, to any number of clients. It ends with its value.
struct OurServer {
    addr: SocketAddr,
    _accepting: JoinSet<()>,
}

impl OurServer {
    async fn start(config: Config) -> Self {
        let listener = KcpListener::bind_with("127.0.0.1:0", config).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut serving = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                serving.spawn(async move {
                    let (mut reader, mut writer) = tokio::io::split(stream);
                    drop(tokio::io::copy(&mut reader, &mut writer).await);
                });
            }
        });
        Self { addr, _accepting: accepting }
    }
}

/// The report of a crowd of clients. Their message is short, so the amplification limit of three is soon
/// reached.
async fn crowd(version: KcpGo, server: SocketAddr, (count, loss): (u32, u32), seed: u64) -> Value {
    let (count, loss, seed) = (count.to_string(), loss.to_string(), seed.to_string());
    let options =
        ["--count", &count, "--loss", &loss, "--seed", &seed, "--seconds", ANSWERED_WITHIN];
    let clients = version.start("clients", server, options.into_iter().chain(["--bytes", "5"]));
    clients.unwrap().report().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes, and figures that want a machine of their own"]
async fn kcp_go_clients_behind_one_address_are_all_answered() {
    let mut unanswered = String::new();
    for version in versions() {
        for crowd_of in CROWDS {
            for seed in 1..=RUNS {
                let (_program, theirs) = version.serve([]).await.unwrap();
                let ours = OurServer::start(Config::new().timing(Timing::FAST3)).await;
                // One after the other: both have the machine for themselves.
                let to_us = crowd(version, ours.addr, crowd_of, seed).await;
                let to_them = crowd(version, theirs, crowd_of, seed).await;
                let line = format!(
                    "{version}, {} clients, {} % lost, seed {seed}: kcpx answers {} in at most {} ms, \
                     kcp-go {} in at most {} ms",
                    crowd_of.0,
                    crowd_of.1,
                    to_us["answered"],
                    to_us["slowest_ms"],
                    to_them["answered"],
                    to_them["slowest_ms"],
                );
                println!("{line}");
                if to_us["answered"] != crowd_of.0 {
                    writeln!(unanswered, "{line}").unwrap();
                }
            }
        }
    }
    assert!(unanswered.is_empty(), "{unanswered}");
}

/// A write and its echo, from kcpx to kcp-go.
async fn we_dial(version: KcpGo, mtu: u16) -> anyhow::Result<()> {
    let (_program, server) = version.serve(["--mtu", &mtu.to_string()]).await?;
    let config = Config::new().timing(Timing::FAST3).mtu(mtu);
    let stream = KcpStream::connect_with(server, config).await?;
    let (mut reader, mut writer) = stream.into_split();
    let bytes = vec![7; 300_000];
    let (written, mut echo) = (bytes.clone(), vec![0; bytes.len()]);
    let write = tokio::spawn(async move { writer.write_all(&written).await });
    reader.read_exact(&mut echo).await?;
    write.await??;
    anyhow::ensure!(echo == bytes, "the echo differs");
    Ok(())
}

async fn they_dial(version: KcpGo, mtu: u16) -> anyhow::Result<()> {
    let server = OurServer::start(Config::new().timing(Timing::FAST3).mtu(mtu)).await;
    let mtu = mtu.to_string();
    let client = version.start("client", server.addr, ["--mtu", &mtu, "--bytes", "300000"])?;
    client.finish().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes, and figures that want a machine of their own"]
async fn data_flows_to_and_from_kcp_go_at_every_mtu() {
    let mut failed = String::new();
    for version in versions() {
        for mtu in MTUS {
            let we = tokio::time::timeout(FLOWS_WITHIN, we_dial(version, mtu)).await;
            let they = tokio::time::timeout(FLOWS_WITHIN, they_dial(version, mtu)).await;
            for (role, result) in [("kcpx dials", we), ("kcp-go dials", they)] {
                let seen = match result {
                    Ok(Ok(())) => "flows".to_owned(),
                    Ok(Err(error)) => format!("{error:#}"),
                    Err(_) => format!("nothing whole in {FLOWS_WITHIN:?}"),
                };
                println!("{version}, MTU {mtu}, {role}: {seen}");
                if seen != "flows" {
                    writeln!(failed, "{version}, MTU {mtu}, {role}: {seen}").unwrap();
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

/// Prints times, which a change is compared by; only that every byte arrives is required.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes, and figures that want a machine of their own"]
async fn kcp_go_client_uploads_at_once_over_a_round_trip_of_50_ms() {
    for version in versions() {
        let mut times = Vec::new();
        for seed in 1..=RUNS {
            let config = Config::new().timing(Timing::FAST3);
            let listener = KcpListener::bind_with("127.0.0.1:0", config).await.unwrap();
            let server = listener.local_addr().unwrap();
            let delayed = Conditions { delay: DELAY, ..Conditions::default() };
            let relay = Relay::start(server, delayed, seed).await.unwrap();
            let bytes = UPLOAD.to_string();
            let client = version.start("upload", relay.addr(), ["--bytes", &bytes]).unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut all = vec![0; UPLOAD];
            stream.read_exact(&mut all).await.unwrap();
            stream.write_all(&[1]).await.unwrap();
            let report = client.finish().await.unwrap();
            times.push(report["ms"].as_f64().unwrap());
        }
        times.sort_by(f64::total_cmp);
        println!("{version}: {UPLOAD} bytes and one back in {times:.0?} ms");
    }
}
