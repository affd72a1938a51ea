//! The sender combines send buffer, segments in flight, loss detection and windows, and decides which segment
//! leaves next (kcp-go `flush`).
//!
//! Order: copies of retransmissions, which are not paced; then a lost segment if the [retransmission
//! budget](crate::core::recovery::loss::RetransmitBudget) has tokens; then new data. Lost segments and new
//! data wait for the pacer. kcp-go scans the window in order of sequence number instead, on a timer.

mod acks;
pub(crate) mod buffer;
mod multipath;
pub(crate) mod path;
pub(crate) mod remote_window;
mod retransmission;

use std::iter;
use std::mem;
use std::num::NonZeroU64;

use bytes::Bytes;

use crate::config::{CongestionControl, DEFAULT_WINDOW, KcpConfig, Mode, Timing};
use crate::core::clock::Micros;
use crate::core::congestion::autotune::WindowAutotune;
use crate::core::congestion::{Congestion, INITIAL_WINDOW, Limit, Pacing, PathHandle, SentAs};
use crate::core::path::mtu::Oversized;
use crate::core::path::set::PathSet;
use crate::core::recovery::acked::{AckedHistory, UnaProof};
use crate::core::recovery::loss::{LossTrigger, PathProbes, RetransmitBudget};
use crate::core::recovery::sent::{SentSegment, SentSegments};
use crate::core::redundancy::Redundancy;
use crate::core::segment::{self, Command, HEADER_LEN, Header};
use crate::core::send::buffer::SendBuffer;
use crate::core::send::path::SendPath;
use crate::core::send::remote_window::RemoteWindow;
use crate::core::seq::{Sn, Ts};
use crate::stats::Counters;
use crate::util::Framing;

/// Least backlog limit, bytes: 13 ms at 10 Mbit/s. Linux applications set 16 to 128 KiB.
const MIN_BACKLOG: usize = 16 << 10;
/// The backlog limit covers what leaves in this time at the present rate, microseconds: several timer ticks
/// and the longest burst of the pacer. A writer that is woken at a quarter of it then writes before the
/// data runs out.
const BACKLOG_TIME: u64 = 10_000;
/// Smoothed RTT up to which a path with a short minimum RTT needs no BBR model, microseconds. Above it the
/// path has changed or has a queue.
const MAX_UNMODELLED_RTT: u64 = 10_000;

/// The segment that may leave next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendCandidate {
    /// Payload length, bytes.
    pub(crate) len: usize,
    transmission: Transmission,
}

/// The transmission that a candidate stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transmission {
    /// The segment's first transmission.
    New,
    Retransmit(Sn, LossTrigger),
    /// Another copy of a retransmission.
    FurtherCopy(Sn),
    /// The segment left on a path that is gone ([`PathProbes`]).
    ///
    /// [`PathProbes`]: crate::core::recovery::loss::PathProbes
    PathProbe(Sn),
}

impl SendCandidate {
    /// Whether this is the segment's first transmission.
    pub(crate) fn is_new(&self) -> bool {
        self.transmission == Transmission::New
    }

    /// The segment that leaves again because its last transmission is lost, and how that was found.
    #[cfg(feature = "qlog")]
    pub(crate) fn lost(&self) -> Option<(Sn, LossTrigger)> {
        match self.transmission {
            Transmission::Retransmit(sn, trigger) => Some((sn, trigger)),
            _ => None,
        }
    }
}

/// A PUSH to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingSegment<'a> {
    pub(crate) sn: Sn,
    pub(crate) frg: u8,
    pub(crate) payload: &'a [u8],
}

impl OutgoingSegment<'_> {
    /// Appends the PUSH with `conv`, `wnd`, `ts` and `una` of `template`.
    #[inline]
    pub(crate) fn emit(&self, template: Header, out: &mut Vec<u8>) {
        let len = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let (command, frg, sn) = (Command::Push, self.frg, self.sn);
        Header { command, frg, sn, len, ..template }.emit(out);
        out.extend_from_slice(self.payload);
    }
}

/// How an ACK may be used to measure the round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckSample {
    /// Not at all: FEC recovered the ACK.
    None,
    /// As a waiting time only: it is not the last ACK of its datagram.
    Wait,
    /// As an RTT sample too: the segment of the last ACK in a datagram arrived last (kcp-go `Input`).
    Rtt,
}

