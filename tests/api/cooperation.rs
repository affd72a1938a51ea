//! Cooperative scheduling: a task that always finds a handle ready still yields to its timeouts and to other
//! tasks.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::common::{Pair, guarded, on_both_runtimes, one_thread, pair};
use kcpx::{Config, Endpoint, FecConfig, KcpListener, KcpStream, Mode, Redundancy, Shutdown};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, Interest};
use tokio::task::yield_now;
use tokio::time::timeout;

/// Items ready in a handle: more than the budget of a Tokio task, 128 units (undocumented).
const READY: usize = 1_000;
const BUDGET: usize = 128;

/// Asserts that a task that repeats `work` yields before it has done so [`READY`] times.
async fn assert_yields(what: &str, mut work: impl AsyncFnMut()) {
    // The task gets a full budget.
    yield_now().await;
    let calls = Cell::new(0);
    let mut busy = pin!(async {
        for _ in 0..READY {
            work().await;
            calls.set(calls.get() + 1);
        }
    });
    let yielded = poll_fn(|cx| Poll::Ready(busy.as_mut().poll(cx).is_pending())).await;
    println!("{what}: {} calls in a poll", calls.get());
    assert!(yielded && (1..=BUDGET).contains(&calls.get()), "{what}: {} calls", calls.get());
}

fn ok<T>(result: std::io::Result<T>) {
    result.unwrap();
}

/// A connection with [`READY`] pieces for the server to read: messages of one byte, or bytes.
async fn full(mode: Mode) -> Pair {
    let mut pair = pair(Config::new().mode(mode)).await;
    for _ in 0..READY {
        match mode {
            Mode::Message => pair.client.send_message(b"x").await.unwrap(),
            _ => pair.client.write_all(b"x").await.unwrap(),
        }
    }
    // Returns when the server has received everything.
    pair.client.shutdown().await.unwrap();
    pair
}

#[test]
fn busy_readers_yield() {
    on_both_runtimes(|| async {
        let Pair { server: mut stream, .. } = full(Mode::Stream).await;
        assert_yields("peek", async || ok(stream.peek(&mut [0]).await)).await;
        assert_yields("readable", async || stream.readable().await.unwrap()).await;
        assert_yields("ready", async || ok(stream.ready(Interest::READABLE).await)).await;
        assert_yields("read", async || ok(stream.read_u8().await)).await;
        let (mut reader, _writer) = stream.split();
        assert_yields("ReadHalf", async || ok(reader.read_u8().await)).await;
        assert_yields("fill_buf", async || {
            assert!(!reader.fill_buf().await.unwrap().is_empty());
            reader.consume(1);
        })
        .await;
        let (mut reader, _writer) = stream.into_split();
        assert_yields("OwnedReadHalf", async || ok(reader.read_u8().await)).await;

        let Pair { server: mut stream, .. } = full(Mode::Message).await;
        assert_yields("read_chunk", async || ok(stream.read_chunk().await)).await;
        assert_yields("recv_message", async || ok(stream.recv_message().await)).await;
    });
}

#[test]
fn busy_writers_yield() {
    on_both_runtimes(|| async {
        let config = Config::new().send_buffer(1 << 20);
        // A server that is dropped resets a client that goes on.
        let Pair { client: mut stream, server: _server, .. } = pair(config.clone()).await;
        assert_yields("writable", async || stream.writable().await.unwrap()).await;
        assert_yields("write", async || stream.write_all(b"x").await.unwrap()).await;
        assert_yields("write_from", async || {
            assert_eq!(stream.write_from(&mut &b"x"[..]).await.unwrap(), 1);
        })
        .await;
        let (_reader, mut writer) = stream.into_split();
        assert_yields("OwnedWriteHalf", async || writer.write_all(b"x").await.unwrap()).await;
        let Pair { client: mut stream, server: _server, .. } =
            pair(config.mode(Mode::Message)).await;
        assert_yields("send_message", async || stream.send_message(b"x").await.unwrap()).await;
    });
}

#[test]
fn busy_receivers_of_datagrams_yield() {
    on_both_runtimes(|| async {
        let config = Config::new().redundancy(Redundancy::Fec(FecConfig::new(3, 1).unwrap()));
        let Pair { client, server: mut stream, listener: _listener } = pair(config).await;
        // A first `datagrams()` call lets more than a few datagrams queue.
        let _in_use = stream.datagrams();
        // Some may be lost: send more than the readers below take.
        let mut sent = 0;
        while stream.stats().out_of_band.received < READY as u64 {
            client.datagrams().send(b"x").unwrap();
            sent += 1;
            if sent % 100 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert_yields("recv_datagram", async || ok(stream.datagrams().recv().await)).await;
        let (reader, _writer) = stream.split();
        assert_yields("ReadHalf", async || ok(reader.datagrams().recv().await)).await;
        let (reader, _writer) = stream.into_split();
        assert_yields("OwnedReadHalf", async || ok(reader.datagrams().recv().await)).await;
    });
}

/// A listener with `connections` in its backlog, and their clients.
async fn crowded(connections: usize) -> (KcpListener, Vec<KcpStream>) {
    let listener = KcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let endpoint = Endpoint::bind("127.0.0.1:0").await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..connections {
        streams.push(endpoint.connect(addr).await.unwrap());
    }
    (listener, streams)
}

#[test]
fn busy_accept_loops_yield() {
    on_both_runtimes(|| async {
        let (listener, _streams) = crowded(3 * (BUDGET + 1)).await;
        assert_yields("accept", async || ok(listener.accept().await)).await;
        let mut incoming = listener.incoming();
        assert_yields("incoming", async || ok(incoming.next().await)).await;
        assert_yields("poll_accept", async || {
            ok(poll_fn(|cx| listener.poll_accept(cx)).await);
        })
        .await;
        // Accept loops of servers continue after errors.
        assert!(listener.shutdown(Shutdown::Drain).await);
        assert_yields("accept after its end", async || drop(listener.accept().await.unwrap_err()))
            .await;
    });
}

#[test]
fn timeout_around_a_busy_reader_fires() {
    one_thread().block_on(guarded(async {
        let (listener, _streams) = crowded(1).await;
        assert!(listener.shutdown(Shutdown::Drain).await);
        let mut calls = 0_u64;
        let busy = async {
            loop {
                drop(listener.accept().await.unwrap_err());
                calls += 1;
                // Ends the test if the timeout never fires.
                assert!(calls < 50_000_000);
            }
        };
        assert!(timeout(Duration::from_millis(1), busy).await.is_err());
    }));
}
