//! The sender: what waits, what is in flight, and which segment leaves next.

use bytes::Bytes;

use crate::config::{KcpConfig, Mode, Timing};
use crate::core::clock::{Clock, Micros};
use crate::core::congestion::pacer::Pacer;
use crate::core::congestion::reno::CongestionWindow;
use crate::core::congestion::window_autotune::WindowAutotune;
use crate::core::path::mtu::MtuDiscovery;
use crate::core::recovery::acked_history::{AckedHistory, LateAck};
use crate::core::recovery::loss::{LossDetector, LossTrigger};
use crate::core::recovery::rtt::RttEstimator;
use crate::core::recovery::sent_segments::SentSegments;
use crate::core::segment::HEADER_LEN;
use crate::core::send::remote_window::RemoteWindow;
use crate::core::send::retransmit::PtoBackoff;
use crate::core::send::send_buffer::SendBuffer;
use crate::core::seq::{Sn, Ts};
use crate::stats::Counters;

/// What may leave next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendCandidate {
    /// Payload bytes.
    pub(crate) len: usize,
    repeat: Option<(Sn, LossTrigger)>,
}

impl SendCandidate {
    /// Whether it leaves for the first time.
    pub(crate) fn is_new(&self) -> bool {
        self.repeat.is_none()
    }
}

/// A segment to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingSegment<'a> {
    pub(crate) sn: Sn,
    pub(crate) frg: u8,
    pub(crate) payload: &'a [u8],
}

/// What an acknowledgement is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckOutcome {
    /// The peer received that transmission.
    Valid,
    /// Too old to tell.
    Stale,
    /// Of nothing that was ever sent, or not at that time.
    Invalid,
}

/// How a cumulative acknowledgement relates to what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnaOutcome {
    /// It is the newest: the window beside it counts. `released` segments are done.
    Current { released: u32 },
    /// Older than one already seen, or so it seems.
    Stale,
    /// Of something never sent, or hopelessly old.
    Invalid,
}

#[derive(Debug)]
pub(crate) struct Sender {
    pub(super) send_buffer: SendBuffer,
    pub(super) sent_segments: SentSegments,
    pub(super) loss: LossDetector,
    pub(crate) rtt: RttEstimator,
    pub(crate) remote: RemoteWindow,
    pub(crate) cwnd: CongestionWindow,
    pub(super) window: u16,
    pub(super) autotune: Option<WindowAutotune>,
    pub(super) fast_resend: u32,
    pub(super) mss: usize,
    pub(crate) path: MtuDiscovery,
    pub(super) pacer: Pacer,
    /// A repetition that leaves once more.
    pub(super) redundant_retransmit: Option<(Sn, LossTrigger)>,
    pub(super) acked_history: AckedHistory,
    pub(super) last_peer_activity: Micros,
    pub(super) pto_backoff: Option<PtoBackoff>,
}

impl Sender {
    pub(crate) fn new(config: &KcpConfig, start: Sn, mss: usize) -> Self {
        let longest = crate::core::clock::micros(config.max_retransmit_interval);
        let mut sender = Self {
            send_buffer: SendBuffer::new(config.mode == Mode::Stream),
            sent_segments: SentSegments::new(start),
            loss: LossDetector::new(config.early_retransmit, config.backoff, longest),
            rtt: RttEstimator::new(config.max_retransmit_interval),
            remote: RemoteWindow::new(start),
            cwnd: CongestionWindow::new(config.timing.congestion, start),
            window: config.send_window,
            autotune: WindowAutotune::of(config.send_window, config.auto_windows, start),
            fast_resend: 0,
            mss,
            path: MtuDiscovery::default(),
            pacer: Pacer::default(),
            redundant_retransmit: None,
            acked_history: AckedHistory::default(),
            last_peer_activity: Micros(0),
            pto_backoff: None,
        };
        sender.set_timing(&config.timing);
        sender
    }

