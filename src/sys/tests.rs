//! The UDP socket on the loopback interface.

#[cfg(unix)]
mod blocked;
#[cfg(target_os = "linux")]
mod dscp;
#[cfg(target_os = "linux")]
mod ip_fragmentation;
#[cfg(target_os = "linux")]
mod pktinfo;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod refusal;

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{Ipv6Addr, SocketAddr};
use std::task::Poll;

use kcpx_skip::{has_ipv6, skip};

use super::recv_batch::{BUFFERS, MAX_GSO_BYTES};
use super::*;
use crate::config::SocketConfig;
use crate::util::path::{LocalIp, Path};

const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";
const ANY_V6: &str = "[::]:0";

async fn bound(addr: &str) -> UdpSocket {
    // No datagram may be lost to a full buffer, also if each is charged two kilobytes.
    let config = SocketConfig { recv_buffer_size: Some(1 << 20), ..SocketConfig::default() };
    writable(UdpSocket::bind(addr.parse().unwrap(), &config).unwrap()).await
}

/// Waits until the runtime reports the socket writable: a new one counts as blocked.
async fn writable(socket: UdpSocket) -> UdpSocket {
    poll_fn(|cx| socket.poll_send_ready(cx)).await.unwrap();
    socket
}

/// A socket without GRO: each datagram is received separately.
#[cfg(target_os = "linux")]
pub(crate) fn without_gro() -> UdpSocket {
    let config = SocketConfig { recv_buffer_size: Some(1 << 20), ..SocketConfig::default() };
    let socket = options::bind(V4.parse().unwrap(), &config).unwrap();
    let clone = socket.try_clone().unwrap();
    let socket = UdpSocket::from_std(socket).unwrap();
    options::set(&clone, libc::SOL_UDP, libc::UDP_GRO, 0).unwrap();
    socket
}

/// A connected socket: the system answers datagrams of others with ICMP port unreachable.
fn refusing() -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind(V4).unwrap();
    socket.connect("127.0.0.1:9").unwrap();
    socket
}

fn addr_of(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().unwrap()
}

/// Whether the system sends GSO batches. Linux is asked itself, since a socket that has GSO off must fail.
async fn has_gso() -> bool {
    #[cfg(target_os = "linux")]
    let has = {
        let socket = std::net::UdpSocket::bind(V4).unwrap();
        options::set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 1_000).is_ok()
    };
    #[cfg(not(target_os = "linux"))]
    let has = bound(V4).await.max_gso_segments() > 1;
    if !has {
        skip("GSO of UDP");
    }
    has
}

/// A GSO batch of `count` datagrams of `size` bytes, the last of `tail`, filled with a pattern.
fn gso_batch(count: usize, size: usize, tail: usize) -> Vec<u8> {
    (0..(count - 1) * size + tail).map(|at| u8::try_from((at / 7 + at) % 251).unwrap()).collect()
}

