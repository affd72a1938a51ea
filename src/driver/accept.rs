//! How conversations begin: those opened here, and those that peers open, with what is asked of
//! whoever does before it counts.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use rand_core::Rng;

use crate::config::{Migration, SessionPolicy};
use crate::core::connection::{Kcp, PacketType, Seed};
use crate::core::segment::Header;
use crate::driver::Driver;
use crate::driver::connection::Conn;
use crate::driver::demux::{Key, OpenedBy, Opening};
use crate::driver::unvalidated::Refusal;
use crate::error::ConnectionError;
use crate::shared::connection::Shared;
use crate::shared::notifier::ConnId;
use crate::stream::KcpStream;
use crate::sys::Socket;
use crate::util::sync::Arc;

/// Bytes of an ordinary datagram: what anyone may be sent, however small ours are, so that there is
/// enough for the question who it is to be repeated.
const MIN_INITIAL_ALLOWANCE: usize = 1_200;

impl<S: Socket> Driver<S> {
    pub(super) fn connect(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        conv: Option<u32>,
    ) -> io::Result<KcpStream> {
        self.socket.check_peer(peer)?;
        if self.conns.len() >= self.config.limits.max_connections {
            let limit = self.config.limits.max_connections;
            let message = format!("the endpoint has {limit} connections, its max_connections");
            return Err(io::Error::other(message));
        }
        let conv = self.choose_conv(now, peer, conv)?;
        let shared = self.open(now, (peer, conv), None)?;
        self.stats.active_opens += 1;
        if self.config.open_on_connect
            && let Some(conn) = self.get_mut(shared.id)
        {
            conn.send_open(now);
        }
        Ok(KcpStream::new(shared))
    }

    /// Creates a conversation.
    pub(super) fn open(
        &mut self,
        now: Instant,
        key: Key,
        opening: Option<Opening>,
    ) -> io::Result<Arc<Shared>> {
        let seed = Seed { ts_epoch: self.rng.next_u32(), cookie_seed: self.rng.next_u64() };
        let mut kcp = Kcp::new(key.1, &self.core, now, seed)?;
        // Whoever has many conversations had most of them opened by peers, and asks together.
        if opening.is_none() {
            kcp.defer_keepalive();
        }
        let entry = self.conns.vacant_entry();
        self.generations = self.generations.wrapping_add(1);
        let slot = u32::try_from(entry.key()).map_err(io::Error::other)?;
        let id = ConnId { slot, generation: self.generations };
        let mailbox = self.mailbox.clone();
        let shared = Shared::new(id, key.1, key.0, &self.config, mailbox);
        let openings = opening.map(OpenedBy::by).unwrap_or_default();
        entry.insert(Box::new(Conn::new(kcp, shared.clone(), openings, &self.config, now)));
        self.demux.insert(key, id);
        self.peers.join(key.0, slot);
        self.schedule(id);
        Ok(shared)
    }