    pub(crate) fn set_timing(&mut self, preset: &Timing) {
        self.rtt.set_timing(preset.nodelay, preset.interval);
        self.loss.set_timing(preset);
        self.cwnd.set_mode(preset.congestion);
        self.fast_resend = preset.fast_resend.map_or(0, |count| u32::from(count.get()));
    }

    pub(crate) fn set_window(&mut self, segments: u16) {
        (self.window, self.autotune) = (segments, None);
    }

    pub(crate) fn window(&self) -> u16 {
        self.window
    }

    /// Applies to segments cut from now on; what is in flight keeps its size.
    pub(crate) fn set_mss(&mut self, mss: usize) {
        self.mss = mss;
    }

    pub(crate) fn mss(&self) -> usize {
        self.mss
    }

    pub(crate) fn una(&self) -> Sn {
        self.sent_segments.una()
    }

    /// The number of the next new segment.
    pub(crate) fn nxt(&self) -> Sn {
        self.sent_segments.nxt()
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.sent_segments.len()
    }

    pub(crate) fn send_buffer(&self) -> &SendBuffer {
        &self.send_buffer
    }

    pub(crate) fn push(&mut self, data: Bytes, frg: u8) {
        self.send_buffer.push(data, frg);
    }

    pub(crate) fn holds_memory(&self) -> bool {
        let queues = self.send_buffer.holds_memory() || self.sent_segments.holds_memory();
        queues || self.acked_history.holds_memory()
    }

    pub(crate) fn release_memory(&mut self) {
        self.send_buffer.release_memory();
        self.sent_segments.release_memory();
        self.acked_history.release_memory();
    }

    /// Whether every byte was acknowledged cumulatively.
    pub(crate) fn is_drained(&self) -> bool {
        self.send_buffer.is_empty() && self.sent_segments.is_empty()
    }

    /// Segments waiting or in flight that the send window still admits.
    pub(crate) fn room(&self) -> usize {
        let used = self.sent_segments.len() as usize + self.send_buffer.segments(self.mss);
        usize::from(self.window).saturating_sub(used)
    }

    /// Effective window in segments beyond `una`.
    #[inline]
    pub(super) fn effective_window(&self) -> u32 {
        u32::from(self.window).min(self.remote.available(self.una())).min(self.cwnd.window())
    }

    #[inline]
    pub(super) fn window_is_open(&self) -> bool {
        self.sent_segments.len() < self.effective_window()
    }

    /// Whether only a word of the peer lets things go on: about its window, or a cumulative
    /// acknowledgement of what it acknowledged one by one. A peer whose reader is slow holds that
    /// back until it reads.
    pub(crate) fn is_window_blocked(&self) -> bool {
        match self.sent_segments.get(self.una()) {
            Some(oldest) => oldest.acked,
            None => !self.send_buffer.is_empty() && self.remote.available(self.una()) == 0,
        }
    }

    /// Whether the oldest segment in flight waits for an acknowledgement of its own.
    pub(crate) fn is_oldest_open(&self) -> bool {
        self.sent_segments.get(self.una()).is_some_and(|oldest| !oldest.acked)
    }

    /// Whether the peer owes an acknowledgement.
    pub(crate) fn awaits_ack(&self) -> bool {
        !self.sent_segments.all_acked() || self.is_window_blocked()
    }

    // ----- network in -----

    /// Whether a segment in flight, or one of the last that were, has this number and was sent with
    /// this stamp, first or last.
    pub(crate) fn has_sent(&self, clock: &Clock, sn: Sn, ts: Ts) -> bool {
        let flying =
            self.sent_segments.get(sn).map(|sent| (sent.first_ts, clock.timestamp(sent.last_sent)));
        let released = || self.acked_history.stamps(self.una().offset_from(sn)?);
        flying.or_else(released).is_some_and(|(first, last)| ts == first || ts == last)
    }

    /// The peer was heard: repetitions that silence held back may leave again.
    pub(crate) fn on_peer_activity(&mut self, now: Micros) {
        self.last_peer_activity = now;
        self.pto_backoff = None;
    }

