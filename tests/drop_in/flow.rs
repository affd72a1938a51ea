//! Transfers: sizes, slow readers, and the ways to read and write.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::bytes::{Buf, BytesMut};
use tokio::io::{
    AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter,
    copy_bidirectional,
};
use tokio::time::sleep;

use crate::support::{
    Observation, at_most, behaviours, bytes, pair, pair_with, read, rest, same, seen, text,
};
use crate::transport::{Stream, Transport};

behaviours!(
    large_write,
    both_ways_at_once,
    backpressure,
    small_writes,
    vectored_write,
    vectored_tries,
    read_into_an_empty_buffer,
    write_of_an_empty_buffer,
    empty_write_is_no_end,
    lines,
    buffered_writer,
    copy_bidirectional_ends,
    copy_bidirectional_passes_a_reset_on,
    read_exact_past_the_end,
    read_to_string,
    take_leaves_the_rest,
    write_all_buf,
    read_buf_appends,
    copied_from_a_reader,
);

async fn large_write<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let data = bytes(16 << 20);
    let write = async {
        client.write_all(&data).await.unwrap();
        client.shutdown().await.unwrap();
    };
    tokio::join!(write, rest(&mut server, &data)).1
}

async fn both_ways_at_once<T: Transport>() -> Observation {
    let (client, server) = pair::<T>().await;
    let data = bytes(4 << 20);
    let side = async |stream: T::Stream| {
        let (mut reader, mut writer) = stream.into_split();
        let write = async {
            writer.write_all(&data).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        tokio::join!(write, rest(&mut reader, &data)).1
    };
    let (up, down) = tokio::join!(side(client), side(server));
    format!("{up}, {down}")
}

async fn backpressure<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let data = bytes(64 << 20);
    let written = AtomicUsize::new(0);
    let write = async {
        while written.load(Ordering::Relaxed) < data.len() {
            let count = client.write(&data[written.load(Ordering::Relaxed)..]).await.unwrap();
            written.fetch_add(count, Ordering::Relaxed);
        }
        drop(client);
    };
    let read = async {
        // A writer without backpressure would finish in this time. A blocked writer never does.
        let mut before = usize::MAX;
        while before != written.load(Ordering::Relaxed) {
            before = written.load(Ordering::Relaxed);
            sleep(Duration::from_millis(50)).await;
        }
        let stalled = written.load(Ordering::Relaxed) < data.len();
        format!("stalls: {stalled}, {}", rest(&mut server, &data).await)
    };
    tokio::join!(write, read).1
}

async fn small_writes<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let data = bytes(5_000);
    let write = async {
        for byte in &data {
            client.write_u8(*byte).await.unwrap();
        }
        drop(client);
    };
    tokio::join!(write, rest(&mut server, &data)).1
}

async fn vectored_write<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let gathers = client.is_write_vectored();
    let parts = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two")];
    let count = seen(client.write_vectored(&parts).await);
    format!("{gathers}, {count}, {}", text(&mut server, 7).await)
}

async fn vectored_tries<T: Transport>() -> Observation {
    let (client, server) = pair::<T>().await;
    client.writable().await.unwrap();
    let parts = [IoSlice::new(b"one "), IoSlice::new(b"two")];
    let written = seen(client.try_write_vectored(&parts));
    while server.peek(&mut [0; 7]).await.unwrap() < 7 {}
    let (mut first, mut second) = ([0; 4], [0; 8]);
    let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    let got = seen(server.try_read_vectored(&mut bufs));
    let nothing = seen(server.try_read_vectored(&mut [IoSliceMut::new(&mut [0])]));
    let (first, second) = (String::from_utf8_lossy(&first), String::from_utf8_lossy(&second[..3]));
    format!("{written}, {got}: {first}{second}, {nothing}")
}

async fn read_into_an_empty_buffer<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let before = at_most(1, server.read(&mut [])).await;
    let before = before.map_or_else(|| "waits".to_owned(), seen);
    client.write_all(b"here").await.unwrap();
    server.readable().await.unwrap();
    let after = seen(server.read(&mut []).await);
    format!("{before}, {after}, {}", text(&mut server, 4).await)
}

async fn write_of_an_empty_buffer<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let (write, tried) = (seen(client.write(b"").await), seen(client.try_write(b"")));
    client.write_all(b"here").await.unwrap();
    format!("{write}, {tried}, {}", text(&mut server, 4).await)
}

