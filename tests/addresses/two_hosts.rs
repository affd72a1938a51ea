//! A server with several addresses on one link with its client.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::mpsc::Sender;
use std::time::Duration;

use kcpx::{Algorithm, Cipher, Config, KcpListener, KcpStream, Migration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::{interval, timeout};

use crate::CONV;
use crate::common::{PUSH, assert_same, bytes, read, segment, until};
use crate::hosts::{Hosts, add, ip, scope};

/// Connect timeout, for addresses without an answer.
const TIMEOUT: Duration = Duration::from_secs(3);

fn config() -> Config {
    Config::new().connect_timeout(TIMEOUT)
}

async fn accept(listener: &KcpListener) -> io::Result<KcpStream> {
    Ok(timeout(2 * TIMEOUT, listener.accept()).await??.0)
}

/// Accepts a connection that only sends hello, then one that it echoes. Both clients connect to `addr`.
async fn serve(listener: KcpListener, addr: SocketAddr) -> io::Result<()> {
    let hello = accept(&listener).await?;
    let mut stream = accept(&listener).await?;
    assert_eq!((hello.local_addr()?, stream.local_addr()?), (addr, addr));
    hello.abort();
    let (mut reader, mut writer) = stream.split();
    tokio::io::copy(&mut reader, &mut writer).await?;
    writer.shutdown().await
}

/// Connects to `addr` through a connected socket, which receives from no other address, and through a stream.
async fn ask(from: SocketAddr, addr: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(from).await?;
    socket.connect(addr).await?;
    socket.send(&segment(CONV, PUSH, 0, 0, b"hello")).await?;
    timeout(TIMEOUT, socket.recv(&mut [0; 2_048])).await??;

    let data = bytes(2, 100_000);
    let mut stream = KcpStream::connect_with(addr, config()).await?;
    let (mut reader, mut writer) = stream.split();
    let mut echo = vec![0; data.len()];
    let (sent, got) = tokio::join!(writer.write_all(&data), reader.read_exact(&mut echo));
    sent?;
    got?;
    assert_same(&echo, &data);
    stream.shutdown().await
}

#[test]
fn both_addresses_of_both_ip_versions_answer() {
    let Some(hosts) = Hosts::new() else { return };
    let (v4, v6) = (["10.7.0.1", "10.7.0.2"], ["fd07::1", "fd07::2"]);
    let listeners =
        [("0.0.0.0:4010", false, &v4), ("[::]:4020", true, &v6), ("[::]:4030", false, &v4)];
    let listeners = listeners.into_iter().chain([("[::]:4040", false, &v6)]);
    let mut good = 0;
    for (bound, only_v6, ips) in listeners {
        for (offset, ip) in (0..).zip(ips) {
            // Ports differ between the cases: a child process of another test may hold a closed socket until
            // it calls `exec`.
            let mut bound: SocketAddr = bound.parse().unwrap();
            bound.set_port(bound.port() + offset);
            let addr = SocketAddr::new(ip.parse().unwrap(), bound.port());
            let any = if addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
            let server = move |ready: Sender<()>| async move {
                let config = config().only_v6(only_v6);
                let listener = KcpListener::bind_with(bound, config).await?;
                ready.send(()).unwrap();
                serve(listener, addr).await
            };
            let echoes = hosts.run(server, move || ask(any, addr));
            println!("{bound} (only_v6 {only_v6}) asked at {addr}: {echoes:?}");
            good += usize::from(echoes.is_ok());
        }
    }
    println!("{good} of 8 combinations echo");
    assert_eq!(good, 8);
}

#[test]
fn address_of_the_link_has_its_scope() {
    let Some(hosts) = Hosts::new() else { return };
    let server = |ready: Sender<()>| async move {
        let listener = KcpListener::bind_with("[::]:4003", config()).await?;
        ready.send(()).unwrap();
        let ip = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        serve(listener, SocketAddrV6::new(ip, 4_003, 0, scope()).into()).await
    };
    let client = || {
        let ip = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let addr = SocketAddrV6::new(ip, 4_003, 0, scope()).into();
        ask("[::]:0".parse().unwrap(), addr)
    };
    assert_eq!(hosts.run(server, client), Ok(()));
}

#[test]
fn nothing_leaves_from_a_broadcast_or_multicast_address() {
    let Some(hosts) = Hosts::new() else { return };
    // Broadcast and IPv6 multicast only: a kernel may lack IPv4 multicast, which a test of `util/path.rs`
    // covers.
    let groups = ["255.255.255.255", "10.7.0.255", "ff02::1"];
    let server = move |ready: Sender<()>| async move {
        let listener = KcpListener::bind_with("[::]:4004", config()).await?;
        ready.send(()).unwrap();
        for _ in groups {
            let stream = accept(&listener).await?;
            let local = stream.local_addr()?.ip();
            let own = ["10.7.0.1", "10.7.0.2", "fd07::1", "fd07::2", "fe80::1"];
            assert!(own.contains(&local.to_string().as_str()), "{local}");
        }
        Ok(())
    };
    let client = move || async move {
        for group in groups {
            let is_v4 = !group.contains(':');
            let from = if is_v4 { "10.7.0.9:0" } else { "[fe80::9%end]:0" };
            let from = from.replace("%end", &format!("%{}", scope()));
            let socket = UdpSocket::bind(from.parse::<SocketAddr>().unwrap()).await?;
            socket.set_broadcast(is_v4)?;
            let mut to = SocketAddr::new(group.parse().unwrap(), 4_004);
            if let SocketAddr::V6(to) = &mut to {
                to.set_scope_id(scope());
            }
            socket.send_to(&segment(CONV, PUSH, 0, 0, b"hello"), to).await?;
            let (_, from) = timeout(TIMEOUT, socket.recv_from(&mut [0; 2_048])).await??;
            println!("asked at {group}, {from} answers");
            assert!(["10.7.0.1", "fe80::1"].contains(&from.ip().to_string().as_str()), "{from}");
        }
        Ok(())
    };
    assert_eq!(hosts.run(server, client), Ok(()));
}

#[test]
fn connection_waits_for_an_address_that_is_gone_and_goes_on_when_it_is_back() {
    let Some(hosts) = Hosts::new() else { return };
    for (addr, other, prefix) in
        [("10.7.0.2:4005", "10.7.0.1", "10.7.0.2/24"), ("[fd07::2]:4006", "fd07::1", "fd07::2/64")]
    {
        let addr: SocketAddr = addr.parse().unwrap();
        let server = move |ready: Sender<()>| async move {
            let listener = KcpListener::bind_with(("::", addr.port()), config()).await?;
            ready.send(()).unwrap();
            let mut stream = accept(&listener).await?;
            assert_eq!(read(&mut stream, 5).await, b"hello");
            stream.established().await?;
            ip(&format!("addr del {prefix} dev end"))?;
            let before = listener.stats();
            stream.write_all(&bytes(3, 100_000)).await?;
            // The kernel chooses the local address now.
            until(|| stream.local_addr().is_ok_and(|local| local.ip() != addr.ip())).await;
            assert_ne!(stream.local_addr()?.ip(), addr.ip());
            if addr.is_ipv4() {
                assert_eq!(stream.local_addr()?.ip().to_string(), other);
            }
            ip(&add(prefix))?;
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await?;
            assert_eq!(stream.local_addr()?, addr);
            let sent = listener.stats().sent.datagrams - before.sent.datagrams;
            println!("{sent} datagrams for 100,000 bytes while {addr} was gone and back");
            assert!(sent < 2_000, "{sent}");
            stream.shutdown().await
        };
        let client = move || async move {
            let stream = KcpStream::connect_with(addr, config()).await?;
            let (mut reader, mut writer) = stream.into_split();
            writer.write_all(b"hello").await?;
            let mut ticks = interval(Duration::from_millis(20));
            let reading = read(&mut reader, 100_000);
            tokio::pin!(reading);
            let got = loop {
                tokio::select! {
                    got = &mut reading => break got,
                    // Shows the server the address to answer.
                    _ = ticks.tick() => writer.write_all(b"!").await?,
                }
            };
            assert_same(&got, &bytes(3, 100_000));
            writer.shutdown().await
        };
        assert_eq!(hosts.run(server, client), Ok(()), "{addr}");
    }
}

#[test]
fn connection_goes_on_when_the_address_of_the_client_is_replaced() {
    let Some(hosts) = Hosts::new() else { return };
    for (addr, old, new) in [
        ("10.7.0.2:4007", "10.7.0.9/24", "10.7.0.8/24"),
        ("[fd07::2]:4008", "fd07::9/64", "fd07::8/64"),
    ] {
        let addr: SocketAddr = addr.parse().unwrap();
        let cipher = Cipher::new(Algorithm::Aes128Gcm, &[7; 16]).unwrap();
        let config = config().cipher(cipher).migration(Migration::Authenticated);
        let of_client = config.clone();
        let server = move |ready: Sender<()>| async move {
            let listener = KcpListener::bind_with(("::", addr.port()), config).await?;
            ready.send(()).unwrap();
            let mut stream = accept(&listener).await?;
            let before = stream.peer_addr()?;
            let (mut reader, mut writer) = stream.split();
            tokio::io::copy(&mut reader, &mut writer).await?;
            writer.shutdown().await?;
            assert_ne!(stream.peer_addr()?.ip(), before.ip());
            Ok(())
        };
        let client = move || async move {
            let mut stream = KcpStream::connect_with(addr, of_client).await?;
            for round in 0..4_u8 {
                stream.write_all(&bytes(round.into(), 50_000)).await?;
                assert_same(&read(&mut stream, 50_000).await, &bytes(round.into(), 50_000));
                if round == 1 {
                    ip(&format!("addr del {old} dev end"))?;
                    ip(&add(new))?;
                }
            }
            let local = stream.local_addr()?.ip().to_string();
            assert_eq!(Some(local.as_str()), new.split('/').next());
            stream.shutdown().await?;
            stream.read_to_end(&mut Vec::new()).await?;
            Ok(())
        };
        assert_eq!(hosts.run(server, client), Ok(()), "{addr}");
    }
}
