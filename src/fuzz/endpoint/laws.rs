//! Limits on sent datagrams, whatever applications, network and a third party do.
//!
//! - Datagrams without data: per second, a connection sends at most one for each event that can ask
//!   for one, and [`SPONTANEOUS`] of its own. A datagram with data asks for two, an ACK and the
//!   window update after the read. Pings, window probes, FIN, RST, HELLO and third-party datagrams
//!   ask for one each, and so does each read of the application. After a RST it may send
//!   [`HALF_OPEN_PINGS`] more, however many RSTs arrive (`core/stateless_reset.rs`). So two
//!   endpoints do not keep each other busy with pings. The seed
//!   `fuzz/seeds/endpoint/pings-after-a-reset` has a FIN, window probes and these pings in one
//!   second.
//!   Each path of a connection with several has its own pings, and copies of a datagram
//!   (`Config::duplicates`) count as one.
//! - Amplification: an IP address that has not answered is sent at most three times the bytes
//!   and, if it opened no connection, three times the datagrams received from it, and [`INITIAL_ALLOWANCE`] bytes for each of at most [`MAX_ALLOWANCES`]
//!   connections per [`ALLOWANCE_PERIOD`]. The endpoint's period begins with the first connection
//!   that opens, the period of these laws with the first datagram that could open one, so only the
//!   sum over all periods is known.
//! - Retransmissions: at most twice the segments sent, 64, and 4 per 30 ms. Without the core's
//!   `RetransmitBudget`, the seed `fuzz/seeds/endpoint/retransmissions-in-vain` breaks this: it
//!   loses a full window repeatedly, and each time an ACK of the latest segment arrives.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::reader::{Content, Kind, Packet, Reader};
use crate::config::{Config, Migration};
use crate::core::open::InitialSegment;
use crate::core::path::set::MAX_PATHS;
use crate::core::segment::{Command, ControlType, Header};
use crate::fuzz::wire::SERVER_SIDE;
use crate::stats::ConnectionStats;

/// Unprompted datagrams without data per second and connection. An RTO of 30 ms that doubles makes six transmissions of
/// FIN in the first second, and six of HELLO. There are two pings at most, and a window probe.
const SPONTANEOUS: usize = 6 + 6 + 2 + 1;
const SECOND: Duration = Duration::from_secs(1);
/// Pings after a RST in addition to the ping that the RST asks for. The first is sent within a
/// second, the others 200 ms apart. With a longer RTO fewer fall into one second.
const HALF_OPEN_PINGS: usize = 4;
const HALF_OPEN: Duration = Duration::from_millis(1_800);
/// How long an answer may be delayed: until the peer is validated, and an interval of 5 s.
const ANSWER_DELAY: Duration = Duration::from_secs(36);
/// Bytes sent per byte received, and the least allowance of a connection.
const AMPLIFICATION: usize = 3;
const INITIAL_ALLOWANCE: usize = 1_200;
/// Connections of an IP address with the least allowance in a period, which begins with the first.
const MAX_ALLOWANCES: usize = 8;
const ALLOWANCE_PERIOD: Duration = Duration::from_secs(30);

/// Address and conversation id; 0 where they may change.
type Key = (Option<SocketAddr>, u32);

/// Recent datagrams of one connection.
#[derive(Debug, Default)]
struct Responses {
    /// Datagrams without data sent.
    sent: VecDeque<Instant>,
    /// Events that could ask for one.
    asked: VecDeque<Instant>,
    /// Addresses and conversation ids of this entry, and when the last RST of each arrived.
    pairs: HashMap<(SocketAddr, u32), Option<Instant>>,
}

/// Traffic of an IP address until it is validated.
#[derive(Debug, Default)]
struct Unvalidated {
    received: usize,
    sent: usize,
    /// Datagrams received and sent.
    datagrams: (usize, usize),
    /// Datagrams that may have opened a connection.
    opens: usize,
    /// Number of periods with such datagrams, and the start of the last one.
    periods: usize,
    period_start: Option<Instant>,
    /// `conv`, `sn` and `ts` of sent segments whose ACK or FIN-ACK validates the address.
    pushes: HashSet<(u32, u32, u32)>,
    is_validated: bool,
}

/// Observed state of one side.
#[derive(Debug)]
struct Side {
    responses: HashMap<Key, Responses>,
    migrates: bool,
    assigns: bool,
    /// Paths of a connection.
    paths: usize,
    /// Most copies of a datagram so far, itself included.
    copies: usize,
}

