//! What the handles of one conversation share with the driver: two byte queues, a few flags, and
//! the wakers of whoever waits. No protocol state.
//!
//! The locks are leaves: no code holds two of them, or one of them and the mailbox's. Under a lock
//! pointers move, bytes are copied outside. Wakers leave a critical section as values and run, or
//! are dropped, after it.
//!
//! Who calls what: the driver calls [`begin`](Shared::begin), then [`take_writes`] and [`room`],
//! [`deliver`]; the handles call the rest, through [`Handle`]. One task waits per direction: the
//! last one to register is woken.
//!
//! [`take_writes`]: Shared::take_writes
//! [`room`]: Shared::room
//! [`deliver`]: Shared::deliver

#[cfg(all(test, loom))]
pub(crate) mod loom_tests;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::net::SocketAddr;
use std::ops::Deref;
use std::task::Waker;

pub(crate) use crate::shared::recv_queue::ReadBuffer;
pub(crate) use crate::shared::send_queue::Outgoing;

use crate::config::{Config, Mode, SEGMENT_HEADER, Setting};
use crate::error::ConnectionError;
use crate::shared::datagrams::Datagrams;
use crate::shared::notifier::{ConnId, Mailbox, Request};
use crate::shared::options::Options;
use crate::shared::recv_queue::RecvQueue;
use crate::shared::send_queue::SendQueue;
use crate::stats::{ConnectionStats, Snapshot};
use crate::util::queue;
use crate::util::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// Least that a chunk counts for in a queue. A chunk has a price beyond its bytes (its entry, its
/// allocation); without this a peer that sends single bytes or empty messages, or an application
/// that writes them, would fill a queue with many times the configured memory.
pub(crate) const CHUNK_CHARGE: usize = 64;

/// An empty queue keeps room for this many chunks; what a burst needed beyond that is released, so
/// that an idle conversation stays small.
const KEEP: usize = 8;

/// Everyone to wake at the end of a conversation.
pub(crate) type Ended = [Option<Waker>; 5];

/// One conversation, as its driver and its handles see it.
pub(crate) struct Shared {
    pub(crate) id: ConnId,
    pub(crate) conv: u32,
    /// Changes only where the peer moves. Its lock is a leaf.
    pub(super) peer: Mutex<SocketAddr>,
    pub(crate) mode: Mode,
    /// Largest datagram in bytes now. Only ever falls.
    pub(crate) mtu: AtomicUsize,
    /// Bytes that FEC and the cipher add to each KCP datagram.
    pub(crate) overhead: usize,
    /// Whether this side sends with FEC framing, which out-of-band datagrams are a part of.
    pub(crate) framed: bool,
    /// Largest message in bytes that the driver accepts now.
    pub(crate) max_message: AtomicUsize,
    pub(super) mailbox: Arc<Mailbox>,
    /// The id is in the mailbox, or the driver has not looked since it was.
    pub(super) notified: AtomicBool,
    pub(super) handles: AtomicUsize,
    pub(super) detached: AtomicBool,
    pub(super) send_buffer: usize,
    pub(super) recv_buffer: usize,
    pub(super) options: Options,
    /// Copy of `SendQueue::queued` for a writer that does not hold the lock: a hint, checked again
    /// under it.
    pub(super) tx_queued: AtomicUsize,
    pub(super) tx: Mutex<SendQueue>,
    pub(super) rx: Mutex<RecvQueue>,
    /// Whether the driver has datagrams to take: a hint that saves it a lock.
    pub(super) has_datagrams: AtomicBool,
    pub(super) datagrams: Mutex<Datagrams>,
    pub(super) stats: Mutex<Snapshot>,
}

impl Shared {
    /// A new conversation. Until the driver says more, a message may fill one segment.
    pub(crate) fn new(
        id: ConnId,
        conv: u32,
        peer: SocketAddr,
        config: &Config,
        mailbox: Arc<Mailbox>,
    ) -> Arc<Self> {
        let (mtu, overhead) = (usize::from(config.kcp.mtu), config.overhead());
        Arc::new(Self {
            id,
            conv,
            peer: Mutex::new(peer),
            mode: config.kcp.mode,
            mtu: AtomicUsize::new(mtu),
            overhead,
            framed: config.fec.is_some(),
            max_message: AtomicUsize::new(mtu.saturating_sub(overhead + SEGMENT_HEADER)),
            mailbox,
            notified: AtomicBool::new(false),
            handles: AtomicUsize::new(0),
            detached: AtomicBool::new(false),
            send_buffer: config.send_buffer,
            recv_buffer: config.recv_buffer,
            options: Options::new(config),
            tx_queued: AtomicUsize::new(0),
            tx: Mutex::new(SendQueue::default()),
            rx: Mutex::new(RecvQueue::default()),
            has_datagrams: AtomicBool::new(false),
            datagrams: Mutex::new(Datagrams::default()),
            stats: Mutex::new(Snapshot::default()),
        })
    }

