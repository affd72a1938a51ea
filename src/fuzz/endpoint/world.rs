//! Both endpoints, the clock, and the network between them.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::laws::Laws;
use super::links::Links;
use super::reader::Packet;
use super::settings::{RAW, STREAMS, Setup};
use super::third_party::{OWN, Power, ThirdParty};
use crate::config::Config;
use crate::driver::{Driver, Turn};
use crate::endpoint::Endpoint;
use crate::fuzz::Choices;
use crate::fuzz::wire::{
    CLIENT, CLIENT_SIDE, ELSEWHERE, SERVER, SERVER_SIDE, Sent, Wire, addr, receiver_of,
};
use crate::listener::KcpListener;
use crate::stream::KcpStream;
use crate::util::path::Path;
use crate::util::sync::Arc;

/// Turns in a row without time passing.
const TURNS: usize = 10_000;
/// Recorded datagrams open no connection for ten minutes.
const MAX_RECORD_AGE: Duration = Duration::from_secs(540);

pub(super) struct World {
    pub(super) now: Instant,
    pub(super) drivers: [Option<Driver<Wire>>; 2],
    pub(super) endpoint: Option<Endpoint>,
    pub(super) listener: Option<Rc<KcpListener>>,
    /// Calls of applications that have not returned.
    pub(super) connects: Vec<Pin<Box<dyn Future<Output = io::Result<KcpStream>>>>>,
    pub(super) shutdown: Option<Pin<Box<dyn Future<Output = bool>>>>,
    pub(super) hosts: [Host; 2],
    pub(super) setup: Setup,
    /// Turns so far.
    turns: usize,
    /// By side, then by connection.
    pub(super) ends: [HashMap<u32, End>; 2],
    /// Everything that each side ever wrote: it outlives the stream.
    pub(super) written: [HashMap<u32, Vec<Written>>; 2],
    /// Streams accepted so far, and which of them has read from a client's stream.
    pub(super) accepted: u32,
    pub(super) readers: HashMap<u32, u32>,
    pub(super) wire: VecDeque<Packet>,
    away: bool,
    /// The paths of the client.
    pub(super) links: Links,
    pub(super) third_party: ThirdParty,
    pub(super) laws: Laws,
}

/// One end of a stream, with its bytes written and read.
pub(super) struct End {
    pub(super) stream: KcpStream,
    /// Distinguishes the streams of one conversation id.
    pub(super) serial: u32,
    pub(super) written: usize,
    pub(super) read: usize,
    pub(super) closed: bool,
}

/// Bytes ever written to a stream.
pub(super) struct Written {
    pub(super) serial: u32,
    pub(super) bytes: usize,
    pub(super) closed: bool,
    pub(super) since: Instant,
}

/// The host of an endpoint, which outlives it.
pub(super) struct Host {
    pub(super) number: u8,
    pub(super) config: Arc<Config>,
    /// Endpoints so far: each has another seed.
    pub(super) starts: u8,
}

impl Host {
    pub(super) fn new(number: u8, config: &Config) -> Self {
        Self { number, config: Arc::new(config.clone()), starts: 0 }
    }
}

impl World {
    pub(super) fn new(now: Instant, setup: Setup, server: &Config, client: &Config) -> Self {
        let hosts = [Host::new(SERVER, server), Host::new(CLIENT, client)];
        let mut world = Self {
            now,
            drivers: [None, None],
            endpoint: None,
            listener: None,
            connects: Vec::new(),
            shutdown: None,
            hosts,
            setup,
            turns: 0,
            ends: [HashMap::new(), HashMap::new()],
            written: [HashMap::new(), HashMap::new()],
            accepted: 0,
            readers: HashMap::new(),
            wire: VecDeque::new(),
            away: false,
            links: Links::default(),
            third_party: ThirdParty::new(server, setup.power, setup.algorithm),
            laws: Laws::new(now, server, client),
        };
        world.start(SERVER_SIDE);
        world.start(CLIENT_SIDE);
        world
    }

    /// Opens a connection. `waits`: the call goes on; otherwise it is cancelled unless it returns at
    /// once.
    pub(super) fn connect(&mut self, waits: bool) {
        let Some(endpoint) = self.endpoint.clone() else { return };
        let connect = async move { endpoint.connect(addr(SERVER)).await };
        if waits && self.connects.len() < STREAMS {
            self.connects.push(Box::pin(connect));
            self.poll_calls();
            self.turn(CLIENT_SIDE);
        } else if let Some(Ok(stream)) = self.ask(CLIENT_SIDE, connect) {
            self.adopt(CLIENT_SIDE, stream);
        }
    }

