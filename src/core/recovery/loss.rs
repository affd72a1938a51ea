//! Loss detection, probing of a silent peer, and the limit on retransmissions.
//!
//! [`LossDetector`] says when a segment counts as lost, [`PtoBackoff`] when a retransmission by RTO may leave,
//! and [`RetransmitBudget`] how many retransmissions may leave.

use std::collections::VecDeque;
use std::mem;
use std::num::NonZeroU8;

use crate::config::Timing;
use crate::core::clock::Micros;
use crate::core::recovery::rtt::{RttEstimator, saturated};
use crate::core::recovery::sent::{MAX_BACKOFF_LEVEL, SentSegment};

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

/// Loss detection: fast retransmit (RFC 5681 3.2), early retransmit (RFC 5827) and RTO (RFC 6298), by order
/// of transmission as in RACK (RFC 8985).
///
/// kcp-go counts, for each unacknowledged segment, the ACKs of higher numbers (`parse_fastack`). Here "later"
/// means later in order of transmission ([`SentSegment::xmit_seq`], RFC 8985 6.2), so a retransmission is
/// judged by the transmissions after it and can be found lost again before its RTO.
///
/// The reordering window ([`LossDetector::reo_wnd`], RFC 8985 6.2 step 4) is added to the round-trip time
/// before a segment counts as lost. Unlike in the RFC it starts at zero. It grows by a quarter of the minimum
/// RTT with each spurious retransmission that the echoed timestamps reveal (RFC 3522; KCP has no DSACK),
/// unless the original left more than two round trips earlier. After [`REO_WND_PERSIST`] confirmed losses in
/// a row it is halved, not reset.
#[derive(Debug)]
pub(crate) struct LossDetector {
    /// Later transmissions that must be acknowledged before a segment counts as lost (kcp-go `fastresend`);
    /// `None`: fast retransmit is off.
    fast_resend: Option<NonZeroU8>,
    nodelay: bool,
    /// Longest RTO after back-off, microseconds (RFC 6298 2.5).
    max_rto: u32,
    /// Lower limit of the same kind while the connection closes, microseconds.
    max_backoff: u64,
    /// Whether [`MAX_UNASKED_PTO`] limits the back-off too.
    limits_pto: bool,
    /// [`SentSegment::xmit_seq`] of the latest acknowledged transmissions, ascending; the number that fast
    /// retransmit needs.
    acked_xmit_seqs: VecDeque<u64>,
    /// The latest acknowledged transmission, modulo 2^32, including segments that `una` has passed.
    latest_acked: u32,
    /// `None` while the connection has had one path only.
    others: Option<Box<OtherPaths>>,
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

/// What the other paths of the connection mean for this one. Boxed, since most connections have one path.
#[derive(Clone, Copy, Debug, Default)]
struct OtherPaths {
    /// First transmission on this path since data leaves on it. Earlier ones left on another path.
    first_xmit_seq: u64,
    /// When data began to leave on this path.
    since: Micros,
    /// RTO of the path before, microseconds.
    rto: u32,
    /// How much longer the answer to a copy on another path may take, microseconds.
    copy_wait: u32,
    probes: PathProbes,
}

impl LossDetector {
    /// `max_rto` in microseconds.
    pub(crate) fn new(max_rto: u64) -> Self {
        Self {
            fast_resend: None,
            nodelay: false,
            max_rto: saturated(max_rto),
            max_backoff: u64::MAX,
            limits_pto: false,
            acked_xmit_seqs: VecDeque::new(),
            latest_acked: 0,
            others: None,
            latest_rtt: 0,
            reo_wnd: 0,
            confirmed_losses: 0,
            unconfirmed: UNCONFIRMED_AT_START,
        }
    }

    /// A detector with the same settings that knows nothing.
    pub(crate) fn with_settings(&self) -> Self {
        let mut detector = Self::new(self.max_rto.into());
        detector.take_settings(self);
        detector
    }

    pub(crate) fn take_settings(&mut self, other: &Self) {
        (self.fast_resend, self.nodelay) = (other.fast_resend, other.nodelay);
        (self.max_backoff, self.limits_pto) = (other.max_backoff, other.limits_pto);
    }

    /// Data leaves on this path from transmission `next` on. `rto`: RTO of the last path, microseconds.
    pub(crate) fn begin_at(&mut self, now: Micros, next: u64, rto: u64) {
        self.acked_xmit_seqs.clear();
        self.latest_acked = low(next).wrapping_sub(1);
        let others = self.others.get_or_insert_default();
        (others.first_xmit_seq, others.since, others.rto) = (next, now, saturated(rto));
        others.probes = PathProbes::default();
    }

    /// The first transmission on this path since data leaves on it.
    #[inline]
    fn first_xmit_seq(&self) -> u64 {
        self.others.as_ref().map_or(0, |others| others.first_xmit_seq)
    }

