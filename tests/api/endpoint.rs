//! `Endpoint`: sockets of the application, connect, accept, filters and rebinding.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{self, bytes, guarded, on_both_runtimes, one_thread, read, two_threads, until};
use kcpx::{Config, ConfigError, Endpoint, KcpListener, KcpStream};
use kcpx_skip::has_ipv6;
use tokio::io::AsyncWriteExt;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::timeout;

const LOCAL: &str = "127.0.0.1:0";

fn std_socket() -> std::net::UdpSocket {
    std::net::UdpSocket::bind(LOCAL).unwrap()
}

/// Opens a connection and exchanges a few bytes over it.
async fn converse(from: &Endpoint, listener: &KcpListener) -> (KcpStream, KcpStream) {
    let to = listener.local_addr().unwrap();
    let mut client = from.connect(to).await.unwrap();
    client.write_all(b"ping").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    assert_eq!(server.conv(), client.conv());
    assert_eq!(read(&mut server, 4).await, b"ping");
    server.write_all(b"pong").await.unwrap();
    assert_eq!(read(&mut client, 4).await, b"pong");
    (client, server)
}

#[test]
fn from_socket_takes_over_sockets_of_the_application() {
    on_both_runtimes(|| async {
        let (one, two, three) = (std_socket(), std_socket(), std_socket());
        let addrs = [&one, &two, &three].map(|socket| socket.local_addr().unwrap());
        let kept = one.try_clone().unwrap();
        let endpoint = Endpoint::from_std(one).unwrap();
        let listeners =
            [KcpListener::try_from(two).unwrap(), KcpListener::from_std(three).unwrap()];
        assert_eq!(endpoint.local_addr().unwrap(), addrs[0]);
        for (listener, addr) in listeners.iter().zip(&addrs[1..]) {
            assert_eq!(listener.local_addr().unwrap(), *addr);
            converse(&endpoint, listener).await;
        }
        // The end of the endpoint leaves the application's own handle open.
        drop((endpoint, listeners));
        until(|| std::net::UdpSocket::bind(addrs[1]).is_ok()).await;
        kept.send_to(b"mine", addrs[0]).unwrap();
        assert_eq!(kept.local_addr().unwrap(), addrs[0]);
    });
}

#[test]
fn invalid_config_takes_no_socket() {
    on_both_runtimes(|| async {
        let errors = [
            Endpoint::from_std_with(std_socket(), Config::new().mtu(1)).unwrap_err(),
            KcpListener::from_std_with(std_socket(), Config::new().windows(0, 1)).unwrap_err(),
            Endpoint::bind_with(LOCAL, Config::new().windows(1, 0)).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.get_ref().unwrap().is::<ConfigError>(), "{error}");
        }
    });
}

/// Panics like `tokio::net::UdpSocket::from_std`.
#[test]
#[should_panic(expected = "there is no reactor running")]
fn from_socket_needs_a_runtime() {
    drop(KcpListener::try_from(std_socket()));
}

#[test]
fn listen_rejects_a_second_listener() {
    on_both_runtimes(|| async {
        let (endpoint, peer) =
            (Endpoint::bind(LOCAL).await.unwrap(), Endpoint::bind(LOCAL).await.unwrap());
        let first = endpoint.listen().await.unwrap();
        let error = endpoint.listen().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let addr = endpoint.local_addr().unwrap().to_string();
        assert!(error.to_string().contains(&addr), "{error}");
        let connection = converse(&peer, &first).await;
        drop(first);
        let second = endpoint.listen().await.unwrap();
        converse(&peer, &second).await;
        drop(connection);
        let bound = KcpListener::bind(LOCAL).await.unwrap();
        assert_eq!(bound.endpoint().listen().await.unwrap_err().kind(), ErrorKind::AddrInUse);
    });
}

#[test]
fn endpoints_connect_to_each_other_over_two_sockets() {
    on_both_runtimes(|| async {
        let (one, two) =
            (Endpoint::bind(LOCAL).await.unwrap(), Endpoint::bind(LOCAL).await.unwrap());
        let (at_one, at_two) = (one.listen().await.unwrap(), two.listen().await.unwrap());
        for _ in 0..5 {
            tokio::join!(converse(&one, &at_two), converse(&two, &at_one));
        }
        assert_eq!(
            (one.stats().connections.active_opens, one.stats().connections.passive_opens),
            (5, 5)
        );
    });
}

