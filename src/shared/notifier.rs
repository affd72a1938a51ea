//! [`Notifier`]: how handles wake the driver of their endpoint.
//!
//! Holds the ids of connections whose queues changed, settings to apply, the driver's waker, and the
//! driver's published state: local address, statistics, last socket error.
//!
//! Locks are leaves: no other lock is taken under one, and wakers run after its release.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::task::Waker;

use crate::config::Setting;
use crate::shared::memory_use::MemoryUse;
use crate::stats::EndpointStats;
use crate::util::queue::move_all;
use crate::util::sync::{Arc, AtomicBool, Mutex, Ordering, lock};

/// Slot and generation. A reused slot has a new generation, so that notifications of an ended connection
/// never reach its successor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ConnId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The notifier of one endpoint. Shared by its driver, its connections and its `RequestQueue`.
#[derive(Debug)]
pub(crate) struct Notifier {
    pending: Mutex<Pending>,
    stats: Mutex<EndpointStats>,
    /// Address of the socket. The only copy, since a rebind changes it.
    local: Mutex<SocketAddr>,
    memory: Arc<MemoryUse>,
    /// Last socket error, transient or fatal, until `Endpoint::take_error` takes it.
    last_error: Mutex<Option<io::Error>>,
}

/// Work for the driver's next turn.
#[derive(Debug, Default)]
struct Pending {
    ids: Vec<ConnId>,
    /// In call order.
    settings: Vec<(ConnId, Setting)>,
    /// True from a [`Notifier::wake`] until the next drain.
    wake_requested: bool,
    driver: DriverState,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.settings.is_empty() && !self.wake_requested
    }
}

/// Whether the driver's task needs a wake.
#[derive(Debug)]
enum DriverState {
    /// In a turn, or woken and about to run. Entered by a drain or a wake, left by
    /// [`Notifier::register`]. Keeps the last waker, so that the next park of the same task clones none.
    Running(Option<Waker>),
    /// Asleep. Entered by [`Notifier::register`], left by the first wake or drain.
    Parked(Waker),
    /// Dropped. Final: ids, settings and wakes are discarded.
    Gone,
}

impl Default for DriverState {
    fn default() -> Self {
        Self::Running(None)
    }
}

