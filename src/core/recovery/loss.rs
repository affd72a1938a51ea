//! Loss detection: fast retransmit (RFC 5681 3.2), early retransmit (RFC 5827) and RTO (RFC 6298), by order
//! of transmission as in RACK (RFC 8985).
//!
//! kcp-go counts, for each unacknowledged segment, the ACKs of higher numbers (`parse_fastack`). Here "later"
//! means later in order of transmission ([`SentSegment::xmit_seq`], RFC 8985 6.2), so a retransmission is
//! judged by the transmissions after it and can be found lost again before its RTO.
//!
//! The reordering window ([`LossDetector::reo_wnd`], RFC 8985 6.2 step 4) is added to the round-trip time
//! before a segment counts as lost. Unlike in the RFC it starts at zero. It grows by a quarter of the minimum
//! RTT with each spurious retransmission that the echoed timestamps reveal (RFC 3522; KCP has no DSACK),
//! unless the original left more than two round trips earlier. After [`REO_WND_PERSIST`] confirmed losses in
//! a row it is halved, not reset.

use std::collections::VecDeque;
use std::num::NonZeroU8;

use crate::config::{Backoff, Timing};
use crate::core::clock::Micros;
use crate::core::recovery::rtt::RttEstimator;
use crate::core::recovery::sent::SentSegment;

/// Segments in flight up to which a flow is a thin stream (Linux `tcp_stream_is_thin` has 4). Above it the
/// flow's own queue delays ACKs, so the first RTO is 1.5 times as long. kcp-go has no such rule.
const THIN_STREAM_LIMIT: u32 = 32;
/// Confirmed losses in a row after which the reordering window is halved (RFC 8985 6.2 step 4
/// `reo_wnd_persist`: 16 loss recoveries).
const REO_WND_PERSIST: u8 = 4;
/// Confirmed losses until an RTO no longer waits for newer ACKs: at the start, and after a spurious
/// retransmission.
const UNCONFIRMED_AT_START: u8 = 4;
const UNCONFIRMED_AFTER_SPURIOUS: u8 = 6;
/// Least step of the reordering window, microseconds.
const MIN_REO_WND_STEP: u64 = 1_000;
/// Least reordering window of early retransmit, microseconds (RFC 8985 6.2 step 4 allows a floor of the timer
/// granularity).
const MIN_EARLY_REO_WND: u64 = 2_000;

/// Longest RTO after back-off, microseconds, if only retransmissions can detect that a silent peer is back.
/// Short enough to notice soon that the path works again, and only one retransmission per 2.5 s of an outage.
const MAX_UNASKED_PTO: u64 = 2_500_000;

/// Why a segment counts as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossTrigger {
    /// `fast_resend` later transmissions were acknowledged (RFC 5681 3.2; kcp-go `fastack`).
    FastRetransmit,
    /// One later transmission was acknowledged, and no new data can be sent that would cause more ACKs (RFC
    /// 5827; kcp-go `flush`, early retransmit).
    EarlyRetransmit,
    /// The retransmission timeout expired (RFC 6298 5.4).
    Rto,
}

/// Decides when a segment in flight counts as lost.
#[derive(Debug)]
pub(crate) struct LossDetector {
    /// Later transmissions that must be acknowledged before a segment counts as lost (kcp-go `fastresend`);
    /// `None`: fast retransmit is off.
    fast_resend: Option<NonZeroU8>,
    early_retransmit: bool,
    nodelay: bool,
    backoff: Backoff,
    /// Longest RTO after back-off, microseconds (RFC 6298 2.5).
    max_rto: u64,
    /// Lower limit of the same kind while the connection closes, microseconds.
    max_backoff: u64,
    /// Whether [`MAX_UNASKED_PTO`] limits the back-off too.
    limits_pto: bool,
    /// [`SentSegment::xmit_seq`] of the latest acknowledged transmissions, ascending; the number that fast
    /// retransmit needs.
    acked_xmit_seqs: VecDeque<u64>,
    /// The latest acknowledged transmission, modulo 2^32, including segments that `una` has passed.
    latest_acked: u32,
    /// Round-trip time of the latest of `acked_xmit_seqs`, microseconds (RFC 8985 `RACK.rtt`).
    latest_rtt: u64,
    /// Reordering window, microseconds (RFC 8985 `RACK.reo_wnd`).
    reo_wnd: u64,
    /// Confirmed losses since the last spurious retransmission or the last halving of `reo_wnd`.
    confirmed_losses: u8,
    /// Losses still to be confirmed before an RTO fires although the ACK of newer data may still come. On a
    /// path that delays packets, that ACK shows what is lost; on a path that loses packets, the RTO is
    /// faster.
    unconfirmed: u8,
}

