//! `KcpStream` against `tokio_kcp` over loopback, in both roles, with the settings that crate
//! recommends for low latency: fastest no-delay, flush after each write, stream mode.
//!
//! Its client picks a random conversation id by itself: with `connect` it never asks the server
//! for one, which only `connect_with_conv(.., 0, ..)` does.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use kcpx::{Config, KcpListener, KcpStream, Limits, Timing};
use kcpx_interop::link::Rng;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::task::JoinSet;

/// Bytes that each connection sends and gets back.
const TOTAL: usize = 4 << 20;
const CONNECTIONS: u64 = 4;

/// For a whole test, so that a stall ends; nothing is measured by it.
const DEADLINE: Duration = Duration::from_secs(240);

async fn within_deadline<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work).await.expect("a stall")
}

fn theirs(stream: bool) -> tokio_kcp::KcpConfig {
    tokio_kcp::KcpConfig {
        nodelay: tokio_kcp::KcpNoDelayConfig::fastest(),
        wnd_size: (256, 256),
        flush_write: true,
        flush_acks_input: true,
        stream,
        ..tokio_kcp::KcpConfig::default()
    }
}

fn ours() -> Config {
    Config::new().timing(Timing::FAST3).windows(256, 256)
}

fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Gives back what comes until the connection is gone.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..len]).await.is_err() || stream.flush().await.is_err() {
            break;
        }
    }
}

async fn their_echo_server(stream: bool) -> SocketAddr {
    let listener = tokio_kcp::KcpListener::bind(theirs(stream), "127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut listener = listener;
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo(stream));
        }
    });
    addr
}

async fn our_echo_server() -> SocketAddr {
    our_echo_server_with(ours()).await
}

async fn our_echo_server_with(config: Config) -> SocketAddr {
    let listener = KcpListener::bind_with("127.0.0.1:0", config).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo(stream));
        }
    });
    addr
}

/// Sends `data` in writes of `write` bytes while reading it back, and gives the connection back.
async fn exchange<S>(stream: S, data: Vec<u8>, write: usize) -> S
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut reader, mut writer) = split(stream);
    let sent = data.clone();
    let writing = tokio::spawn(async move {
        for piece in sent.chunks(write) {
            writer.write_all(piece).await.unwrap();
        }
        writer.flush().await.unwrap();
        writer
    });
    let mut received = vec![0; data.len()];
    reader.read_exact(&mut received).await.unwrap();
    assert!(received == data, "the echo differs");
    reader.unsplit(writing.await.unwrap())
}

/// The peer acknowledged everything, and nothing it sent was out of place.
async fn finish(mut stream: KcpStream) {
    stream.shutdown().await.unwrap();
    let stats = stream.stats();
    assert_eq!((stats.unsent_bytes, stats.path.in_flight_segments), (0, 0));
    assert_eq!(stats.anomalies.invalid_una, 0);
    assert_eq!(stream.error(), None);
}