#[test]
fn connect_with_a_chosen_conv() {
    on_both_runtimes(|| async {
        let listener = KcpListener::bind(LOCAL).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let config = Config::new().conv(Some(u32::MAX));
        let mut stream = KcpStream::connect_with(addr, config.clone()).await.unwrap();
        stream.write_all(b"!").await.unwrap();
        assert_eq!(listener.accept().await.unwrap().0.conv(), u32::MAX);

        let endpoint = Endpoint::bind_with(LOCAL, config).await.unwrap();
        let first = endpoint.connect(addr).await.unwrap();
        let chosen = endpoint.connect_with_conv(addr, 9).await.unwrap();
        assert_eq!((first.conv(), chosen.conv()), (u32::MAX, 9));
        for (conv, again) in [
            (u32::MAX, endpoint.connect(addr).await),
            (9, endpoint.connect_with_conv(addr, 9).await),
        ] {
            let error = again.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
            let text = format!("conversation id {conv} is in use with {addr}: choose another id");
            assert_eq!(error.to_string(), text);
        }
        let mut zero = endpoint.connect_with_conv(addr, 0).await.unwrap();
        zero.write_all(b"zero").await.unwrap();
        let (mut accepted, _) = loop {
            let (stream, peer) = listener.accept().await.unwrap();
            if stream.conv() == 0 {
                break (stream, peer);
            }
        };
        assert_eq!((zero.conv(), read(&mut accepted, 4).await), (0, b"zero".to_vec()));
    });
}

#[test]
fn endpoint_connects_to_a_name_from_its_own_address() {
    on_both_runtimes(|| async {
        let listener = KcpListener::bind(LOCAL).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // Linux accepts any address of 127.0.0.0/8 as a source.
        let source = if cfg!(target_os = "linux") { "127.0.0.7:0" } else { LOCAL };
        let endpoint = Endpoint::bind(source).await.unwrap();
        // The name may also resolve to an IPv6 address, which this socket cannot reach.
        let client = endpoint.connect(("localhost", port)).await.unwrap();
        let (_server, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, endpoint.local_addr().unwrap());
        assert_eq!(client.local_addr().unwrap(), peer);
        let error = endpoint.connect(&[][..]).await.unwrap_err();
        assert_eq!(error.to_string(), "the name resolves to no address");
    });
}

#[test]
fn connect_error_names_the_unreachable_peer() {
    on_both_runtimes(|| async {
        let early = Config::new().early_data(true);
        let endpoint = Endpoint::bind_with(LOCAL, early).await.unwrap();
        let local = endpoint.local_addr().unwrap();
        let error = endpoint.connect("[::1]:9").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(
            error.to_string(),
            format!("the peer [::1]:9 is IPv6, the socket {local} supports IPv4 only")
        );
        let error = endpoint.connect("127.0.0.1:0").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("port 0"), "{error}");
        assert!(endpoint.connect("127.0.0.1:9").await.is_ok());
        // An IPv4-mapped address names an IPv4 peer.
        let mapped = endpoint.connect("[::ffff:127.0.0.1]:9").await.unwrap();
        assert_eq!(mapped.peer_addr().unwrap(), "127.0.0.1:9".parse().unwrap());
        if !has_ipv6() {
            return;
        }
        let v6 = Endpoint::bind("[::1]:0").await.unwrap();
        let error = v6.connect(local).await.unwrap_err();
        assert!(error.to_string().contains("supports IPv6 only"), "{error}");
    });
}

#[test]
fn connect_skips_addresses_without_a_route() {
    on_both_runtimes(|| async {
        let listener = KcpListener::bind(LOCAL).await.unwrap();
        let good = listener.local_addr().unwrap();
        // A broadcast address, which needs SO_BROADCAST.
        let bad: SocketAddr = "255.255.255.255:9".parse().unwrap();
        let mut stream = KcpStream::connect(&[bad, good][..]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good);
        stream.write_all(b"!").await.unwrap();
        drop(listener.accept().await.unwrap());
        // Fails at once, not after the connect timeout of ten seconds.
        let both = [bad, bad];
        let failed = timeout(Duration::from_secs(5), KcpStream::connect(&both[..])).await.unwrap();
        let system = std::net::UdpSocket::bind(LOCAL).unwrap().connect(bad).unwrap_err();
        assert_eq!(failed.unwrap_err().raw_os_error(), system.raw_os_error());
        // Early data does not hide the error.
        let early = KcpStream::connect_with(bad, Config::new().early_data(true)).await;
        assert_eq!(early.unwrap_err().raw_os_error(), system.raw_os_error());
    });
}

