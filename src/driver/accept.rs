//! How connections open: `connect`, the initial datagrams of peers, and the address validation (RFC 9000 8.1)
//! of their peers.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use rand_core::Rng;

use crate::config::{Migration, PathMode};
use crate::core::connection::{Kcp, PacketType, Seed};
use crate::core::open::{InitialHash, OpenedBy};
use crate::core::segment::Header;
use crate::driver::Driver;
use crate::driver::admission::replay::KnownInitial;
use crate::driver::admission::{Refusal, capable_ping, initial_without_data};
use crate::driver::connection::{Conn, Key};
use crate::driver::routing::Demux;
use crate::shared::accept_queue::AcceptQueue;
use crate::shared::connection::{Handle, Shared};
use crate::shared::notifier::ConnId;
use crate::shared::requests::Opened;
use crate::sys::Socket;
use crate::trace;
use crate::util::path::{LocalIp, Path};
use crate::util::sync::{Arc, Ordering};

/// Least allowance of an unvalidated peer in bytes, or the MTU if that is larger: it may be sent this much
/// even if three times what it sent is less (RFC 9000 8.1). QUIC needs no such minimum, since its initial
/// datagrams have 1,200 bytes (RFC 9000 14.1). An initial datagram of KCP may be so small that three times
/// its size would not suffice to retransmit the ping that validates the address.
const MIN_INITIAL_ALLOWANCE: usize = 1_200;

impl<S: Socket> Driver<S> {
    /// Active open: creates a connection to `peer`, see `Config::early_data`.
    pub(super) fn connect(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        conv: Option<u32>,
    ) -> io::Result<Opened> {
        self.socket.check_peer(peer)?;
        let limit = self.config.limits.max_connections;
        if self.routing.conns.len() >= limit {
            let message = format!(
                "the endpoint has {limit} connections: close some or raise Limits::max_connections"
            );
            return Err(io::Error::other(message));
        }
        let conv = self.choose_conv(now, peer, conv)?;
        let newest = self.routing.peers.slots(peer).next();
        let newest = newest.and_then(|slot| self.routing.conns.get(slot));
        if newest.is_some_and(|conn| conn.is_with_other_implementation()) {
            trace::further_connection(peer, conv);
        }
        let shared = self.open(now, (peer, conv), None)?;
        self.stats.connections.active_opens += 1;
        let (waits, opens) = (self.config.waits_for_peer(), self.config.kcp.close_notify);
        let deadline = now + self.config.connect_timeout;
        match self.routing.get_mut(shared.id()) {
            Some(conn) if waits => conn.connect(now, deadline),
            Some(conn) if opens => conn.connect_early(now),
            _ => {}
        }
        self.routing.update_replaces(peer);
        self.record_source(peer);
        Ok(Opened { handle: Handle::new(shared), waits })
    }

