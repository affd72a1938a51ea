//! Connections over a transport of the application.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::{assert_same, bytes, on_both_runtimes, read, until};
use kcpx::{Algorithm, Cipher, Config, Endpoint, KcpStream, RecvBatch, Transmit, Transport};
use tokio::io::AsyncWriteExt;

/// Datagrams that one direction holds.
const CAPACITY: usize = 32;

/// One direction of a path.
#[derive(Default)]
struct Queue {
    datagrams: VecDeque<Vec<u8>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// One end of a path between two addresses. A full direction blocks the sender.
struct Channel {
    local: SocketAddr,
    peer: SocketAddr,
    incoming: Arc<Mutex<Queue>>,
    outgoing: Arc<Mutex<Queue>>,
    /// Every n-th call fails.
    failing: Option<usize>,
    calls: usize,
    largest: usize,
    /// Datagrams taken per call.
    at_once: usize,
}

impl Channel {
    fn pair() -> (Self, Self) {
        let (a, b) = (Arc::new(Mutex::default()), Arc::new(Mutex::default()));
        let one = SocketAddr::from(([10, 0, 0, 1], 1));
        let two = SocketAddr::from(([10, 0, 0, 2], 0));
        let end = |local, peer, incoming: &Arc<_>, outgoing: &Arc<_>| Self {
            local,
            peer,
            incoming: Arc::clone(incoming),
            outgoing: Arc::clone(outgoing),
            failing: None,
            calls: 0,
            largest: 65_507,
            at_once: usize::MAX,
        };
        (end(one, two, &a, &b), end(two, one, &b, &a))
    }

