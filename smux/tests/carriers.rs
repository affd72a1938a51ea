//! Streams arrive whole over carriers of several kinds, one of which loses packets.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{Rng, VERSIONS, check_many, echo, within};
use kcpx::{KcpListener, KcpStream};
use kcpx_smux::{Config, Session, Version};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

async fn check_duplex(buffer: usize, streams: u64, max_len: u64) {
    for version in VERSIONS {
        let config = Config::new().version(version);
        let (client, server) = common::pair_with(buffer, config.clone(), config);
        tokio::spawn(echo(server));
        within(120, check_many(&client, streams, max_len, 1)).await;
    }
}

#[tokio::test]
async fn streams_over_a_carrier_of_one_byte_arrive_whole() {
    check_duplex(1, 64, 5_000).await;
}

#[tokio::test]
async fn streams_over_a_duplex_arrive_whole() {
    check_duplex(256 << 10, 64, 300_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn streams_over_a_duplex_between_threads_arrive_whole() {
    check_duplex(256 << 10, 64, 300_000).await;
}

async fn tcp_pair(client: Config, server: Config) -> (Session, Session) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (connected, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let client = Session::client(connected.unwrap(), client).unwrap();
    (client, Session::server(accepted.unwrap().0, server).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_over_tcp_arrive_whole() {
    for version in VERSIONS {
        let config = Config::new().version(version);
        let any = config.clone().version(Version::Any);
        let (client, server) = tcp_pair(config.max_frame_size(7_000), any).await;
        tokio::spawn(echo(server));
        within(120, check_many(&client, 64, 1_000_000, 2)).await;
    }
}

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