    /// Whether a transmission `age` microseconds ago left on the path that carries data now.
    #[inline]
    pub(crate) fn left_on_this_path(&self, now: Micros, age: u64) -> bool {
        self.others.as_ref().is_none_or(|others| age <= now.since(others.since))
    }

    /// Whether segments that left on the path before may leave again.
    #[inline]
    pub(crate) fn is_probing(&self) -> bool {
        self.probes().is_some_and(PathProbes::is_active)
    }

    #[inline]
    pub(crate) fn probes(&self) -> Option<&PathProbes> {
        self.others.as_ref().map(|others| &others.probes)
    }

    #[inline]
    pub(crate) fn probes_mut(&mut self) -> Option<&mut PathProbes> {
        self.others.as_mut().map(|others| &mut others.probes)
    }

    /// As [`Self::probes_mut`], for a path that changes.
    pub(crate) fn begin_probes(&mut self) -> &mut PathProbes {
        &mut self.others.get_or_insert_default().probes
    }

    /// Sets how much longer the answer to a copy on another path may take, microseconds: a segment is lost only if
    /// each copy is.
    pub(crate) fn set_copy_wait(&mut self, wait: u64) {
        if let Some(others) = &mut self.others {
            others.copy_wait = saturated(wait);
        } else if wait > 0 {
            self.others.get_or_insert_default().copy_wait = saturated(wait);
        }
    }

    /// The wait of [`Self::set_copy_wait`].
    #[inline]
    pub(crate) fn copy_wait(&self) -> u64 {
        self.others.as_ref().map_or(0, |others| others.copy_wait.into())
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
        if xmit_seq < self.first_xmit_seq() {
            return;
        }
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
        let sent = segment.last_sent.add_micros(self.copy_wait());
        let timeout = (sent.add_micros(rto), LossTrigger::Rto);
        let overtaken = |by: u8| {
            self.acked_xmit_seqs
                .len()
                .checked_sub(by.into())
                .and_then(|i| self.acked_xmit_seqs.get(i))
                .is_some_and(|&acked| acked > segment.xmit_seq)
        };
        let by_ack = if self.fast_resend.is_some_and(|count| overtaken(count.get())) {
            (sent.add_micros(self.rtt_of(segment) + self.reo_wnd), LossTrigger::FastRetransmit)
        } else if no_new_data && overtaken(1) {
            let reo_wnd = self.reo_wnd.max(MIN_EARLY_REO_WND);
            (sent.add_micros(self.rtt_of(segment) + reo_wnd), LossTrigger::EarlyRetransmit)
        } else {
            return timeout;
        };
        // A loss that ACKs have shown does not wait, even if RTOs do.
        if by_ack.0 <= timeout.0 || self.postpones_rto() { by_ack } else { timeout }
    }

    /// Time in which the ACK of a transmission arrives: the latest round trip, or the RTO of the path on which it
    /// left.
    fn rtt_of(&self, segment: &SentSegment) -> u64 {
        let others = self.others.as_ref();
        let before = others.filter(|others| segment.xmit_seq < others.first_xmit_seq);
        self.latest_rtt.max(before.map_or(0, |before| before.rto.into()))
    }

    /// Least time between a segment's last transmission and its loss, microseconds: a cheap lower bound of
    /// [`Self::lost_at`].
    #[inline]
    pub(crate) fn least_wait(&self, rtt: &RttEstimator) -> u64 {
        (self.latest_rtt + self.reo_wnd).min(rtt.rto()).min(self.max_rto.into())
    }

    /// Time within which the ACK of a segment arrives that leaves now, or that parity or repair symbols sent
    /// now recover, microseconds: the latest round-trip time and the reordering window, at most the RTO.
    pub(crate) fn ack_wait(&self, rtt: &RttEstimator) -> u64 {
        let reo_wnd = self.reo_wnd.max(MIN_EARLY_REO_WND);
        (self.latest_rtt.max(rtt.min()).saturating_add(reo_wnd)).min(rtt.rto())
    }

    /// Sets the reordering window, microseconds.
    #[cfg(test)]
    pub(crate) fn set_reo_wnd(&mut self, reo_wnd: u64) {
        self.reo_wnd = reo_wnd;
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
        self.max_backoff.min(self.max_rto.into()).min(pto)
    }