/// Sends all of `contents`, waiting where the socket would block.
async fn send_all(socket: &mut UdpSocket, dst: SocketAddr, segment_size: usize, contents: &[u8]) {
    let mut sent = 0;
    while sent < contents.len() {
        match socket.send(&Transmit {
            dst,
            segment_size,
            contents: &contents[sent..],
            local: LocalIp::ANY,
        }) {
            Ok(bytes) => {
                assert!(bytes > 0);
                sent += bytes;
                assert!(sent == contents.len() || sent.is_multiple_of(segment_size));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll_fn(|cx| socket.poll_send_ready(cx)).await.unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Receives `count` datagrams. Returns them and the number of GRO batches.
async fn receive(socket: &mut UdpSocket, count: usize) -> (Vec<(SocketAddr, Vec<u8>)>, usize) {
    let mut batch = RxBatch::new();
    let (mut datagrams, mut batches) = (Vec::new(), 0);
    while datagrams.len() < count {
        batch.clear();
        match socket.recv(&mut batch) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll_fn(|cx| socket.poll_recv_ready(cx)).await.unwrap();
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        for (path, segment_size, contents) in batch.gro_batches() {
            batches += 1;
            datagrams.extend(
                contents.chunks_mut(segment_size).map(|datagram| (path.peer, datagram.to_vec())),
            );
        }
    }
    (datagrams, batches)
}

/// Sends GSO batches of many shapes from `a` to `b` and compares the datagrams received.
async fn exchange(mut a: UdpSocket, mut b: UdpSocket, from: SocketAddr, to: SocketAddr) {
    for count in 1..=44 {
        for (size, tail) in [(1_400, 1_400), (1_400, 1), (100, 77)] {
            let sent = gso_batch(count, size, tail);
            send_all(&mut a, to, size, &sent).await;
            let (datagrams, _) = receive(&mut b, count).await;
            assert_eq!(datagrams.len(), count);
            assert!(datagrams.iter().all(|(source, _)| *source == from));
            let expected: Vec<_> = sent.chunks(size).map(<[u8]>::to_vec).collect();
            let received: Vec<_> = datagrams.into_iter().map(|(_, datagram)| datagram).collect();
            assert_eq!(received, expected, "{count} of {size}, {tail}");
        }
    }
    let mut batch = RxBatch::new();
    assert_eq!(b.recv(&mut batch).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn gso_batches_arrive_over_ipv4() {
    let (a, b) = (bound(V4).await, bound(V4).await);
    let (from, to) = (addr_of(&a), addr_of(&b));
    exchange(a, b, from, to).await;
}

#[tokio::test]
async fn datagrams_arrive_without_gso() {
    let (a, b) = (bound(V4).await.without_gso(), bound(V4).await);
    assert_eq!(a.max_gso_segments(), 1);
    let (from, to) = (addr_of(&a), addr_of(&b));
    exchange(a, b, from, to).await;
}

#[tokio::test]
async fn gso_batches_arrive_over_ipv6() {
    if !has_ipv6() {
        return;
    }
    let (a, b) = (bound(V6).await, bound(V6).await);
    let (from, to) = (addr_of(&a), addr_of(&b));
    exchange(a, b, from, to).await;
}

#[tokio::test]
async fn dual_stack_socket_reports_ipv4_peers_as_ipv4() {
    if !has_ipv6() {
        return;
    }
    let (v4, dual) = (bound(V4).await, bound(ANY_V6).await);
    let to = SocketAddr::from(([127, 0, 0, 1], addr_of(&dual).port()));
    let from = addr_of(&v4);
    exchange(v4, dual, from, to).await;

    let (v4, dual) = (bound(V4).await, bound(ANY_V6).await);
    let from = SocketAddr::from(([127, 0, 0, 1], addr_of(&dual).port()));
    let to = addr_of(&v4);
    exchange(dual, v4, from, to).await;
}

#[tokio::test]
async fn ipv4_socket_sends_to_ipv4_mapped_address() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let to = addr_of(&b);
    let mapped = SocketAddr::new(Ipv6Addr::from(0xffff_7f00_0001_u128).into(), to.port());
    send_all(&mut a, mapped, 5, b"hello").await;
    assert_eq!(receive(&mut b, 1).await.0, [(addr_of(&a), b"hello".to_vec())]);
}

#[tokio::test]
async fn only_v6_socket_counts_ipv4_send_as_lost() {
    if !has_ipv6() {
        return;
    }
    let config = SocketConfig { only_v6: true, ..SocketConfig::default() };
    let mut only = writable(UdpSocket::bind(ANY_V6.parse().unwrap(), &config).unwrap()).await;
    let v4 = bound(V4).await;
    let transmit =
        Transmit { dst: addr_of(&v4), segment_size: 1, contents: b"?", local: LocalIp::ANY };
    let error = only.send(&transmit).unwrap_err();
    assert_eq!(classify_send(&error), SendFault::Lost, "{error}");
}

/// The loopback of Linux delivers a GSO batch as one GRO batch.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn gso_batch_arrives_as_one_gro_batch() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    if !has_gso().await {
        return;
    }
    assert_eq!(a.max_gso_segments(), 64);
    let to = addr_of(&b);
    send_all(&mut a, to, 1_200, &gso_batch(44, 1_200, 9)).await;
    let (datagrams, batches) = receive(&mut b, 44).await;
    assert_eq!((datagrams.len(), batches), (44, 1));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn gso_batch_arrives_as_single_datagrams_without_gro() {
    let (mut a, mut b) = (bound(V4).await, without_gro());
    let (from, to) = (addr_of(&a), addr_of(&b));
    send_all(&mut a, to, 1_200, &gso_batch(44, 1_200, 9)).await;
    let (datagrams, batches) = receive(&mut b, 44).await;
    assert_eq!((datagrams.len(), batches), (44, 44));
    exchange(a, b, from, to).await;
}

#[tokio::test]
async fn contents_beyond_one_gso_batch_leave_in_several() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let to = addr_of(&b);
    for (size, count) in [(1_000, 70), (100, 65)] {
        let contents = gso_batch(count, size, size / 3);
        assert!(count > 64 || contents.len() > MAX_GSO_BYTES);
        send_all(&mut a, to, size, &contents).await;
        let (datagrams, _) = receive(&mut b, count).await;
        let received: Vec<u8> = datagrams.into_iter().flat_map(|(_, datagram)| datagram).collect();
        assert_eq!(received, contents);
    }
}

#[tokio::test]
async fn datagram_above_maximum_is_too_large() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let to = addr_of(&b);
    let mut contents = gso_batch(1, 0, MAX_GSO_BYTES);
    send_all(&mut a, to, contents.len(), &contents).await;
    assert_eq!(receive(&mut b, 1).await.0, [(addr_of(&a), contents.clone())]);
    contents.push(0);
    let transmit = Transmit {
        dst: to,
        segment_size: contents.len(),
        contents: &contents,
        local: LocalIp::ANY,
    };
    assert_eq!(classify_send(&a.send(&transmit).unwrap_err()), SendFault::TooLarge);
}

#[tokio::test]
async fn empty_datagrams_are_neither_sent_nor_received() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let to = addr_of(&b);
    assert_eq!(
        a.send(&Transmit { dst: to, segment_size: 0, contents: &[], local: LocalIp::ANY }).unwrap(),
        0
    );
    let plain = std::net::UdpSocket::bind(V4).unwrap();
    plain.send_to(&[], to).unwrap();
    plain.send_to(b"1", to).unwrap();
    let from = plain.local_addr().unwrap();
    assert_eq!(receive(&mut b, 1).await, (vec![(from, b"1".to_vec())], 1));
}

#[tokio::test]
async fn icmp_unreachable_does_not_fail_the_socket() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let refusing = refusing();
    let closed = refusing.local_addr().unwrap();
    let (from, to) = (addr_of(&a), addr_of(&b));
    for round in 0..8_u8 {
        for dst in [closed, to] {
            let sent =
                a.send(&Transmit { dst, segment_size: 1, contents: &[round], local: LocalIp::ANY });
            assert_eq!(sent.unwrap(), 1);
        }
        assert_eq!(receive(&mut b, 1).await.0, [(from, vec![round])]);
        send_all(&mut b, from, 1, &[round]).await;
        assert_eq!(receive(&mut a, 1).await.0, [(to, vec![round])]);
    }
}

