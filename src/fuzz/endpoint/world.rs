//! Both endpoints, the clock, the network between them, and their applications.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncWrite, ReadBuf};

use super::laws::Laws;
use super::links::Links;
use super::third_party::{OWN, Power, ThirdParty};
use crate::config::Config;
use crate::crypto::Algorithm;
use crate::driver::{Driver, Turn};
use crate::endpoint::Endpoint;
use crate::fuzz::Choices;
use crate::fuzz::wire::{
    CLIENT, CLIENT_SIDE, ELSEWHERE, Packet, SERVER, SERVER_SIDE, Wire, addr, receiver_of,
};
use crate::listener::KcpListener;
use crate::shared::accept_queue::{AcceptHandle, AcceptQueue};
use crate::shared::requests::RequestQueue;
use crate::stream::KcpStream;
use crate::util::path::Path;

/// Turns in a row without time passing.
const TURNS: usize = 10_000;
/// Recorded datagrams open no connection for ten minutes.
const MAX_RECORD_AGE: Duration = Duration::from_secs(540);

pub(super) struct World {
    pub(super) now: Instant,
    pub(super) drivers: [Option<Driver<Wire>>; 2],
    pub(super) endpoint: Option<Endpoint>,
    pub(super) listener: Option<KcpListener>,
    /// By side, then by connection.
    pub(super) ends: [HashMap<u32, End>; 2],
    /// Everything that each side ever wrote: it outlives the stream.
    pub(super) written: [HashMap<u32, Vec<Written>>; 2],
    /// Streams accepted so far, and which of them has read from a client's stream.
    pub(super) accepted: u32,
    pub(super) readers: HashMap<u32, u32>,
    pub(super) wire: VecDeque<Packet>,
    away: bool,
    /// What happens to the paths of the client.
    pub(super) links: Links,
    pub(super) honest: bool,
    pub(super) power: Power,
    pub(super) third_party: ThirdParty,
    pub(super) laws: Laws,
}

