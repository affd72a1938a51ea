//! Migration: rekeys the demultiplexer and the peer table once a peer's new path is validated (RFC
//! 9000 9), and the local IP of connections on a socket that is bound to all addresses. Which datagrams
//! validate a path is decided in `core/path/validation.rs`.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use rand_core::Rng;

use crate::config::Migration;
use crate::core::connection::PacketType;
use crate::core::open::InitialHash;
use crate::core::path::validation::PathValidation;
use crate::core::segment::Header;
use crate::driver::Driver;
use crate::driver::admission::Source;
use crate::driver::connection::OtherLocalIp;
use crate::shared::conn_id::ConnId;
use crate::sys::Socket;
use crate::util::path::{LocalIp, Path};

impl<S: Socket> Driver<S> {
    /// Handles a datagram of valid segments from an address that has no connection with its
    /// conversation id. Returns true if a connection with this id may migrate: its peer may be at
    /// `from` now.
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
        let (path, cookie) = (Path { peer: from, local: self.local_ip }, self.rng.next_u32());
        let Some(conn) = self.get_mut(id) else { return false };
        match conn.validate_path(now, path, datagram, cookie) {
            PathValidation::Unvalidated => {}
            PathValidation::Challenge(challenge) => {
                // A PATH_CHALLENGE (RFC 9000 8.2.1).
                self.send_at_once(now, from, |driver| {
                    Some(driver.get_mut(id)?.path_challenge(challenge))
                });
            }
            PathValidation::Validated => {
                self.migrate(now, id, path);
                self.deliver(now, id, datagram, PacketType::Regular);
            }
        }
        true
    }

    /// Whether `initial` is a retransmission of the initial segment of a connection that may
    /// migrate: its peer has another address since.
    pub(super) fn is_initial_of_migrated(&mut self, datagram: &[u8], initial: InitialHash) -> bool {
        if self.config.migration == Migration::Off {
            return false;
        }
        let Ok(header) = Header::parse(datagram) else { return false };
        let conn = self.demux.migratable(header.conv).and_then(|id| self.get_mut(id));
        conn.is_some_and(|conn| conn.was_opened_by(initial))
    }

    /// A connection has taken a datagram that came to another IP of this host than its local one.
    pub(super) fn on_other_local_ip(
        &mut self,
        now: Instant,
        id: ConnId,
        judged: OtherLocalIp,
        datagram: &[u8],
    ) {
        let (local, cookie) = (self.local_ip, self.rng.next_u32());
        let Some(conn) = self.get_mut(id) else { return };
        let challenge = conn.on_other_local_ip(now, (local, judged), datagram, cookie);
        let (peer, is_moved) = (conn.peer(), conn.path().local == local);
        if is_moved {
            self.share_path(id);
        }
        let Some(challenge) = challenge else { return };
        self.send_at_once(now, peer, |driver| Some(driver.get_mut(id)?.path_challenge(challenge)));
    }

    /// The system takes no datagram from the local IP of `path`, which this host has lost or never
    /// had (the broadcast address of a subnet). It is left to the system, until a new datagram of the
    /// peer or its answer to a PATH_CHALLENGE shows which one it uses.
    pub(super) fn on_source_gone(&mut self, path: Path) {
        for slot in self.peers.slots(path.peer) {
            if let Some(conn) = self.conns.get_mut(slot).filter(|conn| conn.path() == path) {
                conn.set_local_ip(LocalIp::ANY);
            }
        }
    }

    /// The connection, if its peer is validated, shares the model of its path with the others of the path: it
    /// has the same local and remote address and port, since one address may have many hosts behind it.
    pub(super) fn share_path(&mut self, id: ConnId) {
        let slot = id.slot as usize;
        let conn = self.get_mut(id).filter(|conn| !conn.is_unvalidated());
        let Some(path) = conn.map(|conn| conn.path()) else { return };
        let Some(other) = self.peers.sharer(path.peer, id.slot) else { return };
        if let Some((conn, other)) = self.conns.get2_mut(slot, other)
            && other.path() == path
            && !other.is_unvalidated()
        {
            conn.share_path(other);
        }
    }

    /// Changes the path of a connection to `path`, which is validated, with another address of the
    /// peer. It keeps its path if it may not enter the source of that address.
    fn migrate(&mut self, now: Instant, id: ConnId, path: Path) {
        let to = path.peer;
        let Some(conn) = self.get_mut(id) else { return };
        let ((old, conv), old_path) = (conn.key(), conn.path());
        let is_opened_by_peer = conn.is_opened_by_peer();
        if is_opened_by_peer && !self.may_move(old.ip(), to.ip()) {
            self.stats.refused_max_per_source += 1;
            return;
        }
        let Some(conn) = self.get_mut(id) else { return };
        conn.migrate(now, path);
        if !self.demux.rekey((old, conv), (to, conv), id) {
            // Another connection with this address and conversation id has opened meanwhile.
            if let Some(conn) = self.get_mut(id) {
                conn.migrate(now, old_path);
            }
            return;
        }
        self.peers.leave(old, id.slot, &mut self.memory);
        self.peers.join(to, id.slot);
        if is_opened_by_peer {
            self.sources.leave(old.ip());
            self.sources.enter(to.ip());
        }
        self.peers.validate(to, &mut self.memory);
        self.share_path(id);
        self.stats.migrations += 1;
        self.schedule(id);
    }

    /// Whether the source of `to` may have a connection of the source of `from`. Otherwise a client that
    /// has what it may have would move that away, and open as many again.
    pub(super) fn may_move(&self, from: IpAddr, to: IpAddr) -> bool {
        let limits = &self.config.limits;
        // No place is taken that was free: by default one source has at most half of all.
        let max = limits.max_per_source.unwrap_or_else(|| limits.max_connections.div_ceil(2));
        Source::of(from) == Source::of(to) || self.sources.count(to) < max
    }
}
