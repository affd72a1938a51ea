//! Every await of the public API can be cancelled in `select!` without loss.

use std::collections::HashSet;
use std::future::Future;
use std::io::{ErrorKind, IoSlice};

use crate::common::{
    Pair, assert_same, bytes, is_pending, listener, on_both_runtimes, pair, read, turns, until,
};
use kcpx::{Config, Endpoint, KcpStream, Mode, OwnedReadHalf, OwnedWriteHalf};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

/// Cancels futures that are not ready in time. Each cancellation doubles the turns for the next future, so
/// one completes in the end.
#[derive(Default)]
struct Canceller {
    calls: usize,
    turns_allowed: usize,
    dropped: usize,
}

impl Canceller {
    /// Returns `None` if it cancelled the future.
    async fn with<F: Future>(&mut self, future: F) -> Option<F::Output> {
        self.calls += 1;
        tokio::select! {
            biased;
            output = future => {
                self.turns_allowed = 0;
                Some(output)
            }
            () = turns(self.turns_allowed) => {
                self.turns_allowed = 2 * self.turns_allowed + 1;
                self.dropped += 1;
                None
            }
        }
    }
}

/// Small windows and buffers, so that writers wait.
fn small() -> Config {
    Config::new().windows(8, 8).send_buffer(4_096).recv_buffer(4_096)
}

#[test]
fn cancelled_reads_lose_nothing() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener: _listener } = pair(Config::new()).await;
        let data = bytes(1, 300_000);
        let send = async {
            for piece in data.chunks(777) {
                client.write_all(piece).await.unwrap();
                turns(3).await;
            }
        };
        let receive = async {
            let mut canceller = Canceller::default();
            let (mut got, mut buf) = (Vec::new(), [0; 500]);
            while got.len() < data.len() {
                match canceller.calls % 6 {
                    0 => {
                        if let Some(count) = canceller.with(server.read(&mut buf)).await {
                            got.extend_from_slice(&buf[..count.unwrap()]);
                        }
                    }
                    1 => {
                        if let Some(chunk) = canceller.with(server.read_chunk()).await {
                            got.extend_from_slice(&chunk.unwrap());
                        }
                    }
                    2 => {
                        let (mut half, _) = server.split();
                        if let Some(chunk) = canceller.with(half.fill_buf()).await {
                            let count = chunk.unwrap().len().min(300);
                            got.extend_from_slice(&half.fill_buf().await.unwrap()[..count]);
                            half.consume(count);
                        }
                    }
                    3 => {
                        if let Some(count) = canceller.with(server.peek(&mut buf)).await {
                            assert!(data[got.len()..].starts_with(&buf[..count.unwrap()]));
                        }
                    }
                    4 => {
                        if canceller.with(server.readable()).await.is_some() {
                            let count = server.try_read(&mut buf).unwrap();
                            got.extend_from_slice(&buf[..count]);
                        }
                    }
                    _ => {
                        let mut more = Vec::new();
                        if canceller.with(server.read_buf(&mut more)).await.is_some() {
                            got.extend_from_slice(&more);
                        }
                    }
                }
            }
            (got, canceller.dropped)
        };
        let ((), (got, dropped)) = tokio::join!(send, receive);
        assert_same(&got, &data);
        assert!(dropped > 0);
    });
}

/// Maps `WouldBlock` to 0: readiness for writing lasts until a write would block.
fn or_full(written: std::io::Result<usize>) -> std::io::Result<usize> {
    written.or_else(|error| if error.kind() == ErrorKind::WouldBlock { Ok(0) } else { Err(error) })
}

