//! The sending half of a turn: each ready connection exchanges bytes with its queues, transmits
//! what is due and advances its lifecycle; full batches are flushed to the socket.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use crate::core::time_wait::TimeWait;
use crate::driver::Driver;
use crate::driver::memory::Holder;
use crate::driver::output::PacketWriter;
use crate::driver::output::send_batch::Flushed;
use crate::driver::scratch::Scratch;
use crate::error::Heard;
use crate::shared::conn_id::ConnId;
use crate::sys::Socket;
use crate::trace;
use crate::util::deadline::earliest;

/// Datagrams that one connection may send before the other ready connections come first: three
/// GSO batches, half of what a turn may send (tests/fairness.rs).
const CONN_PACKETS: usize = 138;

/// Why a connection was served without sending everything that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfinished {
    /// The turn's budget is used up or the socket is blocked.
    Full,
    /// The connection has used its quota.
    Quota,
    /// An ACK waits for what a woken reader answers.
    DelayedAck,
}

impl<S: Socket> Driver<S> {
    /// Serves the ready connections, each once, until the turn's budget is used up. While the
    /// socket is blocked every ready connection exchanges its queues and advances its lifecycle,
    /// and sends nothing. Returns how many have nothing left to send but an ACK that is delayed.
    pub(super) fn serve(&mut self, now: Instant) -> io::Result<usize> {
        let mut left = self.ready.len();
        while left > 0 && (self.budget > 0 || self.blocked) {
            let Some(id) = self.ready.pop_front() else { break };
            left -= 1;
            self.prefetch_ahead(|ahead| Some(self.ready.get(ahead - 1)?.slot as usize));
            if let Some(unfinished) = self.serve_one(now, id, left == 0)? {
                match unfinished {
                    Unfinished::DelayedAck => self.scratch.delayed_acks.push(id),
                    // Served first in the next turn; behind the others while the socket is blocked.
                    Unfinished::Full if !self.blocked => self.ready.push_front(id),
                    _ => self.ready.push_back(id),
                }
            }
        }
        let delayed_acks = self.scratch.delayed_acks.len();
        // Served first in the next turn, whatever else is ready then.
        while let Some(id) = self.scratch.delayed_acks.pop() {
            self.ready.push_front(id);
        }
        Ok(delayed_acks)
    }

    /// Serves one connection. Returns why it has more to send, if it has. `is_last`: none comes after it in
    /// this turn, so that the batch leaves before what has to be done about the connection besides.
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
        let Some(conn) = self.conns.get_mut(slot).filter(|conn| conn.id() == id) else {
            return Ok(None);
        };
        let wakes_reader = conn.exchange_queues(now, &mut self.scratch);
        conn.account_memory(&mut self.memory);
        if conn.delays_ack(now, wakes_reader && !self.blocked) {
            if self.ack_delay.on_reader_woken(now) {
                // The reader that is woken reads the statistics; all else waits with the ACK.
                conn.publish_stats(self.peers.stats_of(conn.peer()));
                return Ok(Some(Unfinished::DelayedAck));
            }
            conn.end_ack_delay();
        }
        if !self.blocked && conn.would_connect(now) && !self.connect_pacer.admit(id) {
            // `ConnectPacer::release` puts the connection on the ready list again, for which it
            // stays marked. Meanwhile `wait_idle` waits for its data.
            conn.count_lingering(now, false, &mut self.lingering);
            return Ok(None);
        }
        let unfinished = self.transmit_one(now, slot)?;
        if let Some(conn) = self.conns.get_mut(slot) {
            // Before the batch leaves: whoever hears from the peer finds counted what the peer has.
            conn.publish_stats(self.peers.stats_of(conn.peer()));
            conn.admit_writers(&mut self.scratch);
            // A received datagram may have shown whether what leaves has to pass in IP fragments.
            conn.count_oversized(false, &mut self.oversized_connections);
        }
        let flushed = if is_last && !self.blocked { self.flush() } else { Ok(()) };
        let unfinished = self.advance_one(now, id, unfinished);
        flushed.map(|()| unfinished)
    }

    /// Advances the lifecycle of a connection that has transmitted, sets its timer, or removes it. Returns
    /// why it has more to send, if it has.
    fn advance_one(
        &mut self,
        now: Instant,
        id: ConnId,
        unfinished: Option<Unfinished>,
    ) -> Option<Unfinished> {
        let slot = id.slot as usize;
        let conn = self.conns.get_mut(slot)?;
        if unfinished.is_none() {
            conn.unmark_ready();
        }
        conn.publish_max_fec_shards(self.peers.max_fec_shards(conn.peer()));
        let heard = |peer| match self.unusable.heard(now, peer) {
            TimeoutCause::Nothing if self.peers.has_several(peer) => TimeoutCause::SharedAddress,
            heard => heard,
        };
        let time_wait = conn.advance_lifecycle(now, heard, &mut self.scratch);
        // A connection is removed only after its last segments, such as a FIN-ACK, have left.
        let time_wait = time_wait.filter(|_| unfinished.is_none());
        conn.count_lingering(now, time_wait.is_some(), &mut self.lingering);
        conn.count_oversized(time_wait.is_some(), &mut self.oversized_connections);
        if let Some(time_wait) = time_wait {
            self.remove(now, id, time_wait);
            return None;
        }
        let deadline = conn.deadline(now, |at| self.timers.coalesced_deadline(now, at));
        let (peer, conv) = conn.key();
        let fec = self.peers.fec_deadline(peer, conv);
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
            let Some(conn) = self.conns.get_mut(slot) else { return Ok(None) };
            let limit = if self.blocked { 0 } else { quota.min(self.budget) };
            let fec = self.peers.fec_sender(conn.peer(), &mut self.memory);
            let mut out = PacketWriter { tx: &mut self.tx, codec: &mut self.codec, fec };
            let sent = conn.transmit(now, &mut out, limit);
            (quota, self.budget) = (quota.saturating_sub(sent), self.budget.saturating_sub(sent));
            if sent < limit && !self.tx.is_full() {
                return Ok(None);
            }
            if self.tx.is_full() && !self.blocked {
                self.flush()?;
            }
            if self.blocked || self.budget == 0 {
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
        let Some(mut conn) = self.conns.try_remove(slot) else { return };
        self.extend_time_wait(now, &time_wait, conn.rto());
        let peer = conn.peer();
        if conn.is_opened_by_nobody() || conn.has_forged_initial() || conn.is_unanswered() {
            // A later initial segment may be the peer's own; and no peer has to learn of an end.
            self.demux.forget(conn.key(), id);
        } else {
            self.demux.remove(now, conn.key(), id, time_wait);
        }
        self.peers.leave(peer, id.slot, &mut self.memory);
        if conn.is_opened_by_peer() {
            self.sources.leave(peer.ip());
        }
        self.update_replaces(peer);
        drop(conn.finish_validation(&mut self.unvalidated, &mut self.memory));
        self.memory.update(Holder::Validated, conn.held(), 0);
        conn.shared().outlive();
        self.memory.count_outlived();
    }

    /// Seals and sends the batch. An error means that the socket has failed for good.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.tx.is_empty() {
            return Ok(());
        }
        let permit = self.oversized_connections > 0;
        if permit != self.ip_fragmentation {
            self.socket.set_ip_fragmentation(permit);
            self.ip_fragmentation = permit;
        }
        self.codec.seal(&mut self.tx);
        let flushed = self.tx.flush(&mut self.socket, &mut self.stats);
        self.blocked = matches!(flushed, Flushed::Blocked);
        for (dst, size) in self.tx.take_too_large() {
            self.on_message_too_big(self.last_turn, dst, size);
        }
        for path in self.tx.take_gone() {
            self.on_source_gone(path);
        }
        if let Some(error) = self.tx.take_fault() {
            self.notifier.set_error(error);
        }
        if let Flushed::Fatal(error) = flushed { Err(error) } else { Ok(()) }
    }

    /// The operating system refused a datagram of `size` bytes to `dst` (EMSGSIZE). Handled like a
    /// Packet Too Big message (RFC 8899 4.6): lowers the MTU of every connection to `dst`.
    fn on_message_too_big(&mut self, now: Instant, dst: SocketAddr, size: usize) {
        for slot in self.peers.slots(dst) {
            if let Some(conn) = self.conns.get_mut(slot) {
                conn.on_message_too_big(now, size);
            }
        }
    }
}