    /// One acknowledgement. It is a proof that the peer received what we sent only if its stamp is
    /// one of a transmission of just that number.
    pub(crate) fn on_ack(
        &mut self,
        now: Micros,
        clock: &Clock,
        (sn, ts): (Sn, Ts),
        sample: bool,
        stats: &mut Counters,
    ) -> AckOutcome {
        let Some(segment) = self.sent_segments.get(sn) else {
            return self.on_released_ack(now, (sn, ts), sample, stats);
        };
        let (first, last) = (segment.first_ts, clock.timestamp(segment.last_sent));
        let of_last = ts == last;
        // After an outage of weeks the two are more than half the circle apart.
        if !of_last && (ts.since(first) < 0 || ts.since(last) > 0) {
            return AckOutcome::Invalid;
        }
        let rtt = if of_last {
            now.since(segment.last_sent)
        } else {
            u64::from(clock.timestamp(now).since(ts).max(0).cast_unsigned()) * 1_000
        };
        let (order, repeated, fresh) = (segment.xmit_seq, segment.retransmitted, !segment.acked);
        if fresh {
            if sample {
                self.rtt.on_sample(now, rtt);
            }
            if of_last {
                self.loss.on_ack(order, rtt);
            }
            if repeated && of_last && first != last {
                self.loss.on_confirmed_loss();
            } else if repeated && !of_last {
                stats.spurious_retransmits += 1;
                self.loss.on_spurious_retransmit(&self.rtt);
            }
            self.sent_segments.ack(sn);
            if self.path.is_watching()
                && let Some(payload) = self.sent_segments.payload(sn)
            {
                self.path.on_segment_acked(HEADER_LEN + payload.len());
            }
        }
        AckOutcome::Valid
    }

    /// An acknowledgement behind the cumulative one: good for proof and RTT. One of a repetition
    /// says more: whatever the cumulative one covered had arrived before, so it was needless.
    fn on_released_ack(
        &mut self,
        now: Micros,
        (sn, ts): (Sn, Ts),
        sample: bool,
        stats: &mut Counters,
    ) -> AckOutcome {
        let window = u32::from(u16::MAX);
        let age = self.una().offset_from(sn).filter(|age| (1..=window).contains(age));
        let Some(age) = age else { return AckOutcome::Invalid };
        match self.acked_history.on_ack(now, age, ts) {
            LateAck::Stale => return AckOutcome::Stale,
            LateAck::Invalid => return AckOutcome::Invalid,
            LateAck::Last { rtt, repeated } => {
                stats.spurious_retransmits += u64::from(repeated);
                if let Some(rtt) = rtt.filter(|_| sample) {
                    self.rtt.on_sample(now, rtt);
                }
            }
            // The original's own acknowledgement was merely late. Where only the repetition's
            // comes, as above, it was lost as a rule, and patience would not have helped.
            LateAck::EarlierTransmission { repeated: true } => {
                stats.spurious_retransmits += 1;
                self.loss.on_spurious_retransmit(&self.rtt);
            }
            LateAck::EarlierTransmission { repeated: false } => {}
        }
        AckOutcome::Valid
    }

    /// A cumulative acknowledgement.
    pub(crate) fn on_una(&mut self, now: Micros, clock: &Clock, una: Sn) -> UnaOutcome {
        let ahead = una.since(self.una());
        if ahead < 0 {
            // No window is larger, so nothing honest is older.
            let late = ahead.unsigned_abs() <= u32::from(u16::MAX);
            return if late { UnaOutcome::Stale } else { UnaOutcome::Invalid };
        }
        let released = ahead.unsigned_abs();
        if released > self.sent_segments.len() {
            return UnaOutcome::Invalid;
        }
        let limited = self.sent_segments.len() >= u32::from(self.window);
        for _ in 0..released {
            if self.path.is_watching()
                && let Some(oldest) = self.sent_segments.oldest()
            {
                self.path.on_segment_acked(HEADER_LEN + oldest.len());
            }
            if let Some(segment) = self.sent_segments.pop_acked() {
                self.acked_history.remember(clock, &segment);
            }
        }
        if released > 0 {
            self.path.on_una(now, una);
        }
        self.send_buffer.release(self.sent_segments.oldest());
        if let Some(tuner) = &mut self.autotune {
            if limited {
                tuner.on_limited();
            }
            self.window = tuner.send_window(now, una, &self.rtt, self.window);
        }
        self.cwnd.on_ack(released, self.remote.available(self.una()));
        UnaOutcome::Current { released }
    }