#[derive(Debug)]
pub(crate) struct Laws {
    reader: Reader,
    sides: [Side; 2],
    /// Traffic of the server by IP address.
    peers: HashMap<IpAddr, Unvalidated>,
    allowance: usize,
    start: Instant,
    now: Instant,
    /// The previous instant.
    before: Instant,
}

impl Laws {
    pub(crate) fn new(now: Instant, server: &Config, client: &Config) -> Self {
        let side = |config: &Config| Side {
            responses: HashMap::new(),
            migrates: config.allowed_migration() != Migration::Off,
            assigns: config.assign_conv,
            paths: match config.allowed_migration() {
                Migration::Authenticated => MAX_PATHS.into(),
                _ => 1,
            },
            copies: 1 + usize::from(config.duplicates),
        };
        Self {
            reader: Reader::new(server),
            sides: [side(server), side(client)],
            peers: HashMap::new(),
            allowance: usize::from(server.kcp.mtu).max(INITIAL_ALLOWANCE),
            start: now,
            now,
            before: now,
        }
    }

    pub(crate) fn on_time(&mut self, now: Instant) {
        if now > self.now {
            (self.before, self.now) = (self.now, now);
        }
    }

    /// Notes a datagram that `side` receives, perhaps from a third party.
    pub(crate) fn on_received(&mut self, side: usize, packet: &Packet) {
        let (from, content) = (packet.from, self.reader.content(packet));
        if side == SERVER_SIDE {
            let peer = self.peers.entry(from.ip()).or_default();
            peer.on_received(self.now, packet.bytes.len(), content.as_deref());
        }
        let Some(content) = content else { return };
        let carries = matches!(content.kind, Kind::Data | Kind::Parity | Kind::Repair);
        let asks =
            if carries { 2 } else { usize::from(packet.foreign || content.asks_for_an_answer()) };
        let now = self.now;
        match content.conv {
            Some(conv) => {
                let responses = self.sides[side].of(from, conv);
                responses.ask(now, asks);
                if content.has_control(&[ControlType::Reset]) {
                    responses.pairs.insert((from, conv), Some(now));
                }
            }
            // Parity may recover data of any connection.
            None => self.sides[side].responses.values_mut().for_each(|all| all.ask(now, asks)),
        }
    }

    /// Notes a read by an application of `side`, which opens the window.
    pub(crate) fn on_read(&mut self, side: usize, peer: SocketAddr, conv: u32) {
        let now = self.now;
        self.sides[side].of(peer, conv).ask(now, 1);
    }

    /// Notes a change of the network or the paths by an application of `side`: each path may be pinged.
    pub(crate) fn on_paths_asked(&mut self, side: usize, peer: SocketAddr, conv: u32) {
        let (now, paths) = (self.now, self.sides[side].paths);
        self.sides[side].of(peer, conv).ask(now, paths);
    }

    /// Notes that an endpoint of `side` was told of a change of the network: each connection pings each path, and
    /// sends an initial segment that nothing has answered.
    pub(crate) fn on_network_changed(&mut self, side: usize) {
        let now = self.now;
        let Side { responses, paths, .. } = &mut self.sides[side];
        responses.values_mut().for_each(|all| all.ask(now, *paths + 1));
    }

    /// Notes a datagram that `side` sent. Returns its content.
    pub(crate) fn on_sent(&mut self, side: usize, to: SocketAddr, bytes: &[u8]) -> Rc<Content> {
        let content = Rc::new(self.reader.read(bytes).expect("a datagram that opens"));
        if side == SERVER_SIDE {
            let peer = self.peers.entry(to.ip()).or_default();
            peer.on_sent(to, bytes.len(), &content, self.allowance);
        }
        let is_counted = matches!(content.kind, Kind::Dataless | Kind::Padded);
        let Some(conv) = content.conv.filter(|_| is_counted) else { return content };
        let (now, before) = (self.now, self.before);
        let Side { paths, copies, .. } = self.sides[side];
        let responses = self.sides[side].of(to, conv);
        responses.sent.push_back(now);
        responses.check(now, before, paths, copies, &content);
        content
    }

    /// Notes that `side` may send `copies` more of each datagram.
    pub(crate) fn on_duplicates(&mut self, side: usize, copies: u8) {
        let most = &mut self.sides[side].copies;
        *most = (*most).max(1 + usize::from(copies));
    }

