//! Streams that end without a failure.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::support::{Observation, at_most, behaviours, bytes, pair, read, rest, seen, text};
use crate::transport::{Stream, Transport};

behaviours!(
    end_after_data,
    end_without_data,
    end_again_and_again,
    half_close_by_the_client,
    half_close_by_the_server,
    write_all_and_drop,
    both_shut_down_at_once,
    both_drop_at_once,
    close_wakes_a_pending_read,
    close_wakes_a_pending_readable,
    shutdown_twice,
    shutdown_of_unread_data,
    drop_after_shutdown,
    read_after_own_shutdown,
    flush_after_shutdown,
    close_after_close,
);

async fn end_after_data<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.write_all(b"bye").await.unwrap();
    client.shutdown().await.unwrap();
    rest(&mut server, b"bye").await
}

async fn end_without_data<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let shutdown = seen(client.shutdown().await);
    format!("shutdown {shutdown}, read {}", read(&mut server).await)
}

async fn end_again_and_again<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.shutdown().await.unwrap();
    let first = read(&mut server).await;
    let mut buf = [0; 8];
    let tried = seen(server.try_read(&mut buf));
    let peeked = seen(server.peek(&mut buf).await);
    server.readable().await.unwrap();
    format!("{first}, {tried}, {peeked}, {}", read(&mut server).await)
}

/// `first` sends everything and shuts down, then `second` answers. Returns what each reads.
async fn half_close(first: &mut impl Stream, second: &mut impl Stream) -> Observation {
    let (request, answer) = (bytes(100_000), bytes(1 << 20));
    let serve = async {
        let got = rest(second, &request).await;
        second.write_all(&answer).await.unwrap();
        second.shutdown().await.unwrap();
        got
    };
    let ask = async {
        first.write_all(&request).await.unwrap();
        first.shutdown().await.unwrap();
        rest(first, &answer).await
    };
    let (there, back) = tokio::join!(serve, ask);
    format!("{there}, then back {back}")
}

async fn half_close_by_the_client<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    half_close(&mut client, &mut server).await
}

async fn half_close_by_the_server<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    half_close(&mut server, &mut client).await
}

async fn write_all_and_drop<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let data = bytes(1 << 20);
    let write = async {
        client.write_all(&data).await.unwrap();
        drop(client);
    };
    tokio::join!(write, rest(&mut server, &data)).1
}

async fn both_shut_down_at_once<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let shutdowns = tokio::join!(client.shutdown(), server.shutdown());
    let reads = tokio::join!(read(&mut client), read(&mut server));
    format!("{} and {}, {} and {}", seen(shutdowns.0), seen(shutdowns.1), reads.0, reads.1)
}

async fn both_drop_at_once<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let (client, server) = crate::support::pair_with::<T>(&listener).await;
    drop((client, server));
    // The listener still accepts.
    let (mut client, mut server) = crate::support::pair_with::<T>(&listener).await;
    client.write_all(b"next").await.unwrap();
    text(&mut server, 4).await
}

async fn close_wakes_a_pending_read<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let close = async {
        crate::support::turns(10).await;
        drop(client);
    };
    tokio::join!(read(&mut server), close).0
}

async fn close_wakes_a_pending_readable<T: Transport>() -> Observation {
    let (mut client, server) = pair::<T>().await;
    let (readable, shutdown) = tokio::join!(server.readable(), client.shutdown());
    format!("{}, {}", seen(readable), seen(shutdown))
}

async fn shutdown_twice<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.write_all(b"bye").await.unwrap();
    let (first, second) = (client.shutdown().await, client.shutdown().await);
    format!("{}, {}, {}", seen(first), seen(second), rest(&mut server, b"bye").await)
}

async fn shutdown_of_unread_data<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    // More than a KCP peer without a reader stores: the rest stays in the send queue. TCP may store less; then
    // this sends fewer bytes.
    let data = bytes(2 << 20);
    let mut left = Bytes::from(data.clone());
    drop(timeout(Duration::from_secs(1), client.write_all_buf(&mut left)).await);
    let data = &data[..data.len() - left.len()];
    let at_once = at_most(1, client.shutdown()).await;
    let when = if at_once.is_some() { "at once" } else { "when the peer has every byte" };
    let (again, got) = tokio::join!(client.shutdown(), rest(&mut server, data));
    format!("{} {when}, {got}", seen(again))
}

async fn drop_after_shutdown<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.write_all(b"bye").await.unwrap();
    client.shutdown().await.unwrap();
    drop(client);
    rest(&mut server, b"bye").await
}

async fn read_after_own_shutdown<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.shutdown().await.unwrap();
    server.write_all(b"still here").await.unwrap();
    text(&mut client, 10).await
}

async fn flush_after_shutdown<T: Transport>() -> Observation {
    let (mut client, _server) = pair::<T>().await;
    client.shutdown().await.unwrap();
    seen(client.flush().await)
}

/// Like most servers, the second side closes only after it has read the first side's end.
async fn close_after_close<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let serve = async {
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        server.write_all(&got).await.unwrap();
        drop(server);
    };
    let ask = async {
        client.write_all(b"echo").await.unwrap();
        client.shutdown().await.unwrap();
        rest(&mut client, b"echo").await
    };
    tokio::join!(serve, ask).1
}
