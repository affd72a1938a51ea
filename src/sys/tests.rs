//! The real socket on the loopback interface.

#[cfg(target_os = "linux")]
mod fragments;
#[cfg(target_os = "linux")]
mod marked;

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use super::*;
use crate::config::SocketConfig;

const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";
const ANY_V6: &str = "[::]:0";

async fn bound(addr: &str) -> UdpSocket {
    // Nothing may be lost for want of room, also where a datagram is charged as two kilobytes.
    let config = SocketConfig { recv_buffer_size: Some(1 << 20), ..SocketConfig::default() };
    writable(UdpSocket::bind(addr.parse().unwrap(), &config).unwrap()).await
}

/// The runtime takes a socket for blocked until it has heard of it for the first time.
async fn writable(socket: UdpSocket) -> UdpSocket {
    poll_fn(|cx| socket.poll_send_ready(cx)).await.unwrap();
    socket
}

/// A socket to which the system hands each datagram by itself.
#[cfg(target_os = "linux")]
pub(crate) fn without_coalescing() -> UdpSocket {
    let config = SocketConfig { recv_buffer_size: Some(1 << 20), ..SocketConfig::default() };
    let socket = bind::bind(V4.parse().unwrap(), &config).unwrap();
    let twin = socket.try_clone().unwrap();
    let socket = UdpSocket::from_std(socket).unwrap();
    bind::option::set(&twin, libc::SOL_UDP, libc::UDP_GRO, 0).unwrap();
    socket
}

/// A socket whose address refuses whatever comes from others, and is taken by nobody else.
fn refusing() -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind(V4).unwrap();
    socket.connect("127.0.0.1:9").unwrap();
    socket
}

fn addr_of(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().unwrap()
}

/// Machines without IPv6 exist; what concerns it is not tested there.
fn has_v6() -> bool {
    std::net::UdpSocket::bind(V6).is_ok()
}

/// `count` datagrams of `size` bytes, the last of `tail`; each byte tells its place.
fn train(count: usize, size: usize, tail: usize) -> Vec<u8> {
    (0..(count - 1) * size + tail).map(|at| u8::try_from((at / 7 + at) % 251).unwrap()).collect()
}