impl World {
    pub(super) fn new(
        now: Instant,
        server: &Config,
        client: &Config,
        honest: bool,
        power: Power,
        algorithm: Algorithm,
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
            links: Links::default(),
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

    fn send(&mut self, side: usize, sent: Vec<(Path, Vec<u8>)>) {
        for (path, bytes) in sent {
            let (to, further) = (path.peer, self.links.source(path));
            let from = match side {
                SERVER_SIDE => addr(SERVER),
                _ if further.is_some() => further.unwrap_or_else(|| addr(CLIENT)),
                _ if self.away => addr(ELSEWHERE),
                _ => addr(CLIENT),
            };
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
            let Some(local) = self.links.passes(from, to) else { continue };
            if let Some(driver) = &mut self.drivers[side] {
                self.laws.on_received(side, from, &bytes, foreign);
                driver.socket_mut().inbox.push_back((Path { peer: from, local }, bytes));
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
        assert!(self.drivers.iter().all(Option::is_none), "a driver outlives its users");
    }
}

/// Most connections of an endpoint.
pub(super) const STREAMS: usize = 8;
/// How long after a client connected a recorded datagram and its retransmissions are known.
const KNOWN: Duration = Duration::from_secs(60);

/// One end of a stream, with its bytes written and read.
pub(super) struct End {
    pub(super) stream: KcpStream,
    /// Distinguishes the streams of one conversation id.
    serial: u32,
    written: u64,
    read: u64,
    closed: bool,
}

/// Bytes ever written to a stream.
pub(super) struct Written {
    serial: u32,
    bytes: u64,
    closed: bool,
    since: Instant,
}

impl World {
    pub(super) fn adopt(&mut self, side: usize, stream: KcpStream) {
        let conv = stream.conv();
        self.accepted += 1;
        // An earlier stream of this id is dropped.
        self.leave(side, conv, 2);
        let end = End { stream, serial: self.accepted, written: 0, read: 0, closed: false };
        let written = Written { serial: end.serial, bytes: 0, closed: false, since: self.now };
        // A client that changes its address may have several at the server.
        self.written[side].entry(conv).or_default().push(written);
        self.ends[side].insert(conv, end);
    }

    pub(super) fn application(&mut self, choices: &mut Choices<'_>) {
        self.accept();
        let side = usize::from(choices.byte() & 1);
        let mut convs: Vec<u32> = self.ends[side].keys().copied().collect();
        convs.sort_unstable();
        if convs.is_empty() {
            return;
        }
        let conv = choices.pick(&convs);
        let Some(end) = self.ends[side].get_mut(&conv) else { return };
        self.laws.check_stats(&end.stream.stats());
        let mut cx = Context::from_waker(Waker::noop());
        match choices.byte() % 12 {
            0..=3 => {
                let len = usize::from(choices.byte()) * 20 + 1;
                let data: Vec<u8> = (0..len as u64).map(|i| pattern(end.written + i)).collect();
                if let Ok(taken) = end.stream.try_write(&data) {
                    end.written += taken as u64;
                }
            }
            4..=6 => self.read(side, conv),
            7 => {
                let stream = std::pin::Pin::new(&mut end.stream);
                drop(stream.poll_shutdown(&mut cx));
                end.closed = true;
            }
            8 => drop(end.stream.datagrams().send(b"beside")),
            9 => while end.stream.datagrams().try_recv().is_ok() {},
            10 => self.leave(side, conv, choices.byte()),
            _ => match choices.byte() & 7 {
                0 if side == SERVER_SIDE => self.listener = None,
                1 if side == CLIENT_SIDE => self.endpoint = None,
                _ => self.turn(side),
            },
        }
        self.note(side, conv);
    }

    /// Records the bytes that this end has written, for checks of the reader.
    fn note(&mut self, side: usize, conv: u32) {
        if let Some(end) = self.ends[side].get(&conv)
            && let Some(all) = self.written[side].get_mut(&conv)
            && let Some(written) = all.iter_mut().find(|written| written.serial == end.serial)
        {
            (written.bytes, written.closed) = (end.written, end.closed);
        }
    }

    fn leave(&mut self, side: usize, conv: u32, how: u8) {
        let Some(end) = self.ends[side].get_mut(&conv) else { return };
        end.closed |= how & 3 != 0;
        self.note(side, conv);
        let Some(end) = self.ends[side].remove(&conv) else { return };
        match how & 3 {
            0 => end.stream.abort(),
            1 => drop(end.stream.into_split()),
            _ => drop(end.stream),
        }
    }

    fn accept(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut accepted = Vec::new();
        if let Some(listener) = &self.listener {
            while let Poll::Ready(Ok((stream, _))) = listener.poll_accept(&mut cx) {
                accepted.push(stream);
            }
            assert!(listener.stats().connections.current <= STREAMS as u64);
        }
        accepted.into_iter().for_each(|stream| self.adopt(SERVER_SIDE, stream));
    }

    fn read(&mut self, side: usize, conv: u32) {
        let Some(end) = self.ends[side].get_mut(&conv) else { return };
        let (peer, mut buffer) = (end.stream.peer_addr(), [0; 4_096]);
        loop {
            let mut buf = ReadBuf::new(&mut buffer);
            let mut cx = Context::from_waker(Waker::noop());
            let stream = std::pin::Pin::new(&mut end.stream);
            let polled = tokio::io::AsyncRead::poll_read(stream, &mut cx, &mut buf);
            let Poll::Ready(Ok(())) = polled else { return };
            let got = buf.filled();
            if let Ok(peer) = peer {
                self.laws.on_read(side, peer, conv);
            }
            if !self.honest {
                if got.is_empty() {
                    return;
                }
                continue;
            }
            // A connection that was not accepted has written nothing.
            let all = self.written[1 - side].get(&conv).map_or(&[][..], Vec::as_slice);
            if got.is_empty() {
                let ends = |written: &Written| written.closed && written.bytes == end.read;
                let unwritten = all.is_empty() && end.read == 0;
                assert!(unwritten || all.iter().any(ends), "a truncated stream ends with EOF");
                return;
            }
            let is_known = all.iter().any(|written| self.now < written.since + KNOWN);
            if self.power == Power::OnPath && side == SERVER_SIDE && is_known {
                let reader = *self.readers.entry(conv).or_insert(end.serial);
                assert_eq!(reader, end.serial, "bytes of {conv:#x} are delivered twice");
            }
            for byte in got {
                assert_eq!(*byte, pattern(end.read), "another byte than was written");
                end.read += 1;
            }
            let bytes = all.iter().map(|written| written.bytes).max();
            assert!(Some(end.read) <= bytes, "more bytes than were written");
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a byte is wanted")]
fn pattern(at: u64) -> u8 {
    (at ^ (at >> 8)) as u8
}
