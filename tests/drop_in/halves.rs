//! Streams in two halves.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, IoSliceMut};

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, ReadBuf};

use crate::support::{Observation, behaviours, bytes, pair, read, rest, same, seen, text};
use crate::transport::{OwnedReadHalf, OwnedWriteHalf, Stream, Transport};

behaviours!(
    borrowed_halves_both_ways,
    borrowed_halves_dropped,
    owned_halves_in_two_tasks,
    owned_write_half_dropped,
    owned_read_half_dropped,
    both_owned_halves_dropped,
    write_half_forgotten,
    write_half_shut_down,
    reunite,
    reunite_of_different_streams,
    halves_know_their_addresses,
    halves_try_and_wait,
    halves_peek_and_gather,
    split_by_tokio,
);

async fn borrowed_halves_both_ways<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    let data = bytes(1 << 20);
    let (mut from_server, mut to_server) = Stream::split(&mut client);
    let (mut from_client, mut to_client) = Stream::split(&mut server);
    let (mut up, mut down) = (vec![0; data.len()], vec![0; data.len()]);
    let results = tokio::join!(
        to_server.write_all(&data),
        to_client.write_all(&data),
        from_client.read_exact(&mut up),
        from_server.read_exact(&mut down),
    );
    let written = results.0.and(results.1).is_ok();
    format!("written {written}, {} up, {} down", same(&up, &data), same(&down, &data))
}

async fn borrowed_halves_dropped<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    drop(Stream::split(&mut client));
    client.write_all(b"whole").await.unwrap();
    text(&mut server, 5).await
}

async fn owned_halves_in_two_tasks<T: Transport>() -> Observation {
    let (client, server) = pair::<T>().await;
    let (mut reader, mut writer) = client.into_split();
    let (mut from_client, mut to_client) = server.into_split();
    let echo =
        tokio::spawn(
            async move { tokio::io::copy(&mut from_client, &mut to_client).await.unwrap() },
        );
    let write = tokio::spawn(async move { writer.write_all(&bytes(1 << 20)).await });
    let back = rest(&mut reader, &bytes(1 << 20)).await;
    write.await.unwrap().unwrap();
    format!("{back}, {} copied", echo.await.unwrap())
}

async fn owned_write_half_dropped<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let (mut reader, mut writer) = client.into_split();
    writer.write_all(b"bye").await.unwrap();
    drop(writer);
    let end = rest(&mut server, b"bye").await;
    server.write_all(b"still here").await.unwrap();
    format!("{end}, {}", text(&mut reader, 10).await)
}

async fn owned_read_half_dropped<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let (reader, mut writer) = client.into_split();
    drop(reader);
    let unheard = seen(server.write_all(b"unheard").await);
    writer.write_all(b"still here").await.unwrap();
    format!("{unheard}, {}", text(&mut server, 10).await)
}

async fn both_owned_halves_dropped<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let (reader, mut writer) = client.into_split();
    writer.write_all(b"bye").await.unwrap();
    drop(reader);
    drop(writer);
    rest(&mut server, b"bye").await
}

async fn write_half_forgotten<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let (mut reader, writer) = client.into_split();
    writer.forget();
    server.write_all(b"ping").await.unwrap();
    let ping = text(&mut reader, 4).await;
    let open = seen(server.try_read(&mut [0]));
    drop(reader);
    format!("{ping}, {open}, {}", read(&mut server).await)
}

async fn write_half_shut_down<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let (reader, mut writer) = client.into_split();
    writer.write_all(b"bye").await.unwrap();
    writer.shutdown().await.unwrap();
    let end = rest(&mut server, b"bye").await;
    let late = seen(writer.write(b"x").await);
    let mut client = writer.reunite(reader).unwrap();
    let later = seen(client.write(b"x").await);
    server.write_all(b"still here").await.unwrap();
    format!("{end}, {late}, {later}, {}", text(&mut client, 10).await)
}