/// Sends all of it, waiting where the socket would block.
async fn send_all(socket: &mut UdpSocket, dst: SocketAddr, segment_size: usize, contents: &[u8]) {
    let mut sent = 0;
    while sent < contents.len() {
        match socket.send(&Transmit { dst, segment_size, contents: &contents[sent..] }) {
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

/// The next datagrams until there are `count`, and the trains they came in.
async fn receive(socket: &mut UdpSocket, count: usize) -> (Vec<(SocketAddr, Vec<u8>)>, usize) {
    let mut batch = RxBatch::new();
    let (mut datagrams, mut trains) = (Vec::new(), 0);
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
        for (from, stride, contents) in batch.trains() {
            trains += 1;
            datagrams.extend(contents.chunks_mut(stride).map(|datagram| (from, datagram.to_vec())));
        }
    }
    (datagrams, trains)
}

/// Sends trains of many shapes from `a` to `b` and compares what arrives.
async fn exchange(mut a: UdpSocket, mut b: UdpSocket, from: SocketAddr, to: SocketAddr) {
    for count in 1..=44 {
        for (size, tail) in [(1_400, 1_400), (1_400, 1), (100, 77)] {
            let sent = train(count, size, tail);
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
async fn trains_over_v4() {
    let (a, b) = (bound(V4).await, bound(V4).await);
    let (from, to) = (addr_of(&a), addr_of(&b));
    exchange(a, b, from, to).await;
}

#[tokio::test]
async fn trains_over_v4_without_segmentation() {
    let (a, b) = (bound(V4).await.without_trains(), bound(V4).await);
    assert_eq!(a.max_gso_segments(), 1);
    let (from, to) = (addr_of(&a), addr_of(&b));
    exchange(a, b, from, to).await;
}

#[tokio::test]
async fn trains_over_v6() {
    if !has_v6() {
        return;
    }
    let (a, b) = (bound(V6).await, bound(V6).await);
    let (from, to) = (addr_of(&a), addr_of(&b));
    exchange(a, b, from, to).await;
}

#[tokio::test]
async fn dual_stack_speaks_plain_v4_addresses() {
    if !has_v6() {
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
async fn v4_sockets_take_mapped_destinations() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let to = addr_of(&b);
    let mapped = SocketAddr::new(Ipv6Addr::from(0xffff_7f00_0001_u128).into(), to.port());
    send_all(&mut a, mapped, 5, b"hello").await;
    assert_eq!(receive(&mut b, 1).await.0, [(addr_of(&a), b"hello".to_vec())]);
}

#[tokio::test]
async fn only_v6_refuses_v4() {
    if !has_v6() {
        return;
    }
    let config = SocketConfig { only_v6: true, ..SocketConfig::default() };
    let mut only = writable(UdpSocket::bind(ANY_V6.parse().unwrap(), &config).unwrap()).await;
    let v4 = bound(V4).await;
    let transmit = Transmit { dst: addr_of(&v4), segment_size: 1, contents: b"?" };
    let error = only.send(&transmit).unwrap_err();
    assert_eq!(classify_send(&error), SendFault::Lost, "{error}");
}

/// Loopback hands a train over in one piece on Linux.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_train_arrives_as_one() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    if a.max_gso_segments() == 1 {
        return;
    }
    assert_eq!(a.max_gso_segments(), 64);
    let to = addr_of(&b);
    send_all(&mut a, to, 1_200, &train(44, 1_200, 9)).await;
    let (datagrams, trains) = receive(&mut b, 44).await;
    assert_eq!((datagrams.len(), trains), (44, 1));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_train_arrives_in_pieces_without_coalescing() {
    let (mut a, mut b) = (bound(V4).await, without_coalescing());
    let (from, to) = (addr_of(&a), addr_of(&b));
    send_all(&mut a, to, 1_200, &train(44, 1_200, 9)).await;
    let (datagrams, trains) = receive(&mut b, 44).await;
    assert_eq!((datagrams.len(), trains), (44, 44));
    exchange(a, b, from, to).await;
}

#[tokio::test]
async fn contents_beyond_one_train_leave_in_several() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let to = addr_of(&b);
    for (size, count) in [(1_000, 70), (100, 65)] {
        let contents = train(count, size, size / 3);
        assert!(count > 64 || contents.len() > MAX_TRAIN_BYTES);
        send_all(&mut a, to, size, &contents).await;
        let (datagrams, _) = receive(&mut b, count).await;
        let received: Vec<u8> = datagrams.into_iter().flat_map(|(_, datagram)| datagram).collect();
        assert_eq!(received, contents);
    }
}

#[tokio::test]
async fn largest_datagram_passes_whole_and_a_larger_one_is_refused_for_its_size() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let to = addr_of(&b);
    let mut contents = train(1, 0, MAX_TRAIN_BYTES);
    send_all(&mut a, to, contents.len(), &contents).await;
    assert_eq!(receive(&mut b, 1).await.0, [(addr_of(&a), contents.clone())]);
    contents.push(0);
    let transmit = Transmit { dst: to, segment_size: contents.len(), contents: &contents };
    assert_eq!(classify_send(&a.send(&transmit).unwrap_err()), SendFault::TooLarge);
}

#[tokio::test]
async fn empty_contents_send_nothing_and_empty_datagrams_are_left_out() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let to = addr_of(&b);
    assert_eq!(a.send(&Transmit { dst: to, segment_size: 0, contents: &[] }).unwrap(), 0);
    let plain = std::net::UdpSocket::bind(V4).unwrap();
    plain.send_to(&[], to).unwrap();
    plain.send_to(b"1", to).unwrap();
    let from = plain.local_addr().unwrap();
    assert_eq!(receive(&mut b, 1).await, (vec![(from, b"1".to_vec())], 1));
}

#[tokio::test]
async fn refusals_by_icmp_are_ridden_out() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let refusing = refusing();
    let closed = refusing.local_addr().unwrap();
    let (from, to) = (addr_of(&a), addr_of(&b));
    for round in 0..8_u8 {
        for dst in [closed, to] {
            let sent = a.send(&Transmit { dst, segment_size: 1, contents: &[round] });
            assert_eq!(sent.unwrap(), 1);
        }
        assert_eq!(receive(&mut b, 1).await.0, [(from, vec![round])]);
        send_all(&mut b, from, 1, &[round]).await;
        assert_eq!(receive(&mut a, 1).await.0, [(to, vec![round])]);
    }
}

/// A socket that was connected before it was handed over hears of the refusal.
#[cfg(unix)]
#[tokio::test]
async fn refusals_on_a_connected_socket_are_weather() {
    use tokio::io::Interest;

    let refusing = refusing();
    let closed = refusing.local_addr().unwrap();
    let connected = std::net::UdpSocket::bind(V4).unwrap();
    connected.connect(closed).unwrap();
    let twin = connected.try_clone().unwrap();
    let mut socket = writable(UdpSocket::from_std(connected).unwrap()).await;
    let twin = tokio::net::UdpSocket::from_std(twin).unwrap();
    let transmit = Transmit { dst: closed, segment_size: 1, contents: b"?" };

    assert_eq!(socket.send(&transmit).unwrap(), 1);
    assert!(twin.ready(Interest::ERROR).await.unwrap().is_error());
    let error = socket.send(&transmit).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(classify_send(&error), SendFault::Lost);

    // The error is gone with its report.
    assert_eq!(socket.send(&transmit).unwrap(), 1);
}

#[tokio::test]
async fn nobody_has_port_zero() {
    let mut socket = bound(V4).await;
    let (train, max_train) = ([0; 20], socket.max_gso_segments());
    let dst = SocketAddr::from(([127, 0, 0, 1], 0));
    let error = socket.send(&Transmit { dst, segment_size: 10, contents: &train }).unwrap_err();
    assert_eq!(classify_send(&error), SendFault::Lost);
    assert_eq!(socket.max_gso_segments(), max_train);
}

#[tokio::test]
async fn readiness_ends_where_receiving_would_block() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let to = addr_of(&b);
    let plain = std::net::UdpSocket::bind(V4).unwrap();
    for n in 0..2 * BUFFERS + 1 {
        // Another source each time, so that nothing is coalesced.
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
            Ok(()) => sizes.push((batch.trains().count(), batch.is_full())),
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert_eq!(sizes, [(BUFFERS, true), (BUFFERS, true), (2, false)]);
    let ready = poll_fn(|cx| Poll::Ready(b.poll_recv_ready(cx).is_ready())).await;
    assert!(!ready);
}

#[tokio::test]
async fn a_full_batch_receives_nothing() {
    let mut socket = bound(V4).await;
    let mut batch = RxBatch::new();
    for n in 0..4 {
        assert!(batch.push(SocketAddr::from(([10, 0, 0, n], 1)), &[n]));
    }
    assert!(socket.recv(&mut batch).is_ok());
    assert_eq!(batch.trains().count(), 4);
}

#[test]
fn sockets_need_a_runtime() {
    let error = UdpSocket::bind(V4.parse().unwrap(), &SocketConfig::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Other);
}

#[test]
fn addresses_in_use_are_reported() {
    let first = std::net::UdpSocket::bind(V4).unwrap();
    let error = bind::bind(first.local_addr().unwrap(), &SocketConfig::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

#[test]
fn canonical_addresses_compare_equal() {
    let v4 = SocketAddr::from(([192, 0, 2, 1], 7));
    let mapped = SocketAddr::new(Ipv6Addr::from(0xffff_c000_0201_u128).into(), 7);
    assert_eq!((canonical(v4), canonical(mapped)), (v4, v4));
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let labelled = SocketAddrV6::new(link_local, 7, 99, 3).into();
    assert_eq!(canonical(labelled), SocketAddrV6::new(link_local, 7, 0, 3).into());
    let loopback = SocketAddr::from((Ipv6Addr::LOCALHOST, 7));
    assert_eq!(canonical(loopback), loopback);
}

#[test]
fn pushed_datagrams_coalesce_as_received_ones_do() {
    let peer = |n| SocketAddr::from(([10, 0, 0, n], 1));
    let mut batch = RxBatch::new();
    for (from, len) in [(1, 10), (1, 10), (1, 3), (1, 10), (2, 4), (2, 5)] {
        assert!(batch.push(peer(from), &vec![from; len]));
    }
    assert!(batch.is_full());
    assert!(!batch.push(peer(3), &[0]));
    // A shorter datagram still fits behind one of its train.
    assert!(batch.push(peer(2), &[2; 5]));
    let trains: Vec<_> =
        batch.trains().map(|(from, stride, train)| (from, stride, train.len())).collect();
    assert_eq!(trains, [(peer(1), 10, 23), (peer(1), 10, 10), (peer(2), 4, 4), (peer(2), 5, 10)]);
    batch.clear();
    assert_eq!(batch.trains().count(), 0);
}

#[test]
fn what_arrived_before_an_error_is_kept() {
    let mut batch = RxBatch::new();
    let mut calls = 0;
    let result = batch.fill(|buffers, meta| {
        calls += 1;
        match calls {
            1 => Err(ErrorKind::Interrupted.into()),
            2 => {
                assert_eq!((buffers.len(), meta.len()), (BUFFERS, BUFFERS));
                buffers[0][..3].copy_from_slice(b"abc");
                (meta[0].len, meta[0].stride) = (3, 3);
                Ok(1)
            }
            _ => {
                assert_eq!((buffers.len(), meta.len()), (BUFFERS - 1, BUFFERS - 1));
                Err(io::Error::other("later"))
            }
        }
    });
    assert!(result.is_ok());
    assert_eq!(calls, 3);
    assert!(batch.trains().map(|(_, _, train)| train.to_vec()).eq([b"abc"]));
    assert!(batch.fill(|_, _| Err(io::Error::other("now"))).is_err());
}

#[cfg(target_os = "linux")]
mod options {
    use std::net::UdpSocket as StdSocket;

    use super::super::bind::option::set;
    use super::*;

    /// The kernel segments nothing for a socket that sends no checksums: a failure at run time as
    /// some network devices have it.
    #[tokio::test]
    async fn trains_leave_singly_where_segmentation_fails() {
        let socket = StdSocket::bind(V4).unwrap();
        set(&socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let (mut a, mut b) =
            (writable(UdpSocket::from_std(socket).unwrap()).await, bound(V4).await);
        if a.max_gso_segments() == 1 {
            return;
        }
        let (from, to) = (addr_of(&a), addr_of(&b));
        let contents = train(9, 1_200, 30);
        let transmit = Transmit { dst: to, segment_size: 1_200, contents: &contents };
        assert_eq!(a.send(&transmit).unwrap(), contents.len());
        assert_eq!(a.max_gso_segments(), 1);
        let received = receive(&mut b, 9).await.0;
        let expected: Vec<_> = contents.chunks(1_200).map(|d| (from, d.to_vec())).collect();
        assert_eq!(received, expected);
        exchange(a, b, from, to).await;
    }

    /// What fails for its destination says nothing about segmentation.
    #[tokio::test]
    async fn segmentation_survives_what_fails_without_it_too() {
        let mut socket = bound(V4).await;
        let max_train = socket.max_gso_segments();
        // Nothing leaves the machine from a loopback address.
        let dst = SocketAddr::from(([192, 0, 2, 1], 9));
        let transmit = Transmit { dst, segment_size: 100, contents: &[0; 300] };
        let error = socket.send(&transmit).unwrap_err();
        assert_eq!(classify_send(&error), SendFault::Lost, "{error}");
        assert_eq!(socket.max_gso_segments(), max_train);
    }
}
