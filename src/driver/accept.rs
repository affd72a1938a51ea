//! How connections open: `connect`, and the initial datagrams of peers, with the limits, the accept
//! filter and the address validation (RFC 9000 8.1) that they have to pass.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand_core::Rng;

use crate::config::{Migration, SessionPolicy};
use crate::core::connection::{Kcp, PacketType, Seed};
use crate::core::open::{InitialHash, OpenedBy};
use crate::core::segment::Header;
use crate::driver::Driver;
use crate::driver::admission::replay::KnownInitial;
use crate::driver::connection::Conn;
use crate::driver::routing::{Demux, Key};
use crate::error::ConnectionError;
use crate::shared::accept_queue::AcceptQueue;
use crate::shared::connection::{Handle, Shared};
use crate::shared::notifier::ConnId;
use crate::shared::requests::Opened;
use crate::sys::Socket;
use crate::trace;
use crate::util::path::{LocalIp, Path};
use crate::util::sync::{Arc, Ordering};

/// Bytes that an unvalidated peer may be sent at least, if three times what it sent is less (RFC
/// 9000 8.1); the MTU if that is larger. Deviates: QUIC needs no such minimum, since initial
/// datagrams of clients have 1,200 bytes (RFC 9000 14.1). Those of KCP may be smaller, and three
/// times a small one would not suffice to retransmit the ping that validates the address.
const MIN_INITIAL_ALLOWANCE: usize = 1_200;

/// How long the conversation id of a peer that went silent is not taken by another address: a client
/// with an id of its own that restarts may go on.
const CONV_IN_USE: Duration = Duration::from_secs(10);

impl<S: Socket> Driver<S> {
    /// Active open: creates a connection to `peer`, see `Config::early_data`.
    pub(super) fn connect(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        conv: Option<u32>,
    ) -> io::Result<Opened> {
        self.socket.check_peer(peer)?;
        if self.conns.len() >= self.config.limits.max_connections {
            let limit = self.config.limits.max_connections;
            let message = format!("the endpoint has {limit} connections, its max_connections");
            return Err(io::Error::other(message));
        }
        let conv = self.choose_conv(now, peer, conv)?;
        let newest = self.peers.slots(peer).next().and_then(|slot| self.conns.get(slot));
        if newest.is_some_and(|conn| conn.is_with_other_implementation()) {
            trace::further_connection(peer, conv);
        }
        let shared = self.open(now, (peer, conv), None)?;
        self.stats.active_opens += 1;
        let (waits, opens) = (self.config.waits_for_peer(), self.config.kcp.close_notify);
        let deadline = now + self.config.connect_timeout;
        match self.get_mut(shared.id()) {
            Some(conn) if waits => conn.connect(now, deadline),
            Some(conn) if opens => conn.connect_early(now),
            _ => {}
        }
        self.update_replaces(peer);
        Ok(Opened { handle: Handle::new(shared), waits })
    }

    /// Connections with `peer` have been opened or removed: one alone may take the place of an earlier one
    /// at a listener that has one for each address, several may not. Those before the latest two know.
    pub(super) fn update_replaces(&mut self, peer: SocketAddr) {
        let is_alone = !self.peers.has_several(peer);
        for slot in self.peers.slots(peer).take(2) {
            if let Some(conn) = self.conns.get_mut(slot) {
                conn.set_replaces(is_alone);
            }
        }
    }

    /// Creates a connection. `initial`: the hash of the peer's initial segment for a passive open,
    /// `None` for an active open.
    pub(super) fn open(
        &mut self,
        now: Instant,
        key: Key,
        initial: Option<InitialHash>,
    ) -> io::Result<Arc<Shared>> {
        let seed = Seed::new(self.rng.next_u32(), self.rng.next_u64());
        let mut kcp = Kcp::new(key.1, &self.config.kcp, now, seed)?;
        let (cipher, fec_header) = self.config.overheads();
        kcp.set_overhead(cipher, fec_header)?;
        // One side pings later than its peer, so that not both do: the active opener by default, since the
        // pings of a server to many peers leave at coalesced deadlines (`timer_wheel`).
        kcp.defer_keepalive(initial.is_none(), self.config.kcp.keepalive_side);
        let entry = self.conns.vacant_entry();
        self.generations = self.generations.wrapping_add(1);
        let slot = u32::try_from(entry.key()).map_err(io::Error::other)?;
        let id = ConnId { slot, generation: self.generations };
        let notifier = self.notifier.clone();
        // The system chooses where a connection to a peer leaves from.
        let local = if initial.is_some() { self.local_ip } else { LocalIp::ANY };
        let path = Path { peer: key.0, local };
        let shared = Shared::new(id, key.1, path, &self.config, notifier);
        let opened_by = initial.map(OpenedBy::by).unwrap_or_default();
        entry.insert(Box::new(Conn::new(kcp, shared.clone(), opened_by, &self.config, now)));
        self.demux.insert(key, id);
        self.peers.join(key.0, slot);
        if initial.is_some() {
            self.sources.enter(key.0.ip());
        }
        if let Some(max) = self.peers.max_fec_shards(key.0) {
            shared.max_fec_shards.store(max, Ordering::Relaxed);
        }
        self.schedule(id);
        Ok(shared)
    }

