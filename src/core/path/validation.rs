//! Path validation of a migrating peer: PATH_CHALLENGE and PATH_RESPONSE (RFC 9000 8.2, 9.3).
//!
//! A datagram of a connection from a new address may be replayed by an attacker, so it proves no
//! migration. The challenge is a ping to that address, an empty PUSH with a random timestamp, which
//! any KCP implementation acknowledges; an ACK from there with that timestamp is the response. A
//! challenge is sent only in answer to a datagram, is one segment header long and leaves at most
//! once a second to each address, so it amplifies nothing. Shown by `driver/tests/migration.rs`.

use std::net::SocketAddr;

use crate::core::clock::Micros;
use crate::core::segment::{Command, Segments};
use crate::core::seq::{Sn, Ts};

/// Lifetime of a challenge, microseconds. Deviates: RFC 9000 8.2.4 recommends three PTOs, but the
/// RTT of the new path is not known yet.
const CHALLENGE_LIFETIME: u64 = 10_000_000;
/// Least time between challenges to one address, microseconds.
const MIN_CHALLENGE_INTERVAL: u64 = 1_000_000;
/// Candidate paths of one connection at a time; datagrams from further addresses are ignored.
const MAX_CANDIDATES: usize = 4;

/// A PATH_CHALLENGE to write with
/// [`Kcp::write_path_challenge`](crate::proto::Kcp::write_path_challenge).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChallenge {
    pub(crate) sn: Sn,
    pub(crate) cookie: Ts,
}

/// What a datagram from an address other than the peer's shows of that path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathValidation {
    /// Not a PATH_RESPONSE, and no challenge is due.
    Unvalidated,
    /// Not a PATH_RESPONSE: send this challenge to the address.
    Challenge(PathChallenge),
    /// The datagram is the PATH_RESPONSE: the peer is at this address.
    Validated,
}

/// A path with a challenge outstanding. Entered on the first datagram from `addr`, left after
/// [`CHALLENGE_LIFETIME`] or when a path is validated.
#[derive(Clone, Copy, Debug)]
struct CandidatePath {
    addr: SocketAddr,
    challenge: PathChallenge,
    first_sent: Micros,
    last_sent: Micros,
}

/// Candidate paths of one connection.
#[derive(Debug, Default)]
pub(crate) struct PathValidator {
    /// Empty, and without memory, until a datagram comes from another address.
    candidates: Vec<CandidatePath>,
}

impl PathValidator {
    /// Judges a datagram that came from `addr`. `new`: number and random timestamp of the
    /// challenge, if it is the first to `addr`.
    pub(crate) fn on_datagram(
        &mut self,
        now: Micros,
        addr: SocketAddr,
        datagram: &[u8],
        new: PathChallenge,
    ) -> PathValidation {
        self.candidates.retain(|path| now.since(path.first_sent) < CHALLENGE_LIFETIME);
        if let Some(path) = self.candidates.iter_mut().find(|path| path.addr == addr) {
            if path.challenge.is_answered_by(datagram) {
                return PathValidation::Validated;
            }
            if now.since(path.last_sent) < MIN_CHALLENGE_INTERVAL {
                return PathValidation::Unvalidated;
            }
            // The same cookie as before: the RTT of the path may exceed the interval.
            path.last_sent = now;
            return PathValidation::Challenge(path.challenge);
        }
        if self.candidates.len() >= MAX_CANDIDATES {
            return PathValidation::Unvalidated;
        }
        self.candidates.push(CandidatePath {
            addr,
            challenge: new,
            first_sent: now,
            last_sent: now,
        });
        PathValidation::Challenge(new)
    }

    /// The peer has migrated: challenges of other paths are void.
    pub(crate) fn clear(&mut self) {
        self.candidates.clear();
    }
}

impl PathChallenge {
    /// Whether a segment of `datagram` is the PATH_RESPONSE.
    fn is_answered_by(self, datagram: &[u8]) -> bool {
        Segments::new(datagram).any(|(header, _)| {
            (header.command, header.sn, header.ts) == (Command::Ack, self.sn, self.cookie)
        })
    }
}
