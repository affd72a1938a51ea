//! The mailbox of one endpoint: which conversations want the driver's attention, what it is asked
//! to do, and how to wake it.
//!
//! Its lock is a leaf: no other lock is taken while it is held, and wakers run after its release.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::task::Waker;

use bytes::Bytes;
#[cfg(not(loom))]
use tokio::sync::oneshot;

use crate::config::Setting;
#[cfg(not(loom))]
use crate::listener::KcpListener;
use crate::stats::EndpointStats;
#[cfg(not(loom))]
use crate::stream::KcpStream;
#[cfg(not(loom))]
use crate::sys::UdpSocket;
use crate::util::sync::{Arc, AtomicUsize, Mutex, Ordering, lock};

/// Datagrams that wait to be sent as they are; beyond that the oldest makes room.
const RAW: usize = 256;

/// Names one conversation of an endpoint. A reused slot has a new generation, so that what was
/// queued for an ended conversation never reaches its successor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ConnId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// What a handle asks of the driver beyond reading and writing.
#[derive(Debug)]
pub(crate) enum Request {
    /// Change a setting of a running conversation.
    Set(ConnId, Setting),
    /// Open a conversation, with this id or as configured.
    #[cfg(not(loom))]
    Connect { peer: SocketAddr, conv: Option<u32>, reply: oneshot::Sender<io::Result<KcpStream>> },
    /// Let peers open conversations.
    #[cfg(not(loom))]
    Listen(oneshot::Sender<io::Result<KcpListener>>),
    /// Go on with another socket.
    #[cfg(not(loom))]
    Rebind(Rebind, oneshot::Sender<io::Result<()>>),
    /// Tell when everything lingering is delivered.
    #[cfg(not(loom))]
    WaitIdle(oneshot::Sender<()>),
}

/// Another socket.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) enum Rebind {
    /// The first of these that can be bound.
    Bind(Vec<SocketAddr>),
    /// This one.
    Socket(Box<UdpSocket>),
}

/// What the handles of an endpoint share with its driver: queues to it, its counters, and where it
/// is bound.
#[derive(Debug)]
pub(crate) struct Mailbox {
    inner: Mutex<Inner>,
    stats: Mutex<EndpointStats>,
    /// The only place that knows: it changes when the socket is replaced.
    local: Mutex<SocketAddr>,
    raw: Mutex<Raw>,
    /// The last socket error that nobody has asked for.
    fault: Mutex<Option<io::Error>>,
    /// Endpoint handles and listeners; while there are any the driver goes on.
    handles: AtomicUsize,
    /// Its socket is one of several with the same address.
    shard: bool,
}

/// Datagrams of other protocols, on their way out.
#[derive(Debug, Default)]
struct Raw {
    datagrams: VecDeque<(SocketAddr, Bytes)>,
    dropped: u64,
}

#[derive(Debug, Default)]
struct Inner {
    ids: Vec<ConnId>,
    commands: Vec<Request>,
    /// The driver's waker. It stays here while the driver runs, so that a turn clones nothing.
    waker: Option<Waker>,
    /// Whether the driver waits for `waker`.
    asleep: bool,
    /// Since the driver looked the last handle went, or a raw datagram came.
    wake_requested: bool,
    /// The driver is gone: whatever comes now is dropped.
    closed: bool,
}

impl Inner {
    fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.commands.is_empty() && !self.wake_requested
    }

    /// The waker to wake, once per sleep.
    fn take_waker(&mut self) -> Option<Waker> {
        if mem::take(&mut self.asleep) { self.waker.take() } else { None }
    }
}

