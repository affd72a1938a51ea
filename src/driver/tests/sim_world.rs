//! Deterministic simulation of whole endpoints: drivers stepped by hand, applications as futures
//! polled by hand, one virtual clock. The seed determines everything.
#![cfg_attr(
    not(feature = "_testkit"),
    allow(dead_code, reason = "the swarm alone needs some of it")
)]

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use super::fixtures::micros;
use super::sim_network::{Fate, Net, Received, Sent, SimSocket};
use super::sim_time::{Clock, Hosts, RIGHT};
use crate::config::Config;
use crate::driver::{Driver, ShardState, Turn};
use crate::endpoint::Endpoint;
use crate::listener::KcpListener;
use crate::shared::accept_queue::{AcceptHandle, AcceptQueue};
use crate::shared::requests::RequestQueue;
use crate::testkit::link::{Link, LinkConfig};
use crate::testkit::rng::Rng;
use crate::util::sync::{Arc, AtomicBool, Mutex, Ordering, lock};

/// Rounds at one instant beyond which a driver or task spins.
const ROUNDS: usize = 100_000;

/// Whether an event would wake the task of the driver.
fn is_due(driver: &Driver<SimSocket>, hosts: &Hosts) -> bool {
    let net = lock(&driver.socket().net);
    let host = driver.local();
    if hosts.suspended.contains(&host) {
        return false;
    }
    let now = hosts.instant(host, net.now);
    let waiting = net.inboxes.get(&driver.socket().inbox).is_some_and(|inbox| !inbox.is_empty());
    let writable = driver.is_blocked() && net.is_writable(driver.local());
    drop(net);
    waiting && !driver.is_in_recv_backoff()
        || writable
        || driver.deadline().is_some_and(|at| at <= now)
        || driver.has_pending_work()
}

/// Waker that records a wake.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An application task. Polled only after a wake, so that a lost wake makes the test fail.
struct Task<'a> {
    /// `None` once it has completed.
    future: Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    woken: Arc<Woken>,
    waker: Waker,
}

impl<'a> Task<'a> {
    fn new(future: impl Future<Output = ()> + 'a) -> Self {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        Self { future: Some(Box::pin(future)), waker: woken.clone().into(), woken }
    }