    /// Someone unknown opens a conversation. Whatever refuses it does so before anything is
    /// allocated.
    pub(super) fn on_initial(
        &mut self,
        now: Instant,
        from: SocketAddr,
        opening: Opening,
        datagram: &[u8],
        nonce: &[u8],
    ) -> bool {
        let Some(accept) = self.accept.clone().filter(|accept| accept.is_open()) else {
            self.stats.refused_no_listener += 1;
            return false;
        };
        let limits = &self.config.limits;
        if self.conns.len() >= limits.max_connections {
            self.stats.refused_max_connections += 1;
            return false;
        }
        if accept.len() >= limits.backlog {
            self.stats.refused_backlog += 1;
            return false;
        }
        match self.strangers.check_admission(from.ip(), limits.max_unvalidated) {
            Ok(()) => {}
            Err(Refusal::Full) => {
                self.stats.refused_max_unvalidated += 1;
                return false;
            }
            Err(Refusal::Source) => {
                self.stats.refused_per_ip += 1;
                return false;
            }
        }
        let Ok(header) = Header::parse(datagram) else { return false };
        let filter = self.config.accept_filter.as_ref();
        if filter.is_some_and(|filter| !filter.admits(from, header.conv)) {
            self.stats.refused_accept_filter += 1;
            return false;
        }
        let (until, holds_back) = (now + limits.validation_timeout, limits.require_validation);
        // Whoever recorded this opening cannot make another conversation of it, from anywhere.
        if !self.is_new_opening(now, nonce) {
            self.stats.dropped_replayed += 1;
            return false;
        }
        // One datagram to an address, however many conversations are opened in its name.
        let first = usize::from(self.config.kcp.mtu).max(MIN_INITIAL_ALLOWANCE);
        let floor = if self.peers.contains(from) { 0 } else { first };
        // The configuration was validated when the driver was made.
        let Ok(shared) = self.open(now, (from, header.conv), Some(opening)) else { return false };
        self.stats.passive_opens += 1;
        let id = shared.id;
        let stream = KcpStream::new(shared);
        self.strangers.enter(from.ip());
        if let Some(conn) = self.get_mut(id) {
            conn.require_validation(now, floor, until);
        }
        let taken = self.deliver(now, id, datagram, PacketType::Regular);
        if holds_back && let Some(conn) = self.get_mut(id) {
            conn.defer_accept(stream);
        } else {
            self.scratch.wakers.extend(accept.push(stream));
        }
        taken
    }

    /// Whether a datagram of a live conversation opens it anew. Such a datagram is dropped: whoever
    /// means it repeats it.
    pub(super) fn is_restart(
        &mut self,
        now: Instant,
        id: ConnId,
        datagram: &[u8],
        nonce: &[u8],
    ) -> bool {
        let Some(opening) = self.demux.opening(datagram) else { return false };
        let Some(conn) = self.get_mut(id) else { return false };
        if !conn.is_other_opening(opening, datagram) {
            return false;
        }
        // What was recorded and is played again says nothing about now.
        if !self.is_new_opening(now, nonce) {
            self.stats.dropped_replayed += 1;
            return true;
        }
        self.stats.restart_probes += 1;
        if let Some(conn) = self.get_mut(id) {
            conn.on_restart(now);
        }
        self.schedule(id);
        true
    }

    /// The peer of a conversation has proved that it is there.
    pub(super) fn on_proof(&mut self, id: ConnId) {
        let Some(conn) = self.get_mut(id) else { return };
        let ((peer, conv), stream) = (conn.key(), conn.take_held_back());
        let opened_it = conn.is_opened_by_peer();
        self.peers.validate(peer);
        if opened_it {
            self.strangers.leave(peer.ip());
            if self.config.migration != Migration::Off {
                self.demux.make_movable(conv, id);
            }
            self.replace_others(id, peer);
        } else {
            self.connect_pacer.on_answer();
        }
        let Some(stream) = stream else { return };
        let Some(accept) = &self.accept else { return };
        if accept.len() >= self.config.limits.backlog {
            // Dropped like one that nobody accepted.
            self.stats.refused_backlog += 1;
            return;
        }
        let wakers = accept.push(stream);
        self.scratch.wakers.extend(wakers);
    }

    /// Ends what the same peer had opened before, where that is asked for.
    fn replace_others(&mut self, newest: ConnId, peer: SocketAddr) {
        if self.config.session_policy == SessionPolicy::KeepBoth || !self.peers.has_several(peer) {
            return;
        }
        let mut ids = Vec::new();
        for slot in self.peers.slots(peer) {
            if let Some(conn) = self.conns.get_mut(slot)
                && conn.id() != newest
                && conn.is_opened_by_peer()
            {
                conn.end_early(ConnectionError::Replaced);
                ids.push(conn.id());
            }
        }
        ids.into_iter().for_each(|id| self.schedule(id));
    }
}
