//! The driver task on Tokio's paused clock: it sleeps whenever nothing is due. The paused clock
//! advances only while all tasks sleep, so a spinning task makes the test fail.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::config::Config;
use crate::driver::Driver;
use crate::driver::task::DriverTask;
use crate::endpoint::Endpoint;
use crate::error::ConnectionError;
use crate::shared::requests::RequestQueue;
use crate::stream::KcpStream;
use crate::sys::{RxBatch, Socket, Transmit};
use crate::util::sync::{Arc, AtomicUsize, Mutex, Ordering, lock};

/// Socket calls beyond which the task spins.
const MAX_CALLS: usize = 20_000;

/// A socket without a network that fails as configured.
struct FailingSocket {
    /// Error of each receive, although the socket reports that it is readable.
    recv: Option<ErrorKind>,
    /// Every send would block.
    blocked: bool,
    /// The runtime that the socket is registered with has ended.
    orphaned: bool,
    calls: Arc<AtomicUsize>,
}

impl FailingSocket {
    fn count(&self) {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(calls < MAX_CALLS, "the task spins");
    }
}

impl Socket for FailingSocket {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
    }

    fn max_gso_segments(&self) -> usize {
        1
    }

    fn recv(&mut self, _: &mut RxBatch) -> io::Result<()> {
        self.count();
        Err(self.recv.unwrap_or(ErrorKind::WouldBlock).into())
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize> {
        self.count();
        if self.blocked { Err(ErrorKind::WouldBlock.into()) } else { Ok(transmit.contents.len()) }
    }

    fn poll_recv_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.orphaned {
            return Poll::Ready(Err(io::Error::other("the runtime has ended")));
        }
        if self.recv.is_some() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_send_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.blocked { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

fn start(socket: impl Socket + Unpin + 'static) -> Endpoint {
    let requests = RequestQueue::new();
    let now = tokio::time::Instant::now().into_std();
    // No peer answers on this socket.
    let config = Config::new().early_data(true);
    let driver = Driver::new(socket, config, requests.clone(), None, [7; 32], now).unwrap();
    let endpoint = Endpoint::attach(requests);
    #[expect(clippy::disallowed_methods, reason = "the task under test")]
    drop(tokio::spawn(DriverTask::new(driver)));
    endpoint
}

/// A connection with unacknowledged data over such a socket.
async fn stream(socket: FailingSocket) -> KcpStream {
    let endpoint = start(socket);
    let stream = endpoint.connect(SocketAddr::from(([127, 0, 0, 1], 2))).await.unwrap();
    stream.try_write(b"hello").unwrap();
    stream
}

/// The socket calls of such a connection.
async fn calls_within(time: Duration, recv: Option<ErrorKind>, blocked: bool) -> usize {
    let calls = Arc::new(AtomicUsize::new(0));
    let stream =
        stream(FailingSocket { recv, blocked, orphaned: false, calls: calls.clone() }).await;
    tokio::time::sleep(time).await;
    assert_eq!(stream.error(), None);
    calls.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn task_on_a_quiet_socket_makes_one_call_per_timer() {
    let calls = calls_within(Duration::from_secs(10), None, false).await;
    assert!((10..200).contains(&calls), "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn task_backs_off_while_the_socket_only_fails() {
    let reset = Some(ErrorKind::ConnectionReset);
    let calls = calls_within(Duration::from_secs(10), reset, false).await;
    assert!((200..1_000).contains(&calls), "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn task_on_a_blocked_socket_does_not_spin() {
    let calls = calls_within(Duration::from_secs(10), None, true).await;
    assert!((10..4_000).contains(&calls), "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn linger_timeout_on_a_blocked_socket_is_in_time() {
    let linger = Config::default().linger;
    let before = tokio::time::Instant::now();
    let calls = Arc::new(AtomicUsize::new(0));
    let mut stream =
        stream(FailingSocket { recv: None, blocked: true, orphaned: false, calls }).await;
    let error = stream.shutdown().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let took = before.elapsed();
    assert!((linger..linger + Duration::from_millis(20)).contains(&took), "{took:?}");
}

/// A socket that is blocked at its first send.
#[derive(Clone, Debug, Default)]
struct Gate(Arc<Mutex<GateState>>);

#[derive(Debug, Default)]
struct GateState {
    is_open: bool,
    /// It opens before the task waits for it, and otherwise on [`Gate::open`].
    opens_early: bool,
    /// The task that waits for the socket.
    waker: Option<Waker>,
    /// When the first datagram left.
    sent: Option<tokio::time::Instant>,
}

impl Gate {
    fn open(&self) {
        let mut gate = lock(&self.0);
        gate.is_open = true;
        gate.waker.take().expect("the task waits").wake();
    }
}

impl Socket for Gate {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
    }

    fn max_gso_segments(&self) -> usize {
        1
    }

    fn recv(&mut self, _: &mut RxBatch) -> io::Result<()> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize> {
        let mut gate = lock(&self.0);
        if !gate.is_open {
            return Err(ErrorKind::WouldBlock.into());
        }
        gate.sent.get_or_insert_with(tokio::time::Instant::now);
        Ok(transmit.contents.len())
    }

    fn poll_recv_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gate = lock(&self.0);
        gate.is_open |= gate.opens_early;
        if gate.is_open {
            return Poll::Ready(Ok(()));
        }
        gate.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn socket_that_is_writable_again_before_the_task_waits_for_it_is_used_at_once() {
    let gate = Gate::default();
    lock(&gate.0).opens_early = true;
    let began = tokio::time::Instant::now();
    let endpoint = start(gate.clone());
    let stream = endpoint.connect(SocketAddr::from(([127, 0, 0, 1], 2))).await.unwrap();
    stream.try_write(b"hello").unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(lock(&gate.0).sent, Some(began));
}

#[tokio::test(start_paused = true)]
async fn datagrams_leave_as_soon_as_the_socket_is_writable_again() {
    let gate = Gate::default();
    let endpoint = start(gate.clone());
    let stream = endpoint.connect(SocketAddr::from(([127, 0, 0, 1], 2))).await.unwrap();
    stream.try_write(b"hello").unwrap();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(lock(&gate.0).sent, None);
    let opened = tokio::time::Instant::now();
    gate.open();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(lock(&gate.0).sent, Some(opened));
}

/// The runtime that the socket is registered with has ended: the endpoint reports it and ends.
#[tokio::test(start_paused = true)]
async fn task_ends_when_the_runtime_cannot_say_that_the_socket_is_ready() {
    let calls = Arc::new(AtomicUsize::new(0));
    let socket = FailingSocket { recv: None, blocked: false, orphaned: true, calls: calls.clone() };
    let endpoint = start(socket);
    let stream = endpoint.connect(SocketAddr::from(([127, 0, 0, 1], 2))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(stream.error(), Some(ConnectionError::EndpointClosed));
    let cause = endpoint.take_error().unwrap().expect("the reason");
    assert_eq!(cause.to_string(), "the runtime has ended");
    assert!(calls.load(Ordering::Relaxed) < 20);
}