/// Verdict on an ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckOutcome {
    /// First ACK of this segment: the peer received a transmission with this number and timestamp.
    NewlyAcked,
    /// The peer received a transmission with this number and timestamp, but an earlier ACK or `una` already
    /// said so. The ACK may be a replay.
    AckedBefore,
    /// The segment was acknowledged so long ago that the acked history has dropped it.
    Stale,
    /// The number was never sent, or never with this timestamp.
    Invalid,
}

/// Verdict on a cumulative acknowledgement (RFC 9293 3.10.7.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnaOutcome {
    /// The newest `una` so far, so `wnd` of the same segment is valid. `newly_acked` counts the segments it
    /// acknowledges.
    Current { newly_acked: u32 },
    /// Older than a `una` already received, by at most 65,535 segments: a reordered datagram.
    Stale,
    /// Beyond what was sent, or older than any window allows.
    Invalid,
}

/// Sending half of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    send_buffer: SendBuffer,
    sent_segments: SentSegments,
    /// The number behind the latest retransmission in order of number, which begins with SND.UNA.
    searched: Sn,
    retransmit_budget: RetransmitBudget,
    pub(crate) remote: RemoteWindow,
    /// Starting rate of the BBR model, bytes per second.
    initial_rate: Option<NonZeroU64>,
    /// Send window, segments (kcp-go `snd_wnd`).
    window: u16,
    /// Autotuning of `window`; `None` once the application set a window.
    autotune: Option<WindowAutotune>,
    /// ACKs of later transmissions that trigger fast retransmit (kcp-go `fastresend`); 0: off.
    fast_resend: u32,
    /// Largest datagram for which segments are cut, bytes.
    mtu: usize,
    /// Largest payload of new segments, bytes.
    mss: usize,
    /// Segments that are longer than `mtu`, since they were cut before it fell.
    oversized: Option<Oversized>,
    /// The path on which data leaves.
    pub(crate) path: SendPath,
    /// `Some` with several paths.
    pub(crate) paths: Option<Box<PathSet>>,
    /// Whether transfers use all paths.
    pub(crate) aggregates: bool,
    pub(crate) redundancy: Redundancy,
    acked_history: AckedHistory,
    una_proof: UnaProof,
    /// See [`Sender::set_writer_waits`].
    writer_waits: bool,
}

impl Sender {
    /// `start` is the first sequence number.
    pub(crate) fn new(config: &KcpConfig, start: Sn) -> Self {
        let path = SendPath::new(config);
        let mut sender = Self {
            send_buffer: SendBuffer::new(config.mode == Mode::Stream),
            sent_segments: SentSegments::new(start),
            searched: start,
            retransmit_budget: RetransmitBudget::new(),
            remote: RemoteWindow::new(start),
            initial_rate: config.initial_rate,
            window: config.send_window,
            autotune: WindowAutotune::for_window(config.send_window, config.auto_windows, start),
            fast_resend: 0,
            mtu: path.mtu.current_mtu(),
            mss: path.mtu.current_mtu() - HEADER_LEN,
            oversized: None,
            path,
            paths: None,
            aggregates: false,
            redundancy: Redundancy::default(),
            acked_history: AckedHistory::default(),
            una_proof: UnaProof::new(start),
            writer_waits: false,
        };
        sender.set_timing(&config.timing);
        sender.set_congestion_control(config.congestion_control);
        sender
    }

    pub(crate) fn set_timing(&mut self, preset: &Timing) {
        self.path.rtt.set_timing(preset.nodelay, preset.interval);
        self.path.loss.set_timing(preset);
        self.fast_resend = preset.fast_resend.map_or(0, |count| u32::from(count.get()));
    }

    /// Sets the send window in segments and ends its autotuning.
    pub(crate) fn set_window(&mut self, segments: u16) {
        (self.window, self.autotune) = (segments, None);
    }

    /// The send window that the application set, or the default, in segments. Autotuning may have shrunk the
    /// window in use; that limits how fast data leaves, not how much may be written.
    pub(crate) fn configured_window(&self) -> u16 {
        if self.autotune.is_some() { self.window.max(DEFAULT_WINDOW) } else { self.window }
    }

    /// Sets the largest datagram, and the largest payload of new segments in it, bytes. Segments keep their length.
    pub(crate) fn set_mss(&mut self, now: Micros, mtu: usize, mss: usize) {
        if mtu < self.mtu {
            let until = self.longer_until(mtu.saturating_sub(HEADER_LEN));
            self.oversized = until.map(|until| Oversized::until(now, until, self.oversized));
        }
        (self.mtu, self.mss) = (mtu, mss);
        let segment = (HEADER_LEN + mss) as u64;
        self.path.congestion.set_segment(segment);
        if let Some(paths) = &mut self.paths {
            paths.others_mut().for_each(|(_, path)| path.congestion.set_segment(segment));
        }
    }

