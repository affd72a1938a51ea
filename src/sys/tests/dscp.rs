//! Traffic class (DSCP) of the datagrams sent, and the other options of a socket.

use std::mem::MaybeUninit;
use std::time::Duration;

use socket2::{MaybeUninitSlice, MsgHdrMut, SockRef};

use super::*;

/// Expedited forwarding (RFC 3246), and the header byte of this DSCP.
const DSCP: u8 = 46;
const CLASS: u8 = 46 << 2;

async fn with(addr: &str, change: impl FnOnce(&mut SocketConfig)) -> io::Result<UdpSocket> {
    let mut config = SocketConfig { recv_buffer_size: Some(1 << 20), ..SocketConfig::default() };
    change(&mut config);
    Ok(writable(UdpSocket::bind(addr.parse().unwrap(), &config)?).await)
}

async fn with_dscp(addr: &str) -> UdpSocket {
    with(addr, |config| config.dscp = Some(DSCP)).await.unwrap()
}

/// A socket that receives the class of each datagram.
fn observer(addr: &str) -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind(addr).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let options = SockRef::from(&socket);
    if socket.local_addr().unwrap().is_ipv6() {
        options.set_recv_tclass_v6(true).unwrap();
    } else {
        options.set_recv_tos_v4(true).unwrap();
    }
    socket
}

/// Receives a datagram. Returns its length and class.
#[expect(unsafe_code, reason = "the control messages come in memory that may be uninitialized")]
fn observe(socket: &std::net::UdpSocket) -> (usize, Option<u8>) {
    const WORD: usize = size_of::<usize>();
    let (mut data, mut control) = ([MaybeUninit::new(0); 2_048], [MaybeUninit::new(0); 64]);
    let mut buffers = [MaybeUninitSlice::new(&mut data)];
    let mut message = MsgHdrMut::new().with_buffers(&mut buffers).with_control(&mut control);
    let len = SockRef::from(socket).recvmsg(&mut message, 0).unwrap();
    let used = message.control_len();
    // SAFETY: every byte was initialized when the array was made.
    let control = control.map(|byte: MaybeUninit<u8>| unsafe { byte.assume_init() });
    let mut rest = &control[..used];
    while rest.len() >= WORD + 8 {
        let word = usize::from_ne_bytes(rest[..WORD].try_into().unwrap());
        let int = |at: usize| i32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
        let kind = (int(WORD), int(WORD + 4));
        if [(libc::IPPROTO_IP, libc::IP_TOS), (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)]
            .contains(&kind)
        {
            // One byte, or an integer below 256.
            let class = rest[WORD + 8..word].iter().copied().max();
            return (len, class);
        }
        rest = &rest[word.next_multiple_of(WORD).min(rest.len())..];
    }
    (len, None)
}

/// Sends a GSO batch and a single datagram. Returns length and class of each received datagram.
async fn classes(mut from: UdpSocket, to: &std::net::UdpSocket) -> Vec<(usize, Option<u8>)> {
    let dst = to.local_addr().unwrap();
    send_all(&mut from, dst, 1_000, &gso_batch(5, 1_000, 300)).await;
    send_all(&mut from, dst, 10, &[1; 10]).await;
    (0..6).map(|_| observe(to)).collect()
}

fn all(class: u8) -> Vec<(usize, Option<u8>)> {
    [1_000, 1_000, 1_000, 1_000, 300, 10].map(|len| (len, Some(class))).to_vec()
}

#[tokio::test]
async fn dscp_is_in_every_datagram_of_both_ip_versions() {
    let v4 = observer(V4);
    assert_eq!(classes(with_dscp(V4).await, &v4).await, all(CLASS));
    assert_eq!(classes(bound(V4).await, &v4).await, all(0));
    if !has_ipv6() {
        return;
    }
    let v6 = observer(V6);
    assert_eq!(classes(with_dscp(V6).await, &v6).await, all(CLASS));
    assert_eq!(classes(with_dscp(ANY_V6).await, &v6).await, all(CLASS));
    assert_eq!(classes(with_dscp(ANY_V6).await, &v4).await, all(CLASS), "IPv4 on both");
    assert_eq!(classes(bound(ANY_V6).await, &v4).await, all(0));
}

