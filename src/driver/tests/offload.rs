//! Whole endpoints over loopback on systems without GSO and GRO, or whose GSO fails while data is
//! in flight.

use std::future::Future;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;

use crate::config::Config;
use crate::driver::Driver;
use crate::driver::task::DriverTask;
use crate::endpoint::Endpoint;
use crate::listener::KcpListener;
use crate::shared::accept_queue::{AcceptHandle, AcceptQueue};
use crate::shared::requests::RequestQueue;
use crate::stream::KcpStream;
use crate::sys::UdpSocket;
use crate::sys::tests::without_gro;
use crate::testkit::rng::Rng;
use crate::util::sync::{Arc, Ordering};

/// Bytes sent in each direction.
const BYTES: usize = 2 << 20;
/// Limit for a test that hangs.
const GUARD: Duration = Duration::from_secs(120);

/// Windows that the smallest kernel buffers hold, one datagram per buffer, so that no datagram is lost.
fn config() -> Config {
    Config::new().windows(64, 64)
}

fn on_both_runtimes<F: Future<Output = ()>>(test: impl Fn() -> F) {
    let mut one = Builder::new_current_thread();
    let mut two = Builder::new_multi_thread();
    for runtime in [&mut one, two.worker_threads(2)] {
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(GUARD, test()).await.unwrap() });
    }
}

fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &config().socket).unwrap()
}

fn start(socket: UdpSocket, accept: Option<Arc<AcceptQueue>>) -> Endpoint {
    let requests = RequestQueue::new();
    let now = tokio::time::Instant::now().into_std();
    let seed = [if accept.is_some() { 1 } else { 2 }; 32];
    let driver = Driver::new(socket, config(), requests.clone(), accept, seed, now).unwrap();
    let endpoint = Endpoint::attach(requests);
    #[expect(clippy::disallowed_methods, reason = "the task under test")]
    drop(tokio::spawn(DriverTask::new(driver)));
    endpoint
}

/// Random bytes.
fn data(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    std::iter::repeat_with(|| rng.next().to_le_bytes()).flatten().take(BYTES).collect()
}

/// Writes `data` to one end; the other end reads and compares.
async fn sink(from: &mut KcpStream, to: &mut KcpStream, data: &[u8]) {
    let read = async {
        let mut got = vec![0; data.len()];
        to.read_exact(&mut got).await.unwrap();
        assert!(got == data, "other bytes than were sent");
    };
    let (written, ()) = tokio::join!(from.write_all(data), read);
    written.unwrap();
}

/// Sends data in one direction, then echoes data. No datagram is lost.
async fn transfer(client: UdpSocket, server: UdpSocket) {
    let queue = AcceptQueue::new();
    let addr = server.local_addr().unwrap();
    let listener = KcpListener::new(AcceptHandle::new(queue.clone()), start(server, Some(queue)));
    let endpoint = start(client, None);
    let mut client = endpoint.connect(addr).await.unwrap();
    client.write_all(b"!").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'!');

    sink(&mut client, &mut server, &data(1)).await;
    let echo = data(2);
    let (mut reader, mut writer) = client.split();
    let back = async {
        let mut got = vec![0; 64 * 1024];
        for _ in 0..BYTES / got.len() {
            server.read_exact(&mut got).await.unwrap();
            server.write_all(&got).await.unwrap();
        }
    };
    let mut got = vec![0; BYTES];
    let (written, read, ()) =
        tokio::join!(writer.write_all(&echo), reader.read_exact(&mut got), back);
    written.unwrap();
    read.unwrap();
    assert!(got == echo, "other bytes were echoed");

    // The last ACKs may be in flight.
    let all_arrived = || {
        let (near, far) = (endpoint.stats(), listener.stats());
        assert_eq!((near.send_errors.total(), far.send_errors.total()), (0, 0));
        near.sent.datagrams == far.received.datagrams
            && far.sent.datagrams == near.received.datagrams
    };
    while !all_arrived() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn gso_failure_at_any_time_loses_nothing() {
    for code in [libc::EIO, libc::EINVAL] {
        for after in [0, 1, 10] {
            on_both_runtimes(|| async move {
                let (mut client, mut server) = (socket(), socket());
                if client.max_gso_segments() == 1 {
                    return;
                }
                let batches = [
                    client.refuse_gso_batches(after, code, None),
                    server.refuse_gso_batches(after, code, None),
                ];
                transfer(client, server).await;
                // GSO is tried again now and then, and for smaller datagrams.
                let batches = batches.map(|batches| batches.load(Ordering::Relaxed));
                println!("{code} after {after}: {batches:?} GSO batches tried");
                let most = after + 2 + 4 * BYTES / 1_200 / 256;
                assert!(batches.iter().all(|tried| (after + 1..=most).contains(tried)), "{most}");
            });
        }
    }
}

#[test]
fn gso_and_gro_disabled_lose_nothing() {
    on_both_runtimes(|| transfer(socket().without_gso(), socket().without_gso()));
    on_both_runtimes(|| transfer(without_gro(), without_gro()));
    on_both_runtimes(|| transfer(without_gro().without_gso(), without_gro().without_gso()));
}