    /// Largest payload of new segments, bytes.
    pub(crate) fn mss(&self) -> usize {
        self.mss
    }

    /// The number after the last segment, in flight or waiting, that is cut and has more than `len` payload bytes.
    fn longer_until(&self, len: usize) -> Option<Sn> {
        match u32::try_from(self.send_buffer.cut_longer_than(len)).unwrap_or(0) {
            0 => self.sent_segments.last_longer_than(len).map(|sn| sn.advance(1)),
            waiting => Some(self.nxt().advance(waiting)),
        }
    }

    /// Segments that exceed the MTU, and wait or are in flight.
    pub(crate) fn oversized(&self) -> Option<Oversized> {
        self.oversized
    }

    /// SND.UNA: the oldest number not acknowledged cumulatively.
    pub(crate) fn una(&self) -> Sn {
        self.sent_segments.una()
    }

    /// SND.NXT: the number of the next new segment.
    pub(crate) fn nxt(&self) -> Sn {
        self.sent_segments.nxt()
    }

    /// Segments from SND.UNA to SND.NXT.
    pub(crate) fn in_flight(&self) -> u32 {
        self.sent_segments.len()
    }

    pub(crate) fn send_buffer(&self) -> &SendBuffer {
        &self.send_buffer
    }

    /// Queues data; `frg` is the wire field in message mode, zero in stream mode.
    pub(crate) fn push(&mut self, data: Bytes, frg: u8) {
        self.send_buffer.push(data, frg);
    }

    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.send_buffer.has_reclaimable_memory()
            || self.sent_segments.has_reclaimable_memory()
            || self.acked_history.has_reclaimable_memory()
            || self.redundancy.has_reclaimable_memory()
            || self.path.congestion.has_reclaimable_memory()
    }

    /// Frees memory that an idle connection does not need.
    pub(crate) fn release_memory(&mut self) {
        self.send_buffer.release_memory();
        self.sent_segments.release_memory();
        if self.sent_segments.is_empty() {
            self.path.loss.release_memory();
        }
        self.acked_history.release_memory();
        self.path.congestion.release_memory();
        if let Some(paths) = &mut self.paths {
            paths.others_mut().for_each(|(_, path)| path.congestion.release_memory());
        }
        self.redundancy.release_memory();
    }

    /// Whether every byte was acknowledged cumulatively.
    pub(crate) fn is_drained(&self) -> bool {
        self.send_buffer.is_empty() && self.sent_segments.is_empty()
    }

    /// Segments that the send window still admits on top of those buffered and in flight (kcp-go `WaitSnd`
    /// against `snd_wnd`).
    pub(crate) fn available(&self) -> usize {
        let used = self.sent_segments.len() as usize + self.send_buffer.segments(self.mss);
        usize::from(self.window).saturating_sub(used)
    }

    /// Whether only a window update or a cumulative acknowledgement lets sending continue, so that window
    /// probes are needed (RFC 9293 3.8.6.1).
    ///
    /// True if data waits and the peer's window is zero. Also true if the oldest segment in flight has an ACK
    /// but `una` does not pass it: a peer with a slow reader holds `una` back until its application reads
    /// (kcp-go `parse_data` stops `rcv_nxt` at a full `rcv_queue`). Test
    /// `window_probe_while_una_is_held_back_is_sent`.
    pub(crate) fn is_window_blocked(&self) -> bool {
        match self.sent_segments.get(self.una()) {
            Some(oldest) => oldest.acked,
            None => !self.send_buffer.is_empty() && self.remote.available(self.una()) == 0,
        }
    }

    /// Limits the back-off of window probes and retransmissions to `interval` microseconds.
    pub(crate) fn limit_probe_interval(&mut self, now: Micros, interval: u64) {
        self.remote.limit_probe_interval(now, interval);
        self.path.loss.limit_backoff(interval);
    }

    /// Sets whether only retransmissions can detect that a silent peer is back, so that they leave more
    /// often.
    #[inline]
    pub(crate) fn limit_pto(&mut self, limited: bool) {
        self.path.loss.limit_pto(limited);
    }

    /// Whether the oldest segment in flight has no ACK of its own.
    pub(crate) fn is_oldest_unacked(&self) -> bool {
        self.sent_segments.get(self.una()).is_some_and(|oldest| !oldest.acked)
    }

    /// The number after SND.UNA if the peer has acknowledged that segment, else SND.UNA.
    pub(crate) fn oldest_unacked(&self) -> Sn {
        let is_acked = self.sent_segments.get(self.una()).is_some_and(|oldest| oldest.acked);
        self.una().advance(is_acked.into())
    }

    /// Whether an acknowledgement or a window update of the peer is outstanding.
    pub(crate) fn awaits_ack(&self) -> bool {
        self.has_unacked() || self.is_window_blocked()
    }

    /// Whether a segment in flight has no ACK of its own.
    pub(crate) fn has_unacked(&self) -> bool {
        !self.sent_segments.all_acked()
    }

    /// The segment that may leave now: a retransmission, else new data if `may_send_new` and the windows
    /// allow.
    pub(crate) fn next(&self, now: Micros, may_send_new: bool) -> Option<SendCandidate> {
        if let Some(sn) = self.due_copy(now) {
            let len = self.sent_segments.payload(sn)?.len();
            return Some(SendCandidate { len, transmission: Transmission::FurtherCopy(sn) });
        }
        if self.path.pacer.is_blocked(now) {
            return None;
        }
        if self.path.loss.is_probing()
            && let Some(next) = self.next_on_new_path(now)
        {
            return Some(next);
        }
        let several = self.sent_segments.uses_slots();
        let new = self.next_new(now, may_send_new);
        let may_retransmit = self.retransmit_budget.may_retransmit(now);
        let lost = match (may_retransmit, several) {
            (false, _) => None,
            (true, false) => self.next_lost_on_one_path(now, new.is_none()),
            (true, true) => self.next_lost(now, new.is_none()),
        };
        if several && let Some(stranded) = self.stranded_before(now, lost) {
            return Some(stranded);
        }
        if let Some((sn, trigger)) = lost {
            let len = self.sent_segments.payload(sn)?.len();
            let transmission = Transmission::Retransmit(sn, trigger);
            return Some(SendCandidate { len, transmission });
        }
        new
    }

    /// The new segment that may leave now if there is nothing to retransmit.
    #[inline]
    pub(crate) fn next_new(&self, now: Micros, may_send_new: bool) -> Option<SendCandidate> {
        let open = may_send_new && self.window_is_open() && !self.path.pacer.is_blocked(now);
        let len = if open { self.send_buffer.next_len(self.mss) } else { None };
        len.map(|len| SendCandidate { len, transmission: Transmission::New })
    }

    /// Later transmissions leave in another datagram than earlier ones.
    #[inline]
    pub(crate) fn begin_datagram(&mut self) {
        self.sent_segments.begin_datagram();
    }

    /// Records the transmission of `next` with wire timestamp `ts`, and returns the PUSH to write.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        now: Micros,
        ts: Ts,
        next: SendCandidate,
        stats: &mut Counters,
    ) -> Option<OutgoingSegment<'_>> {
        let (sn, sent_as) = match next.transmission {
            Transmission::New => return self.transmit_new(now, ts, stats),
            Transmission::Retransmit(sn, trigger) => {
                let lost = self.sent_segments.get(sn).map(|segment| segment.xmit_seq);
                let has_moved = self.move_segment(now, sn, Some(trigger));
                let is_first = self.retransmit(now, sn, trigger, stats);
                self.schedule_copies(now, sn, ts, lost, trigger, is_first);
                let by_timeout = trigger == LossTrigger::Rto;
                (sn, if has_moved { SentAs::Moved } else { SentAs::Retransmission { by_timeout } })
            }
            Transmission::FurtherCopy(sn) => {
                let has_moved = self.move_segment(now, sn, None);
                self.retransmit_copy(now, sn, stats);
                (sn, if has_moved { SentAs::Moved } else { SentAs::RedundantCopy })
            }
            Transmission::PathProbe(sn) => {
                let probes = self.path.loss.probes();
                let counts = probes.is_some_and(PathProbes::fills_window);
                let takes_token = probes.is_some_and(PathProbes::takes_token);
                let takes_token = takes_token || self.left_on_doubted_path(sn);
                if takes_token && self.retransmit_budget.may_retransmit(now) {
                    self.retransmit_budget.on_retransmit(now, self.path.rtt.srtt_or_rto());
                }
                let has_moved = self.move_segment(now, sn, None) || counts;
                self.retransmit_on_new_path(now, sn, stats);
                (sn, if has_moved { SentAs::Moved } else { SentAs::RedundantCopy })
            }
        };
        self.on_sent(now, sn, sent_as);
        let frg = self.sent_segments.get(sn)?.frg;
        Some(OutgoingSegment {
            sn,
            frg,
            payload: self.send_buffer.get(self.sent_segments.payload(sn)?)?,
        })
    }

    /// Cuts the next segment off the send buffer and records its first transmission.
    #[inline]
    fn transmit_new(
        &mut self,
        now: Micros,
        ts: Ts,
        stats: &mut Counters,
    ) -> Option<OutgoingSegment<'_>> {
        let (payload, frg) = self.send_buffer.take(self.mss)?;
        stats.sent.segments += 1;
        stats.sent.payload_bytes += payload.len() as u64;
        self.path.pto_backoff.on_new_segment(now, self.sent_segments.all_acked());
        let sn = self.sent_segments.push(now, ts, payload, frg);
        if let Some(redundant) = &mut self.redundancy.copies {
            redundant.on_sent(now, sn);
        }
        self.on_sent(now, sn, SentAs::New);
        if self.redundancy.is_in_use() {
            let (nxt, latency_bound) = (self.nxt(), self.is_latency_bound());
            self.redundancy.on_new_segment(now, payload.len(), nxt, latency_bound);
        }
        Some(OutgoingSegment { sn, frg, payload: self.send_buffer.get(payload)? })
    }

    /// When the pacer lets the next segment leave; may be in the past.
    pub(crate) fn pacer_resume_at(&self) -> Micros {
        self.path.pacer.resume_at()
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        self.sent_segments.check_invariants();
        self.send_buffer.check_invariants();
        self.check_congestion();
        let rto = self.path.rtt.rto();
        assert!((30_000..=60_000_000).contains(&rto), "rto {rto}");
        self.check_losses();
    }
}

