//! Admission of unvalidated peers: how many connections they have opened, in total and per source
//! IP address, and how much memory they hold.
//!
//! Source addresses can be forged (RFC 9000 8.1), so only the limits in total bound memory. From half
//! of them on, a peer has to show by a [`Retry`](crate::driver::retry) that its address is its own.

use std::net::IpAddr;

use crate::config::Config;
use crate::driver::memory_budget::{CONNECTION_COST, Holder, MemoryBudget};
use crate::driver::source::SourceCounts;

/// Divisor: initial datagrams are answered without state while more than `max / 2` connections are
/// unvalidated.
const CROWDED_DIVISOR: usize = 2;

#[derive(Debug)]
pub(crate) struct UnvalidatedPeers {
    total: usize,
    by_source: SourceCounts,
    /// Bytes that one connection holds without any data.
    base: usize,
    budget: MemoryBudget,
}

impl UnvalidatedPeers {
    pub(crate) fn new(config: &Config) -> Self {
        let parity = config.fec.map_or(0, |fec| fec.parity_shards());
        // The encoder of an address: its parity.
        let base = CONNECTION_COST + parity * usize::from(config.kcp.mtu);
        let limits = &config.limits;
        let budget = MemoryBudget::new(limits.unvalidated_memory, limits.max_unvalidated, base);
        Self { total: 0, by_source: SourceCounts::default(), base, budget }
    }

    /// Bytes that one connection holds without any data.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    pub(crate) fn budget_mut(&mut self) -> &mut MemoryBudget {
        &mut self.budget
    }

    /// Whether only peers whose address is validated may open a connection.
    pub(crate) fn is_crowded(&self) -> bool {
        self.total > self.budget.places() / CROWDED_DIVISOR || self.budget.is_half_used()
    }

    /// Unvalidated connections from `source`.
    pub(crate) fn count_of(&self, source: IpAddr) -> usize {
        self.by_source.get(source)
    }

    /// Counts a connection from `source`.
    pub(crate) fn enter(&mut self, source: IpAddr) {
        self.total += 1;
        self.by_source.add(source);
    }

    /// Removes a connection from `source`, validated or ended, from the count. It held `held` bytes.
    pub(crate) fn leave(&mut self, source: IpAddr, held: usize) {
        self.budget.update(Holder::Connection, held, 0);
        self.total -= usize::from(self.by_source.remove(source));
    }

    /// Bytes that all of them hold.
    pub(crate) fn memory(&self) -> usize {
        self.budget.used()
    }

    pub(crate) fn len(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    #[test]
    fn peers_of_one_ipv6_prefix_count_together() {
        let mut peers = UnvalidatedPeers::new(&Config::new());
        peers.enter("2001:db8::1".parse().unwrap());
        peers.enter("2001:db8::2".parse().unwrap());
        assert_eq!(peers.count_of("2001:db8::3".parse().unwrap()), 2);
        peers.leave("2001:db8::1".parse().unwrap(), 0);
        assert_eq!((peers.count_of("2001:db8::3".parse().unwrap()), peers.len()), (1, 1));
    }

    #[test]
    fn admission_ends_when_the_table_or_the_memory_is_half_full() {
        let mut config = Config::new();
        config.limits.max_unvalidated = 64;
        let mut peers = UnvalidatedPeers::new(&config);
        let mut entered = 0_u8;
        while !peers.is_crowded() {
            peers.enter(ip(entered % 3));
            entered += 1;
        }
        assert_eq!((entered, peers.len(), peers.count_of(ip(1))), (33, 33, 11));
        peers.leave(ip(1), 0);
        assert!(!peers.is_crowded());
        peers.budget_mut().update(Holder::Connection, 0, 33 << 20);
        assert!(peers.is_crowded() && peers.memory() == 33 << 20);
        peers.leave(ip(1), 33 << 20);
        assert_eq!((peers.memory(), peers.count_of(ip(1)), peers.len()), (0, 9, 31));
    }
}
