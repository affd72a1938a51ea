//! [`RequestQueue`]: requests of endpoint handles to the driver: connect, listen, rebind, drain, send a
//! raw datagram.
//!
//! Locks are leaves. The driver drains the requests before the ids of the [`Notifier`] and acts on the
//! ids first: a `WaitIdle` then covers everything its task wrote before the request.

use std::collections::VecDeque;
#[cfg(not(loom))]
use std::io;
use std::net::SocketAddr;
#[cfg(not(loom))]
use std::net::UdpSocket;
#[cfg(not(loom))]
use std::time::Instant;

use bytes::Bytes;
#[cfg(not(loom))]
use tokio::sync::oneshot;

#[cfg(not(loom))]
use crate::core::connection::multipath::PathInfo;
#[cfg(not(loom))]
use crate::core::path::set::PathId;
#[cfg(not(loom))]
use crate::core::time_wait::TimeWait;
#[cfg(not(loom))]
use crate::shared::accept_queue::AcceptHandle;
#[cfg(not(loom))]
use crate::shared::connection::Handle;
#[cfg(not(loom))]
use crate::shared::notifier::ConnId;
use crate::shared::notifier::Notifier;
#[cfg(not(loom))]
#[cfg(not(loom))]
use crate::stats::UdpStats;
use crate::util::path::{LocalIp, Path};
use crate::util::queue::move_all;
use crate::util::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// Datagrams of one path.
#[derive(Clone, Copy, Debug, Default)]
#[cfg(not(loom))]
pub(crate) struct PathTraffic {
    pub(crate) sent: UdpStats,
    pub(crate) received: UdpStats,
}

/// A path for [`KcpStream::paths`](crate::KcpStream::paths).
#[derive(Clone, Copy, Debug)]
#[cfg(not(loom))]
pub(crate) struct PathReport {
    pub(crate) path: Path,
    pub(crate) info: PathInfo,
    pub(crate) traffic: PathTraffic,
}

/// Raw datagrams that wait for the socket; the oldest is dropped beyond it.
const MAX_RAW_DATAGRAMS: usize = 256;

/// A connection opened from this side.
#[derive(Debug)]
#[cfg(not(loom))]
pub(crate) struct Opened {
    pub(crate) handle: Handle,
    /// Whether `connect` waits for the peer's answer.
    pub(crate) waits: bool,
}

/// A connection in TIME-WAIT: peer and conversation id, expiry, and answers.
#[cfg(not(loom))]
pub(crate) type TimeWaitEntry = ((SocketAddr, u32), Instant, TimeWait);

/// A request to the driver. Dropping it answers its caller with `EndpointClosed`.
#[derive(Debug)]
pub(crate) enum Request {
    /// Open a connection with this conversation id, or the configured one.
    #[cfg(not(loom))]
    Connect { peer: SocketAddr, conv: Option<u32>, reply: oneshot::Sender<io::Result<Opened>> },
    /// Accept connections that peers open.
    #[cfg(not(loom))]
    Listen(oneshot::Sender<io::Result<AcceptHandle>>),
    /// Replace the socket.
    #[cfg(not(loom))]
    Rebind(Rebind, oneshot::Sender<io::Result<()>>),
    /// The network has changed, for all connections.
    #[cfg(not(loom))]
    NetworkChanged,
    /// Add a path from this local address to a connection.
    #[cfg(not(loom))]
    AddPath { id: ConnId, local: LocalIp, reply: oneshot::Sender<io::Result<PathId>> },
    /// Remove a path. Reply whether it is gone; false for the last one that answers.
    #[cfg(not(loom))]
    RemovePath { id: ConnId, path: PathId, reply: oneshot::Sender<bool> },
    /// Reply with the paths of a connection.
    #[cfg(not(loom))]
    Paths { id: ConnId, reply: oneshot::Sender<Vec<PathReport>> },
    /// Reply once no connection lingers.
    #[cfg(not(loom))]
    WaitIdle(oneshot::Sender<()>),
    /// Reply once no connection is in use and everything is delivered.
    #[cfg(not(loom))]
    Drain(Drain, oneshot::Sender<()>),
    /// Reply whether the port may be released: at once if a handle is left, else once everything is
    /// delivered.
    #[cfg(not(loom))]
    CanReleasePort(oneshot::Sender<bool>),
    /// End, and reply once the socket is closed. Dropped if the port may not be released.
    #[cfg(not(loom))]
    ReleasePort(oneshot::Sender<Vec<TimeWaitEntry>>),
    /// Addresses or routes of the host may have changed. At most one is queued.
    #[cfg(not(loom))]
    RoutesChanged,
    /// Stands for any request under loom, which does not model oneshot channels.
    #[cfg(loom)]
    Model,
}

