//! The proxy, between a TCP client and a TCP server of others.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::ANYWHERE;
use super::common::{assert_same, bytes, guarded, two_threads};
use super::hash::{hex, sha256};
use super::process::Example;

const CHUNK: usize = 1 << 20;
const CHUNKS: u64 = 256;

/// Both proxies in front of a TCP service.
struct Tunnel {
    /// The address for clients of the service.
    addr: SocketAddr,
    client: Example,
    server: Example,
}

impl Tunnel {
    fn new(target: SocketAddr, options: &[&str]) -> Self {
        let target = target.to_string();
        let server = ["server", "--listen", ANYWHERE, "--target", &target];
        let (server, remote) = Example::serve("proxy", &[&server, options].concat());
        let remote = remote.to_string();
        let client = ["client", "--listen", ANYWHERE, "--remote", &remote];
        let (client, addr) = Example::serve("proxy", &[&client, options].concat());
        Self { addr, client, server }
    }
}

/// A web server on TCP, independent of KCP.
async fn web_server() -> SocketAddr {
    let chunks = || {
        let chunks = (0..CHUNKS).map(|seed| Ok::<_, Infallible>(Bytes::from(bytes(seed, CHUNK))));
        Body::from_stream(tokio_stream::iter(chunks))
    };
    let app = Router::new()
        .route("/download", get(async move || chunks()))
        .route("/sha256", post(async |body: Bytes| sha256(&body)));
    let listener = TcpListener::bind(ANYWHERE).await.expect("a listener");
    let addr = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    addr
}

#[test]
fn proxy_download_of_256_mib_by_an_http_client_arrives_unchanged() {
    let test = async {
        let tunnel = Tunnel::new(web_server().await, &["--key", "a passphrase"]);
        let client =
            Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(HttpConnector::new());
        let url = format!("http://{}/download", tunnel.addr);
        let response = client.get(url.parse().unwrap()).await.expect("a response");
        assert_eq!(response.status(), 200);
        let (mut body, mut hasher, mut len) = (response.into_body(), Sha256::new(), 0);
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.expect("the download").into_data() {
                hasher.update(&data);
                len += data.len() as u64;
            }
        }
        assert_eq!(len, CHUNKS * CHUNK as u64);
        let mut expected = Sha256::new();
        for seed in 0..CHUNKS {
            expected.update(bytes(seed, CHUNK));
        }
        assert_eq!(hex(&hasher.finalize()), hex(&expected.finalize()));
    };
    two_threads().block_on(guarded(test));
}

#[test]
fn proxy_concurrent_uploads_arrive_unchanged() {
    let test = async {
        let options = ["--crypt", "null", "--mode", "fast3", "--parityshard", "0"];
        let tunnel = Tunnel::new(web_server().await, &options);
        let url = format!("http://{}/sha256", tunnel.addr);
        let client =
            Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(HttpConnector::new());
        let mut uploads = tokio::task::JoinSet::new();
        for seed in 0..16 {
            let data = bytes(seed, 1_000_000);
            let expected = sha256(&data);
            let request = hyper::Request::post(&url).body(Full::from(data)).unwrap();
            let response = client.request(request);
            uploads.spawn(async move {
                let body = response.await.expect("a response").into_body();
                assert_eq!(body.collect().await.expect("a body").to_bytes(), expected);
            });
        }
        assert_eq!(uploads.join_all().await.len(), 16);
    };
    two_threads().block_on(guarded(test));
}

/// The end of each direction passes through by itself: the answer comes after the end of the
/// request.
#[test]
fn proxy_forwards_half_closed_connections() {
    let test = async {
        let service = TcpListener::bind(ANYWHERE).await.unwrap();
        let tunnel = Tunnel::new(service.local_addr().unwrap(), &["--key", "a passphrase"]);
        let request = bytes(1, 300_000);
        let server = async {
            let (mut tcp, _) = service.accept().await.expect("a connection");
            let mut got = Vec::new();
            tcp.read_to_end(&mut got).await.expect("the end of the request");
            assert_same(&got, &request);
            tcp.write_all(&bytes(2, 200_000)).await.expect("capacity");
            tcp.shutdown().await.expect("an end");
        };
        let client = async {
            let mut tcp = TcpStream::connect(tunnel.addr).await.expect("a connection");
            tcp.write_all(&request).await.expect("capacity");
            tcp.shutdown().await.expect("an end");
            let mut answer = Vec::new();
            tcp.read_to_end(&mut answer).await.expect("the end of the answer");
            assert_same(&answer, &bytes(2, 200_000));
        };
        tokio::join!(server, client);
    };
    two_threads().block_on(guarded(test));
}

