//! Futures that are dropped before they are ready.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::support::{
    Observation, at_most, behaviours, bytes, pair, pair_with, read, rest, same, seen, text,
};
use crate::transport::{Listener, Stream, Transport};

behaviours!(
    cancelled_after_one_poll,
    cancelled_after_two_polls,
    cancelled_after_three_polls,
    cancelled_waits,
    cancelled_peeks,
    cancelled_accepts,
    cancelled_shutdown,
    timeout_of_a_read,
    timeout_of_a_write,
    select_between_reads,
);

/// Transfers data, and cancels every read and write that takes more than `polls` polls.
async fn cancelled<T: Transport>(polls: usize) -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let data = bytes(16 << 20);
    let mut left = Bytes::from(data.clone());
    // A read without data and a write without a reader are always cancelled.
    let mut some = at_most(1, server.read(&mut [0])).await.is_none();
    while at_most(1, client.write_all_buf(&mut left)).await.is_some() {}
    some &= !left.is_empty();
    let write = async {
        while !left.is_empty() {
            if let Some(result) = at_most(polls, client.write_all_buf(&mut left)).await {
                result.unwrap();
            }
            client.writable().await.unwrap();
        }
        client.shutdown().await.unwrap();
    };
    let mut got = Vec::with_capacity(data.len() + 1);
    let read = async {
        loop {
            if let Some(count) = at_most(polls, server.read_buf(&mut got)).await
                && count.unwrap() == 0
            {
                break;
            }
            server.readable().await.unwrap();
        }
    };
    tokio::join!(read, write);
    format!("some dropped: {some}, {}", same(&got, &data))
}

async fn cancelled_after_one_poll<T: Transport>() -> Observation {
    cancelled::<T>(1).await
}

async fn cancelled_after_two_polls<T: Transport>() -> Observation {
    cancelled::<T>(2).await
}

async fn cancelled_after_three_polls<T: Transport>() -> Observation {
    cancelled::<T>(3).await
}

async fn cancelled_waits<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    // Ignores the results: readiness may be spurious.
    for _ in 0..10 {
        drop(at_most(1, server.readable()).await);
        drop(at_most(1, server.writable()).await);
    }
    client.write_all(b"here").await.unwrap();
    server.readable().await.unwrap();
    text(&mut server, 4).await
}

async fn cancelled_peeks<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let dropped = at_most(1, server.peek(&mut [0; 4])).await.is_none();
    client.write_all(b"here").await.unwrap();
    let mut buf = [0; 4];
    while server.peek(&mut buf).await.unwrap() < 4 {}
    let again = at_most(1, server.peek(&mut buf)).await;
    let again = again.map_or_else(|| "waits".to_owned(), seen);
    format!("dropped: {dropped}, {again}, {}", text(&mut server, 4).await)
}

async fn cancelled_accepts<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let mut dropped = 0;
    for _ in 0..100 {
        dropped += usize::from(at_most(1, listener.accept()).await.is_none());
    }
    let (mut client, mut server) = pair_with::<T>(&listener).await;
    client.write_all(b"here").await.unwrap();
    format!("{dropped} dropped, {}", text(&mut server, 4).await)
}

async fn cancelled_shutdown<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.write_all(b"bye").await.unwrap();
    drop(at_most(1, client.shutdown()).await);
    let write = seen(client.write(b"x").await);
    let end = rest(&mut server, b"bye").await;
    format!("write {write}, {end}, {}", seen(client.shutdown().await))
}

async fn timeout_of_a_read<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let late = timeout(Duration::from_millis(1), read(&mut server)).await.is_err();
    client.write_all(b"here").await.unwrap();
    format!("timed out: {late}, {}", text(&mut server, 4).await)
}

async fn timeout_of_a_write<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let data = bytes(64 << 20);
    let mut left = Bytes::from(data.clone());
    // Without a reader the write never completes.
    let late = timeout(Duration::from_millis(100), client.write_all_buf(&mut left)).await.is_err();
    let finish = async {
        client.write_all_buf(&mut left).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let (got, ()) = tokio::join!(rest(&mut server, &data), finish);
    format!("timed out: {late}, {got}")
}

/// A loop that selects between reads, so the losing read is dropped each time.
async fn select_between_reads<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let (mut one, mut first) = pair_with::<T>(&listener).await;
    let (mut two, mut second) = pair_with::<T>(&listener).await;
    let data = bytes(300_000);
    let write = async {
        for piece in data.chunks(1_000) {
            one.write_all(piece).await.unwrap();
            two.write_all(piece).await.unwrap();
        }
        drop((one, two));
    };
    let read = async {
        let (mut a, mut b, mut ends) = (Vec::new(), Vec::new(), [false; 2]);
        while ends != [true; 2] {
            tokio::select! {
                count = first.read_buf(&mut a), if !ends[0] => ends[0] = count.unwrap() == 0,
                count = second.read_buf(&mut b), if !ends[1] => ends[1] = count.unwrap() == 0,
            }
        }
        format!("{}, {}", same(&a, &data), same(&b, &data))
    };
    tokio::join!(write, read).1
}
