//! Bodies of the fuzz targets: plain functions of bytes, so that ordinary builds compile them and
//! ordinary tests run them. Private; see `fuzz/`.

use std::collections::VecDeque;
use std::num::{NonZeroU8, NonZeroU64};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::config::{
    AckPolicy, Backoff, Congestion, KcpConfig, Mode, NoDelay, Setting, WritePolicy,
};
use crate::core::segment::{self, Command, HEADER, Header, Segments};
use crate::core::seq::Sn;
use crate::core::{Kcp, Origin, Seed};
use crate::error::ConnectionError;

/// Steps that one input may take, and datagrams that the network holds each way.
const STEPS: usize = 2_000;
const WIRE: usize = 64;
/// Rounds within which a healed network must have delivered everything.
const HEAL: usize = 50_000;
/// Most fragments of a message: what a peer is assumed to take before it has told its window.
const FRAGMENTS: usize = 32;

/// Any bytes as a datagram: the walk agrees with a naive one, and what it yields is written back
/// as it was.
///
/// # Panics
///
/// When it does not.
pub fn segment(data: &[u8]) {
    let conv = data.first_chunk().map_or(0, |conv| u32::from_le_bytes(*conv));
    let walked = segment::check(data, conv).is_ok();
    let naive = naive_walk(data, conv);
    assert_eq!(walked, naive.is_some());
    let segments: Vec<_> = Segments::new(data).collect();
    if let Some(naive) = naive {
        assert_eq!(segments.len(), naive.len());
        for ((header, payload), (at, len)) in segments.iter().zip(naive) {
            let mut written = Vec::new();
            header.emit(&mut written);
            assert_eq!(written, data[at..at + HEADER]);
            assert_eq!(*payload, &data[at + HEADER..at + HEADER + len]);
        }
    }
}

/// Offset and payload length of each segment, read byte by byte.
fn naive_walk(data: &[u8], conv: u32) -> Option<Vec<(usize, usize)>> {
    let word = |at: usize| -> u64 { (0..4).map(|i| u64::from(data[at + i]) << (8 * i)).sum() };
    let (mut at, mut found) = (0, Vec::new());
    while data.len() - at >= HEADER {
        let len = word(at + 20);
        let rest = (data.len() - at - HEADER) as u64;
        if word(at) != u64::from(conv) || !(81..=84).contains(&data[at + 4]) || len > rest {
            return None;
        }
        let len = usize::try_from(len).ok()?;
        found.push((at, len));
        at += HEADER + len;
    }
    (!found.is_empty()).then_some(found)
}

