//! Packet scripts in the style of packetdrill: one protocol rule at a time.
//!
//! A script drives one [`Kcp`] under a virtual clock and plays its peer. Every sent segment must be
//! expected at its exact time; anything else panics with the script's log.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::config::{KcpConfig, KeepaliveInterval};
use crate::core::connection::{Kcp, PacketType, Seed};
use crate::core::segment::{self, Command, ControlType, HEADER_LEN, Header, Segments};
use crate::core::seq::{Sn, Ts};
use crate::error::ConnectionError;

/// The conversation id of every script.
pub(crate) const CONV: u32 = 0x1122_3344;
/// Receive window in segments that the scripted peer advertises by default.
pub(crate) const PEER_WINDOW: u16 = 128;

/// `n` milliseconds.
#[must_use]
pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The default configuration without keepalive, idle and dead-peer timers.
#[must_use]
pub(crate) fn quiet() -> KcpConfig {
    KcpConfig {
        keepalive: KeepaliveInterval::Never,
        idle_timeout: None,
        dead_peer_timeout: None,
        ..KcpConfig::default()
    }
}

/// A received segment, or a pattern for an expected one: unset fields match anything.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    command: Command,
    frg: Option<u8>,
    wnd: Option<u16>,
    ts: Option<u32>,
    sn: Option<u32>,
    una: Option<u32>,
    payload: Option<Vec<u8>>,
    len: Option<usize>,
}

fn segment(command: Command, sn: Option<u32>) -> Segment {
    Segment { command, frg: None, wnd: None, ts: None, sn, una: None, payload: None, len: None }
}

/// A data segment (PUSH).
#[must_use]
pub(crate) fn push(sn: u32, payload: &[u8]) -> Segment {
    Segment { payload: Some(payload.to_vec()), ..segment(Command::Push, Some(sn)) }
}

/// An acknowledgement of `sn`. When received without [`Segment::ts`], it echoes the timestamp of the
/// latest transmission of `sn`, like a receiver.
#[must_use]
pub(crate) fn ack(sn: u32) -> Segment {
    segment(Command::Ack, Some(sn))
}

/// A ping: a PUSH without payload whose number is far behind the receive window.
#[must_use]
pub(crate) fn ping() -> Segment {
    Segment { len: Some(0), ..segment(Command::Push, None) }
}

/// An MTU probe of `size` bytes: a ping padded with zeros.
#[must_use]
pub(crate) fn mtu_probe(size: usize) -> Segment {
    let len = size - HEADER_LEN;
    Segment { payload: Some(vec![0; len]), ..segment(Command::Push, None) }
}

/// A window probe (WASK).
#[must_use]
pub(crate) fn window_probe() -> Segment {
    segment(Command::WindowProbe, None)
}

/// A window update (WINS).
#[must_use]
pub(crate) fn window_update() -> Segment {
    segment(Command::WindowUpdate, None)
}

fn control(kind: ControlType) -> Segment {
    segment(Command::Control, None).frg(kind as u8)
}

/// FIN: the stream ends before `sn`.
#[must_use]
pub(crate) fn fin(sn: u32) -> Segment {
    control(ControlType::Fin).sn(sn)
}

/// FIN-ACK.
#[must_use]
pub(crate) fn fin_ack(sn: u32) -> Segment {
    control(ControlType::FinAck).sn(sn)
}

/// RST.
#[must_use]
pub(crate) fn rst(sn: u32) -> Segment {
    control(ControlType::Reset).sn(sn)
}

/// RST-ACK.
#[must_use]
pub(crate) fn rst_ack(sn: u32) -> Segment {
    control(ControlType::ResetAck).sn(sn)
}

impl Segment {
    #[must_use]
    pub(crate) fn frg(self, frg: u8) -> Self {
        Self { frg: Some(frg), ..self }
    }

    #[must_use]
    pub(crate) fn wnd(self, wnd: u16) -> Self {
        Self { wnd: Some(wnd), ..self }
    }

