//! Two whole endpoints, their applications, and a network between them that does what it likes.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncWrite, ReadBuf};

use super::Choices;
use super::wire::{Wire, addr};
use crate::config::{Config, Limits, Migration, Mode, SessionPolicy};
use crate::crypto::{Algorithm, Cipher};
use crate::driver::{Driver, Turn};
use crate::endpoint::Endpoint;
use crate::fec::FecConfig;
use crate::listener::KcpListener;
use crate::shared::accept_queue::{AcceptHandle, AcceptQueue};
use crate::shared::requests::RequestQueue;
use crate::stream::KcpStream;

/// Steps of one input, and turns in a row without a moment passing.
const STEPS: usize = 400;
const TURNS: usize = 10_000;
const STREAMS: usize = 8;
const SERVER: u8 = 0;
const CLIENT: u8 = 1;
/// Another address that the client's datagrams may come from.
const ELSEWHERE: u8 = 2;

/// Nothing that applications, network and clock do to two endpoints makes either panic, spin, break
/// a promise about its memory or outlive its users. Without forgeries, every stream is a prefix of
/// what was written, and complete if it ends.
///
/// # Panics
///
/// When it does.
#[expect(clippy::disallowed_methods, reason = "the run needs one real instant to count from")]
pub fn endpoint(data: &[u8]) {
    let mut choices = Choices(data);
    let honest = choices.byte() & 3 != 0;
    let (server, client) = configs(&mut choices);
    let mut world = World::new(Instant::now(), &server, &client, honest);
    for _ in 0..STEPS {
        if choices.0.is_empty() {
            break;
        }
        match choices.byte() % 8 {
            0 => world.connect(),
            1 => world.pass_time(choices.pick(&[0, 1, 20, 200, 1_000, 15_000, 61_000, 86_400_000])),
            2 => world.network(&mut choices),
            3 => world.turn_all(),
            _ => world.application(&mut choices),
        }
    }
    world.finish();
}

fn configs(choices: &mut Choices<'_>) -> (Config, Config) {
    let algorithm = choices.pick(Algorithm::ALL);
    let key = [7; 32];
    let cipher = Cipher::new(algorithm, &key[..algorithm.key_len()]).expect("the right key");
    let mut config = || {
        let mut config = Config::new().cipher(cipher.clone());
        config.kcp = choices.config(Mode::Stream, true);
        config.kcp.mtu = choices.pick(&[160, 576, 1_400]);
        config.kcp.close_notify = choices.byte() & 7 != 0;
        config.open_on_connect = config.kcp.close_notify && choices.byte() & 1 == 0;
        let shapes = [None, None, Some((3, 1))];
        let shape = choices.pick(&shapes);
        config.fec = shape.and_then(|(data, parity)| FecConfig::new(data, parity).ok());
        config.session_policy = choices.pick(&[SessionPolicy::KeepBoth, SessionPolicy::Replace]);
        config.migration = match choices.byte() & 1 {
            0 if cipher.has_key() => Migration::AnyCipher,
            _ => Migration::Off,
        };
        config.assign_conv = choices.byte() & 3 == 0;
        config.linger = Duration::from_secs(choices.pick(&[0, 1, 10]));
        config.limits = Limits {
            backlog: choices.pick(&[1, 4]),
            max_connections: STREAMS,
            max_unvalidated: choices.pick(&[1, 4, 100]),
            require_validation: choices.byte() & 1 == 0,
            ..Limits::default()
        };
        config
    };
    (config(), config())
}

/// One end of a stream, and what it has written and read.
struct End {
    stream: KcpStream,
    written: u64,
    read: u64,
    closed: bool,
}

struct World {
    now: Instant,
    drivers: [Option<Driver<Wire>>; 2],
    endpoint: Option<Endpoint>,
    listener: Option<KcpListener>,
    /// By side, then by connection.
    ends: [HashMap<u32, End>; 2],
    /// What each side ever wrote, and whether it closed: it outlives the stream.
    totals: [HashMap<u32, (u64, bool)>; 2],
    /// On the way: to whom, from where.
    wire: VecDeque<(usize, SocketAddr, Vec<u8>)>,
    away: bool,
    honest: bool,
}