/// Windows, including segments that still count against them although `una` covers them.
impl Sender {
    /// Segments that may be in flight: the minimum of send window, peer's window and congestion window
    /// (kcp-go `flush`, `cwnd`).
    #[inline]
    fn effective_window(&self) -> u32 {
        u32::from(self.window)
            .min(self.remote.available(self.una()))
            .min(self.path.congestion.window())
    }

    /// New segments that the windows admit now.
    #[inline]
    fn window_left(&self) -> u32 {
        let in_flight = self.sent_segments.len();
        let ours = u32::from(self.window).min(self.path.congestion.window());
        let ours = ours.saturating_sub(in_flight + self.unproved());
        let ours = ours.max(u32::from(self.una_proof.may_probe(self.sent_segments.nxt())));
        ours.min(self.remote.available(self.una()).saturating_sub(in_flight))
    }

    #[inline]
    fn window_is_open(&self) -> bool {
        self.window_left() > 0
    }

    /// Segments that `una` covers without proof by an ACK.
    #[inline]
    fn unproved(&self) -> u32 {
        self.una_proof.unproved(self.una())
    }

    /// Index of segment SND.UNA + `offset` in the congestion control's list.
    #[inline]
    fn congestion_index(&self, offset: u32) -> usize {
        (self.unproved() + offset) as usize
    }

