//! Client and server of this crate, in one process.

mod common;

use std::time::Duration;

use kcpx_tunnel::settings::{Mux, SmuxVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use self::common::*;

/// Bytes of a large transfer.
const LARGE: usize = if cfg!(debug_assertions) { 4 << 20 } else { 100_000_000 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_carried_both_ways_with_every_framing() {
    let echo = echo().await;
    for version in [SmuxVersion::V1, SmuxVersion::V2] {
        for compression in [false, true] {
            let tunnel = tunnel(echo.addr, 0.0, |client, _| {
                (client.smux_version, client.compression) = (version, compression);
            })
            .await;
            within("echo", echoes(tunnel.addr, 1, 1_000_000)).await.unwrap();
            tunnel.client.metric_becomes("tunnel_current_connections", 0).await;
            assert_eq!(tunnel.client.metric("tunnel_sent_bytes"), 1_000_000);
            assert_eq!(tunnel.client.metric("tunnel_received_bytes"), 1_000_000);
            assert_eq!(tunnel.server.metric("tunnel_sessions"), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transfers_arrive_exactly() {
    let echo = echo().await;
    for loss in [0.0, 0.1] {
        let tunnel = tunnel(echo.addr, loss, |_, _| {}).await;
        within("echo", echoes(tunnel.addr, 2, LARGE)).await.unwrap();
        let lost = tunnel.path.lost.load(std::sync::atomic::Ordering::Relaxed);
        println!("{LARGE} bytes each way, {lost} datagrams lost");
        assert_eq!(lost > 0, loss > 0.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_smux_are_carried_one_for_one() {
    let echo = echo().await;
    let tunnel = tunnel(echo.addr, 0.0, |client, server| {
        (client.common.mux, server.common.mux) = (Mux::None, Mux::None);
    })
    .await;
    let mut users = JoinSet::new();
    for number in 0..20 {
        users.spawn(echoes(tunnel.addr, number, 100_000));
    }
    while let Some(user) = within("users", users.join_next()).await {
        user.unwrap().unwrap();
    }
    assert_eq!(tunnel.server.metric("tunnel_connections"), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_connections_share_their_sessions() {
    let echo = echo().await;
    let tunnel = tunnel(echo.addr, 0.0, |client, _| client.sessions = 4).await;
    let mut users = JoinSet::new();
    for number in 0..1_000 {
        users.spawn(echoes(tunnel.addr, number, 10_000));
    }
    while let Some(user) = within("users", users.join_next()).await {
        user.unwrap().unwrap();
    }
    assert_eq!(tunnel.server.metric("tunnel_sessions"), 4);
    assert_eq!(tunnel.server.metric("tunnel_connections"), 1_000);
    assert_eq!(tunnel.server.metric("tunnel_reset_connections"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_closed_user_reads_the_whole_answer() {
    // Answers with 500,000 bytes after the end of the request, and closes.
    let target = target(|mut stream| async move {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).await.unwrap();
        stream.write_all(&sample(u64::from(request[0]), 500_000)).await.unwrap();
    })
    .await;
    let tunnel = tunnel(target.addr, 0.0, |_, _| {}).await;
    for number in 0..10 {
        let mut user = TcpStream::connect(tunnel.addr).await.unwrap();
        user.write_all(&[number]).await.unwrap();
        user.shutdown().await.unwrap();
        let mut answer = Vec::new();
        within("answer", user.read_to_end(&mut answer)).await.unwrap();
        assert!(answer == sample(number.into(), 500_000), "{} bytes", answer.len());
    }
}

#[tokio::test]
async fn refused_target_is_an_end_without_bytes() {
    let refusing = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let tunnel = tunnel(refusing, 0.0, |_, _| {}).await;
    let mut user = TcpStream::connect(tunnel.addr).await.unwrap();
    let mut nothing = Vec::new();
    within("end", user.read_to_end(&mut nothing)).await.unwrap();
    assert_eq!(nothing, b"");
    drop(user);
    assert_eq!(tunnel.server.metric("tunnel_refused_connections"), 1);
    tunnel.client.metric_becomes("tunnel_current_connections", 0).await;
}

#[tokio::test]
async fn half_close_timeout_ends_what_the_target_keeps_open() {
    // Takes the end, and never ends itself.
    let target = target(|mut stream| async move {
        drop(stream.read_to_end(&mut Vec::new()).await);
        std::future::pending::<()>().await;
    })
    .await;
    let tunnel = tunnel(target.addr, 0.0, |_, server| {
        server.common.half_close_timeout = Duration::from_millis(200);
    })
    .await;
    let mut user = TcpStream::connect(tunnel.addr).await.unwrap();
    user.write_all(b"request").await.unwrap();
    user.shutdown().await.unwrap();
    within("end", user.read_to_end(&mut Vec::new())).await.unwrap();
    tunnel.server.metric_becomes("tunnel_current_connections", 0).await;
}