    /// Handles an initial datagram of an unknown peer: a passive open. Returns whether a connection
    /// accepted it. A refused datagram allocates nothing (tests/allocations.rs).
    pub(super) fn on_initial(
        &mut self,
        now: Instant,
        from: SocketAddr,
        initial: InitialHash,
        datagram: &[u8],
        nonce: &[u8],
    ) -> bool {
        let Ok(header) = Header::parse(datagram) else { return false };
        let Some(accept) = self.admit(now, (from, header.conv), datagram) else { return false };
        // One without data has the CONTROL capability.
        let is_capable = matches!(initial, InitialHash::WindowProbe(_));
        let is_validated = self.retry.take_answer(now, &(from, header.conv), is_capable);
        if !is_validated && self.is_crowded() {
            self.stats.refused_max_unvalidated += 1;
            self.send_retry(now, (from, header.conv));
            return false;
        }
        // Whatever its source address, a replayed initial datagram opens no second connection, and
        // nor does a retransmission that was recorded before it could arrive.
        match self.remember_initial(now, nonce, datagram) {
            KnownInitial::Nothing => {}
            // Known because it has ended the connection before this one.
            KnownInitial::Segment if self.demux.take_successor(&(from, header.conv), initial) => {}
            KnownInitial::Segment | KnownInitial::Nonce => {
                self.stats.dropped_replayed += 1;
                return false;
            }
        }
        let limits = &self.config.limits;
        let (deadline, defers) = (now + limits.validation_timeout, limits.require_validation);
        // One allowance per address, and few per source: a further connection is sent at most three
        // times what it sent, and no data of it is acknowledged before it is validated. So is that of
        // a peer which opens with data, if the application sees validated ones alone.
        let has_allowance = !is_validated
            && (is_capable || !defers)
            && !self.peers.contains(from)
            && self.unvalidated.take_allowance(now, from.ip());
        let mtu = usize::from(self.config.kcp.mtu);
        let allowance = if has_allowance { mtu.max(MIN_INITIAL_ALLOWANCE) } else { 0 };
        // `open` fails on an invalid configuration only, and the endpoint has validated it.
        let Ok(shared) = self.open(now, (from, header.conv), Some(initial)) else { return false };
        self.stats.passive_opens += 1;
        let id = shared.id();
        let handle = Handle::new(shared);
        let (deferred, handle) = if defers { (Some(handle), None) } else { (None, Some(handle)) };
        self.unvalidated.enter();
        if let Some(conn) = self.get_mut(id) {
            conn.require_validation(now, allowance, deadline, deferred);
            if is_validated {
                conn.on_retry_answered();
                self.on_validated(id);
            }
        }
        let accepted = self.deliver(now, id, datagram, PacketType::Regular);
        if let Some(handle) = handle {
            self.scratch.wakers.extend(accept.push(handle));
        }
        accepted
    }

    /// Whether only peers whose address is validated may open a connection.
    pub(super) fn is_crowded(&self) -> bool {
        self.unvalidated.is_crowded() || self.memory.is_crowded()
    }

    /// The accept queue, if a connection may be opened under `key`; `None` if there is no listener, or the
    /// accept filter, the limits or another connection are against it. Without a listener, or with the
    /// filter against it, the peer is sent a RST, since a retransmission would fare no better.
    fn admit(&mut self, now: Instant, key: Key, datagram: &[u8]) -> Option<Arc<AcceptQueue>> {
        if !self.is_listening() || self.is_filtered(key.0, key.1) {
            self.refuse(now, key.0, datagram);
            return None;
        }
        self.accept_queue(key.0).filter(|_| !self.is_in_use(now, key.0, key.1))
    }

    /// Whether there is a listener. Counts a refusal.
    fn is_listening(&mut self) -> bool {
        let listens = self.accept.as_ref().is_some_and(|accept| accept.is_open());
        self.stats.refused_no_listener += u64::from(!listens);
        listens
    }

    /// Whether the accept filter is against a connection with this address and conversation id. Counts
    /// a refusal.
    fn is_filtered(&mut self, from: SocketAddr, conv: u32) -> bool {
        let filter = self.config.accept_filter.as_ref();
        let is_filtered = filter.is_some_and(|filter| !filter.admits(from, conv));
        self.stats.refused_accept_filter += u64::from(is_filtered);
        is_filtered
    }