    /// A valid ACK of `sn` arrived.
    #[inline]
    fn on_segment_proved(&mut self, now: Micros, sn: Sn) {
        let count = self.una_proof.on_ack(sn, self.una());
        if count == 0 {
            return;
        }
        if self.path.congestion.samples_rate() {
            (0..count).for_each(|_| self.path.congestion.on_una(now));
        }
        self.on_newly_acked(count);
        self.on_cumulative_ack(count);
    }

    /// `una` covers `count` more proved segments.
    #[inline]
    fn on_cumulative_ack(&mut self, count: u32) {
        let remote_window = self.remote.available(self.una());
        self.path.congestion.change_reno(|reno| reno.on_ack(count, remote_window));
    }

    /// When more data may leave without further proof.
    pub(crate) fn unproved_deadline(&self, may_send_new: bool) -> Option<Micros> {
        let is_held_back = may_send_new && !self.send_buffer.is_empty() && !self.window_is_open();
        let deadline = self.una_proof.deadline(self.una(), self.path.rtt.rto());
        deadline.filter(|_| is_held_back)
    }

    /// Writes off unproved segments, at most an initial window, when their timeout expires: they count as
    /// neither in flight nor delivered.
    #[inline]
    pub(crate) fn expire_unproved(&mut self, now: Micros) {
        let max = INITIAL_WINDOW / (HEADER_LEN + self.mss) as u64;
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        let (una, nxt, unproved) = (self.una(), self.sent_segments.nxt(), self.unproved());
        let count = self.una_proof.expire(now, una, nxt, self.path.rtt.rto(), max);
        self.path.congestion.write_off(count);
        if count > 0 && self.sent_segments.uses_slots() {
            self.write_off_elsewhere(now, una.back(unproved), count);
        }
    }
}

