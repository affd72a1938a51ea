//! Random loss rate of a path: loss while nothing queues, which slower sending does not reduce. Only loss
//! above it is congestion.
//!
//! BBRv3 treats 2 % as congestion (draft-ietf-ccwg-bbr `BBR.LossThresh`), so random loss of 5 % leaves a
//! sixteenth of the rate. Here the threshold is 2 % and two standard deviations above the loss measured while
//! less is sent than the path carries (`model/loss_probe.rs`).

/// Loss above the base that counts as congestion, per million (draft `BBR.LossThresh`).
const THRESHOLD: u64 = 20_000;
/// Segments counted as sent and not lost at the start.
const PRIOR: u64 = 64;
/// Segments remembered; beyond that the older ones lose weight.
const MEMORY: u64 = 4_096;
/// Highest base, per million.
const MAX_BASE: u64 = 350_000;
/// Base used for the standard deviation is at least this, per million.
const MIN_VARIANCE_BASE: u64 = 2_000;
/// Rounds with fewer segments are not judged.
const MIN_SEGMENTS: u64 = 8;
const MILLION: u64 = 1_000_000;

/// Estimator of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossBase {
    /// Segments of the measurements without a queue, and the lost ones among them, in thousandths.
    sent: u64,
    lost: u64,
    /// True after the first measurement.
    is_measured: bool,
    /// Invariant: `lost` per million of `sent`, at most [`MAX_BASE`].
    per_million: u64,
}

impl LossBase {
    pub(crate) fn new() -> Self {
        Self { sent: PRIOR * 1_000, lost: 0, is_measured: false, per_million: 0 }
    }

    /// A measurement without a queue: `lost` of `sent` segments were lost.
    pub(crate) fn on_round(&mut self, sent: u64, lost: u64) {
        self.is_measured = true;
        self.sent += sent.min(MEMORY) * 1_000;
        self.lost += lost.min(sent).min(MEMORY) * 1_000;
        if self.sent > MEMORY * 1_000 {
            self.lost = self.lost * (MEMORY * 1_000) / self.sent;
            self.sent = MEMORY * 1_000;
        }
        self.update();
    }

    /// Another round with a standing queue. The base may come from an earlier one, so it fades until it is
    /// measured again.
    pub(crate) fn on_queue(&mut self) {
        self.lost -= self.lost / 16;
        self.update();
    }

    /// Keeps the invariant of `per_million`.
    fn update(&mut self) {
        self.per_million = (self.lost * MILLION / self.sent).min(MAX_BASE);
    }

    /// Loss rate without a queue, per million.
    pub(crate) fn per_million(&self) -> u64 {
        self.per_million
    }

    /// Whether the loss rate was ever measured.
    pub(crate) fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// Whether `lost` of `sent` segments exceed random loss.
    pub(crate) fn is_exceeded(&self, sent: u64, lost: u64) -> bool {
        sent >= MIN_SEGMENTS && rate(sent, lost) > self.threshold(sent)
    }

    /// As [`Self::is_exceeded`], stricter, for large counts that are judged often.
    pub(crate) fn is_surely_exceeded(&self, sent: u64, lost: u64) -> bool {
        let threshold = self.threshold(sent);
        rate(sent, lost) > threshold + (threshold - self.per_million - THRESHOLD) / 2
    }

    /// As [`Self::is_exceeded`], and above `least` per million.
    pub(crate) fn is_exceeded_by(&self, sent: u64, lost: u64, least: u64) -> bool {
        self.is_exceeded(sent, lost) && rate(sent, lost) > least
    }

    /// Loss of `sent` segments above which it is congestion, per million.
    fn threshold(&self, sent: u64) -> u64 {
        let base = self.per_million();
        let p = base.max(MIN_VARIANCE_BASE);
        // Standard deviation of the share: sqrt(p (1 - p) / n).
        let sigma = (p * (MILLION - p) / sent.max(1)).isqrt();
        base + THRESHOLD + 2 * sigma
    }
}

fn rate(sent: u64, lost: u64) -> u64 {
    lost.min(sent).saturating_mul(MILLION) / sent.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_follows_the_loss_of_rounds_without_a_queue() {
        let mut base = LossBase::new();
        assert_eq!(base.per_million(), 0);
        (0..100).for_each(|_| base.on_round(100, 5));
        assert!((47_000..=50_000).contains(&base.per_million()), "{}", base.per_million());
        (0..200).for_each(|_| base.on_round(100, 0));
        assert!(base.per_million() < 1_000, "{}", base.per_million());
    }

    #[test]
    fn only_loss_beyond_the_base_is_congestion() {
        let mut base = LossBase::new();
        // The threshold is 2 % plus two standard deviations: 2.9 % with a base of 0.2 % and 100 segments.
        assert!(base.is_exceeded(100, 3) && !base.is_exceeded(100, 2) && !base.is_exceeded(7, 7));
        (0..200).for_each(|_| base.on_round(100, 20));
        assert!(!base.is_exceeded(100, 29) && base.is_exceeded(100, 31));
        assert!(!base.is_exceeded_by(100, 31, 400_000));
    }

    #[test]
    fn numbers_beyond_any_window_saturate() {
        let mut base = LossBase::new();
        (0..1_000).for_each(|_| base.on_round(u64::MAX, u64::MAX));
        assert_eq!(base.per_million(), MAX_BASE);
        assert!(base.is_exceeded(u64::from(u32::MAX), u64::from(u32::MAX)));
    }
}
