//! What holds for the tables of a driver after every turn, whatever has arrived: for the tests and
//! the fuzz targets.

use super::Driver;
use crate::sys::Socket;

/// Bytes of unvalidated peers beyond the limit: the buffer that was allocated last.
const LAST_BUFFER: usize = 64 << 10;
/// The first segment of a connection, and its bookkeeping.
const FIRST_SEGMENT: usize = 4_096;
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
        self.retry.check_invariants();
        let unvalidated = self.conns.iter().filter(|(_, conn)| conn.is_unvalidated()).count();
        assert_eq!(self.unvalidated.len(), unvalidated, "connections of unvalidated peers");
        assert!(unvalidated <= limits.max_unvalidated / 2 + 1, "{unvalidated} unvalidated peers");
        let beyond = LAST_BUFFER
            + unvalidated * (FIRST_SEGMENT + self.unvalidated.base() + self.config.send_buffer)
            + self.config.fec.map_or(0, |_| COEFFICIENTS);
        let memory = self.unvalidated.memory();
        assert!(memory <= limits.unvalidated_memory + beyond, "{memory} bytes");
        self.early.check_invariants();
    }
}
