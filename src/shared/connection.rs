//! [`Shared`]: state that the handles of one connection share with the driver. No protocol state.
//!
//! Locks are leaves, except for the buffer pool's: no code holds two of them, or one of them and one of
//! the notifier. Pointers move under a lock; bytes are copied outside, except for writes below 16 KiB.
//! Wakers leave a critical section as values, and are woken or dropped after it.
//!
//! An exchange of the driver is [`begin_exchange`](ConnNotifier::begin_exchange), then
//! [`take_writes`](Shared::take_writes), [`available`](RecvQueue::available) and
//! [`deliver`](RecvQueue::deliver); the handles call the rest, through [`Handle`]. Per direction one task
//! waits in `poll_*` calls, the last one to register, and any number in futures.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::config::{Config, Mode, SEGMENT_HEADER, Setting, WritePolicy};
use crate::error::{ConfigError, ConnectionError};
use crate::fec::FecConfig;
use crate::shared::datagrams::{DatagramSupport, Datagrams};
use crate::shared::notifier::{ConnId, ConnNotifier, Notifier};
use crate::shared::recv_queue::RecvQueue;
use crate::shared::send_queue::{Backlog, Outgoing, SendQueue, TakenWrites};
use crate::shared::waiters::{EndWaiters, Established, Wait, Waiter};
use crate::stats::{ConnectionStats, Snapshot};
use crate::util::path::Path;
use crate::util::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// State of one connection that its driver and its handles share.
pub(crate) struct Shared {
    pub(crate) conv: u32,
    /// Changes only by migration. The lock is a leaf.
    path: Mutex<Path>,
    pub(crate) mode: Mode,
    /// Size of the largest datagram in bytes now. Never rises.
    pub(crate) mtu: AtomicUsize,
    /// Bytes that FEC and the cipher add to each KCP datagram.
    pub(crate) overhead: usize,
    /// Whether this side sends with FEC framing.
    pub(crate) framed: bool,
    /// Most shards of a FEC group that this side may change to; unlimited once the peer is known to learn any
    /// layout.
    pub(crate) max_fec_shards: AtomicUsize,
    /// Size of the largest message in bytes that the driver takes now.
    pub(crate) max_message: AtomicUsize,
    pub(crate) notifier: Arc<ConnNotifier>,
    /// Number of [`Handle`]s.
    handles: AtomicUsize,
    /// True once the last handle is gone.
    detached: AtomicBool,
    pub(crate) options: Options,
    pub(crate) send: SendQueue,
    pub(crate) recv: RecvQueue,
    pub(crate) established: Established,
    end_waiters: EndWaiters,
    /// Out-of-band datagrams.
    pub(crate) datagrams: Datagrams,
    stats: Mutex<Snapshot>,
}

impl Shared {
    /// Creates the state. A message may fill one segment until the driver allows more.
    pub(crate) fn new(
        id: ConnId,
        conv: u32,
        path: Path,
        config: &Config,
        notifier: Arc<Notifier>,
    ) -> Arc<Self> {
        let (mtu, overhead) = (usize::from(config.kcp.mtu), config.overhead());
        let notifier = Arc::new(ConnNotifier::new(notifier, id));
        let support = match (config.kcp.redundancy.fec(), config.kcp.close_notify) {
            (Some(_), _) => DatagramSupport::Supported,
            (None, true) => DatagramSupport::Unknown { asked: false },
            (None, false) => DatagramSupport::Unsupported,
        };
        Arc::new(Self {
            conv,
            path: Mutex::new(path),
            mode: config.kcp.mode,
            mtu: AtomicUsize::new(mtu),
            overhead,
            framed: config.kcp.redundancy.fec().is_some(),
            max_fec_shards: AtomicUsize::new(
                config.kcp.redundancy.fec().map_or(0, FecConfig::shards),
            ),
            max_message: AtomicUsize::new(mtu.saturating_sub(overhead + SEGMENT_HEADER)),
            handles: AtomicUsize::new(0),
            detached: AtomicBool::new(false),
            options: Options::new(config),
            send: SendQueue::new(config.send_buffer, notifier.clone()),
            recv: RecvQueue::new(config.recv_buffer, notifier.clone()),
            established: Established::new(),
            end_waiters: EndWaiters::new(),
            datagrams: Datagrams::new(support, notifier.clone()),
            stats: Mutex::new(Snapshot::default()),
            notifier,
        })
    }

