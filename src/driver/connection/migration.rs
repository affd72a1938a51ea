//! Migration of a connection to another address of the peer, or of this side (RFC 9000 9).

use std::net::SocketAddr;
use std::time::Instant;

use crate::core::path::validation::{PathChallenge, PathValidation};
use crate::driver::connection::Conn;

impl Conn {
    /// A datagram of this connection came from `addr`, which is not the peer's address. `cookie` is
    /// random.
    pub(in super::super) fn validate_path(
        &mut self,
        now: Instant,
        addr: SocketAddr,
        datagram: &[u8],
        cookie: u32,
    ) -> PathValidation {
        self.kcp.validate_path(now, addr, datagram, cookie)
    }

    /// Appends a PATH_CHALLENGE.
    pub(in super::super) fn write_path_challenge(
        &mut self,
        challenge: PathChallenge,
        out: &mut Vec<u8>,
    ) {
        self.kcp.write_path_challenge(challenge, out);
    }

    /// This side has another address (a rebind): a ping lets the peer see it, and migrate.
    pub(in super::super) fn on_rebound(&mut self, now: Instant) {
        if self.kcp.has_started() {
            self.kcp.ping(now);
        }
    }

    /// From now on the peer has this address.
    pub(in super::super) fn migrate(&mut self, now: Instant, addr: SocketAddr) {
        self.peer = addr;
        self.kcp.on_path_validated(now);
        self.span.migrated(addr);
        self.shared.set_peer(addr);
    }
}
