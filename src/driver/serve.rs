//! The sending half of a turn: expired timers and ready connections. Each ready connection exchanges bytes
//! with its queues, transmits what is due and advances its lifecycle; full batches are flushed to the socket.

use std::io;
use std::time::Instant;

use crate::core::time_wait::TimeWait;
use crate::driver::Driver;
use crate::driver::memory::Holder;
use crate::driver::output::send_batch::Flushed;
use crate::driver::routing::{Routing, conn_mut};
use crate::driver::scratch::Scratch;
use crate::error::TimeoutCause;
use crate::shared::notifier::ConnId;
use crate::sys::Socket;
use crate::trace;
use crate::util::earliest;

/// Datagrams that one connection may send before the other ready connections come first: three GSO batches,
/// half of what a turn may send (tests/fairness.rs).
const CONN_PACKETS: usize = 138;

/// Datagrams sealed by this endpoint after which a warning is logged: 2^32, the limit of a key with random
/// nonces of 12 bytes (NIST SP 800-38D 8.3). Peers and other endpoints seal under the same key, and may draw
/// random nonces, so the key may have reached the limit before.
const MAX_SEALED_PER_KEY: u64 = 1 << 32;

/// Why a connection was served without sending everything that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfinished {
    /// The turn's budget is used up or the socket is blocked.
    Full,
    /// The connection has used its quota.
    Quota,
    /// An ACK waits for the answer of a woken reader.
    DelayedAck,
}

impl<S: Socket> Driver<S> {
    /// Handles the expired timers of connections and puts the connections on the ready list.
    pub(super) fn expire_timers(&mut self, now: Instant) {
        let mut expired = std::mem::take(&mut self.scratch.expired);
        self.timers.expire(now, &mut expired);
        let mut any_released = false;
        for (index, &slot) in expired.iter().enumerate() {
            self.routing.prefetch_ahead(|ahead| Some(*expired.get(index + ahead)?));
            if let Some(conn) = self.routing.conns.get_mut(slot) {
                any_released |= conn.on_timeout(now);
                let id = conn.id();
                self.routing.schedule(id);
            }
        }
        expired.clear();
        self.scratch.expired = expired;
        if any_released && self.routing.conns.len() == 1 {
            self.release_memory();
        }
    }

    /// Frees the buffers that are kept between turns: the only connection is idle, as are most of a process
    /// with an endpoint per connection.
    fn release_memory(&mut self) {
        self.output.tx.release_memory();
        // Tasks that this turn has to wake wait here.
        let wakers = std::mem::take(&mut self.scratch.wakers);
        self.scratch = Scratch { wakers, ..Scratch::default() };
    }

    /// Serves the ready connections, each once, until the turn's budget is used up. While the socket is
    /// blocked every ready connection exchanges its queues and advances its lifecycle, and sends nothing.
    /// Returns how many have only a delayed ACK left to send.
    pub(super) fn serve(&mut self, now: Instant) -> io::Result<usize> {
        let mut left = self.routing.ready.len();
        while left > 0 && (self.output.budget > 0 || self.output.blocked) {
            let Some(id) = self.routing.ready.pop_front() else { break };
            left -= 1;
            let routing = &self.routing;
            routing.prefetch_ahead(|ahead| Some(routing.ready.get(ahead - 1)?.slot as usize));
            if let Some(unfinished) = self.serve_one(now, id, left == 0)? {
                match unfinished {
                    Unfinished::DelayedAck => self.scratch.delayed_acks.push(id),
                    // Served first in the next turn; behind the others while the socket is blocked.
                    Unfinished::Full if !self.output.blocked => self.routing.ready.push_front(id),
                    _ => self.routing.ready.push_back(id),
                }
            }
        }
        let delayed_acks = self.scratch.delayed_acks.len();
        // Served first in the next turn, before other connections that are ready then.
        while let Some(id) = self.scratch.delayed_acks.pop() {
            self.routing.ready.push_front(id);
        }
        Ok(delayed_acks)
    }