async fn all(mut tasks: JoinSet<()>) {
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcpx_clients_connect_to_a_tokio_kcp_listener() {
    within_deadline(async {
        let addr = their_echo_server(true).await;
        let mut tasks = JoinSet::new();
        for seed in 0..CONNECTIONS {
            tasks.spawn(async move {
                let stream = KcpStream::connect_with(addr, ours()).await.unwrap();
                finish(exchange(stream, random_bytes(seed, TOTAL), 64 * 1024).await).await;
            });
        }
        all(tasks).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokio_kcp_clients_connect_to_a_kcpx_listener() {
    within_deadline(async {
        let addr = our_echo_server().await;
        let mut tasks = JoinSet::new();
        for seed in 0..CONNECTIONS {
            tasks.spawn(async move {
                let config = theirs(true);
                let stream = tokio_kcp::KcpStream::connect(&config, addr).await.unwrap();
                exchange(stream, random_bytes(seed, TOTAL), 64 * 1024).await;
            });
        }
        all(tasks).await;
    })
    .await;
}

/// Each of their writes is one message of 73 fragments, to a byte stream of ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_mode_of_tokio_kcp_is_read_as_a_stream() {
    within_deadline(async {
        let addr = our_echo_server().await;
        let config = theirs(false);
        let stream = tokio_kcp::KcpStream::connect(&config, addr).await.unwrap();
        exchange(stream, random_bytes(1, 1 << 20), 100_000).await;
        let addr = their_echo_server(false).await;
        let stream = KcpStream::connect_with(addr, ours()).await.unwrap();
        finish(exchange(stream, random_bytes(2, 1 << 20), 100_000).await).await;
    })
    .await;
}

/// Requests and responses: no datagram waits for more data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_messages_are_echoed_both_ways() {
    async fn request_and_response_round_trips_complete(
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) {
        for seed in 0..200 {
            let request = random_bytes(seed, 64);
            stream.write_all(&request).await.unwrap();
            stream.flush().await.unwrap();
            let mut answer = [0; 64];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(request, answer);
        }
    }
    within_deadline(async {
        let addr = their_echo_server(true).await;
        let mut stream = KcpStream::connect_with(addr, ours()).await.unwrap();
        request_and_response_round_trips_complete(&mut stream).await;
        stream.established().await.unwrap();
        finish(stream).await;
        let addr = our_echo_server().await;
        let mut stream = tokio_kcp::KcpStream::connect(&theirs(true), addr).await.unwrap();
        request_and_response_round_trips_complete(&mut stream).await;
    })
    .await;
}

/// Asked to, our listener gives a client a conversation id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conv_0_of_a_tokio_kcp_client_is_assigned_an_id() {
    within_deadline(async {
        let config = ours().assign_conv(true);
        let addr = our_echo_server_with(config).await;
        let mut tasks = JoinSet::new();
        for seed in 0..CONNECTIONS {
            tasks.spawn(async move {
                let config = theirs(true);
                let stream =
                    tokio_kcp::KcpStream::connect_with_conv(&config, 0, addr).await.unwrap();
                exchange(stream, random_bytes(seed, 1 << 20), 1_000).await;
            });
        }
        all(tasks).await;
    })
    .await;
}

/// Its first segment is answered without state by a ping. The ping's acknowledgement lets the next copy in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokio_kcp_clients_are_let_in_by_a_retry() {
    within_deadline(async {
        for assign_conv in [false, true] {
            // The peer that answers nothing keeps its place, however long this takes.
            let hour = Duration::from_secs(3_600);
            let limits = Limits::new().max_unvalidated(1).validation_timeout(hour);
            let config = ours().assign_conv(assign_conv).limits(limits);
            let listener = KcpListener::bind_with("127.0.0.1:0", config).await.unwrap();
            let addr = listener.local_addr().unwrap();
            // A peer that answers nothing takes the only place.
            let absent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let mut first = vec![0; 24];
            (first[0], first[4], first[6]) = (7, 81, 128);
            absent.send_to(&first, addr).await.unwrap();
            let (_held, _) = listener.accept().await.unwrap();
            assert_eq!(listener.stats().connections.unvalidated, 1);
            let endpoint = listener.endpoint().clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(echo(stream));
                }
            });
            let mut tasks = JoinSet::new();
            for seed in 0..CONNECTIONS {
                tasks.spawn(async move {
                    let config = theirs(true);
                    let stream = if assign_conv {
                        tokio_kcp::KcpStream::connect_with_conv(&config, 0, addr).await.unwrap()
                    } else {
                        tokio_kcp::KcpStream::connect(&config, addr).await.unwrap()
                    };
                    exchange(stream, random_bytes(seed, 1 << 20), 1_000).await;
                });
            }
            all(tasks).await;
            let stats = endpoint.stats();
            assert!(stats.retry.answered >= CONNECTIONS, "{stats:?}");
            assert_eq!(
                (stats.connections.passive_opens, stats.connections.unvalidated),
                (1 + CONNECTIONS, 1)
            );
        }
    })
    .await;
}

/// A peer without the CONTROL capability is sent no command that it does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fin_and_rst_are_not_sent_to_tokio_kcp() {
    within_deadline(async {
        let server = their_echo_server(true).await;
        let tap = std::sync::Arc::new(tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let addr = tap.local_addr().unwrap();
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = seen.clone();
        let passing = tokio::spawn(async move {
            let (mut client, mut buffer) = (None, vec![0; 2_048]);
            loop {
                let Ok((len, from)) = tap.recv_from(&mut buffer).await else { continue };
                let to = if from == server { client } else { Some(server) };
                if from != server {
                    client = Some(from);
                    log.lock().unwrap().push(buffer[..len].to_vec());
                }
                if let Some(to) = to {
                    tap.send_to(&buffer[..len], to).await.unwrap();
                }
            }
        });
        let stream = KcpStream::connect_with(addr, ours()).await.unwrap();
        let stream = exchange(stream, random_bytes(1, 100_000), 10_000).await;
        let endpoint = stream.endpoint();
        finish(stream).await;
        endpoint.wait_idle().await;
        passing.abort();
        let seen = seen.lock().unwrap();
        let commands = seen.iter().flat_map(|d| kcpx::proto::segment::Segments::new(d));
        let commands: Vec<_> = commands.map(|(header, _)| header.command).collect();
        assert!(commands.len() > 70);
        assert!(commands.iter().all(|c| *c != kcpx::proto::segment::Command::Control));
    })
    .await;
}
