//! Events for the [congestion control](crate::core::congestion), and pacing at its rate.

use std::mem;

use super::Sender;
use crate::config::{CongestionControl, DEFAULT_WINDOW};
use crate::core::clock::Micros;

use crate::core::congestion::{Congestion, Limit, Pacing, PathHandle, SentAs};

use crate::core::recovery::sent::SentSegments;
use crate::core::segment::HEADER_LEN;
use crate::core::seq::Sn;

/// Smoothed RTT up to which a path with a short minimum RTT needs no BBR model, microseconds. Above it the
/// path has changed or has a queue.
const MAX_UNMODELLED_RTT: u64 = 10_000;

impl Sender {
    /// Changes the congestion control. The new one starts without samples of the segments in flight.
    pub(super) fn set_congestion(&mut self, mode: CongestionControl) {
        if self.congestion.mode() == mode {
            return;
        }
        let (una, was_bbr) = (self.una(), self.congestion.is_bbr());
        self.with_flight(self.in_flight(), |congestion, segment, in_flight| {
            congestion.set_mode(mode, (una, segment), in_flight);
        });
        if was_bbr || self.congestion.is_bbr() {
            self.pacer.reset();
        }
        if was_bbr && self.autotune.is_some() {
            // The model may have grown it beyond what the path carries without one.
            self.window = self.window.min(DEFAULT_WINDOW);
        }
    }

    /// The path, for other connections that share its model.
    pub(crate) fn shared_path(&mut self) -> PathHandle {
        self.congestion.shared_path()
    }

    /// Uses the model of `path` from now on.
    pub(crate) fn share_path(&mut self, path: PathHandle) {
        self.with_flight(self.in_flight(), |congestion, segment, in_flight| {
            congestion.share_path(path, segment, in_flight);
        });
    }

    /// Leaves a path that other connections share.
    pub(crate) fn leave_path(&mut self) {
        self.with_flight(self.in_flight(), |congestion, segment, in_flight| {
            congestion.leave_path(segment, in_flight);
        });
    }

    /// Changes the congestion control. `change` gets the bytes of a full segment, and the bytes of each
    /// unproved segment and of the first `count` from SND.UNA on.
    fn with_flight(
        &mut self,
        count: u32,
        change: impl FnOnce(&mut Congestion, u64, &mut dyn Iterator<Item = u32>),
    ) {
        let unproved = (self.unproved(), self.mss);
        let mut in_flight = bytes_in_flight(&self.sent_segments, count, unproved);
        change(&mut self.congestion, (HEADER_LEN + self.mss) as u64, &mut in_flight);
    }

    /// `sn` was found lost without an RTO: reduces the Reno window if it is in use.
    pub(super) fn reduce_cwnd(&mut self, sn: Sn) {
        let (nxt, in_flight) = (self.sent_segments.nxt(), self.sent_segments.len());
        let fast_resend = self.fast_resend;
        self.congestion
            .change_reno(|reno| reno.on_fast_retransmit(sn, nxt, in_flight, fast_resend));
    }

    /// Charges pacer and congestion control for a transmission of `sn`.
    #[inline]
    pub(super) fn on_sent(&mut self, now: Micros, sn: Sn, sent_as: SentAs) {
        if !self.congestion.is_bbr() {
            self.pacer.on_sent(now, self.effective_window(), &self.rtt);
        } else if self.is_short_path()
            && sent_as == SentAs::New
            && self.congestion.suspend_on_short_path(self.sent_segments.len())
        {
            self.pacer.unblock();
        } else {
            self.on_sent_with_bbr(now, sn, sent_as);
        }
    }

    /// Whether the path needs no model while nothing is lost.
    pub(super) fn is_short_path(&self) -> bool {
        // Half of it once a model has begun, to avoid switching back and forth with each ACK.
        let most = MAX_UNMODELLED_RTT / if self.congestion.is_bbr_suspended() { 1 } else { 2 };
        self.rtt.is_short() && self.rtt.srtt().is_some_and(|srtt| srtt < most)
    }

