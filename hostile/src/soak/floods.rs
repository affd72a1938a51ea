//! The floods of the soak, one datagram at a time.
//!
//! Powers that an attacker has by design (docs/threat-model.md, "Attackers") are left out: without a cipher an
//! attacker with address pair and conversation id can forge data, acknowledgements and FINs.

use std::net::SocketAddr;

use kcpx::proto::segment::ControlType;

use super::World;
use crate::forge;
use crate::forwarder::{Direction, Injector, Recorded};
use crate::rng::Rng;
use crate::sources::Sources;

/// Addresses that datagrams come from.
const ADDRESSES: u32 = 256;

/// The datagrams beside the honest traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flood {
    None,
    InitialSegments,
    Garbage,
    OutOfBand,
    Replay,
    FecShards,
    ControlSegments,
    Amplification,
    TwoServers,
    All,
}

impl Flood {
    pub(super) const ALL: [Self; 10] = [
        Self::None,
        Self::InitialSegments,
        Self::Garbage,
        Self::OutOfBand,
        Self::Replay,
        Self::FecShards,
        Self::ControlSegments,
        Self::Amplification,
        Self::TwoServers,
        Self::All,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::InitialSegments => "initial segments",
            Self::Garbage => "garbage",
            Self::OutOfBand => "out-of-band datagrams",
            Self::Replay => "replayed datagrams",
            Self::FecShards => "forged FEC shards",
            Self::ControlSegments => "forged FIN, RST, ACK",
            Self::Amplification => "amplification",
            Self::TwoServers => "two servers",
            Self::All => "all of them",
        }
    }
}

/// Sends the datagrams of any flood.
pub(super) struct Sender {
    rng: Rng,
    sent: u64,
    addresses: Sources,
    /// Ports of one address.
    ports: Sources,
    plain: SocketAddr,
    fec: SocketAddr,
    sealed: SocketAddr,
    greeting: SocketAddr,
    plain_path: Injector,
    fec_path: Injector,
    sealed_path: Injector,
    between_servers: Injector,
    /// The conversation id of an initial segment that one of two servers got and the other not yet.
    half_sent: Option<u32>,
}

impl Sender {
    pub(super) fn new(world: &World) -> anyhow::Result<Self> {
        Ok(Self {
            rng: Rng::new(3),
            sent: 0,
            addresses: Sources::at_addresses(9, ADDRESSES)?,
            ports: Sources::at_ports([127, 8, 0, 1].into(), ADDRESSES)?,
            plain: world.plain.addr,
            fec: world.fec.addr,
            sealed: world.sealed.addr,
            greeting: world.greeting.addr,
            plain_path: world.plain_path.injector(),
            fec_path: world.fec_path.injector(),
            sealed_path: world.sealed_path.injector(),
            between_servers: world.between_servers.injector(),
            half_sent: None,
        })
    }

    /// Sends one datagram.
    pub(super) fn send(&mut self, flood: Flood) {
        self.sent += 1;
        match flood {
            Flood::None => {}
            Flood::InitialSegments => self.initial_segment(),
            Flood::Garbage => self.garbage(),
            Flood::OutOfBand => self.out_of_band(),
            Flood::Replay => self.replay(),
            Flood::FecShards => self.fec_shard(),
            Flood::ControlSegments => self.control_segment(),
            Flood::Amplification => self.amplification(),
            Flood::TwoServers => self.initial_in_the_name_of_a_server(),
            Flood::All => {
                let one = Flood::ALL[1 + self.rng.below(Flood::ALL.len() - 2)];
                self.send(one);
            }
        }
    }

    fn either(&mut self) -> Direction {
        if self.rng.below(2) == 0 { Direction::ToServer } else { Direction::ToClient }
    }

    /// From changing addresses, with and without data.
    fn initial_segment(&mut self) {
        let (conv, len) = (self.rng.next_u32(), 1 + self.rng.below(1_000));
        let datagram = match self.rng.below(4) {
            0 => forge::initial_without_data(conv, self.rng.next_u32()),
            _ => forge::initial(conv, &self.rng.bytes(len)),
        };
        let to = if self.rng.below(2) == 0 { self.plain } else { self.fec };
        self.addresses.send(&datagram, to);
    }

    /// From changing addresses, and from the address of either end of a connection.
    fn garbage(&mut self) {
        let datagram = forge::garbage(&mut self.rng);
        let direction = self.either();
        match self.rng.below(6) {
            0 => self.addresses.send(&datagram, self.plain),
            1 => self.addresses.send(&datagram, self.fec),
            2 => self.addresses.send(&datagram, self.sealed),
            3 => self.plain_path.inject(direction, &datagram),
            4 => self.fec_path.inject(direction, &datagram),
            _ => self.sealed_path.inject(direction, &datagram),
        };
    }

