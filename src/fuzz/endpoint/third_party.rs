//! A third party on the network: records, replays, reflects, alters, forges and delays datagrams.
//!
//! With [`Power::OnPath`] it sees and stops every datagram but has no key. With [`Power::Sealing`]
//! it can also write datagrams, because there is no key or it has the key.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use super::reader::{Content, Packet, Reader};
use crate::config::Config;
use crate::core::segment::{CONTROL_CAPABLE, Command, Header};
use crate::core::seq::{Sn, Ts};
use crate::crypto::Algorithm;
use crate::driver::output::send_batch::{Flushed, SendBatch};
use crate::driver::output::{PacketCodec, SendExtras, Written};
use crate::fuzz::Choices;
use crate::fuzz::choices::COMMANDS;
use crate::fuzz::wire::{CLIENT, ELSEWHERE, FURTHER, SERVER, Wire, addr, further_of};
use crate::stats::EndpointStats;
use crate::util::path::Path;

/// Datagrams that the third party keeps, of each kind.
const RECORDS: usize = 64;
/// Its own address, and two unused addresses.
pub(super) const OWN: u8 = 3;
const NOBODY: [u8; 2] = [4, 5];
/// Leading bytes that no checksum covers under some ciphers.
const UNCOVERED: usize = 20;

/// Capabilities of the third party.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Power {
    /// There is no third party.
    None,
    OnPath,
    Sealing,
}

#[derive(Debug)]
pub(super) struct ThirdParty {
    power: Power,
    /// The first byte of a datagram that it alters.
    alters_from: usize,
    reader: Reader,
    codec: PacketCodec,
    tx: SendBatch,
    seen: VecDeque<Packet>,
    delayed: VecDeque<Packet>,
}

impl ThirdParty {
    pub(super) fn new(config: &Config, power: Power, algorithm: Algorithm) -> Self {
        let alters_from = if covers_nonce(algorithm) { 0 } else { UNCOVERED };
        let (seen, delayed) = (VecDeque::new(), VecDeque::new());
        let (codec, tx) = (PacketCodec::new(config, [8; 32]), SendBatch::default());
        Self { power, alters_from, reader: Reader::new(config), codec, tx, seen, delayed }
    }

    /// Keeps a copy of a datagram.
    pub(super) fn record(&mut self, packet: &Packet) {
        if self.power == Power::None {
            return;
        }
        if self.seen.len() >= RECORDS {
            self.seen.pop_front();
        }
        self.seen.push_back(packet.clone());
    }

    /// Forgets its records, which are too old.
    pub(super) fn forget(&mut self) {
        self.seen.clear();
        self.delayed.clear();
    }

    /// Acts on the datagrams in flight.
    pub(super) fn act(
        &mut self,
        now: Instant,
        choices: &mut Choices<'_>,
        wire: &mut VecDeque<Packet>,
    ) {
        match (choices.byte() % 8, self.power) {
            (0, _) => wire.extend(self.pick(choices)),
            (1, _) => {
                wire.extend(self.pick(choices).map(|p| Packet { from: source(choices), ..p }))
            }
            (2, _) => wire.extend(self.reflect(choices)),
            (3, _) => {
                self.delayed.extend(wire.pop_front());
                self.delayed.truncate(RECORDS);
            }
            (4, _) => wire.extend(self.delayed.drain(..)),
            (5, Power::Sealing) => self.forge(now, choices, wire),
            (6, Power::Sealing) => self.forge_data(now, choices, wire),
            (7, Power::Sealing) => self.answer(now, choices, wire),
            _ => wire.extend(self.alter(choices)),
        }
    }

    /// Sends an announcement of a path or a challenge again, from its sender or from anywhere.
    pub(super) fn replay_path(&self, choices: &mut Choices<'_>, wire: &mut VecDeque<Packet>) {
        let is_on_path =
            |packet: &&Packet| further_of(packet.from).is_some() || further_of(packet.to).is_some();
        let nth = usize::from(choices.byte() & 7);
        let Some(packet) = self.seen.iter().rev().filter(is_on_path).nth(nth) else { return };
        let from = match choices.byte() & 3 {
            0 => packet.from,
            1 => addr(choices.pick(&FURTHER)),
            _ => source(choices),
        };
        wire.push_back(Packet { from, foreign: true, ..packet.clone() });
    }

    /// Picks a recorded datagram to send again.
    fn pick(&self, choices: &mut Choices<'_>) -> Option<Packet> {
        let at = usize::from(choices.byte()) % self.seen.len().max(1);
        self.seen.get(at).map(|packet| Packet { foreign: true, ..packet.clone() })
    }

    /// Returns a recorded datagram to its sender, in the name of its receiver or in its own.
    fn reflect(&self, choices: &mut Choices<'_>) -> Option<Packet> {
        let packet = self.pick(choices)?;
        let from = if choices.byte() & 3 == 0 { addr(OWN) } else { packet.to };
        Some(Packet { to: packet.from, from, ..packet })
    }

    /// Returns a recorded datagram with altered bytes.
    fn alter(&self, choices: &mut Choices<'_>) -> Option<Packet> {
        let mut packet = self.pick(choices)?;
        let at = self.alters_from + usize::from(choices.byte());
        let bits = choices.byte();
        let byte = packet.bytes.get_mut(at).filter(|_| bits != 0)?;
        *byte ^= bits;
        packet.content = None;
        Some(packet)
    }