#[test]
fn cancelled_writes_commit_exactly_what_they_report() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener: _listener } = pair(small()).await;
        let data = bytes(2, 300_000);
        let send = async {
            let (mut canceller, mut rest) = (Canceller::default(), &data[..]);
            while !rest.is_empty() {
                let some = &rest[..rest.len().min(5_000)];
                let written = match canceller.calls % 4 {
                    0 => canceller.with(client.write(some)).await,
                    1 => {
                        let slices = some.chunks(999).map(IoSlice::new).collect::<Vec<_>>();
                        canceller.with(client.write_vectored(&slices)).await
                    }
                    2 => {
                        let ready = canceller.with(client.writable()).await;
                        ready.map(|ready| ready.and_then(|()| or_full(client.try_write(some))))
                    }
                    _ => canceller.with(client.flush()).await.map(|flushed| flushed.map(|()| 0)),
                };
                rest = &rest[written.map_or(0, Result::unwrap)..];
            }
            canceller.dropped
        };
        let (dropped, got) = tokio::join!(send, read(&mut server, data.len()));
        assert_same(&got, &data);
        assert!(dropped > 0);
    });
}

#[test]
fn cancelled_messages_are_sent_whole_or_not_at_all() {
    on_both_runtimes(|| async {
        let config = small().mode(Mode::Message);
        let Pair { mut client, mut server, listener: _listener } = pair(config).await;
        let messages: Vec<_> = (0..200).map(|seed| bytes(seed, 1 + 37 * seed as usize)).collect();
        let send = async {
            let mut canceller = Canceller::default();
            for message in &messages {
                let sent = loop {
                    if let Some(sent) = canceller.with(client.send_message(message)).await {
                        break sent;
                    }
                };
                sent.unwrap();
            }
            canceller.dropped
        };
        let receive = async {
            let (mut canceller, mut got) = (Canceller::default(), Vec::new());
            while got.len() < messages.len() {
                if let Some(message) = canceller.with(server.recv_message()).await {
                    got.push(message.unwrap());
                }
            }
            (got, canceller.dropped)
        };
        let (dropped_sends, (got, dropped_receives)) = tokio::join!(send, receive);
        for (got, message) in got.iter().zip(&messages) {
            assert_same(got, message);
        }
        assert!(dropped_sends > 0 && dropped_receives > 0);
    });
}

#[test]
fn cancelled_calls_of_owned_halves_lose_nothing() {
    async fn receive(mut reader: OwnedReadHalf, len: usize) -> Vec<u8> {
        let (mut canceller, mut got) = (Canceller::default(), Vec::new());
        let mut buf = [0; 100];
        while got.len() < len {
            match canceller.calls % 3 {
                0 => {
                    if let Some(chunk) = canceller.with(reader.read_chunk()).await {
                        got.extend_from_slice(&chunk.unwrap());
                    }
                }
                1 => drop(canceller.with(reader.peek(&mut buf)).await),
                _ => {
                    if let Some(count) = canceller.with(reader.read(&mut buf)).await {
                        got.extend_from_slice(&buf[..count.unwrap()]);
                    }
                }
            }
        }
        got
    }
    async fn send(mut writer: OwnedWriteHalf, data: &[u8]) {
        let (mut canceller, mut rest) = (Canceller::default(), data);
        while !rest.is_empty() {
            let written = canceller.with(writer.write(rest)).await;
            rest = &rest[written.map_or(0, Result::unwrap)..];
        }
        let shut = loop {
            if let Some(shut) = canceller.with(writer.shutdown()).await {
                break shut;
            }
        };
        shut.unwrap();
    }
    on_both_runtimes(|| async {
        let Pair { client, server, listener: _listener } = pair(small()).await;
        let data = bytes(3, 200_000);
        let (_client_reads, writer) = client.into_split();
        let (reader, _server_writes) = server.into_split();
        let ((), got) = tokio::join!(send(writer, &data), receive(reader, data.len()));
        assert_same(&got, &data);
    });
}

