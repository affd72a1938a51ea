//! Migration of a connection to another address of the peer, or of this side (RFC 9000 9).

use std::net::SocketAddr;
use std::time::Instant;

use crate::core::path::validation::{PathChallenge, PathValidation};
use crate::core::segment::Header;
use crate::driver::connection::Conn;

impl Conn {
    /// Path validation (RFC 9000 8.2): a datagram with this conversation id came from `addr`,
    /// which is not the peer's address. `cookie`: random, for a PATH_CHALLENGE.
    pub(in super::super) fn validate_path(
        &mut self,
        now: Instant,
        addr: SocketAddr,
        datagram: &[u8],
        cookie: u32,
    ) -> PathValidation {
        self.kcp.validate_path(now, addr, datagram, cookie)
    }

    /// A PATH_CHALLENGE.
    pub(in super::super) fn path_challenge(&mut self, challenge: PathChallenge) -> Header {
        self.kcp.path_challenge(challenge)
    }

    /// The endpoint was rebound to another address: a ping lets the peer migrate (RFC 9000 9.2).
    pub(in super::super) fn on_rebound(&mut self, now: Instant) {
        if self.kcp.has_started() {
            self.kcp.ping(now);
        }
    }

    /// Changes the peer's address to `addr`, which is validated.
    pub(in super::super) fn migrate(&mut self, now: Instant, addr: SocketAddr) {
        self.peer = addr;
        self.kcp.on_path_validated(now);
        self.span.migrated(addr);
        self.shared.set_peer(addr);
    }
}