// The timers of connections in a turn, and the memory that an endpoint releases when they are idle.

impl<S: Socket> Driver<S> {
    /// Handles the expired timers of connections and puts these on the ready list.
    pub(super) fn expire_timers(&mut self, now: Instant) {
        let mut expired = std::mem::take(&mut self.scratch.expired);
        self.timers.expire(now, &mut expired);
        let mut any_released = false;
        for (index, &slot) in expired.iter().enumerate() {
            self.prefetch_ahead(|ahead| Some(*expired.get(index + ahead)?));
            if let Some(conn) = self.conns.get_mut(slot) {
                any_released |= conn.on_timeout(now);
                let id = conn.id();
                self.schedule(id);
            }
        }
        expired.clear();
        self.scratch.expired = expired;
        if any_released && self.conns.len() == 1 {
            self.release_memory();
        }
    }

    /// Frees the buffers that are kept between turns: the only connection is idle, as most of a process
    /// may be whose connections have an endpoint each.
    fn release_memory(&mut self) {
        self.tx.release_memory();
        // Tasks that this turn has to wake wait here.
        let wakers = std::mem::take(&mut self.scratch.wakers);
        self.scratch = Scratch { wakers, ..Scratch::default() };
    }
}

// Publishing of the endpoint statistics at the end of a turn.

/// Datagrams sealed by this endpoint after which a warning is logged: 2^32, the limit of a key with random
/// nonces of 12 bytes (NIST SP 800-38D 8.3). Peers and other endpoints seal under the same key, and may draw
/// their nonces at random: the key may have reached the limit before.
const MAX_SEALED_PER_KEY: u64 = 1 << 32;

impl<S: Socket> Driver<S> {
    /// Publishes the statistics to the handles. Few turns change nothing, and to find that out costs as much.
    pub(super) fn publish(&mut self) {
        self.stats.current_connections = self.conns.len() as u64;
        self.stats.unvalidated_connections = self.unvalidated.len() as u64;
        self.memory.publish();
        self.stats.unvalidated_bytes = self.memory.unvalidated() as u64;
        self.stats.memory_bytes = self.memory.used() as u64;
        let sealed = self.codec.sealed();
        if self.stats.sealed_datagrams < MAX_SEALED_PER_KEY && sealed >= MAX_SEALED_PER_KEY {
            trace::key_limit_reached(self.local(), sealed);
        }
        self.stats.sealed_datagrams = sealed;
        self.stats.fec = self.peers.stats();
        let (received, sent) = (&self.stats.recv_errors_by_class, &self.stats.send_errors_by_class);
        let refused = received.refused + sent.refused;
        if refused != self.refused
            && let Some(peer) = self.peers.only()
        {
            self.unusable.on_refused(self.last_turn, peer);
        }
        self.refused = refused;
        self.notifier.publish(&self.stats);
    }
}
