//! What an adapter makes of the answers of a transport that follows a script.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Wake;

use super::*;

/// What the transport answers, and the wakers it was given.
#[derive(Default)]
struct Script {
    /// The lengths of datagrams, or an error; then `Pending`.
    incoming: VecDeque<io::Result<Vec<usize>>>,
    /// How many are taken, or an error; then `Pending`.
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
        let Some(answer) = script.incoming.pop_front() else {
            script.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        for len in answer? {
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
        let Some(answer) = script.outgoing.pop_front() else {
            script.writer = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let count = answer?;
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

fn adapter() -> (TransportSocket, Arc<Mutex<Script>>) {
    let transport = Scripted::default();
    (TransportSocket::new(transport.clone()).unwrap(), transport.0)
}

fn lens(batch: &mut RxBatch) -> Vec<usize> {
    let datagrams = batch.trains().flat_map(|(_, stride, train)| train.chunks(stride));
    datagrams.map(<[u8]>::len).collect()
}

fn transmit(contents: &[u8]) -> Transmit<'_> {
    Transmit { dst: addr(2), segment_size: 100, contents }
}

/// A waker, and how often it was woken.
fn waker() -> (Waker, Arc<Count>) {
    let count = Arc::new(Count::default());
    (count.clone().into(), count)
}

#[test]
fn whoever_waits_is_known_to_the_transport() {
    let (mut adapter, script) = adapter();
    let (first, woken_first) = waker();
    let (second, woken_second) = waker();
    let mut batch = RxBatch::new();
    for waker in [first, second] {
        let mut cx = Context::from_waker(&waker);
        // The transport knows somebody else, or nobody: the task has to come again.
        assert_eq!(adapter.recv(&mut batch).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(adapter.send(&transmit(&[0; 5])).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(adapter.poll_recv_ready(&mut cx).is_ready());
        assert!(adapter.poll_send_ready(&mut cx).is_ready());
        assert_eq!(adapter.recv(&mut batch).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(adapter.send(&transmit(&[0; 5])).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(adapter.poll_recv_ready(&mut cx).is_pending());
        assert!(adapter.poll_send_ready(&mut cx).is_pending());
    }
    let mut script = script.lock().unwrap();
    script.reader.take().unwrap().wake();
    script.writer.take().unwrap().wake();
    let woken = [woken_first, woken_second].map(|count| count.0.load(Ordering::Relaxed));
    assert_eq!(woken, [0, 2]);
}

#[test]
fn a_new_adapter_is_ready_to_be_tried() {
    let (adapter, _) = adapter();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(adapter.poll_recv_ready(&mut cx).is_ready());
    assert!(adapter.poll_send_ready(&mut cx).is_ready());
}

#[test]
fn a_batch_takes_what_there_is_and_errors_come_after_it() {
    let (mut adapter, script) = adapter();
    script.lock().unwrap().incoming.extend([
        Ok(vec![10, 10]),
        Ok(vec![20]),
        Err(io::Error::other("odd")),
        Ok(vec![30]),
    ]);
    let mut batch = RxBatch::new();
    adapter.recv(&mut batch).unwrap();
    assert_eq!(lens(&mut batch), [10, 10, 20]);
    batch.clear();
    assert_eq!(adapter.recv(&mut batch).unwrap_err().to_string(), "odd");
    adapter.recv(&mut batch).unwrap();
    assert_eq!(lens(&mut batch), [30]);
}

#[test]
fn a_full_batch_ends_receiving_and_there_may_be_more() {
    let (mut adapter, script) = adapter();
    let odd = |n: usize| Ok(vec![10 * n]);
    script.lock().unwrap().incoming.extend((1..=6).map(odd));
    let mut batch = RxBatch::new();
    adapter.recv(&mut batch).unwrap();
    assert!(batch.is_full());
    assert_eq!(lens(&mut batch), [10, 20, 30, 40]);
    assert!(adapter.poll_recv_ready(&mut Context::from_waker(Waker::noop())).is_ready());
    batch.clear();
    adapter.recv(&mut batch).unwrap();
    assert_eq!(lens(&mut batch), [50, 60]);
}

#[test]
fn answers_that_would_make_the_driver_spin_are_errors() {
    let (mut adapter, script) = adapter();
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
        let error = adapter.recv(&mut RxBatch::new()).unwrap_err();
        assert_eq!(crate::sys::classify_recv(&error), crate::sys::RecvFault::Ignore, "{error}");
        let error = adapter.send(&transmit(&[0; 5])).unwrap_err();
        assert_eq!(crate::sys::classify_send(&error), crate::sys::SendFault::Lost, "{error}");
    }
}

#[test]
fn what_is_not_taken_is_offered_again() {
    let (mut adapter, script) = adapter();
    script.lock().unwrap().outgoing.extend([Ok(2), Ok(1)]);
    // Three of five are gone, then there is no room.
    assert_eq!(adapter.send(&transmit(&[0; 450])).unwrap(), 300);
    let left = &[0; 150];
    assert_eq!(adapter.send(&transmit(left)).unwrap_err().kind(), ErrorKind::WouldBlock);
    // More than there were is all of them.
    script.lock().unwrap().outgoing.push_back(Ok(9));
    assert_eq!(adapter.send(&transmit(left)).unwrap(), 150);
    assert_eq!(script.lock().unwrap().taken, [100, 100, 100, 100, 50]);
}

#[test]
fn an_error_behind_a_success_is_about_the_rest() {
    let (mut adapter, script) = adapter();
    script.lock().unwrap().outgoing.extend([Ok(1), Err(io::Error::other("odd"))]);
    assert_eq!(adapter.send(&transmit(&[0; 300])).unwrap(), 100);
    assert!(adapter.poll_send_ready(&mut Context::from_waker(Waker::noop())).is_ready());
    assert_eq!(adapter.send(&transmit(&[0; 200])).unwrap_err().to_string(), "odd");
}

#[test]
fn what_the_transport_does_not_carry_is_not_offered() {
    let (mut adapter, script) = adapter();
    script.lock().unwrap().outgoing.push_back(Ok(1));
    let large = Transmit { dst: addr(2), segment_size: 1_001, contents: &[0; 1_001] };
    let error = adapter.send(&large).unwrap_err();
    assert_eq!(error.to_string(), "the datagram has 1001 bytes, the transport takes 1000");
    assert!(script.lock().unwrap().taken.is_empty());
}