#[test]
fn proxy_forwards_a_server_that_sends_first() {
    let test = async {
        let service = TcpListener::bind(ANYWHERE).await.unwrap();
        let tunnel = Tunnel::new(service.local_addr().unwrap(), &["--key", "a passphrase"]);
        let server = async {
            let (mut tcp, _) = service.accept().await.expect("a connection");
            tcp.write_all(b"220 ready\r\n").await.expect("capacity");
            let mut answer = String::new();
            tcp.read_to_string(&mut answer).await.expect("the end of the answer");
            assert_eq!(answer, "QUIT\r\n");
        };
        let client = async {
            let mut tcp = TcpStream::connect(tunnel.addr).await.expect("a connection");
            let mut greeting = [0; 11];
            tcp.read_exact(&mut greeting).await.expect("a greeting");
            assert_eq!(&greeting, b"220 ready\r\n");
            tcp.write_all(b"QUIT\r\n").await.expect("capacity");
            tcp.shutdown().await.expect("an end");
        };
        tokio::join!(server, client);
    };
    two_threads().block_on(guarded(test));
}

/// A truncated stream must not end with EOF.
#[test]
fn proxy_forwards_a_reset_of_the_service() {
    let test = async {
        let service = TcpListener::bind(ANYWHERE).await.unwrap();
        let tunnel = Tunnel::new(service.local_addr().unwrap(), &["--key", "a passphrase"]);
        let server = async {
            let (mut tcp, _) = service.accept().await.expect("a connection");
            assert_eq!(tcp.read_u8().await.expect("a byte"), 1);
            tcp.set_zero_linger().expect("a socket option");
        };
        let client = async {
            let mut tcp = TcpStream::connect(tunnel.addr).await.expect("a connection");
            tcp.write_u8(1).await.expect("capacity");
            let error = tcp.read_u8().await.expect_err("no byte");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        };
        tokio::join!(server, client);
    };
    two_threads().block_on(guarded(test));
}

/// Whichever side a signal ends, and however, the client of a half-done download sees no end of file.
#[test]
#[cfg(target_os = "linux")]
fn proxy_that_is_ended_resets_what_it_carries() {
    use nix::sys::signal::Signal;

    let reset = async |tcp: &mut TcpStream| {
        let error = tcp.read_u8().await.expect_err("no byte");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    };
    let test = async |signal, near| {
        println!("{signal}, the client's side: {near}");
        let service = TcpListener::bind(ANYWHERE).await.unwrap();
        let tunnel = Tunnel::new(service.local_addr().unwrap(), &["--key", "a passphrase"]);
        let mut user = TcpStream::connect(tunnel.addr).await.expect("a connection");
        user.write_all(b"all").await.expect("capacity");
        let (mut server, _) = service.accept().await.expect("a connection");
        server.read_exact(&mut [0; 3]).await.expect("the request");
        server.write_all(b"half").await.expect("capacity");
        user.read_exact(&mut [0; 4]).await.expect("the first half");
        let (ended, _other, mut beside, mut behind) = if near {
            (tunnel.client, tunnel.server, user, server)
        } else {
            (tunnel.server, tunnel.client, server, user)
        };
        ended.signal(signal);
        reset(&mut beside).await;
        // A killed process sends nothing: the other side ends by its timeouts.
        if signal == Signal::SIGTERM {
            reset(&mut behind).await;
            ended.succeed();
        }
    };
    two_threads().block_on(guarded(async {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            test(signal, true).await;
            test(signal, false).await;
        }
    }));
}

#[test]
fn proxy_resets_when_the_service_is_unreachable() {
    let test = async {
        // The port is bound, so that no other program gets it, and does not listen.
        let bound = TcpSocket::new_v4().unwrap();
        bound.bind(ANYWHERE.parse().unwrap()).unwrap();
        let tunnel = Tunnel::new(bound.local_addr().unwrap(), &["--key", "a passphrase"]);
        // The reset may arrive before `connect` returns, which then has the error of the socket.
        let read = async { TcpStream::connect(tunnel.addr).await?.read_u8().await };
        let error = read.await.expect_err("no byte");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    };
    two_threads().block_on(guarded(test));
}

#[test]
fn proxy_ends_before_it_listens_if_the_other_side_is_unknown() {
    for args in [["server", "--target", "nonsense"], ["client", "--remote", "nonsense"]] {
        let args = [&args[..], &["--listen", ANYWHERE, "--key", "k"]].concat();
        Example::start("proxy", &args)
            .reject_with("cannot find \"nonsense\": write HOST:PORT with a known host");
    }
}

#[test]
fn proxy_rejects_invalid_options_by_name() {
    let start = |options: &[&str]| {
        let server = ["server", "--listen", ANYWHERE, "--target", "127.0.0.1:1"];
        Example::start("proxy", &[&server, options].concat())
    };
    let refused = |options: &[&str], text: &str| start(options).reject_with(text);
    refused(&[], "--crypt aes-128-gcm needs a --key");
    refused(
        &["--key", "k", "--crypt", "aes-129"],
        "unknown cipher \"aes-129\": use one of null, none",
    );
    start(&["--key", "k", "--mode", "slow"])
        .fail_with("possible values: normal, fast, fast2, fast3");
    refused(&["--key", "k", "--mtu", "40"], "mtu (bytes) must be between ");
    refused(&["--key", "k", "--sndwnd", "0"], "must be between 1 and 65535, got 0");
    refused(
        &["--key", "k", "--datashard", "0"],
        "fec data shards must be between 1 and 255, got 0",
    );
}
