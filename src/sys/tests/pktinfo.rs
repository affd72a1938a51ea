//! The local address of datagrams on wildcard sockets. Linux has all of 127.0.0.0/8.

use std::net::IpAddr;

use super::*;

const ANY_V4: &str = "0.0.0.0:0";
const ANY_MAPPED: &str = "[::ffff:0.0.0.0]:0";

fn host(last: u8) -> IpAddr {
    [127, 0, 0, last].into()
}

fn local_ip(last: u8) -> LocalIp {
    LocalIp::of_destination(host(last))
}

/// A documentation address, not of this host.
fn gone() -> LocalIp {
    LocalIp::of_destination([192, 0, 2, 1].into())
}

/// A wildcard socket, with or without its own DSCP.
async fn wildcard(addr: &str, dscp: Option<u8>) -> UdpSocket {
    let config = SocketConfig { recv_buffer_size: Some(1 << 20), dscp, ..SocketConfig::default() };
    writable(UdpSocket::bind(addr.parse().unwrap(), &config).unwrap()).await
}

async fn wildcards() -> Vec<UdpSocket> {
    let mut sockets = vec![wildcard(ANY_V4, None).await, wildcard(ANY_V4, Some(46)).await];
    if has_ipv6() {
        for addr in [ANY_V6, ANY_MAPPED] {
            sockets.extend([wildcard(addr, None).await, wildcard(addr, Some(46)).await]);
        }
    }
    sockets
}

/// Sends a GSO batch of three from `local`. Returns where they came from.
async fn sources(socket: &mut UdpSocket, to: &mut UdpSocket, local: LocalIp) -> Vec<IpAddr> {
    let (dst, contents) = (addr_of(to), gso_batch(3, 1_000, 300));
    let transmit = Transmit { dst, segment_size: 1_000, contents: &contents, local };
    assert_eq!(socket.send(&transmit).unwrap(), contents.len());
    let (datagrams, _) = receive(to, 3).await;
    datagrams.iter().map(|(from, _)| from.ip()).collect()
}

#[tokio::test]
async fn datagrams_leave_from_the_address_that_is_stated() {
    for mut socket in wildcards().await {
        let mut peer = bound(V4).await;
        for last in [9, 1, 7] {
            let from = sources(&mut socket, &mut peer, local_ip(last)).await;
            assert_eq!(from, [host(last); 3]);
        }
        assert_eq!(sources(&mut socket, &mut peer, LocalIp::ANY).await, [host(1); 3]);
    }
}

#[tokio::test]
async fn address_that_is_gone_is_left_to_the_system() {
    for mut socket in wildcards().await {
        let mut peer = bound(V4).await;
        let segments = socket.max_gso_segments();
        assert_eq!(sources(&mut socket, &mut peer, gone()).await, [host(1); 3]);
        assert!(socket.take_source_gone() && !socket.take_source_gone());
        assert_eq!(socket.max_gso_segments(), segments, "no sign that GSO does not work");
        // Nor does one of the other IP version.
        let other = LocalIp::of_destination(Ipv6Addr::LOCALHOST.into());
        assert_eq!(sources(&mut socket, &mut peer, other).await, [host(1); 3]);
        assert_eq!(sources(&mut socket, &mut peer, local_ip(7)).await, [host(7); 3]);
        assert!(!socket.take_source_gone());
    }
}

#[tokio::test]
async fn datagram_that_the_system_takes_from_nowhere_says_why() {
    for mut socket in wildcards().await {
        let mut peer = bound(V4).await;
        let (dst, segments) = (addr_of(&peer), socket.max_gso_segments());
        let transmit = Transmit { dst, segment_size: 100, contents: &[7; 100], local: gone() };
        let mut is_gone_after = |code| {
            socket.fail_once_without_source(code);
            assert_eq!(socket.send(&transmit).unwrap_err().raw_os_error(), Some(code));
            socket.take_source_gone()
        };
        // Without the source the datagram blocks like any other.
        assert!(!is_gone_after(libc::EAGAIN));
        assert!(is_gone_after(libc::ENOBUFS) && is_gone_after(libc::EHOSTUNREACH));
        // The error is the same without the source, which is then not the reason.
        let codes = [libc::EINVAL, libc::EADDRNOTAVAIL, libc::ENETUNREACH];
        assert_eq!(codes.map(is_gone_after).iter().filter(|is_gone| !**is_gone).count(), 1);
        // None of these counts against GSO.
        socket.fail_once_without_source(libc::EAGAIN);
        let contents = gso_batch(3, 1_000, 300);
        let transmit = Transmit { segment_size: 1_000, contents: &contents, ..transmit };
        assert_eq!(socket.send(&transmit).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(socket.send(&transmit).unwrap(), contents.len());
        assert_eq!(receive(&mut peer, 3).await.0.len(), 3);
        assert_eq!(socket.max_gso_segments(), segments);
    }
}

#[tokio::test]
async fn address_that_datagrams_came_to_is_reported_of_wildcard_sockets_alone() {
    let mut peer = bound(V4).await;
    let mut sockets = wildcards().await;
    sockets.push(bound(V4).await);
    for mut socket in sockets {
        let local = addr_of(&socket);
        let is_wildcard = local.ip().to_canonical().is_unspecified();
        for last in if is_wildcard { vec![5, 1] } else { vec![1] } {
            send_all(&mut peer, (host(last), local.port()).into(), 3, b"hey").await;
            let mut batch = RxBatch::new();
            poll_fn(|cx| socket.poll_recv_ready(cx)).await.unwrap();
            socket.recv(&mut batch).unwrap();
            let paths: Vec<_> = batch.gro_batches().map(|(path, ..)| path).collect();
            let local = if is_wildcard { local_ip(last) } else { LocalIp::ANY };
            assert_eq!(paths, [Path { peer: addr_of(&peer), local }]);
        }
    }
}
