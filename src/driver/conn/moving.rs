//! A peer that may have another address by now.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Conn;
use crate::core::segment::{Command, Segments};
use crate::core::seq::{Sn, Ts};

/// How long the question to a new address is worth an answer, and the least time between two.
const LIFE: Duration = Duration::from_secs(10);
const GAP: Duration = Duration::from_secs(1);

/// An address that something of this conversation came from, and what it is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    addr: SocketAddr,
    sn: Sn,
    cookie: Ts,
    asked: Instant,
}

/// What to do about a datagram from another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Moved {
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
    ) -> Moved {
        if let Some(asked) = self.candidate.filter(|candidate| candidate.is_fresh(now)) {
            let answers = Segments::new(datagram).any(|(header, _)| {
                (header.command, header.sn, header.ts) == (Command::Ack, asked.sn, asked.cookie)
            });
            if asked.addr == addr && answers {
                return Moved::Yes;
            }
            if now < asked.asked + GAP {
                return Moved::No;
            }
        }
        let (sn, cookie) = (self.kcp.quiet_sn(), Ts(cookie));
        self.candidate = Some(Candidate { addr, sn, cookie, asked: now });
        Moved::Ask(sn, cookie)
    }

    /// The probe that asks.
    pub(in super::super) fn write_question(&mut self, sn: Sn, cookie: Ts, out: &mut Vec<u8>) {
        self.kcp.emit_probe(sn, cookie, out);
    }

    /// From now on the peer has this address.
    pub(in super::super) fn follow(&mut self, addr: SocketAddr) {
        (self.peer, self.candidate) = (addr, None);
        self.span.moved(addr);
        self.shared.set_peer(addr);
    }
}

impl Candidate {
    fn is_fresh(&self, now: Instant) -> bool {
        now < self.asked + LIFE
    }
}
