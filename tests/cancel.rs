//! Futures that are dropped halfway lose nothing: every await of the public API, in `select!`.

mod common;

use std::collections::HashSet;
use std::future::Future;
use std::io::IoSlice;

use common::{Pair, assert_same, bytes, listener, on_both_runtimes, pair, read, turns, until};
use kcpx::{Config, Endpoint, KcpStream, Mode, OwnedReadHalf, OwnedWriteHalf};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

/// Drops futures that are not ready when they are first polled, and with each one that was dropped
/// gives the next more time, so that one is ready in the end.
#[derive(Default)]
struct Impatience {
    calls: usize,
    patience: usize,
    dropped: usize,
}

impl Impatience {
    /// `None` if the future was dropped.
    async fn with<F: Future>(&mut self, future: F) -> Option<F::Output> {
        self.calls += 1;
        tokio::select! {
            biased;
            output = future => {
                self.patience = 0;
                Some(output)
            }
            () = turns(self.patience) => {
                self.patience = 2 * self.patience + 1;
                self.dropped += 1;
                None
            }
        }
    }
}

/// Small, so that writers wait.
fn small() -> Config {
    let mut config = Config::new().windows(8, 8);
    (config.send_buffer, config.recv_buffer) = (4_096, 4_096);
    config
}

#[test]
fn reads_lose_nothing() {
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
            let mut impatience = Impatience::default();
            let (mut got, mut buf) = (Vec::new(), [0; 500]);
            while got.len() < data.len() {
                match impatience.calls % 6 {
                    0 => {
                        if let Some(count) = impatience.with(server.read(&mut buf)).await {
                            got.extend_from_slice(&buf[..count.unwrap()]);
                        }
                    }
                    1 => {
                        if let Some(chunk) = impatience.with(server.read_chunk()).await {
                            got.extend_from_slice(&chunk.unwrap());
                        }
                    }
                    2 => {
                        if let Some(chunk) = impatience.with(server.fill_buf()).await {
                            let count = chunk.unwrap().len().min(300);
                            got.extend_from_slice(&server.fill_buf().await.unwrap()[..count]);
                            server.consume(count);
                        }
                    }
                    3 => {
                        if let Some(count) = impatience.with(server.peek(&mut buf)).await {
                            assert!(data[got.len()..].starts_with(&buf[..count.unwrap()]));
                        }
                    }
                    4 => {
                        if impatience.with(server.readable()).await.is_some() {
                            let count = server.try_read(&mut buf).unwrap();
                            got.extend_from_slice(&buf[..count]);
                        }
                    }
                    _ => {
                        let mut more = Vec::new();
                        if impatience.with(server.read_buf(&mut more)).await.is_some() {
                            got.extend_from_slice(&more);
                        }
                    }
                }
            }
            (got, impatience.dropped)
        };
        let ((), (got, dropped)) = tokio::join!(send, receive);
        assert_same(&got, &data);
        assert!(dropped > 0);
    });
}

#[test]
fn writes_commit_what_they_say_and_nothing_else() {
    on_both_runtimes(|| async {
        let Pair { mut client, mut server, listener: _listener } = pair(small()).await;
        let data = bytes(2, 300_000);
        let send = async {
            let (mut impatience, mut rest) = (Impatience::default(), &data[..]);
            while !rest.is_empty() {
                let some = &rest[..rest.len().min(5_000)];
                let written = match impatience.calls % 4 {
                    0 => impatience.with(client.write(some)).await,
                    1 => {
                        let slices = some.chunks(999).map(IoSlice::new).collect::<Vec<_>>();
                        impatience.with(client.write_vectored(&slices)).await
                    }
                    2 => {
                        let ready = impatience.with(client.writable()).await;
                        ready.map(|ready| ready.and_then(|()| client.try_write(some)))
                    }
                    _ => impatience.with(client.flush()).await.map(|flushed| flushed.map(|()| 0)),
                };
                rest = &rest[written.map_or(0, Result::unwrap)..];
            }
            impatience.dropped
        };
        let (dropped, got) = tokio::join!(send, read(&mut server, data.len()));
        assert_same(&got, &data);
        assert!(dropped > 0);
    });
}

#[test]
fn messages_go_whole_or_not_at_all() {
    on_both_runtimes(|| async {
        let config = small().mode(Mode::Message);
        let Pair { mut client, mut server, listener: _listener } = pair(config).await;
        let messages: Vec<_> = (0..200).map(|seed| bytes(seed, 1 + 37 * seed as usize)).collect();
        let send = async {
            let mut impatience = Impatience::default();
            for message in &messages {
                let sent = loop {
                    if let Some(sent) = impatience.with(client.send_message(message)).await {
                        break sent;
                    }
                };
                sent.unwrap();
            }
            impatience.dropped
        };
        let receive = async {
            let (mut impatience, mut got) = (Impatience::default(), Vec::new());
            while got.len() < messages.len() {
                if let Some(message) = impatience.with(server.recv_message()).await {
                    got.push(message.unwrap());
                }
            }
            (got, impatience.dropped)
        };
        let (dropped_sends, (got, dropped_receives)) = tokio::join!(send, receive);
        for (got, message) in got.iter().zip(&messages) {
            assert_same(got, message);
        }
        assert!(dropped_sends > 0 && dropped_receives > 0);
    });
}

