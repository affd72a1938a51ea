//! How many conversations were opened by someone who has proved nothing yet, and from where.
//!
//! Source addresses can be made up, so the bound on all of them is what protects memory. The bound
//! on one source only sees to it that, while many try, one of them does not crowd out the others.

use std::collections::HashMap;
use std::net::IpAddr;

/// While more than this share of the places is taken, one source holds at most that share.
const CROWDED: usize = 2;
const SOURCE_SHARE: usize = 16;

/// Why someone is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too many have proved nothing.
    Full,
    /// Too many of them come from there.
    Source,
}

#[derive(Debug, Default)]
pub(crate) struct UnvalidatedPeers {
    total: usize,
    by_source: HashMap<IpAddr, usize>,
}

impl UnvalidatedPeers {
    /// Whether one more from `source` may enter where `max` are allowed.
    pub(crate) fn check_admission(&self, source: IpAddr, max: usize) -> Result<(), Refusal> {
        if self.total >= max {
            return Err(Refusal::Full);
        }
        let held = || self.by_source.get(&source).copied().unwrap_or(0);
        if self.total > max / CROWDED && held() >= (max / SOURCE_SHARE).max(1) {
            return Err(Refusal::Source);
        }
        Ok(())
    }

    pub(crate) fn enter(&mut self, source: IpAddr) {
        self.total += 1;
        *self.by_source.entry(source).or_default() += 1;
    }

    /// It has proved that it is there, or is gone.
    pub(crate) fn leave(&mut self, source: IpAddr) {
        let Some(held) = self.by_source.get_mut(&source) else { return };
        *held -= 1;
        if *held == 0 {
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
    fn one_source_may_have_half_of_all_places_and_no_more() {
        let mut strangers = UnvalidatedPeers::default();
        let max = 64;
        let mut entered = 0;
        while strangers.check_admission(ip(1), max).is_ok() {
            strangers.enter(ip(1));
            entered += 1;
        }
        assert_eq!(entered, 33);
        assert_eq!(strangers.check_admission(ip(1), max), Err(Refusal::Source));
        for source in 2..=20 {
            while strangers.check_admission(ip(source), max).is_ok() {
                strangers.enter(ip(source));
            }
        }
        assert_eq!(strangers.len(), max);
        assert_eq!(strangers.check_admission(ip(21), max), Err(Refusal::Full));
        for _ in 0..33 {
            strangers.leave(ip(1));
        }
        strangers.leave(ip(1));
        assert_eq!(strangers.len(), max - 33);
        assert_eq!(strangers.check_admission(ip(21), max), Ok(()));
    }
}
