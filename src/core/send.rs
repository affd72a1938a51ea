//! The sender: what waits, what is in flight, and which segment leaves next.

mod repeat;

use bytes::Bytes;

use self::repeat::Hush;
use super::clock::{Clock, Time};
use super::cwnd::CongestionWindow;
use super::flight::Flight;
use super::loss::{LossDetector, Sign};
use super::outbox::Outbox;
use super::pacer::Spread;
use super::path::Path;
use super::released::{Late, Released};
use super::rtt::Rtt;
use super::segment::HEADER;
use super::seq::{Sn, Ts};
use super::tune::Tuner;
use super::window::RemoteWindow;
use crate::config::{KcpConfig, Mode, NoDelay};
use crate::stats::Counters;

/// What may leave next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    /// Payload bytes.
    pub(crate) len: usize,
    repeat: Option<(Sn, Sign)>,
}

impl Next {
    /// Whether it leaves for the first time.
    pub(crate) fn is_new(&self) -> bool {
        self.repeat.is_none()
    }
}

/// A segment to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) sn: Sn,
    pub(crate) frg: u8,
    pub(crate) payload: &'a [u8],
}

/// What an acknowledgement is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The peer received that transmission.
    Proof,
    /// Too old to tell.
    Stale,
    /// Of nothing that was ever sent, or not at that time.
    Invalid,
}

/// How a cumulative acknowledgement relates to what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Una {
    /// It is the newest: the window beside it counts. `released` segments are done.
    Current { released: u32 },
    /// Older than one already seen, or so it seems.
    Late,
    /// Of something never sent, or hopelessly old.
    Impossible,
}

#[derive(Debug)]
pub(crate) struct Sender {
    outbox: Outbox,
    flight: Flight,
    loss: LossDetector,
    pub(crate) rtt: Rtt,
    pub(crate) remote: RemoteWindow,
    pub(crate) cwnd: CongestionWindow,
    window: u16,
    tuner: Option<Tuner>,
    resend: u32,
    mss: usize,
    pub(crate) path: Path,
    spread: Spread,
    /// A repetition that leaves once more.
    twin: Option<(Sn, Sign)>,
    released: Released,
    heard: Time,
    hush: Option<Hush>,
}

impl Sender {
    pub(crate) fn new(config: &KcpConfig, start: Sn, mss: usize) -> Self {
        let longest = super::clock::micros(config.max_retransmit_interval);
        let mut sender = Self {
            outbox: Outbox::new(config.mode == Mode::Stream),
            flight: Flight::new(start),
            loss: LossDetector::new(config.early_retransmit, config.backoff, longest),
            rtt: Rtt::new(config.max_retransmit_interval),
            remote: RemoteWindow::new(start),
            cwnd: CongestionWindow::new(config.no_delay.congestion, start),
            window: config.send_window,
            tuner: Tuner::of(config.send_window, config.auto_windows, start),
            resend: 0,
            mss,
            path: Path::default(),
            spread: Spread::default(),
            twin: None,
            released: Released::default(),
            heard: Time(0),
            hush: None,
        };
        sender.set_timing(&config.no_delay);
        sender
    }

    pub(crate) fn set_timing(&mut self, preset: &NoDelay) {
        self.rtt.set_timing(preset.nodelay, preset.interval);
        self.loss.set_timing(preset);
        self.cwnd.set_mode(preset.congestion);
        self.resend = preset.fast_resend.map_or(0, |count| u32::from(count.get()));
    }

    pub(crate) fn set_window(&mut self, segments: u16) {
        (self.window, self.tuner) = (segments, None);
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
        self.flight.una()
    }

    /// The number of the next new segment.
    pub(crate) fn nxt(&self) -> Sn {
        self.flight.nxt()
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.flight.len()
    }

    pub(crate) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub(crate) fn push(&mut self, data: Bytes, frg: u8) {
        self.outbox.push(data, frg);
    }

    pub(crate) fn holds_memory(&self) -> bool {
        let queues = self.outbox.holds_memory() || self.flight.holds_memory();
        queues || self.released.holds_memory()
    }

    pub(crate) fn release_memory(&mut self) {
        self.outbox.release_memory();
        self.flight.release_memory();
        self.released.release_memory();
    }

    /// Whether every byte was acknowledged cumulatively.
    pub(crate) fn is_drained(&self) -> bool {
        self.outbox.is_empty() && self.flight.is_empty()
    }

    /// Segments waiting or in flight that the send window still admits.
    pub(crate) fn room(&self) -> usize {
        let used = self.flight.len() as usize + self.outbox.segments(self.mss);
        usize::from(self.window).saturating_sub(used)
    }

