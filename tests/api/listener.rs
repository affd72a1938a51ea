//! Accepting, over loopback sockets.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{
    ACK, PUSH, Pair, bytes, cause, is_pending, listener, on_both_runtimes, pair, read, segment,
    silent_peer, until,
};
use kcpx::{Config, ConnectionError, Endpoint, KcpListener, KcpStream, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// Opens a stream and writes a byte.
async fn dial(endpoint: &Endpoint, listener: &KcpListener) -> KcpStream {
    let mut stream = endpoint.connect(listener.local_addr().unwrap()).await.unwrap();
    stream.write_all(b"!").await.unwrap();
    stream
}

/// With early data, `connect` succeeds although the listener may refuse the connection.
async fn endpoint() -> Endpoint {
    Endpoint::bind_with("127.0.0.1:0", Config::new().early_data(true)).await.unwrap()
}

#[test]
fn bind_to_port_0_picks_a_free_port() {
    on_both_runtimes(|| async {
        let (one, two) = (listener(Config::new()).await, listener(Config::new()).await);
        let ports = [&one, &two].map(|listener| listener.local_addr().unwrap().port());
        assert!(ports[0] != 0 && ports[1] != 0 && ports[0] != ports[1]);
        let error = KcpListener::bind(one.local_addr().unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    });
}

#[test]
fn bind_and_connect_resolve_names() {
    on_both_runtimes(|| async {
        let listener = KcpListener::bind("localhost:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = KcpStream::connect(("localhost", port)).await.unwrap();
        client.write_all(b"!").await.unwrap();
        drop(listener.accept().await.unwrap());
        assert!(KcpStream::connect("no port given").await.is_err());
    });
}

#[test]
fn dropped_listener_keeps_accepted_streams_and_accepts_no_more() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener } = pair(Config::new()).await;
        let addr = listener.local_addr().unwrap();
        drop(listener);
        client.write_all(b"still").await.unwrap();
        assert_eq!(read(&mut server, 5).await, b"still");
        server.write_all(b"there").await.unwrap();
        assert_eq!(read(&mut client, 5).await, b"there");

        let hasty = Config::new().connect_timeout(Duration::from_millis(100));
        let late = KcpStream::connect_with(addr, hasty).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::ConnectionRefused, "nobody listens there any more");
        let endpoint = server.endpoint();
        assert!(endpoint.stats().refused.no_listener > 0);
        assert_eq!(endpoint.stats().connections.current, 1);
    });
}

#[test]
fn socket_is_released_with_its_last_user() {
    on_both_runtimes(|| async {
        let Pair { client, server, listener } = pair(Config::new()).await;
        let addr = listener.local_addr().unwrap();
        drop((client, server, listener));
        // The driver ends in a later turn.
        while KcpListener::bind(addr).await.is_err() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn accept_returns_streams_in_order() {
    on_both_runtimes(|| async {
        let (listener, endpoint) = (listener(Config::new()).await, endpoint().await);
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.push(dial(&endpoint, &listener).await);
        }
        let mut incoming = listener.incoming();
        let mut accepted = HashSet::new();
        for _ in 0..5 {
            let mut stream = incoming.next().await.unwrap();
            assert_eq!(read(&mut stream, 1).await, b"!");
            accepted.insert(stream.conv());
        }
        assert_eq!(accepted, clients.iter().map(KcpStream::conv).collect());
        assert!(is_pending(incoming.next()).await);
    });
}

#[cfg(feature = "stream")]
#[test]
fn incoming_is_a_futures_stream() {
    use futures_core::Stream;
    on_both_runtimes(|| async {
        let (listener, endpoint) = (listener(Config::new()).await, endpoint().await);
        let client = dial(&endpoint, &listener).await;
        let mut incoming = std::pin::pin!(listener.incoming());
        let next = std::future::poll_fn(|cx| incoming.as_mut().poll_next(cx)).await;
        assert_eq!(next.unwrap().unwrap().conv(), client.conv());
    });
}

#[test]
fn concurrent_accepts_get_each_stream_once() {
    on_both_runtimes(|| async {
        let (listener, endpoint) = (Arc::new(listener(Config::new()).await), endpoint().await);
        let (found, mut accepted) = mpsc::unbounded_channel();
        for _ in 0..4 {
            let (listener, found) = (listener.clone(), found.clone());
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    found.send(stream).unwrap();
                }
            });
        }
        let mut clients = Vec::new();
        for _ in 0..40 {
            clients.push(dial(&endpoint, &listener).await);
        }
        let mut convs = HashSet::new();
        let mut streams = Vec::new();
        while streams.len() < 40 {
            let mut stream = accepted.recv().await.unwrap();
            assert_eq!(read(&mut stream, 1).await, b"!");
            assert!(convs.insert(stream.conv()), "accepted twice");
            streams.push(stream);
        }
        assert_eq!(convs, clients.iter().map(KcpStream::conv).collect());
        assert_eq!(listener.stats().connections.passive_opens, 40);
    });
}

#[test]
fn one_socket_connects_and_listens() {
    on_both_runtimes(|| async {
        let (one, two) = (listener(Config::new()).await, listener(Config::new()).await);
        let mut there = one.endpoint().connect(two.local_addr().unwrap()).await.unwrap();
        there.write_all(b"a").await.unwrap();
        let (mut from_one, peer) = two.accept().await.unwrap();
        assert_eq!(peer, one.local_addr().unwrap());
        let mut back = two.endpoint().connect(one.local_addr().unwrap()).await.unwrap();
        back.write_all(b"b").await.unwrap();
        let (mut from_two, peer) = one.accept().await.unwrap();
        assert_eq!(peer, two.local_addr().unwrap());
        assert_eq!(read(&mut from_one, 1).await, b"a");
        assert_eq!(read(&mut from_two, 1).await, b"b");
        assert_eq!(
            (one.stats().connections.active_opens, one.stats().connections.passive_opens),
            (1, 1)
        );
    });
}

