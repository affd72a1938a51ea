//! Both endpoints, the clock, and the network between them.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::application::{End, Written};
use super::laws::Laws;
use super::network::{CLIENT, CLIENT_SIDE, ELSEWHERE, Packet, SERVER, SERVER_SIDE, receiver_of};
use super::third_party::{OWN, Power, ThirdParty};
use crate::config::Config;
use crate::crypto::Algorithm;
use crate::driver::{Driver, Turn};
use crate::endpoint::Endpoint;
use crate::fuzz::Choices;
use crate::fuzz::wire::{Wire, addr};
use crate::listener::KcpListener;
use crate::shared::accept_queue::{AcceptHandle, AcceptQueue};
use crate::shared::requests::RequestQueue;

/// Turns in a row without time passing.
const TURNS: usize = 10_000;
/// Recorded datagrams open no connection for ten minutes.
const MAX_RECORD_AGE: Duration = Duration::from_secs(540);

pub(super) struct World {
    pub(super) now: Instant,
    drivers: [Option<Driver<Wire>>; 2],
    pub(super) endpoint: Option<Endpoint>,
    pub(super) listener: Option<KcpListener>,
    /// By side, then by connection.
    pub(super) ends: [HashMap<u32, End>; 2],
    /// Everything that each side ever wrote: it outlives the stream.
    pub(super) written: [HashMap<u32, Vec<Written>>; 2],
    /// Streams accepted so far, and which of them has read from a client's stream.
    pub(super) accepted: u32,
    pub(super) readers: HashMap<u32, u32>,
    wire: VecDeque<Packet>,
    away: bool,
    pub(super) honest: bool,
    pub(super) power: Power,
    third_party: ThirdParty,
    pub(super) laws: Laws,
}

impl World {
    pub(super) fn new(
        now: Instant,
        server: &Config,
        client: &Config,
        (honest, power, algorithm): (bool, Power, Algorithm),
    ) -> Self {
        let driver = |host, config: &Config, accept| {
            let requests = RequestQueue::new();
            let wire = Wire { local: Some(addr(host)), ..Wire::default() };
            let seed = [host + 1; 32];
            let driver = Driver::new(wire, config.clone(), requests.clone(), accept, seed, now);
            (driver.ok(), Endpoint::attach(requests))
        };
        let queue = AcceptQueue::new();
        let (first, serving) = driver(SERVER, server, Some(queue.clone()));
        let (second, dialing) = driver(CLIENT, client, None);
        Self {
            now,
            drivers: [first, second],
            endpoint: Some(dialing),
            listener: Some(KcpListener::new(AcceptHandle::new(queue), serving)),
            ends: [HashMap::new(), HashMap::new()],
            written: [HashMap::new(), HashMap::new()],
            accepted: 0,
            readers: HashMap::new(),
            wire: VecDeque::new(),
            away: false,
            honest,
            power,
            third_party: ThirdParty::new(server, power, algorithm),
            laws: Laws::new(now, server, client),
        }
    }

    pub(super) fn connect(&mut self) {
        let Some(endpoint) = self.endpoint.clone() else { return };
        let mut connect = pin!(endpoint.connect(addr(SERVER)));
        let mut cx = Context::from_waker(Waker::noop());
        if connect.as_mut().poll(&mut cx).is_pending() {
            self.turn(CLIENT_SIDE);
        }
        if let Poll::Ready(Ok(stream)) = connect.as_mut().poll(&mut cx) {
            self.adopt(CLIENT_SIDE, stream);
        }
    }

    pub(super) fn pass_time(&mut self, millis: u64) {
        let passed = Duration::from_millis(millis);
        if passed > MAX_RECORD_AGE && self.power == Power::OnPath {
            self.wire.clear();
            self.third_party.forget();
        }
        self.set_time(self.now + passed);
        self.turn_all();
    }

    fn set_time(&mut self, now: Instant) {
        self.now = now;
        self.laws.on_time(now);
    }

    /// Passes `millis` milliseconds in which the network delivers to all but the side `cut_off`,
    /// and nothing else happens.
    pub(super) fn run_for(&mut self, millis: u64, cut_off: Option<usize>) {
        for _ in 0..millis / 10 {
            self.set_time(self.now + Duration::from_millis(10));
            self.wire.retain(|packet| cut_off.is_none() || receiver_of(packet.to) != cut_off);
            self.deliver();
        }
    }