    /// RTO after `level` expiries, microseconds (kcp-go `flush`: `seg.rto += rto`; half of it with
    /// `nodelay`). Deviates: `max_rto` limits it.
    fn backed_off_rto(&self, rtt: &RttEstimator, level: u8, in_flight: u32) -> u64 {
        let rto = rtt.rto();
        let level = u64::from(level);
        let rto = match (level, self.nodelay) {
            (0, _) if in_flight > THIN_STREAM_LIMIT => rto + rto / 2,
            (_, true) => rto + rto * level / 2,
            (_, false) => rto + rto * level,
        };
        let max = if level == 0 { self.max_rto.into() } else { self.max_rto().max(rtt.rto()) };
        rto.min(max)
    }
}

/// `xmit_seq` modulo 2^32.
#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
fn low(xmit_seq: u64) -> u32 {
    xmit_seq as u32
}

/// Time without a valid ACK, pong or new `una` after which probe timeouts double, microseconds; at least two
/// RTOs.
const DOUBLING_AFTER: u64 = 1_000_000;
/// Retransmissions per probe timeout before timeouts double (RFC 9002 6.2.4 has two), so that a short message
/// that was lost whole does not wait for another round trip.
const PROBES: u8 = 4;

/// Probing a silent peer: one retransmission per probe timeout, which doubles after a while (RFC 9002 6.2.1,
/// 6.2.4).
///
/// kcp-go retransmits every segment whose RTO expired, a whole window each time, as long as the peer is
/// silent. An RTO while no ACK arrives says nothing about a single segment: the path, or the return path, has
/// stopped for a moment, and packets on the way arrive later. One segment is enough to detect that the path
/// works again; its ACK and the ACKs of newer data show what was lost.
///
/// Tests: `core::tests::path_changes::messages_leave_once_and_at_once_while_packets_are_held_up`,
/// `core::tests::sweeps::delivery_after_partitions_completes`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PtoBackoff {
    /// When a valid ACK, pong or new `una` arrived, the path was validated, or a segment left with nothing in
    /// flight. The peer counts as silent an RTO later.
    last_peer_activity: Micros,
    /// When new data last left. Its ACK shows what was lost, so it acts as a probe (RFC 9002 6.2.1).
    last_new: Micros,
    /// Probes of the present silence; `None` before the first.
    probe: Option<ProbeTimer>,
}

/// Probes of a silent peer (RFC 9002 6.2.1).
#[derive(Clone, Copy, Debug)]
struct ProbeTimer {
    /// When the next probe may leave. While `left` is not zero this is the latest timeout.
    next: Micros,
    /// Probes that may still leave at this timeout.
    left: u8,
    /// Doublings of the PTO since the first probe.
    doublings: u8,
}

impl PtoBackoff {
    /// Probes without an answer double the PTO; the doublings so far (RFC 9002 A.3 pto_count).
    #[cfg(feature = "qlog")]
    pub(crate) fn doublings(&self) -> u8 {
        self.probe.map_or(0, |probe| probe.doublings)
    }

    /// A segment leaves for the first time; `is_first`: nothing was in flight.
    #[inline]
    pub(crate) fn on_new_segment(&mut self, now: Micros, is_first: bool) {
        self.last_new = now;
        if is_first && self.probe.is_none() {
            self.last_peer_activity = now;
        }
    }

    /// A valid ACK, the pong of a ping that was not early or a new `una` arrived, or a path was validated:
    /// ends the back-off.
    #[inline]
    pub(crate) fn on_peer_activity(&mut self, now: Micros) {
        (self.last_peer_activity, self.probe) = (now, None);
    }

    /// A silent peer answered an early ping: either the path works again, or the peer acknowledges nothing.
    /// The next probe may leave as soon as its RTO has expired, and only its ACK ends the back-off (RFC 9002
    /// 6.2.1).
    pub(crate) fn on_early_pong(&mut self, now: Micros) {
        if let Some(probe) = &mut self.probe {
            probe.next = now;
        }
    }

    /// Whether the back-off allows only one probe per PTO, which is then the oldest segment.
    pub(crate) fn is_active(&self) -> bool {
        self.probe.is_some_and(|probe| probe.left == 0)
    }

    /// Whether a retransmission by RTO may leave now.
    pub(crate) fn may_send_probe(&self, now: Micros, ack_wait: u64) -> bool {
        self.probe_at(now, ack_wait) <= now
    }

    /// When a retransmission whose RTO expires at `expiry` may leave. It waits while the ACK of newer data
    /// may still come, at most `ack_wait` microseconds, since that ACK shows what was lost (RFC 9002 6.2.1).
    /// While nothing arrives it waits at most a second: full segments may be lost where short ones are not.
    /// `ack_wait` is 0 if the RTO does not wait.
    pub(crate) fn probe_at(&self, expiry: Micros, ack_wait: u64) -> Micros {
        match self.probe {
            Some(probe) => expiry.max(probe.next),
            None if ack_wait == 0 => expiry,
            None => {
                let silent_at =
                    self.last_peer_activity.add_micros(DOUBLING_AFTER.max(2 * ack_wait));
                expiry.max(self.last_new.add_micros(ack_wait).min(silent_at))
            }
        }
    }

