//! The system of one run: its processes on the simulated network, the faults that happen to them, and the
//! checks after each step and at the end.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::runtime::Builder;

use super::apps::{Process, Shared, State, side_of};
use super::kinds::Kind;
use super::ledger::Ledger;
use super::plan::{Conversation, Event, FIRST, Plan, SocketError, TIMEOUT, second};
use crate::core::segment;
use crate::core::tests::report::describe;
use crate::driver::output::PacketCodec;
use crate::driver::tests::fixtures::SERVER;
use crate::driver::tests::sim_network::{Received, Sent, code};
use crate::driver::tests::sim_world::{World, addr};
use crate::endpoint::Endpoint;
use crate::fec::{self, FecFlag, fec_flag};
use crate::fuzz::endpoint::laws::Laws;
use crate::fuzz::endpoint::reader::Packet;
use crate::listener::{KcpListener, Shutdown};
use crate::stats::{EndpointStats, UdpStats};
use crate::testkit::link::LinkConfig;
use crate::testkit::rng::Rng;

/// Microseconds after the last handle is gone within which a driver ends.
const LAST_WAIT: u64 = 13_000_000;

/// Bound of the time from the end of all faults to the last call, in microseconds: the largest transfer through the
/// smallest window or bottleneck.
const RECOVERY: u64 = 2 * TIMEOUT;
/// The same if a peer may be lost: in addition a timeout.
const LOST_RECOVERY: u64 = 3 * TIMEOUT;

/// A process that runs, with its handles.
struct Running {
    process: Process,
    endpoint: Endpoint,
    listener: Option<Rc<KcpListener>>,
    /// Datagrams of its socket, as the network counts them.
    sent: UdpStats,
    received: UdpStats,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    /// Virtual microseconds.
    pub(super) time: u64,
    /// From the end of all faults until the last call, and the bound of this time.
    pub(super) recovery: u64,
    pub(super) bound: u64,
    pub(super) may_lose_peers: bool,
    pub(super) bytes_read: u64,
    pub(super) errors: usize,
    pub(super) hash: u64,
}

pub(super) struct System {
    world: World,
    plan: Plan,
    shared: Rc<Shared>,
    running: HashMap<u8, Running>,
    /// The address of each client that the network sees.
    outside: HashMap<u8, SocketAddr>,
    rng: Rng,
    verbose: bool,
    started: u64,
}

impl System {
    /// One run.
    pub(super) fn run(plan: &Plan, verbose: bool) -> Report {
        // For the timer of `HandOver`, which never expires, since the runtime does not run on virtual time.
        let timer = Builder::new_current_thread().enable_time().build().unwrap();
        let _guard = timer.enter();
        let mut system = Self::new(plan, verbose);
        for (at, event) in &plan.events {
            system.run_until(*at);
            system.apply(*event);
        }
        system.run_until(plan.healed_at);
        system.heal();
        let recovery = system.finish_conversations();
        system.end();
        let ledger = system.shared.ledger.borrow();
        Report {
            time: system.world.elapsed(),
            recovery,
            bound: system.bound(),
            may_lose_peers: plan.may_lose_peers(),
            bytes_read: ledger.bytes_read(),
            errors: ledger.errors,
            hash: system.world.hash(),
        }
    }

    fn new(plan: &Plan, verbose: bool) -> Self {
        let world = World::new(plan.seed, plan.path.clone());
        world.log();
        world.received();
        let shared = Rc::new(Shared {
            plan: plan.clone(),
            ledger: RefCell::new(Ledger::new(plan.clone())),
            clock: world.clock(),
            spawner: world.spawner.clone(),
            connecting: Cell::new(0),
            laws: RefCell::new(Laws::new(world.now(), &plan.server, &plan.client)),
        });
        let rng = Rng::keyed(plan.seed, 2);
        let (running, outside) = (HashMap::new(), HashMap::new());
        let mut system =
            Self { world, plan: plan.clone(), shared, running, outside, rng, verbose, started: 0 };
        system.start(SERVER);
        for host in FIRST..FIRST + plan.clients {
            system.start(host);
            if plan.kinds.has(Kind::TwoPaths) {
                let second = second(host);
                system.world.add_address(host, second);
                for (from, to) in [(second, addr(SERVER)), (addr(SERVER), second)] {
                    system.world.set_link(from, to, plan.second_link());
                }
            }
            if let Some((up, link)) = &plan.one_way {
                let ends = [addr(host), addr(SERVER)];
                let [from, to] = if *up { ends } else { [ends[1], ends[0]] };
                system.world.set_link(from, to, link.clone());
            }
        }
        for (index, conversation) in (0..).zip(plan.conversations.iter()) {
            system.running[&conversation.host].converse(*conversation, index);
        }
        system
    }