async fn reunite<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let (reader, writer) = client.into_split();
    let (reader, writer) = reader.reunite(writer).unwrap().into_split();
    let mut client = writer.reunite(reader).unwrap();
    client.write_all(b"there").await.unwrap();
    let there = text(&mut server, 5).await;
    server.write_all(b"back").await.unwrap();
    format!("{there}, {}", text(&mut client, 4).await)
}

async fn reunite_of_different_streams<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let (reader, writer) = client.into_split();
    let (others, _peer) = pair::<T>().await;
    let (other_reader, other_writer) = others.into_split();
    // Both calls fail, and the halves stay usable.
    let (reader, other_writer) = reader.reunite(other_writer).unwrap_err();
    let (other_reader, writer) = writer.reunite(other_reader).unwrap_err();
    drop((other_reader, other_writer));
    let mut client = reader.reunite(writer).unwrap();
    client.write_all(b"whole").await.unwrap();
    format!("refused, {}", text(&mut server, 5).await)
}

async fn halves_know_their_addresses<T: Transport>() -> Observation {
    let (client, _server) = pair::<T>().await;
    let whole = (client.local_addr().unwrap(), client.peer_addr().unwrap());
    let (reader, writer) = client.into_split();
    let reads = (reader.local_addr().unwrap(), reader.peer_addr().unwrap());
    let writes = (writer.local_addr().unwrap(), writer.peer_addr().unwrap());
    format!("{}", whole == reads && whole == writes)
}

async fn halves_try_and_wait<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let (mut reader, writer) = client.into_split();
    let nothing = seen(reader.try_read(&mut [0; 8]));
    let ready = writer.ready(Interest::WRITABLE).await.unwrap();
    writer.writable().await.unwrap();
    let written = writer.try_write(b"out").unwrap();
    let out = text(&mut server, written).await;
    server.write_all(b"in").await.unwrap();
    reader.readable().await.unwrap();
    let also = reader.ready(Interest::READABLE).await.unwrap();
    let mut buf = [0; 2];
    while reader.peek(&mut buf).await.unwrap() < 2 {}
    let mut got = Vec::with_capacity(8);
    let count = loop {
        match reader.try_read_buf(&mut got) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                reader.readable().await.unwrap();
            }
            result => break seen(result),
        }
    };
    let got = String::from_utf8_lossy(&got).into_owned();
    let ready = ready.is_writable() && also.is_readable();
    format!("{nothing}, {ready}, {out}, {count}, {got}")
}

async fn halves_peek_and_gather<T: Transport>() -> Observation {
    let (client, server) = pair::<T>().await;
    let (mut reader, _to_client) = server.into_split();
    let (_from_server, writer) = client.into_split();
    writer.writable().await.unwrap();
    let written = seen(writer.try_write_vectored(&[IoSlice::new(b"one "), IoSlice::new(b"two")]));
    while reader.peek(&mut [0; 7]).await.unwrap() < 7 {}
    let mut space = [0; 8];
    let mut polled = ReadBuf::new(&mut space);
    let peeked = seen(poll_fn(|cx| reader.poll_peek(cx, &mut polled)).await);
    let polled = String::from_utf8_lossy(polled.filled()).into_owned();
    let (mut first, mut second) = ([0; 4], [0; 3]);
    let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    let got = seen(reader.try_read_vectored(&mut bufs));
    let (first, second) = (String::from_utf8_lossy(&first), String::from_utf8_lossy(&second));
    format!("{written}, {peeked}: {polled}, {got}: {first}{second}")
}

async fn split_by_tokio<T: Transport>() -> Observation {
    let (client, mut server) = pair::<T>().await;
    let (mut reader, mut writer) = tokio::io::split(client);
    let data = bytes(200_000);
    let serve = async {
        let mut got = vec![0; data.len()];
        server.read_exact(&mut got).await.unwrap();
        server.write_all(&got).await.unwrap();
    };
    let mut back = vec![0; data.len()];
    let (written, read, ()) =
        tokio::join!(writer.write_all(&data), reader.read_exact(&mut back), serve);
    written.unwrap();
    read.unwrap();
    let mut client = reader.unsplit(writer);
    client.shutdown().await.unwrap();
    format!("{}, {}", same(&back, &data), crate::support::read(&mut server).await)
}