    /// A retransmission by RTO leaves now. It is a probe if the peer has been silent for an RTO, or for a
    /// second if `ack_wait` is 0. `rto` and `max_rto` in microseconds.
    pub(crate) fn on_rto(&mut self, now: Micros, rto: u64, max_rto: u64, ack_wait: u64) {
        let unheard = now.since(self.last_peer_activity);
        let doubles = unheard >= DOUBLING_AFTER.max(2 * rto);
        if unheard < rto || (ack_wait == 0 && !doubles) {
            return;
        }
        let goes_on = |probe: &ProbeTimer| probe.left > 0 && now.since(probe.next) < rto / 2;
        let probe = self.probe.filter(|probe| goes_on(probe) && !doubles);
        let mut probe = probe.unwrap_or_else(|| ProbeTimer {
            next: now,
            left: if doubles { 1 } else { PROBES },
            doublings: self.probe.map_or(0, |probe| probe.doublings),
        });
        probe.left -= 1;
        if probe.left == 0 {
            let pto = (rto << probe.doublings.min(MAX_BACKOFF_LEVEL)).min(max_rto.max(rto));
            probe.next = now.add_micros(pto);
            probe.doublings = probe.doublings.saturating_add(u8::from(doubles));
        }
        self.probe = Some(probe);
    }
}

/// How long after a change of the network a ping of the peer may be its PATH_CHALLENGE, microseconds: the
/// lifetime of a challenge (`core/path/validation.rs`).
const CHALLENGE_WAIT: u64 = 10_000_000;
/// Segments that leave again when a path is validated: the initial congestion window of RFC 9002 7.2.
pub(crate) const MAX_PATH_PROBES: u32 = 10;

/// Retransmissions without a sign of loss after a path has changed: segments that left on the old path would
/// otherwise wait for an RTO.
///
/// When the network changes, the oldest segment leaves at once. A peer drops data from a new address until the
/// address has answered its PATH_CHALLENGE, so the oldest segments follow that answer. The peer sends its own
/// oldest ones once it has the answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathProbes {
    /// Segments that may still leave.
    left: u32,
    /// How many of them take no token of [`RetransmitBudget`].
    free: u32,
    /// Only segments whose latest transmission came before this one, see [`SentSegment::xmit_seq`].
    before: u64,
    /// Until when a ping may be a PATH_CHALLENGE; 0 unless the network has changed.
    challenged_until: Micros,
    /// They are the flight of a transfer, and leave as the window of the new path admits them.
    fills_window: bool,
}

impl PathProbes {
    /// The network has changed. `next`: order of the next transmission.
    pub(crate) fn on_network_changed(&mut self, now: Micros, next: u64) {
        let challenged_until = now.add_micros(CHALLENGE_WAIT);
        *self = Self { left: 1, free: 1, before: next, challenged_until, fills_window: false };
    }

    /// A ping of the peer arrived. Returns whether it is the first since the network has changed, and may be
    /// a PATH_CHALLENGE.
    #[inline]
    pub(crate) fn on_ping(&mut self, now: Micros, next: u64) -> bool {
        let may_be_challenge = now < self.challenged_until;
        if may_be_challenge {
            self.challenged_until = Micros(0);
            self.on_path_validated(next);
        }
        may_be_challenge
    }

    /// The peer's new path is validated.
    pub(crate) fn on_path_validated(&mut self, next: u64) {
        (self.left, self.free) = (MAX_PATH_PROBES, MAX_PATH_PROBES);
        (self.before, self.fills_window) = (next, false);
    }

    /// The old path is silent: `count` segments in flight leave on another one, `free` of them without a token.
    /// `fills_window`: as its window admits them.
    pub(crate) fn on_path_silent(&mut self, next: u64, count: u32, free: u32, fills_window: bool) {
        (self.left, self.free) = (count, free);
        (self.before, self.fills_window) = (next, fills_window);
    }

    #[inline]
    pub(crate) fn fills_window(&self) -> bool {
        self.left > 0 && self.fills_window
    }

    /// Whether `segment` left on the old path, and may leave again.
    #[inline]
    pub(crate) fn wants(&self, segment: &SentSegment) -> bool {
        self.left > 0 && segment.xmit_seq < self.before
    }

    #[inline]
    fn is_active(&self) -> bool {
        self.left > 0
    }

    /// Whether the next segment takes a token of [`RetransmitBudget`].
    #[inline]
    pub(crate) fn takes_token(&self) -> bool {
        self.left > 0 && self.free == 0
    }

    /// A segment has left again.
    pub(crate) fn on_sent(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.free = self.free.saturating_sub(1);
    }

    /// No segment of the old path is left.
    pub(crate) fn stop(&mut self) {
        self.left = 0;
    }
}

/// Capacity of the bucket, which starts full: twice the largest pacer burst.
const MAX_TOKENS: u32 = 64;
/// Segments in flight above which an acknowledged retransmission adds a second token. Smaller windows return
/// within four round trips anyway.
const GROWS_ABOVE: u32 = 256;
/// Tokens granted to an empty bucket once per period, so that a tail whose ACKs are all lost is
/// retransmitted. RFC 9002 6.2.4 allows two; each may have a copy here.
const TRICKLE: u32 = 4;
/// Least period between two grants, microseconds.
const MIN_TRICKLE_PERIOD: u64 = 30_000;
/// Tokens that copies leave in the bucket: the first copy of another segment is worth more than a second copy
/// of one.
const REDUNDANT_ABOVE: u32 = 8;

