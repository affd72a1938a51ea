//! One [`Kcp`] against a scripted peer: the test writes each datagram in and reads each datagram out.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::sim::CONV;
use super::sim_plan::{MILLIS, Plan};
use crate::config::KcpConfig;
use crate::core::connection::{Kcp, PacketType, Seed};
use crate::core::segment::{self, Command, Header, InputError, Segments};
use crate::core::seq::{Sn, Ts};

/// A segment out: header and payload.
pub(super) type Sent = (Header, Vec<u8>);

/// The connection under test, and the state that the scripted peer advertises.
pub(super) struct ScriptedPeer {
    pub(super) kcp: Kcp,
    origin: Instant,
    /// Virtual time, microseconds.
    pub(super) now: u64,
    /// Datagrams and bytes in each direction.
    pub(super) received: (u64, u64),
    pub(super) sent: (u64, u64),
    /// `una` and `wnd` of the peer's next segments.
    pub(super) una: Sn,
    pub(super) wnd: u16,
}

/// The defaults without keepalive, idle timeout and dead-peer timeout.
pub(super) fn config() -> KcpConfig {
    Plan::plain("").sides[0].config.clone()
}

pub(super) fn header(command: Command, sn: u32, ts: u32) -> Header {
    let (sn, ts) = (Sn(sn), Ts(ts));
    Header { conv: CONV, command, frg: 0, wnd: 128, ts, sn, una: Sn(0), len: 0 }
}

/// A datagram of these segments.
pub(super) fn datagram(segments: &[(Header, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (header, payload) in segments {
        Header { len: payload.len() as u32, ..*header }.emit(&mut bytes);
        bytes.extend_from_slice(payload);
    }
    bytes
}

impl ScriptedPeer {
    pub(super) fn new(config: &KcpConfig) -> Self {
        Self::starting_at(config, super::origin())
    }

    /// Virtual time counts from `origin`.
    pub(super) fn starting_at(config: &KcpConfig, origin: Instant) -> Self {
        let kcp = Kcp::with_config(CONV, config, origin, Seed::default()).unwrap();
        let (received, sent) = ((0, 0), (0, 0));
        Self { kcp, origin, now: 0, received, sent, una: Sn(0), wnd: 128 }
    }

    pub(super) fn instant(&self) -> Instant {
        self.origin + Duration::from_micros(self.now)
    }

    /// When the next timer expires, microseconds.
    pub(super) fn timeout(&self) -> Option<u64> {
        let at = self.kcp.poll_timeout()?;
        Some(at.saturating_duration_since(self.origin).as_micros() as u64)
    }

    pub(super) fn write(&mut self, data: impl Into<Bytes>) {
        let now = self.instant();
        self.kcp.send(now, data.into());
    }

    pub(super) fn input(&mut self, datagram: &[u8]) -> Result<(), InputError> {
        self.received = (self.received.0 + 1, self.received.1 + datagram.len() as u64);
        let result = self.kcp.input(self.instant(), datagram, PacketType::Regular);
        self.kcp.check_invariants();
        result
    }

    /// Delivers one segment of the peer, with its current `una` and `wnd`.
    pub(super) fn give(&mut self, header: Header, payload: &[u8]) {
        let header = Header { una: self.una, wnd: self.wnd, ..header };
        self.input(&datagram(&[(header, payload)])).unwrap();
    }

    pub(super) fn push(&mut self, sn: u32, payload: &[u8]) {
        self.give(header(Command::Push, sn, (self.now / MILLIS) as u32), payload);
    }

    pub(super) fn ack(&mut self, sn: u32, ts: u32) {
        self.give(header(Command::Ack, sn, ts), b"");
    }

    /// Calls `handle_timeout` if a timer has expired.
    pub(super) fn expire(&mut self) {
        if self.timeout().is_some_and(|at| at <= self.now) {
            self.kcp.handle_timeout(self.instant());
        }
    }

    /// All segments that leave now.
    pub(super) fn out(&mut self) -> Vec<Sent> {
        self.expire();
        let now = self.instant();
        let mut all = Vec::new();
        let mut bytes = Vec::new();
        while let Some(sent) = self.kcp.poll_transmit(now, &mut bytes) {
            self.sent = (self.sent.0 + 1, self.sent.1 + sent.len as u64);
            segment::validate(&bytes, CONV).unwrap();
            all.extend(Segments::new(&bytes).map(|(header, payload)| (header, payload.to_vec())));
            bytes.clear();
        }
        self.kcp.check_invariants();
        all
    }

    /// Runs all timers until `until`, microseconds, and returns the sent segments with their times.
    pub(super) fn run(&mut self, until: u64) -> Vec<(u64, Sent)> {
        let mut all = Vec::new();
        loop {
            let now = self.now;
            all.extend(self.out().into_iter().map(|sent| (now, sent)));
            match self.timeout().filter(|&at| at <= until) {
                Some(at) => {
                    assert!(at > self.now, "a timer at {at} us would spin");
                    self.now = at;
                }
                None => break,
            }
        }
        self.now = until;
        all
    }

    pub(super) fn read_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(chunk) = self.kcp.recv() {
            all.extend_from_slice(&chunk);
        }
        all
    }
}

pub(super) fn commands(sent: &[Sent]) -> Vec<Command> {
    sent.iter().map(|(header, _)| header.command).collect()
}