    fn on_sent_with_bbr(&mut self, now: Micros, sn: Sn, sent_as: SentAs) {
        let payload = self.sent_segments.payload(sn);
        let Some((offset, payload)) = sn.offset_from(self.una()).zip(payload) else { return };
        let bytes = bytes_of(payload.len());
        if self.congestion.is_bbr_suspended() {
            let before = self.sent_segments.len() - u32::from(sent_as == SentAs::New);
            let rate = self.initial_rate;
            self.with_flight(before, |congestion, segment, in_flight| {
                congestion.begin_bbr(segment, in_flight, rate);
            });
        }
        let limit = self.limit();
        let sent = (self.congestion_index(offset), bytes);
        let pacing = self.congestion.on_sent(now, sent, sent_as, limit);
        self.pace_at_rate(now, u64::from(bytes), pacing);
    }

    /// `bytes` leave at the pacing rate of the congestion control.
    pub(super) fn pace_at_rate(&mut self, now: Micros, bytes: u64, pacing: Option<Pacing>) {
        match pacing {
            Some(pacing) => {
                let window = u32::from(self.window).min(self.remote.available(self.una()));
                let more = !self.send_buffer.is_empty() && self.window_is_open();
                self.pacer.on_sent_at_rate(now, (bytes, more), pacing, (window, &self.rtt));
            }
            None => self.pacer.unblock(),
        }
    }

    /// Lets the next segment leave without pacing.
    pub(crate) fn unpace(&mut self) {
        self.pacer.unblock();
    }

    /// The reason why the sender leaves capacity of the path unused: no data waits, or a window is full while
    /// neither RTT nor losses show a queue. While a window is full, no data waits here, however much the
    /// application has.
    fn limit(&self) -> Option<Limit> {
        let in_flight = self.sent_segments.len();
        let remote = self.remote.available(self.una());
        if in_flight < remote.min(u32::from(self.window)) {
            return self.is_writer_idle().then_some(Limit::Application);
        }
        let calm = self.rtt.min() / 4 * 5 + 1_000;
        let queue = self.rtt.srtt().is_some_and(|srtt| srtt > calm);
        (!queue && !self.congestion.overflows()).then_some(Limit::Window)
    }

    /// Called at the end of a datagram that carried acknowledgements.
    #[inline]
    pub(crate) fn on_acks_processed(&mut self, now: Micros) {
        self.una_proof.end_datagram();
        self.end_bursts();
        let longest_wait = mem::take(&mut self.longest_wait);
        self.rtt.on_longest_wait(now, longest_wait);
        self.congestion.on_acks_processed(now, longest_wait);
        if self.congestion.is_bbr()
            && let Some(srtt) = self.rtt.srtt()
        {
            self.pacer.limit_wait(now, srtt);
        }
    }

    /// For statistics: congestion window in segments, pacing rate and delivery rate in bytes per second; 0
    /// while unknown.
    pub(crate) fn congestion_estimates(&self) -> (u32, u64, u64) {
        let (window, pacing_rate, delivery_rate) =
            self.congestion.estimates((HEADER_LEN + self.mss) as u64);
        (window.min(u32::from(self.window)), pacing_rate, delivery_rate)
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(super) fn check_congestion(&self) {
        let unacked = (0..self.sent_segments.len()).map(|offset| {
            self.sent_segments.get(self.una().advance(offset)).is_some_and(|sent| !sent.acked)
        });
        let unacked = std::iter::repeat_n(true, self.unproved() as usize).chain(unacked);
        self.congestion.check_invariants(unacked);
    }
}

/// Bytes of each of the `unproved` segments, assumed full, then of the first `count` segments from SND.UNA
/// on; 0 for acknowledged ones.
fn bytes_in_flight(
    segments: &SentSegments,
    count: u32,
    (unproved, mss): (u32, usize),
) -> impl Iterator<Item = u32> {
    let from_una = (0..count).map(|offset| {
        let sn = segments.una().advance(offset);
        let acked = segments.get(sn).is_none_or(|segment| segment.acked);
        let bytes = segments.payload(sn).map_or(0, |payload| bytes_of(payload.len()));
        if acked { 0 } else { bytes }
    });
    std::iter::repeat_n(bytes_of(mss), unproved as usize).chain(from_una)
}

/// Length of a segment with header, bytes.
fn bytes_of(payload: usize) -> u32 {
    u32::try_from(HEADER_LEN + payload).unwrap_or(u32::MAX)
}
