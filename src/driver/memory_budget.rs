//! The memory of unvalidated peers: one budget for all of them.
//!
//! Three quarters of the budget are reserved in equal shares, one for each connection that may be
//! unvalidated. The rest is a pool with a dynamic threshold (Choudhury and Hahne, "Dynamic Queue
//! Length Thresholds for Shared-Memory Packet Switches", 1998): beyond its share nobody holds more
//! than a sixteenth of what is free there. So the first to come have plenty, and the last to come
//! their share. What does not fit is dropped like a lost datagram; the sender retransmits.

/// Divisor: a quarter of the budget is the pool.
const POOL_DIVISOR: usize = 4;
/// Divisor: one holder has at most a sixteenth of what is free of the pool.
const THRESHOLD_DIVISOR: usize = 16;
/// Bytes that the state of one connection takes, without any data (tests/memory.rs).
pub(crate) const CONNECTION_COST: usize = 4_096;
/// Least share of a connection, bytes: its state and two full segments.
const MIN_SHARE: usize = 2 * CONNECTION_COST;

/// What memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// An unvalidated connection, which has a share.
    Connection,
    /// Anything else that is kept for an unvalidated peer: from the pool alone.
    Other,
}

#[derive(Debug)]
pub(crate) struct MemoryBudget {
    /// Bytes in total.
    limit: usize,
    /// Bytes in use.
    used: usize,
    /// Bytes reserved for each connection.
    share: usize,
    /// Bytes that every connection may have, whatever the others hold: its state and a segment.
    min_share: usize,
    /// Bytes of the pool, and how many of them are in use.
    pool: usize,
    pool_used: usize,
    /// Connections that have a share.
    places: usize,
}

impl MemoryBudget {
    /// A budget of `limit` bytes for at most `max_connections`, of which each takes `base` bytes
    /// without any data. One is always possible: if there is no memory for its share, it has `base`
    /// and a segment nevertheless.
    pub(crate) fn new(limit: usize, max_connections: usize, base: usize) -> Self {
        let pool = limit / POOL_DIVISOR;
        let min_share = base + CONNECTION_COST;
        let places = ((limit - pool) / MIN_SHARE.max(min_share)).min(max_connections);
        let places = places.max(1);
        let share = (limit - pool) / places;
        Self { limit, used: 0, share, min_share, pool, pool_used: 0, places }
    }

    /// Connections that there is memory for.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Whether more than half of the budget is in use.
    pub(crate) fn is_half_used(&self) -> bool {
        self.used > self.limit / 2
    }

    /// Bytes that a holder of `held` bytes may add.
    pub(crate) fn allowance(&self, holder: Holder, held: usize) -> usize {
        let share = self.share_of(holder);
        let threshold = self.pool.saturating_sub(self.pool_used) / THRESHOLD_DIVISOR;
        let of_pool = threshold.saturating_sub(held.saturating_sub(share));
        let free = self.limit.saturating_sub(self.used);
        let allowance = share.saturating_sub(held).saturating_add(of_pool).min(free);
        match holder {
            Holder::Connection => allowance.max(self.min_share.saturating_sub(held)),
            Holder::Other => allowance,
        }
    }

    /// A holder of `before` bytes has `after` bytes now.
    pub(crate) fn update(&mut self, holder: Holder, before: usize, after: usize) {
        let share = self.share_of(holder);
        self.used = (self.used + after).saturating_sub(before);
        self.pool_used = (self.pool_used + after.saturating_sub(share))
            .saturating_sub(before.saturating_sub(share));
    }

    fn share_of(&self, holder: Holder) -> usize {
        match holder {
            Holder::Connection => self.share,
            Holder::Other => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of `count` connections takes what it can, one after the other.
    fn fill(budget: &mut MemoryBudget, count: usize) -> Vec<usize> {
        let take = |budget: &mut MemoryBudget| {
            let mut held = 0;
            loop {
                let more = budget.allowance(Holder::Connection, held).min(1_500);
                if more == 0 {
                    return held;
                }
                budget.update(Holder::Connection, held, held + more);
                held += more;
            }
        };
        (0..count).map(|_| take(budget)).collect()
    }

    #[test]
    fn memory_budget_holds_and_keeps_a_share_for_everyone() {
        let mut budget = MemoryBudget::new(64 << 20, 4_096, CONNECTION_COST);
        let held = fill(&mut budget, 4_096);
        assert_eq!(held.iter().sum::<usize>(), budget.used());
        assert!(budget.used() <= 64 << 20);
        assert!((900 << 10..1_100 << 10).contains(&held[0]), "{} bytes", held[0]);
        assert!(held.iter().all(|held| *held >= 12 << 10), "the share");
        held.iter().for_each(|held| budget.update(Holder::Connection, *held, 0));
        assert_eq!((budget.used(), budget.pool_used), (0, 0));
    }

    #[test]
    fn memory_budget_bounds_the_number_of_connections() {
        assert_eq!(MemoryBudget::new(64 << 20, 1 << 20, CONNECTION_COST).places(), 6_144);
        assert_eq!(MemoryBudget::new(1 << 20, 4_096, CONNECTION_COST).places(), 96);
        assert_eq!(MemoryBudget::new(1 << 20, 4_096, 2 << 20).places(), 1);
    }

    #[test]
    fn memory_budget_has_a_segment_for_every_connection() {
        let base = 2 << 20;
        let mut budget = MemoryBudget::new(1 << 20, 4_096, base);
        budget.update(Holder::Connection, 0, base);
        assert_eq!(budget.allowance(Holder::Connection, base), CONNECTION_COST);
        assert_eq!(budget.allowance(Holder::Connection, base + 4_000), CONNECTION_COST - 4_000);
        assert_eq!(budget.allowance(Holder::Connection, base + 5_000), 0);
        assert_eq!(budget.allowance(Holder::Other, 0), 0);
    }

    #[test]
    fn memory_budget_gives_others_the_pool_alone() {
        let mut budget = MemoryBudget::new(64 << 20, 4_096, CONNECTION_COST);
        let mut all = 0;
        for _ in 0..10_000 {
            let more = budget.allowance(Holder::Other, 0);
            budget.update(Holder::Other, 0, more);
            all += more;
        }
        assert!(all <= 16 << 20 && all > 15 << 20, "{all}");
        assert!(budget.allowance(Holder::Connection, 0) >= 12 << 10);
    }
}
