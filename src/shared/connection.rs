//! [`Shared`]: what the handles of one connection share with the driver. Composes the queues and
//! notifies the driver. No protocol state.
//!
//! Locks are leaves, but for that of the buffer pool: no code holds two of them, or one of them and one
//! of the notifier. Under a lock pointers move; bytes are copied outside, but for writes below 16 KiB.
//! Wakers leave a critical section as values, and are woken or dropped after it.
//!
//! The driver calls [`begin_exchange`](Shared::begin_exchange) first, then
//! [`take_writes`](Shared::take_writes), [`recv_available`](Shared::recv_available) and
//! [`deliver`](Shared::deliver); the handles call the rest, through [`Handle`]. One task waits per
//! direction in `poll_*` calls, the last one to register, and any number in futures.

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

use bytes::{Bytes, BytesMut};

use crate::config::{Config, Mode, SEGMENT_HEADER, Setting, WritePolicy};
use crate::error::{ConfigError, ConnectionError};
use crate::fec::FecConfig;
use crate::shared::datagrams::{DatagramSupport, Datagrams};
use crate::shared::notifier::{ConnId, ConnNotifier, Notifier};
use crate::shared::recv_queue::{ReadBuffer, RecvQueue};
use crate::shared::send_queue::{Backlog, Outgoing, SendQueue, TakenWrites};
use crate::shared::waiters::{
    EndWaiters, Established, Registration, Wait, WaitQueue, Waiter, WakeList,
};
use crate::stats::{ConnectionStats, Snapshot};
use crate::util::path::Path;
use crate::util::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// One connection, as its driver and its handles see it.
pub(crate) struct Shared {
    pub(crate) conv: u32,
    /// Address of the peer, and of this side. Changes only by migration. The lock is a leaf.
    path: Mutex<Path>,
    pub(crate) mode: Mode,
    /// Largest datagram in bytes now. Only ever falls.
    pub(crate) mtu: AtomicUsize,
    /// Bytes that FEC and the cipher add to each KCP datagram.
    pub(crate) overhead: usize,
    /// Whether this side sends with FEC framing.
    pub(crate) framed: bool,
    /// Most shards of a FEC group that this side may change to; all layouts from when the peer is
    /// known to learn any.
    pub(crate) max_fec_shards: AtomicUsize,
    /// Largest message in bytes that the driver takes now.
    pub(crate) max_message: AtomicUsize,
    notifier: ConnNotifier,
    /// Number of [`Handle`]s.
    handles: AtomicUsize,
    /// True once the last handle is gone.
    detached: AtomicBool,
    options: Options,
    send: SendQueue,
    recv: RecvQueue,
    established: Established,
    end_waiters: EndWaiters,
    datagrams: Datagrams,
    stats: Mutex<Snapshot>,
}