#[test]
fn cancelled_accepts_lose_no_connection() {
    on_both_runtimes(|| async {
        let listener = listener(Config::new()).await;
        let addr = listener.local_addr().unwrap();
        let dialling = Endpoint::bind_with("127.0.0.1:0", Config::new()).await.unwrap();
        let dial = async {
            let mut clients = Vec::new();
            for _ in 0..50 {
                let mut client = dialling.connect(addr).await.unwrap();
                client.write_all(b"!").await.unwrap();
                clients.push(client);
                turns(2).await;
            }
            clients
        };
        let accept = async {
            let (mut canceller, mut servers) = (Canceller::default(), Vec::new());
            while servers.len() < 50 {
                let server = if canceller.calls % 2 == 0 {
                    canceller.with(listener.accept()).await.map(|one| one.unwrap().0)
                } else {
                    canceller.with(listener.incoming().next()).await.map(Result::unwrap)
                };
                servers.extend(server);
            }
            (servers, canceller.dropped)
        };
        let (clients, (servers, dropped)) = tokio::join!(dial, accept);
        let conv_of =
            |streams: &[KcpStream]| streams.iter().map(KcpStream::conv).collect::<HashSet<_>>();
        assert_eq!(conv_of(&clients), conv_of(&servers));
        assert!(dropped > 0);
    });
}

#[test]
fn cancelled_connect_leaves_nothing_behind() {
    on_both_runtimes(|| async {
        let listener = listener(Config::new()).await;
        let addr = listener.local_addr().unwrap();
        let early = Config::new().early_data(true);
        let endpoint = Endpoint::bind_with("127.0.0.1:0", early.clone()).await.unwrap();
        let (mut canceller, mut streams) = (Canceller::default(), Vec::new());
        while streams.len() < 20 {
            streams.extend(canceller.with(endpoint.connect(addr)).await.map(Result::unwrap));
        }
        assert!(canceller.dropped > 0);
        until(|| endpoint.stats().connections.current == 20).await;
        drop(streams);
        until(|| endpoint.stats().connections.current == 0).await;
        // A `connect` that waits for the handshake.
        let waiting = Endpoint::bind_with("127.0.0.1:0", Config::new()).await.unwrap();
        for polls in 1..10 {
            let mut connect = std::pin::pin!(waiting.connect(addr));
            for _ in 0..polls {
                if !is_pending(connect.as_mut()).await {
                    break;
                }
                turns(1).await;
            }
        }
        until(|| waiting.stats().connections.current == 0).await;
        // With a new socket for each `connect`.
        let mut stream = loop {
            if let Some(stream) = canceller.with(KcpStream::connect_with(addr, early.clone())).await
            {
                break stream.unwrap();
            }
        };
        stream.write_all(b"!").await.unwrap();
        drop(listener.accept().await.unwrap());
    });
}

#[test]
fn cancelled_shutdown_established_and_wait_idle_can_be_called_again() {
    on_both_runtimes(|| async {
        let Pair { client, mut server, listener } = pair(Config::new()).await;
        drop(client);
        let (addr, early) = (listener.local_addr().unwrap(), Config::new().early_data(true));
        let mut client = KcpStream::connect_with(addr, early).await.unwrap();
        let data = bytes(4, 1_000_000);
        let mut canceller = Canceller::default();
        assert!(canceller.with(client.established()).await.is_none());
        let accept = async {
            let (mut other, _) = listener.accept().await.unwrap();
            let got = read(&mut other, data.len()).await;
            (other, got)
        };
        let send = async {
            client.write_all(&data).await.unwrap();
            client.established().await.unwrap();
            let shut = loop {
                if let Some(shut) = canceller.with(client.shutdown()).await {
                    break shut;
                }
            };
            shut.unwrap();
            let endpoint = client.endpoint();
            drop(client);
            while canceller.with(endpoint.wait_idle()).await.is_none() {}
            while canceller.with(listener.wait_idle()).await.is_none() {}
        };
        let ((), (_other, got)) = tokio::join!(send, accept);
        assert_same(&got, &data);
        assert!(canceller.dropped > 0);
        assert!(server.write(b"no reader").await.is_ok());
    });
}
