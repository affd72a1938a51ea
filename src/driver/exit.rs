//! The end of an endpoint whose runtime or process ends under its connections: one datagram to each peer,
//! as a kernel closes the connections of a process that is gone.

use super::Driver;
use crate::driver::packet_codec::{SendExtras, Written};
use crate::sys::Socket;

impl<S: Socket> Driver<S> {
    /// Sends each peer that takes it a FIN if everything has left, otherwise a RST, as far as the socket
    /// takes them now. No connection is used afterwards. The time is that of the last turn.
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
            let Some(header) = conn.final_control(now) else { continue };
            let write = |tail: &mut Vec<u8>| {
                header.emit(tail);
                Written::Other
            };
            self.codec.encode(now, &mut self.tx, conn.peer(), SendExtras::default(), write);
            usable = !self.tx.is_full() || self.flush().is_ok();
        }
        if usable {
            drop(self.flush());
        }
    }
}
