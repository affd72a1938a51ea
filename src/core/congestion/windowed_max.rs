//! Maximum over the last rounds: BBR's max_bw filter (draft-ietf-ccwg-bbr 2.9 `BBR.MaxBwFilterLen`).

/// Number of rounds, including the current one.
const ROUNDS: usize = 10;

/// Largest value of the last [`ROUNDS`] rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowedMax {
    /// Largest value of each round, as a ring; `current` is the latest.
    rounds: [u64; ROUNDS],
    current: usize,
    max: u64,
}

impl WindowedMax {
    /// Adds a value to the current round.
    #[inline]
    pub(crate) fn update(&mut self, value: u64) {
        self.max = self.max.max(value);
        let round = &mut self.rounds[self.current];
        *round = (*round).max(value);
    }

    /// Begins the next round and forgets the oldest one.
    pub(crate) fn next_round(&mut self) {
        self.current = (self.current + 1) % ROUNDS;
        self.rounds[self.current] = 0;
        self.max = self.rounds.iter().copied().max().unwrap_or(0);
    }

    /// The largest value outside the round of [`Self::max`].
    pub(crate) fn second(&self) -> u64 {
        let mut sorted = self.rounds;
        sorted.sort_unstable();
        sorted[ROUNDS - 2]
    }

    pub(crate) fn max(&self) -> u64 {
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maximum_is_forgotten_after_ten_rounds() {
        let mut max = WindowedMax::default();
        max.update(7);
        max.update(100);
        for _ in 1..ROUNDS {
            max.next_round();
            max.update(50);
            assert_eq!(max.max(), 100);
        }
        max.next_round();
        assert_eq!(max.max(), 50);
        (0..ROUNDS).for_each(|_| max.next_round());
        assert_eq!(max.max(), 0);
    }
}
