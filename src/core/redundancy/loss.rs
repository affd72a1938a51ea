//! Measured losses of first transmissions: their rate, and a record of them.

use crate::core::clock::Micros;
use crate::core::seq::Sn;

/// Length of the longer mean, seconds.
const WINDOW_SECONDS: usize = 10;
const SECOND: u64 = 1_000_000;

/// First transmissions of one second, and the lost ones among them.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    sent: u32,
    lost: u32,
    /// Segments counted in `lost` that arrived: their ACK was lost.
    acks_lost: u32,
}

/// Loss rate of first transmissions, which decides the number of copies of a retransmission.
///
/// It is the larger of the mean over the last [`WINDOW_SECONDS`] and the mean over the last second, so that
/// it rises at once and falls slowly (WebRTC's FEC controller also filters by the maximum). A segment counts
/// as lost when it is first retransmitted, until the loss proves spurious (RFC 3522). kcp-go measures no
/// loss.
///
/// All losses count, whatever their cause. The BBR model measures random loss separately, since congestive
/// loss must not raise its rate.
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

    /// Segments per million that were lost or had their ACK lost.
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

/// Lost segments per million; `with_acks` includes lost ACKs.
fn mean(seconds: &[Second], with_acks: bool) -> u32 {
    let (sent, lost) = seconds.iter().fold((0_u64, 0_u64), |(sent, lost), second| {
        let arrived = if with_acks { 0 } else { second.acks_lost };
        (sent + u64::from(second.sent), lost + u64::from(second.lost.saturating_sub(arrived)))
    });
    // Losses of segments sent in an earlier second can exceed the number sent in this one.
    let rate = lost.min(sent) * 1_000_000 / sent.max(1);
    u32::try_from(rate).unwrap_or(u32::MAX)
}

/// Segments remembered.
const SEGMENTS: u32 = 1_024;
/// Segments counted as sent and not lost at the start.
const PRIOR_SEGMENTS: u32 = 512;
const MILLION: u64 = 1_000_000;
/// Most open losses in a replay.
const MAX_OPEN: usize = 64;

/// Fate of the latest first transmissions of one connection, in order of number: a rate alone would not tell
/// bursts from single losses.
#[derive(Clone, Debug)]
pub(crate) struct LossRecord {
    /// By number modulo [`SEGMENTS`]: 1 if the segment was lost.
    bits: [u64; SEGMENTS as usize / 64],
    /// The number after the latest.
    end: Sn,
    len: u32,
    /// Losses since the record began, modulo 2^32.
    losses: u32,
}

/// Parameters of a replay; times are in segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replay {
    /// Symbols per million segments.
    pub(crate) rate: u64,
    /// A message that waits longer than this is late.
    pub(crate) late: u64,
    /// Time until the retransmission of a lost segment arrives.
    pub(crate) retransmitted: u64,
}

/// Result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) segments: u64,
    /// Segments that were late.
    pub(crate) late: u64,
    /// Retransmissions.
    pub(crate) retransmitted: u64,
}

impl LossRecord {
    /// `nxt` is SND.NXT.
    pub(crate) fn new(nxt: Sn) -> Self {
        let bits = [0; SEGMENTS as usize / 64];
        Self { bits, end: nxt, len: PRIOR_SEGMENTS, losses: 0 }
    }

    /// `sn` leaves for the first time.
    pub(crate) fn on_sent(&mut self, sn: Sn) {
        self.set(sn, false);
        (self.end, self.len) = (sn.advance(1), (self.len + 1).min(SEGMENTS));
    }

    /// The only transmission of `sn` was lost.
    pub(crate) fn on_lost(&mut self, sn: Sn) {
        if self.has(sn) {
            self.set(sn, true);
            self.losses = self.losses.wrapping_add(1);
        }
    }

    /// The loss of `sn` was spurious.
    pub(crate) fn take_back(&mut self, sn: Sn) {
        if self.has(sn) {
            self.set(sn, false);
        }
    }

    /// Losses since the record began, modulo 2^32.
    pub(crate) fn losses(&self) -> u32 {
        self.losses
    }

    fn has(&self, sn: Sn) -> bool {
        self.end.offset_from(sn).is_some_and(|age| (1..=self.len).contains(&age))
    }

    fn set(&mut self, sn: Sn, lost: bool) {
        let (word, bit) = ((sn.0 % SEGMENTS / 64) as usize, 1 << (sn.0 % 64));
        if let Some(word) = self.bits.get_mut(word) {
            *word = if lost { *word | bit } else { *word & !bit };
        }
    }

    fn is_lost(&self, sn: Sn) -> bool {
        let word = self.bits.get((sn.0 % SEGMENTS / 64) as usize);
        word.is_some_and(|word| word >> (sn.0 % 64) & 1 == 1)
    }

    /// Counts losses among the latest `count` segments, without the `in_flight` newest. Returns the losses
    /// and the number of segments.
    pub(crate) fn lost(&self, in_flight: u32, count: u64) -> (u64, u64) {
        let (first, count) = self.latest(in_flight, count);
        let lost = (0..count).filter(|i| self.is_lost(first.advance(*i)));
        (lost.count() as u64, count.into())
    }

    /// The first of the latest `count` segments, without the `in_flight` newest, and their number.
    fn latest(&self, in_flight: u32, count: u64) -> (Sn, u32) {
        let in_flight = in_flight.min(self.len);
        let count = (self.len - in_flight).min(u32::try_from(count).unwrap_or(u32::MAX));
        (self.end.back(in_flight + count), count)
    }

