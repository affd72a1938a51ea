//! Helpers of the tests of the public API.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use chacha20::ChaCha8Rng;
use kcpx::{Config, ConnectionError, KcpListener, KcpStream};
use rand_core::{Rng as _, SeedableRng as _};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

#[cfg(all(target_os = "linux", not(loom)))]
pub(crate) mod host;

/// Fails a test that hangs. No test depends on how long anything takes.
const GUARD: Duration = Duration::from_secs(120);

/// Runs a test on a runtime of one thread and on a runtime of several.
pub(crate) fn on_both_runtimes<F: Future<Output = ()>>(test: impl Fn() -> F) {
    println!("current_thread");
    one_thread().block_on(guarded(test()));
    println!("multi_thread");
    two_threads().block_on(guarded(test()));
}

pub(crate) fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

pub(crate) fn two_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Fails after [`GUARD`].
pub(crate) async fn guarded<F: Future>(future: F) -> F::Output {
    timeout(GUARD, future).await.expect("nothing happened for two minutes")
}

/// Polls `condition` until it holds.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Lets other tasks run `turns` times.
pub(crate) async fn turns(turns: usize) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

/// True if the first poll of the future is pending.
pub(crate) async fn is_pending<F: Future>(future: F) -> bool {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// A connection over loopback, with its listener.
pub(crate) struct Pair {
    pub(crate) client: KcpStream,
    pub(crate) server: KcpStream,
    pub(crate) listener: KcpListener,
}

/// Opens a connection with `config` at both ends. The server has read the byte that opened it.
pub(crate) async fn pair(config: Config) -> Pair {
    let listener = listener(config.clone()).await;
    let addr = listener.local_addr().expect("an address");
    let (client, server) = open(&listener, addr, config).await;
    Pair { client, server, listener }
}

/// Opens another connection to `listener`, which must accept no other in the meantime.
pub(crate) async fn open(
    listener: &KcpListener,
    addr: SocketAddr,
    config: Config,
) -> (KcpStream, KcpStream) {
    let mut client = KcpStream::connect_with(addr, config).await.expect("a stream");
    client.write_all(b"!").await.expect("the first byte");
    let (mut server, peer) = listener.accept().await.expect("a connection");
    assert_eq!(peer.port(), client.local_addr().expect("an address").port());
    assert_eq!(server.read_u8().await.expect("the first byte"), b'!');
    // Out-of-band datagrams are received from validated peers only.
    server.established().await.expect("a validated client");
    (client, server)
}

pub(crate) async fn listener(config: Config) -> KcpListener {
    KcpListener::bind_with("127.0.0.1:0", config).await.expect("a listener")
}

/// A peer that never answers.
pub(crate) async fn silent_peer() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.expect("a socket")
}

/// `len` random bytes, determined by `seed`.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Reads `len` bytes.
pub(crate) async fn read(reader: &mut (impl AsyncRead + Unpin), len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    reader.read_exact(&mut buf).await.expect("bytes");
    buf
}

/// Compares, and prints only the first difference.
#[track_caller]
pub(crate) fn assert_same(got: &[u8], expected: &[u8]) {
    let place = got.iter().zip(expected).position(|(got, expected)| got != expected);
    assert_eq!(place, None, "first difference, of {} and {} bytes", got.len(), expected.len());
    assert_eq!(got.len(), expected.len(), "the beginning is the same");
}

/// Returns the [`ConnectionError`] inside the error of a read or a write.
#[track_caller]
pub(crate) fn cause<T>(result: io::Result<T>) -> ConnectionError {
    let error = result.err().expect("an error");
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<ConnectionError>());
    let cause = *cause.expect("a ConnectionError inside");
    assert_eq!(error.kind(), cause.kind());
    cause
}

pub(crate) const PUSH: u8 = 81;
pub(crate) const ACK: u8 = 82;

/// A segment in its wire format.
pub(crate) fn segment(conv: u32, command: u8, sn: u32, una: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = conv.to_le_bytes().to_vec();
    out.extend([command, 0]);
    out.extend(128_u16.to_le_bytes());
    let len = u32::try_from(payload.len()).expect("a short payload");
    for field in [0, sn, una, len] {
        out.extend(field.to_le_bytes());
    }
    out.extend(payload);
    out
}
