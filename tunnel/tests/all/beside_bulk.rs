//! Measures an echo beside a download of the same session, across a bottleneck of 10 Mbit/s and 20
//! ms each way. Prints figures without asserting them:
//! `cargo test --release -p kcpx-tunnel --test all beside_bulk:: -- --ignored --nocapture`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kcpx::Timing;
use kcpx_tunnel::settings::Mux;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::common::paths::Bottleneck;
use crate::common::*;

/// Times of echoes in milliseconds, one each 50 ms at most.
async fn echo_times(addr: SocketAddr, time: Duration) -> Vec<f64> {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(b"e").await.unwrap();
    let (end, mut times) = (Instant::now() + time, Vec::new());
    while Instant::now() < end {
        let began = Instant::now();
        stream.write_all(&[7; 64]).await.unwrap();
        stream.read_exact(&mut [0; 64]).await.unwrap();
        times.push(began.elapsed().as_secs_f64() * 1e3);
        sleep(Duration::from_millis(50)).await;
    }
    times.sort_by(f64::total_cmp);
    times
}

fn show(what: &str, times: &[f64]) {
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{what}: {} echoes, p50 {:.0} ms, p95 {:.0} ms", times.len(), at(0.5), at(0.95));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement of a minute"]
async fn echo_beside_a_download() {
    let target = target(|mut stream| async move {
        let mut kind = [0];
        stream.read_exact(&mut kind).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        if kind == *b"e" {
            drop(tokio::io::copy(&mut reader, &mut writer).await);
        } else {
            let mut block = vec![0; 65_536];
            fastrand::Rng::with_seed(1).fill(&mut block);
            while writer.write_all(&block).await.is_ok() {}
        }
    })
    .await;
    for (mux, compression) in [(Mux::Smux, true), (Mux::Smux, false), (Mux::None, false)] {
        let (mut server, mut client) =
            (server_settings(local(target.addr), common()), client_settings(target.addr, common()));
        for common in [&mut server.common, &mut client.common] {
            (common.timing, common.mux) = (Timing::FAST, mux);
        }
        client.compression = compression;
        let (_server, far) = start_server(server, Duration::ZERO).await;
        let path = Bottleneck::new(far).await;
        client.remote.ports = path.addr.port()..=path.addr.port();
        let (_client, addr) = start_client(client, Duration::ZERO).await;
        let addr = addr.unwrap();
        println!("{mux:?}, compression {compression}");
        show("  alone", &echo_times(addr, Duration::from_secs(3)).await);
        let received = Arc::new(AtomicU64::new(0));
        let count = received.clone();
        let download = tokio::spawn(async move {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.write_all(b"d").await.unwrap();
            let mut buf = vec![0; 65_536];
            while let Ok(len @ 1..) = stream.read(&mut buf).await {
                count.fetch_add(len as u64, Ordering::Relaxed);
            }
        });
        sleep(Duration::from_secs(3)).await;
        let (before, began) = (received.load(Ordering::Relaxed), Instant::now());
        let times = echo_times(addr, Duration::from_secs(10)).await;
        let bits = (received.load(Ordering::Relaxed) - before) as f64 * 8.0;
        show("  beside the download", &times);
        println!("  download {:.2} Mbit/s", bits / began.elapsed().as_secs_f64() / 1e6);
        download.abort();
    }
}