    /// Returns true until the task has completed.
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

/// Starts tasks of tasks.
#[derive(Clone, Default)]
pub(super) struct Spawner(Rc<RefCell<Vec<Task<'static>>>>);

impl Spawner {
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.borrow_mut().push(Task::new(task));
    }
}

/// One simulation: network, drivers, application tasks.
pub(super) struct World {
    start: Instant,
    hosts: Hosts,
    net: Arc<Mutex<Net>>,
    seed: u64,
    pub(super) drivers: Vec<Option<Driver<SimSocket>>>,
    tasks: Vec<Task<'static>>,
    pub(super) spawner: Spawner,
    /// Turns of all drivers, and polls of woken application tasks.
    pub(super) turns: usize,
    pub(super) wakes: usize,
    /// Rounds in a row without passing time.
    stalled: usize,
}

pub(super) fn addr(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 4_000 + u16::from(host)))
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "a simulation counts from one real instant")]
    pub(super) fn new(seed: u64, path: LinkConfig) -> Self {
        let start = Instant::now();
        Self {
            start,
            hosts: Hosts::new(start),
            net: Arc::new(Mutex::new(Net::new(seed, path))),
            seed,
            drivers: Vec::new(),
            tasks: Vec::new(),
            spawner: Spawner::default(),
            turns: 0,
            wakes: 0,
            stalled: 0,
        }
    }

    fn driver(&mut self, host: u8, config: &Config, accept: Option<Arc<AcceptQueue>>) -> Endpoint {
        self.shard(addr(host), host, config, accept, None)
    }

    /// A driver whose socket has the address of `host`, and receives in `inbox`.
    fn shard(
        &mut self,
        inbox: SocketAddr,
        host: u8,
        config: &Config,
        accept: Option<Arc<AcceptQueue>>,
        state: Option<ShardState>,
    ) -> Endpoint {
        let addr = addr(host);
        let mut net = lock(&self.net);
        net.inboxes.insert(inbox, VecDeque::new());
        // A new socket permits no fragmentation.
        net.ip_fragmentation.remove(&inbox);
        drop(net);
        let socket = SimSocket { addr, inbox, net: self.net.clone() };
        let requests = RequestQueue::with_sharded(state.is_some());
        let mut seed = [0; 32];
        // A restarted host has another seed.
        let generation = self.drivers.len() as u64;
        let mut rng = Rng::keyed(self.seed, generation << 8 | u64::from(host));
        seed.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&rng.next().to_le_bytes()));
        let now = self.hosts.instant(addr, self.elapsed());
        let mut driver =
            Driver::new(socket, config.clone(), requests.clone(), accept, seed, now).unwrap();
        if let Some(state) = state {
            driver.join_shards(state);
        }
        self.drivers.push(Some(driver));
        Endpoint::attach(requests)
    }

    /// An endpoint whose connections begin with their data.
    pub(super) fn endpoint(&mut self, host: u8, config: &Config) -> Endpoint {
        self.driver(host, &config.clone().early_data(true), None)
    }

    /// An endpoint whose `connect` waits for the peer, as by default.
    pub(super) fn waiting_endpoint(&mut self, host: u8, config: &Config) -> Endpoint {
        self.driver(host, config, None)
    }

    pub(super) fn listener(&mut self, host: u8, config: &Config) -> KcpListener {
        let queue = AcceptQueue::new();
        let endpoint = self.driver(host, config, Some(queue.clone()));
        KcpListener::new(AcceptHandle::new(queue), endpoint)
    }

    /// A listener with several sockets.
    pub(super) fn sharded_listener(&mut self, host: u8, config: &Config) -> KcpListener {
        let (queue, state) = (AcceptQueue::new(), ShardState::new());
        let shards = (0..config.socket.shards).map(|shard| {
            SocketAddr::from(([10, 9, u8::try_from(shard).unwrap(), host], addr(host).port()))
        });
        let shards: Vec<_> = shards.collect();
        lock(&self.net).shards.insert(addr(host), shards.clone());
        let start =
            |shard| self.shard(shard, host, config, Some(queue.clone()), Some(state.clone()));
        let endpoint = Endpoint::join(shards.into_iter().map(start).collect());
        KcpListener::new(AcceptHandle::new(queue), endpoint)
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

    /// Sets the fate of the next datagrams of `host`.
    pub(super) fn set_fates(&self, host: u8, fates: impl IntoIterator<Item = Fate>) {
        lock(&self.net).fates.entry(addr(host)).or_default().extend(fates);
    }

    /// Injected faults that are left, of sends and of receives.
    pub(super) fn faults_left(&self, host: u8) -> (usize, usize) {
        let net = lock(&self.net);
        let left = |faults: &HashMap<SocketAddr, VecDeque<io::Error>>| {
            faults.get(&addr(host)).map_or(0, VecDeque::len)
        };
        (left(&net.send_faults), left(&net.recv_faults))
    }

    /// Datagrams of `host` above `limit` bytes fail with EMSGSIZE from now on.
    pub(super) fn limit_sends(&self, host: u8, limit: Option<usize>) {
        let mut net = lock(&self.net);
        match limit {
            Some(limit) => net.limits.insert(addr(host), limit),
            None => net.limits.remove(&addr(host)),
        };
    }

    /// Whether the socket of `host` permits IP fragmentation.
    pub(super) fn may_fragment(&self, host: u8) -> bool {
        lock(&self.net).ip_fragmentation.contains(&addr(host))
    }

    /// Sends of `host` would block for `time`.
    pub(super) fn block_sends(&self, host: u8, time: Duration) {
        let until = self.elapsed() + micros(time);
        lock(&self.net).blocked.insert(addr(host), until);
    }

    /// No send or receive fails or blocks any more.
    pub(super) fn forget_faults(&self) {
        let mut net = lock(&self.net);
        net.send_faults.clear();
        net.recv_faults.clear();
        net.blocked.clear();
    }

    /// The process of `host` is killed: its port is closed, and nothing more leaves it.
    pub(super) fn crash(&mut self, host: u8) {
        lock(&self.net).blocked.insert(addr(host), u64::MAX);
        self.exit(host);
        lock(&self.net).blocked.remove(&addr(host));
    }

    /// The runtime of `host` ends: its driver is dropped and its port closed.
    pub(super) fn exit(&mut self, host: u8) {
        self.exit_with(host, None);
    }

    /// The same, and the thread may be held if there is a `clock`.
    pub(super) fn exit_with(&mut self, host: u8, clock: Option<fn() -> Instant>) {
        let now = self.hosts.instant(addr(host), self.elapsed());
        for slot in &mut self.drivers {
            if let Some(driver) = slot.as_mut().filter(|driver| driver.local() == addr(host)) {
                driver.on_exit(now, clock);
                *slot = None;
            }
        }
        let mut net = lock(&self.net);
        let shards = net.shards.remove(&addr(host)).unwrap_or_default();
        for inbox in shards.into_iter().chain([addr(host)]) {
            net.inboxes.remove(&inbox);
        }
    }

    /// The driver of `host`.
    pub(super) fn driver_of(&mut self, host: u8) -> &mut Driver<SimSocket> {
        let drivers = self.drivers.iter_mut().flatten();
        drivers.into_iter().find(|driver| driver.local() == addr(host)).unwrap()
    }

    /// The clock of applications.
    pub(super) fn clock(&self) -> Clock {
        Clock(self.net.clone())
    }

    /// From now on the clock of `host` runs at `rate` millionths.
    pub(super) fn set_clock_rate(&mut self, host: u8, rate: u64) {
        let now = self.elapsed();
        self.hosts.set_rate(addr(host), now, rate);
    }

    /// The driver of `host` is not run until [`Self::resume`]. `stops`: nor does its clock run on.
    pub(super) fn suspend(&mut self, host: u8, stops: bool) {
        if stops {
            self.set_clock_rate(host, 0);
        }
        self.hosts.suspended.insert(addr(host));
    }

    pub(super) fn resume(&mut self, host: u8) {
        if self.hosts.suspended.remove(&addr(host)) {
            self.set_clock_rate(host, RIGHT);
        }
    }

    /// Whether the driver of `host` wanted to hold its thread at its end.
    pub(super) fn was_held(&self, host: u8) -> bool {
        lock(&self.net).held.contains(&addr(host))
    }

    /// Lets every task run again, after a change that wakes none.
    pub(super) fn wake_tasks(&self) {
        self.tasks.iter().for_each(|task| task.waker.wake_by_ref());
    }

    /// Opens a port without a driver: the test simulates that host with [`Self::inject`].
    pub(super) fn port(&self, host: u8) {
        lock(&self.net).inboxes.insert(addr(host), VecDeque::new());
    }

    /// Takes the datagrams that arrived at a port without a driver.
    pub(super) fn arrived(&self, host: u8) -> Vec<Vec<u8>> {
        let mut net = lock(&self.net);
        net.deliver_due();
        let inbox = net.inboxes.get_mut(&addr(host)).unwrap();
        inbox.drain(..).map(|(_, datagram)| datagram).collect()
    }

    /// Lets time pass without turns. Returns the datagrams in the receive buffer of `host`.
    pub(super) fn let_arrive(&self, time: Duration, host: u8) -> usize {
        let mut net = lock(&self.net);
        net.now += micros(time);
        net.deliver_due();
        net.inboxes.get(&addr(host)).map_or(0, VecDeque::len)
    }

    /// Everything sent since the last call. The first call starts the log.
    pub(super) fn log(&self) -> Vec<Sent> {
        lock(&self.net).log.replace(Vec::new()).unwrap_or_default()
    }

    /// Everything that drivers received since the last call. The first call starts the log.
    pub(super) fn received(&self) -> Vec<Received> {
        lock(&self.net).received.replace(Vec::new()).unwrap_or_default()
    }

    /// Sends a datagram from any address, as [`Self::inject`], and logs it not: no driver sent it.
    pub(super) fn forge(&self, from: SocketAddr, to: SocketAddr, datagram: &[u8]) {
        let mut net = lock(&self.net);
        let log = net.log.take();
        net.send(from, to, datagram);
        net.log = log;
    }

    /// Sends a datagram from any address.
    pub(super) fn inject(&self, from: SocketAddr, host: u8, datagram: &[u8]) {
        self.inject_to(from, addr(host), datagram);
    }

    pub(super) fn inject_to(&self, from: SocketAddr, to: SocketAddr, datagram: &[u8]) {
        lock(&self.net).send(from, to, datagram);
    }

    /// Gives `host` a further address. Its socket is then bound to all addresses.
    pub(super) fn add_address(&self, host: u8, further: SocketAddr) {
        lock(&self.net).further.insert(further, addr(host));
    }

    /// Loses everything from one address to another, or nothing any more. Datagrams on their way are lost too.
    pub(super) fn cut(&self, from: SocketAddr, to: SocketAddr, is_cut: bool) {
        let cut = &mut lock(&self.net).cut;
        if is_cut {
            cut.insert((from, to))
        } else {
            cut.remove(&(from, to))
        };
    }

    /// Sets the path from one address to another.
    pub(super) fn set_link(&self, from: SocketAddr, to: SocketAddr, path: LinkConfig) {
        let mut net = lock(&self.net);
        let seed = net.seed;
        let fresh = || Link::new(path.clone(), seed);
        net.links.entry((from, to)).or_insert_with(fresh).set_config(path.clone());
    }

    /// Peers see `host` at another address from now on, and datagrams to the last one are lost.
    pub(super) fn move_to(&self, host: u8, outside: SocketAddr) {
        self.set_outside(addr(host), outside);
    }

    /// A NAT gives an address another one.
    pub(super) fn set_outside(&self, inside: SocketAddr, outside: SocketAddr) {
        lock(&self.net).outside.insert(inside, outside);
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

    /// Hash of every datagram sent so far.
    pub(super) fn hash(&self) -> u64 {
        lock(&self.net).hash
    }

    /// The drivers that are due, and why.
    fn due(&self) -> String {
        let (hosts, elapsed) = (&self.hosts, self.elapsed());
        let due = self.drivers.iter().flatten().filter(|driver| is_due(driver, hosts));
        let why = |driver: &Driver<SimSocket>| {
            let now = hosts.instant(driver.local(), elapsed);
            let late = driver.deadline().map(|at| now.saturating_duration_since(at));
            let (blocked, pending) = (driver.is_blocked(), driver.has_pending_work());
            format!("{}: late by {late:?}, blocked {blocked}, has work {pending}", driver.local())
        };
        due.map(why).collect::<Vec<_>>().join("; ")
    }

    /// Runs drivers and tasks until nothing is due now. Returns the number of turns.
    pub(super) fn run_ready(&mut self) -> usize {
        self.run_ready_with(None)
    }

    fn run_ready_with(&mut self, mut main: Option<&mut Task<'_>>) -> usize {
        let first = self.turns;
        for round in 0.. {
            assert!(round < ROUNDS, "the endpoints spin: {}", self.due());
            let sent = self.sent();
            let before = self.tasks.len();
            self.wakes += self.tasks.iter().filter(|task| task.is_woken()).count();
            self.wakes += usize::from(main.as_ref().is_some_and(|main| main.is_woken()));
            self.tasks.retain_mut(Task::run);
            main.as_mut().map(|main| main.run());
            self.tasks.append(&mut self.spawner.0.borrow_mut());
            let (hosts, elapsed) = (&self.hosts, self.elapsed());
            let mut again = false;
            for slot in &mut self.drivers {
                let Some(driver) = slot.as_mut().filter(|driver| is_due(driver, hosts)) else {
                    continue;
                };
                self.turns += 1;
                let turn = driver.turn(hosts.instant(driver.local(), elapsed));
                again |= turn.runs_again();
                if turn == Turn::Finished {
                    // The port is closed, and its datagrams are lost.
                    lock(&self.net).inboxes.remove(&driver.socket().inbox);
                    *slot = None;
                }
            }
            lock(&self.net).deliver_due();
            again |= self.drivers.iter().flatten().any(|driver| is_due(driver, hosts));
            again |= self.tasks.iter().any(Task::is_woken);
            again |= main.as_ref().is_some_and(|main| main.is_woken());
            if !again && before == self.tasks.len() && sent == self.sent() {
                break;
            }
        }
        self.turns - first
    }

    /// Runs a turn of every driver.
    pub(super) fn turn_all(&mut self) {
        let now = self.elapsed();
        for driver in self.drivers.iter_mut().flatten() {
            driver.turn(self.hosts.instant(driver.local(), now));
        }
    }

    /// When the next event is due, in microseconds.
    fn next(&self) -> Option<u64> {
        let timers = self.drivers.iter().flatten();
        let timer = timers.filter_map(|d| self.hosts.when(d.local(), d.deadline()?)).min();
        let net = lock(&self.net);
        let alarm = net.alarms.first_key_value().map(|((at, _), _)| *at);
        let arrival = net.flying.peek().map(|Reverse(flight)| flight.0);
        let writable = net.blocked.values().copied().filter(|until| *until > net.now).min();
        [timer, arrival, writable, alarm].into_iter().flatten().min()
    }

    /// Advances the clock to the next event. Returns false if there is none.
    pub(super) fn advance(&mut self) -> bool {
        let Some(next) = self.next() else { return false };
        let mut net = lock(&self.net);
        self.stalled = if next > net.now { 0 } else { self.stalled + 1 };
        assert!(self.stalled < ROUNDS, "something is due again and again without time passing");
        net.now = net.now.max(next);
        net.deliver_due();
        let alarms = net.take_due_alarms();
        drop(net);
        alarms.for_each(Waker::wake);
        true
    }

    /// Runs until every task has completed. Panics when virtual time exceeds `limit`, or when no event is
    /// left (a deadlock).
    pub(super) fn run(&mut self, limit: Duration) {
        self.run_ready();
        while !self.tasks.is_empty() {
            assert!(self.advance(), "{} tasks wait for nothing", self.tasks.len());
            self.run_ready();
            let elapsed = Duration::from_micros(self.elapsed());
            assert!(elapsed < limit, "{} tasks left after {elapsed:?}", self.tasks.len());
        }
    }

    /// Runs until `task` has completed and returns its value; other tasks may still run. Panics like
    /// [`Self::run`].
    pub(super) fn finish<T>(&mut self, limit: Duration, task: impl Future<Output = T>) -> T {
        let end = self.elapsed() + micros(limit);
        let result = RefCell::new(None);
        let mut main = Task::new(async { *result.borrow_mut() = Some(task.await) });
        loop {
            self.run_ready_with(Some(&mut main));
            if let Some(value) = result.take() {
                return value;
            }
            assert!(self.advance(), "the task waits for nothing");
            assert!(self.elapsed() <= end, "not done after {limit:?}");
        }
    }

    /// Runs for `time`. Returns the number of turns.
    pub(super) fn run_for(&mut self, time: Duration) -> usize {
        self.run_until(self.elapsed() + micros(time), |_| {})
    }

    /// Runs until `end` in microseconds, and calls `each` whenever nothing is left to do at an instant. Returns
    /// the number of turns.
    pub(super) fn run_until(&mut self, end: u64, mut each: impl FnMut(&mut Self)) -> usize {
        let mut turns = self.run_ready();
        each(self);
        while self.next().is_some_and(|next| next <= end) && self.advance() {
            turns += self.run_ready();
            each(self);
        }
        let mut net = lock(&self.net);
        net.now = net.now.max(end);
        turns
    }
}