/// How much data may wait to be sent: enough to keep sending, not a whole send window, since later writes
/// wait behind it (Linux `TCP_NOTSENT_LOWAT`).
impl Sender {
    /// Bytes that may wait for their first transmission.
    ///
    /// A paced sender needs the bytes of [`BACKLOG_TIME`] and of the burst that may leave now. Without a
    /// pacing rate a window leaves within an RTT: the limit is then what the windows admit now, and what
    /// acknowledgements admit in that time. `rate_limit` is set by the application, bytes per second.
    pub(crate) fn backlog_limit(&self, rate_limit: Option<NonZeroU64>) -> usize {
        let least = MIN_BACKLOG.max(2 * self.mss) as u64;
        let bytes = |segments: u64| segments.saturating_mul(self.mss as u64);
        let in_time = |bytes: u64, time: u64| bytes.saturating_mul(BACKLOG_TIME) / time;
        let limit = if let Some(pacing) = self.path.congestion.pacing() {
            bytes(pacing.burst).saturating_add(in_time(pacing.rate.get(), 1_000_000).max(least))
        } else {
            let window = bytes(self.effective_window().into());
            let refill = self.path.rtt.srtt().map_or(0, |srtt| in_time(window, srtt.max(1)));
            bytes(self.window_left().into()).saturating_add(refill.max(least))
        };
        let limited = rate_limit.map(|rate| in_time(rate.get(), 1_000_000).max(least));
        usize::try_from(limit.min(limited.unwrap_or(u64::MAX))).unwrap_or(usize::MAX)
    }

    /// Sets whether the application holds data that it may not write yet.
    pub(crate) fn set_writer_waits(&mut self, waits: bool) {
        self.writer_waits = waits;
    }

    /// Whether a writer is known to wait.
    pub(crate) fn writer_waits(&self) -> bool {
        self.writer_waits
    }

    /// Whether the application has nothing else to send.
    fn is_writer_idle(&self) -> bool {
        self.send_buffer.is_empty() && !self.writer_waits
    }
}

/// Events for the congestion control, and pacing at its rate.
impl Sender {
    /// Changes the congestion control. The new one starts without samples of the segments in flight.
    pub(crate) fn set_congestion_control(&mut self, mode: CongestionControl) {
        if self.path.congestion.mode() == mode {
            return;
        }
        let (una, was_bbr) = (self.una(), self.path.congestion.is_bbr());
        self.with_flight(self.in_flight(), |congestion, segment, in_flight| {
            congestion.set_mode(mode, una, segment, in_flight);
        });
        if was_bbr || self.path.congestion.is_bbr() {
            self.path.pacer.reset();
        }
        if was_bbr && self.autotune.is_some() {
            // The model may have grown it beyond what the path carries without one.
            self.window = self.window.min(DEFAULT_WINDOW);
        }
    }

