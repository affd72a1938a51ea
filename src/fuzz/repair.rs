//! Two state machines that use repair symbols, with forged HELLO, REPAIR and ACKs of recovered
//! segments.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Choices;
use super::choices::CONFIG;
use crate::config::Mode;
use crate::core::connection::{Kcp, PacketType, Seed};
use crate::core::segment::{Command, ControlType, Header, REPAIRED, Segments};
use crate::core::seq::{Sn, Ts};
use crate::error::ConnectionError;

/// Bytes of the settings and of an operation, for mutations.
pub const REPAIR: (usize, usize) = (SETTINGS, OPERATION);
/// Bytes of the settings and of an operation.
const SETTINGS: usize = 3 + 2 * (CONFIG + 9);
const OPERATION: usize = 12;
/// Operations per input, and datagrams that the network holds in each direction.
const STEPS: usize = 1_000;
const WIRE: usize = 64;
const CONV: u32 = 7;
/// Answers to HELLO allowed at once; one more is allowed each second.
const ANSWERS: u64 = 3;

struct Side {
    kcp: Kcp,
    /// Datagrams on their way to this side.
    wire: VecDeque<Vec<u8>>,
    /// HELLOs received, and answers sent.
    hellos: u64,
    answers: u64,
}

struct Pair {
    sides: [Side; 2],
    mode: Mode,
    /// A forged REPAIR arrived.
    is_forged: bool,
    start: Instant,
    now: Instant,
}

impl Pair {
    /// Sends everything due, and checks its limits.
    fn flush(&mut self) {
        for side in 0..2 {
            let mut out = Vec::new();
            for _ in 0..WIRE {
                out.clear();
                if self.sides[side].kcp.poll_transmit(self.now, &mut out).is_none() {
                    break;
                }
                let (first, payload) = Segments::new(&out).next().expect("a segment");
                let kind = ControlType::from_frg(first.frg);
                if first.command == Command::Control && kind == Some(ControlType::HelloAck) {
                    self.sides[side].answers += 1;
                }
                if first.command == Command::Repair {
                    assert!((1..=64).contains(&first.frg) && payload.len() >= 3);
                    assert!(out.len() <= self.sides[side].kcp.max_mtu().into(), "beyond the MTU");
                }
                let wire = &mut self.sides[1 - side].wire;
                wire.push_back(out.clone());
                if wire.len() > WIRE {
                    wire.pop_front();
                }
            }
            let elapsed = self.now.saturating_duration_since(self.start).as_secs();
            let Side { kcp, hellos, answers, .. } = &self.sides[side];
            assert!(answers <= hellos && *answers <= ANSWERS + elapsed, "{answers} of {hellos}");
            // Forged fragments may contradict the real ones in message mode, as fragments of a PUSH
            // may.
            let may_end = self.mode == Mode::Message && self.is_forged;
            let reason = kcp.close_reason();
            let contradicts = reason == Some(ConnectionError::ProtocolViolation);
            let was_reset = reason == Some(ConnectionError::Reset);
            assert!(reason.is_none() || (may_end && (contradicts || was_reset)), "{reason:?}");
        }
    }

    fn check(&self) {
        self.sides.iter().for_each(|side| side.kcp.check_invariants());
    }

    fn input(&mut self, to: usize, datagram: &[u8], origin: PacketType) {
        let hello = |(header, _): &(Header, &[u8])| {
            header.command == Command::Control && header.frg == ControlType::Hello as u8
        };
        self.sides[to].hellos += Segments::new(datagram).filter(hello).count() as u64;
        let result = self.sides[to].kcp.input(self.now, datagram, origin);
        assert!(result.is_ok(), "{result:?}");
    }
}