impl Mailbox {
    /// The mailbox of a socket that has its address for itself.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn new() -> Arc<Self> {
        Self::of(false)
    }

    /// The mailbox of one of several sockets with the same address, if it is a `shard`.
    pub(crate) fn of(shard: bool) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner::default()),
            stats: Mutex::new(EndpointStats::default()),
            local: Mutex::new(SocketAddr::from(([0, 0, 0, 0], 0))),
            raw: Mutex::new(Raw::default()),
            fault: Mutex::new(None),
            handles: AtomicUsize::new(0),
            shard,
        })
    }

    /// Queues the id and wakes the driver if it sleeps. The caller has set the conversation's
    /// `notified` flag, so an id is queued at most once between two looks of the driver.
    pub(crate) fn push(&self, id: ConnId) {
        self.put(|inner| inner.ids.push(id));
    }

    /// Queues a command and wakes the driver if it sleeps. Without a driver the command is
    /// dropped, which answers whoever waits for its reply.
    pub(crate) fn command(&self, command: Request) {
        let mut command = Some(command);
        self.put(|inner| {
            if !inner.closed {
                inner.commands.extend(command.take());
            }
        });
    }

    /// Driver: it is gone. Moves out what it did not look at.
    pub(crate) fn close(&self, ids: &mut Vec<ConnId>, commands: &mut Vec<Request>) {
        self.drain(ids, commands);
        lock(&self.inner).closed = true;
        // What slipped in between has no one to answer it either.
        self.drain(ids, commands);
    }

    /// One more handle keeps the endpoint alive.
    pub(crate) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// One handle less; after the last one the driver looks whether it is needed.
    pub(crate) fn remove_handle(&self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.put(|inner| inner.wake_requested = true);
        }
    }

    /// Driver: handles that keep the endpoint alive.
    pub(crate) fn handles(&self) -> usize {
        self.handles.load(Ordering::Acquire)
    }

    /// Whether the socket is one of several with the same address.
    pub(crate) fn is_shard(&self) -> bool {
        self.shard
    }

    /// Driver: replaces the counters that handles see.
    pub(crate) fn publish(&self, stats: &EndpointStats) {
        *lock(&self.stats) = *stats;
    }

    /// The latest counters.
    pub(crate) fn stats(&self) -> EndpointStats {
        *lock(&self.stats)
    }

    /// Driver: where the socket is bound.
    pub(crate) fn set_local(&self, local: SocketAddr) {
        *lock(&self.local) = local;
    }

    /// Where the socket is bound.
    pub(crate) fn local(&self) -> SocketAddr {
        *lock(&self.local)
    }

    /// Queues a datagram that leaves as it is. `false` if there is no driver any more.
    pub(crate) fn send_raw(&self, peer: SocketAddr, datagram: Bytes) -> bool {
        let mut raw = lock(&self.raw);
        let oldest = if raw.datagrams.len() < RAW { None } else { raw.datagrams.pop_front() };
        raw.dropped += u64::from(oldest.is_some());
        raw.datagrams.push_back((peer, datagram));
        drop(raw);
        drop(oldest);
        let mut driven = false;
        self.put(|inner| {
            inner.wake_requested = true;
            driven = !inner.closed;
        });
        driven
    }

    /// Driver: the next datagram to leave as it is.
    pub(crate) fn next_raw(&self) -> Option<(SocketAddr, Bytes)> {
        lock(&self.raw).datagrams.pop_front()
    }

    /// Driver: whether there is one, and how many made room for others.
    pub(crate) fn raw(&self) -> (bool, u64) {
        let raw = lock(&self.raw);
        (!raw.datagrams.is_empty(), raw.dropped)
    }

    /// Driver: an error of the socket that was ridden out.
    pub(crate) fn set_fault(&self, error: io::Error) {
        *lock(&self.fault) = Some(error);
    }

    /// The last error of the socket that was ridden out, once.
    pub(crate) fn take_fault(&self) -> Option<io::Error> {
        lock(&self.fault).take()
    }

    fn put(&self, add: impl FnOnce(&mut Inner)) {
        let mut inner = lock(&self.inner);
        add(&mut inner);
        let waker = inner.take_waker();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Moves everything queued to the end of `ids` and `commands`; with both empty that is an
    /// exchange of vectors, so no memory is allocated in the long run. Until the next
    /// [`register`](Self::register) nothing wakes the driver: it is awake.
    ///
    /// Returns whether anything was taken.
    pub(crate) fn drain(&self, ids: &mut Vec<ConnId>, commands: &mut Vec<Request>) -> bool {
        let mut inner = lock(&self.inner);
        inner.asleep = false;
        let any = !inner.is_empty();
        inner.wake_requested = false;
        take(&mut inner.ids, ids);
        take(&mut inner.commands, commands);
        any
    }

    /// Registers the waker of a driver about to sleep. Returns true, and registers nothing, if
    /// something is queued already: the driver must look again instead.
    pub(crate) fn register(&self, waker: &Waker) -> bool {
        let mut inner = lock(&self.inner);
        if !inner.is_empty() {
            return true;
        }
        inner.asleep = true;
        let replaced = register_waker(&mut inner.waker, waker);
        drop(inner);
        drop(replaced);
        false
    }
}

