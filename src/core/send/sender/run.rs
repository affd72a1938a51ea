//! Runs: full segments that leave for the first time in one GSO batch.
//!
//! Nothing that decides whether the next segment may leave changes between the segments of a run, so windows,
//! pacer and counters are visited once per run.

use super::Sender;
use crate::core::clock::Micros;
use crate::core::segment::{self, Command, HEADER_LEN, Header};
use crate::core::seq::Ts;
use crate::stats::Counters;
use crate::util::framing::Framing;

impl Sender {
    /// Appends the datagrams of up to `max` full new segments and returns how many. Returns fewer, perhaps 0,
    /// if each segment needs a decision of its own ([`Sender::next_new`]).
    pub(crate) fn transmit_run(
        &mut self,
        now: Micros,
        template: Header,
        (max, framing): (usize, Framing),
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
            self.append_full((now, template.ts), &header, framing, out);
        }
        debug_assert_eq!(out.len() - start, count * size, "all are full");
        stats.sent_segments += count as u64;
        stats.sent_bytes += (count * mss) as u64;
        // Neither a pacer nor a model applies, see `run_len`.
        self.pacer.unblock();
        count
    }

    /// Appends the next full segment; `header` lacks its number.
    #[inline]
    fn append_full(
        &mut self,
        (now, ts): (Micros, Ts),
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
        let unpaced = self.rtt.is_short() && !self.pacer.is_blocked(now);
        let unmodelled = !self.congestion.is_bbr()
            || (self.congestion.is_bbr_suspended() && self.is_short_path());
        let unobserved = self.redundancy.ignores_new_segments();
        if !(unpaced && unmodelled && unobserved) {
            return 0;
        }
        self.send_buffer.full_segments(self.mss).min(self.window_left() as usize)
    }
}
