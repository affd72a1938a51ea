//! Streams that end with a failure.

use std::io;

use tokio::io::AsyncWriteExt;

use crate::support::{Observation, abort, behaviours, pair, pair_with, read, seen, text, turns};
use crate::transport::{Listener, Stream, Transport};

behaviours!(
    abort_seen_by_a_pending_read,
    abort_seen_by_a_later_read,
    abort_seen_by_a_pending_write,
    abort_seen_by_a_later_write,
    abort_after_data,
    abort_seen_by_both_halves,
    reads_after_a_reset,
    writes_after_a_reset,
    write_after_shutdown,
    write_after_the_peer_dropped,
    write_after_the_peers_last_stream_dropped,
    shutdown_after_a_reset,
    drop_with_unread_data,
    take_error_of_a_reset,
    take_error_of_a_closed_stream,
);

async fn abort_seen_by_a_pending_read<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let end = async {
        turns(10).await;
        abort::<T>(client).await;
    };
    tokio::join!(read(&mut server), end).0
}

async fn abort_seen_by_a_later_read<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    abort::<T>(client).await;
    server.readable().await.unwrap();
    read(&mut server).await
}

/// Writes until an error.
async fn write_on(stream: &mut (impl AsyncWriteExt + Unpin), piece: &[u8]) -> io::Error {
    loop {
        if let Err(error) = stream.write_all(piece).await {
            return error;
        }
        tokio::task::yield_now().await;
    }
}

async fn abort_seen_by_a_pending_write<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let end = async {
        turns(100).await;
        abort::<T>(client).await;
    };
    let (error, ()) = tokio::join!(write_on(&mut server, &[0; 16_000]), end);
    format!("{:?}", error.kind())
}

async fn abort_seen_by_a_later_write<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    abort::<T>(client).await;
    server.readable().await.unwrap();
    seen(server.write(b"x").await)
}

async fn abort_after_data<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.write_all(b"bye").await.unwrap();
    // Wait for the bytes, since `abort` discards undelivered ones.
    let mut buf = [0; 3];
    while server.peek(&mut buf).await.unwrap() < 3 {}
    abort::<T>(client).await;
    let bytes = text(&mut server, 3).await;
    format!("{bytes}, {}", read(&mut server).await)
}

async fn abort_seen_by_both_halves<T: Transport>() -> Observation {
    let (client, server) = pair::<T>().await;
    let (mut reader, mut writer) = server.into_split();
    let end = async {
        turns(10).await;
        abort::<T>(client).await;
    };
    // The write fails too; its kind of error differs between the transports.
    let write = write_on(&mut writer, &[0; 16_000]);
    let (read, _, ()) = tokio::join!(read(&mut reader), write, end);
    let read = if read == "ConnectionReset" || read == "end" { "ended" } else { &read };
    format!("read {read}, write failed")
}

async fn reads_after_a_reset<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    abort::<T>(client).await;
    format!("{}, {}, {}", read(&mut server).await, read(&mut server).await, read(&mut server).await)
}

async fn writes_after_a_reset<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    abort::<T>(client).await;
    let first = read(&mut server).await;
    format!("read {first}, write {}", seen(server.write(b"x").await))
}

async fn write_after_shutdown<T: Transport>() -> Observation {
    let (mut client, _server) = pair::<T>().await;
    client.shutdown().await.unwrap();
    let (write, tried) = (seen(client.write(b"x").await), seen(client.try_write(b"x")));
    format!("{write}, {tried}")
}

async fn write_after_the_peer_dropped<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let (mut client, server) = pair_with::<T>(&listener).await;
    drop(server);
    let end = read(&mut client).await;
    let error = write_on(&mut client, b"x").await;
    format!("read {end}, write {:?}", error.kind())
}

/// The peer has no other open stream, so its socket closes.
async fn write_after_the_peers_last_stream_dropped<T: Transport>() -> Observation {
    let listener = T::bind_hastily().await;
    let target = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(T::connect_hastily(target), listener.accept());
    let (client, (mut server, _)) = (client.unwrap(), accepted.unwrap());
    let addr = client.local_addr().unwrap();
    drop(client);
    let end = read(&mut server).await;
    T::gone(addr).await;
    let error = write_on(&mut server, b"x").await;
    format!("read {end}, write {:?}", error.kind())
}

async fn shutdown_after_a_reset<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    abort::<T>(client).await;
    let first = read(&mut server).await;
    format!("read {first}, shutdown {}", seen(server.shutdown().await))
}

async fn drop_with_unread_data<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    server.write_all(b"unread").await.unwrap();
    client.readable().await.unwrap();
    drop(client);
    read(&mut server).await
}

async fn take_error_of_a_reset<T: Transport>() -> Observation {
    let (client, server) = pair::<T>().await;
    let kind = |stream: &T::Stream| {
        let error = stream.take_error().unwrap();
        error.map_or_else(|| "none".to_owned(), |error| format!("{:?}", error.kind()))
    };
    let before = kind(&server);
    abort::<T>(client).await;
    server.readable().await.unwrap();
    format!("{before}, {}, {}", kind(&server), kind(&server))
}

async fn take_error_of_a_closed_stream<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    tokio::try_join!(client.shutdown(), server.shutdown()).unwrap();
    let ends = tokio::join!(read(&mut client), read(&mut server));
    let errors = [client.take_error().unwrap(), server.take_error().unwrap()];
    format!("{}, {}, {errors:?}", ends.0, ends.1)
}