impl LossDetector {
    /// `max_rto` in microseconds.
    pub(crate) fn new(early_retransmit: bool, backoff: Backoff, max_rto: u64) -> Self {
        Self {
            fast_resend: None,
            early_retransmit,
            nodelay: false,
            backoff,
            max_rto,
            max_backoff: u64::MAX,
            limits_pto: false,
            acked_xmit_seqs: VecDeque::new(),
            latest_acked: 0,
            latest_rtt: 0,
            reo_wnd: 0,
            confirmed_losses: 0,
            unconfirmed: UNCONFIRMED_AT_START,
        }
    }

    pub(crate) fn set_timing(&mut self, preset: &Timing) {
        self.fast_resend = preset.fast_resend;
        self.nodelay = preset.nodelay;
        while self.acked_xmit_seqs.len() > self.acks_kept() {
            self.acked_xmit_seqs.pop_front();
        }
    }

    /// Whether enough losses are confirmed that an RTO does not wait.
    pub(crate) fn has_confirmed_losses(&self) -> bool {
        self.unconfirmed == 0
    }

    /// Whether an RTO waits while the ACK of newer data may come. False if ACKs do not show losses.
    pub(crate) fn postpones_rto(&self) -> bool {
        self.fast_resend.is_some() && self.unconfirmed > 0
    }

    /// Length of [`Self::acked_xmit_seqs`].
    fn acks_kept(&self) -> usize {
        self.fast_resend.map_or(1, |count| usize::from(count.get()))
    }

    /// Frees the queue. Call only while nothing is in flight.
    pub(crate) fn release_memory(&mut self) {
        self.acked_xmit_seqs = VecDeque::new();
    }

    /// Transmission `xmit_seq` was acknowledged for the first time, `rtt` microseconds after it left.
    pub(crate) fn on_ack(&mut self, xmit_seq: u64, rtt: u64) {
        let keep = self.acks_kept();
        let acked = &mut self.acked_xmit_seqs;
        if acked.back().is_none_or(|&latest| xmit_seq > latest) {
            self.latest_rtt = rtt;
        }
        let index = acked.iter().rposition(|&earlier| earlier < xmit_seq).map_or(0, |i| i + 1);
        if index == 0 && acked.len() >= keep {
            return;
        }
        acked.insert(index, xmit_seq);
        if acked.len() > keep {
            acked.pop_front();
        }
    }

    /// An ACK of transmission `xmit_seq` (modulo 2^32) arrived. Returns whether it is the latest transmission
    /// acknowledged so far, and so an RTT sample (RFC 8985 6.2 step 2). An ACK that was delayed, by a gap
    /// that FEC filled or by an unneeded retransmission, is none.
    pub(crate) fn is_newest_ack(&mut self, xmit_seq: u32) -> bool {
        let ahead = xmit_seq.wrapping_sub(self.latest_acked);
        let newest = ahead != 0 && ahead <= u32::MAX / 2;
        if newest {
            self.latest_acked = xmit_seq;
        }
        newest
    }

    /// Whether transmission `xmit_seq` or a later one was acknowledged.
    pub(crate) fn has_acked_since(&self, xmit_seq: u64) -> bool {
        let ahead = self.latest_acked.wrapping_sub(low(xmit_seq));
        ahead <= u32::MAX / 2
    }

    /// A retransmission was spurious: a transmission that left `apart` microseconds earlier arrived. Widens
    /// the reordering window, unless `apart` is too long for any window to help.
    pub(crate) fn on_spurious_retransmit(&mut self, rtt: &RttEstimator, apart: u64) {
        self.unconfirmed = UNCONFIRMED_AFTER_SPURIOUS;
        if apart > 2 * rtt.srtt().unwrap_or(0) {
            return;
        }
        let step = (rtt.min() / 4).max(MIN_REO_WND_STEP);
        self.reo_wnd = (self.reo_wnd + step).min(rtt.srtt().unwrap_or(0).max(step));
        self.confirmed_losses = 0;
    }

    /// The ACK of a retransmission echoed its timestamp: the loss was real.
    pub(crate) fn on_confirmed_loss(&mut self) {
        self.unconfirmed = self.unconfirmed.saturating_sub(1);
        self.confirmed_losses += 1;
        if self.confirmed_losses >= REO_WND_PERSIST {
            self.confirmed_losses = 0;
            self.reo_wnd /= 2;
        }
    }

