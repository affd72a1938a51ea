//! The transport as a socket, with a transport that plays a script.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Wake;

use super::*;
use crate::util::path::LocalIp;

/// Results of the polls, and the wakers they were called with.
#[derive(Default)]
struct Script {
    /// Lengths of the datagrams pushed, or an error; then `Pending`.
    incoming: VecDeque<io::Result<Vec<usize>>>,
    /// Datagrams taken, or an error; then `Pending`.
    outgoing: VecDeque<io::Result<usize>>,
    taken: Vec<usize>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

impl Transport for Scripted {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(addr(1))
    }

    fn max_datagram_size(&self) -> usize {
        1_000
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut RecvBatch<'_>,
    ) -> Poll<io::Result<()>> {
        let mut script = self.0.lock().unwrap();
        let Some(result) = script.incoming.pop_front() else {
            script.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        for len in result? {
            assert!(batch.push(addr(2), &vec![7; len]));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        transmit: &Transmit<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut script = self.0.lock().unwrap();
        let Some(result) = script.outgoing.pop_front() else {
            script.writer = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let count = result?;
        script.taken.extend(transmit.datagrams().map(<[u8]>::len).take(count));
        Poll::Ready(Ok(count))
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn socket() -> (TransportSocket, Arc<Mutex<Script>>) {
    let transport = Scripted::default();
    (TransportSocket::new(transport.clone()).unwrap(), transport.0)
}

fn lens(batch: &mut RxBatch) -> Vec<usize> {
    let datagrams = batch.gro_batches().flat_map(|(_, size, contents)| contents.chunks(size));
    datagrams.map(<[u8]>::len).collect()
}

fn transmit(contents: &[u8]) -> Transmit<'_> {
    Transmit { dst: addr(2), segment_size: 100, contents, local: LocalIp::ANY }
}

/// A waker, and the number of its wakes.
fn waker() -> (Waker, Arc<Count>) {
    let count = Arc::new(Count::default());
    (count.clone().into(), count)
}

#[test]
fn readiness_polled_with_another_waker_reaches_the_transport() {
    let (mut socket, script) = socket();
    let (first, woken_first) = waker();
    let (second, woken_second) = waker();
    let mut batch = RxBatch::new();
    for waker in [first, second] {
        let mut cx = Context::from_waker(&waker);
        // The transport holds another waker or none: the task must call again.
        assert_eq!(socket.recv(&mut batch).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(socket.send(&transmit(&[0; 5])).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(socket.poll_recv_ready(&mut cx).is_ready());
        assert!(socket.poll_send_ready(&mut cx).is_ready());
        assert_eq!(socket.recv(&mut batch).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(socket.send(&transmit(&[0; 5])).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(socket.poll_recv_ready(&mut cx).is_pending());
        assert!(socket.poll_send_ready(&mut cx).is_pending());
    }
    let mut script = script.lock().unwrap();
    script.reader.take().unwrap().wake();
    script.writer.take().unwrap().wake();
    let woken = [woken_first, woken_second].map(|count| count.0.load(Ordering::Relaxed));
    assert_eq!(woken, [0, 2]);
}

#[test]
fn new_transport_socket_is_ready() {
    let (socket, _) = socket();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(socket.poll_recv_ready(&mut cx).is_ready());
    assert!(socket.poll_send_ready(&mut cx).is_ready());
}

#[test]
fn recv_error_after_datagrams_is_deferred() {
    let (mut socket, script) = socket();
    script.lock().unwrap().incoming.extend([
        Ok(vec![10, 10]),
        Ok(vec![20]),
        Err(io::Error::other("odd")),
        Ok(vec![30]),
    ]);
    let mut batch = RxBatch::new();
    socket.recv(&mut batch).unwrap();
    assert_eq!(lens(&mut batch), [10, 10, 20]);
    batch.clear();
    assert_eq!(socket.recv(&mut batch).unwrap_err().to_string(), "odd");
    socket.recv(&mut batch).unwrap();
    assert_eq!(lens(&mut batch), [30]);
}

#[test]
fn recv_stops_at_a_full_batch_and_stays_ready() {
    let (mut socket, script) = socket();
    let length = |n: usize| Ok(vec![10 * n]);
    script.lock().unwrap().incoming.extend((1..=6).map(length));
    let mut batch = RxBatch::new();
    socket.recv(&mut batch).unwrap();
    assert!(batch.is_full());
    assert_eq!(lens(&mut batch), [10, 20, 30, 40]);
    assert!(socket.poll_recv_ready(&mut Context::from_waker(Waker::noop())).is_ready());
    batch.clear();
    socket.recv(&mut batch).unwrap();
    assert_eq!(lens(&mut batch), [50, 60]);
}

#[test]
fn ready_without_progress_is_an_error() {
    let (mut socket, script) = socket();
    script.lock().unwrap().incoming.extend([
        Ok(vec![]),
        Err(ErrorKind::WouldBlock.into()),
        Err(ErrorKind::Interrupted.into()),
    ]);
    script.lock().unwrap().outgoing.extend([
        Ok(0),
        Err(ErrorKind::WouldBlock.into()),
        Err(ErrorKind::Interrupted.into()),
    ]);
    for _ in 0..3 {
        let error = socket.recv(&mut RxBatch::new()).unwrap_err();
        assert_eq!(crate::sys::classify_recv(&error), crate::sys::RecvFault::Ignore, "{error}");
        let error = socket.send(&transmit(&[0; 5])).unwrap_err();
        assert_eq!(crate::sys::classify_send(&error), crate::sys::SendFault::Lost, "{error}");
    }
}

#[test]
fn send_of_a_part_is_continued() {
    let (mut socket, script) = socket();
    script.lock().unwrap().outgoing.extend([Ok(2), Ok(1)]);
    // Three of five were taken, then the transport is blocked.
    assert_eq!(socket.send(&transmit(&[0; 450])).unwrap(), 300);
    let left = &[0; 150];
    assert_eq!(socket.send(&transmit(left)).unwrap_err().kind(), ErrorKind::WouldBlock);
    // A count above the datagrams offered means all of them.
    script.lock().unwrap().outgoing.push_back(Ok(9));
    assert_eq!(socket.send(&transmit(left)).unwrap(), 150);
    assert_eq!(script.lock().unwrap().taken, [100, 100, 100, 100, 50]);
}

#[test]
fn send_error_after_a_part_is_deferred() {
    let (mut socket, script) = socket();
    script.lock().unwrap().outgoing.extend([Ok(1), Err(io::Error::other("odd"))]);
    assert_eq!(socket.send(&transmit(&[0; 300])).unwrap(), 100);
    assert!(socket.poll_send_ready(&mut Context::from_waker(Waker::noop())).is_ready());
    assert_eq!(socket.send(&transmit(&[0; 200])).unwrap_err().to_string(), "odd");
}

#[test]
fn datagram_above_the_transports_maximum_is_refused() {
    let (mut socket, script) = socket();
    script.lock().unwrap().outgoing.push_back(Ok(1));
    let large =
        Transmit { dst: addr(2), segment_size: 1_001, contents: &[0; 1_001], local: LocalIp::ANY };
    let error = socket.send(&large).unwrap_err();
    assert_eq!(error.to_string(), "the datagram has 1001 bytes, the transport takes at most 1000");
    assert!(script.lock().unwrap().taken.is_empty());
}
