//! A pair of state machines under any sequence of operations.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Choices;
use super::choices::COMMANDS;
use crate::config::Mode;
use crate::core::connection::{Kcp, PacketType, Seed};
use crate::core::segment::Header;
use crate::core::seq::Sn;
use crate::error::ConnectionError;

/// Steps per input, and datagrams that the network holds in each direction.
const STEPS: usize = 2_000;
const WIRE: usize = 64;
/// Rounds until a healed network must have delivered everything.
const HEAL: usize = 50_000;
/// Most fragments of a message: the assumed window of a peer that has not advertised one.
const FRAGMENTS: usize = 32;

/// One side, and the datagrams on their way to it.
struct Side {
    kcp: Kcp,
    wire: VecDeque<Vec<u8>>,
    sent: Vec<u8>,
    /// Bytes received.
    got: usize,
}

struct Pair {
    sides: [Side; 2],
    /// Only datagrams of the two sides are on the wire.
    honest: bool,
    mode: Mode,
    now: Instant,
    /// An idle or dead-peer timeout may end a connection.
    mortal: bool,
    /// A datagram was delivered that the other side never sent: received bytes are undefined.
    tainted: bool,
}

impl Pair {
    /// Sends everything due, as far as the network holds it.
    fn flush(&mut self) {
        for side in 0..2 {
            if self.transmit(side) {
                self.sides[side].kcp.handle_timeout(self.now);
                if self.transmit(side) {
                    let next = self.sides[side].kcp.poll_timeout();
                    assert!(next.is_none_or(|next| next > self.now), "a timer that does nothing");
                }
            }
        }
    }

    /// Returns whether nothing more is due.
    fn transmit(&mut self, from: usize) -> bool {
        let mut was_last = false;
        for _ in 0..WIRE {
            let mut out = Vec::new();
            let Some(sent) = self.sides[from].kcp.poll_transmit(self.now, &mut out) else {
                assert!(out.is_empty());
                return true;
            };
            assert_eq!(sent.len, out.len());
            assert!(!was_last, "a datagram behind the last one");
            was_last = sent.is_last;
            let wire = &mut self.sides[1 - from].wire;
            wire.push_back(out);
            if wire.len() > WIRE {
                wire.pop_front();
            }
        }
        false
    }

    fn input(&mut self, to: usize, datagram: &[u8], origin: PacketType) {
        let result = self.sides[to].kcp.input(self.now, datagram, origin);
        assert!(self.tainted || result.is_ok(), "own datagrams are rejected: {result:?}");
    }

    /// The next `len` bytes that this side sends.
    fn write(&mut self, side: usize, len: usize) -> Bytes {
        let sent = &mut self.sides[side].sent;
        let from = sent.len();
        sent.extend::<Vec<u8>>((0..=250).cycle().skip(from % 251).take(len).collect());
        Bytes::copy_from_slice(&sent[from..])
    }

    fn recv(&mut self, side: usize, most: usize) {
        for _ in 0..most {
            let Some(chunk) = self.sides[side].kcp.recv() else { break };
            let rest = self.sides[1 - side].sent.get(self.sides[side].got..).unwrap_or_default();
            assert!(self.tainted || rest.starts_with(&chunk), "other bytes than were sent");
            self.sides[side].got += chunk.len();
        }
    }

    fn check(&self) {
        for side in 0..2 {
            self.sides[side].kcp.check_invariants();
            let ended = self.sides[side].kcp.close_reason();
            let timed_out =
                matches!(ended, Some(ConnectionError::DeadPeer(_) | ConnectionError::IdleTimeout));
            let may = self.tainted || ended.is_none() || (self.mortal && timed_out);
            assert!(may, "it ended with {ended:?}");
        }
    }

    /// Checks that everything arrives once the network works again and memory is free.
    fn heal(&mut self) {
        self.sides.iter_mut().for_each(|side| side.kcp.limit_recv_memory(usize::MAX, false));
        for _ in 0..HEAL {
            self.flush();
            for to in 0..2 {
                while let Some(datagram) = self.sides[to].wire.pop_front() {
                    self.input(to, &datagram, PacketType::Regular);
                }
                self.recv(to, usize::MAX);
            }
            self.check();
            if self.sides.iter().any(|side| side.kcp.close_reason().is_some()) {
                return;
            }
            if self.sides.iter().all(|side| side.kcp.is_drained()) {
                assert!((0..2).all(|to| self.sides[to].got == self.sides[1 - to].sent.len()));
                return;
            }
            self.flush();
            if self.sides.iter().any(|side| !side.wire.is_empty()) {
                continue;
            }
            let timers = self.sides.iter().filter_map(|side| side.kcp.poll_timeout());
            let next = timers.min().expect("what is not delivered has a timer");
            self.now = (self.now + Duration::from_micros(100)).max(next);
            self.sides.iter_mut().for_each(|side| side.kcp.handle_timeout(self.now));
        }
        panic!("not everything arrives though the network works");
    }
}