/// Limit on retransmissions: packet conservation (RFC 9937, Proportional Rate Reduction; Jacobson 1988) as a
/// token bucket that acknowledgements fill.
///
/// If the queue of a bottleneck is full, retransmissions are lost too, are found lost a round trip later, and
/// leave again; without a limit they soon fill most of the path. Here a retransmission takes a token, and
/// each newly acknowledged segment adds one. In any time span, retransmissions are at most the segments
/// acknowledged in it, plus [`MAX_TOKENS`], plus [`TRICKLE`] per smoothed RTT (per 30 ms if that is longer):
/// test file `core/tests/bottleneck.rs`. While less than half of all datagrams are lost, tokens suffice,
/// except for a burst of more than [`MAX_TOKENS`] losses, which takes more round trips.
///
/// With the BBR model ([`congestion::bbr`](crate::core::congestion)), which limits the rate itself, the ACK
/// of a retransmission adds a second token while much is in flight: a lost large window then returns at the
/// pace of slow start, not at [`MAX_TOKENS`] per round trip (RFC 9937 `SafeACK`). Retransmissions are then at
/// most twice the segments acknowledged, plus the same constants.
///
/// In addition, if data leaves a silent path, as many [`PathProbes`] need no token as segments were acknowledged since
/// data last left one: paths that fall silent in turn would otherwise send a window each time. A validated path allows
/// [`MAX_PATH_PROBES`] more. Segments on silent paths of a transfer that uses all of them need no token either.
///
/// The limit applies with any congestion control, and with none. kcp-go has no such limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetransmitBudget {
    tokens: u32,
    /// Segments acknowledged since data last left a silent path.
    acked_since_move: u32,
    /// When an empty bucket gets its next [`TRICKLE`] tokens.
    grant_at: Micros,
}

impl RetransmitBudget {
    pub(crate) fn new() -> Self {
        Self { tokens: MAX_TOKENS, acked_since_move: 0, grant_at: Micros(0) }
    }

    /// `count` segments were acknowledged for the first time, by number or by `una`.
    #[inline]
    pub(crate) fn on_acked(&mut self, count: u32) {
        self.acked_since_move = self.acked_since_move.saturating_add(count);
        self.add(count);
    }

    #[inline]
    fn add(&mut self, count: u32) {
        self.tokens = self.tokens.saturating_add(count).min(MAX_TOKENS);
    }

    /// Data leaves a silent path. Returns how many segments were acknowledged since it last did.
    pub(crate) fn on_move(&mut self) -> u32 {
        mem::take(&mut self.acked_since_move)
    }

    /// A retransmission was acknowledged on a path whose rate a model limits. `in_flight`: segments from
    /// SND.UNA to SND.NXT.
    pub(crate) fn on_retransmission_acked(&mut self, in_flight: u32) {
        if in_flight > GROWS_ABOVE {
            self.add(1);
        }
    }

    /// Whether a retransmission may leave.
    #[inline]
    pub(crate) fn may_retransmit(&self, now: Micros) -> bool {
        self.tokens > 0 || now >= self.grant_at
    }

    /// Takes up to `wanted` tokens for copies of a retransmission; returns how many.
    pub(crate) fn take_redundant(&mut self, wanted: u8) -> u8 {
        self.take_above(REDUNDANT_ABOVE, wanted)
    }

    /// As [`Self::take_redundant`], for copies that probe during a burst. Leaves half of the tokens for
    /// retransmissions after it.
    pub(crate) fn take_probes(&mut self, wanted: u8) -> u8 {
        self.take_above(MAX_TOKENS / 2, wanted)
    }

    /// Takes up to `wanted` tokens but leaves `kept` in the bucket. Returns how many.
    fn take_above(&mut self, kept: u32, wanted: u8) -> u8 {
        let spare = self.tokens.saturating_sub(kept);
        let taken = u8::try_from(spare).map_or(wanted, |spare| spare.min(wanted));
        self.tokens -= u32::from(taken);
        taken
    }

    /// Returns the tokens of cancelled copies.
    pub(crate) fn put_back(&mut self, count: u32) {
        self.add(count);
    }

    /// When a retransmission may leave; may be in the past.
    pub(crate) fn available_at(&self) -> Micros {
        if self.tokens > 0 { Micros(0) } else { self.grant_at }
    }