    /// Asks the driver to look at this conversation. Called after the queues have changed.
    pub(super) fn notify(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            self.mailbox.push(self.id);
        }
    }

    /// Driver: a look begins. Called before the queues are read: whatever changes from here on
    /// puts the id into the mailbox again.
    pub(crate) fn begin(&self) {
        // A swap and not a store: it acquires what the last notifier did.
        self.notified.swap(false, Ordering::AcqRel);
    }

    /// Driver: ends the conversation. Every pending and later call reports `error`, reads once the
    /// bytes delivered before are read. What was written and not taken is discarded. The first
    /// error stays.
    pub(crate) fn end(&self, error: ConnectionError) -> Ended {
        let mut tx = lock(&self.tx);
        tx.fault.get_or_insert(error);
        let discarded = tx.clear();
        self.tx_queued.store(0, Ordering::Relaxed);
        let (writer, shutdown) = (tx.writer.take(), tx.shutdown.take());
        drop(tx);
        drop(discarded);
        let mut rx = lock(&self.rx);
        rx.fault.get_or_insert(error);
        let (reader, opener) = (rx.reader.take(), rx.established_waker.take());
        drop(rx);
        let mut datagrams = lock(&self.datagrams);
        datagrams.fault.get_or_insert(error);
        let unsent = datagrams.clear_unsent();
        let receiver = datagrams.reader.take();
        drop(datagrams);
        drop(unsent);
        [writer, shutdown, reader, opener, receiver]
    }

    /// The address of the peer.
    pub(crate) fn peer(&self) -> SocketAddr {
        *lock(&self.peer)
    }

    /// Driver: the conversation rests. Gives back the room of queues that are empty.
    pub(crate) fn release_memory(&self) {
        let written = queue::release(&mut lock(&self.tx).chunks);
        drop(written);
        let received = queue::release(&mut lock(&self.rx).chunks);
        drop(received);
    }

    /// Driver: the peer has moved.
    pub(crate) fn set_peer(&self, peer: SocketAddr) {
        *lock(&self.peer) = peer;
    }

    /// Driver: changes the statistics that handles see.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut lock(&self.stats));
    }

    /// Whether the last handle is gone: nobody reads or writes any more.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    /// The latest statistics, bytes that still wait for the driver included.
    pub(crate) fn stats(&self) -> ConnectionStats {
        let waiting = lock(&self.tx).bytes;
        let mut stats = lock(&self.stats).stats();
        stats.unsent_bytes = stats.unsent_bytes.saturating_add(waiting as u64);
        stats.out_of_band_dropped = self.dropped_datagrams();
        stats
    }

    /// Why the conversation ended, once it has.
    pub(crate) fn error(&self) -> Option<ConnectionError> {
        lock(&self.tx).fault
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Hands the driver a setting, in the order of the calls.
    pub(crate) fn set(&self, setting: Setting) {
        self.mailbox.command(Request::Set(self.id, setting));
    }

    /// Formats whatever stands for this conversation.
    pub(crate) fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("conv", &self.conv)
            .field("peer", &self.peer())
            .field("local", &self.mailbox.local())
            .finish_non_exhaustive()
    }

    /// The last handle is gone.
    fn detach(&self) {
        // The flag comes first: a delivery that misses it has finished before the queue is
        // cleared below, a later one sees it under the lock.
        self.detached.store(true, Ordering::Release);
        let mut tx = lock(&self.tx);
        let writers = (tx.writer.take(), tx.shutdown.take());
        drop(tx);
        let mut rx = lock(&self.rx);
        let readers = (rx.reader.take(), rx.established_waker.take());
        let unread = rx.clear();
        drop(rx);
        let mut datagrams = lock(&self.datagrams);
        let (receiver, unheard) = (datagrams.reader.take(), datagrams.clear());
        drop(datagrams);
        drop((writers, readers, unread, receiver, unheard));
        self.notify();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe("Shared", f)
    }
}

/// One user of a conversation. When the last one is dropped the conversation is detached: the
/// driver delivers what was written and then lets go of it.
pub(crate) struct Handle(Arc<Shared>);

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }

    /// Whether both belong to the same conversation.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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

/// What `len` bytes in one chunk count for.
pub(super) fn charge(len: usize) -> usize {
    len.max(CHUNK_CHARGE)
}

/// The storage of a queue that is empty and large, to be dropped outside the lock.
pub(super) fn surplus<T>(queue: &mut VecDeque<T>) -> Option<VecDeque<T>> {
    (queue.is_empty() && queue.capacity() > KEEP).then(|| mem::take(queue))
}
