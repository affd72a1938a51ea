//! The end of an endpoint whose runtime or process ends under its connections: one datagram to each peer,
//! as a kernel closes the connections of a process that is gone.

use std::time::Instant;

use super::Driver;
use crate::sys::Socket;

impl<S: Socket> Driver<S> {
    /// The driver is about to be dropped.
    pub(crate) fn on_exit(&mut self, now: Instant) {
        self.last_turn = self.last_turn.max(now);
    }

    /// Sends each peer that takes it a FIN or a RST, see `Kcp::final_control`, as far as the socket takes
    /// them now. No connection is used afterwards. The time is that of [`Self::on_exit`].
    pub(super) fn notify_peers(&mut self) {
        let now = self.last_turn;
        let slots: Vec<usize> = self.conns.iter().map(|(slot, _)| slot).collect();
        let mut usable = self.flush().is_ok();
        for slot in slots {
            if !usable || self.blocked {
                return;
            }
            let Some(conn) = self.conns.get_mut(slot) else { continue };
            // What the handles did last is in the queues: an abort, for instance.
            conn.exchange_queues(now, &mut self.scratch);
            let id = conn.id();
            if conn.end_ack_delay() {
                self.answer(now, id);
            }
            let Some(conn) = self.conns.get_mut(slot) else { continue };
            let Some(header) = conn.final_control(now) else { continue };
            self.codec.encode_segment(now, &mut self.tx, conn.path(), &header);
            usable = !self.tx.is_full() || self.flush().is_ok();
        }
        if usable {
            drop(self.flush());
        }
    }
}
