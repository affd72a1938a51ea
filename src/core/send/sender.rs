//! The sender combines send buffer, segments in flight, loss detection and windows, and decides which segment
//! leaves next (kcp-go `flush`).
//!
//! Order: copies of retransmissions, which are not paced; then a lost segment if the [retransmission
//! budget](crate::core::recovery::loss::RetransmitBudget) has tokens; then new data. Lost segments and new data
//! wait for the pacer. kcp-go scans the window in order of sequence number instead, on a timer.

mod ack_processing;
mod backlog;
mod congestion;
mod redundancy;
mod retransmission;
mod run;
mod una_proof;

pub(crate) use self::ack_processing::AckSample;
use std::num::NonZeroU64;

use bytes::Bytes;

use crate::config::{DEFAULT_WINDOW, KcpConfig, Mode, Timing};
use crate::core::clock::Micros;
use crate::core::congestion::autotune::WindowAutotune;
use crate::core::congestion::pacer::Pacer;
use crate::core::congestion::{Congestion, SentAs};
use crate::core::path::mtu::MtuDiscovery;
use crate::core::recovery::acked::AckedHistory;
use crate::core::recovery::acked::UnaProof;
use crate::core::recovery::loss::{LossDetector, LossTrigger, PtoBackoff, RetransmitBudget};

use crate::core::recovery::rtt::RttEstimator;
use crate::core::recovery::sent::SentSegments;
use crate::core::redundancy::Redundancy;
use crate::core::segment::{Command, HEADER_LEN, Header};
use crate::core::send::remote_window::RemoteWindow;

use crate::core::send::send_buffer::SendBuffer;
use crate::core::seq::{Sn, Ts};
use crate::stats::Counters;

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
}

impl SendCandidate {
    /// Whether this is the segment's first transmission.
    pub(crate) fn is_new(&self) -> bool {
        self.transmission == Transmission::New
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
    loss: LossDetector,
    retransmit_budget: RetransmitBudget,
    pub(crate) rtt: RttEstimator,
    pub(crate) remote: RemoteWindow,
    congestion: Congestion,
    /// Starting rate of the BBR model, bytes per second.
    initial_rate: Option<NonZeroU64>,
    /// Send window, segments (kcp-go `snd_wnd`).
    window: u16,
    /// Autotuning of `window`; `None` once the application set a window.
    autotune: Option<WindowAutotune>,
    /// ACKs of later transmissions that trigger fast retransmit (kcp-go `fastresend`); 0: off.
    fast_resend: u32,
    /// Largest payload of new segments, bytes.
    mss: usize,
    pub(crate) path: MtuDiscovery,
    pacer: Pacer,
    pub(crate) redundancy: Redundancy,
    acked_history: AckedHistory,
    una_proof: UnaProof,
    /// Longest time from first transmission to first ACK among the segments that the current datagram
    /// acknowledges, microseconds.
    longest_wait: u64,
    pto_backoff: PtoBackoff,
    /// See [`Sender::set_writer_waits`].
    writer_waits: bool,
}

impl Sender {
    /// `start` is the first sequence number.
    pub(crate) fn new(config: &KcpConfig, start: Sn) -> Self {
        let max_rto = crate::core::clock::micros(config.max_retransmit_interval);
        let path = MtuDiscovery::new(config.mtu);
        let mut sender = Self {
            send_buffer: SendBuffer::new(config.mode == Mode::Stream),
            sent_segments: SentSegments::new(start),
            loss: LossDetector::new(config.early_retransmit, config.backoff, max_rto),
            retransmit_budget: RetransmitBudget::new(),
            rtt: RttEstimator::new(config.max_retransmit_interval),
            remote: RemoteWindow::new(start),
            congestion: Congestion::disabled(),
            initial_rate: config.initial_rate,
            window: config.send_window,
            autotune: WindowAutotune::for_window(config.send_window, config.auto_windows, start),
            fast_resend: 0,
            mss: path.current_mtu() - HEADER_LEN,
            path,
            pacer: Pacer::new(config.pacing_interval),
            redundancy: Redundancy::default(),
            acked_history: AckedHistory::default(),
            una_proof: UnaProof::new(start),
            longest_wait: 0,
            pto_backoff: PtoBackoff::default(),
            writer_waits: false,
        };
        sender.set_timing(&config.timing);
        sender
    }

    pub(crate) fn set_timing(&mut self, preset: &Timing) {
        self.rtt.set_timing(preset.nodelay, preset.interval);
        self.loss.set_timing(preset);
        self.set_congestion(preset.congestion);
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

    /// Sets the largest payload of new segments, bytes. Segments in flight keep their length.
    pub(crate) fn set_mss(&mut self, mss: usize) {
        self.mss = mss;
        self.congestion.set_segment((HEADER_LEN + mss) as u64);
    }

    /// Largest payload of new segments, bytes.
    pub(crate) fn mss(&self) -> usize {
        self.mss
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
            || self.congestion.has_reclaimable_memory()
    }

    /// Frees memory that an idle connection does not need.
    pub(crate) fn release_memory(&mut self) {
        self.send_buffer.release_memory();
        self.sent_segments.release_memory();
        if self.sent_segments.is_empty() {
            self.loss.release_memory();
        }
        self.acked_history.release_memory();
        self.congestion.release_memory();
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
        self.loss.limit_backoff(interval);
    }

    /// Sets whether only retransmissions can detect that a silent peer is back, so that they leave more
    /// often.
    #[inline]
    pub(crate) fn limit_pto(&mut self, limited: bool) {
        self.loss.limit_pto(limited);
    }

    /// Whether the oldest segment in flight has no ACK of its own.
    pub(crate) fn is_oldest_unacked(&self) -> bool {
        self.sent_segments.get(self.una()).is_some_and(|oldest| !oldest.acked)
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
        if self.pacer.is_blocked(now) {
            return None;
        }
        let new = self.next_new(now, may_send_new);
        if self.retransmit_budget.may_retransmit(now)
            && let Some((sn, trigger)) = self.next_lost(now, new.is_none())
        {
            let len = self.sent_segments.payload(sn)?.len();
            let transmission = Transmission::Retransmit(sn, trigger);
            return Some(SendCandidate { len, transmission });
        }
        new
    }

    /// The new segment that may leave now if there is nothing to retransmit.
    #[inline]
    pub(crate) fn next_new(&self, now: Micros, may_send_new: bool) -> Option<SendCandidate> {
        let open = may_send_new && self.window_is_open() && !self.pacer.is_blocked(now);
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
                let is_first = self.retransmit(now, sn, trigger, stats);
                self.schedule_copies(now, (sn, ts), (lost, trigger), is_first);
                (sn, SentAs::Retransmission { by_timeout: trigger == LossTrigger::Rto })
            }
            Transmission::FurtherCopy(sn) => {
                self.retransmit_copy(now, sn, stats);
                (sn, SentAs::RedundantCopy)
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
        stats.sent_segments += 1;
        stats.sent_bytes += payload.len() as u64;
        self.pto_backoff.on_new_segment(now, self.sent_segments.all_acked());
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
        self.pacer.resume_at()
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        self.sent_segments.check_invariants();
        self.send_buffer.check_invariants();
        self.check_congestion();
        let rto = self.rtt.rto();
        assert!((30_000..=60_000_000).contains(&rto), "rto {rto}");
        self.check_losses();
    }
}
