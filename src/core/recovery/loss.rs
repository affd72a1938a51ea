//! When an unacknowledged segment counts as lost.
//!
//! Three signs, for one engine. *Fast*: as many transmissions as `fast_resend` asks for, each later
//! than the segment's own, were acknowledged. *Early*: one was, and nothing new can be sent that
//! would bring more. *Time-out*: nothing came for too long.
//!
//! Later means later in order of transmission, not in number, so a repeated segment is judged by
//! what was sent after its repetition and can be found lost again without a time-out. Paths that
//! reorder get an allowance on top: it grows when a repetition turns out to have been needless,
//! which the echoed time stamps reveal, and shrinks again while they stay needed.

use std::collections::VecDeque;

use crate::config::{Backoff, Timing};
use crate::core::clock::Micros;
use crate::core::recovery::rtt::RttEstimator;
use crate::core::recovery::sent_segments::SentSegment;

/// Segments in flight beyond which a flow is bulk: its own queue delays its acknowledgements, so
/// the first time-out gets half as much again. Below it a flow is latency-bound and does not.
const THIN_STREAM_LIMIT: u32 = 32;
/// Needed repetitions in a row after which the reordering allowance is halved.
const REO_WND_PERSIST: u32 = 16;
/// Least reordering allowance of the early rule, microseconds.
const MIN_REO_WND: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossTrigger {
    FastRetransmit,
    EarlyRetransmit,
    Rto,
}

#[derive(Debug)]
pub(crate) struct LossDetector {
    resend: Option<usize>,
    early: bool,
    nodelay: bool,
    backoff: Backoff,
    /// Longest wait, microseconds.
    max_rto: u64,
    /// The latest acknowledged transmissions, ascending; as many as the fast rule needs.
    acked: VecDeque<u64>,
    /// Round-trip time of the latest of them.
    round_trip: u64,
    /// Reordering allowance, microseconds.
    reo_wnd: u64,
    needed: u32,
}

impl LossDetector {
    pub(crate) fn new(early: bool, backoff: Backoff, longest: u64) -> Self {
        Self {
            resend: None,
            early,
            nodelay: false,
            backoff,
            max_rto: longest,
            acked: VecDeque::new(),
            round_trip: 0,
            reo_wnd: 0,
            needed: 0,
        }
    }

    pub(crate) fn set_timing(&mut self, preset: &Timing) {
        self.resend = preset.fast_resend.map(|count| usize::from(count.get()));
        self.nodelay = preset.nodelay;
        while self.acked.len() > self.resend.unwrap_or(1) {
            self.acked.pop_front();
        }
    }

    /// A transmission was acknowledged for the first time.
    pub(crate) fn on_ack(&mut self, order: u64, rtt: u64) {
        let keep = self.resend.unwrap_or(1);
        if self.acked.back().is_none_or(|&latest| order > latest) {
            self.round_trip = rtt;
        }
        let place = self.acked.iter().rposition(|&earlier| earlier < order).map_or(0, |i| i + 1);
        if place == 0 && self.acked.len() >= keep {
            return;
        }
        self.acked.insert(place, order);
        if self.acked.len() > keep {
            self.acked.pop_front();
        }
    }

    /// A repetition turned out to be needless: the original arrived.
    pub(crate) fn on_spurious_retransmit(&mut self, rtt: &RttEstimator) {
        let step = (rtt.min() / 4).max(MIN_REO_WND);
        self.reo_wnd = (self.reo_wnd + step).min(rtt.srtt().unwrap_or(0).max(step));
        self.needed = 0;
    }

    /// A repetition was acknowledged as such.
    pub(crate) fn on_confirmed_loss(&mut self) {
        self.needed += 1;
        if self.needed >= REO_WND_PERSIST {
            self.needed = 0;
            self.reo_wnd /= 2;
        }
    }

    /// When `segment` counts as lost, and by which sign. `stuck`: nothing new can be sent.
    pub(crate) fn lost_at(
        &self,
        segment: &SentSegment,
        rtt: &RttEstimator,
        in_flight: u32,
        no_new_data: bool,
    ) -> (Micros, LossTrigger) {
        let timeout = (
            segment.last_sent.add_micros(self.timeout(rtt, segment.backoff_level, in_flight)),
            LossTrigger::Rto,
        );
        let overtaken = |by: usize| {
            self.acked
                .len()
                .checked_sub(by)
                .and_then(|i| self.acked.get(i))
                .is_some_and(|&order| order > segment.xmit_seq)
        };
        let sent = segment.last_sent;
        let sign = if self.resend.is_some_and(overtaken) {
            (sent.add_micros(self.round_trip + self.reo_wnd), LossTrigger::FastRetransmit)
        } else if self.early && no_new_data && overtaken(1) {
            let allowance = self.reo_wnd.max(rtt.min() / 4).max(MIN_REO_WND);
            (sent.add_micros(self.round_trip + allowance), LossTrigger::EarlyRetransmit)
        } else {
            return timeout;
        };
        if sign.0 <= timeout.0 { sign } else { timeout }
    }

    /// The longest wait between two transmissions of a segment, microseconds.
    pub(crate) fn max_rto(&self) -> u64 {
        self.max_rto
    }

