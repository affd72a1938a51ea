//! A peer that may have another address by now.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::core::segment::{Command, Segments};
use crate::core::seq::{Sn, Ts};
use crate::driver::connection::Conn;

/// How long the question to a new address is worth an answer, and the least time between two.
const LIFE: Duration = Duration::from_secs(10);
const GAP: Duration = Duration::from_secs(1);
/// Addresses that are asked at a time.
const CANDIDATES: usize = 4;

/// An address that something of this conversation came from, and what it is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathChallenge {
    addr: SocketAddr,
    sn: Sn,
    cookie: Ts,
    first_asked: Instant,
    asked: Instant,
}

/// What to do about a datagram from another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum PathValidation {
    /// Whoever is there has not proved anything.
    No,
    /// Ask, with this number and stamp.
    Ask(Sn, Ts),
    /// The peer is there.
    Yes,
}

impl Conn {
    /// A datagram of this conversation came from `addr`, which is not the peer's. `cookie` is
    /// random.
    pub(in super::super) fn on_other_address(
        &mut self,
        now: Instant,
        addr: SocketAddr,
        datagram: &[u8],
        cookie: u32,
    ) -> PathValidation {
        self.candidates.retain(|candidate| candidate.is_fresh(now));
        if let Some(known) = self.candidates.iter_mut().find(|candidate| candidate.addr == addr) {
            let answers = Segments::new(datagram).any(|(header, _)| {
                (header.command, header.sn, header.ts) == (Command::Ack, known.sn, known.cookie)
            });
            if answers {
                return PathValidation::Yes;
            }
            if now < known.asked + GAP {
                return PathValidation::No;
            }
            // The same question again: a round trip may take longer than the gap.
            known.asked = now;
            return PathValidation::Ask(known.sn, known.cookie);
        }
        if self.candidates.len() >= CANDIDATES {
            return PathValidation::No;
        }
        let (sn, cookie) = (self.kcp.quiet_sn(), Ts(cookie));
        self.candidates.push(PathChallenge { addr, sn, cookie, first_asked: now, asked: now });
        PathValidation::Ask(sn, cookie)
    }

    /// The probe that asks.
    pub(in super::super) fn write_path_challenge(&mut self, sn: Sn, cookie: Ts, out: &mut Vec<u8>) {
        self.kcp.emit_probe(sn, cookie, out);
    }

    /// This side has another address: the peer is asked, and so hears from there.
    pub(in super::super) fn on_rebound(&mut self, now: Instant) {
        if self.kcp.has_started() {
            self.kcp.ping(now);
        }
    }

    /// From now on the peer has this address.
    pub(in super::super) fn migrate(&mut self, now: Instant, addr: SocketAddr) {
        self.peer = addr;
        self.candidates.clear();
        self.kcp.on_path_validated(now);
        self.span.moved(addr);
        self.shared.set_peer(addr);
    }
}

impl PathChallenge {
    fn is_fresh(&self, now: Instant) -> bool {
        now < self.first_asked + LIFE
    }
}
