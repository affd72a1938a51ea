//! Whole endpoints on a simulated network: drivers stepped by hand, applications as futures polled
//! by hand, one virtual clock. Everything follows from the seed.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use super::net::{Net, Sent, SimSocket};
use super::pair::micros;
use crate::config::Config;
use crate::core::tests::link::{LinkConfig, Rng};
use crate::driver::{Driver, Turn};
use crate::endpoint::Endpoint;
use crate::listener::{AcceptQueue, KcpListener};
use crate::shared::notifier::Mailbox;
use crate::util::sync::{Arc, AtomicBool, Mutex, Ordering, lock};

/// Rounds at one moment beyond which something spins.
const ROUNDS: usize = 100_000;

/// Whether a driver has a reason to take a turn: what would have woken its task.
fn wants(driver: &Driver<SimSocket>, now: Instant) -> bool {
    let net = lock(&driver.socket().net);
    let waiting = net.inboxes.get(&driver.local()).is_some_and(|inbox| !inbox.is_empty());
    let writable = driver.is_blocked() && net.is_writable(driver.local());
    drop(net);
    waiting && !driver.is_resting()
        || writable
        || driver.deadline().is_some_and(|at| at <= now)
        || driver.has_mail()
}

/// Remembers that somebody was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An application: it is polled when it was woken and not otherwise, so that a lost wake shows.
struct Task<'a> {
    /// `None` when it is done.
    future: Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    woken: Arc<Woken>,
    waker: Waker,
}

impl<'a> Task<'a> {
    fn new(future: impl Future<Output = ()> + 'a) -> Self {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        Self { future: Some(Box::pin(future)), waker: woken.clone().into(), woken }
    }

    /// Returns whether there is more to come of it.
    fn run(&mut self) -> bool {
        if self.woken.0.swap(false, Ordering::Relaxed) {
            let mut cx = Context::from_waker(&self.waker);
            if self.future.as_mut().is_some_and(|future| future.as_mut().poll(&mut cx).is_ready()) {
                self.future = None;
            }
        }
        self.future.is_some()
    }

    fn is_woken(&self) -> bool {
        self.future.is_some() && self.woken.0.load(Ordering::Relaxed)
    }
}

/// Everything that exists in one simulation.
pub(super) struct World {
    start: Instant,
    net: Arc<Mutex<Net>>,
    seed: u64,
    pub(super) drivers: Vec<Option<Driver<SimSocket>>>,
    tasks: Vec<Task<'static>>,
    /// Turns that drivers took, and how often applications ran since they were woken.
    pub(super) turns: usize,
    pub(super) wakes: usize,
    /// Times in a row that something was due without a moment passing.
    stalled: usize,
}