/// The input as a source of choices; zeros when it is used up.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// `mortal`: silence may end the conversation.
    fn config(&mut self, mode: Mode, mortal: bool) -> KcpConfig {
        let limits = if mortal { [1, 5, 60] } else { [0; 3] };
        let mut silence = || {
            let seconds = self.pick(&limits);
            (seconds > 0).then(|| Duration::from_secs(seconds))
        };
        let (idle_timeout, dead_peer_timeout) = (silence(), silence());
        // Messages are put together within the window and the memory.
        let memory = if mode == Mode::Stream { Some(self.pick(&[1_540, 9_999])) } else { None };
        KcpConfig {
            send_window: self.pick(&[1, 2, 7, 32, 128]),
            recv_window: self.recv_window(mode),
            mtu: self.pick(&[25, 50, 100, 576, 1_400]),
            mode,
            no_delay: self.preset(),
            ack_policy: self.acks(),
            write_policy: self.pick(&[WritePolicy::Immediate, WritePolicy::Corked]),
            backoff: self.pick(&[Backoff::Linear, Backoff::Exponential]),
            early_retransmit: self.byte() & 1 == 0,
            keepalive: self.pick(&[None, None, Some(1), Some(15)]).map(Duration::from_secs),
            idle_timeout,
            dead_peer_timeout,
            rate_limit: NonZeroU64::new(self.pick(&[0, 0, 0, 20_000])),
            recv_memory: memory.filter(|_| self.byte() & 3 == 0),
            empty_messages: self.byte() & 1 == 0,
            ..KcpConfig::default()
        }
    }

    fn recv_window(&mut self, mode: Mode) -> u16 {
        match mode {
            Mode::Stream => self.pick(&[1, 2, 7, 32, 128]),
            Mode::Message => self.pick(&[32, 40, 128, 300]),
        }
    }

    fn preset(&mut self) -> NoDelay {
        let interval = Duration::from_millis(self.pick(&[10, 20, 100, 5_000]));
        let congestion = self.pick(&[Congestion::Off, Congestion::Loss]);
        let resend = NonZeroU8::new(self.pick(&[0, 1, 2, 3, 255]));
        let nodelay = self.byte() & 1 == 0;
        NoDelay::new(nodelay, interval, resend, congestion).unwrap_or(NoDelay::FAST3)
    }

    fn acks(&mut self) -> AckPolicy {
        self.pick(&[AckPolicy::EachTurn, AckPolicy::Interval, AckPolicy::Immediate])
    }

    fn setting(&mut self, mode: Mode) -> Setting {
        match self.byte() % 6 {
            0 => Setting::Windows { send: self.pick(&[1, 9, 200]), recv: self.recv_window(mode) },
            1 => Setting::NoDelay(self.preset()),
            2 => Setting::AckPolicy(self.acks()),
            3 => Setting::WritePolicy(self.pick(&[WritePolicy::Immediate, WritePolicy::Corked])),
            4 => Setting::Mtu(self.pick(&[25, 60, 500, 1_400])),
            _ => Setting::RateLimit(NonZeroU64::new(self.pick(&[0, 10_000, 1_000_000]))),
        }
    }
}

/// One side, and what is on its way to it.
struct Side {
    kcp: Kcp,
    wire: VecDeque<Vec<u8>>,
    sent: Vec<u8>,
    /// Bytes received.
    got: usize,
}

struct Pair {
    sides: [Side; 2],
    /// Nobody but the two puts anything on the wire.
    honest: bool,
    mode: Mode,
    now: Instant,
    /// Silence may end a conversation.
    mortal: bool,
    /// Something that the other side never sent was delivered: what arrives is anybody's guess.
    tainted: bool,
}

impl Pair {
    /// Sends what is due, as far as the network holds it.
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
        for _ in 0..WIRE {
            let mut out = Vec::new();
            let Some(sent) = self.sides[from].kcp.poll_transmit(self.now, &mut out) else {
                assert!(out.is_empty());
                return true;
            };
            assert_eq!(sent.len, out.len());
            let wire = &mut self.sides[1 - from].wire;
            wire.push_back(out);
            if wire.len() > WIRE {
                wire.pop_front();
            }
        }
        false
    }

    fn input(&mut self, to: usize, datagram: &[u8], origin: Origin) {
        let result = self.sides[to].kcp.input(self.now, datagram, origin);
        assert!(self.tainted || result.is_ok(), "we refuse our own datagrams: {result:?}");
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
            let ended = self.sides[side].kcp.ended();
            let silence = [ConnectionError::DeadPeer, ConnectionError::IdleTimeout].map(Some);
            let may = self.tainted || ended.is_none() || (self.mortal && silence.contains(&ended));
            assert!(may, "it ended with {ended:?}");
        }
    }

    /// Everything arrives once the network works again.
    fn heal(&mut self) {
        for _ in 0..HEAL {
            self.flush();
            for to in 0..2 {
                while let Some(datagram) = self.sides[to].wire.pop_front() {
                    self.input(to, &datagram, Origin::Wire);
                }
                self.recv(to, usize::MAX);
            }
            self.check();
            if self.sides.iter().any(|side| side.kcp.ended().is_some()) {
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
/// When an invariant does not hold, other bytes arrive than were sent, or something does not
/// arrive although the network works again.
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
        let seed = Seed { ts_epoch: choices.word(), cookies: u64::from(choices.word()) };
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
            let data = pair.write(side, len.min(pair.sides[side].kcp.send_room()));
            pair.sides[side].kcp.send(pair.now, data);
        }
        1 => message(pair, side, choices),
        2 => pair.recv(side, usize::MAX),
        3 => pair.recv(side, 1),
        4..=6 => {
            let choice = choices.byte();
            let origin = if choice < 240 { Origin::Wire } else { Origin::Recovered };
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
            0 => pair.sides[side].kcp.uncork(),
            1 => pair.sides[side].kcp.probe(pair.now),
            2 => pair.sides[side].kcp.release_memory(),
            3 => pair.sides[side].kcp.hasten_acks(),
            4 if !pair.honest => raw(pair, side, choices),
            _ => pair.sides[side].kcp.apply(choices.setting(pair.mode)),
        },
    }
}