fn take<T>(from: &mut Vec<T>, to: &mut Vec<T>) {
    if to.is_empty() {
        mem::swap(from, to);
    } else {
        to.append(from);
    }
}

/// Stores `waker` unless the stored one wakes the same task. Returns the one it replaced, to be
/// dropped once the lock is released: the last waker of a task drops the task, and with it
/// whatever handles that owns.
#[must_use]
pub(crate) fn register_waker(slot: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match slot {
        Some(stored) if stored.will_wake(waker) => None,
        _ => slot.replace(waker.clone()),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::config::AckPolicy;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn id(slot: u32) -> ConnId {
        ConnId { slot, generation: 0 }
    }

    #[test]
    fn wakes_once_per_registration() {
        let mailbox = Mailbox::new();
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let woken = || count.0.load(Ordering::Relaxed);
        let (mut ids, mut commands) = (Vec::new(), Vec::new());

        assert!(!mailbox.register(&waker));
        mailbox.push(id(1));
        mailbox.push(id(2));
        mailbox.command(Request::Set(id(1), Setting::AckPolicy(AckPolicy::Immediate)));
        assert_eq!(woken(), 1);
        assert!(mailbox.register(&waker), "something is queued: look again");
        assert!(mailbox.drain(&mut ids, &mut commands));
        assert_eq!((ids.as_slice(), commands.len()), ([id(1), id(2)].as_slice(), 1));

        // A driver that something else woke is not woken by what it is about to drain.
        ids.clear();
        commands.clear();
        assert!(!mailbox.register(&waker));
        assert!(!mailbox.drain(&mut ids, &mut commands));
        mailbox.push(id(3));
        assert_eq!(woken(), 1);
        assert!(mailbox.drain(&mut ids, &mut commands));
        assert_eq!(ids, [id(3)]);
    }

    #[test]
    fn draining_appends_and_reuses_capacity() {
        let mailbox = Mailbox::new();
        let (mut ids, mut commands) = (vec![id(1)], Vec::new());
        mailbox.push(id(2));
        assert!(mailbox.drain(&mut ids, &mut commands));
        assert_eq!(ids, [id(1), id(2)]);
        ids.clear();
        ids.reserve(100);
        mailbox.push(id(3));
        assert!(mailbox.drain(&mut ids, &mut commands));
        assert!(lock(&mailbox.inner).ids.capacity() >= 100);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::shared::connection::loom_tests::Sleeper;

    /// Whatever is pushed while the driver registers or drains reaches it: a lost wake would leave
    /// it asleep, which the model reports as a deadlock.
    #[test]
    fn loom_mailbox_loses_no_wake() {
        loom::model(|| {
            let mailbox = Mailbox::new();
            let pushers = [1, 2].map(|slot| {
                let mailbox = mailbox.clone();
                thread::spawn(move || mailbox.push(ConnId { slot, generation: 0 }))
            });
            let sleeper = Sleeper::new();
            let waker = sleeper.waker();
            let (mut ids, mut commands) = (Vec::new(), Vec::new());
            while ids.len() < 2 {
                if !mailbox.drain(&mut ids, &mut commands) && !mailbox.register(&waker) {
                    sleeper.sleep();
                }
            }
            for pusher in pushers {
                pusher.join().unwrap();
            }
        });
    }
}