    /// Whether another connection is against it. Counts a refusal.
    fn is_in_use(&mut self, now: Instant, from: SocketAddr, conv: u32) -> bool {
        let is_in_use = self.is_conv_of_another_address(now, from, conv);
        self.stats.refused_conv_in_use += u64::from(is_in_use);
        is_in_use
    }

    /// Whether a peer at another address uses `conv` under the same key. Then the recorded datagrams
    /// of one of the two connections would be valid in the other.
    fn is_conv_of_another_address(&self, now: Instant, from: SocketAddr, conv: u32) -> bool {
        self.demux.with_conv(conv).iter().any(|id| {
            let conn = self.conns.get(id.slot as usize).filter(|conn| conn.id() == *id);
            conn.is_some_and(|conn| conn.peer() != from && conn.is_alive(now, CONV_IN_USE))
        })
    }

    /// The accept queue, if the limits permit one more connection of the source of `from`. Counts a
    /// refusal.
    fn accept_queue(&mut self, from: SocketAddr) -> Option<Arc<AcceptQueue>> {
        let (limits, stats) = (&self.config.limits, &mut self.stats);
        let accept = self.accept.as_ref()?;
        let free = limits.max_connections.saturating_sub(self.conns.len());
        if free == 0 {
            stats.refused_max_connections += 1;
            return None;
        }
        if self.sources.count(from.ip()) >= limits.max_per_source.unwrap_or(free) {
            stats.refused_max_per_source += 1;
            return None;
        }
        if accept.len() >= limits.backlog {
            stats.refused_backlog += 1;
            return None;
        }
        Some(accept.clone())
    }

    /// Both ends have accepted a connection, for initial segments that somebody has forged. This one
    /// ends; a last ping ends the other one, whose initial segment may have come later.
    pub(super) fn on_opened_by_nobody(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.get_mut(id) else { return };
        conn.on_opened_by_nobody(now);
        let peer = conn.peer();
        self.send_at_once(now, peer, |driver| Some(driver.get_mut(id)?.last_ping()));
    }

    /// Handles a datagram under the key of an open connection. Returns true if the datagram is the
    /// initial datagram of another connection: the peer may have restarted and lost its state. Then
    /// the datagram is to be dropped and the peer is pinged; a peer that did restart retransmits.
    pub(super) fn on_possible_restart(
        &mut self,
        now: Instant,
        id: ConnId,
        datagram: &[u8],
        nonce: &[u8],
    ) -> bool {
        let Some(initial) = Demux::initial_hash(datagram) else { return false };
        // Every datagram that could open a connection is remembered, also if it opens none: replayed
        // from another address, or after the end of this connection, it would open one. A replayed
        // one is no sign of a restart either.
        let known = self.remember_initial(now, nonce, datagram);
        let Some(conn) = self.get_mut(id) else { return false };
        let is_replay = match known {
            KnownInitial::Nothing => {
                // There may be no memory for it now: then its retransmission is no replay.
                conn.on_possible_first_data(initial, datagram);
                false
            }
            // First data that was recorded elsewhere is not that of this connection.
            KnownInitial::Segment => {
                matches!(initial, InitialHash::Data(_))
                    && conn.awaits_first_data()
                    && !conn.was_opened_by(initial)
            }
            KnownInitial::Nonce => true,
        };
        if is_replay {
            self.stats.dropped_replayed += 1;
            return true;
        }
        if !conn.is_other_initial(initial, datagram) {
            return false;
        }
        self.stats.restart_probes += 1;
        if let Some(conn) = self.get_mut(id) {
            conn.on_other_initial(now, initial);
        }
        self.schedule(id);
        true
    }

    /// The address of a connection's peer is validated: it has acknowledged a segment
    /// or a ping of this connection.
    pub(super) fn on_validated(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id.slot as usize).filter(|conn| conn.id() == id) else {
            return;
        };
        let ((peer, conv), passive) = (conn.key(), conn.is_opened_by_peer());
        let deferred = conn.finish_validation(&mut self.unvalidated, &mut self.memory);
        self.peers.validate(peer, &mut self.memory);
        self.share_path(id);
        if passive {
            if self.config.migration != Migration::Off || self.config.cipher.has_key() {
                self.demux.index_conv(conv, id);
            }
            self.replace_others(id, peer);
        } else {
            self.connect_pacer.on_answer();
        }
        let Some(handle) = deferred else { return };
        let Some(accept) = &self.accept else { return };
        if accept.len() >= self.config.limits.backlog {
            // Dropping the handle ends the connection, as if the application had dropped its
            // stream.
            self.stats.refused_backlog += 1;
            return;
        }
        let wakers = accept.push(handle);
        self.scratch.wakers.extend(wakers);
    }

    /// Ends the older connections of the same peer with `Replaced` (`SessionPolicy`).
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
