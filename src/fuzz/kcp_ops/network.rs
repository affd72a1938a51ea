//! Datagrams between the two sides: sending, delivery, migration, forgery.

use super::{CONV, Datagram, OPENER, Pair, Paths, Side, WIRE};
use crate::core::connection::PacketType;
use crate::core::path::set::PathId;
use crate::core::path::validation::PathValidation;
use crate::core::segment::{HEADER_LEN, Header, Segments};
use crate::core::seq::{Sn, Ts};
use crate::fuzz::Choices;
use crate::fuzz::choices::COMMANDS;
use crate::fuzz::wire::addr;
use crate::util::path::Path;

/// Deadlines that a driver acts on without time passing.
const ROUNDS: usize = 4;

impl Pair {
    /// Sends everything due, as far as the network holds it.
    pub(super) fn flush(&mut self) {
        (0..2).for_each(|side| self.work(side));
    }

    /// As a driver: sends and acts on deadlines until the next one is in the future. What leaves may bring another
    /// deadline forward, so one round may not be enough.
    fn work(&mut self, side: usize) {
        for round in 0..=ROUNDS {
            let before = self.sides[side].kcp.counters().sent.datagrams;
            if !self.transmit(side) {
                return;
            }
            let kcp = &mut self.sides[side].kcp;
            if kcp.poll_timeout().is_none_or(|next| next > self.now) {
                return;
            }
            let has_sent = kcp.counters().sent.datagrams > before;
            assert!(round == 0 || has_sent, "a timer that does nothing");
            kcp.handle_timeout(self.now);
        }
        panic!("timers without end");
    }

    /// Sends until nothing more is due, which it returns, or the network is full.
    pub(super) fn transmit(&mut self, from: usize) -> bool {
        if self.is_deferred(from) && self.sides[from].kcp.is_established() {
            self.sides[from].kcp.accept();
            self.setup.defers = false;
        }
        if self.setup.paths != Paths::One {
            self.transmit_on_paths(from);
        }
        let mut was_last = false;
        for _ in 0..WIRE {
            let mut bytes = self.spare.pop().unwrap_or_default();
            let kcp = &mut self.sides[from].kcp;
            let path = kcp.active_path();
            let Some(sent) = kcp.poll_transmit(self.now, &mut bytes) else {
                assert!(bytes.is_empty());
                self.spare.push(bytes);
                return true;
            };
            assert_eq!(sent.len, bytes.len());
            assert!(!was_last, "a datagram behind the last one");
            was_last = sent.is_last;
            self.count_unvalidated(from, sent.len);
            if self.is_deferred(from) {
                let mut headers = Segments::new(&bytes).map(|(header, _)| header);
                assert!(
                    headers.all(|header| header.una == Sn(0)),
                    "acknowledged before it was accepted"
                );
            }
            if self.setup.paths == Paths::Duplicate && sent.segments > 0 {
                self.copy(from, &bytes);
                // Losses wait for answers on other paths only while there are copies.
                was_last = false;
            }
            self.carry(1 - from, Datagram { path, bytes });
            if sent.gso_follows && self.setup.batch > 0 {
                self.transmit_batch(from, path);
            }
        }
        false
    }

    /// Continues a GSO batch.
    fn transmit_batch(&mut self, from: usize, path: PathId) {
        let (kcp, framing) = (&mut self.sides[from].kcp, self.setup.framing);
        let (size, mut bytes) = (kcp.current_mtu(), Vec::new());
        let count = kcp.poll_transmit_more(self.setup.batch, framing, &mut bytes);
        assert!(count <= self.setup.batch);
        assert_eq!(bytes.len(), count * framing.around(size));
        for framed in bytes.chunks(framing.around(size)) {
            let bytes = framed[framing.header_len..][..size].to_vec();
            self.carry(1 - from, Datagram { path, bytes });
        }
    }

    /// Sends pings, their answers and ACKs on the paths without data.
    fn transmit_on_paths(&mut self, from: usize) {
        for _ in 0..WIRE {
            let kcp = &mut self.sides[from].kcp;
            let Some(path) = kcp.next_transmit_path(self.now) else { return };
            let mut bytes = Vec::new();
            let Some(sent) = kcp.poll_transmit_on_path(self.now, &mut bytes) else { return };
            assert_eq!(sent.len, bytes.len());
            self.carry(1 - from, Datagram { path, bytes });
        }
    }

    fn copy(&mut self, from: usize, bytes: &[u8]) {
        let paths: Vec<_> = self.sides[from].kcp.copy_paths().collect();
        for (path, mtu) in paths {
            if bytes.len() <= mtu {
                self.carry(1 - from, Datagram { path, bytes: bytes.to_vec() });
            }
        }
    }

