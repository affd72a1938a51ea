//! Admission of unvalidated peers: how many connections they have opened, in total and per source
//! IP address.
//!
//! Source addresses can be forged (RFC 9000 8.1), so only the total limit bounds memory. The limit
//! per source keeps one source from using up the total while many connect.

use std::collections::HashMap;
use std::net::IpAddr;

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

#[derive(Debug, Default)]
pub(crate) struct UnvalidatedPeers {
    total: usize,
    by_source: HashMap<IpAddr, usize>,
}

impl UnvalidatedPeers {
    /// Whether one more connection from `source` is admitted, with `max` in total.
    pub(crate) fn check_admission(&self, source: IpAddr, max: usize) -> Result<(), Refusal> {
        if self.total >= max {
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

    /// Removes a connection from `source`, validated or ended, from the count.
    pub(crate) fn leave(&mut self, source: IpAddr) {
        let Some(count) = self.by_source.get_mut(&source) else { return };
        *count -= 1;
        if *count == 0 {
            self.by_source.remove(&source);
        }
        self.total -= 1;
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
        let mut peers = UnvalidatedPeers::default();
        let max = 64;
        let mut entered = 0;
        while peers.check_admission(ip(1), max).is_ok() {
            peers.enter(ip(1));
            entered += 1;
        }
        assert_eq!(entered, 33);
        assert_eq!(peers.check_admission(ip(1), max), Err(Refusal::Source));
        for source in 2..=20 {
            while peers.check_admission(ip(source), max).is_ok() {
                peers.enter(ip(source));
            }
        }
        assert_eq!(peers.len(), max);
        assert_eq!(peers.check_admission(ip(21), max), Err(Refusal::Full));
        for _ in 0..33 {
            peers.leave(ip(1));
        }
        peers.leave(ip(1));
        assert_eq!(peers.len(), max - 33);
        assert_eq!(peers.check_admission(ip(21), max), Ok(()));
    }
}