    pub(crate) fn id(&self) -> ConnId {
        self.notifier.id()
    }

    /// Why the connection ended, once it has.
    pub(crate) fn error(&self) -> Option<ConnectionError> {
        self.send.error()
    }

    /// How long closing continues without progress.
    pub(crate) fn linger(&self) -> Duration {
        self.options.linger()
    }

    /// Formats the handle of this name.
    pub(crate) fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("conv", &self.conv)
            .field("peer", &self.peer())
            .field("local", &self.local())
            .finish_non_exhaustive()
    }
}

/// Driver.
impl Shared {
    /// Moves written data to `out`, see [`SendQueue::take_writes`].
    pub(crate) fn take_writes(
        &self,
        limit: usize,
        unit: usize,
        backlog: Backlog,
        out: &mut VecDeque<Outgoing>,
    ) -> TakenWrites {
        // Invariant: an exchange that sees the flag sees every write before the drop. So the flag is read
        // before the queue; a later drop notifies again.
        let detached = self.is_detached();
        TakenWrites { detached, ..self.send.take_writes(limit, unit, backlog, out) }
    }

    /// The driver removes the connection: unread data counts in `MemoryUse` until it is read or dropped.
    pub(crate) fn outlive(&self) {
        self.recv.outlive();
        self.datagrams.outlive();
    }

    /// Frees the memory of empty queues of an idle connection.
    pub(crate) fn release_memory(&self) {
        self.send.release_memory();
        self.recv.release_memory();
    }

    /// Publishes statistics to the handles.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut lock(&self.stats));
    }

    /// Whether the last handle is gone: no more reads or writes.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }
}

/// Handles.
impl Shared {
    /// Queues a message, see [`SendQueue::poll_send_message`].
    pub(crate) fn poll_send_message(
        &self,
        wait: &mut Wait<'_>,
        message: &[u8],
    ) -> Poll<io::Result<()>> {
        let max = self.max_message.load(Ordering::Relaxed);
        self.send.poll_send_message(wait, message, max)
    }

    /// A future that waits for the end.
    pub(crate) fn end_waiter(&self) -> Waiter<'_> {
        Waiter::new(&self.end_waiters)
    }

    /// Ready with the reason once the connection has ended.
    pub(crate) fn poll_ended(&self, wait: &mut Wait<'_>) -> Poll<ConnectionError> {
        // Registered before the check, so that no end is missed.
        drop(self.end_waiters.register(wait));
        self.error().map_or(Poll::Pending, Poll::Ready)
    }

    /// The latest statistics. Queued bytes count as unsent.
    pub(crate) fn stats(&self) -> ConnectionStats {
        let waiting = self.send.unsent_bytes();
        let mut stats = lock(&self.stats).stats();
        stats.unsent_bytes = stats.unsent_bytes.saturating_add(waiting as u64);
        stats.out_of_band.dropped = self.datagrams.dropped();
        stats
    }

    /// Whether this connection belongs to the endpoint of `notifier`.
    pub(crate) fn is_of(&self, notifier: &Notifier) -> bool {
        std::ptr::eq(self.notifier.endpoint(), notifier)
    }

    /// Sets the linger time of this connection, rounded up to milliseconds.
    pub(crate) fn set_linger(&self, time: Option<Duration>) -> Result<(), ConfigError> {
        self.options.set_linger(time)?;
        self.notifier.notify();
        Ok(())
    }

    pub(crate) fn set_write_policy(&self, policy: WritePolicy) {
        self.options.set_write_policy(policy);
        self.notifier.set(Setting::WritePolicy(policy));
    }

    /// The last handle is gone.
    fn detach(&self) {
        // Set before the notification, so that its exchange sees the flag.
        self.detached.store(true, Ordering::Release);
        // Data delivered before the receive queue is locked is cleared here, later data is discarded.
        let queues = (self.send.detach(), self.recv.detach());
        let (receivers, unread) = self.datagrams.detach();
        drop((queues, self.established.detach(), unread));
        self.notifier.notify();
        receivers.for_each(Waker::wake);
    }
}

/// Addresses.
impl Shared {
    /// Address of the peer.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.path().peer
    }

    /// The path to the peer.
    pub(crate) fn path(&self) -> Path {
        *lock(&self.path)
    }

    /// Address the socket is bound to.
    pub(crate) fn local(&self) -> SocketAddr {
        self.notifier.endpoint().local()
    }

    /// The peer has migrated, or the local address has changed.
    pub(crate) fn set_path(&self, path: Path) {
        *lock(&self.path) = path;
    }
}