    /// The network takes a datagram.
    pub(super) fn carry(&mut self, to: usize, datagram: Datagram) {
        let Side { wire, cut, .. } = &mut self.sides[to];
        if *cut & (1 << datagram.path.number()) != 0 {
            return self.recycle(datagram);
        }
        wire.push_back(datagram);
        if wire.len() > WIRE
            && let Some(oldest) = wire.pop_front()
        {
            self.recycle(oldest);
        }
    }

    /// The anti-amplification limit of the accepting side.
    fn count_unvalidated(&mut self, from: usize, len: usize) {
        let Some(allowance) = self.setup.allowance.filter(|_| from != OPENER) else { return };
        let Side { kcp, unvalidated: (sent, received), .. } = &mut self.sides[from];
        if !kcp.is_established() {
            *sent += len;
            let limit = (3 * *received).max(allowance);
            assert!(*sent <= limit || self.tainted, "{sent} bytes, {limit} are permitted");
        }
    }

    /// Delivers the next datagrams.
    pub(super) fn deliver(&mut self, to: usize, most: usize) {
        for _ in 0..most {
            let Some(datagram) = self.sides[to].wire.pop_front() else { break };
            self.arrive(to, &datagram, PacketType::Regular);
            self.recycle(datagram);
        }
    }

    /// Delivers the next datagrams as a GRO batch.
    pub(super) fn deliver_batch(&mut self, to: usize, most: usize) {
        let most = most.min(self.sides[to].wire.len());
        let run: Vec<Datagram> = self.sides[to].wire.drain(..most).collect();
        let mut rest = &run[..];
        while let Some((first, others)) = rest.split_first() {
            self.arrive(to, first, PacketType::Regular);
            rest = others;
            let same = others.iter().take_while(|next| next.path == first.path);
            let batch = others.iter().take(same.count()).map(|next| &next.bytes[..]);
            let kcp = &mut self.sides[to].kcp;
            if kcp.may_input_more(&first.bytes) {
                let taken = kcp.input_more(self.now, &first.bytes, batch);
                rest = &others[taken..];
            }
        }
        run.into_iter().for_each(|datagram| self.recycle(datagram));
    }

    fn recycle(&mut self, Datagram { mut bytes, .. }: Datagram) {
        bytes.clear();
        self.spare.push(bytes);
    }

    /// A datagram arrives on its path.
    pub(super) fn arrive(&mut self, to: usize, datagram: &Datagram, origin: PacketType) {
        let path = datagram.path;
        if self.setup.paths != Paths::One && path != PathId::FIRST {
            let is_known = self.sides[to].kcp.paths().any(|known| known.id == path);
            if !is_known && (to == OPENER || !self.meet(datagram)) {
                return;
            }
        }
        self.sides[to].kcp.set_arrival(path);
        self.input(to, &datagram.bytes, origin);
    }

    pub(super) fn input(&mut self, to: usize, bytes: &[u8], origin: PacketType) {
        let Side { kcp, unvalidated, .. } = &mut self.sides[to];
        unvalidated.1 += bytes.len() + usize::from(self.setup.overhead.0);
        let result = kcp.input(self.now, bytes, origin);
        assert!(self.tainted || result.is_ok(), "own datagrams are rejected: {result:?}");
    }

    /// The accepting side validates a path that the opener has added. Returns whether the datagram
    /// is to be processed.
    fn meet(&mut self, datagram: &Datagram) -> bool {
        let (now, path) = (self.now, Path::to(addr(datagram.path.number())));
        let kcp = &mut self.sides[1 - OPENER].kcp;
        let is_new = kcp.has_something_new(&datagram.bytes);
        match kcp.validate_other_path(now, path, &datagram.bytes, is_new, cookie(datagram)) {
            PathValidation::Unvalidated => false,
            PathValidation::Challenge(challenge) => {
                let mut bytes = Vec::new();
                kcp.path_challenge(challenge).emit(&mut bytes);
                self.carry(OPENER, Datagram { path: datagram.path, bytes });
                false
            }
            PathValidation::Validated => {
                let announced = kcp.announced_path(now, path);
                announced.is_some_and(|(id, rtt)| {
                    assert!(self.tainted || id == datagram.path, "another path than announced");
                    id != PathId::FIRST && kcp.add_peer_path(now, id, rtt)
                })
            }
        }
    }