    /// When `segment` counts as lost, and by which trigger. `no_new_data`: no new data may be sent now, which
    /// early retransmit requires (RFC 5827 2.2).
    pub(crate) fn lost_at(
        &self,
        segment: &SentSegment,
        rtt: &RttEstimator,
        in_flight: u32,
        no_new_data: bool,
    ) -> (Micros, LossTrigger) {
        let rto = self.backed_off_rto(rtt, segment.backoff_level(), in_flight);
        let timeout = (segment.last_sent.add_micros(rto), LossTrigger::Rto);
        let overtaken = |by: u8| {
            self.acked_xmit_seqs
                .len()
                .checked_sub(by.into())
                .and_then(|i| self.acked_xmit_seqs.get(i))
                .is_some_and(|&acked| acked > segment.xmit_seq)
        };
        let sent = segment.last_sent;
        let by_ack = if self.fast_resend.is_some_and(|count| overtaken(count.get())) {
            (sent.add_micros(self.latest_rtt + self.reo_wnd), LossTrigger::FastRetransmit)
        } else if self.early_retransmit && no_new_data && overtaken(1) {
            let reo_wnd = self.reo_wnd.max(MIN_EARLY_REO_WND);
            (sent.add_micros(self.latest_rtt + reo_wnd), LossTrigger::EarlyRetransmit)
        } else {
            return timeout;
        };
        // A loss that ACKs have shown does not wait, even if RTOs do.
        if by_ack.0 <= timeout.0 || self.postpones_rto() { by_ack } else { timeout }
    }

    /// Least time between a segment's last transmission and its loss, microseconds: a cheap lower bound of
    /// [`Self::lost_at`].
    #[inline]
    pub(crate) fn least_wait(&self, rtt: &RttEstimator) -> u64 {
        (self.latest_rtt + self.reo_wnd).min(rtt.rto()).min(self.max_rto)
    }

    /// Time within which the ACK of a segment arrives that leaves now, or that parity or repair symbols sent
    /// now recover, microseconds: the latest round-trip time and the reordering window, at most the RTO.
    pub(crate) fn ack_wait(&self, rtt: &RttEstimator) -> u64 {
        let reo_wnd = self.reo_wnd.max(MIN_EARLY_REO_WND);
        (self.latest_rtt.max(rtt.min()).saturating_add(reo_wnd)).min(rtt.rto())
    }

    /// Limits the RTO after back-off to `interval` microseconds.
    pub(crate) fn limit_backoff(&mut self, interval: u64) {
        self.max_backoff = interval;
    }

    /// Sets whether [`MAX_UNASKED_PTO`] limits the RTO after back-off.
    pub(crate) fn limit_pto(&mut self, limited: bool) {
        self.limits_pto = limited;
    }

    /// The longest RTO after back-off, microseconds.
    pub(crate) fn max_rto(&self) -> u64 {
        let pto = if self.limits_pto { MAX_UNASKED_PTO } else { u64::MAX };
        self.max_rto.min(self.max_backoff).min(pto)
    }

    /// RTO after `level` expiries, microseconds.
    ///
    /// [`Backoff::Linear`] is kcp-go's rule (`flush`: `seg.rto += rto`; half of it with `nodelay`).
    /// [`Backoff::Exponential`] is the rule of RFC 6298 5.5 and of C `ikcp_flush` without `nodelay`. Unlike
    /// there, `max_rto` limits both.
    fn backed_off_rto(&self, rtt: &RttEstimator, level: u8, in_flight: u32) -> u64 {
        let rto = rtt.rto();
        let level = u64::from(level);
        let rto = match (self.backoff, self.nodelay) {
            (_, _) if level == 0 && in_flight > THIN_STREAM_LIMIT => rto + rto / 2,
            (Backoff::Linear, true) => rto + rto * level / 2,
            (Backoff::Linear, false) => rto + rto * level,
            (Backoff::Exponential, _) => rto << level,
        };
        let max = if level == 0 { self.max_rto } else { self.max_rto().max(rtt.rto()) };
        rto.min(max)
    }
}