    /// A retransmission leaves. `rtt`: smoothed RTT, or the RTO before the first sample, microseconds.
    pub(crate) fn on_retransmit(&mut self, now: Micros, rtt: u64) {
        if self.tokens == 0 {
            self.tokens = TRICKLE;
            self.grant_at = now.add_micros(rtt.max(MIN_TRICKLE_PERIOD));
        }
        self.tokens -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::recovery::sent::SentSegments;
    use crate::core::send::buffer::BufferRange;
    use crate::core::seq::{Sn, Ts};

    fn setup(preset: &Timing) -> (LossDetector, RttEstimator, SentSegments) {
        let mut loss = LossDetector::new(10_000_000);
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

    /// Rule: P-6.
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

    /// As between two state machines in one process.
    #[test]
    fn segment_on_a_path_without_delay_is_lost_as_soon_as_later_acks_show_it() {
        let (mut loss, rtt, sent) = setup(&Timing::FAST3);
        (2..=3).for_each(|later| loss.on_ack(later, 0));
        let first = sent.get(Sn(0)).unwrap();
        let lost = (first.last_sent, LossTrigger::FastRetransmit);
        assert_eq!(loss.lost_at(&first, &rtt, 4, false), lost);
        assert_eq!(loss.least_wait(&rtt), 0);
    }

    /// Rule: P-7.
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

    /// Rule: P-6.
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

    /// Rule: P-6.
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

    /// Rule: P-8.
    #[test]
    fn rto_backoff_is_linear_up_to_max_rto() {
        let (mut loss, rtt, _) = setup(&Timing::FAST3);
        let rto = rtt.rto();
        let half_rtos = |loss: &LossDetector| {
            [0, 1, 2, 4].map(|level| loss.backed_off_rto(&rtt, level, 1) * 2 / rto)
        };
        assert_eq!(half_rtos(&loss), [2, 3, 4, 6]);
        loss.set_timing(&Timing::NORMAL);
        assert_eq!(half_rtos(&loss), [2, 4, 6, 10]);
        assert!(loss.backed_off_rto(&rtt, 15, 1) < 10_000_000);
        assert_eq!(loss.backed_off_rto(&rtt, 100, 1), 10_000_000);
        assert_eq!(loss.backed_off_rto(&rtt, 0, THIN_STREAM_LIMIT + 1), rto + rto / 2);
    }

    #[test]
    fn backed_off_rto_is_limited_for_a_silent_peer_and_while_closing() {
        let (mut loss, rtt, _) = setup(&Timing::FAST3);
        assert_eq!(rtt.rto(), 300_000);
        let longest = |loss: &LossDetector| loss.backed_off_rto(&rtt, 100, 1);
        loss.limit_pto(true);
        assert_eq!((longest(&loss), loss.max_rto()), (2_500_000, 2_500_000));
        loss.limit_backoff(400_000);
        assert_eq!((longest(&loss), loss.max_rto()), (400_000, 400_000));
        loss.limit_backoff(200_000);
        assert_eq!((longest(&loss), loss.max_rto()), (300_000, 200_000), "at least the RTO");
        assert_eq!(loss.with_settings().max_rto(), 200_000);
        loss.limit_backoff(u64::MAX);
        assert_eq!(loss.with_settings().max_rto(), 2_500_000);
        loss.limit_pto(false);
        assert_eq!(loss.with_settings().max_rto(), 10_000_000);
    }

    #[test]
    fn segment_with_copies_is_lost_when_the_answer_to_the_slowest_is_late() {
        let (mut loss, rtt, sent) = setup(&Timing::FAST3);
        let first = sent.get(Sn(0)).unwrap();
        loss.set_copy_wait(0);
        assert!(loss.others.is_none(), "most connections have one path");
        for wait in [40_000, 0] {
            loss.set_copy_wait(wait);
            assert_eq!(loss.copy_wait(), wait);
            let rto = (Micros(300_000 + wait), LossTrigger::Rto);
            assert_eq!(loss.lost_at(&first, &rtt, 4, false), rto);
        }
        loss.set_copy_wait(40_000);
        (2..=3).for_each(|later| loss.on_ack(later, 100_000));
        let lost = (Micros(140_000), LossTrigger::FastRetransmit);
        assert_eq!(loss.lost_at(&first, &rtt, 4, false), lost);
    }

    #[test]
    fn ack_is_awaited_for_a_round_trip_and_the_reordering_window_within_the_rto() {
        let (mut loss, rtt, _) = setup(&Timing::FAST3);
        assert_eq!(loss.ack_wait(&rtt), 102_000, "the shortest round trip");
        loss.on_ack(1, 150_000);
        assert_eq!((loss.ack_wait(&rtt), loss.least_wait(&rtt)), (152_000, 150_000));
        loss.set_reo_wnd(30_000);
        assert_eq!((loss.ack_wait(&rtt), loss.least_wait(&rtt)), (180_000, 180_000));
        loss.set_reo_wnd(200_000);
        assert_eq!((loss.ack_wait(&rtt), loss.least_wait(&rtt)), (300_000, 300_000));
        let mut limited = LossDetector::new(250_000);
        limited.set_reo_wnd(300_000);
        assert_eq!(limited.least_wait(&rtt), 250_000);
    }

    /// The path before may still answer what left there.
    #[test]
    fn acks_of_transmissions_on_the_path_before_say_nothing_about_this_one() {
        let (mut loss, rtt, sent) = setup(&Timing::FAST3);
        (2..=3).for_each(|later| loss.on_ack(later, 100_000));
        assert!(loss.is_newest_ack(3) && loss.has_acked_since(3));
        loss.begin_at(Micros(50_000), 5, 150_000);
        assert!(!loss.has_acked_since(5));
        (2..=4).for_each(|later| loss.on_ack(later, 100_000));
        let first = sent.get(Sn(0)).unwrap();
        assert_eq!(loss.lost_at(&first, &rtt, 4, true).1, LossTrigger::Rto);
        assert!(!loss.is_newest_ack(4) && loss.is_newest_ack(5) && loss.has_acked_since(5));
        let now = Micros(80_000);
        assert!(loss.left_on_this_path(now, 30_000) && !loss.left_on_this_path(now, 30_001));
    }

    #[test]
    fn ping_within_10_s_of_a_change_of_the_network_lets_ten_segments_leave_again() {
        let (_, _, sent) = setup(&Timing::FAST3);
        let (first, second) = (sent.get(Sn(0)).unwrap(), sent.get(Sn(1)).unwrap());
        for (wait, count) in [(9_999_999, 10), (10_000_000, 1)] {
            let (mut probes, changed) = (PathProbes::default(), Micros(1_000_000));
            assert!(!probes.on_ping(changed, 9) && !probes.is_active());
            probes.on_network_changed(changed, second.xmit_seq);
            assert!(probes.wants(&first) && !probes.wants(&second) && !probes.fills_window());
            let is_first = probes.on_ping(changed.add_micros(wait), 100);
            assert_eq!((is_first, probes.wants(&second)), (count == 10, count == 10));
            assert!(!probes.on_ping(changed.add_micros(wait), 100), "the second ping");
            (1..count).for_each(|_| probes.on_sent());
            assert!(probes.is_active());
            probes.on_sent();
            assert!(!probes.is_active() && !probes.wants(&first));
        }
        let mut probes = PathProbes::default();
        probes.on_path_silent(100, 3, 1, true);
        assert!(!probes.takes_token());
        assert!(probes.wants(&second) && probes.fills_window());
        probes.on_sent();
        assert!(probes.is_active() && probes.takes_token(), "one was free");
        probes.stop();
        assert!(!probes.wants(&second) && !probes.fills_window());
    }

    const RTO: u64 = 200_000;
    const MAX_RTO: u64 = 10_000_000;

    /// Rule: P-10.
    #[test]
    fn pto_backoff_after_a_second_without_activity_doubles_up_to_max_rto() {
        let mut backoff = PtoBackoff::default();
        backoff.on_peer_activity(Micros(1_000_000));
        backoff.on_rto(Micros(1_999_999), RTO, MAX_RTO, 0);
        assert!(!backoff.is_active() && backoff.may_send_probe(Micros(1_999_999), 0));
        let mut now = Micros(2_000_000);
        let mut ptos = Vec::new();
        for _ in 0..8 {
            backoff.on_rto(now, RTO, MAX_RTO, 0);
            let next = backoff.probe_at(now, 0);
            assert!(backoff.is_active() && !backoff.may_send_probe(Micros(next.0 - 1), 0));
            assert!(backoff.may_send_probe(next, 0));
            ptos.push(next.since(now) / 1_000);
            now = next;
        }
        assert_eq!(ptos, [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        backoff.on_early_pong(now);
        assert!(backoff.is_active() && backoff.may_send_probe(now, 0));
        backoff.on_rto(now, RTO, MAX_RTO, 0);
        assert_eq!(backoff.probe_at(now, 0), now.add_micros(MAX_RTO), "a pong draws one probe");
        backoff.on_peer_activity(now);
        assert!(!backoff.is_active() && backoff.may_send_probe(now, 0));
        assert_eq!(backoff.probe_at(now, 0), now);
    }

    /// Rule: P-9.
    #[test]
    fn pto_backoff_with_a_long_rto_begins_after_two_of_them() {
        let rto = 800_000;
        let mut backoff = PtoBackoff::default();
        backoff.on_peer_activity(Micros(0));
        backoff.on_rto(Micros(2 * rto - 1), rto, MAX_RTO, 0);
        assert!(!backoff.is_active());
        backoff.on_rto(Micros(2 * rto), rto, MAX_RTO, 0);
        assert!(backoff.is_active());
        let mut waiting = PtoBackoff::default();
        waiting.on_new_segment(Micros(5_000_000), false);
        assert_eq!(waiting.probe_at(Micros(rto), rto), Micros(2 * rto));
    }

    #[test]
    fn rto_waits_for_acks_of_newer_data() {
        let mut backoff = PtoBackoff::default();
        backoff.on_new_segment(Micros(0), true);
        backoff.on_peer_activity(Micros(50_000));
        assert_eq!(backoff.probe_at(Micros(RTO), RTO), Micros(RTO));
        backoff.on_new_segment(Micros(150_000), false);
        assert_eq!(backoff.probe_at(Micros(RTO), RTO), Micros(RTO + 150_000));
        let silent_at = Micros(50_000 + DOUBLING_AFTER);
        let mut newer = backoff;
        newer.on_new_segment(Micros(5_000_000), false);
        assert_eq!(newer.probe_at(Micros(RTO), RTO), silent_at, "nothing is heard for a second");
        assert_eq!(backoff.probe_at(Micros(RTO), 0), Micros(RTO));
    }

    /// After an idle time the peer had nothing to acknowledge, so the back-off counts from the new data.
    /// Rule: P-10.
    #[test]
    fn pto_backoff_counts_from_the_first_segment_in_flight() {
        let mut backoff = PtoBackoff::default();
        backoff.on_new_segment(Micros(60_000_000), true);
        backoff.on_rto(Micros(60_000_000 + RTO), RTO, MAX_RTO, RTO);
        for sent in 2..=4 {
            assert!(!backoff.is_active(), "four may leave at this timeout");
            backoff.on_rto(Micros(60_000_000 + RTO), RTO, MAX_RTO, RTO);
            assert_eq!(backoff.is_active(), sent == 4);
        }
        assert_eq!(backoff.probe_at(Micros(0), RTO), Micros(60_000_000 + 2 * RTO));
    }

    /// Retransmits as often as the budget allows until `until`, and returns how often.
    fn spend(budget: &mut RetransmitBudget, from: u64, until: u64, rtt: u64) -> u32 {
        let (mut now, mut spent) = (from, 0);
        while now < until {
            if budget.may_retransmit(Micros(now)) {
                budget.on_retransmit(Micros(now), rtt);
                spent += 1;
            } else {
                now = budget.available_at().0;
            }
        }
        spent
    }

    /// Rule: P-13.
    #[test]
    fn retransmissions_without_acks_are_the_capacity_and_four_per_rtt() {
        for (rtt, periods) in [(100_000, 10), (1_000, 34)] {
            let mut budget = RetransmitBudget::new();
            assert_eq!(spend(&mut budget, 1, 1_000_000, rtt), 64 + 4 * periods);
        }
    }

    /// Rule: P-13.
    #[test]
    fn each_acked_segment_allows_one_retransmission_up_to_the_capacity() {
        let mut budget = RetransmitBudget::new();
        assert_eq!(spend(&mut budget, 0, 1, 100_000), MAX_TOKENS + TRICKLE);
        for acked in [1, 7, MAX_TOKENS, 1_000] {
            budget.on_acked(acked);
            assert_eq!(spend(&mut budget, 1, 2, 100_000), acked.min(MAX_TOKENS));
        }
    }

    #[test]
    fn acked_retransmission_of_a_large_window_allows_one_more() {
        for (in_flight, more) in [(1, 0), (256, 0), (257, 1), (65_535, 1)] {
            let mut budget = RetransmitBudget::new();
            spend(&mut budget, 0, 1, 100_000);
            budget.on_retransmission_acked(in_flight);
            assert_eq!(spend(&mut budget, 1, 2, 100_000), more, "{in_flight} in flight");
        }
    }

    #[test]
    fn redundant_retransmissions_stop_before_others() {
        for (take, expected) in [
            (RetransmitBudget::take_redundant as fn(&mut RetransmitBudget, u8) -> u8, 56),
            (RetransmitBudget::take_probes, 32),
        ] {
            let mut budget = RetransmitBudget::new();
            let taken: u32 = (0..100).map(|_| u32::from(take(&mut budget, 3))).sum();
            assert_eq!(taken, expected);
            assert!(budget.may_retransmit(Micros(0)));
            budget.put_back(taken);
            assert_eq!(u32::from(take(&mut budget, u8::MAX)), expected);
        }
    }

    /// The RTO of the path before is longer than a round trip of this one.
    #[test]
    fn loss_on_the_path_before_waits_for_the_rto_of_that_path() {
        let (mut loss, rtt, sent) = setup(&Timing::FAST3);
        let third = sent.get(Sn(2)).unwrap();
        let first_here = third.xmit_seq;
        loss.begin_at(Micros(0), first_here, 150_000);
        (1..=2).for_each(|later| loss.on_ack(first_here + later, 100_000));
        for (sn, lost_at) in [(1, 150_000), (2, 100_000)] {
            let segment = sent.get(Sn(sn)).unwrap();
            let lost = (Micros(lost_at), LossTrigger::FastRetransmit);
            assert_eq!(loss.lost_at(&segment, &rtt, 4, false), lost, "segment {sn}");
        }
    }
}