/// Any operations on a pair of state machines and the network between them.
///
/// # Panics
///
/// If an invariant does not hold, other bytes arrive than were sent, or bytes do not arrive
/// although the network works again.
#[expect(clippy::disallowed_methods, reason = "the run needs one real instant to count from")]
pub fn kcp_ops(data: &[u8]) {
    let mut choices = Choices(data);
    let start = Instant::now();
    let sn = Sn(choices.pick(&[0, u32::MAX - 3, 1 << 31, (1 << 31) - 2]));
    let honest = choices.byte() & 1 == 0;
    let mode = choices.pick(&[Mode::Stream, Mode::Message]);
    let mortal = choices.byte() & 3 == 0;
    let side = |choices: &mut Choices<'_>| {
        let config = choices.config(mode, mortal);
        let seed = Seed::new(choices.word(), u64::from(choices.word()));
        let kcp = Kcp::starting_at(7, &config, start, seed, sn);
        Side { kcp, wire: VecDeque::new(), sent: Vec::new(), got: 0 }
    };
    let sides = [side(&mut choices), side(&mut choices)];
    let mut pair = Pair { sides, honest, mode, now: start, mortal, tainted: false };
    for _ in 0..STEPS {
        if choices.0.is_empty() {
            break;
        }
        step(&mut pair, &mut choices);
        pair.flush();
        pair.check();
    }
    if !pair.tainted {
        pair.heal();
    }
}

fn step(pair: &mut Pair, choices: &mut Choices<'_>) {
    let choice = choices.byte();
    let side = usize::from(choice >> 7);
    match choice & 15 {
        0 => {
            let len = usize::from(choices.byte()) * usize::from(choices.byte() % 16 + 1);
            let data = pair.write(side, len.min(pair.sides[side].kcp.send_capacity()));
            pair.sides[side].kcp.send(pair.now, data);
        }
        1 => message(pair, side, choices),
        2 => pair.recv(side, usize::MAX),
        3 => pair.recv(side, 1),
        4..=6 => {
            let choice = choices.byte();
            let origin = if choice < 240 { PacketType::Regular } else { PacketType::Fec };
            for _ in 0..choice % 8 + 1 {
                let Some(datagram) = pair.sides[side].wire.pop_front() else { break };
                pair.input(side, &datagram, origin);
            }
        }
        7 => drop(pair.sides[side].wire.pop_front()),
        8 => {
            if let Some(datagram) = pair.sides[side].wire.front().cloned() {
                pair.sides[side].wire.push_back(datagram);
            }
        }
        9 => {
            let wire = &mut pair.sides[side].wire;
            let place = usize::from(choices.byte()) % wire.len().max(1);
            if place < wire.len() {
                wire.swap(0, place);
            }
        }
        10 if !pair.honest => mutate(pair, side, choices),
        11 if !pair.honest => forge(pair, side, choices),
        10..=13 => advance(pair, u64::from(choices.byte())),
        14 => advance(pair, u64::from(choices.word()) << (choices.byte() % 2)),
        _ => match choices.byte() % 8 {
            0 => pair.sides[side].kcp.flush(),
            1 => pair.sides[side].kcp.ping(pair.now),
            2 => pair.sides[side].kcp.release_memory(),
            3 => pair.sides[side].kcp.flush_acks(),
            5 => {
                let rate = choices.pick(&[0, 100_000, 500_000, 1_000_000]);
                pair.sides[side].kcp.set_repair_rate(rate);
            }
            4 if !pair.honest => raw(pair, side, choices),
            6 => {
                let memory = choices.pick(&[0, 1_540, 9_999]);
                pair.sides[side].kcp.limit_recv_memory(memory, choices.byte() & 1 == 0);
            }
            _ => pair.sides[side].kcp.apply(choices.setting(pair.mode)),
        },
    }
}

/// Sends a message, of several segments if the mode permits.
fn message(pair: &mut Pair, side: usize, choices: &mut Choices<'_>) {
    let most = pair.sides[side].kcp.max_message_size();
    let unit = (pair.sides[side].kcp.send_unit() * FRAGMENTS).min(most);
    let len = usize::from(choices.byte()) * unit / 255;
    if pair.mode == Mode::Message {
        let data = pair.write(side, len);
        if pair.sides[side].kcp.send_message(pair.now, data).is_err() {
            let before = pair.sides[side].sent.len() - len;
            pair.sides[side].sent.truncate(before);
        }
    }
}

/// Delivers bytes that need not parse as a datagram.
fn raw(pair: &mut Pair, side: usize, choices: &mut Choices<'_>) {
    pair.tainted = true;
    let len = usize::from(choices.byte()).min(choices.0.len());
    let (datagram, rest) = choices.0.split_at(len);
    choices.0 = rest;
    pair.input(side, datagram, PacketType::Regular);
}

fn advance(pair: &mut Pair, millis: u64) {
    pair.now += Duration::from_millis(millis);
    pair.sides.iter_mut().for_each(|side| side.kcp.handle_timeout(pair.now));
}

/// Changes some bytes of a sent datagram.
fn mutate(pair: &mut Pair, side: usize, choices: &mut Choices<'_>) {
    let Some(mut datagram) = pair.sides[side].wire.pop_front() else { return };
    pair.tainted = true;
    for _ in 0..choices.byte() % 4 + 1 {
        let place = usize::from(choices.byte()) % datagram.len();
        datagram[place] ^= choices.byte();
    }
    pair.input(side, &datagram, PacketType::Regular);
}

/// Forges a segment, in most cases with the right conversation id.
fn forge(pair: &mut Pair, side: usize, choices: &mut Choices<'_>) {
    pair.tainted = true;
    let mut datagram = Vec::new();
    let payload = vec![7; usize::from(choices.byte())];
    Header {
        conv: 7,
        command: choices.pick(&COMMANDS),
        frg: choices.byte(),
        wnd: u16::from_le_bytes([choices.byte(), choices.byte()]),
        ts: crate::core::seq::Ts(choices.word()),
        sn: Sn(choices.word()),
        una: Sn(choices.word()),
        len: u32::try_from(payload.len()).unwrap_or(0),
    }
    .emit(&mut datagram);
    datagram.extend_from_slice(&payload);
    pair.input(side, &datagram, PacketType::Regular);
}
