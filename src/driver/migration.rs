//! Migration: rekeys the demultiplexer and the peer table once a peer's new path is validated (RFC
//! 9000 9). Which datagrams validate a path is decided in `core/path/validation.rs`.

use std::net::SocketAddr;
use std::time::Instant;

use rand_core::Rng;

use crate::config::Migration;
use crate::core::connection::PacketType;
use crate::core::open::InitialHash;
use crate::core::path::validation::{PathChallenge, PathValidation};
use crate::core::segment::Header;
use crate::driver::Driver;
use crate::driver::packet_codec::SendExtras;
use crate::shared::conn_id::ConnId;
use crate::sys::Socket;

impl<S: Socket> Driver<S> {
    /// A whole datagram from an address without a connection of its conversation id. Returns whether
    /// it was taken for one of a connection whose peer may have migrated.
    pub(super) fn on_possible_migration(
        &mut self,
        now: Instant,
        from: SocketAddr,
        datagram: &[u8],
    ) -> bool {
        if self.config.migration == Migration::Off {
            return false;
        }
        let Ok(header) = Header::parse(datagram) else { return false };
        let Some(id) = self.demux.migratable(header.conv) else { return false };
        let cookie = self.rng.next_u32();
        let Some(conn) = self.get_mut(id) else { return false };
        match conn.validate_path(now, from, datagram, cookie) {
            PathValidation::Unvalidated => {}
            PathValidation::Challenge(challenge) => {
                self.send_path_challenge(now, id, from, challenge);
            }
            PathValidation::Validated => {
                self.migrate(now, id, from);
                self.deliver(now, id, datagram, PacketType::Regular);
            }
        }
        true
    }

    /// Sends a PATH_CHALLENGE without FEC and duplicates, since nobody is proven to be at `to`.
    fn send_path_challenge(
        &mut self,
        now: Instant,
        id: ConnId,
        to: SocketAddr,
        challenge: PathChallenge,
    ) {
        if !self.may_answer() {
            return;
        }
        let extra = SendExtras { fec: None, copies: 0, may_send_extras: false };
        let Some(conn) = self.conns.get_mut(id.slot as usize) else { return };
        let write = |tail: &mut Vec<u8>| {
            conn.write_path_challenge(challenge, tail);
            true
        };
        self.codec.encode(now, &mut self.tx, to, extra, write);
        self.budget = self.budget.saturating_sub(1);
    }

    /// Whether an initial segment is a duplicate of the one that opened a connection which may have
    /// migrated since.
    pub(super) fn is_initial_of_migrated(&mut self, datagram: &[u8], opening: InitialHash) -> bool {
        let Ok(header) = Header::parse(datagram) else { return false };
        let known = self.demux.migratable(header.conv).and_then(|id| self.get_mut(id));
        known.is_some_and(|conn| conn.was_opened_by(opening))
    }

    /// Moves a connection to the validated address `to`.
    fn migrate(&mut self, now: Instant, id: ConnId, to: SocketAddr) {
        let Some(conn) = self.get_mut(id) else { return };
        let (old, conv) = conn.key();
        conn.migrate(now, to);
        if !self.demux.rekey((old, conv), (to, conv), id) {
            // Another connection has taken this address and conversation id meanwhile.
            if let Some(conn) = self.get_mut(id) {
                conn.migrate(now, old);
            }
            return;
        }
        self.peers.leave(old, id.slot);
        self.peers.join(to, id.slot);
        self.peers.validate(to);
        self.stats.migrations += 1;
        self.schedule(id);
    }
}
