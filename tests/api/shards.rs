//! A listener on several sockets with one address. Linux.
#![cfg(target_os = "linux")]

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use crate::common::{assert_same, bytes, on_both_runtimes, open, read, until};
use kcpx::{Algorithm, Cipher, Config, ConfigError, Endpoint, KcpListener, KcpStream, Migration};
use socket2::{Domain, Socket, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

const SHARDS: usize = 4;

fn cipher() -> Cipher {
    Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap()
}

fn config() -> Config {
    Config::new().socket_buffers(Some(1 << 20), Some(1 << 20))
}

async fn sharded(config: Config) -> (KcpListener, SocketAddr) {
    let listener = KcpListener::bind_with("127.0.0.1:0", config.shards(SHARDS)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Counts the sockets that are bound to `addr`.
fn sockets(addr: SocketAddr) -> usize {
    let SocketAddr::V4(v4) = addr else { panic!("an IPv4 address") };
    let ip = u32::from_ne_bytes(v4.ip().octets());
    let local = format!(" {ip:08X}:{:04X} ", v4.port());
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    // While sockets change, the table may list one twice or not at all. Count each inode once, and wait for
    // the expected count.
    let mine = table.lines().filter(|line| line.contains(&local));
    mine.filter_map(|line| line.split_whitespace().nth(9)).collect::<HashSet<_>>().len()
}

#[test]
fn shards_all_accept_and_serve() {
    const CLIENTS: usize = 200;
    const LEN: usize = 20_000;
    on_both_runtimes(|| async {
        let (listener, addr) = sharded(config()).await;
        until(|| sockets(addr) == SHARDS).await;
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(async move {
                let stream = KcpStream::connect_with(addr, config()).await.unwrap();
                let (mut reader, mut writer) = stream.into_split();
                let data = bytes(number as u64, LEN);
                let sending = async {
                    writer.write_all(&data).await.unwrap();
                    writer.shutdown().await.unwrap();
                };
                let ((), echo) = tokio::join!(sending, read(&mut reader, LEN));
                assert_same(&echo, &data);
            });
        }
        let mut servers = JoinSet::new();
        let mut shares = HashMap::<_, u64>::new();
        for _ in 0..CLIENTS {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_eq!(stream.local_addr().unwrap(), addr);
            // The endpoint of a stream covers one socket. The count of connections tells the sockets apart.
            let endpoint = stream.endpoint();
            servers.spawn(async move {
                let data = read(&mut stream, LEN).await;
                stream.write_all(&data).await.unwrap();
                stream.shutdown().await.unwrap();
                endpoint.stats().connections.passive_opens
            });
        }
        while let Some(client) = clients.join_next().await {
            client.unwrap();
        }
        while let Some(opened) = servers.join_next().await {
            *shares.entry(opened.unwrap()).or_default() += 1;
        }
        println!("connections per shard, and how often that was seen: {shares:?}");
        assert!(shares.keys().all(|opened| *opened < CLIENTS as u64), "one socket has them all");
        listener.wait_idle().await;
        let stats = listener.stats();
        assert_eq!(stats.connections.passive_opens, CLIENTS as u64);
        assert_eq!((stats.dropped.no_connection, stats.dropped.malformed), (0, 0));
    });
}

/// Opens `count` connections, each with its own client socket.
async fn pairs(listener: &KcpListener, addr: SocketAddr, count: usize) -> Vec<[KcpStream; 2]> {
    let mut pairs = Vec::new();
    for _ in 0..count {
        let (client, server) = open(listener, addr, config()).await;
        pairs.push([client, server]);
    }
    pairs
}

#[test]
fn shard_sockets_stay_until_the_last_connection_ends() {
    on_both_runtimes(|| async {
        let (listener, addr) = sharded(config()).await;
        let mut pairs = pairs(&listener, addr, 24).await;
        drop(listener);
        // All connections except one end, and with them their drivers.
        while pairs.len() > 1 {
            for mut stream in pairs.pop().unwrap() {
                stream.shutdown().await.unwrap();
            }
        }
        let [mut client, mut server] = pairs.pop().unwrap();
        // The drivers end after TIME-WAIT, except one of each side.
        let tasks = tokio::runtime::Handle::current().metrics();
        until(|| tasks.num_alive_tasks() == 2).await;
        for _ in 0..20 {
            server.write_all(b"still").await.unwrap();
            assert_eq!(read(&mut client, 5).await, b"still");
            client.write_all(b"there").await.unwrap();
            assert_eq!(read(&mut server, 5).await, b"there");
        }
        until(|| sockets(addr) == SHARDS).await;
        let (closed, _) = tokio::join!(server.shutdown(), client.shutdown());
        closed.unwrap();
        drop((client, server));
        until(|| sockets(addr) == 0).await;
    });
}

#[test]
fn shards_reject_an_address_in_use_and_stay_unbound() {
    on_both_runtimes(|| async {
        let (listener, addr) = sharded(config()).await;
        for shards in [1, SHARDS] {
            let again = KcpListener::bind_with(addr, config().shards(shards)).await;
            assert_eq!(again.unwrap_err().kind(), ErrorKind::AddrInUse);
            until(|| sockets(addr) == SHARDS).await;
        }
        let plain = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let taken = plain.local_addr().unwrap();
        let other = KcpListener::bind_with(taken, config().shards(SHARDS)).await;
        assert_eq!(other.unwrap_err().kind(), ErrorKind::AddrInUse);
        until(|| sockets(taken) == 1).await;
        drop(listener);
        until(|| sockets(addr) == 0).await;
    });
}

#[test]
fn shards_reject_options_that_need_one_socket() {
    on_both_runtimes(|| async {
        let (listener, addr) = sharded(config()).await;
        let (_client, server) = open(&listener, addr, config()).await;
        for endpoint in [listener.endpoint().clone(), server.endpoint()] {
            let errors = [
                endpoint.connect(addr).await.err(),
                endpoint.connect_with_conv(addr, 7).await.err(),
                endpoint.listen().await.err(),
                endpoint.rebind("127.0.0.1:0").await.err(),
            ];
            for error in errors {
                let error = error.expect("a refusal");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            }
        }
        // `Endpoint` ignores `shards`.
        let endpoint = Endpoint::bind_with("127.0.0.1:0", config().shards(SHARDS)).await.unwrap();
        let addr = endpoint.local_addr().unwrap();
        until(|| sockets(addr) == 1).await;
        endpoint.listen().await.unwrap();
        for shards in [0, 65] {
            let error = config().shards(shards).validate().unwrap_err();
            assert!(matches!(error, ConfigError::OutOfRange { min: 1, max: 64, .. }), "{error}");
        }
        let migratory = config().shards(2).cipher(cipher()).migration(Migration::Authenticated);
        let error = migratory.validate().unwrap_err();
        assert!(matches!(error, ConfigError::Requires { field: "migration", .. }), "{error}");
        assert!(migratory.shards(1).validate().is_ok());
    });
}

/// Binds `count` sockets to one address, like sockets that a process inherits.
fn inherited(count: usize) -> Vec<std::net::UdpSocket> {
    let mut addr = SocketAddr::from(([127, 0, 0, 1], 0));
    let bind = |_| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&addr.into()).unwrap();
        let socket = std::net::UdpSocket::from(socket);
        addr = socket.local_addr().unwrap();
        socket
    };
    (0..count).map(bind).collect()
}