    /// Effective window in segments beyond `una`.
    #[inline]
    fn effective_window(&self) -> u32 {
        u32::from(self.window).min(self.remote.room(self.una())).min(self.cwnd.limit())
    }

    #[inline]
    fn window_is_open(&self) -> bool {
        self.flight.len() < self.effective_window()
    }

    /// Whether only a word of the peer lets things go on: about its window, or a cumulative
    /// acknowledgement of what it acknowledged one by one. A peer whose reader is slow holds that
    /// back until it reads.
    pub(crate) fn is_stalled(&self) -> bool {
        match self.flight.get(self.una()) {
            Some(oldest) => oldest.acked,
            None => !self.outbox.is_empty() && self.remote.room(self.una()) == 0,
        }
    }

    /// Whether the oldest segment in flight waits for an acknowledgement of its own.
    pub(crate) fn is_oldest_open(&self) -> bool {
        self.flight.get(self.una()).is_some_and(|oldest| !oldest.acked)
    }

    /// Whether the peer owes an acknowledgement.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.flight.all_acked() || self.is_stalled()
    }

    // ----- network in -----

    /// Whether a segment in flight, or one of the last that were, has this number and was sent with
    /// this stamp, first or last.
    pub(crate) fn has_sent(&self, clock: &Clock, sn: Sn, ts: Ts) -> bool {
        let flying = self.flight.get(sn).map(|sent| (sent.first, clock.stamp(sent.last_sent)));
        let released = || self.released.stamps(self.una().offset_from(sn)?);
        flying.or_else(released).is_some_and(|(first, last)| ts == first || ts == last)
    }

    /// The peer was heard: repetitions that silence held back may leave again.
    pub(crate) fn on_heard(&mut self, now: Time) {
        self.heard = now;
        self.hush = None;
    }

    /// One acknowledgement. It is a proof that the peer received what we sent only if its stamp is
    /// one of a transmission of just that number.
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        clock: &Clock,
        (sn, ts): (Sn, Ts),
        sample: bool,
        stats: &mut Counters,
    ) -> Evidence {
        let Some(segment) = self.flight.get(sn) else {
            return self.on_released_ack(now, (sn, ts), sample, stats);
        };
        let (first, last) = (segment.first, clock.stamp(segment.last_sent));
        let of_last = ts == last;
        // After an outage of weeks the two are more than half the circle apart.
        if !of_last && (ts.since(first) < 0 || ts.since(last) > 0) {
            return Evidence::Invalid;
        }
        let rtt = if of_last {
            now.since(segment.last_sent)
        } else {
            u64::from(clock.stamp(now).since(ts).max(0).cast_unsigned()) * 1_000
        };
        let (order, repeated, fresh) = (segment.order, segment.repeated, !segment.acked);
        if fresh {
            if sample {
                self.rtt.sample(now, rtt);
            }
            if of_last {
                self.loss.on_ack(order, rtt);
            }
            if repeated && of_last && first != last {
                self.loss.on_needed();
            } else if repeated && !of_last {
                stats.spurious_retransmits += 1;
                self.loss.on_needless(&self.rtt);
            }
            self.flight.ack(sn);
            if self.path.is_watching()
                && let Some(payload) = self.flight.payload(sn)
            {
                self.path.on_arrived(HEADER + payload.len());
            }
        }
        Evidence::Proof
    }

    /// An acknowledgement behind the cumulative one: good for proof and RTT. One of a repetition
    /// says more: whatever the cumulative one covered had arrived before, so it was needless.
    fn on_released_ack(
        &mut self,
        now: Time,
        (sn, ts): (Sn, Ts),
        sample: bool,
        stats: &mut Counters,
    ) -> Evidence {
        let window = u32::from(u16::MAX);
        let age = self.una().offset_from(sn).filter(|age| (1..=window).contains(age));
        let Some(age) = age else { return Evidence::Invalid };
        match self.released.on_ack(now, age, ts) {
            Late::Stale => return Evidence::Stale,
            Late::Invalid => return Evidence::Invalid,
            Late::Last { rtt, repeated } => {
                stats.spurious_retransmits += u64::from(repeated);
                if let Some(rtt) = rtt.filter(|_| sample) {
                    self.rtt.sample(now, rtt);
                }
            }
            // The original's own acknowledgement was merely late. Where only the repetition's
            // comes, as above, it was lost as a rule, and patience would not have helped.
            Late::Earlier { repeated: true } => {
                stats.spurious_retransmits += 1;
                self.loss.on_needless(&self.rtt);
            }
            Late::Earlier { repeated: false } => {}
        }
        Evidence::Proof
    }

    /// A cumulative acknowledgement.
    pub(crate) fn on_una(&mut self, now: Time, clock: &Clock, una: Sn) -> Una {
        let ahead = una.since(self.una());
        if ahead < 0 {
            // No window is larger, so nothing honest is older.
            let late = ahead.unsigned_abs() <= u32::from(u16::MAX);
            return if late { Una::Late } else { Una::Impossible };
        }
        let released = ahead.unsigned_abs();
        if released > self.flight.len() {
            return Una::Impossible;
        }
        let limited = self.flight.len() >= u32::from(self.window);
        for _ in 0..released {
            if self.path.is_watching()
                && let Some(oldest) = self.flight.oldest()
            {
                self.path.on_arrived(HEADER + oldest.len());
            }
            if let Some(segment) = self.flight.release() {
                self.released.remember(clock, &segment);
            }
        }
        if released > 0 {
            self.path.on_una(now, una);
        }
        self.outbox.release(self.flight.oldest());
        if let Some(tuner) = &mut self.tuner {
            if limited {
                tuner.on_limited();
            }
            self.window = tuner.send_window(now, una, &self.rtt, self.window);
        }
        self.cwnd.on_ack(released, self.remote.room(self.una()));
        Una::Current { released }
    }

    // ----- network out -----

    /// What may leave now: a lost segment first, otherwise a new one if the windows allow.
    pub(crate) fn next(&self, now: Time, may_start: bool) -> Option<Next> {
        if let Some((sn, sign)) = self.owed_twin() {
            let len = self.flight.payload(sn)?.len();
            return Some(Next { len, repeat: Some((sn, sign)) });
        }
        if self.spread.holds(now) {
            return None;
        }
        let fresh = self.next_new(now, may_start);
        if let Some((sn, sign)) = self.lost(now, fresh.is_none()) {
            let len = self.flight.payload(sn)?.len();
            return Some(Next { len, repeat: Some((sn, sign)) });
        }
        fresh
    }

    /// The new segment that may leave now, where none has to be repeated.
    #[inline]
    pub(crate) fn next_new(&self, now: Time, may_start: bool) -> Option<Next> {
        let open = may_start && self.window_is_open() && !self.spread.holds(now);
        let len = if open { self.outbox.next_len(self.mss) } else { None };
        len.map(|len| Next { len, repeat: None })
    }

    /// Counts the transmission of `next` and gives the segment to write.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        now: Time,
        stamp: Ts,
        next: Next,
        stats: &mut Counters,
    ) -> Option<Outgoing<'_>> {
        let sn = match next.repeat {
            None => {
                let (payload, frg) = self.outbox.take(self.mss)?;
                stats.sent_segments += 1;
                stats.sent_bytes += payload.len() as u64;
                self.flight.push(now, stamp, payload, frg)
            }
            Some((sn, sign)) => {
                self.repeat(now, sn, sign, stats);
                let is_twin = self.twin == Some((sn, sign));
                self.twin = if is_twin { None } else { self.twin_of(sn, sign) };
                sn
            }
        };
        self.spread.sent(now, self.effective_window(), &self.rtt);
        let frg = self.flight.get(sn)?.frg;
        Some(Outgoing { sn, frg, payload: self.outbox.get(self.flight.payload(sn)?)? })
    }

    /// When the rest of a window goes on that leaves bit by bit; may have passed.
    pub(crate) fn resume(&self) -> Time {
        self.spread.resume()
    }

    /// When an unacknowledged segment becomes due.
    pub(crate) fn deadline(&self, may_start: bool) -> Option<Time> {
        let stuck = !(may_start && self.window_is_open() && !self.outbox.is_empty());
        let in_flight = self.flight.len();
        self.flight
            .fronts()
            .map(|(_, segment)| {
                let (at, sign) = self.loss.lost_at(segment, &self.rtt, in_flight, stuck);
                match self.hush.filter(|_| sign == Sign::Timeout) {
                    Some(hush) => at.max(hush.next),
                    None => at,
                }
            })
            .min()
            .map(|at| at.max(self.spread.resume()))
    }

    #[cfg(any(test, feature = "_fuzz"))]
    pub(crate) fn check_invariants(&self) {
        self.flight.check_invariants();
        self.outbox.check_invariants();
        let rto = self.rtt.rto();
        assert!((30_000..=60_000_000).contains(&rto), "rto {rto}");
    }
}
