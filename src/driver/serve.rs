//! The serving part of a turn: each ready conversation looks at its queues, sends what is due, and
//! settles.

use std::io;
use std::time::Instant;

use super::{CONN_PACKETS, Driver, TIME_WAIT};
use crate::driver::packet_writer::PacketWriter;
use crate::shared::notifier::ConnId;
use crate::sys::Socket;

/// Why a turn ended before a connection had sent everything that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfinished {
    /// The turn's budget is used up or the socket is blocked: the connection comes first next time.
    Full,
    /// The connection has used its quota: the other ready connections come first.
    Quota,
}

impl<S: Socket> Driver<S> {
    /// Serves the ready conversations until the turn's budget is used up. While the socket is
    /// blocked each is looked at once, for what does not concern sending.
    pub(super) fn serve(&mut self, now: Instant) -> io::Result<()> {
        let mut left = self.ready.len();
        while left > 0 && (self.budget > 0 || self.blocked) {
            let Some(id) = self.ready.pop_front() else { break };
            left -= 1;
            if let Some(interrupted) = self.serve_one(now, id)? {
                match interrupted {
                    // It keeps its place; while nothing can be sent the others are looked at.
                    Unfinished::Full if !self.blocked => self.ready.push_front(id),
                    _ => self.ready.push_back(id),
                }
            }
        }
        Ok(())
    }

    /// Serves one conversation; tells whether it has more to send.
    fn serve_one(&mut self, now: Instant, id: ConnId) -> io::Result<Option<Unfinished>> {
        #[cfg(test)]
        {
            self.served += 1;
        }
        let slot = id.slot as usize;
        let Some(conn) = self.conns.get_mut(slot).filter(|conn| conn.id() == id) else {
            return Ok(None);
        };
        conn.exchange_queues(now, &mut self.scratch);
        if !self.blocked && conn.would_begin(now) && !self.connect_pacer.admit(id) {
            // Whoever waits for all to be over waits for this one as well.
            conn.count_lingering(now, false, &mut self.lingering);
            return Ok(None);
        }
        let mut quota = CONN_PACKETS;
        let mut interrupted = None;
        loop {
            let Some(conn) = self.conns.get_mut(slot) else { return Ok(None) };
            let limit = if self.blocked { 0 } else { quota.min(self.budget) };
            let fec = self.peers.encoder(conn.peer());
            let mut out = PacketWriter { tx: &mut self.tx, codec: &mut self.codec, fec };
            let sent = conn.transmit(now, &mut out, limit);
            (quota, self.budget) = (quota.saturating_sub(sent), self.budget.saturating_sub(sent));
            if sent < limit && !self.tx.is_full() {
                break;
            }
            if self.tx.is_full() && !self.blocked {
                self.flush()?;
            }
            if self.blocked || self.budget == 0 || quota == 0 {
                let full = self.blocked || self.budget == 0;
                interrupted = Some(if full { Unfinished::Full } else { Unfinished::Quota });
                break;
            }
        }
        let Some(conn) = self.conns.get_mut(slot) else { return Ok(None) };
        if interrupted.is_none() {
            conn.unmark_ready();
        }
        let peer = conn.peer();
        let over = conn.advance_lifecycle(now, self.peers.stats_of(peer), &mut self.scratch);
        // Not before its last words have left.
        let over = over.filter(|_| interrupted.is_none());
        conn.count_lingering(now, over.is_some(), &mut self.lingering);
        conn.count_fragmenting(over.is_some(), &mut self.oversized_connections);
        match over {
            Some(tombstone) => {
                let key = conn.key();
                if tombstone.supports_control {
                    self.time_wait_until = Some(now + TIME_WAIT.min(self.config.linger));
                }
                if conn.is_distrusted() {
                    self.strangers.leave(peer.ip());
                }
                self.timers.set(slot, None);
                self.conns.remove(slot);
                self.demux.remove(now, key, id, tombstone);
                self.peers.leave(peer, id.slot);
                Ok(None)
            }
            None => {
                let deadline = conn.deadline(now, |at| self.timers.coalesced_deadline(now, at));
                self.timers.set(slot, deadline);
                Ok(interrupted)
            }
        }
    }
}