impl DriverState {
    /// Leaves `Parked`. Returns the waker to wake, once per park.
    fn unpark(&mut self) -> Option<Waker> {
        match mem::take(self) {
            Self::Parked(waker) => Some(waker),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Leaves `Parked` without a wake: the driver is running.
    fn run(&mut self) {
        if let Some(waker) = self.unpark() {
            *self = Self::Running(Some(waker));
        }
    }

    /// Enters `Parked`. Returns the replaced waker, to be dropped after the lock is released.
    #[must_use]
    fn park(&mut self, waker: &Waker) -> Option<Waker> {
        let stored = match mem::take(self) {
            Self::Running(stored) => stored,
            Self::Parked(stored) => Some(stored),
            Self::Gone => {
                *self = Self::Gone;
                return None;
            }
        };
        match stored {
            Some(stored) if stored.will_wake(waker) => {
                *self = Self::Parked(stored);
                None
            }
            replaced => {
                *self = Self::Parked(waker.clone());
                replaced
            }
        }
    }
}

/// Handles and `RequestQueue`.
impl Notifier {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            pending: Mutex::new(Pending::default()),
            stats: Mutex::new(EndpointStats::default()),
            local: Mutex::new(SocketAddr::from(([0, 0, 0, 0], 0))),
            memory: Arc::new(MemoryUse::new()),
            last_error: Mutex::new(None),
        })
    }

    /// Queues the id of a changed connection and wakes a parked driver. Only [`ConnNotifier::notify`]
    /// calls this, when it sets `notified`: an id is queued at most once between two exchanges.
    fn push(&self, id: ConnId) {
        self.update(|pending| pending.ids.push(id));
    }

    /// Queues a setting, and wakes a parked driver.
    fn set(&self, id: ConnId, setting: Setting) {
        self.update(|pending| pending.settings.push((id, setting)));
    }

    /// Requests another turn of the driver. Returns false if the driver is gone.
    pub(super) fn wake(&self) -> bool {
        self.update(|pending| pending.wake_requested = true)
    }

    /// `ConnectionCounts::current`, without copying the rest.
    pub(crate) fn connections(&self) -> usize {
        usize::try_from(lock(&self.stats).connections.current).unwrap_or(usize::MAX)
    }

    /// The latest counters of the endpoint.
    pub(crate) fn stats(&self) -> EndpointStats {
        *lock(&self.stats)
    }

    /// Address the socket is bound to.
    pub(crate) fn local(&self) -> SocketAddr {
        *lock(&self.local)
    }

    /// Takes the last socket error (SO_ERROR).
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        lock(&self.last_error).take()
    }

    /// Changes `pending` and wakes a parked driver. Returns false and changes nothing if the driver is
    /// gone.
    fn update(&self, change: impl FnOnce(&mut Pending)) -> bool {
        let mut pending = lock(&self.pending);
        if matches!(pending.driver, DriverState::Gone) {
            return false;
        }
        change(&mut pending);
        let waker = pending.driver.unpark();
        drop(pending);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

/// Driver.
impl Notifier {
    /// Moves pending work to the end of `ids` and `settings`. The driver counts as running until the next
    /// [`register`](Self::register). Returns whether anything was pending.
    pub(crate) fn drain(
        &self,
        ids: &mut Vec<ConnId>,
        settings: &mut Vec<(ConnId, Setting)>,
    ) -> bool {
        let mut pending = lock(&self.pending);
        pending.driver.run();
        let any = !pending.is_empty();
        pending.wake_requested = false;
        move_all(&mut pending.ids, ids);
        move_all(&mut pending.settings, settings);
        any
    }

    /// Parks the driver. Returns true and registers nothing if work is pending: the driver must take
    /// another turn.
    pub(crate) fn register(&self, waker: &Waker) -> bool {
        let mut pending = lock(&self.pending);
        if !pending.is_empty() {
            return true;
        }
        let replaced = pending.driver.park(waker);
        drop(pending);
        drop(replaced);
        false
    }

    /// The driver is gone. Discards pending and later work.
    pub(crate) fn close(&self) {
        let mut pending = lock(&self.pending);
        let discarded = mem::replace(
            &mut *pending,
            Pending { driver: DriverState::Gone, ..Pending::default() },
        );
        drop(pending);
        drop(discarded);
    }

    /// Publishes the endpoint's counters.
    pub(crate) fn publish(&self, stats: &EndpointStats) {
        *lock(&self.stats) = *stats;
    }

    /// The endpoint's memory. Writers that wait for memory are woken when the driver takes their earlier
    /// writes.
    pub(crate) fn memory(&self) -> &Arc<MemoryUse> {
        &self.memory
    }

    /// Publishes the address of the socket.
    pub(crate) fn set_local(&self, local: SocketAddr) {
        *lock(&self.local) = local;
    }

    /// Publishes a socket error.
    pub(crate) fn set_error(&self, error: io::Error) {
        let replaced = lock(&self.last_error).replace(error);
        drop(replaced);
    }
}

/// Notifies the driver about one connection.
#[derive(Debug)]
pub(crate) struct ConnNotifier {
    endpoint: Arc<Notifier>,
    id: ConnId,
    /// True from a notification until the next exchange begins.
    notified: AtomicBool,
}

impl ConnNotifier {
    pub(super) fn new(endpoint: Arc<Notifier>, id: ConnId) -> Self {
        Self { endpoint, id, notified: AtomicBool::new(false) }
    }

    pub(super) fn id(&self) -> ConnId {
        self.id
    }

    pub(super) fn endpoint(&self) -> &Notifier {
        &self.endpoint
    }

    /// Asks the driver to exchange queues with this connection. Called after a queue changed.
    pub(super) fn notify(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            self.endpoint.push(self.id);
        }
    }

    /// Driver: begins an exchange. Called before the queues are read, so that later changes notify again.
    pub(crate) fn begin_exchange(&self) {
        // A swap and not a store: it acquires what the last notification released.
        self.notified.swap(false, Ordering::AcqRel);
    }

    /// Sends the driver a setting. Settings apply in call order.
    pub(crate) fn set(&self, setting: Setting) {
        self.endpoint.set(self.id, setting);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::AckPolicy;
    use crate::shared::connection::tests::Count;

    fn id(slot: u32) -> ConnId {
        ConnId { slot, generation: 0 }
    }

    #[test]
    fn wake_happens_once_per_registration() {
        let notifier = Notifier::new();
        let (count, waker) = Count::new();
        let (mut ids, mut settings) = (Vec::new(), Vec::new());

        assert!(!notifier.register(&waker));
        notifier.push(id(1));
        notifier.push(id(2));
        notifier.set(id(1), Setting::AckPolicy(AckPolicy::Immediate));
        assert_eq!(count.woken(), 1);
        assert!(notifier.register(&waker), "something is pending: take another turn");
        assert!(notifier.drain(&mut ids, &mut settings));
        assert_eq!((ids.as_slice(), settings.len()), ([id(1), id(2)].as_slice(), 1));

        // A driver that runs for another reason is not woken again for work it will drain.
        ids.clear();
        settings.clear();
        assert!(!notifier.register(&waker));
        assert!(!notifier.drain(&mut ids, &mut settings));
        notifier.push(id(3));
        assert_eq!(count.woken(), 1);
        assert!(notifier.drain(&mut ids, &mut settings));
        assert_eq!(ids, [id(3)]);
    }

    #[test]
    fn drain_appends_and_reuses_capacity() {
        let notifier = Notifier::new();
        let (mut ids, mut settings) = (vec![id(1)], Vec::new());
        notifier.push(id(2));
        assert!(notifier.drain(&mut ids, &mut settings));
        assert_eq!(ids, [id(1), id(2)]);
        ids.clear();
        ids.reserve(100);
        notifier.push(id(3));
        assert!(notifier.drain(&mut ids, &mut settings));
        assert!(lock(&notifier.pending).ids.capacity() >= 100);
    }

    #[test]
    fn waker_is_kept_over_a_turn_and_dropped_when_the_driver_is_gone() {
        let notifier = Notifier::new();
        let (count, waker) = Count::new();
        let kept = |expected| assert_eq!(Arc::strong_count(&count), expected);
        kept(2);
        for _ in 0..3 {
            assert!(!notifier.register(&waker));
            kept(3);
            assert!(!notifier.drain(&mut Vec::new(), &mut Vec::new()));
            kept(3);
        }
        assert!(!notifier.register(&waker));
        notifier.close();
        kept(2);
        assert!(!notifier.wake() && !notifier.register(&waker));
        notifier.push(id(1));
        kept(2);
        assert_eq!(count.woken(), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::util::sync::Sleeper;

    /// An id pushed while the driver registers or drains reaches it. A lost wake deadlocks, which loom
    /// reports.
    #[test]
    fn loom_notifier_loses_no_wake() {
        loom::model(|| {
            let notifier = Notifier::new();
            let pushers = [1, 2].map(|slot| {
                let notifier = notifier.clone();
                thread::spawn(move || notifier.push(ConnId { slot, generation: 0 }))
            });
            let sleeper = Sleeper::new();
            let waker = sleeper.waker();
            let (mut ids, mut settings) = (Vec::new(), Vec::new());
            while ids.len() < 2 {
                if !notifier.drain(&mut ids, &mut settings) && !notifier.register(&waker) {
                    sleeper.sleep();
                }
            }
            for pusher in pushers {
                pusher.join().unwrap();
            }
        });
    }
}