    /// Serves one connection. Returns why it has more to send, if it has. `is_last`: no connection comes
    /// after it in this turn, so the batch leaves before its lifecycle and timer are handled.
    fn serve_one(
        &mut self,
        now: Instant,
        id: ConnId,
        is_last: bool,
    ) -> io::Result<Option<Unfinished>> {
        #[cfg(test)]
        {
            self.counts.served += 1;
        }
        let slot = id.slot as usize;
        let blocked = self.output.blocked;
        let Routing { conns, peers, .. } = &mut self.routing;
        let Some(conn) = conn_mut(conns, id) else { return Ok(None) };
        let wakes_reader = conn.exchange_queues(now, &mut self.scratch);
        conn.account_memory(&mut self.memory);
        if conn.delays_ack(now, wakes_reader && !blocked) {
            if self.output.ack_delay.on_reader_woken(now) {
                // The woken reader reads the statistics. Everything else waits with the ACK.
                conn.publish_stats(peers.stats_of(conn.peer()));
                return Ok(Some(Unfinished::DelayedAck));
            }
            conn.kcp.end_ack_delay();
        }
        if !blocked && conn.would_connect(now) && !self.admission.connect_pacer.admit(id) {
            // `ConnectPacer::release` puts the connection on the ready list again, so it stays marked. Until
            // then `wait_idle` waits for its data.
            conn.count_lingering(now, false, &mut self.waiters.lingering);
            return Ok(None);
        }
        let unfinished = self.transmit_one(now, slot)?;
        let Routing { conns, peers, .. } = &mut self.routing;
        if let Some(conn) = conns.get_mut(slot) {
            // Publish statistics before sending, so that a caller who already got the peer's reply sees them.
            conn.publish_stats(peers.stats_of(conn.peer()));
            conn.admit_writers(&mut self.scratch);
        }
        let flushed = if is_last && !self.output.blocked { self.flush() } else { Ok(()) };
        let unfinished = self.advance_one(now, id, unfinished);
        flushed.map(|()| unfinished)
    }

    /// Advances the lifecycle of a connection that has transmitted, and sets its timer or removes it. Returns
    /// why it has more to send, if it has.
    fn advance_one(
        &mut self,
        now: Instant,
        id: ConnId,
        unfinished: Option<Unfinished>,
    ) -> Option<Unfinished> {
        let slot = id.slot as usize;
        let Routing { conns, peers, .. } = &mut self.routing;
        let conn = conns.get_mut(slot)?;
        if unfinished.is_none() {
            conn.unmark_ready();
        }
        conn.publish_max_fec_shards(peers.max_fec_shards(conn.peer()));
        let heard = |peer| match self.input.unusable.heard(now, peer) {
            TimeoutCause::Nothing if peers.has_several(peer) => TimeoutCause::SharedAddress,
            heard => heard,
        };
        let time_wait = conn.advance_lifecycle(now, heard, &mut self.scratch);
        self.qlogs.write(now, conn);
        // A connection is removed only after its last segments, such as a FIN-ACK, have left.
        let time_wait = time_wait.filter(|_| unfinished.is_none());
        conn.count_lingering(now, time_wait.is_some(), &mut self.waiters.lingering);
        conn.count_oversized(time_wait.is_some(), &mut self.output.oversized_connections);
        if let Some(time_wait) = time_wait {
            self.remove(now, id, time_wait);
            return None;
        }
        let deadline = conn.deadline(now, |at| self.timers.coalesced_deadline(now, at));
        let (peer, conv) = conn.key();
        let fec = peers.fec_deadline(peer, conv).filter(|_| conn.is_on_first_path());
        self.timers.set(slot, earliest([deadline, fec]));
        unfinished
    }