/// A message of several segments where the mode has them.
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

/// Bytes that need not even look like a datagram.
fn raw(pair: &mut Pair, side: usize, choices: &mut Choices<'_>) {
    pair.tainted = true;
    let len = usize::from(choices.byte()).min(choices.0.len());
    let (datagram, rest) = choices.0.split_at(len);
    choices.0 = rest;
    pair.input(side, datagram, Origin::Wire);
}

fn advance(pair: &mut Pair, millis: u64) {
    pair.now += Duration::from_millis(millis);
    pair.sides.iter_mut().for_each(|side| side.kcp.handle_timeout(pair.now));
}

/// A datagram that was sent, with some of its bytes changed.
fn mutate(pair: &mut Pair, side: usize, choices: &mut Choices<'_>) {
    let Some(mut datagram) = pair.sides[side].wire.pop_front() else { return };
    pair.tainted = true;
    for _ in 0..choices.byte() % 4 + 1 {
        let place = usize::from(choices.byte()) % datagram.len();
        datagram[place] ^= choices.byte();
    }
    pair.input(side, &datagram, Origin::Wire);
}

/// A segment made up from the input, most likely with the right conversation.
fn forge(pair: &mut Pair, side: usize, choices: &mut Choices<'_>) {
    pair.tainted = true;
    let mut datagram = Vec::new();
    let commands = [Command::Push, Command::Ack, Command::WindowAsk, Command::WindowTell];
    let payload = vec![7; usize::from(choices.byte())];
    Header {
        conv: 7,
        command: choices.pick(&commands),
        frg: choices.byte(),
        wnd: u16::from_le_bytes([choices.byte(), choices.byte()]),
        ts: crate::core::seq::Ts(choices.word()),
        sn: Sn(choices.word()),
        una: Sn(choices.word()),
        len: u32::try_from(payload.len()).unwrap_or(0),
    }
    .emit(&mut datagram);
    datagram.extend_from_slice(&payload);
    pair.input(side, &datagram, Origin::Wire);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::link::Rng;

    fn random(seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let len = rng.range(1, 3_000) as usize;
        std::iter::repeat_with(|| rng.next() as u8).take(len).collect()
    }

    /// The inputs that are kept beside the targets; the published package has none.
    fn seeds(target: &str) -> Vec<Vec<u8>> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/");
        let Ok(entries) = std::fs::read_dir(format!("{folder}{target}")) else {
            return Vec::new();
        };
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            println!("{}", path.display());
            std::fs::read(path).unwrap()
        };
        paths.iter().map(read).collect()
    }

    #[test]
    fn pairs_survive_any_operations() {
        seeds("kcp_ops").iter().for_each(|input| kcp_ops(input));
        for seed in 0..300 {
            println!("seed {seed}");
            let mut input = random(seed);
            // With and without forgeries; without them everything must arrive.
            input[1] = u8::from(seed % 3 == 0);
            kcp_ops(&input);
        }
    }

    #[test]
    fn any_bytes_parse_like_the_naive_walk() {
        seeds("segment").iter().for_each(|input| segment(input));
        for seed in 0..1_000 {
            let mut input = random(seed);
            segment(&input);
            // Make the first segments plausible.
            for at in (0..input.len().saturating_sub(HEADER)).step_by(40) {
                input[at..at + 4].copy_from_slice(&[7, 0, 0, 0]);
                input[at + 4] = 81 + input[at + 4] % 4;
                input[at + 20..at + 24].copy_from_slice(&[16, 0, 0, 0]);
            }
            segment(&input);
        }
    }
}
