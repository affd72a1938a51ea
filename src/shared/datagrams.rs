//! Out-of-band datagrams: one small queue per direction, which drops the oldest when full.

use std::collections::VecDeque;
use std::io::{self, Error, ErrorKind};
use std::mem;
use std::task::{Poll, Waker};

use bytes::Bytes;

use crate::config::Setting;
use crate::error::ConnectionError;
use crate::shared::memory_use::charge;
use crate::shared::notifier::ConnNotifier;
use crate::shared::waiters::{Registration, Wait, WaitQueue, Waiter, Waiters, WakeList};
use crate::util::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// Charge limit of one queue in bytes. The oldest datagrams are dropped beyond it: newer ones matter
/// more.
const QUEUE_CAPACITY: usize = 256 * 1024;

/// The same for received datagrams before the application has asked for any.
const UNASKED_CAPACITY: usize = 16 * 1024;

/// Whether the peer takes datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramSupport {
    /// Not known yet: outgoing datagrams wait. `asked`: a HELLO asks the peer.
    Unknown { asked: bool },
    /// Yes, or this side sends FEC headers, with which kcp-go takes them.
    Supported,
    /// Not without FEC.
    Unsupported,
}

#[derive(Default)]
struct Queue {
    datagrams: VecDeque<Bytes>,
    /// Sum of the charges.
    charged: usize,
    dropped: u64,
}

impl Queue {
    /// Adds a datagram and drops the oldest above `capacity`, at worst this one.
    fn push(&mut self, datagram: Bytes, capacity: usize) {
        self.charged += charge(datagram.len());
        self.datagrams.push_back(datagram);
        while self.charged > capacity && self.pop().is_some() {
            self.dropped += 1;
        }
    }

    fn pop(&mut self) -> Option<Bytes> {
        let datagram = self.datagrams.pop_front()?;
        self.charged -= charge(datagram.len());
        Some(datagram)
    }

    fn take(&mut self) -> VecDeque<Bytes> {
        self.charged = 0;
        mem::take(&mut self.datagrams)
    }
}

/// The out-of-band datagrams of one connection.
pub(crate) struct Datagrams {
    notifier: Arc<ConnNotifier>,
    /// True while a datagram may leave: a hint that saves the driver a lock.
    has_outgoing: AtomicBool,
    /// Charge of the received datagrams that are not read.
    unread: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    /// `None` until the first datagram or receiver: most connections never have any.
    active: Option<Box<Active>>,
    support: DatagramSupport,
    /// True once the application has a handle.
    in_use: bool,
    /// True once the last handle of the stream is gone: received datagrams are discarded.
    detached: bool,
    /// True once the driver has removed the connection: unread datagrams count in `MemoryUse`.
    outlived: bool,
    error: Option<ConnectionError>,
}

#[derive(Default)]
struct Active {
    outgoing: Queue,
    incoming: Queue,
    receivers: Waiters,
}

impl State {
    fn active(&mut self) -> &mut Active {
        self.active.get_or_insert_default()
    }

    fn take_receivers(&mut self) -> WakeList {
        self.active.as_mut().map(|active| active.receivers.take_all()).unwrap_or_default()
    }

    /// Why no more datagrams move.
    fn check_open(&self) -> io::Result<()> {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        if self.detached {
            let text =
                "the stream was dropped: keep it, or one of its halves, while datagrams are in use";
            return Err(Error::new(ErrorKind::NotConnected, text));
        }
        Ok(())
    }
}

/// The queues of a detached connection, to be dropped outside the lock.
pub(super) type Unread = Option<[VecDeque<Bytes>; 2]>;

/// Driver.
impl Datagrams {
    pub(super) fn new(support: DatagramSupport, notifier: Arc<ConnNotifier>) -> Self {
        let state = State {
            active: None,
            support,
            in_use: false,
            detached: false,
            outlived: false,
            error: None,
        };
        Self {
            notifier,
            has_outgoing: AtomicBool::new(false),
            unread: AtomicUsize::new(0),
            state: Mutex::new(state),
        }
    }

    /// The next datagram to send. The others stay in the queue, so that the oldest is dropped when it is
    /// full.
    pub(crate) fn next_outgoing(&self) -> Option<Bytes> {
        if !self.has_outgoing() {
            return None;
        }
        let mut state = lock(&self.state);
        let outgoing = &mut state.active.as_mut()?.outgoing;
        let next = outgoing.pop();
        self.has_outgoing.store(!outgoing.datagrams.is_empty(), Ordering::Relaxed);
        next
    }

    /// Whether a datagram may leave: a hint that takes no lock.
    pub(crate) fn has_outgoing(&self) -> bool {
        self.has_outgoing.load(Ordering::Relaxed)
    }

