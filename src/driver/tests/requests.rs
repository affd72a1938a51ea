//! Requests to an endpoint (listen, connect, raw datagrams, filters), and socket errors.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{CLIENT, MINUTE, Pair, SECOND, SERVER, pattern, push, read_pattern};
use super::sim_network::code;
use super::sim_world::{World, addr};
use crate::config::{AckPolicy, Config, Redundancy};
use crate::crypto::{Algorithm, Cipher};
use crate::fec::FecConfig;
use crate::testkit::link::LinkConfig;

#[test]
fn socket_errors_are_counted_by_class_and_none_is_fatal() {
    let Pair { mut world, endpoint, mut client, mut server, .. } = Pair::plain();
    assert!(endpoint.take_error().unwrap().is_none());
    let kinds = [
        ErrorKind::PermissionDenied,
        ErrorKind::ConnectionRefused,
        ErrorKind::NetworkUnreachable,
        ErrorKind::HostUnreachable,
        ErrorKind::NetworkDown,
        ErrorKind::AddrNotAvailable,
        ErrorKind::InvalidInput,
    ];
    world.fail_sends(CLIENT, [code::TOO_LARGE, code::NO_BUFFERS].map(io::Error::from_raw_os_error));
    world.fail_sends(CLIENT, kinds);
    world.fail_recvs(CLIENT, kinds);
    world.finish(MINUTE, async {
        let write = async {
            client.write_all(&pattern(300_000)).await.unwrap();
            client.shutdown().await.unwrap();
        };
        tokio::join!(write, read_pattern(&mut server, 300_000));
    });
    let stats = endpoint.stats();
    assert_eq!((stats.send_errors.total(), stats.recv_errors.total()), (9, 7));
    let classes = |errors: crate::stats::SocketErrors| {
        [
            errors.too_large,
            errors.no_buffers,
            errors.denied,
            errors.refused,
            errors.unreachable,
            errors.other,
        ]
    };
    assert_eq!(classes(stats.send_errors), [1, 1, 1, 1, 4, 1]);
    assert_eq!(classes(stats.recv_errors), [0, 0, 1, 1, 4, 1]);
    let last = endpoint.take_error().unwrap().unwrap();
    assert!(kinds.contains(&last.kind()), "{last}");
    assert!(endpoint.take_error().unwrap().is_none(), "an error is reported once");

    // A fatal socket error is reported after the endpoint has ended.
    world.fail_recvs(CLIENT, [io::Error::from_raw_os_error(code::UNUSABLE)]);
    server.try_write(b"x").unwrap();
    world.run_for(SECOND);
    let last = endpoint.take_error().unwrap().unwrap();
    assert_eq!(last.raw_os_error(), Some(code::UNUSABLE));
    assert_eq!(endpoint.send_raw(addr(9), b"x").unwrap_err().kind(), ErrorKind::NotConnected);
}

#[test]
fn raw_queue_overflow_drops_the_oldest_datagrams() {
    let Pair { mut world, endpoint, client, mut server, .. } = Pair::plain();
    world.port(9);
    world.block_sends(CLIENT, SECOND);
    client.try_write(b"something that waits").unwrap();
    world.run_ready();
    for n in 0..300_u16 {
        endpoint.send_raw(addr(9), &n.to_le_bytes()).unwrap();
    }
    world.run_ready();
    assert_eq!(endpoint.stats().raw.sent, 0);
    world.run_for(2 * SECOND);
    let arrived = world.arrived(9).into_iter();
    let arrived = arrived.map(|datagram| u16::from_le_bytes(datagram.try_into().unwrap()));
    assert_eq!(arrived.collect::<Vec<_>>(), (44..300).collect::<Vec<_>>());
    let stats = endpoint.stats();
    assert_eq!((stats.raw.sent, stats.raw.dropped), (256, 44));
    world.finish(SECOND, server.read_exact(&mut [0; 20])).unwrap();
}