/// Only a connected socket reports ICMP errors.
#[cfg(unix)]
#[tokio::test]
async fn icmp_unreachable_on_a_connected_socket_is_transient() {
    use tokio::io::Interest;

    let refusing = refusing();
    let closed = refusing.local_addr().unwrap();
    let connected = std::net::UdpSocket::bind(V4).unwrap();
    connected.connect(closed).unwrap();
    let clone = connected.try_clone().unwrap();
    let mut socket = writable(UdpSocket::from_std(connected).unwrap()).await;
    let clone = tokio::net::UdpSocket::from_std(clone).unwrap();
    let transmit = Transmit { dst: closed, segment_size: 1, contents: b"?", local: LocalIp::ANY };

    assert_eq!(socket.send(&transmit).unwrap(), 1);
    assert!(clone.ready(Interest::ERROR).await.unwrap().is_error());
    let error = socket.send(&transmit).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(classify_send(&error), SendFault::Lost);

    // The system reports an error once.
    assert_eq!(socket.send(&transmit).unwrap(), 1);
}

#[tokio::test]
async fn send_to_port_zero_is_lost_and_keeps_gso() {
    let mut socket = bound(V4).await;
    let (contents, before) = ([0; 20], socket.max_gso_segments());
    let dst = SocketAddr::from(([127, 0, 0, 1], 0));
    let error = socket
        .send(&Transmit { dst, segment_size: 10, contents: &contents, local: LocalIp::ANY })
        .unwrap_err();
    assert_eq!(classify_send(&error), SendFault::Lost);
    assert_eq!(socket.max_gso_segments(), before);
}

