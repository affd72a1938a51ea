//! Listeners bound to a wildcard address answer each peer from the address that it sent to. Linux: the
//! loopback interface has all of 127.0.0.0/8. The tests with addresses of both IP versions need privileges,
//! for two hosts in network namespaces.
#![cfg(target_os = "linux")]

mod common;

#[path = "addresses/hosts.rs"]
mod hosts;
#[cfg(feature = "netlink")]
#[path = "addresses/roaming.rs"]
mod roaming;
#[path = "addresses/two_hosts.rs"]
mod two_hosts;

use std::collections::VecDeque;
use std::net::SocketAddr;

use common::{ACK, PUSH, bytes, guarded, on_both_runtimes, one_thread, read, segment, until};
use kcpx::{Algorithm, Cipher, Config, KcpListener, KcpStream, Limits};
use kcpx_skip::has_ipv6;
use tokio::io::AsyncWriteExt;
use tokio::net::UdpSocket;

const CONV: u32 = 7;

/// Echoes `data` over a connection to `addr`, and checks that the accepted end has `addr` as its local
/// address.
async fn echo(listener: &KcpListener, addr: SocketAddr, config: Config, data: &[u8]) {
    let connect = KcpStream::connect_with(addr, config);
    let (client, accepted) = tokio::join!(connect, listener.accept());
    let (mut client, (mut server, _)) = (client.unwrap(), accepted.unwrap());
    assert_eq!((server.local_addr().unwrap(), client.peer_addr().unwrap()), (addr, addr));
    let serve = async {
        let got = read(&mut server, data.len()).await;
        server.write_all(&got).await.unwrap();
        server.shutdown().await.unwrap();
    };
    let (mut reader, mut writer) = client.split();
    let (got, sent, ()) =
        tokio::join!(read(&mut reader, data.len()), writer.write_all(data), serve);
    sent.unwrap();
    common::assert_same(&got, data);
}

#[test]
fn every_address_of_a_wildcard_listener_answers() {
    let wildcards = ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"];
    let wildcards = if has_ipv6() { &wildcards[..] } else { &wildcards[..1] };
    on_both_runtimes(|| async {
        let data = bytes(1, 200_000);
        let cipher = Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
        for (dscp, shards) in [(None, 1), (Some(46), 1), (None, 3)] {
            let config = Config::new().cipher(cipher.clone()).dscp(dscp);
            for wildcard in wildcards {
                let sharded = config.clone().shards(shards);
                let listener = KcpListener::bind_with(wildcard, sharded).await.unwrap();
                let port = listener.local_addr().unwrap().port();
                for last in [1, 2, 77] {
                    let addr = ([127, 0, 0, last], port).into();
                    echo(&listener, addr, config.clone(), &data).await;
                }
            }
        }
    });
}

/// The header of a received segment, and its sender.
#[derive(Clone, Copy, Debug)]
struct Got {
    from: SocketAddr,
    command: u8,
    ts: u32,
    sn: u32,
    len: usize,
}

impl Got {
    /// True for pings of a connection, of a Retry, and PATH_CHALLENGE.
    fn is_ping(&self) -> bool {
        self.command == PUSH && self.len == 0 && self.sn > 1 << 30
    }
}

/// A peer without an implementation: the test sends and receives each datagram.
struct Peer {
    socket: UdpSocket,
    /// Received segments that no call has taken yet.
    got: VecDeque<Got>,
}

impl Peer {
    async fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        Self { socket, got: VecDeque::new() }
    }

    async fn push(&self, sn: u32, to: SocketAddr) {
        let push = segment(CONV, PUSH, sn, 0, b"data");
        self.socket.send_to(&push, to).await.unwrap();
    }

    async fn pong(&self, ping: Got, to: SocketAddr) {
        let mut pong = segment(CONV, ACK, ping.sn, 0, &[]);
        pong[8..12].copy_from_slice(&ping.ts.to_le_bytes());
        self.socket.send_to(&pong, to).await.unwrap();
    }

    /// Returns the next segment for which `is_it` holds; later calls find the skipped ones.
    async fn next(&mut self, is_it: impl Fn(&Got) -> bool) -> Got {
        loop {
            if let Some(place) = self.got.iter().position(&is_it) {
                return self.got.remove(place).unwrap();
            }
            let mut buffer = [0; 2_048];
            let (len, from) = self.socket.recv_from(&mut buffer).await.unwrap();
            let mut rest = &buffer[..len];
            while rest.len() >= 24 {
                let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
                let (command, ts, sn, len) = (rest[4], word(8), word(12), word(20) as usize);
                self.got.push_back(Got { from, command, ts, sn, len });
                rest = &rest[24 + len..];
            }
        }
    }

    /// Returns the source address of the ACK of segment `sn`.
    async fn acked(&mut self, sn: u32) -> SocketAddr {
        self.next(|got| got.command == ACK && got.sn == sn).await.from
    }
}