    fn fails(&mut self) -> io::Result<()> {
        self.calls += 1;
        let fails = self.failing.is_some_and(|every| self.calls.is_multiple_of(every));
        if fails { Err(ErrorKind::HostUnreachable.into()) } else { Ok(()) }
    }
}

impl Transport for Channel {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn max_datagram_size(&self) -> usize {
        self.largest
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut RecvBatch<'_>,
    ) -> Poll<io::Result<()>> {
        self.fails()?;
        let mut queue = self.incoming.lock().unwrap();
        let mut any = false;
        while let Some(datagram) = queue.datagrams.front() {
            if !batch.push(self.peer, datagram) {
                assert!(any && batch.is_full(), "a fresh batch is not full");
                break;
            }
            any = true;
            queue.datagrams.pop_front();
        }
        if !any {
            queue.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let writer = queue.writer.take();
        drop(queue);
        writer.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        transmit: &Transmit<'_>,
    ) -> Poll<io::Result<usize>> {
        self.fails()?;
        assert_eq!(transmit.dst, self.peer);
        let mut queue = self.outgoing.lock().unwrap();
        let available = (CAPACITY - queue.datagrams.len()).min(self.at_once);
        let mut taken = 0;
        for datagram in transmit.datagrams().take(available) {
            assert!((1..=self.largest).contains(&datagram.len()));
            queue.datagrams.push_back(datagram.to_vec());
            taken += 1;
        }
        if taken == 0 {
            queue.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let reader = queue.reader.take();
        drop(queue);
        reader.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(taken))
    }
}

/// Sends `len` bytes there and back. Returns both endpoints.
async fn echo(ends: (Channel, Channel), config: Config, len: usize) -> (Endpoint, Endpoint) {
    let peer = ends.1.local;
    let client = Endpoint::from_transport(ends.0, config.clone()).unwrap();
    let server = Endpoint::from_transport(ends.1, config).unwrap();
    assert_eq!(server.local_addr().unwrap(), peer);
    let listener = server.listen().await.unwrap();
    let mut stream = client.connect(peer).await.unwrap();
    let serving = tokio::spawn(async move {
        let (stream, from) = listener.accept().await.unwrap();
        assert_eq!(from, stream.peer_addr().unwrap());
        back(stream, len).await;
    });
    let data = bytes(7, len);
    let (mut reader, mut writer) = stream.split();
    let writing = async {
        writer.write_all(&data).await.unwrap();
        writer.flush().await.unwrap();
    };
    let ((), echoed) = tokio::join!(writing, read(&mut reader, len));
    assert_same(&echoed, &data);
    serving.await.unwrap();
    (client, server)
}

/// Echoes `len` bytes as they arrive.
async fn back(mut stream: KcpStream, len: usize) {
    let mut left = len;
    while left > 0 {
        let chunk = stream.read_chunk().await.unwrap();
        left -= chunk.len();
        stream.write_all(&chunk).await.unwrap();
    }
    stream.shutdown().await.unwrap();
}

#[test]
fn transport_carries_a_mebibyte_both_ways() {
    on_both_runtimes(|| async {
        for at_once in [usize::MAX, 1] {
            let (mut one, mut two) = Channel::pair();
            (one.at_once, two.at_once) = (at_once, at_once);
            let (client, server) = echo((one, two), Config::new(), 1 << 20).await;
            let (client, server) = (client.stats(), server.stats());
            assert_eq!((client.send_errors.total(), client.recv_errors.total()), (0, 0));
            assert_eq!((server.send_errors.total(), server.recv_errors.total()), (0, 0));
        }
    });
}

#[test]
fn transient_transport_errors_count_as_loss() {
    on_both_runtimes(|| async {
        let (mut one, mut two) = Channel::pair();
        (one.failing, two.failing) = (Some(11), Some(13));
        let (client, server) = echo((one, two), Config::new(), 1 << 20).await;
        for endpoint in [client, server] {
            let stats = endpoint.stats();
            assert!(stats.send_errors.total() > 0 && stats.recv_errors.total() > 0, "{stats:?}");
            assert_eq!(stats.send_errors.unreachable, stats.send_errors.total());
            let last = endpoint.take_error().unwrap().unwrap();
            assert_eq!(last.kind(), ErrorKind::HostUnreachable);
        }
    });
}

#[test]
fn transport_max_datagram_size_limits_the_mtu() {
    on_both_runtimes(|| async {
        let small = || {
            let (mut one, mut two) = Channel::pair();
            (one.largest, two.largest) = (200, 200);
            (one, two)
        };
        let cipher = Cipher::new(Algorithm::Aes128Gcm, &[1; 16]).unwrap();
        let config = Config::new().cipher(cipher);
        let error = Endpoint::from_transport(small().0, config.clone().mtu(201)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.to_string(), "mtu (bytes) must be between 53 and 200, got 201");
        echo(small(), config.mtu(200), 100_000).await;
    });
}

#[test]
fn transport_is_dropped_with_the_last_handle() {
    on_both_runtimes(|| async {
        let (one, two) = Channel::pair();
        let queue = Arc::downgrade(&one.incoming);
        let endpoint = Endpoint::from_transport(one, Config::new()).unwrap();
        drop(two);
        assert!(queue.upgrade().is_some());
        drop(endpoint);
        until(|| queue.upgrade().is_none()).await;
    });
}

#[test]
fn rebind_of_a_transport_is_rejected() {
    on_both_runtimes(|| async {
        let endpoint = Endpoint::from_transport(Channel::pair().0, Config::new()).unwrap();
        let before = endpoint.local_addr().unwrap();
        let error = endpoint.rebind("127.0.0.1:0").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(endpoint.local_addr().unwrap(), before);
    });
}

#[test]
#[should_panic(expected = "there is no reactor running")]
fn transport_needs_a_runtime() {
    drop(Endpoint::from_transport(Channel::pair().0, Config::new()));
}

/// A transport that receives nothing and counts its polls.
struct Quiet {
    blocked: bool,
    calls: Arc<AtomicUsize>,
}

impl Quiet {
    fn count(&self) {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(calls < 20_000, "it spins");
    }
}

impl Transport for Quiet {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([10, 0, 0, 1], 1)))
    }

    fn poll_recv(&mut self, _: &mut Context<'_>, _: &mut RecvBatch<'_>) -> Poll<io::Result<()>> {
        self.count();
        Poll::Pending
    }

    fn poll_send(
        &mut self,
        _: &mut Context<'_>,
        transmit: &Transmit<'_>,
    ) -> Poll<io::Result<usize>> {
        self.count();
        if self.blocked { Poll::Pending } else { Poll::Ready(Ok(transmit.datagrams().len())) }
    }
}

/// The paused clock advances only while every task waits. A blocked transport is polled three times in a turn, and timers
/// start a turn every 10 ms at most.
#[tokio::test(start_paused = true)]
async fn idle_transport_is_not_polled() {
    for (blocked, most) in [(false, 40), (true, 3_100)] {
        let calls = Arc::new(AtomicUsize::new(0));
        let transport = Quiet { blocked, calls: calls.clone() };
        let early = Config::new().early_data(true);
        let endpoint = Endpoint::from_transport(transport, early).unwrap();
        let peer = SocketAddr::from(([10, 0, 0, 2], 1));
        let mut stream = endpoint.connect(peer).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(stream.error(), None);
        let calls = calls.load(Ordering::Relaxed);
        println!("{calls} calls in ten seconds, blocked: {blocked}");
        assert!((10..=most).contains(&calls), "{calls} calls");
    }
}