#[tokio::test]
async fn recv_until_would_block_clears_readiness() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let to = addr_of(&b);
    let plain = std::net::UdpSocket::bind(V4).unwrap();
    for n in 0..2 * BUFFERS + 1 {
        // Alternating sources prevent coalescing.
        let source =
            if n.is_multiple_of(2) { &plain } else { &std::net::UdpSocket::bind(V4).unwrap() };
        source.send_to(&[0], to).unwrap();
    }
    send_all(&mut a, to, 1, b"x").await;
    poll_fn(|cx| b.poll_recv_ready(cx)).await.unwrap();
    let mut batch = RxBatch::new();
    let mut sizes = Vec::new();
    loop {
        batch.clear();
        match b.recv(&mut batch) {
            Ok(()) => sizes.push((batch.gro_batches().count(), batch.is_full())),
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert_eq!(sizes, [(BUFFERS, true), (BUFFERS, true), (2, false)]);
    let ready = poll_fn(|cx| Poll::Ready(b.poll_recv_ready(cx).is_ready())).await;
    assert!(!ready);
}

/// The runtime does not know of received datagrams, as after the process was stopped.
#[tokio::test]
async fn recv_that_bypasses_readiness_asks_the_system_until_the_socket_is_empty() {
    let mut socket = bound(V4).await;
    let to = addr_of(&socket);
    let mut batch = RxBatch::new();
    assert_eq!(socket.recv(&mut batch).unwrap_err().kind(), ErrorKind::WouldBlock);
    let count = BUFFERS + 1;
    for _ in 0..count {
        // Different sources prevent coalescing.
        std::net::UdpSocket::bind(V4).unwrap().send_to(&[1], to).unwrap();
    }
    assert_eq!(socket.recv(&mut batch).unwrap_err().kind(), ErrorKind::WouldBlock);
    socket.bypass_readiness();
    let mut received = 0;
    for _ in 0..2 {
        batch.clear();
        socket.recv(&mut batch).unwrap();
        received += batch.gro_batches().count();
    }
    assert_eq!(received, count);
    std::net::UdpSocket::bind(V4).unwrap().send_to(&[1], to).unwrap();
    batch.clear();
    assert_eq!(socket.recv(&mut batch).unwrap_err().kind(), ErrorKind::WouldBlock);
    poll_fn(|cx| socket.poll_recv_ready(cx)).await.unwrap();
    socket.recv(&mut batch).unwrap();
}

#[tokio::test]
async fn recv_into_a_full_batch_receives_nothing() {
    let mut socket = bound(V4).await;
    let mut batch = RxBatch::new();
    for n in 0..4 {
        assert!(batch.push(Path::to(SocketAddr::from(([10, 0, 0, n], 1))), &[n]));
    }
    assert!(socket.recv(&mut batch).is_ok());
    assert_eq!(batch.gro_batches().count(), 4);
}

#[test]
fn bind_to_an_address_in_use_fails() {
    let first = std::net::UdpSocket::bind(V4).unwrap();
    let error = options::bind(first.local_addr().unwrap(), &SocketConfig::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

#[cfg(target_os = "linux")]
mod gso_failures {
    use std::net::UdpSocket as StdSocket;

    use super::super::options::set;
    use super::*;
    use crate::util::sync::Ordering;

    /// The kernel rejects GSO on a socket without checksums: a failure at run time, as with some network
    /// devices.
    #[tokio::test]
    async fn gso_failure_sends_single_datagrams() {
        let socket = StdSocket::bind(V4).unwrap();
        set(&socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let (mut a, mut b) =
            (writable(UdpSocket::from_std(socket).unwrap()).await, bound(V4).await);
        if !has_gso().await {
            return;
        }
        let (from, to) = (addr_of(&a), addr_of(&b));
        let contents = gso_batch(9, 1_200, 30);
        let transmit =
            Transmit { dst: to, segment_size: 1_200, contents: &contents, local: LocalIp::ANY };
        assert_eq!(a.send(&transmit).unwrap(), contents.len());
        // GSO failed for this destination only.
        assert_eq!(a.max_gso_segments(), 64);
        let received = receive(&mut b, 9).await.0;
        let expected: Vec<_> = contents.chunks(1_200).map(|d| (from, d.to_vec())).collect();
        assert_eq!(received, expected);
        exchange(a, b, from, to).await;
    }

    /// A peer behind a small path MTU, or a device that does not segment, leaves other peers' batches
    /// alone.
    #[tokio::test]
    async fn refusal_of_one_destination_leaves_the_batches_of_another() {
        for code in [libc::EIO, libc::EINVAL, libc::EMSGSIZE] {
            let (mut a, mut b, mut c) = (bound(V4).await, bound(V4).await, bound(V4).await);
            let (to_b, to_c) = (addr_of(&b), addr_of(&c));
            let tried = a.refuse_gso_batches(0, code, Some(to_b));
            let contents = gso_batch(44, 1_400, 1_400);
            let mut arrived = 0;
            for _ in 0..20 {
                for (to, peer) in [(to_b, &mut b), (to_c, &mut c)] {
                    send_all(&mut a, to, 1_400, &contents).await;
                    let (datagrams, batches) = receive(peer, 44).await;
                    assert!(datagrams.iter().all(|(_, datagram)| datagram.len() == 1_400));
                    arrived += usize::from(to == to_c) * batches;
                }
            }
            println!("{code}: 20 batches to the other peer arrive as {arrived}");
            assert_eq!(arrived, 20);
            // `EMSGSIZE` may concern an earlier datagram, so it is tried once more.
            let once = if code == libc::EMSGSIZE { 2 } else { 1 };
            assert_eq!(tried.load(Ordering::Relaxed), once, "batches to the peer that takes none");
            assert_eq!(a.take_above_route_mtu(), code != libc::EIO);
        }
    }

    /// A batch whose single datagrams also fail does not count against GSO.
    #[tokio::test]
    async fn gso_stays_on_when_single_datagrams_fail_too() {
        let mut socket = bound(V4).await;
        let before = socket.max_gso_segments();
        // The system sends nothing off the machine from a loopback address.
        let dst = SocketAddr::from(([192, 0, 2, 1], 9));
        let transmit =
            Transmit { dst, segment_size: 100, contents: &[0; 300], local: LocalIp::ANY };
        let error = socket.send(&transmit).unwrap_err();
        assert_eq!(classify_send(&error), SendFault::Lost, "{error}");
        assert_eq!(socket.max_gso_segments(), before);
    }
}
