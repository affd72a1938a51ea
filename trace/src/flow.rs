//! Connections of a capture: what each side sent, sent again and lost, and how it ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use kcpx::proto::segment::REPAIRED;
use kcpx::proto::{Command, ControlType, Header, Segments, Sn, Ts};
use serde::Serialize;

use crate::inside::{Frame, Inside, Segment, Shared};
use crate::layers::{Datagram, Kind};

/// Connections that are told apart; the datagrams of further ones are counted only.
const MAX_CONNECTIONS: usize = 65_536;
/// Segments of a direction that are remembered until they are acknowledged: the largest KCP window.
const MAX_UNACKED: usize = 65_536;
/// The same of all connections together.
const MAX_UNACKED_OF_ALL: usize = 1 << 20;
/// Numbers of a direction that are remembered, since FEC may recover them behind their acknowledgement.
const MAX_MISSING: usize = 256;
/// A number at least this far behind is a ping's, whose sender subtracts 2^30.
const FAR_BEHIND: i32 = -(1 << 29);
/// The first number of a direction in 64 bits: what is sent before the first one of a capture counts down.
pub(crate) const FIRST_NUMBER: u64 = 1 << 32;
/// `wnd` is no window in a RST, and `una` may be of a process that has no state.
const RESETS: [ControlType; 2] = [ControlType::Reset, ControlType::ResetAck];

/// Two addresses and a conversation id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Id {
    /// Of the side whose datagram came first.
    pub(crate) a: SocketAddr,
    pub(crate) b: SocketAddr,
    pub(crate) conv: u32,
}

/// A side of a connection: an index.
pub(crate) type Side = usize;

/// Why a segment with data left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Push {
    First,
    Retransmission,
    /// An acknowledgement had come already.
    Spurious,
    /// The same transmission again: a duplicate of the sender or of the network.
    Copy,
    /// FEC recovered it: no packet of the capture has it.
    Recovered,
}

/// What a segment did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    Push {
        sn: u32,
        ts: u32,
        len: u32,
        why: Push,
    },
    Ping {
        cookie: u32,
        len: u32,
    },
    Ack {
        sn: u32,
        ts: u32,
        rtt_us: Option<u64>,
        was_repaired: bool,
    },
    WindowProbe,
    WindowUpdate,
    Fin {
        sn: u32,
    },
    FinAck,
    Reset,
    ResetAck,
    Hello {
        capabilities: u32,
    },
    HelloAck {
        capabilities: u32,
    },
    Path {
        number: u32,
    },
    Repair {
        first: u32,
        count: u8,
        len: u32,
    },
    /// A frame of smux, which the bytes of the PUSH before complete.
    Smux(Frame),
    /// A segment of another type.
    Other,
}

/// A segment of a connection with what it did.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Seen {
    /// Nanoseconds since 1970.
    pub(crate) at_ns: u64,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) conv: u32,
    pub(crate) una: u32,
    pub(crate) wnd: u16,
    #[serde(flatten)]
    pub(crate) event: Event,
    #[serde(skip)]
    pub(crate) side: Side,
    /// Segments that are sent and not acknowledged, of the sender of this one.
    #[serde(skip)]
    pub(crate) in_flight: u64,
    /// The number of a PUSH, or of the next one that the sender expects, counted on where it wraps.
    #[serde(skip)]
    pub(crate) number: u64,
}

/// Round-trip times, as seen where the capture was made.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Rtt {
    pub(crate) samples: u64,
    pub(crate) min_us: u64,
    pub(crate) sum_us: u64,
    pub(crate) max_us: u64,
}

impl Rtt {
    fn add(&mut self, sample: u64) {
        self.min_us = if self.samples == 0 { sample } else { self.min_us.min(sample) };
        self.max_us = self.max_us.max(sample);
        self.sum_us += sample;
        self.samples += 1;
    }

    pub(crate) fn mean_us(&self) -> Option<u64> {
        self.sum_us.checked_div(self.samples)
    }
}

