//! Publishing of the endpoint statistics at the end of a turn.

use crate::driver::Driver;
use crate::sys::Socket;
use crate::trace;

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