pub(super) fn addr(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 4_000 + u16::from(host)))
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "a simulation counts from one real instant")]
    pub(super) fn new(seed: u64, path: LinkConfig) -> Self {
        Self {
            start: Instant::now(),
            net: Arc::new(Mutex::new(Net::new(seed, path))),
            seed,
            drivers: Vec::new(),
            tasks: Vec::new(),
            turns: 0,
            wakes: 0,
            stalled: 0,
        }
    }

    fn driver(&mut self, host: u8, config: &Config, accept: Option<Arc<AcceptQueue>>) -> Endpoint {
        let addr = addr(host);
        lock(&self.net).inboxes.insert(addr, VecDeque::new());
        let socket = SimSocket { addr, net: self.net.clone() };
        let mailbox = Mailbox::new();
        let mut seed = [0; 32];
        // A host that comes back is not the one it was.
        let generation = self.drivers.len() as u64;
        let mut rng = Rng::keyed(self.seed, generation << 8 | u64::from(host));
        seed.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&rng.next().to_le_bytes()));
        let now = self.now();
        let driver =
            Driver::new(socket, config.clone(), mailbox.clone(), accept, seed, now).unwrap();
        self.drivers.push(Some(driver));
        Endpoint::attach(mailbox)
    }

    pub(super) fn endpoint(&mut self, host: u8, config: &Config) -> Endpoint {
        self.driver(host, config, None)
    }

    pub(super) fn listener(&mut self, host: u8, config: &Config) -> KcpListener {
        let queue = AcceptQueue::new();
        let endpoint = self.driver(host, config, Some(queue.clone()));
        KcpListener::new(queue, endpoint)
    }

    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.tasks.push(Task::new(task));
    }

    pub(super) fn set_path(&self, path: LinkConfig) {
        let mut net = lock(&self.net);
        net.links.values_mut().for_each(|link| link.set_config(path.clone()));
        net.path = path;
    }

    /// The next sends of `host` fail.
    pub(super) fn fail_sends<E: Into<io::Error>>(
        &self,
        host: u8,
        faults: impl IntoIterator<Item = E>,
    ) {
        let faults = faults.into_iter().map(Into::into);
        lock(&self.net).send_faults.entry(addr(host)).or_default().extend(faults);
    }

    /// The next receives of `host` fail.
    pub(super) fn fail_recvs<E: Into<io::Error>>(
        &self,
        host: u8,
        faults: impl IntoIterator<Item = E>,
    ) {
        let faults = faults.into_iter().map(Into::into);
        lock(&self.net).recv_faults.entry(addr(host)).or_default().extend(faults);
    }

    /// Faults that were not met yet: of sends and of receives.
    pub(super) fn faults_left(&self, host: u8) -> (usize, usize) {
        let net = lock(&self.net);
        let left = |faults: &HashMap<SocketAddr, VecDeque<io::Error>>| {
            faults.get(&addr(host)).map_or(0, VecDeque::len)
        };
        (left(&net.send_faults), left(&net.recv_faults))
    }

    /// From now on the system of `host` refuses datagrams above `limit` bytes.
    pub(super) fn limit_sends(&self, host: u8, limit: Option<usize>) {
        let mut net = lock(&self.net);
        match limit {
            Some(limit) => net.limits.insert(addr(host), limit),
            None => net.limits.remove(&addr(host)),
        };
    }

    /// Whether datagrams of `host` may be fragmented.
    pub(super) fn may_fragment(&self, host: u8) -> bool {
        lock(&self.net).fragmenting.contains(&addr(host))
    }

    /// The socket of `host` takes nothing for a while.
    pub(super) fn block_sends(&self, host: u8, time: Duration) {
        let until = self.elapsed() + micros(time);
        lock(&self.net).blocked.insert(addr(host), until);
    }

    /// The process behind `host` is gone, without a word to anyone on the network.
    pub(super) fn crash(&mut self, host: u8) {
        for slot in &mut self.drivers {
            if slot.as_ref().is_some_and(|driver| driver.local() == addr(host)) {
                *slot = None;
            }
        }
        lock(&self.net).inboxes.remove(&addr(host));
    }

    /// The driver of `host`.
    pub(super) fn driver_of(&mut self, host: u8) -> &mut Driver<SimSocket> {
        let drivers = self.drivers.iter_mut().flatten();
        drivers.into_iter().find(|driver| driver.local() == addr(host)).unwrap()
    }

    /// Opens a port without a driver: the test plays that host with [`Self::inject`].
    pub(super) fn port(&self, host: u8) {
        lock(&self.net).inboxes.insert(addr(host), VecDeque::new());
    }

    /// What arrived at such a port.
    pub(super) fn arrived(&self, host: u8) -> Vec<Vec<u8>> {
        let mut net = lock(&self.net);
        net.deliver_due();
        let inbox = net.inboxes.get_mut(&addr(host)).unwrap();
        inbox.drain(..).map(|(_, datagram)| datagram).collect()
    }

    /// Time passes and nobody does anything. Returns the datagrams that wait for `host`.
    pub(super) fn let_arrive(&self, time: Duration, host: u8) -> usize {
        let mut net = lock(&self.net);
        net.now += micros(time);
        net.deliver_due();
        net.inboxes.get(&addr(host)).map_or(0, VecDeque::len)
    }

    /// Everything sent since the last call; the first one begins to keep it.
    pub(super) fn log(&self) -> Vec<Sent> {
        lock(&self.net).log.replace(Vec::new()).unwrap_or_default()
    }

    /// Puts a datagram on the wire.
    pub(super) fn inject(&self, from: SocketAddr, host: u8, datagram: &[u8]) {
        lock(&self.net).send(from, addr(host), datagram);
    }

    pub(super) fn now(&self) -> Instant {
        self.start + Duration::from_micros(lock(&self.net).now)
    }

    /// Virtual microseconds since the start.
    pub(super) fn elapsed(&self) -> u64 {
        lock(&self.net).now
    }

    pub(super) fn sent(&self) -> u64 {
        lock(&self.net).sent
    }

    /// Fingerprint of every datagram sent so far.
    pub(super) fn hash(&self) -> u64 {
        lock(&self.net).hash
    }

    /// Runs everything that can run now. Returns the turns it took.
    pub(super) fn settle(&mut self) -> usize {
        self.settle_with(None)
    }

    fn settle_with(&mut self, mut main: Option<&mut Task<'_>>) -> usize {
        let first = self.turns;
        for round in 0.. {
            assert!(round < ROUNDS, "the endpoints never come to rest");
            let sent = self.sent();
            let before = self.tasks.len();
            self.wakes += self.tasks.iter().filter(|task| task.is_woken()).count();
            self.wakes += usize::from(main.as_ref().is_some_and(|main| main.is_woken()));
            self.tasks.retain_mut(Task::run);
            main.as_mut().map(|main| main.run());
            let now = self.now();
            let mut again = false;
            for slot in &mut self.drivers {
                let Some(driver) = slot.as_mut().filter(|driver| wants(driver, now)) else {
                    continue;
                };
                self.turns += 1;
                let turn = driver.turn(now);
                again |= turn == Turn::Again;
                if turn == Turn::Finished {
                    // Its port is closed: what arrives there now is lost.
                    lock(&self.net).inboxes.remove(&driver.local());
                    *slot = None;
                }
            }
            lock(&self.net).deliver_due();
            again |= self.drivers.iter().flatten().any(|driver| wants(driver, now));
            again |= self.tasks.iter().any(Task::is_woken);
            again |= main.as_ref().is_some_and(|main| main.is_woken());
            if !again && before == self.tasks.len() && sent == self.sent() {
                break;
            }
        }
        self.turns - first
    }

    /// The next moment at which something is due.
    fn next(&self) -> Option<u64> {
        let timers = self.drivers.iter().flatten().filter_map(Driver::deadline);
        let timer = timers.min().map(|at| {
            let wait = at.saturating_duration_since(self.start);
            u64::try_from(wait.as_nanos().div_ceil(1_000)).unwrap()
        });
        let net = lock(&self.net);
        let arrival = net.flying.peek().map(|Reverse(flight)| flight.0);
        let writable = net.blocked.values().copied().filter(|until| *until > net.now).min();
        [timer, arrival, writable].into_iter().flatten().min()
    }

    /// Jumps to the next moment at which something is due. `false` if there is none.
    pub(super) fn advance(&mut self) -> bool {
        let Some(next) = self.next() else { return false };
        let mut net = lock(&self.net);
        self.stalled = if next > net.now { 0 } else { self.stalled + 1 };
        assert!(self.stalled < ROUNDS, "something is due again and again, and time stands still");
        net.now = net.now.max(next);
        net.deliver_due();
        true
    }

    /// Runs until every application is done. Panics when virtual time exceeds `limit`, or when
    /// nothing will ever happen again.
    pub(super) fn run(&mut self, limit: Duration) {
        self.settle();
        while !self.tasks.is_empty() {
            assert!(self.advance(), "{} tasks wait for nothing", self.tasks.len());
            self.settle();
            let elapsed = Duration::from_micros(self.elapsed());
            assert!(elapsed < limit, "{} tasks left after {elapsed:?}", self.tasks.len());
        }
    }

    /// Runs until `task` is done and returns what it made, whatever the other applications do.
    /// Panics like [`Self::run`].
    pub(super) fn finish<T>(&mut self, limit: Duration, task: impl Future<Output = T>) -> T {
        let end = self.elapsed() + micros(limit);
        let result = RefCell::new(None);
        let mut main = Task::new(async { *result.borrow_mut() = Some(task.await) });
        loop {
            self.settle_with(Some(&mut main));
            if let Some(value) = result.take() {
                return value;
            }
            assert!(self.advance(), "the task waits for nothing");
            assert!(self.elapsed() <= end, "not done after {limit:?}");
        }
    }

    /// Runs for `time`, whatever happens. Returns the turns it took.
    pub(super) fn run_for(&mut self, time: Duration) -> usize {
        let end = self.elapsed() + micros(time);
        let mut turns = self.settle();
        while self.next().is_some_and(|next| next <= end) && self.advance() {
            turns += self.settle();
        }
        let mut net = lock(&self.net);
        net.now = net.now.max(end);
        turns
    }
}