/// What one side of a connection sent.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Sent {
    pub(crate) datagrams: u64,
    /// UDP payload.
    pub(crate) bytes: u64,
    /// PUSH segments, each number once.
    pub(crate) segments: u64,
    /// Payload of these.
    pub(crate) payload: u64,
    pub(crate) retransmissions: u64,
    /// Retransmissions of segments that had arrived: an acknowledgement of an earlier transmission came.
    pub(crate) spurious: u64,
    pub(crate) copies: u64,
    /// Segments that were acknowledged and are not in the capture.
    pub(crate) not_captured: u64,
    pub(crate) acks: u64,
    pub(crate) pings: u64,
    pub(crate) mtu_probes: u64,
    pub(crate) window_probes: u64,
    pub(crate) parity: u64,
    pub(crate) recovered: u64,
    pub(crate) repair_symbols: u64,
    /// ACKs of segments that repair symbols recovered.
    pub(crate) repaired_acks: u64,
    pub(crate) out_of_band: u64,
    /// The largest window that it advertised, and how often it was 0 after another one.
    pub(crate) window: u16,
    pub(crate) zero_windows: u64,
    pub(crate) max_in_flight: u64,
    pub(crate) rtt: Rtt,
    #[serde(skip)]
    state: Sending,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    Closed,
    Reset,
}

/// The state of one direction.
#[derive(Clone, Debug, Default)]
struct Sending {
    /// One above the highest number; `None` before the first. 64 bits: it does not wrap.
    next: Option<u64>,
    /// The lowest number that is not acknowledged, in 64 bits too.
    una: u64,
    /// The peer has said what `una` is; until then it is the lowest number of the capture.
    is_una_known: bool,
    /// The lowest number of the capture.
    first: Option<u64>,
    /// The latest numbers that were acknowledged and are not in the capture.
    missing: BTreeSet<u64>,
    unacked: BTreeMap<u64, Transmissions>,
    wnd: Option<u16>,
}

/// The transmissions of a segment: the first one and the latest one.
#[derive(Clone, Copy, Debug)]
struct Transmissions {
    first: (Ts, u64),
    latest: (Ts, u64),
    was_counted_spurious: bool,
}

impl Sending {
    /// Counts on from the numbers before.
    fn unwrapped(&self, sn: Sn) -> u64 {
        let Some(next) = self.next else { return FIRST_NUMBER + u64::from(sn.0) };
        next.saturating_add_signed(i64::from(sn.since(Sn(next as u32))))
    }
}

/// A connection.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Connection {
    #[serde(flatten)]
    pub(crate) id: Id,
    pub(crate) began_ns: u64,
    pub(crate) last_ns: u64,
    /// What A sent, and B.
    pub(crate) sides: [Sent; 2],
    /// Who ended it first, when and how.
    pub(crate) end: Option<(Side, u64, End)>,
    /// FIN of A, and of B.
    pub(crate) fins: [bool; 2],
    #[serde(flatten)]
    pub(crate) inside: Inside,
}

impl Connection {
    pub(crate) fn payload(&self) -> u64 {
        self.sides.iter().map(|side| side.payload).sum()
    }

    /// Segments of both sides that are remembered.
    fn unacked(&self) -> usize {
        self.sides.iter().map(|side| side.state.unacked.len()).sum()
    }

    /// False if the side has none.
    fn forget_oldest(&mut self, side: Side) -> bool {
        self.sides[side].state.unacked.pop_first().is_some()
    }

    fn ends(&mut self, side: Side, at: u64, end: End) {
        self.end.get_or_insert((side, at, end));
    }