    pub(super) fn turn_all(&mut self) {
        self.turn(SERVER_SIDE);
        self.turn(CLIENT_SIDE);
    }

    pub(super) fn turn(&mut self, side: usize) {
        for _ in 0..TURNS {
            let Some(driver) = &mut self.drivers[side] else { return };
            let turn = driver.turn(self.now);
            driver.check_invariants();
            let due = driver.deadline().is_some_and(|at| at <= self.now);
            let sent = std::mem::take(&mut driver.socket_mut().sent);
            self.send(side, sent);
            match turn {
                Turn::Finished => {
                    self.drivers[side] = None;
                    return;
                }
                Turn::Idle if !due => return,
                _ => {}
            }
        }
        panic!("side {side} spins");
    }

    fn send(&mut self, side: usize, sent: Vec<(SocketAddr, Vec<u8>)>) {
        let from = match side {
            SERVER_SIDE => addr(SERVER),
            _ if self.away => addr(ELSEWHERE),
            _ => addr(CLIENT),
        };
        for (to, bytes) in sent {
            assert!(side == SERVER_SIDE || to == addr(SERVER), "the client sends to {to}");
            self.laws.on_sent(side, to, &bytes);
            let packet = Packet { to, from, bytes, foreign: false };
            // Datagrams to unused addresses are not seen.
            if receiver_of(to).is_some() || to.ip() == addr(OWN).ip() {
                self.third_party.record(&packet);
                self.wire.push_back(packet);
            }
        }
    }

    pub(super) fn network(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 8 {
            0 => drop(self.wire.pop_front()),
            1 => {
                let first = self.wire.pop_front();
                self.wire.extend(first);
            }
            2 => {
                let first = self.wire.front().cloned();
                self.wire.extend(first.map(|packet| Packet { foreign: true, ..packet }));
            }
            3 => self.away = !self.away,
            4 if !self.honest => {
                let (at, bits) = (usize::from(choices.byte()), choices.byte());
                if let Some(packet) = self.wire.front_mut()
                    && let Some(byte) = packet.bytes.get_mut(at)
                {
                    *byte ^= bits;
                    packet.foreign = true;
                }
            }
            5 if !self.honest => {
                let to = addr(choices.byte() & 1);
                let from = addr(choices.byte() & 3);
                self.wire.push_back(Packet { to, from, bytes: choices.bytes(), foreign: true });
            }
            _ => self.deliver(),
        }
    }

    pub(super) fn third_party(&mut self, choices: &mut Choices<'_>) {
        self.third_party.act(self.now, choices, &mut self.wire);
    }

    pub(super) fn deliver(&mut self) {
        while let Some(Packet { to, from, bytes, foreign }) = self.wire.pop_front() {
            let Some(side) = receiver_of(to) else { continue };
            if let Some(driver) = &mut self.drivers[side] {
                self.laws.on_received(side, from, &bytes, foreign);
                driver.socket_mut().inbox.push_back((from, bytes));
            }
        }
        self.turn_all();
    }

    /// The next time at which a driver has work, if no datagram is in flight.
    fn next_event(&self) -> Option<Instant> {
        let drivers = self.drivers.iter().flatten().filter(|_| self.wire.is_empty());
        drivers.filter_map(Driver::deadline).min()
    }

    /// Drops all handles and checks that nothing remains.
    pub(super) fn finish(&mut self) {
        self.ends.iter_mut().for_each(HashMap::clear);
        (self.listener, self.endpoint) = (None, None);
        self.away = false;
        // Round trips first, since windows may be small, then everything that waits for a timeout.
        for step in 0..20_000 {
            self.deliver();
            if self.drivers.iter().all(Option::is_none) {
                return;
            }
            let millis = if step < 19_800 { 10 } else { 1_000 };
            let next = self.now + Duration::from_millis(millis);
            self.set_time(next.max(self.next_event().unwrap_or(next)));
        }
        assert!(self.drivers.iter().all(Option::is_none), "a driver outlives its users");
    }
}