#[test]
fn socket_option_errors_name_the_option() {
    on_both_runtimes(|| async {
        let config = Config::new().device(Some("no-such-dev".into()));
        let error = Endpoint::bind_with(LOCAL, config).await.unwrap_err();
        assert!(error.to_string().contains("no-such-dev"), "{error}");
        let config = Config::new().dscp(Some(46)).ttl(Some(33));
        let listener = KcpListener::bind_with(LOCAL, config.clone()).await.unwrap();
        let endpoint = Endpoint::bind_with(LOCAL, config).await.unwrap();
        converse(&endpoint, &listener).await;
        assert_eq!(Config::new(), Config::new().dscp(None));
    });
}

/// Forwards between the latest sender and `server`, like a NAT that keeps its own address while the client's
/// changes. Returns the address for clients.
async fn relay(server: SocketAddr) -> SocketAddr {
    let (outside, inside) =
        (UdpSocket::bind(LOCAL).await.unwrap(), UdpSocket::bind(LOCAL).await.unwrap());
    let addr = outside.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut out, mut back) = (vec![0; 65_536], vec![0; 65_536]);
        let mut client = None;
        loop {
            tokio::select! {
                Ok((len, from)) = outside.recv_from(&mut out) => {
                    client = Some(from);
                    inside.send_to(&out[..len], server).await.unwrap();
                }
                Ok((len, _)) = inside.recv_from(&mut back) => {
                    if let Some(client) = client {
                        // Sending fails while the client's socket is closed.
                        let _ = outside.send_to(&back[..len], client).await;
                    }
                }
            }
        }
    });
    addr
}

#[test]
fn rebind_keeps_the_connections() {
    on_both_runtimes(|| async {
        let listener = KcpListener::bind(LOCAL).await.unwrap();
        let via = relay(listener.local_addr().unwrap()).await;
        let endpoint = Endpoint::bind(LOCAL).await.unwrap();
        let mut client = endpoint.connect(via).await.unwrap();
        client.write_all(b"!").await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        assert_eq!(read(&mut server, 1).await, b"!");
        let mut seen = vec![endpoint.local_addr().unwrap()];
        for round in 0..4 {
            let data = bytes(round, 300_000);
            let writing = async {
                client.write_all(&data[..150_000]).await.unwrap();
                if round % 2 == 0 {
                    endpoint.rebind(LOCAL).await.unwrap();
                } else {
                    endpoint.rebind_std(std_socket()).await.unwrap();
                }
                client.write_all(&data[150_000..]).await.unwrap();
            };
            let ((), got) = tokio::join!(writing, read(&mut server, data.len()));
            common::assert_same(&got, &data);
            let local = endpoint.local_addr().unwrap();
            assert!(!seen.contains(&local), "another address each time");
            assert_eq!(client.local_addr().unwrap(), local);
            seen.push(local);
        }
        let (reader, writer) = client.into_split();
        let local = endpoint.local_addr().unwrap();
        assert_eq!((reader.local_addr().unwrap(), writer.local_addr().unwrap()), (local, local));
        // The socket of the first address is closed.
        until(|| std::net::UdpSocket::bind(seen[0]).is_ok()).await;
    });
}

/// The runtime that calls `rebind_std` may end: the new socket is registered with the endpoint's runtime.
#[test]
fn socket_given_by_a_task_of_another_runtime_outlives_that_runtime() {
    let driving = two_threads();
    let (endpoint, client, server, _listener) = driving.block_on(guarded(async {
        let listener = KcpListener::bind(LOCAL).await.unwrap();
        let endpoint = Endpoint::bind(LOCAL).await.unwrap();
        let (client, server) = converse(&endpoint, &listener).await;
        (endpoint, client, server, listener)
    }));
    let socket = std_socket();
    let addr = socket.local_addr().unwrap();
    one_thread().block_on(guarded(endpoint.rebind_std(socket))).unwrap();
    driving.block_on(guarded(async {
        assert_eq!(endpoint.local_addr().unwrap(), addr);
        let listener = endpoint.listen().await.unwrap();
        let other = Endpoint::bind(LOCAL).await.unwrap();
        drop(converse(&other, &listener).await);
        assert_eq!((client.error(), server.error()), (None, None));
        client.abort();
        server.abort();
    }));
}