    fn segment(&mut self, side: Side, datagram: &Datagram<'_>, header: &Header) -> (Event, u64) {
        let at = datagram.at;
        let is_recovered = datagram.kind == Kind::Recovered;
        let event = match header.command {
            Command::Push if self.sides[side].is_ping(header) => {
                let sent = &mut self.sides[side];
                if header.len > 0 {
                    sent.mtu_probes += 1
                } else {
                    sent.pings += 1
                }
                Event::Ping { cookie: header.ts.0, len: header.len }
            }
            Command::Push => return self.push(side, at, header, is_recovered),
            Command::Ack => self.ack(side, at, header),
            Command::WindowProbe => {
                self.sides[side].window_probes += 1;
                Event::WindowProbe
            }
            Command::WindowUpdate => Event::WindowUpdate,
            Command::Repair => {
                self.sides[side].repair_symbols += 1;
                Event::Repair { first: header.sn.0, count: header.frg, len: header.len }
            }
            Command::Control => self.control(side, at, header),
            _ => Event::Other,
        };
        (event, self.sides[side].state.next.unwrap_or_default())
    }

    fn push(&mut self, side: Side, at: u64, header: &Header, is_recovered: bool) -> (Event, u64) {
        let sent = &mut self.sides[side];
        let number = sent.state.unwrapped(header.sn);
        let why = sent.transmitted(number, at, header, is_recovered);
        (Event::Push { sn: header.sn.0, ts: header.ts.0, len: header.len, why }, number)
    }

    fn ack(&mut self, side: Side, at: u64, header: &Header) -> Event {
        let was_repaired = header.frg == REPAIRED;
        let sent = &mut self.sides[side];
        sent.acks += 1;
        sent.repaired_acks += u64::from(was_repaired);
        let rtt_us = self.sides[1 - side].acknowledged(at, header.sn, header.ts);
        Event::Ack { sn: header.sn.0, ts: header.ts.0, rtt_us, was_repaired }
    }

    fn control(&mut self, side: Side, at: u64, header: &Header) -> Event {
        match ControlType::from_frg(header.frg) {
            Some(ControlType::Fin) => {
                self.fins[side] = true;
                self.ends(side, at, End::Closed);
                Event::Fin { sn: header.sn.0 }
            }
            Some(ControlType::FinAck) => Event::FinAck,
            Some(ControlType::Reset) => {
                self.ends(side, at, End::Reset);
                Event::Reset
            }
            Some(ControlType::ResetAck) => Event::ResetAck,
            Some(ControlType::Hello) => Event::Hello { capabilities: header.sn.0 },
            Some(ControlType::HelloAck) => Event::HelloAck { capabilities: header.sn.0 },
            Some(ControlType::Path) => Event::Path { number: header.sn.0 },
            _ => Event::Other,
        }
    }
}

impl Sent {
    /// Whether a PUSH is a ping or an MTU probe: its number is far behind. Numbers begin at 0.
    fn is_ping(&self, header: &Header) -> bool {
        let oldest = match self.state.next {
            Some(_) => Sn(self.state.una as u32),
            None => Sn(0),
        };
        header.sn.since(oldest) < FAR_BEHIND
    }

    /// A segment leaves. Returns why.
    fn transmitted(&mut self, number: u64, at: u64, header: &Header, is_recovered: bool) -> Push {
        let state = &mut self.state;
        let transmission = (header.ts, at);
        if let Some(before) = state.unacked.get_mut(&number) {
            if before.latest.0 == header.ts || is_recovered {
                self.copies += 1;
                return Push::Copy;
            }
            before.latest = transmission;
            before.was_counted_spurious = false;
            self.retransmissions += 1;
            return Push::Retransmission;
        }
        if state.is_una_known && number < state.una {
            if is_recovered && state.missing.remove(&number) {
                self.not_captured -= 1;
                self.recovered += 1;
                (self.segments, self.payload) =
                    (self.segments + 1, self.payload + u64::from(header.len));
                return Push::Recovered;
            }
            if is_recovered {
                self.copies += 1;
                return Push::Copy;
            }
            (self.retransmissions, self.spurious) = (self.retransmissions + 1, self.spurious + 1);
            return Push::Spurious;
        }
        if !state.is_una_known {
            state.una = state.first.map_or(number, |first| first.min(number));
        }
        state.first = Some(state.first.map_or(number, |first| first.min(number)));
        state.next = state.next.max(Some(number + 1));
        let entry = Transmissions {
            first: transmission,
            latest: transmission,
            was_counted_spurious: false,
        };
        state.unacked.insert(number, entry);
        if state.unacked.len() > MAX_UNACKED {
            state.unacked.pop_first();
        }
        (self.segments, self.payload) = (self.segments + 1, self.payload + u64::from(header.len));
        self.max_in_flight = self.max_in_flight.max(self.in_flight());
        if is_recovered {
            self.recovered += 1;
            return Push::Recovered;
        }
        Push::First
    }