impl World {
    fn new(now: Instant, server: &Config, client: &Config, honest: bool) -> Self {
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
            totals: [HashMap::new(), HashMap::new()],
            wire: VecDeque::new(),
            away: false,
            honest,
        }
    }

    fn connect(&mut self) {
        let Some(endpoint) = self.endpoint.clone() else { return };
        let mut connect = pin!(endpoint.connect(addr(SERVER)));
        let mut cx = Context::from_waker(Waker::noop());
        if connect.as_mut().poll(&mut cx).is_pending() {
            self.turn(1);
        }
        if let Poll::Ready(Ok(stream)) = connect.as_mut().poll(&mut cx) {
            self.adopt(1, stream);
        }
    }

    fn adopt(&mut self, side: usize, stream: KcpStream) {
        let conv = stream.conv();
        let end = End { stream, written: 0, read: 0, closed: false };
        self.totals[side].insert(conv, (0, false));
        self.ends[side].insert(conv, end);
    }

    fn pass_time(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        self.turn_all();
    }

    fn turn_all(&mut self) {
        self.turn(0);
        self.turn(1);
    }

    fn turn(&mut self, side: usize) {
        let Some(driver) = &mut self.drivers[side] else { return };
        for _ in 0..TURNS {
            let turn = driver.turn(self.now);
            driver.check_invariants();
            let due = driver.deadline().is_some_and(|at| at <= self.now);
            let sent = std::mem::take(&mut driver.socket_mut().sent);
            let from = match side {
                0 => addr(SERVER),
                _ if self.away => addr(ELSEWHERE),
                _ => addr(CLIENT),
            };
            self.wire.extend(sent.into_iter().map(|(_, bytes)| (1 - side, from, bytes)));
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

    fn network(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 8 {
            0 => drop(self.wire.pop_front()),
            1 => {
                let first = self.wire.pop_front();
                self.wire.extend(first);
            }
            2 => {
                let first = self.wire.front().cloned();
                self.wire.extend(first);
            }
            3 => self.away = !self.away,
            4 if !self.honest => {
                let (at, bits) = (usize::from(choices.byte()), choices.byte());
                let bytes = self.wire.front_mut().map(|(_, _, bytes)| bytes);
                if let Some(byte) = bytes.and_then(|bytes| bytes.get_mut(at)) {
                    *byte ^= bits;
                }
            }
            5 if !self.honest => {
                let (to, from) = (usize::from(choices.byte() & 1), choices.byte() & 3);
                self.wire.push_back((to, addr(from), choices.bytes()));
            }
            _ => self.deliver(),
        }
    }

    fn deliver(&mut self) {
        while let Some((to, from, bytes)) = self.wire.pop_front() {
            if let Some(driver) = &mut self.drivers[to] {
                driver.socket_mut().inbox.push_back((from, bytes));
            }
        }
        self.turn_all();
    }

    fn application(&mut self, choices: &mut Choices<'_>) {
        self.accept();
        let side = usize::from(choices.byte() & 1);
        let mut convs: Vec<u32> = self.ends[side].keys().copied().collect();
        convs.sort_unstable();
        if convs.is_empty() {
            return;
        }
        let conv = choices.pick(&convs);
        let Some(end) = self.ends[side].get_mut(&conv) else { return };
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
            8 => drop(end.stream.send_datagram(b"beside")),
            9 => while end.stream.try_recv_datagram().is_ok() {},
            10 => self.leave(side, conv, choices.byte()),
            _ => match choices.byte() & 7 {
                0 if side == 0 => self.listener = None,
                1 if side == 1 => self.endpoint = None,
                _ => self.turn(side),
            },
        }
        self.note(side, conv);
    }

    /// What others are held to.
    fn note(&mut self, side: usize, conv: u32) {
        if let Some(end) = self.ends[side].get(&conv) {
            self.totals[side].insert(conv, (end.written, end.closed));
        }
    }

    fn leave(&mut self, side: usize, conv: u32, how: u8) {
        let Some(mut end) = self.ends[side].remove(&conv) else { return };
        end.closed |= how & 3 != 0;
        self.totals[side].insert(conv, (end.written, end.closed));
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
            assert!(listener.stats().current_connections <= STREAMS as u64);
        }
        accepted.into_iter().for_each(|stream| self.adopt(0, stream));
    }

    fn read(&mut self, side: usize, conv: u32) {
        let Some(end) = self.ends[side].get_mut(&conv) else { return };
        let mut buffer = [0; 4_096];
        loop {
            let mut buf = ReadBuf::new(&mut buffer);
            let mut cx = Context::from_waker(Waker::noop());
            let stream = std::pin::Pin::new(&mut end.stream);
            let polled = tokio::io::AsyncRead::poll_read(stream, &mut cx, &mut buf);
            let Poll::Ready(Ok(())) = polled else { return };
            let got = buf.filled();
            let written = self.totals[1 - side].get(&conv);
            if !self.honest {
                if got.is_empty() {
                    return;
                }
                continue;
            }
            // A connection that was not accepted has written nothing.
            let (written, closed) = written.copied().unwrap_or((0, true));
            if got.is_empty() {
                assert!(closed && end.read == written, "a truncated stream ends with EOF");
                return;
            }
            for byte in got {
                assert_eq!(*byte, pattern(end.read), "another byte than was written");
                end.read += 1;
            }
            assert!(end.read <= written);
        }
    }

    /// Everyone lets go, and nothing is left.
    fn finish(&mut self) {
        self.ends.iter_mut().for_each(HashMap::clear);
        (self.listener, self.endpoint) = (None, None);
        self.away = false;
        // Round trips first, since windows may be small, then whatever waits for a time-out.
        for step in 0..20_000 {
            self.deliver();
            if self.drivers.iter().all(Option::is_none) {
                return;
            }
            self.now += Duration::from_millis(if step < 19_800 { 10 } else { 1_000 });
        }
        assert!(self.drivers.iter().all(Option::is_none), "a driver outlives its users");
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a byte is wanted")]
fn pattern(at: u64) -> u8 {
    (at ^ (at >> 8)) as u8
}
