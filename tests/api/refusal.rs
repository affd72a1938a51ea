//! `connect` to a closed port (ICMP port unreachable), and forged reports of one, which need privileges.
//! Linux reports a closed port to unconnected sockets too.
#![cfg(target_os = "linux")]

use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use crate::common::{on_both_runtimes, pair};
use kcpx::{Config, ConnectionError, KcpListener, KcpStream};
use kcpx_skip::{has_ipv6, skip};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// A port that refuses datagrams. Its socket is connected to another peer and reserves the port.
async fn closed_port(ip: &str) -> (SocketAddr, UdpSocket) {
    let socket = UdpSocket::bind((ip, 0)).await.unwrap();
    socket.connect((ip, 9)).await.unwrap();
    (socket.local_addr().unwrap(), socket)
}

fn cause(error: &std::io::Error) -> Option<ConnectionError> {
    error.get_ref().and_then(|cause| cause.downcast_ref()).copied()
}

#[test]
fn connect_to_a_closed_port_is_refused() {
    let ips = ["127.0.0.1", "::1"];
    let ips = if has_ipv6() { &ips[..] } else { &ips[..1] };
    on_both_runtimes(|| async {
        for ip in ips {
            let (addr, _socket) = closed_port(ip).await;
            let error = KcpStream::connect(addr).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert_eq!(cause(&error), Some(ConnectionError::PortUnreachable));
        }
    });
}

#[test]
fn refusal_of_one_address_starts_the_next_attempt() {
    on_both_runtimes(|| async {
        let listener = KcpListener::bind("127.0.0.1:0").await.unwrap();
        let (closed, _socket) = closed_port("127.0.0.1").await;
        // Attempts 250 ms apart would take 25 s.
        let mut addrs = vec![closed; 100];
        addrs.push(listener.local_addr().unwrap());
        let connect = timeout(Duration::from_secs(20), KcpStream::connect(addrs.as_slice()));
        let client = connect.await.unwrap().unwrap();
        assert_eq!(client.peer_addr().unwrap(), listener.local_addr().unwrap());
    });
}

#[test]
fn early_data_to_a_closed_port_is_not_refused() {
    on_both_runtimes(|| async {
        let (addr, _socket) = closed_port("127.0.0.1").await;
        let config = Config::new().early_data(true).dead_peer_timeout(Some(Duration::from_secs(1)));
        let mut client = KcpStream::connect_with(addr, config).await.unwrap();
        client.write_all(b"anyone?").await.unwrap();
        let error = client.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    });
}

/// Sends forged ICMP packets.
struct Forger(Socket);

impl Forger {
    /// Returns `None` without the privilege for raw sockets.
    fn new() -> Option<Self> {
        let forger = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4));
        if let Err(error) = &forger {
            skip(format!("a raw socket: {error}"));
        }
        forger.ok().map(Self)
    }

    /// Tells the socket at `from` that the port `to` is closed.
    fn port_unreachable(&self, from: SocketAddr, to: SocketAddr) {
        let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { panic!("IPv4") };
        let packet = port_unreachable(from, to);
        let host = SocketAddr::from((*from.ip(), 0)).into();
        assert_eq!(self.0.send_to(&packet, &host).unwrap(), packet.len());
    }
}

/// Port unreachable (RFC 792) about a UDP datagram of 8 bytes.
fn port_unreachable(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    let mut packet = vec![3, 3, 0, 0, 0, 0, 0, 0];
    packet.extend([0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend([0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let words = packet.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// A report ends `connect`, so the forged packets of the next test reach the socket.
#[test]
fn forged_refusal_during_connect_counts_for_the_peer_alone() {
    let Some(forger) = Forger::new() else { return };
    on_both_runtimes(|| async {
        for (is_about_the_peer, expected, seconds) in
            [(true, ErrorKind::ConnectionRefused, 60), (false, ErrorKind::TimedOut, 1)]
        {
            let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let peer = silent.local_addr().unwrap();
            let other = SocketAddr::from(([127, 0, 0, 1], 9));
            let config = Config::new().connect_timeout(Duration::from_secs(seconds));
            let connect = KcpStream::connect_with(peer, config);
            let forge = async {
                let (_, from) = silent.recv_from(&mut [0; 2_000]).await.unwrap();
                forger.port_unreachable(from, if is_about_the_peer { peer } else { other });
            };
            let (result, ()) = tokio::join!(connect, forge);
            assert_eq!(result.unwrap_err().kind(), expected);
        }
    });
}

#[test]
fn forged_refusal_does_not_end_a_connection() {
    let Some(forger) = Forger::new() else { return };
    on_both_runtimes(|| async {
        let mut pair = pair(Config::new()).await;
        let (client, server) =
            (pair.client.local_addr().unwrap(), pair.listener.local_addr().unwrap());
        for byte in 0..100 {
            forger.port_unreachable(client, server);
            forger.port_unreachable(server, client);
            pair.client.write_all(&[byte]).await.unwrap();
            assert_eq!(pair.server.read_u8().await.unwrap(), byte);
            pair.server.write_all(&[byte]).await.unwrap();
            assert_eq!(pair.client.read_u8().await.unwrap(), byte);
        }
        let errors = pair.client.endpoint().stats();
        assert_eq!((errors.recv_errors.total(), errors.send_errors.total()), (0, 0));
    });
}