    /// Notes that the socket of `side` sends again: what was asked while it was blocked is answered from now on.
    pub(crate) fn on_unblocked(&mut self, side: usize) {
        let now = self.now;
        let asked = self.sides[side].responses.values_mut().flat_map(|all| &mut all.asked);
        asked.for_each(|at| *at = now);
    }

    /// Notes that `side` has lost its state. It may answer what its predecessor was asked.
    pub(crate) fn on_restart(&mut self, side: usize) {
        self.sides[side].responses.clear();
        if side == SERVER_SIDE {
            self.peers.clear();
        }
    }

    /// Checks the statistics of a connection.
    pub(crate) fn check_stats(&self, stats: &ConnectionStats) {
        let periods = self.now.duration_since(self.start).as_millis() / 30 + 1;
        let limit = 2 * u128::from(stats.sent.segments) + 64 + 4 * periods;
        assert!(u128::from(stats.retransmits()) <= limit, "retransmits too often: {stats:?}");
    }
}

impl Side {
    fn of(&mut self, peer: SocketAddr, conv: u32) -> &mut Responses {
        let key =
            (if self.migrates { None } else { Some(peer) }, if self.assigns { 0 } else { conv });
        let responses = self.responses.entry(key).or_default();
        responses.pairs.entry((peer, conv)).or_default();
        responses
    }
}

impl Responses {
    fn ask(&mut self, now: Instant, count: usize) {
        self.asked.extend(std::iter::repeat_n(now, count));
    }

    fn check(
        &mut self,
        now: Instant,
        before: Instant,
        paths: usize,
        copies: usize,
        last: &Content,
    ) {
        // A long time may have passed in one step.
        while self.asked.front().is_some_and(|at| *at + ANSWER_DELAY < now && *at < before) {
            self.asked.pop_front();
        }
        while self.sent.front().is_some_and(|at| *at + SECOND <= now) {
            self.sent.pop_front();
        }
        let resets = self.pairs.values().flatten();
        let half_open = resets.filter(|at| now < **at + HALF_OPEN + SECOND).count();
        let own = SPONTANEOUS * paths * self.pairs.len() + HALF_OPEN_PINGS * half_open;
        let limit = (self.asked.len() + own) * copies;
        assert!(
            self.sent.len() <= limit,
            "{} datagrams without data in a second, {limit} are permitted; the last: {:?}",
            self.sent.len(),
            last.headers().collect::<Vec<_>>(),
        );
    }
}

fn is_control(header: &Header, control: ControlType) -> bool {
    header.command == Command::Control && ControlType::from_frg(header.frg) == Some(control)
}

impl Unvalidated {
    fn on_received(&mut self, now: Instant, len: usize, content: Option<&Content>) {
        self.received += len;
        self.datagrams.0 += 1;
        let Some(content) = content else { return };
        let may_open = InitialSegment::parse(&content.datagram).is_some()
            || InitialSegment::find_datagram(&content.datagram).is_some();
        // Parity may recover an ACK.
        let validates = content.kind == Kind::Parity
            || content.headers().any(|header| {
                (header.command == Command::Ack || is_control(&header, ControlType::FinAck))
                    && self.pushes.contains(&(header.conv, header.sn.0, header.ts.0))
            });
        if validates {
            (self.is_validated, self.pushes) = (true, HashSet::new());
        }
        if may_open {
            self.opens += 1;
            if self.period_start.is_none_or(|start| now >= start + ALLOWANCE_PERIOD) {
                (self.periods, self.period_start) = (self.periods + 1, Some(now));
            }
        }
    }

    fn on_sent(&mut self, to: SocketAddr, len: usize, content: &Content, allowance: usize) {
        if self.is_validated {
            return;
        }
        self.sent += len;
        self.datagrams.1 += 1;
        let (received, sent) = self.datagrams;
        assert!(
            self.opens > 0 || sent <= AMPLIFICATION * received,
            "{to} is not validated: {sent} datagrams for {received}"
        );
        let granted = allowance * self.opens.min(MAX_ALLOWANCES * self.periods);
        let limit = AMPLIFICATION * self.received + granted;
        assert!(
            self.sent <= limit,
            "{to} is not validated: {} bytes for {} and {} of allowances",
            self.sent,
            self.received,
            granted
        );
        let asks_for_an_ack = |header: &Header| {
            header.command == Command::Push || is_control(header, ControlType::Fin)
        };
        let pushes = content.headers().filter(asks_for_an_ack);
        self.pushes.extend(pushes.map(|header| (header.conv, header.sn.0, header.ts.0)));
    }
}