/// A listener at 0.0.0.0, and its address for a last byte of 127.0.0.0/24.
async fn wildcard(config: Config) -> (KcpListener, impl Fn(u8) -> SocketAddr) {
    let listener = KcpListener::bind_with("0.0.0.0:0", config).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, move |last| SocketAddr::from(([127, 0, 0, last], port)))
}

/// Rule: P-33.
#[test]
fn local_ip_follows_the_peer_until_it_is_validated_and_then_moves_by_path_validation() {
    one_thread().block_on(guarded(async {
        let (listener, at) = wildcard(Config::new()).await;
        let mut peer = Peer::new().await;

        // Before validation, the local address follows the latest datagram.
        peer.push(0, at(2)).await;
        let (server, _) = listener.accept().await.unwrap();
        let local = || server.local_addr().unwrap();
        assert_eq!((peer.acked(0).await, local()), (at(2), at(2)));
        let ping = peer.next(Got::is_ping).await;
        peer.push(1, at(3)).await;
        assert_eq!((peer.acked(1).await, local()), (at(3), at(3)));
        peer.pong(ping, at(3)).await;
        until(|| listener.stats().connections.unvalidated == 0).await;

        // A replayed datagram from an on-path attacker can reach another address first. The listener receives
        // it, and keeps its path until the peer answers a challenge there.
        peer.push(2, at(4)).await;
        let challenge = peer.next(|got| got.is_ping() && got.from == at(4)).await;
        assert_eq!((peer.acked(2).await, local()), (at(3), at(3)));
        // A pong from another address, or a replayed datagram, validates nothing.
        peer.pong(challenge, at(5)).await;
        peer.pong(challenge, at(3)).await;
        for _ in 0..3 {
            peer.push(0, at(6)).await;
            assert_eq!(peer.acked(0).await, at(3));
        }
        peer.push(3, at(3)).await;
        assert_eq!((peer.acked(3).await, local()), (at(3), at(3)));

        peer.pong(challenge, at(4)).await;
        until(|| local() == at(4)).await;
        peer.push(4, at(4)).await;
        assert_eq!(peer.acked(4).await, at(4));
    }));
}

#[test]
fn answers_without_a_connection_leave_from_the_address_that_was_asked() {
    one_thread().block_on(guarded(async {
        let config = Config::new().limits(Limits::new().max_unvalidated(2));
        let (listener, at) = wildcard(config).await;
        for last in 2..9 {
            let mut peer = Peer::new().await;
            peer.push(0, at(last)).await;
            // The ping of a new connection, or of a Retry above `max_unvalidated`.
            assert_eq!(peer.next(Got::is_ping).await.from, at(last));
        }
        assert!(listener.stats().retry.sent > 0);
    }));
}

#[test]
fn connection_in_time_wait_answers_from_the_address_that_is_asked() {
    one_thread().block_on(guarded(async {
        let (listener, at) = wildcard(Config::new()).await;
        let mut peer = Peer::new().await;
        peer.push(0, at(2)).await;
        let (server, _) = listener.accept().await.unwrap();
        let ping = peer.next(Got::is_ping).await;
        peer.pong(ping, at(2)).await;
        until(|| listener.stats().connections.unvalidated == 0).await;
        server.abort();
        until(|| listener.stats().connections.current == 0).await;
        assert_eq!(peer.acked(0).await, at(2));
        peer.got.clear();
        for last in [3, 2] {
            peer.push(0, at(last)).await;
            assert_eq!(peer.acked(0).await, at(last));
        }
        assert_eq!(listener.stats().dropped.time_wait, 2);
    }));
}