#[test]
fn connections_of_one_address_do_not_mix() {
    on_both_runtimes(|| async {
        let (listener, endpoint) = (listener(Config::new()).await, endpoint().await);
        let addr = listener.local_addr().unwrap();
        let mut pairs = Vec::new();
        for seed in 0..10 {
            let mut client = endpoint.connect(addr).await.unwrap();
            client.write_all(&bytes(seed, 10_000)).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            pairs.push((client, server));
        }
        for (seed, (_, server)) in (0..).zip(&mut pairs) {
            assert_eq!(read(server, 10_000).await, bytes(seed, 10_000));
        }
    });
}

#[test]
fn malformed_datagrams_are_counted_by_reason_and_accept_nothing() {
    on_both_runtimes(|| async {
        let listener = listener(Config::new()).await;
        let socket = silent_peer().await;
        socket.connect(listener.local_addr().unwrap()).await.unwrap();

        let mut wrong_length = segment(7, PUSH, 0, 0, b"hello");
        wrong_length.pop();
        let mut two_convs = segment(7, PUSH, 0, 0, b"hello");
        two_convs.extend(segment(8, PUSH, 0, 0, b"hello"));
        let malformed = [segment(7, 99, 0, 0, b""), wrong_length, two_convs];
        let short = [vec![1], vec![2; 23]];
        // Well-formed, but not an initial segment: from the middle of a stream, or an ACK.
        let unknown = [
            segment(7, PUSH, 5, 0, b"x"),
            segment(7, PUSH, 0, 3, b"x"),
            segment(7, ACK, 0, 0, b""),
        ];
        for datagram in malformed.iter().chain(&short).chain(&unknown) {
            socket.send(datagram).await.unwrap();
        }
        until(|| {
            let stats = listener.stats();
            stats.received.datagrams == 8
                && stats.dropped.malformed == 3
                && stats.dropped.truncated == 2
                && stats.dropped.no_connection == 3
        })
        .await;
        let stats = listener.stats();
        assert_eq!(
            (stats.connections.passive_opens, stats.connections.current, stats.sent.datagrams),
            (0, 0, 0)
        );
        assert!(is_pending(listener.accept()).await);

        socket.send(&segment(7, PUSH, 0, 0, b"hello")).await.unwrap();
        let (mut stream, peer) = listener.accept().await.unwrap();
        assert_eq!((stream.conv(), peer), (7, socket.local_addr().unwrap()));
        assert_eq!(read(&mut stream, 5).await, b"hello");
    });
}

#[test]
fn malformed_datagrams_do_not_disturb_a_connection() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener } = pair(Config::new()).await;
        let unknown = silent_peer().await;
        let addr = listener.local_addr().unwrap();
        for seed in 0..500 {
            let garbage = bytes(seed, (seed % 100) as usize);
            unknown.send_to(&garbage, addr).await.unwrap();
            // A segment with the connection's id, from another address.
            let foreign = segment(client.conv(), ACK, 1, 1, b"");
            unknown.send_to(&foreign, addr).await.unwrap();
        }
        client.write_all(b"undisturbed").await.unwrap();
        assert_eq!(read(&mut server, 11).await, b"undisturbed");
        assert_eq!(listener.stats().connections.passive_opens, 1);
    });
}

#[test]
fn full_backlog_rejects_until_accept() {
    on_both_runtimes(|| async {
        let config = Config::new().limits(Limits::new().backlog(1));
        let (listener, endpoint) = (listener(config).await, endpoint().await);
        let first = dial(&endpoint, &listener).await;
        until(|| listener.stats().connections.passive_opens == 1).await;
        let second = dial(&endpoint, &listener).await;
        until(|| listener.stats().refused.backlog > 0).await;
        assert_eq!(listener.accept().await.unwrap().0.conv(), first.conv());
        // The client retransmits its initial segment.
        assert_eq!(listener.accept().await.unwrap().0.conv(), second.conv());
    });
}

#[test]
fn max_connections_limits_accept_and_connect() {
    on_both_runtimes(|| async {
        let config = Config::new().limits(Limits::new().max_connections(1));
        let (listener, early) = (listener(config).await, Config::new().early_data(true));
        let dialling = Endpoint::bind_with("127.0.0.1:0", early).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let first = dial(&dialling, &listener).await;
        let (server, _) = listener.accept().await.unwrap();
        let second = dial(&dialling, &listener).await;
        until(|| listener.stats().refused.max_connections > 0).await;
        let error = listener.endpoint().connect(addr).await.unwrap_err();
        assert!(error.to_string().contains("max_connections"), "{error}");
        // A free place: the client retransmits its initial segment.
        drop((first, server));
        let (server, _) = listener.accept().await.unwrap();
        assert_eq!(server.conv(), second.conv());
    });
}

#[test]
fn dropped_listener_resets_unaccepted_streams() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener } = pair(Config::new()).await;
        let addr = listener.local_addr().unwrap();
        let endpoint = server.endpoint();
        let mut waiting = KcpStream::connect(addr).await.unwrap();
        waiting.write_all(b"!").await.unwrap();
        until(|| endpoint.stats().connections.current == 2).await;
        drop(listener);
        assert_eq!(cause(waiting.read_u8().await), ConnectionError::Reset);
        until(|| endpoint.stats().connections.current == 1).await;
        server.write_all(b"accepted").await.unwrap();
        assert_eq!(read(&mut client, 8).await, b"accepted");
    });
}
