//! What the sender measures on a path, and the limits that follow: a change of path replaces it as a whole
//! (RFC 9000 9.4). Sequence numbers, the segments in flight and the send buffer belong to the connection.

use crate::config::{CongestionControl, KcpConfig};
use crate::core::clock::{self, Micros};
use crate::core::congestion::Congestion;
use crate::core::congestion::pacer::Pacer;
use crate::core::path::mtu::MtuDiscovery;
use crate::core::recovery::loss::{LossDetector, LossTrigger, PtoBackoff};
use crate::core::recovery::rtt::RttEstimator;
use crate::core::recovery::sent::SentSegment;
use crate::core::redundancy::SegmentLoss;
use crate::core::seq::Sn;

/// The state of one path.
#[derive(Debug)]
pub(crate) struct SendPath {
    pub(crate) loss: LossDetector,
    pub(crate) rtt: RttEstimator,
    pub(crate) congestion: Congestion,
    pub(crate) mtu: MtuDiscovery,
    pub(super) pacer: Pacer,
    /// Longest time from first transmission to first ACK among the segments that the current datagram
    /// acknowledges, microseconds.
    pub(super) longest_wait: u64,
    pub(crate) pto_backoff: PtoBackoff,
}

impl SendPath {
    pub(crate) fn new(config: &KcpConfig) -> Self {
        Self {
            loss: LossDetector::new(clock::micros(config.max_retransmit_interval)),
            rtt: RttEstimator::new(config.max_retransmit_interval),
            congestion: Congestion::disabled(),
            mtu: MtuDiscovery::new(config.mtu),
            pacer: Pacer::new(config.pacing_interval),
            longest_wait: 0,
            pto_backoff: PtoBackoff::default(),
        }
    }

    /// A path of the same connection, of which nothing is known.
    pub(crate) fn another(&self) -> Self {
        Self {
            loss: self.loss.with_settings(),
            rtt: self.rtt.with_settings(),
            congestion: Congestion::disabled(),
            mtu: self.mtu.with_settings(),
            pacer: self.pacer.fresh(),
            longest_wait: 0,
            pto_backoff: PtoBackoff::default(),
        }
    }

    /// Whether one of the segments that are `oldest` in their lists may count as lost: a cheap upper bound.
    #[inline]
    pub(super) fn may_have_lost(
        &self,
        now: Micros,
        mut oldest: impl Iterator<Item = (Sn, SentSegment)>,
    ) -> bool {
        let bound = self.loss.least_wait(&self.rtt);
        oldest.any(|(_, segment)| segment.last_sent.add_micros(bound) <= now)
    }

    /// Whether a lost segment may be retransmitted now.
    #[inline]
    pub(super) fn may_retransmit(&self, now: Micros, loss: &SegmentLoss) -> bool {
        let is_rto = loss.trigger == LossTrigger::Rto;
        let ack_wait = self.newer_ack_wait();
        loss.at <= now && (!is_rto || self.pto_backoff.may_send_probe(now, ack_wait))
    }

    /// Microseconds that an RTO waits for the ACK of newer data; 0 if it does not wait.
    pub(super) fn newer_ack_wait(&self) -> u64 {
        if self.loss.postpones_rto() { self.rtt.rto() } else { 0 }
    }

    /// Takes over the settings of `active`, which may have changed since.
    pub(super) fn take_settings(&mut self, active: &Self) {
        self.loss.take_settings(&active.loss);
        self.rtt.take_settings(&active.rtt);
        self.mtu.take_settings(&active.mtu);
    }

    /// The path carries no data now: its model would be out of date when it is used again.
    pub(super) fn forget_congestion(&mut self) {
        if self.congestion.mode() != CongestionControl::Off {
            self.congestion = Congestion::disabled();
        }
    }
}
