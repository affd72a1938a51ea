//! Path validation for migrating peers and changed local IPs: PATH_CHALLENGE and PATH_RESPONSE (RFC
//! 9000 8.2, 9.3).
//!
//! A datagram on a new path may be a replay, so it proves no migration. The challenge is a ping on
//! that path, an empty PUSH with a random timestamp, which any KCP implementation acknowledges; an
//! ACK on that path with that timestamp is the response. Its `una` has to fit this connection: the
//! peer of another one with the same conversation id and key answers too. A challenge is sent only in answer to a
//! datagram, is one segment header long, and is sent at most once a second per path, so it does not
//! amplify. Tests: `driver/tests/migration.rs`.

use std::ops::Range;

use crate::core::clock::Micros;
use crate::core::keepalive::PingId;
use crate::core::path::set::{MAX_PATHS, PathId};
use crate::core::segment::{Command, ControlType, Header, Segments};
use crate::core::seq::Sn;
use crate::util::path::Path;

/// Lifetime of a challenge, microseconds. Deviates: RFC 9000 8.2.4 recommends three PTOs, but the
/// RTT of the new path is unknown.
const CHALLENGE_LIFETIME: u64 = 10_000_000;
/// Shortest interval of challenges on one path, microseconds.
const MIN_CHALLENGE_INTERVAL: u64 = 1_000_000;
/// Most candidate paths of one connection. A datagram with something new on a further path replaces
/// the candidate without such a datagram for the longest time, so replays do not block a migration.
const MAX_CANDIDATES: usize = 4;

/// A PATH_CHALLENGE for [`Kcp::write_path_challenge`](crate::proto::Kcp::write_path_challenge);
/// example: [`PathValidation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChallenge(pub(crate) PingId);

/// Outcome of path validation for a datagram from an address other than the peer's.
///
/// ```
/// use std::net::SocketAddr;
/// use std::time::Instant;
///
/// use kcpx::proto::{Kcp, PacketType, PathValidation};
///
/// /// A datagram of the connection came from `addr`, where its peer was not before. Returns what to
/// /// send there, and whether the peer is there now.
/// fn on_moved(
///     kcp: &mut Kcp,
///     now: Instant,
///     addr: SocketAddr,
///     datagram: &[u8],
///     cookie: u32,
/// ) -> (Vec<u8>, bool) {
///     let mut out = Vec::new();
///     match kcp.validate_path(now, addr, datagram, cookie) {
///         PathValidation::Challenge(challenge) => {
///             kcp.write_path_challenge(challenge, &mut out);
///             (out, false)
///         }
///         PathValidation::Validated => {
///             kcp.on_path_validated(now);
///             let _ = kcp.input(now, datagram, PacketType::Regular);
///             (out, true)
///         }
///         _ => (out, false),
///     }
/// }
/// ```
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

/// A path with a challenge outstanding. Entered on the first datagram on `path`; left after
/// [`CHALLENGE_LIFETIME`] or when a path is validated.
#[derive(Clone, Copy, Debug)]
struct CandidatePath {
    path: Path,
    challenge: PathChallenge,
    /// SND.UNA at the first challenge: the peer has acknowledged that much.
    una: Sn,
    first_sent: Micros,
    last_sent: Micros,
    /// When the latest datagram with something new arrived; `None` if none did.
    last_new: Option<Micros>,
    /// The number that the peer gives to the path, if it is a further one.
    announced: Option<PathId>,
}

/// Candidate paths of one connection.
#[derive(Debug, Default)]
pub(crate) struct PathValidator {
    candidates: Vec<CandidatePath>,
}

