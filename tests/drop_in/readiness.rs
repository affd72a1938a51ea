//! Readiness, `peek` and the `try_` calls.

use std::future::poll_fn;
use std::io::ErrorKind;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, ReadBuf, Ready};

use crate::support::{Observation, at_most, behaviours, pair, read, seen, text};
use crate::transport::{Stream, Transport};

behaviours!(
    ready_for_what,
    ready_at_the_end,
    poll_ready,
    try_read_without_data,
    try_read_with_data,
    try_read_buf_fills_what_is_spare,
    try_write_until_it_would_block,
    peek_takes_nothing,
    peek_waits_for_data,
    peek_at_the_end,
    peek_into_an_empty_buffer,
);

const EITHER: Interest = Interest::READABLE.add(Interest::WRITABLE);

fn words(ready: Ready) -> String {
    format!("readable {}, writable {}", ready.is_readable(), ready.is_writable())
}

async fn ready_for_what<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let fresh = words(client.ready(EITHER).await.unwrap());
    let waits = at_most(1, client.ready(Interest::READABLE)).await.is_none();
    server.write_all(b"here").await.unwrap();
    client.readable().await.unwrap();
    let later = words(client.ready(EITHER).await.unwrap());
    format!("{fresh}, waits to read: {waits}, then {later}")
}

async fn ready_at_the_end<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    server.shutdown().await.unwrap();
    // Readiness for data may be reported before the end of the stream.
    while !client.ready(Interest::READABLE).await.unwrap().is_read_closed() {
        tokio::task::yield_now().await;
    }
    words(client.ready(EITHER).await.unwrap())
}

async fn poll_ready<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let write = seen(poll_fn(|cx| client.poll_write_ready(cx)).await);
    let read = poll_fn(|cx| client.poll_read_ready(cx));
    let ((), read) = tokio::join!(async { server.write_all(b"!").await.unwrap() }, read);
    format!("{write}, {}", seen(read))
}

async fn try_read_without_data<T: Transport>() -> Observation {
    let (client, _server) = pair::<T>().await;
    seen(client.try_read(&mut [0; 8]))
}

/// Waits for readiness before each try, as the documentation requires.
async fn tried(stream: &impl Stream, mut read: impl FnMut() -> std::io::Result<usize>) -> String {
    loop {
        stream.readable().await.unwrap();
        match read() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => return seen(result),
        }
    }
}

async fn try_read_with_data<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    server.write_all(b"here").await.unwrap();
    let mut buf = [0; 4];
    while client.peek(&mut buf).await.unwrap() < 4 {}
    let mut got = [0; 3];
    let first = tried(&client, || client.try_read(&mut got)).await;
    let second = tried(&client, || client.try_read(&mut got[..2])).await;
    format!("{first}, {second}, {}", seen(client.try_read(&mut got)))
}

async fn try_read_buf_fills_what_is_spare<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    server.write_all(b"more than fits").await.unwrap();
    let mut buf = [0; 14];
    while client.peek(&mut buf).await.unwrap() < 14 {}
    let mut got = Vec::with_capacity(9);
    let count = tried(&client, || client.try_read_buf(&mut got)).await;
    let got = String::from_utf8_lossy(&got).into_owned();
    format!("{count}, {got}, {}", text(&mut client, 5).await)
}

async fn try_write_until_it_would_block<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    client.writable().await.unwrap();
    let mut written = 0;
    let full = loop {
        match client.try_write(&[7; 16_000]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    let again = async {
        loop {
            client.writable().await.unwrap();
            match client.try_write(b"!") {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => break seen(result),
            }
        }
    };
    let mut got = vec![0; written + 1];
    let (again, read) = tokio::join!(again, server.read_exact(&mut got));
    read.unwrap();
    let right = got.pop() == Some(b'!') && got.iter().all(|byte| *byte == 7);
    format!("{:?}, {again}, every byte: {right}", full.kind())
}

async fn peek_takes_nothing<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    server.write_all(b"here").await.unwrap();
    let mut buf = [0; 4];
    while client.peek(&mut buf).await.unwrap() < 4 {}
    let part = seen(client.peek(&mut [0; 2]).await);
    let mut space = [0; 8];
    let mut polled = ReadBuf::new(&mut space);
    let whole = seen(poll_fn(|cx| client.poll_peek(cx, &mut polled)).await);
    let polled = String::from_utf8_lossy(polled.filled()).into_owned();
    let mut client = client;
    format!("{part}, {whole}, {polled}, {}", text(&mut client, 4).await)
}

async fn peek_waits_for_data<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let mut buf = [0; 1];
    let later = async {
        crate::support::turns(10).await;
        server.write_all(b"!").await.unwrap();
    };
    let (count, ()) = tokio::join!(client.peek(&mut buf), later);
    seen(count)
}

async fn peek_at_the_end<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    server.shutdown().await.unwrap();
    let peeked = seen(client.peek(&mut [0; 4]).await);
    format!("{peeked}, {}", read(&mut client).await)
}

async fn peek_into_an_empty_buffer<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    server.write_all(b"!").await.unwrap();
    client.readable().await.unwrap();
    seen(client.peek(&mut []).await)
}
