//! Streams arrive whole over carriers of several kinds.

mod common;

use common::{VERSIONS, check_many, echo, within};
use kcpx_smux::{Config, Session, Version};
use tokio::net::{TcpListener, TcpStream};

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