/// How a drain treats open connections.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drain {
    /// Let them end by themselves.
    Wait,
    /// Shut down their write sides.
    Close,
    /// Abort them.
    Abort,
}

/// The replacement of an endpoint's socket.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) enum Rebind {
    /// A new socket on the first address that can be bound.
    Bind(Vec<SocketAddr>),
    /// A bound socket. The driver registers it with its own runtime.
    Socket(UdpSocket),
}

/// Requests and raw datagrams from the handles of an endpoint to its driver.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    notifier: Arc<Notifier>,
    /// `None` once the driver is gone.
    requests: Mutex<Option<Vec<Request>>>,
    /// True from a push until the next drain: saves the driver a lock per turn.
    pending: AtomicBool,
    raw: Mutex<RawDatagrams>,
    /// Number of `Endpoint`s, including one per listener. While it is above 0 the driver goes on without
    /// connections.
    handles: AtomicUsize,
    /// Several sockets share the address (SO_REUSEPORT).
    sharded: bool,
}

/// Queue of `Endpoint::send_raw`.
#[derive(Debug, Default)]
struct RawDatagrams {
    waiting: VecDeque<(SocketAddr, Bytes)>,
    dropped: u64,
}

/// Handles.
impl RequestQueue {
    /// The queue of a socket with an address of its own.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn new() -> Arc<Self> {
        Self::with_sharded(false)
    }

    /// The queue of a socket. `sharded`: several sockets share its address (SO_REUSEPORT).
    pub(crate) fn with_sharded(sharded: bool) -> Arc<Self> {
        Arc::new(Self {
            notifier: Notifier::new(),
            requests: Mutex::new(Some(Vec::new())),
            pending: AtomicBool::new(false),
            raw: Mutex::new(RawDatagrams::default()),
            handles: AtomicUsize::new(0),
            sharded,
        })
    }

    pub(crate) fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    /// Queues a request and wakes a parked driver. Without a driver the request is dropped.
    pub(crate) fn push(&self, request: Request) {
        let mut requests = lock(&self.requests);
        let Some(queued) = requests.as_mut() else {
            drop(requests);
            drop(request);
            return;
        };
        queued.push(request);
        self.pending.store(true, Ordering::Relaxed);
        drop(requests);
        self.notifier.wake();
    }

    /// Queues [`Request::RoutesChanged`], unless one is queued.
    #[cfg(not(loom))]
    pub(crate) fn push_routes_changed(&self) {
        let is_change = |request: &Request| matches!(request, Request::RoutesChanged);
        let mut requests = lock(&self.requests);
        let Some(queued) = requests.as_mut().filter(|queued| !queued.iter().any(is_change)) else {
            return;
        };
        queued.push(Request::RoutesChanged);
        self.pending.store(true, Ordering::Relaxed);
        drop(requests);
        self.notifier.wake();
    }

    /// Queues a raw datagram. Returns false if the driver is gone.
    pub(crate) fn send_raw(&self, peer: SocketAddr, datagram: Bytes) -> bool {
        let mut raw = lock(&self.raw);
        let oldest =
            if raw.waiting.len() < MAX_RAW_DATAGRAMS { None } else { raw.waiting.pop_front() };
        raw.dropped += u64::from(oldest.is_some());
        raw.waiting.push_back((peer, datagram));
        drop(raw);
        drop(oldest);
        self.notifier.wake()
    }

    /// Whether several sockets share the address.
    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded
    }

    /// Adds a handle, which keeps the endpoint alive.
    pub(crate) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a handle. After the last one the driver checks whether it may end.
    pub(crate) fn remove_handle(&self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.notifier.wake();
        }
    }
}

