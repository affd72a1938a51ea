//! Measures random loss: the loss of segments sent below the path's bandwidth, in Drain and Down, while
//! nothing queues.
//!
//! Overflowing queues and policers lose nothing then; a path with random loss loses the same as at any rate.
//! BBRv3 has no such measurement (draft-ietf-ccwg-bbr 5.5.10 takes 2 % for congestion at any time).

use crate::core::clock::Micros;

/// Rounds after the end of a probe until its losses are found.
const ROUNDS: u64 = 2;

/// The latest phase below the bandwidth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossProbe {
    /// Start; `None` before the first probe and after its result was taken.
    from: Option<Micros>,
    /// Time and round of its end.
    until: Option<(Micros, u64)>,
    sent: u64,
    lost: u64,
    /// Shortest RTT in it, microseconds.
    rtt: Option<u64>,
}

impl LossProbe {
    pub(super) fn begin(&mut self, now: Micros) {
        *self = Self { from: Some(now), ..Self::default() };
    }

    /// The phase ends in round `round`.
    pub(super) fn end(&mut self, now: Micros, round: u64) {
        if self.from.is_some() && self.until.is_none() {
            self.until = Some((now, round));
        }
    }

    fn is_active(&self) -> bool {
        self.from.is_some() && self.until.is_none()
    }

    #[inline]
    pub(super) fn on_sent(&mut self) {
        self.sent += u64::from(self.is_active());
    }

    pub(super) fn on_rtt(&mut self, rtt: u64) {
        if self.is_active() {
            self.rtt = Some(self.rtt.map_or(rtt, |least| least.min(rtt)));
        }
    }

    /// A transmission that left at `sent_at` was found lost.
    pub(super) fn on_lost(&mut self, sent_at: Micros) {
        let begun = self.from.is_some_and(|from| sent_at >= from);
        let ended = self.until.is_some_and(|(until, _)| sent_at >= until);
        self.lost += u64::from(begun && !ended);
    }

    /// A loss proved spurious; it may belong to this probe.
    pub(super) fn on_spurious_loss(&mut self) {
        self.lost = self.lost.saturating_sub(1);
    }

    /// The result, once, as soon as all losses are found: segments sent and lost, and the shortest RTT.
    pub(super) fn take(&mut self, round: u64) -> Option<(u64, u64, Option<u64>)> {
        let (_, ended) = self.until.filter(|(_, ended)| round >= ended + ROUNDS)?;
        debug_assert!(round > ended);
        let result = (self.sent, self.lost, self.rtt);
        *self = Self::default();
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_losses_of_the_phase_count_and_two_rounds_later() {
        let mut probe = LossProbe::default();
        probe.on_sent();
        assert_eq!(probe.take(9), None);
        probe.begin(Micros(1_000));
        (0..20).for_each(|_| probe.on_sent());
        [900, 1_000, 1_500].into_iter().for_each(|at| probe.on_lost(Micros(at)));
        [70, 50, 60].into_iter().for_each(|rtt| probe.on_rtt(rtt));
        probe.end(Micros(2_000), 7);
        probe.on_sent();
        probe.on_rtt(1);
        [1_999, 2_000].into_iter().for_each(|at| probe.on_lost(Micros(at)));
        assert_eq!(probe.take(8), None);
        probe.on_spurious_loss();
        assert_eq!(probe.take(9), Some((20, 2, Some(50))));
        assert_eq!(probe.take(10), None);
    }
}