#[test]
fn raw_datagrams_bypass_the_codec_and_reach_the_packet_filter() {
    let cipher = || Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
    let config = || {
        let mut config = Config::new().cipher(cipher());
        config.duplicates = 1;
        config.packet_filter(|from, datagram| from == addr(CLIENT) && datagram.starts_with(b"raw"))
    };
    let Pair { mut world, endpoint, listener, mut client, mut server } =
        Pair::new(&config(), &config());
    world.finish(MINUTE, async {
        for round in 0..20 {
            client.write_all(&pattern(1_000)).await.unwrap();
            endpoint.send_raw(addr(SERVER), b"raw words").unwrap();
            endpoint.send_raw(addr(SERVER), b"other words").unwrap();
            read_pattern(&mut server, 1_000).await;
            assert_eq!(server.error(), None, "round {round}");
        }
    });
    world.run_for(SECOND);
    let stats = listener.stats();
    assert_eq!((stats.raw.filtered, stats.dropped.checksum), (20, 20));
    let sent = world.log().into_iter().filter(|sent| sent.datagram == b"raw words");
    assert_eq!(sent.count(), 20, "neither sealed nor duplicated");
    // A raw datagram queued before the last handle is dropped still leaves.
    drop((client, server));
    world.run_for(MINUTE);
    endpoint.send_raw(addr(SERVER), b"raw and last").unwrap();
    drop(endpoint);
    world.run_for(SECOND);
    assert_eq!(listener.stats().raw.filtered, 21);
}

#[test]
fn raw_datagram_behind_acks_leaves_them_sealed() {
    let cipher = || Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
    let client = Config::new().cipher(cipher()).packet_filter(|_, datagram| datagram == b"raw");
    let server = Config::new().cipher(cipher()).ack_policy(AckPolicy::Immediate);
    let mut pair = Pair::new(&client, &server);
    pair.client.try_write(b"to be answered").unwrap();
    pair.world.run_ready();
    assert_eq!(pair.world.let_arrive(SECOND / 10, SERVER), 1);
    pair.listener.endpoint().send_raw(addr(CLIENT), b"raw").unwrap();
    pair.world.log();
    pair.world.run_for(SECOND / 10);
    let sent = pair.world.log().into_iter().filter(|sent| sent.from == addr(SERVER));
    let sent: Vec<bool> = sent.map(|sent| sent.datagram == b"raw").collect();
    assert!(sent.starts_with(&[false, true]), "the answer is in the batch first: {sent:?}");
    let stats = pair.endpoint.stats();
    assert_eq!((stats.raw.filtered, stats.dropped.checksum), (1, 0));
}

#[test]
fn accept_filter_rejection_allocates_nothing() {
    let config = Config::new().accept_filter(|from, conv| from == addr(9) && conv == 5);
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &config);
    world.port(9);
    for conv in 1..=20 {
        world.inject(addr(9), SERVER, &push(conv, 0, b"hello"));
        world.inject(addr(8), SERVER, &push(conv, 0, b"hello"));
    }
    world.run_for(SECOND / 100);
    let stats = listener.stats();
    assert_eq!((stats.connections.current, stats.refused.accept_filter), (1, 39));
    assert!(world.driver_of(SERVER).routing.conns.capacity() <= 4);
    let (stream, peer) = world.finish(SECOND, listener.accept()).unwrap();
    assert_eq!((stream.conv(), peer), (5, addr(9)));
}

