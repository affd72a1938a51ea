//! The servers and clients of other crates on KCP, through the traits of the optional features.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../common/sums.rs"]
mod sums;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kcpx::{Config, Endpoint, KcpConnectInfo, KcpConnector, KcpListener, KcpStream, Timing};
use kcpx_netem::{Conditions, Counts, Relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Server, server::Connected};

use self::common::{
    assert_same, bytes, guarded, is_pending, listener, one_thread, pair, two_threads, until,
};
use self::sums::{Number, PEER, Sums, SumsClient};

fn config() -> Config {
    Config::new().timing(Timing::FAST3)
}

/// An endpoint that dials.
async fn dialer() -> Endpoint {
    Endpoint::bind_with("127.0.0.1:0", config()).await.expect("an endpoint")
}

/// Waits until neither side has a connection.
async fn none_left(one: &Endpoint, other: &Endpoint) {
    guarded(until(|| {
        one.stats().connections.current == 0 && other.stats().connections.current == 0
    }))
    .await;
}

#[test]
fn http_requests_over_a_lossy_link_are_all_answered() {
    const CONNECTIONS: u64 = 100;
    const REQUESTS: u64 = 100;

    two_threads().block_on(async {
        let listener = listener(config()).await;
        let (addr, server) = (listener.local_addr().unwrap(), listener.endpoint().clone());
        let app = Router::new().route(
            "/length-and-echo",
            post(async |body: Bytes| format!("{} {}", body.len(), String::from_utf8_lossy(&body))),
        );
        let serving = tokio::spawn(async move { axum::serve(listener, app).await });

        let (loss, detours) = (5, 5);
        let (delay, detour) = (Duration::from_millis(1), Duration::from_millis(2));
        let link = Conditions { loss, delay, detours, detour };
        let counts = Arc::<Counts>::default();
        let relay = Relay::start_counting(addr, link, 20_26, &counts).await.expect("a relay");
        let client = dialer().await;

        let mut tasks = JoinSet::new();
        for connection in 0..CONNECTIONS {
            // A client keeps its one connection from request to request.
            let connector = KcpConnector::with_endpoint(client.clone());
            let http = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
            let url = format!("http://{}/length-and-echo", relay.addr());
            tasks.spawn(async move {
                for request in 0..REQUESTS {
                    let text = format!("{connection}/{request}").repeat(1 + request as usize);
                    let expected = format!("{} {text}", text.len());
                    let request = hyper::Request::post(&url).body(Full::from(text)).unwrap();
                    let response = http.request(request).await.expect("a response");
                    assert_eq!(response.status(), 200);
                    let body = response.into_body().collect().await.expect("a body").to_bytes();
                    assert_eq!(body, expected);
                }
                REQUESTS
            });
        }
        let answered: u64 = guarded(tasks.join_all()).await.into_iter().sum();
        assert_eq!(answered, CONNECTIONS * REQUESTS);
        assert_eq!(server.stats().connections.passive_opens, CONNECTIONS);
        assert_eq!(client.stats().connections.active_opens, CONNECTIONS);
        let lost = counts.lost.load(std::sync::atomic::Ordering::Relaxed);
        assert!(lost > 1_000, "the link lost {lost} datagrams only");

        none_left(&client, &server).await;
        serving.abort();
    });
}

/// A server of `Sums`, and what ends it.
async fn grpc_server() -> (SocketAddr, Endpoint, oneshot::Sender<()>) {
    let listener = listener(config()).await;
    let (addr, endpoint) = (listener.local_addr().unwrap(), listener.endpoint().clone());
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let stopped = async { drop(stopped.await) };
        Server::builder().serve_with_incoming_shutdown(Sums, listener.incoming(), stopped).await
    });
    (addr, endpoint, stop)
}

async fn grpc_channel(addr: SocketAddr, connector: KcpConnector) -> Channel {
    let endpoint = tonic::transport::Endpoint::new(format!("http://{addr}")).expect("a URI");
    endpoint.connect_with_connector(connector).await.expect("a channel")
}

#[test]
fn grpc_calls_of_each_kind_are_answered() {
    const NUMBERS: i64 = 5_000;

    let test = async {
        let (addr, server, stop) = grpc_server().await;
        let client = dialer().await;
        let channel = grpc_channel(addr, KcpConnector::with_endpoint(client.clone())).await;
        let mut sums = SumsClient::new(channel);

        let response = sums.square(-7).await.expect("an answer");
        assert_eq!(response.get_ref().value, 49);
        let peer = response.metadata().get(PEER).expect("the address of the peer");
        assert_eq!(peer.to_str().unwrap(), client.local_addr().unwrap().to_string());
        let refused = sums.square(i64::MAX).await.expect_err("too large");
        assert_eq!(refused.code(), tonic::Code::OutOfRange);

        let counted = sums.count(NUMBERS).await.expect("a stream");
        let counted: Vec<_> = counted.map(|number| number.expect("a number").value).collect().await;
        assert_eq!(counted, (1..=NUMBERS).collect::<Vec<_>>());

        // All at once, so that both directions are full at the same time.
        let numbers = tokio_stream::iter((1..=NUMBERS).map(|value| Number { value }));
        let totals = sums.total(numbers).await.expect("a stream");
        let totals: Vec<_> = totals.map(|total| total.expect("a total").value).collect().await;
        assert_eq!(totals, (1..=NUMBERS).map(|n| n * (n + 1) / 2).collect::<Vec<_>>());

        assert_eq!(server.stats().connections.passive_opens, 1);
        drop(sums);
        none_left(&client, &server).await;
        drop(stop);
    };
    two_threads().block_on(guarded(test));
}

