//! Streams arrive whole over carriers of several kinds, one of which loses packets.

use std::time::Duration;

use crate::common::{VERSIONS, check_many, echo, within};
use kcpx::{KcpListener, KcpStream};
use kcpx_netem::{Conditions, Relay};
use kcpx_smux::{Config, Session, Version};
use tokio::net::{TcpListener, TcpStream};

async fn check_duplex(buffer: usize, streams: u64, max_len: u64) {
    for version in VERSIONS {
        let config = Config::new().version(version);
        let (client, server) = crate::common::pair_with(buffer, config.clone(), config);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_over_kcp_with_10_percent_loss_arrive_whole() {
    for version in VERSIONS {
        let config = Config::new().version(version);
        let listener = KcpListener::bind("127.0.0.1:0").await.unwrap();
        let lossy = Conditions { loss: 10, ..Conditions::default() };
        let relay = Relay::start(listener.local_addr().unwrap(), lossy, 3).await.unwrap();
        let server_config = config.clone();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            echo(Session::server(stream, server_config).unwrap()).await;
        });
        let stream = KcpStream::connect(relay.addr()).await.unwrap();
        let client = Session::client(stream, config).unwrap();
        within(120, check_many(&client, 64, 100_000, 4)).await;
        within(30, client.close()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