#[tokio::test]
async fn dscp_of_an_adopted_socket_stays() {
    let socket = std::net::UdpSocket::bind(V4).unwrap();
    SockRef::from(&socket).set_tos_v4(u32::from(CLASS)).unwrap();
    let socket = writable(UdpSocket::from_std(socket).unwrap()).await;
    assert_eq!(classes(socket, &observer(V4)).await, all(CLASS));
}

#[tokio::test]
async fn gso_batches_with_dscp_arrive() {
    let (a, b) = (with_dscp(V4).await, bound(V4).await);
    assert_eq!(a.max_gso_segments(), bound(V4).await.max_gso_segments());
    let (from, to) = (addr_of(&a), addr_of(&b));
    exchange(a, b, from, to).await;
    if has_ipv6() {
        let (dual, v4) = (with_dscp(ANY_V6).await, bound(V4).await);
        let from = SocketAddr::from(([127, 0, 0, 1], addr_of(&dual).port()));
        let to = addr_of(&v4);
        exchange(dual, v4, from, to).await;
    }
}

#[tokio::test]
async fn ttl_is_set_for_both_ip_versions() {
    let config = SocketConfig { ttl: Some(7), ..SocketConfig::default() };
    let v4 = options::bind(V4.parse().unwrap(), &config).unwrap();
    assert_eq!(SockRef::from(&v4).ttl_v4().unwrap(), 7);
    if has_ipv6() {
        let dual = options::bind(ANY_V6.parse().unwrap(), &config).unwrap();
        assert_eq!(SockRef::from(&dual).unicast_hops_v6().unwrap(), 7);
        assert_eq!(SockRef::from(&dual).ttl_v4().unwrap(), 7);
    }
}

#[tokio::test]
async fn device_binds_the_socket_or_fails_by_name() {
    let missing = with(V4, |config| config.device = Some("no-such-dev".into())).await;
    let error = missing.unwrap_err();
    assert!(error.to_string().starts_with("device \"no-such-dev\" cannot be set"), "{error}");
    let socket = with(V4, |config| config.device = Some("lo".into())).await;
    let mut socket = match socket {
        Ok(socket) => socket,
        Err(error) => return skip(format!("binding to a device: {error}")),
    };
    let mut peer = bound(V4).await;
    let to = addr_of(&peer);
    send_all(&mut socket, to, 5, b"hello").await;
    assert_eq!(receive(&mut peer, 1).await.0, [(addr_of(&socket), b"hello".to_vec())]);
}

#[tokio::test]
async fn peer_of_the_wrong_ip_version_is_refused() {
    let (v4, v6): (SocketAddr, SocketAddr) =
        ("192.0.2.1:9".parse().unwrap(), "[2001:db8::1]:9".parse().unwrap());
    let socket = bound(V4).await;
    assert!(socket.check_peer(v4).is_ok());
    let error = socket.check_peer(v6).unwrap_err();
    let local = addr_of(&socket);
    let text = format!("the peer [2001:db8::1]:9 is IPv6, the socket {local} supports IPv4 only");
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidInput, text));
    if !has_ipv6() {
        return;
    }
    let dual = bound(ANY_V6).await;
    assert!(dual.check_peer(v4).is_ok() && dual.check_peer(v6).is_ok());
    let only = with(ANY_V6, |config| config.only_v6 = true).await.unwrap();
    for socket in [only, bound(V6).await] {
        assert!(socket.check_peer(v6).is_ok());
        assert!(socket.check_peer(v4).unwrap_err().to_string().contains("supports IPv6 only"));
    }
}

#[test]
fn route_check_sends_nothing() {
    let socket = observer(V4);
    let config = SocketConfig::default();
    check_route(socket.local_addr().unwrap(), &config).unwrap();
    // Broadcast needs `SO_BROADCAST`.
    let broadcast = "255.255.255.255:9".parse().unwrap();
    assert!(check_route(broadcast, &config).is_err());
    socket.set_nonblocking(true).unwrap();
    let error = socket.recv_from(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}