impl PathValidator {
    /// Checks a datagram that came on `path`. `is_new`: it has new data or acknowledges something
    /// new, so it is no replay. `challenge`: the challenge to use if it is the first on `path`.
    /// `sent`: SND.UNA and SND.NXT.
    pub(crate) fn on_datagram(
        &mut self,
        now: Micros,
        path: Path,
        datagram: &[u8],
        is_new: bool,
        challenge: PathChallenge,
        sent: Range<Sn>,
    ) -> PathValidation {
        let last_new = is_new.then_some(now);
        let announced = announced_path(datagram);
        self.candidates.retain(|known| now.since(known.first_sent) < CHALLENGE_LIFETIME);
        if let Some(known) = self.candidates.iter_mut().find(|known| known.path == path) {
            known.announced = announced.or(known.announced);
            if known.challenge.is_answered_by(datagram, known.una..sent.end) {
                return PathValidation::Validated;
            }
            known.last_new = last_new.or(known.last_new);
            if now.since(known.last_sent) < MIN_CHALLENGE_INTERVAL {
                return PathValidation::Unvalidated;
            }
            // The same cookie: the RTT of the path may exceed the interval.
            known.last_sent = now;
            return PathValidation::Challenge(known.challenge);
        }
        let (first_sent, last_sent) = (now, now);
        let una = sent.start;
        let candidate =
            CandidatePath { path, challenge, una, first_sent, last_sent, last_new, announced };
        if self.candidates.len() < MAX_CANDIDATES {
            self.candidates.push(candidate);
        } else if let Some(stalest) = self.candidates.iter_mut().min_by_key(|known| known.last_new)
            && is_new
        {
            *stalest = candidate;
        } else {
            return PathValidation::Unvalidated;
        }
        PathValidation::Challenge(challenge)
    }

    /// Whether `ping` is an outstanding challenge.
    pub(crate) fn has_sent(&self, ping: PingId) -> bool {
        self.candidates.iter().any(|known| known.challenge.0 == ping)
    }

    /// The number that the peer gives to a path that is validated now, and the microseconds since its challenge,
    /// if that was sent once. `None` if it did not announce the path.
    pub(crate) fn announced(&self, now: Micros, path: Path) -> Option<(PathId, Option<u64>)> {
        let known = self.candidates.iter().find(|known| known.path == path)?;
        let is_once = known.first_sent == known.last_sent;
        Some((known.announced?, is_once.then(|| now.since(known.first_sent))))
    }
}

impl PathChallenge {
    /// Whether a segment of `datagram` is the PATH_RESPONSE, with a `una` within `sent`.
    fn is_answered_by(self, datagram: &[u8], sent: Range<Sn>) -> bool {
        Segments::new(datagram).any(|(header, _)| {
            header.command == Command::Ack
                && PingId::named_by(&header) == self.0
                && header.una.since(sent.start) >= 0
                && header.una.since(sent.end) <= 0
        })
    }
}

/// The path number that a datagram announces, if any.
fn announced_path(datagram: &[u8]) -> Option<PathId> {
    let is_path = |header: &Header| {
        header.command == Command::Control
            && ControlType::from_frg(header.frg) == Some(ControlType::Path)
    };
    let number = Segments::new(datagram).map(|(header, _)| header).find(is_path)?.sn.0;
    u8::try_from(number).ok().filter(|number| *number < MAX_PATHS).map(PathId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::seq::Ts;

    fn path(host: u8) -> Path {
        Path::to(([192, 0, 2, host], 5_000).into())
    }

    fn judge(paths: &mut PathValidator, now: u64, host: u8, is_new: bool) -> bool {
        let challenge = PathChallenge(PingId { sn: Sn(7), cookie: Ts(u32::from(host)) });
        let verdict =
            paths.on_datagram(Micros(now), path(host), &[], is_new, challenge, Sn(0)..Sn(0));
        verdict == PathValidation::Challenge(challenge)
    }

    #[test]
    fn recorded_datagrams_from_many_addresses_keep_no_path_from_being_challenged() {
        let mut paths = PathValidator::default();
        for host in 1..=4 {
            assert!(judge(&mut paths, 0, host, false));
        }
        assert!(!judge(&mut paths, 1, 5, false), "the candidates are complete");
        assert!(judge(&mut paths, 2, 9, true), "the peer, with something new");
        // Replays do not replace it, and the candidate longest without something new is replaced
        // first.
        assert!((10..20).all(|host| !judge(&mut paths, 3, host, false)));
        for host in 10..13 {
            assert!(judge(&mut paths, 4, host, true));
        }
        assert!(paths.candidates.iter().any(|known| known.path == path(9)));
        assert!(judge(&mut paths, 5, 13, true));
        assert_eq!(paths.candidates.len(), MAX_CANDIDATES);
        assert!(paths.candidates.iter().all(|known| known.path != path(9)));
    }
}