/// Writes, losses and forgeries in any order. Returns the number of operations.
///
/// # Panics
///
/// If an invariant does not hold, a connection ends, or more is answered than asked.
#[expect(clippy::disallowed_methods, reason = "the run needs one real instant to count from")]
pub fn repair(data: &[u8]) -> usize {
    let (mut choices, operations) = Choices::split(data, SETTINGS, OPERATION);
    let start = Instant::now();
    let sn = Sn(choices.pick(&[0, u32::MAX - 3, 1 << 31]));
    let mode = choices.pick(&[Mode::Stream, Mode::Message]);
    let side = |choices: &mut Choices<'_>| {
        let config = choices.config(mode, false);
        let seed = Seed::new(choices.word(), u64::from(choices.word()));
        let mut kcp = Kcp::starting_at(CONV, &config, start, seed, sn);
        kcp.set_repair_rate(choices.pick(&[0, 250_000, 1_000_000]));
        Side { kcp, wire: VecDeque::new(), hellos: 0, answers: 0 }
    };
    let sides = [side(&mut choices), side(&mut choices)];
    let mut pair = Pair { sides, mode, is_forged: false, start, now: start };
    // A check of all invariants takes longer than an operation.
    let every = choices.pick(&[64, 16, 1]);
    let mut count = 0;
    for mut operation in operations.take(STEPS) {
        count += 1;
        step(&mut pair, &mut operation);
        pair.flush();
        if count % every == 0 {
            pair.check();
        }
        pair.sides.iter_mut().for_each(|side| while side.kcp.recv().is_some() {});
    }
    pair.check();
    count
}

fn step(pair: &mut Pair, choices: &mut Choices<'_>) {
    let choice = choices.byte();
    let side = usize::from(choice >> 7);
    match choice & 15 {
        0..=2 => {
            let len = usize::from(choices.byte()) * usize::from(choices.byte() % 8 + 1);
            let len = len.min(pair.sides[side].kcp.send_capacity());
            let (now, data) = (pair.now, Bytes::from(vec![choice; len]));
            if pair.mode == Mode::Stream {
                pair.sides[side].kcp.send(now, data);
            } else {
                // A message may be too large.
                let _ = pair.sides[side].kcp.send_message(now, data);
            }
        }
        3..=6 => {
            for _ in 0..choices.byte() % 8 + 1 {
                let Some(datagram) = pair.sides[side].wire.pop_front() else { break };
                pair.input(side, &datagram, PacketType::Regular);
            }
        }
        7 => drop(pair.sides[side].wire.pop_front()),
        8 => pair.sides[side].wire.rotate_left(1.min(pair.sides[side].wire.len())),
        9 | 10 => {
            pair.now += Duration::from_millis(u64::from(choices.byte()) + 1);
            pair.sides.iter_mut().for_each(|side| side.kcp.handle_timeout(pair.now));
        }
        11 => pair.sides[side].kcp.set_repair_rate(choices.word() % 2_000_000),
        12 => {
            pair.sides[side].kcp.release_memory();
            pair.sides[side].kcp.ask_for_datagrams();
        }
        _ => forge(pair, side, choices),
    }
}

/// Forges a HELLO, a REPAIR or an ACK of a recovered segment near the receiver's next one.
fn forge(pair: &mut Pair, side: usize, choices: &mut Choices<'_>) {
    let near = |sn: Sn, choices: &mut Choices<'_>| match choices.byte() {
        distance if distance < 250 => sn.advance(u32::from(distance)).back(70),
        _ => Sn(choices.word()),
    };
    let kcp = &pair.sides[side].kcp;
    let (nxt, una) = (kcp.rcv_nxt(), kcp.una());
    pair.is_forged = true;
    let (command, frg, sn, payload) = match choices.byte() % 8 {
        0 => (Command::Control, ControlType::Hello as u8, Sn(choices.word()), Vec::new()),
        1 => (Command::Control, ControlType::HelloAck as u8, Sn(choices.word()), Vec::new()),
        2 => (Command::Ack, REPAIRED, near(una, choices), Vec::new()),
        _ => {
            let frg = choices.byte() % 70;
            (Command::Repair, frg, near(nxt, choices), choices.bytes())
        }
    };
    // A forged `una` is accepted up to the segments in flight; here it acknowledges none.
    let wnd = u16::from(choices.byte());
    let len = u32::try_from(payload.len()).unwrap_or(0);
    let ts = Ts(choices.word());
    let mut datagram = Vec::new();
    Header { conv: CONV, command, frg, wnd, ts, sn, una, len }.emit(&mut datagram);
    datagram.extend_from_slice(&payload);
    let origin = choices.pick(&[PacketType::Regular, PacketType::Regular, PacketType::Fec]);
    pair.input(side, &datagram, origin);
}