#[test]
fn inherited_sockets_are_shards_and_serve_clients_that_sent_before() {
    const CLIENTS: u8 = 60;
    on_both_runtimes(|| async {
        let inherited = inherited(SHARDS);
        let addr = inherited[0].local_addr().unwrap();
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(async move {
                let mut stream = KcpStream::connect_with(addr, config()).await.unwrap();
                stream.write_all(&[number]).await.unwrap();
                assert_eq!(read(&mut stream, 1).await, [number]);
            });
        }
        // Before the listener starts, first datagrams wait in every socket.
        inherited.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        until(|| inherited.iter().all(|socket| socket.peek(&mut [0]).is_ok())).await;
        let listener = KcpListener::from_std_group(inherited, config()).unwrap();
        assert_eq!(listener.local_addr().unwrap(), addr);
        for _ in 0..CLIENTS {
            let (mut stream, _) = listener.accept().await.unwrap();
            clients.spawn(async move {
                let said = read(&mut stream, 1).await;
                stream.write_all(&said).await.unwrap();
                stream.shutdown().await.unwrap();
            });
        }
        while let Some(done) = clients.join_next().await {
            done.unwrap();
        }
        assert_eq!(listener.stats().connections.passive_opens, u64::from(CLIENTS));
        assert_eq!(sockets(addr), SHARDS);
    });
}