/// Driver.
impl RequestQueue {
    /// Moves the queued requests to the end of `requests`.
    pub(crate) fn drain(&self, requests: &mut Vec<Request>) {
        if !self.has_pending() {
            return;
        }
        let mut queued = lock(&self.requests);
        self.pending.store(false, Ordering::Relaxed);
        if let Some(queued) = queued.as_mut() {
            move_all(queued, requests);
        }
    }

    /// Whether a request waits. Checked again after [`Notifier::register`]: a drain of the notifier also
    /// clears the wake of a request pushed after the requests were drained.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// The driver is gone. Returns the pending requests, to be dropped without a reply.
    pub(crate) fn close(&self) -> Option<Vec<Request>> {
        lock(&self.requests).take()
    }

    /// Number of handles that keep the endpoint alive.
    pub(crate) fn handles(&self) -> usize {
        self.handles.load(Ordering::Acquire)
    }

    /// The next raw datagram to send.
    pub(crate) fn next_raw(&self) -> Option<(SocketAddr, Bytes)> {
        lock(&self.raw).waiting.pop_front()
    }

    /// Whether a raw datagram waits, and how many were dropped so far.
    pub(crate) fn raw(&self) -> (bool, u64) {
        let raw = lock(&self.raw);
        (!raw.waiting.is_empty(), raw.dropped)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shared::connection::tests::Count;

    #[test]
    fn request_wakes_a_parked_driver_and_is_dropped_without_one() {
        let queue = RequestQueue::new();
        let (count, waker) = Count::new();
        let mut requests = Vec::new();
        assert!(!queue.notifier().register(&waker));
        let (reply, mut answer) = oneshot::channel();
        queue.push(Request::WaitIdle(reply));
        assert!(queue.has_pending());
        assert_eq!(count.woken(), 1);
        queue.drain(&mut requests);
        assert!(!queue.has_pending());
        let Some(Request::WaitIdle(reply)) = requests.pop() else { panic!("it is the request") };
        reply.send(()).unwrap();
        answer.try_recv().unwrap();

        let (reply, mut answer) = oneshot::channel();
        queue.push(Request::WaitIdle(reply));
        drop(queue.close());
        assert_eq!(answer.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let (reply, mut answer) = oneshot::channel();
        queue.push(Request::WaitIdle(reply));
        assert_eq!(answer.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::task::Poll;

    use loom::thread;

    use super::*;
    use crate::shared::notifier::{ConnId, ConnNotifier};
    use crate::util::sync::Sleeper;

    /// Takes turns as the driver does until `done`, parked in between.
    fn drive(queue: &RequestQueue, mut turn: impl FnMut(&[Request], &[ConnId]) -> bool) {
        Sleeper::new().block_on(|waker| {
            let (mut requests, mut ids) = (Vec::new(), Vec::new());
            queue.drain(&mut requests);
            queue.notifier().drain(&mut ids, &mut Vec::new());
            if turn(&requests, &ids) {
                return Poll::Ready(());
            }
            if queue.notifier().register(waker) || queue.has_pending() {
                waker.wake_by_ref();
            }
            Poll::Pending
        });
    }

    /// Requests pushed while the driver drains or registers reach it.
    #[test]
    fn loom_request_queue_loses_no_wake() {
        loom::model(|| {
            let queue = RequestQueue::with_sharded(false);
            let pushers = [0, 1].map(|_| {
                let queue = queue.clone();
                thread::spawn(move || queue.push(Request::Model))
            });
            let mut taken = 0;
            drive(&queue, |requests, _| {
                taken += requests.len();
                taken == 2
            });
            for pusher in pushers {
                pusher.join().unwrap();
            }
        });
    }

    /// A turn that sees a request has seen every id pushed before it.
    #[test]
    fn loom_request_comes_after_the_writes_before_it() {
        loom::model(|| {
            let queue = RequestQueue::with_sharded(false);
            let writer = {
                let queue = queue.clone();
                thread::spawn(move || {
                    let id = ConnId { slot: 1, generation: 0 };
                    ConnNotifier::new(queue.notifier().clone(), id).notify();
                    queue.push(Request::Model);
                })
            };
            let mut written = false;
            drive(&queue, |requests, ids| {
                written |= !ids.is_empty();
                assert!(written || requests.is_empty());
                !requests.is_empty()
            });
            writer.join().unwrap();
        });
    }
}
