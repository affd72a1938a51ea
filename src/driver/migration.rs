//! Migration: changes the path of a connection, in the demultiplexer and the peer table too, once a peer's
//! new path is validated (RFC 9000 9), and the local IP of connections on a socket that is bound to all
//! addresses. `core/path/validation.rs` decides which datagrams validate a path.

use std::net::SocketAddr;
use std::time::Instant;

use rand_core::Rng;

use crate::config::Migration;
use crate::core::connection::PacketType;
use crate::core::open::InitialHash;
use crate::core::path::validation::PathValidation;
use crate::core::segment::Header;
use crate::driver::Driver;
use crate::driver::admission::{Refusal, capable_ping};
use crate::driver::connection::{ApparentMigration, Key};
use crate::shared::notifier::ConnId;
use crate::sys::Socket;
use crate::util::path::Path;

impl<S: Socket> Driver<S> {
    /// Handles a datagram of valid segments from an address that has no connection with its conversation id.
    /// Returns true if a connection with this id may migrate: its peer may be at `from` now.
    pub(super) fn on_possible_migration(
        &mut self,
        now: Instant,
        from: SocketAddr,
        datagram: &[u8],
    ) -> bool {
        if self.config.allowed_migration() == Migration::Off {
            return false;
        }
        let Ok(header) = Header::parse(datagram) else { return false };
        let key = (from, header.conv);
        let Some(id) = self.routing.demux.migratable(header.conv) else { return false };
        let waiting = self.routing.get(id).filter(|conn| conn.awaits_first_data());
        if let Some(conn) = waiting.filter(|_| capable_ping(datagram).is_some()) {
            let alive_at = now.checked_sub(conn.kcp.time_since_alive(now)).unwrap_or(now);
            self.routing.demux.on_other_pinged(now, key, alive_at);
        }
        if self.routing.demux.is_opener(now, &key) {
            return false;
        }
        let path = Path { peer: from, local: self.input.local_ip };
        let cookie = self.rng.next_u32();
        let Some(conn) = self.routing.get_mut(id) else { return false };
        match conn.validate_path(now, path, datagram, cookie) {
            PathValidation::Unvalidated => {}
            PathValidation::Challenge(challenge) => {
                self.output.send_at_once(now, path, || Some(conn.kcp.path_challenge(challenge)));
            }
            PathValidation::Validated => {
                let has_several = conn.has_several_paths();
                let names_first = conn.has_announced_first(now, path);
                let (old, limits) = (conn.peer().ip(), &self.config.limits);
                if !self.admission.may_move(old, from.ip(), limits) {
                    Refusal::MaxPerSource.count(&mut self.stats);
                } else if let Some(replaced) = conn.add_peer_path(now, path) {
                    self.on_path_added(id, path, replaced);
                } else if !has_several || names_first {
                    self.migrate(now, id, path);
                }
                // Else a NAT has changed the address of one of several paths: its next ping says of which.
                self.deliver(now, id, datagram, PacketType::Regular);
            }
        }
        true
    }

    /// A connection has a further path, in place of the one under `replaced`.
    fn on_path_added(&mut self, id: ConnId, path: Path, replaced: Option<Key>) {
        let demux = &mut self.routing.demux;
        if let Some(key) = replaced {
            demux.remove_further(key, id);
        }
        if let Some(conn) = self.routing.conns.get(id.slot as usize) {
            demux.insert_further((path.peer, conn.key().1), id);
        }
        self.routing.schedule(id);
    }

    /// Whether `initial` is a retransmission of the initial segment of a connection that may migrate: its
    /// peer has another address since.
    pub(super) fn is_initial_of_migrated(&self, datagram: &[u8], initial: InitialHash) -> bool {
        if self.config.allowed_migration() == Migration::Off {
            return false;
        }
        let Ok(header) = Header::parse(datagram) else { return false };
        let routing = &self.routing;
        let conn = routing.demux.migratable(header.conv).and_then(|id| routing.get(id));
        conn.is_some_and(|conn| conn.was_opened_by(initial))
    }

    /// A connection has taken a datagram that came to another IP of this host than its local IP.
    pub(super) fn on_apparent_migration(
        &mut self,
        now: Instant,
        id: ConnId,
        response: ApparentMigration,
        datagram: &[u8],
    ) {
        let (local, cookie) = (self.input.local_ip, self.rng.next_u32());
        let Some(conn) = self.routing.get_mut(id) else { return };
        let challenge = conn.on_apparent_migration(now, local, response, datagram, cookie);
        if let Some(challenge) = challenge {
            let path = Path { peer: conn.peer(), local };
            self.output.send_at_once(now, path, || Some(conn.kcp.path_challenge(challenge)));
        } else if conn.path().local == local {
            self.routing.share_path(id);
        }
    }

    /// Changes the path of a connection to `path`, which is validated, with another address of the peer.
    fn migrate(&mut self, now: Instant, id: ConnId, path: Path) {
        let to = path.peer;
        let Some(conn) = self.routing.get(id) else { return };
        let (old, conv) = conn.key();
        let is_opened_by_peer = conn.is_opened_by_peer();
        // The address may have another connection with this conversation id.
        if !self.routing.demux.rekey((old, conv), (to, conv), id) {
            return;
        }
        if let Some(conn) = self.routing.get_mut(id) {
            conn.migrate(now, path);
        }
        self.routing.peers.leave(old, id.slot, &mut self.memory);
        self.routing.peers.join(to, id.slot);
        if is_opened_by_peer {
            self.admission.sources.leave(old.ip());
            self.admission.sources.enter(to.ip());
        }
        self.routing.peers.validate(to, &mut self.memory);
        self.routing.share_path(id);
        self.stats.connections.migrations += 1;
        self.routing.schedule(id);
    }
}