/// The end of the connection.
impl Shared {
    /// Ends the connection. Pending and later calls report `error`, reads after the delivered bytes. Discards
    /// queued writes. The first error stays. `is_delivered`: the peer has read all taken data. Returns the
    /// tasks to wake.
    pub(crate) fn end(
        &self,
        error: ConnectionError,
        is_delivered: bool,
    ) -> impl Iterator<Item = Waker> + use<> {
        let (writers, shutdown) = self.send.fail(error, is_delivered);
        let (readers, receivers) = (self.recv.fail(error), self.datagrams.fail(error));
        let established = self.established.fail(error);
        let single = [shutdown, established].into_iter().flatten();
        let ended = self.end_waiters.take_all();
        writers.chain(readers).chain(receivers).chain(ended).chain(single)
    }

    /// Returns why the connection failed, once.
    pub(crate) fn take_error(&self) -> Option<ConnectionError> {
        let error = self.error().filter(|error| *error != ConnectionError::Closed)?;
        self.options.take_error(error)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe("Shared", f)
    }
}

/// A counted reference of the application to a connection. Dropping the last one detaches the
/// connection: the driver delivers written data and then removes it.
pub(crate) struct Handle(Arc<Shared>);

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }

    /// Whether both belong to the same connection.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// An uncounted reference: it does not keep the connection attached.
    pub(crate) fn uncounted(&self) -> Arc<Shared> {
        self.0.clone()
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Deref for Handle {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.detach();
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe("Handle", f)
    }
}

/// Value of `Options::linger` while `Config::linger` applies.
const CONFIGURED: usize = usize::MAX;
/// Milliseconds in a day.
const MAX_LINGER_MILLIS: u64 = 24 * 60 * 60 * 1_000;

/// Options that the handle reads back: linger, nodelay, `take_error`. Shared state instead of requests: an
/// option set just before a stream is dropped applies to the drop.
pub(crate) struct Options {
    /// Milliseconds, or `CONFIGURED`.
    linger: AtomicUsize,
    /// Milliseconds of `Config::linger`, rounded up.
    configured_linger: u32,
    nodelay: AtomicBool,
    /// True once `take_error` has returned the connection's error.
    error_taken: AtomicBool,
}

impl Options {
    fn new(config: &Config) -> Self {
        Self {
            linger: AtomicUsize::new(CONFIGURED),
            configured_linger: millis(config.linger).try_into().unwrap_or(u32::MAX),
            nodelay: AtomicBool::new(config.kcp.write_policy == WritePolicy::Immediate),
            error_taken: AtomicBool::new(false),
        }
    }

    /// Linger time in effect (SO_LINGER).
    fn linger(&self) -> Duration {
        let configured = Duration::from_millis(self.configured_linger.into());
        self.own_linger().unwrap_or(configured)
    }

    /// Linger time set for this connection; `None` while `Config::linger` applies.
    pub(crate) fn own_linger(&self) -> Option<Duration> {
        let millis = self.linger.load(Ordering::Relaxed);
        (millis != CONFIGURED).then(|| Duration::from_millis(millis as u64))
    }

    /// Sets the linger time, rounded up to milliseconds. The caller notifies the driver, whose close
    /// deadline depends on it.
    fn set_linger(&self, time: Option<Duration>) -> Result<(), ConfigError> {
        let millis = match time {
            Some(time) => {
                let millis = millis(time);
                ConfigError::check("linger (ms)", millis, 0, MAX_LINGER_MILLIS)?;
                usize::try_from(millis).unwrap_or(CONFIGURED)
            }
            None => CONFIGURED,
        };
        self.linger.store(millis, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn nodelay(&self) -> bool {
        self.nodelay.load(Ordering::Relaxed)
    }

    fn set_write_policy(&self, policy: WritePolicy) {
        self.nodelay.store(policy == WritePolicy::Immediate, Ordering::Relaxed);
    }

    /// Returns `error` on the first call.
    fn take_error(&self, error: ConnectionError) -> Option<ConnectionError> {
        (!self.error_taken.swap(true, Ordering::Relaxed)).then_some(error)
    }
}

/// Whole milliseconds, rounded up: only zero is zero.
fn millis(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000)
}