async fn empty_write_is_no_end<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.write_all(b"").await.unwrap();
    client.flush().await.unwrap();
    let later = async {
        crate::support::turns(10).await;
        client.write_all(b"here").await.unwrap();
    };
    tokio::join!(read(&mut server), later).0
}

async fn lines<T: Transport>() -> Observation {
    let (mut client, server) = pair::<T>().await;
    client.write_all(b"first\nsecond\r\nthird").await.unwrap();
    client.shutdown().await.unwrap();
    let mut lines = BufReader::new(server).lines();
    let mut got = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        got.push(line);
    }
    let left = read(&mut lines.into_inner().into_inner()).await;
    format!("{}, {left}", got.join(" "))
}

async fn buffered_writer<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let mut writer = BufWriter::new(client);
    writer.write_all(b"held back").await.unwrap();
    writer.flush().await.unwrap();
    let got = text(&mut server, 9).await;
    writer.write_all(b"bye").await.unwrap();
    writer.shutdown().await.unwrap();
    format!("{got}, {}", rest(&mut server, b"bye").await)
}

/// A client, the two streams of a proxy, and a server.
async fn proxied<T: Transport>() -> (T::Stream, [T::Stream; 2], T::Stream) {
    let listener = T::bind().await;
    let (client, inner) = pair_with::<T>(&listener).await;
    let (outer, server) = pair_with::<T>(&listener).await;
    (client, [inner, outer], server)
}

async fn copy_bidirectional_ends<T: Transport>() -> Observation {
    let (mut client, [mut inner, mut outer], mut server) = proxied::<T>().await;
    let (request, answer) = (bytes(100_000), bytes(300_000));
    let ask = async {
        client.write_all(&request).await.unwrap();
        client.shutdown().await.unwrap();
        rest(&mut client, &answer).await
    };
    let serve = async {
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        server.write_all(&answer).await.unwrap();
        drop(server);
        same(&got, &request)
    };
    let copy = copy_bidirectional(&mut inner, &mut outer);
    let (back, there, counts) = tokio::join!(ask, serve, copy);
    format!("{there}, back {back}, copied {}", seen(counts))
}

async fn copy_bidirectional_passes_a_reset_on<T: Transport>() -> Observation {
    let (client, [mut inner, mut outer], mut server) = proxied::<T>().await;
    let proxy = async {
        let result = copy_bidirectional(&mut inner, &mut outer).await;
        drop((inner, outer));
        seen(result)
    };
    let end = async {
        crate::support::turns(10).await;
        crate::support::abort::<T>(client).await;
    };
    let (copied, (), read) = tokio::join!(proxy, end, read(&mut server));
    format!("{copied}, then {read}")
}

async fn read_exact_past_the_end<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.write_all(b"short").await.unwrap();
    drop(client);
    seen(server.read_exact(&mut [0; 6]).await)
}

async fn read_to_string<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.write_all("gr\u{fc}n".as_bytes()).await.unwrap();
    drop(client);
    let mut text = String::new();
    format!("{}, {text}", seen(server.read_to_string(&mut text).await))
}

async fn take_leaves_the_rest<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.write_all(b"onetwo").await.unwrap();
    drop(client);
    let mut first = String::new();
    (&mut server).take(3).read_to_string(&mut first).await.unwrap();
    format!("{first}, {}", rest(&mut server, b"two").await)
}

async fn write_all_buf<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let mut data = Buf::chain(&b"one "[..], &b"two"[..]);
    let written = seen(client.write_all_buf(&mut data).await);
    format!("{written}, {} left, {}", data.remaining(), text(&mut server, 7).await)
}

async fn read_buf_appends<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.write_all(b"two").await.unwrap();
    let mut buf = BytesMut::from(&b"one "[..]);
    while buf.len() < 7 {
        server.read_buf(&mut buf).await.unwrap();
    }
    String::from_utf8_lossy(&buf).into_owned()
}

async fn copied_from_a_reader<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let data = bytes(1 << 20);
    let write = async {
        let copied = seen(tokio::io::copy(&mut &data[..], &mut client).await);
        client.shutdown().await.unwrap();
        copied
    };
    let (copied, got) = tokio::join!(write, rest(&mut server, &data));
    format!("{copied}, {got}")
}
