//! Admission of unvalidated peers: how many connections they have opened, how much memory they hold,
//! and to how many of a source more may be sent than three times what it sent.
//!
//! Source addresses can be forged (RFC 9000 8.1), so only the limits in total bound memory. From half
//! of them on, a peer has to show by a [`Retry`](crate::driver::retry) that its address is its own.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::driver::expiring_map::ExpiringMap;
use crate::driver::memory_budget::{CONNECTION_COST, Holder, MemoryBudget};
use crate::driver::source::Source;

/// Divisor: initial datagrams are answered without state while more than `max / 2` connections are
/// unvalidated.
const CROWDED_DIVISOR: usize = 2;
/// Connections of one source that have an allowance within [`ALLOWANCE_PERIOD`] and are not
/// validated. Who forges an IP address can choose any port, and the bytes meet at one host.
const MAX_ALLOWANCES: usize = 8;
const ALLOWANCE_PERIOD: Duration = Duration::from_secs(30);
/// Sources whose allowances are counted; beyond that the oldest count is dropped.
const MAX_SOURCES: usize = 4_096;

#[derive(Debug)]
pub(crate) struct UnvalidatedPeers {
    total: usize,
    /// Allowances of a source since the first of them.
    allowances: ExpiringMap<Source, usize>,
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
        let places = limits.max_unvalidated.min(limits.max_connections);
        let budget = MemoryBudget::new(limits.unvalidated_memory, places, base);
        Self { total: 0, allowances: ExpiringMap::default(), base, budget }
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

    /// Counts a connection.
    pub(crate) fn enter(&mut self) {
        self.total += 1;
    }

    /// Removes a connection, validated or ended, from the count. It held `held` bytes.
    pub(crate) fn leave(&mut self, held: usize) {
        self.budget.update(Holder::Connection, held, 0);
        self.total -= 1;
    }

    /// Takes one allowance of `ip`. Returns false if its source has none left.
    ///
    /// It is not given back when its connection ends: who forges the address could have it spent
    /// again and again.
    pub(crate) fn take_allowance(&mut self, now: Instant, ip: IpAddr) -> bool {
        while self.allowances.pop_expired(now).is_some() {}
        let source = Source::of(ip);
        if let Some(taken) = self.allowances.get_mut(&source) {
            let is_left = *taken < MAX_ALLOWANCES;
            *taken += usize::from(is_left);
            return is_left;
        }
        if self.allowances.len() >= MAX_SOURCES {
            self.allowances.pop_first();
        }
        self.allowances.insert(now + ALLOWANCE_PERIOD, source, 1);
        true
    }

    /// The peer at `ip` that took an allowance is validated.
    pub(crate) fn return_allowance(&mut self, ip: IpAddr) {
        let source = Source::of(ip);
        let Some(taken) = self.allowances.get_mut(&source) else { return };
        *taken = taken.saturating_sub(1);
        if *taken == 0 {
            // It takes the place of no source that has spent some.
            self.allowances.remove(&source);
        }
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
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    #[test]
    fn allowances_of_one_ipv6_prefix_count_together_for_half_a_minute() {
        let mut peers = UnvalidatedPeers::new(&Config::new());
        let (start, at) = (Instant::now(), |host: u16| [0x2001, 0xdb8, 0, 0, 0, 0, 0, host].into());
        let half = start + ALLOWANCE_PERIOD / 2;
        assert!((0..8).all(|host| peers.take_allowance(start, at(host))));
        assert!(!peers.take_allowance(half, at(8)) && peers.take_allowance(half, ip(1)));
        peers.return_allowance(at(3));
        assert!(peers.take_allowance(half, at(8)) && !peers.take_allowance(half, at(9)));
        let later = start + ALLOWANCE_PERIOD;
        assert!((0..8).all(|host| peers.take_allowance(later, at(host))));
        assert!(!peers.take_allowance(later, at(8)));
        for source in 0..10_000_u32 {
            peers.take_allowance(later, IpAddr::from(source.to_be_bytes()));
            assert!(peers.allowances.len() <= MAX_SOURCES);
        }
    }

    #[test]
    fn admission_ends_when_the_table_or_the_memory_is_half_full() {
        let mut config = Config::new();
        config.limits.max_unvalidated = 64;
        let mut peers = UnvalidatedPeers::new(&config);
        while !peers.is_crowded() {
            peers.enter();
        }
        assert_eq!(peers.len(), 33);
        peers.leave(0);
        assert!(!peers.is_crowded());
        peers.budget_mut().update(Holder::Connection, 0, 33 << 20);
        assert!(peers.is_crowded() && peers.memory() == 33 << 20);
        peers.leave(33 << 20);
        assert_eq!((peers.memory(), peers.len()), (0, 31));
    }

    #[test]
    fn unvalidated_peers_have_at_most_half_of_the_connections() {
        let mut config = Config::new();
        config.limits.max_connections = 100;
        let mut peers = UnvalidatedPeers::new(&config);
        while !peers.is_crowded() {
            peers.enter();
        }
        assert_eq!(peers.len(), 51);
    }
}