    #[must_use]
    pub(crate) fn ts(self, ts: u32) -> Self {
        Self { ts: Some(ts), ..self }
    }

    #[must_use]
    pub(crate) fn sn(self, sn: u32) -> Self {
        Self { sn: Some(sn), ..self }
    }

    #[must_use]
    pub(crate) fn una(self, una: u32) -> Self {
        Self { una: Some(una), ..self }
    }

    fn matches(&self, header: &Header, payload: &[u8]) -> bool {
        fn same<T: PartialEq>(want: Option<T>, is: T) -> bool {
            want.is_none_or(|want| want == is)
        }
        self.command == header.command
            && same(self.frg, header.frg)
            && same(self.wnd, header.wnd)
            && same(self.ts, header.ts.0)
            && same(self.sn, header.sn.0)
            && same(self.una, header.una.0)
            && same(self.len, payload.len())
            && self.payload.as_deref().is_none_or(|want| want == payload)
    }
}

/// A connection with a scripted peer. See the [module](self).
#[derive(Debug)]
pub(crate) struct Script {
    kcp: Kcp,
    start: Instant,
    now: Duration,
    /// Sent segments that were not expected yet.
    sent: VecDeque<(Header, Vec<u8>)>,
    /// Timestamp of the latest transmission of each number.
    stamps: HashMap<u32, u32>,
    /// The last segment that matched.
    last: Option<Header>,
    log: String,
}

/// Begins a script at time zero.
///
/// # Panics
///
/// When the configuration is invalid.
#[must_use]
pub(crate) fn script(config: &KcpConfig) -> Script {
    let start = Instant::now();
    let kcp =
        Kcp::with_config(CONV, config, start, Seed::default()).expect("a valid configuration");
    Script {
        kcp,
        start,
        now: Duration::ZERO,
        sent: VecDeque::new(),
        stamps: HashMap::new(),
        last: None,
        log: String::new(),
    }
}

impl Script {
    /// Time passes until `at`, counted from the start. Nothing may be sent before it.
    #[must_use]
    #[track_caller]
    pub(crate) fn at(mut self, at: Duration) -> Self {
        assert!(at >= self.now, "time runs backwards\n{}", self.log);
        if at > self.now {
            self = self.expect_none();
        }
        while let Some(due) = self.timeout().filter(|due| *due < at) {
            assert!(due > self.now, "a timer at {due:?} does nothing\n{}", self.log);
            self.now = due;
            self.run();
            self = self.expect_none();
        }
        self.now = at;
        self.run();
        self
    }

    /// The application writes `data`, which must fit the send capacity.
    #[must_use]
    pub(crate) fn write(mut self, data: &[u8]) -> Self {
        assert!(data.len() <= self.kcp.send_capacity(), "no capacity\n{}", self.log);
        self.kcp.send(self.instant(), Bytes::copy_from_slice(data));
        self.note(format_args!("write {} bytes", data.len()));
        self.run();
        self
    }

    /// The application reads everything; it must equal `data`.
    #[must_use]
    #[track_caller]
    pub(crate) fn read(mut self, data: &[u8]) -> Self {
        let mut all = Vec::new();
        while let Some(chunk) = self.kcp.recv() {
            all.extend_from_slice(&chunk);
        }
        assert!(all == data, "read {} bytes, not {}\n{}", all.len(), data.len(), self.log);
        self.note(format_args!("read {} bytes", data.len()));
        self.run();
        self
    }

    /// Any other action of the application or the endpoint.
    #[must_use]
    pub(crate) fn with(mut self, act: impl FnOnce(&mut Kcp, Instant)) -> Self {
        let now = self.instant();
        act(&mut self.kcp, now);
        self.run();
        self
    }

    /// A datagram of one segment arrives.
    #[must_use]
    pub(crate) fn recv(self, segment: Segment) -> Self {
        self.recv_datagram(&[segment])
    }