    /// The next datagram comes from another address of the peer.
    pub(super) fn migrate(&mut self, to: usize, host: u8) {
        let Some(datagram) = self.sides[to].wire.pop_front() else { return };
        let (now, kcp) = (self.now, &mut self.sides[to].kcp);
        let from = addr(100 + host % 6);
        match kcp.validate_path(now, from, &datagram.bytes, cookie(&datagram)) {
            PathValidation::Unvalidated => {}
            PathValidation::Challenge(challenge) => {
                let mut bytes = Vec::new();
                kcp.write_path_challenge(challenge, &mut bytes);
                self.carry(1 - to, Datagram { path: PathId::FIRST, bytes });
            }
            PathValidation::Validated => {
                kcp.leave_path();
                kcp.on_path_changed(now);
                kcp.on_path_validated(now);
                self.arrive(to, &datagram, PacketType::Regular);
            }
        }
    }

    /// A datagram comes back to its sender, as from a reflector.
    pub(super) fn reflect(&mut self, side: usize) {
        let Some(datagram) = self.sides[1 - side].wire.front().cloned() else { return };
        let kcp = &mut self.sides[side].kcp;
        if kcp.is_reflection(&datagram.bytes) {
            kcp.count_reflected();
        } else {
            // An acknowledgement of the peer's data may seem to be one of ours.
            self.tainted = true;
            self.input(side, &datagram.bytes, PacketType::Regular);
        }
    }

    /// Delivers a datagram with some bytes changed.
    pub(super) fn mutate(&mut self, side: usize, choices: &mut Choices<'_>) {
        let Some(mut datagram) = self.sides[side].wire.pop_front() else { return };
        self.tainted = true;
        for _ in 0..choices.byte() % 3 + 1 {
            let place = usize::from(choices.byte()) % datagram.bytes.len();
            datagram.bytes[place] ^= choices.byte();
        }
        self.arrive(side, &datagram, PacketType::Regular);
    }

    /// Delivers a forged segment: numbers near the real ones, the timestamp of a real segment or any.
    pub(super) fn forge(&mut self, side: usize, choices: &mut Choices<'_>) {
        self.tainted = true;
        let (which, kind) = (choices.byte(), choices.byte());
        let next = self.sides[side].wire.front();
        let real = next.and_then(|datagram| Header::parse(&datagram.bytes).ok());
        let kcp = &self.sides[side].kcp;
        let near =
            |number: Sn, offset: u8| Sn(number.0.wrapping_add_signed(offset.cast_signed().into()));
        let far = |byte: u8| u32::from(byte).wrapping_mul(0x0101_0101);
        let base = if which & 1 == 0 { kcp.rcv_nxt() } else { kcp.una() };
        let (wnd, sn, una, ts) = (choices.byte(), choices.byte(), choices.byte(), choices.byte());
        let payload = [7; 255];
        let payload = &payload[..if which & 128 == 0 { 0 } else { usize::from(ts) }];
        let header = Header {
            conv: if which & 126 == 126 { CONV + 1 } else { CONV },
            command: COMMANDS[usize::from(kind) % COMMANDS.len()],
            frg: if which & 2 == 0 { 0 } else { kind / 6 },
            wnd: if which & 4 == 0 { wnd.into() } else { u16::MAX - u16::from(wnd) },
            ts: real.filter(|_| which & 8 == 0).map_or_else(|| Ts(far(ts)), |real| real.ts),
            sn: if which & 16 == 0 { near(base, sn) } else { Sn(far(sn)) },
            una: if which & 32 == 0 { near(kcp.una(), una) } else { Sn(far(una)) },
            len: u32::try_from(payload.len()).unwrap_or(0),
        };
        let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
        header.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        self.input(side, &bytes, PacketType::Regular);
    }

    /// Delivers bytes that need not parse as a datagram: the record again and again.
    pub(super) fn raw(&mut self, side: usize, choices: &mut Choices<'_>) {
        self.tainted = true;
        let len = usize::from(choices.byte());
        let bytes: Vec<u8> = choices.0.iter().copied().cycle().take(len).collect();
        self.input(side, &bytes, PacketType::Regular);
    }

    /// Delivers one datagram with segments of several.
    pub(super) fn splice(&mut self, side: usize) {
        let mut spliced = Vec::new();
        let next = self.sides[side].wire.iter().take(3);
        let segments = next.filter_map(|datagram| Segments::new(&datagram.bytes).next());
        for (header, payload) in segments {
            header.emit(&mut spliced);
            spliced.extend_from_slice(payload);
        }
        if !spliced.is_empty() {
            self.input(side, &spliced, PacketType::Regular);
        }
    }
}

/// A cookie that differs between challenges.
fn cookie(datagram: &Datagram) -> u32 {
    datagram.bytes.iter().fold(1, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