    /// The conversation id of a new connection with `peer`: `wanted`, the configured one, or a free one at
    /// random.
    fn choose_conv(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        wanted: Option<u32>,
    ) -> io::Result<u32> {
        let demux = &mut self.routing.demux;
        if let Some(conv) = wanted.or(self.config.conv) {
            let key = (peer, conv);
            demux.expire(now);
            if !demux.contains(&key) {
                return Ok(conv);
            }
            // Segments of the other connection that are still in flight would get into this one.
            let live = demux.find(&key).is_some();
            let when = if live { "is in use" } else { "was in use less than a minute ago" };
            let text = format!("conversation id {conv} {when} with {peer}: choose another id");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        loop {
            let conv = self.rng.next_u32();
            if conv != 0 && !demux.contains(&(peer, conv)) {
                return Ok(conv);
            }
        }
    }

    /// Creates a connection. `initial`: the hash of the peer's initial segment for a passive open, `None` for
    /// an active open.
    fn open(
        &mut self,
        now: Instant,
        key: Key,
        initial: Option<InitialHash>,
    ) -> io::Result<Arc<Shared>> {
        let seed = Seed::new(self.rng.next_u32(), self.rng.next_u64());
        let (peer, conv) = key;
        let mut kcp = Kcp::with_config(conv, &self.config.kcp, now, seed)?;
        let (cipher, fec_header) = self.config.overheads();
        kcp.set_overhead(cipher, fec_header)?;
        if self.config.allowed_migration() == Migration::Authenticated {
            kcp.accept_paths();
        }
        match self.config.path_mode {
            PathMode::Standby => {}
            PathMode::Duplicate => kcp.copy_on_paths(),
            PathMode::Aggregate => kcp.aggregate_paths(),
        }
        // One side pings later than its peer, so that not both do. By default that is the active opener,
        // since the pings of a server to many peers leave at coalesced deadlines (`timer_wheel`).
        kcp.defer_keepalive(initial.is_none(), self.config.kcp.keepalive_side);
        let id = self.routing.next_id()?;
        // The system chooses the local IP of an active open.
        let local = if initial.is_some() { self.input.local_ip } else { LocalIp::ANY };
        let path = Path { peer, local };
        let shared = Shared::new(id, conv, path, &self.config, self.notifier.clone());
        let opened_by = initial.map(OpenedBy::by).unwrap_or_default();
        let mut conn = Box::new(Conn::new(kcp, shared.clone(), opened_by, &self.config, now));
        self.qlogs.open(&mut conn, self.notifier.local());
        self.routing.insert(conn);
        if initial.is_some() {
            self.admission.sources.enter(peer.ip());
        }
        if let Some(max) = self.routing.peers.max_fec_shards(peer) {
            shared.max_fec_shards.store(max, Ordering::Relaxed);
        }
        Ok(shared)
    }

    /// Handles an initial datagram of an unknown peer: a passive open. Returns whether a connection accepted
    /// it. A refused datagram allocates nothing (tests/allocations.rs), except for [`Demux::on_conv_in_use`].
    pub(super) fn on_initial(
        &mut self,
        now: Instant,
        from: SocketAddr,
        initial: InitialHash,
        datagram: &[u8],
        nonce: &[u8],
    ) -> bool {
        let Ok(header) = Header::parse(datagram) else { return false };
        let key = (from, header.conv);
        let Some(accept) = self.admit(now, key, datagram) else { return false };
        // An initial segment without data has the CONTROL capability.
        let is_capable = matches!(initial, InitialHash::WindowProbe(_));
        let is_validated = self.admission.retry.take_answer(now, &key, is_capable);
        if !is_validated && self.admission.is_crowded(&self.memory) {
            self.stats.refused.max_unvalidated += 1;
            self.send_retry(now, key);
            return false;
        }
        // A replayed initial datagram opens no second connection, from any source address. Nor does a
        // retransmission that was recorded before it could arrive.
        match self.admission.remember_initial(now, nonce, datagram) {
            KnownInitial::Nothing => {}
            // Known because it has ended the previous connection.
            KnownInitial::Segment if self.routing.demux.take_successor(&key, initial) => {}
            KnownInitial::Segment | KnownInitial::Nonce => {
                self.stats.dropped.replayed += 1;
                return false;
            }
        }
        let limits = &self.config.limits;
        let (deadline, defers) = (now + limits.validation_timeout, limits.require_validation);
        // One allowance per address, and few per source. Without one a connection is sent at most three times
        // what it sent, and none of its data is acknowledged before validation. The same holds for a peer
        // that opens with data if the application accepts only validated peers.
        let has_allowance = !is_validated
            && (is_capable || !defers)
            && !self.routing.peers.contains(from)
            && self.admission.unvalidated.take_allowance(now, from.ip());
        let mtu = usize::from(self.config.kcp.mtu);
        let allowance = if has_allowance { mtu.max(MIN_INITIAL_ALLOWANCE) } else { 0 };
        // `open` fails only on an invalid configuration, and the endpoint has validated it.
        let Ok(shared) = self.open(now, key, Some(initial)) else { return false };
        self.stats.connections.passive_opens += 1;
        let id = shared.id();
        let handle = Handle::new(shared);
        let (deferred, handle) = if defers { (Some(handle), None) } else { (None, Some(handle)) };
        self.admission.unvalidated.enter();
        if let Some(conn) = self.routing.get_mut(id) {
            conn.require_validation(now, allowance, deadline, deferred);
            if is_validated {
                // The peer has answered a Retry (RFC 9000 8.1.2).
                conn.kcp.on_address_validated();
                self.on_validated(id);
            }
        }
        let accepted = self.deliver(now, id, datagram, PacketType::Regular);
        if let Some(handle) = handle {
            self.scratch.wakers.extend(accept.push(handle));
        }
        accepted
    }

    /// The accept queue, if a connection may be opened under `key`. Counts a refusal. A peer whose
    /// retransmission would be refused too is sent a RST.
    fn admit(&mut self, now: Instant, key: Key, datagram: &[u8]) -> Option<Arc<AcceptQueue>> {
        match self.admission.admit(now, key, &self.config, &self.routing) {
            Ok(accept) => Some(accept),
            Err(refusal) => {
                refusal.count(&mut self.stats);
                let migrates = self.config.allowed_migration() != Migration::Off;
                let without_data = initial_without_data(datagram);
                if refusal == Refusal::ConvInUse && migrates {
                    self.routing.demux.on_conv_in_use(now, key, without_data.is_none());
                }
                if refusal.is_final()
                    && let Some(initial) = without_data
                {
                    self.send_stateless_reset(now, key.0, &initial);
                }
                None
            }
        }
    }

    /// Answers an initial datagram without state (RFC 9000 8.1.2). The answer is no longer than the datagram.
    fn send_retry(&mut self, now: Instant, key: Key) {
        let path = Path { peer: key.0, local: self.input.local_ip };
        self.output.send_at_once(now, path, || {
            self.stats.retry.sent += 1;
            Some(self.admission.retry.ping(now, key))
        });
    }

    /// Handles valid segments of no connection: a ping draws a RST, since the peer's connection does not
    /// exist here, or no longer does. A connection that awaits its Retry may be about to open, unless the
    /// listener accepts no more.
    pub(super) fn reset_unknown(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        let Some(ping) = capable_ping(datagram) else { return };
        // In this order: the accept queue has a lock.
        let may_open = self.admission.is_crowded(&self.memory) && self.admission.is_listening();
        if !may_open {
            self.send_stateless_reset(now, from, &ping);
        }
    }

    fn send_stateless_reset(&mut self, now: Instant, to: SocketAddr, echoed: &Header) {
        if !self.config.kcp.close_notify || !self.output.may_answer() {
            return;
        }
        let demux = &self.routing.demux;
        if let Some(reset) = self.admission.stateless_reset(now, to, echoed, demux) {
            self.stats.stateless_resets_sent += 1;
            let path = Path { peer: to, local: self.input.local_ip };
            self.output.send_at_once(now, path, || Some(reset));
        }
    }

    /// Both peers have accepted a connection whose initial segments were forged. It ends here; a last ping
    /// ends it at the peer, whose initial segment may have come later.
    pub(super) fn on_simultaneous_passive_open(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.routing.get_mut(id) else { return };
        conn.on_simultaneous_passive_open(now);
        let path = Path { peer: conn.peer(), local: self.input.local_ip };
        self.output.send_at_once(now, path, || Some(conn.kcp.last_ping()));
    }

    /// Handles a datagram under the key of an open connection. Returns true if it is the initial datagram of
    /// another connection: the peer may have restarted and lost its state. The datagram is then to be
    /// dropped, and the peer is pinged; a restarted peer retransmits.
    pub(super) fn on_possible_restart(
        &mut self,
        now: Instant,
        id: ConnId,
        datagram: &[u8],
        nonce: &[u8],
    ) -> bool {
        let Some(initial) = Demux::initial_hash(datagram) else { return false };
        // Every datagram that could open a connection is remembered, even if it opens none: a replay from
        // another address, or after the end of this connection, would open one. A replay is no sign of a
        // restart either.
        let known = self.admission.remember_initial(now, nonce, datagram);
        let Some(conn) = self.routing.get_mut(id) else { return false };
        let is_replay = match known {
            KnownInitial::Nothing => {
                // If there is no memory for it now, its retransmission must not count as a replay.
                conn.on_possible_first_data(initial, datagram);
                false
            }
            // First data that was recorded elsewhere does not belong to this connection.
            KnownInitial::Segment => {
                matches!(initial, InitialHash::Data(_))
                    && conn.awaits_first_data()
                    && !conn.was_opened_by(initial)
            }
            KnownInitial::Nonce => true,
        };
        if is_replay {
            self.stats.dropped.replayed += 1;
            return true;
        }
        if !conn.is_other_initial(initial, datagram) {
            return false;
        }
        self.stats.connections.restart_probes += 1;
        conn.on_other_initial(now, initial);
        self.routing.schedule(id);
        true
    }

    /// The address of a connection's peer is validated: it has acknowledged a segment or a ping of this
    /// connection.
    pub(super) fn on_validated(&mut self, id: ConnId) {
        let Some(conn) = self.routing.get_mut(id) else { return };
        let ((peer, conv), passive) = (conn.key(), conn.is_opened_by_peer());
        let deferred = self.admission.finish_validation(conn, &mut self.memory);
        self.routing.peers.validate(peer, &mut self.memory);
        self.routing.share_path(id);
        if passive {
            if self.config.allowed_migration() != Migration::Off || self.config.cipher.has_key() {
                self.routing.demux.index_conv(conv, id);
            }
        } else {
            self.admission.connect_pacer.on_answer();
        }
        let Some(handle) = deferred else { return };
        let Some(accept) = self.admission.accept() else { return };
        if accept.len() >= self.config.limits.backlog {
            Refusal::Backlog.count(&mut self.stats);
            handle.send.abort();
            return;
        }
        if let Some(conn) = self.routing.get_mut(id)
            && accept.is_open()
        {
            conn.kcp.accept();
        }
        self.scratch.wakers.extend(accept.push(handle));
    }
}