    // ----- network out -----

    /// What may leave now: a lost segment first, otherwise a new one if the windows allow.
    pub(crate) fn next(&self, now: Micros, may_start: bool) -> Option<SendCandidate> {
        if let Some((sn, sign)) = self.pending_redundant_retransmit() {
            let len = self.sent_segments.payload(sn)?.len();
            return Some(SendCandidate { len, repeat: Some((sn, sign)) });
        }
        if self.pacer.is_blocked(now) {
            return None;
        }
        let fresh = self.next_new(now, may_start);
        if let Some((sn, sign)) = self.lost(now, fresh.is_none()) {
            let len = self.sent_segments.payload(sn)?.len();
            return Some(SendCandidate { len, repeat: Some((sn, sign)) });
        }
        fresh
    }

    /// The new segment that may leave now, where none has to be repeated.
    #[inline]
    pub(crate) fn next_new(&self, now: Micros, may_start: bool) -> Option<SendCandidate> {
        let open = may_start && self.window_is_open() && !self.pacer.is_blocked(now);
        let len = if open { self.send_buffer.next_len(self.mss) } else { None };
        len.map(|len| SendCandidate { len, repeat: None })
    }

    /// Counts the transmission of `next` and gives the segment to write.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        now: Micros,
        stamp: Ts,
        next: SendCandidate,
        stats: &mut Counters,
    ) -> Option<OutgoingSegment<'_>> {
        let sn = match next.repeat {
            None => {
                let (payload, frg) = self.send_buffer.take(self.mss)?;
                stats.sent_segments += 1;
                stats.sent_bytes += payload.len() as u64;
                self.sent_segments.push(now, stamp, payload, frg)
            }
            Some((sn, sign)) => {
                self.retransmit(now, sn, sign, stats);
                let is_redundant = self.redundant_retransmit == Some((sn, sign));
                self.redundant_retransmit =
                    if is_redundant { None } else { self.redundant_retransmit_for(sn, sign) };
                sn
            }
        };
        self.pacer.sent(now, self.effective_window(), &self.rtt);
        let frg = self.sent_segments.get(sn)?.frg;
        Some(OutgoingSegment {
            sn,
            frg,
            payload: self.send_buffer.get(self.sent_segments.payload(sn)?)?,
        })
    }

    /// When the rest of a window goes on that leaves bit by bit; may have passed.
    pub(crate) fn pacer_resume_at(&self) -> Micros {
        self.pacer.resume()
    }

    /// When an unacknowledged segment becomes due.
    pub(crate) fn deadline(&self, may_start: bool) -> Option<Micros> {
        let stuck = !(may_start && self.window_is_open() && !self.send_buffer.is_empty());
        let in_flight = self.sent_segments.len();
        self.sent_segments
            .oldest_per_level()
            .map(|(_, segment)| {
                let (at, sign) = self.loss.lost_at(segment, &self.rtt, in_flight, stuck);
                match self.pto_backoff.filter(|_| sign == LossTrigger::Rto) {
                    Some(hush) => at.max(hush.next),
                    None => at,
                }
            })
            .min()
            .map(|at| at.max(self.pacer.resume()))
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        self.sent_segments.check_invariants();
        self.send_buffer.check_invariants();
        let rto = self.rtt.rto();
        assert!((30_000..=60_000_000).contains(&rto), "rto {rto}");
    }
}
