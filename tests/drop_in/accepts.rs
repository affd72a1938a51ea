//! Listening, accepting and connecting.

use std::future::poll_fn;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Observation, behaviours, bytes, pair_with, read, rest, seen, text};
use crate::transport::{Listener, Stream, Transport};

behaviours!(
    accept_in_several_tasks,
    accept_by_polling,
    accept_returns_the_peer_address,
    accept_of_a_silent_client,
    accept_after_the_client_is_gone,
    server_speaks_first,
    listener_dropped,
    listener_dropped_before_accept,
    connection_refused,
    many_at_once,
);

async fn accept_in_several_tasks<T: Transport>() -> Observation {
    let listener = Arc::new(T::bind().await);
    let addr = listener.local_addr().unwrap();
    let tasks = [0; 3].map(|_| {
        let listener = listener.clone();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let name = stream.read_u8().await.unwrap();
            stream.write_u8(name).await.unwrap();
            name
        })
    });
    let mut clients = Vec::new();
    for name in *b"abc" {
        let mut client = T::connect(addr).await.unwrap();
        client.write_u8(name).await.unwrap();
        clients.push((client, name));
    }
    let mut right = true;
    for (client, name) in &mut clients {
        right &= client.read_u8().await.unwrap() == *name;
    }
    let mut names = Vec::new();
    for task in tasks {
        names.push(char::from(task.await.unwrap()));
    }
    names.sort_unstable();
    format!("{}, own echo: {right}", names.iter().collect::<String>())
}

async fn accept_by_polling<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    let accept = poll_fn(|cx| listener.poll_accept(cx));
    let (client, accepted) = tokio::join!(T::connect(addr), accept);
    client.unwrap().write_all(b"here").await.unwrap();
    text(&mut accepted.unwrap().0, 4).await
}

async fn accept_returns_the_peer_address<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(T::connect(addr), listener.accept());
    let (client, (server, peer)) = (client.unwrap(), accepted.unwrap());
    let port = client.local_addr().unwrap().port();
    format!("{}, {}", peer == server.peer_addr().unwrap(), peer.port() == port)
}

/// Only the second client sends data.
async fn accept_of_a_silent_client<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    let silent = T::connect(addr).await.unwrap();
    let mut talking = T::connect(addr).await.unwrap();
    talking.write_all(b"hello").await.unwrap();
    let (_, peer) = listener.accept().await.unwrap();
    let first = peer.port() == silent.local_addr().unwrap().port();
    if first { "it is accepted" } else { "it is not heard of before it writes" }.to_owned()
}

async fn accept_after_the_client_is_gone<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let mut client = T::connect(listener.local_addr().unwrap()).await.unwrap();
    client.write_all(b"bye").await.unwrap();
    client.shutdown().await.unwrap();
    drop(client);
    let (mut server, _) = listener.accept().await.unwrap();
    rest(&mut server, b"bye").await
}

async fn server_speaks_first<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let (mut client, mut server) = pair_with::<T>(&listener).await;
    server.write_all(b"220 ready").await.unwrap();
    let greeting = text(&mut client, 9).await;
    client.write_all(b"HELO").await.unwrap();
    format!("{greeting}, {}", text(&mut server, 4).await)
}

async fn listener_dropped<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let (mut client, mut server) = pair_with::<T>(&listener).await;
    drop(listener);
    let data = bytes(200_000);
    let write = async {
        client.write_all(&data).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let ((), got) = tokio::join!(write, rest(&mut server, &data));
    server.write_all(b"back").await.unwrap();
    format!("{got}, {}", text(&mut client, 4).await)
}

async fn listener_dropped_before_accept<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let mut client = T::connect(listener.local_addr().unwrap()).await.unwrap();
    T::known(&client).await.unwrap();
    drop(listener);
    read(&mut client).await
}

async fn connection_refused<T: Transport>() -> Observation {
    if !cfg!(any(target_os = "linux", target_os = "android")) {
        // Other systems report a closed port to connected UDP sockets only.
        return "not here".to_owned();
    }
    let listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    drop(listener);
    seen(T::connect(addr).await.map(|_stream| ()))
}

async fn many_at_once<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let mut tasks = Vec::new();
        for _ in 0..30 {
            let (stream, _) = listener.accept().await.unwrap();
            tasks.push(tokio::spawn(async move {
                let (mut reader, mut writer) = stream.into_split();
                tokio::io::copy(&mut reader, &mut writer).await.unwrap()
            }));
        }
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        sum
    });
    let clients = (0..30).map(|_| {
        tokio::spawn(async move {
            let mut client = T::connect(addr).await.unwrap();
            client.write_all(&bytes(10_000)).await.unwrap();
            client.shutdown().await.unwrap();
            rest(&mut client, &bytes(10_000)).await
        })
    });
    let mut right = 0;
    for client in clients.collect::<Vec<_>>() {
        right += usize::from(client.await.unwrap() == "every byte, end");
    }
    format!("{right} echoes, {} bytes", server.await.unwrap())
}
