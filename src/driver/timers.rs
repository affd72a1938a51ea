//! The timers of connections in a turn, and the memory that an endpoint releases when they are idle.

use std::time::Instant;

use super::Driver;
use crate::driver::scratch::Scratch;
use crate::sys::Socket;

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