    /// Polls the calls of applications.
    pub(super) fn poll_calls(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        for mut connect in std::mem::take(&mut self.connects) {
            match connect.as_mut().poll(&mut cx) {
                Poll::Pending => self.connects.push(connect),
                Poll::Ready(Ok(stream)) => self.adopt(CLIENT_SIDE, stream),
                Poll::Ready(Err(_)) => {}
            }
        }
        if self.shutdown.as_mut().is_some_and(|ended| ended.as_mut().poll(&mut cx).is_ready()) {
            self.shutdown = None;
        }
    }

    pub(super) fn pass_time(&mut self, millis: u64) {
        let passed = Duration::from_millis(millis);
        if passed > MAX_RECORD_AGE && self.setup.power == Power::OnPath {
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

    /// Passes `millis` milliseconds: the network delivers, except to the side `cut_off`, and
    /// nothing else happens.
    pub(super) fn run_for(&mut self, millis: u64, cut_off: Option<usize>) {
        for _ in 0..millis / 10 {
            self.set_time(self.now + Duration::from_millis(10));
            self.wire.retain(|packet| cut_off.is_none() || receiver_of(packet.to) != cut_off);
            self.deliver();
        }
    }

    /// Polls a request to the driver of `side` until its first answer. It is dropped if that takes longer.
    pub(super) fn ask<T>(&mut self, side: usize, request: impl Future<Output = T>) -> Option<T> {
        let (mut request, mut cx) = (pin!(request), Context::from_waker(Waker::noop()));
        if let Poll::Ready(value) = request.as_mut().poll(&mut cx) {
            return Some(value);
        }
        self.turn(side);
        match request.as_mut().poll(&mut cx) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    pub(super) fn turn_all(&mut self) {
        self.turn(SERVER_SIDE);
        self.turn(CLIENT_SIDE);
        self.poll_calls();
    }

    pub(super) fn turn(&mut self, side: usize) {
        for _ in 0..TURNS {
            let Some(driver) = &mut self.drivers[side] else { return };
            let turn = driver.turn(self.now);
            self.turns += 1;
            // A check takes longer than a turn.
            if self.turns.is_multiple_of(self.setup.check_every) {
                driver.check_invariants();
            }
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

    pub(super) fn send(&mut self, side: usize, sent: Sent) {
        for (path, bytes) in sent {
            if bytes == RAW {
                continue;
            }
            let (to, further) = (path.peer, self.links.source(path));
            let from = match side {
                SERVER_SIDE => addr(SERVER),
                _ if further.is_some() => further.unwrap_or_else(|| addr(CLIENT)),
                _ if self.away => addr(ELSEWHERE),
                _ => addr(CLIENT),
            };
            assert!(side == SERVER_SIDE || to == addr(SERVER), "the client sends to {to}");
            let content = Some(self.laws.on_sent(side, to, &bytes));
            let packet = Packet { to, from, bytes, content, foreign: false };
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
            4 if !self.setup.honest => {
                let (at, bits) = (usize::from(choices.byte()), choices.byte());
                if let Some(packet) = self.wire.front_mut()
                    && let Some(byte) = packet.bytes.get_mut(at)
                {
                    *byte ^= bits;
                    (packet.foreign, packet.content) = (true, None);
                }
            }
            5 if !self.setup.honest => {
                let to = addr(choices.byte() & 1);
                let from = addr(choices.byte() & 3);
                self.wire.push_back(Packet::foreign(from, to, choices.bytes()));
            }
            _ => self.deliver(),
        }
    }

    pub(super) fn third_party(&mut self, choices: &mut Choices<'_>) {
        self.third_party.act(self.now, choices, &mut self.wire);
    }

    pub(super) fn deliver(&mut self) {
        while let Some(packet) = self.wire.pop_front() {
            let (from, to) = (packet.from, packet.to);
            let Some(side) = receiver_of(to) else { continue };
            let Some(local) = self.links.passes(from, to) else { continue };
            if let Some(driver) = &mut self.drivers[side] {
                self.laws.on_received(side, &packet);
                driver.socket_mut().inbox.push_back((Path { peer: from, local }, packet.bytes));
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
        self.stop_listening();
        self.stop_connecting();
        self.repair_sockets();
        self.away = false;
        self.links = Links::default();
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
        panic!("a driver outlives its users");
    }
}
