//! A listener that answers initial segments without keeping state.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Choices;
use super::wire::{Wire, addr};
use crate::config::{Config, Redundancy};
use crate::core::segment::{Command, HEADER_LEN, Header};
use crate::core::seq::{Sn, Ts};
use crate::driver::Driver;
use crate::endpoint::Endpoint;
use crate::fec::FecConfig;
use crate::listener::KcpListener;
use crate::shared::accept_queue::{AcceptHandle, AcceptQueue};
use crate::shared::requests::RequestQueue;
use crate::stream::KcpStream;
use crate::util::path::Path;

/// Bytes of the settings and of a datagram's description.
const SETTINGS: usize = 2;
const OPERATION: usize = 8;
/// Datagrams per input, and the addresses and conversation ids that they name.
const STEPS: usize = 400;
const PEERS: u8 = 4;
const CONVS: u8 = 3;
/// Unvalidated connections at which the listener stops keeping state for further ones.
const MAX_UNVALIDATED: usize = 2;
const MEMORY: usize = 16 << 20;
/// Longest validity of a token, and of an answer to a token.
const TOKEN_LIFETIME: Duration = Duration::from_secs(16);
const ANSWER_LIFETIME: Duration = Duration::from_secs(10);

type Key = (SocketAddr, u32);

struct Run {
    driver: Driver<Wire>,
    listener: KcpListener,
    streams: Vec<KcpStream>,
    now: Instant,
    /// The latest token of each connection, and its arrival.
    tokens: HashMap<Key, (Header, Instant)>,
    /// When a valid token was last echoed.
    answered: HashMap<Key, Instant>,
}

/// Initial segments, echoed, altered and old tokens, and early data, in any order. Returns their
/// number.
///
/// # Panics
///
/// If a connection opens without a valid answer, more is sent than received, or memory exceeds its
/// bound.
pub fn retry(data: &[u8]) -> usize {
    let (mut choices, operations) = Choices::split(data, SETTINGS, OPERATION);
    let mut run = start(&mut choices);
    let mut count = 0;
    for mut choices in operations.take(STEPS) {
        count += 1;
        let from = addr(1 + choices.byte() % PEERS);
        let key = (from, 1 + u32::from(choices.byte() % CONVS));
        let datagram = run.datagram(&mut choices, key);
        run.input(key, datagram);
    }
    count
}

#[expect(clippy::disallowed_methods, reason = "the run needs one real instant to count from")]
fn start(choices: &mut Choices<'_>) -> Run {
    let mut config = Config::new();
    (config.limits.max_unvalidated, config.limits.memory) = (MAX_UNVALIDATED, MEMORY);
    let fec = choices.pick(&[None, FecConfig::new(2, 2).ok()]);
    config.kcp.redundancy = fec.map_or(Redundancy::Off, Redundancy::Fec);
    config.limits.require_validation = choices.byte() & 1 == 0;
    let (queue, requests) = (AcceptQueue::new(), RequestQueue::new());
    let (accept, now) = (Some(queue.clone()), Instant::now());
    let driver = Driver::new(Wire::default(), config, requests.clone(), accept, [1; 32], now);
    let listener = KcpListener::new(AcceptHandle::new(queue), Endpoint::attach(requests));
    let driver = driver.expect("a valid configuration");
    let (tokens, answered) = (HashMap::new(), HashMap::new());
    Run { driver, listener, streams: Vec::new(), now, tokens, answered }
}

impl Run {
    /// The next datagram; time may pass before it.
    fn datagram(&mut self, choices: &mut Choices<'_>, key: Key) -> Vec<u8> {
        let (choice, size) = (choices.byte(), choices.byte());
        let len = usize::from(size);
        match choice % 8 {
            0 | 1 => push(key.1, 0, &vec![choice; len]),
            2 => self.answer(key, key, (0, 0)).unwrap_or_default(),
            3 => {
                let other = (addr(1 + choices.byte() % PEERS), 1 + u32::from(choice % CONVS));
                let bit = 1 << (size % 32);
                let bits = if size < 128 { (bit, 0) } else { (0, bit) };
                self.answer(key, other, bits).unwrap_or_default()
            }
            4 => push(key.1, 1 + u32::from(size) % 140, &vec![choice; len * 4]),
            5 => {
                let mut both = self.answer(key, key, (0, 0)).unwrap_or_default();
                both.extend(push(key.1, 0, &vec![choice; len]));
                both
            }
            6 => choices.bytes(),
            _ => {
                self.now += Duration::from_millis(choices.pick(&[1, 500, 4_000, 9_000, 31_000]));
                self.streams.truncate(len % 4);
                Vec::new()
            }
        }
    }

    /// The ACK with which `key` answers the token of `of`, with some bits of `sn` and `ts` changed.
    fn answer(&mut self, key: Key, of: Key, bits: (u32, u32)) -> Option<Vec<u8>> {
        let (token, made) = *self.tokens.get(&of)?;
        let (sn, ts) = (Sn(token.sn.0 ^ bits.0), Ts(token.ts.0 ^ bits.1));
        if key == of && bits == (0, 0) && self.now - made < TOKEN_LIFETIME {
            self.answered.insert(key, self.now);
        }
        let mut out = Vec::new();
        let (command, frg) = (Command::Ack, 0);
        Header { conv: key.1, command, frg, wnd: 32, sn, ts, una: Sn(0), len: 0 }.emit(&mut out);
        Some(out)
    }

    fn input(&mut self, key: Key, datagram: Vec<u8>) {
        let before = self.listener.stats();
        let (len, conv) = (datagram.len(), datagram.first_chunk().map(|c| u32::from_le_bytes(*c)));
        if len > 0 {
            self.driver.socket_mut().inbox.push_back((Path::to(key.0), datagram));
        }
        while self.driver.turn(self.now).runs_again() {}
        let after = self.listener.stats();
        let opened = after.connections.passive_opens - before.connections.passive_opens;
        let crowded = before.connections.unvalidated > MAX_UNVALIDATED as u64 / 2;
        if opened > 0 && crowded && after.connections.unvalidated == before.connections.unvalidated
        {
            let key = (key.0, conv.unwrap_or(0));
            let at = self.answered.remove(&key).expect("an answer of this peer");
            assert!(self.now - at < ANSWER_LIFETIME, "the answer is too old");
        }
        assert!(opened <= 1 && after.connections.unvalidated <= MAX_UNVALIDATED as u64);
        assert!(after.memory.unvalidated_bytes <= (MEMORY + (64 << 10)) as u64, "{after:?}");
        for (path, sent) in self.driver.socket_mut().sent.drain(..) {
            let header = Header::parse(&sent).expect("a segment");
            if header.command == Command::Push && header.len == 0 && header.sn.0 >> 29 == 5 {
                assert!(path.peer == key.0 && sent.len() <= len, "{} bytes for {len}", sent.len());
                self.tokens.insert((path.peer, header.conv), (header, self.now));
            }
        }
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Ok((stream, _))) = self.listener.poll_accept(&mut cx) {
            self.streams.push(stream);
        }
    }
}

/// A data segment.
fn push(conv: u32, sn: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + payload.len());
    let (command, frg, wnd, ts, una) = (Command::Push, 0, 128, Ts(9), Sn(0));
    let len = u32::try_from(payload.len()).unwrap_or(0);
    Header { conv, command, frg, wnd, ts, sn: Sn(sn), una, len }.emit(&mut out);
    out.extend_from_slice(payload);
    out
}
