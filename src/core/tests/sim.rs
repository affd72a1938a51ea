//! Discrete-event simulation: two [`Kcp`](crate::core::connection::Kcp)s, two modelled paths and two modelled
//! applications under one virtual clock. Deterministic for a plan with its seed.
//!
//! After each event of a side its application reads and writes, its `Kcp` transmits, and the invariants are
//! checked.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::report::describe;
use super::sim_host::Side;
use super::sim_plan::Plan;
use crate::core::connection::PacketType;
use crate::stats::ConnectionStats;
use crate::testkit::link::{Damage, Link};
use crate::testkit::rng::Rng;

pub(crate) const CONV: u32 = 0x1122_3344;

#[derive(Debug)]
struct Event {
    at: u64,
    rank: u64,
    to: usize,
    slot: usize,
    damage: Damage,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.rank).cmp(&(other.at, other.rank))
    }
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// Hash of all events; equal plans have equal hashes.
    pub(crate) hash: u64,
    pub(crate) events: u64,
    /// When everything was delivered and acknowledged, microseconds.
    pub(crate) finished: u64,
    /// The part of [`Plan::bound`] that this took.
    pub(crate) share: f64,
    pub(crate) stats: [ConnectionStats; 2],
}

/// Called with each datagram that leaves: time, side and bytes. `false` drops it.
pub(crate) type Filter = Box<dyn FnMut(u64, usize, &[u8]) -> bool>;

pub(crate) struct Sim {
    plan: Plan,
    origin: Instant,
    pub(crate) now: u64,
    pub(crate) sides: [Side; 2],
    pub(crate) links: [Link; 2],
    wire: BinaryHeap<Reverse<Event>>,
    slots: Vec<Vec<u8>>,
    free: Vec<usize>,
    scratch: Vec<u8>,
    pub(crate) filter: Option<Filter>,
    deliver_damaged: bool,
    /// Corrupted datagrams that were accepted and rejected.
    pub(crate) damaged: (u64, u64),
    pub(crate) verbose: bool,
    /// Whether the latency from each write to its reading is recorded.
    pub(crate) measure: bool,
    /// Whether sent datagrams are recorded, with the sending side.
    pub(crate) record: bool,
    pub(crate) recorded: Vec<(usize, Vec<u8>)>,
    hash: u64,
    events: u64,
    sent: u64,
}

impl Sim {
    pub(crate) fn new(plan: &Plan) -> Self {
        let origin = super::origin();
        let link = |i: usize| {
            Link::new(plan.sides[i].link.clone(), Rng::keyed(plan.seed, 200 + i as u64).next())
        };
        Self {
            plan: plan.clone(),
            origin,
            now: 0,
            sides: [0, 1].map(|i| Side::new(plan, i, origin)),
            links: [link(0), link(1)],
            wire: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            scratch: Vec::new(),
            filter: None,
            deliver_damaged: false,
            damaged: (0, 0),
            verbose: false,
            measure: false,
            record: false,
            recorded: Vec::new(),
            hash: 0,
            events: 0,
            sent: 0,
        }
    }

    /// Delivers corrupted datagrams instead of dropping them as a checksum would.
    pub(crate) fn deliver_damaged(&mut self) {
        self.deliver_damaged = true;
    }

    pub(crate) fn instant(&self, at: u64) -> Instant {
        self.origin + Duration::from_micros(at)
    }

    fn note(&mut self, kind: u64, detail: u64) {
        for value in [self.now, kind, detail] {
            self.hash = (self.hash ^ value).wrapping_mul(0x2545_F491_4F6C_DD1D).rotate_left(31);
        }
    }

    /// One side loses its state and restarts, without data to send and without checking the data it reads.
    pub(crate) fn restart(&mut self, i: usize) {
        let now = self.instant(self.now);
        self.sides[i].restart(now);
        self.service(i);
    }

    /// Starts the applications.
    pub(crate) fn start(&mut self) {
        self.service(0);
        self.service(1);
    }

    /// Runs the impaired network until [`Plan::chaos`], then the healed one until everything is delivered and
    /// acknowledged and no event is left.
    ///
    /// # Panics
    ///
    /// When an invariant fails, or completion takes longer than [`Plan::bound`].
    pub(crate) fn run(&mut self) -> Outcome {
        let heal_at = self.plan.chaos;
        let limit = heal_at + self.plan.bound();
        self.start();
        let mut healed = false;
        while !self.is_done() {
            let next = self.next_event().unwrap_or_else(|| panic!("stuck at {} us", self.now));
            if !healed && next >= heal_at {
                healed = true;
                for link in &mut self.links {
                    let config = link.config().healed();
                    link.set_config(config);
                }
            }
            assert!(next <= limit, "not finished after {limit} us, {}", self.progress());
            self.step();
            let ended = self.sides.iter().find_map(Side::ended);
            assert_eq!(ended, None, "at {} us, {}", self.now, self.progress());
        }
        let finished = self.now;
        let share = finished.saturating_sub(heal_at) as f64 / (limit - heal_at) as f64;
        self.drain_events();
        self.check_end();
        let stats = [self.sides[0].kcp.stats(), self.sides[1].kcp.stats()];
        Outcome { hash: self.hash, events: self.events, finished, share, stats }
    }

    /// Delivers all datagrams in flight, with idle applications, until no event is left.
    fn drain_events(&mut self) {
        self.sides.iter_mut().for_each(Side::stop_application);
        let limit = self.events + 1_000_000;
        while self.next_event().is_some() {
            self.step();
            assert!(self.events < limit, "a drained pair never becomes idle");
        }
    }