impl Shared {
    /// A new connection. A message may fill one segment until the driver allows more.
    pub(crate) fn new(
        id: ConnId,
        conv: u32,
        path: Path,
        config: &Config,
        notifier: Arc<Notifier>,
    ) -> Arc<Self> {
        let (mtu, overhead) = (usize::from(config.kcp.mtu), config.overhead());
        let datagrams = match (config.kcp.redundancy.fec(), config.kcp.close_notify) {
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
            send: SendQueue::new(config.send_buffer, notifier.memory().clone()),
            recv: RecvQueue::new(config.recv_buffer),
            notifier: ConnNotifier::new(notifier, id),
            established: Established::new(),
            end_waiters: EndWaiters::new(),
            datagrams: Datagrams::new(datagrams),
            stats: Mutex::new(Snapshot::default()),
        })
    }

    pub(crate) fn id(&self) -> ConnId {
        self.notifier.id()
    }

    /// Why the connection ended, once it has.
    pub(crate) fn error(&self) -> Option<ConnectionError> {
        self.send.error()
    }

    /// How long closing goes on without progress.
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
    /// An exchange begins, before the queues are read: what changes from here on notifies again.
    pub(crate) fn begin_exchange(&self) {
        self.notifier.begin_exchange();
    }

    /// Moves at most `limit` bytes of what was written to the end of `out`, see
    /// [`SendQueue::take_writes`].
    pub(crate) fn take_writes(
        &self,
        limit: usize,
        unit: usize,
        backlog: Backlog,
        out: &mut VecDeque<Outgoing>,
    ) -> TakenWrites {
        // Invariant: an exchange that sees the flag sees every write before the drop. Hence the
        // flag is read before the queue; a later drop notifies again.
        let detached = self.is_detached();
        TakenWrites { detached, ..self.send.take_writes(limit, unit, backlog, out) }
    }

    /// What was taken has left in part, see [`SendQueue::set_backlog`]. Returns the writers to wake.
    pub(crate) fn set_backlog(&self, backlog: Backlog) -> WakeList {
        self.send.set_backlog(backlog)
    }

    /// The peer has acknowledged every byte of a closed write side. Returns the task in `shutdown`.
    pub(crate) fn set_drained(&self) -> Option<Waker> {
        self.send.set_drained()
    }

    /// `shutdown` returns before that, see [`SendQueue::deliver_in_background`].
    pub(crate) fn deliver_in_background(&self) -> Option<Waker> {
        self.send.deliver_in_background()
    }

    /// Bytes received and not read, as charged.
    pub(crate) fn unread_bytes(&self) -> usize {
        self.recv.charged()
    }

    /// Bytes written and not taken.
    #[cfg(test)]
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.send.unsent_bytes()
    }

    /// Bytes that the receive queue takes now, see [`RecvQueue::available`].
    pub(crate) fn recv_available(&self, quota: usize) -> usize {
        self.recv.available(quota)
    }

    /// Whether the receive queue has data, see [`RecvQueue::has_unread`].
    pub(crate) fn has_unread(&self) -> bool {
        self.recv.has_unread()
    }

    /// Appends what arrived in order, see [`RecvQueue::deliver`]. Returns the readers to wake.
    pub(crate) fn deliver(&self, chunks: &mut VecDeque<Bytes>, held_back: bool) -> WakeList {
        self.recv.deliver(chunks, held_back, &self.notifier)
    }

    /// The peer has ended its stream, and all of it was delivered. Returns the readers to wake.
    pub(crate) fn set_eof(&self) -> WakeList {
        self.recv.set_eof()
    }

    /// The peer has answered. Returns the task in `established`.
    pub(crate) fn set_established(&self) -> Option<Waker> {
        self.established.set()
    }

    /// The next out-of-band datagram to be sent.
    pub(crate) fn next_datagram(&self) -> Option<Bytes> {
        self.datagrams.next_outgoing()
    }

    /// Whether an out-of-band datagram may leave: a hint that takes no lock.
    pub(crate) fn has_datagrams(&self) -> bool {
        self.datagrams.has_outgoing()
    }

    /// The peer has shown whether it takes out-of-band datagrams without FEC.
    pub(crate) fn set_datagrams_supported(&self, supported: bool) {
        self.datagrams.set_supported(supported);
    }

    /// Queues an out-of-band datagram that arrived, see [`Datagrams::deliver`]. Returns the receivers
    /// to wake.
    pub(crate) fn deliver_datagram(&self, datagram: Bytes, quota: usize) -> WakeList {
        self.datagrams.deliver(datagram, quota)
    }

    /// Bytes that out-of-band datagrams which nobody has taken count for.
    pub(crate) fn unread_datagrams(&self) -> usize {
        self.datagrams.unread_bytes()
    }

    /// The driver removes the connection: what was not read counts as the endpoint's until it is.
    pub(crate) fn outlive(&self) {
        self.recv.outlive(&self.notifier);
        self.datagrams.outlive(&self.notifier);
    }

    /// The connection is idle: frees the memory of empty queues.
    pub(crate) fn release_memory(&self) {
        self.send.release_memory();
        self.recv.release_memory();
    }

    /// Changes the statistics that handles see.
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
    /// A future that waits to read.
    pub(crate) fn read_waiter(&self) -> Waiter<'_> {
        Waiter::new(&self.recv)
    }

    /// A future that waits to write.
    pub(crate) fn write_waiter(&self) -> Waiter<'_> {
        Waiter::new(&self.send)
    }

    /// Readiness for writing, see [`SendQueue::poll_write_ready`].
    pub(crate) fn poll_write_ready(&self, wait: &mut Wait<'_>) -> Poll<()> {
        self.send.poll_write_ready(wait)
    }

    /// Waits for capacity, see [`SendQueue::poll_reserve`].
    pub(crate) fn poll_reserve(&self, wait: &mut Wait<'_>) -> Poll<io::Result<usize>> {
        self.send.poll_reserve(wait)
    }

    /// Writes a chunk that there is capacity for, see [`SendQueue::write_reserved`].
    pub(crate) fn write_reserved(&self, data: Bytes) -> io::Result<()> {
        self.send.write_reserved(data, &self.notifier)
    }

    /// Writes a part of `len` bytes, see [`SendQueue::poll_write_with`].
    pub(crate) fn poll_write_with(
        &self,
        wait: &mut Wait<'_>,
        (len, joins): (usize, bool),
        copy: impl Fn(usize, &mut BytesMut),
    ) -> Poll<io::Result<usize>> {
        self.send.poll_write_with(wait, (len, joins), copy, &self.notifier)
    }

    /// Writes a whole message, see [`SendQueue::poll_send_message`].
    pub(crate) fn poll_send_message(
        &self,
        wait: &mut Wait<'_>,
        message: &[u8],
    ) -> Poll<io::Result<()>> {
        let max = self.max_message.load(Ordering::Relaxed);
        self.send.poll_send_message(wait, message, max, &self.notifier)
    }

    /// Lets what was written leave without further delay.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.send.flush(&self.notifier)
    }

    /// Closes the write side. What was written is still delivered.
    pub(crate) fn close_write(&self) {
        self.send.close(&self.notifier);
    }

    /// Closes the write side; ready when the peer has acknowledged every byte.
    pub(crate) fn poll_shutdown(&self, waker: &Waker) -> Poll<io::Result<()>> {
        self.send.poll_shutdown(waker, &self.notifier)
    }

    /// Asks the driver to end the connection, and discards what was written.
    pub(crate) fn abort(&self) {
        self.send.abort(&self.notifier);
    }

    /// Moves what was delivered to the reader's own end, see [`RecvQueue::poll_refill`].
    pub(crate) fn poll_refill(
        &self,
        buffer: &mut ReadBuffer,
        wait: &mut Wait<'_>,
    ) -> Poll<io::Result<()>> {
        self.recv.poll_refill(buffer, wait, &self.notifier)
    }

    /// Whether nothing more will be delivered, see [`RecvQueue::is_closed`].
    pub(crate) fn is_recv_closed(&self, wait: &mut Wait<'_>) -> bool {
        self.recv.is_closed(wait)
    }

    /// Reports what was read, see [`RecvQueue::report_read`].
    pub(crate) fn report_read(&self, buffer: &mut ReadBuffer) {
        self.recv.report_read(buffer, &self.notifier);
    }

    /// Ready once the peer has answered, or with the error of a connection that ended before.
    pub(crate) fn poll_established(&self, waker: &Waker) -> Poll<io::Result<()>> {
        self.established.poll(waker)
    }

    /// A future that waits for the end.
    pub(crate) fn end_waiter(&self) -> Waiter<'_> {
        Waiter::new(&self.end_waiters)
    }

    /// Ready with why the connection ended, once it has.
    pub(crate) fn poll_ended(&self, wait: &mut Wait<'_>) -> Poll<ConnectionError> {
        // Registered first: an end from here on wakes the task.
        drop(self.end_waiters.register(wait));
        self.error().map_or(Poll::Pending, Poll::Ready)
    }

    /// An out-of-band datagram may be sent: asks the peer whether it takes any, once.
    pub(crate) fn start_datagrams(&self) {
        if self.datagrams.start() {
            self.set(Setting::Datagrams);
        }
    }

    /// Whether the peer takes out-of-band datagrams.
    pub(crate) fn datagram_support(&self) -> DatagramSupport {
        self.datagrams.support()
    }

    /// Queues an out-of-band datagram to be sent.
    pub(crate) fn send_datagram(&self, datagram: Bytes) -> io::Result<()> {
        self.datagrams.send(datagram, &self.notifier)
    }

    /// A future that waits for an out-of-band datagram.
    pub(crate) fn datagram_waiter(&self) -> Waiter<'_> {
        Waiter::new(&self.datagrams)
    }

    /// A receiver of out-of-band datagrams is gone. The caller drops the result.
    pub(crate) fn cancel_datagram(&self, registration: &Registration) -> Option<Waker> {
        self.datagrams.cancel(registration)
    }

    /// The next out-of-band datagram received.
    pub(crate) fn poll_datagram(&self, wait: &mut Wait<'_>) -> Poll<io::Result<Bytes>> {
        self.datagrams.poll_recv(wait, &self.notifier)
    }

    /// The latest statistics. Bytes that the driver has not taken yet count as unsent.
    pub(crate) fn stats(&self) -> ConnectionStats {
        let waiting = self.send.unsent_bytes();
        let mut stats = lock(&self.stats).stats();
        stats.unsent_bytes = stats.unsent_bytes.saturating_add(waiting as u64);
        stats.out_of_band_dropped = self.datagrams.dropped();
        stats
    }

    /// Whether this connection belongs to the endpoint of `notifier`.
    pub(crate) fn is_of(&self, notifier: &Notifier) -> bool {
        std::ptr::eq(self.notifier.endpoint(), notifier)
    }

    /// Hands the driver a setting, in the order of the calls.
    pub(crate) fn set(&self, setting: Setting) {
        self.notifier.set(setting);
    }

    /// The linger time that was set for this connection.
    pub(crate) fn own_linger(&self) -> Option<Duration> {
        self.options.own_linger()
    }

    /// Sets the linger time of this connection, in whole milliseconds.
    pub(crate) fn set_linger(&self, time: Option<Duration>) -> Result<(), ConfigError> {
        self.options.set_linger(time)?;
        self.notifier.notify();
        Ok(())
    }

    pub(crate) fn nodelay(&self) -> bool {
        self.options.nodelay()
    }

    pub(crate) fn set_write_policy(&self, policy: WritePolicy) {
        self.options.set_write_policy(policy);
        self.set(Setting::WritePolicy(policy));
    }

    /// The last handle is gone.
    fn detach(&self) {
        // The flag comes before the notification: the exchange after it sees the flag.
        self.detached.store(true, Ordering::Release);
        // What was delivered before the receive queue is locked is cleared, later data is
        // discarded.
        let queues = (self.send.detach(), self.recv.detach(&self.notifier));
        let (receivers, unread) = self.datagrams.detach(&self.notifier);
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

    /// The peer has migrated, or another address of this host is taken.
    pub(crate) fn set_path(&self, path: Path) {
        *lock(&self.path) = path;
    }
}

/// The end of the connection, as the driver reports it and handles see it.
impl Shared {
    /// Ends the connection. Every pending and later call reports `error`, reads once the bytes
    /// delivered before are read. What was written and not taken is discarded. The first error
    /// stays. `is_delivered`: the peer has read what was taken. Returns all tasks to wake.
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

    /// Why the connection failed, once.
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
/// connection: the driver delivers what was written and then removes it.
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

    /// A reference that is not counted: it does not keep the connection attached.
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
struct Options {
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
    fn own_linger(&self) -> Option<Duration> {
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

    fn nodelay(&self) -> bool {
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