    /// A datagram of several segments arrives.
    #[must_use]
    pub(crate) fn recv_datagram(mut self, segments: &[Segment]) -> Self {
        let mut datagram = Vec::new();
        for segment in segments {
            let payload = segment.payload.clone().unwrap_or_default();
            let sn = segment.sn.unwrap_or(0);
            let echo = self.stamps.get(&sn).filter(|_| segment.command == Command::Ack);
            let clock = self.now.as_millis() as u32;
            let header = Header {
                conv: CONV,
                command: segment.command,
                frg: segment.frg.unwrap_or(0),
                wnd: segment.wnd.unwrap_or(PEER_WINDOW),
                ts: Ts(segment.ts.or_else(|| echo.copied()).unwrap_or(clock)),
                sn: Sn(sn),
                una: Sn(segment.una.unwrap_or(0)),
                len: payload.len() as u32,
            };
            self.note(format_args!("<- {header:?}"));
            header.emit(&mut datagram);
            datagram.extend_from_slice(&payload);
        }
        let result = self.kcp.input(self.instant(), &datagram, PacketType::Regular);
        assert_eq!(result, Ok(()), "a datagram is dropped\n{}", self.log);
        self.run();
        self
    }

    /// The peer acknowledges the last expected segment with its number and timestamp, as it answers pings
    /// and MTU probes.
    #[must_use]
    #[track_caller]
    pub(crate) fn recv_ack_of_last(self, una: u32) -> Self {
        let last = self.last.expect("a segment was expected before");
        self.recv(ack(last.sn.0).ts(last.ts.0).una(una))
    }

    /// The next segment is sent now and matches `want`.
    #[must_use]
    #[track_caller]
    pub(crate) fn expect(mut self, want: Segment) -> Self {
        let Some((header, payload)) = self.sent.pop_front() else {
            panic!("nothing leaves at {:?}, expected {want:?}\n{}", self.now, self.log);
        };
        assert!(
            want.matches(&header, &payload),
            "at {:?}\n     {header:?} leaves,\nnot  {want:?}\n{}",
            self.now,
            self.log
        );
        self.last = Some(header);
        self
    }

    /// Nothing more is sent now.
    #[must_use]
    #[track_caller]
    pub(crate) fn expect_none(self) -> Self {
        if let Some((header, _)) = self.sent.front() {
            panic!("at {:?} leaves, unexpected: {header:?}\n{}", self.now, self.log);
        }
        self
    }

    /// The connection is closed for this reason, or is open.
    #[must_use]
    #[track_caller]
    pub(crate) fn expect_close_reason(self, reason: Option<ConnectionError>) -> Self {
        assert_eq!(self.kcp.close_reason(), reason, "{}", self.log);
        self
    }

    /// The state machine, for other assertions.
    #[must_use]
    pub(crate) fn kcp(&self) -> &Kcp {
        &self.kcp
    }

    /// Header of the last expected segment.
    #[must_use]
    pub(crate) fn last(&self) -> Header {
        self.last.expect("a segment was expected before")
    }

    fn instant(&self) -> Instant {
        self.start + self.now
    }

    fn timeout(&self) -> Option<Duration> {
        self.kcp.poll_timeout().map(|at| at.saturating_duration_since(self.start))
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        writeln!(self.log, "{:>9.3} ms  {what}", self.now.as_secs_f64() * 1e3).unwrap();
    }

    /// Runs due timers and collects what is sent.
    fn run(&mut self) {
        if self.timeout().is_some_and(|at| at <= self.now) {
            self.kcp.handle_timeout(self.instant());
        }
        let mut datagram = Vec::new();
        while self.kcp.poll_transmit(self.instant(), &mut datagram).is_some() {
            segment::validate(&datagram, CONV).unwrap();
            for (header, payload) in Segments::new(&datagram) {
                self.note(format_args!("-> {header:?}"));
                if header.command == Command::Push {
                    self.stamps.insert(header.sn.0, header.ts.0);
                }
                self.sent.push_back((header, payload.to_vec()));
            }
            datagram.clear();
        }
        self.kcp.check_invariants();
    }
}