    /// The path, for other connections that share its model.
    pub(crate) fn shared_path(&mut self) -> PathHandle {
        self.path.congestion.shared_path()
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

    /// The path has changed (RFC 9002 7.1, RFC 9000 9.4): forgets what was measured on the old one. RTO and
    /// smoothed RTT stay until the new path has samples.
    pub(crate) fn on_path_changed(&mut self, now: Micros) {
        self.path.rtt.on_path_changed();
        self.on_peer_activity(now);
        self.path.mtu.on_path_changed(now);
        let (mode, una) = (self.path.congestion.mode(), self.una());
        self.with_flight(self.in_flight(), |congestion, segment, in_flight| {
            congestion.leave_path(segment, iter::empty());
            congestion.set_mode(mode, una, segment, in_flight);
        });
        self.path.pacer.reset();
    }

    /// Changes the congestion control. `change` gets the bytes of a full segment, and the bytes of each
    /// unproved segment and of the first `count` from SND.UNA on.
    fn with_flight(
        &mut self,
        count: u32,
        change: impl FnOnce(&mut Congestion, u64, &mut dyn Iterator<Item = u32>),
    ) {
        let mut in_flight = bytes_in_flight(&self.sent_segments, count, self.unproved(), self.mss);
        change(&mut self.path.congestion, (HEADER_LEN + self.mss) as u64, &mut in_flight);
    }

    /// `sn` was found lost without an RTO: reduces the Reno window if it is in use.
    fn reduce_cwnd(&mut self, sn: Sn) {
        let (nxt, in_flight) = (self.sent_segments.nxt(), self.sent_segments.len());
        let fast_resend = self.fast_resend;
        self.path
            .congestion
            .change_reno(|reno| reno.on_fast_retransmit(sn, nxt, in_flight, fast_resend));
    }

    /// Charges pacer and congestion control for a transmission of `sn`.
    #[inline]
    fn on_sent(&mut self, now: Micros, sn: Sn, sent_as: SentAs) {
        if !self.path.congestion.is_bbr() {
            self.path.pacer.on_sent(now, self.effective_window(), &self.path.rtt);
        } else if self.is_short_path()
            && sent_as == SentAs::New
            && self.path.congestion.suspend_on_short_path(self.sent_segments.len())
        {
            self.path.pacer.unblock();
        } else {
            self.on_sent_with_bbr(now, sn, sent_as);
        }
    }

    /// Whether the path needs no model while nothing is lost.
    fn is_short_path(&self) -> bool {
        if self.is_aggregating() {
            // The choice of a path needs the rate of each.
            return false;
        }
        // Half of it once a model has begun, to avoid switching back and forth with each ACK.
        let most = MAX_UNMODELLED_RTT / if self.path.congestion.is_bbr_suspended() { 1 } else { 2 };
        self.path.rtt.is_short() && self.path.rtt.srtt().is_some_and(|srtt| srtt < most)
    }

    fn on_sent_with_bbr(&mut self, now: Micros, sn: Sn, sent_as: SentAs) {
        let payload = self.sent_segments.payload(sn);
        let Some((offset, payload)) = sn.offset_from(self.una()).zip(payload) else { return };
        let bytes = bytes_of(payload.len());
        if self.path.congestion.is_bbr_suspended() {
            let before = self.sent_segments.len() - u32::from(sent_as == SentAs::New);
            let rate = self.initial_rate;
            self.with_flight(before, |congestion, segment, in_flight| {
                congestion.begin_bbr(segment, in_flight, rate);
            });
        }
        let limit = self.limit();
        let index = self.congestion_index(offset);
        let pacing = self.path.congestion.on_sent(now, index, bytes, sent_as, limit);
        self.pace_at_rate(now, u64::from(bytes), pacing);
    }

    /// `bytes` leave at the pacing rate of the congestion control.
    fn pace_at_rate(&mut self, now: Micros, bytes: u64, pacing: Option<Pacing>) {
        match pacing {
            Some(pacing) => {
                let window = u32::from(self.window).min(self.remote.available(self.una()));
                let more = !self.send_buffer.is_empty() && self.window_is_open();
                self.path.pacer.on_sent_at_rate(now, bytes, more, pacing, window, &self.path.rtt);
            }
            None => self.path.pacer.unblock(),
        }
    }

    /// Lets the next segment leave without pacing.
    pub(crate) fn unpace(&mut self) {
        self.path.pacer.unblock();
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
        let calm = self.path.rtt.min() / 4 * 5 + 1_000;
        let queue = self.path.rtt.srtt().is_some_and(|srtt| srtt > calm);
        (!queue && !self.path.congestion.overflows()).then_some(Limit::Window)
    }

    /// Called at the end of a datagram that carried acknowledgements.
    #[inline]
    pub(crate) fn on_acks_processed(&mut self, now: Micros) {
        self.una_proof.end_datagram();
        self.end_bursts();
        if self.sent_segments.uses_slots() {
            self.on_each_path(now, |sender| sender.on_path_acks_processed(now));
        } else {
            self.on_path_acks_processed(now);
        }
    }

    #[inline]
    fn on_path_acks_processed(&mut self, now: Micros) {
        let longest_wait = mem::take(&mut self.path.longest_wait);
        self.path.rtt.on_longest_wait(now, longest_wait);
        self.path.congestion.on_acks_processed(now, longest_wait);
        if self.path.congestion.is_bbr()
            && let Some(srtt) = self.path.rtt.srtt()
        {
            self.path.pacer.limit_wait(now, srtt);
        }
    }

    /// For statistics: congestion window in segments, pacing rate and delivery rate in bytes per second; 0
    /// while unknown.
    pub(crate) fn congestion_estimates(&self) -> (u32, u64, u64) {
        let (window, pacing_rate, delivery_rate) =
            self.path.congestion.estimates((HEADER_LEN + self.mss) as u64);
        (window.min(u32::from(self.window)), pacing_rate, delivery_rate)
    }

    #[cfg(any(test, feature = "_testkit"))]
    fn check_congestion(&self) {
        if self.sent_segments.uses_slots() || self.paths.is_some() {
            // Unproved segments may have left on any path, and the flight of a path that is gone does not count.
            return;
        }
        let unacked = (0..self.sent_segments.len()).map(|offset| {
            self.sent_segments.get(self.una().advance(offset)).is_some_and(|sent| !sent.acked)
        });
        let unacked = iter::repeat_n(true, self.unproved() as usize).chain(unacked);
        self.path.congestion.check_invariants(unacked);
    }
}

/// Bytes of each of the `unproved` segments, assumed full, then of the first `count` segments from SND.UNA
/// on; 0 for acknowledged ones, and for those on other paths.
fn bytes_in_flight(
    segments: &SentSegments,
    count: u32,
    unproved: u32,
    mss: usize,
) -> impl Iterator<Item = u32> {
    let from_una = (0..count).map(|offset| {
        let sn = segments.una().advance(offset);
        let is_in_flight =
            |segment: SentSegment| !segment.acked && segment.slot() == segments.slot();
        let acked = !segments.get(sn).is_some_and(is_in_flight);
        let bytes = segments.payload(sn).map_or(0, |payload| bytes_of(payload.len()));
        if acked { 0 } else { bytes }
    });
    iter::repeat_n(bytes_of(mss), unproved as usize).chain(from_una)
}

/// Length of a segment with header, bytes.
fn bytes_of(payload: usize) -> u32 {
    u32::try_from(HEADER_LEN + payload).unwrap_or(u32::MAX)
}

/// Runs: full segments that leave for the first time in one GSO batch.
///
/// Nothing that decides whether the next segment may leave changes between the segments of a run, so windows,
/// pacer and counters are visited once per run.
impl Sender {
    /// Appends the datagrams of up to `max` full new segments and returns how many. Returns fewer, perhaps 0,
    /// if each segment needs a decision of its own ([`Sender::next_new`]).
    pub(crate) fn transmit_run(
        &mut self,
        now: Micros,
        template: Header,
        max: usize,
        framing: Framing,
        out: &mut Vec<u8>,
        stats: &mut Counters,
    ) -> usize {
        let count = self.run_len(now).min(max);
        if count == 0 {
            return 0;
        }
        let mss = self.mss;
        let size = framing.around(HEADER_LEN + mss);
        out.reserve(count * size);
        let len = u32::try_from(mss).unwrap_or(u32::MAX);
        let header = Header { command: Command::Push, frg: 0, len, ..template }.to_bytes();
        let start = out.len();
        for _ in 0..count {
            self.append_full(now, template.ts, &header, framing, out);
        }
        debug_assert_eq!(out.len() - start, count * size, "all are full");
        stats.sent.segments += count as u64;
        stats.sent.payload_bytes += (count * mss) as u64;
        count
    }

