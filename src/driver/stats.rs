//! What a driver shows of itself: its counters, and whether it still has something to deliver.

use std::time::Instant;

use crate::driver::Driver;
use crate::sys::Socket;
use crate::trace;

/// Datagrams that one key should seal at most: with random nonces of twelve bytes, as a peer may
/// choose them, more would risk a repeated one.
const KEY_LIFE: u64 = 1 << 32;

impl<S: Socket> Driver<S> {
    /// What handles left to do and nobody has looked at yet must not look like nothing. Waiting
    /// until nobody is ready would not do: beside busy conversations that may never come.
    pub(super) fn look_at_ready(&mut self, now: Instant) {
        for id in &self.ready {
            if let Some(conn) = self.conns.get_mut(id.slot as usize).filter(|c| c.id() == *id) {
                conn.exchange_queues(now, &mut self.scratch);
                conn.count_lingering(now, false, &mut self.lingering);
            }
        }
    }

    /// Answers those who wait for everything lingering to be delivered.
    pub(super) fn settle_idle_waiters(&mut self) {
        if self.idle_waiters.is_empty() || !self.tx.is_empty() {
            return;
        }
        if self.lingering == 0 {
            for waiter in self.idle_waiters.drain(..) {
                // Whoever waited may have stopped.
                let _ = waiter.send(());
            }
        }
    }

    pub(super) fn publish(&mut self) {
        self.stats.current_connections = self.conns.len() as u64;
        self.stats.unvalidated_connections = self.strangers.len() as u64;
        let sealed = self.codec.sealed();
        if self.stats.sealed_datagrams < KEY_LIFE && sealed >= KEY_LIFE {
            trace::key_is_worn(self.local(), sealed);
        }
        self.stats.sealed_datagrams = sealed;
        self.stats.fec = self.peers.stats();
        if self.stats != self.published {
            self.published = self.stats;
            self.mailbox.publish(&self.stats);
        }
    }
}
