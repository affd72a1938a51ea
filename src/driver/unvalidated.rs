//! Admission of unvalidated peers: how many connections they have opened, in total and per source
//! IP address, and how much memory they hold.
//!
//! Source addresses can be forged (RFC 9000 8.1), so only the limits in total bound memory. The limit
//! per source keeps one source from using up the total while many connect.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::config::Config;
use crate::driver::memory_budget::{CONNECTION_COST, Holder, MemoryBudget};

/// Divisor: the limit per source applies while more than `max / 2` connections are unvalidated.
const CROWDED_DIVISOR: usize = 2;
/// Divisor: one source then has at most `max / 16` unvalidated connections, or one if that is 0.
const SOURCE_DIVISOR: usize = 16;

/// Why an initial datagram is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// `max_unvalidated` connections are unvalidated.
    Full,
    /// Too many unvalidated connections are from this source.
    Source,
}

#[derive(Debug)]
pub(crate) struct UnvalidatedPeers {
    total: usize,
    by_source: HashMap<IpAddr, usize>,
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
        Self { total: 0, by_source: HashMap::new(), base, budget }
    }

    /// Bytes that one connection holds without any data.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    pub(crate) fn budget_mut(&mut self) -> &mut MemoryBudget {
        &mut self.budget
    }

    /// Whether one more connection from `source` is admitted.
    pub(crate) fn check_admission(&self, source: IpAddr) -> Result<(), Refusal> {
        let max = self.budget.places();
        if self.total >= max || self.budget.allowance(Holder::Connection, 0) < self.base {
            return Err(Refusal::Full);
        }
        let max_per_source = (max / SOURCE_DIVISOR).max(1);
        if self.total > max / CROWDED_DIVISOR && self.count_of(source) >= max_per_source {
            return Err(Refusal::Source);
        }
        Ok(())
    }

    /// Unvalidated connections from `source`.
    pub(crate) fn count_of(&self, source: IpAddr) -> usize {
        self.by_source.get(&source).copied().unwrap_or(0)
    }

    /// Counts a connection from `source`.
    pub(crate) fn enter(&mut self, source: IpAddr) {
        self.total += 1;
        *self.by_source.entry(source).or_default() += 1;
    }

    /// Removes a connection from `source`, validated or ended, from the count. It held `held` bytes.
    pub(crate) fn leave(&mut self, source: IpAddr, held: usize) {
        self.budget.update(Holder::Connection, held, 0);
        let Some(count) = self.by_source.get_mut(&source) else { return };
        *count -= 1;
        if *count == 0 {
            self.by_source.remove(&source);
        }
        self.total -= 1;
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
    fn admission_limits_one_source_while_the_table_is_half_full() {
        let mut config = Config::new();
        let max = 64;
        config.limits.max_unvalidated = max;
        let mut peers = UnvalidatedPeers::new(&config);
        let mut entered = 0;
        while peers.check_admission(ip(1)).is_ok() {
            peers.enter(ip(1));
            entered += 1;
        }
        assert_eq!(entered, 33);
        assert_eq!(peers.check_admission(ip(1)), Err(Refusal::Source));
        for source in 2..=20 {
            while peers.check_admission(ip(source)).is_ok() {
                peers.enter(ip(source));
            }
        }
        assert_eq!(peers.len(), max);
        assert_eq!(peers.check_admission(ip(21)), Err(Refusal::Full));
        for _ in 0..33 {
            peers.leave(ip(1), 0);
        }
        peers.leave(ip(1), 0);
        assert_eq!(peers.len(), max - 33);
        assert_eq!(peers.check_admission(ip(21)), Ok(()));
    }
}