#[test]
fn inherited_sockets_that_do_not_fit_are_refused() {
    on_both_runtimes(|| async {
        let text = |result: std::io::Result<KcpListener>| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            error.to_string()
        };
        let group = |sockets, shards| KcpListener::from_std_group(sockets, config().shards(shards));
        assert_eq!(text(group(Vec::new(), 1)), "the list of sockets is empty: pass at least one");
        let refused = text(group(inherited(2), 3));
        assert!(
            refused.starts_with(
                "shards (sockets) must be 1 or the number of sockets passed, 2, got 3"
            ),
            "{refused}"
        );
        let two: Vec<_> = inherited(1).into_iter().chain(inherited(1)).collect();
        assert!(text(group(two, 1)).starts_with("the sockets must be bound to one address"));
        let one = inherited(1).remove(0);
        let refused = text(KcpListener::from_std_with(one, config().shards(2)));
        assert!(
            refused.starts_with(
                "shards (sockets) must be 1 or the number of sockets passed, 1, got 2"
            ),
            "{refused}"
        );
        assert!(group(inherited(2), 2).is_ok() && group(inherited(1), 1).is_ok());
    });
}

#[test]
fn replayed_initial_segment_is_dropped_by_every_shard() {
    const SOURCES: usize = 40;
    on_both_runtimes(|| async {
        let config = config().cipher(cipher());
        let (listener, addr) = sharded(config.clone()).await;
        // The relay takes the client's first datagram, and many sources send it on.
        let relay = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (addr_of_relay, early) = (relay.local_addr().unwrap(), config.early_data(true));
        let mut client = KcpStream::connect_with(addr_of_relay, early).await.unwrap();
        client.write_all(b"once").await.unwrap();
        let mut initial = [0; 1_500];
        let (len, _) = relay.recv_from(&mut initial).await.unwrap();
        for _ in 0..SOURCES {
            let source = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            source.send_to(&initial[..len], addr).await.unwrap();
        }
        until(|| listener.stats().received.datagrams >= SOURCES as u64).await;
        let stats = listener.stats();
        assert_eq!(
            (stats.connections.passive_opens, stats.dropped.replayed),
            (1, SOURCES as u64 - 1)
        );
        client.abort();
    });
}

/// A panic in a filter ends one socket. The listener accepts nothing more on any socket, and the connections
/// of the other sockets go on.
#[test]
fn listener_stays_failed_after_one_of_its_sockets_has_ended() {
    const CLIENTS: usize = 24;
    on_both_runtimes(|| async {
        let failing = config().packet_filter(|_, datagram| {
            assert!(datagram != b"panic, please", "as the test asks");
            false
        });
        let (listener, addr) = sharded(failing).await;
        let mut pairs = Vec::new();
        for _ in 0..CLIENTS {
            pairs.push(open(&listener, addr, config()).await);
        }
        let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        other.send_to(b"panic, please", addr).await.unwrap();
        assert!(listener.accept().await.is_err());

        // Some of them reach open sockets.
        let mut connects = JoinSet::new();
        for _ in 0..CLIENTS {
            let config = config().connect_timeout(Duration::from_secs(2));
            connects.spawn(async move { KcpStream::connect_with(addr, config).await.map(drop) });
        }
        let mut refused = 0;
        while let Some(connected) = connects.join_next().await {
            let error = connected.unwrap().unwrap_err();
            refused += usize::from(error.kind() == ErrorKind::ConnectionRefused);
            assert!(listener.accept().await.is_err());
        }
        assert!(refused > 0, "none reached an open socket");
        let mut alive = 0;
        for (client, server) in &mut pairs {
            if server.error().is_none() {
                client.write_all(b"?").await.unwrap();
                assert_eq!(read(server, 1).await, b"?");
                alive += 1;
            }
        }
        println!("{refused} of {CLIENTS} refused, {alive} of {CLIENTS} connections go on");
        assert!((1..CLIENTS).contains(&alive));
    });
}