    /// The peer has acknowledged a transmission. Returns the time since then, microseconds.
    fn acknowledged(&mut self, at: u64, sn: Sn, ts: Ts) -> Option<u64> {
        let number = self.state.unwrapped(sn);
        let segment = self.state.unacked.get_mut(&number)?;
        let (first, latest) = (segment.first, segment.latest);
        let was_sent_again = latest != first;
        if was_sent_again && ts.since(latest.0) < 0 && !segment.was_counted_spurious {
            segment.was_counted_spurious = true;
            self.spurious += 1;
        }
        let left = [latest, first].into_iter().find(|(left, _)| *left == ts)?.1;
        let rtt = at.checked_sub(left)? / 1_000;
        self.rtt.add(rtt);
        Some(rtt)
    }

    /// The peer expects `una` next.
    fn cumulatively_acknowledged(&mut self, una: Sn) {
        let state = &mut self.state;
        let una = state.unwrapped(una);
        let Some(next) = state.next else {
            // The capture has begun, and may lack the segments before.
            (state.una, state.next, state.is_una_known) = (una, Some(una), true);
            return;
        };
        // A number beyond what the capture has: it began late, or lost frames.
        if una < state.una || una > next + MAX_UNACKED as u64 {
            return;
        }
        state.is_una_known = true;
        if una == state.una {
            return;
        }
        let rest = state.unacked.split_off(&una);
        let acked = std::mem::replace(&mut state.unacked, rest);
        let from = state.una.max(state.first.unwrap_or(una)).min(una);
        self.not_captured += (una - from).saturating_sub(acked.len() as u64);
        let latest = from.max(una.saturating_sub(MAX_MISSING as u64))..una;
        state.missing.extend(latest.filter(|number| !acked.contains_key(number)));
        while state.missing.len() > MAX_MISSING {
            state.missing.pop_first();
        }
        state.una = una;
        state.next = state.next.max(Some(una));
    }

    fn in_flight(&self) -> u64 {
        self.state.next.map_or(0, |next| next.saturating_sub(self.state.una))
    }

    fn advertised(&mut self, wnd: u16) {
        let before = self.state.wnd.replace(wnd);
        self.zero_windows += u64::from(wnd == 0 && before != Some(0));
        self.window = self.window.max(wnd);
    }
}

/// All connections of a capture.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    by_id: HashMap<(SocketAddr, SocketAddr, u32), usize>,
    pub(crate) all: Vec<Connection>,
    /// Datagrams of connections beyond the limit.
    pub(crate) not_told_apart: u64,
    /// Segments that are remembered until they are acknowledged.
    unacked: usize,
    /// Segments that were not remembered until then, since there are too many.
    pub(crate) forgotten: u64,
    shared: Shared,
}