    /// Appends the next full segment; `header` lacks its number.
    #[inline]
    fn append_full(
        &mut self,
        now: Micros,
        ts: Ts,
        header: &[u8; HEADER_LEN],
        framing: Framing,
        out: &mut Vec<u8>,
    ) {
        let Some((range, frg)) = self.send_buffer.take(self.mss) else { return };
        self.sent_segments.begin_datagram();
        let sn = self.sent_segments.push_to_runs(now, ts, range, frg);
        framing.begin(out);
        let start = out.len();
        out.extend_from_slice(header);
        // The number is written into the copy, not the template: loading bytes that were just stored field by
        // field stalls until all those stores are done.
        if let Some(field) = out.get_mut(start..).and_then(|header| header.get_mut(segment::SN)) {
            field.copy_from_slice(&sn.0.to_le_bytes());
        }
        out.extend_from_slice(self.send_buffer.get(range).unwrap_or_default());
        framing.end(out);
    }

    /// Full segments that may leave now as a run; 0 if the pacer, a path model, the loss rate, repair symbols
    /// or copies must see each transmission.
    fn run_len(&self, now: Micros) -> usize {
        let unpaced = self.path.rtt.is_short() && !self.path.pacer.is_blocked(now);
        let unmodelled = !self.path.congestion.is_bbr()
            || (self.path.congestion.is_bbr_suspended() && self.is_short_path());
        let unobserved = self.redundancy.ignores_new_segments() && !self.sent_segments.uses_slots();
        if !(unpaced && unmodelled && unobserved) {
            return 0;
        }
        self.send_buffer.full_segments(self.mss).min(self.window_left() as usize)
    }
}
