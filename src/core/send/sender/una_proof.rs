//! Windows, including segments that still count against them although `una` covers them.

use super::Sender;
use crate::core::clock::Micros;
use crate::core::congestion::INITIAL_WINDOW;
use crate::core::segment::HEADER_LEN;
use crate::core::seq::Sn;

impl Sender {
    /// Segments that may be in flight: the minimum of send window, peer's window and congestion window
    /// (kcp-go `flush`, `cwnd`).
    #[inline]
    pub(super) fn effective_window(&self) -> u32 {
        u32::from(self.window).min(self.remote.available(self.una())).min(self.congestion.window())
    }

    /// New segments that the windows admit now.
    #[inline]
    pub(super) fn window_left(&self) -> u32 {
        let in_flight = self.sent_segments.len();
        let ours = u32::from(self.window).min(self.congestion.window());
        let ours = ours.saturating_sub(in_flight + self.unproved());
        let ours = ours.max(u32::from(self.una_proof.may_probe(self.sent_segments.nxt())));
        ours.min(self.remote.available(self.una()).saturating_sub(in_flight))
    }

    #[inline]
    pub(super) fn window_is_open(&self) -> bool {
        self.window_left() > 0
    }

    /// Segments that `una` covers without proof by an ACK.
    #[inline]
    pub(super) fn unproved(&self) -> u32 {
        self.una_proof.unproved(self.una())
    }

    /// Index of segment SND.UNA + `offset` in the congestion control's list.
    #[inline]
    pub(super) fn congestion_index(&self, offset: u32) -> usize {
        (self.unproved() + offset) as usize
    }

    /// A valid ACK of `sn` arrived.
    #[inline]
    pub(super) fn on_segment_proved(&mut self, now: Micros, sn: Sn) {
        let count = self.una_proof.on_ack(sn, self.una());
        if count == 0 {
            return;
        }
        if self.congestion.samples_rate() {
            (0..count).for_each(|_| self.congestion.on_una(now));
        }
        self.on_newly_acked(count);
        self.on_cumulative_ack(count);
    }

    /// `una` covers `count` more proved segments.
    #[inline]
    pub(super) fn on_cumulative_ack(&mut self, count: u32) {
        let remote_window = self.remote.available(self.una());
        self.congestion.change_reno(|reno| reno.on_ack(count, remote_window));
    }

    /// When more data may leave without further proof.
    pub(crate) fn unproved_deadline(&self, may_send_new: bool) -> Option<Micros> {
        let is_held_back = may_send_new && !self.send_buffer.is_empty() && !self.window_is_open();
        let deadline = self.una_proof.deadline(self.una(), self.rtt.rto());
        deadline.filter(|_| is_held_back)
    }

    /// Writes off unproved segments, at most an initial window, when their timeout expires: they count as
    /// neither in flight nor delivered.
    #[inline]
    pub(crate) fn expire_unproved(&mut self, now: Micros) {
        let max = (INITIAL_WINDOW / (HEADER_LEN + self.mss) as u64).max(1);
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        let range = (self.una(), self.sent_segments.nxt());
        let count = self.una_proof.expire(now, range, self.rtt.rto(), max);
        self.congestion.write_off(count);
    }
}
