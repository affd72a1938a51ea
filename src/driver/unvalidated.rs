//! Admission of unvalidated peers: how many connections they have opened, and to how many of a source
//! more may be sent than three times what it sent.
//!
//! Source addresses can be forged (RFC 9000 8.1), so only the limits in total bound memory. From half
//! of them on, a peer has to show by a [`Retry`](crate::driver::retry) that its address is its own.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::config::Limits;
use crate::driver::expiring_map::ExpiringMap;
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
    /// `Limits::max_unvalidated`.
    max: usize,
}

impl UnvalidatedPeers {
    pub(crate) fn new(limits: &Limits) -> Self {
        let max = limits.max_unvalidated.min(limits.max_connections);
        Self { total: 0, allowances: ExpiringMap::default(), max }
    }

    /// Whether more than half of the places are taken.
    pub(crate) fn is_crowded(&self) -> bool {
        self.total > self.max / CROWDED_DIVISOR
    }

    /// Counts a connection.
    pub(crate) fn enter(&mut self) {
        self.total += 1;
    }

    /// Removes a connection, validated or ended, from the count.
    pub(crate) fn leave(&mut self) {
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
        let mut peers = UnvalidatedPeers::new(&Limits::default());
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
    fn admission_ends_when_the_table_is_half_full() {
        let limits = Limits { max_unvalidated: 64, ..Limits::default() };
        let mut peers = UnvalidatedPeers::new(&limits);
        while !peers.is_crowded() {
            peers.enter();
        }
        assert_eq!(peers.len(), 33);
        peers.leave();
        assert!(!peers.is_crowded());
    }

    #[test]
    fn unvalidated_peers_have_at_most_half_of_the_connections() {
        let limits = Limits { max_connections: 100, ..Limits::default() };
        let mut peers = UnvalidatedPeers::new(&limits);
        while !peers.is_crowded() {
            peers.enter();
        }
        assert_eq!(peers.len(), 51);
    }
}