    /// Time-out of a transmission on `level`, microseconds.
    pub(crate) fn timeout(&self, rtt: &RttEstimator, level: u8, in_flight: u32) -> u64 {
        let rto = rtt.rto();
        let level = u64::from(level);
        let wait = match (self.backoff, self.nodelay) {
            (_, _) if level == 0 && in_flight > THIN_STREAM_LIMIT => rto + rto / 2,
            (Backoff::Linear, true) => rto + rto * level / 2,
            (Backoff::Linear, false) => rto + rto * level,
            (Backoff::Exponential, _) => rto << level,
        };
        wait.min(self.max_rto)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::recovery::sent_segments::SentSegments;
    use crate::core::send::send_buffer::BufferRange;
    use crate::core::seq::{Sn, Ts};

    fn setup(preset: &Timing) -> (LossDetector, RttEstimator, SentSegments) {
        let mut loss = LossDetector::new(true, Backoff::Linear, 10_000_000);
        loss.set_timing(preset);
        let mut rtt = RttEstimator::new(Duration::from_secs(10));
        rtt.set_timing(true, Duration::from_millis(10));
        rtt.on_sample(Micros(0), 100_000);
        let mut flight = SentSegments::new(Sn(0));
        for _ in 0..4 {
            flight.push(Micros(0), Ts(0), BufferRange::default(), 0);
        }
        (loss, rtt, flight)
    }

    #[test]
    fn two_later_acks_make_a_segment_lost() {
        let (mut loss, rtt, flight) = setup(&Timing::FAST3);
        let first = flight.get(Sn(0)).unwrap();
        assert_eq!(loss.lost_at(first, &rtt, 4, false).1, LossTrigger::Rto);
        loss.on_ack(3, 100_000);
        assert_eq!(loss.lost_at(first, &rtt, 4, false).1, LossTrigger::Rto);
        loss.on_ack(2, 100_000);
        assert_eq!(
            loss.lost_at(first, &rtt, 4, false),
            (Micros(100_000), LossTrigger::FastRetransmit)
        );
        let third = flight.get(Sn(2)).unwrap();
        assert_eq!(loss.lost_at(third, &rtt, 4, false).1, LossTrigger::Rto);
    }

    #[test]
    fn one_later_ack_is_enough_when_nothing_new_can_be_sent() {
        let (mut loss, rtt, flight) = setup(&Timing::KCP_DEFAULT);
        loss.on_ack(2, 100_000);
        let first = flight.get(Sn(0)).unwrap();
        assert_eq!(loss.lost_at(first, &rtt, 4, false).1, LossTrigger::Rto);
        assert_eq!(
            loss.lost_at(first, &rtt, 4, true),
            (Micros(125_000), LossTrigger::EarlyRetransmit)
        );
    }

    #[test]
    fn a_repetition_is_judged_by_what_was_sent_after_it() {
        let (mut loss, rtt, mut flight) = setup(&Timing::FAST3);
        for order in [2, 3, 4] {
            loss.on_ack(order, 100_000);
        }
        flight.mark_retransmitted(Micros(100_000), Sn(0), 0);
        assert_eq!(loss.lost_at(flight.get(Sn(0)).unwrap(), &rtt, 4, false).1, LossTrigger::Rto);
        loss.on_ack(6, 100_000);
        loss.on_ack(7, 100_000);
        assert_eq!(
            loss.lost_at(flight.get(Sn(0)).unwrap(), &rtt, 4, false).1,
            LossTrigger::FastRetransmit
        );
    }

    #[test]
    fn needless_repetitions_buy_patience_and_needed_ones_sell_it() {
        let (mut loss, rtt, flight) = setup(&Timing::FAST3);
        loss.on_ack(3, 100_000);
        loss.on_ack(4, 100_000);
        loss.on_spurious_retransmit(&rtt);
        let first = flight.get(Sn(0)).unwrap();
        assert_eq!(
            loss.lost_at(first, &rtt, 4, false),
            (Micros(125_000), LossTrigger::FastRetransmit)
        );
        for _ in 0..REO_WND_PERSIST {
            loss.on_confirmed_loss();
        }
        assert_eq!(loss.lost_at(first, &rtt, 4, false).0, Micros(112_500));
    }

    #[test]
    fn back_off_follows_the_chosen_rule_and_ends_at_the_cap() {
        let (mut loss, rtt, _) = setup(&Timing::FAST3);
        let rto = rtt.rto();
        let waits =
            |loss: &LossDetector| [0, 1, 2, 4].map(|level| loss.timeout(&rtt, level, 1) * 2 / rto);
        assert_eq!(waits(&loss), [2, 3, 4, 6]);
        loss.set_timing(&Timing::NORMAL);
        assert_eq!(waits(&loss), [2, 4, 6, 10]);
        loss.backoff = Backoff::Exponential;
        assert_eq!(waits(&loss), [2, 4, 8, 32]);
        assert_eq!(loss.timeout(&rtt, 15, 1), 10_000_000);
        assert_eq!(loss.timeout(&rtt, 0, THIN_STREAM_LIMIT + 1), rto + rto / 2);
    }
}