    /// Starts a process on `host`.
    fn start(&mut self, host: u8) {
        self.world.resume(host);
        let process = Process::new(host, &self.shared);
        let (endpoint, listener) = if host == SERVER {
            let listener = match self.plan.server.socket.shards {
                1 => self.world.listener(host, &self.plan.server),
                _ => self.world.sharded_listener(host, &self.plan.server),
            };
            let listener = Rc::new(listener);
            process.serve(listener.clone());
            (listener.endpoint().clone(), Some(listener))
        } else if self.plan.client.early_data {
            (self.world.endpoint(host, &self.plan.client), None)
        } else {
            (self.world.waiting_endpoint(host, &self.plan.client), None)
        };
        let (sent, received) = (UdpStats::default(), UdpStats::default());
        let running = Running { process, endpoint, listener, sent, received };
        assert!(self.running.insert(host, running).is_none(), "one process for each port");
    }

    fn run_until(&mut self, at: u64) {
        let Self { world, running, shared, verbose, .. } = self;
        let codec = verbose.then(|| PacketCodec::new(&shared.plan.server, [9; 32]));
        world.run_until(at.max(world.elapsed()), |world| {
            check(world, running, shared, codec.as_ref());
        });
    }

    fn apply(&mut self, event: Event) {
        let now = self.world.elapsed();
        if self.verbose {
            println!("{now:>12} us {event:?}");
        }
        match event {
            Event::Cut { host, is_second, up, down, time } => {
                self.add_outage(host, time);
                let client = if is_second { second(host) } else { self.address(host) };
                let server = addr(SERVER);
                if up {
                    self.world.cut(client, server, true);
                }
                if down {
                    self.world.cut(server, client, true);
                }
            }
            Event::Mend { host } => self.mend(host),
            Event::Suspend { host, stops, time } => {
                self.add_outage(host, time);
                if let Some(running) = self.running.get(&host) {
                    running.process.state.set(State::Suspended);
                    self.world.suspend(host, stops);
                }
            }
            Event::Resume { host } => self.resume(host),
            Event::ClockRate { host, rate } => self.world.set_clock_rate(host, rate),
            Event::Crash { host } => self.stop(host, false),
            Event::Exit { host } => self.stop(host, true),
            Event::Start { host } => self.restart(host, now),
            Event::Move { host, to, is_announced } => self.move_to(host, to, is_announced),
            Event::FailSends { host, error, count } => {
                self.world.fail_sends(host, (0..count).map(|_| error.into_io()));
            }
            Event::FailRecvs { host, error, count } => {
                self.world.fail_recvs(host, (0..count).map(|_| error.into_io()));
            }
            Event::Block { host, time } => {
                self.add_outage(host, time);
                self.world.block_sends(host, Duration::from_micros(time));
            }
            Event::LimitSends { host, limit } => self.world.limit_sends(host, Some(limit)),
            Event::Drain => self.shut_listener(Shutdown::Drain),
            Event::HandOver => {
                self.shared.ledger.borrow_mut().on_hand_over();
                self.shut_listener(Shutdown::HandOver { timeout: Duration::MAX });
            }
            Event::Forge { count } => (0..count).for_each(|_| self.forge()),
        }
    }

    fn address(&self, host: u8) -> SocketAddr {
        self.outside.get(&host).copied().unwrap_or_else(|| addr(host))
    }

    fn add_outage(&self, host: u8, time: u64) {
        self.shared.ledger.borrow_mut().facts(host).outage += time;
    }

    fn mend(&self, host: u8) {
        for client in [addr(host), second(host), self.address(host)] {
            self.world.cut(client, addr(SERVER), false);
            self.world.cut(addr(SERVER), client, false);
        }
    }

    fn resume(&mut self, host: u8) {
        if let Some(running) = self.running.get(&host)
            && running.process.state.get() == State::Suspended
        {
            running.process.state.set(State::Running);
            self.world.resume(host);
            self.world.wake_tasks();
        }
    }

    /// A process is killed, or its runtime ends.
    fn stop(&mut self, host: u8, in_order: bool) {
        let Some(running) = self.running.remove(&host) else { return };
        self.shared.ledger.borrow_mut().on_process_end(host, in_order);
        self.world.resume(host);
        if in_order {
            self.world.exit(host)
        } else {
            self.world.crash(host)
        }
        running.process.state.set(State::Ended);
        self.world.wake_tasks();
    }

