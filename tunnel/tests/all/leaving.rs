//! Users that leave a download: the target's connection ends, and later fetches have the whole
//! path.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kcpx_tunnel::settings::{ClientSettings, Mux, ServerSettings, SmuxVersion};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::common::paths::Bottleneck;
use crate::common::stock::StockClient;
use crate::common::*;

/// Requests: for endless bytes, for [`FETCHED`], and for [`LONG`].
const DOWNLOAD: &[u8] = b"d";
const FETCH: &[u8] = b"f";
const FETCH_LONG: &[u8] = b"l";
const FETCHED: u32 = 1_000_000;
/// Takes the bottleneck 4 s.
const LONG: u32 = 5_000_000;
/// Bytes of a download that its user reads before it leaves.
const READ: u32 = 1_500_000;

/// The target, and the ends of its download connections.
async fn service() -> (Target, mpsc::UnboundedReceiver<std::io::ErrorKind>) {
    let (ended, ends) = mpsc::unbounded_channel();
    let target = target(move |mut stream| {
        let ended = ended.clone();
        async move {
            let mut request = [0];
            stream.read_exact(&mut request).await.unwrap();
            let mut block = vec![0; 65_536];
            fastrand::Rng::with_seed(1).fill(&mut block);
            let bytes = match &request[..] {
                FETCH => FETCHED,
                FETCH_LONG => LONG,
                _ => u32::MAX,
            };
            for _ in 0..bytes / 50_000 {
                if let Err(error) = stream.write_all(&block[..50_000]).await {
                    let _ = ended.send(error.kind());
                    return;
                }
            }
        }
    })
    .await;
    (target, ends)
}

/// A server behind a bottleneck.
async fn start(target: SocketAddr, mux: Mux) -> (Running<ServerSettings>, Bottleneck) {
    let mut settings = server_settings(local(target), common());
    settings.common.mux = mux;
    let (server, addr) = start_server(settings, Duration::ZERO).await;
    (server, Bottleneck::new(addr).await)
}

async fn start_ours(
    path: &Bottleneck,
    mux: Mux,
    version: SmuxVersion,
) -> (Running<ClientSettings>, SocketAddr) {
    let mut settings = client_settings(path.addr, common());
    (settings.common.mux, settings.smux_version, settings.compression) = (mux, version, false);
    let (client, addr) = start_client(settings, Duration::ZERO).await;
    (client, addr.unwrap())
}

/// Bytes that a fetch costs the path.
async fn cost(path: &Bottleneck, fetch: impl Future<Output = u32>) -> u64 {
    let (before, began) = (path.down.load(Ordering::Relaxed), Instant::now());
    assert_eq!(within("fetch", fetch).await, FETCHED);
    let cost = path.down.load(Ordering::Relaxed) - before;
    println!("  fetch: {cost} bytes of the path, {:.2?}", began.elapsed());
    cost
}

/// Checks that a fetch after an abandoned download costs little more than the first fetch. Bytes in
/// flight and retransmissions add to it, more of them on a busy machine; a download that continues
/// would exceed any bound.
fn check(first: u64, later: u64) {
    assert!(later < first * 3, "{later} bytes of the path after {first}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_that_a_stock_client_of_smux_1_has_closed_is_given_up() {
    let (target, mut ends) = service().await;
    let (_server, path) = start(target.addr, Mux::Smux).await;
    let mut client = StockClient::connect(path.addr, 1).await;
    let first = cost(&path, client.fetch(FETCH)).await;
    let download = client.open(DOWNLOAD).await;
    within("download", client.read(download, READ)).await;
    client.close(download).await;
    let left = Instant::now();
    let end = within("end", client.pump_until(ends.recv())).await.unwrap();
    println!("  the target's connection ended after {:.2?}: {end}", left.elapsed());
    let later = cost(&path, client.fetch(FETCH)).await;
    check(first, later);
}

/// A unit test of the relay checks that it is given up after 30 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_that_a_stock_client_of_smux_2_has_closed_costs_the_path_no_more_than_its_window()
{
    let (target, _ends) = service().await;
    let (server, path) = start(target.addr, Mux::Smux).await;
    let mut client = StockClient::connect(path.addr, 2).await;
    let first = cost(&path, client.fetch(FETCH)).await;
    let download = client.open(DOWNLOAD).await;
    within("download", client.read(download, READ)).await;
    within("window", client.close_and_exhaust(download)).await;
    let later = cost(&path, client.fetch(FETCH)).await;
    check(first, later);
    // Its connection does not count as ended.
    assert_eq!(server.metric("tunnel_reset_connections"), 0);
}

/// Fetches as a user of the tunnel.
async fn fetch(addr: SocketAddr) -> u32 {
    let mut user = TcpStream::connect(addr).await.unwrap();
    user.write_all(FETCH).await.unwrap();
    read_all(&mut user).await
}

async fn read_all(user: &mut TcpStream) -> u32 {
    let mut fetched = Vec::new();
    user.read_to_end(&mut fetched).await.unwrap();
    u32::try_from(fetched.len()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_that_a_user_of_our_client_has_left_is_reset() {
    let (target, mut ends) = service().await;
    let kinds =
        [(Mux::Smux, SmuxVersion::V1), (Mux::Smux, SmuxVersion::V2), (Mux::None, SmuxVersion::V2)];
    for (mux, version) in kinds {
        // A reset, by a user that ends with unread bytes, or an end, by a user that has read
        // everything.
        for resets in [true, false] {
            println!("{mux:?} {version:?}, {}", if resets { "reset" } else { "end" });
            let (server, path) = start(target.addr, mux).await;
            let (_client, addr) = start_ours(&path, mux, version).await;
            let first = cost(&path, fetch(addr)).await;
            let mut user = TcpStream::connect(addr).await.unwrap();
            user.write_all(DOWNLOAD).await.unwrap();
            let mut buf = vec![0; READ as usize];
            within("download", user.read_exact(&mut buf)).await.unwrap();
            if resets {
                SockRef::from(&user).set_linger(Some(Duration::ZERO)).unwrap();
            } else {
                user.shutdown().await.unwrap();
            }
            drop(user);
            let left = Instant::now();
            let end = within("end", ends.recv()).await.unwrap();
            println!("  the target's connection ended after {:.2?}: {end}", left.elapsed());
            server.metric_becomes("tunnel_current_connections", 0).await;
            let later = cost(&path, fetch(addr)).await;
            check(first, later);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_closed_download_lives_where_the_peer_can_show_that_it_reads() {
    let (target, _ends) = service().await;
    let kinds =
        [(Mux::Smux, SmuxVersion::V1), (Mux::Smux, SmuxVersion::V2), (Mux::None, SmuxVersion::V2)];
    for (mux, version) in kinds {
        let (_server, path) = start(target.addr, mux).await;
        let (_client, addr) = start_ours(&path, mux, version).await;
        let mut user = TcpStream::connect(addr).await.unwrap();
        user.write_all(FETCH_LONG).await.unwrap();
        user.shutdown().await.unwrap();
        assert_eq!(within("download", read_all(&mut user)).await, LONG, "{mux:?} {version:?}");
    }
    // A kcptun of 2026, by its window updates.
    let (_server, path) = start(target.addr, Mux::Smux).await;
    let mut client = StockClient::connect(path.addr, 2).await;
    let download = client.open(FETCH_LONG).await;
    client.half_close(download).await;
    within("download", client.read(download, LONG)).await;
}