#[test]
fn owned_halves_lose_nothing() {
    async fn receive(mut reader: OwnedReadHalf, len: usize) -> Vec<u8> {
        let (mut impatience, mut got) = (Impatience::default(), Vec::new());
        let mut buf = [0; 100];
        while got.len() < len {
            match impatience.calls % 3 {
                0 => {
                    if let Some(chunk) = impatience.with(reader.read_chunk()).await {
                        got.extend_from_slice(&chunk.unwrap());
                    }
                }
                1 => drop(impatience.with(reader.peek(&mut buf)).await),
                _ => {
                    if let Some(count) = impatience.with(reader.read(&mut buf)).await {
                        got.extend_from_slice(&buf[..count.unwrap()]);
                    }
                }
            }
        }
        got
    }
    async fn send(mut writer: OwnedWriteHalf, data: &[u8]) {
        let (mut impatience, mut rest) = (Impatience::default(), data);
        while !rest.is_empty() {
            let written = impatience.with(writer.write(rest)).await;
            rest = &rest[written.map_or(0, Result::unwrap)..];
        }
        let shut = loop {
            if let Some(shut) = impatience.with(writer.shutdown()).await {
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
fn accepting_loses_no_conversation() {
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
            let (mut impatience, mut servers) = (Impatience::default(), Vec::new());
            while servers.len() < 50 {
                let server = if impatience.calls % 2 == 0 {
                    impatience.with(listener.accept()).await.map(|one| one.unwrap().0)
                } else {
                    impatience.with(listener.incoming().next()).await.map(Result::unwrap)
                };
                servers.extend(server);
            }
            (servers, impatience.dropped)
        };
        let (clients, (servers, dropped)) = tokio::join!(dial, accept);
        let conv_of =
            |streams: &[KcpStream]| streams.iter().map(KcpStream::conv).collect::<HashSet<_>>();
        assert_eq!(conv_of(&clients), conv_of(&servers));
        assert!(dropped > 0);
    });
}

#[test]
fn a_connect_that_nobody_waited_for_leaves_nothing_behind() {
    on_both_runtimes(|| async {
        let listener = listener(Config::new()).await;
        let addr = listener.local_addr().unwrap();
        let endpoint = Endpoint::bind_with("127.0.0.1:0", Config::new()).await.unwrap();
        let (mut impatience, mut streams) = (Impatience::default(), Vec::new());
        while streams.len() < 20 {
            streams.extend(impatience.with(endpoint.connect(addr)).await.map(Result::unwrap));
        }
        assert!(impatience.dropped > 0);
        until(|| endpoint.stats().current_connections == 20).await;
        drop(streams);
        until(|| endpoint.stats().current_connections == 0).await;
        assert_eq!(listener.stats().passive_opens, 0);
        // The same with a socket for each.
        let mut stream = loop {
            if let Some(stream) = impatience.with(KcpStream::connect(addr)).await {
                break stream.unwrap();
            }
        };
        stream.write_all(b"!").await.unwrap();
        drop(listener.accept().await.unwrap());
    });
}

#[test]
fn whoever_waits_for_the_other_end_may_stop_and_start_again() {
    on_both_runtimes(|| async {
        let Pair { client, mut server, listener } = pair(Config::new()).await;
        drop(client);
        let mut client = KcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let data = bytes(4, 1_000_000);
        let mut impatience = Impatience::default();
        assert!(impatience.with(client.established()).await.is_none());
        let accept = async {
            let (mut other, _) = listener.accept().await.unwrap();
            let got = read(&mut other, data.len()).await;
            (other, got)
        };
        let send = async {
            client.write_all(&data).await.unwrap();
            client.established().await.unwrap();
            let shut = loop {
                if let Some(shut) = impatience.with(client.shutdown()).await {
                    break shut;
                }
            };
            shut.unwrap();
            let endpoint = client.endpoint();
            drop(client);
            while impatience.with(endpoint.wait_idle()).await.is_none() {}
            while impatience.with(listener.wait_idle()).await.is_none() {}
        };
        let ((), (_other, got)) = tokio::join!(send, accept);
        assert_same(&got, &data);
        assert!(impatience.dropped > 0);
        assert!(server.write(b"nobody is left").await.is_ok());
    });
}