    /// A process starts where the last one crashed or ended; a client connects again.
    fn restart(&mut self, host: u8, now: u64) {
        if self.running.contains_key(&host) {
            return;
        }
        self.shared.ledger.borrow_mut().facts(host).lost_until = Some(now);
        self.start(host);
        if host != SERVER {
            let conversation = Conversation { host, at: now, up: self.rng.spread(1, 100_000) };
            self.started += 1;
            self.running[&host].converse(conversation, 500 + self.started);
        }
    }

    fn move_to(&mut self, host: u8, to: u8, is_announced: bool) {
        self.mend(host);
        let address = SocketAddr::new(addr(to).ip(), 50_000 + u16::from(host));
        self.outside.insert(host, address);
        self.world.move_to(host, address);
        self.shared.ledger.borrow_mut().facts(host).has_moved = true;
        if let Some(running) = self.running.get(&host)
            && is_announced
        {
            self.shared.laws.borrow_mut().on_network_changed(side_of(host));
            running.endpoint.network_changed();
        }
    }

    fn shut_listener(&self, how: Shutdown) {
        let Some(listener) = self.running.get(&SERVER).and_then(|server| server.listener.clone())
        else {
            return;
        };
        self.shared.ledger.borrow_mut().drains = true;
        let process = self.running[&SERVER].process.clone();
        process.spawn(async move {
            listener.shutdown(how).await;
        });
    }

    /// A third party sends a datagram in any name, without knowledge of any connection.
    fn forge(&mut self) {
        let rng = &mut self.rng;
        let mut datagram = vec![0; rng.spread(1, 1_500) as usize];
        rng.fill(&mut datagram);
        if datagram.len() >= 24 && rng.chance(700_000) {
            // A segment: initial data, or any other.
            datagram[4] = 81 + rng.below(6) as u8;
            datagram[5] = rng.pick(&[0, 0, datagram[5]]);
            let len = (datagram.len() - 24) as u32;
            datagram[20..24].copy_from_slice(&len.to_le_bytes());
            if rng.chance(500_000) {
                datagram[12..20].fill(0);
            }
        }
        let client = FIRST + rng.below(self.plan.clients.into()) as u8;
        let stranger = addr(rng.range(201, 220) as u8);
        let client = self.address(client);
        let (from, to) = self.rng.pick(&[
            (client, addr(SERVER)),
            (stranger, addr(SERVER)),
            (stranger, client),
            (addr(SERVER), client),
        ]);
        self.world.forge(from, to, &datagram);
    }

    /// All faults are over.
    fn heal(&mut self) {
        for host in [SERVER].into_iter().chain(FIRST..FIRST + self.plan.clients) {
            self.mend(host);
            self.resume(host);
            self.restart(host, self.plan.healed_at);
        }
        self.world.forget_faults();
        let LinkConfig { delay, rate, queue, policer, mtu, fragments, .. } = self.plan.path;
        let clean = LinkConfig::default();
        self.world.set_path(LinkConfig { delay, rate, queue, policer, mtu, fragments, ..clean });
    }

    /// Microseconds after the end of all faults within which all calls return.
    fn bound(&self) -> u64 {
        if self.plan.may_lose_peers() { LOST_RECOVERY } else { RECOVERY }
    }

    /// Runs until every call of an application has returned. Returns the microseconds that it took.
    fn finish_conversations(&mut self) -> u64 {
        let bound = self.bound();
        loop {
            let passed = self.world.elapsed() - self.plan.healed_at;
            let ledger = self.shared.ledger.borrow();
            if self.shared.connecting.get() == 0 && ledger.in_use().next().is_none() {
                ledger.check_promises();
                return passed;
            }
            let left: Vec<_> = ledger.in_use().collect();
            assert!(passed < bound, "after {passed} us without faults still wait: {left:#?}");
            drop(left);
            drop(ledger);
            self.run_until(self.world.elapsed() + 100_000);
        }
    }

    /// Drops every handle, and checks that nothing is left.
    fn end(&mut self) {
        let wait = self.world.elapsed() + 2 * TIMEOUT;
        while self.world.elapsed() < wait && self.connections() > 0 {
            self.run_until(self.world.elapsed() + 100_000);
        }
        // Reads of connections that have ended count in the next turn, which may send what was blocked.
        self.world.turn_all();
        self.run_until(self.world.elapsed());
        for driver in self.world.drivers.iter().flatten() {
            let (left, memory) = (driver.routing.conns.len(), driver.memory.used());
            assert_eq!((left, memory), (0, 0), "connections and memory of {}", driver.local());
        }
        for (host, running) in &self.running {
            check_counts(*host, &running.endpoint.stats(), running);
        }
        let processes: Vec<_> = self.running.drain().map(|(_, running)| running.process).collect();
        processes.iter().for_each(|process| process.state.set(State::Ended));
        self.world.wake_tasks();
        self.world.run_until(self.world.elapsed() + LAST_WAIT, |_| {});
        let left = self.world.drivers.iter().flatten().count();
        assert_eq!(left, 0, "drivers outlive their handles");
    }

