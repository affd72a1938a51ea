//! Connecting: choice of address, data before `accept`, and cancelled connects.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use kcpx_skip::has_ipv6;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    Observation, at_most, behaviours, bytes, pair, pair_with, read, rest, same, seen, text, turns,
};
use crate::transport::{Listener, Stream, Transport};

behaviours!(
    connect_without_accept,
    connect_then_shutdown,
    connect_then_drop,
    connect_cancelled,
    connect_by_name,
    connect_to_the_second_address,
    connect_to_the_unspecified_address,
    connect_to_no_address,
    connect_to_an_unknown_name,
    written_before_accept,
    server_ends_at_once,
    both_speak_first,
    own_port_for_each,
    echo_that_nobody_reads,
    bind_to_an_address_in_use,
    bind_again,
);

async fn connect_without_accept<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let client = T::connect(listener.local_addr().unwrap()).await.unwrap();
    seen(client.peer_addr().map(|peer| peer == listener.local_addr().unwrap()))
}

async fn connect_then_shutdown<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let mut client = T::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let shutdown = seen(client.shutdown().await);
    format!("{shutdown}, {}", read(&mut server).await)
}

async fn connect_then_drop<T: Transport>() -> Observation {
    let listener = T::bind().await;
    drop(T::connect(listener.local_addr().unwrap()).await.unwrap());
    let (mut server, _) = listener.accept().await.unwrap();
    read(&mut server).await
}

/// Cancelled connects, seen by the listener or not, do not disturb the next.
async fn connect_cancelled<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    for polls in 1..4 {
        drop(at_most(polls, T::connect(addr)).await);
    }
    let mut client = T::connect(addr).await.unwrap();
    client.write_all(b"here").await.unwrap();
    loop {
        let (mut server, peer) = listener.accept().await.unwrap();
        if peer.port() == client.local_addr().unwrap().port() {
            return text(&mut server, 4).await;
        }
    }
}

/// On most systems the name has an IPv4 and an IPv6 address; the listener has one.
async fn connect_by_name<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let port = listener.local_addr().unwrap().port();
    let (client, server) = tokio::join!(T::connect_name("localhost", port), listener.accept());
    client.unwrap().write_all(b"here").await.unwrap();
    text(&mut server.unwrap().0, 4).await
}

/// No socket has the first address.
async fn connect_to_the_second_address<T: Transport>() -> Observation {
    let (gone, listener) = (T::bind().await, T::bind().await);
    let addrs: [SocketAddr; 2] = [gone.local_addr().unwrap(), listener.local_addr().unwrap()];
    drop(gone);
    let (client, server) = tokio::join!(T::connect_any(&addrs), listener.accept());
    client.unwrap().write_all(b"here").await.unwrap();
    text(&mut server.unwrap().0, 4).await
}

/// The unspecified address means this host.
async fn connect_to_the_unspecified_address<T: Transport>() -> Observation {
    let (v4, v6): (IpAddr, IpAddr) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    let mut seen = Vec::new();
    for (local, peer, expected) in
        [("127.0.0.1:0", "0.0.0.0", v4), ("0.0.0.0:0", "0.0.0.0", v4), ("[::]:0", "::", v6)]
    {
        if expected == v6 && !has_ipv6() {
            continue;
        }
        let listener = T::Listener::bind_to(local.parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = T::connect(SocketAddr::new(peer.parse().unwrap(), port)).await.unwrap();
        assert_eq!(client.peer_addr().unwrap(), SocketAddr::new(expected, port));
        client.write_all(b"here").await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        seen.push(text(&mut server, 4).await);
    }
    seen.join(", ")
}

async fn connect_to_no_address<T: Transport>() -> Observation {
    seen(T::connect_any(&[]).await.map(drop))
}

/// RFC 6761 6.4: no such name exists.
async fn connect_to_an_unknown_name<T: Transport>() -> Observation {
    T::connect_name("kcpx.invalid", 1).await.is_err().to_string()
}

async fn written_before_accept<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let mut client = T::connect(listener.local_addr().unwrap()).await.unwrap();
    let data = bytes(20_000);
    client.write_all(&data).await.unwrap();
    turns(100).await;
    let (mut server, _) = listener.accept().await.unwrap();
    let mut got = vec![0; data.len()];
    server.read_exact(&mut got).await.unwrap();
    same(&got, &data)
}

async fn server_ends_at_once<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    server.write_all(b"busy").await.unwrap();
    drop(server);
    rest(&mut client, b"busy").await
}

async fn both_speak_first<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let (up, down) = tokio::join!(client.write_all(b"up"), server.write_all(b"down"));
    let (up, down) = (seen(up), seen(down));
    format!("{up}, {down}, {}, {}", text(&mut server, 2).await, text(&mut client, 4).await)
}

async fn own_port_for_each<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    let (one, other) = (T::connect(addr).await.unwrap(), T::connect(addr).await.unwrap());
    (one.local_addr().unwrap() != other.local_addr().unwrap()).to_string()
}

/// The server echoes before it reads on, and the client reads only after `shutdown`.
async fn echo_that_nobody_reads<T: Transport>() -> Observation {
    let (mut client, server) = pair::<T>().await;
    let echo = tokio::spawn(async move {
        let (mut reader, mut writer) = server.into_split();
        tokio::io::copy(&mut reader, &mut writer).await
    });
    let data = bytes(64 << 20);
    let mut written = 0;
    let stall = std::time::Duration::from_millis(200);
    while let Ok(count) = tokio::time::timeout(stall, client.write(&data[written..])).await {
        written += count.unwrap();
    }
    let shutdown = seen(client.shutdown().await);
    let got = rest(&mut client, &data[..written]).await;
    format!("{shutdown}, {got}, echoed all: {}", echo.await.unwrap().unwrap() == written as u64)
}

async fn bind_to_an_address_in_use<T: Transport>() -> Observation {
    let listener = T::bind().await;
    seen(T::Listener::bind_to(listener.local_addr().unwrap()).await.map(drop))
}

/// A service restarts in the same process, just after its last stream was dropped.
async fn bind_again<T: Transport>() -> Observation {
    let mut listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    for _ in 0..3 {
        let (mut client, mut server) = pair_with::<T>(&listener).await;
        server.write_all(&bytes(10_000)).await.unwrap();
        drop((server, listener));
        listener = match T::Listener::bind_to(addr).await {
            Ok(listener) => listener,
            Err(error) => return format!("{:?}", error.kind()),
        };
        assert_eq!(rest(&mut client, &bytes(10_000)).await, "every byte, end");
    }
    seen(listener.local_addr().map(|bound| bound == addr))
}
