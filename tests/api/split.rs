//! The halves of a stream, over loopback sockets.

use std::io::ErrorKind;

use crate::common::{
    Pair, assert_same, bytes, guarded, on_both_runtimes, open, pair, read, turns, until,
};
use kcpx::{Config, FecConfig, Mode, Redundancy};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

#[test]
fn borrowed_halves_read_and_write_concurrently() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, .. } = pair(Config::new()).await;
        let data = bytes(1, 1 << 20);
        let echo = tokio::spawn(async move {
            let mut left = 1 << 20;
            while left > 0 {
                let chunk = server.read_chunk().await.unwrap();
                server.write_all(&chunk).await.unwrap();
                left -= chunk.len();
            }
            server
        });
        {
            let (mut reader, mut writer) = client.split();
            let (sent, got) = tokio::join!(writer.write_all(&data), read(&mut reader, data.len()));
            sent.unwrap();
            assert_same(&got, &data);
            assert_eq!(reader.conv(), writer.conv());
            assert_eq!(reader.peer_addr().unwrap(), writer.peer_addr().unwrap());
        }
        // Dropping the halves leaves the stream usable.
        let mut server = guarded(echo).await.unwrap();
        client.write_all(b"whole").await.unwrap();
        assert_eq!(read(&mut server, 5).await, b"whole");
    });
}

#[test]
fn owned_halves_work_in_two_tasks_and_reunite() {
    on_both_runtimes(|| async {
        let Pair { client, mut server, listener: _listener } = pair(Config::new()).await;
        let (mut reader, mut writer) = client.into_split();
        let (up, down) = (bytes(1, 1 << 20), bytes(2, 1 << 20));
        let writes = tokio::spawn(async move {
            writer.write_all(&bytes(1, 1 << 20)).await.unwrap();
            writer
        });
        let reads = tokio::spawn(async move {
            let got = read(&mut reader, 1 << 20).await;
            (reader, got)
        });
        // Both directions fill up unless the server reads and writes concurrently.
        let (mut server_reads, mut server_writes) = server.split();
        let (got, sent) =
            tokio::join!(read(&mut server_reads, up.len()), server_writes.write_all(&down));
        sent.unwrap();
        assert_same(&got, &up);
        let (reader, got) = reads.await.unwrap();
        assert_same(&got, &down);

        let mut client = reader.reunite(writes.await.unwrap()).unwrap();
        client.write_all(b"one again").await.unwrap();
        assert_eq!(read(&mut server, 9).await, b"one again");
        let (reader, writer) = client.into_split();
        let mut client = writer.reunite(reader).unwrap();
        client.write_all(b"and again").await.unwrap();
        assert_eq!(read(&mut server, 9).await, b"and again");
    });
}

#[test]
fn reunite_of_different_streams_returns_both_halves() {
    on_both_runtimes(|| async {
        let mut first = pair(Config::new()).await;
        let addr = first.listener.local_addr().unwrap();
        let (second, mut second_server) = open(&first.listener, addr, Config::new()).await;
        let (first_reads, first_writes) = first.client.into_split();
        let (second_reads, second_writes) = second.into_split();
        let refused = first_reads.reunite(second_writes).unwrap_err();
        let text = format!(
            "the halves belong to different streams: read half of connection {} with {addr}, write \
             half of connection {} with {addr}",
            first.server.conv(),
            second_server.conv()
        );
        assert_eq!(refused.to_string(), text);
        let kcpx::ReuniteError(first_reads, second_writes) = refused;
        let mut first_client = first_reads.reunite(first_writes).unwrap();
        let mut second_client = second_writes.reunite(second_reads).unwrap();
        first_client.write_all(b"1").await.unwrap();
        second_client.write_all(b"2").await.unwrap();
        assert_eq!(read(&mut first.server, 1).await, b"1");
        assert_eq!(read(&mut second_server, 1).await, b"2");
    });
}

#[test]
fn write_half_drop_delivers_and_keeps_reading() {
    on_both_runtimes(|| async {
        let Pair { client, mut server, listener } = pair(Config::new()).await;
        let endpoint = client.endpoint();
        let (mut reader, mut writer) = client.into_split();
        let data = bytes(3, 100_000);
        writer.write_all(&data).await.unwrap();
        drop(writer);
        assert_same(&read(&mut server, data.len()).await, &data);
        endpoint.wait_idle().await;
        server.write_all(b"read on").await.unwrap();
        assert_eq!(read(&mut reader, 7).await, b"read on");
        drop(listener);
    });
}

#[test]
fn reunited_stream_stays_shut_down_for_writing() {
    on_both_runtimes(|| async {
        let Pair { client, mut server, listener: _listener } = pair(Config::new()).await;
        let (reader, mut writer) = client.into_split();
        writer.write_all(b"last").await.unwrap();
        writer.shutdown().await.unwrap();
        let mut client = reader.reunite(writer).unwrap();
        assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(read(&mut server, 4).await, b"last");
    });
}