    fn connections(&self) -> usize {
        self.world.drivers.iter().flatten().map(|driver| driver.routing.conns.len()).sum()
    }
}

impl Drop for System {
    fn drop(&mut self) {
        if self.verbose && std::thread::panicking() {
            println!("at {} us", self.world.elapsed());
            if let Ok(ledger) = self.shared.ledger.try_borrow() {
                ledger.ends.iter().enumerate().for_each(|(at, end)| println!("{at}: {end:?}"));
            }
        }
    }
}

impl Running {
    fn converse(&self, conversation: Conversation, index: u64) {
        self.process.converse(self.endpoint.clone(), conversation, index);
    }
}

/// Checks after each instant.
fn check(
    world: &World,
    running: &mut HashMap<u8, Running>,
    shared: &Shared,
    codec: Option<&PacketCodec>,
) {
    world.drivers.iter().flatten().for_each(|driver| driver.check_invariants());
    let has_laws = shared.plan.sends_once();
    let mut laws = shared.laws.borrow_mut();
    laws.on_time(world.now());
    // The network sends copies, which ask for no more than a third party may.
    let kinds = shared.plan.kinds;
    let foreign = kinds.has(Kind::Duplication) || kinds.has(Kind::Forgery);
    for Received { socket, from, datagram } in world.received() {
        if let Some(running) = running.get_mut(&host_of(socket)) {
            count(&mut running.received, &datagram);
        }
        if has_laws {
            let packet = Packet { to: socket, from, bytes: datagram, content: None, foreign };
            laws.on_received(side_of(host_of(socket)), &packet);
        }
    }
    for Sent { socket, from, to, datagram, arrival, at } in world.log() {
        if let Some(codec) = codec {
            let content = content(codec, &datagram);
            println!("{at:>12} us {from} to {to} until {arrival:?}: {content}");
        }
        if has_laws {
            laws.on_sent(side_of(host_of(socket)), to, &datagram);
        }
        if let Some(running) = running.get_mut(&host_of(socket)) {
            count(&mut running.sent, &datagram);
        }
    }
}

/// The segments of a datagram, for people.
fn content(codec: &PacketCodec, datagram: &[u8]) -> String {
    let mut datagram = datagram.to_vec();
    let Ok(opened) = codec.open(&mut datagram) else { return "unreadable".to_owned() };
    let segments = |datagram| {
        let conv = segment::conv_of(datagram).unwrap_or_default();
        format!("conv {conv:08x}: {}", describe(datagram))
    };
    match fec_flag(opened.body) {
        FecFlag::Plain => segments(opened.body),
        FecFlag::Data => format!("with FEC: {}", segments(&opened.body[fec::HEADER_LEN..])),
        other => format!("{other:?}"),
    }
}

fn count(stats: &mut UdpStats, datagram: &[u8]) {
    stats.datagrams += 1;
    stats.bytes += datagram.len() as u64;
}

/// The host of a socket.
fn host_of(socket: SocketAddr) -> u8 {
    (socket.port() - 4_000) as u8
}

/// Checks the statistics of an endpoint against the counts of the network.
fn check_counts(host: u8, stats: &EndpointStats, running: &Running) {
    assert_eq!(stats.sent, running.sent, "datagrams sent by {host}");
    assert_eq!(stats.received, running.received, "datagrams received by {host}");
    assert_eq!((stats.connections.current, stats.connections.unvalidated), (0, 0));
    assert_eq!((stats.memory.total_bytes, stats.memory.unvalidated_bytes), (0, 0));
}

impl SocketError {
    fn into_io(self) -> io::Error {
        match self {
            Self::TooLarge => io::Error::from_raw_os_error(code::TOO_LARGE),
            Self::NoBuffers => io::Error::from_raw_os_error(code::NO_BUFFERS),
            Self::WouldBlock => io::ErrorKind::WouldBlock.into(),
            Self::Refused => io::ErrorKind::ConnectionRefused.into(),
            Self::Denied => io::ErrorKind::PermissionDenied.into(),
            Self::Unreachable => io::ErrorKind::HostUnreachable.into(),
            Self::Other => io::ErrorKind::Other.into(),
        }
    }
}
