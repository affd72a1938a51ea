//! Handles and their tasks: the budget of cooperative scheduling, and wakers that own the task's
//! data.

use std::any::Any;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::common::{VERSIONS, pair, streams};
use bytes::Bytes;
use kcpx_smux::{Config, Session};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, duplex};
use tokio::task::yield_now;

/// More ready items than a task's budget, which Tokio does not document: 128 units.
const READY: usize = 1_000;
const BUDGET: usize = 128;

/// Asserts that a task that calls `work` in a loop does so fewer than [`READY`] times in one poll.
async fn assert_yields(what: &str, mut work: impl AsyncFnMut()) {
    // Start with a full budget.
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

#[tokio::test]
async fn busy_streams_yield() {
    for version in VERSIONS {
        let (client, server) = pair(version);
        let (mut stream, mut peer) = streams(&client, &server).await;
        stream.write_all(&[7; 4 * READY]).await.unwrap();
        stream.flush().await.unwrap();
        while server.stats().payload_received < 4 * READY as u64 {
            yield_now().await;
        }
        assert_yields("read", async || assert_eq!(peer.read_u8().await.unwrap(), 7)).await;
        let (mut reader, mut writer) = peer.into_split();
        assert_yields("OwnedReadHalf", async || assert_eq!(reader.read_u8().await.unwrap(), 7))
            .await;
        assert_yields("write", async || writer.write_all(b"x").await.unwrap()).await;
        assert_yields("write_chunk", async || {
            writer.write_chunk(&mut Bytes::from_static(b"x")).await.unwrap();
        })
        .await;
        assert_yields("write_from", async || {
            assert_eq!(writer.write_from(&mut &b"x"[..]).await.unwrap(), 1);
        })
        .await;
        // The end, read repeatedly.
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).await.unwrap();
        assert_yields("read_chunk", async || {
            assert!(reader.read_chunk().await.unwrap().is_empty())
        })
        .await;
    }
}

#[tokio::test]
async fn busy_accept_loops_yield() {
    for version in VERSIONS {
        let (client, server) = pair(version);
        let mut opened = Vec::new();
        while opened.len() < 2 * (BUDGET + 1) {
            opened.push(client.open_stream().await.unwrap());
        }
        while server.num_streams() < opened.len() {
            yield_now().await;
        }
        assert_yields("accept_stream", async || drop(server.accept_stream().await.unwrap())).await;
        assert_yields("poll_accept", async || {
            drop(poll_fn(|cx| server.poll_accept(cx)).await.unwrap());
        })
        .await;
        client.close().await.unwrap();
        server.closed().await;
        while server.accept_stream().await.is_ok() {}
        assert_yields("accept after the end", async || drop(server.accept_stream().await)).await;
    }
}

/// The waker of an executor that keeps a task while it has wakers: the last one drops the task's
/// data.
struct Owner(#[expect(dead_code, reason = "it is there to be dropped")] Mutex<Box<dyn Any + Send>>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

fn owner(owned: impl Any + Send) -> Waker {
    Arc::new(Owner(Mutex::new(Box::new(owned)))).into()
}

/// Fails if `registers` deadlocks, in which a second task replaces one that owns a handle.
fn assert_ends(what: &'static str, registers: impl AsyncFnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(registers());
        done.send(()).unwrap();
    });
    assert_eq!(
        is_done.recv_timeout(Duration::from_secs(60)),
        Ok(()),
        "{what} drops it under its lock"
    );
}

/// Polls first as a task that owns `owned`, then as another one. Both wait.
fn poll_twice<T>(owned: impl Any + Send, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) {
    let first = owner(owned);
    assert!(poll(&mut Context::from_waker(&first)).is_pending());
    drop(first);
    assert!(poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn waker_that_owns_a_handle_is_dropped_without_a_lock() {
    assert_ends("read", async || {
        let (client, server) = pair(VERSIONS[1]);
        let (stream, _peer) = streams(&client, &server).await;
        let (mut reader, writer) = stream.into_split();
        poll_twice(writer, |cx| Pin::new(&mut reader).poll_read(cx, &mut ReadBuf::new(&mut [0])));
    });
    assert_ends("write", async || {
        let (io, _carrier) = duplex(64);
        let session = Session::client(io, Config::new().send_buffer(1)).unwrap();
        let (reader, mut writer) = session.open_stream().await.unwrap().into_split();
        let full = poll_fn(|cx| Pin::new(&mut writer).poll_write(cx, b"x")).await;
        assert_eq!(full.unwrap(), 1);
        poll_twice(reader, |cx| {
            Pin::new(&mut writer).poll_write_vectored(cx, &[IoSlice::new(b"x")])
        });
    });
    for flushes in [true, false] {
        assert_ends("flush or shutdown", async move || {
            let (io, _carrier) = duplex(64);
            let session = Session::client(io, Config::new()).unwrap();
            let (reader, mut writer) = session.open_stream().await.unwrap().into_split();
            let written = poll_fn(|cx| Pin::new(&mut writer).poll_write(cx, b"x")).await;
            assert_eq!(written.unwrap(), 1);
            poll_twice(reader, |cx| match flushes {
                true => Pin::new(&mut writer).poll_flush(cx),
                false => Pin::new(&mut writer).poll_shutdown(cx),
            });
        });
    }
    assert_ends("accept", async || {
        let (io, _carrier) = duplex(64);
        let (session, driver) = Session::server_with_driver(io, Config::new()).unwrap();
        let first = owner(driver);
        assert!(session.poll_accept(&mut Context::from_waker(&first)).is_pending());
        drop(first);
        // The driver is gone then, and the session has ended.
        let accepted = session.poll_accept(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(accepted, Poll::Ready(Err(_))));
    });
    assert_ends("the driver", async || {
        let (io, _carrier) = duplex(64);
        let (session, driver) = Session::server_with_driver(io, Config::new()).unwrap();
        let mut driver = pin!(driver);
        poll_twice(session, |cx| driver.as_mut().poll(cx));
    });
}