#[test]
fn rebind_rejects_a_socket_that_cannot_reach_every_peer() {
    if !has_ipv6() {
        return;
    }
    on_both_runtimes(|| async {
        let v6 = std::net::UdpSocket::bind("[::1]:0").unwrap();
        let listener = KcpListener::bind(LOCAL).await.unwrap();
        let endpoint = Endpoint::bind(LOCAL).await.unwrap();
        let (mut client, mut server) = converse(&endpoint, &listener).await;
        let before = endpoint.local_addr().unwrap();
        let error = endpoint.rebind_std(v6).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let peer = listener.local_addr().unwrap().to_string();
        assert!(error.to_string().contains(&peer), "{error}");
        let taken = endpoint.rebind(listener.local_addr().unwrap()).await.unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        assert_eq!(endpoint.local_addr().unwrap(), before);
        client.write_all(b"still").await.unwrap();
        assert_eq!(read(&mut server, 5).await, b"still");
    });
}

#[test]
fn packet_filter_shares_the_port_with_another_protocol() {
    on_both_runtimes(|| async {
        let (requests, mut asked) = mpsc::unbounded_channel();
        let config = Config::new().packet_filter(move |from, datagram| {
            let ours = datagram.first() == Some(&0);
            if ours {
                requests.send((from, datagram.to_vec())).unwrap();
            }
            ours
        });
        let listener = KcpListener::bind_with(LOCAL, config).await.unwrap();
        let other = UdpSocket::bind(LOCAL).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let client = Endpoint::bind(LOCAL).await.unwrap();
        // A first byte of 0 marks the other protocol, so the id must not begin with it.
        let mut stream = client.connect_with_conv(addr, 1).await.unwrap();
        stream.write_all(b"!").await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        for round in 1..=10 {
            other.send_to(&[0, round], addr).await.unwrap();
            let (from, request) = asked.recv().await.unwrap();
            assert_eq!((from, request), (other.local_addr().unwrap(), vec![0, round]));
            listener.endpoint().send_raw(from, &[0, round, round]).unwrap();
            let mut answer = [0; 10];
            let (len, from) = other.recv_from(&mut answer).await.unwrap();
            assert_eq!((&answer[..len], from), (&[0, round, round][..], addr));
        }
        stream.write_all(b"undisturbed").await.unwrap();
        assert_eq!(read(&mut server, 12).await, b"!undisturbed");
        until(|| listener.stats().raw.filtered == 10).await;
        let stats = listener.stats();
        assert_eq!((stats.raw.sent, stats.dropped.truncated), (10, 0));
        for size in [0, 65_508] {
            let error = client.send_raw(addr, &vec![0; size]).unwrap_err();
            let text = format!("the datagram must have 1 to 65507 bytes, got {size}");
            assert_eq!(error.to_string(), text);
        }
    });
}

#[test]
fn accept_filter_rejection_is_counted_and_may_be_lifted() {
    on_both_runtimes(|| async {
        let admitted = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let open = admitted.clone();
        let config = Config::new()
            .accept_filter(move |_, _| open.load(std::sync::atomic::Ordering::Relaxed));
        let listener = KcpListener::bind_with(LOCAL, config).await.unwrap();
        let (addr, early) = (listener.local_addr().unwrap(), Config::new().early_data(true));
        let mut stream = KcpStream::connect_with(addr, early).await.unwrap();
        stream.write_all(b"!").await.unwrap();
        until(|| listener.stats().refused.accept_filter > 0).await;
        assert_eq!(listener.stats().connections.passive_opens, 0);
        admitted.store(true, std::sync::atomic::Ordering::Relaxed);
        // The client retransmits its initial segment.
        assert_eq!(listener.accept().await.unwrap().0.conv(), stream.conv());
    });
}
