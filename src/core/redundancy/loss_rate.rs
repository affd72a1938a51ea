//! Loss rate of first transmissions, which decides the number of copies of a retransmission.
//!
//! It is the larger of the mean over the last [`WINDOW_SECONDS`] and the mean over the last second, so that
//! it rises at once and falls slowly (WebRTC's FEC controller also filters by the maximum). A segment counts
//! as lost when it is first retransmitted, until the loss proves spurious (RFC 3522). kcp-go measures no
//! loss.

use crate::core::clock::Micros;

/// Length of the longer mean, seconds.
const WINDOW_SECONDS: usize = 10;
const SECOND: u64 = 1_000_000;

/// First transmissions of one second, and the lost ones among them.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    sent: u32,
    lost: u32,
    /// Segments counted in `lost` that arrived, but whose ACK was lost.
    acks_lost: u32,
}

/// Estimator of one connection.
#[derive(Clone, Debug)]
pub(crate) struct LossRate {
    /// A ring; the current second is `seconds[current]`.
    seconds: [Second; WINDOW_SECONDS],
    current: usize,
    /// When the current second began.
    began: Micros,
}

impl LossRate {
    /// Starts with `sent` segments and no loss.
    pub(crate) fn new(now: Micros, sent: u32) -> Self {
        let mut seconds = [Second::default(); WINDOW_SECONDS];
        if let Some(first) = seconds.first_mut() {
            first.sent = sent;
        }
        Self { seconds, current: 0, began: now }
    }

    /// A segment is sent for the first time.
    pub(crate) fn on_sent(&mut self, now: Micros) {
        let second = self.second(now);
        second.sent = second.sent.saturating_add(1);
    }

    /// A segment that was sent once is retransmitted.
    pub(crate) fn on_lost(&mut self, now: Micros) {
        let second = self.second(now);
        second.lost = second.lost.saturating_add(1);
    }

    /// A retransmission counted by [`Self::on_lost`] was spurious.
    pub(crate) fn on_spurious(&mut self, now: Micros) {
        let second = self.second_that_counts(now, |second| second.lost);
        second.lost = second.lost.saturating_sub(1);
    }

    /// A segment that counts as lost arrived, but its ACK was lost.
    pub(crate) fn on_ack_lost(&mut self, now: Micros) {
        let second = self.second(now);
        second.acks_lost = second.acks_lost.saturating_add(1);
    }

    /// An ACK that [`Self::on_ack_lost`] counted as lost was only late.
    pub(crate) fn on_ack_arrived(&mut self, now: Micros) {
        let second = self.second_that_counts(now, |second| second.acks_lost);
        second.acks_lost = second.acks_lost.saturating_sub(1);
    }

    /// Lost segments per million.
    pub(crate) fn per_million(&self) -> u32 {
        self.mean_per_million().max(mean(&self.last_second(), false))
    }

    /// Segments per million that were lost, or whose ACK was lost.
    pub(crate) fn per_million_with_acks(&self) -> u32 {
        mean(&self.seconds, true).max(mean(&self.last_second(), true))
    }

    /// Lost segments per million over the longer time alone.
    pub(crate) fn mean_per_million(&self) -> u32 {
        mean(&self.seconds, false)
    }

    /// The current second and the previous one.
    fn last_second(&self) -> [Second; 2] {
        [self.seconds[self.before()], self.seconds[self.current]]
    }

    /// The second that counted the event that is taken back: the current one, or the previous one if `count`
    /// is zero.
    fn second_that_counts(&mut self, now: Micros, count: fn(&Second) -> u32) -> &mut Second {
        let is_current = count(self.second(now)) > 0;
        let index = if is_current { self.current } else { self.before() };
        &mut self.seconds[index]
    }

    fn before(&self) -> usize {
        (self.current + WINDOW_SECONDS - 1) % WINDOW_SECONDS
    }

    /// The counts of the second that contains `now`; forgets older ones.
    fn second(&mut self, now: Micros) -> &mut Second {
        let passed = now.since(self.began) / SECOND;
        for _ in 0..passed.min(WINDOW_SECONDS as u64) {
            self.current = (self.current + 1) % WINDOW_SECONDS;
            self.seconds[self.current] = Second::default();
        }
        self.began = self.began.add_micros(passed * SECOND);
        &mut self.seconds[self.current]
    }
}

/// Lost segments per million; `with_acks` includes segments whose ACK was lost.
fn mean(seconds: &[Second], with_acks: bool) -> u32 {
    let (sent, lost) = seconds.iter().fold((0_u64, 0_u64), |(sent, lost), second| {
        let arrived = if with_acks { 0 } else { second.acks_lost };
        (sent + u64::from(second.sent), lost + u64::from(second.lost.saturating_sub(arrived)))
    });
    // Losses of segments sent in an earlier second can exceed the number sent in this one.
    let rate = lost.min(sent) * 1_000_000 / sent.max(1);
    u32::try_from(rate).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `count` segments within the second after `now`; every `nth` is lost.
    fn send(rate: &mut LossRate, now: u64, count: u64, nth: u64) {
        for i in 0..count {
            let now = Micros(now + i * SECOND / count);
            rate.on_sent(now);
            if i % nth == 0 {
                rate.on_lost(now);
            }
        }
    }

    #[test]
    fn loss_rate_is_the_larger_of_ten_seconds_and_the_last() {
        let mut rate = LossRate::new(Micros(0), 0);
        for second in 0..9 {
            send(&mut rate, second * SECOND, 100, 10);
        }
        assert_eq!(rate.per_million(), 100_000);
        send(&mut rate, 9 * SECOND, 100, 2);
        // 60 of 200 in the last two seconds, 140 of 1,000 in all ten.
        assert_eq!(rate.per_million(), 300_000);
    }

    #[test]
    fn lost_acks_are_no_lost_segments() {
        let mut rate = LossRate::new(Micros(0), 0);
        send(&mut rate, 0, 100, 10);
        (0..4).for_each(|_| rate.on_ack_lost(Micros(1)));
        assert_eq!((rate.per_million(), rate.per_million_with_acks()), (60_000, 100_000));
        rate.on_ack_arrived(Micros(1));
        assert_eq!(rate.per_million(), 70_000);
    }

    #[test]
    fn loss_rate_forgets_after_ten_seconds() {
        let mut rate = LossRate::new(Micros(0), 0);
        send(&mut rate, 0, 100, 10);
        for second in 1..10 {
            send(&mut rate, second * SECOND, 100, u64::MAX);
            rate.on_spurious(Micros(second * SECOND));
        }
        assert!((10_000..11_000).contains(&rate.per_million()), "{}", rate.per_million());
        send(&mut rate, 11 * SECOND, 100, u64::MAX);
        rate.on_spurious(Micros(11 * SECOND));
        assert_eq!(rate.per_million(), 0);
        // A loss is taken back even if a new second has begun.
        rate.on_lost(Micros(11 * SECOND));
        rate.on_spurious(Micros(12 * SECOND));
        assert_eq!(rate.per_million(), 0);
        send(&mut rate, 10_000 * SECOND, 10, 1);
        assert_eq!(rate.per_million(), 1_000_000);
    }
}