    /// Sends a segment of a recorded datagram with altered fields.
    fn forge(&mut self, now: Instant, choices: &mut Choices<'_>, wire: &mut VecDeque<Packet>) {
        let Some((packet, content)) = self.read(choices) else { return };
        let Some(mut header) = content.headers().next() else { return };
        let fields = choices.byte();
        if fields & 1 != 0 {
            header.command = choices.pick(&COMMANDS);
        }
        if fields & 2 != 0 {
            header.frg = choices.pick(&[0, 1, 2, 3, 4, 5, 6, CONTROL_CAPABLE, 255]);
        }
        if fields & 4 != 0 {
            header.wnd = choices.pick(&[0, 1, 128, u16::MAX]);
        }
        if fields & 8 != 0 {
            header.sn = Sn(other(choices, header.sn.0));
        }
        if fields & 16 != 0 {
            header.una = Sn(other(choices, header.una.0));
        }
        if fields & 32 != 0 {
            header.ts = Ts(other(choices, header.ts.0));
        }
        if fields & 64 != 0 {
            header.conv = u32::from(choices.byte() & 3);
        }
        let payload = if fields & 128 != 0 { choices.bytes() } else { Vec::new() };
        let from = if choices.byte() & 1 == 0 { packet.from } else { source(choices) };
        let to = if choices.byte() & 1 == 0 { packet.to } else { packet.from };
        wire.extend(self.write(now, from, to, &[(header, &payload)]));
    }

    /// Sends the first data of a connection, and many datagrams of later data.
    fn forge_data(&mut self, now: Instant, choices: &mut Choices<'_>, wire: &mut VecDeque<Packet>) {
        let (from, conv, first) = (source(choices), u32::from(choices.byte() & 7), choices.byte());
        let payload = vec![first; choices.pick(&[1, 100, 1_300])];
        let later = (u32::from(first)..).take(4 * usize::from(choices.byte()));
        for sn in std::iter::once(0).chain(later) {
            let header = Header { sn: Sn(sn), ..segment(conv, Command::Push) };
            wire.extend(self.write(now, from, addr(SERVER), &[(header, &payload)]));
        }
    }

    /// Acknowledges all data and pings of a recorded datagram, in the name of its receiver.
    fn answer(&mut self, now: Instant, choices: &mut Choices<'_>, wire: &mut VecDeque<Packet>) {
        let Some((packet, content)) = self.read(choices) else { return };
        let una = Sn(u32::from(choices.byte() & 3));
        let acks = content.headers().filter(|header| header.command == Command::Push).map(|of| {
            let ack = Header { sn: of.sn, ts: of.ts, una, ..segment(of.conv, Command::Ack) };
            (ack, &[][..])
        });
        let acks: Vec<_> = acks.collect();
        wire.extend(self.write(now, packet.to, packet.from, &acks));
    }

    fn read(&self, choices: &mut Choices<'_>) -> Option<(Packet, Rc<Content>)> {
        let packet = self.pick(choices)?;
        let content = self.reader.content(&packet)?;
        Some((packet, content))
    }

    /// Returns the datagram of these segments, sealed.
    fn write(
        &mut self,
        now: Instant,
        from: SocketAddr,
        to: SocketAddr,
        segments: &[(Header, &[u8])],
    ) -> Option<Packet> {
        let write = |tail: &mut Vec<u8>| {
            for (header, payload) in segments {
                let len = u32::try_from(payload.len()).unwrap_or(0);
                Header { len, ..*header }.emit(tail);
                tail.extend_from_slice(payload);
            }
            if segments.is_empty() { Written::Nothing } else { Written::Other }
        };
        self.codec.encode(now, &mut self.tx, Path::to(to), SendExtras::default(), write);
        self.codec.seal(&mut self.tx);
        let mut wire = Wire::default();
        let flushed = self.tx.flush(&mut wire, &mut EndpointStats::default());
        assert!(matches!(flushed, Flushed::All));
        let (_, bytes) = wire.sent.pop()?;
        Some(Packet::foreign(from, to, bytes))
    }
}

/// A segment that opens a connection, or belongs to any.
fn segment(conv: u32, command: Command) -> Header {
    Header { conv, command, frg: 0, wnd: 128, ts: Ts(9), sn: Sn(0), una: Sn(0), len: 0 }
}

/// A number near `value`, or far from it.
fn other(choices: &mut Choices<'_>, value: u32) -> u32 {
    match choices.byte() % 4 {
        0 => value.wrapping_add(u32::from(choices.byte())),
        1 => value.wrapping_sub(u32::from(choices.byte())),
        2 => u32::from(choices.byte()),
        _ => choices.word(),
    }
}

/// The forged source address of a datagram.
fn source(choices: &mut Choices<'_>) -> SocketAddr {
    let hosts = [CLIENT, ELSEWHERE, OWN, NOBODY[0], NOBODY[1]];
    let mut source = addr(choices.pick(&hosts));
    source.set_port(source.port() + u16::from(choices.byte() & 1));
    source
}

/// Whether a tag, or a checksum after the nonce, covers every bit of a datagram.
fn covers_nonce(algorithm: Algorithm) -> bool {
    match algorithm {
        Algorithm::Aes128 | Algorithm::Aes192 | Algorithm::Aes256 => true,
        Algorithm::Aes128Gcm | Algorithm::Aes192Gcm | Algorithm::Aes256Gcm => true,
        Algorithm::ChaCha20Poly1305 => true,
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::Sm4 | Algorithm::Twofish => true,
        _ => false,
    }
}
