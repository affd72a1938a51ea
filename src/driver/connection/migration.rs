//! Migration of a connection to another address of the peer, or of this side (RFC 9000 9).

use std::time::Instant;

use crate::core::path::validation::{PathChallenge, PathValidation};
use crate::core::segment::Header;
use crate::driver::connection::Conn;
use crate::util::path::{LocalIp, Path};

/// How a connection takes an IP of this host that a datagram of its peer came to, and that is not
/// its local IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum OtherLocalIp {
    /// It becomes the local IP: the peer is not validated, so that the first datagram may be forged,
    /// or there is no local IP and the datagram is no replay.
    Take,
    /// The local IP stays until the path with the other one is validated (RFC 9000 8.2): an observer can
    /// be the first to bring a datagram to another address of this host. `is_new`: the datagram is no
    /// replay.
    Validate { is_new: bool },
}

impl Conn {
    /// Path validation (RFC 9000 8.2): a datagram with this conversation id came on `path`, which is
    /// from another address than the peer's. `cookie`: random, for a PATH_CHALLENGE.
    pub(in super::super) fn validate_path(
        &mut self,
        now: Instant,
        path: Path,
        datagram: &[u8],
        cookie: u32,
    ) -> PathValidation {
        let is_new = self.kcp.has_something_new(datagram);
        self.kcp.validate_other_path(now, path, datagram, is_new, cookie)
    }

    /// A PATH_CHALLENGE.
    pub(in super::super) fn path_challenge(&mut self, challenge: PathChallenge) -> Header {
        self.kcp.path_challenge(challenge)
    }

    /// How to take the IP `local` of this host, which a datagram came to: `None` if that is the local IP
    /// already, or the peer has not opened the connection: then the system chooses one.
    /// To be asked before the connection takes the datagram.
    #[inline]
    pub(in super::super) fn judge_local_ip(
        &self,
        local: LocalIp,
        datagram: &[u8],
    ) -> Option<OtherLocalIp> {
        if local == self.path.local || local == LocalIp::ANY || !self.is_opened_by_peer() {
            return None;
        }
        if !self.is_validated() {
            return Some(OtherLocalIp::Take);
        }
        let is_new = self.kcp.has_something_new(datagram);
        Some(if is_new && self.path.local == LocalIp::ANY {
            OtherLocalIp::Take
        } else {
            OtherLocalIp::Validate { is_new }
        })
    }

    /// The connection has taken a datagram that came to `local`, which is not the local IP. Returns
    /// the PATH_CHALLENGE that is to leave from there.
    pub(in super::super) fn on_other_local_ip(
        &mut self,
        now: Instant,
        (local, judged): (LocalIp, OtherLocalIp),
        datagram: &[u8],
        cookie: u32,
    ) -> Option<PathChallenge> {
        let OtherLocalIp::Validate { is_new } = judged else {
            self.set_local_ip(local);
            return None;
        };
        let path = Path { local, ..self.path };
        match self.kcp.validate_other_path(now, path, datagram, is_new, cookie) {
            PathValidation::Unvalidated => None,
            PathValidation::Challenge(challenge) => Some(challenge),
            PathValidation::Validated => {
                self.kcp.on_path_validated(now);
                self.set_local_ip(local);
                None
            }
        }
    }

    /// The path leaves from `local`.
    pub(in super::super) fn set_local_ip(&mut self, local: LocalIp) {
        if self.path.local != local {
            self.kcp.leave_path();
        }
        self.path.local = local;
        self.shared.set_path(self.path);
    }

    /// Shares the model of the path with `other`, which has the same path.
    pub(in super::super) fn share_path(&mut self, other: &mut Self) {
        self.kcp.share_path(&other.kcp.shared_path());
    }

    /// The endpoint was rebound to another address: a ping lets the peer migrate (RFC 9000 9.2).
    pub(in super::super) fn on_rebound(&mut self, now: Instant) {
        self.set_local_ip(LocalIp::ANY);
        if self.kcp.has_started() {
            self.kcp.ping(now);
        }
    }

    /// Changes the path to `path`, which is validated.
    pub(in super::super) fn migrate(&mut self, now: Instant, path: Path) {
        self.path = path;
        self.kcp.leave_path();
        self.kcp.on_path_validated(now);
        self.span.migrated(path.peer);
        self.shared.set_path(path);
    }
}