#[test]
fn listen_twice_is_refused_until_the_listener_drops() {
    let Pair { mut world, endpoint, listener, client, mut server } = Pair::plain();
    let error = world.finish(SECOND, listener.endpoint().listen()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&addr(SERVER).to_string()), "{error}");
    let other = listener.endpoint().clone();
    drop(listener);
    // Without a listener the initial datagram is refused, and retransmitted.
    let late = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    late.try_write(b"late").unwrap();
    world.run_for(SECOND / 10);
    assert_eq!(other.stats().refused.no_listener, 1);
    let listener = world.finish(SECOND, other.listen()).unwrap();
    let (accepted, peer) = world.finish(MINUTE, listener.accept()).unwrap();
    assert_eq!((accepted.conv(), peer), (late.conv(), addr(CLIENT)));
    // The first connection is not affected.
    client.try_write(b"there").unwrap();
    world.finish(SECOND, server.read_exact(&mut [0; 5])).unwrap();
    // A cancelled `listen` leaves no listener behind.
    drop(listener);
    drop(Box::pin(other.listen()));
    let mut listening = Box::pin(other.listen());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(listening.as_mut().poll(&mut cx).is_pending());
    drop(listening);
    world.run_ready();
    let listener = world.finish(SECOND, other.listen()).unwrap();
    // An endpoint that only connected may listen too.
    let back = world.finish(SECOND, endpoint.listen()).unwrap();
    let connected = world.finish(SECOND, listener.endpoint().connect(addr(CLIENT))).unwrap();
    connected.try_write(b"back").unwrap();
    let (accepted, peer) = world.finish(SECOND, back.accept()).unwrap();
    assert_eq!((accepted.conv(), peer), (connected.conv(), addr(SERVER)));
}

/// A connection with conversation id 0 carries data both ways, and its end.
fn echo_with_conv_0(client: &Config, server: &Config) {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, server);
    let endpoint = world.waiting_endpoint(CLIENT, client);
    world.finish(MINUTE, async {
        let mut client = endpoint.connect(addr(SERVER)).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        assert_eq!((client.conv(), server.conv()), (0, 0));
        client.write_all(&pattern(20_000)).await.unwrap();
        read_pattern(&mut server, 20_000).await;
        server.write_all(&pattern(20_000)).await.unwrap();
        read_pattern(&mut client, 20_000).await;
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
        server.shutdown().await.unwrap();
    });
    let stats = listener.stats();
    assert_eq!((stats.connections.passive_opens, stats.dropped.no_connection), (1, 0));
}

#[test]
fn conv_0_is_an_id_like_any_other() {
    let zero = Config::new().conv(Some(0));
    echo_with_conv_0(&zero, &Config::new());
    echo_with_conv_0(&zero.clone().early_data(true), &Config::new());
    let cipher = Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
    let sealed =
        Config::new().cipher(cipher).redundancy(Redundancy::Fec(FecConfig::new(3, 1).unwrap()));
    echo_with_conv_0(&sealed.clone().conv(Some(0)), &sealed);
    // This endpoint assigns ids to others, and keeps the 0 of its own connection.
    let mut assigns = zero;
    assigns.assign_conv = true;
    echo_with_conv_0(&assigns, &Config::new());
}

#[test]
fn connect_with_a_used_conv_is_refused() {
    let mut world = World::new(1, LinkConfig::delay(1_000));
    let listener = world.listener(SERVER, &Config::new());
    let endpoint = world.endpoint(CLIENT, &Config::new().conv(Some(7)));
    let client = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap();
    assert_eq!(client.conv(), 7);
    let again = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AddrInUse);
    let text = format!("conversation id 7 is in use with {}: choose another id", addr(SERVER));
    assert_eq!(again.to_string(), text);
    // The same conv with another peer, and another conv with the same peer, are free.
    assert_eq!(world.finish(SECOND, endpoint.connect(addr(3))).unwrap().conv(), 7);
    let other = world.finish(SECOND, endpoint.connect_with_conv(addr(SERVER), 8)).unwrap();
    assert_eq!(other.conv(), 8);
    // TIME-WAIT ends after a minute. A connection that has sent nothing leaves none.
    for _ in 0..2 {
        drop(world.finish(SECOND, listener.accept()).unwrap());
    }
    drop(client);
    world.run_for(SECOND);
    let soon = world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap_err();
    assert!(soon.to_string().contains("less than a minute ago"), "{soon}");
    world.run_for(MINUTE);
    assert_eq!(world.finish(SECOND, endpoint.connect(addr(SERVER))).unwrap().conv(), 7);
    drop(listener);
}
