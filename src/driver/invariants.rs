//! What holds for the tables of a driver after every turn, whatever has arrived: for the tests and
//! the fuzz targets.

use super::Driver;
use super::memory::LEAST_QUOTA;
use crate::config::CONNECTION_COST;
use crate::sys::Socket;

/// Bytes beyond the limit: the buffer that was allocated last.
const LAST_BUFFER: usize = 64 << 10;
/// What one reconstruction takes beside the packets that it recovers.
const COEFFICIENTS: usize = 256 << 10;

impl<S: Socket> Driver<S> {
    pub(crate) fn check_invariants(&self) {
        self.conns.iter().for_each(|(_, conn)| conn.check_invariants());
        let (count, limits) = (self.conns.len(), &self.config.limits);
        assert!(count <= limits.max_connections, "{count} connections");
        assert!(self.ready.len() <= count, "{} of {count} are ready", self.ready.len());
        assert!(self.lingering <= count && self.oversized_connections <= count);
        self.demux.check_invariants(count);
        assert!(self.peers.len() <= count, "{} addresses of {count}", self.peers.len());
        let passive = self.conns.iter().filter(|(_, conn)| conn.is_opened_by_peer()).count();
        assert_eq!(self.sources.total(), passive, "connections by source");
        self.retry.check_invariants();
        let unvalidated = self.conns.iter().filter(|(_, conn)| conn.is_unvalidated()).count();
        assert_eq!(self.unvalidated.len(), unvalidated, "connections of unvalidated peers");
        assert!(unvalidated <= limits.max_unvalidated / 2 + 1, "{unvalidated} unvalidated peers");
        let held: usize = self.conns.iter().map(|(_, conn)| conn.held()).sum();
        assert_eq!(self.memory.held(), held + self.peers.memory(), "memory of all holders");
        let used = self.memory.used();
        // Each connection has its state and the least quota of both directions, and what its
        // application has written since the last turn.
        let least = CONNECTION_COST + 2 * LEAST_QUOTA + self.config.send_buffer;
        let beyond = count * least + self.peers.len() * COEFFICIENTS + LAST_BUFFER;
        assert!(used <= limits.memory + beyond, "{used} bytes");
    }
}
