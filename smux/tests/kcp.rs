//! A session over a `KcpStream`, on a path that loses packets.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{Rng, VERSIONS, check_many, echo, within};
use kcpx::{KcpListener, KcpStream};
use kcpx_smux::{Config, Session};
use tokio::net::UdpSocket;

/// Forwards datagrams between one client and `server`, and drops one in ten on average.
async fn lossy_proxy(server: SocketAddr, seed: u64) -> SocketAddr {
    let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    back.connect(server).await.unwrap();
    let address = front.local_addr().unwrap();
    let (to_client, from_server) = (Arc::clone(&front), Arc::clone(&back));
    let (client, mut client_changed) = tokio::sync::watch::channel(None);
    tokio::spawn(async move {
        let (mut rng, mut buffer) = (Rng::new(seed), vec![0; 65_536]);
        while let Ok((len, from)) = front.recv_from(&mut buffer).await {
            client.send_replace(Some(from));
            if rng.below(10) > 0 {
                let _ = back.send(&buffer[..len]).await;
            }
        }
    });
    tokio::spawn(async move {
        let (mut rng, mut buffer) = (Rng::new(seed + 1), vec![0; 65_536]);
        while let Ok(len) = from_server.recv(&mut buffer).await {
            let client = *client_changed.borrow_and_update();
            if let (Some(client), true) = (client, rng.below(10) > 0) {
                let _ = to_client.send_to(&buffer[..len], client).await;
            }
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_over_kcp_with_10_percent_loss_arrive_whole() {
    for version in VERSIONS {
        let config = Config::new().version(version);
        let listener = KcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = lossy_proxy(listener.local_addr().unwrap(), 3).await;
        let server_config = config.clone();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            echo(Session::server(stream, server_config).unwrap()).await;
        });
        let stream = KcpStream::connect(proxy).await.unwrap();
        let client = Session::client(stream, config).unwrap();
        within(120, check_many(&client, 64, 100_000, 4)).await;
        within(30, client.close()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