    /// Replays the latest `count` segments, without the `in_flight` newest. A symbol shares the fate of the
    /// segment after it, so that bursts hit both; a retransmission leaves in two copies.
    pub(crate) fn replay(&self, in_flight: u32, count: u64, plan: &Replay) -> Outcome {
        let (first, count) = self.latest(in_flight, count);
        let mut state =
            ReplayState { plan, open: [(0, 0); MAX_OPEN], len: 0, equations: 0, late: 0 };
        let (mut credit, mut retransmitted) = (0, 0);
        for i in 0..count {
            let (now, sn) = (u64::from(i), first.advance(i));
            let next_is_lost = self.is_lost(sn.advance(1));
            while let Some((sent, at)) = state.oldest().filter(|(_, at)| *at <= now) {
                retransmitted += 1;
                if self.is_lost(sn) && next_is_lost {
                    state.delay_oldest(at + plan.retransmitted);
                    continue;
                }
                state.recover_oldest(now, sent);
            }
            if self.is_lost(sn) {
                state.lose(now);
            }
            credit += plan.rate;
            if credit >= MILLION {
                credit -= MILLION;
                if !next_is_lost {
                    state.take_symbol(now);
                }
            }
        }
        Outcome { segments: count.into(), late: state.late, retransmitted }
    }
}

/// Losses that are still open during a replay.
struct ReplayState<'a> {
    plan: &'a Replay,
    /// Send time and arrival time of the retransmission of each, oldest first.
    open: [(u64, u64); MAX_OPEN],
    len: usize,
    /// Symbols that arrived while losses were open.
    equations: usize,
    late: u64,
}

impl ReplayState<'_> {
    fn oldest(&self) -> Option<(u64, u64)> {
        self.open.get(..self.len)?.first().copied()
    }

    fn lose(&mut self, now: u64) {
        if let Some(place) = self.open.get_mut(self.len) {
            *place = (now, now + self.plan.retransmitted);
            self.len += 1;
        }
    }

    fn delay_oldest(&mut self, at: u64) {
        if let Some(oldest) = self.open.first_mut() {
            oldest.1 = at;
        }
    }

    /// The oldest loss, sent at `sent`, arrives: the segments up to the next loss become readable.
    fn recover_oldest(&mut self, now: u64, sent: u64) {
        self.open.copy_within(1.., 0);
        self.len = self.len.saturating_sub(1);
        let end = self.oldest().map_or(now + 1, |(next, _)| next);
        self.count_late(now, sent, end);
        self.solve(now);
    }

    /// A symbol arrives; it covers all open losses.
    fn take_symbol(&mut self, now: u64) {
        if self.len > 0 {
            self.equations += 1;
            self.solve(now);
        }
    }

    /// Recovers all open losses if there are enough symbols.
    fn solve(&mut self, now: u64) {
        if self.equations < self.len {
            return;
        }
        if let Some((sent, _)) = self.oldest() {
            self.count_late(now, sent, now + 1);
        }
        (self.len, self.equations) = (0, 0);
    }

    /// The segments from `begin` to `end` become readable.
    fn count_late(&mut self, now: u64, begin: u64, end: u64) {
        let in_time = now.saturating_sub(self.plan.late);
        self.late += end.min(in_time).saturating_sub(begin);
    }
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

    /// A record of 1,024 segments; those in `lost` were lost.
    fn record(lost: &[u32]) -> LossRecord {
        let mut record = LossRecord::new(Sn(u32::MAX - 99));
        for i in 0..SEGMENTS {
            record.on_sent(Sn(u32::MAX - 99).advance(i));
        }
        lost.iter().for_each(|i| record.on_lost(Sn(u32::MAX - 99).advance(*i)));
        record
    }

    fn plan(rate: u64) -> Replay {
        Replay { rate, late: 1, retransmitted: 6 }
    }

    #[test]
    fn segments_behind_a_loss_wait_for_its_retransmission() {
        let outcome = record(&[500]).replay(0, 1_024, &plan(0));
        // The segment waits for six, those behind it for less; one is in time.
        assert_eq!(outcome, Outcome { segments: 1_024, late: 5, retransmitted: 1 });
        let nothing = record(&[500]).replay(600, 1_024, &plan(0));
        assert_eq!((nothing.segments, nothing.late), (424, 0), "it may be in flight");
    }

    #[test]
    fn each_symbol_recovers_one_loss() {
        let late = |lost: &[u32], rate| record(lost).replay(0, 1_024, &plan(rate)).late;
        assert_eq!(late(&[500], MILLION), 0);
        // A symbol after every fourth segment: after segment 503.
        assert_eq!(late(&[500], MILLION / 4), 2);
        assert_eq!(late(&[503], MILLION / 4), 0);
        assert_eq!(late(&[500, 501], MILLION / 2), 2);
        assert_eq!(late(&[500, 501, 502, 503], MILLION / 4), 6, "two of them are retransmitted");
    }

    #[test]
    fn losses_are_of_the_latest_segments_and_can_be_taken_back() {
        let mut record = record(&[3, 1_000]);
        assert_eq!((record.lost(0, 2_000), record.lost(0, 100)), ((2, 1_024), (1, 100)));
        record.take_back(Sn(u32::MAX - 99).advance(1_000));
        record.on_lost(Sn(u32::MAX - 99).back(600));
        assert_eq!((record.lost(0, 2_000), record.losses()), ((1, 1_024), 2));
    }

    #[test]
    fn replay_of_a_path_that_loses_everything_ends() {
        let all: Vec<u32> = (0..SEGMENTS).collect();
        for rate in [0, MILLION / 2, MILLION] {
            let outcome = record(&all).replay(0, 1_024, &plan(rate));
            assert!(outcome.late <= 1_024, "{outcome:?}");
        }
    }
}
