//! Contents of a datagram, read with the key.

use std::net::SocketAddr;
use std::rc::Rc;

use crate::config::Config;
use crate::core::segment::{Command, ControlType, Header, Segments, validate};
use crate::driver::output::PacketCodec;
use crate::fec::{self, FecFlag, fec_flag, oob};

/// Data has smaller `sn`; pings and MTU probes are far above.
const MAX_DATA_SN: u32 = 1 << 24;

/// Kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data, sent for the first time or again.
    Data,
    /// A repair symbol, which may recover data.
    Repair,
    /// Bytes that only MTU probes have.
    Padded,
    /// Segments without payload.
    Dataless,
    /// Segments without payload in a position of a FEC group.
    Filler,
    Parity,
    OutOfBand,
}

/// A datagram in flight.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) to: SocketAddr,
    pub(crate) from: SocketAddr,
    pub(crate) bytes: Vec<u8>,
    /// The result of [`Reader::read`], if `bytes` are as the sender wrote them.
    pub(crate) content: Option<Rc<Content>>,
    /// It was not sent by its apparent sender at this place and time.
    pub(crate) foreign: bool,
}

impl Packet {
    pub(super) fn foreign(from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) -> Self {
        Self { to, from, bytes, content: None, foreign: true }
    }
}

/// Opens the datagrams of both endpoints.
#[derive(Debug)]
pub(super) struct Reader(PacketCodec);

/// A datagram without cipher and FEC header.
#[derive(Debug)]
pub(crate) struct Content {
    pub(super) kind: Kind,
    /// `None` for parity, which names no connection.
    pub(super) conv: Option<u32>,
    /// The KCP datagram; empty if there is none.
    pub(super) datagram: Vec<u8>,
}

impl Reader {
    pub(super) fn new(config: &Config) -> Self {
        Self(PacketCodec::new(config, [9; 32]))
    }

    /// As [`Self::read`], from the packet if it is known.
    pub(super) fn content(&self, packet: &Packet) -> Option<Rc<Content>> {
        packet.content.clone().or_else(|| self.read(&packet.bytes).map(Rc::new))
    }

    /// `None` if no endpoint would accept the datagram.
    pub(super) fn read(&self, bytes: &[u8]) -> Option<Content> {
        let mut bytes = bytes.to_vec();
        let body = self.0.open(&mut bytes).ok()?.body;
        let flag = fec_flag(body);
        let datagram = match flag {
            FecFlag::Parity => {
                return Some(Content { kind: Kind::Parity, conv: None, datagram: Vec::new() });
            }
            FecFlag::OutOfBand => {
                let (conv, _) = oob::parse(body)?;
                let (kind, conv) = (Kind::OutOfBand, Some(conv));
                return Some(Content { kind, conv, datagram: Vec::new() });
            }
            FecFlag::Data => body.get(fec::HEADER_LEN..)?,
            FecFlag::Plain => body,
        };
        let conv = Header::parse(datagram).ok()?.conv;
        validate(datagram, conv).ok()?;
        let is_data = |(header, payload): (Header, &[u8])| {
            header.command == Command::Push && !payload.is_empty() && header.sn.0 < MAX_DATA_SN
        };
        let is_repair = |(header, _): (Header, &[u8])| header.command == Command::Repair;
        let kind = if Segments::new(datagram).any(is_data) {
            Kind::Data
        } else if Segments::new(datagram).any(is_repair) {
            Kind::Repair
        } else if Segments::new(datagram).any(|(_, payload)| !payload.is_empty()) {
            Kind::Padded
        } else if flag == FecFlag::Data {
            Kind::Filler
        } else {
            Kind::Dataless
        };
        Some(Content { kind, conv: Some(conv), datagram: datagram.to_vec() })
    }
}

impl Content {
    /// Whether it has a ping, window probe, FIN, RST or HELLO, which are sent by timers.
    pub(super) fn asks_for_an_answer(&self) -> bool {
        self.headers().any(|h| matches!(h.command, Command::Push | Command::WindowProbe))
            || self.has_control(&[ControlType::Fin, ControlType::Reset, ControlType::Hello])
    }

    /// Whether it has a CONTROL segment of one of these kinds.
    pub(super) fn has_control(&self, kinds: &[ControlType]) -> bool {
        self.headers().filter(|header| header.command == Command::Control).any(|header| {
            ControlType::from_frg(header.frg).is_some_and(|kind| kinds.contains(&kind))
        })
    }

    pub(super) fn headers(&self) -> impl Iterator<Item = Header> {
        Segments::new(&self.datagram).map(|(header, _)| header)
    }
}