    /// From unvalidated peers, each behind an initial segment of its connection.
    fn out_of_band(&mut self) {
        let conv = self.rng.next_u32();
        let to = if self.rng.below(2) == 0 { self.plain } else { self.fec };
        let datagram = if self.rng.below(8) == 0 {
            forge::initial(conv, b"hello")
        } else {
            let len = self.rng.below(1_200);
            forge::out_of_band(conv, &self.rng.bytes(len))
        };
        self.addresses.send(&datagram, to);
    }

    /// Replays recorded datagrams: under a cipher from the same address, both ways, and from others; without
    /// one from others.
    fn replay(&mut self) {
        let kind = self.rng.below(4);
        let path = match kind {
            0 | 1 => &self.sealed_path,
            2 => &self.plain_path,
            _ => &self.fec_path,
        };
        let Some(recorded) = path.recorded(&mut self.rng) else { return };
        match kind {
            0 => self.sealed_path.inject(recorded.direction, &recorded.datagram),
            1 => self.addresses.send(&recorded.datagram, self.sealed),
            2 => self.addresses.send(&recorded.datagram, self.plain),
            _ => self.addresses.send(&recorded.datagram, self.fec),
        };
    }

    /// Data and parity with random bodies, from the address of either end and from others, with
    /// the current seqids and with any.
    fn fec_shard(&mut self) {
        let direction = self.either();
        let current = self.fec_path.latest(direction, is_fec_packet).and_then(first_u32);
        let ahead = self.rng.below(64) as u32;
        let seqid = match (current, self.rng.below(4)) {
            (Some(current), 0..=2) => current.wrapping_add(ahead),
            _ => self.rng.next_u32(),
        };
        let flag = if self.rng.below(2) == 0 { forge::FEC_DATA } else { forge::FEC_PARITY };
        let len = self.rng.below(1_300);
        let packet = forge::fec_packet(flag, seqid, &self.rng.bytes(len));
        if self.rng.below(4) == 0 {
            self.addresses.send(&packet, self.fec);
        } else {
            self.fec_path.inject(direction, &packet);
        }
    }

    /// From the address of either end: without the key at the connection under a cipher; at the one
    /// without a cipher with another conversation id, or an RST with its own, which has to
    /// echo a timestamp.
    fn control_segment(&mut self) {
        let direction = self.either();
        let (number, timestamp) = (self.rng.below(4_096) as u32, self.rng.next_u32());
        let conv_in_use = self.plain_path.latest(Direction::ToServer, |_| true).and_then(first_u32);
        if let (Some(conv), 0) = (conv_in_use, self.rng.below(8)) {
            let reset = forge::control(conv, ControlType::Reset, number, timestamp);
            self.plain_path.inject(direction, &reset);
            return;
        }
        let conv = self.rng.next_u32();
        let datagram = match self.rng.below(5) {
            0 => forge::control(conv, ControlType::Fin, number, timestamp),
            1 => forge::control(conv, ControlType::Reset, number, timestamp),
            2 => forge::ack(conv, number, timestamp),
            3 => forge::ping(conv, timestamp),
            _ => forge::initial(conv, b"forged"),
        };
        match self.rng.below(2) {
            0 => self.plain_path.inject(direction, &datagram),
            _ => self.sealed_path.inject(direction, &datagram),
        };
    }

    /// The shortest datagrams that open connections, to a server that sends first.
    fn amplification(&mut self) {
        let datagram = forge::initial(self.rng.next_u32(), b"!");
        if self.sent.is_multiple_of(2) {
            self.ports.send(&datagram, self.greeting);
        } else {
            self.addresses.send(&datagram, self.greeting);
        }
    }

    /// To two servers, each in the name of the other one.
    fn initial_in_the_name_of_a_server(&mut self) {
        let conv = match self.half_sent.take() {
            Some(conv) => conv,
            None => *self.half_sent.insert(self.rng.next_u32()),
        };
        let both = [Direction::ToServer, Direction::ToClient];
        let direction = both[usize::from(self.half_sent.is_none())];
        self.between_servers.inject(direction, &forge::initial(conv, b"hello"));
    }
}

/// The conversation id of a datagram, or the seqid of a FEC packet.
fn first_u32(recorded: Recorded) -> Option<u32> {
    recorded.datagram.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn is_fec_packet(datagram: &[u8]) -> bool {
    datagram.get(4..6).is_some_and(|flag| {
        [forge::FEC_DATA, forge::FEC_PARITY].iter().any(|known| flag == known.to_le_bytes())
    })
}