    fn check_end(&self) {
        let [a, b] = &self.sides;
        a.check_end(b);
        b.check_end(a);
    }

    pub(crate) fn is_done(&self) -> bool {
        let [a, b] = &self.sides;
        a.is_done(b) && b.is_done(a)
    }

    fn progress(&self) -> String {
        format!("a: {} b: {}", self.sides[0].progress(), self.sides[1].progress())
    }

    /// When the next event is due.
    pub(crate) fn next_event(&self) -> Option<u64> {
        let wire = self.wire.peek().map(|Reverse(event)| event.at);
        let sides = self.sides.iter().filter_map(|side| side.due());
        wire.into_iter().chain(sides).min().map(|at| at.max(self.now))
    }

    /// Advances the clock to the next event and handles all events of one side at that time.
    pub(crate) fn step(&mut self) {
        let Some(now) = self.next_event() else { return };
        self.now = now;
        self.events += 1;
        let arrival = self.wire.peek().filter(|Reverse(event)| event.at <= now);
        let side = match arrival {
            Some(Reverse(event)) => event.to,
            None => usize::from(self.sides[0].due().is_none_or(|at| at > now)),
        };
        while let Some(Reverse(event)) = self.wire.peek() {
            if event.at > now || event.to != side {
                break;
            }
            let Some(Reverse(event)) = self.wire.pop() else { break };
            self.arrive(&event);
        }
        self.service(side);
    }

    /// Runs all events up to `until`, microseconds.
    pub(crate) fn run_until(&mut self, until: u64) {
        while self.next_event().is_some_and(|at| at <= until) {
            self.step();
        }
        self.now = self.now.max(until);
    }

    fn arrive(&mut self, event: &Event) {
        let mut datagram = std::mem::take(&mut self.slots[event.slot]);
        if event.damage == Damage::None {
            self.input(event.to, &datagram);
        } else if self.deliver_damaged {
            event.damage.apply(&mut datagram);
            self.sides[event.to].expect_damage();
            let is_accepted = self.input(event.to, &datagram);
            self.damaged.0 += u64::from(is_accepted);
            self.damaged.1 += u64::from(!is_accepted);
        }
        datagram.clear();
        self.slots[event.slot] = datagram;
        self.free.push(event.slot);
    }

    /// Delivers one datagram to a side. Returns whether it was accepted.
    pub(crate) fn input(&mut self, to: usize, datagram: &[u8]) -> bool {
        let now = self.instant(self.now);
        let side = &mut self.sides[to];
        let result = side.kcp.input(now, datagram, PacketType::Regular);
        if result.is_ok() {
            side.heard_at = self.now;
        }
        assert!(result.is_ok() || self.deliver_damaged, "{result:?}");
        let stats = side.kcp.stats();
        self.note(
            to as u64,
            stats.received.payload_bytes ^ (stats.anomalies.duplicate_segments << 32),
        );
        if self.verbose {
            println!("{:>12} {to} <- {}", self.now, describe(datagram));
        }
        result.is_ok()
    }

    /// One turn of a side: timers, application, transmission, checks.
    pub(crate) fn service(&mut self, i: usize) {
        let now = self.instant(self.now);
        let lengths = self.sides[i].begin_turn(self.now, now);
        let mut end = self.sides[i].written;
        self.sides[1 - i].expect(lengths, (end, self.now), self.measure);
        self.transmit(i);
        // Sending may let the application write more.
        loop {
            let lengths = self.sides[i].write(self.now, now);
            let written = self.sides[i].written;
            if written == end {
                break;
            }
            self.sides[1 - i].expect(lengths, (written, self.now), self.measure);
            self.transmit(i);
            end = written;
        }
        if self.sides[i].on_timeout(now) {
            self.transmit(i);
        }
        self.sides[i].end_turn(self.now, self.origin);
    }

    /// Sends all datagrams that a side may send now.
    fn transmit(&mut self, i: usize) {
        let now = self.instant(self.now);
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut was_last = false;
        loop {
            scratch.clear();
            let Some(sent) = self.sides[i].kcp.poll_transmit(now, &mut scratch) else { break };
            assert!(!was_last, "behind the last datagram: {}", describe(&scratch));
            was_last = sent.is_last;
            assert_eq!(sent.len, scratch.len());
            self.sides[i].check_datagram(&scratch);
            self.note(2 + i as u64, digest(&scratch));
            if self.verbose {
                println!("{:>12} {i} -> {}", self.now, describe(&scratch));
            }
            if self.record {
                self.recorded.push((i, scratch.clone()));
            }
            let keep = match &mut self.filter {
                Some(filter) => filter(self.now, i, &scratch),
                None => true,
            };
            if keep {
                self.launch(i, &scratch);
            }
        }
        self.scratch = scratch;
    }

    fn launch(&mut self, from: usize, datagram: &[u8]) {
        let (to, slots, free) = (1 - from, &mut self.slots, &mut self.free);
        let cut =
            self.links[from].config().fragments && self.sides[from].kcp.needs_ip_fragmentation();
        let whole = if cut { self.links[from].config().mtu } else { usize::MAX };
        let (host, wire, rank) = (&mut self.sides[to], &mut self.wire, &mut self.sent);
        self.links[from].send(self.now, datagram.len().min(whole), |at, damage| {
            let Some(at) = host.arrival(at) else { return };
            let slot = free.pop().unwrap_or_else(|| {
                slots.push(Vec::new());
                slots.len() - 1
            });
            slots[slot].extend_from_slice(datagram);
            *rank += 1;
            wire.push(Reverse(Event { at, rank: *rank, to, slot, damage }));
        });
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash ^= hash >> 29;
    }
    hash
}
