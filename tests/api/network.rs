//! Port unreachable errors of the system, and both IP versions on one socket.

use std::io::ErrorKind;
use std::net::SocketAddr;

use crate::common::{assert_same, bytes, on_both_runtimes, read, until};
use kcpx::{Config, Endpoint, KcpListener, KcpStream};
use kcpx_skip::has_ipv6;
use tokio::io::AsyncWriteExt;

const LOCAL: &str = "127.0.0.1:0";

/// A socket whose port is unreachable, since it is connected to another peer. It reserves the port.
fn refusing() -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind(LOCAL).unwrap();
    socket.connect("127.0.0.1:9").unwrap();
    socket
}

/// Starts a server for `client` on that port.
fn start(refusing: std::net::UdpSocket, client: SocketAddr) -> KcpListener {
    refusing.connect(("127.0.0.1", client.port())).unwrap();
    KcpListener::try_from(refusing).unwrap()
}

#[test]
fn port_unreachable_is_a_transient_error_until_the_server_starts() {
    on_both_runtimes(|| async {
        let server = refusing();
        let addr = server.local_addr().unwrap();
        // The system reports refusals to connected sockets only.
        let socket = std::net::UdpSocket::bind(LOCAL).unwrap();
        socket.connect(addr).unwrap();
        let early = Config::new().early_data(true);
        let endpoint = Endpoint::from_std_with(socket, early).unwrap();
        let mut client = endpoint.connect(addr).await.unwrap();
        let data = bytes(3, 50_000);
        client.write_all(&data).await.unwrap();
        until(|| {
            let stats = endpoint.stats();
            stats.send_errors.refused + stats.recv_errors.refused > 0
        })
        .await;
        assert_eq!(client.error(), None);
        let error = endpoint.take_error().unwrap().unwrap();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);

        let listener = start(server, endpoint.local_addr().unwrap());
        let (mut server, _) = listener.accept().await.unwrap();
        let got = read(&mut server, data.len()).await;
        server.write_all(&got).await.unwrap();
        assert_same(&read(&mut client, data.len()).await, &data);
        client.established().await.unwrap();
    });
}

#[test]
fn early_data_before_the_server_starts_arrives() {
    on_both_runtimes(|| async {
        let server = refusing();
        let (addr, early) = (server.local_addr().unwrap(), Config::new().early_data(true));
        let mut client = KcpStream::connect_with(addr, early).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        let endpoint = client.endpoint();
        until(|| endpoint.stats().sent.datagrams > 1).await;
        let listener = start(server, client.local_addr().unwrap());
        let (mut server, _) = listener.accept().await.unwrap();
        let hello = read(&mut server, 5).await;
        server.write_all(&hello).await.unwrap();
        assert_eq!(read(&mut client, 5).await, b"hello");
    });
}

#[test]
fn wildcard_ipv6_listener_reports_ipv4_clients_as_ipv4() {
    if !has_ipv6() {
        return;
    }
    on_both_runtimes(|| async {
        let listener = KcpListener::bind("[::]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "::1"] {
            let addr = (host, port);
            let mut client = KcpStream::connect(addr).await.unwrap();
            client.write_all(b"!").await.unwrap();
            let (mut server, peer) = listener.accept().await.unwrap();
            assert_eq!(peer.ip(), host.parse::<std::net::IpAddr>().unwrap());
            assert_eq!(server.peer_addr().unwrap(), peer);
            assert_eq!(peer.port(), client.local_addr().unwrap().port());
            let byte = read(&mut server, 1).await;
            server.write_all(&byte).await.unwrap();
            assert_eq!(read(&mut client, 1).await, b"!");
        }
        // The listener's endpoint connects to IPv4 peers.
        let v4 = KcpListener::bind(LOCAL).await.unwrap();
        let mut back = listener.endpoint().connect(v4.local_addr().unwrap()).await.unwrap();
        back.write_all(b"?").await.unwrap();
        let (_, peer) = v4.accept().await.unwrap();
        assert_eq!((peer.is_ipv4(), peer.port()), (true, port));
    });
}