/// `xmit_seq` modulo 2^32.
#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
fn low(xmit_seq: u64) -> u32 {
    xmit_seq as u32
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::recovery::sent::SentSegments;
    use crate::core::send::send_buffer::BufferRange;
    use crate::core::seq::{Sn, Ts};

    fn setup(preset: &Timing) -> (LossDetector, RttEstimator, SentSegments) {
        let mut loss = LossDetector::new(true, Backoff::Linear, 10_000_000);
        loss.set_timing(preset);
        let mut rtt = RttEstimator::new(Duration::from_secs(10));
        rtt.set_timing(true, Duration::from_millis(10));
        rtt.on_sample(Micros(0), 100_000);
        let mut sent = SentSegments::new(Sn(0));
        for _ in 0..4 {
            sent.push(Micros(0), Ts(0), BufferRange::default(), 0);
        }
        (loss, rtt, sent)
    }

    #[test]
    fn fast_retransmit_needs_fast_resend_later_acks() {
        let (mut loss, rtt, sent) = setup(&Timing::FAST3);
        let first = sent.get(Sn(0)).unwrap();
        assert_eq!(loss.lost_at(&first, &rtt, 4, false).1, LossTrigger::Rto);
        loss.on_ack(3, 100_000);
        assert_eq!(loss.lost_at(&first, &rtt, 4, false).1, LossTrigger::Rto);
        loss.on_ack(2, 100_000);
        assert_eq!(
            loss.lost_at(&first, &rtt, 4, false),
            (Micros(100_000), LossTrigger::FastRetransmit)
        );
        let third = sent.get(Sn(2)).unwrap();
        assert_eq!(loss.lost_at(&third, &rtt, 4, false).1, LossTrigger::Rto);
    }

    #[test]
    fn early_retransmit_without_new_data_needs_one_later_ack() {
        let (mut loss, rtt, sent) = setup(&Timing::KCP_DEFAULT);
        loss.on_ack(2, 100_000);
        let first = sent.get(Sn(0)).unwrap();
        assert_eq!(loss.lost_at(&first, &rtt, 4, false).1, LossTrigger::Rto);
        assert_eq!(
            loss.lost_at(&first, &rtt, 4, true),
            (Micros(102_000), LossTrigger::EarlyRetransmit)
        );
    }

    #[test]
    fn fast_retransmit_of_a_retransmission_counts_only_later_transmissions() {
        let (mut loss, rtt, mut sent) = setup(&Timing::FAST3);
        for xmit_seq in [2, 3, 4] {
            loss.on_ack(xmit_seq, 100_000);
        }
        sent.mark_retransmitted(Micros(100_000), Sn(0), 0, false);
        assert_eq!(loss.lost_at(&sent.get(Sn(0)).unwrap(), &rtt, 4, false).1, LossTrigger::Rto);
        loss.on_ack(6, 100_000);
        loss.on_ack(7, 100_000);
        assert_eq!(
            loss.lost_at(&sent.get(Sn(0)).unwrap(), &rtt, 4, false).1,
            LossTrigger::FastRetransmit
        );
    }

    #[test]
    fn reo_wnd_grows_on_spurious_retransmit_and_halves_on_confirmed_losses() {
        let (mut loss, rtt, sent) = setup(&Timing::FAST3);
        loss.on_ack(3, 100_000);
        loss.on_ack(4, 100_000);
        loss.on_spurious_retransmit(&rtt, 200_001);
        assert_eq!(loss.lost_at(&sent.get(Sn(0)).unwrap(), &rtt, 4, false).0, Micros(100_000));
        loss.on_spurious_retransmit(&rtt, 200_000);
        let first = sent.get(Sn(0)).unwrap();
        assert_eq!(
            loss.lost_at(&first, &rtt, 4, false),
            (Micros(125_000), LossTrigger::FastRetransmit)
        );
        for _ in 0..REO_WND_PERSIST {
            loss.on_confirmed_loss();
        }
        assert_eq!(loss.lost_at(&first, &rtt, 4, false).0, Micros(112_500));
    }

    /// The wide reordering window makes the RTO the earlier one, and the RTO would wait for the ACK of newer
    /// data.
    #[test]
    fn loss_that_acks_show_does_not_wait_for_newer_data() {
        let (mut loss, mut rtt, sent) = setup(&Timing::FAST3);
        (0..200).for_each(|i| rtt.on_sample(Micros(i * 10_000), 100_000));
        (0..4).for_each(|_| loss.on_spurious_retransmit(&rtt, 100_000));
        loss.on_ack(2, 100_000);
        loss.on_ack(3, 100_000);
        let first = sent.get(Sn(0)).unwrap();
        let lost_at = |loss: &LossDetector| loss.lost_at(&first, &rtt, 4, false);
        assert_eq!(lost_at(&loss), (Micros(200_000), LossTrigger::FastRetransmit));
        // Once losses are confirmed the RTO no longer waits.
        loss.unconfirmed = 0;
        assert!(lost_at(&loss).0 < Micros(200_000) && lost_at(&loss).1 == LossTrigger::Rto);
    }

    #[test]
    fn rto_backoff_follows_the_configured_rule_up_to_max_rto() {
        let (mut loss, rtt, _) = setup(&Timing::FAST3);
        let rto = rtt.rto();
        let half_rtos = |loss: &LossDetector| {
            [0, 1, 2, 4].map(|level| loss.backed_off_rto(&rtt, level, 1) * 2 / rto)
        };
        assert_eq!(half_rtos(&loss), [2, 3, 4, 6]);
        loss.set_timing(&Timing::NORMAL);
        assert_eq!(half_rtos(&loss), [2, 4, 6, 10]);
        loss.backoff = Backoff::Exponential;
        assert_eq!(half_rtos(&loss), [2, 4, 8, 32]);
        assert_eq!(loss.backed_off_rto(&rtt, 15, 1), 10_000_000);
        assert_eq!(loss.backed_off_rto(&rtt, 0, THIN_STREAM_LIMIT + 1), rto + rto / 2);
    }
}