#[test]
fn grpc_server_shutdown_closes_its_connections() {
    let test = async {
        let (addr, server, stop) = grpc_server().await;
        let client = dialer().await;
        let channel = grpc_channel(addr, KcpConnector::with_endpoint(client.clone())).await;
        let mut sums = SumsClient::new(channel);
        sums.square(2).await.expect("an answer");
        drop(stop);
        none_left(&client, &server).await;
    };
    one_thread().block_on(guarded(test));
}

#[test]
fn connector_with_own_sockets_connects_by_name() {
    let test = async {
        let (addr, _server, _stop) = grpc_server().await;
        let uri = format!("http://localhost:{}", addr.port());
        let endpoint = tonic::transport::Endpoint::new(uri).expect("a URI");
        let connector = KcpConnector::new(config());
        let channel = endpoint.connect_with_connector(connector).await.expect("a channel");
        let mut sums = SumsClient::new(channel);
        assert_eq!(sums.square(3).await.expect("an answer").get_ref().value, 9);
    };
    one_thread().block_on(guarded(test));
}

#[test]
fn tls_carries_64_mib_both_ways() {
    const LEN: usize = 64 << 20;

    let test = async {
        let (acceptor, connector, name) = tls();
        let pair = pair(config()).await;
        let endpoints = (pair.client.endpoint(), pair.server.endpoint());
        let (client, server) =
            tokio::try_join!(connector.connect(name, pair.client), acceptor.accept(pair.server))
                .expect("a handshake");
        let (to_server, to_client) = (Arc::new(bytes(1, LEN)), Arc::new(bytes(2, LEN)));
        let both = (
            tokio::spawn(exchange(client, to_server.clone(), to_client.clone())),
            tokio::spawn(exchange(server, to_client, to_server)),
        );
        let (client, server) = tokio::join!(both.0, both.1);
        client.expect("the client");
        server.expect("the server");
        none_left(&endpoints.0, &endpoints.1).await;
    };
    two_threads().block_on(guarded(test));
}

/// Sends one while it receives the other, until both directions have ended.
async fn exchange(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite,
    send: Arc<Vec<u8>>,
    expected: Arc<Vec<u8>>,
) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut got = Vec::with_capacity(expected.len());
    let write = async {
        writer.write_all(&send).await?;
        writer.shutdown().await
    };
    tokio::try_join!(write, reader.read_to_end(&mut got)).expect("a transfer");
    assert_same(&got, &expected);
}

type TlsSides = (
    tokio_rustls::TlsAcceptor,
    tokio_rustls::TlsConnector,
    tokio_rustls::rustls::pki_types::ServerName<'static>,
);

/// Both sides of TLS with a certificate made for this call.
fn tls() -> TlsSides {
    use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

    let name = "kcpx.example";
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let certificate = made.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a usable certificate");
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate], key).expect("a usable key");
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(name).expect("a name");
    (Arc::new(server).into(), Arc::new(client).into(), name)
}

#[test]
fn listener_works_with_generic_tokio_util_code() {
    /// Independent of KCP.
    async fn echo_once<L>(listener: &mut L) -> L::Addr
    where
        L: tokio_util::net::Listener<Io: Unpin>,
    {
        let (mut stream, peer) = listener.accept().await.expect("a connection");
        let byte = stream.read_u8().await.expect("a byte");
        stream.write_u8(byte).await.expect("capacity");
        stream.shutdown().await.expect("an acknowledgement");
        peer
    }

    let test = async {
        let mut listener = listener(config()).await;
        let addr = tokio_util::net::Listener::local_addr(&listener).expect("an address");
        let client = async {
            let mut stream = KcpStream::connect_with(addr, config()).await.expect("a stream");
            stream.write_u8(5).await.expect("capacity");
            assert_eq!(stream.read_u8().await.expect("an echo"), 5);
            stream.local_addr().expect("an address").port()
        };
        let (peer, port) = tokio::join!(echo_once(&mut listener), client);
        assert_eq!(peer.port(), port);
    };
    one_thread().block_on(guarded(test));
}

#[test]
fn connect_info_has_both_addresses() {
    one_thread().block_on(guarded(async {
        let pair = pair(config()).await;
        let info: KcpConnectInfo = pair.server.connect_info();
        assert_eq!(info.local_addr, pair.listener.local_addr().unwrap());
        assert_eq!(info.peer_addr, pair.server.peer_addr().unwrap());
        assert_eq!(info.peer_addr.port(), pair.client.local_addr().unwrap().port());
    }));
}

/// The runtime that drives an endpoint may end before the task that accepts.
#[test]
fn servers_on_an_ended_endpoint_do_not_spin() {
    let driving = one_thread();
    let mut listener = driving.block_on(listener(config()));
    drop(driving);
    one_thread().block_on(guarded(async {
        let mut incoming = pin!(listener.incoming());
        let error = incoming.as_mut().next().await.expect("an error first").expect_err("an error");
        assert!(tokio::runtime::is_rt_shutdown_err(&error), "{error}");
        assert!(StreamExt::next(&mut incoming).await.is_none(), "the end after it");

        assert!(KcpListener::accept(&listener).await.is_err());
        assert!(is_pending(axum::serve::Listener::accept(&mut listener)).await);
    }));
}

#[test]
fn connector_rejects_uris_that_it_cannot_connect_to() {
    use tower_service::Service;

    one_thread().block_on(guarded(async {
        let mut connector = KcpConnector::with_endpoint(dialer().await);
        for (uri, expected) in [
            ("/path", "has no host"),
            ("kcp://localhost", "has no port"),
            ("http://[::1]:1", "is IPv6, the socket"),
        ] {
            let error = connector.call(uri.parse().unwrap()).await.expect_err("a refusal");
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }));
}