impl Connections {
    /// Takes a datagram, and calls `each` with each of its segments.
    pub(crate) fn input(&mut self, datagram: &Datagram<'_>, mut each: impl FnMut(usize, &Seen)) {
        let conv = match datagram.kind {
            Kind::Kcp(_) | Kind::Recovered => datagram.bytes.first_chunk(),
            Kind::OutOfBand => datagram.bytes.get(8..).and_then(|bytes| bytes.first_chunk()),
            Kind::Parity(_) => return self.parity(datagram),
        };
        let Some(conv) = conv.map(|conv| u32::from_le_bytes(*conv)) else { return };
        let Some((index, side)) = self.connection(datagram, conv) else { return };
        let connection = &mut self.all[index];
        connection.last_ns = connection.last_ns.max(datagram.at);
        let sent = &mut connection.sides[side];
        (sent.datagrams, sent.bytes) = (
            sent.datagrams + u64::from(datagram.wire_len > 0),
            sent.bytes + datagram.wire_len as u64,
        );
        if datagram.kind == Kind::OutOfBand {
            sent.out_of_band += 1;
            return;
        }
        let unacked = connection.unacked();
        for (header, payload) in Segments::new(datagram.bytes) {
            let (event, number) = connection.segment(side, datagram, &header);
            if !is_reset(&header) {
                connection.sides[side].advertised(header.wnd);
            }
            let in_flight = connection.sides[side].in_flight();
            let Header { una, wnd, .. } = header;
            let (from, to) = (datagram.from, datagram.to);
            let seen = Seen {
                at_ns: datagram.at,
                from,
                to,
                conv,
                una: una.0,
                wnd,
                event,
                side,
                in_flight,
                number,
            };
            each(index, &seen);
            if let Event::Push { .. } = event {
                let una = connection.sides[side].state.una;
                let segment = Segment { side, at: datagram.at, number, una, payload };
                connection.inside.push(&segment, &mut self.shared, |frame| {
                    each(index, &Seen { event: Event::Smux(frame), ..seen });
                });
            }
        }
        // After the ACKs: those beside it name what it covers.
        for (header, _) in Segments::new(datagram.bytes).filter(|(header, _)| !is_reset(header)) {
            connection.sides[1 - side].cumulatively_acknowledged(header.una);
        }
        self.unacked = self.unacked - unacked + connection.unacked();
        // The datagram has added the surplus.
        while self.unacked > MAX_UNACKED_OF_ALL && connection.forget_oldest(side) {
            (self.unacked, self.forgotten) = (self.unacked - 1, self.forgotten + 1);
        }
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        let held = self.all.iter().map(|connection| connection.inside.holds()).sum();
        self.shared.check_invariants(held);
        let unacked: usize = self.all.iter().map(Connection::unacked).sum();
        assert_eq!(self.unacked, unacked, "Invariant: what is unacknowledged is counted");
        assert!(unacked <= MAX_UNACKED_OF_ALL, "Invariant: it has a limit");
    }

    /// The capture has ended.
    pub(crate) fn finish(&mut self) {
        self.all.iter_mut().for_each(|connection| connection.inside.finish());
    }

    /// Parity belongs to an address: the latest connection there.
    fn parity(&mut self, datagram: &Datagram<'_>) {
        let found = self.all.iter_mut().rev().take(64).find_map(|connection| {
            let ends = [(connection.id.a, connection.id.b), (connection.id.b, connection.id.a)];
            let side = ends.iter().position(|ends| *ends == (datagram.from, datagram.to))?;
            Some((connection, side))
        });
        if let Some((connection, side)) = found {
            let sent = &mut connection.sides[side];
            sent.parity += 1;
            (sent.datagrams, sent.bytes) =
                (sent.datagrams + 1, sent.bytes + datagram.wire_len as u64);
        }
    }

    fn connection(&mut self, datagram: &Datagram<'_>, conv: u32) -> Option<(usize, Side)> {
        let (a, b) = (datagram.from, datagram.to);
        if let Some(&index) = self.by_id.get(&(a, b, conv)) {
            return Some((index, 0));
        }
        if let Some(&index) = self.by_id.get(&(b, a, conv)) {
            return Some((index, 1));
        }
        if self.all.len() >= MAX_CONNECTIONS {
            self.not_told_apart += 1;
            return None;
        }
        let index = self.all.len();
        self.by_id.insert((a, b, conv), index);
        self.all.push(Connection {
            id: Id { a, b, conv },
            began_ns: datagram.at,
            last_ns: datagram.at,
            sides: Default::default(),
            end: None,
            fins: [false; 2],
            inside: Inside::default(),
        });
        Some((index, 0))
    }
}

fn is_reset(header: &Header) -> bool {
    header.command == Command::Control
        && ControlType::from_frg(header.frg).is_some_and(|type_| RESETS.contains(&type_))
}