#[test]
fn forgotten_write_half_does_not_shut_down() {
    on_both_runtimes(|| async {
        let Pair { client, mut server, listener: _listener } = pair(Config::new()).await;
        let endpoint = client.endpoint();
        let (mut reader, writer) = client.into_split();
        writer.forget();
        server.write_all(b"hello").await.unwrap();
        assert_eq!(read(&mut reader, 5).await, b"hello");
        assert_eq!(endpoint.stats().connections.current, 1);
    });
}

#[test]
fn read_half_drop_keeps_writing() {
    on_both_runtimes(|| async {
        let Pair { client, mut server, listener: _listener } = pair(Config::new()).await;
        let (reader, mut writer) = client.into_split();
        server.write_all(b"this is not read").await.unwrap();
        drop(reader);
        let data = bytes(4, 1 << 20);
        let (sent, got) = tokio::join!(writer.write_all(&data), read(&mut server, data.len()));
        sent.unwrap();
        assert_same(&got, &data);
        writer.shutdown().await.unwrap();
        assert_eq!(writer.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn drop_of_both_halves_delivers() {
    on_both_runtimes(|| async {
        let Pair { client, mut server, listener: _listener } = pair(Config::new()).await;
        let endpoint = client.endpoint();
        let (reader, mut writer) = client.into_split();
        let data = bytes(5, 200_000);
        writer.write_all(&data).await.unwrap();
        drop((reader, writer));
        assert_same(&read(&mut server, data.len()).await, &data);
        endpoint.wait_idle().await;
        drop(server);
        until(|| endpoint.stats().connections.current == 0).await;
    });
}

#[test]
fn halves_have_the_methods_of_the_stream() {
    on_both_runtimes(|| async {
        let Pair { client, server, listener: _listener } =
            pair(Config::new().mode(Mode::Message)).await;
        let (mut reader, client_writes) = client.into_split();
        let (server_reads, mut writer) = server.into_split();
        for message in [b"peek", b"read", b"copy", b"rest"] {
            writer.writable().await.unwrap();
            writer.send_message(message).await.unwrap();
        }
        assert!(writer.max_message_size() >= 1_376);
        let mut buf = [0; 8];
        assert_eq!(reader.peek(&mut buf).await.unwrap(), 4);
        assert_eq!(reader.recv_message().await.unwrap(), "peek");
        reader.readable().await.unwrap();
        assert_eq!(reader.read(&mut buf).await.unwrap(), 4);
        assert_eq!(reader.read_chunk().await.unwrap(), "copy");
        reader.readable().await.unwrap();
        assert_eq!(reader.try_read(&mut buf).unwrap(), 4);
        assert_eq!(&buf[..4], b"rest");
        assert_eq!(reader.try_read(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(writer.try_write(b"more").unwrap(), 4);
        assert_eq!(read(&mut reader, 4).await, b"more");
        assert!(reader.error().is_none());
        assert_eq!(writer.stats().sent.payload_bytes, 20);
        drop((client_writes, server_reads));
    });
}

#[test]
fn half_that_writes_does_not_see_what_there_is_to_read() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, .. } = pair(Config::new()).await;
        let refused = ErrorKind::InvalidInput;
        let (reader, writer) = client.split();
        assert!(reader.ready(Interest::WRITABLE).await.unwrap().is_writable());
        assert_eq!(writer.ready(Interest::READABLE).await.unwrap_err().kind(), refused);
        let either = Interest::READABLE | Interest::WRITABLE;
        assert!(writer.ready(either).await.unwrap().is_writable());
        server.write_all(b"!").await.unwrap();
        assert!(reader.ready(Interest::READABLE).await.unwrap().is_readable());

        let (reader, writer) = client.into_split();
        assert!(reader.ready(Interest::WRITABLE).await.unwrap().is_writable());
        assert_eq!(writer.ready(Interest::READABLE).await.unwrap_err().kind(), refused);
        let ready = reader.ready(either).await.unwrap();
        assert!(ready.is_readable() && ready.is_writable() && !ready.is_read_closed());
    });
}

#[test]
fn halves_send_and_receive_datagrams() {
    on_both_runtimes(|| async {
        let config = Config::new().redundancy(Redundancy::Fec(FecConfig::new(3, 1).unwrap()));
        let Pair { client, server, listener: _listener } = pair(config).await;
        let size = client.datagrams().max_size();
        let (reader, _to_client) = server.into_split();
        let (_from_server, writer) = client.into_split();
        assert_eq!(writer.datagrams().max_size(), size);
        assert_eq!(reader.datagrams().try_recv().unwrap_err().kind(), ErrorKind::WouldBlock);
        writer.datagrams().send(b"beside").unwrap();
        let datagram = loop {
            match reader.datagrams().try_recv() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => turns(1).await,
                result => break result.unwrap(),
            }
        };
        assert_eq!(&datagram[..], b"beside");
    });
}