    /// Transmits what is due on one connection, within its quota and the turn's budget.
    pub(super) fn transmit_one(
        &mut self,
        now: Instant,
        slot: usize,
    ) -> io::Result<Option<Unfinished>> {
        let mut quota = CONN_PACKETS;
        loop {
            let Routing { conns, peers, .. } = &mut self.routing;
            let Some(conn) = conns.get_mut(slot) else { return Ok(None) };
            let limit = if self.output.blocked { 0 } else { quota.min(self.output.budget) };
            // FEC belongs to the first path: the peer decodes parity of that address only.
            let is_first = conn.is_on_first_path();
            let fec = is_first.then(|| peers.fec_sender(conn.peer(), &mut self.memory)).flatten();
            let sent = conn.transmit(now, &mut self.output.writer(fec), limit);
            // A received datagram may have shown that the batch needs IP fragmentation.
            conn.count_oversized(false, &mut self.output.oversized_connections);
            quota = quota.saturating_sub(sent);
            self.output.spend(sent);
            if sent < limit && !self.output.tx.is_full() {
                return Ok(None);
            }
            if self.output.tx.is_full() && !self.output.blocked {
                self.flush()?;
            }
            if self.output.blocked || self.output.budget == 0 {
                return Ok(Some(Unfinished::Full));
            }
            if quota == 0 {
                return Ok(Some(Unfinished::Quota));
            }
        }
    }

    /// Removes a connection that has ended; the demultiplexer keeps its TIME-WAIT state.
    pub(super) fn remove(&mut self, now: Instant, id: ConnId, time_wait: TimeWait) {
        let slot = id.slot as usize;
        self.timers.set(slot, None);
        let Some(mut conn) = self.routing.conns.try_remove(slot) else { return };
        self.extend_time_wait(now, &time_wait, conn.rto());
        self.qlogs.close(now, &mut conn);
        let (key, peer) = (conn.key(), conn.peer());
        if conn.is_simultaneous_passive_open() || conn.has_forged_initial() || conn.is_unanswered()
        {
            // A later initial segment may be the peer's own, and no peer has to learn of this end.
            self.routing.demux.forget(key, id);
        } else {
            for further in conn.further_keys() {
                self.routing.demux.end_further(now, further, id, time_wait);
            }
            self.routing.demux.remove(now, key, id, time_wait);
        }
        for further in conn.further_keys() {
            self.routing.demux.remove_further(further, id);
        }
        self.routing.peers.leave(peer, id.slot, &mut self.memory);
        if conn.is_opened_by_peer() {
            self.admission.sources.leave(peer.ip());
        }
        self.routing.update_replaces(peer);
        drop(self.admission.finish_validation(&mut conn, &mut self.memory));
        self.memory.update(Holder::Validated, conn.held(), 0);
        conn.shared().outlive();
        self.memory.count_outlived();
    }

    /// Seals and sends the batch. An error means that the socket has failed for good.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.output.tx.is_empty() {
            return Ok(());
        }
        let flushed = self.output.flush(&mut self.socket, &mut self.stats);
        for (path, size) in self.output.tx.take_too_large() {
            self.routing.on_message_too_big(self.last_turn, path, size);
        }
        for path in self.output.tx.take_gone() {
            self.routing.on_source_gone(self.last_turn, path);
        }
        if let Some(error) = self.output.tx.take_fault() {
            self.notifier.set_error(error);
        }
        if let Flushed::Fatal(error) = flushed { Err(error) } else { Ok(()) }
    }

    /// Publishes the statistics to the handles. Few turns change none, and to find that out would cost the
    /// same.
    pub(super) fn publish(&mut self) {
        self.memory.publish();
        let stats = &mut self.stats;
        stats.connections.current = self.routing.conns.len() as u64;
        stats.connections.unvalidated = self.admission.unvalidated.len() as u64;
        stats.memory.unvalidated_bytes = self.memory.unvalidated() as u64;
        stats.memory.total_bytes = self.memory.used() as u64;
        let sealed = self.output.codec.sealed();
        if stats.sealed_datagrams < MAX_SEALED_PER_KEY && sealed >= MAX_SEALED_PER_KEY {
            trace::key_limit_reached(self.notifier.local(), sealed);
        }
        stats.sealed_datagrams = sealed;
        stats.fec = self.routing.peers.stats();
        let refused = stats.recv_errors.refused + stats.send_errors.refused;
        self.input.on_refusals(self.last_turn, refused, || self.routing.peers.only());
        self.notifier.publish(&self.stats);
    }
}