    /// The peer has shown whether it takes datagrams: the queued ones may leave, or are discarded.
    pub(crate) fn set_supported(&self, supported: bool) {
        let mut state = lock(&self.state);
        state.support =
            if supported { DatagramSupport::Supported } else { DatagramSupport::Unsupported };
        let Some(active) = &mut state.active else { return };
        let outgoing = &mut active.outgoing;
        let mut unsent = VecDeque::new();
        if !supported {
            unsent = outgoing.take();
            outgoing.dropped += unsent.len() as u64;
        }
        self.has_outgoing.store(!outgoing.datagrams.is_empty(), Ordering::Relaxed);
        drop(state);
        drop(unsent);
    }

    /// Queues a received datagram within `quota` bytes. Returns the receivers to wake.
    pub(crate) fn deliver(&self, datagram: Bytes, quota: usize) -> WakeList {
        let mut state = lock(&self.state);
        if state.detached {
            return WakeList::default();
        }
        let capacity = if state.in_use { QUEUE_CAPACITY } else { UNASKED_CAPACITY };
        let incoming = &mut state.active().incoming;
        incoming.push(datagram, quota.min(capacity));
        self.unread.store(incoming.charged, Ordering::Relaxed);
        state.take_receivers()
    }

    /// The driver removes the connection: unread datagrams count in `MemoryUse` until they are read or
    /// dropped.
    pub(super) fn outlive(&self) {
        let mut state = lock(&self.state);
        state.outlived = true;
        let unread = state.active.as_ref().map_or(0, |active| active.incoming.charged);
        self.notifier.endpoint().memory().on_outlived(unread);
    }

    /// The connection has ended. Discards unsent datagrams; received ones stay readable. Returns the
    /// receivers to wake.
    pub(super) fn fail(&self, error: ConnectionError) -> WakeList {
        let mut state = lock(&self.state);
        state.error.get_or_insert(error);
        let unsent = state.active.as_mut().map(|active| active.outgoing.take());
        self.has_outgoing.store(false, Ordering::Relaxed);
        let receivers = state.take_receivers();
        drop(state);
        drop(unsent);
        receivers
    }
}

/// Handles.
impl Datagrams {
    /// Charge of the received datagrams that are not read.
    pub(crate) fn unread_bytes(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    /// Datagrams dropped from both queues, since they were full or the peer takes none.
    pub(super) fn dropped(&self) -> u64 {
        let state = lock(&self.state);
        state.active.as_ref().map_or(0, |active| active.outgoing.dropped + active.incoming.dropped)
    }

    pub(crate) fn support(&self) -> DatagramSupport {
        lock(&self.state).support
    }

    /// The application has a handle. The first time, a HELLO asks whether the peer takes datagrams.
    pub(crate) fn start(&self) {
        let mut state = lock(&self.state);
        state.in_use = true;
        if state.support == (DatagramSupport::Unknown { asked: false }) {
            state.support = DatagramSupport::Unknown { asked: true };
            drop(state);
            self.notifier.set(Setting::Datagrams);
        }
    }

    /// A future that waits for a datagram.
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        Waiter::new(self)
    }

    /// Queues a datagram to be sent.
    pub(crate) fn send(&self, datagram: Bytes) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.check_open()?;
        if state.support == DatagramSupport::Unsupported {
            let text = "the peer takes no datagrams without FEC: set Redundancy::Fec, or try again \
                        in a minute if it has not answered yet";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        state.active().outgoing.push(datagram, QUEUE_CAPACITY);
        if state.support != DatagramSupport::Supported {
            return Ok(());
        }
        self.has_outgoing.store(true, Ordering::Relaxed);
        drop(state);
        self.notifier.notify();
        Ok(())
    }

    /// The next datagram received.
    pub(crate) fn poll_recv(&self, wait: &mut Wait<'_>) -> Poll<io::Result<Bytes>> {
        let mut state = lock(&self.state);
        let outlived = state.outlived;
        if let Some(active) = &mut state.active
            && let Some(datagram) = active.incoming.pop()
        {
            self.unread.store(active.incoming.charged, Ordering::Relaxed);
            if outlived {
                self.notifier.endpoint().memory().on_outlived_read(charge(datagram.len()));
            }
            return Poll::Ready(Ok(datagram));
        }
        if let Err(error) = state.check_open() {
            return Poll::Ready(Err(error));
        }
        let replaced = match wait {
            Wait::No => None,
            wait => state.active().receivers.register(wait),
        };
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// The last handle of the stream is gone: discards both queues and later datagrams. Returns the
    /// receivers to wake.
    pub(super) fn detach(&self) -> (WakeList, Unread) {
        let mut state = lock(&self.state);
        if state.outlived {
            let unread = state.active.as_ref().map_or(0, |active| active.incoming.charged);
            self.notifier.endpoint().memory().on_outlived_read(unread);
        }
        state.detached = true;
        let receivers = state.take_receivers();
        self.has_outgoing.store(false, Ordering::Relaxed);
        self.unread.store(0, Ordering::Relaxed);
        let active = state.active.as_mut();
        (receivers, active.map(|active| [active.outgoing.take(), active.incoming.take()]))
    }
}

impl WaitQueue for Datagrams {
    fn cancel(&self, registration: &Registration) -> Option<Waker> {
        lock(&self.state).active.as_mut()?.receivers.cancel(registration)
    }
}
